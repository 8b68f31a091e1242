//! Copies of keys that another program has, for the program that connects both.

use std::time::Instant;

use super::keyed::config::KeyedConfig;
use super::keyed::replication::ReplicaError;
use super::keyed::table::{KeyedTable, Notifier, epoch_name};
use super::keyed::update::KeyedSnapshot;
use super::keyed::write::{KeyError, KeyWrite};
use super::name::{self, InvalidTopic};
use super::publisher::Publisher;

impl Publisher {
    fn shared_keys(&self) -> (&KeyedTable, Notifier<'_>) {
        let directory = self.directory();
        (&directory.keyed, Notifier { posts: self.posts(), epochs: &directory.epochs })
    }

    /// Replaces a topic's keys by a snapshot of the program that has them. Subscribers get a snapshot.
    ///
    /// # Errors
    /// [`ReplicaError`]; only [`ServerFull`](ReplicaError::ServerFull) changes the replica.
    pub fn install_keyed_topic(&self, snapshot: KeyedSnapshot) -> Result<(), ReplicaError> {
        let (table, notifier) = self.shared_keys();
        let name = snapshot.topic.clone();
        name::check(&name).map_err(|_| ReplicaError::Malformed)?;
        let mut snapshot = Some(snapshot);
        table.change_shared(&name, notifier, |state| {
            let Some(snapshot) = snapshot.take() else { return Ok(()) };
            let bytes_left = table.bytes_left_for_replica(&name, state);
            state.install(snapshot, bytes_left, Instant::now())
        })
    }

    /// Applies changes after a sequence to a replica.
    ///
    /// # Errors
    /// [`ReplicaError`]; only [`ServerFull`](ReplicaError::ServerFull) changes the replica.
    pub fn apply_key_changes(&self, after: u64, changes: KeyedSnapshot) -> Result<(), ReplicaError> {
        let (table, notifier) = self.shared_keys();
        let name = changes.topic.clone();
        name::check(&name).map_err(|_| ReplicaError::Malformed)?;
        let mut changes = Some(changes);
        table.change_shared(&name, notifier, |state| {
            let Some(changes) = changes.take() else { return Ok(()) };
            let bytes_left = table.bytes_left_for_replica(&name, state);
            state.apply(after, changes, bytes_left, Instant::now())
        })
    }

    /// Checks a write that another program applies. Returns the limits of keys.
    ///
    /// # Errors
    /// As [`write_key`](Self::write_key), without the topic's state.
    pub fn check_shared_write(&self, topic: &str, write: &KeyWrite) -> Result<KeyedConfig, KeyError> {
        name::check(topic)?;
        let config = self.shared_keys().0.config;
        write.check(config.value_bytes)?;
        Ok(config)
    }

    /// Removes a replica, without effect on the program that has the keys.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn disown_keyed_topic(&self, topic: &str) -> Result<(), InvalidTopic> {
        name::check(topic)?;
        let (table, notifier) = self.shared_keys();
        if let Some(known) = table.find(topic) {
            let epoch_name = epoch_name(topic);
            notifier.epochs.advance(&epoch_name);
            let epoch = notifier.epochs.epoch(&epoch_name);
            table.change_shared(topic, notifier, |state| state.disown(epoch));
            table.release(&known, notifier.epochs);
        }
        Ok(())
    }
}
