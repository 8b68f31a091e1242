//! What is on disk when a partition is opened.

use std::path::Path;
use std::sync::Arc;

use super::state::Entry;
use crate::disk::{Disk, File};
use crate::index::{Index, Summary};
use crate::record::{self, Malformed};
use crate::segment::Segment;
use crate::{Loss, OpenError};

/// What was found.
pub(super) struct Recovered {
    /// At least one; the last is to be appended to.
    pub(super) entries: Vec<Entry>,
    /// The last one's file.
    pub(super) file: Arc<dyn File>,
    /// The last one's index.
    pub(super) index: Index,
    pub(super) losses: Vec<Loss>,
}

/// Finds the segments in a directory, and checks what may be damaged: the last one, unless it was closed, and those
/// without an index. What is wrong at the end is cut off, since nobody was told that it is there. What is wrong before
/// something right stays in its file and is named; what is right behind it is read as ever.
pub(super) fn open(
    disk: &dyn Disk,
    dir: &Path,
    stream: &str,
    partition: u32,
) -> Result<Recovered, OpenError> {
    let bases = clean(disk, dir).map_err(|error| OpenError::Io(dir.to_owned(), error))?;
    let mut recovery = Recovery { disk, stream, partition, losses: Vec::new(), next: 0, time: 0 };
    if bases.is_empty() {
        // A partition that was just made has none either; then nobody asks for losses.
        let why = format!("{}: no segment is there", dir.display());
        let loss = recovery.loss(0, 0, why);
        recovery.losses.push(loss);
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(bases.len() + 1);
    let mut index = None;
    for (place, &base) in bases.iter().enumerate() {
        let segment = Segment::new(dir, base);
        if base < recovery.next {
            let failed = |error| OpenError::Io(segment.path().to_owned(), error);
            if segment.is_empty(disk).map_err(failed)? {
                // It was to be the next one and did not come into being whole, so that the one before went on. That may
                // be the last one, of which more is to be looked at.
                segment.remove(disk).map_err(failed)?;
                return open(disk, dir, stream, partition);
            }
            let what = format!("begins before the end of the segment before it, offset {}", recovery.next);
            return Err(OpenError::Unknown(segment.path().to_owned(), what.into()));
        }
        if let Some(before) = entries.last_mut().filter(|_| base > recovery.next) {
            recovery.note_gap(before, base);
        }
        let is_last = place + 1 == bases.len();
        let (entry, its_index) = recovery.segment(segment, is_last)?;
        entries.push(entry);
        index = its_index;
    }
    let (file, index) = match (entries.last(), index) {
        (Some(entry), Some(index)) => (entry.segment.file(disk), index),
        _ => {
            let segment = Arc::new(Segment::new(dir, 0));
            let file = segment.create(disk);
            entries.push(Entry::new(segment, Summary::empty(0, 0)));
            (file, Index::default())
        }
    };
    let file = file.map_err(|error| OpenError::Io(dir.to_owned(), error))?;
    Ok(Recovered { entries, file, index, losses: recovery.losses })
}

/// The segments that are there; what belongs to none goes.
fn clean(disk: &dyn Disk, dir: &Path) -> std::io::Result<Vec<u64>> {
    let names = disk.list(dir)?;
    let mut bases: Vec<u64> = names.iter().filter_map(|name| Segment::base_of_log(name)).collect();
    bases.sort_unstable();
    for name in &names {
        if Segment::base_of_index(name).is_some_and(|base| bases.binary_search(&base).is_err()) {
            disk.remove(&dir.join(name))?;
        }
    }
    // What is there may be seen without being durable, after a process that failed or was killed.
    disk.sync_dir(dir)?;
    Ok(bases)
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    stream: &'a str,
    partition: u32,
    losses: Vec<Loss>,
    /// The offset and the time from which what follows may begin.
    next: u64,
    time: u64,
}

impl Recovery<'_> {
    /// One segment: as its index says, if that is right, and else as it is. The index of the last one is wanted.
    fn segment(&mut self, segment: Segment, is_last: bool) -> Result<(Entry, Option<Index>), OpenError> {
        let segment = Arc::new(segment);
        if let Some(summary) = segment.summary(self.disk) {
            let index = if is_last { segment.stored_index(self.disk) } else { None };
            if !is_last || index.is_some() {
                (self.next, self.time) = (summary.end, summary.last_time);
                return Ok((Entry::new(segment, summary), index));
            }
        }
        let failed = |error| OpenError::Io(segment.path().to_owned(), error);
        let (entry, index) = self.scan(&segment, is_last).map_err(|error| match error {
            ScanError::Unknown => {
                let what = "was written by a newer version, or is no segment";
                OpenError::Unknown(segment.path().to_owned(), what.into())
            }
            ScanError::Io(error) => failed(error),
        })?;
        if is_last {
            // A process that was killed has written what it has not synced: what is shown from now on must stay.
            segment.file(self.disk).and_then(|file| file.sync()).map_err(failed)?;
        } else if entry.is_right() {
            // It is read again the next time if this cannot be written.
            let _ = segment.store(self.disk, &entry.summary, &index);
        }
        Ok((entry, Some(index)))
    }

    /// Goes over all batches. What is damaged between them is left as it is, and named; at the end, it is cut off.
    fn scan(&mut self, segment: &Arc<Segment>, is_last: bool) -> Result<(Entry, Index), ScanError> {
        let file = segment.file(self.disk)?;
        let bytes = file.lend(0..file.bytes()?)?;
        let mut summary = Summary::empty(segment.base, self.time);
        let mut index = Index::default();
        let (mut damaged, mut damage) = (Vec::new(), None);
        let mut at = 0;
        loop {
            let checked = record::walk(&bytes[at..], (summary.end, summary.last_time), |position, header| {
                let position = position + at as u64;
                index.note(position, header);
                summary.add(header);
                // Not the sum of all, if something lies between.
                summary.bytes = position + u64::from(header.length);
            });
            at += checked.bytes;
            let Some(wrong) = checked.wrong else { break };
            if wrong == Malformed::Reserved {
                return Err(ScanError::Unknown);
            }
            let why = format!("{}: {wrong} at byte {at}", segment.path().display());
            let ahead = record::find_batch(&bytes[at + 1..], summary.end).map(|(ahead, _)| ahead + 1);
            let lost = ahead.unwrap_or(bytes.len() - at) as u64;
            let how = match ahead {
                None if is_last => "cut off, as the end of a write that was not finished",
                _ => "left in the file, since more follows",
            };
            self.losses.push(self.loss(summary.end, lost, format!("{why}; {how}")));
            let Some(ahead) = ahead else {
                damage = Some(why);
                break;
            };
            damaged.push(at as u64);
            at += ahead;
        }
        drop(bytes);
        (self.next, self.time) = (summary.end, summary.last_time);
        let mut entry = Entry::new(segment.clone(), summary);
        entry.damaged = damaged.into();
        match damage {
            Some(_) if is_last => file.truncate(summary.bytes)?,
            Some(why) => entry.damage = Some(why.into()),
            None => {}
        }
        Ok((entry, index))
    }

    /// A segment begins where the one before ends: what is between has gone with its end, or with a file.
    fn note_gap(&mut self, before: &mut Entry, base: u64) {
        let why = format!("{}: its end is missing, or a file behind it", before.segment.path().display());
        if before.damage.is_some() {
            // Its end was just found to be damaged.
            return;
        }
        before.damage = Some(why.as_str().into());
        let loss = self.loss(self.next, 0, format!("{why}; offset {base} is the next that is there"));
        self.losses.push(loss);
    }

    fn loss(&self, offset: u64, bytes: u64, why: String) -> Loss {
        Loss { stream: self.stream.to_owned(), partition: Some(self.partition), offset, bytes, why }
    }
}

enum ScanError {
    Unknown,
    Io(std::io::Error),
}

impl From<std::io::Error> for ScanError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}
