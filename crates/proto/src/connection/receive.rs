//! The receiving half: heads, limits, unmasking, UTF-8, inflating, assembly.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use sinews_simd::Utf8Stream;

use super::closing::{Receiving, Sending, Signal};
use super::{Connection, Event, Kind, PerThread, Place, Received};
use crate::deflate::{DeflateParams, Inflater};
use crate::frame::{self, Head, Opcode, Parsed};
use crate::{CloseCode, Framing, PeerMisbehaved, Role, Time};

/// Position in the stream of frames.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// A head comes next.
    Head,
    /// Payload of a data frame comes next.
    Payload(Frame),
    /// The last payload byte of a compressed message is consumed and output is still pending.
    Flush,
}

/// A data frame with an incomplete payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    remaining: u64,
    /// Rotated so that its first byte applies to the next byte of the payload.
    key: [u8; 4],
    fin: bool,
}

/// Declared length of an uncompressed message so far, already checked against the limit.
struct Declared {
    bytes: u64,
    /// Whether the last frame has begun.
    whole: bool,
}

/// A message that has begun. A continuation without a start has no storage.
#[derive(Debug)]
pub(super) struct Open {
    kind: Kind,
    compressed: bool,
    /// Delivered in pieces.
    pieces: bool,
    /// A piece was delivered.
    begun: bool,
    /// The assembly contains a delivered piece.
    lent: bool,
    /// Inflating stopped for lack of capacity.
    more_output: bool,
    utf8: Utf8Stream,
    /// Declared payload bytes of the frames so far.
    wire: u64,
    /// Bytes of the message that earlier pieces removed from the assembly.
    delivered: u64,
    fragments: u32,
    empty_fragments: u32,
}

/// Decompression of the peer's messages.
pub(super) struct Inflate {
    /// The peer's window persists across messages.
    takeover: bool,
    window_bits: u8,
    context: Option<Box<Inflater>>,
}

impl core::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inflate").field("takeover", &self.takeover).finish_non_exhaustive()
    }
}

impl Inflate {
    pub(super) fn new(params: DeflateParams, role: Role) -> Self {
        let (no_takeover, window_bits) = match role {
            Role::Server => (params.client_no_context_takeover, params.client_max_window_bits),
            Role::Client => (params.server_no_context_takeover, params.server_max_window_bits),
        };
        Self { takeover: !no_takeover, window_bits, context: None }
    }

    fn context(&mut self, shared: &mut PerThread) -> &mut Inflater {
        self.context.get_or_insert_with(|| match self.takeover {
            true => Box::new(Inflater::new(self.window_bits)),
            false => shared.contexts.take_inflater(),
        })
    }

    /// Ends the message: without takeover the context returns to the pool.
    fn finish(&mut self, shared: &mut PerThread) {
        if !self.takeover
            && let Some(context) = self.context.take()
        {
            shared.contexts.put_inflater(context);
        }
    }
}

/// Largest piece that inflating delivers at once in fragment delivery: the usual size of a driver's receive
/// buffer.
const PIECE_MAX: usize = 64 << 10;

/// An event, if the input was sufficient, and the number of used bytes.
type Step = Result<(usize, Option<Event>), PeerMisbehaved>;

impl Connection {
    /// Reads `input` up to the next event, unmasking in place. Call it again with the rest until it returns
    /// [`Event::NeedMore`].
    ///
    /// `assembly` buffers a message that spans several inputs. The caller owns it, must pass the same
    /// buffer to each call, and may take it when an event returns [`Place::Assembly`]; while no message is
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
        if self.receiving != Receiving::Open {
            return Ok(Received { consumed: input.len(), event: Event::NeedMore(1) });
        }
        if !input.is_empty() {
            self.keepalive.heard(now);
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
        if self.receiving != Receiving::Open || !matches!(self.stage, Stage::Head) {
            return Ok(None);
        }
        let Ok(Parsed::Head(head)) = self.parse(input) else { return Ok(None) };
        if head.len > self.config.max_frame {
            return Ok(None);
        }
        match self.whole_message(&head, input, 0) {
            Ok(None) => Ok(None),
            Ok(whole) => {
                self.keepalive.heard(now);
                Ok(whole)
            }
            Err(fault) => {
                self.fail(fault, now);
                Err(fault)
            }
        }
    }

    /// Number of missing payload bytes of the current frame that only have to be appended to the assembly:
    /// a driver may receive them there directly, and saves a copy. 0 between frames, and if the message is
    /// compressed or delivered in pieces.
    #[must_use]
    pub fn awaits_payload(&self) -> u64 {
        match (&self.stage, &self.message) {
            (Stage::Payload(frame), Some(open)) if !open.compressed && !open.pieces => frame.remaining,
            _ => 0,
        }
    }

    /// Reserves capacity in `assembly` for payload that a driver appends itself, at most `most` bytes;
    /// returns the number of bytes that it may append. The buffer grows as in [`receive`](Self::receive).
    pub fn make_room(&mut self, assembly: &mut Vec<u8>, shared: &mut PerThread, most: usize) -> usize {
        let room = usize::try_from(self.awaits_payload()).unwrap_or(usize::MAX).min(most);
        if let (Stage::Payload(frame), Some(open), 1..) = (&self.stage, &self.message, room) {
            self.grow(assembly, shared, room, Declared { bytes: open.wire, whole: frame.fin });
        }
        room
    }

    /// Processes payload bytes that were appended to `assembly` as received, at most as many as
    /// [`make_room`](Self::make_room) returned. The event is a message that they complete, or
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
        if self.receiving != Receiving::Open || (assembly.len() - start) as u64 > self.awaits_payload() {
            assembly.truncate(start);
            return Ok(Event::NeedMore(1));
        }
        self.keepalive.heard(now);
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
        let Stage::Payload(frame) = self.stage else { return Ok(Event::NeedMore(1)) };
        let bytes = &mut assembly[start..];
        unmask(bytes, frame.key);
        let kind = self.advance(frame, bytes)?;
        Ok(kind.map_or(Event::NeedMore(1), |kind| Event::Message { kind, at: Place::Assembly }))
    }

    /// Processes unmasked bytes of an uncompressed frame. Returns the kind of the message if it is
    /// complete.
    fn advance(&mut self, mut frame: Frame, bytes: &[u8]) -> Result<Option<Kind>, PeerMisbehaved> {
        let Some(open) = &mut self.message else { return Err(PeerMisbehaved::NothingToContinue) };
        check_text(open, bytes)?;
        frame.advance(bytes.len());
        let ended = frame.remaining == 0;
        let last = ended && frame.fin;
        if last {
            finish_text(open)?;
        }
        let kind = open.kind;
        self.stage = if ended { Stage::Head } else { Stage::Payload(frame) };
        if last && !open.pieces {
            self.message = None;
        }
        Ok(last.then_some(kind))
    }

    /// Reserves capacity for `additional` bytes of a message.
    fn grow(&self, assembly: &mut Vec<u8>, shared: &mut PerThread, additional: usize, declared: Declared) {
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
            Stage::Head => match self.parse(input) {
                Ok(Parsed::Head(head)) => (input.len() - head.size) as u64 >= head.len,
                Ok(Parsed::NeedMore(_)) => false,
                Err(_) => true,
            },
            Stage::Payload(frame) => frame.remaining <= input.len() as u64,
            Stage::Flush => true,
        }
    }

    /// In fragment delivery, the number of missing payload bytes of the current uncompressed frame: a
    /// driver may receive up to this many into its own memory and pass them to
    /// [`receive_piece`](Self::receive_piece). 0 without such a frame.
    #[must_use]
    pub fn awaits_piece(&self) -> u64 {
        match (&self.stage, &self.message) {
            (Stage::Payload(frame), Some(open)) if !open.compressed && open.pieces => frame.remaining,
            _ => 0,
        }
    }

    /// In fragment delivery, whether the message ends with the payload that
    /// [`awaits_piece`](Self::awaits_piece) counts.
    #[must_use]
    pub fn awaits_last_piece(&self) -> bool {
        matches!(self.stage, Stage::Payload(frame) if frame.fin) && self.awaits_piece() > 0
    }

    /// In fragment delivery, whether the next event of `input` may be the end of the current message
    /// without further payload: an empty last frame, the end of compressed output, or a control frame in
    /// front of one. Consumes no bytes.
    #[must_use]
    pub fn may_end(&self, input: &[u8]) -> bool {
        let Some(open) = &self.message else { return false };
        match self.stage {
            Stage::Head => match self.parse(input) {
                Ok(Parsed::Head(head)) if head.opcode.is_control() => {
                    (input.len() - head.size) as u64 >= head.len
                }
                Ok(Parsed::Head(head)) => head.fin && (head.len == 0 || open.compressed),
                _ => false,
            },
            Stage::Payload(_) => open.compressed,
            Stage::Flush => true,
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
        if self.receiving != Receiving::Open || piece.len() as u64 > self.awaits_piece() {
            return Ok(None);
        }
        let (Stage::Payload(frame), Some(open)) = (self.stage, &mut self.message) else { return Ok(None) };
        open.begun = true;
        let kind = open.kind;
        self.keepalive.heard(now);
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
    /// whether the peer's Close was received; for a plain stream, whether it ended between messages.
    pub fn receive_end(&mut self, assembly: &mut Vec<u8>, now: Time) -> bool {
        if self.framing == Framing::Prefixed && self.message.is_none() {
            self.signal(Signal::PeerCloses, now);
            self.signal(Signal::Written, now);
        }
        self.signal(Signal::Ended, now);
        self.drop_message(assembly);
        self.receiving == Receiving::PeerClosed
    }

    fn drop_message(&mut self, assembly: &mut Vec<u8>) {
        self.message = None;
        self.stage = Stage::Head;
        if let Some(inflate) = &mut self.inflate {
            inflate.context = None;
        }
        *assembly = Vec::new();
    }

    #[inline]
    fn parse(&self, input: &[u8]) -> Result<Parsed, PeerMisbehaved> {
        match self.framing {
            Framing::WebSocket => frame::parse(input, self.role),
            Framing::Prefixed => Ok(frame::parse_prefix(input)),
        }
    }

    #[inline]
    fn next_event(
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
                Stage::Head => match self.parse(&input[at..])? {
                    Parsed::NeedMore(n) => (0, Some(Event::NeedMore(n))),
                    Parsed::Head(head) if head.opcode.is_control() => {
                        self.control_frame(head, input, at, now)?
                    }
                    Parsed::Head(head) => self.data_head(head, input, at, assembly)?,
                },
                Stage::Payload(frame)
                    if frame.remaining > 0 && at == input.len() && !self.has_more_output() =>
                {
                    (0, Some(Event::NeedMore(1)))
                }
                Stage::Payload(frame) => self.payload(frame, input, at, assembly, shared)?,
                Stage::Flush => (0, self.flush(assembly, shared)?),
            };
            consumed += used;
            if let Some(event) = event {
                return Ok(Received { consumed, event });
            }
        }
    }

    /// Control frames are processed whole: a part of one stays in the input.
    fn control_frame(&mut self, head: Head, input: &mut [u8], at: usize, now: Time) -> Step {
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
                if self.sending == Sending::Open {
                    self.pending.pong = Some(Box::from(&*payload));
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
        let answers = self.sending != Sending::Open;
        if !answers {
            // The code is echoed, without the peer's reason.
            self.pending.set_close(code, Box::default());
        }
        self.pending.pong = None;
        self.signal(Signal::PeerCloses, now);
        let end = start + payload.len();
        Ok(Event::Close { code, reason: end - reason.len()..end, answers })
    }

    fn stray_compression_bit(&self) -> PeerMisbehaved {
        if self.inflate.is_some() {
            PeerMisbehaved::MisplacedCompressionBit
        } else {
            PeerMisbehaved::ReservedBits
        }
    }

    /// A data frame begins. A complete uncompressed message in the input is processed at once.
    #[inline]
    fn data_head(&mut self, head: Head, input: &mut [u8], at: usize, assembly: &mut Vec<u8>) -> Step {
        if head.len > self.config.max_frame {
            return Err(PeerMisbehaved::FrameTooBig);
        }
        if let Some((kind, payload)) = self.whole_message(&head, input, at)? {
            let used = payload.end - at;
            return Ok((used, Some(Event::Message { kind, at: Place::Input(payload) })));
        }
        self.admit_frame(head, assembly)?;
        self.stage = Stage::Payload(Frame { remaining: head.len, key: head.key, fin: head.fin });
        Ok((head.size, None))
    }

    /// A message in one uncompressed frame, if the input contains all of it: unmasked and validated in
    /// place. The caller has checked the frame limit.
    #[inline(always)]
    fn whole_message(
        &self,
        head: &Head,
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
    fn admit_frame(&mut self, head: Head, assembly: &mut Vec<u8>) -> Result<(), PeerMisbehaved> {
        if head.compressed && (self.inflate.is_none() || head.opcode == Opcode::Continuation) {
            return Err(self.stray_compression_bit());
        }
        match (data_kind(head.opcode), &self.message) {
            (None, None) => return Err(PeerMisbehaved::NothingToContinue),
            (Some(_), Some(_)) => return Err(PeerMisbehaved::DataInsideMessage),
            (Some(kind), None) => {
                assembly.clear();
                self.message = Some(Box::new(Open {
                    kind,
                    compressed: head.compressed,
                    pieces: self.fragments,
                    begun: false,
                    lent: false,
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
        frame: Frame,
        input: &mut [u8],
        at: usize,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
    ) -> Step {
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
            let event = Event::Fragment { kind, at: Place::Input(piece.clone()), first, last };
            return Ok((piece.len(), Some(event)));
        }
        self.grow(assembly, shared, piece.len(), Declared { bytes: wire, whole: frame.fin });
        assembly.extend_from_slice(&input[piece.clone()]);
        let event = last.then_some(Event::Message { kind, at: Place::Assembly });
        Ok((piece.len(), event))
    }

    /// Inflates an unmasked piece into the assembly.
    fn inflate_piece(
        &mut self,
        mut frame: Frame,
        input: &mut [u8],
        piece: Range<usize>,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
    ) -> Step {
        let (Some(open), Some(inflate)) = (&mut self.message, &mut self.inflate) else {
            return Err(PeerMisbehaved::NothingToContinue);
        };
        take_delivered(open, assembly);
        let before = assembly.len();
        let room = room_for(open, assembly, self.config.max_message);
        let context = inflate.context(shared);
        let inflated =
            context.inflate(&input[piece.clone()], assembly, room).map_err(|_| PeerMisbehaved::BadDeflate)?;
        if inflated.full && open.delivered + assembly.len() as u64 >= self.config.max_message {
            return Err(PeerMisbehaved::MessageTooBig);
        }
        check_text(open, &assembly[before..])?;
        let used = inflated.consumed;
        frame.advance(used);
        // Unused bytes are masked again.
        sinews_simd::mask(&mut input[piece.start + used..piece.end], frame.key, 0);
        self.stage = match (frame.remaining == 0 && !inflated.full, frame.fin) {
            (false, _) => Stage::Payload(frame),
            (true, false) => Stage::Head,
            (true, true) => Stage::Flush,
        };
        open.more_output = inflated.full;
        let event = (open.pieces && !assembly.is_empty()).then(|| piece_event(open, false));
        Ok((used, event))
    }

    /// Whether inflating stopped for lack of capacity, so that output can follow without input.
    fn has_more_output(&self) -> bool {
        self.message.as_ref().is_some_and(|open| open.more_output)
    }

    /// The end of a compressed message: output of the tail 00 00 FF FF (RFC 7692 section 7.2.2).
    fn flush(
        &mut self,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
    ) -> Result<Option<Event>, PeerMisbehaved> {
        let (Some(open), Some(inflate)) = (&mut self.message, &mut self.inflate) else {
            return Err(PeerMisbehaved::NothingToContinue);
        };
        take_delivered(open, assembly);
        let before = assembly.len();
        let room = room_for(open, assembly, self.config.max_message);
        let context = inflate.context(shared);
        let inflated = context.finish(assembly, room).map_err(|_| PeerMisbehaved::BadDeflate)?;
        if inflated.full && open.delivered + assembly.len() as u64 >= self.config.max_message {
            return Err(PeerMisbehaved::MessageTooBig);
        }
        check_text(open, &assembly[before..])?;
        if inflated.full {
            return Ok(open.pieces.then(|| piece_event(open, false)));
        }
        finish_text(open)?;
        inflate.finish(shared);
        let event = if open.pieces {
            piece_event(open, true)
        } else {
            Event::Message { kind: open.kind, at: Place::Assembly }
        };
        self.message = None;
        self.stage = Stage::Head;
        Ok(Some(event))
    }
}

impl Frame {
    fn advance(&mut self, used: usize) {
        self.remaining -= used as u64;
        self.key.rotate_left(used % 4);
    }
}

/// No operation for payloads without a mask, or with a zero mask.
#[inline]
fn unmask(bytes: &mut [u8], key: [u8; 4]) {
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

/// The end of a payload of `len` bytes from `start`, if it is within `have` bytes.
#[inline]
fn whole(start: usize, len: u64, have: usize) -> Option<usize> {
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= have).then_some(end)
}

#[inline]
fn check_text(open: &mut Open, bytes: &[u8]) -> Result<(), PeerMisbehaved> {
    if open.kind == Kind::Text && open.utf8.push(bytes).is_err() {
        return Err(PeerMisbehaved::InvalidUtf8);
    }
    Ok(())
}

#[inline]
fn finish_text(open: &mut Open) -> Result<(), PeerMisbehaved> {
    if open.kind == Kind::Text && open.utf8.finish().is_err() {
        return Err(PeerMisbehaved::InvalidUtf8);
    }
    Ok(())
}

fn piece_event(open: &mut Open, last: bool) -> Event {
    open.lent = true;
    let first = !core::mem::replace(&mut open.begun, true);
    Event::Fragment { kind: open.kind, at: Place::Assembly, first, last }
}

/// Removes the piece that the last event lent from the assembly.
fn take_delivered(open: &mut Open, assembly: &mut Vec<u8>) {
    if core::mem::take(&mut open.lent) {
        open.delivered += assembly.len() as u64;
        assembly.clear();
    }
}

/// Maximum bytes that inflating may append: up to the limit; in fragment delivery at most a piece.
fn room_for(open: &Open, assembly: &[u8], max_message: u64) -> usize {
    let held = open.delivered.saturating_add(assembly.len() as u64);
    let room = max_message.saturating_sub(held);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if open.pieces { room.min(PIECE_MAX.saturating_sub(assembly.len())) } else { room }
}
