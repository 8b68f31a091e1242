//! Topics with history: replay for late subscribers, and delivery in topic order.

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

/// Progress of a thread in a topic with history that has local subscribers by name.
#[derive(Debug)]
pub(super) struct Heard {
    epoch: u64,
    /// The last message taken from the mail; all earlier messages were taken, too.
    seen: u64,
    /// The last message before the first subscriber.
    floor: u64,
    /// First sequence of live delivery for each subscriber; [`LATER`] during its replay.
    pub(super) joined: FxHashMap<ConnId, u64>,
}

/// Replay of earlier messages to a subscriber.
#[derive(Debug)]
pub(crate) struct Replay {
    topic: usize,
    entry: Arc<Entry>,
    next: u64,
}

impl Heard {
    /// Handles a topic without messages that has taken the epoch of another server. Returns whether it has.
    #[cold]
    fn begin_anew(&mut self, entry: &Entry, epoch: u64) -> bool {
        let Some(keep) = &entry.keep else { return false };
        let log = keep.lock();
        if log.epoch != epoch {
            return false;
        }
        // Subscribers that get no message yet have no position of another epoch.
        self.joined.retain(|_, from| *from == LATER);
        (self.epoch, self.seen, self.floor) = (epoch, 0, log.first() - 1);
        true
    }
}

/// Not before the end of the replay.
const LATER: u64 = u64::MAX;

/// Messages taken from a history at a time, so that its publishers wait only briefly.
const REPLAY_STEP: usize = 16;

impl Topics {
    /// Subscribes to a topic from an earlier message on.
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
            // The subscription is counted: later publications reach this thread.
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

    /// Subscribes to a topic with history, without delivery yet.
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

    /// Handles the first subscription to a topic on this thread.
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

    /// Publishes to a topic, if it has history.
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
        // The message arrives by mail.
        self.mailed += 1;
        self.counters.published += 1;
        self.counters.lost += lost as u64;
        let own = except.zip(topic).map_or(0, |(conn, topic)| self.reaches(topic, conn));
        Some(reached.saturating_sub(own))
    }

    /// Returns whether to publish a message from the mail here. Missed earlier messages are published first.
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

    /// Publishes missed messages from the history of a topic, up to a sequence.
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

    /// Notes that the mailbox was read completely.
    pub(crate) fn mail_is_read(&mut self) {
        self.mailed = 0;
        let missed = &self.directory.missed[self.shard];
        if missed.load(Ordering::Relaxed) && missed.swap(false, Ordering::SeqCst) {
            let heard: Vec<usize> =
                self.topics.iter().filter(|(_, topic)| topic.heard.is_some()).map(|(at, _)| at).collect();
            heard.into_iter().for_each(|topic| self.catch_up_with(topic, u64::MAX));
        }
    }

    /// Returns whether a subscriber gets a message live, and not from the topic's history.
    pub(crate) fn has_joined(&self, topic: usize, sequence: u64, conn: ConnId) -> bool {
        let heard = self.topics.get(topic).and_then(|topic| topic.heard.as_ref());
        heard.and_then(|heard| heard.joined.get(&conn)).is_none_or(|from| *from <= sequence)
    }

    /// Removes subscribers that get a message from the history.
    pub(super) fn leave_to_history(&mut self, topic: usize, sequence: u64, subscribers: &mut Vec<ConnId>) {
        let heard = self.topics.get_mut(topic).and_then(|topic| topic.heard.as_mut());
        let Some(heard) = heard.filter(|heard| !heard.joined.is_empty()) else { return };
        subscribers.retain(|conn| heard.joined.get(conn).is_none_or(|from| *from <= sequence));
        // From here on these subscribers get all messages live.
        heard.joined.retain(|_, from| *from == LATER || *from > sequence + 1);
    }

    /// Continues a connection's replays, up to its high-water mark.
    pub(crate) fn replay(&mut self, backlog: &mut Backlog, tx: &mut Tx<'_>, conn: ConnId) {
        let mut replays = std::mem::take(&mut backlog.replays);
        replays.retain_mut(|replay| self.go_on_with(replay, backlog, tx, conn));
        backlog.replays = replays;
    }

    /// Continues a replay. Returns whether messages remain.
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
                // Later messages arrive live, and none of them was sent.
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

    /// Returns the position of the last message of a topic with history.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<Position> {
        let entry = self.directory.find(name)?;
        entry.keep.as_ref().map(|keep| keep.lock().position())
    }

    /// Returns the retained messages of a topic from a start on, each with its sequence; shared, not copied. Empty
    /// without history.
    #[must_use]
    pub fn history(&self, name: &str, start: Start) -> Vec<(u64, Prepared)> {
        let Some(entry) = self.directory.find(name) else { return Vec::new() };
        let Some(keep) = &entry.keep else { return Vec::new() };
        let log = self.directory.fresh(keep);
        let (first, _) = log.start(start);
        log.from(first).map(|(sequence, message, _)| (sequence, message.clone())).collect()
    }
}
