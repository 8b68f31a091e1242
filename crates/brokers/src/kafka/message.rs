//! Records as Kafka messages.

use rdkafka::message::{BorrowedMessage, Headers, Message};
use sinews_stream::record::{Record, ValueKind};

/// Header with the type of a value, as in HTTP.
pub(super) const CONTENT_TYPE: &str = "content-type";
const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

/// Returns a message's record; `otherwise` is its kind if the producer has not declared one.
pub(super) fn record<'a>(message: &'a BorrowedMessage<'_>, otherwise: ValueKind) -> Record<'a> {
    Record {
        // Delivered messages have an offset.
        offset: u64::try_from(message.offset()).unwrap_or_default(),
        timestamp: time_of(message),
        key: message.key().unwrap_or_default(),
        value: message.payload().unwrap_or_default(),
        kind: match (message.payload(), message.key()) {
            // Kafka's own tombstone.
            (None, Some([_, ..])) => ValueKind::Tombstone,
            _ => kind_of(message, otherwise),
        },
    }
}

/// Returns the header value for a kind; bytes need none.
pub(super) fn content_type(kind: ValueKind) -> Option<&'static str> {
    match kind {
        ValueKind::Text => Some(TEXT),
        ValueKind::Json => Some(JSON),
        _ => None,
    }
}

/// Returns a value's kind according to its header, regardless of the producer; without a header, the configured kind.
fn kind_of(message: &BorrowedMessage<'_>, otherwise: ValueKind) -> ValueKind {
    let name = message.headers().and_then(|headers| {
        let found = headers.iter().find(|header| header.key.eq_ignore_ascii_case(CONTENT_TYPE));
        found.and_then(|header| header.value)
    });
    let Some(name) = name else { return otherwise };
    let name = name.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if name.eq_ignore_ascii_case(JSON.as_bytes()) {
        ValueKind::Json
    } else if name.len() > 5 && name[..5].eq_ignore_ascii_case(b"text/") {
        ValueKind::Text
    } else {
        ValueKind::Bytes
    }
}

/// Time when the message was created or received by the broker, as the topic is configured; in microseconds.
fn time_of(message: &BorrowedMessage<'_>) -> u64 {
    let millis = message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
    millis.unwrap_or_default().saturating_mul(1000)
}
