//! Delays before an engine connects again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// The first delay.
const RECONNECT_MIN: Duration = Duration::from_millis(500);
/// Longest delay before an engine connects again. As long as the timeout of a request: a caller waits for one attempt.
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// Time without an attempt to connect after which the next delay is the shortest one again: a login alone is no success, since
/// a broker may close the connection behind it.
const STABLE_TIME: Duration = Duration::from_secs(30);

/// Delays before an engine connects again: they double with each attempt, from [`RECONNECT_MIN`] to [`RECONNECT_MAX`]. Half
/// of each is random, so that nodes do not reconnect at the same time.
#[derive(Debug, Default)]
pub(crate) struct ReconnectDelay {
    attempts: u32,
    /// End of the last delay.
    attempt_at: Option<Instant>,
}

impl ReconnectDelay {
    /// The delay before the next attempt.
    pub(crate) fn next(&mut self, now: Instant) -> Duration {
        if self.attempt_at.is_some_and(|at| now.saturating_duration_since(at) >= STABLE_TIME) {
            self.attempts = 0;
        }
        let most = RECONNECT_MIN.saturating_mul(1 << self.attempts.min(10)).min(RECONNECT_MAX);
        self.attempts = self.attempts.saturating_add(1);
        let delay = most.mul_f64(0.5 + random_fraction() / 2.0);
        self.attempt_at = Some(now + delay);
        #[cfg(test)]
        let delay = simulated::skip(delay);
        delay
    }

    /// Waits before the next attempt.
    #[cfg(any(feature = "redis", feature = "nats"))]
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next(Instant::now())).await;
    }
}

/// A random number from 0 to 1.
pub(crate) fn random_fraction() -> f64 {
    // The hasher's keys are random.
    let random = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(0);
    f64::from(random) / f64::from(u32::MAX)
}

/// Delays that tests compare and do not wait for.
#[cfg(test)]
pub(crate) mod simulated {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static DELAYS: RefCell<Option<Vec<Duration>>> = const { RefCell::new(None) };
    }

    /// Replaces the delays of this thread by shortest ones, and records them.
    #[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
    pub(crate) fn start() {
        DELAYS.set(Some(Vec::new()));
    }

    /// Returns the delays since the start.
    #[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
    pub(crate) fn delays() -> Vec<Duration> {
        DELAYS.take().expect("a start")
    }

    pub(super) fn skip(delay: Duration) -> Duration {
        DELAYS.with_borrow_mut(|delays| match delays {
            Some(delays) => {
                delays.push(delay);
                Duration::ZERO
            }
            None => delay,
        })
    }

    /// Whether the delays of successive attempts have doubled up to the longest one.
    pub(crate) fn assert_growth(delays: &[Duration]) {
        for (attempt, delay) in (0..).zip(delays) {
            let most = (RECONNECT_MIN * (1 << attempt)).min(RECONNECT_MAX);
            assert!(*delay >= most / 2 && *delay <= most, "attempt {attempt}: {delays:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_across_logins_until_a_connection_lasts() {
        let (mut delay, mut now) = (ReconnectDelay::default(), Instant::now());
        let delays: Vec<Duration> = (0..8)
            .map(|_| {
                let next = delay.next(now);
                // The login succeeds at once, and the connection is lost soon.
                now += next + STABLE_TIME / 2;
                next
            })
            .collect();
        simulated::assert_growth(&delays);
        now += STABLE_TIME;
        assert!(delay.next(now) <= RECONNECT_MIN);
    }
}
