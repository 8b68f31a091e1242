//! What threads share: the names of topics, the patterns, and how many subscribers of each are where.

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

/// The topics of all threads.
#[derive(Debug)]
pub(crate) struct Directory {
    shards: usize,
    pub(super) rules: Rules,
    entries: Mutex<HashMap<Arc<str>, Arc<Entry>>>,
    patterns: RwLock<Trie<Arc<Entry>>>,
    /// Counts the changes of `patterns`: what was found in it holds as long as this stands still.
    generation: AtomicU64,
    /// Threads on which publications wait.
    pub(super) behind: Box<[AtomicBool]>,
    /// Threads whose mailbox was too full for a message that is kept: they look for it themselves.
    pub(super) missed: Box<[AtomicBool]>,
    pub(super) shelf: Shelf,
    pub(super) epochs: Epochs,
}

/// A topic, or a pattern of topics.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) is_pattern: bool,
    /// What holds for its slow subscribers.
    pub(super) rule: RuleId,
    /// What is kept of it, if its rule keeps anything.
    pub(super) keep: Option<Box<Keep>>,
    /// Subscribers on all threads, if they are told.
    pub(super) present: Option<AtomicUsize>,
    /// Subscribers on each thread.
    pub(super) counts: Box<[AtomicUsize]>,
}

impl Directory {
    #[cfg(test)]
    pub(crate) fn new(shards: usize, rules: Rules) -> Arc<Self> {
        Self::with_history(shards, rules, usize::MAX)
    }

    /// A directory for so many threads, these rules, and so many bytes of histories.
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

    /// The entry of a topic or pattern that gets its first subscriber on a thread.
    ///
    /// # Errors
    /// [`InvalidTopic::TooAmbiguous`].
    pub(super) fn enter(&self, name: &str, shard: usize) -> Result<Arc<Entry>, InvalidTopic> {
        if name::is_pattern(name) {
            return self.enter_pattern(name, shard);
        }
        let mut entries = self.lock();
        let entry = self.listed(&mut entries, name);
        // Marked while the lock is held, so that nobody forgets it meanwhile.
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

    /// The entry of a topic that is kept, whoever is subscribed to it.
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

    /// An entry that nobody finds.
    pub(super) fn unlisted(&self, name: &str) -> Arc<Entry> {
        let counts = (0..self.shards).map(|_| AtomicUsize::new(0)).collect();
        let is_pattern = name::is_pattern(name);
        // That of a publication is that of its topic, whatever pattern it is heard by.
        let rule = if is_pattern { RuleId::NONE } else { self.rules.slow(name) };
        let history = if is_pattern { None } else { self.rules.history(name) };
        let keep = history.map(|limits| Box::new(Keep::new(*limits, self.epochs.of(name))));
        let present = (!is_pattern && self.rules.presence(name)).then(AtomicUsize::default);
        Arc::new(Entry { name: name.into(), is_pattern, rule, keep, present, counts })
    }

    /// What the histories of all topics take.
    pub(crate) fn history_usage(&self) -> HistoryUse {
        self.shelf.usage()
    }

    /// Topics that are kept.
    pub(super) fn kept(&self) -> Vec<Arc<Entry>> {
        self.lock().values().filter(|entry| entry.keep.is_some()).cloned().collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.lock().get(name).cloned()
    }

    /// The patterns of all threads that match a topic.
    pub(super) fn matching(&self, name: &str) -> Box<[Arc<Entry>]> {
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        patterns.find(name, &mut |entry: &Arc<Entry>| found.push(entry.clone()));
        found.into_boxed_slice()
    }

    /// Stands still as long as [`matching`](Self::matching) finds the same; 0 before the first pattern.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn has_patterns(&self) -> bool {
        self.generation() > 0 && !self.patterns.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Drops a topic or pattern without subscribers, unless messages are kept of it.
    pub(super) fn forget(&self, entry: &Arc<Entry>) {
        if entry.is_pattern {
            return self.forget_pattern(entry);
        }
        if !self.forget_topic(entry) && entry.keep.is_some() {
            self.deserted(entry);
        }
    }

    /// Answers whether it is forgotten, or was before.
    pub(super) fn forget_topic(&self, entry: &Arc<Entry>) -> bool {
        let mut entries = self.lock();
        // Another thread may have forgotten it first, and a third begun it anew.
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

    /// Takes a topic off the list. If messages were published, the next topic of its name is in another epoch.
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

    /// Whether publications wait on any thread, or have not come to it.
    pub(super) fn is_any_behind(&self) -> bool {
        self.behind.iter().chain(&self.missed).any(|behind| behind.load(Ordering::SeqCst))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Whether no connection is subscribed to it by its name.
    pub(super) fn is_deserted(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }
}

/// Whom a publication is for: the subscribers of a topic by its name, and by the patterns that match it.
#[derive(Clone, Copy)]
pub(super) struct Audience<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) exact: Option<&'a Entry>,
    pub(super) patterns: &'a [Arc<Entry>],
}

impl Audience<'_> {
    /// Subscriptions on a thread.
    pub(super) fn on(&self, shard: usize) -> usize {
        let entries = self.exact.into_iter().chain(self.patterns.iter().map(|entry| &**entry));
        entries.map(|entry| entry.counts[shard].load(Ordering::Relaxed)).sum()
    }

    /// Publishes to the threads that have subscribers, but for one. Answers how many of them it will reach,
    /// and how many it will not, since their thread's mailbox is full.
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

    /// Two threads forget a topic, and a third begins it anew in between.
    #[test]
    fn forgetting_late_leaves_a_new_topic_alone() {
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
    fn a_topic_with_subscribers_anywhere_is_kept() {
        let directory = Directory::new(2, Rules::default());
        let entry = directory.enter("t", 0).unwrap();
        directory.enter("t", 1).unwrap();
        entry.counts[0].store(0, Ordering::Relaxed);
        directory.forget(&entry);
        assert!(directory.find("t").is_some());
    }
}
