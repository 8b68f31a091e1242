//! Receives bytes of streams.

use core::time::Duration;

use super::capsule::Capsule;
use super::connection::H3Connection;
use super::error::{Error, H3Code};
use super::event::{Event, H3Notice, Received};
use super::frame::{
    CANCEL_PUSH, DATA, GOAWAY, HEADERS, MAX_PUSH_ID, PUSH_PROMISE, SESSION_SIGNAL, SETTINGS, take,
};
use super::qpack::DecoderInstructions;
use super::stream::{MessagePart, NextBytes, QuicStreamId, StreamRole};
use crate::fields::FieldBuffer;

impl H3Connection {
    /// Handles input up to the next event.
    pub(super) fn advance<'i>(
        &mut self,
        id: QuicStreamId,
        input: &mut &'i [u8],
        ends: bool,
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'i> {
        loop {
            let Some(stream) = self.streams.get(id).filter(|stream| !stream.remote_closed) else {
                *input = &[];
                return Ok(None);
            };
            let stage = stream.stage;
            let is_empty_payload = matches!(
                stage,
                NextBytes::Section { left: 0 }
                    | NextBytes::Settings { left: 0 }
                    | NextBytes::Skip { left: 0 }
            );
            if input.is_empty() && !is_empty_payload && stage != NextBytes::Held {
                return if ends { self.end_remote(id, fields, now) } else { Ok(None) };
            }
            let notice = match stage {
                NextBytes::StreamType
                | NextBytes::FrameType { .. }
                | NextBytes::FrameLength { .. }
                | NextBytes::SessionId => {
                    let Some(number) = stream.number.read(input) else { continue };
                    self.header(id, stage, number, now)?
                }
                NextBytes::Section { left } => {
                    let piece = take(input, left);
                    self.section(id, piece, left - piece.len() as u64, fields, now)?
                }
                NextBytes::Data { left } => self.content(id, input, left, fields, now)?,
                NextBytes::Settings { left } => {
                    let piece = take(input, left);
                    self.settings(id, piece, left - piece.len() as u64)?
                }
                NextBytes::Number { frame_type, left } => self.number(id, frame_type, input, left, now)?,
                NextBytes::Skip { left } => {
                    let left = left - take(input, left).len() as u64;
                    stream.stage = if left > 0 {
                        NextBytes::Skip { left }
                    } else {
                        NextBytes::FrameType { first: false }
                    };
                    None
                }
                NextBytes::Held => {
                    let notice = self.resume(id, fields, now)?;
                    if notice.is_none() && self.is_held(id) {
                        return Ok(None);
                    }
                    notice
                }
                NextBytes::Raw => self.raw(id, take(input, u64::MAX), now)?,
            };
            if notice.is_some() {
                return Ok(notice);
            }
        }
    }

    /// Handles an integer in a stream or frame header.
    fn header(
        &mut self,
        id: QuicStreamId,
        stage: NextBytes,
        number: u64,
        now: Duration,
    ) -> Received<'static> {
        match stage {
            NextBytes::StreamType => self.begin_unidirectional(id, number, now).map(|()| None),
            NextBytes::FrameType { first } => self.check_frame_type(id, number, first, now).map(|()| None),
            NextBytes::FrameLength { frame_type } => self.begin_frame(id, frame_type, number, now),
            _ => self.begin_session_stream(id, number, now),
        }
    }

    /// Decides on a frame by its type, and by the state of its stream.
    fn check_frame_type(
        &mut self,
        id: QuicStreamId,
        frame_type: u64,
        first: bool,
        now: Duration,
    ) -> Result<(), Error> {
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        let (role, awaits, is_tunnel) = (stream.role, stream.awaits, stream.is_tunnel);
        stream.stage = NextBytes::FrameLength { frame_type };
        // RFC 9114 section 7.2.8: HTTP/2 frames.
        if matches!(frame_type, 2 | 6 | 8 | 9) {
            return Err(Error::unexpected("frame of HTTP/2"));
        }
        if role == StreamRole::Control {
            return self.check_control_frame(frame_type, now);
        }
        if frame_type == SESSION_SIGNAL && self.config.webtransport() {
            if !first {
                return Err(Error::frame("signal of WebTransport inside of a stream"));
            }
            stream.stage = NextBytes::SessionId;
            stream.role = StreamRole::Session;
            return Ok(());
        }
        if !id.is_by_client() {
            let reason = "server opens a bidirectional stream";
            return Err(Error::new(H3Code::H3_STREAM_CREATION_ERROR, reason));
        }
        match (frame_type, awaits) {
            (DATA, MessagePart::Content) | (HEADERS, MessagePart::Head) => Ok(()),
            // RFC 9114 section 4.4: a tunnel has no trailers.
            (HEADERS, MessagePart::Content) if !is_tunnel => Ok(()),
            (DATA, _) => Err(Error::unexpected("DATA before HEADERS or after trailers")),
            (HEADERS, _) => Err(Error::unexpected("HEADERS after trailers or in a tunnel")),
            (PUSH_PROMISE, _) if !self.is_server => {
                Err(Error::id("pushed response exceeds MAX_PUSH_ID, which was not sent"))
            }
            (CANCEL_PUSH | SETTINGS | PUSH_PROMISE | GOAWAY | MAX_PUSH_ID, _) => {
                Err(Error::unexpected("frame of the control stream, or PUSH_PROMISE of a client"))
            }
            _ => self.charge_control_frame(now),
        }
    }

    /// Begins a frame's payload.
    fn begin_frame(
        &mut self,
        id: QuicStreamId,
        frame_type: u64,
        len: u64,
        now: Duration,
    ) -> Received<'static> {
        let max = self.config.head.max_bytes().saturating_mul(FieldBuffer::EXCESS_MAX) as u64;
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        stream.stage = match (stream.role, frame_type) {
            (StreamRole::Control, SETTINGS) => return self.begin_settings(id, len).map(|()| None),
            (StreamRole::Control, CANCEL_PUSH | GOAWAY | MAX_PUSH_ID) => {
                if !(1..=8).contains(&len) {
                    return Err(Error::frame("frame of one integer has another length"));
                }
                NextBytes::Number { frame_type, left: len }
            }
            (StreamRole::Message, HEADERS) if len > max => {
                return Err(Error::load("field section is too large"));
            }
            (StreamRole::Message, HEADERS) => NextBytes::Section { left: len },
            (StreamRole::Message, DATA) if len > 0 => {
                if let Some(left) = &mut stream.content_left {
                    let Some(rest) = left.checked_sub(len) else {
                        let rule = "Content-Length is less than the length of DATA";
                        return self.violate(id, H3Code::H3_MESSAGE_ERROR, rule, now);
                    };
                    *left = rest;
                }
                NextBytes::Data { left: len }
            }
            (StreamRole::Message, DATA) => {
                stream.stage = NextBytes::FrameType { first: false };
                return self.charge_control_frame(now).map(|()| None);
            }
            _ => NextBytes::Skip { left: len },
        };
        Ok(None)
    }

    /// Passes a piece of content on.
    fn content<'i>(
        &mut self,
        id: QuicStreamId,
        input: &mut &'i [u8],
        left: u64,
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'i> {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        let next = |left| match left {
            0 => NextBytes::FrameType { first: false },
            left => NextBytes::Data { left },
        };
        let Some(session) = &mut stream.session else {
            let data = take(input, left);
            stream.stage = next(left - data.len() as u64);
            return Ok(Some(H3Notice::Data { stream: id, data }));
        };
        if session.is_closed && !session.is_closed_by_peer {
            // Capsules that crossed our end of the session.
            let len = take(input, left).len() as u64;
            stream.stage = next(left - len);
            return Ok(None);
        }
        if session.is_closed {
            return self.violate(id, H3Code::H3_MESSAGE_ERROR, "data after the end of the session", now);
        }
        let mut rest = take(&mut &input[..], left);
        let len = rest.len();
        let capsule = session.capsules.receive(&mut rest);
        let consumed = len - rest.len();
        take(input, consumed as u64);
        stream.stage = next(left - consumed as u64);
        match capsule {
            Ok(None) => Ok(None),
            Ok(Some(Capsule::Other)) => self.charge_control_frame(now).map(|()| None),
            Ok(Some(Capsule::Drain)) => {
                self.charge_control_frame(now)?;
                Ok(Some(H3Notice::SessionDraining { session: id }))
            }
            Ok(Some(Capsule::Close { code })) => {
                session.is_closed = true;
                session.is_closed_by_peer = true;
                fields.set_text(session.capsules.reason());
                self.end_session_streams(id);
                Ok(Some(H3Notice::SessionClosed { session: id, code }))
            }
            Err(rule) => self.violate(id, H3Code::H3_MESSAGE_ERROR, rule, now),
        }
    }

    /// Handles bytes without frames.
    fn raw<'i>(&mut self, id: QuicStreamId, data: &'i [u8], now: Duration) -> Received<'i> {
        let role = self.streams.get_ref(id).map(|stream| stream.role);
        match role {
            Some(StreamRole::QpackEncoder) => {
                if !DecoderInstructions::is_valid_for_encoder(data) {
                    let reason = "instruction for a dynamic table, whose capacity is 0";
                    return Err(Error::new(H3Code::QPACK_ENCODER_STREAM_ERROR, reason));
                }
                data.iter().try_for_each(|_| self.charge_control_frame(now))?;
                Ok(None)
            }
            Some(StreamRole::QpackDecoder) => {
                let cancellations = self.decoder_instructions.receive(data);
                let cancellations =
                    cancellations.map_err(|reason| Error::new(H3Code::QPACK_DECODER_STREAM_ERROR, reason))?;
                (0..cancellations).try_for_each(|_| self.charge_control_frame(now))?;
                Ok(None)
            }
            _ => Ok(Some(H3Notice::Data { stream: id, data })),
        }
    }

    /// The peer has ended its side of a stream.
    fn end_remote(&mut self, id: QuicStreamId, fields: &mut FieldBuffer, now: Duration) -> Received<'static> {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        let (stage, is_partial) = (stream.stage, stream.number.is_partial());
        match stream.role {
            StreamRole::Control | StreamRole::QpackEncoder | StreamRole::QpackDecoder => {
                return Err(Error::new(H3Code::H3_CLOSED_CRITICAL_STREAM, "peer ends a critical stream"));
            }
            // RFC 9114 section 6.2: a stream may end before its type.
            StreamRole::Untyped => {
                self.streams.remove(id);
                return Ok(None);
            }
            StreamRole::Session if stage == NextBytes::Raw => {
                self.streams.remove(id);
                return Ok(Some(H3Notice::End { stream: id }));
            }
            // The application does not know the stream: its other side ends here.
            StreamRole::Session => {
                stream.remote_closed = true;
                self.abort_open(id, H3Code::H3_REQUEST_INCOMPLETE);
                return self.charge_reset(now).map(|()| None);
            }
            StreamRole::Message => {}
        }
        if !matches!(stage, NextBytes::FrameType { .. }) || is_partial {
            return Err(Error::frame("stream ends inside of a frame"));
        }
        if stream.awaits == MessagePart::Head {
            let code = if self.is_server { H3Code::H3_REQUEST_INCOMPLETE } else { H3Code::H3_MESSAGE_ERROR };
            return self.violate(id, code, "stream ends before its HEADERS", now);
        }
        if stream.content_left.is_some_and(|left| left > 0) {
            let rule = "Content-Length exceeds the length of DATA";
            return self.violate(id, H3Code::H3_MESSAGE_ERROR, rule, now);
        }
        let mut notice = Some(H3Notice::End { stream: id });
        if let Some(session) = &mut stream.session {
            if !session.is_closed && !session.capsules.is_complete() {
                return self.violate(id, H3Code::H3_MESSAGE_ERROR, "stream ends inside of a capsule", now);
            }
            let was_closed = core::mem::replace(&mut session.is_closed, true);
            notice = (!was_closed).then_some(H3Notice::SessionClosed { session: id, code: 0 });
            fields.set_text(b"");
        }
        stream.remote_closed = true;
        let is_session = stream.session.is_some();
        if stream.local_closed {
            self.streams.remove(id);
        }
        if is_session {
            self.end_session_streams(id);
        }
        Ok(notice)
    }

    /// Handles the peer's RESET_STREAM.
    ///
    /// # Errors
    /// [`Error`] ends the connection.
    pub fn receive_reset(
        &mut self,
        stream: QuicStreamId,
        code: H3Code,
        now: Duration,
    ) -> Result<Option<Event<'static>>, Error> {
        self.checked(|connection| connection.cancel(stream, code, true, now))
    }

    /// Handles the peer's STOP_SENDING: a message whose peer does not read it ends. A response continues if the server
    /// needs no more of its request ([`H3Code::H3_NO_ERROR`], RFC 9114 section 4.1).
    ///
    /// # Errors
    /// [`Error`] ends the connection.
    pub fn receive_stop(
        &mut self,
        stream: QuicStreamId,
        code: H3Code,
        now: Duration,
    ) -> Result<Option<Event<'static>>, Error> {
        self.checked(|connection| {
            if connection.is_own_control(stream) {
                let reason = "peer stops the control stream";
                return Err(Error::new(H3Code::H3_CLOSED_CRITICAL_STREAM, reason));
            }
            let sends = connection.streams.get_ref(stream);
            // A complete message was sent. The application owns unidirectional WebTransport streams.
            let is_sender = |role| matches!(role, StreamRole::Message | StreamRole::Session);
            if sends.is_none_or(|stream| !is_sender(stream.role) || stream.local_closed) {
                return Ok(None);
            }
            if !connection.is_server && code == H3Code::H3_NO_ERROR {
                connection.end_sending(stream, code);
                return Ok(None);
            }
            connection.cancel(stream, code, false, now)
        })
    }

    /// Ends a stream at the wish of the peer.
    fn cancel(
        &mut self,
        id: QuicStreamId,
        code: H3Code,
        by_reset: bool,
        now: Duration,
    ) -> Result<Option<Event<'static>>, Error> {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        stream.remote_closed |= by_reset;
        let is_known = match stream.role {
            StreamRole::Control | StreamRole::QpackEncoder | StreamRole::QpackDecoder => {
                return Err(Error::new(H3Code::H3_CLOSED_CRITICAL_STREAM, "peer resets a critical stream"));
            }
            StreamRole::Untyped => false,
            // The application owns the sending side of a stream that it knows.
            StreamRole::Session => {
                let is_known = stream.stage == NextBytes::Raw;
                stream.local_closed |= is_known;
                is_known
            }
            StreamRole::Message => !self.is_server || stream.awaits != MessagePart::Head,
        };
        let ends_session = stream.session.as_ref().is_some_and(|session| !session.is_closed);
        if stream.role != StreamRole::Session || id.is_by_client() == self.is_server {
            self.charge_reset(now)?;
        }
        self.abort_open(id, H3Code::H3_REQUEST_CANCELLED);
        if ends_session {
            return Ok(Some(Event::SessionClosed { session: id, code: 0, reason: "" }));
        }
        Ok(is_known.then_some(Event::Reset { stream: id, code, violation: None }))
    }

    /// Ends a message for a peer error: a stream error (RFC 9114 section 8).
    pub(super) fn violate(
        &mut self,
        id: QuicStreamId,
        code: H3Code,
        rule: &'static str,
        now: Duration,
    ) -> Received<'static> {
        let Some(stream) = self.streams.get_ref(id) else { return Ok(None) };
        let is_known = !self.is_server || stream.awaits != MessagePart::Head;
        self.charge_reset(now)?;
        self.abort_open(id, code);
        if !is_known {
            self.rejected = self.rejected.saturating_add(1);
            return Ok(None);
        }
        Ok(Some(H3Notice::Reset { stream: id, code, violation: Some(rule) }))
    }
}
