//! The program as a client, and scripted servers.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
pub(crate) use sinews_testkit::TIMEOUT;
use sinews_testkit::read_head;

/// A command of the program, without environment variables that change its behavior.
pub(crate) fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sinews"));
    command.args(arguments);
    let is_ours = |name: &str| name.starts_with("SINEWS_") || name.to_ascii_lowercase().ends_with("_proxy");
    for (name, _) in std::env::vars().filter(|(name, _)| is_ours(name)) {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The `sinews connect` command.
pub(crate) fn connect(arguments: &[&str]) -> Command {
    tool(&[&["connect"], arguments].concat())
}

/// Result of a run.
pub(crate) struct RunOutput {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Shortened output.
impl std::fmt::Debug for RunOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.stdout[self.stdout.len().saturating_sub(4_000)..];
        write!(f, "code {}, stderr {:?}, stdout {:?}", self.code, self.stderr, String::from_utf8_lossy(shown))
    }
}

impl RunOutput {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// The output of a successful run.
    pub(crate) fn fine(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        self.text()
    }
}

/// Runs the program with this input to its end.
pub(crate) fn run(arguments: &[&str], input: impl Into<Vec<u8>>) -> RunOutput {
    let mut child = connect(arguments).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.into();
    // A program that exits early does not read the rest.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    RunOutput {
        code: output.status.code().unwrap(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Sends a message and receives its echo, however long a busy machine takes.
pub(crate) fn echoed(arguments: &[&str]) -> RunOutput {
    run(&[&["--count", "1", "--wait", "60s"][..], arguments].concat(), "hi\n")
}

/// A server, `sinews connect --listen`, whose standard input stays open.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(further: &[&str]) -> Self {
        let mut command = connect(&[&["--listen", "127.0.0.1:0"], further].concat());
        if further.contains(&"--echo") {
            // The output is not read.
            command.stdout(Stdio::null());
        }
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let url =
            line.trim().strip_prefix("sinews: listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        let stdin = child.stdin.take();
        // Drain later output, so that the server does not block.
        thread::spawn(move || drop(std::io::copy(&mut stderr, &mut std::io::sink())));
        Self { child, stdin, url }
    }

    pub(crate) fn echo() -> Self {
        Self::start(&["--echo"])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An exited process needs no kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scripted server for one connection.
pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) port: u16,
    thread: JoinHandle<()>,
}

impl Scripted {
    pub(crate) fn serve(script: impl FnOnce(&mut Wire) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            script(&mut Wire::new(stream));
        });
        Self { url: format!("ws://127.0.0.1:{port}/"), port, thread }
    }

    /// Waits for the end of the script.
    pub(crate) fn join(self) {
        self.thread.join().unwrap();
    }
}

/// A connection on the byte level.
pub(crate) struct Wire<S = TcpStream> {
    pub(crate) stream: S,
    /// The request head.
    pub(crate) head: String,
}

impl<S: Read + Write> Wire<S> {
    /// Reads the request.
    pub(crate) fn new(mut stream: S) -> Self {
        let head = read_head(&mut stream).unwrap_or_default();
        Self { stream, head }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self.stream.flush().unwrap();
    }

    /// A response with the correct Sec-WebSocket-Accept, regardless of the rest of the request.
    pub(crate) fn answer(&self, further: &str) -> String {
        let text = format!(
            "{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11",
            self.header("sec-websocket-key").unwrap_or_default()
        );
        let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()));
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n{further}\r\n"
        )
    }

    /// Sends the 101 response, followed by these bytes.
    pub(crate) fn switch(&mut self, further: &str, frames: &[u8]) {
        let answer = self.answer(further);
        self.write([answer.as_bytes(), frames].concat());
    }

    /// The next frame: its first byte and the unmasked payload. `None` at the end.
    pub(crate) fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        let mut number = |bytes: usize| {
            let mut long = [0; 8];
            self.stream.read_exact(&mut long[8 - bytes..]).unwrap();
            u64::from_be_bytes(long)
        };
        let len = match head[1] & 0x7f {
            126 => number(2),
            127 => number(8),
            len => u64::from(len),
        };
        let mut key = [0; 4];
        if head[1] & 0x80 != 0 {
            self.stream.read_exact(&mut key).unwrap();
        }
        let mut payload = vec![0; usize::try_from(len).unwrap()];
        self.stream.read_exact(&mut payload).unwrap();
        payload.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        Some((head[0], payload))
    }

    /// Reads to the end of the transport.
    pub(crate) fn drain(&mut self) {
        let mut rest = [0; 4096];
        while self.stream.read(&mut rest).is_ok_and(|count| count > 0) {}
    }

    /// Echoes messages until a Close, and answers it.
    pub(crate) fn echo(&mut self) {
        while let Some((first, payload)) = self.frame() {
            let first = if first == 0x89 { 0x8a } else { first };
            self.write([&[first, u8::try_from(payload.len()).unwrap()], &payload[..]].concat());
            if first == 0x88 {
                return;
            }
        }
    }
}
