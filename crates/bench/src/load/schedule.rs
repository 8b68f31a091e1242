//! Message due times at a fixed rate.

use std::time::{Duration, Instant};

/// One thread's schedule. It does not depend on answers, so that a stalled server delays no due time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendSchedule {
    begin: Instant,
    /// Messages per second.
    rate: f64,
    taken: u64,
}

impl SendSchedule {
    pub(crate) fn new(begin: Instant, rate: f64) -> Self {
        // A thread without connections has no due messages within any run.
        Self { begin, rate: rate.max(1e-9), taken: 0 }
    }

    /// The next message's due time.
    pub(crate) fn next(&self) -> Instant {
        let after = Duration::try_from_secs_f64(self.taken as f64 / self.rate).unwrap_or(FAR);
        self.begin + after.min(FAR)
    }

    /// Takes the next message if it is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next();
        if due > now {
            return None;
        }
        self.taken += 1;
        Some(due)
    }
}

const FAR: Duration = Duration::from_secs(1 << 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_messages_keep_their_due_times() {
        let begin = Instant::now();
        let mut schedule = SendSchedule::new(begin, 10.0);
        assert_eq!(schedule.take(begin), Some(begin));
        assert_eq!(schedule.take(begin), None);
        let late = begin + Duration::from_secs(1);
        let due: Vec<_> = std::iter::from_fn(|| schedule.take(late)).collect();
        assert_eq!(due.len(), 10);
        assert_eq!(due[0], begin + Duration::from_millis(100));
        assert_eq!(due[9], late);
    }
}
