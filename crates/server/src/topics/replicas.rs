//! Keys of topics that several servers share, for the program that connects the servers.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::history::policy::Position;
use super::keyed::config::KeyedConfig;
use super::keyed::replication::ReplicaError;
use super::keyed::state::replica::KeyRole;
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

    /// Owns the keys of a topic in an epoch, below 2^53. If the epoch is new, the sequence continues, and subscribers
    /// get a snapshot. Returns the position before.
    ///
    /// # Errors
    /// [`ReplicaError::HandedOver`].
    pub fn own_keyed_topic(&self, topic: &str, epoch: u64) -> Result<Position, ReplicaError> {
        let (table, notifier) = self.shared_keys();
        name::check(topic).map_err(|_| ReplicaError::Malformed)?;
        table.change_shared(topic, notifier, |state| {
            let before = state.position();
            state.own(epoch).map(|()| before)
        })
    }

    /// Ends the ownership of a topic: another server owns it, perhaps with other keys.
    pub fn follow_keyed_topic(&self, topic: &str) {
        let (table, notifier) = self.shared_keys();
        if name::check(topic).is_ok() {
            table.change_shared(topic, notifier, |state| state.set_role(KeyRole::Replica));
        }
    }

    /// Continues a replica at this position in the epoch of a new owner, which has the same keys. Subscribers get a
    /// snapshot.
    ///
    /// # Errors
    /// [`ReplicaError::OtherEpoch`]: the replica has another position. [`ReplicaError::HandedOver`].
    pub fn adopt_keyed_topic(&self, topic: &str, from: Position, epoch: u64) -> Result<(), ReplicaError> {
        let (table, notifier) = self.shared_keys();
        name::check(topic).map_err(|_| ReplicaError::Malformed)?;
        table.change_shared(topic, notifier, |state| {
            if state.position() == from && !state.is_refused() {
                state.adopt(epoch)
            } else {
                Err(ReplicaError::OtherEpoch)
            }
        })
    }

    /// Replaces a replica by a snapshot of its owner. Subscribers get a snapshot.
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

    /// Applies changes of the owner after a sequence to a replica.
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

    /// Returns the changes of a topic that this server owns after a sequence, of about this size: the position is that
    /// of the last one. `None`: it does not own the topic, or has forgotten removals after the sequence; then
    /// [`shared_keyed_topic`](Self::shared_keyed_topic) has all keys. After this call, the next change leads to another
    /// notification.
    #[must_use]
    pub fn owned_key_changes(&self, topic: &str, after: u64, bytes_max: usize) -> Option<KeyedSnapshot> {
        let topic = self.shared_keys().0.find(topic)?;
        topic.is_noted.store(false, Ordering::SeqCst);
        let state = topic.lock();
        let is_owned = state.role() == KeyRole::Owner;
        is_owned.then(|| state.export_changes(&topic.name, after, bytes_max, Instant::now())).flatten()
    }

    /// Returns the changes of a topic after a position, of about this size: the position is that of the last one.
    /// `None`: the topic is in another epoch, or has forgotten removals after the position; then
    /// [`shared_keyed_topic`](Self::shared_keyed_topic) has all keys.
    #[must_use]
    pub fn keyed_changes(&self, topic: &str, after: Position, bytes_max: usize) -> Option<KeyedSnapshot> {
        let topic = self.shared_keys().0.find(topic)?;
        let state = topic.lock();
        let is_same = state.position().epoch == after.epoch;
        is_same
            .then(|| state.export_changes(&topic.name, after.sequence, bytes_max, Instant::now()))
            .flatten()
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

    /// Returns all keys of a topic.
    #[must_use]
    pub fn shared_keyed_topic(&self, topic: &str) -> Option<KeyedSnapshot> {
        let topic = self.shared_keys().0.find(topic)?;
        let snapshot = topic.lock().export(&topic.name, Instant::now());
        Some(snapshot)
    }

    /// Returns the position of the last change of a topic's keys.
    #[must_use]
    pub fn keyed_position(&self, topic: &str) -> Option<Position> {
        let topic = self.shared_keys().0.find(topic)?;
        let position = topic.lock().position();
        Some(position)
    }

    /// Ends the ownership of a topic of which nothing is left, and removes it. Returns `false`, without effect, if it
    /// has keys, or subscribers at this server.
    #[must_use]
    pub fn release_keyed_topic(&self, topic: &str) -> bool {
        let (table, notifier) = self.shared_keys();
        table.release_owned(topic, notifier)
    }

    /// Removes the keys of a topic that no server owns any more, without effect on other servers.
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
