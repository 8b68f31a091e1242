//! Events of the loop.

use std::time::Duration;

use bytes::Bytes;
use sinews_engine::{self as engine, App, Append, ConnId, ConnectionOrigin, DatagramSocket, Io, LargeBuffer};
use sinews_session::Flow;

use super::conn::{ClientConn, ConnProtocol, OutgoingChain, arm_for_handler};
use super::stop_state::StopPhase;
use super::{FREED_MIN, RELEASE_INTERVAL, Worker};
use crate::metrics::ConnMemory;
use crate::proxy::{HEADER_FAULTS, HeaderFault, ProxyProtocolHeader};
use crate::timer::NEVER;
use crate::topics::mail::{Mail, Stop};

impl App for Worker {
    type Chain = OutgoingChain;
    type Mail = Mail;

    fn started(&mut self, io: &mut Io) {
        self.appends.begin(self.number);
        self.shared.services.topics.start_presence();
        self.send_presence(io);
    }

    fn appended(&mut self, io: &mut Io, append: Append, result: std::io::Result<()>) {
        self.appends.appended(io, &append, result);
    }

    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: ConnectionOrigin) {
        self.time(io);
        let listener = self.listener_protocols.get(from.listener);
        let (is_proxied, tag) = listener.map_or((false, 0), |protocol| (protocol.proxy, protocol.tag));
        let (protocol, tls) = if is_proxied {
            io.set_timer(conn, io.now() + self.shared.services.http.head_timeout);
            (ConnProtocol::ProxyHeader(Box::new(ProxyProtocolHeader::new(from.peer, from.listener))), None)
        } else {
            self.admit(io, conn, from.peer, from.listener)
        };
        if self.conns.len() <= conn.index() {
            self.conns.resize_with(conn.index() + 1, || None);
        }
        self.conns[conn.index()] = Some(ClientConn {
            id: conn,
            memory: ConnMemory::default(),
            reads_paused: false,
            tag,
            protocol,
            tls,
        });
        self.shared.services.counters.accepted.add(1);
        self.start_messages(io, conn, from.listener);
        self.flush_conn(io, conn);
    }

    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> engine::Flow {
        // The answer follows messages that wait for a further step of the turn's end.
        self.leave_run(io, conn);
        if self.has_tls(conn) {
            return self.receive_tls(io, conn, chunk);
        }
        self.receive_plain(io, conn, chunk)
    }

    fn awaits_large(&self, conn: ConnId) -> bool {
        self.conn_ref(conn).is_some_and(|found| match &found.protocol {
            ConnProtocol::WebSocket(websocket) => found.tls.is_none() && websocket.session.awaits_large(),
            ConnProtocol::Http(_)
            | ConnProtocol::Http2(_)
            | ConnProtocol::Http3(_)
            | ConnProtocol::Rejected(_)
            | ConnProtocol::ProxyHeader(_) => false,
        })
    }

    fn lend_large(&mut self, conn: ConnId) -> Option<LargeBuffer> {
        if self.has_tls(conn) {
            return None;
        }
        let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(conn) else {
            return None;
        };
        let (buffer, most) = websocket.session.lend_assembly(&mut shared.resources)?;
        self.update_large_buffer(conn);
        Some(LargeBuffer { buffer, limit: most })
    }

    fn received_large(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        buffer: Vec<u8>,
        received: usize,
    ) -> engine::Flow {
        self.time(io);
        self.leave_run(io, conn);
        let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(conn) else {
            return engine::Flow::Continue;
        };
        let flow = websocket.receive_appended(buffer, received, conn, shared);
        self.flush_conn(io, conn);
        engine_flow(flow)
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        self.leave_run(io, conn);
        if self.has_tls(conn) {
            return self.ended_tls(io, conn);
        }
        self.end_plain(io, conn);
    }

    fn start_send(&mut self, conn: ConnId) -> Option<OutgoingChain> {
        if self.has_tls(conn) {
            return self.start_send_tls(conn);
        }
        let chain = match self.conn_and_shared(conn)?.0 {
            ConnProtocol::Http2(_) => self.start_send_http2(conn),
            protocol => protocol.start_send(),
        };
        chain.map(OutgoingChain)
    }

    #[inline]
    fn pending_sends(&self) -> usize {
        let partial = usize::from(self.delivery.partial.is_some());
        self.shared.services.topics.pending_deliveries().max(partial)
    }

    fn end_turn(&mut self, io: &mut Io) {
        self.end_publications(io);
        if self.quic.is_used() {
            self.flush_http3(io);
        }
    }

    fn continues_turn(&self) -> bool {
        self.delivery.runs.is_split()
    }

    fn take_unsent(&mut self, io: &mut Io, conn: ConnId, rest: Bytes) -> Option<OutgoingChain> {
        let now = self.time(io);
        let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(conn) else {
            return None;
        };
        let chain = websocket.session.resume_run(rest, &mut shared.resources, now);
        self.flush_conn_alone(io, conn);
        Some(OutgoingChain(chain))
    }

    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        let now = self.time(io);
        let bytes = self.progressed_tls(conn, bytes);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), _)) => websocket.session.progressed(bytes, now),
            Some((ConnProtocol::Http(http), _)) => {
                http.outbound.progressed(bytes);
                http.note_progress(now);
            }
            Some((ConnProtocol::Http2(http2), _)) => {
                http2.outbound.progressed(bytes);
                http2.note_progress(now);
            }
            Some((ConnProtocol::Http3(_) | ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_), _))
            | None => {}
        }
        self.flush_conn_alone(io, conn);
    }

    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: OutgoingChain, _complete: bool) {
        self.leave_run(io, conn);
        if self.has_tls(conn) {
            return self.finish_send_tls(io, conn, chain);
        }
        self.finish_plain(io, conn, chain);
    }

    fn finish_may_wait(&self, conn: ConnId) -> bool {
        !self.shared.services.is_stopping()
            && self.conn_ref(conn).is_some_and(|found| match &found.protocol {
                _ if found.tls.as_ref().is_some_and(|tls| tls.has_more()) => false,
                ConnProtocol::WebSocket(websocket) => {
                    !websocket.has_backlog() && websocket.session.finish_may_wait()
                }
                ConnProtocol::Http(http) => http.finish_may_wait(),
                ConnProtocol::Http2(http2) => http2.finish_may_wait(),
                ConnProtocol::Http3(_) | ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_) => false,
            })
    }

    fn closed(&mut self, io: &mut Io, conn: ConnId, why: engine::CloseReason) {
        let now = self.time(io);
        if self.continues_turn() {
            self.delivery.runs.remove(conn);
        }
        if let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(conn) {
            websocket.session.receive_end(now);
            if let Some(closed) = websocket.session.take_closed() {
                websocket.close(&closed, conn, shared);
            }
        }
        if let Some(removed) = self.conns.get_mut(conn.index()).and_then(Option::take) {
            self.remove_conn(conn, removed.memory);
            self.freed += 1;
            self.shared.services.tasks.remove(conn);
            match &removed.protocol {
                ConnProtocol::Http(http) => self.shared.services.gate.release(http.peer.ip()),
                ConnProtocol::Http2(http2) => {
                    self.shared.services.gate.release(http2.table.peer.ip());
                    let sockets = http2.sockets.list();
                    self.remove_sockets(io, sockets);
                }
                ConnProtocol::WebSocket(websocket) => {
                    self.shared.services.gate.release(websocket.peer().ip())
                }
                ConnProtocol::Rejected(_) => self.rejecting -= 1,
                ConnProtocol::Http3(_) | ConnProtocol::ProxyHeader(_) => {}
            }
            // Behind the release: a connection counts as closed once another one may take its place.
            self.shared.services.counters.closed.add((&why).into());
        }
        // The handler may have published in `close`.
        self.flush_conn(io, conn);
    }

    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let reads_paused = self.conn_mut(conn).is_some_and(|found| found.reads_paused);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), shared)) => {
                websocket.armed = NEVER;
                if let Some(deadline) = websocket.session.deadline().filter(|deadline| *deadline <= now) {
                    if now.since(deadline) > STALL_MIN {
                        // The thread was delayed, so input may still be in the socket.
                        websocket.session.note_unread(now);
                    }
                    websocket.session.handle_timeout(&mut shared.resources, now);
                }
                // Both sides have sent Close: only the client's end is missing.
                if shared.services.is_stopping() && websocket.has_finished() && websocket.buffered() == 0 {
                    io.close(conn);
                }
                if websocket.deadline().is_some_and(|deadline| deadline <= io.now()) {
                    websocket.expire(conn, shared);
                    if !reads_paused {
                        websocket.continue_reads(io, conn, shared);
                    }
                }
                // A deadline in the past would fire forever.
                if let Some(deadline) = websocket.deadline().filter(|deadline| *deadline > io.now()) {
                    arm_for_handler(websocket, io, conn, deadline, shared.services.epoch);
                }
            }
            Some((ConnProtocol::Http(_), _)) => return self.http_timer(io, conn),
            Some((ConnProtocol::Http2(_), _)) => return self.http2_timer(io, conn),
            Some((ConnProtocol::Rejected(_), _)) => io.close(conn),
            Some((ConnProtocol::ProxyHeader(header), _)) => {
                HEADER_FAULTS.report(HeaderFault::TimedOut, header.peer());
                io.close(conn);
            }
            Some((ConnProtocol::Http3(_), _)) | None => {}
        }
        self.flush_conn(io, conn);
    }

    fn app_timer(&mut self, io: &mut Io) {
        if !matches!(self.stop.phase, StopPhase::Serving) {
            return self.run_stop_step(io);
        }
        let spares = self.shared.resources.spares();
        self.releasing = self.shared.resources.release_idle();
        self.freed += spares - self.shared.resources.spares();
        self.delivery.runs.release();
        self.return_memory();
        if self.releasing || self.freed >= FREED_MIN {
            self.releasing = true;
            io.set_app_timer(io.now() + RELEASE_INTERVAL);
        }
    }

    fn batch_timer(&mut self, io: &mut Io) {
        self.send_keyed(io);
        self.send_presence(io);
    }

    fn mail(&mut self, io: &mut Io, mail: &mut Vec<Mail>) {
        for mail in mail.drain(..) {
            match mail {
                Mail::Publish(published) => self.shared.services.topics.queue_mailed(published),
                Mail::Keyed(topic) => self.shared.services.topics.keyed_notified(&topic, io.now()),
                Mail::Presence { topic, due } => self.shared.services.topics.schedule_presence(topic, due),
                Mail::Shed => self.shed(io),
                Mail::Datagram(datagram) => self.receive_mailed(io, &datagram),
                Mail::DatagramSocket(index, socket) => self.open_datagrams(io, index, *socket),
            }
        }
        self.shared.services.topics.note_mail_read();
        self.shared.services.topics.handle_missed_keyed(io.now());
        if self.shared.services.topics.has_presence_to_publish(io.now()) {
            self.send_presence(io);
        }
        self.delivery.resumes = true;
        self.send_keyed(io);
        self.appends.start_queued(io);
        for conn in self.shared.services.tasks.take_woken() {
            self.woken(io, conn);
        }
        match self.stop.level.read() {
            Stop::No => {}
            Stop::HandedOver => self.start_handover(io),
            Stop::Graceful => self.announce_stop(io),
            Stop::Now => self.stop_now(io),
        }
    }

    fn datagrams(&mut self, io: &mut Io, index: usize, socket: &mut DatagramSocket) -> bool {
        self.receive_datagrams(io, index, socket)
    }

    fn datagram_timer(&mut self, io: &mut Io) {
        self.expire_http3(io);
    }
}

impl Worker {
    /// Handles plaintext of the client, or of its proxy.
    #[inline]
    pub(super) fn receive_plain(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> engine::Flow {
        self.time(io);
        let flow = match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), shared)) => {
                let flow = websocket.receive(chunk, conn, shared);
                self.flush_conn(io, conn);
                flow
            }
            Some((ConnProtocol::Http(_), _)) => self.receive_http(io, conn, chunk),
            Some((ConnProtocol::Http2(_), _)) => self.receive_http2(io, conn, chunk),
            Some((ConnProtocol::Rejected(_), _)) => {
                self.receive_rejected(io, conn, chunk);
                Flow::Continue
            }
            Some((ConnProtocol::ProxyHeader(_), _)) => return self.receive_proxy_header(io, conn, chunk),
            Some((ConnProtocol::Http3(_), _)) | None => Flow::Continue,
        };
        engine_flow(flow)
    }

    /// Handles the end of the client's stream.
    pub(super) fn end_plain(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), _)) => websocket.session.receive_end(now),
            Some((ConnProtocol::Http(http), _)) => http.end(),
            Some((ConnProtocol::Http2(_), _)) => self.end_http2(io, conn),
            Some((ConnProtocol::Rejected(_), _)) => io.shutdown(conn),
            Some((ConnProtocol::ProxyHeader(header), _)) => {
                // Health checks of load balancers connect and send nothing.
                if header.has_begun() {
                    HEADER_FAULTS.report(HeaderFault::Ended, header.peer());
                }
                io.close(conn);
            }
            Some((ConnProtocol::Http3(_), _)) | None => {}
        }
        self.flush_conn(io, conn);
    }

    /// Handles the completion of a protocol's chain.
    #[inline]
    pub(super) fn finish_plain(&mut self, io: &mut Io, conn: ConnId, chain: OutgoingChain) {
        let now = self.time(io);
        let reads_paused = self.conn_mut(conn).is_some_and(|found| found.reads_paused);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), shared)) => {
                if websocket.session.finish_send(chain.0, &mut shared.resources, now) {
                    websocket.drain(conn, shared);
                }
                if !reads_paused {
                    websocket.continue_reads(io, conn, shared);
                }
                self.flush_conn(io, conn);
            }
            Some((ConnProtocol::Http(http), shared)) => {
                http.outbound.finish(chain.0, &mut shared.resources);
                self.sent_http(io, conn);
            }
            Some((ConnProtocol::Http2(http2), shared)) => {
                http2.outbound.finish(chain.0, &mut shared.resources);
                self.sent_http2(io, conn);
            }
            Some((ConnProtocol::Rejected(rejected), shared)) => {
                rejected.outbound.finish(chain.0, &mut shared.resources)
            }
            Some((ConnProtocol::Http3(_) | ConnProtocol::ProxyHeader(_), _)) | None => {}
        }
    }

    /// Handles a wakeup of an answer's future or of a handler.
    fn woken(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let reads_paused = self.conn_mut(conn).is_some_and(|found| found.reads_paused);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), shared)) => {
                websocket.woken(conn, shared);
                if !reads_paused {
                    websocket.continue_reads(io, conn, shared);
                }
                if let Some(deadline) = websocket.deadline() {
                    arm_for_handler(websocket, io, conn, deadline, shared.services.epoch);
                }
            }
            Some((ConnProtocol::Http(_), _)) => return self.poll_http(io, conn),
            Some((ConnProtocol::Http2(_), shared)) => {
                shared.services.tasks.acknowledge_wakeup(conn);
                return self.poll_http2(io, conn);
            }
            // The connection is lent at the end of the turn.
            Some((ConnProtocol::Http3(http3), shared)) => {
                shared.services.tasks.acknowledge_wakeup(conn);
                http3.is_woken = true;
            }
            // The connection has closed.
            Some((ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_), _)) | None => return,
        }
        self.flush_conn(io, conn);
    }
}

/// Minimum delay of a timer that indicates a stalled thread, or a stopped process.
pub(super) const STALL_MIN: Duration = Duration::from_millis(100);

const fn engine_flow(flow: Flow) -> engine::Flow {
    match flow {
        Flow::Continue => engine::Flow::Continue,
        Flow::Pause => engine::Flow::Pause,
    }
}
