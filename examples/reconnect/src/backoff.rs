//! Delay before the next attempt.

use std::fmt;
use std::time::Duration;

/// Exponential back-off with full jitter: each failure doubles the maximum delay, and the delay is a random
/// part of it.
///
/// The jitter matters more than the doubling: a restarting server disconnects all clients at once, and
/// without jitter they would all reconnect at once.
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
    random: Box<dyn FnMut() -> u64 + Send>,
}

impl Backoff {
    /// Creates a back-off with a delay of at most `first` after the first failure, and never more than `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        // A system without randomness still gets the doubling.
        let random = Box::new(|| getrandom::u64().unwrap_or(u64::MAX));
        Self { first, max, failures: 0, random }
    }

    /// Uses this function instead of the system's randomness: for reproducible tests.
    pub fn with_random(mut self, random: impl FnMut() -> u64 + Send + 'static) -> Self {
        self.random = Box::new(random);
        self
    }

    /// Returns the delay after one more failure.
    pub fn next_wait(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        let part = (self.random)() as f64 / u64::MAX as f64;
        doubled.min(self.max).mul_f64(part)
    }

    /// Returns the maximum delay.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Resets the delay after a success. Call it after useful data, not after a connect: otherwise a server
    /// that accepts and fails at once would get requests without a pause.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff").field("failures", &self.failures).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff(random: u64) -> Backoff {
        Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).with_random(move || random)
    }

    #[test]
    fn doubles_up_to_the_longest_wait() {
        let mut backoff = backoff(u64::MAX);
        let waits: Vec<u128> = (0..8).map(|_| backoff.next_wait().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        for _ in 0..100 {
            assert_eq!(backoff.next_wait(), backoff.max());
        }
        backoff.reset();
        assert_eq!(backoff.next_wait().as_millis(), 100);
    }

    #[test]
    fn any_part_of_it_is_random() {
        assert_eq!(backoff(0).next_wait(), Duration::ZERO);
        assert_eq!(backoff(u64::MAX / 4).next_wait().as_millis(), 25);
    }
}
