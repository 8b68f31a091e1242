//! How many are subscribed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinews_engine::ConnId;

use super::Topics;

/// A subscription of this connection has begun or ended, and how many there are of the topic now: on all threads, by
/// name. Each change of the number is told to exactly one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionChange {
    topic: Arc<str>,
    before: usize,
    after: usize,
}

impl SubscriptionChange {
    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// How many were subscribed before.
    #[must_use]
    pub fn before(&self) -> usize {
        self.before
    }

    /// How many are subscribed now: one more, or one less.
    #[must_use]
    pub fn after(&self) -> usize {
        self.after
    }
}

impl Topics {
    /// How many subscriptions, by name or by pattern and on all threads, a publication would reach now; 0 for a name
    /// that may not be published to. Threads count for themselves, so that a subscription that is just coming or going
    /// on another one may be missing or be counted still.
    #[must_use]
    pub fn subscribers(&self, name: &str) -> usize {
        let exact = self.directory.find(name);
        let patterns = self.directory.matching(name);
        let counts = exact.iter().chain(&patterns).flat_map(|entry| &entry.counts);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Notes a change that its connection is to be told, if the topic's rule says so.
    pub(super) fn note_change(&mut self, topic: usize, conn: ConnId, comes: bool) {
        let entry = &self.topics[topic].entry;
        let Some(present) = &entry.present else { return };
        let (before, after) = if comes {
            let before = present.fetch_add(1, Ordering::Relaxed);
            (before, before + 1)
        } else {
            let before = present.fetch_sub(1, Ordering::Relaxed);
            (before, before.saturating_sub(1))
        };
        self.changes.push((conn, SubscriptionChange { topic: entry.name.clone(), before, after }));
    }

    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// What a connection is to be told.
    pub(crate) fn take_changes(&mut self, of: ConnId) -> Vec<SubscriptionChange> {
        let changes = std::mem::take(&mut self.changes);
        let (own, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(conn, _)| *conn == of);
        self.changes = others;
        own.into_iter().map(|(_, change)| change).collect()
    }

    /// The next connection that is to be told something.
    pub(crate) fn next_changed(&self) -> Option<ConnId> {
        self.changes.first().map(|(conn, _)| *conn)
    }
}
