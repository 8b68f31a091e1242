//! The outbound side of a connection, as a handler sees it.

use bytes::Bytes;
use sinews_proto::{CloseCode, Config, Connection, Kind, Misuse, Overflow, PING_MAX, PerThread, Role, Time};

use crate::held;
use crate::outbound::Outbound;
use crate::payload::Payload;
use crate::prepared::Prepared;
use crate::session::Resources;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a sender must handle each")]
pub enum Sent {
    /// Queued; it leaves with the rest of the burst.
    Queued,
    /// Queued, and [`Config::high_water`] is passed: slow down until `drain`.
    Backpressure,
    /// Not queued: [`Config::max_outbound`] was reached and the policy is to drop this message, or the
    /// connection, which then closes with 1008.
    Dropped,
}

/// A short-lived view of a connection's outbound side. What is sent through it leaves in one send when
/// the burst that is being handled is done.
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

    /// The same view for a shorter time.
    #[inline]
    pub fn reborrow(&mut self) -> Tx<'_> {
        Tx::new(self.connection, self.outbound, self.resources, self.now)
    }

    /// Sends a text message.
    ///
    /// # Errors
    /// [`Misuse::Closing`] once a Close is decided; [`Misuse::MessageOpen`] while a message is being
    /// sent in fragments.
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

    /// Sends a message that is owned already: by reference where it is large and may leave unmasked and
    /// uncompressed.
    ///
    /// # Errors
    /// As [`send_text`](Self::send_text).
    pub fn send_bytes(&mut self, payload: Bytes) -> Result<Sent, Misuse> {
        self.send_owned(Kind::Binary, payload)
    }

    /// Sends a received message on, without a copy where its buffer can be handed over.
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

    /// Sends a message that was framed for many. Such messages are what
    /// [`Overflow::DropOldest`] may drop.
    ///
    /// While a message is being sent in fragments it is held, and leaves behind the last of them, in order.
    /// What is held counts towards [`Config::max_outbound`] and meets the overflow policy like everything that
    /// is sent to many; it does not count as [`buffered`](Self::buffered), and fragments go on beside it. A
    /// Close in the middle of a message drops it.
    ///
    /// # Errors
    /// [`Misuse::Closing`] once a Close is decided.
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

    /// Queues a message that was framed for many, whatever waits: for an owner that has a policy of its own for
    /// these, and has asked [`waiting`](Self::waiting) first. With `apart`, it does not count towards
    /// [`Config::max_outbound`], so that what is sent to this connection alone is not refused for it.
    ///
    /// # Errors
    /// [`Misuse::Closing`] once a Close is decided.
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

    /// Bytes of [`buffered`](Self::buffered) that were queued apart; at most, while some of them leave.
    #[must_use]
    pub fn apart(&self) -> usize {
        self.outbound.apart()
    }

    /// Bytes that wait: [`buffered`](Self::buffered), and what is held until a message in fragments has ended.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.outbound.len() + self.outbound.held_bytes()
    }

    fn push_prepared(&mut self, frame: Bytes, compressed: bool) -> Result<(), Misuse> {
        self.connection.send_prepared(compressed)?;
        // Only what stands on its own can be dropped later.
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

    /// The message in fragments has ended: what was held follows. It was admitted when it came.
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

    /// Sends a piece of a message whose length need not be known; `last` ends it. A piece that was
    /// [`Dropped`](Sent::Dropped) may be sent again later: the message goes on where it stood.
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

    /// Delivers the messages that start from now on in pieces ([`Events::fragment`](crate::Events::fragment)),
    /// so that a message larger than memory can pass, or whole again. What bounds such a message are
    /// [`Config::max_message`], [`Config::max_frame`] and [`Config::max_fragments`].
    pub fn deliver_fragments(&mut self, fragments: bool) {
        self.connection.deliver_fragments(fragments);
    }

    /// Sends a ping. Pings of the keepalive are apart from these.
    ///
    /// # Errors
    /// [`Misuse::PingTooLong`] over 125 bytes; [`Misuse::Closing`].
    pub fn send_ping(&mut self, payload: &[u8]) -> Result<Sent, Misuse> {
        self.control(payload, |connection, shared, arena| connection.send_ping(payload, shared, arena))
    }

    /// Sends a pong that answers nothing: a heartbeat in one direction.
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
        // What may never be sent overflows nothing.
        if payload.len() <= PING_MAX && !self.admit(payload.len(), false) {
            return Ok(Sent::Dropped);
        }
        let chain = self.outbound.gathering(self.resources);
        chain.write(|arena| write(self.connection, &mut self.resources.shared, arena))?;
        Ok(self.queued())
    }

    /// Begins the closing handshake behind what is queued.
    ///
    /// # Errors
    /// [`Misuse::ReasonTooLong`] over 123 bytes; [`Misuse::Closing`] if a Close is decided already.
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Misuse> {
        self.connection.close(code, reason, self.now)
    }

    /// Bytes that may leave and wait to be sent, here and in the send in flight.
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

    /// Sends a message of either kind, copied behind its head. The payload of text must be UTF-8.
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
        // What compresses needs less, and how much is not known.
        if !self.connection.compresses(payload.len()) {
            self.resources.make_room(chain, payload.len());
        }
        let shared = &mut self.resources.shared;
        let connection = &mut *self.connection;
        chain.write(|arena| connection.send(kind, payload, shared, arena))?;
        self.resources.traffic.sent(payload.len());
        Ok(self.queued())
    }

    /// Sends a message of either kind that is owned already, as [`send_bytes`](Self::send_bytes) does. The payload of
    /// text must be UTF-8.
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

    /// Sends one message that is put together from several pieces, of which each counts as
    /// [`send_owned`](Self::send_owned)'s payload: what is large leaves by reference, so that a head and what was read
    /// elsewhere need no buffer of their own. Where the message is masked or compressed, all of it is copied once.
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

    /// Whether another message may be queued; carries out the overflow policy if not. What is held counts
    /// against further publications only: it waits for the fragments, so these must not wait for it.
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
        // Once a Close is decided nothing is queued, whatever room there is: the send itself says so.
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
                    // They came after those that may leave.
                    messages += self.outbound.drop_oldest_held(excess.saturating_sub(dropped));
                }
                // The newest published message always gets in, also where what cannot be dropped fills the
                // queue: it takes the place of those before it.
                let room = published || self.outbound.counted() < max;
                self.resources.traffic.dropped_oldest += messages as u64;
                self.resources.traffic.dropped_newest += u64::from(!room);
                room
            }
            Overflow::Close => {
                // The connection is open and the reason short, so this cannot fail.
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

/// Published frames up to this size are copied into the arena: cheaper than an entry of their own in
/// the vector of a send.
const PUBLISHED_COPY_MAX: usize = 256;

/// Owned payloads from this size leave by reference.
const REFERENCE_MIN: usize = 4 << 10;
