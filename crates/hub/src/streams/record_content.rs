//! The content of durable-topic records.

use bytes::Bytes;
use sinews_stream::record::{Record, ValueKind};

use crate::model::MessageContent;
use crate::model::json::is_deliverable;

/// Returns a record's content for protocols that know no events. Its declared kind was not checked.
pub(crate) fn content_of(record: &Record<'_>) -> MessageContent {
    let bytes = Bytes::copy_from_slice(record.value);
    match (record.kind, std::str::from_utf8(record.value)) {
        (ValueKind::Text, Ok(_)) => MessageContent::Text(bytes),
        (ValueKind::Json, Ok(text)) if is_deliverable(text) => MessageContent::Json(bytes),
        _ => MessageContent::Binary(bytes),
    }
}
