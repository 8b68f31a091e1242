//! The WebSocket of an application on Tokio.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use sinews_proto::{CloseCode, Config, Kind, Negotiated, Role};
use sinews_session::{Closed, Prepared, Sent};
use tokio::io::{AsyncRead, AsyncWrite};

use super::drive::{self, Drive};
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::Link;
use crate::message::{Message, MessageRef};
use crate::reading::Filling;

/// A WebSocket over a Tokio stream.
#[derive(Debug)]
pub struct WebSocket<S> {
    pub(super) drive: Drive<S>,
    /// State of [`recv_into`](Self::recv_into).
    pub(super) filling: Filling,
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
impl<S> WebSocket<S> {
    pub(crate) fn transport(&self) -> &S {
        &self.drive.io
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// A connection after a handshake made elsewhere. `received` holds the bytes already received behind the
    /// handshake.
    pub fn from_negotiated(stream: S, negotiated: Negotiated, config: Arc<Config>, received: &[u8]) -> Self {
        let link = Link::new(negotiated, config, received, drive::now());
        Self::of(Drive::new(stream, link))
    }

    pub(super) fn of(drive: Drive<S>) -> Self {
        Self { drive, filling: Filling::default() }
    }

    pub(crate) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.drive.link.set_subprotocol(subprotocol);
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

    #[inline]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.filling.leave(&mut self.drive.link);
        self.drive.poll_message(cx)
    }

    /// Borrows the next text or binary message from the receive buffer; pings, pongs and Close are skipped.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        self.filling.leave(&mut self.drive.link);
        match poll_fn(|cx| self.drive.poll_borrow(cx)).await {
            Some(lent) => Some(Ok(self.drive.link.borrowed(lent))),
            None => self.drive.link.last_words().map(Err),
        }
    }

    /// Sends a message. It leaves at once, or, while messages received together are unread, with the reply to the
    /// last of them.
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
            self.drive.poll_queue(cx, |link| pieces.take().map(|pieces| link.queue_pieces(kind, pieces)))
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
        if self.drive.link.is_congested() {
            poll_fn(|cx| self.drive.poll_room(cx)).await;
        }
        self.drive.link.queue(message.into()).map(drop)
    }

    /// Queues a message without waiting. If [`Config::max_outbound`] bytes are queued already, [`Config::overflow`]
    /// applies: the message is dropped, or the connection ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn try_send(&mut self, message: impl Into<Message>) -> Result<Sent, Error> {
        self.drive.link.queue(message.into())
    }

    /// Queues a message that is framed once for many connections, without waiting, as [`try_send`](Self::try_send).
    /// [`Overflow::DropOldest`](crate::Overflow::DropOldest) drops only such messages for a slow consumer: the newest
    /// is always queued.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn publish(&mut self, message: &Prepared) -> Result<Sent, Error> {
        self.drive.link.publish(message)
    }

    /// Sends all queued bytes.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.drive.poll_out(cx)).await
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
        self.filling.leave(&mut self.drive.link);
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
        self.filling.leave(&mut self.drive.link);
        let wait = self.config().close_timeout();
        let left = tokio::time::timeout(wait, poll_fn(|cx| self.drive.poll_close_now(cx))).await;
        self.drive.link().end_unanswered(code, reason);
        left.unwrap_or_else(|_| Err(Error::Io(std::io::ErrorKind::TimedOut.into())))
    }

    /// How the connection ended, if it has: code, reason and side.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.drive.link.closed()
    }

    /// The subprotocol that the handshake agreed on.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.drive.link.subprotocol()
    }

    /// Whether this is the client or the server.
    #[must_use]
    pub fn role(&self) -> Role {
        self.drive.link.role()
    }

    /// Limits and timeouts.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.drive.link.config()
    }

    /// The transport. Bytes read from it or written to it directly are missing in the connection.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.drive.io
    }

    /// The transport, mutably.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.drive.io
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
        self.drive.link.is_told()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<Message> for WebSocket<S> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.drive.poll_room(cx));
        Poll::Ready(self.drive.link.check_sending())
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        self.drive.link.queue(message).map(drop)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.drive.poll_out(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.drive.begin_close(CloseCode::NORMAL, "")?;
        let this = &mut *self;
        this.filling.leave(&mut this.drive.link);
        this.drive.poll_end(cx).map_ok(drop)
    }
}
