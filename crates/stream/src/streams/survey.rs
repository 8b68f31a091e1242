//! Maintenance of streams that are not open: verifies the catalog, applies retention, and closes idle streams.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use super::slot::Life;
use super::{Inner, read_config};
use crate::catalog::{Extent, Known};
use crate::disk::Disk;
use crate::segment::Segment;
use crate::writer::Work;
use crate::{Loss, Stream, name};

use super::opening::Busy;

/// Maximum number of streams that are examined before [`Streams::open`](crate::Streams::open) returns. If there are
/// more, a background thread examines all of them.
const SURVEY_FIRST: usize = 256;

/// Microseconds between two retention checks, each of which visits all streams.
const LOOK: u64 = 1_000_000;

/// Maximum number of streams that retention opens at a time.
const DUE_MAX: usize = 64;

impl Inner {
    /// Examines all streams, now or in the background. Returns the losses found if it runs now.
    pub(super) fn survey(self: &Arc<Self>) -> Vec<Loss> {
        let names: Vec<Arc<str>> = self.state().slots.keys().cloned().collect();
        if names.len() <= SURVEY_FIRST {
            return names.iter().flat_map(|name| self.examine(name)).collect();
        }
        let inner = Arc::downgrade(self);
        self.openers.push(Box::new(move || {
            for name in names {
                // Losses are logged.
                match inner.upgrade() {
                    Some(inner) if inner.state().lock.is_some() => drop(inner.examine(&name)),
                    _ => return,
                }
            }
        }));
        Vec::new()
    }

    /// Opens a stream that was open when a process ended, or whose files differ from the catalog. A stream that cannot
    /// be opened becomes damaged.
    fn examine(&self, name: &Arc<str>) -> Vec<Loss> {
        let known = match self.state().slots.get(&**name) {
            Some(slot) if matches!(slot.life, Life::Closed) => slot.known.clone(),
            _ => return Vec::new(),
        };
        let path = self.path(name);
        if path.is_some_and(|path| is_as_known(&*self.pool.disk, &path, &known)) {
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

    /// Closes idle streams, and files not used since the last call.
    fn close_idle(&self) {
        self.handles.rest();
        let mut state = self.state();
        if state.lock.is_none() {
            return;
        }
        let now = (self.pool.clock)();
        let mut idle = Vec::new();
        for (name, slot) in &mut state.slots {
            if let Life::Open(stream) = &slot.life
                && stream.is_unused(now)
            {
                idle.push((name.clone(), stream.clone()));
                slot.life = Life::Busy;
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
            let known: Vec<_> =
                state.slots.iter().map(|(name, slot)| (name.clone(), slot.known_unless_open())).collect();
            drop(state);
            if let Err(error) = catalog.replace(known.iter().map(|(name, known)| (&**name, known))) {
                tracing::warn!(%error, "the catalog cannot be rewritten");
            }
        }
    }

    fn close_one(&self, name: &Arc<str>, stream: Stream) {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let busy = Busy { inner: self, name };
        stream.leave(&self.pool);
        stream.stop();
        stream.close();
        let slot = self.state().slots.get(&**name).map(|slot| slot.known.clone());
        let mut known = slot.unwrap_or_default();
        stream.note(&mut known);
        // Before the next use marks it open.
        self.catalog().put(name, &known);
        busy.finish(|state| {
            if let Some(slot) = state.slots.get_mut(&**name) {
                (slot.known, slot.life) = (known, Life::Closed);
            }
        });
    }
}

/// Whether a stream's directory matches the catalog in names and lengths.
fn is_as_known(disk: &dyn Disk, path: &Path, known: &Known) -> bool {
    let Some(extents) = &known.extents else { return false };
    let is_right = read_config(disk, path)
        .is_ok_and(|found| found.is_some_and(|found| found == (known.config.clone(), known.created)));
    let partition = |(number, extent): (usize, &Extent)| {
        let dir = path.join(number.to_string());
        let names = disk.list(&dir).unwrap_or_default();
        let mut bases: Vec<u64> = names.iter().filter_map(|name| Segment::base_of_log(name)).collect();
        bases.sort_unstable();
        let is_file = |base: &u64| !disk.is_dir(Segment::new(&dir, *base).path());
        let length = || disk.open(Segment::new(&dir, extent.last_base).path()).and_then(|file| file.bytes());
        bases.len() as u64 == extent.segments
            && bases.last() == Some(&extent.last_base)
            && bases.iter().all(is_file)
            && length().is_ok_and(|bytes| bytes == extent.last_bytes)
    };
    is_right && extents.iter().enumerate().all(partition)
}

/// Finds a segment that was renamed since the stream was closed, and its right name. Opening the stream would treat the
/// segment as damaged and cut it off.
pub(super) fn misnamed(disk: &dyn Disk, path: &Path, known: &Known) -> Option<(PathBuf, PathBuf)> {
    let extents = known.extents.as_deref().unwrap_or_default();
    extents.iter().enumerate().filter(|(_, extent)| extent.last_bytes > 0).find_map(|(number, extent)| {
        let dir = path.join(number.to_string());
        let bases: Vec<u64> =
            disk.list(&dir).ok()?.iter().filter_map(|name| Segment::base_of_log(name)).collect();
        let segment = |base: u64| Segment::new(&dir, base).path().to_owned();
        let is_it = |base: &u64| {
            disk.open(&segment(*base))
                .and_then(|file| file.bytes())
                .is_ok_and(|bytes| bytes == extent.last_bytes)
        };
        if bases.contains(&extent.last_base) {
            return None;
        }
        Some((segment(bases.into_iter().filter(is_it).max()?), segment(extent.last_base)))
    })
}

/// The clock's member for streams that are not open.
pub(super) struct Keeper {
    inner: Weak<Inner>,
    /// Time of the last retention check.
    looked: AtomicU64,
}

impl Keeper {
    pub(super) fn new(inner: &Arc<Inner>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::downgrade(inner), looked: AtomicU64::new(0) })
    }
}

impl Work for Keeper {
    fn work(self: Arc<Self>) -> bool {
        false
    }

    fn tick(&self, now: u64) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        if now.abs_diff(self.looked.load(Ordering::Relaxed)) < LOOK {
            return false;
        }
        self.looked.store(now, Ordering::Relaxed);
        let is_due = inner.state().slots.values().any(|slot| slot.is_due(now));
        if is_due {
            let job = inner.clone();
            if !inner.opens_due.swap(true, Ordering::AcqRel) {
                inner.openers.push(Box::new(move || job.open_due()));
            }
        }
        false
    }

    fn rest(&self) {
        if let Some(inner) = self.inner.upgrade() {
            let job = inner.clone();
            inner.openers.push(Box::new(move || job.close_idle()));
        }
    }
}

impl super::slot::Slot {
    /// Metadata for the catalog while the process runs.
    pub(super) fn known_unless_open(&self) -> Known {
        let mut known = self.known.clone();
        if !matches!(self.life, Life::Closed) {
            (known.extents, known.clean) = (None, None);
        }
        known
    }
}

impl Inner {
    /// The directory of a stream.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        name::encode(name).map(|directory| self.dir.join(directory))
    }
}
