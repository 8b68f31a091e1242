//! Two endpoints: one accepts, the other connects.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use sinews_http::h3::{Config, Event, H3Code, H3SendError, QuicStreamId, RequestTarget};
use sinews_quic::{
    ConnectionKey, ConnectionRoutes, Exchanges, Http3App, LinkEnd, QuicConnectError, QuicEndpoint,
    QuicLimits, WorkerRoute,
};

use crate::certificate::certificate;

const SERVER: &str = "127.0.0.1:443";
const CLIENT: &str = "127.0.0.1:5000";

/// The server: echoes content and the bytes of tunnels, and ends with its client.
#[derive(Default)]
struct Echo {
    requests: Vec<(String, String)>,
    ends: Vec<(LinkEnd, String)>,
    open: Vec<QuicStreamId>,
    /// Answers no request.
    withholds: bool,
}

impl Http3App for Echo {
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        match event {
            Event::Request { stream, head } => {
                let protocol = head.protocol().unwrap_or_default();
                self.requests.push((head.method().to_owned(), protocol.to_owned()));
                self.open.push(stream);
                if !self.withholds {
                    exchanges.send_head(stream, 200, [("x-name", "echo")], false).expect("an open stream");
                }
            }
            Event::Data { stream, data } => {
                exchanges.send_data(stream, Bytes::copy_from_slice(data), false).expect("an open stream");
            }
            Event::End { stream } if !self.withholds => {
                self.open.retain(|open| *open != stream);
                exchanges.send_data(stream, Bytes::new(), true).expect("an open stream");
            }
            _ => {}
        }
    }

    fn handle_end(&mut self, _: ConnectionKey, cause: LinkEnd, reason: &str) {
        self.ends.push((cause, reason.to_owned()));
    }
}

/// The client: opens requests in order, as many as the server permits, and collects the answers.
#[derive(Default)]
struct Requests {
    targets: Vec<RequestTarget<'static>>,
    refused: Vec<H3SendError>,
    streams: Vec<QuicStreamId>,
    answers: Vec<(QuicStreamId, u16, String, Vec<u8>, bool)>,
    ends: Vec<(LinkEnd, String)>,
    extended_connect: Option<bool>,
}

impl Requests {
    fn answer(&mut self, stream: QuicStreamId) -> &mut (QuicStreamId, u16, String, Vec<u8>, bool) {
        self.answers.iter_mut().find(|answer| answer.0 == stream).expect("a response")
    }
}

impl Http3App for Requests {
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        match event {
            Event::Settings { settings } => {
                assert_eq!(exchanges.peer_settings(), Some(settings));
                self.extended_connect = Some(settings.extended_connect);
            }
            Event::Response { stream, head } => {
                let name = head
                    .fields()
                    .get("x-name")
                    .next()
                    .map(|value| String::from_utf8_lossy(value).into_owned());
                self.answers.push((stream, head.status(), name.unwrap_or_default(), Vec::new(), false));
            }
            Event::Data { stream, data } => self.answer(stream).3.extend_from_slice(data),
            Event::End { stream } => self.answer(stream).4 = true,
            _ => {}
        }
    }

    fn handle_batch_end(&mut self, exchanges: &mut Exchanges<'_>) {
        while let Some(target) = self.targets.first() {
            match exchanges.send_request(target, [("user-agent", "test")], false) {
                Ok(Some(stream)) => self.streams.push(stream),
                Ok(None) => return,
                Err(error) => self.refused.push(error),
            }
            self.targets.remove(0);
        }
    }

    fn handle_end(&mut self, _: ConnectionKey, cause: LinkEnd, reason: &str) {
        self.ends.push((cause, reason.to_owned()));
    }
}

struct Pair {
    now: Instant,
    server: QuicEndpoint,
    echo: Echo,
    client: QuicEndpoint,
    requests: Requests,
}

impl Pair {
    fn new(server: Config) -> Self {
        let (tls, roots) = certificate();
        Self::with_roots(server, tls, roots)
    }

    fn with_roots(server: Config, tls: Arc<rustls::ServerConfig>, roots: rustls::RootCertStore) -> Self {
        let limits = QuicLimits::new();
        let route = WorkerRoute::new(0, 0);
        let client = QuicEndpoint::client(client_tls(roots), Config::new(), limits).expect("a valid setup");
        let server = QuicEndpoint::new(tls, server, limits, ConnectionRoutes::new(), route);
        let server = server.expect("a valid setup");
        let (echo, requests) = (Echo::default(), Requests::default());
        Self { now: Instant::now(), server, echo, client, requests }
    }

    fn connect(&mut self) -> ConnectionKey {
        let server = SERVER.parse().expect("an address");
        self.client.connect(server, "localhost", self.now).expect("a valid name")
    }

    /// Passes datagrams until there are none, and then expires the timers that are due within a second.
    fn run(&mut self) {
        let end = self.now + Duration::from_secs(1);
        loop {
            while self.pass() {}
            let timeouts = [self.server.next_timeout(), self.client.next_timeout()];
            let Some(next) = timeouts.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.server.expire(&mut self.echo, self.now);
            self.client.expire(&mut self.requests, self.now);
        }
    }

    fn pass(&mut self) -> bool {
        let Self { now, server, echo, client, requests } = self;
        let to_server = pass(client, requests, server, echo, (CLIENT, SERVER), *now);
        pass(server, echo, client, requests, (SERVER, CLIENT), *now) || to_server
    }

    /// Calls the connection of the client.
    fn lend<T>(&mut self, key: ConnectionKey, call: impl FnOnce(&mut Exchanges<'_>) -> T) -> T {
        let now = self.now;
        let called =
            self.client.with_connection(key, &mut self.requests, now, |_, exchanges| call(exchanges));
        called.expect("an open connection")
    }
}

fn pass(
    from: &mut QuicEndpoint,
    sender: &mut dyn Http3App,
    to: &mut QuicEndpoint,
    receiver: &mut dyn Http3App,
    (source, destination): (&str, &str),
    now: Instant,
) -> bool {
    let (mut out, mut has_passed) = (Vec::new(), false);
    let source: SocketAddr = source.parse().expect("an address");
    while let Some(outgoing) = from.transmit(&mut out, 10, sender, now) {
        assert_eq!(outgoing.destination, destination.parse().expect("an address"));
        for datagram in out[..outgoing.len].chunks(outgoing.segment.unwrap_or(outgoing.len)) {
            to.receive(BytesMut::from(datagram), source, None::<IpAddr>, 0, receiver, now);
        }
        has_passed = true;
    }
    has_passed
}

fn client_tls(roots: rustls::RootCertStore) -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(tls)
}

const GET: RequestTarget<'_> = RequestTarget::new("POST", "https", "localhost", "/echo");
const CONNECT: RequestTarget<'_> = RequestTarget::connect("websocket", "localhost", "/echo");

#[test]
fn requests_and_tunnels_share_a_connection() {
    let mut pair = Pair::new(Config::new().with_extended_connect(true));
    let key = pair.connect();
    pair.run();
    assert_eq!(pair.requests.extended_connect, Some(true));
    pair.requests.targets = vec![GET, CONNECT];
    pair.lend(key, |_| ());
    pair.run();
    let method = |method: &str, protocol: &str| (method.to_owned(), protocol.to_owned());
    assert_eq!(pair.echo.requests, [method("POST", ""), method("CONNECT", "websocket")]);
    let streams = pair.requests.streams.clone();
    // Beyond the windows of a stream, both ways.
    let content: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
    for stream in &streams {
        let content = Bytes::from(content.clone());
        pair.lend(key, |exchanges| exchanges.send_data(*stream, content, true)).expect("an open stream");
    }
    pair.run();
    for stream in streams {
        let (_, status, name, received, has_ended) = &*pair.requests.answer(stream);
        assert_eq!((*status, &**name, *has_ended), (200, "echo", true));
        assert!(*received == content, "{} bytes", received.len());
    }
    pair.lend(key, |exchanges| exchanges.close(H3Code::H3_NO_ERROR, "done"));
    pair.run();
    assert_eq!(pair.requests.ends, [(LinkEnd::Local, "done".to_owned())]);
    assert_eq!(pair.echo.ends.len(), 1);
    assert_eq!(pair.echo.ends[0].0, LinkEnd::Peer, "{:?}", pair.echo.ends);
    pair.now += Duration::from_secs(60);
    pair.run();
    assert_eq!((pair.client.connections(), pair.server.connections()), (0, 0));
}

#[test]
fn requests_beyond_the_limit_of_the_server_wait() {
    let mut pair = Pair::new(Config::new().with_max_streams(3));
    pair.echo.withholds = true;
    let key = pair.connect();
    pair.requests.targets = vec![GET; 5];
    pair.run();
    assert_eq!((pair.requests.streams.len(), pair.requests.targets.len()), (3, 2));
    // One ends: the server then permits another.
    let first = pair.requests.streams[0];
    pair.lend(key, |exchanges| exchanges.reset(first, H3Code::H3_REQUEST_CANCELLED));
    pair.run();
    assert_eq!((pair.requests.streams.len(), pair.requests.targets.len()), (4, 1));
    assert_eq!(pair.requests.refused, []);
}

#[test]
fn websocket_is_not_requested_of_a_server_without_extended_connect() {
    let mut pair = Pair::new(Config::new());
    let key = pair.connect();
    pair.run();
    pair.requests.targets = vec![CONNECT, GET];
    pair.lend(key, |_| ());
    pair.run();
    assert_eq!(pair.requests.refused, [H3SendError::NotPermitted]);
    // The unused stream disturbs no other.
    assert_eq!((pair.requests.streams.len(), pair.requests.answers.len()), (1, 1));
    assert_eq!((pair.requests.ends.len(), pair.echo.ends.len()), (0, 0));
}

#[test]
fn server_with_another_certificate_is_rejected() {
    let (tls, _) = certificate();
    let mut pair = Pair::with_roots(Config::new(), tls, certificate().1);
    pair.connect();
    pair.run();
    let [(LinkEnd::Violation, reason)] = &pair.requests.ends[..] else { panic!("{:?}", pair.requests.ends) };
    assert!(reason.contains("certificate"), "{reason}");
    assert_eq!(pair.requests.extended_connect, None);
}

#[test]
fn handshake_without_an_answer_times_out() {
    let mut pair = Pair::new(Config::new());
    pair.connect();
    let start = pair.now;
    let mut out = Vec::new();
    while pair.requests.ends.is_empty() {
        while pair.client.transmit(&mut out, 1, &mut pair.requests, pair.now).is_some() {}
        pair.now = pair.client.next_timeout().expect("a timeout");
        pair.client.expire(&mut pair.requests, pair.now);
    }
    assert_eq!(pair.requests.ends, [(LinkEnd::Lost, "handshake timeout".to_owned())]);
    assert_eq!(pair.now, start + Duration::from_secs(10));
}

#[test]
fn endpoint_of_a_server_does_not_connect() {
    let mut pair = Pair::new(Config::new());
    let connected = pair.server.connect(CLIENT.parse().expect("an address"), "localhost", pair.now);
    assert!(matches!(connected, Err(QuicConnectError::NotClient)));
    let invalid = pair.client.connect(SERVER.parse().expect("an address"), "no name", pair.now);
    assert!(matches!(invalid, Err(QuicConnectError::Quic(_))));
}
