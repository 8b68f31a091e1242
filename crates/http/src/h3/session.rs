//! WebTransport sessions (draft-ietf-webtrans-http3), and datagrams (RFC 9297).

use alloc::vec::Vec;
use core::time::Duration;

use super::capsule::{write_close, write_drain};
use super::config::Config;
use super::connection::H3Connection;
use super::error::{Error, H3Code, H3SendError};
use super::event::{H3Notice, Received};
use super::frame::{DATA, SESSION_SIGNAL, SESSION_STREAM};
use super::stream::{H3Stream, MessagePart, NextBytes, QuicStreamId, SessionState, StreamRole};
use super::varint::{FramePrefix, VarintReader, write_varint};
use crate::fields::FieldBuffer;

/// Relation of a session to a stream or datagram that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionStatus {
    Open,
    /// The request or the answer has not arrived.
    Pending,
    Gone,
}

impl H3Connection {
    pub(super) fn session_status(&self, session: QuicStreamId) -> SessionStatus {
        match self.streams.get_ref(session) {
            Some(H3Stream { session: Some(session), .. }) => match &**session {
                SessionState { is_closed: true, .. } => SessionStatus::Gone,
                SessionState { is_accepted: true, .. } => SessionStatus::Open,
                SessionState { .. } => SessionStatus::Pending,
            },
            // The request has not arrived.
            Some(stream) if self.is_server && stream.awaits == MessagePart::Head => SessionStatus::Pending,
            None if self.is_server && session.get() >= self.next_request => SessionStatus::Pending,
            _ => SessionStatus::Gone,
        }
    }

    /// Begins a stream of a session.
    pub(super) fn begin_session_stream(
        &mut self,
        id: QuicStreamId,
        session: u64,
        now: Duration,
    ) -> Received<'static> {
        let session = QuicStreamId::new(session);
        if !session.is_request() {
            return Err(Error::id("stream of WebTransport names no request"));
        }
        if let Some(stream) = self.streams.get(id) {
            stream.session_id = session;
        }
        self.join_session(id, session, now)
    }

    fn join_session(&mut self, id: QuicStreamId, session: QuicStreamId, now: Duration) -> Received<'static> {
        let status = self.session_status(session);
        let is_full = self.is_full_of_held();
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        let rejection = match status {
            SessionStatus::Open => {
                stream.stage = NextBytes::Raw;
                return Ok(Some(H3Notice::SessionStream { stream: id, session }));
            }
            SessionStatus::Pending if stream.stage == NextBytes::Held || !is_full => {
                stream.stage = NextBytes::Held;
                return Ok(None);
            }
            SessionStatus::Pending => H3Code::WEBTRANSPORT_BUFFERED_STREAM_REJECTED,
            SessionStatus::Gone => H3Code::WEBTRANSPORT_SESSION_GONE,
        };
        self.abort_open(id, rejection);
        self.charge_control_frame(now).map(|()| None)
    }

    pub(super) fn is_full_of_held(&self) -> bool {
        let held = self.streams.iter().filter(|stream| stream.stage == NextBytes::Held);
        held.count() >= Config::HELD_STREAMS_MAX
    }

    /// Tries again to continue a held stream.
    pub(super) fn resume(
        &mut self,
        id: QuicStreamId,
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'static> {
        let has_settings = self.settings.is_some();
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        if stream.role == StreamRole::Session {
            let session = stream.session_id;
            return self.join_session(id, session, now);
        }
        if !has_settings {
            return Ok(None);
        }
        stream.stage = NextBytes::FrameType { first: false };
        let section = core::mem::take(&mut stream.section);
        self.streams.section_bytes -= section.len();
        self.end_section(id, &section, fields, now)
    }

    /// Applies the answer to a request for a session.
    pub(super) fn answer_session(&mut self, id: QuicStreamId, is_accepted: bool) {
        let Some(stream) = self.streams.get(id) else { return };
        if let Some(session) = &mut stream.session {
            session.is_accepted = is_accepted;
            if !is_accepted {
                stream.session = None;
            }
            self.resume_held();
        }
    }

    /// Stops the received streams of a session that has ended.
    pub(super) fn end_session_streams(&mut self, session: QuicStreamId) {
        while let Some((id, stage)) = self.stream_of(session) {
            self.streams.remove(id);
            if stage == NextBytes::Held {
                // The application does not know the stream.
                self.abort(id, H3Code::WEBTRANSPORT_SESSION_GONE);
            } else {
                self.stop(id, H3Code::WEBTRANSPORT_SESSION_GONE);
            }
        }
        self.resume_held();
    }

    fn stream_of(&self, session: QuicStreamId) -> Option<(QuicStreamId, NextBytes)> {
        let is_part = |stream: &&H3Stream| {
            stream.role == StreamRole::Session
                && stream.session_id == session
                && matches!(stream.stage, NextBytes::Raw | NextBytes::Held)
        };
        self.streams.iter().find(is_part).map(|stream| (stream.id, stream.stage))
    }

    /// Opens a stream in a session: `stream` is a new QUIC stream, in either direction. Write the returned bytes first;
    /// the application's bytes follow without frames. Bytes of the peer arrive as [`Event::Data`](super::Event::Data).
    ///
    /// # Errors
    /// [`H3SendError::NoSession`].
    pub fn open_session_stream(
        &mut self,
        stream: QuicStreamId,
        session: QuicStreamId,
    ) -> Result<FramePrefix, H3SendError> {
        if self.session_status(session) != SessionStatus::Open {
            return Err(H3SendError::NoSession(session));
        }
        if stream.is_unidirectional() {
            return Ok(FramePrefix::new().with(SESSION_STREAM).with(session.get()));
        }
        let mut entry = H3Stream::new(stream, StreamRole::Session, NextBytes::Raw);
        entry.session_id = session;
        self.streams.insert(entry);
        Ok(FramePrefix::new().with(SESSION_SIGNAL).with(session.get()))
    }

    /// Notes that our side of a stream of a session ends behind the bytes that are queued for it.
    pub fn finish_session_stream(&mut self, stream: QuicStreamId) {
        if let Some(entry) = self.streams.get(stream).filter(|entry| entry.role == StreamRole::Session) {
            entry.local_closed = true;
        }
    }

    /// Rejects a stream in a session that the peer has opened, and counts it with the streams that the peer resets.
    ///
    /// # Errors
    /// [`Error`] ends the connection: the peer opens too many streams that the application does not take.
    pub fn reject_session_stream(
        &mut self,
        stream: QuicStreamId,
        code: H3Code,
        now: Duration,
    ) -> Result<(), Error> {
        self.checked(|connection| {
            connection.abort_open(stream, code);
            connection.charge_reset(now)
        })
    }

    /// Appends the end of a session with a code and a reason, of which up to 1,024 bytes are sent. End the stream after it.
    ///
    /// # Errors
    /// [`H3SendError::NoSession`]; nothing is appended.
    pub fn close_session(
        &mut self,
        session: QuicStreamId,
        code: u32,
        reason: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), H3SendError> {
        let mut capsule = Vec::new();
        write_close(code, reason, &mut capsule);
        self.send_capsule(session, &capsule, out)?;
        if let Some(state) = self.streams.get(session).and_then(|stream| stream.session.as_mut()) {
            state.is_closed = true;
        }
        self.end_session_streams(session);
        self.finish(session);
        Ok(())
    }

    /// Appends the request to end a session soon.
    ///
    /// # Errors
    /// [`H3SendError::NoSession`]; nothing is appended.
    pub fn drain_session(&mut self, session: QuicStreamId, out: &mut Vec<u8>) -> Result<(), H3SendError> {
        let mut capsule = Vec::new();
        write_drain(&mut capsule);
        self.send_capsule(session, &capsule, out)
    }

    fn send_capsule(
        &self,
        session: QuicStreamId,
        capsule: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), H3SendError> {
        let is_sending = self.streams.get_ref(session).is_some_and(|stream| !stream.local_closed);
        if self.session_status(session) != SessionStatus::Open || !is_sending {
            return Err(H3SendError::NoSession(session));
        }
        write_varint(DATA, out);
        write_varint(capsule.len() as u64, out);
        out.extend_from_slice(capsule);
        Ok(())
    }

    /// Returns the bytes before the payload of a datagram of a session.
    ///
    /// # Errors
    /// [`H3SendError::NoSession`]; [`H3SendError::NotPermitted`] unless the peer has announced datagrams.
    pub fn datagram_prefix(&self, session: QuicStreamId) -> Result<FramePrefix, H3SendError> {
        if self.session_status(session) != SessionStatus::Open {
            return Err(H3SendError::NoSession(session));
        }
        if !self.settings.is_some_and(|settings| settings.datagrams) {
            return Err(H3SendError::NotPermitted);
        }
        Ok(FramePrefix::new().with(session.get() / 4))
    }

    /// Returns a received datagram's session and payload. `None`: its session is not open. A datagram that has come
    /// before its session [waits](Self::next_early_datagram); others are dropped (RFC 9297 section 2.1).
    ///
    /// # Errors
    /// [`Error`] ends the connection.
    pub fn receive_datagram<'d>(
        &mut self,
        datagram: &'d [u8],
    ) -> Result<Option<(QuicStreamId, &'d [u8])>, Error> {
        self.checked(|connection| {
            let mut payload = datagram;
            let quarter = VarintReader::default().read(&mut payload);
            let quarter = quarter.filter(|quarter| *quarter < 1 << 60);
            let invalid = Error::new(H3Code::H3_DATAGRAM_ERROR, "datagram without a valid stream identifier");
            let session = QuicStreamId::new(quarter.ok_or(invalid)? * 4);
            match connection.session_status(session) {
                SessionStatus::Open => return Ok(Some((session, payload))),
                SessionStatus::Pending if connection.config.webtransport() => {
                    connection.keep_datagram(session, payload);
                }
                SessionStatus::Pending | SessionStatus::Gone => {}
            }
            Ok(None)
        })
    }
}
