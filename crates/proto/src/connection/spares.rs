//! Buffers of large messages, kept for reuse.

use alloc::vec::Vec;

/// Buffers of one thread so large that new pages from the system cost more than filling them.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    buffers: Vec<SpareBuffer>,
    /// Total capacity.
    bytes: usize,
}

#[derive(Debug)]
struct SpareBuffer {
    buffer: Vec<u8>,
    /// Not used since the last call of `release_idle`.
    idle: bool,
}

/// Smallest buffer worth keeping; below it the allocator is as fast.
const SPARE_MIN: usize = 128 << 10;

/// Maximum retained bytes: two messages of the default limit, one inbound and one outbound.
const BYTES_MAX: usize = 32 << 20;

impl SpareBuffers {
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    pub(super) fn put_back(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity >= SPARE_MIN && capacity <= BYTES_MAX - self.bytes {
            buffer.clear();
            self.bytes += capacity;
            self.buffers.push(SpareBuffer { buffer, idle: false });
        }
    }

    /// Takes the smallest spare with at least `expected` bytes, or else with at least `needed`.
    fn take(&mut self, needed: usize, expected: usize) -> Option<Vec<u8>> {
        let fitting = |min: usize| {
            let sizes = self.buffers.iter().map(|spare| spare.buffer.capacity()).enumerate();
            sizes.filter(|(_, size)| *size >= min).min_by_key(|(_, size)| *size).map(|(at, _)| at)
        };
        let at = fitting(expected).or_else(|| fitting(needed))?;
        let buffer = self.buffers.swap_remove(at).buffer;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    pub(super) fn release_idle(&mut self) -> bool {
        self.buffers.retain_mut(|spare| !core::mem::replace(&mut spare.idle, true));
        self.bytes = self.buffers.iter().map(|spare| spare.buffer.capacity()).sum();
        !self.buffers.is_empty()
    }

    /// Reserves `additional` bytes. Grows by doubling, from empty, and not beyond `cap` unless the received
    /// bytes require it; a spare is chosen by the `expected` size of the message.
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
            self.put_back(core::mem::replace(buffer, spare));
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
    fn buffer_grows_by_doubling_up_to_cap() {
        let mut spares = SpareBuffers::default();
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
    fn expected_size_reserves_no_memory() {
        let mut buffer = Vec::new();
        SpareBuffers::default().grow(&mut buffer, 10, 1 << 24, 1 << 24);
        assert_eq!(buffer.capacity(), ASSEMBLY_MIN);
    }

    #[test]
    fn spare_for_whole_message_keeps_received_bytes() {
        let mut spares = SpareBuffers::default();
        spares.put_back(Vec::with_capacity(4 << 20));
        spares.put_back(Vec::with_capacity(1 << 20));
        let mut buffer = vec![7; 100 << 10];
        spares.grow(&mut buffer, 64 << 10, 1 << 20, 16 << 20);
        assert_eq!((buffer.capacity(), buffer.len()), (1 << 20, 100 << 10));
        assert!(buffer.iter().all(|byte| *byte == 7));
        assert_eq!(spares.bytes, 4 << 20);
    }

    #[test]
    fn retained_memory_is_bounded_and_released() {
        let mut spares = SpareBuffers::default();
        for _ in 0..100 {
            spares.put_back(Vec::with_capacity(1 << 20));
        }
        assert_eq!(spares.bytes, BYTES_MAX);
        spares.put_back(Vec::with_capacity(SPARE_MIN - 1));
        assert_eq!(spares.buffers.len(), 32);
        assert!(spares.release_idle(), "all were used since");
        let used = spares.take(1, 1).expect("several spares");
        spares.put_back(used);
        assert!(spares.release_idle(), "one was used since");
        assert_eq!(spares.buffers.len(), 1);
        assert!(!spares.release_idle());
        assert_eq!(spares.bytes, 0);
    }
}
