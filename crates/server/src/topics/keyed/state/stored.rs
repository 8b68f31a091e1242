//! Keys that a log stores. A change is pending until the log has stored it: conditions and limits see it, readers do
//! not.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::{KeyState, KeyedState, WriteLimits, cost, named_bytes};
use crate::topics::history::policy::Position;
use crate::topics::keyed::log::LoggedChange;
use crate::topics::keyed::recent::RecentWrites;
use crate::topics::keyed::write::{KeyError, KeyWrite, KeyWritten};

/// Time until an expired key is removed again, after the log has not stored its removal.
const RETRY: Duration = Duration::from_secs(1);

/// Changes on their way to the log.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    /// In the order of the log.
    changes: VecDeque<PendingChange>,
    /// The last pending change of each key: its ticket, and its version; `None` if it removes the key.
    newest: HashMap<Arc<str>, (u64, Option<u64>)>,
    last_ticket: u64,
    /// Pending changes that create a key.
    new_keys: usize,
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct PendingChange {
    ticket: u64,
    sequence: u64,
    key: Arc<str>,
    value: Option<Bytes>,
    expires: Option<Instant>,
    idempotency_key: Option<Box<str>>,
    is_new_key: bool,
    client: Option<NonZeroU64>,
}

impl PendingChange {
    fn bytes(&self) -> usize {
        let named = self.idempotency_key.as_deref().map_or(0, |name| RecentWrites::cost(&self.key, name));
        cost(&self.key, self.value.as_ref()) + named
    }
}

/// Appends a change to the log, and returns its sequence.
pub(in crate::topics::keyed) type AppendChange<'a> = &'a dyn Fn(&LoggedChange<'_>) -> Result<u64, KeyError>;

impl PendingChanges {
    fn push(&mut self, change: PendingChange) {
        self.bytes += change.bytes();
        self.new_keys += usize::from(change.is_new_key);
        let version = change.value.is_some().then_some(change.sequence);
        self.newest.insert(change.key.clone(), (change.ticket, version));
        self.changes.push_back(change);
    }

    fn remove(&mut self, ticket: u64) -> Option<PendingChange> {
        let at = self.changes.iter().position(|change| change.ticket == ticket)?;
        let change = self.changes.remove(at)?;
        self.bytes -= change.bytes();
        self.new_keys -= usize::from(change.is_new_key);
        if self.newest.get(&change.key).is_some_and(|(newest, _)| *newest == ticket) {
            self.newest.remove(&change.key);
        }
        Some(change)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl KeyedState {
    /// Makes a log store the keys of a topic without changes.
    pub(in crate::topics::keyed) fn store(&mut self) {
        self.stored = Some(Box::default());
    }

    /// Returns whether a log stores the keys.
    pub(in crate::topics::keyed) fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// Appends a write to the log. It is applied by [`commit`](Self::commit).
    pub(in crate::topics::keyed) fn write_to_log(
        &mut self,
        write: &KeyWrite,
        limits: WriteLimits,
        now: Instant,
        append: AppendChange<'_>,
    ) -> Result<KeyWritten, KeyError> {
        if self.frozen {
            return Err(KeyError::HandedOver);
        }
        self.expire(now, limits.config.keys);
        let position = |sequence| Position { epoch: self.epoch, sequence };
        if let Some((sequence, pending)) = self.find_repeated(write) {
            let position = position(sequence);
            return Ok(KeyWritten { position, changed: true, repeated: true, pending });
        }
        let version = self.newest_version(&write.key, now);
        self.check_condition(write.condition, version)?;
        let pending = self.stored.as_ref().and_then(|stored| stored.newest.get(&write.key));
        let needed = match &write.value {
            Some(value) => {
                self.check_share(write, value, limits)?;
                self.check_limits_with_pending(write, value, version.is_none(), limits.for_write(write))?
            }
            None if version.is_some() => named_bytes(write),
            None => {
                let (position, pending) = (self.position(), pending.map(|(ticket, _)| *ticket));
                return Ok(KeyWritten { position, changed: false, repeated: false, pending });
            }
        };
        self.make_space(needed, limits);
        let (ticket, sequence) = self.append_change(write, now, append)?;
        let position = Position { epoch: self.epoch, sequence };
        Ok(KeyWritten { position, changed: true, repeated: false, pending: Some(ticket) })
    }

    /// Returns the sequence of an earlier write with the same idempotency key, and its ticket if it is pending.
    fn find_repeated(&self, write: &KeyWrite) -> Option<(u64, Option<u64>)> {
        let name = write.idempotency_key.as_deref()?;
        if let Some(sequence) = self.recent.find(&write.key, name) {
            return Some((sequence, None));
        }
        let mut pending = self.stored.as_ref()?.changes.iter().rev();
        let found = pending
            .find(|change| change.key == write.key && change.idempotency_key.as_deref() == Some(name))?;
        Some((found.sequence, Some(found.ticket)))
    }

    /// Returns the version that a key has after all pending changes.
    fn newest_version(&self, key: &Arc<str>, now: Instant) -> Option<u64> {
        if let Some((_, version)) = self.stored.as_ref().and_then(|stored| stored.newest.get(key)) {
            return *version;
        }
        let known = self.keys.get(key)?;
        let is_set = known.value.is_some() && known.expires.is_none_or(|due| due > now);
        is_set.then_some(known.version)
    }

    fn check_limits_with_pending(
        &self,
        write: &KeyWrite,
        value: &Bytes,
        is_new: bool,
        mut limits: WriteLimits,
    ) -> Result<usize, KeyError> {
        let pending = self.stored.as_ref().map_or((0, 0), |stored| (stored.new_keys, stored.bytes));
        if is_new && self.len() + pending.0 >= limits.config.keys {
            return Err(KeyError::TooManyKeys(limits.config.keys));
        }
        limits.config.topic_bytes = limits.config.topic_bytes.saturating_sub(pending.1);
        // The number of keys was compared.
        limits.config.keys = usize::MAX;
        self.check_limits(&write.key, value, named_bytes(write), limits)
    }

    /// Appends a checked write to the log. Returns its ticket and its sequence.
    fn append_change(
        &mut self,
        write: &KeyWrite,
        now: Instant,
        append: AppendChange<'_>,
    ) -> Result<(u64, u64), KeyError> {
        let is_new_key = write.value.is_some() && self.newest_version(&write.key, now).is_none();
        let Some(stored) = &mut self.stored else { return Err(KeyError::HandedOver) };
        let ticket = stored.last_ticket + 1;
        let ttl = write.ttl.filter(|_| write.value.is_some());
        let sequence = append(&LoggedChange {
            ticket,
            key: &write.key,
            value: write.value.as_ref(),
            expires: ttl.map(|ttl| SystemTime::now() + ttl),
            idempotency_key: write.idempotency_key.as_deref(),
            client: write.client,
        })?;
        stored.last_ticket = ticket;
        let change = PendingChange {
            ticket,
            sequence,
            key: write.key.clone(),
            value: write.value.clone(),
            expires: ttl.map(|ttl| now + ttl),
            idempotency_key: write.idempotency_key.clone(),
            is_new_key,
            client: write.client,
        };
        let bytes = change.bytes();
        stored.push(change);
        self.note_share(write.client, bytes, false);
        Ok((ticket, sequence))
    }

    /// Takes a change that is no longer pending.
    fn take_pending(&mut self, ticket: u64) -> Option<PendingChange> {
        let change = self.stored.as_mut()?.remove(ticket)?;
        self.note_share(change.client, change.bytes(), true);
        Some(change)
    }

    /// Applies a change that the log has stored.
    pub(in crate::topics::keyed) fn commit(&mut self, ticket: u64, now: Instant) {
        let Some(change) = self.take_pending(ticket) else { return };
        let PendingChange { sequence, key, value, expires, idempotency_key, client, .. } = change;
        // The log assigns them in order.
        if sequence <= self.sequence {
            return;
        }
        self.put(&key, KeyState { version: sequence, value, expires, client }, now);
        if let Some(name) = idempotency_key {
            self.recent.insert(&key, &name, sequence, now);
        }
    }

    /// Drops a change that the log has not stored.
    pub(in crate::topics::keyed) fn abort(&mut self, ticket: u64, now: Instant) {
        let Some(change) = self.take_pending(ticket) else { return };
        // Perhaps its removal has failed, or was not tried because of this change.
        if let Some(due) = self.keys.get(&change.key).and_then(|known| known.expires) {
            self.expiries.insert((due.max(now + RETRY), change.key));
        }
    }

    /// Appends removals of expired keys to the log.
    pub(in crate::topics::keyed) fn expire_to_log(&mut self, now: Instant, append: AppendChange<'_>) {
        if self.frozen || self.stored.is_none() {
            return;
        }
        while let Some((due, key)) = self.expiries.first()
            && *due <= now
        {
            let (due, key) = (*due, key.clone());
            self.expiries.remove(&(due, key.clone()));
            let is_due = self.keys.get(&key).is_some_and(|known| known.expires.is_some_and(|due| due <= now));
            let is_changing = self.stored.as_ref().is_some_and(|stored| stored.newest.contains_key(&key));
            if !is_due || is_changing {
                continue;
            }
            if self.append_change(&KeyWrite::delete(key.clone()), now, append).is_err() {
                self.expiries.insert((now + RETRY, key));
            }
        }
    }
}

#[cfg(test)]
mod tests;
