//! Memory of large messages, kept for the next ones.

use alloc::vec::Vec;

/// Buffers of one thread that are large enough for getting them from the system, page by page, to cost more
/// than filling them.
#[derive(Debug, Default)]
pub(super) struct Spares {
    buffers: Vec<Spare>,
    /// What all of them hold.
    bytes: usize,
}

#[derive(Debug)]
struct Spare {
    buffer: Vec<u8>,
    /// Not used since the last look.
    idle: bool,
}

/// Smallest buffer worth keeping; below it the allocator does as well.
const SPARE_MIN: usize = 128 << 10;

/// Most bytes kept: two messages of the default limit, one that is gathered and one that leaves.
const BYTES_MAX: usize = 32 << 20;

impl Spares {
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity >= SPARE_MIN && capacity <= BYTES_MAX - self.bytes {
            buffer.clear();
            self.bytes += capacity;
            self.buffers.push(Spare { buffer, idle: false });
        }
    }

    /// The smallest spare of at least `wished` bytes, or else of at least `needed`.
    fn take(&mut self, needed: usize, wished: usize) -> Option<Vec<u8>> {
        let fitting = |least: usize| {
            let sizes = self.buffers.iter().map(|spare| spare.buffer.capacity()).enumerate();
            sizes.filter(|(_, size)| *size >= least).min_by_key(|(_, size)| *size).map(|(at, _)| at)
        };
        let at = fitting(wished).or_else(|| fitting(needed))?;
        let buffer = self.buffers.swap_remove(at).buffer;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    pub(super) fn release_idle(&mut self) -> bool {
        self.buffers.retain_mut(|spare| !core::mem::replace(&mut spare.idle, true));
        self.bytes = self.buffers.iter().map(|spare| spare.buffer.capacity()).sum();
        !self.buffers.is_empty()
    }

    /// Makes room for `additional` bytes. Grows by doubling, from nothing, and not past `cap` unless what
    /// came needs it; memory that is there anyway is taken as large as the message is `expected` to become.
    pub(super) fn grow(&mut self, buffer: &mut Vec<u8>, additional: usize, expected: usize, cap: usize) {
        let (len, capacity) = (buffer.len(), buffer.capacity());
        let needed = len + additional;
        if needed <= capacity {
            return;
        }
        let target = needed.max(capacity.saturating_mul(2)).max(ASSEMBLY_MIN).min(cap.max(needed));
        if target >= SPARE_MIN
            && let Some(mut spare) = self.take(target, expected)
        {
            spare.extend_from_slice(buffer);
            self.give(core::mem::replace(buffer, spare));
        } else {
            buffer.reserve_exact(target - len);
        }
    }
}

/// First size of an assembly buffer; it doubles from here.
const ASSEMBLY_MIN: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_by_doubling_and_not_past_its_cap() {
        let mut spares = Spares::default();
        let (mut buffer, mut sizes) = (Vec::new(), Vec::new());
        while buffer.len() < 100_000 {
            spares.grow(&mut buffer, 100, 100_000, 100_000);
            buffer.extend_from_slice(&[0; 100]);
            if sizes.last() != Some(&buffer.capacity()) {
                sizes.push(buffer.capacity());
            }
        }
        assert_eq!(sizes, [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 100_000]);
    }

    #[test]
    fn what_is_expected_reserves_nothing() {
        let mut buffer = Vec::new();
        Spares::default().grow(&mut buffer, 10, 1 << 24, 1 << 24);
        assert_eq!(buffer.capacity(), ASSEMBLY_MIN);
    }

    #[test]
    fn a_spare_that_fits_the_whole_message_is_taken_and_keeps_what_came() {
        let mut spares = Spares::default();
        spares.give(Vec::with_capacity(4 << 20));
        spares.give(Vec::with_capacity(1 << 20));
        let mut buffer = vec![7; 100 << 10];
        spares.grow(&mut buffer, 64 << 10, 1 << 20, 16 << 20);
        assert_eq!((buffer.capacity(), buffer.len()), (1 << 20, 100 << 10));
        assert!(buffer.iter().all(|byte| *byte == 7));
        assert_eq!(spares.bytes, 4 << 20);
    }

    #[test]
    fn what_is_kept_is_bounded_and_given_back() {
        let mut spares = Spares::default();
        for _ in 0..100 {
            spares.give(Vec::with_capacity(1 << 20));
        }
        assert_eq!(spares.bytes, BYTES_MAX);
        spares.give(Vec::with_capacity(SPARE_MIN - 1));
        assert_eq!(spares.buffers.len(), 32);
        assert!(spares.release_idle(), "all were used since");
        let used = spares.take(1, 1).expect("there are many");
        spares.give(used);
        assert!(spares.release_idle(), "one was used since");
        assert_eq!(spares.buffers.len(), 1);
        assert!(!spares.release_idle());
        assert_eq!(spares.bytes, 0);
    }
}
