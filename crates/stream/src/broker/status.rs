//! Health of a broker, as observed by its threads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Health;
use super::visible::Visible;

/// Maximum number of wakers that wait for space. A further one replaces and wakes the oldest, whose task may register
/// again.
const WAITERS_MAX: usize = 65_536;

/// State shared by all threads of one broker.
pub(super) struct Status {
    /// Name of the broker in logs.
    name: String,
    /// Read for every acknowledgement; written when it changes.
    reachable: AtomicBool,
    waiting: AtomicU64,
    /// A publisher got [`AppendError::Busy`](crate::AppendError::Busy), and no waker was called since.
    starved: AtomicBool,
    /// The queue has space again when at most this many records wait.
    room_below: AtomicU64,
    waiters: Mutex<VecDeque<Waker>>,
    troubles: Mutex<Troubles>,
    /// The records that readers of this node can see.
    pub(super) visible: Visible,
    /// Time for which all appends may fail until the broker counts as not ready.
    failure_timeout: Duration,
    /// Read for every acknowledgement.
    is_failing: AtomicBool,
    failing: Mutex<Option<Failing>>,
}

/// Appends have failed, and none has succeeded since.
struct Failing {
    since: Instant,
    last: Instant,
    why: Arc<str>,
}

/// Time without failures after which the broker counts as ready again: without a client that retries, no append
/// succeeds either.
const FAILURE_FORGOTTEN: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Troubles {
    last: Option<Arc<str>>,
    /// Partitions that are no longer followed, with the reason.
    stopped: BTreeMap<String, Arc<str>>,
}

impl Status {
    pub(super) fn new(name: String, failure_timeout: Duration) -> Self {
        Self {
            name,
            reachable: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            room_below: AtomicU64::new(0),
            waiters: Mutex::default(),
            troubles: Mutex::default(),
            visible: Visible::default(),
            failure_timeout,
            is_failing: AtomicBool::new(false),
            failing: Mutex::default(),
        }
    }

    pub(super) fn health(&self) -> Health {
        self.health_at(Instant::now())
    }

    fn health_at(&self, now: Instant) -> Health {
        let failing = self.failing_at(now);
        let troubles = lock(&self.troubles);
        let stopped = troubles.stopped.iter().next();
        let ready = self.reachable.load(Ordering::Relaxed) && stopped.is_none() && failing.is_none();
        let stopped = stopped.map(|(name, why)| format!("{name}: {why}").into());
        let error = stopped.or(failing).or_else(|| troubles.last.clone());
        Health { ready, error, waiting: self.waiting.load(Ordering::Relaxed) }
    }

    /// The reason why all appends fail, if they have for too long.
    fn failing_at(&self, now: Instant) -> Option<Arc<str>> {
        let failing = lock(&self.failing);
        let Failing { since, last, why } = failing.as_ref()?;
        let is_long = now.saturating_duration_since(*since) >= self.failure_timeout;
        let is_over = now.saturating_duration_since(*last) >= FAILURE_FORGOTTEN;
        (is_long && !is_over).then(|| format!("every append fails: {why}").into())
    }

    /// Whether appends have failed, and none has succeeded since.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Records that the broker has accepted an append.
    pub(super) fn append_succeeded(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            *lock(&self.failing) = None;
        }
    }

    /// Records that the broker has not accepted an append, for a reason unrelated to the append.
    pub(super) fn append_failed(&self, why: &str) {
        self.append_failed_at(Instant::now(), why);
    }

    fn append_failed_at(&self, now: Instant, why: &str) {
        let mut failing = lock(&self.failing);
        let since = failing.as_ref().map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, last: now, why: why.into() });
        self.is_failing.store(true, Ordering::Relaxed);
    }

    /// Records that the broker has answered.
    pub(super) fn is_up(&self) {
        if !self.reachable.load(Ordering::Relaxed) {
            self.reachable.store(true, Ordering::Relaxed);
            tracing::info!("{} answers", self.name);
        }
    }

    /// Records that the broker does not answer, and the reason.
    pub(super) fn is_down(&self, why: &str) {
        if self.reachable.swap(false, Ordering::Relaxed) {
            tracing::warn!("{} does not answer: {why}", self.name);
        }
        self.note(why);
    }

    /// Records an error that says nothing about the broker's health.
    pub(super) fn note(&self, why: &str) {
        lock(&self.troubles).last = Some(why.into());
    }

    /// Records that a partition cannot be followed any more, or not yet.
    pub(super) fn stopped(&self, partition: &str, why: &str) {
        let before = lock(&self.troubles).stopped.insert(partition.to_owned(), why.into());
        if before.as_deref() != Some(why) {
            tracing::error!("{}: {partition} is not followed: {why}", self.name);
        }
    }

    /// Records that the partition is followed again.
    pub(super) fn goes_on(&self, partition: &str) {
        lock(&self.troubles).stopped.remove(partition);
    }

    /// Counts records handed to the broker.
    pub(super) fn sent(&self, records: u64) {
        self.waiting.fetch_add(records, Ordering::SeqCst);
    }

    /// Counts records acknowledged or rejected.
    pub(super) fn landed(&self, records: u64) {
        let waiting = self.waiting.fetch_sub(records, Ordering::SeqCst) - records;
        if self.starved.load(Ordering::SeqCst) && waiting <= self.room_below.load(Ordering::SeqCst) {
            self.feed();
        }
    }

    /// Records that a publisher must wait until a quarter of the pending records is acknowledged, so that wakers are
    /// not called for single slots.
    pub(super) fn starve(&self) {
        if !self.starved.swap(true, Ordering::SeqCst) {
            let waiting = self.waiting.load(Ordering::SeqCst);
            self.room_below.store(waiting - waiting / 4, Ordering::SeqCst);
        }
    }

    /// Whether the queue has space; otherwise the waker is called when it has.
    pub(super) fn room(&self, waker: &Waker) -> bool {
        let mut waiters = lock(&self.waiters);
        if !self.starved.load(Ordering::SeqCst) {
            return true;
        }
        waiters.push_back(waker.clone());
        let longest = if waiters.len() > WAITERS_MAX { waiters.pop_front() } else { None };
        drop(waiters);
        longest.into_iter().for_each(Waker::wake);
        false
    }

    /// Wakes the waiters if the queue has space, or no pending record is left that would make some.
    pub(super) fn feed_if_due(&self) {
        let waiting = self.waiting.load(Ordering::SeqCst);
        if self.starved.load(Ordering::SeqCst) && waiting <= self.room_below.load(Ordering::SeqCst) {
            self.feed();
        }
    }

    pub(super) fn feed(&self) {
        let mut waiters = lock(&self.waiters);
        self.starved.store(false, Ordering::SeqCst);
        let woken = std::mem::take(&mut *waiters);
        drop(waiters);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// No code can panic while holding these locks with partial changes, so a poisoned lock is usable.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_is_not_ready_while_every_append_fails_for_the_timeout() {
        let status = Status::new("a".to_owned(), Duration::from_secs(5));
        status.is_up();
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
