//! A worker: the state of one thread, which its event loop calls.
//!
//! The worker owns the connections and the state that they share. It lends both to the protocol of a connection:
//! `(conn, &mut WorkerShared)`.

mod admission;
mod app;
mod conn;
mod delivery;
mod http;
mod http2;
mod http3;
mod keyed;
mod large_conns;
mod memory;
mod parent;
pub(crate) mod process_link;
mod publish;
mod quic;
mod quic_routing;
mod rejected;
mod runs;
mod sessions;
mod sockets;
mod stop;
mod stop_state;
#[cfg(test)]
mod tests;
mod tls;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_engine::{self as engine, ConnId, Io};
use sinews_http::h2::FieldBuffer;
use sinews_proto::Time;
use sinews_quic::QuicEndpoint;
use sinews_session::Resources;

use self::conn::{ClientConn, ConnProtocol, flush_http, flush_http2, flush_websocket};
use self::delivery::DeliveryState;
use self::http::end_body;
use self::large_conns::LargeConns;
use self::quic::QuicState;
pub(crate) use self::quic_routing::QuicRouting;
use self::sockets::StreamSockets;
pub(crate) use self::stop_state::StopTimes;
use self::stop_state::{StopPhase, StopState};
use crate::appends::{AppendQueue, Appends};
use crate::listen::ListenerProtocol;
use crate::metrics::ConnMemory;
use crate::router::Router;
use crate::shared::{Services, WorkerShared};
use crate::topics::mail::StopLevel;

/// State of one event loop.
pub(crate) struct Worker {
    /// By the index of the connection.
    conns: Vec<Option<ClientConn>>,
    sockets: StreamSockets,
    quic: QuicState,
    shared: WorkerShared,
    appends: Appends,
    /// Number of this thread.
    number: usize,
    stop: StopState,
    delivery: DeliveryState,
    large_conns: LargeConns,
    /// By the listener.
    listener_protocols: Arc<[ListenerProtocol]>,
    /// Plaintext of received TLS records.
    plaintext: Vec<u8>,
    /// Plaintext of a record to be sent.
    scratch: Vec<u8>,
    /// Number of connections that are being rejected with an answer.
    rejecting: usize,
    /// Due time of the next TLS handshake with a connection that is being rejected, in nanoseconds since the epoch.
    tls_rejection_due: u64,
    /// The turn's time on the loop's clock.
    turn: Instant,
    /// The loop's timer for releasing unused memory is set.
    releasing: bool,
    /// Spare buffers freed, handshakes completed, and connections closed since free memory was last returned.
    freed: usize,
}

/// Setup of a worker, which is built on its own thread.
pub(crate) struct WorkerSetup {
    pub(crate) router: Arc<Router>,
    pub(crate) services: Services,
    pub(crate) stop_times: StopTimes,
    pub(crate) stop: Arc<StopLevel>,
    pub(crate) appends: Arc<AppendQueue>,
    pub(crate) number: usize,
    pub(crate) listener_protocols: Arc<[ListenerProtocol]>,
    /// One for each datagram socket of the loop.
    pub(crate) endpoints: Vec<QuicEndpoint>,
    pub(crate) routing: Arc<QuicRouting>,
}

impl Worker {
    pub(crate) fn new(setup: WorkerSetup) -> Self {
        let WorkerSetup { router, services, stop_times, stop, appends, number, .. } = setup;
        Self {
            conns: Vec::new(),
            sockets: StreamSockets::default(),
            quic: QuicState::new(setup.routing, setup.endpoints),
            turn: services.epoch,
            shared: WorkerShared {
                router: Rc::new(router),
                resources: Resources::new(),
                fields: FieldBuffer::new(),
                rejected_sockets: 0,
                services,
            },
            appends: Appends::new(appends),
            number,
            stop: StopState::new(stop_times, stop),
            delivery: DeliveryState::default(),
            large_conns: LargeConns::default(),
            listener_protocols: setup.listener_protocols,
            plaintext: Vec::new(),
            scratch: Vec::new(),
            rejecting: 0,
            tls_rejection_due: 0,
            releasing: false,
            freed: 0,
        }
    }

    /// Returns the turn's time, computed once per turn.
    #[inline]
    fn time(&mut self, io: &Io) -> Time {
        let services = &mut self.shared.services;
        if self.turn != io.now() {
            self.turn = io.now();
            services.now = Time::ZERO + io.now().saturating_duration_since(services.epoch);
            self.delivery.left = services.topics.config().deliveries_per_turn;
        }
        services.now
    }

    fn conn_mut(&mut self, conn: ConnId) -> Option<&mut ClientConn> {
        match self.conns.get_mut(conn.index()) {
            Some(found) => found.as_mut().filter(|found| found.id == conn),
            None => self.sockets.conn_mut(conn).or_else(|| self.quic.conns.get(conn)),
        }
    }

    fn conn_ref(&self, conn: ConnId) -> Option<&ClientConn> {
        match self.conns.get(conn.index()) {
            Some(found) => found.as_ref().filter(|found| found.id == conn),
            None => self.sockets.conn_ref(conn).or_else(|| self.quic.conns.get_ref(conn)),
        }
    }

    /// Returns the connection's protocol and the state that it shares with others.
    fn conn_and_shared(&mut self, conn: ConnId) -> Option<(&mut ConnProtocol, &mut WorkerShared)> {
        let found = match self.conns.get_mut(conn.index()) {
            Some(found) => found.as_mut().filter(|found| found.id == conn)?,
            None => self.sockets.conn_mut(conn).or_else(|| self.quic.conns.get(conn))?,
        };
        self.shared.services.tag = found.tag;
        self.shared.services.encrypted = match &found.tls {
            Some(tls) => {
                self.shared.services.http3_port = tls.http3_port();
                true
            }
            None => {
                // A client of HTTP/3 needs no announcement of it.
                self.shared.services.http3_port = None;
                matches!(found.protocol, ConnProtocol::Http3(_))
            }
        };
        Some((&mut found.protocol, &mut self.shared))
    }

    /// Applies the state of a connection after an event, then delivers its publications.
    #[inline]
    pub(super) fn flush_conn(&mut self, io: &mut Io, conn: ConnId) {
        self.flush_conn_alone(io, conn);
        if self.shared.services.topics.has_published() {
            self.note_publisher(io, conn);
        }
        if self.shared.services.topics.has_presence_to_publish(io.now()) {
            self.send_presence(io);
        }
        self.shared
            .services
            .counters
            .sent(self.shared.resources.traffic(), self.shared.services.topics.counters_ref());
        let has_unused = self.shared.resources.holds_spares() || self.freed >= FREED_MIN;
        if !self.releasing && has_unused && matches!(self.stop.phase, StopPhase::Serving) {
            self.releasing = true;
            io.set_app_timer(io.now() + RELEASE_INTERVAL);
        }
    }

    #[inline]
    pub(super) fn flush_conn_alone(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some(found) = self.conns.get_mut(conn.index()).and_then(Option::as_mut) else {
            return self.flush_socket(io, conn);
        };
        if let ConnProtocol::WebSocket(websocket) = &found.protocol
            && websocket.is_body()
            && websocket.has_finished()
            && found.id == conn
        {
            end_body(&mut found.protocol, conn, &mut self.shared);
        }
        let (mut has_failed, mut stuck) = (false, Vec::new());
        let memory = match &mut found.protocol {
            _ if found.id != conn => return,
            ConnProtocol::WebSocket(websocket) => {
                flush_websocket(websocket, io, conn, &mut self.shared);
                let memory = ConnMemory::new(websocket.buffered(), websocket.session.incomplete());
                if let Some(bytes) = memory.changed_queue(found.memory) {
                    websocket.report_queue(bytes);
                }
                memory
            }
            ConnProtocol::Http(http) => {
                // If the client may send no further request, the sent answer was the last.
                let may_ask = self.stop.linger_left.is_some() || self.stop.handed_over && http.is_new();
                if self.shared.services.is_stopping() && !may_ask && http.is_idle() {
                    http.end_idle();
                }
                flush_http(http, io, conn, &self.shared.services);
                ConnMemory::new(http.outbound.len(), http.incomplete())
            }
            ConnProtocol::Http2(http2) => {
                // GOAWAY announces the end, so that no request in transit is lost (RFC 9113 section 6.8).
                if self.shared.services.is_stopping() {
                    http2.stop(self.shared.services.now);
                }
                flush_http2(http2, io, conn, found.reads_paused, &mut self.shared);
                has_failed = http2.has_failed() && !http2.sockets.is_empty();
                stuck = http2.take_stuck_sockets();
                ConnMemory::new(http2.queued(), http2.incomplete())
            }
            ConnProtocol::Http3(_) | ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_) => return,
        };
        let memory = self.large_conns.counted_memory(conn, found.update_tls(memory));
        if found.is_unused() {
            io.close(conn);
        }
        let before = std::mem::replace(&mut found.memory, memory);
        self.update_memory(io, conn, before, memory);
        if has_failed {
            self.end_failed(io, conn);
        } else if !stuck.is_empty() {
            self.remove_sockets(io, stuck);
        }
    }

    /// Returns freed memory to the system, if it is much: the allocator would keep it between used blocks. It locks
    /// the allocator, so another thread does it.
    pub(super) fn return_memory(&mut self) {
        if self.freed >= FREED_MIN
            && self.shared.services.tasks.pool().start(engine::release_free_memory).is_ok()
        {
            self.freed = 0;
        }
    }
}

/// Minimum number of freed buffers, handshakes or closed connections to return memory for: a buffer has up to 64 KiB,
/// tables that grow with connections free their former memory, and under low load they are mostly fewer.
const FREED_MIN: usize = 64;

/// How long unused memory of messages is retained: it is returned after one to two intervals.
const RELEASE_INTERVAL: Duration = Duration::from_secs(2);
