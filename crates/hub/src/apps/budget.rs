//! Memory for the missed events that recoveries read from streams at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The memory for all recoveries of this node. Each reserves the most that its events may take. Recoveries wait for it
/// in the order in which they ask.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryBudget {
    /// One for each recovery.
    permits: Arc<Semaphore>,
    count: Arc<AtomicUsize>,
}

/// One recovery's memory, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Most bytes that one recovery's events take.
pub(crate) const RECOVERY_BYTES: usize = 1 << 20;

/// Default of [`HubBuilder::pusher_recovery_bytes`](crate::HubBuilder::pusher_recovery_bytes).
const DEFAULT_BYTES: usize = 64 << 20;

impl Default for RecoveryBudget {
    fn default() -> Self {
        let count = DEFAULT_BYTES / RECOVERY_BYTES;
        Self { permits: Arc::new(Semaphore::new(count)), count: Arc::new(count.into()) }
    }
}

impl RecoveryBudget {
    /// Sets the limit before the first recovery. One recovery may always take place.
    pub(crate) fn set_max(&self, bytes: usize) {
        let count = (bytes / RECOVERY_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let before = self.count.swap(count, Ordering::Relaxed);
        match count.checked_sub(before) {
            Some(more) => self.permits.add_permits(more),
            None => _ = self.permits.forget_permits(before - count),
        }
    }

    /// Reserves the memory for one recovery.
    pub(crate) async fn reserve(&self) -> ReservedMemory {
        // Nothing closes the semaphore.
        ReservedMemory { _permit: Arc::clone(&self.permits).acquire_owned().await.ok() }
    }

    /// The reserved bytes.
    pub(crate) fn reserved(&self) -> usize {
        let count = self.count.load(Ordering::Relaxed);
        count.saturating_sub(self.permits.available_permits()) * RECOVERY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn recoveries_wait_for_memory_in_their_order() {
        let budget = RecoveryBudget::default();
        for (bytes, count) in [(0, 1), (2 << 20, 2), (10 << 20, 10), (2 << 20, 2)] {
            budget.set_max(bytes);
            assert_eq!(budget.permits.available_permits(), count);
        }
        let mut cx = Context::from_waker(Waker::noop());
        let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| Box::pin(budget.reserve()));
        let Poll::Ready(reserved) = first.as_mut().poll(&mut cx) else { panic!("the budget is free") };
        assert!(second.as_mut().poll(&mut cx).is_ready());
        assert_eq!(budget.reserved(), RECOVERY_BYTES, "the second is dropped at once");
        let Poll::Ready(other) = pin!(budget.reserve()).poll(&mut cx) else { panic!("the budget has space") };
        assert!(third.as_mut().poll(&mut cx).is_pending() && fourth.as_mut().poll(&mut cx).is_pending());
        assert_eq!(budget.reserved(), 2 * RECOVERY_BYTES);
        drop(reserved);
        assert!(fourth.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_ready());
        assert!(fourth.as_mut().poll(&mut cx).is_ready(), "the third is dropped at once");
        drop(other);
        assert_eq!(budget.reserved(), 0);
    }
}
