//! Memory that QUIC holds for a connection. quinn-proto does not tell it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Bytes of outgoing content, from its queue to the acknowledgement of the client: as long as QUIC refers to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetainedBytes(Arc<AtomicUsize>);

/// Memory of a piece beside its bytes: its owner, and its place in the queues.
const PIECE_OVERHEAD: usize = 128;

/// A piece that is counted until it is dropped.
struct RetainedPiece {
    bytes: Bytes,
    count: RetainedBytes,
}

impl RetainedBytes {
    /// Counts a piece.
    pub(crate) fn track(&self, bytes: Bytes) -> Bytes {
        self.0.fetch_add(bytes.len() + PIECE_OVERHEAD, Ordering::Relaxed);
        Bytes::from_owner(RetainedPiece { bytes, count: self.clone() })
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl AsRef<[u8]> for RetainedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for RetainedPiece {
    fn drop(&mut self) {
        self.count.0.fetch_sub(self.bytes.len() + PIECE_OVERHEAD, Ordering::Relaxed);
    }
}

/// Estimated received bytes that QUIC holds, because their stream is paused, or earlier bytes in the stream are
/// missing.
#[derive(Debug, Default)]
pub(crate) struct UnreadBytes(u64);

/// Bytes of a datagram beside content: at least 28, with acknowledgements and long integers at most this. A client
/// cannot hide content behind the difference in full-size datagrams, and small datagrams hide little.
const DATAGRAM_OVERHEAD: usize = 64;

impl UnreadBytes {
    /// Counts a datagram with content, before its content is read. Returns the counted bytes.
    pub(crate) const fn add_datagram(&mut self, len: usize) -> usize {
        let counted = len.saturating_sub(DATAGRAM_OVERHEAD);
        self.0 += counted as u64;
        counted
    }

    pub(crate) fn remove_read(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes as u64);
    }

    /// Limits the estimate to what the windows permit: repeated content counts twice.
    pub(crate) fn limit(&mut self, most: u64) -> u64 {
        self.0 = self.0.min(most);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_count_until_their_last_part_is_dropped() {
        let retained = RetainedBytes::default();
        let piece = retained.track(Bytes::from_static(&[7; 1000]));
        let part = piece.slice(990..);
        assert_eq!((piece.len(), retained.get()), (1000, 1000 + PIECE_OVERHEAD));
        drop(piece);
        assert_eq!((&part[..], retained.get()), (&[7; 10][..], 1000 + PIECE_OVERHEAD));
        drop(part);
        assert_eq!(retained.get(), 0);
    }

    #[test]
    fn content_that_is_read_leaves_no_estimate() {
        let mut unread = UnreadBytes::default();
        for _ in 0..1000 {
            unread.add_datagram(1200);
            unread.remove_read(1200 - 38);
        }
        assert_eq!(unread.limit(u64::MAX), 0);
        for _ in 0..10 {
            unread.add_datagram(1200);
        }
        assert_eq!((unread.limit(u64::MAX), unread.limit(5000)), (11_360, 5000));
        unread.remove_read(u32::MAX as usize);
        assert_eq!(unread.limit(u64::MAX), 0);
    }
}
