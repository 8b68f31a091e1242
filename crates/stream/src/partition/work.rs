//! The partition as work: for the log's threads, and for an executor in their place.

use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};

use sinews_file::AppendFile;

use super::job::{BatchWrite, WriteEnd, WriteOutcome, WriterJob};
use super::shared::PartitionCore;
use super::state::State;
use crate::Fsync;
use crate::disk::is_shortage;
use crate::executor::{ExternalWriter, WriteTask};
use crate::writer::WorkUnit;

impl PartitionCore {
    /// Passes the partition to the executor, if there is one and the work suits it.
    pub(super) fn delegate(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> bool {
        if state.closed || state.config.fsync == Fsync::Batch || state.queue.first().is_none() {
            return false;
        }
        let Some(executor) = self.pool.executor() else { return false };
        state.executors += 1;
        drop(state);
        executor.execute(WriteTask::new(self.clone()));
        true
    }

    /// Passes the partition to a writer, unless one has it.
    pub(super) fn start_writing(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if !std::mem::replace(&mut state.busy, true) && !self.delegate(state) {
            self.push();
        }
    }

    /// Queues the partition for the log's threads.
    pub(super) fn push(self: &Arc<Self>) {
        self.pool.push(self.clone());
    }

    fn executor_returned(&self) {
        self.state().executors -= 1;
        self.executor_changed.notify_all();
    }

    /// Waits until no executor has the partition. The partition rejects further appends.
    pub(super) fn wait_for_executor(&self) {
        let mut state = self.state();
        while state.executors > 0 {
            state = self.executor_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl WorkUnit for PartitionCore {
    fn work(self: Arc<Self>) -> bool {
        let Some(job) = self.begin() else { return false };
        self.execute(job);
        !self.delegate(self.state())
    }

    fn tick(&self, now: u64) -> bool {
        let mut state = self.state();
        // A deferred write; any other one has a writer.
        let is_deferred = std::mem::take(&mut state.is_deferred) && state.queue.first().is_some();
        let is_due =
            is_deferred || state.retention_is_due(now) || state.roll_is_due(now) || state.sync_is_due(now);
        is_due && state.failed.is_none() && !std::mem::replace(&mut state.busy, true)
    }

    fn release_unused(&self) {
        self.drop_window();
        let state = self.state();
        let sealed = state.entries.len() - 1;
        state.entries.iter().take(sealed).for_each(|entry| entry.segment.release_unused());
    }
}

impl ExternalWriter for PartitionCore {
    fn begin_external(self: Arc<Self>) -> Option<(BatchWrite, Arc<AppendFile>)> {
        let Some(job) = self.begin() else {
            self.executor_returned();
            return None;
        };
        match job {
            WriterJob::Write(write) if !write.sync => match write.file.clone().real() {
                Some(file) => return Some((write, file)),
                None => self.state().deferred_job = Some(WriterJob::Write(write)),
            },
            other => self.state().deferred_job = Some(other),
        }
        self.return_to_threads();
        None
    }

    fn finish_external(self: Arc<Self>, write: BatchWrite, written: u64, result: io::Result<()>) -> bool {
        let written = match result {
            Ok(()) => WriteOutcome { whole: write.batches.len(), end: WriteEnd::Done },
            Err(error) if is_shortage(&error) => write.truncate_incomplete(written),
            Err(error) => WriteOutcome::failed("writing", &error),
        };
        self.finish_write(write, written);
        let is_closed = self.state().closed;
        if is_closed {
            self.return_to_threads();
        }
        !is_closed
    }

    fn return_to_threads(self: Arc<Self>) {
        self.push();
        self.executor_returned();
    }
}
