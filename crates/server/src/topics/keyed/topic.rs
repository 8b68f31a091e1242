//! A keyed topic as all threads see it: its state, its interested threads, and encoded updates.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sinews_session::Prepared;

use super::snapshot::{PART_BYTES, SharedSnapshot, SnapshotMemory, SnapshotReader};
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

/// Readers begin with a new snapshot after this number of changes, or changes of half of the keys.
const SNAPSHOT_CHANGES: u64 = 64;

/// Keyed topic.
#[derive(Debug)]
pub(crate) struct KeyedTopic {
    pub(crate) name: Arc<str>,
    state: Mutex<KeyedState>,
    /// The last snapshot of all keys. Locked after the state, if both are.
    snapshot: Mutex<Option<Arc<SharedSnapshot>>>,
    snapshots: Arc<SnapshotMemory>,
    pub(super) threads: Box<[ThreadInterest]>,
    /// The thread that removes its expired keys.
    pub(super) home: usize,
}

/// Interest of a thread in a topic.
#[derive(Debug, Default)]
pub(super) struct ThreadInterest {
    /// Number of subscribed connections.
    pub(super) subscribers: AtomicUsize,
    /// The thread knows of a change that it has not read yet.
    pub(super) is_notified: AtomicBool,
}

/// Begin of a snapshot for a reader.
#[derive(Debug)]
pub(super) enum SnapshotStart {
    /// It has one part, encoded for this reader, at a cursor.
    Whole(u64, Prepared),
    Parts(SnapshotReader),
}

impl KeyedTopic {
    pub(super) fn new(
        name: &str,
        epoch: u64,
        threads: usize,
        home: usize,
        snapshots: &Arc<SnapshotMemory>,
    ) -> Self {
        Self {
            name: name.into(),
            state: Mutex::new(KeyedState::new(epoch)),
            snapshot: Mutex::default(),
            snapshots: Arc::clone(snapshots),
            threads: (0..threads).map(|_| ThreadInterest::default()).collect(),
            home,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyedState> {
        self.state.lock()
    }

    pub(super) fn has_subscribers(&self) -> bool {
        self.threads.iter().any(|thread| thread.subscribers.load(Ordering::Relaxed) > 0)
    }

    /// Returns the number of subscribers on all threads.
    pub(crate) fn subscribers(&self) -> usize {
        self.threads.iter().map(|thread| thread.subscribers.load(Ordering::Relaxed)).sum()
    }

    /// Encodes the changes after a cursor and up to another, of at most this size: with the cursor then, and no message
    /// if no key matches.
    pub(super) fn encode_changes(
        &self,
        after: u64,
        end: u64,
        filter: Option<&str>,
        bytes_max: usize,
        encode: &EncodeKeys,
    ) -> Result<(u64, Option<Prepared>), NeedsSnapshot> {
        let (position, read) = {
            let state = self.lock();
            let read = state.changes(after, end, filter, bytes_max)?;
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

    /// Begins a snapshot of the keys that match a filter. Subscribers share a large one, and one without a filter: it
    /// may lie some changes back, which follow, and many if the memory of snapshots has no space for another one.
    pub(super) fn begin_snapshot(&self, filter: Option<&str>, encode: &EncodeKeys) -> SnapshotStart {
        let state = self.lock();
        let (position, cursor) = (state.position(), state.cursor());
        if state.is_refused() {
            drop(state);
            return SnapshotStart::Whole(cursor, self.encode_whole(position, &[], true, encode));
        }
        if let Some(keys) = filter.and_then(|filter| state.small_snapshot(filter, PART_BYTES)) {
            drop(state);
            return SnapshotStart::Whole(cursor, self.encode_whole(position, &keys, false, encode));
        }
        let changes_max = SNAPSHOT_CHANGES.max(state.len() as u64 / 2);
        // Locked until the new one is there, so that other threads share it.
        let mut last = self.lock_snapshot();
        let is_shared = |known: &&Arc<SharedSnapshot>| {
            state.has_changes_after(known.cursor)
                && !known.is_discarded()
                && (cursor.saturating_sub(known.cursor) <= changes_max
                    || !self.snapshots.fits(state.bytes(), known))
        };
        if let Some(known) = last.as_ref().filter(is_shared) {
            return SnapshotStart::Parts(SnapshotReader::new(known));
        }
        let keys = state.snapshot(None);
        drop(state);
        if let Some(known) = last.take() {
            known.replace();
        }
        let reader = SharedSnapshot::begin(position, cursor, keys, &self.snapshots);
        *last = Some(Arc::clone(reader.snapshot()));
        SnapshotStart::Parts(reader)
    }

    fn encode_whole(
        &self,
        position: Position,
        changes: &[KeyChange],
        is_unavailable: bool,
        encode: &EncodeKeys,
    ) -> Prepared {
        let part = Some(SnapshotPart { number: 1, is_last: true });
        (encode.0)(&KeyedUpdate { topic: &self.name, position, part, changes, is_unavailable })
    }

    fn lock_snapshot(&self) -> MutexGuard<'_, Option<Arc<SharedSnapshot>>> {
        self.snapshot.lock()
    }

    /// Releases the snapshot of a topic without subscribers.
    pub(super) fn release_snapshot(&self) {
        *self.lock_snapshot() = None;
    }
}
