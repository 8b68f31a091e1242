//! Each key's newest offset, and a record's fate.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::record::RawRecord;

/// Newest offsets by a 128-bit hash with random keys: producers cannot make two keys collide, and by chance two of 10^9
/// keys collide with a probability below 10^-20.
pub(super) struct KeyMap {
    hashers: [RandomState; 2],
    offsets: HashMap<(u64, u64), u64>,
    keys_max: usize,
}

impl KeyMap {
    pub(super) fn new(keys_max: usize) -> Self {
        Self { hashers: [RandomState::new(), RandomState::new()], offsets: HashMap::new(), keys_max }
    }

    fn hash(&self, key: &[u8]) -> (u64, u64) {
        (self.hashers[0].hash_one(key), self.hashers[1].hash_one(key))
    }

    /// Notes the offset of a record. Returns false if the map is full. Records without a key are not noted.
    pub(super) fn insert(&mut self, key: &[u8], offset: u64) -> bool {
        if key.is_empty() {
            return true;
        }
        let hash = self.hash(key);
        let is_full = self.offsets.len() >= self.keys_max;
        if is_full && !self.offsets.contains_key(&hash) {
            return false;
        }
        self.offsets.insert(hash, offset);
        true
    }

    fn newest(&self, key: &[u8]) -> Option<u64> {
        self.offsets.get(&self.hash(key)).copied()
    }
}

/// What a pass removes.
pub(super) struct CompactionPass {
    /// Keys of the records from `dirty` up to `covered`.
    pub(super) map: KeyMap,
    /// Earlier passes have compacted the records before this offset.
    pub(super) dirty: u64,
    pub(super) covered: u64,
    /// End of the closed segments.
    pub(super) end: u64,
    pub(super) now: u64,
    /// Tombstone retention in microseconds.
    pub(super) retention: u64,
}

/// Fate of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordFate {
    Keep,
    Remove,
    /// A tombstone whose older records this pass removes: the time is noted in it.
    Stamp,
}

impl CompactionPass {
    pub(super) fn fate(&self, raw: &RawRecord<'_>) -> RecordFate {
        let offset = raw.record.offset;
        if raw.record.key.is_empty() {
            return RecordFate::Keep;
        }
        if self.map.newest(raw.record.key).is_some_and(|newest| newest > offset) {
            return RecordFate::Remove;
        }
        match raw.tombstone_time {
            // The last record stays, so that the end of the closed segments has a record.
            Some(time) if offset < self.dirty && offset + 1 < self.end => {
                let is_expired = self.now.saturating_sub(time) >= self.retention;
                if is_expired { RecordFate::Remove } else { RecordFate::Keep }
            }
            None if raw.record.kind == crate::record::ValueKind::Tombstone && offset < self.covered => {
                RecordFate::Stamp
            }
            _ => RecordFate::Keep,
        }
    }
}
