//! Iteration over the records of batches, and their damage.

use std::ops::Range;

use sinews_stream::record::{self, BatchIter, Record, RecordIter};
use sinews_stream::{Partition, ReadError};

use crate::model::problem::{Problem, code, problem};

/// Bytes per read.
const READ_BYTES: usize = 1 << 20;

/// Reads all records in a partition, each with its append time in microseconds since 1970. `None` stands for damaged
/// records, which are skipped. Returns the end.
///
/// # Errors
/// The disk has failed, or the function has returned an error.
pub(super) fn read_all(
    partition: &Partition,
    mut handle: impl FnMut(Option<(Record<'_>, u64)>) -> Result<(), Problem>,
) -> Result<u64, Problem> {
    let mut from = partition.offsets().earliest;
    let end = partition.offsets().readable;
    while from < end {
        match partition.read(from, READ_BYTES) {
            Ok(read) if read.batches.is_empty() => break,
            Ok(read) => {
                // The headers were checked when the batches were read.
                for batch in record::iter(&read.batches).map_while(Result::ok) {
                    let appended = batch.header().appended;
                    batch.records().try_for_each(|record| handle(record.ok().map(|it| (it, appended))))?;
                }
                from = read.next;
            }
            Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > from => {
                handle(None)?;
                from = to;
            }
            Err(error) => return Err(problem(code::STORE, error.to_string())),
        }
    }
    Ok(end)
}

/// Returns the records of batches from an offset on. A batch with a damaged record yields the records before the
/// damage.
pub(crate) fn records_from(batches: &[u8], from: u64) -> RecordsFrom<'_> {
    RecordsFrom { batches: record::iter(batches), batch: None, from, damaged: None }
}

/// See [`records_from`].
pub(crate) struct RecordsFrom<'a> {
    batches: BatchIter<'a>,
    /// The current batch's records, and its end offset.
    batch: Option<(RecordIter<'a>, u64)>,
    /// The first offset to return.
    from: u64,
    damaged: Option<Range<u64>>,
}

impl RecordsFrom<'_> {
    /// Returns the first range of records that was skipped because of damage.
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
