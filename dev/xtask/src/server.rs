//! A server under test: built, started on a free port, monitored, and stopped by its process id.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries;
use crate::certificate::Certificate;
use crate::process::{self, TICKS_PER_SECOND};

/// Time limit for a started server's health check. It needs milliseconds; a loaded machine more, and may stall.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The profile of the programs under checks, and the name of its folder.
pub(crate) const CHECKS_PROFILE: &str = "checks";
/// Features of the program under checks, beyond its defaults.
pub(crate) const CHECKED_FEATURES: &str = "sinews-cli/http3";
/// The profile of archives and figures, and the name of its folder.
pub(crate) const DIST_PROFILE: &str = "dist";
/// Time limit for an optimized build from nothing on a small machine.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Ports of servers that do not choose their own; tests of the program use those above.
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
        Self::spawn(&mut command, address, log)?.wait_until(log, "is not healthy", |server, _| {
            is_healthy(server.address).then_some(server.address)
        })
    }

    /// Starts `sinews serve` with this certificate on a free loopback port, and waits until it listens.
    pub(crate) fn start_tls(
        binary: &Path,
        options: &[&str],
        certificate: &Certificate,
        log: &Path,
    ) -> Result<Self, String> {
        let address = free_address()?;
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &address.to_string()]).args(options);
        command.arg("--tls-certificate").arg(&certificate.certificate);
        command.arg("--tls-key").arg(&certificate.key);
        Self::start_on(&mut command, address, log)
    }

    /// Starts a program that listens on this address, and waits until it listens.
    pub(crate) fn start_on(command: &mut Command, address: SocketAddr, log: &Path) -> Result<Self, String> {
        Self::spawn(command, address, log)?.wait_until(log, "does not listen", |server, _| {
            TcpStream::connect_timeout(&server.address, START_LIMIT).ok().map(|_| server.address)
        })
    }

    /// Starts a program that chooses its address, and prints `listening on ADDRESS` when it listens.
    pub(crate) fn start_announced(command: &mut Command, log: &Path) -> Result<Self, String> {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::spawn(command, nowhere, log)?.wait_until(log, "does not say where it listens", |_, log| {
            announced(&fs::read_to_string(log).unwrap_or_default())
        })
    }

    fn spawn(command: &mut Command, address: SocketAddr, log: &Path) -> Result<Self, String> {
        Ok(Self { child: process::spawn(command, log)?, address })
    }

    /// Returns the WebSocket address, without a path.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the exit of the server, `None` while it runs: a server under test must outlive the test.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| format!("the server ended: {status}"))
    }

    /// Returns its resource usage so far, where `/proc` exists.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        Usage::parse(&stat, &status)
    }

    /// Waits until the server is ready; `is_ready` returns the listen address.
    fn wait_until(
        mut self,
        log: &Path,
        otherwise: &str,
        is_ready: impl Fn(&Self, &Path) -> Option<SocketAddr>,
    ) -> Result<Self, String> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let ended = self.ended();
            if let Some(address) = is_ready(&self, log).filter(|_| ended.is_none()) {
                self.address = address;
                return Ok(self);
            }
            let late = (Instant::now() >= deadline).then(|| format!("the server {otherwise}"));
            if let Some(why) = ended.or(late) {
                return Err(format!("{why}\n{}", process::tail(log, 10)));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resource usage of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads, in seconds.
    pub(crate) cpu_seconds: f64,
    /// The largest resident set so far, in KiB.
    pub(crate) resident_kib_max: u64,
}

impl Usage {
    fn parse(stat: &str, status: &str) -> Option<Self> {
        // Fields 14 and 15, counted from 1; the name, field 2, may hold spaces and ends with ')'.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let user: u32 = fields.next()?.parse().ok()?;
        let system: u32 = fields.next()?.parse().ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(Self {
            cpu_seconds: (f64::from(user) + f64::from(system)) / TICKS_PER_SECOND,
            resident_kib_max: peak.split_whitespace().next()?.parse().ok()?,
        })
    }
}

/// Returns the given binary, or the debug build of `sinews`, which the Rust tests use, too: with overflow checks, and compiled once.
pub(crate) fn binary(given: Option<&Path>) -> Result<PathBuf, String> {
    given.map_or_else(|| build_debug("sinews"), existing)
}

/// Returns the given binary, or builds `sinews` for checks of speed and memory.
pub(crate) fn optimized(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        return existing(path);
    }
    let arguments =
        ["--profile", CHECKS_PROFILE, "--features", CHECKED_FEATURES, "--bin", "sinews"].map(str::to_owned);
    build_with(process::cargo(), &arguments, "sinews")?;
    Ok(process::target().join(CHECKS_PROFILE).join("sinews"))
}

fn existing(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// Builds a program of the workspace for checks.
pub(crate) fn build(package: &str, program: &str) -> Result<PathBuf, String> {
    Ok(build_package(package, &["--bin", program])?.join(program))
}

/// The debug build of a program of the workspace, built now: for checks of correctness, with overflow checks.
pub(crate) fn build_debug(program: &str) -> Result<PathBuf, String> {
    Ok(build_all_debug(&[program])?.join(program))
}

/// The debug build of an example of the workspace, like that of the Rust tests.
pub(crate) fn build_example(name: &str) -> Result<PathBuf, String> {
    let mut arguments = binaries::selection()?;
    arguments.extend(["--example", name].map(str::to_owned));
    build_with(process::linting_cargo()?, &arguments, name)?;
    Ok(process::target().join("debug/examples").join(name))
}

/// Builds all programs of a package for checks, and returns their folder.
pub(crate) fn build_all(package: &str) -> Result<PathBuf, String> {
    build_package(package, &["--bins"])
}

/// Builds the debug builds of these programs, and returns their folder. The Rust tests use the same builds,
/// so that a later test run compiles nothing for them.
pub(crate) fn build_all_debug(programs: &[&str]) -> Result<PathBuf, String> {
    let folder = process::target().join("debug");
    if binaries::are_built() && programs.iter().all(|program| folder.join(program).is_file()) {
        return Ok(folder);
    }
    let mut arguments = binaries::selection()?;
    arguments.extend(programs.iter().flat_map(|program| ["--bin".to_owned(), (*program).to_owned()]));
    build_with(process::linting_cargo()?, &arguments, &programs.join("-"))?;
    Ok(folder)
}

/// Returns the folder of the programs.
fn build_package(package: &str, what: &[&str]) -> Result<PathBuf, String> {
    let profile = ["--profile", CHECKS_PROFILE, "--package", package];
    let arguments: Vec<_> = profile.iter().chain(what).map(|word| (*word).to_owned()).collect();
    build_with(process::cargo(), &arguments, package)?;
    Ok(process::target().join(CHECKS_PROFILE))
}

fn build_with(mut build: Command, arguments: &[String], name: &str) -> Result<(), String> {
    let log = process::target().join(format!("xtask/build-{name}.log"));
    build.arg("build").args(arguments);
    process::run(&mut build, &log, BUILD_LIMIT)?.check(&format!("build of {name}"), &log)
}

/// Parses the line `listening on ADDRESS`, once it is complete.
fn announced(log: &str) -> Option<SocketAddr> {
    let lines = log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines
        .filter_map(|line| line.strip_prefix("listening on "))
        .find_map(|address| address.trim().parse().ok())
}

/// Returns an address with a port that was free a moment ago. Another program may take it in between; the server then fails
/// to start, and prints the reason. The port is not one of those that the system chooses: a connection that tries whether
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
    fn usage_is_read_from_proc() {
        let stat = "7 (a) b c) S 1 7 7 0 -1 4194560 90 0 0 0 150 50 0 0 20 0 3 0 99 1 2 3";
        let status = "Name:\tx\nVmPeak:\t   99 kB\nVmHWM:\t   2048 kB\n";
        let expected = Usage { cpu_seconds: 2.0, resident_kib_max: 2048 };
        assert_eq!(Usage::parse(stat, status), Some(expected));
        assert_eq!(Usage::parse(stat, "Name:\tx\n"), None);
    }

    #[test]
    fn an_address_is_taken_from_a_whole_line() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        assert_eq!(announced("starting\nlistening on 127.0.0.1:8080\n"), Some(address));
        assert_eq!(announced("starting\nlistening on 127.0.0.1:80"), None);
        assert_eq!(announced("listening on everything\n"), None);
    }

    #[test]
    fn program_that_exits_is_no_server() {
        let log = process::target().join("xtask/self-test-server.log");
        let started = Server::start(Path::new("/bin/false"), &[], &log);
        let why = started.err().expect("it ended at once");
        assert!(why.starts_with("the server ended: exit status: 1"), "{why}");
    }
}
