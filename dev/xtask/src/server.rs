//! A server under test: built, started on a free port, monitored, and stopped by its process id.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries;
use crate::process;

/// Time limit for a started server's health check. It needs milliseconds; a loaded machine more, and may stall.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The profile of the programs under checks, and the name of its folder.
pub(crate) const CHECKS_PROFILE: &str = "checks";
/// Features of the program under checks, beyond its defaults.
pub(crate) const CHECKED_FEATURES: &str = "sinews-cli/http3";
/// The profile of archives and figures, and the name of its folder.
pub(crate) const DIST_PROFILE: &str = "dist";

/// Ports of servers that do not choose their own; tests of the program use higher ports.
const PORTS: Range<u16> = 5_000..12_000;

/// A running server, `sinews serve` or another; dropping it stops the process.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the server on a free loopback port and waits until it is healthy. Its output goes to `log`.
    pub(crate) fn start(binary: &Path, options: &[&str], log: &Path) -> Result<Self, String> {
        let address = free_address()?;
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &address.to_string()]).args(options);
        let mut server = Self { child: process::spawn(&mut command, log)?, address };
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let ended = server.child.try_wait().ok().flatten();
            if ended.is_none() && is_healthy(address) {
                return Ok(server);
            }
            let late = (Instant::now() >= deadline).then(|| "the server is not healthy".to_owned());
            if let Some(why) = ended.map(|status| format!("the server ended: {status}")).or(late) {
                return Err(format!("{why}\n{}", process::tail(log, 10)));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the WebSocket address, without a path.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the given binary, or builds `sinews` for checks of speed and memory.
pub(crate) fn optimized(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        return path.canonicalize().map_err(process::at(path));
    }
    build_for_checks(&["--features", CHECKED_FEATURES], "sinews")
}

/// Builds a program of the workspace for checks.
pub(crate) fn build(package: &str, program: &str) -> Result<PathBuf, String> {
    build_for_checks(&["--package", package], program)
}

fn build_for_checks(arguments: &[&str], program: &str) -> Result<PathBuf, String> {
    let mut build = process::cargo();
    build.args(["build", "--profile", CHECKS_PROFILE, "--bin", program]).args(arguments);
    process::succeed(&mut build, &format!("build of {program}"), &process::log(&format!("build-{program}")))?;
    Ok(process::target().join(CHECKS_PROFILE).join(program))
}

/// The debug build of `sinews`, built now: for checks of correctness, with overflow checks.
pub(crate) fn build_debug() -> Result<PathBuf, String> {
    build_tested(&["sinews".to_owned()], &[])?;
    Ok(process::target().join("debug/sinews"))
}

/// Builds the debug builds of programs and examples. The Rust tests use the same builds, so that a later test run compiles nothing
/// for them.
pub(crate) fn build_tested(programs: &[String], examples: &[String]) -> Result<(), String> {
    let is_there = |program: &String| process::target().join("debug").join(program).is_file();
    if binaries::are_built() && examples.is_empty() && programs.iter().all(is_there) {
        return Ok(());
    }
    let mut build = process::linting_cargo()?;
    build.arg("build").args(binaries::selection()?);
    build.args(programs.iter().flat_map(|name| ["--bin", name]));
    build.args(examples.iter().flat_map(|name| ["--example", name]));
    let name = [programs, examples].concat().join("-");
    process::succeed(&mut build, &format!("build of {name}"), &process::log(&format!("build-{name}")))
}

/// Returns an address with a port that was free a moment ago. Another program may take it in between; the server then fails
/// to start, and prints the reason. The port is not one that the system chooses: a connection that tries whether
/// the server listens could otherwise get this port, and connect to itself.
pub(crate) fn free_address() -> Result<SocketAddr, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS.len() {
        let number = std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (number % PORTS.len() as u32) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(format!("loopback: no port from {} to {} is free", PORTS.start, PORTS.end))
}

fn is_healthy(address: SocketAddr) -> bool {
    let limit = Duration::from_secs(2);
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok::<_, std::io::Error>(head)
    };
    ask().is_ok_and(|head| head == *b"HTTP/1.1 200")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_exits_is_no_server() {
        let started = Server::start(Path::new("/bin/false"), &[], &process::log("self-test-server"));
        let why = started.err().expect("it ended at once");
        assert!(why.starts_with("the server ended: exit status: 1"), "{why}");
    }
}
