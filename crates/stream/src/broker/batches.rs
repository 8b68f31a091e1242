//! Batches of old records, for [`Broker::fetch`](super::Broker::fetch).

use bytes::BytesMut;

use super::sink::BATCH_BYTES;
use crate::ReadResult;
use crate::record::{BatchHeader, Record, RecordBuilder, Records};

/// Encodes a broker's single records as batches in the log's format: the answer to
/// [`Broker::fetch`](super::Broker::fetch).
#[derive(Debug)]
pub struct BatchEncoder {
    bytes: BytesMut,
    builder: RecordBuilder,
    base: u64,
    next: u64,
    time: u64,
}

impl BatchEncoder {
    /// Creates an encoder without records, for a fetch from this offset on.
    #[must_use]
    pub fn new(from: u64) -> Self {
        Self { bytes: BytesMut::new(), builder: RecordBuilder::new(), base: from, next: from, time: 0 }
    }

    /// The offset behind the last record; without records, the offset of the fetch.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of the records so far, for comparison with the maximum of the fetch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.builder.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a record. A record that exceeds the batch limit is skipped.
    pub fn push(&mut self, record: &Record<'_>) {
        let offset = record.offset;
        if offset != self.base + u64::from(self.builder.count()) || self.builder.len() >= BATCH_BYTES {
            self.end_batch();
        }
        if self.builder.is_empty() {
            self.base = offset;
        }
        if self.builder.push_record(record).is_err() && !self.builder.is_empty() {
            self.end_batch();
            self.base = offset;
            // A record that does not fit into an empty batch is skipped.
            let _ = self.builder.push_record(record);
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

    /// The batches of all records.
    #[must_use]
    pub fn finish(mut self) -> ReadResult {
        self.end_batch();
        ReadResult { batches: self.bytes.freeze(), next: self.next }
    }
}

fn newest(records: &Records) -> u64 {
    records.iter().flatten().map(|record| record.timestamp).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{self, RECORD_HEADER, ValueKind};

    #[test]
    fn record_that_does_not_fit_begins_a_new_batch() {
        let mut batches = BatchEncoder::new(7);
        let most = (8 << 20) - RECORD_HEADER;
        for (offset, size) in [(7, 1), (8, most), (9, 1), (10, most + 1), (11, 1)] {
            let value = vec![0; size];
            batches.push(&Record { offset, timestamp: 1, key: b"", value: &value, kind: ValueKind::Bytes });
        }
        let read = batches.finish();
        let found = record::iter(&read.batches).flat_map(|batch| batch.unwrap().records());
        let offsets: Vec<u64> = found.map(|record| record.unwrap().offset).collect();
        assert_eq!((offsets, read.next), (vec![7, 8, 9, 11], 12));
    }
}
