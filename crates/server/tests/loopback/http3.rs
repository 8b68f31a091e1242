//! HTTP/3 over QUIC, with a client of quinn-proto on a UDP socket.

mod attacks;
mod content;
mod files;
mod handover;
#[path = "../../../quic/tests/endpoints/http3_client.rs"]
mod http3_client;
mod limits;
#[path = "../../../quic/tests/endpoints/quic_client.rs"]
mod quic_client;
mod rules;
mod sessions;
mod sockets;
mod tamper;
mod waiting;

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use sinews_server::{
    Certificates, Http3Limits, HttpConfig, Listen, ListenAddress, Listeners, Monitor, Response, Router,
    Server, TlsConfig,
};
use sinews_testkit::{TestCertificate, until};

use self::http3_client::Http3Client;
use self::quic_client::QuicClient;
use crate::backend;
use crate::support::{Client, PATIENCE, Running, late, patient, wake};

const LARGE: usize = 3 << 20;

/// A server with HTTP/3 beside TLS.
struct Http3Server {
    running: Running,
    monitor: Monitor,
    roots: rustls::RootCertStore,
    /// Wakers of requests to `/later`.
    wakers: Arc<Mutex<Vec<Waker>>>,
}

fn tls() -> (TlsConfig, rustls::RootCertStore) {
    let made = TestCertificate::new();
    let certificates = Certificates::new().with_pem(made.pem().as_bytes(), made.key_pem().as_bytes());
    (TlsConfig::new(certificates.unwrap()).unwrap(), made.roots())
}

fn routes(router: Router, wakers: &Arc<Mutex<Vec<Waker>>>) -> Router {
    let (waiting, large) = (Arc::clone(wakers), bytes::Bytes::from(content::pattern(LARGE)));
    router
        .get("/", |request| {
            let text = format!("{:?} {}", request.head().version(), request.is_encrypted());
            Response::text(text).with_header("x-peer", request.peer().ip().to_string())
        })
        .fixed("/fixed", Response::text("fixed"))
        .get("/large", move |_| Response::text(large.clone()))
        .post("/len", |request| Response::text(request.body().len().to_string()))
        .get("/later", move |_| late(&waiting))
}

impl Http3Server {
    fn new(http: HttpConfig, threads: usize) -> Self {
        Self::with(http, Router::new(), |server| server.threads(threads))
    }

    /// The same, and a client of it.
    fn connected(http: HttpConfig, threads: usize) -> (Self, Http3Client) {
        let server = Self::new(http, threads);
        let client = server.connect();
        (server, client)
    }

    fn with(http: HttpConfig, router: Router, configure: impl FnOnce(Server) -> Server) -> Self {
        let (tls, roots) = tls();
        let wakers = Arc::<Mutex<Vec<Waker>>>::default();
        let server = Server::new(routes(router, &wakers)).threads(1).http(http.with_http3(true));
        let server = configure(server).engine(backend::engine());
        let bound = server.listen_tls(([127, 0, 0, 1], 0).into(), tls).bind().unwrap();
        let monitor = bound.monitor();
        Self { running: Running::bound(bound), monitor, roots, wakers }
    }

    fn connect(&self) -> Http3Client {
        Http3Client::connect(self.running.address, self.roots.clone())
    }

    fn wake(&self) {
        wake(&self.wakers);
    }
}

impl Http3Client {
    /// A client that repeats no datagram of its handshake: each repetition counts where clients are refused.
    fn start_once(server: SocketAddr, roots: rustls::RootCertStore) -> Self {
        let mut transport = quinn_proto::TransportConfig::default();
        transport.max_idle_timeout(Some(PATIENCE.try_into().unwrap())).initial_rtt(PATIENCE);
        Self::with_quic(QuicClient::connect_with(server, roots, "h3", transport, Instant::now()), server)
    }

    /// Exchanges datagrams until neither side has sent one for a moment.
    fn run_until_quiet(&mut self) {
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Duration::from_millis(200) {
            self.flush();
            if self.receive() {
                quiet_since = Instant::now();
            }
        }
    }

    /// Sends a request unless the connection has ended.
    fn ask_or_none(&mut self, method: &str, path: &str) -> Option<u64> {
        (!self.quic.quic.is_closed()).then(|| self.ask(method, path, b""))
    }

    fn get(&mut self, path: &str) -> (u16, String) {
        let stream = self.ask("GET", path, b"");
        let (status, content) = self.answer(stream);
        (status, String::from_utf8(content).unwrap())
    }

    /// Returns the length of an answer.
    fn ask_and_count(&mut self, path: &str) -> usize {
        let stream = self.ask("GET", path, b"");
        self.answer(stream).1.len()
    }

    fn header(&self, stream: u64, name: &str) -> Option<&str> {
        let mut headers = self.quic.headers[&stream].iter();
        headers.find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Moves the client to another address.
    fn migrate(&mut self) {
        self.socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    }
}

#[test]
fn requests_are_answered_over_http3() {
    let (server, mut client) = Http3Server::connected(patient(), 1);
    let stream = client.ask("GET", "/", b"");
    assert_eq!(client.answer(stream), (200, b"Http3 true".to_vec()));
    assert_eq!(client.header(stream, "x-peer"), Some("127.0.0.1"));
    assert!(client.header(stream, "date").is_some() && client.header(stream, "alt-svc").is_none());
    assert_eq!(client.header(stream, "content-length"), Some("10"));
    assert_eq!(client.get("/fixed"), (200, "fixed".to_owned()));
    assert_eq!(client.get("/none"), (404, "not found\n".to_owned()));
    let stream = client.ask("HEAD", "/", b"");
    assert_eq!(client.answer(stream), (200, Vec::new()));
    let stream = client.ask("POST", "/len", &content::pattern(200_000));
    assert_eq!(client.answer(stream), (200, b"200000".to_vec()));
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.http3_connections, metrics.accepted, metrics.tls_handshakes), (1, 1, 1));
    assert_eq!(metrics.responses, [0, 4, 0, 1, 0]);
}

#[test]
fn answers_over_tls_announce_http3() {
    let announced = std::num::NonZeroU16::new(4433);
    for given in [None, announced] {
        check_announced(patient().with_http3_announced_port(given), given);
    }
}

fn check_announced(http: HttpConfig, given: Option<std::num::NonZeroU16>) {
    let server = Http3Server::new(http, 1);
    let config = Arc::new(sinews_testkit::tls::trusting_roots(server.roots.clone()));
    let port = given.map_or_else(|| server.running.address.port(), Into::into);
    for path in ["/", "/fixed", "/none"] {
        let name = "localhost".try_into().unwrap();
        let mut tls = rustls::ClientConnection::new(Arc::clone(&config), name).unwrap();
        let Client { mut stream, .. } = server.running.connect();
        let mut stream = rustls::Stream::new(&mut tls, &mut stream);
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(answer.contains(&format!("Alt-Svc: h3=\":{port}\"; ma=86400\r\n")), "{answer}");
    }
}

/// Without a datagram of the client, nothing but the change itself leads the worker to the connection.
#[test]
fn answers_reach_a_quiet_client() {
    // No keepalive leads the worker to it, either: the next timer of the connection ends it.
    let limits = Http3Limits::default().with_ping_interval(None).with_idle_timeout(PATIENCE / 2);
    let (server, mut client) = Http3Server::connected(patient().with_http3_limits(limits), 1);
    let later = client.ask("GET", "/later", b"");
    client.run_until_quiet();
    server.wake();
    assert_eq!(client.answer(later), (200, b"late".to_vec()));
}

#[test]
fn pending_answers_leave_when_they_are_ready() {
    let (server, mut client) = Http3Server::connected(patient(), 1);
    let later = client.ask("GET", "/later", b"");
    // Other streams do not wait.
    assert_eq!(client.get("/fixed").0, 200);
    server.wake();
    assert_eq!(client.answer(later), (200, b"late".to_vec()));
}

#[test]
fn datagrams_of_a_client_that_moved_reach_the_worker_of_its_connection() {
    let (server, mut client) = Http3Server::connected(patient(), 4);
    // Most addresses lead to another worker than the first.
    for _ in 0..12 {
        client.migrate();
        assert_eq!(client.get("/fixed").0, 200);
    }
    let metrics = server.monitor.metrics();
    assert!(metrics.http3_datagrams_forwarded > 0, "{metrics:?}");
    assert_eq!((metrics.http3_connections, metrics.http3_datagrams_dropped), (1, 0));
}

#[test]
fn connections_beyond_a_limit_are_closed() {
    let limits = sinews_server::Limits::default().with_max_connections_per_address(1);
    let server = Http3Server::with(patient(), Router::new(), |server| server.limits(limits));
    let mut first = server.connect();
    let mut second = Http3Client::start_once(server.running.address, server.roots.clone());
    second.run("the refusal of the second connection", |quic| quic.lost.is_some());
    // Before its handshake.
    assert!(second.quic.lost.as_ref().unwrap().contains("refused"), "{:?}", second.quic.lost);
    assert_eq!(server.monitor.metrics().tls_handshakes, 1);
    assert_eq!(first.get("/fixed").0, 200);
    assert_eq!(server.monitor.metrics().limited.total(), 1);
    // The connection no longer counts once it has ended.
    let now = Instant::now();
    first.quic.quic.close(now, 0x100_u32.into(), bytes::Bytes::new());
    first.run("the end of the first connection", |_| server.monitor.metrics().closed.total() == 1);
    assert_eq!(server.connect().get("/fixed").0, 200);
}

#[test]
fn idle_connections_and_incomplete_handshakes_end() {
    let server = Http3Server::new(patient().with_keep_alive_timeout(Duration::from_millis(200)), 1);
    // On a busy machine, the connection may end before its first request arrives: then once more.
    let mut client = loop {
        let mut client = server.connect();
        let Some(stream) = client.ask_or_none("GET", "/fixed") else { continue };
        let has_answer = |quic: &QuicClient| quic.responses.get(&stream).is_some_and(|answer| answer.2);
        client.run("an answer", |quic| quic.lost.is_some() || has_answer(quic));
        if has_answer(&client.quic) {
            assert_eq!(client.answer(stream).0, 200);
            break client;
        }
    };
    client.ends("idle");
    // A client that never completes its handshake.
    let server = Http3Server::new(patient().with_head_timeout(Duration::from_millis(300)), 1);
    let mut client = Http3Client::start(server.running.address, server.roots.clone());
    client.flush();
    until("the end of a handshake", || server.monitor.metrics().tls_failures == 1);
}

#[test]
fn streams_and_handshakes_are_limited_as_configured() {
    let limits = Http3Limits::default().with_max_streams(3).with_retry_handshakes(0);
    let limits = limits.with_max_handshakes_per_address(2);
    let (server, mut client) = Http3Server::connected(patient().with_http3_limits(limits), 1);
    let streams = [(); 3].map(|()| client.ask("GET", "/later", b""));
    assert!(client.quic.quic.streams().open(quinn_proto::Dir::Bi).is_none(), "a fourth stream");
    client.run("requests to /later", |_| server.wakers.lock().unwrap().len() == 3);
    server.wake();
    for stream in streams {
        assert_eq!(client.answer(stream).0, 200);
    }
    // Clients that prove their address, and stall.
    let stalled = [(); 3].map(|()| {
        let mut client = Http3Client::start_once(server.running.address, server.roots.clone());
        client.flush();
        // Retry.
        while !client.receive() {}
        client.flush();
        client
    });
    until("a refused handshake", || server.monitor.metrics().http3_refused == 1);
    drop(stalled);
}

#[test]
fn absent_clients_are_lost_after_the_idle_timeout() {
    let limits = Http3Limits::default().with_idle_timeout(Duration::from_secs(10));
    let limits = limits.with_ping_interval(None);
    let server = Http3Server::new(patient().with_http3_limits(limits), 1);
    let client = server.connect();
    until("the end of the connection", || server.monitor.metrics().closed.total() == 1);
    drop(client);
}

#[test]
fn graceful_stop_finishes_answers_and_accepts_no_more() {
    let (server, mut client) = Http3Server::connected(patient(), 2);
    let later = client.ask("GET", "/later", b"");
    client.run("a request to /later", |_| !server.wakers.lock().unwrap().is_empty());
    let mut idle = server.connect();
    server.running.stop.stop();
    idle.ends("server stops");
    client.run("GOAWAY", |quic| quic.go_away.is_some());
    server.wake();
    assert_eq!(client.answer(later), (200, b"late".to_vec()));
    client.run("the end of the connection", |quic| quic.lost.is_some());
    server.running.join();
}

/// The answer has left, and the server cannot know whether it has arrived.
#[test]
fn stop_does_not_wait_for_a_client_that_acknowledges_nothing() {
    let long = Duration::from_secs(3_600);
    let limits = Http3Limits::default().with_idle_timeout(long).with_ping_interval(None);
    let http = patient().with_http3_limits(limits);
    let server = Http3Server::with(http, Router::new(), |server| server.grace(long));
    let mut transport = quinn_proto::TransportConfig::default();
    transport.max_idle_timeout(None);
    let mut client = Http3Client::connect_with(server.running.address, server.roots.clone(), transport);
    client.ask("GET", "/fixed", b"");
    client.flush();
    until("an executed request", || {
        server.monitor.metrics().responses.iter().any(|responses| *responses > 0)
    });
    server.running.stop.stop();
    server.running.join();
}

/// As the system tells clients of TCP.
#[test]
fn immediate_stop_tells_all_clients() {
    let server = Http3Server::new(patient(), 2);
    let mut clients: Vec<Http3Client> = (0..40).map(|_| server.connect()).collect();
    for (before, client) in clients.iter_mut().enumerate() {
        client.ask("GET", "/later", b"");
        client.run("a request to /later", |_| server.wakers.lock().unwrap().len() > before);
    }
    server.running.stop.stop_now();
    for mut client in clients {
        client.ends("server stops");
    }
    server.running.join();
}

/// The idle timeout of QUIC ends connections of absent clients only.
#[test]
fn pending_answers_outlive_the_idle_timeout() {
    let limits = Http3Limits::default().with_idle_timeout(Duration::from_secs(10));
    let limits = limits.with_ping_interval(Some(Duration::from_millis(300)));
    let (server, mut client) = Http3Server::connected(patient().with_http3_limits(limits), 1);
    let later = client.ask("GET", "/later", b"");
    let start = Instant::now();
    client.run("time", |_| start.elapsed() > Duration::from_secs(12));
    assert!(client.quic.lost.is_none(), "{:?}", client.quic.lost);
    server.wake();
    assert_eq!(client.answer(later), (200, b"late".to_vec()));
}
