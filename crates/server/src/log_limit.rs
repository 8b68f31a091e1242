//! Limits of the lines of the log that clients and other peers cause.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Permits ten lines of one kind in ten seconds, and counts the others. A line that a peer can cause at will has a
/// limit: ten lines show the problem, and a log of thousands hides the others.
///
/// ```
/// use std::time::Instant;
/// use sinews_server::LogLimit;
///
/// static INVALID: LogLimit = LogLimit::new();
///
/// if let Some(omitted) = INVALID.permit(Instant::now()) {
///     eprintln!("an invalid request ({omitted} lines omitted)");
/// }
/// ```
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<LogInterval>);

/// Lines of one kind in the current interval.
#[derive(Debug)]
struct LogInterval {
    begin: Option<Instant>,
    lines: u32,
    /// Lines that were omitted since the last permitted line.
    omitted: u64,
}

impl Default for LogInterval {
    fn default() -> Self {
        Self::NEW
    }
}

impl LogInterval {
    const NEW: Self = Self { begin: None, lines: 0, omitted: 0 };
}

/// Lines of one kind in each [`INTERVAL`].
const LINES_MAX: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(10);

impl LogLimit {
    /// Creates the limit of one kind of lines.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(LogInterval::NEW))
    }

    /// Returns the number of lines that were omitted since the last permitted line; `None` if this line is omitted,
    /// too.
    pub fn permit(&self, now: Instant) -> Option<u64> {
        let mut log = self.0.lock();
        if log.begin.is_none_or(|begin| now.saturating_duration_since(begin) >= INTERVAL) {
            (log.begin, log.lines) = (Some(now), 0);
        }
        if log.lines >= LINES_MAX {
            log.omitted += 1;
            return None;
        }
        log.lines += 1;
        Some(std::mem::take(&mut log.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_interval_and_the_next_line_counts_omitted_lines() {
        let (limit, begin) = (LogLimit::new(), Instant::now());
        for _ in 0..LINES_MAX {
            assert_eq!(limit.permit(begin), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.permit(begin + INTERVAL / 2), None);
        }
        assert_eq!(limit.permit(begin + INTERVAL), Some(7));
        assert_eq!(limit.permit(begin + INTERVAL), Some(0));
    }
}
