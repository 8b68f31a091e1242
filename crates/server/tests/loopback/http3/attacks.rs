//! Floods over HTTP/3: the connection of the attacker ends, and others are served.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use quinn_proto::{Dir, StreamId, VarInt};
use sinews_http::h3::{QuicStreamId, RequestTarget};
use sinews_server::{Limits, Router};
use sinews_testkit::until_some;

use super::quic_client::QuicClient;
use super::{Http3Client, Http3Server};
use crate::support::{PATIENCE, patient};

/// CVE-2023-44487: requests that are reset at once.
#[test]
fn rapid_resets_end_the_connection() {
    let server = Http3Server::new(patient(), 1);
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
    attacker.ends("reset");
    assert_eq!(other.get("/fixed").0, 200);
    assert_eq!(server.monitor.metrics().http3_failed, 1);
    other.run("one connection", |_| server.monitor.metrics().connections() == 1);
}

/// Clients that never answer take no state beyond the first hundred: later ones have to prove their address.
#[test]
fn half_open_handshakes_exclude_no_client() {
    let http = patient().with_head_timeout(Duration::from_secs(60));
    let server = Http3Server::new(http, 1);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut first = QuicClient::connect(server.running.address, server.roots.clone(), "h3", Instant::now());
    // Many times the hundred.
    for round in 1..=2_000 {
        for datagram in first.transmit_another(Instant::now()) {
            let _ = socket.send_to(&datagram, server.running.address);
        }
        if round % 500 == 0 {
            assert_eq!(server.connect().get("/fixed").0, 200);
        }
    }
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.http3_connections, metrics.http3_refused), (4, 0));
}

/// A client whose control stream carries bytes many times. Returns the code of the end.
fn flood(server: &Http3Server, on_control: bool, bytes: &[u8], times: usize) -> (bool, u64) {
    let mut client = server.connect();
    let stream = if on_control {
        client.quic.control.unwrap()
    } else {
        let stream = client.ask("GET", "/later", b"");
        let _ = stream;
        let stream = client.quic.quic.streams().open(Dir::Bi).unwrap();
        let target = RequestTarget::new("POST", "https", "localhost", "/len");
        let (id, mut head) = (QuicStreamId::new(stream.into()), Vec::new());
        client.quic.http.send_request(id, &target, [], false, &mut head).unwrap();
        client.quic.send(stream, head.into(), false);
        stream
    };
    let flood = bytes.repeat(1000);
    for _ in 0..times / 1000 {
        if client.quic.lost.is_some() {
            break;
        }
        client.quic.send(stream, flood.clone().into(), false);
        client.flush();
        client.receive();
    }
    client.run("the end of the connection", |quic| quic.lost.is_some());
    client.quic.closed.unwrap_or_else(|| panic!("{:?}", client.quic.lost))
}

const EXCESSIVE_LOAD: (bool, u64) = (true, 0x107);

/// CVE-2019-9518 and RUSTSEC-2026-0258 (empty DATA), CVE-2019-9513 (priorities), and frames that nobody knows.
#[test]
fn floods_of_frames_without_content_end_the_connection() {
    let server = Http3Server::new(patient(), 1);
    let other = server.connect();
    // DATA without content, PRIORITY_UPDATE (RFC 9218 section 7.2), MAX_PUSH_ID, and a reserved frame.
    assert_eq!(flood(&server, false, &[0, 0], 200_000), EXCESSIVE_LOAD, "DATA");
    assert_eq!(
        flood(&server, true, &[0x80, 0x0f, 0x07, 0x00, 1, 0], 200_000),
        EXCESSIVE_LOAD,
        "PRIORITY_UPDATE"
    );
    assert_eq!(flood(&server, true, &[13, 1, 5], 200_000), EXCESSIVE_LOAD, "MAX_PUSH_ID");
    assert_eq!(flood(&server, true, &[0x21, 0], 200_000), EXCESSIVE_LOAD, "reserved frames");
    let mut other = other;
    assert_eq!(other.get("/fixed").0, 200);
}

/// CVE-2025-8671: the client makes the server reset streams.
#[test]
fn provoked_resets_end_the_connection() {
    let server = Http3Server::new(patient(), 1);
    let mut attacker = server.connect();
    // A field section without pseudo-header fields.
    let malformed: &[u8] = &[1, 2, 0, 0];
    for _ in 0..2000 {
        if attacker.quic.lost.is_some() {
            break;
        }
        while let Some(stream) = attacker.quic.quic.streams().open(Dir::Bi) {
            attacker.quic.send(stream, malformed.into(), true);
        }
        attacker.flush();
        attacker.receive();
    }
    attacker.run("the end of the connection", |quic| quic.lost.is_some());
    assert_eq!(attacker.quic.closed, Some(EXCESSIVE_LOAD), "{:?}", attacker.quic.lost);
    assert_eq!(server.connect().get("/fixed").0, 200);
}

/// CVE-2026-40898, CVE-2016-6581: each byte of the section is a field of the static table.
#[test]
fn field_section_bombs_are_rejected_or_end_the_connection() {
    let server = Http3Server::new(patient(), 1);
    let section = |len: usize| {
        let mut bytes = vec![1];
        bytes.extend(super::tamper::varint(len as u64));
        bytes.extend([0, 0]);
        // `content-security-policy: script-src 'none'; object-src 'none'; base-uri 'none'`
        bytes.extend([0xff, 0x16].repeat((len - 2) / 2));
        bytes
    };
    let mut client = server.connect();
    let stream = client.quic.quic.streams().open(Dir::Bi).unwrap();
    client.quic.send(stream, section(802).into(), true);
    client.run("an answer with 431", |_| server.monitor.metrics().responses[3] == 1);
    let stream = client.quic.quic.streams().open(Dir::Bi).unwrap();
    client.quic.send(stream, section(60_002).into(), true);
    client.run("the end of the connection", |quic| quic.lost.is_some());
    assert_eq!(client.quic.closed, Some(EXCESSIVE_LOAD), "{:?}", client.quic.lost);
    assert_eq!(server.connect().get("/fixed").0, 200);
}

/// CVE-2019-9517: a window that never opens.
#[test]
fn windows_that_stay_closed_end_their_answer() {
    let http = patient().with_write_timeout(Duration::from_secs(3));
    let (server, mut client) = Http3Server::connected(http, 1);
    let stream = client.ask("GET", "/large", b"");
    client.quic.unread.insert(stream);
    let closed = client.ask("GET", "/large", b"");
    client.run("the other answer", |quic| quic.responses.get(&closed).is_some_and(|answer| answer.2));
    // The client reads no repeated datagram either, which would open the window.
    client.run("a reset", |_| server.monitor.metrics().queued_bytes == 0);
    client.quic.unread.clear();
    client.quic.read(StreamId::from(VarInt::from_u64(stream).unwrap()));
    client.run("a reset", |quic| quic.resets.get(&stream) == Some(&0x10c));
    assert_eq!(client.get("/fixed").0, 200);
}

/// CVE-2019-9512: PING of QUIC.
#[test]
fn floods_of_pings_stop_no_other_client() {
    let server = Http3Server::new(patient(), 1);
    let (mut attacker, mut other) = (server.connect(), server.connect());
    let before = server.monitor.metrics().incomplete_bytes;
    for _ in 0..5000 {
        attacker.quic.quic.ping();
        attacker.flush();
    }
    assert_eq!(other.get("/fixed").0, 200);
    assert_eq!(attacker.get("/fixed").0, 200, "answers to pings do not queue");
    assert!(server.monitor.metrics().incomplete_bytes < before + (64 << 10));
}

/// Sends a datagram from a new address. Returns the lengths and the bytes of all answers within a moment.
fn answers(server: &Http3Server, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    received(send(server, datagrams))
}

/// As [`answers`], to datagrams that have an answer, which may be late on a busy machine.
fn some_answers(server: &Http3Server, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let socket = send(server, datagrams);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.peek(&mut [0; 2000]).expect("an answer");
    received(socket)
}

fn send(server: &Http3Server, datagrams: &[Vec<u8>]) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in datagrams {
        socket.send_to(datagram, server.running.address).unwrap();
    }
    socket
}

/// Receives until nothing has arrived for a moment.
fn received(socket: UdpSocket) -> Vec<Vec<u8>> {
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut buffer = [0; 2000];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect()
}

/// RFC 9000 section 8.1: a client that never answers gets at most three times its bytes.
#[test]
fn answers_to_unproved_addresses_are_limited() {
    let server = Http3Server::new(patient().with_head_timeout(Duration::from_secs(3)), 1);
    let mut client = QuicClient::connect(server.running.address, server.roots.clone(), "h3", Instant::now());
    let first = client.transmit(Instant::now());
    let sent: usize = first.iter().map(Vec::len).sum();
    let received: usize = some_answers(&server, &first).iter().map(Vec::len).sum();
    assert!(received > 0 && received <= 3 * sent, "{received} bytes for {sent}");
    // Shorter than the standard demands (section 14.1).
    assert!(answers(&server, &[first[0][..1199].to_vec()]).is_empty());
}

/// RFC 9000 section 6 and 21.12: unknown versions are answered by version 1 only, and no answer is answered.
#[test]
fn version_negotiation_offers_version_1_only() {
    let server = Http3Server::new(patient(), 1);
    let initial = |version: u32, len: usize| {
        let mut datagram = vec![0xc0];
        datagram.extend(version.to_be_bytes());
        datagram.extend([8, 1, 2, 3, 4, 5, 6, 7, 8, 4, 9, 9, 9, 9]);
        datagram.resize(len, 0);
        datagram
    };
    for version in [0x0a0a_0a0a, 0xff00_001d, 2, 0x6b33_43cf] {
        let found = some_answers(&server, &[initial(version, 1200)]);
        let expected = [&[0, 0, 0, 0, 4, 9, 9, 9, 9, 8, 1, 2, 3, 4, 5, 6, 7, 8][..], &[0, 0, 0, 1]].concat();
        assert_eq!(found.len(), 1, "{version:#x}");
        assert!(found[0][0] & 0x80 != 0 && found[0][1..19] == expected[..18], "{:?}", found[0]);
        let versions: Vec<u32> =
            found[0][19..].chunks(4).map(|four| u32::from_be_bytes(four.try_into().unwrap())).collect();
        // A reserved version beside it exercises clients (section 6.3).
        assert!(versions.iter().all(|version| *version == 1 || version & 0x0f0f_0f0f == 0x0a0a_0a0a));
        assert!(versions.contains(&1), "{versions:x?}");
    }
    assert!(answers(&server, &[initial(0x0a0a_0a0a, 100)]).is_empty(), "a short datagram");
    assert!(answers(&server, &[initial(0, 1200)]).is_empty(), "version negotiation");
}

/// RFC 9000 section 10.3 and 21.11: the token of a live connection is not to be had, tokens of others cannot be guessed, and
/// answers shrink.
#[test]
fn stateless_resets_reveal_no_token_of_a_connection() {
    let (server, mut client) = Http3Server::connected(patient(), 1);
    let stream = client.ask("GET", "/later", b"");
    let datagrams = client.quic.transmit(Instant::now());
    let short = datagrams.iter().find(|datagram| datagram[0] & 0x80 == 0).unwrap();
    let id = &short[1..9];
    client.socket.send_to(short, server.running.address).unwrap();
    let with_id = |id: &[u8], len: usize| {
        let mut datagram = [&[0x41], id].concat();
        datagram.resize(len, 7);
        datagram
    };
    // From another address: its packet is not authentic, and gets no answer.
    assert!(answers(&server, &[with_id(id, 100)]).is_empty());
    server.wake();
    assert_eq!(client.answer(stream).0, 200, "the connection continues");
    // Identifiers of connections that have ended.
    let ended = || {
        let mut client = server.connect();
        client.ask("GET", "/fixed", b"");
        let datagrams = client.quic.transmit(Instant::now());
        let short = datagrams.iter().find(|datagram| datagram[0] & 0x80 == 0).unwrap();
        client.quic.quic.close(Instant::now(), 0x100_u32.into(), bytes::Bytes::new());
        client.flush();
        short[1..9].to_vec()
    };
    let ids = [ended(), ended()];
    let token = |id: &[u8]| {
        // The server drops its state after a while.
        let answered = || <[_; 1]>::try_from(answers(&server, &[with_id(id, 100)])).ok();
        let [answer] = until_some("a stateless reset", answered);
        assert!(answer.len() < 100 && answer.len() >= 21, "{}", answer.len());
        answer[answer.len() - 16..].to_vec()
    };
    assert_eq!(token(&ids[0]), token(&ids[0]));
    assert_ne!(token(&ids[0]), token(&ids[1]));
    assert!(answers(&server, &[with_id(&[7; 8], 100)]).is_empty(), "an identifier that is not of the server");
    assert!(answers(&server, &[with_id(&ids[0], 20)]).is_empty(), "an answer would not be smaller");
}

/// A client that opens no window holds no more than a piece of each answer in the queue.
#[test]
fn closed_windows_hold_a_piece_of_each_answer() {
    let server = Http3Server::new(patient(), 1);
    let (mut attacker, mut other) = (server.connect(), server.connect());
    let streams: Vec<u64> = (0..16).map(|_| attacker.ask("GET", "/large", b"")).collect();
    attacker.quic.unread.extend(&streams);
    attacker.run("queued answers", |_| server.monitor.metrics().responses[1] == 16);
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
    let server = Http3Server::with(patient(), Router::new(), |server| server.limits(limits));
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
