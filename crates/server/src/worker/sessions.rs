//! Sessions of WebTransport: messages beside the stream of their socket.

use sinews_engine::{ConnId, Io};
use sinews_http::h3::QuicStreamId;
use sinews_quic::DatagramSend;

use super::Worker;
use super::conn::ConnProtocol;
use super::sockets::StreamSockets;
use crate::framing::h3::{H3Streams, MessageStream, SessionEnd};
use crate::shared::WorkerShared;
use crate::socket::WebSocketConn;

impl StreamSockets {
    /// Sends publications as datagrams, as far as the congestion window permits. The session that finds it closed is
    /// the last next time: a busy session does not delay the others.
    pub(super) fn fill_datagrams(&mut self, streams: &mut H3Streams<'_, '_>, shared: &mut WorkerShared) {
        for at in 0..streams.conn.sessions.len() {
            let MessageStream { session, stream, .. } = streams.conn.sessions[at];
            let socket = streams.conn.sockets.get(stream);
            let Some(found) = socket.and_then(|socket| self.conn_mut(socket)) else { continue };
            let ConnProtocol::WebSocket(websocket) = &mut found.protocol else { continue };
            let FilledSession { has_oversized, is_blocked } =
                fill_session(websocket, streams, session, shared);
            if has_oversized {
                streams.conn.sockets.mark_ready(stream);
            }
            if is_blocked {
                return streams.conn.sessions.rotate_left(at + 1);
            }
        }
    }
}

/// What a session has sent.
struct FilledSession {
    /// Some did not fit into a datagram: they use the stream.
    has_oversized: bool,
    /// Others wait for the congestion window.
    is_blocked: bool,
}

/// Sends publications of one session.
fn fill_session(
    websocket: &mut WebSocketConn,
    streams: &mut H3Streams<'_, '_>,
    session: QuicStreamId,
    shared: &mut WorkerShared,
) -> FilledSession {
    let mut is_blocked = false;
    let Some(datagrams) = websocket.datagrams() else {
        return FilledSession { has_oversized: false, is_blocked };
    };
    let (resources, services) = (&mut shared.resources, &mut shared.services);
    services.counters.webtransport_oversized.add(datagrams.take_oversized());
    // The first byte is the kind of the message.
    datagrams.set_max(streams.exchanges.datagram_max(session).saturating_sub(1));
    let mut oversized = Vec::new();
    while let Some(message) = datagrams.front() {
        let (kind, payload) = (message.kind(), message.payload());
        match streams.exchanges.send_datagram(session, &[&[kind_byte(kind)], payload]) {
            Ok(DatagramSend::Sent) => {
                resources.count_sent(1, payload.len() as u64);
                services.topics.counters.delivered += 1;
                services.counters.webtransport_datagrams_sent.add(1);
                datagrams.pop();
            }
            Ok(DatagramSend::Blocked) => {
                is_blocked = true;
                break;
            }
            Ok(DatagramSend::TooLarge) => {
                services.counters.webtransport_oversized.add(1);
                oversized.extend(datagrams.pop());
            }
            // The session has ended.
            Err(_) => drop(datagrams.pop()),
        }
    }
    for message in &oversized {
        websocket.queue_oversized(message, shared);
    }
    FilledSession { has_oversized: !oversized.is_empty(), is_blocked }
}

/// The first byte of a datagram, as on the stream.
const fn kind_byte(kind: sinews_proto::Kind) -> u8 {
    match kind {
        sinews_proto::Kind::Text => 1,
        sinews_proto::Kind::Binary => 2,
    }
}

/// Returns how the session of a socket that is removed ends.
pub(super) fn session_end(websocket: &WebSocketConn, is_finished: bool) -> SessionEnd {
    match websocket.session.written_close() {
        Some((code, reason)) => SessionEnd::Closed(code.as_u16().into(), reason.into()),
        None if is_finished => SessionEnd::Finished,
        None => SessionEnd::Cancelled,
    }
}

impl Worker {
    /// Closes the message streams of the server whose clients use streams of their own instead: they may not read the
    /// other ones.
    pub(super) fn close_replaced(&mut self, io: &mut Io, conn: ConnId) {
        let Some(found) = self.quic.conns.get(conn) else { return };
        let ConnProtocol::Http3(http3) = &mut found.protocol else { return };
        for socket in http3.take_replaced() {
            if let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(socket) {
                websocket.close_replaced(shared);
            }
            self.flush_conn(io, socket);
        }
    }

    /// Handles a datagram of a session.
    pub(super) fn receive_datagram(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        session: QuicStreamId,
        payload: &[u8],
    ) {
        self.time(io);
        let socket = self.session_socket(conn, session);
        let counters = &self.shared.services.counters;
        counters.webtransport_datagrams_received.add(1);
        let Some(socket) = socket else { return counters.webtransport_datagrams_dropped.add(1) };
        // Handlers get their messages as bytes that they may change.
        let mut datagram = std::mem::take(&mut self.scratch);
        datagram.clear();
        datagram.extend_from_slice(payload);
        let Self { sockets, shared, .. } = self;
        let is_taken = sockets.receive_datagram(socket, &mut datagram, shared);
        if !is_taken {
            shared.services.counters.webtransport_datagrams_dropped.add(1);
        }
        self.scratch = datagram;
        self.flush_conn(io, socket);
    }

    fn session_socket(&mut self, conn: ConnId, session: QuicStreamId) -> Option<ConnId> {
        let found = self.quic.conns.get(conn)?;
        let ConnProtocol::Http3(http3) = &found.protocol else { return None };
        http3.socket_of_session(session)
    }
}
