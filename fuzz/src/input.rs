//! Decisions read from fuzz input.

/// Reads decisions from bytes. Beyond the end all bytes are zero, so that each input is valid and a shorter
/// input has less content: this suits libFuzzer's minimization.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// Returns a number below `end`, which is at most 65,536.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let mut number = usize::from(self.byte());
        if end > 256 {
            number = number << 8 | usize::from(self.byte());
        }
        number % end.max(1)
    }

    /// Returns the next `len` bytes, or the remaining bytes.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}

/// Chunk sizes of a stream, used cyclically.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    sizes: Vec<usize>,
    next: usize,
}

impl Chunks {
    pub(crate) fn whole() -> Self {
        Self { sizes: vec![usize::MAX], next: 0 }
    }

    pub(crate) fn bytes() -> Self {
        Self { sizes: vec![1], next: 0 }
    }

    /// Reads up to four sizes of 1 to 255, and occasionally one of thousands.
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let count = 1 + input.below(4);
        let size = |_| match usize::from(input.byte()) {
            0 => 4096,
            size => size,
        };
        Self { sizes: (0..count).map(size).collect(), next: 0 }
    }

    /// Cuts the next chunk off `bytes`.
    pub(crate) fn cut<'a>(&mut self, bytes: &mut &'a [u8]) -> &'a [u8] {
        let size = self.sizes[self.next % self.sizes.len()];
        self.next += 1;
        let (chunk, rest) = bytes.split_at(size.min(bytes.len()));
        *bytes = rest;
        chunk
    }
}
