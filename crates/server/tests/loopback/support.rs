//! A server on a free port of the loopback, blocking clients, and a handler that reports its callbacks.

use std::collections::VecDeque;
use std::fmt::{Display, Formatter};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use sinews_proto::Role;
use sinews_server::{
    BoundServer, Closed, Config, Context, DroppedMessages, Handler, Http3Limits, HttpConfig, Kind, Metrics,
    Monitor, Payload, Publisher, Response, Router, Server, StopHandle, WebSocketRoute,
};
pub(crate) use sinews_testkit::TIMEOUT as PATIENCE;
use sinews_testkit::{Codec, Frame, Reader, Reply, until, until_some};
use socket2::SockRef;

use crate::backend;

/// A configuration of HTTP for clients that a busy machine delays.
pub(crate) fn patient() -> HttpConfig {
    let long = Duration::from_secs(3_600);
    HttpConfig::default()
        .with_head_timeout(long)
        .with_body_idle_timeout(long)
        .with_body_timeout(long)
        .with_min_upload_rate(0, long)
        .with_keep_alive_timeout(long)
        .with_write_timeout(long)
        .with_response_timeout(long)
        .with_http2_ping_interval(None)
        .with_http3_limits(Http3Limits::default().with_idle_timeout(Duration::from_secs(600)))
}

/// The configuration for peers that read only when the test wants it.
pub(crate) fn for_slow_peers() -> Config {
    Config::default()
        .with_ping_interval(None)
        .with_idle_timeout(None)
        .with_write_timeout(Duration::from_secs(3_600))
}

/// A server on its own threads; it stops on drop.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stop: StopHandle,
    pub(crate) monitor: Monitor,
    pub(crate) publisher: Publisher,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Running {
    /// One thread, so that the observed order is the order of events.
    pub(crate) fn router(router: Router) -> Self {
        Self::server(Server::new(router).threads(1).http(patient()))
    }

    /// The same, and a client of it.
    pub(crate) fn connected(router: Router) -> (Self, Client) {
        let server = Self::router(router);
        let client = server.connect();
        (server, client)
    }

    pub(crate) fn server(server: Server) -> Self {
        let server = server.engine(backend::engine()).listen(([127, 0, 0, 1], 0).into());
        Self::bound(server.bind().unwrap())
    }

    pub(crate) fn bound(bound: BoundServer) -> Self {
        let (address, stop) = (bound.addresses()[0], bound.stop_handle());
        let (monitor, publisher) = (bound.monitor(), bound.publisher());
        Self { address, stop, monitor, publisher, thread: Some(std::thread::spawn(|| bound.run())) }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// A WebSocket without compression.
    pub(crate) fn websocket(&self, path: &str) -> Peer {
        self.connect().upgrade(path)
    }

    /// Waits until the server has ended by itself.
    pub(crate) fn join(mut self) {
        let thread = self.thread.take().unwrap();
        let (ended, end) = channel();
        std::thread::spawn(move || ended.send(thread.join()));
        end.recv_timeout(PATIENCE).expect("the server ends by itself").unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.stop_now();
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("no thread of the server panics").expect("every loop ends in order");
            }
        }
    }
}

/// A client for raw HTTP.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        assert!(lines.all(|(key, _)| !key.eq_ignore_ascii_case(name)), "{name} twice in {}", self.head);
        found
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.contains("close"))
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// Creates a client on a stream of any family.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Clones the connection, to send while the original reads.
    pub(crate) fn try_clone(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Sends to a connection that may have closed already.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends frames to a connection that may have closed already.
    pub(crate) fn try_send_all(&mut self, frames: &[Frame]) {
        for frame in frames {
            if self.stream.write_all(&frame.encode(Role::Client)).is_err() {
                return;
            }
        }
    }

    /// Reads more; returns whether any bytes arrived.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 64 << 10];
        let count = loop {
            match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.unwrap(),
            }
        };
        self.received.extend_from_slice(&chunk[..count]);
        count > 0
    }

    /// Reads until a text has arrived.
    pub(crate) fn wait_for(&mut self, text: &str) {
        while !self.received.windows(text.len()).any(|bytes| bytes == text.as_bytes()) {
            assert!(self.read(), "{text} is missing");
        }
    }

    fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.received.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            if !self.read() {
                assert!(self.received.is_empty(), "half a head: {:?}", self.received);
                return None;
            }
        }
    }

    /// Returns the next answer to a request with this method, or `None` at the end.
    pub(crate) fn answer_to(&mut self, method: &str) -> Option<Answer> {
        let head = self.head()?;
        let status =
            head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok()).expect("a status");
        let mut answer = Answer { status, head, body: Vec::new() };
        let len = answer.header("content-length").map_or(0, |len| len.parse().unwrap());
        assert_eq!(answer.header("transfer-encoding"), None);
        let dated = status >= 200;
        assert_eq!(answer.header("date").is_some(), dated, "{}", answer.head);
        if method != "HEAD" {
            while self.received.len() < len {
                assert!(self.read(), "the body is cut off");
            }
            answer.body = self.received.drain(..len).collect();
        }
        Some(answer)
    }

    /// Returns the status of the next answer, regardless of the rest.
    pub(crate) fn status_line(&mut self) -> u16 {
        let head = self.head().expect("an answer");
        head["HTTP/1.1 ".len()..][..3].parse().expect("a status")
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.answer_to("GET").expect("an answer")
    }

    /// Returns the next answer. `None` if the connection has ended without one: with a short timeout, on a busy machine,
    /// it ends before the first bytes of the request arrive.
    pub(crate) fn answer_if_in_time(&mut self) -> Option<Answer> {
        match self.stream.peek(&mut [0]) {
            Ok(0) => None,
            // By the request, which has arrived later.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            peeked => peeked.map(|_| self.answer()).ok(),
        }
    }

    /// Returns the status of the next answer, which ends the connection.
    pub(crate) fn last_status(&mut self) -> u16 {
        let answer = self.answer();
        assert!(answer.closes(), "{}", answer.head);
        self.assert_end();
        answer.status
    }

    /// Asserts that only the end follows.
    pub(crate) fn assert_end(&mut self) {
        while self.read() {}
        assert!(self.received.is_empty(), "{:?}", String::from_utf8_lossy(&self.received));
    }

    /// Returns whether the connection ends, in order or by a reset, before any bytes have arrived.
    pub(crate) fn closes_without_response(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    pub(crate) fn half_close(&mut self) -> &mut Self {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    pub(crate) fn upgrade(self, path: &str) -> Peer {
        self.upgrade_with(path, "")
    }

    /// Upgrades with further header lines; the server's response has the negotiated options.
    pub(crate) fn upgrade_with(mut self, path: &str, lines: &str) -> Peer {
        self.send(handshake(path, lines));
        self.upgraded()
    }

    /// Reads the answer that makes this a WebSocket.
    pub(crate) fn upgraded(mut self) -> Peer {
        let head = self.head().expect("an answer");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let mut peer = Peer {
            client: self,
            head,
            reader: Reader::new(Role::Server, None),
            replies: VecDeque::new(),
            ended: false,
        };
        let early = std::mem::take(&mut peer.client.received);
        peer.take(&early);
        peer
    }
}

/// A handshake with the key of the example in RFC 6455 section 1.3.
pub(crate) fn handshake(path: &str, lines: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n"
    )
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

pub(crate) fn post(path: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}")
}

/// A WebSocket client.
pub(crate) struct Peer {
    pub(crate) client: Client,
    pub(crate) head: String,
    reader: Reader,
    replies: VecDeque<Reply>,
    ended: bool,
}

impl Peer {
    pub(crate) fn with_codec(mut self, codec: Codec) -> Self {
        assert!(self.replies.is_empty() && self.reader.is_between_messages());
        self.reader = Reader::new(Role::Server, Some(codec));
        self
    }

    pub(crate) fn send(&mut self, frame: &Frame) -> &mut Self {
        self.client.send(frame.encode(Role::Client));
        self
    }

    fn take(&mut self, bytes: &[u8]) {
        self.replies.extend(self.reader.read(bytes).expect("the server keeps to the protocol"));
    }

    /// Returns the next reply of the server, or `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Reply> {
        while self.replies.is_empty() && !self.ended {
            let mut chunk = vec![0; 256 << 10];
            match self.client.stream.read(&mut chunk).expect("the server's words come before its end") {
                0 => self.ended = true,
                count => self.take(&chunk[..count]),
            }
        }
        self.replies.pop_front()
    }

    pub(crate) fn expect(&mut self, reply: &Reply) {
        assert_eq!(self.next().as_ref(), Some(reply));
    }

    /// Expects the Close of a server that stops, answers it, and expects the end of the transport.
    pub(crate) fn expect_stop(&mut self) {
        self.expect(&Reply::Close(Some(1001), "server stops".into()));
        self.send(&Frame::close(1001, ""));
        assert_eq!(self.next(), None);
    }

    /// Expects a Close with this code, then the end of the transport.
    pub(crate) fn expect_close(&mut self, code: u16) {
        let close = self.next().unwrap_or_else(|| panic!("a Close with {code}"));
        assert_eq!(close.close_code(), Some(code), "{close:?}");
        assert_eq!(self.next(), None, "the server ends TCP first");
    }

    /// Waits until everything sent so far has been handled.
    pub(crate) fn sync(&mut self) {
        self.send(&Frame::ping("sync")).expect(&Reply::Pong(b"sync".to_vec()));
    }

    pub(crate) fn reset(self) {
        self.client.reset();
    }
}

/// Callbacks of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandlerEvent {
    Open,
    Message(Kind, Vec<u8>),
    Drain,
    Dropped(DroppedMessages),
    Close(Closed),
}

impl HandlerEvent {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Message(_, payload) => std::str::from_utf8(payload).unwrap(),
            other => panic!("{other:?} is no message"),
        }
    }
}

struct Scripted<F> {
    script: Arc<F>,
    event_log: Sender<HandlerEvent>,
}

impl<F: Fn(&HandlerEvent, &mut Context<'_>)> Scripted<F> {
    fn record(&self, event: HandlerEvent, cx: &mut Context<'_>) {
        (self.script)(&event, cx);
        // The test may have dropped its receiver already.
        let _ = self.event_log.send(event);
    }
}

impl<F: Fn(&HandlerEvent, &mut Context<'_>)> Handler for Scripted<F> {
    fn open(&mut self, cx: &mut Context<'_>) {
        self.record(HandlerEvent::Open, cx);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        self.record(HandlerEvent::Message(payload.kind(), payload.to_vec()), cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.record(HandlerEvent::Drain, cx);
    }

    fn dropped(&mut self, dropped: &DroppedMessages, cx: &mut Context<'_>) {
        self.record(HandlerEvent::Dropped(dropped.clone()), cx);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        self.record(HandlerEvent::Close(closed.clone()), cx);
    }
}

/// Creates a route that runs the script, and reports its callbacks.
pub(crate) fn scripted(
    script: impl Fn(&HandlerEvent, &mut Context<'_>) + Send + Sync + 'static,
) -> (WebSocketRoute, EventReceiver) {
    let (event, events) = channel();
    let script = Arc::new(script);
    let route =
        WebSocketRoute::new(move |_| Ok(Scripted { script: script.clone(), event_log: event.clone() }));
    (route.with_config(for_slow_peers()), EventReceiver(events))
}

/// Receives the callbacks of a route's handlers.
pub(crate) struct EventReceiver(Receiver<HandlerEvent>);

impl EventReceiver {
    pub(crate) fn next(&self) -> HandlerEvent {
        self.0.recv_timeout(PATIENCE).expect("a callback of a handler")
    }

    /// Returns the end of the next connection to close; earlier callbacks are skipped.
    pub(crate) fn closed(&self) -> Closed {
        loop {
            if let HandlerEvent::Close(closed) = self.next() {
                return closed;
            }
        }
    }

    /// Returns all further callbacks until the last handler is dropped: the server must have been dropped.
    pub(crate) fn rest(self) -> Vec<HandlerEvent> {
        let mut rest = Vec::new();
        while let Ok(event) = self.0.recv_timeout(PATIENCE) {
            rest.push(event);
        }
        rest
    }
}

/// Echoes every message.
pub(crate) struct Echo;

impl Handler for Echo {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_payload(payload);
    }
}

pub(crate) fn echo() -> WebSocketRoute {
    WebSocketRoute::new(|_| Ok(Echo)).with_config(for_slow_peers())
}

pub(crate) fn echo_with(config: Config) -> Router {
    Router::new().websocket("/echo", echo().with_config(config))
}

/// Returns an answer that is ready when the second poll comes; the first one adds its waker.
pub(crate) fn late(wakers: &Arc<Mutex<Vec<Waker>>>) -> sinews_server::Answer {
    let (waiting, mut is_listed) = (Arc::clone(wakers), false);
    sinews_server::Answer::later(std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut is_listed, true) {
            return Poll::Ready(Response::text("late"));
        }
        waiting.lock().unwrap().push(cx.waker().clone());
        Poll::Pending
    }))
}

/// Wakes all [`late`] answers, once there is one.
pub(crate) fn wake(wakers: &Mutex<Vec<Waker>>) {
    until("a late answer", || !wakers.lock().unwrap().is_empty());
    wakers.lock().unwrap().drain(..).for_each(Waker::wake);
}

/// Waits for metrics: the end of a connection is noticed some time after its client's.
pub(crate) fn wait_for(monitor: &Monitor, done: impl Fn(&Metrics) -> bool) -> Metrics {
    /// The metrics at the time of a failure.
    struct Shown<'a>(&'a Monitor);
    impl Display for Shown<'_> {
        fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:?}", self.0.metrics())
        }
    }
    until_some(Shown(monitor), || Some(monitor.metrics()).filter(&done))
}

/// Plain routes, and an echo.
pub(crate) fn routes() -> Router {
    Router::new()
        .get("/", |_| Response::text("hello\n"))
        .get("/name/{name}", |request| match request.param("name") {
            Some(name) => Response::text(name.into_owned()),
            None => Response::new(400),
        })
        .get("/large", |_| Response::text(vec![b'x'; LARGE]))
        .get("/nothing", |_| Response::new(204).with_body("nobody reads this"))
        .post("/length", |request| Response::text(request.body().len().to_string()))
        .post("/body", |request| Response::text(request.body().to_vec()))
        .websocket("/echo", echo())
}

/// Size of the large answer in bytes.
pub(crate) const LARGE: usize = 100_000;
