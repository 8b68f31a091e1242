//! Operations of keys.

use bytes::Bytes;
use redis::Value;
use sinews_store::{
    KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyOutcome, KeyUpdate, KeysWritten, Position,
    ReadKeys, StoreAnswer, StoreError, StoredKey, StoredKeys, TopicPart,
};

use super::RedisStore;
use super::decode::{Values, array, bytes, number, position, position_and_prev, stored_key, unexpected};
use super::names::Names;
use super::queue::{OperationReply, OperationRequest};
use super::script::ScriptName;
use super::{ONCE_WINDOW, check_size, milliseconds};

/// Expected bytes of a page of keys.
const PAGE_BYTES: usize = 64 << 10;
/// Maximum keys in a page.
const PAGE_KEYS: u32 = 1_000;

impl RedisStore {
    pub(super) fn write(&self, writes: KeyCommands) -> StoreAnswer<KeysWritten> {
        let sizes = writes.writes.iter().filter_map(|write| write.value.as_ref());
        if let Some(error) = sizes.filter_map(|value| check_size(value.len()).err()).next() {
            return StoreAnswer::ready(Err(error));
        }
        let (names, topic) = (&self.shared.names, &*writes.topic);
        let request = topic_keys(OperationRequest::new(ScriptName::Keys, "write", topic), names, topic)
            .text(topic.to_owned())
            .number(writes.limits.keys)
            .number(writes.limits.bytes)
            .number(writes.writes.len() as u64)
            .wait_for_replica(writes.wait_for_replica);
        let request =
            writes.writes.into_iter().fold(request, |request, write| add_write(request, names, topic, write));
        self.shared.queue.submit(request, |reply| {
            let is_replicated = reply.is_replicated;
            written(reply, is_replicated).ok_or_else(unexpected)
        })
    }

    pub(super) fn read_page(&self, read: &ReadKeys) -> StoreAnswer<StoredKeys> {
        let part = TopicPart::keys(&read.topic);
        // `server cursor`
        let cursor = read.cursor.as_deref().and_then(|cursor| std::str::from_utf8(cursor).ok());
        let Some((server, cursor)) = cursor.unwrap_or(" 0").split_once(' ') else {
            return StoreAnswer::ready(Err(StoreError::Rejected("the cursor is not of this store".into())));
        };
        let request = OperationRequest::new(ScriptName::Keys, "read", &read.topic)
            .key(self.shared.names.meta(&part))
            .key(self.shared.names.channel(&part))
            .text(server.to_owned())
            .text(cursor.to_owned())
            .number(read.limit.clamp(1, PAGE_KEYS).into())
            .answers(PAGE_BYTES);
        self.shared.queue.submit(request, |reply| page(reply).ok_or_else(unexpected))
    }

    pub(super) fn read_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges> {
        let request =
            topic_keys(OperationRequest::new(ScriptName::Keys, "changes", topic), &self.shared.names, topic)
                .number(after.epoch)
                .number(after.sequence)
                .answers(PAGE_BYTES);
        let decode = move |reply| changes(reply, after.sequence).ok_or_else(unexpected);
        self.shared.queue.submit(request, decode)
    }

    pub(super) fn clear_keys(&self, topic: &str) -> StoreAnswer<()> {
        let request =
            topic_keys(OperationRequest::new(ScriptName::Keys, "clear", topic), &self.shared.names, topic);
        self.shared.queue.submit(request.text(topic.to_owned()), |_| Ok(()))
    }
}

fn topic_keys(request: OperationRequest, names: &Names, topic: &str) -> OperationRequest {
    let parts = ["keymeta", "keys", "version", "expiry", "removed"];
    let request = parts.into_iter().fold(request, |request, part| request.key(names.key(part, topic)));
    request.key(names.due(super::names::partition(topic)))
}

fn add_write(request: OperationRequest, names: &Names, topic: &str, write: KeyCommand) -> OperationRequest {
    let kind = if write.value.is_some() { "set" } else { "remove" };
    let (condition, version, epoch) = match write.condition {
        None => ("", 0, 0),
        Some(KeyCondition::IfNew) => ("new", 0, 0),
        Some(KeyCondition::IfExists) => ("exists", 0, 0),
        Some(KeyCondition::Version(version)) => ("version", version, 0),
        Some(KeyCondition::At(at)) => ("at", at.sequence, at.epoch),
    };
    let request = request
        .text(write.key.as_bytes().to_vec())
        .text(kind)
        .text(write.value.unwrap_or_default())
        .number(write.ttl.map_or(0, milliseconds))
        .text(condition)
        .number(version)
        .number(epoch);
    match write.once {
        Some(id) => request.number(milliseconds(ONCE_WINDOW)).key(names.write_once(topic, &write.key, &id)),
        None => request.number(0),
    }
}

fn written(reply: OperationReply, replicated: bool) -> Option<KeysWritten> {
    let mut values = Values::new(reply.values);
    values.number()?;
    let (position, prev) = position_and_prev(&values.bytes()?)?;
    let outcomes = values.array()?.into_iter().map(outcome).collect::<Option<_>>()?;
    Some(KeysWritten { position, prev, outcomes, replicated })
}

fn outcome(value: Value) -> Option<KeyOutcome> {
    let mut values = Values::new(array(value)?);
    let kind = values.bytes()?;
    Some(match &kind[..] {
        b"changed" => KeyOutcome::Changed(values.number()?),
        b"unchanged" => KeyOutcome::Unchanged,
        b"repeated" => KeyOutcome::Repeated(number(&values.bytes()?)),
        b"exists" => KeyOutcome::Exists(values.number()?),
        b"missing" => KeyOutcome::Missing,
        b"other" => KeyOutcome::OtherVersion(values.number()?),
        b"keys" => KeyOutcome::TooManyKeys,
        b"bytes" => KeyOutcome::TopicFull,
        _ => return None,
    })
}

fn page(reply: OperationReply) -> Option<StoredKeys> {
    let mut values = Values::new(reply.values);
    if values.number()? > 0 {
        return Some(StoredKeys::default());
    }
    let position = Some(position(&values.bytes()?)?);
    let (now, server, cursor) = (values.number()?, values.bytes()?, values.bytes()?);
    let cursor = (cursor != b"0").then(|| Bytes::from([&server[..], b" ", &cursor].concat()));
    let mut found = values.array()?.into_iter();
    let mut keys = Vec::with_capacity(found.len() / 2);
    while let (Some(key), Some(stored)) = (found.next(), found.next()) {
        let change = stored_key(bytes(key)?, bytes(stored)?, now)?;
        // An expired key has no value.
        if change.value.is_some() {
            keys.push(change);
        }
    }
    Some(StoredKeys { position, keys, cursor })
}

fn changes(reply: OperationReply, prev: u64) -> Option<KeyChanges> {
    let mut values = Values::new(reply.values);
    match values.number()? {
        0 => {}
        // No topic, and no position.
        2 => {
            let update =
                KeyUpdate { position: Position::default(), prev, changes: Vec::new(), skipped: false };
            return Some(KeyChanges::Since(update));
        }
        _ => return Some(KeyChanges::Unknown),
    }
    let (position, now) = (position(&values.bytes()?)?, values.number()?);
    let skipped = values.number()? > 0;
    let (mut changed, stored) = (values.array()?.into_iter(), values.array()?);
    let mut changes = Vec::with_capacity(stored.len());
    for stored in stored {
        let (key, version) = (bytes(changed.next()?)?, number(&bytes(changed.next()?)?)?);
        changes.push(match stored {
            Value::Nil => {
                StoredKey { key: String::from_utf8(key).ok()?.into(), version, value: None, ttl: None }
            }
            stored => stored_key(key, bytes(stored)?, now)?,
        });
    }
    Some(KeyChanges::Since(KeyUpdate { position, prev, changes, skipped }))
}
