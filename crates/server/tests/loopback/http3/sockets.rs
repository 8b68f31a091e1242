//! WebSockets by extended CONNECT (RFC 9220), and streaming responses, beside requests of the same connection.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{StreamId, VarInt};
use sinews_http::h3::{QuicStreamId, RequestTarget};
use sinews_proto::Role;
use sinews_proto::handshake::ServerOptions;
use sinews_server::{
    Cause, Config, Context, Handler, Limits, Payload, PublishOptions, Response, Router, StreamingResponse,
    WebSocketRoute,
};
use sinews_testkit::{Frame, Reader, Reply, until};

use super::{Http3Client, Http3Server};
use crate::support::{HandlerEvent, echo, patient, scripted};

/// WebSockets of a client, by their streams.
pub(super) struct Http3Sockets {
    pub(super) client: Http3Client,
    readers: HashMap<u64, (Reader, VecDeque<Reply>)>,
}

fn quic_stream(stream: u64) -> StreamId {
    StreamId::from(VarInt::from_u64(stream).unwrap())
}

impl Http3Sockets {
    pub(super) fn new(client: Http3Client) -> Self {
        Self { client, readers: HashMap::new() }
    }

    /// Requests a socket. Returns its stream and the status of the answer.
    pub(super) fn connect(&mut self, path: &str, fields: &[(&str, &str)]) -> (u64, u16) {
        let fields = [&[("sec-websocket-version", "13")], fields].concat();
        let target = RequestTarget::connect("websocket", "localhost", path);
        let stream = self.client.quic.ask_with(&target, fields, b"", false);
        self.client.run("an answer", |quic| quic.responses.contains_key(&stream));
        self.readers.insert(stream, (Reader::new(Role::Server, None), VecDeque::new()));
        (stream, self.client.quic.responses[&stream].0)
    }

    pub(super) fn open(&mut self, path: &str) -> u64 {
        let (stream, status) = self.connect(path, &[]);
        assert_eq!(status, 200);
        stream
    }

    pub(super) fn send(&mut self, stream: u64, frame: &Frame) {
        self.send_bytes(stream, &frame.encode(Role::Client), false);
    }

    fn send_bytes(&mut self, stream: u64, bytes: &[u8], ends: bool) {
        let (quic, mut out) = (&mut self.client.quic, Vec::new());
        quic.http.send_data(QuicStreamId::new(stream), bytes, ends, &mut out).unwrap();
        quic.send(quic_stream(stream), out.into(), ends);
    }

    pub(super) fn next(&mut self, stream: u64) -> Reply {
        loop {
            let (reader, replies) = self.readers.get_mut(&stream).unwrap();
            let received = std::mem::take(&mut self.client.quic.responses.get_mut(&stream).unwrap().1);
            replies.extend(reader.read(&received).expect("valid frames"));
            if let Some(reply) = replies.pop_front() {
                return reply;
            }
            self.client.run("a message", |quic| !quic.responses[&stream].1.is_empty());
        }
    }

    fn has_ended(&mut self, stream: u64) {
        self.client.run("the end of a stream", |quic| quic.responses[&stream].2);
    }

    pub(super) fn sync(&mut self, stream: u64) {
        self.send(stream, &Frame::ping("sync"));
        assert_eq!(self.next(stream), Reply::Pong(b"sync".to_vec()));
    }
}

fn serve(router: Router) -> Http3Server {
    Http3Server::with(patient(), router, |server| server)
}

/// A server, and a client of it.
fn connected(router: Router) -> (Http3Server, Http3Sockets) {
    let server = serve(router);
    let sockets = Http3Sockets::new(server.connect());
    (server, sockets)
}

#[test]
fn sockets_and_requests_share_a_connection() {
    let (server, mut sockets) = connected(Router::new().websocket("/echo", echo()));
    let streams = [(); 3].map(|()| sockets.open("/echo"));
    for round in 0..3 {
        for stream in streams {
            sockets.send(stream, &Frame::text(format!("{stream} {round}")));
        }
        for stream in streams.into_iter().rev() {
            assert_eq!(sockets.next(stream), Reply::text(format!("{stream} {round}")));
        }
    }
    // A message of several frames and windows.
    let large = super::content::pattern(300_000);
    sockets.send(streams[1], &Frame::binary(&large));
    assert_eq!(sockets.client.get("/fixed").0, 200);
    assert_eq!(sockets.next(streams[1]), Reply::binary(&large));
    sockets.send(streams[0], &Frame::close(1000, "done"));
    assert_eq!(sockets.next(streams[0]).close_code(), Some(1000));
    sockets.has_ended(streams[0]);
    sockets.send_bytes(streams[0], b"", true);
    sockets.sync(streams[2]);
    sockets.client.run("the end of a socket", |_| server.monitor.metrics().websockets() == 2);
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.http3_websockets, metrics.handshakes, metrics.websockets()), (3, 3, 2));
}

#[test]
fn handshake_is_decided_as_over_other_versions() {
    let options = ServerOptions::new().with_subprotocol("b.v1").unwrap();
    let router = Router::new()
        .before("/secret", |_| Some(Response::text("no\n").with_status(401)))
        .websocket("/secret", echo())
        .websocket("/echo", echo().with_options(options));
    let (_server, mut sockets) = connected(router);
    let ok = &[("sec-websocket-protocol", "c, b.v1"), ("origin", "https://localhost")];
    let (first, status) = sockets.connect("/echo", ok);
    assert_eq!(status, 200);
    assert_eq!(sockets.client.header(first, "sec-websocket-protocol"), Some("b.v1"));
    for (path, fields, status) in [
        ("/echo", &[("origin", "https://b")][..], 403),
        ("/echo", &[("sec-websocket-protocol", "a b")], 400),
        ("/missing", &[], 404),
        ("/fixed", &[], 405),
        ("/secret", &[], 401),
    ] {
        let (stream, answer) = sockets.connect(path, fields);
        assert_eq!(answer, status, "{path} {fields:?}");
        sockets.has_ended(stream);
    }
    sockets.sync(first);
}

/// A stream without Close: as the end, and as a reset, of TCP.
#[test]
fn streams_end_as_transports_do() {
    let (route, events) = scripted(|_, _| {});
    let (server, mut sockets) = connected(Router::new().websocket("/", route));
    let stream = sockets.open("/");
    sockets.send_bytes(stream, b"", true);
    sockets.client.run("the end of a socket", |_| server.monitor.metrics().websockets() == 0);
    assert_eq!(events.closed().cause(), Cause::Ended);
    let stream = sockets.open("/");
    sockets.client.quic.quic.send_stream(quic_stream(stream)).reset(0x10c_u32.into()).unwrap();
    sockets.client.run("the end of a socket", |_| server.monitor.metrics().websockets() == 0);
    assert_eq!(events.closed().cause(), Cause::Ended);
    let stream = sockets.open("/");
    // A frame without a mask.
    sockets.send_bytes(stream, b"\x81\x01x", false);
    assert_eq!(sockets.next(stream).close_code(), Some(1002));
    sockets.has_ended(stream);
    // The end of the connection ends its sockets.
    sockets.open("/");
    let now = Instant::now();
    sockets.client.quic.quic.close(now, 0x100_u32.into(), Bytes::new());
    sockets.client.run("no WebSocket", |_| server.monitor.metrics().websockets() == 0);
    until("no connection", || server.monitor.metrics().connections() == 0);
}

#[test]
fn sockets_beside_the_first_count_as_connections() {
    let limits = Limits::default().with_max_connections_per_address(2);
    let router = Router::new().websocket("/echo", echo());
    let server = Http3Server::with(patient(), router, |server| server.limits(limits));
    let mut sockets = Http3Sockets::new(server.connect());
    let first = sockets.open("/echo");
    sockets.open("/echo");
    assert_eq!(sockets.connect("/echo", &[]).1, 429);
    sockets.send(first, &Frame::close(1000, ""));
    sockets.has_ended(first);
    sockets.send_bytes(first, b"", true);
    sockets.client.run("one WebSocket", |_| server.monitor.metrics().websockets() == 1);
    // The end of the stream frees the place once the events of its datagrams are handled.
    sockets.client.get("/");
    sockets.open("/echo");
}

#[test]
fn publications_reach_sockets_of_all_versions() {
    let route = || {
        let (route, _) = scripted(|event, cx| match event {
            HandlerEvent::Open => cx.subscribe("news").unwrap(),
            HandlerEvent::Message(_, payload) => {
                let message = sinews_server::Prepared::text(String::from_utf8_lossy(payload));
                cx.publish("news", &message, PublishOptions::new()).unwrap();
            }
            _ => {}
        });
        route
    };
    let router = Router::new().websocket("/", route());
    let server = Http3Server::with(patient(), router, |server| server.threads(2));
    let mut first = Http3Sockets::new(server.connect());
    let mut second = Http3Sockets::new(server.connect());
    let streams = [first.open("/"), first.open("/")];
    let other = second.open("/");
    for round in 0..20 {
        first.send(streams[0], &Frame::text(format!("message {round}")));
        for stream in streams {
            assert_eq!(first.next(stream), Reply::text(format!("message {round}")));
        }
        assert_eq!(second.next(other), Reply::text(format!("message {round}")));
    }
}

/// A client whose window for one stream stays closed delays no other stream, and is disconnected at its limit.
#[test]
fn slow_socket_delays_no_other_and_is_closed_at_its_limit() {
    struct Flood;
    impl Handler for Flood {
        fn message(&mut self, _: Payload<'_>, cx: &mut Context<'_>) {
            for _ in 0..4 {
                let _ = cx.send_binary(&vec![7; 1 << 20]);
            }
        }
    }
    let config = Config::default().with_high_water(64 << 10).with_max_outbound(2 << 20);
    let router = Router::new()
        .websocket("/flood", WebSocketRoute::new(|_| Ok(Flood)).with_config(config))
        .websocket("/echo", echo());
    let (server, mut sockets) = connected(router);
    let (slow, fast) = (sockets.open("/flood"), sockets.open("/echo"));
    sockets.client.quic.unread.insert(slow);
    sockets.send(slow, &Frame::text("go"));
    sockets.client.run("the end of the slow socket", |_| server.monitor.metrics().websockets() == 1);
    for _ in 0..10 {
        sockets.sync(fast);
    }
}

/// The window of the stream closes, and opens again.
#[test]
fn paused_reads_resume() {
    struct Pausing {
        until: Option<Instant>,
    }
    impl Handler for Pausing {
        fn open(&mut self, cx: &mut Context<'_>) {
            cx.pause_reads();
            self.until = Some(Instant::now() + Duration::from_millis(100));
        }
        fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
            let _ = cx.send_text(&payload.len().to_string()).unwrap();
            cx.pause_reads();
        }
        fn deadline(&self) -> Option<Instant> {
            self.until
        }
        fn expired(&mut self, cx: &mut Context<'_>) {
            self.until = Some(Instant::now() + Duration::from_millis(20));
            cx.resume_reads();
        }
    }
    let route = WebSocketRoute::new(|_| Ok(Pausing { until: None }));
    let (_server, mut sockets) = connected(Router::new().websocket("/", route));
    let stream = sockets.open("/");
    for len in [1, 200_000, 0, 70_000, 5] {
        sockets.send(stream, &Frame::binary(vec![1; len]));
    }
    for len in [1, 200_000, 0, 70_000, 5] {
        assert_eq!(sockets.next(stream), Reply::text(len.to_string()));
    }
}

#[test]
fn streaming_responses_share_the_connection() {
    struct News;
    impl Handler for News {
        fn open(&mut self, cx: &mut Context<'_>) {
            cx.subscribe("news").unwrap();
            let _ = cx.send_text("first").unwrap();
        }
        fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
    }
    let router = Router::new().get("/news", |_| StreamingResponse::events(News)).post("/", |request| {
        let message = sinews_server::Prepared::text(String::from_utf8_lossy(request.body()));
        request.topics().publish("news", &message, PublishOptions::new()).unwrap();
        Response::new(204)
    });
    let server = serve(router);
    let mut client = server.connect();
    let news = client.ask("GET", "/news", b"");
    client.run("an event", |quic| quic.responses.get(&news).is_some_and(|answer| !answer.1.is_empty()));
    assert_eq!(client.header(news, "content-type"), Some("text/event-stream"));
    for text in ["second", "third"] {
        let post = client.ask("POST", "/", text.as_bytes());
        assert_eq!(client.answer(post).0, 204);
        let end = format!("data: {text}\n\n");
        client.run("an event", |quic| quic.responses[&news].1.ends_with(end.as_bytes()));
    }
    assert_eq!(server.monitor.metrics().streaming_responses, 1);
    // The client reads no more.
    client.quic.quic.recv_stream(quic_stream(news)).stop(0x10c_u32.into()).unwrap();
    client.run("no streaming response", |_| server.monitor.metrics().open_streaming_responses() == 0);
}

#[test]
fn graceful_stop_closes_sockets_in_order() {
    let (server, mut sockets) = connected(Router::new().websocket("/echo", echo()));
    let stream = sockets.open("/echo");
    server.running.stop.stop();
    assert_eq!(sockets.next(stream).close_code(), Some(1001));
    sockets.send(stream, &Frame::close(1001, ""));
    sockets.has_ended(stream);
    sockets.send_bytes(stream, b"", true);
    sockets.client.run("the end of the connection", |quic| quic.lost.is_some());
    server.running.join();
}

#[test]
fn handover_sends_close_before_the_end_of_the_connection() {
    let (server, mut sockets) = connected(Router::new().websocket("/echo", echo()));
    let stream = sockets.open("/echo");
    server.running.stop.hand_over();
    assert_eq!(sockets.next(stream).close_code(), Some(1001));
    sockets.client.run("the end of the connection", |quic| quic.lost.is_some());
    server.running.join();
}
