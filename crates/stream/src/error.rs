//! Error types of the crate.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Append error: the records were not appended, or did not reach the requested durability.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendError {
    /// The partition's write queue is full ([`StreamsConfig::with_max_pending`](crate::StreamsConfig::with_max_pending)). The
    /// caller waits for [`PartitionEvent::QueueSpace`](crate::PartitionEvent::QueueSpace) or propagates the backpressure.
    Busy,
    /// The batch, header included, exceeds the maximum size.
    TooLarge {
        /// The maximum size in bytes.
        most: u64,
    },
    /// The append has more records than the broker takes in one step.
    TooManyRecords {
        /// The record count.
        count: u32,
        /// The maximum number.
        most: u32,
    },
    /// The disk or a quota is full, or the open-file limit is reached. An append at least a second later tries again,
    /// and succeeds once there is space.
    NoSpace,
    /// The partition has failed and rejects appends until the log is opened again; the text has the cause. Records of a
    /// failed append may or may not be found afterwards.
    Failed(Arc<str>),
    /// The broker that stores the stream has rejected the records, or has not confirmed them: the text says which. The
    /// partition remains usable.
    Broker(Arc<str>),
    /// The offset is below the next offset, or the time is before that of the last batch.
    OutOfOrder {
        /// The next offset.
        next: u64,
    },
    /// A record has no key, and the stream is compacted
    /// ([`StreamConfig::with_compaction`](crate::StreamConfig::with_compaction)).
    NoKey,
    /// The stream was deleted.
    Deleted,
    /// The log has been closed.
    Closed,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the partition's write queue is full (max_pending)"),
            Self::TooLarge { most } => write!(f, "the batch exceeds the maximum of {most} bytes"),
            Self::TooManyRecords { count, most } => {
                write!(f, "{count} records exceed the maximum of {most} records of an append at this broker")
            }
            Self::NoSpace => f.write_str("no space is left on the disk"),
            Self::Failed(reason) => write!(f, "the partition has failed: {reason}"),
            Self::Broker(reason) => write!(f, "the broker did not accept the records: {reason}"),
            Self::OutOfOrder { next } => {
                write!(f, "the offset or time is out of order; the next offset is {next}")
            }
            Self::NoKey => f.write_str("a record of a compacted stream needs a key"),
            Self::Deleted => f.write_str("the stream was deleted"),
            Self::Closed => f.write_str("the log has been closed"),
        }
    }
}

impl std::error::Error for AppendError {}

/// Read error.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// Retention has removed the records.
    Gone {
        /// The earliest offset that is left.
        earliest: u64,
    },
    /// The offset is not visible to readers yet.
    Ahead {
        /// The end of the records that readers may see.
        readable: u64,
    },
    /// The records at this offset are damaged. Reading can continue behind them.
    Damaged {
        /// The first offset behind the damage.
        resume: u64,
        /// The cause and the file.
        reason: Arc<str>,
    },
    /// The stream was deleted.
    Deleted,
    /// The operating system failed to read.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { earliest } => write!(f, "removed by retention; the earliest offset is {earliest}"),
            Self::Ahead { readable } => {
                write!(f, "the offset is not readable yet; the readable end is {readable}")
            }
            Self::Damaged { resume, reason } => write!(f, "damaged up to offset {resume}: {reason}"),
            Self::Deleted => f.write_str("the stream was deleted"),
            Self::Io(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ReadError {
    /// The cause behind the error that [`Display`](fmt::Display) already shows.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { error.source() } else { None }
    }
}

/// Error while opening a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has locked the directory.
    Locked(PathBuf),
    /// A file has a format that this version does not write: the path and the cause. Nothing was changed.
    Unknown(PathBuf, Box<str>),
    /// The operating system failed.
    Io(PathBuf, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => write!(f, "{}: the streams are locked by another process", path.display()),
            Self::Unknown(path, what) => write!(f, "{}: {what}", path.display()),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    /// The cause behind the error that [`Display`](fmt::Display) already shows.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(_, error) = self { error.source() } else { None }
    }
}

/// Error while creating a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum CreateError {
    /// The name is invalid: see [`Streams::create`](crate::Streams::create).
    Name,
    /// The partition count is not within 1 to [`StreamConfig::PARTITIONS_MAX`](crate::StreamConfig::PARTITIONS_MAX), or
    /// is less than before.
    Partitions {
        /// Current partition count.
        has: u32,
    },
    /// The stream limit is reached ([`StreamsConfig::with_max_streams`](crate::StreamsConfig::with_max_streams)).
    TooMany,
    /// A stream with this name exists and is damaged.
    Damaged(Arc<str>),
    /// The log has been closed.
    Closed,
    /// The operating system failed.
    Io(io::Error),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str(
                "a stream's name has no control character, and takes at most 240 bytes as a file's, in which all but \
                 a-z, 0-9, `.`, `-` and `_` take three",
            ),
            Self::Partitions { has } => write!(f, "the stream has {has} partitions; their number can only grow"),
            Self::TooMany => f.write_str("the limit of streams is reached (max_streams)"),
            Self::Damaged(reason) => write!(f, "the stream is damaged: {reason}"),
            Self::Closed => f.write_str("the log has been closed"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CreateError {
    /// The cause behind the error that [`Display`](fmt::Display) already shows.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { error.source() } else { None }
    }
}

/// Error while using a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream's files are damaged, or were written by a newer version. The text has the cause and the file.
    Damaged(Arc<str>),
    /// The name is invalid: see [`Streams::create`](crate::Streams::create).
    Name,
    /// The partition count is not within 1 to [`StreamConfig::PARTITIONS_MAX`](crate::StreamConfig::PARTITIONS_MAX), or
    /// is less than before.
    Partitions {
        /// Current partition count.
        has: u32,
    },
    /// The stream limit is reached ([`StreamsConfig::with_max_streams`](crate::StreamsConfig::with_max_streams)).
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The log has been closed.
    Closed,
    /// The operating system failed. A later attempt may succeed.
    Io(Arc<io::Error>),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(reason) => write!(f, "the stream is damaged: {reason}"),
            Self::Name => CreateError::Name.fmt(f),
            Self::Partitions { has } => CreateError::Partitions { has: *has }.fmt(f),
            Self::TooMany { max } => write!(f, "the limit of {max} streams is reached"),
            Self::Closed => f.write_str("the log has been closed"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for StreamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { error.source() } else { None }
    }
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<StreamError> for CreateError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Damaged(reason) => Self::Damaged(reason),
            StreamError::Name => Self::Name,
            StreamError::Partitions { has } => Self::Partitions { has },
            StreamError::TooMany { .. } => Self::TooMany,
            StreamError::Closed => Self::Closed,
            StreamError::Io(error) => Self::Io(io::Error::new(error.kind(), error)),
        }
    }
}

/// Error while deleting a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeleteError {
    /// The log has been closed.
    Closed,
    /// The operating system failed. The stream still exists, but rejects appends until the log is opened again.
    Io(io::Error),
}

impl fmt::Display for DeleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the log has been closed"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DeleteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { Some(error) } else { None }
    }
}

/// Error while committing a group's offset.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitError {
    /// The group's name is not 1 to 255 bytes long, or has a control character.
    Name,
    /// The stream has no partition with this number.
    Partition,
    /// The group limit is reached ([`StreamsConfig::with_max_groups`](crate::StreamsConfig::with_max_groups)).
    TooMany,
    /// The offset could not be written.
    Append(AppendError),
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("a group's name has 1 to 255 bytes and no control characters"),
            Self::Partition => f.write_str("the stream has no such partition"),
            Self::TooMany => f.write_str("the limit of groups of the stream is reached (max_groups)"),
            Self::Append(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CommitError {}

/// Damage found while opening and taken out of use: cut off, or left in its file and never read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The stream.
    pub stream: String,
    /// The partition. None: the damage is in group offsets.
    pub partition: Option<u32>,
    /// The first lost offset.
    pub offset: u64,
    /// Bytes taken out of use.
    pub bytes: u64,
    /// The cause and the file.
    pub reason: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.stream)?;
        match self.partition {
            Some(partition) => write!(f, ", partition {partition}, from offset {}", self.offset)?,
            None => f.write_str(", offsets of groups")?,
        }
        write!(f, ": {} bytes: {}", self.bytes, self.reason)
    }
}
