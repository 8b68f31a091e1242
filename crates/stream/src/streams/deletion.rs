//! Deleting streams.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use super::opening::BusySlot;
use super::slot::SlotState;
use super::{Inner, Streams};
use crate::disk;
use crate::{DeleteError, Stream, name};

impl Streams {
    /// Deletes a stream with all its records and the offsets of its groups; it may be damaged. Pending appends, and all
    /// further appends and reads through handles of the stream, fail with `Deleted`. A new stream of the same name has
    /// a larger [`Stream::created`]. The files are removed in the background. Returns whether the stream existed. Waits
    /// for the disk; after it returns, the deletion survives a crash.
    ///
    /// # Errors
    ///
    /// [`DeleteError`]
    pub fn delete(&self, name: &str) -> Result<bool, DeleteError> {
        let inner = &self.inner;
        let (Some(path), name) = (inner.path(name), Arc::<str>::from(name)) else { return Ok(false) };
        let _gate = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = inner.check_lock() {
            return Err(DeleteError::Io(std::io::Error::other(&*reason)));
        }
        let mut state = inner.state();
        let (before, removed_path) = loop {
            if state.lock.is_none() {
                return Err(DeleteError::Closed);
            }
            state.removed += 1;
            let serial = state.removed;
            let Some(slot) = state.slots.get_mut(&*name) else { return Ok(false) };
            if !matches!(slot.state, SlotState::Busy) {
                let removed_path =
                    inner.dir.join(format!("{}{}-{serial}", name::REMOVED, slot.metadata.created));
                break (std::mem::replace(&mut slot.state, SlotState::Busy), removed_path);
            }
            inner.wait(state);
            state = inner.state();
        };
        drop(state);
        let busy = BusySlot { inner, name: &name };
        if let SlotState::Open(stream) = &before {
            inner.quiesce(stream);
        }
        let disk = &*inner.pool.disk;
        if let Err(error) = disk.rename(&path, &removed_path) {
            let reason = format!("deleting the stream: {error}").into();
            busy.finish(|state| {
                if let Some(slot) = state.slots.get_mut(&*name) {
                    slot.state = SlotState::Damaged(reason, (inner.pool.clock)());
                }
            });
            return Err(DeleteError::Io(error));
        }
        let synced = disk.sync_dir(&inner.dir);
        inner.catalog().deleted(&name);
        busy.finish(|state| {
            state.slots.remove(&*name);
        });
        inner.remove_later(removed_path);
        synced.map(|()| true).map_err(DeleteError::Io)
    }
}

impl Inner {
    /// Waits until no operation on the stream's files is in flight.
    fn quiesce(&self, stream: &Stream) {
        stream.discard();
        stream.unregister(&self.pool);
        self.pool.work_until(|| !stream.is_busy());
    }

    /// Removes the directory of a deleted stream in the background. Remaining files are removed when the log is next
    /// opened.
    pub(super) fn remove_later(&self, path: PathBuf) {
        let pool = self.pool.clone();
        self.openers.push(Box::new(move || {
            // A stopping process unlocks the directory without delay.
            if !pool.is_stopped()
                && let Err(error) = disk::remove_tree(&*pool.disk, &path)
            {
                tracing::warn!(path = %path.display(), %error, "files of a deleted stream could not be removed");
            }
        }));
    }
}
