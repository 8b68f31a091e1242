//! What can go wrong, and who must act.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why records were not appended, or are not as durable as was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendError {
    /// As much waits to be written as may ([`StreamsConfig::max_pending`](crate::StreamsConfig::max_pending)). The
    /// caller waits for [`Past::Room`](crate::Past::Room), or passes the backpressure on.
    Busy,
    /// The batch is larger than this log takes, in bytes with its header.
    TooLarge {
        /// The largest.
        most: u64,
    },
    /// The disk or a quota is full, or no further file can be opened. It is tried again with an append a second later,
    /// and goes on by itself when there is room.
    NoSpace,
    /// The partition has failed and takes nothing more until the log is opened again; the text says why. Records
    /// whose append ended so may be found afterwards, or not.
    Failed(Arc<str>),
    /// The broker that keeps the stream has refused the records, or does not say whether it has them: the text says
    /// which. The partition goes on.
    Broker(Arc<str>),
    /// The offset is below the next one, or the time before the last.
    OutOfOrder {
        /// The next offset.
        next: u64,
    },
    /// The stream was deleted.
    Deleted,
    /// The log has been closed.
    Closed,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("as much waits to be written as may"),
            Self::TooLarge { most } => write!(f, "a batch has at most {most} bytes"),
            Self::NoSpace => f.write_str("no space is left on the disk"),
            Self::Failed(why) => write!(f, "the partition has failed: {why}"),
            Self::Broker(why) => write!(f, "the broker has not taken the records: {why}"),
            Self::OutOfOrder { next } => write!(f, "the next offset is {next}"),
            Self::Deleted => f.write_str("the stream was deleted"),
            Self::Closed => f.write_str("the log has been closed"),
        }
    }
}

impl std::error::Error for AppendError {}

/// Why nothing could be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The records were removed by retention. What is left begins here.
    Gone {
        /// The earliest offset.
        earliest: u64,
    },
    /// The offset is one that readers may not see yet.
    Ahead {
        /// The end of what they may see.
        readable: u64,
    },
    /// What lies there is damaged. Reading can go on behind it.
    Damaged {
        /// The first offset behind the damage.
        resume: u64,
        /// What is wrong, and in which file.
        why: Arc<str>,
    },
    /// The stream was deleted.
    Deleted,
    /// The system could not read.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { earliest } => write!(f, "removed by retention; the earliest offset is {earliest}"),
            Self::Ahead { readable } => write!(f, "not there yet; the end is {readable}"),
            Self::Damaged { resume, why } => write!(f, "damaged up to offset {resume}: {why}"),
            Self::Deleted => f.write_str("the stream was deleted"),
            Self::Io(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { Some(error) } else { None }
    }
}

/// Why a log was not opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    Locked(PathBuf),
    /// A file is not what this version writes: the path, and what is wrong. Nothing was changed.
    Unknown(PathBuf, Box<str>),
    /// The system refused.
    Io(PathBuf, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => write!(f, "{}: another process has the streams open", path.display()),
            Self::Unknown(path, what) => write!(f, "{}: {what}", path.display()),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(_, error) = self { Some(error) } else { None }
    }
}

/// Why a stream was not created.
#[derive(Debug)]
#[non_exhaustive]
pub enum CreateError {
    /// The name is none: see [`Streams::create`](crate::Streams::create).
    Name,
    /// A stream has 1 to [`StreamConfig::PARTITIONS_MAX`](crate::StreamConfig::PARTITIONS_MAX) partitions, and never
    /// fewer than it had.
    Partitions {
        /// How many it has.
        has: u32,
    },
    /// As many streams are there as may be ([`StreamsConfig::max_streams`](crate::StreamsConfig::max_streams)).
    TooMany,
    /// A stream of this name is there, and is damaged.
    Damaged(Arc<str>),
    /// The log has been closed.
    Closed,
    /// The system refused.
    Io(io::Error),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str(
                "a stream's name has no control character, and takes at most 240 bytes as a file's, in which all but \
                 a-z, 0-9, `.`, `-` and `_` take three",
            ),
            Self::Partitions { has } => write!(f, "the stream has {has} partitions, and can only get more"),
            Self::TooMany => f.write_str("there are as many streams as may be"),
            Self::Damaged(why) => write!(f, "the stream is damaged: {why}"),
            Self::Closed => f.write_str("the log has been closed"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CreateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { Some(error) } else { None }
    }
}

/// Why a stream cannot be used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamError {
    /// Its files are damaged, or were written by a newer version. The text says what is wrong, and in which file.
    Damaged(Arc<str>),
    /// The name is none: see [`Streams::create`](crate::Streams::create).
    Name,
    /// A stream has 1 to [`StreamConfig::PARTITIONS_MAX`](crate::StreamConfig::PARTITIONS_MAX) partitions, and never
    /// fewer than it had.
    Partitions {
        /// How many it has.
        has: u32,
    },
    /// The directory has as many streams as it may ([`StreamsConfig::max_streams`](crate::StreamsConfig::max_streams)).
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
            Self::Damaged(why) => write!(f, "the stream is damaged: {why}"),
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
            StreamError::Damaged(why) => Self::Damaged(why),
            StreamError::Name => Self::Name,
            StreamError::Partitions { has } => Self::Partitions { has },
            StreamError::TooMany { .. } => Self::TooMany,
            StreamError::Closed => Self::Closed,
            StreamError::Io(error) => Self::Io(io::Error::new(error.kind(), error)),
        }
    }
}

/// Why a stream was not deleted.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeleteError {
    /// The log has been closed.
    Closed,
    /// The operating system failed. The stream is still in its place, but takes no more appends until the log is
    /// opened again.
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

/// Why a group's offset was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitError {
    /// A group's name has 1 to 255 bytes.
    Name,
    /// The stream has no such partition.
    Partition,
    /// The stream has as many groups as it may ([`StreamsConfig::max_groups`](crate::StreamsConfig::max_groups)).
    TooMany,
    /// It could not be written.
    Append(AppendError),
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("a group's name has 1 to 255 bytes"),
            Self::Partition => f.write_str("the stream has no such partition"),
            Self::TooMany => f.write_str("the stream has as many groups as it may"),
            Self::Append(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CommitError {}

/// What opening found to be damaged, and took out of use: cut off, or left in its file where nobody reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The stream.
    pub stream: String,
    /// The partition, or none: then offsets of groups.
    pub partition: Option<u32>,
    /// The first offset that is not there.
    pub offset: u64,
    /// Bytes that are no longer in use.
    pub bytes: u64,
    /// What is wrong, and in which file.
    pub why: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.stream)?;
        match self.partition {
            Some(partition) => write!(f, ", partition {partition}, from offset {}", self.offset)?,
            None => f.write_str(", offsets of groups")?,
        }
        write!(f, ": {} bytes: {}", self.bytes, self.why)
    }
}
