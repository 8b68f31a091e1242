//! Receives field sections: heads and trailers.

use core::mem;
use core::time::Duration;

use super::config::Config;
use super::connection::H3Connection;
use super::error::{Error, H3Code};
use super::event::{H3Notice, Received};
use super::qpack;
use super::stream::{MessagePart, NextBytes, QuicStreamId, SessionState};
use crate::fields::{BlockError, FieldBuffer, Malformed, RequestShape, ResponseShape, check_trailers};

impl H3Connection {
    /// Handles a piece of a field section, of which `left` bytes follow.
    pub(super) fn section(
        &mut self,
        id: QuicStreamId,
        piece: &[u8],
        left: u64,
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'static> {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if left == 0 && stream.section.is_empty() {
            stream.stage = NextBytes::FrameType { first: false };
            return self.end_section(id, piece, fields, now);
        }
        stream.section.extend_from_slice(piece);
        if left > 0 {
            stream.stage = NextBytes::Section { left };
            self.streams.section_bytes += piece.len();
            if self.streams.section_bytes > Config::PARTIAL_SECTIONS_MAX {
                return Err(Error::load("partial field sections are too large"));
            }
            return Ok(None);
        }
        stream.stage = NextBytes::FrameType { first: false };
        let section = mem::take(&mut stream.section);
        self.streams.section_bytes -= section.len() - piece.len();
        self.end_section(id, &section, fields, now)
    }

    /// Decodes a field section.
    pub(super) fn end_section(
        &mut self,
        id: QuicStreamId,
        section: &[u8],
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'static> {
        fields.set_limits(self.config.head);
        qpack::decode(section, fields).map_err(|error| match error {
            BlockError::Invalid(reason) => Error::new(H3Code::QPACK_DECOMPRESSION_FAILED, reason),
            BlockError::Flood => Error::load("field section is too large"),
        })?;
        let awaits = self.streams.get_ref(id).map(|stream| stream.awaits);
        let checked = match awaits {
            Some(MessagePart::Head) if self.is_server => self.request(id, section, fields),
            Some(MessagePart::Head) => self.response(id, fields),
            Some(_) => self.trailers(id, fields),
            None => Ok(None),
        };
        checked.or_else(|(code, rule)| self.violate(id, code, rule, now))
    }

    fn request(&mut self, id: QuicStreamId, section: &[u8], fields: &FieldBuffer) -> Checked {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if fields.is_too_large() {
            stream.awaits = MessagePart::Content;
            return Ok(Some(H3Notice::HeadTooLarge { stream: id }));
        }
        let shape = RequestShape::from_fields(fields, self.config.extended_connect).map_err(malformed)?;
        let is_session = self.config.webtransport() && shape.has_protocol(fields, b"webtransport");
        if is_session && self.settings.is_none() {
            return self.hold_request(id, section);
        }
        // draft-ietf-webtrans-http3 section 3.1.
        if is_session && !self.settings.is_some_and(|settings| settings.datagrams) {
            return Err((H3Code::H3_MESSAGE_ERROR, "session of a client without SETTINGS_H3_DATAGRAM"));
        }
        let sessions = self.streams.iter().filter_map(|stream| stream.session.as_ref());
        let sessions = sessions.filter(|session| !session.is_closed).count();
        if is_session && sessions >= self.config.max_sessions as usize {
            return Err((H3Code::H3_REQUEST_REJECTED, "more sessions than the limit"));
        }
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        stream.awaits = MessagePart::Content;
        stream.content_left = shape.content_length;
        stream.is_tunnel = shape.has_method(fields, b"CONNECT");
        if is_session {
            stream.session = Some(SessionState::default().into());
        }
        Ok(Some(H3Notice::Request { stream: id, shape }))
    }

    /// Keeps a request for a session until SETTINGS arrive (draft-ietf-webtrans-http3 section 3.1).
    fn hold_request(&mut self, id: QuicStreamId, section: &[u8]) -> Checked {
        let is_full = self.is_full_of_held();
        if is_full || self.streams.section_bytes + section.len() > Config::PARTIAL_SECTIONS_MAX {
            return Err((H3Code::H3_REQUEST_REJECTED, "too many sessions wait for SETTINGS"));
        }
        if let Some(stream) = self.streams.get(id) {
            stream.section = section.to_vec();
            stream.stage = NextBytes::Held;
            self.streams.section_bytes += section.len();
        }
        Ok(None)
    }

    fn response(&mut self, id: QuicStreamId, fields: &FieldBuffer) -> Checked {
        if fields.is_too_large() {
            return Err((H3Code::H3_EXCESSIVE_LOAD, "head exceeds SETTINGS_MAX_FIELD_SECTION_SIZE"));
        }
        let shape = ResponseShape::from_fields(fields).map_err(malformed)?;
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if !shape.is_interim() {
            stream.awaits = MessagePart::Content;
            let has_content = !stream.is_head && !matches!(shape.status, 204 | 304);
            stream.content_left = shape.content_length.filter(|_| has_content);
            let is_accepted = (200..300).contains(&shape.status);
            stream.is_tunnel &= is_accepted;
            self.answer_session(id, is_accepted);
        }
        Ok(Some(H3Notice::Response { stream: id, shape }))
    }

    fn trailers(&mut self, id: QuicStreamId, fields: &FieldBuffer) -> Checked {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if stream.content_left.is_some_and(|left| left > 0) {
            return Err((H3Code::H3_MESSAGE_ERROR, "Content-Length exceeds the length of DATA"));
        }
        if fields.is_too_large() {
            return Err((H3Code::H3_EXCESSIVE_LOAD, "trailers exceed SETTINGS_MAX_FIELD_SECTION_SIZE"));
        }
        check_trailers(fields).map_err(malformed)?;
        stream.awaits = MessagePart::Nothing;
        Ok(Some(H3Notice::Trailers { stream: id }))
    }
}

/// A notice, or the code and the rule of a stream error.
type Checked = Result<Option<H3Notice<'static>>, (H3Code, &'static str)>;

fn malformed(Malformed(rule): Malformed) -> (H3Code, &'static str) {
    (H3Code::H3_MESSAGE_ERROR, rule)
}
