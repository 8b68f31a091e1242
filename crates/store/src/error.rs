//! Errors, and store health.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Why an operation has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store is away, and did not receive the operation: it has no effect.
    Away(Arc<str>),
    /// The queue to the store is full: the operation has no effect. Retry later.
    Busy,
    /// The store received the operation, and did not answer in time: it may have an effect, now or later.
    Unknown(Arc<str>),
    /// The store rejects the operation, which has no effect; the text has the reason, and no secret.
    Rejected(Arc<str>),
    /// [`LogAppend::if_top`](crate::LogAppend::if_top): the topic has another position.
    OtherTop,
    /// The payload or value exceeds [`Capabilities::max_value`](crate::Capabilities::max_value).
    TooLarge {
        /// Its size in bytes.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The store does not have this operation.
    Unsupported,
    /// The store is closed.
    Closed,
}

impl StoreError {
    /// Whether the operation may have an effect.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(reason) => write!(f, "the topic store is away: {reason}"),
            Self::Busy => f.write_str("the queue to the topic store is full; retry"),
            Self::Unknown(reason) => {
                write!(f, "the topic store did not answer, and may have executed the operation: {reason}")
            }
            Self::Rejected(reason) => write!(f, "the topic store rejects the operation: {reason}"),
            Self::OtherTop => f.write_str("the topic has another position"),
            Self::TooLarge { bytes, max } => {
                write!(f, "{bytes} bytes exceed the largest value of the topic store ({max})")
            }
            Self::Unsupported => f.write_str("the topic store does not support this operation"),
            Self::Closed => f.write_str("the topic store is closed"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Whether a store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreHealth {
    /// It answers.
    Up,
    /// It does not.
    Away {
        /// Since when.
        since: Instant,
        /// The last error, without a secret.
        reason: Arc<str>,
    },
}

impl StoreHealth {
    /// Whether it answers.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }
}

/// One of several servers that a store has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a name and its state")]
pub struct StoreServer {
    /// Its address, without a secret.
    pub name: Arc<str>,
    /// Whether it answers.
    pub health: StoreHealth,
}
