//! NATS with JetStream: a partition is a JetStream stream with one subject of the same name; an offset is a sequence.
//!
//! Sequences begin at 1. Every record has an id, so that a record resent after a lost connection is not stored twice.
//! Appends are sent in order, and unacknowledged appends are resent on a new connection before later ones: the client's
//! own behavior, to continue with its buffer, would reverse the order.
//!
//! Core NATS stores no messages, so it has no offsets from which to continue.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::header::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{
    GetStreamError, GetStreamErrorKind, PublishAckFuture, PublishErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{self, LastRawMessageErrorKind};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event, Message, ServerAddr};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use tokio::sync::mpsc;

use super::address::{Address, FAILURE_TIMEOUT};
use super::batches::Batches;
use super::remote::{
    ANSWER_WITHIN, Bell, Engine, Outgoing, QUEUE_BYTES, RETRY_EVERY, Remote, failed, settle,
};
use super::sink::Sink;
use super::status::Status;
use super::{BrokerError, ConnectError, visible};
use crate::record::{Kind, Record, RecordBuilder};
use crate::{Read, Start};

const PORT: u16 = 4222;
/// Maximum number of appends sent together.
const APPENDS_MAX: usize = 256;
/// Maximum number of unacknowledged records.
const RECORDS_MAX: usize = 1024;
/// Messages requested at once: far fewer than the client's subscription buffers before it drops messages.
const MESSAGES_MAX: usize = 1000;
/// Expiry of a request for messages at the server.
const PULL: Duration = Duration::from_secs(2);
/// Duplicate window of streams created here, and the time for which an append is resent. Less if a stream retains
/// messages for a shorter time.
const REMEMBERED: Duration = Duration::from_secs(120);
/// A consumer may see a message slightly after the server has acknowledged it.
const SETTLED_WITHIN: Duration = Duration::from_millis(250);
/// Delay of the client's own reconnect, so that a lost connection does not send its buffer before the records have been
/// resent on a new one.
const LATE: Duration = Duration::from_secs(30);

/// Names of the settings, for errors.
const SETTINGS: [&str; 10] = [
    "credentials.file",
    FAILURE_TIMEOUT,
    "max.age.seconds",
    "max.bytes",
    "partitions",
    "prefix",
    "queue.bytes",
    "replicas",
    "storage",
    "tls.ca.file",
];

/// Subject that answers whether JetStream is available.
const ACCOUNT: &str = "$JS.API.INFO";
/// Maximum characters of an error text that are reported.
const ERROR_CHARS: usize = 300;

/// Maximum bytes of a message's headers, without its key.
const HEADERS_BYTES: usize = 256;
/// Headers of a message.
const ID: &str = "Nats-Msg-Id";
const CONTENT_TYPE: &str = "Content-Type";
const KEY: &str = "Sinews-Key";
const TIME: &str = "Sinews-Time";
const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

/// Connection parameters, and the configuration of new streams.
struct Settings {
    servers: Vec<ServerAddr>,
    user: Option<(String, String)>,
    credentials: Option<String>,
    authority: Option<String>,
    has_tls: bool,
    prefix: String,
    partitions: u32,
    replicas: usize,
    storage: stream::StorageType,
    max_bytes: i64,
    max_age: Duration,
}

struct Nats {
    settings: Settings,
    status: Arc<Status>,
    /// Used for everything except appends. It reconnects by itself.
    reader: RefCell<Option<Context>>,
    /// Streams known to exist.
    known: RefCell<HashSet<String>>,
    /// Creation times of the followed streams, in nanoseconds: a stream with another time has other records.
    created: RefCell<HashMap<String, i128>>,
    /// Prefix of the ids of this connection's records.
    id: RefCell<String>,
    count: Cell<u64>,
}

/// A connection for appends, until it is lost.
struct Session {
    context: Context,
    lost: Arc<Bell>,
    is_lost: Arc<AtomicBool>,
}

/// An append in flight.
struct Flight {
    append: Outgoing,
    name: String,
    id: u64,
    /// The sequence of each acknowledged record.
    sequences: Vec<Option<u64>>,
    /// Time when the first unacknowledged record was sent.
    sent: Option<Instant>,
}

pub(super) fn connect(mut address: Address) -> Result<Remote, ConnectError> {
    address.default_port(PORT);
    let bytes = address.take_number("queue.bytes", QUEUE_BYTES)?;
    let settings = Settings::of(&mut address)?;
    let failure_timeout = address.take_failure_timeout()?;
    address.refuse_rest(&SETTINGS)?;
    let status = Arc::new(Status::new(address.to_string(), failure_timeout));
    let shared = status.clone();
    Remote::start("nats", &address, bytes, status, move || Nats {
        settings,
        status: shared,
        reader: RefCell::default(),
        known: RefCell::default(),
        created: RefCell::default(),
        id: RefCell::default(),
        count: Cell::new(0),
    })
}

impl Settings {
    fn of(address: &mut Address) -> Result<Self, ConnectError> {
        let has_tls = address.scheme == "nats+tls";
        let mut servers = Vec::new();
        for host in &address.hosts {
            let url = format!("{}://{host}", if has_tls { "tls" } else { "nats" });
            let server = url.parse().map_err(|error| ConnectError::Url {
                scheme: address.scheme.clone(),
                why: format!("{host}: {error}"),
            })?;
            servers.push(server);
        }
        let partitions = address.take_number("partitions", 1)?;
        let replicas = address.take_number("replicas", 1)?;
        let max_bytes = address.take_number("max.bytes", 0)?;
        let storage = match address.take("storage").as_deref() {
            None | Some("file") => stream::StorageType::File,
            Some("memory") => stream::StorageType::Memory,
            Some(other) => {
                return Err(address.refused("storage", format!("`{other}` is not file or memory")));
            }
        };
        Ok(Self {
            servers,
            user: address.user.take().map(|user| (user, address.password.take().unwrap_or_default())),
            credentials: address.take("credentials.file"),
            authority: address.take("tls.ca.file"),
            has_tls,
            prefix: address.take("prefix").unwrap_or_default(),
            partitions: u32::try_from(partitions)
                .map_err(|_| address.refused("partitions", "the number is too large"))?,
            replicas: usize::try_from(replicas)
                .map_err(|_| address.refused("replicas", "the number is too large"))?,
            storage,
            // JetStream uses -1 for no limit.
            max_bytes: i64::try_from(max_bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(-1),
            max_age: Duration::from_secs(address.take_number("max.age.seconds", 0)?),
        })
    }

    async fn options(&self) -> Result<ConnectOptions, String> {
        let mut options = ConnectOptions::new()
            .name("sinews")
            .connection_timeout(ANSWER_WITHIN)
            .request_timeout(Some(ANSWER_WITHIN))
            .ping_interval(ANSWER_WITHIN)
            .require_tls(self.has_tls);
        if let Some((user, password)) = self.user.clone() {
            options = options.user_and_password(user, password);
        }
        if let Some(file) = &self.credentials {
            options = options.credentials_file(file).await.map_err(|error| format!("{file}: {error}"))?;
        }
        if let Some(file) = &self.authority {
            options = options.add_root_certificates(file.into());
        }
        Ok(options)
    }

    /// Name of a JetStream stream and its subject. JetStream permits few characters: all except letters, digits and
    /// dashes are encoded as `_` and two hexadecimal digits.
    fn name(&self, stream: &str, partition: u32) -> String {
        format!("{}-{partition}", escaped(&format!("{}{stream}", self.prefix)))
    }

    fn remembered(&self) -> Duration {
        if self.max_age.is_zero() { REMEMBERED } else { REMEMBERED.min(self.max_age) }
    }

    fn stream(&self, name: &str) -> stream::Config {
        stream::Config {
            name: name.to_owned(),
            subjects: vec![name.to_owned()],
            storage: self.storage,
            num_replicas: self.replicas,
            max_bytes: self.max_bytes,
            max_age: self.max_age,
            duplicate_window: self.remembered(),
            ..stream::Config::default()
        }
    }
}

impl Nats {
    /// The context for everything except appends.
    async fn reader(&self) -> Result<Context, String> {
        if let Some(context) = self.reader.borrow().clone() {
            return Ok(context);
        }
        let client = self.settings.options().await?.connect(&self.settings.servers).await;
        let context = jetstream::new(client.map_err(|error| error.to_string())?);
        *self.reader.borrow_mut() = Some(context.clone());
        Ok(context)
    }

    /// A JetStream stream, created if it does not exist.
    async fn stream(&self, name: &str) -> Result<stream::Stream, String> {
        let context = self.reader().await?;
        let is_known = self.known.borrow().contains(name);
        if is_known {
            match context.get_stream(name).await {
                Err(error) if is_unknown(&error) => drop(self.known.borrow_mut().remove(name)),
                stream => return stream.map_err(|error| error.to_string()),
            }
        }
        let stream = context.get_or_create_stream(self.settings.stream(name)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        self.known.borrow_mut().insert(name.to_owned());
        Ok(stream)
    }

    /// A followed stream, which is not created again after its deletion.
    async fn followed(&self, name: &str) -> Result<stream::Stream, String> {
        if !self.created.borrow().contains_key(name) {
            return self.stream(name).await;
        }
        let found = self.reader().await?.get_stream(name).await;
        let trouble = format!("stream {name}");
        match &found {
            Ok(_) => self.status.goes_on(&trouble),
            Err(error) if is_unknown(error) => {
                self.status.stopped(&trouble, "the stream does not exist at NATS: it was deleted")
            }
            Err(_) => {}
        }
        found.map_err(|error| error.to_string())
    }

    /// The reason why this is not the stream that this node follows by that name, if so.
    fn made_anew(&self, name: &str, stream: &stream::Stream) -> Option<String> {
        let is_another = self.created.borrow().get(name).is_some_and(|known| *known != created(stream));
        is_another.then(|| {
            let created = stream.cached_info().created;
            format!(
                "NATS created the stream at {created}, after this node began to follow it: it was recreated. Remove this \
                 node's copy of it to read it again"
            )
        })
    }

    /// A consumer from a sequence on. The server removes it when it gets no requests.
    async fn consumer(&self, stream: &stream::Stream, policy: DeliverPolicy) -> Result<PullConsumer, String> {
        let config = pull::Config {
            deliver_policy: policy,
            ack_policy: AckPolicy::None,
            inactive_threshold: LATE,
            memory_storage: true,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.map_err(|error| error.to_string())
    }

    /// Reads until an error occurs. The outer error is permanent.
    async fn read_on(
        &self,
        name: &str,
        from: &mut Option<Start>,
        sink: &mut Sink,
    ) -> Result<Result<(), String>, String> {
        let stream = match self.followed(name).await {
            Ok(stream) => stream,
            Err(why) => return Ok(Err(why)),
        };
        self.created.borrow_mut().entry(name.to_owned()).or_insert_with(|| created(&stream));
        if let Some(why) = self.made_anew(name, &stream) {
            return Err(why);
        }
        let end = extent(&stream).1;
        if end < sink.next() {
            return Err(visible::ends_before("NATS", end, sink.next()));
        }
        match has_last(&stream, sink).await {
            Ok(true) => {}
            Ok(false) => return Err(visible::another_record(sink.next() - 1)),
            Err(why) => return Ok(Err(why)),
        }
        let policy = match from.take().map(|from| sink.beginning(from)) {
            Some(Start::Earliest) => DeliverPolicy::All,
            Some(Start::Latest) => by_sequence(end),
            Some(Start::Time(time)) => by_time(&stream, time),
            Some(Start::Offset(offset)) => by_sequence(offset),
            None => by_sequence(sink.next()),
        };
        let consumer = match self.consumer(&stream, policy).await {
            Ok(consumer) => consumer,
            Err(why) => return Ok(Err(why)),
        };
        self.consume(name, &consumer, sink).await
    }

    async fn consume(
        &self,
        name: &str,
        consumer: &PullConsumer,
        sink: &mut Sink,
    ) -> Result<Result<(), String>, String> {
        let mut last = 0;
        loop {
            let messages = consumer.batch().max_messages(MESSAGES_MAX).expires(PULL).messages().await;
            let mut messages = match messages {
                Ok(messages) => messages,
                Err(error) => return Ok(Err(error.to_string())),
            };
            let mut waiting = 0;
            loop {
                // Flushes the received messages to the log when no further message is immediately available.
                let message = match tokio::time::timeout(Duration::ZERO, messages.next()).await {
                    Ok(message) => message,
                    Err(_) => {
                        settle(sink, name, &self.status).await?;
                        messages.next().await
                    }
                };
                let message = match message {
                    None => break,
                    Some(Ok(message)) => message,
                    Some(Err(error)) => return Ok(Err(error.to_string())),
                };
                let (sequence, place) = match message.info() {
                    Ok(info) => (info.stream_sequence, info.consumer_sequence),
                    Err(error) => return Ok(Err(error.to_string())),
                };
                // Without acknowledgements, the server does not resend messages lost with a connection.
                if place != last + 1 {
                    return Ok(Err("messages were lost in transit; reading again".to_owned()));
                }
                last = place;
                if sequence < sink.next() {
                    return Ok(Err(format!(
                        "sequence {sequence} was received twice; reading continues behind the last record"
                    )));
                }
                let time = time_of(&message).unwrap_or_else(|| sent_at(&message));
                if !sink.push(sequence, time, |builder| push(builder, &message, time)) {
                    self.status.note(&format!(
                        "{name}: the record at sequence {sequence} is too large and is skipped"
                    ));
                }
                if sink.is_full() {
                    settle(sink, name, &self.status).await?;
                }
                waiting += 1;
            }
            settle(sink, name, &self.status).await?;
            if waiting == 0 && !self.is_there(consumer).await {
                return Ok(Err("the server has removed the consumer".to_owned()));
            }
        }
    }

    /// Whether the consumer exists: a restarted server has lost it, and does not answer requests.
    async fn is_there(&self, consumer: &PullConsumer) -> bool {
        let mut consumer = consumer.clone();
        consumer.info().await.is_ok()
    }

    /// Connects for appends, and retries until it succeeds.
    async fn session(&self) -> Session {
        loop {
            match self.open().await {
                Ok(session) => return session,
                Err(why) => self.status.is_down(&why),
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    async fn open(&self) -> Result<Session, String> {
        let (lost, is_lost) = (Arc::new(Bell::default()), Arc::new(AtomicBool::new(false)));
        let (bell, flag) = (lost.clone(), is_lost.clone());
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = is_open.clone();
        let options = self.settings.options().await?.event_callback(move |event| {
            if matches!(event, Event::Disconnected | Event::Closed) {
                flag.store(true, Ordering::SeqCst);
                bell.ring();
            }
            std::future::ready(())
        });
        let delay = move |_| if opened.load(Ordering::SeqCst) { LATE } else { Duration::ZERO };
        let options = options.reconnect_delay_callback(delay).max_reconnects(self.settings.servers.len());
        let client: Client =
            options.connect(&self.settings.servers).await.map_err(|error| error.to_string())?;
        is_open.store(true, Ordering::SeqCst);
        if self.id.borrow().is_empty() {
            *self.id.borrow_mut() = client.new_inbox();
        }
        let context =
            jetstream::context::ContextBuilder::new().timeout(ANSWER_WITHIN).ack_timeout(ANSWER_WITHIN);
        let context = context.max_ack_inflight(RECORDS_MAX * 64).build(client);
        Ok(Session { context, lost, is_lost })
    }

    /// Sends unacknowledged records; an error requires another connection.
    async fn send(&self, session: &Session, flights: &mut Vec<Flight>) -> Result<(), String> {
        while let Some(first) = flights.first() {
            if let Some(why) = too_large(&session.context, first) {
                flights.remove(0).append.reject(&why);
                continue;
            }
            let name = first.name.clone();
            let stream = self.stream(&name).await?;
            if let Some(why) = self.made_anew(&name, &stream) {
                let of_another = flights.extract_if(.., |flight| flight.name == name);
                of_another.for_each(|flight| flight.append.reject_unseen(&why));
                continue;
            }
            if refuse_late(flights, self.settings.remembered()) {
                continue;
            }
            let mut sent = Vec::new();
            if flights[0].name != name {
                continue;
            }
            for (place, flight) in flights.iter_mut().enumerate() {
                // An append that is too large or needs a new stream is handled when it is first.
                let is_another = flight.name != name;
                if sent.len() >= RECORDS_MAX || is_another || too_large(&session.context, flight).is_some() {
                    break;
                }
                self.send_flight(session, place, flight, &mut sent).await?;
            }
            let answers = self.answers(session, flights, sent).await;
            let refused = answers?;
            for (place, why) in refused.into_iter().rev() {
                flights.remove(place).append.refuse(&why);
            }
            // All sent records are acknowledged.
            flights.iter_mut().for_each(|flight| flight.sent = None);
            let done = |flight: &mut Flight| flight.sequences.iter().all(Option::is_some);
            for flight in flights.extract_if(.., done) {
                let first = flight.sequences.iter().flatten().min().copied().unwrap_or_default();
                flight.append.acknowledge(first);
            }
        }
        Ok(())
    }

    /// Sends unacknowledged records up to the limit of records in flight.
    async fn send_flight(
        &self,
        session: &Session,
        place: usize,
        flight: &mut Flight,
        sent: &mut Vec<(usize, usize, PublishAckFuture)>,
    ) -> Result<(), String> {
        for (number, record) in flight.append.records.iter().flatten().enumerate() {
            if flight.sequences[number].is_some() {
                continue;
            }
            if sent.len() >= RECORDS_MAX {
                break;
            }
            flight.sent.get_or_insert_with(Instant::now);
            let id = format!("{}.{}", self.id.borrow(), flight.id + number as u64);
            let value = flight.append.records.bytes().slice_ref(record.value);
            let message = PublishMessage::build().payload(value).headers(headers(&record, &id));
            let answer = session.context.send_publish(flight.name.clone(), message).await;
            sent.push((place, number, answer.map_err(|error| error.to_string())?));
        }
        Ok(())
    }

    /// Waits for acknowledgements. Rejected appends are returned by their index, in order.
    async fn answers(
        &self,
        session: &Session,
        flights: &mut [Flight],
        sent: Vec<(usize, usize, PublishAckFuture)>,
    ) -> Result<Vec<(usize, String)>, String> {
        let mut refused: Vec<(usize, String)> = Vec::new();
        for (place, number, answer) in sent {
            if session.is_lost.load(Ordering::SeqCst) {
                return Err("the connection was lost".to_owned());
            }
            let (lost, answer) = (pin!(session.lost.rung()), answer.into_future());
            match select(lost, answer).await {
                Either::Left(_) => return Err("the connection was lost".to_owned()),
                Either::Right((Ok(answer), _)) => {
                    self.status.is_up();
                    flights[place].sequences[number] = Some(answer.sequence);
                }
                Either::Right((Err(error), _)) if error.kind() == PublishErrorKind::Other => {
                    // The server has rejected the record, and will again.
                    if refused.last().is_none_or(|(last, _)| *last != place) {
                        refused.push((place, format!("NATS rejected the record: {error}")));
                    }
                }
                Either::Right((Err(error), _)) => {
                    // Without a stream, or without its leader, no server answers.
                    self.known.borrow_mut().remove(&flights[place].name);
                    return Err(error.to_string());
                }
            }
        }
        Ok(refused)
    }

    /// A JetStream stream that retains the last message of each subject: the committed offset of a group in a
    /// partition.
    async fn groups(&self) -> Result<(stream::Stream, String), String> {
        let name = format!("{}sinews-groups", escaped(&self.settings.prefix));
        let config = stream::Config {
            subjects: vec![format!("{name}.>")],
            max_messages_per_subject: 1,
            max_bytes: -1,
            max_age: Duration::ZERO,
            ..self.settings.stream(&name)
        };
        let stream = self.reader().await?.get_or_create_stream(config).await;
        Ok((stream.map_err(|error| error.to_string())?, name))
    }

    fn group(&self, groups: &str, stream: &str, partition: u32, group: &str) -> String {
        format!("{groups}.{}.{}", self.settings.name(stream, partition), escaped(group))
    }
}

impl Engine for Nats {
    async fn publish(&self, mut queue: mpsc::Receiver<Outgoing>) {
        let mut session: Option<Session> = None;
        let mut batch = Vec::new();
        while queue.recv_many(&mut batch, APPENDS_MAX).await > 0 {
            let mut flights: Vec<Flight> = batch.drain(..).map(|append| self.flight(append)).collect();
            while !flights.is_empty() {
                let open = match session.take().filter(|session| !session.is_lost.load(Ordering::SeqCst)) {
                    Some(session) => session,
                    None => self.session().await,
                };
                match self.send(&open, &mut flights).await {
                    Ok(()) => session = Some(open),
                    Err(why) => {
                        self.status.is_down(&why);
                        tokio::time::sleep(RETRY_EVERY).await;
                    }
                }
            }
        }
    }

    async fn follow(&self, stream: &str, partition: u32, from: Start, sink: &mut Sink) -> String {
        let name = self.settings.name(stream, partition);
        let mut from = Some(from);
        loop {
            let begin = from;
            match self.read_on(&name, &mut from, sink).await {
                Err(why) => return why,
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    self.status.note(&format!("{name}: {why}"));
                    // No message has arrived yet: the start position is unchanged.
                    if sink.next() == 0 {
                        from = begin;
                    }
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
    }

    async fn fetch(
        &self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<Read, BrokerError> {
        let name = self.settings.name(stream, partition);
        let stream = self.stream(&name).await.map_err(failed)?;
        let (earliest, end) = extent(&stream);
        if from < earliest {
            return Err(BrokerError::Gone { earliest });
        }
        let mut batches = Batches::new(from);
        if from >= end {
            return Ok(batches.finish());
        }
        let consumer = self.consumer(&stream, by_sequence(from)).await.map_err(failed)?;
        let mut waits = false;
        while batches.next() < end && batches.len() < max_bytes {
            let messages = if waits {
                consumer.batch().max_messages(MESSAGES_MAX).expires(SETTLED_WITHIN).messages().await
            } else {
                consumer.fetch().max_messages(MESSAGES_MAX).messages().await
            };
            let mut messages = messages.map_err(failed)?;
            let before = batches.next();
            while batches.next() < end
                && let Some(message) = messages.next().await
            {
                let message = message.map_err(failed)?;
                let sequence = message.info().map_err(failed)?.stream_sequence;
                if batches.len() < max_bytes {
                    let time = time_of(&message).unwrap_or_else(|| sent_at(&message));
                    batches.push(sequence, |builder| push(builder, &message, time));
                }
            }
            if batches.next() == before {
                if !waits {
                    waits = true;
                    continue;
                }
                if before == from {
                    // The stream has records there, so an empty result would be wrong.
                    let nothing = format!(
                        "no messages received from offset {from} on, although the stream ends at {end}"
                    );
                    return Err(BrokerError::Failed(nothing.into()));
                }
                break;
            }
        }
        Ok(batches.finish())
    }

    async fn ends(&self, stream: &str, partition: u32) -> Result<(u64, u64), BrokerError> {
        let name = self.settings.name(stream, partition);
        self.stream(&name).await.map(|stream| extent(&stream)).map_err(failed)
    }

    /// The configuration sets how many JetStream streams form one stream here.
    async fn partitions(&self, _: &str) -> Result<u32, BrokerError> {
        Ok(self.settings.partitions)
    }

    async fn commit(
        &self,
        stream: &str,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<(), BrokerError> {
        let (_, groups) = self.groups().await.map_err(failed)?;
        let subject = self.group(&groups, stream, partition, group);
        let context = self.reader().await.map_err(failed)?;
        let stored = context.publish(subject, offset.to_string().into()).await.map_err(failed)?;
        stored.await.map(|_| ()).map_err(failed)
    }

    async fn committed(&self, stream: &str, partition: u32, group: &str) -> Result<Option<u64>, BrokerError> {
        let (kept, groups) = self.groups().await.map_err(failed)?;
        let subject = self.group(&groups, stream, partition, group);
        match kept.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Ok(std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok())),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn probe(&self) -> Result<(), String> {
        // Not the client's own request: it rejects the answer of servers before 2.10, which lacks some fields.
        let client = self.reader().await?.client();
        let answer = client.request(ACCOUNT, Vec::new().into()).await.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&answer.payload);
        if text.contains(r#""error":{"#) { Err(text.chars().take(ERROR_CHARS).collect()) } else { Ok(()) }
    }
}

impl Nats {
    fn flight(&self, append: Outgoing) -> Flight {
        let id = self.count.get();
        self.count.set(id + u64::from(append.records.count()));
        Flight {
            name: self.settings.name(&append.stream, append.partition),
            id,
            sequences: vec![None; append.records.count() as usize],
            sent: None,
            append,
        }
    }
}

/// Fails sent appends whose ids the server may have forgotten: resending them could store them twice.
fn refuse_late(flights: &mut Vec<Flight>, remembered: Duration) -> bool {
    let is_late = |flight: &mut Flight| {
        let is_open = flight.sequences.iter().any(Option::is_none);
        is_open && flight.sent.is_some_and(|sent| sent.elapsed() >= remembered)
    };
    let late: Vec<Flight> = flights.extract_if(.., is_late).collect();
    let is_any = !late.is_empty();
    for flight in late {
        flight.append.refuse("NATS has not acknowledged the records in time: they may or may not be stored");
    }
    is_any
}

fn by_sequence(start_sequence: u64) -> DeliverPolicy {
    DeliverPolicy::ByStartSequence { start_sequence: start_sequence.max(1) }
}

/// Whether the server has no stream of this name.
fn is_unknown(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// First and next sequence.
fn extent(stream: &stream::Stream) -> (u64, u64) {
    let state = &stream.cached_info().state;
    (state.first_sequence.max(1), state.last_sequence + 1)
}

fn created(stream: &stream::Stream) -> i128 {
    stream.cached_info().created.unix_timestamp_nanos()
}

/// Whether the stream has the log's last record at its offset, as far as that can be determined.
async fn has_last(stream: &stream::Stream, sink: &Sink) -> Result<bool, String> {
    let Some((offset, time, key, value)) = sink.last() else { return Ok(true) };
    match stream.get_raw_message(offset).await {
        Ok(found) => {
            let (sent, found_key) = (find(&found.headers, TIME), find(&found.headers, KEY));
            let is_time = sent.and_then(|sent| sent.parse().ok()).is_none_or(|sent: u64| sent == time);
            let found_key = found_key.and_then(|key| BASE64.decode(key).ok()).unwrap_or_default();
            Ok(is_time && found_key == key && found.payload == value)
        }
        // The message was removed.
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(true),
        Err(error) => Err(error.to_string()),
    }
}

fn find<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(async_nats::HeaderValue::as_str)
}

/// From the first message that the server received at this time or later, in microseconds.
fn by_time(stream: &stream::Stream, time: u64) -> DeliverPolicy {
    let created = stream.cached_info().created;
    let before = u64::try_from(created.unix_timestamp_nanos() / 1000).unwrap_or_default();
    match time.checked_sub(before) {
        Some(later) => DeliverPolicy::ByStartTime { start_time: created + Duration::from_micros(later) },
        None => DeliverPolicy::All,
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            escaped.push(byte.into());
        } else {
            escaped.push_str(&format!("_{byte:02x}"));
        }
    }
    escaped
}

fn headers(record: &Record<'_>, id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ID, id);
    headers.insert(TIME, record.timestamp.to_string());
    if !record.key.is_empty() {
        headers.insert(KEY, BASE64.encode(record.key));
    }
    match record.kind {
        Kind::Bytes => {}
        Kind::Text => headers.insert(CONTENT_TYPE, TEXT),
        Kind::Json => headers.insert(CONTENT_TYPE, JSON),
    }
    headers
}

/// The reason why the server would never accept the append, if so.
fn too_large(context: &Context, flight: &Flight) -> Option<String> {
    let most = context.client().server_info().max_payload;
    // Base64 makes a key a third longer in a header.
    let size = |record: Record<'_>| record.value.len() + record.key.len() * 4 / 3 + HEADERS_BYTES;
    let is_large = flight.append.records.iter().flatten().any(|record| size(record) > most);
    is_large.then(|| format!("a record exceeds the maximum of {most} bytes of NATS (max_payload)"))
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    find(message.headers.as_ref()?, name)
}

/// Time set by the producer.
fn time_of(message: &Message) -> Option<u64> {
    header(message, TIME)?.parse().ok()
}

/// Time when the server received the message.
fn sent_at(message: &jetstream::Message) -> u64 {
    let nanos = message.info().map_or(0, |info| info.published.unix_timestamp_nanos());
    u64::try_from(nanos / 1000).unwrap_or_default()
}

fn push(builder: &mut RecordBuilder, message: &Message, time: u64) -> bool {
    let kind = match header(message, CONTENT_TYPE) {
        Some(name) if name.starts_with("text/") => Kind::Text,
        Some(name) if name.split(';').next() == Some(JSON) => Kind::Json,
        _ => Kind::Bytes,
    };
    let key = header(message, KEY).and_then(|key| BASE64.decode(key).ok()).unwrap_or_default();
    builder.push(time, &key, &message.payload, kind).is_ok()
}
