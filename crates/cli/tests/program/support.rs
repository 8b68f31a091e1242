//! Starts the program, and connects clients to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sinews_testkit::{BodyReader, Frame, RawSocket, Reply, ServeProcess, exchange, last_get, process};
pub(crate) use sinews_testkit::{TIMEOUT, until};

use crate::config::Directory;
pub(crate) use crate::ports::unused_address;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sinews");

/// The program without variables of the test's environment.
pub(crate) fn program() -> Command {
    program_at(PROGRAM, None)
}

/// The program with limits of descriptors.
pub(crate) fn program_with_descriptors(limit: u32) -> Command {
    program_at(PROGRAM, Some(limit))
}

pub(crate) fn program_at(path: impl AsRef<Path>, descriptors: Option<u32>) -> Command {
    let mut command = process::program(path, descriptors);
    // The backend under test; without one, the program's default. A test's own flag overrides it.
    if let Ok(backend) = std::env::var("SINEWS_TEST_BACKEND") {
        command.env("SINEWS_BACKEND", backend);
    }
    // Clients of tests read when they need to, and answer no pings.
    command.env("SINEWS_WEBSOCKET_PING_INTERVAL", "1h").env("SINEWS_WEBSOCKET_IDLE_TIMEOUT", "off");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command that fails; returns its standard error.
pub(crate) fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

/// A listening server.
pub(crate) struct Running {
    process: ServeProcess,
    /// Its directory for files of the test and temporary ones, which remain when it is killed.
    pub(crate) directory: Directory,
}

impl Deref for Running {
    type Target = ServeProcess;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.process
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_with(command, Directory::new())
    }

    fn start_with(command: &mut Command, directory: Directory) -> Self {
        if command.get_envs().all(|(name, _)| name != "TMPDIR") {
            command.env("TMPDIR", directory.path(""));
        }
        Self { process: ServeProcess::start(command).unwrap(), directory }
    }

    /// Starts a server, with its own directory in place of `$DIR` in its arguments.
    pub(crate) fn serve(arguments: &[&str]) -> Self {
        let directory = Directory::new();
        let arguments = arguments.iter().map(|argument| directory.fill(argument));
        let mut command = program();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::start_with(&mut command, directory)
    }

    /// Starts a server with a configuration file, in which its own directory is in place of `$DIR`.
    pub(crate) fn configured(file: &str) -> Self {
        let directory = Directory::new();
        directory.write("sinews.toml", &directory.fill(file));
        let mut command = program();
        command.args(["serve", "--listen", "127.0.0.1:0", "--config", &directory.path("sinews.toml")]);
        Self::start_with(&mut command, directory)
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(process::signal(self.child.id(), name));
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        // A small write waits for no delayed ACK of an earlier one: 40 ms.
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The answer to a request on a new connection.
    pub(crate) fn request(&self, head: &str, body: &str) -> String {
        let lines = format!("Host: localhost\r\nContent-Length: {}\r\nConnection: close", body.len());
        exchange(self.connect(), &format!("{head}\r\n{lines}\r\n\r\n{body}")).unwrap()
    }

    /// A response with these header lines whose body is read as it arrives.
    pub(crate) fn stream(&self, path: &str, lines: &str) -> BodyReader<TcpStream> {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
        BodyReader::new(stream)
    }

    /// The counters and gauges that are not zero, if the server answers.
    fn counters(&self) -> Option<String> {
        let stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let answer = exchange(stream, &last_get("/metrics")).ok()?;
        let is_shown =
            |line: &&str| line.starts_with("sinews_") && !line.contains("_bucket{") && !line.ends_with(" 0");
        Some(answer.lines().filter(is_shown).map(|line| format!("{line}\n")).collect())
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path} HTTP/1.1"), "")
    }

    /// Whether `/readyz` reports that it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz").starts_with("HTTP/1.1 200 ")
    }

    /// The value of a metric with its labels; empty if there is none.
    pub(crate) fn metric(&self, name: &str) -> String {
        let text = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_default().to_owned()
    }

    pub(crate) fn websocket(&self, path: &str) -> Socket {
        self.try_websocket(path, "").expect("a WebSocket")
    }

    pub(crate) fn try_websocket(&self, path: &str, lines: &str) -> Result<Socket, String> {
        self.try_websocket_at(path, "localhost", lines)
    }

    /// Opens connections at once: all handshakes are sent before the first answer is read.
    #[cfg(any(feature = "nats", feature = "redis"))]
    pub(crate) fn websockets(&self, path: &str, count: usize) -> Vec<Socket> {
        let start = |_| {
            let mut stream = self.connect();
            stream.write_all(sinews_testkit::handshake(path, "localhost", "").as_bytes()).unwrap();
            stream
        };
        let streams: Vec<TcpStream> = (0..count).map(start).collect();
        let answered = |stream| Socket(RawSocket::answered(stream).unwrap().expect("an upgrade"));
        streams.into_iter().map(answered).collect()
    }

    /// Whether the server closes a browser's WebSocket because its origin may not connect.
    pub(crate) fn rejects_origin(&self, path: &str, origin: &str) -> bool {
        let mut socket = self.try_websocket(path, &format!("Origin: {origin}\r\n")).expect("an upgrade");
        socket.send(&Frame::ping(""));
        socket.next().and_then(|reply| reply.close_code()) == Some(4403)
    }

    pub(crate) fn try_websocket_at(&self, path: &str, host: &str, lines: &str) -> Result<Socket, String> {
        Socket::upgrade(self.connect(), path, host, lines)
    }

    /// The exit status and the log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "\n", "standard output has the table only");
        let mut log = String::new();
        // Unless a test has closed it.
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let counters = if thread::panicking() { self.counters() } else { None };
        // A process that has exited needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let mut log = String::new();
            let _ = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut log));
            #[expect(clippy::print_stderr, reason = "the report of a failed test")]
            {
                eprintln!("the server of the failed test:\n{}{log}", counters.unwrap_or_default());
            }
        }
    }
}

/// A WebSocket that answers no pings.
pub(crate) struct Socket(RawSocket<TcpStream>);

impl Deref for Socket {
    type Target = RawSocket<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Socket {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Socket {
    /// Makes a WebSocket of a connection.
    ///
    /// # Errors
    /// The head of a rejection.
    pub(crate) fn upgrade(stream: TcpStream, path: &str, host: &str, lines: &str) -> Result<Self, String> {
        RawSocket::open(stream, path, host, lines).unwrap().map(Self)
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.0.stream
    }

    /// Sets the size of the kernel's receive buffer, which would grow while the client does not read.
    pub(crate) fn fix_receive_buffer(&self) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.stream, 64 << 10).unwrap();
    }

    pub(crate) fn send(&mut self, frame: &Frame) {
        self.0.send(frame).unwrap();
    }

    /// Sends a message of a protocol in JSON.
    pub(crate) fn send_message(&mut self, message: &Value) {
        self.send(&Frame::text(message.to_string()));
    }

    pub(crate) fn receive_message(&mut self) -> Value {
        match self.next() {
            Some(Reply::Message(_, payload)) => serde_json::from_slice(&payload).unwrap(),
            other => panic!("no message: {other:?}"),
        }
    }

    /// Sends a message and returns the next one of the server.
    pub(crate) fn request(&mut self, message: &Value) -> Value {
        self.send_message(message);
        self.receive_message()
    }

    pub(crate) fn next(&mut self) -> Option<Reply> {
        self.receive().unwrap()
    }
}

/// The next message of a response with lines, after the welcome.
pub(crate) fn next_line(body: &mut BodyReader<TcpStream>) -> Value {
    loop {
        let message: Value = serde_json::from_str(&body.line().unwrap()).unwrap();
        if message["op"] != "welcome" {
            return message;
        }
    }
}

/// The status and the content of an answer.
pub(crate) fn parts(answer: &str) -> (u16, &str) {
    (status(answer), answer.split_once("\r\n\r\n").unwrap().1)
}

/// The status of an answer, or of its first line.
pub(crate) fn status(answer: &str) -> u16 {
    answer["HTTP/1.1 ".len()..][..3].parse().unwrap()
}

/// The content of an answer in JSON.
pub(crate) fn body(answer: &str) -> Value {
    serde_json::from_str(parts(answer).1).unwrap_or_else(|_| panic!("{answer}"))
}
