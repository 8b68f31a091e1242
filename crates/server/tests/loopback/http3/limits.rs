//! Limits that a valid client does not exceed, what holds memory, and the end of a connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{Dir, StreamId};
use sinews_http::h3::{QuicStreamId, RequestTarget};
use sinews_server::{Limit, Limits, Response, Router, WhenFull};
use sinews_testkit::until;

use super::sockets::Http3Sockets;
use super::{Http3Client, Http3Server};
use crate::support::{echo, patient};

/// Opens a stream with these bytes.
fn open(client: &mut Http3Client, bytes: Vec<u8>) -> StreamId {
    let stream = client.quic.quic.streams().open(Dir::Bi).unwrap();
    client.quic.send(stream, bytes.into(), false);
    stream
}

/// The type of HEADERS, and an unknown frame without end. Another request of the connection goes on.
#[test]
fn requests_without_heads_are_reset_alone() {
    // It bounds the handshake, too.
    let http = patient().with_head_timeout(Duration::from_secs(10));
    let (server, mut client) = Http3Server::connected(http, 1);
    let later = client.ask("GET", "/later", b"");
    // A length of four bytes.
    let endless = [&[0x21, 0x80, 0xff, 0xff, 0xff][..], &[0; 100]].concat();
    let streams = [vec![1], endless].map(|bytes| open(&mut client, bytes));
    client.run("resets", |quic| quic.resets.len() == 2);
    for stream in streams {
        // H3_REQUEST_INCOMPLETE.
        assert_eq!(client.quic.resets[&u64::from(stream)], 0x10d);
    }
    server.wake();
    assert_eq!(client.answer(later), (200, b"late".to_vec()));
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.http3_reset, metrics.http3_failed), (2, 0));
}

/// At each time, the head of some request is incomplete.
#[test]
fn busy_clients_outlive_the_head_timeout() {
    let timeout = Duration::from_secs(4);
    let (_server, mut client) = Http3Server::connected(patient().with_head_timeout(timeout), 1);
    let target = RequestTarget::new("GET", "https", "localhost", "/fixed");
    let (start, mut last) = (Instant::now(), None::<(StreamId, Bytes)>);
    while start.elapsed() < timeout * 5 / 4 {
        let stream = client.quic.quic.streams().open(Dir::Bi).unwrap();
        let (id, mut head) = (QuicStreamId::new(stream.into()), Vec::new());
        client.quic.http.send_request(id, &target, [], true, &mut head).unwrap();
        let rest = Bytes::from(head.split_off(5));
        client.quic.send(stream, head.into(), false);
        client.flush();
        if let Some((stream, rest)) = last.replace((stream, rest)) {
            client.quic.send(stream, rest, true);
            assert_eq!(client.answer(stream.into()).0, 200);
        }
    }
    assert!(client.quic.lost.is_none(), "{:?}", client.quic.lost);
}

/// Windows that stay closed, and large answers.
#[test]
fn answers_to_closed_windows_count_as_memory() {
    const ANSWER: usize = 1 << 20;
    let router = Router::new().get("/made", |_| Response::text(vec![b'x'; ANSWER]));
    let limits = Limits::default().with_max_memory(20 * ANSWER).with_when_full(WhenFull::Close);
    let http = patient().with_max_queued_answers(usize::MAX);
    let server = Http3Server::with(http, router, |server| server.limits(limits));
    let mut other = server.connect();
    let mut client = Http3Client::connect_narrow(server.running.address, server.roots.clone(), 1000);
    let ask = |client: &mut Http3Client, count: usize| {
        for _ in 0..count {
            let stream = client.ask("GET", "/made", b"");
            client.quic.unread.insert(stream);
        }
        client.flush();
    };
    ask(&mut client, 10);
    client.run("queued answers", |_| server.monitor.metrics().queued_bytes >= 10 * ANSWER as u64);
    assert_eq!(server.monitor.metrics().limited.get(Limit::Memory), 0);
    ask(&mut client, 30);
    client.ends("memory");
    assert_eq!(server.monitor.metrics().limited.get(Limit::Memory), 1);
    assert_eq!(other.get("/fixed").0, 200);
}

/// The body of an answer whose drop is seen.
struct Dropping {
    bytes: Vec<u8>,
    is_dropped: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Dropping {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

/// Only the end of an answer waits for the window, beside an open socket.
#[test]
fn end_of_an_answer_retains_no_body_and_times_out() {
    const ANSWER: usize = 200_000;
    let is_dropped = Arc::<AtomicBool>::default();
    let known = Arc::clone(&is_dropped);
    let router = Router::new().websocket("/echo", echo()).get("/made", move |_| {
        let is_dropped = Arc::clone(&known);
        Response::text(Bytes::from_owner(Dropping { bytes: vec![b'x'; ANSWER], is_dropped }))
    });
    let http = patient().with_write_timeout(Duration::from_millis(1500));
    let server = Http3Server::with(http, router, |server| server);
    // The head and the headers of frames exceed the window.
    let (address, roots) = (server.running.address, server.roots.clone());
    let client = Http3Client::connect_narrow(address, roots, ANSWER as u32);
    let mut sockets = Http3Sockets::new(client);
    let socket = sockets.open("/echo");
    let client = &mut sockets.client;
    let stream = client.ask("GET", "/made", b"");
    client.quic.unread.insert(stream);
    client.run("the drop of the body", |_| is_dropped.load(Ordering::Relaxed));
    let queued = server.monitor.metrics().queued_bytes;
    assert!(queued < ANSWER as u64, "{queued} bytes");
    let id = StreamId::from(quinn_proto::VarInt::from_u64(stream).unwrap());
    until("the answer times out", || {
        client.flush();
        client.receive();
        client.quic.quic.recv_stream(id).received_reset() != Ok(None)
    });
    client.run("no queued bytes", |_| server.monitor.metrics().queued_bytes == 0);
    sockets.sync(socket);
}

/// The end of an answer waits for the window for less than the timeout.
#[test]
fn answer_is_complete_once_its_end_leaves() {
    const ANSWER: usize = 200_000;
    let router = Router::new().get("/made", |_| Response::text(super::content::pattern(ANSWER)));
    let server = Http3Server::with(patient(), router, |server| server);
    let (address, roots) = (server.running.address, server.roots.clone());
    let mut client = Http3Client::connect_narrow(address, roots, ANSWER as u32);
    let stream = client.ask("GET", "/made", b"");
    client.quic.unread.insert(stream);
    client.run_until_quiet();
    client.quic.unread.clear();
    client.quic.read(StreamId::from(quinn_proto::VarInt::from_u64(stream).unwrap()));
    let (status, content) = client.answer(stream);
    assert!(status == 200 && content == super::content::pattern(ANSWER), "{status} {}", content.len());
    // No exchange is left that would delay the end.
    server.running.stop.stop();
    client.ends("server stops");
}

/// RFC 9114 section 5.2.
#[test]
fn requests_that_cross_the_end_of_the_server_are_served() {
    let (entered, enters) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let router = Router::new().get("/block", move |_| {
        entered.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        Response::text("released")
    });
    let server = Http3Server::with(patient(), router, |server| server);
    let (mut client, mut blocker) = (server.connect(), server.connect());
    assert_eq!(client.get("/fixed").0, 200);
    let block = blocker.ask("GET", "/block", b"");
    blocker.flush();
    enters.recv().unwrap();
    // The only thread of the server is busy: it learns both in its next turn.
    server.running.stop.stop();
    let crossing = client.ask("GET", "/fixed", b"");
    client.flush();
    release.send(()).unwrap();
    assert_eq!(client.answer(crossing), (200, b"fixed".to_vec()));
    assert_eq!(blocker.answer(block), (200, b"released".to_vec()));
    client.run("the end of the connection", |quic| quic.lost.is_some());
    blocker.run("the end of all connections", |_| server.monitor.metrics().connections() == 0);
    assert!(client.quic.lost.as_ref().unwrap().contains("server stops"), "{:?}", client.quic.lost);
    server.running.join();
}
