//! One connection: QUIC's streams on one side, HTTP/3 on the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, Dir, Event as QuicEvent, ReadError, StreamEvent, StreamId,
    WriteError,
};
use sinews_http::h3::{
    Config, Event, FieldBuffer, H3Code, H3Connection, H3SendError, QuicStreamId, StreamSignal,
};

use crate::handshakes::ClientNetwork;
use crate::limits::{QuicLimits, varint};

/// A connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey(pub(crate) ConnectionHandle);

/// The application of an endpoint.
pub trait Http3App {
    /// Handles an event of HTTP/3.
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>);

    /// Handles a datagram of a session of WebTransport.
    fn handle_datagram(&mut self, exchanges: &mut Exchanges<'_>, session: QuicStreamId, payload: &[u8]) {
        let _ = (exchanges, session, payload);
    }

    /// Whether a client of this address may begin a handshake. The address may be forged: count the connection in
    /// [`handle_start`](Self::handle_start).
    fn admits(&mut self, address: IpAddr) -> bool {
        let _ = address;
        true
    }

    /// The handshake is complete: no event of the connection came before.
    ///
    /// # Errors
    /// The reason why the application rejects the connection, which closes with H3_EXCESSIVE_LOAD and has no further event.
    fn handle_start(&mut self, exchanges: &mut Exchanges<'_>) -> Result<(), &'static str> {
        let _ = exchanges;
        Ok(())
    }

    /// Content that was queued for a closed window has left, in part or whole: [`Exchanges::queued_on`].
    fn handle_writable(&mut self, exchanges: &mut Exchanges<'_>, stream: QuicStreamId) {
        let _ = (exchanges, stream);
    }

    /// All events of a datagram, a timeout or a call are handled. The place to send more.
    fn handle_settled(&mut self, exchanges: &mut Exchanges<'_>) {
        let _ = exchanges;
    }

    /// A connection has ended, with its reason for a log; or its handshake has failed. No event follows.
    fn handle_end(&mut self, connection: ConnectionKey, cause: LinkEnd, reason: &str) {
        let _ = (connection, cause, reason);
    }
}

/// Cause of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEnd {
    /// The client closed it.
    Client,
    /// This side closed it.
    Server,
    /// The client violated QUIC or HTTP/3, or exceeded a limit.
    Violation,
    /// The client was silent, or reset the connection.
    Lost,
}

impl LinkEnd {
    fn of(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) => Self::Client,
            ConnectionError::LocallyClosed => Self::Server,
            ConnectionError::TimedOut | ConnectionError::Reset => Self::Lost,
            _ => Self::Violation,
        }
    }
}

/// A connection of HTTP/3 over QUIC.
pub(crate) struct Http3Link {
    pub(crate) quic: Connection,
    http: H3Connection,
    key: ConnectionKey,
    streams: StreamQueues,
    is_connected: bool,
    pub(crate) is_ended: bool,
    started: Instant,
    /// The client, if it had proved its address before the handshake.
    pub(crate) client: Option<ClientNetwork>,
}

/// Bytes between both layers.
#[derive(Default)]
struct StreamQueues {
    /// The unidirectional stream of HTTP/3's control frames.
    control: Option<StreamId>,
    /// Bytes for streams with closed windows.
    outgoing: BTreeMap<StreamId, OutgoingQueue>,
    outgoing_bytes: usize,
    max_queued: usize,
    /// Bytes that QUIC keeps until the client acknowledges them, at most, and the maximum of that.
    send_window: u64,
    max_send_window: u64,
    /// Bytes passed to QUIC since the window has grown.
    written: u64,
    /// The rest of a chunk of a held stream.
    held: BTreeMap<StreamId, Bytes>,
    /// Streams that the application does not read.
    paused: BTreeSet<StreamId>,
    /// Streams that it reads again.
    resumed: Vec<StreamId>,
    /// The application reads no stream.
    all_paused: bool,
    /// Streams with content meanwhile.
    waiting: BTreeSet<StreamId>,
    /// The application closes the connection.
    close: Option<(H3Code, &'static str)>,
}

#[derive(Default)]
struct OutgoingQueue {
    chunks: VecDeque<Bytes>,
    ends: bool,
}

fn http_id(stream: StreamId) -> QuicStreamId {
    QuicStreamId::new(stream.into())
}

fn quic_id(stream: QuicStreamId) -> StreamId {
    StreamId::from(varint(stream.get()))
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
        Self {
            quic,
            http: H3Connection::server(config),
            key,
            streams: StreamQueues {
                max_queued: limits.max_queued,
                send_window: limits.send_window.into(),
                max_send_window: limits.max_send_window.into(),
                ..StreamQueues::default()
            },
            is_connected: false,
            is_ended: false,
            started: now,
            client,
        }
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
        self.quic.poll_timeout().into_iter().chain(handshake).min()
    }

    pub(crate) fn expire(&mut self, handshake_timeout: Duration, app: &mut dyn Http3App, now: Instant) {
        self.quic.handle_timeout(now);
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
            self.quic.close(now, varint(code.get()), Bytes::from_static(reason.as_bytes()));
            app.handle_end(self.key, cause, reason);
        }
    }

    /// Handles all events of QUIC.
    pub(crate) fn drive(&mut self, app: &mut dyn Http3App, fields: &mut FieldBuffer, now: Instant) {
        while let Some(event) = self.quic.poll() {
            match event {
                QuicEvent::Connected => {
                    self.is_connected = true;
                    let Some(control) = self.quic.streams().open(Dir::Uni) else {
                        // RFC 9114 section 6.2: a client permits at least three.
                        let (code, cause) = (H3Code::H3_GENERAL_PROTOCOL_ERROR, LinkEnd::Violation);
                        return self.end(code, "client permits no control stream", cause, app, now);
                    };
                    self.streams.control = Some(control);
                    self.http.set_control_stream(http_id(control));
                    if let Err(reason) = app.handle_start(&mut self.exchanges(now)) {
                        self.is_ended = true;
                        let code = varint(H3Code::H3_EXCESSIVE_LOAD.get());
                        return self.quic.close(now, code, Bytes::from_static(reason.as_bytes()));
                    }
                }
                QuicEvent::ConnectionLost { reason } => {
                    self.is_ended = true;
                    app.handle_end(self.key, LinkEnd::of(&reason), &reason.to_string());
                    return;
                }
                QuicEvent::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(stream) = self.quic.streams().accept(dir) {
                        let opened = self.http.open(http_id(stream), self.elapsed(now));
                        self.check(opened.err(), app, now);
                        self.read(stream, app, fields, now);
                    }
                }
                QuicEvent::Stream(StreamEvent::Readable { id }) => self.read(id, app, fields, now),
                QuicEvent::Stream(StreamEvent::Writable { id }) => {
                    self.streams.flush(&mut self.quic, id);
                    app.handle_writable(&mut self.exchanges(now), http_id(id));
                }
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
        loop {
            self.settle(app, fields, now);
            if self.is_ended || !self.is_connected {
                return;
            }
            app.handle_settled(&mut self.exchanges(now));
            if !self.has_changed() {
                return;
            }
        }
    }

    /// Whether calls of the application are to be executed.
    fn has_changed(&self) -> bool {
        let streams = &self.streams;
        let is_full = streams.outgoing_bytes > streams.max_queued;
        self.http.has_signals() || !streams.resumed.is_empty() || streams.close.is_some() || is_full
    }

    /// Lends the connection to the application, outside of an event.
    pub(crate) fn exchanges(&mut self, now: Instant) -> Exchanges<'_> {
        let Self { quic, http, streams, key, .. } = self;
        Exchanges { quic, http, streams, key: *key, now, out: Vec::new() }
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

    /// Closes the connection after an error of HTTP/3.
    fn check(&mut self, error: Option<sinews_http::h3::Error>, app: &mut dyn Http3App, now: Instant) {
        let Some(error) = error.filter(|_| !self.is_ended) else { return };
        self.is_ended = true;
        let reason = Bytes::from_static(error.reason().as_bytes());
        self.quic.close(now, varint(error.code().get()), reason);
        app.handle_end(self.key, LinkEnd::Violation, &error.to_string());
    }

    /// Passes received bytes of a stream to HTTP/3, until there are none or the stream is held.
    fn read(&mut self, stream: StreamId, app: &mut dyn Http3App, fields: &mut FieldBuffer, now: Instant) {
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
                        Ok(Some(chunk)) => (chunk.bytes, false),
                        Ok(None) => (Bytes::new(), true),
                        Err(ReadError::Blocked) => return,
                        Err(ReadError::Reset(code)) => {
                            let code = H3Code::new(code.into_inner());
                            let reset = self.http.receive_reset(http_id(stream), code, self.elapsed(now));
                            self.report(reset, app, now);
                            return self.streams.forget_reads(stream, &self.http);
                        }
                    }
                }
            };
            let mut input = &chunk[..];
            loop {
                let elapsed = self.elapsed(now);
                let event = self.http.receive(http_id(stream), &mut input, ends, fields, elapsed);
                match event {
                    Ok(Some(event)) => {
                        let (quic, http, streams) = (&mut self.quic, &mut self.http, &mut self.streams);
                        let key = self.key;
                        app.handle_event(
                            &mut Exchanges { quic, http, streams, key, now, out: Vec::new() },
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

    fn datagrams(&mut self, app: &mut dyn Http3App, now: Instant) {
        while let Some(datagram) = self.quic.datagrams().recv() {
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
    fn settle(&mut self, app: &mut dyn Http3App, fields: &mut FieldBuffer, now: Instant) {
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
            let resumed = self.http.next_resumed().map(quic_id);
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
            self.end(code, reason, LinkEnd::Server, app, now);
        }
        if self.streams.outgoing_bytes > self.streams.max_queued {
            let reason = "queue of outgoing content is full (max_queued)";
            self.end(H3Code::H3_EXCESSIVE_LOAD, reason, LinkEnd::Violation, app, now);
        }
    }

    pub(crate) fn requests(&self) -> usize {
        self.http.requests()
    }

    /// Announces the end of the connection to its client.
    pub(crate) fn shut_down(&mut self) {
        self.http.shut_down_now();
    }
}

impl StreamQueues {
    /// Sends bytes as far as the windows permit, and queues the rest.
    fn send(&mut self, quic: &mut Connection, stream: StreamId, bytes: Bytes, ends: bool) {
        let queue = self.outgoing.entry(stream).or_default();
        self.outgoing_bytes += bytes.len();
        if !bytes.is_empty() {
            queue.chunks.push_back(bytes);
        }
        queue.ends |= ends;
        self.flush(quic, stream);
    }

    fn flush(&mut self, quic: &mut Connection, stream: StreamId) {
        let Some(queue) = self.outgoing.get_mut(&stream) else { return };
        let mut writer = quic.send_stream(stream);
        let mut is_open = true;
        while is_open && !queue.chunks.is_empty() {
            match writer.write_chunks(queue.chunks.make_contiguous()) {
                Ok(written) => {
                    self.outgoing_bytes -= written.bytes;
                    self.written += written.bytes as u64;
                    queue.chunks.drain(..written.chunks);
                }
                Err(WriteError::Blocked) => return,
                Err(_) => is_open = false,
            }
        }
        if queue.ends && is_open {
            let _ = writer.finish();
        }
        self.forget(stream);
    }

    /// Doubles the window once the client has acknowledged as much as it holds: a client that acknowledges nothing takes
    /// little memory.
    fn grow_window(&mut self, quic: &mut Connection) {
        // QUIC keeps at most a window of what was written.
        if self.written >= 2 * self.send_window && self.send_window < self.max_send_window {
            self.send_window = (2 * self.send_window).min(self.max_send_window);
            self.written = 0;
            quic.set_send_window(self.send_window);
        }
    }

    /// Bytes of queues and of the state of reads.
    fn memory(&self) -> usize {
        let held: usize = self.held.values().map(Bytes::len).sum();
        let streams = self.held.len() + self.paused.len() + self.waiting.len();
        self.outgoing_bytes + held + streams * size_of::<StreamId>()
    }

    /// Drops the queue of a stream.
    fn forget(&mut self, stream: StreamId) {
        if let Some(queue) = self.outgoing.remove(&stream) {
            self.outgoing_bytes -= queue.chunks.iter().map(Bytes::len).sum::<usize>();
        }
    }
}

impl StreamQueues {
    /// Drops the state of reads of a stream that HTTP/3 no longer knows.
    fn forget_reads(&mut self, stream: StreamId, http: &H3Connection) {
        if !http.is_open(http_id(stream)) {
            self.held.remove(&stream);
            self.paused.remove(&stream);
            self.waiting.remove(&stream);
        }
    }
}

/// Calls of an application on a connection.
pub struct Exchanges<'a> {
    quic: &'a mut Connection,
    http: &'a mut H3Connection,
    streams: &'a mut StreamQueues,
    key: ConnectionKey,
    now: Instant,
    out: Vec<u8>,
}

impl Exchanges<'_> {
    /// The connection.
    #[must_use]
    pub const fn connection(&self) -> ConnectionKey {
        self.key
    }

    /// The time of the event.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Sends the head of a response. `ends`: it has no content.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn send_head<'f>(
        &mut self,
        stream: QuicStreamId,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
    ) -> Result<(), H3SendError> {
        self.http.send_head(stream, status, fields, ends, &mut self.out)?;
        let head = std::mem::take(&mut self.out);
        self.streams.send(self.quic, quic_id(stream), head.into(), ends);
        Ok(())
    }

    /// Sends content, which is not copied. `ends`: the response ends after it.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn send_data(&mut self, stream: QuicStreamId, data: Bytes, ends: bool) -> Result<(), H3SendError> {
        let header = self.http.start_data(stream, data.len(), ends)?;
        self.streams.send(self.quic, quic_id(stream), Bytes::copy_from_slice(header.as_bytes()), false);
        self.streams.send(self.quic, quic_id(stream), data, ends);
        Ok(())
    }

    /// Opens a stream of a session of WebTransport. `None`: the client permits no further stream now.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn open_session_stream(
        &mut self,
        session: QuicStreamId,
        is_unidirectional: bool,
    ) -> Result<Option<QuicStreamId>, H3SendError> {
        let dir = if is_unidirectional { Dir::Uni } else { Dir::Bi };
        let Some(stream) = self.quic.streams().open(dir) else { return Ok(None) };
        match self.http.open_session_stream(http_id(stream), session) {
            Ok(prefix) => {
                let prefix = Bytes::copy_from_slice(prefix.as_bytes());
                self.streams.send(self.quic, stream, prefix, false);
                Ok(Some(http_id(stream)))
            }
            Err(error) => {
                let _ = self.quic.send_stream(stream).reset(varint(H3Code::WEBTRANSPORT_SESSION_GONE.get()));
                Err(error)
            }
        }
    }

    /// Sends bytes on a stream of a session, without frames. `ends`: our side of the stream ends after them.
    pub fn send_bytes(&mut self, stream: QuicStreamId, bytes: Bytes, ends: bool) {
        self.streams.send(self.quic, quic_id(stream), bytes, ends);
    }

    /// Sends a datagram of a session. One that is too large for the path, or has no room, is dropped.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn send_datagram(&mut self, session: QuicStreamId, payload: &[u8]) -> Result<(), H3SendError> {
        let prefix = self.http.datagram_prefix(session)?;
        let datagram = [prefix.as_bytes(), payload].concat();
        let _ = self.quic.datagrams().send(datagram.into(), true);
        Ok(())
    }

    /// Stops reading a stream after the event: its window closes, and no other. The datagram that is being handled may still
    /// bring content.
    pub fn pause_reads(&mut self, stream: QuicStreamId) {
        if self.http.is_open(stream) {
            self.streams.paused.insert(quic_id(stream));
        }
    }

    /// Reads a stream again.
    pub fn resume_reads(&mut self, stream: QuicStreamId) {
        if self.streams.paused.remove(&quic_id(stream)) {
            self.streams.resumed.push(quic_id(stream));
        }
    }

    /// Stops or continues to read all streams.
    pub fn pause_all_reads(&mut self, paused: bool) {
        self.streams.all_paused = paused;
        if !paused {
            self.streams.resumed.extend(std::mem::take(&mut self.streams.waiting));
        }
    }

    /// Ends a session of WebTransport with a code and a reason.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn close_session(
        &mut self,
        session: QuicStreamId,
        code: u32,
        reason: &str,
    ) -> Result<(), H3SendError> {
        self.http.close_session(session, code, reason, &mut self.out)?;
        let capsule = std::mem::take(&mut self.out);
        self.streams.send(self.quic, quic_id(session), capsule.into(), true);
        Ok(())
    }

    /// Ends a stream early.
    pub fn reset(&mut self, stream: QuicStreamId, code: H3Code) {
        self.http.reset(stream, code);
    }

    /// Bytes that wait for windows of the client, on all streams.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.streams.outgoing_bytes
    }

    /// Whether bytes of a stream wait for a window of the client. Send more after [`Http3App::handle_writable`].
    #[must_use]
    pub fn is_blocked(&self, stream: QuicStreamId) -> bool {
        self.streams.outgoing.contains_key(&quic_id(stream))
    }

    /// The client's address, which changes as it migrates.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.quic.remote_address()
    }

    /// Streams whose sent content the client has not acknowledged, or whose response is not complete; and the number of frames
    /// with content that were sent, which shows progress.
    #[must_use]
    pub fn unacknowledged(&mut self) -> (usize, u64) {
        // The control stream never ends.
        let streams = self.quic.streams().send_streams().saturating_sub(1);
        (streams, self.quic.stats().frame_tx.stream)
    }

    /// Whether a field section has arrived in part. Bound the time of the rest.
    #[must_use]
    pub const fn awaits_section(&self) -> bool {
        self.http.awaits_section()
    }

    /// Bytes of memory of the state of HTTP/3, without QUIC.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.http.memory() + self.streams.memory()
    }

    /// Requests that were reset without an event since the last call. For metrics.
    pub fn take_rejected(&mut self) -> u32 {
        self.http.take_rejected()
    }

    /// Rejects further requests, and tells the client. Open ones continue.
    pub fn shut_down(&mut self) {
        self.http.shut_down_now();
    }

    /// Closes the connection after the event or call, without its streams. [`Http3App::handle_end`] follows.
    pub fn close(&mut self, code: H3Code, reason: &'static str) {
        self.streams.close.get_or_insert((code, reason));
    }
}
