//! Starts the program, and connects clients to it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply};
use tempfile::TempDir;

pub(crate) use crate::ports::unused_address;

/// Longer than any step takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sinews");

/// The program without variables of the test's environment.
pub(crate) fn program() -> Command {
    clean(Command::new(PROGRAM))
}

/// The program in a shell that first lowers both limits of descriptors.
pub(crate) fn program_with_descriptors(limit: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh", &limit.to_string(), PROGRAM]);
    clean(shell)
}

pub(crate) fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SINEWS_")) {
        command.env_remove(name);
    }
    // The backend under test; without one, the program's default. A test's own flag overrides it.
    if let Ok(backend) = std::env::var("SINEWS_TEST_BACKEND") {
        command.env("SINEWS_BACKEND", backend);
    }
    // Clients of tests read when they need to, and answer no pings.
    command.env("SINEWS_WEBSOCKET_PING_INTERVAL", "1h").env("SINEWS_WEBSOCKET_IDLE_TIMEOUT", "off");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Polls until a condition holds, with pauses for the server.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// Runs a command that fails; returns its standard error.
pub(crate) fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

/// A listening server.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdout: BufReader<ChildStdout>,
    pub(crate) table: String,
    pub(crate) address: SocketAddr,
    /// The temporary directory of the server, which leaves files there when it is killed.
    _temporary: TempDir,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        if command.get_envs().all(|(name, _)| name != "TMPDIR") {
            command.env("TMPDIR", temporary.path());
        }
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut table = String::new();
        while !table.contains("Ctrl-C stops.") {
            if stdout.read_line(&mut table).unwrap() == 0 {
                let mut message = String::new();
                child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
                panic!("no table of addresses: {table}{message}");
            }
        }
        let chat = table.lines().find_map(|line| line.split_once("://")).expect("an address").1;
        let address = chat
            .trim_end_matches('/')
            .replace("localhost", "127.0.0.1")
            .parse()
            .expect("an address with the real port");
        Self { child, stdout, table, address, _temporary: temporary }
    }

    pub(crate) fn serve(arguments: &[&str]) -> Self {
        Self::start(program().args(["serve", "--listen", "127.0.0.1:0"]).args(arguments))
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
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
        let mut stream = self.connect();
        let len = body.len();
        let request =
            format!("{head}\r\nHost: localhost\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}");
        // In one write, since a server that rejects the request may close before a second one.
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The counters and gauges that are not zero, if the server answers.
    fn counters(&self) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let is_shown =
            |line: &&str| line.starts_with("sinews_") && !line.contains("_bucket{") && !line.ends_with(" 0");
        Some(answer.lines().filter(is_shown).map(|line| format!("{line}\n")).collect())
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path} HTTP/1.1"), "")
    }

    /// Whether `/readyz` reports that it is ready.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
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

pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    pub(crate) head: String,
    reader: Reader,
    replies: Vec<Reply>,
}

impl Socket {
    /// Makes a WebSocket of a connection.
    ///
    /// # Errors
    /// The head of a rejection.
    pub(crate) fn upgrade(
        mut stream: TcpStream,
        path: &str,
        host: &str,
        lines: &str,
    ) -> Result<Self, String> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        if !head.starts_with("HTTP/1.1 101 ") {
            return Err(head);
        }
        Ok(Self { stream, head, reader: Reader::new(Role::Server, None), replies: Vec::new() })
    }

    /// Sets the size of the kernel's receive buffer, which would grow while the client does not read.
    pub(crate) fn fix_receive_buffer(&self) {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.stream, 64 << 10).unwrap();
    }

    pub(crate) fn send(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.encode(Role::Client)).unwrap();
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
        self.try_next().unwrap()
    }

    /// The next reply; `None` at the end.
    ///
    /// # Errors
    /// The transport has failed.
    pub(crate) fn try_next(&mut self) -> std::io::Result<Option<Reply>> {
        while self.replies.is_empty() {
            let mut chunk = [0; 4096];
            let count = match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Ok(None);
            }
            self.replies.extend(self.reader.read(&chunk[..count]).unwrap());
        }
        Ok(Some(self.replies.remove(0)))
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

/// The status and the content of an answer, as JSON if it is JSON.
pub(crate) fn parsed(answer: &str) -> (u16, Value) {
    let (status, content) = parts(answer);
    (status, serde_json::from_str(content).unwrap_or_else(|_| Value::from(content)))
}

/// The content of an answer in JSON.
pub(crate) fn body(answer: &str) -> Value {
    serde_json::from_str(parts(answer).1).unwrap_or_else(|_| panic!("{answer}"))
}
