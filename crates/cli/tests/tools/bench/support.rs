//! The program, and small servers with scripted behavior.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;
use sinews_proto::handshake::{ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{Config, Time};
use sinews_session::{Events, Payload, Resources, Session, Tx};
use sinews_testkit::{ServeProcess, TIMEOUT, TestCertificate, exchange, last_get, read_head};

use crate::directory::Directory;

pub(crate) fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sinews"));
    command.arg("bench").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Producers and consumers of streams are blocking threads without a backend.
    let backend = std::env::var("SINEWS_TEST_BACKEND").ok().filter(|_| arguments.first() != Some(&"durable"));
    if let Some(backend) = backend {
        command.args(["--backend", &backend]);
    }
    command
}

/// A finished run and its output.
pub(crate) struct Run {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn run(arguments: &[&str]) -> Run {
    let Output { status, stdout, stderr } = bench(arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Run { success: status.success(), stdout: text(stdout), stderr: text(stderr) }
}

/// Runs a measurement with JSON output.
pub(crate) fn json(arguments: &[&str]) -> (Value, Run) {
    let run = run(&[arguments, &["--json", "--quiet"]].concat());
    let value = serde_json::from_str(&run.stdout);
    (value.unwrap_or_else(|error| panic!("{error}: {}{}", run.stdout, run.stderr)), run)
}

/// Runs a measurement without errors.
pub(crate) fn sound(arguments: &[&str]) -> Value {
    let (value, run) = json(arguments);
    assert!(run.success, "{}{value:#}", run.stderr);
    assert_eq!(value["errors"], serde_json::json!({}));
    value
}

/// A load of eight messages on each of the six WebSockets of two connections.
pub(crate) const SHARED_LOAD: [&str; 6] = ["-c", "2", "--sockets-per-connection", "3", "-n", "48"];

/// Ways to send and to receive.
pub(crate) const WAYS: [&[&str]; 4] =
    [&["-i", "4"], &["--deflate", "--size", "2k"], &["--size", "300k", "-i", "2"], &["--burst", "-i", "4"]];

/// Runs [`SHARED_LOAD`] with a URL and its options, in several ways.
pub(crate) fn check_shared_connections(of: &[&str], ways: &[&[&str]]) {
    for way in ways {
        let result = sound(&[of, &SHARED_LOAD, way].concat());
        let counts = (&result["messages"], &result["latency_us"]["count"]);
        assert_eq!(counts, (&48.into(), &48.into()), "{way:?}");
        assert_eq!((&result["connections_open"], &result["sockets_per_connection"]), (&2.into(), &3.into()));
        assert_eq!(result["bytes_received"], result["bytes_sent"]);
    }
}

/// Runs the other modes with several WebSockets on each of two connections.
pub(crate) fn check_other_modes(own: &Served, scheme: &str, options: &[&str]) {
    let (url, echo) = (own.url(scheme, ""), own.url(scheme, "/echo"));
    let result = |url: &str, sockets, mode: &[&str]| {
        let shared = ["-c", "2", "--sockets-per-connection", sockets];
        sound(&[&[url], options, &shared, mode].concat())
    };
    let fan_out = ["-m", "fan-out", "--publishers", "1", "--rate", "100", "-d", "300ms", "--warm-up", "0s"];
    let fanned_out = result(&url, "4", &fan_out);
    let number = |value: &Value| value.as_u64().expect("a number");
    assert!(number(&fanned_out["published"]) > 0, "{fanned_out:#}");
    let deliveries = number(&fanned_out["latency_us"]["count"]);
    assert_eq!(deliveries, 7 * number(&fanned_out["published"]), "seven subscribers");
    assert_eq!(result(&echo, "3", &["-m", "storm", "-n", "20"])["messages"], 20);
    let rate = ["--rate", "200", "-d", "300ms", "--warm-up", "0s"];
    assert_eq!(result(&echo, "3", &rate)["latency_us"]["count"], 60);
}

/// Files of a certificate for `localhost`.
pub(crate) struct Files(Directory);

impl Files {
    pub(crate) fn new() -> Self {
        let directory = Directory::new();
        directory.write_tls(&TestCertificate::new());
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path(name)
    }

    pub(crate) fn serve(&self, options: &[&str]) -> Served {
        let (certificate, key) = (self.path("a.pem"), self.path("a.key"));
        let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
        Served::start(&[&tls[..], options].concat())
    }
}

/// A `sinews serve` process, killed on drop.
pub(crate) struct Served(ServeProcess);

impl Deref for Served {
    type Target = ServeProcess;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Served {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sinews"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"]).args(arguments);
        Self(ServeProcess::start(command.stderr(Stdio::null())).expect("the server starts"))
    }

    /// The same, and a URL of it.
    pub(crate) fn with_url(arguments: &[&str], scheme: &str, path: &str) -> (Self, String) {
        let own = Self::start(arguments);
        let url = own.url(scheme, path);
        (own, url)
    }

    pub(crate) fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{}{path}", self.address)
    }

    /// Address of the plain TCP listener for streams.
    pub(crate) fn plain(&self) -> SocketAddr {
        let address = self.table.lines().find_map(|line| line.split_once("tcp://"));
        address.expect("the server has a plain TCP listener").1.trim().parse().expect("an address")
    }

    /// Returns the body of an HTTP response.
    pub(crate) fn get(&self, path: &str) -> String {
        let socket = TcpStream::connect(self.address).expect("the server accepts");
        let answer = exchange(socket, &last_get(path)).expect("the response is UTF-8");
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

/// Starts a server with one thread per connection; it lives as long as the test process.
pub(crate) fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("the listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Starts a WebSocket server: `answer` maps each numbered message to an answer.
pub(crate) fn websocket(answer: impl Fn(usize, Vec<u8>) -> Answer + Clone + Send + 'static) -> SocketAddr {
    server(move |stream| {
        let _ = serve(stream, answer.clone());
    })
}

pub(crate) enum Answer {
    Echo(Vec<u8>),
    /// Raw bytes, possibly no valid frame.
    Raw(Vec<u8>),
    /// Closes the connection.
    End,
}

fn serve(mut stream: TcpStream, answer: impl Fn(usize, Vec<u8>) -> Answer) -> std::io::Result<()> {
    let head = head(&mut stream)?;
    let mut slots = HeaderSlots::new();
    let request = RequestHead::parse(&head, &HeadLimits::new(), &mut slots).expect("a sound request");
    let accepted = accept(&request, &ServerOptions::new()).expect("a sound handshake");
    let mut out = Vec::new();
    accepted.write_response(&[], &mut out).expect("a sound answer");
    stream.write_all(&out)?;
    let mut resources = Resources::new();
    let mut session = Session::new(accepted.negotiated(), std::sync::Arc::new(Config::default()), Time::ZERO);
    let mut echo = Echo { answer, number: 0, stream: stream.try_clone()?, over: false };
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk)?;
        if count == 0 || echo.over {
            return Ok(());
        }
        let _ = session.receive(&mut chunk[..count], &mut resources, Time::ZERO, &mut echo);
        while let Some(mut chain) = session.start_send() {
            for piece in chain.pieces() {
                stream.write_all(piece)?;
            }
            let sent = chain.len();
            chain.advance(sent);
            session.finish_send(chain, &mut resources, Time::ZERO);
        }
        if echo.over || session.take_closed().is_some() {
            return stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

struct Echo<F> {
    answer: F,
    number: usize,
    stream: TcpStream,
    over: bool,
}

impl<F: Fn(usize, Vec<u8>) -> Answer> Events for Echo<F> {
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        self.number += 1;
        match (self.answer)(self.number, payload.to_vec()) {
            Answer::Echo(bytes) => drop(tx.send(payload.kind(), &bytes)),
            Answer::Raw(bytes) => drop(self.stream.write_all(&bytes)),
            Answer::End => self.over = true,
        }
    }
}

/// Reads a request's head; the test clients send no further data before the answer.
pub(crate) fn head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let head = read_head(stream)?;
    if head.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(head.into_bytes()) }
}

/// Starts an HTTP server that answers each request with these bytes.
pub(crate) fn http(answer: &'static [u8]) -> SocketAddr {
    server(move |mut stream| while head(&mut stream).is_ok() && stream.write_all(answer).is_ok() {})
}
