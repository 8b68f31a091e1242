//! Positions, events, offsets and figures of a partition.

use std::time::Duration;

use bytes::Bytes;

/// Position at which to begin reading. Exhaustive: a new position must be implemented by every broker client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every broker client must implement each position")]
pub enum StartPosition {
    /// At the first available record.
    Earliest,
    /// Behind the last visible record: only new records.
    Latest,
    /// At this offset, or the nearest available one.
    Offset(u64),
    /// At the first batch appended at or after this time, in microseconds since 1970.
    Time(u64),
}

/// Event that a waker waits for: see [`Partition::watch`](crate::Partition::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionEvent {
    /// The record at this offset is visible to readers.
    Readable(u64),
    /// The record at this offset has been synced.
    Durable(u64),
    /// The write queue has space for a batch of any size: at most half its limit is used.
    QueueSpace,
}

/// Offsets that bound a partition's records. Each except `earliest` is the offset behind the last such record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionOffsets {
    /// Offset of the first available record.
    pub earliest: u64,
    /// End of the records visible to readers.
    pub readable: u64,
    /// End of the synced records.
    pub durable: u64,
    /// End of the appended records: the offset of the next append.
    pub next: u64,
}

/// Read result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadResult {
    /// Whole batches, shared and not copied; empty at the end of the partition. The first batch contains the requested
    /// offset, so the caller may have to skip records before it.
    pub batches: Bytes,
    /// Offset of the next read.
    pub next: u64,
}

/// Counters since the log was opened, and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes on disk.
    pub bytes: u64,
    /// Segments on disk.
    pub segments: u64,
    /// Bytes waiting to be written.
    pub pending: u64,
    /// Records appended.
    pub records: u64,
    /// Batches appended.
    pub batches: u64,
    /// Bytes written.
    pub written: u64,
    /// Write calls.
    pub writes: u64,
    /// Number of syncs, each of a group of batches or of earlier writes.
    pub syncs: u64,
    /// Total time for these syncs, from the first byte written to the end of the sync.
    pub sync_time: Duration,
    /// Records read, by all readers.
    pub read_records: u64,
    /// Bytes read, by all readers.
    pub read_bytes: u64,
    /// Registered wakers.
    pub waiters: u64,
    /// Compaction passes.
    pub compactions: u64,
    /// Records that compaction has removed.
    pub compacted_records: u64,
    /// Whether the partition has failed.
    pub failed: bool,
}
