//! One topic's keys: their values, and an index by their last changes.
//!
//! The index is a compacted log: each key is in it once, at its last change's sequence. A reader that has all changes
//! up to a sequence reads the log from there: what waits for it is bounded by the key count, and a value that was
//! replaced is never read. Removed keys stay in the log for a while. A reader from before a forgotten removal needs a
//! snapshot.

pub(crate) mod replica;
mod shares;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::config::KeyedConfig;
use super::recent::RecentWrites;
use super::update::{KeyChange, KeySnapshot, KeyedSnapshot, RecentKeyWrite};
use super::write::{KeyCondition, KeyError, KeyWrite, KeyWritten};
use crate::topics::history::policy::Position;
use crate::topics::name;
use replica::KeyRole;
use stored::PendingChanges;

/// How long a removed key is remembered: readers that reconnect sooner, or are slower by less, need no snapshot.
const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// Approximate memory per key besides its name and value, in bytes.
pub(super) const KEY_COST: usize = 256;

/// Approximate memory per topic with keys besides its name and keys, in bytes: mostly the indexes' first nodes.
pub(super) const TOPIC_COST: usize = 2_048;

/// Maximum keys that one read looks at, so that writers wait only briefly.
const SCAN_MAX: usize = 4_096;

/// A topic's keys.
#[derive(Debug)]
pub(crate) struct KeyedState {
    epoch: u64,
    /// Sequence at the last change.
    sequence: u64,
    /// Added to a sequence, it is a cursor. Cursors rise also when the epoch changes, and the sequence with it.
    base: u64,
    role: KeyRole,
    /// Removals up to here are forgotten.
    forgotten: u64,
    keys: BTreeMap<Arc<str>, KeyState>,
    /// Keys by the sequence at their last change.
    order: BTreeMap<u64, Arc<str>>,
    expiries: BTreeSet<(Instant, Arc<str>)>,
    /// Removed keys by the sequence at their removal.
    tombstones: BTreeMap<u64, Instant>,
    recent: RecentWrites,
    bytes: usize,
    /// Client memory that the last changes have added and freed.
    shares: ShareChanges,
    /// The client that has written the first key: the topic itself counts toward its share.
    creator: Option<NonZeroU64>,
    /// When the topic's thread looks at it next, or has been asked to.
    armed: Option<Instant>,
    /// The thread has been asked and has not answered.
    is_asked: bool,
    /// A successor process has the state: there are no further changes.
    frozen: bool,
    /// Set if a log stores the keys.
    stored: Option<Box<PendingChanges>>,
    /// The table has removed the topic; another one with its name may exist.
    removed: bool,
    /// The replica has not fit into the memory limit.
    refused: bool,
}

/// A key's last change.
#[derive(Debug)]
struct KeyState {
    version: u64,
    /// `None` if the key was removed.
    value: Option<Bytes>,
    expires: Option<Instant>,
    /// The client whose share it counts toward.
    client: Option<NonZeroU64>,
}

impl KeyState {
    fn export(&self, key: &str, now: Instant) -> KeySnapshot {
        let ttl = self.expires.map(|due| due.saturating_duration_since(now));
        let (value, client) = (self.value.clone(), self.client);
        KeySnapshot { key: key.to_owned(), version: self.version, value, ttl, client }
    }
}

/// Changes in the clients' memory, in bytes.
pub(super) type ShareChanges = Vec<(NonZeroU64, isize)>;

/// Key changes in order, after a cursor and up to another.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) cursor: u64,
    pub(super) changes: Vec<KeyChange>,
}

/// Error: removals after the reader's position are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeedsSnapshot;

/// Limits for a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteLimits {
    pub(super) config: KeyedConfig,
    /// Bytes that all topics may grow by.
    pub(super) left: usize,
    /// Bytes that the client's keys may grow by.
    pub(super) client_left: usize,
}

impl WriteLimits {
    /// Returns the limits with the write's own limit.
    fn for_write(mut self, write: &KeyWrite) -> Self {
        self.config.keys = write.max_keys.map_or(self.config.keys, |keys| keys.min(self.config.keys));
        self
    }
}

impl KeyedState {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            sequence: 0,
            base: 0,
            role: KeyRole::Alone,
            forgotten: 0,
            keys: BTreeMap::new(),
            order: BTreeMap::new(),
            expiries: BTreeSet::new(),
            tombstones: BTreeMap::new(),
            recent: RecentWrites::default(),
            bytes: 0,
            shares: Vec::new(),
            creator: None,
            armed: None,
            is_asked: false,
            frozen: false,
            stored: None,
            removed: false,
            refused: false,
        }
    }

    pub(crate) fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.sequence }
    }

    /// Returns how many keys have a value.
    pub(super) fn len(&self) -> usize {
        self.keys.len() - self.tombstones.len()
    }

    /// Returns its approximate memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.recent.bytes() + self.stored.as_ref().map_or(0, |stored| stored.bytes)
    }

    pub(super) fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }

    /// Marks it as removed if nothing is left that a reader or a writer could need.
    pub(super) fn remove_if_empty(&mut self) -> bool {
        self.removed = self.is_unused() && self.role.is_removable();
        self.removed
    }

    /// Returns whether the topic has nothing but perhaps subscribers.
    pub(super) fn is_unused(&self) -> bool {
        // The log has a stored topic's epoch and sequence.
        let is_stored = self.stored.as_ref().is_some_and(|stored| self.sequence > 0 || !stored.is_empty());
        !is_stored && self.keys.is_empty() && self.recent.next_due().is_none()
    }

    /// Returns whether to ask the topic's thread to look at it earlier than it would.
    pub(super) fn ask(&mut self) -> bool {
        let Some(due) = self.next_due().filter(|due| self.armed.is_none_or(|armed| *due < armed)) else {
            return false;
        };
        self.armed = Some(due);
        !std::mem::replace(&mut self.is_asked, true)
    }

    /// Returns when the topic's thread has to look at it, if it was asked.
    pub(super) fn answer(&mut self) -> Option<Instant> {
        if std::mem::take(&mut self.is_asked) { self.armed } else { None }
    }

    /// Returns when the topic's thread has to look at it again, after it has at this time as planned.
    pub(super) fn rearm(&mut self, planned: Instant) -> Option<Instant> {
        if self.armed != Some(planned) {
            // An earlier plan has replaced it.
            return None;
        }
        self.armed = self.next_due();
        self.armed
    }

    /// Returns whether keys were changed in this epoch.
    pub(super) fn had_changes(&self) -> bool {
        self.sequence > 0
    }

    /// Applies a write.
    pub(super) fn write(
        &mut self,
        write: &KeyWrite,
        limits: WriteLimits,
        now: Instant,
    ) -> Result<KeyWritten, KeyError> {
        if self.frozen {
            return Err(KeyError::HandedOver);
        }
        if !self.role.accepts_writes() {
            return Err(KeyError::NotOwner);
        }
        self.expire(now, limits.config.keys);
        let known = write.idempotency_key.as_deref().and_then(|name| self.recent.find(&write.key, name));
        if let Some(sequence) = known {
            let position = Position { epoch: self.epoch, sequence };
            return Ok(KeyWritten { position, changed: true, repeated: true, pending: None });
        }
        let current = self.keys.get(&write.key).filter(|known| known.value.is_some());
        self.check_condition(write.condition, current.map(|current| current.version))?;
        let changed = match &write.value {
            Some(value) => {
                let needed =
                    self.check_limits(&write.key, value, named_bytes(write), limits.for_write(write))?;
                self.check_share(write, value, limits)?;
                self.make_space(needed, limits);
                let (version, expires) = (self.sequence + 1, write.ttl.map(|ttl| now + ttl));
                let (value, client) = (Some(value.clone()), write.client);
                self.put(&write.key, KeyState { version, value, expires, client }, now);
                true
            }
            None if current.is_some() => {
                self.make_space(named_bytes(write), limits);
                self.remove(&write.key, write.client, now);
                true
            }
            None => false,
        };
        if let Some(name) = write.idempotency_key.as_deref().filter(|_| changed) {
            self.recent.insert(&write.key, name, self.sequence, now);
        }
        Ok(KeyWritten { position: self.position(), changed, repeated: false, pending: None })
    }

    fn check_condition(&self, condition: Option<KeyCondition>, version: Option<u64>) -> Result<(), KeyError> {
        match (condition, version) {
            (None, _) | (Some(KeyCondition::IfNew), None) | (Some(KeyCondition::IfExists), Some(_)) => Ok(()),
            (Some(KeyCondition::IfNew), Some(version)) => Err(KeyError::Exists(version)),
            (Some(_), None) => Err(KeyError::Missing),
            (Some(KeyCondition::Version(wanted)), Some(version)) if wanted == version => Ok(()),
            (Some(KeyCondition::At(wanted)), Some(version))
                if wanted == (Position { epoch: self.epoch, sequence: version }) =>
            {
                Ok(())
            }
            (Some(KeyCondition::Version(_) | KeyCondition::At(_)), Some(version)) => {
                Err(KeyError::OtherVersion(version))
            }
        }
    }

    /// Forgets earlier idempotency keys, as far as a change needs their memory.
    fn make_space(&mut self, needed: usize, limits: WriteLimits) {
        self.recent.set_bytes_left(limits.left, limits.config.total_bytes);
        self.recent.free(needed.saturating_sub(limits.left));
    }

    /// Checks the limits for a new value, whose idempotency key takes this many bytes. Returns the memory that the
    /// write needs in bytes.
    fn check_limits(
        &self,
        key: &str,
        value: &Bytes,
        named: usize,
        limits: WriteLimits,
    ) -> Result<usize, KeyError> {
        let known = self.keys.get(key);
        let before = known.map_or(0, |known| cost(key, known.value.as_ref()));
        let KeyedConfig { keys, topic_bytes, total_bytes, .. } = limits.config;
        if known.is_none_or(|known| known.value.is_none()) && self.len() >= keys {
            return Err(KeyError::TooManyKeys(keys));
        }
        let growth = cost(key, Some(value)).saturating_sub(before);
        if growth > 0 && self.bytes + growth > topic_bytes {
            return Err(KeyError::TopicFull(topic_bytes));
        }
        if growth + named > limits.left.saturating_add(self.recent.bytes()) {
            return Err(KeyError::ServerFull(total_bytes));
        }
        Ok(growth + named)
    }

    /// Removes a key in a client's name.
    fn remove(&mut self, key: &Arc<str>, client: Option<NonZeroU64>, now: Instant) {
        let version = self.sequence + 1;
        self.put(key, KeyState { version, value: None, expires: None, client }, now);
    }

    /// Changes a key. The topic gets the change's sequence. A removal without a client counts toward the removed
    /// value's client.
    fn put(&mut self, key: &Arc<str>, mut next: KeyState, now: Instant) {
        self.sequence = next.version;
        if self.keys.is_empty() {
            self.creator = next.client;
            self.note_share(next.client, TOPIC_COST, false);
        }
        // All indexes share the name's allocation.
        let known = self.keys.get_key_value(key);
        let key = known.map_or(key, |(known, _)| known).clone();
        if let Some(before) = self.keys.get(&key) {
            let (bytes, owner) = (cost(&key, before.value.as_ref()), before.client);
            next.client = next.client.or_else(|| owner.filter(|_| next.value.is_none()));
            self.bytes -= bytes;
            self.order.remove(&before.version);
            self.tombstones.remove(&before.version);
            if let Some(expires) = before.expires {
                self.expiries.remove(&(expires, key.clone()));
            }
            self.note_share(owner, bytes, true);
        }
        let bytes = cost(&key, next.value.as_ref());
        self.note_share(next.client, bytes, false);
        self.bytes += bytes;
        self.order.insert(next.version, key.clone());
        if let Some(expires) = next.expires {
            self.expiries.insert((expires, key.clone()));
        }
        if next.value.is_none() {
            self.tombstones.insert(next.version, now);
        }
        self.keys.insert(key, next);
    }

    /// Removes expired keys, and forgets old removals. Returns whether keys were removed.
    pub(super) fn expire(&mut self, now: Instant, tombstones_max: usize) -> bool {
        if self.frozen {
            return false;
        }
        let before = self.sequence;
        while let Some((due, key)) = self.expiries.first()
            && *due <= now
            && self.stored.is_none()
            && self.role.accepts_writes()
        {
            let key = key.clone();
            self.remove(&key, None, now);
        }
        while let Some((&sequence, &at)) = self.tombstones.first_key_value()
            && (self.tombstones.len() > tombstones_max || at + TOMBSTONE_TTL <= now)
        {
            self.forget(sequence);
        }
        self.recent.expire(now);
        self.sequence != before
    }

    /// Forgets a removed key.
    fn forget(&mut self, sequence: u64) {
        self.tombstones.remove(&sequence);
        self.forgotten = self.forgotten.max(sequence);
        if let Some(key) = self.order.remove(&sequence) {
            self.bytes -= cost(&key, None);
            let client = self.keys.remove(&key).and_then(|removed| removed.client);
            self.note_share(client, cost(&key, None), true);
            if self.keys.is_empty() {
                let creator = self.creator.take();
                self.note_share(creator, TOPIC_COST, true);
            }
        }
    }

    /// Returns when to call [`expire`](Self::expire) next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.frozen {
            return None;
        }
        let expiry = self.expiries.first().map(|(due, _)| *due).filter(|_| self.role.accepts_writes());
        let tombstone = self.tombstones.first_key_value().map(|(_, at)| *at + TOMBSTONE_TTL);
        [expiry, tombstone, self.recent.next_due()].into_iter().flatten().min()
    }

    /// Returns whether a reader can continue after a position.
    pub(super) fn continues(&self, from: Position) -> bool {
        from.epoch == self.epoch && self.forgotten <= from.sequence && from.sequence <= self.sequence
    }

    /// Returns the cursor at the last change.
    pub(super) fn cursor(&self) -> u64 {
        self.cursor_of(self.sequence)
    }

    /// Returns the cursor for a sequence.
    pub(super) fn cursor_of(&self, sequence: u64) -> u64 {
        self.base + sequence
    }

    /// Returns whether a reader at a cursor needs no snapshot.
    pub(super) fn has_changes_after(&self, cursor: u64) -> bool {
        self.cursor_of(self.forgotten) <= cursor
    }

    /// Returns the changes after a cursor, up to another and to a byte limit, at least one change.
    pub(super) fn changes(
        &self,
        after: u64,
        end: u64,
        filter: Option<&str>,
        bytes_max: usize,
    ) -> Result<Changes, NeedsSnapshot> {
        if !self.has_changes_after(after) {
            return Err(NeedsSnapshot);
        }
        let mut read = Changes { cursor: end.max(after), changes: Vec::new() };
        let (after, end) = (after - self.base, read.cursor - self.base);
        let range = (Bound::Excluded(after), Bound::Included(end));
        let mut bytes = 0;
        for (looked_at, (&version, key)) in self.order.range(range).enumerate() {
            let change = self.keys.get(key).filter(|_| matches(filter, key)).map(|known| KeyChange {
                key: key.clone(),
                version,
                value: known.value.clone(),
            });
            bytes += change.as_ref().map_or(0, KeyChange::bytes);
            if looked_at >= SCAN_MAX || bytes > bytes_max && !read.changes.is_empty() {
                read.cursor = self.cursor_of(version - 1);
                break;
            }
            read.changes.extend(change);
        }
        Ok(read)
    }

    /// Returns all keys with values that match a filter, in key order.
    pub(super) fn snapshot(&self, filter: Option<&str>) -> Vec<KeyChange> {
        self.page(None, filter, usize::MAX).0
    }

    /// Returns the same, unless the keys have more bytes than this.
    pub(super) fn small_snapshot(&self, filter: &str, bytes_max: usize) -> Option<Vec<KeyChange>> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for key in self.keys_after(None, Some(filter)) {
            bytes += key.bytes();
            if bytes > bytes_max {
                return None;
            }
            keys.push(key);
        }
        Some(keys)
    }

    /// Returns the keys with values that match a filter, after a key.
    fn keys_after<'a>(
        &'a self,
        after: Option<&str>,
        filter: Option<&'a str>,
    ) -> impl Iterator<Item = KeyChange> + 'a {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.keys.range::<str, _>((from, Bound::Unbounded));
        keys.filter(move |(key, _)| matches(filter, key)).filter_map(|(key, known)| {
            let value = Some(known.value.clone()?);
            Some(KeyChange { key: key.clone(), version: known.version, value })
        })
    }

    /// Returns keys with values after a key, and whether more follow.
    pub(super) fn page(
        &self,
        after: Option<&str>,
        filter: Option<&str>,
        keys_max: usize,
    ) -> (Vec<KeyChange>, bool) {
        let mut keys = self.keys_after(after, filter);
        let page = keys.by_ref().take(keys_max).collect();
        (page, keys.next().is_some())
    }

    /// Returns a key that has a value.
    pub(super) fn get(&self, key: &str) -> Option<KeyChange> {
        let (key, known) = self.keys.get_key_value(key)?;
        let value = Some(known.value.clone()?);
        Some(KeyChange { key: key.clone(), version: known.version, value })
    }

    /// Returns the sequence at a key's last change, perhaps its removal.
    #[cfg(test)]
    pub(super) fn version(&self, key: &str) -> Option<u64> {
        self.keys.get(key).map(|known| known.version)
    }

    /// Exports the state, for another server's [`restore`](Self::restore).
    pub(crate) fn export(&self, topic: &str, now: Instant) -> KeyedSnapshot {
        let keys = self.order.values().filter_map(|key| Some(self.keys.get(key)?.export(key, now)));
        let (position, forgotten) = (self.position(), self.forgotten);
        KeyedSnapshot {
            topic: topic.to_owned(),
            position,
            forgotten,
            keys: keys.collect(),
            recent: Vec::new(),
        }
    }

    /// Restores another server's export, in a state without changes. Keys that are out of order, or beyond the limits,
    /// are left out: then subscribers need a snapshot. The keys count toward their clients' shares, which may exceed
    /// their limit. Returns how many keys are left out.
    pub(super) fn restore(&mut self, snapshot: KeyedSnapshot, limits: WriteLimits, now: Instant) -> usize {
        self.epoch = snapshot.position.epoch;
        let mut left_out = 0;
        for snapshot_key in snapshot.keys {
            let key = &snapshot_key.key;
            let fits = match &snapshot_key.value {
                Some(value) => {
                    let left = limits.left.saturating_sub(self.bytes);
                    self.check_limits(key, value, 0, WriteLimits { left, ..limits }).is_ok()
                }
                None => true,
            };
            let version = snapshot_key.version;
            let is_in_order = version > self.sequence && version <= snapshot.position.sequence;
            if !fits || !is_in_order || super::write::check_key(key).is_err() {
                left_out += 1;
                continue;
            }
            self.put_snapshot(snapshot_key, now);
        }
        self.recent.set_bytes_left(limits.left.saturating_sub(self.bytes), limits.config.total_bytes);
        for RecentKeyWrite { key, idempotency_key, sequence, age } in snapshot.recent {
            if let Some(at) = now.checked_sub(age) {
                self.recent.insert(&key, &idempotency_key, sequence, at);
            }
        }
        self.recent.expire(now);
        self.sequence = snapshot.position.sequence;
        self.forgotten = snapshot.forgotten.min(self.sequence);
        if left_out > 0 && self.stored.is_none() {
            // As if they were removed, and that was forgotten.
            self.sequence += 1;
            self.forgotten = self.sequence;
        }
        left_out
    }

    /// Sets a key from another server, with its version.
    fn put_snapshot(&mut self, KeySnapshot { key, version, value, ttl, client }: KeySnapshot, now: Instant) {
        let expires = ttl.map(|ttl| now + ttl);
        self.put(&key.into(), KeyState { version, value, expires, client }, now);
    }
}

pub(super) fn matches(filter: Option<&str>, key: &str) -> bool {
    filter.is_none_or(|filter| name::matches(filter, key))
}

/// Returns the memory that a write's idempotency key takes, in bytes.
fn named_bytes(write: &KeyWrite) -> usize {
    write.idempotency_key.as_deref().map_or(0, |name| RecentWrites::cost(&write.key, name))
}

fn cost(key: &str, value: Option<&Bytes>) -> usize {
    KEY_COST + key.len() + value.map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests;
