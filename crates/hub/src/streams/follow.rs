//! Subscriptions to durable topics. A subscriber is fed from the log, as fast as its connection takes records, up to
//! the offset of the [relay](super::durable_topics), and joins there. A subscriber that falls behind returns to the
//! log.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use serde_json::{Value, json};
use sinews_server::{
    Context, HistoryPolicy, InvalidTopic, Position, ReplayFrom, Sent, SlowConsumer, TopicRule,
};
use sinews_stream::{PartitionEvent, Watcher};

use super::discovery::PatternInterest;
use super::durable_topics::{RELAY_RECORDS, TopicRelay};
use super::fetch::READ_BYTES;
use super::record_content::content_of;
use super::record_stamp::RecordStamp;
use super::records_from::records_from;
use super::service::StreamService;
use super::store::{PartitionSource, ReadFailure};
use crate::model::brief::brief;
use crate::model::encoding::{EncodedTopics, MESSAGES};
use crate::model::problem::{Problem, code, problem};
use crate::topics::subscription_fault;

/// The state of one subscription.
pub(crate) enum DurableSubscription {
    /// It is waiting for its start. Holds the requested start and the request's id.
    Opening {
        id: Option<Value>,
        start: Option<ReplayFrom>,
        ready: Option<StartFuture>,
        /// Set for a pattern.
        interest: Option<PatternInterest>,
    },
    /// A pattern: it receives the relays' publications. The node follows the streams that match.
    ByPattern { _interest: PatternInterest },
    /// It is fed from the log; `next` is the next offset.
    Reading {
        relay: Arc<TopicRelay>,
        source: Box<PartitionSource>,
        next: u64,
        watcher: Watcher,
        has_timestamps: bool,
    },
    /// It receives the relay's publications.
    Live,
}

/// Completes when the subscription can start.
pub(crate) type StartFuture = Pin<Box<dyn Future<Output = Result<(), Problem>>>>;

/// Messages replayed to a client that resumes from another epoch of the topic, where its position is unknown.
const OTHER_EPOCH_REPLAY: u64 = 1_000;

/// The result of one send step.
enum FollowStep {
    Progress,
    Full,
    /// The next records were requested from the broker.
    Pending,
    Live,
}

impl DurableSubscription {
    /// Creates the state of a subscription that was requested with this id.
    pub(crate) fn new(
        store: &Arc<StreamService>,
        topic: &str,
        start: Option<ReplayFrom>,
        id: &Option<Value>,
    ) -> Self {
        let is_ready = store.opening_of_topic(topic).is_none()
            && store.topic_relay(topic).is_ok_and(|relay| relay.is_none_or(|relay| relay.has_reached(start)));
        let ready = (!is_ready)
            .then(|| -> StartFuture { Box::pin(ready(Arc::clone(store), topic.to_owned(), start)) });
        Self::Opening { id: id.clone(), start, ready, interest: None }
    }

    /// Creates the state of a subscription to a pattern, which starts when this node follows the streams that match.
    pub(crate) fn by_pattern(
        store: &Arc<StreamService>,
        pattern: &str,
        start: Option<ReplayFrom>,
        id: &Option<Value>,
    ) -> Result<Self, Problem> {
        let (interest, opening) = store.discover(pattern)?;
        let ready: Option<StartFuture> = Some(Box::pin(opening));
        Ok(Self::Opening { id: id.clone(), start, ready, interest: Some(interest) })
    }

    /// Starts, if it has not started yet. Returns the acknowledgement's fields; `None` while it has to wait.
    pub(crate) fn open(
        &mut self,
        store: &StreamService,
        topic: &str,
        cx: &mut Context<'_>,
    ) -> Result<Poll<Value>, Problem> {
        let Self::Opening { start, ready, interest, .. } = self else { return Ok(Poll::Pending) };
        let start = *start;
        if let Some(ready) = ready {
            let waker = cx.waker();
            if ready.as_mut().poll(&mut task::Context::from_waker(&waker))?.is_pending() {
                return Ok(Poll::Pending);
            }
        }
        if let Some(interest) = interest.take() {
            cx.subscribe(&MESSAGES.topic(topic)).map_err(subscription_problem)?;
            *self = Self::ByPattern { _interest: interest };
            let mut ack = json!({ "topic": topic });
            if start.is_some() {
                // A pattern has no position.
                ack["complete"] = json!(false);
            }
            return Ok(Poll::Ready(ack));
        }
        let (follow, ack) = Self::start_reading(store, topic, start, cx)?;
        *self = follow;
        Ok(Poll::Ready(ack))
    }

    fn start_reading(
        store: &StreamService,
        topic: &str,
        start: Option<ReplayFrom>,
        cx: &mut Context<'_>,
    ) -> Result<(Self, Value), Problem> {
        let mut relay = store.topic_relay(topic)?;
        if relay.is_none() {
            // The topic has no publication yet. The first one reaches the current subscribers.
            let joined = cx
                .subscribe_from(&MESSAGES.topic(topic), ReplayFrom::Last(0))
                .map_err(subscription_problem)?;
            relay = store.topic_relay(topic)?;
            if relay.is_none() {
                let missed =
                    matches!(start, Some(ReplayFrom::After(Position { sequence, .. })) if sequence > 0);
                return Ok((Self::Live, acknowledgement(topic, joined.position, 0, !missed)));
            }
        }
        let Some(relay) = relay else { return Err(stream_missing()) };
        let end = *relay.progress();
        let (next, complete) = relay.start_offset(store, start, end);
        let ack = acknowledgement(topic, relay.position(end), end - next, complete);
        let follow =
            if relay.join_relay(topic, next, cx)? { Self::Live } else { Self::reading(store, relay, next)? };
        Ok((follow, ack))
    }

    /// Returns to the log, to read messages that the connection could not take.
    pub(crate) fn return_to_log(
        &mut self,
        store: &StreamService,
        topic: &str,
        first: u64,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        // It restarts anyway, and its acknowledgement is pending.
        if let Self::Opening { .. } = self {
            return Ok(());
        }
        let relay = store.topic_relay(topic)?.ok_or_else(stream_missing)?;
        let behind = first.saturating_sub(1);
        let next = if let Self::Reading { next, .. } = self { behind.min(*next) } else { behind };
        relay.suspend_delivery(topic, cx)?;
        *self = Self::reading(store, relay, next)?;
        cx.waker().wake();
        Ok(())
    }

    fn reading(store: &StreamService, relay: Arc<TopicRelay>, next: u64) -> Result<Self, Problem> {
        let source = Box::new(store.source(relay.stream(), 0)?);
        let watcher = relay.partition().watcher();
        let has_timestamps = store.topics().has_timestamps(relay.name());
        Ok(Self::Reading { relay, source, next, watcher, has_timestamps })
    }

    /// Feeds as much as the connection takes. Returns whether the connection takes more.
    pub(crate) fn send_records(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<bool, Problem> {
        loop {
            if cx.buffered() > cx.config().high_water() || !cx.is_open() {
                return Ok(false);
            }
            match self.send_batch(topic, cx)? {
                FollowStep::Progress => {}
                FollowStep::Full => return Ok(false),
                // The awaited event wakes it; other subscriptions have their turn.
                FollowStep::Pending | FollowStep::Live => return Ok(true),
            }
        }
    }

    fn send_batch(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<FollowStep, Problem> {
        let Self::Reading { relay, source, next, watcher, has_timestamps } = self else {
            return Ok(FollowStep::Live);
        };
        let (end, waker) = (*relay.progress(), cx.waker());
        // Another process has published this record, and this relay has not: the log will reach it.
        if *next > end && !watcher.watch(PartitionEvent::Readable(*next - 1), &waker) {
            return Ok(FollowStep::Pending);
        }
        if *next >= end {
            if relay.join_relay(topic, *next, cx)? {
                *self = Self::Live;
                return Ok(FollowStep::Live);
            }
            // More records have arrived, and the task is woken: the relay may wait for this worker.
            return Ok(FollowStep::Full);
        }
        let Poll::Ready(read) = source.poll_read(*next, READ_BYTES, &waker) else {
            return Ok(FollowStep::Pending);
        };
        let read = match read {
            Ok(Some(read)) => read,
            Err(ReadFailure::Gap(to)) => {
                let text = json!({ "op": "dropped", "topic": topic, "messages": to - *next });
                if matches!(cx.send_text(&text.to_string()), Ok(Sent::Dropped) | Err(_)) {
                    return Ok(FollowStep::Full);
                }
                *next = to;
                return Ok(FollowStep::Progress);
            }
            // The feed has delivered the record, and the log is writing it.
            Ok(None) if relay.is_accepted(*next) => {
                let is_readable = watcher.watch(PartitionEvent::Readable(*next), &waker);
                return Ok(if is_readable { FollowStep::Progress } else { FollowStep::Pending });
            }
            Ok(None) | Err(ReadFailure::Ahead(_)) => {
                return Err(problem(
                    code::STORE,
                    format!("topic {}: the delivered records do not exist any more", brief(topic)),
                ));
            }
            Err(ReadFailure::Failed(problem)) => return Err(problem),
        };
        for record in records_from(&read.batches, *next).take_while(|record| record.offset < end) {
            let stamp = RecordStamp::new(&record, *has_timestamps);
            let message = content_of(&record).framed_text(topic, stamp.at(relay.position(record.offset + 1)));
            match cx.send_text(&message) {
                Ok(Sent::Dropped) | Err(_) => return Ok(FollowStep::Full),
                Ok(_) => *next = record.offset + 1,
            }
            if cx.buffered() > cx.config().high_water() {
                return Ok(FollowStep::Full);
            }
        }
        *next = read.next.min(end).max(*next);
        Ok(FollowStep::Progress)
    }
}

/// Waits until a topic's stream exists, and until this node has reached the client's position. Another node, or the
/// stream itself, may have delivered more records than this node has.
pub(super) async fn ready(
    store: Arc<StreamService>,
    topic: String,
    start: Option<ReplayFrom>,
) -> Result<(), Problem> {
    loop {
        if let Some(opening) = store.opening_of_topic(&topic) {
            opening.await?;
        }
        let (Some(relay), Some(ReplayFrom::After(position))) = (store.topic_relay(&topic)?, start) else {
            return Ok(());
        };
        if relay.has_reached(start) || position.sequence > store.last_end(relay.stream(), 0).await? {
            return Ok(());
        }
        // A deleted stream's relay advances no more.
        let is_current =
            || store.topic_relay(&topic).is_ok_and(|it| it.is_some_and(|it| Arc::ptr_eq(&it, &relay)));
        store.topics().wait_until(|| relay.has_reached(start) || !is_current()).await;
        if relay.has_reached(start) && is_current() {
            return Ok(());
        }
    }
}

fn acknowledgement(topic: &str, position: Position, replayed: u64, complete: bool) -> Value {
    let Position { epoch, sequence } = position;
    json!({ "topic": topic, "epoch": epoch, "seq": sequence, "replayed": replayed, "complete": complete })
}

fn stream_missing() -> Problem {
    problem(code::STORE, "the stream does not exist")
}

/// Returns the rule by which the server below delivers durable topics in an encoding with positions. Messages for a
/// slow subscriber are dropped, and read from the log later. If the encoding is not [shared](EncodedTopics::is_shared),
/// the subscriber is disconnected.
pub(crate) fn rule(encoded: EncodedTopics, pattern: &str) -> TopicRule {
    let rule = TopicRule::new(encoded.topic(pattern)).with_history(HistoryPolicy::new(RELAY_HISTORY));
    if encoded.is_shared() { rule.with_slow_consumer(SlowConsumer::DropNewest) } else { rule }
}

/// Messages that each topic retains in memory for workers whose mailbox is full. They exceed the number that the relay
/// publishes before it waits for workers.
const RELAY_HISTORY: usize = 2 * RELAY_RECORDS;

impl TopicRelay {
    /// Waits until the log has written an accepted record, or has failed.
    pub(super) async fn written(&self, offset: u64) {
        let watcher = self.partition().watcher();
        poll_fn(|cx| match watcher.watch(PartitionEvent::Readable(offset), cx.waker()) {
            false if self.is_accepted(offset) => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Whether the relay has reached the client's position. The position in another epoch is unknown.
    fn has_reached(&self, start: Option<ReplayFrom>) -> bool {
        let Some(ReplayFrom::After(position)) = start else { return true };
        position.epoch != self.epoch() || position.sequence <= *self.progress()
    }

    /// The first record for a client that starts there, and whether no message before it is missing.
    pub(super) fn start_offset(
        &self,
        store: &StreamService,
        start: Option<ReplayFrom>,
        end: u64,
    ) -> (u64, bool) {
        let earliest = store.ends(self.stream(), 0, self.partition()).0.min(end);
        let last = |count: u64| end.saturating_sub(count).max(earliest);
        match start {
            None => (end, true),
            Some(ReplayFrom::Last(count)) => (last(count as u64), true),
            Some(ReplayFrom::After(Position { sequence: 0, .. })) => {
                (earliest, earliest <= store.first_offset())
            }
            Some(ReplayFrom::After(position)) => {
                if position.epoch == self.epoch() && position.sequence <= end {
                    (position.sequence.max(earliest), position.sequence >= earliest)
                } else {
                    (last(OTHER_EPOCH_REPLAY), false)
                }
            }
            // Starts that a later version may add.
            Some(_) => (end, false),
        }
    }

    /// Subscribes a connection that is fed from the log up to this record, if the relay is at that offset. Returns
    /// whether it is; otherwise the connection is woken to read on.
    fn join_relay(&self, topic: &str, next: u64, cx: &mut Context<'_>) -> Result<bool, Problem> {
        // While this is locked, the relay does not publish.
        let relayed = self.progress();
        let position = self.position(*relayed);
        let framed = MESSAGES.topic(topic);
        cx.topics().publisher().advance_to(&framed, position).map_err(subscription_problem)?;
        if next == *relayed {
            let joined =
                cx.subscribe_from(&framed, ReplayFrom::After(position)).map_err(subscription_problem)?;
            if joined.complete {
                return Ok(true);
            }
            // Only the relay publishes positions, so another program publishes to this topic.
            return Err(problem(code::STORE, format!("topic {}: the position is unknown", brief(topic))));
        }
        drop(relayed);
        self.suspend_delivery(topic, cx)?;
        cx.waker().wake();
        Ok(false)
    }

    /// Subscribes the connection without delivering messages to it yet.
    fn suspend_delivery(&self, topic: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        let framed = MESSAGES.topic(topic);
        let position = self.position(*self.progress());
        cx.topics().publisher().advance_to(&framed, position).map_err(subscription_problem)?;
        cx.subscribe_paused(&framed).map_err(subscription_problem)
    }
}

fn subscription_problem(error: InvalidTopic) -> Problem {
    let code = match error {
        InvalidTopic::TooManySubscriptions | InvalidTopic::TooAmbiguous => code::TOO_MANY,
        _ => code::TOPIC,
    };
    problem(code, subscription_fault(error))
}

#[cfg(test)]
mod tests;
