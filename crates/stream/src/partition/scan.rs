//! Goes over a segment: what is right, and what is damaged.
//!
//! Each batch leads to the next. Where the chain is broken, only a header with the tag of its place is believed
//! ([`record::find_sealed`]); without a key, nothing behind the damage is. Every byte is searched once at most, and every
//! record verified once at most, whatever the bytes are.

use crate::record::{self, BatchHeader, Effort, Malformed};
use crate::seal::Framing;

/// The scan of a segment's file.
pub(super) struct Scan<'a> {
    bytes: &'a [u8],
    framing: Framing,
    at: usize,
    /// The offset and the time from which a batch may begin.
    next: u64,
    time: u64,
    /// The segment behind replaces what is from this offset on.
    limit: u64,
    /// Whether records are verified.
    verifies: bool,
    pub(super) effort: Effort,
}

/// What a part of a segment is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Batch(u64, BatchHeader),
    Damage(Damage),
    /// From here on it was replaced.
    Replaced(u64),
}

/// A part of a segment that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) wrong: Malformed,
}

impl<'a> Scan<'a> {
    /// Of a whole file, whose batches begin from this offset and time on.
    pub(super) fn new(bytes: &'a [u8], framing: Framing, next: u64, limit: Option<u64>) -> Self {
        let at = bytes.len().min(framing.start as usize);
        let limit = limit.unwrap_or(u64::MAX);
        Self { bytes, framing, at, next, time: 0, limit, verifies: true, effort: Effort::default() }
    }

    /// Looks at headers only.
    pub(super) fn headers(mut self) -> Self {
        self.verifies = false;
        self
    }

    /// The header here, which leads to the next one; and whether its records are right.
    fn batch(&mut self) -> Result<(BatchHeader, Result<(), Malformed>), Malformed> {
        let here = &self.bytes[self.at..];
        let header = BatchHeader::decode(here)?;
        if self.framing.start > 0 && header.tag.is_none() {
            return Err(Malformed::Reserved);
        }
        if let Some(seal) = self.framing.seal() {
            self.effort.tags += 1;
            if !header.is_sealed(seal, self.at as u64) {
                return Err(Malformed::Checksum);
            }
        }
        if header.base < self.next || header.appended < self.time {
            return Err(Malformed::Order);
        }
        if !self.verifies {
            let is_whole = header.length as usize <= here.len();
            return Ok((header, if is_whole { Ok(()) } else { Err(Malformed::Truncated) }));
        }
        let checked = record::split_batch(&mut &here[..]).and_then(|batch| {
            self.effort.verified += u64::from(header.length);
            batch.check()
        });
        Ok((header, checked))
    }

    /// Where the chain goes on behind a header that is wrong.
    fn resume(&mut self) -> usize {
        let behind = self.at + 1;
        let (Some(seal), Some(bytes)) = (self.framing.seal(), self.bytes.get(behind..)) else {
            return self.bytes.len();
        };
        let found = record::find_sealed(bytes, behind as u64, seal, &mut self.effort);
        // A position within the file, which is in memory.
        found.map_or(self.bytes.len(), |(position, _)| position as usize)
    }
}

impl Iterator for Scan<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let start = self.at as u64;
        let (part, end) = match self.batch() {
            Ok((header, _)) if header.end() > self.limit => (Part::Replaced(start), self.bytes.len()),
            Ok((header, records)) => {
                (self.next, self.time) = (header.end(), header.appended);
                let end = self.bytes.len().min(self.at + header.length as usize);
                match records {
                    Ok(()) => (Part::Batch(start, header), end),
                    Err(wrong) => (Part::Damage(Damage { start, end: end as u64, wrong }), end),
                }
            }
            Err(wrong) => {
                let end = self.resume();
                (Part::Damage(Damage { start, end: end as u64, wrong }), end)
            }
        };
        self.at = end;
        Some(part)
    }
}
