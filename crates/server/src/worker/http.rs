//! Events of connections that speak HTTP/1.1, and their change to a WebSocket or to the body of a response.

use sinews_engine::{ConnId, Io};
use sinews_session::Flow;

use super::Worker;
use super::conn::{ConnProtocol, arm_for_handler};
use crate::framing::h1::{H1Conn, Handled, Leftover};
use crate::shared::WorkerShared;
use crate::socket::{AcceptedUpgrade, WebSocketConn};
use crate::timer::NEVER;

impl Worker {
    /// Returns the HTTP state of the connection and the shared state.
    fn http_and_shared(&mut self, conn: ConnId) -> Option<(&mut H1Conn, &mut WorkerShared)> {
        match self.conn_and_shared(conn)? {
            (ConnProtocol::Http(http), shared) => Some((http, shared)),
            _ => None,
        }
    }

    pub(super) fn receive_http(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        self.time(io);
        let has_tls = self.has_tls(conn);
        let Some((http, shared)) = self.http_and_shared(conn) else { return Flow::Continue };
        let config = &shared.services.http;
        let http2 = if has_tls { config.http2 } else { config.http2_clear_text };
        if http2 && http.begins_http2(chunk) {
            let mut begin = http.take_buffer();
            self.start_http2(io, conn);
            if !begin.is_empty() {
                // A pause keeps later input buffered.
                let _ = self.receive_http2(io, conn, &mut begin);
            }
            return self.receive_http2(io, conn, chunk);
        }
        let Some((http, shared)) = self.http_and_shared(conn) else { return Flow::Continue };
        let handled = http.receive(chunk, shared);
        let flow = match handled {
            Handled::Waiting => http.flow(),
            Handled::Upgraded(upgrade, rest) => self.upgraded(io, conn, upgrade, rest, chunk),
        };
        self.flush_conn(io, conn);
        flow
    }

    /// Handles a sent answer: resumes waiting requests.
    pub(super) fn sent_http(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http, shared)) = self.http_and_shared(conn) else { return };
        http.note_progress(now);
        http.send_pieces(shared);
        self.continue_http(io, conn);
    }

    pub(super) fn poll_http(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some((http, shared)) = self.http_and_shared(conn) else { return };
        if !http.poll_answer(shared) {
            return;
        }
        let Some((upgrade, rest)) = http.take_body() else { return self.continue_http(io, conn) };
        if self.upgraded(io, conn, upgrade, rest, &mut []) == Flow::Continue {
            io.resume(conn);
        }
        self.flush_conn(io, conn);
    }

    /// Handles waiting requests, unless reads are paused.
    fn continue_http(&mut self, io: &mut Io, conn: ConnId) {
        let reads_paused = self.conn_mut(conn).is_some_and(|found| found.reads_paused);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::Http(http), _)) if http.paused && !http.is_busy() && !reads_paused => {
                self.resume_http(io, conn);
            }
            _ => self.flush_conn(io, conn),
        }
    }

    /// Resumes waiting requests.
    pub(super) fn resume_http(&mut self, io: &mut Io, conn: ConnId) {
        self.time(io);
        let Some((http, shared)) = self.http_and_shared(conn) else { return };
        let flow = match http.resume(shared) {
            Handled::Waiting => http.flow(),
            Handled::Upgraded(upgrade, rest) => self.upgraded(io, conn, upgrade, rest, &mut []),
        };
        if flow == Flow::Continue {
            io.resume(conn);
        }
        self.flush_conn(io, conn);
    }

    pub(super) fn upgraded(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        upgrade: AcceptedUpgrade,
        rest: Leftover,
        chunk: &mut [u8],
    ) -> Flow {
        self.upgrade(io, conn, upgrade);
        match rest {
            Leftover::Chunk(from) => self.receive_websocket(io, conn, &mut chunk[from..]),
            Leftover::Buffered(mut kept) => self.receive_websocket(io, conn, &mut kept),
        }
    }

    pub(super) fn http_timer(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http, shared)) = self.http_and_shared(conn) else { return };
        http.armed = NEVER;
        if http.deadline(&shared.services.http, shared.services.stopping_since) > now {
            return self.flush_conn(io, conn);
        }
        if http.time_out(shared) {
            io.close(conn);
            return self.flush_conn(io, conn);
        }
        self.continue_http(io, conn);
    }

    /// Turns the connection into a WebSocket; the answer is queued.
    pub(super) fn upgrade(&mut self, io: &mut Io, conn: ConnId, upgrade: AcceptedUpgrade) {
        self.time(io);
        let Some((protocol, shared)) = self.conn_and_shared(conn) else { return };
        let ConnProtocol::Http(http) = protocol else { return };
        let outbound = std::mem::take(&mut http.outbound);
        let mut websocket = Box::new(WebSocketConn::new(upgrade, outbound, http.peer, shared.services.now));
        let counters = &shared.services.counters;
        if websocket.is_body() {
            counters.streaming.add(1)
        } else {
            counters.handshakes.add(1)
        };
        websocket.open(conn, shared);
        io.clear_timer(conn);
        if let Some(deadline) = websocket.deadline() {
            arm_for_handler(&mut websocket, io, conn, deadline, shared.services.epoch);
        }
        *protocol = ConnProtocol::WebSocket(websocket);
        self.freed += 1;
        if self.shared.services.is_stopping() {
            self.close_websocket(conn);
        }
    }

    fn receive_websocket(&mut self, io: &Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        self.time(io);
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), shared)) => websocket.receive(chunk, conn, shared),
            _ => Flow::Continue,
        }
    }
}

/// Returns the connection to HTTP after the body of a response, whose end is queued.
#[cold]
pub(super) fn end_body(protocol: &mut ConnProtocol, conn: ConnId, shared: &mut WorkerShared) {
    let ConnProtocol::WebSocket(websocket) = protocol else { return };
    let (outbound, keep_alive) = websocket.finish_body(conn, shared);
    let (peer, now) = (websocket.peer(), shared.services.now);
    let keep_alive = keep_alive && !shared.services.is_stopping();
    *protocol = ConnProtocol::Http(Box::new(H1Conn::after_body(conn, peer, outbound, keep_alive, now)));
}
