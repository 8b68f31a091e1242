//! Budgets for frames that cost much and serve no purpose.

use core::time::Duration;

/// How many frames of a kind a peer may send: a burst, and a rate at which the burst is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    burst: u32,
    per_second: u32,
}

impl Allowance {
    /// Creates an allowance. With a rate of 0 the burst is never refilled.
    #[must_use]
    pub const fn new(burst: u32, per_second: u32) -> Self {
        Self { burst, per_second }
    }

    /// Frames in a burst.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Frames in a second over time.
    #[must_use]
    pub const fn per_second(&self) -> u32 {
        self.per_second
    }
}

/// Allowances that guard a connection against floods.
///
/// ```
/// use sinews_http::h2::{Allowance, AbuseLimits, Config};
///
/// let limits = AbuseLimits::new().with_resets(Allowance::new(50, 10));
/// let config = Config::new().with_abuse_limits(limits);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AbuseLimits {
    pub(crate) resets: Allowance,
    pub(crate) control_frames: Allowance,
}

impl AbuseLimits {
    /// Creates the default limits.
    #[must_use]
    pub const fn new() -> Self {
        Self { resets: Allowance::new(200, 33), control_frames: Allowance::new(1000, 33) }
    }

    /// Creates limits for a connection of this maximum of concurrent streams. Bursts are the larger of the default and twice
    /// the maximum: all users of a proxy may leave at once, and others take their streams.
    #[must_use]
    pub const fn for_streams(streams: u32) -> Self {
        let mut limits = Self::new();
        let burst = streams.saturating_mul(2);
        if burst > limits.resets.burst {
            limits.resets.burst = burst;
        }
        if burst > limits.control_frames.burst {
            limits.control_frames.burst = burst;
        }
        limits
    }

    /// Sets the allowance for streams that end in a reset, by the peer or for a peer error: the guard against rapid
    /// resets (CVE-2023-44487) and resets that a client provokes (CVE-2025-8671). Default: 200, refilled at 33 a
    /// second; a page that closes resets all its streams at once.
    #[must_use]
    pub const fn with_resets(mut self, allowance: Allowance) -> Self {
        self.resets = allowance;
        self
    }

    /// Sets the allowance of frames that carry no content: in HTTP/2 PING, SETTINGS, PRIORITY, WINDOW_UPDATE; in HTTP/3
    /// MAX_PUSH_ID, QPACK instructions, unknown streams and capsules; in both empty DATA and unknown frames. Each sent
    /// HTTP/2 DATA frame permits two more, since the peer answers it with WINDOW_UPDATE, however late. Default: 1000,
    /// refilled at 33 a second.
    #[must_use]
    pub const fn with_control_frames(mut self, allowance: Allowance) -> Self {
        self.control_frames = allowance;
        self
    }
}

impl Default for AbuseLimits {
    fn default() -> Self {
        Self::new()
    }
}

/// Frames that refunds may permit beyond a burst. Two for each DATA frame of 16 KiB in the largest window: a peer may
/// answer them all at once.
const REFUNDED_MAX: i64 = 1 << 18;

/// Use of an [`Allowance`] by one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    /// Negative: refunded in advance.
    used: i64,
    /// Time up to which the budget was refilled, in milliseconds.
    refilled: u64,
}

impl Budget {
    /// Charges one frame. Returns whether the allowance permits it.
    pub(crate) fn charge(&mut self, allowance: Allowance, now: Duration) -> bool {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let rate = u64::from(allowance.per_second);
        let refill = now.saturating_sub(self.refilled).saturating_mul(rate) / 1000;
        if refill >= u64::try_from(self.used).unwrap_or(0) {
            (self.used, self.refilled) = (self.used.min(0), now);
        } else if refill > 0 {
            self.used -= refill as i64;
            // The rest of a frame counts for the next call.
            self.refilled += refill * 1000 / rate;
        }
        self.used = self.used.saturating_add(1);
        self.used <= i64::from(allowance.burst)
    }

    /// Returns frames to the budget, for useful work. The peer may send them later, up to [`REFUNDED_MAX`].
    pub(crate) fn refund(&mut self, frames: u32) {
        self.used = (self.used - i64::from(frames)).max(-REFUNDED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_permitted_and_refilled_by_the_rate() {
        let (mut budget, allowance) = (Budget::default(), Allowance::new(3, 2));
        let at = Duration::from_millis;
        assert!((0..3).all(|_| budget.charge(allowance, at(0))));
        assert!(!budget.charge(allowance, at(0)));
        assert!(!budget.charge(allowance, at(499)));
        // Five frames were charged: five seconds of two frames each refill all of them.
        assert!(!budget.charge(allowance, at(500)));
        assert!(budget.charge(allowance, at(2_000)));
        budget.refund(3);
        assert!((0..3).all(|_| budget.charge(allowance, at(2_000))));
        assert!(!budget.charge(allowance, at(2_000)));
        assert!(budget.charge(allowance, Duration::MAX));
        let mut never = Budget::default();
        assert!(never.charge(Allowance::new(1, 0), at(0)));
        assert!(!never.charge(Allowance::new(1, 0), Duration::MAX));
    }

    #[test]
    fn refunds_permit_later_frames_up_to_their_limit() {
        let (mut budget, allowance) = (Budget::default(), Allowance::new(3, 1));
        budget.refund(5);
        // The rate refills no more than the burst.
        assert!((0..8).all(|_| budget.charge(allowance, Duration::from_secs(60))));
        assert!(!budget.charge(allowance, Duration::from_secs(60)));
        let mut budget = Budget::default();
        (0..3).for_each(|_| budget.refund(u32::MAX));
        assert!((0..REFUNDED_MAX + 3).all(|_| budget.charge(allowance, Duration::ZERO)));
        assert!(!budget.charge(allowance, Duration::ZERO));
    }
}
