//! Updates of keys to the subscribers of one thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sinews_engine::ConnId;
use sinews_session::{Prepared, Tx};

use super::local::{KeyedDelivery, TimerOf};
use super::reader::{KeyedReader, ReaderStep};
use super::state::NeedsSnapshot;
use super::table::Notifier;
use super::topic::KeyedTopic;
use crate::topics::registry::Topics;
use crate::topics::throttle::backlog::Backlog;

/// Queued bytes up to which a connection receives updates: far below its high-water mark, so that values are read late
/// and are new when they are sent.
const READY_BYTES: usize = 16 << 10;

/// The same for a connection that is behind: nearly nothing, so that the next values are read when the last are sent.
/// Above an acknowledgement, which is queued before the first update.
const BEHIND_READY_BYTES: usize = 1 << 10;

/// Size of one update to subscribers that are not behind.
const UPDATE_BYTES: usize = 256 << 10;

/// Returns whether a connection may receive an update.
#[inline]
pub(crate) fn is_ready_for_keys(tx: &Tx<'_>) -> bool {
    tx.waiting() <= READY_BYTES.min(tx.config().high_water())
}

impl Topics {
    /// Handles the notification of a change.
    pub(crate) fn keyed_notified(&mut self, topic: &Arc<KeyedTopic>, now: Instant) {
        // First, so that a change during the read leads to another notification.
        topic.threads[self.shard].is_notified.store(false, Ordering::SeqCst);
        if topic.home == self.shard {
            self.maintain_keyed(topic, None, now);
        }
        for at in 0..self.keyed.groups_of(&topic.name).len() {
            let group = self.keyed.groups_of(&topic.name)[at];
            self.keyed.schedule(group, now);
        }
    }

    /// Handles notifications that were missed, since the mailbox was full.
    pub(crate) fn handle_missed_keyed(&mut self, now: Instant) {
        for topic in self.directory.keyed.take_missed(self.shard) {
            self.keyed_notified(&topic, now);
        }
    }

    fn maintain_keyed(&mut self, topic: &Arc<KeyedTopic>, planned: Option<Instant>, now: Instant) {
        let notifier = Notifier { posts: &self.posts, epochs: &self.directory.epochs };
        if let Some(due) = self.directory.keyed.maintain(topic, planned, now, notifier) {
            self.keyed.set_timer(due, TimerOf::Topic(Arc::clone(topic)));
        }
    }

    /// Returns a connection that has subscribed for the first time.
    #[inline]
    pub(crate) fn next_joined_keyed(&mut self) -> Option<ConnId> {
        self.keyed.joined.pop()
    }

    /// Returns whether updates are due, or the loop's timer is to be set earlier.
    #[inline]
    pub(crate) fn has_keyed_to_publish(&self, now: Instant) -> bool {
        self.keyed.needs_call(now)
    }

    /// Handles the timers that are due.
    pub(crate) fn run_keyed_timers(&mut self, now: Instant) {
        while let Some((planned, of)) = self.keyed.pop_timer(now) {
            match of {
                TimerOf::Group(group) => self.keyed.due.push_back(group),
                TimerOf::Topic(topic) => self.maintain_keyed(&topic, Some(planned), now),
            }
        }
    }

    /// Returns when the loop's timer for presence and keys has to fire.
    pub(crate) fn arm_batch_timer(&mut self) -> Option<Instant> {
        [self.arm_presence(), self.keyed.arm()].into_iter().flatten().min()
    }

    /// Returns the next update and its subscribers. Return it to [`finish_keyed`](Self::finish_keyed).
    pub(crate) fn next_keyed(&mut self, now: Instant) -> Option<KeyedDelivery> {
        if let Some(partial) = self.keyed.partial.take() {
            return Some(partial);
        }
        let directory = Arc::clone(&self.directory);
        let encode = directory.keyed.encode.as_ref()?;
        while let Some(group) = self.keyed.due.pop_front() {
            let Some(found) = self.keyed.groups.get_mut(group) else { continue };
            if found.target <= found.cursor {
                found.target = found.topic.lock().cursor();
            }
            let (after, end) = (found.cursor, found.target);
            if after >= end || found.subscribers.is_empty() {
                found.cursor = end;
                self.finish_group(group);
                continue;
            }
            let encoded =
                found.topic.encode_changes(after, end, found.filter.as_deref(), UPDATE_BYTES, encode);
            let message = match encoded {
                Ok((cursor, message)) => {
                    found.cursor = cursor;
                    if message.is_none() {
                        // No change matches the filter.
                        self.finish_group(group);
                        continue;
                    }
                    message
                }
                Err(NeedsSnapshot) => {
                    found.cursor = end;
                    None
                }
            };
            if let Some(interval) = found.interval {
                found.next = now + interval;
            }
            let mut subscribers = std::mem::take(&mut self.keyed.scratch);
            subscribers.extend_from_slice(&found.subscribers);
            return Some(KeyedDelivery { group, after, message, subscribers, next: 0, split: false });
        }
        None
    }

    /// Continues with the rest of an update, or schedules the next.
    fn finish_group(&mut self, group: usize) {
        let found = &mut self.keyed.groups[group];
        if found.cursor < found.target {
            return self.keyed.due.push_front(group);
        }
        let is_behind = !found.subscribers.is_empty() && found.topic.lock().cursor() > found.cursor;
        if is_behind {
            self.keyed.schedule_next_turn(group);
        } else {
            found.is_scheduled = false;
            self.keyed.prune(group);
        }
    }

    /// Continues a delivery in the next turn.
    pub(crate) fn split_keyed(&mut self, mut delivery: KeyedDelivery) {
        delivery.split = true;
        self.keyed.partial = Some(delivery);
        self.wake_shard();
    }

    /// Returns whether a subscriber of an interrupted delivery is still to receive it.
    pub(crate) fn awaits_keyed(&self, delivery: &KeyedDelivery, conn: ConnId) -> bool {
        self.keyed.member(conn, delivery.group).is_some_and(|member| member.joined <= delivery.after)
    }

    /// Ends a delivery.
    pub(crate) fn finish_keyed(&mut self, delivery: KeyedDelivery) {
        let KeyedDelivery { group, mut subscribers, .. } = delivery;
        subscribers.clear();
        self.keyed.scratch = subscribers;
        self.finish_group(group);
    }

    /// Ends the deliveries of a turn.
    pub(crate) fn end_keyed_turn(&mut self) {
        if !self.keyed.due_next_turn.is_empty() {
            let next = std::mem::take(&mut self.keyed.due_next_turn);
            self.keyed.due.extend(next);
            self.wake_shard();
        }
    }

    /// Creates the reader of a subscriber that is not ready for an update.
    pub(crate) fn keyed_reader(&self, after: u64, has_message: bool) -> KeyedReader {
        let counters = self.directory.keyed.counters();
        counters.lagged.fetch_add(1, Ordering::Relaxed);
        KeyedReader::new(has_message.then_some(after))
    }

    /// Sends updates to a connection that is behind, as far as it is ready.
    pub(crate) fn read_keys(&mut self, backlog: &mut Backlog, tx: &mut Tx<'_>, conn: ConnId) {
        let mut at = 0;
        while at < backlog.keyed.len() && tx.waiting() <= BEHIND_READY_BYTES {
            let (group, reader) = &mut backlog.keyed[at];
            match self.read_keys_of(*group, reader, conn) {
                KeysRead::Done => drop(backlog.keyed.swap_remove(at)),
                KeysRead::Waiting => at += 1,
                KeysRead::Message(message) => {
                    if tx.queue_prepared(&message, true).is_err() {
                        backlog.keyed.clear();
                        return;
                    }
                    self.counters.delivered += 1;
                    // The next topic is first the next time.
                    let rest = backlog.keyed.len() - at;
                    if rest > 1 {
                        backlog.keyed[at..].rotate_left(1);
                    }
                }
            }
        }
    }

    fn read_keys_of(&self, group: usize, reader: &mut KeyedReader, conn: ConnId) -> KeysRead {
        let (Some(_), Some(found)) = (self.keyed.member(conn, group), self.keyed.groups.get(group)) else {
            return KeysRead::Done;
        };
        let Some(encode) = &self.directory.keyed.encode else { return KeysRead::Done };
        loop {
            match reader.next(&found.topic, found.filter.as_deref(), found.cursor, encode) {
                ReaderStep::Skipped => {}
                ReaderStep::Message(message) => return KeysRead::Message(message),
                ReaderStep::AtEnd { is_exact: true } => return KeysRead::Done,
                // The group's next update is on its way.
                ReaderStep::AtEnd { is_exact: false } => return KeysRead::Waiting,
            }
        }
    }
}

/// Result of a read for a connection.
enum KeysRead {
    Message(Prepared),
    /// The connection receives the updates of its group.
    Done,
    /// It has more than its group.
    Waiting,
}
