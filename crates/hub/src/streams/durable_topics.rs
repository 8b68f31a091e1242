//! Durable topics: a publication is appended to the stream of the same name, and subscribers receive the readable
//! records.
//!
//! ```text
//!   publish ─▶ append ─▶ log ─┬─▶ relay, a thread ─▶ topics of the server below ─▶ live subscribers
//!                             └─▶ follow: a new subscriber reads up to the relay's offset, then joins there
//! ```
//!
//! If a broker stores the stream, a [feed](super::relay_feed) publishes the records before they are in this node's log.
//!
//! The relay follows the log and not the publishers. So all subscribers receive the same order, nothing before it has
//! the stream's durability, and records that other clients append to the log.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sinews_server::{Position, Publisher, TopicName};
use sinews_stream::record::{Record, RecordBuilder, RecordLimits, Records, ValueKind};
use sinews_stream::{Partition, PartitionEvent, ReadError, Stream, Watcher};

use super::errors::malformed;
use super::event_records::sealed_content_of;
use super::pattern_state::TopicDiscovery;
use super::record_stamp::RecordStamp;
use super::records_from::records_from;
use super::request::now;
use super::wake_flag::WakeFlag;
use crate::access::namespaces::order::{PatternSet, overlap};
use crate::model::MessageContent;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::model::publication::{Publication, PublicationOrigin};
use crate::topics::HubTopics;
use crate::waiting_tasks::WaitingTasks;

/// The durable topics.
pub(crate) struct DurableTopics {
    patterns: PatternSet,
    /// Topics whose messages have a time, or have none; the others have it.
    timestamps: PatternSet,
    /// By name. Their number is bounded by the stream count.
    relays: Mutex<HashMap<String, Arc<TopicRelay>>>,
    /// Topics whose stream was deleted; their subscribers are not notified yet.
    reset: Mutex<Vec<String>>,
    relay_waker: Arc<RelayWaker>,
    relay_thread: Mutex<Option<JoinHandle<()>>>,
    /// For a broker's records; `None` before the start and after the end.
    feed: Mutex<Option<(Arc<HubTopics>, Publisher)>>,
    closing: AtomicBool,
    /// Relays added so far.
    generation: AtomicU64,
    /// Streams that subscribers by pattern wait for.
    pub(super) discovery: TopicDiscovery,
    /// Tasks that wait in [`wait_until`](Self::wait_until): at most one waker for each subscription.
    waiting: WaitingTasks,
}

/// Link between a stream and its topic's subscribers.
pub(crate) struct TopicRelay {
    stream: Stream,
    epoch: u64,
    partition: Partition,
    /// Forgets the relay's waker when the relay ends.
    watcher: Watcher,
    /// The first record that the relay has not published. Locked while the relay publishes and while a subscriber
    /// joins.
    relayed: Mutex<u64>,
    /// The end of the records that the log has accepted from a broker, and may not have written; 0 without a broker.
    /// Written while `relayed` is locked.
    accepted: AtomicU64,
    /// The offset up to which the idempotency keys of records are known; `None` before they are read.
    keys_read_to: Mutex<Option<u64>>,
    /// The last sequence that another process has published, beyond the end of this process.
    external_sequence: AtomicU64,
    pub(super) wake_flag: Arc<WakeFlag>,
}

/// Wakes the relay.
#[derive(Default)]
struct RelayWaker(OnceLock<Thread>);

impl Wake for RelayWaker {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// The result of one relay step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RelayStep {
    Progress,
    Idle,
    Failed,
}

/// Approximate bytes that the relay reads from a stream in one turn.
const RELAY_BYTES: usize = 64 << 10;

/// Records that the relay publishes before it checks whether workers fall behind.
pub(super) const RELAY_RECORDS: usize = 128;

/// Delay of the relay while workers have a delivery backlog.
const RELAY_DELAY: Duration = Duration::from_millis(1);

/// The epoch of topics at a broker. It is the same on all nodes, because they share no state to agree on another one.
const BROKER_EPOCH: u64 = 1;

/// Delay before the relay retries a failed read.
const RETRY: Duration = Duration::from_secs(1);

impl DurableTopics {
    pub(super) fn new(patterns: PatternSet, timestamps: PatternSet) -> Self {
        Self {
            patterns,
            timestamps,
            relays: Mutex::default(),
            reset: Mutex::default(),
            relay_waker: Arc::default(),
            relay_thread: Mutex::default(),
            feed: Mutex::default(),
            closing: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            discovery: TopicDiscovery::default(),
            waiting: WaitingTasks::default(),
        }
    }

    /// Whether a topic is durable.
    pub(crate) fn is_durable(&self, topic: &str) -> bool {
        self.patterns.is_on(topic) && TopicName::parse(topic).is_ok()
    }

    /// Whether a durable topic's messages have the time of their publication.
    pub(super) fn has_timestamps(&self, topic: &str) -> bool {
        self.timestamps.get(topic).unwrap_or(true)
    }

    /// Whether a durable topic may match the pattern.
    pub(super) fn overlaps(&self, pattern: &str) -> bool {
        self.patterns.patterns().iter().any(|durable| overlap(durable, pattern))
    }

    /// Starts the relay of a stream that a broker stores, at the offset where this node begins to follow. A stream that
    /// backs no topic has no relay; callers of [`relay`](Self::relay) receive the error.
    pub(super) fn insert_at_broker(&self, stream: &Stream, from: u64) -> Option<Arc<TopicRelay>> {
        if !self.is_durable(stream.name()) {
            return None;
        }
        let partition = single_partition(stream).ok()?;
        let next = partition.offsets().next;
        let relay = self.insert(stream, partition, BROKER_EPOCH, from);
        relay.accept(from.max(next), &relay.progress());
        Some(relay)
    }

    /// Returns a stream's relay. If this process has created the stream, the relay publishes all its records. Records
    /// that existed when a stream was opened are published already; resuming subscribers read them from the log.
    pub(super) fn topic_relay(&self, stream: &Stream) -> Result<Arc<TopicRelay>, Problem> {
        if let Some(relay) = self.lock().get(stream.name()).filter(|relay| relay.belongs_to(stream)) {
            return Ok(relay.clone());
        }
        let partition = single_partition(stream)?;
        let relayed = if stream.is_new() { 0 } else { partition.offsets().readable };
        Ok(self.insert(stream, partition, stream.created(), relayed))
    }

    fn insert(&self, stream: &Stream, partition: Partition, epoch: u64, relayed: u64) -> Arc<TopicRelay> {
        let mut relays = self.lock();
        let new = || {
            Arc::new(TopicRelay {
                stream: stream.clone(),
                epoch,
                watcher: partition.watcher(),
                partition,
                relayed: Mutex::new(relayed),
                accepted: AtomicU64::new(0),
                keys_read_to: Mutex::default(),
                external_sequence: AtomicU64::new(0),
                wake_flag: WakeFlag::new(Waker::from(self.relay_waker.clone())),
            })
        };
        let relay = match relays.get(stream.name()).filter(|relay| relay.belongs_to(stream)) {
            Some(relay) => relay.clone(),
            None => {
                let relay = new();
                relays.insert(stream.name().to_owned(), relay.clone());
                self.generation.fetch_add(1, Ordering::Release);
                relay
            }
        };
        drop(relays);
        self.relay_waker.clone().wake();
        relay
    }

    /// Removes a deleted stream's relay, identified by its creation time, and notifies the topic's subscribers.
    pub(super) fn remove(&self, name: &str, created: u64) {
        if !self.is_durable(name) {
            return;
        }
        self.lock().retain(|known, relay| known != name || relay.stream.created() != created);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.reset.lock().push(name.to_owned());
        self.relay_waker.clone().wake();
        self.wake_all();
    }

    /// Notifies the subscribers of topics whose stream was deleted.
    fn notify_reset(&self, hub: &HubTopics, publisher: &mut Publisher) {
        let reset = std::mem::take(&mut *self.reset.lock());
        reset.iter().for_each(|topic| hub.notify_reset(publisher, topic));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<TopicRelay>>> {
        self.relays.lock()
    }

    /// Waits until a condition on the existing streams or on the relay's progress holds.
    pub(super) async fn wait_until(&self, condition: impl Fn() -> bool) {
        self.waiting.wait_until(condition).await;
    }

    pub(super) fn wake_all(&self) {
        self.waiting.wake_all();
    }

    /// Starts the relay, if any topic is durable.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(self: &Arc<Self>, hub: Arc<HubTopics>, publisher: Publisher) -> io::Result<()> {
        if self.patterns.is_empty() {
            return Ok(());
        }
        *self.feed() = Some((hub.clone(), publisher.clone()));
        let durable_topics = Arc::clone(self);
        let thread = thread::Builder::new().name("topics".to_owned());
        let thread = thread.spawn(move || durable_topics.run(&hub, publisher))?;
        *self.relay_thread.lock() = Some(thread);
        Ok(())
    }

    /// Locks and returns the topics to which a broker's records are published.
    pub(super) fn feed(&self) -> MutexGuard<'_, Option<(Arc<HubTopics>, Publisher)>> {
        self.feed.lock()
    }

    /// Returns whether another process's publication at this position follows directly. While the relay runs, it
    /// publishes all records itself. With a broker, the other process may start after the offset where this one ended.
    /// A subscriber that misses records then is disconnected, and finds them at the other process.
    pub(crate) fn follows_directly(&self, topic: &str, position: Position) -> bool {
        if !self.is_durable(topic) {
            return true;
        }
        let is_over = self.closing.load(Ordering::SeqCst);
        is_over && self.lock().get(topic).is_none_or(|relay| relay.follows_directly(position))
    }

    /// The streams are closed: waits until all their records are published here.
    pub(crate) fn finish(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.feed().take();
        self.relay_waker.clone().wake();
        if let Some(relay) = self.relay_thread.lock().take() {
            // A relay that has panicked has published what it could.
            let _ = relay.join();
        }
    }

    fn run(&self, hub: &HubTopics, mut publisher: Publisher) {
        // The first call sets it.
        let _ = self.relay_waker.0.set(thread::current());
        let (mut relays, mut generation) = (Vec::new(), 0);
        loop {
            let closing = self.closing.load(Ordering::SeqCst);
            self.notify_reset(hub, &mut publisher);
            let known = self.lock();
            let current = self.generation.load(Ordering::Acquire);
            if std::mem::replace(&mut generation, current) != current {
                relays = known.values().cloned().collect();
            }
            drop(known);
            let mut step = RelayStep::Idle;
            for relay in relays.iter().filter(|relay| closing || relay.wake_flag.is_woken()) {
                match relay.read_on(hub, &mut publisher, |publisher| self.wait_for_workers(publisher)) {
                    RelayStep::Progress => step = RelayStep::Progress,
                    RelayStep::Failed if step == RelayStep::Idle => step = RelayStep::Failed,
                    RelayStep::Failed | RelayStep::Idle => {}
                }
            }
            match step {
                RelayStep::Progress => self.wake_all(),
                _ if closing => return,
                RelayStep::Failed => thread::park_timeout(RETRY),
                RelayStep::Idle => thread::park(),
            }
        }
    }
}

impl DurableTopics {
    /// Waits while workers have a delivery backlog.
    fn wait_for_workers(&self, publisher: &Publisher) {
        while publisher.is_backlogged() && !self.closing.load(Ordering::SeqCst) {
            thread::park_timeout(RELAY_DELAY);
        }
    }
}

impl TopicRelay {
    pub(super) fn name(&self) -> &str {
        self.stream.name()
    }

    /// Notes that the log has accepted records up to this offset. Returns the previous end; `None` if the log had
    /// accepted these records before. The caller holds the `relayed` lock.
    pub(super) fn accept(&self, end: u64, _: &MutexGuard<'_, u64>) -> Option<u64> {
        let before = self.accepted.fetch_max(end, Ordering::SeqCst);
        (end > before).then_some(before)
    }

    /// Whether the log has accepted a record at this offset, and may not have written it.
    pub(super) fn is_accepted(&self, offset: u64) -> bool {
        offset < self.accepted.load(Ordering::SeqCst) && self.partition.failure().is_none()
    }

    /// Returns whether this relay belongs to the stream, and not to a deleted stream of the same name.
    fn belongs_to(&self, stream: &Stream) -> bool {
        self.stream.created() == stream.created()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Locks and returns the offset up to which the idempotency keys of records are known.
    pub(super) fn keys_read_to(&self) -> MutexGuard<'_, Option<u64>> {
        self.keys_read_to.lock()
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, u64> {
        self.relayed.lock()
    }

    /// Returns the position of a topic whose next record has this offset.
    pub(super) fn position(&self, next: u64) -> Position {
        Position { epoch: self.epoch, sequence: next }
    }

    fn follows_directly(&self, position: Position) -> bool {
        let last = self.external_sequence.load(Ordering::SeqCst).max(*self.progress());
        let follows_directly = position.epoch == self.epoch && position.sequence == last + 1;
        if follows_directly {
            self.external_sequence.store(position.sequence, Ordering::SeqCst);
        }
        follows_directly
    }

    /// Publishes a record at its position.
    pub(super) fn publish(
        &self,
        hub: &HubTopics,
        out: &mut Publisher,
        record: &Record<'_>,
        position: Position,
    ) {
        let content = sealed_content_of(record, self.name(), hub);
        // The topics decide whether messages have it.
        let stamp = RecordStamp::new(record, true);
        let content = (&content).into();
        let publication = Publication::new(self.name(), &content).at(Some(position));
        let publication = publication.by(stamp.sender.as_ref()).with_time(stamp.time);
        hub.publish(out, &publication.with_origin(PublicationOrigin::Stream));
    }

    /// Publishes the readable records once, and waits in between for workers that fall behind.
    fn read_on(
        &self,
        hub: &HubTopics,
        publisher: &mut Publisher,
        wait_for_workers: impl Fn(&Publisher),
    ) -> RelayStep {
        let from = *self.progress();
        let mut found = Poll::Pending;
        self.wake_flag.arm(|waker| {
            found = self.partition.poll_read(from, RELAY_BYTES, waker);
            found.is_ready()
        });
        // An index is being rebuilt; other topics continue meanwhile.
        let Poll::Ready(found) = found else { return RelayStep::Idle };
        match found {
            Ok(read) if read.batches.is_empty() => self.await_records(),
            Ok(read) => {
                let mut records = records_from(&read.batches, from).peekable();
                while records.peek().is_some() {
                    let mut relayed = self.progress();
                    for record in records.by_ref().take(RELAY_RECORDS) {
                        if record.offset < *relayed {
                            continue;
                        }
                        let position = self.position(record.offset + 1);
                        self.publish(hub, publisher, &record, position);
                        *relayed = position.sequence;
                    }
                    // Delayed workers may need the lock.
                    drop(relayed);
                    wait_for_workers(publisher);
                }
                // The offsets up to there have no records.
                self.skip_to(read.next);
                RelayStep::Progress
            }
            Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > from => {
                tracing::error!(
                    topic = self.name(),
                    from,
                    to,
                    "records were deleted before they were published"
                );
                self.skip_to(to);
                RelayStep::Progress
            }
            // An empty copy stands at 0, at any offset of its broker.
            Err(ReadError::Ahead { .. }) => self.await_records(),
            Err(ReadError::Deleted) => RelayStep::Idle,
            Err(error) => {
                tracing::error!(topic = self.name(), %error, "cannot read the stream of a topic");
                RelayStep::Failed
            }
        }
    }

    fn skip_to(&self, next: u64) {
        let mut relayed = self.progress();
        *relayed = next.max(*relayed);
    }

    fn await_records(&self) -> RelayStep {
        let watch = |waker: &Waker| {
            let (accepted, next) = {
                let relayed = self.progress();
                (self.accepted.load(Ordering::SeqCst), *relayed)
            };
            // The feed publishes the next records, or wakes the relay. A watch would end the deferral of their write.
            let has_feed_only = accepted > 0 && accepted <= next;
            !has_feed_only && self.watcher.watch(PartitionEvent::Readable(next), waker)
        };
        if self.wake_flag.arm(watch) { RelayStep::Progress } else { RelayStep::Idle }
    }
}

/// Returns the partition of a stream that backs a topic.
pub(super) fn single_partition(stream: &Stream) -> Result<Partition, Problem> {
    let (name, count) = (brief(stream.name()), stream.partitions());
    stream.partition(0).filter(|_| count == 1).ok_or_else(|| {
        let message = format!("stream {name} has {count} partitions; the stream of a topic has 1");
        problem(code::NOT_SUBSCRIBED, message)
    })
}

/// Encodes a publication as one record with a key, which may be empty.
pub(super) fn record_of(
    content: &MessageContent,
    key: &[u8],
    limits: &RecordLimits,
) -> Result<Records, Problem> {
    let (value, kind) = match content {
        MessageContent::Text(bytes) => (Cow::Borrowed(&**bytes), ValueKind::Text),
        MessageContent::Binary(bytes) => (Cow::Borrowed(&**bytes), ValueKind::Bytes),
        MessageContent::Event(bytes) => (Cow::Borrowed(&**bytes), ValueKind::Json),
        MessageContent::Json(bytes) => match serde_json::from_slice::<String>(bytes) {
            Ok(text) => (Cow::Owned(text.into_bytes()), ValueKind::Text),
            Err(_) => (Cow::Borrowed(&**bytes), ValueKind::Json),
        },
    };
    let mut builder = RecordBuilder::with_limits(*limits);
    builder.push(now(), key, &value, kind).map_err(malformed)?;
    builder.finish().ok_or_else(|| problem(code::MALFORMED, "the publication is empty"))
}
