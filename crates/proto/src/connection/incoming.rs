//! Receive state: the position in the frame stream, the message under assembly, the decompressor.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sinews_simd::Utf8Stream;

use super::event::{Event, Kind, PayloadLocation};
use super::per_thread::PerThread;
use crate::deflate::{DeflateSetup, Inflater};
use crate::{PeerMisbehaved, Role};

/// Position in the stream of frames.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReceiveStage {
    /// A head comes next.
    Head,
    /// Payload of a data frame comes next.
    Payload(PartialFrame),
    /// The last payload byte of a compressed message is consumed and output is still pending.
    Flush,
}

/// A data frame with an incomplete payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialFrame {
    pub(super) remaining: u64,
    /// Rotated so that its first byte applies to the next byte of the payload.
    pub(super) key: [u8; 4],
    pub(super) fin: bool,
}

/// Declared length of an uncompressed message so far, already checked against the limit.
pub(super) struct DeclaredLength {
    pub(super) bytes: u64,
    /// Whether the last frame has begun.
    pub(super) whole: bool,
}

/// A message that has begun. A continuation without a start has no storage.
#[derive(Debug)]
pub(super) struct IncomingMessage {
    pub(super) kind: Kind,
    pub(super) compressed: bool,
    /// Delivered in pieces.
    pub(super) pieces: bool,
    /// A piece was delivered.
    pub(super) begun: bool,
    /// The assembly contains a delivered piece.
    pub(super) is_delivered: bool,
    /// Inflating stopped for lack of capacity.
    pub(super) more_output: bool,
    pub(super) utf8: Utf8Stream,
    /// Declared payload bytes of the frames so far.
    pub(super) wire: u64,
    /// Bytes of the message that earlier pieces removed from the assembly.
    pub(super) delivered: u64,
    pub(super) fragments: u32,
    pub(super) empty_fragments: u32,
}

/// Decompression of the peer's messages.
pub(super) struct ReceiveCompression {
    /// The peer's window persists across messages.
    pub(super) takeover: bool,
    pub(super) window_bits: u8,
    pub(super) context: Option<Box<Inflater>>,
    /// The window between messages, if the context is shared in spite of the takeover.
    window: Option<Vec<u8>>,
}

impl core::fmt::Debug for ReceiveCompression {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inflate").field("takeover", &self.takeover).finish_non_exhaustive()
    }
}

impl ReceiveCompression {
    pub(super) fn new(setup: &DeflateSetup, role: Role) -> Self {
        let params = setup.params;
        let (no_takeover, window_bits) = match role {
            Role::Server => (params.client_no_context_takeover, params.client_max_window_bits),
            Role::Client => (params.server_no_context_takeover, params.server_max_window_bits),
        };
        let takeover = !no_takeover;
        let window = (takeover && setup.is_shared).then(Vec::new);
        Self { takeover, window_bits, context: None, window }
    }

    pub(super) fn context(&mut self, shared: &mut PerThread) -> &mut Inflater {
        self.context.get_or_insert_with(|| match &self.window {
            None if self.takeover => Box::new(Inflater::new(self.window_bits)),
            None => shared.contexts.take_inflater(),
            Some(window) => {
                let mut context = shared.contexts.take_inflater();
                context.resume(window);
                context
            }
        })
    }

    /// Ends the message: a shared context returns to the pool.
    pub(super) fn finish(&mut self, shared: &mut PerThread) {
        if let Some(context) = self.context.take_if(|_| !self.takeover || self.window.is_some()) {
            if let Some(window) = &mut self.window {
                *window = context.window();
            }
            shared.contexts.put_inflater(context);
        }
    }
}

impl PartialFrame {
    pub(super) fn advance(&mut self, used: usize) {
        self.remaining -= used as u64;
        self.key.rotate_left(used % 4);
    }
}

#[inline]
pub(super) fn check_text(open: &mut IncomingMessage, bytes: &[u8]) -> Result<(), PeerMisbehaved> {
    if open.kind == Kind::Text && open.utf8.push(bytes).is_err() {
        return Err(PeerMisbehaved::InvalidUtf8);
    }
    Ok(())
}

#[inline]
pub(super) fn finish_text(open: &mut IncomingMessage) -> Result<(), PeerMisbehaved> {
    if open.kind == Kind::Text && open.utf8.finish().is_err() {
        return Err(PeerMisbehaved::InvalidUtf8);
    }
    Ok(())
}

pub(super) fn piece_event(open: &mut IncomingMessage, last: bool) -> Event {
    open.is_delivered = true;
    let first = !core::mem::replace(&mut open.begun, true);
    Event::Fragment { kind: open.kind, at: PayloadLocation::Assembly, first, last }
}

/// Removes the piece that the last event lent from the assembly.
pub(super) fn clear_delivered(open: &mut IncomingMessage, assembly: &mut Vec<u8>) {
    if core::mem::take(&mut open.is_delivered) {
        open.delivered += assembly.len() as u64;
        assembly.clear();
    }
}

/// Maximum bytes that inflating may append: up to the limit; in fragment delivery at most a piece.
pub(super) fn output_capacity(open: &IncomingMessage, assembly: &[u8], max_message: u64) -> usize {
    let received = open.delivered.saturating_add(assembly.len() as u64);
    let room = max_message.saturating_sub(received);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if open.pieces { room.min(PIECE_MAX.saturating_sub(assembly.len())) } else { room }
}

/// Largest piece that inflating delivers at once in fragment delivery: the usual size of a driver's receive
/// buffer.
const PIECE_MAX: usize = 64 << 10;
