//! Medians and their confidence intervals, without assumptions on the samples' distribution.

/// A median, and its 99 % confidence interval. Many figures are compared: at 95 %, one in twenty equal figures would
/// appear to differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MedianInterval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Computes the sign test's interval: the closest pair of ordered values that contains the median with 99 % confidence.
/// With fewer than eight values, the interval covers all values.
pub(crate) fn spread(values: &[f64]) -> MedianInterval {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    if count == 0 {
        return MedianInterval { median: f64::NAN, low: f64::NAN, high: f64::NAN };
    }
    let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
    let skipped = skipped(count);
    MedianInterval { median, low: sorted[skipped], high: sorted[count - 1 - skipped] }
}

/// A comparison with another server, by the rounds' ratios.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundRatio {
    /// With fewer than [`ROUNDS_MIN`] rounds, the range of all ratios.
    pub(crate) interval: MedianInterval,
    rounds: usize,
}

impl RoundRatio {
    /// Compares `own` with `first` within each round, so that drift common to both cancels out.
    pub(crate) fn new(own: &[f64], first: &[f64]) -> Self {
        let ratios: Vec<f64> = own.iter().zip(first).map(|(own, first)| own / first).collect();
        Self { interval: spread(&ratios), rounds: ratios.len() }
    }

    /// Whether the rounds show a difference with 99 % confidence. `None`: too few rounds to decide, however large the
    /// difference is.
    pub(crate) fn differs(&self) -> Option<bool> {
        let MedianInterval { low, high, .. } = self.interval;
        (self.rounds >= ROUNDS_MIN).then_some(low > 1.0 || high < 1.0)
    }
}

/// Values outside the interval at each end, chosen so that the error stays below 0.5 % per side.
fn skipped(count: usize) -> usize {
    // Probability of exactly `k` heads in `count` tosses.
    let mut chance = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = 0.0;
    for k in 0..count / 2 {
        below += chance;
        if below > 0.005 {
            return k.saturating_sub(1);
        }
        chance *= (count - k) as f64 / (k + 1) as f64;
    }
    (count / 2).saturating_sub(1)
}

/// Fewer rounds cannot tell a difference: 2 × 0.5⁷ is more than 1 %.
pub(crate) const ROUNDS_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_matches_the_sign_test() {
        // Sign test tables at 1 %: both ends of 8 to 11 values, the second from 12 on, and so forth.
        for (count, expected) in [(8, 0), (11, 0), (12, 1), (15, 2), (20, 3)] {
            assert_eq!(skipped(count), expected, "{count}");
        }
        let spread = spread(&[3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 8.0, 7.0, 6.0, 12.0, 11.0, 10.0, 13.0]);
        assert_eq!((spread.median, spread.low, spread.high), (7.0, 2.0, 12.0));
    }

    #[test]
    fn ratio_distinguishes_noise_from_a_difference() {
        let noise = [1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.0, 1.01];
        let other = [1.01, 1.0, 0.98, 1.02, 0.99, 1.01, 0.98, 1.02];
        assert_eq!(RoundRatio::new(&noise, &other).differs(), Some(false));
        let half: Vec<f64> = noise.iter().map(|value| value / 2.0).collect();
        let halved = RoundRatio::new(&half, &other);
        assert!(halved.differs() == Some(true) && halved.interval.high < 0.6, "{halved:?}");
        let few = RoundRatio::new(&half[..7], &other[..7]);
        assert!(few.differs().is_none() && few.interval.high < 0.6, "seven rounds decide nothing: {few:?}");
    }

    #[test]
    fn common_drift_cancels_out_of_the_ratio() {
        let first: Vec<f64> = (1..=8).map(f64::from).collect();
        let own: Vec<f64> = first.iter().map(|value| value * 1.1).collect();
        let against = RoundRatio::new(&own, &first).interval;
        assert!(against.low > 1.09 && against.high < 1.11);
    }
}
