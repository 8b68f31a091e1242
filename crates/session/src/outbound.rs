//! The outbound bytes of one connection.

use crate::chain::Chain;
use crate::held::Held;
use crate::prepared::Prepared;
use crate::session::Resources;

/// Outbound bytes: the queue for the next send, and the unsent part of the send in flight. At most one send
/// is in flight, so order needs no extra work.
///
/// A [`Session`](crate::Session) has one. A server that speaks HTTP before the upgrade starts with its own
/// `Outbound` and passes it to [`Session::with_outbound`](crate::Session::with_outbound), which keeps the
/// order of queued bytes.
#[derive(Debug, Default)]
pub struct Outbound {
    gathering: Option<Box<Chain>>,
    in_flight: usize,
    sending: bool,
    /// Messages deferred until a fragmented message ends. They are not part of [`len`](Self::len), since no
    /// send takes them.
    held: Option<Box<Held>>,
    /// The queue passed the high-water mark and has not fallen to half of it yet.
    pub(crate) congested: bool,
    /// The overflow policy closed the connection.
    pub(crate) overflowed: bool,
    /// Upper bound of the bytes in [`len`](Self::len) that the owner admits by limits of its own.
    apart: usize,
}

impl Outbound {
    /// Queued bytes, including the send in flight.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.gathering.as_ref().map_or(0, |chain| chain.len()) + self.in_flight
    }

    /// Whether all bytes are sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queued bytes that count towards the connection's own limit.
    #[inline]
    pub(crate) fn counted(&self) -> usize {
        self.len() - self.apart()
    }

    /// Upper bound of the queued bytes that do not count towards the connection's limit.
    #[inline]
    pub(crate) fn apart(&self) -> usize {
        self.apart.min(self.len())
    }

    /// Excludes the last `count` queued bytes from the connection's limit.
    #[inline]
    pub(crate) fn set_apart(&mut self, count: usize) {
        self.apart = self.apart.min(self.len().saturating_sub(count)) + count;
    }

    /// The chain to append to. Its buffer is borrowed from the pool on first use.
    #[inline]
    pub fn gathering(&mut self, resources: &mut Resources) -> &mut Chain {
        self.gathering.get_or_insert_with(|| resources.pool.take_chain())
    }

    /// Whether [`start`](Self::start) returns a chain.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        !self.sending && self.has_gathered()
    }

    /// Whether bytes are queued behind the send in flight.
    #[must_use]
    #[inline]
    pub fn has_gathered(&self) -> bool {
        self.gathering.as_ref().is_some_and(|chain| !chain.is_empty())
    }

    /// Returns all queued bytes for one send. `None` while a send is in flight or the queue is empty.
    #[inline]
    pub fn start(&mut self) -> Option<Box<Chain>> {
        if !self.wants_send() {
            return None;
        }
        let chain = self.gathering.take()?;
        self.in_flight = chain.len();
        self.sending = true;
        Some(chain)
    }

    /// Whether a send is in flight.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.sending
    }

    /// Records that `count` bytes of the send in flight are sent.
    pub fn progressed(&mut self, count: usize) {
        self.in_flight = self.in_flight.saturating_sub(count);
    }

    /// Completes the send in flight and takes its chain back.
    #[inline]
    pub fn finish(&mut self, chain: Box<Chain>, resources: &mut Resources) {
        self.in_flight = 0;
        self.sending = false;
        self.apart = self.apart();
        resources.take_home(chain);
    }

    /// Defers a message until the fragmented message ends.
    pub(crate) fn hold(&mut self, message: Prepared) {
        self.held.get_or_insert_default().push(message);
    }

    /// Bytes of deferred messages.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.bytes())
    }

    /// Takes the oldest deferred message. The last one frees the memory of the queue.
    #[inline]
    pub(crate) fn take_held(&mut self) -> Option<Prepared> {
        let oldest = self.held.as_mut()?.pop();
        if oldest.is_none() {
            self.held = None;
        }
        oldest
    }

    /// Makes a chain, possibly partly sent, the send in flight.
    pub(crate) fn adopt(&mut self, chain: &Chain) {
        self.in_flight = chain.len();
        self.sending = true;
    }

    /// Puts a chain without sent bytes back in front of the queue.
    pub(crate) fn recall(&mut self, mut chain: Box<Chain>) {
        (self.in_flight, self.sending) = (0, false);
        if let Some(mut behind) = self.gathering.take() {
            chain.append(&mut behind);
        }
        self.gathering = Some(chain);
    }

    /// Appends the queued and deferred messages of another `Outbound`, which must have no send in flight.
    pub(crate) fn append(&mut self, mut other: Self, resources: &mut Resources) {
        if let Some(mut chain) = other.gathering.take() {
            self.gathering(resources).append(&mut chain);
            resources.pool.give_chain(chain);
        }
        self.overflowed |= other.overflowed;
    }

    /// Discards deferred messages, since no data may be sent any more.
    #[inline]
    pub(crate) fn forget_held(&mut self) {
        self.held = None;
    }

    pub(crate) fn discard(&mut self, resources: &mut Resources) {
        if let Some(chain) = self.gathering.take() {
            resources.take_home(chain);
        }
        // Otherwise the completion of the send in flight clears it.
        self.congested &= self.sending;
    }

    /// Drops queued published messages until `count` bytes are freed or no message is left. Returns the
    /// number of dropped bytes and messages.
    pub(crate) fn drop_oldest(&mut self, count: usize) -> (usize, usize) {
        self.gathering.as_mut().map_or((0, 0), |chain| chain.drop_oldest(count))
    }

    /// Drops deferred messages likewise. Returns the number of dropped messages.
    pub(crate) fn drop_oldest_held(&mut self, count: usize) -> usize {
        let enough = self.held_bytes().saturating_sub(count);
        let mut messages = 0;
        while self.held_bytes() > enough && self.take_held().is_some() {
            messages += 1;
        }
        messages
    }
}
