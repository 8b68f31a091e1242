//! Confidence intervals of medians: 95 % by the bootstrap, as in criterion.

use crate::report::{median, significant};

/// A median with its confidence interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounded {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Bounded {
    /// Computes the interval from one number for each round, at least one. Each draw picks rounds with
    /// replacement, as many as there are. The interval covers the medians of the middle 95 % of the draws: a
    /// repeated run likely has a median within it.
    pub(crate) fn of(rounds: &[f64]) -> Self {
        let mut random = Random(SEED);
        let mut medians: Vec<f64> = (0..DRAWS)
            .map(|_| median((0..rounds.len()).map(|_| rounds[random.below(rounds.len())])))
            .collect();
        medians.sort_by(f64::total_cmp);
        let at = |share: f64| medians[(share * (DRAWS - 1) as f64).round() as usize];
        Self { median: median(rounds.iter().copied()), low: at(0.025), high: at(0.975) }
    }
}

/// `median (low–high)`.
impl std::fmt::Display for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, low, high } = self;
        write!(f, "{} ({}–{})", significant(*median), significant(*low), significant(*high))
    }
}

/// xorshift64*. The same rounds have the same interval.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * limit as u64) >> 32) as usize
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The default of criterion.
const DRAWS: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_has_no_bounds_but_itself() {
        assert_eq!(Bounded::of(&[7.]), Bounded { median: 7., low: 7., high: 7. });
    }

    #[test]
    fn more_rounds_have_narrower_bounds_around_the_median() {
        let rounds = |count: usize| (0..count).map(|at| 100. + (at * 37 % 41) as f64).collect::<Vec<_>>();
        let (few, many) = (Bounded::of(&rounds(8)), Bounded::of(&rounds(400)));
        for bounded in [few, many] {
            assert!(bounded.low < bounded.median && bounded.median < bounded.high, "{bounded:?}");
            assert!(100. < bounded.low && bounded.high < 140., "{bounded:?}");
        }
        assert!(many.high - many.low < (few.high - few.low) / 2., "{few:?}, {many:?}");
    }

    #[test]
    fn draws_reach_every_round() {
        let mut random = Random(SEED);
        let mut drawn = [0; 5];
        (0..5_000).for_each(|_| drawn[random.below(5)] += 1);
        assert!(drawn.iter().all(|times| (800..1_200).contains(times)), "{drawn:?}");
    }
}
