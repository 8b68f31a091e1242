//! Recovers a partition from its files.

use std::path::Path;
use std::sync::Arc;

use super::entry::{DamagedRange, SegmentEntry};
use super::queue::WRITE_MAX;
use super::scan::{Damage, ScanItem, SegmentScan};
use crate::catalog::LastSegment;
use crate::disk::{Disk, DiskFile};
use crate::index::{Index, Summary};
use crate::record::RecordError;
use crate::seal::{HEAD, Seal, SegmentHeader, SegmentLayout};
use crate::segment::{Segment, SegmentName};
use crate::{Fsync, Loss, OpenError};

/// Result of the recovery.
pub(super) struct Recovered {
    /// At least one segment; appends go to the last.
    pub(super) entries: Vec<SegmentEntry>,
    /// The last segment's file.
    pub(super) file: Arc<dyn DiskFile>,
    /// The last segment's index.
    pub(super) index: Index,
    /// The last segment's head.
    pub(super) head: Option<SegmentHeader>,
    /// Whether this process has created the last segment.
    pub(super) is_created: bool,
    /// Whether the files are as the last close left them.
    pub(super) is_clean: bool,
    pub(super) losses: Vec<Loss>,
}

/// Finds the segments in a directory, and checks the segments that may be damaged: the last one, unless it was cleanly
/// closed, and all without an index. Damage at the end is cut off, since it was not acknowledged. Damage before valid
/// batches stays in its file and is reported; the batches behind it remain readable. `tail` describes the last clean
/// close, if there was one: a last segment that matches it is neither read nor written.
pub(super) fn open(
    disk: &dyn Disk,
    dir: &Path,
    stream: &str,
    partition: u32,
    tail: Option<&LastSegment>,
    fsync: Fsync,
    now: u64,
) -> Result<Recovered, OpenError> {
    let io_failed = |error| OpenError::Io(dir.to_owned(), error);
    let names = list_segments(disk, dir).map_err(io_failed)?;
    let mut closed = tail.and_then(|tail| cleanly_closed_segment(disk, dir, &names, tail));
    let tail = tail.filter(|_| closed.is_some());
    if tail.is_none() {
        // After a failed or killed process, existing entries may be visible without being durable.
        disk.sync_dir(dir).map_err(io_failed)?;
    }
    let mut recovery =
        Recovery { disk, stream, partition, tail, losses: Vec::new(), next: 0, time: 0, limit: None };
    if names.is_empty() {
        // A new partition has no segment either; then the losses are ignored.
        let reason = format!("{}: no segment exists", dir.display());
        let loss = recovery.loss(0, 0, reason);
        recovery.losses.push(loss);
    }
    let mut entries: Vec<SegmentEntry> = Vec::with_capacity(names.len() + 1);
    let mut index = None;
    for (number, &name) in names.iter().enumerate() {
        let base = name.base;
        let segment = closed.take_if(|it| it.name() == name).unwrap_or_else(|| Segment::named(dir, name));
        if base < recovery.next {
            let failed = |error| OpenError::Io(segment.path().to_owned(), error);
            if segment.is_empty(disk).map_err(failed)? {
                // An interrupted roll left this segment incomplete, and appends continued in the previous one. That may
                // be the last one, which needs more checks.
                segment.remove(disk).map_err(failed)?;
                return open(disk, dir, stream, partition, None, fsync, now);
            }
            let what = format!("begins before the end of the previous segment, offset {}", recovery.next);
            return Err(OpenError::Unknown(segment.path().to_owned(), what.into()));
        }
        if let Some(before) = entries.last_mut().filter(|_| base > recovery.next) {
            recovery.note_gap(before, base);
        }
        let behind = names.get(number + 1).map(|&name| Segment::named(dir, name));
        recovery.limit = behind.as_ref().and_then(|behind| replacement_offset(disk, behind));
        let (entry, segment_index) = recovery.segment(segment, behind.is_none())?;
        entries.push(entry);
        index = segment_index;
    }
    let is_created = recovery.ensure_appendable(dir, &mut entries, fsync, now).map_err(io_failed)?;
    // `begin` created one if there was none.
    let (summary, segment) = match entries.last() {
        Some(last) => (last.summary, last.segment.clone()),
        None => return Err(io_failed(std::io::ErrorKind::NotFound.into())),
    };
    let head = segment.layout(disk).map_err(io_failed)?.head;
    let file = segment.file(disk).map_err(io_failed)?;
    let index = if summary.is_empty() { Index::default() } else { index.unwrap_or_default() };
    let (is_clean, losses) = (recovery.tail.is_some(), recovery.losses);
    Ok(Recovered { entries, file, index, head, is_created, is_clean, losses })
}

/// The offset from which a segment replaces the records of the previous one, if it does.
fn replacement_offset(disk: &dyn Disk, segment: &Segment) -> Option<u64> {
    // A read error is reported when the segment is processed.
    let head = segment.layout(disk).ok()?.head?;
    head.replaces.then_some(segment.base)
}

/// Lists the segments in their order and removes files that belong to none: segments whose content compaction has
/// written to another one, and its unfinished output.
fn list_segments(disk: &dyn Disk, dir: &Path) -> std::io::Result<Vec<SegmentName>> {
    let files = disk.list(dir)?;
    let mut names: Vec<SegmentName> =
        files.iter().filter_map(|file| SegmentName::from_log_name(file)).collect();
    let compacted: Vec<SegmentName> = names.iter().filter(|name| name.compacted.is_some()).copied().collect();
    let is_replaced = |name: &SegmentName| compacted.iter().any(|by| by.replaces(name));
    let replaced: Vec<SegmentName> = names.iter().filter(|name| is_replaced(name)).copied().collect();
    if !replaced.is_empty() {
        // The replacing segment may be visible without being durable.
        disk.sync_dir(dir)?;
        names.retain(|name| !replaced.contains(name));
        replaced.iter().try_for_each(|name| Segment::named(dir, *name).remove(disk))?;
    }
    names.sort_unstable();
    for file in &files {
        let is_left = |name: SegmentName| names.binary_search(&name).is_err() && !replaced.contains(&name);
        if SegmentName::from_index_name(file).is_some_and(is_left) || Segment::is_unfinished_output(file) {
            disk.remove(&dir.join(file))?;
        }
    }
    Ok(names)
}

/// The last segment, if it matches the last clean close in name and length.
fn cleanly_closed_segment(
    disk: &dyn Disk,
    dir: &Path,
    names: &[SegmentName],
    tail: &LastSegment,
) -> Option<Segment> {
    let name = *names.last().filter(|name| name.base == tail.summary.base)?;
    let segment = Segment::named(dir, name);
    let bytes = segment.file(disk).and_then(|file| file.bytes()).ok()?;
    let head = segment.layout(disk).ok()?.head?;
    (bytes == tail.summary.bytes && head.checksum() == tail.head).then_some(segment)
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    stream: &'a str,
    partition: u32,
    /// Description of the last segment.
    tail: Option<&'a LastSegment>,
    losses: Vec<Loss>,
    /// The minimum offset and time of the next batch.
    next: u64,
    time: u64,
    /// The next segment replaces records from this offset on.
    limit: Option<u64>,
}

impl Recovery<'_> {
    /// Recovers one segment: from its index if that is valid, and otherwise by a scan. The last segment's index is
    /// always needed.
    fn segment(
        &mut self,
        segment: Segment,
        is_last: bool,
    ) -> Result<(SegmentEntry, Option<Index>), OpenError> {
        let segment = Arc::new(segment);
        let failed = |error| OpenError::Io(segment.path().to_owned(), error);
        if let Some(tail) = self.tail.filter(|_| is_last)
            && let Some(index) = tail.index.clone().or_else(|| segment.index_of(self.disk, &tail.summary))
        {
            (self.next, self.time) = (tail.summary.end, tail.summary.last_time);
            return Ok((SegmentEntry::new(segment, tail.summary), Some(index)));
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
                return Ok((SegmentEntry::new(segment, summary), index));
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
        } else if entry.is_intact() {
            // If this cannot be written, the segment is read again next time.
            let _ = segment.store(self.disk, &entry.summary, &index);
        }
        Ok((entry, Some(index)))
    }

    /// Scans all batches. Damage between them is left in place and reported. Damage at the end is cut off if the
    /// segment has a key to prove that no batch follows.
    fn scan(&mut self, segment: &Arc<Segment>, is_last: bool) -> Result<(SegmentEntry, Index), ScanError> {
        let file = segment.file(self.disk)?;
        let layout = segment.layout(self.disk)?;
        let bytes = file.read_shared(0..file.bytes()?)?;
        let start = layout.start.min(bytes.len() as u64);
        let created = layout.head.map_or(self.time, |head| head.created);
        let mut summary = Summary::empty(segment.base, start, created);
        let mut index = Index::default();
        let mut last_batch = start;
        let (mut damaged_ranges, mut damage, mut is_replaced) = (Vec::new(), None::<Damage>, false);
        for part in SegmentScan::new(&bytes, layout, segment.base, self.limit) {
            match part {
                ScanItem::Damage(Damage { wrong: RecordError::Reserved, .. }) => {
                    return Err(ScanError::Unknown);
                }
                ScanItem::Damage(more) => {
                    damage = Some(damage.map_or(more, |first| Damage { end: more.end, ..first }));
                }
                ScanItem::Batch(position, header) => {
                    if let Some(damage) = damage.take() {
                        self.note_damage(
                            segment,
                            damage,
                            summary.end,
                            "left in the file, since valid batches follow",
                        );
                        damaged_ranges.push(DamagedRange { damage, resume: header.base });
                    }
                    index.note(position, &header);
                    last_batch = position;
                    summary.add(&header);
                    // Not a running sum, since damage may lie between.
                    summary.bytes = position + u64::from(header.length);
                }
                ScanItem::Replaced(_) => is_replaced = true,
            }
        }
        drop(bytes);
        if let Some(range) = segment.compacted {
            // Compaction may have removed its first and last records.
            (summary.first, summary.end) = (summary.base, range.end);
        }
        (self.next, self.time) = (summary.end, summary.last_time);
        let mut entry = SegmentEntry::new(segment.clone(), summary);
        entry.damaged = damaged_ranges.into();
        let cuts = is_last && layout.head.is_some();
        if let Some(damage) = damage {
            let how = if cuts { "cut off, as an unfinished write" } else { "left in the file" };
            let reason = self.note_damage(segment, damage, summary.end, how);
            entry.damage = (!cuts).then(|| reason.into());
        }
        if cuts || is_replaced {
            file.truncate(summary.bytes)?;
        }
        if is_last {
            // A killed process may have left batches that it did not sync, or failed to sync. Readers see them from now
            // on, so they must be durable; and the index that is stored later must not outlive them.
            self.disk.rewrite(segment.path(), unsynced_from(&layout, last_batch, summary.bytes))?;
        }
        Ok((entry, index))
    }

    fn note_damage(&mut self, segment: &Segment, damage: Damage, offset: u64, how: &str) -> String {
        let Damage { start, end, wrong } = damage;
        let reason = format!("{}: {wrong} at byte {start}", segment.path().display());
        let loss = self.loss(offset, end - start, format!("{reason}; {how}"));
        self.losses.push(loss);
        reason
    }

    /// Ensures that the last segment has a key or batches. Returns whether a new one was created.
    fn ensure_appendable(
        &self,
        dir: &Path,
        entries: &mut Vec<SegmentEntry>,
        fsync: Fsync,
        now: u64,
    ) -> std::io::Result<bool> {
        let base = match entries.last() {
            Some(last) if !last.summary.is_empty() => return Ok(false),
            Some(last) if last.segment.layout(self.disk)?.head.is_some() => return Ok(false),
            Some(last) => last.summary.base,
            None => 0,
        };
        let synced = fsync == Fsync::Batch;
        let seal = Seal::random(base)?;
        let head = SegmentHeader { seal, created: now, synced, replaces: false, compacted: None };
        let segment = match entries.pop() {
            Some(last) if last.is_intact() => {
                last.segment.replace_header(self.disk, &head)?;
                last.segment
            }
            before => {
                if let Some(damaged) = before {
                    damaged.segment.set_aside(self.disk)?;
                }
                let segment = Arc::new(Segment::new(dir, base));
                segment.create(self.disk, &head)?;
                segment
            }
        };
        entries.push(SegmentEntry::new(segment, Summary::empty(base, HEAD as u64, self.time)));
        Ok(true)
    }

    /// Reports a gap between segments: the previous one has lost its end, or a file between them is missing.
    fn note_gap(&mut self, before: &mut SegmentEntry, base: u64) {
        let reason = format!(
            "{}: the end of the segment or a file behind it is missing",
            before.segment.path().display()
        );
        if before.damage.is_some() {
            // The damage at its end has just been reported.
            return;
        }
        before.damage = Some(reason.as_str().into());
        let loss = self.loss(self.next, 0, format!("{reason}; the next available offset is {base}"));
        self.losses.push(loss);
    }

    fn loss(&self, offset: u64, bytes: u64, reason: String) -> Loss {
        Loss { stream: self.stream.to_owned(), partition: Some(self.partition), offset, bytes, reason }
    }
}

/// Position from which the last process may have failed to sync the segment. Where readers see only synced records,
/// that is the beginning of the last write: nothing is written behind a failed sync.
fn unsynced_from(layout: &SegmentLayout, last_batch: u64, end: u64) -> u64 {
    let is_synced = layout.head.is_some_and(|head| head.synced);
    let from = last_batch.min(end.saturating_sub(WRITE_MAX));
    // The first write also syncs the head.
    if is_synced && from > layout.start { from } else { 0 }
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
    fn only_the_last_write_of_a_synced_segment_may_be_unsynced() {
        let layout = |synced| {
            SegmentLayout::from_header(SegmentHeader {
                seal: Seal::new(0, (3, 4)),
                created: 0,
                synced,
                replaces: false,
                compacted: None,
            })
        };
        let head = HEAD as u64;
        let large = 3 * WRITE_MAX;
        for (synced, last_batch, end, from) in [
            // The size of one write; or the last batch, if that is larger.
            (true, large - 100, large, large - WRITE_MAX),
            (true, WRITE_MAX, large, WRITE_MAX),
            // The first write, with the head.
            (true, head, large, 0),
            (true, head + 100, head + WRITE_MAX, 0),
            (true, head, head, 0),
            // All writes.
            (false, large - 100, large, 0),
        ] {
            assert_eq!(unsynced_from(&layout(synced), last_batch, end), from, "{synced} {last_batch} {end}");
        }
        let of_version_1 = SegmentLayout::decode(&[], 0);
        assert_eq!(unsynced_from(&of_version_1, large - 100, large), 0);
    }
}
