//! State shared by threads: topic names, patterns, and subscriber counts by thread.

#![allow(clippy::mutable_key_type, reason = "the name of an entry, its key, does not change")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::config::TopicConfig;
use super::entry::{NamedEntry, TopicEntry};
use super::history::epochs::Epochs;
use super::history::log::{POSITION_TTL, TopicHistory};
use super::history::store::{HistoryStore, HistoryUse};
use super::index::NameIndex;
use super::keyed::config::KeyedConfig;
use super::keyed::table::{KeyedTable, KeyedUse};
use super::name::{self, InvalidTopic};
use super::observer::ObserverSlot;
use super::presence::table::PresenceTable;
use super::rule::{RuleId, TopicRules};
use super::trie::{TooManySteps, Trie};

/// All threads' topics.
#[derive(Debug)]
pub(crate) struct Directory {
    shards: usize,
    pub(super) rules: TopicRules,
    entries: Mutex<HashSet<NamedEntry>>,
    /// The names of the entries, in order; changed under the lock of the entries.
    pub(super) index: NameIndex,
    patterns: RwLock<Trie<Arc<TopicEntry>>>,
    /// Called under the lock of the entries or of the patterns.
    pub(super) observer: ObserverSlot,
    /// Counts changes of `patterns`: cached matches are valid while it is unchanged.
    generation: AtomicU64,
    /// Threads with queued publications.
    pub(super) backlogged: Box<[AtomicBool]>,
    /// Threads that read a message from the history, since their mailbox was full.
    pub(super) mailbox_overflowed: Box<[AtomicBool]>,
    pub(super) history_store: HistoryStore,
    pub(super) epochs: Epochs,
    pub(super) presence: PresenceTable,
    pub(super) keyed: KeyedTable,
}

impl Directory {
    #[cfg(test)]
    pub(crate) fn new(shards: usize, rules: TopicRules) -> Arc<Self> {
        let topics = TopicConfig::default().with_max_history_bytes(usize::MAX);
        let keyed = KeyedTable::new(shards, KeyedConfig::default(), None);
        Self::with_state(&topics, rules, PresenceTable::new(usize::MAX, None), keyed)
    }

    /// Creates a directory with these settings and rules, this presence, and these keyed topics, for their thread
    /// count.
    pub(crate) fn with_state(
        topics: &TopicConfig,
        rules: TopicRules,
        presence: PresenceTable,
        keyed: KeyedTable,
    ) -> Arc<Self> {
        let (shards, bytes) = (keyed.threads(), topics.max_history_bytes);
        Arc::new(Self { presence, keyed, ..Self::with_position_ttl(shards, rules, bytes, POSITION_TTL) })
    }

    pub(super) fn with_position_ttl(
        shards: usize,
        rules: TopicRules,
        bytes: usize,
        position_ttl: Duration,
    ) -> Self {
        let flags = || (0..shards).map(|_| AtomicBool::new(false)).collect();
        Self {
            shards,
            rules,
            entries: Mutex::default(),
            index: NameIndex::default(),
            patterns: RwLock::default(),
            observer: ObserverSlot::default(),
            generation: AtomicU64::new(0),
            backlogged: flags(),
            mailbox_overflowed: flags(),
            history_store: HistoryStore::new(bytes, position_ttl),
            epochs: Epochs::new(),
            presence: PresenceTable::new(usize::MAX, None),
            keyed: KeyedTable::new(shards, KeyedConfig::default(), None),
        }
    }

    /// Returns the entry for a topic or pattern that gets its first subscriber on a thread.
    ///
    /// # Errors
    /// [`InvalidTopic::TooAmbiguous`].
    pub(super) fn subscribe(&self, name: &str, shard: usize) -> Result<Arc<TopicEntry>, InvalidTopic> {
        if name::is_pattern(name) {
            return self.subscribe_pattern(name, shard);
        }
        let mut entries = self.lock();
        let entry = self.get_or_insert(&mut entries, name);
        // Counted under the lock, so that no other thread removes it meanwhile.
        entry.set_subscribers(shard, 1);
        self.observer.subscribed(&entry.name);
        Ok(entry)
    }

    fn get_or_insert(&self, entries: &mut HashSet<NamedEntry>, name: &str) -> Arc<TopicEntry> {
        if let Some(NamedEntry(entry)) = entries.get(name) {
            return entry.clone();
        }
        let entry = NamedEntry(self.new_entry(name));
        entries.insert(entry.clone());
        self.index.insert(entry.clone());
        entry.0
    }

    /// Returns the entry for a topic with history, with or without subscribers.
    pub(super) fn entry_with_history(&self, name: &str) -> Arc<TopicEntry> {
        self.get_or_insert(&mut self.lock(), name)
    }

    fn subscribe_pattern(&self, pattern: &str, shard: usize) -> Result<Arc<TopicEntry>, InvalidTopic> {
        let mut patterns = self.patterns.write();
        if let Some(entry) = patterns.get(pattern) {
            entry.set_subscribers(shard, 1);
            return Ok(entry.clone());
        }
        let entry = self.new_entry(pattern);
        entry.set_subscribers(shard, 1);
        patterns.insert(pattern, entry.clone()).map_err(|TooManySteps| InvalidTopic::TooAmbiguous)?;
        self.observer.subscribed(&entry.name);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(entry)
    }

    /// Creates an entry that is not listed.
    pub(super) fn new_entry(&self, name: &str) -> Arc<TopicEntry> {
        let policy = if name::is_pattern(name) { None } else { self.rules.history(name) };
        let history = policy.map(|policy| TopicHistory::new(*policy, self.epochs.epoch(name)));
        Arc::new(TopicEntry::new(name, self.shards, history))
    }

    /// Returns a topic's rule for slow subscribers. Publications use their topic's rule, regardless of the matching
    /// pattern.
    pub(super) fn rule_of(&self, name: &str) -> RuleId {
        if name::is_pattern(name) { RuleId::NONE } else { self.rules.slow(name) }
    }

    /// Returns the memory that all topic histories take.
    pub(crate) fn history_usage(&self) -> HistoryUse {
        self.history_store.usage()
    }

    /// Returns the memory that keyed topics take, and what was done.
    pub(crate) fn keyed_usage(&self) -> KeyedUse {
        self.keyed.usage()
    }

    /// Returns the member count over all topics, and the members' approximate memory.
    pub(crate) fn presence_usage(&self) -> (usize, usize) {
        self.presence.usage()
    }

    /// Returns the topics with history.
    pub(super) fn topics_with_history(&self) -> Vec<Arc<TopicEntry>> {
        let entries = self.lock();
        let all = entries.iter().map(|NamedEntry(entry)| entry);
        all.filter(|entry| entry.history().is_some()).cloned().collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<TopicEntry>> {
        self.lock().get(name).map(|NamedEntry(entry)| entry.clone())
    }

    /// Returns all threads' patterns that match a topic.
    pub(super) fn matching(&self, name: &str) -> Box<[Arc<TopicEntry>]> {
        if name::watched_topic(name).is_some() {
            return Box::default();
        }
        let patterns = self.patterns.read();
        let mut found = Vec::new();
        patterns.find(name, &mut |entry: &Arc<TopicEntry>| found.push(entry.clone()));
        found.into_boxed_slice()
    }

    /// Returns a number that is constant while [`matching`](Self::matching) has the same result; 0 before the first
    /// pattern.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn has_patterns(&self) -> bool {
        self.generation() > 0 && !self.patterns.read().is_empty()
    }

    /// Removes a topic or pattern without subscribers, unless it has retained messages.
    pub(super) fn release(&self, entry: &Arc<TopicEntry>) {
        if name::is_pattern(&entry.name) {
            return self.release_pattern(entry);
        }
        if !self.release_topic(entry) && entry.history().is_some() {
            self.note_deserted(entry);
        }
    }

    /// Removes a topic. Returns whether it is removed, now or before.
    pub(super) fn release_topic(&self, entry: &Arc<TopicEntry>) -> bool {
        let mut entries = self.lock();
        // Another thread may have removed it first, and a third created it anew.
        if !is_listed(&entries, entry) {
            return true;
        }
        if !entry.has_no_subscribers() {
            return false;
        }
        self.observer.unsubscribed(&entry.name);
        let had_messages = entry.history().map_or(Some(false), |history| {
            let mut ring = history.lock();
            ring.end(self.epochs.epoch(&entry.name), self.history_store.position_ttl)
                .then(|| ring.had_messages())
        });
        if let Some(had_messages) = had_messages {
            self.remove_entry(&mut entries, entry, had_messages);
        }
        had_messages.is_some()
    }

    /// Removes a topic from the list. If it had messages, the next topic with its name gets another epoch.
    pub(super) fn remove_entry(
        &self,
        entries: &mut HashSet<NamedEntry>,
        entry: &Arc<TopicEntry>,
        had_messages: bool,
    ) {
        if is_listed(entries, entry) {
            entries.remove(&*entry.name);
            self.index.remove(&entry.name);
            if had_messages {
                self.epochs.advance(&entry.name);
            }
        }
    }

    fn release_pattern(&self, entry: &Arc<TopicEntry>) {
        let mut patterns = self.patterns.write();
        let is_listed = patterns.get(&entry.name).is_some_and(|listed| Arc::ptr_eq(listed, entry));
        if is_listed && entry.has_no_subscribers() {
            patterns.remove(&entry.name);
            self.observer.unsubscribed(&entry.name);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether any thread has queued or unread publications.
    pub(super) fn is_any_backlogged(&self) -> bool {
        self.backlogged
            .iter()
            .chain(&self.mailbox_overflowed)
            .any(|backlogged| backlogged.load(Ordering::SeqCst))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashSet<NamedEntry>> {
        self.entries.lock()
    }
}

/// Returns whether an entry is the listed one with its name: another thread may have removed it, and a third created it
/// anew.
fn is_listed(entries: &HashSet<NamedEntry>, entry: &Arc<TopicEntry>) -> bool {
    entries.get(&*entry.name).is_some_and(|NamedEntry(listed)| Arc::ptr_eq(listed, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads remove a topic, and a third creates it anew in between.
    #[test]
    fn late_removal_leaves_a_new_topic_alone() {
        let directory = Directory::new(3, TopicRules::default());
        let old = directory.subscribe("t", 0).unwrap();
        assert!(Arc::ptr_eq(&old, &directory.subscribe("t", 1).unwrap()));
        (0..2).for_each(|thread| old.set_subscribers(thread, 0));
        directory.release(&old);
        assert!(directory.find("t").is_none());
        let new = directory.subscribe("t", 2).unwrap();
        directory.release(&old);
        assert!(directory.find("t").is_some_and(|found| Arc::ptr_eq(&found, &new)));
    }

    #[test]
    fn topic_with_subscribers_on_any_thread_stays() {
        let directory = Directory::new(2, TopicRules::default());
        let entry = directory.subscribe("t", 0).unwrap();
        directory.subscribe("t", 1).unwrap();
        entry.set_subscribers(0, 0);
        directory.release(&entry);
        assert!(directory.find("t").is_some());
    }
}
