//! A worker's QUIC endpoints, and their connections.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use sinews_engine::{ConnId, DatagramBatch, DatagramSocket};
use sinews_proto::Time;
use sinews_quic::{ConnectionKey, Outgoing, QuicEndpoint};

use super::conn::{ClientConn, ConnProtocol};
use super::quic_routing::QuicRouting;
use crate::framing::h3::H3Conn;
use crate::metrics::ConnMemory;
use crate::timer::NEVER;

/// One worker's QUIC state.
pub(super) struct QuicState {
    pub(super) routing: Arc<QuicRouting>,
    /// One for each listen address, in the order of the loop's sockets.
    pub(super) listeners: Vec<QuicListener>,
    pub(super) conns: Http3Conns,
    /// Connections whose state has changed outside their events.
    pub(super) changed: Vec<ConnId>,
    /// Connection deadlines.
    pub(super) due: BTreeSet<(Time, ConnId)>,
    /// The clients were told that the server stops.
    pub(super) is_stopping: bool,
    /// All connections are closed, and the sockets close by then, or once all datagrams are sent.
    pub(super) close_by: Option<Instant>,
    /// The send buffers are full, for tests: the kernel empties the loopback interface's buffers at once.
    #[cfg(test)]
    pub(super) is_send_buffer_full: bool,
}

/// A QUIC endpoint, on the socket with the same index.
pub(super) struct QuicListener {
    /// Absent while it is lent.
    pub(super) endpoint: Option<Box<QuicEndpoint>>,
    /// A datagram batch.
    pub(super) out: Vec<u8>,
    /// The batch waits, since the send buffer is full.
    pub(super) unsent: Option<Outgoing>,
}

impl QuicState {
    pub(super) fn new(routing: Arc<QuicRouting>, endpoints: Vec<QuicEndpoint>) -> Self {
        let listener = |endpoint| {
            let endpoint = Some(Box::new(endpoint));
            QuicListener { endpoint, out: Vec::new(), unsent: None }
        };
        Self {
            routing,
            listeners: endpoints.into_iter().map(listener).collect(),
            conns: Http3Conns::default(),
            changed: Vec::new(),
            due: BTreeSet::new(),
            is_stopping: false,
            close_by: None,
            #[cfg(test)]
            is_send_buffer_full: false,
        }
    }

    /// Sends a batch. Returns `false` if the send buffer is full.
    pub(super) fn send(&self, socket: &DatagramSocket, batch: &DatagramBatch<'_>) -> io::Result<bool> {
        #[cfg(test)]
        if self.is_send_buffer_full {
            return Ok(false);
        }
        socket.send(batch)
    }

    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Takes an endpoint for a call. Return it by [`put_back`](Self::put_back).
    pub(super) fn take(&mut self, listener: usize) -> Option<Box<QuicEndpoint>> {
        self.listeners.get_mut(listener)?.endpoint.take()
    }

    pub(super) fn put_back(&mut self, listener: usize, endpoint: Box<QuicEndpoint>) {
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.endpoint = Some(endpoint);
        }
    }

    /// Sets a connection's deadline.
    pub(super) fn arm(&mut self, conn: ConnId, before: Time, deadline: Time) {
        if before != deadline {
            self.due.remove(&(before, conn));
            if deadline != NEVER {
                self.due.insert((deadline, conn));
            }
        }
    }

    /// Returns whether the sockets can be closed. After a handover they wait until this process's own predecessor,
    /// whose datagrams the successor sends here, has ended; the grace period bounds the wait.
    pub(super) fn is_closable(&self, now: Instant, handed_over: bool) -> bool {
        match self.close_by {
            Some(at) => at <= now || self.listeners.iter().all(|listener| listener.unsent.is_none()),
            None => self.is_stopping && !self.is_busy() && !(handed_over && self.routing.has_predecessor()),
        }
    }

    /// Returns whether an endpoint has connections, or datagrams to send.
    fn is_busy(&self) -> bool {
        let is_busy = |listener: &QuicListener| {
            let connections = listener.endpoint.as_ref().map_or(1, |endpoint| endpoint.connections());
            connections > 0 || listener.unsent.is_some()
        };
        self.listeners.iter().any(is_busy)
    }
}

/// A worker's HTTP/3 connections. A connection has an id that no connection in the loop has.
#[derive(Default)]
pub(super) struct Http3Conns {
    slots: Vec<Option<ClientConn>>,
    free: Vec<u32>,
    generation: u32,
    by_key: HashMap<(usize, ConnectionKey), ConnId>,
}

/// Distinguishes the ids of connections from those of sockets on streams, of which a worker has fewer.
const CONNECTIONS: u32 = 1 << 30;

impl Http3Conns {
    /// Adds a connection that `make` creates with its id.
    pub(super) fn add(&mut self, make: impl FnOnce(ConnId) -> H3Conn) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // The connection limit is far below 2^30.
            self.slots.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let id = ConnId::for_stream(CONNECTIONS | slot, self.generation);
        let http3 = make(id);
        self.by_key.insert((http3.listener, http3.key), id);
        let (memory, protocol) = (ConnMemory::default(), ConnProtocol::Http3(Box::new(http3)));
        self.slots[slot as usize] =
            Some(ClientConn { id, memory, reads_paused: false, tag: 0, protocol, tls: None });
        id
    }

    fn slot(id: ConnId) -> Option<usize> {
        id.stream_slot()?.checked_sub(CONNECTIONS as usize)
    }

    /// Returns the connection with this key at its endpoint.
    pub(super) fn find(&self, listener: usize, key: ConnectionKey) -> Option<ConnId> {
        self.by_key.get(&(listener, key)).copied()
    }

    #[cold]
    pub(super) fn get(&mut self, id: ConnId) -> Option<&mut ClientConn> {
        self.slots.get_mut(Self::slot(id)?)?.as_mut().filter(|found| found.id == id)
    }

    #[cold]
    pub(super) fn get_ref(&self, id: ConnId) -> Option<&ClientConn> {
        self.slots.get(Self::slot(id)?)?.as_ref().filter(|found| found.id == id)
    }

    /// Returns a connection by its id's index.
    pub(super) fn at(&self, index: usize) -> Option<&ClientConn> {
        let slot = index.checked_sub(ConnId::for_stream(CONNECTIONS, 0).index())?;
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ClientConn> {
        self.slots.iter().flatten()
    }

    pub(super) fn remove(&mut self, listener: usize, key: ConnectionKey) -> Option<ClientConn> {
        let id = self.by_key.remove(&(listener, key))?;
        let slot = Self::slot(id)?;
        self.free.push(slot as u32);
        self.slots.get_mut(slot)?.take()
    }
}
