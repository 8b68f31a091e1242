//! Connections that join, leave and watch.

use std::sync::Arc;
use std::time::Instant;

use sinews_engine::ConnId;

use super::local::{ConnPresence, update_thread};
use super::member::{Member, PRESENCE_INTERVAL, PresenceCount, PresenceError, PresenceMessage};
use super::table::Changed;
use super::undelivered::UpdateTurn;
use crate::topics::mail::Mail;
use crate::topics::name::{self, SUBSCRIPTIONS_MAX};
use crate::topics::registry::Topics;

/// Maximum updates published at a time, so that connections are not delayed; the rest follows in the next turns.
const UPDATES_PER_TURN: usize = 256;

impl Topics {
    /// Returns a topic's presence counts, over all threads.
    #[must_use]
    pub fn presence(&self, topic: &str) -> PresenceCount {
        self.directory.presence.count(topic)
    }

    /// Returns a topic's member, over all threads, if it is present.
    #[must_use]
    pub fn member(&self, topic: &str, id: &str) -> Option<Member> {
        self.directory.presence.member(topic, id)
    }

    /// Returns a topic's members ordered by id, each with its connection count, over all threads: after the member
    /// `after`, or from the first. At most `limit` and [`MEMBERS_MAX`](Self::MEMBERS_MAX); a list's last id is `after`
    /// for the next.
    #[must_use]
    pub fn members(&self, topic: &str, after: Option<&str>, limit: usize) -> Vec<(Member, usize)> {
        self.directory.presence.members(topic, after, limit)
    }

    pub(crate) fn join(
        &mut self,
        topic: &str,
        member: Option<Member>,
        conn: ConnId,
    ) -> Result<PresenceCount, PresenceError> {
        name::check(topic)?;
        member.as_ref().map_or(Ok(()), Member::check)?;
        let now = Instant::now();
        let (is_subscribed, is_present) =
            self.subscription_mut(topic, conn).map_or((false, false), |sub| (true, sub.is_present()));
        if is_present && member.is_none() {
            return Ok(self.presence(topic));
        }
        let known = self.presence.find(conn, topic);
        let changed = match (&known, &member) {
            (Some(ConnPresence { is_joined: true, member: None, .. }), None) => {
                return Ok(self.presence(topic));
            }
            (Some(ConnPresence { member: Some(id), .. }), Some(member)) if *id == member.id => {
                self.directory.presence.set_info(topic, member, now)?
            }
            _ => {
                // A subscription has a place for the presence.
                let needs_entry = known.is_some() || member.is_some() || !is_subscribed;
                let is_joined = is_present || known.is_some_and(|known| known.is_joined);
                if !is_joined && self.joined(conn).count() >= SUBSCRIPTIONS_MAX {
                    return Err(PresenceError::TooManyTopics);
                }
                let name = self.index_of(topic).map(|index| &self.topics[index].entry.name);
                let mut changed = self.directory.presence.join_named(topic, name, member.as_ref(), now)?;
                // This connection's former member leaves in the same update.
                if let Some(count) = self.leave_table(topic, conn, now) {
                    changed.count = count;
                }
                if needs_entry {
                    let known = self.presence.find_or_add(conn, &changed.topic);
                    (known.is_joined, known.member) = (true, member.map(|member| member.id));
                } else if let Some(subscription) = self.subscription_mut(topic, conn) {
                    subscription.set_present(true);
                }
                changed
            }
        };
        let count = changed.count;
        self.schedule(changed);
        Ok(count)
    }

    pub(crate) fn leave(&mut self, topic: &str, conn: ConnId) -> bool {
        let left = self.leave_table(topic, conn, Instant::now()).is_some();
        if left {
            self.presence.prune(conn);
        }
        left
    }

    /// Returns the topics that a connection is present in, each with its member's id, if it has one.
    pub(crate) fn joined(&self, conn: ConnId) -> impl Iterator<Item = (&str, Option<&str>)> {
        let joined = self.presence.conns.get(conn).iter().filter(|known| known.is_joined);
        let joined = joined.map(|known| (&*known.topic, known.member.as_deref()));
        let present = self.subscriptions.get(conn).iter().filter(|subscription| subscription.is_present());
        joined.chain(present.map(|subscription| (&*self.topics[subscription.topic()].entry.name, None)))
    }

    /// Removes a connection from the shared table. Returns the numbers then, if it was present.
    fn leave_table(&mut self, topic: &str, conn: ConnId, now: Instant) -> Option<PresenceCount> {
        if self.subscription_mut(topic, conn).is_some_and(|subscription| subscription.set_present(false)) {
            return Some(self.end(topic, None, now));
        }
        let known = self.presence.find(conn, topic)?;
        let (was_joined, member) = (std::mem::take(&mut known.is_joined), known.member.take());
        was_joined.then(|| self.end(topic, member.as_ref(), now))
    }

    fn end(&mut self, topic: &str, member: Option<&Arc<str>>, now: Instant) -> PresenceCount {
        let changed = self.directory.presence.leave(topic, member, now);
        let count = changed.count;
        self.schedule(changed);
        count
    }

    /// Ends the presence without a member for a closed connection, whose subscription ends.
    pub(in crate::topics) fn end_presence(&mut self, topic: usize) {
        let name = self.topics[topic].entry.name.clone();
        self.end(&name, None, Instant::now());
    }

    /// Stores the presence of a connection without a member apart from its subscription, which ends: its topic count
    /// stays the same.
    pub(in crate::topics) fn keep_presence(&mut self, topic: usize, conn: ConnId) {
        self.presence.find_or_add(conn, &self.topics[topic].entry.name).is_joined = true;
    }

    /// Schedules a topic's update, which this thread sends.
    pub(crate) fn schedule_presence(&mut self, topic: Arc<str>, due: Instant) {
        self.presence.schedule(topic, due);
    }

    /// Schedules a changed topic's update, unless it is scheduled already.
    fn schedule(&mut self, changed: Changed) {
        if let Some(due) = changed.due {
            self.schedule_at_owner(changed.topic, due);
        }
    }

    /// Schedules an update on the thread that sends all the topic's updates, so that they arrive in order.
    fn schedule_at_owner(&mut self, topic: Arc<str>, due: Instant) {
        let owner = update_thread(&topic, self.posts.len());
        if owner == self.shard {
            self.presence.schedule(topic, due);
        } else if !self.send_mail(owner, Mail::Presence { topic: topic.clone(), due }) {
            // Its mailbox is full.
            self.presence.schedule(topic, due + PRESENCE_INTERVAL);
        }
    }

    pub(crate) fn watch_presence(
        &mut self,
        topic: &str,
        conn: ConnId,
    ) -> Result<PresenceCount, PresenceError> {
        name::check(topic)?;
        if !self.directory.presence.has_encoder() {
            return Err(PresenceError::NoEncoder);
        }
        if self.presence.find(conn, topic).is_some_and(|known| known.watches) {
            return Ok(self.presence(topic));
        }
        // First, so that no later update is missed.
        self.subscribe_unchecked(&name::presence_topic(topic), conn)?;
        let (topic, count) = self.directory.presence.watch(topic, Instant::now());
        self.presence.find_or_add(conn, &topic).watches = true;
        Ok(count)
    }

    /// Watches a topic, and returns all members with the numbers at the same time: later messages with a version belong
    /// to later versions.
    pub(crate) fn watch_members(
        &mut self,
        topic: &str,
        conn: ConnId,
    ) -> Result<(PresenceCount, Vec<Member>), PresenceError> {
        self.watch_presence(topic, conn)?;
        let (count, members) = self.directory.presence.roster(topic);
        if let Some(internal) = self.index_of(&name::presence_topic(topic)) {
            let progress = self.topics[internal].progress_or_default();
            progress.joined.insert(conn, count.version + 1);
        }
        Ok((count, members))
    }

    pub(crate) fn unwatch_presence(&mut self, topic: &str, conn: ConnId) -> bool {
        let Some(known) = self.presence.find(conn, topic).filter(|known| known.watches) else { return false };
        known.watches = false;
        self.presence.prune(conn);
        self.unsubscribe(&name::presence_topic(topic), conn);
        self.directory.presence.unwatch(topic);
        true
    }

    /// Ends a closed connection's presence. Its subscriptions have ended.
    pub(crate) fn leave_all(&mut self, conn: ConnId) {
        let list = self.presence.conns.remove(conn);
        if list.is_empty() {
            return;
        }
        let now = Instant::now();
        for known in list {
            if known.is_joined {
                self.end(&known.topic, known.member.as_ref(), now);
            }
            if known.watches {
                self.directory.presence.unwatch(&known.topic);
            }
        }
    }

    /// Returns whether to call [`send_presence`](Self::send_presence) and
    /// [`arm_presence`](Self::arm_presence).
    #[inline]
    pub(crate) fn has_presence_to_publish(&self, now: Instant) -> bool {
        self.presence.needs_call(now)
    }

    /// Schedules the leaves for restored members that do not return: on the first thread.
    pub(crate) fn start_presence(&mut self) {
        if self.shard == 0
            && let Some(until) = self.directory.presence.restored_until()
        {
            self.presence.schedule(Arc::from(""), until);
        }
    }

    /// Publishes the updates that are due.
    pub(crate) fn send_presence(&mut self, now: Instant) {
        for _ in 0..UPDATES_PER_TURN {
            let Some(topic) = self.presence.pop_due(now) else { return };
            if topic.is_empty() {
                // No topic has this name: restored members leave.
                for changed in self.directory.presence.expire_restored(now) {
                    self.schedule(changed);
                }
            } else if update_thread(&topic, self.posts.len()) != self.shard {
                self.schedule_at_owner(topic, now);
            } else {
                self.send_update(topic, now);
            }
        }
    }

    /// Publishes a topic's update, unless messages from its previous update wait for a full mailbox.
    fn send_update(&mut self, topic: Arc<str>, now: Instant) {
        let internal = name::presence_topic(&topic);
        match self.retry_presence(&internal, now) {
            UpdateTurn::Scheduled => {}
            UpdateTurn::Retry(due) => self.presence.schedule(topic, due),
            UpdateTurn::Take => {
                for PresenceMessage { message, version } in self.directory.presence.take_messages(&topic, now)
                {
                    self.queue_presence_message(&internal, &message, version);
                }
                if let Some(due) = self.presence.undelivered.retry_of(&internal) {
                    tracing::debug!(topic = &*topic, "mailbox full: the presence of the topic is late");
                    self.presence.schedule(topic, due);
                }
            }
        }
    }

    /// Returns when to call [`send_presence`](Self::send_presence) next.
    pub(crate) fn arm_presence(&mut self) -> Option<Instant> {
        self.presence.arm()
    }
}

#[cfg(test)]
mod tests {
    use sinews_engine::{Engine, EngineConfig};

    use super::*;
    use crate::TopicConfig;
    use crate::topics::{Directory, TopicRules};
    use crate::worker::Worker;

    #[test]
    fn one_thread_sends_all_updates_of_a_topic() {
        let engines = [(); 2].map(|()| Engine::<Worker>::new(EngineConfig::default(), Vec::new()).unwrap());
        let posts: Arc<[_]> = engines.iter().map(Engine::post).collect();
        let directory = Directory::new(2, TopicRules::default());
        let mut threads = [0, 1].map(|shard| {
            Topics::new(shard, TopicConfig::default(), Arc::clone(&directory), Arc::clone(&posts))
        });
        let mut scheduled = [0, 0];
        for number in 0..20 {
            let topic: Arc<str> = format!("t{number}").into();
            let owner = update_thread(&topic, 2);
            for thread in &mut threads {
                let (count, due) = (PresenceCount::default(), Some(Instant::now()));
                thread.schedule(Changed { topic: topic.clone(), count, due });
            }
            scheduled[owner] += 1;
            let local = [0, 1].map(|shard| threads[shard].presence.scheduled());
            assert_eq!(local, scheduled, "the other thread has sent mail");
        }
        assert!(scheduled.iter().all(|count| *count > 0), "{scheduled:?}");
    }
}
