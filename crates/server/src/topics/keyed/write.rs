//! Key writes: their conditions, results and errors.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use sinews_store::KeyCondition;

use super::log::KeyLogError;
use crate::topics::history::policy::Position;
use crate::topics::name::{self, InvalidTopic, SUBSCRIPTIONS_MAX};

/// Maximum key length in bytes.
pub(crate) const KEY_MAX: usize = 128;

/// Maximum length for an idempotency key in bytes.
const IDEMPOTENCY_KEY_MAX: usize = 128;

/// Maximum time to live for a key.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Maximum interval between a subscription's updates.
pub(crate) const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Change to one key in a topic: a new value, or its removal.
///
/// ```
/// use std::time::Duration;
/// use sinews_server::{KeyCondition, KeyWrite};
///
/// let cursor = KeyWrite::set("anna", "{\"x\":1}").with_ttl(Duration::from_secs(30));
/// let claim = KeyWrite::set("lock", "anna").with_condition(KeyCondition::IfNew);
/// # drop((cursor, claim));
/// ```
#[derive(Clone, Debug)]
pub struct KeyWrite {
    pub(crate) key: Arc<str>,
    /// `None` removes the key.
    pub(crate) value: Option<Bytes>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) condition: Option<KeyCondition>,
    pub(crate) idempotency_key: Option<Box<str>>,
    pub(crate) max_keys: Option<usize>,
    pub(crate) client: Option<NonZeroU64>,
}

impl KeyWrite {
    /// Sets a key. A key is a [topic name](crate::TopicName) with at most [`Topics::KEY_MAX`](crate::Topics::KEY_MAX)
    /// bytes; parts between dots serve for filters.
    #[must_use]
    pub fn set(key: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            value: Some(value.into()),
            ttl: None,
            condition: None,
            idempotency_key: None,
            max_keys: None,
            client: None,
        }
    }

    /// Removes a key. Removing a key without a value changes nothing.
    #[must_use]
    pub fn delete(key: impl Into<Arc<str>>) -> Self {
        Self {
            key: key.into(),
            value: None,
            ttl: None,
            condition: None,
            idempotency_key: None,
            max_keys: None,
            client: None,
        }
    }

    /// Removes the key after this time, unless it is set again. At least 1 ms, at most 366 days. Default: never.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the time to live for a value that has none yet. Default: the value stays.
    #[must_use]
    pub fn with_default_ttl(mut self, ttl: Duration) -> Self {
        if self.value.is_some() {
            self.ttl.get_or_insert(ttl);
        }
        self
    }

    /// Rejects a new key if the topic has this many. Default: the server's limit
    /// ([`KeyedConfig::with_max_keys`](crate::KeyedConfig::with_max_keys)), which applies besides.
    #[must_use]
    pub fn with_max_keys(mut self, keys: usize) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// Sets the client whose memory share the key counts toward
    /// ([`KeyedConfig::with_max_client_bytes`](crate::KeyedConfig::with_max_client_bytes)), as a number such as the
    /// user name's hash. Default: none, without a share.
    #[must_use]
    pub fn with_client(mut self, client: NonZeroU64) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets a condition. Default: none.
    #[must_use]
    pub fn with_condition(mut self, condition: KeyCondition) -> Self {
        self.condition = Some(condition);
        self
    }

    /// Names this write, so that a repetition has no effect and returns the first result. The topic remembers the last
    /// 1,024 names for five minutes, each together with its key, and fewer if memory is short
    /// ([`KeyedConfig::with_max_total_bytes`](crate::KeyedConfig::with_max_total_bytes)). 1 to 128 bytes. Default:
    /// none.
    #[must_use]
    pub fn with_idempotency_key(mut self, name: impl Into<Box<str>>) -> Self {
        self.idempotency_key = Some(name.into());
        self
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the value; `None` if the key is removed.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        self.value.as_ref()
    }

    /// Replaces the value that a key is set to; without effect on a deletion.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = self.value.map(|_| value.into());
        self
    }

    /// Returns the time to live.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// Returns the condition.
    #[must_use]
    pub fn condition(&self) -> Option<KeyCondition> {
        self.condition
    }

    /// Returns the idempotency key.
    #[must_use]
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// Returns the client whose memory share the key counts toward.
    #[must_use]
    pub fn client(&self) -> Option<NonZeroU64> {
        self.client
    }

    /// Returns the key limit for its topic.
    #[must_use]
    pub fn max_keys(&self) -> Option<usize> {
        self.max_keys
    }

    pub(crate) fn check(&self, value_max: usize) -> Result<(), KeyError> {
        check_key(&self.key)?;
        if let Some(bytes) = self.value.as_ref().map(Bytes::len).filter(|bytes| *bytes > value_max) {
            return Err(KeyError::ValueTooLarge { bytes, max: value_max });
        }
        if self.ttl.is_some_and(|ttl| ttl < Duration::from_millis(1) || ttl > TTL_MAX) {
            return Err(KeyError::TimeToLive);
        }
        let bad = |name: &str| name.is_empty() || name.len() > IDEMPOTENCY_KEY_MAX;
        if self.idempotency_key.as_deref().is_some_and(bad) {
            return Err(KeyError::IdempotencyKey);
        }
        Ok(())
    }
}

/// Checks a key.
pub(crate) fn check_key(key: &str) -> Result<(), KeyError> {
    if key.len() > KEY_MAX || name::check(key).is_err() { Err(KeyError::Key) } else { Ok(()) }
}

/// Write result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyWritten {
    /// Position at the change; at the topic's last change if there was none.
    pub position: Position,
    /// Whether the key changed, now or by the first write with the same idempotency key.
    pub changed: bool,
    /// Whether it repeats an earlier write with the same idempotency key.
    pub repeated: bool,
    /// Ticket for the change that a [`KeyLog`](crate::KeyLog) has to store first. `None`: the write is done.
    pub pending: Option<u64>,
}

impl KeyWritten {
    /// The result from a write that another program has applied ([`Server::shared_keys`](crate::Server::shared_keys)).
    #[must_use]
    pub fn elsewhere(position: Position, changed: bool, repeated: bool) -> Self {
        Self { position, changed, repeated, pending: None }
    }
}

/// Error from a write, or from a subscription to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The name is no topic name.
    Topic(InvalidTopic),
    /// The key is no name, or is longer than [`Topics::KEY_MAX`](crate::Topics::KEY_MAX) bytes.
    Key,
    /// The filter is not a valid name pattern.
    Filter,
    /// The interval is longer than 60 s.
    Interval,
    /// The time to live is shorter than 1 ms or longer than 366 days.
    TimeToLive,
    /// The idempotency key is empty or longer than 128 bytes.
    IdempotencyKey,
    /// The value exceeds [`KeyedConfig::with_max_value_bytes`](crate::KeyedConfig::with_max_value_bytes).
    ValueTooLarge {
        /// Value size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The topic has this many keys, the limit ([`KeyedConfig::with_max_keys`](crate::KeyedConfig::with_max_keys)).
    TooManyKeys(usize),
    /// The topic would exceed this many bytes
    /// ([`KeyedConfig::with_max_topic_bytes`](crate::KeyedConfig::with_max_topic_bytes)).
    TopicFull(usize),
    /// All topics would exceed this many bytes
    /// ([`KeyedConfig::with_max_total_bytes`](crate::KeyedConfig::with_max_total_bytes)).
    ServerFull(usize),
    /// The [client](KeyWrite::with_client)'s keys would exceed this many bytes
    /// ([`KeyedConfig::with_max_client_bytes`](crate::KeyedConfig::with_max_client_bytes)).
    ClientFull(usize),
    /// [`KeyCondition::IfNew`]: the key has a value, of this version.
    Exists(u64),
    /// [`KeyCondition::IfExists`], [`Version`](KeyCondition::Version) or [`At`](KeyCondition::At): the key has no
    /// value.
    Missing,
    /// [`KeyCondition::Version`] or [`At`](KeyCondition::At): the key has this version, or another epoch.
    OtherVersion(u64),
    /// This server's state has been exported for a successor, which accepts writes.
    HandedOver,
    /// This server has copies of keys only ([`Server::shared_keys`](crate::Server::shared_keys)).
    NotOwner,
    /// The log that stores the keys did not accept the change.
    Log(KeyLogError),
    /// The connection has too many subscriptions to keys.
    TooManySubscriptions,
    /// The server has no update encoder: [`Server::keyed_topics`](crate::Server::keyed_topics).
    NoEncoder,
}

impl From<InvalidTopic> for KeyError {
    fn from(invalid: InvalidTopic) -> Self {
        Self::Topic(invalid)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(invalid) => invalid.fmt(f),
            Self::Key => write!(
                f,
                "a key has 1 to {KEY_MAX} bytes, no control characters, no empty part between its dots, and no wildcards"
            ),
            Self::Filter => {
                f.write_str("the filter is no pattern of keys, such as `players.*` or `players.>`")
            }
            Self::Interval => write!(f, "the interval exceeds {} s", INTERVAL_MAX.as_secs()),
            Self::TimeToLive => write!(f, "a time to live is 1 ms to {} days", TTL_MAX.as_secs() / 86_400),
            Self::IdempotencyKey => write!(f, "an idempotency key has 1 to {IDEMPOTENCY_KEY_MAX} bytes"),
            Self::ValueTooLarge { bytes, max } => {
                write!(f, "value of {bytes} bytes exceeds max_value_bytes ({max})")
            }
            Self::TooManyKeys(max) => write!(f, "the topic has max_keys ({max}) keys"),
            Self::TopicFull(max) => write!(f, "the keys of the topic would exceed max_topic_bytes ({max})"),
            Self::ServerFull(max) => write!(f, "the keys of all topics would exceed max_total_bytes ({max})"),
            Self::ClientFull(max) => {
                write!(f, "the keys of the client would exceed max_client_bytes ({max})")
            }
            Self::Exists(version) => write!(f, "the key exists, with version {version}"),
            Self::Missing => f.write_str("the key does not exist"),
            Self::OtherVersion(version) => write!(f, "the key has another version: {version}"),
            Self::HandedOver => f.write_str("another process takes over the topic's keys; retry"),
            Self::NotOwner => f.write_str("this server has copies of keys only; another program writes them"),
            Self::Log(error) => error.fmt(f),
            Self::TooManySubscriptions => {
                write!(f, "a connection has at most {SUBSCRIPTIONS_MAX} subscriptions to keys")
            }
            Self::NoEncoder => f.write_str("the server sends no updates of keys (`Server::keyed_topics`)"),
        }
    }
}

impl std::error::Error for KeyError {}
