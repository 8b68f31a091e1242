//! A server started for one round.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sinews_engine::Remote;

use crate::plan::LoadPlan;
use crate::process;

/// A child server process, killed on drop.
pub(super) struct StartedServer {
    child: Child,
    /// Returns the server's last line on standard error.
    last_error_line: Option<JoinHandle<String>>,
}

impl StartedServer {
    /// Starts the command in the shell, and waits until its address accepts connections.
    ///
    /// # Errors
    ///
    /// Returns an error if the command cannot be started, exits, or does not accept connections in time, or if
    /// another process already accepts at the address.
    pub(super) fn new(command: &str, cores: Option<&str>, plan: &LoadPlan) -> Result<Self, String> {
        let url = &plan.target.url;
        if !waited(LEAVING, || !accepts(plan)) {
            return Err(format!("{command}: another process already accepts connections at {url}"));
        }
        let mut shell = match cores {
            Some(cores) => {
                let mut taskset = Command::new("taskset");
                taskset.args(["--cpu-list", cores, "sh"]);
                taskset
            }
            None => Command::new("sh"),
        };
        // Keep standard input open: some servers exit at its end.
        shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().map_err(|error| format!("{command}: {error}"))?;
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || last_line(stdout));
        }
        let last_error_line = child.stderr.take().map(|stderr| thread::spawn(move || last_line(stderr)));
        let mut started = Self { child, last_error_line };
        started.wait(command, plan)?;
        Ok(started)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server accepts connections.
    fn wait(&mut self, command: &str, plan: &LoadPlan) -> Result<(), String> {
        let probed = plan.clone();
        let (sender, receiver) = mpsc::channel();
        // Connecting to an unresponsive server can block for longer than the deadline.
        thread::spawn(move || sender.send(waited(STARTING, || accepts(&probed))));
        let deadline = Instant::now() + STARTING;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                let message =
                    self.last_error_line.take().and_then(|message| message.join().ok()).unwrap_or_default();
                let message = if message.is_empty() { message } else { format!(": {message}") };
                return Err(format!("{command}: exited with {status}{message}"));
            }
            match receiver.recv_timeout(STEP) {
                Ok(true) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                _ => return Err(format!("{command}: no connection accepted at {}", plan.target.url)),
            }
        }
    }
}

impl Drop for StartedServer {
    fn drop(&mut self) {
        // The shell has become the server, or is its parent.
        for pid in process::family(&[self.child.id()]) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads to the end, so that the server never writes to a closed pipe.
fn last_line(from: impl Read) -> String {
    let lines = BufReader::new(from).lines().map_while(Result::ok);
    lines.filter(|line| !line.trim().is_empty()).last().unwrap_or_default()
}

fn accepts(plan: &LoadPlan) -> bool {
    match &plan.target.remote {
        Remote::Tcp(address) if plan.http3 => accepts_datagrams(*address).unwrap_or(false),
        Remote::Tcp(address) => TcpStream::connect(address).is_ok(),
        Remote::Unix(path) => UnixStream::connect(path).is_ok(),
        _ => false,
    }
}

/// Whether a process receives datagrams at an address: otherwise the host's system rejects them.
fn accepts_datagrams(address: SocketAddr) -> std::io::Result<bool> {
    let local = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(STEP))?;
    // No QUIC packet is as short.
    socket.send(&[0])?;
    match socket.recv(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        _ => Ok(true),
    }
}

/// Waits until the condition holds; `false` after the limit.
fn waited(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !holds() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(STEP);
    }
    true
}

const STARTING: Duration = Duration::from_secs(10);

/// Timeout for the previous round's server to exit.
const LEAVING: Duration = Duration::from_secs(2);

const STEP: Duration = Duration::from_millis(20);
