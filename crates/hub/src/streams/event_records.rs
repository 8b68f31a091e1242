//! Durable-topic records that are events from an app's server. Their key has the app's seal: other programs that write
//! to the store, and clients, cannot set the event fields that only the server sets.

use sinews_stream::record::Record;

use super::record_content::content_of;
use crate::model::MessageContent;
use crate::topics::HubTopics;

/// Key prefix for event records; the seal follows. No client can append a record with such a key to a durable topic.
pub(super) const EVENT_KEY: &[u8] = b"sinews-channel-event";

/// Returns the record key for an event with this seal.
pub(super) fn event_key(seal: &str) -> Vec<u8> {
    [EVENT_KEY, b":", seal.as_bytes()].concat()
}

/// Returns the content of a topic's record. It is an event from an app's server if an app key has sealed it.
pub(crate) fn sealed_content_of(record: &Record<'_>, topic: &str, hub: &HubTopics) -> MessageContent {
    let seal = || {
        let seal = record.key.strip_prefix(EVENT_KEY)?.strip_prefix(b":")?;
        std::str::from_utf8(seal).ok()
    };
    match (content_of(record), seal()) {
        (MessageContent::Json(bytes), Some(seal)) if hub.has_sealed(topic, &bytes, seal) => {
            MessageContent::Event(bytes)
        }
        (content, _) => content,
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
