//! Subscriptions to durable topics. A subscriber is fed from the log, as fast as its connection takes records, up to
//! the offset of the [relay](super::backing), and joins there. A subscriber that falls behind returns to the log.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use serde_json::{Value, json};
use sinews_server::{Context, History, InvalidTopic, Position, Sent, SlowConsumer, Start, TopicRule};
use sinews_stream::{Past, Read};

use super::backing::{Line, RELAY_RECORDS, content_of};
use super::bridge::{Source, Unread};
use super::counted::counted;
use super::{Fetched, READ_BYTES, Store};
use crate::echo::brief;
use crate::hub::{Form, subscription_fault};
use crate::protocol::{Problem, code, problem};

/// The state of one subscription.
pub(crate) enum Follow {
    /// It is waiting for its start. Holds the requested start and the id of the request.
    Opening { id: Option<Value>, start: Option<Start>, ready: Option<Ready> },
    /// It is fed from the log; `next` is the next offset.
    Reading { line: Arc<Line>, source: Box<Source>, next: u64 },
    /// It receives the relay's publications.
    Live,
}

/// Completes when the subscription can start.
pub(crate) type Ready = Pin<Box<dyn Future<Output = Result<(), Problem>>>>;

/// Messages replayed to a client that resumes from another epoch of the topic, where its position is unknown.
const OTHER_RUN: u64 = 1_000;

/// The result of one step of feeding.
enum Step {
    Fed,
    Full,
    /// The next records were requested from the broker.
    Awaited,
    Over,
}

impl Follow {
    /// Creates the state of a subscription that was requested with this id.
    pub(crate) fn new(store: &Arc<Store>, topic: &str, start: Option<Start>, id: &Option<Value>) -> Self {
        let is_there = store.opening_of_topic(topic).is_none()
            && store.line(topic).is_ok_and(|line| line.is_none_or(|line| line.has_come_to(start)));
        let ready =
            (!is_there).then(|| -> Ready { Box::pin(ready(Arc::clone(store), topic.to_owned(), start)) });
        Self::Opening { id: id.clone(), start, ready }
    }

    /// Starts, if it has not started yet. Returns the fields of the acknowledgement; `None` while it has to wait.
    pub(crate) fn open(
        &mut self,
        store: &Store,
        topic: &str,
        cx: &mut Context<'_>,
    ) -> Result<Poll<Value>, Problem> {
        let Self::Opening { start, ready, .. } = self else { return Ok(Poll::Pending) };
        let start = *start;
        if let Some(ready) = ready {
            let waker = cx.waker();
            if ready.as_mut().poll(&mut task::Context::from_waker(&waker))?.is_pending() {
                return Ok(Poll::Pending);
            }
        }
        let (follow, ack) = Self::begin(store, topic, start, cx)?;
        *self = follow;
        Ok(Poll::Ready(ack))
    }

    fn begin(
        store: &Store,
        topic: &str,
        start: Option<Start>,
        cx: &mut Context<'_>,
    ) -> Result<(Self, Value), Problem> {
        let mut line = store.line(topic)?;
        if line.is_none() {
            // The topic has no publication yet. The first one reaches the current subscribers.
            let joined = cx.subscribe_from(&Form::Framed.topic(topic), Start::Last(0)).map_err(refused)?;
            line = store.line(topic)?;
            if line.is_none() {
                let missed = matches!(start, Some(Start::After(Position { sequence, .. })) if sequence > 0);
                return Ok((Self::Live, acknowledgement(topic, joined.position, 0, !missed)));
            }
        }
        let Some(line) = line else { return Err(gone()) };
        let end = *line.relayed();
        let (next, complete) = line.begin_at(store, start, end);
        let ack = acknowledgement(topic, line.position(end), end - next, complete);
        let follow = if line.let_in(topic, next, cx)? {
            Self::Live
        } else {
            Self::Reading { source: Box::new(store.source(line.stream(), 0)?), line, next }
        };
        Ok((follow, ack))
    }

    /// Returns to the log, to read messages that the connection could not take.
    pub(crate) fn go_back(
        &mut self,
        store: &Store,
        topic: &str,
        first: u64,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        // It restarts anyway, and its acknowledgement is pending.
        if let Self::Opening { .. } = self {
            return Ok(());
        }
        let line = store.line(topic)?.ok_or_else(gone)?;
        let behind = first.saturating_sub(1);
        let next = if let Self::Reading { next, .. } = self { behind.min(*next) } else { behind };
        line.leave_out(topic, cx)?;
        *self = Self::Reading { source: Box::new(store.source(line.stream(), 0)?), line, next };
        cx.waker().wake();
        Ok(())
    }

    /// Feeds as much as the connection takes. Returns whether the connection takes more.
    pub(crate) fn feed(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<bool, Problem> {
        loop {
            if cx.buffered() > cx.config().high_water() || !cx.is_open() {
                return Ok(false);
            }
            match self.step(topic, cx)? {
                Step::Fed => {}
                Step::Full => return Ok(false),
                // The awaited event wakes it; other subscriptions have their turn.
                Step::Awaited | Step::Over => return Ok(true),
            }
        }
    }

    fn step(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<Step, Problem> {
        let Self::Reading { line, source, next } = self else { return Ok(Step::Over) };
        let (end, waker) = (*line.relayed(), cx.waker());
        // Another process has published this record, and this relay has not: the log will reach it.
        if *next > end && !line.partition().watch(Past::Readable(*next - 1), &waker) {
            return Ok(Step::Awaited);
        }
        if *next >= end {
            if line.let_in(topic, *next, cx)? {
                *self = Self::Live;
                return Ok(Step::Over);
            }
            // More records have arrived, and the task is woken: the relay may wait for this worker.
            return Ok(Step::Full);
        }
        let Poll::Ready(read) = source.poll_read(*next, READ_BYTES, &waker) else {
            return Ok(Step::Awaited);
        };
        let read = match read {
            Ok(Some(read)) => read,
            Err(Unread::Gap(to)) => {
                let words = json!({ "op": "dropped", "topic": topic, "messages": to - *next });
                // After a Close, the message is dropped.
                let _ = cx.send_text(&words.to_string());
                *next = to;
                return Ok(Step::Fed);
            }
            Ok(None) | Err(Unread::Ahead(_)) => {
                return Err(problem(
                    code::STORE,
                    format!("topic {}: the delivered records do not exist any more", brief(topic)),
                ));
            }
            Err(Unread::Failed(problem)) => return Err(problem),
        };
        for record in counted(&read.batches, *next).take_while(|record| record.offset < end) {
            let message = content_of(&record).framed_text(topic, Some(line.position(record.offset + 1)));
            match cx.send_text(&message) {
                Ok(Sent::Dropped) | Err(_) => return Ok(Step::Full),
                Ok(_) => *next = record.offset + 1,
            }
            if cx.buffered() > cx.config().high_water() {
                return Ok(Step::Full);
            }
        }
        *next = read.next.min(end).max(*next);
        Ok(Step::Fed)
    }
}

/// Waits until the stream of a topic exists, and until this node has reached the position of the client. Another node,
/// or the stream itself, may have delivered more records than this node has.
async fn ready(store: Arc<Store>, topic: String, start: Option<Start>) -> Result<(), Problem> {
    if let Some(opening) = store.opening_of_topic(&topic) {
        opening.await?;
    }
    let (Some(line), Some(Start::After(position))) = (store.line(&topic)?, start) else { return Ok(()) };
    if !line.has_come_to(start) && position.sequence <= store.last_end(line.stream(), 0).await? {
        store.topics().until(|| line.has_come_to(start)).await;
    }
    Ok(())
}

fn acknowledgement(topic: &str, position: Position, replayed: u64, complete: bool) -> Value {
    let Position { epoch, sequence } = position;
    json!({ "topic": topic, "epoch": epoch, "seq": sequence, "replayed": replayed, "complete": complete })
}

fn gone() -> Problem {
    problem(code::STORE, "the stream does not exist")
}

/// Delivery rule of the server below for durable topics: messages for a slow subscriber are dropped, and read from the
/// log later.
pub(crate) fn rule(pattern: &str) -> TopicRule {
    let pattern = Form::Framed.topic(pattern);
    TopicRule::new(pattern).with_history(History::new(HEARD)).with_slow_consumer(SlowConsumer::DropNewest)
}

/// Messages of each topic that are retained in memory for workers whose mailbox is full. They exceed the number that
/// the relay publishes before it waits for workers.
const HEARD: usize = 2 * RELAY_RECORDS;

/// The messages of a topic in its stream, from a start on, up to a count and an approximate number of bytes.
pub(crate) async fn history(
    store: Arc<Store>,
    topic: String,
    start: Start,
    (most, most_bytes): (usize, usize),
) -> Result<Fetched, Problem> {
    let Some(line) = store.line(&topic)? else { return Ok(Fetched { from: 0, end: 0, read: None }) };
    let start = if let Start::Last(count) = start { Start::Last(count.min(most)) } else { start };
    let mut source = store.source(line.stream(), 0)?;
    let end = *line.relayed();
    let (from, _) = line.begin_at(&store, Some(start), end);
    let (mut next, mut count, mut whole) = (from, 0, None::<Read>);
    while next < end && count < most && whole.as_ref().is_none_or(|it| it.batches.len() < most_bytes) {
        match poll_fn(|cx| source.poll_read(next, READ_BYTES, cx.waker())).await {
            Ok(Some(read)) => {
                count += counted(&read.batches, next).count();
                next = read.next;
                whole = Some(match whole {
                    Some(first) => joined(&first, read),
                    None => read,
                });
            }
            Ok(None) => break,
            Err(Unread::Gap(to) | Unread::Ahead(to)) => next = to,
            Err(Unread::Failed(problem)) => return Err(problem),
        }
    }
    Ok(Fetched { from, end, read: whole })
}

/// Joins a read with the read that follows it.
fn joined(first: &Read, mut next: Read) -> Read {
    next.batches = [&first.batches[..], &next.batches].concat().into();
    next
}

impl Line {
    /// Whether the relay has reached the client's position. The position in another epoch is unknown.
    fn has_come_to(&self, start: Option<Start>) -> bool {
        let Some(Start::After(position)) = start else { return true };
        position.epoch != self.epoch() || position.sequence <= *self.relayed()
    }

    /// The first record for a client that starts there, and whether no message before it is missing.
    fn begin_at(&self, store: &Store, start: Option<Start>, end: u64) -> (u64, bool) {
        let earliest = store.ends(self.stream(), 0, self.partition()).0.min(end);
        let last = |count: u64| end.saturating_sub(count).max(earliest);
        match start {
            None => (end, true),
            Some(Start::Last(count)) => (last(count as u64), true),
            Some(Start::After(Position { sequence: 0, .. })) => (earliest, earliest <= store.first_offset()),
            Some(Start::After(position)) => {
                if position.epoch == self.epoch() && position.sequence <= end {
                    (position.sequence.max(earliest), position.sequence >= earliest)
                } else {
                    (last(OTHER_RUN), false)
                }
            }
            // Starts that a later version may add.
            Some(_) => (end, false),
        }
    }

    /// Subscribes a connection that is fed from the log up to this record, if the relay is at that offset. Returns
    /// whether it is; otherwise the connection is woken to read on.
    fn let_in(&self, topic: &str, next: u64, cx: &mut Context<'_>) -> Result<bool, Problem> {
        // While this is locked, the relay does not publish.
        let relayed = self.relayed();
        let position = self.position(*relayed);
        let framed = Form::Framed.topic(topic);
        cx.topics().publisher().go_on_behind(&framed, position).map_err(refused)?;
        if next == *relayed {
            let joined = cx.subscribe_from(&framed, Start::After(position)).map_err(refused)?;
            if joined.complete {
                return Ok(true);
            }
            // Only the relay publishes positions, so another program publishes to this topic.
            return Err(problem(code::STORE, format!("topic {}: the position is unknown", brief(topic))));
        }
        drop(relayed);
        self.leave_out(topic, cx)?;
        cx.waker().wake();
        Ok(false)
    }

    /// Subscribes the connection without delivering messages to it yet.
    fn leave_out(&self, topic: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        let framed = Form::Framed.topic(topic);
        let position = self.position(*self.relayed());
        cx.topics().publisher().go_on_behind(&framed, position).map_err(refused)?;
        cx.subscribe_later(&framed).map_err(refused)
    }
}

fn refused(error: InvalidTopic) -> Problem {
    let code = match error {
        InvalidTopic::TooMany | InvalidTopic::TooAmbiguous => code::TOO_MANY,
        _ => code::TOPIC,
    };
    problem(code, subscription_fault(error))
}
