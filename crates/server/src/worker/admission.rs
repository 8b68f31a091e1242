//! Admission of connections: PROXY header, limits, and the protocol of the listener.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sinews_engine::{self as engine, App, ConnId, Io};

use super::Worker;
use super::conn::{ClientConn, ConnProtocol};
use crate::framing::h1::H1Conn;
use crate::limits::REJECTING_MAX;
use crate::limits::RateLimit;
use crate::metrics::limit::Limit;
use crate::proxy::{HEADER_FAULTS, HeaderFault, ProxiedAddress, Remainder};
use crate::tls::TlsConn;
use crate::worker::rejected::RejectedConn;

impl Worker {
    /// Admits or rejects a client's connection.
    pub(super) fn admit(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        peer: SocketAddr,
        listener: usize,
    ) -> (ConnProtocol, Option<Box<TlsConn>>) {
        match self.shared.services.gate.admit(peer.ip()) {
            Ok(()) => {
                let http = ConnProtocol::Http(Box::new(H1Conn::new(conn, peer, self.shared.services.now)));
                (http, self.start_tls(io, conn, listener, self.shared.services.http.http2))
            }
            Err(limit) => self.reject(io, conn, limit, listener),
        }
    }

    /// Starts messages on a listener without HTTP, where other connections start after a handshake.
    pub(super) fn start_messages(&mut self, io: &mut Io, conn: ConnId, listener: usize) {
        let Some(route) =
            self.listener_protocols.get(listener).and_then(|protocol| protocol.messages.clone())
        else {
            return;
        };
        let Some(ClientConn { protocol: ConnProtocol::Http(http), .. }) = self.conn_mut(conn) else { return };
        let peer = http.peer;
        match self.shared.services.gate.handshake() {
            Ok(()) => self.upgrade(io, conn, route.upgrade(peer)),
            Err(limit) => {
                self.shared.services.count_limit(limit);
                io.close(conn);
            }
        }
    }

    /// Handles input before the end of the PROXY header.
    pub(super) fn receive_proxy_header(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        chunk: &mut [u8],
    ) -> engine::Flow {
        self.time(io);
        let Some(ClientConn { protocol: ConnProtocol::ProxyHeader(proxy_header), .. }) = self.conn_mut(conn)
        else {
            return engine::Flow::Continue;
        };
        let listener = proxy_header.listener;
        let (peer, remainder) = match proxy_header.receive(chunk) {
            ProxiedAddress::Client(peer, remainder) => (peer, remainder),
            ProxiedAddress::Incomplete => return engine::Flow::Continue,
            ProxiedAddress::Malformed => {
                HEADER_FAULTS.report(HeaderFault::Malformed, proxy_header.peer());
                io.close(conn);
                return engine::Flow::Continue;
            }
        };
        io.clear_timer(conn);
        let (protocol, tls) = self.admit(io, conn, peer, listener);
        if let Some(found) = self.conn_mut(conn) {
            (found.protocol, found.tls) = (protocol, tls);
        }
        self.start_messages(io, conn, listener);
        self.flush_conn(io, conn);
        match remainder {
            Remainder::Chunk(from) if from < chunk.len() => self.received(io, conn, &mut chunk[from..]),
            Remainder::Buffered(mut kept) if !kept.is_empty() => self.received(io, conn, &mut kept),
            _ => engine::Flow::Continue,
        }
    }

    /// Rejects a connection, with an answer unless too many are being rejected.
    fn reject(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        limit: Limit,
        listener: usize,
    ) -> (ConnProtocol, Option<Box<TlsConn>>) {
        self.shared.services.count_limit(limit);
        self.rejecting += 1;
        let protocol = self.listener_protocols.get(listener);
        let (has_http, has_tls) =
            protocol.map_or((true, false), |protocol| (protocol.messages.is_none(), protocol.tls.is_some()));
        let mut may_answer = has_http && self.rejecting <= REJECTING_MAX;
        let mut tls = None;
        if may_answer && has_tls {
            if self.take_tls_rejection(io) {
                // The answer is one of HTTP/1.1.
                tls = self.start_tls(io, conn, listener, false);
            }
            may_answer = tls.is_some();
        }
        if may_answer {
            io.set_timer(conn, io.now() + REJECTING_TIME);
        } else {
            io.close(conn);
        }
        (ConnProtocol::Rejected(Box::new(RejectedConn::new(limit))), tls)
    }

    /// Takes one TLS handshake of the rate for rejected connections.
    fn take_tls_rejection(&mut self, io: &Io) -> bool {
        let now = io.now().saturating_duration_since(self.shared.services.epoch).as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let rate = RateLimit::new(TLS_REJECTIONS_PER_SECOND, TLS_REJECTIONS_PER_SECOND);
        let taken = rate.take(self.tls_rejection_due, now);
        self.tls_rejection_due = taken.unwrap_or(self.tls_rejection_due);
        taken.is_some()
    }

    /// Handles the first request bytes of a rejected connection.
    pub(super) fn receive_rejected(&mut self, io: &mut Io, conn: ConnId, chunk: &[u8]) {
        let Some((ConnProtocol::Rejected(rejected), shared)) = self.conn_and_shared(conn) else { return };
        let router = Rc::clone(&shared.router);
        let services = &mut shared.services;
        let date = &mut services.date;
        if !rejected.receive(chunk, &router, &services.http.head, &mut shared.resources, date, services.now) {
            return;
        }
        if let Some(tls) = self.conn_mut(conn).and_then(|found| found.tls.as_deref_mut()) {
            tls.finish();
        }
        io.send(conn);
        io.shutdown(conn);
    }
}

/// Time for a rejected connection to send its request and to read the rejection.
const REJECTING_TIME: Duration = Duration::from_secs(2);

/// TLS handshakes a second of one thread with connections that are then rejected with an answer, and burst; further
/// ones are closed without a handshake, which costs far more than an answer in clear text. With keys of ECDSA P-256 or
/// RSA-2048 all of them take at most some percent of the thread, with RSA-4096 up to a fifth: a signature takes 3 to 4
/// ms.
const TLS_REJECTIONS_PER_SECOND: u32 = 50;
