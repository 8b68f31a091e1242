//! One sequence of records.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::record::{BATCH_HEADER, BatchHeader, Records};
use crate::{AppendError, Durability, Pending, ReadError};

/// Where to begin reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the first record that is there.
    Earliest,
    /// Behind the last one that may be seen: what comes from now on.
    Latest,
    /// At this offset, or the nearest one that is there.
    Offset(u64),
    /// At the first batch that was appended at this time or later, in microseconds since 1970.
    Time(u64),
}

/// What a waker waits for: see [`Partition::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Past {
    /// Readers may see the record of this offset.
    Readable(u64),
    /// The record of this offset has been synced.
    Durable(u64),
    /// There is room to append: less than half of what may wait does.
    Room,
}

/// How far a partition goes. Each is the offset behind the last record of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ends {
    /// The first record that is there.
    pub earliest: u64,
    /// What readers may see.
    pub readable: u64,
    /// What has been synced.
    pub durable: u64,
    /// What has been appended: the offset that comes next.
    pub next: u64,
}

/// What was read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Read {
    /// Whole batches, shared and not copied; none at the end. The first holds the offset that was asked for, so
    /// that records before it may have to be skipped.
    pub batches: Bytes,
    /// Where to read on.
    pub next: u64,
}

/// Counters since the log was opened, and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes on disk.
    pub bytes: u64,
    /// Segments on disk.
    pub segments: u64,
    /// Bytes that wait to be written.
    pub pending: u64,
    /// Records appended.
    pub records: u64,
    /// Batches appended.
    pub batches: u64,
    /// Bytes written.
    pub written: u64,
    /// Calls that wrote.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Wakers that wait.
    pub waiters: u64,
    /// Whether it has failed.
    pub failed: bool,
}

/// One sequence of records. Cheap to clone.
#[derive(Clone)]
pub struct Partition {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    batches: Vec<(BatchHeader, Bytes)>,
    next: u64,
    waiters: Vec<(u64, Waker)>,
}

impl Partition {
    pub(crate) fn new() -> Self {
        Self { inner: Arc::default() }
    }

    /// Puts records behind the others, as one batch. Never blocks.
    pub fn append(&self, records: Records) -> Result<Pending, AppendError> {
        let next = self.ends().next;
        self.append_at(next, 0, records)
    }

    /// The same with an offset and a time that somebody else has given.
    pub fn append_at(&self, base: u64, appended: u64, records: Records) -> Result<Pending, AppendError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if base < inner.next {
            return Err(AppendError::OutOfOrder { next: inner.next });
        }
        let header = BatchHeader::of(&records, base, appended);
        let mut batch = Vec::with_capacity(BATCH_HEADER + records.bytes().len());
        batch.extend_from_slice(&header.encode());
        batch.extend_from_slice(records.bytes());
        inner.batches.push((header, batch.into()));
        inner.next = header.end();
        let (completer, pending) = Pending::channel(header.count);
        completer.reached(Durability::Broker, base);
        let woken = std::mem::take(&mut inner.waiters);
        drop(inner);
        woken.into_iter().for_each(|(_, waker)| waker.wake());
        Ok(pending)
    }

    /// How far it goes.
    pub fn ends(&self) -> Ends {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, earliest) = (inner.next, inner.batches.first().map_or(inner.next, |batch| batch.0.base));
        Ends { earliest, readable: next, durable: next, next }
    }

    /// The offset at which reading begins.
    pub fn seek(&self, start: Start) -> u64 {
        let ends = self.ends();
        match start {
            Start::Earliest => ends.earliest,
            Start::Latest => ends.readable,
            Start::Offset(offset) => offset.clamp(ends.earliest, ends.readable),
            Start::Time(time) => {
                let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                let found = inner.batches.iter().find(|batch| batch.0.appended >= time);
                found.map_or(ends.readable, |batch| batch.0.base)
            }
        }
    }

    /// Whole batches from the one that holds `from` on.
    pub fn read(&self, from: u64, _max_bytes: usize) -> Result<Read, ReadError> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let found = inner.batches.iter().find(|batch| batch.0.end() > from);
        Ok(found.map_or(Read { batches: Bytes::new(), next: from }, |(header, bytes)| Read {
            batches: bytes.clone(),
            next: header.end(),
        }))
    }

    /// Whether it has happened already; otherwise the waker is called once, when it has, or when the partition fails
    /// or is closed.
    pub fn watch(&self, past: Past, waker: &Waker) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match past {
            Past::Readable(offset) | Past::Durable(offset) if offset >= inner.next => {
                inner.waiters.push((offset, waker.clone()));
                false
            }
            _ => true,
        }
    }

    /// Counters and sizes.
    pub fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    /// Why it takes nothing more, if it has failed.
    pub fn failure(&self) -> Option<Arc<str>> {
        None
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition").field("ends", &self.ends()).finish_non_exhaustive()
    }
}
