//! The dynamic table (RFC 7541 section 2.3.2).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::fields::ENTRY_OVERHEAD;

/// Fields in insertion order, in one buffer. An empty table owns no memory.
#[derive(Debug)]
pub(super) struct DynamicTable {
    entries: VecDeque<TableEntry>,
    /// The entries' names and values, behind `dead` bytes of evicted entries.
    bytes: Vec<u8>,
    dead: usize,
    /// Position of the first byte of `bytes` in all bytes ever inserted, modulo 2^32.
    base: u32,
    size: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    at: u32,
    name_len: u32,
    value_len: u32,
    hash: u32,
}

impl TableEntry {
    const fn len(self) -> usize {
        (self.name_len + self.value_len) as usize
    }
}

impl DynamicTable {
    pub(super) const fn new(max: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: Vec::new(), dead: 0, base: 0, size: 0, max }
    }

    /// Maximum size, with an overhead for each entry.
    pub(super) const fn max(&self) -> usize {
        self.max
    }

    /// Size, with an overhead for each entry.
    #[cfg(test)]
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Returns the memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    /// Changes the maximum size (RFC 7541 section 4.3).
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict_to(max);
        if max == 0 {
            *self = Self::new(0);
        }
    }

    /// Returns a field; index 0 is the newest.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let at = self.entries.len().checked_sub(index)?.checked_sub(1)?;
        Some(self.field(*self.entries.get(at)?))
    }

    fn field(&self, entry: TableEntry) -> (&[u8], &[u8]) {
        let start = entry.at.wrapping_sub(self.base) as usize;
        let bytes = self.bytes.get(start..start + entry.len()).unwrap_or_default();
        bytes.split_at(bytes.len().min(entry.name_len as usize))
    }

    /// Inserts a field; one that is larger than the table empties it (RFC 7541 section 4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        if size > self.max {
            return self.evict_to(0);
        }
        self.evict_to(self.max - size);
        if self.dead > self.bytes.len() / 2 {
            self.bytes.drain(..self.dead);
            self.base = self.base.wrapping_add(self.dead as u32);
            self.dead = 0;
        }
        let at = self.base.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let (name_len, value_len) = (name.len() as u32, value.len() as u32);
        self.entries.push_back(TableEntry { at, name_len, value_len, hash: hash(name, value) });
        self.size += size;
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.size -= oldest.len() + ENTRY_OVERHEAD;
            self.dead += oldest.len();
        }
    }

    /// Returns a field's index.
    pub(super) fn find(&self, name: &[u8], value: &[u8]) -> Option<usize> {
        let hash = hash(name, value);
        self.entries.iter().rev().position(|entry| entry.hash == hash && self.field(*entry) == (name, value))
    }

    /// Returns the index for a field with this name.
    pub(super) fn find_name(&self, name: &[u8]) -> Option<usize> {
        self.entries
            .iter()
            .rev()
            .position(|entry| entry.name_len as usize == name.len() && self.field(*entry).0 == name)
    }
}

/// FNV-1a. Collisions cost a comparison; the encoder's input is the server's own.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let add = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    value.iter().fold(name.iter().fold(0x811c_9dc5, add) ^ 0xff, add)
}
