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
mod openers;
mod opening;
mod repair;
mod slot;
mod survey;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use self::openers::Openers;
pub use self::opening::Opening;
pub use self::repair::Check;
use self::slot::{Life, Slot};
use self::survey::Keeper;
use crate::catalog::{Catalog, Known, List};
use crate::disk::{self, Disk, Handles, Lock, RealDisk};
use crate::writer::{Clock, Pool, system_clock};
use crate::{
    Carrier, CreateError, Lookup, Loss, OpenError, Stream, StreamConfig, StreamError, StreamInfo,
    StreamsConfig, meta, name,
};

/// All streams below one directory, which is locked against other processes. Cheap to clone; with the last clone
/// everything is closed.
#[derive(Clone)]
pub struct Streams {
    inner: Arc<Owner>,
}

/// What the clones share. Threads of the pool hold an [`Inner`] for moments only, and none of them closes it: after the
/// last clone is dropped the directory is unlocked.
struct Owner(Arc<Inner>);

impl Deref for Owner {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Inner {
    /// Where each stream has a directory.
    dir: PathBuf,
    pool: Arc<Pool>,
    /// The pool's disk.
    handles: Arc<Handles>,
    openers: Arc<Openers>,
    state: Mutex<State>,
    /// Held while a clone of the lock may exist, so that closing unlocks the directory.
    checking: Mutex<()>,
    /// A slot is no longer busy.
    changed: Condvar,
    /// Shared by each operation on the files of a stream that is not open; closing waits for all of them.
    gate: RwLock<()>,
    /// Locked alone, or before the state.
    catalog: Mutex<Catalog>,
    /// Held while a stream is configured.
    configuring: Mutex<()>,
    /// A job opens streams for retention.
    opens_due: AtomicBool,
}

struct State {
    slots: BTreeMap<Arc<str>, Slot>,
    /// None: closed.
    lock: Option<Lock>,
    /// Why nothing is appended or created any more.
    lost: Option<Arc<str>>,
    /// Deletions so far.
    removed: u64,
    /// When the youngest stream was created, deleted ones included.
    created_last: u64,
}

const LOCK: &str = "lock";
const STREAMS: &str = "streams";

/// Threads that close streams, and streams that are worth one.
const CLOSERS: usize = 8;
const CLOSE_EACH: usize = 64;

impl Streams {
    /// Opens a directory, made if it is not there, and starts the writers. Streams are opened by their first use.
    ///
    /// A stream that was in use when a process crashed is recovered: here, or in the background if there are many
    /// streams. What was written last and is not whole is cut off; what is damaged elsewhere stays in its file and is
    /// not read. Both are told as [`Loss`], and neither was acknowledged, unless the disk or somebody else has changed
    /// it. A stream that cannot be opened is [damaged](StreamError::Damaged), and the others go on.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: another process has it open, or the system refuses.
    pub fn open(directory: &Path, config: StreamsConfig) -> Result<(Self, Vec<Loss>), OpenError> {
        let (streams, losses) = Self::open_on(Arc::new(RealDisk), directory, config, system_clock())?;
        let pool = &streams.inner.pool;
        pool.start().map_err(|error| OpenError::Io(directory.to_owned(), error))?;
        Ok((streams, losses))
    }

    /// The same on a disk and with a clock of one's own, and without threads.
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
        // What is there may be seen without being durable, after a process that failed or was killed.
        disk.sync_dir(directory).and_then(|()| disk.sync_dir(&dir)).map_err(failed)?;
        let names = disk.list(&dir).map_err(failed)?;
        let handles = Handles::new(disk);
        let disk: Arc<dyn Disk> = handles.clone();
        let pool = Arc::new(Pool::new(disk.clone(), config, clock));
        let (mut catalog, list) = Catalog::open(disk, directory);
        let mut removed = Vec::new();
        let names = names.into_iter().filter(|name| {
            // A creation that has not ended was not answered.
            let is_removed = name.starts_with(name::REMOVED) || name.starts_with(name::CREATED);
            if is_removed {
                removed.push(dir.join(name));
            }
            !is_removed
        });
        let (slots, is_new) = slots_of(&pool, &dir, names, list);
        if is_new {
            let known = slots.iter().map(|(name, slot)| (&**name, &slot.known));
            catalog.replace(known).map_err(failed)?;
        }
        let times = removed.iter().filter_map(|path| name::created(path));
        let created_last = slots.values().map(|slot| slot.known.created).chain(times).max().unwrap_or(0);
        let state = State { slots, lock: Some(lock), lost: None, removed: 0, created_last };
        let inner = Arc::new(Inner {
            dir,
            openers: Openers::new(&pool),
            pool,
            handles,
            state: Mutex::new(state),
            checking: Mutex::default(),
            changed: Condvar::new(),
            gate: RwLock::default(),
            catalog: Mutex::new(catalog),
            configuring: Mutex::default(),
            opens_due: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&inner);
        inner.pool.guard(move || {
            if let Some(inner) = weak.upgrade() {
                inner.check_lock();
            }
        });
        inner.pool.add(Keeper::new(&inner));
        removed.into_iter().for_each(|path| inner.remove_later(path));
        let losses = inner.survey();
        Ok((Self { inner: Arc::new(Owner(inner)) }, losses))
    }

    /// The stream of this name, opened if need be; none, if it is missing or cannot be opened. Waits for the disk: an
    /// event loop takes [`lookup`](Self::lookup) and [`opening`](Self::opening).
    pub fn stream(&self, name: &str) -> Option<Stream> {
        self.find(name).ok().flatten()
    }

    /// The same, with the reason why it cannot be opened.
    ///
    /// # Errors
    ///
    /// [`StreamError`]
    pub fn find(&self, name: &str) -> Result<Option<Stream>, StreamError> {
        Ok(self.inner.find(name, None)?.stream)
    }

    /// Whether the stream of this name can be used at once. Never blocks.
    pub fn lookup(&self, name: &str) -> Lookup {
        let now = (self.inner.pool.clock)();
        match self.inner.state().slots.get(name) {
            None => Lookup::Missing,
            Some(slot) => match &slot.life {
                Life::Open(stream) => Lookup::Open(stream.clone()),
                Life::Damaged(why, _) if !slot.may_open(now) => Lookup::Damaged(why.clone()),
                _ => Lookup::Closed,
            },
        }
    }

    /// Opens a stream in the background. The future is done when that is done; it has none if there is no such stream.
    #[must_use]
    pub fn opening(&self, name: &str) -> Opening {
        Opening::new(self.inner.clone(), name, None)
    }

    /// Opens a stream in the background, or creates it if it is missing: a name and a configuration are as for
    /// [`create`](Self::create), but one that is there is not configured.
    #[must_use]
    pub fn creating(&self, name: &str, config: &StreamConfig) -> Opening {
        Opening::new(self.inner.clone(), name, Some(config.clone()))
    }

    /// Creates a stream, or changes how the one that is there is kept. Waits for the disk.
    ///
    /// A name is any text without control characters, as for topics; its directory is named so that it leads nowhere
    /// else, and 240 bytes at most.
    ///
    /// # Errors
    ///
    /// [`CreateError`]
    pub fn create(&self, name: &str, config: &StreamConfig) -> Result<Stream, CreateError> {
        let inner = &*self.inner;
        if inner.state().lock.is_none() {
            return Err(CreateError::Closed);
        }
        if let Some(why) = inner.check_lock() {
            return Err(CreateError::Io(io::Error::other(&*why)));
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
        let config = config.clone().automatic(stream.automatic());
        stream.configure(&path, &inner.pool, &config).map_err(CreateError::Io)?;
        let content = meta::encode(&config, stream.created());
        disk::replace(&*inner.pool.disk, &path, meta::NAME, &content).map_err(CreateError::Io)?;
        let known = inner.state().slots.get_mut(name).map(|slot| {
            slot.known.config = config;
            slot.known_unless_open()
        });
        if let Some(known) = known {
            inner.catalog().put(name, &known);
        }
        Ok(stream)
    }

    /// Why nothing is appended, committed or created until the directory is opened again, if so: the directory was
    /// removed or replaced while it was open, so that its lock keeps no process out any more. The writers look for
    /// that every second, and every 100 ms while they write. What was read before can still be read.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.inner.state().lost.clone()
    }

    /// All streams, by name. Opens each that can be, and waits for the disk: see
    /// [`describe_all`](Self::describe_all).
    pub fn list(&self) -> Vec<Stream> {
        let names: Vec<Arc<str>> = self.inner.state().slots.keys().cloned().collect();
        names.iter().filter_map(|name| self.stream(name)).collect()
    }

    /// The streams that are open, by name.
    pub fn list_open(&self) -> Vec<Stream> {
        let state = self.inner.state();
        let open = state.slots.values().filter_map(|slot| match &slot.life {
            Life::Open(stream) => Some(stream.clone()),
            _ => None,
        });
        open.collect()
    }

    /// The streams that cannot be opened, by name, and why.
    pub fn list_damaged(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let state = self.inner.state();
        let damaged = state.slots.iter().filter_map(|(name, slot)| match &slot.life {
            Life::Damaged(why, _) => Some((name.clone(), why.clone())),
            _ => None,
        });
        damaged.collect()
    }

    /// A stream as the list knows it. Does not open it.
    pub fn describe(&self, name: &str) -> Option<StreamInfo> {
        let state = self.inner.state();
        state.slots.get_key_value(name).map(|(name, slot)| slot.info(name))
    }

    /// All streams as the list knows them, by name. Opens none.
    pub fn describe_all(&self) -> Vec<StreamInfo> {
        self.inner.state().slots.iter().map(|(name, slot)| slot.info(name)).collect()
    }

    /// The first of them, so many at most.
    pub fn describe_first(&self, count: usize) -> Vec<StreamInfo> {
        self.inner.state().slots.iter().take(count).map(|(name, slot)| slot.info(name)).collect()
    }

    /// How many streams there are.
    pub fn count(&self) -> usize {
        self.inner.state().slots.len()
    }

    /// Has somebody else carry out what the log's threads would write: a loop that appends to files, for instance. The
    /// threads go on doing everything else, and take over again with [`close`](Self::close). Before the process ends,
    /// whoever carries must have given back or finished what it has.
    pub fn carried_by(&self, carrier: Arc<dyn Carrier>) {
        self.inner.pool.set_carrier(Some(carrier));
    }

    /// Whether one more stream may come into being, as far as [`StreamsConfig::max_streams`] goes.
    pub fn has_room(&self) -> bool {
        self.count() < self.inner.pool.limits.max_streams
    }

    /// Does one thing that a writer would, here: for a program that has no threads for it
    /// ([`StreamsConfig::writers`] of 0) and calls this in a loop of its own. False: there is nothing to do now. Waits
    /// for the disk.
    pub fn work(&self) -> bool {
        self.inner.pool.work()
    }

    /// Writes and syncs what waits, whatever the stream's rule is, and unlocks the directory. Appends fail from now on;
    /// reading streams that are open still works. Waits for the disk.
    pub fn close(&self) {
        self.inner.close();
    }

    #[cfg(test)]
    pub(crate) fn open_files(&self) -> usize {
        self.inner.handles.count()
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> &Pool {
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
        let gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let open: Vec<Stream> = self
            .state()
            .slots
            .values()
            .filter_map(|slot| if let Life::Open(stream) = &slot.life { Some(stream.clone()) } else { None })
            .collect();
        self.pool.set_carrier(None);
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
        if self.state().lost.is_none() {
            self.write_catalog();
        }
        drop(gate);
        let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
    }

    /// The streams are closed.
    fn write_catalog(&self) {
        let mut catalog = self.catalog();
        let state = self.state();
        let known: Vec<(&Arc<str>, Known)> =
            state.slots.iter().map(|(name, slot)| (name, slot.to_known())).collect();
        if let Err(error) = catalog.replace(known.iter().map(|(name, known)| (&***name, known))) {
            tracing::warn!(%error, "the catalog cannot be written, and the next start takes longer");
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

    /// Fails all streams for good if the directory is another one than was opened.
    fn check_lock(&self) -> Option<Arc<str>> {
        let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        if state.lost.is_some() || state.lock.is_none() {
            return state.lost.clone();
        }
        let lock = state.lock.clone()?;
        drop(state);
        // The file system may take its time.
        if !lock.is_replaced() {
            return None;
        }
        let mut state = self.state();
        if state.lost.is_some() || state.lock.is_none() {
            return state.lost.clone();
        }
        let dir = self.dir.parent().unwrap_or(&self.dir);
        let why: Arc<str> = format!(
            "the directory {} was removed or replaced while it was open: its file `{LOCK}` is not the one that this \
             process has locked. Restart the process",
            dir.display()
        )
        .into();
        state.lost = Some(why.clone());
        let open = state.slots.values().filter_map(|slot| match &slot.life {
            Life::Open(stream) => Some(stream.clone()),
            _ => None,
        });
        let streams: Vec<Stream> = open.collect();
        drop(state);
        tracing::error!("{why}");
        streams.iter().for_each(|stream| stream.fail_for_good(&why));
        Some(why)
    }

    /// Nothing here panics while it is held.
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

/// The streams of these directories, as the catalog knows them, and whether it has to be written anew.
fn slots_of(
    pool: &Pool,
    dir: &Path,
    directories: impl Iterator<Item = String>,
    mut list: List,
) -> (BTreeMap<Arc<str>, Slot>, bool) {
    let mut slots = BTreeMap::new();
    let mut is_new = list.is_empty();
    for directory in directories {
        let Some(name) = name::decode(&directory) else { continue };
        let slot = match list.remove_entry(&*name) {
            Some((name, known)) => Some((name, Slot::new(known, Life::Closed))),
            None => {
                is_new = true;
                found(pool, &dir.join(directory)).map(|slot| (name.into(), slot))
            }
        };
        slots.extend(slot);
    }
    for name in list.keys() {
        is_new = true;
        tracing::warn!(stream = %name, "a stream of the catalog has no directory any more");
    }
    (slots, is_new)
}

/// A stream that the catalog does not list; none, if its directory is not that of one.
fn found(pool: &Pool, dir: &Path) -> Option<Slot> {
    match read_config(&*pool.disk, dir) {
        // Without this file, the stream was being created when the process ended, and nobody was told of it.
        Ok(None) => None,
        Ok(Some((config, created))) => {
            Some(Slot::new(Known { created, config, ..Known::default() }, Life::Closed))
        }
        // Opening it tells what is wrong.
        Err(_) => Some(Slot::new(Known::default(), Life::Closed)),
    }
}

/// Makes a directory, with those above it, and makes their names durable.
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
        // A directory that we may not read was not made by us.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

/// How a stream is kept, and since when; none, if its directory is not that of one.
fn read_config(disk: &dyn Disk, dir: &Path) -> Result<Option<(StreamConfig, u64)>, OpenError> {
    let path = dir.join(meta::NAME);
    let content = match disk.open(&path) {
        Ok(file) => file.bytes().and_then(|bytes| file.lend(0..bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    let content = content.map_err(|error| OpenError::Io(path.clone(), error))?;
    match meta::decode(&content) {
        Some(found) => Ok(Some(found)),
        None => Err(OpenError::Unknown(path, "is damaged, or was written by a newer version".into())),
    }
}
