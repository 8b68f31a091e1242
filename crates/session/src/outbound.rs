//! The outbound bytes of one connection.

use crate::chain::Chain;
use crate::deferred::DeferredMessages;
use crate::prepared::Prepared;
use crate::resources::Resources;

/// Outbound bytes: the queue for the next send, and the unsent part of the send in flight. At most one send
/// is in flight, so order needs no extra work.
///
/// A [`Session`](crate::Session) has one. A server that speaks HTTP before the upgrade starts with its own
/// `Outbound` and passes it to [`Session::with_outbound`](crate::Session::with_outbound), which keeps the
/// order of queued bytes.
#[derive(Debug, Default)]
pub struct Outbound {
    pending_chain: Option<Box<Chain>>,
    in_flight: usize,
    sending: bool,
    /// Messages deferred until a fragmented message ends. They are not part of [`len`](Self::len), since no
    /// send takes them.
    deferred: Option<Box<DeferredMessages>>,
    /// The queue passed the high-water mark and has not fallen to half of it yet.
    pub(crate) congested: bool,
    /// The overflow policy closed the connection.
    pub(crate) overflowed: bool,
    /// Messages were dropped since the last `drain`.
    pub(crate) has_drops: bool,
    /// Published messages that the overflow policy dropped and no owner has taken note of.
    dropped: u32,
    /// Upper bound of the bytes in [`len`](Self::len) that the owner admits by its own limits, saturated at 4 GiB.
    exempt: u32,
    /// Bytes for the same peer that are queued outside of this session, saturated at 4 GiB.
    pub(crate) elsewhere: u32,
}

impl Outbound {
    /// Queued bytes, including the send in flight.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.pending_chain.as_ref().map_or(0, |chain| chain.len()) + self.in_flight
    }

    /// Whether all bytes are sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queued bytes that count towards the connection's own limit.
    #[inline]
    pub(crate) fn counted(&self) -> usize {
        self.len() - self.exempt()
    }

    /// Upper bound of the queued bytes that do not count towards the connection's limit.
    #[inline]
    pub(crate) fn exempt(&self) -> usize {
        (self.exempt as usize).min(self.len())
    }

    /// Excludes the last `count` queued bytes from the connection's limit.
    #[inline]
    pub(crate) fn set_exempt(&mut self, count: usize) {
        let exempt = (self.exempt as usize).min(self.len().saturating_sub(count)) + count;
        self.exempt = u32::try_from(exempt).unwrap_or(u32::MAX);
    }

    /// The chain to append to. Its buffer is borrowed from the pool on first use.
    #[inline]
    pub fn pending_chain(&mut self, resources: &mut Resources) -> &mut Chain {
        self.pending_chain.get_or_insert_with(|| resources.pool.take_chain())
    }

    /// Whether [`start`](Self::start) returns a chain.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        !self.sending && self.has_pending()
    }

    /// Whether nothing is queued, deferred or in flight.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        !self.sending && !self.congested && !self.has_drops && self.deferred.is_none() && !self.has_pending()
    }

    /// Whether bytes are queued behind the send in flight.
    #[must_use]
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending_chain.as_ref().is_some_and(|chain| !chain.is_empty())
    }

    /// Returns all queued bytes for one send. `None` while a send is in flight or the queue is empty.
    #[inline]
    pub fn start(&mut self) -> Option<Box<Chain>> {
        if !self.wants_send() {
            return None;
        }
        let chain = self.pending_chain.take()?;
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
        self.exempt = self.exempt() as u32;
        resources.recycle_chain(chain);
    }

    /// Defers a message until the fragmented message ends.
    pub(crate) fn defer(&mut self, message: Prepared) {
        self.deferred.get_or_insert_default().push(message);
    }

    /// Bytes of deferred messages.
    #[inline]
    pub(crate) fn deferred_bytes(&self) -> usize {
        self.deferred.as_ref().map_or(0, |deferred| deferred.bytes())
    }

    /// Takes the oldest deferred message. The last one frees the memory of the queue.
    #[inline]
    pub(crate) fn take_deferred(&mut self) -> Option<Prepared> {
        let oldest = self.deferred.as_mut()?.pop();
        if oldest.is_none() {
            self.deferred = None;
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
        if let Some(mut behind) = self.pending_chain.take() {
            chain.append(&mut behind);
        }
        self.pending_chain = Some(chain);
    }

    /// Appends the queued and deferred messages of another `Outbound`, which must have no send in flight.
    pub(crate) fn append(&mut self, mut other: Self, resources: &mut Resources) {
        if let Some(mut chain) = other.pending_chain.take() {
            self.pending_chain(resources).append(&mut chain);
            resources.pool.put_chain(chain);
        }
        self.overflowed |= other.overflowed;
    }

    /// Discards deferred messages, since no data may be sent any more.
    #[inline]
    pub(crate) fn discard_deferred(&mut self) {
        self.deferred = None;
    }

    pub(crate) fn discard(&mut self, resources: &mut Resources) {
        if let Some(chain) = self.pending_chain.take() {
            resources.recycle_chain(chain);
        }
        // Otherwise the completion of the send in flight clears it.
        self.congested &= self.sending;
    }

    /// Counts dropped published messages. The owner gets `drain` after the next send, even if the queue is short now.
    /// Reads continue: without a queued message, no send would resume them.
    pub(crate) fn count_dropped(&mut self, messages: usize) {
        self.dropped = self.dropped.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        self.has_drops |= messages > 0;
    }

    /// Returns the number of dropped published messages since the last call.
    #[inline]
    pub(crate) fn take_dropped(&mut self) -> u32 {
        std::mem::take(&mut self.dropped)
    }

    /// Drops queued published messages until `count` bytes are freed or no message is left. Returns the
    /// number of dropped bytes and messages.
    pub(crate) fn drop_oldest(&mut self, count: usize) -> (usize, usize) {
        self.pending_chain.as_mut().map_or((0, 0), |chain| chain.drop_oldest(count))
    }

    /// Drops deferred messages likewise. Returns the number of dropped messages.
    pub(crate) fn drop_oldest_deferred(&mut self, count: usize) -> usize {
        let enough = self.deferred_bytes().saturating_sub(count);
        let mut messages = 0;
        while self.deferred_bytes() > enough && self.take_deferred().is_some() {
            messages += 1;
        }
        messages
    }
}
