//! Keys of topics that several servers share: the means for a program that connects the servers.
//!
//! One server owns each topic: it accepts the writes, and removes expired keys. The other servers have replicas, which
//! apply the changes of the owner in order. This server knows neither the other servers nor the owner.

use std::fmt;
use std::sync::Arc;

/// Is notified of the changes of keys that this server owns
/// ([`Server::key_replication`](crate::Server::key_replication)). The calls come from any thread, must not block, and
/// must not use the keys of topics.
pub trait KeyReplication: Send + Sync {
    /// Keys of a topic have changed. They are read by
    /// [`Publisher::owned_key_changes`](crate::Publisher::owned_key_changes).
    fn changed(&self, topic: &Arc<str>);

    /// Nothing is left of a topic: [`Publisher::release_keyed_topic`](crate::Publisher::release_keyed_topic) removes
    /// it.
    fn emptied(&self, topic: &Arc<str>);
}

/// The replication of a server.
#[derive(Clone)]
pub(crate) struct SharedKeyReplication(pub(crate) Arc<dyn KeyReplication>);

impl fmt::Debug for SharedKeyReplication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKeyReplication")
    }
}

/// Why a replica was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaError {
    /// Changes before these are missing.
    Gap,
    /// The replica has another epoch, or this server owns the topic.
    OtherEpoch,
    /// The replica does not fit into
    /// [`KeyedConfig::with_max_total_bytes`](crate::KeyedConfig::with_max_total_bytes) and an eighth more. Its keys are
    /// removed, and its subscribers are notified ([`KeyedUpdate::is_unavailable`](crate::KeyedUpdate::is_unavailable)).
    ServerFull,
    /// The changes are out of order, or a key is no key.
    Malformed,
    /// A successor process has the keys.
    HandedOver,
}
