//! Apache Kafka through librdkafka: a stream is a topic; partitions and offsets are Kafka's.
//!
//! Four threads per connection in addition to librdkafka's own: one handles delivery reports, one feeds the followed
//! partitions, one requests metadata and old records, and one stores the offsets of groups. No other thread ever waits.

mod ask;
mod config;
mod follow;
mod groups;
mod produce;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::address::Address;
use super::status::{Status, lock};
use super::{Answer, Broker, BrokerError, ConnectError, Health};
use crate::record::{Kind, Malformed, RecordBuilder, Records};
use crate::{AppendError, Partition, Pending, Read, Start};

use ask::{Ask, Question};
use config::Config;
use follow::Follow;
use groups::{GroupQuestion, Groups};
use produce::Produce;
use worker::Worker;

/// Header with the type of a value, as in HTTP.
const CONTENT_TYPE: &str = "content-type";
const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

/// A connection to a Kafka cluster.
pub(super) struct Kafka {
    produce: Arc<Produce>,
    follow: Arc<Follow>,
    ask: Worker<Question>,
    groups: Worker<GroupQuestion>,
    status: Arc<Status>,
    ending: Arc<Ending>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether the connection is being closed, and the deadline of pending work.
#[derive(Default)]
struct Ending {
    has_begun: AtomicBool,
    end: Mutex<Option<Instant>>,
}

impl Kafka {
    pub(super) fn connect(address: Address) -> Result<Self, ConnectError> {
        let config = Config::of(address)?;
        let refused = |error: &dyn std::fmt::Display| ConnectError::Client {
            broker: config.name.clone(),
            why: error.to_string(),
        };
        let status = Arc::new(Status::new(config.name.clone(), config.failure_timeout));
        let produce = Arc::new(Produce::new(config.clone(), status.clone())?);
        let follow = Arc::new(Follow::new(&config, status.clone()).map_err(|error| refused(&error))?);
        let ask = Ask::new(&config, status.clone()).map_err(|error| refused(&error))?;
        let groups = Groups::new(config.clone(), status.clone());
        let ask = Worker::start("kafka-ask", ask).map_err(|error| refused(&error))?;
        let groups = Worker::start("kafka-groups", groups).map_err(|error| refused(&error))?;
        let kafka =
            Self { produce, follow, ask, groups, status, ending: Arc::default(), threads: Mutex::default() };
        let (produce, ending) = (kafka.produce.clone(), kafka.ending.clone());
        let reports = start("kafka-reports", move || produce.run(&|| *lock(&ending.end)));
        let (follow, ending) = (kafka.follow.clone(), kafka.ending.clone());
        let followed =
            start("kafka-follow", move || follow.run(&|| ending.has_begun.load(Ordering::Relaxed)));
        for thread in [reports, followed] {
            lock(&kafka.threads).push(thread.map_err(|error| refused(&error))?);
        }
        Ok(kafka)
    }

    fn end(&self, within: Duration) {
        *lock(&self.ending.end) = Some(Instant::now() + within);
        self.ending.has_begun.store(true, Ordering::Relaxed);
        self.produce.close();
        self.follow.wake();
        self.ask.close();
        self.groups.close();
        for thread in lock(&self.threads).drain(..) {
            // The thread returns no value, and a panic was already printed.
            let _ = thread.join();
        }
    }
}

impl Broker for Kafka {
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError> {
        self.produce.publish(stream, partition, records)
    }

    fn room(&self, waker: &Waker) -> bool {
        self.status.room(waker)
    }

    fn follow(&self, stream: &str, partition: u32, from: Start, sink: Partition) {
        self.status.visible.follow(stream, partition, from, &sink);
        self.follow.add(stream, partition, from, sink);
    }

    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> Answer<Read> {
        let stream = stream.to_owned();
        self.ask.ask(|reply| Question::Fetch { stream, partition, from, max_bytes, reply })
    }

    fn ends(&self, stream: &str, partition: u32) -> Answer<(u64, u64)> {
        let stream = stream.to_owned();
        self.ask.ask(|reply| Question::Ends { stream, partition, reply })
    }

    fn partitions(&self, stream: &str) -> Answer<u32> {
        let stream = stream.to_owned();
        self.ask.ask(|reply| Question::Partitions { stream, reply })
    }

    fn first_offset(&self) -> u64 {
        0
    }

    fn makes_partitions(&self) -> bool {
        false
    }

    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> Answer<()> {
        let (stream, group) = (stream.to_owned(), group.to_owned());
        self.groups.ask(|reply| GroupQuestion::Commit { group, stream, partition, offset, reply })
    }

    fn committed(&self, stream: &str, partition: u32, group: &str) -> Answer<Option<u64>> {
        let (stream, group) = (stream.to_owned(), group.to_owned());
        self.groups.ask(|reply| GroupQuestion::Committed { group, stream, partition, reply })
    }

    fn health(&self) -> Health {
        self.status.health()
    }

    fn close(&self, within: Duration) {
        self.end(within);
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Header value of a kind; bytes need none.
fn content_type(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Bytes => None,
        Kind::Text => Some(TEXT),
        Kind::Json => Some(JSON),
    }
}

/// Kind of a value according to its header, regardless of the producer; without a header, the configured kind.
fn kind_of(message: &BorrowedMessage<'_>, otherwise: Kind) -> Kind {
    let name = message.headers().and_then(|headers| {
        let found = headers.iter().find(|header| header.key.eq_ignore_ascii_case(CONTENT_TYPE));
        found.and_then(|header| header.value)
    });
    let Some(name) = name else { return otherwise };
    let name = name.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if name.eq_ignore_ascii_case(JSON.as_bytes()) {
        Kind::Json
    } else if name.len() > 5 && name[..5].eq_ignore_ascii_case(b"text/") {
        Kind::Text
    } else {
        Kind::Bytes
    }
}

/// Time when the message was created or received by the broker, as the topic is configured; in microseconds.
fn time_of(message: &BorrowedMessage<'_>) -> u64 {
    let millis = message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
    millis.unwrap_or_default().saturating_mul(1000)
}

/// Adds a message to the builder.
fn push(builder: &mut RecordBuilder, message: &BorrowedMessage<'_>, kind: Kind) -> Result<(), Malformed> {
    let (key, value) = (message.key().unwrap_or_default(), message.payload().unwrap_or_default());
    builder.push(time_of(message), key, value, kind_of(message, kind))
}

/// Forwards librdkafka's log messages.
fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
    match level {
        // Usually a lost connection, which librdkafka restores by itself.
        Emerg | Alert | Critical | Error | Warning => tracing::warn!("kafka: {facility}: {message}"),
        Notice | Info | Debug => tracing::debug!("kafka: {facility}: {message}"),
    }
}

/// Records an error that concerns no single record.
fn note_error(status: &Status, error: &KafkaError, reason: &str) {
    use RDKafkaErrorCode::{AllBrokersDown, Authentication, Fatal, SSL};
    match error.rdkafka_error_code() {
        Some(AllBrokersDown | Authentication | Fatal | SSL) => status.is_down(reason),
        // One of several brokers, or one topic.
        _ => status.note(reason),
    }
}

fn failed(why: impl std::fmt::Display) -> BrokerError {
    BrokerError::Failed(why.to_string().into())
}
