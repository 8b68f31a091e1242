//! Batches, as they lie one after the other in a file.

use super::{BATCH_HEADER, Malformed, RECORD_HEADER, RecordIter, Records, u32_at, u64_at};

/// What stands before the records of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base: u64,
    /// When the batch was appended, in microseconds since 1970. Never less than that of the batch before.
    pub appended: u64,
    /// Records, 1 at least.
    pub count: u32,
    /// Bytes of the batch, header included.
    pub length: u32,
}

impl BatchHeader {
    /// The header of a batch of these records.
    pub(crate) fn of(records: &Records, base: u64, appended: u64) -> Self {
        // `Limits` keep records below 4 GiB with a header before them.
        let length = (BATCH_HEADER + records.bytes().len()) as u32;
        Self { base, appended, count: records.count(), length }
    }

    pub(crate) fn encode(&self) -> [u8; BATCH_HEADER] {
        let mut bytes = [0; BATCH_HEADER];
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.base.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.appended.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header that `bytes` begin with.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if they do not begin with one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let head: &[u8; BATCH_HEADER] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
        let header = Self {
            length: u32_at(head, 4),
            base: u64_at(head, 8),
            appended: u64_at(head, 16),
            count: u32_at(head, 24),
        };
        // What is impossible is told first, since it costs less than the checksum: a search for a header relies on it.
        let least = BATCH_HEADER as u64 + u64::from(header.count) * RECORD_HEADER as u64;
        if header.count == 0
            || u64::from(header.length) < least
            || header.base.checked_add(header.count.into()).is_none()
        {
            return Err(Malformed::Size);
        }
        if u32_at(head, 0) != crc32c::crc32c(&head[4..]) {
            return Err(Malformed::Checksum);
        }
        if u32_at(head, 28) != 0 {
            return Err(Malformed::Reserved);
        }
        Ok(header)
    }

    /// The offset behind the last record.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }
}

/// One batch, where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    header: BatchHeader,
    records: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Its header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Its records, with their offsets.
    pub fn records(&self) -> RecordIter<'a> {
        RecordIter { rest: self.records, next: self.header.base }
    }

    /// Whether all its records are right, and as many as the header says.
    fn check(&self) -> Result<(), Malformed> {
        let mut count = 0;
        for record in self.records() {
            record?;
            count += 1;
        }
        if count == self.header.count { Ok(()) } else { Err(Malformed::Count) }
    }
}

/// Goes over whole batches, as [`Partition::read`](crate::Partition::read) lends them and as they are on the wire.
pub fn iter(batches: &[u8]) -> Batches<'_> {
    Batches { rest: batches }
}

/// Batches one after the other: see [`iter`]. Ends after the first that is malformed.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<Batch<'a>, Malformed>;

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

fn split_batch<'a>(rest: &mut &'a [u8]) -> Result<Batch<'a>, Malformed> {
    let header = BatchHeader::decode(rest)?;
    let (batch, behind) = rest.split_at_checked(header.length as usize).ok_or(Malformed::Truncated)?;
    *rest = behind;
    Ok(Batch { header, records: &batch[BATCH_HEADER..] })
}

/// How far a file's batches are right, checksums of records included.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Bytes of the batches that are right.
    pub(crate) bytes: usize,
    /// What is wrong behind them, if anything is there.
    pub(crate) wrong: Option<Malformed>,
}

/// Walks over batches whose offsets and times only grow from these on, and shows each with its place.
pub(crate) fn walk(
    file: &[u8],
    (mut next, mut time): (u64, u64),
    mut each: impl FnMut(u64, &BatchHeader),
) -> Checked {
    let mut rest = file;
    loop {
        let at = file.len() - rest.len();
        if rest.is_empty() {
            return Checked { bytes: at, wrong: None };
        }
        let batch = split_batch(&mut rest).and_then(|batch| batch.check().map(|()| batch));
        let wrong = match batch {
            Ok(batch) if batch.header.base >= next && batch.header.appended >= time => {
                each(at as u64, &batch.header);
                (next, time) = (batch.header.end(), batch.header.appended);
                continue;
            }
            Ok(_) => Malformed::Order,
            Err(wrong) => wrong,
        };
        return Checked { bytes: at, wrong: Some(wrong) };
    }
}

/// The first whole and right batch anywhere in `bytes` whose offset may be that of a batch there, and its place.
///
/// Offsets are from `least` on, and a record has 20 bytes at least: so what a producer has put into a record, to look like
/// a batch, cannot lead far away.
pub(crate) fn find_batch(bytes: &[u8], least: u64) -> Option<(usize, BatchHeader)> {
    find_batch_where(bytes, |at, header| {
        header.base.checked_sub(least).is_some_and(|jump| jump <= (at / RECORD_HEADER) as u64)
    })
}

/// The first whole and right batch anywhere in `bytes` that is one of those that may be there, and its place.
pub(crate) fn find_batch_where(
    bytes: &[u8],
    may_be: impl Fn(usize, &BatchHeader) -> bool,
) -> Option<(usize, BatchHeader)> {
    (0..bytes.len().saturating_sub(BATCH_HEADER)).find_map(|at| {
        let batch = split_batch(&mut &bytes[at..]).ok()?;
        (may_be(at, &batch.header) && batch.check().is_ok()).then_some((at, batch.header))
    })
}
