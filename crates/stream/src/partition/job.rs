//! Writer jobs: writing batches, and beginning a segment. A job has all that it needs, so it runs without the
//! partition's lock.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::queue::{self, QueueBuffer, QueuedBatch};
use super::unsynced::Unsynced;
use crate::disk::{Disk, DiskFile, append_all, is_shortage};
use crate::index::{Index, Summary};
use crate::seal::{Seal, SegmentHeader};
use crate::segment::Segment;

/// The next job.
pub(super) enum WriterJob {
    Write(BatchWrite),
    Roll(SegmentRoll),
    Remove(Arc<Segment>),
}

/// Bytes to write at the end of a file, and whether to sync them.
pub(crate) struct BatchWrite {
    pub(super) segment: Arc<Segment>,
    pub(super) file: Arc<dyn DiskFile>,
    /// File length before the write.
    pub(super) start: u64,
    pub(super) batches: Vec<QueuedBatch>,
    /// Pieces without sealed headers.
    pub(super) waiting: Vec<QueueBuffer>,
    pub(super) seal: Option<Seal>,
    pub(crate) pieces: Vec<Bytes>,
    pub(super) sync: bool,
    pub(super) unsynced: Unsynced,
    /// The batches are invisible to readers before they are synced.
    pub(super) truncates_on_failure: bool,
    /// All earlier writes have been synced.
    pub(super) is_first_unsynced: bool,
    /// Start time by the log's clock.
    pub(super) begun: u64,
}

/// Write result.
pub(super) struct WriteOutcome {
    /// Batches that are completely in the file, and synced if requested.
    pub(super) whole: usize,
    pub(super) end: WriteEnd,
}

pub(super) enum WriteEnd {
    Done,
    NoSpace,
    /// No byte was written: the file may be closed, and the shortage may be one of descriptors.
    NotBegun,
    /// The sync found no space. The written bytes are cut off, and nothing more is appended to the file.
    Unsynced,
    /// The sync found no space, and readers may have seen the records. They are rewritten before the next sync.
    SyncDeferred,
    Failed(String),
}

/// The last segment is full: creates the next one.
pub(super) struct SegmentRoll {
    pub(super) old: Arc<Segment>,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) summary: Summary,
    pub(super) index: Arc<Index>,
    pub(super) is_intact: bool,
    pub(super) dirty: bool,
    pub(super) unsynced: Unsynced,
    pub(super) new: Arc<Segment>,
    /// Readers see only synced records.
    pub(super) synced: bool,
    pub(super) replaces: bool,
    pub(super) now: u64,
}

impl BatchWrite {
    /// Writes the headers, which takes some time, without the lock. A segment without a seal is not written to.
    pub(super) fn seal(&mut self) {
        if let Some(seal) = &self.seal {
            let waiting = std::mem::take(&mut self.waiting);
            self.pieces = queue::seal(&mut self.batches, waiting, seal, self.start);
        }
    }

    pub(super) fn execute(&self, disk: &dyn Disk) -> WriteOutcome {
        let (count, result) = append_all(&*self.file, &self.pieces);
        let written = match result {
            Ok(()) => WriteOutcome { whole: self.batches.len(), end: WriteEnd::Done },
            Err(error) if is_shortage(&error) => self.truncate_incomplete(count),
            Err(error) => WriteOutcome::failed("writing", &error),
        };
        if !self.sync || matches!(written.end, WriteEnd::Failed(_) | WriteEnd::NotBegun) {
            return written;
        }
        // A second sync may succeed although bytes of the failed sync are lost: it is never retried, unless the bytes
        // are rewritten first.
        let end = self.start
            + self.batches[..written.whole].iter().map(|batch| u64::from(batch.header.length)).sum::<u64>();
        match self.unsynced.sync(disk, &self.segment, &*self.file, end) {
            Ok(()) => written,
            Err(error)
                if is_shortage(&error) && (!self.truncates_on_failure || self.unsynced.needs_rewrite) =>
            {
                WriteOutcome { end: WriteEnd::SyncDeferred, ..written }
            }
            Err(error) if self.truncates_on_failure && self.is_first_unsynced && is_shortage(&error) => {
                self.truncate_unsynced()
            }
            Err(error) => {
                if self.truncates_on_failure {
                    // The system may keep the unsynced bytes in memory and show them to the next process as if they
                    // were durable. No reader has seen them yet, so they are cut off; if that fails, the disk has a
                    // worse problem.
                    let _ = self.file.truncate(self.start);
                }
                WriteOutcome::failed("syncing", &error)
            }
        }
    }

    /// Handles a full disk for records that no reader has seen. They are cut off and that is synced: the pages of the
    /// failed sync no longer belong to the file, and the next segment takes the next batches.
    fn truncate_unsynced(&self) -> WriteOutcome {
        match self.file.truncate(self.start).and_then(|()| self.file.sync()) {
            Ok(()) => WriteOutcome { whole: 0, end: WriteEnd::Unsynced },
            Err(error) => WriteOutcome::failed("cutting off batches that could not be synced", &error),
        }
    }

    /// Cuts off an incomplete batch.
    pub(super) fn truncate_incomplete(&self, count: u64) -> WriteOutcome {
        if count == 0 {
            return WriteOutcome { whole: 0, end: WriteEnd::NotBegun };
        }
        let mut bytes = 0;
        let whole = self.batches.iter().take_while(|batch| {
            let is_whole = bytes + u64::from(batch.header.length) <= count;
            bytes += if is_whole { u64::from(batch.header.length) } else { 0 };
            is_whole
        });
        let whole = whole.count();
        match self.file.truncate(self.start + bytes) {
            Ok(()) => WriteOutcome { whole, end: WriteEnd::NoSpace },
            Err(error) => WriteOutcome::failed("cutting back", &error),
        }
    }
}

impl WriteOutcome {
    pub(super) fn failed(what: &str, error: &io::Error) -> Self {
        Self { whole: 0, end: WriteEnd::Failed(format!("{what}: {error}")) }
    }
}

impl SegmentRoll {
    pub(super) fn execute(&mut self, disk: &dyn Disk) -> io::Result<(Arc<dyn DiskFile>, SegmentHeader)> {
        // Independent of the stream's `Fsync`: so only the last segment can end within a batch.
        if self.dirty {
            let synced = self.unsynced.sync(disk, &self.old, &*self.file, self.summary.bytes);
            let needs_rewrite = synced.as_ref().is_err_and(is_shortage);
            match synced {
                Err(error) if !needs_rewrite => return Err(io::Error::other(format!("syncing: {error}"))),
                Err(error) => {
                    self.unsynced.needs_rewrite = true;
                    return Err(error);
                }
                Ok(()) => self.unsynced = Unsynced { from: self.summary.bytes, needs_rewrite: false },
            }
        }
        // If the index cannot be written, the log rebuilds it when it is next opened.
        if self.is_intact && !self.summary.is_empty() {
            let _ = self.old.store(disk, &self.summary, &self.index);
        }
        let seal = Seal::random(self.new.base)?;
        let (created, synced, replaces) = (self.now, self.synced, self.replaces);
        let head = SegmentHeader { seal, created, synced, replaces, compacted: None };
        Ok((self.new.create(disk, &head)?, head))
    }
}
