//! Key records: the record's key is the key; its value is a JSON object with the message field that contains the value,
//! and what a restart needs besides.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::LoggedChange;
use sinews_stream::record::{RecordBuilder, RecordError, Records, ValueKind};

use crate::model::json::present;
use crate::streams::request::now;

/// A value as stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredValue {
    pub(super) value: Bytes,
    /// Milliseconds since 1970.
    pub(super) expires: Option<u64>,
    /// The client that its memory counts toward.
    pub(super) client: Option<NonZeroU64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ValueEnvelope<'a> {
    expires: Option<u64>,
    /// The client whose memory share the value counts toward.
    client: Option<NonZeroU64>,
    /// The write's idempotency key.
    #[serde(borrow)]
    once: Option<Cow<'a, str>>,
    /// The key is removed: the tombstone, which has no value, is the next record.
    removed: bool,
    // `null` is a valid value.
    #[serde(borrow, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    b64: Option<Cow<'a, str>>,
    /// A value that no hub client has written.
    #[serde(borrow)]
    raw: Option<Cow<'a, str>>,
}

/// The idempotency key of a stored write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredWriteKey {
    pub(super) once: String,
    /// Of a removal: the tombstone is the next record.
    pub(super) is_removal: bool,
}

impl StoredWriteKey {
    /// Returns the mark of a record's value, if it has one.
    pub(super) fn from_bytes(value: &[u8]) -> Option<Self> {
        let ValueEnvelope { once, removed, .. } = serde_json::from_slice(value).ok()?;
        Some(Self { once: once?.into_owned(), is_removal: removed })
    }
}

/// Encodes a change as a record; a removal is a tombstone. The last record has the change's offset: a removal with an
/// idempotency key has a record before it.
pub(in crate::streams) fn encode(change: &LoggedChange<'_>) -> Result<Records, RecordError> {
    let mut builder = RecordBuilder::new();
    let key = change.key.as_bytes();
    match change.value {
        Some(value) => {
            let envelope = envelope(value, change);
            builder.push(now(), key, envelope.as_bytes(), ValueKind::Json)?;
        }
        None => {
            if let Some(name) = change.idempotency_key {
                let mark = format!("{{\"once\":{},\"removed\":true}}", json!(name));
                builder.push(now(), key, mark.as_bytes(), ValueKind::Json)?;
            }
            builder.push(now(), key, b"", ValueKind::Tombstone)?;
        }
    }
    builder.finish().ok_or(RecordError::Empty)
}

fn envelope(value: &Bytes, change: &LoggedChange<'_>) -> String {
    let mut text = String::with_capacity(value.len() + 64);
    text.push('{');
    if let Some(expires) = change.expires {
        let since = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        text.push_str(&format!("\"expires\":{},", since.as_millis()));
    }
    if let Some(client) = change.client {
        text.push_str(&format!("\"client\":{client},"));
    }
    if let Some(name) = change.idempotency_key {
        text.push_str(&format!("\"once\":{},", json!(name)));
    }
    match std::str::from_utf8(value) {
        Ok(field) if is_field(field) => text.push_str(field),
        _ => text.push_str(&format!("\"raw\":\"{}\"", STANDARD.encode(value))),
    }
    text.push('}');
    text
}

/// Returns whether a stored value is one field of a message, and read back unchanged.
fn is_field(field: &str) -> bool {
    let stored = decode(format!("{{{field}}}").as_bytes());
    stored.is_some_and(|stored| stored.value == field.as_bytes() && stored.expires.is_none())
}

/// Decodes a record's value; `None` if it is not a key's value.
pub(super) fn decode(value: &[u8]) -> Option<StoredValue> {
    let ValueEnvelope { expires, client, data, b64, raw, .. } = serde_json::from_slice(value).ok()?;
    let value = match (data, b64, raw) {
        (Some(data), None, None) => format!("\"data\":{}", data.get()).into(),
        (None, Some(b64), None) => format!("\"b64\":\"{b64}\"").into(),
        (None, None, Some(raw)) => STANDARD.decode(raw.as_bytes()).ok()?.into(),
        _ => return None,
    };
    Some(StoredValue { value, expires, client })
}

/// Time until a key expires.
pub(super) fn time_left(expires: u64) -> Duration {
    Duration::from_millis(expires.saturating_sub(now() / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(value: &'static str, expires: Option<u64>, client: Option<NonZeroU64>) -> StoredValue {
        let value = Bytes::from_static(value.as_bytes());
        let at = expires.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        let change = LoggedChange::set("a.b", &value).with_expiry(at).with_client(client);
        let records = encode(&change).unwrap();
        let record = records.iter().next().unwrap().unwrap();
        assert_eq!((record.key, record.kind), (&b"a.b"[..], ValueKind::Json));
        decode(record.value).unwrap()
    }

    #[test]
    fn values_are_read_back_with_their_expiry_and_client() {
        for value in [
            "\"data\":null",
            "\"data\":{\"x\":[1,\"\\u0000}\"]}",
            "\"data\":\"text\"",
            "\"b64\":\"AAEC\"",
            "no field of a message",
            "\"data\":1,\"expires\":5",
            "\"data\":1,\"client\":5",
            "\"data\":1}{\"a\":2",
            "",
        ] {
            for expires in [None, Some(1_780_000_000_123)] {
                let client = expires.and(NonZeroU64::new(u64::MAX));
                let stored = round_trip(value, expires, client);
                let expected = StoredValue { value: value.into(), expires, client };
                assert_eq!(stored, expected, "{value}");
            }
        }
    }

    #[test]
    fn idempotency_keys_are_read_back() {
        let value = Bytes::from_static(b"\"data\":1");
        for name in ["a", "\"\\\n", "ä"] {
            let set = encode(&LoggedChange::set("a", &value).with_idempotency_key(Some(name))).unwrap();
            let record = set.iter().next().unwrap().unwrap();
            assert_eq!(
                StoredWriteKey::from_bytes(record.value),
                Some(StoredWriteKey { once: name.to_owned(), is_removal: false })
            );
            assert_eq!(decode(record.value).unwrap().value, value);
            let removal = encode(&LoggedChange::removal("a").with_idempotency_key(Some(name))).unwrap();
            let records: Vec<_> = removal.iter().map(Result::unwrap).collect();
            assert_eq!(
                StoredWriteKey::from_bytes(records[0].value),
                Some(StoredWriteKey { once: name.to_owned(), is_removal: true })
            );
            assert_eq!((records[1].kind, records.len()), (ValueKind::Tombstone, 2));
        }
        // A value that a client has written is no mark.
        for value in ["\"data\":1,\"once\":\"a\"", "\"data\":1,\"removed\":true"] {
            let value = Bytes::from(value);
            let records = encode(&LoggedChange::set("a", &value)).unwrap();
            let record = records.iter().next().unwrap().unwrap();
            assert_eq!(StoredWriteKey::from_bytes(record.value), None);
            assert_eq!(decode(record.value).unwrap().value, value);
        }
    }

    #[test]
    fn removal_is_a_tombstone() {
        let records = encode(&LoggedChange::removal("a")).unwrap();
        let record = records.iter().next().unwrap().unwrap();
        assert_eq!((record.key, record.value, record.kind), (&b"a"[..], &b""[..], ValueKind::Tombstone));
    }

    #[test]
    fn other_records_are_rejected() {
        for value in ["", "{}", "1", "{\"data\":1,\"b64\":\"\"}", "{\"raw\":\"?\"}"] {
            assert_eq!(decode(value.as_bytes()), None, "{value}");
        }
    }
}
