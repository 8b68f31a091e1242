//! Iteration over the records of batches, and their damage.

use std::ops::Range;

use sinews_stream::record::{self, BatchIter, Record, RecordIter};

/// The records of batches from an offset on. A batch with a damaged record yields the records before the damage.
pub(crate) fn records_from(batches: &[u8], from: u64) -> RecordsFrom<'_> {
    RecordsFrom { batches: record::iter(batches), batch: None, from, damaged: None }
}

/// See [`records_from`].
pub(crate) struct RecordsFrom<'a> {
    batches: BatchIter<'a>,
    /// The records of the current batch, and its end offset.
    batch: Option<(RecordIter<'a>, u64)>,
    /// The first offset to return.
    from: u64,
    damaged: Option<Range<u64>>,
}

impl RecordsFrom<'_> {
    /// The first range of records that was skipped because of damage.
    pub(crate) fn damaged(&self) -> Option<Range<u64>> {
        self.damaged.clone()
    }
}

impl<'a> Iterator for RecordsFrom<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let Some((records, end)) = &mut self.batch else {
                // The headers were checked when the batches were read.
                let batch = self.batches.next()?.ok()?;
                self.batch = Some((batch.records(), batch.header().end()));
                continue;
            };
            match records.next() {
                Some(Ok(record)) if record.offset < self.from => {}
                Some(Ok(record)) => {
                    self.from = record.offset + 1;
                    return Some(record);
                }
                Some(Err(_)) => {
                    if self.from < *end {
                        self.damaged.get_or_insert(self.from..*end);
                    }
                    self.batch = None;
                }
                None => self.batch = None,
            }
        }
    }
}
