//! Pages of retained messages, as protocol messages.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;
use sinews_server::{Position, Prepared, ReplayFrom};

use crate::model::brief::brief;
use crate::model::encoding::MESSAGES;
use crate::model::json_list::JsonListItem;
use crate::model::problem::{Problem, code, problem};
use crate::streams::fetch::FetchedRecords;
use crate::streams::follow;
use crate::streams::record_content::content_of;
use crate::streams::records_from::records_from;
use crate::streams::service::StreamService;
use crate::topics::HubTopics;

/// Limits of one answer to `history`: messages and bytes.
pub(crate) const HISTORY_MAX: usize = 1_000;
pub(crate) const HISTORY_BYTES_MAX: usize = 1 << 20;

/// The retained messages of a topic that is not durable, which `read` reads from the server below.
///
/// # Errors
/// The topic has no history.
pub(crate) fn history_page(
    hub: &HubTopics,
    topic: &str,
    start: ReplayFrom,
    read: impl FnOnce(&str, ReplayFrom) -> Vec<(u64, Prepared)>,
) -> Result<Vec<HistoryItem>, Problem> {
    if !hub.has_history(topic) {
        return Err(problem(code::GONE, format!("topic {} has no history", brief(topic))));
    }
    let start = match start {
        ReplayFrom::Last(count) => ReplayFrom::Last(count.min(HISTORY_MAX)),
        other => other,
    };
    let mut left = HISTORY_BYTES_MAX;
    let messages = read(&MESSAGES.topic(topic), start).into_iter().take(HISTORY_MAX);
    // At least one message, however large.
    let messages = messages.enumerate().take_while(|(at, (_, message))| {
        let len = message.payload().len();
        let fits = *at == 0 || len <= left;
        left = left.saturating_sub(len);
        fits
    });
    Ok(messages.map(|(_, (_, message))| HistoryItem(message)).collect())
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
pub(crate) fn stored_history(
    store: &Arc<StreamService>,
    topic: &str,
    start: ReplayFrom,
) -> impl Future<Output = Result<String, Problem>> + Send + use<> {
    let (opening, store, topic) = (store.opening_of_topic(topic), Arc::clone(store), topic.to_owned());
    async move {
        if let Some(opening) = opening {
            opening.await?;
        }
        let epoch = store.topic_relay(&topic)?.map_or(0, |relay| relay.epoch());
        let fetched = follow::history(store, topic.clone(), start, HISTORY_MAX, HISTORY_BYTES_MAX).await?;
        Ok(stored_messages(&topic, epoch, &fetched))
    }
}

/// Returns messages of a durable topic, with commas between.
pub(crate) fn stored_messages(topic: &str, epoch: u64, fetched: &FetchedRecords) -> String {
    let FetchedRecords { from, end, read } = fetched;
    let mut messages = String::new();
    let batches = read.as_ref().map_or(&[][..], |read| &read.batches);
    let records = records_from(batches, *from).take_while(|record| record.offset < *end);
    for record in records.take(HISTORY_MAX) {
        if messages.len() >= HISTORY_BYTES_MAX {
            break;
        }
        if !messages.is_empty() {
            messages.push(',');
        }
        let position = Position { epoch, sequence: record.offset + 1 };
        messages.push_str(&content_of(&record).framed_text(topic, Some(position)));
    }
    messages
}
