//! Decodes header blocks.

use super::table::DynamicTable;
use super::{TABLE_SIZE, static_table};
use crate::fields::{BlockError, FieldBuffer, integer, string};

/// One connection's decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: DynamicTable,
    /// Maximum that our settings permit for the table.
    limit: usize,
}

impl Decoder {
    pub(crate) const fn new() -> Self {
        Self { table: DynamicTable::new(TABLE_SIZE), limit: TABLE_SIZE }
    }

    /// Applies our acknowledged SETTINGS_HEADER_TABLE_SIZE. Below the size of the table, the next block must begin
    /// with an update (RFC 7541 section 4.2).
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Decodes a whole block. Fields beyond the limits of `fields` change the table and are not stored.
    pub(crate) fn decode(&mut self, mut block: &[u8], fields: &mut FieldBuffer) -> Result<(), BlockError> {
        fields.clear();
        let mut is_start = true;
        while let Some(&first) = block.first() {
            if first & 0xe0 == 0x20 {
                if !is_start {
                    return Err(BlockError::Invalid("table size update after a field"));
                }
                let size = integer::decode(5, &mut block)?;
                if size > self.limit {
                    return Err(BlockError::Invalid("table size update exceeds SETTINGS_HEADER_TABLE_SIZE"));
                }
                self.table.set_max(size);
                continue;
            }
            is_start = false;
            self.require_update()?;
            if first & 0x80 != 0 {
                let index = integer::decode(7, &mut block)?;
                let (name, value) = self.lookup(index)?;
                fields.begin();
                fields.bytes_mut().extend_from_slice(name);
                fields.end_name();
                fields.bytes_mut().extend_from_slice(value);
            } else {
                self.literal(first, &mut block, fields)?;
            }
            fields.commit()?;
        }
        // A block without fields carries updates only; the table must fit after it.
        self.require_update()
    }

    fn require_update(&self) -> Result<(), BlockError> {
        if self.table.max() > self.limit {
            return Err(BlockError::Invalid("header block lacks the required table size update"));
        }
        Ok(())
    }

    fn lookup(&self, index: usize) -> Result<(&[u8], &[u8]), BlockError> {
        let found = match index.checked_sub(static_table::LEN + 1) {
            Some(dynamic) => self.table.get(dynamic),
            None => static_table::get(index),
        };
        found.ok_or(BlockError::Invalid("index of no table entry"))
    }

    /// Decodes a literal field: with incremental indexing, without indexing, never indexed.
    fn literal(&mut self, first: u8, block: &mut &[u8], fields: &mut FieldBuffer) -> Result<(), BlockError> {
        let is_indexed = first & 0x40 != 0;
        let index = integer::decode(if is_indexed { 6 } else { 4 }, block)?;
        fields.begin();
        if index == 0 {
            string::decode(7, block, fields.bytes_mut())?;
        } else {
            let (name, _) = self.lookup(index)?;
            fields.bytes_mut().extend_from_slice(name);
        }
        fields.end_name();
        string::decode(7, block, fields.bytes_mut())?;
        if is_indexed {
            let (name, value) = fields.open_field();
            self.table.insert(name, value);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }
}
