//! The streams of one connection: publications that await their acknowledgement, and subscriptions.
//!
//! Catching up and following are one loop: read until the end, then register a waker. The connection sends batches
//! directly from the log's memory, as many as its queue takes. When the queue has drained, the loop continues.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use sinews_server::Context;
use sinews_stream::record::Records;
use sinews_stream::{AppendError, Durability, Pending, Stream};

use super::acks::{AckQueue, PendingAck};
use super::fetch::{FetchedRecords, fetch};
use super::groups::check_group_name;
use super::replies::{AssignedPartition, Replies, ReplyContext, has_outbound_capacity};
use super::request::{AckLevel, PartitionChoice, SubscriptionStart, choose_partition};
use super::service::StreamService;
use super::store::PendingWrite;
use super::subscription::{GroupMembership, SendStep, StreamSubscription};
use super::topic_history::TopicPage;
use super::wake_flag::WakeFlag;
use crate::access::auth::{Denied, Rights};
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};

/// The streams of one connection.
pub(crate) struct ConnectionStreams<I> {
    ack_queues: Vec<AckQueue<I>>,
    /// Publications that are answered only if they fail.
    unanswered: Vec<PendingAck<I>>,
    /// Pending answers in all queues.
    pending_answers: usize,
    /// An append that found the queue full. Reads are paused meanwhile, so there is at most one.
    blocked: Option<BlockedAppend<I>>,
    /// A message whose stream is not open yet. Reads are paused meanwhile.
    deferred: Option<(SharedOpening, Bytes)>,
    /// Pending fetches from the broker.
    fetches: VecDeque<PendingFetch<I>>,
    subscriptions: Vec<StreamSubscription<I>>,
    /// The next subscription to read; round robin prevents starvation.
    next_subscription: usize,
    /// The connection is closing.
    closing: bool,
}

/// Pending answers per connection. Above this limit, reads pause until half of them are sent. The records themselves
/// are bounded by the log's write queue.
const PENDING_ANSWERS_MAX: usize = 16_384;

/// Subscriptions per connection.
const SUBSCRIPTIONS_MAX: usize = 1_024;

/// Partitions that a connection reads in all its subscriptions: each is polled on a wakeup.
const READERS_MAX: usize = 4_096;

struct PendingFetch<I> {
    id: I,
    stream: String,
    partition: u32,
    done: Pin<Box<dyn Future<Output = Result<FetchResult, Problem>>>>,
}

/// The answer that a client requests for an append, with the request's id.
pub(crate) struct RequestedAck<I> {
    pub(crate) id: I,
    pub(crate) level: AckLevel,
}

/// A stream with its store.
pub(crate) struct StreamInStore<'a> {
    pub(crate) store: &'a StreamService,
    pub(crate) stream: Stream,
}

/// The offset that a consumer group commits.
pub(crate) struct GroupOffset<'a> {
    pub(crate) group: &'a str,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
}

/// The records that a client requests: at most so many.
pub(crate) struct RequestedRecords {
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    pub(crate) most: usize,
}

/// The result of a fetch or deletion.
enum FetchResult {
    Fetched(FetchedRecords),
    History(TopicPage<String>),
    Deleted,
}

struct BlockedAppend<I> {
    stream: Stream,
    partition: u32,
    records: Records,
    ack: RequestedAck<I>,
    capacity: Arc<WakeFlag>,
}

impl<I> Default for ConnectionStreams<I> {
    fn default() -> Self {
        Self {
            ack_queues: Vec::new(),
            unanswered: Vec::new(),
            pending_answers: 0,
            blocked: None,
            deferred: None,
            fetches: VecDeque::new(),
            subscriptions: Vec::new(),
            next_subscription: 0,
            closing: false,
        }
    }
}

impl<I> ConnectionStreams<I> {
    /// Appends, and answers when the requested durability is reached. If the queue is full, reads pause until there is
    /// capacity.
    pub(crate) fn append(
        &mut self,
        to: StreamInStore<'_>,
        choice: PartitionChoice,
        records: Records,
        ack: RequestedAck<I>,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        to.store.check_keys(&to.stream, &records)?;
        self.append_own(to, choice, records, ack, replies, cx)
    }

    /// Appends as [`append`](Self::append) does, records whose keys the server has made.
    pub(crate) fn append_own(
        &mut self,
        StreamInStore { store, stream }: StreamInStore<'_>,
        choice: PartitionChoice,
        records: Records,
        ack: RequestedAck<I>,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let partition = choose_partition(&stream, choice, &records)?;
        match store.append(&stream, partition, records.clone()) {
            Ok(pending) => {
                self.acknowledge(stream, partition, pending, ack, replies, cx);
                Ok(())
            }
            Err(AppendError::Busy) => {
                self.blocked = Some(BlockedAppend {
                    stream,
                    partition,
                    records,
                    ack,
                    capacity: WakeFlag::new(cx.waker()),
                });
                self.retry(store, replies, cx);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers an append when the requested durability is reached, or at once if none is requested.
    fn acknowledge(
        &mut self,
        stream: Stream,
        partition: u32,
        pending: Pending,
        RequestedAck { id, level }: RequestedAck<I>,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let Some(durability) = level.durability() else {
            let at = ReplyContext { id: &id, stream: stream.name(), partition };
            return replies.accepted(&at, pending.count(), cx);
        };
        let pending_ack = PendingAck { id, partition, durability, write: PendingWrite::Log(pending) };
        if !replies.acknowledges(&pending_ack.id) && self.unanswered.len() < UNANSWERED_MAX {
            self.unanswered.push(pending_ack);
            return self.send_failures(replies, cx);
        }
        self.queue_ack(stream, Some(partition), pending_ack, replies, cx);
    }

    /// Commits a group's offset, and answers when it is durable.
    pub(crate) fn commit(
        &mut self,
        store: &StreamService,
        stream: Stream,
        GroupOffset { group, partition, offset }: GroupOffset<'_>,
        id: I,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        check_group_name(group)?;
        let own = self.subscriptions.iter().filter(|known| known.stream.name() == stream.name());
        let members = own.filter_map(|known| known.member.as_ref()).filter(|member| member.group == group);
        let memberships = members.map(|member| &member.membership);
        store.groups.check_commit(stream.name(), group, partition, memberships)?;
        store.check_end(&stream, partition, offset)?;
        let write = store.commit(&stream, partition, group, offset)?;
        let pending_ack = PendingAck { id, partition, durability: Durability::Disk, write };
        self.queue_ack(stream, None, pending_ack, replies, cx);
        Ok(())
    }

    /// Starts a subscription. Returns the start offsets by partition; a group member receives them by
    /// [`Replies::assigned`].
    pub(crate) fn subscribe(
        &mut self,
        store: &StreamService,
        stream: Stream,
        choice: PartitionChoice,
        SubscriptionStart { start, group }: SubscriptionStart,
        id: I,
        cx: &Context<'_>,
    ) -> Result<Vec<AssignedPartition>, Problem> {
        if self.subscriptions.len() == SUBSCRIPTIONS_MAX {
            return Err(problem(
                code::TOO_MANY,
                format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions"),
            ));
        }
        let max_partitions = if choice == PartitionChoice::Any { stream.partitions() as usize } else { 1 };
        if self.subscriptions.iter().map(|known| known.max_partitions).sum::<usize>() + max_partitions
            > READERS_MAX
        {
            let text = format!("a connection reads at most {READERS_MAX} partitions");
            return Err(problem(code::TOO_MANY, text));
        }
        let mut new = StreamSubscription {
            id,
            start,
            member: None,
            readers: Vec::new(),
            max_partitions,
            is_reassigned: false,
            stream,
        };
        match group {
            Some(_) if choice != PartitionChoice::Any => {
                return Err(problem(code::TOPIC, "a group assigns the partitions itself: omit partition"));
            }
            Some(group) => {
                check_group_name(&group)?;
                let (name, partitions) = (new.stream.name(), new.stream.partitions());
                let membership = store.groups.join(name, &group, partitions, cx.waker())?;
                new.member = Some(GroupMembership { group, membership });
            }
            None => match choice {
                PartitionChoice::Number(partition) => new.add_partition(store, partition, cx)?,
                PartitionChoice::Any => {
                    (0..new.stream.partitions())
                        .try_for_each(|partition| new.add_partition(store, partition, cx))?;
                }
            },
        }
        let assignments = new.assignments();
        self.subscriptions.push(new);
        // Reading starts after the answer.
        cx.waker().wake();
        Ok(assignments)
    }

    /// Whether such a subscription exists.
    pub(crate) fn has(&self, matches: impl Fn(&I, &str) -> bool) -> bool {
        self.subscriptions.iter().any(|known| matches(&known.id, known.stream.name()))
    }

    /// Ends a subscription; returns whether it existed.
    pub(crate) fn unsubscribe(&mut self, matches: impl Fn(&I, &str) -> bool) -> bool {
        let before = self.subscriptions.len();
        self.subscriptions.retain(|known| !matches(&known.id, known.stream.name()));
        self.subscriptions.len() < before
    }

    /// Ends subscriptions that the rights no longer cover; returns the id, the stream and the denial of each.
    pub(crate) fn end_denied(&mut self, denied: impl Fn(&str) -> Option<Denied>) -> Vec<(I, String, Denied)> {
        let (mut kept, mut ended) = (Vec::new(), Vec::new());
        for known in std::mem::take(&mut self.subscriptions) {
            match denied(known.stream.name()) {
                None => kept.push(known),
                Some(denied) => ended.push((known.id, known.stream.name().to_owned(), denied)),
            }
        }
        self.subscriptions = kept;
        ended
    }

    /// Reads once, and answers with the available records.
    pub(crate) fn fetch(
        &mut self,
        store: &Arc<StreamService>,
        stream: Stream,
        RequestedRecords { partition, offset, most }: RequestedRecords,
        id: I,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let name = stream.name().to_owned();
        let fetched = fetch(Arc::clone(store), stream, partition, offset, most);
        let done = fetched.map(|fetched| fetched.map(FetchResult::Fetched));
        self.reply_when(done, name, partition, id, replies, cx);
    }

    /// Answers with a part of a durable topic's history. Answers keep the request order; one read is in flight at a
    /// time.
    pub(crate) fn reply_with_history(
        &mut self,
        page: impl Future<Output = Result<TopicPage<String>, Problem>> + 'static,
        topic: String,
        id: I,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let done = page.map(|page| page.map(FetchResult::History));
        self.reply_when(done, topic, 0, id, replies, cx);
    }

    /// Deletes a stream, and answers when it is deleted.
    pub(crate) fn delete(
        &mut self,
        store: &Arc<StreamService>,
        name: &str,
        rights: &Rights,
        id: I,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        store.check_delete(name, rights)?;
        let done = store.delete(name)?.map(|deleted| deleted.map(|()| FetchResult::Deleted));
        self.reply_when(done, name.to_owned(), 0, id, replies, cx);
        Ok(())
    }

    fn reply_when(
        &mut self,
        done: impl Future<Output = Result<FetchResult, Problem>> + 'static,
        stream: String,
        partition: u32,
        id: I,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        self.fetches.push_back(PendingFetch { id, stream, partition, done: Box::pin(done) });
        self.pending_answers += 1;
        self.send_fetches(replies, cx);
        self.update_read_pause(cx);
    }

    /// Whether a message waits for its stream.
    pub(crate) fn is_waiting(&self) -> bool {
        self.deferred.is_some()
    }

    /// Stores a message until its stream is open, and pauses reads.
    pub(crate) fn defer(&mut self, opening: SharedOpening, message: Bytes, cx: &mut Context<'_>) {
        self.deferred = Some((opening, message));
        cx.waker().wake();
        cx.pause_reads();
    }

    /// Returns the stored message when its stream is open or has failed, with the failure.
    pub(crate) fn take_deferred(&mut self, cx: &mut Context<'_>) -> Option<(Bytes, Result<(), Problem>)> {
        let (opening, _) = self.deferred.as_mut()?;
        let waker = cx.waker();
        let Poll::Ready(opened) = Pin::new(opening).poll(&mut task::Context::from_waker(&waker)) else {
            return None;
        };
        let (_, message) = self.deferred.take()?;
        self.update_read_pause(cx);
        Some((message, opened))
    }

    /// Handles a wakeup: answers, capacity, group changes, or more records.
    pub(crate) fn woken(
        &mut self,
        store: Option<&StreamService>,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        self.send_acks(replies, cx);
        self.send_fetches(replies, cx);
        self.closing = store.is_some_and(StreamService::is_closed);
        if let Some(store) = store
            && self.blocked.as_ref().is_some_and(|blocked| blocked.capacity.is_woken())
        {
            self.retry(store, replies, cx);
        }
        if let Some(store) = store {
            let mut at = 0;
            while let Some(subscription) = self.subscriptions.get_mut(at) {
                match subscription.apply_reassignment(store, replies, cx) {
                    Ok(()) => at += 1,
                    Err(problem) => {
                        let removed = self.subscriptions.remove(at);
                        replies.failed(&removed.id, problem, cx);
                    }
                }
            }
        }
        self.send_records(replies, cx);
    }

    /// The connection's queue has drained.
    pub(crate) fn drained(
        &mut self,
        store: Option<&StreamService>,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        self.send_acks(replies, cx);
        self.send_fetches(replies, cx);
        self.closing = store.is_some_and(StreamService::is_closed);
        self.send_records(replies, cx);
    }

    /// Sends as much as the connection's queue takes.
    fn send_records(&mut self, replies: &impl Replies<Id = I>, cx: &mut Context<'_>) {
        let count = self.subscriptions.len();
        let mut idle = 0;
        while idle < count {
            if !has_outbound_capacity(cx) || !cx.is_open() {
                return;
            }
            self.next_subscription = (self.next_subscription + 1) % count;
            let subscription = &mut self.subscriptions[self.next_subscription];
            match subscription.send_batches(self.closing, replies, cx) {
                Ok(SendStep::Progress) => idle = 0,
                Ok(SendStep::Idle) => idle += 1,
                Ok(SendStep::Full) => return,
                Err(problem) => {
                    let removed = self.subscriptions.remove(self.next_subscription);
                    replies.failed(&removed.id, problem, cx);
                    return self.send_records(replies, cx);
                }
            }
        }
    }

    /// Retries an append that found the queue full.
    fn retry(&mut self, store: &StreamService, replies: &impl Replies<Id = I>, cx: &mut Context<'_>) {
        let Some(blocked) = self.blocked.take() else { return };
        // Twice, since there may be capacity just now.
        for _ in 0..2 {
            match store.append(&blocked.stream, blocked.partition, blocked.records.clone()) {
                Ok(pending) => {
                    let BlockedAppend { stream, partition, ack, .. } = blocked;
                    self.acknowledge(stream, partition, pending, ack, replies, cx);
                    return self.update_read_pause(cx);
                }
                Err(AppendError::Busy) => {
                    let (stream, partition) = (&blocked.stream, blocked.partition);
                    if !blocked.capacity.arm(|waker| store.has_capacity(stream, partition, waker)) {
                        break;
                    }
                }
                Err(error) => {
                    replies.failed(&blocked.ack.id, error.into(), cx);
                    return self.update_read_pause(cx);
                }
            }
        }
        if blocked.capacity.is_woken() {
            // Other producers were faster.
            cx.waker().wake();
        }
        self.blocked = Some(blocked);
        self.update_read_pause(cx);
    }

    pub(crate) fn update_read_pause(&self, cx: &mut Context<'_>) {
        let is_full = self.pending_answers >= PENDING_ANSWERS_MAX || self.ack_queues.len() >= ACK_QUEUES_MAX;
        if self.blocked.is_some() || self.deferred.is_some() || is_full {
            cx.pause_reads();
        } else if self.pending_answers <= PENDING_ANSWERS_MAX / 2
            && self.ack_queues.len() <= ACK_QUEUES_MAX / 2
        {
            cx.resume_reads();
        }
    }

    fn queue_ack(
        &mut self,
        stream: Stream,
        partition: Option<u32>,
        pending_ack: PendingAck<I>,
        replies: &impl Replies<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let known = |ack_queue: &AckQueue<I>| {
            ack_queue.partition == partition && ack_queue.stream.name() == stream.name()
        };
        let index = self.ack_queues.iter().position(known).unwrap_or_else(|| {
            self.ack_queues.push(AckQueue { stream, partition, queue: VecDeque::new() });
            self.ack_queues.len() - 1
        });
        let ack_queue = &mut self.ack_queues[index];
        ack_queue.queue.push_back(pending_ack);
        self.pending_answers += 1;
        if ack_queue.queue.len() == 1 {
            self.pending_answers -= ack_queue.send_acks(replies, cx);
        }
        if self.ack_queues.len() >= ACK_QUEUES_MAX {
            // Each other queue has an answer that wakes the connection.
            self.ack_queues.retain(|ack_queue| !ack_queue.queue.is_empty());
        }
        if self.pending_answers >= PENDING_ANSWERS_MAX || self.ack_queues.len() >= ACK_QUEUES_MAX {
            cx.pause_reads();
        }
    }

    /// Answers unanswered publications that have failed, and removes those that have succeeded.
    fn send_failures(&mut self, replies: &impl Replies<Id = I>, cx: &mut Context<'_>) {
        if self.unanswered.is_empty() || !has_outbound_capacity(cx) {
            return;
        }
        let waker = cx.waker();
        let mut cx_of_task = task::Context::from_waker(&waker);
        self.unanswered.retain_mut(|one| match one.write.poll_failure(one.durability, &mut cx_of_task) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                if let Err(problem) = result {
                    replies.failed(&one.id, problem, cx);
                }
                false
            }
        });
    }

    /// Sends fetch results in request order.
    fn send_fetches(&mut self, replies: &impl Replies<Id = I>, cx: &mut Context<'_>) {
        let waker = cx.waker();
        let before = self.pending_answers;
        while let Some(first) = self.fetches.front_mut()
            && has_outbound_capacity(cx)
        {
            let Poll::Ready(result) = first.done.as_mut().poll(&mut task::Context::from_waker(&waker)) else {
                break;
            };
            let at = ReplyContext { id: &first.id, stream: &first.stream, partition: first.partition };
            match result {
                Ok(FetchResult::Fetched(fetched)) => replies.fetched(&at, &fetched, cx),
                Ok(FetchResult::History(page)) => replies.history(&at, &page, cx),
                Ok(FetchResult::Deleted) => replies.deleted(&at, cx),
                Err(problem) => replies.failed(&first.id, problem, cx),
            }
            self.fetches.pop_front();
            self.pending_answers -= 1;
        }
        if self.pending_answers < before {
            self.update_read_pause(cx);
        }
    }

    /// Sends the answers that are due.
    fn send_acks(&mut self, replies: &impl Replies<Id = I>, cx: &mut Context<'_>) {
        self.send_failures(replies, cx);
        if self.pending_answers == 0 {
            return;
        }
        for ack_queue in &mut self.ack_queues {
            self.pending_answers -= ack_queue.send_acks(replies, cx);
        }
        // A later write creates the queue again.
        if self.ack_queues.len() > IDLE_ACK_QUEUES_MAX {
            self.ack_queues.retain(|ack_queue| !ack_queue.queue.is_empty());
        }
        self.update_read_pause(cx);
    }
}

/// Publications per connection that are answered only if they fail. Each is polled at every publication and wakeup;
/// further ones wait in order with those that are acknowledged.
const UNANSWERED_MAX: usize = 64;

/// Queues per connection, each with one partition's answers or one stream's commit answers. Above this limit, reads
/// pause until half of them are empty: each publication searches them, and each wakeup polls them.
const ACK_QUEUES_MAX: usize = 256;

/// Empty queues that a connection retains.
const IDLE_ACK_QUEUES_MAX: usize = 16;
