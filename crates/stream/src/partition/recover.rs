//! What is on disk when a partition is opened.

use std::path::Path;
use std::sync::Arc;

use super::queue::WRITE_MOST;
use super::scan::{Damage, Part, Scan};
use super::state::{Entry, Hole};
use crate::catalog::Tail;
use crate::disk::{Disk, File};
use crate::index::{Index, Summary};
use crate::record::Malformed;
use crate::seal::{Framing, HEAD, Head, Seal};
use crate::segment::Segment;
use crate::{Fsync, Loss, OpenError};

/// What was found.
pub(super) struct Recovered {
    /// At least one; the last is to be appended to.
    pub(super) entries: Vec<Entry>,
    /// The last one's file.
    pub(super) file: Arc<dyn File>,
    /// The last one's index.
    pub(super) index: Index,
    /// The last one's head.
    pub(super) head: Option<Head>,
    /// Whether this process has begun the last one.
    pub(super) is_begun: bool,
    /// Whether the partition was found as it was closed.
    pub(super) is_clean: bool,
    pub(super) losses: Vec<Loss>,
}

/// Finds the segments in a directory, and checks what may be damaged: the last one, unless it was closed, and those
/// without an index. What is wrong at the end is cut off, since nobody was told that it is there. What is wrong before
/// something right stays in its file and is named; what is right behind it is read as ever. `tail` is how the partition
/// was closed, if it was: where the last segment fits, it is neither read nor written.
pub(super) fn open(
    disk: &dyn Disk,
    dir: &Path,
    (stream, partition): (&str, u32),
    tail: Option<&Tail>,
    (fsync, now): (Fsync, u64),
) -> Result<Recovered, OpenError> {
    let io_failed = |error| OpenError::Io(dir.to_owned(), error);
    let bases = clean(disk, dir).map_err(io_failed)?;
    let mut closed = tail.and_then(|tail| as_closed(disk, dir, &bases, tail));
    let tail = tail.filter(|_| closed.is_some());
    if tail.is_none() {
        // What is there may be seen without being durable, after a process that failed or was killed.
        disk.sync_dir(dir).map_err(io_failed)?;
    }
    let mut recovery =
        Recovery { disk, stream, partition, tail, losses: Vec::new(), next: 0, time: 0, limit: None };
    if bases.is_empty() {
        // A partition that was just made has none either; then nobody asks for losses.
        let why = format!("{}: no segment is there", dir.display());
        let loss = recovery.loss(0, 0, why);
        recovery.losses.push(loss);
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(bases.len() + 1);
    let mut index = None;
    for (place, &base) in bases.iter().enumerate() {
        let segment = closed.take_if(|it| it.base == base).unwrap_or_else(|| Segment::new(dir, base));
        if base < recovery.next {
            let failed = |error| OpenError::Io(segment.path().to_owned(), error);
            if segment.is_empty(disk).map_err(failed)? {
                // It was to be the next one and did not come into being whole, so that the one before went on. That may
                // be the last one, of which more is to be looked at.
                segment.remove(disk).map_err(failed)?;
                return open(disk, dir, (stream, partition), None, (fsync, now));
            }
            let what = format!("begins before the end of the segment before it, offset {}", recovery.next);
            return Err(OpenError::Unknown(segment.path().to_owned(), what.into()));
        }
        if let Some(before) = entries.last_mut().filter(|_| base > recovery.next) {
            recovery.note_gap(before, base);
        }
        let behind = bases.get(place + 1).map(|&base| Segment::new(dir, base));
        recovery.limit = behind.as_ref().and_then(|behind| replaced_from(disk, behind));
        let (entry, its_index) = recovery.segment(segment, behind.is_none())?;
        entries.push(entry);
        index = its_index;
    }
    let is_begun = recovery.begin(dir, &mut entries, fsync, now).map_err(io_failed)?;
    // One was made if there was none.
    let (summary, segment) = match entries.last() {
        Some(last) => (last.summary, last.segment.clone()),
        None => return Err(io_failed(std::io::ErrorKind::NotFound.into())),
    };
    let head = segment.framing(disk).map_err(io_failed)?.head;
    let file = segment.file(disk).map_err(io_failed)?;
    let index = if summary.is_empty() { Index::default() } else { index.unwrap_or_default() };
    let (is_clean, losses) = (recovery.tail.is_some(), recovery.losses);
    Ok(Recovered { entries, file, index, head, is_begun, is_clean, losses })
}

/// The offset from which on a segment replaces what the one before has, if it does.
fn replaced_from(disk: &dyn Disk, segment: &Segment) -> Option<u64> {
    // What cannot be read is an error when it is its turn.
    let head = segment.framing(disk).ok()?.head?;
    head.replaces.then_some(segment.base)
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
    Ok(bases)
}

/// The last segment, if it is the one that was closed, and as long as it was then.
fn as_closed(disk: &dyn Disk, dir: &Path, bases: &[u64], tail: &Tail) -> Option<Segment> {
    let base = *bases.last().filter(|&&base| base == tail.summary.base)?;
    let segment = Segment::new(dir, base);
    let bytes = segment.file(disk).and_then(|file| file.bytes()).ok()?;
    let head = segment.framing(disk).ok()?.head?;
    (bytes == tail.summary.bytes && head.checksum() == tail.head).then_some(segment)
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    stream: &'a str,
    partition: u32,
    /// Of the last segment.
    tail: Option<&'a Tail>,
    losses: Vec<Loss>,
    /// The offset and the time from which what follows may begin.
    next: u64,
    time: u64,
    /// The segment behind replaces what is from this offset on.
    limit: Option<u64>,
}

impl Recovery<'_> {
    /// One segment: as its index says, if that is right, and else as it is. The index of the last one is wanted.
    fn segment(&mut self, segment: Segment, is_last: bool) -> Result<(Entry, Option<Index>), OpenError> {
        let segment = Arc::new(segment);
        let failed = |error| OpenError::Io(segment.path().to_owned(), error);
        if let Some(tail) = self.tail.filter(|_| is_last)
            && let Some(index) = tail.index.clone().or_else(|| segment.index_of(self.disk, &tail.summary))
        {
            (self.next, self.time) = (tail.summary.end, tail.summary.last_time);
            return Ok((Entry::new(segment, tail.summary), Some(index)));
        }
        if is_last {
            self.tail = None;
        }
        if let Some(summary) = segment.summary(self.disk)
            && self.limit.is_none_or(|limit| summary.end <= limit)
        {
            let index = if is_last { segment.stored_index(self.disk) } else { None };
            if !is_last || index.is_some() {
                (self.next, self.time) = (summary.end, summary.last_time);
                return Ok((Entry::new(segment, summary), index));
            }
        }
        let (entry, index) = self.scan(&segment, is_last).map_err(|error| match error {
            ScanError::Unknown => {
                let what = "was written by a newer version, or is no segment";
                OpenError::Unknown(segment.path().to_owned(), what.into())
            }
            ScanError::Io(error) => failed(error),
        })?;
        if is_last {
            segment.remove_index(self.disk).map_err(failed)?;
        } else if entry.is_right() {
            // It is read again the next time if this cannot be written.
            let _ = segment.store(self.disk, &entry.summary, &index);
        }
        Ok((entry, Some(index)))
    }

    /// Goes over all batches. What is damaged between them is left as it is, and named; at the end, it is cut off, if the
    /// segment has a key to tell that nothing follows.
    fn scan(&mut self, segment: &Arc<Segment>, is_last: bool) -> Result<(Entry, Index), ScanError> {
        let file = segment.file(self.disk)?;
        let framing = segment.framing(self.disk)?;
        let bytes = file.lend(0..file.bytes()?)?;
        let start = framing.start.min(bytes.len() as u64);
        let created = framing.head.map_or(self.time, |head| head.created);
        let mut summary = Summary::empty(segment.base, start, created);
        let mut index = Index::default();
        let mut last_batch = start;
        let (mut holes, mut damage, mut is_replaced) = (Vec::new(), None::<Damage>, false);
        for part in Scan::new(&bytes, framing, segment.base, self.limit) {
            match part {
                Part::Damage(Damage { wrong: Malformed::Reserved, .. }) => return Err(ScanError::Unknown),
                Part::Damage(more) => {
                    damage = Some(damage.map_or(more, |first| Damage { end: more.end, ..first }));
                }
                Part::Batch(position, header) => {
                    if let Some(damage) = damage.take() {
                        self.note_damage(
                            segment,
                            damage,
                            summary.end,
                            "left in the file, since more follows",
                        );
                        holes.push(Hole { damage, resume: header.base });
                    }
                    index.note(position, &header);
                    last_batch = position;
                    summary.add(&header);
                    // Not the sum of all, if something lies between.
                    summary.bytes = position + u64::from(header.length);
                }
                Part::Replaced(_) => is_replaced = true,
            }
        }
        drop(bytes);
        (self.next, self.time) = (summary.end, summary.last_time);
        let mut entry = Entry::new(segment.clone(), summary);
        entry.damaged = holes.into();
        let cuts = is_last && framing.head.is_some();
        if let Some(damage) = damage {
            let how = if cuts {
                "cut off, as the end of a write that was not finished"
            } else {
                "left in the file"
            };
            let why = self.note_damage(segment, damage, summary.end, how);
            entry.damage = (!cuts).then(|| why.into());
        }
        if cuts || is_replaced {
            file.truncate(summary.bytes)?;
        }
        if is_last {
            // A killed process may have left batches that it did not sync, or failed to sync. Readers see them from now on,
            // so they must be durable; and the index that is stored later must not outlive them.
            self.disk.rewrite(segment.path(), unsure_from(&framing, last_batch, summary.bytes))?;
        }
        Ok((entry, index))
    }

    fn note_damage(&mut self, segment: &Segment, damage: Damage, offset: u64, how: &str) -> String {
        let Damage { start, end, wrong } = damage;
        let why = format!("{}: {wrong} at byte {start}", segment.path().display());
        let loss = self.loss(offset, end - start, format!("{why}; {how}"));
        self.losses.push(loss);
        why
    }

    /// Sees to it that there is a segment with a key, unless the last one has batches. Whether one was begun.
    fn begin(&self, dir: &Path, entries: &mut Vec<Entry>, fsync: Fsync, now: u64) -> std::io::Result<bool> {
        let base = match entries.last() {
            Some(last) if !last.summary.is_empty() => return Ok(false),
            Some(last) if last.segment.framing(self.disk)?.head.is_some() => return Ok(false),
            Some(last) => last.summary.base,
            None => 0,
        };
        let synced = fsync == Fsync::Batch;
        let head = Head { seal: Seal::random(base)?, created: now, synced, replaces: false };
        let segment = match entries.pop() {
            Some(last) if last.is_right() => {
                last.segment.renew(self.disk, &head)?;
                last.segment
            }
            before => {
                if let Some(damaged) = before {
                    damaged.segment.put_aside(self.disk)?;
                }
                let segment = Arc::new(Segment::new(dir, base));
                segment.create(self.disk, &head)?;
                segment
            }
        };
        entries.push(Entry::new(segment, Summary::empty(base, HEAD as u64, self.time)));
        Ok(true)
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

/// The byte of a segment from which on its last process may have failed to sync it. Where readers see only what is synced,
/// that is the beginning of the last write: nothing is written behind one whose sync has failed.
fn unsure_from(framing: &Framing, last_batch: u64, end: u64) -> u64 {
    let is_synced = framing.head.is_some_and(|head| head.synced);
    let from = last_batch.min(end.saturating_sub(WRITE_MOST));
    // The first write brings the head to the disk, too.
    if is_synced && from > framing.start { from } else { 0 }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_write_of_a_synced_segment_is_unsure() {
        let framing =
            |synced| Framing::of(Head { seal: Seal::of(0, (3, 4)), created: 0, synced, replaces: false });
        let head = HEAD as u64;
        let large = 3 * WRITE_MOST;
        for (synced, last_batch, end, from) in [
            // As much as one write takes; or the last batch, if that is larger.
            (true, large - 100, large, large - WRITE_MOST),
            (true, WRITE_MOST, large, WRITE_MOST),
            // The first write, with the head.
            (true, head, large, 0),
            (true, head + 100, head + WRITE_MOST, 0),
            (true, head, head, 0),
            // All writes.
            (false, large - 100, large, 0),
        ] {
            assert_eq!(unsure_from(&framing(synced), last_batch, end), from, "{synced} {last_batch} {end}");
        }
        let of_version_1 = Framing::decode(&[], 0);
        assert_eq!(unsure_from(&of_version_1, large - 100, large), 0);
    }
}
