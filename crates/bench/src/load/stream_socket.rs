//! WebSockets on HTTP/2 or HTTP/3 streams.

use std::collections::VecDeque;
use std::sync::Arc;

use sinews_http::h2::ResponseFields;
use sinews_proto::handshake::{ClientRequest, ExtendedConnect, HandshakeMisuse};
use sinews_proto::{Config, Negotiated, Role, Time};
use sinews_session::{Cause, Chain, Outbound, Resources, Session, TransportAction};

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::tracker::ThreadState;
use super::traffic::SocketTraffic;
use super::websocket::{self, send_messages};

/// The WebSockets on one connection's streams; `S` identifies a stream.
#[derive(Debug)]
pub(super) struct StreamedSockets<S> {
    /// In request order.
    pub(super) sockets: Vec<StreamedWebSocket<S>>,
    /// Sockets with output, in turns.
    ready: VecDeque<usize>,
    /// Sockets whose handshake is complete.
    open: usize,
}

impl<S> StreamedSockets<S> {
    /// # Errors
    ///
    /// Returns an error if a request header belongs to HTTP/1.1 connections.
    pub(super) fn new<'a>(
        requests: impl Iterator<Item = &'a ClientRequest>,
    ) -> Result<Self, HandshakeMisuse> {
        let sockets = requests.map(|request| Ok(StreamedWebSocket::new(request.clone().extended_connect()?)));
        Ok(Self { sockets: sockets.collect::<Result<_, _>>()?, ready: VecDeque::new(), open: 0 })
    }

    /// Whether all WebSockets are open.
    pub(super) fn is_open(&self) -> bool {
        self.open == self.sockets.len()
    }

    /// Whether both sides have closed all WebSockets.
    pub(super) fn is_over(&self) -> bool {
        self.is_open() && self.sockets.iter().all(StreamedWebSocket::is_over)
    }

    /// Whether both sides have closed a WebSocket.
    pub(super) fn is_socket_over(&self, index: usize) -> bool {
        self.sockets.get(index).is_some_and(StreamedWebSocket::is_over)
    }

    fn session(&mut self, index: usize) -> Option<&mut Session> {
        self.sockets.get_mut(index)?.session.as_deref_mut()
    }

    /// Handles the answer to a WebSocket handshake.
    pub(super) fn open(
        &mut self,
        index: usize,
        head: &ResponseFields<'_>,
        ends: bool,
        config: &Arc<Config>,
        now: Time,
    ) -> Result<(), ConnectionFailure> {
        let Some(socket) = self.sockets.get_mut(index) else { return Ok(()) };
        socket.open(head, ends, config, now)?;
        self.open += 1;
        Ok(())
    }

    /// Starts a WebTransport session's messages, on a stream that the server has opened.
    pub(super) fn open_session(
        &mut self,
        index: usize,
        stream: S,
        config: &Arc<Config>,
        now: Time,
    ) -> Result<(), ConnectionFailure> {
        let Some(socket) = self.sockets.get_mut(index) else { return Ok(()) };
        if socket.stream.is_some() {
            let text = "the server opened a second stream in a session";
            return Err(ConnectionFailure::new(FailureKind::Protocol, text));
        }
        socket.stream = Some(stream);
        let negotiated = Negotiated::tagged(Role::Client);
        let session = Session::with_outbound(negotiated, config.clone(), now, Outbound::default());
        socket.session = Some(Box::new(session));
        self.open += 1;
        Ok(())
    }

    /// Calls a function with a WebSocket's session, if it is open, and its traffic; the session may have output
    /// afterwards.
    pub(super) fn receive(
        &mut self,
        index: usize,
        traffic: &mut [SocketTraffic],
        receive: impl FnOnce(&mut Session, &mut SocketTraffic) -> Result<(), ConnectionFailure>,
    ) -> Result<(), ConnectionFailure> {
        // Without a session it is a rejection's content, or a datagram that has overtaken its session's stream.
        let (Some(session), Some(traffic)) = (self.session(index), traffic.get_mut(index)) else {
            return Ok(());
        };
        // The connection continues until all its WebSockets are closed.
        if let Err(failure) = receive(session, traffic)
            && failure.failure.is_some()
        {
            return Err(ConnectionFailure { socket: index, ..failure });
        }
        self.mark_ready(index);
        Ok(())
    }

    /// Handles the end of the server's side of a stream.
    pub(super) fn end(&mut self, index: usize, now: Time) -> Result<(), ConnectionFailure> {
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.end(now)?;
            self.mark_ready(index);
        }
        Ok(())
    }

    /// The failure if the server permits fewer streams than WebSockets.
    pub(super) fn too_many(&self, permitted: usize) -> ConnectionFailure {
        let sockets = self.sockets.len();
        let text = format!(
            "--sockets-per-connection {sockets} exceeds the streams that the server permits ({permitted})"
        );
        ConnectionFailure::new(FailureKind::Handshake, &text)
    }

    /// Sends a WebSocket's messages as far as allowed.
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

    /// Sends a message before the load's messages.
    pub(super) fn send_first(
        &mut self,
        index: usize,
        text: &str,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) {
        if let Some(session) = self.session(index) {
            websocket::send_first(session, text, thread_state, resources);
            self.mark_ready(index);
        }
    }

    /// Sends Close on each WebSocket. Returns whether answers are pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        let mut is_pending = false;
        for index in 0..self.sockets.len() {
            let Some(session) = self.session(index) else { continue };
            is_pending |= websocket::close(session, thread_state, resources);
            self.mark_ready(index);
        }
        is_pending
    }

    /// Queues a socket for its turn if it has output.
    pub(super) fn mark_ready(&mut self, index: usize) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if socket.has_output() && !socket.is_blocked && !std::mem::replace(&mut socket.is_ready, true) {
            self.ready.push_back(index);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the next socket with output.
    pub(super) fn take_ready(&mut self) -> Option<usize> {
        let index = self.ready.pop_front()?;
        self.sockets[index].is_ready = false;
        Some(index)
    }
}

/// A WebSocket's request, and its session once it is open.
#[derive(Debug)]
pub(super) struct StreamedWebSocket<S> {
    pub(super) request: ExtendedConnect,
    /// The message stream.
    pub(super) stream: Option<S>,
    pub(super) session: Option<Box<Session>>,
    /// Output that moves to the connection as the windows permit.
    pub(super) chain: Option<Box<Chain>>,
    /// The stream's end is queued.
    pub(super) has_ended: bool,
    /// A window is closed.
    pub(super) is_blocked: bool,
    is_ready: bool,
}

impl<S> StreamedWebSocket<S> {
    fn new(request: ExtendedConnect) -> Self {
        let (has_ended, is_blocked, is_ready) = (false, false, false);
        Self { request, stream: None, session: None, chain: None, has_ended, is_blocked, is_ready }
    }

    fn open(
        &mut self,
        head: &ResponseFields<'_>,
        ends: bool,
        config: &Arc<Config>,
        now: Time,
    ) -> Result<(), ConnectionFailure> {
        let refused = |text: &str| ConnectionFailure::new(FailureKind::Handshake, text);
        let fields = head.fields();
        let established = self.request.read_response(head.status(), fields.iter());
        let established = established.map_err(|error| refused(&error.to_string()))?;
        if ends {
            return Err(refused("the server ended the stream of its response"));
        }
        let negotiated = established.negotiated();
        let session = Session::with_outbound(negotiated, config.clone(), now, Outbound::default());
        self.session = Some(Box::new(session));
        Ok(())
    }

    fn end(&mut self, now: Time) -> Result<(), ConnectionFailure> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.receive_end(now);
        match session.take_closed() {
            Some(closed) if closed.cause() != Cause::Local => {
                Err(ConnectionFailure::new(FailureKind::Closed, "the server ended a stream"))
            }
            _ => Ok(()),
        }
    }

    fn has_output(&self) -> bool {
        let Some(session) = &self.session else { return false };
        self.chain.is_some() || session.wants_send() || self.finishes()
    }

    /// Whether only the stream's end is left to send.
    pub(super) fn finishes(&self) -> bool {
        let Some(session) = &self.session else { return false };
        session.transport_action() == TransportAction::Finish && !self.has_ended
    }

    fn is_over(&self) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.transport_action() != TransportAction::Open
                && !session.is_open()
                && session.buffered() == 0
                && !self.has_output()
        })
    }
}
