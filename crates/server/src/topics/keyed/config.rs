//! Limits for keyed topics.

/// Limits for the topics' keys ([`Context::write_key`](crate::Context::write_key)). Keys are state, so none is evicted:
/// a write beyond a limit is rejected, and removals are always accepted.
///
/// A key counts its name, its value and 256 bytes; a removed key counts until it is forgotten. A topic with keys counts
/// its name and 2,048 bytes, and a remembered idempotency key its names and 160 bytes.
#[derive(Clone, Copy, Debug)]
pub struct KeyedConfig {
    pub(crate) keys: usize,
    pub(crate) value_bytes: usize,
    pub(crate) topic_bytes: usize,
    pub(crate) total_bytes: usize,
    pub(crate) client_bytes: usize,
}

impl Default for KeyedConfig {
    fn default() -> Self {
        Self {
            keys: 10_000,
            value_bytes: 64 << 10,
            topic_bytes: 16 << 20,
            total_bytes: 64 << 20,
            client_bytes: 16 << 20,
        }
    }
}

impl KeyedConfig {
    /// Maximum keys in one topic. Default 10,000: a snapshot with small values is below 1 MiB.
    #[must_use]
    pub fn with_max_keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Returns the maximum of keys in one topic.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.keys
    }

    /// Returns the memory limit for one topic's keys, in bytes.
    #[must_use]
    pub fn max_topic_bytes(&self) -> usize {
        self.topic_bytes
    }

    /// Maximum value size in bytes. Default 64 KiB: each change repeats the whole value for each subscriber.
    #[must_use]
    pub fn with_max_value_bytes(mut self, bytes: usize) -> Self {
        self.value_bytes = bytes;
        self
    }

    /// Approximate memory limit for one topic's keys, in bytes. Default 16 MiB, the size of a snapshot to a new
    /// subscriber.
    #[must_use]
    pub fn with_max_topic_bytes(mut self, bytes: usize) -> Self {
        self.topic_bytes = bytes;
        self
    }

    /// Approximate memory limit for one client's keys ([`KeyWrite::with_client`](crate::KeyWrite::with_client)) in all
    /// topics, in bytes: for the keys that it has written last, and for the topics whose first key it has written. A
    /// key that is removed frees its value at once, and the rest when it is forgotten. Keys from another server, an
    /// earlier process or a log count toward no client. Default 16 MiB, so that one client can fill one topic, and not
    /// all of them.
    #[must_use]
    pub fn with_max_client_bytes(mut self, bytes: usize) -> Self {
        self.client_bytes = bytes;
        self
    }

    /// Approximate memory limit for all topics' keys, in bytes. Default 64 MiB. The snapshots that subscribers read may
    /// have twice this number: above it, their encoded parts are dropped, and encoded again when a reader needs them.
    /// If names and values alone exceed it, a snapshot is discarded, and its readers begin again.
    #[must_use]
    pub fn with_max_total_bytes(mut self, bytes: usize) -> Self {
        self.total_bytes = bytes;
        self
    }
}
