//! The WebSocket of an application on blocking streams.

use std::fmt;
use std::io::{self, Read, Write};
use std::iter::FusedIterator;
use std::sync::Arc;

use bytes::Bytes;
use sinews_proto::{CloseCode, Config, Kind, Misuse, Negotiated};
use sinews_session::{Closed, Sent};

use super::driver::BlockingDriver;
use super::wait;
use crate::error::Error;
use crate::link::{Link, accepted};
use crate::message::{Message, MessageRef};
use crate::methods;

/// A WebSocket over a blocking or nonblocking stream.
///
/// It is an [`Iterator`] over received messages. For calls that return [`Error::Io`] of the kind
/// [`WouldBlock`](io::ErrorKind::WouldBlock) see [the module](super#time).
pub struct WebSocket<S> {
    driver: BlockingDriver<S>,
}

impl<S> WebSocket<S> {
    methods::queue_methods!();
    methods::link_accessors!();
    methods::stream_accessors!();

    /// A connection after a handshake made elsewhere. `received` holds the bytes already received behind the
    /// handshake.
    pub fn from_negotiated(stream: S, negotiated: Negotiated, config: Arc<Config>, received: &[u8]) -> Self {
        let link = Link::new(negotiated, config, received, wait::now());
        Self { driver: BlockingDriver::new(stream, link) }
    }

    pub(super) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.driver.link.set_subprotocol(subprotocol);
        self
    }

    /// Sets the function that ends the sending side of the stream, once all bytes have left, for example `|tcp|
    /// tcp.shutdown(Shutdown::Write)`; for TLS it also sends `close_notify`. After that, input is read until the peer
    /// ends its side.
    ///
    /// Default: none, since `Write` has no such function; [`connect`](super::connect) sets it for its own sockets.
    /// Without it, a server's connection has ended as soon as its Close has left: drop it, which ends the stream. If
    /// the peer violated the protocol and continues to send, the system may respond with a reset, and the peer does
    /// not read our Close.
    #[must_use]
    pub fn with_shutdown(mut self, shutdown: fn(&mut S) -> io::Result<()>) -> Self {
        self.driver.shutdown = Some(shutdown);
        self
    }

    /// Begins the closing handshake (RFC 6455 section 7.1.2) behind queued messages, without waiting.
    /// [`next`](Iterator::next) still returns messages of the peer until its Close arrives.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes, or if a Close is decided already.
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.driver.link.now = wait::now();
        self.driver.link.close(code, reason)
    }
}

impl<S: Read + Write> WebSocket<S> {
    /// Borrows the next text or binary message from the receive buffer; pings, pongs and Close are skipped. `None` when
    /// the connection has ended in order.
    ///
    /// # Errors
    /// As [`next`](Iterator::next).
    pub fn next_borrowed(&mut self) -> Option<Result<MessageRef<'_>, Error>> {
        let borrowed = loop {
            match self.driver.next_event() {
                Ok(Some(event)) => {
                    if let Some(borrowed) = self.driver.link.borrow(event) {
                        break borrowed;
                    }
                }
                Ok(None) => return self.driver.link.take_end_error().map(Err),
                Err(waits) => return Some(Err(waits.into())),
            }
        };
        Some(Ok(self.driver.link.borrowed(borrowed)))
    }

    /// Sends a message. It leaves at once, or, while messages received together are unread, with the reply to the
    /// last of them.
    ///
    /// `Ok` means that the message is queued; bytes that a nonblocking stream, or a stream that times out, has not
    /// taken leave with the next call. Blocks while more than [`Config::high_water`] bytes are queued.
    ///
    /// # Errors
    /// See [`Error`]. The kind [`WouldBlock`](io::ErrorKind::WouldBlock) means that the message was *not* queued,
    /// since too many bytes are: send it again. Where the stream has timeouts, keep a clone, which shares the
    /// payload.
    pub fn send(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.queue(|link| link.queue(message.into()))
    }

    /// Sends borrowed text, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.queue(|link| link.queue_borrowed(Kind::Text, text.as_bytes()))
    }

    /// Sends a borrowed binary message, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_binary(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.queue(|link| link.queue_borrowed(Kind::Binary, payload))
    }

    /// Sends one message from several buffers, such as a header and a payload in separate memory. A server sends
    /// buffers of 4 KiB and more without a copy. Smaller buffers, and all buffers of a client, which masks them, are
    /// copied once, behind the frame header. Compression copies first. Otherwise as [`send`](Self::send).
    ///
    /// The buffers of a text message must be UTF-8 together; a buffer may end in the middle of a code point.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_vectored(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<(), Error> {
        self.queue(|link| link.queue_pieces(kind, pieces))
    }

    /// Queues when there is capacity, and sends, unless more input is unread.
    fn queue(&mut self, queue: impl FnOnce(&mut Link) -> Result<Sent, Error>) -> Result<(), Error> {
        let burst = self.driver.link.is_answering(wait::now);
        self.make_room()?;
        accepted(queue(&mut self.driver.link))?;
        if burst && !self.driver.link.is_congested() {
            return Ok(());
        }
        // Bytes that the stream does not take now leave with the next call.
        let _ = self.driver.send();
        self.driver.link.check_sending()
    }

    /// Sends until there is capacity for a message.
    fn make_room(&mut self) -> Result<(), Error> {
        if !self.driver.link.is_congested() {
            return Ok(());
        }
        let sent = self.driver.send();
        if self.driver.link.is_congested() {
            sent?;
        }
        Ok(())
    }

    /// Queues a message without sending it: it leaves with the next [`flush`](Self::flush), [`send`](Self::send), or
    /// [`next`](Iterator::next) that reads. Blocks only while more than [`Config::high_water`] bytes are queued.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn feed(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.make_room()?;
        accepted(self.driver.link.queue(message.into()))
    }

    /// Sends all queued bytes.
    ///
    /// # Errors
    /// See [`Error`]. The kind [`WouldBlock`](io::ErrorKind::WouldBlock): not all bytes have left yet.
    pub fn flush(&mut self) -> Result<(), Error> {
        let sent = self.driver.send();
        self.driver.link.check_sending()?;
        Ok(sent?)
    }

    /// Closes the connection and waits for its end, at most [`Config::close_timeout`] once our Close has left, if
    /// reads time out; drops messages that still arrive. Returns how the connection ended. If a Close is decided
    /// already, it only waits.
    ///
    /// # Errors
    /// How the connection ended, if not in order. After the kind [`WouldBlock`](io::ErrorKind::WouldBlock), call it
    /// again.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<Closed, Error> {
        match self.start_close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => {}
            Err(error) => return Err(error),
        }
        self.driver.link.suppress_end_error();
        for message in &mut *self {
            message?;
        }
        self.driver.link.outcome()
    }
}

impl<S: Read + Write> WebSocket<S> {
    /// Closes the connection without waiting for the peer: sends queued messages and a Close frame, and ends the
    /// sending side if [a function](Self::with_shutdown) is set. Drop the WebSocket afterwards. Data that the peer
    /// still sends is lost; [`close`](Self::close) waits for it. If a Close is decided already, its frame leaves.
    /// Afterwards [`closed`](Self::closed) returns this code and reason with [`Cause::Local`](crate::Cause::Local),
    /// unless the peer's Close arrived first, and [`next`](Iterator::next) returns `None`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes. [`Error::Io`] of the kind
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): the stream has not taken all bytes within its write timeout.
    /// Otherwise the error of the transport.
    pub fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        match self.start_close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => {}
            Err(error) => return Err(error),
        }
        self.driver.close_now()?;
        let left = self.driver.link.check_sending();
        self.driver.link.end_unanswered(code, reason);
        left
    }
}

/// Received messages; `None` when the connection has ended in order; [`closed`](WebSocket::closed) then returns the
/// details.
///
/// An error is returned once and tells how the connection ended; then `None`. The exception is [`Error::Io`] of the
/// kind [`WouldBlock`](io::ErrorKind::WouldBlock): no message arrived in time, and the iteration continues.
impl<S: Read + Write> Iterator for WebSocket<S> {
    type Item = Result<Message, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((kind, at)) = self.driver.next_whole() {
                return Some(Ok(self.driver.link.detach_whole_message(kind, at)));
            }
            match self.driver.next_event() {
                Ok(Some(event)) => {
                    if let Some(message) = self.driver.link.detach_message(event) {
                        return Some(Ok(message));
                    }
                }
                Ok(None) => return self.driver.link.take_end_error().map(Err),
                Err(waits) => return Some(Err(waits.into())),
            }
        }
    }
}

impl<S: Read + Write> FusedIterator for WebSocket<S> {}

impl<S: fmt::Debug> fmt::Debug for WebSocket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket")
            .field("stream", &self.driver.io)
            .field("role", &self.role())
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}
