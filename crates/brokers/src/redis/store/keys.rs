//! Operations of keys.

use bytes::Bytes;
use redis::Value;
use sinews_store::{
    KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyLimits, KeyOutcome, KeyUpdate, KeysWritten,
    Position, ReadKeys, StoreAnswer, StoreError, StoredKey, StoredKeys,
};

use super::RedisStore;
use super::decode::{Values, bytes, number, position, position_and_prev, stored_key, unexpected};
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
        self.shared
            .submit(write_request(&self.shared.names, writes), |reply| written(reply).ok_or_else(unexpected))
    }

    pub(super) fn read_page(&self, read: &ReadKeys) -> StoreAnswer<StoredKeys> {
        // `server cursor`
        let cursor = read.cursor.as_deref().and_then(|cursor| std::str::from_utf8(cursor).ok());
        let Some((server, cursor)) = cursor.unwrap_or(" 0").split_once(' ') else {
            return StoreAnswer::ready(Err(StoreError::Rejected("the cursor is not of this store".into())));
        };
        let request = topic_keys("read", &self.shared.names, &read.topic)
            .text(server.to_owned())
            .text(cursor.to_owned())
            .number(read.limit.clamp(1, PAGE_KEYS).into())
            .answers(PAGE_BYTES);
        self.shared.submit(request, |reply| page(reply).ok_or_else(unexpected))
    }

    pub(super) fn read_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges> {
        let request = topic_keys("changes", &self.shared.names, topic)
            .number(after.epoch)
            .number(after.sequence)
            .answers(PAGE_BYTES);
        let decode = move |reply| changes(reply, after.sequence).ok_or_else(unexpected);
        self.shared.submit(request, decode)
    }

    pub(super) fn clear_keys(&self, topic: &str) -> StoreAnswer<()> {
        self.shared.submit(topic_keys("clear", &self.shared.names, topic), |_| Ok(()))
    }
}

pub(super) fn write_request(names: &Names, writes: KeyCommands) -> OperationRequest {
    let topic = &*writes.topic;
    let KeyLimits { keys, bytes } = writes.limits;
    let request =
        topic_keys("write", names, topic).text(format!("{keys} {bytes} {}", writes.writes.len())).writes();
    writes.writes.into_iter().fold(request, |request, write| add_write(request, names, topic, write))
}

fn topic_keys(operation: &'static str, names: &Names, topic: &str) -> OperationRequest {
    let request = OperationRequest::new(ScriptName::Keys, operation, topic);
    request.key(names.key("keys", topic)).text(topic.to_owned())
}

fn add_write(request: OperationRequest, names: &Names, topic: &str, write: KeyCommand) -> OperationRequest {
    let options = options(&write);
    let request =
        request.text(write.key.as_bytes().to_vec()).text(write.value.unwrap_or_default()).text(options);
    match write.once {
        Some(id) => request.key(names.write_once(topic, &write.key, &id)),
        None => request,
    }
}

/// `kind ttl condition version epoch once-window`; empty for most writes.
fn options(write: &KeyCommand) -> String {
    let (condition, version, epoch) = match write.condition {
        None if write.value.is_some() && write.ttl.is_none() && write.once.is_none() => return String::new(),
        None => ("", 0, 0),
        Some(KeyCondition::IfNew) => ("new", 0, 0),
        Some(KeyCondition::IfExists) => ("exists", 0, 0),
        Some(KeyCondition::Version(version)) => ("version", version, 0),
        Some(KeyCondition::At(at)) => ("at", at.sequence, at.epoch),
    };
    let kind = if write.value.is_some() { "set" } else { "remove" };
    let ttl = write.ttl.map_or(0, milliseconds);
    let window = if write.once.is_some() { milliseconds(ONCE_WINDOW).to_string() } else { String::new() };
    format!("{kind} {ttl} {condition} {version} {epoch} {window}")
}

/// Reads `epoch sequence prev` and the outcomes.
fn written(reply: OperationReply) -> Option<KeysWritten> {
    let mut values = Values::new(reply.values);
    values.number()?;
    let text = values.bytes()?;
    let (position, prev) = position_and_prev(&text)?;
    let outcomes = text.split(|byte| *byte == b' ').skip(3).map(outcome).collect::<Option<_>>()?;
    Some(KeysWritten { position, prev, outcomes })
}

fn outcome(text: &[u8]) -> Option<KeyOutcome> {
    let (kind, version) = text.split_first()?;
    let version = number(version);
    Some(match kind {
        b'c' => KeyOutcome::Changed(version?),
        b'u' => KeyOutcome::Unchanged,
        b'r' => KeyOutcome::Repeated(version),
        b'e' => KeyOutcome::Exists(version?),
        b'm' => KeyOutcome::Missing,
        b'o' => KeyOutcome::OtherVersion(version?),
        b'k' => KeyOutcome::TooManyKeys,
        b'b' => KeyOutcome::TopicFull,
        _ => return None,
    })
}

fn page(reply: OperationReply) -> Option<StoredKeys> {
    let (mut values, estimate) = (Values::new(reply.values), reply.now);
    if values.number()? > 0 {
        return Some(StoredKeys::default());
    }
    let position = Some(position(&values.bytes()?)?);
    let (read, server, cursor) = (values.number()?, values.bytes()?, values.bytes()?);
    let cursor = (cursor != b"0").then(|| Bytes::from([&server[..], b" ", &cursor].concat()));
    let mut found = values.array()?.into_iter();
    let mut keys = Vec::with_capacity(found.len() / 2);
    while let (Some(key), Some(stored)) = (found.next(), found.next()) {
        let change = stored_key(bytes(key)?, bytes(stored)?, read, read.max(estimate))?;
        // An expired key has no value.
        if change.value.is_some() {
            keys.push(change);
        }
    }
    Some(StoredKeys { position, keys, cursor })
}

fn changes(reply: OperationReply, prev: u64) -> Option<KeyChanges> {
    let (mut values, estimate) = (Values::new(reply.values), reply.now);
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
    let (position, read) = (position(&values.bytes()?)?, values.number()?);
    let skipped = values.number()? > 0;
    let (mut changed, stored) = (values.array()?.into_iter(), values.array()?);
    let mut changes = Vec::with_capacity(stored.len());
    for stored in stored {
        let (key, version) = (bytes(changed.next()?)?, number(&bytes(changed.next()?)?)?);
        changes.push(match stored {
            Value::Nil => {
                StoredKey { key: String::from_utf8(key).ok()?.into(), version, value: None, expiry: None }
            }
            stored => stored_key(key, bytes(stored)?, read, read.max(estimate))?,
        });
    }
    Some(KeyChanges::Since(KeyUpdate { position, prev, changes, skipped }))
}
