//! What is counted of topics.

/// What topics have come to on one thread since it began: plain numbers that only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicCounters {
    /// Messages that connections and requests of this thread have published.
    pub published: u64,
    /// Messages that were handed to a subscriber's connection, each to one.
    pub delivered: u64,
    /// Messages that were dropped for a slow subscriber since they were the newest.
    pub dropped_newest: u64,
    /// Messages that were dropped for a slow subscriber since they were the oldest.
    pub dropped_oldest: u64,
    /// Messages that waited for a slow subscriber and whose place was taken by the next value of their topic.
    pub conflated: u64,
    /// Messages of a history that were forgotten before a subscriber that comes later, or a thread whose mailbox was
    /// full, had come to them.
    pub forgotten: u64,
    /// Subscribers that were closed since they were too slow for what was published.
    pub closed_slow: u64,
    /// Subscriptions on other threads that a publication of this one did not reach: their mailbox was full.
    pub lost: u64,
}
