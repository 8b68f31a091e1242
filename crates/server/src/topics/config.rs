//! How much a thread publishes at a time.

/// How much a thread publishes at a time, and how much may wait. [`Server::bind`](crate::Server::bind) refuses
/// what makes no sense.
///
/// A publication is delivered in the turn of the loop in which it was published, to everybody at once, as long
/// as the turn's budget lasts; the rest follows in the next turns. As long as something waits, on any thread, a
/// connection that publishes is not received from: TCP holds the publisher.
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
    /// Deliveries, each of one message to one subscriber, in one turn of a loop; then everybody else has a
    /// turn. At least 1. Default 131,072, which takes about as long as a send to each of 1,000 subscribers, some
    /// milliseconds: fewer make others wait little less, and more sends of the same messages.
    #[must_use]
    pub fn with_deliveries_per_turn(mut self, deliveries: usize) -> Self {
        self.deliveries_per_turn = deliveries;
        self
    }

    /// Messages that may wait on one thread for turns to come. Default 65,536, as many as the mailbox takes.
    /// At this many, a connection that publishes stops in the middle of its input, and what other threads
    /// publish is delivered whatever the budget, so that nothing is lost and the loop is late instead.
    #[must_use]
    pub fn with_max_waiting_messages(mut self, messages: usize) -> Self {
        self.max_waiting_messages = messages;
        self
    }

    /// Bytes of payload that may wait on one thread for turns to come, with the same consequence as too many
    /// [messages](Self::with_max_waiting_messages). Default 16 MiB: one message of the default limit.
    #[must_use]
    pub fn with_max_waiting_bytes(mut self, bytes: usize) -> Self {
        self.max_waiting_bytes = bytes;
        self
    }

    /// Bytes that the histories of all topics of the server may take together ([`History`](crate::History)), about;
    /// messages count 256 bytes beside their payload, whoever else still refers to it. Beyond it histories are
    /// forgotten, whole topics at a time. Default 64 MiB.
    #[must_use]
    pub fn with_max_history_bytes(mut self, bytes: usize) -> Self {
        self.max_history_bytes = bytes;
        self
    }

    /// Whether the settings make sense; otherwise what does not.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.deliveries_per_turn == 0 {
            return Err("deliveries_per_turn must be at least 1");
        }
        Ok(())
    }
}
