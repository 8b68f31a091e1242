//! Records of batches one by one, and what of them is damaged.

use std::ops::Range;

use sinews_stream::record::{self, Batches, Record, RecordIter};

/// The records of batches, but for those in front of what was asked for. Of a batch with a damaged record come those before
/// that one.
pub(crate) fn counted(batches: &[u8], from: u64) -> Counted<'_> {
    Counted { batches: record::iter(batches), batch: None, from, damaged: None }
}

/// See [`counted`].
pub(crate) struct Counted<'a> {
    batches: Batches<'a>,
    /// The records of one, and the offset behind them.
    batch: Option<(RecordIter<'a>, u64)>,
    /// The offset from which on records count.
    from: u64,
    damaged: Option<Range<u64>>,
}

impl Counted<'_> {
    /// The first records that were left out so far because one of them is damaged.
    pub(crate) fn damaged(&self) -> Option<Range<u64>> {
        self.damaged.clone()
    }
}

impl<'a> Iterator for Counted<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let Some((records, end)) = &mut self.batch else {
                // Headers were checked when the batches were read.
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
