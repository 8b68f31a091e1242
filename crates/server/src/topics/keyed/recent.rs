//! A topic's recent writes by their idempotency keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum writes that a topic remembers.
const WRITES_MAX: usize = 1_024;

/// Time that a write is remembered: longer than a client retries.
const WRITE_TTL: Duration = Duration::from_secs(300);

/// Approximate memory per remembered write besides its names, in bytes.
const WRITE_COST: usize = 160;

/// A topic's remembered writes take at most this part of the memory that is left for keys, without the reserve: few
/// topics never take all of it. At the default limit a topic remembers the maximum number until half of the memory is
/// used.
const LEFT_PART: usize = 64;

/// Reserve for keys: this part of the memory limit.
const RESERVED_PART: usize = 4;

/// Part of the memory limit that a topic's remembered writes may take in any case: 4 KiB by default, which are 10
/// writes with the longest names.
const TOPIC_PART: usize = 16_384;

/// Sequences for the last writes that had an idempotency key.
#[derive(Debug)]
pub(super) struct RecentWrites {
    /// By key and idempotency key. A key has no line break, so the name is unique.
    sequences: BTreeMap<Arc<str>, u64>,
    order: VecDeque<(Instant, Arc<str>)>,
    bytes: usize,
    bytes_max: usize,
}

impl Default for RecentWrites {
    fn default() -> Self {
        Self { sequences: BTreeMap::new(), order: VecDeque::new(), bytes: 0, bytes_max: usize::MAX }
    }
}

fn name_of(key: &str, idempotency_key: &str) -> String {
    format!("{key}\n{idempotency_key}")
}

impl RecentWrites {
    /// Returns an earlier write's sequence.
    pub(super) fn find(&self, key: &str, idempotency_key: &str) -> Option<u64> {
        if self.order.is_empty() {
            None
        } else {
            self.sequences.get(&*name_of(key, idempotency_key)).copied()
        }
    }

    pub(super) fn insert(&mut self, key: &str, idempotency_key: &str, sequence: u64, now: Instant) {
        let bytes = Self::cost(key, idempotency_key);
        while self.order.len() >= WRITES_MAX || self.bytes + bytes > self.bytes_max && !self.order.is_empty()
        {
            self.pop();
        }
        let name: Arc<str> = name_of(key, idempotency_key).into();
        self.bytes += bytes;
        self.sequences.insert(Arc::clone(&name), sequence);
        self.order.push_back((now, name));
    }

    /// Returns a remembered write's approximate memory in bytes.
    pub(super) fn cost(key: &str, idempotency_key: &str) -> usize {
        WRITE_COST + key.len() + 1 + idempotency_key.len()
    }

    /// Sets the memory that is left for all topics' keys, and the limit. They bound the next insertions; the last write
    /// is always remembered.
    pub(super) fn set_bytes_left(&mut self, left: usize, total: usize) {
        let share = left.saturating_sub(total / RESERVED_PART) / LEFT_PART;
        self.bytes_max = share.max(total / TOPIC_PART);
    }

    /// Forgets the oldest writes: this many bytes, or all.
    pub(super) fn free(&mut self, bytes: usize) {
        let rest = self.bytes.saturating_sub(bytes);
        while self.bytes > rest {
            self.pop();
        }
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
