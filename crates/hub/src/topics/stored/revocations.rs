//! Revocations in the store: a node that joins later reads them, and they survive the end of all nodes.
//!
//! Each is a key of one topic, with the time until it ends. Nodes follow that topic, so that a revocation reaches them
//! also if the message to all nodes is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sinews_store::{KeyCommand, KeyCommands, KeyLimits, StoreError, StoredKey};

use super::key_topic::KeyReader;
use super::shared::StoredTopics;
use crate::access::auth::{Revocation, Revocations};
use crate::connections::ConnectionRegistry;

/// The topic. No client can use it: names that begin so are reserved.
const TOPIC: &str = "$pusher.revocations";

/// Limits for the topic: more than a node has.
const LIMITS: KeyLimits = KeyLimits { keys: 1 << 17, bytes: 128 << 20 };

/// Revocations in one request.
const WRITES_MAX: usize = 256;

/// The revocations of this node, which the store has, too.
pub(super) struct StoredRevocations {
    revocations: Arc<Revocations>,
    connections: Arc<ConnectionRegistry>,
    /// The store perhaps lacks some.
    is_incomplete: AtomicBool,
}

impl KeyReader for StoredRevocations {
    fn read(&self, keys: &[StoredKey], is_all: bool) {
        let read = |key: &StoredKey| serde_json::from_slice(key.value.as_ref()?).ok();
        let all: Vec<Revocation> = keys.iter().filter_map(read).collect();
        self.connections.revoke(&self.revocations, &all);
        // Those from this node's file, for example.
        if is_all && self.revocations.all().iter().any(|known| !all.contains(known)) {
            self.is_incomplete.store(true, Ordering::Release);
        }
    }
}

impl StoredTopics {
    /// Reads the revocations in the store from now on. Called once, at the start.
    pub(crate) fn share_revocations(
        &self,
        revocations: Arc<Revocations>,
        connections: Arc<ConnectionRegistry>,
    ) {
        let is_incomplete = AtomicBool::new(false);
        let shared = Arc::new(StoredRevocations { revocations, connections, is_incomplete });
        // The first call sets it.
        if self.revocations.set(Arc::clone(&shared)).is_ok() {
            self.read_keys_with(TOPIC, shared);
        }
    }

    /// Stores revocations that are in effect at this node. If it fails, they are stored when the store is back.
    ///
    /// # Errors
    /// The store does not have all of them yet.
    pub(crate) async fn store_revocations(&self, all: Vec<Revocation>) -> Result<(), StoreError> {
        let Some(shared) = self.revocations.get() else { return Ok(()) };
        let writes: Vec<KeyCommand> = all.iter().filter_map(command).collect();
        let requests = writes.chunks(WRITES_MAX).map(|writes| {
            self.store.write_keys(KeyCommands {
                topic: TOPIC.into(),
                writes: writes.to_vec(),
                limits: LIMITS,
            })
        });
        let written: Result<Vec<_>, StoreError> = join_all(requests).await.into_iter().collect();
        if written.is_err() {
            shared.is_incomplete.store(true, Ordering::Release);
        }
        written.map(drop)
    }

    /// Stores the revocations that the store may lack. Called while it answers.
    pub(super) async fn complete_revocations(&self) {
        if let Some(shared) = self.revocations.get()
            && shared.is_incomplete.swap(false, Ordering::AcqRel)
        {
            // The next call repeats it.
            let _ = self.store_revocations(shared.revocations.all()).await;
        }
    }
}

/// Sets a revocation's key; `None` if it has ended.
fn command(revocation: &Revocation) -> Option<KeyCommand> {
    let left = Duration::try_from_secs_f64(revocation.seconds_left()).ok().filter(|left| !left.is_zero())?;
    // These types are always encoded.
    let [key, value] = [serde_json::to_string(&revocation.tokens), serde_json::to_string(revocation)];
    Some(KeyCommand {
        key: key.ok()?.into(),
        value: Some(value.ok()?.into()),
        ttl: Some(left.max(Duration::from_millis(1))),
        condition: None,
        once: None,
    })
}
