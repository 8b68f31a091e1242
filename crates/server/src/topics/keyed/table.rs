//! A server's keyed topics, shared by the threads.

pub(crate) mod list;
mod shared;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use sinews_engine::Post;

use super::config::KeyedConfig;
use super::log::{KeyLogError, LoggedChange, SharedKeyLog};
use super::snapshot::SnapshotMemory;
use super::state::replica::KeyRole;
use super::state::{KeyedState, ShareChanges, TOPIC_COST, WriteLimits};
use super::topic::{EncodeKeys, KeyedTopic};
use super::update::{KeyChange, KeyPage, KeyedSnapshot};
use super::write::{KeyError, KeyWrite, KeyWritten};
use crate::topics::history::epochs::Epochs;
use crate::topics::history::policy::Position;
use crate::topics::mail::Mail;

/// Prefix for a keyed topic's name among the epochs, where topics with history have their own names.
const EPOCH_PREFIX: char = '\u{2}';

/// All threads' keyed topics.
#[derive(Debug)]
pub(crate) struct KeyedTable {
    topics: Mutex<TopicList>,
    pub(crate) config: KeyedConfig,
    pub(super) encode: Option<EncodeKeys>,
    log: Option<SharedKeyLog>,
    /// Another program has the keys.
    is_shared: bool,
    threads: usize,
    /// Threads that missed a notification, since their mailbox was full.
    overflowed: Box<[AtomicBool]>,
    bytes: AtomicUsize,
    keys: AtomicUsize,
    /// Bytes that each client's keys take. Locked for client writes only.
    shares: Mutex<HashMap<NonZeroU64, usize, RandomState>>,
    snapshots: Arc<SnapshotMemory>,
    counters: KeyedCounters,
}

/// Topics by name.
#[derive(Debug, Default)]
struct TopicList {
    /// Names are chosen by clients, so their hash is keyed.
    by_name: HashMap<Arc<str>, Arc<KeyedTopic>, RandomState>,
    /// The names in order, for lists.
    names: BTreeSet<Arc<str>>,
    /// A successor process has all topics' state.
    frozen: bool,
}

/// Counters for keyed topics; they only rise.
#[derive(Debug, Default)]
pub(crate) struct KeyedCounters {
    writes: AtomicU64,
    pub(super) lagged: AtomicU64,
}

/// Memory that keyed topics take, and what was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyedUse {
    pub(crate) topics: u64,
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    pub(crate) snapshot_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) lagged: u64,
}

/// Memory limit for the snapshots that subscribers read, as a multiple of the key limit: all topics' last snapshots
/// take one, and older ones, which keep replaced values, and encoded parts the other.
const SNAPSHOTS_FACTOR: usize = 2;

/// Threads by the mailboxes, and the topic epochs.
#[derive(Clone, Copy)]
pub(crate) struct Notifier<'a> {
    pub(crate) posts: &'a [Post<Mail>],
    pub(crate) epochs: &'a Epochs,
}

impl KeyedTable {
    /// Creates the table for this many threads.
    pub(crate) fn new(threads: usize, config: KeyedConfig, encode: Option<EncodeKeys>) -> Self {
        Self {
            topics: Mutex::default(),
            config,
            encode,
            log: None,
            is_shared: false,
            threads,
            overflowed: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            bytes: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            shares: Mutex::default(),
            snapshots: SnapshotMemory::new(config.total_bytes.saturating_mul(SNAPSHOTS_FACTOR)),
            counters: KeyedCounters::default(),
        }
    }

    /// Sets the log that stores the topics' keys.
    pub(crate) fn with_log(mut self, log: Option<SharedKeyLog>) -> Self {
        self.log = log;
        self
    }

    /// Sets whether another program has the topics' keys.
    pub(crate) fn with_shared(mut self, is_shared: bool) -> Self {
        self.is_shared = is_shared;
        self
    }

    fn lock(&self) -> MutexGuard<'_, TopicList> {
        self.topics.lock()
    }

    /// Returns the thread count.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn counters(&self) -> &KeyedCounters {
        &self.counters
    }

    pub(crate) fn usage(&self) -> KeyedUse {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KeyedUse {
            topics: self.lock().by_name.len() as u64,
            keys: self.keys.load(Ordering::Relaxed) as u64,
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
            snapshot_bytes: self.snapshots.bytes() as u64,
            writes: read(&self.counters.writes),
            lagged: read(&self.counters.lagged),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<KeyedTopic>> {
        self.lock().by_name.get(name).cloned()
    }

    /// Returns a topic, which is created if there is none.
    pub(super) fn find_or_create(&self, name: &str, epochs: &Epochs) -> Arc<KeyedTopic> {
        let mut topics = self.lock();
        if let Some(known) = topics.by_name.get(name) {
            return Arc::clone(known);
        }
        let home = topics.by_name.len() % self.threads.max(1);
        let log = self.log.as_ref().filter(|log| log.0.stores(name));
        let epoch = log.and_then(|log| log.0.epoch(name)).unwrap_or_else(|| epochs.epoch(&epoch_name(name)));
        let topic = Arc::new(KeyedTopic::new(name, epoch, self.threads, home, &self.snapshots));
        topic.lock().freeze(topics.frozen);
        if self.is_shared {
            topic.lock().set_role(KeyRole::NoReplica);
        }
        if log.is_some() {
            topic.lock().store();
        }
        topics.by_name.insert(topic.name.clone(), Arc::clone(&topic));
        topics.names.insert(topic.name.clone());
        topic
    }

    /// Changes a topic, which stays accounted for. Returns `None` if it was just removed.
    pub(super) fn change<T>(
        &self,
        topic: &KeyedTopic,
        change: impl FnOnce(&mut KeyedState) -> T,
    ) -> Option<T> {
        let mut state = topic.lock();
        if state.is_removed() {
            return None;
        }
        let before = (charge(&topic.name, &state), state.len());
        let result = change(&mut state);
        let after = (charge(&topic.name, &state), state.len());
        let shares = state.take_shares();
        drop(state);
        if !shares.is_empty() {
            self.change_shares(shares);
        }
        self.bytes.fetch_add(after.0.wrapping_sub(before.0), Ordering::Relaxed);
        self.keys.fetch_add(after.1.wrapping_sub(before.1), Ordering::Relaxed);
        Some(result)
    }

    /// Returns the bytes that a topic may grow by, if all topics may have this many bytes.
    pub(super) fn bytes_left(&self, total: usize, topic: &str, state: &KeyedState) -> usize {
        let first = if state.is_unused() { TOPIC_COST + topic.len() } else { 0 };
        total.saturating_sub(self.bytes.load(Ordering::Relaxed)).saturating_sub(first)
    }

    fn change_shares(&self, changes: ShareChanges) {
        let mut shares = self.shares.lock();
        for (client, bytes) in changes {
            let share = shares.entry(client).or_default();
            *share = share.saturating_add_signed(bytes);
            if *share == 0 {
                shares.remove(&client);
            }
        }
    }

    fn limits(&self, topic: &str, state: &KeyedState, client: Option<NonZeroU64>) -> WriteLimits {
        let share = |client| {
            let shares = self.shares.lock();
            shares.get(&client).copied().unwrap_or_default()
        };
        let client_left = self.config.client_bytes.saturating_sub(client.map_or(0, share));
        let left = self.bytes_left(self.config.total_bytes, topic, state);
        WriteLimits { config: self.config, left, client_left }
    }

    /// Writes a key, and notifies the threads with subscribers.
    pub(crate) fn write(
        &self,
        name: &str,
        write: &KeyWrite,
        notifier: Notifier<'_>,
    ) -> Result<KeyWritten, KeyError> {
        write.check(self.config.value_bytes)?;
        let now = Instant::now();
        loop {
            let topic = self.find_or_create(name, notifier.epochs);
            let applied = self.change(&topic, |state| {
                let before = state.position();
                let written = if state.is_stored() {
                    self.expire(name, state, now);
                    let limits = self.limits(name, state, write.client);
                    state.write_to_log(write, limits, now, &|change| self.append(name, change))
                } else {
                    state.write(write, self.limits(name, state, write.client), now)
                };
                (written, state.position() != before, state.ask())
            });
            let Some((written, has_changed, is_asked)) = applied else { continue };
            if written.is_ok_and(|written| written.changed && !written.repeated) {
                self.counters.writes.fetch_add(1, Ordering::Relaxed);
            }
            if has_changed {
                self.notify(&topic, notifier.posts);
            }
            if is_asked {
                self.post(&topic, topic.home, notifier.posts);
            } else if !has_changed {
                self.release(&topic, notifier.epochs);
            }
            return written;
        }
    }

    fn append(&self, topic: &str, change: &LoggedChange<'_>) -> Result<u64, KeyError> {
        let log = self.log.as_ref().ok_or(KeyError::Log(KeyLogError::NotReady))?;
        log.0.append(topic, change)
    }

    /// Removes expired keys, at once or through the log. Returns whether keys were removed.
    fn expire(&self, topic: &str, state: &mut KeyedState, now: Instant) -> bool {
        state.expire_to_log(now, &|change| self.append(topic, change));
        state.expire(now, self.config.keys)
    }

    /// Applies or drops a change that the log has stored or not, and notifies the threads with subscribers.
    pub(crate) fn complete(&self, name: &str, ticket: u64, is_stored: bool, notifier: Notifier<'_>) {
        let Some(topic) = self.find(name) else { return };
        let now = Instant::now();
        let completed = self.change(&topic, |state| {
            if is_stored {
                state.commit(ticket, now);
            } else {
                state.abort(ticket, now);
            }
            state.ask()
        });
        if is_stored {
            self.notify(&topic, notifier.posts);
        }
        if completed == Some(true) {
            self.post(&topic, topic.home, notifier.posts);
        }
    }

    /// Notifies each thread with subscribers that has no notification yet.
    pub(super) fn notify(&self, topic: &Arc<KeyedTopic>, posts: &[Post<Mail>]) {
        for (thread, interest) in topic.threads.iter().enumerate() {
            if interest.subscribers.load(Ordering::SeqCst) > 0
                && !interest.is_notified.swap(true, Ordering::SeqCst)
            {
                self.post(topic, thread, posts);
            }
        }
    }

    /// Asks the topic's thread to look at it.
    pub(super) fn ask_home(&self, topic: &Arc<KeyedTopic>, posts: &[Post<Mail>]) {
        self.post(topic, topic.home, posts);
    }

    fn post(&self, topic: &Arc<KeyedTopic>, thread: usize, posts: &[Post<Mail>]) {
        if posts[thread].send(Mail::Keyed(Arc::clone(topic))).is_err() {
            // The thread looks at all its topics when it has read its mailbox.
            self.overflowed[thread].store(true, Ordering::SeqCst);
            posts[thread].wake();
        }
    }

    /// Returns the topics that a thread has to look at, since it may have missed a notification.
    pub(super) fn take_missed(&self, thread: usize) -> Vec<Arc<KeyedTopic>> {
        let overflowed = &self.overflowed[thread];
        if !overflowed.load(Ordering::Relaxed) || !overflowed.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        let is_concerned = |topic: &&Arc<KeyedTopic>| {
            topic.home == thread || topic.threads[thread].subscribers.load(Ordering::Relaxed) > 0
        };
        self.lock().by_name.values().filter(is_concerned).cloned().collect()
    }

    /// Removes a topic without keys, subscribers and tombstones.
    pub(crate) fn release(&self, topic: &Arc<KeyedTopic>, epochs: &Epochs) {
        if topic.has_subscribers() {
            return;
        }
        topic.release_snapshot();
        let mut topics = self.lock();
        if !topics.by_name.get(&topic.name).is_some_and(|listed| Arc::ptr_eq(listed, topic)) {
            return;
        }
        let mut state = topic.lock();
        // A subscriber is counted before it locks the state.
        if !topic.has_subscribers() && state.remove_if_empty() {
            topics.by_name.remove(&topic.name);
            topics.names.remove(&topic.name);
            if state.had_changes() {
                epochs.advance(&epoch_name(&topic.name));
            }
        }
    }

    /// Returns keys with values after a key.
    pub(crate) fn page(
        &self,
        name: &str,
        after: Option<&str>,
        filter: Option<&str>,
        keys_max: usize,
        notifier: Notifier<'_>,
    ) -> KeyPage {
        let read = |state: &KeyedState| {
            let (keys, more) = state.page(after, filter, keys_max);
            KeyPage { position: state.position(), keys, more }
        };
        self.read(name, notifier, read).unwrap_or_else(|| {
            let position = Position { epoch: notifier.epochs.epoch(&epoch_name(name)), sequence: 0 };
            KeyPage { position, keys: Vec::new(), more: false }
        })
    }

    /// Returns a key with its value, and the position at the topic's last change.
    pub(crate) fn get(&self, name: &str, key: &str, notifier: Notifier<'_>) -> Option<(KeyChange, Position)> {
        self.read(name, notifier, |state| Some((state.get(key)?, state.position()))).flatten()
    }

    /// Reads a state after expired keys are removed.
    fn read<T>(&self, name: &str, notifier: Notifier<'_>, read: impl FnOnce(&KeyedState) -> T) -> Option<T> {
        let topic = self.find(name)?;
        let now = Instant::now();
        let (result, has_changed) = self.change(&topic, |state| {
            let has_changed = self.expire(name, state, now);
            (read(state), has_changed)
        })?;
        if has_changed {
            self.notify(&topic, notifier.posts);
        }
        Some(result)
    }

    /// Removes a topic's expired keys on its thread, at a planned time or since it was asked. Returns when to call this
    /// next.
    pub(super) fn maintain(
        &self,
        topic: &Arc<KeyedTopic>,
        planned: Option<Instant>,
        now: Instant,
        notifier: Notifier<'_>,
    ) -> Option<Instant> {
        let (has_changed, due) = self.change(topic, |state| {
            let has_changed = self.expire(&topic.name, state, now);
            let due = match planned {
                Some(planned) => state.rearm(planned),
                None => state.answer(),
            };
            (has_changed, due)
        })?;
        if has_changed {
            self.notify(topic, notifier.posts);
        }
        if planned.is_some() && due.is_none() {
            self.release(topic, notifier.epochs);
        }
        due
    }

    /// Exports all topics. There are no further changes until [`resume`](Self::resume).
    pub(crate) fn export(&self) -> Vec<KeyedSnapshot> {
        let now = Instant::now();
        let topics = self.freeze(true);
        let export = |topic: &Arc<KeyedTopic>| {
            let mut state = topic.lock();
            state.freeze(true);
            // The successor reads stored keys from the log.
            let is_exported = state.had_changes() && !state.is_stored();
            is_exported.then(|| state.export(&topic.name, now))
        };
        topics.iter().filter_map(export).collect()
    }

    /// Accepts writes again, after a successor has failed.
    pub(crate) fn resume(&self, posts: &[Post<Mail>]) {
        for topic in &self.freeze(false) {
            let is_asked = {
                let mut state = topic.lock();
                state.freeze(false);
                state.ask()
            };
            if is_asked {
                self.post(topic, topic.home, posts);
            }
        }
    }

    /// Sets whether later topics are frozen. Returns the others.
    fn freeze(&self, frozen: bool) -> Vec<Arc<KeyedTopic>> {
        let mut topics = self.lock();
        topics.frozen = frozen;
        topics.by_name.values().cloned().collect()
    }

    /// Restores a topic from another server. Returns whether it had no changes here, and how many keys exceed the
    /// limits.
    pub(crate) fn restore(&self, snapshot: KeyedSnapshot, notifier: Notifier<'_>) -> (bool, usize) {
        let now = Instant::now();
        loop {
            let topic = self.find_or_create(&snapshot.topic, notifier.epochs);
            let mut restored = (false, 0);
            let snapshot = snapshot.clone();
            let is_asked = self.change(&topic, |state| {
                if !state.had_changes() {
                    let limits = self.limits(&topic.name, state, None);
                    restored = (true, state.restore(snapshot, limits, now));
                }
                state.ask()
            });
            let Some(is_asked) = is_asked else { continue };
            if is_asked {
                self.post(&topic, topic.home, notifier.posts);
            }
            return restored;
        }
    }
}

/// Returns the bytes that count toward the memory limit. A topic with subscribers only has none: a connection's
/// subscriptions have their own limit, and must not displace keys.
fn charge(topic: &str, state: &KeyedState) -> usize {
    if state.is_unused() { 0 } else { TOPIC_COST + topic.len() + state.bytes() }
}

pub(crate) fn epoch_name(topic: &str) -> String {
    format!("{EPOCH_PREFIX}{topic}")
}

#[cfg(test)]
mod tests;
