//! The durable-topic records that a subscriber has missed, read at once. A subscriber that may take longer
//! [follows](super::follow) the log.

use std::future::poll_fn;
use std::sync::Arc;

use sinews_server::{Context, InvalidTopic, Position, ReplayFrom};

use super::durable_topics::TopicRelay;
use super::event_records::sealed_content_of;
use super::fetch::READ_BYTES;
use super::follow::ready;
use super::records_from::records_from;
use super::service::StreamService;
use super::store::ReadFailure;
use crate::model::MessageContent;
use crate::model::problem::Problem;
use crate::topics::HubTopics;

/// The records behind a position.
pub(crate) struct MissedRecords {
    hub: Arc<HubTopics>,
    relay: Arc<TopicRelay>,
    /// The first offset that was not read.
    next: u64,
    records: Vec<(Position, MessageContent)>,
    /// Size of the records in bytes.
    bytes: usize,
    /// No record between the position and `next` is missing.
    is_complete: bool,
}

impl MissedRecords {
    /// Begins behind a position, without a read, when this node has reached the position. `None` if the topic has no
    /// stream yet.
    pub(crate) async fn begin(
        store: Arc<StreamService>,
        hub: Arc<HubTopics>,
        topic: String,
        after: Option<Position>,
    ) -> Result<Option<Self>, Problem> {
        ready(Arc::clone(&store), topic.clone(), after.map(ReplayFrom::After)).await?;
        let Some(relay) = store.topic_relay(&topic)? else { return Ok(None) };
        // A position without a message is that before the first one.
        let after = after.filter(|after| after.epoch == relay.epoch() || after.sequence == 0);
        let is_complete = after.is_some_and(|after| after.sequence <= *relay.progress());
        let next = after.map_or(0, |after| after.sequence);
        Ok(Some(Self { hub, relay, next, records: Vec::new(), bytes: 0, is_complete }))
    }

    /// Whether there are records to read.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_complete && self.next < *self.relay.progress()
    }

    /// Reads on, up to the records that are published, within the message and byte limits.
    pub(crate) async fn read_on(
        mut self,
        store: &StreamService,
        most: usize,
        most_bytes: usize,
    ) -> Result<Self, Problem> {
        let end = *self.relay.progress();
        let mut source = store.source(self.relay.stream(), 0)?;
        while self.is_complete && self.next < end {
            match poll_fn(|cx| source.poll_read(self.next, READ_BYTES, cx.waker())).await {
                Ok(Some(read)) => {
                    let mut records = records_from(&read.batches, self.next);
                    for record in records.by_ref().take_while(|record| record.offset < end) {
                        self.bytes += record.value.len();
                        let content = sealed_content_of(&record, self.relay.name(), &self.hub);
                        self.records.push((self.relay.position(record.offset + 1), content));
                    }
                    self.is_complete =
                        records.damaged().is_none() && self.records.len() <= most && self.bytes <= most_bytes;
                    self.next = read.next.min(end);
                }
                Ok(None) if self.relay.is_accepted(self.next) => self.relay.written(self.next).await,
                // A stream begins there: no record is missing.
                Err(ReadFailure::Gap(to)) if to <= store.first_offset() => self.next = to,
                Ok(None) | Err(ReadFailure::Gap(_) | ReadFailure::Ahead(_)) => self.is_complete = false,
                Err(ReadFailure::Failed(problem)) => return Err(problem),
            }
        }
        if !self.is_complete {
            self.records = Vec::new();
        }
        Ok(self)
    }

    /// Subscribes a connection to the topic in an encoding behind these records, and returns the position there; if
    /// they are incomplete, behind the last published record. `None` if more records were published meanwhile: read on.
    pub(crate) fn subscribe(
        &self,
        encoded: &str,
        cx: &mut Context<'_>,
    ) -> Result<Option<Position>, InvalidTopic> {
        // While this is locked, the relay does not publish.
        let relayed = self.relay.progress();
        if self.is_complete && self.next < *relayed {
            return Ok(None);
        }
        let position = self.relay.position(*relayed);
        cx.topics().publisher().advance_to(encoded, position)?;
        cx.subscribe_from(encoded, ReplayFrom::After(position))?;
        Ok(Some(position))
    }

    /// The records; `None` if some are missing.
    pub(crate) fn into_records(self) -> Option<Vec<(Position, MessageContent)>> {
        self.is_complete.then_some(self.records)
    }
}
