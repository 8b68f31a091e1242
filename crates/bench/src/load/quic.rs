//! A load thread's QUIC endpoints: each has its own socket and connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use sinews_engine::{ConnId, DatagramSocket, Remote};
use sinews_http::h3::Config;
use sinews_quic::{ConnectionKey, Outgoing, QuicEndpoint, QuicLimits};

use crate::plan::LoadPlan;

/// A thread's endpoints, in the order of its loop's sockets.
pub(super) struct LoadEndpoints {
    pub(super) endpoints: Vec<LoadEndpoint>,
    /// The next connection's endpoint.
    next: usize,
    ids: HashMap<(usize, ConnectionKey), ConnId>,
    /// Free connection slots.
    free: Vec<u32>,
    slots: u32,
    generation: u32,
    /// Connections with output.
    pub(super) changed: Vec<ConnId>,
    /// Connections to close.
    pub(super) closing: Vec<ConnId>,
}

/// An endpoint on the socket with the same index.
pub(super) struct LoadEndpoint {
    /// Absent while it is lent.
    pub(super) endpoint: Option<Box<QuicEndpoint>>,
    /// A datagram batch.
    pub(super) out: Vec<u8>,
    /// The batch waits, since the send buffer is full.
    pub(super) unsent: Option<Outgoing>,
}

/// Maximum sockets for a thread: a server with several threads distributes connections by client address.
const SOCKETS_MAX: usize = 64;

/// The windows for a client that takes all answers at once.
const WINDOW: u32 = 1 << 30;

impl LoadEndpoints {
    /// Binds the sockets for a thread with so many connections.
    ///
    /// # Errors
    ///
    /// Returns an error if a socket cannot be bound, or TLS is not suited for QUIC.
    pub(super) fn bind(plan: &LoadPlan, connections: usize) -> Result<(Self, Vec<DatagramSocket>), String> {
        let tls = plan.tls.clone().ok_or("HTTP/3 requires TLS")?;
        let Remote::Tcp(remote) = plan.target.remote else {
            return Err("--http3 is not for Unix sockets".to_owned());
        };
        let sources = match &plan.sources[..] {
            [] if remote.is_ipv4() => vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
            [] => vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
            sources => sources.to_vec(),
        };
        let (mut endpoints, mut sockets) = (Vec::new(), Vec::new());
        for source in sources.iter().cycle().take(connections.clamp(1, SOCKETS_MAX.max(sources.len()))) {
            let socket = DatagramSocket::bind((*source, 0).into());
            sockets.push(socket.map_err(|error| format!("UDP socket of {source}: {error}"))?);
            let http = if plan.webtransport { Config::new().with_max_sessions(1) } else { Config::new() };
            endpoints.push(LoadEndpoint::new(Arc::clone(&tls), http, plan.timeout)?);
        }
        let endpoints = Self {
            endpoints,
            next: 0,
            ids: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            generation: 0,
            changed: Vec::new(),
            closing: Vec::new(),
        };
        Ok((endpoints, sockets))
    }

    /// Returns the next connection's endpoint: all in turns.
    pub(super) fn next_endpoint(&mut self) -> usize {
        self.next = (self.next + 1) % self.endpoints.len();
        self.next
    }

    /// Makes a connection's id.
    pub(super) fn add(&mut self, endpoint: usize, key: ConnectionKey) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let id = ConnId::for_stream(slot, self.generation);
        self.ids.insert((endpoint, key), id);
        id
    }

    pub(super) fn find(&self, endpoint: usize, key: ConnectionKey) -> Option<ConnId> {
        self.ids.get(&(endpoint, key)).copied()
    }

    pub(super) fn remove(&mut self, endpoint: usize, key: ConnectionKey) -> Option<ConnId> {
        let id = self.ids.remove(&(endpoint, key))?;
        // The loop has fewer than 2^31 connections.
        self.free.extend(id.stream_slot().map(|slot| slot as u32));
        Some(id)
    }
}

impl LoadEndpoint {
    fn new(tls: Arc<rustls::ClientConfig>, http: Config, timeout: Duration) -> Result<Self, String> {
        let limits = QuicLimits::new()
            .with_max_connections(usize::MAX)
            .with_handshake_timeout(timeout)
            .with_idle_timeout(IDLE_TIMEOUT)
            // The plan bounds the data in flight.
            .with_max_queued(usize::MAX)
            .with_stream_window(WINDOW)
            .with_connection_window(WINDOW);
        let endpoint = QuicEndpoint::client(tls, http, limits).map_err(|error| error.to_string())?;
        Ok(Self { endpoint: Some(Box::new(endpoint)), out: Vec::new(), unsent: None })
    }
}

/// Time without a packet after which a connection is lost. The server may have a shorter one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

#[cfg(all(test, feature = "http3"))]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn ids_of_connections_are_found_until_they_are_removed() {
        let mut endpoints = LoadEndpoints {
            endpoints: Vec::new(),
            next: 0,
            ids: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            generation: 0,
            changed: Vec::new(),
            closing: Vec::new(),
        };
        let server: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let tls = crate::trust::client(true, &[]).unwrap().with_no_client_auth();
        let mut endpoint = LoadEndpoint::new(Arc::new(tls), Config::new(), Duration::from_secs(1)).unwrap();
        let mut connect = || {
            let endpoint = endpoint.endpoint.as_mut().unwrap();
            endpoint.connect(server, "a", std::time::Instant::now()).unwrap()
        };
        let (first, second) = (connect(), connect());
        let id = endpoints.add(0, first);
        let other = endpoints.add(0, second);
        assert_ne!(id, other);
        assert_eq!((endpoints.find(0, first), endpoints.find(1, first)), (Some(id), None));
        assert_eq!(endpoints.remove(0, first), Some(id));
        assert_eq!(endpoints.find(0, first), None);
        let again = endpoints.add(1, first);
        assert_eq!(again.stream_slot(), id.stream_slot(), "the slot is used again");
        assert_ne!(again, id);
    }
}
