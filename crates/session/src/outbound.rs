//! Bytes on their way out of one connection.

use crate::chain::Chain;
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
    /// The high-water mark was passed and not yet left behind by half.
    pub(crate) congested: bool,
    /// The overflow policy ended the connection.
    pub(crate) overflowed: bool,
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

    /// Where to append; its buffer is borrowed from the pool on first use.
    #[inline]
    pub fn gathering(&mut self, resources: &mut Resources) -> &mut Chain {
        self.gathering.get_or_insert_with(|| resources.pool.take_chain())
    }

    /// Whether [`start`](Self::start) has something.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        !self.sending && self.gathering.as_ref().is_some_and(|chain| !chain.is_empty())
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
        resources.take_home(chain);
    }

    pub(crate) fn discard(&mut self, resources: &mut Resources) {
        if let Some(chain) = self.gathering.take() {
            resources.take_home(chain);
        }
    }

    pub(crate) fn drop_oldest(&mut self, count: usize) {
        if let Some(chain) = &mut self.gathering {
            chain.drop_oldest(count);
        }
    }
}
