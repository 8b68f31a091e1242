//! Limits for log lines that other nodes and the broker cause.

use std::time::Instant;

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

/// Limit for lines about keys that this node lacks.
pub(super) static LACKED_KEYS: LogLimit = LogLimit::new();

/// Logs that this node has no memory for a topic's keys.
pub(super) fn log_excess_keys(topic: &str, now: Instant) {
    if let Some(omitted) = LACKED_KEYS.permit(now) {
        tracing::error!(
            topic,
            omitted,
            "the keys of a topic exceed limits.max_keyed_memory of this node: it has none of them"
        );
    }
}
