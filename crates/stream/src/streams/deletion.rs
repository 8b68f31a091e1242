//! Deleting streams.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::opening::BusySlot;
use super::slot::SlotState;
use super::{Inner, State, Streams};
use crate::disk;
use crate::{DeleteError, Stream, name};

impl Streams {
    /// Deletes a stream with all its records and its groups' offsets; it may be damaged. Pending appends, and all
    /// further appends and reads through handles to the stream, fail with `Deleted`. A new stream with the same name
    /// has a larger [`Stream::created`]. The files are removed in the background. Returns whether the stream existed.
    /// Waits for the disk; after it returns, the deletion survives a crash.
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
        let before = loop {
            if state.lock.is_none() {
                return Err(DeleteError::Closed);
            }
            let Some(slot) = state.slots.get_mut(&*name) else { return Ok(false) };
            if !matches!(slot.state, SlotState::Busy) {
                break std::mem::replace(&mut slot.state, SlotState::Busy);
            }
            inner.wait(state);
            state = inner.state();
        };
        drop(state);
        if let SlotState::Open(stream) = &before {
            stream.discard();
        }
        inner.delete_claimed(&name, path, &before).map(|()| true)
    }

    /// Names of the streams that their first use has created and that were not used for `idle`, by the log's clock. Each
    /// may be in use again by now: [`delete_unused`](Self::delete_unused) decides.
    pub fn unused(&self, idle: Duration) -> Vec<Arc<str>> {
        let limit = self.inner.limit_of_use(idle);
        let state = self.inner.state();
        let unused = state.slots.iter().filter(|(_, slot)| slot.is_unused(limit));
        unused.map(|(name, _)| name.clone()).collect()
    }

    /// Deletes a stream that its first use has created, if it was not used for `idle` by the log's clock, and if at most
    /// `max_waiters` wakers are registered. The check and the deletion are one step: an append before it is a use, and an
    /// append after it fails with `Deleted`. Returns whether the stream was deleted. Otherwise as
    /// [`delete`](Self::delete).
    ///
    /// # Errors
    ///
    /// [`DeleteError`]
    pub fn delete_unused(&self, name: &str, idle: Duration, max_waiters: u64) -> Result<bool, DeleteError> {
        let inner = &self.inner;
        let (Some(path), name) = (inner.path(name), Arc::<str>::from(name)) else { return Ok(false) };
        let _gate = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = inner.check_lock() {
            return Err(DeleteError::Io(std::io::Error::other(&*reason)));
        }
        let limit = inner.limit_of_use(idle);
        let mut state = inner.state();
        if state.lock.is_none() {
            return Err(DeleteError::Closed);
        }
        let Some(slot) = state.slots.get_mut(&*name).filter(|slot| slot.is_unused(limit)) else {
            return Ok(false);
        };
        // Under the lock of all streams, so nobody sees the slot busy without a deletion.
        if let SlotState::Open(stream) = &slot.state
            && !stream.discard_unused(limit, max_waiters)
        {
            return Ok(false);
        }
        let before = std::mem::replace(&mut slot.state, SlotState::Busy);
        drop(state);
        if let SlotState::Open(stream) = &before {
            stream.discard();
        }
        inner.delete_claimed(&name, path, &before).map(|()| true)
    }
}

impl Inner {
    /// Time of the last use before which a stream was not used for `idle`.
    fn limit_of_use(&self, idle: Duration) -> u64 {
        (self.pool.clock)().saturating_sub(u64::try_from(idle.as_micros()).unwrap_or(u64::MAX))
    }

    /// Deletes the files of a stream whose slot the caller has marked busy and whose handles reject all operations.
    fn delete_claimed(&self, name: &Arc<str>, path: PathBuf, before: &SlotState) -> Result<(), DeleteError> {
        let busy = BusySlot { inner: self, name };
        if let SlotState::Open(stream) = before {
            self.quiesce(stream);
        }
        let removed_path = self.removed_path(&mut self.state(), name);
        let disk = &*self.pool.disk;
        if let Err(error) = disk.rename(&path, &removed_path) {
            let reason = format!("deleting the stream: {error}").into();
            busy.finish(|state| {
                if let Some(slot) = state.slots.get_mut(&**name) {
                    slot.state = SlotState::Damaged(reason, (self.pool.clock)());
                }
            });
            return Err(DeleteError::Io(error));
        }
        let synced = disk.sync_dir(&self.dir);
        self.catalog().deleted(name);
        busy.finish(|state| {
            state.slots.remove(&**name);
        });
        self.remove_later(removed_path);
        synced.map_err(DeleteError::Io)
    }

    /// An unused name for a deleted stream's directory.
    fn removed_path(&self, state: &mut State, name: &Arc<str>) -> PathBuf {
        state.removed += 1;
        let created = state.slots.get(&**name).map_or(0, |slot| slot.metadata.created);
        self.dir.join(format!("{}{created}-{}", name::REMOVED, state.removed))
    }

    /// Waits until no operation on the stream's files is in flight. The stream is discarded.
    fn quiesce(&self, stream: &Stream) {
        stream.unregister(&self.pool);
        self.pool.work_until(|| !stream.is_busy());
    }

    /// Removes a deleted stream's directory in the background. Remaining files are removed when the log is next opened.
    pub(super) fn remove_later(&self, path: PathBuf) {
        let pool = self.pool.clone();
        self.removers.push(Box::new(move || {
            // A stopping process unlocks the directory without delay.
            if !pool.is_stopped()
                && let Err(error) = disk::remove_tree(&*pool.disk, &path)
            {
                tracing::warn!(path = %path.display(), %error, "files of a deleted stream could not be removed");
            }
        }));
    }
}
