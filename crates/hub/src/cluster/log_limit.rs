//! A limit of log lines that other nodes and the broker cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the limit.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lines of one kind in an interval: a rolling restart of a small cluster is logged whole.
const LINES_MAX: u32 = 10;

/// Permits some lines of one kind in an interval, and counts the others.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Mutex<LoggedLines>);

#[derive(Debug, Default)]
struct LoggedLines {
    begin: Option<Instant>,
    logged: u32,
    omitted: u64,
}

impl LogLimit {
    /// Returns the number of lines that were omitted since the last permitted line; `None` if this line is omitted, too.
    pub(super) fn permit(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.begin.is_none_or(|begin| now.saturating_duration_since(begin) >= INTERVAL) {
            (lines.begin, lines.logged) = (Some(now), 0);
        }
        if lines.logged >= LINES_MAX {
            lines.omitted += 1;
            return None;
        }
        lines.logged += 1;
        Some(std::mem::take(&mut lines.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_interval_are_bounded_and_counted() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        let permitted = (0..2_000).filter(|_| limit.permit(now).is_some()).count();
        assert_eq!(permitted, 10);
        assert_eq!(limit.permit(now + INTERVAL), Some(1_990));
        assert_eq!(limit.permit(now + INTERVAL), Some(0));
    }
}
