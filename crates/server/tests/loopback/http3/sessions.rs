//! Sessions of WebTransport: messages on a stream, and in datagrams.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use quinn_proto::{Dir, StreamId, VarInt};
use sinews_http::h3::{H3Code, QuicStreamId, RequestTarget};
use sinews_server::{
    Cause, CloseCode, Config, Context, Dropped, Handler, Http3Limits, Limits, Payload, Prepared,
    PublishOptions, Router, WebSocketRoute,
};
use sinews_testkit::until;

use super::{Http3Client, Http3Server};
use crate::support::{HandlerEvent, echo, patient, scripted};

/// A session of a client.
struct WebTransport {
    client: Http3Client,
    session: u64,
    /// The stream of messages.
    stream: u64,
    /// Bytes of the messages that were returned, by stream.
    read: HashMap<u64, usize>,
    messages: VecDeque<(u8, Vec<u8>)>,
}

/// A further session of its connection, or another stream of the session.
#[derive(Clone, Copy)]
struct OtherSession {
    session: u64,
    stream: u64,
}

fn quic_stream(stream: u64) -> StreamId {
    StreamId::from(VarInt::from_u64(stream).unwrap())
}

/// A message of the stream.
fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind][..], &(payload.len() as u32).to_be_bytes(), payload].concat()
}

fn request(client: &mut Http3Client, path: &str, fields: &[(&str, &str)]) -> (u64, u16) {
    let target = RequestTarget::connect("webtransport", "localhost", path);
    let session = client.quic.ask_with(&target, fields.iter().copied(), b"", false);
    client.run("an answer", |quic| quic.responses.contains_key(&session));
    (session, client.quic.responses[&session].0)
}

impl WebTransport {
    fn open(server: &Http3Server, path: &str) -> Self {
        let mut client = server.connect();
        let (session, status) = request(&mut client, path, &[("origin", "https://localhost")]);
        assert_eq!(status, 200);
        client.run("the stream of messages", |quic| !quic.session_streams.is_empty());
        let stream = client.quic.session_streams[0];
        Self { client, session, stream, read: HashMap::new(), messages: VecDeque::new() }
    }

    /// Serves these routes, and opens a session.
    fn served(router: Router, path: &str) -> (Http3Server, Self) {
        let server = serve(router);
        let session = Self::open(&server, path);
        (server, session)
    }

    /// Opens another session on the connection.
    fn open_next(&mut self, path: &str) -> OtherSession {
        let streams = self.client.quic.session_streams.len();
        let (session, status) = request(&mut self.client, path, &[]);
        assert_eq!(status, 200);
        self.client.run("the stream of messages", |quic| quic.session_streams.len() > streams);
        OtherSession { session, stream: self.client.quic.session_streams[streams] }
    }

    /// Opens a stream in the session, with its first bytes.
    fn open_stream(&mut self, bytes: &[u8]) -> OtherSession {
        self.open_in(Dir::Bi, bytes)
    }

    fn open_in(&mut self, dir: Dir, bytes: &[u8]) -> OtherSession {
        let stream = self.client.quic.quic.streams().open(dir).unwrap();
        let (id, session) = (QuicStreamId::new(stream.into()), QuicStreamId::new(self.session));
        let prefix = self.client.quic.http.open_session_stream(id, session).unwrap();
        let bytes = [prefix.as_bytes(), bytes].concat();
        self.client.quic.send(stream, bytes.into(), false);
        self.client.flush();
        OtherSession { session: self.session, stream: id.get() }
    }

    /// Uses another stream, of this session or of another one.
    fn switch(&mut self, other: OtherSession) {
        self.stream = other.stream;
    }

    fn datagram_of(&mut self, other: OtherSession, payload: &[u8]) {
        let before = std::mem::replace(&mut self.session, other.session);
        self.send_datagram(payload);
        self.session = before;
    }

    fn send_bytes(&mut self, bytes: Vec<u8>, ends: bool) {
        self.client.quic.send(quic_stream(self.stream), bytes.into(), ends);
    }

    fn send(&mut self, kind: u8, payload: &[u8]) {
        self.send_bytes(message(kind, payload), false);
    }

    /// Sends a message, and expects it back.
    fn echoes(&mut self, kind: u8, payload: &[u8]) {
        self.send(kind, payload);
        assert_eq!(self.next(), (kind, payload.to_vec()));
    }

    /// Expects a Close with this code.
    fn expect_close(&mut self, code: u16) {
        let (kind, close) = self.next();
        assert_eq!((kind, &close[..2]), (8, &code.to_be_bytes()[..]));
    }

    fn received(&self) -> &[u8] {
        let read = self.read.get(&self.stream).copied().unwrap_or(0);
        self.client.quic.responses.get(&self.stream).map_or(&[], |(_, bytes, _)| &bytes[read..])
    }

    fn next(&mut self) -> (u8, Vec<u8>) {
        loop {
            if let Some(found) = self.messages.pop_front() {
                return found;
            }
            let received = self.received();
            if let Some(head) = received.first_chunk::<5>() {
                let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if received.len() >= 5 + len {
                    let found = (head[0], received[5..5 + len].to_vec());
                    *self.read.entry(self.stream).or_default() += 5 + len;
                    self.messages.push_back(found);
                    continue;
                }
            }
            let (before, stream) = (self.received().len(), self.stream);
            let before = before + self.read.get(&stream).copied().unwrap_or(0);
            self.client.run("a message", |quic| {
                quic.responses.get(&stream).is_some_and(|(_, bytes, _)| bytes.len() > before)
            });
        }
    }

    fn send_datagram(&mut self, payload: &[u8]) {
        let prefix = self.client.quic.http.datagram_prefix(QuicStreamId::new(self.session)).unwrap();
        let datagram = [prefix.as_bytes(), payload].concat();
        self.client.quic.quic.datagrams().send(datagram.into(), false).unwrap();
        self.client.flush();
    }

    fn next_datagram(&mut self) -> Vec<u8> {
        self.client.run("a datagram", |quic| !quic.datagrams.is_empty());
        self.client.quic.datagrams.remove(0)
    }

    /// Waits for the end of the session.
    fn closed(&mut self) -> (u32, String) {
        let session = self.session;
        self.client.run("the end of the session", |quic| quic.closed_sessions.contains_key(&session));
        self.client.quic.closed_sessions[&session].clone()
    }

    /// Closes the session by a capsule.
    fn close(&mut self, code: u32, reason: &str) {
        let (quic, mut out) = (&mut self.client.quic, Vec::new());
        quic.http.close_session(QuicStreamId::new(self.session), code, reason, &mut out).unwrap();
        quic.send(quic_stream(self.session), out.into(), true);
        self.client.flush();
    }
}

fn serve(router: Router) -> Http3Server {
    Http3Server::with(patient(), router, |server| server)
}

/// Subscribes to the topic that the query names, by datagrams if it says so, and echoes the first message to the topic.
struct Subscriber {
    topic: String,
    datagrams: bool,
}

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        if self.datagrams && !(cx.deliver_datagrams("prices.>") && cx.deliver_datagrams("prices")) {
            let _ = cx.close(CloseCode::POLICY, "no datagrams");
        }
        cx.subscribe(&self.topic).unwrap();
        let _ = cx.send_text("subscribed");
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_payload(payload);
    }
}

fn subscriptions() -> Router {
    let route = WebSocketRoute::new(|request| {
        let topic = request.query("topic").unwrap_or("prices").to_owned();
        let datagrams = request.query("datagrams") == Some("true");
        assert_eq!(request.has_datagrams(), request.head().header("upgrade").next().is_none());
        Ok(Subscriber { topic, datagrams })
    });
    Router::new().websocket("/topics", route)
}

#[test]
fn messages_of_a_session_have_kind_and_length() {
    let (server, mut session) = WebTransport::served(Router::new().websocket("/echo", echo()), "/echo");
    session.send(1, "grüße".as_bytes());
    session.send(2, &[0, 255]);
    session.send(2, b"");
    assert_eq!(session.next(), (1, "grüße".as_bytes().to_vec()));
    assert_eq!(session.next(), (2, vec![0, 255]));
    assert_eq!(session.next(), (2, Vec::new()));
    // Beyond the windows, in pieces of any size.
    let large = super::content::pattern(300_000);
    let bytes = message(2, &large);
    session.send_bytes(bytes[..3].to_vec(), false);
    session.client.flush();
    session.send_bytes(bytes[3..].to_vec(), false);
    assert_eq!(session.client.get("/fixed").0, 200);
    assert_eq!(session.next(), (2, large));
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.webtransport_sessions, metrics.http3_websockets), (1, 0));
    assert_eq!((metrics.handshakes, metrics.websockets()), (1, 1));
    // Browsers may open a connection that they close unused: each counts once.
    assert_eq!((metrics.http3_connections, metrics.accepted, metrics.tls_handshakes), (1, 1, 1));
}

#[test]
fn close_of_a_session_has_code_and_reason_on_both_sides() {
    let close = |event: &HandlerEvent, cx: &mut Context<'_>| {
        if matches!(event, HandlerEvent::Message(..)) {
            cx.close(CloseCode::new(4001).unwrap(), "enough").unwrap();
        }
    };
    let ((route, events), (brief, _)) = (scripted(close), scripted(close));
    let brief = brief.with_config(Config::default().with_close_timeout(Duration::from_millis(100)));
    let server =
        serve(Router::new().websocket("/", route).websocket("/brief", brief).websocket("/echo", echo()));
    // Of the client, in the stream; the server echoes the code.
    let mut session = WebTransport::open(&server, "/echo");
    session.send(8, &[&1000u16.to_be_bytes()[..], b"done"].concat());
    assert_eq!(session.next(), (8, 1000u16.to_be_bytes().to_vec()));
    session.send_bytes(Vec::new(), true);
    assert_eq!(session.closed(), (1000, String::new()));
    // By the capsule.
    let mut session = WebTransport::open(&server, "/");
    session.close(7, "bye");
    assert_eq!(events.closed().cause(), Cause::Peer);
    // Of the server: behind its messages in the stream, and once the client has read them, of the session.
    let mut session = WebTransport::open(&server, "/");
    session.send(1, b"x");
    assert_eq!(session.next(), (8, [&4001u16.to_be_bytes()[..], b"enough"].concat()));
    let stream = session.stream;
    session.client.run("the end of the stream", |quic| quic.responses[&stream].2);
    session.send_bytes(Vec::new(), true);
    assert_eq!(session.closed(), (4001, "enough".to_owned()));
    // Of the server, and the client does not end its side: after the timeout of the close.
    let mut session = WebTransport::open(&server, "/brief");
    session.send(1, b"x");
    assert_eq!(session.closed(), (4001, "enough".to_owned()));
    // A message of an unknown kind.
    let mut session = WebTransport::open(&server, "/echo");
    session.send(3, b"x");
    session.expect_close(1002);
    session.send_bytes(Vec::new(), true);
    assert_eq!(session.closed().0, 1002);
}

/// The stream of the request ends inside of a capsule: a violation, which ends the socket, too.
#[test]
fn session_with_a_truncated_capsule_ends() {
    let (route, events) = scripted(|_, _| {});
    // The session has the slot of its connection.
    let limits = Limits::default().with_max_connections(1);
    let router = Router::new().websocket("/", route);
    let server = Http3Server::with(patient(), router, |server| server.limits(limits));
    let mut session = WebTransport::open(&server, "/");
    let connect = session.session;
    // DATA with the type and the length of a Close.
    let capsule = bytes::Bytes::from_static(b"\x00\x03\x68\x43\x08");
    session.client.quic.send(quic_stream(connect), capsule, true);
    session.client.run("a reset", |quic| quic.resets.contains_key(&connect));
    assert_eq!(session.client.quic.resets[&connect], H3Code::H3_MESSAGE_ERROR.get());
    events.closed();
    assert_eq!(request(&mut session.client, "/", &[]).1, 200, "the slot of the session is free");
}

#[test]
fn requests_for_sessions_are_decided_as_handshakes() {
    let router = Router::new().websocket("/echo", echo());
    let server = serve(router);
    let mut client = server.connect();
    for (path, origin, status) in [
        ("/echo", "https://elsewhere.example", 403),
        ("/missing", "https://localhost", 404),
        ("/fixed", "https://localhost", 405),
    ] {
        assert_eq!(request(&mut client, path, &[("origin", origin)]).1, status, "{path}");
    }
}

#[test]
fn sessions_beyond_max_sessions_are_rejected() {
    let limits = Http3Limits::default().with_max_sessions(2);
    let http = patient().with_http3_limits(limits);
    let server = Http3Server::with(http, Router::new().websocket("/echo", echo()), |server| server);
    let mut client = server.connect();
    let first = request(&mut client, "/echo", &[]);
    assert_eq!((first.1, request(&mut client, "/echo", &[]).1), (200, 200));
    let target = RequestTarget::connect("webtransport", "localhost", "/echo");
    let third = client.quic.ask(&target, b"", false);
    client.run("a reset", |quic| quic.resets.contains_key(&third));
    assert_eq!(client.quic.resets[&third], H3Code::H3_REQUEST_REJECTED.get());
    // Requests and WebSockets are no sessions.
    assert_eq!(client.get("/fixed").0, 200);
    // The end of a session frees its place.
    let (quic, mut out) = (&mut client.quic, Vec::new());
    quic.http.close_session(QuicStreamId::new(first.0), 0, "", &mut out).unwrap();
    quic.send(quic_stream(first.0), out.into(), true);
    client.flush();
    let is_accepted = |client: &mut Http3Client| {
        let session = client.quic.ask(&target, b"", false);
        client.run("an answer", |quic| {
            quic.responses.contains_key(&session) || quic.resets.contains_key(&session)
        });
        client.quic.responses.contains_key(&session)
    };
    assert!((0..100).any(|_| is_accepted(&mut client)));
}

/// Each has its stream, its datagrams, its subscriptions and its end.
#[test]
fn sessions_of_a_connection_are_independent() {
    let router = subscriptions().websocket("/echo", echo());
    // Each further session counts as a connection.
    let limits = Limits::default().with_max_connections(3);
    let server = Http3Server::with(patient(), router, |server| server.limits(limits));
    let mut first = WebTransport::open(&server, "/topics?topic=prices&datagrams=true");
    assert_eq!(first.next(), (1, b"subscribed".to_vec()));
    let [second, third] =
        ["/topics?topic=prices.a&datagrams=true", "/echo"].map(|path| first.open_next(path));
    let target = RequestTarget::connect("webtransport", "localhost", "/echo");
    let beyond = first.client.quic.ask(&target, b"", false);
    first.client.run("an answer", |quic| quic.responses.contains_key(&beyond));
    assert_eq!(first.client.quic.responses[&beyond].0, 503, "max_connections");
    // Datagrams and messages of the client reach their session.
    first.datagram_of(third, b"\x01to the third");
    first.switch(third);
    assert_eq!(first.next(), (1, b"to the third".to_vec()));
    first.echoes(2, b"by its stream");
    // Datagrams of the server name their session.
    for (topic, of) in [("prices", first.session), ("prices.a", second.session)] {
        server.running.publisher.publish(topic, &Prepared::text(topic), PublishOptions::new()).unwrap();
        assert_eq!(first.next_datagram(), [b"\x01", topic.as_bytes()].concat());
        assert_eq!(first.client.quic.datagram_sessions.pop(), Some(of), "{topic}");
    }
    // The end of one leaves the others.
    first.close(7, "bye");
    first.send(1, b"after the end");
    assert_eq!(first.next().1, b"after the end");
    first.client.run("the end of a session", |_| server.monitor.metrics().websockets() == 2);
}

/// A session with many topics does not use up the congestion window before another.
#[test]
fn busy_session_does_not_delay_datagrams_of_another() {
    let (server, mut busy) = WebTransport::served(subscriptions(), "/topics?topic=prices.>&datagrams=true");
    assert_eq!(busy.next(), (1, b"subscribed".to_vec()));
    let quiet = busy.open_next("/topics?topic=prices&datagrams=true");
    let mut published = 0;
    let mut publish = |topic: &str| {
        server
            .running
            .publisher
            .publish(topic, &Prepared::text("x".repeat(900)), PublishOptions::new())
            .unwrap();
        published += 1;
        until("a delivery", || server.monitor.metrics().deliveries >= published);
    };
    // The client acknowledges nothing meanwhile.
    (0..500).for_each(|number| publish(&format!("prices.{number}")));
    publish("prices");
    busy.client
        .run("a datagram of the quiet session", |quic| quic.datagram_sessions.contains(&quiet.session));
    let before = busy.client.quic.datagram_sessions.iter().position(|of| *of == quiet.session).unwrap();
    assert!(before < 250, "{before} of 500 datagrams of the busy session came before");
}

/// As pages of browsers do: the session needs no stream of the server.
#[test]
fn streams_that_the_client_opens_carry_messages() {
    let (server, mut session) = WebTransport::served(Router::new().websocket("/echo", echo()), "/echo");
    let own = session.stream;
    // Its first bytes, and a message in pieces.
    let first = session.open_stream(&message(1, b"first")[..3]);
    session.switch(first);
    session.send_bytes(message(1, b"first")[3..].to_vec(), false);
    assert_eq!(session.next(), (1, b"first".to_vec()));
    // The unused stream of the server ends, and the session does not.
    session.switch(OtherSession { stream: own, ..first });
    assert_eq!(session.next(), (8, [&1000u16.to_be_bytes()[..], b"the client has opened a stream"].concat()));
    session.client.run("the end of the stream", |quic| quic.responses[&own].2);
    session.send_bytes(Vec::new(), true);
    let second = session.open_stream(&message(2, &[7; 100_000]));
    session.switch(second);
    assert_eq!(session.next(), (2, vec![7; 100_000]));
    session.send_datagram(b"\x01datagram");
    session.switch(first);
    assert_eq!(session.next(), (1, b"datagram".to_vec()), "on the first of them");
    // A stream ends by its own Close, and the session with the last one.
    session.send(8, &1000u16.to_be_bytes());
    assert_eq!(session.next(), (8, 1000u16.to_be_bytes().to_vec()));
    session.send_bytes(Vec::new(), true);
    session.switch(second);
    session.echoes(1, b"still there");
    assert!(session.client.quic.closed_sessions.is_empty());
    session.send(8, &[&4000u16.to_be_bytes()[..], b"done"].concat());
    assert_eq!(session.next(), (8, 4000u16.to_be_bytes().to_vec()));
    session.send_bytes(Vec::new(), true);
    assert_eq!(session.closed(), (4000, String::new()));
    session.client.run("the end of all streams", |_| server.monitor.metrics().websockets() == 0);
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.webtransport_sessions, metrics.webtransport_streams), (1, 2));
    assert_eq!((metrics.handshakes, metrics.websockets()), (3, 0));
}

#[test]
fn stream_of_the_server_remains_if_the_client_has_used_it() {
    let (server, mut session) = WebTransport::served(subscriptions(), "/topics?topic=prices");
    assert_eq!(session.next(), (1, b"subscribed".to_vec()));
    session.echoes(1, b"used");
    // Each stream has a handler with subscriptions of its own.
    let own = session.stream;
    let other = session.open_stream(&message(1, b"other"));
    session.switch(other);
    assert_eq!([session.next(), session.next()], [(1, b"subscribed".to_vec()), (1, b"other".to_vec())]);
    session.switch(OtherSession { stream: own, ..other });
    session.echoes(1, b"still there");
    let metrics = server.monitor.metrics();
    assert_eq!(metrics.websockets(), 2);
}

#[test]
fn streams_of_a_session_end_with_it() {
    let (route, events) = scripted(|_, _| {});
    let (server, mut session) = WebTransport::served(Router::new().websocket("/", route), "/");
    session.send(1, b"used");
    let streams: Vec<_> = (0..3).map(|_| session.open_stream(&message(1, b"x"))).collect();
    let has_handlers = |count| server.monitor.metrics().websockets() == count;
    session.client.run("all streams", |_| has_handlers(4));
    session.close(7, "bye");
    session.client.run("the end of the handlers", |_| has_handlers(0));
    for _ in 0..4 {
        assert_eq!(events.closed().cause(), Cause::Peer);
    }
    assert_eq!(session.client.get("/fixed").0, 200, "the connection continues");
    // A stop closes each of them with 1001.
    let mut session = WebTransport::open(&server, "/");
    session.send(1, b"used");
    let other = session.open_stream(&message(1, b"x"));
    session.client.run("both streams", |_| has_handlers(2));
    server.running.stop.stop();
    let own = OtherSession { stream: session.stream, ..other };
    for stream in [own, other] {
        session.switch(stream);
        session.expect_close(1001);
        session.send_bytes(Vec::new(), true);
    }
    assert_eq!(session.closed().0, 1001);
    drop(streams);
    server.running.join();
}

#[test]
fn streams_beyond_the_limits_are_reset_with_their_code() {
    let limits = Limits::default().with_max_connections(17);
    let router = Router::new().websocket("/echo", echo());
    let server = Http3Server::with(patient(), router, |server| server.limits(limits));
    let mut session = WebTransport::open(&server, "/echo");
    session.send(1, b"used");
    let code_of = |session: &mut WebTransport, stream: u64| {
        session.client.run("a reset", |quic| quic.resets.contains_key(&stream));
        H3Code::new(session.client.quic.resets[&stream]).session_code()
    };
    // One is the server's.
    for number in 0..15 {
        let other = session.open_stream(&message(1, b"x"));
        session.switch(other);
        assert_eq!(session.next(), (1, b"x".to_vec()), "{number}");
    }
    let beyond = session.open_stream(&message(1, b"x"));
    assert_eq!(code_of(&mut session, beyond.stream), Some(1013), "16 for each session");
    // A connection counts with its first stream: 16, and the other connection.
    let mut other = WebTransport::open(&server, "/echo");
    other.echoes(1, b"used");
    let beyond = other.open_stream(&message(1, b"x"));
    assert_eq!(code_of(&mut other, beyond.stream), Some(4503), "max_connections");
    other.echoes(1, b"still there");
}

/// CVE-2023-44487 with streams of a session: each would have a handler.
#[test]
fn rapid_resets_of_streams_end_the_connection() {
    let (server, mut session) = WebTransport::served(Router::new().websocket("/echo", echo()), "/echo");
    session.echoes(1, b"used");
    for _ in 0..300 {
        if session.client.quic.lost.is_some() {
            break;
        }
        // Time permits more resets, so a round trip has several. Two rounds stay below the limit of a session.
        let streams = [(); 7].map(|()| session.open_stream(&message(1, b"x")).stream);
        session.client.run("the echoes", |quic| {
            let has_echo = |stream| quic.responses.get(stream).is_some_and(|(_, bytes, _)| bytes.len() == 6);
            quic.lost.is_some() || streams.iter().all(has_echo)
        });
        for stream in streams {
            let _ = session.client.quic.quic.send_stream(quic_stream(stream)).reset(0_u32.into());
            let _ = session.client.quic.quic.recv_stream(quic_stream(stream)).stop(0_u32.into());
        }
    }
    session.client.ends("reset");
    until("the end of the handlers", || server.monitor.metrics().websockets() == 0);
    assert_eq!(server.connect().get("/fixed").0, 200);
}

/// They carry no messages.
#[test]
fn unidirectional_streams_of_the_client_are_rejected() {
    let (_server, mut session) = WebTransport::served(Router::new().websocket("/echo", echo()), "/echo");
    for _ in 0..20 {
        let stream = session.open_in(Dir::Uni, &message(1, b"x")).stream;
        // STOP_SENDING, which QUIC answers by a reset.
        let id = quic_stream(stream);
        session.client.run("a stop", |quic| {
            let stopped = quic.stopped.get(&stream).map(|code| H3Code::new(*code).session_code());
            stopped == Some(Some(1003))
        });
        let _ = session.client.quic.quic.send_stream(id).reset(0_u32.into());
    }
    session.echoes(1, b"still there");
}

#[test]
fn datagrams_are_messages() {
    let (server, mut session) = WebTransport::served(Router::new().websocket("/echo", echo()), "/echo");
    session.send_datagram(b"\x01text");
    assert_eq!(session.next(), (1, b"text".to_vec()));
    session.send_datagram(b"\x02\xff");
    assert_eq!(session.next(), (2, b"\xff".to_vec()));
    for (wrong, code) in [(&b""[..], 1002), (b"\x08\x03\xe8", 1002), (b"\x01\xff", 1007)] {
        let mut session = WebTransport::open(&server, "/echo");
        session.send_datagram(wrong);
        let (kind, close) = session.next();
        assert_eq!((kind, &close[..2]), (8, &u16::to_be_bytes(code)[..]), "{wrong:?}");
    }
    assert_eq!(server.monitor.metrics().webtransport_datagrams_received, 5);
}

/// While the client acknowledges nothing, of each topic the newest publication waits.
#[test]
fn newest_publication_of_each_topic_leaves_when_the_network_is_free_again() {
    let server = serve(subscriptions());
    let mut session = WebTransport::open(&server, "/topics?topic=prices.*&datagrams=true");
    assert_eq!(session.next(), (1, b"subscribed".to_vec()));
    let rounds: u32 = 1000;
    for round in 0..rounds {
        for topic in ["prices.a", "prices.b"] {
            let value = format!("{topic} {round:4} {}", "x".repeat(900));
            server.running.publisher.publish(topic, &Prepared::text(value), PublishOptions::new()).unwrap();
        }
        // The client does not answer meanwhile, and the server has taken all publications.
        let deliveries = u64::from(round + 1) * 2;
        until("a delivery", || server.monitor.metrics().deliveries >= deliveries);
    }
    let metrics = server.monitor.metrics();
    assert!(metrics.webtransport_datagrams_sent < 1000, "{}", metrics.webtransport_datagrams_sent);
    let last = |topic: &str| format!("\x01{topic} {:4} ", rounds - 1).into_bytes();
    for topic in ["prices.a", "prices.b"] {
        let end = last(topic);
        session
            .client
            .run("the newest value", |quic| quic.datagrams.iter().any(|found| found.starts_with(&end)));
    }
    // The thread of the server changes one counter after the other.
    session.client.run("all publications", |_| {
        let metrics = server.monitor.metrics();
        metrics.webtransport_datagrams_sent + metrics.dropped.get(Dropped::Conflated) == u64::from(rounds) * 2
    });
    assert_eq!(server.monitor.metrics().webtransport_oversized, 0);
}

/// A stop closes sessions as WebSockets: 1001 in the stream, and then as the code of the session.
#[test]
fn graceful_stop_closes_sessions_in_order() {
    let (server, mut session) = WebTransport::served(Router::new().websocket("/echo", echo()), "/echo");
    session.echoes(1, b"before");
    server.running.stop.stop();
    session.expect_close(1001);
    session.send_bytes(Vec::new(), true);
    assert_eq!(session.closed().0, 1001);
    session.client.run("the end of the connection", |quic| quic.lost.is_some());
    server.running.join();
}

#[test]
fn publications_leave_as_datagrams_and_long_ones_by_the_stream() {
    let (server, mut session) = WebTransport::served(subscriptions(), "/topics?datagrams=true");
    let mut reliable = WebTransport::open(&server, "/topics");
    assert_eq!(session.next(), (1, b"subscribed".to_vec()));
    assert_eq!(reliable.next(), (1, b"subscribed".to_vec()));
    let publish =
        |message| server.running.publisher.publish("prices", &message, PublishOptions::new()).unwrap();
    publish(Prepared::text("first"));
    assert_eq!(session.next_datagram(), b"\x01first");
    let long = vec![7; 4000];
    publish(Prepared::binary(long.clone()));
    publish(Prepared::text("last"));
    assert_eq!(session.next(), (2, long.clone()));
    assert_eq!(session.next_datagram(), b"\x01last");
    assert_eq!(reliable.next(), (1, b"first".to_vec()));
    assert_eq!(reliable.next(), (2, long));
    assert_eq!(reliable.next(), (1, b"last".to_vec()));
    // Replies to the client are reliable.
    session.echoes(1, b"hello");
    let metrics = server.monitor.metrics();
    assert_eq!((metrics.webtransport_datagrams_sent, metrics.webtransport_oversized), (2, 1));
}
