//! State of the callers and the store's thread, with the bounds of the queue between them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sinews_store::StoreHealth;

/// Bytes of a message besides its payload: subject and headers.
pub(super) const OVERHEAD: u64 = 8 << 10;
/// Maximum operations that wait or are in flight.
pub(super) const OPERATIONS_MAX: usize = 65_536;
/// Maximum bytes of their payloads.
pub(super) const BYTES_MAX: usize = 16 << 20;
/// The server's default `max_payload`, until a server has named its own.
pub(super) const MAX_PAYLOAD: u64 = 1 << 20;

/// State of the callers and the thread.
pub(super) struct StoreShared {
    pub(super) health: Mutex<StoreHealth>,
    pub(super) operations: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) max_value: AtomicU64,
}

/// An operation's share of the queue.
pub(super) struct QueuePermit {
    shared: Arc<StoreShared>,
    bytes: usize,
}

impl StoreShared {
    pub(super) fn set_max_payload(&self, bytes: u64) {
        self.max_value.store(bytes.saturating_sub(OVERHEAD), Ordering::Relaxed);
    }

    pub(super) fn permit(self: &Arc<Self>, bytes: usize) -> Option<QueuePermit> {
        let operations = self.operations.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Dropping it gives both back.
        let permit = QueuePermit { shared: Arc::clone(self), bytes };
        let fits = operations < OPERATIONS_MAX && (before == 0 || before + bytes <= BYTES_MAX);
        fits.then_some(permit)
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.shared.operations.fetch_sub(1, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
