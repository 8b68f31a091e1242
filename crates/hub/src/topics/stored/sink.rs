//! The store's notifications.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use sinews_store::{KeyUpdate, LogEntry, PartKind, StoreHealth, StoreSink, TopicPart};

use super::shared::StoredTopics;

/// Receives the store's notifications.
pub(super) struct CopySink(pub(super) Weak<StoredTopics>);

impl StoreSink for CopySink {
    fn appended(&self, topic: &str, epoch: u64, entry: LogEntry) {
        if let Some(stored) = self.0.upgrade() {
            stored.note_appended(topic, epoch, entry);
        }
    }

    fn keys_changed(&self, topic: &str, update: KeyUpdate) {
        if let Some(stored) = self.0.upgrade() {
            stored.note_keys_changed(topic, update);
        }
    }

    fn following(&self, part: &TopicPart) {
        let Some(stored) = self.0.upgrade() else { return };
        match part.part {
            PartKind::Log => stored.note_following_log(&part.topic),
            PartKind::Keys => stored.note_following_keys(&part.topic),
        }
        stored.unaudited.lock().insert(part.clone());
        stored.audit.notify_one();
    }

    fn not_following(&self, part: &TopicPart, reason: &str) {
        let Some(stored) = self.0.upgrade() else { return };
        if stored.counters.rejected.fetch_add(1, Ordering::Relaxed) == 0 {
            let topic = &*part.topic;
            tracing::warn!(topic, reason, "the topic store rejects a subscription");
        }
        if let (PartKind::Log, Some((hub, publisher))) = (part.part, stored.target()) {
            hub.notify_rejected(&publisher, &part.topic, reason);
        }
    }

    fn health_changed(&self, _health: StoreHealth) {
        if let Some(stored) = self.0.upgrade() {
            stored.audit.notify_one();
        }
    }
}
