//! Random decisions: a seed determines the whole test.

use std::cell::Cell;

/// SplitMix64. Callable through a shared reference, which is all that some callbacks have.
#[derive(Debug)]
pub(super) struct Dice(Cell<u64>);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        // Mixed, or adjacent seeds would produce the same numbers, shifted by one.
        Self(Cell::new(mixed(seed)))
    }

    pub(super) fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        mixed(self.0.get())
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(super) fn below(&self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(super) fn percent(&self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn mixed(state: u64) -> u64 {
    let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}
