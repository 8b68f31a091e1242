//! A subscription of a connection to a stream: the partitions that it reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll, Waker};

use sinews_server::{Context, Sent};
use sinews_stream::{PartitionEvent, StartPosition, Stream, Watcher};

use super::errors::deleted;
use super::fetch::READ_BYTES;
use super::groups::Membership;
use super::replies::{AssignedPartition, Replies, ReplyContext};
use super::service::StreamService;
use super::store::{OffsetLookup, PartitionSource, ReadFailure};
use super::wake_flag::WakeFlag;
use crate::problem::{Problem, code, problem};

pub(super) struct StreamSubscription<I> {
    pub(super) id: I,
    pub(super) stream: Stream,
    pub(super) start: StartPosition,
    pub(super) member: Option<GroupMembership>,
    pub(super) readers: Vec<PartitionReader>,
    /// Number of partitions that may be assigned.
    pub(super) max_partitions: usize,
    /// The member's assignment has changed and is to be sent.
    pub(super) is_reassigned: bool,
}

pub(super) struct GroupMembership {
    pub(super) group: String,
    pub(super) membership: Membership,
}

/// A partition that is read.
pub(super) struct PartitionReader {
    pub(super) number: u32,
    pub(super) source: PartitionSource,
    pub(super) next: u64,
    /// The group's committed offset, until it is known.
    pub(super) committed: Option<OffsetLookup>,
    /// See [`AssignedPartition::is_reset`].
    pub(super) is_reset: bool,
    /// Wakes when there are more records; reading pauses until then.
    pub(super) wake_flag: Arc<WakeFlag>,
    /// Forgets the flag when the reader ends.
    watcher: Watcher,
}

/// The result of one step of sending.
pub(super) enum SendStep {
    /// There may be more records.
    Progress,
    /// No records are available now.
    Idle,
    /// The connection's queue is full.
    Full,
}

impl<I> StreamSubscription<I> {
    pub(super) fn assignments(&self) -> Vec<AssignedPartition> {
        let assigned = |reader: &PartitionReader| AssignedPartition {
            partition: reader.number,
            offset: reader.next,
            is_reset: reader.is_reset,
        };
        self.readers.iter().map(assigned).collect()
    }

    /// Starts to read a partition: at the group's committed offset, or else where the client requested.
    pub(super) fn add_partition(
        &mut self,
        store: &StreamService,
        number: u32,
        cx: &Context<'_>,
    ) -> Result<(), Problem> {
        let source = store.source(&self.stream, number)?;
        let member = self.member.as_ref();
        let committed = member.map(|member| store.committed(&self.stream, number, &member.group));
        let next = if committed.is_some() { 0 } else { store.seek(&self.stream, number, self.start)? };
        let wake_flag = WakeFlag::new(cx.waker());
        let watcher = source.partition().watcher();
        let is_reset = false;
        self.readers.push(PartitionReader { number, source, next, committed, is_reset, wake_flag, watcher });
        Ok(())
    }

    /// Releases partitions that are assigned to other members, and takes over the newly assigned partitions. The member
    /// receives its assignment once all start offsets are known.
    pub(super) fn apply_reassignment(
        &mut self,
        store: &StreamService,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let Some(member) = &self.member else { return Ok(()) };
        if member.membership.is_deleted() {
            return Err(deleted(self.stream.name()));
        }
        let reassignment = member.membership.reassignment();
        self.is_reassigned |= !reassignment.lost.is_empty() || !reassignment.gained.is_empty();
        if !self.is_reassigned {
            return Ok(());
        }
        let group = member.group.clone();
        self.readers.retain(|reader| !reassignment.lost.contains(&reader.number));
        for number in reassignment.gained {
            self.add_partition(store, number, cx)?;
        }
        let waker = cx.waker();
        for reader in &mut self.readers {
            let Some(lookup) = &mut reader.committed else { continue };
            let Poll::Ready(committed) = lookup.poll(&mut task::Context::from_waker(&waker)) else {
                return Ok(());
            };
            let committed = committed?;
            let start = committed.map_or(self.start, |committed| StartPosition::Offset(committed.start));
            if reader.source.partition().poll_seek(start, &waker).is_pending() {
                // A missing index is rebuilt first.
                *lookup = OffsetLookup::Known(committed);
                return Ok(());
            }
            reader.next = store.seek(&self.stream, reader.number, start)?;
            reader.is_reset = committed.is_some_and(|committed| committed.offset != reader.next)
                || store.is_doubtful(&self.stream, reader.number, &group);
            reader.committed = None;
        }
        self.is_reassigned = false;
        replies.assigned(&self.id, self.stream.name(), &self.assignments(), cx);
        self.readers.iter_mut().for_each(|reader| reader.is_reset = false);
        Ok(())
    }

    /// Sends once from each partition that has records.
    pub(super) fn send_batches(
        &mut self,
        closing: bool,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<SendStep, Problem> {
        let mut step = SendStep::Idle;
        for reader in
            self.readers.iter_mut().filter(|reader| reader.committed.is_none() && reader.wake_flag.is_woken())
        {
            let at = ReplyContext { id: &self.id, stream: self.stream.name(), partition: reader.number };
            match reader.send_batch(closing, &at, replies, cx)? {
                SendStep::Full => {
                    // Rotate: the next partition is first the next time.
                    let next =
                        self.readers.iter().position(|known| known.number == at.partition).unwrap_or(0);
                    self.readers.rotate_left(next + 1);
                    return Ok(SendStep::Full);
                }
                SendStep::Progress => step = SendStep::Progress,
                SendStep::Idle => {}
            }
        }
        Ok(step)
    }
}

impl PartitionReader {
    fn send_batch<V: Replies>(
        &mut self,
        closing: bool,
        at: &ReplyContext<'_, V::Id>,
        replies: &V,
        cx: &mut Context<'_>,
    ) -> Result<SendStep, Problem> {
        let from = self.next;
        self.wake_flag.woken.store(false, Ordering::Release);
        let Poll::Ready(read) =
            self.source.poll_read(from, READ_BYTES, &Waker::from(Arc::clone(&self.wake_flag)))
        else {
            return Ok(SendStep::Idle);
        };
        self.wake_flag.woken.store(true, Ordering::Release);
        let (sent, next) = match read {
            Ok(None) => return self.await_records(closing),
            Ok(Some(read)) => {
                let end = self.source.partition().offsets().readable.max(read.next);
                replies.records(at, from, end, &read, cx)
            }
            Err(ReadFailure::Gap(to)) => (replies.gap(at, from, to, cx), to),
            // The committed offset is beyond the end of the remaining log.
            Err(ReadFailure::Ahead(readable)) => (Sent::Queued, readable),
            Err(ReadFailure::Failed(problem)) => return Err(problem),
        };
        if sent != Sent::Dropped {
            self.next = next;
        }
        Ok(if sent == Sent::Queued { SendStep::Progress } else { SendStep::Full })
    }

    /// At the end: registers for more records, unless the stream is closing.
    fn await_records(&self, closing: bool) -> Result<SendStep, Problem> {
        let (next, partition) = (self.next, self.source.partition());
        if self.wake_flag.arm(|waker| self.watcher.watch(PartitionEvent::Readable(next), waker)) {
            return Ok(SendStep::Progress);
        }
        match partition.failure() {
            Some(why) => Err(problem(code::STORE, &*why)),
            None if closing => Err(problem(code::STORE, "the stream is being closed")),
            None => Ok(SendStep::Idle),
        }
    }
}
