//! A keyed topic as all threads see it: its state, its interested threads, and encoded updates.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_session::Prepared;

use super::state::{KeyedState, NeedsSnapshot};
use super::update::{KeyChange, KeyedUpdate, SnapshotPart};
use crate::topics::history::policy::Position;

/// Encodes an update for subscribers.
pub(crate) struct EncodeKeys(pub(crate) EncodeFn);

type EncodeFn = Box<dyn Fn(&KeyedUpdate<'_>) -> Prepared + Send + Sync>;

impl fmt::Debug for EncodeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncodeKeys")
    }
}

/// Size of a part of a snapshot in bytes of keys and values; a larger value is a part by itself.
const PART_BYTES: usize = 32 << 10;

/// A snapshot is encoded anew after this number of changes, or changes of half of the keys.
const SNAPSHOT_CHANGES: u64 = 64;

/// Keyed topic.
#[derive(Debug)]
pub(crate) struct KeyedTopic {
    pub(crate) name: Arc<str>,
    state: Mutex<KeyedState>,
    /// The last encoded snapshot of all keys.
    snapshot: Mutex<Option<EncodedSnapshot>>,
    pub(super) threads: Box<[ThreadInterest]>,
    /// The thread that removes its expired keys.
    pub(super) home: usize,
    /// The replication knows of a change that it has not read yet.
    pub(crate) is_noted: AtomicBool,
}

/// Interest of a thread in a topic.
#[derive(Debug, Default)]
pub(super) struct ThreadInterest {
    /// Number of subscribed connections.
    pub(super) subscribers: AtomicUsize,
    /// The thread knows of a change that it has not read yet.
    pub(super) is_notified: AtomicBool,
}

/// Parts of a snapshot at a cursor.
#[derive(Clone, Debug)]
pub(super) struct EncodedSnapshot {
    pub(super) cursor: u64,
    pub(super) parts: Arc<[Prepared]>,
}

impl KeyedTopic {
    pub(super) fn new(name: &str, epoch: u64, threads: usize, home: usize) -> Self {
        Self {
            name: name.into(),
            state: Mutex::new(KeyedState::new(epoch)),
            snapshot: Mutex::default(),
            threads: (0..threads).map(|_| ThreadInterest::default()).collect(),
            home,
            is_noted: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_subscribers(&self) -> bool {
        self.threads.iter().any(|thread| thread.subscribers.load(Ordering::Relaxed) > 0)
    }

    /// Returns the number of subscribers on all threads.
    pub(super) fn subscribers(&self) -> usize {
        self.threads.iter().map(|thread| thread.subscribers.load(Ordering::Relaxed)).sum()
    }

    /// Encodes the changes after a cursor and up to another, of at most this size: with the cursor then, and no message
    /// if no key matches.
    pub(super) fn encode_changes(
        &self,
        range: (u64, u64),
        filter: Option<&str>,
        bytes_max: usize,
        encode: &EncodeKeys,
    ) -> Result<(u64, Option<Prepared>), NeedsSnapshot> {
        let (position, read) = {
            let state = self.lock();
            let read = state.changes(range, filter, bytes_max)?;
            (state.position_at(read.cursor), read)
        };
        if read.changes.is_empty() {
            return Ok((read.cursor, None));
        }
        let update = KeyedUpdate {
            topic: &self.name,
            position,
            part: None,
            changes: &read.changes,
            is_unavailable: false,
        };
        Ok((read.cursor, Some((encode.0)(&update))))
    }

    /// Returns a snapshot of the keys that match a filter. Without a filter, subscribers share it: it may lie some
    /// changes back, which follow.
    pub(super) fn encoded_snapshot(&self, filter: Option<&str>, encode: &EncodeKeys) -> EncodedSnapshot {
        let (position, cursor, keys) = {
            let state = self.lock();
            let (position, cursor) = (state.position(), state.cursor());
            if state.is_refused() {
                let part = Some(SnapshotPart { number: 1, is_last: true });
                let (topic, changes) = (&*self.name, &[][..]);
                let update = KeyedUpdate { topic, position, part, changes, is_unavailable: true };
                return EncodedSnapshot { cursor, parts: [(encode.0)(&update)].into() };
            }
            if filter.is_none() {
                let known = self.lock_snapshot();
                let changes_max = SNAPSHOT_CHANGES.max(state.len() as u64 / 2);
                let is_recent = |known: &&EncodedSnapshot| {
                    state.has_changes_after(known.cursor)
                        && cursor.saturating_sub(known.cursor) <= changes_max
                };
                if let Some(known) = known.as_ref().filter(is_recent) {
                    return known.clone();
                }
            }
            (position, cursor, state.snapshot(filter))
        };
        // Encoded without the lock.
        let encoded = EncodedSnapshot { cursor, parts: self.encode_parts(position, &keys, encode) };
        if filter.is_none() {
            *self.lock_snapshot() = Some(encoded.clone());
        }
        encoded
    }

    fn encode_parts(&self, position: Position, keys: &[KeyChange], encode: &EncodeKeys) -> Arc<[Prepared]> {
        let mut ends = Vec::new();
        let mut bytes = 0;
        for (at, key) in keys.iter().enumerate() {
            bytes += key.bytes();
            if bytes > PART_BYTES && at > 0 {
                ends.push(at);
                bytes = key.bytes();
            }
        }
        ends.push(keys.len());
        let mut begin = 0;
        let parts = (1..).zip(&ends).map(|(number, &end)| {
            let part = SnapshotPart { number, is_last: end == keys.len() };
            let changes = &keys[std::mem::replace(&mut begin, end)..end];
            let topic = &*self.name;
            (encode.0)(&KeyedUpdate { topic, position, part: Some(part), changes, is_unavailable: false })
        });
        parts.collect()
    }

    fn lock_snapshot(&self) -> MutexGuard<'_, Option<EncodedSnapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the snapshot of a topic without subscribers.
    pub(super) fn release_snapshot(&self) {
        *self.lock_snapshot() = None;
    }
}
