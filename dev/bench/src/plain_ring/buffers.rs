//! The receive buffers: one arena, given to the kernel in pieces.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// The incremental buffer ring and its memory, neither of which is ever freed.
pub(super) struct Buffers {
    /// The ring from which the kernel takes buffers.
    entries: *mut BufRingEntry,
    tail: u16,
    arena: *mut u8,
    /// Fill level by buffer.
    filled: [u32; COUNT as usize],
    /// Full buffers in this turn.
    full: Vec<u16>,
}

/// A range of bytes in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl Buffers {
    /// Allocates and registers the buffers.
    pub(super) fn register(submitter: &Submitter<'_>) -> io::Result<Self> {
        let entries: *mut BufRingEntry = leaked(size_of::<BufRingEntry>() * COUNT as usize, PAGE).cast();
        let arena = leaked(BYTES as usize * COUNT as usize, PAGE);
        // SAFETY: the ring's memory has that many entries and is never freed.
        unsafe { submitter.register_buf_ring_with_flags(entries as u64, COUNT, GROUP, INCREMENTAL)? };
        let full = (0..COUNT).collect();
        let mut buffers = Self { entries, tail: 0, arena, filled: [0; COUNT as usize], full };
        buffers.give_back();
        Ok(buffers)
    }

    /// Records a receive's bytes in a buffer, and whether the kernel continues to fill it.
    pub(super) fn fill(&mut self, buffer: u16, bytes: u32, more: bool) -> Range {
        let filled = &mut self.filled[usize::from(buffer)];
        let range = Range { offset: u32::from(buffer) * BYTES + *filled, length: bytes };
        *filled += bytes;
        assert!(*filled <= BYTES, "the kernel fills buffers within their bounds");
        if !more {
            self.full.push(buffer);
        }
        range
    }

    /// Gives the full buffers back to the kernel. The next enter may overwrite their bytes.
    pub(super) fn give_back(&mut self) {
        if self.full.is_empty() {
            return;
        }
        for buffer in self.full.drain(..) {
            self.filled[usize::from(buffer)] = 0;
            let place = usize::from(self.tail % COUNT);
            // SAFETY: the entry is within the ring, and the kernel reads it only after the tail has passed
            // it. The address is within the arena. Fields are written separately: the first entry shares its
            // memory with the tail.
            unsafe {
                let entry = &mut *self.entries.add(place);
                entry.set_addr(self.arena.add(usize::from(buffer) * BYTES as usize) as u64);
                entry.set_len(BYTES);
                entry.set_bid(buffer);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        // SAFETY: the tail lies in the ring's first entry, is aligned, and is written by us alone.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    pub(super) fn start(&self, range: Range) -> *const u8 {
        // SAFETY: ranges come from `fill`, which keeps them within the arena.
        unsafe { self.arena.add(range.offset as usize) }
    }

    /// Returns a range's received bytes.
    pub(super) fn bytes(&self, range: Range) -> &[u8] {
        // SAFETY: the range is within the arena and is initialized by a receive. The kernel writes into
        // returned buffers only during an enter, and no such borrow lasts across an enter.
        unsafe { std::slice::from_raw_parts(self.start(range), range.length as usize) }
    }
}

impl Range {
    /// Appends the range, or extends the last range if they are contiguous.
    pub(super) fn append_to(self, ranges: &mut Vec<Self>) {
        match ranges.last_mut() {
            Some(last) if last.offset + last.length == self.offset => last.length += self.length,
            _ => ranges.push(self),
        }
    }
}

/// Allocates zeroed memory that is never freed.
fn leaked(bytes: usize, align: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes, align).expect("sizes and alignments are the constants here");
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory
}

/// The only buffer group.
pub(super) const GROUP: u16 = 0;

/// `IOU_PBUF_RING_INC`: a receive consumes a part of a buffer, and the next receive continues behind it.
const INCREMENTAL: u16 = 2;

/// A power of two. The buffers total 1 MiB, which stays in the second-level cache: with 4 MiB, 16 KiB messages cost 8 %
/// more, and messages from 1 MiB upwards 10 %.
const COUNT: u16 = 16;
/// Buffer size. Half the size, or half the number, costs 10 % more at 16 KiB.
const BYTES: u32 = 64 << 10;

const PAGE: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_ranges_are_merged() {
        let mut ranges = Vec::new();
        for (offset, length) in [(0, 3), (3, 4), (8, 1), (9, 1), (0, 2)] {
            Range { offset, length }.append_to(&mut ranges);
        }
        let pairs: Vec<(u32, u32)> = ranges.iter().map(|range| (range.offset, range.length)).collect();
        assert_eq!(pairs, [(0, 7), (8, 2), (0, 2)]);
    }
}
