//! The outbound side of a connection for handlers.

use bytes::Bytes;
use sinews_proto::{CloseCode, Config, Connection, Kind, Misuse, Overflow, PING_MAX, PerThread, Role, Time};

use crate::held;
use crate::outbound::Outbound;
use crate::payload::Payload;
use crate::prepared::Prepared;
use crate::session::Resources;

/// The result of queueing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a sender must handle each")]
pub enum Sent {
    /// Queued. One send carries the whole burst.
    Queued,
    /// Queued, but [`Config::high_water`] is passed. Slow down until `drain`.
    Backpressure,
    /// Not queued: [`Config::max_outbound`] is reached and the policy is to drop this message, or to close
    /// the connection with 1008.
    Dropped,
}

/// A short-lived view of a connection's outbound side. One send carries everything that is queued during
/// the current burst.
#[derive(Debug)]
pub struct Tx<'a> {
    connection: &'a mut Connection,
    outbound: &'a mut Outbound,
    resources: &'a mut Resources,
    now: Time,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        connection: &'a mut Connection,
        outbound: &'a mut Outbound,
        resources: &'a mut Resources,
        now: Time,
    ) -> Self {
        Self { connection, outbound, resources, now }
    }

    /// Reborrows the view for a shorter lifetime.
    #[inline]
    pub fn reborrow(&mut self) -> Tx<'_> {
        Tx::new(self.connection, self.outbound, self.resources, self.now)
    }

    /// Sends a text message.
    ///
    /// # Errors
    /// [`Misuse::Closing`] after a local Close is queued or due; [`Misuse::MessageOpen`] while a message is
    /// being sent in fragments.
    pub fn send_text(&mut self, text: &str) -> Result<Sent, Misuse> {
        self.send_slice(Kind::Text, text.as_bytes())
    }

    /// Sends a binary message, copied behind its head.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    pub fn send_binary(&mut self, payload: &[u8]) -> Result<Sent, Misuse> {
        self.send_slice(Kind::Binary, payload)
    }

    /// Sends an owned message, by reference if it is large and needs neither masking nor compression.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    pub fn send_bytes(&mut self, payload: Bytes) -> Result<Sent, Misuse> {
        self.send_owned(Kind::Binary, payload)
    }

    /// Forwards a received message, without a copy if its buffer can be moved.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    #[inline]
    pub fn send_payload(&mut self, payload: Payload<'_>) -> Result<Sent, Misuse> {
        let kind = payload.kind();
        if payload.is_movable() {
            return self.send_owned(kind, payload.detach());
        }
        self.send_slice(kind, &payload)
    }

    /// Sends a message that was framed for many connections. [`Overflow::DropOldest`] may drop such
    /// messages.
    ///
    /// While a message is being sent in fragments, the message is deferred and follows the last fragment,
    /// in order. Deferred messages count towards [`Config::max_outbound`] and are subject to the overflow
    /// policy like all published messages. They do not count as [`buffered`](Self::buffered), and fragments
    /// may still be sent. A Close in the middle of a fragmented message drops them.
    ///
    /// # Errors
    /// [`Misuse::Closing`] after a local Close is queued or due.
    pub fn send_prepared(&mut self, message: &Prepared) -> Result<Sent, Misuse> {
        if self.connection.is_mid_message() {
            return self.hold(message);
        }
        if !self.connection.takes_prepared() {
            return self.send_slice(message.kind(), message.payload());
        }
        let class = self.connection.prepared_class(message.payload().len());
        let frame = message.frame(class, &mut self.resources.shared);
        if !self.admit(frame.len(), true) {
            return Ok(Sent::Dropped);
        }
        self.push_prepared(frame, class.is_some())?;
        self.resources.traffic.sent(message.payload().len());
        Ok(self.queued())
    }

    /// Queues a message that was framed for many connections, regardless of the queue's size. For an owner
    /// with its own policy for published messages that checks [`waiting`](Self::waiting) first. With
    /// `apart`, the message does not count towards [`Config::max_outbound`], so that it does not displace
    /// messages sent to this connection alone.
    ///
    /// # Errors
    /// [`Misuse::Closing`] after a local Close is queued or due.
    #[inline]
    pub fn queue_prepared(&mut self, message: &Prepared, apart: bool) -> Result<Sent, Misuse> {
        if self.connection.is_mid_message() || !self.connection.takes_prepared() {
            return self.queue_held(message);
        }
        let class = self.connection.prepared_class(message.payload().len());
        let frame = message.frame(class, &mut self.resources.shared);
        let len = frame.len();
        self.push_prepared(frame, class.is_some())?;
        if apart {
            self.outbound.set_apart(len);
        }
        self.resources.traffic.sent(message.payload().len());
        Ok(self.queued())
    }

    #[cold]
    fn queue_held(&mut self, message: &Prepared) -> Result<Sent, Misuse> {
        if !self.connection.is_open() {
            return Err(Misuse::Closing);
        }
        self.outbound.hold(message.clone());
        if !self.connection.is_mid_message() {
            self.release_held()?;
        }
        Ok(self.queued())
    }

    /// Upper bound of the bytes in [`buffered`](Self::buffered) that were queued with `apart`.
    #[must_use]
    pub fn apart(&self) -> usize {
        self.outbound.apart()
    }

    /// Queued bytes: [`buffered`](Self::buffered), and messages deferred until a fragmented message ends.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.outbound.len() + self.outbound.held_bytes()
    }

    fn push_prepared(&mut self, frame: Bytes, compressed: bool) -> Result<(), Misuse> {
        self.connection.send_prepared(compressed)?;
        // Only a payload with a chain entry of its own can be dropped later.
        let by_reference =
            frame.len() > PUBLISHED_COPY_MAX || self.connection.config().overflow() == Overflow::DropOldest;
        let chain = self.outbound.gathering(self.resources);
        if by_reference {
            chain.push(frame, true);
        } else {
            chain.write(|arena| arena.extend_from_slice(&frame));
        }
        Ok(())
    }

    #[cold]
    fn hold(&mut self, message: &Prepared) -> Result<Sent, Misuse> {
        if !self.connection.is_open() {
            return Err(Misuse::Closing);
        }
        if !self.admit(held::cost(message), true) {
            return Ok(Sent::Dropped);
        }
        self.outbound.hold(message.clone());
        Ok(self.queued())
    }

    /// Queues the deferred messages after the end of a fragmented message. They were admitted on arrival.
    fn release_held(&mut self) -> Result<(), Misuse> {
        while let Some(message) = self.outbound.take_held() {
            if !self.connection.takes_prepared() {
                let chain = self.outbound.gathering(self.resources);
                let (connection, shared) = (&mut *self.connection, &mut self.resources.shared);
                chain.write(|arena| connection.send(message.kind(), message.payload(), shared, arena))?;
            } else {
                let class = self.connection.prepared_class(message.payload().len());
                let frame = message.frame(class, &mut self.resources.shared);
                self.push_prepared(frame, class.is_some())?;
            }
            self.resources.traffic.sent(message.payload().len());
        }
        Ok(())
    }

    /// Sends a fragment of a message of unknown length; `last` ends the message. A fragment with the result
    /// [`Dropped`](Sent::Dropped) may be sent again later; the message continues at the same position.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text), and [`Misuse::MessageOpen`] if the kind changes.
    pub fn send_fragment(&mut self, kind: Kind, piece: &[u8], last: bool) -> Result<Sent, Misuse> {
        if !self.admit(piece.len(), false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        let shared = &mut self.resources.shared;
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send_fragment(kind, piece, last, shared, arena))?;
        self.resources.traffic.bytes_sent += piece.len() as u64;
        if last {
            self.resources.traffic.messages_sent += 1;
            self.release_held()?;
        }
        Ok(self.queued())
    }

    /// Delivers later messages in pieces ([`Events::fragment`](crate::Events::fragment)), so that a message
    /// may exceed the available memory, or as whole messages again. [`Config::max_message`],
    /// [`Config::max_frame`] and [`Config::max_fragments`] still apply.
    pub fn deliver_fragments(&mut self, fragments: bool) {
        self.connection.deliver_fragments(fragments);
    }

    /// Sends a ping. Keepalive pings are independent of it.
    ///
    /// # Errors
    /// [`Misuse::PingTooLong`] over 125 bytes; [`Misuse::Closing`].
    pub fn send_ping(&mut self, payload: &[u8]) -> Result<Sent, Misuse> {
        self.control(payload, |connection, shared, arena| connection.send_ping(payload, shared, arena))
    }

    /// Sends an unsolicited pong: a heartbeat in one direction.
    ///
    /// # Errors
    /// As [`send_ping`](Self::send_ping).
    pub fn send_pong(&mut self, payload: &[u8]) -> Result<Sent, Misuse> {
        self.control(payload, |connection, shared, arena| connection.send_pong(payload, shared, arena))
    }

    fn control(
        &mut self,
        payload: &[u8],
        write: impl FnOnce(&mut Connection, &mut PerThread, &mut Vec<u8>) -> Result<(), Misuse>,
    ) -> Result<Sent, Misuse> {
        // A payload that is too long for a ping never triggers the overflow policy.
        if payload.len() <= PING_MAX && !self.admit(payload.len(), false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        chain.write(|arena| write(self.connection, &mut self.resources.shared, arena))?;
        Ok(self.queued())
    }

    /// Starts the closing handshake behind the queued bytes.
    ///
    /// # Errors
    /// [`Misuse::ReasonTooLong`] over 123 bytes; [`Misuse::Closing`] if a Close was started already.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Misuse> {
        self.connection.close(code, reason, self.now)
    }

    /// Bytes in the queue, including the send in flight, without deferred messages.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.outbound.len()
    }

    /// Whether data may still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    /// The connection's limits.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.connection.config()
    }

    /// Sends a message of either kind, copied behind its head. A text payload must be UTF-8.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    #[inline]
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<Sent, Misuse> {
        self.send_slice(kind, payload)
    }

    #[inline]
    fn send_slice(&mut self, kind: Kind, payload: &[u8]) -> Result<Sent, Misuse> {
        if !self.admit(payload.len(), false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        // Compression reduces the size by an unknown amount.
        if !self.connection.compresses(payload.len()) {
            self.resources.make_room(chain, payload.len());
        }
        let shared = &mut self.resources.shared;
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send(kind, payload, shared, arena))?;
        self.resources.traffic.sent(payload.len());
        Ok(self.queued())
    }

    /// Sends an owned message of either kind, as [`send_bytes`](Self::send_bytes) does. A text payload must
    /// be UTF-8.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    #[inline]
    pub fn send_owned(&mut self, kind: Kind, payload: Bytes) -> Result<Sent, Misuse> {
        let copies = payload.len() < REFERENCE_MIN
            || self.connection.role() == Role::Client
            || self.connection.compresses(payload.len());
        if copies {
            return self.send_slice(kind, &payload);
        }
        if !self.admit(payload.len(), false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send_head(kind, payload.len() as u64, arena))?;
        self.resources.traffic.sent(payload.len());
        chain.push(payload, false);
        Ok(self.queued())
    }

    /// Sends one message composed of several buffers. Each buffer is treated like the payload of
    /// [`send_owned`](Self::send_owned): large buffers are sent by reference, so a header and a payload
    /// need no common buffer. If the message is masked or compressed, all of it is copied once.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    pub fn send_pieces(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<Sent, Misuse> {
        let len = pieces.iter().map(Bytes::len).sum();
        if self.connection.role() == Role::Client || self.connection.compresses(len) {
            return self.copy_pieces(kind, pieces, len);
        }
        if !self.admit(len, false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send_head(kind, len as u64, arena))?;
        for piece in pieces {
            if piece.len() < REFERENCE_MIN {
                chain.write(|arena| arena.extend_from_slice(piece));
            } else {
                chain.push(piece.clone(), false);
            }
        }
        self.resources.traffic.sent(len);
        Ok(self.queued())
    }

    fn copy_pieces(&mut self, kind: Kind, pieces: &[Bytes], len: usize) -> Result<Sent, Misuse> {
        if !self.admit(len, false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        if !self.connection.compresses(len) {
            self.resources.make_room(chain, len);
        }
        let shared = &mut self.resources.shared;
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send_pieces(kind, pieces, shared, arena))?;
        self.resources.traffic.sent(len);
        Ok(self.queued())
    }

    /// Whether the queue admits another message. If not, executes the overflow policy. Deferred messages
    /// count against further publications only: they wait for the fragments, so fragments must not wait for
    /// them.
    #[inline]
    fn admit(&mut self, len: usize, published: bool) -> bool {
        let max = self.connection.config().max_outbound();
        let held = if published { self.outbound.held_bytes() } else { 0 };
        if self.outbound.counted() + held < max {
            return true;
        }
        self.overflow(len, max, held, published)
    }

    #[cold]
    fn overflow(&mut self, len: usize, max: usize, held: usize, published: bool) -> bool {
        // After a local Close, the send itself rejects the message, independent of the queue's size.
        if !self.connection.is_open() {
            return true;
        }
        match self.connection.config().overflow() {
            Overflow::DropNewest => {
                self.resources.traffic.dropped_newest += 1;
                false
            }
            Overflow::DropOldest => {
                let excess = (self.outbound.counted() + held + len).saturating_sub(max);
                let (dropped, mut messages) = self.outbound.drop_oldest(excess);
                if published {
                    // Deferred messages are newer than queued messages.
                    messages += self.outbound.drop_oldest_held(excess.saturating_sub(dropped));
                }
                // The newest published message is always admitted, even if undroppable messages fill the
                // queue: it replaces older publications.
                let room = published || self.outbound.counted() < max;
                self.resources.traffic.dropped_oldest += messages as u64;
                self.resources.traffic.dropped_newest += u64::from(!room);
                room
            }
            Overflow::Close => {
                // Cannot fail: the connection is open and the reason is short.
                self.outbound.overflowed =
                    self.connection.close(CloseCode::POLICY, "too slow", self.now).is_ok();
                false
            }
        }
    }

    #[inline]
    fn queued(&mut self) -> Sent {
        self.connection.note_sent(self.now);
        if self.outbound.len() > self.connection.config().high_water() {
            self.outbound.congested = true;
            return Sent::Backpressure;
        }
        Sent::Queued
    }
}

/// Published frames up to this size are copied into the arena: a copy costs less than an entry of its own
/// in the vector of a send.
const PUBLISHED_COPY_MAX: usize = 256;

/// Owned payloads of at least this size are sent by reference.
const REFERENCE_MIN: usize = 4 << 10;
