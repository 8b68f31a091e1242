//! The histories of all topics: appended to and told of in one order, and bounded together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_engine::{ConnId, Post};
use sinews_session::Prepared;

use super::directory::{Audience, Directory, Entry};
use super::history::{History, KeptTopic, Log, Position};
use crate::mail::{Mail, Published};

/// What is kept of a topic, and how much of it.
#[derive(Debug)]
pub(crate) struct Keep {
    pub(super) limits: History,
    log: Mutex<Log>,
}

impl Keep {
    pub(super) fn new(limits: History) -> Self {
        Self { limits, log: Mutex::new(Log::new()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it if nothing is kept.
    pub(super) fn end(&self) -> bool {
        let mut log = self.lock();
        log.gone = log.is_over();
        log.gone
    }
}

/// The histories that hold something.
#[derive(Debug)]
pub(crate) struct Shelf {
    bytes_max: usize,
    bytes: AtomicUsize,
    entries: Mutex<VecDeque<Arc<Entry>>>,
}

impl Shelf {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: AtomicUsize::new(0), entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A history takes another number of bytes.
    fn account(&self, before: usize, after: usize) -> usize {
        let change = after.wrapping_sub(before);
        self.bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change)
    }
}

impl Directory {
    /// A history without what is too old.
    pub(super) fn fresh<'a>(&self, keep: &'a Keep) -> MutexGuard<'a, Log> {
        let mut log = keep.lock();
        let before = log.cost();
        log.trim(&keep.limits);
        self.shelf.account(before, log.cost());
        log
    }
}

/// A message is of another run of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherEpoch;

/// Who publishes a message that is kept.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) posts: &'a [Post<Mail>],
    /// The publisher, on its thread, if it does not get the message.
    pub(super) except: Option<(usize, ConnId)>,
}

impl Directory {
    /// Appends a message to a topic's history and tells every thread, the publisher's too, while the history is
    /// locked: so that each thread hears of all messages in their order. Answers how many subscriptions that reaches,
    /// and how many it does not.
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

    /// As [`publish_kept`](Self::publish_kept), for what another server has published. `Err` if the topic runs in
    /// another epoch here.
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
                // Nothing has been said of it here but that it is empty.
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

    /// Appends what `next` makes of a topic's history, if anything, and tells every thread.
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
                // It was forgotten just now; the next one is another.
                continue;
            }
            let before = log.cost();
            let (position, message) = next(&mut log)?;
            log.append(message.clone(), from.except, &keep.limits);
            let audience = Audience { name: &entry.name, exact: Some(&entry), patterns };
            let told = self.tell(audience, &message, position, from);
            let is_new = !std::mem::replace(&mut log.listed, true);
            let after = log.cost();
            drop(log);
            let total = self.shelf.account(before, after);
            self.look_after(is_new.then_some(&entry), total);
            return Some(told);
        }
    }

    /// Everything that is kept, and where each topic stands that anybody may come back to.
    pub(super) fn export(&self) -> Vec<KeptTopic> {
        let entries = self.kept();
        let kept = entries.iter().filter_map(|entry| Some((entry, entry.keep.as_ref()?)));
        kept.map(|(entry, keep)| self.fresh(keep).export(&entry.name)).collect()
    }

    /// Goes on with a topic. Answers whether it is kept here, and had not begun yet.
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
            log.listed = true;
            let after = log.cost();
            drop(log);
            let total = self.shelf.account(0, after);
            self.look_after(Some(&entry), total);
            return true;
        }
    }

    /// What follows comes behind this position. Answers whether the topic is kept.
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
                // Those who are subscribed to the topic itself get it from its history.
                let exact = audience.exact.map_or(0, |entry| entry.counts[shard].load(Ordering::Relaxed));
                self.missed[shard].store(true, Ordering::SeqCst);
                post.wake();
                reached += exact.min(count);
                lost += count - exact.min(count);
            }
        }
        (reached, lost)
    }

    /// Puts a history on the shelf, forgets others while all take too much, and looks whether one has become old.
    fn look_after(&self, new: Option<&Arc<Entry>>, mut total: usize) {
        let mut entries = self.shelf.lock();
        entries.extend(new.cloned());
        let mut looked_at = 0;
        while total > self.shelf.bytes_max || looked_at == 0 {
            let Some(entry) = entries.pop_front() else { return };
            let Some(keep) = &entry.keep else { continue };
            let mut log = keep.lock();
            let before = log.cost();
            if total > self.shelf.bytes_max {
                log.clear();
            } else {
                log.trim(&keep.limits);
            }
            let (after, is_empty) = (log.cost(), log.is_over());
            log.listed = !is_empty;
            drop(log);
            total = self.shelf.account(before, after);
            if is_empty {
                self.forget(&entry);
            } else {
                entries.push_back(entry);
            }
            looked_at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::KeptMessage;
    use super::super::rule::{Rules, TopicRule};
    use super::*;

    fn directory(history: History, bytes: usize) -> Arc<Directory> {
        Directory::with_history(2, Rules::new(vec![TopicRule::new("kept.*").with_history(history)]), bytes)
    }

    fn publish(directory: &Directory, name: &str, size: usize) -> Position {
        let mut at = None;
        let make = |position| {
            at = Some(position);
            Prepared::binary(vec![0; size])
        };
        directory.publish_kept(name, &[], make, Origin { posts: &[], except: None });
        at.expect("it is kept")
    }

    fn cost(directory: &Directory) -> usize {
        directory.shelf.bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn histories_of_many_topics_are_bounded_together() {
        let most = 100_000;
        let directory = directory(History::new(100), most);
        for number in 0..5_000 {
            publish(&directory, &format!("kept.{}", number % 700), number % 5_000);
            assert!(cost(&directory) <= most);
        }
        assert!(cost(&directory) > most / 2);
        let entries = directory.shelf.lock().len();
        assert!((10..400).contains(&entries), "{entries}");
        // What is counted is what is there, and nothing else is remembered.
        let kept: usize =
            directory.shelf.lock().iter().map(|entry| entry.keep.as_ref().unwrap().lock().cost()).sum();
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
    fn a_topic_that_was_forgotten_begins_another_run() {
        let directory = directory(History::new(10), 2_000);
        let first = publish(&directory, "kept.a", 10);
        assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
        assert_eq!(first.sequence, 1);
        publish(&directory, "kept.b", 1_900);
        let again = publish(&directory, "kept.a", 10);
        assert_eq!(again.sequence, 1);
        assert_ne!(again.epoch, first.epoch);
    }

    #[test]
    fn a_topic_with_subscribers_goes_on_counting_when_what_was_kept_is_forgotten() {
        let directory = directory(History::new(10), 2_000);
        let entry = directory.enter("kept.a", 0).unwrap();
        let first = publish(&directory, "kept.a", 10);
        publish(&directory, "kept.b", 1_900);
        assert!(entry.keep.as_ref().unwrap().lock().is_empty());
        assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
    }

    #[test]
    fn what_is_kept_outlives_its_subscribers() {
        let directory = directory(History::new(10), 2_000);
        let entry = directory.enter("kept.a", 0).unwrap();
        publish(&directory, "kept.a", 10);
        entry.counts[0].store(0, Ordering::Relaxed);
        directory.forget(&entry);
        assert!(directory.find("kept.a").is_some());
        let empty = directory.enter("kept.b", 0).unwrap();
        empty.counts[0].store(0, Ordering::Relaxed);
        directory.forget(&empty);
        assert!(directory.find("kept.b").is_none() && empty.keep.as_ref().unwrap().lock().gone);
    }

    #[test]
    fn old_messages_are_given_back_when_others_are_published() {
        let age = std::time::Duration::from_millis(1);
        let directory = directory(History::new(10).with_max_age(age), usize::MAX);
        publish(&directory, "kept.a", 10);
        while directory.find("kept.a").is_some() {
            publish(&directory, "kept.b", 10);
        }
    }

    fn sequences(directory: &Directory, name: &str) -> (Position, Vec<u64>) {
        let entry = directory.find(name).unwrap();
        let log = entry.keep.as_ref().unwrap().lock();
        (log.position(), log.from(0).map(|(sequence, ..)| sequence).collect())
    }

    #[test]
    fn another_directory_goes_on_where_the_first_stood() {
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
        assert_eq!(cost(&second), second.export().iter().map(|topic| topic.messages.len() * 266).sum());
        assert_eq!(publish(&second, "kept.a", 10), Position { sequence: 6, ..last });
        assert_eq!(publish(&second, "kept.b", 10), Position { sequence: 1, ..at }, "it was waited for");
        // What has begun is left alone, and what is not kept is not.
        assert!(exported.into_iter().all(|topic| !second.restore(topic)));
        let other = KeptTopic { name: "other".to_owned(), position: at, messages: Vec::new() };
        assert!(!second.restore(other));
        // More messages than there can have been.
        let message = KeptMessage { message: Prepared::text("x"), age: std::time::Duration::ZERO };
        let position = Position { epoch: 5, sequence: 1 };
        assert!(second.restore(KeptTopic {
            name: "kept.c".to_owned(),
            position,
            messages: vec![message; 3]
        }));
        assert_eq!(sequences(&second, "kept.c"), (position, vec![1]));
    }

    #[test]
    fn what_another_has_published_keeps_its_place() {
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
        assert_eq!(sequences(&directory, "kept.a").1, [9], "behind a gap it begins anew");
        assert_eq!(at(10, first.epoch ^ 1), Err(OtherEpoch));
        let message = Prepared::text("x");
        let position = Position { epoch: 5, sequence: 1 };
        let from = Origin { posts: &[], except: None };
        assert!(directory.publish_at("kept.b", &[], (position, &message), from).is_ok());
        assert_eq!(sequences(&directory, "kept.b"), (position, vec![1]), "it had not begun here");
        assert_eq!(publish(&directory, "kept.a", 10).sequence, 10);
    }
}
