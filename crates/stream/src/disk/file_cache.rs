//! Files that are closed while idle and reopened by the next use.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use sinews_file::AppendFile;

use super::{Disk, DiskFile, Lock};

/// A disk whose idle files need no descriptor.
pub(crate) struct DescriptorCache {
    this: Weak<Self>,
    disk: Arc<dyn Disk>,
    known: Mutex<HashMap<PathBuf, Weak<CachedDescriptor>>>,
}

struct CachedDescriptor {
    file_cache: Weak<DescriptorCache>,
    disk: Arc<dyn Disk>,
    path: Mutex<PathBuf>,
    state: Mutex<State>,
}

struct State {
    /// None: closed, and all written bytes are synced.
    file: Option<Arc<dyn DiskFile>>,
    /// Used since the last [`DescriptorCache::close_unused`].
    used: bool,
    /// Bytes may have been written since the last sync.
    dirty: bool,
    /// A sync before closing has failed. The file stays open, and every later sync fails.
    failed: Option<Arc<str>>,
}

impl DescriptorCache {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { this: this.clone(), disk, known: Mutex::default() })
    }

    /// Closes the files not used since the last call. Waits for the disk.
    pub(crate) fn close_unused(&self) {
        for handle in self.all() {
            handle.close_if_idle(false);
        }
    }

    /// Closes an idle file.
    pub(crate) fn close_idle(&self, path: &Path) {
        let handle = self.known().get(path).and_then(Weak::upgrade);
        if let Some(handle) = handle {
            handle.close_if_idle(true);
        }
    }

    /// Open file count.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.all().iter().filter(|handle| handle.state().file.is_some()).count()
    }

    fn all(&self) -> Vec<Arc<CachedDescriptor>> {
        let mut known = self.known();
        known.retain(|_, handle| handle.strong_count() > 0);
        known.values().filter_map(Weak::upgrade).collect()
    }

    /// Makes a system call; if too many files are open, closes idle files and retries once.
    fn retry_after_closing_idle<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            // ENFILE and EMFILE.
            Err(error) if matches!(error.raw_os_error(), Some(23 | 24)) => {
                self.all().iter().for_each(|handle| handle.close_if_idle(true));
                call()
            }
            result => result,
        }
    }

    fn opened(
        &self,
        path: &Path,
        open: impl Fn() -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.retry_after_closing_idle(open)?;
        let state = State { file: Some(file), used: true, dirty: false, failed: None };
        let handle = Arc::new(CachedDescriptor {
            file_cache: self.this.clone(),
            disk: self.disk.clone(),
            path: Mutex::new(path.to_owned()),
            state: Mutex::new(state),
        });
        self.known().insert(path.to_owned(), Arc::downgrade(&handle));
        Ok(handle)
    }

    /// No code panics while holding the lock.
    fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, Weak<CachedDescriptor>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedDescriptor {
    /// Closes the file unless it was used since the last call, or a caller still has it. `now`: also if it was used,
    /// but not if that requires a sync.
    fn close_if_idle(&self, now: bool) {
        let mut state = self.state();
        let was_used = std::mem::take(&mut state.used) && !now;
        let is_in_use = state.file.as_ref().is_none_or(|file| Arc::strong_count(file) > 1);
        if was_used || is_in_use || state.failed.is_some() || now && state.dirty {
            return;
        }
        // No write can happen meanwhile: each use takes the lock.
        if state.dirty {
            let synced = state.file.as_ref().map_or(Ok(()), |file| file.sync());
            if let Err(error) = synced {
                state.failed = Some(error.to_string().into());
                return;
            }
            state.dirty = false;
        }
        state.file = None;
    }

    /// The file, opened if need be. `writes`: bytes may be written until the next sync.
    fn file(&self, writes: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        if state.file.is_none() {
            // Other files are closed without this lock, so that callers with other files do not wait for it.
            drop(state);
            let path = self.path.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let opened = match self.file_cache.upgrade() {
                Some(file_cache) => file_cache.retry_after_closing_idle(|| self.disk.open(&path))?,
                None => self.disk.open(&path)?,
            };
            state = self.state();
            state.file.get_or_insert(opened);
        }
        state.used = true;
        let file = state.file.clone().ok_or(io::ErrorKind::NotFound)?;
        state.dirty |= writes;
        Ok(file)
    }

    /// No code panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for CachedDescriptor {
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.file(true)?.append(slices)
    }

    fn sync(&self) -> io::Result<()> {
        let file = self.file(false)?;
        let mut state = self.state();
        if let Some(reason) = &state.failed {
            return Err(io::Error::other(reason.to_string()));
        }
        // Bytes written during this sync are not covered.
        let was_dirty = std::mem::take(&mut state.dirty);
        drop(state);
        let synced = file.sync();
        if synced.is_err() {
            self.state().dirty |= was_dirty;
        }
        synced
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file(true)?.truncate(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file(false)?.bytes()
    }

    fn read_shared(&self, range: Range<u64>) -> io::Result<Bytes> {
        self.file(false)?.read_shared(range)
    }

    fn real(self: Arc<Self>) -> Option<Arc<AppendFile>> {
        self.file(true).ok()?.real()
    }
}

impl Disk for DescriptorCache {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.retry_after_closing_idle(|| self.disk.list(dir))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.opened(path, || self.disk.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.opened(path, || self.disk.open(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // Locked until the end, so that no file is opened by its old name.
        let mut known = self.known();
        let handle = known.get(from).and_then(Weak::upgrade);
        let mut path = handle.as_ref().map(|it| it.path.lock().unwrap_or_else(PoisonError::into_inner));
        self.disk.rename(from, to)?;
        if let (Some(path), Some(handle)) = (&mut path, &handle) {
            to.clone_into(path);
            known.remove(from);
            known.insert(to.to_owned(), Arc::downgrade(handle));
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.known().remove(path);
        self.disk.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.disk.is_dir(path)
    }

    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()> {
        self.retry_after_closing_idle(|| self.disk.rewrite(path, from))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.retry_after_closing_idle(|| self.disk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        self.disk.lock(path)
    }
}
