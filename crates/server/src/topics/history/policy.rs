//! Settings for topic histories, positions, and exported histories.

use std::time::Duration;

use sinews_session::Prepared;
pub use sinews_store::Position;

/// A topic's history policy: beyond any limit, the oldest messages expire.
///
/// A message in a topic with history has a [`Position`]. Every subscriber gets a topic's messages in the topic's order.
/// That includes the publisher, whose own messages arrive in that order and not before its later sends.
#[derive(Clone, Copy, Debug)]
pub struct HistoryPolicy {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) age: Option<Duration>,
}

impl HistoryPolicy {
    /// Retains this many messages in each topic, at least 1: with 1, the last value.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        Self { messages, bytes: 1 << 20, age: None }
    }

    /// Limit for one topic's retained payload in bytes; the last message is retained regardless of its size. Default 1
    /// MiB.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Returns the limit of messages.
    #[must_use]
    pub fn max_messages(&self) -> usize {
        self.messages
    }

    /// Returns the limit of bytes.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the maximum age.
    #[must_use]
    pub fn max_age(&self) -> Option<Duration> {
        self.age
    }

    /// Approximate maximum age for a retained message. Late subscribers do not get an expired message, and its memory
    /// is freed by later publications. Default: no limit.
    #[must_use]
    pub fn with_max_age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}

/// A subscription's start in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayFrom {
    /// The last messages, this many; 1 is the last value.
    Last(usize),
    /// Messages after this one: to resume after a reconnect.
    After(Position),
}

/// A request for a part of a topic's history: [`Publisher::history_page`].
///
/// [`Publisher::history_page`]: crate::Publisher::history_page
#[derive(Clone, Copy, Debug)]
pub struct HistoryQuery {
    pub(crate) side: QuerySide,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// The messages among which a query counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QuerySide {
    /// The newest before a position, or before the end.
    Before(Option<Position>),
    /// The oldest after a position.
    After(Position),
}

impl HistoryQuery {
    /// Requests the newest messages, at most this many.
    #[must_use]
    pub fn last(messages: usize) -> Self {
        Self { side: QuerySide::Before(None), messages, bytes: usize::MAX }
    }

    /// Requests the newest messages before the message at this position, at most this many: to page back.
    #[must_use]
    pub fn before(position: Position, messages: usize) -> Self {
        Self { side: QuerySide::Before(Some(position)), messages, bytes: usize::MAX }
    }

    /// Requests the first messages after this position, at most this many.
    #[must_use]
    pub fn after(position: Position, messages: usize) -> Self {
        Self { side: QuerySide::After(position), messages, bytes: usize::MAX }
    }

    /// Limits the payload of all messages together; the first one is returned regardless of its size. Default: no
    /// limit.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }
}

/// A part of a topic's history.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The messages in order, each with its sequence; shared, not copied.
    pub messages: Vec<(u64, Prepared)>,
    /// Retained messages remain: before these, or after these for a query by [`HistoryQuery::after`].
    pub has_more: bool,
    /// The requested position is of this epoch, and no message next to it has expired.
    pub complete: bool,
}

/// Result when a connection subscribes with a [`ReplayFrom`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscribed {
    /// The topic's last message so far; its sequence is 0 if there is none.
    pub position: Position,
    /// Earlier messages that are being delivered.
    pub replayed: u64,
    /// No message after the requested position has expired: no gap.
    pub complete: bool,
}

/// One topic's retained state, for a successor server: [`Publisher::histories`].
///
/// [`Publisher::histories`]: crate::Publisher::histories
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "to be taken apart, sent, and put together again")]
pub struct TopicSnapshot {
    /// Topic name.
    pub name: String,
    /// The last message's position, retained or not.
    pub position: Position,
    /// The last messages in order, without gaps.
    pub messages: Vec<RetainedMessage>,
}

/// A topic's messages in a store that several servers share: [`Publisher::install_history`].
///
/// [`Publisher::install_history`]: crate::Publisher::install_history
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "to be put together")]
pub struct StoredHistory {
    /// The last message's position, retained or not.
    pub position: Position,
    /// The sequence before the first message in [`messages`](Self::messages).
    pub floor: u64,
    /// The last sequence that marks messages which are not retained; 0: none. Resumes from before it are incomplete.
    pub passed: u64,
    /// The last messages in order.
    pub messages: Vec<StoredMessage>,
}

/// Message in a [`StoredHistory`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as its history")]
pub struct StoredMessage {
    /// Its sequence, which may exceed the one before it by more than 1.
    pub sequence: u64,
    /// The message.
    pub message: Prepared,
    /// Time since its publication.
    pub age: Duration,
}

/// Message in a [`TopicSnapshot`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as its topic")]
pub struct RetainedMessage {
    /// The message.
    pub message: Prepared,
    /// Time since its publication.
    pub age: Duration,
}
