use crate::Rng;

/// How a byte stream is cut: on input, or by a kernel that takes only part of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// All available bytes.
    Whole,
    /// One byte at a time.
    OneByte,
    /// Fixed byte count per chunk.
    Fixed(usize),
    /// Seeded random sizes: mostly few bytes, sometimes thousands.
    Random(u64),
}

impl Chunks {
    /// Minimum chunkings for a test.
    pub const USUAL: [Self; 4] = [Self::Whole, Self::OneByte, Self::Random(1), Self::Random(2)];

    /// Returns the cutter of a stream.
    #[must_use]
    pub const fn start(self) -> Cutter {
        let seed = match self {
            Self::Random(seed) => seed,
            _ => 0,
        };
        Cutter { how: self, rng: Rng::new(seed) }
    }
}

/// Cuts a stream.
#[derive(Clone, Debug)]
pub struct Cutter {
    how: Chunks,
    rng: Rng,
}

impl Cutter {
    /// Returns the next chunk's length: at least one, at most `available`, which must not be zero.
    pub fn next(&mut self, available: usize) -> usize {
        let wish = match self.how {
            Chunks::Whole => available,
            Chunks::OneByte => 1,
            Chunks::Fixed(len) => len.max(1),
            Chunks::Random(_) => {
                let magnitude = self.rng.below(14);
                1 + self.rng.below(1 << magnitude)
            }
        };
        wish.min(available)
    }
}
