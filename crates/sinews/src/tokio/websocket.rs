//! The WebSocket of an application on Tokio.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use sinews_proto::{CloseCode, Config, Kind, Negotiated};
use sinews_session::Closed;
use tokio::io::{AsyncRead, AsyncWrite};

use super::driver::{self, TokioDriver};
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::{Link, started};
use crate::message::{Message, MessageRef};
use crate::methods;
use crate::reading::BufferFill;

/// A WebSocket over a Tokio stream.
#[derive(Debug)]
pub struct WebSocket<S> {
    pub(super) driver: TokioDriver<S>,
    /// State of [`recv_into`](Self::recv_into).
    pub(super) filling: BufferFill,
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
impl<S> WebSocket<S> {
    pub(crate) fn transport(&self) -> &S {
        &self.driver.io
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    methods::receive_methods!();
    methods::send_methods!();
    methods::link_accessors!();
    methods::stream_accessors!();

    /// A connection after a handshake made elsewhere. `received` holds the bytes already received behind the
    /// handshake.
    pub fn from_negotiated(stream: S, negotiated: Negotiated, config: Arc<Config>, received: &[u8]) -> Self {
        let link = Link::new(negotiated, config, received, driver::now());
        Self::from_driver(TokioDriver::new(stream, link))
    }

    pub(super) fn from_driver(driver: TokioDriver<S>) -> Self {
        Self { driver, filling: BufferFill::default() }
    }

    pub(crate) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.driver.link.set_subprotocol(subprotocol);
        self
    }

    #[inline]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.filling.abandon(&mut self.driver.link);
        self.driver.poll_message(cx)
    }

    /// Borrows the next text or binary message from the receive buffer; pings, pongs and Close are skipped.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        self.filling.abandon(&mut self.driver.link);
        match poll_fn(|cx| self.driver.poll_borrow(cx)).await {
            Some(borrowed) => Some(Ok(self.driver.link.borrowed(borrowed))),
            None => self.driver.link.take_end_error().map(Err),
        }
    }

    /// Sends one message from several buffers, such as a header and a payload in separate memory. A server sends
    /// buffers of 4 KiB and more without a copy. Smaller buffers, and all buffers of a client, which masks them, are
    /// copied once, behind the frame header. Compression copies first. Otherwise as [`send`](Self::send).
    ///
    /// The buffers of a text message must be UTF-8 together; a buffer may end in the middle of a code point.
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_vectored(&mut self, kind: Kind, pieces: &[Bytes]) -> impl Future<Output = Result<(), Error>> {
        let mut pieces = Some(pieces);
        poll_fn(move |cx| {
            self.driver.poll_queue(cx, |link| pieces.take().map(|pieces| link.queue_pieces(kind, pieces)))
        })
    }

    /// Closes the connection and waits for its end, at most [`Config::close_timeout`] once our Close has left; drops
    /// messages that still arrive. Returns how the connection ended. If a Close is decided already, it only waits.
    ///
    /// Cancel-safe: call it again, or [`next`](Self::next).
    ///
    /// # Errors
    /// How the connection ended, if not in order.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<Closed, Error> {
        self.driver.begin_close(code, reason)?;
        self.filling.abandon(&mut self.driver.link);
        poll_fn(|cx| self.driver.poll_end(cx)).await
    }

    /// Closes the connection without waiting for the peer: sends queued messages and a Close frame, ends the sending
    /// side, and drops received messages. Drop the WebSocket afterwards. It waits only until the transport has taken
    /// these bytes, at most [`Config::close_timeout`]: for a shutdown with many connections, of which some peers are
    /// silent.
    ///
    /// The peer may not have read them yet, and data that it still sends is lost; [`close`](Self::close) waits for
    /// both. If a Close is decided already, its frame leaves. Afterwards [`closed`](Self::closed) returns this code
    /// and reason with [`Cause::Local`](crate::Cause::Local), unless the peer's Close arrived first, and
    /// [`next`](Self::next) returns `None`.
    ///
    /// Cancel-safe: call it again.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes. [`Error::Io`] of the kind
    /// [`TimedOut`](std::io::ErrorKind::TimedOut): the transport has not taken the Close in time. Otherwise the error
    /// of the transport.
    pub async fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.driver.begin_close(code, reason)?;
        self.filling.abandon(&mut self.driver.link);
        let wait = self.config().close_timeout();
        let left = tokio::time::timeout(wait, poll_fn(|cx| self.driver.poll_close_now(cx))).await;
        self.driver.link().end_unanswered(code, reason);
        left.unwrap_or_else(|_| Err(Error::Io(std::io::ErrorKind::TimedOut.into())))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for WebSocket<S> {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> FusedStream for WebSocket<S> {
    fn is_terminated(&self) -> bool {
        self.driver.link.is_end_reported()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<Message> for WebSocket<S> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.driver.poll_capacity(cx));
        Poll::Ready(self.driver.link.check_sending())
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        started(self.driver.link.queue(message))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.driver.poll_out(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.driver.begin_close(CloseCode::NORMAL, "")?;
        let this = &mut *self;
        this.filling.abandon(&mut this.driver.link);
        this.driver.poll_end(cx).map_ok(drop)
    }
}
