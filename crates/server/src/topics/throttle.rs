//! Flow control: limits of a thread's publication queue, and the queues of slow subscribers.

pub(crate) mod backlog;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinews_engine::Post;
use sinews_session::Tx;

use self::backlog::Backlog;
use super::counters::TopicCounters;
use super::registry::Topics;
use super::rule::{RuleId, TopicRules};

impl Topics {
    /// Returns the rule of a topic for slow subscribers.
    #[inline]
    pub(crate) fn rule(&self, topic: usize) -> RuleId {
        self.topics.get(topic).map_or(RuleId::NONE, |topic| topic.rule)
    }

    /// Returns the name of a topic, the rules, and the counters of drops.
    pub(crate) fn policy(&mut self, topic: usize) -> Option<(&Arc<str>, &TopicRules, &mut TopicCounters)> {
        let topic = self.topics.get(topic)?;
        Some((&topic.entry.name, &self.directory.rules, &mut self.counters))
    }

    /// Runs [`Backlog::flush_before_send`].
    pub(crate) fn flush_before_send(&mut self, backlog: &mut Backlog, tx: &mut Tx<'_>) {
        backlog.flush_before_send(tx, &self.directory.rules, &mut self.counters);
    }

    /// Returns the number of queued publications, without the current one.
    #[cfg(test)]
    pub(crate) fn queued_publications(&self) -> usize {
        self.publications.len()
    }

    /// Returns whether the publication queue is full.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.publications.len() + self.mailed >= self.config.max_queued_messages
            || self.queued_bytes >= self.config.max_queued_bytes
    }

    /// Marks this thread as behind: its next turn follows at once.
    pub(crate) fn mark_backlogged(&self) {
        self.directory.backlogged[self.shard].store(true, Ordering::SeqCst);
        self.wake_shard();
    }

    /// Marks this thread as caught up: publishers on other threads may resume.
    #[inline]
    pub(crate) fn clear_backlogged(&self) {
        let backlogged = &self.directory.backlogged[self.shard];
        // Only this thread writes it.
        if backlogged.load(Ordering::Relaxed) {
            backlogged.store(false, Ordering::SeqCst);
            self.posts.iter().for_each(Post::wake);
        }
    }

    /// Returns whether any thread has queued publications. When the last has caught up, every thread is woken.
    pub(crate) fn is_any_backlogged(&self) -> bool {
        self.directory.backlogged.iter().any(|backlogged| backlogged.load(Ordering::SeqCst))
    }

    /// Makes the loop of this thread start its next turn without sleep.
    pub(crate) fn wake_shard(&self) {
        self.posts[self.shard].wake();
    }
}
