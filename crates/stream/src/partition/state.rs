//! State of a partition, guarded by its lock.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::compact::CompactionState;
use super::entry::{IndexRequest, SegmentEntry};
use super::job::WriterJob;
use super::queue::{QueuedBatch, WriteQueue};
use super::types::{PartitionEvent, PartitionOffsets};
use super::unsynced::Unsynced;
use super::watcher::Waiters;
use crate::disk::{Disk, DiskFile};
use crate::index::Index;
use crate::seal::SegmentHeader;
use crate::segment::Segment;
use crate::{AppendError, Fsync, StreamConfig};

pub(super) struct State {
    pub(super) config: StreamConfig,
    /// Never empty; batches are appended to the last entry.
    pub(super) entries: VecDeque<SegmentEntry>,
    /// Bytes of all entries except the last.
    pub(super) sealed_bytes: u64,
    /// File of the last entry.
    pub(super) file: Arc<dyn DiskFile>,
    /// Index of the last entry. Shared while the segment is being ended, in which time nothing is written.
    pub(super) index: Arc<Index>,
    /// The last entry has a valid index file.
    pub(super) is_index_stored: bool,
    /// Head of the last entry. None: the segment has no key, and is not appended to.
    pub(super) head: Option<SegmentHeader>,
    /// Another process created the last segment.
    pub(super) is_reopened: bool,
    /// This process created the last segment and has not synced its head.
    pub(super) has_unsynced_head: bool,
    /// The last sync of the last segment found no space.
    pub(super) has_failed_sync: bool,
    pub(super) recent: RecentBatches,
    /// The next offset, and the time of the batch before it.
    pub(super) next: u64,
    pub(super) time: u64,
    pub(super) durable: u64,
    /// Time since which written bytes are not synced.
    pub(super) dirty_since: Option<u64>,
    pub(super) unsynced: Unsynced,
    pub(super) queue: WriteQueue,
    /// Bytes in the queue and in flight.
    pub(super) pending: usize,
    /// A writer has the partition or will have it. The code that sets the flag also queues the partition.
    pub(super) busy: bool,
    /// The pool will check the partition for a deferred write.
    pub(super) is_deferred: bool,
    /// A job begun by an executor that could not execute it.
    pub(super) deferred_job: Option<WriterJob>,
    /// Carriers that have the partition: at most one, except during a handover.
    pub(super) executors: u32,
    pub(super) compaction: CompactionState,
    pub(super) closed: bool,
    pub(super) failed: Option<Arc<str>>,
    /// Time of the last attempt that found no space.
    pub(super) full_since: Option<u64>,
    pub(super) waiters: Waiters,
    /// Segments whose index must be rebuilt.
    pub(super) index_requests: VecDeque<IndexRequest>,
    /// A thread rebuilds indexes or will.
    pub(super) is_rebuilding: bool,
    pub(super) counters: PartitionCounters,
}

/// Positions of the last segment's last batches. Readers at the log's end look there, and may be many.
#[derive(Default)]
pub(super) struct RecentBatches(VecDeque<(u64, u64)>);

/// Maximum positions.
const RECENT: usize = 64;

impl RecentBatches {
    pub(super) fn note(&mut self, offset: u64, position: u64) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back((offset, position));
    }

    /// Position from which to search for an offset. None if the offset is before all positions.
    pub(super) fn position(&self, offset: u64) -> Option<u64> {
        let behind = self.0.partition_point(|(base, _)| *base <= offset);
        behind.checked_sub(1).map(|index| self.0[index].1)
    }

    /// Resets for a new last segment.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Counters since the log was opened.
#[derive(Default)]
pub(super) struct PartitionCounters {
    pub(super) records: u64,
    pub(super) batches: u64,
    pub(super) written: u64,
    pub(super) writes: u64,
    pub(super) syncs: u64,
    pub(super) sync_time: Duration,
}

/// Microseconds without further attempts after the disk was full.
const RETRY_AFTER_FULL: u64 = 1_000_000;

/// Maximum lead of a batch's time over the clock, in microseconds. If the clock is set back by less, the time stands
/// still; if by more, a new segment begins, within which times only grow.
const LEAD_MAX: u64 = 60_000_000;

/// A segment is ended for its age after this fraction of the retention time. So records are removed late by at most
/// that fraction.
const AGE_PARTS: u32 = 4;

impl State {
    /// The segment that is appended to.
    pub(super) fn last(&self) -> &SegmentEntry {
        // The last entry is only ever followed by another one.
        self.entries.back().expect("a partition has a segment")
    }

    pub(super) fn last_mut(&mut self) -> &mut SegmentEntry {
        self.entries.back_mut().expect("a partition has a segment")
    }

    pub(super) fn offsets(&self) -> PartitionOffsets {
        let earliest = self.entries.front().map_or(self.next, |entry| entry.summary.first);
        PartitionOffsets {
            earliest,
            readable: self.last().summary.end,
            durable: self.durable,
            next: self.next,
        }
    }

    /// Error for further appends, if they are rejected.
    pub(super) fn rejection(&self) -> Option<AppendError> {
        let failed = || self.failed.clone().map(AppendError::Failed);
        if self.closed { Some(AppendError::Closed) } else { failed() }
    }

    pub(super) fn is_full(&self, now: u64) -> bool {
        self.full_since
            .is_some_and(|since| now.checked_sub(since).is_some_and(|passed| passed < RETRY_AFTER_FULL))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sealed_bytes + self.last().summary.bytes
    }

    /// Takes the first segment, unless it is the only one.
    pub(super) fn take_first(&mut self) -> Option<Arc<Segment>> {
        let entry = if self.entries.len() > 1 { self.entries.pop_front() } else { None };
        self.sealed_bytes -= entry.as_ref().map_or(0, |entry| entry.summary.bytes);
        entry.map(|entry| entry.segment)
    }

    /// Makes this segment the last one.
    pub(super) fn push(&mut self, entry: SegmentEntry) {
        self.sealed_bytes += self.last().summary.bytes;
        self.recent.clear();
        self.entries.push_back(entry);
    }

    /// Whether the next batch needs a new segment, or the last segment has reached its maximum age.
    pub(super) fn roll_is_due(&self, now: u64) -> bool {
        let last = &self.last().summary;
        let is_too_small =
            self.queue.first().is_some_and(|first| self.free_bytes() < u64::from(first.length));
        let is_old = self.config.retain_age.is_some_and(|age| {
            let most = micros(age / AGE_PARTS);
            now.saturating_sub(last.first_time) > most && !self.is_full(now)
        });
        let first = self.queue.first();
        let goes_back = first.is_some_and(|first| first.appended < last.last_time);
        let is_ahead = self.config.retain_age.is_some() && last.first_time > now.saturating_add(LEAD_MAX);
        let is_old = is_old || is_ahead && !self.is_full(now) || goes_back;
        let is_ended = first.is_some() && self.is_ended();
        is_ended || !last.is_empty() && (is_too_small || is_old)
    }

    /// Time for a batch that is appended now.
    pub(super) fn time_of(&self, now: u64) -> u64 {
        if self.time > now.saturating_add(LEAD_MAX) { now } else { now.max(self.time) }
    }

    /// Time for a batch whose writer has its own time. As with [`time_of`](Self::time_of), a clock that was far ahead
    /// does not set the times of all later batches.
    pub(super) fn time_at(&self, now: u64, appended: u64) -> u64 {
        let was_ahead = appended <= now && self.time > now.saturating_add(LEAD_MAX);
        if was_ahead { appended } else { appended.max(self.time) }
    }

    /// Whether appends to the last segment have ended. No file position is written a second time once its batch may
    /// have been visible: where that is uncertain, the next process begins a segment with a new key.
    fn is_ended(&self) -> bool {
        let is_synced = self.config.fsync == Fsync::Batch;
        // The head of an empty segment may not have been synced: it is rewritten.
        let is_unsure = self.is_reopened && self.last().summary.is_empty();
        let is_continued =
            |head: &SegmentHeader| if head.synced { is_synced && !is_unsure } else { !self.is_reopened };
        let is_continued = |head: &SegmentHeader| head.compacted.is_none() && is_continued(head);
        self.has_failed_sync || !self.head.as_ref().is_some_and(is_continued)
    }

    /// Whether the next segment replaces the records of the previous file from its base on.
    pub(super) fn replaces(&self) -> bool {
        let is_begun_anew = self.last().summary.is_empty();
        self.has_failed_sync || is_begun_anew && self.head.is_some_and(|head| head.replaces)
    }

    /// Space left in the last segment, in bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        self.config.segment_bytes.saturating_sub(self.last().summary.bytes)
    }

    /// Whether a sync is due.
    pub(super) fn sync_is_due(&self, now: u64) -> bool {
        // The clock ticks every half interval, so that the interval is met.
        if self.unsynced.needs_rewrite && self.is_full(now) {
            return false;
        }
        let is_due = |since: u64, interval| now < since || now - since >= micros(interval) / 2;
        match (self.config.fsync, self.dirty_since) {
            (_, None) | (Fsync::Never, _) => false,
            (Fsync::Batch, Some(_)) => true,
            (Fsync::Interval(interval), Some(since)) => is_due(since, interval),
        }
    }

    /// Syncs the last segment's written bytes.
    pub(super) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        let last = self.last();
        self.unsynced.sync(disk, &last.segment, &*self.file, last.summary.bytes)
    }

    /// Whether retention is to remove the first segment.
    pub(super) fn retention_is_due(&self, now: u64) -> bool {
        let (Some(first), true) = (self.entries.front(), self.entries.len() > 1) else { return false };
        let is_much = self.config.retain_bytes.is_some_and(|most| self.bytes() - first.summary.bytes >= most);
        let is_old = self
            .config
            .retain_age
            .is_some_and(|age| now.saturating_sub(self.last_time_of_first(now)) > micros(age));
        is_much || is_old
    }

    /// Time of the newest batch of the first segment. If the clock was ahead then, at most the time of the first batch
    /// of a later segment.
    fn last_time_of_first(&self, now: u64) -> u64 {
        let mut times = self.entries.iter();
        let last_time = times.next().map_or(now, |first| first.summary.last_time);
        if last_time <= now {
            return last_time;
        }
        times.map(|entry| entry.summary.first_time).fold(last_time, u64::min)
    }

    /// The segment that contains the first batch at or after this time, or an earlier segment.
    pub(super) fn segment_of_time(&self, time: u64) -> Option<usize> {
        let mut filled =
            self.entries.iter().enumerate().filter(|(_, entry)| !entry.summary.is_empty()).peekable();
        while let Some((at, entry)) = filled.next() {
            let summary = &entry.summary;
            // If the clock was set back within the time of a segment, it was ahead at the segment's end.
            let behind = filled.peek().map(|(_, behind)| behind.summary.first_time);
            let ahead = behind.filter(|behind| (summary.first_time..summary.last_time).contains(behind));
            if ahead.unwrap_or(summary.last_time) >= time {
                return Some(at);
            }
        }
        None
    }

    /// Continues behind the last batch of the last segment, all of which is durable.
    pub(super) fn continue_behind_last(&mut self) {
        let last = self.last().summary;
        (self.next, self.time, self.durable) = (last.end, last.last_time, last.end);
    }

    /// Takes all waiting batches, which will not be written; their offsets are assigned again.
    pub(super) fn take_queue(&mut self) -> Vec<QueuedBatch> {
        let batches = self.queue.clear();
        let bytes: usize = batches.iter().map(|batch| batch.header.length as usize).sum();
        self.pending = self.pending.saturating_sub(bytes);
        let last = &self.last().summary;
        (self.next, self.time) = (last.end, last.last_time);
        batches
    }

    /// Whether the event has happened. None: it never will.
    pub(super) fn has_happened(&self, event: PartitionEvent, max_pending: usize) -> Option<bool> {
        let is_over = self.closed || self.failed.is_some();
        let happened = match event {
            PartitionEvent::Readable(offset) => self.last().summary.end > offset,
            PartitionEvent::Durable(offset) => self.durable > offset,
            PartitionEvent::QueueSpace => is_over || self.pending <= max_pending / 2,
        };
        (happened || !is_over).then_some(happened)
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
