//! Copies of a topic's keys, which another program has: it accepts the writes, and removes expired keys.

use std::time::Instant;

use super::{KeyedState, cost};
use crate::topics::history::policy::Position;
use crate::topics::keyed::replication::ReplicaError;
use crate::topics::keyed::update::{KeySnapshot, KeyedSnapshot};
use crate::topics::keyed::write::check_key;

/// The part of this server in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyRole {
    /// This server has the keys: it accepts writes, and removes expired keys.
    #[default]
    Alone,
    /// This server has a copy.
    Replica,
    /// This server may have a copy, and has none.
    NoReplica,
}

impl KeyRole {
    pub(super) fn accepts_writes(self) -> bool {
        self == Self::Alone
    }

    /// Whether the table may remove a topic without keys. A copy has a position.
    pub(super) fn is_removable(self) -> bool {
        self != Self::Replica
    }
}

impl KeyedState {
    pub(crate) fn set_role(&mut self, role: KeyRole) {
        self.role = role;
    }

    /// Returns whether the replica has not fit into the memory limit.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns the position of a cursor in this epoch.
    pub(crate) fn position_at(&self, cursor: u64) -> Position {
        Position { epoch: self.epoch, sequence: cursor - self.base }
    }

    /// Makes the cursors of this state higher than a cursor of an earlier one.
    fn rebase(&mut self, earlier: u64) {
        self.base = (earlier + 1).max(self.forgotten) - self.forgotten;
    }

    fn check_unfrozen(&self) -> Result<(), ReplicaError> {
        if self.frozen { Err(ReplicaError::HandedOver) } else { Ok(()) }
    }

    /// Applies changes after a sequence to a replica. Changes that it has already are left out.
    pub(crate) fn apply(
        &mut self,
        after: u64,
        changes: KeyedSnapshot,
        bytes_left: usize,
        now: Instant,
    ) -> Result<(), ReplicaError> {
        self.check_unfrozen()?;
        let end = changes.position.sequence;
        if self.role != KeyRole::Replica || self.refused || changes.position.epoch != self.epoch {
            return Err(ReplicaError::OtherEpoch);
        }
        if after > self.sequence {
            return Err(ReplicaError::Gap);
        }
        if end <= self.sequence {
            return Ok(());
        }
        let mut last = self.sequence;
        let new: Vec<KeySnapshot> = changes.keys.into_iter().filter(|key| key.version > last).collect();
        for key in &new {
            if key.version <= last || key.version > end || check_key(&key.key).is_err() {
                return Err(ReplicaError::Malformed);
            }
            last = key.version;
        }
        if new.iter().map(|key| cost(&key.key, key.value.as_ref())).sum::<usize>() > bytes_left {
            self.refuse();
            return Err(ReplicaError::ServerFull);
        }
        new.into_iter().for_each(|key| self.put_snapshot(key, now));
        self.sequence = end;
        self.forgotten = self.forgotten.max(changes.forgotten.min(end));
        Ok(())
    }

    /// Replaces the keys by a snapshot. Subscribers get it.
    pub(crate) fn install(
        &mut self,
        snapshot: KeyedSnapshot,
        bytes_left: usize,
        now: Instant,
    ) -> Result<(), ReplicaError> {
        self.check_unfrozen()?;
        let mut last = 0;
        for key in &snapshot.keys {
            let is_in_order = key.version > last && key.version <= snapshot.position.sequence;
            if !is_in_order || check_key(&key.key).is_err() {
                return Err(ReplicaError::Malformed);
            }
            last = key.version;
        }
        let bytes: usize = snapshot.keys.iter().map(|key| cost(&key.key, key.value.as_ref())).sum();
        if bytes > bytes_left.saturating_add(self.bytes()) {
            self.refuse();
            return Err(ReplicaError::ServerFull);
        }
        let end = snapshot.position.sequence;
        self.replace_by(snapshot, KeyRole::Replica, now);
        debug_assert_eq!(self.sequence, end);
        Ok(())
    }

    /// Removes the keys of a replica that does not fit into the memory limit: it is never incomplete.
    fn refuse(&mut self) {
        let (topic, keys) = (String::new(), Vec::new());
        let position = Position { epoch: self.epoch, sequence: 0 };
        let nothing = KeyedSnapshot { topic, position, forgotten: 0, keys, recent: Vec::new() };
        self.replace_by(nothing, KeyRole::Replica, Instant::now());
        self.refused = true;
    }

    /// Removes the copy. Subscribers get an empty snapshot if there were keys.
    pub(crate) fn disown(&mut self, epoch: u64) {
        if self.frozen {
            return;
        }
        if self.keys.is_empty() && !self.refused {
            self.role = KeyRole::NoReplica;
            return;
        }
        let (topic, keys) = (String::new(), Vec::new());
        let position = Position { epoch, sequence: 0 };
        let nothing = KeyedSnapshot { topic, position, forgotten: 0, keys, recent: Vec::new() };
        self.replace_by(nothing, KeyRole::NoReplica, Instant::now());
    }

    fn replace_by(&mut self, snapshot: KeyedSnapshot, role: KeyRole, now: Instant) {
        let cursor = self.cursor();
        let (armed, is_asked, shares) = (self.armed, self.is_asked, self.free_shares());
        *self = Self::new(snapshot.position.epoch);
        (self.armed, self.is_asked, self.role, self.shares) = (armed, is_asked, role, shares);
        snapshot.keys.into_iter().for_each(|key| self.put_snapshot(key, now));
        self.sequence = snapshot.position.sequence;
        self.forgotten = snapshot.forgotten.min(self.sequence);
        self.rebase(cursor);
    }
}

#[cfg(test)]
mod tests;
