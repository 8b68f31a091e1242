//! The topics to which the copies belong.

use std::sync::Arc;
use std::time::Duration;

use sinews_server::{Position, Publisher};
use sinews_store::LogEntry;

use super::payload::{self, StoredPayload};
use crate::model::MessageContent;
use crate::model::publication::{Publication, PublicationSender};
use crate::model::stamp::VerifiedSender;

/// The topics to which the copies belong.
pub(crate) trait StoredTarget: Send + Sync {
    /// Whether the store has a topic's history.
    fn has_stored_history(&self, topic: &str) -> bool;

    /// Retains and delivers a publication, which has a position.
    fn deliver_stored(&self, publisher: &Publisher, publication: &Publication<'_, '_>);

    /// Replaces a topic's history by the store's, without delivery.
    fn install_stored(&self, publisher: &Publisher, topic: &str, position: Position, entries: StoredEntries);

    /// Delivers a publication that the store does not have, also to the other nodes, without a position.
    fn deliver_unstored(&self, publisher: &Publisher, publication: &Publication<'_, '_>);

    /// Sets the position of a topic's last message, which no history has.
    fn pass_message(&self, publisher: &Publisher, topic: &str, position: Position);

    /// Notifies a topic's subscribers that messages are lost.
    fn notify_lost(&self, publisher: &Publisher, topic: &str);

    /// Notifies a topic's subscribers that the store rejects the subscription.
    fn notify_rejected(&self, publisher: &Publisher, topic: &str, reason: &str);
}

/// A topic's messages from the store, in order.
pub(crate) struct StoredEntries {
    /// The sequence before the first one.
    pub(crate) floor: u64,
    /// The last sequence that marks publications which the store does not have; 0: none.
    pub(crate) passed: u64,
    pub(crate) entries: Vec<StoredEntry>,
}

impl StoredEntries {
    pub(super) fn read(floor: u64, entries: Vec<LogEntry>, now: Duration) -> Self {
        let mark = entries.iter().rfind(|entry| payload::is_mark(&entry.payload));
        let passed = mark.map_or(0, |mark| mark.sequence);
        let entries = entries.into_iter().filter_map(|entry| StoredEntry::read(entry, now)).collect();
        Self { floor, passed, entries }
    }
}

/// A message from the store.
pub(crate) struct StoredEntry {
    pub(crate) sequence: u64,
    pub(crate) content: MessageContent,
    pub(crate) sender: PublicationSender,
    pub(crate) verified: Option<Arc<VerifiedSender>>,
    /// When it was published, in milliseconds since 1970.
    pub(crate) time: u64,
    pub(crate) age: Duration,
}

impl StoredEntry {
    /// `None` for a mark, or if another version has written it.
    pub(super) fn read(entry: LogEntry, now: Duration) -> Option<Self> {
        let StoredPayload { content, sender, verified } = payload::decode(&entry.payload)?;
        let LogEntry { sequence, time, .. } = entry;
        let age = now.saturating_sub(Duration::from_millis(time));
        Some(Self { sequence, content, sender, verified, time, age })
    }
}
