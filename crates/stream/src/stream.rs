//! A stream with its partitions and groups.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::catalog::{CleanClose, StreamMetadata};
use crate::groups::ConsumerGroups;
use crate::partition::PriorState;
use crate::writer::{WorkUnit, WriterPool};
use crate::{
    CommitError, Fsync, GroupInfo, Loss, OpenError, Partition, PartitionInfo, Pending, StreamConfig,
    StreamInfo, StreamState, executor,
};

/// Time in microseconds after which a stream without handles is closed.
const IDLE: u64 = 60_000_000;

/// Handle to a stream. Cheap to clone; usable as long as its [`Streams`](crate::Streams).
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

/// Result of opening a stream.
pub(crate) struct OpenedStream {
    pub(crate) stream: Stream,
    pub(crate) losses: Vec<Loss>,
    /// Whether the files are as the last close left them.
    pub(crate) is_clean: bool,
}

struct Inner {
    name: Arc<str>,
    created: u64,
    automatic: bool,
    /// Opening time, in microseconds since 1970.
    opened: u64,
    /// Whether this process has created the stream.
    is_new: bool,
    partitions: RwLock<Vec<Partition>>,
    /// Next partition for records without a key.
    next_partition: AtomicU32,
    groups: Arc<ConsumerGroups>,
}

impl Stream {
    /// Opens the files of an existing stream. A missing partition is created anew and reported as a loss. `clean` is
    /// the state of the last clean close, if there was one.
    pub(crate) fn open(
        name: &str,
        created: u64,
        dir: PathBuf,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
        clean: Option<&CleanClose>,
    ) -> Result<OpenedStream, OpenError> {
        Self::open_or_create(name, created, dir, pool, config, clean, false)
    }

    /// Opens a stream that this process has just created.
    pub(crate) fn open_new(
        name: &str,
        created: u64,
        dir: PathBuf,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
        clean: &CleanClose,
    ) -> io::Result<Self> {
        let opened = Self::open_or_create(name, created, dir, pool, config, Some(clean), true);
        Ok(opened.map_err(into_io)?.stream)
    }

    fn open_or_create(
        name: &str,
        created: u64,
        dir: PathBuf,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
        clean: Option<&CleanClose>,
        is_new: bool,
    ) -> Result<OpenedStream, OpenError> {
        let name: Arc<str> = name.into();
        let groups_bytes = clean.map(|clean| clean.groups_bytes);
        let groups = ConsumerGroups::open(name.clone(), dir.clone(), pool, config, groups_bytes)?;
        let automatic = config.automatic;
        let inner = Inner {
            name,
            created,
            automatic,
            opened: (pool.clock)(),
            is_new,
            partitions: RwLock::default(),
            next_partition: AtomicU32::new(0),
            groups: groups.groups,
        };
        let stream = Self { inner: Arc::new(inner) };
        let tails = clean.map_or(&[][..], |clean| &clean.tails);
        let prior = |number: u32| match tails.get(number as usize) {
            Some(Some(tail)) if is_new => PriorState::New(tail),
            Some(Some(tail)) => PriorState::Closed(tail),
            _ => PriorState::Unknown,
        };
        let (mut losses, mut is_clean) = (groups.losses, groups.is_clean);
        let added = stream.add_partitions(&dir, pool, config, prior)?;
        losses.extend(added.0);
        is_clean &= added.1;
        Ok(OpenedStream { stream, losses, is_clean })
    }

    /// Applies a new configuration.
    pub(crate) fn configure(
        &self,
        dir: &Path,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
    ) -> io::Result<Self> {
        let before = self.partitions();
        self.add_partitions(dir, pool, config, |_| PriorState::Unknown).map_err(into_io)?;
        self.register_partitions(pool, before);
        self.inner.groups.set_config(config);
        self.all().iter().for_each(|partition| partition.set_config(config));
        Ok(self.clone())
    }

    /// Registers the stream with the pool's clock, which then holds a handle: only for a stream whose creation is
    /// complete.
    pub(crate) fn register(&self, pool: &WriterPool) {
        pool.add(self.inner.groups.clone());
        self.register_partitions(pool, 0);
    }

    /// Registers the partitions from this number on with the clock.
    fn register_partitions(&self, pool: &WriterPool, from: u32) {
        self.all().iter().skip(from as usize).for_each(|partition| pool.add(partition.work()));
    }

    /// Opens further partitions. Returns whether all were found as their origin says.
    fn add_partitions<'a>(
        &self,
        dir: &Path,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
        prior: impl Fn(u32) -> PriorState<'a>,
    ) -> Result<(Vec<Loss>, bool), OpenError> {
        let (mut losses, mut is_clean) = (Vec::new(), true);
        let mut added = Vec::new();
        for number in self.partitions()..config.partitions {
            let path = dir.join(number.to_string());
            let mut prior = prior(number);
            let is_unknown = matches!(prior, PriorState::Unknown);
            if is_unknown || !pool.disk.is_dir(&path) {
                let made = pool.disk.create_dir(&path).and_then(|()| pool.disk.sync_dir(dir));
                made.map_err(|error| OpenError::Io(path.clone(), error))?;
                prior = PriorState::Unknown;
            }
            let name = self.inner.name.clone();
            let opened = Partition::open(name, number, path, pool, config, prior)?;
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

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Creation time, in microseconds since 1970. Distinguishes the stream from an earlier stream with the same name. 0
    /// if its directory does not record it.
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

    /// Partition count.
    pub fn partitions(&self) -> u32 {
        // At most `StreamConfig::PARTITIONS_MAX`.
        self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner).len() as u32
    }

    /// The partition with this number, counted from 0.
    pub fn partition(&self, partition: u32) -> Option<Partition> {
        let partitions = self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner);
        partitions.get(partition as usize).cloned()
    }

    fn all(&self) -> Vec<Partition> {
        self.inner.partitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Partition for records with this key, the same on every machine while the partition count is unchanged: the upper
    /// 32 bits of the key's CRC-32C times the partition count. Records without a key are distributed round-robin.
    pub fn pick(&self, key: &[u8]) -> u32 {
        let partitions = self.partitions();
        if key.is_empty() {
            return self.inner.next_partition.fetch_add(1, Ordering::Relaxed) % partitions.max(1);
        }
        // Less than the partition count.
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

    /// A group's committed offset, once stored.
    pub fn committed(&self, group: &str, partition: u32) -> Option<u64> {
        self.inner.groups.committed(group, partition)
    }

    /// Whether a commit for this group may be missing: both copies of the file of offsets were damaged, and the group
    /// has committed nothing in this partition since. [`committed`](Self::committed) then returns an earlier offset or
    /// none. True for 30 days after the damage was found.
    pub fn is_doubtful(&self, group: &str, partition: u32) -> bool {
        self.inner.groups.is_doubtful(group, partition)
    }

    /// Removes a group's committed offsets. None if it has no offsets.
    ///
    /// # Errors
    ///
    /// [`CommitError`]; then nothing is removed.
    pub fn remove_group(&self, group: &str) -> Result<Option<Pending>, CommitError> {
        self.inner.groups.remove_group(group)
    }

    /// Sizes and times of last use.
    pub(crate) fn info(&self, config: &StreamConfig) -> StreamInfo {
        let all = self.all();
        let used = all.iter().map(Partition::last_used);
        let (last_append, last_read) =
            used.fold((None, None), |most, one| (most.0.max(one.0), most.1.max(one.1)));
        StreamInfo {
            name: self.inner.name.clone(),
            created: self.inner.created,
            automatic: self.inner.automatic,
            config: config.clone(),
            last_append,
            last_read,
            state: StreamState::Open,
            partitions: all.iter().map(|partition| PartitionInfo::from(&partition.extent())).collect(),
            groups: self.group_infos(),
        }
    }

    /// The groups with their committed offsets, by name.
    pub fn group_infos(&self) -> Vec<GroupInfo> {
        self.inner.groups.all().iter().map(|(name, offsets)| GroupInfo::new(name, offsets)).collect()
    }

    /// Records the stream's metadata for the time that it is closed. The stream must be closed.
    pub(crate) fn record_metadata(&self, metadata: &mut StreamMetadata) {
        let info = self.info(&metadata.config);
        metadata.last_append = info.last_append.max(metadata.last_append);
        metadata.last_read = info.last_read.max(metadata.last_read);
        let extents = self.all().iter().map(Partition::extent).collect();
        // Damage is reported at each opening of the log.
        let is_intact = !self.has_failed() && self.all().iter().all(Partition::is_intact);
        metadata.extents = is_intact.then_some(extents);
        metadata.clean = if is_intact { self.clean() } else { None };
        metadata.groups = self.inner.groups.all();
    }

    fn clean(&self) -> Option<CleanClose> {
        let tails = self.all().iter().map(Partition::tail).collect();
        Some(CleanClose { groups_bytes: self.inner.groups.clean_bytes()?, tails })
    }

    /// Reason why a partition rejects appends, or the groups reject commits, after a disk error. None if all partitions
    /// and the groups work. The failure ends when the stream is opened again: with the log, or by the first use after
    /// the stream was closed as idle.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.all().iter().find_map(Partition::failure).or_else(|| self.inner.groups.failure())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.all().iter().any(|partition| partition.failure().is_some())
    }

    /// Whether only the list has a handle of the stream, and it was not used for [`IDLE`].
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        // The list's own handle.
        Arc::strong_count(&self.inner) == 1
            && now.saturating_sub(self.inner.opened) > IDLE
            && !self.inner.groups.is_busy()
            && self.all().iter().all(|partition| partition.is_idle(now, IDLE))
    }

    /// Time of the last append or read since the stream was opened; 0 if there was none.
    pub(crate) fn last_used(&self) -> u64 {
        let used = self.all().into_iter().map(|partition| partition.last_used());
        used.flat_map(|(append, read)| [append, read]).flatten().max().unwrap_or(0)
    }

    /// As [`discard`](Self::discard), in one step with the check that the last append and read are before this time and
    /// that at most `max_waiters` wakers are registered. The caller discards the stream then. Returns whether it must.
    pub(crate) fn discard_unused(&self, limit: u64, max_waiters: u64) -> bool {
        Partition::mark_deleted_if_unused(&self.all(), limit, max_waiters)
    }

    /// Rejects all further operations and wakes all waiters. Operations in flight continue.
    pub(crate) fn discard(&self) {
        self.inner.groups.stop();
        self.all().iter().for_each(Partition::discard);
    }

    /// Rejects appends and commits for good. Records remain readable.
    pub(crate) fn fail_permanently(&self, reason: &Arc<str>) {
        self.inner.groups.fail_permanently(reason);
        self.all().iter().for_each(|partition| partition.fail_permanently(reason));
    }

    /// Whether enough was appended since the last compaction.
    pub(crate) fn compaction_is_due(&self, now: u64) -> bool {
        self.all().iter().any(|partition| partition.compaction_is_due(now))
    }

    /// Compacts the partitions for which that is due. Blocks for the disk; `is_cancelled` ends it early.
    pub(crate) fn compact(&self, now: u64, is_cancelled: &dyn Fn() -> bool) {
        let due = |partition: &&Partition| partition.compaction_is_due(now) && !is_cancelled();
        self.all().iter().filter(due).for_each(|partition| partition.compact(is_cancelled));
    }

    /// Whether an operation on the stream's files is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.inner.groups.is_busy() || self.all().iter().any(Partition::is_busy)
    }

    /// Removes the stream from the pool's clock.
    pub(crate) fn unregister(&self, pool: &WriterPool) {
        let mut members: Vec<Arc<dyn WorkUnit>> = self.all().iter().map(Partition::work).collect();
        members.push(self.inner.groups.clone());
        pool.remove(&members);
    }

    pub(crate) fn stop(&self) {
        self.inner.groups.stop();
        self.all().iter().for_each(Partition::stop);
        if !executor::is_completing() {
            self.all().iter().for_each(Partition::wait_for_executor);
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
