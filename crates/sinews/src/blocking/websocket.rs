//! The connection as an application holds it.

use std::fmt;
use std::io::{self, Read, Write};
use std::iter::FusedIterator;
use std::sync::Arc;

use bytes::Bytes;
use sinews_proto::{CloseCode, Config, Kind, Misuse, Negotiated, Role};
use sinews_session::{Closed, Prepared, Sent};

use super::drive::Drive;
use super::wait;
use crate::error::Error;
use crate::link::Link;
use crate::message::{Message, MessageRef};

/// A WebSocket over a stream that blocks, or that does not.
///
/// It is an [`Iterator`] over what comes. Of a call that ends with [`Error::Io`] of the kind
/// [`WouldBlock`](io::ErrorKind::WouldBlock) see [the module](super#time).
pub struct WebSocket<S> {
    drive: Drive<S>,
}

impl<S> WebSocket<S> {
    /// A connection behind a handshake that was made elsewhere. `received` is what came behind the handshake
    /// already.
    pub fn from_negotiated(stream: S, negotiated: Negotiated, config: Arc<Config>, received: &[u8]) -> Self {
        let link = Link::new(negotiated, config, received, wait::now());
        Self { drive: Drive::new(stream, link) }
    }

    pub(super) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.drive.link.set_subprotocol(subprotocol);
        self
    }

    /// Says how to end the sending side of the stream, once the last words have left:
    /// `|tcp| tcp.shutdown(Shutdown::Write)`, for TLS also its `close_notify`. Then what the peer still sends is read
    /// until it ends its side.
    ///
    /// Default: none, since `Write` has no such thing; [`connect`](super::connect) sets it for its own sockets. Without
    /// it, a server's connection is over as soon as its Close has left: drop it then, which ends the stream. Where the
    /// peer broke the protocol and goes on sending, the system may answer that with a reset, and the peer does not
    /// read our Close.
    #[must_use]
    pub fn with_shutdown(mut self, shutdown: fn(&mut S) -> io::Result<()>) -> Self {
        self.drive.shutdown = Some(shutdown);
        self
    }

    /// How the connection ended, if it did: code, reason and which side.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.drive.link.closed()
    }

    /// The subprotocol that the handshake agreed on.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.drive.link.subprotocol()
    }

    /// Which end this is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.drive.link.role()
    }

    /// Limits and waits.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.drive.link.config()
    }

    /// The transport. Bytes read from or written to it are missing in the connection.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.drive.io
    }

    /// The transport, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.drive.io
    }

    /// Queues a message without waiting. Where [`Config::max_outbound`] bytes wait already, it meets
    /// [`Config::overflow`]: it is dropped, or the connection ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn try_send(&mut self, message: impl Into<Message>) -> Result<Sent, Error> {
        self.drive.link.queue(message.into())
    }

    /// Queues a message that was framed once for many connections, without waiting, as [`try_send`](Self::try_send)
    /// does. Such messages are what [`Overflow::DropOldest`](crate::Overflow::DropOldest) drops for a slow consumer: the newest always gets in.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn publish(&mut self, message: &Prepared) -> Result<Sent, Error> {
        self.drive.link.publish(message)
    }

    /// Begins the closing handshake (RFC 6455 section 7.1.2) behind what is queued, without waiting. Messages of the
    /// peer still come from [`next`](Iterator::next) until its Close does.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes, or if a Close is decided already.
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.drive.link.now = wait::now();
        self.drive.link.close(code, reason)
    }
}

impl<S: Read + Write> WebSocket<S> {
    /// The next text or binary message where it lies, without a copy; pings, pongs and Close are passed over. `None`
    /// when the connection is over in order.
    ///
    /// # Errors
    /// As [`next`](Iterator::next).
    pub fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        let lent = loop {
            match self.drive.next_event() {
                Ok(Some(event)) => {
                    if let Some(lent) = self.drive.link.borrow(event) {
                        break lent;
                    }
                }
                Ok(None) => return self.drive.link.last_words().map(Err),
                Err(waits) => return Some(Err(waits.into())),
            }
        };
        Some(Ok(self.drive.link.borrowed(lent)))
    }

    /// Sends a message: it leaves at once, or, while messages that came together are still to be read, with the
    /// last of the answers to them.
    ///
    /// `Ok` says that it is queued; what a stream that times out or does not block has not taken of it leaves with the
    /// next call. Blocks while more than [`Config::high_water`] bytes are queued.
    ///
    /// # Errors
    /// See [`Error`]. One of the kind [`WouldBlock`](io::ErrorKind::WouldBlock) says that the message was *not* queued,
    /// since too much is: send it again. Where the stream has timeouts, keep a clone, which is a count.
    pub fn send(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.queue(|link| link.queue(message.into()))
    }

    /// Sends text that is lent, copied once, behind its head; otherwise [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.queue(|link| link.queue_lent(Kind::Text, text.as_bytes()))
    }

    /// Sends a binary message that is lent, copied once, behind its head; otherwise [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_binary(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.queue(|link| link.queue_lent(Kind::Binary, payload))
    }

    /// Sends one message that is made of several pieces: a head and a payload from elsewhere need no memory of their
    /// own. A server sends pieces from 4 KiB on from where they lie; smaller ones, and all of a client's, which are
    /// masked, are copied once, behind the head. What is compressed is copied before. Otherwise [`send`](Self::send).
    ///
    /// The pieces of text must be UTF-8 together; a code point may be cut by the edge of a piece.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_vectored(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<(), Error> {
        self.queue(|link| link.queue_pieces(kind, pieces))
    }

    /// Queues when there is room, and sends, unless more follows.
    fn queue(&mut self, queue: impl FnOnce(&mut Link) -> Result<Sent, Error>) -> Result<(), Error> {
        let burst = self.drive.link.is_answering(wait::now);
        self.make_room()?;
        queue(&mut self.drive.link)?;
        if burst && !self.drive.link.is_congested() {
            return Ok(());
        }
        // What the stream does not take now is not lost: it leaves with the next call.
        let _ = self.drive.send();
        self.drive.link.check_sending()
    }

    /// Sends until there is room for a message.
    fn make_room(&mut self) -> Result<(), Error> {
        if !self.drive.link.is_congested() {
            return Ok(());
        }
        let sent = self.drive.send();
        if self.drive.link.is_congested() {
            sent?;
        }
        Ok(())
    }

    /// Queues a message, without sending it: it leaves with the next [`flush`](Self::flush), [`send`](Self::send) or
    /// [`next`](Iterator::next) that reads. Blocks only while more than [`Config::high_water`] bytes are queued.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn feed(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.make_room()?;
        self.drive.link.queue(message.into()).map(drop)
    }

    /// Sends everything that is queued.
    ///
    /// # Errors
    /// See [`Error`]. One of the kind [`WouldBlock`](io::ErrorKind::WouldBlock): not everything has left yet.
    pub fn flush(&mut self) -> Result<(), Error> {
        let sent = self.drive.send();
        self.drive.link.check_sending()?;
        Ok(sent?)
    }

    /// Closes the connection and waits for the end of it, at most [`Config::close_timeout`] once our Close has left, if
    /// reads time out; messages that still come are dropped. Answers how it ended. If a Close is decided already, it
    /// only waits.
    ///
    /// # Errors
    /// How the connection ended, if not in order. After one of the kind [`WouldBlock`](io::ErrorKind::WouldBlock), call
    /// it again.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<Closed, Error> {
        match self.start_close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => {}
            Err(error) => return Err(error),
        }
        self.drive.link.hold_words();
        for message in &mut *self {
            message?;
        }
        self.drive.link.outcome()
    }
}

impl<S: Read + Write> WebSocket<S> {
    /// Closes the connection without waiting for the peer: sends what is queued and a Close frame, and ends the sending
    /// side where there is [a way to](Self::with_shutdown). Drop the WebSocket then. What the peer still sends is lost;
    /// [`close`](Self::close) waits for it. If a Close is decided already, its frame leaves. Then
    /// [`closed`](Self::closed) gives this code and reason with [`Cause::Local`](crate::Cause::Local), unless the peer's
    /// Close came first, and [`next`](Iterator::next) gives `None`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes. [`Error::Io`] of the kind
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): the stream has not taken all of it in its write timeout. Otherwise why
    /// nothing could be sent.
    pub fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        match self.start_close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => {}
            Err(error) => return Err(error),
        }
        self.drive.close_now()?;
        let left = self.drive.link.check_sending();
        self.drive.link.end_unanswered(code, reason);
        left
    }
}

/// What comes, message by message; `None` when the connection is over in order, which [`closed`](WebSocket::closed)
/// tells about.
///
/// An error comes once and says how the connection ended; then `None`. The exception is [`Error::Io`] of the kind
/// [`WouldBlock`](io::ErrorKind::WouldBlock): nothing came in time, and the iteration goes on.
impl<S: Read + Write> Iterator for WebSocket<S> {
    type Item = Result<Message, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(whole) = self.drive.next_whole() {
                return Some(Ok(self.drive.link.own_whole(whole)));
            }
            match self.drive.next_event() {
                Ok(Some(event)) => {
                    if let Some(message) = self.drive.link.own(event) {
                        return Some(Ok(message));
                    }
                }
                Ok(None) => return self.drive.link.last_words().map(Err),
                Err(waits) => return Some(Err(waits.into())),
            }
        }
    }
}

impl<S: Read + Write> FusedIterator for WebSocket<S> {}

impl<S: fmt::Debug> fmt::Debug for WebSocket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket")
            .field("stream", &self.drive.io)
            .field("role", &self.role())
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}
