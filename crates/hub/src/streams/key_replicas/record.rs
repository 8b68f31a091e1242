//! Records of a replica's stream.
//!
//! ```text
//!   key     key: generation 4 B (big endian) · name   value: version 8 B · expiry in ms since 1970, or 0, 8 B
//!                                                            client 8 B, if bit 63 of the version is set · value
//!   removal key: as above                             a tombstone
//!   state   key: one byte 0xff                        value: format 1 B · term 4 B · epoch 8 B · owner 16 B
//!                                                            sequence 8 B · generation 4 B
//! ```
//!
//! Integers of values are little endian. The state is the last record of its batch, which the log writes whole or not
//! at all: the keys of its generation are those at its sequence.

use std::num::NonZeroU64;

use bytes::Bytes;
use sinews_server::{KeySnapshot, Position};
use sinews_stream::record::{Record, RecordBuilder, RecordError, ValueKind};

use crate::streams::request::now;
use crate::topics::shared_keys::Claim;

/// Key of the state record.
const STATE_KEY: &[u8] = &[0xff];

/// Record format.
const FORMAT: u8 = 1;

/// Length of the state's value.
const STATE_LEN: usize = 41;

/// Length of the fields before a value, without a client.
const VALUE_HEAD: usize = 16;

/// Bit of a version, which is far below: the field `client` follows. Records of earlier versions have none.
const HAS_CLIENT: u64 = 1 << 63;

/// The claim and sequence of a generation's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredClaim {
    pub(super) claim: Claim,
    pub(super) sequence: u64,
    pub(super) generation: u32,
}

/// A record that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplicaRecord<'a> {
    State(StoredClaim),
    /// A key's value; `None` if it is removed.
    Key {
        generation: u32,
        key: &'a str,
        stored: Option<StoredKey<'a>>,
    },
}

/// A key's value with its version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredKey<'a> {
    pub(super) version: u64,
    /// Milliseconds since 1970.
    pub(super) expires: Option<u64>,
    /// The client that its memory counts toward.
    pub(super) client: Option<NonZeroU64>,
    pub(super) value: &'a [u8],
}

impl StoredClaim {
    pub(super) fn position(&self) -> Position {
        Position { epoch: self.claim.epoch, sequence: self.sequence }
    }

    pub(super) fn push(&self, records: &mut RecordBuilder) -> Result<(), RecordError> {
        let mut value = Vec::with_capacity(STATE_LEN);
        value.push(FORMAT);
        value.extend_from_slice(&self.claim.term.to_le_bytes());
        value.extend_from_slice(&self.claim.epoch.to_le_bytes());
        value.extend_from_slice(&self.claim.owner.to_le_bytes());
        value.extend_from_slice(&self.sequence.to_le_bytes());
        value.extend_from_slice(&self.generation.to_le_bytes());
        records.push(now(), STATE_KEY, &value, ValueKind::Bytes)
    }

    fn read(value: &[u8]) -> Option<Self> {
        let value: &[u8; STATE_LEN] = value.try_into().ok()?;
        let (format, rest) = value.split_first()?;
        let (term, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (owner, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let claim = Claim {
            term: u32::from_le_bytes(*term),
            epoch: u64::from_le_bytes(*epoch),
            owner: u128::from_le_bytes(*owner),
        };
        let generation = u32::from_le_bytes(*rest.first_chunk()?);
        (*format == FORMAT).then_some(Self { claim, sequence: u64::from_le_bytes(*sequence), generation })
    }
}

/// Returns the record key for a key.
fn record_key(generation: u32, key: &str) -> Vec<u8> {
    [&generation.to_be_bytes(), key.as_bytes()].concat()
}

/// Appends a key, or its removal.
pub(super) fn push_key(
    records: &mut RecordBuilder,
    generation: u32,
    KeySnapshot { key, version, value, ttl, client }: &KeySnapshot,
) -> Result<(), RecordError> {
    let Some(value) = value else { return push_removal(records, generation, key) };
    let millis = |ttl: &std::time::Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    // 0 is no expiry.
    let expires = ttl.as_ref().map_or(0, |ttl| (now() / 1_000).saturating_add(millis(ttl)).max(1));
    let mut stored = Vec::with_capacity(VALUE_HEAD + 8 + value.len());
    let flag = if client.is_some() { HAS_CLIENT } else { 0 };
    stored.extend_from_slice(&(version | flag).to_le_bytes());
    stored.extend_from_slice(&expires.to_le_bytes());
    if let Some(client) = client {
        stored.extend_from_slice(&client.get().to_le_bytes());
    }
    stored.extend_from_slice(value);
    records.push(now(), &record_key(generation, key), &stored, ValueKind::Bytes)
}

/// Appends a tombstone.
pub(super) fn push_removal(
    records: &mut RecordBuilder,
    generation: u32,
    key: &str,
) -> Result<(), RecordError> {
    records.push(now(), &record_key(generation, key), b"", ValueKind::Tombstone)
}

/// Reads a record; `None` if it is not a replica's record.
pub(super) fn read<'a>(record: &Record<'a>) -> Option<ReplicaRecord<'a>> {
    if record.key == STATE_KEY {
        return StoredClaim::read(record.value).map(ReplicaRecord::State);
    }
    let (generation, key) = record.key.split_first_chunk()?;
    let (generation, key) = (u32::from_be_bytes(*generation), std::str::from_utf8(key).ok()?);
    if record.kind == ValueKind::Tombstone {
        return Some(ReplicaRecord::Key { generation, key, stored: None });
    }
    let (version, rest) = record.value.split_first_chunk()?;
    let (expires, mut value) = rest.split_first_chunk()?;
    let expires = Some(u64::from_le_bytes(*expires)).filter(|expires| *expires > 0);
    let version = u64::from_le_bytes(*version);
    let mut client = None;
    if version & HAS_CLIENT != 0 {
        let (number, rest) = value.split_first_chunk()?;
        client = Some(NonZeroU64::new(u64::from_le_bytes(*number))?);
        value = rest;
    }
    let stored = Some(StoredKey { version: version & !HAS_CLIENT, expires, client, value });
    Some(ReplicaRecord::Key { generation, key, stored })
}

impl StoredKey<'_> {
    pub(super) fn value(&self) -> Bytes {
        Bytes::copy_from_slice(self.value)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn records_are_read_as_written() {
        let state = StoredClaim {
            claim: Claim { term: 3, epoch: 1 << 52, owner: u128::MAX - 1 },
            sequence: 77,
            generation: 9,
        };
        let keys = [
            KeySnapshot {
                key: "a.b".to_owned(),
                version: 70,
                value: Some(Bytes::from("1")),
                ..KeySnapshot::default()
            },
            KeySnapshot {
                key: "c".to_owned(),
                version: 71,
                value: Some(Bytes::new()),
                ttl: Some(Duration::from_secs(5)),
                client: NonZeroU64::new(u64::MAX),
            },
            KeySnapshot { key: "d".to_owned(), version: 77, ..KeySnapshot::default() },
        ];
        let mut records = RecordBuilder::new();
        keys.iter().for_each(|key| push_key(&mut records, 9, key).unwrap());
        state.push(&mut records).unwrap();
        let records = records.finish().unwrap();
        let records: Vec<Record<'_>> = records.iter().map(Result::unwrap).collect();
        let read: Vec<_> = records.iter().map(|record| read(record).unwrap()).collect();
        let stored = Some(StoredKey { version: 70, expires: None, client: None, value: b"1" });
        assert_eq!(read[0], ReplicaRecord::Key { generation: 9, key: "a.b", stored });
        let ReplicaRecord::Key { key: "c", stored: Some(stored), .. } = &read[1] else { panic!("{read:?}") };
        let left = stored.expires.unwrap() - now() / 1_000;
        assert_eq!((stored.version, stored.client, stored.value), (71, NonZeroU64::new(u64::MAX), &b""[..]));
        assert!((4_000..=5_000).contains(&left), "{left}");
        assert_eq!(read[2], ReplicaRecord::Key { generation: 9, key: "d", stored: None });
        assert_eq!(read[3], ReplicaRecord::State(state));
    }

    #[test]
    fn other_records_are_rejected() {
        let record = |key, value| Record { offset: 0, timestamp: 0, key, value, kind: ValueKind::Bytes };
        for (key, value) in [
            (STATE_KEY, &[FORMAT; STATE_LEN - 1][..]),
            (STATE_KEY, &[FORMAT + 1; STATE_LEN]),
            (b"abc", &[0; 20]),
            (b"\0\0\0\0a", &[0; VALUE_HEAD - 1]),
            // The client is missing, or 0.
            (b"\0\0\0\0a", &[0x80; VALUE_HEAD + 7]),
            (b"\0\0\0\0a", b"\0\0\0\0\0\0\0\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
            (b"\0\0\0\0\xff", &[0; 20]),
        ] {
            assert_eq!(read(&record(key, value)), None, "{key:?}");
        }
    }
}
