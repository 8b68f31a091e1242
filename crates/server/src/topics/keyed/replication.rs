//! Errors of replicas: this server's copies of keys that another program has.

/// Why a replica was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaError {
    /// Changes before these are missing.
    Gap,
    /// The replica has another epoch, or no keys.
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
