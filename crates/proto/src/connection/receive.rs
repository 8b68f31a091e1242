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

/// Where in the stream of frames we are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// A head comes next.
    Head,
    /// Payload of a data frame comes next.
    Payload(Frame),
    /// The last payload byte of a compressed message is consumed and output is still to come.
    Flush,
}

/// A data frame whose payload has not fully come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    remaining: u64,
    /// Rotated so that its first byte belongs to the next byte of the payload.
    key: [u8; 4],
    fin: bool,
}

/// The length of an uncompressed message by the heads of its frames so far, on which the limit was checked.
struct Declared {
    bytes: u64,
    /// The last frame is under way.
    whole: bool,
}

/// A message that has begun. A continuation without a start has no place to be stored.
#[derive(Debug)]
pub(super) struct Open {
    kind: Kind,
    compressed: bool,
    /// Delivered in pieces.
    pieces: bool,
    /// A piece was delivered.
    begun: bool,
    /// The assembly holds a piece that was delivered.
    lent: bool,
    /// Inflating stopped for want of room.
    more_output: bool,
    utf8: Utf8Stream,
    /// Payload bytes of the frames so far, declared.
    wire: u64,
    /// Bytes of the message itself that earlier pieces took away from the assembly.
    delivered: u64,
    fragments: u32,
    empty_fragments: u32,
}

/// How the peer's compressed messages are undone.
pub(super) struct Inflate {
    /// The peer's window lives on from message to message.
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

    /// The message is over: without takeover the context goes home.
    fn finish(&mut self, shared: &mut PerThread) {
        if !self.takeover
            && let Some(context) = self.context.take()
        {
            shared.contexts.put_inflater(context);
        }
    }
}

/// Largest piece that inflating delivers at once in fragment delivery: as much as a driver's receive
/// buffer usually holds.
const PIECE_MAX: usize = 64 << 10;

/// An event, if the input sufficed for one, and how much of the input was used.
type Step = Result<(usize, Option<Event>), PeerMisbehaved>;

impl Connection {
    /// Reads `input` up to the next event, unmasking in place. Call it again with the rest until it
    /// answers [`Event::NeedMore`].
    ///
    /// `assembly` holds a message that is not whole in one input. It is the caller's, must be the same
    /// from call to call, and may be taken when an event says [`Place::Assembly`]; while no message is
    /// open, an empty buffer will do. It grows by doubling with the bytes received, never with bytes
    /// declared, and not past the length of a message whose last frame is under way.
    ///
    /// After the peer's Close, a fault, or the end of the transport, input is discarded.
    ///
    /// # Errors
    /// The peer broke the protocol or a limit; the Close frame that says so is prepared.
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

    /// Reads one message, if the input begins with all of it in one uncompressed frame, as most do: the same as
    /// [`receive`](Self::receive) for less. Answers its kind and where the payload is; with the end of that, the
    /// frame ends. `None`: ask [`receive`](Self::receive).
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

    /// Payload bytes of the frame under way that are still to come and that only have to be appended to the
    /// assembly: a driver may receive them there itself, and saves a copy. 0 when no frame is under way, or its
    /// message is compressed or delivered in pieces.
    #[must_use]
    pub fn awaits_payload(&self) -> u64 {
        match (&self.stage, &self.message) {
            (Stage::Payload(frame), Some(open)) if !open.compressed && !open.pieces => frame.remaining,
            _ => 0,
        }
    }

    /// Makes room in `assembly` for payload that a driver wants to append itself, `most` bytes or fewer;
    /// answers how many it may append. It grows as by [`receive`](Self::receive).
    pub fn make_room(&mut self, assembly: &mut Vec<u8>, shared: &mut PerThread, most: usize) -> usize {
        let room = usize::try_from(self.awaits_payload()).unwrap_or(usize::MAX).min(most);
        if let (Stage::Payload(frame), Some(open), 1..) = (&self.stage, &self.message, room) {
            self.grow(assembly, shared, room, Declared { bytes: open.wire, whole: frame.fin });
        }
        room
    }

    /// So many bytes of payload have been appended to `assembly` as they came, at most as many as
    /// [`make_room`](Self::make_room) said. The event is a message that is whole by them, or
    /// [`Event::NeedMore`].
    ///
    /// When no payload is awaited any more, since the connection has failed meanwhile, they are discarded.
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

    /// Unmasked bytes of an uncompressed frame have come. Answers the kind of the message if it is over.
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

    /// Makes room for `additional` bytes of a message.
    fn grow(&self, assembly: &mut Vec<u8>, shared: &mut PerThread, additional: usize, declared: Declared) {
        let expected = usize::try_from(declared.bytes).unwrap_or(usize::MAX);
        let max = usize::try_from(self.config.max_message).unwrap_or(usize::MAX);
        let cap = if declared.whole { expected } else { max };
        shared.spares.grow(assembly, additional, expected, cap);
    }

    /// Whether `input` suffices for an event, or for all of a fragment: what tells the end of a burst from its
    /// middle. Nothing is consumed.
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

    /// In fragment delivery, payload bytes of the uncompressed frame under way that are still to come: a driver may
    /// receive up to so many into memory of its own and give them to [`receive_piece`](Self::receive_piece). 0 when
    /// no such frame is under way.
    #[must_use]
    pub fn awaits_piece(&self) -> u64 {
        match (&self.stage, &self.message) {
            (Stage::Payload(frame), Some(open)) if !open.compressed && open.pieces => frame.remaining,
            _ => 0,
        }
    }

    /// In fragment delivery, whether the message ends with the payload that [`awaits_piece`](Self::awaits_piece)
    /// counts.
    #[must_use]
    pub fn awaits_last_piece(&self) -> bool {
        matches!(self.stage, Stage::Payload(frame) if frame.fin) && self.awaits_piece() > 0
    }

    /// In fragment delivery, whether the next event of `input` may be the end of the message under way without
    /// further payload: an empty last frame, the end of compressed output, or a control frame in front of one.
    /// Nothing is consumed.
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

    /// Handles payload bytes of the frame under way, at most [`awaits_piece`](Self::awaits_piece), where the driver
    /// received them: they are unmasked and checked in place, and are a piece of their message. Answers its kind, and
    /// whether it ends the message; `None` if no piece is awaited any more, since the connection has failed
    /// meanwhile.
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

    /// The transport ended: nothing more will come. Returns whether the closing handshake was clean,
    /// that is, whether the peer's Close had come; of a plain stream, whether it ended between messages.
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

    /// Control frames are handled whole: a part of one stays in the input.
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
            // The code is echoed; the reason was theirs.
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

    /// A data frame begins. A whole uncompressed message that lies in the input is done at once.
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

    /// A message that is one uncompressed frame, if all of it lies in the input: unmasked and checked there. Its frame
    /// is within the limit.
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
            // Data that does not compress grows a little, and a sender may flush after each byte.
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

    /// Payload bytes of a data frame: into the assembly, or out as a piece.
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
        // What was not used goes back as it came.
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

    /// Whether inflating stopped for want of room, so that output can come without input.
    fn has_more_output(&self) -> bool {
        self.message.as_ref().is_some_and(|open| open.more_output)
    }

    /// The end of a compressed message: what the tail 00 00 FF FF brings out (RFC 7692 section 7.2.2).
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

/// Nothing to do for what came without a mask, or with one that changes nothing.
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

/// The end of a payload of `len` bytes from `start`, if `have` bytes reach that far.
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

/// A piece that the last event lent from the assembly is done with.
fn take_delivered(open: &mut Open, assembly: &mut Vec<u8>) {
    if core::mem::take(&mut open.lent) {
        open.delivered += assembly.len() as u64;
        assembly.clear();
    }
}

/// How much inflating may append: up to the limit; in fragment delivery no more than a piece.
fn room_for(open: &Open, assembly: &[u8], max_message: u64) -> usize {
    let held = open.delivered.saturating_add(assembly.len() as u64);
    let room = max_message.saturating_sub(held);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if open.pieces { room.min(PIECE_MAX.saturating_sub(assembly.len())) } else { room }
}
