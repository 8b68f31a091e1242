//! Messages between nodes about topics' keys.
//!
//! ```text
//!   changes    number 8 B · items: kind 1 B, topic, claim, then
//!                release  nothing
//!                changes  predecessor (kind 1 B, epoch 8 B, sequence 8 B) · after 8 B · end 8 B · keys (count 4 B)
//!   catalogue  number 8 B · part 4 B · last 1 B · topics: topic, claim, sequence 8 B
//!   positions  topics without an owner: topic, claim, sequence 8 B
//!   request    kind 1 B · topic, epoch 8 B, sequence 8 B for the state of a topic; nothing for the catalogue
//!   state      topic · claim · kind 1 B · after 8 B · end 8 B · forgotten 8 B · part 4 B · last 1 B · keys (count 4 B)
//!   write      id 8 B · topic · flags 1 B · key · value · time to live 8 B · limit of keys 8 B
//!                condition 1 B, 8 B, 8 B · idempotency key · client 8 B, which earlier versions neither send nor read
//!   result     id 8 B · kind 1 B, then position 16 B and flags 1 B; or code 2 B and text
//!   claim      term 4 B · epoch 8 B · owner 16 B
//!   key        key · version 8 B · flags 1 B · time to live 8 B · value (length 4 B)
//! ```
//!
//! Texts have their length before them, 2 bytes. Integers are little endian.

use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use sinews_server::{KeyCondition, KeySnapshot, KeyWrite, KeyWritten, Position};

use crate::model::problem::{Problem, problem};
use crate::topics::shared_keys::Claim;

/// Highest epoch, so that JSON represents it exactly.
const EPOCH_MAX: u64 = 1 << 53;

/// Maximum length of an error text in characters.
const TEXT_MAX: usize = 1_024;

/// How the keys before some changes follow from an earlier claim's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierKeys {
    /// They are the keys of the same claim.
    Same,
    /// They are those of an earlier claim at this position.
    At(Position),
    /// There were none.
    Nothing,
    /// They are not known to the others.
    Unknown,
}

/// An item in a message with changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChangeItem {
    Changes { precursor: EarlierKeys, after: u64, end: u64, keys: Vec<KeySnapshot> },
    Release,
}

/// A part of a catalogue, or of a topic's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) number: u32,
    pub(super) is_last: bool,
}

/// A part of a topic's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatePart {
    pub(super) topic: String,
    pub(super) claim: Claim,
    /// The changes after this sequence; `None`: all keys.
    pub(super) after: Option<u64>,
    pub(super) end: u64,
    pub(super) forgotten: u64,
    pub(super) part: Part,
    pub(super) keys: Vec<KeySnapshot>,
}

/// Request to the topics' owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyStateRequest {
    Catalogue,
    /// A topic's keys, or the changes after a position.
    State {
        topic: String,
        from: Position,
    },
}

/// A write's result at the owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WriteResult {
    Done(KeyWritten),
    Failed(Problem),
    /// Nothing has changed: the node does not own the topic, or not yet.
    Retry,
}

/// Appends to a message.
pub(super) struct KeyEncoder(pub(super) Vec<u8>);

impl KeyEncoder {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn short(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn long(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        // Topics and keys have at most 250 bytes, errors `TEXT_MAX`.
        self.0.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.short(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    fn claim(&mut self, claim: &Claim) {
        self.short(claim.term);
        self.long(claim.epoch);
        self.0.extend_from_slice(&claim.owner.to_le_bytes());
    }

    fn position(&mut self, position: Position) {
        self.long(position.epoch);
        self.long(position.sequence);
    }

    fn keys(&mut self, keys: &[KeySnapshot]) {
        self.short(u32::try_from(keys.len()).unwrap_or(u32::MAX));
        for KeySnapshot { key, version, value, ttl, client } in keys {
            self.text(key);
            self.long(*version);
            let flags = [value.is_some(), ttl.is_some(), client.is_some()].map(u8::from);
            self.byte(flags[0] | flags[1] << 1 | flags[2] << 2);
            self.long(millis(*ttl));
            self.bytes(value.as_deref().unwrap_or_default());
            if let Some(client) = client {
                self.long(client.get());
            }
        }
    }

    pub(super) fn item(&mut self, topic: &str, claim: &Claim, item: &ChangeItem) {
        self.byte(u8::from(matches!(item, ChangeItem::Changes { .. })));
        self.text(topic);
        self.claim(claim);
        let ChangeItem::Changes { precursor, after, end, keys } = item else { return };
        let (kind, position) = match precursor {
            EarlierKeys::Same => (0, None),
            EarlierKeys::At(position) => (1, Some(*position)),
            EarlierKeys::Nothing => (2, None),
            EarlierKeys::Unknown => (3, None),
        };
        self.byte(kind);
        self.position(position.unwrap_or(Position { epoch: 0, sequence: 0 }));
        self.long(*after);
        self.long(*end);
        self.keys(keys);
    }

    pub(super) fn part(&mut self, part: Part) {
        self.short(part.number);
        self.byte(u8::from(part.is_last));
    }

    pub(super) fn catalogue_entry(&mut self, topic: &str, claim: &Claim, sequence: u64) {
        self.text(topic);
        self.claim(claim);
        self.long(sequence);
    }
}

fn millis(ttl: Option<Duration>) -> u64 {
    ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

impl KeyStateRequest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = KeyEncoder(Vec::new());
        match self {
            Self::Catalogue => out.byte(0),
            Self::State { topic, from } => {
                out.byte(1);
                out.text(topic);
                out.position(*from);
            }
        }
        out.0
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut body = KeyDecoder(body);
        match body.byte()? {
            0 => Some(Self::Catalogue),
            1 => Some(Self::State { topic: body.text()?.to_owned(), from: body.position()? }),
            _ => None,
        }
    }
}

impl StatePart {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = KeyEncoder(Vec::new());
        out.text(&self.topic);
        out.claim(&self.claim);
        out.byte(u8::from(self.after.is_some()));
        out.long(self.after.unwrap_or(0));
        out.long(self.end);
        out.long(self.forgotten);
        out.part(self.part);
        out.keys(&self.keys);
        out.0
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut body = KeyDecoder(body);
        let (topic, claim) = (body.text()?.to_owned(), body.claim()?);
        let has_after = body.byte()? == 1;
        let after = Some(body.long()?).filter(|_| has_after);
        let (end, forgotten, part) = (body.long()?, body.long()?, body.part()?);
        Some(Self { topic, claim, after, end, forgotten, part, keys: body.keys()? })
    }
}

/// Encodes a write for the owner.
pub(super) fn encode_write(id: u64, topic: &str, write: &KeyWrite) -> Vec<u8> {
    let mut out = KeyEncoder(Vec::new());
    out.long(id);
    out.text(topic);
    let (ttl, name) = (write.ttl(), write.idempotency_key());
    out.byte(
        u8::from(write.value().is_some())
            | u8::from(ttl.is_some()) << 1
            | u8::from(name.is_some()) << 2
            | u8::from(write.max_keys().is_some()) << 3
            | u8::from(write.client().is_some()) << 4,
    );
    out.text(write.key());
    out.bytes(write.value().map_or(&[], |value| value));
    out.long(millis(ttl));
    out.long(write.max_keys().map_or(0, |keys| u64::try_from(keys).unwrap_or(u64::MAX)));
    let nowhere = Position { epoch: 0, sequence: 0 };
    let (kind, position) = match write.condition() {
        Some(KeyCondition::IfNew) => (1, nowhere),
        Some(KeyCondition::IfExists) => (2, nowhere),
        Some(KeyCondition::Version(sequence)) => (3, Position { epoch: 0, sequence }),
        Some(KeyCondition::At(position)) => (4, position),
        _ => (0, nowhere),
    };
    out.byte(kind);
    out.position(position);
    out.text(name.unwrap_or_default());
    if let Some(client) = write.client() {
        out.long(client.get());
    }
    out.0
}

/// Reads a write: its id, topic and change.
pub(super) fn decode_write(body: &[u8]) -> Option<(u64, &str, KeyWrite)> {
    let mut body = KeyDecoder(body);
    let (id, topic, flags) = (body.long()?, body.text()?, body.byte()?);
    let (key, value) = (body.text()?, body.bytes()?);
    let mut write = match flags & 1 {
        0 => KeyWrite::delete(key),
        _ => KeyWrite::set(key, Bytes::copy_from_slice(value)),
    };
    let ttl = body.long()?;
    if flags & 2 != 0 {
        write = write.with_ttl(Duration::from_millis(ttl));
    }
    let max_keys = body.long()?;
    if flags & 8 != 0 {
        write = write.with_max_keys(usize::try_from(max_keys).unwrap_or(usize::MAX));
    }
    let (kind, position) = (body.byte()?, body.position()?);
    write = match kind {
        0 => write,
        1 => write.with_condition(KeyCondition::IfNew),
        2 => write.with_condition(KeyCondition::IfExists),
        3 => write.with_condition(KeyCondition::Version(position.sequence)),
        4 => write.with_condition(KeyCondition::At(position)),
        _ => return None,
    };
    let name = body.text()?;
    if flags & 4 != 0 {
        write = write.with_idempotency_key(name);
    }
    if flags & 16 != 0 {
        write = write.with_client(NonZeroU64::new(body.long()?)?);
    }
    Some((id, topic, write))
}

/// Encodes a write's result.
pub(super) fn encode_result(id: u64, result: &WriteResult) -> Vec<u8> {
    let mut out = KeyEncoder(Vec::new());
    out.long(id);
    match result {
        WriteResult::Done(written) => {
            out.byte(0);
            out.position(written.position);
            out.byte(u8::from(written.changed) | u8::from(written.repeated) << 1);
        }
        WriteResult::Failed(problem) => {
            out.byte(1);
            out.0.extend_from_slice(&problem.code.to_le_bytes());
            let text: String = problem.text.chars().take(TEXT_MAX).collect();
            out.text(&text);
        }
        WriteResult::Retry => out.byte(2),
    }
    out.0
}

/// Reads a write's id and result.
pub(super) fn decode_result(body: &[u8]) -> Option<(u64, WriteResult)> {
    let mut body = KeyDecoder(body);
    let id = body.long()?;
    let result = match body.byte()? {
        0 => {
            let (position, flags) = (body.position()?, body.byte()?);
            WriteResult::Done(KeyWritten::elsewhere(position, flags & 1 != 0, flags & 2 != 0))
        }
        1 => {
            let code = u16::from_le_bytes(*body.take::<2>()?);
            // Another code is not a request error.
            let code = if (400..600).contains(&code) { code } else { 503 };
            WriteResult::Failed(problem(code, body.text()?))
        }
        2 => WriteResult::Retry,
        _ => return None,
    };
    Some((id, result))
}

/// Reads a message; `None` if it is malformed.
pub(super) struct KeyDecoder<'a>(pub(super) &'a [u8]);

impl<'a> KeyDecoder<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| *byte)
    }

    fn short(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn split(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = u16::from_le_bytes(*self.take::<2>()?);
        std::str::from_utf8(self.split(usize::from(length))?).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.short()? as usize;
        self.split(length)
    }

    fn claim(&mut self) -> Option<Claim> {
        let (term, epoch) = (self.short()?, self.long()?);
        let owner = u128::from_le_bytes(*self.take()?);
        (epoch < EPOCH_MAX).then_some(Claim { term, epoch, owner })
    }

    fn position(&mut self) -> Option<Position> {
        Some(Position { epoch: self.long()?, sequence: self.sequence()? })
    }

    /// Reads a sequence far below the limit of its type.
    fn sequence(&mut self) -> Option<u64> {
        self.long().filter(|sequence| *sequence < EPOCH_MAX)
    }

    fn keys(&mut self) -> Option<Vec<KeySnapshot>> {
        // Not allocated ahead: the count may be wrong.
        let mut keys = Vec::new();
        for _ in 0..self.short()? {
            let (key, version, flags) = (self.text()?.to_owned(), self.sequence()?, self.byte()?);
            let ttl = Duration::from_millis(self.long()?.min(TTL_MAX_MS));
            let value = self.bytes()?;
            let value = (flags & 1 != 0).then(|| Bytes::copy_from_slice(value));
            let ttl = (flags & 2 != 0).then_some(ttl);
            let client = if flags & 4 != 0 { Some(NonZeroU64::new(self.long()?)?) } else { None };
            keys.push(KeySnapshot { key, version, value, ttl, client });
        }
        Some(keys)
    }

    /// Returns the next item in a message with changes.
    pub(super) fn item(&mut self) -> Option<(&'a str, Claim, ChangeItem)> {
        let (kind, topic, claim) = (self.byte()?, self.text()?, self.claim()?);
        match kind {
            0 => return Some((topic, claim, ChangeItem::Release)),
            1 => {}
            _ => return None,
        }
        let (kind, position) = (self.byte()?, self.position()?);
        let precursor = match kind {
            0 => EarlierKeys::Same,
            1 => EarlierKeys::At(position),
            2 => EarlierKeys::Nothing,
            3 => EarlierKeys::Unknown,
            _ => return None,
        };
        let (after, end) = (self.sequence()?, self.sequence()?);
        Some((topic, claim, ChangeItem::Changes { precursor, after, end, keys: self.keys()? }))
    }

    pub(super) fn part(&mut self) -> Option<Part> {
        Some(Part { number: self.short()?, is_last: self.byte()? == 1 })
    }

    pub(super) fn catalogue_entry(&mut self) -> Option<(&'a str, Claim, u64)> {
        Some((self.text()?, self.claim()?, self.sequence()?))
    }
}

/// Longest time to live, 366 days, in milliseconds.
const TTL_MAX_MS: u64 = 366 * 86_400_000;

#[cfg(test)]
mod tests {
    use sinews_testkit::Rng;

    use super::*;

    const CLAIM: Claim = Claim { term: 3, epoch: 9, owner: 7 << 64 | 5 };

    fn keys() -> Vec<KeySnapshot> {
        let key = |key: &str, version, value: Option<&'static str>, ttl| KeySnapshot {
            key: key.to_owned(),
            version,
            value: value.map(Bytes::from),
            ttl,
            client: NonZeroU64::new(version % 4),
        };
        vec![key("ä.b", 2, Some("\"data\":1"), Some(Duration::from_secs(30))), key("c", 4, None, None)]
    }

    fn all() -> Vec<Vec<u8>> {
        let position = Position { epoch: 8, sequence: 4 };
        let mut changes = KeyEncoder(Vec::new());
        changes.long(12);
        let precursor = EarlierKeys::At(position);
        changes.item("t", &CLAIM, &ChangeItem::Changes { precursor, after: 4, end: 9, keys: keys() });
        changes.item("u", &CLAIM, &ChangeItem::Release);
        let mut catalogue = KeyEncoder(Vec::new());
        catalogue.long(12);
        catalogue.part(Part { number: 1, is_last: true });
        catalogue.catalogue_entry("t", &CLAIM, 9);
        let part = Part { number: 0, is_last: true };
        let topic = "t".to_owned();
        let state =
            StatePart { topic, claim: CLAIM, after: Some(3), end: 9, forgotten: 1, part, keys: keys() };
        let write = KeyWrite::set("k", "v").with_ttl(Duration::from_millis(5)).with_idempotency_key("i");
        let write =
            write.with_condition(KeyCondition::At(position)).with_max_keys(7).with_client(NonZeroU64::MAX);
        let done = WriteResult::Done(KeyWritten::elsewhere(position, true, false));
        vec![
            changes.0,
            catalogue.0,
            KeyStateRequest::State { topic: "t".to_owned(), from: position }.encode(),
            state.encode(),
            encode_write(4, "t", &write),
            encode_result(4, &done),
            encode_result(4, &WriteResult::Failed(problem(412, "the key exists"))),
        ]
    }

    /// Decodes a message as each kind; none panics.
    fn decode_all(message: &[u8]) {
        let mut changes = KeyDecoder(message);
        let _ = changes.long();
        while changes.item().is_some() {}
        let mut catalogue = KeyDecoder(message);
        let _ = (catalogue.long(), catalogue.part());
        while catalogue.catalogue_entry().is_some() {}
        let _ = (KeyStateRequest::decode(message), StatePart::decode(message));
        let _ = (decode_write(message), decode_result(message));
    }

    #[test]
    fn messages_are_read_as_written() {
        let all = all();
        let mut changes = KeyDecoder(&all[0]);
        assert_eq!(changes.long(), Some(12));
        let precursor = EarlierKeys::At(Position { epoch: 8, sequence: 4 });
        let expected = ChangeItem::Changes { precursor, after: 4, end: 9, keys: keys() };
        assert_eq!(changes.item(), Some(("t", CLAIM, expected)));
        assert_eq!(changes.item(), Some(("u", CLAIM, ChangeItem::Release)));
        assert!(changes.0.is_empty());
        let mut catalogue = KeyDecoder(&all[1]);
        assert_eq!((catalogue.long(), catalogue.part()), (Some(12), Some(Part { number: 1, is_last: true })));
        assert_eq!(catalogue.catalogue_entry(), Some(("t", CLAIM, 9)));
        assert_eq!(KeyStateRequest::decode(&all[2]).unwrap().encode(), all[2]);
        assert_eq!(
            KeyStateRequest::decode(&KeyStateRequest::Catalogue.encode()),
            Some(KeyStateRequest::Catalogue)
        );
        assert_eq!(StatePart::decode(&all[3]).unwrap().encode(), all[3]);
        let (id, topic, write) = decode_write(&all[4]).unwrap();
        assert_eq!(encode_write(id, topic, &write), all[4]);
        for result in &all[5..] {
            let (id, read) = decode_result(result).unwrap();
            assert_eq!(encode_result(id, &read), *result);
        }
        assert_eq!(decode_result(&encode_result(1, &WriteResult::Retry)), Some((1, WriteResult::Retry)));
    }

    #[test]
    fn malformed_messages_are_rejected_without_a_panic() {
        let mut rng = Rng::new(7);
        for message in all() {
            (0..message.len()).for_each(|end| decode_all(&message[..end]));
            for _ in 0..2_000 {
                let mut changed = message.clone();
                for _ in 0..=rng.below(3) {
                    let at = rng.below(changed.len());
                    changed[at] = u8::try_from(rng.below(256)).unwrap();
                }
                decode_all(&changed);
            }
        }
        let mut huge = KeyEncoder(Vec::new());
        huge.claim(&Claim { epoch: EPOCH_MAX, ..CLAIM });
        assert_eq!(KeyDecoder(&huge.0).claim(), None, "JSON could not represent the epoch");
    }
}
