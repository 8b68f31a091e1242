//! The histories of all topics: appended to and told of in one order, and bounded together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_engine::{ConnId, Post};
use sinews_session::Prepared;

use super::directory::{Audience, Directory, Entry};
use super::history::{History, Log, Position};
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
        log.gone = log.is_empty();
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
        loop {
            let entry = self.begin(name);
            let keep = entry.keep.as_ref()?;
            let mut log = keep.lock();
            if log.gone {
                // It was forgotten just now; the next one is another.
                continue;
            }
            let before = log.cost();
            let position = Position { epoch: log.epoch, sequence: log.next };
            let message = make(position);
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
            let (after, is_empty) = (log.cost(), log.is_empty());
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
        let entry = directory.enter("kept.a", 0);
        let first = publish(&directory, "kept.a", 10);
        publish(&directory, "kept.b", 1_900);
        assert!(entry.keep.as_ref().unwrap().lock().is_empty());
        assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
    }

    #[test]
    fn what_is_kept_outlives_its_subscribers() {
        let directory = directory(History::new(10), 2_000);
        let entry = directory.enter("kept.a", 0);
        publish(&directory, "kept.a", 10);
        entry.counts[0].store(0, Ordering::Relaxed);
        directory.forget(&entry);
        assert!(directory.find("kept.a").is_some());
        let empty = directory.enter("kept.b", 0);
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
}
