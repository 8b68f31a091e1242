//! A client of HTTP/2: several WebSockets on one connection (RFC 8441).

use std::collections::VecDeque;
use std::sync::Arc;

use sinews_http::h2::{
    Config as Http2Config, ErrorCode, Event, FieldBuffer, H2Connection, RequestTarget, StreamId,
};
use sinews_proto::handshake::{ClientRequest, ExtendedConnect, HandshakeMisuse};
use sinews_proto::{CloseCode, Config, Time};
use sinews_session::{Chain, Outbound, Resources, Session};

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::stream_socket::StreamedWebSocket;
use super::tracker::ThreadState;
use super::traffic::SocketTraffic;
use super::websocket::{receive, send_messages, time};

/// One connection, and the WebSockets on it.
#[derive(Debug)]
pub(super) struct Http2Load {
    machine: H2Connection,
    fields: FieldBuffer,
    out: Outbound,
    /// `https` over TLS.
    scheme: &'static str,
    /// In the order of their streams.
    sockets: Vec<Http2Socket>,
    /// Sockets with output, in turns.
    ready: VecDeque<usize>,
    /// All requests are sent.
    is_requested: bool,
    /// Sockets whose handshake is complete.
    open: usize,
}

/// A WebSocket on a stream.
#[derive(Debug)]
struct Http2Socket {
    socket: StreamedWebSocket,
    stream: Option<StreamId>,
    is_ready: bool,
    /// A window is closed.
    is_blocked: bool,
}

impl Http2Socket {
    fn new(request: ExtendedConnect) -> Self {
        Self { socket: StreamedWebSocket::new(request), stream: None, is_ready: false, is_blocked: false }
    }
}

impl Http2Load {
    /// # Errors
    ///
    /// Returns an error if a header of a request belongs to connections of HTTP/1.1.
    pub(super) fn new<'a>(
        requests: impl Iterator<Item = &'a ClientRequest>,
        is_secure: bool,
    ) -> Result<Self, HandshakeMisuse> {
        let sockets = requests.map(|request| Ok(Http2Socket::new(request.clone().extended_connect()?)));
        // The plan bounds the data in flight.
        let config = Http2Config::new().with_stream_window(WINDOW).with_connection_window(WINDOW);
        Ok(Self {
            machine: H2Connection::client(config),
            fields: FieldBuffer::new(),
            out: Outbound::default(),
            scheme: if is_secure { "https" } else { "http" },
            sockets: sockets.collect::<Result<_, _>>()?,
            ready: VecDeque::new(),
            is_requested: false,
            open: 0,
        })
    }

    fn session(&mut self, index: usize) -> Option<&mut Session> {
        self.sockets.get_mut(index)?.socket.session.as_deref_mut()
    }

    /// Whether all WebSockets are open.
    pub(super) fn is_open(&self) -> bool {
        self.open == self.sockets.len()
    }

    pub(super) fn receive(
        &mut self,
        chunk: &mut [u8],
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        (resources, config): (&mut Resources, &Arc<Config>),
    ) -> Result<(), ConnectionFailure> {
        let mut at = 0;
        loop {
            let mut rest = &chunk[at..];
            let now = time(thread_state.epoch, thread_state.now);
            let event = self.machine.receive(&mut rest, &mut self.fields, now.since(Time::ZERO));
            at = chunk.len() - rest.len();
            let event = event.map_err(|error| {
                ConnectionFailure::new(FailureKind::Protocol, &format!("HTTP/2: {error}"))
            })?;
            match event {
                None => break,
                Some(Event::Data { stream, data, ends }) => {
                    let data = at - data.len()..at;
                    let (index, len) = (index_of(stream), data.len());
                    let Some(socket) = self.sockets.get_mut(index) else { continue };
                    let Some(session) = socket.socket.session.as_mut() else {
                        // The content of a rejection.
                        continue;
                    };
                    let received =
                        receive(session, &mut chunk[data], &mut traffic[index], thread_state, resources);
                    // The connection continues until all of its WebSockets are closed.
                    if let Err(failure) = received
                        && failure.failure.is_some()
                    {
                        return Err(ConnectionFailure { socket: index, ..failure });
                    }
                    self.machine.release(stream, len);
                    if ends {
                        self.sockets[index].socket.end(now)?;
                    }
                    self.mark_ready(index);
                }
                Some(Event::Response { stream, head, ends }) if head.status() >= 200 => {
                    let Some(socket) = self.sockets.get_mut(index_of(stream)) else { continue };
                    socket.socket.open(&head, ends, config, now)?;
                    self.open += 1;
                }
                Some(Event::Reset { stream, .. })
                    if self.sockets.get(index_of(stream)).is_some_and(|socket| socket.socket.is_over()) => {}
                Some(Event::Reset { code, violation, .. }) => {
                    let rule = violation.map(|rule| format!(": {rule}")).unwrap_or_default();
                    let (kind, text) = match code {
                        ErrorCode::REFUSED_STREAM => (FailureKind::Handshake, "the server refused a stream"),
                        _ => (FailureKind::Reset, "stream was reset"),
                    };
                    return Err(ConnectionFailure::new(kind, &format!("{text} with {code}{rule}")));
                }
                Some(Event::GoAway { code }) if code != ErrorCode::NO_ERROR => {
                    let text = format!("the server closed the connection with {code}");
                    return Err(ConnectionFailure::new(FailureKind::Closed, &text));
                }
                Some(Event::WindowOpened { stream }) => self.windows_opened(stream),
                Some(_) => {}
            }
        }
        self.send_requests(resources)
    }

    /// Sends the requests once the settings of the server are known.
    fn send_requests(&mut self, resources: &mut Resources) -> Result<(), ConnectionFailure> {
        let Some(peer) = self.machine.server_settings() else { return Ok(()) };
        if self.is_requested {
            return Ok(());
        }
        let failed = |text: &str| Err(ConnectionFailure::new(FailureKind::Handshake, text));
        if !peer.extended_connect {
            return failed("the server offers no WebSockets over HTTP/2");
        }
        if (peer.max_streams as usize) < self.sockets.len() {
            return failed(&format!(
                "--sockets-per-connection {} exceeds the streams that the server permits ({})",
                self.sockets.len(),
                peer.max_streams
            ));
        }
        self.is_requested = true;
        let Self { machine, sockets, out, scheme, .. } = self;
        let chain = out.pending_chain(resources);
        for socket in sockets {
            let request = &socket.socket.request;
            let target = RequestTarget::connect("websocket", request.authority(), request.path());
            let target = target.with_scheme(scheme);
            let headers: Vec<_> = request.headers().collect();
            let headers = headers.iter().map(|(name, value)| (*name, &**value));
            let sent = chain.write(|out| machine.send_request(&target, headers, false, out));
            // The settings permit all of them; GOAWAY may have followed.
            let Ok(stream) = sent else { return failed("the server accepts no further streams") };
            socket.stream = Some(stream);
        }
        Ok(())
    }

    /// Sends messages of a WebSocket as far as allowed.
    pub(super) fn send(
        &mut self,
        index: usize,
        traffic: &mut SocketTraffic,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        if let Some(session) = self.session(index) {
            send_messages(session, traffic, thread_state, resources);
            self.mark_ready(index);
        }
    }

    /// Sends a message before the messages of the load.
    pub(super) fn send_first(
        &mut self,
        index: usize,
        text: &str,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) {
        if let Some(session) = self.session(index) {
            super::websocket::send_first(session, text, thread_state, resources);
            self.mark_ready(index);
        }
    }

    /// Sends Close on each WebSocket. Returns whether answers are pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        let now = time(thread_state.epoch, thread_state.now);
        let mut is_pending = false;
        for index in 0..self.sockets.len() {
            let Some(session) = &mut self.sockets[index].socket.session else { continue };
            is_pending |= session.tx(resources, now).close(CloseCode::NORMAL, "").is_ok();
            session.after_tx(resources, now);
            self.mark_ready(index);
        }
        is_pending
    }

    /// Whether both sides have closed all WebSockets.
    pub(super) fn is_over(&self) -> bool {
        self.is_open() && self.sockets.iter().all(|socket| socket.socket.is_over()) && !self.wants_send()
    }

    fn mark_ready(&mut self, index: usize) {
        let socket = &mut self.sockets[index];
        if socket.socket.has_output() && !socket.is_blocked && !std::mem::replace(&mut socket.is_ready, true)
        {
            self.ready.push_back(index);
        }
    }

    fn windows_opened(&mut self, stream: Option<StreamId>) {
        for index in 0..self.sockets.len() {
            let socket = &mut self.sockets[index];
            if stream.is_none() || stream == socket.stream {
                socket.is_blocked = false;
                self.mark_ready(index);
            }
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        self.out.wants_send()
            || !self.out.is_sending() && (self.machine.wants_write() || !self.ready.is_empty())
    }

    /// Whether no data is queued behind the send in flight.
    pub(super) fn finish_may_wait(&self) -> bool {
        !self.out.has_pending() && !self.machine.wants_write() && self.ready.is_empty()
    }

    pub(super) fn start_send(
        &mut self,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) -> Option<Box<Chain>> {
        if self.out.is_sending() {
            return None;
        }
        let Self { machine, out, .. } = self;
        if machine.wants_write() {
            out.pending_chain(resources).write(|out| machine.write_control(out));
        }
        while self.out.len() < QUEUED_MAX
            && let Some(index) = self.ready.pop_front()
        {
            self.send_frame(index, thread_state, resources);
        }
        self.out.start()
    }

    /// Moves one frame of a WebSocket to the connection.
    fn send_frame(&mut self, index: usize, thread_state: &ThreadState, resources: &mut Resources) {
        let now = time(thread_state.epoch, thread_state.now);
        let Self { machine, out, sockets, .. } = self;
        let socket = &mut sockets[index];
        socket.is_ready = false;
        let finishes = socket.socket.finishes();
        let (Some(stream), Some(session)) = (socket.stream, &mut socket.socket.session) else { return };
        let chain = socket.socket.chain.take().or_else(|| session.start_send());
        let has_chain = chain.is_some();
        let mut chain = chain.unwrap_or_default();
        if !has_chain && !finishes {
            return;
        }
        let ends = finishes && session.buffered() == chain.len();
        let Ok(Some(frame)) = machine.start_data(stream, chain.len(), ends) else {
            // A window is closed, or the event of the stream's reset is to come.
            socket.is_blocked = true;
            socket.socket.chain = has_chain.then_some(chain);
            return;
        };
        let pending = out.pending_chain(resources);
        pending.write(|out| out.extend_from_slice(&frame.header()));
        chain.move_to(frame.payload_len(), pending);
        socket.socket.has_ended |= frame.ends();
        if has_chain {
            session.progressed(frame.payload_len(), now);
            if chain.is_empty() {
                session.finish_send(chain, resources, now);
            } else {
                socket.socket.chain = Some(chain);
            }
        }
        self.mark_ready(index);
    }

    pub(super) fn progressed(&mut self, bytes: usize) {
        self.out.progressed(bytes);
    }

    pub(super) fn finish_send(&mut self, chain: Box<Chain>, resources: &mut Resources) {
        self.out.finish(chain, resources);
    }
}

/// Requests are sent in the order of the sockets, and each takes the next odd identifier.
fn index_of(stream: StreamId) -> usize {
    stream.get() as usize / 2
}

/// The window of the connection and of each stream: the answers of the server never wait for it.
const WINDOW: u32 = (1 << 31) - 1;

/// Limit of the bytes of one send, so that WebSockets take turns.
const QUEUED_MAX: usize = 128 << 10;
