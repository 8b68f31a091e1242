//! Syncs of committed offsets that were acknowledged when they were written.

use super::{ConsumerGroups, NAME, State, file};
use crate::disk::{self, DiskFile, is_shortage};
use crate::partition::micros;
use crate::{AppendError, Fsync};

/// Microseconds without a further sync after one that found no space.
pub(super) const RETRY_AFTER_SHORTAGE: u64 = 1_000_000;

impl ConsumerGroups {
    /// Writes the commits that arrived after the writers ended, and syncs the file.
    pub(crate) fn close(&self) {
        while self.step() {}
        let mut state = self.state();
        if state.failed.is_some() || state.dirty_since.is_none() {
            return;
        }
        let synced = if state.needs_rewrite {
            disk::replace(
                &*self.pool.disk,
                &self.dir,
                NAME,
                &file::whole(state.tag, &state.offsets, state.doubt),
            )
        } else if state.needs_dir_sync {
            self.pool.disk.sync_dir(&self.dir)
        } else {
            state.file.sync()
        };
        match synced {
            // The length of a file that was replaced is not known: the next process reads it.
            Ok(()) if !state.needs_rewrite => (state.dirty_since, state.needs_dir_sync) = (None, false),
            Ok(()) => {}
            Err(error) => {
                tracing::error!(stream = %self.stream, %error, "offsets of groups could not be synced");
                state.failed = Some(format!("syncing: {error}").into());
            }
        }
    }

    /// Makes the rename of the rewritten file durable. Nothing is written to it before. If no more files can be opened,
    /// the next commit tries again.
    pub(super) fn sync_dir(&self) {
        match self.pool.disk.sync_dir(&self.dir) {
            Ok(()) => {
                let mut state = self.state();
                // Its content was synced before, and nothing was written since.
                (state.needs_dir_sync, state.dirty_since) = (false, None);
            }
            Err(error) if is_shortage(&error) => {
                self.state().retry_at = (self.pool.clock)() + RETRY_AFTER_SHORTAGE;
                self.fail_pending(&AppendError::NoSpace);
            }
            Err(error) => {
                let error = self.fail("rewriting the file", &error);
                self.fail_pending(&error);
            }
        }
    }

    /// Syncs changes that were acknowledged when they were written. On a full disk, the file is rewritten later.
    pub(super) fn sync(&self, file: &dyn DiskFile) {
        let synced = file.sync();
        let now = (self.pool.clock)();
        match synced {
            // No other thread has written meanwhile.
            Ok(()) => self.state().dirty_since = None,
            Err(error) if is_shortage(&error) => {
                tracing::warn!(stream = %self.stream, %error, "offsets of groups could not be synced yet");
                let mut state = self.state();
                (state.needs_rewrite, state.retry_at) = (true, now + RETRY_AFTER_SHORTAGE);
            }
            Err(error) => {
                let error = self.fail("syncing", &error);
                self.fail_pending(&error);
            }
        }
    }
}

impl State {
    /// Whether changes that were written are to be synced.
    pub(super) fn sync_is_due(&self, now: u64) -> bool {
        let Some(since) = self.dirty_since.filter(|_| now >= self.retry_at) else { return false };
        match self.fsync {
            Fsync::Never => false,
            // Written before the stream was configured so, or before a sync that found no space.
            Fsync::Batch => true,
            // The clock ticks every half interval, so that the interval is met.
            Fsync::Interval(interval) => now < since || now - since >= micros(interval) / 2,
        }
    }
}
