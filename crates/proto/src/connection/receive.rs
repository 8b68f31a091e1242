//! The receiving half: bytes of a driver in, events out.

use alloc::vec::Vec;
use core::ops::Range;

use super::closing::{CloseSignal, ReceiveState};
use super::event::{Event, Kind, PayloadLocation, Received};
use super::frames::unmask;
use super::incoming::{DeclaredLength, PartialFrame, ReceiveStage, check_text, finish_text};
use super::per_thread::PerThread;
use super::{CompressionState, Connection};
use crate::frame::ParsedHead;
use crate::{PeerMisbehaved, Time, WireFormat};

impl Connection {
    /// Reads `input` up to the next event, unmasking in place. Call it again with the rest until it returns
    /// [`Event::NeedMore`].
    ///
    /// `assembly` buffers a message that spans several inputs. The caller owns it, must pass the same
    /// buffer to each call, and may take it when an event returns [`PayloadLocation::Assembly`]; while no message is
    /// open, an empty buffer suffices. It grows by doubling with the received bytes, never with declared
    /// lengths, and not beyond the length of a message whose last frame has begun.
    ///
    /// After the peer's Close, a violation, or the end of the transport, input is discarded.
    ///
    /// # Errors
    /// The peer violated the protocol or a limit; the Close frame for it is prepared.
    #[inline]
    pub fn receive(
        &mut self,
        input: &mut [u8],
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
        now: Time,
    ) -> Result<Received, PeerMisbehaved> {
        if self.receiving != ReceiveState::Open || self.framing == WireFormat::Body {
            return Ok(Received { consumed: input.len(), event: Event::NeedMore(1) });
        }
        if !input.is_empty() {
            self.keepalive.received_at(now);
        }
        match self.next_event(input, assembly, shared, now) {
            Ok(received) => Ok(received),
            Err(fault) => {
                self.fail(fault, now);
                self.drop_message(assembly);
                Err(fault)
            }
        }
    }

    /// Reads one message, if the input begins with a complete message in one uncompressed frame, the common
    /// case: equivalent to [`receive`](Self::receive) at less cost. Returns its kind and the range of the
    /// payload; the frame ends with that range. `None`: call [`receive`](Self::receive).
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    #[inline]
    pub fn receive_whole(
        &mut self,
        input: &mut [u8],
        now: Time,
    ) -> Result<Option<(Kind, Range<usize>)>, PeerMisbehaved> {
        if self.receiving != ReceiveState::Open || !matches!(self.stage, ReceiveStage::Head) {
            return Ok(None);
        }
        let Ok(ParsedHead::Head(head)) = self.parse(input) else { return Ok(None) };
        if head.len > self.config.max_frame {
            return Ok(None);
        }
        match self.whole_message(&head, input, 0) {
            Ok(None) => Ok(None),
            Ok(whole) => {
                self.keepalive.received_at(now);
                Ok(whole)
            }
            Err(fault) => {
                self.fail(fault, now);
                Err(fault)
            }
        }
    }

    /// Missing payload bytes in the current frame that only have to be appended to the assembly: a driver may receive
    /// them there directly, and saves a copy. 0 between frames, and if the message is compressed or delivered in
    /// pieces.
    #[must_use]
    pub fn awaits_payload(&self) -> u64 {
        match (&self.stage, &self.message) {
            (ReceiveStage::Payload(frame), Some(open)) if !open.compressed && !open.pieces => frame.remaining,
            _ => 0,
        }
    }

    /// Reserves capacity in `assembly` for payload that a driver appends itself, at most `most` bytes;
    /// returns the number of bytes that it may append. The buffer grows as in [`receive`](Self::receive).
    pub fn reserve_payload(&mut self, assembly: &mut Vec<u8>, shared: &mut PerThread, most: usize) -> usize {
        let room = usize::try_from(self.awaits_payload()).unwrap_or(usize::MAX).min(most);
        if let (ReceiveStage::Payload(frame), Some(open), 1..) = (&self.stage, &self.message, room) {
            self.grow(assembly, shared, room, DeclaredLength { bytes: open.wire, whole: frame.fin });
        }
        room
    }

    /// Processes payload bytes that were appended to `assembly` as received, at most as many as
    /// [`reserve_payload`](Self::reserve_payload) returned. The event is a message that they complete, or
    /// [`Event::NeedMore`].
    ///
    /// If no payload is expected any more, since the connection has failed meanwhile, they are discarded.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_appended(
        &mut self,
        assembly: &mut Vec<u8>,
        appended: usize,
        now: Time,
    ) -> Result<Event, PeerMisbehaved> {
        let start = assembly.len().saturating_sub(appended);
        if self.receiving != ReceiveState::Open || (assembly.len() - start) as u64 > self.awaits_payload() {
            assembly.truncate(start);
            return Ok(Event::NeedMore(1));
        }
        self.keepalive.received_at(now);
        match self.appended(assembly, start) {
            Ok(event) => Ok(event),
            Err(fault) => {
                self.fail(fault, now);
                self.drop_message(assembly);
                Err(fault)
            }
        }
    }

    fn appended(&mut self, assembly: &mut [u8], start: usize) -> Result<Event, PeerMisbehaved> {
        let ReceiveStage::Payload(frame) = self.stage else { return Ok(Event::NeedMore(1)) };
        let bytes = &mut assembly[start..];
        unmask(bytes, frame.key);
        let kind = self.advance(frame, bytes)?;
        Ok(kind.map_or(Event::NeedMore(1), |kind| Event::Message { kind, at: PayloadLocation::Assembly }))
    }

    /// Processes unmasked bytes of an uncompressed frame. Returns the message's kind if it is complete.
    pub(super) fn advance(
        &mut self,
        mut frame: PartialFrame,
        bytes: &[u8],
    ) -> Result<Option<Kind>, PeerMisbehaved> {
        let Some(open) = &mut self.message else { return Err(PeerMisbehaved::NothingToContinue) };
        check_text(open, bytes)?;
        frame.advance(bytes.len());
        let ended = frame.remaining == 0;
        let last = ended && frame.fin;
        if last {
            finish_text(open)?;
        }
        let kind = open.kind;
        self.stage = if ended { ReceiveStage::Head } else { ReceiveStage::Payload(frame) };
        if last && !open.pieces {
            self.message = None;
        }
        Ok(last.then_some(kind))
    }

    /// Reserves capacity for `additional` bytes of a message.
    pub(super) fn grow(
        &self,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
        additional: usize,
        declared: DeclaredLength,
    ) {
        let expected = usize::try_from(declared.bytes).unwrap_or(usize::MAX);
        let max = usize::try_from(self.config.max_message).unwrap_or(usize::MAX);
        let cap = if declared.whole { expected } else { max };
        shared.spares.grow(assembly, additional, expected, cap);
    }

    /// Whether `input` suffices for an event, or for a whole fragment, which distinguishes the end of a
    /// burst from its middle. Consumes no bytes.
    #[must_use]
    #[inline]
    pub fn holds_event(&self, input: &[u8]) -> bool {
        match self.stage {
            ReceiveStage::Head => match self.parse(input) {
                Ok(ParsedHead::Head(head)) => (input.len() - head.size) as u64 >= head.len,
                Ok(ParsedHead::NeedMore(_)) => false,
                Err(_) => true,
            },
            ReceiveStage::Payload(frame) => frame.remaining <= input.len() as u64,
            ReceiveStage::Flush => true,
        }
    }

    /// In fragment delivery, the missing payload bytes in the current uncompressed frame: a driver may receive up to
    /// this many into its own memory and pass them to [`receive_piece`](Self::receive_piece). 0 without such a frame.
    #[must_use]
    pub fn awaits_piece(&self) -> u64 {
        match (&self.stage, &self.message) {
            (ReceiveStage::Payload(frame), Some(open)) if !open.compressed && open.pieces => frame.remaining,
            _ => 0,
        }
    }

    /// In fragment delivery, whether the message ends with the payload that
    /// [`awaits_piece`](Self::awaits_piece) counts.
    #[must_use]
    pub fn awaits_last_piece(&self) -> bool {
        matches!(self.stage, ReceiveStage::Payload(frame) if frame.fin) && self.awaits_piece() > 0
    }

    /// In fragment delivery, whether the next event of `input` may end the current message without further payload: an
    /// empty last frame, the end of compressed output, or a control frame in front of one. Consumes no bytes.
    #[must_use]
    pub fn may_end(&self, input: &[u8]) -> bool {
        let Some(open) = &self.message else { return false };
        match self.stage {
            ReceiveStage::Head => match self.parse(input) {
                Ok(ParsedHead::Head(head)) if head.opcode.is_control() => {
                    (input.len() - head.size) as u64 >= head.len
                }
                Ok(ParsedHead::Head(head)) => head.fin && (head.len == 0 || open.compressed),
                _ => false,
            },
            ReceiveStage::Payload(_) => open.compressed,
            ReceiveStage::Flush => true,
        }
    }

    /// Processes payload bytes of the current frame, at most [`awaits_piece`](Self::awaits_piece), in the
    /// driver's memory: they are unmasked and validated in place, and are a piece of their message. Returns
    /// its kind, and whether it ends the message; `None` if no piece is expected any more, since the
    /// connection has failed meanwhile.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_piece(
        &mut self,
        piece: &mut [u8],
        now: Time,
    ) -> Result<Option<(Kind, bool)>, PeerMisbehaved> {
        if self.receiving != ReceiveState::Open || piece.len() as u64 > self.awaits_piece() {
            return Ok(None);
        }
        let (ReceiveStage::Payload(frame), Some(open)) = (self.stage, &mut self.message) else {
            return Ok(None);
        };
        open.begun = true;
        let kind = open.kind;
        self.keepalive.received_at(now);
        unmask(piece, frame.key);
        match self.advance(frame, piece) {
            Ok(last) => {
                if last.is_some() {
                    self.message = None;
                }
                Ok(Some((kind, last.is_some())))
            }
            Err(fault) => {
                self.fail(fault, now);
                self.drop_message(&mut Vec::new());
                Err(fault)
            }
        }
    }

    /// The transport ended: no more bytes arrive. Returns whether the closing handshake was clean, that is,
    /// whether the peer's Close was received; for a plain stream, whether it ended between messages. The
    /// client of a streaming response ends it in no other way.
    pub fn receive_end(&mut self, assembly: &mut Vec<u8>, now: Time) -> bool {
        if self.framing != WireFormat::WebSocket && self.message.is_none() {
            self.signal(CloseSignal::PeerCloses, now);
            self.signal(CloseSignal::Written, now);
        }
        self.signal(CloseSignal::Ended, now);
        self.drop_message(assembly);
        self.receiving == ReceiveState::PeerClosed
    }

    fn drop_message(&mut self, assembly: &mut Vec<u8>) {
        self.message = None;
        self.stage = ReceiveStage::Head;
        if let Some(CompressionState { inflate: Some(inflate), .. }) = self.compression.as_deref_mut() {
            inflate.context = None;
        }
        *assembly = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::time::Duration;

    use super::*;
    use crate::{Config, Negotiated, Role};

    /// A client's connection, whose input is not masked.
    fn client() -> Connection {
        let config =
            Config::default().with_ping_interval(None).with_idle_timeout(Some(Duration::from_secs(10)));
        Connection::new(Negotiated::websocket(Role::Client), Arc::new(config), Time::ZERO)
    }

    /// The last event of an input that is received to its end.
    fn receive(connection: &mut Connection, bytes: &[u8]) -> Result<Event, PeerMisbehaved> {
        let (mut input, mut assembly) = (bytes.to_vec(), Vec::new());
        let (mut shared, mut at) = (PerThread::new(|| [0; 4]), 0);
        loop {
            let received = connection.receive(&mut input[at..], &mut assembly, &mut shared, Time::ZERO)?;
            at += received.consumed;
            if at == input.len() {
                return Ok(received.event);
            }
        }
    }

    #[test]
    fn text_ends_with_a_whole_character() {
        // A whole message, one in fragments, and one whose last fragment is empty; the character has two bytes.
        for (valid, cut) in [
            (&b"\x81\x03a\xc3\xa4"[..], &b"\x81\x02a\xc3"[..]),
            (b"\x01\x02a\xc3\x80\x01\xa4", b"\x01\x01a\x80\x01\xc3"),
            (b"\x01\x03a\xc3\xa4\x80\x00", b"\x01\x02a\xc3\x80\x00"),
        ] {
            assert!(matches!(receive(&mut client(), valid), Ok(Event::Message { kind: Kind::Text, .. })));
            assert_eq!(receive(&mut client(), cut), Err(PeerMisbehaved::InvalidUtf8), "{cut:x?}");
            let mut pieces = client();
            pieces.deliver_fragments(true);
            assert_eq!(receive(&mut pieces, cut), Err(PeerMisbehaved::InvalidUtf8), "in pieces: {cut:x?}");
            let binary = [&[cut[0] + 1], &cut[1..]].concat();
            assert!(matches!(receive(&mut client(), &binary), Ok(Event::Message { .. })), "{cut:x?}");
        }
    }

    #[test]
    fn payload_in_memory_of_the_driver_restarts_the_idle_timeout() {
        let (second, shared) =
            (|seconds| Time::ZERO + Duration::from_secs(seconds), || PerThread::new(|| [0; 4]));
        for pieces in [false, true] {
            let (mut connection, mut assembly) = (client(), Vec::new());
            connection.deliver_fragments(pieces);
            receive(&mut connection, b"\x82\x04a").expect("a part of a message");
            assert_eq!(connection.deadline(), Some(second(10)));
            if pieces {
                let piece = connection.receive_piece(&mut [b'b'], second(3));
                assert_eq!(piece, Ok(Some((Kind::Binary, false))));
            } else {
                let room = connection.reserve_payload(&mut assembly, &mut shared(), 1);
                assembly.extend_from_slice(&b"b"[..room]);
                assert_eq!(
                    connection.receive_appended(&mut assembly, room, second(3)),
                    Ok(Event::NeedMore(1))
                );
            }
            assert_eq!(connection.deadline(), Some(second(13)), "in pieces: {pieces}");
        }
    }
}
