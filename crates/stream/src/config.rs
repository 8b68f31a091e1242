//! What can be chosen, for all streams and for each.

use std::time::Duration;

/// When what was appended is synced to the disk: what survives a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fsync {
    /// Before it is acknowledged and before readers see it. What is appended while a sync is under way is synced
    /// together by the next one.
    #[default]
    Batch,
    /// At the latest so long after it was written. It is acknowledged, and readers see it, as soon as it is written:
    /// it survives the process, and a loss of power takes the last interval.
    Interval(Duration),
    /// When a segment is full, when the log is closed, or when the system does.
    Never,
}

/// How one stream is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    pub(crate) partitions: u32,
    pub(crate) fsync: Fsync,
    pub(crate) segment_bytes: u64,
    pub(crate) retain_bytes: Option<u64>,
    pub(crate) retain_age: Option<Duration>,
    pub(crate) automatic: bool,
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
        }
    }
}

impl StreamConfig {
    /// The most partitions of a stream: each has a file open and a place in the writer's round.
    pub const PARTITIONS_MAX: u32 = 1024;

    /// How many partitions there are, 1 by default: records are in order within one. Can be raised later; keys may
    /// then go to other partitions.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// When it is synced, [`Fsync::Batch`] by default.
    #[must_use]
    pub fn fsync(mut self, fsync: Fsync) -> Self {
        self.fsync = fsync;
        self
    }

    /// Bytes of a segment, 256 MiB by default and 64 KiB to 1 GiB. Whole segments are what retention removes, and the
    /// last one is read when the log is opened after a crash: 256 MiB take a quarter of a second at 1 GB/s, and a
    /// terabyte has 4,096 files. Without [`Fsync::Batch`], the last one is written again, too.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes.clamp(64 << 10, 1 << 30);
        self
    }

    /// The oldest segments go while each partition has at least so many bytes without them. All stay by default.
    #[must_use]
    pub fn retain_bytes(mut self, bytes: Option<u64>) -> Self {
        self.retain_bytes = bytes;
        self
    }

    /// A segment goes when its newest record was appended longer ago than this. All stay by default.
    #[must_use]
    pub fn retain_age(mut self, age: Option<Duration>) -> Self {
        self.retain_age = age;
        self
    }

    /// Whether the stream is created by its first use and not on request: such a stream may expire. Default: false. A
    /// stream that exists keeps what it was created with.
    #[must_use]
    pub fn automatic(mut self, automatic: bool) -> Self {
        self.automatic = automatic;
        self
    }
}

/// How a directory of streams is kept.
#[derive(Clone, Debug)]
pub struct StreamsConfig {
    pub(crate) writers: usize,
    pub(crate) max_pending: usize,
    pub(crate) max_batch: usize,
    pub(crate) max_streams: usize,
    pub(crate) max_waiters: usize,
    pub(crate) max_groups: usize,
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
        }
    }
}

impl StreamsConfig {
    /// Threads that write and sync, 4 by default and 64 at most. One serves each partition at a time, so that this is
    /// how many syncs the disk sees at once. With 0 the caller does their work: [`Streams::work`](crate::Streams::work).
    #[must_use]
    pub fn writers(mut self, threads: usize) -> Self {
        self.writers = threads.min(64);
        self
    }

    /// Bytes of a partition that may wait to be written, 16 MiB by default: what a disk of 1 GB/s writes during a sync
    /// of 16 ms. Beyond, appends are [`Busy`](crate::AppendError::Busy). One batch may always wait.
    #[must_use]
    pub fn max_pending(mut self, bytes: usize) -> Self {
        self.max_pending = bytes;
        self
    }

    /// Bytes of a batch, header included, 16 MiB by default: a reader holds one at least. No batch is larger than a
    /// segment either.
    #[must_use]
    pub fn max_batch(mut self, bytes: usize) -> Self {
        self.max_batch = bytes.min(1 << 30);
        self
    }

    /// Streams, 10,000 by default. One that is not in use costs half a kilobyte of memory and no open file, so that
    /// 100,000 and more are possible.
    #[must_use]
    pub fn max_streams(mut self, streams: usize) -> Self {
        self.max_streams = streams;
        self
    }

    /// Wakers that wait for one partition, 65,536 by default. One more wakes the one that has waited longest, which
    /// may come again.
    #[must_use]
    pub fn max_waiters(mut self, wakers: usize) -> Self {
        self.max_waiters = wakers.max(1);
        self
    }

    /// Groups of one stream whose offsets are kept, 1,024 by default: strangers choose their names.
    #[must_use]
    pub fn max_groups(mut self, groups: usize) -> Self {
        self.max_groups = groups;
        self
    }
}
