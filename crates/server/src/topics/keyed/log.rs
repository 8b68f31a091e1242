//! Logs that store the topics' keys.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::write::KeyError;

/// Log that stores the topics' keys ([`Server::key_log`](crate::Server::key_log)): writes are applied when it has
/// stored them.
pub trait KeyLog: Send + Sync {
    /// Returns whether the log stores a topic's keys. The answer for a topic never changes.
    fn stores(&self, topic: &str) -> bool;

    /// Returns the epoch for a topic whose log is open.
    fn epoch(&self, topic: &str) -> Option<u64>;

    /// Starts to append a change, and returns its sequence: higher than every stored change's sequence. Called in the
    /// order in which a topic's keys change, with the topic locked: it must neither block nor use the topics' keys.
    ///
    /// When the log has stored the change, it calls [`Publisher::commit_key`](crate::Publisher::commit_key), otherwise
    /// [`Publisher::abort_key`](crate::Publisher::abort_key): from another thread or later, in the changes' order.
    ///
    /// # Errors
    /// [`KeyError::Log`]: the change is not appended.
    fn append(&self, topic: &str, change: &LoggedChange<'_>) -> Result<u64, KeyError>;
}

/// Key change for a [`KeyLog`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoggedChange<'a> {
    /// The change's number, for [`Publisher::commit_key`](crate::Publisher::commit_key).
    pub ticket: u64,
    /// The key.
    pub key: &'a str,
    /// The value; `None` removes the key.
    pub value: Option<&'a Bytes>,
    /// Time at which the key expires, if it does.
    pub expires: Option<SystemTime>,
    /// The write's idempotency key, if it has one. A log that stores it passes it to
    /// [`KeyedSnapshot::recent`](crate::KeyedSnapshot::recent) at the next start.
    pub idempotency_key: Option<&'a str>,
    /// The client whose memory share a value counts toward ([`KeyWrite::with_client`](crate::KeyWrite::with_client)). A
    /// log that stores it passes it to [`KeySnapshot::client`](crate::KeySnapshot::client) at the next start.
    pub client: Option<NonZeroU64>,
}

impl<'a> LoggedChange<'a> {
    /// Creates a change to a new value, for tests with a log.
    #[must_use]
    pub fn set(key: &'a str, value: &'a Bytes) -> Self {
        Self { ticket: 0, key, value: Some(value), expires: None, idempotency_key: None, client: None }
    }

    /// Creates a change that removes a key, for tests with a log.
    #[must_use]
    pub fn removal(key: &'a str) -> Self {
        Self { ticket: 0, key, value: None, expires: None, idempotency_key: None, client: None }
    }

    /// Sets the time at which the key expires. Default: it does not.
    #[must_use]
    pub fn with_expiry(mut self, expires: Option<SystemTime>) -> Self {
        self.expires = expires;
        self
    }

    /// Sets the client whose memory share the value counts toward. Default: none.
    #[must_use]
    pub fn with_client(mut self, client: Option<NonZeroU64>) -> Self {
        self.client = client;
        self
    }

    /// Sets the write's idempotency key. Default: it has none.
    #[must_use]
    pub fn with_idempotency_key(mut self, name: Option<&'a str>) -> Self {
        self.idempotency_key = name;
        self
    }
}

/// Why a [`KeyLog`] did not store a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyLogError {
    /// The topic's log is not open yet.
    NotReady,
    /// Too many changes wait to be stored.
    Busy,
    /// The disk is full.
    NoSpace,
    /// The change exceeds the log's largest record.
    TooLarge,
    /// The log does not accept changes; its owner has the reason.
    Failed,
}

impl fmt::Display for KeyLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady => "the log of the topic's keys is not open yet; retry",
            Self::Busy => "too many changes wait for the log of the topic's keys; retry",
            Self::NoSpace => "no space is left on the disk",
            Self::TooLarge => "the change exceeds the largest record of the log",
            Self::Failed => "the log of the topic's keys does not accept changes",
        })
    }
}

/// A server's log.
#[derive(Clone)]
pub(crate) struct SharedKeyLog(pub(crate) Arc<dyn KeyLog>);

impl fmt::Debug for SharedKeyLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKeyLog")
    }
}
