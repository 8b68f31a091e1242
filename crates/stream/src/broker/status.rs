//! How a broker is, as its threads find it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Health;
use super::visible::Visible;

/// Who may wait for room at once. One more wakes the one that has waited longest, which may come again.
const WAITERS_MAX: usize = 65_536;

/// Shared by all threads of one broker.
pub(super) struct Status {
    /// For the log: which broker.
    name: String,
    /// Read for every acknowledgement; written when it changes.
    reachable: AtomicBool,
    waiting: AtomicU64,
    /// Somebody was told [`AppendError::Busy`](crate::AppendError::Busy), and nobody since that there is room.
    starved: AtomicBool,
    /// There is room again when no more than so many records wait.
    room_below: AtomicU64,
    waiters: Mutex<VecDeque<Waker>>,
    troubles: Mutex<Troubles>,
    /// What readers of this node can see.
    pub(super) visible: Visible,
    /// How long appends may fail, and none succeed, until the broker counts as not ready.
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

/// The broker counts as ready again when nothing has failed for so long: without a client that tries, nothing succeeds
/// either.
const FAILURE_FORGOTTEN: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Troubles {
    last: Option<Arc<str>>,
    /// Followed partitions that are not followed any more, and why.
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

    /// Why every append fails, if they have for too long.
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

    /// The broker has taken an append.
    pub(super) fn append_succeeded(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            *lock(&self.failing) = None;
        }
    }

    /// The broker has not taken an append, for a reason that is not in the append.
    pub(super) fn append_failed(&self, why: &str) {
        self.append_failed_at(Instant::now(), why);
    }

    fn append_failed_at(&self, now: Instant, why: &str) {
        let mut failing = lock(&self.failing);
        let since = failing.as_ref().map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, last: now, why: why.into() });
        self.is_failing.store(true, Ordering::Relaxed);
    }

    /// The broker has answered.
    pub(super) fn is_up(&self) {
        if !self.reachable.load(Ordering::Relaxed) {
            self.reachable.store(true, Ordering::Relaxed);
            tracing::info!("{} answers", self.name);
        }
    }

    /// It does not, and this is why.
    pub(super) fn is_down(&self, why: &str) {
        if self.reachable.swap(false, Ordering::Relaxed) {
            tracing::warn!("{} does not answer: {why}", self.name);
        }
        self.note(why);
    }

    /// Something went wrong that says nothing about the rest.
    pub(super) fn note(&self, why: &str) {
        lock(&self.troubles).last = Some(why.into());
    }

    /// A partition cannot be followed any more, or not yet.
    pub(super) fn stopped(&self, partition: &str, why: &str) {
        let before = lock(&self.troubles).stopped.insert(partition.to_owned(), why.into());
        if before.as_deref() != Some(why) {
            tracing::error!("{}: {partition} is not followed: {why}", self.name);
        }
    }

    /// It is followed again.
    pub(super) fn goes_on(&self, partition: &str) {
        lock(&self.troubles).stopped.remove(partition);
    }

    /// Records have been handed to the broker.
    pub(super) fn sent(&self, records: u64) {
        self.waiting.fetch_add(records, Ordering::SeqCst);
    }

    /// They were acknowledged or refused.
    pub(super) fn landed(&self, records: u64) {
        let waiting = self.waiting.fetch_sub(records, Ordering::SeqCst) - records;
        if self.starved.load(Ordering::SeqCst) && waiting <= self.room_below.load(Ordering::SeqCst) {
            self.feed();
        }
    }

    /// Somebody is told to come later: when a quarter of what waits has been acknowledged, so that nobody is woken
    /// for a single place.
    pub(super) fn starve(&self) {
        if !self.starved.swap(true, Ordering::SeqCst) {
            let waiting = self.waiting.load(Ordering::SeqCst);
            self.room_below.store(waiting - waiting / 4, Ordering::SeqCst);
        }
    }

    /// Whether there is room; otherwise the waker is called when there is.
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

    /// Wakes those who wait for room, if there is some or nothing is left that would make it.
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

/// Nothing under these locks can panic halfway, so a poisoned one guards whole values.
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
        assert!(!ready(16), "which has failed");
        status.append_succeeded();
        assert!(ready(16));
        fails(17);
        assert!(ready(17) && status.is_failing());
    }
}
