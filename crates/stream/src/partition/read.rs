//! The readers' side.

use std::io;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use super::{Core, Read, Start};
use crate::ReadError;
use crate::disk::File;
use crate::index::STEP;
use crate::record::{self, BATCH_HEADER, BatchHeader, Malformed};
use crate::segment::Segment;

/// Where to look in a segment: what was copied from the state, so that nobody waits for a reader.
struct Place {
    segment: Arc<Segment>,
    /// Of the segment that is appended to: its file, and where to begin in it.
    open: Option<(Arc<dyn File>, u64)>,
    /// Bytes that may be seen.
    bytes: u64,
    /// Where among them something is known to be wrong.
    damaged: Arc<[u64]>,
    /// The offset behind them.
    end: u64,
    /// Where reading goes on if the rest of them is damaged.
    resume: u64,
}

/// A part of a segment that is lent.
pub(super) struct Window {
    /// Which segment.
    base: u64,
    start: u64,
    bytes: Bytes,
}

impl Window {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// What is looked for.
#[derive(Clone, Copy)]
enum Wanted {
    Offset(u64),
    Time(u64),
}

impl Wanted {
    /// Whether it lies behind this batch.
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
                // An index that leads behind what it should is damage, too.
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

    /// The first batch of this time or later. What cannot be read is begun with: better too much than too little.
    fn seek_time(&self, time: u64) -> Option<u64> {
        let place = {
            let state = self.state();
            let at = state.entries.partition_point(|entry| entry.summary.last_time < time);
            let at = (at..state.entries.len()).find(|&at| state.entries[at].summary.bytes > 0)?;
            let entry = &state.entries[at];
            let is_last = at + 1 == state.entries.len();
            let open = is_last.then(|| (state.file.clone(), state.index.position_of_time(time)));
            Place {
                segment: entry.segment.clone(),
                open,
                bytes: entry.summary.bytes,
                damaged: entry.damaged.clone(),
                end: entry.summary.end,
                resume: entry.summary.end,
            }
        };
        match self.find(&place, Wanted::Time(time), 0) {
            Ok(Some(read)) => BatchHeader::decode(&read.batches).ok().map(|header| header.base),
            _ => Some(place.segment.base),
        }
    }

    /// Where an offset is; none at the end.
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
        // No entry's base is above its first offset, so one is before.
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
        let (segment, damaged) = (entry.segment.clone(), entry.damaged.clone());
        Ok(Some(Place { segment, open, bytes: entry.summary.bytes, damaged, end: entry.summary.end, resume }))
    }

    /// A part of the segment that is appended to: as a rule the end, which others have just been lent.
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
        // Somebody who is far behind does not take it from those at the end.
        let is_newer = |old: &Window| (new.base, new.end()) >= (old.base, old.end());
        if window.as_ref().is_none_or(is_newer) {
            *window = Some(new);
        }
        Ok(bytes)
    }

    pub(super) fn forget_window(&self) {
        *self.window.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether retention has removed a segment meanwhile.
    fn is_gone(&self, place: &Place) -> bool {
        self.state().entries.front().is_some_and(|first| first.segment.base > place.segment.base)
    }

    /// The batch that is wanted, and those behind it that fit.
    fn find(&self, place: &Place, wanted: Wanted, most: u64) -> Result<Option<Read>, ReadError> {
        let (file, mut at) = match &place.open {
            Some((file, at)) => (file.clone(), *at),
            None => {
                let index = place.segment.index(&*self.disk, place.bytes).map_err(ReadError::Io)?;
                let at = match wanted {
                    Wanted::Offset(offset) => index.position(offset),
                    Wanted::Time(time) => index.position_of_time(time),
                };
                (place.segment.file(&*self.disk).map_err(ReadError::Io)?, at)
            }
        };
        while at < place.bytes {
            // As a rule, one look reaches from the index's entry to the end of what is wanted.
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
                        start += behind_damage(place, &*file, at + start as u64, wrong, wanted)? as usize;
                        break;
                    }
                }
            }
            at += start as u64;
        }
        Ok(None)
    }
}

/// The header at a place in a window, if it is all there.
fn header_at(place: &Place, window: &Bytes, at: u64, start: usize) -> Result<Option<BatchHeader>, Malformed> {
    let position = at + start as u64;
    if place.damaged.contains(&position) {
        return Err(Malformed::Checksum);
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

/// How many bytes are damaged, if what is wanted lies behind them.
fn behind_damage(
    place: &Place,
    file: &dyn File,
    position: u64,
    wrong: Malformed,
    wanted: Wanted,
) -> Result<u64, ReadError> {
    let rest = file.lend(position + 1..place.bytes).map_err(ReadError::Io)?;
    // The segment's own offsets are known, so that no other can be meant.
    let ahead = record::find_batch_where(&rest, |_, header| {
        header.base >= place.segment.base && header.end() <= place.end
    });
    match (ahead, wanted) {
        (Some((_, header)), Wanted::Offset(offset)) if offset < header.base => {
            Err(damaged(place, position, wrong, header.base))
        }
        (Some((ahead, _)), _) => Ok(ahead as u64 + 1),
        (None, _) => Err(damaged(place, position, wrong, place.resume)),
    }
}

/// The first batch, and those behind it that are within the window and the limit.
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
