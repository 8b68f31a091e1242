//! Compaction: removes records that have a newer record with their key, in the background.
//!
//! A pass reads the segments that were closed since the last compaction and maps each key to its newest offset, up to a
//! key limit. Then it rewrites all closed segments without the records that the map proves to be outdated, and merges
//! small ones. The segment that is appended to is never touched. Offsets stay, so they have gaps.
//!
//! An output is written under an unfinished name, synced and renamed. Its name has the range that it replaces. So after
//! a crash either the inputs or the output count, and the others are removed.

mod keys;
mod output;

use std::io;
use std::sync::Arc;

use super::entry::SegmentEntry;
use super::scan::{ScanItem, SegmentScan};
use super::shared::PartitionCore;
use super::state::{State, micros};
use crate::disk::is_shortage;
use crate::index::Summary;
use crate::segment::{CompactedRange, Segment, SegmentName};
use keys::{CompactionPass, KeyMap};
use output::{CompactedSegment, for_each_run};

/// Microseconds until the next attempt after a compaction that failed or removed nothing.
const RETRY: u64 = 60_000_000;

/// Batches between two checks for cancellation.
const CANCEL_INTERVAL: usize = 256;

/// Progress of the compaction of a partition.
#[derive(Default)]
pub(super) struct CompactionState {
    /// A thread compacts the partition.
    is_running: bool,
    /// Time of the next attempt.
    not_before: u64,
    counters: CompactionCounters,
}

/// Counters since the log was opened.
#[derive(Clone, Copy, Default)]
pub(super) struct CompactionCounters {
    pub(super) passes: u64,
    pub(super) removed_records: u64,
}

impl CompactionState {
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    pub(super) fn counters(&self) -> CompactionCounters {
        self.counters
    }
}

/// Why a compaction ended early.
enum Interrupted {
    /// The log is closed, or the stream was deleted.
    Cancelled,
    /// The records of this segment are damaged, so that it cannot be rewritten.
    Damaged(u64),
    Io(io::Error),
}

impl From<io::Error> for Interrupted {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A closed segment.
#[derive(Clone)]
struct Input {
    segment: Arc<Segment>,
    summary: Summary,
    /// Records before this offset were compacted together with all earlier records.
    clean: u64,
}

impl State {
    /// Whether the closed segments without compaction have as many bytes as the others.
    pub(super) fn compaction_is_due(&self, now: u64) -> bool {
        let is_able = self.config.compact.is_some() && !self.closed && self.failed.is_none();
        if !is_able || self.compaction.is_running || now < self.compaction.not_before {
            return false;
        }
        let closed = self.entries.iter().take(self.entries.len() - 1);
        let (mut clean, mut dirty) = (0, 0);
        for entry in closed {
            let bytes = if entry.segment.compacted.is_some() { &mut clean } else { &mut dirty };
            *bytes += entry.summary.bytes;
        }
        dirty > 0 && dirty >= clean
    }
}

impl PartitionCore {
    /// Compacts the closed segments, unless that is running. Blocks for the disk; `is_cancelled` ends it early.
    pub(super) fn compact(&self, is_cancelled: &dyn Fn() -> bool) {
        let now = (self.clock)();
        let mut state = self.state();
        let Some(retention) = state.config.compact.filter(|_| !state.compaction.is_running) else { return };
        state.compaction.is_running = true;
        drop(state);
        let result = self.compact_closed(now, micros(retention), is_cancelled);
        let mut state = self.state();
        state.compaction.is_running = false;
        let removed = match result {
            Ok(removed) => removed,
            Err(Interrupted::Cancelled) => return,
            Err(Interrupted::Damaged(base)) => {
                // Reads report it.
                tracing::warn!(stream = %self.stream, partition = self.number, segment = base, "a damaged segment is not compacted");
                0
            }
            Err(Interrupted::Io(error)) => {
                let is_full = is_shortage(&error);
                tracing::warn!(stream = %self.stream, partition = self.number, %error, is_full, "compaction failed");
                0
            }
        };
        if removed == 0 {
            state.compaction.not_before = now.saturating_add(RETRY);
        }
    }

    fn compact_closed(
        &self,
        now: u64,
        retention: u64,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, Interrupted> {
        let is_cancelled = || self.is_deleted() || is_cancelled();
        let mut removed = 0;
        loop {
            let inputs = self.closed_segments()?;
            let dirty = inputs.iter().find(|input| input.clean < input.summary.end);
            let (Some(dirty), Some(end)) = (dirty, inputs.last().map(|last| last.summary.end)) else {
                return Ok(removed);
            };
            let from = dirty.clean;
            let mut map = KeyMap::new(self.limits.max_compaction_keys);
            let mut covered = end;
            for input in inputs.iter().filter(|input| input.summary.end > from) {
                let added = self.add_keys(&mut map, input, from, &is_cancelled);
                match added {
                    Ok(None) => {}
                    Ok(Some(full)) => {
                        covered = full;
                        break;
                    }
                    // The segments before it can be compacted.
                    Err(Interrupted::Damaged(base)) if base > from => {
                        covered = base;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            let pass = CompactionPass { map, dirty: from, covered, end, now, retention };
            let inputs: Vec<Input> =
                inputs.into_iter().filter(|input| input.summary.base < covered).collect();
            removed += self.rewrite(&inputs, &pass, &is_cancelled)?;
            let mut state = self.state();
            state.compaction.counters.passes += 1;
            if covered >= end || covered == from {
                return Ok(removed);
            }
        }
    }

    /// The closed segments up to the first one with known damage.
    fn closed_segments(&self) -> io::Result<Vec<Input>> {
        let entries: Vec<(Arc<Segment>, Summary)> = {
            let state = self.state();
            let closed = state.entries.iter().take(state.entries.len() - 1);
            let intact = closed.take_while(|entry| entry.is_intact());
            intact.map(|entry| (entry.segment.clone(), entry.summary)).collect()
        };
        let input = |(segment, summary): (Arc<Segment>, Summary)| {
            let clean = match segment.compacted {
                Some(_) => segment.layout(&*self.disk)?.head.and_then(|head| head.compacted),
                None => None,
            };
            let clean = clean.unwrap_or(summary.base).clamp(summary.base, summary.end);
            Ok(Input { segment, summary, clean })
        };
        entries.into_iter().map(input).collect()
    }

    /// Adds the keys of a segment from an offset on. Returns the offset at which the map was full.
    fn add_keys(
        &self,
        map: &mut KeyMap,
        input: &Input,
        from: u64,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, Interrupted> {
        let mut full = None;
        self.for_each_batch(input, is_cancelled, &mut |header, records| {
            let mut rest = records;
            let mut offset = header.base;
            while full.is_none() && !rest.is_empty() {
                let raw = crate::record::split_raw(&mut rest, offset).map_err(io::Error::other)?;
                if offset >= from && !map.insert(raw.record.key, offset) {
                    full = Some(offset);
                }
                offset += 1;
            }
            Ok(())
        })?;
        Ok(full)
    }

    /// Calls a function for each batch with its records, whose checksums are verified.
    fn for_each_batch(
        &self,
        input: &Input,
        is_cancelled: &dyn Fn() -> bool,
        call: &mut dyn FnMut(&crate::record::BatchHeader, &[u8]) -> io::Result<()>,
    ) -> Result<(), Interrupted> {
        let file = input.segment.file(&*self.disk)?;
        let bytes = file.read_shared(0..input.summary.bytes)?;
        let layout = input.segment.layout(&*self.disk)?;
        for (number, item) in SegmentScan::new(&bytes, layout, input.segment.base, None).enumerate() {
            if number % CANCEL_INTERVAL == 0 && is_cancelled() {
                return Err(Interrupted::Cancelled);
            }
            let ScanItem::Batch(position, header) = item else {
                return Err(Interrupted::Damaged(input.segment.base));
            };
            // The scan has checked the length.
            let start = position as usize;
            call(&header, &bytes[start + header.size()..start + header.length as usize])?;
        }
        Ok(())
    }

    /// Rewrites the segments. Returns the number of removed records.
    fn rewrite(
        &self,
        inputs: &[Input],
        pass: &CompactionPass,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, Interrupted> {
        let limit = self.state().config.segment_bytes;
        let mut removed = 0;
        let mut group: Vec<Input> = Vec::new();
        let mut group_removes = 0;
        let mut group_bytes = 0;
        for input in inputs {
            let (mut records, mut bytes) = (0, 0);
            self.for_each_batch(input, is_cancelled, &mut |header, batch| {
                records += for_each_run(header, batch, pass, &mut |run| {
                    bytes += run.bytes();
                    Ok(())
                })?;
                Ok(())
            })?;
            let fits = group.last().is_none_or(|last| {
                group_bytes + bytes <= limit && last.summary.last_time <= input.summary.first_time
            });
            if !fits {
                self.write_group(&group, group_removes, pass, is_cancelled)?;
                removed += std::mem::take(&mut group_removes);
                group.clear();
                group_bytes = 0;
            }
            group.push(input.clone());
            group_removes += records;
            group_bytes += bytes;
        }
        if !group.is_empty() {
            self.write_group(&group, group_removes, pass, is_cancelled)?;
            removed += group_removes;
        }
        self.state().compaction.counters.removed_records += removed;
        Ok(removed)
    }

    /// Writes one segment in place of several.
    fn write_group(
        &self,
        group: &[Input],
        removes: u64,
        pass: &CompactionPass,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), Interrupted> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        if removes == 0 && group.len() == 1 && first.clean >= first.summary.end {
            return Ok(());
        }
        let generation = group.iter().map(|input| input.segment.name().generation()).max().unwrap_or(0) + 1;
        let end = last.summary.end;
        let name =
            SegmentName { base: first.summary.base, compacted: Some(CompactedRange { end, generation }) };
        let segment = Arc::new(Segment::named(&self.dir, name));
        let clean = pass.covered.min(end);
        let last_time = last.summary.last_time;
        let written = self.write_output(&segment, group, clean, last_time, pass, is_cancelled);
        let summary = match written {
            Ok(summary) => summary,
            Err(error) => {
                // Otherwise the log removes it when it is next opened.
                let _ = self.disk.remove(&segment.unfinished_path());
                return Err(error);
            }
        };
        segment.finish_output(&*self.disk)?;
        let (summary, index) = summary;
        // If this cannot be written, the index is rebuilt.
        let _ = segment.store(&*self.disk, &summary, &index);
        segment.set_index(Arc::new(index));
        if !self.replace(group, SegmentEntry::new(segment.clone(), summary)) {
            // Retention has removed a part meanwhile, and the rest of the group still has outdated records.
            self.remove_obsolete(&segment);
            return Err(Interrupted::Cancelled);
        }
        group.iter().for_each(|input| self.remove_obsolete(&input.segment));
        Ok(())
    }

    fn remove_obsolete(&self, segment: &Segment) {
        if let Err(error) = segment.remove(&*self.disk) {
            // The log removes it when it is next opened.
            tracing::warn!(path = %segment.path().display(), %error, "a compacted segment could not be removed");
        }
    }

    fn write_output(
        &self,
        segment: &Segment,
        group: &[Input],
        clean: u64,
        time: u64,
        pass: &CompactionPass,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(Summary, crate::index::Index), Interrupted> {
        let first = group.first().map(|first| first.segment.layout(&*self.disk)).transpose()?;
        let replaces = first.and_then(|layout| layout.head).is_some_and(|head| head.replaces);
        let mut output = CompactedSegment::create(&*self.disk, segment, clean, time, replaces)?;
        for input in group {
            self.for_each_batch(input, is_cancelled, &mut |header, records| {
                for_each_run(header, records, pass, &mut |run| output.push(header.appended, run)).map(drop)
            })?;
        }
        Ok(output.finish()?)
    }

    /// Replaces the entries of the inputs. Returns false if one of them is gone.
    fn replace(&self, group: &[Input], entry: SegmentEntry) -> bool {
        let mut state = self.state();
        let is_input = |at: usize, state: &State| {
            group.iter().enumerate().all(|(number, input)| {
                let found = state.entries.get(at + number);
                found.is_some_and(|found| Arc::ptr_eq(&found.segment, &input.segment))
            })
        };
        let Some(at) = (0..state.entries.len()).find(|at| is_input(*at, &state)) else { return false };
        let before: u64 = group.iter().map(|input| input.summary.bytes).sum();
        state.sealed_bytes = (state.sealed_bytes + entry.summary.bytes).saturating_sub(before);
        state.entries.drain(at..at + group.len());
        state.entries.insert(at, entry);
        true
    }
}
