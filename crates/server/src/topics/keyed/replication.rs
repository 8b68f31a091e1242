//! Keys of topics that several servers share: the means for a program that connects the servers.
//!
//! One server owns each topic: it accepts the writes, and removes expired keys. The other servers have replicas, which
//! apply the changes of the owner in order. This server knows neither the other servers nor the owner.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::state::replica::KeyRole;
use super::table::{KeyedTable, Notifier, epoch_name};
use super::topic::KeyedTopic;
use super::update::KeyedSnapshot;
use crate::topics::history::policy::Position;
use crate::topics::name::{self, InvalidTopic};
use crate::topics::publisher::Publisher;

/// Is notified of the changes of keys that this server owns ([`Server::key_replication`](crate::Server::key_replication)).
/// The calls come from any thread, must not block, and must not use the keys of topics.
pub trait KeyReplication: Send + Sync {
    /// Keys of a topic have changed. They are read by
    /// [`Publisher::owned_key_changes`](crate::Publisher::owned_key_changes).
    fn changed(&self, topic: &Arc<str>);

    /// Nothing is left of a topic: [`Publisher::release_keyed_topic`](crate::Publisher::release_keyed_topic) removes it.
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

/// Replicas may exceed the memory limit by this part of it. Servers count the same keys, but not at the same time: a
/// write that the owner has accepted usually fits.
const REPLICA_SLACK: usize = 8;

impl KeyedTable {
    fn bytes_left_for_replicas(&self) -> usize {
        let total = self.config.total_bytes;
        total.saturating_add(total / REPLICA_SLACK).saturating_sub(self.usage_bytes())
    }

    /// Changes a topic, which is created if there is none, and notifies its subscribers.
    fn change_shared<T>(
        &self,
        name: &str,
        notifier: Notifier<'_>,
        mut change: impl FnMut(&mut super::state::KeyedState) -> T,
    ) -> T {
        loop {
            let topic = self.find_or_create(name, notifier.epochs);
            let changed = self.change(&topic, |state| {
                let before = state.cursor();
                let result = change(state);
                (result, state.cursor() != before, state.ask())
            });
            let Some((result, has_changed, is_asked)) = changed else { continue };
            if has_changed {
                self.notify(&topic, notifier.posts);
            }
            if is_asked {
                self.ask_home(&topic, notifier.posts);
            }
            return result;
        }
    }

    /// Notifies the replication of a topic that this server owns.
    pub(super) fn note_owned_change(&self, topic: &KeyedTopic) {
        let Some(replication) = &self.replication else { return };
        if topic.lock().role() == KeyRole::Owner && !topic.is_noted.swap(true, Ordering::SeqCst) {
            replication.0.changed(&topic.name);
        }
    }

    fn release_owned(&self, name: &str, notifier: Notifier<'_>) -> bool {
        let Some(topic) = self.find(name) else { return true };
        let is_released = !topic.has_subscribers()
            && self.change(&topic, |state| {
                let is_empty = state.is_owned_and_empty();
                if is_empty {
                    state.set_role(KeyRole::Unowned);
                }
                is_empty
            }) != Some(false);
        if is_released {
            self.release(&topic, notifier.epochs);
        }
        is_released
    }
}

impl Publisher {
    fn shared_keys(&self) -> (&KeyedTable, Notifier<'_>) {
        let directory = self.directory();
        (&directory.keyed, Notifier { posts: self.posts(), epochs: &directory.epochs })
    }

    /// Owns the keys of a topic in an epoch, below 2^53. If the epoch is new, the sequence continues, and subscribers get
    /// a snapshot. Returns the position before.
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
            state.install(snapshot, table.bytes_left_for_replicas(), Instant::now())
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
            state.apply(after, changes, table.bytes_left_for_replicas(), Instant::now())
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

    /// Ends the ownership of a topic of which nothing is left, and removes it. Returns `false`, without effect, if it has
    /// keys, or subscribers at this server.
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
            let epoch = notifier.epochs.of(&epoch_name);
            table.change_shared(topic, notifier, |state| state.disown(epoch));
            table.release(&known, notifier.epochs);
        }
        Ok(())
    }
}
