//! Histories of all topics: appended to and published in the same order, with a common memory limit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Post};
use sinews_session::Prepared;

use super::directory::{Audience, Directory, Entry};
use super::eviction::{EvictionQueue, Slot};
use super::history::{History, KeptTopic, Log, Position};
use crate::mail::{Mail, Published};

/// Retained messages of a topic, and its history policy.
#[derive(Debug)]
pub(crate) struct Keep {
    pub(super) limits: History,
    log: Mutex<Log>,
    slot: Slot,
}

impl Keep {
    pub(super) fn new(limits: History, epoch: u64) -> Self {
        Self { limits, log: Mutex::new(Log::new(epoch)), slot: Slot::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Histories of all topics.
#[derive(Debug)]
pub(crate) struct Shelf {
    bytes_max: usize,
    pub(super) return_time: Duration,
    bytes: AtomicUsize,
    queue: Mutex<EvictionQueue>,
    evictions: Evictions,
}

/// Histories evicted by the common memory limit.
#[derive(Debug)]
struct Evictions {
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

impl Shelf {
    pub(super) fn new(bytes_max: usize, return_time: Duration) -> Self {
        let count = || AtomicU64::new(0);
        let evictions = Evictions {
            topics: count(),
            subscribed: count(),
            messages: count(),
            quiet_until: count(),
            begin: Instant::now(),
        };
        Self { bytes_max, return_time, bytes: AtomicUsize::new(0), queue: Mutex::default(), evictions }
    }

    fn lock(&self) -> MutexGuard<'_, EvictionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the accounted memory of a history.
    fn account(&self, before: usize, after: usize) -> usize {
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
    fn touch(&self, queue: &mut EvictionQueue, entry: &Arc<Entry>, keep: &Keep) -> usize {
        let is_new = queue.touch(entry, &keep.slot);
        self.account(0, if is_new { topic_cost(entry) } else { 0 })
    }

    /// Removes the history of a topic from the account.
    fn remove(&self, queue: &mut EvictionQueue, entry: &Entry, keep: &Keep) -> usize {
        let was_there = queue.remove(&keep.slot);
        self.account(if was_there { topic_cost(entry) } else { 0 }, 0)
    }
}

impl Evictions {
    fn count(&self, is_subscribed: bool, messages: u64) {
        self.topics.fetch_add(1, Ordering::Relaxed);
        self.subscribed.fetch_add(u64::from(is_subscribed), Ordering::Relaxed);
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }

    /// Logs evictions, at most once per interval.
    fn report(&self, max_history_bytes: usize) {
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
fn topic_cost(entry: &Entry) -> usize {
    TOPIC_COST + entry.name.len()
}

/// Overhead of a topic with a history beside its name and messages, in bytes.
const TOPIC_COST: usize = 512;

impl Directory {
    /// Locks a history after the removal of expired messages.
    pub(super) fn fresh<'a>(&self, keep: &'a Keep) -> MutexGuard<'a, Log> {
        let mut log = keep.lock();
        let before = log.cost();
        log.trim(&keep.limits);
        self.shelf.account(before, log.cost());
        log
    }
}

/// Error: a message belongs to another epoch of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherEpoch;

/// Publisher of a message of a topic with history.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) posts: &'a [Post<Mail>],
    /// The publisher and its thread, if the publisher is excluded.
    pub(super) except: Option<(usize, ConnId)>,
}

impl Directory {
    /// Appends a message to a topic's history and publishes it to every thread, the publisher's included, while the
    /// history is locked: so each thread gets all messages in order. Returns how many subscriptions are reached, and
    /// how many are not.
    pub(super) fn publish_kept(
        &self,
        name: &str,
        patterns: &[Arc<Entry>],
        make: impl FnOnce(Position) -> Prepared,
        from: Origin<'_>,
    ) -> Option<(usize, usize)> {
        self.append_to(name, patterns, from, |log| {
            let position = Position { epoch: log.epoch, sequence: log.next };
            Some((position, make(position)))
        })
    }

    /// Publishes as [`publish_kept`](Self::publish_kept) does, for a message of another server. `Err` if the topic
    /// has another epoch here.
    pub(super) fn publish_at(
        &self,
        name: &str,
        patterns: &[Arc<Entry>],
        (position, message): (Position, &Prepared),
        from: Origin<'_>,
    ) -> Result<(usize, usize), OtherEpoch> {
        let mut is_same = true;
        let told = self.append_to(name, patterns, from, |log| {
            if log.next == 1 {
                // No message of this epoch was published here.
                log.epoch = position.epoch;
            }
            is_same = log.epoch == position.epoch;
            if !is_same || position.sequence < log.next {
                return None;
            }
            log.skip_to(position.sequence);
            Some((position, message.clone()))
        });
        if is_same { Ok(told.unwrap_or_default()) } else { Err(OtherEpoch) }
    }

    /// Appends the message that `next` builds for a topic's history, if any, and publishes it to every thread.
    fn append_to(
        &self,
        name: &str,
        patterns: &[Arc<Entry>],
        from: Origin<'_>,
        next: impl FnOnce(&mut Log) -> Option<(Position, Prepared)>,
    ) -> Option<(usize, usize)> {
        loop {
            let entry = self.begin(name);
            let keep = entry.keep.as_ref()?;
            let mut log = keep.lock();
            if log.gone {
                // It was removed just now; retry with its replacement.
                continue;
            }
            let before = log.cost();
            let (position, message) = next(&mut log)?;
            log.append(message.clone(), from.except, &keep.limits);
            let audience = Audience { name: &entry.name, exact: Some(&entry), patterns };
            let told = self.tell(audience, &message, position, from);
            let after = log.cost();
            drop(log);
            self.shelf.account(before, after);
            self.look_after(&entry, keep);
            return Some(told);
        }
    }

    /// Exports all retained messages, and the position of each topic that a client may resume.
    pub(super) fn export(&self) -> Vec<KeptTopic> {
        let entries = self.kept();
        let kept = entries.iter().filter_map(|entry| Some((entry, entry.keep.as_ref()?)));
        kept.map(|(entry, keep)| self.fresh(keep).export(&entry.name)).collect()
    }

    /// Restores a topic. Returns whether it has history here, and had no publications yet.
    pub(super) fn restore(&self, topic: KeptTopic) -> bool {
        loop {
            let entry = self.begin(&topic.name);
            let Some(keep) = &entry.keep else { return false };
            let mut log = keep.lock();
            if log.gone {
                continue;
            }
            if log.next > 1 {
                return false;
            }
            log.go_on(topic, &keep.limits);
            // Its subscribers may resume from there.
            log.await_return(self.shelf.return_time);
            let after = log.cost();
            drop(log);
            self.shelf.account(0, after);
            self.look_after(&entry, keep);
            return true;
        }
    }

    /// Sets the position of the last message. Returns whether the topic has history.
    pub(super) fn go_on_behind(&self, name: &str, position: Position) -> bool {
        loop {
            let entry = self.begin(name);
            let Some(keep) = &entry.keep else { return false };
            let mut log = keep.lock();
            if log.gone {
                continue;
            }
            let before = log.cost();
            log.go_on_behind(position);
            let after = log.cost();
            drop(log);
            self.shelf.account(before, after);
            return true;
        }
    }

    fn tell(
        &self,
        audience: Audience<'_>,
        message: &Prepared,
        position: Position,
        from: Origin<'_>,
    ) -> (usize, usize) {
        let (mut reached, mut lost) = (0, 0);
        for (shard, post) in from.posts.iter().enumerate() {
            let count = audience.on(shard);
            if count == 0 {
                continue;
            }
            let mail = Mail::Publish(Published {
                topic: audience.name.clone(),
                message: message.clone(),
                position: Some(position),
                except: from.except.filter(|except| except.0 == shard).map(|except| except.1),
            });
            if post.send(mail).is_ok() {
                reached += count;
            } else if post.is_gone() {
                lost += count;
            } else {
                // Subscribers of the topic by name get it from its history.
                let exact = audience.exact.map_or(0, |entry| entry.counts[shard].load(Ordering::Relaxed));
                self.missed[shard].store(true, Ordering::SeqCst);
                post.wake();
                reached += exact.min(count);
                lost += count - exact.min(count);
            }
        }
        (reached, lost)
    }

    /// Moves a topic to the end of the eviction order, checks one topic for expiry, and evicts others while the
    /// memory limit is exceeded.
    fn look_after(&self, published: &Arc<Entry>, keep: &Keep) {
        let shelf = &self.shelf;
        let mut queue = shelf.lock();
        let mut total = shelf.touch(&mut queue, published, keep);
        if let Some(entry) = queue.next().filter(|entry| !Arc::ptr_eq(entry, published)) {
            total = self.expire(&mut queue, &entry);
        }
        let mut evicts = false;
        while total > shelf.bytes_max
            && let Some(entry) = queue.victim()
        {
            evicts = true;
            total = self.evict(&mut queue, &entry);
        }
        drop(queue);
        if evicts {
            shelf.evictions.report(shelf.bytes_max);
        }
    }

    /// Removes expired messages, and the topic if its subscribers do not return. Returns the memory of all histories.
    fn expire(&self, queue: &mut EvictionQueue, entry: &Arc<Entry>) -> usize {
        let Some(keep) = &entry.keep else { return self.shelf.account(0, 0) };
        let is_empty = self.fresh(keep).is_empty();
        if is_empty && self.forget_topic(entry) {
            return self.shelf.remove(queue, entry, keep);
        }
        self.shelf.account(0, 0)
    }

    /// Evicts all messages of a topic, and the topic if it has no subscribers. Returns the memory of all histories.
    fn evict(&self, queue: &mut EvictionQueue, entry: &Arc<Entry>) -> usize {
        let Some(keep) = &entry.keep else { return 0 };
        let mut entries = self.lock();
        let is_deserted = entry.is_deserted();
        let mut log = keep.lock();
        let before = log.cost();
        let messages = log.evict(is_deserted);
        let begun = log.has_begun();
        drop(log);
        if is_deserted {
            self.remove_entry(&mut entries, entry, begun);
        }
        drop(entries);
        if messages > 0 {
            self.shelf.evictions.count(!is_deserted, messages);
        }
        self.shelf.account(before, 0);
        self.shelf.remove(queue, entry, keep)
    }

    /// Handles the leave of the last subscriber of a topic that stays.
    pub(super) fn deserted(&self, entry: &Arc<Entry>) {
        if let Some(keep) = &entry.keep {
            self.shelf.touch(&mut self.shelf.lock(), entry, keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{KeptMessage, RETURN_TIME};
    use super::super::rule::{Rules, TopicRule};
    use super::*;

    fn directory(history: History, bytes: usize) -> Arc<Directory> {
        with_return_time(history, bytes, RETURN_TIME)
    }

    fn with_return_time(history: History, bytes: usize, return_time: Duration) -> Arc<Directory> {
        let rules = Rules::new(vec![TopicRule::new("kept.*").with_history(history)]);
        Directory::with_return_time(2, rules, bytes, return_time)
    }

    fn leave(directory: &Directory, entry: &Arc<Entry>) {
        entry.counts[0].store(0, Ordering::Relaxed);
        directory.forget(entry);
    }

    fn messages(directory: &Directory, name: &str) -> usize {
        directory.find(name).map_or(0, |entry| entry.keep.as_ref().unwrap().lock().from(0).count())
    }

    fn publish(directory: &Directory, name: &str, size: usize) -> Position {
        let mut at = None;
        let make = |position| {
            at = Some(position);
            Prepared::binary(vec![0; size])
        };
        directory.publish_kept(name, &[], make, Origin { posts: &[], except: None });
        at.expect("the topic has history")
    }

    fn cost(directory: &Directory) -> usize {
        directory.shelf.bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn histories_of_many_topics_share_a_memory_limit() {
        let most = 100_000;
        let directory = directory(History::new(100), most);
        for number in 0..5_000 {
            publish(&directory, &format!("kept.{}", number % 700), number % 5_000);
            assert!(cost(&directory) <= most);
        }
        assert!(cost(&directory) > most / 2);
        let entries = directory.shelf.lock().entries().count();
        assert!((10..400).contains(&entries), "{entries}");
        // The accounted memory is exact, and no removed topic is left over.
        let taken = |entry: &Arc<Entry>| topic_cost(entry) + entry.keep.as_ref().unwrap().lock().cost();
        let kept: usize = directory.shelf.lock().entries().map(taken).sum();
        assert_eq!(cost(&directory), kept);
        let found = (0..700).filter(|number| directory.find(&format!("kept.{number}")).is_some()).count();
        assert_eq!(found, entries);
        assert!(
            directory
                .publish_kept("other", &[], |_| unreachable!(), Origin { posts: &[], except: None })
                .is_none()
        );
    }

    #[test]
    fn topic_removed_with_messages_gets_another_epoch() {
        let directory = directory(History::new(10), 3_000);
        let first = publish(&directory, "kept.a", 10);
        assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
        assert_eq!(first.sequence, 1);
        publish(&directory, "kept.b", 1_900);
        let again = publish(&directory, "kept.a", 10);
        assert_eq!(again.sequence, 1);
        assert_ne!(again.epoch, first.epoch);
    }

    #[test]
    fn subscribed_topic_keeps_counting_after_its_messages_are_evicted() {
        let directory = directory(History::new(10), 3_000);
        let entry = directory.enter("kept.a", 0).unwrap();
        directory.enter("kept.b", 0).unwrap();
        let first = publish(&directory, "kept.a", 10);
        publish(&directory, "kept.b", 1_900);
        assert!(entry.keep.as_ref().unwrap().lock().is_empty());
        assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
    }

    #[test]
    fn history_outlives_its_subscribers() {
        let directory = directory(History::new(10), 2_000);
        let entry = directory.enter("kept.a", 0).unwrap();
        publish(&directory, "kept.a", 10);
        leave(&directory, &entry);
        assert!(directory.find("kept.a").is_some());
        let empty = directory.enter("kept.b", 0).unwrap();
        leave(&directory, &empty);
        assert!(directory.find("kept.b").is_none() && empty.keep.as_ref().unwrap().lock().gone);
    }

    #[test]
    fn expired_messages_are_freed_by_later_publications() {
        let history = History::new(10).with_max_age(Duration::from_millis(1));
        let directory = with_return_time(history, usize::MAX, Duration::ZERO);
        publish(&directory, "kept.a", 10);
        while directory.find("kept.a").is_some() {
            publish(&directory, "kept.b", 10);
        }
    }

    #[test]
    fn topics_with_subscribers_are_evicted_last() {
        let directory = directory(History::new(10), 100_000);
        let subscribed: Vec<_> =
            (0..20).map(|number| directory.enter(&format!("kept.s{number}"), 0).unwrap()).collect();
        let first: Vec<Position> =
            subscribed.iter().map(|entry| publish(&directory, &entry.name, 10)).collect();
        publish(&directory, "kept.unsubscribed", 10);
        for number in 0..2_000 {
            publish(&directory, &format!("kept.{number}"), 10);
            assert!(cost(&directory) <= 100_000);
        }
        assert_eq!(messages(&directory, "kept.unsubscribed"), 0);
        for (entry, first) in subscribed.iter().zip(first) {
            assert_eq!(publish(&directory, &entry.name, 10), Position { sequence: 2, ..first });
            assert_eq!(messages(&directory, &entry.name), 2);
        }
        let usage = directory.shelf.usage();
        assert!(usage.evicted > 1_800 && usage.evicted_subscribed == 0, "{usage:?}");
        // Their subscribers leave: of these topics, the one with the oldest last publication is the first.
        for entry in &subscribed[..5] {
            leave(&directory, entry);
        }
        publish(&directory, "kept.s0", 10);
        for number in 0..150 {
            publish(&directory, &format!("kept.{number}"), 10);
        }
        assert!(subscribed[1..5].iter().all(|entry| messages(&directory, &entry.name) == 0));
        assert!(subscribed[5..].iter().all(|entry| messages(&directory, &entry.name) == 2));
        // No other topic is left to evict.
        for number in 0..20 {
            publish(&directory, &format!("kept.s{number}"), 9_000);
        }
        let usage = directory.shelf.usage();
        assert!(usage.evicted_subscribed > 5 && usage.bytes <= 100_000, "{usage:?}");
    }

    #[test]
    fn topic_without_messages_needs_no_memory_and_keeps_its_position() {
        let (first, second) =
            (directory(History::new(10), usize::MAX), directory(History::new(10), usize::MAX));
        let position = |directory: &Directory, name: &str| {
            let entry = directory.enter(name, 0).unwrap();
            let position = entry.keep.as_ref().unwrap().lock().position();
            leave(directory, &entry);
            position
        };
        let at = position(&first, "kept.a");
        assert!(first.find("kept.a").is_none() && cost(&first) == 0);
        assert_eq!(position(&first, "kept.a"), at);
        assert_ne!(position(&second, "kept.a"), at);
        // A successor restores it, and epochs of removed topics.
        let tight = directory(History::new(10), 3_000);
        let forgotten = publish(&tight, "kept.b", 10);
        publish(&tight, "kept.c", 2_400);
        let (a, b) = (position(&tight, "kept.a"), position(&tight, "kept.b"));
        assert_ne!(b.epoch, forgotten.epoch);
        assert!(second.epochs.restore(&tight.epochs.export()));
        assert_eq!((position(&second, "kept.a"), position(&second, "kept.b")), (a, b));
    }

    #[test]
    fn topic_keeps_its_position_until_its_subscribers_had_time_to_return() {
        let age = Duration::from_millis(1);
        let expired = |directory: &Directory| {
            let entry = directory.enter("kept.a", 0).unwrap();
            let last = publish(directory, "kept.a", 10);
            while messages(directory, "kept.a") > 0 {
                drop(directory.fresh(entry.keep.as_ref().unwrap()));
            }
            leave(directory, &entry);
            last
        };
        let history = History::new(10).with_max_age(age);
        let patient = directory(history, usize::MAX);
        let last = expired(&patient);
        for _ in 0..100 {
            publish(&patient, "kept.b", 10);
        }
        assert_eq!(publish(&patient, "kept.a", 10), Position { sequence: 2, ..last });
        let hasty = with_return_time(history, usize::MAX, Duration::ZERO);
        let last = expired(&hasty);
        assert!(hasty.find("kept.a").is_none());
        let again = publish(&hasty, "kept.a", 10);
        assert!(again.sequence == 1 && again.epoch != last.epoch);
        // A topic without subscribers is evicted when others need memory.
        let tight = directory(history, 1_500);
        expired(&tight);
        publish(&tight, "kept.b", 700);
        assert!(tight.find("kept.a").is_none() && tight.shelf.usage().evicted == 0);
    }

    fn sequences(directory: &Directory, name: &str) -> (Position, Vec<u64>) {
        let entry = directory.find(name).unwrap();
        let log = entry.keep.as_ref().unwrap().lock();
        (log.position(), log.from(0).map(|(sequence, ..)| sequence).collect())
    }

    #[test]
    fn another_directory_continues_at_the_exported_positions() {
        let first = directory(History::new(3), usize::MAX);
        let last = [(); 5].map(|()| publish(&first, "kept.a", 10))[4];
        let empty = first.enter("kept.b", 0).unwrap();
        let at = empty.keep.as_ref().unwrap().lock().position();
        let exported = first.export();
        assert_eq!(exported.len(), 2);
        let second = directory(History::new(2), usize::MAX);
        for topic in exported.clone() {
            assert!(second.restore(topic));
        }
        assert_eq!(sequences(&second, "kept.a"), (last, vec![4, 5]));
        assert_eq!(sequences(&second, "kept.b"), (at, vec![]));
        let messages: usize = second.export().iter().map(|topic| topic.messages.len()).sum();
        assert_eq!(cost(&second), messages * 266 + 2 * (TOPIC_COST + "kept.a".len()));
        assert_eq!(publish(&second, "kept.a", 10), Position { sequence: 6, ..last });
        assert_eq!(publish(&second, "kept.b", 10), Position { sequence: 1, ..at }, "it was waited for");
        // A topic with publications is not restored, and neither is a topic without history.
        assert!(exported.into_iter().all(|topic| !second.restore(topic)));
        let other = KeptTopic { name: "other".to_owned(), position: at, messages: Vec::new() };
        assert!(!second.restore(other));
        // More messages than the sequence allows.
        let message = KeptMessage { message: Prepared::text("x"), age: Duration::ZERO };
        let position = Position { epoch: 5, sequence: 1 };
        assert!(second.restore(KeptTopic {
            name: "kept.c".to_owned(),
            position,
            messages: vec![message; 3]
        }));
        assert_eq!(sequences(&second, "kept.c"), (position, vec![1]));
    }

    #[test]
    fn publication_of_another_server_keeps_its_position() {
        let directory = directory(History::new(10), usize::MAX);
        let first = publish(&directory, "kept.a", 10);
        let at = |sequence, epoch| {
            let message = Prepared::text("x");
            let from = Origin { posts: &[], except: None };
            directory.publish_at("kept.a", &[], (Position { epoch, sequence }, &message), from)
        };
        assert!(at(2, first.epoch).is_ok() && at(3, first.epoch).is_ok());
        assert!(at(2, first.epoch).is_ok(), "it is there already");
        assert_eq!(sequences(&directory, "kept.a").1, [1, 2, 3]);
        assert!(at(9, first.epoch).is_ok());
        assert_eq!(sequences(&directory, "kept.a").1, [9], "the history restarts after a gap");
        assert_eq!(at(10, first.epoch ^ 1), Err(OtherEpoch));
        let message = Prepared::text("x");
        let position = Position { epoch: 5, sequence: 1 };
        let from = Origin { posts: &[], except: None };
        assert!(directory.publish_at("kept.b", &[], (position, &message), from).is_ok());
        assert_eq!(sequences(&directory, "kept.b"), (position, vec![1]), "it had not begun here");
        assert_eq!(publish(&directory, "kept.a", 10).sequence, 10);
    }
}
