//! The written and unsynced end of a segment, also after a sync that found no space.

use std::io;

use crate::disk::{Disk, DiskFile};
use crate::record;
use crate::seal::{HEAD, SegmentLayout};
use crate::segment::Segment;

/// The end of the last segment that no sync has covered.
#[derive(Clone, Copy, Default)]
pub(super) struct Unsynced {
    /// Start position in the file.
    pub(super) from: u64,
    /// A sync of this range has found no space: the system may count its pages as written, or drop them.
    pub(super) needs_rewrite: bool,
}

impl Unsynced {
    /// Syncs the file, whose batches end at `end`. Bytes whose sync has found no space are rewritten first, since
    /// another sync alone would not cover them. They are verified afterwards, since the system may have dropped them.
    pub(super) fn sync(
        self,
        disk: &dyn Disk,
        segment: &Segment,
        file: &dyn DiskFile,
        end: u64,
    ) -> io::Result<()> {
        if !self.needs_rewrite {
            return file.sync();
        }
        disk.rewrite(segment.path(), self.from)?;
        verify(segment, file, self.from..end)
    }
}

fn verify(segment: &Segment, file: &dyn DiskFile, range: std::ops::Range<u64>) -> io::Result<()> {
    let lost = |at: u64, reason: &dyn std::fmt::Display| {
        io::Error::other(format!(
            "a sync found no space, and the system has dropped written bytes: {reason} at byte {at}"
        ))
    };
    let layout = SegmentLayout::decode(&file.read_shared(0..HEAD as u64)?, segment.base);
    let seal = layout.seal().ok_or_else(|| lost(0, &"the segment has no head"))?;
    let bytes = file.read_shared(range.start.max(HEAD as u64)..range.end)?;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let at = range.end - rest.len() as u64;
        let batch = record::split_batch(&mut rest).map_err(|wrong| lost(at, &wrong))?;
        if !batch.header().is_sealed(seal, at) {
            return Err(lost(at, &"the header belongs to another position"));
        }
        batch.check().map_err(|wrong| lost(at, &wrong))?;
    }
    Ok(())
}
