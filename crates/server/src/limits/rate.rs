//! Rate limits with a burst.

/// Token bucket whose whole state is the due time of the next event (the "virtual scheduling" of ITU-T I.371). Times
/// are nanoseconds since an epoch of the caller's choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimit {
    interval: u64,
    /// How much earlier than due an event may come.
    tolerance: u64,
}

impl RateLimit {
    /// Creates a rate of `per_second` events, at least 1, with bursts of at most `burst`, at least 1.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = SECOND / u64::from(per_second.max(1));
        Self { interval, tolerance: interval * u64::from(burst.max(1) - 1) }
    }

    /// Takes one event now, with the due time `due`. Returns the next due time, or `None` if the event is too early.
    #[inline]
    pub(crate) fn take(&self, due: u64, now: u64) -> Option<u64> {
        (due <= now.saturating_add(self.tolerance)).then(|| due.max(now) + self.interval)
    }
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rate_limit: &RateLimit, due: &mut u64, now: u64) -> u32 {
        let mut taken = 0;
        while let Some(next) = rate_limit.take(*due, now) {
            *due = next;
            taken += 1;
        }
        taken
    }

    #[test]
    fn burst_is_followed_by_the_rate() {
        let (rate_limit, mut due) = (RateLimit::new(10, 5), 0);
        assert_eq!(taken(&rate_limit, &mut due, SECOND), 5);
        assert_eq!(taken(&rate_limit, &mut due, SECOND + SECOND / 10 - 1), 0);
        assert_eq!(taken(&rate_limit, &mut due, SECOND + SECOND / 10), 1);
        // A long pause earns no more than one burst.
        assert_eq!(taken(&rate_limit, &mut due, 1_000 * SECOND), 5);
        let (rate_limit, mut due) = (RateLimit::new(u32::MAX, 1), 0);
        assert_eq!(rate_limit.take(0, 7), Some(7));
        assert!(taken(&RateLimit::new(2, 1), &mut due, 0) == 1 && due == SECOND / 2);
    }
}
