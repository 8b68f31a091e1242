//! Presence for and from other servers.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use super::local::update_thread;
use super::member::{Member, OwnPresence, PresenceCount};
use super::shared::OwnChanges;
use crate::topics::mail::Mail;
use crate::topics::publisher::Publisher;

impl Publisher {
    /// Returns a topic's presence counts ([`Topics::presence`](crate::Topics::presence)).
    #[must_use]
    pub fn presence_count(&self, topic: &str) -> PresenceCount {
        self.directory().presence.count(topic)
    }

    /// Returns a topic's members, each with its connection count ([`Topics::members`](crate::Topics::members)).
    #[must_use]
    pub fn members(&self, topic: &str, after: Option<&str>, limit: usize) -> Vec<(Member, usize)> {
        self.directory().presence.members(topic, after, limit)
    }

    /// Returns the presence counts for topics whose names begin with a prefix, ordered by name, after a given name: at
    /// most `limit`. Topics that are only watched have no connections. The lock for all presence is held while these
    /// topics are looked at.
    #[must_use]
    pub fn presence_counts(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(Arc<str>, PresenceCount)> {
        let state = self.directory().presence.lock();
        // The prefix itself is the first name that begins with it.
        let start = after.filter(|after| *after >= prefix).map_or(Bound::Included(prefix), Bound::Excluded);
        let found = state.topics.range::<str, _>((start, Bound::Unbounded));
        let found = found.take_while(|(name, _)| name.starts_with(prefix));
        found.take(limit).map(|(name, topic)| (name.clone(), topic.count())).collect()
    }

    /// Notes each presence change from this server's own connections from now on, for other servers that share its
    /// topics. Calls `notify` when the first change waits for [`take_own_presence`](Self::take_own_presence): while
    /// presence is locked, so it must be short.
    pub fn share_presence(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.directory().presence.share(Box::new(notify));
    }

    /// Takes topics and members whose presence on this server has changed, with their present numbers: at most about
    /// `limit` members. A member that has left has no connections.
    #[must_use]
    pub fn take_own_presence(&self, limit: usize) -> OwnChanges {
        self.directory().presence.take_own(limit)
    }

    /// Returns the names of all topics with this server's connections, in no order.
    #[must_use]
    pub fn own_presence_topics(&self) -> Vec<Arc<str>> {
        let state = self.directory().presence.lock();
        let own = state.topics.iter().filter(|(_, topic)| topic.connections > topic.remote());
        own.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the presence that this server's own connections have in a topic: members ordered by id, after a given
    /// one, at most `limit`.
    #[must_use]
    pub fn own_presence(&self, topic: &str, after: Option<&str>, limit: usize) -> Option<OwnPresence> {
        let state = self.directory().presence.lock();
        let (name, known) = state.topics.get_key_value(topic)?;
        let own = known.members().after(after).filter(|(_, member)| member.connections > member.remote);
        Some(state.own(name, own.take(limit).map(|(id, _)| (id.clone(), None)).collect()))
    }

    /// Adds other servers' connections to a topic's presence, or removes them with negative numbers: for the topic, and
    /// for its members. A new member, or one without a connection here, gets this info. Returns how many members exceed
    /// [`TopicConfig::with_max_presence_bytes`](crate::TopicConfig::with_max_presence_bytes), and are left out.
    pub fn adjust_presence(&self, topic: &str, connections: isize, members: &[(Member, isize)]) -> usize {
        let presence = &self.directory().presence;
        let (changed, left_out) = presence.adjust(topic, connections, members, Instant::now());
        if let Some(due) = changed.due {
            let (posts, owner) = (self.posts(), update_thread(topic, self.posts().len()));
            // If the thread that sends the update has a full mailbox, another thread passes it on later.
            let is_sent = (0..posts.len()).any(|next| {
                let mail = Mail::Presence { topic: changed.topic.clone(), due };
                posts[(owner + next) % posts.len()].send(mail).is_ok()
            });
            if !is_sent {
                presence.unschedule(topic);
            }
        }
        left_out
    }
}
