//! A hub at work, and requests to it.

#[expect(dead_code, reason = "the tests of the program use the rest")]
pub(crate) mod fake_broker;
pub(crate) mod fake_store;
pub(crate) mod json_client;
pub(crate) mod memory_broker;
pub(crate) mod test_broker;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use serde_json::Value;
use sinews::blocking::{WebSocket, connect};
use sinews_hub::{ConfigHandle, Hub, HubBuilder, RunningHub};
use sinews_server::{BoundServer, Config, Publisher, Router, Server, StopHandle};
use sinews_testkit::BodyReader;
pub(crate) use sinews_testkit::TIMEOUT;

use crate::backend;

pub(crate) struct TestHub {
    pub(crate) address: SocketAddr,
    pub(crate) stop: StopHandle,
    pub(crate) hub: Option<RunningHub>,
    pub(crate) config: ConfigHandle,
    pub(crate) publisher: Publisher,
    serving: Option<JoinHandle<()>>,
}

impl TestHub {
    /// A hub whose topics `kept.…` retain three messages.
    pub(crate) fn new() -> Self {
        Self::built(Hub::builder())
    }

    pub(crate) fn built(builder: HubBuilder) -> Self {
        Self::configured(builder, |server| server)
    }

    /// A hub on a server with settings.
    pub(crate) fn configured(builder: HubBuilder, configure: impl FnOnce(Server) -> Server) -> Self {
        Self::start(builder.without_pages(), configure)
    }

    /// A hub that serves the pages and the dashboard's feed.
    pub(crate) fn with_pages(builder: HubBuilder) -> Self {
        Self::start(builder, |server| server)
    }

    fn start(builder: HubBuilder, configure: impl FnOnce(Server) -> Server) -> Self {
        let hub = builder.websocket(without_timeouts()).history("kept.>", 3).build().unwrap();
        let config = hub.config();
        let server = bind(&hub, configure);
        let hub = Some(hub.start(&server).unwrap());
        let (address, stop) = (server.addresses()[0], server.stop_handle());
        let publisher = server.publisher();
        let serving = Some(thread::spawn(move || server.run().unwrap()));
        Self { address, stop, hub, config, publisher, serving }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        bounded(self.address)
    }

    pub(crate) fn websocket(&self, path: &str) -> WebSocket<TcpStream> {
        websocket(self.address, path)
    }

    /// Sends a request on a connection of its own.
    pub(crate) fn request(&self, head: &str, lines: &str, body: impl AsRef<[u8]>) -> BodyReader<TcpStream> {
        request(self.address, head, lines, body)
    }

    pub(crate) fn ask(&self, path: &str, lines: &str) -> BodyReader<TcpStream> {
        ask_on(self.connect(), path, lines)
    }

    pub(crate) fn events(&self, path: &str) -> BodyReader<TcpStream> {
        self.ask(path, "Accept: text/event-stream\r\n")
    }

    /// Publishes a body of this type; returns the status.
    pub(crate) fn publish_as(&self, topic: &str, kind: &str, body: &[u8]) -> u16 {
        self.request(&format!("POST /topics/{topic}"), &format!("Content-Type: {kind}\r\n"), body).status()
    }

    pub(crate) fn publish(&self, topic: &str, text: &str) {
        assert_eq!(self.publish_as(topic, "text/plain", text.as_bytes()), 200);
    }
}

impl Drop for TestHub {
    fn drop(&mut self) {
        self.stop.stop_now();
        if let Some(serving) = self.serving.take() {
            let ended = serving.join();
            assert!(thread::panicking() || ended.is_ok());
        }
        if let Some(hub) = self.hub.take() {
            hub.shut_down();
        }
    }
}

/// Settings for clients that read when they need to, and answer no pings.
pub(crate) fn without_timeouts() -> Config {
    Config::default()
        .with_ping_interval(None)
        .with_idle_timeout(None)
        .with_write_timeout(Duration::from_secs(3_600))
}

/// Binds a server of the hub to a free port, on the backend of the tests.
pub(crate) fn bind(hub: &Hub, configure: impl FnOnce(Server) -> Server) -> BoundServer {
    let server = configure(hub.configure(Server::new(hub.mount(Router::new()))).threads(2));
    server.engine(backend::engine()).listen(([127, 0, 0, 1], 0).into()).bind().unwrap()
}

/// Completes a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        thread::park();
    }
}

/// A connection whose reads are bounded.
pub(crate) fn bounded(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // A small write waits for no delayed ACK of an earlier one: 40 ms.
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Opens a WebSocket whose reads are bounded.
pub(crate) fn websocket(address: SocketAddr, path: &str) -> WebSocket<TcpStream> {
    connect(format!("ws://{address}{path}")).over(bounded(address)).open().unwrap().0
}

/// Sends a request on a connection of its own.
pub(crate) fn request(
    address: SocketAddr,
    head: &str,
    lines: &str,
    body: impl AsRef<[u8]>,
) -> BodyReader<TcpStream> {
    let (mut stream, body) = (bounded(address), body.as_ref());
    let length = body.len();
    let lines = format!("Host: {address}\r\nConnection: close\r\n{lines}Content-Length: {length}");
    stream.write_all(&[format!("{head} HTTP/1.1\r\n{lines}\r\n\r\n").as_bytes(), body].concat()).unwrap();
    BodyReader::new(stream)
}

pub(crate) fn ask_on(mut stream: TcpStream, path: &str, lines: &str) -> BodyReader<TcpStream> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
    BodyReader::new(stream)
}

pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
