//! Presence of one thread's connections, and the updates that this thread has to publish.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHasher;
use sinews_engine::ConnId;

use super::undelivered::UndeliveredPresence;
use crate::topics::conn_lists::ConnLists;

/// Joined topics of the connections, and scheduled updates.
#[derive(Debug, Default)]
pub(crate) struct LocalPresence {
    /// One of a connection is stored in place: many have one topic with members.
    pub(super) conns: ConnLists<[ConnPresence; 1]>,
    /// Topics with a scheduled update. Each topic is scheduled on one thread of the server at a time.
    scheduled: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    /// Messages for threads whose mailboxes are full.
    pub(in crate::topics) undelivered: UndeliveredPresence,
    /// When the loop's timer fires.
    armed: Option<Instant>,
}

/// Presence of a connection in a topic.
#[derive(Debug)]
pub(super) struct ConnPresence {
    pub(super) topic: Arc<str>,
    /// The id of its member; `None` if the connection has joined without a member, or has not joined.
    pub(super) member: Option<Arc<str>>,
    pub(super) is_joined: bool,
    pub(super) watches: bool,
}

impl LocalPresence {
    pub(super) fn find(&mut self, conn: ConnId, topic: &str) -> Option<&mut ConnPresence> {
        self.conns.get_mut(conn)?.iter_mut().find(|known| &*known.topic == topic)
    }

    /// Returns the entry of a topic, which is added if there is none.
    pub(super) fn find_or_add(&mut self, conn: ConnId, topic: &Arc<str>) -> &mut ConnPresence {
        let new = || ConnPresence { topic: topic.clone(), member: None, is_joined: false, watches: false };
        self.conns.find_or_push(conn, |known| known.topic == *topic, new)
    }

    /// Removes the entries of a connection that neither joins nor watches.
    pub(super) fn prune(&mut self, conn: ConnId) {
        let Some(list) = self.conns.get_mut(conn) else { return };
        list.retain(|known| known.watches || known.is_joined);
        if list.is_empty() {
            self.conns.remove(conn);
        }
    }

    pub(super) fn schedule(&mut self, topic: Arc<str>, due: Instant) {
        self.scheduled.push(Reverse((due, topic)));
    }

    /// Returns the next topic whose update is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Arc<str>> {
        let Reverse((due, _)) = self.scheduled.peek()?;
        if *due > now {
            return None;
        }
        self.scheduled.pop().map(|Reverse((_, topic))| topic)
    }

    /// Returns whether an update is due, or the timer is to be set earlier.
    #[inline]
    pub(super) fn needs_call(&self, now: Instant) -> bool {
        let Some(Reverse((due, _))) = self.scheduled.peek() else { return false };
        *due <= now || self.armed.is_none_or(|armed| armed > *due)
    }

    /// Returns the number of scheduled updates.
    #[cfg(test)]
    pub(super) fn scheduled(&self) -> usize {
        self.scheduled.len()
    }

    /// Returns when to set the timer.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        self.armed = self.scheduled.peek().map(|Reverse((due, _))| *due);
        self.armed
    }
}

/// Returns the thread that sends the updates of a topic. With several threads, a thread could receive a later update
/// before an earlier one.
pub(super) fn update_thread(topic: &str, threads: usize) -> usize {
    let mut hasher = FxHasher::default();
    topic.hash(&mut hasher);
    hasher.finish() as usize % threads.max(1)
}
