//! Batches, as stored in sequence in a segment.

use super::{BATCH_HEADER, PLAIN_HEADER, RECORD_HEADER, RecordError, RecordIter, Records, u32_at, u64_at};
use crate::seal::Seal;

/// Flag for a header with a tag.
const TAGGED: u32 = 1;

/// Header of a batch, which precedes its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base: u64,
    /// Time of the append, in microseconds since 1970. Never less than that of the previous batch in its segment.
    pub appended: u64,
    /// Record count, at least 1.
    pub count: u32,
    /// Bytes of the batch, header included.
    pub length: u32,
    /// Binds the header to its position in a file of the log; only the log can verify it. None in version 1 batches and
    /// in batches with a broker's records.
    pub tag: Option<u64>,
}

impl BatchHeader {
    /// Creates the header of a batch in the log: the tag is computed when the position is known.
    pub(crate) fn new(records: &Records, base: u64, appended: u64) -> Self {
        // `RecordLimits` keep records with a header below 4 GiB.
        let length = (BATCH_HEADER + records.bytes().len()) as u32;
        Self { base, appended, count: records.count(), length, tag: Some(0) }
    }

    /// Creates the header for a batch with a broker's records. It is stored in no file of the log, so it has no tag.
    pub(crate) fn plain(records: &Records, base: u64, appended: u64) -> Self {
        let length = (PLAIN_HEADER + records.bytes().len()) as u32;
        Self { base, appended, count: records.count(), length, tag: None }
    }

    /// Size of the header in bytes.
    pub fn size(&self) -> usize {
        if self.tag.is_some() { BATCH_HEADER } else { PLAIN_HEADER }
    }

    /// Encodes the header; only the first [`size`](Self::size) bytes are used.
    pub(crate) fn encode(&self) -> [u8; BATCH_HEADER] {
        let mut bytes = self.fields();
        bytes[32..].copy_from_slice(&self.tag.unwrap_or_default().to_le_bytes());
        let crc = crc32c::crc32c(&bytes[4..self.size()]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header with the tag of this position.
    pub(crate) fn sealed(mut self, seal: &Seal, position: u64) -> Self {
        self.tag = Some(0);
        self.tag = Some(seal.tag(position, &self.fields()));
        self
    }

    /// Whether the header has the tag of this position.
    pub(crate) fn is_sealed(&self, seal: &Seal, position: u64) -> bool {
        *self == self.sealed(seal, position)
    }

    /// The fields except checksum and tag.
    fn fields(&self) -> [u8; BATCH_HEADER] {
        let mut bytes = [0; BATCH_HEADER];
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.base.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.appended.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28..32].copy_from_slice(&if self.tag.is_some() { TAGGED } else { 0 }.to_le_bytes());
        bytes
    }

    /// Decodes the header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// [`RecordError`] if `bytes` do not begin with a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let head: &[u8; PLAIN_HEADER] = bytes.first_chunk().ok_or(RecordError::Truncated)?;
        let flags = u32_at(head, 28);
        let size = if flags == TAGGED { BATCH_HEADER } else { PLAIN_HEADER };
        let head = bytes.get(..size).ok_or(RecordError::Truncated)?;
        let header = Self {
            length: u32_at(head, 4),
            base: u64_at(head, 8),
            appended: u64_at(head, 16),
            count: u32_at(head, 24),
            tag: (flags == TAGGED).then(|| u64_at(head, 32)),
        };
        // Impossible values are rejected first, since that is cheaper than the checksum: a search for a header relies
        // on it.
        let least = size as u64 + u64::from(header.count) * RECORD_HEADER as u64;
        if header.count == 0
            || u64::from(header.length) < least
            || header.base.checked_add(header.count.into()).is_none()
        {
            return Err(RecordError::Size);
        }
        if u32_at(head, 0) != crc32c::crc32c(&head[4..]) {
            return Err(RecordError::Checksum);
        }
        if flags != 0 && flags != TAGGED {
            return Err(RecordError::Reserved);
        }
        Ok(header)
    }

    /// The offset behind the last record.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }
}

/// A batch, borrowed from a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    header: BatchHeader,
    records: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Header of the batch.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Records of the batch, with their offsets.
    pub fn records(&self) -> RecordIter<'a> {
        RecordIter { rest: self.records, next: self.header.base }
    }

    /// Whether all records are valid, and as many as the header declares.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        let mut count = 0;
        for record in self.records() {
            record?;
            count += 1;
        }
        if count == self.header.count { Ok(()) } else { Err(RecordError::Count) }
    }
}

/// Iterates over whole batches, as returned by [`Partition::read`](crate::Partition::read) and as sent on the wire.
pub fn iter(batches: &[u8]) -> BatchIter<'_> {
    BatchIter { rest: batches }
}

/// Iterator over batches: see [`iter`]. Ends after the first malformed batch.
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<Batch<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = split_batch(&mut self.rest);
        if batch.is_err() {
            self.rest = &[];
        }
        Some(batch)
    }
}

pub(crate) fn split_batch<'a>(rest: &mut &'a [u8]) -> Result<Batch<'a>, RecordError> {
    let header = BatchHeader::decode(rest)?;
    let (batch, behind) = rest.split_at_checked(header.length as usize).ok_or(RecordError::Truncated)?;
    *rest = behind;
    Ok(Batch { header, records: &batch[header.size()..] })
}

/// Finds the first header in `bytes` that carries the tag of its position; `position` is that of `bytes` in the file.
/// The result is reliable for any content, but the batch's records may be invalid. The cost per position does not
/// depend on the length that a header claims.
pub(crate) fn find_sealed(
    bytes: &[u8],
    position: u64,
    seal: &Seal,
    cost: &mut ScanCost,
) -> Option<(u64, BatchHeader)> {
    const FLAGS: [u8; 4] = TAGGED.to_le_bytes();
    let found = bytes.windows(BATCH_HEADER).zip(position..).find_map(|(head, at)| {
        if head[28..32] != FLAGS {
            return None;
        }
        cost.heads += 1;
        let header = BatchHeader::decode(head).ok()?;
        cost.tags += 1;
        header.is_sealed(seal, at).then_some((at, header))
    });
    cost.searched += found.map_or(bytes.len() as u64, |(at, _)| at - position);
    found
}

/// Cost of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanCost {
    /// Positions examined.
    pub(crate) searched: u64,
    /// Headers whose checksum may have been computed.
    pub(crate) heads: u64,
    /// Tags computed.
    pub(crate) tags: u64,
    /// Bytes in records whose checksums were computed.
    pub(crate) verified: u64,
}
