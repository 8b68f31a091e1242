//! The half that receives messages, and answers control frames.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use sinews_proto::{CloseCode, Misuse};
use sinews_session::{Closed, ReceivedEvent};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::outlet::{SharedDriver, WriteOutlet};
use super::transport::Split;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::{HalfSide, Link};
use crate::message::{Filled, Message, MessageHead, MessageRef};
use crate::methods;
use crate::reading::{BufferFill, ReadStep};
use crate::tokio::driver::{TokioDriver, now};

/// The transport as the reader sees it: the reader receives directly, and its replies go through the outlet of the
/// writer's messages.
#[derive(Debug)]
pub(super) struct ReadHalfIo<R, W> {
    pub(super) io: R,
    pub(super) outlet: Arc<WriteOutlet<W>>,
}

impl<R: AsyncRead + Unpin, W: Unpin> AsyncRead for ReadHalfIo<R, W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<R: Unpin, W: AsyncWrite + Unpin> AsyncWrite for ReadHalfIo<R, W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.outlet.poll_answer(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.outlet.poll_answer(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_help(cx).map(Ok)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.outlet.poll_help(cx));
        self.outlet.poll_shut(HalfSide::Read, cx)
    }
}

/// The driver of the reading half.
pub(super) type ReadDriver<T> = TokioDriver<ReadHalfIo<<T as Split>::Read, <T as Split>::Write>>;

/// The receiving half of a [`WebSocket`](crate::WebSocket): it returns messages, and answers pings and the peer's
/// Close while it is awaited, independently of the other half.
///
/// It executes the connection's deadlines: keepalive, idle and closing. While its owner waits for a message, or has
/// not asked for one, the [`WriteHalf`](super::WriteHalf) also answers when it sends. After the `ReadHalf` is
/// dropped, the `WriteHalf` continues to answer and drops messages that arrive.
pub struct ReadHalf<T: Split> {
    /// In use; otherwise it is stored where the writer finds it too.
    driver: Option<Box<ReadDriver<T>>>,
    shared_driver: Arc<SharedDriver<ReadDriver<T>>>,
    pub(super) outlet: Arc<WriteOutlet<T::Write>>,
    /// State of [`recv_into`](Self::recv_into).
    filling: BufferFill,
    ended: bool,
}

impl<T: Split> ReadHalf<T> {
    methods::receive_methods!();
    methods::accessors!(this => end: this.outlet.pair, info: this.outlet.info);

    pub(super) fn new(
        outlet: Arc<WriteOutlet<T::Write>>,
        shared_driver: Arc<SharedDriver<ReadDriver<T>>>,
    ) -> Self {
        Self { driver: None, shared_driver, outlet, filling: BufferFill::default(), ended: false }
    }

    /// The driver of this half. The writer is gone, and has put it back.
    pub(super) fn into_driver(mut self) -> ReadDriver<T> {
        let driver =
            self.driver.take().or_else(|| self.shared_driver.borrow().map(|borrowed| borrowed.driver));
        let mut driver = driver.expect("either half puts it back");
        self.filling.abandon(&mut driver.link);
        *driver
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        let own = ready!(self.poll_bytes(cx, Link::detach_message));
        Poll::Ready(own.map(Ok).or_else(|| self.take_end_error().map(Err)))
    }

    /// Borrows the next text or binary message from the receive buffer; pings, pongs and Close are skipped.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        let found = poll_fn(|cx| self.poll_bytes(cx, Link::borrow)).await;
        if found.is_none() {
            return self.take_end_error().map(Err);
        }
        let link = &mut self.driver.as_mut()?.link;
        Some(Ok(link.borrowed(found?)))
    }

    /// The next event that `take` converts to a result; `None`: the connection has ended.
    fn poll_bytes<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut Link, ReceivedEvent) -> Option<R>,
    ) -> Poll<Option<R>> {
        self.take_driver(cx);
        let Some(driver) = &mut self.driver else { return Poll::Pending };
        self.filling.abandon(&mut driver.link);
        if driver.poll_next_turn(cx).is_pending() {
            self.put_driver(cx);
            return Poll::Pending;
        }
        driver.link.expect_pieces(false);
        loop {
            match poll_event::<T>(driver, &self.outlet, cx) {
                Poll::Ready(Some(event)) => {
                    if let Some(taken) = take(&mut driver.link, event) {
                        return Poll::Ready(Some(taken));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        self.put_driver(cx);
        Poll::Pending
    }

    /// Waits for the head of the next message, as [`WebSocket::next_head`](crate::WebSocket::next_head).
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_head(&mut self) -> Option<Result<MessageHead, Error>> {
        match poll_fn(|cx| self.poll_head(cx)).await {
            Some(head) => Some(Ok(head)),
            None => self.take_end_error().map(Err),
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Option<MessageHead>> {
        self.take_driver(cx);
        let Some(driver) = &mut self.driver else { return Poll::Pending };
        let outlet = &self.outlet;
        let next = |driver: &mut ReadDriver<T>, cx: &mut Context<'_>| {
            poll_event::<T>(driver, outlet, cx).map(|it| it.map(ReadStep::Event))
        };
        let head = self.filling.poll_head(&mut **driver, cx, |_| None, next);
        if head.is_pending() {
            self.put_driver(cx);
        }
        head
    }

    /// Receives the next text or binary message into the caller's memory, as
    /// [`WebSocket::recv_into`](crate::WebSocket::recv_into).
    ///
    /// Cancel-safe: call again with the same buffer, and it continues behind the bytes already received.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn recv_into(&mut self, buffer: &mut [u8]) -> Option<Result<Filled, Error>> {
        match poll_fn(|cx| self.poll_recv_into(cx, buffer)).await {
            Some(filled) => Some(Ok(filled)),
            None => self.take_end_error().map(Err),
        }
    }

    fn poll_recv_into(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Option<Filled>> {
        self.take_driver(cx);
        let Some(driver) = &mut self.driver else { return Poll::Pending };
        let outlet = &self.outlet;
        let next = |driver: &mut ReadDriver<T>, cx: &mut Context<'_>| poll_event::<T>(driver, outlet, cx);
        let filled = self.filling.poll_by(&mut **driver, cx, buffer, next);
        if filled.is_pending() {
            self.put_driver(cx);
        }
        filled
    }

    /// Takes the driver, unless the writer has it and will wake this half later.
    fn take_driver(&mut self, cx: &Context<'_>) {
        if self.driver.is_none() {
            self.driver = self.shared_driver.take(cx);
        }
    }

    /// Puts the driver where the writer finds it.
    fn put_driver(&mut self, cx: &Context<'_>) {
        if let Some(driver) = self.driver.take() {
            self.shared_driver.put(driver, cx);
        }
    }

    fn take_end_error(&mut self) -> Option<Error> {
        self.ended = true;
        self.driver.as_mut()?.link.take_end_error()
    }

    /// Closes the connection and waits for its end, at most [`Config::close_timeout`](crate::Config::close_timeout)
    /// once the Close has left; drops messages that still arrive. Returns how the connection ended. If a Close is
    /// decided already, it only waits.
    ///
    /// Messages that the writer sends from now on do not leave, nor do its queued messages.
    ///
    /// Cancel-safe: call it again, or [`next`](Self::next).
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes; how the connection ended, if not in order.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<Closed, Error> {
        let mut started = None;
        poll_fn(|cx| {
            if started.is_none() {
                started = Some(ready!(self.poll_close(cx, code, reason)));
            }
            Poll::Ready(())
        })
        .await;
        match started {
            None | Some(Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing))) => {}
            Some(Err(error)) => return Err(error),
        }
        while let Some(message) = self.next().await {
            message?;
        }
        self.closed().cloned().ok_or(Error::Misuse(Misuse::Closing))
    }

    /// Closes the connection without waiting for the peer, as [`WebSocket::close_now`](crate::WebSocket::close_now):
    /// sends a Close frame, ends the sending side, and drops received messages. Drop both halves afterwards.
    ///
    /// A message that the writer is sending leaves before the Close; its queued messages are dropped, and a later
    /// send returns [`Error::Closed`] with [`Cause::Local`](crate::Cause::Local).
    ///
    /// Cancel-safe: call it again.
    ///
    /// # Errors
    /// As [`WebSocket::close_now`](crate::WebSocket::close_now).
    pub async fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        let wait = self.config().close_timeout();
        let mut started = false;
        let left =
            tokio::time::timeout(wait, poll_fn(|cx| self.poll_close_now(cx, code, reason, &mut started)))
                .await;
        if let Some(driver) = &mut self.driver {
            driver.link.end_unanswered(code, reason);
        }
        left.unwrap_or_else(|_| Err(Error::Io(io::ErrorKind::TimedOut.into())))
    }

    fn poll_close_now(
        &mut self,
        cx: &mut Context<'_>,
        code: CloseCode,
        reason: &str,
        started: &mut bool,
    ) -> Poll<Result<(), Error>> {
        self.take_driver(cx);
        let Some(driver) = &mut self.driver else { return Poll::Pending };
        self.filling.abandon(&mut driver.link);
        if !*started {
            driver.link.sync();
            driver.begin_close(code, reason)?;
            *started = true;
        }
        driver.poll_close_now(cx)
    }

    fn poll_close(&mut self, cx: &Context<'_>, code: CloseCode, reason: &str) -> Poll<Result<(), Error>> {
        self.take_driver(cx);
        let Some(driver) = &mut self.driver else { return Poll::Pending };
        driver.link.now = now();
        driver.link.sync();
        Poll::Ready(driver.link.close(code, reason))
    }
}

/// The next event. While pending, bytes that the writer left unsent are sent too.
fn poll_event<T: Split>(
    driver: &mut ReadDriver<T>,
    outlet: &WriteOutlet<T::Write>,
    cx: &mut Context<'_>,
) -> Poll<Option<ReceivedEvent>> {
    if outlet.pair.is_unanswered() {
        driver.link.sync();
        driver.discard_received(cx);
        return Poll::Ready(None);
    }
    loop {
        if driver.link.is_beside_sends() {
            driver.link.now = now();
        }
        if let Poll::Ready(event) = driver.poll_event(cx) {
            return Poll::Ready(event);
        }
        // Register the waker first, then check: bytes that the writer leaves unsent from here on wake this task.
        outlet.pair.register(HalfSide::Read, cx.waker());
        if !outlet.wants_help() {
            return Poll::Pending;
        }
        // A reply of the reader may have found no capacity behind the bytes that have left now.
        if outlet.poll_help(cx).is_ready() && driver.wants_send() {
            continue;
        }
        driver.link.now = now();
        driver.link.sync();
        ready!(driver.poll_timer(cx));
    }
}

/// The writer takes over the driver, if the writer still exists.
impl<T: Split> Drop for ReadHalf<T> {
    fn drop(&mut self) {
        self.shared_driver.owner_dropped(self.driver.take());
        self.outlet.pair.wake_side(HalfSide::Write);
    }
}

impl<T: Split> Stream for ReadHalf<T> {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx)
    }
}

impl<T: Split> FusedStream for ReadHalf<T> {
    fn is_terminated(&self) -> bool {
        self.ended
    }
}

impl<T: Split> Unpin for ReadHalf<T> {}

impl<T: Split> fmt::Debug for ReadHalf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadHalf").field("closed", &self.closed()).finish_non_exhaustive()
    }
}
