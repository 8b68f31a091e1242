//! Bodies of responses that are encoded as the client takes them.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

/// Content of a response that is encoded piece by piece, as the client takes it ([`Response::with_source`]). A client
/// that opens no window then costs the state of the source instead of the encoded body.
///
/// ```
/// use sinews_server::{BodySource, Response};
///
/// /// Numbers, one a line.
/// struct Numbers(u64);
///
/// impl BodySource for Numbers {
///     fn len(&self) -> Option<u64> {
///         Some(9 * self.0)
///     }
///
///     fn memory(&self) -> usize {
///         0
///     }
///
///     fn write_piece(&self, number: usize, out: &mut Vec<u8>) {
///         out.extend_from_slice(format!("{number:08}\n").as_bytes());
///     }
/// }
///
/// let response = Response::new(200).with_source(Numbers(1_000_000));
/// assert_eq!(response.body_len(), Some(9_000_000));
/// ```
///
/// [`Response::with_source`]: crate::Response::with_source
pub trait BodySource: Send + Sync {
    /// Returns the length of the body in bytes: `Content-Length`. `None` if it is not known before the end: HTTP/1.1
    /// sends such a body in chunks, and HTTP/1.0 closes the connection behind it.
    fn len(&self) -> Option<u64>;

    /// Returns whether the body is empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Returns the bytes of memory that the source holds or refers to, until its end.
    fn memory(&self) -> usize;

    /// Appends the piece with this number, from 0 on, until the pieces have the length of the body. Few KiB are best: a
    /// piece is encoded once, and the part that the client does not take yet is kept. A piece without bytes is the end
    /// of a body of unknown length. It ends a body of known length early, as an error.
    fn write_piece(&self, number: usize, out: &mut Vec<u8>);
}

/// The rest of a body that is encoded in pieces.
#[derive(Clone)]
pub(crate) struct SourcePart {
    source: Arc<dyn BodySource>,
    /// Number of the next piece.
    next: usize,
    /// Encoded bytes that are not taken.
    encoded: Bytes,
    /// Bytes of the body that are not taken, if its length is known.
    left: Option<u64>,
    /// The source has no more pieces.
    has_ended: bool,
}

impl SourcePart {
    pub(crate) fn new(source: impl BodySource + 'static) -> Self {
        let left = source.len();
        Self { source: Arc::new(source), next: 0, encoded: Bytes::new(), left, has_ended: left == Some(0) }
    }

    /// Returns the bytes that are not taken, if the length of the body is known.
    pub(crate) const fn len(&self) -> Option<u64> {
        self.left
    }

    /// Returns whether all bytes are taken.
    pub(crate) fn is_finished(&self) -> bool {
        self.has_ended && self.encoded.is_empty()
    }

    /// Returns the bytes of memory that the rest holds or refers to.
    pub(crate) fn memory(&self) -> usize {
        if self.has_ended {
            return self.encoded.len();
        }
        let left = self.left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        self.source.memory().min(left) + self.encoded.len()
    }

    /// Takes the next bytes: at most `most`, and fewer at the end only.
    ///
    /// # Errors
    /// The source ends before its length.
    pub(crate) fn read(&mut self, most: usize) -> io::Result<Bytes> {
        let Some(left) = self.left else {
            // One byte more tells whether the body ends here.
            self.encode(most.saturating_add(1));
            return Ok(self.take(most));
        };
        let count = usize::try_from(left).unwrap_or(most).min(most);
        self.encode(count);
        if self.encoded.len() < count {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "body ends before its length"));
        }
        let left = left - count as u64;
        self.left = Some(left);
        let taken = self.take(count);
        if left == 0 {
            (self.encoded, self.has_ended) = (Bytes::new(), true);
        }
        Ok(taken)
    }

    /// Encodes pieces until there are `count` bytes, or no more pieces.
    fn encode(&mut self, count: usize) {
        if self.has_ended || self.encoded.len() >= count {
            return;
        }
        let mut out = Vec::with_capacity(count.min(CAPACITY_MAX));
        out.extend_from_slice(&self.encoded);
        while out.len() < count && !self.has_ended {
            let before = out.len();
            self.source.write_piece(self.next, &mut out);
            self.next += 1;
            self.has_ended = out.len() == before;
        }
        self.encoded = out.into();
    }

    /// Takes up to `most` encoded bytes.
    fn take(&mut self, most: usize) -> Bytes {
        let taken = self.encoded.split_to(self.encoded.len().min(most));
        if self.encoded.is_empty() {
            self.encoded = Bytes::new();
        }
        taken
    }
}

/// Maximum of the capacity that a buffer for pieces begins with.
const CAPACITY_MAX: usize = 128 << 10;

impl fmt::Debug for SourcePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcePart").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of these lengths, and the declared length.
    struct Pieces(&'static [usize], Option<u64>);

    impl BodySource for Pieces {
        fn len(&self) -> Option<u64> {
            self.1
        }

        fn memory(&self) -> usize {
            7
        }

        fn write_piece(&self, number: usize, out: &mut Vec<u8>) {
            let len = self.0.get(number).copied().unwrap_or(0);
            out.resize(out.len() + len, b'0' + number as u8);
        }
    }

    #[test]
    fn pieces_are_cut_and_joined_to_the_wanted_length() {
        for (most, len) in [1, 2, 3, 4, 9, 100].into_iter().flat_map(|most| [(most, Some(9)), (most, None)]) {
            let mut part = SourcePart::new(Pieces(&[1, 5, 2, 1], len));
            assert_eq!((part.memory(), part.len()), (7, len));
            let mut body = Vec::new();
            while !part.is_finished() {
                let piece = part.read(most).unwrap();
                assert_eq!(piece.len(), most.min(9 - body.len()));
                body.extend_from_slice(&piece);
            }
            assert_eq!(body, b"011111223", "{most} of {len:?}");
            assert_eq!((part.read(most).unwrap().len(), part.memory()), (0, 0));
        }
    }

    #[test]
    fn body_is_cut_at_its_length_and_a_source_that_ends_early_fails() {
        let mut long = SourcePart::new(Pieces(&[4, 4], Some(6)));
        assert_eq!((long.read(5).unwrap(), long.read(5).unwrap()), (Bytes::from("00001"), Bytes::from("1")));
        let mut short = SourcePart::new(Pieces(&[2], Some(3)));
        assert_eq!(short.read(2).unwrap(), "00");
        assert_eq!(short.read(1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut empty = SourcePart::new(Pieces(&[], None));
        assert!(!empty.is_finished(), "not known yet");
        assert_eq!((empty.read(4).unwrap().len(), empty.is_finished()), (0, true));
    }
}
