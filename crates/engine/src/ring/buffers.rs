//! The receive buffers, and the queue that provides them to the kernel.
//!
//! Receives of any connection consume a buffer from its front (`IOU_PBUF_RING_INC`, used from Linux 6.15
//! on): large buffers do not waste memory on small messages, and bursts are not split into small chunks. On
//! older kernels, each receive takes a whole buffer.
//!
//! Buffers have no reference count. Chunks are handled in the order in which the kernel filled them and are
//! not retained, so a buffer that the kernel has finished is free as soon as its last chunk is handled.
//! Input that an application defers is copied (see `receive`), so a few slow connections cannot exhaust the
//! buffers.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::kernel::Completion;

/// The free buffer queue: one page of the kernel's interface.
#[repr(C, align(4096))]
pub(super) struct BufferQueue {
    entries: [BufferEntry; ENTRIES],
}

/// `struct io_uring_buf`. The `reserved` of the first entry is the queue's tail.
#[repr(C)]
struct BufferEntry {
    address: AtomicU64,
    length: AtomicU32,
    buffer: AtomicU16,
    reserved: AtomicU16,
}

/// Queue entries: as many as fit a page. A power of two.
pub(super) const ENTRIES: usize = 4096 / size_of::<BufferEntry>();

pub(super) struct Buffers {
    shared: Box<BufferQueue>,
    bytes: Box<[u8]>,
    cursors: Cursors,
    tail: u16,
}

impl Buffers {
    /// Creates `count` buffers of `size` bytes, `count` at most [`ENTRIES`].
    pub(super) fn new(count: usize, size: usize) -> Self {
        let entry = || BufferEntry {
            address: AtomicU64::new(0),
            length: AtomicU32::new(0),
            buffer: AtomicU16::new(0),
            reserved: AtomicU16::new(0),
        };
        let shared = Box::new(BufferQueue { entries: std::array::from_fn(|_| entry()) });
        let bytes = vec![0; count * size].into_boxed_slice();
        let mut buffers = Self { shared, bytes, cursors: Cursors::new(count, size), tail: 0 };
        for buffer in 0..count {
            buffers.provide(buffer as u16);
        }
        buffers
    }

    /// Address of the queue.
    pub(super) fn address(&self) -> u64 {
        &raw const *self.shared as u64
    }

    /// Returns the bytes of a completion. Empty for a completion without a valid buffer.
    pub(super) fn chunk(&mut self, completion: &Completion) -> &mut [u8] {
        match self.cursors.range(completion) {
            Some(range) => &mut self.bytes[range],
            None => &mut [],
        }
    }

    /// Marks the chunk as handled. A buffer that the kernel has finished becomes free.
    pub(super) fn release(&mut self, completion: &Completion) {
        if let Some(buffer) = self.cursors.release(completion) {
            self.provide(buffer);
        }
    }

    fn provide(&mut self, buffer: u16) {
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

/// Fill position of each buffer, according to the completions.
struct Cursors {
    size: usize,
    filled: Box<[usize]>,
}

impl Cursors {
    fn new(count: usize, size: usize) -> Self {
        Self { size, filled: vec![0; count].into_boxed_slice() }
    }

    /// The range of a completion's bytes. `None` if it refers to an unknown buffer or exceeds it: no value from the
    /// kernel causes a read outside the buffers.
    fn range(&self, completion: &Completion) -> Option<std::ops::Range<usize>> {
        let buffer = usize::from(completion.buffer?);
        let length = usize::try_from(completion.result).ok()?;
        let from = *self.filled.get(buffer)?;
        let start = buffer * self.size + from;
        (length > 0 && length <= self.size - from).then(|| start..start + length)
    }

    /// Advances behind the chunk. Returns the buffer if the kernel has finished it.
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
    fn chunks_of_a_buffer_are_contiguous() {
        let mut cursors = Cursors::new(2, 100);
        let first = received(1, 60, true);
        assert_eq!(cursors.range(&first), Some(100..160));
        assert_eq!(cursors.release(&first), None);
        let other = received(0, 10, true);
        assert_eq!(cursors.range(&other), Some(0..10), "each buffer has its own range");
        cursors.release(&other);
        let last = received(1, 40, false);
        assert_eq!(cursors.range(&last), Some(160..200));
        assert_eq!(cursors.release(&last), Some(1), "the kernel has finished the buffer");
        assert_eq!(
            cursors.range(&received(1, 100, false)),
            Some(100..200),
            "the buffer starts again at its front"
        );
    }

    #[test]
    fn buffer_ends_where_the_kernel_reports_it() {
        let mut cursors = Cursors::new(1, 100);
        assert_eq!(cursors.release(&received(0, 30, false)), Some(0));
        assert_eq!(cursors.range(&received(0, 30, false)), Some(0..30));
    }

    #[test]
    fn invalid_completions_have_no_range() {
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
    fn queue_layout_matches_the_kernel() {
        assert_eq!(
            (size_of::<BufferEntry>(), size_of::<BufferQueue>(), align_of::<BufferQueue>()),
            (16, 4096, 4096)
        );
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
