//! A thread's publication budget.

use super::keyed::config::KeyedConfig;

/// A thread's publication budget, and limits for its queue. [`Server::bind`](crate::Server::bind) rejects invalid
/// settings.
///
/// A publication is delivered to all subscribers in the same loop turn, within the turn's budget; the rest follows in
/// the next turns. While publications are queued on any thread, reads of publishing connections are paused, so TCP
/// throttles publishers.
#[derive(Clone, Copy, Debug)]
pub struct TopicConfig {
    pub(crate) deliveries_per_turn: usize,
    pub(crate) max_queued_messages: usize,
    pub(crate) max_queued_bytes: usize,
    pub(crate) max_history_bytes: usize,
    pub(crate) max_presence_bytes: usize,
    pub(crate) keyed: KeyedConfig,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            deliveries_per_turn: 131_072,
            max_queued_messages: 65_536,
            max_queued_bytes: 16 << 20,
            max_history_bytes: 64 << 20,
            max_presence_bytes: 64 << 20,
            keyed: KeyedConfig::default(),
        }
    }
}

impl TopicConfig {
    /// Maximum deliveries in one loop turn, each of one message to one subscriber; then other connections get their
    /// turn. At least 1. Default 131,072, which takes about as long as a send to each of 1,000 subscribers, some
    /// milliseconds: a smaller budget hardly reduces latency, and needs more sends for the same messages.
    #[must_use]
    pub fn with_deliveries_per_turn(mut self, deliveries: usize) -> Self {
        self.deliveries_per_turn = deliveries;
        self
    }

    /// Maximum queued messages on one thread. Default 65,536, the capacity of the mailbox. At the limit, a publishing
    /// connection pauses in the middle of its input, and messages of other threads are delivered regardless of the
    /// budget, so that no message is lost and the loop is late instead.
    #[must_use]
    pub fn with_max_queued_messages(mut self, messages: usize) -> Self {
        self.max_queued_messages = messages;
        self
    }

    /// Maximum queued payload on one thread in bytes, with the same effect as too many
    /// [messages](Self::with_max_queued_messages). Default 16 MiB: one message at the default limit.
    #[must_use]
    pub fn with_max_queued_bytes(mut self, bytes: usize) -> Self {
        self.max_queued_bytes = bytes;
        self
    }

    /// Approximate memory limit for all topic histories on the server, in bytes
    /// ([`HistoryPolicy`](crate::HistoryPolicy)). A message counts its payload, even if shared, and 256 bytes. Beyond
    /// the limit histories are evicted, whole topics at a time. Default 64 MiB.
    #[must_use]
    pub fn with_max_history_bytes(mut self, bytes: usize) -> Self {
        self.max_history_bytes = bytes;
        self
    }

    /// Approximate memory limit for all topics' members, in bytes ([`Context::join`](crate::Context::join)). A member
    /// counts its id, its info and 128 bytes, however many connections it has. Beyond the limit further members are
    /// rejected. Default 64 MiB: some 300,000 members.
    #[must_use]
    pub fn with_max_presence_bytes(mut self, bytes: usize) -> Self {
        self.max_presence_bytes = bytes;
        self
    }

    /// Limits for the topics' keys. Default: [`KeyedConfig::default`].
    #[must_use]
    pub fn with_keyed(mut self, keyed: KeyedConfig) -> Self {
        self.keyed = keyed;
        self
    }

    /// Checks the settings; names the invalid one.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.deliveries_per_turn == 0 {
            return Err("deliveries_per_turn must be at least 1");
        }
        Ok(())
    }
}
