//! Memory of answers that a client of HTTP/2 or HTTP/3 does not take.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use quinn_proto::TransportConfig;
use serde_json::Value;
use sinews_http::h3::RequestTarget;
use sinews_hub::{Hub, StreamOptions, key_value_of_json};
use sinews_server::{Certificates, Config, HttpConfig, KeyWrite, Monitor, Router, Server, TlsConfig};
use sinews_testkit::{exclude_this_thread, idle_live_bytes, live_bytes, measure_alone};

use crate::backend;
use crate::quic_client::QuicClient;

/// Requests of one connection.
const REQUESTS: usize = 100;

/// Bound of the memory of one client, at any time.
const HELD_MAX: isize = 4 << 20;

/// Memory that may remain after a client: spare buffers and tables.
const REMAINS: isize = 512 << 10;

/// Deadline of an event of the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Paths with large answers, and the accepted media type.
const CASES: [(&str, &str); 9] = [
    ("/topics/large/keys", "*/*"),
    ("/topics/large/keys?filter=*.value", "*/*"),
    ("/topics/large/keys/1.value", "*/*"),
    ("/topics/large/keys?wait=30", "application/json"),
    ("/topics/large/keys?wait=30&filter=*.>", "application/json"),
    ("/topics/large/keys?filter=*.>", "text/event-stream"),
    ("/streams/large?max=10000", "*/*"),
    ("/streams/large/records", "*/*"),
    ("/streams/large/records?follow=true", "application/x-ndjson"),
];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const PING: u8 = 6;

/// A GET request.
fn request(stream: u32, path: &str, accept: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x09localhost\x00\x06accept");
    block.push(accept.len() as u8);
    block.extend_from_slice(accept.as_bytes());
    frame(1, 5, stream, &block)
}

/// A client of HTTP/2 whose streams have windows of this size.
struct Http2Client(TcpStream);

impl Http2Client {
    fn connect(address: SocketAddr, window: u32) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        stream.write_all(&frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat())).unwrap();
        stream.write_all(&frame(4, 1, 0, &[])).unwrap();
        Self(stream)
    }

    fn read(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        self.0.read_exact(&mut payload).unwrap();
        (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload)
    }

    /// Waits until the server has handled all frames so far.
    fn sync(&mut self) {
        self.0.write_all(&frame(PING, 0, 0, &[1; 8])).unwrap();
        while !matches!(self.read(), (PING, 1, ..)) {}
    }
}

/// A client of HTTP/3 whose streams have small windows.
struct Http3Client {
    quic: QuicClient,
    socket: UdpSocket,
    server: SocketAddr,
}

impl Http3Client {
    fn connect(server: SocketAddr, roots: &rustls::RootCertStore) -> Self {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(1000_u32.into());
        let quic = QuicClient::connect_with(server, roots.clone(), "h3", transport, Instant::now());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut client = Self { quic, socket, server };
        client.run(|quic| quic.http.peer_settings().is_some());
        client
    }

    fn ask(&mut self, path: &str, accept: &str) {
        let target = RequestTarget::new("GET", "https", "localhost", path);
        let stream = self.quic.ask_with(&target, [("accept", accept)], b"", true);
        self.quic.unread.insert(stream);
    }

    fn flush(&mut self) {
        for datagram in self.quic.transmit(Instant::now()) {
            self.socket.send_to(&datagram, self.server).unwrap();
        }
    }

    /// Exchanges datagrams until a condition holds.
    fn run(&mut self, mut done: impl FnMut(&QuicClient) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = vec![0; 1 << 16];
        self.socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        self.flush();
        while !done(&self.quic) {
            assert!(Instant::now() < deadline, "{:?}", self.quic.lost);
            if let Ok(len) = self.socket.recv(&mut buffer) {
                self.quic.receive(&buffer[..len], Instant::now());
            }
            let now = Instant::now();
            if self.quic.quic.poll_timeout().is_some_and(|at| at <= now) {
                self.quic.quic.handle_timeout(now);
                self.quic.drive(now);
            }
            self.flush();
        }
    }
}

/// Sends a request of HTTP/1.1, and returns the body of its answer.
fn ask(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = body.len();
    let headers = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-ndjson";
    write!(stream, "{head} {headers}\r\nContent-Length: {len}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

/// Waits until the memory of a client that has left is free.
fn await_memory(base: isize, monitor: &Monitor) {
    let deadline = Instant::now() + PATIENCE;
    while live_bytes() - base > REMAINS {
        let metrics = monitor.metrics();
        assert!(Instant::now() < deadline, "{} bytes, {metrics:?}", live_bytes() - base);
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Writes keys of 12 MiB, and records of 2 MiB.
fn fill(address: SocketAddr, publisher: &sinews_server::Publisher) {
    let value = key_value_of_json(&format!("\"{}\"", "x".repeat(60_000))).unwrap();
    for key in 0..200 {
        publisher.write_key("large", &KeyWrite::set(format!("{key}.value"), value.to_vec())).unwrap();
    }
    let lines = format!("\"{}\"\n", "y".repeat(20_000)).repeat(10);
    for _ in 0..10 {
        ask(address, "POST /streams/large", &lines);
    }
}

/// Checks the answers that a client takes.
fn check_content(clear: SocketAddr) {
    let page: Value = serde_json::from_str(&ask(clear, "GET /topics/large/keys", "")).unwrap();
    let keys = page["keys"].as_array().unwrap();
    assert_eq!((keys.len(), page["more"].as_bool()), (200, Some(false)));
    assert!(keys.iter().all(|key| key["data"].as_str().unwrap().len() == 60_000));
    let empty: Value = serde_json::from_str(&ask(clear, "GET /topics/none/keys", "")).unwrap();
    assert_eq!(empty["keys"], Value::Array(Vec::new()));
    let lines = ask(clear, "GET /streams/large?max=10000", "");
    let offsets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64());
    assert_eq!(offsets.collect::<Vec<_>>(), (0..100).map(Some).collect::<Vec<_>>());
    let lines = ask(clear, "GET /streams/large?from=7&max=3", "");
    let offsets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64());
    assert_eq!(offsets.collect::<Vec<_>>(), [Some(7), Some(8), Some(9)]);
}

#[test]
fn client_that_takes_no_answer_holds_at_most_4_mib() {
    let _alone = measure_alone();
    exclude_this_thread();
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificates = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    // No timeout ends an answer.
    let long = Duration::from_secs(3_600);
    let websocket =
        Config::default().with_ping_interval(None).with_idle_timeout(None).with_write_timeout(long);
    let hub = Hub::builder().streams(StreamOptions::in_directory(directory.path())).websocket(websocket);
    let hub = hub.without_pages().build().unwrap();
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1).engine(backend::engine());
    let http = HttpConfig::default().with_http2_clear_text(true).with_http3(true);
    let server = server.http(http.with_write_timeout(long).with_http2_ping_interval(None));
    let server = server.listen(([127, 0, 0, 1], 0).into());
    let server = server.listen_tls(([127, 0, 0, 1], 0).into(), TlsConfig::new(certificates).unwrap());
    let server = server.bind().unwrap();
    let hub = hub.start(&server).unwrap();
    let (publisher, stop, monitor) = (server.publisher(), server.stop_handle(), server.monitor());
    let (clear, encrypted) = (server.addresses()[0], server.addresses()[1]);
    let running = thread::spawn(|| server.run());
    fill(clear, &publisher);

    check_content(clear);
    for (path, accept) in CASES {
        for window in [0, 1] {
            let base = idle_live_bytes();
            let mut client = Http2Client::connect(clear, window);
            let requests = (0..REQUESTS).map(|number| request(2 * number as u32 + 1, path, accept));
            client.0.write_all(&requests.collect::<Vec<_>>().concat()).unwrap();
            client.sync();
            let held = idle_live_bytes() - base;
            println!("{held} bytes for {path} ({accept}) over HTTP/2 with windows of {window}");
            assert!(held <= HELD_MAX, "{held} bytes for {path} over HTTP/2");
            // Another client is served meanwhile.
            ask(clear, "GET /topics/none/keys", "");
            drop(client);
            await_memory(base, &monitor);
        }
        let base = idle_live_bytes();
        let mut client = Http3Client::connect(encrypted, &roots);
        (0..REQUESTS - 10).for_each(|_| client.ask(path, accept));
        let started = Instant::now();
        // The requests are acknowledged, and executed in the turns that receive them.
        client.run(|_| started.elapsed() > Duration::from_millis(200));
        let held = idle_live_bytes() - base;
        println!("{held} bytes for {path} ({accept}) over HTTP/3");
        assert!(held <= HELD_MAX, "{held} bytes for {path} over HTTP/3");
        client.quic.quic.close(Instant::now(), 0x100_u32.into(), "".into());
        client.flush();
        await_memory(base, &monitor);
    }
    stop.stop_now();
    running.join().unwrap().unwrap();
    hub.shut_down();
}
