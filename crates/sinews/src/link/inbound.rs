//! Receiving: from received bytes to events and messages.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use sinews_proto::{Kind, PayloadLocation};
use sinews_session::ReceivedEvent;
use sinews_simd::Utf8Bytes;

use super::state::{InboundState, Link};
use crate::message::{Message, MessageRef};
use crate::resources::{self, BLOCK};

/// A borrowed message.
#[derive(Debug)]
pub(crate) struct BorrowedMessage {
    kind: Kind,
    /// Its position; `None`: the message is in the buffer of gathered pieces.
    at: Option<PayloadLocation>,
}

/// The destination of the next receive.
#[derive(Debug)]
pub(crate) enum ReceiveBuffer {
    /// A block, behind its contents.
    Block(Vec<u8>),
    /// The memory of a large message, at most so many bytes.
    Message(Vec<u8>, usize),
}

/// A remainder of a block up to this size moves into memory of its own, so that a connection with a busy application
/// pins no block.
const REMAINDER_MAX: usize = 2 << 10;

/// Smallest message whose memory is handed over: below it a copy is cheaper than replacing the memory.
const HAND_OVER_MIN: usize = 16 << 10;

impl InboundState {
    /// The received input that is not yet processed.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.block[self.at..]
    }

    /// Called once the application has its message: returns the block to the pool, or moves a small remainder into
    /// memory of its size.
    #[inline]
    fn shrink_block(&mut self) {
        let left = self.block.len() - self.at;
        if self.block.capacity() == 0 || left > REMAINDER_MAX || left > 0 && self.block.capacity() != BLOCK {
            return;
        }
        let rest = self.block[self.at..].to_vec();
        resources::give_block(std::mem::replace(&mut self.block, rest));
        self.at = 0;
    }
}

impl Link {
    /// The next event in the received input; `None`: receive more.
    #[inline]
    pub(crate) fn pull(&mut self) -> Option<ReceivedEvent> {
        self.sync();
        if let Some(pending_event) = self.inbound.pending_event.take() {
            return Some(pending_event);
        }
        if self.inbound.exhausted {
            return None;
        }
        let (start, now) = (self.inbound.at, self.now);
        let input = &mut self.inbound.block[start..];
        let pulled = resources::with(|shared| self.session.pull(input, shared, now));
        self.inbound.at += pulled.consumed;
        self.note_closed();
        let Some(event) = pulled.event else {
            self.inbound.exhausted = true;
            self.inbound.shrink_block();
            self.debug_check();
            return None;
        };
        self.outbound.answers = 0;
        self.outbound.pong_queued |= matches!(event, ReceivedEvent::Ping(_));
        self.debug_check();
        Some(event.shifted(start))
    }

    /// The next event, if it is a whole message in the received input, as most are: its kind and its position.
    /// `None`: call [`pull`](Self::pull).
    #[inline]
    pub(crate) fn pull_whole(&mut self) -> Option<(Kind, Range<usize>)> {
        if self.inbound.exhausted || self.inbound.pending_event.is_some() {
            return None;
        }
        let (start, now) = (self.inbound.at, self.now);
        let input = &mut self.inbound.block[start..];
        let (kind, at) = self.session.pull_whole(input, now)?;
        self.inbound.at = start + at.end;
        self.inbound.exhausted = self.inbound.at == self.inbound.block.len();
        self.outbound.answers = 0;
        self.debug_check();
        Some((kind, start + at.start..start + at.end))
    }

    /// Converts a message into an owned one.
    #[inline(always)]
    pub(crate) fn detach_whole_message(&mut self, kind: Kind, at: Range<usize>) -> Message {
        let message = message(kind, self.detach(PayloadLocation::Input(at)));
        self.inbound.shrink_block();
        message
    }

    /// Stores an event for the next receive call.
    pub(crate) fn store_event(&mut self, event: ReceivedEvent) {
        self.inbound.pending_event = Some(event);
        self.debug_check();
    }

    /// Drops the parked event if it is handled already and no receive call has taken it: the next ping is behind it.
    pub(crate) fn drop_handled_event(&mut self) {
        if matches!(self.inbound.pending_event, Some(ReceivedEvent::Ping(_) | ReceivedEvent::Pong { .. })) {
            self.inbound.pending_event = None;
        }
    }

    /// Whether an event is parked for the next receive call.
    pub(crate) fn has_pending_event(&self) -> bool {
        self.inbound.pending_event.is_some()
    }

    /// Converts an event into an owned message. A piece yields none, unless it is the last of a message without a
    /// reader.
    #[inline(always)]
    pub(crate) fn detach_message(&mut self, event: ReceivedEvent) -> Option<Message> {
        let message = match event {
            ReceivedEvent::Message { kind, at } => message(kind, self.detach(at)),
            ReceivedEvent::Fragment { kind, at, first, last } => {
                if !self.gather(first, at, last) {
                    return None;
                }
                message(kind, Bytes::from(std::mem::take(&mut self.inbound.gathered)))
            }
            ReceivedEvent::Ping(at) => Message::Ping(Bytes::copy_from_slice(&self.inbound.block[at])),
            ReceivedEvent::Pong { at, .. } => Message::Pong(Bytes::copy_from_slice(&self.inbound.block[at])),
            ReceivedEvent::Close => Message::Close(self.close_frame()),
        };
        self.inbound.shrink_block();
        self.debug_check();
        Some(message)
    }

    /// The borrowed payload of a message, or of a piece of one.
    pub(crate) fn payload_at(&mut self, at: PayloadLocation) -> &mut [u8] {
        match at {
            PayloadLocation::Input(range) => &mut self.inbound.block[range],
            PayloadLocation::Assembly => &mut self.session.assembled()[..],
        }
    }

    /// Borrows a data message where it lies; `None` for other events and for incomplete messages.
    pub(crate) fn borrow(&mut self, event: ReceivedEvent) -> Option<BorrowedMessage> {
        match event {
            ReceivedEvent::Message { kind, at } => Some(BorrowedMessage { kind, at: Some(at) }),
            ReceivedEvent::Fragment { kind, at, first, last } => {
                self.gather(first, at, last).then_some(BorrowedMessage { kind, at: None })
            }
            ReceivedEvent::Ping(_) | ReceivedEvent::Pong { .. } | ReceivedEvent::Close => None,
        }
    }

    /// The message that [`borrow`](Self::borrow) returned.
    pub(crate) fn borrowed(&mut self, borrowed: BorrowedMessage) -> MessageRef<'_> {
        let payload = match borrowed.at {
            Some(at) => self.payload_at(at),
            None => &mut self.inbound.gathered[..],
        };
        MessageRef::new(borrowed.kind, payload)
    }

    /// Stores a piece of a message without a reader; returns whether the message is now complete.
    /// [`Config::max_message`] bounds it, as any other message.
    #[cold]
    fn gather(&mut self, first: bool, at: PayloadLocation, last: bool) -> bool {
        if self.inbound.skipping {
            self.inbound.skipping = !last;
            return false;
        }
        let mut gathered = std::mem::take(&mut self.inbound.gathered);
        if first {
            // A borrowed whole message may still be in the buffer.
            gathered.clear();
        }
        gathered.extend_from_slice(self.payload_at(at));
        self.inbound.gathered = gathered;
        last
    }

    /// Whether the next piece is one of a message whose reader was dropped.
    pub(crate) fn is_skipping(&self) -> bool {
        self.inbound.skipping
    }

    /// Takes the part of a message that was gathered for receive calls of whole messages, with the piece behind it.
    pub(crate) fn take_gathered(&mut self, at: PayloadLocation) -> Vec<u8> {
        let mut gathered = std::mem::take(&mut self.inbound.gathered);
        gathered.extend_from_slice(self.payload_at(at));
        gathered
    }

    /// Discards an event without a recipient. Of a message in pieces, the rest is skipped.
    pub(crate) fn discard_event(&mut self, event: ReceivedEvent) {
        if let ReceivedEvent::Fragment { last, .. } = event {
            self.inbound.skipping = !last;
        }
    }

    /// Whether a message is being sent in pieces.
    pub(crate) fn is_mid_message(&self) -> bool {
        self.session.is_mid_message()
    }

    /// Sets how the messages that begin from now on are delivered.
    #[inline]
    pub(crate) fn expect_pieces(&mut self, pieces: bool) {
        if self.inbound.pieces != pieces {
            self.inbound.pieces = pieces;
            self.session.deliver_fragments(pieces);
        }
    }

    /// The reader of a message in pieces was dropped before its end.
    pub(crate) fn skip_rest(&mut self) {
        self.inbound.skipping = true;
    }

    /// The end of such a message was received without a call to [`pull`](Self::pull).
    #[cfg(feature = "compio")]
    pub(crate) fn skipped(&mut self) {
        self.inbound.skipping = false;
    }

    /// Payload bytes of a message in pieces that may be received into the application's memory: all earlier input has
    /// been processed.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn awaits_piece(&self) -> usize {
        if self.inbound.at < self.inbound.block.len() || self.inbound.pending_event.is_some() {
            return 0;
        }
        usize::try_from(self.session.awaits_piece()).unwrap_or(usize::MAX)
    }

    /// Payload bytes of the message in pieces that are known to follow the last piece handed out, and whether they
    /// end the message.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn known_to_follow(&mut self) -> (usize, bool) {
        let awaited = usize::try_from(self.session.awaits_piece()).unwrap_or(usize::MAX);
        let pending_event = match &self.inbound.pending_event {
            Some(ReceivedEvent::Fragment { at, last, first: false, .. }) => Some((at.clone(), *last)),
            _ => None,
        };
        let (pending, ends) =
            pending_event.map_or((0, false), |(at, last)| (self.payload_at(at).len(), last));
        (awaited.saturating_add(pending), ends || self.session.awaits_last_piece())
    }

    /// Whether the end of the message in pieces may have been received behind the piece handed out last.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn may_end(&self) -> bool {
        self.inbound.pending_event.is_some()
            || !self.inbound.exhausted && self.session.may_end(self.inbound.unread())
    }

    /// Accounts such bytes as received. Returns whether they end their message; `None`: the connection has ended.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn piece_received(&mut self, piece: &mut [u8]) -> Option<bool> {
        let now = self.now;
        let handled = resources::with(|shared| self.session.receive_piece(piece, shared, now));
        self.inbound.exhausted = false;
        self.note_closed();
        self.debug_check();
        handled.map(|(_, last)| last)
    }

    #[inline(always)]
    fn detach(&mut self, at: PayloadLocation) -> Bytes {
        match at {
            PayloadLocation::Input(range) if range.len() < BLOCK / 2 => {
                Bytes::copy_from_slice(&self.inbound.block[range])
            }
            PayloadLocation::Input(range) => self.detach_block(range),
            PayloadLocation::Assembly => self.detach_assembly(),
        }
    }

    fn detach_assembly(&mut self) -> Bytes {
        let memory = self.session.assembled();
        if memory.len() >= HAND_OVER_MIN && memory.len() > memory.capacity() / 2 {
            return Bytes::from(std::mem::take(memory));
        }
        let bytes = Bytes::copy_from_slice(memory);
        resources::with(|shared| self.session.release_assembly(shared));
        bytes
    }

    /// A message that fills most of a block takes the block; bytes behind it are copied.
    fn detach_block(&mut self, range: Range<usize>) -> Bytes {
        if self.inbound.block.capacity() != BLOCK {
            return Bytes::copy_from_slice(&self.inbound.block[range]);
        }
        let rest = self.inbound.block[self.inbound.at..].to_vec();
        self.inbound.at = 0;
        Bytes::from(std::mem::replace(&mut self.inbound.block, rest)).slice(range)
    }

    /// The destination of the next receive. Return it through [`received`](Self::received), also if no bytes were received.
    #[inline]
    pub(crate) fn take_buffer(&mut self) -> ReceiveBuffer {
        self.take_message().unwrap_or_else(|| self.take_block())
    }

    /// The memory of a large message, if it is the destination.
    #[inline]
    pub(crate) fn take_message(&mut self) -> Option<ReceiveBuffer> {
        if self.inbound.at != self.inbound.block.len() || !self.session.awaits_large() {
            return None;
        }
        let (memory, most) = resources::with(|shared| self.session.lend_assembly(shared))?;
        Some(ReceiveBuffer::Message(memory, most))
    }

    /// A block to receive into, regardless of a large message.
    #[inline]
    pub(crate) fn take_block(&self) -> ReceiveBuffer {
        let mut block = resources::take_block();
        block.extend_from_slice(self.inbound.unread());
        ReceiveBuffer::Block(block)
    }

    /// Accounts so many bytes as received behind the contents of `buffer`.
    #[inline]
    pub(crate) fn received(&mut self, buffer: ReceiveBuffer, count: usize) {
        match buffer {
            ReceiveBuffer::Block(block) if count == 0 => resources::give_block(block),
            ReceiveBuffer::Block(block) => {
                self.inbound.block = block;
                self.inbound.at = 0;
                self.inbound.exhausted = false;
            }
            ReceiveBuffer::Message(memory, _) => {
                let now = self.now;
                let arrived =
                    resources::with(|shared| self.session.pull_appended(memory, count, shared, now));
                self.inbound.pending_event = arrived;
                self.inbound.exhausted = false;
                // The block becomes spare memory.
                self.lifecycle.recheck = true;
                self.note_closed();
            }
        }
        self.debug_check();
    }

    /// The peer ended the transport, or the transport failed.
    pub(crate) fn ended(&mut self, error: Option<io::Error>) {
        self.session.receive_end(self.now);
        self.lifecycle.receive_ended = true;
        if self.lifecycle.io_error.is_none() {
            self.lifecycle.io_error = error;
        }
        self.note_closed();
        self.debug_check();
    }
}

#[inline(always)]
fn message(kind: Kind, payload: Bytes) -> Message {
    match kind {
        Kind::Binary => Message::Binary(payload),
        Kind::Text => Message::Text(
            Utf8Bytes::try_from(payload).expect("the protocol has validated the text on receipt"),
        ),
    }
}
