//! Bodies of responses that are encoded as the client takes them.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

/// Content of a response that is encoded piece by piece, as the client takes it ([`Response::with_source`]). A client that opens
/// no window then costs the state of the source instead of the encoded body.
///
/// ```
/// use sinews_server::{BodySource, Response};
///
/// /// Numbers, one a line.
/// struct Numbers(u64);
///
/// impl BodySource for Numbers {
///     fn len(&self) -> u64 {
///         9 * self.0
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
/// assert_eq!(response.body_len(), 9_000_000);
/// ```
///
/// [`Response::with_source`]: crate::Response::with_source
pub trait BodySource: Send + Sync {
    /// Returns the length of the body in bytes: `Content-Length`.
    fn len(&self) -> u64;

    /// Returns whether the body is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that the source holds or refers to, until its end.
    fn memory(&self) -> usize;

    /// Appends the piece with this number, from 0 on, until the pieces have the length of the body. Few KiB are best: a piece
    /// is encoded once, and the part that the client does not take yet is kept. A piece without bytes ends the response early,
    /// as an error.
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
    /// Bytes of the body that are not taken.
    left: u64,
}

impl SourcePart {
    pub(crate) fn new(source: impl BodySource + 'static) -> Self {
        let left = source.len();
        Self { source: Arc::new(source), next: 0, encoded: Bytes::new(), left }
    }

    /// Returns the bytes that are not taken.
    pub(crate) const fn len(&self) -> u64 {
        self.left
    }

    /// Returns the bytes of memory that the rest holds or refers to.
    pub(crate) fn memory(&self) -> usize {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        self.source.memory().min(left) + self.encoded.len()
    }

    /// Takes the next bytes: at most `most`, and fewer at the end only.
    ///
    /// # Errors
    /// The source ends before its length.
    pub(crate) fn read(&mut self, most: usize) -> io::Result<Bytes> {
        let count = usize::try_from(self.left).unwrap_or(most).min(most);
        if self.encoded.len() < count {
            let mut out = Vec::with_capacity(count);
            out.extend_from_slice(&self.encoded);
            while out.len() < count {
                let before = out.len();
                self.source.write_piece(self.next, &mut out);
                self.next += 1;
                if out.len() == before {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "body ends before its length"));
                }
            }
            self.encoded = out.into();
        }
        self.left -= count as u64;
        let taken = self.encoded.split_to(count);
        if self.left == 0 || self.encoded.is_empty() {
            self.encoded = Bytes::new();
        }
        Ok(taken)
    }
}

impl fmt::Debug for SourcePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcePart").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of these lengths, and the declared length.
    struct Pieces(&'static [usize], u64);

    impl BodySource for Pieces {
        fn len(&self) -> u64 {
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
        for most in [1, 2, 3, 4, 9, 100] {
            let mut part = SourcePart::new(Pieces(&[1, 5, 2, 1], 9));
            assert_eq!(part.memory(), 7);
            let mut body = Vec::new();
            while part.len() > 0 {
                let piece = part.read(most).unwrap();
                assert_eq!(piece.len(), most.min(9 - body.len()));
                body.extend_from_slice(&piece);
            }
            assert_eq!(body, b"011111223", "{most}");
            assert_eq!((part.read(most).unwrap().len(), part.memory()), (0, 0));
        }
    }

    #[test]
    fn body_is_cut_at_its_length_and_a_source_that_ends_early_fails() {
        let mut long = SourcePart::new(Pieces(&[4, 4], 6));
        assert_eq!((long.read(5).unwrap(), long.read(5).unwrap()), (Bytes::from("00001"), Bytes::from("1")));
        let mut short = SourcePart::new(Pieces(&[2], 3));
        assert_eq!(short.read(2).unwrap(), "00");
        assert_eq!(short.read(1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
