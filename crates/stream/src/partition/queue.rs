//! Queue of batches waiting to be written.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::pending::Completer;
use crate::record::{BATCH_HEADER, BatchHeader, Records};
use crate::seal::Seal;

/// Waiting batches as the bytes of the file, except for the headers, which depend on the position in the file.
#[derive(Default)]
pub(super) struct WriteQueue {
    batches: VecDeque<QueuedBatch>,
    /// The header of a batch is at the start of or within a [`QueueBuffer::Copied`]. Its records follow there, or are the
    /// next piece; then the header ends its piece.
    pieces: VecDeque<QueueBuffer>,
    tail: BytesMut,
}

/// Bytes in waiting batches.
pub(super) enum QueueBuffer {
    /// Space for headers, and small records.
    Copied(BytesMut),
    /// Large records, not copied.
    Shared(Bytes),
}

impl QueueBuffer {
    fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }
}

/// A waiting batch and its completer.
pub(super) struct QueuedBatch {
    pub(super) header: BatchHeader,
    pub(super) completer: Completer,
}

/// Maximum size for records that are copied: copying costs less than a separate piece, and does not retain a
/// connection's buffer, of which the records may be a small part.
const COPIED_MAX: usize = 16 << 10;

/// Maximum bytes in one write, except for a larger batch: so later batches do not wait long.
pub(super) const WRITE_MAX: u64 = 8 << 20;

impl WriteQueue {
    pub(super) fn push(&mut self, header: BatchHeader, records: &Records, completer: Completer) {
        self.tail.extend_from_slice(&[0; BATCH_HEADER]);
        if records.bytes().len() <= COPIED_MAX {
            self.tail.extend_from_slice(records.bytes());
        } else {
            self.pieces.push_back(QueueBuffer::Copied(self.tail.split()));
            self.pieces.push_back(QueueBuffer::Shared(records.bytes().clone()));
        }
        self.batches.push_back(QueuedBatch { header, completer });
    }

    /// The next batch.
    pub(super) fn first(&self) -> Option<&BatchHeader> {
        self.batches.front().map(|batch| &batch.header)
    }

    /// Takes batches of at most `most` bytes, which must include the first, and stops before a batch whose time goes
    /// back: that batch begins a segment. [`seal`] writes their headers.
    pub(super) fn take(&mut self, most: u64) -> (Vec<QueuedBatch>, Vec<QueueBuffer>) {
        let (mut bytes, mut time) = (0, 0);
        let fitting = self.batches.iter().take_while(|batch| {
            let goes_back = batch.header.appended < time;
            bytes += u64::from(batch.header.length);
            time = batch.header.appended;
            bytes <= most && !goes_back
        });
        let count = fitting.count();
        let batches: Vec<QueuedBatch> = self.batches.drain(..count).collect();
        if !self.tail.is_empty() {
            self.pieces.push_back(QueueBuffer::Copied(self.tail.split()));
        }
        let mut rest = batches.iter().map(|batch| batch.header.length as usize).sum::<usize>();
        let mut pieces = Vec::new();
        while rest > 0 {
            // The pieces hold exactly the batches, so a piece remains while bytes of a batch are missing.
            let Some(piece) = self.pieces.pop_front() else { break };
            let piece = match piece {
                QueueBuffer::Copied(mut bytes) if bytes.len() > rest => {
                    let taken = bytes.split_to(rest);
                    self.pieces.push_front(QueueBuffer::Copied(bytes));
                    QueueBuffer::Copied(taken)
                }
                // Records are never separated from their header.
                piece => piece,
            };
            rest = rest.saturating_sub(piece.len());
            pieces.push(piece);
        }
        (batches, pieces)
    }

    /// Takes all batches, which will not be written.
    pub(super) fn clear(&mut self) -> Vec<QueuedBatch> {
        self.pieces.clear();
        self.tail.clear();
        self.batches.drain(..).collect()
    }
}

/// Writes the headers of batches that are stored from this position on.
pub(super) fn seal(
    batches: &mut [QueuedBatch],
    mut pieces: Vec<QueueBuffer>,
    seal: &Seal,
    mut position: u64,
) -> Vec<Bytes> {
    let mut piece = 0;
    let mut at = 0;
    for batch in batches {
        batch.header = batch.header.sealed(seal, position);
        position += u64::from(batch.header.length);
        if let Some(QueueBuffer::Copied(bytes)) = pieces.get_mut(piece) {
            bytes[at..at + BATCH_HEADER].copy_from_slice(&batch.header.encode());
            at += BATCH_HEADER;
            if at == bytes.len() {
                // The batch's records are the next piece.
                (piece, at) = (piece + 2, 0);
                continue;
            }
            at += batch.header.length as usize - BATCH_HEADER;
            if at == bytes.len() {
                (piece, at) = (piece + 1, 0);
            }
        }
    }
    let freeze = |piece| match piece {
        QueueBuffer::Copied(bytes) => bytes.freeze(),
        QueueBuffer::Shared(bytes) => bytes,
    };
    pieces.into_iter().map(freeze).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending::Pending;
    use crate::record::{RecordBuilder, ValueKind};

    #[test]
    fn queued_batches_are_written_in_order_and_unchanged() {
        let mut queue = WriteQueue::default();
        let mut file = Vec::new();
        let key = Seal::new(0, (1, 2));
        let sizes = [1, 100, COPIED_MAX * 2, 5, COPIED_MAX * 3, COPIED_MAX * 3, 7, 8];
        for (base, size) in sizes.into_iter().enumerate() {
            let mut builder = RecordBuilder::new();
            builder.push(0, b"", &vec![base as u8; size], ValueKind::Bytes).unwrap();
            let records = builder.finish().unwrap();
            let header = BatchHeader::new(&records, base as u64, 0);
            file.extend_from_slice(&header.sealed(&key, 1000 + file.len() as u64).encode());
            file.extend_from_slice(records.bytes());
            queue.push(header, &records, Pending::channel(1).0);
        }
        let mut taken = Vec::new();
        let mut counts = Vec::new();
        while let Some(first) = queue.first() {
            let most = u64::from(first.length) + 400;
            let (mut batches, pieces) = queue.take(most);
            let pieces = seal(&mut batches, pieces, &key, 1000 + taken.len() as u64);
            counts.push(batches.len());
            assert!(pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() <= most);
            pieces.iter().for_each(|piece| taken.extend_from_slice(piece));
        }
        assert_eq!((counts, taken == file), (vec![2, 2, 1, 3], true));
        assert!(queue.take(u64::MAX).1.is_empty());
    }
}
