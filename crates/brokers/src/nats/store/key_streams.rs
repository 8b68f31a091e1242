//! Key streams, and the consumer for each, which feeds this node's replica.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sinews_store::{Position, StoreError, TopicPart};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::classes::ONCE_WINDOW;
use super::connection::StoreConnection;
use super::engine::StoreEngine;
use super::replica::{KeyMessage, KeyReplica, REMOVALS, REMOVALS_SAFE};
use super::streams::{self, StreamPlan};
use super::wire::{header, status};
use crate::reconnect::random_fraction;

/// Interval at which the server reports that a consumer exists.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Time without messages after which a consumer is created again.
const SILENCE: Duration = Duration::from_millis(1_700);
/// Time after which the server removes a lost connection's consumer.
const CONSUMER_EXPIRY: Duration = Duration::from_secs(10);
/// Delay before a consumer is created again.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Mean interval at which expired keys are removed. All nodes do it, at different times.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which old removals are forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// All key streams.
#[derive(Default)]
pub(super) struct KeyStreams {
    streams: RefCell<Vec<Rc<KeyStream>>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

/// A key stream.
pub(super) struct KeyStream {
    plan: StreamPlan,
    pub(super) replica: KeyReplica,
    /// Prefix of its subjects.
    subjects: RefCell<String>,
    /// Last applied sequence.
    progress: watch::Sender<u64>,
    is_synced: watch::Sender<bool>,
    /// The replica is loaded from the beginning.
    is_reset: Cell<bool>,
    /// Time of the last message or heartbeat.
    current_at: Cell<Option<Instant>>,
    /// Notified when the consumer should be created again.
    failed: Notify,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    num_pending: u64,
}

/// Sequences in a delivered message's reply subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConsumerDelivery {
    stream: u64,
    consumer: u64,
    /// Nanoseconds since 1970.
    time: u64,
    pending: u64,
}

impl KeyStream {
    fn new(prefix: &str, index: u64, count: u64) -> Self {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let plan = StreamPlan {
            name: format!("{prefix}_k_{index}"),
            kind: "k",
            fields: json!({
                "retention": "limits",
                "storage": "file",
                "discard": "old",
                "max_msgs": -1,
                "max_bytes": -1,
                "max_age": 0,
                "max_msgs_per_subject": 1,
                "allow_msg_ttl": true,
                "subject_delete_marker_ttl": nanos(REMOVALS),
                "duplicate_window": nanos(ONCE_WINDOW),
                // A node with another number of streams would look for keys elsewhere.
                "description": format!("keys of topics, stream {index} of {count}"),
            }),
            is_announced: false,
        };
        Self {
            plan,
            replica: KeyReplica::default(),
            subjects: RefCell::default(),
            progress: watch::Sender::new(0),
            is_synced: watch::Sender::new(false),
            is_reset: Cell::default(),
            current_at: Cell::default(),
            failed: Notify::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }

    pub(super) fn subject(&self, topic: &str, key: &str) -> String {
        let mut subject = self.subjects.borrow().clone();
        super::subjects::write_token(&mut subject, topic);
        subject.push('.');
        super::subjects::write_token(&mut subject, key);
        subject
    }

    /// Waits until this node has this sequence.
    pub(super) async fn applied(&self, sequence: u64) {
        let mut progress = self.progress.subscribe();
        // The sender lives as long as this value.
        let _ = progress.wait_for(|applied| *applied >= sequence).await;
    }

    /// The stream may have been deleted, or its consumer.
    pub(super) fn has_failed(&self) {
        self.failed.notify_one();
    }

    fn note_progress(&self) {
        self.progress.send_replace(self.replica.applied.get());
    }
}

impl StoreEngine {
    /// The stream for a topic's keys.
    pub(super) fn key_stream(&self, topic: &str) -> Result<Rc<KeyStream>, StoreError> {
        let streams = self.keys.streams.borrow();
        let hash = u64::from(crc32c::crc32c(topic.as_bytes()));
        let index = usize::try_from(hash % self.settings.key_streams).unwrap_or(0);
        streams.get(index).cloned().ok_or_else(|| StoreError::Away("not connected yet".into()))
    }

    pub(super) fn key_top(&self, topic: &str) -> Result<Option<Position>, StoreError> {
        Ok(self.key_stream(topic)?.replica.top(topic))
    }

    /// Loads the replicas, or continues them, and keeps them current until the connection is lost.
    pub(super) async fn start_keys(
        self: &Rc<Self>,
        connection: &Rc<StoreConnection>,
    ) -> Result<(), StoreError> {
        let streams = {
            let mut streams = self.keys.streams.borrow_mut();
            if streams.is_empty() {
                let (prefix, count) = (&self.settings.subjects.prefix, self.settings.key_streams);
                streams.extend((0..count).map(|index| Rc::new(KeyStream::new(prefix, index, count))));
            }
            streams.clone()
        };
        self.end_keys();
        for stream in &streams {
            stream.is_synced.send_replace(false);
            self.open_keys(connection, stream).await?;
        }
        for stream in &streams {
            let task = replicate(Rc::downgrade(self), connection.clone(), stream.clone());
            let expiry = expire(Rc::downgrade(self), connection.clone(), stream.clone());
            let tasks = [tokio::task::spawn_local(task), tokio::task::spawn_local(expiry)];
            self.keys.tasks.borrow_mut().extend(tasks);
        }
        for stream in &streams {
            let mut synced = stream.is_synced.subscribe();
            // The sender lives as long as the stream.
            let _ = synced.wait_for(|synced| *synced).await;
        }
        Ok(())
    }

    pub(super) fn end_keys(&self) {
        self.keys.tasks.take().iter().for_each(JoinHandle::abort);
    }

    /// Opens a stream, and empties the replica if it cannot continue.
    async fn open_keys(&self, connection: &StoreConnection, stream: &KeyStream) -> Result<u64, StoreError> {
        let replica = &stream.replica;
        let mut opened = stream.plan.open(connection, &self.settings).await?;
        if replica.epoch.get() == opened.epoch && replica.applied.get() > opened.last {
            // A leader that was frozen answers before it knows its successor.
            tokio::time::sleep(streams::SUCCESSION).await;
            opened = stream.plan.open(connection, &self.settings).await?;
        }
        if let Some(time) = opened.time {
            self.observe_clock(time);
        }
        let is_recent = stream.current_at.get().is_some_and(|at| at.elapsed() < REMOVALS_SAFE);
        if replica.epoch.get() != opened.epoch || replica.applied.get() > opened.last || !is_recent {
            replica.reset(opened.epoch);
            stream.is_reset.set(true);
            stream.is_synced.send_replace(false);
            stream.note_progress();
        }
        let subjects = self.settings.subjects.stream(stream.plan.kind, &opened.epoch.to_string());
        if stream.subjects.replace(subjects.clone()) != subjects {
            streams::until_reachable(connection, subjects).await?;
        }
        Ok(opened.last)
    }

    /// Consumes messages until the consumer fails.
    async fn consume_keys(&self, connection: &StoreConnection, stream: &KeyStream) -> Result<(), StoreError> {
        let last = self.open_keys(connection, stream).await?;
        let inbox = connection.client.new_inbox();
        let subscribed = connection.client.subscribe(inbox.clone()).await;
        let mut messages = subscribed.map_err(|error| StoreError::Away(error.to_string().into()))?;
        let consumer = create_consumer(connection, stream, &inbox).await?;
        if consumer.num_pending == 0 {
            self.keys_synced(stream, last);
        }
        let mut expected = 1;
        let (mut sweep_at, name) = (Instant::now() + SWEEP_INTERVAL, inbox);
        loop {
            let Some(message) = next_message(stream, &mut messages).await else {
                tracing::debug!("stream {}: consumer {name} has failed", stream.name());
                return Ok(());
            };
            stream.current_at.set(Some(Instant::now()));
            if sweep_at <= Instant::now() {
                stream.replica.sweep(self.server_micros());
                sweep_at = Instant::now() + SWEEP_INTERVAL;
            }
            if status(&message) == 100 {
                answer_control(connection, &message).await?;
                continue;
            }
            let delivery = message.reply.as_deref().and_then(ConsumerDelivery::parse);
            let Some(delivery) = delivery.filter(|delivery| delivery.consumer == expected) else {
                return Ok(());
            };
            expected += 1;
            self.apply_key(stream, &message, delivery);
            if delivery.pending == 0 {
                self.keys_synced(stream, last);
            }
        }
    }

    fn apply_key(&self, stream: &KeyStream, message: &Message, delivery: ConsumerDelivery) {
        let stored_at = delivery.time / 1_000;
        // A message may be old, but not from the future.
        if self.server_micros() < stored_at {
            self.observe_clock(stored_at);
        }
        let parsed = KeyMessage::parse(message, &stream.subjects.borrow(), delivery.stream, stored_at);
        let is_synced = *stream.is_synced.borrow();
        match parsed {
            // Of another epoch, or of another program.
            None => stream.replica.applied.set(delivery.stream),
            Some(parsed) => {
                let (topic, update) = stream.replica.apply(parsed, self.server_micros());
                let is_notified = is_synced && self.is_followed(&TopicPart::keys(&topic));
                if let Some(sink) = self.sink().filter(|_| is_notified) {
                    sink.keys_changed(&topic, update);
                }
            }
        }
        if is_synced {
            stream.note_progress();
        }
    }

    fn keys_synced(&self, stream: &KeyStream, last: u64) {
        if !*stream.is_synced.borrow() {
            if stream.is_reset.replace(false) {
                stream.replica.loaded(self.server_micros(), last);
            }
            stream.current_at.set(Some(Instant::now()));
            stream.is_synced.send_replace(true);
            stream.note_progress();
        }
    }
}

/// Keeps a replica current while the connection exists.
async fn replicate(
    engine: std::rc::Weak<StoreEngine>,
    connection: Rc<StoreConnection>,
    stream: Rc<KeyStream>,
) {
    while let Some(engine) = engine.upgrade() {
        if let Err(error) = engine.consume_keys(&connection, &stream).await {
            tracing::debug!("stream {}: {error}", stream.name());
        }
        drop(engine);
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Removes expired keys while the connection exists.
async fn expire(engine: std::rc::Weak<StoreEngine>, connection: Rc<StoreConnection>, stream: Rc<KeyStream>) {
    while let Some(engine) = engine.upgrade() {
        if *stream.is_synced.borrow() {
            let expired = stream.replica.take_expired(engine.server_micros());
            let removals = expired.into_iter().map(|key| engine.remove_expired(&connection, &stream, key));
            futures_util::future::join_all(removals).await;
        }
        drop(engine);
        tokio::time::sleep(EXPIRY_INTERVAL.mul_f64(0.5 + random_fraction())).await;
    }
}

/// The next message; `None`: the consumer has failed.
async fn next_message(stream: &KeyStream, messages: &mut Subscriber) -> Option<Message> {
    tokio::select! {
        biased;
        message = messages.next() => message,
        () = stream.failed.notified() => None,
        () = tokio::time::sleep(SILENCE) => None,
    }
}

async fn create_consumer(
    connection: &StoreConnection,
    stream: &KeyStream,
    inbox: &str,
) -> Result<ConsumerInfo, StoreError> {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let name = inbox.rsplit('.').next().unwrap_or_default();
    let body = json!({
        "stream_name": stream.name(),
        "config": {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": stream.replica.applied.get() + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": true,
            "num_replicas": 1,
            "flow_control": true,
            "idle_heartbeat": nanos(HEARTBEAT),
            "inactive_threshold": nanos(CONSUMER_EXPIRY),
        },
    });
    let subject = format!("CONSUMER.CREATE.{}.{name}", stream.name());
    connection.api(&subject, &body).await?.map_err(|error| error.store_error())
}

/// Answers a consumer's flow control. A heartbeat needs an answer if the consumer waits for one.
async fn answer_control(connection: &StoreConnection, message: &Message) -> Result<(), StoreError> {
    let stalled = header(message, "Nats-Consumer-Stalled").map(str::to_owned);
    let Some(reply) = message.reply.as_ref().map(ToString::to_string).or(stalled) else { return Ok(()) };
    let sent = connection.client.publish(reply, Bytes::new()).await;
    sent.map_err(|error| StoreError::Away(error.to_string().into()))
}

impl ConsumerDelivery {
    /// `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.consumer sequence.time.pending[.token]`
    fn parse(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.split('.').collect();
        let first = match tokens.len() {
            9 => 5,
            11.. => 7,
            _ => return None,
        };
        if tokens[..2] != ["$JS", "ACK"] {
            return None;
        }
        let mut numbers = tokens.get(first..)?.iter().map(|token| token.parse::<u64>().ok());
        let (stream, consumer, time) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Self { stream, consumer, time, pending: numbers.next()?? })
    }
}

/// Plan for the stream with values that are stored once.
pub(super) fn once_plan(prefix: &str) -> StreamPlan {
    let mut plan = KeyStream::new(prefix, 0, 0).plan;
    plan.name = format!("{prefix}_o");
    plan.kind = "o";
    if let Some(fields) = plan.fields.as_object_mut() {
        fields.remove("subject_delete_marker_ttl");
        fields.insert("description".to_owned(), Value::from("values that are stored once"));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_of_both_forms_are_parsed() {
        let delivery = Some(ConsumerDelivery { stream: 7, consumer: 3, time: 1_000, pending: 2 });
        assert_eq!(ConsumerDelivery::parse("$JS.ACK.s.c.1.7.3.1000.2"), delivery);
        assert_eq!(ConsumerDelivery::parse("$JS.ACK._.hash.s.c.1.7.3.1000.2"), delivery);
        assert_eq!(ConsumerDelivery::parse("$JS.ACK.d.hash.s.c.1.7.3.1000.2.token"), delivery);
        for other in ["", "$JS.ACK.s.c.1.7.3.1000", "$JS.FC.s.c.1.7.3.1000.2", "$JS.ACK.s.c.1.7.x.1000.2"] {
            assert_eq!(ConsumerDelivery::parse(other), None, "{other}");
        }
    }
}
