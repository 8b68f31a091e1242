//! Positions, and a topic's parts.

/// Maximum for an epoch and a sequence: 2^53 - 1, the largest integer that JSON and Lua represent exactly.
pub const POSITION_MAX: u64 = (1 << 53) - 1;

/// Position in a topic's log, or in its key changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a pair of numbers, which a client sends back")]
pub struct Position {
    /// Changes when the store has lost the whole topic, and when the topic is cleared. At most [`POSITION_MAX`].
    pub epoch: u64,
    /// Grows with each message or change, perhaps by more than 1. 0: before the first one. At most [`POSITION_MAX`].
    pub sequence: u64,
}

/// A topic's two parts. Each has its own epoch and sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "a third part needs another contract")]
pub enum PartKind {
    /// Messages.
    Log,
    /// Keys.
    Keys,
}

/// One topic part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "a name and its part")]
pub struct TopicPart {
    /// Topic name.
    pub topic: Box<str>,
    /// Its part.
    pub part: PartKind,
}

impl TopicPart {
    /// A topic's messages.
    #[must_use]
    pub fn log(topic: &str) -> Self {
        Self { topic: topic.into(), part: PartKind::Log }
    }

    /// A topic's keys.
    #[must_use]
    pub fn keys(topic: &str) -> Self {
        Self { topic: topic.into(), part: PartKind::Keys }
    }
}
