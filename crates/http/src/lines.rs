//! Header line positions.

use alloc::vec::Vec;
use core::ops::Range;

/// Position of a header line in the bytes of its head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeaderLine {
    name: [u32; 2],
    value: [u32; 2],
}

impl HeaderLine {
    /// Creates a line; `None` beyond 4 GiB, the maximum of [`HeadLimits`](crate::HeadLimits).
    pub(crate) fn new(name: Range<usize>, value: Range<usize>) -> Option<Self> {
        let end = u32::try_from(value.end).ok()?;
        // The other positions are before the end.
        Some(Self { name: [name.start as u32, name.end as u32], value: [value.start as u32, end] })
    }

    pub(crate) fn name<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        slice(bytes, self.name)
    }

    pub(crate) fn value<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        slice(bytes, self.value)
    }

    /// Returns the value if the line has this name, in any case.
    pub(crate) fn value_of<'b>(&self, bytes: &'b [u8], name: &str) -> Option<&'b [u8]> {
        let [start, end] = self.name;
        let is_as_long = (end - start) as usize == name.len();
        (is_as_long && self.name(bytes).eq_ignore_ascii_case(name.as_bytes())).then(|| self.value(bytes))
    }
}

fn slice(bytes: &[u8], [start, end]: [u32; 2]) -> &[u8] {
    bytes.get(start as usize..end as usize).unwrap_or_default()
}

/// Positions of the header lines of one head: up to 32 on the caller's stack, more in an allocation. Pipelined heads
/// can use the same slots one after the other.
#[derive(Clone, Debug, Default)]
pub struct HeaderSlots {
    first: [HeaderLine; Self::FIRST],
    len: usize,
    /// All lines, if there are more than `first` holds.
    all: Vec<HeaderLine>,
}

impl HeaderSlots {
    /// Lines without an allocation. Clients send a dozen, browsers behind proxies thirty.
    const FIRST: usize = 32;

    /// Empty slots.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: [HeaderLine { name: [0; 2], value: [0; 2] }; Self::FIRST], len: 0, all: Vec::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn push(&mut self, line: HeaderLine) {
        match self.first.get_mut(self.len) {
            Some(slot) => *slot = line,
            None => {
                if self.len == Self::FIRST {
                    self.all.clear();
                    self.all.extend_from_slice(&self.first);
                }
                self.all.push(line);
            }
        }
        self.len += 1;
    }

    pub(crate) fn lines(&self) -> &[HeaderLine] {
        self.first.get(..self.len).unwrap_or(&self.all)
    }
}
