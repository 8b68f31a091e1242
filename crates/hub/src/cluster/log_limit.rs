//! Limits of log lines that other nodes and the broker cause.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::admission::LogInterval;

/// Limits of the lines that nodes cause, by kind.
#[derive(Debug, Default)]
pub(super) struct LogLimits {
    pub(super) joined: LogLimit,
    pub(super) left: LogLimit,
    pub(super) dead: LogLimit,
    pub(super) excess: LogLimit,
    pub(super) rejected: LogLimit,
}

/// Permits some lines of one kind in an interval, and counts the others.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Mutex<LogInterval>);

impl LogLimit {
    /// Returns the number of lines that were omitted since the last permitted line; `None` if this line is omitted, too.
    pub(super) fn permit(&self, now: Instant) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).line(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_of_an_interval_are_bounded_and_counted() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        let permitted = (0..2_000).filter(|_| limit.permit(now).is_some()).count();
        assert_eq!(permitted, 10);
        let later = now + Duration::from_secs(10);
        assert_eq!((limit.permit(later), limit.permit(later)), (Some(1_990), Some(0)));
    }
}
