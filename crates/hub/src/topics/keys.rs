//! Topic keys as protocol messages.
//!
//! A value is stored as the field of a message that contains it, `"data":…` or `"b64":…`: it is encoded once, by its
//! writer.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::json;
use sinews_server::{
    KeyChange, KeyCondition, KeyError, KeyLogError, KeyPage, KeyWrite, KeyedUpdate, Position, Prepared,
};

use crate::model::MessageContent;
use crate::model::json_list::{JsonList, JsonListItem};
use crate::model::problem::{Problem, code, problem};

impl MessageContent {
    /// A key value's stored form.
    pub(crate) fn into_key_value(self) -> Bytes {
        self.field().into()
    }
}

/// Returns the key value that the hub's clients receive as this JSON, for a program that writes keys itself
/// ([`Publisher::write_key`](sinews_server::Publisher::write_key)); `None` if the text is not JSON. The hub's clients
/// cannot read any other value.
///
/// ```
/// use sinews_hub::key_value_of_json;
/// use sinews_server::KeyWrite;
///
/// let value = key_value_of_json("{\"x\":1}").expect("JSON");
/// let write = KeyWrite::set("anna", value);
/// assert_eq!(key_value_of_json("{x:1}"), None);
/// # drop(write);
/// ```
#[must_use]
pub fn key_value_of_json(json: &str) -> Option<Bytes> {
    let data = serde_json::from_str(json).ok()?;
    Some(MessageContent::json(data).ok()?.into_key_value())
}

/// The written value's size, as JSON.
pub(crate) fn value_len(write: &KeyWrite) -> usize {
    let field = write.value().map_or(&[][..], |value| &value[..]);
    let name = field.iter().position(|byte| *byte == b':').map_or(0, |at| at + 1);
    field.len() - name
}

/// Sets a write's condition from a client's fields: a version alone, or with its epoch.
///
/// # Errors
/// The fields that exclude each other.
pub(crate) fn with_condition(
    write: KeyWrite,
    if_new: Option<bool>,
    if_exists: Option<bool>,
    version: Option<u64>,
    epoch: Option<u64>,
) -> Result<KeyWrite, &'static str> {
    let condition = match (if_new == Some(true), if_exists == Some(true), version, epoch) {
        (false, false, None, None) => return Ok(write),
        (true, false, None, None) => KeyCondition::IfNew,
        (false, true, None, None) => KeyCondition::IfExists,
        (false, false, Some(version), None) => KeyCondition::Version(version),
        (false, false, Some(sequence), Some(epoch)) => KeyCondition::At(Position { epoch, sequence }),
        _ => return Err("one of if_new, if_exists and version, which may have an epoch"),
    };
    Ok(write.with_condition(condition))
}

/// Encodes an update for subscribers.
pub(crate) fn encode(update: &KeyedUpdate<'_>) -> Prepared {
    let mut text = String::with_capacity(128 + update.changes().iter().map(size).sum::<usize>());
    let Position { epoch, sequence } = update.position();
    let topic = json!(update.topic());
    if update.is_unavailable() {
        let error = format!("the keys of {} exceed limits.max_keyed_memory of this node", update.topic());
        let error =
            json!({ "op": "error", "code": code::STORE, "error": error, "topic": topic, "keys": true });
        return Prepared::text(error.to_string());
    }
    // Writing to a string never fails.
    let _ = write!(text, "{{\"op\":\"keys\",\"topic\":{topic},\"epoch\":{epoch},\"seq\":{sequence}");
    if let Some(part) = update.part() {
        let _ = write!(text, ",\"part\":{part},\"more\":{}", !update.is_last_part());
    }
    let set = update.changes().iter().filter(|change| change.value().is_some());
    write_list(&mut text, "set", set, write_entry);
    let deleted = update.changes().iter().filter(|change| change.value().is_none());
    write_list(&mut text, "deleted", deleted, |text, change| {
        let _ = write!(text, "{}", json!(change.key()));
    });
    text.push('}');
    Prepared::text(text)
}

fn size(change: &KeyChange) -> usize {
    48 + change.key().len() + change.value().map_or(0, Bytes::len)
}

/// Writes a list, unless it is empty.
fn write_list<'a>(
    text: &mut String,
    name: &str,
    changes: impl Iterator<Item = &'a KeyChange>,
    write_one: impl Fn(&mut String, &KeyChange),
) {
    let mut changes = changes.peekable();
    if changes.peek().is_none() {
        return;
    }
    let _ = write!(text, ",\"{name}\":[");
    for (at, change) in changes.enumerate() {
        if at > 0 {
            text.push(',');
        }
        write_one(text, change);
    }
    text.push(']');
}

/// Writes a key with its version and value.
fn write_entry(text: &mut impl std::fmt::Write, change: &KeyChange) {
    let _ = write!(text, "{{\"key\":{},\"version\":{}", json!(change.key()), change.version());
    if let Some(value) = change.value().and_then(|value| std::str::from_utf8(value).ok()) {
        let _ = write!(text, ",{value}");
    }
    let _ = text.write_char('}');
}

impl JsonListItem for KeyChange {
    fn write(&self, out: &mut impl std::fmt::Write) {
        write_entry(out, self);
    }

    fn memory(&self) -> usize {
        size(self)
    }
}

/// Returns a key page as JSON.
pub(crate) fn page_json(topic: &str, page: KeyPage) -> JsonList<KeyChange> {
    let Position { epoch, sequence } = page.position;
    let head = format!("{{\"topic\":{},\"epoch\":{epoch},\"seq\":{sequence},\"keys\":[", json!(topic));
    let tail = if page.more { "],\"more\":true}\n" } else { "],\"more\":false}\n" };
    JsonList::new(head, page.keys, tail)
}

/// Encodes a key alone.
pub(crate) fn key_json(topic: &str, change: &KeyChange, position: Position) -> String {
    let mut entry = String::new();
    write_entry(&mut entry, change);
    format!("{{\"topic\":{},\"epoch\":{},{}\n", json!(topic), position.epoch, &entry[1..])
}

pub(crate) fn key_problem(error: KeyError) -> Problem {
    let code = match error {
        KeyError::Exists(_) | KeyError::Missing | KeyError::OtherVersion(_) => code::CONDITION,
        KeyError::ValueTooLarge { .. } => code::TOO_LARGE,
        KeyError::TooManyKeys(_)
        | KeyError::TopicFull(_)
        | KeyError::ServerFull(_)
        | KeyError::ClientFull(_)
        | KeyError::TooManySubscriptions => code::TOO_MANY,
        KeyError::HandedOver | KeyError::NotOwner => code::STORE,
        KeyError::Log(KeyLogError::TooLarge) => code::TOO_LARGE,
        KeyError::Log(_) => code::STORE,
        _ => code::TOPIC,
    };
    let text = match error {
        KeyError::ServerFull(max) => {
            format!("the server has no memory for more keys (limits.max_keyed_memory, {max} bytes)")
        }
        KeyError::ClientFull(max) => {
            let limit = format!("limits.max_keyed_memory_per_client, {max} bytes");
            format!("the keys of this client would exceed its share of memory ({limit})")
        }
        error => error.to_string(),
    };
    problem(code, text)
}
