//! Settings of the keys of topics.

use std::sync::Arc;

use sinews_session::Prepared;

use super::Server;
use crate::topics::{EncodeKeys, KeyLog, KeyedConfig, KeyedTable, KeyedUpdate, SharedKeyLog};

/// What encodes, stores and shares keys.
#[derive(Debug, Default)]
pub(super) struct KeyedSetup {
    encode: Option<EncodeKeys>,
    log: Option<SharedKeyLog>,
    is_shared: bool,
}

impl KeyedSetup {
    pub(super) fn into_table(self, threads: usize, config: KeyedConfig) -> KeyedTable {
        KeyedTable::new(threads, config, self.encode).with_log(self.log).with_shared(self.is_shared)
    }
}

impl Server {
    /// Sets the encoder of updates of keys: the message to the subscribers of a topic's keys
    /// ([`Context::subscribe_keys`](crate::Context::subscribe_keys)). It runs once for all subscribers with the same
    /// filter and interval that are not behind, on one of the threads, and must not block. Default: none, and keys
    /// cannot be subscribed to.
    ///
    /// ```
    /// use sinews_server::{Prepared, Router, Server};
    ///
    /// let server = Server::new(Router::new()).keyed_topics(|update| {
    ///     let keys: Vec<&str> = update.changes().iter().map(|change| change.key()).collect();
    ///     Prepared::text(format!("changed in {}: {keys:?}", update.topic()))
    /// });
    /// # drop(server);
    /// ```
    #[must_use]
    pub fn keyed_topics(
        mut self,
        encode: impl Fn(&KeyedUpdate<'_>) -> Prepared + Send + Sync + 'static,
    ) -> Self {
        self.keyed.encode = Some(EncodeKeys(Box::new(encode)));
        self
    }

    /// Sets the log that stores the keys of topics: writes of its topics are applied when it has stored them. Default:
    /// none; keys are in memory.
    #[must_use]
    pub fn key_log(mut self, log: Arc<dyn KeyLog>) -> Self {
        self.keyed.log = Some(SharedKeyLog(log));
        self
    }

    /// Makes the keys of topics copies of those that another program has, such as a store of several servers: writes
    /// are rejected with [`KeyError::NotOwner`](crate::KeyError::NotOwner), and
    /// [`Publisher::install_keyed_topic`](crate::Publisher::install_keyed_topic) and
    /// [`Publisher::apply_key_changes`](crate::Publisher::apply_key_changes) set the keys. Default: the server has its
    /// own keys.
    #[must_use]
    pub fn shared_keys(mut self) -> Self {
        self.keyed.is_shared = true;
        self
    }
}
