//! Records as NATS messages.

use async_nats::header::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use async_nats::{HeaderValue, Message, jetstream};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use sinews_stream::broker::LastRecord;
use sinews_stream::record::{Record, ValueKind, deduplication_id};

/// Maximum bytes in a message's headers, without its key, and without the id for a record with an idempotency key.
pub(super) const HEADERS_BYTES: usize = 256;
/// Headers of a message.
const ID: &str = "Nats-Msg-Id";
const CONTENT_TYPE: &str = "Content-Type";
const KEY: &str = "Sinews-Key";
const TIME: &str = "Sinews-Time";
/// Marks a message without a value, which removes its key.
const TOMBSTONE: &str = "Sinews-Tombstone";
const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

pub(super) fn headers(record: &Record<'_>, id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ID, id);
    headers.insert(TIME, record.timestamp.to_string());
    if !record.key.is_empty() {
        headers.insert(KEY, BASE64.encode(deduplication_id(record.key)));
    }
    match record.kind {
        ValueKind::Text => headers.insert(CONTENT_TYPE, TEXT),
        ValueKind::Json => headers.insert(CONTENT_TYPE, JSON),
        ValueKind::Tombstone => headers.insert(TOMBSTONE, "true"),
        // Bytes need no header.
        _ => {}
    }
    headers
}

/// The id of a record with an idempotency key: the same on all nodes. Ids of other records begin with an inbox name.
pub(super) fn once_id(record: &Record<'_>) -> String {
    format!("once.{}", BASE64.encode(record.key))
}

/// Returns a message's key; empty if it has none.
pub(super) fn key_of(message: &Message) -> Vec<u8> {
    decoded_key(message.headers.as_ref())
}

/// The record of a message with this sequence and [`key`](key_of).
pub(super) fn record<'a>(message: &'a jetstream::Message, sequence: u64, key: &'a [u8]) -> Record<'a> {
    let sent: Option<u64> = header(message.headers.as_ref(), TIME).and_then(|time| time.parse().ok());
    Record {
        offset: sequence,
        timestamp: sent.unwrap_or_else(|| received_at(message)),
        key,
        value: &message.payload,
        kind: kind_of(message),
    }
}

/// Whether a stored message is this record. A message without a time may have been sent by another program.
pub(super) fn is_record(message: &StreamMessage, record: &LastRecord) -> bool {
    let sent = header(Some(&message.headers), TIME).and_then(|time| time.parse().ok());
    sent.is_none_or(|sent: u64| sent == record.timestamp)
        && decoded_key(Some(&message.headers)) == record.key
        && message.payload == record.value
}

fn kind_of(message: &Message) -> ValueKind {
    if message.payload.is_empty() && header(message.headers.as_ref(), TOMBSTONE).is_some() {
        return ValueKind::Tombstone;
    }
    match header(message.headers.as_ref(), CONTENT_TYPE) {
        Some(name) if name.starts_with("text/") => ValueKind::Text,
        Some(name) if name.split(';').next() == Some(JSON) => ValueKind::Json,
        _ => ValueKind::Bytes,
    }
}

fn decoded_key(headers: Option<&HeaderMap>) -> Vec<u8> {
    header(headers, KEY).and_then(|key| BASE64.decode(key).ok()).unwrap_or_default()
}

fn header<'a>(headers: Option<&'a HeaderMap>, name: &str) -> Option<&'a str> {
    headers?.get(name).map(HeaderValue::as_str)
}

/// Time when the server received the message, in microseconds since 1970.
fn received_at(message: &jetstream::Message) -> u64 {
    let nanos = message.info().map_or(0, |info| info.published.unix_timestamp_nanos());
    u64::try_from(nanos / 1000).unwrap_or_default()
}
