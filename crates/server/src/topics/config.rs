//! Publication budget of a thread.

/// Publication budget of a thread, and limits of its queue. [`Server::bind`](crate::Server::bind) rejects invalid
/// settings.
///
/// A publication is delivered to all subscribers in the same turn of the loop, within the turn's budget; the rest
/// follows in the next turns. While publications are queued on any thread, reads of publishing connections are
/// paused, so TCP throttles publishers.
#[derive(Clone, Copy, Debug)]
pub struct TopicConfig {
    pub(crate) deliveries_per_turn: usize,
    pub(crate) max_waiting_messages: usize,
    pub(crate) max_waiting_bytes: usize,
    pub(crate) max_history_bytes: usize,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            deliveries_per_turn: 131_072,
            max_waiting_messages: 65_536,
            max_waiting_bytes: 16 << 20,
            max_history_bytes: 64 << 20,
        }
    }
}

impl TopicConfig {
    /// Maximum deliveries in one turn of a loop, each of one message to one subscriber; then other connections get
    /// their turn. At least 1. Default 131,072, which takes about as long as a send to each of 1,000 subscribers,
    /// some milliseconds: a smaller budget hardly reduces latency, and needs more sends for the same messages.
    #[must_use]
    pub fn with_deliveries_per_turn(mut self, deliveries: usize) -> Self {
        self.deliveries_per_turn = deliveries;
        self
    }

    /// Maximum number of queued messages on one thread. Default 65,536, the capacity of the mailbox. At the limit, a
    /// publishing connection pauses in the middle of its input, and messages of other threads are delivered
    /// regardless of the budget, so that no message is lost and the loop is late instead.
    #[must_use]
    pub fn with_max_waiting_messages(mut self, messages: usize) -> Self {
        self.max_waiting_messages = messages;
        self
    }

    /// Maximum queued payload on one thread in bytes, with the same effect as too many
    /// [messages](Self::with_max_waiting_messages). Default 16 MiB: one message of the default limit.
    #[must_use]
    pub fn with_max_waiting_bytes(mut self, bytes: usize) -> Self {
        self.max_waiting_bytes = bytes;
        self
    }

    /// Approximate memory limit of all topic histories of the server, in bytes ([`History`](crate::History)). A
    /// message counts its payload, even if shared, and 256 bytes. Beyond the limit histories are evicted, whole
    /// topics at a time. Default 64 MiB.
    #[must_use]
    pub fn with_max_history_bytes(mut self, bytes: usize) -> Self {
        self.max_history_bytes = bytes;
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
