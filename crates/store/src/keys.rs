//! A topic's keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::position::Position;

/// Changes to keys in one topic, applied in order. They are atomic if the store says so
/// ([`Capabilities::atomic_keys`](crate::Capabilities::atomic_keys)).
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a request, whose fields the store needs all")]
pub struct KeyCommands {
    /// Topic name.
    pub topic: Box<str>,
    /// At least one.
    pub writes: Vec<KeyCommand>,
    /// The topic's limits.
    pub limits: KeyLimits,
}

/// Change to one key.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as `KeyCommands`")]
pub struct KeyCommand {
    /// Key.
    pub key: Arc<str>,
    /// `None` removes the key.
    pub value: Option<Bytes>,
    /// The store removes the key after this time by its own clock; `None`: never.
    pub ttl: Option<Duration>,
    /// Otherwise the write changes nothing.
    pub condition: Option<KeyCondition>,
    /// Names the write, together with its key: within [`Capabilities::once_window`](crate::Capabilities::once_window),
    /// a repetition changes nothing, and has the first outcome.
    pub once: Option<Box<str>>,
}

/// Write condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `KeyCommands`")]
pub enum KeyCondition {
    /// The key has no value. An expired value is none.
    IfNew,
    /// The key has a value.
    IfExists,
    /// The key has a value with this version.
    Version(u64),
    /// The same, in this epoch.
    At(Position),
}

/// Limits for a topic's keys, which a set must not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as `KeyCommands`")]
pub struct KeyLimits {
    /// Maximum keys.
    pub keys: u64,
    /// Maximum bytes for keys and values.
    pub bytes: u64,
}

/// Result for [`KeyCommands`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a result, which stores build")]
pub struct KeysWritten {
    /// Position after the writes.
    pub position: Position,
    /// Sequence before the writes: [`position`](Self::position)'s if the writes changed nothing, if other changes are
    /// between them, and if the store announces each write alone.
    pub prev: u64,
    /// One for each write.
    pub outcomes: Vec<KeyOutcome>,
}

/// Outcome for a [`KeyCommand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `KeysWritten`")]
pub enum KeyOutcome {
    /// The key has changed; this is its version, a sequence of the topic.
    Changed(u64),
    /// A key without a value was removed.
    Unchanged,
    /// An earlier write had the same [`KeyCommand::once`], and this outcome: `Some(version)` if it changed the key.
    Repeated(Option<u64>),
    /// [`KeyCondition::IfNew`]: the key has a value, of this version.
    Exists(u64),
    /// The condition needs a value, and the key has none.
    Missing,
    /// The key has this version, or another epoch.
    OtherVersion(u64),
    /// [`KeyLimits::keys`].
    TooManyKeys,
    /// [`KeyLimits::bytes`].
    TopicFull,
}

/// Request for all keys in a topic.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as `KeyCommands`")]
pub struct ReadKeys {
    /// Topic name.
    pub topic: Box<str>,
    /// [`StoredKeys::cursor`] from the page before; `None` for the first page.
    pub cursor: Option<Bytes>,
    /// About this many keys.
    pub limit: u32,
}

/// Some of a topic's keys.
///
/// Keys that change while the pages are read may be missing, may be old, and may be in several pages. A reader applies
/// the changes since the first page's position when it has all pages: per key, the highest version is the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a result, which stores build")]
pub struct StoredKeys {
    /// The topic's last change before this page was read; `None`: the topic does not exist.
    pub position: Option<Position>,
    /// Keys with a value, in any order.
    pub keys: Vec<StoredKey>,
    /// For the next page; `None`: this is the last one.
    pub cursor: Option<Bytes>,
}

/// A key's last change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as `KeysWritten`")]
pub struct StoredKey {
    /// Key.
    pub key: Arc<str>,
    /// The change's sequence.
    pub version: u64,
    /// `None`: the key was removed.
    pub value: Option<Bytes>,
    /// Time at which the store removes the key; `None`: never. It does not move while the change waits for another one.
    pub expiry: Option<Instant>,
}

/// Changes to a topic's keys, as the store announces them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as `KeysWritten`")]
pub struct KeyUpdate {
    /// Position after the changes.
    pub position: Position,
    /// Sequence before them.
    pub prev: u64,
    /// In the order of their versions, each key once.
    pub changes: Vec<StoredKey>,
    /// The store has skipped sequences, since writes may have been lost: a reader that continues from an earlier position
    /// reads all keys.
    pub skipped: bool,
}

/// Answer to [`TopicStore::key_changes`](crate::TopicStore::key_changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `KeysWritten`")]
pub enum KeyChanges {
    /// The last change to each key behind the requested sequence. Removals are included.
    Since(KeyUpdate),
    /// The store does not know all of them: the position is in another epoch, or belongs to a lost write, or removals since are
    /// forgotten. [`TopicStore::read_keys`](crate::TopicStore::read_keys) has all keys.
    Unknown,
}
