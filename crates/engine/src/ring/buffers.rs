//! The buffers that the kernel receives into, and the queue by which it is given them.
//!
//! A buffer is consumed from its front by whatever connection has something (`IOU_PBUF_RING_INC`, which
//! we trust from Linux 6.15 on): large ones do not waste memory on small messages, and a burst is not cut into small ones. Where
//! the kernel cannot, each receive takes a whole buffer.
//!
//! No count of users is kept. Chunks are handled in the order in which the kernel filled them and never
//! outlive that, so a buffer that the kernel has done with is free as soon as its last chunk is handled;
//! what an application does not want yet is copied out (see `receive`), and a few slow ones cannot starve
//! the others of buffers.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::kernel::Completion;

/// One page of the kernel's interface: the queue of free buffers.
#[repr(C, align(4096))]
pub(super) struct Shared {
    entries: [Entry; ENTRIES],
}

/// `struct io_uring_buf`. The `reserved` of the first entry is the queue's tail.
#[repr(C)]
struct Entry {
    address: AtomicU64,
    length: AtomicU32,
    buffer: AtomicU16,
    reserved: AtomicU16,
}

/// Entries of the queue: as many as fit a page. A power of two.
pub(super) const ENTRIES: usize = 4096 / size_of::<Entry>();

pub(super) struct Buffers {
    shared: Box<Shared>,
    bytes: Box<[u8]>,
    cursors: Cursors,
    tail: u16,
}

impl Buffers {
    /// `count` buffers of `size` bytes, `count` at most [`ENTRIES`].
    pub(super) fn new(count: usize, size: usize) -> Self {
        let entry = || Entry {
            address: AtomicU64::new(0),
            length: AtomicU32::new(0),
            buffer: AtomicU16::new(0),
            reserved: AtomicU16::new(0),
        };
        let shared = Box::new(Shared { entries: std::array::from_fn(|_| entry()) });
        let bytes = vec![0; count * size].into_boxed_slice();
        let mut buffers = Self { shared, bytes, cursors: Cursors::new(count, size), tail: 0 };
        for buffer in 0..count {
            buffers.give(buffer as u16);
        }
        buffers
    }

    /// Where the queue lies.
    pub(super) fn address(&self) -> u64 {
        &raw const *self.shared as u64
    }

    /// Lends the bytes that a completion reports. Empty when it reports none of ours.
    pub(super) fn chunk(&mut self, completion: &Completion) -> &mut [u8] {
        match self.cursors.range(completion) {
            Some(range) => &mut self.bytes[range],
            None => &mut [],
        }
    }

    /// The chunk is handled; a buffer that the kernel has done with becomes free.
    pub(super) fn release(&mut self, completion: &Completion) {
        if let Some(buffer) = self.cursors.release(completion) {
            self.give(buffer);
        }
    }

    fn give(&mut self, buffer: u16) {
        let entry = &self.shared.entries[usize::from(self.tail) % ENTRIES];
        let start = usize::from(buffer) * self.cursors.size;
        // The kernel reads an entry only behind the tail, which is published after it.
        entry.address.store(self.bytes.as_mut_ptr().wrapping_add(start) as u64, Ordering::Relaxed);
        entry.length.store(self.cursors.size as u32, Ordering::Relaxed);
        entry.buffer.store(buffer, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        self.shared.entries[0].reserved.store(self.tail, Ordering::Release);
    }
}

/// How far the kernel has filled each buffer, as its completions tell.
struct Cursors {
    size: usize,
    filled: Box<[usize]>,
}

impl Cursors {
    fn new(count: usize, size: usize) -> Self {
        Self { size, filled: vec![0; count].into_boxed_slice() }
    }

    /// Where the bytes of a completion lie. `None` when it names no buffer of ours, or more than fits one:
    /// nothing that the kernel says makes us read elsewhere.
    fn range(&self, completion: &Completion) -> Option<std::ops::Range<usize>> {
        let buffer = usize::from(completion.buffer?);
        let length = usize::try_from(completion.result).ok()?;
        let from = *self.filled.get(buffer)?;
        let start = buffer * self.size + from;
        (length > 0 && length <= self.size - from).then(|| start..start + length)
    }

    /// Moves behind the chunk. The buffer, if the kernel has done with it.
    fn release(&mut self, completion: &Completion) -> Option<u16> {
        let buffer = completion.buffer?;
        let size = self.size;
        let filled = self.filled.get_mut(usize::from(buffer))?;
        if completion.buffer_kept {
            let length = usize::try_from(completion.result).unwrap_or(0);
            *filled = (*filled + length).min(size);
            return None;
        }
        *filled = 0;
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::Token;
    use super::*;

    fn received(buffer: u16, result: i32, buffer_kept: bool) -> Completion {
        Completion { token: Token::NOTHING, result, buffer: Some(buffer), buffer_kept, more: true }
    }

    #[test]
    fn chunks_follow_each_other_in_a_buffer() {
        let mut cursors = Cursors::new(2, 100);
        let first = received(1, 60, true);
        assert_eq!(cursors.range(&first), Some(100..160));
        assert_eq!(cursors.release(&first), None);
        let other = received(0, 10, true);
        assert_eq!(cursors.range(&other), Some(0..10), "each buffer has its own place");
        cursors.release(&other);
        let last = received(1, 40, false);
        assert_eq!(cursors.range(&last), Some(160..200));
        assert_eq!(cursors.release(&last), Some(1), "the kernel has done with it");
        assert_eq!(cursors.range(&received(1, 100, false)), Some(100..200), "and begins anew");
    }

    #[test]
    fn a_buffer_ends_where_the_kernel_says_not_where_it_is_full() {
        let mut cursors = Cursors::new(1, 100);
        assert_eq!(cursors.release(&received(0, 30, false)), Some(0));
        assert_eq!(cursors.range(&received(0, 30, false)), Some(0..30));
    }

    #[test]
    fn nonsense_reaches_no_bytes() {
        let mut cursors = Cursors::new(1, 100);
        for nonsense in [received(1, 10, false), received(0, 101, false), received(0, -5, false)] {
            assert_eq!(cursors.range(&nonsense), None);
        }
        assert_eq!(cursors.release(&received(9, 10, false)), None);
        cursors.release(&received(0, 1_000, true));
        assert_eq!(cursors.range(&received(0, 1, true)), None, "a full buffer holds nothing more");
        assert_eq!(cursors.range(&Completion { buffer: None, ..received(0, 1, true) }), None);
    }

    #[test]
    fn the_queue_is_laid_out_as_the_kernel_reads_it() {
        assert_eq!((size_of::<Entry>(), size_of::<Shared>(), align_of::<Shared>()), (16, 4096, 4096));
        let mut buffers = Buffers::new(4, 64);
        let tail = |buffers: &Buffers| buffers.shared.entries[0].reserved.load(Ordering::Relaxed);
        assert_eq!(tail(&buffers), 4);
        let entry = &buffers.shared.entries[2];
        assert_eq!(entry.address.load(Ordering::Relaxed), buffers.bytes.as_ptr() as u64 + 128);
        assert_eq!(entry.length.load(Ordering::Relaxed), 64);
        buffers.release(&received(0, 64, false));
        assert_eq!((tail(&buffers), buffers.shared.entries[4].buffer.load(Ordering::Relaxed)), (5, 0));
    }
}
