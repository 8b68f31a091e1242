//! HTTP/3 connections: their endpoints lend them for events, and send at the end of the turn.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::BytesMut;
use sinews_engine::{ConnId, DatagramBatch, DatagramSocket, Io, Remote};
use sinews_http::h3::{Event, H3Code, QuicStreamId};
use sinews_quic::{ConnectionKey, Exchanges, Http3App, LinkEnd, QuicEndpoint};

use super::{LoadApp, RETRY, slot};
use crate::load::connection::LoadConnection;
use crate::load::failure::ConnectionFailure;
use crate::load::protocol::LoadProtocol;
use crate::load::quic::LoadEndpoints;
use crate::load::tracker::Nanos;
use crate::load::traffic::SocketTraffic;
use crate::tally::FailureKind;

/// The load as an endpoint's application, which is lent.
struct LoadEvents<'a> {
    load: &'a mut LoadApp,
    io: &'a mut Io,
    endpoint: usize,
}

impl LoadEvents<'_> {
    fn id(&self, connection: ConnectionKey) -> Option<ConnId> {
        self.load.quic.as_ref()?.find(self.endpoint, connection)
    }
}

impl Http3App for LoadEvents<'_> {
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        let Some(id) = self.id(exchanges.connection()) else { return };
        let LoadApp { conns, thread_state, resources, config, .. } = &mut *self.load;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        let LoadProtocol::Http3(http3) = &mut conn.protocol else { return };
        match http3.receive(event, &mut conn.traffic, thread_state, resources, config) {
            Ok(()) => self.load.settle(self.io, id),
            Err(failure) => self.load.fault(self.io, id, failure),
        }
    }

    fn handle_datagram(&mut self, exchanges: &mut Exchanges<'_>, session: QuicStreamId, payload: &[u8]) {
        let Some(id) = self.id(exchanges.connection()) else { return };
        let LoadApp { conns, thread_state, resources, .. } = &mut *self.load;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        let LoadProtocol::Http3(http3) = &mut conn.protocol else { return };
        match http3.receive_datagram(session, payload, &mut conn.traffic, thread_state, resources) {
            Ok(()) => self.load.settle(self.io, id),
            Err(failure) => self.load.fault(self.io, id, failure),
        }
    }

    fn handle_writable(&mut self, exchanges: &mut Exchanges<'_>, stream: QuicStreamId) {
        if !exchanges.is_blocked(stream)
            && let Some(id) = self.id(exchanges.connection())
            && let Some(LoadConnection { protocol: LoadProtocol::Http3(http3), .. }) = self.load.conn(id)
        {
            http3.writable(stream);
        }
    }

    fn handle_batch_end(&mut self, exchanges: &mut Exchanges<'_>) {
        let Some(id) = self.id(exchanges.connection()) else { return };
        let LoadApp { conns, thread_state, resources, .. } = &mut *self.load;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        let LoadProtocol::Http3(http3) = &mut conn.protocol else { return };
        if let Err(failure) = http3.fill(exchanges, thread_state, resources) {
            self.load.fault(self.io, id, failure);
        }
    }

    fn handle_end(&mut self, connection: ConnectionKey, cause: LinkEnd, reason: &str) {
        let endpoint = self.endpoint;
        let id = self.load.quic.as_mut().and_then(|quic| quic.remove(endpoint, connection));
        let removed = id.and_then(|id| self.load.conns.get_mut(slot(id)).and_then(Option::take));
        let Some(conn) = removed else { return };
        let kind = match cause {
            LinkEnd::Lost if !conn.open => FailureKind::ConnectTimeout,
            LinkEnd::Lost => FailureKind::Reset,
            LinkEnd::Violation if !conn.open => FailureKind::Tls,
            LinkEnd::Violation => FailureKind::Protocol,
            _ => FailureKind::Closed,
        };
        self.load.handle_closed(kind, reason.to_owned(), conn);
    }
}

impl LoadApp {
    /// Gives this load the HTTP/3 endpoints, whose sockets its loop has.
    pub(crate) fn with_endpoints(mut self, endpoints: Option<LoadEndpoints>) -> Self {
        self.quic = endpoints;
        self
    }

    /// Lends an endpoint, and this load as its application.
    fn with_endpoint<T>(
        &mut self,
        io: &mut Io,
        endpoint: usize,
        call: impl FnOnce(&mut QuicEndpoint, &mut LoadEvents<'_>) -> T,
    ) -> Option<T> {
        let mut lent = self.quic.as_mut()?.endpoints.get_mut(endpoint)?.endpoint.take()?;
        let result = call(&mut lent, &mut LoadEvents { load: self, io, endpoint });
        self.quic.as_mut()?.endpoints.get_mut(endpoint)?.endpoint = Some(lent);
        Some(result)
    }

    /// Starts an HTTP/3 connection.
    pub(super) fn open_http3(&mut self, io: &mut Io, ordinal: usize, waiting: VecDeque<Nanos>) {
        let plan = self.thread_state.plan.clone();
        let traffic = self.traffic(ordinal, waiting);
        let Some((target, protocol)) = LoadProtocol::from_plan(&plan, &traffic) else { return };
        let (Some(quic), Remote::Tcp(remote)) = (&mut self.quic, &target.remote) else { return };
        let endpoint = quic.next_endpoint();
        let now = self.thread_state.now;
        let connected = self.with_endpoint(io, endpoint, |quic, _| quic.connect(*remote, &target.name, now));
        match connected {
            Some(Ok(key)) => self.add_http3(endpoint, key, ordinal, traffic, protocol),
            Some(Err(error)) => {
                self.thread_state.fail(FailureKind::Tls, 1, || error.to_string());
                self.thread_state.live.settled.add(1);
            }
            None => {}
        }
    }

    fn add_http3(
        &mut self,
        endpoint: usize,
        key: ConnectionKey,
        ordinal: usize,
        traffic: smallvec::SmallVec<[SocketTraffic; 1]>,
        protocol: LoadProtocol,
    ) {
        let Some(quic) = &mut self.quic else { return };
        let id = quic.add(endpoint, key);
        self.insert(LoadConnection {
            id,
            requested_at: self.thread_state.now,
            ordinal,
            traffic,
            protocol,
            tls: None,
            quic: Some((endpoint, key)),
            open: false,
            closing: false,
        });
    }

    /// Receives once from a socket. Returns whether more datagrams may be available.
    pub(super) fn receive_datagrams(
        &mut self,
        io: &mut Io,
        endpoint: usize,
        socket: &mut DatagramSocket,
    ) -> bool {
        self.thread_state.at(Instant::now());
        let received = self.with_endpoint(io, endpoint, |quic, events| {
            let now = events.load.thread_state.now;
            socket.receive(|datagram| {
                let payload = BytesMut::from(datagram.payload);
                quic.receive(payload, datagram.from, datagram.local, datagram.ecn, events, now);
            })
        });
        self.publish_burst(io);
        if self.working && self.thread_state.is_spent() {
            self.report_done();
        }
        received.is_some_and(|received| {
            received.unwrap_or_else(|error| {
                self.thread_state.fail(FailureKind::Io, 1, || format!("UDP: {error}"));
                false
            })
        })
    }

    /// Handles QUIC deadlines.
    pub(super) fn expire_http3(&mut self, io: &mut Io) {
        self.thread_state.at(Instant::now());
        let count = self.quic.as_ref().map_or(0, |quic| quic.endpoints.len());
        for endpoint in 0..count {
            self.with_endpoint(io, endpoint, |quic, events| {
                let now = events.load.thread_state.now;
                quic.expire(events, now);
            });
        }
    }

    /// Fails connections that were not open in time: QUIC bounds only its own handshake.
    pub(super) fn expire_openings(&mut self, io: &mut Io) {
        if self.quic.is_none() || self.thread_state.live.settled.get() >= self.requested {
            return;
        }
        let (now, timeout) = (self.thread_state.now, self.thread_state.plan.timeout);
        let is_late =
            |conn: &&LoadConnection| !conn.open && !conn.closing && conn.requested_at + timeout < now;
        let late: Vec<ConnId> = self.conns.iter().flatten().filter(is_late).map(|conn| conn.id).collect();
        for id in late {
            let text = "connection or handshake timed out";
            self.fault(io, id, ConnectionFailure::new(FailureKind::ConnectTimeout, text));
        }
    }

    /// Sends what the turn has changed, and sets the timer.
    pub(super) fn flush_http3(&mut self, io: &mut Io) {
        let Some(quic) = &mut self.quic else { return };
        let changed = std::mem::take(&mut quic.changed);
        let closing = std::mem::take(&mut quic.closing);
        for id in changed {
            self.lend_http3(io, id, |_| ());
        }
        for id in closing {
            self.lend_http3(io, id, |exchanges| exchanges.close(H3Code::H3_NO_ERROR, ""));
        }
        self.open_replacements(io);
        let count = self.quic.as_ref().map_or(0, |quic| quic.endpoints.len());
        let mut next: Option<Instant> = None;
        for endpoint in 0..count {
            let timeout = self.transmit(io, endpoint);
            next = next.into_iter().chain(timeout).min();
        }
        match next {
            Some(at) => io.set_datagram_timer(at),
            None => io.clear_datagram_timer(),
        }
        if self.ending && self.conns.iter().all(Option::is_none) {
            io.stop();
        }
    }

    fn lend_http3(&mut self, io: &mut Io, id: ConnId, call: impl FnOnce(&mut Exchanges<'_>)) {
        let Some((endpoint, key)) = self.conn(id).and_then(|conn| conn.quic) else { return };
        self.with_endpoint(io, endpoint, |quic, events| {
            let now = events.load.thread_state.now;
            quic.with_connection(key, events, now, |_, exchanges| call(exchanges))
        });
    }

    /// Sends an endpoint's datagrams, until the send buffer is full. Returns the time of the next call.
    fn transmit(&mut self, io: &mut Io, endpoint: usize) -> Option<Instant> {
        let found = self.quic.as_mut()?.endpoints.get_mut(endpoint)?;
        let (mut out, mut next) = (std::mem::take(&mut found.out), found.unsent.take());
        let segments = io.datagram_socket(endpoint).map_or(1, DatagramSocket::segments_max);
        loop {
            if next.is_none() {
                next = self
                    .with_endpoint(io, endpoint, |quic, events| {
                        let now = events.load.thread_state.now;
                        quic.transmit(&mut out, segments, events, now)
                    })
                    .flatten();
            }
            let Some(outgoing) = next else { break };
            let Some(socket) = io.datagram_socket(endpoint) else { break };
            let batch = DatagramBatch::new(outgoing.destination, &out[..outgoing.len]);
            let batch = batch.with_segment(outgoing.segment).with_source(outgoing.source);
            match socket.send(&batch.with_ecn(outgoing.ecn)) {
                Ok(false) => break,
                // QUIC repeats what is lost.
                Ok(true) | Err(_) => next = None,
            }
        }
        let retry = next.is_some().then(|| self.thread_state.now + RETRY);
        let found = self.quic.as_mut()?.endpoints.get_mut(endpoint)?;
        (found.out, found.unsent) = (out, next);
        let timeout = found.endpoint.as_ref().and_then(|quic| quic.next_timeout());
        retry.into_iter().chain(timeout).min()
    }
}
