//! A worker's connections.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, Incoming, Transmit,
};
use sinews_http::h3::{Config, FieldBuffer, H3Code};

use crate::app::{Http3App, LinkEnd, Outgoing};
use crate::config;
use crate::connection::Http3Link;
use crate::exchanges::{ConnectionKey, Exchanges};
use crate::handshakes::{ClientNetwork, Handshakes};
use crate::ids::{ConnectionRoutes, WorkerRoute};
use crate::limits::{QuicConnectError, QuicLimits, QuicSetupError};
use crate::links::{LinkDeadlines, Links};

/// One worker's HTTP/3 connections.
pub struct QuicEndpoint {
    quic: Endpoint,
    /// Configuration for connections that this side opens.
    client: Option<ClientConfig>,
    http: Config,
    limits: QuicLimits,
    links: Links,
    /// Changed links: they may have datagrams to send.
    changed: BTreeSet<usize>,
    /// The first link that sends next.
    next_changed: usize,
    deadlines: LinkDeadlines,
    handshakes: Handshakes,
    fields: FieldBuffer,
    /// Answers without a connection: Retry, version negotiation, stateless reset, refusal.
    responses: Vec<(Transmit, Vec<u8>)>,
    is_closing: bool,
    /// All connections were closed: new clients' datagrams are for a successor.
    is_closed: bool,
    refused: u64,
}

/// Datagrams in one send with segmentation offload: Linux takes 64. More would delay other connections.
const SEGMENTS_MAX: usize = 16;

/// Queued answers without a connection. Further answers are dropped: a flood of invalid datagrams needs no answer.
const RESPONSES_MAX: usize = 64;

impl QuicEndpoint {
    /// Creates a worker's endpoint. `tls` must offer `h3` by ALPN.
    ///
    /// # Errors
    /// [`QuicSetupError`].
    pub fn new(
        tls: Arc<rustls::ServerConfig>,
        http: Config,
        limits: QuicLimits,
        routes: ConnectionRoutes,
        route: WorkerRoute,
    ) -> Result<Self, QuicSetupError> {
        let server = limits.server(tls, &http)?;
        let config = config::endpoint(routes, route)?;
        let quic = Endpoint::new(Arc::new(config), Some(Arc::new(server)), true, None);
        Ok(Self::with_parts(quic, None, http, limits))
    }

    fn with_parts(quic: Endpoint, client: Option<ClientConfig>, http: Config, limits: QuicLimits) -> Self {
        Self {
            quic,
            client,
            http,
            limits,
            links: Links::default(),
            changed: BTreeSet::new(),
            next_changed: 0,
            deadlines: LinkDeadlines::default(),
            handshakes: Handshakes::default(),
            fields: FieldBuffer::new(),
            responses: Vec::new(),
            is_closing: false,
            is_closed: false,
            refused: 0,
        }
    }

    /// Creates an endpoint that accepts no connection, and [connects](Self::connect) to servers. `tls` must offer `h3` by
    /// ALPN.
    ///
    /// # Errors
    /// [`QuicSetupError`].
    pub fn client(
        tls: Arc<rustls::ClientConfig>,
        http: Config,
        limits: QuicLimits,
    ) -> Result<Self, QuicSetupError> {
        let client = limits.client(tls, &http)?;
        let config = config::endpoint(ConnectionRoutes::new(), WorkerRoute::new(0, 0))?;
        let quic = Endpoint::new(Arc::new(config), None, true, None);
        Ok(Self::with_parts(quic, Some(client), http, limits))
    }

    /// Starts a connection to a server. `name` is the name in its certificate. [`Http3App::handle_start`] or
    /// [`Http3App::handle_end`] follows.
    ///
    /// # Errors
    /// [`QuicConnectError`].
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        name: &str,
        now: Instant,
    ) -> Result<ConnectionKey, QuicConnectError> {
        let client = self.client.clone().ok_or(QuicConnectError::NotClient)?;
        let (handle, quic) = self.quic.connect(now, client, remote, name).map_err(QuicConnectError::Quic)?;
        let key = ConnectionKey(handle);
        let link = Http3Link::new(quic, self.http, key, &self.limits, None, now);
        self.links.insert(handle, Box::new(link.into_client(self.http)));
        self.handshakes.start(None);
        self.changed.insert(handle.0);
        Ok(key)
    }

    /// Number of connections, handshakes included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.links.len()
    }

    /// Number of connections with an incomplete handshake.
    #[must_use]
    pub const fn handshakes(&self) -> usize {
        self.handshakes.total()
    }

    /// Number of connections refused since the last call, for a connection or handshake limit.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Number of open requests and sessions. After [`shut_down`](Self::shut_down) it falls to 0.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.links.values().map(|link| link.requests()).sum()
    }

    /// Handles a received datagram. `ecn` are the bits of its IP header.
    pub fn receive(
        &mut self,
        datagram: BytesMut,
        from: SocketAddr,
        local: Option<IpAddr>,
        ecn: u8,
        app: &mut dyn Http3App,
        now: Instant,
    ) {
        let mut response = Vec::new();
        let (len, ecn) = (datagram.len(), EcnCodepoint::from_bits(ecn));
        match self.quic.handle(now, from, local, ecn, datagram, &mut response) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(link) = self.links.get_mut(&handle) {
                    link.receive(len, event);
                    self.drive(handle, app, now);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.accept(incoming, app, now),
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit, response),
            None => {}
        }
    }

    fn respond(&mut self, transmit: Transmit, bytes: Vec<u8>) {
        if self.responses.len() < RESPONSES_MAX {
            self.responses.push((transmit, bytes));
        }
    }

    fn accept(&mut self, incoming: Incoming, app: &mut dyn Http3App, now: Instant) {
        if self.is_closed {
            return self.quic.ignore(incoming);
        }
        let mut response = Vec::new();
        let address = incoming.remote_address().ip();
        let client = incoming.remote_address_validated().then(|| ClientNetwork::new(address));
        let is_full = self.links.len() >= self.limits.max_connections
            || self.handshakes.total() >= self.limits.max_handshakes
            || self.handshakes.count(client) >= self.limits.max_handshakes_per_address;
        if self.is_closing || is_full || !app.admits(address) {
            self.refused += u64::from(is_full);
            let transmit = self.quic.refuse(incoming, &mut response);
            return self.respond(transmit, response);
        }
        if self.handshakes.total() >= self.limits.retry_at && client.is_none() {
            if let Ok(transmit) = self.quic.retry(incoming, &mut response) {
                self.respond(transmit, response);
            }
            return;
        }
        match self.quic.accept(incoming, now, &mut response, None) {
            Ok((handle, connection)) => {
                let key = ConnectionKey(handle);
                let link = Http3Link::new(connection, self.http, key, &self.limits, client, now);
                self.links.insert(handle, Box::new(link));
                self.handshakes.start(client);
                self.drive(handle, app, now);
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.respond(transmit, response);
                }
            }
        }
    }

    /// Handles a connection's events, and removes it at its end.
    fn drive(&mut self, handle: ConnectionHandle, app: &mut dyn Http3App, now: Instant) {
        let Some(link) = self.links.get_mut(&handle) else { return };
        let was_connected = link.is_connected();
        if !link.is_ended {
            link.drive(app, &mut self.fields, now);
        }
        while let Some(event) = link.quic.poll_endpoint_events() {
            if let Some(event) = self.quic.handle_event(handle, event) {
                link.quic.handle_event(event);
            }
        }
        let (is_connected, is_drained) = (link.is_connected(), link.quic.is_drained());
        let client = link.client;
        let timeout = link.timeout(self.limits.handshake_timeout).filter(|_| !is_drained);
        self.deadlines.set(handle.0, timeout);
        if !was_connected && (is_connected || is_drained) {
            self.handshakes.finish(client);
        }
        if is_drained {
            self.links.remove(&handle);
            self.changed.remove(&handle.0);
        } else {
            self.changed.insert(handle.0);
        }
    }

    /// Lends a connection outside an event, for example to send a publication; [`Http3App::handle_batch_end`] follows.
    /// `None`: it exists no longer.
    pub fn with_connection<A: Http3App, T>(
        &mut self,
        connection: ConnectionKey,
        app: &mut A,
        now: Instant,
        call: impl FnOnce(&mut A, &mut Exchanges<'_>) -> T,
    ) -> Option<T> {
        let link = self.links.get_mut(&connection.0).filter(|link| !link.is_ended)?;
        let result = call(app, &mut link.exchanges(now));
        self.drive(connection.0, app, now);
        Some(result)
    }

    /// The time of the next call of [`expire`](Self::expire), which may have nothing to do then: deadlines that move back with each
    /// packet are not followed.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.first()
    }

    /// Handles timeouts up to `now`.
    pub fn expire(&mut self, app: &mut dyn Http3App, now: Instant) {
        while let Some(handle) = self.deadlines.take_due(now) {
            let handle = ConnectionHandle(handle);
            if let Some(link) = self.links.get_mut(&handle) {
                link.expire(self.limits.handshake_timeout, app, now);
                self.drive(handle, app, now);
            }
        }
    }

    /// Replaces `out` by the next datagrams to send, at most `segments`, for connections in turn. `None`: there are none until
    /// another call.
    pub fn transmit(
        &mut self,
        out: &mut Vec<u8>,
        segments: usize,
        app: &mut dyn Http3App,
        now: Instant,
    ) -> Option<Outgoing> {
        out.clear();
        if let Some((transmit, bytes)) = self.responses.pop() {
            out.extend_from_slice(&bytes[..transmit.size]);
            return Some(outgoing(&transmit));
        }
        while let Some(handle) = self.next_changed() {
            let mut transmit = self.transmit_of(handle, out, segments, now);
            if transmit.is_none() {
                // Sending moves timeouts, may need identifiers, and the application may send more.
                if let Some(link) = self.links.get_mut(&handle) {
                    link.note_sent();
                }
                self.drive(handle, app, now);
                transmit = self.transmit_of(handle, out, segments, now);
            }
            if transmit.is_some() {
                self.next_changed = handle.0 + 1;
                return transmit;
            }
            self.changed.remove(&handle.0);
        }
        None
    }

    /// Returns the changed link that sends next. A busy one does not delay the others, although the send buffer is full.
    fn next_changed(&self) -> Option<ConnectionHandle> {
        let next = self.changed.range(self.next_changed..).next().or_else(|| self.changed.first());
        next.copied().map(ConnectionHandle)
    }

    fn transmit_of(
        &mut self,
        handle: ConnectionHandle,
        out: &mut Vec<u8>,
        segments: usize,
        now: Instant,
    ) -> Option<Outgoing> {
        let link = self.links.get_mut(&handle)?;
        let segments = segments.clamp(1, SEGMENTS_MAX);
        link.quic.poll_transmit(now, segments, out).map(|transmit| outgoing(&transmit))
    }

    /// Accepts no more connections, and tells the clients to send no more requests. After a round trip, further requests are rejected.
    pub fn shut_down(&mut self, app: &mut dyn Http3App, now: Instant) {
        self.is_closing = true;
        for handle in self.links.handles() {
            if let Some(link) = self.links.get_mut(&handle) {
                link.shut_down(now);
            }
            self.drive(handle, app, now);
        }
    }

    /// Closes all connections at once, and ignores new clients: they try again, and find this process's successor.
    pub fn close(&mut self, reason: &'static str, app: &mut dyn Http3App, now: Instant) {
        (self.is_closing, self.is_closed) = (true, true);
        for handle in self.links.handles() {
            if let Some(link) = self.links.get_mut(&handle) {
                link.end(H3Code::H3_NO_ERROR, reason, LinkEnd::Local, app, now);
            }
            self.drive(handle, app, now);
        }
    }
}

fn outgoing(transmit: &Transmit) -> Outgoing {
    Outgoing {
        destination: transmit.destination,
        len: transmit.size,
        segment: transmit.segment_size,
        ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
        source: transmit.src_ip,
    }
}
