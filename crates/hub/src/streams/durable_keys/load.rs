//! Reads a topic's keys from their stream.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use sinews_server::{KeySnapshot, KeyedSnapshot, Position, RecentKeyWrite};
use sinews_stream::Partition;
use sinews_stream::record::{Record, ValueKind};

use super::record::{StoredValue, StoredWriteKey, decode, time_left};
use crate::model::problem::{Problem, code, problem};
use crate::streams::records_from::read_all;
use crate::streams::request::now;

/// Age in microseconds up to which removals are restored, so that subscribers can continue after a reconnect. Shorter
/// than the time for which the stream has all tombstones.
const REMOVALS_AGE: u64 = 3_600_000_000;

/// Removals that are restored.
const REMOVALS_MAX: usize = 10_000;

/// Age in microseconds up to which writes with an idempotency key are restored: the server remembers them as long.
const RECENT_AGE: u64 = 300_000_000;

/// Writes with an idempotency key that are restored: the server remembers as many.
const RECENT_MAX: usize = 1_024;

/// A topic's entries while it is read: keys, and recent removals. Twice the keys that a topic may have.
const ENTRIES_MAX: usize = 20_000;

/// The last change of a key.
struct Entry {
    version: u64,
    value: Option<Bytes>,
    expires: Option<u64>,
    client: Option<NonZeroU64>,
}

#[derive(Default)]
struct Loading {
    entries: HashMap<String, Entry>,
    removals: usize,
    /// Removals up to this sequence are not restored.
    forgotten: u64,
    /// Writes with an idempotency key within the last [`RECENT_AGE`].
    recent: VecDeque<RecentKeyWrite>,
    /// A recent record was found: the stream has all removals since.
    has_recent: bool,
}

/// Reads a topic's keys, with their records' offsets plus 1 as versions.
pub(in crate::streams) fn read(
    topic: &str,
    epoch: u64,
    partition: &Partition,
) -> Result<KeyedSnapshot, Problem> {
    let mut loading = Loading::default();
    let recent = now().saturating_sub(REMOVALS_AGE);
    let mut is_damaged = false;
    let end = read_all(partition, |record| {
        match record {
            Some((record, appended)) => loading.add(&record, appended, recent)?,
            None => is_damaged = true,
        }
        Ok(())
    })?;
    if is_damaged {
        tracing::error!(
            topic,
            "records of durable keys are damaged: their keys have earlier values, or none"
        );
    }
    if is_damaged || !loading.has_recent {
        loading.forgotten = end;
    }
    Ok(loading.finish(topic, Position { epoch, sequence: end }))
}

impl Loading {
    fn add(&mut self, record: &Record<'_>, appended: u64, recent: u64) -> Result<(), Problem> {
        let version = record.offset + 1;
        if !self.has_recent && appended >= recent {
            self.has_recent = true;
            self.forgotten = version - 1;
        }
        let Ok(key) = std::str::from_utf8(record.key) else { return Ok(()) };
        let is_removal = record.kind == ValueKind::Tombstone;
        let stored = if is_removal { None } else { decode(record.value) };
        match StoredWriteKey::from_bytes(record.value) {
            Some(StoredWriteKey { once, is_removal: true }) => {
                // The tombstone is the next record, with the sequence of the change.
                self.note_recent(key, &once, version + 1, appended);
                return Ok(());
            }
            Some(StoredWriteKey { once, .. }) => self.note_recent(key, &once, version, appended),
            None => {}
        }
        if !is_removal && stored.is_none() {
            tracing::error!(key, version, "a record of a durable key has no valid value, and is ignored");
            return Ok(());
        }
        let before = self.entries.remove(key);
        self.removals -= usize::from(before.is_some_and(|before| before.value.is_none()));
        if is_removal && (!self.has_recent || self.removals >= REMOVALS_MAX) {
            self.forgotten = self.forgotten.max(version);
            return Ok(());
        }
        if self.entries.len() >= ENTRIES_MAX {
            let text = format!("the stream has more than {ENTRIES_MAX} keys");
            return Err(problem(code::STORE, text));
        }
        self.removals += usize::from(is_removal);
        let entry = match stored {
            Some(StoredValue { value, expires, client }) => {
                Entry { version, value: Some(value), expires, client }
            }
            None => Entry { version, value: None, expires: None, client: None },
        };
        self.entries.insert(key.to_owned(), entry);
        Ok(())
    }

    fn note_recent(&mut self, key: &str, name: &str, sequence: u64, appended: u64) {
        let age = now().saturating_sub(appended);
        if age >= RECENT_AGE {
            return;
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(RecentKeyWrite {
            key: key.to_owned(),
            idempotency_key: name.to_owned(),
            sequence,
            age: Duration::from_micros(age),
        });
    }

    fn finish(self, topic: &str, position: Position) -> KeyedSnapshot {
        let mut keys: Vec<KeySnapshot> = self
            .entries
            .into_iter()
            .map(|(key, entry)| KeySnapshot {
                key,
                version: entry.version,
                value: entry.value,
                ttl: entry.expires.map(time_left),
                client: entry.client,
            })
            .collect();
        keys.sort_unstable_by_key(|key| key.version);
        KeyedSnapshot {
            topic: topic.to_owned(),
            position,
            forgotten: self.forgotten,
            keys,
            recent: self.recent.into(),
        }
    }
}
