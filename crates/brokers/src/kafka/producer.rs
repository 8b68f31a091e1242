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

use sinews_stream::record::{Record, Records, ValueKind};
use sinews_stream::{AppendError, Completer, Durability, Pending};

use super::config::Config;
use super::{message, report};
use crate::error::BrokerConfigError;
use crate::followed;
use crate::lock::lock;
use crate::reconnect::ReconnectDelay;
use crate::status::Status;

/// Maximum time that the thread waits for reports before it does other work. Reports are handled immediately.
const REPORT_WAIT: Duration = Duration::from_millis(100);
/// Wait for reports while the rest of an append waits for space in the queue.
const QUEUE_SPACE_WAIT: Duration = Duration::from_millis(1);
/// Maximum time for librdkafka to report purged messages.
const PURGE_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of a message in addition to its key and value: framing, and the header with its kind.
const MESSAGE_OVERHEAD: usize = 128;

/// Error of an append whose records are stored at unknown offsets.
const OFFSET_UNKNOWN: &str = "Kafka has the records, and does not say where";

type Client = BaseProducer<ProducerCallbacks>;

/// The producing half of a connection.
pub(super) struct KafkaProducer {
    config: Config,
    status: Arc<Status>,
    /// Replaced after a permanent failure, which idempotence prefers to storing a record twice.
    client: RwLock<Arc<Client>>,
    /// Unsent rests of appends that only partly fit into librdkafka's queue. While there are any, further appends are
    /// rejected; so there is at most one for each publishing thread.
    partial: Mutex<Vec<PartialAppend>>,
    is_closed: AtomicBool,
}

struct PartialAppend {
    topic: String,
    partition: i32,
    records: Records,
    sent: usize,
    append: Arc<KafkaAppend>,
}

/// Records of one append in flight.
pub(super) struct KafkaAppend {
    remaining: AtomicU32,
    /// The lowest offset so far.
    first: AtomicU64,
    failed: Mutex<Option<AppendError>>,
    completer: Mutex<Option<Completer>>,
    stream: String,
    partition: u32,
    /// This node's readers do not see records below this offset.
    min_offset: u64,
}

/// librdkafka callbacks, on the report thread.
pub(super) struct ProducerCallbacks {
    status: Arc<Status>,
    unknown_offsets: Mutex<Option<UnknownOffsets>>,
    /// The client's last error: why it purged messages, if it did.
    last_error: Mutex<Option<String>>,
}

/// Resent messages that had been stored before, whose offsets the broker does not report. They are consecutive, and
/// librdkafka counts their offsets from -1: the next of them would get `next`. No other message has that offset, since
/// at least as many messages as have been counted precede it.
struct UnknownOffsets {
    topic: String,
    partition: i32,
    next: i64,
}

impl UnknownOffsets {
    fn has(&self, message: &impl Message) -> bool {
        let (offset, partition) = (message.offset(), message.partition());
        (offset, partition, message.topic()) == (self.next, self.partition, &self.topic)
    }
}

/// Number of records that entered the queue.
enum SendOutcome {
    All,
    /// The queue is full; this many records are in it.
    Full(usize),
    /// The next record and all behind it cannot be sent.
    Rejected(usize, AppendError),
}

impl KafkaProducer {
    pub(super) fn new(config: Config, status: Arc<Status>) -> Result<Self, BrokerConfigError> {
        let client = create(&config, &status).map_err(|error| BrokerConfigError::Client {
            broker: config.name.clone(),
            reason: error.to_string(),
        })?;
        let client = RwLock::new(Arc::new(client));
        Ok(Self { config, status, client, partial: Mutex::default(), is_closed: AtomicBool::new(false) })
    }

    pub(super) fn publish(
        &self,
        stream: &str,
        partition: u32,
        records: Records,
    ) -> Result<Pending, AppendError> {
        let topic = self.config.topic(stream).map_err(failed)?;
        let min_offset = self.status.followed.min_offset(stream, partition)?;
        let (append, pending) = KafkaAppend::new(records.count(), stream, partition, min_offset);
        let partition = i32::try_from(partition).map_err(|_| failed("Kafka has no such partition"))?;
        self.check_sizes(&records)?;
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(AppendError::Closed);
        }
        if !lock(&self.partial).is_empty() {
            return Err(self.queue_full());
        }
        match self.send(&self.client(), &topic, partition, &records, 0, &append) {
            SendOutcome::All => {}
            SendOutcome::Full(0) => return Err(self.queue_full()),
            SendOutcome::Full(sent) => {
                lock(&self.partial).push(PartialAppend { topic, partition, records, sent, append })
            }
            SendOutcome::Rejected(0, error) => return Err(error),
            SendOutcome::Rejected(sent, error) => append.fail_records(records.count() - sent as u32, error),
        }
        Ok(pending)
    }

    /// Handles reports until the connection is closed and all appends have completed or the deadline has passed.
    pub(super) fn run(&self, until: &dyn Fn() -> Option<Instant>) {
        let mut retired = Vec::new();
        let (mut delay, mut replace_at) = (ReconnectDelay::default(), Instant::now());
        loop {
            let client = self.client();
            let is_full = !lock(&self.partial).is_empty();
            client.poll(if is_full { QUEUE_SPACE_WAIT } else { REPORT_WAIT });
            if is_full {
                self.send_partial(&client);
            }
            self.status.wake_waiters_if_due();
            if let Some(reason) = fatal_error(&client)
                && Instant::now() >= replace_at
            {
                let now = Instant::now();
                replace_at = now + delay.next(now);
                retired.extend(self.replace(&reason));
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
        if let Err(error) = client.flush(PURGE_TIMEOUT) {
            self.status.record_error(&error.to_string());
        }
        for partial in lock(&self.partial).drain(..) {
            partial.append.fail_records(partial.records.count() - partial.sent as u32, AppendError::Closed);
        }
        self.status.wake_waiters();
    }

    /// Rejects further appends.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.status.health().waiting == 0 && lock(&self.partial).is_empty()
    }

    fn client(&self) -> Arc<Client> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn queue_full(&self) -> AppendError {
        self.status.note_queue_full();
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
        append: &Arc<KafkaAppend>,
    ) -> SendOutcome {
        for (index, record) in records.iter().flatten().enumerate().skip(from) {
            // The report may arrive before `send` returns.
            self.status.sent(1);
            let message = outgoing(topic, partition, &record, append.clone());
            if let Err((error, _)) = client.send(message) {
                self.status.completed(1);
                return match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::QueueFull) => SendOutcome::Full(index),
                    _ => {
                        let reason = fatal_error(client).unwrap_or_else(|| report::described(&error));
                        SendOutcome::Rejected(index, failed(reason))
                    }
                };
            }
        }
        SendOutcome::All
    }

    /// Sends the rests of appends as far as the queue has space.
    fn send_partial(&self, client: &Client) {
        let mut partial = lock(&self.partial);
        while let Some(first) = partial.first_mut() {
            let PartialAppend { topic, partition, records, sent, append } = first;
            match self.send(client, topic, *partition, records, *sent, append) {
                SendOutcome::All => {}
                SendOutcome::Full(now) => {
                    *sent = now;
                    return;
                }
                SendOutcome::Rejected(sent, error) => {
                    append.fail_records(records.count() - sent as u32, error)
                }
            }
            partial.remove(0);
        }
    }

    /// Replaces a permanently failed client and returns it.
    fn replace(&self, reason: &str) -> Option<Arc<Client>> {
        self.status.mark_unreachable(reason);
        match create(&self.config, &self.status) {
            Ok(client) => {
                let mut slot = self.client.write().unwrap_or_else(PoisonError::into_inner);
                Some(std::mem::replace(&mut *slot, Arc::new(client)))
            }
            Err(error) => {
                self.status.record_error(&error.to_string());
                None
            }
        }
    }
}

impl KafkaAppend {
    fn new(count: u32, stream: &str, partition: u32, min_offset: u64) -> (Arc<Self>, Pending) {
        let (completer, pending) = Pending::channel(count);
        let append = Self {
            remaining: AtomicU32::new(count),
            first: AtomicU64::new(u64::MAX),
            failed: Mutex::default(),
            completer: Mutex::new(Some(completer)),
            stream: stream.to_owned(),
            partition,
            min_offset,
        };
        (Arc::new(append), pending)
    }

    /// Completes one record, with its offset or an error.
    fn complete_record(&self, offset: Result<u64, AppendError>) {
        match offset {
            Ok(offset) => {
                self.first.fetch_min(offset, Ordering::Relaxed);
                self.finish_records(1);
            }
            Err(error) => self.fail_records(1, error),
        }
    }

    /// Fails this many records: the append fails once its other records have completed.
    fn fail_records(&self, count: u32, error: AppendError) {
        lock(&self.failed).get_or_insert(error);
        self.finish_records(count);
    }

    fn finish_records(&self, count: u32) {
        if self.remaining.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        let Some(completer) = lock(&self.completer).take() else { return };
        match lock(&self.failed).take() {
            Some(error) => completer.fail(error),
            None => completer.reached(Durability::Broker, self.first.load(Ordering::Relaxed)),
        }
    }
}

impl ClientContext for ProducerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        report::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        *lock(&self.last_error) = Some(report::with_remedy(&error, reason));
        report::record_client_error(&self.status, &error, reason);
    }
}

impl ProducerCallbacks {
    /// Describes a message's error. A purged message's error names no cause: the client's last error does.
    fn described(&self, error: &KafkaError) -> String {
        use RDKafkaErrorCode::{PurgeInflight, PurgeQueue};
        let is_purged = matches!(error.rdkafka_error_code(), Some(PurgeInflight | PurgeQueue));
        let reason = if is_purged { lock(&self.last_error).clone() } else { None };
        reason.unwrap_or_else(|| report::described(error))
    }

    /// The offset, if this node's readers see it.
    fn visible_offset(&self, append: &KafkaAppend, offset: u64) -> Result<u64, AppendError> {
        if offset >= append.min_offset {
            return Ok(offset);
        }
        let reason = followed::recreated(offset, append.min_offset);
        self.status.followed.stop(&append.stream, append.partition, &reason);
        self.status.mark_not_followed(&format!("{}/{}", append.stream, append.partition), &reason);
        Err(failed(reason))
    }

    /// Returns an acknowledged message's offset, if the broker has reported it.
    fn offset(&self, message: &impl Message) -> Option<u64> {
        let mut unknown_offsets = lock(&self.unknown_offsets);
        match &mut *unknown_offsets {
            Some(before) if before.has(message) => {
                before.next += 1;
                return None;
            }
            slot => *slot = None,
        }
        let offset = u64::try_from(message.offset()).ok();
        if offset.is_none() {
            let (topic, partition) = (message.topic().to_owned(), message.partition());
            *unknown_offsets = Some(UnknownOffsets { topic, partition, next: message.offset() + 1 });
        }
        offset
    }
}

impl ProducerContext for ProducerCallbacks {
    type DeliveryOpaque = Arc<KafkaAppend>;

    fn delivery(&self, result: &DeliveryResult<'_>, append: Arc<KafkaAppend>) {
        self.status.completed(1);
        match result {
            Ok(message) => {
                self.status.mark_reachable();
                self.status.append_succeeded();
                let offset = self.offset(message).ok_or_else(|| failed(OFFSET_UNKNOWN));
                append.complete_record(offset.and_then(|offset| self.visible_offset(&append, offset)));
            }
            Err((error, _)) => {
                let reason = self.described(error);
                self.status.record_error(&reason);
                if rejects_all(error) {
                    self.status.append_failed(&reason);
                }
                append.complete_record(Err(failed(reason)));
            }
        }
    }
}

/// Describes the error that ended the client, if one has. The errors of later messages name no cause.
fn fatal_error(client: &Client) -> Option<String> {
    let (code, reason) = client.client().fatal_error()?;
    Some(report::with_remedy(&KafkaError::Global(code), &reason))
}

/// Whether the error concerns all appends, and not only this message or topic.
fn rejects_all(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        AllBrokersDown, Authentication, BrokerNotAvailable, BrokerTransportFailure,
        ClusterAuthorizationFailed, Fatal, LeaderNotAvailable, MessageTimedOut, NetworkException,
        NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderForPartition, OperationTimedOut,
        RequestTimedOut, SSL, SaslAuthenticationFailed,
    };
    matches!(
        error.rdkafka_error_code(),
        Some(
            AllBrokersDown
                | Authentication
                | BrokerNotAvailable
                | BrokerTransportFailure
                | ClusterAuthorizationFailed
                | Fatal
                | LeaderNotAvailable
                | MessageTimedOut
                | NetworkException
                | NotEnoughReplicas
                | NotEnoughReplicasAfterAppend
                | NotLeaderForPartition
                | OperationTimedOut
                | RequestTimedOut
                | SSL
                | SaslAuthenticationFailed
        )
    )
}

fn create(config: &Config, status: &Arc<Status>) -> Result<Client, KafkaError> {
    let callbacks = ProducerCallbacks {
        status: status.clone(),
        unknown_offsets: Mutex::default(),
        last_error: Mutex::default(),
    };
    config.producer().create_with_context(callbacks)
}

fn outgoing<'a>(
    topic: &'a str,
    partition: i32,
    record: &Record<'a>,
    append: Arc<KafkaAppend>,
) -> BaseRecord<'a, [u8], [u8], Arc<KafkaAppend>> {
    let mut message = BaseRecord::with_opaque_to(topic, append).partition(partition);
    if record.kind != ValueKind::Tombstone {
        message = message.payload(record.value);
    }
    if !record.key.is_empty() {
        message = message.key(record.key);
    }
    if let Some(name) = message::content_type(record.kind) {
        let header = Header { key: message::CONTENT_TYPE, value: Some(name) };
        message = message.headers(OwnedHeaders::new_with_capacity(1).insert(header));
    }
    // Kafka stores milliseconds. A record without a time, 0, gets the current time.
    message.timestamp(i64::try_from(record.timestamp / 1000).unwrap_or(i64::MAX))
}

fn failed(reason: impl Into<Arc<str>>) -> AppendError {
    AppendError::Broker(reason.into())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;
    use crate::reconnect::simulated;
    use crate::url::BrokerUrl;

    /// Producers in a row that fail permanently.
    const FAILURES: usize = 6;

    #[test]
    fn delays_of_replacements_grow_while_each_producer_fails() {
        let mock = MockCluster::new(1).expect("loopback has ports");
        let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        mock.request_errors(RDKafkaApiKey::InitProducerId, &[denied; FAILURES]);
        let url = format!("kafka://{}", mock.bootstrap_servers());
        let config = Config::from_url(BrokerUrl::parse(&url, &BTreeMap::new()).expect("a URL"));
        let status = Arc::new(Status::new(url, Duration::ZERO));
        let producer = KafkaProducer::new(config.expect("settings"), status).expect("a client");
        let (begin, clients) = (Instant::now(), RefCell::new(vec![producer.client()]));
        simulated::start();
        producer.run(&|| {
            let (client, mut clients) = (producer.client(), clients.borrow_mut());
            if clients.iter().all(|known| !Arc::ptr_eq(known, &client)) {
                clients.push(client);
            }
            let is_over = clients.len() > FAILURES || begin.elapsed() > Duration::from_secs(60);
            is_over.then_some(begin)
        });
        let delays = simulated::delays();
        assert_eq!(delays.len(), FAILURES, "{delays:?}");
        simulated::assert_growth(&delays);
    }
}
