//! Follows Kafka partitions: one consumer feeds all of them.
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

use super::super::signal::Signal;
use super::super::sink::{Flow, LastRecord, Sink};
use super::super::status::{Status, lock};
use super::super::visible;
use super::config::Config;
use super::{push, time_of};
use crate::{AppendError, Partition, Start};

/// Interval of work that no event triggers.
const IDLE: Duration = Duration::from_millis(500);
/// Messages of one partition per turn.
const TURN_MESSAGES: usize = 4096;
/// Timeout of a request for a partition's start offset; the other partitions wait meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Retry interval of the request.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The consuming half of a connection.
pub(super) struct Follow {
    consumer: Arc<BaseConsumer<Context>>,
    config: Config,
    status: Arc<Status>,
    signal: Arc<Signal>,
    /// Partitions requested and not begun yet.
    added: Mutex<Vec<Added>>,
}

struct Added {
    stream: String,
    topic: String,
    partition: i32,
    from: Start,
    sink: Sink,
    /// Time of the next attempt, after a failed one.
    retry_at: Option<Instant>,
}

/// A partition that is followed.
struct Followed {
    stream: String,
    name: String,
    from: Start,
    sink: Sink,
    /// The last record of the log, until it has been compared with the broker's record at that offset.
    last: Option<LastRecord>,
    /// The broker has the partition again after reporting it as unknown.
    is_back: bool,
    queue: PartitionQueue<Context>,
    /// Set by librdkafka when the queue has messages again.
    has_more: Arc<AtomicBool>,
    /// The disk is full; time of the next attempt.
    retry_at: Option<Instant>,
    /// The broker has reported the partition as unknown or forbidden; time of the next request.
    ask_at: Option<Instant>,
}

/// Topic and partition.
type Place = (String, i32);
type All = BTreeMap<Place, Followed>;

/// Callbacks of librdkafka, for each consuming client.
pub(super) struct Context {
    status: Arc<Status>,
}

impl Follow {
    pub(super) fn new(config: &Config, status: Arc<Status>) -> KafkaResult<Self> {
        let signal = Arc::new(Signal::default());
        let settings = config.consumer(&format!("{}sinews", config.prefix));
        let mut consumer: BaseConsumer<Context> =
            settings.create_with_context(Context::new(status.clone()))?;
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

    pub(super) fn add(&self, stream: &str, partition: u32, from: Start, sink: Partition) {
        let place = self.config.topic(stream).and_then(|topic| {
            let partition = i32::try_from(partition).map_err(|_| "Kafka has no such partition".to_owned())?;
            Ok((topic, partition))
        });
        match place {
            Ok((topic, partition)) => {
                let sink = Sink::new(sink);
                let stream = stream.to_owned();
                lock(&self.added).push(Added { stream, topic, partition, from, sink, retry_at: None });
                self.signal.set();
            }
            Err(why) => {
                self.status.visible.end(stream, partition, &why);
                self.status.stopped(&format!("{stream}/{partition}"), &why);
            }
        }
    }

    pub(super) fn wake(&self) {
        self.signal.set();
    }

    /// Feeds the partitions until the connection is closed.
    pub(super) fn run(&self, is_ending: &dyn Fn() -> bool) {
        let waker = Waker::from(self.signal.clone());
        let mut all = All::new();
        while !is_ending() {
            self.begin(&mut all);
            self.serve_rest(&mut all);
            let mut is_idle = true;
            let mut stopped = Vec::new();
            for (place, followed) in &mut all {
                match self.serve(place, followed, &waker) {
                    Ok(has_more) => is_idle &= !has_more,
                    Err(why) => stopped.push((place.clone(), why)),
                }
            }
            for (place, why) in stopped {
                self.stop(&mut all, &place, &why);
            }
            self.begin_again(&mut all);
            if is_idle {
                self.signal.wait(IDLE);
            }
        }
    }

    /// Begins to follow the added partitions.
    fn begin(&self, all: &mut All) {
        let added = std::mem::take(&mut *lock(&self.added));
        for mut added in added {
            let place = (added.topic.clone(), added.partition);
            if all.contains_key(&place) {
                continue;
            }
            let name = format!("{}/{}", added.topic, added.partition);
            if added.retry_at.is_some_and(|at| Instant::now() < at) {
                lock(&self.added).push(added);
                continue;
            }
            let begun =
                self.beginning(&added).and_then(|(offset, last)| Ok((self.assign(&place, offset)?, last)));
            match begun {
                Ok((queue, last)) => {
                    self.status.goes_on(&name);
                    all.insert(place, self.followed(added, name, last, queue));
                }
                Err(error) => {
                    self.status.stopped(&name, &error.to_string());
                    added.retry_at = Some(Instant::now() + RETRY_EVERY);
                    lock(&self.added).push(added);
                }
            }
        }
    }

    /// The start offset: that of the log's last record, which is returned for comparison, if reading continues behind
    /// it. Positions that depend on the current time are resolved now, not when the broker is reached.
    fn beginning(&self, added: &Added) -> KafkaResult<(Offset, Option<LastRecord>)> {
        let Added { topic, partition, from, sink, .. } = added;
        let exact = |offset: u64| Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        let offset = match sink.beginning(*from) {
            Start::Earliest => Offset::Beginning,
            Start::Offset(offset) => match sink.last() {
                Some(last) if last.0 + 1 == offset => return Ok((exact(last.0), Some(last))),
                _ => exact(offset),
            },
            Start::Latest => {
                let (_, next) = self.consumer.fetch_watermarks(topic, *partition, ANSWER_WITHIN)?;
                Offset::Offset(next.max(0))
            }
            Start::Time(micros) => {
                let mut times = TopicPartitionList::new();
                // The first message of this millisecond or later.
                let millis = i64::try_from(micros.div_ceil(1000)).unwrap_or(i64::MAX);
                times.add_partition_offset(topic, *partition, Offset::Offset(millis))?;
                let found = self.consumer.offsets_for_times(times, ANSWER_WITHIN)?;
                match found.elements().first().map(|element| element.offset()) {
                    Some(offset @ Offset::Offset(_)) => offset,
                    // No message is that late.
                    _ => Offset::End,
                }
            }
        };
        Ok((offset, None))
    }

    fn assign(&self, (topic, partition): &Place, offset: Offset) -> KafkaResult<PartitionQueue<Context>> {
        let mut place = TopicPartitionList::new();
        place.add_partition_offset(topic, *partition, offset)?;
        self.consumer.incremental_assign(&place)?;
        let queue = self.consumer.split_partition_queue(topic, *partition);
        queue.ok_or_else(|| KafkaError::Subscription(format!("{topic}/{partition}: no queue")))
    }

    fn followed(
        &self,
        Added { stream, from, sink, .. }: Added,
        name: String,
        last: Option<LastRecord>,
        mut queue: PartitionQueue<Context>,
    ) -> Followed {
        let has_more = Arc::new(AtomicBool::new(true));
        let (flag, signal) = (has_more.clone(), self.signal.clone());
        queue.set_nonempty_callback(move || {
            flag.store(true, Ordering::Release);
            signal.set();
        });
        let (is_back, retry_at, ask_at) = (false, None, None);
        Followed { stream, name, from, sink, last, is_back, queue, has_more, retry_at, ask_at }
    }

    /// Processes messages that arrived before a partition had its own queue, and errors without a partition.
    fn serve_rest(&self, all: &mut All) {
        while let Some(event) = self.consumer.poll(Duration::ZERO) {
            // The context has recorded errors.
            let Ok(message) = event else { continue };
            let place = (message.topic().to_owned(), message.partition());
            // These are first: the partition's own queue has the messages fetched later.
            if let Some(Err(why)) = all
                .get_mut(&place)
                .map(|followed| self.take(&mut followed.sink, &mut followed.last, &message))
            {
                self.stop(all, &place, &why);
            }
        }
    }

    /// Moves messages from the partition's queue into its log. Returns whether more work is immediately available.
    fn serve(
        &self,
        (topic, partition): &Place,
        followed: &mut Followed,
        waker: &Waker,
    ) -> Result<bool, String> {
        if followed.ask_at.is_some_and(|at| Instant::now() >= at) {
            match self.consumer.fetch_watermarks(topic, *partition, RETRY_EVERY) {
                Ok((_, end)) => {
                    let (end, next) = (u64::try_from(end).unwrap_or_default(), followed.sink.next());
                    if end < next {
                        return Err(visible::ends_before("Kafka", end, next));
                    }
                    (followed.ask_at, followed.is_back) = (None, true);
                    self.status.goes_on(&followed.name);
                    return Ok(true);
                }
                Err(_) => followed.ask_at = Some(Instant::now() + RETRY_EVERY),
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
                Some(Ok(message)) => self.take(&mut followed.sink, &mut followed.last, &message)?,
                Some(Err(error)) => self.note(&followed.name, &mut followed.ask_at, &error),
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
    fn take(
        &self,
        sink: &mut Sink,
        last: &mut Option<LastRecord>,
        message: &BorrowedMessage<'_>,
    ) -> Result<(), String> {
        self.status.is_up();
        // Delivered messages have an offset.
        let offset = u64::try_from(message.offset()).unwrap_or_default();
        if let Some((known, time, key, value)) = last.take()
            && known == offset
        {
            let found =
                (time_of(message), message.key().unwrap_or_default(), message.payload().unwrap_or_default());
            let is_same = found == (time, &*key, &*value);
            return if is_same { Ok(()) } else { Err(visible::another_record(known)) };
        }
        if offset < sink.next() {
            let next = sink.next();
            return Err(format!(
                "Kafka delivered offset {offset}, but this node's copy ends at {next}: the topic was recreated or \
                 has lost records. Remove this node's copy of the stream to read it again"
            ));
        }
        let is_held =
            sink.push(offset, time_of(message), |builder| push(builder, message, self.config.kind).is_ok());
        if !is_held {
            let (topic, partition) = (message.topic(), message.partition());
            let why =
                format!("{topic}/{partition}: the message at offset {offset} is too large and is skipped");
            tracing::warn!("{why}");
            self.status.note(&why);
        }
        Ok(())
    }

    /// Whether the log has all records.
    fn flush(&self, followed: &mut Followed, waker: &Waker) -> Result<bool, String> {
        let flow = followed.sink.flush(waker).map_err(|error: AppendError| error.to_string())?;
        match (flow, followed.retry_at.take()) {
            (Flow::On, None) => Ok(true),
            (Flow::On, Some(_)) => {
                self.status.goes_on(&followed.name);
                Ok(true)
            }
            (Flow::Full, was) => {
                followed.retry_at = was.map(|_| Instant::now());
                Ok(false)
            }
            (Flow::NoSpace, _) => {
                self.status.stopped(&followed.name, &AppendError::NoSpace.to_string());
                followed.retry_at = Some(Instant::now() + RETRY_EVERY);
                Ok(false)
            }
        }
    }

    /// Records an error of one partition. Most errors are transient; some need an operator.
    fn note(&self, name: &str, ask_at: &mut Option<Instant>, error: &KafkaError) {
        use RDKafkaErrorCode::{
            TopicAuthorizationFailed, UnknownPartition, UnknownTopic, UnknownTopicOrPartition,
        };
        let code = error.rdkafka_error_code();
        if let Some(TopicAuthorizationFailed | UnknownPartition | UnknownTopic | UnknownTopicOrPartition) =
            code
        {
            self.status.stopped(name, &error.to_string());
            *ask_at = Some(Instant::now() + RETRY_EVERY);
        } else {
            self.status.note(&format!("{name}: {error}"));
        }
    }

    /// Restarts partitions that were missing: each may be another topic of the same name, so it begins at the last
    /// record of the log.
    fn begin_again(&self, all: &mut All) {
        let back: Vec<Place> =
            all.iter().filter(|(_, followed)| followed.is_back).map(|(place, _)| place.clone()).collect();
        for (topic, partition) in back {
            let Some(mut followed) = all.remove(&(topic.clone(), partition)) else { continue };
            followed.is_back = false;
            if followed.sink.last().is_none() {
                // The log has no record to compare.
                all.insert((topic, partition), followed);
                continue;
            }
            self.unassign(&topic, partition);
            let Followed { stream, from, sink, .. } = followed;
            lock(&self.added).push(Added { stream, topic, partition, from, sink, retry_at: None });
        }
    }

    fn stop(&self, all: &mut All, place: &Place, why: &str) {
        let Some(followed) = all.remove(place) else { return };
        self.status.visible.end(&followed.stream, u32::try_from(place.1).unwrap_or_default(), why);
        self.status.stopped(&followed.name, why);
        self.unassign(&place.0, place.1);
    }

    fn unassign(&self, topic: &str, partition: i32) {
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        if let Err(error) = self.consumer.incremental_unassign(&list) {
            self.status.note(&error.to_string());
        }
    }
}

impl Context {
    pub(super) fn new(status: Arc<Status>) -> Self {
        Self { status }
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

impl ConsumerContext for Context {}
