//! Time as an argument.

use core::num::NonZeroU64;
use core::ops::Add;
use core::time::Duration;

/// A point on the caller's monotonic clock, in microseconds since an origin that the caller chose.
///
/// The protocol never reads a clock: the driver passes the time, so that a test can replay a day in a
/// millisecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(
    /// The microseconds plus one, so that an `Option<Time>` has the size of a `Time`.
    NonZeroU64,
);

impl Time {
    /// The origin of the caller's clock.
    pub const ZERO: Self = Self(NonZeroU64::MIN);

    /// A time in microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(micros))
    }

    /// A time in milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1000))
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0.get() - 1
    }

    /// Time elapsed since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl core::fmt::Debug for Time {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Time").field(&self.as_micros()).finish()
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates: a deadline beyond the range is never reached.
    fn add(self, wait: Duration) -> Self {
        // In 64 bits, since this runs for every deadline check.
        let seconds = wait.as_secs().saturating_mul(1_000_000);
        Self(self.0.saturating_add(seconds).saturating_add(u64::from(wait.subsec_micros())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_time_takes_no_more_memory_than_a_time() {
        assert_eq!(size_of::<Option<Time>>(), size_of::<Time>());
    }

    #[test]
    fn microseconds_are_kept_and_sums_saturate() {
        for micros in [0, 1, 1_000_000, u64::MAX - 1] {
            assert_eq!(Time::from_micros(micros).as_micros(), micros);
        }
        let end = Time::from_micros(u64::MAX);
        assert_eq!(end, end + Duration::from_secs(1));
        assert_eq!((Time::ZERO + Duration::MAX, Time::default()), (end, Time::ZERO));
        assert_eq!(Time::from_millis(3).since(Time::from_micros(1)), Duration::from_micros(2_999));
        assert_eq!(Time::ZERO.since(end), Duration::ZERO);
    }
}
