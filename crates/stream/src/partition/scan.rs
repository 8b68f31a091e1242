//! Scans a segment and separates valid batches from damage.
//!
//! Each batch leads to the next. Where the chain is broken, only a header with the tag of its position is accepted
//! ([`record::find_sealed`]); without a key, no batch behind the damage is. Every byte is searched at most once, and
//! every record verified at most once, for any input.

use crate::record::{self, BatchHeader, RecordError, ScanCost};
use crate::seal::SegmentLayout;

/// A scan of a segment's file.
pub(super) struct SegmentScan<'a> {
    bytes: &'a [u8],
    layout: SegmentLayout,
    at: usize,
    /// The minimum offset and time of the next batch.
    next: u64,
    time: u64,
    /// The next segment replaces records from this offset on.
    limit: u64,
    /// Whether records are verified.
    verifies: bool,
    pub(super) cost: ScanCost,
}

/// A segment part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanItem {
    Batch(u64, BatchHeader),
    Damage(Damage),
    /// The rest was replaced by the next segment.
    Replaced(u64),
}

/// A damaged segment part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) wrong: RecordError,
}

impl<'a> SegmentScan<'a> {
    /// Scans a whole file, whose batches begin at or after this offset and time.
    pub(super) fn new(bytes: &'a [u8], layout: SegmentLayout, next: u64, limit: Option<u64>) -> Self {
        let at = bytes.len().min(layout.start as usize);
        let limit = limit.unwrap_or(u64::MAX);
        Self { bytes, layout, at, next, time: 0, limit, verifies: true, cost: ScanCost::default() }
    }

    /// Verifies headers only.
    pub(super) fn headers(mut self) -> Self {
        self.verifies = false;
        self
    }

    /// The header at the current position, which leads to the next one, and whether its records are valid.
    fn batch(&mut self) -> Result<(BatchHeader, Result<(), RecordError>), RecordError> {
        let here = &self.bytes[self.at..];
        let header = BatchHeader::decode(here)?;
        if self.layout.start > 0 && header.tag.is_none() {
            return Err(RecordError::Reserved);
        }
        if let Some(seal) = self.layout.seal() {
            self.cost.tags += 1;
            if !header.is_sealed(seal, self.at as u64) {
                return Err(RecordError::Checksum);
            }
        }
        if header.base < self.next || header.appended < self.time {
            return Err(RecordError::Order);
        }
        if !self.verifies {
            let is_whole = header.length as usize <= here.len();
            return Ok((header, if is_whole { Ok(()) } else { Err(RecordError::Truncated) }));
        }
        let checked = record::split_batch(&mut &here[..]).and_then(|batch| {
            self.cost.verified += u64::from(header.length);
            batch.check()
        });
        Ok((header, checked))
    }

    /// Position at which the chain continues behind an invalid header.
    fn resume(&mut self) -> usize {
        let behind = self.at + 1;
        let (Some(seal), Some(bytes)) = (self.layout.seal(), self.bytes.get(behind..)) else {
            return self.bytes.len();
        };
        let found = record::find_sealed(bytes, behind as u64, seal, &mut self.cost);
        // A position within the file, which is in memory.
        found.map_or(self.bytes.len(), |(position, _)| position as usize)
    }
}

impl Iterator for SegmentScan<'_> {
    type Item = ScanItem;

    fn next(&mut self) -> Option<ScanItem> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let start = self.at as u64;
        let (part, end) = match self.batch() {
            Ok((header, _)) if header.end() > self.limit => (ScanItem::Replaced(start), self.bytes.len()),
            Ok((header, records)) => {
                (self.next, self.time) = (header.end(), header.appended);
                let end = self.bytes.len().min(self.at + header.length as usize);
                match records {
                    Ok(()) => (ScanItem::Batch(start, header), end),
                    Err(wrong) => (ScanItem::Damage(Damage { start, end: end as u64, wrong }), end),
                }
            }
            Err(wrong) => {
                let end = self.resume();
                (ScanItem::Damage(Damage { start, end: end as u64, wrong }), end)
            }
        };
        self.at = end;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{RecordBuilder, RecordLimits, Records, ValueKind};
    use crate::seal::{HEAD, Seal, SegmentHeader};

    fn layout() -> SegmentLayout {
        SegmentLayout::from_header(SegmentHeader {
            seal: Seal::new(0, (3, 4)),
            created: 0,
            synced: true,
            replaces: false,
            compacted: None,
        })
    }

    fn one_record(value: &[u8]) -> Records {
        let mut builder = RecordBuilder::with_limits(RecordLimits::default().with_max_bytes(64 << 20));
        builder.push(0, b"", value, ValueKind::Bytes).unwrap();
        builder.finish().unwrap()
    }

    /// A segment with one batch per value.
    fn segment(values: &[&[u8]]) -> Vec<u8> {
        let mut file = vec![0; HEAD];
        let seal = *layout().seal().unwrap();
        for (base, value) in values.iter().enumerate() {
            let records = one_record(value);
            let header = BatchHeader::new(&records, base as u64, 0).sealed(&seal, file.len() as u64);
            file.extend_from_slice(&header.encode());
            file.extend_from_slice(records.bytes());
        }
        file
    }

    /// Nested headers, each of which claims all bytes behind it and is valid except for the tag, followed by records
    /// that make the claimed content valid.
    fn nested(bytes: usize) -> Vec<u8> {
        let end = one_record(b"the innermost record");
        let mut payload = Vec::new();
        while payload.len() + 60 + end.bytes().len() < bytes {
            let left = (bytes - payload.len()) as u32;
            let header = BatchHeader { base: 1, appended: 0, count: 1, length: left, tag: Some(9) };
            payload.extend_from_slice(&header.encode());
        }
        payload.extend_from_slice(end.bytes());
        payload.resize(bytes, 0);
        payload
    }

    fn scan(file: &[u8]) -> (Vec<ScanItem>, ScanCost) {
        let mut scan = SegmentScan::new(file, layout(), 0, None);
        let parts = scan.by_ref().collect();
        (parts, scan.cost)
    }

    #[test]
    fn nested_headers_are_scanned_in_linear_time() {
        for bytes in [1 << 20, 8 << 20] {
            let mut file = segment(&[b"first", &nested(bytes), b"last"]);
            let second = HEAD + 40 + 20 + 5;
            let total = file.len() as u64;
            // Damage to the header, damage to the records, and a truncated end.
            for (at, end) in [(second + 9, total), (second + 100, total), (second + 9, total - 100)] {
                file.truncate(end as usize);
                file[at] ^= 1;
                let (parts, cost) = scan(&file);
                let batches = parts.iter().filter(|part| matches!(part, ScanItem::Batch(..))).count();
                assert_eq!(batches, if end == total { 2 } else { 1 }, "{parts:?}");
                assert!(cost.searched <= end && cost.verified <= end, "{cost:?} of {end}");
                // Flags can be at each fourth byte, and headers with valid checksums are 40 bytes apart here.
                assert!(cost.tags <= end / 40 + 3 && cost.heads <= end / 4, "{cost:?} of {end}");
                file[at] ^= 1;
            }
        }
    }

    #[test]
    fn torn_end_is_not_searched() {
        let file = segment(&[b"first", &nested(1 << 20)]);
        let (parts, cost) = scan(&file[..file.len() - 1]);
        assert_eq!((parts.len(), cost.searched, cost.tags), (2, 0, 2));
    }

    #[test]
    fn damaged_records_do_not_hide_the_next_batch() {
        let mut file = segment(&[b"first", b"second", b"third"]);
        file[HEAD + 65 + 65] ^= 1;
        let (parts, cost) = scan(&file);
        assert!(
            matches!(parts[1], ScanItem::Damage(Damage { wrong: RecordError::Checksum, .. })),
            "{parts:?}"
        );
        assert!(matches!(parts[2], ScanItem::Batch(_, header) if header.base == 2), "{parts:?}");
        assert_eq!(cost.searched, 0);
    }

    #[test]
    fn batch_of_another_position_or_segment_is_rejected() {
        let file = segment(&[b"first", b"second"]);
        // The same batch at another position, and under another key.
        let moved = [&file[..HEAD], &[0; 7], &file[HEAD..]].concat();
        assert!(matches!(scan(&moved).0[..], [ScanItem::Damage(_)]));
        let other = SegmentLayout::from_header(SegmentHeader {
            seal: Seal::new(0, (3, 5)),
            ..layout().head.unwrap()
        });
        let parts: Vec<ScanItem> = SegmentScan::new(&file, other, 0, None).collect();
        assert!(matches!(parts[..], [ScanItem::Damage(_)]));
    }

    #[test]
    fn replaced_batches_are_skipped() {
        let file = segment(&[b"first", b"second", b"third"]);
        let parts: Vec<ScanItem> = SegmentScan::new(&file, layout(), 0, Some(1)).collect();
        assert!(matches!(parts[..], [ScanItem::Batch(..), ScanItem::Replaced(_)]), "{parts:?}");
    }
}
