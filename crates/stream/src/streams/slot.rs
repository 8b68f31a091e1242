//! A stream's entry in the list.

use std::sync::Arc;
use std::task::Waker;

use crate::catalog::{PartitionExtent, StreamMetadata};
use crate::{GroupInfo, PartitionInfo, Stream, StreamConfig, StreamInfo, StreamState};

pub(super) struct StreamSlot {
    pub(super) metadata: StreamMetadata,
    pub(super) state: SlotState,
    /// Tasks that wait until the stream is no longer [`SlotState::Busy`]: at most one per connection.
    pub(super) waiting: Vec<Waker>,
}

#[derive(Clone)]
pub(super) enum SlotState {
    /// The files are closed; the next use opens them.
    Closed,
    /// A thread creates, opens, closes or deletes the stream.
    Busy,
    Open(Stream),
    /// The stream cannot be opened: the reason, and the last attempt's time.
    Damaged(Arc<str>, u64),
}

/// An open stream's configuration, and the times of its last use before it was opened.
pub(super) struct SlotTimes {
    config: StreamConfig,
    last_append: Option<u64>,
    last_read: Option<u64>,
}

impl SlotTimes {
    pub(super) fn info(self, stream: &Stream) -> StreamInfo {
        let mut info = stream.info(&self.config);
        info.last_append = info.last_append.max(self.last_append);
        info.last_read = info.last_read.max(self.last_read);
        info
    }
}

/// Time in microseconds after which a use of a damaged stream retries opening it.
const RETRY: u64 = 10_000_000;

impl StreamSlot {
    pub(super) fn new(metadata: StreamMetadata, state: SlotState) -> Self {
        Self { metadata, state, waiting: Vec::new() }
    }

    /// Whether a use may open the stream.
    pub(super) fn may_open(&self, now: u64) -> bool {
        match &self.state {
            SlotState::Closed => true,
            SlotState::Damaged(_, since) => now.saturating_sub(*since) > RETRY,
            SlotState::Busy | SlotState::Open(_) => false,
        }
    }

    /// What an open stream does not know of itself.
    pub(super) fn times(&self) -> SlotTimes {
        let StreamMetadata { config, last_append, last_read, .. } = &self.metadata;
        SlotTimes { config: config.clone(), last_append: *last_append, last_read: *last_read }
    }

    /// Metadata of a stream that is not open.
    pub(super) fn closed_info(&self, name: &Arc<str>) -> StreamInfo {
        let metadata = &self.metadata;
        let state = match &self.state {
            SlotState::Damaged(reason, _) => StreamState::Damaged(reason.clone()),
            _ => StreamState::Closed,
        };
        let none = vec![PartitionExtent::default(); metadata.config.partitions as usize];
        StreamInfo {
            name: name.clone(),
            created: metadata.created,
            automatic: metadata.config.automatic,
            config: metadata.config.clone(),
            last_append: metadata.last_append,
            last_read: metadata.last_read,
            state,
            partitions: metadata.extents.as_ref().unwrap_or(&none).iter().map(PartitionInfo::from).collect(),
            groups: metadata.groups.iter().map(|(name, offsets)| GroupInfo::new(name, offsets)).collect(),
        }
    }

    /// Whether the stream was created by its first use, and its last use is before this time.
    pub(super) fn is_unused(&self, limit: u64) -> bool {
        let metadata = &self.metadata;
        let closed =
            || metadata.created.max(metadata.last_append.unwrap_or(0)).max(metadata.last_read.unwrap_or(0));
        let last_used = match &self.state {
            SlotState::Busy => return false,
            SlotState::Open(stream) => closed().max(stream.last_used()),
            // Without extents, the stream was open when a process ended: its last append is unknown.
            SlotState::Closed | SlotState::Damaged(..) if metadata.extents.is_none() => return false,
            SlotState::Closed | SlotState::Damaged(..) => closed(),
        };
        metadata.config.automatic && last_used < limit
    }

    /// Metadata for the catalog; for an open stream, the current state.
    pub(super) fn current_metadata(&self) -> StreamMetadata {
        let mut metadata = self.metadata.clone();
        if let SlotState::Open(stream) = &self.state {
            stream.record_metadata(&mut metadata);
        }
        metadata
    }

    /// Whether a compaction is due. A closed stream has no appends since the last one.
    pub(super) fn compaction_is_due(&self, now: u64) -> bool {
        let SlotState::Open(stream) = &self.state else { return false };
        self.metadata.config.compact.is_some() && stream.compaction_is_due(now)
    }

    /// Whether retention by age is due for a closed stream.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let (SlotState::Closed, Some(age)) = (&self.state, self.metadata.config.retain_age) else {
            return false;
        };
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let is_old =
            |extent: &PartitionExtent| extent.bytes > 0 && now.saturating_sub(extent.first_time) > age;
        self.metadata.extents.as_ref().is_some_and(|extents| extents.iter().any(is_old))
    }
}

impl From<&PartitionExtent> for PartitionInfo {
    fn from(extent: &PartitionExtent) -> Self {
        let PartitionExtent { earliest, readable, bytes, segments, .. } = *extent;
        Self { earliest, readable, bytes, segments }
    }
}

impl GroupInfo {
    pub(crate) fn new(name: &str, offsets: &[(u32, u64)]) -> Self {
        Self { name: name.into(), offsets: offsets.to_vec() }
    }
}
