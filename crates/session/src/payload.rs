//! A message as its handler sees it.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use sinews_proto::Kind;

/// A received message, lent to its handler.
#[derive(Debug)]
pub struct Payload<'a> {
    kind: Kind,
    source: Source<'a>,
}

#[derive(Debug)]
enum Source<'a> {
    /// In the driver's receive buffer.
    Chunk(&'a mut [u8]),
    /// Put together in a buffer of the connection.
    Assembly(&'a mut Vec<u8>),
}

impl<'a> Payload<'a> {
    pub(crate) fn chunk(kind: Kind, bytes: &'a mut [u8]) -> Self {
        Self { kind, source: Source::Chunk(bytes) }
    }

    pub(crate) fn assembly(kind: Kind, buffer: &'a mut Vec<u8>) -> Self {
        Self { kind, source: Source::Assembly(buffer) }
    }

    /// Text or binary.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The text, if this is text. It was checked on receipt; this looks at it a second time (at some
    /// 30 GB/s for ASCII), so a handler that only passes bytes on should not ask.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self.kind {
            Kind::Text => std::str::from_utf8(self).ok(),
            Kind::Binary => None,
        }
    }

    /// Keeps the message beyond the handler. A large message that was put together in a buffer of its
    /// own is handed over whole; anything else is copied, so that a small message that is kept never
    /// pins a large block.
    #[must_use]
    pub fn detach(self) -> Bytes {
        match self.source {
            Source::Assembly(buffer) if is_handed_over(buffer) => Bytes::from(std::mem::take(buffer)),
            Source::Assembly(buffer) => Bytes::copy_from_slice(buffer),
            Source::Chunk(bytes) => Bytes::copy_from_slice(bytes),
        }
    }

    /// Whether [`detach`](Self::detach) hands the buffer over.
    #[inline]
    pub(crate) fn is_movable(&self) -> bool {
        match &self.source {
            Source::Assembly(buffer) => is_handed_over(buffer),
            Source::Chunk(_) => false,
        }
    }
}

/// Smallest message whose buffer is handed over: below it a copy is cheaper than what the buffer costs
/// to replace.
const HAND_OVER_MIN: usize = 16 << 10;

fn is_handed_over(buffer: &Vec<u8>) -> bool {
    buffer.len() >= HAND_OVER_MIN && buffer.len() > buffer.capacity() / 2
}

impl Deref for Payload<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Chunk(bytes) => bytes,
            Source::Assembly(buffer) => buffer,
        }
    }
}

impl DerefMut for Payload<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.source {
            Source::Chunk(bytes) => bytes,
            Source::Assembly(buffer) => buffer,
        }
    }
}

/// A piece of a message, in fragment delivery. Its edges carry no meaning.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fragment<'a> {
    /// Text or binary.
    pub kind: Kind,
    /// The bytes. In text, a code point may be cut by the edge; the whole is checked.
    pub bytes: &'a mut [u8],
    /// The message begins here.
    pub first: bool,
    /// The message ends here.
    pub last: bool,
}

impl<'a> Fragment<'a> {
    pub(crate) fn new(kind: Kind, bytes: &'a mut [u8], first: bool, last: bool) -> Self {
        Self { kind, bytes, first, last }
    }
}
