//! Limits of log lines that other nodes and the broker cause.

use sinews_server::LogLimit;

/// Limits of the lines that nodes cause, by kind.
#[derive(Debug, Default)]
pub(super) struct LogLimits {
    pub(super) joined: LogLimit,
    pub(super) left: LogLimit,
    pub(super) dead: LogLimit,
    pub(super) excess: LogLimit,
    pub(super) rejected: LogLimit,
}

/// Limit of the lines about keys that this node lacks.
pub(super) static LACKED_KEYS: LogLimit = LogLimit::new();
