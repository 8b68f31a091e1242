//! The topics to which the copies belong.

use std::time::Duration;

use sinews_server::{Position, Publisher};
use sinews_store::LogEntry;

use super::payload;
use crate::model::MessageContent;
use crate::model::publication::{Publication, PublicationSender};

/// The topics to which the copies belong.
pub(crate) trait StoredTarget: Send + Sync {
    /// Whether the store has a topic's history.
    fn has_stored_history(&self, topic: &str) -> bool;

    /// Retains and delivers a publication, which has a position.
    fn deliver_stored(&self, publisher: &Publisher, publication: &Publication<'_, '_>);

    /// Replaces a topic's history by the store's, without delivery. The first entry is behind the sequence `floor`.
    fn install_stored(
        &self,
        publisher: &Publisher,
        topic: &str,
        position: Position,
        floor: u64,
        entries: Vec<StoredEntry>,
    );

    /// Notifies a topic's subscribers that messages are lost.
    fn notify_lost(&self, publisher: &Publisher, topic: &str);

    /// Notifies a topic's subscribers that the store rejects the subscription.
    fn notify_rejected(&self, publisher: &Publisher, topic: &str, reason: &str);
}

/// A message from the store.
pub(crate) struct StoredEntry {
    pub(crate) sequence: u64,
    pub(crate) content: MessageContent,
    pub(crate) sender: PublicationSender,
    pub(crate) age: Duration,
}

impl StoredEntry {
    /// `None` if another version has written it.
    pub(super) fn read(entry: LogEntry, now: Duration) -> Option<Self> {
        let (content, sender) = payload::decode(&entry.payload)?;
        let age = now.saturating_sub(Duration::from_millis(entry.time));
        Some(Self { sequence: entry.sequence, content, sender, age })
    }
}
