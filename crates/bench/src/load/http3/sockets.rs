//! WebSockets on the streams of a connection, or sessions of WebTransport with their streams.

use std::collections::VecDeque;
use std::sync::Arc;

use sinews_http::h3::{Event, QuicStreamId, RequestTarget};
use sinews_proto::handshake::{ClientRequest, HandshakeMisuse};
use sinews_proto::{CloseCode, Config, Kind, Time};
use sinews_quic::Exchanges;
use sinews_session::Resources;

use super::{index_of, reset};
use crate::load::failure::ConnectionFailure;
use crate::load::stream_socket::StreamedWebSocket;
use crate::load::tracker::ThreadState;
use crate::load::traffic::SocketTraffic;
use crate::load::websocket::{self, receive, send_messages, time};
use crate::tally::FailureKind;

/// The WebSockets of one connection.
#[derive(Debug)]
pub(crate) struct Http3Sockets {
    /// In the order of their requests.
    sockets: Vec<Http3Socket>,
    /// They are sessions, whose messages use streams that the server opens.
    are_sessions: bool,
    /// Sockets with output, in turns.
    ready: VecDeque<usize>,
    /// SETTINGS of the server have arrived.
    is_connected: bool,
    /// Requests that were sent.
    requested: usize,
    /// Sockets whose handshake is complete.
    open: usize,
    /// Received bytes, which the session unmasks in place.
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Http3Socket {
    socket: StreamedWebSocket,
    /// The stream of the messages.
    stream: Option<QuicStreamId>,
    is_ready: bool,
}

impl Http3Sockets {
    /// # Errors
    ///
    /// Returns an error if a header of a request belongs to connections of HTTP/1.1.
    pub(crate) fn new<'a>(
        requests: impl Iterator<Item = &'a ClientRequest>,
        are_sessions: bool,
    ) -> Result<Self, HandshakeMisuse> {
        let sockets = requests.map(|request| {
            let socket = StreamedWebSocket::new(request.clone().extended_connect()?);
            Ok(Http3Socket { socket, stream: None, is_ready: false })
        });
        Ok(Self {
            sockets: sockets.collect::<Result<_, _>>()?,
            are_sessions,
            ready: VecDeque::new(),
            is_connected: false,
            requested: 0,
            open: 0,
            scratch: Vec::new(),
        })
    }

    /// Whether all WebSockets are open.
    pub(super) fn is_open(&self) -> bool {
        self.open == self.sockets.len()
    }

    /// Returns the number of the socket whose messages use a stream.
    fn carried_by(&self, stream: QuicStreamId) -> Option<usize> {
        if !self.are_sessions {
            return Some(index_of(stream)).filter(|index| *index < self.sockets.len());
        }
        self.sockets.iter().position(|socket| socket.stream == Some(stream))
    }

    pub(super) fn receive(
        &mut self,
        event: Event<'_>,
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        (resources, config): (&mut Resources, &Arc<Config>),
    ) -> Result<(), ConnectionFailure> {
        let now = time(thread_state.epoch, thread_state.now);
        if self.are_sessions {
            self.receive_session_event(&event, config, now)?;
        }
        match event {
            Event::Settings { settings } if !settings.extended_connect => {
                let text = "the server offers no WebSockets over HTTP/3";
                return Err(ConnectionFailure::new(FailureKind::Handshake, text));
            }
            Event::Settings { .. } => self.is_connected = true,
            Event::Response { stream, head } if !self.are_sessions && head.status() >= 200 => {
                let Some(socket) = self.sockets.get_mut(index_of(stream)) else { return Ok(()) };
                socket.socket.open(&head, false, config, now)?;
                self.open += 1;
            }
            Event::Data { stream, data } => {
                let Some(index) = self.carried_by(stream) else { return Ok(()) };
                self.scratch.clear();
                self.scratch.extend_from_slice(data);
                let Some(socket) = self.sockets.get_mut(index) else { return Ok(()) };
                // Without a session it is the content of a rejection.
                let Some(session) = socket.socket.session.as_mut() else { return Ok(()) };
                let received =
                    receive(session, &mut self.scratch, &mut traffic[index], thread_state, resources);
                // The connection continues until all of its WebSockets are closed.
                if let Err(failure) = received
                    && failure.failure.is_some()
                {
                    return Err(ConnectionFailure { socket: index, ..failure });
                }
                self.mark(index);
            }
            Event::End { stream } => {
                let Some(index) = self.carried_by(stream) else { return Ok(()) };
                let Some(socket) = self.sockets.get_mut(index) else { return Ok(()) };
                socket.socket.end(now)?;
                self.mark(index);
            }
            Event::Reset { stream, code, violation } => {
                let index = self.carried_by(stream).unwrap_or_else(|| index_of(stream));
                let is_over = self.sockets.get(index).is_some_and(|socket| socket.socket.is_over());
                if !is_over {
                    return Err(reset(code, violation));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the part of an event that concerns sessions.
    fn receive_session_event(
        &mut self,
        event: &Event<'_>,
        config: &Arc<Config>,
        now: Time,
    ) -> Result<(), ConnectionFailure> {
        let failed = |kind, text: &str| Err(ConnectionFailure::new(kind, text));
        match event {
            Event::Settings { settings } if !(settings.webtransport && settings.datagrams) => {
                failed(FailureKind::Handshake, "the server offers no WebTransport")
            }
            // After 2xx the server opens the stream of the messages.
            Event::Response { head, .. } if head.status() >= 300 => {
                let text = format!("the server rejected a session with {}", head.status());
                failed(FailureKind::Handshake, &text)
            }
            Event::SessionStream { stream, session } => {
                let Some(socket) = self.sockets.get_mut(index_of(*session)) else { return Ok(()) };
                if socket.stream.is_some() {
                    return failed(FailureKind::Protocol, "the server opened a second stream in a session");
                }
                socket.stream = Some(*stream);
                socket.socket.open_session(config, now);
                self.open += 1;
                Ok(())
            }
            Event::SessionClosed { session, code, reason } => {
                let Some(Http3Socket { socket, .. }) = self.sockets.get(index_of(*session)) else {
                    return Ok(());
                };
                if socket.session.is_none() {
                    let text = "the server rejected a session, such as one beyond its limit";
                    return failed(FailureKind::Handshake, text);
                }
                if !socket.is_over() {
                    let text = format!("the server closed a session with code {code} {reason}");
                    return failed(FailureKind::Closed, &text);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles a datagram of a session: the kind of a message, and its payload.
    pub(super) fn receive_datagram(
        &mut self,
        session: QuicStreamId,
        datagram: &[u8],
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) -> Result<(), ConnectionFailure> {
        let index = index_of(session);
        let Some(socket) = self.sockets.get_mut(index) else { return Ok(()) };
        // A datagram may overtake the stream of the session.
        let Some(session) = socket.socket.session.as_mut() else { return Ok(()) };
        self.scratch.clear();
        self.scratch.extend_from_slice(datagram);
        let message = match self.scratch.split_first_mut() {
            Some((1, payload)) => (Kind::Text, payload),
            Some((2, payload)) => (Kind::Binary, payload),
            _ => {
                let text = "datagram does not begin with the kind of a message";
                return Err(ConnectionFailure::new(FailureKind::Protocol, text));
            }
        };
        websocket::receive_datagram(session, message, &mut traffic[index], thread_state, resources)?;
        self.mark(index);
        Ok(())
    }

    /// Sends the requests, and moves output of sockets to their streams.
    pub(super) fn fill(
        &mut self,
        exchanges: &mut Exchanges<'_>,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) -> Result<(), ConnectionFailure> {
        if self.is_connected {
            let protocol = &thread_state.plan.http3_protocol;
            self.send_requests(exchanges, if self.are_sessions { "webtransport" } else { protocol })?;
        }
        let now = time(thread_state.epoch, thread_state.now);
        while let Some(index) = self.ready.pop_front() {
            let Http3Socket { socket, stream, is_ready } = &mut self.sockets[index];
            *is_ready = false;
            let finishes = socket.finishes();
            let (Some(stream), Some(session)) = (*stream, &mut socket.session) else { continue };
            // The rest follows when the stream is writable.
            if exchanges.is_blocked(stream) {
                continue;
            }
            let mut output = Vec::new();
            if let Some(mut chain) = session.start_send() {
                chain.pieces().for_each(|piece| output.extend_from_slice(piece));
                chain.advance(chain.len());
                session.progressed(output.len(), now);
                session.finish_send(chain, resources, now);
            }
            let ends = finishes && session.buffered() == 0;
            if output.is_empty() && !ends {
                continue;
            }
            if self.are_sessions {
                exchanges.send_bytes(stream, output.into(), ends);
            } else {
                // An error means that the event of the stream's reset is to come.
                let _ = exchanges.send_data(stream, output.into(), ends);
            }
            socket.has_ended |= ends;
            self.mark(index);
        }
        Ok(())
    }

    fn send_requests(
        &mut self,
        exchanges: &mut Exchanges<'_>,
        protocol: &str,
    ) -> Result<(), ConnectionFailure> {
        let failed = |text: &str| Err(ConnectionFailure::new(FailureKind::Handshake, text));
        while let Some(next) = self.sockets.get_mut(self.requested) {
            let request = &next.socket.request;
            let target = RequestTarget::connect(protocol, request.authority(), request.path());
            let headers: Vec<_> = request.headers().collect();
            let is_sent = |name: &str| !self.are_sessions || !name.starts_with("sec-websocket-");
            let headers = headers.iter().map(|(name, value)| (*name, &**value));
            let headers = headers.filter(|(name, _)| is_sent(&name.to_ascii_lowercase()));
            match exchanges.send_request(&target, headers, false) {
                Ok(Some(_)) if self.are_sessions => {}
                Ok(Some(stream)) => next.stream = Some(stream),
                Ok(None) => {
                    return failed(&format!(
                        "--sockets-per-connection {} exceeds the streams that the server permits ({})",
                        self.sockets.len(),
                        self.requested
                    ));
                }
                Err(_) => return failed("the server accepts no further streams"),
            }
            self.requested += 1;
        }
        Ok(())
    }

    /// A stream takes more output.
    pub(super) fn writable(&mut self, stream: QuicStreamId) {
        if let Some(index) = self.carried_by(stream) {
            self.mark(index);
        }
    }

    /// Notes that a socket may have output.
    pub(super) fn mark(&mut self, index: usize) {
        let Some(Http3Socket { socket, is_ready, .. }) = self.sockets.get_mut(index) else { return };
        if socket.has_output() && !std::mem::replace(is_ready, true) {
            self.ready.push_back(index);
        }
    }

    pub(super) fn send(
        &mut self,
        index: usize,
        traffic: &mut SocketTraffic,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if let Some(session) = socket.socket.session.as_mut() {
            send_messages(session, traffic, thread_state, resources);
            self.mark(index);
        }
    }

    pub(super) fn send_first(
        &mut self,
        index: usize,
        text: &str,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if let Some(session) = socket.socket.session.as_mut() {
            websocket::send_first(session, text, thread_state, resources);
            self.mark(index);
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Sends Close on each WebSocket. Returns whether answers are pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        let now = time(thread_state.epoch, thread_state.now);
        let mut is_pending = false;
        for index in 0..self.sockets.len() {
            let Some(session) = self.sockets[index].socket.session.as_mut() else { continue };
            is_pending |= session.tx(resources, now).close(CloseCode::NORMAL, "").is_ok();
            session.after_tx(resources, now);
            self.mark(index);
        }
        is_pending
    }

    /// Whether both sides have closed all WebSockets.
    pub(super) fn is_over(&self) -> bool {
        self.is_open() && self.sockets.iter().all(|socket| socket.socket.is_over()) && !self.wants_send()
    }
}
