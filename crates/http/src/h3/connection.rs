//! The state of a connection.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::config::Config;
use super::early::EarlyDatagrams;
use super::error::{Error, H3Code};
use super::event::{Event, H3Notice};
use super::frame::{CONTROL_STREAM, GOAWAY};
use super::qpack::DecoderInstructions;
use super::settings::{self, PeerSettings, SettingsReader};
use super::stream::{H3Stream, NextBytes, QuicStreamId, QuicStreams, StreamRole};
use super::varint::{VARINT_MAX, write_varint};
use crate::budget::Budget;
use crate::fields::{FieldBuffer, RequestFields, ResponseFields};
use crate::version::Version;

/// One HTTP/3 connection, as one side sees it.
#[derive(Debug)]
pub struct H3Connection {
    pub(super) config: Config,
    pub(super) is_server: bool,
    pub(super) streams: QuicStreams,
    signals: VecDeque<StreamSignal>,
    /// Held streams whose input is to be passed again.
    resumed: Vec<QuicStreamId>,
    /// Bytes of our control stream.
    pub(super) control: Vec<u8>,
    control_stream: Option<QuicStreamId>,
    /// The peer's control stream, encoder stream and decoder stream, once their types have arrived.
    pub(super) critical: [bool; 3],
    pub(super) reader: Option<Box<SettingsReader>>,
    pub(super) settings: Option<PeerSettings>,
    pub(super) decoder_instructions: DecoderInstructions,
    /// The smallest request identifier that was not opened.
    pub(super) next_request: u64,
    pub(super) go_away: GoAwayState,
    /// Identifier in the peer's GOAWAY.
    pub(super) peer_go_away: u64,
    pub(super) max_push_id: Option<u64>,
    pub(super) resets: Budget,
    pub(super) control_frames: Budget,
    /// Requests rejected without an event.
    pub(super) rejected: u32,
    pub(super) failed: Option<Error>,
    /// Datagrams that have arrived before their session.
    pub(super) early: Option<Box<EarlyDatagrams>>,
}

/// Graceful shutdown (RFC 9114 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoAwayState {
    Serving,
    /// GOAWAY without a limit is sent.
    Announced,
    /// GOAWAY with the first request that is not served is sent.
    Final(u64),
}

/// A QUIC frame that the driver has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamSignal {
    /// RESET_STREAM: ends the sending side.
    Reset {
        /// The stream.
        stream: QuicStreamId,
        /// The code.
        code: H3Code,
    },
    /// STOP_SENDING: ends the receiving side.
    StopSending {
        /// The stream.
        stream: QuicStreamId,
        /// The code.
        code: H3Code,
    },
}

impl H3Connection {
    /// Creates the server's side of a connection. SETTINGS are queued.
    #[must_use]
    pub fn server(config: Config) -> Self {
        Self::new(config, true)
    }

    /// Creates the client's side of a connection. SETTINGS are queued. The client accepts no pushed responses.
    #[must_use]
    pub fn client(config: Config) -> Self {
        Self::new(config, false)
    }

    fn new(config: Config, is_server: bool) -> Self {
        let mut control = Vec::new();
        write_varint(CONTROL_STREAM, &mut control);
        settings::write_own(&config, &mut control);
        Self {
            is_server,
            streams: QuicStreams::default(),
            signals: VecDeque::new(),
            resumed: Vec::new(),
            control,
            control_stream: None,
            critical: [false; 3],
            reader: None,
            settings: None,
            decoder_instructions: DecoderInstructions::default(),
            next_request: 0,
            go_away: GoAwayState::Serving,
            peer_go_away: VARINT_MAX,
            max_push_id: None,
            resets: Budget::default(),
            control_frames: Budget::default(),
            rejected: 0,
            failed: None,
            early: None,
            config,
        }
    }

    /// Reports a stream that the peer has opened. Bytes on a stream that was not opened are ignored, as on a closed
    /// stream.
    ///
    /// # Errors
    /// [`Error`] ends the connection.
    pub fn open(&mut self, stream: QuicStreamId, now: Duration) -> Result<(), Error> {
        self.checked(|connection| connection.open_stream(stream, now))
    }

    fn open_stream(&mut self, id: QuicStreamId, now: Duration) -> Result<(), Error> {
        if id.is_by_client() != self.is_server || self.streams.get_ref(id).is_some() {
            return Ok(());
        }
        let peers = |stream: &&H3Stream| stream.id.get() & 3 == id.get() & 3;
        let is_beyond = self.streams.iter().filter(peers).count() >= self.config.max_streams as usize;
        if id.is_unidirectional() {
            if is_beyond {
                self.stop(id, H3Code::H3_STREAM_CREATION_ERROR);
                return self.charge_control_frame(now);
            }
            self.streams.insert(H3Stream::new(id, StreamRole::Untyped, NextBytes::StreamType));
            return Ok(());
        }
        if !self.is_server && !self.config.webtransport() {
            let reason = "server opens a bidirectional stream";
            return Err(Error::new(H3Code::H3_STREAM_CREATION_ERROR, reason));
        }
        if self.is_server {
            self.next_request = self.next_request.max(id.get() + 4);
        }
        let is_refused = matches!(self.go_away, GoAwayState::Final(first) if id.get() >= first);
        if is_beyond || is_refused {
            self.abort(id, H3Code::H3_REQUEST_REJECTED);
            self.rejected = self.rejected.saturating_add(1);
            return self.charge_reset(now);
        }
        let stage = NextBytes::FrameType { first: true };
        self.streams.insert_at(H3Stream::new(id, StreamRole::Message, stage), now);
        Ok(())
    }

    /// Handles a stream's received bytes up to the next event, and advances `input` past them. `ends`: the stream ends
    /// after `input`. `None`: the whole `input` is consumed, unless the stream is [held](Self::is_held). At most a
    /// partial field section is buffered. `now` is a monotonic time since any origin; it refills the
    /// [allowances](super::Allowance).
    ///
    /// # Errors
    /// [`Error`] ends the connection: close QUIC with its code. No stream exists any longer.
    pub fn receive<'e, 'i: 'e>(
        &mut self,
        stream: QuicStreamId,
        input: &mut &'i [u8],
        ends: bool,
        fields: &'e mut FieldBuffer,
        now: Duration,
    ) -> Result<Option<Event<'e>>, Error> {
        let notice = self.checked(|connection| connection.advance(stream, input, ends, fields, now));
        let notice = notice.inspect_err(|_| *input = &[])?;
        Ok(notice.map(|notice| self.event(notice, fields)))
    }

    /// Runs a step unless the connection has failed, and keeps its error.
    pub(super) fn checked<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        step(self).inspect_err(|error| {
            self.failed = Some(*error);
            self.streams.clear();
            self.signals.clear();
            self.resumed.clear();
            self.control.clear();
            self.early = None;
        })
    }

    /// Completes an event by its fields.
    fn event<'e>(&self, notice: H3Notice<'e>, fields: &'e FieldBuffer) -> Event<'e> {
        match notice {
            H3Notice::Settings => Event::Settings { settings: self.settings.unwrap_or_default() },
            H3Notice::Request { stream, shape } => {
                Event::Request { stream, head: RequestFields::new(fields, shape, Version::Http3) }
            }
            H3Notice::HeadTooLarge { stream } => Event::HeadTooLarge { stream },
            H3Notice::Response { stream, shape } => {
                Event::Response { stream, head: ResponseFields::new(fields, shape) }
            }
            H3Notice::Data { stream, data } => Event::Data { stream, data },
            H3Notice::Trailers { stream } => Event::Trailers { stream, fields: fields.fields_from(0) },
            H3Notice::End { stream } => Event::End { stream },
            H3Notice::Reset { stream, code, violation } => Event::Reset { stream, code, violation },
            H3Notice::GoAway { id } => Event::GoAway { id },
            H3Notice::SessionStream { stream, session } => Event::SessionStream { stream, session },
            H3Notice::SessionDraining { session } => Event::SessionDraining { session },
            H3Notice::SessionClosed { session, code } => {
                Event::SessionClosed { session, code, reason: fields.text() }
            }
        }
    }

    /// The error that ended the connection.
    #[must_use]
    pub const fn error(&self) -> Option<Error> {
        self.failed
    }

    /// The peer's SETTINGS, once they have arrived.
    #[must_use]
    pub const fn peer_settings(&self) -> Option<PeerSettings> {
        self.settings
    }

    /// Open requests and sessions.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.streams
            .iter()
            .filter(|stream| stream.id.is_request() && stream.role == StreamRole::Message)
            .count()
    }

    /// Whether the stream is open.
    #[must_use]
    pub fn is_open(&self, stream: QuicStreamId) -> bool {
        self.streams.get_ref(stream).is_some()
    }

    /// Returns when the first stream was opened whose head has not arrived. Bound the time of the heads by
    /// [`expire_heads`](Self::expire_heads).
    #[must_use]
    pub fn awaits_head_since(&mut self) -> Option<Duration> {
        self.streams.first_head().map(|(_, opened)| opened)
    }

    /// Resets the streams that were opened by this time, and whose heads have not arrived.
    ///
    /// # Errors
    /// [`Error`] ends the connection.
    pub fn expire_heads(&mut self, opened_by: Duration, now: Duration) -> Result<(), Error> {
        self.checked(|connection| {
            while let Some((id, _)) = connection.streams.first_head().filter(|(_, at)| *at <= opened_by) {
                connection.violate(id, H3Code::H3_REQUEST_INCOMPLETE, "head timeout", now)?;
            }
            Ok(())
        })
    }

    /// Whether the stream waits for a WebTransport session or for SETTINGS: bytes that a call of
    /// [`receive`](Self::receive) leaves in the input are passed again once [`next_resumed`](Self::next_resumed)
    /// returns the stream. Do not read further bytes until then.
    #[must_use]
    pub fn is_held(&self, stream: QuicStreamId) -> bool {
        self.streams.get_ref(stream).is_some_and(|stream| stream.stage == NextBytes::Held)
    }

    /// Returns a stream that was held: call [`receive`](Self::receive) for it.
    pub fn next_resumed(&mut self) -> Option<QuicStreamId> {
        self.resumed.pop()
    }

    /// Marks all held streams for another try.
    pub(super) fn resume_held(&mut self) {
        self.resumed.clear();
        let held = self.streams.iter().filter(|stream| stream.stage == NextBytes::Held);
        self.resumed.extend(held.map(|stream| stream.id));
    }

    /// Returns the next QUIC frame to send. At most two are queued for each stream, since a stream that causes one
    /// exists no longer.
    pub fn next_signal(&mut self) -> Option<StreamSignal> {
        self.signals.pop_front()
    }

    /// Whether QUIC frames, or bytes for the control stream, are queued.
    #[must_use]
    pub fn has_signals(&self) -> bool {
        !self.signals.is_empty() || self.wants_write()
    }

    /// Returns how many requests were reset without an event since the last call. For metrics.
    pub fn take_rejected(&mut self) -> u32 {
        mem::take(&mut self.rejected)
    }

    /// Names the unidirectional stream that carries [`write_control`](Self::write_control).
    pub fn set_control_stream(&mut self, stream: QuicStreamId) {
        self.control_stream = Some(stream);
    }

    pub(super) fn is_own_control(&self, stream: QuicStreamId) -> bool {
        self.control_stream == Some(stream)
    }

    /// Whether bytes for the control stream are queued.
    #[must_use]
    pub const fn wants_write(&self) -> bool {
        !self.control.is_empty()
    }

    /// Moves the control stream's queued bytes to `out`. The stream never ends.
    pub fn write_control(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
        self.control = Vec::new();
    }

    /// Memory bytes beside the connection's own size: streams, partial field sections, queued frames.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.streams.memory()
            + self.signals.capacity() * size_of::<StreamSignal>()
            + self.resumed.capacity() * size_of::<QuicStreamId>()
            + self.control.capacity()
            + self.early.as_ref().map_or(0, |early| early.memory())
    }

    /// Begins a server's graceful shutdown: announces it (RFC 9114 section 5.2). Requests that the client sent before
    /// it reads the announcement are served: call [`shut_down_now`](Self::shut_down_now) after a round trip.
    pub fn shut_down(&mut self) {
        if self.go_away == GoAwayState::Serving && self.is_server {
            self.go_away = GoAwayState::Announced;
            self.queue_go_away(VARINT_MAX - 3);
        }
    }

    /// Rejects new requests at once. Open streams continue.
    pub fn shut_down_now(&mut self) {
        if !matches!(self.go_away, GoAwayState::Final(_)) && self.is_server {
            self.go_away = GoAwayState::Final(self.next_request);
            self.queue_go_away(self.next_request);
        }
    }

    /// Whether a shutdown is complete: no request is open, and none will be.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        matches!(self.go_away, GoAwayState::Final(_)) && self.requests() == 0
    }

    fn queue_go_away(&mut self, id: u64) {
        if self.failed.is_none() {
            let (mut payload, out) = (Vec::new(), &mut self.control);
            write_varint(id, &mut payload);
            write_varint(GOAWAY, out);
            write_varint(payload.len() as u64, out);
            out.append(&mut payload);
        }
    }

    pub(super) fn stop(&mut self, stream: QuicStreamId, code: H3Code) {
        self.signals.push_back(StreamSignal::StopSending { stream, code });
    }

    /// Ends both sides of a stream.
    pub(super) fn abort(&mut self, stream: QuicStreamId, code: H3Code) {
        if !stream.is_unidirectional() {
            self.signals.push_back(StreamSignal::Reset { stream, code });
        }
        self.stop(stream, code);
    }

    /// Ends our side of a message that the peer has stopped (RFC 9000 section 3.5).
    pub(super) fn end_sending(&mut self, stream: QuicStreamId, code: H3Code) {
        self.signals.push_back(StreamSignal::Reset { stream, code });
        self.finish(stream);
    }

    /// Removes a stream, and ends its sides that are open.
    pub(super) fn abort_open(&mut self, id: QuicStreamId, code: H3Code) {
        let Some(stream) = self.streams.remove(id) else { return };
        if !stream.local_closed && !id.is_unidirectional() {
            self.signals.push_back(StreamSignal::Reset { stream: id, code });
        }
        if !stream.remote_closed {
            self.stop(id, code);
        }
        if stream.session.is_some() {
            self.end_session_streams(id);
        }
    }

    /// Counts a frame without content.
    pub(super) fn charge_control_frame(&mut self, now: Duration) -> Result<(), Error> {
        if self.control_frames.charge(self.config.abuse.control_frames, now) {
            return Ok(());
        }
        Err(Error::load("flood of frames without content"))
    }

    /// Counts a stream that ends in a reset.
    pub(super) fn charge_reset(&mut self, now: Duration) -> Result<(), Error> {
        if self.resets.charge(self.config.abuse.resets, now) {
            return Ok(());
        }
        Err(Error::load("too many streams are reset"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_connections_and_streams_is_small() {
        assert!(size_of::<H3Connection>() <= 448, "{} bytes", size_of::<H3Connection>());
        assert!(size_of::<H3Stream>() <= 136, "{} bytes", size_of::<H3Stream>());
        // Beside it, SETTINGS until they are sent.
        let mut connection = H3Connection::server(Config::new().with_max_sessions(1));
        assert!(connection.memory() <= 64, "{} bytes", connection.memory());
        connection.write_control(&mut Vec::new());
        assert_eq!((connection.memory(), connection.wants_write()), (0, false));
    }
}
