//! Broker request errors.

use std::fmt;
use std::sync::Arc;

/// Broker request error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerError {
    /// The request queue is full; retry later.
    Busy,
    /// Retention has removed the records.
    Gone {
        /// The earliest offset that is left.
        earliest: u64,
    },
    /// The broker did not answer in time, or rejected the request: the text has the reason.
    Failed(Arc<str>),
    /// The connection has been closed.
    Closed,
}

impl BrokerError {
    /// Creates a [`Failed`](Self::Failed) with this reason.
    pub fn failed(reason: impl fmt::Display) -> Self {
        Self::Failed(reason.to_string().into())
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the broker request queue is full (limit 1024)"),
            Self::Gone { earliest } => write!(f, "removed by retention; the earliest offset is {earliest}"),
            Self::Failed(reason) => f.write_str(reason),
            Self::Closed => f.write_str("the connection to the broker has been closed"),
        }
    }
}

impl std::error::Error for BrokerError {}
