//! Sparse index of a segment's batches: one entry for each 64 KiB.

use bytes::Bytes;

use crate::record::{BatchHeader, u32_at, u64_at};

/// Minimum bytes between two entries. A reader scans the headers between, a microsecond or two of small batches; the
/// index has 20 bytes for 65,536.
pub(crate) const STEP: u64 = 64 << 10;

/// Bytes in the file's head.
pub(crate) const HEAD: usize = 64;

const ENTRY: usize = 20;

/// Identifies the file and its version. Version 1, which does not support segment heads, must not trust it.
const MAGIC: u32 = 0x32_58_4e_53;

/// The version 1 magic, for segments without heads.
const MAGIC_1: u32 = 0x31_58_4e_53;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexEntry {
    offset: u64,
    appended: u64,
    position: u32,
}

/// Batch positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    entries: Vec<IndexEntry>,
    /// Position of the last entry, or the file's beginning.
    last: u64,
}

impl Index {
    /// Adds a batch behind all others, if it is far enough from the last entry.
    pub(crate) fn note(&mut self, position: u64, header: &BatchHeader) {
        if position >= self.last + STEP {
            self.last = position;
            // A segment has at most 1 GiB.
            let position = position as u32;
            self.entries.push(IndexEntry { offset: header.base, appended: header.appended, position });
        }
    }

    /// Position from which to search for the batch that holds an offset.
    pub(crate) fn position(&self, offset: u64) -> u64 {
        self.before(self.entries.partition_point(|entry| entry.offset <= offset))
    }

    /// Position from which to search for the first batch of this time or later.
    pub(crate) fn position_of_time(&self, time: u64) -> u64 {
        self.before(self.entries.partition_point(|entry| entry.appended < time))
    }

    /// The first entry behind a position: the position of a batch and its offset.
    pub(crate) fn behind(&self, position: u64) -> Option<(u64, u64)> {
        let index = self.entries.partition_point(|entry| u64::from(entry.position) <= position);
        self.entries.get(index).map(|entry| (entry.position.into(), entry.offset))
    }

    /// Entry count.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    fn before(&self, count: usize) -> u64 {
        count.checked_sub(1).map_or(0, |last| u64::from(self.entries[last].position))
    }
}

/// Summary of a full segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Name of the segment: the offset behind the last record of the previous segment.
    pub(crate) base: u64,
    /// Offset of the first record: more than the base if offsets have jumped.
    pub(crate) first: u64,
    /// The offset behind the last record.
    pub(crate) end: u64,
    /// Bytes of the file up to the end of its last batch, head included.
    pub(crate) bytes: u64,
    /// Time of the first batch.
    pub(crate) first_time: u64,
    /// Time of the last batch.
    pub(crate) last_time: u64,
}

impl Summary {
    /// Summary of an empty segment whose batches begin at this byte.
    pub(crate) fn empty(base: u64, bytes: u64, time: u64) -> Self {
        Self { base, first: base, end: base, bytes, first_time: time, last_time: time }
    }

    /// Whether the segment has no batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.end == self.base
    }

    /// Adds a batch behind the others.
    pub(crate) fn add(&mut self, header: &BatchHeader) {
        if self.is_empty() {
            self.first = header.base;
            self.first_time = header.appended;
        }
        self.end = header.end();
        self.bytes += u64::from(header.length);
        self.last_time = header.appended;
    }
}

/// Encodes the file: a 64-byte head with its own checksum, so that opening reads no more, then the entries.
pub(crate) fn encode(summary: &Summary, index: &Index) -> Bytes {
    let mut entries = Vec::with_capacity(HEAD + index.entries.len() * ENTRY);
    entries.resize(HEAD, 0);
    for entry in &index.entries {
        entries.extend_from_slice(&entry.offset.to_le_bytes());
        entries.extend_from_slice(&entry.appended.to_le_bytes());
        entries.extend_from_slice(&entry.position.to_le_bytes());
    }
    let mut file = entries;
    let body = crc32c::crc32c(&file[HEAD..]);
    file[4..8].copy_from_slice(&MAGIC.to_le_bytes());
    let numbers = [summary.base, summary.end, summary.bytes, summary.first_time, summary.last_time];
    for (field, number) in file[8..].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    // Fewer than 2^14, since positions have 30 bits and a step has 16.
    file[48..52].copy_from_slice(&(index.entries.len() as u32).to_le_bytes());
    file[52..56].copy_from_slice(&body.to_le_bytes());
    file[56..64].copy_from_slice(&summary.first.to_le_bytes());
    let head = crc32c::crc32c(&file[4..HEAD]);
    file[..4].copy_from_slice(&head.to_le_bytes());
    file.into()
}

/// Decodes the head of the file, if it is valid.
pub(crate) fn decode_head(file: &[u8]) -> Option<Summary> {
    let head: &[u8; HEAD] = file.first_chunk()?;
    let is_valid =
        u32_at(head, 0) == crc32c::crc32c(&head[4..]) && matches!(u32_at(head, 4), MAGIC | MAGIC_1);
    let summary = Summary {
        base: u64_at(head, 8),
        first: u64_at(head, 56),
        end: u64_at(head, 16),
        bytes: u64_at(head, 24),
        first_time: u64_at(head, 32),
        last_time: u64_at(head, 40),
    };
    is_valid.then_some(summary)
}

/// Decodes the whole file, if it is valid.
pub(crate) fn decode(file: &[u8]) -> Option<Index> {
    let summary = decode_head(file)?;
    let body = &file[HEAD..];
    let count = u32_at(file, 48) as usize;
    if body.len() != count.checked_mul(ENTRY)? || u32_at(file, 52) != crc32c::crc32c(body) {
        return None;
    }
    let entries = body.chunks_exact(ENTRY).map(|entry| IndexEntry {
        offset: u64_at(entry, 0),
        appended: u64_at(entry, 8),
        position: u32_at(entry, 16),
    });
    let entries: Vec<IndexEntry> = entries.collect();
    let are_inside = entries.iter().all(|entry| u64::from(entry.position) < summary.bytes);
    let last = entries.last().map_or(0, |entry| u64::from(entry.position));
    are_inside.then_some(Index { entries, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(base: u64, appended: u64) -> BatchHeader {
        BatchHeader { base, appended, count: 1, length: 40_000, tag: None }
    }

    #[test]
    fn lookup_returns_position_at_or_before_the_target() {
        let mut index = Index::default();
        for number in 0..10 {
            index.note(number * 40_000, &header(number * 10, number * 100));
        }
        // Batches 2, 4, 6 and 8 are the first beyond 64 KiB from the previous entry.
        let positions: Vec<u32> = index.entries.iter().map(|entry| entry.position).collect();
        assert_eq!(positions, [80_000, 160_000, 240_000, 320_000]);
        assert_eq!(
            [0, 19, 20, 39, 40, 1000].map(|offset| index.position(offset)),
            [0, 0, 80_000, 80_000, 160_000, 320_000]
        );
        assert_eq!(
            [0, 200, 201, 400, 401].map(|time| index.position_of_time(time)),
            [0, 0, 80_000, 80_000, 160_000]
        );
    }

    #[test]
    fn entry_behind_a_position_is_found() {
        let mut index = Index::default();
        (0..5).for_each(|number| index.note(number * 80_000, &header(number * 10, 0)));
        assert_eq!(index.behind(0), Some((80_000, 10)));
        assert_eq!(index.behind(80_000), Some((160_000, 20)));
        assert_eq!(index.behind(320_000), None);
    }

    #[test]
    fn damaged_index_is_rejected() {
        let mut index = Index::default();
        let mut summary = Summary::empty(5, 0, 0);
        for number in 0..5 {
            index.note(number * 80_000, &header(5 + number, 7));
            summary.add(&header(5 + number, 7));
        }
        summary.bytes = 400_000;
        let file = encode(&summary, &index);
        assert_eq!((decode_head(&file), decode(&file)), (Some(summary), Some(index)));
        for at in 0..file.len() {
            let mut bad = file.to_vec();
            bad[at] ^= 1;
            assert_eq!(decode(&bad), None, "{at}");
            assert_eq!(decode_head(&bad).is_none(), at < HEAD, "{at}");
            assert_eq!(decode(&file[..at]), None, "{at}");
        }
    }
}
