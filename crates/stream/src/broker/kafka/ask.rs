//! Requests to the cluster for metadata and old records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::super::BrokerError;
use super::super::answer::Reply;
use super::super::batches::Batches;
use super::super::status::Status;
use super::config::Config;
use super::follow::Context;
use super::worker::Work;
use super::{failed, push};
use crate::Read;

/// Timeout of a request. Leader elections take seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Interval of the health probe.
const PROBE_EVERY: Duration = Duration::from_secs(5);

pub(super) enum Question {
    Fetch { stream: String, partition: u32, from: u64, max_bytes: usize, reply: Reply<Read> },
    Ends { stream: String, partition: u32, reply: Reply<(u64, u64)> },
    Partitions { stream: String, reply: Reply<u32> },
}

/// State of the thread.
pub(super) struct Ask {
    config: Config,
    status: Arc<Status>,
    client: BaseConsumer<Context>,
    /// Partition and offset at which the client can continue: a reader of old records usually continues where it
    /// stopped.
    reading: Option<(String, i32, u64)>,
    /// The last requested partition, used by the probe.
    known: Option<(String, i32)>,
    probed: Option<Instant>,
}

impl Ask {
    pub(super) fn new(config: &Config, status: Arc<Status>) -> Result<Self, KafkaError> {
        let mut settings = config.consumer(&format!("{}sinews", config.prefix));
        // The client reads in pieces, must not wait for more at the end, and must not fetch far ahead.
        settings.set("enable.partition.eof", "true").set("fetch.wait.max.ms", "10");
        settings.set("queued.max.messages.kbytes", "4096");
        let client = settings.create_with_context(Context::new(status.clone()))?;
        Ok(Self { config: config.clone(), status, client, reading: None, known: None, probed: None })
    }

    fn place(&self, stream: &str, partition: u32) -> Result<(String, i32), BrokerError> {
        let topic = self.config.topic(stream).map_err(failed)?;
        let partition = i32::try_from(partition).map_err(|_| failed("Kafka has no such partition"))?;
        Ok((topic, partition))
    }

    fn ends(&mut self, topic: &str, partition: i32) -> Result<(u64, u64), BrokerError> {
        let ends = self.client.fetch_watermarks(topic, partition, ANSWER_WITHIN);
        let (low, high) = ends.map_err(|error| failed(format!("{topic}/{partition}: {error}")))?;
        self.known = Some((topic.to_owned(), partition));
        self.is_up();
        Ok((u64::try_from(low).unwrap_or_default(), u64::try_from(high).unwrap_or_default()))
    }

    fn partitions(&mut self, stream: &str) -> Result<u32, BrokerError> {
        let topic = self.config.topic(stream).map_err(failed)?;
        let end = Instant::now() + ANSWER_WITHIN;
        loop {
            let metadata = self.client.fetch_metadata(Some(&topic), ANSWER_WITHIN).map_err(failed)?;
            self.is_up();
            let found = metadata.topics().first().ok_or_else(|| failed(format!("{topic}: no metadata")))?;
            let error = found.error().map(RDKafkaErrorCode::from);
            if error.is_none() && !found.partitions().is_empty() {
                return Ok(found.partitions().len() as u32);
            }
            // A topic created by this request has no leader yet.
            let is_being_made = matches!(
                error,
                None | Some(RDKafkaErrorCode::LeaderNotAvailable | RDKafkaErrorCode::UnknownTopicOrPartition)
            );
            if !is_being_made || Instant::now() >= end {
                let why = error.map_or_else(|| "no partition".to_owned(), |error| error.to_string());
                return Err(failed(format!("{topic}: {why}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn fetch(
        &mut self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<Read, BrokerError> {
        let (topic, partition) = self.place(stream, partition)?;
        let goes_on = self.reading.take().is_some_and(|reading| reading == (topic.clone(), partition, from));
        if !goes_on {
            let (earliest, next) = self.ends(&topic, partition)?;
            if from < earliest {
                return Err(BrokerError::Gone { earliest });
            }
            if from >= next {
                return Ok(Read { batches: bytes::Bytes::new(), next: from });
            }
            let mut place = TopicPartitionList::new();
            let offset = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
            place.add_partition_offset(&topic, partition, offset).map_err(failed)?;
            self.client.assign(&place).map_err(failed)?;
        }
        let (read, is_end) = self.read(from, max_bytes)?;
        // The client reports the end only once.
        self.reading = (!is_end).then_some((topic, partition, read.next));
        Ok(read)
    }

    /// Reads messages of the assigned partition until there are enough or the end is reached. Also returns whether it
    /// was the end.
    fn read(&self, from: u64, max_bytes: usize) -> Result<(Read, bool), BrokerError> {
        let end = Instant::now() + ANSWER_WITHIN;
        let mut batches = Batches::new(from);
        while batches.len() < max_bytes {
            match self.client.poll(end.saturating_duration_since(Instant::now())) {
                Some(Ok(message)) => {
                    let Ok(offset) = u64::try_from(message.offset()) else { continue };
                    if offset >= batches.next() {
                        // A record that is too large is skipped, as in following.
                        batches.push(offset, |builder| push(builder, &message, self.config.kind).is_ok());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok((batches.finish(), true)),
                Some(Err(error)) if batches.len() == 0 => return Err(failed(error)),
                Some(Err(_)) => break,
                // An event other than a message; the timeout has not expired.
                None if Instant::now() < end => {}
                None if batches.len() == 0 => return Err(failed("the broker did not answer in time")),
                None => break,
            }
        }
        Ok((batches.finish(), false))
    }

    fn is_up(&mut self) {
        self.status.is_up();
        self.probed = Some(Instant::now());
    }

    /// Probes the cluster. Asks a partition's leader, since the metadata of a large cluster are large.
    fn probe(&mut self) {
        let answer = match self.known.clone() {
            Some((topic, partition)) => {
                self.client.fetch_watermarks(&topic, partition, ANSWER_WITHIN).map(|_| ())
            }
            None => self.client.fetch_metadata(None, ANSWER_WITHIN).map(|_| ()),
        };
        match answer {
            Ok(()) => self.is_up(),
            Err(error) => {
                self.status.is_down(&error.to_string());
                self.probed = Some(Instant::now());
            }
        }
    }
}

impl Work for Ask {
    type Question = Question;

    const IDLE: Duration = Duration::from_millis(200);

    fn answer(&mut self, questions: Vec<Question>) {
        // The requester may have dropped the answer.
        for question in questions {
            match question {
                Question::Fetch { stream, partition, from, max_bytes, reply } => {
                    let _ = reply.send(self.fetch(&stream, partition, from, max_bytes));
                }
                Question::Ends { stream, partition, reply } => {
                    let place = self.place(&stream, partition);
                    let _ = reply.send(place.and_then(|(topic, partition)| self.ends(&topic, partition)));
                }
                Question::Partitions { stream, reply } => {
                    let _ = reply.send(self.partitions(&stream));
                }
            }
        }
    }

    fn look_around(&mut self) {
        if self.reading.is_none() {
            // No fetch is active, so only events arrive.
            let _ = self.client.poll(Duration::ZERO);
        }
        if self.probed.is_none_or(|probed| probed.elapsed() >= PROBE_EVERY) {
            self.probe();
        }
    }
}
