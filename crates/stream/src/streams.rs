//! All streams below one directory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{self, Disk, Lock, RealDisk};
use crate::writer::{Clock, Pool, system_clock};
use crate::{Carrier, CreateError, Loss, OpenError, Stream, StreamConfig, StreamsConfig, meta, name};

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
}

struct State {
    streams: BTreeMap<String, Stream>,
    /// None: closed.
    lock: Option<Lock>,
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
        for directory in disk.list(&dir).map_err(failed)? {
            let Some(name) = name::decode(&directory) else { continue };
            let path = dir.join(&directory);
            // Without this file, the stream was being created when the process ended, and nobody was told of it.
            let Some((config, created)) = read_config(&*disk, &path)? else { continue };
            let (stream, lost) = Stream::open((&name, created), path, &pool, &config)?;
            stream.begin(&pool);
            streams.insert(name, stream);
            losses.extend(lost);
        }
        for loss in &losses {
            tracing::warn!("{loss}");
        }
        let state = Mutex::new(State { streams, lock: Some(lock) });
        Ok((Self { inner: Arc::new(Inner { dir, pool, state, creating: Mutex::new(()) }) }, losses))
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
        let path = inner.dir.join(directory);
        let disk = &*inner.pool.disk;
        let since = there.as_ref().map_or_else(|| (inner.pool.clock)(), Stream::created);
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

    /// All streams, by name.
    pub fn list(&self) -> Vec<Stream> {
        self.inner.state().streams.values().cloned().collect()
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
        drop(lock);
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
