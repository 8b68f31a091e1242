//! One connection of a worker: its protocol, and TLS below it.

use std::io::IoSlice;
use std::time::Instant;

use sinews_engine::{self as engine, ConnId, Io};
use sinews_proto::Time;
use sinews_session::{Chain, TransportAction};

use crate::framing::LINGER_STOPPING;
use crate::framing::h1::H1Conn;
use crate::framing::h2::H2Conn;
use crate::framing::h3::H3Conn;
use crate::metrics::ConnMemory;
use crate::proxy::ProxyProtocolHeader;
use crate::shared::{Services, WorkerShared};
use crate::socket::WebSocketConn;
use crate::timer::arm;
use crate::tls::TlsConn;
use crate::worker::rejected::RejectedConn;

pub(super) struct ClientConn {
    pub(super) id: ConnId,
    /// Memory as last counted.
    pub(super) memory: ConnMemory,
    /// Reads are paused, since its publications are queued.
    pub(super) reads_paused: bool,
    /// Tag of the listener.
    pub(super) tag: u8,
    pub(super) protocol: ConnProtocol,
    /// TLS between the loop and the protocol.
    pub(super) tls: Option<Box<TlsConn>>,
}

pub(super) enum ConnProtocol {
    Http(Box<H1Conn>),
    Http2(Box<H2Conn>),
    Http3(Box<H3Conn>),
    WebSocket(Box<WebSocketConn>),
    Rejected(Box<RejectedConn>),
    /// The PROXY header is pending.
    ProxyHeader(Box<ProxyProtocolHeader>),
}

impl ConnProtocol {
    /// Returns all queued output.
    #[inline]
    pub(super) fn start_send(&mut self) -> Option<Box<Chain>> {
        match self {
            Self::WebSocket(websocket) => websocket.session.start_send(),
            Self::Http(http) => http.outbound.start(),
            Self::Http2(http2) => http2.outbound.start(),
            Self::Rejected(rejected) => rejected.outbound.start(),
            Self::Http3(_) | Self::ProxyHeader(_) => None,
        }
    }
}

/// Chain of a session in the form that the loop sends.
pub(crate) struct OutgoingChain(pub(super) Box<Chain>);

impl engine::SendChain for OutgoingChain {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.0.slices(out)
    }

    fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }
}

impl ClientConn {
    /// Passes the protocol's state to TLS, and adds the memory of TLS.
    pub(super) fn update_tls(&mut self, memory: ConnMemory) -> ConnMemory {
        let Some(tls) = &mut self.tls else { return memory };
        let last = match &self.protocol {
            ConnProtocol::WebSocket(websocket) => websocket.has_finished(),
            ConnProtocol::Http(http) => http.is_finished(),
            ConnProtocol::Http2(http2) => http2.is_finished(),
            ConnProtocol::Http3(_) | ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_) => false,
        };
        if last {
            tls.finish();
        }
        memory.with_incomplete(tls.incomplete())
    }

    /// Returns whether an idle connection was ended and close_notify has left: the peer's end is not awaited.
    pub(super) fn is_unused(&self) -> bool {
        matches!(&self.protocol, ConnProtocol::Http(http) if http.has_ended_idle())
            && self.tls.as_ref().is_none_or(|tls| tls.has_left())
    }
}

#[inline]
pub(super) fn flush_websocket(
    websocket: &mut WebSocketConn,
    io: &mut Io,
    conn: ConnId,
    shared: &mut WorkerShared,
) {
    if websocket.has_backlog() {
        websocket.drain_backlog(conn, shared);
    }
    websocket.report_end(conn, shared);
    if websocket.session.wants_send() {
        io.send(conn);
    }
    match websocket.session.transport_action() {
        TransportAction::Open | TransportAction::AwaitEnd => {}
        TransportAction::Finish => {
            // Repeated calls have no effect.
            io.shutdown(conn);
            if shared.services.is_stopping() && websocket.buffered() == 0 {
                let deadline = shared.services.now + LINGER_STOPPING;
                arm(io, conn, &mut websocket.armed, deadline, shared.services.epoch);
            }
        }
        TransportAction::Drop => io.close(conn),
    }
    if let Some(deadline) = websocket.session.deadline() {
        arm(io, conn, &mut websocket.armed, deadline, shared.services.epoch);
    }
}

/// Sets the loop's timer no later than the handler's deadline.
pub(super) fn arm_for_handler(
    websocket: &mut WebSocketConn,
    io: &mut Io,
    conn: ConnId,
    deadline: Instant,
    epoch: Instant,
) {
    let deadline = Time::ZERO + deadline.saturating_duration_since(epoch);
    arm(io, conn, &mut websocket.armed, deadline, epoch);
}

pub(super) fn flush_http(http: &mut H1Conn, io: &mut Io, conn: ConnId, services: &Services) {
    if http.outbound.wants_send() {
        io.send(conn);
    }
    if http.is_finished() {
        // Repeated calls have no effect.
        io.shutdown(conn);
    }
    let deadline = http.deadline(&services.http, services.stopping_since);
    arm(io, conn, &mut http.armed, deadline, services.epoch);
}

pub(super) fn flush_http2(
    http2: &mut H2Conn,
    io: &mut Io,
    conn: ConnId,
    reads_paused: bool,
    shared: &mut WorkerShared,
) {
    http2.note_failure(shared);
    http2.queue_control(shared);
    if http2.outbound.wants_send() || http2.sockets.has_ready() {
        io.send(conn);
    }
    if http2.is_finished() {
        // Repeated calls have no effect.
        io.shutdown(conn);
    }
    let deadline = http2.deadline(&shared.services.http, reads_paused).min(http2.sockets.due);
    arm(io, conn, &mut http2.armed, deadline, shared.services.epoch);
}

#[cfg(test)]
mod sizes {
    use super::*;

    /// The engine's part, 80 bytes with the chain in flight, has its own test in the engine; `tests/measures`
    /// measures the total.
    #[test]
    fn idle_websocket_state_is_small() {
        let engine = 80;
        let server = size_of::<Option<ClientConn>>() + size_of::<WebSocketConn>();
        assert!(engine + server <= 376, "{engine} and {server} bytes");
        // glibc's allocator adds 8 bytes and rounds to 16.
        assert!(size_of::<WebSocketConn>() <= 256 - 8);
    }

    #[test]
    fn http_connection_state_is_small() {
        let http = size_of::<Option<ClientConn>>() + size_of::<H1Conn>();
        assert!(http <= 256, "{http} bytes");
    }
}
