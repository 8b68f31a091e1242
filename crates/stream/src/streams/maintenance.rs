//! Maintenance of streams that are not open: verifies the catalog, applies retention, and closes idle streams.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use super::slot::SlotState;
use super::{Inner, read_config};
use crate::catalog::{PartitionExtent, StreamMetadata};
use crate::disk::Disk;
use crate::segment::{Segment, SegmentName};
use crate::writer::WorkUnit;
use crate::{Loss, Stream, name};

use super::opening::BusySlot;

/// Maximum streams that are examined before [`Streams::open`](crate::Streams::open) returns. If there are more, a
/// background thread examines them all.
const VERIFY_BEFORE_RETURN: usize = 256;

/// Microseconds between two retention checks, each of which visits all streams.
const RETENTION_CHECK_INTERVAL: u64 = 1_000_000;

/// Maximum streams that retention opens at a time.
const DUE_MAX: usize = 64;

impl Inner {
    /// Examines all streams, now or in the background. Returns the losses found if it runs now.
    pub(super) fn verify_all(self: &Arc<Self>) -> Vec<Loss> {
        let names: Vec<Arc<str>> = self.state().slots.keys().cloned().collect();
        if names.len() <= VERIFY_BEFORE_RETURN {
            return names.iter().flat_map(|name| self.verify(name)).collect();
        }
        let inner = Arc::downgrade(self);
        self.openers.push(Box::new(move || {
            for name in names {
                // Losses are logged.
                match inner.upgrade() {
                    Some(inner) if inner.state().lock.is_some() => drop(inner.verify(&name)),
                    _ => return,
                }
            }
        }));
        Vec::new()
    }

    /// Opens a stream that was open when a process ended, or whose files differ from the catalog. A stream that cannot
    /// be opened becomes damaged.
    fn verify(&self, name: &Arc<str>) -> Vec<Loss> {
        let metadata = match self.state().slots.get(&**name) {
            Some(slot) if matches!(slot.state, SlotState::Closed) => slot.metadata.clone(),
            _ => return Vec::new(),
        };
        let path = self.path(name);
        if path.is_some_and(|path| matches_catalog(&*self.pool.disk, &path, &metadata)) {
            return Vec::new();
        }
        self.find(name, None).map(|found| found.losses).unwrap_or_default()
    }

    /// Opens streams with segments due for removal by retention.
    fn open_due(self: &Arc<Self>) {
        let now = (self.pool.clock)();
        let state = self.state();
        let due: Vec<Arc<str>> = state
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_due(now))
            .map(|(name, _)| name.clone())
            .take(DUE_MAX)
            .collect();
        drop(state);
        for name in due {
            // An error is recorded in the stream's slot.
            let _ = self.find(&name, None);
        }
        self.opens_due.store(false, Ordering::Release);
    }

    /// Compacts streams, one after the other: so at most one key map is in memory.
    fn compact_due(&self) {
        let now = (self.pool.clock)();
        let state = self.state();
        let due: Vec<Stream> = state
            .slots
            .values()
            .filter(|slot| slot.compaction_is_due(now))
            .filter_map(
                |slot| if let SlotState::Open(stream) = &slot.state { Some(stream.clone()) } else { None },
            )
            .take(DUE_MAX)
            .collect();
        drop(state);
        for stream in due {
            // Locked for each stream, since closing waits for it.
            let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            stream.compact(now, &|| self.state().lock.is_none());
        }
        self.compacts.store(false, Ordering::Release);
    }

    /// Closes idle streams, and files not used since the last call.
    fn close_idle(&self) {
        self.file_cache.close_unused();
        let mut state = self.state();
        if state.lock.is_none() {
            return;
        }
        let now = (self.pool.clock)();
        let mut idle = Vec::new();
        for (name, slot) in &mut state.slots {
            if let SlotState::Open(stream) = &slot.state
                && stream.is_idle(now)
            {
                idle.push((name.clone(), stream.clone()));
                slot.state = SlotState::Busy;
            }
        }
        drop(state);
        for (name, stream) in idle {
            self.close_one(&name, stream);
        }
        let count = self.state().slots.len();
        let mut catalog = self.catalog();
        if catalog.is_long(count) {
            let state = self.state();
            let metadata: Vec<_> =
                state.slots.iter().map(|(name, slot)| (name.clone(), slot.metadata_unless_open())).collect();
            drop(state);
            if let Err(error) = catalog.replace(metadata.iter().map(|(name, metadata)| (&**name, metadata))) {
                tracing::warn!(%error, "the catalog cannot be rewritten");
            }
        }
    }

    fn close_one(&self, name: &Arc<str>, stream: Stream) {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let busy = BusySlot { inner: self, name };
        stream.unregister(&self.pool);
        stream.stop();
        stream.close();
        let slot = self.state().slots.get(&**name).map(|slot| slot.metadata.clone());
        let mut metadata = slot.unwrap_or_default();
        stream.record_metadata(&mut metadata);
        // Before the next use marks it open.
        self.catalog().put(name, &metadata);
        busy.finish(|state| {
            if let Some(slot) = state.slots.get_mut(&**name) {
                (slot.metadata, slot.state) = (metadata, SlotState::Closed);
            }
        });
    }
}

/// Whether a stream's directory matches the catalog in names and lengths.
fn matches_catalog(disk: &dyn Disk, path: &Path, metadata: &StreamMetadata) -> bool {
    let Some(extents) = &metadata.extents else { return false };
    let is_intact = read_config(disk, path)
        .is_ok_and(|found| found.is_some_and(|found| found == (metadata.config.clone(), metadata.created)));
    let partition = |(number, extent): (usize, &PartitionExtent)| {
        let dir = path.join(number.to_string());
        let names = disk.list(&dir).unwrap_or_default();
        let mut segments: Vec<SegmentName> =
            names.iter().filter_map(|name| SegmentName::from_log_name(name)).collect();
        segments.sort_unstable();
        let is_file = |name: &SegmentName| !disk.is_dir(Segment::named(&dir, *name).path());
        let length =
            |name: &SegmentName| disk.open(Segment::named(&dir, *name).path()).and_then(|file| file.bytes());
        let has_last = |last: &SegmentName| {
            last.base == extent.last_base && length(last).is_ok_and(|bytes| bytes == extent.last_bytes)
        };
        segments.len() as u64 == extent.segments
            && segments.last().is_some_and(has_last)
            && segments.iter().all(is_file)
    };
    is_intact && extents.iter().enumerate().all(partition)
}

/// Finds a segment that was renamed since the stream was closed, and its right name. Opening the stream would treat the
/// segment as damaged and cut it off.
pub(super) fn find_renamed_segment(
    disk: &dyn Disk,
    path: &Path,
    metadata: &StreamMetadata,
) -> Option<(PathBuf, PathBuf)> {
    let extents = metadata.extents.as_deref().unwrap_or_default();
    extents.iter().enumerate().filter(|(_, extent)| extent.last_bytes > 0).find_map(|(number, extent)| {
        let dir = path.join(number.to_string());
        let names: Vec<SegmentName> =
            disk.list(&dir).ok()?.iter().filter_map(|name| SegmentName::from_log_name(name)).collect();
        let segment = |name: SegmentName| Segment::named(&dir, name).path().to_owned();
        let has_length = |name: &SegmentName| {
            disk.open(&segment(*name))
                .and_then(|file| file.bytes())
                .is_ok_and(|bytes| bytes == extent.last_bytes)
        };
        if names.iter().any(|name| name.base == extent.last_base) {
            return None;
        }
        let found = names.into_iter().filter(has_length).max()?;
        Some((segment(found), segment(SegmentName::new(extent.last_base))))
    })
}

/// The clock's member for streams that are not open.
pub(super) struct StreamMaintenance {
    inner: Weak<Inner>,
    /// Time of the last retention check.
    last_check: AtomicU64,
}

impl StreamMaintenance {
    pub(super) fn new(inner: &Arc<Inner>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::downgrade(inner), last_check: AtomicU64::new(0) })
    }
}

impl WorkUnit for StreamMaintenance {
    fn work(self: Arc<Self>) -> bool {
        false
    }

    fn tick(&self, now: u64) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        if now.abs_diff(self.last_check.load(Ordering::Relaxed)) < RETENTION_CHECK_INTERVAL {
            return false;
        }
        self.last_check.store(now, Ordering::Relaxed);
        let is_due = inner.state().slots.values().any(|slot| slot.is_due(now));
        if is_due {
            let job = inner.clone();
            if !inner.opens_due.swap(true, Ordering::AcqRel) {
                inner.openers.push(Box::new(move || job.open_due()));
            }
        }
        let is_due = inner.state().slots.values().any(|slot| slot.compaction_is_due(now));
        if is_due && !inner.compacts.swap(true, Ordering::AcqRel) {
            let job = inner.clone();
            inner.removers.push(Box::new(move || job.compact_due()));
        }
        false
    }

    fn release_unused(&self) {
        if let Some(inner) = self.inner.upgrade() {
            let job = inner.clone();
            inner.openers.push(Box::new(move || job.close_idle()));
        }
    }
}

impl super::slot::StreamSlot {
    /// Metadata for the catalog while the process runs.
    pub(super) fn metadata_unless_open(&self) -> StreamMetadata {
        let mut metadata = self.metadata.clone();
        if !matches!(self.state, SlotState::Closed) {
            (metadata.extents, metadata.clean) = (None, None);
        }
        metadata
    }
}

impl Inner {
    /// The directory of a stream.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        name::encode(name).map(|directory| self.dir.join(directory))
    }
}
