//! Publishes a broker's records to a durable topic's subscribers when this node's log accepts them.
//!
//! ```text
//!   broker ──▶ thread of its client ─┬─▶ topics of the server below ─▶ live subscribers
//!                                    └─▶ log ─▶ relay, if workers fall behind ─▶ the same subscribers
//! ```
//!
//! The broker has stored these records, so their delivery need not wait for this node's copy. The relay's thread takes
//! over while workers fall behind: only that thread may wait for them.

use std::sync::{Arc, Weak};
use std::task::Wake;

use sinews_server::Publisher;
use sinews_stream::broker::CopyObserver;
use sinews_stream::record::Records;

use super::durable_topics::{DurableTopics, RELAY_RECORDS, TopicRelay};
use crate::topics::HubTopics;

/// Observes the copy of one stream.
pub(super) struct RelayFeed {
    topics: Weak<DurableTopics>,
    relay: Weak<TopicRelay>,
}

impl RelayFeed {
    pub(super) fn new(topics: &Arc<DurableTopics>, relay: &Arc<TopicRelay>) -> Arc<Self> {
        Arc::new(Self { topics: Arc::downgrade(topics), relay: Arc::downgrade(relay) })
    }
}

impl CopyObserver for RelayFeed {
    /// Publishes records that the log has accepted, if all earlier ones are published and no worker has a backlog.
    /// Otherwise the relay reads them from the log.
    fn accepted(&self, base: u64, records: &Records) {
        let (Some(topics), Some(relay)) = (self.topics.upgrade(), self.relay.upgrade()) else { return };
        let end = base + u64::from(records.count());
        let mut relayed = relay.progress();
        let Some(earlier) = relay.accept(end, &relayed) else { return };
        if *relayed >= earlier
            && let Some((hub, publisher)) = &mut *topics.feed()
        {
            *relayed = publish(hub, publisher, &relay, base, records, *relayed);
        }
        let is_complete = *relayed >= end;
        drop(relayed);
        match is_complete {
            true => topics.wake_all(),
            false => relay.wake_flag.clone().wake(),
        }
    }
}

/// Publishes records until a worker has a backlog; returns the offset behind the last published one.
fn publish(
    hub: &HubTopics,
    publisher: &mut Publisher,
    relay: &TopicRelay,
    base: u64,
    records: &Records,
    mut relayed: u64,
) -> u64 {
    // The relay may have read these records from the log before the log reported them here.
    let first = relayed;
    let unpublished = (base..).zip(records.iter().flatten()).skip_while(|(offset, _)| *offset < first);
    for (index, (offset, record)) in unpublished.enumerate() {
        if index % RELAY_RECORDS == 0 && publisher.is_backlogged() {
            break;
        }
        let position = relay.position(offset + 1);
        relay.publish(hub, publisher, &record, position);
        relayed = position.sequence;
    }
    relayed
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
