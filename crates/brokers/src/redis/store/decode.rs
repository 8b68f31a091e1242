//! Reads the fields of entries, messages and answers. SpacedFields that a client's bytes could imitate come last.

use std::sync::Arc;

use bytes::Bytes;
use redis::Value;
use sinews_store::{KeyUpdate, LogEntry, Position, StoreError, StoredKey};

use std::time::{Duration, Instant};

/// Takes fields from the front of bytes.
pub(super) struct SpacedFields(Bytes);

impl SpacedFields {
    pub(super) fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The text before the next space.
    fn text(&mut self) -> Option<Bytes> {
        let end = self.0.iter().position(|byte| *byte == b' ')?;
        let text = self.0.split_to(end);
        let _ = self.0.split_to(1);
        Some(text)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        number(&self.text()?)
    }

    fn bytes(&mut self, count: usize) -> Option<Bytes> {
        (count <= self.0.len()).then(|| self.0.split_to(count))
    }

    fn key(&mut self, count: usize) -> Option<Arc<str>> {
        Some(std::str::from_utf8(&self.bytes(count)?).ok()?.into())
    }

    pub(super) fn rest(self) -> Bytes {
        self.0
    }
}

pub(super) fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads `sequence prev time payload`.
pub(super) fn entry(mut fields: SpacedFields) -> Option<LogEntry> {
    let (sequence, prev, time) = (fields.number()?, fields.number()?, fields.number()?);
    Some(LogEntry { sequence, prev, time, payload: fields.rest() })
}

/// Reads a message of a log: `epoch` and an entry.
pub(super) fn appended(message: Bytes) -> Option<(u64, LogEntry)> {
    let mut fields = SpacedFields::new(message);
    Some((fields.number()?, entry(fields)?))
}

/// Reads a message for all logs of a partition: the number of bytes of a log's name, the name, and a message of a log.
pub(super) fn appended_to(message: Bytes) -> Option<(Arc<str>, u64, LogEntry)> {
    let mut fields = SpacedFields::new(message);
    let bytes = usize::try_from(fields.number()?).ok()?;
    let log = fields.key(bytes)?;
    Some((log, fields.number()?, entry(fields)?))
}

/// Reads a message of keys: `epoch top prev skipped`, and for each change `version expiry key-bytes value-bytes`, the key and the
/// value; a `-` in the place of `value-bytes` is a removal.
pub(super) fn keys_changed(message: Bytes, now: u64) -> Option<KeyUpdate> {
    let mut fields = SpacedFields::new(message);
    let position = Position { epoch: fields.number()?, sequence: fields.number()? };
    let (prev, skipped, mut changes) = (fields.number()?, fields.number()? > 0, Vec::new());
    while !fields.0.is_empty() {
        let (version, expiry) = (fields.number()?, expiry(fields.number()?, now));
        let (key_bytes, value_bytes) = (usize::try_from(fields.number()?).ok()?, fields.text()?);
        let key = fields.key(key_bytes)?;
        let value = match &value_bytes[..] {
            b"-" => None,
            count => Some(fields.bytes(usize::try_from(number(count)?).ok()?)?),
        };
        changes.push(StoredKey { key, version, value, expiry });
    }
    Some(KeyUpdate { position, prev, changes, skipped })
}

/// Converts an expiry by the server's clock, which shows `now`.
fn expiry(expiry: u64, now: u64) -> Option<Instant> {
    (expiry > 0).then(|| Instant::now() + Duration::from_millis(expiry.saturating_sub(now)))
}

/// Reads a stored key: `version expiry value`. A key that had expired when the script read it, at `read`, has no value:
/// one that expires later has it, since an operation behind the script may have found it. The server's clock shows `now`.
pub(super) fn stored_key(key: Vec<u8>, stored: Vec<u8>, read: u64, now: u64) -> Option<StoredKey> {
    let mut fields = SpacedFields::new(stored);
    let (version, expires) = (fields.number()?, fields.number()?);
    let is_expired = expires > 0 && expires <= read;
    let key = String::from_utf8(key).ok()?.into();
    let value = (!is_expired).then(|| fields.rest());
    Some(StoredKey { key, version, value, expiry: expiry(expires, now) })
}

/// Reads `epoch sequence`, and perhaps more fields.
pub(super) fn position(text: &[u8]) -> Option<Position> {
    let mut fields = text.split(|byte| *byte == b' ').map(number);
    Some(Position { epoch: fields.next()??, sequence: fields.next()?? })
}

/// Reads `epoch sequence prev`.
pub(super) fn position_and_prev(text: &[u8]) -> Option<(Position, u64)> {
    let prev = text.split(|byte| *byte == b' ').nth(2).and_then(number)?;
    Some((position(text)?, prev))
}

/// The values of an answer, in their order.
pub(super) struct Values(std::vec::IntoIter<Value>);

impl Values {
    pub(super) fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        match self.0.next()? {
            Value::Int(number) => number.try_into().ok(),
            _ => None,
        }
    }

    pub(super) fn bytes(&mut self) -> Option<Vec<u8>> {
        bytes(self.0.next()?)
    }

    pub(super) fn array(&mut self) -> Option<Vec<Value>> {
        array(self.0.next()?)
    }
}

pub(super) fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

pub(super) fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

/// The error of an answer that the script does not give.
pub(super) fn unexpected() -> StoreError {
    StoreError::Unknown("Redis gave an unexpected answer".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_in_payloads_are_payload() {
        let (epoch, entry) = appended(Bytes::from_static(b"7 12 11 99 8 13 12 99 x")).expect("a message");
        assert_eq!((epoch, entry.sequence, entry.prev, entry.time), (7, 12, 11, 99));
        assert_eq!(&entry.payload[..], b"8 13 12 99 x");
        let begun = Instant::now();
        let update = keys_changed(Bytes::from_static(b"7 12 10 1 11 0 1 5 a6 0 112 1050 3 - b 1"), 1_000)
            .expect("a message");
        assert_eq!((update.position, update.prev), (Position { epoch: 7, sequence: 12 }, 10));
        assert!(update.skipped);
        let values: Vec<_> =
            update.changes.iter().map(|change| (&*change.key, change.value.as_deref())).collect();
        assert_eq!(values, [("a", Some(&b"6 0 1"[..])), ("b 1", None)]);
        let left = update.changes[1].expiry.map(|expiry| expiry.saturating_duration_since(begun));
        assert!(left.is_some_and(|left| left >= Duration::from_millis(50) && left < Duration::from_secs(10)));
    }

    #[test]
    fn incomplete_messages_are_rejected() {
        for message in ["", "7", "7 1 ", "7 x 1 2 ", "7 1 0", "-7 1 0 3 a"] {
            assert_eq!(appended(Bytes::from_static(message.as_bytes())), None, "{message}");
        }
        for message in [
            "7 1",
            "7 1 0 0 1 0 1 9 a",
            "7 1 0 0 1 0 1 - ",
            "7 1 0 0 1 0 99999999999 - a",
            "7 1 0 0 1 0 1 1 \u{e4}",
        ] {
            assert_eq!(keys_changed(Bytes::from_static(message.as_bytes()), 0), None, "{message}");
        }
    }
}
