//! The WebSocket of an application on compio.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use sinews_proto::{CloseCode, Config, Negotiated};
use sinews_session::Closed;

use super::driver::{self, CompioDriver};
use super::transport::{SocketTransport, Transport};
use super::transport_io::TransportIo;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::{Link, started};
use crate::message::{Message, MessageRef};
use crate::methods;
use crate::reading::BufferFill;
use crate::sender::Sender;

/// A WebSocket over a compio transport. It lives on the thread whose runtime opened the transport.
///
/// The WebSocket, and none of its futures, owns the operations in flight. Each future may be dropped at any point:
/// bytes received meanwhile are kept for the next call, and a message is queued whole or not at all. A
/// [`CancelToken`](compio::runtime::CancelToken) around a future cancels no operation of the connection; use
/// `with_cancel(token).fail_fast()`, which drops the future. Dropping the WebSocket cancels the operations in flight.
pub struct WebSocket<S: Transport> {
    pub(super) driver: CompioDriver<S>,
    /// State of [`recv_into`](Self::recv_into).
    pub(super) filling: BufferFill,
}

impl<S: Transport> WebSocket<S> {
    methods::receive_methods!();
    methods::send_methods!();
    methods::link_accessors!();

    /// A connection after a handshake made elsewhere. `received` holds the bytes already received behind the
    /// handshake.
    pub fn from_negotiated(stream: S, negotiated: Negotiated, config: Arc<Config>, received: &[u8]) -> Self {
        Self::on_wire(TransportIo::open(stream), negotiated, config, received)
    }

    /// The same for a transport that was in use already.
    pub(super) fn on_wire(
        wire: TransportIo<S>,
        negotiated: Negotiated,
        config: Arc<Config>,
        received: &[u8],
    ) -> Self {
        let link = Link::new(negotiated, config, received, driver::now());
        Self { driver: CompioDriver::new(wire, link), filling: BufferFill::default() }
    }

    pub(super) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.driver.link().set_subprotocol(subprotocol);
        self
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.leave_filling();
        self.driver.poll_message(cx)
    }

    /// Borrows the next text or binary message from the receive buffer; pings, pongs and Close are skipped.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        self.leave_filling();
        match poll_fn(|cx| self.driver.poll_borrow(cx)).await {
            Some(borrowed) => Some(Ok(self.driver.link().borrowed(borrowed))),
            None => self.driver.link().take_end_error().map(Err),
        }
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
        self.leave_filling();
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
        self.leave_filling();
        let wait = self.config().close_timeout();
        let left = compio::time::timeout(wait, poll_fn(|cx| self.driver.poll_close_now(cx))).await;
        self.driver.link().end_unanswered(code, reason);
        left.unwrap_or_else(|_| Err(Error::Io(std::io::ErrorKind::TimedOut.into())))
    }

    /// A handle by which any task, on any thread, may send on this connection while another task drives it: awaits
    /// [`next`](Self::next), or sends. All handles share one queue of [`Sender::CAPACITY`] messages.
    pub fn sender(&mut self) -> Sender {
        self.sender_with_capacity(Sender::CAPACITY)
    }

    /// As [`sender`](Self::sender), with capacity for `capacity` messages, at least one. The first call for a
    /// connection sets it.
    pub fn sender_with_capacity(&mut self, capacity: usize) -> Sender {
        self.driver.link().sender(capacity)
    }
}

impl<S: SocketTransport> WebSocket<S> {
    /// The socket, for addresses and options. Under TLS it is the socket that carries the TLS stream. Bytes read from
    /// it or written to it directly are missing in the connection.
    #[must_use]
    pub fn get_ref(&self) -> &S::Socket {
        S::socket(self.driver.sink())
    }

    /// The socket, mutably.
    pub fn get_mut(&mut self) -> &mut S::Socket {
        S::socket_mut(self.driver.sink_mut())
    }

    /// The result of the TLS handshake; `None`: the connection is not encrypted.
    #[cfg(feature = "rustls")]
    #[must_use]
    pub fn tls_info(&self) -> Option<crate::TlsInfo> {
        S::tls_info(self.driver.sink())
    }
}

impl<S: Transport> fmt::Debug for WebSocket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("link", &self.driver.link).finish_non_exhaustive()
    }
}

impl<S: Transport> Unpin for WebSocket<S> {}

impl<S: Transport> Stream for WebSocket<S> {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx)
    }
}

impl<S: Transport> FusedStream for WebSocket<S> {
    fn is_terminated(&self) -> bool {
        self.driver.link.is_end_reported()
    }
}

impl<S: Transport> Sink<Message> for WebSocket<S> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.driver.poll_capacity(cx));
        Poll::Ready(self.driver.link().check_sending())
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        started(self.driver.link().queue(message))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.driver.poll_out(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.driver.begin_close(CloseCode::NORMAL, "")?;
        self.leave_filling();
        self.driver.poll_end(cx).map_ok(drop)
    }
}
