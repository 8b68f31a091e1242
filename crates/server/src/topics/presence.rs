//! Presence: subscriber counts and their changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinews_engine::ConnId;

use super::Topics;

/// Change of a subscription of this connection, with the topic's number of subscribers: on all threads, by name. Each
/// change of the number is reported to exactly one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionChange {
    topic: Arc<str>,
    before: usize,
    after: usize,
}

impl SubscriptionChange {
    /// Returns the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the number of subscribers before the change.
    #[must_use]
    pub fn before(&self) -> usize {
        self.before
    }

    /// Returns the number of subscribers after the change: one more, or one less.
    #[must_use]
    pub fn after(&self) -> usize {
        self.after
    }
}

impl Topics {
    /// Returns how many subscriptions, by name or by pattern and on all threads, a publication would match now; 0 for
    /// a name that cannot be published to. Threads count separately, so a concurrent change on another thread may be
    /// missing.
    #[must_use]
    pub fn subscribers(&self, name: &str) -> usize {
        let exact = self.directory.find(name);
        let patterns = self.directory.matching(name);
        let counts = exact.iter().chain(&patterns).flat_map(|entry| &entry.counts);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Notes a change to report to its connection, if the topic's rule enables presence.
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

    /// Takes the changes to report to a connection.
    pub(crate) fn take_changes(&mut self, of: ConnId) -> Vec<SubscriptionChange> {
        let changes = std::mem::take(&mut self.changes);
        let (own, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(conn, _)| *conn == of);
        self.changes = others;
        own.into_iter().map(|(_, change)| change).collect()
    }

    /// Returns the next connection with changes to report.
    pub(crate) fn next_changed(&self) -> Option<ConnId> {
        self.changes.first().map(|(conn, _)| *conn)
    }
}
