//! Limits for log lines that other nodes and the broker cause.

use sinews_server::LogLimit;

/// Limits for the lines that nodes cause, by kind.
#[derive(Debug, Default)]
pub(super) struct LogLimits {
    pub(super) joined: LogLimit,
    pub(super) left: LogLimit,
    pub(super) dead: LogLimit,
    pub(super) excess: LogLimit,
    pub(super) rejected: LogLimit,
}
