//! Recent writes of a topic by their idempotency keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of remembered writes of a topic.
const WRITES_MAX: usize = 1_024;

/// Time that a write is remembered: longer than a client retries.
const WRITE_TTL: Duration = Duration::from_secs(300);

/// Approximate memory of a remembered write besides its names, in bytes.
const WRITE_COST: usize = 160;

/// Sequences of the last writes that had an idempotency key.
#[derive(Debug, Default)]
pub(super) struct RecentWrites {
    /// By key and idempotency key. A key has no line break, so the name is unique.
    sequences: BTreeMap<Arc<str>, u64>,
    order: VecDeque<(Instant, Arc<str>)>,
    bytes: usize,
}

fn name_of(key: &str, idempotency_key: &str) -> String {
    format!("{key}\n{idempotency_key}")
}

impl RecentWrites {
    /// Returns the sequence of an earlier write.
    pub(super) fn find(&self, key: &str, idempotency_key: &str) -> Option<u64> {
        if self.order.is_empty() {
            None
        } else {
            self.sequences.get(&*name_of(key, idempotency_key)).copied()
        }
    }

    pub(super) fn insert(&mut self, (key, idempotency_key): (&str, &str), sequence: u64, now: Instant) {
        if self.order.len() >= WRITES_MAX {
            self.pop();
        }
        let name: Arc<str> = name_of(key, idempotency_key).into();
        self.bytes += WRITE_COST + name.len();
        self.sequences.insert(Arc::clone(&name), sequence);
        self.order.push_back((now, name));
    }

    fn pop(&mut self) {
        if let Some((_, name)) = self.order.pop_front() {
            self.bytes -= WRITE_COST + name.len();
            self.sequences.remove(&name);
        }
    }

    /// Forgets old writes.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.next_due().is_some_and(|due| due <= now) {
            self.pop();
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.order.front().map(|(at, _)| *at + WRITE_TTL)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
