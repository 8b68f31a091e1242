//! Records and batches: the same bytes on the wire, in memory and on disk.
//!
//! All numbers are little endian. A **record** is 20 bytes, its key and its value:
//!
//! ```text
//!  0 u32 CRC-32C of bytes 4..size    4 u32 size of the whole record    8 u64 timestamp, µs since 1970 (the producer's)
//! 16 u16 bytes of the key           18 u8  kind: 0 bytes, 1 text, 2 JSON, 3 tombstone    19 u8 zero
//! 20 key, then value
//! ```
//!
//! A tombstone removes its key and has no value. In a compacted segment it has 8 bytes in that place: u64 µs since 1970,
//! when the older records of the key were removed.
//!
//! A **batch** is a 40-byte header and its records. It is appended and recovered as a whole or not at all:
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
//! A record's offset is its batch's offset plus its index in the batch. So a producer encodes records once, with their
//! checksums ([`RecordBuilder`]); the server checks them once ([`Records::check`]); and no later stage encodes them
//! again.
//!
//! ```
//! use sinews_stream::record::{ValueKind, RecordLimits, RecordBuilder, Records};
//!
//! let mut builder = RecordBuilder::new();
//! builder.push(1_700_000_000_000_000, b"sensor-7", br#"{"t":21.5}"#, ValueKind::Json)?;
//! let sent = builder.finish().expect("one record").into_bytes();
//!
//! let received = Records::check(sent, &RecordLimits::default())?;
//! let record = received.iter().next().unwrap()?;
//! assert_eq!((record.key, record.value), (&b"sensor-7"[..], &br#"{"t":21.5}"#[..]));
//! # Ok::<(), sinews_stream::record::RecordError>(())
//! ```

mod batch;
mod builder;
mod idempotency;

use std::fmt;

use bytes::Bytes;

pub use batch::{Batch, BatchHeader, BatchIter, iter};
pub(crate) use batch::{ScanCost, find_sealed, split_batch};
pub use builder::RecordBuilder;
pub(crate) use builder::write_tombstone;
pub use idempotency::{IDEMPOTENCY_PREFIX, SENDER_PREFIX, deduplication_id, idempotency_key, sender};

/// Bytes in a batch's header in the log.
pub const BATCH_HEADER: usize = 40;

/// Bytes of a batch's header without a tag.
pub const PLAIN_HEADER: usize = 32;

/// Bytes of a record before its key.
pub const RECORD_HEADER: usize = 20;

/// Type of a value as declared by its producer. The server does not verify it: a consumer that displays text must.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueKind {
    /// Bytes of any kind.
    #[default]
    Bytes,
    /// UTF-8.
    Text,
    /// A JSON value.
    Json,
    /// No value: the key was removed. Compaction removes the record itself after a while
    /// ([`StreamConfig::with_compaction`](crate::StreamConfig::with_compaction)).
    Tombstone,
}

impl ValueKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Bytes, Self::Text, Self::Json, Self::Tombstone].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// One record, borrowed from its batch's bytes or from a broker's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "broker clients create records from messages")]
pub struct Record<'a> {
    /// Offset in the partition. Records outside a log count from 0.
    pub offset: u64,
    /// Creation time set by the producer, in microseconds since 1970.
    pub timestamp: u64,
    /// Key: records with one key are stored in one partition, in order. Empty: no key.
    pub key: &'a [u8],
    /// The message.
    pub value: &'a [u8],
    /// Type of the value.
    pub kind: ValueKind,
}

/// Limits for records received from a client.
#[derive(Clone, Copy, Debug)]
pub struct RecordLimits {
    bytes: usize,
    count: u32,
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self { bytes: 8 << 20, count: 1 << 20 }
    }
}

impl RecordLimits {
    /// Maximum bytes of all records of a batch, 8 MiB by default: readers borrow whole batches, so a slow reader holds
    /// at least one.
    #[must_use]
    pub fn with_max_bytes(mut self, most: usize) -> Self {
        self.bytes = most.min(u32::MAX as usize - BATCH_HEADER);
        self
    }

    /// Maximum records in a batch, 1,048,576 by default: more than fit into the byte limit unless the records are tiny.
    #[must_use]
    pub fn with_max_count(mut self, most: u32) -> Self {
        self.count = most;
        self
    }
}

/// Error in bytes that are not valid records or not a valid batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
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
    /// More bytes or records than [`RecordLimits`] permit, or a key above 65,535 bytes.
    TooLarge,
    /// The count in a batch's header differs from the number of its records.
    Count,
    /// An offset or a time is less than in the previous batch.
    Order,
}

impl fmt::Display for RecordError {
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

impl std::error::Error for RecordError {}

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
    /// [`RecordError`] with the defect of the first invalid record.
    pub fn check(bytes: Bytes, limits: &RecordLimits) -> Result<Self, RecordError> {
        if bytes.is_empty() {
            return Err(RecordError::Empty);
        }
        if bytes.len() > limits.bytes {
            return Err(RecordError::TooLarge);
        }
        let mut rest = &bytes[..];
        let mut count = 0;
        while !rest.is_empty() {
            if count == limits.count {
                return Err(RecordError::TooLarge);
            }
            let record = split_raw(&mut rest, 0)?;
            // Only the log sets the time.
            if record.tombstone_time.is_some() {
                return Err(RecordError::Reserved);
            }
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

    /// Record count, at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether each record has a key.
    pub(crate) fn have_keys(&self) -> bool {
        let mut rest = &self.bytes[..];
        while !rest.is_empty() {
            // The sizes were checked.
            if rest[16..18] == [0, 0] {
                return false;
            }
            rest = &rest[u32_at(rest, 4) as usize..];
        }
        true
    }

    /// Whether any record has an [idempotency key](IDEMPOTENCY_PREFIX).
    pub fn have_idempotency_key(&self) -> bool {
        let mut rest = &self.bytes[..];
        while !rest.is_empty() {
            // The sizes were checked.
            let key_size = usize::from(u16::from_le_bytes([rest[16], rest[17]]));
            if idempotency_key(&rest[RECORD_HEADER..RECORD_HEADER + key_size]).is_some() {
                return true;
            }
            rest = &rest[u32_at(rest, 4) as usize..];
        }
        false
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
    type Item = Result<Record<'a>, RecordError>;

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

/// A record with its encoded form.
pub(crate) struct RawRecord<'a> {
    pub(crate) record: Record<'a>,
    /// All bytes of the record.
    pub(crate) bytes: &'a [u8],
    /// Of a tombstone in a compacted segment: when the older records of its key were removed.
    pub(crate) tombstone_time: Option<u64>,
}

/// Splits off the first record, if it is complete and its checksum is right.
fn split_record<'a>(rest: &mut &'a [u8], offset: u64) -> Result<Record<'a>, RecordError> {
    split_raw(rest, offset).map(|raw| raw.record)
}

/// As [`split_record`], with the encoded form.
pub(crate) fn split_raw<'a>(rest: &mut &'a [u8], offset: u64) -> Result<RawRecord<'a>, RecordError> {
    let (head, _) = rest.split_first_chunk::<RECORD_HEADER>().ok_or(RecordError::Truncated)?;
    let size = u32_at(head, 4) as usize;
    let key_size = usize::from(u16::from_le_bytes([head[16], head[17]]));
    if size < RECORD_HEADER + key_size {
        return Err(RecordError::Size);
    }
    let (record, behind) = rest.split_at_checked(size).ok_or(RecordError::Truncated)?;
    if u32_at(head, 0) != crc32c::crc32c(&record[4..]) {
        return Err(RecordError::Checksum);
    }
    let kind = ValueKind::from_byte(head[18]).filter(|_| head[19] == 0).ok_or(RecordError::Reserved)?;
    let (key, mut value) = record[RECORD_HEADER..].split_at(key_size);
    let mut tombstone_time = None;
    if kind == ValueKind::Tombstone {
        tombstone_time = match value.len() {
            0 => None,
            8 => Some(u64_at(value, 0)),
            _ => return Err(RecordError::Size),
        };
        value = &[];
    }
    *rest = behind;
    let (timestamp, bytes) = (u64_at(head, 8), record);
    Ok(RawRecord { record: Record { offset, timestamp, key, value, kind }, bytes, tombstone_time })
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
