//! Topics that are kept: subscribers that come later, and messages in the order of their topic.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use sinews_engine::ConnId;
use sinews_session::{Prepared, Tx};

use super::backlog::{Backlog, DropReason};
use super::directory::Entry;
use super::history::{Joined, Position, Start};
use super::name::{self, InvalidTopic};
use super::shelf::Origin;
use super::{Publication, Topic, Topics};

/// What a thread has heard of a topic that is kept, since somebody is subscribed to it there by name.
#[derive(Debug)]
pub(super) struct Heard {
    epoch: u64,
    /// The last message that was taken from the mail, and those before it.
    seen: u64,
    /// The last message before the first subscriber.
    floor: u64,
    /// From which sequence on subscribers get what is published; those that are still getting older ones: none.
    pub(super) joined: FxHashMap<ConnId, u64>,
}

/// A subscriber that is getting what was published before it came.
#[derive(Debug)]
pub(crate) struct Replay {
    topic: usize,
    entry: Arc<Entry>,
    next: u64,
}

impl Heard {
    /// A topic that nothing had been published to has taken the epoch of another server. Answers whether it is so.
    #[cold]
    fn begin_anew(&mut self, entry: &Entry, epoch: u64) -> bool {
        let Some(keep) = &entry.keep else { return false };
        let log = keep.lock();
        if log.epoch != epoch {
            return false;
        }
        // Who gets nothing yet has no place that could be of another epoch.
        self.joined.retain(|_, from| *from == LATER);
        (self.epoch, self.seen, self.floor) = (epoch, 0, log.first() - 1);
        true
    }
}

/// Not before the replay has come to its end.
const LATER: u64 = u64::MAX;

/// Messages that are taken from a history at once, so that those who publish to it wait for little.
const REPLAY_STEP: usize = 16;

impl Topics {
    /// Subscribes to a topic from a message on that was published before.
    pub(crate) fn subscribe_from(
        &mut self,
        name: &str,
        start: Start,
        conn: ConnId,
        backlog: &mut Option<Box<Backlog>>,
    ) -> Result<Joined, InvalidTopic> {
        name::check_subscription(name)?;
        if name::is_pattern(name) || self.directory.rules.history(name).is_none() {
            return Err(InvalidTopic::NotKept);
        }
        self.subscribe(name, conn)?;
        let topic = *self.names.get(name).ok_or(InvalidTopic::NotKept)?;
        let entry = self.topics[topic].entry.clone();
        let keep = entry.keep.as_ref().ok_or(InvalidTopic::NotKept)?;
        let heard = self.topics[topic].heard.as_mut().ok_or(InvalidTopic::NotKept)?;
        let (next, joined) = {
            // The subscription is counted: what is published from here on will be heard of.
            let log = self.directory.fresh(keep);
            let (next, complete) = log.start(start);
            (next, Joined { position: log.position(), replayed: log.next - next, complete })
        };
        if heard.epoch != joined.position.epoch {
            heard.begin_anew(&entry, joined.position.epoch);
        }
        heard.joined.insert(conn, if joined.replayed > 0 { LATER } else { next });
        if let Some(backlog) = backlog {
            backlog.replays.retain(|replay| !Arc::ptr_eq(&replay.entry, &entry));
        }
        if joined.replayed > 0 {
            backlog.get_or_insert_default().replays.push(Replay { topic, entry, next });
        }
        Ok(joined)
    }

    /// Subscribes to a topic that is kept, and gets nothing of it yet.
    pub(crate) fn subscribe_later(
        &mut self,
        name: &str,
        conn: ConnId,
        backlog: &mut Option<Box<Backlog>>,
    ) -> Result<(), InvalidTopic> {
        name::check_subscription(name)?;
        if name::is_pattern(name) || self.directory.rules.history(name).is_none() {
            return Err(InvalidTopic::NotKept);
        }
        self.subscribe(name, conn)?;
        let topic = *self.names.get(name).ok_or(InvalidTopic::NotKept)?;
        let Topic { entry, heard, .. } = &mut self.topics[topic];
        heard.as_mut().ok_or(InvalidTopic::NotKept)?.joined.insert(conn, LATER);
        if let Some(backlog) = backlog {
            backlog.replays.retain(|replay| !Arc::ptr_eq(&replay.entry, entry));
        }
        Ok(())
    }

    /// Somebody has subscribed to a topic on this thread as the first.
    pub(super) fn begin_hearing(&mut self, topic: usize) {
        let topic = &mut self.topics[topic];
        topic.heard = topic.entry.keep.as_ref().map(|keep| {
            let mut log = keep.lock();
            log.subscribed();
            let position = log.position();
            let (epoch, floor) = (position.epoch, position.sequence);
            Box::new(Heard { epoch, seen: 0, floor, joined: FxHashMap::default() })
        });
    }

    /// Publishes to a topic that is kept, if this one is.
    pub(super) fn publish_kept(
        &mut self,
        topic: Option<usize>,
        name: &str,
        make: impl FnOnce(Position) -> Prepared,
        except: Option<ConnId>,
    ) -> Option<usize> {
        let patterns = match topic.and_then(|topic| self.topics.get(topic)?.route.as_ref()) {
            Some(route) => &*route.all,
            None => &[],
        };
        let from = Origin { posts: &self.posts, except: except.map(|conn| (self.shard, conn)) };
        let (reached, lost) = self.directory.publish_kept(name, patterns, make, from)?;
        self.published = true;
        // It will come by mail.
        self.mailed += 1;
        self.counters.published += 1;
        self.counters.lost += lost as u64;
        let own = except.zip(topic).map_or(0, |(conn, topic)| self.reaches(topic, conn));
        Some(reached.saturating_sub(own))
    }

    /// Whether a message that came by mail is to be published here. If others before it did not come, they come first.
    pub(super) fn hear(&mut self, topic: usize, position: Position) -> bool {
        let Topic { entry, heard, .. } = &mut self.topics[topic];
        let Some(heard) = heard else { return true };
        if heard.epoch != position.epoch && !heard.begin_anew(entry, position.epoch) {
            return false;
        }
        if position.sequence <= heard.seen {
            return false;
        }
        if position.sequence > heard.seen.max(heard.floor) + 1 {
            self.catch_up_with(topic, position.sequence);
        }
        if let Some(heard) = &mut self.topics[topic].heard {
            heard.seen = position.sequence;
        }
        true
    }

    /// Publishes here what is kept of a topic and did not come by mail, up to a sequence.
    fn catch_up_with(&mut self, topic: usize, end: u64) {
        let entry = self.topics[topic].entry.clone();
        let (Some(keep), Some(heard)) = (&entry.keep, &mut self.topics[topic].heard) else { return };
        let begin = heard.seen.max(heard.floor) + 1;
        let missing: Vec<Publication> = {
            let log = keep.lock();
            let end = end.min(log.next);
            heard.seen = heard.seen.max(end.saturating_sub(1));
            self.counters.forgotten += log.first().min(end).saturating_sub(begin);
            let missing = log.from(begin).take_while(|(sequence, ..)| *sequence < end);
            let publication = |(sequence, message, except): (u64, &Prepared, Option<(usize, ConnId)>)| {
                let except = except.filter(|except| except.0 == self.shard).map(|except| except.1);
                Publication { topic, message: message.clone(), except, sequence }
            };
            missing.map(publication).collect()
        };
        missing.into_iter().for_each(|publication| self.push(publication));
    }

    /// Everything in the mailbox was taken out.
    pub(crate) fn mail_is_read(&mut self) {
        self.mailed = 0;
        let missed = &self.directory.missed[self.shard];
        if missed.load(Ordering::Relaxed) && missed.swap(false, Ordering::SeqCst) {
            let heard: Vec<usize> =
                self.topics.iter().filter(|(_, topic)| topic.heard.is_some()).map(|(at, _)| at).collect();
            heard.into_iter().for_each(|topic| self.catch_up_with(topic, u64::MAX));
        }
    }

    /// Whether a subscriber gets a message of a topic that is kept, or will get it, or has got it, from its history.
    pub(crate) fn has_joined(&self, topic: usize, sequence: u64, conn: ConnId) -> bool {
        let heard = self.topics.get(topic).and_then(|topic| topic.heard.as_ref());
        heard.and_then(|heard| heard.joined.get(&conn)).is_none_or(|from| *from <= sequence)
    }

    /// Takes those off a list who get a message from the history.
    pub(super) fn leave_to_history(&mut self, topic: usize, sequence: u64, subscribers: &mut Vec<ConnId>) {
        let heard = self.topics.get_mut(topic).and_then(|topic| topic.heard.as_mut());
        let Some(heard) = heard.filter(|heard| !heard.joined.is_empty()) else { return };
        subscribers.retain(|conn| heard.joined.get(conn).is_none_or(|from| *from <= sequence));
        // From here on they get all of it.
        heard.joined.retain(|_, from| *from == LATER || *from > sequence + 1);
    }

    /// Sends on what a connection is getting of histories, until enough is on its way.
    pub(crate) fn replay(&mut self, backlog: &mut Backlog, tx: &mut Tx<'_>, conn: ConnId) {
        let mut replays = std::mem::take(&mut backlog.replays);
        replays.retain_mut(|replay| self.go_on_with(replay, backlog, tx, conn));
        backlog.replays = replays;
    }

    /// Answers whether there is more to come.
    fn go_on_with(
        &mut self,
        replay: &mut Replay,
        backlog: &mut Backlog,
        tx: &mut Tx<'_>,
        conn: ConnId,
    ) -> bool {
        let is_same = |topic: &Topic| Arc::ptr_eq(&topic.entry, &replay.entry);
        if !self.topics.get(replay.topic).is_some_and(is_same) || !self.stands_at(replay.topic, conn) {
            return false;
        }
        let Some(keep) = &replay.entry.keep else { return false };
        while tx.waiting() <= tx.config().high_water() {
            let step: Vec<(u64, Prepared)> = {
                let log = keep.lock();
                let forgotten = log.first().saturating_sub(replay.next);
                if forgotten > 0 {
                    let first = std::mem::replace(&mut replay.next, log.first());
                    self.counters.forgotten += forgotten;
                    let name = replay.entry.name.clone();
                    backlog.note(Some(name), DropReason::Forgotten, (forgotten, first));
                }
                let kept = log.from(replay.next).take(REPLAY_STEP);
                kept.map(|(sequence, message, _)| (sequence, message.clone())).collect()
            };
            if step.is_empty() {
                // What is not in the history yet will be heard of, and none of it was sent.
                if let Some(heard) = &mut self.topics[replay.topic].heard {
                    heard.joined.insert(conn, replay.next);
                }
                return false;
            }
            for (sequence, message) in step {
                if tx.waiting() > tx.config().high_water() {
                    break;
                }
                if tx.queue_prepared(&message, true).is_err() {
                    return false;
                }
                self.counters.delivered += 1;
                replay.next = sequence + 1;
            }
        }
        true
    }

    /// Where a topic that is kept stands: the position of its last message.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<Position> {
        let entry = self.directory.find(name)?;
        entry.keep.as_ref().map(|keep| keep.lock().position())
    }

    /// The messages of a topic that are kept, from a start on, each with its sequence; shared, not copied. Empty if
    /// nothing is kept.
    #[must_use]
    pub fn history(&self, name: &str, start: Start) -> Vec<(u64, Prepared)> {
        let Some(entry) = self.directory.find(name) else { return Vec::new() };
        let Some(keep) = &entry.keep else { return Vec::new() };
        let log = self.directory.fresh(keep);
        let (first, _) = log.start(start);
        log.from(first).map(|(sequence, message, _)| (sequence, message.clone())).collect()
    }
}
