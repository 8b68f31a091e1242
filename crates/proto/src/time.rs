//! Time as an argument.

use core::ops::Add;
use core::time::Duration;

/// A point on the caller's monotonic clock, in microseconds since an origin that the caller chose.
///
/// The protocol never reads a clock: whoever drives it says what time it is, so that a test can replay
/// a day in a millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin of the caller's clock.
    pub const ZERO: Self = Self(0);

    /// A time so many microseconds behind the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// A time so many milliseconds behind the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates: a deadline behind the end of time never comes.
    fn add(self, wait: Duration) -> Self {
        // In 64 bits: this runs for every deadline that is looked at.
        let seconds = wait.as_secs().saturating_mul(1_000_000);
        Self(self.0.saturating_add(seconds).saturating_add(u64::from(wait.subsec_micros())))
    }
}
