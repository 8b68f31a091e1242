//! Publishes to Kafka: records enter librdkafka's queue, and its delivery reports complete the pending appends.
//!
//! A separate thread handles the reports. librdkafka could signal a descriptor to the server's event loops, but only
//! through its raw bindings, and this crate has no unsafe code.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};

use super::super::status::{Status, lock};
use super::super::{ConnectError, visible};
use super::config::Config;
use crate::record::{Record, Records};
use crate::{AppendError, Completer, Durability, Pending};

/// Maximum time that the thread waits for reports before it does other work. Reports are handled immediately.
const REPORTS_WAIT: Duration = Duration::from_millis(100);
/// Wait for reports while the rest of an append waits for space in the queue.
const ROOM_WAIT: Duration = Duration::from_millis(1);
/// Minimum interval between replacements of a permanently failed producer.
const REPLACE_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for librdkafka to report purged messages.
const PURGED_WITHIN: Duration = Duration::from_millis(500);
/// Bytes of a message in addition to its key and value: framing, and the header with its kind.
const MESSAGE_OVERHEAD: usize = 128;

/// Error of an append whose records are stored at unknown offsets.
const NOWHERE: &str = "Kafka has the records, and does not say where";

type Client = BaseProducer<Context>;

/// The producing half of a connection.
pub(super) struct Produce {
    config: Config,
    status: Arc<Status>,
    /// Replaced after a permanent failure, which idempotence prefers to storing a record twice.
    client: RwLock<Arc<Client>>,
    /// Unsent rests of appends that only partly fit into librdkafka's queue. While there are any, further appends are
    /// rejected; so there is at most one for each publishing thread.
    rest: Mutex<Vec<Rest>>,
    is_closed: AtomicBool,
}

struct Rest {
    topic: String,
    partition: i32,
    records: Records,
    sent: usize,
    flight: Arc<Flight>,
}

/// Records of one append in flight.
pub(super) struct Flight {
    left: AtomicU32,
    /// The lowest offset so far.
    first: AtomicU64,
    failed: Mutex<Option<AppendError>>,
    completer: Mutex<Option<Completer>>,
    stream: String,
    partition: u32,
    /// Readers of this node do not see records below this offset.
    least: u64,
}

/// Callbacks of librdkafka, on the report thread.
pub(super) struct Context {
    status: Arc<Status>,
    nameless: Mutex<Option<Nameless>>,
}

/// Resent messages that had been stored before, whose offsets the broker does not report. They are consecutive, and
/// librdkafka counts their offsets from -1: the next of them would get `next`. No other message has that offset, since
/// at least as many messages as have been counted precede it.
struct Nameless {
    topic: String,
    partition: i32,
    next: i64,
}

impl Nameless {
    fn has(&self, message: &impl Message) -> bool {
        let (offset, partition) = (message.offset(), message.partition());
        (offset, partition, message.topic()) == (self.next, self.partition, &self.topic)
    }
}

/// Number of records that entered the queue.
enum Sent {
    All,
    /// The queue is full; this many records are in it.
    Full(usize),
    /// The next record and all behind it cannot be sent.
    Refused(usize, AppendError),
}

impl Produce {
    pub(super) fn new(config: Config, status: Arc<Status>) -> Result<Self, ConnectError> {
        let client = create(&config, &status)
            .map_err(|error| ConnectError::Client { broker: config.name.clone(), why: error.to_string() })?;
        let client = RwLock::new(Arc::new(client));
        Ok(Self { config, status, client, rest: Mutex::default(), is_closed: AtomicBool::new(false) })
    }

    pub(super) fn publish(
        &self,
        stream: &str,
        partition: u32,
        records: Records,
    ) -> Result<Pending, AppendError> {
        let topic = self.config.topic(stream).map_err(failed)?;
        let least = self.status.visible.least_offset(stream, partition)?;
        let (flight, pending) = Flight::new(records.count(), (stream, partition), least);
        let partition = i32::try_from(partition).map_err(|_| failed("Kafka has no such partition"))?;
        self.check_sizes(&records)?;
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(AppendError::Closed);
        }
        if !lock(&self.rest).is_empty() {
            return Err(self.busy());
        }
        match self.send(&self.client(), &topic, partition, &records, 0, &flight) {
            Sent::All => {}
            Sent::Full(0) => return Err(self.busy()),
            Sent::Full(sent) => lock(&self.rest).push(Rest { topic, partition, records, sent, flight }),
            Sent::Refused(0, error) => return Err(error),
            Sent::Refused(sent, error) => flight.refuse(records.count() - sent as u32, error),
        }
        Ok(pending)
    }

    /// Handles reports until the connection is closed and all appends have completed or the deadline has passed.
    pub(super) fn run(&self, until: &dyn Fn() -> Option<Instant>) {
        let mut retired = Vec::new();
        let mut replaced = Instant::now();
        loop {
            let client = self.client();
            let is_full = !lock(&self.rest).is_empty();
            client.poll(if is_full { ROOM_WAIT } else { REPORTS_WAIT });
            if is_full {
                self.send_rest(&client);
            }
            self.status.feed_if_due();
            if let Some((_, why)) = client.client().fatal_error()
                && replaced.elapsed() >= REPLACE_EVERY
            {
                replaced = Instant::now();
                retired.extend(self.replace(&why));
            }
            // The last owner of a client blocks until it has ended; that must be this thread, never a publishing one.
            drop(client);
            retired.retain(|client| Arc::strong_count(client) > 1);
            if until().is_some_and(|end| self.is_done() || Instant::now() >= end) {
                break;
            }
        }
        // Unacknowledged appends fail now, and their callers are notified.
        let client = self.client();
        client.purge(PurgeConfig::default().queue().inflight());
        if let Err(error) = client.flush(PURGED_WITHIN) {
            self.status.note(&error.to_string());
        }
        for rest in lock(&self.rest).drain(..) {
            rest.flight.refuse(rest.records.count() - rest.sent as u32, AppendError::Closed);
        }
        self.status.feed();
    }

    /// Rejects further appends.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.status.health().waiting == 0 && lock(&self.rest).is_empty()
    }

    fn client(&self) -> Arc<Client> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn busy(&self) -> AppendError {
        self.status.starve();
        AppendError::Busy
    }

    /// Checked before any record is queued: an append is accepted as a whole.
    fn check_sizes(&self, records: &Records) -> Result<(), AppendError> {
        let most = self.config.message_bytes_max;
        let mut all = records.iter().flatten();
        if all.any(|record| record.key.len() + record.value.len() + MESSAGE_OVERHEAD > most) {
            return Err(AppendError::TooLarge { most: most as u64 });
        }
        Ok(())
    }

    fn send(
        &self,
        client: &Client,
        topic: &str,
        partition: i32,
        records: &Records,
        from: usize,
        flight: &Arc<Flight>,
    ) -> Sent {
        for (place, record) in records.iter().flatten().enumerate().skip(from) {
            // The report may arrive before `send` returns.
            self.status.sent(1);
            let message = message(topic, partition, &record, flight.clone());
            if let Err((error, _)) = client.send(message) {
                self.status.landed(1);
                return match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::QueueFull) => Sent::Full(place),
                    _ => Sent::Refused(place, failed(error.to_string())),
                };
            }
        }
        Sent::All
    }

    /// Sends the rests of appends as far as the queue has space.
    fn send_rest(&self, client: &Client) {
        let mut rest = lock(&self.rest);
        while let Some(first) = rest.first_mut() {
            let Rest { topic, partition, records, sent, flight } = first;
            match self.send(client, topic, *partition, records, *sent, flight) {
                Sent::All => {}
                Sent::Full(now) => {
                    *sent = now;
                    return;
                }
                Sent::Refused(sent, error) => flight.refuse(records.count() - sent as u32, error),
            }
            rest.remove(0);
        }
    }

    /// Replaces a permanently failed client and returns it.
    fn replace(&self, why: &str) -> Option<Arc<Client>> {
        self.status.is_down(why);
        match create(&self.config, &self.status) {
            Ok(client) => {
                let mut place = self.client.write().unwrap_or_else(PoisonError::into_inner);
                Some(std::mem::replace(&mut *place, Arc::new(client)))
            }
            Err(error) => {
                self.status.note(&error.to_string());
                None
            }
        }
    }
}

impl Flight {
    fn new(count: u32, (stream, partition): (&str, u32), least: u64) -> (Arc<Self>, Pending) {
        let (completer, pending) = Pending::channel(count);
        let flight = Self {
            left: AtomicU32::new(count),
            first: AtomicU64::new(u64::MAX),
            failed: Mutex::default(),
            completer: Mutex::new(Some(completer)),
            stream: stream.to_owned(),
            partition,
            least,
        };
        (Arc::new(flight), pending)
    }

    /// Completes one record, with its offset or an error.
    fn land(&self, offset: Result<u64, AppendError>) {
        match offset {
            Ok(offset) => {
                self.first.fetch_min(offset, Ordering::Relaxed);
                self.end(1);
            }
            Err(error) => self.refuse(1, error),
        }
    }

    /// Fails this many records: the append fails once its other records have completed.
    fn refuse(&self, count: u32, error: AppendError) {
        lock(&self.failed).get_or_insert(error);
        self.end(count);
    }

    fn end(&self, count: u32) {
        if self.left.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        let Some(completer) = lock(&self.completer).take() else { return };
        match lock(&self.failed).take() {
            Some(error) => completer.fail(error),
            None => completer.reached(Durability::Broker, self.first.load(Ordering::Relaxed)),
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        super::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        super::note_error(&self.status, &error, reason);
    }
}

impl Context {
    /// The offset, if readers of this node see it.
    fn visible(&self, flight: &Flight, offset: u64) -> Result<u64, AppendError> {
        if offset >= flight.least {
            return Ok(offset);
        }
        let why = visible::made_anew(offset, flight.least);
        self.status.visible.end(&flight.stream, flight.partition, &why);
        self.status.stopped(&format!("{}/{}", flight.stream, flight.partition), &why);
        Err(failed(why))
    }

    /// The offset of an acknowledged message, if the broker has reported it.
    fn offset(&self, message: &impl Message) -> Option<u64> {
        let mut nameless = lock(&self.nameless);
        match &mut *nameless {
            Some(before) if before.has(message) => {
                before.next += 1;
                return None;
            }
            place => *place = None,
        }
        let offset = u64::try_from(message.offset()).ok();
        if offset.is_none() {
            let (topic, partition) = (message.topic().to_owned(), message.partition());
            *nameless = Some(Nameless { topic, partition, next: message.offset() + 1 });
        }
        offset
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Arc<Flight>;

    fn delivery(&self, result: &DeliveryResult<'_>, flight: Arc<Flight>) {
        self.status.landed(1);
        match result {
            Ok(message) => {
                self.status.is_up();
                self.status.append_succeeded();
                let offset = self.offset(message).ok_or_else(|| failed(NOWHERE));
                flight.land(offset.and_then(|offset| self.visible(&flight, offset)));
            }
            Err((error, _)) => {
                self.status.note(&error.to_string());
                if !is_about_the_message(error) {
                    self.status.append_failed(&error.to_string());
                }
                flight.land(Err(failed(error.to_string())));
            }
        }
    }
}

/// Whether the error concerns only this message.
fn is_about_the_message(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{InvalidMessage, InvalidRecord, MessageSizeTooLarge};
    matches!(error.rdkafka_error_code(), Some(InvalidMessage | InvalidRecord | MessageSizeTooLarge))
}

fn create(config: &Config, status: &Arc<Status>) -> Result<Client, KafkaError> {
    config.producer().create_with_context(Context { status: status.clone(), nameless: Mutex::default() })
}

fn message<'a>(
    topic: &'a str,
    partition: i32,
    record: &Record<'a>,
    flight: Arc<Flight>,
) -> BaseRecord<'a, [u8], [u8], Arc<Flight>> {
    let mut message = BaseRecord::with_opaque_to(topic, flight).partition(partition).payload(record.value);
    if !record.key.is_empty() {
        message = message.key(record.key);
    }
    if let Some(name) = super::content_type(record.kind) {
        let header = Header { key: super::CONTENT_TYPE, value: Some(name) };
        message = message.headers(OwnedHeaders::new_with_capacity(1).insert(header));
    }
    // Kafka stores milliseconds. A record without a time, 0, gets the current time.
    message.timestamp(i64::try_from(record.timestamp / 1000).unwrap_or(i64::MAX))
}

fn failed(why: impl Into<Arc<str>>) -> AppendError {
    AppendError::Broker(why.into())
}
