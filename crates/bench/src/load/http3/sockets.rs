//! WebSockets on a connection's streams, or WebTransport sessions with their streams.

use std::sync::Arc;

use sinews_http::h3::{Event, QuicStreamId, RequestTarget};
use sinews_proto::handshake::{ClientRequest, HandshakeMisuse};
use sinews_proto::{Config, Kind, Time};
use sinews_quic::Exchanges;
use sinews_session::Resources;

use super::{index_of, reset};
use crate::load::failure::ConnectionFailure;
use crate::load::stream_socket::StreamedSockets;
use crate::load::tracker::ThreadState;
use crate::load::traffic::SocketTraffic;
use crate::load::websocket::{self, receive};
use crate::tally::FailureKind;

/// One connection's WebSockets.
#[derive(Debug)]
pub(crate) struct Http3Sockets {
    pub(crate) sockets: StreamedSockets<QuicStreamId>,
    /// They are sessions, whose messages use streams that the server opens.
    are_sessions: bool,
    /// The server's SETTINGS have arrived.
    is_connected: bool,
    /// Requests that were sent.
    requested: usize,
    /// Received bytes, which the session unmasks in place.
    scratch: Vec<u8>,
}

impl Http3Sockets {
    /// # Errors
    ///
    /// Returns an error if a request header belongs to HTTP/1.1 connections.
    pub(crate) fn new<'a>(
        requests: impl Iterator<Item = &'a ClientRequest>,
        are_sessions: bool,
    ) -> Result<Self, HandshakeMisuse> {
        let sockets = StreamedSockets::new(requests)?;
        Ok(Self { sockets, are_sessions, is_connected: false, requested: 0, scratch: Vec::new() })
    }

    /// Returns the number of the socket whose messages use a stream.
    fn carried_by(&self, stream: QuicStreamId) -> Option<usize> {
        if !self.are_sessions {
            return Some(index_of(stream)).filter(|index| *index < self.sockets.sockets.len());
        }
        self.sockets.sockets.iter().position(|socket| socket.stream == Some(stream))
    }

    pub(super) fn receive(
        &mut self,
        event: Event<'_>,
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
        config: &Arc<Config>,
    ) -> Result<(), ConnectionFailure> {
        let now = thread_state.time();
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
                self.sockets.open(index_of(stream), &head, false, config, now)?;
            }
            Event::Data { stream, data } => {
                let Some(index) = self.carried_by(stream) else { return Ok(()) };
                self.scratch.clear();
                self.scratch.extend_from_slice(data);
                let chunk = &mut self.scratch;
                self.sockets.receive(index, traffic, |session, traffic| {
                    receive(session, chunk, traffic, thread_state, resources)
                })?;
            }
            Event::End { stream } => {
                let Some(index) = self.carried_by(stream) else { return Ok(()) };
                self.sockets.end(index, now)?;
            }
            Event::Reset { stream, code, violation } => {
                let index = self.carried_by(stream).unwrap_or_else(|| index_of(stream));
                if !self.sockets.is_socket_over(index) {
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
            // After 2xx the server opens the message stream.
            Event::Response { head, .. } if head.status() >= 300 => {
                let text = format!("the server rejected a session with {}", head.status());
                failed(FailureKind::Handshake, &text)
            }
            Event::SessionStream { stream, session } => {
                self.sockets.open_session(index_of(*session), *stream, config, now)
            }
            Event::SessionClosed { session, code, reason } => {
                let index = index_of(*session);
                let Some(socket) = self.sockets.sockets.get(index) else { return Ok(()) };
                if socket.session.is_none() {
                    let text = "the server rejected a session, such as one beyond its limit";
                    return failed(FailureKind::Handshake, text);
                }
                if !self.sockets.is_socket_over(index) {
                    let text = format!("the server closed a session with code {code} {reason}");
                    return failed(FailureKind::Closed, &text);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles a session's datagram: a message's kind and payload.
    pub(super) fn receive_datagram(
        &mut self,
        session: QuicStreamId,
        datagram: &[u8],
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) -> Result<(), ConnectionFailure> {
        self.scratch.clear();
        self.scratch.extend_from_slice(datagram);
        let (kind, payload) = match self.scratch.split_first_mut() {
            Some((1, payload)) => (Kind::Text, payload),
            Some((2, payload)) => (Kind::Binary, payload),
            _ => {
                let text = "datagram does not begin with the kind of a message";
                return Err(ConnectionFailure::new(FailureKind::Protocol, text));
            }
        };
        self.sockets.receive(index_of(session), traffic, |session, traffic| {
            websocket::receive_datagram(session, kind, payload, traffic, thread_state, resources)
        })
    }

    /// Sends the requests, and moves socket output to the streams.
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
        let now = thread_state.time();
        while let Some(index) = self.sockets.take_ready() {
            let socket = &mut self.sockets.sockets[index];
            let finishes = socket.finishes();
            let (Some(stream), Some(session)) = (socket.stream, &mut socket.session) else { continue };
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
                // An error means that the stream's reset event is to come.
                let _ = exchanges.send_data(stream, output.into(), ends);
            }
            socket.has_ended |= ends;
            self.sockets.mark_ready(index);
        }
        Ok(())
    }

    fn send_requests(
        &mut self,
        exchanges: &mut Exchanges<'_>,
        protocol: &str,
    ) -> Result<(), ConnectionFailure> {
        let failed = |text: &str| Err(ConnectionFailure::new(FailureKind::Handshake, text));
        while let Some(next) = self.sockets.sockets.get_mut(self.requested) {
            let request = &next.request;
            let target = RequestTarget::connect(protocol, request.authority(), request.path());
            let headers: Vec<_> = request.headers().collect();
            let is_sent = |name: &str| !self.are_sessions || !name.starts_with("sec-websocket-");
            let headers = headers.iter().map(|(name, value)| (*name, &**value));
            let headers = headers.filter(|(name, _)| is_sent(&name.to_ascii_lowercase()));
            match exchanges.send_request(&target, headers, false) {
                Ok(Some(_)) if self.are_sessions => {}
                Ok(Some(stream)) => next.stream = Some(stream),
                Ok(None) => return Err(self.sockets.too_many(self.requested)),
                Err(_) => return failed("the server accepts no further streams"),
            }
            self.requested += 1;
        }
        Ok(())
    }

    /// A stream takes more output.
    pub(super) fn writable(&mut self, stream: QuicStreamId) {
        if let Some(index) = self.carried_by(stream) {
            self.sockets.mark_ready(index);
        }
    }
}
