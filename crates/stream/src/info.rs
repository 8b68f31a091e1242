//! Stream metadata, available without opening the streams.

use std::sync::Arc;

use crate::{Stream, StreamConfig};

/// A stream's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// Name of the stream.
    pub name: Arc<str>,
    /// [`Stream::created`](crate::Stream::created).
    pub created: u64,
    /// Whether the stream was created by its first use: see
    /// [`StreamConfig::with_automatic`](crate::StreamConfig::with_automatic).
    pub automatic: bool,
    /// Configuration of the stream.
    pub config: StreamConfig,
    /// Time of the last append, in microseconds since 1970; none if the stream never had a record. For records of a
    /// broker it is the broker's time.
    pub last_append: Option<u64>,
    /// Time of the last read, in microseconds since 1970. Unknown after a crash.
    pub last_read: Option<u64>,
    /// Whether the stream's files are open.
    pub state: StreamState,
    /// The stream's partitions; for a closed stream, as of its last close.
    pub partitions: Vec<PartitionInfo>,
    /// The stream's groups; for a closed stream, as of its last close.
    pub groups: Vec<GroupInfo>,
}

impl StreamInfo {
    /// Time of the last use, in microseconds since 1970: creation, append or read. A stream that was open during a
    /// crash counts as used when the log was opened again.
    #[must_use]
    pub fn last_used(&self) -> u64 {
        self.created.max(self.last_append.unwrap_or(0)).max(self.last_read.unwrap_or(0))
    }
}

/// A partition's metadata.
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
    /// The files are open.
    Open,
    /// The files are closed; the first use opens them.
    Closed,
    /// The files cannot be opened. The text has the cause and the file.
    Damaged(Arc<str>),
}

/// A consumer group with its committed offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// The group's name.
    pub name: Box<str>,
    /// Committed offsets, as partition and offset pairs.
    pub offsets: Vec<(u32, u64)>,
}

/// Result of [`Streams::lookup`](crate::Streams::lookup).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Lookup {
    /// The stream does not exist.
    Missing,
    /// The stream is open.
    Open(Stream),
    /// The stream has to be [opened](crate::Streams::opening) first.
    Closed,
    /// The stream cannot be opened. The text has the cause and the file.
    Damaged(Arc<str>),
}
