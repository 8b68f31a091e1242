//! Records and batches: the same bytes on the wire, in memory and on disk.
//!
//! All numbers are little endian. A **record** is 20 bytes, its key and its value:
//!
//! ```text
//!  0 u32 CRC-32C of bytes 4..size    4 u32 size of the whole record    8 u64 timestamp, µs since 1970 (the producer's)
//! 16 u16 bytes of the key           18 u8  kind: 0 bytes, 1 text, 2 JSON    19 u8 zero
//! 20 key, then value
//! ```
//!
//! A **batch** is a header of 40 bytes and its records. It is appended and recovered as a whole or not at all:
//!
//! ```text
//!  0 u32 CRC-32C of bytes 4..40      4 u32 length, header included     8 u64 offset of the first record
//! 16 u64 appended, µs since 1970: the log's clock
//! 24 u32 count of records, 1 or more   28 u32 flags, 1: other values belong to a newer version
//! 32 u64 tag, which ties the header to its place in the log and which only the log can check
//! ```
//!
//! With the flags 0 the header has 32 bytes, and no tag: batches of version 1, and records of a broker.
//!
//! A record's offset is the offset of its batch plus its index in the batch. So a producer encodes records once, with
//! their checksums ([`RecordBuilder`]); the server checks them once ([`Records::check`]); and no later stage encodes
//! them again.
//!
//! ```
//! use sinews_stream::record::{Kind, Limits, RecordBuilder, Records};
//!
//! let mut builder = RecordBuilder::new();
//! builder.push(1_700_000_000_000_000, b"sensor-7", br#"{"t":21.5}"#, Kind::Json)?;
//! let sent = builder.finish().expect("one record").into_bytes();
//!
//! let received = Records::check(sent, &Limits::default())?;
//! let record = received.iter().next().unwrap()?;
//! assert_eq!((record.key, record.value), (&b"sensor-7"[..], &br#"{"t":21.5}"#[..]));
//! # Ok::<(), sinews_stream::record::Malformed>(())
//! ```

mod batch;
mod builder;

use std::fmt;

use bytes::Bytes;

pub use batch::{Batch, BatchHeader, Batches, iter};
pub(crate) use batch::{Effort, find_sealed, split_batch};
pub use builder::RecordBuilder;

/// Bytes of a batch's header in the log.
pub const BATCH_HEADER: usize = 40;

/// Bytes of a batch's header without a tag.
pub const PLAIN_HEADER: usize = 32;

/// Bytes of a record before its key.
pub const RECORD_HEADER: usize = 20;

/// Type of a value as declared by its producer. The server does not verify it: a consumer that displays text must.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Bytes of any kind.
    #[default]
    Bytes,
    /// UTF-8.
    Text,
    /// A JSON value.
    Json,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Bytes, Self::Text, Self::Json].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// One record of a batch, borrowed from the batch's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Offset in the partition. Records outside a log count from 0.
    pub offset: u64,
    /// Creation time set by the producer, in microseconds since 1970.
    pub timestamp: u64,
    /// Key: records of one key are stored in one partition, in order. Empty: no key.
    pub key: &'a [u8],
    /// The message.
    pub value: &'a [u8],
    /// Type of the value.
    pub kind: Kind,
}

/// Limits for records received from a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    bytes: usize,
    count: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 8 << 20, count: 1 << 20 }
    }
}

impl Limits {
    /// Maximum bytes of all records of a batch, 8 MiB by default: readers borrow whole batches, so a slow reader holds
    /// at least one.
    #[must_use]
    pub fn bytes(mut self, most: usize) -> Self {
        self.bytes = most.min(u32::MAX as usize - BATCH_HEADER);
        self
    }

    /// Maximum records of a batch, 1,048,576 by default: more than fit into the byte limit unless the records are tiny.
    #[must_use]
    pub fn count(mut self, most: u32) -> Self {
        self.count = most;
        self
    }
}

/// Error of bytes that are not valid records or not a valid batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// There are no records.
    Empty,
    /// The bytes end within a record or a batch.
    Truncated,
    /// A size is below its minimum, or the records do not fill their batch.
    Size,
    /// A checksum differs.
    Checksum,
    /// A byte or a flag that has no meaning in this version is set.
    Reserved,
    /// More bytes or records than [`Limits`] permit, or a key above 65,535 bytes.
    TooLarge,
    /// The count in a batch's header differs from the number of its records.
    Count,
    /// An offset or a time is less than in the previous batch.
    Order,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no records",
            Self::Truncated => "the bytes end within a record",
            Self::Size => "a size does not match its content",
            Self::Checksum => "a checksum differs",
            Self::Reserved => "a byte or flag unknown to this version is set",
            Self::TooLarge => "the bytes, the records or a key exceed the limit",
            Self::Count => "the count of records differs",
            Self::Order => "an offset or a time goes back",
        })
    }
}

impl std::error::Error for Malformed {}

/// One or more records whose sizes, checksums and limits have been checked. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Records {
    bytes: Bytes,
    count: u32,
}

impl Records {
    /// Checks received records in one pass.
    ///
    /// # Errors
    ///
    /// [`Malformed`] with the defect of the first invalid record.
    pub fn check(bytes: Bytes, limits: &Limits) -> Result<Self, Malformed> {
        if bytes.is_empty() {
            return Err(Malformed::Empty);
        }
        if bytes.len() > limits.bytes {
            return Err(Malformed::TooLarge);
        }
        let mut rest = &bytes[..];
        let mut count = 0;
        while !rest.is_empty() {
            if count == limits.count {
                return Err(Malformed::TooLarge);
            }
            split_record(&mut rest, 0)?;
            count += 1;
        }
        Ok(Self { bytes, count })
    }

    /// The encoded records.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The encoded records, as sent to a server.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Number of records, at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Iterates over the records, with offsets that count from 0.
    pub fn iter(&self) -> RecordIter<'_> {
        RecordIter { rest: &self.bytes, next: 0 }
    }
}

/// Iterator over records that verifies each checksum: see [`Batch::records`] and [`Records::iter`]. Ends after the
/// first malformed record.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    rest: &'a [u8],
    next: u64,
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = split_record(&mut self.rest, self.next);
        match record {
            Ok(_) => self.next += 1,
            Err(_) => self.rest = &[],
        }
        Some(record)
    }
}

/// Splits off the first record, if it is complete and its checksum is right.
fn split_record<'a>(rest: &mut &'a [u8], offset: u64) -> Result<Record<'a>, Malformed> {
    let (head, _) = rest.split_first_chunk::<RECORD_HEADER>().ok_or(Malformed::Truncated)?;
    let size = u32_at(head, 4) as usize;
    let key_size = usize::from(u16::from_le_bytes([head[16], head[17]]));
    if size < RECORD_HEADER + key_size {
        return Err(Malformed::Size);
    }
    let (record, behind) = rest.split_at_checked(size).ok_or(Malformed::Truncated)?;
    if u32_at(head, 0) != crc32c::crc32c(&record[4..]) {
        return Err(Malformed::Checksum);
    }
    let kind = Kind::from_byte(head[18]).filter(|_| head[19] == 0).ok_or(Malformed::Reserved)?;
    let (key, value) = record[RECORD_HEADER..].split_at(key_size);
    *rest = behind;
    Ok(Record { offset, timestamp: u64_at(head, 8), key, value, kind })
}

/// The number at `at`, which the caller guarantees to be within `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests;
