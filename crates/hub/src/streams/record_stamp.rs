//! The sender and the time in durable-topic records.
//!
//! A record's key has the sender: the streams reject such keys of clients ([`SENDER_PREFIX`]). A program that writes to
//! the broker itself can write them.

use std::sync::Arc;

use sinews_server::Position;
use sinews_stream::record::{IDEMPOTENCY_PREFIX, Record, SENDER_PREFIX, sender};

use crate::model::stamp::{MessageStamp, VerifiedSender};

/// The sender and the time of a record.
pub(crate) struct RecordStamp {
    pub(crate) sender: Option<Arc<VerifiedSender>>,
    /// Milliseconds since 1970, if the topic's messages have it.
    pub(crate) time: Option<u64>,
}

impl RecordStamp {
    pub(crate) fn new(record: &Record<'_>, has_timestamps: bool) -> Self {
        let sender = sender(record.key).and_then(VerifiedSender::read_json).map(Arc::new);
        Self { sender, time: has_timestamps.then_some(record.timestamp / 1_000) }
    }

    /// Returns the fields of the record's protocol message.
    pub(crate) fn at(&self, position: Position) -> MessageStamp<'_> {
        MessageStamp { position: Some(position), time: self.time, sender: self.sender.as_deref() }
    }
}

/// Returns the key for a publication's record. An idempotency key of a client has no space.
pub(super) fn record_key(idempotency_key: Option<&str>, sender: Option<&VerifiedSender>) -> Vec<u8> {
    let once = idempotency_key.unwrap_or_default().as_bytes();
    match sender {
        Some(sender) => [SENDER_PREFIX, once, b" ", sender.to_json().as_bytes()].concat(),
        None if idempotency_key.is_some() => [IDEMPOTENCY_PREFIX, once].concat(),
        None => Vec::new(),
    }
}
