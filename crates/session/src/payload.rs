//! Messages as handlers see them.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use sinews_proto::Kind;

/// A received message, borrowed by its handler.
#[derive(Debug)]
pub struct Payload<'a> {
    kind: Kind,
    source: PayloadSource<'a>,
}

#[derive(Debug)]
enum PayloadSource<'a> {
    /// In the driver's receive buffer.
    Chunk(&'a mut [u8]),
    /// Assembled in a buffer of the connection.
    Assembly(&'a mut Vec<u8>),
}

impl<'a> Payload<'a> {
    pub(crate) fn chunk(kind: Kind, bytes: &'a mut [u8]) -> Self {
        Self { kind, source: PayloadSource::Chunk(bytes) }
    }

    pub(crate) fn assembly(kind: Kind, buffer: &'a mut Vec<u8>) -> Self {
        Self { kind, source: PayloadSource::Assembly(buffer) }
    }

    /// Text or binary.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the payload of a text message. The session validated it on receipt; this call validates it
    /// again (at some 30 GB/s for ASCII). A handler that only forwards bytes should not call it.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self.kind {
            Kind::Text => std::str::from_utf8(self).ok(),
            Kind::Binary => None,
        }
    }

    /// Returns an owned payload that outlives the handler. A large message that was assembled in a buffer
    /// of its own is moved. Any other message is copied, so a small message never pins a large buffer.
    #[must_use]
    pub fn detach(self) -> Bytes {
        match self.source {
            PayloadSource::Assembly(buffer) if is_worth_moving(buffer) => Bytes::from(std::mem::take(buffer)),
            PayloadSource::Assembly(buffer) => Bytes::copy_from_slice(buffer),
            PayloadSource::Chunk(bytes) => Bytes::copy_from_slice(bytes),
        }
    }

    /// Whether [`detach`](Self::detach) moves the buffer.
    #[inline]
    pub(crate) fn is_movable(&self) -> bool {
        match &self.source {
            PayloadSource::Assembly(buffer) => is_worth_moving(buffer),
            PayloadSource::Chunk(_) => false,
        }
    }
}

/// Smallest message whose buffer is moved. For smaller messages a copy costs less than a new buffer.
const MOVE_MIN: usize = 16 << 10;

fn is_worth_moving(buffer: &Vec<u8>) -> bool {
    buffer.len() >= MOVE_MIN && buffer.len() > buffer.capacity() / 2
}

impl Deref for Payload<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.source {
            PayloadSource::Chunk(bytes) => bytes,
            PayloadSource::Assembly(buffer) => buffer,
        }
    }
}

impl DerefMut for Payload<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.source {
            PayloadSource::Chunk(bytes) => bytes,
            PayloadSource::Assembly(buffer) => buffer,
        }
    }
}

/// A piece of a message, in fragment delivery. Its boundaries have no meaning.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fragment<'a> {
    /// Text or binary.
    pub kind: Kind,
    /// The bytes. In text, a boundary may split a code point; validation covers the whole message.
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
