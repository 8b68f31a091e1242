//! State shared by threads: topic names, patterns, and subscriber counts by thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use sinews_engine::Post;
use sinews_session::Prepared;

use super::epochs::Epochs;
use super::history::RETURN_TIME;
use super::name::{self, InvalidTopic};
use super::rule::{RuleId, Rules};
use super::shelf::{HistoryUse, Keep, Shelf};
use super::trie::{TooManySteps, Trie};
use crate::mail::Mail;

/// Topics of all threads.
#[derive(Debug)]
pub(crate) struct Directory {
    shards: usize,
    pub(super) rules: Rules,
    entries: Mutex<HashMap<Arc<str>, Arc<Entry>>>,
    patterns: RwLock<Trie<Arc<Entry>>>,
    /// Counts changes of `patterns`: cached matches are valid while it is unchanged.
    generation: AtomicU64,
    /// Threads with queued publications.
    pub(super) behind: Box<[AtomicBool]>,
    /// Threads that read a message from the history, since their mailbox was full.
    pub(super) missed: Box<[AtomicBool]>,
    pub(super) shelf: Shelf,
    pub(super) epochs: Epochs,
}

/// Topic, or pattern of topics.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) is_pattern: bool,
    /// Its rule for slow subscribers.
    pub(super) rule: RuleId,
    /// Its history, if its rule has one.
    pub(super) keep: Option<Box<Keep>>,
    /// Number of subscribers on all threads, if presence is enabled.
    pub(super) present: Option<AtomicUsize>,
    /// Number of subscribers on each thread.
    pub(super) counts: Box<[AtomicUsize]>,
}

impl Directory {
    #[cfg(test)]
    pub(crate) fn new(shards: usize, rules: Rules) -> Arc<Self> {
        Self::with_history(shards, rules, usize::MAX)
    }

    /// Creates a directory for this number of threads, these rules, and this limit of histories in bytes.
    pub(crate) fn with_history(shards: usize, rules: Rules, bytes: usize) -> Arc<Self> {
        Self::with_return_time(shards, rules, bytes, RETURN_TIME)
    }

    pub(super) fn with_return_time(
        shards: usize,
        rules: Rules,
        bytes: usize,
        return_time: Duration,
    ) -> Arc<Self> {
        let flags = || (0..shards).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self {
            shards,
            rules,
            entries: Mutex::default(),
            patterns: RwLock::default(),
            generation: AtomicU64::new(0),
            behind: flags(),
            missed: flags(),
            shelf: Shelf::new(bytes, return_time),
            epochs: Epochs::new(),
        })
    }

    /// Returns the entry of a topic or pattern that gets its first subscriber on a thread.
    ///
    /// # Errors
    /// [`InvalidTopic::TooAmbiguous`].
    pub(super) fn enter(&self, name: &str, shard: usize) -> Result<Arc<Entry>, InvalidTopic> {
        if name::is_pattern(name) {
            return self.enter_pattern(name, shard);
        }
        let mut entries = self.lock();
        let entry = self.listed(&mut entries, name);
        // Counted under the lock, so that no other thread removes it meanwhile.
        entry.counts[shard].store(1, Ordering::Relaxed);
        Ok(entry)
    }

    fn listed(&self, entries: &mut HashMap<Arc<str>, Arc<Entry>>, name: &str) -> Arc<Entry> {
        if let Some(entry) = entries.get(name) {
            return entry.clone();
        }
        let entry = self.unlisted(name);
        entries.insert(entry.name.clone(), entry.clone());
        entry
    }

    /// Returns the entry of a topic with history, with or without subscribers.
    pub(super) fn begin(&self, name: &str) -> Arc<Entry> {
        self.listed(&mut self.lock(), name)
    }

    fn enter_pattern(&self, pattern: &str, shard: usize) -> Result<Arc<Entry>, InvalidTopic> {
        let mut patterns = self.patterns.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = patterns.get(pattern) {
            entry.counts[shard].store(1, Ordering::Relaxed);
            return Ok(entry.clone());
        }
        let entry = self.unlisted(pattern);
        entry.counts[shard].store(1, Ordering::Relaxed);
        patterns.insert(pattern, entry.clone()).map_err(|TooManySteps| InvalidTopic::TooAmbiguous)?;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(entry)
    }

    /// Creates an entry that is not listed.
    pub(super) fn unlisted(&self, name: &str) -> Arc<Entry> {
        let counts = (0..self.shards).map(|_| AtomicUsize::new(0)).collect();
        let is_pattern = name::is_pattern(name);
        // Publications use the rule of their topic, regardless of the matching pattern.
        let rule = if is_pattern { RuleId::NONE } else { self.rules.slow(name) };
        let history = if is_pattern { None } else { self.rules.history(name) };
        let keep = history.map(|limits| Box::new(Keep::new(*limits, self.epochs.of(name))));
        let present = (!is_pattern && self.rules.presence(name)).then(AtomicUsize::default);
        Arc::new(Entry { name: name.into(), is_pattern, rule, keep, present, counts })
    }

    /// Returns the memory of all topic histories.
    pub(crate) fn history_usage(&self) -> HistoryUse {
        self.shelf.usage()
    }

    /// Returns the topics with history.
    pub(super) fn kept(&self) -> Vec<Arc<Entry>> {
        self.lock().values().filter(|entry| entry.keep.is_some()).cloned().collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.lock().get(name).cloned()
    }

    /// Returns the patterns of all threads that match a topic.
    pub(super) fn matching(&self, name: &str) -> Box<[Arc<Entry>]> {
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        patterns.find(name, &mut |entry: &Arc<Entry>| found.push(entry.clone()));
        found.into_boxed_slice()
    }

    /// Returns a number that is constant while [`matching`](Self::matching) has the same result; 0 before the first
    /// pattern.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn has_patterns(&self) -> bool {
        self.generation() > 0 && !self.patterns.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Removes a topic or pattern without subscribers, unless it has retained messages.
    pub(super) fn forget(&self, entry: &Arc<Entry>) {
        if entry.is_pattern {
            return self.forget_pattern(entry);
        }
        if !self.forget_topic(entry) && entry.keep.is_some() {
            self.deserted(entry);
        }
    }

    /// Removes a topic. Returns whether it is removed, now or before.
    pub(super) fn forget_topic(&self, entry: &Arc<Entry>) -> bool {
        let mut entries = self.lock();
        // Another thread may have removed it first, and a third created it anew.
        if !entries.get(&entry.name).is_some_and(|listed| Arc::ptr_eq(listed, entry)) {
            return true;
        }
        if !entry.is_deserted() {
            return false;
        }
        let begun = entry.keep.as_ref().map_or(Some(false), |keep| {
            let mut log = keep.lock();
            log.end(self.epochs.of(&entry.name), self.shelf.return_time).then(|| log.has_begun())
        });
        if let Some(begun) = begun {
            self.remove_entry(&mut entries, entry, begun);
        }
        begun.is_some()
    }

    /// Removes a topic from the list. If it had messages, the next topic of its name gets another epoch.
    pub(super) fn remove_entry(
        &self,
        entries: &mut HashMap<Arc<str>, Arc<Entry>>,
        entry: &Arc<Entry>,
        begun: bool,
    ) {
        if entries.get(&entry.name).is_some_and(|listed| Arc::ptr_eq(listed, entry)) {
            entries.remove(&entry.name);
            if begun {
                self.epochs.begin_anew(&entry.name);
            }
        }
    }

    fn forget_pattern(&self, entry: &Arc<Entry>) {
        let mut patterns = self.patterns.write().unwrap_or_else(PoisonError::into_inner);
        let is_listed = patterns.get(&entry.name).is_some_and(|listed| Arc::ptr_eq(listed, entry));
        if is_listed && entry.is_deserted() {
            patterns.remove(&entry.name);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether any thread has queued or unread publications.
    pub(super) fn is_any_behind(&self) -> bool {
        self.behind.iter().chain(&self.missed).any(|behind| behind.load(Ordering::SeqCst))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Returns whether no connection is subscribed to it by name.
    pub(super) fn is_deserted(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }
}

/// Recipients of a publication: the subscribers of a topic by name, and by matching patterns.
#[derive(Clone, Copy)]
pub(super) struct Audience<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) exact: Option<&'a Entry>,
    pub(super) patterns: &'a [Arc<Entry>],
}

impl Audience<'_> {
    /// Returns the number of subscriptions on a thread.
    pub(super) fn on(&self, shard: usize) -> usize {
        let entries = self.exact.into_iter().chain(self.patterns.iter().map(|entry| &**entry));
        entries.map(|entry| entry.counts[shard].load(Ordering::Relaxed)).sum()
    }

    /// Publishes to the threads with subscribers, except one thread. Returns how many subscriptions are reached, and
    /// how many are not, since their thread's mailbox is full.
    pub(super) fn post(
        &self,
        message: &Prepared,
        posts: &[Post<Mail>],
        except: Option<usize>,
    ) -> (usize, usize) {
        let (mut reached, mut lost) = (0, 0);
        for (shard, post) in posts.iter().enumerate() {
            if Some(shard) == except {
                continue;
            }
            let count = self.on(shard);
            if count == 0 {
                continue;
            }
            match post.send(Mail::publish(self.name, message)) {
                Ok(()) => reached += count,
                Err(_) => lost += count,
            }
        }
        (reached, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads remove a topic, and a third creates it anew in between.
    #[test]
    fn late_removal_leaves_a_new_topic_alone() {
        let directory = Directory::new(3, Rules::default());
        let old = directory.enter("t", 0).unwrap();
        assert!(Arc::ptr_eq(&old, &directory.enter("t", 1).unwrap()));
        for count in &old.counts {
            count.store(0, Ordering::Relaxed);
        }
        directory.forget(&old);
        assert!(directory.find("t").is_none());
        let new = directory.enter("t", 2).unwrap();
        directory.forget(&old);
        assert!(directory.find("t").is_some_and(|found| Arc::ptr_eq(&found, &new)));
    }

    #[test]
    fn topic_with_subscribers_on_any_thread_stays() {
        let directory = Directory::new(2, Rules::default());
        let entry = directory.enter("t", 0).unwrap();
        directory.enter("t", 1).unwrap();
        entry.counts[0].store(0, Ordering::Relaxed);
        directory.forget(&entry);
        assert!(directory.find("t").is_some());
    }
}
