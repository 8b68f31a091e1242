//! The buffers as filled by the kernel, next to the bookkeeping under test, which must find the same
//! ranges.

use std::collections::VecDeque;

use super::super::buffers::Buffers;
use super::super::kernel::Completion;

pub(super) struct ModelPool {
    size: usize,
    incremental: bool,
    /// Free buffers in the order in which they were provided; the first is being filled.
    free: VecDeque<u16>,
    /// Filled bytes of the first buffer.
    filled: usize,
    memory: Vec<u8>,
    count: usize,
    /// Unreleased receive completions, and the position of their bytes.
    lent: VecDeque<(Completion, usize)>,
    /// The buffers under test, and the address of their memory once it is known.
    buffers: Buffers,
    base: Option<usize>,
}

impl ModelPool {
    pub(super) fn new(count: usize, size: usize, incremental: bool) -> Self {
        Self {
            size,
            incremental,
            free: (0..count as u16).collect(),
            filled: 0,
            memory: vec![0; count * size],
            count,
            lent: VecDeque::new(),
            buffers: Buffers::new(count, size),
            base: None,
        }
    }

    /// Capacity of the next receive. `None`: no buffer is free.
    pub(super) fn spare_capacity(&self) -> Option<usize> {
        self.free.front().map(|_| self.size - self.filled)
    }

    /// Fills a buffer from the end of the last receive. `retire`: it is finished although it has capacity
    /// left.
    pub(super) fn fill(&mut self, completion: &mut Completion, bytes: &[u8], retire: bool) {
        let buffer = *self.free.front().expect("a buffer is free");
        let start = usize::from(buffer) * self.size + self.filled;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        let done = retire || !self.incremental || self.filled == self.size;
        if done {
            self.free.pop_front();
            self.filled = 0;
        }
        completion.result = bytes.len() as i32;
        completion.buffer = Some(buffer);
        completion.buffer_kept = !done;
        self.lent.push_back((*completion, start));
    }

    /// A receive completion without bytes.
    pub(super) fn empty(&mut self, completion: &Completion) {
        self.lent.push_back((*completion, 0));
    }

    pub(super) fn chunk(&mut self, completion: &Completion) -> &mut [u8] {
        let (expected, start) = self.lent.front().expect("a chunk is lent until it is released");
        assert!(same(expected, completion), "chunks are handled in order: {expected:?}, {completion:?}");
        let chunk = self.buffers.chunk(completion);
        let base = (chunk.as_ptr() as usize).wrapping_sub(*start);
        let base = *self.base.get_or_insert(base);
        assert_eq!(chunk.as_ptr() as usize, base.wrapping_add(*start), "the range that the kernel filled");
        assert_eq!(chunk.len(), expected.result as usize);
        chunk.copy_from_slice(&self.memory[*start..start + chunk.len()]);
        chunk
    }

    pub(super) fn release(&mut self, completion: &Completion) {
        let (expected, _) = self.lent.pop_front().expect("released once");
        assert!(same(&expected, completion), "released in order: {expected:?}, {completion:?}");
        if let Some(buffer) = completion.buffer.filter(|_| !completion.buffer_kept) {
            self.free.push_back(buffer);
        }
        self.buffers.release(completion);
    }

    pub(super) fn assert_at_rest(&self) {
        assert_eq!((self.lent.len(), self.free.len()), (0, self.count), "every buffer was returned");
    }
}

fn same(one: &Completion, other: &Completion) -> bool {
    let of = |it: &Completion| (it.token, it.result, it.buffer, it.buffer_kept, it.more);
    of(one) == of(other)
}
