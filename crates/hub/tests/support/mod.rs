//! A hub at work, and requests to it.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use sinews::blocking::{WebSocket, connect};
use sinews_hub::{Hub, HubBuilder, LivePolicy, RunningHub};
use sinews_server::{BackendChoice, Config, EngineConfig, Publisher, Router, Server, StopHandle};
use sinews_testkit::BodyReader;

/// Longer than any step takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct TestHub {
    pub address: SocketAddr,
    pub stop: StopHandle,
    pub hub: Option<RunningHub>,
    pub access: LivePolicy,
    pub publisher: Publisher,
    serving: Option<JoinHandle<()>>,
}

impl TestHub {
    /// A hub whose topics `kept.…` retain three messages.
    pub fn new() -> Self {
        Self::built(Hub::builder())
    }

    pub fn built(builder: HubBuilder) -> Self {
        Self::configured(builder, |server| server)
    }

    /// A hub on a server with settings.
    pub fn configured(builder: HubBuilder, configure: impl FnOnce(Server) -> Server) -> Self {
        // Clients of tests read when they need to, and answer no pings.
        let websocket = Config::default()
            .with_ping_interval(None)
            .with_idle_timeout(None)
            .with_write_timeout(Duration::from_secs(3_600));
        let hub = builder.websocket(websocket).history("kept.>", 3).without_pages().build().unwrap();
        let access = hub.access();
        let backend = match std::env::var("SINEWS_TEST_BACKEND").as_deref() {
            Ok("poll") => BackendChoice::Poll,
            Ok("uring") => BackendChoice::Uring,
            _ => BackendChoice::Auto,
        };
        let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(2);
        let server = configure(server).engine(EngineConfig::default().with_backend(backend));
        let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let hub = Some(hub.start(&server).unwrap());
        let (address, stop) = (server.addresses()[0], server.stop_handle());
        let publisher = server.publisher();
        let serving = Some(thread::spawn(move || server.run().unwrap()));
        Self { address, stop, hub, access, publisher, serving }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Opens a WebSocket whose reads are bounded.
    pub fn websocket(&self, path: &str) -> WebSocket<TcpStream> {
        let connecting = connect(format!("ws://{}{path}", self.address)).over(self.connect());
        connecting.open().unwrap().0
    }

    pub fn ask(&self, path: &str, lines: &str) -> BodyReader<TcpStream> {
        ask_on(self.connect(), path, lines)
    }

    pub fn events(&self, path: &str) -> BodyReader<TcpStream> {
        self.ask(path, "Accept: text/event-stream\r\n")
    }

    /// Publishes a body of this type; returns the status.
    pub fn publish_as(&self, topic: &str, kind: &str, body: &[u8]) -> u16 {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "POST /topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
             Content-Length: {length}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        BodyReader::new(stream).status()
    }

    pub fn publish(&self, topic: &str, text: &str) {
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

pub fn ask_on(mut stream: TcpStream, path: &str, lines: &str) -> BodyReader<TcpStream> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
    BodyReader::new(stream)
}

pub fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
