//! All streams below one directory.
//!
//! ```text
//!   catalog ─▶ slots, by name ─┬─▶ closed: opened by the first use, on a thread of its own
//!                              ├─▶ busy: being created, opened, closed or deleted
//!                              ├─▶ open: partitions, groups
//!                              └─▶ damaged: why
//! ```

mod creation;
mod deletion;
mod maintenance;
mod openers;
mod opening;
mod repair;
mod slot;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Bound, Deref};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use self::maintenance::StreamMaintenance;
use self::openers::{OPENERS_MAX, Openers, REMOVERS_MAX};
pub use self::opening::OpenFuture;
pub use self::repair::CheckReport;
use self::slot::{SlotState, StreamSlot};
use crate::catalog::{Catalog, StreamMap, StreamMetadata};
use crate::disk::{self, DescriptorCache, Disk, Lock, RealDisk};
use crate::writer::{Clock, WriterPool, system_clock};
use crate::{
    CreateError, Lookup, Loss, OpenError, Stream, StreamConfig, StreamError, StreamInfo, StreamsConfig,
    WriteExecutor, meta, name,
};

/// All streams below one directory, which is locked against other processes. Cheap to clone; dropping the last clone
/// closes everything.
#[derive(Clone)]
pub struct Streams {
    inner: Arc<StreamsOwner>,
}

/// State shared by the clones. The pool's threads hold an [`Inner`] only briefly, and none closes it: dropping the last
/// clone unlocks the directory before it returns.
struct StreamsOwner(Arc<Inner>);

impl Deref for StreamsOwner {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Drop for StreamsOwner {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Inner {
    /// The streams' parent directory.
    dir: PathBuf,
    pool: Arc<WriterPool>,
    /// The pool's disk.
    file_cache: Arc<DescriptorCache>,
    openers: Arc<Openers>,
    /// Removes and compacts streams.
    removers: Arc<Openers>,
    state: Mutex<State>,
    /// Held while a clone of the lock may exist, so that closing unlocks the directory.
    checking: Mutex<()>,
    /// Notified when a slot is no longer busy.
    changed: Condvar,
    /// Locked shared by each operation on the files of a stream that is not open; closing waits for all operations.
    gate: RwLock<()>,
    /// Locked alone, or before the state.
    catalog: Mutex<Catalog>,
    /// Held while a stream is configured.
    configuring: Mutex<()>,
    /// Set while a job opens streams for retention.
    opens_due: AtomicBool,
    /// Set while a job compacts streams.
    compacts: AtomicBool,
}

struct State {
    slots: BTreeMap<Arc<str>, StreamSlot>,
    /// None: the streams are closed.
    lock: Option<Lock>,
    /// Reason why all appends and creations are rejected.
    failure: Option<Arc<str>>,
    /// Deletion count.
    removed: u64,
    /// Creation time of the youngest stream, deleted streams included.
    created_last: u64,
}

const LOCK: &str = "lock";
const STREAMS: &str = "streams";

/// Maximum threads that close streams, and the stream count that justifies one more.
const CLOSERS: usize = 8;
const CLOSE_EACH: usize = 64;

impl Streams {
    /// Opens a directory, creates it if it is missing, and starts the writers. Each stream is opened by its first use.
    ///
    /// A stream that was open when a process crashed is recovered: here, or in the background if there are many
    /// streams. An incomplete last write is cut off; other damage stays in its file and is skipped by reads. Both are
    /// reported as [`Loss`]; neither was acknowledged, unless the disk or another program has changed the file. A
    /// stream that cannot be opened is [damaged](StreamError::Damaged); the other streams remain usable.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: another process has locked the directory, or the operating system failed.
    pub fn open(directory: &Path, config: StreamsConfig) -> Result<(Self, Vec<Loss>), OpenError> {
        let (streams, losses) = Self::open_on(Arc::new(RealDisk), directory, config, system_clock())?;
        let pool = &streams.inner.pool;
        pool.start().map_err(|error| OpenError::Io(directory.to_owned(), error))?;
        Ok((streams, losses))
    }

    /// As [`open`](Self::open), on the given disk and clock, and without threads.
    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        directory: &Path,
        config: StreamsConfig,
        clock: Clock,
    ) -> Result<(Self, Vec<Loss>), OpenError> {
        let failed = |error| OpenError::Io(directory.to_owned(), error);
        make_dir(&*disk, directory).map_err(failed)?;
        let lock = disk.lock(&directory.join(LOCK)).map_err(failed)?;
        let lock = lock.ok_or_else(|| OpenError::Locked(directory.to_owned()))?;
        let dir = directory.join(STREAMS);
        disk.create_dir(&dir).map_err(failed)?;
        // After a failed or killed process, existing entries may be visible without being durable.
        disk.sync_dir(directory).and_then(|()| disk.sync_dir(&dir)).map_err(failed)?;
        let names = disk.list(&dir).map_err(failed)?;
        let file_cache = DescriptorCache::new(disk);
        let disk: Arc<dyn Disk> = file_cache.clone();
        let pool = Arc::new(WriterPool::new(disk.clone(), config, clock));
        let (mut catalog, list) = Catalog::open(disk, directory);
        let mut removed = Vec::new();
        let names = names.into_iter().filter(|name| {
            // An unfinished creation was not acknowledged.
            let is_removed = name.starts_with(name::REMOVED) || name.starts_with(name::CREATED);
            if is_removed {
                removed.push(dir.join(name));
            }
            !is_removed
        });
        let (slots, is_new) = slots_for_directories(&pool, &dir, names, list);
        if is_new {
            let metadata = slots.iter().map(|(name, slot)| (&**name, &slot.metadata));
            catalog.replace(metadata).map_err(failed)?;
        }
        let times = removed.iter().filter_map(|path| name::created(path));
        let created_last = slots.values().map(|slot| slot.metadata.created).chain(times).max().unwrap_or(0);
        let state = State { slots, lock: Some(lock), failure: None, removed: 0, created_last };
        let inner = Arc::new(Inner {
            dir,
            openers: Openers::new(&pool, OPENERS_MAX),
            removers: Openers::new(&pool, REMOVERS_MAX),
            pool,
            file_cache,
            state: Mutex::new(state),
            checking: Mutex::default(),
            changed: Condvar::new(),
            gate: RwLock::default(),
            catalog: Mutex::new(catalog),
            configuring: Mutex::default(),
            opens_due: AtomicBool::new(false),
            compacts: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&inner);
        inner.pool.set_directory_check(move || {
            if let Some(inner) = weak.upgrade() {
                inner.check_lock();
            }
        });
        inner.pool.add(StreamMaintenance::new(&inner));
        removed.into_iter().for_each(|path| inner.remove_later(path));
        let losses = inner.verify_all();
        Ok((Self { inner: Arc::new(StreamsOwner(inner)) }, losses))
    }

    /// The stream with this name, opened if need be. None if it is missing or cannot be opened. Waits for the disk: an
    /// event loop uses [`lookup`](Self::lookup) and [`opening`](Self::opening).
    pub fn stream(&self, name: &str) -> Option<Stream> {
        self.find(name).ok().flatten()
    }

    /// As [`stream`](Self::stream), with the reason if the stream cannot be opened.
    ///
    /// # Errors
    ///
    /// [`StreamError`]
    pub fn find(&self, name: &str) -> Result<Option<Stream>, StreamError> {
        Ok(self.inner.find(name, None)?.stream)
    }

    /// Looks up a stream without opening it. Never blocks.
    pub fn lookup(&self, name: &str) -> Lookup {
        let now = (self.inner.pool.clock)();
        match self.inner.state().slots.get(name) {
            None => Lookup::Missing,
            Some(slot) => match &slot.state {
                SlotState::Open(stream) => Lookup::Open(stream.clone()),
                SlotState::Damaged(reason, _) if !slot.may_open(now) => Lookup::Damaged(reason.clone()),
                _ => Lookup::Closed,
            },
        }
    }

    /// Opens a stream in the background. The future resolves when the stream is open; to none if it does not exist.
    #[must_use]
    pub fn opening(&self, name: &str) -> OpenFuture {
        OpenFuture::new(self.inner.clone(), name, None)
    }

    /// Opens a stream in the background, or creates it if it is missing. Name and configuration are as for
    /// [`create`](Self::create), but an existing stream is not reconfigured.
    #[must_use]
    pub fn creating(&self, name: &str, config: &StreamConfig) -> OpenFuture {
        OpenFuture::new(self.inner.clone(), name, Some(config.clone()))
    }

    /// Creates a stream, or reconfigures an existing one. Waits for the disk.
    ///
    /// A name is any text without control characters, as for topics. It is encoded as a directory name with at most 240
    /// bytes that cannot escape the parent directory.
    ///
    /// # Errors
    ///
    /// [`CreateError`]
    pub fn create(&self, name: &str, config: &StreamConfig) -> Result<Stream, CreateError> {
        let inner = &*self.inner;
        if inner.state().lock.is_none() {
            return Err(CreateError::Closed);
        }
        if let Some(reason) = inner.check_lock() {
            return Err(CreateError::Io(io::Error::other(&*reason)));
        }
        let path = inner.path(name).ok_or(CreateError::Name)?;
        let found = inner.find(name, Some(config))?;
        let stream = found.stream.ok_or(CreateError::Closed)?;
        if found.is_created {
            return Ok(stream);
        }
        let _configuring = inner.configuring.lock().unwrap_or_else(PoisonError::into_inner);
        let has = stream.partitions();
        if !(has.max(1)..=StreamConfig::PARTITIONS_MAX).contains(&config.partitions) {
            return Err(CreateError::Partitions { has });
        }
        let _gate = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        if inner.state().lock.is_none() {
            return Err(CreateError::Closed);
        }
        let config = config.clone().with_automatic(stream.automatic());
        stream.configure(&path, &inner.pool, &config).map_err(CreateError::Io)?;
        let content = meta::encode(&config, stream.created());
        disk::replace(&*inner.pool.disk, &path, meta::NAME, &content).map_err(CreateError::Io)?;
        let metadata = inner.state().slots.get_mut(name).map(|slot| {
            slot.metadata.config = config;
            slot.metadata_unless_open()
        });
        if let Some(metadata) = metadata {
            inner.catalog().put(name, &metadata);
        }
        Ok(stream)
    }

    /// Reason why appends, commits and creations are rejected until the directory is opened again, if so: the directory
    /// was removed or replaced while it was open, so its lock no longer excludes other processes. The writers check for
    /// that every second, and every 100 ms while they write. Records that were readable before remain readable.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.inner.state().failure.clone()
    }

    /// All streams, by name. Opens each stream that can be opened, and waits for the disk: see
    /// [`describe_all`](Self::describe_all) for their metadata alone.
    pub fn list(&self) -> Vec<Stream> {
        let names: Vec<Arc<str>> = self.inner.state().slots.keys().cloned().collect();
        names.iter().filter_map(|name| self.stream(name)).collect()
    }

    /// The open streams, by name.
    pub fn list_open(&self) -> Vec<Stream> {
        let state = self.inner.state();
        let open = state.slots.values().filter_map(|slot| match &slot.state {
            SlotState::Open(stream) => Some(stream.clone()),
            _ => None,
        });
        open.collect()
    }

    /// The damaged streams, by name, each with the reason.
    pub fn list_damaged(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let state = self.inner.state();
        let damaged = state.slots.iter().filter_map(|(name, slot)| match &slot.state {
            SlotState::Damaged(reason, _) => Some((name.clone(), reason.clone())),
            _ => None,
        });
        damaged.collect()
    }

    /// A stream's metadata. Does not open it.
    pub fn describe(&self, name: &str) -> Option<StreamInfo> {
        // An open stream's offsets are read without the lock of all streams.
        let (info, open) = {
            let state = self.inner.state();
            let (name, slot) = state.slots.get_key_value(name)?;
            let SlotState::Open(stream) = &slot.state else { return Some(slot.closed_info(name)) };
            (slot.times(), stream.clone())
        };
        Some(info.info(&open))
    }

    /// Metadata of all streams, by name. Opens none.
    pub fn describe_all(&self) -> Vec<StreamInfo> {
        self.describe_first(usize::MAX)
    }

    /// Metadata of the first `count` streams, by name.
    pub fn describe_first(&self, count: usize) -> Vec<StreamInfo> {
        let names = self.names(Bound::Unbounded, count);
        names.iter().filter_map(|name| self.describe(name)).collect()
    }

    /// Names of at most `count` streams from the bound `start` on, in order.
    pub fn names(&self, start: Bound<&str>, count: usize) -> Vec<Arc<str>> {
        let state = self.inner.state();
        let names = state.slots.range::<str, _>((start, Bound::Unbounded));
        names.take(count).map(|(name, _)| name.clone()).collect()
    }

    /// Stream count.
    pub fn count(&self) -> usize {
        self.inner.state().slots.len()
    }

    /// Passes the log's writes to an executor, such as an event loop that appends to files. The threads continue all
    /// other work, and take over again with [`close`](Self::close). Before the process ends, the executor must have
    /// dropped all its tasks and finished all its writes.
    pub fn set_write_executor(&self, executor: Arc<dyn WriteExecutor>) {
        self.inner.pool.set_executor(Some(executor));
    }

    /// Whether one more stream may be created within [`StreamsConfig::with_max_streams`].
    pub fn has_room(&self) -> bool {
        self.count() < self.inner.pool.limits.max_streams
    }

    /// Does one step of a writer's work on this thread: for a program without writer threads
    /// ([`StreamsConfig::with_writers`] of 0) that calls this in its own loop. Returns false if no work is pending. Waits
    /// for the disk.
    pub fn work(&self) -> bool {
        self.inner.pool.work()
    }

    /// Writes and syncs pending records, regardless of the stream's [`Fsync`](crate::Fsync), and unlocks the directory.
    /// Further appends fail; open streams can still be read. Waits for the disk.
    pub fn close(&self) {
        self.inner.close();
    }

    #[cfg(test)]
    pub(crate) fn open_files(&self) -> usize {
        self.inner.file_cache.count()
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &WriterPool {
        &self.inner.pool
    }

    #[cfg(test)]
    pub(crate) fn tick(&self) {
        self.inner.pool.tick();
    }
}

impl Inner {
    fn close(&self) {
        let mut state = self.state();
        let Some(lock) = state.lock.take() else { return };
        let waiting: Vec<_> =
            state.slots.values_mut().flat_map(|slot| std::mem::take(&mut slot.waiting)).collect();
        drop(state);
        self.changed.notify_all();
        waiting.into_iter().for_each(std::task::Waker::wake);
        self.openers.stop();
        self.removers.stop();
        let gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let open: Vec<Stream> = self
            .state()
            .slots
            .values()
            .filter_map(
                |slot| if let SlotState::Open(stream) = &slot.state { Some(stream.clone()) } else { None },
            )
            .collect();
        self.pool.set_executor(None);
        open.iter().for_each(Stream::stop);
        self.pool.stop();
        let each = open.len().div_ceil(CLOSERS).max(CLOSE_EACH);
        thread::scope(|scope| {
            let mut parts = open.chunks(each);
            let first = parts.next();
            for part in parts {
                scope.spawn(move || part.iter().for_each(Stream::close));
            }
            first.into_iter().flatten().for_each(Stream::close);
        });
        if self.state().failure.is_none() {
            self.write_catalog();
        }
        drop(gate);
        let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
    }

    /// Writes the catalog. All streams must be closed.
    fn write_catalog(&self) {
        let mut catalog = self.catalog();
        let state = self.state();
        let metadata: Vec<(&Arc<str>, StreamMetadata)> =
            state.slots.iter().map(|(name, slot)| (name, slot.current_metadata())).collect();
        if let Err(error) = catalog.replace(metadata.iter().map(|(name, metadata)| (&***name, metadata))) {
            tracing::warn!(%error, "the catalog cannot be written; the next start takes longer");
        }
    }

    /// Waits until another slot is no longer busy.
    fn wait(&self, state: MutexGuard<'_, State>) {
        if self.pool.limits.writers > 0 {
            drop(self.changed.wait(state));
        } else {
            drop(state);
            self.pool.work();
        }
    }

    /// Fails all streams for good if the directory is not the one that was opened.
    fn check_lock(&self) -> Option<Arc<str>> {
        let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        if state.failure.is_some() || state.lock.is_none() {
            return state.failure.clone();
        }
        let lock = state.lock.clone()?;
        drop(state);
        // Slow file systems may block here.
        if !lock.is_replaced() {
            return None;
        }
        let mut state = self.state();
        if state.failure.is_some() || state.lock.is_none() {
            return state.failure.clone();
        }
        let dir = self.dir.parent().unwrap_or(&self.dir);
        let reason: Arc<str> = format!(
            "the directory {} was removed or replaced while it was open: its file `{LOCK}` is not the one that this \
             process has locked. Restart the process",
            dir.display()
        )
        .into();
        state.failure = Some(reason.clone());
        let open = state.slots.values().filter_map(|slot| match &slot.state {
            SlotState::Open(stream) => Some(stream.clone()),
            _ => None,
        });
        let streams: Vec<Stream> = open.collect();
        drop(state);
        tracing::error!("{reason}");
        streams.iter().for_each(|stream| stream.fail_permanently(&reason));
        Some(reason)
    }

    /// No code panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

/// Slots for the streams in these directories, from the catalog where listed, and whether the catalog must be
/// rewritten.
fn slots_for_directories(
    pool: &WriterPool,
    dir: &Path,
    directories: impl Iterator<Item = String>,
    mut list: StreamMap,
) -> (BTreeMap<Arc<str>, StreamSlot>, bool) {
    let mut slots = BTreeMap::new();
    let mut is_new = list.is_empty();
    for directory in directories {
        let Some(name) = name::decode(&directory) else { continue };
        let slot = match list.remove_entry(&*name) {
            Some((name, metadata)) => Some((name, StreamSlot::new(metadata, SlotState::Closed))),
            None => {
                is_new = true;
                found(pool, &dir.join(directory)).map(|slot| (name.into(), slot))
            }
        };
        slots.extend(slot);
    }
    for name in list.keys() {
        is_new = true;
        tracing::warn!(stream = %name, "a stream in the catalog has no directory");
    }
    (slots, is_new)
}

/// Slot for a stream that the catalog does not list. None if the directory is not a stream's.
fn found(pool: &WriterPool, dir: &Path) -> Option<StreamSlot> {
    match read_config(&*pool.disk, dir) {
        // Without this file, the process ended during the stream's creation, which was not acknowledged.
        Ok(None) => None,
        Ok(Some((config, created))) => Some(StreamSlot::new(
            StreamMetadata { created, config, ..StreamMetadata::default() },
            SlotState::Closed,
        )),
        // Opening it reports the error.
        Err(_) => Some(StreamSlot::new(StreamMetadata::default(), SlotState::Closed)),
    }
}

/// Creates a directory and its parents, and makes their names durable.
fn make_dir(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let parent = match dir.parent() {
        // The root.
        None => return Ok(()),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    if disk.list(parent).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        make_dir(disk, parent)?;
    }
    disk.create_dir(dir)?;
    match disk.sync_dir(parent) {
        // A directory without read permission was not created by this process.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

/// A stream's configuration and creation time. None if the directory is not a stream's.
fn read_config(disk: &dyn Disk, dir: &Path) -> Result<Option<(StreamConfig, u64)>, OpenError> {
    let path = dir.join(meta::NAME);
    let content = match disk.open(&path) {
        Ok(file) => file.bytes().and_then(|bytes| file.read_shared(0..bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    let content = content.map_err(|error| OpenError::Io(path.clone(), error))?;
    match meta::decode(&content) {
        Some(found) => Ok(Some(found)),
        None => Err(OpenError::Unknown(path, "is damaged, or was written by a newer version".into())),
    }
}
