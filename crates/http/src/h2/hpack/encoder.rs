//! Encodes header blocks.

use alloc::vec::Vec;

use super::table::DynamicTable;
use super::{TABLE_SIZE, static_table};
use crate::fields::{ENTRY_OVERHEAD, integer, is_secret, string};

/// One connection's encoder.
#[derive(Debug)]
pub(crate) struct Encoder {
    table: DynamicTable,
    /// Smallest size of the table since the last block, if it changed: the next block says so.
    smallest: Option<usize>,
}

/// Representation of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indexing {
    Incremental,
    /// Values that seldom occur twice would evict useful entries.
    Without,
    /// Secrets: no intermediary may index them (RFC 7541 section 7.1.3).
    Never,
}

impl Encoder {
    pub(crate) const fn new() -> Self {
        Self { table: DynamicTable::new(TABLE_SIZE), smallest: None }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE. The table does not exceed its default size.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        let max = limit.min(TABLE_SIZE);
        if max != self.table.max() {
            self.smallest = Some(self.smallest.map_or(max, |smallest| smallest.min(max)));
            self.table.set_max(max);
        }
    }

    /// Returns the memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Begins a block: appends the table size updates.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(smallest) = self.smallest.take() {
            if smallest < self.table.max() {
                integer::encode(smallest, 5, 0x20, out);
            }
            integer::encode(self.table.max(), 5, 0x20, out);
        }
    }

    /// Appends a field whose name is in lower case.
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let indexing = self.indexing(name, value);
        if indexing != Indexing::Never
            && let Some(index) = self.table.find(name, value)
        {
            return integer::encode(static_table::LEN + 1 + index, 7, 0x80, out);
        }
        let name_index = match static_table::find(name, value) {
            Some((index, true)) if indexing != Indexing::Never => {
                return integer::encode(index, 7, 0x80, out);
            }
            Some((index, _)) => index,
            None => self.table.find_name(name).map_or(0, |index| static_table::LEN + 1 + index),
        };
        match indexing {
            Indexing::Incremental => integer::encode(name_index, 6, 0x40, out),
            Indexing::Without => integer::encode(name_index, 4, 0, out),
            Indexing::Never => integer::encode(name_index, 4, 0x10, out),
        }
        if name_index == 0 {
            string::encode(name, 7, 0, out);
        }
        string::encode(value, 7, 0, out);
        if indexing == Indexing::Incremental {
            self.table.insert(name, value);
        }
    }

    fn indexing(&self, name: &[u8], value: &[u8]) -> Indexing {
        match name {
            _ if is_secret(name) => Indexing::Never,
            b"age" | b"content-length" | b"content-range" | b"etag" | b"if-modified-since"
            | b"if-none-match" | b"last-modified" | b"location" | b":path" => Indexing::Without,
            // A large field would evict the others.
            _ if name.len() + value.len() + ENTRY_OVERHEAD > self.table.max() / 2 => Indexing::Without,
            _ => Indexing::Incremental,
        }
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }
}
