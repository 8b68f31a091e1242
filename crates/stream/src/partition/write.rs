//! The writer's side: `begin` returns a job, the caller executes it, and `finish` takes the result. Neither blocks, so
//! a thread can execute the job, or an event loop that waits for completions.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::entry::SegmentEntry;
use super::job::{BatchWrite, SegmentRoll, WriteEnd, WriteOutcome, WriterJob};
use super::queue::{QueuedBatch, WRITE_MAX};
use super::shared::PartitionCore;
use super::state::State;
use super::unsynced::Unsynced;
use crate::disk::{DiskFile, is_shortage};
use crate::index::Summary;
use crate::seal::{HEAD, SegmentHeader};
use crate::segment::Segment;
use crate::{AppendError, Durability, Fsync};

impl PartitionCore {
    /// The next job. None: the partition is no longer busy.
    pub(super) fn begin(&self) -> Option<WriterJob> {
        let now = (self.clock)();
        let mut state = self.state();
        if let Some(job) = state.deferred_job.take() {
            return Some(job);
        }
        if state.failed.is_none() {
            if state.retention_is_due(now)
                && let Some(segment) = state.take_first()
            {
                return Some(WriterJob::Remove(segment));
            }
            if state.roll_is_due(now) {
                return Some(WriterJob::Roll(self.begin_roll(&state, now)));
            }
            let is_sync_due = state.sync_is_due(now);
            if state.queue.first().is_some() || is_sync_due {
                let mut write = begin_write(&mut state, is_sync_due, now);
                drop(state);
                write.seal();
                return Some(WriterJob::Write(write));
            }
        }
        state.busy = false;
        None
    }

    fn begin_roll(&self, state: &State, now: u64) -> SegmentRoll {
        let index = state.index.clone();
        let last = state.last();
        SegmentRoll {
            old: last.segment.clone(),
            file: state.file.clone(),
            summary: last.summary,
            index,
            is_intact: last.is_intact(),
            dirty: state.dirty_since.is_some(),
            unsynced: state.unsynced,
            new: Arc::new(Segment::new(&self.dir, last.summary.end)),
            synced: state.config.fsync == Fsync::Batch,
            replaces: state.replaces(),
            now,
        }
    }

    /// Executes a job and applies its result. Blocks.
    pub(super) fn execute(&self, job: WriterJob) {
        match job {
            WriterJob::Write(write) => {
                let written = write.execute(&*self.disk);
                self.finish_write(write, written);
            }
            WriterJob::Roll(mut roll) => {
                let file = roll.execute(&*self.disk);
                self.finish_roll(roll, file);
            }
            WriterJob::Remove(segment) => {
                if let Err(error) = segment.remove(&*self.disk) {
                    // The log finds the segment again when it is next opened.
                    tracing::warn!(path = %segment.path().display(), %error, "a segment could not be removed");
                }
            }
        }
    }

    /// Writes records that were appended while the writers ended. Nothing more is appended.
    pub(super) fn finish(&self) {
        // Unless an executor has the partition: it cannot be waited for here.
        while self.state().executors == 0
            && let Some(job) = self.begin()
        {
            self.execute(job);
        }
        let rejected = self.state().take_queue();
        notify(Vec::new(), rejected, Some(AppendError::Closed), Vec::new());
    }

    pub(super) fn finish_write(&self, write: BatchWrite, written: WriteOutcome) {
        let now = (self.clock)();
        let mut state = self.state();
        let mut position = write.start;
        state.is_index_stored &= write.batches.is_empty();
        for batch in &write.batches[..written.whole] {
            Arc::make_mut(&mut state.index).note(position, &batch.header);
            state.recent.note(batch.header.base, position);
            state.last_mut().summary.add(&batch.header);
            position += u64::from(batch.header.length);
            state.counters.records += u64::from(batch.header.count);
        }
        state.counters.batches += written.whole as u64;
        state.counters.written += position - write.start;
        state.counters.writes += u64::from(!write.batches.is_empty());
        let bytes: usize = write.batches.iter().map(|batch| batch.header.length as usize).sum();
        state.pending = state.pending.saturating_sub(bytes);
        let is_synced = write.sync && matches!(written.end, WriteEnd::Done | WriteEnd::NoSpace);
        if is_synced {
            state.has_unsynced_head = false;
            state.counters.syncs += 1;
            state.counters.sync_time += Duration::from_micros(now.saturating_sub(write.begun));
            state.dirty_since = None;
            state.unsynced = Unsynced { from: position, needs_rewrite: false };
            state.durable = state.last().summary.end;
        } else if written.whole > 0 {
            state.dirty_since.get_or_insert(now);
        }
        let mut batches = write.batches;
        let mut rejected = batches.split_off(written.whole);
        let error = match written.end {
            WriteEnd::Done => None,
            WriteEnd::NoSpace | WriteEnd::NotBegun => {
                Some(self.reject_for_no_space(&mut state, now, &mut rejected))
            }
            WriteEnd::Unsynced => {
                state.has_failed_sync = true;
                Some(self.reject_for_no_space(&mut state, now, &mut rejected))
            }
            WriteEnd::SyncDeferred => {
                state.unsynced.needs_rewrite = true;
                Some(self.reject_for_no_space(&mut state, now, &mut rejected))
            }
            WriteEnd::Failed(reason) => Some(self.fail(&mut state, &reason, &mut rejected)),
        };
        let wakers = state.take_ready_wakers(self.limits.max_pending);
        drop(state);
        notify(batches, rejected, error, wakers);
    }

    fn finish_roll(&self, roll: SegmentRoll, begun: io::Result<(Arc<dyn DiskFile>, SegmentHeader)>) {
        let now = (self.clock)();
        let mut state = self.state();
        let mut rejected = Vec::new();
        let error = match begun {
            Ok((file, head)) => {
                let summary =
                    Summary::empty(roll.new.base, HEAD as u64, roll.summary.last_time.min(roll.now));
                if roll.summary.is_empty() {
                    // The empty segment had the same name.
                    *state.last_mut() = SegmentEntry::new(roll.new, summary);
                } else {
                    roll.old.set_index(roll.index);
                    state.push(SegmentEntry::new(roll.new, summary));
                }
                (state.file, state.index) = (file, Arc::default());
                (state.is_index_stored, state.has_unsynced_head) = (false, true);
                (state.head, state.is_reopened, state.has_failed_sync) = (Some(head), false, false);
                (state.dirty_since, state.unsynced) = (None, Unsynced::default());
                state.durable = roll.summary.end;
                None
            }
            Err(error) => {
                state.unsynced = roll.unsynced;
                Some(if is_shortage(&error) {
                    self.reject_for_no_space(&mut state, now, &mut rejected)
                } else {
                    let reason = format!("{}: {error}", roll.new.path().display());
                    self.fail(&mut state, &reason, &mut rejected)
                })
            }
        };
        let wakers = state.take_ready_wakers(self.limits.max_pending);
        drop(state);
        notify(Vec::new(), rejected, error, wakers);
    }

    /// The disk is full: fails all waiting batches, whose offsets are assigned again.
    fn reject_for_no_space(
        &self,
        state: &mut State,
        now: u64,
        rejected: &mut Vec<QueuedBatch>,
    ) -> AppendError {
        if !state.is_full(now) {
            tracing::warn!(stream = %self.stream, partition = self.number, "no space is left for a stream");
        }
        state.full_since = Some(now);
        rejected.append(&mut state.take_queue());
        AppendError::NoSpace
    }

    /// Fails the partition. Readable records remain readable.
    fn fail(&self, state: &mut State, reason: &str, rejected: &mut Vec<QueuedBatch>) -> AppendError {
        rejected.append(&mut state.take_queue());
        if self.is_deleted() {
            return AppendError::Deleted;
        }
        tracing::error!(stream = %self.stream, partition = self.number, reason, "a partition has failed");
        let reason: Arc<str> = reason.into();
        state.failed = Some(reason.clone());
        AppendError::Failed(reason)
    }
}

/// Notifies producers and readers without holding the lock, since they may call back immediately.
fn notify(
    done: Vec<QueuedBatch>,
    rejected: Vec<QueuedBatch>,
    error: Option<AppendError>,
    wakers: Vec<Waker>,
) {
    for batch in done {
        // Without a broker, no durability is higher than the disk.
        batch.completer.reached(Durability::Broker, batch.header.base);
    }
    if let Some(error) = error {
        for batch in rejected {
            batch.completer.fail(error.clone());
        }
    }
    for waker in wakers {
        waker.wake();
    }
}

fn begin_write(state: &mut State, is_sync_due: bool, begun: u64) -> BatchWrite {
    let first = state.queue.first().map_or(0, |first| u64::from(first.length));
    let unsynced = state.unsynced;
    let (batches, waiting) = if unsynced.needs_rewrite {
        (Vec::new(), Vec::new())
    } else {
        state.queue.take(first.max(state.free_bytes().min(WRITE_MAX)))
    };
    let truncates_on_failure = state.config.fsync == Fsync::Batch;
    let last = state.last();
    let (segment, file, start) = (last.segment.clone(), state.file.clone(), last.summary.bytes);
    let sync = is_sync_due || truncates_on_failure || unsynced.needs_rewrite;
    let seal = state.head.map(|head| head.seal);
    let is_first_unsynced = state.dirty_since.is_none();
    let pieces = Vec::new();
    BatchWrite {
        segment,
        file,
        start,
        batches,
        waiting,
        seal,
        pieces,
        sync,
        unsynced,
        truncates_on_failure,
        is_first_unsynced,
        begun,
    }
}
