//! How a subscriber comes to a topic that is kept in a stream: it is fed from the log as fast as it takes that, up to
//! where the [relay](super::backing) is, and let in there. One that falls behind goes back to the log.

use std::sync::Arc;
use std::task::Poll;

use serde_json::{Value, json};
use sinews_server::{Context, History, InvalidTopic, Position, Sent, SlowConsumer, Start, TopicRule};
use sinews_stream::ReadError;

use super::backing::{Line, RELAY_RECORDS, content_of};
use super::counted::counted;
use super::{READ_BYTES, Store};
use crate::hub::Form;
use crate::protocol::{Problem, code, problem};

/// Where one subscription stands.
pub(crate) enum Follow {
    /// The streams are another process's yet. What was asked for, and by which id.
    Opening { id: Option<Value>, start: Option<Start> },
    /// It is fed from the log; this record is next.
    Reading { line: Arc<Line>, next: u64 },
    /// It hears what is published.
    Live,
}

/// Messages that somebody gets at most who comes from another run of the topic, so that nobody knows where it stood.
const OTHER_RUN: u64 = 1_000;

/// What a step of feeding came to.
enum Step {
    Fed,
    Full,
    Over,
}

impl Follow {
    /// Begins, and answers what the acknowledgement says of it; nothing yet, if the streams are not there.
    pub(crate) fn begin(
        store: &Store,
        topic: &str,
        start: Option<Start>,
        cx: &mut Context<'_>,
    ) -> Result<Poll<(Self, Value)>, Problem> {
        let mut line = store.line(topic)?;
        if let Poll::Ready(None) = line {
            // Nothing was ever published. Whoever is first to is heard by those who are subscribed by then.
            let joined = cx.subscribe_from(&Form::Framed.topic(topic), Start::Last(0)).map_err(refused)?;
            line = store.line(topic)?;
            if let Poll::Ready(None) = line {
                let missed = matches!(start, Some(Start::After(Position { sequence, .. })) if sequence > 0);
                let Position { epoch, sequence } = joined.position;
                let ack = json!({
                    "topic": topic, "epoch": epoch, "seq": sequence, "replayed": 0, "complete": !missed,
                });
                return Ok(Poll::Ready((Self::Live, ack)));
            }
        }
        let Poll::Ready(Some(line)) = line else {
            store.topics().wait(cx.waker());
            // Streams that have come meanwhile have woken nobody.
            if store.line(topic)?.is_ready() {
                cx.waker().wake();
            }
            return Ok(Poll::Pending);
        };
        let end = *line.relayed();
        let (next, complete) = line.begin_at(start, end);
        let Position { epoch, sequence } = line.position(end);
        let replayed = end - next;
        let ack = json!({
            "topic": topic, "epoch": epoch, "seq": sequence, "replayed": replayed, "complete": complete,
        });
        let follow = line.let_in(topic, next, cx)?;
        Ok(Poll::Ready((follow, ack)))
    }

    /// Goes back to the log for what could not be sent from here on.
    pub(crate) fn go_back(
        &mut self,
        store: &Store,
        topic: &str,
        first: u64,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let Poll::Ready(Some(line)) = store.line(topic)? else {
            return Err(problem(code::STORE, "the stream is not there"));
        };
        let behind = first.saturating_sub(1);
        let next = if let Self::Reading { next, .. } = self { behind.min(*next) } else { behind };
        line.leave_out(topic, cx)?;
        *self = Self::Reading { line, next };
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
                Step::Over => return Ok(true),
            }
        }
    }

    fn step(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<Step, Problem> {
        let Self::Reading { line, next } = self else { return Ok(Step::Over) };
        let end = *line.relayed();
        if *next >= end {
            let line = line.clone();
            *self = line.let_in(topic, *next, cx)?;
            // If more has come meanwhile, it was woken for that: whoever brings it may wait for this thread.
            return Ok(if let Self::Live = self { Step::Over } else { Step::Full });
        }
        let read = match line.partition().read(*next, READ_BYTES) {
            Ok(read) => read,
            Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > *next => {
                let words = json!({ "op": "dropped", "topic": topic, "messages": to - *next });
                // Behind a Close there is nobody to hear it.
                let _ = cx.send_text(&words.to_string());
                *next = to;
                return Ok(Step::Fed);
            }
            Err(error) => return Err(problem(code::STORE, format!("{topic}: {error}"))),
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

/// What holds in the server below for topics that are kept in streams: what cannot wait for somebody who is slow is
/// dropped, and read from the log later.
pub(crate) fn rule(pattern: &str) -> TopicRule {
    let pattern = Form::Framed.topic(pattern);
    TopicRule::new(pattern).with_history(History::new(HEARD)).with_slow_consumer(SlowConsumer::DropNewest)
}

/// Messages of each topic that are in memory, too, for threads whose mailbox was too full for some: more than the relay
/// publishes before it waits for them.
const HEARD: usize = 2 * RELAY_RECORDS;

/// Messages that a topic has in its stream, from a start on: so many, and about so many bytes, at most.
pub(crate) fn history(
    store: &Store,
    topic: &str,
    start: Start,
    most: usize,
    most_bytes: usize,
) -> Result<Vec<Value>, Problem> {
    let line = match store.line(topic)? {
        Poll::Ready(Some(line)) => line,
        Poll::Ready(None) => return Ok(Vec::new()),
        Poll::Pending => {
            return Err(problem(
                code::STORE,
                "the streams are being taken over from another process: come again",
            ));
        }
    };
    let start = if let Start::Last(count) = start { Start::Last(count.min(most)) } else { start };
    let end = *line.relayed();
    let (mut next, _) = line.begin_at(Some(start), end);
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while next < end && messages.len() < most && bytes < most_bytes {
        let read = match line.partition().read(next, READ_BYTES) {
            Ok(read) => read,
            Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > next => {
                next = to;
                continue;
            }
            Err(error) => return Err(problem(code::STORE, format!("{topic}: {error}"))),
        };
        for record in counted(&read.batches, next).take_while(|record| record.offset < end) {
            if messages.len() == most || bytes >= most_bytes {
                break;
            }
            let text = content_of(&record).framed_text(topic, Some(line.position(record.offset + 1)));
            bytes += text.len();
            // It is a message of the protocol, so this does not fail.
            messages.extend(serde_json::from_str::<Value>(&text));
        }
        next = read.next.max(next + 1);
    }
    Ok(messages)
}

impl Line {
    /// The first record for somebody who wants to begin there, and whether nothing is missing before it.
    fn begin_at(&self, start: Option<Start>, end: u64) -> (u64, bool) {
        let earliest = self.partition().ends().earliest.min(end);
        let last = |count: u64| end.saturating_sub(count).max(earliest);
        match start {
            None => (end, true),
            Some(Start::Last(count)) => (last(count as u64), true),
            Some(Start::After(Position { sequence: 0, .. })) => (earliest, earliest == 0),
            Some(Start::After(position)) => {
                if position.epoch == self.position(0).epoch && position.sequence <= end {
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
    fn let_in(self: Arc<Self>, topic: &str, next: u64, cx: &mut Context<'_>) -> Result<Follow, Problem> {
        // While this is locked, nothing is published.
        let relayed = self.relayed();
        let position = self.position(*relayed);
        let framed = Form::Framed.topic(topic);
        cx.topics().publisher().go_on_behind(&framed, position).map_err(refused)?;
        if next == *relayed {
            let joined = cx.subscribe_from(&framed, Start::After(position)).map_err(refused)?;
            if joined.complete {
                return Ok(Follow::Live);
            }
            // Nobody else says where it stands, so this is another program's topic.
            return Err(problem(code::STORE, format!("{topic}: its place is not known")));
        }
        drop(relayed);
        self.leave_out(topic, cx)?;
        cx.waker().wake();
        Ok(Follow::Reading { line: self, next })
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
    let code = if error == InvalidTopic::TooMany { code::TOO_MANY } else { code::TOPIC };
    problem(code, error.to_string())
}
