//! A connection's subscription to a stream: the partitions that it reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll, Waker};

use sinews_server::{Context, Sent};
use sinews_stream::{PartitionEvent, ReadResult, StartPosition, Stream, Watcher};

use super::errors::deleted;
use super::fetch::READ_BYTES;
use super::groups::Membership;
use super::replies::{AssignedPartition, Replies, ReplyContext};
use super::service::StreamService;
use super::store::{OffsetLookup, PartitionSource, ReadFailure};
use super::wake_flag::WakeFlag;
use crate::model::problem::{Problem, code, problem};

pub(super) struct StreamSubscription<I> {
    pub(super) id: I,
    pub(super) stream: Stream,
    pub(super) start: StartPosition,
    pub(super) member: Option<GroupMembership>,
    pub(super) readers: Vec<PartitionReader>,
    /// Partitions that may be assigned.
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
    /// The last read, until all its records are sent. A message may have only some records.
    unsent: Option<ReadResult>,
    /// The group's committed offset, until it is known.
    pub(super) committed: Option<OffsetLookup>,
    /// See [`AssignedPartition::is_reset`].
    pub(super) is_reset: bool,
    /// Wakes when there are more records; reading pauses until then.
    pub(super) wake_flag: Arc<WakeFlag>,
    /// Forgets the flag when the reader ends.
    watcher: Watcher,
}

/// The result of one send step.
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
        let (is_reset, unsent) = (false, None);
        let reader =
            PartitionReader { number, source, next, unsent, committed, is_reset, wake_flag, watcher };
        self.readers.push(reader);
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
                    // Rotate: the next partition is first the next time. A read is sent completely before, so that a
                    // subscription holds one at most.
                    let skipped = usize::from(reader.unsent.is_none());
                    let sent =
                        self.readers.iter().position(|known| known.number == at.partition).unwrap_or(0);
                    self.readers.rotate_left(sent + skipped);
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
        let Poll::Ready(read) = self.poll_read() else { return Ok(SendStep::Idle) };
        let (sent, next) = match read {
            Ok(None) => return self.await_records(closing),
            Ok(Some(read)) => {
                let end = self.source.partition().offsets().readable.max(read.next);
                return Ok(self.send_read(read, |from, read| replies.records(at, from, end, read, cx)));
            }
            Err(ReadFailure::Gap(to)) => (replies.gap(at, self.next, to, cx), to),
            // The committed offset is beyond the end of the remaining log.
            Err(ReadFailure::Ahead(readable)) => (Sent::Queued, readable),
            Err(ReadFailure::Failed(problem)) => return Err(problem),
        };
        if sent != Sent::Dropped {
            self.next = next;
        }
        Ok(if sent == Sent::Queued { SendStep::Progress } else { SendStep::Full })
    }

    /// The read whose records are not all sent, or a new one.
    fn poll_read(&mut self) -> Poll<Result<Option<ReadResult>, ReadFailure>> {
        if let Some(read) = self.unsent.take() {
            return Poll::Ready(Ok(Some(read)));
        }
        self.wake_flag.woken.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.wake_flag));
        let read = self.source.poll_read(self.next, READ_BYTES, &waker);
        if read.is_ready() {
            self.wake_flag.woken.store(true, Ordering::Release);
        }
        read
    }

    /// Sends the records of a read until they end, or until the connection's queue is full. Then the read is stored.
    fn send_read(
        &mut self,
        read: ReadResult,
        mut send: impl FnMut(u64, &ReadResult) -> (Sent, u64),
    ) -> SendStep {
        loop {
            let (sent, next) = send(self.next, &read);
            if sent != Sent::Dropped {
                self.next = next;
            }
            let is_complete = self.next >= read.next;
            if sent == Sent::Queued && !is_complete {
                continue;
            }
            self.unsent = (!is_complete).then_some(read);
            return if sent == Sent::Queued { SendStep::Progress } else { SendStep::Full };
        }
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

#[cfg(test)]
mod tests {
    use sinews_stream::record::{RecordBuilder, ValueKind};
    use sinews_stream::{Durability, StreamConfig, Streams, StreamsConfig};

    use super::*;

    #[test]
    fn batch_that_fills_many_messages_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        let partition = streams.create("s", &StreamConfig::default()).unwrap().partition(0).unwrap();
        let mut builder = RecordBuilder::new();
        for _ in 0..100 {
            builder.push(1, b"", &[1; 8_000], ValueKind::Bytes).unwrap();
        }
        let mut pending = partition.append(builder.finish().unwrap()).unwrap();
        pending.block(Durability::Disk).unwrap();
        let mut reader = PartitionReader {
            number: 0,
            source: PartitionSource::new(partition.clone(), None),
            next: 0,
            unsent: None,
            committed: None,
            is_reset: false,
            wake_flag: WakeFlag::new(Waker::noop().clone()),
            watcher: partition.watcher(),
        };
        let before = partition.statistics().read_bytes;
        // A queue that is full after each third message, and drops a message once.
        let (mut messages, mut steps) = (Vec::new(), 0);
        while reader.next < 100 {
            let Poll::Ready(Ok(Some(read))) = reader.poll_read() else { panic!("no read") };
            let step = reader.send_read(read, |from, read| {
                if steps == 2 {
                    return (Sent::Dropped, read.next);
                }
                messages.push(from);
                let sent = if messages.len() % 3 == 0 { Sent::Backpressure } else { Sent::Queued };
                (sent, (from + 7).min(read.next))
            });
            assert_eq!(matches!(step, SendStep::Full), reader.next < 100 || messages.len() % 3 == 0);
            assert_eq!(reader.unsent.is_some(), reader.next < 100);
            steps += 1;
        }
        assert_eq!(messages, (0..100).step_by(7).collect::<Vec<_>>());
        assert!(steps > 5, "{steps}");
        let read = partition.statistics().read_bytes - before;
        assert!((800_000..900_000).contains(&read), "{read} bytes: once");
        streams.close();
    }
}
