//! A stream's entry in the list.

use std::sync::Arc;
use std::task::Waker;

use crate::catalog::{Extent, Known};
use crate::{GroupInfo, PartitionInfo, Stream, StreamInfo, StreamState};

pub(super) struct Slot {
    pub(super) known: Known,
    pub(super) life: Life,
    /// Tasks that wait until the stream is no longer [`Life::Busy`]: at most one per connection.
    pub(super) waiting: Vec<Waker>,
}

#[derive(Clone)]
pub(super) enum Life {
    /// The files are closed; the next use opens them.
    Closed,
    /// A thread creates, opens, closes or deletes the stream.
    Busy,
    Open(Stream),
    /// The stream cannot be opened: the reason, and the time of the last attempt.
    Damaged(Arc<str>, u64),
}

/// Time in microseconds after which a use of a damaged stream retries opening it.
const RETRY: u64 = 10_000_000;

impl Slot {
    pub(super) fn new(known: Known, life: Life) -> Self {
        Self { known, life, waiting: Vec::new() }
    }

    /// Whether a use may open the stream.
    pub(super) fn may_open(&self, now: u64) -> bool {
        match &self.life {
            Life::Closed => true,
            Life::Damaged(_, since) => now.saturating_sub(*since) > RETRY,
            Life::Busy | Life::Open(_) => false,
        }
    }

    pub(super) fn info(&self, name: &Arc<str>) -> StreamInfo {
        if let Life::Open(stream) = &self.life {
            let mut info = stream.info();
            info.last_append = info.last_append.max(self.known.last_append);
            info.last_read = info.last_read.max(self.known.last_read);
            return info;
        }
        let known = &self.known;
        let state = match &self.life {
            Life::Damaged(why, _) => StreamState::Damaged(why.clone()),
            _ => StreamState::Closed,
        };
        let none = vec![Extent::default(); known.config.partitions as usize];
        StreamInfo {
            name: name.clone(),
            created: known.created,
            automatic: known.config.automatic,
            last_append: known.last_append,
            last_read: known.last_read,
            state,
            partitions: known.extents.as_ref().unwrap_or(&none).iter().map(PartitionInfo::from).collect(),
            groups: known.groups.iter().map(GroupInfo::from).collect(),
        }
    }

    /// Metadata for the catalog; of an open stream, the current state.
    pub(super) fn to_known(&self) -> Known {
        let mut known = self.known.clone();
        if let Life::Open(stream) = &self.life {
            stream.note(&mut known);
        }
        known
    }

    /// Whether retention by age is due for a closed stream.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let (Life::Closed, Some(age)) = (&self.life, self.known.config.retain_age) else { return false };
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let is_old = |extent: &Extent| extent.bytes > 0 && now.saturating_sub(extent.first_time) > age;
        self.known.extents.as_ref().is_some_and(|extents| extents.iter().any(is_old))
    }
}

impl From<&Extent> for PartitionInfo {
    fn from(extent: &Extent) -> Self {
        let Extent { earliest, readable, bytes, segments, .. } = *extent;
        Self { earliest, readable, bytes, segments }
    }
}

impl From<&(Box<str>, Vec<(u32, u64)>)> for GroupInfo {
    fn from((name, offsets): &(Box<str>, Vec<(u32, u64)>)) -> Self {
        Self { name: name.clone(), offsets: offsets.clone() }
    }
}
