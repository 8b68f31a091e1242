//! A node's copy of a topic's keys, and its use.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sinews_server::ReplicaError;
use sinews_store::KeyCopy;

use super::log_topic::UNUSED_MAX;

/// This node's copy of a topic's keys.
pub(super) struct KeyTopic {
    pub(super) topic: Arc<str>,
    pub(super) state: Mutex<KeyTopicState>,
}

pub(super) struct KeyTopicState {
    pub(super) copy: KeyCopy,
    /// The keys exceed this node's memory.
    pub(super) is_refused: bool,
    pub(super) used: Instant,
}

impl KeyTopicState {
    pub(super) fn is_unused(&self) -> bool {
        self.used.elapsed() > UNUSED_MAX
    }

    pub(super) fn note_installed(&mut self, topic: &str, result: Result<(), ReplicaError>) {
        self.is_refused = match result {
            Ok(()) => false,
            Err(ReplicaError::ServerFull) => {
                tracing::error!(topic, "the keys of a topic exceed limits.max_keyed_memory of this node");
                true
            }
            // A successor process has the keys.
            Err(ReplicaError::HandedOver) => false,
            Err(error) => {
                tracing::error!(topic, ?error, "changes of keys do not follow this node's copy");
                self.is_refused
            }
        };
    }
}
