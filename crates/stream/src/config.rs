//! Configuration for a streams directory and for each stream.

use std::time::Duration;

/// When appended records are synced to the disk, which decides which records survive a power loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fsync {
    /// Before they are acknowledged and visible to readers. Records appended during a sync are synced together by the
    /// next sync.
    #[default]
    Batch,
    /// At most this interval after they are written. Records are acknowledged and visible to readers as soon as they
    /// are written: they survive a crash of the process, and a power loss takes at most the last interval.
    Interval(Duration),
    /// When a segment is full, when the log is closed, or when the operating system flushes its page cache.
    Never,
}

/// Configuration for one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    pub(crate) partitions: u32,
    pub(crate) fsync: Fsync,
    pub(crate) segment_bytes: u64,
    pub(crate) retain_bytes: Option<u64>,
    pub(crate) retain_age: Option<Duration>,
    pub(crate) automatic: bool,
    pub(crate) compact: Option<Duration>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            partitions: 1,
            fsync: Fsync::Batch,
            segment_bytes: 256 << 20,
            retain_bytes: None,
            retain_age: None,
            automatic: false,
            compact: None,
        }
    }
}

impl StreamConfig {
    /// Maximum partitions in a stream. Each keeps a file open and takes writer time.
    pub const PARTITIONS_MAX: u32 = 1024;

    /// Number of partitions, 1 by default. Records are ordered within a partition. The number can be raised later; keys
    /// may then map to other partitions.
    #[must_use]
    pub fn with_partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// When records are synced, [`Fsync::Batch`] by default.
    #[must_use]
    pub fn with_fsync(mut self, fsync: Fsync) -> Self {
        self.fsync = fsync;
        self
    }

    /// Bytes in a segment, 256 MiB by default and 64 KiB to 1 GiB. Retention removes whole segments. Opening the log
    /// after a crash reads the last segment: 256 MiB take a quarter of a second at 1 GB/s, and a terabyte has 4,096
    /// files. Without [`Fsync::Batch`], recovery also writes the last segment again.
    #[must_use]
    pub fn with_segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes.clamp(64 << 10, 1 << 30);
        self
    }

    /// The segment size ([`with_segment_bytes`](Self::with_segment_bytes)).
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Removes the oldest segments while the partition keeps at least this many bytes without them. Default: none are
    /// removed.
    #[must_use]
    pub fn with_retain_bytes(mut self, bytes: Option<u64>) -> Self {
        self.retain_bytes = bytes;
        self
    }

    /// Removes a segment when its newest record was appended longer ago than this. Default: none are removed.
    #[must_use]
    pub fn with_retain_age(mut self, age: Option<Duration>) -> Self {
        self.retain_age = age;
        self
    }

    /// The bytes that are retained ([`with_retain_bytes`](Self::with_retain_bytes)).
    #[must_use]
    pub fn retain_bytes(&self) -> Option<u64> {
        self.retain_bytes
    }

    /// The age up to which records are retained ([`with_retain_age`](Self::with_retain_age)).
    #[must_use]
    pub fn retain_age(&self) -> Option<Duration> {
        self.retain_age
    }

    /// A compacted stream's tombstone retention ([`with_compaction`](Self::with_compaction)).
    #[must_use]
    pub fn compaction(&self) -> Option<Duration> {
        self.compact
    }

    /// Whether the stream is created by its first use instead of on request: such a stream may expire. Default: false.
    /// An existing stream keeps the value from its creation.
    #[must_use]
    pub fn with_automatic(mut self, automatic: bool) -> Self {
        self.automatic = automatic;
        self
    }

    /// Retains each key's newest record, and removes older records with the key from full segments in the background. A
    /// [tombstone](crate::record::ValueKind::Tombstone) removes its key; it is retained for this time after the older
    /// records are removed, so that readers that are further behind than that time may miss the removal. Offsets do not
    /// change. Records without a key are rejected; existing ones remain. Default: no compaction.
    #[must_use]
    pub fn with_compaction(mut self, tombstone_retention: Option<Duration>) -> Self {
        self.compact = tombstone_retention;
        self
    }
}

/// Configuration for a streams directory.
#[derive(Clone, Debug)]
pub struct StreamsConfig {
    pub(crate) writers: usize,
    pub(crate) max_pending: usize,
    pub(crate) max_batch: usize,
    pub(crate) max_streams: usize,
    pub(crate) max_waiters: usize,
    pub(crate) max_groups: usize,
    pub(crate) max_compaction_keys: usize,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        Self {
            writers: 4,
            max_pending: 16 << 20,
            max_batch: 16 << 20,
            max_streams: 10_000,
            max_waiters: 65_536,
            max_groups: 1024,
            max_compaction_keys: 900_000,
        }
    }
}

impl StreamsConfig {
    /// Threads that write and sync, 4 by default and 64 at most. Each serves one partition at a time, so this is how
    /// many syncs run on the disk concurrently. With 0 the caller does their work:
    /// [`Streams::work`](crate::Streams::work).
    #[must_use]
    pub fn with_writers(mut self, threads: usize) -> Self {
        self.writers = threads.min(64);
        self
    }

    /// Maximum bytes in a partition that wait to be written, 16 MiB by default: a disk of 1 GB/s writes that much
    /// during a sync of 16 ms. Appends beyond are [`Busy`](crate::AppendError::Busy). A queue that is at most half full
    /// takes a batch of any size: the batch that waited for
    /// [`PartitionEvent::QueueSpace`](crate::PartitionEvent::QueueSpace) fits. The bound is the larger of this limit,
    /// and half of it and [`max_batch`](Self::with_max_batch).
    #[must_use]
    pub fn with_max_pending(mut self, bytes: usize) -> Self {
        self.max_pending = bytes;
        self
    }

    /// Maximum bytes in a batch, header included, 16 MiB by default: a reader holds at least one batch in memory. A
    /// batch is also never larger than a segment.
    #[must_use]
    pub fn with_max_batch(mut self, bytes: usize) -> Self {
        self.max_batch = bytes.min(1 << 30);
        self
    }

    /// Maximum streams, 10,000 by default. An idle stream costs half a kilobyte of memory and no open file, so 100,000
    /// and more are possible.
    #[must_use]
    pub fn with_max_streams(mut self, streams: usize) -> Self {
        self.max_streams = streams;
        self
    }

    /// Maximum wakers that wait for one partition, 65,536 by default. A further waker replaces and wakes the oldest,
    /// whose task may register again.
    #[must_use]
    pub fn with_max_waiters(mut self, wakers: usize) -> Self {
        self.max_waiters = wakers.max(1);
        self
    }

    /// Whether a partition whose queue holds `before` bytes takes a batch that makes it `after` bytes.
    pub(crate) fn admits(&self, before: usize, after: usize) -> bool {
        before <= self.max_pending / 2 || after <= self.max_pending
    }

    /// Maximum groups with committed offsets per stream, 1,024 by default: clients choose group names.
    #[must_use]
    pub fn with_max_groups(mut self, groups: usize) -> Self {
        self.max_groups = groups;
        self
    }

    /// Maximum keys that compaction holds in memory, 900,000 by default, in 26 MiB. A partition with more changed keys
    /// is compacted in several passes.
    #[must_use]
    pub fn with_max_compaction_keys(mut self, keys: usize) -> Self {
        self.max_compaction_keys = keys.max(1);
        self
    }
}
