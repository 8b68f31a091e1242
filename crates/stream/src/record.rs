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
//! A **batch** is a header of 40 bytes and its records. It is appended, and found again, whole or not at all:
//!
//! ```text
//!  0 u32 CRC-32C of bytes 4..40      4 u32 length, header included     8 u64 offset of the first record
//! 16 u64 appended, µs since 1970: the log's clock
//! 24 u32 count of records, 1 or more   28 u32 flags, 1: others belong to a newer version
//! 32 u64 tag, which ties the header to its place in the log and which only the log can check
//! ```
//!
//! With the flags 0 the header has 32 bytes, and no tag: batches of version 1, and records of a broker.
//!
//! A record's offset is that of its batch and its place therein. So a producer makes records once, with their checksums
//! ([`RecordBuilder`]); the server walks over them once ([`Records::check`]); and nobody encodes them again.
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

/// What a value is, as its producer says. Nobody checks it on the way: who shows a text must.
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

/// One record of a batch, where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Its place in the partition. Records that are not in a log yet count from 0.
    pub offset: u64,
    /// When its producer made it, in microseconds since 1970.
    pub timestamp: u64,
    /// Records of one key go to one partition, in order. Empty: none.
    pub key: &'a [u8],
    /// The message.
    pub value: &'a [u8],
    /// What the value is.
    pub kind: Kind,
}

/// How large records may be that somebody sends.
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
    /// Bytes of all records of a batch, 8 MiB by default: a reader is lent whole batches, so one is what a slow reader
    /// holds at least.
    #[must_use]
    pub fn bytes(mut self, most: usize) -> Self {
        self.bytes = most.min(u32::MAX as usize - BATCH_HEADER);
        self
    }

    /// Records of a batch, 1,048,576 by default, which is more than fit into the bytes unless they are tiny.
    #[must_use]
    pub fn count(mut self, most: u32) -> Self {
        self.count = most;
        self
    }
}

/// Bytes that are no records, or no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// There are no records.
    Empty,
    /// The bytes end within a record or a batch.
    Truncated,
    /// A size is smaller than what it must hold, or records do not fill their batch.
    Size,
    /// A checksum differs.
    Checksum,
    /// A byte or a flag that has no meaning in this version is set.
    Reserved,
    /// More bytes or records than [`Limits`] permit, or a key above 65,535 bytes.
    TooLarge,
    /// The count in a batch's header is another one than that of its records.
    Count,
    /// An offset or a time is less than in the batch before.
    Order,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no records",
            Self::Truncated => "the bytes end within a record",
            Self::Size => "a size does not fit what it holds",
            Self::Checksum => "a checksum differs",
            Self::Reserved => "something is set that this version does not know",
            Self::TooLarge => "more bytes or records than are permitted",
            Self::Count => "the count of records differs",
            Self::Order => "an offset or a time goes back",
        })
    }
}

impl std::error::Error for Malformed {}

/// One or more records that were checked: sizes, checksums and limits hold. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Records {
    bytes: Bytes,
    count: u32,
}

impl Records {
    /// Walks once over what somebody sent.
    ///
    /// # Errors
    ///
    /// [`Malformed`], which says what is wrong with the first record that is none.
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

    /// The records, one after the other.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The records as what is sent to a server.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// How many there are, 1 at least.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The records, with offsets that count from 0.
    pub fn iter(&self) -> RecordIter<'_> {
        RecordIter { rest: &self.bytes, next: 0 }
    }
}

/// Records one after the other, each with its checksum checked: see [`Batch::records`] and [`Records::iter`]. Ends
/// after the first that is malformed.
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

/// Takes the first record off, if it is whole and its checksum is right.
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

/// The number at a place that the caller knows to be within `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests;
