//! A stream as the directory's list knows it.

use std::sync::Arc;

use crate::Stream;

/// A stream, known without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// Name of the stream.
    pub name: Arc<str>,
    /// [`Stream::created`](crate::Stream::created).
    pub created: u64,
    /// Whether its first use has created it: see [`StreamConfig::automatic`](crate::StreamConfig::automatic).
    pub automatic: bool,
    /// Time of the last append, in microseconds since 1970, if the stream has ever had a record. A broker's records
    /// have the broker's time.
    pub last_append: Option<u64>,
    /// Time of the last read, in microseconds since 1970, if it is known. After a crash it is not.
    pub last_read: Option<u64>,
    /// Whether its files are open.
    pub state: StreamState,
    /// Its partitions. Of a stream that is not open, as of the last time that it was.
    pub partitions: Vec<PartitionInfo>,
    /// Its groups. Of a stream that is not open, as of the last time that it was.
    pub groups: Vec<GroupInfo>,
}

impl StreamInfo {
    /// Time of the last use, in microseconds since 1970: created, appended to, or read. A stream that was in use when
    /// a process crashed counts as used when the log was opened again.
    #[must_use]
    pub fn last_used(&self) -> u64 {
        self.created.max(self.last_append.unwrap_or(0)).max(self.last_read.unwrap_or(0))
    }
}

/// A partition, known without opening it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Offset of the first record.
    pub earliest: u64,
    /// Offset behind the last record that readers may see.
    pub readable: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Segments on disk.
    pub segments: u64,
}

/// Whether the files of a stream are open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamState {
    /// They are.
    Open,
    /// The first use opens them.
    Closed,
    /// They cannot be opened. The text says why, and names the file.
    Damaged(Arc<str>),
}

/// A consumer group with its committed offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// Name of the group.
    pub name: Box<str>,
    /// Partitions with a committed offset.
    pub offsets: Vec<(u32, u64)>,
}

/// What [`Streams::lookup`](crate::Streams::lookup) finds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Lookup {
    /// There is no such stream.
    Missing,
    /// It is open.
    Open(Stream),
    /// It has to be [opened](crate::Streams::opening) first.
    Closed,
    /// It cannot be opened. The text says why, and names the file.
    Damaged(Arc<str>),
}
