//! Streams at a broker: publications go to the broker, and this node's log follows it.
//!
//! ```text
//!   publish, commit ──▶ broker ──▶ log of this node ──▶ readers: records since the node follows the stream
//!                         └────────────────────────────▶ readers: records that are older than the log
//! ```

use std::collections::HashMap;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::WeakShared;
use parking_lot::{Mutex, MutexGuard};
use sinews_stream::broker::{Broker, BrokerError, BrokerHealth, BrokerResponse};
use sinews_stream::record::Records;
use sinews_stream::{
    AppendError, CreateError, Partition, Pending, ReadResult, StartPosition, Stream, StreamConfig, Streams,
};

use super::durable_topics::DurableTopics;
use super::errors::{created, unusable};
use super::relay_feed::RelayFeed;
use super::request::find_partition;
use super::store::{
    Deduplication, GroupPosition, IfMissing, OffsetLookup, OlderRecords, PartitionSource, PendingWrite,
    ReadFailure, StreamStore,
};
use crate::model::brief::brief;
use crate::model::opening::{SharedOpening, StoreFuture};
use crate::model::problem::{Problem, code, problem};

/// Time that a shutdown waits for the broker's outstanding acknowledgements.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Maximum attempts to query a new stream that has no leader yet.
const TRIES: u32 = 5;

/// Store for streams at a broker, which this node's log follows. Clones share the broker.
#[derive(Clone)]
pub(crate) struct BrokerStore {
    broker: Arc<dyn Broker>,
    /// Configuration of the copies on this node.
    config: StreamConfig,
    topics: Arc<DurableTopics>,
    known: Arc<Mutex<HashMap<String, FollowedStream>>>,
    rejected: Arc<AtomicU64>,
}

enum FollowedStream {
    Opening(WeakShared<StoreFuture<()>>),
    Open(Arc<[BrokerExtent]>),
}

/// The broker's offsets for a partition when this node began to follow it.
#[derive(Clone, Copy, Debug)]
struct BrokerExtent {
    first: u64,
    end: u64,
}

impl BrokerStore {
    pub(crate) fn new(broker: Arc<dyn Broker>, config: StreamConfig, topics: Arc<DurableTopics>) -> Self {
        Self { broker, config, topics, known: Arc::default(), rejected: Arc::default() }
    }

    fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    fn extent(&self, stream: &str, partition: u32) -> BrokerExtent {
        let open = match lock(&self.known).get(stream) {
            Some(FollowedStream::Open(extents)) => extents.get(partition as usize).copied(),
            _ => None,
        };
        open.unwrap_or(BrokerExtent { first: 0, end: 0 })
    }

    /// The end that this node knows.
    fn known_end(&self, stream: &Stream, number: u32) -> u64 {
        let readable = stream.partition(number).map_or(0, |partition| partition.offsets().readable);
        readable.max(self.extent(stream.name(), number).end)
    }

    /// The answer to a query; a failure is counted.
    fn answer<T: Send + 'static>(&self, answer: BrokerResponse<T>) -> StoreFuture<T> {
        let store = self.clone();
        Box::pin(async move { answer.await.map_err(|error| store.failed(&error)) })
    }

    /// Counts a failed query and describes it.
    fn failed(&self, error: &BrokerError) -> Problem {
        self.count_rejected();
        let code = if *error == BrokerError::Busy { code::TOO_MANY } else { code::STORE };
        problem(code, error.to_string())
    }
}

impl StreamStore for BrokerStore {
    fn open(&self, streams: &Streams, name: &str, _: IfMissing) -> Option<SharedOpening> {
        let mut known = lock(&self.known);
        match known.get(name) {
            Some(FollowedStream::Open(_)) => return None,
            Some(FollowedStream::Opening(opening)) => {
                if let Some(opening) = opening.upgrade() {
                    return Some(opening);
                }
            }
            None => {}
        }
        let (broker, place) = (Arc::clone(&self.broker), Arc::clone(&self.known));
        let (topics, streams) = (Arc::clone(&self.topics), streams.clone());
        let (config, stream) = (self.config.clone(), name.to_owned());
        let open: StoreFuture<()> = Box::pin(async move {
            let opened = follow(&*broker, &topics, &stream, &streams, &config).await;
            let mut known = lock(&place);
            match opened {
                Ok(extents) => {
                    known.insert(stream, FollowedStream::Open(extents.into()));
                    Ok(())
                }
                // The next caller retries.
                Err(problem) => {
                    known.remove(&stream);
                    Err(problem)
                }
            }
        });
        let opening = open.shared();
        // All callers may have gone before it was open.
        known
            .retain(|_, one| !matches!(one, FollowedStream::Opening(opening) if opening.upgrade().is_none()));
        if let Some(weak) = opening.downgrade() {
            known.insert(name.to_owned(), FollowedStream::Opening(weak));
        }
        Some(opening)
    }

    fn is_open(&self, _: &Streams, name: &str) -> bool {
        matches!(lock(&self.known).get(name), Some(FollowedStream::Open(_)))
    }

    fn opens_for_readers(&self) -> bool {
        // Only the broker knows whether the stream exists.
        true
    }

    fn lists_streams(&self) -> bool {
        true
    }

    fn list_streams(&self) -> StoreFuture<Vec<String>> {
        self.answer(self.broker.streams())
    }

    fn missing(&self, name: &str, _: IfMissing) -> Problem {
        problem(code::STORE, format!("stream {} is not ready yet; retry later", brief(name)))
    }

    fn append(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError> {
        let sent = self.broker.publish(stream.name(), partition, records);
        sent.inspect_err(|_| self.count_rejected())
    }

    fn append_once(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError> {
        let sent = self.broker.publish_once(stream.name(), partition, records);
        sent.inspect_err(|_| self.count_rejected())
    }

    fn deduplication(&self) -> Deduplication {
        if self.broker.deduplicates() { Deduplication::Store } else { Deduplication::ReadAlways }
    }

    fn fits(&self, appends: &[(&Stream, &Records)]) -> bool {
        let batches: Vec<&Records> = appends.iter().map(|(_, records)| *records).collect();
        let fits = self.broker.has_queue_space(&batches);
        if !fits {
            self.count_rejected();
        }
        fits
    }

    fn has_capacity(&self, _: &Stream, _: u32, waker: &Waker) -> bool {
        self.broker.watch_queue_space(waker)
    }

    fn commit(
        &self,
        stream: &Stream,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<PendingWrite, Problem> {
        find_partition(stream, partition)?;
        // For group lists on this node; the commit is stored even if the future is dropped.
        stream.commit(group, partition, offset)?;
        let answer = self.broker.commit(stream.name(), partition, group, offset);
        Ok(PendingWrite::Requested(self.answer(answer)))
    }

    fn committed(&self, stream: &Stream, partition: u32, group: &str) -> OffsetLookup {
        let answer = self.broker.committed(stream.name(), partition, group);
        let (store, stream, group) = (self.clone(), stream.clone(), group.to_owned());
        OffsetLookup::Requested(Box::pin(async move {
            let Some(offset) = answer.await.map_err(|error| store.failed(&error))? else { return Ok(None) };
            let known = store.known_end(&stream, partition);
            if offset <= known {
                return Ok(Some(GroupPosition { offset, start: offset }));
            }
            // Another node may have read more than this one. Beyond the broker's end, a member would wait silently.
            let end = store.last_end(&stream, partition, known).await?;
            if offset > end {
                tracing::warn!(
                    stream = %stream.name(), partition, group = %brief(&group), offset, end,
                    "the committed offset of a group is beyond the end of the stream"
                );
            }
            Ok(Some(GroupPosition { offset, start: offset.min(end) }))
        }))
    }

    fn is_doubtful(&self, _: &Stream, _: u32, _: &str) -> bool {
        // The broker stores its groups' commits itself.
        false
    }

    fn seek(
        &self,
        stream: &Stream,
        number: u32,
        partition: &Partition,
        start: StartPosition,
    ) -> Result<u64, Problem> {
        let (extent, ends) = (self.extent(stream.name(), number), partition.offsets());
        Ok(match start {
            StartPosition::Earliest => extent.first,
            // The log may not have reached the broker's end yet.
            StartPosition::Latest => ends.readable.max(extent.end),
            // Another node may have read more than this one, so the end is no limit.
            StartPosition::Offset(offset) => offset.max(extent.first),
            // By time, or by a start that a later version adds.
            _ => {
                let found = partition.seek(start);
                let has_older = ends.next > 0 && found > ends.earliest;
                let has_all = ends.next > 0 && ends.earliest <= extent.first || extent.first == extent.end;
                if !has_older && !has_all {
                    let message = "this node has no older records, and the broker is not searched by time: start at an \
                                 offset or at earliest";
                    return Err(problem(code::GONE, message));
                }
                found
            }
        })
    }

    fn source(&self, stream: &Stream, number: u32, partition: Partition) -> PartitionSource {
        let older = BrokerReader {
            store: self.clone(),
            stream: stream.clone(),
            number,
            log_start: self.extent(stream.name(), number).end,
            request: None,
        };
        PartitionSource::new(partition, Some(Box::new(older)))
    }

    fn first(&self, stream: &Stream, number: u32, _: &Partition) -> u64 {
        self.extent(stream.name(), number).first
    }

    fn first_offset(&self) -> u64 {
        self.broker.first_offset()
    }

    fn end(&self, stream: &Stream, number: u32, known: u64) -> StoreFuture<u64> {
        if self.broker.health().ready {
            return self.last_end(stream, number, known);
        }
        Box::pin(future::ready(Ok(known)))
    }

    fn last_end(&self, stream: &Stream, number: u32, known: u64) -> StoreFuture<u64> {
        let range = self.answer(self.broker.offset_range(stream.name(), number));
        Box::pin(async move { range.await.map(|(_, end)| end.max(known)) })
    }

    fn check_delete(&self, name: &str) -> Result<(), Problem> {
        let message = format!("stream {name} is stored at the broker: delete it there");
        Err(problem(code::NOT_SUBSCRIBED, message))
    }

    fn config_of_new(&self, name: &str) -> Result<StreamConfig, Problem> {
        let message =
            format!("stream {} is stored at the broker: create and configure it there", brief(name));
        Err(problem(code::NOT_SUBSCRIBED, message))
    }

    fn expires_unused(&self) -> bool {
        false
    }

    fn health(&self) -> Option<(BrokerHealth, u64)> {
        Some((self.broker.health(), self.rejected.load(Ordering::Relaxed)))
    }

    fn close(&self) {
        self.broker.close(CLOSE_WITHIN);
    }
}

/// Makes a stream's log follow the broker: from the broker's current end, or from the end of an earlier run.
async fn follow(
    broker: &dyn Broker,
    topics: &Arc<DurableTopics>,
    name: &str,
    streams: &Streams,
    config: &StreamConfig,
) -> Result<Vec<BrokerExtent>, Problem> {
    let shown = brief(name);
    let rejected = |error: BrokerError| {
        problem(code::STORE, format!("stream {shown}: {}", error.to_string().replace(name, &shown)))
    };
    if streams.describe(name).is_none() && !streams.has_room() {
        // The query may create the stream at the broker.
        return Err(created(name, &CreateError::TooMany));
    }
    // A topic is ordered, so it has one partition.
    let count = match topics.is_durable(name) && broker.creates_partitions() {
        true => 1,
        false => broker.partitions(name).await.map_err(rejected)?,
    };
    let requests: Vec<_> = (0..count).map(|partition| broker.offset_range(name, partition)).collect();
    let mut extents = Vec::with_capacity(requests.len());
    for (partition, mut answer) in (0..count).zip(requests) {
        let mut tries = 1;
        let (first, end) = loop {
            match answer.await {
                Err(BrokerError::Failed(_)) if tries < TRIES && broker.health().ready => {
                    tries += 1;
                    answer = broker.offset_range(name, partition);
                }
                answer => break answer.map_err(rejected)?,
            }
        };
        extents.push(BrokerExtent { first, end });
    }
    let create = || match streams.create(name, &config.clone().with_partitions(count)) {
        Err(CreateError::Partitions { has }) => Err(problem(
            code::STORE,
            format!("stream {shown} has {count} partitions at the broker and {has} on this node"),
        )),
        other => other.map_err(|error| created(name, &error)),
    };
    let opened = streams.creating(name, &config.clone().with_partitions(count)).await;
    let stream = match opened.map_err(|error| unusable(name, &error))? {
        Some(stream) if stream.partitions() == count => stream,
        _ => create()?,
    };
    for (number, extent) in (0..count).zip(&extents) {
        let Some(partition) = stream.partition(number) else { continue };
        let ends = partition.offsets();
        let is_new = ends.next == 0;
        let start = if topics.discovery.is_new(name) { extent.first } else { extent.end };
        let from = if is_new { StartPosition::Offset(start) } else { StartPosition::Earliest };
        // Before the first record arrives.
        if let Some(relay) = topics.insert_at_broker(&stream, if is_new { start } else { ends.readable }) {
            partition.observe_copy(RelayFeed::new(topics, &relay));
        }
        broker.follow(name, number, from, partition);
    }
    Ok(extents)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic under the lock leaves an inconsistent value.
    mutex.lock()
}

struct BrokerReader {
    store: BrokerStore,
    stream: Stream,
    number: u32,
    log_start: u64,
    request: Option<(u64, BrokerResponse<ReadResult>)>,
}

impl OlderRecords for BrokerReader {
    fn log_start(&self) -> u64 {
        self.log_start
    }

    fn poll_read(
        &mut self,
        from: u64,
        end: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<ReadResult>, ReadFailure>> {
        let request = self.request.take().filter(|(offset, _)| *offset == from);
        let broker = &self.store.broker;
        let (_, mut answer) =
            request.unwrap_or_else(|| (from, broker.fetch(self.stream.name(), self.number, from, most)));
        match Pin::new(&mut answer).poll(&mut Context::from_waker(waker)) {
            Poll::Pending => {
                self.request = Some((from, answer));
                Poll::Pending
            }
            Poll::Ready(Ok(read)) if read.next > from => Poll::Ready(Ok(Some(read))),
            // The broker has no readable records there.
            Poll::Ready(Ok(_)) => Poll::Ready(Err(ReadFailure::Gap(end))),
            Poll::Ready(Err(BrokerError::Gone { earliest })) if earliest > from => {
                Poll::Ready(Err(ReadFailure::Gap(earliest)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(ReadFailure::Failed(self.store.failed(&error)))),
        }
    }
}
