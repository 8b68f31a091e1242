//! Memory of connections, and which to close when the limit is exceeded.

use sinews_engine::{ConnId, Io};

use super::Worker;
use super::conn::{ClientConn, ConnProtocol};
use super::large_conns::CHECK_BYTES;
use crate::metrics::ConnMemory;
use crate::metrics::limit::Limit;
use crate::topics::mail::Mail;

/// Maximum number of connections that close at the same time.
const CLOSES_MAX: usize = 16;

impl Worker {
    /// Changes the size of a connection and checks the limit.
    #[inline]
    pub(super) fn update_memory(&mut self, io: &mut Io, conn: ConnId, before: ConnMemory, after: ConnMemory) {
        if before == after && !self.large_conns.is_check_due {
            return;
        }
        self.count(conn, before, after);
        let bytes = self.shared.services.counters.memory_bytes();
        if self.large_conns.is_check_due {
            self.shed(io);
        } else if bytes <= self.large_conns.checked_bytes {
            self.large_conns.checked_bytes = bytes;
        } else if bytes - self.large_conns.checked_bytes > CHECK_BYTES {
            self.large_conns.checked_bytes = bytes;
            self.shed(io);
        }
    }

    fn count(&mut self, conn: ConnId, before: ConnMemory, after: ConnMemory) {
        self.shared.services.counters.replace_memory(before, after);
        if self.large_conns.change(conn.index(), before, after) {
            self.shared.services.counters.heaviest.set(self.large_conns.heaviest() as u64);
        }
    }

    /// Updates the size of a connection whose large buffer has grown in the engine.
    pub(super) fn update_large_buffer(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get_mut(conn.index()).and_then(Option::as_mut) else { return };
        let ConnProtocol::WebSocket(websocket) = &found.protocol else { return };
        let before = found.memory;
        let memory = before.replace_incomplete(websocket.session.incomplete());
        found.memory = self.large_conns.counted_memory(conn, memory);
        let after = found.memory;
        if before != after {
            self.count(conn, before, after);
            self.large_conns.is_check_due = true;
        }
    }

    /// Removes a closed connection.
    pub(super) fn remove_conn(&mut self, conn: ConnId, memory: ConnMemory) {
        self.shared.services.counters.replace_memory(memory, ConnMemory::default());
        self.large_conns.change(conn.index(), memory, ConnMemory::default());
        self.large_conns.closing.remove(&conn.index());
        self.shared.services.counters.heaviest.set(self.large_conns.heaviest() as u64);
    }

    /// Closes the heaviest connections while the limit is exceeded, if that is the configured action.
    #[cold]
    pub(super) fn shed(&mut self, io: &mut Io) {
        self.large_conns.is_check_due = self.shared.services.gate.is_count_exceeded();
        for _ in 0..CLOSES_MAX {
            if !self.shared.services.gate.must_close_largest() {
                return;
            }
            let heaviest = self.large_conns.heaviest();
            if let Some(other) = self.shared.services.gate.heavier_thread(heaviest as u64)
                && self.shared.services.topics.send_mail(other, Mail::Shed)
            {
                return;
            }
            let memory = |index: &usize| self.at(*index).map_or(0, |found| found.memory.bytes());
            let members = self.large_conns.classes[heaviest].iter().copied();
            let Some(largest) = members.max_by_key(memory) else { return };
            self.close_largest(io, largest);
        }
    }

    /// Closes a connection. Reads stop, so its memory counts no more.
    fn close_largest(&mut self, io: &mut Io, index: usize) {
        let Some(conn) = self.at(index).map(|found| found.id) else { return };
        let Some(found) = self.conn_mut(conn) else { return };
        let memory = std::mem::take(&mut found.memory);
        self.shared.services.counters.replace_memory(memory, ConnMemory::default());
        self.large_conns.change(index, memory, ConnMemory::default());
        self.large_conns.closing.insert(index);
        self.shared.services.counters.heaviest.set(self.large_conns.heaviest() as u64);
        self.shared.services.count_limit(Limit::Memory);
        tracing::debug!(
            bytes = memory.bytes(),
            "closed: largest outbound and input buffers of all connections, and max_memory is exceeded"
        );
        if self.quic.conns.get_ref(conn).is_some() {
            self.shed_http3(conn);
        } else if conn.stream_slot().is_some() {
            self.remove_sockets(io, vec![conn]);
        } else {
            // The connection closes at the end of the turn; others use its memory before.
            if let Some((ConnProtocol::Http2(http2), _)) = self.conn_and_shared(conn) {
                http2.drop_answers();
            }
            io.close(conn);
        }
    }

    /// Returns a connection, or a socket on a stream, by the index of its id.
    fn at(&self, index: usize) -> Option<&ClientConn> {
        match self.conns.get(index) {
            Some(found) => found.as_ref(),
            None => self.sockets.at(index).or_else(|| self.quic.conns.at(index)),
        }
    }
}
