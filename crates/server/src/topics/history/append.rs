//! Publications to topics with history: appended and published in the same order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use sinews_engine::Post;
use sinews_session::Prepared;

use super::eviction::EvictionQueue;
use super::log::{MessageRing, TopicHistory};
use super::policy::{HistoryPolicy, Position, StoredHistory, TopicSnapshot};
use crate::topics::directory::Directory;
use crate::topics::entry::{Reach, Recipients, TopicEntry};
use crate::topics::mail::{Mail, MailedPublication};
use crate::topics::subscriber_id::SubscriberId;

impl Directory {
    /// Locks a history after the removal of expired messages.
    pub(crate) fn lock_trimmed<'a>(&self, history: &'a TopicHistory) -> MutexGuard<'a, MessageRing> {
        let mut ring = history.lock();
        let before = ring.cost();
        ring.trim(&history.policy);
        self.history_store.account(before, ring.cost());
        ring
    }
}

/// Error: a message belongs to another epoch of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochMismatch;

/// A message's place in a history: its position, and the sequence before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryPlace {
    pub(crate) position: Position,
    pub(crate) prev: u64,
}

/// Publisher of a message of a topic with history.
#[derive(Clone, Copy)]
pub(crate) struct PublishOrigin<'a> {
    pub(crate) posts: &'a [Post<Mail>],
    /// The publisher and its thread, if the publisher is excluded.
    pub(crate) except: Option<SubscriberId>,
}

impl Directory {
    /// Appends a message to a topic's history and publishes it to every thread, the publisher's included, while the
    /// history is locked: so each thread gets all messages in order.
    pub(crate) fn append(
        &self,
        name: &str,
        patterns: &[Arc<TopicEntry>],
        make: impl FnOnce(Position) -> Prepared,
        from: PublishOrigin<'_>,
    ) -> Option<Reach> {
        self.append_to(name, patterns, from, |ring| {
            let position = Position { epoch: ring.epoch, sequence: ring.next };
            Some((position, ring.next - 1, make(position)))
        })
    }

    /// Appends as [`append`](Self::append) does, a message of another server, at its place. `Err` if the topic has another epoch here.
    pub(crate) fn append_at(
        &self,
        name: &str,
        patterns: &[Arc<TopicEntry>],
        place: HistoryPlace,
        message: &Prepared,
        from: PublishOrigin<'_>,
    ) -> Result<Reach, EpochMismatch> {
        let HistoryPlace { position, prev } = place;
        let mut is_same = true;
        let reached = self.append_to(name, patterns, from, |ring| {
            if ring.next == 1 {
                // No message of this epoch was published here.
                ring.epoch = position.epoch;
            }
            is_same = ring.epoch == position.epoch;
            if !is_same || position.sequence < ring.next {
                return None;
            }
            ring.skip_to(prev);
            Some((position, prev, message.clone()))
        });
        if is_same { Ok(reached.unwrap_or_default()) } else { Err(EpochMismatch) }
    }

    /// Appends the message that `next` builds for a topic's history, if any, and publishes it to every thread.
    fn append_to(
        &self,
        name: &str,
        patterns: &[Arc<TopicEntry>],
        from: PublishOrigin<'_>,
        next: impl FnOnce(&mut MessageRing) -> Option<(Position, u64, Prepared)>,
    ) -> Option<Reach> {
        loop {
            let entry = self.entry_with_history(name);
            let history = entry.history()?;
            let mut ring = history.lock();
            if ring.removed {
                // It was removed just now; retry with its replacement.
                continue;
            }
            let before = ring.cost();
            let (position, prev, message) = next(&mut ring)?;
            ring.append(position.sequence, message.clone(), from.except, &history.policy);
            let recipients = Recipients { name: &entry.name, exact: Some(&entry), patterns };
            let reached = self.mail_to_threads(recipients, &message, position, prev, from);
            let after = ring.cost();
            drop(ring);
            self.history_store.account(before, after);
            self.maintain(&entry, history);
            return Some(reached);
        }
    }

    /// Exports all retained messages, and the position of each topic that a client may resume.
    pub(crate) fn export(&self) -> Vec<TopicSnapshot> {
        let entries = self.topics_with_history();
        let kept = entries.iter().filter_map(|entry| Some((entry, entry.history()?)));
        kept.map(|(entry, history)| self.lock_trimmed(history).export(&entry.name)).collect()
    }

    /// Restores a topic. Returns whether it has history here, and had no publications yet.
    pub(crate) fn restore(&self, topic: TopicSnapshot) -> bool {
        let (name, mut is_new) = (topic.name.clone(), false);
        self.change_history(&name, |ring, policy| {
            is_new = ring.next == 1;
            if is_new {
                ring.restore_snapshot(topic, policy);
                // Its subscribers may resume from there.
                ring.retain_position(self.history_store.position_ttl);
            }
            is_new
        });
        is_new
    }

    /// Replaces a topic's messages by those of a store, without publishing them. Returns whether the topic has history.
    pub(crate) fn install_history(&self, name: &str, stored: StoredHistory) -> bool {
        self.change_history(name, |ring, policy| {
            ring.install(stored, policy);
            ring.retain_position(self.history_store.position_ttl);
            true
        })
    }

    /// Sets the position of the last message. Returns whether the topic has history.
    pub(crate) fn advance_to(&self, name: &str, position: Position) -> bool {
        self.change_history(name, |ring, _| {
            ring.advance_to(position);
            false
        })
    }

    /// Sets the position of the last message, which is not retained. Returns whether the topic has history.
    pub(crate) fn pass_message(&self, name: &str, position: Position) -> bool {
        self.change_history(name, |ring, _| {
            ring.pass(position);
            false
        })
    }

    /// Changes a topic's messages without publishing any; `change` returns whether there may be more of them. Returns
    /// whether the topic has history.
    fn change_history(
        &self,
        name: &str,
        change: impl FnOnce(&mut MessageRing, &HistoryPolicy) -> bool,
    ) -> bool {
        loop {
            let entry = self.entry_with_history(name);
            let Some(history) = entry.history() else { return false };
            let mut ring = history.lock();
            // It may have been removed just now; retry with its replacement.
            if ring.removed {
                continue;
            }
            let before = ring.cost();
            let may_grow = change(&mut ring, &history.policy);
            let after = ring.cost();
            drop(ring);
            self.history_store.account(before, after);
            if may_grow {
                self.maintain(&entry, history);
            }
            return true;
        }
    }

    fn mail_to_threads(
        &self,
        recipients: Recipients<'_>,
        message: &Prepared,
        position: Position,
        prev: u64,
        from: PublishOrigin<'_>,
    ) -> Reach {
        let mut counts = Reach::default();
        for (shard, post) in from.posts.iter().enumerate() {
            let count = recipients.count_on(shard);
            if count == 0 {
                continue;
            }
            let mail = Mail::Publish(MailedPublication {
                topic: recipients.name.clone(),
                message: message.clone(),
                position: Some(position),
                prev,
                except: from.except.and_then(|except| except.on_thread(shard)),
                version: 0,
            });
            if post.send(mail).is_ok() {
                counts.reached += count;
            } else if post.is_closed() {
                counts.lost += count;
            } else {
                // Subscribers of the topic by name get it from its history.
                let exact = recipients.exact.map_or(0, |entry| entry.subscribers_on(shard));
                self.mailbox_overflowed[shard].store(true, Ordering::SeqCst);
                post.wake();
                counts.reached += exact.min(count);
                counts.lost += count - exact.min(count);
            }
        }
        counts
    }

    /// Moves a topic to the end of the eviction order, checks one topic for expiry, and evicts others while the
    /// memory limit is exceeded.
    fn maintain(&self, published: &Arc<TopicEntry>, history: &TopicHistory) {
        let history_store = &self.history_store;
        let mut queue = history_store.lock();
        let mut total = history_store.touch(&mut queue, published, history);
        if let Some(entry) = queue.next().filter(|entry| !Arc::ptr_eq(entry, published)) {
            total = self.expire(&mut queue, &entry);
        }
        let mut evicts = false;
        while total > history_store.bytes_max
            && let Some(entry) = queue.next_to_evict()
        {
            evicts = true;
            total = self.evict(&mut queue, &entry);
        }
        drop(queue);
        if evicts {
            history_store.evictions.report(history_store.bytes_max);
        }
    }

    /// Removes expired messages, and the topic if its subscribers do not return. Returns the memory of all histories.
    fn expire(&self, queue: &mut EvictionQueue, entry: &Arc<TopicEntry>) -> usize {
        let Some(history) = entry.history() else { return self.history_store.account(0, 0) };
        let is_empty = self.lock_trimmed(history).is_empty();
        if is_empty && self.release_topic(entry) {
            return self.history_store.remove(queue, entry, history);
        }
        self.history_store.account(0, 0)
    }

    /// Evicts all messages of a topic, and the topic if it has no subscribers. Returns the memory of all histories.
    fn evict(&self, queue: &mut EvictionQueue, entry: &Arc<TopicEntry>) -> usize {
        let Some(history) = entry.history() else { return 0 };
        let mut entries = self.lock();
        let has_no_subscribers = entry.has_no_subscribers();
        let mut ring = history.lock();
        let before = ring.cost();
        let messages = ring.evict(has_no_subscribers);
        let had_messages = ring.had_messages();
        drop(ring);
        if has_no_subscribers {
            self.remove_entry(&mut entries, entry, had_messages);
        }
        drop(entries);
        if messages > 0 {
            self.history_store.evictions.count(!has_no_subscribers, messages);
        }
        self.history_store.account(before, 0);
        self.history_store.remove(queue, entry, history)
    }

    /// Handles the leave of the last subscriber of a topic that stays.
    pub(crate) fn note_deserted(&self, entry: &Arc<TopicEntry>) {
        if let Some(history) = entry.history() {
            self.history_store.touch(&mut self.history_store.lock(), entry, history);
        }
    }
}

#[cfg(test)]
mod tests;
