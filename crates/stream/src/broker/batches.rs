//! Batches of a broker's old records, for a fetch.

use bytes::BytesMut;

use super::sink::BATCH_BYTES;
use crate::Read;
use crate::record::{BatchHeader, RecordBuilder, Records};

/// Batches in the log's format, built from single records.
pub(super) struct Batches {
    bytes: BytesMut,
    builder: RecordBuilder,
    base: u64,
    next: u64,
    time: u64,
}

impl Batches {
    pub(super) fn new(from: u64) -> Self {
        Self { bytes: BytesMut::new(), builder: RecordBuilder::new(), base: from, next: from, time: 0 }
    }

    /// The offset behind the last record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.builder.len()
    }

    /// Appends the record of this offset. `push` returns `false` if the record does not fit; a record that does not fit
    /// into an empty batch is skipped.
    pub(super) fn push(&mut self, offset: u64, push: impl Fn(&mut RecordBuilder) -> bool) {
        if offset != self.base + u64::from(self.builder.count()) || self.builder.len() >= BATCH_BYTES {
            self.end_batch();
        }
        if self.builder.is_empty() {
            self.base = offset;
        }
        if !push(&mut self.builder) && !self.builder.is_empty() {
            self.end_batch();
            self.base = offset;
            push(&mut self.builder);
        }
        self.next = offset + 1;
    }

    fn end_batch(&mut self) {
        if let Some(records) = self.builder.finish() {
            self.time = self.time.max(newest(&records));
            let header = BatchHeader::plain(&records, self.base, self.time);
            self.bytes.extend_from_slice(&header.encode()[..header.size()]);
            self.bytes.extend_from_slice(records.bytes());
        }
    }

    pub(super) fn finish(mut self) -> Read {
        self.end_batch();
        Read { batches: self.bytes.freeze(), next: self.next }
    }
}

fn newest(records: &Records) -> u64 {
    records.iter().flatten().map(|record| record.timestamp).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{self, Kind, RECORD_HEADER};

    #[test]
    fn record_that_does_not_fit_begins_a_new_batch() {
        let mut batches = Batches::new(7);
        let most = (8 << 20) - RECORD_HEADER;
        for (offset, size) in [(7, 1), (8, most), (9, 1), (10, most + 1), (11, 1)] {
            let value = vec![0; size];
            batches.push(offset, |builder| builder.push(1, b"", &value, Kind::Bytes).is_ok());
        }
        let read = batches.finish();
        let found = record::iter(&read.batches).flat_map(|batch| batch.unwrap().records());
        let offsets: Vec<u64> = found.map(|record| record.unwrap().offset).collect();
        assert_eq!((offsets, read.next), (vec![7, 8, 9, 11], 12));
    }
}
