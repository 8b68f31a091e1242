//! The outbound side of a connection for handlers.

use bytes::Bytes;
use sinews_proto::{
    BodyFormat, CloseCode, Config, Connection, Kind, Misuse, Overflow, PING_MAX, PerThread, Role, Time,
};

use crate::deferred;
use crate::outbound::Outbound;
use crate::payload::Payload;
use crate::prepared::Prepared;
use crate::resources::Resources;

/// The result of queueing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message may be dropped, and backpressure asks the sender to slow down"]
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
            return self.defer(message);
        }
        if !self.connection.takes_prepared() {
            return self.send_owned(message.kind(), message.payload().clone());
        }
        let class = self.connection.prepared_class(message.payload().len());
        let frame = message.frame(class, &mut self.resources.shared);
        if !self.admit(frame.len(), true) {
            return Ok(Sent::Dropped);
        }
        self.push_prepared(frame, class.is_some(), false)?;
        self.resources.traffic.sent(message.payload().len());
        Ok(self.queued())
    }

    /// Queues a message that was framed for many connections, regardless of the queue's size. For an owner
    /// with its own policy for published messages that checks [`waiting`](Self::waiting) first. With
    /// `exempt`, the message does not count towards [`Config::max_outbound`], so that it does not displace
    /// messages sent to this connection alone, and [`Overflow::DropOldest`] does not drop it.
    ///
    /// # Errors
    /// [`Misuse::Closing`] after a local Close is queued or due.
    #[inline]
    pub fn queue_prepared(&mut self, message: &Prepared, exempt: bool) -> Result<Sent, Misuse> {
        if self.connection.is_mid_message() || !self.connection.takes_prepared() {
            return self.queue_or_defer(message, exempt);
        }
        let class = self.connection.prepared_class(message.payload().len());
        let frame = message.frame(class, &mut self.resources.shared);
        let len = frame.len();
        self.push_prepared(frame, class.is_some(), exempt)?;
        if exempt {
            self.outbound.set_exempt(len);
        }
        self.resources.traffic.sent(message.payload().len());
        Ok(self.queued())
    }

    #[cold]
    fn queue_or_defer(&mut self, message: &Prepared, exempt: bool) -> Result<Sent, Misuse> {
        if !self.connection.is_open() {
            return Err(Misuse::Closing);
        }
        if let Some((format, chunked)) = self.connection.body_format() {
            self.queue_body(message, format, chunked, exempt);
            return Ok(self.queued());
        }
        if self.connection.is_mid_message() {
            self.outbound.defer(message.clone());
            return Ok(self.queued());
        }
        let before = self.outbound.len();
        self.queue_unframed(message)?;
        if exempt {
            self.outbound.set_exempt(self.outbound.len() - before);
        }
        Ok(self.queued())
    }

    /// Queues a message for a connection that takes no prepared frames: a stream with kinds or lengths, whose subscribers
    /// share a long payload, or a client.
    fn queue_unframed(&mut self, message: &Prepared) -> Result<(), Misuse> {
        let (kind, payload) = (message.kind(), message.payload());
        let by_reference = payload.len() > PUBLISHED_COPY_MAX && self.connection.role() == Role::Server;
        let chain = self.outbound.pending_chain(self.resources);
        let (connection, shared) = (&mut *self.connection, &mut self.resources.shared);
        if by_reference {
            chain.write(|arena| connection.send_head(kind, payload.len() as u64, arena))?;
            chain.push(payload.clone(), false);
        } else {
            chain.write(|arena| connection.send(kind, payload, shared, arena))?;
        }
        self.resources.traffic.sent(payload.len());
        Ok(())
    }

    /// Queues a message in a streaming response, which is encoded once for all responses in its format.
    fn queue_body(&mut self, message: &Prepared, format: &'static BodyFormat, chunked: bool, exempt: bool) {
        let encoded = message.body(format);
        let bytes = encoded.bytes(chunked);
        if bytes.is_empty() {
            return;
        }
        let before = self.outbound.len();
        let has_prefix = self.connection.has_body_prefix();
        let drops_oldest = self.connection.config().overflow() == Overflow::DropOldest;
        let by_reference = bytes.len() > PUBLISHED_COPY_MAX || !has_prefix && drops_oldest && !exempt;
        let chain = self.outbound.pending_chain(self.resources);
        if has_prefix {
            chain.write(|arena| self.connection.write_body_prefix(encoded.label.as_deref(), arena));
        }
        if by_reference {
            // A message with a prefix cannot be dropped alone.
            chain.push(bytes, !(has_prefix || drops_oldest && exempt));
        } else {
            chain.write(|arena| arena.extend_from_slice(&bytes));
        }
        if exempt {
            self.outbound.set_exempt(self.outbound.len() - before);
        }
        self.resources.traffic.sent(message.payload().len());
    }

    /// Upper bound of the bytes in [`buffered`](Self::buffered) that were queued with `exempt`.
    #[must_use]
    pub fn exempt(&self) -> usize {
        self.outbound.exempt()
    }

    /// Queued bytes: [`buffered`](Self::buffered), and messages deferred until a fragmented message ends.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.outbound.len() + self.outbound.deferred_bytes()
    }

    /// Whether a message fits in the queue: [`waiting`](Self::waiting) is at most [`Config::high_water`], and the
    /// message does not exceed [`Config::max_outbound`].
    #[must_use]
    pub fn has_capacity(&self) -> bool {
        let config = self.connection.config();
        self.waiting() <= config.high_water() && self.waiting() < config.max_outbound()
    }

    fn push_prepared(&mut self, frame: Bytes, compressed: bool, exempt: bool) -> Result<(), Misuse> {
        self.connection.send_prepared(compressed)?;
        // Only a payload with a chain entry of its own can be dropped later.
        let drops_oldest = self.connection.config().overflow() == Overflow::DropOldest;
        let by_reference = frame.len() > PUBLISHED_COPY_MAX || drops_oldest && !exempt;
        let chain = self.outbound.pending_chain(self.resources);
        if by_reference {
            chain.push(frame, !(drops_oldest && exempt));
        } else {
            chain.write(|arena| arena.extend_from_slice(&frame));
        }
        Ok(())
    }

    #[cold]
    fn defer(&mut self, message: &Prepared) -> Result<Sent, Misuse> {
        if !self.connection.is_open() {
            return Err(Misuse::Closing);
        }
        if !self.admit(deferred::queued_size(message), true) {
            return Ok(Sent::Dropped);
        }
        self.outbound.defer(message.clone());
        Ok(self.queued())
    }

    /// Queues the deferred messages after the end of a fragmented message. They were admitted on arrival.
    fn send_deferred(&mut self) -> Result<(), Misuse> {
        while let Some(message) = self.outbound.take_deferred() {
            if !self.connection.takes_prepared() {
                self.queue_unframed(&message)?;
                continue;
            }
            let class = self.connection.prepared_class(message.payload().len());
            let frame = message.frame(class, &mut self.resources.shared);
            self.push_prepared(frame, class.is_some(), false)?;
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
        let chain = self.outbound.pending_chain(self.resources);
        let shared = &mut self.resources.shared;
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send_fragment(kind, piece, last, shared, arena))?;
        self.resources.traffic.bytes_sent += piece.len() as u64;
        if last {
            self.resources.traffic.messages_sent += 1;
            self.send_deferred()?;
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
        let chain = self.outbound.pending_chain(self.resources);
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

    /// Starts the closing handshake behind the queued bytes, with a Close that has no code.
    ///
    /// # Errors
    /// [`Misuse::Closing`] if a Close was started already.
    pub fn close_without_code(&mut self) -> Result<(), Misuse> {
        self.connection.close_without_code(self.now)
    }

    /// Enables or disables compression for later messages, if it was negotiated.
    pub fn set_compression(&mut self, enabled: bool) {
        self.connection.set_compression(enabled);
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
        let chain = self.outbound.pending_chain(self.resources);
        // Compression reduces the size by an unknown amount.
        if !self.connection.compresses(payload.len()) {
            self.resources.reserve(chain, payload.len());
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
            || self.connection.body_format().is_some()
            || self.connection.compresses(payload.len());
        if copies {
            return self.send_slice(kind, &payload);
        }
        if !self.admit(payload.len(), false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.pending_chain(self.resources);
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send_head(kind, payload.len() as u64, arena))?;
        self.resources.traffic.sent(payload.len());
        chain.push(payload, false);
        Ok(self.queued())
    }

    /// Sends one message composed of several buffers. Each buffer is treated like the payload of
    /// [`send_owned`](Self::send_owned): large buffers are sent by reference, so a header and a payload need no common
    /// buffer. If the message is masked or compressed, it is copied once.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    pub fn send_pieces(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<Sent, Misuse> {
        let len = pieces.iter().map(Bytes::len).sum();
        let copies = self.connection.role() == Role::Client || self.connection.body_format().is_some();
        if copies || self.connection.compresses(len) {
            return self.copy_pieces(kind, pieces, len);
        }
        if !self.admit(len, false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.pending_chain(self.resources);
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
        let chain = self.outbound.pending_chain(self.resources);
        if !self.connection.compresses(len) {
            self.resources.reserve(chain, len);
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
        let deferred = if published { self.outbound.deferred_bytes() } else { 0 };
        if self.outbound.counted() + deferred < max {
            return true;
        }
        self.overflow(len, max, deferred, published)
    }

    #[cold]
    fn overflow(&mut self, len: usize, max: usize, deferred: usize, published: bool) -> bool {
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
                let excess = (self.outbound.counted() + deferred + len).saturating_sub(max);
                let (dropped, mut messages) = self.outbound.drop_oldest(excess);
                if published {
                    // Deferred messages are newer than queued messages.
                    messages += self.outbound.drop_oldest_deferred(excess.saturating_sub(dropped));
                }
                // The newest published message is always admitted, even if undroppable messages fill the
                // queue: it replaces older publications.
                let room = published || self.outbound.counted() < max;
                self.outbound.count_dropped(messages);
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

/// Published frames up to this size are copied into the arena: a copy costs less than a separate entry in a send's
/// vector.
const PUBLISHED_COPY_MAX: usize = 256;

/// Owned payloads of at least this size are sent by reference.
const REFERENCE_MIN: usize = 4 << 10;
