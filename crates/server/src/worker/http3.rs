//! HTTP/3: datagrams and events of the endpoints of QUIC, and what connections send.

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sinews_engine::{ConnId, DatagramBatch, DatagramSocket, Io, ReceivedDatagram};
use sinews_http::h3::{Event, H3Code, QuicStreamId};
use sinews_proto::Time;
use sinews_quic::{ConnectionKey, Exchanges, Http3App, LinkEnd, QuicEndpoint};

use super::Worker;
use super::conn::ConnProtocol;
use super::quic_routing::DatagramOwner;
use crate::framing::h3::{H3Conn, H3Streams, SocketInput};
use crate::framing::streams::WaitingRequests as _;
use crate::metrics::{ConnMemory, ConnectionEnd};
use crate::shared::WorkerShared;
use crate::topics::mail::{Mail, MailedDatagram};

/// The worker as the application of an endpoint, which is lent.
struct Http3Events<'a> {
    worker: &'a mut Worker,
    io: &'a mut Io,
    listener: usize,
}

impl Http3App for Http3Events<'_> {
    fn admits(&mut self, address: IpAddr) -> bool {
        let services = &self.worker.shared.services;
        let admitted = services.gate.check(address);
        admitted.inspect_err(|limit| services.count_limit(*limit)).is_ok()
    }

    fn handle_start(&mut self, exchanges: &mut Exchanges<'_>) -> Result<(), &'static str> {
        self.worker.start_http3(self.io, self.listener, exchanges)
    }

    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        if let Some(conn) = self.worker.quic.conns.find(self.listener, exchanges.connection()) {
            self.worker.http3_event(self.io, conn, exchanges, event);
        }
    }

    fn handle_datagram(&mut self, exchanges: &mut Exchanges<'_>, session: QuicStreamId, payload: &[u8]) {
        if let Some(conn) = self.worker.quic.conns.find(self.listener, exchanges.connection()) {
            self.worker.receive_datagram(self.io, conn, session, payload);
        }
    }

    fn handle_writable(&mut self, exchanges: &mut Exchanges<'_>, stream: QuicStreamId) {
        let now = self.worker.time(self.io);
        let conn = self.worker.quic.conns.find(self.listener, exchanges.connection());
        if let Some((http3, _)) = conn.and_then(|conn| self.worker.http3_and_shared(conn)) {
            http3.note_writable(stream, exchanges.is_blocked(stream), now);
        }
    }

    fn handle_batch_end(&mut self, exchanges: &mut Exchanges<'_>) {
        if let Some(conn) = self.worker.quic.conns.find(self.listener, exchanges.connection()) {
            self.worker.flush_http3_conn(self.io, conn, exchanges);
        }
    }

    fn handle_end(&mut self, connection: ConnectionKey, cause: LinkEnd, reason: &str) {
        self.worker.end_http3(self.io, self.listener, connection, cause, reason);
    }
}

impl Worker {
    fn http3_and_shared(&mut self, conn: ConnId) -> Option<(&mut H3Conn, &mut WorkerShared)> {
        match self.conn_and_shared(conn)? {
            (ConnProtocol::Http3(http3), shared) => Some((http3, shared)),
            _ => None,
        }
    }

    /// Lends an endpoint, and this worker as its application.
    fn with_endpoint(
        &mut self,
        io: &mut Io,
        listener: usize,
        call: impl FnOnce(&mut QuicEndpoint, &mut Http3Events<'_>),
    ) {
        self.time(io);
        let Some(mut endpoint) = self.quic.take(listener) else { return };
        call(&mut endpoint, &mut Http3Events { worker: self, io, listener });
        let refused = endpoint.take_refused();
        self.shared.services.counters.http3_refused.add(refused);
        self.quic.put_back(listener, endpoint);
    }

    /// Receives once from a socket. Returns whether more datagrams may be available.
    pub(super) fn receive_datagrams(
        &mut self,
        io: &mut Io,
        listener: usize,
        socket: &mut DatagramSocket,
    ) -> bool {
        let mut has_more = false;
        self.with_endpoint(io, listener, |endpoint, app| {
            let result = socket.receive(|datagram| app.receive(endpoint, &datagram));
            has_more = result.unwrap_or_else(|error| {
                tracing::error!(%error, "cannot receive datagrams");
                false
            });
        });
        has_more
    }

    /// Opens a socket that was bound late, unless this server stops already.
    pub(super) fn open_datagrams(&self, io: &mut Io, listener: usize, socket: DatagramSocket) {
        if listener < self.quic.listeners.len() && self.quic.close_by.is_none() {
            io.open_datagrams(listener, socket);
        }
    }

    /// Passes a datagram to the worker that owns its connection. Returns `false` if its mailbox is full.
    fn mail_datagram(&self, owner: usize, datagram: MailedDatagram) -> bool {
        let routing = &self.quic.routing;
        let is_sent = routing.begin_mail(owner);
        let is_taken =
            is_sent && self.shared.services.topics.send_mail(owner, Mail::Datagram(Box::new(datagram)));
        if is_sent && !is_taken {
            routing.end_mail(owner);
        }
        is_taken
    }

    /// Handles a datagram that another worker or process has received.
    pub(super) fn receive_mailed(&mut self, io: &mut Io, datagram: &MailedDatagram) {
        self.quic.routing.end_mail(self.number);
        let MailedDatagram { listener, payload, from, local, ecn } = datagram;
        self.with_endpoint(io, *listener, |endpoint, app| {
            let now = app.io.now();
            endpoint.receive(BytesMut::from(&payload[..]), *from, *local, *ecn, app, now);
        });
    }

    /// Admits a connection whose handshake is complete: the client's address is its own.
    fn start_http3(
        &mut self,
        io: &Io,
        listener: usize,
        exchanges: &Exchanges<'_>,
    ) -> Result<(), &'static str> {
        let now = self.time(io);
        let services = &self.shared.services;
        let ip = exchanges.remote_address().ip();
        services.counters.tls_handshakes.add(1);
        services.gate.admit(ip).map_err(|limit| {
            services.count_limit(limit);
            "limit of connections"
        })?;
        services.counters.accepted.add(1);
        services.counters.http3_connections.add(1);
        let conn = self.quic.conns.add(|conn| H3Conn::new(conn, listener, exchanges, now));
        self.mark_http3(conn);
        Ok(())
    }

    fn http3_event(&mut self, io: &mut Io, conn: ConnId, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        self.time(io);
        let Some((http3, shared)) = self.http3_and_shared(conn) else { return };
        match (H3Streams { conn: http3, exchanges }).handle_event(event, shared) {
            Some(SocketInput::Opened(opened)) => self.open_socket(io, conn, *opened),
            Some(SocketInput::Data { socket, data, ends }) => {
                // The session unmasks in place.
                let mut input = std::mem::take(&mut self.scratch);
                input.clear();
                input.extend_from_slice(data);
                self.receive_socket(io, socket, &mut input, ends);
                self.scratch = input;
            }
            Some(SocketInput::Reset(sockets)) => self.remove_sockets(io, sockets),
            None => {}
        }
        // The handler may have published.
        self.flush_conn(io, conn);
    }

    /// Notes that the state of a connection has changed outside of its events.
    pub(super) fn mark_http3(&mut self, conn: ConnId) {
        let Some(found) = self.quic.conns.get(conn) else { return };
        if let ConnProtocol::Http3(http3) = &mut found.protocol
            && !std::mem::replace(&mut http3.is_changed, true)
        {
            self.quic.changed.push(conn);
        }
    }

    /// Polls answers that were woken, and executes requests that wait.
    fn poll_answers_http3(&mut self, io: &mut Io, conn: ConnId, exchanges: &mut Exchanges<'_>) {
        loop {
            let Some((http3, shared)) = self.http3_and_shared(conn) else { return };
            if !std::mem::take(&mut http3.is_woken) && !http3.table.has_waiting {
                return;
            }
            let Some(opened) = (H3Streams { conn: http3, exchanges }).poll_answers(shared) else { return };
            http3.is_woken = true;
            self.open_socket(io, conn, *opened);
        }
    }

    /// Applies the state of a connection: answers, timeouts, output of sockets and bodies.
    fn flush_http3_conn(&mut self, io: &mut Io, conn: ConnId, exchanges: &mut Exchanges<'_>) {
        let now = self.time(io);
        let reads_paused = self.conn_ref(conn).is_some_and(|found| found.reads_paused);
        exchanges.pause_all_reads(reads_paused);
        if let Some((http3, _)) = self.http3_and_shared(conn) {
            http3.note_reads(reads_paused, now);
        }
        self.poll_answers_http3(io, conn, exchanges);
        self.close_replaced(io, conn);
        self.time_sockets(io, conn);
        if let Some((http3, shared)) = self.http3_and_shared(conn) {
            H3Streams { conn: http3, exchanges }.expire(shared);
        }
        // An answer that has timed out makes room for requests that wait.
        self.poll_answers_http3(io, conn, exchanges);
        while self.fill_http3(io, conn, exchanges) {}
        // All of its changes are applied.
        let is_listed = self.quic.changed.pop_if(|last| *last == conn).is_some();
        let Some((http3, shared)) = self.http3_and_shared(conn) else { return };
        H3Streams { conn: http3, exchanges }.finish(shared);
        let deadline = http3.deadline(&shared.services.http);
        // A deadline in the past would expire at once again and again.
        let deadline = if deadline <= now { now + RETRY_MIN } else { deadline };
        let before = std::mem::replace(&mut http3.armed, deadline);
        let memory = ConnMemory::new(http3.memory.0, http3.memory.1);
        if is_listed {
            // A connection is listed exactly while its flag is set.
            http3.is_changed = false;
        }
        self.quic.arm(conn, before, deadline);
        let memory = self.large_conns.counted_memory(conn, memory);
        let Some(found) = self.conn_mut(conn) else { return };
        let before = std::mem::replace(&mut found.memory, memory);
        self.update_memory(io, conn, before, memory);
    }

    /// Moves output of sockets and bodies to a connection. Returns whether sockets may have more.
    fn fill_http3(&mut self, io: &mut Io, conn: ConnId, exchanges: &mut Exchanges<'_>) -> bool {
        let Self { quic, sockets, shared, .. } = self;
        let Some(found) = quic.conns.get(conn) else { return false };
        let ConnProtocol::Http3(http3) = &mut found.protocol else { return false };
        let mut streams = H3Streams { conn: http3, exchanges };
        streams.execute_changes();
        sockets.fill(&mut streams, shared);
        sockets.fill_datagrams(&mut streams, shared);
        let moved = std::mem::take(&mut http3.sockets.moved);
        let has_moved = !moved.is_empty();
        for socket in moved {
            self.sent_socket(io, socket);
        }
        has_moved || self.http3_and_shared(conn).is_some_and(|(http3, _)| http3.has_changes())
    }

    /// Handles the end of a connection, or of a handshake.
    fn end_http3(&mut self, io: &mut Io, listener: usize, key: ConnectionKey, cause: LinkEnd, reason: &str) {
        self.time(io);
        let counters = &self.shared.services.counters;
        let Some(removed) = self.quic.conns.remove(listener, key) else {
            tracing::debug!(reason, "handshake of QUIC failed");
            return counters.tls_failures.add(1);
        };
        if cause == LinkEnd::Violation {
            tracing::debug!(reason, "HTTP/3 connection failed");
            counters.http3_failed.add(1);
        }
        let end = match cause {
            LinkEnd::Peer => ConnectionEnd::Finished,
            LinkEnd::Local if self.shared.services.is_stopping() => ConnectionEnd::Stopped,
            LinkEnd::Local => ConnectionEnd::Closed,
            LinkEnd::Lost => ConnectionEnd::Reset,
            _ => ConnectionEnd::Failed,
        };
        self.remove_conn(removed.id, removed.memory);
        self.freed += 1;
        self.shared.services.tasks.remove(removed.id);
        if let ConnProtocol::Http3(http3) = &removed.protocol {
            self.quic.due.remove(&(http3.armed, removed.id));
            self.shared.services.gate.release(http3.table.peer.ip());
            let sockets = http3.sockets.list();
            self.remove_sockets(io, sockets);
        }
        // Behind the release: a connection counts as closed once another one may take its place.
        self.shared.services.counters.closed.add(end);
        // The handlers may have published in `close`.
        self.flush_conn(io, removed.id);
    }

    /// Handles the third timer of the loop: deadlines of QUIC, and of connections.
    pub(super) fn expire_http3(&mut self, io: &mut Io) {
        let (now, turn) = (self.time(io), io.now());
        for listener in 0..self.quic.listeners.len() {
            self.with_endpoint(io, listener, |endpoint, app| endpoint.expire(app, turn));
        }
        let due: Vec<ConnId> =
            self.quic.due.iter().take_while(|(at, _)| *at <= now).map(|(_, conn)| *conn).collect();
        due.into_iter().for_each(|conn| self.mark_http3(conn));
    }

    /// Sends what the turn has changed, and sets the timer. Called at the end of each turn.
    pub(super) fn flush_http3(&mut self, io: &mut Io) {
        if self.shared.services.is_stopping() && !std::mem::replace(&mut self.quic.is_stopping, true) {
            self.stop_http3(io);
        }
        let turn = io.now();
        for conn in std::mem::take(&mut self.quic.changed) {
            let Some((http3, _)) = self.http3_and_shared(conn) else { continue };
            http3.is_changed = false;
            let (listener, key) = (http3.listener, http3.key);
            self.with_endpoint(io, listener, |endpoint, app| {
                endpoint.with_connection(key, app, turn, |_, _| ());
            });
        }
        for listener in 0..self.quic.listeners.len() {
            self.transmit(io, listener);
        }
        if self.quic.is_closable(turn, self.stop.handed_over) {
            self.quic.listeners.clear();
            io.close_datagrams();
        }
        self.arm_http3(io);
    }

    fn arm_http3(&self, io: &mut Io) {
        let endpoints = self.quic.listeners.iter().filter_map(|listener| listener.endpoint.as_ref());
        let quic = endpoints.filter_map(|endpoint| endpoint.next_timeout());
        let epoch = self.shared.services.epoch;
        let conns = self.quic.due.first().map(|(at, _)| epoch + at.since(Time::ZERO));
        let is_blocked = self.quic.listeners.iter().any(|listener| listener.unsent.is_some());
        let retry = is_blocked.then(|| io.now() + RETRY_MIN);
        let rest = (!self.quic.changed.is_empty()).then(|| io.now());
        match quic.chain(conns).chain(retry).chain(rest).min() {
            Some(at) => io.set_datagram_timer(at),
            None => io.clear_datagram_timer(),
        }
    }

    /// Sends the datagrams of an endpoint, until the send buffer is full.
    fn transmit(&mut self, io: &mut Io, listener: usize) {
        let turn = io.now();
        let Some(found) = self.quic.listeners.get_mut(listener) else { return };
        let segments = io.datagram_socket(listener).map_or(1, DatagramSocket::segments_max);
        let mut out = std::mem::take(&mut found.out);
        let mut next = found.unsent.take();
        loop {
            if next.is_none() {
                self.with_endpoint(io, listener, |endpoint, app| {
                    next = endpoint.transmit(&mut out, segments, app, turn)
                });
            }
            let Some(outgoing) = next else { break };
            let Some(socket) = io.datagram_socket(listener) else {
                // The sockets are closed: nothing can leave any more.
                next = None;
                break;
            };
            let batch = DatagramBatch::new(outgoing.destination, &out[..outgoing.len]);
            let batch = batch.with_segment(outgoing.segment).with_source(outgoing.source);
            match self.quic.send(socket, &batch.with_ecn(outgoing.ecn)) {
                Ok(true) => next = None,
                Ok(false) => break,
                Err(error) => {
                    // QUIC repeats what is lost.
                    tracing::debug!(%error, "cannot send datagrams");
                    next = None;
                }
            }
        }
        if let Some(found) = self.quic.listeners.get_mut(listener) {
            (found.out, found.unsent) = (out, next);
        }
    }

    /// Tells all clients that the server stops. After a handover to a process that passes on no datagrams, their
    /// connections end: it opens its sockets when those of this process are closed.
    fn stop_http3(&mut self, io: &mut Io) {
        let turn = io.now();
        for listener in 0..self.quic.listeners.len() {
            self.with_endpoint(io, listener, |endpoint, app| endpoint.shut_down(app, turn));
        }
        if self.stop.handed_over && !self.quic.routing.has_successor() {
            let conns: Vec<ConnId> = self.quic.conns.iter().map(|found| found.id).collect();
            for conn in conns {
                let sockets = self.http3_and_shared(conn).map(|(http3, _)| http3.sockets.list());
                for socket in sockets.unwrap_or_default() {
                    self.close_websocket(socket);
                    self.flush_conn(io, socket);
                }
                self.mark_http3(conn);
            }
            self.flush_http3(io);
            self.close_http3(io, "server restarts");
        }
    }

    /// Closes all connections at once, and the sockets once the clients are told.
    pub(super) fn close_http3(&mut self, io: &mut Io, reason: &'static str) {
        let turn = io.now();
        for listener in 0..self.quic.listeners.len() {
            self.with_endpoint(io, listener, |endpoint, app| endpoint.close(reason, app, turn));
        }
        self.quic.is_stopping = true;
        self.quic.close_by.get_or_insert(turn + CLOSE_TIME);
        self.flush_http3(io);
    }

    /// Closes a connection that holds too much memory.
    pub(super) fn shed_http3(&mut self, conn: ConnId) {
        if let Some((http3, _)) = self.http3_and_shared(conn) {
            http3.table.drop_answers();
            http3.close(H3Code::H3_EXCESSIVE_LOAD, "limit of memory");
            self.mark_http3(conn);
        }
    }
}

impl Http3Events<'_> {
    /// Handles a datagram, or passes it to the worker or the process that owns its connection.
    fn receive(&mut self, endpoint: &mut QuicEndpoint, datagram: &ReceivedDatagram<'_>) {
        let (payload, from, local, ecn) = (datagram.payload, datagram.from, datagram.local, datagram.ecn);
        let worker = &mut *self.worker;
        let routing = &worker.quic.routing;
        let owner = routing.owner(payload, worker.number);
        if matches!(owner, DatagramOwner::Receiver) {
            let now = self.io.now();
            return endpoint.receive(BytesMut::from(payload), from, local, ecn, self, now);
        }
        let listener = self.listener;
        let mailed = MailedDatagram { listener, payload: Bytes::copy_from_slice(payload), from, local, ecn };
        let is_sent = match owner {
            DatagramOwner::Process(link) => routing.forward(&link, &mailed),
            DatagramOwner::Worker(owner) => worker.mail_datagram(owner, mailed),
            DatagramOwner::Receiver => false,
        };
        let counters = &worker.shared.services.counters;
        let counter =
            if is_sent { &counters.http3_datagrams_forwarded } else { &counters.http3_datagrams_dropped };
        counter.add(1);
    }
}

/// Time to send the last datagrams of all connections. They are small, and the send buffer empties within milliseconds.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Wait before the next look at a deadline that remains, or at a send buffer that is full.
const RETRY_MIN: Duration = Duration::from_millis(1);
