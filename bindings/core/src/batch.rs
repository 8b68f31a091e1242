//! A burst's events.

use sinews_proto::Kind;
use sinews_session::{Events, Fragment, Payload, Tx};

/// An event's kind. Its number is the frame's opcode (RFC 6455 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(clippy::exhaustive_enums, reason = "an interpreter must handle each")]
pub enum EventKind {
    /// A text message, which is valid UTF-8.
    Text = 1,
    /// A binary message.
    Binary = 2,
    /// A ping. The connection answers it.
    Ping = 9,
    /// A pong.
    Pong = 10,
}

impl EventKind {
    const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Text,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => Self::Binary,
        }
    }
}

/// An event of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEvent {
    /// Message or control frame.
    pub kind: EventKind,
    /// Whether the payload is in [`Batch::bytes`]; otherwise it is in the received chunk.
    pub is_copied: bool,
    /// The payload's first byte.
    pub start: usize,
    /// The payload's length in bytes.
    pub len: usize,
}

/// A burst's events in order, for one crossing into the interpreter.
///
/// A payload that is complete in the received chunk stays there: the interpreter takes a view. Other payloads are copied
/// into the batch, one after the other.
#[derive(Debug, Default)]
pub struct Batch {
    /// [`WORDS`] numbers for each event.
    words: Vec<u32>,
    bytes: Vec<u8>,
    /// The received chunk's address and length.
    chunk: (usize, usize),
}

/// Numbers for each event: kind, 1 if the payload was copied, start, length.
const WORDS: usize = 4;

impl Batch {
    /// Creates an empty batch. Reuse it: its memory stays.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the events, and frees memory for payloads above this many bytes.
    pub fn clear(&mut self, kept_bytes: usize) {
        self.words.clear();
        self.bytes.clear();
        self.bytes.shrink_to(kept_bytes);
    }

    /// The events as numbers: for each kind, 1 if the payload is in [`bytes`](Self::bytes) and 0 if it is in the received
    /// chunk, its start, its length.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The copied payloads.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the copied payloads.
    #[must_use]
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The events.
    pub fn events(&self) -> impl Iterator<Item = BatchEvent> {
        self.words.chunks_exact(WORDS).map(|words| BatchEvent {
            kind: EventKind::from_number(words[0]),
            is_copied: words[1] != 0,
            start: words[2] as usize,
            len: words[3] as usize,
        })
    }

    /// Returns an event's payload, given the chunk that was received with it.
    ///
    /// # Panics
    /// If the chunk is not the one of the event.
    #[must_use]
    pub fn payload<'a>(&'a self, event: BatchEvent, chunk: &'a [u8]) -> &'a [u8] {
        let source = if event.is_copied { &self.bytes } else { chunk };
        &source[event.start..event.start + event.len]
    }

    pub(crate) fn set_chunk(&mut self, chunk: &[u8]) {
        self.chunk = (chunk.as_ptr().addr(), chunk.len());
    }

    fn push(&mut self, kind: EventKind, payload: &[u8]) {
        let (chunk, len) = self.chunk;
        let offset = payload.as_ptr().addr().wrapping_sub(chunk);
        let is_in_chunk = offset < len && payload.len() <= len - offset;
        let start = if is_in_chunk { offset } else { self.bytes.len() };
        if !is_in_chunk {
            self.bytes.extend_from_slice(payload);
        }
        // Chunks and messages have at most 4 GiB: `Connection::new` limits messages.
        self.words.extend([kind as u32, u32::from(!is_in_chunk), start as u32, payload.len() as u32]);
    }
}

impl Events for Batch {
    fn message(&mut self, payload: Payload<'_>, _: &mut Tx<'_>) {
        self.push(if payload.kind() == Kind::Text { EventKind::Text } else { EventKind::Binary }, &payload);
    }

    fn fragment(&mut self, _: Fragment<'_>, _: &mut Tx<'_>) {
        // Fragments are not delivered: `Connection` never asks for them.
    }

    fn ping(&mut self, payload: &[u8], _: &mut Tx<'_>) {
        self.push(EventKind::Ping, payload);
    }

    fn pong(&mut self, payload: &[u8], _: Option<std::time::Duration>, _: &mut Tx<'_>) {
        self.push(EventKind::Pong, payload);
    }

    /// The rest of a chunk waits if the copied payloads have passed the limit.
    fn pauses(&self) -> bool {
        self.bytes.len() >= COPIED_MAX
    }
}

/// Copied bytes in a batch, after which the rest of the chunk waits.
const COPIED_MAX: usize = 64 << 20;
