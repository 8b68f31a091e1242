//! Receiving a message into the application's memory. It belongs to the connection and to no future, so that a dropped
//! call loses nothing: the next call continues in the same memory, and copies at the end.

use std::task::{Context, Poll, ready};

use compio::buf::IoBufMut;

use super::app_buffer::AppBuffer;
use super::driver::CompioDriver;
use super::transport::Transport;
use super::websocket::WebSocket;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::message::{Filled, MessageHead};
use crate::reading::ReceiveTarget as _;

impl<S: Transport> WebSocket<S> {
    /// The head of the next message. Bytes that a dropped call has received count too.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<MessageHead, Error>>> {
        let elsewhere =
            |driver: &mut CompioDriver<S>| driver.app_buffer.as_ref().and_then(|app_buffer| app_buffer.piece);
        let head = self.filling.poll_head(&mut self.driver, cx, elsewhere, CompioDriver::poll_step);
        head.map(|head| match head {
            Some(head) => Some(Ok(head)),
            None => {
                self.leave_filling();
                self.driver.link().take_end_error().map(Err)
            }
        })
    }

    /// Receives into the memory of this call, or into that of an earlier, dropped call.
    pub(super) fn poll_into<B: IoBufMut>(
        &mut self,
        cx: &mut Context<'_>,
        own: &mut Option<B>,
    ) -> Poll<(Option<Result<Filled, Error>>, B)> {
        loop {
            if self.driver.app_buffer.is_none() {
                self.driver.app_buffer = own.take().map(AppBuffer::new);
            }
            let filled = ready!(self.poll_app_buffer(cx));
            ready!(self.driver.poll_buffer_returned(cx));
            let app_buffer = self.driver.app_buffer.take();
            let (filled, buffer) = match own.take() {
                None => (
                    filled,
                    app_buffer
                        .and_then(|app_buffer| app_buffer.into_buffer())
                        .expect("this call has stored its buffer"),
                ),
                Some(buffer) => match self.move_to_caller(filled, app_buffer, buffer) {
                    Ok(done) => done,
                    Err(more) => {
                        self.driver.app_buffer = Some(more);
                        continue;
                    }
                },
            };
            let received = match filled {
                Some(filled) => Some(Ok(filled)),
                None => {
                    self.leave_filling();
                    self.driver.link().take_end_error().map(Err)
                }
            };
            return Poll::Ready((received, buffer));
        }
    }

    fn poll_app_buffer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Filled>> {
        let Some(mut app_buffer) = self.driver.app_buffer.take() else { return Poll::Ready(None) };
        let polled = self.filling.poll_step(
            &mut self.driver,
            cx,
            &mut app_buffer,
            |driver, cx, app_buffer, offered| {
                let Some(at) = offered else { return driver.poll_step(cx) };
                (app_buffer.at, app_buffer.started) = (at, true);
                driver.app_buffer = Some(std::mem::take(app_buffer));
                let polled = driver.poll_step(cx);
                *app_buffer = driver.app_buffer.take().expect("a step leaves the buffer with the driver");
                polled
            },
        );
        self.driver.app_buffer = Some(app_buffer);
        polled
    }

    /// Moves bytes received into the memory of an earlier call to this call's memory. `Err`: there is capacity left,
    /// and the receive continues there.
    fn move_to_caller<B: IoBufMut>(
        &mut self,
        filled: Option<Filled>,
        app_buffer: Option<Box<AppBuffer>>,
        buffer: B,
    ) -> Result<(Option<Filled>, B), Box<AppBuffer>> {
        let (Some(mut filled), Some(app_buffer)) = (filled, app_buffer) else { return Ok((None, buffer)) };
        let mut target = AppBuffer::new(buffer);
        let (here, rest) = app_buffer.filled(filled.len).split_at(filled.len.min(target.capacity));
        target.put(0, here);
        if !rest.is_empty() {
            self.filling.restore_rest(rest, &filled);
            (filled.len, filled.last) = (here.len(), false);
        } else if !filled.last && here.len() < target.capacity {
            self.filling.resume(here.len());
            return Err(target);
        }
        Ok((Some(filled), target.into_buffer().expect("the buffer was stored just now")))
    }

    /// A receiver into its own memory discards the rest of the message.
    pub(super) fn leave_filling(&mut self) {
        if let Some(app_buffer) = self.driver.app_buffer.take()
            && let Some((_, true)) = app_buffer.piece
        {
            self.filling.ended();
        }
        self.filling.abandon(self.driver.link());
    }
}
