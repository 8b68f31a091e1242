//! Follows Kafka partitions: one consumer feeds them all.
//!
//! Partitions are assigned instead of subscribed to, so no group protocol runs. Each has its own queue: a partition
//! whose log is full is not read, librdkafka stops fetching for it when its queue is full
//! (`queued.max.messages.kbytes`), and the other partitions continue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};

use sinews_stream::broker::{FlushOutcome, LastRecord, LogSink};
use sinews_stream::{AppendError, Partition, StartPosition};

use super::config::Config;
use super::message::record;
use super::report;
use super::signal::Signal;
use crate::followed;
use crate::lock::lock;
use crate::status::Status;

/// Interval of work that no event triggers.
const IDLE: Duration = Duration::from_millis(500);
/// Messages from one partition per turn.
const TURN_MESSAGES: usize = 4096;
/// Timeout for a request for a partition's start offset; the other partitions wait meanwhile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Retry interval of the request.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for the request that creates a missing topic; the other partitions wait meanwhile.
const CREATION_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of that request while the topic is being created, which takes some 100 ms.
const CREATION_INTERVAL: Duration = Duration::from_millis(50);
/// Number of these requests. Then librdkafka waits for the topic, and reports that it is unknown.
const CREATION_REQUESTS_MAX: u32 = 100;

/// The consuming half of a connection.
pub(super) struct KafkaConsumer {
    consumer: Arc<BaseConsumer<ConsumerCallbacks>>,
    config: Config,
    status: Arc<Status>,
    signal: Arc<Signal>,
    /// Partitions requested and not begun yet.
    added: Mutex<Vec<AddedPartition>>,
}

struct AddedPartition {
    stream: String,
    topic: String,
    partition: i32,
    from: StartPosition,
    sink: LogSink,
    /// Time of the next attempt, after a failed one.
    retry_at: Option<Instant>,
    /// Requests so far that have found no such topic.
    missing: u32,
}

/// A partition that is followed.
struct FollowedPartition {
    stream: String,
    name: String,
    from: StartPosition,
    sink: LogSink,
    /// The last record of the log, until it has been compared with the broker's record at that offset.
    last: Option<LastRecord>,
    /// The broker has the partition again after reporting it as unknown.
    has_returned: bool,
    queue: PartitionQueue<ConsumerCallbacks>,
    /// Set by librdkafka when the queue has messages again.
    has_more: Arc<AtomicBool>,
    /// The disk is full; time of the next attempt.
    retry_at: Option<Instant>,
    /// The broker has reported the partition as unknown or forbidden; time of the next request.
    probe_at: Option<Instant>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TopicPartition {
    topic: String,
    partition: i32,
}

type PartitionMap = BTreeMap<TopicPartition, FollowedPartition>;

/// librdkafka callbacks, for each consuming client.
pub(super) struct ConsumerCallbacks {
    status: Arc<Status>,
}

impl KafkaConsumer {
    pub(super) fn new(config: &Config, status: Arc<Status>) -> KafkaResult<Self> {
        let signal = Arc::new(Signal::default());
        let settings = config.consumer(&format!("{}sinews", config.prefix));
        let mut consumer: BaseConsumer<ConsumerCallbacks> =
            settings.create_with_context(ConsumerCallbacks::new(status.clone()))?;
        let waking = signal.clone();
        consumer.set_nonempty_callback(move || waking.set());
        Ok(Self {
            consumer: Arc::new(consumer),
            config: config.clone(),
            status,
            signal,
            added: Mutex::default(),
        })
    }

    pub(super) fn add(&self, stream: &str, partition: u32, from: StartPosition, sink: Partition) {
        let topic_partition = self.config.topic(stream).and_then(|topic| {
            let partition = i32::try_from(partition).map_err(|_| "Kafka has no such partition".to_owned())?;
            Ok((topic, partition))
        });
        match topic_partition {
            Ok((topic, partition)) => {
                self.queue(topic, partition, stream.to_owned(), from, LogSink::new(sink));
                self.signal.set();
            }
            Err(reason) => {
                self.status.followed.stop(stream, partition, &reason);
                self.status.mark_not_followed(&format!("{stream}/{partition}"), &reason);
            }
        }
    }

    pub(super) fn wake(&self) {
        self.signal.set();
    }

    /// Feeds the partitions until the connection is closed.
    pub(super) fn run(&self, is_shutting_down: &dyn Fn() -> bool) {
        let waker = Waker::from(self.signal.clone());
        let mut all = PartitionMap::new();
        while !is_shutting_down() {
            self.start_added(&mut all);
            self.poll_shared_queue(&mut all);
            let mut is_idle = true;
            let mut stopped = Vec::new();
            for (topic_partition, followed) in &mut all {
                match self.poll_partition(topic_partition, followed, &waker) {
                    Ok(has_more) => is_idle &= !has_more,
                    Err(reason) => stopped.push((topic_partition.clone(), reason)),
                }
            }
            for (topic_partition, reason) in stopped {
                self.stop(&mut all, &topic_partition, &reason);
            }
            self.restart_recreated(&mut all);
            if is_idle {
                let has_added = !lock(&self.added).is_empty();
                self.signal.wait(if has_added { CREATION_INTERVAL } else { IDLE });
            }
        }
    }

    /// Begins to follow the added partitions.
    fn start_added(&self, all: &mut PartitionMap) {
        let added = std::mem::take(&mut *lock(&self.added));
        let mut is_reachable = true;
        for mut added in added {
            let topic_partition = TopicPartition { topic: added.topic.clone(), partition: added.partition };
            if all.contains_key(&topic_partition) {
                continue;
            }
            let name = format!("{}/{}", added.topic, added.partition);
            if added.retry_at.is_some_and(|at| Instant::now() < at) {
                lock(&self.added).push(added);
                continue;
            }
            let is_known = all.keys().any(|known| known.topic == added.topic);
            if is_reachable
                && !is_known
                && added.missing < CREATION_REQUESTS_MAX
                && self.is_missing(&added.topic, &mut is_reachable)
            {
                added.missing += 1;
                added.retry_at = Some(Instant::now() + CREATION_INTERVAL);
                lock(&self.added).push(added);
                continue;
            }
            let begun = self
                .start_offset(&added)
                .and_then(|(offset, last)| Ok((self.assign(&topic_partition, offset)?, last)));
            match begun {
                Ok((queue, last)) => {
                    self.status.mark_followed(&name);
                    all.insert(topic_partition, self.followed(added, name, last, queue));
                }
                Err(error) => {
                    self.status.mark_not_followed(&name, &report::described(&error));
                    added.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                    lock(&self.added).push(added);
                }
            }
        }
    }

    /// Whether the topic does not exist yet; the request creates it where Kafka permits that. librdkafka looks for the
    /// leader of a partition that was assigned before its topic existed only once a second, and not reliably.
    fn is_missing(&self, topic: &str, is_reachable: &mut bool) -> bool {
        use RDKafkaErrorCode::{LeaderNotAvailable, UnknownTopicOrPartition};
        let Ok(metadata) = self.consumer.fetch_metadata(Some(topic), CREATION_TIMEOUT) else {
            *is_reachable = false;
            return false;
        };
        metadata.topics().first().is_some_and(|found| match found.error().map(RDKafkaErrorCode::from) {
            None => found.partitions().is_empty(),
            Some(error) => matches!(error, LeaderNotAvailable | UnknownTopicOrPartition),
        })
    }

    /// The start offset: the offset of the log's last record, which is returned for comparison, if reading continues
    /// behind it. Positions that depend on the current time are resolved now, not when the broker is reached.
    fn start_offset(&self, added: &AddedPartition) -> KafkaResult<(Offset, Option<LastRecord>)> {
        let AddedPartition { topic, partition, from, sink, .. } = added;
        let exact = |offset: u64| Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        let offset = match sink.start_position(*from) {
            StartPosition::Earliest => Offset::Beginning,
            StartPosition::Offset(offset) => match sink.last() {
                Some(last) if last.offset + 1 == offset => return Ok((exact(last.offset), Some(last))),
                _ => exact(offset),
            },
            StartPosition::Latest => {
                let (_, next) = self.consumer.fetch_watermarks(topic, *partition, REQUEST_TIMEOUT)?;
                Offset::Offset(next.max(0))
            }
            StartPosition::Time(micros) => {
                let mut times = TopicPartitionList::new();
                // The first message of this millisecond or later.
                let millis = i64::try_from(micros.div_ceil(1000)).unwrap_or(i64::MAX);
                times.add_partition_offset(topic, *partition, Offset::Offset(millis))?;
                let found = self.consumer.offsets_for_times(times, REQUEST_TIMEOUT)?;
                let elements = found.elements();
                // librdkafka reports a partition's error beside its offset, and the request as successful.
                elements.first().map_or(Ok(()), |element| element.error())?;
                match elements.first().map(|element| element.offset()) {
                    Some(offset @ Offset::Offset(_)) => offset,
                    // No message is that late.
                    _ => Offset::End,
                }
            }
        };
        Ok((offset, None))
    }

    fn assign(
        &self,
        topic_partition: &TopicPartition,
        offset: Offset,
    ) -> KafkaResult<PartitionQueue<ConsumerCallbacks>> {
        let TopicPartition { topic, partition } = topic_partition;
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, *partition, offset)?;
        self.consumer.incremental_assign(&assignment)?;
        let queue = self.consumer.split_partition_queue(topic, *partition);
        queue.ok_or_else(|| KafkaError::Subscription(format!("{topic}/{partition}: no queue")))
    }

    fn followed(
        &self,
        AddedPartition { stream, from, sink, .. }: AddedPartition,
        name: String,
        last: Option<LastRecord>,
        mut queue: PartitionQueue<ConsumerCallbacks>,
    ) -> FollowedPartition {
        let has_more = Arc::new(AtomicBool::new(true));
        let (flag, signal) = (has_more.clone(), self.signal.clone());
        queue.set_nonempty_callback(move || {
            flag.store(true, Ordering::Release);
            signal.set();
        });
        let (has_returned, retry_at, probe_at) = (false, None, None);
        FollowedPartition {
            stream,
            name,
            from,
            sink,
            last,
            has_returned,
            queue,
            has_more,
            retry_at,
            probe_at,
        }
    }

    /// Processes messages that arrived before a partition had its own queue, and errors without a partition.
    fn poll_shared_queue(&self, all: &mut PartitionMap) {
        while let Some(event) = self.consumer.poll(Duration::ZERO) {
            // The context has recorded errors.
            let Ok(message) = event else { continue };
            let topic_partition =
                TopicPartition { topic: message.topic().to_owned(), partition: message.partition() };
            // These are first: the partition's own queue has the messages fetched later.
            if let Some(Err(reason)) = all
                .get_mut(&topic_partition)
                .map(|followed| self.add_message(&mut followed.sink, &mut followed.last, &message))
            {
                self.stop(all, &topic_partition, &reason);
            }
        }
    }

    /// Moves messages from the partition's queue into its log. Returns whether more work is immediately available.
    fn poll_partition(
        &self,
        TopicPartition { topic, partition }: &TopicPartition,
        followed: &mut FollowedPartition,
        waker: &Waker,
    ) -> Result<bool, String> {
        if followed.probe_at.is_some_and(|at| Instant::now() >= at) {
            match self.consumer.fetch_watermarks(topic, *partition, RETRY_INTERVAL) {
                Ok((_, end)) => {
                    let (end, next) = (u64::try_from(end).unwrap_or_default(), followed.sink.next());
                    if end < next {
                        return Err(followed::ends_before("Kafka", end, next));
                    }
                    (followed.probe_at, followed.has_returned) = (None, true);
                    self.status.mark_followed(&followed.name);
                    return Ok(true);
                }
                Err(_) => followed.probe_at = Some(Instant::now() + RETRY_INTERVAL),
            }
        }
        if followed.retry_at.is_some_and(|at| Instant::now() < at)
            || !self.flush(followed, waker)?
            || !followed.has_more.swap(false, Ordering::AcqRel)
        {
            return Ok(false);
        }
        for _ in 0..TURN_MESSAGES {
            match followed.queue.poll(Duration::ZERO) {
                Some(Ok(message)) => self.add_message(&mut followed.sink, &mut followed.last, &message)?,
                Some(Err(error)) => {
                    self.record_partition_error(&followed.name, &mut followed.probe_at, &error)
                }
                None => return self.flush(followed, waker).map(|_| false),
            }
            if followed.sink.is_full() && !self.flush(followed, waker)? {
                followed.has_more.store(true, Ordering::Release);
                return Ok(false);
            }
        }
        followed.has_more.store(true, Ordering::Release);
        self.flush(followed, waker)
    }

    /// Adds a message to its partition.
    fn add_message(
        &self,
        sink: &mut LogSink,
        last: &mut Option<LastRecord>,
        message: &BorrowedMessage<'_>,
    ) -> Result<(), String> {
        self.status.mark_reachable();
        let record = record(message, self.config.kind);
        let offset = record.offset;
        if let Some(last) = last.take()
            && last.offset == offset
        {
            let found = (record.timestamp, record.key, record.value);
            let is_same = found == (last.timestamp, &*last.key, &*last.value);
            return if is_same { Ok(()) } else { Err(followed::another_record(offset)) };
        }
        if offset < sink.next() {
            let next = sink.next();
            return Err(format!(
                "Kafka delivered offset {offset}, but this node's copy ends at {next}: the topic was recreated or \
                 has lost records. Remove this node's copy of the stream to read it again"
            ));
        }
        if !sink.push(&record) {
            let (topic, partition) = (message.topic(), message.partition());
            let reason =
                format!("{topic}/{partition}: the message at offset {offset} is too large and is skipped");
            tracing::warn!("{reason}");
            self.status.record_error(&reason);
        }
        Ok(())
    }

    /// Whether the log has all records.
    fn flush(&self, followed: &mut FollowedPartition, waker: &Waker) -> Result<bool, String> {
        let flow = followed.sink.flush(waker).map_err(|error: AppendError| error.to_string())?;
        match (flow, followed.retry_at.take()) {
            (FlushOutcome::Accepted, None) => Ok(true),
            (FlushOutcome::Accepted, Some(_)) => {
                self.status.mark_followed(&followed.name);
                Ok(true)
            }
            (FlushOutcome::QueueFull, was) => {
                followed.retry_at = was.map(|_| Instant::now());
                Ok(false)
            }
            (FlushOutcome::NoSpace, _) => {
                self.status.mark_not_followed(&followed.name, &AppendError::NoSpace.to_string());
                followed.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                Ok(false)
            }
        }
    }

    /// Records an error of one partition. Most errors are transient; some need an operator.
    fn record_partition_error(&self, name: &str, probe_at: &mut Option<Instant>, error: &KafkaError) {
        use RDKafkaErrorCode::{
            TopicAuthorizationFailed, UnknownPartition, UnknownTopic, UnknownTopicOrPartition,
        };
        let code = error.rdkafka_error_code();
        if let Some(TopicAuthorizationFailed | UnknownPartition | UnknownTopic | UnknownTopicOrPartition) =
            code
        {
            self.status.mark_not_followed(name, &report::described(&error));
            *probe_at = Some(Instant::now() + RETRY_INTERVAL);
        } else {
            self.status.record_error(&format!("{name}: {error}"));
        }
    }

    /// Restarts partitions that were missing: each may be another topic with the same name, so it begins at the log's
    /// last record.
    fn restart_recreated(&self, all: &mut PartitionMap) {
        let back: Vec<TopicPartition> = all
            .iter()
            .filter(|(_, followed)| followed.has_returned)
            .map(|(topic_partition, _)| topic_partition.clone())
            .collect();
        for topic_partition in back {
            let Some(mut followed) = all.remove(&topic_partition) else { continue };
            followed.has_returned = false;
            if followed.sink.last().is_none() {
                // The log has no record to compare.
                all.insert(topic_partition, followed);
                continue;
            }
            let TopicPartition { topic, partition } = topic_partition;
            self.unassign(&topic, partition);
            let FollowedPartition { stream, from, sink, .. } = followed;
            self.queue(topic, partition, stream, from, sink);
        }
    }

    /// Queues a partition that the thread assigns next.
    fn queue(&self, topic: String, partition: i32, stream: String, from: StartPosition, sink: LogSink) {
        let added = AddedPartition { stream, topic, partition, from, sink, retry_at: None, missing: 0 };
        lock(&self.added).push(added);
    }

    fn stop(&self, all: &mut PartitionMap, topic_partition: &TopicPartition, reason: &str) {
        let Some(followed) = all.remove(topic_partition) else { return };
        self.status.followed.stop(
            &followed.stream,
            u32::try_from(topic_partition.partition).unwrap_or_default(),
            reason,
        );
        self.status.mark_not_followed(&followed.name, reason);
        self.unassign(&topic_partition.topic, topic_partition.partition);
    }

    fn unassign(&self, topic: &str, partition: i32) {
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        if let Err(error) = self.consumer.incremental_unassign(&list) {
            self.status.record_error(&report::described(&error));
        }
    }
}

impl ConsumerCallbacks {
    pub(super) fn new(status: Arc<Status>) -> Self {
        Self { status }
    }
}

impl ClientContext for ConsumerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        report::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        report::record_client_error(&self.status, &error, reason);
    }
}

impl ConsumerContext for ConsumerCallbacks {}
