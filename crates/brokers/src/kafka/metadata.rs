//! Requests to the cluster for metadata and old records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};

use sinews_stream::ReadResult;
use sinews_stream::broker::{BatchEncoder, BrokerError, BrokerResponder, STREAMS_MAX};

use super::config::Config;
use super::consumer::ConsumerCallbacks;
use super::message::record;
use super::report;
use super::request_thread::RequestHandler;
use crate::status::Status;

/// Request timeout. Leader elections take seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Health probe interval.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

pub(super) enum MetadataRequest {
    Fetch { stream: String, partition: u32, from: u64, max_bytes: usize, reply: BrokerResponder<ReadResult> },
    OffsetRange { stream: String, partition: u32, reply: BrokerResponder<(u64, u64)> },
    Partitions { stream: String, reply: BrokerResponder<u32> },
    Streams { reply: BrokerResponder<Vec<String>> },
}

/// State of the thread.
pub(super) struct MetadataClient {
    config: Config,
    status: Arc<Status>,
    client: BaseConsumer<ConsumerCallbacks>,
    /// Partition and offset at which the client can continue: a reader of old records usually continues where it
    /// stopped.
    reading: Option<(String, i32, u64)>,
    /// The last requested partition, used by the probe.
    last_partition: Option<(String, i32)>,
    probed: Option<Instant>,
}

impl MetadataClient {
    pub(super) fn new(config: &Config, status: Arc<Status>) -> Result<Self, KafkaError> {
        let mut settings = config.consumer(&format!("{}sinews", config.prefix));
        // The client reads in pieces, must not wait for more at the end, and must not fetch far ahead.
        settings.set("enable.partition.eof", "true").set("fetch.wait.max.ms", "10");
        settings.set("queued.max.messages.kbytes", "4096");
        let client = settings.create_with_context(ConsumerCallbacks::new(status.clone()))?;
        Ok(Self { config: config.clone(), status, client, reading: None, last_partition: None, probed: None })
    }

    fn topic_partition(&self, stream: &str, partition: u32) -> Result<(String, i32), BrokerError> {
        let topic = self.config.topic(stream).map_err(BrokerError::failed)?;
        let partition =
            i32::try_from(partition).map_err(|_| BrokerError::failed("Kafka has no such partition"))?;
        Ok((topic, partition))
    }

    fn offset_range(&mut self, topic: &str, partition: i32) -> Result<(u64, u64), BrokerError> {
        let ends = self.client.fetch_watermarks(topic, partition, REQUEST_TIMEOUT);
        let (low, high) = ends.map_err(|error| {
            BrokerError::failed(format!("{topic}/{partition}: {}", report::described(&error)))
        })?;
        self.last_partition = Some((topic.to_owned(), partition));
        self.mark_reachable();
        Ok((u64::try_from(low).unwrap_or_default(), u64::try_from(high).unwrap_or_default()))
    }

    fn partitions(&mut self, stream: &str) -> Result<u32, BrokerError> {
        let topic = self.config.topic(stream).map_err(BrokerError::failed)?;
        let end = Instant::now() + REQUEST_TIMEOUT;
        loop {
            let metadata =
                self.client.fetch_metadata(Some(&topic), REQUEST_TIMEOUT).map_err(BrokerError::failed)?;
            self.mark_reachable();
            let found = metadata
                .topics()
                .first()
                .ok_or_else(|| BrokerError::failed(format!("{topic}: no metadata")))?;
            let error = found.error().map(RDKafkaErrorCode::from);
            if error.is_none() && !found.partitions().is_empty() {
                return Ok(found.partitions().len() as u32);
            }
            // A topic created by this request has no leader yet.
            let is_being_created = matches!(
                error,
                None | Some(RDKafkaErrorCode::LeaderNotAvailable | RDKafkaErrorCode::UnknownTopicOrPartition)
            );
            if !is_being_created || Instant::now() >= end {
                let described = |error| report::described(&KafkaError::MetadataFetch(error));
                let reason = error.map_or_else(|| "no partition".to_owned(), described);
                return Err(BrokerError::failed(format!("{topic}: {reason}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The topics with this server's prefix. Kafka's own topics begin with two underscores.
    fn streams(&mut self) -> Result<Vec<String>, BrokerError> {
        let metadata = self.client.fetch_metadata(None, REQUEST_TIMEOUT).map_err(BrokerError::failed)?;
        self.mark_reachable();
        let names = metadata.topics().iter().filter(|topic| topic.error().is_none()).map(MetadataTopic::name);
        let names = names.filter(|name| !name.starts_with("__"));
        let streams: Vec<_> = names
            .filter_map(|name| Some(name.strip_prefix(&*self.config.prefix)?.to_owned()))
            .filter(|name| !name.is_empty())
            .take(STREAMS_MAX + 1)
            .collect();
        if streams.len() > STREAMS_MAX {
            return Err(BrokerError::failed(format!("Kafka has more than {STREAMS_MAX} topics")));
        }
        Ok(streams)
    }

    fn fetch(
        &mut self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<ReadResult, BrokerError> {
        let (topic, partition) = self.topic_partition(stream, partition)?;
        let continues =
            self.reading.take().is_some_and(|reading| reading == (topic.clone(), partition, from));
        if !continues {
            let (earliest, next) = self.offset_range(&topic, partition)?;
            if from < earliest {
                return Err(BrokerError::Gone { earliest });
            }
            if from >= next {
                return Ok(BatchEncoder::new(from).finish());
            }
            let mut topic_partition = TopicPartitionList::new();
            let offset = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
            topic_partition.add_partition_offset(&topic, partition, offset).map_err(BrokerError::failed)?;
            self.client.assign(&topic_partition).map_err(BrokerError::failed)?;
        }
        let (read, is_end) = self.read(from, max_bytes)?;
        // The client reports the end only once.
        self.reading = (!is_end).then_some((topic, partition, read.next));
        Ok(read)
    }

    /// Reads messages of the assigned partition until there are enough or the end is reached. Also returns whether it
    /// was the end.
    fn read(&self, from: u64, max_bytes: usize) -> Result<(ReadResult, bool), BrokerError> {
        let end = Instant::now() + REQUEST_TIMEOUT;
        let mut batches = BatchEncoder::new(from);
        while batches.len() < max_bytes {
            match self.client.poll(end.saturating_duration_since(Instant::now())) {
                Some(Ok(message)) => {
                    let record = record(&message, self.config.kind);
                    if record.offset >= batches.next() {
                        batches.push(&record);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok((batches.finish(), true)),
                Some(Err(error)) if report::is_denied_group(&error) => {}
                Some(Err(error)) if batches.is_empty() => {
                    return Err(BrokerError::failed(report::described(&error)));
                }
                Some(Err(_)) => break,
                // An event other than a message; the timeout has not expired.
                None if Instant::now() < end => {}
                None if batches.is_empty() => {
                    return Err(BrokerError::failed("the broker did not answer in time"));
                }
                None => break,
            }
        }
        Ok((batches.finish(), false))
    }

    fn mark_reachable(&mut self) {
        self.status.mark_reachable();
        self.probed = Some(Instant::now());
    }

    /// Probes the cluster. Asks a partition's leader, since the metadata of a large cluster are large.
    fn probe(&mut self) {
        let answer = match self.last_partition.clone() {
            Some((topic, partition)) => {
                self.client.fetch_watermarks(&topic, partition, REQUEST_TIMEOUT).map(|_| ())
            }
            None => self.client.fetch_metadata(None, REQUEST_TIMEOUT).map(|_| ()),
        };
        match answer {
            Ok(()) => self.mark_reachable(),
            Err(error) => {
                self.status.mark_unreachable(&report::described(&error));
                self.probed = Some(Instant::now());
            }
        }
    }
}

impl RequestHandler for MetadataClient {
    type Request = MetadataRequest;

    const IDLE: Duration = Duration::from_millis(200);

    fn handle(&mut self, requests: Vec<MetadataRequest>) {
        for request in requests {
            match request {
                MetadataRequest::Fetch { stream, partition, from, max_bytes, reply } => {
                    reply.send(self.fetch(&stream, partition, from, max_bytes));
                }
                MetadataRequest::OffsetRange { stream, partition, reply } => {
                    let topic_partition = self.topic_partition(&stream, partition);
                    reply.send(
                        topic_partition.and_then(|(topic, partition)| self.offset_range(&topic, partition)),
                    );
                }
                MetadataRequest::Partitions { stream, reply } => {
                    reply.send(self.partitions(&stream));
                }
                MetadataRequest::Streams { reply } => reply.send(self.streams()),
            }
        }
    }

    fn run_periodic(&mut self) {
        if self.reading.is_none() {
            // No fetch is active, so only events arrive.
            let _ = self.client.poll(Duration::ZERO);
        }
        if self.probed.is_none_or(|probed| probed.elapsed() >= PROBE_INTERVAL) {
            self.probe();
        }
    }
}
