//! An HTTP/2 client: several WebSockets on one connection (RFC 8441), or requests.

use std::convert::Infallible;
use std::sync::Arc;

use sinews_http::h2::{
    Config as Http2Config, ErrorCode, Event, FieldBuffer, H2Connection, RequestTarget, StreamId,
};
use sinews_proto::handshake::{ClientRequest, HandshakeMisuse};
use sinews_proto::{Config, Time};
use sinews_session::{Chain, Outbound, Resources};

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::requests::StreamedRequests;
use super::stream_socket::StreamedSockets;
use super::tracker::ThreadState;
use super::traffic::SocketTraffic;
use super::websocket::receive;

/// One connection, and the WebSockets or requests on it.
#[derive(Debug)]
pub(super) struct Http2Load {
    machine: H2Connection,
    fields: FieldBuffer,
    pub(super) out: Outbound,
    /// `https` over TLS.
    scheme: &'static str,
    pub(super) sockets: StreamedSockets<StreamId>,
    /// The handshakes of all WebSockets are sent.
    is_requested: bool,
    /// In the place of WebSockets.
    requests: Option<StreamedRequests<StreamId>>,
}

impl Http2Load {
    /// # Errors
    ///
    /// Returns an error if a request header belongs to HTTP/1.1 connections.
    pub(super) fn new<'a>(
        requests: impl Iterator<Item = &'a ClientRequest>,
        is_secure: bool,
    ) -> Result<Self, HandshakeMisuse> {
        // The plan bounds the data in flight.
        let config = Http2Config::new().with_stream_window(WINDOW).with_connection_window(WINDOW);
        Ok(Self {
            machine: H2Connection::client(config),
            fields: FieldBuffer::new(),
            out: Outbound::default(),
            scheme: if is_secure { "https" } else { "http" },
            sockets: StreamedSockets::new(requests)?,
            is_requested: false,
            requests: None,
        })
    }

    /// A connection for requests.
    pub(super) fn for_requests(is_secure: bool) -> Self {
        let load = Self::new(std::iter::empty(), is_secure).expect("there is no header to be wrong");
        Self { requests: Some(StreamedRequests::new()), ..load }
    }

    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        match self.requests {
            Some(_) => self.machine.server_settings().is_some(),
            None => self.sockets.is_open(),
        }
    }

    /// Sends a WebSocket's messages, or requests, as far as allowed.
    pub(super) fn send(
        &mut self,
        index: usize,
        traffic: &mut SocketTraffic,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        match &mut self.requests {
            Some(requests) => requests.send(&mut traffic.tracker, thread_state),
            None => self.sockets.send(index, traffic, thread_state, resources),
        }
    }

    pub(super) fn receive(
        &mut self,
        chunk: &mut [u8],
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
        config: &Arc<Config>,
    ) -> Result<(), ConnectionFailure> {
        let mut at = 0;
        loop {
            let mut rest = &chunk[at..];
            let now = thread_state.time();
            let event = self.machine.receive(&mut rest, &mut self.fields, now.since(Time::ZERO));
            at = chunk.len() - rest.len();
            let event = event.map_err(|error| {
                ConnectionFailure::new(FailureKind::Protocol, &format!("HTTP/2: {error}"))
            })?;
            let event = match (&mut self.requests, event) {
                (Some(requests), Some(event)) => {
                    if let Some(AnswerContent { stream, len }) =
                        receive_answer(requests, event, traffic, thread_state)?
                    {
                        self.machine.release(stream, len);
                    }
                    continue;
                }
                (_, event) => event,
            };
            match event {
                None => break,
                Some(Event::Data { stream, data, ends }) => {
                    let (index, data) = (index_of(stream), at - data.len()..at);
                    let len = data.len();
                    self.sockets.receive(index, traffic, |session, traffic| {
                        receive(session, &mut chunk[data], traffic, thread_state, resources)
                    })?;
                    self.machine.release(stream, len);
                    if ends {
                        self.sockets.end(index, now)?;
                    }
                }
                Some(Event::Response { stream, head, ends }) if head.status() >= 200 => {
                    self.sockets.open(index_of(stream), &head, ends, config, now)?;
                }
                Some(Event::Reset { stream, .. }) if self.sockets.is_socket_over(index_of(stream)) => {}
                Some(Event::Reset { code, violation, .. }) => return Err(reset(code, violation)),
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

    /// Sends the handshakes once the server's settings are known.
    fn send_requests(&mut self, resources: &mut Resources) -> Result<(), ConnectionFailure> {
        let Some(peer) = self.machine.server_settings() else { return Ok(()) };
        if self.is_requested || self.requests.is_some() {
            return Ok(());
        }
        let failed = |text: &str| Err(ConnectionFailure::new(FailureKind::Handshake, text));
        if !peer.extended_connect {
            return failed("the server offers no WebSockets over HTTP/2");
        }
        let max_streams = peer.max_streams as usize;
        if max_streams < self.sockets.sockets.len() {
            return Err(self.sockets.too_many(max_streams));
        }
        self.is_requested = true;
        let Self { machine, sockets, out, scheme, .. } = self;
        let chain = out.pending_chain(resources);
        for socket in &mut sockets.sockets {
            let request = &socket.request;
            let target = RequestTarget::connect("websocket", request.authority(), request.path());
            let target = target.with_scheme(scheme);
            let headers: Vec<_> = request.headers().collect();
            let headers = headers.iter().map(|(name, value)| (*name, &**value));
            let sent = chain.write(|out| machine.send_request(&target, headers, false, out));
            // The settings permit them all; GOAWAY may have followed.
            let Ok(stream) = sent else { return failed("the server accepts no further streams") };
            socket.stream = Some(stream);
        }
        Ok(())
    }

    /// Whether both sides have closed all WebSockets.
    pub(super) fn is_over(&self) -> bool {
        self.requests.is_none() && self.sockets.is_over() && !self.wants_send()
    }

    fn windows_opened(&mut self, stream: Option<StreamId>) {
        for index in 0..self.sockets.sockets.len() {
            let socket = &mut self.sockets.sockets[index];
            if stream.is_none() || stream == socket.stream {
                socket.is_blocked = false;
                self.sockets.mark_ready(index);
            }
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        self.out.wants_send()
            || !self.out.is_sending()
                && (self.machine.wants_write() || self.sockets.has_ready() || self.has_requests())
    }

    /// Whether requests can be sent.
    fn has_requests(&self) -> bool {
        self.requests.as_ref().is_some_and(StreamedRequests::wants_send) && self.is_open()
    }

    /// Whether no data is queued behind the send in flight.
    pub(super) fn finish_may_wait(&self) -> bool {
        !self.out.has_pending()
            && !self.machine.wants_write()
            && !self.sockets.has_ready()
            && !self.has_requests()
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
        if self.has_requests() {
            self.fill(thread_state, resources);
        }
        while self.out.len() < QUEUED_MAX
            && let Some(index) = self.sockets.take_ready()
        {
            self.send_frame(index, thread_state, resources);
        }
        self.out.start()
    }

    /// Moves due requests to the connection, as many as the server permits.
    fn fill(&mut self, thread_state: &ThreadState, resources: &mut Resources) {
        let Self { machine, out, requests, scheme, .. } = self;
        let (Some(requests), plan) = (requests, &thread_state.plan) else { return };
        let request = &plan.request;
        let target = RequestTarget::new(&request.method, scheme, &plan.target.host, &plan.target.path);
        let chain = out.pending_chain(resources);
        let Ok(()) = requests.fill::<Infallible>(|_| {
            let headers = request.headers.iter().map(|(name, value)| (&**name, &**value));
            // The end of an answer permits another request. A GOAWAY event ends the connection.
            Ok(chain.write(|out| machine.send_request(&target, headers, true, out)).ok())
        });
    }

    /// Moves a WebSocket's frame to the connection.
    fn send_frame(&mut self, index: usize, thread_state: &ThreadState, resources: &mut Resources) {
        let now = thread_state.time();
        let Self { machine, out, sockets, .. } = self;
        let socket = &mut sockets.sockets[index];
        let finishes = socket.finishes();
        let (Some(stream), Some(session)) = (socket.stream, &mut socket.session) else { return };
        let chain = socket.chain.take().or_else(|| session.start_send());
        let has_chain = chain.is_some();
        let mut chain = chain.unwrap_or_default();
        if !has_chain && !finishes {
            return;
        }
        let ends = finishes && session.buffered() == chain.len();
        let Ok(Some(frame)) = machine.start_data(stream, chain.len(), ends) else {
            // A window is closed, or the stream's reset event is to come.
            socket.is_blocked = true;
            socket.chain = has_chain.then_some(chain);
            return;
        };
        let pending = out.pending_chain(resources);
        pending.write(|out| out.extend_from_slice(&frame.header()));
        chain.move_to(frame.payload_len(), pending);
        socket.has_ended |= frame.ends();
        if has_chain {
            session.progressed(frame.payload_len(), now);
            if chain.is_empty() {
                session.finish_send(chain, resources, now);
            } else {
                socket.chain = Some(chain);
            }
        }
        self.sockets.mark_ready(index);
    }
}

/// A stream's received content, which its window gets back.
struct AnswerContent {
    stream: StreamId,
    len: usize,
}

/// Handles an event on a connection with requests.
fn receive_answer(
    requests: &mut StreamedRequests<StreamId>,
    event: Event<'_>,
    traffic: &mut [SocketTraffic],
    thread_state: &mut ThreadState,
) -> Result<Option<AnswerContent>, ConnectionFailure> {
    match event {
        Event::Response { stream, head, ends } if head.status() >= 200 => {
            requests.receive_head(stream, head.status(), thread_state);
            if ends {
                requests.receive_end(stream, traffic, thread_state)?;
            }
        }
        Event::Data { stream, data, ends } => {
            requests.receive_data(stream, data, thread_state)?;
            if ends {
                requests.receive_end(stream, traffic, thread_state)?;
            }
            return Ok(Some(AnswerContent { stream, len: data.len() }));
        }
        Event::Trailers { stream, .. } => requests.receive_end(stream, traffic, thread_state)?,
        Event::Reset { stream, code, violation } if requests.is_unanswered(stream) => {
            return Err(reset(code, violation));
        }
        Event::GoAway { code } => {
            let text = format!("the server accepts no further requests: GOAWAY with {code}");
            return Err(ConnectionFailure::new(FailureKind::Closed, &text));
        }
        _ => {}
    }
    Ok(None)
}

/// Returns the failure for a stream that the server has reset.
fn reset(code: ErrorCode, violation: Option<&str>) -> ConnectionFailure {
    let rule = violation.map(|rule| format!(": {rule}")).unwrap_or_default();
    let (kind, text) = match code {
        ErrorCode::REFUSED_STREAM => (FailureKind::Handshake, "the server refused a stream"),
        _ => (FailureKind::Reset, "stream was reset"),
    };
    ConnectionFailure::new(kind, &format!("{text} with {code}{rule}"))
}

/// Requests are sent in socket order, and each takes the next odd identifier.
fn index_of(stream: StreamId) -> usize {
    stream.get() as usize / 2
}

/// The window of the connection and of each stream: the server's answers never wait for it.
const WINDOW: u32 = (1 << 31) - 1;

/// Byte limit for one send, so that WebSockets take turns.
const QUEUED_MAX: usize = 128 << 10;
