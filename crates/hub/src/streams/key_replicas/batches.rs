//! Record batches in a replica's stream.

use sinews_server::KeySnapshot;
use sinews_stream::record::{RecordBuilder, RecordError, Records};
use sinews_stream::{Durability, Partition};

use super::load::{self, LoadedReplica};
use super::record::{StoredClaim, push_key, push_removal};
use crate::topics::key_faults::StorageError;

/// Key and value bytes per batch.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// Bytes of a key's record besides its name and value.
const KEY_BYTES: usize = 64;

/// Tombstones per batch: some hundred KiB.
const LEFTOVERS_PER_BATCH: usize = 4_096;

/// Encodes a batch; the state is its last record.
pub(super) fn encode(
    keys: &[KeySnapshot],
    generation: u32,
    state: Option<StoredClaim>,
) -> Result<Records, StorageError> {
    let mut records = RecordBuilder::new();
    keys.iter().try_for_each(|key| push_key(&mut records, generation, key))?;
    state.map_or(Ok(()), |state| state.push(&mut records))?;
    Ok(records.finish().ok_or(RecordError::Empty)?)
}

/// Splits off the keys for one batch.
pub(super) fn split_batch(keys: &[KeySnapshot]) -> (&[KeySnapshot], &[KeySnapshot]) {
    let mut bytes = 0;
    let count = keys.iter().take_while(|key| {
        let is_first = bytes == 0;
        bytes += key.key.len() + key.value.as_ref().map_or(0, bytes::Bytes::len) + KEY_BYTES;
        is_first || bytes <= BATCH_BYTES
    });
    keys.split_at(count.count())
}

pub(super) fn append(partition: &Partition, records: Records) -> Result<(), StorageError> {
    partition.append(records)?.block(Durability::Disk)?;
    Ok(())
}

/// Removes the keys of generations that are no longer used, so that compaction removes their records.
pub(super) fn remove_leftovers(partition: &Partition, loaded: &LoadedReplica) -> Result<(), StorageError> {
    let mut leftovers = loaded.leftovers().peekable();
    while leftovers.peek().is_some() {
        let mut records = RecordBuilder::new();
        for (generation, key) in leftovers.by_ref().take(LEFTOVERS_PER_BATCH) {
            push_removal(&mut records, generation, key)?;
        }
        append(partition, records.finish().ok_or(RecordError::Empty)?)?;
    }
    Ok(())
}

pub(super) fn remove_all_leftovers(partition: &Partition) -> Result<(), StorageError> {
    remove_leftovers(partition, &load::read(partition)?)
}
