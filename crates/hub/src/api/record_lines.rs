//! Records as JSON lines, which are encoded as the client takes them.

use bytes::Bytes;
use sinews_server::BodySource;

use crate::model::json_list::TextLen;
use crate::streams::json::write_record;
use crate::streams::records_from::records_from;

/// Piece size in bytes from which on the next piece begins.
const PIECE_BYTES: u64 = 16 << 10;

/// The body of an answer with records. It refers to batches, which are mostly file pages.
#[derive(Default)]
pub(super) struct RecordLines {
    reads: Vec<ReadBatches>,
    pieces: Vec<LinesPiece>,
    len: u64,
}

/// The batches of one read.
struct ReadBatches {
    /// The partition's field.
    prefix: String,
    batches: Bytes,
}

/// Some lines of one read.
struct LinesPiece {
    read: usize,
    /// Offset of the first record.
    from: u64,
    records: usize,
    bytes: u64,
}

impl RecordLines {
    /// Returns the bytes of the lines so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.len
    }

    /// Adds at most `max` records of a read from an offset on, until the lines have `bytes_max` bytes. Returns their
    /// number.
    pub(super) fn push(
        &mut self,
        partition: u32,
        batches: Bytes,
        from: u64,
        max: usize,
        bytes_max: u64,
    ) -> usize {
        let prefix = format!("\"partition\":{partition},");
        let (read, mut added) = (self.reads.len(), 0);
        for record in records_from(&batches, from).take(max) {
            if self.len >= bytes_max {
                break;
            }
            let mut line = TextLen::default();
            write_record(&record, &prefix, &mut line);
            let bytes = line.bytes() as u64 + 1;
            match self.pieces.last_mut().filter(|piece| piece.read == read && piece.bytes < PIECE_BYTES) {
                Some(piece) => {
                    piece.records += 1;
                    piece.bytes += bytes;
                }
                None => self.pieces.push(LinesPiece { read, from: record.offset, records: 1, bytes }),
            }
            self.len += bytes;
            added += 1;
        }
        if added > 0 {
            self.reads.push(ReadBatches { prefix, batches });
        }
        added
    }
}

impl BodySource for RecordLines {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn memory(&self) -> usize {
        let batches: usize = self.reads.iter().map(|read| read.batches.len()).sum();
        batches + self.pieces.len() * size_of::<LinesPiece>()
    }

    fn write_piece(&self, number: usize, out: &mut Vec<u8>) {
        let Some(piece) = self.pieces.get(number) else { return };
        let Some(ReadBatches { prefix, batches }) = self.reads.get(piece.read) else { return };
        let mut lines = String::new();
        for record in records_from(batches, piece.from).take(piece.records) {
            write_record(&record, prefix, &mut lines);
            lines.push('\n');
        }
        out.extend_from_slice(lines.as_bytes());
    }
}
