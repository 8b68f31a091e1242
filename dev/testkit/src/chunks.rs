use crate::Rng;

/// How a stream of bytes is cut: on its way in, or by a kernel that takes only part of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// All that is there.
    Whole,
    /// One byte at a time.
    OneByte,
    /// So many bytes at a time.
    Fixed(usize),
    /// As the seed says: mostly few bytes, sometimes thousands.
    Random(u64),
}

impl Chunks {
    /// The ways to cut that a test should try at least.
    pub const USUAL: [Self; 4] = [Self::Whole, Self::OneByte, Self::Random(1), Self::Random(2)];

    /// Begins to cut.
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
    /// The length of the next chunk: one at least, `available` at most, which must not be zero.
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
