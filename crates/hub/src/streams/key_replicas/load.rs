//! Reads a replica from its stream.

use std::collections::HashMap;

use sinews_server::{KeySnapshot, KeyedSnapshot};
use sinews_stream::Partition;

use super::record::{self, ReplicaRecord, StoredClaim};
use crate::model::problem::{Problem, code, problem};
use crate::streams::durable_keys::time_left;
use crate::streams::records_from::read_all;

/// Keys per generation while a stream is read: a topic has 10,000. A stream has few generations, since the keys of an
/// incomplete one are removed before the next one is written.
const ENTRIES_MAX: usize = 40_000;

/// The state of a stream.
#[derive(Default)]
pub(super) struct LoadedReplica {
    /// `None`: no generation is complete.
    pub(super) state: Option<StoredClaim>,
    /// The last generation, perhaps incomplete.
    pub(super) last_generation: u32,
    /// Keys by generation.
    generations: HashMap<u32, HashMap<String, KeySnapshot>>,
    /// The last generation before damaged records.
    damaged_after: Option<u32>,
}

/// Reads a topic's stream.
pub(super) fn read(partition: &Partition) -> Result<LoadedReplica, Problem> {
    let mut loaded = LoadedReplica::default();
    read_all(partition, |record| {
        match record.map(|(record, _)| record::read(&record)) {
            Some(Some(record)) => loaded.add(record)?,
            _ => loaded.note_damage(),
        }
        Ok(())
    })?;
    Ok(loaded)
}

impl LoadedReplica {
    fn note_damage(&mut self) {
        self.damaged_after = Some(self.last_generation);
    }

    /// Returns whether key records may be damaged: keys have earlier values, or none.
    pub(super) fn is_damaged(&self) -> bool {
        let Some(generation) = self.damaged_after else { return false };
        // The first records of the next generation may be among them.
        self.state.is_none_or(|state| state.generation <= generation + 1)
    }

    fn add(&mut self, record: ReplicaRecord<'_>) -> Result<(), Problem> {
        let (generation, key, stored) = match record {
            ReplicaRecord::State(state) => {
                self.last_generation = self.last_generation.max(state.generation);
                self.state = Some(state);
                return Ok(());
            }
            ReplicaRecord::Key { generation, key, stored } => (generation, key, stored),
        };
        self.last_generation = self.last_generation.max(generation);
        let keys = self.generations.entry(generation).or_default();
        let Some(stored) = stored else {
            keys.remove(key);
            if keys.is_empty() {
                self.generations.remove(&generation);
            }
            return Ok(());
        };
        let ttl = stored.expires.map(time_left);
        let (version, value, client) = (stored.version, Some(stored.value()), stored.client);
        keys.insert(key.to_owned(), KeySnapshot { key: key.to_owned(), version, value, ttl, client });
        if keys.len() > ENTRIES_MAX {
            let text = format!("a generation of the stream has more than {ENTRIES_MAX} keys");
            return Err(problem(code::STORE, text));
        }
        Ok(())
    }

    /// Returns the keys of generations that are no longer used.
    pub(super) fn leftovers(&self) -> impl Iterator<Item = (u32, &str)> {
        let current = self.state.map(|state| state.generation);
        let others = self.generations.iter().filter(move |(generation, _)| Some(**generation) != current);
        others.flat_map(|(generation, keys)| keys.keys().map(|key| (*generation, key.as_str())))
    }

    /// Returns the keys of the last complete generation. Removals are forgotten.
    pub(super) fn into_snapshot(mut self, topic: &str) -> Option<KeyedSnapshot> {
        let state = self.state?;
        let keys = self.generations.remove(&state.generation).unwrap_or_default();
        let mut keys: Vec<KeySnapshot> = keys.into_values().collect();
        keys.sort_unstable_by_key(|key| key.version);
        let mut position = state.position();
        // Later only if the record of a later state is damaged.
        position.sequence = keys.last().map_or(0, |key| key.version).max(position.sequence);
        Some(KeyedSnapshot {
            topic: topic.to_owned(),
            position,
            forgotten: position.sequence,
            keys,
            recent: Vec::new(),
        })
    }
}
