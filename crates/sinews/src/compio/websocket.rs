//! The WebSocket of an application on compio.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use sinews_proto::{CloseCode, Config, Kind, Negotiated, Role};
use sinews_session::{Closed, Prepared, Sent};

use super::drive::{self, Drive};
use super::transport::{SocketTransport, Transport};
use super::wire::Wire;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::Link;
use crate::message::{Message, MessageRef};
use crate::reading::Filling;
use crate::sender::Sender;

/// A WebSocket over a compio transport. It lives on the thread whose runtime opened the transport.
///
/// The WebSocket, and none of its futures, owns the operations in flight. Each future may be dropped at any point:
/// bytes received meanwhile are kept for the next call, and a message is queued whole or not at all. A
/// [`CancelToken`](compio::runtime::CancelToken) around a future cancels no operation of the connection; use
/// `with_cancel(token).fail_fast()`, which drops the future. Dropping the WebSocket cancels the operations in flight.
pub struct WebSocket<S: Transport> {
    pub(super) drive: Drive<S>,
    /// State of [`recv_into`](Self::recv_into).
    pub(super) filling: Filling,
}

impl<S: Transport> WebSocket<S> {
    /// A connection after a handshake made elsewhere. `received` holds the bytes already received behind the
    /// handshake.
    pub fn from_negotiated(stream: S, negotiated: Negotiated, config: Arc<Config>, received: &[u8]) -> Self {
        Self::on_wire(Wire::open(stream), negotiated, config, received)
    }

    /// The same for a transport that was in use already.
    pub(super) fn on_wire(
        wire: Wire<S>,
        negotiated: Negotiated,
        config: Arc<Config>,
        received: &[u8],
    ) -> Self {
        let link = Link::new(negotiated, config, received, drive::now());
        Self { drive: Drive::new(wire, link), filling: Filling::default() }
    }

    pub(super) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.drive.link().set_subprotocol(subprotocol);
        self
    }

    /// Receives the next message, or `None` when the connection has ended in order; [`closed`](Self::closed) then
    /// returns the details.
    ///
    /// Cancel-safe: a future that is dropped loses nothing.
    ///
    /// # Errors
    /// Once, how the connection ended, if not in order; then `None`.
    pub async fn next(&mut self) -> Option<Result<Message, Error>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// Receives the next text or binary message; pings, pongs and Close are skipped, since the library answers them.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_data(&mut self) -> Option<Result<Message, Error>> {
        loop {
            match self.next().await? {
                Ok(message) if !message.is_data() => {}
                message => return Some(message),
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.leave_filling();
        self.drive.poll_message(cx)
    }

    /// Borrows the next text or binary message from the receive buffer; pings, pongs and Close are skipped.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        self.leave_filling();
        match poll_fn(|cx| self.drive.poll_borrow(cx)).await {
            Some(lent) => Some(Ok(self.drive.link().borrowed(lent))),
            None => self.drive.link().last_words().map(Err),
        }
    }

    /// Sends a message. It leaves at once, or, while messages received together are unread, with the reply to the
    /// last of them, in one operation.
    ///
    /// Cancel-safe: a dropped future has queued the message whole or not at all.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&mut self, message: impl Into<Message>) -> impl Future<Output = Result<(), Error>> {
        // Written by hand: the compiler would store the message several times.
        let mut message = Some(message.into());
        poll_fn(move |cx| self.drive.poll_queue(cx, |link| message.take().map(|message| link.queue(message))))
    }

    /// Sends borrowed text, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_text(&mut self, text: &str) -> impl Future<Output = Result<(), Error>> {
        self.send_lent(Kind::Text, text.as_bytes())
    }

    /// Sends a borrowed binary message, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_binary(&mut self, payload: &[u8]) -> impl Future<Output = Result<(), Error>> {
        self.send_lent(Kind::Binary, payload)
    }

    fn send_lent(&mut self, kind: Kind, payload: &[u8]) -> impl Future<Output = Result<(), Error>> {
        let mut payload = Some(payload);
        poll_fn(move |cx| {
            self.drive.poll_queue(cx, |link| payload.take().map(|payload| link.queue_lent(kind, payload)))
        })
    }

    /// Queues a message without sending it: it leaves with the next [`flush`](Self::flush), [`send`](Self::send), or
    /// [`next`](Self::next) that waits. Waits only while more than [`Config::high_water`] bytes are queued.
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn feed(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        poll_fn(|cx| self.drive.poll_room(cx)).await;
        self.drive.link().queue(message.into()).map(drop)
    }

    /// Queues a message without waiting. If [`Config::max_outbound`] bytes are queued already, [`Config::overflow`]
    /// applies: the message is dropped, or the connection ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn try_send(&mut self, message: impl Into<Message>) -> Result<Sent, Error> {
        self.drive.link().queue(message.into())
    }

    /// Queues a message that is framed once for many connections, without waiting, as [`try_send`](Self::try_send).
    /// [`Overflow::DropOldest`](crate::Overflow::DropOldest) drops only such messages for a slow consumer: the newest
    /// is always queued.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn publish(&mut self, message: &Prepared) -> Result<Sent, Error> {
        self.drive.link().publish(message)
    }

    /// Sends all queued bytes.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_flushed(cx)).await
    }

    fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.drive.poll_out(cx)
    }

    /// Begins the closing handshake (RFC 6455 section 7.1.2) behind queued messages, without waiting.
    /// [`next`](Self::next) still returns messages of the peer until its Close arrives.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes, or if a Close is decided already.
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.drive.start_close(code, reason)
    }

    /// Closes the connection and waits for its end, at most [`Config::close_timeout`] once our Close has left; drops
    /// messages that still arrive. Returns how the connection ended. If a Close is decided already, it only waits.
    ///
    /// Cancel-safe: call it again, or [`next`](Self::next).
    ///
    /// # Errors
    /// How the connection ended, if not in order.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<Closed, Error> {
        self.drive.begin_close(code, reason)?;
        self.leave_filling();
        poll_fn(|cx| self.drive.poll_end(cx)).await
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
        self.drive.begin_close(code, reason)?;
        self.leave_filling();
        let wait = self.config().close_timeout();
        let left = compio::time::timeout(wait, poll_fn(|cx| self.drive.poll_close_now(cx))).await;
        self.drive.link().end_unanswered(code, reason);
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
        self.drive.link().sender(capacity)
    }

    /// How the connection ended, if it has: code, reason and side.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.drive.peek().closed()
    }

    /// The subprotocol that the handshake agreed on.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.drive.peek().subprotocol()
    }

    /// Whether this is the client or the server.
    #[must_use]
    pub fn role(&self) -> Role {
        self.drive.peek().role()
    }

    /// Limits and timeouts.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.drive.peek().config()
    }
}

impl<S: SocketTransport> WebSocket<S> {
    /// The socket, for addresses and options. Under TLS it is the socket that carries the TLS stream. Bytes read from
    /// it or written to it directly are missing in the connection.
    #[must_use]
    pub fn get_ref(&self) -> &S::Socket {
        S::socket(self.drive.sink())
    }

    /// The socket, mutably.
    pub fn get_mut(&mut self) -> &mut S::Socket {
        S::socket_mut(self.drive.sink_mut())
    }

    /// The result of the TLS handshake; `None`: the connection is not encrypted.
    #[cfg(feature = "rustls")]
    #[must_use]
    pub fn tls_info(&self) -> Option<crate::TlsInfo> {
        S::tls_info(self.drive.sink())
    }
}

impl<S: Transport> fmt::Debug for WebSocket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("link", self.drive.peek()).finish_non_exhaustive()
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
        self.drive.peek().is_told()
    }
}

impl<S: Transport> Sink<Message> for WebSocket<S> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.drive.poll_room(cx));
        Poll::Ready(self.drive.link().check_sending())
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        self.drive.link().queue(message).map(drop)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_flushed(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.drive.begin_close(CloseCode::NORMAL, "")?;
        self.leave_filling();
        self.drive.poll_end(cx).map_ok(drop)
    }
}
