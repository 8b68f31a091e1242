//! From a broker into the log of this node: records one after the other become batches with the broker's offsets.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::record::{RecordBuilder, Records};
use crate::{AppendError, Partition, Past, Start};

/// Bytes of a batch: enough that its header and its place in an index cost nothing, few enough that a reader who
/// wants one record is not lent much more.
pub(super) const BATCH_BYTES: usize = 256 << 10;

/// A partition of the log that follows one of a broker.
pub(super) struct Sink {
    partition: Partition,
    builder: RecordBuilder,
    base: u64,
    /// Whole batches that the log has not taken yet. There is more than one only if more was put in although
    /// [`is_full`](Self::is_full).
    held: VecDeque<(u64, Records)>,
    /// The offset that comes next, or a later one.
    next: u64,
    /// The latest time of a batch: they do not go back.
    time: u64,
    newest: u64,
}

/// What became of what is in a [`Sink`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The log has it.
    On,
    /// The log has no room, and the waker is called when it has.
    Full,
    /// The disk has no room; worth another try in a while.
    NoSpace,
}

impl Sink {
    pub(super) fn new(partition: Partition) -> Self {
        let next = partition.ends().next;
        let (builder, held) = (RecordBuilder::new(), VecDeque::new());
        Self { partition, builder, base: next, held, next, time: 0, newest: 0 }
    }

    /// The offset from which on records are wanted.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Where to begin, if that is what was asked for and the log has this much already.
    pub(super) fn beginning(&self, from: Start) -> Start {
        match from {
            Start::Offset(offset) => Start::Offset(offset.max(self.next)),
            Start::Earliest if self.next > 0 => Start::Offset(self.next),
            from => from,
        }
    }

    /// Whether a whole batch waits, which should leave before more is put in.
    pub(super) fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// Puts a record behind the others. `time` is its own, in microseconds; `push` says `false` if it is none that
    /// the log can hold, and it is left out.
    pub(super) fn push(
        &mut self,
        offset: u64,
        time: u64,
        push: impl FnOnce(&mut RecordBuilder) -> bool,
    ) -> bool {
        let follows = offset == self.base + u64::from(self.builder.count());
        if !follows || self.builder.len() >= BATCH_BYTES {
            self.seal();
        }
        if self.builder.is_empty() {
            self.base = offset;
        }
        self.newest = self.newest.max(time);
        self.next = offset + 1;
        push(&mut self.builder)
    }

    /// Ends the batch.
    fn seal(&mut self) {
        self.held.extend(self.builder.finish().map(|records| (self.base, records)));
    }

    /// Gives the log what was put in.
    ///
    /// # Errors
    ///
    /// What keeps the log from ever taking it.
    pub(super) fn flush(&mut self, waker: &Waker) -> Result<Flow, AppendError> {
        self.seal();
        while let Some((base, records)) = self.held.pop_front() {
            let flow = match self.append(base, &records) {
                Ok(()) => continue,
                // In the meantime there may be room.
                Err(AppendError::Busy) if self.partition.watch(Past::Room, waker) => None,
                Err(AppendError::Busy) => Some(Flow::Full),
                Err(AppendError::NoSpace) => Some(Flow::NoSpace),
                Err(error) => return Err(error),
            };
            self.held.push_front((base, records));
            if let Some(flow) = flow {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn append(&mut self, base: u64, records: &Records) -> Result<(), AppendError> {
        // The log searches by this time. That of the records is what the broker searches by; a producer whose clock
        // is ahead must not hide what comes behind it.
        let now = now();
        let time = self.newest.min(now).max(self.time);
        let result = match self.partition.append_at(base, time, records.clone()) {
            // The log has batches of an earlier run, from a clock that was ahead of these records.
            Err(AppendError::OutOfOrder { next }) if next <= base => {
                self.partition.append_at(base, now.max(time), records.clone())
            }
            result => result,
        };
        if result.is_ok() {
            self.time = time;
        }
        result.map(|_| ())
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
