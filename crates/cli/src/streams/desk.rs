//! The streams of one connection: publications that await their acknowledgement, and subscriptions.
//!
//! Catching up and following are one loop: read until the end, then register a waker. The connection sends batches
//! directly from the log's memory, as many as its queue takes. When the queue has drained, the loop continues.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::FutureExt;
use sinews_server::{Context, Sent};
use sinews_stream::record::Records;
use sinews_stream::{AppendError, Appended, Durability, Past, Pending, Read, Start, Stream};

use super::bridge::{Opening, Source, Unread};
use super::groups::Membership;
use super::{Ack, Begin, Committed, Fetched, READ_BYTES, Store, Under, Which, choose};
use crate::auth::{Denied, Rights};
use crate::protocol::{Problem, code, problem};

/// Encodes replies and events for one protocol.
pub(crate) trait Voice {
    /// The id of a client's request.
    type Id;

    fn published(&self, at: &Place<'_, Self::Id>, appended: Appended, cx: &mut Context<'_>);
    /// Records of a publication without acknowledgement were accepted.
    fn taken(&self, _at: &Place<'_, Self::Id>, _count: u32, _cx: &mut Context<'_>) {}
    fn committed(&self, at: &Place<'_, Self::Id>, cx: &mut Context<'_>);
    /// The client's request to delete a stream is done.
    fn deleted(&self, at: &Place<'_, Self::Id>, cx: &mut Context<'_>);
    fn failed(&self, id: &Self::Id, problem: Problem, cx: &mut Context<'_>);
    /// Records from an offset on; earlier records of the first batch do not count. `end` is the end of the readable
    /// records. Returns the next offset too; it is before the end of the batches if they contain damage.
    fn records(
        &self,
        at: &Place<'_, Self::Id>,
        from: u64,
        end: u64,
        read: &Read,
        cx: &mut Context<'_>,
    ) -> (Sent, u64);
    /// The result of a fetch.
    fn fetched(&self, at: &Place<'_, Self::Id>, fetched: &Fetched, cx: &mut Context<'_>);
    /// Records that do not exist any more, and the next offset.
    fn gap(&self, at: &Place<'_, Self::Id>, from: u64, to: u64, cx: &mut Context<'_>) -> Sent;
    /// The partitions that are assigned to a member of a group, with their start offsets.
    fn assigned(&self, id: &Self::Id, stream: &str, assigned: &[Assigned], cx: &mut Context<'_>);
}

/// Where reading of a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    /// The group's committed offset may be lost, or reading cannot start there. The member receives this once.
    pub(crate) is_reset: bool,
}

/// The request of a reply: its id, stream and partition.
pub(crate) struct Place<'a, I> {
    pub(crate) id: &'a I,
    pub(crate) stream: &'a str,
    pub(crate) partition: u32,
}

pub(crate) struct Desk<I> {
    lanes: Vec<Lane<I>>,
    /// Pending answers in all lanes.
    awaited: usize,
    /// An append that found the queue full. Reads are paused meanwhile, so there is at most one.
    waiting: Option<Waiting<I>>,
    /// A message whose stream is not open yet. Reads are paused meanwhile.
    parked: Option<(Opening, Bytes)>,
    /// Pending fetches from the broker.
    fetches: VecDeque<Fetch<I>>,
    subscriptions: Vec<Subscription<I>>,
    /// The next subscription to feed; round robin prevents starvation.
    turn: usize,
    /// The connection is closing.
    closing: bool,
}

/// Pending answers of a connection. Above this limit, reads pause until half of them are sent. The records themselves
/// are bounded by the log's write queue.
const AWAITED_MAX: usize = 16_384;

/// Subscriptions of a connection.
const SUBSCRIPTIONS_MAX: usize = 1_024;

/// Partitions that a connection reads in all its subscriptions: each is polled on a wakeup.
const FEEDS_MAX: usize = 4_096;

/// Pending appends to one partition, or commits of one stream. They complete in order, so only the first is polled.
struct Lane<I> {
    stream: Stream,
    /// `None` for commits.
    partition: Option<u32>,
    queue: VecDeque<Awaited<I>>,
}

struct Awaited<I> {
    id: I,
    partition: u32,
    durability: Durability,
    under: Under,
}

struct Fetch<I> {
    id: I,
    stream: String,
    partition: u32,
    done: Pin<Box<dyn Future<Output = Result<Done, Problem>>>>,
}

/// The result of a fetch or deletion.
enum Done {
    Fetched(Fetched),
    Deleted,
}

struct Waiting<I> {
    id: I,
    stream: Stream,
    partition: u32,
    records: Records,
    ack: Ack,
    room: Arc<Alarm>,
}

struct Subscription<I> {
    id: I,
    stream: Stream,
    start: Start,
    member: Option<Member>,
    feeds: Vec<Feed>,
    /// Number of partitions that may be assigned.
    width: usize,
    /// The member's assignment has changed and is to be sent.
    has_moved: bool,
}

struct Member {
    group: String,
    membership: Membership,
}

/// A partition that is read.
struct Feed {
    number: u32,
    source: Source,
    next: u64,
    /// The group's committed offset, until it is known.
    committed: Option<Committed>,
    /// See [`Assigned::is_reset`].
    is_reset: bool,
    /// Wakes when there are more records; the feed pauses until then.
    alarm: Arc<Alarm>,
}

/// A waker that remembers whether it was woken.
pub(super) struct Alarm {
    rung: AtomicBool,
    whom: Waker,
}

impl Alarm {
    /// Creates an alarm that is already woken.
    pub(super) fn new(whom: Waker) -> Arc<Self> {
        Arc::new(Self { rung: AtomicBool::new(true), whom })
    }

    pub(super) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Arms the alarm; returns whether the awaited event has happened already.
    pub(super) fn set(self: &Arc<Self>, watch: impl FnOnce(&Waker) -> bool) -> bool {
        self.rung.store(false, Ordering::Release);
        let happened = watch(&Waker::from(Arc::clone(self)));
        if happened {
            self.rung.store(true, Ordering::Release);
        }
        happened
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.whom.wake_by_ref();
    }
}

/// The result of one step of feeding.
enum Step {
    /// There may be more records.
    Fed,
    /// No records are available now.
    Idle,
    /// The connection's queue is full.
    Full,
}

impl<I> Default for Desk<I> {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            awaited: 0,
            waiting: None,
            parked: None,
            fetches: VecDeque::new(),
            subscriptions: Vec::new(),
            turn: 0,
            closing: false,
        }
    }
}

impl<I> Desk<I> {
    /// Appends, and answers when the requested durability is reached. If the queue is full, reads pause until there is
    /// capacity.
    pub(crate) fn publish(
        &mut self,
        (store, stream): (&Store, Stream),
        which: Which,
        records: Records,
        (id, ack): (I, Ack),
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let partition = choose(&stream, which, &records)?;
        match store.append(&stream, partition, records.clone()) {
            Ok(pending) => {
                self.appended((stream, partition), pending, (id, ack), voice, cx);
                Ok(())
            }
            Err(AppendError::Busy) => {
                self.waiting =
                    Some(Waiting { id, stream, partition, records, ack, room: Alarm::new(cx.waker()) });
                self.retry(store, voice, cx);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers an append when the requested durability is reached, or at once if none is requested.
    fn appended(
        &mut self,
        (stream, partition): (Stream, u32),
        pending: Pending,
        (id, ack): (I, Ack),
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let Some(durability) = ack.durability() else {
            let at = Place { id: &id, stream: stream.name(), partition };
            return voice.taken(&at, pending.count(), cx);
        };
        let awaited = Awaited { id, partition, durability, under: Under::Way(pending) };
        self.await_answer(stream, Some(partition), awaited, voice, cx);
    }

    /// Commits the offset of a group, and answers when it is durable.
    pub(crate) fn commit(
        &mut self,
        (store, stream): (&Store, Stream),
        (group, partition, offset): (&str, u32, u64),
        id: I,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let under = store.commit(&stream, partition, group, offset)?;
        let awaited = Awaited { id, partition, durability: Durability::Disk, under };
        self.await_answer(stream, None, awaited, voice, cx);
        Ok(())
    }

    /// Starts a subscription. Returns the start offsets by partition; a member of a group receives them by
    /// [`Voice::assigned`].
    pub(crate) fn subscribe(
        &mut self,
        (store, stream): (&Store, Stream),
        which: Which,
        Begin { start, group }: Begin,
        id: I,
        cx: &Context<'_>,
    ) -> Result<Vec<Assigned>, Problem> {
        if self.subscriptions.len() == SUBSCRIPTIONS_MAX {
            return Err(problem(
                code::TOO_MANY,
                format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions"),
            ));
        }
        let width = if which == Which::Any { stream.partitions() as usize } else { 1 };
        if self.subscriptions.iter().map(|known| known.width).sum::<usize>() + width > FEEDS_MAX {
            let words = format!("a connection reads at most {FEEDS_MAX} partitions");
            return Err(problem(code::TOO_MANY, words));
        }
        let mut new =
            Subscription { id, start, member: None, feeds: Vec::new(), width, has_moved: false, stream };
        match group {
            Some(_) if which != Which::Any => {
                return Err(problem(code::TOPIC, "a group assigns the partitions itself: omit partition"));
            }
            Some(group) => {
                if group.len() > GROUP_MAX || group.chars().any(char::is_control) {
                    let words =
                        format!("a group's name has 1 to {GROUP_MAX} bytes and no control characters");
                    return Err(problem(code::TOPIC, words));
                }
                let (name, partitions) = (new.stream.name(), new.stream.partitions());
                let membership = store.groups.join(name, &group, partitions, cx.waker())?;
                new.member = Some(Member { group, membership });
            }
            None => match which {
                Which::This(partition) => new.read(store, partition, cx)?,
                Which::Any => {
                    (0..new.stream.partitions()).try_for_each(|partition| new.read(store, partition, cx))?;
                }
            },
        }
        let places = new.places();
        self.subscriptions.push(new);
        // Feeding starts after the answer.
        cx.waker().wake();
        Ok(places)
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
        (store, stream): (&Arc<Store>, Stream),
        (partition, offset, most): (u32, u64, usize),
        id: I,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let name = stream.name().to_owned();
        let fetched = super::fetch(Arc::clone(store), stream, partition, offset, most);
        self.answer_with(fetched, (name, partition), id, voice, cx);
    }

    /// Answers with the result of one read of a partition. Answers keep the order of the requests; one read is in
    /// flight at a time.
    pub(crate) fn answer_with(
        &mut self,
        fetched: impl Future<Output = Result<Fetched, Problem>> + 'static,
        (stream, partition): (String, u32),
        id: I,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let done = fetched.map(|fetched| fetched.map(Done::Fetched));
        self.answer_when(done, (stream, partition), id, voice, cx);
    }

    /// Deletes a stream, and answers when it is deleted.
    pub(crate) fn delete(
        &mut self,
        (store, name): (&Arc<Store>, &str),
        rights: &Rights,
        id: I,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        store.check_delete(name, rights)?;
        let done = store.delete(name)?.map(|deleted| deleted.map(|()| Done::Deleted));
        self.answer_when(done, (name.to_owned(), 0), id, voice, cx);
        Ok(())
    }

    fn answer_when(
        &mut self,
        done: impl Future<Output = Result<Done, Problem>> + 'static,
        (stream, partition): (String, u32),
        id: I,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) {
        self.fetches.push_back(Fetch { id, stream, partition, done: Box::pin(done) });
        self.awaited += 1;
        self.answer_fetches(voice, cx);
        self.hold_or_release(cx);
    }

    /// Stores a message until its stream is open, and pauses reads.
    pub(crate) fn park(&mut self, opening: Opening, message: Bytes, cx: &mut Context<'_>) {
        self.parked = Some((opening, message));
        cx.waker().wake();
        cx.hold();
    }

    /// Returns the stored message when its stream is open or has failed, with the failure.
    pub(crate) fn unpark(&mut self, cx: &mut Context<'_>) -> Option<(Bytes, Result<(), Problem>)> {
        let (opening, _) = self.parked.as_mut()?;
        let waker = cx.waker();
        let Poll::Ready(opened) = Pin::new(opening).poll(&mut task::Context::from_waker(&waker)) else {
            return None;
        };
        let (_, message) = self.parked.take()?;
        self.hold_or_release(cx);
        Some((message, opened))
    }

    /// Handles a wakeup: answers, capacity, changes of groups, or more records.
    pub(crate) fn woken(&mut self, store: Option<&Store>, voice: &impl Voice<Id = I>, cx: &mut Context<'_>) {
        self.answer(voice, cx);
        self.answer_fetches(voice, cx);
        self.closing = store.is_some_and(Store::is_closed);
        if let Some(store) = store
            && self.waiting.as_ref().is_some_and(|waiting| waiting.room.has_rung())
        {
            self.retry(store, voice, cx);
        }
        if let Some(store) = store {
            let mut at = 0;
            while let Some(subscription) = self.subscriptions.get_mut(at) {
                match subscription.move_over(store, voice, cx) {
                    Ok(()) => at += 1,
                    Err(problem) => {
                        let gone = self.subscriptions.remove(at);
                        voice.failed(&gone.id, problem, cx);
                    }
                }
            }
        }
        self.feed(voice, cx);
    }

    /// The connection's queue has drained.
    pub(crate) fn drained(
        &mut self,
        store: Option<&Store>,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) {
        self.answer(voice, cx);
        self.answer_fetches(voice, cx);
        self.closing = store.is_some_and(Store::is_closed);
        self.feed(voice, cx);
    }

    /// Sends as much as the connection's queue takes.
    fn feed(&mut self, voice: &impl Voice<Id = I>, cx: &mut Context<'_>) {
        let count = self.subscriptions.len();
        let mut idle = 0;
        while idle < count {
            if !takes_more(cx) || !cx.is_open() {
                return;
            }
            self.turn = (self.turn + 1) % count;
            let subscription = &mut self.subscriptions[self.turn];
            match subscription.step(self.closing, voice, cx) {
                Ok(Step::Fed) => idle = 0,
                Ok(Step::Idle) => idle += 1,
                Ok(Step::Full) => return,
                Err(problem) => {
                    let gone = self.subscriptions.remove(self.turn);
                    voice.failed(&gone.id, problem, cx);
                    return self.feed(voice, cx);
                }
            }
        }
    }

    /// Retries an append that found the queue full.
    fn retry(&mut self, store: &Store, voice: &impl Voice<Id = I>, cx: &mut Context<'_>) {
        let Some(waiting) = self.waiting.take() else { return };
        // Twice, since there may be capacity just now.
        for _ in 0..2 {
            match store.append(&waiting.stream, waiting.partition, waiting.records.clone()) {
                Ok(pending) => {
                    let Waiting { id, stream, partition, ack, .. } = waiting;
                    self.appended((stream, partition), pending, (id, ack), voice, cx);
                    return self.hold_or_release(cx);
                }
                Err(AppendError::Busy) => {
                    let (stream, partition) = (&waiting.stream, waiting.partition);
                    if !waiting.room.set(|waker| store.has_room(stream, partition, waker)) {
                        break;
                    }
                }
                Err(error) => {
                    voice.failed(&waiting.id, error.into(), cx);
                    return self.hold_or_release(cx);
                }
            }
        }
        if waiting.room.has_rung() {
            // Other producers were faster.
            cx.waker().wake();
        }
        self.waiting = Some(waiting);
        self.hold_or_release(cx);
    }

    fn hold_or_release(&self, cx: &mut Context<'_>) {
        if self.waiting.is_some() || self.parked.is_some() || self.awaited >= AWAITED_MAX {
            cx.hold();
        } else if self.awaited <= AWAITED_MAX / 2 {
            cx.release();
        }
    }

    fn await_answer(
        &mut self,
        stream: Stream,
        partition: Option<u32>,
        awaited: Awaited<I>,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) {
        let known = |lane: &Lane<I>| lane.partition == partition && lane.stream.name() == stream.name();
        let place = self.lanes.iter().position(known).unwrap_or_else(|| {
            self.lanes.push(Lane { stream, partition, queue: VecDeque::new() });
            self.lanes.len() - 1
        });
        let lane = &mut self.lanes[place];
        lane.queue.push_back(awaited);
        self.awaited += 1;
        if lane.queue.len() == 1 {
            self.awaited -= lane.answer(voice, cx);
        }
        if self.awaited >= AWAITED_MAX {
            cx.hold();
        }
    }

    /// Sends the results of fetches in the order of the requests.
    fn answer_fetches(&mut self, voice: &impl Voice<Id = I>, cx: &mut Context<'_>) {
        let waker = cx.waker();
        let before = self.awaited;
        while let Some(first) = self.fetches.front_mut()
            && takes_more(cx)
        {
            let Poll::Ready(result) = first.done.as_mut().poll(&mut task::Context::from_waker(&waker)) else {
                break;
            };
            let at = Place { id: &first.id, stream: &first.stream, partition: first.partition };
            match result {
                Ok(Done::Fetched(fetched)) => voice.fetched(&at, &fetched, cx),
                Ok(Done::Deleted) => voice.deleted(&at, cx),
                Err(problem) => voice.failed(&first.id, problem, cx),
            }
            self.fetches.pop_front();
            self.awaited -= 1;
        }
        if self.awaited < before {
            self.hold_or_release(cx);
        }
    }

    /// Sends the answers that are due.
    fn answer(&mut self, voice: &impl Voice<Id = I>, cx: &mut Context<'_>) {
        if self.awaited == 0 {
            return;
        }
        for lane in &mut self.lanes {
            self.awaited -= lane.answer(voice, cx);
        }
        // A later write creates the lane again.
        if self.lanes.len() > LANES_KEPT {
            self.lanes.retain(|lane| !lane.queue.is_empty());
        }
        self.hold_or_release(cx);
    }
}

/// Whether an answer stays below the limit of the outbound queue; if not, [`Desk::drained`] follows.
fn takes_more(cx: &Context<'_>) -> bool {
    cx.buffered() <= cx.config().high_water()
}

/// Longest name of a group, in bytes.
const GROUP_MAX: usize = 255;

/// Empty lanes that a connection retains.
const LANES_KEPT: usize = 16;

impl<I> Lane<I> {
    /// Sends completed answers in order; returns their number.
    fn answer(&mut self, voice: &impl Voice<Id = I>, cx: &mut Context<'_>) -> usize {
        let waker = cx.waker();
        let mut answered = 0;
        while let Some(first) = self.queue.front_mut()
            && takes_more(cx)
        {
            let Poll::Ready(result) =
                first.under.poll(first.durability, &mut task::Context::from_waker(&waker))
            else {
                break;
            };
            let at = Place { id: &first.id, stream: self.stream.name(), partition: first.partition };
            match result {
                Ok(Some(appended)) if self.partition.is_some() => voice.published(&at, appended, cx),
                Ok(_) => voice.committed(&at, cx),
                Err(problem) => voice.failed(&first.id, problem, cx),
            }
            self.queue.pop_front();
            answered += 1;
        }
        answered
    }
}

impl<I> Subscription<I> {
    fn places(&self) -> Vec<Assigned> {
        let assigned =
            |feed: &Feed| Assigned { partition: feed.number, offset: feed.next, is_reset: feed.is_reset };
        self.feeds.iter().map(assigned).collect()
    }

    /// Starts to read a partition: at the group's committed offset, or else where the client requested.
    fn read(&mut self, store: &Store, number: u32, cx: &Context<'_>) -> Result<(), Problem> {
        let source = store.source(&self.stream, number)?;
        let member = self.member.as_ref();
        let committed = member.map(|member| store.committed(&self.stream, number, &member.group));
        let next = if committed.is_some() { 0 } else { store.seek(&self.stream, number, self.start)? };
        let alarm = Alarm::new(cx.waker());
        self.feeds.push(Feed { number, source, next, committed, is_reset: false, alarm });
        Ok(())
    }

    /// Releases partitions that are assigned to other members, and takes over the newly assigned partitions. The member
    /// receives its assignment once all start offsets are known.
    fn move_over(
        &mut self,
        store: &Store,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let Some(member) = &self.member else { return Ok(()) };
        if member.membership.is_deleted() {
            return Err(super::deleted(self.stream.name()));
        }
        let moves = member.membership.moves();
        self.has_moved |= !moves.lost.is_empty() || !moves.gained.is_empty();
        if !self.has_moved {
            return Ok(());
        }
        let group = member.group.clone();
        self.feeds.retain(|feed| !moves.lost.contains(&feed.number));
        for number in moves.gained {
            self.read(store, number, cx)?;
        }
        let waker = cx.waker();
        for feed in &mut self.feeds {
            let Some(committed) = &mut feed.committed else { continue };
            let Poll::Ready(offset) = committed.poll(&mut task::Context::from_waker(&waker)) else {
                return Ok(());
            };
            let offset = offset?;
            feed.next = store.seek(&self.stream, feed.number, offset.map_or(self.start, Start::Offset))?;
            feed.is_reset = offset.is_some_and(|offset| offset != feed.next)
                || store.is_doubtful(&self.stream, feed.number, &group);
            feed.committed = None;
        }
        self.has_moved = false;
        voice.assigned(&self.id, self.stream.name(), &self.places(), cx);
        self.feeds.iter_mut().for_each(|feed| feed.is_reset = false);
        Ok(())
    }

    /// Feeds once from each partition that has records.
    fn step(
        &mut self,
        closing: bool,
        voice: &impl Voice<Id = I>,
        cx: &mut Context<'_>,
    ) -> Result<Step, Problem> {
        let mut step = Step::Idle;
        for feed in self.feeds.iter_mut().filter(|feed| feed.committed.is_none() && feed.alarm.has_rung()) {
            let at = Place { id: &self.id, stream: self.stream.name(), partition: feed.number };
            match feed.step(closing, &at, voice, cx)? {
                Step::Full => {
                    // Rotate: the next partition is first the next time.
                    let next = self.feeds.iter().position(|known| known.number == at.partition).unwrap_or(0);
                    self.feeds.rotate_left(next + 1);
                    return Ok(Step::Full);
                }
                Step::Fed => step = Step::Fed,
                Step::Idle => {}
            }
        }
        Ok(step)
    }
}

impl Feed {
    fn step<V: Voice>(
        &mut self,
        closing: bool,
        at: &Place<'_, V::Id>,
        voice: &V,
        cx: &mut Context<'_>,
    ) -> Result<Step, Problem> {
        let from = self.next;
        self.alarm.rung.store(false, Ordering::Release);
        let Poll::Ready(read) =
            self.source.poll_read(from, READ_BYTES, &Waker::from(Arc::clone(&self.alarm)))
        else {
            return Ok(Step::Idle);
        };
        self.alarm.rung.store(true, Ordering::Release);
        let (sent, next) = match read {
            Ok(None) => return self.follow(closing),
            Ok(Some(read)) => {
                let end = self.source.partition().ends().readable.max(read.next);
                voice.records(at, from, end, &read, cx)
            }
            Err(Unread::Gap(to)) => (voice.gap(at, from, to, cx), to),
            // The committed offset is beyond the end of the remaining log.
            Err(Unread::Ahead(readable)) => (Sent::Queued, readable),
            Err(Unread::Failed(problem)) => return Err(problem),
        };
        if sent != Sent::Dropped {
            self.next = next;
        }
        Ok(if sent == Sent::Queued { Step::Fed } else { Step::Full })
    }

    /// At the end: registers for more records, unless the stream is closing.
    fn follow(&self, closing: bool) -> Result<Step, Problem> {
        let (next, partition) = (self.next, self.source.partition());
        if self.alarm.set(|waker| partition.watch(Past::Readable(next), waker)) {
            return Ok(Step::Fed);
        }
        match partition.failure() {
            Some(why) => Err(problem(code::STORE, &*why)),
            None if closing => Err(problem(code::STORE, "the stream is being closed")),
            None => Ok(Step::Idle),
        }
    }
}
