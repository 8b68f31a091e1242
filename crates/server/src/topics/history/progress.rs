//! Progress of a thread and of its late subscribers in a topic with history.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sinews_engine::ConnId;

use crate::topics::entry::TopicEntry;

/// Progress of a thread in a topic with history, or with versions, that has local subscribers by name.
#[derive(Debug, Default)]
pub(crate) struct TopicProgress {
    pub(crate) epoch: u64,
    /// The last message taken from the mail; all earlier messages were taken, too. Without a history, the last version
    /// that was delivered.
    pub(crate) seen: u64,
    /// The last message before the first subscriber.
    pub(crate) floor: u64,
    /// First sequence of live delivery for each subscriber; [`NOT_LIVE`] during its replay.
    pub(crate) joined: FxHashMap<ConnId, u64>,
}

/// Replay of earlier messages to a subscriber.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) topic: usize,
    pub(crate) entry: Arc<TopicEntry>,
    pub(crate) next: u64,
}

impl TopicProgress {
    /// Handles a topic without messages that has taken the epoch of another server. Returns whether it has.
    #[cold]
    pub(crate) fn advance_epoch(&mut self, entry: &TopicEntry, epoch: u64) -> bool {
        let Some(history) = entry.history() else { return false };
        let ring = history.lock();
        if ring.epoch != epoch {
            return false;
        }
        // Subscribers that get no message yet have no position of another epoch.
        self.joined.retain(|_, from| *from == NOT_LIVE);
        (self.epoch, self.seen, self.floor) = (epoch, 0, (ring.first() - 1).max(ring.unpublished));
        true
    }
}

/// Not before the end of the replay.
pub(crate) const NOT_LIVE: u64 = u64::MAX;
