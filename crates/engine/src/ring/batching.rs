//! Batches of completions: while several connections send, a wait lets more input arrive before the loop wakes.
//!
//! A loop that wakes for each message under load spends more on its wakes, and on sends that more input would have
//! shared, than on the messages.

use std::time::Duration;

/// How long a wait lets a batch become complete. It begins when the loop goes to sleep: input that arrives later wakes the loop at once, so
/// a message waits only if the loop was busy just before.
pub(super) const BATCH_WAIT: Duration = Duration::from_micros(100);

/// Derives the size of the next batch from the number of connections that send.
#[derive(Debug, Default)]
pub(super) struct BatchSize {
    /// Connections of the current sample, by their index modulo 64.
    seen: u64,
    receives: u32,
    size: u32,
}

impl BatchSize {
    /// Counts input of the connection in this slot.
    #[inline]
    pub(super) fn note(&mut self, index: usize) {
        self.seen |= 1 << (index % 64);
        self.receives += 1;
        if self.receives == SAMPLE {
            let active = self.seen.count_ones();
            let size = if active >= CONNECTIONS_MIN { active.div_euclid(2) } else { 1 };
            *self = Self { size: size.min(SIZE_MAX), ..Self::default() };
        }
    }

    /// Number of completions to wait for.
    pub(super) fn get(&self) -> u32 {
        self.size.max(1)
    }
}

/// Receives of a sample.
const SAMPLE: u32 = 32;

/// Minimum number of connections of a sample: fewer may each wait for an answer before they send again, so that a batch
/// would never be complete.
const CONNECTIONS_MIN: u32 = 4;

/// Maximum size of a batch: a larger one saves little more.
const SIZE_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn size_after(indexes: impl Iterator<Item = usize>) -> u32 {
        let mut size = BatchSize::default();
        indexes.for_each(|index| size.note(index));
        size.get()
    }

    #[test]
    fn batch_is_half_of_the_connections_that_send() {
        assert_eq!(size_after(0..1), 1, "no sample");
        assert_eq!(size_after((0..32).map(|at| at % 3)), 1);
        assert_eq!(size_after((0..32).map(|at| at % 4)), 2);
        assert_eq!(size_after((0..32).map(|at| at % 16 + 1_000)), 8);
        assert_eq!(size_after(0..32), SIZE_MAX);
    }

    #[test]
    fn batch_ends_when_one_connection_sends_alone() {
        assert_eq!(size_after((0..32).chain([7; 32])), 1);
    }
}
