//! Wakers that wait for events of a partition.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use super::shared::PartitionCore;
use super::state::State;
use super::types::PartitionEvent;

/// The registered wakers, by their number: the oldest first.
#[derive(Default)]
pub(super) struct Waiters {
    registered: BTreeMap<u64, (PartitionEvent, Waker)>,
    last: u64,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.registered.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.registered.is_empty()
    }

    /// Registers a waker. Returns its number, and the oldest waker if there were `most` already.
    fn add(&mut self, event: PartitionEvent, waker: &Waker, most: usize) -> (u64, Option<Waker>) {
        let is_full = self.registered.len() >= most;
        let oldest = if is_full { self.registered.pop_first() } else { None };
        self.last += 1;
        self.registered.insert(self.last, (event, waker.clone()));
        (self.last, oldest.map(|(_, (_, waker))| waker))
    }

    fn remove(&mut self, number: u64) {
        self.registered.remove(&number);
    }
}

impl State {
    /// Takes the wakers whose event has happened, or all wakers if no more events are possible.
    pub(super) fn take_ready_wakers(&mut self, max_pending: usize) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut left = Vec::new();
        // Most wait for the same event, so few are left.
        for (number, (event, waker)) in std::mem::take(&mut self.waiters.registered) {
            if self.has_happened(event, max_pending) == Some(false) {
                left.push((number, (event, waker)));
            } else {
                wakers.push(waker);
            }
        }
        self.waiters.registered = left.into_iter().collect();
        wakers
    }
}

impl PartitionCore {
    /// Registers a waker unless the event has happened or never will. `replaces` is the number of the waker that this one
    /// replaces, if any. Returns whether the event has happened, and the number of the waker, or 0.
    pub(super) fn watch(
        self: &Arc<Self>,
        event: PartitionEvent,
        waker: &Waker,
        replaces: u64,
    ) -> (bool, u64) {
        let mut state = self.state();
        state.waiters.remove(replaces);
        match state.has_happened(event, self.limits.max_pending) {
            None => return (false, 0),
            Some(true) => return (true, 0),
            Some(false) => {}
        }
        let (number, oldest) = state.waiters.add(event, waker, self.limits.max_waiters);
        // It may wait for a deferred write.
        match state.queue.first() {
            Some(_) => self.start_writing(state),
            None => drop(state),
        }
        if let Some(waker) = oldest {
            waker.wake();
        }
        (false, number)
    }
}

/// One reader's registration for events of a partition. When it is dropped, the partition forgets the waker: a
/// task that may end before the event uses it in place of [`Partition::watch`](crate::Partition::watch).
pub struct Watcher {
    core: Arc<PartitionCore>,
    /// Number of the registered waker; 0 before the first.
    registered: AtomicU64,
}

impl Watcher {
    pub(super) fn new(core: Arc<PartitionCore>) -> Self {
        Self { core, registered: AtomicU64::new(0) }
    }

    /// As [`Partition::watch`](crate::Partition::watch). One waker for one event is registered: a further call replaces both.
    pub fn watch(&self, event: PartitionEvent, waker: &Waker) -> bool {
        let before = self.registered.swap(0, Ordering::AcqRel);
        let (has_happened, number) = self.core.watch(event, waker, before);
        let concurrent = self.registered.swap(number, Ordering::AcqRel);
        if concurrent > 0 {
            self.core.state().waiters.remove(concurrent);
        }
        has_happened
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let number = *self.registered.get_mut();
        if number > 0 {
            self.core.state().waiters.remove(number);
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("partition", &self.core.number).finish_non_exhaustive()
    }
}
