//! The scripts that start and stop servers, `dev/brokers`.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};
use std::time::Duration;

/// Exit status of a script without a server on this machine.
const MISSING: i32 = 77;
/// Time after which servers end by themselves.
const SECONDS_MAX: &str = "900";
/// Time for an answer to an operator's command.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Why a lane ends without a result.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaneError {
    /// The machine has no server.
    Missing(String),
    /// Something else.
    Failed(String),
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for LaneError {}

impl From<io::Error> for LaneError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Servers of a script, which end with this value.
pub(super) struct Script {
    name: &'static str,
    pub(super) port: u16,
    pub(super) directory: PathBuf,
    /// Servers.
    nodes: usize,
}

impl Script {
    /// Starts servers at free ports.
    pub(super) fn start(name: &'static str, nodes: usize) -> Result<Self, LaneError> {
        let port = free_ports(nodes)?;
        let directory = std::env::temp_dir().join(format!("sinews-checker-{}-{port}", process::id()));
        let script = Self { name, port, directory, nodes };
        script.run(&["up"])?;
        Ok(script)
    }

    /// Runs a subcommand.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<(), LaneError> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../brokers").join(self.name);
        let mut command = Command::new(path);
        command.args(arguments).env("BROKER_PORT", self.port.to_string()).env("BROKER_RUN", &self.directory);
        command.env("BROKER_NODES", self.nodes.to_string()).env("BROKER_SECONDS", SECONDS_MAX);
        let Output { status, stderr, .. } = command.output()?;
        // The last line has the reason.
        let text = String::from_utf8_lossy(&stderr).lines().last().unwrap_or_default().to_owned();
        match status.code() {
            Some(0) => Ok(()),
            Some(MISSING) => Err(LaneError::Missing(text)),
            _ => Err(LaneError::Failed(format!("{} {}: {text}", self.name, arguments.join(" ")))),
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // They end by themselves, too.
        let _ = self.run(&["down"]);
    }
}

/// The first of successive free ports, with free ports for routes behind them.
fn free_ports(count: usize) -> io::Result<u16> {
    let first = 20_000 + (process::id() % 500) as u16 * 20;
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let is_good =
        |port: &u16| (*port..*port + count as u16).all(|port| is_free(port) && is_free(port + 1_000));
    (first..first + 2_000).find(is_good).ok_or_else(|| io::Error::other("no port is free"))
}

/// A connection for an operator's commands.
pub(super) fn connect(port: u16) -> io::Result<(TcpStream, BufReader<TcpStream>)> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let reader = BufReader::new(stream.try_clone()?);
    Ok((stream, reader))
}

/// Sends a command to Redis, and returns the text of its answer.
#[cfg(feature = "redis")]
pub(super) fn redis(port: u16, command: &str) -> io::Result<String> {
    let (mut stream, mut reader) = connect(port)?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    match (line.split_at_checked(1), line.trim_end().get(1..).and_then(|length| length.parse().ok())) {
        (Some(("$", _)), Some(length)) => {
            let mut text = vec![0; length];
            reader.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        (Some(("-", error)), _) => Err(io::Error::other(format!("{command}: {error}"))),
        (Some(_), _) => Ok(line),
        (None, _) => Err(io::Error::other(format!("{command}: no answer"))),
    }
}

/// Sends a request to the API of JetStream, and returns the answer; empty without one.
#[cfg(feature = "nats")]
pub(super) fn jetstream(port: u16, subject: &str, body: &str) -> io::Result<String> {
    let (mut stream, mut reader) = connect(port)?;
    let length = body.len();
    let commands = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.{subject} answer {length}\r\n{body}\r\n"
    );
    stream.write_all(commands.as_bytes())?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(line);
        }
        match line.trim_end() {
            "PING" => stream.write_all(b"PONG\r\n")?,
            line if line.starts_with("MSG ") => {
                let mut answer = String::new();
                reader.read_line(&mut answer)?;
                return Ok(answer);
            }
            line if line.starts_with("-ERR") => return Err(io::Error::other(line.to_owned())),
            _ => {}
        }
    }
}
