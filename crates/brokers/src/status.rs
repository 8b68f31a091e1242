//! Health of a broker, as observed by its threads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use sinews_stream::broker::BrokerHealth;

use crate::followed::FollowedPartitions;
use crate::lock::lock;

/// Maximum wakers that wait for space. A further one replaces and wakes the oldest, whose task may register again.
const WAITERS_MAX: usize = 65_536;

/// State shared by all threads of one broker.
pub(crate) struct Status {
    /// The broker's name in logs.
    name: String,
    /// Read for every acknowledgement; written when it changes.
    reachable: AtomicBool,
    waiting: AtomicU64,
    /// A publisher got [`AppendError::Busy`](sinews_stream::AppendError::Busy), and no waker was called since.
    is_queue_full: AtomicBool,
    /// The queue has space again when at most this many records wait.
    resume_below: AtomicU64,
    waiters: Mutex<VecDeque<Waker>>,
    errors: Mutex<BrokerErrors>,
    /// The records that this node's readers can see.
    pub(crate) followed: FollowedPartitions,
    /// Time for which all appends may fail until the broker counts as not ready.
    failure_timeout: Duration,
    /// Read for every acknowledgement.
    is_failing: AtomicBool,
    failing: Mutex<Option<AppendFailures>>,
}

/// Appends have failed, and none has succeeded since.
struct AppendFailures {
    since: Instant,
    last: Instant,
    reason: Arc<str>,
}

/// Time without failures after which the broker counts as ready again: without a client that retries, no append
/// succeeds either.
const FAILURE_EXPIRY: Duration = Duration::from_secs(10);

#[derive(Default)]
struct BrokerErrors {
    last: Option<Arc<str>>,
    /// Partitions that are no longer followed, with the reason.
    stopped: BTreeMap<String, Arc<str>>,
}

impl Status {
    pub(crate) fn new(name: String, failure_timeout: Duration) -> Self {
        Self {
            name,
            reachable: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            is_queue_full: AtomicBool::new(false),
            resume_below: AtomicU64::new(0),
            waiters: Mutex::default(),
            errors: Mutex::default(),
            followed: FollowedPartitions::default(),
            failure_timeout,
            is_failing: AtomicBool::new(false),
            failing: Mutex::default(),
        }
    }

    pub(crate) fn health(&self) -> BrokerHealth {
        self.health_at(Instant::now())
    }

    fn health_at(&self, now: Instant) -> BrokerHealth {
        let failing = self.failing_at(now);
        let errors = lock(&self.errors);
        let stopped = errors.stopped.iter().next();
        let ready = self.reachable.load(Ordering::Relaxed) && stopped.is_none() && failing.is_none();
        let stopped = stopped.map(|(name, reason)| format!("{name}: {reason}").into());
        let error = stopped.or(failing).or_else(|| errors.last.clone());
        BrokerHealth::new(ready, error, self.waiting.load(Ordering::Relaxed))
    }

    /// The reason why all appends fail, if they have for too long.
    fn failing_at(&self, now: Instant) -> Option<Arc<str>> {
        let failing = lock(&self.failing);
        let AppendFailures { since, last, reason } = failing.as_ref()?;
        let is_long = now.saturating_duration_since(*since) >= self.failure_timeout;
        let is_expired = now.saturating_duration_since(*last) >= FAILURE_EXPIRY;
        (is_long && !is_expired).then(|| format!("every append fails: {reason}").into())
    }

    /// Whether appends have failed, and none has succeeded since.
    #[cfg(any(feature = "redis", feature = "nats", test))]
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Records that the broker has accepted an append.
    pub(crate) fn append_succeeded(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            *lock(&self.failing) = None;
        }
    }

    /// Records that the broker has not accepted an append, for a reason unrelated to the append.
    pub(crate) fn append_failed(&self, reason: &str) {
        self.append_failed_at(Instant::now(), reason);
    }

    fn append_failed_at(&self, now: Instant, reason: &str) {
        let mut failing = lock(&self.failing);
        let since = failing.as_ref().map_or(now, |failing| failing.since);
        *failing = Some(AppendFailures { since, last: now, reason: reason.into() });
        self.is_failing.store(true, Ordering::Relaxed);
    }

    /// Records that the broker has answered.
    pub(crate) fn mark_reachable(&self) {
        if !self.reachable.load(Ordering::Relaxed) {
            self.reachable.store(true, Ordering::Relaxed);
            tracing::info!("{} answers", self.name);
        }
    }

    /// Records that the broker does not answer, and the reason.
    pub(crate) fn mark_unreachable(&self, reason: &str) {
        if self.reachable.swap(false, Ordering::Relaxed) {
            tracing::warn!("{} does not answer: {reason}", self.name);
        }
        self.record_error(reason);
    }

    /// Records an error that says nothing about the broker's health.
    pub(crate) fn record_error(&self, reason: &str) {
        lock(&self.errors).last = Some(reason.into());
    }

    /// Records that a partition cannot be followed any more, or not yet.
    pub(crate) fn mark_not_followed(&self, partition: &str, reason: &str) {
        let before = lock(&self.errors).stopped.insert(partition.to_owned(), reason.into());
        if before.as_deref() != Some(reason) {
            tracing::error!("{}: {partition} is not followed: {reason}", self.name);
        }
    }

    /// Records that the partition is followed again.
    pub(crate) fn mark_followed(&self, partition: &str) {
        lock(&self.errors).stopped.remove(partition);
    }

    /// Counts records handed to the broker.
    pub(crate) fn sent(&self, records: u64) {
        self.waiting.fetch_add(records, Ordering::SeqCst);
    }

    /// Counts records acknowledged or rejected.
    pub(crate) fn completed(&self, records: u64) {
        let waiting = self.waiting.fetch_sub(records, Ordering::SeqCst) - records;
        if self.is_queue_full.load(Ordering::SeqCst) && waiting <= self.resume_below.load(Ordering::SeqCst) {
            self.wake_waiters();
        }
    }

    /// Records that a publisher must wait until a quarter of the pending records is acknowledged, so that wakers are
    /// not called for single slots.
    pub(crate) fn note_queue_full(&self) {
        if !self.is_queue_full.swap(true, Ordering::SeqCst) {
            let waiting = self.waiting.load(Ordering::SeqCst);
            self.resume_below.store(waiting - waiting / 4, Ordering::SeqCst);
        }
    }

    /// Whether a publisher has found the queue full, and it has no space since.
    #[cfg(feature = "kafka")]
    pub(crate) fn is_queue_full(&self) -> bool {
        self.is_queue_full.load(Ordering::SeqCst)
    }

    /// Whether the queue has space; otherwise the waker is called when it has.
    pub(crate) fn watch_queue_space(&self, waker: &Waker) -> bool {
        let mut waiters = lock(&self.waiters);
        if !self.is_queue_full.load(Ordering::SeqCst) {
            return true;
        }
        waiters.push_back(waker.clone());
        let longest = if waiters.len() > WAITERS_MAX { waiters.pop_front() } else { None };
        drop(waiters);
        longest.into_iter().for_each(Waker::wake);
        false
    }

    /// Wakes the waiters if the queue has space, or no pending record is left that would make some.
    pub(crate) fn wake_waiters_if_due(&self) {
        let waiting = self.waiting.load(Ordering::SeqCst);
        if self.is_queue_full.load(Ordering::SeqCst) && waiting <= self.resume_below.load(Ordering::SeqCst) {
            self.wake_waiters();
        }
    }

    pub(crate) fn wake_waiters(&self) {
        let mut waiters = lock(&self.waiters);
        self.is_queue_full.store(false, Ordering::SeqCst);
        let wakers = std::mem::take(&mut *waiters);
        drop(waiters);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_is_not_ready_while_every_append_fails_for_the_timeout() {
        let status = Status::new("a".to_owned(), Duration::from_secs(5));
        status.mark_reachable();
        let begun = Instant::now();
        let ready = |seconds| status.health_at(begun + Duration::from_secs(seconds)).ready;
        let fails = |seconds| status.append_failed_at(begun + Duration::from_secs(seconds), "no memory");
        fails(0);
        fails(4);
        assert!(ready(4));
        fails(5);
        assert!(!ready(5) && !ready(14));
        let error = status.health_at(begun + Duration::from_secs(5)).error;
        assert_eq!(error.as_deref(), Some("every append fails: no memory"));
        assert!(ready(15), "a client may try again");
        fails(16);
        assert!(!ready(16), "the retry has failed");
        status.append_succeeded();
        assert!(ready(16));
        fails(17);
        assert!(ready(17) && status.is_failing());
    }
}
