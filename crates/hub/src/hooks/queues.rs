//! One hook's requests to one URL: limits of their number and memory, apart from those of other hooks.

use std::fmt;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::HookKind;
use crate::outgoing::options::HookOptions;

/// Maximum memory of the requests that wait or are in progress, in bytes: four of the largest messages, as for a
/// webhook. One request may be larger.
pub(super) const PENDING_BYTES_MAX: usize = 64 << 20;

/// The queue for one kind: slow answers to calls, for example, delay neither connections nor publications.
#[derive(Debug)]
pub(super) struct HookQueue {
    /// One for each request at a time.
    permits: Arc<Semaphore>,
    /// Maximum requests that wait or are in progress.
    requests_max: usize,
    pending: Mutex<HookBacklog>,
    /// The log has the first rejected request since an accepted one.
    is_full: AtomicBool,
}

/// Requests that wait or are in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HookBacklog {
    pub(super) requests: usize,
    /// Memory of their bodies and of the messages that the application decides about.
    pub(super) bytes: usize,
}

/// A queued request, until it is dropped.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    queues: Arc<HookQueues>,
    kind: HookKind,
    bytes: usize,
}

/// One URL's queues.
#[derive(Debug)]
pub(super) struct HookQueues([HookQueue; HookKind::ALL.len()]);

/// The limit that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookQueueFull {
    /// Too many requests.
    Requests(usize),
    /// Too much memory.
    Bytes(usize),
}

impl Add for HookBacklog {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, bytes: self.bytes + other.bytes }
    }
}

impl fmt::Display for HookQueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(limit) => {
                write!(f, "{limit} requests are pending (hooks.concurrency and hooks.queue)")
            }
            Self::Bytes(limit) => write!(f, "the pending requests would exceed {limit} bytes"),
        }
    }
}

impl HookQueues {
    pub(super) fn new(options: &HookOptions) -> Arc<Self> {
        let queue = |_| HookQueue {
            permits: Arc::new(Semaphore::new(options.concurrency)),
            requests_max: options.concurrency.saturating_add(options.queue),
            pending: Mutex::default(),
            is_full: AtomicBool::new(false),
        };
        Arc::new(Self(HookKind::ALL.map(queue)))
    }

    fn queue(&self, kind: HookKind) -> &HookQueue {
        &self.0[kind as usize]
    }

    /// Admits a request of this memory.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn admit(
        self: &Arc<Self>,
        kind: HookKind,
        bytes: usize,
    ) -> Result<QueuedRequest, HookQueueFull> {
        let queue = self.queue(kind);
        let mut pending = queue.lock();
        if pending.requests >= queue.requests_max {
            return Err(HookQueueFull::Requests(queue.requests_max));
        }
        if pending.requests > 0 && pending.bytes.saturating_add(bytes) > PENDING_BYTES_MAX {
            return Err(HookQueueFull::Bytes(PENDING_BYTES_MAX));
        }
        pending.requests += 1;
        pending.bytes += bytes;
        drop(pending);
        queue.is_full.store(false, Ordering::Relaxed);
        Ok(QueuedRequest { queues: Arc::clone(self), kind, bytes })
    }

    /// Whether this is the first rejected request since an accepted one.
    pub(super) fn note_full(&self, kind: HookKind) -> bool {
        !self.queue(kind).is_full.swap(true, Ordering::Relaxed)
    }

    /// Returns the requests of all queues.
    pub(super) fn pending(&self) -> HookBacklog {
        self.0.iter().fold(HookBacklog::default(), |sum, queue| sum + *queue.lock())
    }
}

impl HookQueue {
    fn lock(&self) -> MutexGuard<'_, HookBacklog> {
        self.pending.lock()
    }
}

impl QueuedRequest {
    /// Replaces the memory estimate.
    pub(super) fn set_bytes(&mut self, bytes: usize) {
        let mut pending = self.queues.queue(self.kind).lock();
        pending.bytes = pending.bytes.saturating_sub(self.bytes).saturating_add(bytes);
        drop(pending);
        self.bytes = bytes;
    }

    /// Waits until the request may be sent.
    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permits = Arc::clone(&self.queues.queue(self.kind).permits);
        // The semaphore is never closed.
        permits.acquire_owned().await.ok()
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut pending = self.queues.queue(self.kind).lock();
        pending.requests -= 1;
        pending.bytes = pending.bytes.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISH: HookKind = HookKind::Publish;

    fn queues(concurrency: usize, queue: usize) -> Arc<HookQueues> {
        HookQueues::new(&HookOptions::new().with_concurrency(concurrency).with_queue(queue))
    }

    #[test]
    fn each_hook_has_its_own_limit_of_requests() {
        let queues = queues(2, 1);
        let calls: Vec<_> = (0..3).map(|_| queues.admit(HookKind::Rpc, 0).unwrap()).collect();
        assert_eq!(queues.admit(HookKind::Rpc, 0).unwrap_err(), HookQueueFull::Requests(3));
        assert!(queues.note_full(HookKind::Rpc) && !queues.note_full(HookKind::Rpc), "the first is logged");
        let connect = queues.admit(HookKind::Connect, 0).unwrap();
        assert_eq!(queues.pending().requests, 4);
        drop((calls, connect));
        assert_eq!(queues.pending(), HookBacklog::default());
        drop(queues.admit(HookKind::Rpc, 0).unwrap());
        assert!(queues.note_full(HookKind::Rpc));
    }

    #[test]
    fn requests_are_limited_in_bytes_and_one_may_be_larger() {
        let queues = queues(64, 1_024);
        let large = queues.admit(PUBLISH, 2 * PENDING_BYTES_MAX).unwrap();
        assert_eq!(queues.admit(PUBLISH, 1).unwrap_err(), HookQueueFull::Bytes(PENDING_BYTES_MAX));
        drop(large);
        let mut slots: Vec<_> = (0..4).map(|_| queues.admit(PUBLISH, 16 << 20).unwrap()).collect();
        assert!(queues.admit(PUBLISH, 1).is_err() && queues.admit(HookKind::Rpc, 1).is_ok());
        slots[0].set_bytes(1);
        assert_eq!(queues.pending().bytes, (48 << 20) + 1);
        assert!(queues.admit(PUBLISH, 1).is_ok());
        drop(slots);
        assert_eq!(queues.pending(), HookBacklog::default());
    }
}
