//! What this node follows at the store: topics with a history that have subscribers.

use std::fmt;
use std::sync::Arc;

use super::shared::StoredTopics;
use super::target::StoredTarget;
use crate::model::is_pattern;
use crate::topics::subscribed::TopicObserver;

/// Divides subscriptions between the store and the bus: topics with a history come from the store alone, unless the bus
/// delivers while it is away, and patterns from both.
pub(crate) struct StoredInterest {
    pub(crate) hub: Arc<dyn StoredTarget>,
    pub(crate) stored: Arc<StoredTopics>,
    pub(crate) bus: Arc<dyn TopicObserver>,
}

impl fmt::Debug for StoredInterest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredInterest").field("bus", &self.bus).finish_non_exhaustive()
    }
}

impl StoredInterest {
    fn is_stored(&self, name: &str) -> bool {
        !is_pattern(name) && self.hub.has_stored_history(name)
    }
}

impl TopicObserver for StoredInterest {
    fn subscribed(&self, name: &str, encoding: u8) {
        if self.is_stored(name) {
            self.stored.count_subscribers(name, encoding, true);
            if !self.stored.delivers_unstored() {
                return;
            }
        }
        if is_pattern(name) {
            self.stored.count_pattern(name, encoding, true);
        }
        self.bus.subscribed(name, encoding);
    }

    fn unsubscribed(&self, name: &str, encoding: u8) {
        if self.is_stored(name) {
            self.stored.count_subscribers(name, encoding, false);
            if !self.stored.delivers_unstored() {
                return;
            }
        }
        if is_pattern(name) {
            self.stored.count_pattern(name, encoding, false);
        }
        self.bus.unsubscribed(name, encoding);
    }
}

impl StoredTopics {
    /// Counts the subscribers of a pattern in an encoding.
    fn count_pattern(&self, pattern: &str, encoding: u8, is_subscribed: bool) {
        let mut patterns = self.patterns.lock();
        let before = patterns.get(pattern).copied().unwrap_or(0);
        let after = if is_subscribed { before | encoding } else { before & !encoding };
        match (before, after) {
            (0, 0) => {}
            (0, _) => {
                patterns.insert(pattern.into(), after);
                self.store.follow_pattern(pattern);
            }
            (_, 0) => {
                patterns.remove(pattern);
                self.store.unfollow_pattern(pattern);
            }
            _ => {
                patterns.insert(pattern.into(), after);
            }
        }
    }
}
