//! All streams below one directory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{self, Disk, Lock, RealDisk};
use crate::writer::{Clock, Pool, Work, system_clock};
use crate::{
    Carrier, CreateError, DeleteError, Loss, OpenError, Stream, StreamConfig, StreamInfo, StreamsConfig,
    meta, name,
};

/// All streams below one directory, which is locked against other processes. Cheap to clone; with the last clone
/// everything is closed.
#[derive(Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

struct Inner {
    /// Where each stream has a directory.
    dir: PathBuf,
    pool: Arc<Pool>,
    state: Mutex<State>,
    /// Held by whoever creates a stream: that waits for the disk, and who looks for one should not. Closing waits for
    /// that, since the directory is somebody else's afterwards.
    creating: Mutex<()>,
    /// Held while a clone of the lock may exist, so that closing unlocks the directory.
    checking: Mutex<()>,
}

struct State {
    streams: BTreeMap<String, Stream>,
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

impl Streams {
    /// Opens a directory, made if it is not there, and starts the writers.
    ///
    /// What was written last and is not whole is cut off; what is damaged elsewhere stays in its file and is not read.
    /// Both are told as [`Loss`], and neither was acknowledged, unless the disk or somebody else has changed it.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: another process has it open, the system refuses, or something was not written by this version.
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
        let pool = Arc::new(Pool::new(disk.clone(), config, clock));
        let mut streams = BTreeMap::new();
        let mut losses = Vec::new();
        let mut created_last = 0;
        for directory in disk.list(&dir).map_err(failed)? {
            if directory.starts_with(name::REMOVED) {
                pool.push(Arc::new(Removal(pool.clone(), dir.join(directory))));
                continue;
            }
            let Some(name) = name::decode(&directory) else { continue };
            let path = dir.join(&directory);
            // Without this file, the stream was being created when the process ended, and nobody was told of it.
            let Some((config, created)) = read_config(&*disk, &path)? else { continue };
            let (stream, lost) = Stream::open((&name, created), path, &pool, &config)?;
            stream.begin(&pool);
            created_last = created_last.max(created);
            streams.insert(name, stream);
            losses.extend(lost);
        }
        for loss in &losses {
            tracing::warn!("{loss}");
        }
        let state = Mutex::new(State { streams, lock: Some(lock), lost: None, removed: 0, created_last });
        let inner = Arc::new(Inner { dir, pool, state, creating: Mutex::new(()), checking: Mutex::new(()) });
        let weak = Arc::downgrade(&inner);
        inner.pool.guard(move || {
            if let Some(inner) = weak.upgrade() {
                inner.check_lock();
            }
        });
        Ok((Self { inner }, losses))
    }

    /// The stream of this name.
    pub fn stream(&self, name: &str) -> Option<Stream> {
        self.inner.state().streams.get(name).cloned()
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
        let directory = name::encode(name).ok_or(CreateError::Name)?;
        let _creating = inner.creating.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = inner.check_lock() {
            return Err(CreateError::Io(io::Error::other(&*why)));
        }
        let (there, count) = {
            let state = inner.state();
            if state.lock.is_none() {
                return Err(CreateError::Closed);
            }
            (state.streams.get(name).cloned(), state.streams.len())
        };
        let has = there.as_ref().map_or(1, Stream::partitions);
        if !(has.max(1)..=StreamConfig::PARTITIONS_MAX).contains(&config.partitions) {
            return Err(CreateError::Partitions { has });
        }
        if there.is_none() && count >= inner.pool.limits.max_streams {
            return Err(CreateError::TooMany);
        }
        let automatic = there.as_ref().map_or(config.automatic, Stream::automatic);
        let config = &config.clone().automatic(automatic);
        let path = inner.dir.join(directory);
        let disk = &*inner.pool.disk;
        let since = there.as_ref().map_or_else(|| inner.next_created(), Stream::created);
        let created = match &there {
            Some(stream) => stream.configure(&path, &inner.pool, config),
            None => disk
                .create_dir(&path)
                .and_then(|()| disk.sync_dir(&inner.dir))
                .and_then(|()| Stream::create((name, since), path.clone(), &inner.pool, config)),
        };
        let stream = created.map_err(CreateError::Io)?;
        // Only when all its parts are there it is a stream.
        disk::replace(disk, &path, meta::NAME, &meta::encode(config, since)).map_err(CreateError::Io)?;
        if there.is_none() {
            stream.begin(&inner.pool);
        }
        inner.state().streams.insert(name.to_owned(), stream.clone());
        Ok(stream)
    }

    /// Deletes a stream with all its records and the offsets of its groups. Pending appends, and all further appends
    /// and reads through handles of the stream, fail with `Deleted`. A stream that is created again under the name has
    /// a larger [`Stream::created`]. The files are removed in the background. Answers whether the stream existed.
    /// Waits for the disk; after it returns, the deletion survives a crash.
    ///
    /// # Errors
    ///
    /// [`DeleteError`]
    pub fn delete(&self, name: &str) -> Result<bool, DeleteError> {
        let inner = &*self.inner;
        let _creating = inner.creating.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = inner.check_lock() {
            return Err(DeleteError::Io(io::Error::other(&*why)));
        }
        let (found, serial) = {
            let mut state = inner.state();
            if state.lock.is_none() {
                return Err(DeleteError::Closed);
            }
            state.removed += 1;
            (state.streams.get(name).cloned(), state.removed)
        };
        let (Some(stream), Some(directory)) = (found, name::encode(name)) else { return Ok(false) };
        stream.discard();
        stream.leave(&inner.pool);
        inner.pool.settle(|| !stream.is_busy());
        let disk = &*inner.pool.disk;
        let aside = inner.dir.join(format!("{}{}-{serial}", name::REMOVED, stream.created()));
        disk.rename(&inner.dir.join(directory), &aside).map_err(DeleteError::Io)?;
        inner.state().streams.remove(name);
        disk.sync_dir(&inner.dir).map_err(DeleteError::Io)?;
        inner.pool.push(Arc::new(Removal(inner.pool.clone(), aside)));
        Ok(true)
    }

    /// Why nothing is appended, committed or created until the directory is opened again, if so: the directory was
    /// removed or replaced while it was open, so that its lock keeps no process out any more. The writers look for
    /// that every second, and every 100 ms while they write. What was read before can still be read.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.inner.state().lost.clone()
    }

    /// All streams, by name.
    pub fn list(&self) -> Vec<Stream> {
        self.inner.state().streams.values().cloned().collect()
    }

    /// A stream as the list knows it. Does not open it.
    pub fn describe(&self, name: &str) -> Option<StreamInfo> {
        self.inner.state().streams.get(name).map(Stream::info)
    }

    /// All streams as the list knows them, by name. Opens none.
    pub fn describe_all(&self) -> Vec<StreamInfo> {
        self.inner.state().streams.values().map(Stream::info).collect()
    }

    /// How many streams there are.
    pub fn count(&self) -> usize {
        self.inner.state().streams.len()
    }

    /// Has somebody else carry out what the log's threads would write: a loop that appends to files, for instance. The
    /// threads go on doing everything else, and take over again with [`close`](Self::close). Before the process ends,
    /// whoever carries must have given back or finished what it has.
    pub fn carried_by(&self, carrier: Arc<dyn Carrier>) {
        self.inner.pool.set_carrier(Some(carrier));
    }

    /// Whether one more stream may come into being, as far as [`StreamsConfig::max_streams`] goes.
    pub fn has_room(&self) -> bool {
        self.inner.state().streams.len() < self.inner.pool.limits.max_streams
    }

    /// Does one thing that a writer would, here: for a program that has no threads for it
    /// ([`StreamsConfig::writers`] of 0) and calls this in a loop of its own. False: there is nothing to do now. Waits
    /// for the disk.
    pub fn work(&self) -> bool {
        self.inner.pool.work()
    }

    /// Writes and syncs what waits, whatever the stream's rule is, and unlocks the directory. Appends fail from now on;
    /// reading still works. Waits for the disk.
    pub fn close(&self) {
        self.inner.close();
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
        let _creating = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let Some(lock) = state.lock.take() else { return };
        let streams: Vec<Stream> = state.streams.values().cloned().collect();
        drop(state);
        self.pool.set_carrier(None);
        streams.iter().for_each(Stream::stop);
        self.pool.stop();
        streams.iter().for_each(Stream::close);
        let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
    }

    /// Now, or later than every stream so far: a clock that goes back does not repeat it.
    fn next_created(&self) -> u64 {
        let mut state = self.state();
        state.created_last = (self.pool.clock)().max(state.created_last + 1);
        state.created_last
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
        let streams: Vec<Stream> = state.streams.values().cloned().collect();
        drop(state);
        tracing::error!("{why}");
        streams.iter().for_each(|stream| stream.fail_for_good(&why));
        Some(why)
    }

    /// Nothing here panics while it is held.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

/// Removes the directory of a deleted stream. What cannot be removed is removed when the log is opened again.
struct Removal(Arc<Pool>, PathBuf);

impl Work for Removal {
    fn work(self: Arc<Self>) -> bool {
        // A process that stops hands the directory over without delay.
        if !self.0.is_stopped()
            && let Err(error) = disk::remove_tree(&*self.0.disk, &self.1)
        {
            tracing::warn!(path = %self.1.display(), %error, "files of a deleted stream could not be removed");
        }
        false
    }

    fn tick(&self, _: u64) -> bool {
        false
    }

    fn rest(&self) {}
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
