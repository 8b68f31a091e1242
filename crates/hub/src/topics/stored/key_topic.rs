//! A node's copy of a topic's keys, and its use.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sinews_server::ReplicaError;
use sinews_store::{KeyCopy, StoredKey};

use super::log_topic::UNUSED_MAX;

/// This node's copy of a topic's keys.
pub(super) struct KeyTopic {
    pub(super) topic: Arc<str>,
    pub(super) state: Mutex<KeyTopicState>,
    /// Gets the keys, in place of the server's topics.
    pub(super) reader: Option<Arc<dyn KeyReader>>,
}

/// Reads keys that nodes share among themselves. Called in the order of the changes, and must not block.
pub(super) trait KeyReader: Send + Sync {
    /// Keys have changed; `is_all`: these are all keys with a value.
    fn read(&self, keys: &[StoredKey], is_all: bool);
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
