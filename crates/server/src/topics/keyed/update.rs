//! Key changes as subscribers receive them.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::write::KeyError;
use crate::topics::history::policy::Position;
use crate::topics::name::TopicPattern;

/// A key's last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub(crate) key: Arc<str>,
    pub(crate) version: u64,
    pub(crate) value: Option<Bytes>,
}

impl KeyChange {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the change's sequence in its topic: the key's version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the value; `None` if the key was removed.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        self.value.as_ref()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// Update of a subscriber's view of a topic's keys, for the server's encoder
/// ([`Server::keyed_topics`](crate::Server::keyed_topics)): a snapshot part, or changes.
#[derive(Clone, Copy, Debug)]
pub struct KeyedUpdate<'a> {
    pub(crate) topic: &'a str,
    pub(crate) position: Position,
    pub(crate) part: Option<SnapshotPart>,
    pub(crate) changes: &'a [KeyChange],
    /// The server has no memory for the topic's replica.
    pub(crate) is_unavailable: bool,
}

/// Snapshot part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotPart {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) is_last: bool,
}

impl<'a> KeyedUpdate<'a> {
    /// Returns the topic.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// Returns the view's position after this update, or after its snapshot's last part: a client that reconnects
    /// continues from there.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns whether it is a snapshot part, which replaces the subscriber's view when its last part has arrived.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.part.is_some()
    }

    /// Returns this part's number in a snapshot, from 1; `None` for an update.
    #[must_use]
    pub fn part(&self) -> Option<usize> {
        self.part.map(|part| part.number)
    }

    /// Returns whether it is a snapshot's last part, or an update.
    #[must_use]
    pub fn is_last_part(&self) -> bool {
        self.part.is_none_or(|part| part.is_last)
    }

    /// Returns whether this server has no memory for the topic's replica ([`Server::shared_keys`](crate::Server::shared_keys)):
    /// it has no changes, and a snapshot follows when it has.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.is_unavailable
    }

    /// Returns the changes, each key once. A snapshot has no removed keys.
    #[must_use]
    pub fn changes(&self) -> &'a [KeyChange] {
        self.changes
    }
}

/// Settings for a subscription to a topic's keys ([`Context::subscribe_keys`](crate::Context::subscribe_keys)).
///
/// ```
/// use std::time::Duration;
/// use sinews_server::KeySubscription;
///
/// let prices = KeySubscription::new().with_filter("gold.*").with_interval(Duration::from_millis(200));
/// # drop(prices);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySubscription {
    pub(crate) filter: Option<String>,
    pub(crate) interval: Option<Duration>,
    pub(crate) from: Option<Position>,
}

impl KeySubscription {
    /// Longest interval between two updates.
    pub const INTERVAL_MAX: Duration = super::write::INTERVAL_MAX;

    /// Subscribes to all keys: a snapshot, then each change.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the subscription to the keys that match a [pattern](crate::TopicPattern). Default: all keys.
    #[must_use]
    pub fn with_filter(mut self, pattern: impl Into<String>) -> Self {
        self.filter = Some(pattern.into());
        self
    }

    /// Sends at most one update in this time, with the keys that have changed meanwhile; at most
    /// [`INTERVAL_MAX`](Self::INTERVAL_MAX) (60 s). An update larger than 256 KiB takes several messages. Default:
    /// changes are sent at once, together with others in the same loop turn.
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval).filter(|interval| !interval.is_zero());
        self
    }

    /// Sets the interval, unless a longer one is set.
    #[must_use]
    pub fn with_min_interval(mut self, interval: Duration) -> Self {
        self.interval = self.interval.max(Some(interval).filter(|interval| !interval.is_zero()));
        self
    }

    /// Continues after this position, from an earlier subscription with the same filter, without a snapshot if
    /// possible. Default: a snapshot.
    #[must_use]
    pub fn with_position(mut self, position: Position) -> Self {
        self.from = Some(position);
        self
    }

    pub(crate) fn check(&self) -> Result<(), KeyError> {
        if self.filter.as_deref().is_some_and(|filter| TopicPattern::parse(filter).is_err()) {
            return Err(KeyError::Filter);
        }
        if self.interval.is_some_and(|interval| interval > Self::INTERVAL_MAX) {
            return Err(KeyError::Interval);
        }
        Ok(())
    }
}

/// Result when a connection subscribes to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeysSubscribed {
    /// Position at the topic's last change so far.
    pub position: Position,
    /// Whether the changes since the requested position follow; otherwise a snapshot follows.
    pub recovered: bool,
}

/// A page from a topic's keys ([`Topics::keys`](crate::Topics::keys)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyPage {
    /// Position at the topic's last change.
    pub position: Position,
    /// Keys with their values, in key order.
    pub keys: Vec<KeyChange>,
    /// Whether further keys follow.
    pub more: bool,
}

/// One topic's keys, for a successor server ([`Publisher::keyed_topics`](crate::Publisher::keyed_topics)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "to be taken apart, sent, and put together again")]
pub struct KeyedSnapshot {
    /// Topic name.
    pub topic: String,
    /// Position at the last change.
    pub position: Position,
    /// Removals up to this sequence are forgotten: a subscriber from before needs a snapshot.
    pub forgotten: u64,
    /// Keys, and removed keys that are not forgotten, ordered by version.
    pub keys: Vec<KeySnapshot>,
    /// The last writes with an idempotency key, oldest first.
    pub recent: Vec<RecentKeyWrite>,
}

/// Write with an idempotency key, in a [`KeyedSnapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as its topic")]
pub struct RecentKeyWrite {
    /// The key.
    pub key: String,
    /// The idempotency key.
    pub idempotency_key: String,
    /// The change's sequence.
    pub sequence: u64,
    /// Time since the write.
    pub age: Duration,
}

/// Key in a [`KeyedSnapshot`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as its topic")]
pub struct KeySnapshot {
    /// The key.
    pub key: String,
    /// Sequence at its last change.
    pub version: u64,
    /// Its value; `None` if it was removed.
    pub value: Option<Bytes>,
    /// Time until it expires, if it does.
    pub ttl: Option<Duration>,
    /// The client whose memory share it counts toward ([`KeyWrite::with_client`](crate::KeyWrite::with_client)).
    pub client: Option<NonZeroU64>,
}
