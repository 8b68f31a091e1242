//! Receiving frame by frame: heads, limits, unmasking, UTF-8, control frames, assembly.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use sinews_simd::Utf8Stream;

use super::Connection;
use super::closing::{CloseSignal, SendState};
use super::event::{Event, Kind, PayloadLocation, Received};
use super::incoming::{DeclaredLength, IncomingMessage, PartialFrame, ReceiveStage};
use super::per_thread::PerThread;
use crate::frame::{self, FrameHead, Opcode, ParsedHead};
use crate::{CloseCode, PeerMisbehaved, Time, WireFormat};

/// An event, if the input was sufficient, and the number of used bytes.
pub(super) type FrameResult = Result<(usize, Option<Event>), PeerMisbehaved>;

impl Connection {
    #[inline]
    pub(super) fn parse(&self, input: &[u8]) -> Result<ParsedHead, PeerMisbehaved> {
        match self.framing {
            WireFormat::WebSocket => frame::parse(input, self.role),
            WireFormat::Prefixed => Ok(frame::parse_prefix(input)),
            WireFormat::Tagged => frame::parse_tagged(input),
            WireFormat::Body => Ok(ParsedHead::NeedMore(1)),
        }
    }

    #[inline]
    pub(super) fn next_event(
        &mut self,
        input: &mut [u8],
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
        now: Time,
    ) -> Result<Received, PeerMisbehaved> {
        let mut consumed = 0;
        loop {
            let at = consumed;
            let (used, event) = match self.stage {
                ReceiveStage::Head => match self.parse(&input[at..])? {
                    ParsedHead::NeedMore(n) => (0, Some(Event::NeedMore(n))),
                    ParsedHead::Head(head) if head.opcode.is_control() => {
                        self.control_frame(head, input, at, now)?
                    }
                    ParsedHead::Head(head) => self.data_head(head, input, at, assembly)?,
                },
                ReceiveStage::Payload(frame)
                    if frame.remaining > 0 && at == input.len() && !self.has_more_output() =>
                {
                    (0, Some(Event::NeedMore(1)))
                }
                ReceiveStage::Payload(frame) => self.payload(frame, input, at, assembly, shared)?,
                ReceiveStage::Flush => (0, self.flush(assembly, shared)?),
            };
            consumed += used;
            if let Some(event) = event {
                return Ok(Received { consumed, event });
            }
        }
    }

    /// Control frames are processed whole: a part of one stays in the input.
    fn control_frame(&mut self, head: FrameHead, input: &mut [u8], at: usize, now: Time) -> FrameResult {
        if head.compressed {
            return Err(self.stray_compression_bit());
        }
        let (start, len) = (at + head.size, head.len as usize);
        let end = start + len;
        if input.len() < end {
            return Ok((0, Some(Event::NeedMore(end - input.len()))));
        }
        let payload = &mut input[start..end];
        sinews_simd::mask(payload, head.key, 0);
        let event = match head.opcode {
            Opcode::Ping => {
                if !self.keepalive.admit_ping(self.config.ping_rate, now) {
                    return Err(PeerMisbehaved::PingFlood);
                }
                if self.sending == SendState::Open && self.config.pongs {
                    self.pending.set_pong(payload);
                }
                Event::Ping(start..end)
            }
            Opcode::Pong => Event::Pong { at: start..end, answers: self.keepalive.pong(payload, now) },
            _ => self.close_frame(payload, start, now)?,
        };
        Ok((end - at, Some(event)))
    }

    fn close_frame(&mut self, payload: &[u8], start: usize, now: Time) -> Result<Event, PeerMisbehaved> {
        let (code, reason) = match payload {
            [] => (None, &payload[..0]),
            [_] => return Err(PeerMisbehaved::CloseTooShort),
            [a, b, reason @ ..] => {
                let code = u16::from_be_bytes([*a, *b]);
                (Some(CloseCode::new(code).ok_or(PeerMisbehaved::InvalidCloseCode(code))?), reason)
            }
        };
        if sinews_simd::validate_utf8(reason).is_err() {
            return Err(PeerMisbehaved::CloseReasonNotUtf8);
        }
        let answers = self.sending != SendState::Open;
        if !answers && self.config.answers {
            // The code is echoed, without the peer's reason.
            self.pending.set_close(code, Box::default());
        }
        self.pending.clear_pong();
        self.signal(
            if self.config.answers { CloseSignal::PeerCloses } else { CloseSignal::PeerClosesUnanswered },
            now,
        );
        let end = start + payload.len();
        Ok(Event::Close { code, reason: end - reason.len()..end, answers })
    }

    fn stray_compression_bit(&self) -> PeerMisbehaved {
        if self.inflates() { PeerMisbehaved::MisplacedCompressionBit } else { PeerMisbehaved::ReservedBits }
    }

    /// A data frame begins. A complete uncompressed message in the input is processed at once.
    #[inline]
    fn data_head(
        &mut self,
        head: FrameHead,
        input: &mut [u8],
        at: usize,
        assembly: &mut Vec<u8>,
    ) -> FrameResult {
        if head.len > self.config.max_frame {
            return Err(PeerMisbehaved::FrameTooBig);
        }
        if let Some((kind, payload)) = self.whole_message(&head, input, at)? {
            let used = payload.end - at;
            return Ok((used, Some(Event::Message { kind, at: PayloadLocation::Input(payload) })));
        }
        self.admit_frame(head, assembly)?;
        self.stage =
            ReceiveStage::Payload(PartialFrame { remaining: head.len, key: head.key, fin: head.fin });
        Ok((head.size, None))
    }

    /// A message in one uncompressed frame, if the input contains all of it: unmasked and validated in
    /// place. The caller has checked the frame limit.
    #[inline(always)]
    pub(super) fn whole_message(
        &self,
        head: &FrameHead,
        input: &mut [u8],
        at: usize,
    ) -> Result<Option<(Kind, Range<usize>)>, PeerMisbehaved> {
        let is_alone = head.fin && !head.compressed && !self.fragments && self.message.is_none();
        let Some(kind) = data_kind(head.opcode).filter(|_| is_alone) else { return Ok(None) };
        if head.len > self.config.max_message {
            return Err(PeerMisbehaved::MessageTooBig);
        }
        let start = at + head.size;
        let Some(end) = whole(start, head.len, input.len()) else { return Ok(None) };
        let payload = &mut input[start..end];
        unmask(payload, head.key);
        if kind == Kind::Text && sinews_simd::validate_utf8(payload).is_err() {
            return Err(PeerMisbehaved::InvalidUtf8);
        }
        Ok(Some((kind, start..end)))
    }

    /// Checks a data frame against the message it begins or continues, and against the limits.
    #[inline(never)]
    fn admit_frame(&mut self, head: FrameHead, assembly: &mut Vec<u8>) -> Result<(), PeerMisbehaved> {
        if head.compressed && (!self.inflates() || head.opcode == Opcode::Continuation) {
            return Err(self.stray_compression_bit());
        }
        match (data_kind(head.opcode), &self.message) {
            (None, None) => return Err(PeerMisbehaved::NothingToContinue),
            (Some(_), Some(_)) => return Err(PeerMisbehaved::DataInsideMessage),
            (Some(kind), None) => {
                assembly.clear();
                self.message = Some(Box::new(IncomingMessage {
                    kind,
                    compressed: head.compressed,
                    pieces: self.fragments,
                    begun: false,
                    is_delivered: false,
                    more_output: false,
                    utf8: Utf8Stream::new(),
                    wire: 0,
                    delivered: 0,
                    fragments: 0,
                    empty_fragments: 0,
                }));
            }
            (None, Some(_)) => {}
        }
        let Some(open) = &mut self.message else { return Ok(()) };
        open.wire = open.wire.saturating_add(head.len);
        let limit = match open.compressed {
            false => self.config.max_message,
            // Incompressible data grows slightly, and a sender may flush after each byte.
            true => self.config.max_message.saturating_mul(2).saturating_add(1024),
        };
        if open.wire > limit {
            return Err(PeerMisbehaved::MessageTooBig);
        }
        open.fragments += 1;
        if open.fragments > self.config.max_fragments.max(1) {
            return Err(PeerMisbehaved::TooManyFragments);
        }
        if head.len == 0 {
            open.empty_fragments += 1;
            if open.empty_fragments > self.config.max_empty_fragments {
                return Err(PeerMisbehaved::TooManyEmptyFragments);
            }
        }
        Ok(())
    }

    /// Payload bytes of a data frame: appended to the assembly, or delivered as a piece.
    fn payload(
        &mut self,
        frame: PartialFrame,
        input: &mut [u8],
        at: usize,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
    ) -> FrameResult {
        let Some(open) = &mut self.message else { return Err(PeerMisbehaved::NothingToContinue) };
        let available = (input.len() - at) as u64;
        let piece = at..at + frame.remaining.min(available) as usize;
        unmask(&mut input[piece.clone()], frame.key);
        if open.compressed {
            return self.inflate_piece(frame, input, piece, assembly, shared);
        }
        let (kind, pieces, wire) = (open.kind, open.pieces, open.wire);
        let last = self.advance(frame, &input[piece.clone()])?.is_some();
        if pieces {
            let Some(open) = &mut self.message else { return Err(PeerMisbehaved::NothingToContinue) };
            if piece.is_empty() && !last {
                return Ok((0, None));
            }
            let first = !core::mem::replace(&mut open.begun, true);
            if last {
                self.message = None;
            }
            let event = Event::Fragment { kind, at: PayloadLocation::Input(piece.clone()), first, last };
            return Ok((piece.len(), Some(event)));
        }
        self.grow(assembly, shared, piece.len(), DeclaredLength { bytes: wire, whole: frame.fin });
        assembly.extend_from_slice(&input[piece.clone()]);
        let event = last.then_some(Event::Message { kind, at: PayloadLocation::Assembly });
        Ok((piece.len(), event))
    }
}

/// No operation for payloads without a mask, or with a zero mask.
#[inline]
pub(super) fn unmask(bytes: &mut [u8], key: [u8; 4]) {
    if key != [0; 4] {
        sinews_simd::mask(bytes, key, 0);
    }
}

const fn data_kind(opcode: Opcode) -> Option<Kind> {
    match opcode {
        Opcode::Text => Some(Kind::Text),
        Opcode::Binary => Some(Kind::Binary),
        _ => None,
    }
}

/// The end of a payload with `len` bytes from `start`, if it is within `have` bytes.
#[inline]
fn whole(start: usize, len: u64, have: usize) -> Option<usize> {
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= have).then_some(end)
}
