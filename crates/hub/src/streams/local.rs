//! Streams in this node's log alone.

use std::collections::BTreeMap;
use std::future;
use std::sync::Arc;
use std::task::Waker;

use futures_util::FutureExt;
use sinews_server::{TopicName, TopicPattern};
use sinews_stream::broker::BrokerHealth;
use sinews_stream::record::Records;
use sinews_stream::{
    AppendError, Lookup, Partition, PartitionEvent, Pending, StartPosition, Stream, StreamConfig, Streams,
};

use super::durable_keys::TOMBSTONE_RETENTION;
use super::durable_topics::DurableTopics;
use super::errors::{not_open, unusable};
use super::store::{
    Deduplication, GroupPosition, IfMissing, OffsetLookup, PartitionSource, PendingWrite, StreamStore,
};
use crate::model::brief::brief;
use crate::model::opening::{SharedOpening, StoreFuture};
use crate::model::parse_patterns;
use crate::model::problem::{Problem, code, problem};

/// Store for streams in this node's log.
pub(crate) struct LocalStore {
    /// Configuration of streams that their first use creates.
    config: StreamConfig,
    /// Streams that are compacted.
    compacted: Vec<TopicPattern<'static>>,
    topics: Arc<DurableTopics>,
}

impl LocalStore {
    pub(crate) fn new(config: StreamConfig, compacted: Vec<String>, topics: Arc<DurableTopics>) -> Self {
        Self { config, compacted: parse_patterns(compacted), topics }
    }

    /// Returns the configuration of a stream that its first use creates.
    fn config_of(&self, name: &str) -> StreamConfig {
        let config = self.config.clone().with_automatic(true);
        let is_compacted = TopicName::parse(name)
            .is_ok_and(|name| self.compacted.iter().any(|pattern| pattern.matches(&name)));
        let config = config.with_compaction(is_compacted.then_some(TOMBSTONE_RETENTION));
        // A topic is ordered, so it has one partition.
        if self.topics.is_durable(name) { config.with_partitions(1) } else { config }
    }
}

impl StreamStore for LocalStore {
    fn open(&self, streams: &Streams, name: &str, missing: IfMissing) -> Option<SharedOpening> {
        match (streams.lookup(name), missing) {
            (Lookup::Open(_) | Lookup::Damaged(_), _) | (Lookup::Missing, IfMissing::Reject) => return None,
            _ => {}
        }
        let opening = match missing {
            IfMissing::Create => streams.creating(name, &self.config_of(name)),
            IfMissing::Reject => streams.opening(name),
        };
        let (topics, name) = (Arc::clone(&self.topics), name.to_owned());
        let open: StoreFuture<()> = Box::pin(async move {
            let stream = opening.await.map_err(|error| unusable(&name, &error))?;
            if let Some(stream) = stream.filter(|_| topics.is_durable(&name)) {
                // A stream that backs no topic has no relay; callers of `relay` receive the error.
                let _ = topics.topic_relay(&stream);
            }
            Ok(())
        });
        Some(open.shared())
    }

    fn is_open(&self, streams: &Streams, name: &str) -> bool {
        matches!(streams.lookup(name), Lookup::Open(_))
    }

    fn opens_for_readers(&self) -> bool {
        false
    }

    fn missing(&self, name: &str, missing: IfMissing) -> Problem {
        match missing {
            IfMissing::Reject => problem(code::NO_STREAM, format!("stream {} does not exist", brief(name))),
            // A message waits for the creation before it gets here, so the stream was deleted since.
            IfMissing::Create => not_open(name),
        }
    }

    fn append(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError> {
        let found = stream.partition(partition).ok_or_else(|| AppendError::Failed(NO_PARTITION.into()))?;
        found.append(records)
    }

    fn deduplication(&self) -> Deduplication {
        Deduplication::ReadOnce
    }

    fn fits(&self, appends: &[(&Stream, &Records)]) -> bool {
        let mut streams: BTreeMap<&str, (&Stream, Vec<&Records>)> = BTreeMap::new();
        for (stream, records) in appends {
            streams.entry(stream.name()).or_insert((stream, Vec::new())).1.push(records);
        }
        let has_space = |(stream, batches): (&Stream, Vec<&Records>)| {
            stream.partition(0).is_none_or(|found| found.has_queue_space(batches))
        };
        streams.into_values().all(has_space)
    }

    fn has_capacity(&self, stream: &Stream, partition: u32, waker: &Waker) -> bool {
        stream.partition(partition).is_none_or(|found| found.watch(PartitionEvent::QueueSpace, waker))
    }

    fn commit(
        &self,
        stream: &Stream,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<PendingWrite, Problem> {
        Ok(PendingWrite::Log(stream.commit(group, partition, offset)?))
    }

    fn committed(&self, stream: &Stream, partition: u32, group: &str) -> OffsetLookup {
        // The log clamps the start when it seeks.
        let committed = stream.committed(group, partition);
        OffsetLookup::Known(committed.map(|offset| GroupPosition { offset, start: offset }))
    }

    fn is_doubtful(&self, stream: &Stream, partition: u32, group: &str) -> bool {
        stream.is_doubtful(group, partition)
    }

    fn seek(&self, _: &Stream, _: u32, partition: &Partition, start: StartPosition) -> Result<u64, Problem> {
        Ok(partition.seek(start))
    }

    fn source(&self, _: &Stream, _: u32, partition: Partition) -> PartitionSource {
        PartitionSource::new(partition, None)
    }

    fn first(&self, _: &Stream, _: u32, partition: &Partition) -> u64 {
        partition.offsets().earliest
    }

    fn first_offset(&self) -> u64 {
        0
    }

    fn end(&self, _: &Stream, _: u32, known: u64) -> StoreFuture<u64> {
        Box::pin(future::ready(Ok(known)))
    }

    fn last_end(&self, stream: &Stream, number: u32, known: u64) -> StoreFuture<u64> {
        self.end(stream, number, known)
    }

    fn check_delete(&self, _: &str) -> Result<(), Problem> {
        Ok(())
    }

    fn config_of_new(&self, name: &str) -> Result<StreamConfig, Problem> {
        Ok(self.config_of(name))
    }

    fn expires_unused(&self) -> bool {
        true
    }

    fn health(&self) -> Option<(BrokerHealth, u64)> {
        None
    }

    fn close(&self) {}
}

/// The error of an append to a partition that does not exist.
const NO_PARTITION: &str = "the stream has no such partition";
