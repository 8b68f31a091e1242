//! How a broker is, as its threads find it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::Health;

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
}

#[derive(Default)]
struct Troubles {
    last: Option<Arc<str>>,
    /// Followed partitions that are not followed any more, and why.
    stopped: BTreeMap<String, Arc<str>>,
}

impl Status {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            reachable: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            room_below: AtomicU64::new(0),
            waiters: Mutex::default(),
            troubles: Mutex::default(),
        }
    }

    pub(super) fn health(&self) -> Health {
        let troubles = lock(&self.troubles);
        let stopped = troubles.stopped.iter().next();
        let error =
            stopped.map(|(name, why)| format!("{name}: {why}").into()).or_else(|| troubles.last.clone());
        let ready = self.reachable.load(Ordering::Relaxed) && stopped.is_none();
        Health { ready, error, waiting: self.waiting.load(Ordering::Relaxed) }
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
