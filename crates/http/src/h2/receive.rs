//! Receives frames.

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::connection::{DRAIN_PING, Drain, H2Connection};
use super::error::{Error, ErrorCode};
use super::event::Notice;
use super::frame::{
    ACK, END_STREAM, FRAME_HEADER_LEN, FrameHeader, FrameType, PADDED, PREFACE, StreamId, number,
};
use super::settings::{PeerLimits, SETTING_LEN};
use super::stream::ClosedStream;
use crate::fields::FieldBuffer;

/// The frame that is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) stage: Stage,
    /// Part of a frame header, or of a payload of fixed length.
    partial: [u8; FRAME_HEADER_LEN],
    pub(super) frame: FrameHeader,
    /// The first frame has arrived.
    started: bool,
    /// Settings in the frame that is being received.
    settings: PeerLimits,
    /// Part of a header block.
    pub(super) block: Vec<u8>,
    /// The block's HEADERS; its stream is 0 if none is open.
    pub(super) block_head: FrameHeader,
    pub(super) continuations: u32,
    /// Number of complete header blocks, plus the preface, modulo 2^32.
    pub(super) blocks: u32,
}

/// Meaning of the next input.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// The preface, of which this many bytes have arrived.
    Preface(usize),
    /// A frame header.
    Header(usize),
    /// A fixed-length payload, or one setting. `left` frame bytes follow it.
    Fixed { need: usize, have: usize, left: u32 },
    /// The length of the padding of DATA.
    PadLength,
    /// Content.
    Data { left: u32, padding: u32 },
    /// A part of a header block.
    Block { left: u32 },
    /// Ignored bytes.
    Skip { left: u32 },
}

impl Incoming {
    pub(super) const fn new(is_client: bool) -> Self {
        Self {
            // A server's preface is its SETTINGS.
            stage: if is_client { Stage::Header(0) } else { Stage::Preface(0) },
            partial: [0; FRAME_HEADER_LEN],
            frame: FrameHeader::EMPTY,
            started: false,
            settings: PeerLimits::new(),
            block: Vec::new(),
            block_head: FrameHeader::EMPTY,
            continuations: 0,
            blocks: 0,
        }
    }

    /// Returns the memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.block.capacity()
    }

    /// Copies input into `partial` until `need` bytes are there. Returns their number.
    fn fill(&mut self, have: usize, need: usize, input: &mut &[u8]) -> usize {
        let piece = take(input, (need - have) as u32);
        self.partial[have..have + piece.len()].copy_from_slice(piece);
        have + piece.len()
    }

    fn four(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.partial;
        [a, b, c, d]
    }
}

/// Cuts up to `max` bytes off the input.
fn take<'i>(input: &mut &'i [u8], max: u32) -> &'i [u8] {
    let (piece, rest) = input.split_at(input.len().min(max as usize));
    *input = rest;
    piece
}

pub(super) type Received<'i> = Result<Option<Notice<'i>>, Error>;

impl H2Connection {
    /// Handles input up to the next event.
    pub(super) fn advance<'i>(
        &mut self,
        input: &mut &'i [u8],
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'i> {
        // The application's calls may have failed the connection.
        while self.failed.is_none() {
            let notice = match self.incoming.stage {
                Stage::Preface(at) => {
                    if !self.preface(at, take(input, (PREFACE.len() - at) as u32))? {
                        return Ok(None);
                    }
                    None
                }
                Stage::Header(have) => {
                    let have = self.incoming.fill(have, FRAME_HEADER_LEN, input);
                    if have < FRAME_HEADER_LEN {
                        self.incoming.stage = Stage::Header(have);
                        return Ok(None);
                    }
                    self.begin_frame(FrameHeader::parse(self.incoming.partial), now)?
                }
                Stage::Fixed { need, have, left } => {
                    let have = self.incoming.fill(have, need, input);
                    if have < need {
                        self.incoming.stage = Stage::Fixed { need, have, left };
                        return Ok(None);
                    }
                    self.fixed_payload(left, now)?
                }
                Stage::PadLength => {
                    let Some(&padding) = take(input, 1).first() else { return Ok(None) };
                    let padding = u32::from(padding);
                    let len = (self.incoming.frame.len - 1).checked_sub(padding);
                    let len = len.ok_or(Error::protocol("padding of DATA exceeds the payload"))?;
                    self.begin_content(len, padding, 1 + padding, now)?
                }
                Stage::Data { left, padding } => {
                    let data = take(input, left);
                    if data.is_empty() {
                        return Ok(None);
                    }
                    self.content(data, left - data.len() as u32, padding)
                }
                Stage::Block { left } => {
                    let piece = take(input, left);
                    let left = left - piece.len() as u32;
                    if left > 0 {
                        self.incoming.block.extend_from_slice(piece);
                        self.incoming.stage = Stage::Block { left };
                        return Ok(None);
                    }
                    self.end_block_frame(piece, fields, now)?
                }
                Stage::Skip { left } => {
                    let left = left - take(input, left).len() as u32;
                    self.incoming.stage = if left > 0 { Stage::Skip { left } } else { Stage::Header(0) };
                    if left > 0 {
                        return Ok(None);
                    }
                    None
                }
            };
            if notice.is_some() {
                return Ok(notice);
            }
        }
        Ok(None)
    }

    /// Checks a piece of the preface. Returns whether it is complete.
    fn preface(&mut self, at: usize, piece: &[u8]) -> Result<bool, Error> {
        if !PREFACE[at..].starts_with(piece) {
            return Err(Error::protocol("connection does not begin with the preface of HTTP/2"));
        }
        let at = at + piece.len();
        let is_whole = at == PREFACE.len();
        self.incoming.blocks += u32::from(is_whole);
        self.incoming.stage = if is_whole { Stage::Header(0) } else { Stage::Preface(at) };
        Ok(is_whole)
    }

    /// Checks a frame header, and decides on its payload.
    fn begin_frame(&mut self, frame: FrameHeader, now: Duration) -> Received<'static> {
        let FrameHeader { len, frame_type, stream, .. } = frame;
        self.incoming.frame = frame;
        if !mem::replace(&mut self.incoming.started, true)
            && (frame_type != FrameType::Settings || frame.has(ACK))
        {
            return Err(Error::protocol("first frame is not SETTINGS"));
        }
        let block = self.incoming.block_head.stream;
        if (frame_type == FrameType::Continuation) != (block != 0) || block != 0 && stream != block {
            return Err(Error::protocol("CONTINUATION does not follow a header block of its stream"));
        }
        if len > self.config.max_frame_size {
            return Err(Error::frame_size("frame exceeds SETTINGS_MAX_FRAME_SIZE"));
        }
        self.incoming.stage = Stage::Skip { left: len };
        match frame_type {
            FrameType::Data => return self.begin_data(now),
            FrameType::Headers | FrameType::Continuation => self.begin_block()?,
            FrameType::Settings => self.begin_settings(now)?,
            FrameType::PushPromise => return Err(Error::protocol("PUSH_PROMISE is disabled")),
            FrameType::Priority => return self.begin_priority(now),
            FrameType::RstStream => {
                self.require_len(4)?;
                self.require_known_stream("RST_STREAM on an idle stream")?;
            }
            FrameType::WindowUpdate => {
                self.require_len(4)?;
                if stream != 0 {
                    self.require_known_stream("WINDOW_UPDATE on an idle stream")?;
                }
            }
            FrameType::Ping => {
                self.require_connection("PING on a stream")?;
                self.require_len(8)?;
            }
            FrameType::GoAway => {
                self.require_connection("GOAWAY on a stream")?;
                if len < 8 {
                    return Err(Error::frame_size("GOAWAY is shorter than 8 octets"));
                }
                self.incoming.stage = Stage::Fixed { need: 8, have: 0, left: len - 8 };
            }
            FrameType::Unknown => self.charge_control_frame(now)?,
        }
        Ok(None)
    }

    fn require_len(&mut self, len: u32) -> Result<(), Error> {
        if self.incoming.frame.len != len {
            return Err(Error::frame_size("frame of fixed length has another length"));
        }
        self.incoming.stage = Stage::Fixed { need: len as usize, have: 0, left: 0 };
        Ok(())
    }

    fn require_connection(&self, reason: &'static str) -> Result<(), Error> {
        if self.incoming.frame.stream == 0 { Ok(()) } else { Err(Error::protocol(reason)) }
    }

    /// Requires a client stream that is not idle (RFC 9113 section 5.1).
    pub(super) fn require_known_stream(&self, reason: &'static str) -> Result<(), Error> {
        let stream = self.incoming.frame.stream;
        if stream % 2 == 1 && stream <= self.last_stream { Ok(()) } else { Err(Error::protocol(reason)) }
    }

    fn begin_priority(&mut self, now: Duration) -> Received<'static> {
        let FrameHeader { len, stream, .. } = self.incoming.frame;
        self.charge_control_frame(now)?;
        if stream == 0 {
            return Err(Error::protocol("PRIORITY on the connection"));
        }
        if len == 5 {
            return Ok(None);
        }
        let reason = "PRIORITY of another length than 5 octets";
        if self.streams.get(stream).is_none() {
            // RST_STREAM of an idle or closed stream would be an error of ours.
            return Err(Error::frame_size(reason));
        }
        self.reset_for_violation(stream, ErrorCode::FRAME_SIZE_ERROR, reason, now)
    }

    fn begin_settings(&mut self, now: Duration) -> Result<(), Error> {
        let frame = self.incoming.frame;
        self.require_connection("SETTINGS on a stream")?;
        if frame.has(ACK) {
            if frame.len != 0 {
                return Err(Error::frame_size("acknowledgement of SETTINGS has a payload"));
            }
            return self.acknowledge_settings();
        }
        if !frame.len.is_multiple_of(SETTING_LEN) {
            return Err(Error::frame_size("length of SETTINGS is no multiple of 6"));
        }
        self.charge_control_frame(now)?;
        self.incoming.settings = self.peer;
        self.incoming.settings.smallest_table = self.peer.header_table_size;
        // An empty frame has no setting, and is complete at once.
        self.incoming.stage = Stage::Fixed { need: 0, have: 0, left: frame.len };
        Ok(())
    }

    /// Handles a fixed-length payload, or the next setting, which is in `partial`.
    fn fixed_payload(&mut self, left: u32, now: Duration) -> Received<'static> {
        let frame = self.incoming.frame;
        if frame.frame_type == FrameType::Settings {
            return self.setting(left);
        }
        self.incoming.stage = Stage::Skip { left };
        let eight: [u8; 8] = self.incoming.partial[..8].try_into().unwrap_or_default();
        match frame.frame_type {
            FrameType::Ping if frame.has(ACK) => {
                if self.drain == Drain::Announced && eight == DRAIN_PING {
                    self.shut_down_now(ErrorCode::NO_ERROR);
                    return Ok(None);
                }
                self.charge_control_frame(now)?;
                Ok(Some(Notice::Pong { data: eight }))
            }
            FrameType::Ping => {
                self.charge_control_frame(now)?;
                self.queue(FrameHeader::new(FrameType::Ping, 8, ACK, 0), &eight);
                Ok(None)
            }
            FrameType::GoAway => {
                let last = number(self.incoming.four());
                if self.peer_last_stream.is_some_and(|before| last > before) {
                    return Err(Error::protocol("last stream of GOAWAY grows"));
                }
                self.peer_last_stream = Some(last);
                self.charge_control_frame(now)?;
                let [.., a, b, c, d] = eight;
                Ok(Some(Notice::GoAway { code: ErrorCode::new(u32::from_be_bytes([a, b, c, d])) }))
            }
            FrameType::RstStream => {
                if !self.streams.close(frame.stream, false) {
                    self.charge_control_frame(now)?;
                    return Ok(None);
                }
                self.charge_reset(now)?;
                let code = ErrorCode::new(u32::from_be_bytes(self.incoming.four()));
                let stream = StreamId::new(frame.stream);
                Ok(Some(Notice::Reset { stream, code, violation: None }))
            }
            FrameType::WindowUpdate => self.window_update(now),
            _ => Ok(None),
        }
    }

    /// Applies the setting in `partial`, if any, and expects the next one.
    fn setting(&mut self, left: u32) -> Received<'static> {
        if left < self.incoming.frame.len {
            let [setting @ .., _, _, _] = self.incoming.partial;
            self.incoming.settings.apply(setting, !self.is_client)?;
        }
        if left > 0 {
            let need = SETTING_LEN as usize;
            self.incoming.stage = Stage::Fixed { need, have: 0, left: left - SETTING_LEN };
            return Ok(None);
        }
        self.incoming.stage = Stage::Header(0);
        let old = mem::replace(&mut self.peer, self.incoming.settings);
        self.settings_received = true;
        self.encoder.set_limit(self.peer.smallest_table as usize);
        self.encoder.set_limit(self.peer.header_table_size as usize);
        let by = i64::from(self.peer.initial_window) - i64::from(old.initial_window);
        let mut is_opened = false;
        for stream in self.streams.iter_mut() {
            let was_closed = stream.send.available() == 0;
            if stream.send.shift(by).is_err() {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE moves a window beyond 2^31-1";
                return Err(Error::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
            }
            is_opened |= stream.blocked && was_closed && stream.send.available() > 0;
        }
        self.queue_settings_ack();
        Ok((is_opened && self.send.available() > 0).then_some(Notice::WindowOpened { stream: None }))
    }

    fn window_update(&mut self, now: Duration) -> Received<'static> {
        let (id, increment) = (self.incoming.frame.stream, number(self.incoming.four()));
        self.charge_control_frame(now)?;
        let overflow = "window exceeds 2^31-1";
        if id == 0 {
            if increment == 0 {
                return Err(Error::protocol("WINDOW_UPDATE of 0 on the connection"));
            }
            let was_empty = self.send.available() == 0;
            let credited = self.send.credit(increment);
            credited.map_err(|_| Error::new(ErrorCode::FLOW_CONTROL_ERROR, overflow))?;
            let is_opened = was_empty && self.streams.iter_mut().any(|stream| stream.blocked);
            return Ok(is_opened.then_some(Notice::WindowOpened { stream: None }));
        }
        let connection_opened = self.send.available() > 0;
        // RFC 9113 section 5.1: it may have crossed the end of the stream.
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if increment == 0 {
            let reason = "WINDOW_UPDATE of 0 on a stream";
            return self.reset_for_violation(id, ErrorCode::PROTOCOL_ERROR, reason, now);
        }
        let was_closed = stream.send.available() == 0;
        if stream.send.credit(increment).is_err() {
            return self.reset_for_violation(id, ErrorCode::FLOW_CONTROL_ERROR, overflow, now);
        }
        let is_opened = stream.blocked && was_closed && stream.send.available() > 0 && connection_opened;
        stream.blocked &= !is_opened;
        Ok(is_opened.then_some(Notice::WindowOpened { stream: Some(StreamId::new(id)) }))
    }

    /// Charges DATA to the windows, and decides on its content.
    fn begin_data(&mut self, now: Duration) -> Received<'static> {
        let frame = self.incoming.frame;
        self.require_known_stream("DATA on an idle stream")?;
        if frame.has(PADDED) && frame.len == 0 {
            return Err(Error::frame_size("padded DATA without the length of its padding"));
        }
        if !self.receive.charge(frame.len) {
            let reason = "DATA exceeds the window of the connection";
            return Err(Error::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
        }
        // A stream that is not read holds its own window only.
        if let Some(increment) = self.unreported.add(frame.len, self.config.connection_window) {
            let _ = self.receive.credit(increment);
            self.queue_window_update(0, increment);
        }
        if frame.has(PADDED) {
            // Invalid padding is a connection error (RFC 9113 section 6.1), also if the stream is closed: a frame whose
            // content is ignored passes its padding on the way.
            self.incoming.stage = Stage::PadLength;
        }
        let Some(stream) = self.streams.get(frame.stream) else {
            self.charge_control_frame(now)?;
            return match self.streams.closed(frame.stream) {
                _ if self.is_refused_by_go_away(frame.stream) => Ok(None),
                ClosedStream::ByOurReset => Ok(None),
                ClosedStream::Ended | ClosedStream::Unknown => {
                    Err(Error::new(ErrorCode::STREAM_CLOSED, "DATA on a closed stream"))
                }
            };
        };
        if stream.remote_closed {
            let reason = "DATA after the end of the stream";
            return self.reset_for_violation(frame.stream, ErrorCode::STREAM_CLOSED, reason, now);
        }
        if !stream.head_received {
            let reason = "DATA before the head of the response";
            return self.reset_for_violation(frame.stream, ErrorCode::PROTOCOL_ERROR, reason, now);
        }
        if !stream.receive.charge(frame.len) {
            let reason = "DATA exceeds the window of the stream";
            return self.reset_for_violation(frame.stream, ErrorCode::FLOW_CONTROL_ERROR, reason, now);
        }
        if frame.has(PADDED) {
            return Ok(None);
        }
        self.begin_content(frame.len, 0, 0, now)
    }

    /// Begins the content of DATA. `overhead` are bytes of the frame that the application does not see.
    fn begin_content(&mut self, len: u32, padding: u32, overhead: u32, now: Duration) -> Received<'static> {
        let FrameHeader { stream: id, .. } = self.incoming.frame;
        let ends = self.incoming.frame.has(END_STREAM);
        self.incoming.stage = Stage::Skip { left: len + padding };
        // The stream was closed before the frame, or by it, or by the application inside of it.
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if let Some(left) = &mut stream.content_left {
            let rest = left.checked_sub(u64::from(len)).filter(|rest| *rest == 0 || !ends);
            let Some(rest) = rest else {
                let reason = "Content-Length differs from the length of DATA";
                return self.reset_for_violation(id, ErrorCode::PROTOCOL_ERROR, reason, now);
            };
            *left = rest;
        }
        self.release(StreamId::new(id), overhead as usize);
        if len > 0 {
            self.incoming.stage = Stage::Data { left: len, padding };
            return Ok(None);
        }
        if !ends {
            self.charge_control_frame(now)?;
            return Ok(None);
        }
        self.end_remote(id);
        Ok(Some(Notice::Data { stream: StreamId::new(id), data: &[], ends }))
    }

    /// Passes a piece of content on.
    fn content<'i>(&mut self, data: &'i [u8], left: u32, padding: u32) -> Option<Notice<'i>> {
        let id = self.incoming.frame.stream;
        self.incoming.stage =
            if left > 0 { Stage::Data { left, padding } } else { Stage::Skip { left: padding } };
        // The application may have reset the stream inside of the frame.
        self.streams.get(id)?;
        let ends = left == 0 && self.incoming.frame.has(END_STREAM);
        if ends {
            self.end_remote(id);
        }
        Some(Notice::Data { stream: StreamId::new(id), data, ends })
    }

    /// The peer has ended its side of a stream.
    pub(super) fn end_remote(&mut self, id: u32) {
        if let Some(stream) = self.streams.get(id) {
            stream.remote_closed = true;
            if stream.local_closed {
                self.streams.close(id, false);
            }
        }
    }

    pub(super) const fn is_refused_by_go_away(&self, id: u32) -> bool {
        matches!(self.drain, Drain::Final(last) if id > last && !self.is_client)
    }

    /// Resets a stream for a peer error: a stream error (RFC 9113 section 5.4.2).
    pub(super) fn reset_for_violation(
        &mut self,
        id: u32,
        code: ErrorCode,
        rule: &'static str,
        now: Duration,
    ) -> Received<'static> {
        self.charge_reset(now)?;
        self.queue_reset(id, code);
        if !self.streams.close(id, true) {
            self.streams.remember(id, true);
            let rejected = usize::from(code == ErrorCode::REFUSED_STREAM);
            self.rejected[rejected] = self.rejected[rejected].saturating_add(1);
            return Ok(None);
        }
        Ok(Some(Notice::Reset { stream: StreamId::new(id), code, violation: Some(rule) }))
    }
}
