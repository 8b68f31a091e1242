//! The readers' side of a partition.

use std::io;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use super::entry::{DamagedRange, IndexRequest, KnownExtent};
use super::scan::{Damage, ScanItem, SegmentScan};
use super::shared::{PartitionCore, SharedWindow};
use super::state::State;
use super::types::{ReadResult, StartPosition};
use crate::ReadError;
use crate::disk::DiskFile;
use crate::index::{Index, STEP};
use crate::record::{self, BATCH_HEADER, BatchHeader, RecordError, ScanCost};
use crate::segment::Segment;
use crate::writer::WorkUnit;

/// Maximum distance that one read searches behind damage. A batch further from an index entry has its own entry.
const SEARCH_MAX: u64 = STEP;

/// Maximum known damaged parts remembered per segment.
const HOLES_MAX: usize = 1024;

/// Copy of the state that a read needs, so that reads do not hold the lock.
struct SegmentView {
    segment: Arc<Segment>,
    /// For the segment that is appended to: its file, and the position from which to search.
    open: Option<(Arc<dyn DiskFile>, u64)>,
    /// End of the visible bytes.
    bytes: u64,
    /// Known extent of the segment.
    known: KnownExtent,
    /// Known damage within the extent.
    damaged: Arc<[DamagedRange]>,
    /// Offset at which reading continues if the rest of the segment is damaged.
    resume: u64,
}

/// The target of a search.
#[derive(Clone, Copy)]
enum SearchTarget {
    Offset(u64),
    Time(u64),
}

impl SearchTarget {
    /// Whether the target is behind this batch.
    fn is_behind(self, header: &BatchHeader) -> bool {
        match self {
            Self::Offset(offset) => header.end() <= offset,
            Self::Time(time) => header.appended < time,
        }
    }
}

impl PartitionCore {
    pub(super) fn read(&self, mut from: u64, most: usize) -> Result<ReadResult, ReadError> {
        loop {
            let Some(view) = self.locate(from)? else {
                return Ok(ReadResult { batches: Bytes::new(), next: from });
            };
            let result = self.find(&view, SearchTarget::Offset(from), most as u64);
            match result {
                Ok(Some(read)) => return Ok(read),
                // Compaction has removed the last records of the segment.
                Ok(None) if view.segment.compacted.is_some() => from = view.known.summary.end,
                // An index entry behind the target is also damage.
                Ok(None) => return Err(damaged(&view, 0, RecordError::Order, view.resume)),
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound && self.is_removed(&view) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn seek(&self, start: StartPosition) -> u64 {
        let offsets = self.state().offsets();
        match start {
            StartPosition::Earliest => offsets.earliest,
            StartPosition::Latest => offsets.readable,
            StartPosition::Offset(offset) => offset.clamp(offsets.earliest, offsets.readable),
            StartPosition::Time(time) => self.seek_time(time).unwrap_or(offsets.readable),
        }
    }

    /// The first batch at or after this time. If a part is unreadable, starts there, so that no record is missed.
    fn seek_time(&self, time: u64) -> Option<u64> {
        let view = self.locate_time(time)?;
        match self.find(&view, SearchTarget::Time(time), 0) {
            Ok(Some(read)) => BatchHeader::decode(&read.batches).ok().map(|header| header.base),
            Ok(None) if view.segment.compacted.is_some() => Some(view.known.summary.end),
            _ => Some(view.segment.base),
        }
    }

    /// Segment and position for a time; none if all batches are earlier.
    fn locate_time(&self, time: u64) -> Option<SegmentView> {
        let state = self.state();
        let at = state.segment_of_time(time)?;
        let entry = &state.entries[at];
        let is_last = at + 1 == state.entries.len();
        let open = is_last.then(|| (state.file.clone(), state.index.position_of_time(time)));
        Some(SegmentView {
            segment: entry.segment.clone(),
            open,
            bytes: entry.summary.bytes,
            known: KnownExtent::new(entry),
            damaged: entry.damaged.clone(),
            resume: entry.summary.end,
        })
    }

    /// Segment and position for an offset; none at the end.
    fn locate(&self, from: u64) -> Result<Option<SegmentView>, ReadError> {
        let state = self.state();
        let offsets = state.offsets();
        if from < offsets.earliest {
            return Err(ReadError::Gone { earliest: offsets.earliest });
        }
        if from >= offsets.readable {
            return if from == offsets.readable {
                Ok(None)
            } else {
                Err(ReadError::Ahead { readable: offsets.readable })
            };
        }
        // No entry's base is above its first offset, so an earlier entry exists.
        let mut at = state.entries.partition_point(|entry| entry.segment.base <= from).saturating_sub(1);
        let entry = &state.entries[at];
        let resume = state.entries.get(at + 1).map_or(offsets.readable, |next| next.segment.base);
        if from >= entry.summary.end {
            if let Some(reason) = &entry.damage {
                return Err(ReadError::Damaged { resume, reason: reason.clone() });
            }
            // Offsets have jumped between the segments.
            at += 1;
        }
        let entry = &state.entries[at];
        let is_last = at + 1 == state.entries.len();
        let position = || state.recent.position(from).unwrap_or_else(|| state.index.position(from));
        let open = is_last.then(|| (state.file.clone(), position()));
        let (segment, damaged, known) =
            (entry.segment.clone(), entry.damaged.clone(), KnownExtent::new(entry));
        Ok(Some(SegmentView { segment, open, bytes: known.summary.bytes, known, damaged, resume }))
    }

    /// Shares a part of the last segment: usually the end, which other readers have just requested.
    fn window(&self, view: &SegmentView, file: &dyn DiskFile, range: Range<u64>) -> io::Result<Bytes> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = &*window
            && window.base == view.segment.base
            && window.start <= range.start
            && range.end <= window.end()
        {
            // Both are within the window, which is in memory.
            return Ok(window
                .bytes
                .slice((range.start - window.start) as usize..(range.end - window.start) as usize));
        }
        let bytes = file.read_shared(range.clone())?;
        let new = SharedWindow { base: view.segment.base, start: range.start, bytes: bytes.clone() };
        // A reader that is far behind must not replace the window of readers at the end.
        let is_newer = |old: &SharedWindow| (new.base, new.end()) >= (old.base, old.end());
        if window.as_ref().is_none_or(is_newer) {
            *window = Some(new);
        }
        Ok(bytes)
    }

    pub(super) fn drop_window(&self) {
        *self.window.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether retention or compaction has removed the segment in the meantime.
    fn is_removed(&self, view: &SegmentView) -> bool {
        !self.state().entries.iter().any(|entry| Arc::ptr_eq(&entry.segment, &view.segment))
    }

    /// Finds the target batch, and the following batches that fit.
    fn find(
        &self,
        view: &SegmentView,
        target: SearchTarget,
        most: u64,
    ) -> Result<Option<ReadResult>, ReadError> {
        let (file, mut at) = match &view.open {
            Some((file, at)) => (file.clone(), *at),
            None => {
                let index = self.index(&view.segment, &view.known).map_err(ReadError::Io)?;
                let at = match target {
                    SearchTarget::Offset(offset) => index.position(offset),
                    SearchTarget::Time(time) => index.position_of_time(time),
                };
                (view.segment.file(&*self.disk).map_err(ReadError::Io)?, at)
            }
        };
        at = at.max(view.segment.layout(&*self.disk).map_err(ReadError::Io)?.start);
        while at < view.bytes {
            // Usually one lookup covers the bytes from the index entry to the end of the read.
            let range = at..view.bytes.min(at + STEP + most);
            let window =
                if view.open.is_some() { self.window(view, &*file, range) } else { file.read_shared(range) };
            let window = window.map_err(ReadError::Io)?;
            let mut start = 0;
            loop {
                match header_at(view, &window, at, start) {
                    Ok(Some(header)) if !target.is_behind(&header) => {
                        return gather(view, &*file, at, &window, start, header, most).map(Some);
                    }
                    Ok(Some(header)) => start += header.length as usize,
                    Ok(None) => break,
                    Err(wrong) => {
                        let hole = self.find_damaged_range(view, &*file, at + start as u64, wrong)?;
                        match target {
                            SearchTarget::Offset(offset) if offset < hole.resume => {
                                return Err(damaged(view, at + start as u64, wrong, hole.resume));
                            }
                            _ => start = (hole.damage.end - at) as usize,
                        }
                        break;
                    }
                }
            }
            at += start as u64;
        }
        Ok(None)
    }

    /// Extent of the damage that begins here. The cost does not depend on the size of the damage, and the result is
    /// remembered.
    fn find_damaged_range(
        &self,
        view: &SegmentView,
        file: &dyn DiskFile,
        start: u64,
        wrong: RecordError,
    ) -> Result<DamagedRange, ReadError> {
        if let Ok(known) = view.damaged.binary_search_by_key(&start, |hole| hole.damage.start) {
            return Ok(view.damaged[known]);
        }
        let anchor = self.behind(view, start);
        let end = anchor.map_or(view.bytes, |(position, _)| position.min(view.bytes));
        let searched = start + 1..view.bytes.min(end.min(start + SEARCH_MAX) + BATCH_HEADER as u64);
        let found = match view.segment.layout(&*self.disk).map_err(ReadError::Io)?.seal() {
            Some(seal) if !searched.is_empty() => {
                let bytes = file.read_shared(searched).map_err(ReadError::Io)?;
                record::find_sealed(&bytes, start + 1, seal, &mut ScanCost::default())
            }
            _ => None,
        };
        let found = found.map(|(position, header)| (position, header.base)).or(anchor);
        let Some((end, resume)) = found.filter(|(position, _)| *position < view.bytes) else {
            return Err(damaged(view, start, wrong, view.resume));
        };
        let hole = DamagedRange { damage: Damage { start, end, wrong }, resume };
        self.remember_damage(view, hole);
        Ok(hole)
    }

    /// The first batch behind a position that the index contains.
    fn behind(&self, view: &SegmentView, position: u64) -> Option<(u64, u64)> {
        if view.open.is_some() {
            let state = self.state();
            if state.last().segment.base == view.segment.base {
                return state.index.behind(position);
            }
        }
        self.index(&view.segment, &view.known).ok()?.behind(position)
    }

    fn remember_damage(&self, view: &SegmentView, hole: DamagedRange) {
        let mut state = self.state();
        let entry = state.entries.iter_mut().find(|entry| entry.segment.name() == view.segment.name());
        if let Some(entry) = entry.filter(|entry| entry.damaged.len() < HOLES_MAX) {
            let mut damaged_ranges = entry.damaged.to_vec();
            if let Err(at) = damaged_ranges.binary_search_by_key(&hole.damage.start, |hole| hole.damage.start)
            {
                damaged_ranges.insert(at, hole);
                entry.damaged = damaged_ranges.into();
            }
        }
    }

    /// The segment's index, rebuilt if its file is missing or damaged.
    fn index(&self, segment: &Arc<Segment>, known: &KnownExtent) -> io::Result<Arc<Index>> {
        match segment.index(&*self.disk) {
            Some(index) => Ok(index),
            None => self.rebuild_index(segment, known),
        }
    }

    /// Rebuilds the index by reading the whole segment.
    pub(super) fn rebuild_index(
        &self,
        segment: &Arc<Segment>,
        known: &KnownExtent,
    ) -> io::Result<Arc<Index>> {
        let file = segment.file(&*self.disk)?;
        let bytes = file.read_shared(0..known.summary.bytes)?;
        let (mut index, mut is_intact) = (Index::default(), known.is_intact);
        for part in SegmentScan::new(&bytes, segment.layout(&*self.disk)?, segment.base, None).headers() {
            match part {
                ScanItem::Batch(position, header) => index.note(position, &header),
                _ => is_intact = false,
            }
        }
        let index = Arc::new(index);
        segment.set_index(index.clone());
        // Damage must be found again when the log is opened. An index that cannot be stored is rebuilt next time.
        if is_intact {
            let _ = segment.store(&*self.disk, &known.summary, &index);
        }
        Ok(index)
    }

    /// Whether a read at this offset must wait for an index. The log's threads rebuild it and call the waker.
    pub(super) fn waits_for_index(self: &Arc<Self>, from: u64, waker: &Waker) -> bool {
        let Ok(Some(view)) = self.locate(from) else { return false };
        self.requests_index(view, waker)
    }

    /// The same for a search for a time.
    pub(super) fn waits_for_index_of_time(self: &Arc<Self>, time: u64, waker: &Waker) -> bool {
        self.locate_time(time).is_some_and(|view| self.requests_index(view, waker))
    }

    fn requests_index(self: &Arc<Self>, view: SegmentView, waker: &Waker) -> bool {
        if view.open.is_some() || view.segment.index(&*self.disk).is_some() {
            return false;
        }
        let mut state = self.state();
        // The threads have ended, or are about to.
        if state.closed {
            return false;
        }
        let oldest = state.request_index(view.segment, view.known, waker, self.limits.max_waiters);
        let was_rebuilding = std::mem::replace(&mut state.is_rebuilding, true);
        drop(state);
        if !was_rebuilding {
            self.pool.push(Arc::new(IndexRebuilder(self.clone())));
        }
        oldest.into_iter().for_each(Waker::wake);
        true
    }
}

/// Rebuilds a partition's requested indexes, one at a time: a unit of its own, so that the partition's writes do not
/// wait for it.
struct IndexRebuilder(Arc<PartitionCore>);

impl WorkUnit for IndexRebuilder {
    fn work(self: Arc<Self>) -> bool {
        let core = &self.0;
        let mut state = core.state();
        let Some(request) = state.index_requests.front().filter(|_| !state.closed) else {
            state.is_rebuilding = false;
            return false;
        };
        let (segment, known) = (request.segment.clone(), request.known);
        drop(state);
        if let Err(error) = core.rebuild_index(&segment, &known) {
            tracing::warn!(path = %segment.path().display(), %error, "an index could not be rebuilt");
            // Readers of the segment get the error.
            segment.set_index(Arc::default());
        }
        // Closing may have taken the request.
        let mut state = core.state();
        let is_first =
            state.index_requests.front().is_some_and(|first| first.segment.name() == segment.name());
        let rebuilt = if is_first { state.index_requests.pop_front() } else { None };
        drop(state);
        rebuilt.into_iter().flat_map(|rebuilt| rebuilt.wakers).for_each(Waker::wake);
        true
    }

    fn tick(&self, _: u64) -> bool {
        false
    }

    fn release_unused(&self) {}
}

impl State {
    /// Takes the wakers of readers that wait for an index: no thread rebuilds it any more.
    pub(super) fn take_index_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.index_requests).into_iter().flat_map(|request| request.wakers).collect()
    }

    /// Queues a segment for an index rebuild, once. Returns the oldest waker if the waiter limit is exceeded.
    fn request_index(
        &mut self,
        segment: Arc<Segment>,
        known: KnownExtent,
        waker: &Waker,
        most: usize,
    ) -> Option<Waker> {
        let Some(target) =
            self.index_requests.iter_mut().find(|target| target.segment.name() == segment.name())
        else {
            self.index_requests.push_back(IndexRequest { segment, known, wakers: [waker.clone()].into() });
            return None;
        };
        if target.wakers.iter().any(|one| one.will_wake(waker)) {
            return None;
        }
        target.wakers.push_back(waker.clone());
        if target.wakers.len() > most { target.wakers.pop_front() } else { None }
    }
}

/// The header at a position in a window, if it is complete.
fn header_at(
    view: &SegmentView,
    window: &Bytes,
    at: u64,
    start: usize,
) -> Result<Option<BatchHeader>, RecordError> {
    let position = at + start as u64;
    if let Ok(known) = view.damaged.binary_search_by_key(&position, |hole| hole.damage.start) {
        return Err(view.damaged[known].damage.wrong);
    }
    match window.get(start..).unwrap_or_default() {
        rest if rest.len() >= BATCH_HEADER => {
            let header = BatchHeader::decode(rest)?;
            let is_whole = position + u64::from(header.length) <= view.bytes;
            if is_whole { Ok(Some(header)) } else { Err(RecordError::Truncated) }
        }
        rest if start == 0 || position + rest.len() as u64 == view.bytes && !rest.is_empty() => {
            Err(RecordError::Truncated)
        }
        _ => Ok(None),
    }
}

/// Collects the first batch, and the following batches within the window and the limit.
fn gather(
    view: &SegmentView,
    file: &dyn DiskFile,
    at: u64,
    window: &Bytes,
    start: usize,
    first: BatchHeader,
    most: u64,
) -> Result<ReadResult, ReadError> {
    let mut end = start + first.length as usize;
    let mut next = first.end();
    if end > window.len() {
        let position = at + start as u64;
        let batches =
            file.read_shared(position..position + u64::from(first.length)).map_err(ReadError::Io)?;
        return Ok(ReadResult { batches, next });
    }
    while end < window.len()
        && let Ok(Some(header)) = header_at(view, window, at, end)
    {
        let batch_end = end + header.length as usize;
        if batch_end > window.len() || (batch_end - start) as u64 > most {
            break;
        }
        (end, next) = (batch_end, header.end());
    }
    Ok(ReadResult { batches: window.slice(start..end), next })
}

fn damaged(view: &SegmentView, position: u64, wrong: RecordError, resume: u64) -> ReadError {
    let reason = format!("{}: {wrong} at byte {position}", view.segment.path().display());
    ReadError::Damaged { resume, reason: reason.into() }
}
