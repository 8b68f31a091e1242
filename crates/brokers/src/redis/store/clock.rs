//! A server's clock, by its answers.
//!
//! An answer with the server's time is a lower bound: the server's clock shows at least that time when the answer arrives.
//! The greatest bound of the last minute counts, so that answers that a connection has held back change nothing.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;

/// Time after which a bound is replaced: clocks drift, and may be set.
const WINDOW: Duration = Duration::from_secs(30);

/// Bounds of a server's clock.
pub(super) struct ClockEstimate(Mutex<ClockBounds>);

struct ClockBounds {
    start: Instant,
    /// Greatest difference in microseconds between the server's clock and the time since the start.
    current: Option<i64>,
    /// That of the window before.
    previous: Option<i64>,
    window_end: Instant,
}

impl ClockEstimate {
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(ClockBounds { start: now, current: None, previous: None, window_end: now + WINDOW }))
    }

    /// Forgets the bounds of another connection, perhaps to another server.
    pub(super) fn restart(&self) {
        let mut bounds = lock(&self.0);
        (bounds.current, bounds.previous) = (None, None);
    }

    /// Notes an answer with the server's time in milliseconds since 1970.
    pub(super) fn note(&self, milliseconds: u64, received: Instant) {
        let mut bounds = lock(&self.0);
        if received >= bounds.window_end {
            bounds.previous = bounds.current.take();
            bounds.window_end = received + WINDOW;
        }
        let time = i64::try_from(milliseconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let bound = time.saturating_sub(bounds.elapsed(received));
        bounds.current = bounds.current.max(Some(bound));
    }

    /// The server's time in milliseconds since 1970, or a little less.
    pub(super) fn milliseconds(&self, now: Instant) -> u64 {
        let bounds = lock(&self.0);
        let bound = bounds.current.max(bounds.previous).unwrap_or(0);
        u64::try_from(bound.saturating_add(bounds.elapsed(now)) / 1_000).unwrap_or(0)
    }
}

impl ClockBounds {
    fn elapsed(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answers_do_not_delay_the_clock_and_old_ones_are_forgotten() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let clock = ClockEstimate::new(start);
        clock.note(1_000_000, at(10));
        assert_eq!([clock.milliseconds(at(10)), clock.milliseconds(at(15))], [1_000_000, 1_000_005]);
        // It was held for six seconds, and the next one came faster than the first one.
        clock.note(1_000_100, at(6_110));
        assert_eq!(clock.milliseconds(at(6_110)), 1_006_100);
        clock.note(1_006_300, at(6_305));
        assert_eq!(clock.milliseconds(at(6_305)), 1_006_300);
        // The clock was set back.
        for second in 7..100 {
            clock.note(500_000 + second * 1_000, at(second * 1_000));
        }
        assert_eq!(clock.milliseconds(at(100_000)), 600_000);
        clock.restart();
        clock.note(7, at(100_000));
        assert_eq!(clock.milliseconds(at(100_001)), 8);
    }
}
