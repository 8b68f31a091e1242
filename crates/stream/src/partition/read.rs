//! The readers' side of a partition.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use super::scan::{Damage, Part, Scan};
use super::state::{Entry, Hole, State};
use super::{Core, Read, Start};
use crate::ReadError;
use crate::disk::File;
use crate::index::{Index, STEP, Summary};
use crate::record::{self, BATCH_HEADER, BatchHeader, Effort, Malformed};
use crate::segment::Segment;

/// Maximum distance that one read searches behind damage. A batch further from an index entry has its own entry.
const SEARCH_MOST: u64 = STEP;

/// Maximum number of known damaged parts remembered per segment.
const HOLES_MOST: usize = 1024;

/// Copy of the state that a read needs, so that reads do not hold the lock.
struct Place {
    segment: Arc<Segment>,
    /// For the segment that is appended to: its file, and the position from which to search.
    open: Option<(Arc<dyn File>, u64)>,
    /// End of the visible bytes.
    bytes: u64,
    /// Known extent of the segment.
    known: Known,
    /// Known damage within the extent.
    damaged: Arc<[Hole]>,
    /// Offset at which reading continues if the rest of the segment is damaged.
    resume: u64,
}

/// Known extent of a segment, and whether all of it is valid.
#[derive(Clone, Copy)]
pub(super) struct Known {
    summary: Summary,
    is_right: bool,
}

impl Known {
    fn of(entry: &Entry) -> Self {
        Self { summary: entry.summary, is_right: entry.is_right() }
    }
}

/// A shared part of a segment.
pub(super) struct Window {
    /// Base of the segment.
    base: u64,
    start: u64,
    bytes: Bytes,
}

impl Window {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The target of a search.
#[derive(Clone, Copy)]
enum Wanted {
    Offset(u64),
    Time(u64),
}

impl Wanted {
    /// Whether the target is behind this batch.
    fn is_behind(self, header: &BatchHeader) -> bool {
        match self {
            Self::Offset(offset) => header.end() <= offset,
            Self::Time(time) => header.appended < time,
        }
    }
}

impl Core {
    pub(super) fn read(&self, from: u64, most: usize) -> Result<Read, ReadError> {
        loop {
            let Some(place) = self.place(from)? else {
                return Ok(Read { batches: Bytes::new(), next: from });
            };
            let result = self.find(&place, Wanted::Offset(from), most as u64);
            match result {
                Ok(Some(read)) => return Ok(read),
                // An index entry behind the target is also damage.
                Ok(None) => return Err(damaged(&place, 0, Malformed::Order, place.resume)),
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound && self.is_gone(&place) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn seek(&self, start: Start) -> u64 {
        let ends = self.state().ends();
        match start {
            Start::Earliest => ends.earliest,
            Start::Latest => ends.readable,
            Start::Offset(offset) => offset.clamp(ends.earliest, ends.readable),
            Start::Time(time) => self.seek_time(time).unwrap_or(ends.readable),
        }
    }

    /// The first batch at or after this time. If a part is unreadable, starts there, so that no record is missed.
    fn seek_time(&self, time: u64) -> Option<u64> {
        let place = {
            let state = self.state();
            let at = state.segment_of_time(time)?;
            let entry = &state.entries[at];
            let is_last = at + 1 == state.entries.len();
            let open = is_last.then(|| (state.file.clone(), state.index.position_of_time(time)));
            Place {
                segment: entry.segment.clone(),
                open,
                bytes: entry.summary.bytes,
                known: Known::of(entry),
                damaged: entry.damaged.clone(),
                resume: entry.summary.end,
            }
        };
        match self.find(&place, Wanted::Time(time), 0) {
            Ok(Some(read)) => BatchHeader::decode(&read.batches).ok().map(|header| header.base),
            _ => Some(place.segment.base),
        }
    }

    /// Segment and position for an offset; none at the end.
    fn place(&self, from: u64) -> Result<Option<Place>, ReadError> {
        let state = self.state();
        let ends = state.ends();
        if from < ends.earliest {
            return Err(ReadError::Gone { earliest: ends.earliest });
        }
        if from >= ends.readable {
            return if from == ends.readable {
                Ok(None)
            } else {
                Err(ReadError::Ahead { readable: ends.readable })
            };
        }
        // No entry's base is above its first offset, so an earlier entry exists.
        let mut at = state.entries.partition_point(|entry| entry.segment.base <= from).saturating_sub(1);
        let entry = &state.entries[at];
        let resume = state.entries.get(at + 1).map_or(ends.readable, |next| next.segment.base);
        if from >= entry.summary.end {
            if let Some(why) = &entry.damage {
                return Err(ReadError::Damaged { resume, why: why.clone() });
            }
            // Offsets have jumped between the segments.
            at += 1;
        }
        let entry = &state.entries[at];
        let is_last = at + 1 == state.entries.len();
        let position = || state.recent.position(from).unwrap_or_else(|| state.index.position(from));
        let open = is_last.then(|| (state.file.clone(), position()));
        let (segment, damaged, known) = (entry.segment.clone(), entry.damaged.clone(), Known::of(entry));
        Ok(Some(Place { segment, open, bytes: known.summary.bytes, known, damaged, resume }))
    }

    /// Shares a part of the last segment: usually the end, which other readers have just requested.
    fn window(&self, place: &Place, file: &dyn File, range: Range<u64>) -> io::Result<Bytes> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = &*window
            && window.base == place.segment.base
            && window.start <= range.start
            && range.end <= window.end()
        {
            // Both are within the window, which is in memory.
            return Ok(window
                .bytes
                .slice((range.start - window.start) as usize..(range.end - window.start) as usize));
        }
        let bytes = file.lend(range.clone())?;
        let new = Window { base: place.segment.base, start: range.start, bytes: bytes.clone() };
        // A reader that is far behind must not replace the window of readers at the end.
        let is_newer = |old: &Window| (new.base, new.end()) >= (old.base, old.end());
        if window.as_ref().is_none_or(is_newer) {
            *window = Some(new);
        }
        Ok(bytes)
    }

    pub(super) fn forget_window(&self) {
        *self.window.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether retention has removed the segment in the meantime.
    fn is_gone(&self, place: &Place) -> bool {
        self.state().entries.front().is_some_and(|first| first.segment.base > place.segment.base)
    }

    /// Finds the target batch, and the following batches that fit.
    fn find(&self, place: &Place, wanted: Wanted, most: u64) -> Result<Option<Read>, ReadError> {
        let (file, mut at) = match &place.open {
            Some((file, at)) => (file.clone(), *at),
            None => {
                let index = self.index(&place.segment, &place.known).map_err(ReadError::Io)?;
                let at = match wanted {
                    Wanted::Offset(offset) => index.position(offset),
                    Wanted::Time(time) => index.position_of_time(time),
                };
                (place.segment.file(&*self.disk).map_err(ReadError::Io)?, at)
            }
        };
        at = at.max(place.segment.framing(&*self.disk).map_err(ReadError::Io)?.start);
        while at < place.bytes {
            // Usually one lookup covers the bytes from the index entry to the end of the read.
            let range = at..place.bytes.min(at + STEP + most);
            let window =
                if place.open.is_some() { self.window(place, &*file, range) } else { file.lend(range) };
            let window = window.map_err(ReadError::Io)?;
            let mut start = 0;
            loop {
                match header_at(place, &window, at, start) {
                    Ok(Some(header)) if !wanted.is_behind(&header) => {
                        return gather(place, &*file, (at, &window, start), header, most).map(Some);
                    }
                    Ok(Some(header)) => start += header.length as usize,
                    Ok(None) => break,
                    Err(wrong) => {
                        let hole = self.hole(place, &*file, at + start as u64, wrong)?;
                        match wanted {
                            Wanted::Offset(offset) if offset < hole.resume => {
                                return Err(damaged(place, at + start as u64, wrong, hole.resume));
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
    fn hole(&self, place: &Place, file: &dyn File, start: u64, wrong: Malformed) -> Result<Hole, ReadError> {
        if let Ok(known) = place.damaged.binary_search_by_key(&start, |hole| hole.damage.start) {
            return Ok(place.damaged[known]);
        }
        let anchor = self.behind(place, start);
        let end = anchor.map_or(place.bytes, |(position, _)| position.min(place.bytes));
        let searched = start + 1..place.bytes.min(end.min(start + SEARCH_MOST) + BATCH_HEADER as u64);
        let found = match place.segment.framing(&*self.disk).map_err(ReadError::Io)?.seal() {
            Some(seal) if !searched.is_empty() => {
                let bytes = file.lend(searched).map_err(ReadError::Io)?;
                record::find_sealed(&bytes, start + 1, seal, &mut Effort::default())
            }
            _ => None,
        };
        let found = found.map(|(position, header)| (position, header.base)).or(anchor);
        let Some((end, resume)) = found.filter(|(position, _)| *position < place.bytes) else {
            return Err(damaged(place, start, wrong, place.resume));
        };
        let hole = Hole { damage: Damage { start, end, wrong }, resume };
        self.remember(place, hole);
        Ok(hole)
    }

    /// The first batch behind a position that the index contains.
    fn behind(&self, place: &Place, position: u64) -> Option<(u64, u64)> {
        if place.open.is_some() {
            let state = self.state();
            if state.last().segment.base == place.segment.base {
                return state.index.behind(position);
            }
        }
        self.index(&place.segment, &place.known).ok()?.behind(position)
    }

    fn remember(&self, place: &Place, hole: Hole) {
        let mut state = self.state();
        let entry = state.entries.iter_mut().find(|entry| entry.segment.base == place.segment.base);
        if let Some(entry) = entry.filter(|entry| entry.damaged.len() < HOLES_MOST) {
            let mut holes = entry.damaged.to_vec();
            if let Err(at) = holes.binary_search_by_key(&hole.damage.start, |hole| hole.damage.start) {
                holes.insert(at, hole);
                entry.damaged = holes.into();
            }
        }
    }

    /// The segment's index, rebuilt if its file is missing or damaged.
    fn index(&self, segment: &Arc<Segment>, known: &Known) -> io::Result<Arc<Index>> {
        match segment.index(&*self.disk) {
            Some(index) => Ok(index),
            None => self.make_index(segment, known),
        }
    }

    /// Rebuilds the index by reading the whole segment.
    pub(super) fn make_index(&self, segment: &Arc<Segment>, known: &Known) -> io::Result<Arc<Index>> {
        let file = segment.file(&*self.disk)?;
        let bytes = file.lend(0..known.summary.bytes)?;
        let (mut index, mut is_right) = (Index::default(), known.is_right);
        for part in Scan::new(&bytes, segment.framing(&*self.disk)?, segment.base, None).headers() {
            match part {
                Part::Batch(position, header) => index.note(position, &header),
                _ => is_right = false,
            }
        }
        let index = Arc::new(index);
        segment.set_index(index.clone());
        // Damage must be found again when the log is opened. An index that cannot be stored is rebuilt next time.
        if is_right {
            let _ = segment.store(&*self.disk, &known.summary, &index);
        }
        Ok(index)
    }

    /// Whether a read of this offset must wait for an index. The log's threads rebuild it and call the waker.
    pub(super) fn awaits_index(self: &Arc<Self>, from: u64, waker: &Waker) -> bool {
        let Ok(Some(place)) = self.place(from) else { return false };
        if place.open.is_some() || place.segment.index(&*self.disk).is_some() {
            return false;
        }
        let mut state = self.state();
        let longest = state.await_index(place.segment, place.known, waker, self.limits.max_waiters);
        if !std::mem::replace(&mut state.busy, true) {
            drop(state);
            self.push();
        }
        longest.into_iter().for_each(Waker::wake);
        true
    }
}

impl State {
    /// Queues a segment for an index rebuild, once. Returns the oldest waker if the limit of waiters is exceeded.
    fn await_index(
        &mut self,
        segment: Arc<Segment>,
        known: Known,
        waker: &Waker,
        most: usize,
    ) -> Option<Waker> {
        let Some(wanted) = self.unindexed.iter_mut().find(|wanted| wanted.segment.base == segment.base)
        else {
            self.unindexed.push_back(Unindexed { segment, known, wakers: [waker.clone()].into() });
            return None;
        };
        if wanted.wakers.iter().any(|one| one.will_wake(waker)) {
            return None;
        }
        wanted.wakers.push_back(waker.clone());
        if wanted.wakers.len() > most { wanted.wakers.pop_front() } else { None }
    }
}

/// A segment with a missing index, and the wakers of its readers.
pub(super) struct Unindexed {
    pub(super) segment: Arc<Segment>,
    pub(super) known: Known,
    pub(super) wakers: VecDeque<Waker>,
}

/// The header at a position in a window, if it is complete.
fn header_at(place: &Place, window: &Bytes, at: u64, start: usize) -> Result<Option<BatchHeader>, Malformed> {
    let position = at + start as u64;
    if let Ok(known) = place.damaged.binary_search_by_key(&position, |hole| hole.damage.start) {
        return Err(place.damaged[known].damage.wrong);
    }
    match window.get(start..).unwrap_or_default() {
        rest if rest.len() >= BATCH_HEADER => {
            let header = BatchHeader::decode(rest)?;
            let is_whole = position + u64::from(header.length) <= place.bytes;
            if is_whole { Ok(Some(header)) } else { Err(Malformed::Truncated) }
        }
        rest if start == 0 || position + rest.len() as u64 == place.bytes && !rest.is_empty() => {
            Err(Malformed::Truncated)
        }
        _ => Ok(None),
    }
}

/// Collects the first batch, and the following batches within the window and the limit.
fn gather(
    place: &Place,
    file: &dyn File,
    (at, window, start): (u64, &Bytes, usize),
    first: BatchHeader,
    most: u64,
) -> Result<Read, ReadError> {
    let mut end = start + first.length as usize;
    let mut next = first.end();
    if end > window.len() {
        let position = at + start as u64;
        let batches = file.lend(position..position + u64::from(first.length)).map_err(ReadError::Io)?;
        return Ok(Read { batches, next });
    }
    while end < window.len()
        && let Ok(Some(header)) = header_at(place, window, at, end)
    {
        let its_end = end + header.length as usize;
        if its_end > window.len() || (its_end - start) as u64 > most {
            break;
        }
        (end, next) = (its_end, header.end());
    }
    Ok(Read { batches: window.slice(start..end), next })
}

fn damaged(place: &Place, position: u64, wrong: Malformed, resume: u64) -> ReadError {
    let why = format!("{}: {wrong} at byte {position}", place.segment.path().display());
    ReadError::Damaged { resume, why: why.into() }
}
