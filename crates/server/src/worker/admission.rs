//! Admission of connections: PROXY header, limits, and the protocol of the listener.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sinews_engine::{self as engine, App, ConnId, Io};

use super::Worker;
use super::conn::{ClientConn, ConnProtocol};
use crate::framing::h1::H1Conn;
use crate::limits::{Limit, REJECTING_MAX, RejectedConn};
use crate::listen::ListenerProtocol;
use crate::proxy::{ProxiedAddress, Remainder};
use crate::tls::TlsConn;

impl Worker {
    /// Admits or rejects a client's connection.
    pub(super) fn admit(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        peer: SocketAddr,
        listener: usize,
    ) -> (ConnProtocol, Option<Box<TlsConn>>) {
        let is_http = |protocol: &ListenerProtocol| protocol.tls.is_none() && protocol.messages.is_none();
        let with_response = self.listener_protocols.get(listener).is_none_or(is_http);
        match self.shared.services.gate.admit(peer.ip()) {
            Ok(()) => {
                let http = ConnProtocol::Http(Box::new(H1Conn::new(conn, peer, self.shared.services.now)));
                (http, self.start_tls(io, conn, listener))
            }
            // A rejection over TLS would cost more than service.
            Err(limit) => (self.reject(io, conn, limit, with_response), None),
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
                tracing::debug!("closed: PROXY header expected, other input received");
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
        self.settle(io, conn);
        match remainder {
            Remainder::Chunk(from) if from < chunk.len() => self.received(io, conn, &mut chunk[from..]),
            Remainder::Buffered(mut kept) if !kept.is_empty() => self.received(io, conn, &mut kept),
            _ => engine::Flow::Continue,
        }
    }

    /// Rejects a connection, with an answer unless too many are being rejected.
    pub(super) fn reject(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        limit: Limit,
        with_response: bool,
    ) -> ConnProtocol {
        self.shared.services.count_limit(limit);
        self.rejecting += 1;
        if !with_response || self.rejecting > REJECTING_MAX {
            io.close(conn);
        } else {
            io.set_timer(conn, io.now() + REJECTING_TIME);
        }
        ConnProtocol::Rejected(Box::new(RejectedConn::new(limit)))
    }

    /// Handles the first request bytes of a rejected connection.
    pub(super) fn receive_rejected(&mut self, io: &mut Io, conn: ConnId, chunk: &[u8]) {
        if let Some((ConnProtocol::Rejected(rejected), shared)) = self.lend(conn) {
            let router = Rc::clone(&shared.router);
            let services = &mut shared.services;
            let date = (&mut services.date, services.now);
            if rejected.receive(chunk, (&router, &services.http.head), &mut shared.resources, date) {
                io.send(conn);
                io.shutdown(conn);
            }
        }
    }
}

/// Time for a rejected connection to send its request and to read the rejection.
const REJECTING_TIME: Duration = Duration::from_secs(2);
