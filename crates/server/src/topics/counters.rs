//! Counters of topics.

/// Counters of topics on one thread since its start; they only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicCounters {
    /// Messages published by connections and requests of this thread.
    pub published: u64,
    /// Messages passed to subscribers' connections, counted per subscriber.
    pub delivered: u64,
    /// Messages dropped for a slow subscriber as the newest.
    pub dropped_newest: u64,
    /// Messages dropped for a slow subscriber as the oldest.
    pub dropped_oldest: u64,
    /// Messages queued for a slow subscriber and replaced by the next value of their topic.
    pub conflated: u64,
    /// Messages that expired from a history before delivery to a late subscriber, or to a thread whose mailbox was
    /// full.
    pub expired: u64,
    /// Subscribers that were closed for being too slow.
    pub closed_slow: u64,
    /// Subscriptions on other threads that missed a publication of this thread, since their mailbox was full.
    pub lost: u64,
}
