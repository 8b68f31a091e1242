//! Sending: the queue, the send in flight, and control frames.

use sinews_proto::{CloseCode, Time};

use super::Session;
use crate::chain::Chain;
use crate::closed::{Cause, Closed};
use crate::resources::Resources;
use crate::tx::Tx;

impl Session {
    /// Whether the outbound queue has passed [`Config::high_water`](sinews_proto::Config::high_water) and not yet fallen to half of it.
    #[must_use]
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.outbound.congested
    }

    /// Returns the number of published messages that [`Overflow::DropOldest`](sinews_proto::Overflow::DropOldest)
    /// dropped since the last call. After drops, [`finish_send`](Self::finish_send) reports that `drain` is due.
    #[inline]
    pub fn take_dropped(&mut self) -> u32 {
        self.outbound.take_dropped()
    }

    /// Whether a message is being sent in fragments. No other message may begin until it ends.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.connection.is_mid_message()
    }

    /// A view of the outbound side, for sends outside a message callback. Call [`after_tx`](Self::after_tx) when done.
    pub fn tx<'a>(&'a mut self, resources: &'a mut Resources, now: Time) -> Tx<'a> {
        Tx::new(&mut self.connection, &mut self.outbound, resources, now)
    }

    /// Applies the effects of a [`tx`](Self::tx).
    pub fn after_tx(&mut self, resources: &mut Resources, now: Time) {
        self.write_control(resources, now);
        self.note_outbound(false, now);
    }

    /// Records the time of a sent message: see [`Connection::note_sent`](sinews_proto::Connection::note_sent). Sends through [`tx`](Self::tx)
    /// use the time that was passed to it. This method is for a driver whose time may have been old at that
    /// call.
    pub fn note_sent(&mut self, now: Time) {
        self.connection.note_sent(now);
    }

    /// Returns all queued bytes for one send. `None` while a send is in flight or the queue is empty.
    /// Return the chain with [`finish_send`](Self::finish_send).
    #[inline]
    pub fn start_send(&mut self) -> Option<Box<Chain>> {
        self.outbound.start()
    }

    /// Whether [`start_send`](Self::start_send) returns a chain.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        self.outbound.wants_send()
    }

    /// Records that the transport accepts no more bytes for now: the write timeout starts here and not when the bytes
    /// were queued. For a driver whose time may be old when it sends.
    pub fn stalled(&mut self, now: Time) {
        self.connection.note_stalled(now);
    }

    /// Records that `count` bytes of the chain in flight are sent.
    pub fn progressed(&mut self, count: usize, now: Time) {
        self.outbound.progressed(count);
        self.note_outbound(true, now);
    }

    /// Completes the send and takes its chain back. Returns whether the handler's `drain` is due: the queue
    /// has fallen below half of [`Config::high_water`](sinews_proto::Config::high_water) after it had passed it, or after
    /// messages were dropped.
    #[inline]
    pub fn finish_send(&mut self, chain: Box<Chain>, resources: &mut Resources, now: Time) -> bool {
        self.outbound.finish(chain, resources);
        self.note_outbound(true, now);
        let config = self.connection.config();
        let is_due = self.outbound.congested || self.outbound.has_drops;
        if is_due && self.outbound.len() <= config.high_water() / 2 {
            (self.outbound.congested, self.outbound.has_drops) = (false, false);
            self.write_control(resources, now);
            return true;
        }
        false
    }

    /// Whether only memory depends on [`finish_send`](Self::finish_send): the connection is open, nothing
    /// is queued behind the send in flight and nothing is deferred. The driver may then delay that call.
    /// The next handler call may change the result.
    #[must_use]
    #[inline]
    pub fn finish_may_wait(&self) -> bool {
        let waits = self.outbound.congested || self.outbound.has_drops || self.outbound.has_pending();
        self.connection.is_open() && !waits && !self.paused
    }

    /// Writes pongs and pings while the queue has capacity, so that a ping flood from a peer that does not
    /// read keeps only the newest pong. A Close is always written.
    pub(super) fn write_control(&mut self, resources: &mut Resources, now: Time) {
        let room = !self.outbound.congested || !self.connection.is_open();
        if self.connection.wants_control() && room && !self.dropped {
            let chain = self.outbound.pending_chain(resources);
            let connection = &mut self.connection;
            let shared = &mut resources.shared;
            chain.write(|arena| connection.write_control(shared, arena, now));
            if self.outbound.len() > self.connection.config().high_water() {
                self.outbound.congested = true;
            }
        }
        if !self.connection.is_open() {
            self.outbound.discard_deferred();
        }
        if std::mem::take(&mut self.outbound.overflowed) {
            let reason = "too slow".to_owned();
            self.record_closed(Closed::new(Some(CloseCode::POLICY), reason, Cause::Overflow));
        }
    }

    #[inline]
    pub(crate) fn note_outbound(&mut self, moved: bool, now: Time) {
        self.connection.note_outbound(self.outbound.len() + self.outbound.elsewhere as usize, moved, now);
    }

    /// Queued bytes, including the send in flight.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.outbound.len()
    }
}
