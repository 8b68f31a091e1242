//! Sends messages.

use alloc::vec::Vec;

use super::connection::H3Connection;
use super::error::{H3Code, H3SendError};
use super::frame::{DATA, HEADERS};
use super::qpack;
use super::stream::{H3Stream, NextBytes, QuicStreamId, SessionState, StreamRole};
use super::varint::FramePrefix;
use crate::fields::{RequestTarget, for_each_field, status_digits};

impl H3Connection {
    /// Appends the head of a request. `stream` is a new bidirectional stream of QUIC. `ends`: it has no content.
    ///
    /// # Errors
    /// [`H3SendError::NotPermitted`]; nothing is appended.
    pub fn send_request<'f>(
        &mut self,
        stream: QuicStreamId,
        target: &RequestTarget<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), H3SendError> {
        let settings = self.settings.unwrap_or_default();
        let is_permitted = target.protocol().is_none() || settings.extended_connect;
        let is_new = stream.is_request() && self.streams.get_ref(stream).is_none() && !self.is_server;
        if self.failed.is_some() || !is_new || !is_permitted || stream.get() >= self.peer_go_away {
            return Err(H3SendError::NotPermitted);
        }
        let mut entry = H3Stream::new(stream, StreamRole::Message, NextBytes::FrameType { first: false });
        entry.is_head = target.is_method("HEAD");
        entry.is_tunnel = target.is_method("CONNECT");
        entry.head_sent = true;
        entry.local_closed = ends;
        if target.protocol() == Some("webtransport") && self.config.webtransport() {
            entry.session = Some(SessionState::default().into());
        }
        self.streams.insert(entry);
        self.next_request = self.next_request.max(stream.get() + 4);
        write_headers(out, |out| {
            target.for_each_field(|name, value| qpack::encode(name, value, out));
            for_each_field(fields, |name, value| qpack::encode(name, value, out));
        });
        Ok(())
    }

    /// Appends the head of a response: an interim response with a status of 100 to 199, or the final one. `ends`: it
    /// has no content; end the stream after it. Names are converted to lower case. Fields that are invalid or that
    /// HTTP/3 does not have, such as `Connection`, are omitted. A status of 200 to 299 opens a WebTransport session.
    ///
    /// # Errors
    /// [`H3SendError`]; nothing is appended.
    pub fn send_head<'f>(
        &mut self,
        stream: QuicStreamId,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), H3SendError> {
        let is_interim = status < 200;
        // RFC 9114 section 4.5: HTTP/3 has no 101.
        if !(100..1000).contains(&status) || status == 101 || is_interim && ends {
            return Err(H3SendError::Status(status));
        }
        let entry = self.message(stream)?;
        if entry.head_sent || entry.local_closed {
            return Err(H3SendError::OutOfOrder(stream));
        }
        entry.head_sent = !is_interim;
        write_headers(out, |out| {
            qpack::encode(b":status", &status_digits(status), out);
            for_each_field(fields, |name, value| qpack::encode(name, value, out));
        });
        if !is_interim {
            self.answer_session(stream, status < 300);
        }
        if ends {
            self.finish(stream);
        }
        Ok(())
    }

    /// Appends a message's trailer fields. End the stream after them.
    ///
    /// # Errors
    /// [`H3SendError`]; nothing is appended.
    pub fn send_trailers<'f>(
        &mut self,
        stream: QuicStreamId,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        out: &mut Vec<u8>,
    ) -> Result<(), H3SendError> {
        self.sending(stream)?;
        write_headers(out, |out| for_each_field(fields, |name, value| qpack::encode(name, value, out)));
        self.finish(stream);
        Ok(())
    }

    /// Returns the header for a DATA frame for `len` bytes, which must follow it. `ends`: end the stream after them.
    /// Without bytes the header is empty.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn start_data(
        &mut self,
        stream: QuicStreamId,
        len: usize,
        ends: bool,
    ) -> Result<FramePrefix, H3SendError> {
        self.sending(stream)?;
        if ends {
            self.finish(stream);
        }
        if len == 0 {
            return Ok(FramePrefix::new());
        }
        Ok(FramePrefix::new().with(DATA).with(len as u64))
    }

    /// Appends a DATA frame. `ends`: end the stream after it.
    ///
    /// # Errors
    /// [`H3SendError`]; nothing is appended.
    pub fn send_data(
        &mut self,
        stream: QuicStreamId,
        data: &[u8],
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), H3SendError> {
        out.extend_from_slice(self.start_data(stream, data.len(), ends)?.as_bytes());
        out.extend_from_slice(data);
        Ok(())
    }

    /// Ends a stream early. [`H3Code::H3_NO_ERROR`] after a complete response tells the client not to send the rest of its
    /// request (RFC 9114 section 4.1). Without an open stream it has no effect.
    pub fn reset(&mut self, stream: QuicStreamId, code: H3Code) {
        self.abort_open(stream, code);
    }

    /// We have ended our side of a message.
    pub(super) fn finish(&mut self, stream: QuicStreamId) {
        let Some(entry) = self.streams.get(stream) else { return };
        entry.local_closed = true;
        let is_session = entry.session.is_some();
        if entry.remote_closed {
            self.streams.remove(stream);
        }
        if is_session {
            self.end_session_streams(stream);
        }
    }

    fn message(&mut self, stream: QuicStreamId) -> Result<&mut H3Stream, H3SendError> {
        let entry = self.streams.get(stream).filter(|entry| entry.role == StreamRole::Message);
        entry.ok_or(H3SendError::Closed(stream))
    }

    /// Requires a stream whose final head is sent.
    fn sending(&mut self, stream: QuicStreamId) -> Result<(), H3SendError> {
        let entry = self.message(stream)?;
        if !entry.head_sent || entry.local_closed {
            return Err(H3SendError::OutOfOrder(stream));
        }
        Ok(())
    }
}

/// Appends HEADERS with the fields that `encode` appends.
fn write_headers(out: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
    // Almost every section is below 16 KiB: two bytes are enough for its length.
    let start = out.len();
    out.extend_from_slice(&[HEADERS as u8, 0, 0]);
    let section = out.len();
    qpack::begin(out);
    encode(out);
    let len = out.len() - section;
    let bytes = (len as u32 | 0x8000_0000).to_be_bytes();
    if len < 1 << 14 {
        out[start + 1..section].copy_from_slice(&(len as u16 | 0x4000).to_be_bytes());
    } else {
        out.splice(start + 1..section, bytes);
    }
}
