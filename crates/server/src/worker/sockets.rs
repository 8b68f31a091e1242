//! Sockets on HTTP/2 and HTTP/3 streams: WebSockets and streaming response bodies, many on one connection.
//!
//! A socket has an id like a connection ([`ConnId::for_stream`]): topics, presence, wakers and limits know no
//! difference. The loop ignores such ids: a socket's sends, timers and end go through its connection.
//!
//! ```text
//!   DATA ─▶ Session ─▶ Handler ─▶ Session: chain ─▶ ready ─▶ DATA frames, in turns ─▶ sends of the connection
//! ```

use std::task::Wake as _;

use bytes::BytesMut;
use sinews_engine::{ConnId, Io};
use sinews_proto::Time;
use sinews_session::{Chain, Flow, Outbound, TransportAction};

use super::Worker;
use super::conn::{ClientConn, ConnProtocol, arm_for_handler};
use super::parent::SocketParent;
use super::sessions::session_end;
use crate::framing::LINGER_STOPPING;
use crate::framing::streams::{OpenedSocket, RequestStreams, SocketSlot, StreamKey, StreamReset};
use crate::metrics::ConnMemory;
use crate::shared::WorkerShared;
use crate::socket::{MessageTransport, WebSocketConn};
use crate::timer::{NEVER, arm};

/// A thread's sockets that are on streams.
#[derive(Default)]
pub(super) struct StreamSockets {
    slots: Vec<Option<StreamSocket>>,
    free: Vec<u32>,
    generation: u32,
}

/// A socket on a connection's stream.
struct StreamSocket {
    conn: ClientConn,
    /// Its connection.
    parent: ConnId,
    stream: StreamKey,
    slot: SocketSlot,
    /// Session output that moves to the connection as the windows permit.
    chain: Option<Box<Chain>>,
    /// Input that waits while the socket's publications are queued.
    input: BytesMut,
    /// Received bytes that are not returned to the stream's window, since reads are paused.
    held: u32,
    /// The stream's window is kept closed.
    is_held: bool,
    /// The peer sends no more; the session sees it after its input.
    remote_ended: bool,
    /// The session has seen the end.
    is_end_reported: bool,
    /// END_STREAM is queued.
    ended: bool,
    /// The handler's `drain` is due.
    drains: bool,
    /// A body's queued bytes while the server stops, and when they last became fewer.
    stalled: Option<StalledBody>,
}

/// A body that has to end while the server stops.
struct StalledBody {
    queued: usize,
    since: Time,
}

impl StreamSockets {
    fn add(
        &mut self,
        parent: ConnId,
        stream: StreamKey,
        socket_slot: SocketSlot,
        websocket: Box<WebSocketConn>,
    ) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Each socket takes a stream on a connection, and memory far beyond a slot's bits.
            self.slots.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let id = ConnId::for_stream(slot, self.generation);
        let (memory, protocol) = (ConnMemory::default(), ConnProtocol::WebSocket(websocket));
        let conn = ClientConn { id, memory, reads_paused: false, tag: 0, protocol, tls: None };
        self.slots[slot as usize] = Some(StreamSocket {
            conn,
            parent,
            stream,
            slot: socket_slot,
            chain: None,
            input: BytesMut::new(),
            held: 0,
            is_held: false,
            remote_ended: false,
            is_end_reported: false,
            ended: false,
            drains: false,
            stalled: None,
        });
        id
    }

    fn get(&mut self, id: ConnId) -> Option<&mut StreamSocket> {
        let found = self.slots.get_mut(id.stream_slot()?)?.as_mut();
        found.filter(|found| found.conn.id == id)
    }

    fn remove(&mut self, id: ConnId) -> Option<StreamSocket> {
        self.get(id)?;
        let slot = id.stream_slot()?;
        self.free.push(slot as u32);
        let removed = self.slots[slot].take();
        if self.free.len() == self.slots.len() {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
        removed
    }

    /// Returns the part of a socket that a connection has, too.
    #[cold]
    pub(super) fn conn_mut(&mut self, id: ConnId) -> Option<&mut ClientConn> {
        self.get(id).map(|found| &mut found.conn)
    }

    #[cold]
    pub(super) fn conn_ref(&self, id: ConnId) -> Option<&ClientConn> {
        let found = self.slots.get(id.stream_slot()?)?.as_ref()?;
        Some(&found.conn).filter(|found| found.id == id)
    }

    /// Returns a socket by its id's index.
    pub(super) fn at(&self, index: usize) -> Option<&ClientConn> {
        let slot = index.checked_sub(ConnId::for_stream(0, 0).index())?;
        self.slots.get(slot)?.as_ref().map(|found| &found.conn)
    }

    /// Moves output from sockets and bodies to their connection, a frame from each in turn.
    pub(super) fn fill<S: RequestStreams>(&mut self, streams: &mut S, shared: &mut WorkerShared) {
        while streams.has_capacity() {
            let next = streams.sockets().take_ready();
            let sends_socket = next.is_some();
            if let Some((stream, socket)) = next
                && let Some(found) = self.get(socket)
            {
                found.send_frame(streams, stream, shared);
            }
            let sends_body = streams.send_next_body(shared);
            if !sends_socket && !sends_body {
                break;
            }
        }
    }

    /// Passes a datagram to a session's socket. Returns `false` if it is dropped: reads are paused, or input waits.
    pub(super) fn receive_datagram(
        &mut self,
        socket: ConnId,
        datagram: &mut [u8],
        shared: &mut WorkerShared,
    ) -> bool {
        let Some(found) = self.get(socket) else { return false };
        let waits = found.conn.reads_paused || !found.input.is_empty();
        found
            .websocket()
            .filter(|_| !waits)
            .is_some_and(|websocket| websocket.receive_datagram(datagram, socket, shared))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ClientConn> {
        self.slots.iter().flatten().map(|found| &found.conn)
    }
}

impl StreamSocket {
    fn websocket(&mut self) -> Option<&mut WebSocketConn> {
        match &mut self.conn.protocol {
            ConnProtocol::WebSocket(websocket) => Some(websocket),
            _ => None,
        }
    }

    /// Returns whether reads are paused, by the handler, a long queue or queued publications.
    fn is_paused(&mut self) -> bool {
        self.conn.reads_paused || self.websocket().is_some_and(|websocket| websocket.session.is_paused())
    }

    /// Passes input to the session.
    fn receive(&mut self, data: &mut [u8], shared: &mut WorkerShared) {
        let id = self.conn.id;
        if let Some(websocket) = self.websocket() {
            // The window tells the peer.
            let _: Flow = websocket.receive(data, id, shared);
        }
    }

    /// Passes waiting input, and the input's end, to the session.
    fn continue_input(&mut self, shared: &mut WorkerShared) {
        if !self.input.is_empty() && !self.conn.reads_paused {
            let mut input = std::mem::take(&mut self.input);
            self.receive(&mut input, shared);
        }
        if self.remote_ended && !self.is_end_reported && self.input.is_empty() && !self.is_paused() {
            self.is_end_reported = true;
            if let Some(websocket) = self.websocket() {
                websocket.session.receive_end(shared.services.now);
            }
        }
    }

    /// Returns whether the socket has a frame to send, if the windows permit.
    fn has_output(&self) -> bool {
        let ConnProtocol::WebSocket(websocket) = &self.conn.protocol else { return false };
        self.chain.is_some() || websocket.session.wants_send() || websocket.has_finished() && !self.ended
    }

    /// Notes a body's progress while the server stops. Returns when the client is given up.
    fn note_stall(&mut self, now: Time) -> Time {
        let has_output = self.has_output();
        let Some(websocket) = self.websocket().filter(|websocket| websocket.is_body() && has_output) else {
            return NEVER;
        };
        let queued = websocket.buffered();
        match &self.stalled {
            Some(stalled) if stalled.queued <= queued => {}
            _ => self.stalled = Some(StalledBody { queued, since: now }),
        }
        self.stalled.as_ref().map_or(NEVER, |stalled| stalled.since + LINGER_STOPPING)
    }

    /// Moves one output frame to the connection.
    fn send_frame<S: RequestStreams>(&mut self, streams: &mut S, stream: S::Id, shared: &mut WorkerShared) {
        let (id, now) = (self.conn.id, shared.services.now);
        let ConnProtocol::WebSocket(websocket) = &mut self.conn.protocol else { return };
        let session = &mut websocket.session;
        let finishes = session.transport_action() == TransportAction::Finish;
        let chain = self.chain.take().or_else(|| session.start_send());
        let Some(mut chain) = chain else {
            if finishes && !self.ended {
                let end = streams.send_chain(stream, &mut Chain::default(), true, shared);
                self.ended = !matches!(end, Ok(None));
                streams.sockets().moved.push(id);
            }
            return;
        };
        // Nothing is queued behind the chain.
        let ends = finishes && session.buffered() == chain.len();
        match streams.send_chain(stream, &mut chain, ends, shared) {
            Ok(Some(frame)) => {
                session.progressed(frame.bytes, now);
                self.ended |= frame.ends;
            }
            Ok(None) => {
                self.chain = Some(chain);
                return;
            }
            // Its reset event removes the socket.
            Err(()) => return self.chain = Some(chain),
        }
        if chain.is_empty() {
            self.drains |= session.finish_send(chain, &mut shared.resources, now);
            if self.drains || self.ended || websocket.wants_resume() {
                streams.sockets().moved.push(id);
            }
        } else {
            self.chain = Some(chain);
        }
        if self.has_output() {
            streams.sockets().mark_ready(stream);
        }
    }
}

impl Worker {
    /// Creates a socket on a stream; its answer is queued.
    pub(super) fn open_socket(&mut self, io: &mut Io, parent: ConnId, opened: OpenedSocket) {
        let OpenedSocket { stream, upgrade, ends, slot } = opened;
        let now = self.time(io);
        let Some((protocol, shared)) = self.conn_and_shared(parent) else { return };
        let counters = &shared.services.counters;
        let is_session = matches!(upgrade.transport, MessageTransport::Session);
        let (peer, opened) = match protocol {
            ConnProtocol::Http2(http2) => (http2.table.peer, &counters.http2_websockets),
            ConnProtocol::Http3(http3) if is_session && stream.is_by_client() => {
                (http3.table.peer, &counters.webtransport_streams)
            }
            ConnProtocol::Http3(http3) if is_session => (http3.table.peer, &counters.webtransport_sessions),
            ConnProtocol::Http3(http3) => (http3.table.peer, &counters.http3_websockets),
            _ => return,
        };
        let websocket = Box::new(WebSocketConn::new(upgrade, Outbound::default(), peer, now));
        if websocket.is_body() {
            counters.streaming.add(1);
        } else {
            counters.handshakes.add(1);
            opened.add(1);
        }
        let is_body = websocket.is_body();
        let socket = self.sockets.add(parent, stream, slot, websocket);
        if let Some(mut found) = self.socket_parent(parent) {
            // A ping behind the system's send buffer, some MiB, would reach a slow client too late.
            if found.is_first_on_tcp() {
                io.limit_unsent(parent);
            }
            found.add(stream, socket);
        }
        if let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(socket) {
            websocket.open(socket, shared);
            if let Some(deadline) = websocket.deadline() {
                arm_for_handler(websocket, io, socket, deadline, shared.services.epoch);
            }
        }
        // A request's end does not end the client that reads its answer.
        if let Some(found) = self.sockets.get(socket) {
            found.remote_ended = ends && !is_body;
        }
        if self.shared.services.is_stopping() {
            self.close_websocket(socket);
        }
        self.flush_conn(io, socket);
    }

    /// Handles DATA for a socket.
    pub(super) fn receive_socket(&mut self, io: &mut Io, socket: ConnId, data: &mut [u8], ends: bool) {
        self.time(io);
        let Self { sockets, shared, .. } = self;
        let Some(found) = sockets.get(socket) else { return };
        // The stream's window bounds what it holds.
        found.held = found.held.saturating_add(data.len() as u32);
        found.remote_ended |= ends;
        if found.conn.reads_paused || !found.input.is_empty() {
            found.input.extend_from_slice(data);
        } else {
            found.receive(data, shared);
        }
        self.flush_conn(io, socket);
    }

    /// Applies a socket's state after an event.
    pub(super) fn flush_socket(&mut self, io: &mut Io, socket: ConnId) {
        let Self { conns, sockets, quic, shared, .. } = self;
        let Some(found) = sockets.get(socket) else { return self.mark_http3(socket) };
        found.continue_input(shared);
        let (parent_id, stream) = (found.parent, found.stream);
        let Some(mut parent) = SocketParent::find(conns, &mut quic.conns, parent_id) else { return };
        let is_paused = found.is_paused();
        let stalls_at =
            if shared.services.is_stopping() { found.note_stall(shared.services.now) } else { NEVER };
        let Some(websocket) = found.websocket() else { return };
        websocket.armed = websocket.armed.min(stalls_at);
        if websocket.has_backlog() {
            websocket.drain_backlog(socket, shared);
        }
        websocket.report_end(socket, shared);
        if let Some(deadline) = websocket.session.deadline() {
            websocket.armed = websocket.armed.min(deadline);
        }
        let action = websocket.session.transport_action();
        let is_body = websocket.is_body();
        let memory = ConnMemory::new(websocket.buffered(), websocket.session.incomplete());
        if is_body && parent.note_response(stream, websocket.buffered()) {
            shared.services.tasks.waker_of(parent_id).wake();
        }
        let due = parent.due();
        *due = (*due).min(websocket.armed);
        if found.has_output() {
            parent.mark_ready(stream);
        }
        if is_paused && !found.is_held {
            found.is_held = true;
            parent.hold(stream);
        } else if !is_paused && (found.held > 0 || found.is_held) {
            let was_held = std::mem::take(&mut found.is_held);
            parent.release(stream, std::mem::take(&mut found.held) as usize, was_held);
        }
        let (ended, held) = (found.ended, found.input.capacity());
        match parent {
            SocketParent::Http2(http2) => {
                if http2.has_failed_outside_of_input() {
                    return self.flush_conn_alone(io, parent_id);
                }
                if http2.sockets.has_ready() || http2.wants_control() {
                    io.send(parent_id);
                }
                let due = http2.sockets.due;
                arm(io, parent_id, &mut http2.armed, due, shared.services.epoch);
            }
            SocketParent::Http3(_) => self.mark_http3(parent_id),
        }
        let is_sent = action == TransportAction::Finish && is_body && ended;
        if is_sent || action == TransportAction::Drop {
            return self.remove_socket(io, socket);
        }
        let memory = self.large_conns.counted_memory(socket, memory.with_incomplete(held));
        let Some(found) = self.sockets.get(socket) else { return };
        let before = std::mem::replace(&mut found.conn.memory, memory);
        self.update_memory(io, socket, before, memory);
    }

    /// Removes a socket, and resets its stream unless both sides have ended it.
    pub(super) fn remove_socket(&mut self, io: &mut Io, socket: ConnId) {
        let now = self.time(io);
        let Some(mut removed) = self.sockets.remove(socket) else { return };
        self.remove_conn(socket, removed.conn.memory);
        let Self { conns, quic, shared, .. } = self;
        let (ended, chain) = (removed.ended, removed.chain.take());
        let is_finished = removed.is_end_reported && chain.is_none();
        let (slot, parent) = (removed.slot, removed.parent);
        let Some(websocket) = removed.websocket() else { return };
        let is_body = websocket.is_body();
        // Both sides have ended in order: END_STREAM is TCP's end, and a reset would be its reset.
        let ends = is_finished && !ended && websocket.buffered() == 0;
        if let Some(chain) = chain {
            websocket.session.finish_send(chain, &mut shared.resources, now);
        }
        if is_body && ended {
            // The session owns no bytes any more.
            let _ = websocket.finish_body(socket, shared);
        }
        websocket.session.receive_end(now);
        if let Some(closed) = websocket.session.take_closed() {
            websocket.close(&closed, socket, shared);
        }
        match slot {
            SocketSlot::Own => shared.services.gate.release(websocket.peer().ip()),
            SocketSlot::Connection => {
                if let Some(mut parent) = SocketParent::find(conns, &mut quic.conns, parent) {
                    parent.return_slot();
                }
            }
            SocketSlot::Rejected => shared.rejected_sockets -= 1,
        }
        shared.services.tasks.remove(socket);
        self.freed += 1;
        let session_end = websocket.is_session().then(|| session_end(websocket, is_finished));
        let parent = SocketParent::find(conns, &mut quic.conns, removed.parent);
        if let (Some(mut parent), Some(end)) = (parent, session_end) {
            if ends {
                parent.end_stream(removed.stream, shared);
            }
            parent.remove_session(removed.stream, ended || ends, end, now);
        } else if let Some(mut parent) = SocketParent::find(conns, &mut quic.conns, removed.parent) {
            let reset = if is_body && ended { StreamReset::Unneeded } else { StreamReset::Cancelled };
            if ends {
                parent.end_stream(removed.stream, shared);
            }
            parent.remove_socket(removed.stream, reset, now);
            if is_body && parent.has_waiting() {
                shared.services.tasks.waker_of(removed.parent).wake();
            }
        }
        // The connection may have waited for its last stream.
        self.flush_conn_alone(io, removed.parent);
    }

    /// Ends all sockets on a connection that closes.
    pub(super) fn remove_sockets(&mut self, io: &mut Io, sockets: Vec<ConnId>) {
        for socket in sockets {
            self.remove_socket(io, socket);
            self.flush_conn(io, socket);
        }
    }

    /// Ends the input of all sockets on a connection whose peer has closed its side.
    pub(super) fn end_sockets(&mut self, io: &mut Io, sockets: Vec<ConnId>) {
        for socket in sockets {
            if let Some(found) = self.sockets.get(socket) {
                found.remote_ended = true;
            }
            self.flush_conn(io, socket);
        }
    }

    /// Moves output from sockets and bodies to the connection, a frame from each in turn.
    pub(super) fn fill_http2(&mut self, conn: ConnId) {
        let Self { conns, sockets, quic, shared, .. } = self;
        let Some(SocketParent::Http2(http2)) = SocketParent::find(conns, &mut quic.conns, conn) else {
            return;
        };
        if http2.sockets.has_ready() && http2.starts_frames(shared) {
            sockets.fill(http2, shared);
        }
    }

    /// Handles the completion of a send that took a socket's output.
    pub(super) fn sent_socket(&mut self, io: &mut Io, socket: ConnId) {
        let Self { sockets, shared, .. } = self;
        let Some(found) = sockets.get(socket) else { return };
        let (drains, reads_paused) = (std::mem::take(&mut found.drains), found.conn.reads_paused);
        let Some(websocket) = found.websocket() else { return };
        if drains {
            websocket.drain(socket, shared);
        }
        if !reads_paused {
            websocket.continue_reads(io, socket, shared);
        }
        self.flush_conn(io, socket);
    }

    /// Handles the timers of a connection's sockets.
    pub(super) fn time_sockets(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let is_stopping = self.shared.services.is_stopping();
        let Some(mut parent) = self.socket_parent(conn) else { return };
        if *parent.due() > now {
            return;
        }
        *parent.due() = NEVER;
        let mut due = NEVER;
        for socket in parent.sockets() {
            if is_stopping
                && let Some(found) = self.sockets.get(socket)
                && found.note_stall(now) <= now
            {
                // The client takes no body bytes.
                self.remove_sockets(io, vec![socket]);
                continue;
            }
            match self.sockets.get(socket).and_then(StreamSocket::websocket).map(|found| found.armed) {
                Some(armed) if armed <= now => sinews_engine::App::timer(self, io, socket),
                Some(armed) => due = due.min(armed),
                None => {}
            }
        }
        if let Some(mut parent) = self.socket_parent(conn) {
            let first = parent.due();
            *first = (*first).min(due);
        }
    }

    fn socket_parent(&mut self, conn: ConnId) -> Option<SocketParent<'_>> {
        SocketParent::find(&mut self.conns, &mut self.quic.conns, conn)
    }
}
