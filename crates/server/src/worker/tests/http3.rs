//! HTTP/3 with a full send buffer.

#[path = "../../../../quic/tests/endpoints/quic_client.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod quic_client;

use std::net::UdpSocket;

use sinews_engine::DatagramSocket;
use sinews_http::h3::{Config, RequestTarget};
use sinews_quic::{QuicEndpoint, QuicLimits};

use self::quic_client::QuicClient;
use super::*;
use crate::worker::http3::CLOSE_TIME;
use crate::worker::quic::QuicState;
use crate::{Certificates, TlsConfig};

/// Clients with a request to `/later` each. The datagrams to all of them do not fit into one send.
const CLIENTS: usize = 5;

/// A client, and its socket, which never blocks.
struct Client {
    quic: QuicClient,
    socket: UdpSocket,
    server: SocketAddr,
}

impl Client {
    /// Sends and receives what there is.
    fn exchange(&mut self) {
        let now = Instant::now();
        for datagram in self.quic.transmit(now) {
            // A server that has ended rejects it.
            let _ = self.socket.send_to(&datagram, self.server);
        }
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            self.quic.receive(&buffer[..len], now);
        }
        if self.quic.quic.poll_timeout().is_some_and(|at| at <= now) {
            self.quic.quic.handle_timeout(now);
            self.quic.drive(now);
        }
    }
}

/// Adds HTTP/3 to a server. Returns clients whose requests have arrived.
fn waiting_clients(host: &mut TestServer) -> Vec<Client> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificates = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let tls = TlsConfig::new(certificates).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let socket = DatagramSocket::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let server = socket.local_address().unwrap();
    host.engine.add_datagrams(socket).unwrap();
    let routing = Arc::new(QuicRouting::new(1, None));
    let (routes, route) = (routing.routes().clone(), routing.route(0));
    let endpoint = QuicEndpoint::new(tls.http3(), Config::new(), QuicLimits::new(), routes, route).unwrap();
    host.worker.quic = QuicState::new(routing, vec![endpoint]);
    let client = |_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Client { quic: QuicClient::connect(server, roots.clone(), "h3", Instant::now()), socket, server }
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(client).collect();
    host.turn_until(|_| {
        clients.iter_mut().for_each(Client::exchange);
        clients.iter().all(|client| client.quic.http.peer_settings().is_some())
    });
    for client in &mut clients {
        client.quic.ask(&RequestTarget::new("GET", "https", "localhost", "/later"), b"", true);
    }
    host.turn_until(|host| {
        clients.iter_mut().for_each(Client::exchange);
        host.wakers.lock().len() == CLIENTS
    });
    clients
}

/// Runs a test on both backends.
fn with_waiting_clients(test: impl Fn(TestServer, Vec<Client>)) {
    on_each_backend(|mut host| {
        let clients = waiting_clients(&mut host);
        test(host, clients);
    });
}

/// Stops a server at once whose send buffer is full.
fn stop_now(host: &mut TestServer) {
    host.worker.quic.is_send_buffer_full = true;
    host.worker.stop.level.raise(Stop::Now);
    host.engine.post().wake();
}

/// Runs a turn. Returns whether the loop continues.
fn continues(host: &mut TestServer) -> bool {
    host.engine.turn(&mut host.worker, Some(Duration::from_millis(10))).unwrap()
}

#[test]
fn immediate_stop_waits_for_a_full_send_buffer_until_all_clients_are_told() {
    with_waiting_clients(|mut host, mut clients| {
        stop_now(&mut host);
        for _ in 0..5 {
            assert!(continues(&mut host), "the server waits for the send buffer");
            clients.iter_mut().for_each(Client::exchange);
            assert!(clients.iter().all(|client| client.quic.lost.is_none()));
        }
        assert!(host.worker.quic.listeners[0].unsent.is_some());
        host.worker.quic.is_send_buffer_full = false;
        let deadline = Instant::now() + Duration::from_secs(60);
        while continues(&mut host) {
            assert!(Instant::now() < deadline, "the server stops once all datagrams are sent");
        }
        for mut client in clients {
            client.exchange();
            let reason = client.quic.lost.unwrap();
            assert!(reason.contains("server stops"), "{reason}");
        }
    });
}

#[test]
fn immediate_stop_waits_for_a_full_send_buffer_for_a_limited_time() {
    with_waiting_clients(|mut host, mut clients| {
        stop_now(&mut host);
        let begun = Instant::now();
        while continues(&mut host) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the wait has a limit");
        }
        assert!(begun.elapsed() >= CLOSE_TIME, "{:?}", begun.elapsed());
        clients.iter_mut().for_each(Client::exchange);
        assert!(clients.iter().all(|client| client.quic.lost.is_none()));
    });
}
