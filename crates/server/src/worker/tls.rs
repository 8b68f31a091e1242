//! Connections with TLS: records on one side, the protocol on the other.

use sinews_engine::{self as engine, App, ConnId, Io};

use super::Worker;
use super::conn::{ClientConn, OutgoingChain};
use crate::shared::WorkerShared;
use crate::tls::TlsConn;

impl Worker {
    #[inline]
    pub(super) fn has_tls(&self, conn: ConnId) -> bool {
        self.conns.get(conn.index()).is_some_and(|conn| conn.as_ref().is_some_and(|conn| conn.tls.is_some()))
    }

    /// Creates the TLS state of a new connection, if its listener requires TLS. On failure the connection is closed.
    pub(super) fn start_tls(
        &self,
        io: &mut Io,
        conn: ConnId,
        listener: usize,
        http2: bool,
    ) -> Option<Box<TlsConn>> {
        let protocol = self.listener_protocols.get(listener)?;
        let config = protocol.tls.as_ref()?;
        let tls = TlsConn::new(config, http2 && protocol.messages.is_none(), protocol.http3_port);
        if tls.is_none() {
            io.close(conn);
        }
        tls.map(Box::new)
    }

    /// Handles received records: the protocol gets the plaintext of all of them at once.
    pub(super) fn receive_tls(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> engine::Flow {
        let Self { conns, shared: WorkerShared { resources, services, .. }, plaintext, .. } = self;
        let Some(ClientConn { tls: Some(tls), .. }) = conns.get_mut(conn.index()).and_then(Option::as_mut)
        else {
            return engine::Flow::Continue;
        };
        let mut plain = std::mem::take(plaintext);
        let was_open = tls.is_open();
        let failed = tls.receive(chunk, &mut plain, resources).err();
        if let Some(error) = &failed {
            tls.fail(resources);
            services.counters.tls_failures.add(1);
            tracing::debug!(%error, "TLS connection failed");
        } else if !was_open && tls.is_open() {
            services.counters.tls_handshakes.add(1);
        }
        let begins_http2 = !was_open && tls.is_open() && tls.is_http2();
        // The protocol may close at once on the end of input, and an alert has to leave before.
        let ended = (failed.is_none() || !tls.wants_send()) && tls.take_end();
        if tls.wants_send() {
            io.send(conn);
        }
        let mut flow = engine::Flow::Continue;
        if begins_http2 {
            self.start_http2(io, conn);
        }
        if !plain.is_empty() {
            flow = self.receive_plain(io, conn, &mut plain);
        }
        if ended {
            self.end_plain(io, conn);
        } else {
            self.flush_conn_alone(io, conn);
        }
        if failed.is_some() {
            io.shutdown(conn);
        }
        plain.clear();
        if plain.capacity() <= PLAINTEXT_KEPT {
            self.plaintext = plain;
        }
        flow
    }

    /// Handles the end of the transport; the protocol gets it unless it has already ended.
    pub(super) fn ended_tls(&mut self, io: &mut Io, conn: ConnId) {
        let tls = self.conn_mut(conn).and_then(|found| found.tls.as_deref_mut());
        if tls.is_some_and(TlsConn::take_transport_end) {
            self.end_plain(io, conn);
        }
    }

    pub(super) fn start_send_tls(&mut self, conn: ConnId) -> Option<OutgoingChain> {
        self.fill_http2(conn);
        let Self { conns, shared, scratch, .. } = self;
        let resources = &mut shared.resources;
        let Some(ClientConn { tls: Some(tls), protocol, .. }) = conns.get_mut(conn.index())?.as_mut() else {
            return None;
        };
        tls.start_send(|| protocol.start_send(), resources, scratch).map(OutgoingChain)
    }

    /// Handles the completion of records; the protocol's chain completes when all of it has left.
    pub(super) fn finish_send_tls(&mut self, io: &mut Io, conn: ConnId, records: OutgoingChain) {
        let Self { conns, shared: WorkerShared { resources, .. }, .. } = self;
        let Some(ClientConn { tls: Some(tls), .. }) = conns.get_mut(conn.index()).and_then(Option::as_mut)
        else {
            return;
        };
        let finished = tls.finish_send(records.0, resources);
        let has_failed = tls.has_failed() && tls.take_end();
        if tls.has_more() || tls.wants_send() {
            io.send(conn);
        }
        match finished {
            Some(plain) => self.finish_plain(io, conn, OutgoingChain(plain)),
            None => self.progressed(io, conn, 0),
        }
        if has_failed {
            self.end_plain(io, conn);
        }
    }

    /// Takes sent bytes of records. Returns the sent bytes of the protocol they count for.
    pub(super) fn progressed_tls(&mut self, conn: ConnId, bytes: usize) -> usize {
        match self.conn_mut(conn).and_then(|found| found.tls.as_deref_mut()) {
            // Only progress matters; the exact count is known when the chain completes.
            Some(tls) => {
                tls.progressed(bytes);
                0
            }
            None => bytes,
        }
    }
}

/// Maximum plaintext buffer that a thread keeps between chunks: that of two usual chunks.
const PLAINTEXT_KEPT: usize = 256 << 10;
