//! WebSockets over HTTP/2 (RFC 8441): many on one connection, beside exchanges.

use std::collections::VecDeque;
use std::io::Write;

use sinews_proto::Role;
use sinews_proto::deflate::DeflateMode;
use sinews_proto::handshake::ServerOptions;
use sinews_server::{
    Answer, Cause, CloseCode, Config, Context, Handler, Kind, Limits, Payload, Prepared, PublishOptions,
    StreamingResponse,
};
use sinews_testkit::{Codec, Frame as WsFrame, Reader, Reply, negotiate, until_equal};

use super::*;
use crate::streaming::pending_once;
use crate::support::{HandlerEvent, echo, echo_with, post, scripted};
use crate::websocket::{deflate_routes, deflating};

/// A client of HTTP/2 with WebSockets, by their streams.
pub(super) struct Sockets {
    pub(super) http2: Http2Client,
    streams: BTreeMap<u32, Socket>,
    /// Streams whose windows are not opened.
    unread: Vec<u32>,
}

/// What a stream has received.
struct Socket {
    status: Option<u16>,
    is_websocket: bool,
    /// All DATA of the stream.
    body: Vec<u8>,
    reader: Reader,
    replies: VecDeque<Reply>,
    /// Bytes that the server takes.
    window: usize,
    end: Option<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// END_STREAM.
    Ended,
    /// RST_STREAM with this code.
    Reset(u8),
}

/// A header block of extended CONNECT.
pub(super) fn connect_block(protocol: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = b"\x02\x07CONNECT\x86\x01\x01a".to_vec();
    for (name, value) in [(":path", path), (":protocol", protocol)].iter().chain(fields) {
        block.extend([0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// The status in a header block without references to a dynamic table.
fn status(block: &[u8]) -> u16 {
    let updates = block.iter().take_while(|byte| *byte >> 5 == 1).count();
    match block[updates..] {
        [0x88, ..] => 200,
        [0x89, ..] => 204,
        [0x8c, ..] => 400,
        [0x8d, ..] => 404,
        [0x08, 3, ref digits @ ..] => {
            digits[..3].iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'))
        }
        // A literal in the Huffman code: digits from 0 on take five bits, digits from 3 on six.
        [0x08, _, ref digits @ ..] => {
            let bits = digits[..3].iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << 8;
            let digit = |at: u32| match bits << at >> 27 {
                short @ 0..3 => (short, at + 5),
                _ => ((bits << at >> 26) - 0x19 + 3, at + 6),
            };
            let (first, at) = digit(0);
            let (second, at) = digit(at);
            (first * 100 + second * 10 + digit(at).0) as u16
        }
        _ => panic!("no status: {block:?}"),
    }
}

pub(super) const VERSION: (&str, &str) = ("sec-websocket-version", "13");

impl Sockets {
    pub(super) fn new(running: &Running) -> Self {
        // Without a dynamic table, a head can be read alone.
        let http2 = Http2Client::connect(running, &[0, 1, 0, 0, 0, 0]);
        Self { http2, streams: BTreeMap::new(), unread: Vec::new() }
    }

    /// Requests a socket, and returns the status of the answer.
    pub(super) fn connect(&mut self, stream: u32, path: &str, fields: &[(&str, &str)]) -> u16 {
        self.request(stream, &connect_block("websocket", path, &[&[VERSION], fields].concat()));
        self.status(stream)
    }

    pub(super) fn get(&mut self, stream: u32, path: &str) -> u16 {
        self.begin(stream, END_HEADERS | END_STREAM, &block(METHOD_GET, path, &[]));
        self.status(stream)
    }

    pub(super) fn request(&mut self, stream: u32, block: &[u8]) {
        self.begin(stream, END_HEADERS, block);
    }

    fn begin(&mut self, stream: u32, flags: u8, block: &[u8]) {
        self.http2.frame(HEADERS, flags, stream, block);
        let socket = Socket {
            status: None,
            is_websocket: block.starts_with(b"\x02\x07CONNECT"),
            body: Vec::new(),
            reader: Reader::new(Role::Server, None),
            replies: VecDeque::new(),
            window: 65_535,
            end: None,
        };
        self.streams.insert(stream, socket);
    }

    pub(super) fn status(&mut self, stream: u32) -> u16 {
        while self.streams[&stream].status.is_none() {
            assert!(self.read(), "the connection is open");
        }
        self.streams[&stream].status.unwrap()
    }

    pub(super) fn send(&mut self, stream: u32, frame: &WsFrame) {
        self.send_bytes(stream, &frame.encode(Role::Client), 16_384);
    }

    /// Sends bytes in pieces, as the window of the stream permits; that of the connection is larger.
    pub(super) fn send_bytes(&mut self, stream: u32, bytes: &[u8], piece: usize) {
        for piece in bytes.chunks(piece) {
            while self.streams[&stream].window < piece.len() {
                assert!(self.read(), "the connection is open");
            }
            self.streams.get_mut(&stream).unwrap().window -= piece.len();
            self.http2.frame(DATA, 0, stream, piece);
        }
    }

    /// Reads a frame of the connection. Returns `false` at its end.
    fn read(&mut self) -> bool {
        let Some(frame) = self.http2.read() else { return false };
        let Some(socket) = self.streams.get_mut(&frame.stream) else { return true };
        match frame.kind {
            HEADERS => {
                socket.status = Some(status(&frame.payload));
                socket.is_websocket &= socket.status == Some(200);
            }
            DATA => {
                socket.body.extend_from_slice(&frame.payload);
                if socket.is_websocket {
                    socket.replies.extend(socket.reader.read(&frame.payload).expect("valid frames"));
                }
                let len = (frame.payload.len() as u32).to_be_bytes();
                if !frame.payload.is_empty() {
                    self.http2.frame(WINDOW_UPDATE, 0, 0, &len);
                }
                if !frame.payload.is_empty() && !self.unread.contains(&frame.stream) {
                    self.http2.frame(WINDOW_UPDATE, 0, frame.stream, &len);
                }
            }
            RST_STREAM => socket.end = Some(End::Reset(frame.payload[3])),
            WINDOW_UPDATE => {
                socket.window += u32::from_be_bytes(frame.payload[..].try_into().unwrap()) as usize;
            }
            _ => {}
        }
        if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
            self.streams.get_mut(&frame.stream).unwrap().end = Some(End::Ended);
        }
        true
    }

    /// Returns the next reply of a socket.
    pub(super) fn next(&mut self, stream: u32) -> Reply {
        loop {
            let socket = self.streams.get_mut(&stream).unwrap();
            if let Some(reply) = socket.replies.pop_front() {
                return reply;
            }
            assert_eq!(socket.end, None, "stream {stream} has ended");
            assert!(self.read(), "the connection is open");
        }
    }

    /// Opens the window of a stream no more.
    pub(super) fn hold(&mut self, stream: u32) {
        self.unread.push(stream);
    }

    /// Expects the end of a stream.
    pub(super) fn end(&mut self, stream: u32) -> End {
        loop {
            let socket = &self.streams[&stream];
            if let Some(end) = socket.end.clone() {
                assert!(socket.replies.is_empty(), "{:?}", socket.replies);
                return end;
            }
            assert!(self.read(), "the connection is open");
        }
    }

    /// Waits until all that was sent has been handled.
    pub(super) fn sync(&mut self, stream: u32) {
        self.send(stream, &WsFrame::ping("sync"));
        assert_eq!(self.next(stream), Reply::Pong(b"sync".to_vec()));
    }
}

pub(super) fn serve(router: Router) -> Running {
    let http = patient().with_http2_clear_text(true);
    Running::server(Server::new(router).threads(1).http(http))
}

/// A server, and a client of it.
fn connected(router: Router) -> (Running, Sockets) {
    let running = serve(router);
    let sockets = Sockets::new(&running);
    (running, sockets)
}

#[test]
fn sockets_and_exchanges_share_a_connection() {
    let router = Router::new().get("/", |_| Response::text("hello\n")).websocket("/echo", echo());
    let (_running, mut sockets) = connected(router);
    for stream in [1, 3, 5] {
        assert_eq!(sockets.connect(stream, "/echo", &[]), 200);
    }
    let large = vec![b'x'; 300_000];
    for round in 0..3 {
        for stream in [1, 3, 5] {
            sockets.send(stream, &WsFrame::text(format!("{stream} {round}")));
        }
        for stream in [5, 1, 3] {
            assert_eq!(sockets.next(stream), Reply::text(format!("{stream} {round}")));
        }
    }
    // A message of several frames and windows, cut anywhere.
    let encoded = WsFrame::binary(&large).encode(Role::Client);
    sockets.send_bytes(3, &encoded, 9_999);
    assert_eq!(sockets.get(7, "/"), 200);
    assert_eq!(sockets.next(3), Reply::binary(&large));
    sockets.send(1, &WsFrame::close(1000, "done"));
    assert_eq!(sockets.next(1).close_code(), Some(1000));
    assert_eq!(sockets.end(1), End::Ended);
    sockets.http2.frame(DATA, END_STREAM, 1, &[]);
    sockets.sync(5);
    assert_eq!(sockets.connect(9, "/echo", &[]), 200);
    sockets.sync(9);
}

#[test]
fn handshake_is_decided_as_over_http1() {
    let options = ServerOptions::new().with_subprotocol("b.v1").unwrap();
    let router = Router::new()
        .before("/secret", |_| Some(Response::text("no\n").with_status(401)))
        .get("/plain", |_| Response::text("hello\n"))
        .websocket("/secret", echo())
        .websocket("/echo", echo().with_options(options));
    let (_running, mut sockets) = connected(router);
    let ok = &[("sec-websocket-protocol", "c, b.v1"), ("origin", "http://a")];
    assert_eq!(sockets.connect(1, "/echo", ok), 200);
    for (stream, path, fields, status) in [
        (3, "/echo", &[("origin", "http://b")][..], 403),
        (5, "/echo", &[("sec-websocket-protocol", "a b")], 400),
        (7, "/echo", &[("content-length", "5")], 400),
        (9, "/missing", &[], 404),
        (11, "/plain", &[], 405),
        (13, "/secret", &[], 401),
    ] {
        assert_eq!(sockets.connect(stream, path, fields), status, "{path} {fields:?}");
        // The answer ends the stream: its rest is not sent.
        while sockets.end(stream) != End::Reset(0) {
            assert!(sockets.read());
        }
    }
    sockets.request(15, &connect_block("websocket", "/echo", &[("sec-websocket-version", "8")]));
    assert_eq!(sockets.status(15), 400);
    for (stream, path) in [(17, "/echo"), (19, "/plain")] {
        sockets.request(stream, &connect_block("connect-udp", path, &[VERSION]));
        assert_eq!(sockets.status(stream), 501, "{path}");
    }
    // A GET is no handshake, and `Upgrade` is a connection-specific field.
    assert_eq!(sockets.get(21, "/echo"), 400);
    sockets.request(23, &connect_block("websocket", "/echo", &[VERSION, ("upgrade", "websocket")]));
    assert_eq!(sockets.end(23), End::Reset(1));
    sockets.sync(1);
}

#[test]
fn messages_are_compressed_by_agreement() {
    let mode = DeflateMode::Dedicated;
    let (_running, mut sockets) = connected(deflate_routes(mode));
    assert_eq!(sockets.connect(1, "/echo", &[("sec-websocket-extensions", "permessage-deflate")]), 200);
    let agreed = negotiate(Some(deflating(mode)), Some(deflating(mode))).client;
    let params = agreed.deflate().unwrap();
    let mut codec = Codec::new(Role::Client, params);
    let text = "the same again, ".repeat(500);
    let frame = WsFrame::text(codec.compress(text.as_bytes())).rsv(4);
    let reader = Reader::new(Role::Server, Some(Codec::new(Role::Client, params)));
    sockets.streams.get_mut(&1).unwrap().reader = reader;
    sockets.send(1, &frame);
    assert_eq!(sockets.next(1), Reply::text(&text));
    assert!(sockets.streams[&1].body.len() < 1000, "the answer is compressed");
}

/// A stream without Close: as the end, and as a reset, of TCP.
#[test]
fn streams_end_as_transports_do() {
    let (route, events) = scripted(|event, cx| {
        if let HandlerEvent::Message(..) = event {
            cx.close(CloseCode::NORMAL, "enough").unwrap();
        }
    });
    let (_running, mut sockets) = connected(Router::new().websocket("/", route));
    // The server's Close, then both ends.
    assert_eq!(sockets.connect(1, "/", &[]), 200);
    sockets.send(1, &WsFrame::text("close"));
    assert_eq!(sockets.next(1).close_code(), Some(1000));
    sockets.send(1, &WsFrame::close(1000, ""));
    sockets.http2.frame(DATA, END_STREAM, 1, &[]);
    assert_eq!(sockets.end(1), End::Ended);
    assert_eq!(events.closed().cause(), Cause::Local);
    // END_STREAM without Close, and behind half of a message.
    for (stream, input) in [(3, &[][..]), (5, &WsFrame::text("cut").encode(Role::Client)[..6])] {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
        sockets.http2.frame(DATA, END_STREAM, stream, input);
        assert_eq!(events.closed().cause(), Cause::Ended);
        assert!(matches!(sockets.end(stream), End::Reset(8) | End::Ended));
    }
    // A reset by the client, and DATA after it.
    assert_eq!(sockets.connect(7, "/", &[]), 200);
    sockets.http2.frame(RST_STREAM, 0, 7, &[0, 0, 0, 8]);
    assert_eq!(events.closed().cause(), Cause::Ended);
    // A fault of the protocol: Close first, then END_STREAM.
    assert_eq!(sockets.connect(9, "/", &[]), 200);
    sockets.http2.frame(DATA, 0, 9, &[0x81, 1, b'x']);
    assert_eq!(sockets.next(9).close_code(), Some(1002));
    assert_eq!(sockets.end(9), End::Ended);
    assert!(matches!(events.closed().cause(), Cause::Fault(_)));
    // Trailers are no part of a tunnel (RFC 9113 section 8.5).
    assert_eq!(sockets.connect(11, "/", &[]), 200);
    sockets.http2.frame(HEADERS, END_STREAM | END_HEADERS, 11, b"\x00\x01x\x01y");
    assert_eq!(sockets.end(11), End::Reset(1));
    assert_eq!(events.closed().cause(), Cause::Ended);
    // The end of the connection ends all of its sockets.
    for stream in [13, 15] {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
    }
    drop(sockets);
    assert_eq!([(); 2].map(|()| events.closed().cause()), [Cause::Ended; 2]);
}

/// A socket whose messages are not taken, and a socket whose handler does not read.
#[test]
fn slow_socket_does_not_stop_its_neighbors() {
    let (pausing, _events) = scripted(|event, cx| match event {
        HandlerEvent::Message(_, payload) if payload == b"pause" => cx.pause_reads(),
        _ => {}
    });
    let config = Config::default().with_high_water(64 << 10);
    let router = echo_with(config).websocket("/pausing", pausing);
    let (_running, mut sockets) = connected(router);
    for (stream, path) in [(1, "/echo"), (3, "/echo"), (5, "/pausing")] {
        assert_eq!(sockets.connect(stream, path, &[]), 200);
    }
    sockets.hold(1);
    let message = WsFrame::binary(vec![7; 10_000]).encode(Role::Client);
    // As many as the server reads: its window for the stream closes, when its queue is long.
    sockets.send(5, &WsFrame::text("pause"));
    for (stream, mut sent) in [(1, 0), (5, 0)] {
        while sent < 100 && sockets.streams[&stream].window >= message.len() {
            sockets.send_bytes(stream, &message, message.len());
            sent += 1;
            sockets.sync(3);
        }
        assert!(sent < 60, "stream {stream}: {sent} messages");
    }
    for number in 0..100 {
        sockets.send(3, &WsFrame::text(format!("{number}")));
        assert_eq!(sockets.next(3), Reply::text(format!("{number}")));
    }
    // The window opens: the rest follows.
    sockets.unread.clear();
    sockets.http2.frame(WINDOW_UPDATE, 0, 1, &[0, 0x10, 0, 0]);
    for _ in 0..6 {
        assert_eq!(sockets.next(1), Reply::binary(vec![7; 10_000]));
    }
    sockets.send_bytes(1, &message, message.len());
}

#[test]
fn topics_reach_sockets_of_one_connection_and_of_others() {
    let (route, _events) = scripted(|event, cx| match event {
        HandlerEvent::Open => {
            cx.subscribe("news").unwrap();
            cx.subscribe("n*").unwrap();
        }
        HandlerEvent::Message(_, payload) => {
            cx.publish(
                "news",
                &Prepared::new(Kind::Text, payload.clone().into()),
                PublishOptions::new().except(cx.subscriber_id()),
            )
            .unwrap();
        }
        _ => {}
    });
    let router = Router::new().websocket("/", route).post("/publish", |request| {
        let text = request.body().to_vec();
        request
            .topics()
            .publish("news", &Prepared::new(Kind::Text, text.into()), PublishOptions::new())
            .unwrap();
        Response::new(204)
    });
    let running = serve(router);
    let mut plain = running.websocket("/");
    let (mut sockets, mut others) = (Sockets::new(&running), Sockets::new(&running));
    let streams: Vec<u32> = (0..20).map(|number| 2 * number + 1).collect();
    for &stream in &streams {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
    }
    assert_eq!(others.connect(1, "/", &[]), 200);
    sockets.send(3, &WsFrame::text("from 3"));
    let large = "large ".repeat(20_000);
    for stream in streams.iter().copied().filter(|stream| *stream != 3) {
        assert_eq!(sockets.next(stream), Reply::text("from 3"));
    }
    assert_eq!((others.next(1), plain.next().unwrap()), (Reply::text("from 3"), Reply::text("from 3")));
    sockets.sync(3);
    for text in ["one", "two", &large] {
        let mut client = running.connect();
        client.send(post("/publish", text));
        assert_eq!(client.status_line(), 204);
        for &stream in &streams {
            assert_eq!(sockets.next(stream), Reply::text(text), "stream {stream}");
        }
        assert_eq!((others.next(1), plain.next().unwrap()), (Reply::text(text), Reply::text(text)));
    }
}

#[test]
fn graceful_stop_closes_sockets_and_then_the_connection() {
    let (running, mut sockets) = connected(echo_with(Config::default()));
    for stream in [1, 3] {
        assert_eq!(sockets.connect(stream, "/echo", &[]), 200);
    }
    sockets.sync(1);
    running.stop.stop();
    for stream in [1, 3] {
        assert_eq!(sockets.next(stream).close_code(), Some(1001));
        sockets.send(stream, &WsFrame::close(1001, ""));
        sockets.http2.frame(DATA, END_STREAM, stream, &[]);
        assert_eq!(sockets.end(stream), End::Ended);
    }
    // The round trip of a graceful GOAWAY.
    sockets.http2.frame(PING, 1, 0, b"draining");
    while sockets.read() {}
    drop(sockets);
    running.join();
}

/// The first socket has the slot of the connection, as over HTTP/1.1.
#[test]
fn further_sockets_count_as_connections_of_their_address() {
    let http = patient().with_http2_clear_text(true);
    let limits = Limits::default().with_max_connections_per_address(2);
    let server = Server::new(echo_with(Config::default())).threads(1).http(http).limits(limits);
    let running = Running::server(server);
    let mut sockets = Sockets::new(&running);
    assert_eq!((sockets.connect(1, "/echo", &[]), sockets.connect(3, "/echo", &[])), (200, 200));
    assert_eq!(sockets.connect(5, "/echo", &[]), 429);
    // The slot of the connection, and one of a socket.
    for (ended, next) in [(1, 7), (3, 11)] {
        sockets.http2.frame(RST_STREAM, 0, ended, &[0, 0, 0, 8]);
        assert_eq!(sockets.connect(next, "/echo", &[]), 200);
        assert_eq!(sockets.connect(next + 2, "/echo", &[]), 429);
    }
    sockets.sync(7);
    drop(sockets);
    // All of them are released, and none twice.
    until_equal("connections are released", [404, 404, 429], || {
        let mut clients = [(); 3].map(|()| running.connect());
        clients.each_mut().map(|client| client.send(get("/missing")).status_line())
    });
}

#[test]
fn sockets_beyond_the_limits_are_closed_by_the_code_of_their_route() {
    // Sockets of one thread that are being rejected.
    const REJECTING_MAX: u32 = 256;
    let http = patient().with_http2_clear_text(true).with_http2_max_streams(400);
    let limits = Limits::default().with_max_connections_per_address(1);
    let route = || echo().with_overload_close("busy", CloseCode::new(4100).unwrap(), "over capacity");
    let router = Router::new().websocket("/", route()).websocket("/plain", echo());
    let running = Running::server(Server::new(router).threads(1).http(http).limits(limits));
    let mut sockets = Sockets::new(&running);
    assert_eq!(sockets.connect(1, "/", &[]), 200);
    assert_eq!(sockets.connect(3, "/plain", &[]), 429);
    let streams = (5..).step_by(2);
    for stream in streams.take(REJECTING_MAX as usize) {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
        assert_eq!(sockets.next(stream), Reply::text("busy"));
        assert_eq!(sockets.next(stream).close_code(), Some(4100));
    }
    let next = 5 + 2 * REJECTING_MAX;
    assert_eq!(sockets.connect(next, "/", &[]), 429);
    // One that has ended leaves its place to another. The slot of the first socket stays taken.
    sockets.http2.frame(RST_STREAM, 0, 5, &[0, 0, 0, 8]);
    assert_eq!(sockets.connect(next + 2, "/", &[]), 200);
    assert_eq!(sockets.next(next + 2), Reply::text("busy"));
    assert_eq!(sockets.connect(next + 4, "/", &[]), 429);
    sockets.sync(1);
}

#[test]
fn idle_and_silent_sockets_time_out_by_themselves() {
    let short = Duration::from_millis(300);
    let (route, events) = scripted(|_, _| {});
    let config = Config::default().with_idle_timeout(Some(short)).with_ping_interval(None);
    let router = Router::new().websocket("/idle", route.with_config(config)).websocket("/echo", echo());
    let (_running, mut sockets) = connected(router);
    for (stream, path) in [(1, "/idle"), (3, "/echo")] {
        assert_eq!(sockets.connect(stream, path, &[]), 200);
    }
    assert_eq!(sockets.next(1).close_code(), Some(1001));
    assert!(matches!(events.closed().cause(), Cause::Expired(_)));
    sockets.sync(3);
}

struct News;

impl Handler for News {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe("news").unwrap();
        let _ = cx.send_text("begin").unwrap();
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

#[test]
fn streaming_responses_share_a_connection_with_sockets() {
    let router = Router::new()
        .get("/events", |_| StreamingResponse::events(News))
        .get("/later", |_| {
            Answer::later_streaming(async {
                pending_once().await;
                Ok(StreamingResponse::events(News))
            })
        })
        .websocket("/echo", echo())
        .post("/publish", |request| {
            let text = request.body().to_vec();
            request
                .topics()
                .publish("news", &Prepared::new(Kind::Text, text.into()), PublishOptions::new())
                .unwrap();
            Response::new(204)
        });
    let (running, mut sockets) = connected(router);
    assert_eq!(sockets.connect(1, "/echo", &[]), 200);
    assert_eq!((sockets.get(3, "/events"), sockets.get(5, "/later")), (200, 200));
    let mut expected = b"data: begin\n\n".to_vec();
    for text in ["one".to_owned(), "x".repeat(200_000), "two".to_owned()] {
        let mut client = running.connect();
        client.send(post("/publish", &text));
        assert_eq!(client.status_line(), 204);
        expected.extend_from_slice(format!("data: {text}\n\n").as_bytes());
        for stream in [3, 5] {
            while sockets.streams[&stream].body.len() < expected.len() {
                assert!(sockets.read());
            }
            assert!(sockets.streams[&stream].body == expected, "stream {stream}");
        }
    }
    sockets.http2.frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]);
    sockets.sync(1);
    running.stop.stop();
    assert_eq!(sockets.end(5), End::Ended);
    assert_eq!(sockets.next(1).close_code(), Some(1001));
}

/// Reads 320 KiB a second, and answers pings as it reads them. Returns whether the connection stayed open.
fn read_slowly(stream: &mut std::net::TcpStream, time: Duration) -> bool {
    let (start, mut received) = (std::time::Instant::now(), Vec::new());
    let mut buffer = [0; 16 << 10];
    while start.elapsed() < time {
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => received.extend_from_slice(&buffer[..len]),
            _ => return false,
        }
        while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = &received[..] {
            let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some(payload) = rest.get(..len) else { break };
            if (*kind, *flags) == (PING, 0) && stream.write_all(&frame(PING, 1, 0, payload)).is_err() {
                return false;
            }
            received.drain(..9 + len);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// The send buffer of the system holds some MiB, which a slow client reads for longer than the timeout of pings.
#[test]
fn slow_reader_of_a_socket_outlives_the_ping_timeout() {
    let http = patient()
        .with_http2_clear_text(true)
        .with_http2_ping_interval(Some(Duration::from_millis(300)))
        .with_http2_ping_timeout(Duration::from_millis(3500));
    let (route, _events) = scripted(|event, cx| {
        if matches!(event, HandlerEvent::Message(..)) {
            let message = Prepared::binary(vec![7; 100_000]);
            for _ in 0..80 {
                let _ = cx.send_prepared(&message).unwrap();
            }
        }
    });
    let route = route.with_config(Config::default().with_max_outbound(64 << 20));
    let running = Running::server(Server::new(Router::new().websocket("/", route)).threads(1).http(http));
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.connect(&running.address.into()).unwrap();
    let mut stream = std::net::TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    // The windows of HTTP/2 are no limit.
    stream.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])).unwrap();
    stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &[0x3f, 0, 0, 0])).unwrap();
    let block = b"\x02\x07CONNECT\x86\x84\x01\x01a\x00\x09:protocol\x09websocket\
        \x00\x15sec-websocket-version\x0213";
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, block)).unwrap();
    stream.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap();
    let message = WsFrame::text("go").encode(Role::Client);
    stream.write_all(&frame(DATA, 0, 1, &message)).unwrap();
    assert!(read_slowly(&mut stream, Duration::from_secs(5)), "{:?}", running.monitor.metrics().http2_failed);
    assert_eq!(running.monitor.metrics().http2_failed.get(Http2Fault::PingTimeout), 0);
    drop(stream);
    running.stop.stop();
}
