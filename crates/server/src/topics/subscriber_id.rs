//! A connection as a subscriber.

use sinews_engine::ConnId;

/// Identifies a connection within this process, as the one that a publication excludes:
/// [`Context::subscriber_id`](crate::Context::subscriber_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriberId {
    pub(crate) shard: usize,
    pub(crate) conn: ConnId,
}

impl SubscriberId {
    /// Number of bits of [`to_bits`](Self::to_bits).
    pub const BITS: u32 = 80;

    /// Returns the id as a number below 2^[`BITS`](Self::BITS).
    #[must_use]
    pub fn to_bits(self) -> u128 {
        // Threads are few.
        let thread = u128::from(u16::try_from(self.shard).unwrap_or(u16::MAX));
        thread << u64::BITS | u128::from(self.conn.to_bits())
    }

    /// Returns the id of a number that [`to_bits`](Self::to_bits) of this process has returned. Another number may
    /// match another connection.
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        let shard = usize::from((bits >> u64::BITS) as u16);
        Self { shard, conn: ConnId::from_bits(bits as u64) }
    }

    /// Returns the connection if it is one of a thread.
    pub(crate) fn on_thread(self, thread: usize) -> Option<ConnId> {
        (self.shard == thread).then_some(self.conn)
    }
}
