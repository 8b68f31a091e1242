//! A topic's messages.

use std::time::Duration;

use bytes::Bytes;

use crate::position::Position;

/// Message to append.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a request, whose fields the store needs all")]
pub struct LogAppend {
    /// Topic name.
    pub topic: Box<str>,
    /// Opaque to the store.
    pub payload: Bytes,
    /// What the topic retains after this message.
    pub retention: Retention,
    /// Names the publication: within [`Capabilities::once_window`](crate::Capabilities::once_window), a repetition
    /// appends nothing, and has the first answer.
    pub once: Option<Box<str>>,
    /// Appends only behind this position, the last one of the topic.
    pub if_top: Option<Position>,
}

/// What a topic retains. Beyond any limit, the oldest messages expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as the request")]
pub struct Retention {
    /// At least 1.
    pub messages: u32,
    /// Payload bytes. The last message is retained regardless of its size. A store may count approximately
    /// ([`Capabilities::exact_limits`](crate::Capabilities::exact_limits)).
    pub bytes: u64,
    /// Maximum message age.
    pub age: Option<Duration>,
    /// A topic without publications for this time loses its messages and its epoch. At least [`age`](Self::age).
    pub unused: Duration,
}

/// Result for an [`LogAppend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a result, which stores build")]
pub struct LogAppended {
    /// The message's position.
    pub position: Position,
    /// As [`LogEntry::prev`]. A repetition need not know it.
    pub prev: u64,
    /// An earlier message had the same [`LogAppend::once`].
    pub repeated: bool,
}

/// Message in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a result, which stores build")]
pub struct LogEntry {
    /// Grows.
    pub sequence: u64,
    /// The sequence before it in the topic, retained or not; 0 for the first message. If the store does not know it: the
    /// largest possible one, [`sequence`](Self::sequence) - 1. A reader that has another message sees a gap.
    pub prev: u64,
    /// Append time by the store's clock, in milliseconds since 1970.
    pub time: u64,
    /// As appended.
    pub payload: Bytes,
}

/// Request for messages.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as `LogAppend`")]
pub struct ReadLog {
    /// Topic name.
    pub topic: Box<str>,
    /// First message.
    pub start: LogStart,
    /// Maximum messages.
    pub max_messages: u32,
    /// Payload bytes after which no further message is read; at least one message is.
    pub max_bytes: u64,
}

/// First message for a [`ReadLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `LogAppend`")]
pub enum LogStart {
    /// The last messages, this many.
    Last(u32),
    /// Messages behind this sequence, in whatever epoch the topic has.
    After(u64),
}

/// Messages in a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a result, which stores build")]
pub struct LogPage {
    /// The topic's last message, retained or not; `None`: the topic does not exist.
    pub top: Option<Position>,
    /// In order. At most as many as requested: the first ones behind a position, or the last ones.
    pub entries: Vec<LogEntry>,
    /// More messages follow.
    pub more: bool,
}

impl LogPage {
    /// Whether a reader that has everything up to this position misses no message before [`entries`](Self::entries).
    ///
    /// It misses none if the first message behind its position names it as the predecessor, or if it has the last
    /// message. So a lost message's position is never complete.
    #[must_use]
    pub fn follows(&self, after: Position) -> bool {
        let Some(top) = self.top else { return after.sequence == 0 };
        if top.epoch != after.epoch && after.sequence > 0 {
            return false;
        }
        match self.entries.iter().find(|entry| entry.sequence > after.sequence) {
            Some(next) => next.prev == after.sequence,
            None => top.sequence == after.sequence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(top: u64, links: &[(u64, u64)]) -> LogPage {
        let entry = |&(prev, sequence)| LogEntry { sequence, prev, time: 0, payload: Bytes::new() };
        let top = Some(Position { epoch: 7, sequence: top });
        LogPage { top, entries: links.iter().map(entry).collect(), more: false }
    }

    #[test]
    fn reader_is_complete_if_the_next_message_names_its_position() {
        let after = |sequence| Position { epoch: 7, sequence };
        // Messages 8 and 9 were lost: the next one has skipped their sequences.
        let all = page(5_000, &[(4, 6), (6, 7), (7, 5_000)]);
        let complete = [4, 6, 7, 5_000];
        for sequence in 0..5_100 {
            assert_eq!(all.follows(after(sequence)), complete.contains(&sequence), "{sequence}");
        }
        assert!(!all.follows(Position { epoch: 8, sequence: 6 }));
        let empty = page(9, &[]);
        assert!(empty.follows(after(9)) && !empty.follows(after(8)) && !empty.follows(after(10)));
        let unknown = LogPage::default();
        assert!(unknown.follows(after(0)) && !unknown.follows(after(1)));
        assert!(page(1, &[(0, 1)]).follows(Position::default()), "a reader of nothing knows no epoch");
    }
}
