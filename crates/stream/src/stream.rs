//! A stream with its partitions and groups.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::catalog::{Clean, Committed, Known};
use crate::groups::Groups;
use crate::partition::Origin;
use crate::writer::{Pool, Work};
use crate::{
    CommitError, Fsync, GroupInfo, Loss, OpenError, Partition, PartitionInfo, Pending, StreamConfig,
    StreamInfo, StreamState, carry,
};

/// Time in microseconds after which a stream without handles is closed.
const IDLE: u64 = 60_000_000;

/// Handle of a stream. Cheap to clone; usable as long as its [`Streams`](crate::Streams).
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

/// Result of opening a stream.
pub(crate) struct Opened {
    pub(crate) stream: Stream,
    pub(crate) losses: Vec<Loss>,
    /// Whether the files are as the last close left them.
    pub(crate) is_clean: bool,
}

struct Inner {
    name: Arc<str>,
    created: u64,
    automatic: bool,
    /// Time of opening, in microseconds since 1970.
    opened: u64,
    /// Whether this process has created the stream.
    is_new: bool,
    partitions: RwLock<Vec<Partition>>,
    /// Next partition for records without a key.
    turn: AtomicU32,
    groups: Arc<Groups>,
}

impl Stream {
    /// Opens the files of an existing stream. A missing partition is created anew and reported as a loss. `clean` is
    /// the state of the last clean close, if there was one.
    pub(crate) fn open(
        name: (&str, u64),
        dir: PathBuf,
        pool: &Arc<Pool>,
        config: &StreamConfig,
        clean: Option<&Clean>,
    ) -> Result<Opened, OpenError> {
        Self::open_or_create(name, dir, pool, config, (clean, false))
    }

    /// Opens a stream that this process has just created.
    pub(crate) fn open_new(
        name: (&str, u64),
        dir: PathBuf,
        pool: &Arc<Pool>,
        config: &StreamConfig,
        clean: &Clean,
    ) -> io::Result<Self> {
        let opened = Self::open_or_create(name, dir, pool, config, (Some(clean), true)).map_err(into_io)?;
        Ok(opened.stream)
    }

    fn open_or_create(
        (name, created): (&str, u64),
        dir: PathBuf,
        pool: &Arc<Pool>,
        config: &StreamConfig,
        (clean, is_new): (Option<&Clean>, bool),
    ) -> Result<Opened, OpenError> {
        let name: Arc<str> = name.into();
        let groups_bytes = clean.map(|clean| clean.groups_bytes);
        let groups = Groups::open(name.clone(), dir.clone(), pool, config, groups_bytes)?;
        let automatic = config.automatic;
        let inner = Inner {
            name,
            created,
            automatic,
            opened: (pool.clock)(),
            is_new,
            partitions: RwLock::default(),
            turn: AtomicU32::new(0),
            groups: groups.groups,
        };
        let stream = Self { inner: Arc::new(inner) };
        let tails = clean.map_or(&[][..], |clean| &clean.tails);
        let origin = |number: u32| match tails.get(number as usize) {
            Some(Some(tail)) if is_new => Origin::New(tail),
            Some(Some(tail)) => Origin::Closed(tail),
            _ => Origin::Unknown,
        };
        let (mut losses, mut is_clean) = (groups.losses, groups.is_clean);
        let added = stream.add_partitions(&dir, pool, config, origin)?;
        losses.extend(added.0);
        is_clean &= added.1;
        Ok(Opened { stream, losses, is_clean })
    }

    /// Applies a new configuration.
    pub(crate) fn configure(&self, dir: &Path, pool: &Arc<Pool>, config: &StreamConfig) -> io::Result<Self> {
        let before = self.partitions();
        self.add_partitions(dir, pool, config, |_| Origin::Unknown).map_err(into_io)?;
        self.join(pool, before);
        self.inner.groups.set_config(config);
        self.all().iter().for_each(|partition| partition.set_config(config));
        Ok(self.clone())
    }

    /// Registers the stream with the pool's clock, which then holds a handle: only for a stream whose creation is
    /// complete.
    pub(crate) fn begin(&self, pool: &Pool) {
        pool.add(self.inner.groups.clone());
        self.join(pool, 0);
    }

    /// Registers the partitions from this number on with the clock.
    fn join(&self, pool: &Pool, from: u32) {
        self.all().iter().skip(from as usize).for_each(|partition| pool.add(partition.work()));
    }

    /// Opens further partitions. Returns whether all were found as their origin says.
    fn add_partitions<'a>(
        &self,
        dir: &Path,
        pool: &Arc<Pool>,
        config: &StreamConfig,
        origin: impl Fn(u32) -> Origin<'a>,
    ) -> Result<(Vec<Loss>, bool), OpenError> {
        let (mut losses, mut is_clean) = (Vec::new(), true);
        let mut added = Vec::new();
        for number in self.partitions()..config.partitions {
            let path = dir.join(number.to_string());
            let mut origin = origin(number);
            let is_unknown = matches!(origin, Origin::Unknown);
            if is_unknown || !pool.disk.is_dir(&path) {
                let made = pool.disk.create_dir(&path).and_then(|()| pool.disk.sync_dir(dir));
                made.map_err(|error| OpenError::Io(path.clone(), error))?;
                origin = Origin::Unknown;
            }
            let name = self.inner.name.clone();
            let opened = Partition::open((name, number), path, pool, config, origin)?;
            added.push(opened.partition);
            losses.extend(opened.losses);
            is_clean &= is_unknown || opened.is_clean;
        }
        self.inner.partitions.write().unwrap_or_else(PoisonError::into_inner).extend(added);
        if let Fsync::Interval(interval) = config.fsync {
            pool.tick_within(interval / 2);
        }
        Ok((losses, is_clean))
    }

    /// Name of the stream.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Time of creation, in microseconds since 1970. Distinguishes the stream from an earlier stream of the same name.
    /// 0 if its directory does not record it.
    pub fn created(&self) -> u64 {
        self.inner.created
    }

    /// Whether the stream was created since the log was opened.
    pub fn is_new(&self) -> bool {
        self.inner.is_new
    }

    pub(crate) fn automatic(&self) -> bool {
        self.inner.automatic
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        // At most `StreamConfig::PARTITIONS_MAX`.
        self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner).len() as u32
    }

    /// The partition of this number, counted from 0.
    pub fn partition(&self, partition: u32) -> Option<Partition> {
        let partitions = self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner);
        partitions.get(partition as usize).cloned()
    }

    fn all(&self) -> Vec<Partition> {
        self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Partition for records of this key, the same on every machine while the number of partitions is unchanged: the
    /// upper 32 bits of the key's CRC-32C times the number of partitions. Records without a key are distributed
    /// round-robin.
    pub fn pick(&self, key: &[u8]) -> u32 {
        let partitions = self.partitions();
        if key.is_empty() {
            return self.inner.turn.fetch_add(1, Ordering::Relaxed) % partitions.max(1);
        }
        // Less than the number of partitions.
        ((u64::from(crc32c::crc32c(key)) * u64::from(partitions)) >> 32) as u32
    }

    /// Names of the groups with committed offsets, sorted.
    pub fn groups(&self) -> Vec<String> {
        self.inner.groups.names()
    }

    /// Commits a group's offset: the next record that the group wants. Never blocks. Of several pending commits for the
    /// same partition, the last one counts. As durable as the stream's batches under [`Fsync::Batch`], and otherwise
    /// written.
    ///
    /// # Errors
    ///
    /// [`CommitError`]; then nothing is stored.
    pub fn commit(&self, group: &str, partition: u32, offset: u64) -> Result<Pending, CommitError> {
        if partition >= self.partitions() {
            return Err(CommitError::Partition);
        }
        self.inner.groups.commit(group, partition, offset)
    }

    /// Committed offset of a group, once stored.
    pub fn committed(&self, group: &str, partition: u32) -> Option<u64> {
        self.inner.groups.committed(group, partition)
    }

    /// Whether a commit of this group may be missing: both copies of the file of offsets were damaged, and the group
    /// has committed nothing in this partition since. [`committed`](Self::committed) then returns an earlier offset or
    /// none. True for 30 days after the damage was found.
    pub fn is_doubtful(&self, group: &str, partition: u32) -> bool {
        self.inner.groups.is_doubtful(group, partition)
    }

    /// Removes the committed offsets of a group. None if it has no offsets.
    ///
    /// # Errors
    ///
    /// [`CommitError`]; then nothing is removed.
    pub fn forget(&self, group: &str) -> Result<Option<Pending>, CommitError> {
        self.inner.groups.forget(group)
    }

    /// Sizes and times of last use.
    pub(crate) fn info(&self) -> StreamInfo {
        let all = self.all();
        let used = all.iter().map(Partition::last_used);
        let (last_append, last_read) =
            used.fold((None, None), |most, one| (most.0.max(one.0), most.1.max(one.1)));
        StreamInfo {
            name: self.inner.name.clone(),
            created: self.inner.created,
            automatic: self.inner.automatic,
            last_append,
            last_read,
            state: StreamState::Open,
            partitions: all.iter().map(|partition| PartitionInfo::from(&partition.extent())).collect(),
            groups: self.stored().iter().map(GroupInfo::from).collect(),
        }
    }

    /// The groups with their offsets.
    fn stored(&self) -> Vec<Committed> {
        let offsets = |group: &str| {
            let offsets = (0..self.partitions()).map(|number| (number, self.committed(group, number)));
            offsets.filter_map(|(number, offset)| Some((number, offset?))).collect()
        };
        self.groups().into_iter().map(|group| (group.as_str().into(), offsets(&group))).collect()
    }

    /// Records the stream's metadata for the time that it is closed. The stream must be closed.
    pub(crate) fn note(&self, known: &mut Known) {
        let info = self.info();
        known.last_append = info.last_append.max(known.last_append);
        known.last_read = info.last_read.max(known.last_read);
        let extents = self.all().iter().map(Partition::extent).collect();
        // Damage is reported at each opening of the log.
        let is_right = !self.has_failed() && self.all().iter().all(Partition::is_right);
        known.extents = is_right.then_some(extents);
        known.clean = if is_right { self.clean() } else { None };
        known.groups = self.stored();
    }

    fn clean(&self) -> Option<Clean> {
        let tails = self.all().iter().map(Partition::tail).collect();
        Some(Clean { groups_bytes: self.inner.groups.clean_bytes()?, tails })
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.all().iter().any(|partition| partition.failure().is_some())
    }

    /// Whether only the list has a handle of the stream, and it was not used for [`IDLE`].
    pub(crate) fn is_unused(&self, now: u64) -> bool {
        // The list's own handle.
        Arc::strong_count(&self.inner) == 1
            && now.saturating_sub(self.inner.opened) > IDLE
            && !self.inner.groups.is_busy()
            && self.all().iter().all(|partition| partition.is_unused(now, IDLE))
    }

    /// Rejects all further operations and wakes all waiters. Operations in flight continue.
    pub(crate) fn discard(&self) {
        self.inner.groups.stop();
        self.all().iter().for_each(Partition::discard);
    }

    /// Rejects appends and commits for good. Records remain readable.
    pub(crate) fn fail_for_good(&self, why: &Arc<str>) {
        self.inner.groups.fail_for_good(why);
        self.all().iter().for_each(|partition| partition.fail_for_good(why));
    }

    /// Whether an operation on the stream's files is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.inner.groups.is_busy() || self.all().iter().any(Partition::is_busy)
    }

    /// Removes the stream from the pool's clock.
    pub(crate) fn leave(&self, pool: &Pool) {
        let mut members: Vec<Arc<dyn Work>> = self.all().iter().map(Partition::work).collect();
        members.push(self.inner.groups.clone());
        pool.remove(&members);
    }

    pub(crate) fn stop(&self) {
        self.inner.groups.stop();
        self.all().iter().for_each(Partition::stop);
        if !carry::is_telling() {
            self.all().iter().for_each(Partition::wait_for_carrier);
        }
    }

    pub(crate) fn close(&self) {
        self.inner.groups.close();
        self.all().iter().for_each(Partition::close);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("name", &self.inner.name).field("partitions", &self.all()).finish()
    }
}

fn into_io(error: OpenError) -> io::Error {
    match error {
        OpenError::Io(_, error) => error,
        other => io::Error::other(other),
    }
}
