//! Pages of retained messages, as protocol messages.

use std::collections::VecDeque;
use std::fmt::Write;
use std::future::poll_fn;
use std::sync::Arc;

use serde_json::{Value, json};
use sinews_server::{HistoryQuery, Position, Prepared, ReplayFrom};

use super::durable_topics::TopicRelay;
use super::fetch::READ_BYTES;
use super::record_content::content_of;
use super::record_stamp::RecordStamp;
use super::records_from::records_from;
use super::service::StreamService;
use super::store::{PartitionSource, ReadFailure};
use crate::model::brief::brief;
use crate::model::encoding::MESSAGES;
use crate::model::history::HistoryRange;
use crate::model::json_list::JsonListItem;
use crate::model::problem::{Problem, code, problem};
use crate::topics::HubTopics;

/// Limits of one answer to `history`: messages and bytes.
pub(crate) const HISTORY_MAX: usize = 1_000;
pub(crate) const HISTORY_BYTES_MAX: usize = 1 << 20;

/// A part of a topic's history.
#[derive(Debug)]
pub(crate) struct TopicPage<T> {
    pub(crate) messages: T,
    /// Retained messages remain in the direction of the request.
    pub(crate) has_more: bool,
    /// The requested position is known, and no message next to it is lost.
    pub(crate) complete: bool,
}

impl<T> TopicPage<T> {
    /// Adds the fields behind the messages.
    pub(crate) fn add_fields(&self, answer: &mut Value) {
        if self.has_more {
            answer["more"] = json!(true);
        }
        if !self.complete {
            answer["complete"] = json!(false);
        }
    }

    /// Returns the end of a JSON object behind the list's last message.
    pub(crate) fn tail(&self) -> String {
        let more = if self.has_more { ",\"more\":true" } else { "" };
        let complete = if self.complete { "" } else { ",\"complete\":false" };
        format!("]{more}{complete}}}")
    }
}

/// The retained messages of a topic that is not durable, which `read` reads from the server below.
///
/// # Errors
/// The topic has no history.
pub(crate) fn history_page(
    hub: &HubTopics,
    topic: &str,
    range: HistoryRange,
    read: impl FnOnce(&str, &HistoryQuery) -> sinews_server::HistoryPage,
) -> Result<TopicPage<Vec<HistoryItem>>, Problem> {
    if !hub.has_history(topic) {
        return Err(problem(code::GONE, format!("topic {} has no history", brief(topic))));
    }
    let query = range.query(HISTORY_MAX).with_max_bytes(HISTORY_BYTES_MAX);
    let page = read(&MESSAGES.topic(topic), &query);
    let messages = page.messages.into_iter().map(|(_, message)| HistoryItem(message)).collect();
    Ok(TopicPage { messages, has_more: page.has_more, complete: page.complete })
}

/// A retained protocol message, which is JSON.
pub(crate) struct HistoryItem(Prepared);

impl HistoryItem {
    /// Returns the message, parsed.
    pub(crate) fn to_value(&self) -> Value {
        serde_json::from_slice(self.0.payload()).unwrap_or_default()
    }
}

impl JsonListItem for HistoryItem {
    fn write(&self, out: &mut impl Write) {
        // Messages are text, so this does not fail. Writing to a buffer cannot fail.
        let _ = out.write_str(std::str::from_utf8(self.0.payload()).unwrap_or("null"));
    }

    fn memory(&self) -> usize {
        self.0.payload().len()
    }
}

/// Reads messages of a durable topic from its stream. Returns them with commas between.
pub(crate) async fn stored_history(
    store: Arc<StreamService>,
    topic: String,
    range: HistoryRange,
) -> Result<TopicPage<String>, Problem> {
    if let Some(opening) = store.opening_of_topic(&topic) {
        opening.await?;
    }
    let Some(relay) = store.topic_relay(&topic)? else {
        let complete = match range {
            HistoryRange::Last { before, .. } => before.is_none_or(|position| position.sequence == 0),
            HistoryRange::After { position, .. } => position.sequence == 0,
        };
        return Ok(TopicPage { messages: String::new(), has_more: false, complete });
    };
    // An acknowledged publication may still be on its way to the subscribers.
    let end = store.ends(relay.stream(), 0, relay.partition()).1.max(*relay.progress());
    let mut reader = HistoryReader {
        source: store.source(relay.stream(), 0)?,
        relay: &relay,
        topic: &topic,
        has_timestamps: store.topics().has_timestamps(&topic),
    };
    match range {
        HistoryRange::After { position, limit } => {
            let (from, complete) = relay.start_offset(&store, Some(ReplayFrom::After(position)), end);
            let mut page = TextPage::new(limit, false);
            reader.read(from, end, &mut page).await?;
            let has_more = page.is_full && page.next < end;
            Ok(TopicPage { messages: page.text(), has_more, complete })
        }
        HistoryRange::Last { count, before } => {
            let earliest = store.ends(relay.stream(), 0, relay.partition()).0.min(end);
            let (until, complete) = match before {
                None => (end, true),
                Some(position) => relay.end_before(position, earliest, end),
            };
            let (mut from, mut step) = (until, count.min(HISTORY_MAX) as u64);
            // Offsets without a record, such as damaged ones, fill no page.
            loop {
                from = from.saturating_sub(step).max(earliest);
                let mut page = TextPage::new(count, true);
                reader.read(from, until, &mut page).await?;
                if count == 0 || from == earliest || !page.messages.is_empty() {
                    let has_more = from > earliest || page.is_full;
                    return Ok(TopicPage { messages: page.text(), has_more, complete });
                }
                step = step.saturating_mul(2);
            }
        }
    }
}

/// Reads a durable topic's messages.
struct HistoryReader<'a> {
    source: PartitionSource,
    relay: &'a TopicRelay,
    topic: &'a str,
    has_timestamps: bool,
}

impl HistoryReader<'_> {
    /// Adds the messages at these offsets, until the page is full.
    async fn read(&mut self, from: u64, end: u64, page: &mut TextPage) -> Result<(), Problem> {
        page.next = from;
        while page.next < end && page.takes_more() {
            let next = page.next;
            match poll_fn(|cx| self.source.poll_read(next, READ_BYTES, cx.waker())).await {
                Ok(Some(read)) => {
                    let records = records_from(&read.batches, next).take_while(|record| record.offset < end);
                    for record in records {
                        let position = self.relay.position(record.offset + 1);
                        let stamp = RecordStamp::new(&record, self.has_timestamps);
                        let message = content_of(&record).framed_text(self.topic, stamp.at(position));
                        if !page.push(message) {
                            return Ok(());
                        }
                        page.next = record.offset + 1;
                    }
                    page.next = read.next.max(next + 1);
                }
                Ok(None) if self.relay.is_accepted(next) => self.relay.written(next).await,
                Ok(None) => break,
                Err(ReadFailure::Gap(to) | ReadFailure::Ahead(to)) => page.next = to.max(next + 1),
                Err(ReadFailure::Failed(problem)) => return Err(problem),
            }
        }
        Ok(())
    }
}

/// Messages up to the limits: the first or the last ones of the messages that are added.
struct TextPage {
    messages: VecDeque<String>,
    bytes: usize,
    count: usize,
    keeps_last: bool,
    /// Messages did not fit.
    is_full: bool,
    /// The offset behind the last message.
    next: u64,
}

impl TextPage {
    fn new(count: usize, keeps_last: bool) -> Self {
        let count = count.min(HISTORY_MAX);
        Self { messages: VecDeque::new(), bytes: 0, count, keeps_last, is_full: false, next: 0 }
    }

    /// Whether the next message changes the page, or how full it is.
    fn takes_more(&self) -> bool {
        self.keeps_last && self.count > 0 || !self.is_full
    }

    /// Adds a message. Returns whether the page has it.
    fn push(&mut self, message: String) -> bool {
        let exceeds = |page: &Self, more: usize| {
            page.messages.len() + usize::from(more > 0) > page.count
                || page.bytes + more > HISTORY_BYTES_MAX && page.messages.len() + usize::from(more > 0) > 1
        };
        if !self.keeps_last && exceeds(self, message.len()) {
            self.is_full = true;
            return false;
        }
        self.bytes += message.len();
        self.messages.push_back(message);
        while exceeds(self, 0) {
            self.is_full = true;
            self.bytes -= self.messages.pop_front().map_or(0, |oldest| oldest.len());
        }
        !self.messages.is_empty()
    }

    /// The messages with commas between.
    fn text(self) -> String {
        let mut text = String::with_capacity(self.bytes + self.messages.len());
        for message in &self.messages {
            text.push_str(if text.is_empty() { "" } else { "," });
            text.push_str(message);
        }
        text
    }
}

impl TopicRelay {
    /// The offset of the message at a position, which is the end of the messages before it, and whether it is known.
    fn end_before(&self, position: Position, earliest: u64, end: u64) -> (u64, bool) {
        if position.epoch != self.epoch() {
            return (earliest, false);
        }
        let offset = position.sequence.saturating_sub(1);
        let is_known = position.sequence == 0 || (earliest..=end).contains(&offset);
        (offset.clamp(earliest, end), is_known)
    }
}
