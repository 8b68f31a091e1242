//! The segment that a compaction writes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::keys::{CompactionPass, RecordFate};
use crate::disk::{Disk, DiskFile, append_all};
use crate::index::{Index, Summary};
use crate::record::{self, BATCH_HEADER, BatchHeader};
use crate::seal::{HEAD, Seal, SegmentHeader};
use crate::segment::Segment;

/// Bytes that are collected for one write.
const WRITE_BYTES: usize = 1 << 20;

/// Remaining records of a batch with consecutive offsets: they form a separate batch.
pub(super) struct RecordRun<'a> {
    base: u64,
    count: u32,
    records: &'a [u8],
}

impl RecordRun<'_> {
    /// Bytes of its batch.
    pub(super) fn bytes(&self) -> u64 {
        (BATCH_HEADER + self.records.len()) as u64
    }
}

/// Calls a function for each run of a batch. Returns the number of removed records.
pub(super) fn for_each_run(
    header: &BatchHeader,
    records: &[u8],
    pass: &CompactionPass,
    call: &mut dyn FnMut(RecordRun<'_>) -> io::Result<()>,
) -> io::Result<u64> {
    let mut rest = records;
    let mut removed = 0;
    // Most runs are a part of the batch; with a changed tombstone, a copy.
    let (mut base, mut run, mut copy) = (header.base, 0..0, None::<BytesMut>);
    for offset in header.base..header.end() {
        let start = records.len() - rest.len();
        let raw = record::split_raw(&mut rest, offset).map_err(io::Error::other)?;
        let end = start + raw.bytes.len();
        match pass.fate(&raw) {
            RecordFate::Remove => {
                removed += 1;
                end_run(base, offset, records, run, copy.take(), call)?;
                (base, run) = (offset + 1, end..end);
            }
            RecordFate::Keep => {
                run.end = end;
                if let Some(copy) = &mut copy {
                    copy.extend_from_slice(raw.bytes);
                }
            }
            RecordFate::Stamp => {
                let copied = copy.get_or_insert_with(|| BytesMut::from(&records[run.clone()]));
                record::write_tombstone(&raw, pass.now, copied);
                run.end = end;
            }
        }
    }
    end_run(base, header.end(), records, run, copy, call)?;
    Ok(removed)
}

fn end_run(
    base: u64,
    end: u64,
    records: &[u8],
    run: Range<usize>,
    copy: Option<BytesMut>,
    call: &mut dyn FnMut(RecordRun<'_>) -> io::Result<()>,
) -> io::Result<()> {
    if base == end {
        return Ok(());
    }
    let records = copy.as_deref().unwrap_or_else(|| &records[run]);
    // No more records than the batch has.
    call(RecordRun { base, count: (end - base) as u32, records })
}

/// A segment under an unfinished name.
pub(super) struct CompactedSegment {
    file: Arc<dyn DiskFile>,
    seal: Seal,
    end: u64,
    summary: Summary,
    index: Index,
    waiting: BytesMut,
}

impl CompactedSegment {
    /// Creates the file with its head. `clean` is the offset up to which the segment is compacted, `time` the time of
    /// the last batch of the inputs, `replaces` as of the first input.
    pub(super) fn create(
        disk: &dyn Disk,
        segment: &Segment,
        clean: u64,
        time: u64,
        replaces: bool,
    ) -> io::Result<Self> {
        let file = disk.create(&segment.unfinished_path())?;
        // Left behind by an earlier attempt, if the file exists.
        file.truncate(0)?;
        let seal = Seal::random(segment.base)?;
        let head = SegmentHeader { seal, created: time, synced: true, replaces, compacted: Some(clean) };
        Ok(Self {
            file,
            seal,
            end: segment.compacted.map_or(segment.base, |range| range.end),
            summary: Summary::empty(segment.base, HEAD as u64, time),
            index: Index::default(),
            waiting: BytesMut::from(&head.encode()[..]),
        })
    }

    /// Appends a run as a batch with the time of its original batch.
    pub(super) fn push(&mut self, appended: u64, run: RecordRun<'_>) -> io::Result<()> {
        let position = self.summary.bytes;
        // A batch and 8 bytes for each of its tombstones stay below 4 GiB.
        let header = BatchHeader {
            base: run.base,
            appended,
            count: run.count,
            length: (BATCH_HEADER + run.records.len()) as u32,
            tag: Some(0),
        };
        let header = header.sealed(&self.seal, position);
        self.waiting.extend_from_slice(&header.encode());
        self.waiting.extend_from_slice(run.records);
        self.index.note(position, &header);
        self.summary.add(&header);
        if self.waiting.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        let bytes: Bytes = self.waiting.split().freeze();
        append_all(&*self.file, &[bytes]).1
    }

    /// Writes the rest and syncs the file.
    pub(super) fn finish(mut self) -> io::Result<(Summary, Index)> {
        self.write()?;
        self.file.sync()?;
        (self.summary.first, self.summary.end) = (self.summary.base, self.end);
        Ok((self.summary, self.index))
    }
}
