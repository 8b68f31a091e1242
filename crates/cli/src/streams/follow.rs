//! How a subscriber comes to a topic that is kept in a stream: it is fed from the log as fast as it takes that, up to
//! where the [relay](super::backing) is, and let in there. One that falls behind goes back to the log.

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

/// Where one subscription stands.
pub(crate) enum Follow {
    /// It cannot begin yet. What was asked for, and by which id.
    Opening { id: Option<Value>, start: Option<Start>, ready: Option<Ready> },
    /// It is fed from the log; this record is next.
    Reading { line: Arc<Line>, source: Box<Source>, next: u64 },
    /// It hears what is published.
    Live,
}

/// Done when a topic can be begun with.
pub(crate) type Ready = Pin<Box<dyn Future<Output = Result<(), Problem>>>>;

/// Messages that somebody gets at most who comes from another run of the topic, so that nobody knows where it stood.
const OTHER_RUN: u64 = 1_000;

/// What a step of feeding came to.
enum Step {
    Fed,
    Full,
    /// What comes next is on its way from the broker.
    Awaited,
    Over,
}

impl Follow {
    /// What is asked for by this id.
    pub(crate) fn new(store: &Arc<Store>, topic: &str, start: Option<Start>, id: &Option<Value>) -> Self {
        let is_there = store.opening_of_topic(topic).is_none()
            && store.line(topic).is_ok_and(|line| line.is_none_or(|line| line.has_come_to(start)));
        let ready =
            (!is_there).then(|| -> Ready { Box::pin(ready(Arc::clone(store), topic.to_owned(), start)) });
        Self::Opening { id: id.clone(), start, ready }
    }

    /// Begins, if it has not yet, and answers what the acknowledgement says of it; nothing yet while it cannot.
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
            // Nothing was ever published. Whoever is first to is heard by those who are subscribed by then.
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

    /// Goes back to the log for what could not be sent from here on.
    pub(crate) fn go_back(
        &mut self,
        store: &Store,
        topic: &str,
        first: u64,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        // It begins anew anyway, and is to be acknowledged.
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

    /// Feeds as much as the connection takes. Answers whether it takes more.
    pub(crate) fn feed(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<bool, Problem> {
        loop {
            if cx.buffered() > cx.config().high_water() || !cx.is_open() {
                return Ok(false);
            }
            match self.step(topic, cx)? {
                Step::Fed => {}
                Step::Full => return Ok(false),
                // It is woken for what it waits for, and the others have their turn.
                Step::Awaited | Step::Over => return Ok(true),
            }
        }
    }

    fn step(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<Step, Problem> {
        let Self::Reading { line, source, next } = self else { return Ok(Step::Over) };
        let (end, waker) = (*line.relayed(), cx.waker());
        // What was told already, but not by this relay: it comes there when the log has.
        if *next > end && !line.partition().watch(Past::Readable(*next - 1), &waker) {
            return Ok(Step::Awaited);
        }
        if *next >= end {
            if line.let_in(topic, *next, cx)? {
                *self = Self::Live;
                return Ok(Step::Over);
            }
            // More has come meanwhile, and it was woken for that: whoever brings it may wait for this thread.
            return Ok(Step::Full);
        }
        let Poll::Ready(read) = source.poll_read(*next, READ_BYTES, &waker) else {
            return Ok(Step::Awaited);
        };
        let read = match read {
            Ok(Some(read)) => read,
            Err(Unread::Gap(to)) => {
                let words = json!({ "op": "dropped", "topic": topic, "messages": to - *next });
                // Behind a Close there is nobody to hear it.
                let _ = cx.send_text(&words.to_string());
                *next = to;
                return Ok(Step::Fed);
            }
            Ok(None) | Err(Unread::Ahead(_)) => {
                return Err(problem(
                    code::STORE,
                    format!("{}: what was heard is not there any more", brief(topic)),
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

/// Waits until the stream of a topic is there, and until this node has come to where somebody goes on: another one, or the
/// stream itself, may have told more than was heard here.
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
    problem(code::STORE, "the stream is not there")
}

/// What holds in the server below for topics that are kept in streams: what cannot wait for somebody who is slow is
/// dropped, and read from the log later.
pub(crate) fn rule(pattern: &str) -> TopicRule {
    let pattern = Form::Framed.topic(pattern);
    TopicRule::new(pattern).with_history(History::new(HEARD)).with_slow_consumer(SlowConsumer::DropNewest)
}

/// Messages of each topic that are in memory, too, for threads whose mailbox was too full for some: more than the relay
/// publishes before it waits for them.
const HEARD: usize = 2 * RELAY_RECORDS;

/// What a topic has in its stream, from a start on: so many messages, and about so many bytes, at most.
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

/// What was read first, and what comes behind it.
fn joined(first: &Read, mut next: Read) -> Read {
    next.batches = [&first.batches[..], &next.batches].concat().into();
    next
}

impl Line {
    /// Whether the relay has published what somebody has heard who goes on; of another run nobody knows.
    fn has_come_to(&self, start: Option<Start>) -> bool {
        let Some(Start::After(position)) = start else { return true };
        position.epoch != self.epoch() || position.sequence <= *self.relayed()
    }

    /// The first record for somebody who wants to begin there, and whether nothing is missing before it.
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
            // Should there come to be others.
            Some(_) => (end, false),
        }
    }

    /// Subscribes a connection that is fed from the log up to this record, if the relay is there just now.
    /// Answers whether it is; otherwise the connection is woken to read on.
    fn let_in(&self, topic: &str, next: u64, cx: &mut Context<'_>) -> Result<bool, Problem> {
        // While this is locked, nothing is published.
        let relayed = self.relayed();
        let position = self.position(*relayed);
        let framed = Form::Framed.topic(topic);
        cx.topics().publisher().go_on_behind(&framed, position).map_err(refused)?;
        if next == *relayed {
            let joined = cx.subscribe_from(&framed, Start::After(position)).map_err(refused)?;
            if joined.complete {
                return Ok(true);
            }
            // Nobody else says where it stands, so this is another program's topic.
            return Err(problem(code::STORE, format!("{}: its place is not known", brief(topic))));
        }
        drop(relayed);
        self.leave_out(topic, cx)?;
        cx.waker().wake();
        Ok(false)
    }

    /// The connection is subscribed, and gets nothing of it yet.
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
