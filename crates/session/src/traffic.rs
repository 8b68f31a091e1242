//! What the sessions of a thread have sent.

/// What the sessions of one thread have sent, and dropped in place of it, since its
/// [`Resources`](crate::Resources) were made. What they receive is handed to their owner, who can count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Data messages that were queued to be sent; one in fragments when its last one was.
    pub messages_sent: u64,
    /// Their payloads, before compression.
    pub bytes_sent: u64,
    /// Messages, pieces of one, and pings that [`Overflow::DropNewest`](sinews_proto::Overflow::DropNewest) dropped, and those that
    /// [`Overflow::DropOldest`](sinews_proto::Overflow::DropOldest) could make no room for.
    pub dropped_newest: u64,
    /// Messages that were queued and that [`Overflow::DropOldest`](sinews_proto::Overflow::DropOldest) dropped.
    pub dropped_oldest: u64,
}

impl Traffic {
    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.messages_sent += 1;
        self.bytes_sent += bytes as u64;
    }
}
