//! Memory of all topic histories, and its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::eviction::EvictionQueue;
use super::log::TopicHistory;
use crate::topics::entry::TopicEntry;

/// Histories of all topics.
#[derive(Debug)]
pub(crate) struct HistoryStore {
    pub(crate) bytes_max: usize,
    pub(crate) position_ttl: Duration,
    pub(crate) bytes: AtomicUsize,
    queue: Mutex<EvictionQueue>,
    pub(crate) evictions: Evictions,
}

/// Histories evicted by the common memory limit.
#[derive(Debug)]
pub(crate) struct Evictions {
    topics: AtomicU64,
    subscribed: AtomicU64,
    messages: AtomicU64,
    /// When evictions may be logged again, in milliseconds since the epoch.
    quiet_until: AtomicU64,
    begin: Instant,
}

/// Memory of all topic histories, and evictions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HistoryUse {
    pub(crate) bytes: u64,
    pub(crate) evicted: u64,
    pub(crate) evicted_subscribed: u64,
}

impl HistoryStore {
    pub(crate) fn new(bytes_max: usize, position_ttl: Duration) -> Self {
        let count = || AtomicU64::new(0);
        let evictions = Evictions {
            topics: count(),
            subscribed: count(),
            messages: count(),
            quiet_until: count(),
            begin: Instant::now(),
        };
        Self { bytes_max, position_ttl, bytes: AtomicUsize::new(0), queue: Mutex::default(), evictions }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EvictionQueue> {
        self.queue.lock()
    }

    /// Changes the accounted memory of a history.
    pub(crate) fn account(&self, before: usize, after: usize) -> usize {
        let change = after.wrapping_sub(before);
        self.bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change)
    }

    pub(crate) fn usage(&self) -> HistoryUse {
        HistoryUse {
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
            evicted: self.evictions.topics.load(Ordering::Relaxed),
            evicted_subscribed: self.evictions.subscribed.load(Ordering::Relaxed),
        }
    }

    /// Accounts a topic that has a new history or a publication.
    pub(crate) fn touch(
        &self,
        queue: &mut EvictionQueue,
        entry: &Arc<TopicEntry>,
        history: &TopicHistory,
    ) -> usize {
        let is_new = queue.touch(entry, &history.slot);
        self.account(0, if is_new { topic_cost(entry) } else { 0 })
    }

    /// Removes the history of a topic from the account.
    pub(crate) fn remove(
        &self,
        queue: &mut EvictionQueue,
        entry: &TopicEntry,
        history: &TopicHistory,
    ) -> usize {
        let was_there = queue.remove(&history.slot);
        self.account(if was_there { topic_cost(entry) } else { 0 }, 0)
    }
}

impl Evictions {
    pub(crate) fn count(&self, is_subscribed: bool, messages: u64) {
        self.topics.fetch_add(1, Ordering::Relaxed);
        self.subscribed.fetch_add(u64::from(is_subscribed), Ordering::Relaxed);
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }

    /// Logs evictions, at most once per interval.
    pub(crate) fn report(&self, max_history_bytes: usize) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = |until: u64| (until <= now).then(|| now + QUIET.as_millis() as u64);
        if self.quiet_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_err() {
            return;
        }
        let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
        tracing::warn!(
            max_history_bytes,
            topics = total(&self.topics),
            with_subscribers = total(&self.subscribed),
            messages = total(&self.messages),
            setting = "TopicConfig::with_max_history_bytes",
            "topic histories exceed their memory limit; evicting histories (totals since start)"
        );
    }
}

/// Minimum interval of log lines about evictions.
const QUIET: Duration = Duration::from_secs(10);

/// Returns the approximate memory of a topic with a history, without its messages.
pub(crate) fn topic_cost(entry: &TopicEntry) -> usize {
    TOPIC_COST + entry.name.len()
}

/// Overhead of a topic with a history beside its name and messages, in bytes.
pub(crate) const TOPIC_COST: usize = 512;
