//! Memory of an idle HTTP/3 connection, of an idle WebSocket on one of its streams, and of an idle session of WebTransport. The
//! clients are in another process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quinn_proto::{StreamId, VarInt};
use sinews_http::h3::{QuicStreamId, RequestTarget};
use sinews_server::{Certificates, HttpConfig, Limits, Router, Server, TlsConfig, WebSocketRoute};
use sinews_testkit::{TestCertificate, idle_live_bytes, measure_alone, until};

use crate::http3_client::Http3Client;
use crate::{Echo, Serving, backend};

/// Names the role of this process, and the address and the certificate of the server.
const CLIENT: &str = "SINEWS_HTTP3_MEMORY_CLIENT";

/// Connections, WebSockets on each of the first [`WITH_SOCKETS`], and sessions on each of the others.
const STAGES: [(usize, usize, usize); 8] =
    [(8, 0, 0), (40, 0, 0), (40, 1, 0), (40, 4, 0), (40, 36, 0), (80, 36, 0), (80, 36, 1), (80, 36, 4)];

const WITH_SOCKETS: usize = 40;

#[test]
fn idle_connections_websockets_and_sessions_take_bounded_memory() {
    if let Ok(role) = std::env::var(CLIENT) {
        return run_clients(&role);
    }
    let _alone = measure_alone();
    let made = TestCertificate::new();
    let (chain, key) = (made.pem(), made.key_pem());
    let certificates = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Echo)));
    let server = Server::new(router).engine(backend::engine()).threads(1);
    let server = server.http(HttpConfig::default().with_http3(true)).limits(Limits::default());
    let server = server.listen_tls(([127, 0, 0, 1], 0).into(), TlsConfig::new(certificates).unwrap());
    let server = server.bind().unwrap();
    let monitor = server.monitor();
    let serving = Serving::new(server);
    let address = serving.address;

    let name = "http3_memory::idle_connections_websockets_and_sessions_take_bounded_memory";
    let der: String = made.der().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut clients = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CLIENT, format!("{address} {der}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, output) = (clients.stdin.take().unwrap(), clients.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines();
    let measured = STAGES.map(|_| {
        input.write_all(b"\n").unwrap();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("ready")));
        assert!(ready.is_some(), "the clients have ended");
        let live = idle_live_bytes();
        (live, monitor.metrics().incomplete_bytes as isize)
    });
    drop(input);
    assert!(clients.wait().unwrap().success());
    let each = |from: usize, to: usize| {
        let count = |(connections, sockets, sessions): (usize, usize, usize)| {
            let others = connections.saturating_sub(WITH_SOCKETS);
            (connections + WITH_SOCKETS * sockets + others * sessions) as isize
        };
        let count = count(STAGES[to]) - count(STAGES[from]);
        let of =
            |select: fn(&(isize, isize)) -> isize| (select(&measured[to]) - select(&measured[from])) / count;
        (of(|(live, _)| *live), of(|(_, counted)| *counted))
    };
    let ((connection, counted), (socket, counted_socket)) = (each(0, 1), each(3, 4));
    let ((session, counted_session), (next, counted_next)) = (each(5, 6), each(6, 7));
    println!("{connection} bytes for an idle HTTP/3 connection, of which {counted} count toward max_memory");
    println!("{socket} bytes for an idle WebSocket on a stream, of which {counted_socket} count");
    println!("{session} bytes for the first idle session of a connection, of which {counted_session} count");
    println!("{next} bytes for a further one, of which {counted_next} count");
    assert!((20_000..26 << 10).contains(&connection), "{connection} bytes for a connection");
    assert!(counted > connection * 4 / 5 && counted < connection * 5 / 4, "{counted} of {connection} count");
    assert!((500..1536).contains(&socket), "{socket} bytes for a socket");
    assert!((500..3 << 10).contains(&session), "{session} bytes for the first session");
    assert!((500..3 << 10).contains(&next), "{next} bytes for a further session");
}

/// A client with what it has opened.
struct Client {
    http3: Http3Client,
    sockets: Vec<u64>,
    sessions: usize,
}

impl Client {
    fn connect(server: SocketAddr, roots: &rustls::RootCertStore) -> Self {
        let http3 = Http3Client::connect(server, roots.clone());
        Self { http3, sockets: Vec::new(), sessions: 0 }
    }

    /// Receives all datagrams that have arrived. Returns whether there were none, and the client waits for no acknowledgement and
    /// delays none: the timers of both are short, that of the idle connection is long.
    fn is_settled(&mut self) -> bool {
        let long = Duration::from_secs(5);
        let mut is_quiet = true;
        while self.http3.receive_within(Duration::from_millis(1)) {
            is_quiet = false;
            self.http3.flush();
        }
        self.http3.flush();
        is_quiet && self.http3.quic.quic.poll_timeout().is_none_or(|at| at >= Instant::now() + long)
    }

    /// Opens a WebSocket, which echoes a message of 200 bytes with a mask of zero.
    fn open(&mut self) {
        let http3 = &mut self.http3;
        let target = RequestTarget::connect("websocket", "localhost", "/");
        let stream = http3.quic.ask_with(&target, [("sec-websocket-version", "13")], b"", false);
        http3.run("an answer", |quic| quic.responses.contains_key(&stream));
        let mut message = [0; 208];
        message[..4].copy_from_slice(&[0x82, 0xfe, 0, 200]);
        let mut out = Vec::new();
        http3.quic.http.send_data(QuicStreamId::new(stream), &message, false, &mut out).unwrap();
        http3.quic.send(StreamId::from(VarInt::from_u64(stream).unwrap()), out.into(), false);
        http3.run("an echo", |quic| quic.responses[&stream].1.len() >= 204);
        self.sockets.push(stream);
    }

    /// Opens a session, which echoes a message of 200 bytes on its stream.
    fn open_session(&mut self) {
        let http3 = &mut self.http3;
        let target = RequestTarget::connect("webtransport", "localhost", "/");
        let request = http3.quic.ask_with(&target, [], b"", false);
        let opened = self.sessions;
        http3.run("a session", |quic| {
            quic.responses.contains_key(&request) && quic.session_streams.len() > opened
        });
        let stream = http3.quic.session_streams[opened];
        let message = [&[2, 0, 0, 0, 200][..], &[7; 200]].concat();
        http3.quic.send(StreamId::from(VarInt::from_u64(stream).unwrap()), message.into(), false);
        http3.run("an echo", |quic| {
            quic.responses.get(&stream).is_some_and(|(_, echoed, _)| echoed.len() >= 205)
        });
        self.sessions += 1;
    }
}

/// Exchanges datagrams of all clients, in turns, until all are settled in the same turn.
fn settle(clients: &mut [Client]) {
    until("acknowledgements of all clients", || {
        clients.iter_mut().map(Client::is_settled).filter(|is_settled| !is_settled).count() == 0
    });
}

/// Opens connections and WebSockets, a stage for each line of input.
fn run_clients(role: &str) {
    let (address, der) = role.split_once(' ').unwrap();
    let der: Vec<u8> =
        (0..der.len() / 2).map(|at| u8::from_str_radix(&der[2 * at..2 * at + 2], 16).unwrap()).collect();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der.into()).unwrap();
    let (address, mut clients) = (address.parse().unwrap(), Vec::new());
    for (connections, sockets, sessions) in STAGES {
        std::io::stdin().read_exact(&mut [0]).unwrap();
        while clients.len() < connections {
            clients.push(Client::connect(address, &roots));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            while number < WITH_SOCKETS && client.sockets.len() < sockets {
                client.open();
            }
            while number >= WITH_SOCKETS && client.sessions < sessions {
                client.open_session();
            }
        }
        settle(&mut clients);
        println!("\nready");
    }
    let _ = std::io::stdin().read(&mut [0]);
}
