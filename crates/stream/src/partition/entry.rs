//! The segments of a partition, with their extent and known damage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::scan::Damage;
use crate::index::Summary;
use crate::segment::Segment;

/// A segment and its extent.
pub(super) struct SegmentEntry {
    pub(super) segment: Arc<Segment>,
    /// Summary of the readable part. For the last segment it is also the written part, except while a write is in
    /// flight.
    pub(super) summary: Summary,
    /// Known damage within the readable part.
    pub(super) damaged: Arc<[DamagedRange]>,
    /// Description of damage at the end of the segment, if any.
    pub(super) damage: Option<Arc<str>>,
}

impl SegmentEntry {
    pub(super) fn new(segment: Arc<Segment>, summary: Summary) -> Self {
        Self { segment, summary, damaged: [].into(), damage: None }
    }

    /// Whether no damage is known: only then may opening the log skip reading the segment.
    pub(super) fn is_intact(&self) -> bool {
        self.damaged.is_empty() && self.damage.is_none()
    }
}

/// A damaged part of a segment, and the offset of the first batch behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DamagedRange {
    pub(super) damage: Damage,
    pub(super) resume: u64,
}

/// Known extent of a segment, and whether all of it is valid.
#[derive(Clone, Copy)]
pub(super) struct KnownExtent {
    pub(super) summary: Summary,
    pub(super) is_intact: bool,
}

impl KnownExtent {
    pub(super) fn new(entry: &SegmentEntry) -> Self {
        Self { summary: entry.summary, is_intact: entry.is_intact() }
    }
}

/// A segment with a missing index, and the wakers of its readers.
pub(super) struct IndexRequest {
    pub(super) segment: Arc<Segment>,
    pub(super) known: KnownExtent,
    pub(super) wakers: VecDeque<Waker>,
}
