//! Apache Kafka through librdkafka: a stream is a topic; partitions and offsets are Kafka's.
//!
//! Four threads per connection in addition to librdkafka's own: one handles delivery reports, one feeds the followed
//! partitions, one requests metadata and old records, and one stores group offsets. No other thread ever waits.

mod config;
mod consumer;
mod groups;
mod message;
mod metadata;
mod producer;
mod report;
mod request_thread;
mod signal;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sinews_stream::broker::{Broker, BrokerHealth, BrokerResponse};
use sinews_stream::record::Records;
use sinews_stream::{AppendError, Partition, Pending, ReadResult, StartPosition};

use crate::error::BrokerConfigError;
use crate::lock::lock;
use crate::status::Status;
use crate::url::BrokerUrl;

use config::Config;
use consumer::KafkaConsumer;
use groups::{GroupRequest, KafkaGroups};
use metadata::{MetadataClient, MetadataRequest};
use producer::KafkaProducer;
use request_thread::{RequestThread, start};

/// A connection to a Kafka cluster.
pub(crate) struct Kafka {
    producer: Arc<KafkaProducer>,
    consumer: Arc<KafkaConsumer>,
    metadata: RequestThread<MetadataRequest>,
    groups: RequestThread<GroupRequest>,
    status: Arc<Status>,
    shutdown: Arc<ClientShutdown>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether the connection is being closed, and the deadline of pending work.
#[derive(Default)]
struct ClientShutdown {
    is_requested: AtomicBool,
    deadline: Mutex<Option<Instant>>,
}

impl Kafka {
    pub(crate) fn connect(address: BrokerUrl) -> Result<Self, BrokerConfigError> {
        let config = Config::from_url(address)?;
        let client_error = |error: &dyn std::fmt::Display| BrokerConfigError::Client {
            broker: config.name.clone(),
            reason: error.to_string(),
        };
        let status = Arc::new(Status::new(config.name.clone(), config.failure_timeout));
        let producer = Arc::new(KafkaProducer::new(config.clone(), status.clone())?);
        let consumer =
            Arc::new(KafkaConsumer::new(&config, status.clone()).map_err(|error| client_error(&error))?);
        let metadata = MetadataClient::new(&config, status.clone()).map_err(|error| client_error(&error))?;
        let groups = KafkaGroups::new(config.clone(), status.clone());
        let metadata = RequestThread::start("kafka-ask", metadata).map_err(|error| client_error(&error))?;
        let groups = RequestThread::start("kafka-groups", groups).map_err(|error| client_error(&error))?;
        let kafka = Self {
            producer,
            consumer,
            metadata,
            groups,
            status,
            shutdown: Arc::default(),
            threads: Mutex::default(),
        };
        let (producer, shutdown) = (kafka.producer.clone(), kafka.shutdown.clone());
        let reports = start("kafka-reports", move || producer.run(&|| *lock(&shutdown.deadline)));
        let (consumer, shutdown) = (kafka.consumer.clone(), kafka.shutdown.clone());
        let followed =
            start("kafka-follow", move || consumer.run(&|| shutdown.is_requested.load(Ordering::Relaxed)));
        for thread in [reports, followed] {
            lock(&kafka.threads).push(thread.map_err(|error| client_error(&error))?);
        }
        Ok(kafka)
    }

    fn shut_down(&self, within: Duration) {
        *lock(&self.shutdown.deadline) = Some(Instant::now() + within);
        self.shutdown.is_requested.store(true, Ordering::Relaxed);
        self.producer.close();
        self.consumer.wake();
        self.metadata.close();
        self.groups.close();
        for thread in lock(&self.threads).drain(..) {
            // The thread returns no value, and a panic was already printed.
            let _ = thread.join();
        }
    }
}

impl Broker for Kafka {
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError> {
        self.producer.publish(stream, partition, records)
    }

    fn has_queue_space(&self, _: &[&Records]) -> bool {
        !self.status.is_queue_full()
    }

    fn watch_queue_space(&self, waker: &Waker) -> bool {
        self.status.watch_queue_space(waker)
    }

    fn follow(&self, stream: &str, partition: u32, from: StartPosition, sink: Partition) {
        self.status.followed.add(stream, partition, from, &sink);
        self.consumer.add(stream, partition, from, sink);
    }

    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> BrokerResponse<ReadResult> {
        let stream = stream.to_owned();
        self.metadata.send(|reply| MetadataRequest::Fetch { stream, partition, from, max_bytes, reply })
    }

    fn offset_range(&self, stream: &str, partition: u32) -> BrokerResponse<(u64, u64)> {
        let stream = stream.to_owned();
        self.metadata.send(|reply| MetadataRequest::OffsetRange { stream, partition, reply })
    }

    fn partitions(&self, stream: &str) -> BrokerResponse<u32> {
        let stream = stream.to_owned();
        self.metadata.send(|reply| MetadataRequest::Partitions { stream, reply })
    }

    fn streams(&self) -> BrokerResponse<Vec<String>> {
        self.metadata.send(|reply| MetadataRequest::Streams { reply })
    }

    fn first_offset(&self) -> u64 {
        0
    }

    fn creates_partitions(&self) -> bool {
        false
    }

    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> BrokerResponse<()> {
        let (stream, group) = (stream.to_owned(), group.to_owned());
        self.groups.send(|reply| GroupRequest::Commit { group, stream, partition, offset, reply })
    }

    fn committed(&self, stream: &str, partition: u32, group: &str) -> BrokerResponse<Option<u64>> {
        let (stream, group) = (stream.to_owned(), group.to_owned());
        self.groups.send(|reply| GroupRequest::Committed { group, stream, partition, reply })
    }

    fn health(&self) -> BrokerHealth {
        self.status.health()
    }

    fn close(&self, within: Duration) {
        self.shut_down(within);
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
