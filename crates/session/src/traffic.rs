//! Traffic counters of a thread's sessions.

/// Counters of messages sent and dropped by the sessions of one thread since its [`Resources`](crate::Resources) were
/// created. Received messages are passed to their owner, which can count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Data messages queued for sending. A fragmented message counts with its last fragment.
    pub messages_sent: u64,
    /// Payload bytes of these messages, before compression.
    pub bytes_sent: u64,
    /// Messages, fragments, and pings that [`Overflow::DropNewest`](sinews_proto::Overflow::DropNewest)
    /// dropped, and messages for which [`Overflow::DropOldest`](sinews_proto::Overflow::DropOldest) could
    /// not free capacity.
    pub dropped_newest: u64,
    /// Queued messages that [`Overflow::DropOldest`](sinews_proto::Overflow::DropOldest) dropped.
    pub dropped_oldest: u64,
}

impl Traffic {
    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.messages_sent += 1;
        self.bytes_sent += bytes as u64;
    }
}
