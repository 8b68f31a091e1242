//! Snapshots of a topic's keys: the keys at one time, encoded part by part as subscribers are ready.
//!
//! ```text
//!   KeyedTopic ─▶ SharedSnapshot: references to the keys         ◀─ SnapshotReader: index of the next key
//!                   │ bytes                                      │ a filter: encodes its part for itself
//!                   ▼                                            ▼ none: readers share the encoded part
//!                 SnapshotMemory: above the limit, encoded parts are dropped, then snapshots discarded
//! ```
//!
//! A snapshot refers to the values at its time, so that writes between two parts do not change it. What a slow reader
//! costs is its index; the memory for all snapshots is limited, however many readers exist.
//!
//! Encoded parts are a cache: a reader encodes a dropped part again, with the same keys. So above the limit, readers
//! continue as long as the references fit. Only references above the limit discard a snapshot, whose readers begin
//! again: first a snapshot without readers, then one whose readers have not begun again before, then one that a newer
//! snapshot of its topic has replaced; among these, the oldest. A topic whose last snapshot has readers gets no further
//! one while it does not fit ([`SnapshotMemory::fits`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use sinews_session::Prepared;

use super::state::matches;
use super::topic::EncodeKeys;
use super::update::{KeyChange, KeyedUpdate, SnapshotPart};
use crate::topics::history::policy::Position;

/// Size of a snapshot part, in key and value bytes; a larger value is a part by itself.
pub(super) const PART_BYTES: usize = 32 << 10;

/// Approximate memory per key in a snapshot besides its name and value, in bytes.
const KEY_COST: usize = 64;

/// Approximate memory per encoded part besides its payload, in bytes.
const PART_COST: usize = 128;

/// Snapshot count from which on the list is searched for dropped ones.
const SWEEP_MIN: usize = 64;

/// Memory for all snapshots on a server.
#[derive(Debug)]
pub(crate) struct SnapshotMemory {
    /// Bytes that references take.
    keys: AtomicUsize,
    /// Bytes that encoded parts take.
    parts: AtomicUsize,
    bytes_max: usize,
    list: Mutex<SnapshotList>,
}

#[derive(Debug)]
struct SnapshotList {
    /// In creation order.
    snapshots: VecDeque<Weak<SharedSnapshot>>,
    /// Length at which dropped snapshots are removed.
    sweep_at: usize,
}

/// A topic's keys at one time.
#[derive(Debug)]
pub(super) struct SharedSnapshot {
    pub(super) cursor: u64,
    position: Position,
    content: Mutex<Option<SnapshotContent>>,
    is_discarded: AtomicBool,
    /// The topic has a newer one.
    is_replaced: AtomicBool,
    readers: AtomicUsize,
    /// Readers whose snapshot before was discarded.
    restarted: AtomicUsize,
    memory: Arc<SnapshotMemory>,
}

#[derive(Debug)]
struct SnapshotContent {
    keys: Arc<[KeyChange]>,
    /// Parts without a filter by number, each with the next key's index.
    parts: BTreeMap<usize, (Prepared, usize)>,
    charge: SnapshotCharge,
}

/// A snapshot's bytes, which are free again when it is dropped.
#[derive(Debug)]
struct SnapshotCharge {
    memory: Arc<SnapshotMemory>,
    keys: usize,
    parts: usize,
}

/// A subscriber's position in a snapshot.
#[derive(Debug)]
pub(super) struct SnapshotReader {
    snapshot: Arc<SharedSnapshot>,
    /// Parts already read.
    parts: usize,
    /// The next key's index.
    next: usize,
    /// Its snapshot before was discarded.
    is_restarted: bool,
}

/// Error: the snapshot was discarded, since snapshots exceeded their memory limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discarded;

impl SnapshotMemory {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        let list = Mutex::new(SnapshotList { snapshots: VecDeque::new(), sweep_at: SWEEP_MIN });
        Arc::new(Self { keys: AtomicUsize::new(0), parts: AtomicUsize::new(0), bytes_max, list })
    }

    /// Returns the approximate memory for all snapshots in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.load(Ordering::Relaxed) + self.parts.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, SnapshotList> {
        self.list.lock()
    }

    fn add(&self, snapshot: &Arc<SharedSnapshot>) {
        let mut list = self.lock();
        if list.snapshots.len() >= list.sweep_at {
            list.snapshots.retain(|known| known.strong_count() > 0);
            list.sweep_at = SWEEP_MIN.max(2 * list.snapshots.len());
        }
        list.snapshots.push_back(Arc::downgrade(snapshot));
    }

    /// Returns whether references with this size fit, perhaps without other snapshots that have no readers: these are
    /// discarded.
    pub(super) fn fits(&self, bytes: usize, last: &SharedSnapshot) -> bool {
        let fits = || self.keys.load(Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max;
        if !fits() {
            for snapshot in self.lock().others(last).iter().filter(|snapshot| !snapshot.has_readers()) {
                if fits() {
                    break;
                }
                snapshot.discard();
            }
        }
        fits()
    }

    /// Frees memory above the limit: the oldest snapshots' encoded parts first, then snapshots, but not this one.
    fn enforce(&self, kept: &SharedSnapshot) {
        if self.bytes() <= self.bytes_max {
            return;
        }
        let list = self.lock();
        let mut others = list.others(kept);
        // Some more than necessary, so that the next parts do not search the list again.
        let low = self.bytes_max - self.bytes_max / 8;
        for snapshot in &others {
            if self.bytes() <= low {
                return;
            }
            snapshot.drop_parts();
        }
        if self.bytes() > self.bytes_max {
            kept.drop_parts();
        }
        // Equal ones stay in creation order.
        others.sort_by_cached_key(|snapshot| snapshot.rank());
        for snapshot in others {
            if self.bytes() <= self.bytes_max {
                return;
            }
            snapshot.discard();
        }
    }
}

impl SnapshotList {
    /// Returns the snapshots but one, the oldest first.
    fn others(&self, kept: &SharedSnapshot) -> Vec<Arc<SharedSnapshot>> {
        let known = self.snapshots.iter().filter_map(Weak::upgrade);
        known.filter(|known| !std::ptr::eq(&**known, kept) && !known.is_discarded()).collect()
    }
}

impl SnapshotCharge {
    fn new(memory: &Arc<SnapshotMemory>, keys: usize) -> Self {
        memory.keys.fetch_add(keys, Ordering::Relaxed);
        Self { memory: Arc::clone(memory), keys, parts: 0 }
    }

    fn add_part(&mut self, bytes: usize) {
        self.memory.parts.fetch_add(bytes, Ordering::Relaxed);
        self.parts += bytes;
    }

    fn drop_parts(&mut self) {
        self.memory.parts.fetch_sub(std::mem::take(&mut self.parts), Ordering::Relaxed);
    }
}

impl Drop for SnapshotCharge {
    fn drop(&mut self) {
        self.drop_parts();
        self.memory.keys.fetch_sub(self.keys, Ordering::Relaxed);
    }
}

impl SharedSnapshot {
    /// Creates a snapshot with its first reader.
    pub(super) fn begin(
        position: Position,
        cursor: u64,
        keys: Vec<KeyChange>,
        memory: &Arc<SnapshotMemory>,
    ) -> SnapshotReader {
        let bytes = keys.iter().map(|key| KEY_COST + key.bytes()).sum();
        let charge = SnapshotCharge::new(memory, bytes);
        let content = SnapshotContent { keys: keys.into(), parts: BTreeMap::new(), charge };
        let snapshot = Arc::new(Self {
            cursor,
            position,
            content: Mutex::new(Some(content)),
            is_discarded: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            readers: AtomicUsize::new(0),
            restarted: AtomicUsize::new(0),
            memory: Arc::clone(memory),
        });
        let reader = SnapshotReader::new(&snapshot);
        memory.add(&snapshot);
        memory.enforce(&snapshot);
        reader
    }

    fn lock(&self) -> MutexGuard<'_, Option<SnapshotContent>> {
        self.content.lock()
    }

    fn discard(&self) {
        self.is_discarded.store(true, Ordering::Relaxed);
        *self.lock() = None;
    }

    fn drop_parts(&self) {
        if let Some(content) = self.lock().as_mut() {
            content.parts.clear();
            content.charge.drop_parts();
        }
    }

    /// Marks it as replaced by a newer one for its topic.
    pub(super) fn replace(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0
    }

    /// Returns its rank among the snapshots to keep: the lowest one is discarded first.
    fn rank(&self) -> (bool, bool, bool) {
        let is_replaced = self.is_replaced.load(Ordering::Relaxed);
        (self.has_readers(), self.restarted.load(Ordering::Relaxed) > 0, !is_replaced)
    }

    pub(super) fn is_discarded(&self) -> bool {
        self.is_discarded.load(Ordering::Relaxed)
    }

    /// Returns a part without a filter, and the next key's index. All readers have the same parts.
    fn shared_part(
        &self,
        topic: &str,
        parts: usize,
        next: usize,
        encode: &EncodeKeys,
    ) -> Result<(Prepared, usize, bool), Discarded> {
        let mut content = self.lock();
        let SnapshotContent { keys, parts: encoded, charge } = content.as_mut().ok_or(Discarded)?;
        if let Some((part, end)) = encoded.get(&parts) {
            return Ok((part.clone(), *end, *end == keys.len()));
        }
        let end = next + part_len(keys[next..].iter());
        let is_last = end == keys.len();
        // Encoded with the lock, so once: the snapshot's other readers need the same part.
        let part = self.encode(topic, parts, is_last, &keys[next..end], encode);
        // The message, and its encoding for one connection kind.
        charge.add_part(PART_COST + 2 * part.payload().len());
        encoded.insert(parts, (part.clone(), end));
        drop(content);
        self.memory.enforce(self);
        Ok((part, end, is_last))
    }

    /// Returns a part with the keys that match a filter, and the next such key's index.
    fn filtered_part(
        &self,
        topic: &str,
        parts: usize,
        next: usize,
        filter: &str,
        encode: &EncodeKeys,
    ) -> Result<(Prepared, usize, bool), Discarded> {
        let keys = Arc::clone(&self.lock().as_ref().ok_or(Discarded)?.keys);
        let found = || (next..).zip(&keys[next..]).filter(|(_, key)| matches(Some(filter), &key.key));
        let count = part_len(found().map(|(_, key)| key));
        let changes: Vec<KeyChange> = found().take(count).map(|(_, key)| key.clone()).collect();
        let following = found().nth(count).map(|(at, _)| at);
        let part = self.encode(topic, parts, following.is_none(), &changes, encode);
        Ok((part, following.unwrap_or(keys.len()), following.is_none()))
    }

    fn encode(
        &self,
        topic: &str,
        parts: usize,
        is_last: bool,
        changes: &[KeyChange],
        encode: &EncodeKeys,
    ) -> Prepared {
        let part = Some(SnapshotPart { number: parts + 1, is_last });
        (encode.0)(&KeyedUpdate { topic, position: self.position, part, changes, is_unavailable: false })
    }
}

/// Returns how many keys a part takes: at least one, if there is one.
fn part_len<'a>(keys: impl Iterator<Item = &'a KeyChange>) -> usize {
    let mut bytes = 0;
    keys.enumerate()
        .take_while(|(at, key)| {
            bytes += key.bytes();
            *at == 0 || bytes <= PART_BYTES
        })
        .count()
}

impl SnapshotReader {
    pub(super) fn new(snapshot: &Arc<SharedSnapshot>) -> Self {
        snapshot.readers.fetch_add(1, Ordering::Relaxed);
        Self { snapshot: Arc::clone(snapshot), parts: 0, next: 0, is_restarted: false }
    }

    pub(super) fn snapshot(&self) -> &Arc<SharedSnapshot> {
        &self.snapshot
    }

    /// Marks a reader whose snapshot before was discarded: snapshots without such readers are discarded first.
    pub(super) fn restart(&mut self) {
        self.is_restarted = true;
        self.snapshot.restarted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the snapshot's cursor.
    pub(super) fn cursor(&self) -> u64 {
        self.snapshot.cursor
    }

    /// Returns the next part, and whether it is the last.
    pub(super) fn next(
        &mut self,
        topic: &str,
        filter: Option<&str>,
        encode: &EncodeKeys,
    ) -> Result<(Prepared, bool), Discarded> {
        let (part, next, is_last) = match filter {
            None => self.snapshot.shared_part(topic, self.parts, self.next, encode)?,
            Some(filter) => self.snapshot.filtered_part(topic, self.parts, self.next, filter, encode)?,
        };
        self.parts += 1;
        self.next = next;
        Ok((part, is_last))
    }
}

impl Drop for SnapshotReader {
    fn drop(&mut self) {
        self.snapshot.readers.fetch_sub(1, Ordering::Relaxed);
        if self.is_restarted {
            self.snapshot.restarted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
