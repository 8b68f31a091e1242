//! Streams that carry sockets: WebSockets by extended CONNECT (RFC 8441), and the bodies of streaming responses.
//!
//! The worker owns a socket; the connection knows its stream, and whether it has output that the windows permit.

use std::ops::Range;

use sinews_engine::ConnId;
use sinews_http::h2::{ErrorCode, StreamId};
use sinews_proto::handshake::{Accepted, Refusal};
use sinews_proto::{Negotiated, Time};
use sinews_session::Chain;

use super::answer::PIECE;
use super::{H2Conn, QUEUED_MAX};
use crate::exchange::{HttpExchange, SocketHandshake};
use crate::request::Response;
use crate::router::WebSocketRoute;
use crate::shared::WorkerShared;
use crate::socket::{AcceptedUpgrade, MessageTransport};
use crate::streaming::StreamingResponse;
use crate::timer::NEVER;

/// A stream of a socket.
pub(super) struct SocketStream {
    pub(super) stream: StreamId,
    socket: ConnId,
    /// It is in the queue of streams with output.
    ready: bool,
    /// A window is closed.
    blocked: bool,
}

/// Input that concerns a socket.
pub(crate) enum SocketEvent {
    /// The answer to its request is queued.
    Opened(Box<OpenedSocket>),
    /// Bytes of the input, and whether the peer sends no more.
    Data { socket: ConnId, range: Range<usize>, ends: bool },
    /// The stream is reset. It exists no longer.
    Reset(ConnId),
}

/// A socket that the worker creates.
pub(crate) struct OpenedSocket {
    pub(crate) stream: StreamId,
    pub(crate) upgrade: AcceptedUpgrade,
    /// The peer sends no bytes.
    pub(crate) ends: bool,
}

/// A DATA frame of a socket.
pub(crate) struct SentFrame {
    pub(crate) bytes: usize,
    /// It ends the stream.
    pub(crate) ends: bool,
}

impl H2Conn {
    fn socket_position(&self, stream: StreamId) -> Option<usize> {
        self.sockets.binary_search_by_key(&stream.get(), |socket| socket.stream.get()).ok()
    }

    /// Returns the socket of a stream.
    pub(super) fn socket_of(&self, stream: StreamId) -> Option<ConnId> {
        Some(self.sockets[self.socket_position(stream)?].socket)
    }

    pub(crate) fn sockets(&self) -> Vec<ConnId> {
        self.sockets.iter().map(|socket| socket.socket).collect()
    }

    /// Adds a socket. Its stream is mostly the latest; an upload may have delayed its answer.
    pub(crate) fn add_socket(&mut self, stream: StreamId, socket: ConnId) {
        let at = self.sockets.partition_point(|known| known.stream < stream);
        self.sockets.insert(at, SocketStream { stream, socket, ready: false, blocked: false });
    }

    /// Removes a socket, and resets its stream unless it has ended.
    pub(crate) fn remove_socket(&mut self, stream: StreamId, code: ErrorCode, now: Time) {
        self.machine.reset(stream, code);
        let Some(at) = self.socket_position(stream) else { return };
        self.sockets.remove(at);
        if self.is_idle() {
            self.idle_since = now;
            (self.sockets, self.ready, self.sockets_due) = (Vec::new(), Default::default(), NEVER);
        }
    }

    /// Notes that a socket has output, or has to end its stream.
    pub(crate) fn mark_ready(&mut self, stream: StreamId) {
        let Some(at) = self.socket_position(stream) else { return };
        let socket = &mut self.sockets[at];
        if !socket.blocked && !std::mem::replace(&mut socket.ready, true) {
            self.ready.push_back(stream);
        }
    }

    /// Queues the sockets whose windows may have opened: of one stream, or of all.
    pub(super) fn windows_opened(&mut self, stream: Option<StreamId>) {
        for socket in &mut self.sockets {
            let is_meant = stream.is_none_or(|stream| stream == socket.stream);
            if is_meant && std::mem::take(&mut socket.blocked) {
                socket.ready = true;
                self.ready.push_back(socket.stream);
            }
        }
    }

    /// Returns whether output of sockets can be queued now.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the next socket with output.
    pub(crate) fn take_ready(&mut self) -> Option<(StreamId, ConnId)> {
        while let Some(stream) = self.ready.pop_front() {
            if let Some(at) = self.socket_position(stream) {
                self.sockets[at].ready = false;
                return Some((stream, self.sockets[at].socket));
            }
        }
        None
    }

    /// Returns whether sends of sockets may begin: control frames are queued, and no send is in flight.
    pub(crate) fn starts_frames(&mut self, shared: &mut WorkerShared) -> bool {
        self.queue_control(shared);
        !self.closing && !self.outbound.is_sending() && !self.machine.wants_write()
    }

    /// Returns whether more bytes of sockets and bodies may be queued.
    pub(crate) fn has_capacity(&self) -> bool {
        self.outbound.len() < QUEUED_MAX
    }

    /// Queues one DATA frame of a socket. `ends`: the stream ends after the chain. `None`: a window is closed, and the
    /// socket is marked ready when it opens. An error: the stream exists no longer.
    pub(crate) fn send_chain(
        &mut self,
        stream: StreamId,
        chain: &mut Chain,
        ends: bool,
        shared: &mut WorkerShared,
    ) -> Result<Option<SentFrame>, ()> {
        let len = chain.len().min(PIECE);
        let ends = ends && len == chain.len();
        let Some(frame) = self.machine.start_data(stream, len, ends).map_err(|_| ())? else {
            if let Some(at) = self.socket_position(stream) {
                self.sockets[at].blocked = true;
            }
            return Ok(None);
        };
        if self.outbound.is_empty() {
            self.last_progress = shared.services.now;
        }
        let out = self.outbound.pending_chain(&mut shared.resources);
        out.write(|out| out.extend_from_slice(&frame.header()));
        chain.move_to(frame.payload_len(), out);
        Ok(Some(SentFrame { bytes: frame.payload_len(), ends: frame.ends() }))
    }

    /// Ends the stream of a socket, behind all that is queued.
    pub(crate) fn end_stream(&mut self, stream: StreamId, shared: &mut WorkerShared) {
        if let Ok(Some(frame)) = self.machine.start_data(stream, 0, true) {
            let out = self.outbound.pending_chain(&mut shared.resources);
            out.write(|out| out.extend_from_slice(&frame.header()));
        }
    }

    /// Returns consumed bytes of a socket to the window of its stream.
    pub(crate) fn release(&mut self, stream: StreamId, bytes: usize) {
        self.machine.release(stream, bytes);
    }

    /// Returns whether frames of the machine are queued.
    pub(crate) fn wants_control(&self) -> bool {
        self.machine.wants_write()
    }

    /// Returns whether the connection ends without its streams.
    pub(crate) fn has_failed(&self) -> bool {
        self.closing
    }

    /// Answers the opening handshake of a WebSocket.
    pub(super) fn connect(
        &mut self,
        stream: StreamId,
        route: &WebSocketRoute,
        exchange: &HttpExchange<'_>,
        shared: &mut WorkerShared,
    ) {
        let ip = self.peer.ip();
        let services = &mut shared.services;
        let handshake = match services.gate.admit(ip) {
            Ok(()) => exchange.accept_socket(route, services).and_then(check_headers).inspect_err(|_| {
                services.gate.release(ip);
            }),
            Err(limit) => {
                services.count_limit(limit);
                Err(limit.refusal())
            }
        };
        let SocketHandshake { accepted, response, upgrade } = match handshake {
            Ok(handshake) => handshake,
            Err(refusal) => {
                let refusal = exchange.complete_refusal(refusal, services);
                return self.write_answer(stream, Response::refused(&refusal), shared);
            }
        };
        self.open_body(stream, &accepted_head(&accepted, response), upgrade, shared);
    }

    /// Starts a streaming response.
    pub(super) fn stream_body(
        &mut self,
        stream: StreamId,
        exchange: &HttpExchange<'_>,
        mut streaming: StreamingResponse,
        shared: &mut WorkerShared,
    ) {
        if let Err(response) = self.admit_body(shared) {
            return self.answer(stream, exchange, response, shared);
        }
        exchange.complete(&mut streaming.response, &mut shared.services);
        self.write_body_head(stream, streaming, shared);
    }

    /// Counts a streaming response among the connections.
    ///
    /// # Errors
    /// The response that rejects it.
    pub(super) fn admit_body(&self, shared: &WorkerShared) -> Result<(), Response> {
        shared.services.gate.admit(self.peer.ip()).map_err(|limit| {
            shared.services.count_limit(limit);
            limit.response()
        })
    }

    /// Queues the head of a streaming response that is complete and admitted.
    pub(super) fn write_body_head(
        &mut self,
        stream: StreamId,
        streaming: StreamingResponse,
        shared: &mut WorkerShared,
    ) {
        let StreamingResponse { response, format, handler, config, prefix } = streaming;
        // The end of the stream is the end of the body.
        let negotiated = Negotiated::response_body(format, false);
        let transport = MessageTransport::Body { keep_alive: false, prefix };
        let upgrade = AcceptedUpgrade { negotiated, handler, config, rate_limit: None, transport };
        self.open_body(stream, &response, upgrade, shared);
    }

    /// Queues the head of an answer whose content is the output of a socket.
    fn open_body(
        &mut self,
        stream: StreamId,
        response: &Response,
        upgrade: AcceptedUpgrade,
        shared: &mut WorkerShared,
    ) {
        let Some(at) = self.position(stream) else { return };
        let ends = self.exchanges[at].is_received;
        self.exchanges.remove(at);
        if self.write_head(stream, response, None, false, shared) {
            self.opened = Some(Box::new(OpenedSocket { stream, upgrade, ends }));
        } else {
            shared.services.gate.release(self.peer.ip());
            self.machine.reset(stream, ErrorCode::INTERNAL_ERROR);
        }
    }

    /// Handles bytes of a stream without an exchange.
    pub(super) fn socket_data(
        &self,
        stream: StreamId,
        range: Range<usize>,
        ends: bool,
    ) -> Option<SocketEvent> {
        Some(SocketEvent::Data { socket: self.socket_of(stream)?, range, ends })
    }
}

/// Checks the headers that a route and its hooks add to the answer.
fn check_headers(handshake: SocketHandshake) -> Result<SocketHandshake, Refusal> {
    let headers: Vec<(&str, &str)> = handshake.response.headers.iter().collect();
    if let Err(error) = Accepted::check_headers(&headers) {
        tracing::error!(%error, "handshake response has an invalid header");
        return Err(Refusal::new(500).unwrap_or_else(|_| unreachable!("500 is a valid status")));
    }
    Ok(handshake)
}

/// Adds the headers of an accepted handshake.
fn accepted_head(accepted: &Accepted, added: Response) -> Response {
    let mut response = Response::new(accepted.status());
    for (name, value) in accepted.headers() {
        response.add_header(name, value.to_owned());
    }
    added.headers.iter().for_each(|(name, value)| response.add_header(name.to_owned(), value.to_owned()));
    response
}
