//! Topics with history: replay for late subscribers, and delivery in topic order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use sinews_engine::ConnId;
use sinews_session::{Prepared, Tx};

use super::append::{EpochMismatch, HistoryPlace, PublishOrigin};
use super::policy::{HistoryPage, HistoryQuery, Position, QuerySide, ReplayFrom, Subscribed};
use super::progress::{NOT_LIVE, Replay, TopicProgress};
use crate::topics::directory::Directory;
use crate::topics::entry::{Reach, TopicEntry};
use crate::topics::name::{self, InvalidTopic};
use crate::topics::registry::{QueuedPublication, Topic, Topics};
use crate::topics::subscriber_id::SubscriberId;
use crate::topics::throttle::backlog::{Backlog, DropReason};

/// Messages taken from a history at a time, so that its publishers wait only briefly.
const REPLAY_STEP: usize = 16;

impl Topics {
    /// Subscribes to a topic from an earlier message on.
    pub(crate) fn subscribe_from(
        &mut self,
        name: &str,
        start: ReplayFrom,
        conn: ConnId,
        backlog: &mut Option<Box<Backlog>>,
    ) -> Result<Subscribed, InvalidTopic> {
        name::check_subscription(name)?;
        if name::is_pattern(name) || self.directory.rules.history(name).is_none() {
            return Err(InvalidTopic::NoHistory);
        }
        self.subscribe(name, conn)?;
        let topic = self.index_of(name).ok_or(InvalidTopic::NoHistory)?;
        let entry = self.topics[topic].entry.clone();
        let history = entry.history().ok_or(InvalidTopic::NoHistory)?;
        let progress = self.topics[topic].progress_mut().ok_or(InvalidTopic::NoHistory)?;
        let (next, joined) = {
            // The subscription is counted: later publications reach this thread.
            let ring = self.directory.lock_trimmed(history);
            let (next, complete) = ring.start(start);
            (next, Subscribed { position: ring.position(), replayed: ring.count_from(next), complete })
        };
        if progress.epoch != joined.position.epoch {
            progress.advance_epoch(&entry, joined.position.epoch);
        }
        progress.joined.insert(conn, if joined.replayed > 0 { NOT_LIVE } else { next });
        if let Some(backlog) = backlog {
            backlog.replays.retain(|replay| !Arc::ptr_eq(&replay.entry, &entry));
        }
        if joined.replayed > 0 {
            backlog.get_or_insert_default().replays.push(Replay { topic, entry, next });
        }
        Ok(joined)
    }

    /// Subscribes to a topic with history, without delivery yet.
    pub(crate) fn subscribe_paused(
        &mut self,
        name: &str,
        conn: ConnId,
        backlog: &mut Option<Box<Backlog>>,
    ) -> Result<(), InvalidTopic> {
        name::check_subscription(name)?;
        if name::is_pattern(name) || self.directory.rules.history(name).is_none() {
            return Err(InvalidTopic::NoHistory);
        }
        self.subscribe(name, conn)?;
        let topic = self.index_of(name).ok_or(InvalidTopic::NoHistory)?;
        let (entry, progress) = self.topics[topic].entry_and_progress();
        progress.ok_or(InvalidTopic::NoHistory)?.joined.insert(conn, NOT_LIVE);
        if let Some(backlog) = backlog {
            backlog.replays.retain(|replay| !Arc::ptr_eq(&replay.entry, entry));
        }
        Ok(())
    }

    /// Handles the first subscription to a topic on this thread.
    pub(crate) fn start_progress(&mut self, topic: usize) {
        let topic = &mut self.topics[topic];
        let progress = topic.entry.history().map(|history| {
            let mut ring = history.lock();
            ring.subscribed();
            let position = ring.position();
            let (epoch, floor) = (position.epoch, position.sequence);
            TopicProgress { epoch, seen: 0, floor, joined: FxHashMap::default() }
        });
        topic.set_progress(progress);
    }

    /// Appends a message to the history of a topic, and publishes it. Returns the number of matching subscriptions.
    pub(crate) fn append(
        &mut self,
        topic: Option<usize>,
        name: &str,
        make: impl FnOnce(Position) -> Prepared,
        except: Option<SubscriberId>,
    ) -> usize {
        let from = PublishOrigin { posts: &self.posts, except };
        let counts = self.directory.append(name, self.patterns(topic), make, from);
        self.count_appended(topic, except, counts.unwrap_or_default())
    }

    /// Appends as [`append`](Self::append) does, a message of another server at its position. `Err` if the topic has no
    /// history here, or another epoch.
    pub(crate) fn append_at(
        &mut self,
        topic: Option<usize>,
        name: &str,
        place: HistoryPlace,
        message: &Prepared,
        except: Option<SubscriberId>,
    ) -> Result<usize, EpochMismatch> {
        if !self.has_history(topic, name) {
            return Err(EpochMismatch);
        }
        let from = PublishOrigin { posts: &self.posts, except };
        let counts = self.directory.append_at(name, self.patterns(topic), place, message, from)?;
        Ok(self.count_appended(topic, except, counts))
    }

    /// The patterns with subscribers on any thread that match a topic.
    fn patterns(&self, topic: Option<usize>) -> &[Arc<TopicEntry>] {
        let route = topic.and_then(|topic| self.topics.get(topic)?.route());
        route.map_or(&[], |route| &route.all)
    }

    /// Counts a publication. Returns the number of reached subscriptions without those of an exception.
    fn count_appended(&mut self, topic: Option<usize>, except: Option<SubscriberId>, counts: Reach) -> usize {
        self.note_mailed();
        self.counters.published += 1;
        self.counters.lost += counts.lost as u64;
        counts.reached.saturating_sub(self.own_subscriptions(topic, except))
    }

    /// Returns whether to publish a message from the mail here. Missed earlier messages are published first.
    pub(crate) fn accept_from_mail(&mut self, topic: usize, position: Position, prev: u64) -> bool {
        let (entry, progress) = self.topics[topic].entry_and_progress();
        let Some(progress) = progress else { return true };
        if progress.epoch != position.epoch && !progress.advance_epoch(entry, position.epoch) {
            return false;
        }
        if position.sequence <= progress.seen {
            return false;
        }
        if prev > progress.seen.max(progress.floor) {
            self.replay_missed(topic, position.sequence);
        }
        if let Some(progress) = self.topics[topic].progress_mut() {
            progress.seen = position.sequence;
        }
        true
    }

    /// Publishes missed messages from the history of a topic, up to a sequence.
    fn replay_missed(&mut self, topic: usize, end: u64) {
        let entry = self.topics[topic].entry.clone();
        let (Some(history), Some(progress)) = (entry.history(), self.topics[topic].progress_mut()) else {
            return;
        };
        let begin = progress.seen.max(progress.floor) + 1;
        let missing: Vec<QueuedPublication> = {
            let ring = history.lock();
            let end = end.min(ring.next);
            progress.seen = progress.seen.max(end.saturating_sub(1));
            self.counters.expired += ring.removed_between(begin, end);
            let missing = ring.from(begin).take_while(|(sequence, ..)| *sequence < end);
            let publication = |(sequence, message, except): (u64, &Prepared, Option<SubscriberId>)| {
                let except = except.and_then(|except| except.on_thread(self.shard));
                QueuedPublication { topic, message: message.clone(), except, sequence }
            };
            missing.map(publication).collect()
        };
        missing.into_iter().for_each(|publication| self.push(publication));
    }

    /// Notes that the mailbox was read completely.
    pub(crate) fn note_mail_read(&mut self) {
        self.mailed = 0;
        let mailbox_overflowed = &self.directory.mailbox_overflowed[self.shard];
        if mailbox_overflowed.load(Ordering::Relaxed) && mailbox_overflowed.swap(false, Ordering::SeqCst) {
            let progress: Vec<usize> = self
                .topics
                .iter()
                .filter(|(_, topic)| topic.progress().is_some())
                .map(|(at, _)| at)
                .collect();
            progress.into_iter().for_each(|topic| self.replay_missed(topic, u64::MAX));
        }
    }

    /// Returns whether a subscriber gets a message live, and not from the topic's history.
    pub(crate) fn is_live(&self, topic: usize, sequence: u64, conn: ConnId) -> bool {
        let progress = self.topics.get(topic).and_then(Topic::progress);
        progress.and_then(|progress| progress.joined.get(&conn)).is_none_or(|from| *from <= sequence)
    }

    /// Removes subscribers that get a message from the history.
    pub(crate) fn exclude_replaying(&mut self, topic: usize, sequence: u64, subscribers: &mut Vec<ConnId>) {
        let Some(topic) = self.topics.get_mut(topic) else { return };
        let progress = topic.progress_mut().filter(|progress| !progress.joined.is_empty());
        let Some(progress) = progress else { return };
        subscribers.retain(|conn| progress.joined.get(conn).is_none_or(|from| *from <= sequence));
        // From here on these subscribers get all messages live.
        progress.joined.retain(|_, from| *from == NOT_LIVE || *from > sequence + 1);
        if progress.joined.is_empty() {
            progress.joined = FxHashMap::default();
            if topic.entry.history().is_none() {
                // Without a history, only late subscribers have a progress.
                topic.set_progress(None);
            }
        }
    }

    /// Continues a connection's replays, up to its high-water mark.
    pub(crate) fn replay(&mut self, backlog: &mut Backlog, tx: &mut Tx<'_>, conn: ConnId) {
        let mut replays = std::mem::take(&mut backlog.replays);
        replays.retain_mut(|replay| self.continue_replay(replay, backlog, tx, conn));
        backlog.replays = replays;
    }

    /// Continues a replay. Returns whether messages remain.
    fn continue_replay(
        &mut self,
        replay: &mut Replay,
        backlog: &mut Backlog,
        tx: &mut Tx<'_>,
        conn: ConnId,
    ) -> bool {
        let is_same = |topic: &Topic| Arc::ptr_eq(&topic.entry, &replay.entry);
        if !self.topics.get(replay.topic).is_some_and(is_same)
            || !self.is_subscribed_by_name(replay.topic, conn)
        {
            return false;
        }
        let Some(history) = replay.entry.history() else { return false };
        while tx.waiting() <= tx.config().high_water() {
            let step: Vec<(u64, Prepared)> = {
                let ring = history.lock();
                let expired = ring.removed_between(replay.next, u64::MAX);
                if expired > 0 {
                    let first = std::mem::replace(&mut replay.next, ring.first());
                    self.counters.expired += expired;
                    let name = replay.entry.name.clone();
                    backlog.note_drop(Some(name), DropReason::Expired, expired, first);
                }
                let kept = ring.from(replay.next).take(REPLAY_STEP);
                kept.map(|(sequence, message, _)| (sequence, message.clone())).collect()
            };
            if step.is_empty() {
                // Later messages arrive live, and none of them was sent.
                if let Some(progress) = self.topics[replay.topic].progress_mut() {
                    progress.joined.insert(conn, replay.next);
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
        entry.history().map(|history| history.lock().position())
    }

    /// Returns the messages of a topic behind a position, each with its sequence; `None` if some are missing.
    #[must_use]
    pub fn history_after(&self, name: &str, after: Position) -> Option<Vec<(u64, Prepared)>> {
        let entry = self.directory.find(name)?;
        let ring = self.directory.lock_trimmed(entry.history()?);
        let (first, is_complete) = ring.start(ReplayFrom::After(after));
        let messages =
            || ring.from(first).map(|(sequence, message, _)| (sequence, message.clone())).collect();
        is_complete.then(messages)
    }

    /// Returns a part of the retained messages of a topic; empty without history.
    #[must_use]
    pub fn history_page(&self, name: &str, query: &HistoryQuery) -> HistoryPage {
        self.directory.history_page(name, query)
    }

    /// Returns the retained messages of a topic from a start on, each with its sequence; shared, not copied. Empty
    /// without history.
    #[must_use]
    pub fn history(&self, name: &str, start: ReplayFrom) -> Vec<(u64, Prepared)> {
        self.directory.history(name, start)
    }
}

impl Directory {
    /// Returns the retained messages of a topic from a start on, each with its sequence.
    pub(in crate::topics) fn history(&self, name: &str, start: ReplayFrom) -> Vec<(u64, Prepared)> {
        let Some(entry) = self.find(name) else { return Vec::new() };
        let Some(history) = entry.history() else { return Vec::new() };
        let ring = self.lock_trimmed(history);
        let (first, _) = ring.start(start);
        ring.from(first).map(|(sequence, message, _)| (sequence, message.clone())).collect()
    }

    /// Returns a part of a topic's retained messages.
    pub(in crate::topics) fn history_page(&self, name: &str, query: &HistoryQuery) -> HistoryPage {
        let entry = self.find(name);
        match entry.as_ref().and_then(|entry| entry.history()) {
            Some(history) => self.lock_trimmed(history).page(query),
            // A topic without messages: those before or after a position are lost.
            None => {
                let complete = match query.side {
                    QuerySide::Before(None) => true,
                    QuerySide::Before(Some(position)) | QuerySide::After(position) => position.sequence == 0,
                };
                HistoryPage { complete, ..HistoryPage::default() }
            }
        }
    }
}
