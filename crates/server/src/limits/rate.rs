//! Rates: so many a second, and so many at once after a pause.

/// When the next one is due if they keep to the rate: the whole state of a token bucket (the "virtual scheduling"
/// of ITU-T I.371). Times are nanoseconds since a beginning that the caller chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    interval: u64,
    /// How far ahead of its time one may come.
    tolerance: u64,
}

impl Pace {
    /// So many a second, at least 1, and at most `burst`, at least 1, at once.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = SECOND / u64::from(per_second.max(1));
        Self { interval, tolerance: interval * u64::from(burst.max(1) - 1) }
    }

    /// One comes now, and the next was due at `due`. Answers when the one after it is, or `None`: too early.
    #[inline]
    pub(crate) fn take(&self, due: u64, now: u64) -> Option<u64> {
        (due <= now.saturating_add(self.tolerance)).then(|| due.max(now) + self.interval)
    }
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pace: &Pace, due: &mut u64, now: u64) -> u32 {
        let mut taken = 0;
        while let Some(next) = pace.take(*due, now) {
            *due = next;
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_burst_then_the_rate() {
        let (pace, mut due) = (Pace::new(10, 5), 0);
        assert_eq!(taken(&pace, &mut due, SECOND), 5);
        assert_eq!(taken(&pace, &mut due, SECOND + SECOND / 10 - 1), 0);
        assert_eq!(taken(&pace, &mut due, SECOND + SECOND / 10), 1);
        // A long pause saves up no more than a burst.
        assert_eq!(taken(&pace, &mut due, 1_000 * SECOND), 5);
        let (pace, mut due) = (Pace::new(u32::MAX, 1), 0);
        assert_eq!(pace.take(0, 7), Some(7));
        assert!(taken(&Pace::new(2, 1), &mut due, 0) == 1 && due == SECOND / 2);
    }
}
