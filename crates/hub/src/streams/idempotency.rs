//! Publications with an idempotency key in the streams of durable topics.
//!
//! Such a publication's record has the idempotency key in its key. So a stream's last records are the index of recent
//! publications: a process reads them once after its start, and, with a broker that does not deduplicate, before each
//! publication, since other nodes publish, too.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sinews_stream::record::idempotency_key;

use super::durable_topics::TopicRelay;
use super::fetch::READ_BYTES;
use super::records_from::records_from;
use super::request::now;
use super::service::StreamService;
use super::store::{Deduplication, PartitionSource, ReadFailure};
use crate::access::auth::{Action, Rights};
use crate::model::opening::{SharedOpening, StoreFuture};
use crate::model::problem::Problem;
use crate::topics::recent::{RecentPublications, RecentRecord};

/// Records at a stream's end whose idempotency keys are known: more than the publications that a process remembers.
pub(crate) const RECORDS_MAX: u64 = 65_536;

/// Byte limit for these records. A step may exceed it.
const BYTES_MAX: usize = 16 << 20;

/// Records that are read in one step, from the end of the stream on.
const STEP: u64 = 4_096;

/// Recent publications in a topic's stream.
pub(crate) struct RecentRecords {
    pub(crate) publications: Vec<RecentRecord>,
    relay: Arc<TopicRelay>,
    end: u64,
}

impl RecentRecords {
    /// Remembers the publications: later requests need not read their records again.
    pub(crate) fn remember(&self, recent: &RecentPublications) {
        recent.restore(self.relay.name(), self.relay.epoch(), &self.publications);
        let mut read_to = self.relay.keys_read_to();
        *read_to = Some(read_to.map_or(self.end, |known| known.max(self.end)));
    }
}

impl StreamService {
    /// Returns whether a durable topic's last records have to be read before a publication with an idempotency key.
    pub(crate) fn must_read_keys(&self, topic: &str) -> bool {
        match self.deduplication() {
            Deduplication::Store => false,
            Deduplication::ReadAlways => true,
            Deduplication::ReadOnce => {
                let relay = self.topic_relay(topic).ok().flatten();
                relay.is_none_or(|relay| relay.keys_read_to().is_none())
            }
        }
    }

    /// Reads the publications with an idempotency key among a durable topic's last records, without the records that
    /// were read before. Creates the stream, as the publication would.
    pub(crate) async fn read_keys(
        self: Arc<Self>,
        topic: String,
        rights: Rights,
    ) -> Result<Option<RecentRecords>, Problem> {
        if let Some(opening) = self.opening(&topic, Action::Publish, &rights) {
            opening.await?;
        }
        let Some(relay) = self.topic_relay(&topic)? else { return Ok(None) };
        self.read_last(relay).await.map(Some)
    }

    /// The opening that a client's publication with an idempotency key waits for; usually none.
    pub(crate) fn opening_of_recent(
        self: &Arc<Self>,
        topic: &str,
        recent: &Arc<RecentPublications>,
        rights: &Rights,
    ) -> Option<SharedOpening> {
        if !self.must_read_keys(topic) {
            return self.opening(topic, Action::Publish, rights);
        }
        let read = Arc::clone(self).read_keys(topic.to_owned(), rights.clone());
        let recent = Arc::clone(recent);
        let opening: StoreFuture<()> = Box::pin(async move {
            if let Some(records) = read.await? {
                records.remember(&recent);
            }
            Ok(())
        });
        Some(opening.shared())
    }

    async fn read_last(&self, relay: Arc<TopicRelay>) -> Result<RecentRecords, Problem> {
        let stream = relay.stream();
        let end = self.last_end(stream, 0).await?;
        let known = *relay.keys_read_to();
        let earliest = self.ends(stream, 0, relay.partition()).0;
        let earliest = earliest.max(end.saturating_sub(RECORDS_MAX)).max(known.unwrap_or(0));
        let mut source = self.source(stream, 0)?;
        let (mut publications, mut until, mut bytes) = (Vec::new(), end, 0);
        while until > earliest && bytes < BYTES_MAX {
            let from = until.saturating_sub(STEP).max(earliest);
            bytes += read_range(&mut source, from, until, &mut publications).await?;
            until = from;
        }
        Ok(RecentRecords { publications, relay, end })
    }
}

/// Adds the publications in a record range; returns the bytes that were read.
async fn read_range(
    source: &mut PartitionSource,
    from: u64,
    until: u64,
    publications: &mut Vec<RecentRecord>,
) -> Result<usize, Problem> {
    let (mut next, mut bytes, now) = (from, 0, now());
    while next < until {
        let read = match poll_fn(|cx| source.poll_read(next, READ_BYTES, cx.waker())).await {
            // This node's copy has not reached the records at the broker.
            Ok(None) => poll_fn(|cx| source.poll_store(next, until, READ_BYTES, cx.waker())).await,
            read => read,
        };
        match read {
            Ok(Some(read)) => {
                bytes += read.batches.len();
                for record in records_from(&read.batches, next).take_while(|record| record.offset < until) {
                    let Some(Ok(key)) = idempotency_key(record.key).map(std::str::from_utf8) else {
                        continue;
                    };
                    publications.push(RecentRecord {
                        idempotency_key: key.to_owned(),
                        sequence: record.offset + 1,
                        age: Duration::from_micros(now.saturating_sub(record.timestamp)),
                    });
                }
                next = read.next.max(next + 1);
            }
            Ok(None) | Err(ReadFailure::Ahead(_)) => break,
            Err(ReadFailure::Gap(to)) => next = to.max(next + 1),
            Err(ReadFailure::Failed(problem)) => return Err(problem),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
