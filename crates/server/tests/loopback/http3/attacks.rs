//! Floods over HTTP/3: the connection of the attacker ends, and others are served.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use quinn_proto::{StreamId, VarInt};
use sinews_http::h3::RequestTarget;
use sinews_server::{HttpConfig, Limits, Router};

use super::quic_client::QuicClient;
use super::{Http3Client, Http3Server, wait};

/// CVE-2023-44487: requests that are reset at once.
#[test]
fn rapid_resets_end_the_connection() {
    let server = Http3Server::new(HttpConfig::default(), 1);
    let (mut attacker, mut other) = (server.connect(), server.connect());
    let target = RequestTarget::new("GET", "https", "localhost", "/later");
    for _ in 0..100 {
        for _ in 0..20 {
            if attacker.quic.quic.is_closed() {
                break;
            }
            let stream = attacker.quic.ask(&target, b"", false);
            // The request arrives before its reset.
            attacker.flush();
            let stream = StreamId::from(VarInt::from_u64(stream).unwrap());
            let _ = attacker.quic.quic.send_stream(stream).reset(0x10c_u32.into());
        }
        let asked = attacker.ask_or_none("GET", "/fixed");
        let Some(asked) = asked else { break };
        attacker.run("an answer or the end", |quic| {
            quic.lost.is_some() || quic.responses.get(&asked).is_some_and(|answer| answer.2)
        });
    }
    attacker.run("the end of the connection", |quic| quic.lost.is_some());
    assert!(attacker.quic.lost.as_ref().unwrap().contains("reset"), "{:?}", attacker.quic.lost);
    assert_eq!(other.get("/fixed").0, 200);
    assert_eq!(server.monitor.metrics().http3_failed, 1);
    wait("one connection", || server.monitor.metrics().connections() == 1);
}

/// Clients that never answer take no state beyond the first hundred: later ones have to prove their address.
#[test]
fn half_open_handshakes_exclude_no_client() {
    let http = HttpConfig::default().with_head_timeout(Duration::from_secs(60));
    let server = Http3Server::new(http, 1);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in 0..1500 {
        let mut client =
            QuicClient::connect(server.running.address, server.roots.clone(), "h3", Instant::now());
        for datagram in client.transmit(Instant::now()) {
            let _ = socket.send_to(&datagram, server.running.address);
        }
        if round % 500 == 499 {
            assert_eq!(server.connect().get("/fixed").0, 200);
        }
    }
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.http3_connections, metrics.http3_refused), (3, 0));
}

/// A client that opens no window holds no more than a piece of each answer in the queue.
#[test]
fn closed_windows_hold_a_piece_of_each_answer() {
    let server = Http3Server::new(HttpConfig::default(), 1);
    let (mut attacker, mut other) = (server.connect(), server.connect());
    let streams: Vec<u64> = (0..16).map(|_| attacker.ask("GET", "/large", b"")).collect();
    attacker.quic.unread.extend(&streams);
    attacker.flush();
    wait("queued answers", || server.monitor.metrics().responses[1] == 16);
    assert_eq!(other.get("/fixed").0, 200);
    attacker.run("heads", |_| server.monitor.metrics().queued_bytes > 0);
    let queued = server.monitor.metrics().queued_bytes;
    // Beside it, QUIC keeps what the client has not acknowledged.
    assert!(queued <= 16 * (17 << 10) + (128 << 10), "{queued} bytes");
    assert!(attacker.quic.lost.is_none());
    // Once it reads, each answer arrives.
    attacker.quic.unread.clear();
    for stream in streams.iter().take(3) {
        attacker.quic.read(StreamId::from(VarInt::from_u64(*stream).unwrap()));
    }
    let (status, content) = attacker.answer(streams[0]);
    assert!(status == 200 && content == super::content::pattern(super::LARGE), "{status}");
}

/// The state of QUIC counts as memory of its connection.
#[test]
fn idle_connections_count_toward_the_limit_of_memory() {
    let limits = Limits::default().with_max_memory(1 << 20);
    let server = Http3Server::with(HttpConfig::default(), Router::new(), |server| server.limits(limits));
    let mut clients = Vec::new();
    loop {
        let mut client = Http3Client::start(server.running.address, server.roots.clone());
        client.run("a connection or its refusal", |quic| {
            quic.lost.is_some() || quic.http.peer_settings().is_some()
        });
        if client.quic.lost.is_some() {
            break;
        }
        clients.push(client);
        assert!(clients.len() < 100, "{:?}", server.monitor.metrics());
    }
    assert!((25..50).contains(&clients.len()), "{} connections of 26 KiB", clients.len());
}
