//! The connection that both halves share.

use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use sinews_proto::CloseCode;
use sinews_session::Closed;

use crate::compio::transport::Transport;
use crate::compio::websocket::WebSocket;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::ConnectionInfo;

pub(crate) struct SharedSocket<S: Transport> {
    pub(super) socket: RefCell<WebSocket<S>>,
    pub(super) info: ConnectionInfo,
    closed: OnceCell<Closed>,
    wakers: Arc<HalfWakers>,
    /// Wakes all waiting tasks: a completed operation does not know which half began it.
    waker: Waker,
}

/// The wakers of the waiting tasks.
#[derive(Default)]
struct HalfWakers {
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Wake for HalfWakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}

impl<S: Transport> SharedSocket<S> {
    pub(super) fn new(mut socket: WebSocket<S>) -> Self {
        let wakers = Arc::new(HalfWakers::default());
        let waker = Waker::from(wakers.clone());
        let info = socket.driver.link().info();
        Self { socket: RefCell::new(socket), info, closed: OnceCell::new(), wakers, waker }
    }

    /// Polls the connection for one of the halves. The polled code polls no other half, so that the borrow is unique.
    fn poll<T>(
        &self,
        cx: &Context<'_>,
        wakers: &AtomicWaker,
        poll: impl FnOnce(&mut WebSocket<S>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        wakers.register(cx.waker());
        let polled = poll(&mut self.socket.borrow_mut(), &mut Context::from_waker(&self.waker));
        if polled.is_ready() {
            wakers.take();
        }
        polled
    }

    pub(super) fn poll_reading<T>(
        &self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut WebSocket<S>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.poll(cx, &self.wakers.reader, |socket, cx| {
            let sending = socket.driver.wants_send();
            let polled = poll(socket, cx);
            // An operation may complete as soon as it is begun, without waking a task.
            if sending && !socket.driver.wants_send() {
                self.wakers.writer.wake();
            }
            polled
        })
    }

    pub(super) fn poll_writing<T>(
        &self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut WebSocket<S>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let polled = self.poll(cx, &self.wakers.writer, poll);
        if self.socket.borrow_mut().driver.link().has_pending_event() {
            self.wakers.reader.wake();
        }
        polled
    }

    /// How the connection ended. Stored here once it is known, so that the halves can borrow it.
    pub(super) fn closed(&self) -> Option<&Closed> {
        if self.closed.get().is_none()
            && let Some(closed) = self.socket.borrow().closed()
        {
            let _ = self.closed.set(closed.clone());
        }
        self.closed.get()
    }

    /// Changes the connection without waiting. The reader may then have to send queued bytes, or to wait for an
    /// earlier deadline.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut WebSocket<S>) -> T) -> T {
        let changed = change(&mut self.socket.borrow_mut());
        self.wakers.reader.wake();
        changed
    }
}

/// One of the halves, during a call.
pub(crate) enum HalfCall<'a, S: Transport> {
    Read(&'a SharedSocket<S>),
    Write(&'a SharedSocket<S>),
}

impl<S: Transport> HalfCall<'_, S> {
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut WebSocket<S>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        match self {
            Self::Read(shared) => shared.poll_reading(cx, poll),
            Self::Write(shared) => shared.poll_writing(cx, poll),
        }
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut WebSocket<S>) -> T) -> T {
        let (Self::Read(shared) | Self::Write(shared)) = self;
        work(&mut shared.socket.borrow_mut())
    }

    pub(super) async fn close_now(&self, code: CloseCode, reason: &str) -> Result<(), Error> {
        let (Self::Read(shared) | Self::Write(shared)) = self;
        shared.change(|socket| socket.driver.begin_close(code, reason))?;
        let left = poll_fn(|cx| self.poll(cx, |socket, cx| socket.driver.poll_close_now(cx)));
        let left = compio::time::timeout(shared.info.config().close_timeout(), left).await;
        shared.change(|socket| socket.driver.link().end_unanswered(code, reason));
        shared.wakers.writer.wake();
        left.unwrap_or_else(|_| Err(Error::Io(std::io::ErrorKind::TimedOut.into())))
    }
}
