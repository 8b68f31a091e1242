//! This server's streams: the entry for all client protocols.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use futures_util::FutureExt;
use parking_lot::Mutex;
use sinews_server::{Appender, KeyLog as _, KeyWrite, KeyWritten, Publisher};
use sinews_stream::broker::{Broker, BrokerHealth};
use sinews_stream::record::{RecordLimits, Records};
use sinews_stream::{
    AppendError, Lookup, Partition, Pending, StartPosition, Stream, StreamConfig, StreamError, StreamInfo,
    StreamState, Streams,
};

use super::broker::BrokerStore;
use super::durable_keys::{DurableKeys, STREAM_PREFIX};
use super::durable_topics::{self, DurableTopics, TopicRelay};
use super::errors::{not_open, unusable};
use super::event_records::event_key;
use super::groups::ActiveGroups;
use super::local::LocalStore;
use super::options::CreationRules;
use super::quota::CreationQuota;
use super::record_stamp::record_key;
use super::request::find_partition;
use super::ring_writes::RingWriteExecutor;
use super::store::{Deduplication, IfMissing, OffsetLookup, PartitionSource, PendingWrite, StreamStore};
use super::temporary::TemporaryDirectory;
use crate::access::auth::{Action, Rights};
use crate::access::namespaces::order::PatternSet;
use crate::background::Background;
use crate::model::opening::{SharedOpening, StoreFuture};
use crate::model::problem::{Problem, code, problem};
use crate::model::{self, Creator, MessageContent};
use crate::topics::key_faults::{FaultCause, KeyStorageMetrics, RejectedWrites};
use crate::topics::keys::key_problem;

/// This server's streams.
pub(crate) struct StreamService {
    /// Empty while the predecessor process still owns the streams.
    pub(super) streams: OnceLock<Streams>,
    /// The server's workers, which write in place of the log's threads.
    workers: OnceLock<Arc<RingWriteExecutor>>,
    limits: RecordLimits,
    pub(super) groups: ActiveGroups,
    pub(super) quota: Arc<CreationQuota>,
    pub(super) rules: CreationRules,
    pub(super) topics: Arc<DurableTopics>,
    pub(super) keys: Arc<DurableKeys>,
    /// Durable-key writes that could not be stored.
    rejected_writes: Arc<RejectedWrites>,
    pub(super) background: Background,
    /// The node's log alone, or the broker that it follows.
    pub(super) store: Box<dyn StreamStore>,
    /// The streams of durable keys, beside a broker's streams: a broker stores no keys.
    for_keys: OnceLock<Arc<Self>>,
    /// A temporary directory, removed on shutdown.
    temporary_directory: Mutex<Option<TemporaryDirectory>>,
    closed: AtomicBool,
}

/// What streams store.
#[derive(Default)]
pub(crate) struct StreamPatterns {
    /// Durable topics.
    pub(crate) topics: PatternSet,
    /// Topics with durable keys.
    pub(crate) keyed_topics: PatternSet,
    /// Compacted streams.
    pub(crate) compacted: Vec<String>,
    /// Topics whose messages have a time, or have none.
    pub(crate) timestamps: PatternSet,
}

impl StreamService {
    /// Creates a store without streams. Takes the largest client message, and the broker that stores the streams.
    pub(crate) fn new(
        config: StreamConfig,
        patterns: StreamPatterns,
        max_message: usize,
        broker: Option<Arc<dyn Broker>>,
        rules: CreationRules,
        background: Background,
    ) -> Arc<Self> {
        let StreamPatterns { topics, keyed_topics, compacted, timestamps } = patterns;
        let limits = RecordLimits::default().with_max_bytes(max_message.min(BATCH_MAX));
        let topics = Arc::new(DurableTopics::new(topics, timestamps));
        let rejected = Arc::<RejectedWrites>::default();
        let keys = Arc::new(DurableKeys::new(keyed_topics, &config, Arc::clone(&rejected)));
        let store: Box<dyn StreamStore> = match broker {
            Some(broker) => Box::new(BrokerStore::new(broker, config, Arc::clone(&topics))),
            None => Box::new(LocalStore::new(config, compacted, Arc::clone(&topics))),
        };
        Arc::new(Self {
            streams: OnceLock::new(),
            workers: OnceLock::new(),
            limits,
            groups: ActiveGroups::default(),
            quota: Arc::new(CreationQuota::new(rules.creation)),
            rules,
            topics,
            keys,
            rejected_writes: rejected,
            background,
            store,
            for_keys: OnceLock::new(),
            temporary_directory: Mutex::new(None),
            closed: AtomicBool::new(false),
        })
    }

    /// Stores durable keys in another service's streams. This service closes the other one. Called once.
    pub(super) fn set_keys(&self, keys: Arc<Self>) {
        let _ = self.for_keys.set(keys);
    }

    /// The service whose streams have the durable keys.
    pub(crate) fn for_keys(self: &Arc<Self>) -> &Arc<Self> {
        self.for_keys.get().unwrap_or(self)
    }

    /// Takes ownership of a directory that is removed on close.
    pub(crate) fn own_directory(&self, directory: TemporaryDirectory) {
        *self.temporary_directory.lock() = Some(directory);
    }

    /// Whether the directory is this process's own: no successor needs it, since the broker stores the streams.
    pub(crate) fn has_own_directory(&self) -> bool {
        self.temporary_directory.lock().is_some()
    }

    /// Installs the opened streams.
    pub(crate) fn install(&self, streams: Streams) {
        // A second call has opened nothing: the directory is locked.
        let _ = self.streams.set(streams);
        self.connect_workers();
        self.load_keys();
        self.topics.wake_all();
    }

    /// Returns the topics' durable keys.
    pub(crate) fn keys(&self) -> &Arc<DurableKeys> {
        &self.keys
    }

    /// Reads the durable keys of all topics, if the streams are open and the server exists. Waits for the disk.
    pub(crate) fn load_keys(&self) {
        if let Some(streams) = self.streams.get() {
            self.keys.load(streams);
        }
    }

    /// Returns what an operation on a topic's keys has to wait for; usually nothing. A creator is given for a write,
    /// which creates the stream.
    pub(crate) fn opening_of_keys(
        self: &Arc<Self>,
        topic: &str,
        creator: Option<&Creator>,
    ) -> Option<SharedOpening> {
        if !self.keys.stores(topic) || model::check_name(topic).is_err() {
            return None;
        }
        let is_open = self.keys.is_open(topic);
        if self.keys.is_loaded() && (is_open || creator.is_none()) {
            return None;
        }
        let (store, topic, creator) = (Arc::clone(self), topic.to_owned(), creator.cloned());
        let open: StoreFuture<()> = Box::pin(async move {
            store.keys.wait_until_loaded().await;
            let readable = store.keys.check_ready(&topic);
            if readable.is_err() && creator.is_some() {
                store.rejected_writes.count(FaultCause::Unreadable);
            }
            readable?;
            match creator {
                Some(creator) if !store.keys.is_open(&topic) => store.create_keys(&topic, &creator).await,
                _ => Ok(()),
            }
        });
        Some(open.shared())
    }

    /// Counts a key stream among its creator's streams.
    fn reserve_keys(&self, name: &str, creator: &Creator) -> Result<(), Problem> {
        self.quota.reserve(creator, name).inspect_err(|_| self.rejected_writes.count(FaultCause::Limit))
    }

    /// Returns storage metrics for durable keys; `None` if no keys are durable.
    pub(crate) fn key_storage_metrics(&self) -> Option<KeyStorageMetrics> {
        let unreadable = self.keys.unreadable_count();
        let rejected = self.rejected_writes.counts();
        self.keys.is_enabled().then_some(KeyStorageMetrics { unreadable, rejected })
    }

    /// Creates a topic's key stream.
    async fn create_keys(&self, topic: &str, creator: &Creator) -> Result<(), Problem> {
        let name = format!("{STREAM_PREFIX}{topic}");
        let is_counted = self.quota.has(&name);
        if !is_counted {
            self.reserve_keys(&name, creator)?;
        }
        let created = self.streams()?.creating(&name, self.keys.config()).await;
        let opened = match created {
            Ok(Some(stream)) => self.keys.open(topic, &stream),
            Ok(None) => Err(not_open(topic)),
            Err(error) => {
                self.rejected_writes.count(FaultCause::from_stream(&error));
                Err(unusable(topic, &error))
            }
        };
        if opened.is_err() && !is_counted {
            self.quota.release(&name);
        }
        opened
    }

    /// Writes a topic's key, and waits until the change is stored and applied.
    pub(crate) async fn write_key(
        self: Arc<Self>,
        publisher: Publisher,
        topic: String,
        write: KeyWrite,
        creator: Creator,
    ) -> Result<KeyWritten, Problem> {
        if let Some(opening) = self.opening_of_keys(&topic, Some(&creator)) {
            opening.await?;
        }
        self.keys.check_ready(&topic)?;
        let written = publisher.write_key(&topic, &write).map_err(key_problem)?;
        if let Some(ticket) = written.pending {
            self.keys.wait_for(&topic, ticket).await?;
        }
        Ok(written)
    }

    /// The durable topics.
    pub(crate) fn topics(&self) -> &Arc<DurableTopics> {
        &self.topics
    }

    /// Returns a durable topic's relay, and the records to append to its stream.
    pub(crate) fn prepare_publication(
        &self,
        topic: &str,
        content: &MessageContent,
        idempotency_key: Option<&str>,
        rights: &Rights,
    ) -> Result<(Arc<TopicRelay>, Records), Problem> {
        let sender = rights.verified_sender(topic);
        let key = record_key(idempotency_key, sender.as_deref());
        self.prepare_record(topic, content, &key, rights)
    }

    /// Returns a durable topic's relay, and the record of an event from an app's server with its seal.
    pub(crate) fn prepare_event(
        &self,
        topic: &str,
        content: &MessageContent,
        seal: &str,
        rights: &Rights,
    ) -> Result<(Arc<TopicRelay>, Records), Problem> {
        self.prepare_record(topic, content, &event_key(seal), rights)
    }

    fn prepare_record(
        &self,
        topic: &str,
        content: &MessageContent,
        key: &[u8],
        rights: &Rights,
    ) -> Result<(Arc<TopicRelay>, Records), Problem> {
        let relay = self.topics.topic_relay(&self.stream_of_topic(topic, rights)?)?;
        Ok((relay, durable_topics::record_of(content, key, self.limits())?))
    }

    /// Whether a durable topic may match the pattern.
    pub(crate) fn has_topics_of(&self, pattern: &str) -> bool {
        self.topics.overlaps(pattern)
    }

    /// Returns a durable topic's relay, if its stream exists.
    pub(crate) fn topic_relay(&self, topic: &str) -> Result<Option<Arc<TopicRelay>>, Problem> {
        self.open_stream(topic)?.map(|stream| self.topics.topic_relay(&stream)).transpose()
    }

    /// What a subscription to a durable topic has to wait for; usually nothing. The caller has checked the right to
    /// subscribe.
    pub(crate) fn opening_of_topic(self: &Arc<Self>, topic: &str) -> Option<SharedOpening> {
        if let Some(streams) = self.streams.get() {
            return self.store.open(streams, topic, IfMissing::Reject);
        }
        let (store, topic) = (Arc::clone(self), topic.to_owned());
        let open: StoreFuture<()> = Box::pin(async move {
            store.topics.wait_until(|| store.streams.get().is_some()).await;
            match store.opening_of_topic(&topic) {
                Some(opening) => opening.await,
                None => Ok(()),
            }
        });
        Some(open.shared())
    }

    /// Makes the server's workers write from now on.
    pub(crate) fn write_on_workers(&self, appender: Appender) {
        // Called once.
        let _ = self.workers.set(RingWriteExecutor::new(appender));
        self.connect_workers();
    }

    /// Called when the streams or the workers are set; takes effect when both are set.
    fn connect_workers(&self) {
        if let (Some(streams), Some(workers)) = (self.streams.get(), self.workers.get()) {
            streams.set_write_executor(workers.clone());
        }
    }

    pub(crate) fn streams(&self) -> Result<&Streams, Problem> {
        self.streams.get().ok_or_else(|| {
            problem(code::STORE, "the predecessor process still owns the streams; retry later")
        })
    }

    /// Why no stream accepts appends, if the directory has failed.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        let for_keys = || self.for_keys.get().and_then(|keys| keys.failure());
        self.streams.get().and_then(Streams::failure).or_else(for_keys)
    }

    pub(crate) fn limits(&self) -> &RecordLimits {
        &self.limits
    }

    /// Returns the broker's health and the number of rejected requests, if a broker stores the streams.
    pub(crate) fn broker(&self) -> Option<(BrokerHealth, u64)> {
        self.store.health()
    }

    /// Waits for the broker's outstanding acknowledgements up to a limit, writes what is queued, and releases the
    /// directory.
    pub(crate) fn close(&self) {
        // Before waiting tasks are woken.
        self.closed.store(true, Ordering::Release);
        if let Some(keys) = self.for_keys.get() {
            keys.close();
        }
        self.store.close();
        self.topics.wake_all();
        self.topics.discovery.close();
        if let Some(streams) = self.streams.get() {
            streams.close();
        }
        drop(self.temporary_directory.lock().take());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The open streams, oldest first; empty while another process owns them.
    pub(super) fn open(&self) -> Vec<Stream> {
        let mut all = self.streams.get().map(Streams::list_open).unwrap_or_default();
        all.sort_by_key(Stream::created);
        all
    }

    /// Returns streams that are not open, by name, among the first `most` of all.
    pub(super) fn list_closed(&self, most: usize) -> Vec<StreamInfo> {
        let mut infos = self.streams.get().map(|streams| streams.describe_first(most)).unwrap_or_default();
        infos.retain(|info| info.state == StreamState::Closed);
        infos
    }

    /// Returns the stream count.
    pub(super) fn count(&self) -> usize {
        self.streams.get().map_or(0, Streams::count)
    }

    /// The streams that cannot be opened, and the reasons.
    pub(crate) fn damaged(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut damaged = self.streams.get().map(Streams::list_damaged).unwrap_or_default();
        damaged.extend(self.for_keys.get().into_iter().flat_map(|keys| keys.damaged()));
        damaged
    }

    /// Returns the open streams that reject appends or commits after a disk error, and the reasons.
    pub(crate) fn failed(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let all = self.open();
        let failed = all.iter().filter_map(|stream| Some((stream.name().into(), stream.failure()?)));
        failed.chain(self.for_keys.get().into_iter().flat_map(|keys| keys.failed())).collect()
    }

    /// Returns a stream to publish to.
    pub(crate) fn stream_to_publish(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        let stream = self.stream_of_topic(name, rights)?;
        self.check_append(name, rights)?;
        Ok(stream)
    }

    /// Checks that neither hooks nor limits of the topic apply to an append: only publications obey them.
    pub(crate) fn check_append(&self, name: &str, rights: &Rights) -> Result<(), Problem> {
        rights.check_without_hooks(Action::Publish, name)?;
        // Most servers have no limits, so this comes first.
        let limited = rights.check_without_limits(name);
        if limited.is_err() && self.topics.is_durable(name) {
            return limited;
        }
        Ok(())
    }

    /// Returns a topic's stream for a publication that hooks have accepted.
    fn stream_of_topic(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        model::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.may(Action::Publish, name)?;
        self.find(name, IfMissing::Create)
    }

    /// Returns a stream to read. The right to publish creates it.
    pub(crate) fn stream_to_read(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        model::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.may(Action::Subscribe, name)?;
        rights.check_without_hooks(Action::Subscribe, name)?;
        let may_publish = rights.may(Action::Publish, name).is_ok();
        let missing = if may_publish { IfMissing::Create } else { IfMissing::Reject };
        self.find(name, missing)
    }

    /// What a client with these rights has to wait for before it can use the stream; usually nothing. Errors are
    /// reported by [`stream_to_publish`](Self::stream_to_publish) or [`stream_to_read`](Self::stream_to_read)
    /// afterwards.
    pub(crate) fn opening(&self, name: &str, action: Action, rights: &Rights) -> Option<SharedOpening> {
        let streams = self.streams().ok()?;
        if self.store.is_open(streams, name)
            || model::check_name(name).is_err()
            || rights.may(action, name).is_err()
        {
            return None;
        }
        let creator = rights.creator();
        let may_create = self.store.opens_for_readers() || rights.may(Action::Publish, name).is_ok();
        let creates = may_create && matches!(streams.lookup(name), Lookup::Missing) && !self.quota.has(name);
        if creates && let Err(problem) = self.quota.reserve(&creator, name) {
            let open: StoreFuture<()> = Box::pin(std::future::ready(Err(problem)));
            return Some(open.shared());
        }
        let missing = if may_create { IfMissing::Create } else { IfMissing::Reject };
        let opening = self.store.open(streams, name, missing);
        if !creates {
            return opening;
        }
        let (quota, stream) = (Arc::clone(&self.quota), name.to_owned());
        let Some(opening) = opening else {
            quota.release(&stream);
            return None;
        };
        let open: StoreFuture<()> =
            Box::pin(async move { opening.await.inspect_err(|_| quota.release(&stream)) });
        Some(open.shared())
    }

    /// Returns an existing stream; with a broker, a stream that this node follows.
    fn open_stream(&self, name: &str) -> Result<Option<Stream>, Problem> {
        let streams = self.streams()?;
        match streams.lookup(name) {
            Lookup::Open(stream) => Ok(self.store.is_open(streams, name).then_some(stream)),
            Lookup::Damaged(why) => Err(unusable(name, &StreamError::Damaged(why))),
            Lookup::Missing => Ok(None),
            _ => Err(not_open(name)),
        }
    }

    fn find(&self, name: &str, missing: IfMissing) -> Result<Stream, Problem> {
        self.open_stream(name)?.ok_or_else(|| self.store.missing(name, missing))
    }

    /// Appends records to a partition.
    pub(crate) fn append(
        &self,
        stream: &Stream,
        partition: u32,
        records: Records,
    ) -> Result<Pending, AppendError> {
        self.store.append(stream, partition, records)
    }

    /// Appends a publication with an idempotency key.
    pub(crate) fn append_once(&self, stream: &Stream, records: Records) -> Result<Pending, AppendError> {
        self.store.append_once(stream, 0, records)
    }

    /// How repeated publications with an idempotency key are found.
    pub(crate) fn deduplication(&self) -> Deduplication {
        self.store.deduplication()
    }

    /// Whether a rejected append may fit now. Otherwise the waker is called when it may.
    pub(crate) fn has_capacity(&self, stream: &Stream, partition: u32, waker: &Waker) -> bool {
        self.store.has_capacity(stream, partition, waker)
    }

    /// Commits a group's offset.
    pub(crate) fn commit(
        &self,
        stream: &Stream,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<PendingWrite, Problem> {
        self.store.commit(stream, partition, group, offset)
    }

    /// Checks that an offset is not beyond the end of a partition. The end at a broker is not known without a request.
    pub(super) fn check_end(&self, stream: &Stream, number: u32, offset: u64) -> Result<(), Problem> {
        let end = find_partition(stream, number)?.offsets().next;
        if offset > end && self.store.health().is_none() {
            let text = format!("offset {offset} is beyond the end {end} of partition {number}");
            return Err(problem(code::TOPIC, text));
        }
        Ok(())
    }

    /// Returns the committed offset of a group in a partition, or the request for it.
    pub(crate) fn committed(&self, stream: &Stream, partition: u32, group: &str) -> OffsetLookup {
        self.store.committed(stream, partition, group)
    }

    /// Returns whether a group's commit may be lost.
    pub(crate) fn is_doubtful(&self, stream: &Stream, partition: u32, group: &str) -> bool {
        self.store.is_doubtful(stream, partition, group)
    }

    /// The offset at which reading starts.
    pub(crate) fn seek(&self, stream: &Stream, number: u32, start: StartPosition) -> Result<u64, Problem> {
        self.store.seek(stream, number, &find_partition(stream, number)?, start)
    }

    /// Returns the source of batches for a reader.
    pub(crate) fn source(&self, stream: &Stream, number: u32) -> Result<PartitionSource, Problem> {
        Ok(self.store.source(stream, number, find_partition(stream, number)?))
    }

    /// The first offset that may exist, and the end of this node's log.
    pub(crate) fn ends(&self, stream: &Stream, number: u32, partition: &Partition) -> (u64, u64) {
        (self.store.first(stream, number, partition), partition.offsets().readable)
    }

    /// Returns the offset of the first record in a new stream.
    pub(crate) fn first_offset(&self) -> u64 {
        self.store.first_offset()
    }

    /// The end of the readable records; with a broker, its current end.
    pub(crate) async fn end(&self, stream: &Stream, number: u32) -> Result<u64, Problem> {
        let known = find_partition(stream, number)?.offsets().readable;
        self.store.end(stream, number, known).await
    }

    /// The end of all records, including records that this node has not read from the broker yet.
    pub(crate) async fn last_end(&self, stream: &Stream, number: u32) -> Result<u64, Problem> {
        let known = find_partition(stream, number)?.offsets().readable;
        self.store.last_end(stream, number, known).await
    }
}

/// Largest publication batch, in bytes: a broker returns no larger batches.
const BATCH_MAX: usize = 8 << 20;
