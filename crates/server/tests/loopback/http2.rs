//! HTTP/2 in clear text, with frames written by hand.

mod content;
mod limits;
mod socket_attacks;
mod sockets;
mod waiting;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use sinews_server::{Answer, Http2Fault, HttpConfig, Monitor, Response, Router, Server};
use sinews_testkit::{until, until_some};

use crate::backend;
use crate::support::{Client, PATIENCE, Running, get, late, patient, wake};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const LARGE: usize = 300 << 10;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block: `method` is the index of the field in the static table.
fn block(method: u8, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x80 | method, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x01a");
    for text in fields.iter().flat_map(|(name, value)| [(true, name), (false, value)]) {
        if text.0 {
            block.push(0);
        }
        block.push(text.1.len() as u8);
        block.extend_from_slice(text.1.as_bytes());
    }
    block
}

const METHOD_GET: u8 = 2;
const METHOD_POST: u8 = 3;

/// A server with one thread and HTTP/2.
struct Http2Server {
    running: Running,
    monitor: Monitor,
    /// Wakers of requests to `/later`.
    wakers: Arc<Mutex<Vec<Waker>>>,
}

impl Http2Server {
    fn new(http: HttpConfig) -> Self {
        let wakers = Arc::<Mutex<Vec<Waker>>>::default();
        let waiting = Arc::clone(&wakers);
        let router = Router::new()
            .get("/", |_| Response::text("hello\n"))
            .get("/large", |_| Response::text(vec![b'x'; LARGE]))
            .post("/len", |request| Response::text(request.body().len().to_string()))
            .get("/later", move |_| late(&waiting));
        let server = Server::new(router).threads(1).http(http.with_http2_clear_text(true));
        let running = Running::server(server);
        Self { monitor: running.monitor.clone(), running, wakers }
    }

    /// The same, and a client of it.
    fn connected(http: HttpConfig) -> (Self, Http2Client) {
        let server = Self::new(http);
        let client = server.connect();
        (server, client)
    }

    fn connect(&self) -> Http2Client {
        Http2Client::connect(&self.running, &[])
    }

    fn wake(&self) {
        wake(&self.wakers);
    }

    fn failed(&self, fault: Http2Fault) -> u64 {
        let count = || self.monitor.metrics().http2_failed.get(fault);
        until_some(format_args!("{fault:?}"), || Some(count()).filter(|count| *count > 0))
    }
}

struct Http2Client {
    client: Client,
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// First byte of the header block, the body, and whether the stream ended in order.
type Received = (u8, Vec<u8>, bool);

/// A setting: the streams of the client have no window.
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];

impl Http2Client {
    fn connect(running: &Running, settings: &[u8]) -> Self {
        let mut client = Self { client: running.connect() };
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.frame(SETTINGS, 0, 0, settings);
        client
    }

    /// Waits until the server has handled all frames so far.
    fn sync(&mut self) {
        self.frame(PING, 0, 0, &[3; 8]);
        while self.until(PING).flags & 1 == 0 {}
    }

    fn send(&mut self, bytes: &[u8]) {
        self.client.send(bytes);
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.send(&frame(kind, flags, stream, payload));
    }

    fn get(&mut self, stream: u32, path: &str) {
        self.frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(METHOD_GET, path, &[]));
    }

    /// Reads a frame; `None` at the end of the connection. Acknowledges SETTINGS.
    fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        match self.client.stream.read_exact(&mut head) {
            Err(end) if matches!(end.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            read => read.expect("a frame arrives in time"),
        }
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; len];
        self.client.stream.read_exact(&mut payload).unwrap();
        if head[3] == SETTINGS && head[4] == 0 {
            self.frame(SETTINGS, 1, 0, &[]);
        }
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    fn until(&mut self, kind: u8) -> Frame {
        std::iter::from_fn(|| self.read()).find(|frame| frame.kind == kind).expect("the frame arrives")
    }

    /// Reads until these streams have ended. Opens windows for DATA.
    fn answers(&mut self, streams: &[u32]) -> BTreeMap<u32, Received> {
        let mut answers: BTreeMap<u32, Received> = BTreeMap::new();
        let mut open = streams.to_vec();
        while !open.is_empty() {
            let frame = self.read().expect("streams are open");
            let answer = answers.entry(frame.stream).or_default();
            match frame.kind {
                HEADERS => answer.0 = frame.payload[0],
                DATA if !frame.payload.is_empty() => {
                    answer.1.extend_from_slice(&frame.payload);
                    let len = (frame.payload.len() as u32).to_be_bytes();
                    self.frame(WINDOW_UPDATE, 0, 0, &len);
                    if frame.flags & END_STREAM == 0 {
                        self.frame(WINDOW_UPDATE, 0, frame.stream, &len);
                    }
                }
                RST_STREAM => {
                    answer.1 = frame.payload;
                    open.retain(|stream| *stream != frame.stream);
                    continue;
                }
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                answer.2 = true;
                open.retain(|stream| *stream != frame.stream);
            }
        }
        answers
    }

    /// Expects GOAWAY with this code, and the end of the connection.
    fn fails(&mut self, code: u8) {
        let go_away = self.until(GOAWAY);
        assert_eq!(go_away.payload[4..8], [0, 0, 0, code], "{go_away:?}");
        while self.read().is_some() {}
    }
}

const OK: u8 = 0x88;

#[test]
fn many_streams_are_answered_and_bodies_exceed_the_windows() {
    let (server, mut client) = Http2Server::connected(patient());
    let streams: Vec<u32> = (0..20).map(|number| 2 * number + 1).collect();
    for stream in &streams {
        client.get(*stream, if stream % 4 == 1 { "/large" } else { "/" });
    }
    let answers = client.answers(&streams);
    for stream in streams {
        let expected = if stream % 4 == 1 { vec![b'x'; LARGE] } else { b"hello\n".to_vec() };
        assert_eq!(answers[&stream], (OK, expected, true), "stream {stream}");
    }
    client.get(41, "/missing");
    assert_eq!(client.answers(&[41])[&41], (0x8d, b"not found\n".to_vec(), true));
    assert_eq!(server.monitor.metrics().http2_connections, 1);
    // HTTP/1.1 is served on the same address.
    let mut other = server.running.connect();
    other.send("P");
    other.send("OST /len HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(other.status_line(), 200);
    let mut other = server.running.connect();
    other.send(get("/"));
    assert_eq!(other.status_line(), 200);
}

#[test]
fn uploads_are_limited_and_their_windows_open() {
    let (_server, mut client) = Http2Server::connected(patient().with_max_body(200_000));
    client.frame(HEADERS, END_HEADERS, 1, &block(METHOD_POST, "/len", &[]));
    let (mut left, mut window) = (200_000_usize, 65_535_usize);
    while left > 0 {
        while window < left.min(10_000) {
            let frame = client.read().unwrap();
            if (frame.kind, frame.stream) == (WINDOW_UPDATE, 1) {
                window += u32::from_be_bytes(frame.payload.try_into().unwrap()) as usize;
            }
        }
        let piece = left.min(10_000);
        (left, window) = (left - piece, window - piece);
        client.frame(DATA, u8::from(left == 0), 1, &vec![b'u'; piece]);
    }
    assert_eq!(client.answers(&[1])[&1], (OK, b"200000".to_vec(), true));
    // Declared too large: answered before the body, and the stream is reset.
    client.frame(HEADERS, END_HEADERS, 3, &block(METHOD_POST, "/len", &[("content-length", "200001")]));
    let answers = client.answers(&[3]);
    assert_eq!(answers[&3].1, b"request body exceeds 200000 bytes\n");
    assert_eq!(client.until(RST_STREAM).payload, [0, 0, 0, 0]);
    // Reset in the middle of an upload and of an answer: others go on.
    client.frame(HEADERS, END_HEADERS, 5, &block(METHOD_POST, "/len", &[]));
    client.frame(DATA, 0, 5, b"begin");
    client.frame(RST_STREAM, 0, 5, &[0, 0, 0, 8]);
    client.get(7, "/large");
    while client.until(DATA).stream != 7 {}
    client.frame(RST_STREAM, 0, 7, &[0, 0, 0, 8]);
    client.get(9, "/");
    while client.until(HEADERS).stream != 9 {}
}

#[test]
fn graceful_stop_finishes_streams() {
    let (server, mut client) = Http2Server::connected(patient());
    client.get(1, "/later");
    client.frame(PING, 0, 0, &[7; 8]);
    while client.until(PING).payload != [7; 8] {}
    server.running.stop.stop();
    assert_eq!(client.until(GOAWAY).payload[4..8], [0; 4]);
    let ping = client.until(PING);
    client.frame(PING, 1, 0, &ping.payload);
    assert_eq!(client.until(GOAWAY).payload[..4], [0, 0, 0, 1], "the last stream");
    server.wake();
    assert_eq!(client.answers(&[1])[&1], (OK, b"late".to_vec(), true));
    assert!(client.read().is_none(), "the connection ends");
    drop(client);
    server.running.join();
}

/// Sends requests for a pending answer, each followed by a frame that ends its stream.
fn flood_of_resets(client: &mut Http2Client, kind: u8, payload: &[u8]) {
    for stream in (1..1000).step_by(2) {
        let mut both = frame(HEADERS, 5, stream, &block(METHOD_GET, "/later", &[]));
        both.extend(frame(kind, 0, stream, payload));
        if std::io::Write::write_all(&mut client.client.stream, &both).is_err() {
            return;
        }
    }
}

/// Sends a block that refers to a large field of the dynamic table many times.
fn header_bomb(client: &mut Http2Client) {
    let mut bomb = block(METHOD_GET, "/", &[]);
    // A literal with indexing: its name, and the length of its value.
    bomb.extend_from_slice(b"\x40\x01x\x7f\xa1\x1e");
    bomb.extend_from_slice(&[b'y'; 4000]);
    bomb.extend_from_slice(&[0x80 | 62; 1000]);
    client.frame(HEADERS, 5, 1, &bomb);
}

#[test]
fn floods_and_faults_end_only_their_connection() {
    type Attack = fn(&mut Http2Client);
    let floods: [Attack; 7] = [
        |client| flood_of_resets(client, RST_STREAM, &[0, 0, 0, 8]),
        // The client makes the server reset.
        |client| flood_of_resets(client, WINDOW_UPDATE, &[0; 4]),
        |client| {
            client.frame(HEADERS, 0, 1, &block(METHOD_GET, "/", &[]));
            client.send(&frame(CONTINUATION, 0, 1, &[]).repeat(100));
        },
        |client| client.send(&frame(PING, 0, 0, &[0; 8]).repeat(5000)),
        |client| client.send(&frame(SETTINGS, 0, 0, &[]).repeat(5000)),
        |client| {
            client.frame(HEADERS, END_HEADERS, 1, &block(METHOD_POST, "/len", &[]));
            client.send(&frame(DATA, 0, 1, &[]).repeat(5000));
        },
        header_bomb,
    ];
    let calm = floods.into_iter().map(|attack| (attack, Http2Fault::EnhanceYourCalm));
    let invalid: Attack = |client| {
        client.frame(HEADERS, 5, 1, &[0xff; 5]);
        client.fails(9);
    };
    for (number, (attack, fault)) in calm.chain([(invalid, Http2Fault::Compression)]).enumerate() {
        let server = Http2Server::new(patient());
        let mut neighbor = server.connect();
        let mut client = server.connect();
        attack(&mut client);
        assert_eq!(server.failed(fault), 1, "attack {number}");
        neighbor.get(1, "/");
        assert_eq!(neighbor.answers(&[1])[&1], (OK, b"hello\n".to_vec(), true), "attack {number}");
    }
}

#[test]
fn malformed_requests_never_reach_a_route() {
    let (server, mut client) = Http2Server::connected(patient());
    let fields = [
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("x", "a\r\nb: c"),
        ("X", "a"),
        ("x:y", "a"),
    ];
    for (stream, field) in (1..).step_by(2).zip(fields) {
        client.frame(HEADERS, 5, stream, &block(METHOD_GET, "/", &[field]));
        let reset = client.until(RST_STREAM);
        assert_eq!((reset.stream, reset.payload), (stream, vec![0, 0, 0, 1]), "{field:?}");
    }
    let metrics = server.monitor.metrics();
    assert_eq!(metrics.http2_reset.get(Http2Fault::Protocol), fields.len() as u64);
    assert_eq!(metrics.responses, [0; 5]);
}

#[test]
fn silent_clients_and_closed_windows_time_out() {
    // On a busy machine, the preface and the acknowledgement of SETTINGS are late.
    let server = Http2Server::new(patient().with_head_timeout(Duration::from_secs(10)));
    // SETTINGS are not acknowledged.
    let mut silent = server.running.connect();
    silent.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    silent.send(frame(SETTINGS, 0, 0, &[]));
    // A header block that does not end.
    let mut client = server.connect();
    client.until(SETTINGS);
    client.frame(HEADERS, 0, 1, &block(METHOD_GET, "/", &[]));
    assert_eq!(server.failed(Http2Fault::SettingsTimeout), 1);
    assert_eq!(server.failed(Http2Fault::EnhanceYourCalm), 1);
    // A body that does not arrive, an answer that is not ready, and one that is not taken.
    let short = Duration::from_millis(1500);
    let http = patient().with_write_timeout(short).with_body_idle_timeout(short).with_response_timeout(short);
    let (_server, mut client) = Http2Server::connected(http);
    client.until(SETTINGS);
    // Only the window of the stream is closed for the third answer.
    client.frame(WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0]);
    client.frame(HEADERS, END_HEADERS, 1, &block(METHOD_POST, "/len", &[]));
    client.get(3, "/later");
    client.get(5, "/large");
    let (mut bodies, mut reset) = (BTreeMap::<u32, Vec<u8>>::new(), None);
    while reset.is_none() || bodies.len() < 3 {
        let frame = client.read().unwrap();
        match frame.kind {
            DATA => bodies.entry(frame.stream).or_default().extend(frame.payload),
            RST_STREAM if frame.stream == 5 => reset = Some(frame.payload),
            _ => {}
        }
    }
    assert_eq!(reset, Some(vec![0, 0, 0, 8]), "CANCEL");
    assert!(bodies[&1].starts_with(b"request timeout"));
    assert!(bodies[&3].starts_with(b"the answer takes too long"));
}

#[test]
fn silent_connections_with_streams_are_pinged_and_then_ended() {
    let (interval, timeout) = (Duration::from_millis(300), Duration::from_secs(10));
    let http = patient()
        .with_http2_ping_interval(Some(interval))
        .with_http2_ping_timeout(timeout)
        .with_keep_alive_timeout(timeout);
    let (server, mut client) = Http2Server::connected(http);
    client.until(SETTINGS);
    let mut sent = std::time::Instant::now();
    client.get(1, "/later");
    for _ in 0..2 {
        let ping = client.until(PING);
        assert!(sent.elapsed() >= interval, "{:?}", sent.elapsed());
        assert_eq!((ping.flags, ping.stream), (0, 0));
        sent = std::time::Instant::now();
        client.frame(PING, 1, 0, &ping.payload);
    }
    // Any input counts as an answer.
    client.until(PING);
    sent = std::time::Instant::now();
    client.frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    client.until(PING);
    assert!(sent.elapsed() >= interval, "{:?}", sent.elapsed());
    // A connection without streams ends at its idle timeout, meanwhile.
    let mut idle = server.connect();
    idle.get(1, "/");
    let mut frames: Vec<Frame> =
        std::iter::from_fn(|| idle.read()).take_while(|frame| frame.kind != DATA).collect();
    // Without an answer the connection ends.
    while client.read().is_some() {}
    assert!(sent.elapsed() >= interval + timeout, "{:?}", sent.elapsed());
    assert_eq!(server.failed(Http2Fault::PingTimeout), 1);
    frames.extend(std::iter::from_fn(|| idle.read()));
    assert!(frames.iter().any(|frame| frame.kind == GOAWAY), "{frames:?}");
    assert!(!frames.iter().any(|frame| frame.kind == PING), "{frames:?}");
    assert_eq!(server.monitor.metrics().http2_failed.get(Http2Fault::PingTimeout), 1);
}

#[test]
fn streams_beyond_the_setting_are_refused() {
    let (_server, mut client) = Http2Server::connected(patient().with_http2_max_streams(2));
    let settings = client.until(SETTINGS);
    assert!(settings.payload.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 2]), "{settings:?}");
    for stream in [1, 3, 5] {
        client.get(stream, "/later");
    }
    let reset = client.until(RST_STREAM);
    assert_eq!((reset.stream, &reset.payload[..]), (5, &[0, 0, 0, 7][..]), "REFUSED_STREAM");
    let router = Router::new();
    let none = Server::new(router).http(patient().with_http2_max_streams(0));
    let error = none.listen(([127, 0, 0, 1], 0).into()).bind().unwrap_err();
    assert!(error.to_string().contains("http2_max_streams must be at least 1"), "{error}");
}

#[test]
fn without_the_option_the_preface_is_rejected() {
    let running = Running::router(Router::new().get("/", |_| Response::text("hello\n")));
    let mut client = running.connect();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(client.status_line() >= 400);
}
