//! The endpoint, and a client of quinn-proto with the client's side of HTTP/3.

mod half_open;
mod sessions;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::{Dir, StreamId, TransportConfig, VarInt};
use sinews_http::h3::{Config, Event, H3Code, QuicStreamId, RequestTarget};
use sinews_quic::{
    ConnectionKey, ConnectionRoutes, DatagramSend, Exchanges, Http3App, LinkEnd, QuicEndpoint, QuicLimits,
    WorkerRoute,
};
use sinews_testkit::measure;

use crate::certificate::certificate;
use crate::quic_client::QuicClient;

const SERVER: &str = "127.0.0.1:443";
const CLIENT: &str = "127.0.0.1:5000";

/// Echoes bodies, datagrams, and names paths.
#[derive(Default)]
struct EchoApp {
    bodies: HashMap<(ConnectionKey, QuicStreamId), Vec<u8>>,
    requests: usize,
    datagrams: usize,
    settled: usize,
    session_streams: Vec<u64>,
    session_bytes: Vec<u8>,
    ends: Vec<String>,
    resets: usize,
    last: Option<ConnectionKey>,
    connections: Vec<ConnectionKey>,
    /// Pauses each request at its head.
    pauses: bool,
    /// Answers no request.
    withholds: bool,
    /// Rejects all clients.
    is_full: bool,
    /// A session whose datagrams fill each packet that may leave.
    saturated: Option<QuicStreamId>,
}

impl Http3App for EchoApp {
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        let key = exchanges.connection();
        match event {
            Event::Request { stream, head } => {
                self.requests += 1;
                self.last = Some(key);
                let path = head.target().unwrap_or_default().to_owned();
                exchanges.send_head(stream, 200, [("x-path", path.as_str())], false).expect("an open stream");
                self.bodies.insert((key, stream), Vec::new());
                if self.pauses {
                    exchanges.pause_reads(stream);
                }
            }
            Event::SessionStream { stream, .. } => self.session_streams.push(stream.get()),
            Event::Data { stream, data } if self.session_streams.contains(&stream.get()) => {
                self.session_bytes.extend_from_slice(data);
            }
            Event::Data { stream, data } => {
                if let Some(body) = self.bodies.get_mut(&(key, stream)) {
                    body.extend_from_slice(data);
                }
            }
            Event::End { stream } => {
                if let Some(body) = self.bodies.remove(&(key, stream)).filter(|_| !self.withholds) {
                    exchanges.send_data(stream, body.into(), true).expect("an open stream");
                }
            }
            Event::Reset { .. } => self.resets += 1,
            _ => {}
        }
    }

    fn handle_start(&mut self, exchanges: &mut Exchanges<'_>) -> Result<(), &'static str> {
        self.connections.push(exchanges.connection());
        Ok(())
    }

    fn admits(&mut self, _: IpAddr) -> bool {
        !self.is_full
    }

    fn handle_datagram(&mut self, exchanges: &mut Exchanges<'_>, session: QuicStreamId, payload: &[u8]) {
        self.datagrams += 1;
        exchanges.send_datagram(session, &[payload]).expect("an open session");
    }

    fn handle_batch_end(&mut self, exchanges: &mut Exchanges<'_>) {
        self.settled += 1;
        let Some(session) = self.saturated else { return };
        let datagram = vec![7; exchanges.datagram_max(session)];
        while exchanges.send_datagram(session, &[&datagram]) == Ok(DatagramSend::Sent) {}
    }

    fn handle_end(&mut self, _: ConnectionKey, _: LinkEnd, reason: &str) {
        self.ends.push(reason.to_owned());
    }
}

struct Pair {
    now: Instant,
    server: QuicEndpoint,
    app: EchoApp,
    routes: ConnectionRoutes,
    /// The address of the client.
    address: SocketAddr,
    /// Bytes from and to the server before the client's address is validated.
    received: usize,
    sent: usize,
}

const ROUTE: WorkerRoute = WorkerRoute::new(5, 2);

impl Pair {
    fn new(limits: QuicLimits) -> (Self, rustls::RootCertStore) {
        let (tls, roots) = certificate();
        let routes = ConnectionRoutes::new();
        let http = Config::new().with_max_sessions(2);
        let server = QuicEndpoint::new(tls, http, limits, routes.clone(), ROUTE).expect("a valid setup");
        let (address, app) = (CLIENT.parse().expect("an address"), EchoApp::default());
        let world = Self { now: Instant::now(), server, app, routes, address, received: 0, sent: 0 };
        (world, roots)
    }

    fn connect(&self, roots: rustls::RootCertStore, alpn: &str) -> QuicClient {
        QuicClient::connect(SERVER.parse().expect("an address"), roots, alpn, self.now)
    }

    fn connect_with(&self, roots: rustls::RootCertStore, transport: TransportConfig) -> QuicClient {
        QuicClient::connect_with(SERVER.parse().expect("an address"), roots, "h3", transport, self.now)
    }

    /// Calls the last connection with a request.
    fn lend<T>(&mut self, call: impl FnOnce(&mut Exchanges<'_>) -> T) -> T {
        let key = self.app.last.expect("a request");
        let result =
            self.server.with_connection(key, &mut self.app, self.now, |_, exchanges| call(exchanges));
        result.expect("an open connection")
    }

    /// Passes datagrams both ways until none is left. Returns whether one was passed.
    fn exchange(&mut self, client: &mut QuicClient) -> bool {
        let mut any = false;
        loop {
            let mut passed = false;
            for datagram in client.transmit(self.now) {
                passed = true;
                self.received += datagram.len();
                let from = self.address;
                if datagram[0] & 0x80 == 0 {
                    assert_eq!(
                        self.routes.route(&datagram),
                        Some(ROUTE),
                        "a short header leads to its worker"
                    );
                }
                let datagram = BytesMut::from(&datagram[..]);
                self.server.receive(datagram, from, None, 0, &mut self.app, self.now);
            }
            for datagram in self.transmit() {
                passed = true;
                client.receive(&datagram, self.now);
            }
            if !passed {
                return any;
            }
            any = true;
        }
    }

    fn transmit(&mut self) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        let mut out = Vec::new();
        while let Some(outgoing) = self.server.transmit(&mut out, 16, &mut self.app, self.now) {
            self.sent += outgoing.len;
            let segment = outgoing.segment.unwrap_or(outgoing.len);
            datagrams.extend(out[..outgoing.len].chunks(segment).map(<[u8]>::to_vec));
            out.clear();
        }
        datagrams
    }

    /// Exchanges datagrams until delayed acknowledgements have arrived.
    fn pass_time(&mut self, client: &mut QuicClient) {
        for _ in 0..40 {
            self.exchange(client);
            self.now += Duration::from_millis(25);
            self.server.expire(&mut self.app, self.now);
            client.quic.handle_timeout(self.now);
            client.drive(self.now);
        }
    }

    /// Exchanges datagrams and lets time pass until a condition holds.
    /// Passes datagrams until a condition holds after one of them.
    fn run_each(&mut self, client: &mut QuicClient, mut done: impl FnMut(&QuicClient) -> bool) {
        for _ in 0..100_000 {
            for datagram in client.transmit(self.now) {
                let datagram = BytesMut::from(&datagram[..]);
                self.server.receive(datagram, self.address, None, 0, &mut self.app, self.now);
            }
            for datagram in self.transmit() {
                client.receive(&datagram, self.now);
                if done(client) {
                    return;
                }
            }
            self.now += Duration::from_millis(1);
            self.server.expire(&mut self.app, self.now);
            client.quic.handle_timeout(self.now);
            client.drive(self.now);
        }
        panic!("condition not met: {:?} {:?}", self.app.ends, client.lost);
    }

    fn run(&mut self, client: &mut QuicClient, what: &str, done: impl Fn(&Self, &QuicClient) -> bool) {
        for _ in 0..10_000 {
            self.exchange(client);
            if done(self, client) {
                return;
            }
            let next = [self.server.next_timeout(), client.quic.poll_timeout()];
            let Some(next) = next.into_iter().flatten().min() else { break };
            self.now = self.now.max(next);
            self.server.expire(&mut self.app, self.now);
            client.quic.handle_timeout(self.now);
            client.drive(self.now);
        }
        panic!("{what}: {:?} {:?}", self.app.ends, client.lost);
    }
}

fn connected(limits: QuicLimits) -> (Pair, QuicClient) {
    connected_with(limits, TransportConfig::default())
}

fn connected_with(limits: QuicLimits, transport: TransportConfig) -> (Pair, QuicClient) {
    let (mut world, roots) = Pair::new(limits);
    let mut client = world.connect_with(roots, transport);
    world.run(&mut client, "handshake", |_, client| client.http.peer_settings().is_some());
    (world, client)
}

#[test]
fn requests_are_answered_and_content_exceeds_the_windows() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let get = client.ask(&RequestTarget::new("GET", "https", "localhost", "/a"), b"", true);
    world.run(&mut client, "GET", |_, client| client.responses.get(&get).is_some_and(|answer| answer.2));
    assert_eq!(client.responses[&get], (200, Vec::new(), true));
    let body: Vec<u8> = (0..300_000_u32).map(|number| ((number * 7) >> 3) as u8).collect();
    let limits = [1, 2, 3]
        .map(|_| client.ask(&RequestTarget::new("POST", "https", "localhost", "/"), &body[..300_000], true));
    for post in limits {
        world
            .run(&mut client, "POST", |_, client| client.responses.get(&post).is_some_and(|answer| answer.2));
        let (status, echoed, _) = &client.responses[&post];
        assert!(*status == 200 && echoed[..] == body[..300_000], "{} bytes", echoed.len());
    }
    assert_eq!((world.app.requests, world.server.connections(), world.server.handshakes()), (4, 1, 0));
    assert_eq!(world.lend(|exchanges| exchanges.queued()), 0);
}

#[test]
fn paused_streams_close_their_window_and_no_other() {
    let (mut world, mut client) = connected(QuicLimits::new());
    world.app.pauses = true;
    let body = vec![7; 300_000];
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let paused = client.ask(&target, &body, true);
    world.run(&mut client, "head", |world, _| world.app.requests == 1);
    world.app.pauses = false;
    let other = client.ask(&target, &body[..50_000], true);
    world.run(&mut client, "other", |_, client| client.responses.get(&other).is_some_and(|answer| answer.2));
    let (&(_, stream), received) = world.app.bodies.iter().next().expect("the paused request");
    assert_eq!(stream.get(), paused);
    // The rest of one datagram, although the window takes 65,535 bytes.
    assert!(received.len() < 2000, "{} bytes", received.len());
    world.lend(|exchanges| exchanges.resume_reads(stream));
    world.run(&mut client, "rest", |_, client| client.responses.get(&paused).is_some_and(|answer| answer.2));
    assert_eq!(client.responses[&paused].1.len(), body.len());
}

/// More streams than fill the window of a connection.
#[test]
fn paused_streams_leave_the_window_to_others() {
    let (mut world, mut client) = connected(QuicLimits::new().with_max_queued(16 << 20));
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let body = vec![7; 100_000];
    for round in 0..3 {
        let paused: Vec<u64> = (0..60).map(|_| client.ask(&target, &body, true)).collect();
        let (requests, app) = (60 + round * 61, &mut world.app);
        app.pauses = true;
        world.run(&mut client, "heads", |world, _| world.app.requests == requests);
        world.pass_time(&mut client);
        world.app.pauses = false;
        let other = client.ask(&target, &vec![8; 3_000_000], true);
        world.run(&mut client, "a request beside paused streams", |_, client| {
            client.responses.get(&other).is_some_and(|answer| answer.2)
        });
        let streams: Vec<QuicStreamId> = world.app.bodies.keys().map(|(_, stream)| *stream).collect();
        assert_eq!(streams.len(), paused.len(), "none of them has ended");
        world.lend(|exchanges| streams.iter().for_each(|stream| exchanges.resume_reads(*stream)));
        world.run(&mut client, "the paused requests", |_, client| {
            paused.iter().all(|stream| client.responses.get(stream).is_some_and(|answer| answer.2))
        });
        assert!(paused.iter().all(|stream| client.responses[stream].1 == body));
    }
}

/// Unread bytes, bytes behind a lost datagram, and bytes that the client has not acknowledged.
#[test]
fn content_that_quic_holds_counts_as_memory() {
    let (mut world, mut client) = connected(QuicLimits::new().with_max_queued(1 << 20));
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let first = client.ask(&target, b"first", true);
    world.run(&mut client, "first", |_, client| client.responses.get(&first).is_some_and(|answer| answer.2));
    world.pass_time(&mut client);
    let memory = |world: &mut Pair| world.lend(|exchanges| exchanges.memory());
    let idle = memory(&mut world);
    world.app.pauses = true;
    let paused = client.ask(&target, &[7; 60_000], true);
    world.pass_time(&mut client);
    let held = memory(&mut world) - idle;
    assert!((55_000..70_000).contains(&held), "{held} bytes");
    let stream = QuicStreamId::new(paused);
    world.app.withholds = true;
    world.lend(|exchanges| exchanges.resume_reads(stream));
    world.pass_time(&mut client);
    world.app.pauses = false;
    // Of 50,000 bytes the first 10,000 are lost.
    let gap = client.ask(&target, &[7; 50_000], true);
    let mut datagrams = 0;
    while datagrams < 40_000 {
        let sent = client.transmit(world.now);
        for datagram in sent {
            datagrams += datagram.len();
            if datagrams > 10_000 {
                let (from, datagram) = (world.address, BytesMut::from(&datagram[..]));
                world.server.receive(datagram, from, None, 0, &mut world.app, world.now);
            }
        }
        for datagram in world.transmit() {
            client.receive(&datagram, world.now);
        }
    }
    let held = memory(&mut world) - idle;
    assert!((25_000..45_000).contains(&held), "{held} bytes");
    world.pass_time(&mut client);
    assert!(memory(&mut world) - idle < 4000, "{} bytes remain", memory(&mut world) - idle);
    let stream = QuicStreamId::new(gap);
    assert_eq!(world.lend(|exchanges| exchanges.retained()), 0);
    world.lend(|exchanges| {
        exchanges.send_data(stream, vec![7; 50_000].into(), false).expect("an open stream");
        assert_eq!(exchanges.queued(), 0, "QUIC has all of it");
    });
    let held = world.lend(|exchanges| exchanges.retained());
    assert!((50_000..51_000).contains(&held), "{held} bytes");
    world.pass_time(&mut client);
    assert_eq!(world.lend(|exchanges| exchanges.retained()), 0);
}

#[test]
fn content_beyond_the_limit_of_the_queue_ends_the_connection() {
    let (mut world, mut client) = connected(QuicLimits::new().with_max_queued(100_000));
    // More than the window of sent bytes and the queue together.
    let body = vec![7; 1_500_000];
    client.ask(&RequestTarget::new("POST", "https", "localhost", "/"), &body, true);
    world.run(&mut client, "end", |world, _| !world.app.ends.is_empty());
    assert_eq!(world.app.ends, ["queue of outgoing content is full (max_queued)"]);
}

/// RFC 9000 section 8.1: at most three times the received bytes before the client's address is validated.
#[test]
fn answers_before_validation_are_limited() {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    let mut client = world.connect(roots, "h3");
    let first = client.transmit(world.now);
    let from: SocketAddr = CLIENT.parse().expect("an address");
    for datagram in &first {
        world.received += datagram.len();
        let datagram = BytesMut::from(&datagram[..]);
        world.server.receive(datagram, from, None, 0, &mut world.app, world.now);
    }
    // The client never answers.
    for _ in 0..50 {
        world.transmit();
        let Some(next) = world.server.next_timeout() else { break };
        world.now = next;
        world.server.expire(&mut world.app, world.now);
    }
    assert!(world.sent > 0 && world.sent <= 3 * world.received, "{} of {}", world.sent, world.received);
    assert_eq!((world.server.connections(), world.server.handshakes()), (0, 0), "the handshake times out");
    // A datagram that is shorter than the standard demands gets no answer (RFC 9000 section 14.1).
    world.sent = 0;
    let short = BytesMut::from(&first[0][..1199]);
    world.server.receive(short, from, None, 0, &mut world.app, world.now);
    world.transmit();
    assert_eq!(world.sent, 0);
}

/// RFC 9000 section 8.1.2.
#[test]
fn busy_endpoint_validates_addresses_by_retry() {
    let (mut world, roots) = Pair::new(QuicLimits::new().with_retry_at(0));
    let mut client = world.connect(roots, "h3");
    let first = client.transmit(world.now).remove(0);
    let from: SocketAddr = CLIENT.parse().expect("an address");
    world.server.receive(BytesMut::from(&first[..]), from, None, 0, &mut world.app, world.now);
    let retry = world.transmit().remove(0);
    // The type of a Retry packet, and no state.
    assert_eq!((retry[0] >> 4 & 3, world.server.connections()), (3, 0));
    assert!(retry.len() < first.len());
    client.receive(&retry, world.now);
    world.run(&mut client, "handshake", |_, client| client.http.peer_settings().is_some());
}

/// RFC 9114 section 5.2.
#[test]
fn shutdown_finishes_requests_and_accepts_no_more() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let open = client.ask(&target, b"first", false);
    world.run(&mut client, "head", |_, client| client.responses.contains_key(&open));
    let begin = world.now;
    let Pair { server, app, now, .. } = &mut world;
    server.shut_down(app, *now);
    world.run(&mut client, "GOAWAY", |_, client| client.go_away == Some(4));
    assert!(world.now - begin >= Duration::from_millis(25), "after a round trip");
    let stream = StreamId::from(VarInt::from_u32(open as u32));
    client.send(stream, Bytes::new(), true);
    world.run(&mut client, "rest", |_, client| client.responses.get(&open).is_some_and(|answer| answer.2));
    assert_eq!(client.responses[&open].1, b"first");
    assert_eq!(world.server.requests(), 0);
    // A second client is refused.
    let (mut other, roots) = Pair::new(QuicLimits::new());
    let Pair { server, app, now, .. } = &mut other;
    server.shut_down(app, *now);
    let mut late = other.connect(roots, "h3");
    other.run(&mut late, "refusal", |_, client| client.lost.is_some());
    assert!(late.lost.is_some_and(|lost| lost.contains("refused")), "not by a timeout");
}

/// RFC 9114 section 5.2.
#[test]
fn requests_that_cross_the_announced_end_are_served() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let first = client.ask(&target, b"first", true);
    world.run(&mut client, "answer", |_, client| client.responses.get(&first).is_some_and(|answer| answer.2));
    let Pair { server, app, now, .. } = &mut world;
    server.shut_down(app, *now);
    // The client sends before it receives.
    let crossing = client.ask(&target, b"crossing", true);
    world.run(&mut client, "answer", |_, client| {
        client.responses.get(&crossing).is_some_and(|answer| answer.2)
    });
    assert_eq!(client.responses[&crossing].1, b"crossing");
    let announced = client.go_away.expect("GOAWAY");
    assert!(announced > u64::from(u32::MAX), "without a limit: {announced}");
    world.run(&mut client, "GOAWAY", |_, client| client.go_away == Some(crossing + 4));
    assert!(world.lend(|exchanges| exchanges.is_drained()));
}

/// A slow connection with many downloads: each gets its turn in the window of the connection.
#[test]
fn streams_take_turns_in_the_window_of_the_connection() {
    const BODY: usize = 60_000;
    let mut transport = TransportConfig::default();
    transport.receive_window(20_000_u32.into());
    let (mut world, mut client) = connected_with(QuicLimits::new(), transport);
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let streams: Vec<u64> = (0..12).map(|_| client.ask(&target, &[7; BODY], true)).collect();
    let received = |client: &QuicClient| -> Vec<usize> {
        streams.iter().map(|stream| client.responses.get(stream).map_or(0, |answer| answer.1.len())).collect()
    };
    let mut lens = Vec::new();
    world.run_each(&mut client, |client| {
        lens = received(client);
        lens.contains(&BODY)
    });
    assert!(lens.iter().all(|len| *len >= BODY / 2), "{lens:?}");
    world.run(&mut client, "all answers", |_, client| received(client) == [BODY; 12]);
}

/// A stream that the application does not read.
#[test]
fn resets_of_paused_streams_are_reported() {
    let (mut world, mut client) = connected(QuicLimits::new());
    world.app.pauses = true;
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    let stream = client.ask(&target, b"body", false);
    world.run(&mut client, "head", |_, client| client.responses.contains_key(&stream));
    let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
    client.quic.send_stream(id).reset(0x10c_u32.into()).expect("an open stream");
    world.run(&mut client, "reset", |world, _| world.app.resets == 1);
    assert_eq!(world.server.requests(), 0);
    // And one while no stream is read.
    world.app.pauses = false;
    let stream = client.ask(&target, b"body", false);
    world.run(&mut client, "head", |_, client| client.responses.contains_key(&stream));
    world.lend(|exchanges| exchanges.pause_all_reads(true));
    let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
    client.quic.send_stream(id).reset(0x10c_u32.into()).expect("an open stream");
    world.run(&mut client, "reset", |world, _| world.app.resets == 2);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let (mut world, roots) = Pair::new(QuicLimits::new().with_max_connections(0));
    let mut client = world.connect(roots, "h3");
    world.run(&mut client, "refusal", |_, client| client.lost.is_some());
    assert_eq!(world.server.connections(), 0);
}

#[test]
fn idle_connections_end() {
    let (mut world, mut client) = connected(QuicLimits::new().with_idle_timeout(Duration::from_secs(5)));
    let started = world.now;
    world.run(&mut client, "idle timeout", |world, _| world.server.connections() == 0);
    assert!(world.now - started >= Duration::from_secs(5));
    assert_eq!(world.app.ends, ["timed out"]);
}

/// RFC 9114 section 3.1.
#[test]
fn clients_without_h3_are_refused() {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    let mut client = world.connect(roots, "hq");
    world.run(&mut client, "refusal", |_, client| client.lost.is_some());
    world.run(&mut client, "end", |world, _| world.server.connections() == 0);
    assert_eq!(world.app.requests, 0);
}

/// RFC 9114 section 8.
#[test]
fn violations_close_the_connection_with_their_code() {
    let (mut world, mut client) = connected(QuicLimits::new());
    let stream = client.quic.streams().open(Dir::Bi).expect("a permitted stream");
    // DATA before HEADERS.
    client.send(stream, Bytes::from_static(&[0, 1, 0]), false);
    world.run(&mut client, "close", |_, client| client.lost.is_some());
    let code = VarInt::from_u32(0x105).to_string();
    assert!(client.lost.as_ref().is_some_and(|lost| lost.contains(&code)), "{:?}", client.lost);
    assert!(world.app.ends[0].starts_with("H3_FRAME_UNEXPECTED"), "{:?}", world.app.ends);
    world.run(&mut client, "end", |world, _| world.server.connections() == 0);
}

/// RFC 9000 section 10.3: smaller than its cause, and never an answer to itself.
#[test]
fn stateless_resets_do_not_loop() {
    let (mut world, _) = Pair::new(QuicLimits::new());
    let from: SocketAddr = CLIENT.parse().expect("an address");
    let mut datagram = vec![0x40; 100];
    let mut answers = 0;
    for _ in 0..100 {
        world.server.receive(BytesMut::from(&datagram[..]), from, None, 0, &mut world.app, world.now);
        let Some(answer) = world.transmit().pop() else { break };
        assert!(answer.len() < datagram.len());
        datagram = answer;
        answers += 1;
        world.now += Duration::from_secs(1);
    }
    assert!(answers < 80, "{answers}");
}

#[test]
fn random_datagrams_cause_no_panic() {
    let (mut world, _) = Pair::new(QuicLimits::new());
    let from: SocketAddr = CLIENT.parse().expect("an address");
    let mut random = 1_u64;
    for _ in 0..20_000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let len = (random >> 40) as usize % 1300;
        let mut datagram: Vec<u8> = (0..len).map(|at| (random >> (at % 57)) as u8).collect();
        if let [first, a, b, c, d, ..] = &mut datagram[..] {
            *first |= 0xc0;
            [*a, *b, *c, *d] = [0, 0, 0, 1];
        }
        world.server.receive(BytesMut::from(&datagram[..]), from, None, 0, &mut world.app, world.now);
        world.transmit();
    }
    assert_eq!(world.server.connections(), 0);
}

/// Bytes that an endpoint with idle connections frees, and the bytes that its connections count.
fn memory_of(connections: usize) -> (isize, usize) {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    let clients: Vec<QuicClient> = (0..connections)
        .map(|_| {
            let mut client = world.connect(roots.clone(), "h3");
            world.run(&mut client, "handshake", |_, client| client.http.peer_settings().is_some());
            world.exchange(&mut client);
            client
        })
        .collect();
    assert_eq!((world.server.connections(), clients.len()), (connections, connections));
    let counted = std::mem::take(&mut world.app.connections).into_iter().map(|key| {
        let Pair { server, app, now, .. } = &mut world;
        server.with_connection(key, app, *now, |_, exchanges| exchanges.memory()).expect("an open connection")
    });
    let counted = counted.sum();
    let ((), counts) = measure(|| drop(world.server));
    (-counts.live, counted)
}

#[test]
fn idle_connection_takes_at_most_26_kib_which_count() {
    let ((few, _), (many, counted)) = (memory_of(10), memory_of(50));
    let each = (many - few) / 40;
    println!("an idle connection takes {each} bytes, of which {} are counted", counted / 50);
    assert!((10_000..26 << 10).contains(&each), "{each} bytes");
    let counted = counted as isize / 50;
    assert!((each * 9 / 10..each * 5 / 4).contains(&counted), "{counted} bytes are counted, of {each}");
}

/// RFC 9114 section 6.2.
#[test]
fn client_that_permits_no_control_stream_is_closed() {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    let mut transport = TransportConfig::default();
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    let mut client = world.connect_with(roots, transport);
    world.run(&mut client, "close", |_, client| client.lost.is_some());
    let code = VarInt::from_u32(0x101).to_string();
    assert!(client.lost.as_ref().is_some_and(|lost| lost.contains(&code)), "{:?}", client.lost);
    assert_eq!(world.app.ends, ["peer permits no control stream"]);
    world.run(&mut client, "end", |world, _| world.server.connections() == 0);
    assert_eq!(world.server.handshakes(), 0);
}

/// RFC 9000 section 3.5.
#[test]
fn complete_response_that_the_client_stops_is_reset() {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(10_000));
    let (mut world, mut client) = connected_with(QuicLimits::new(), transport);
    let target = RequestTarget::new("POST", "https", "localhost", "/");
    for _ in 0..3 {
        let stream = client.quic.streams().open(Dir::Bi).expect("a permitted stream");
        let (id, mut out) = (QuicStreamId::new(stream.into()), Vec::new());
        client.http.send_request(id, &target, [], false, &mut out).expect("a new stream");
        client.http.send_data(id, &[7; 100_000], true, &mut out).expect("an open stream");
        client.unread.insert(id.get());
        client.send(stream, out.into(), true);
        let requests = world.app.requests;
        world.run(&mut client, "a queued response", |world, _| {
            world.app.requests > requests && world.app.bodies.is_empty()
        });
        assert!(world.lend(|exchanges| exchanges.queued()) > 0);
        client.quic.recv_stream(stream).stop(VarInt::from_u32(0x10c)).expect("an open stream");
        world.pass_time(&mut client);
        assert_eq!(world.lend(|exchanges| (exchanges.queued(), exchanges.unacknowledged().0)), (0, 0));
    }
}

#[test]
fn ended_streams_leave_no_state_of_reads() {
    let (mut world, mut client) = connected(QuicLimits::new());
    world.app.withholds = true;
    let mut memory = Vec::new();
    for _ in 0..20 {
        let stream = client.ask(&RequestTarget::new("POST", "https", "localhost", "/"), b"all", true);
        let requests = world.app.requests;
        world.run(&mut client, "a request", |world, _| {
            world.app.requests > requests && world.app.bodies.is_empty()
        });
        let id = QuicStreamId::new(stream);
        world.lend(|exchanges| exchanges.pause_reads(id));
        world.lend(|exchanges| exchanges.reset(id, H3Code::H3_REQUEST_CANCELLED));
        world.lend(|exchanges| exchanges.pause_reads(id));
        world.pass_time(&mut client);
        memory.push(world.lend(|exchanges| exchanges.memory()));
    }
    // The queue of heads has grown to its least capacity.
    assert_eq!(memory[9], memory[19], "{memory:?}");
}

/// A client that acknowledges nothing.
#[test]
fn unacknowledged_content_is_limited_until_the_client_acknowledges_some() {
    let (mut world, mut client) = connected(QuicLimits::new().with_max_queued(3 << 20));
    world.app.withholds = true;
    let stream =
        QuicStreamId::new(client.ask(&RequestTarget::new("POST", "https", "localhost", "/"), b"all", true));
    world.run(&mut client, "a request", |world, _| world.app.requests == 1 && world.app.bodies.is_empty());
    // Returns the content that QUIC holds.
    let send = |world: &mut Pair| {
        world.lend(|exchanges| {
            for _ in 0..20 {
                exchanges.send_data(stream, vec![7; 100_000].into(), false).expect("an open stream");
            }
            2_000_000_usize.saturating_sub(exchanges.queued())
        })
    };
    let held = send(&mut world);
    assert!((100 << 10..=128 << 10).contains(&held), "{held} bytes");
    world.run(&mut client, "content", |_, client| {
        client.responses.get(&stream.get()).is_some_and(|answer| answer.1.len() == 2_000_000)
    });
    world.pass_time(&mut client);
    let held = send(&mut world);
    assert!(held > 900 << 10, "{held} bytes");
}

/// The congestion window is full, and content waits for it.
#[test]
fn client_that_acknowledges_nothing_learns_why_the_connection_ends() {
    let (mut world, mut client) = connected(QuicLimits::new().with_max_queued(3 << 20));
    world.app.withholds = true;
    let stream =
        QuicStreamId::new(client.ask(&RequestTarget::new("POST", "https", "localhost", "/"), b"all", true));
    world.run(&mut client, "a request", |world, _| world.app.requests == 1 && world.app.bodies.is_empty());
    world.lend(|exchanges| {
        exchanges.send_data(stream, vec![7; 1_000_000].into(), false).expect("an open stream");
    });
    let sent: usize = world.transmit().iter().map(Vec::len).sum();
    assert!((1..100_000).contains(&sent), "{sent} bytes within the window");
    world.lend(|exchanges| exchanges.close(H3Code::H3_EXCESSIVE_LOAD, "client is slow"));
    for datagram in world.transmit() {
        client.receive(&datagram, world.now);
    }
    assert_eq!(client.closed, Some((true, H3Code::H3_EXCESSIVE_LOAD.get())));
    assert!(
        client.lost.as_ref().is_some_and(|reason| reason.contains("client is slow")),
        "{:?}",
        client.lost
    );
}

#[test]
fn handshakes_of_one_client_are_limited_and_others_are_served() {
    let limits = QuicLimits::new().with_retry_at(0).with_max_handshakes_per_address(2);
    let (mut world, roots) = Pair::new(limits);
    let from = |number: u8| SocketAddr::from(([127, 0, 0, number], 5000));
    // Begins a handshake by the address's proof, and stalls.
    let start = |world: &mut Pair, from: SocketAddr| {
        let mut client = world.connect(roots.clone(), "h3");
        for _ in 0..2 {
            for datagram in client.transmit(world.now) {
                let datagram = BytesMut::from(&datagram[..]);
                world.server.receive(datagram, from, None, 0, &mut world.app, world.now);
            }
            for datagram in world.transmit() {
                client.receive(&datagram, world.now);
            }
        }
        client
    };
    let counts = [from(1), from(1), from(1), from(2)].map(|from| {
        start(&mut world, from);
        world.server.handshakes()
    });
    assert_eq!((counts, world.server.take_refused()), ([1, 2, 2, 3], 1));
    world.now += Duration::from_secs(11);
    world.server.expire(&mut world.app, world.now);
    for _ in 0..20 {
        world.transmit();
        let Some(next) = world.server.next_timeout() else { break };
        world.now = next;
        world.server.expire(&mut world.app, world.now);
    }
    assert_eq!(world.server.handshakes(), 0);
    start(&mut world, from(1));
    assert_eq!(world.server.handshakes(), 1);
    world.app.is_full = true;
    start(&mut world, from(3));
    assert_eq!(world.server.handshakes(), 1, "the application rejects the client");
}

#[test]
fn closed_endpoint_leaves_new_clients_to_its_successor() {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    let Pair { server, app, now, .. } = &mut world;
    server.close("restart", app, *now);
    let mut client = world.connect(roots, "h3");
    world.exchange(&mut client);
    assert_eq!((world.sent, world.server.connections(), client.lost), (0, 0, None));
}

/// The send buffer may be full before all have sent.
#[test]
fn connections_send_in_turn() {
    let (mut world, roots) = Pair::new(QuicLimits::new());
    world.app.withholds = true;
    let mut requests = Vec::new();
    for port in [5001, 5002, 5003] {
        world.address.set_port(port);
        let mut client = world.connect(roots.clone(), "h3");
        world.run(&mut client, "handshake", |_, client| client.http.peer_settings().is_some());
        let target = RequestTarget::new("POST", "https", "localhost", "/");
        let stream = QuicStreamId::new(client.ask(&target, b"all", true));
        world.run(&mut client, "a request", |world, _| world.app.requests > requests.len());
        world.pass_time(&mut client);
        requests.push((world.app.last.expect("a request"), stream));
    }
    for (key, stream) in requests {
        let Pair { server, app, now, .. } = &mut world;
        let sent = server.with_connection(key, app, *now, |_, exchanges| {
            exchanges.send_data(stream, vec![7; 8000].into(), true)
        });
        sent.expect("an open connection").expect("an open stream");
    }
    let mut out = Vec::new();
    let ports: Vec<u16> = (0..9)
        .map_while(|_| world.server.transmit(&mut out, 1, &mut world.app, world.now))
        .map(|outgoing| outgoing.destination.port() % 10)
        .collect();
    assert_eq!(ports, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
}

#[test]
fn keep_alive_ends_connections_of_absent_clients_only() {
    let limits = QuicLimits::new().with_idle_timeout(Duration::from_secs(4));
    let (mut world, mut client) = connected(limits.with_keep_alive(Duration::from_secs(1)));
    let started = world.now;
    world.run(&mut client, "time", |world, _| world.now - started > Duration::from_secs(60));
    assert_eq!(world.server.connections(), 1);
    // The client is gone.
    while let Some(next) = world.server.next_timeout() {
        world.now = next;
        world.server.expire(&mut world.app, world.now);
        world.transmit();
    }
    assert_eq!((world.server.connections(), &world.app.ends[..]), (0, &["timed out".to_owned()][..]));
}
