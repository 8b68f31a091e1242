//! Random numbers.

use std::hash::{BuildHasher, RandomState};

/// Returns a random number below a limit.
pub(super) fn below(limit: u64) -> u64 {
    // The hasher's keys are random.
    RandomState::new().hash_one(limit) % limit
}
