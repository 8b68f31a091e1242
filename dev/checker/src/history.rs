//! Histories: one file for each run, one JSON value a line. The first line has the run's settings.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use sinews_store::{KeyCondition, KeyOutcome, PartKind, Position};

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Its settings.
    pub run: Run,
    /// Its events, in the order of their times.
    pub events: Vec<Event>,
}

/// A run's settings. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seed for all randomness.
    pub seed: u64,
    /// Engine name.
    pub engine: String,
    /// Deadline of an operation.
    pub deadline: u64,
    /// A key expires at most this much later than its time to live says.
    pub ttl_resolution: u64,
    /// The same, for writers.
    #[serde(default)]
    pub write_resolution: u64,
    /// Time for which the engine recognizes repetitions.
    pub once_window: u64,
    /// Maximum messages that each topic retains; a topic's number is the index.
    pub retained: Vec<u32>,
    /// Keys in this topic are locks.
    pub lock_topic: Option<u16>,
    /// A topic's keys are a stream with one message for each key: followers may never see a change that a later one has
    /// replaced, and a removal is a change although another one has come first.
    #[serde(default)]
    pub keys_are_stream: bool,
}

/// Something that happened, and when: microseconds by a monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time.
    pub time: u64,
    /// The rest.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// An event's kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A client calls an operation.
    Call {
        /// Number of the operation.
        id: u32,
        /// Node to which the client sends it.
        node: u8,
        /// The client.
        client: u16,
        /// The operation.
        call: Call,
    },
    /// An operation returns. Without this event it is unknown to the end.
    Return {
        /// Number of the operation.
        id: u32,
        /// Its answer.
        answer: Answer,
    },
    /// A fault happens to the engine, or to a link.
    Fault {
        /// Description.
        text: String,
        /// Acknowledged writes that it may lose.
        loses: Option<Loss>,
    },
    /// A node finds that the engine answers, or that it does not.
    Health {
        /// The node.
        node: u8,
        /// It answers.
        is_up: bool,
    },
    /// All faults have ended.
    Healed,
    /// A node accepts a client's subscription.
    Subscribed {
        /// The client.
        client: u16,
        /// The node.
        node: u8,
        /// Topic part.
        part: Part,
        /// Position from which the client resumes.
        after: Option<EpochSequence>,
        /// The node says that the client misses nothing behind [`after`](Self::Subscribed::after).
        complete: bool,
        /// Messages and changes behind this position follow.
        position: EpochSequence,
        /// All keys at the position, if they are not complete.
        keys: Vec<KeyState>,
    },
    /// A node delivers a message to a client.
    Delivered {
        /// The client.
        client: u16,
        /// Topic number.
        topic: u16,
        /// The log's epoch.
        epoch: u64,
        /// The message.
        entry: Entry,
    },
    /// A node delivers changes of keys to a client.
    Changed {
        /// The client.
        client: u16,
        /// Topic number.
        topic: u16,
        /// Position after the changes.
        position: EpochSequence,
        /// Sequence before them.
        prev: u64,
        /// The changed keys.
        changes: Vec<KeyState>,
    },
    /// A node reports to a client that it may miss messages or changes, or has some that the engine has lost.
    Reset {
        /// The client.
        client: u16,
        /// Topic part.
        part: Part,
        /// Messages and changes behind this position follow.
        position: EpochSequence,
        /// All keys at the position.
        keys: Vec<KeyState>,
    },
    /// A subscription ends.
    Unsubscribed {
        /// The client.
        client: u16,
        /// Topic part.
        part: Part,
    },
    /// A client reads keys from a node's copy.
    Cached {
        /// The node.
        node: u8,
        /// The client.
        client: u16,
        /// Topic number.
        topic: u16,
        /// Position of the copy.
        position: EpochSequence,
        /// All keys.
        keys: Vec<KeyState>,
    },
    /// A lock's holder uses the resource behind the lock.
    Resource {
        /// The holder.
        client: u16,
        /// Number of the lock's key.
        key: u16,
        /// The lock's version. Resources compare tokens of one epoch only.
        token: EpochSequence,
        /// The resource accepted it: it had seen no higher token.
        accepted: bool,
    },
    /// A log at the end.
    FinalLog {
        /// Topic number.
        topic: u16,
        /// Its last position.
        top: Option<EpochSequence>,
        /// Retained messages.
        entries: Vec<Entry>,
    },
    /// A topic's keys at the end.
    FinalKeys {
        /// Topic number.
        topic: u16,
        /// Their position.
        top: Option<EpochSequence>,
        /// All keys.
        keys: Vec<KeyState>,
    },
    /// A node's copy at the end.
    FinalCopy {
        /// The node.
        node: u8,
        /// Topic part.
        part: Part,
        /// The copy's position.
        position: EpochSequence,
        /// All keys.
        keys: Vec<KeyState>,
    },
}

/// An operation at the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Call {
    /// Appends a message.
    Append {
        /// Topic number.
        topic: u16,
        /// Value, unique in the run; a repetition has the same one.
        value: u64,
        /// Names the publication.
        once: Option<u64>,
        /// Appends only behind this position.
        if_top: Option<EpochSequence>,
    },
    /// Writes keys.
    WriteKeys {
        /// Topic number.
        topic: u16,
        /// The writes.
        writes: Vec<KeyWrite>,
    },
    /// Reads all of a topic's keys at once.
    ReadKeys {
        /// Topic number.
        topic: u16,
    },
}

/// Write of one key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyWrite {
    /// Key number.
    pub key: u16,
    /// Value, unique in the run; a repetition has the same one. `None` removes the key.
    pub value: Option<u64>,
    /// Time to live in microseconds.
    pub ttl: Option<u64>,
    /// Condition.
    pub condition: Option<Condition>,
    /// Names the write.
    pub once: Option<u64>,
}

/// Condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The key has no value.
    IfNew,
    /// The key has a value.
    IfExists,
    /// The key has this version.
    Version(u64),
    /// The key has this version, in this epoch.
    At(EpochSequence),
}

/// Answer to an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Answer {
    /// The message is in the log.
    Appended {
        /// Its position.
        position: EpochSequence,
        /// Sequence before it.
        prev: u64,
        /// An earlier one had the same name.
        repeated: bool,
    },
    /// Outcomes of writes.
    Written {
        /// Position after them.
        position: EpochSequence,
        /// Sequence before them.
        prev: u64,
        /// One for each write.
        outcomes: Vec<Outcome>,
    },
    /// All keys.
    Keys {
        /// Their position.
        position: Option<EpochSequence>,
        /// The keys with a value.
        keys: Vec<KeyState>,
    },
    /// The operation has no effect.
    Failed {
        /// Reason.
        reason: String,
    },
    /// The operation may have an effect, now or later.
    Unknown,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The key has this version now.
    Changed(u64),
    /// A key without a value was removed.
    Unchanged,
    /// An earlier write had the same name, and changed the key or not.
    Repeated(Option<u64>),
    /// The key has a value, of this version.
    Exists(u64),
    /// The key has no value.
    Missing,
    /// The key has this version.
    OtherVersion(u64),
    /// A limit of the topic.
    Full,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its sequence.
    pub sequence: u64,
    /// Sequence before it.
    pub prev: u64,
    /// Its value; `u64::MAX` for a payload that no client sent.
    pub value: u64,
}

/// A key and its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyState {
    /// Key number.
    pub key: u16,
    /// Sequence of the change.
    pub version: u64,
    /// `None`: removed.
    pub value: Option<u64>,
}

/// Acknowledged writes that a fault may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The last writes, in all topics.
    Suffix,
    /// All.
    Everything,
    /// One topic part.
    Part(Part),
}

impl Loss {
    /// Whether it concerns a topic part.
    #[must_use]
    pub fn concerns(self, part: Part) -> bool {
        match self {
            Self::Suffix | Self::Everything => true,
            Self::Part(lost) => lost == part,
        }
    }
}

/// A topic's log, or its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Which.
    #[serde(with = "PartKindName")]
    pub kind: PartKind,
    /// Topic number.
    pub topic: u16,
}

impl Part {
    /// A topic's log.
    #[must_use]
    pub fn log(topic: u16) -> Self {
        Self { kind: PartKind::Log, topic }
    }

    /// A topic's keys.
    #[must_use]
    pub fn keys(topic: u16) -> Self {
        Self { kind: PartKind::Keys, topic }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of t{}", if self.kind == PartKind::Log { "log" } else { "keys" }, self.topic)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "PartKind", rename_all = "snake_case")]
enum PartKindName {
    Log,
    Keys,
}

/// [`Position`], with an order and a text form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EpochSequence {
    /// Epoch.
    pub epoch: u64,
    /// Sequence.
    pub sequence: u64,
}

impl From<Position> for EpochSequence {
    fn from(position: Position) -> Self {
        Self { epoch: position.epoch, sequence: position.sequence }
    }
}

impl From<EpochSequence> for Position {
    fn from(position: EpochSequence) -> Self {
        Self { epoch: position.epoch, sequence: position.sequence }
    }
}

impl fmt::Display for EpochSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.sequence)
    }
}

impl From<Condition> for KeyCondition {
    fn from(condition: Condition) -> Self {
        match condition {
            Condition::IfNew => Self::IfNew,
            Condition::IfExists => Self::IfExists,
            Condition::Version(version) => Self::Version(version),
            Condition::At(position) => Self::At(position.into()),
        }
    }
}

impl From<KeyOutcome> for Outcome {
    fn from(outcome: KeyOutcome) -> Self {
        match outcome {
            KeyOutcome::Changed(version) => Self::Changed(version),
            KeyOutcome::Unchanged => Self::Unchanged,
            KeyOutcome::Repeated(version) => Self::Repeated(version),
            KeyOutcome::Exists(version) => Self::Exists(version),
            KeyOutcome::Missing => Self::Missing,
            KeyOutcome::OtherVersion(version) => Self::OtherVersion(version),
            KeyOutcome::TooManyKeys | KeyOutcome::TopicFull => Self::Full,
        }
    }
}

impl History {
    /// Records an event.
    pub fn push(&mut self, time: u64, kind: EventKind) {
        self.events.push(Event { time, kind });
    }

    /// Writes all lines.
    ///
    /// # Errors
    /// The writer fails.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut to, &self.run)?;
        to.write_all(b"\n")?;
        for event in &self.events {
            serde_json::to_writer(&mut to, event)?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }

    /// Parses all lines.
    ///
    /// # Errors
    /// The first line that is not part of a history.
    pub fn parse(text: &str) -> Result<Self, HistoryError> {
        let mut lines = text.lines().zip(1..);
        let fault = |line| move |error| HistoryError { line, error };
        let (first, number) = lines.next().unwrap_or(("", 1));
        let run = serde_json::from_str(first).map_err(fault(number))?;
        let events = lines.map(|(line, number)| serde_json::from_str(line).map_err(fault(number)));
        Ok(Self { run, events: events.collect::<Result<_, _>>()? })
    }
}

/// A line that is not part of a history.
#[derive(Debug)]
pub struct HistoryError {
    line: usize,
    error: serde_json::Error,
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.error)
    }
}

impl std::error::Error for HistoryError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_same_history() {
        let position = EpochSequence { epoch: 7, sequence: (1 << 53) - 1 };
        let key = KeyState { key: 1, version: 9, value: None };
        let write = KeyWrite {
            key: 1,
            value: Some(u64::MAX),
            ttl: Some(5),
            condition: Some(Condition::At(position)),
            once: None,
        };
        let mut history =
            History { run: Run { seed: 3, retained: vec![8], ..Run::default() }, events: vec![] };
        let (client, node, part) = (2, 1, Part::keys(4));
        let call = Call::WriteKeys { topic: 4, writes: vec![write] };
        history.push(1, EventKind::Call { id: 1, node, client, call });
        let outcomes = vec![Outcome::Changed(9), Outcome::Repeated(None), Outcome::Unchanged];
        history.push(2, EventKind::Return { id: 1, answer: Answer::Written { position, prev: 8, outcomes } });
        history.push(3, EventKind::Return { id: 2, answer: Answer::Unknown });
        history.push(4, EventKind::Fault { text: "failover".into(), loses: Some(Loss::Part(part)) });
        history.push(5, EventKind::Healed);
        history.push(6, EventKind::Reset { client, part, position, keys: vec![key] });
        history.push(7, EventKind::FinalLog { topic: 4, top: None, entries: vec![] });
        let mut text = Vec::new();
        history.write(&mut text).expect("a vector accepts all");
        let text = String::from_utf8(text).expect("JSON is UTF-8");
        assert_eq!(text.lines().count(), 8, "{text}");
        assert_eq!(History::parse(&text).expect("the text is ours"), history, "{text}");
        let broken = text.replace("\"log\"", "\"lag\"").replace("healed", "hailed");
        let error = History::parse(&broken).expect_err("no such event").to_string();
        assert!(error.starts_with("line 6: unknown variant `hailed`"), "{error}");
    }
}
