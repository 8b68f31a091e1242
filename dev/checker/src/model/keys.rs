//! A topic's keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use sinews_store::{
    KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyOutcome, KeyUpdate, KeysWritten, Position,
    ReadKeys, StoredKey, StoredKeys,
};

use super::{Jump, Primary, Rules, instant, micros};

/// Time for which removals are remembered.
const REMEMBERED: u64 = 60_000_000;
/// Skipped ranges that are remembered.
pub(super) const JUMPS_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct TopicKeys {
    top: Position,
    /// The primary at the last write.
    replication: u64,
    keys: BTreeMap<Arc<str>, Value>,
    /// Removed keys by version, and when.
    removed: BTreeMap<u64, (Arc<str>, u64)>,
    /// Removals up to this version may be forgotten, and skipped ranges.
    forgotten: u64,
    /// Last sequence before a jump, first one behind it.
    jumps: VecDeque<(u64, u64)>,
    /// Outcomes of named writes.
    names: BTreeMap<(Arc<str>, Box<str>), NamedOutcome>,
}

/// The outcome of a named write: the version that it gave to its key.
#[derive(Clone, Copy, Debug)]
struct NamedOutcome {
    version: Option<u64>,
    /// When it is forgotten.
    until: u64,
}

#[derive(Clone, Debug)]
struct Value {
    version: u64,
    value: Bytes,
    expiry: Option<u64>,
}

impl Value {
    fn is_live(&self, now: u64) -> bool {
        self.expiry.is_none_or(|expiry| expiry > now)
    }
}

impl TopicKeys {
    pub(super) fn new(epoch: u64, primary: Primary) -> Self {
        Self {
            top: Position { epoch, sequence: 0 },
            replication: primary.replication,
            keys: BTreeMap::new(),
            removed: BTreeMap::new(),
            forgotten: 0,
            jumps: VecDeque::new(),
            names: BTreeMap::new(),
        }
    }

    pub(super) fn top(&self) -> Position {
        self.top
    }

    pub(super) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Removes expired keys.
    pub(super) fn expire(&mut self, primary: Primary) -> Option<KeyUpdate> {
        let now = primary.now;
        let due = self.keys.iter().filter(|(_, value)| !value.is_live(now));
        let due: Vec<Arc<str>> = due.map(|(key, _)| Arc::clone(key)).collect();
        self.update(now, |keys, changes| {
            for key in due {
                let version = keys.remove(&key, primary);
                changes.push(StoredKey { key, version, value: None, expiry: None });
            }
        })
    }

    pub(super) fn write(
        &mut self,
        commands: &KeyCommands,
        primary: Primary,
        rules: &Rules,
    ) -> (KeysWritten, Option<KeyUpdate>) {
        let (now, prev) = (primary.now, self.top.sequence);
        let mut outcomes = Vec::with_capacity(commands.writes.len());
        let update = self.update(now, |keys, changes| {
            for command in &commands.writes {
                let outcome = keys.command(commands, command, primary, rules);
                outcomes.push(outcome);
                if let KeyOutcome::Changed(version) = outcome {
                    changes.retain(|change| change.key != command.key);
                    let (key, value) = (Arc::clone(&command.key), command.value.clone());
                    let ttl = command.ttl.filter(|_| value.is_some());
                    let expiry = ttl.map(|ttl| instant(now.saturating_add(micros(ttl))));
                    changes.push(StoredKey { key, version, value, expiry });
                }
            }
        });
        (KeysWritten { position: self.top, prev, outcomes }, update)
    }

    pub(super) fn read(&self, now: u64, read: &ReadKeys) -> StoredKeys {
        let after = read.cursor.as_deref().map(String::from_utf8_lossy);
        let behind = |key: &str| after.as_deref().is_none_or(|after| key > after);
        let mut rest = self.keys.iter().filter(|(key, _)| behind(key)).peekable();
        let mut last = None;
        let mut keys = Vec::new();
        for _ in 0..read.limit.max(1) {
            let Some((key, value)) = rest.next() else { break };
            last = Some(key);
            if value.is_live(now) {
                keys.push(stored(key, value));
            }
        }
        let cursor = last.filter(|_| rest.peek().is_some());
        let cursor = cursor.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        StoredKeys { position: Some(self.top), keys, cursor }
    }

    pub(super) fn changes(&self, after: Position) -> KeyChanges {
        let sequence = after.sequence;
        let is_skipped = |&(low, high): &(u64, u64)| low < sequence && sequence < high;
        let is_unknown = after.epoch != self.top.epoch
            || sequence > self.top.sequence
            || sequence < self.forgotten
            || self.jumps.iter().any(is_skipped);
        if is_unknown {
            return KeyChanges::Unknown;
        }
        let live = self.keys.iter().filter(|(_, value)| value.version > sequence);
        let mut changes: Vec<StoredKey> = live.map(|(key, value)| stored(key, value)).collect();
        let removed = self.removed.range(sequence + 1..);
        changes.extend(removed.filter(|(_, (key, _))| !self.keys.contains_key(key)).map(
            |(version, (key, _))| StoredKey {
                key: Arc::clone(key),
                version: *version,
                value: None,
                expiry: None,
            },
        ));
        changes.sort_unstable_by_key(|change| change.version);
        let skipped = self.jumps.iter().any(|(_, high)| *high > sequence);
        KeyChanges::Since(KeyUpdate { position: self.top, prev: sequence, changes, skipped })
    }

    /// Makes changes, and describes them.
    fn update(&mut self, now: u64, change: impl FnOnce(&mut Self, &mut Vec<StoredKey>)) -> Option<KeyUpdate> {
        let (prev, mut changes) = (self.top.sequence, Vec::new());
        change(self, &mut changes);
        while let Some((version, (_, time))) = self.removed.first_key_value() {
            if time + REMEMBERED > now {
                break;
            }
            self.forgotten = self.forgotten.max(*version);
            self.removed.pop_first();
        }
        let skipped = self.jumps.back().is_some_and(|(_, high)| *high > prev);
        let position = self.top;
        (position.sequence > prev).then_some(KeyUpdate { position, prev, changes, skipped })
    }

    fn command(
        &mut self,
        commands: &KeyCommands,
        command: &KeyCommand,
        primary: Primary,
        rules: &Rules,
    ) -> KeyOutcome {
        let now = primary.now;
        let name = command.once.as_ref().map(|name| (Arc::clone(&command.key), name.clone()));
        let first = name.as_ref().and_then(|name| self.names.get(name));
        if let Some(first) = first.filter(|first| first.until > now) {
            return KeyOutcome::Repeated(first.version);
        }
        let outcome = self.execute(commands, command, primary, rules);
        if let Some(name) = name {
            let version = match outcome {
                KeyOutcome::Changed(version) => Some(version),
                _ => None,
            };
            let until = now + micros(rules.once_window);
            self.names.insert(name, NamedOutcome { version, until });
        }
        outcome
    }

    fn execute(
        &mut self,
        commands: &KeyCommands,
        command: &KeyCommand,
        primary: Primary,
        rules: &Rules,
    ) -> KeyOutcome {
        let (key, now) = (&command.key, primary.now);
        let current = self.keys.get(key).filter(|value| value.is_live(now)).map(|value| value.version);
        match (command.condition, current) {
            (Some(KeyCondition::IfNew), Some(version)) if rules.if_new => return KeyOutcome::Exists(version),
            (None | Some(KeyCondition::IfNew), _) => {}
            (Some(_), None) => return KeyOutcome::Missing,
            (Some(KeyCondition::IfExists), Some(_)) => {}
            (Some(KeyCondition::Version(expected)), Some(version)) if expected == version => {}
            (Some(KeyCondition::At(expected)), Some(version))
                if expected == Position { sequence: version, ..self.top } => {}
            (Some(_), Some(version)) => return KeyOutcome::OtherVersion(version),
        }
        let Some(value) = &command.value else {
            return match current {
                Some(_) => KeyOutcome::Changed(self.remove(key, primary)),
                None => KeyOutcome::Unchanged,
            };
        };
        let others = self.keys.iter().filter(|(other, value)| *other != key && value.is_live(now));
        let (mut count, mut bytes) = (1, key.len() + value.len());
        for (other, value) in others {
            count += 1;
            bytes += other.len() + value.value.len();
        }
        if count > commands.limits.keys {
            return KeyOutcome::TooManyKeys;
        }
        if bytes as u64 > commands.limits.bytes {
            return KeyOutcome::TopicFull;
        }
        let version = self.next(primary);
        let expiry = command.ttl.map(|ttl| now.saturating_add(micros(ttl)));
        self.keys.insert(Arc::clone(key), Value { version, value: value.clone(), expiry });
        KeyOutcome::Changed(version)
    }

    fn remove(&mut self, key: &Arc<str>, primary: Primary) -> u64 {
        let version = self.next(primary);
        self.keys.remove(key);
        self.removed.insert(version, (Arc::clone(key), primary.now));
        version
    }

    fn next(&mut self, primary: Primary) -> u64 {
        let last = self.top.sequence;
        // A version names no other value of a topic that was lost.
        let next = match primary.jump {
            Jump::ToTime if last == 0 => primary.now.max(1),
            _ => primary.next(last, self.replication),
        };
        // Another server may have assigned versions, also to a topic that has none here.
        let is_other = std::mem::replace(&mut self.replication, primary.replication) != primary.replication;
        if next > last + 1 && (is_other || last > 0) {
            self.jumps.push_back((last, next));
            if self.jumps.len() > JUMPS_MAX {
                let high = self.jumps.pop_front().map_or(0, |(_, high)| high);
                self.forgotten = self.forgotten.max(high);
            }
        }
        self.top.sequence = next;
        next
    }
}

fn stored(key: &Arc<str>, value: &Value) -> StoredKey {
    let (key, version, expiry) = (Arc::clone(key), value.version, value.expiry.map(instant));
    StoredKey { key, version, value: Some(value.value.clone()), expiry }
}
