//! Bytes on their way out of one connection.

use crate::chain::Chain;
use crate::held::Held;
use crate::prepared::Prepared;
use crate::session::Resources;

/// Bytes on their way out: what is being gathered for the next send, and how much of the send in flight
/// is left. There is one send in flight at most, so that order is free.
///
/// A [`Session`](crate::Session) has one; a server that speaks HTTP before the upgrade begins with one of
/// its own and hands it over with [`Session::with_outbound`](crate::Session::with_outbound), so that
/// nothing queued is overtaken.
#[derive(Debug, Default)]
pub struct Outbound {
    gathering: Option<Box<Chain>>,
    in_flight: usize,
    sending: bool,
    /// Messages that wait for the end of one; no part of [`len`](Self::len), since no send takes them.
    held: Option<Box<Held>>,
    /// The high-water mark was passed and not yet left behind by half.
    pub(crate) congested: bool,
    /// The overflow policy ended the connection.
    pub(crate) overflowed: bool,
    /// Of [`len`](Self::len), at most: bytes that their owner has let in by limits of its own.
    apart: usize,
}

impl Outbound {
    /// Bytes that wait, the send in flight included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.gathering.as_ref().map_or(0, |chain| chain.len()) + self.in_flight
    }

    /// Whether everything has left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that wait and count towards the connection's own limit.
    #[inline]
    pub(crate) fn counted(&self) -> usize {
        self.len() - self.apart()
    }

    /// Bytes that wait and do not; at most, while some of them leave.
    #[inline]
    pub(crate) fn apart(&self) -> usize {
        self.apart.min(self.len())
    }

    /// So many bytes were queued last that do not.
    #[inline]
    pub(crate) fn set_apart(&mut self, count: usize) {
        self.apart = self.apart.min(self.len().saturating_sub(count)) + count;
    }

    /// Where to append; its buffer is borrowed from the pool on first use.
    #[inline]
    pub fn gathering(&mut self, resources: &mut Resources) -> &mut Chain {
        self.gathering.get_or_insert_with(|| resources.pool.take_chain())
    }

    /// Whether [`start`](Self::start) has something.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        !self.sending && self.has_gathered()
    }

    /// Whether something was gathered, which leaves when a send in flight is done.
    #[must_use]
    #[inline]
    pub fn has_gathered(&self) -> bool {
        self.gathering.as_ref().is_some_and(|chain| !chain.is_empty())
    }

    /// All that was gathered, to leave in one send; `None` while a send is in flight or nothing waits.
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

    /// Part of the send in flight has left.
    pub fn progressed(&mut self, count: usize) {
        self.in_flight = self.in_flight.saturating_sub(count);
    }

    /// The send in flight is done, and its chain is home.
    #[inline]
    pub fn finish(&mut self, chain: Box<Chain>, resources: &mut Resources) {
        self.in_flight = 0;
        self.sending = false;
        self.apart = self.apart();
        resources.take_home(chain);
    }

    /// Keeps a message until the one that is being sent in fragments has ended.
    pub(crate) fn hold(&mut self, message: Prepared) {
        self.held.get_or_insert_default().push(message);
    }

    /// Bytes of messages that are held.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.bytes())
    }

    /// The oldest message that is held. The last one leaves no memory behind.
    #[inline]
    pub(crate) fn take_held(&mut self) -> Option<Prepared> {
        let oldest = self.held.as_mut()?.pop();
        if oldest.is_none() {
            self.held = None;
        }
        oldest
    }

    /// A chain of which part may have left already is the send in flight.
    pub(crate) fn adopt(&mut self, chain: &Chain) {
        self.in_flight = chain.len();
        self.sending = true;
    }

    /// A send of which nothing has left is gathered again, in front of the rest.
    pub(crate) fn recall(&mut self, mut chain: Box<Chain>) {
        (self.in_flight, self.sending) = (0, false);
        if let Some(mut behind) = self.gathering.take() {
            chain.append(&mut behind);
        }
        self.gathering = Some(chain);
    }

    /// What another gathers and holds follows. None of its own may be in flight.
    pub(crate) fn append(&mut self, mut other: Self, resources: &mut Resources) {
        if let Some(mut chain) = other.gathering.take() {
            self.gathering(resources).append(&mut chain);
            resources.pool.give_chain(chain);
        }
        self.overflowed |= other.overflowed;
    }

    /// Nothing may be sent any more: what is held never leaves.
    #[inline]
    pub(crate) fn forget_held(&mut self) {
        self.held = None;
    }

    pub(crate) fn discard(&mut self, resources: &mut Resources) {
        if let Some(chain) = self.gathering.take() {
            resources.take_home(chain);
        }
        // Otherwise the send in flight tells when it is done.
        self.congested &= self.sending;
    }

    /// Drops published messages that may leave until `count` bytes are gone or none is left. Answers how
    /// many are gone, and how many messages they were.
    pub(crate) fn drop_oldest(&mut self, count: usize) -> (usize, usize) {
        self.gathering.as_mut().map_or((0, 0), |chain| chain.drop_oldest(count))
    }

    /// The same of those that are held. Answers how many messages are gone.
    pub(crate) fn drop_oldest_held(&mut self, count: usize) -> usize {
        let enough = self.held_bytes().saturating_sub(count);
        let mut messages = 0;
        while self.held_bytes() > enough && self.take_held().is_some() {
            messages += 1;
        }
        messages
    }
}
