//! A client of HTTP/3 with a UDP socket.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use quinn_proto::TransportConfig;
use sinews_http::h3::RequestTarget;

use super::quic_client::QuicClient;

/// Longer than any step takes on a busy machine; reached only after a failure.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which a client waits for a datagram, before it looks at its condition.
const RECEIVE_WAIT: Duration = Duration::from_millis(20);

/// A client with its socket.
pub(crate) struct Http3Client {
    pub(crate) quic: QuicClient,
    pub(crate) socket: UdpSocket,
    server: SocketAddr,
}

impl Http3Client {
    /// Creates a client that has sent nothing yet.
    pub(crate) fn start(server: SocketAddr, roots: rustls::RootCertStore) -> Self {
        Self::with_quic(QuicClient::connect(server, roots, "h3", Instant::now()), server)
    }

    pub(crate) fn with_quic(quic: QuicClient, server: SocketAddr) -> Self {
        Self { quic, socket: UdpSocket::bind("127.0.0.1:0").unwrap(), server }
    }

    pub(crate) fn connect(server: SocketAddr, roots: rustls::RootCertStore) -> Self {
        Self::start(server, roots).connected()
    }

    /// Connects with settings of the transport.
    pub(crate) fn connect_with(
        server: SocketAddr,
        roots: rustls::RootCertStore,
        transport: TransportConfig,
    ) -> Self {
        let quic = QuicClient::connect_with(server, roots, "h3", transport, Instant::now());
        Self::with_quic(quic, server).connected()
    }

    /// Connects with a window of this size for each stream.
    pub(crate) fn connect_narrow(server: SocketAddr, roots: rustls::RootCertStore, window: u32) -> Self {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(window.into());
        Self::connect_with(server, roots, transport)
    }

    pub(crate) fn connected(mut self) -> Self {
        self.run("handshake", |quic| quic.http.peer_settings().is_some());
        self
    }

    pub(crate) fn flush(&mut self) {
        for datagram in self.quic.transmit(Instant::now()) {
            // A server that has ended rejects it, as the network may.
            let _ = self.socket.send_to(&datagram, self.server);
        }
    }

    /// Exchanges datagrams until a condition holds, of this client or of its server.
    pub(crate) fn run(&mut self, what: &str, mut done: impl FnMut(&QuicClient) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.flush();
            if done(&self.quic) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", self.quic.lost, self.quic.responses);
            self.receive();
        }
    }

    /// Receives a datagram, or handles a timeout. Returns whether it was a datagram.
    pub(crate) fn receive(&mut self) -> bool {
        self.receive_within(RECEIVE_WAIT)
    }

    pub(crate) fn receive_within(&mut self, wait: Duration) -> bool {
        let now = Instant::now();
        let next = self.quic.quic.poll_timeout().map_or(wait, |at| at.saturating_duration_since(now));
        self.socket.set_read_timeout(Some(next.clamp(Duration::from_millis(1), wait))).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let received = self.socket.recv(&mut buffer);
        if let Ok(len) = received {
            self.quic.receive(&buffer[..len], Instant::now());
        }
        let now = Instant::now();
        if self.quic.quic.poll_timeout().is_some_and(|at| at <= now) {
            self.quic.quic.handle_timeout(now);
            self.quic.drive(now);
        }
        received.is_ok()
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, content: &[u8]) -> u64 {
        self.quic.ask(&RequestTarget::new(method, "https", "localhost", path), content, true)
    }

    /// Runs until the response is complete. Returns status and content.
    pub(crate) fn answer(&mut self, stream: u64) -> (u16, Vec<u8>) {
        self.run("an answer", |quic| quic.responses.get(&stream).is_some_and(|answer| answer.2));
        let (status, content, _) = self.quic.responses.remove(&stream).unwrap();
        (status, content)
    }

    /// Runs until the connection has ended for this reason.
    pub(crate) fn ends(&mut self, reason: &str) {
        self.run("the end of the connection", |quic| quic.lost.is_some());
        assert!(self.quic.lost.as_ref().unwrap().contains(reason), "{:?}", self.quic.lost);
    }
}
