//! One connection: QUIC's streams on one side, HTTP/3 on the other.

use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionEvent, Dir, Event as QuicEvent, ReadError, StreamEvent, StreamId, VarInt,
};
use sinews_http::h3::{Config, Event, FieldBuffer, H3Code, H3Connection, StreamSignal};

use crate::app::{Http3App, LinkEnd};
use crate::budget::DatagramBudget;
use crate::config::varint;
use crate::congestion;
use crate::exchanges::{ConnectionKey, EndState, Exchanges, StreamQueues, http_id, quic_id};
use crate::handshakes::ClientNetwork;
use crate::limits::QuicLimits;
use crate::memory::UnreadBytes;
use crate::window::ConnectionWindow;

/// An HTTP/3 connection over QUIC.
pub(crate) struct Http3Link {
    pub(crate) quic: Connection,
    http: H3Connection,
    key: ConnectionKey,
    streams: StreamQueues,
    is_connected: bool,
    /// A WebTransport session was requested: the client may open more unidirectional streams.
    has_session: bool,
    /// Frames received so far.
    received: ReceivedFrames,
    /// Bytes in received packets that count as unread content, and that datagram frames may have taken.
    datagram_content: usize,
    pub(crate) is_ended: bool,
    started: Instant,
    /// The client, if it had proved its address before the handshake.
    pub(crate) client: Option<ClientNetwork>,
}

/// Counts of the received frames that concern an event: QUIC copies all of its statistics for each look.
#[derive(Clone, Copy)]
struct ReceivedFrames {
    stream: u64,
    datagram: u64,
    acks: u64,
}

impl ReceivedFrames {
    fn from_connection(quic: &Connection) -> Self {
        let frames = quic.stats().frame_rx;
        Self { stream: frames.stream, datagram: frames.datagram, acks: frames.acks }
    }
}

impl Http3Link {
    pub(crate) fn new(
        quic: Connection,
        config: Config,
        key: ConnectionKey,
        limits: &QuicLimits,
        client: Option<ClientNetwork>,
        now: Instant,
    ) -> Self {
        let received = ReceivedFrames::from_connection(&quic);
        Self {
            quic,
            http: H3Connection::server(config),
            key,
            streams: StreamQueues {
                max_queued: limits.max_queued,
                send_window: limits.send_window.into(),
                max_send_window: limits.max_send_window.into(),
                datagram_buffer: limits.datagram_send_buffer,
                datagram_budget: DatagramBudget::new(limits.datagram_send_buffer),
                window: ConnectionWindow::new(limits.connection_window.into(), limits.stream_window.into()),
                ..StreamQueues::default()
            },
            is_connected: false,
            has_session: false,
            received,
            datagram_content: 0,
            is_ended: false,
            started: now,
            client,
        }
    }

    /// Makes it the client's side.
    pub(crate) fn into_client(mut self, config: Config) -> Self {
        self.http = H3Connection::client(config);
        self
    }

    /// Whether the handshake is complete.
    pub(crate) const fn is_connected(&self) -> bool {
        self.is_connected
    }

    fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// The time of the next call of [`expire`](Self::expire). `handshake_timeout` bounds the handshake.
    pub(crate) fn timeout(&mut self, handshake_timeout: Duration) -> Option<Instant> {
        let handshake = (!self.is_connected && !self.is_ended).then(|| self.started + handshake_timeout);
        let reject = self.streams.end.reject_at();
        self.quic.poll_timeout().into_iter().chain(handshake).chain(reject).min()
    }

    pub(crate) fn expire(&mut self, handshake_timeout: Duration, app: &mut dyn Http3App, now: Instant) {
        self.quic.handle_timeout(now);
        if self.streams.end.reject_at().is_some_and(|at| at <= now) {
            self.streams.end = EndState::Rejecting;
            self.http.shut_down_now();
        }
        if !self.is_connected && !self.is_ended && self.started + handshake_timeout <= now {
            self.end(H3Code::H3_NO_ERROR, "handshake timeout", LinkEnd::Lost, app, now);
        }
    }

    /// Closes the connection.
    pub(crate) fn end(
        &mut self,
        code: H3Code,
        reason: &'static str,
        cause: LinkEnd,
        app: &mut dyn Http3App,
        now: Instant,
    ) {
        if !std::mem::replace(&mut self.is_ended, true) {
            self.close_quic(code, reason, now);
            app.handle_end(self.key, cause, reason);
        }
    }

    /// Sends CONNECTION_CLOSE, also to a client that has not acknowledged what was sent before.
    fn close_quic(&mut self, code: H3Code, reason: &'static str, now: Instant) {
        congestion::open_window(&self.quic);
        self.quic.close(now, varint(code.get()), Bytes::from_static(reason.as_bytes()));
    }

    /// Handles a datagram. Its events follow by [`drive`](Self::drive).
    pub(crate) fn receive(&mut self, datagram: usize, event: ConnectionEvent) {
        self.quic.handle_event(event);
        let after = ReceivedFrames::from_connection(&self.quic);
        let before = std::mem::replace(&mut self.received, after);
        self.datagram_content = 0;
        // A datagram without content acknowledges, or probes the path.
        if after.stream > before.stream {
            let counted = self.streams.unread_bytes.add_datagram(datagram);
            if after.datagram > before.datagram {
                self.datagram_content = counted;
            }
        }
        if after.acks > before.acks {
            let queued = self.streams.queued_datagrams(&mut self.quic);
            self.streams.datagram_budget.note_acknowledgement(queued);
        }
    }

    /// Notes that QUIC has sent all that it may send now.
    pub(crate) const fn note_sent(&mut self) {
        self.streams.datagram_budget.note_sent();
    }

    /// Handles all QUIC events.
    pub(crate) fn drive(&mut self, app: &mut dyn Http3App, fields: &mut FieldBuffer, now: Instant) {
        while let Some(event) = self.quic.poll() {
            match event {
                QuicEvent::Connected => {
                    self.is_connected = true;
                    // The handshake is behind.
                    self.streams.unread_bytes = UnreadBytes::default();
                    let Some(control) = self.quic.streams().open(Dir::Uni) else {
                        // RFC 9114 section 6.2: a peer permits at least three.
                        let (code, cause) = (H3Code::H3_GENERAL_PROTOCOL_ERROR, LinkEnd::Violation);
                        return self.end(code, "peer permits no control stream", cause, app, now);
                    };
                    self.streams.control = Some(control);
                    self.http.set_control_stream(http_id(control));
                    if let Err(reason) = app.handle_start(&mut self.exchanges(now)) {
                        self.is_ended = true;
                        return self.close_quic(H3Code::H3_EXCESSIVE_LOAD, reason, now);
                    }
                }
                QuicEvent::ConnectionLost { reason } => {
                    self.is_ended = true;
                    app.handle_end(self.key, LinkEnd::from_error(&reason), &reason.to_string());
                    return;
                }
                QuicEvent::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(stream) = self.quic.streams().accept(dir) {
                        let opened = self.http.open(http_id(stream), self.elapsed(now));
                        self.check(opened.err(), app, now);
                        self.read(stream, app, fields, now);
                    }
                    self.permit_session_streams();
                }
                QuicEvent::Stream(StreamEvent::Readable { id }) => self.read(id, app, fields, now),
                QuicEvent::Stream(StreamEvent::Writable { id }) => self.streams.writable.push(id),
                QuicEvent::Stream(StreamEvent::Stopped { id, error_code }) => {
                    self.streams.forget(id);
                    // RFC 9000 section 3.5: also a complete response, of which a part waits for a window.
                    let _ = self.quic.send_stream(id).reset(error_code);
                    let code = H3Code::new(error_code.into_inner());
                    let stopped = self.http.receive_stop(http_id(id), code, self.elapsed(now));
                    self.report(stopped, app, now);
                    self.streams.forget_reads(id, &self.http);
                }
                QuicEvent::Stream(StreamEvent::Finished { id }) => self.streams.forget_reads(id, &self.http),
                QuicEvent::DatagramReceived => self.datagrams(app, now),
                _ => {}
            }
            if self.is_ended {
                return;
            }
        }
        self.write(app, now);
        loop {
            self.flush(app, fields, now);
            if self.is_ended || !self.is_connected {
                return;
            }
            app.handle_batch_end(&mut self.exchanges(now));
            if !self.has_changed() {
                if let Some(window) = self.streams.window.adapt(self.streams.unread()) {
                    self.quic.set_receive_window(varint(window));
                }
                return;
            }
        }
    }

    /// Sends bytes on streams whose windows have opened.
    fn write(&mut self, app: &mut dyn Http3App, now: Instant) {
        for stream in self.streams.take_writable() {
            if self.streams.flush(&mut self.quic, stream) {
                app.handle_writable(&mut self.exchanges(now), http_id(stream));
            }
        }
    }

    /// Whether calls by the application are to be executed.
    fn has_changed(&self) -> bool {
        let streams = &self.streams;
        let is_full = streams.outgoing_bytes > streams.max_queued;
        self.http.has_signals() || !streams.resumed.is_empty() || streams.close.is_some() || is_full
    }

    /// Lends the connection to the application, outside an event.
    pub(crate) fn exchanges(&mut self, now: Instant) -> Exchanges<'_> {
        let Self { quic, http, streams, key, started, .. } = self;
        Exchanges { quic, http, streams, key: *key, now, started: *started, out: Vec::new() }
    }

    fn report(
        &mut self,
        event: Result<Option<Event<'static>>, sinews_http::h3::Error>,
        app: &mut dyn Http3App,
        now: Instant,
    ) {
        match event {
            Ok(Some(event)) => app.handle_event(&mut self.exchanges(now), event),
            Ok(None) => {}
            Err(error) => self.check(Some(error), app, now),
        }
    }

    /// Closes the connection after an HTTP/3 error.
    fn check(&mut self, error: Option<sinews_http::h3::Error>, app: &mut dyn Http3App, now: Instant) {
        let Some(error) = error.filter(|_| !self.is_ended) else { return };
        self.is_ended = true;
        self.close_quic(error.code(), error.reason(), now);
        app.handle_end(self.key, LinkEnd::Violation, &error.to_string());
    }

    /// Passes a stream's received bytes to HTTP/3, until there are none or the stream is held.
    fn read(&mut self, stream: StreamId, app: &mut dyn Http3App, fields: &mut FieldBuffer, now: Instant) {
        let is_unread = self.streams.all_paused
            || self.streams.paused.contains(&stream)
            || self.http.is_held(http_id(stream));
        if is_unread && self.read_reset(stream, app, now) {
            return;
        }
        while !self.is_ended && !self.streams.paused.contains(&stream) {
            if self.streams.all_paused {
                self.streams.waiting.insert(stream);
                return;
            }
            let (chunk, ends) = match self.streams.held.remove(&stream) {
                Some(rest) => (rest, false),
                None if self.http.is_held(http_id(stream)) => return,
                None => {
                    let mut reader = self.quic.recv_stream(stream);
                    let Ok(mut chunks) = reader.read(true) else { return };
                    let next = chunks.next(usize::MAX);
                    // The connection is asked for datagrams after each call.
                    let _ = chunks.finalize();
                    match next {
                        Ok(Some(chunk)) => {
                            self.streams.note_read(chunk.bytes.len());
                            (chunk.bytes, false)
                        }
                        Ok(None) => (Bytes::new(), true),
                        Err(ReadError::Blocked) => return,
                        Err(ReadError::Reset(code)) => return self.receive_reset(stream, code, app, now),
                    }
                }
            };
            let mut input = &chunk[..];
            loop {
                let elapsed = self.elapsed(now);
                let event = self.http.receive(http_id(stream), &mut input, ends, fields, elapsed);
                match event {
                    Ok(Some(event)) => {
                        self.note_session(&event);
                        let (quic, http, streams) = (&mut self.quic, &mut self.http, &mut self.streams);
                        let (key, started) = (self.key, self.started);
                        app.handle_event(
                            &mut Exchanges { quic, http, streams, key, now, started, out: Vec::new() },
                            event,
                        );
                    }
                    Ok(None) => break,
                    Err(error) => return self.check(Some(error), app, now),
                }
            }
            if !input.is_empty() {
                let rest = chunk.slice_ref(input);
                self.streams.held.insert(stream, rest);
                return;
            }
            if ends {
                return self.streams.forget_reads(stream, &self.http);
            }
        }
    }

    /// Notes a request for a WebTransport session.
    fn note_session(&mut self, event: &Event<'_>) {
        if let Event::Request { head, .. } = event
            && head.protocol().is_some_and(|protocol| protocol.starts_with("webtransport"))
        {
            self.has_session = true;
            self.permit_session_streams();
        }
    }

    /// Doubles the permitted unidirectional streams of sessions while the client has opened all or all but the last, up
    /// to the number of bidirectional streams: QUIC takes memory for each permitted stream, and most sessions open no
    /// stream.
    fn permit_session_streams(&mut self) {
        let permitted = self.quic.max_concurrent_streams(Dir::Uni);
        let most = self.quic.max_concurrent_streams(Dir::Bi);
        let is_short = self.quic.streams().remote_open_streams(Dir::Uni) + 1 >= permitted;
        if self.has_session && is_short && permitted < most {
            self.quic.set_max_concurrent_streams(Dir::Uni, varint((2 * permitted).min(most)));
        }
    }

    /// Handles the reset of a stream that is not read. Returns whether the client has reset it.
    fn read_reset(&mut self, stream: StreamId, app: &mut dyn Http3App, now: Instant) -> bool {
        let Ok(Some(code)) = self.quic.recv_stream(stream).received_reset() else { return false };
        self.receive_reset(stream, code, app, now);
        true
    }

    fn receive_reset(&mut self, stream: StreamId, code: VarInt, app: &mut dyn Http3App, now: Instant) {
        let code = H3Code::new(code.into_inner());
        let reset = self.http.receive_reset(http_id(stream), code, self.elapsed(now));
        self.report(reset, app, now);
        self.streams.forget_reads(stream, &self.http);
    }

    fn datagrams(&mut self, app: &mut dyn Http3App, now: Instant) {
        while let Some(datagram) = self.quic.datagrams().recv() {
            // Flow control does not include datagrams (RFC 9221 section 5.3).
            let counted = datagram.len().min(self.datagram_content);
            self.datagram_content -= counted;
            self.streams.unread_bytes.remove_read(counted);
            match self.http.receive_datagram(&datagram) {
                Ok(Some((session, payload))) => {
                    app.handle_datagram(&mut self.exchanges(now), session, payload);
                }
                Ok(None) => {}
                Err(error) => return self.check(Some(error), app, now),
            }
        }
    }

    /// Executes signals, continues streams that were held, and writes control frames.
    fn flush(&mut self, app: &mut dyn Http3App, fields: &mut FieldBuffer, now: Instant) {
        loop {
            while let Some(signal) = self.http.next_signal() {
                match signal {
                    StreamSignal::Reset { stream, code } => {
                        self.streams.forget(quic_id(stream));
                        self.streams.forget_reads(quic_id(stream), &self.http);
                        let _ = self.quic.send_stream(quic_id(stream)).reset(varint(code.get()));
                    }
                    StreamSignal::StopSending { stream, code } => {
                        self.streams.forget_reads(quic_id(stream), &self.http);
                        let _ = self.quic.recv_stream(quic_id(stream)).stop(varint(code.get()));
                    }
                    _ => {}
                }
            }
            while let Some((session, payload)) = self.http.next_early_datagram() {
                app.handle_datagram(&mut self.exchanges(now), session, &payload);
            }
            let resumed = self.http.next_resumed().map(quic_id);
            if let Some(stream) = resumed {
                // Without a rest, too: HTTP/3 continues only with a call.
                self.streams.held.entry(stream).or_default();
            }
            let Some(stream) = resumed.or_else(|| self.streams.resumed.pop()) else { break };
            self.read(stream, app, fields, now);
        }
        if let Some(control) = self.streams.control.filter(|_| self.http.wants_write()) {
            let mut out = Vec::new();
            self.http.write_control(&mut out);
            self.streams.send(&mut self.quic, control, out.into(), false);
        }
        self.streams.grow_window(&mut self.quic);
        if let Some((code, reason)) = self.streams.close.take() {
            self.end(code, reason, LinkEnd::Local, app, now);
        }
        if self.streams.outgoing_bytes > self.streams.max_queued {
            let reason = "queue of outgoing content is full (max_queued)";
            self.end(H3Code::H3_EXCESSIVE_LOAD, reason, LinkEnd::Violation, app, now);
        }
    }

    pub(crate) fn requests(&self) -> usize {
        self.http.requests()
    }

    /// Announces the connection's end to its client.
    pub(crate) fn shut_down(&mut self, now: Instant) {
        self.exchanges(now).shut_down();
    }
}
