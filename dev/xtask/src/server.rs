//! A server under test: built, started on a free port, watched, and ended by its process id.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;

/// Until a started server answers its health check. It needs milliseconds; a loaded machine more.
const START_LIMIT: Duration = Duration::from_secs(20);
/// For the release build from nothing on a small machine.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Linux counts process times in these per second, on every architecture we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running `sinews serve`; dropping it ends the process.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the server on a free loopback port and waits until it is healthy. Its own output
    /// goes to `log`.
    pub(crate) fn start(binary: &Path, options: &[&str], log: &Path) -> Result<Self, String> {
        let address = free_address()?;
        if let Some(dir) = log.parent() {
            fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        let output = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        let child = Command::new(binary)
            .args(["serve", "--listen", &address.to_string()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let mut server = Self { child, address };
        server.wait_until_healthy().map_err(|why| format!("{why}\n{}", process::tail(log, 10)))?;
        Ok(server)
    }

    /// The WebSocket address, without a path.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// `None` while it runs, otherwise how it ended: a server under test must outlive the test.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| format!("the server ended: {status}"))
    }

    /// What it has used so far, where `/proc` tells.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        Usage::parse(&stat, &status)
    }

    fn wait_until_healthy(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(how) = self.ended() {
                return Err(how);
            }
            if is_healthy(self.address) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("no answer from http://{}/healthz", self.address));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has used of the machine.
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

/// The given binary, or the release build of `sinews`, built now.
pub(crate) fn binary(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        let found = path.canonicalize();
        return found.map_err(|error| format!("{}: {error}", path.display()));
    }
    build("sinews-cli", "sinews")
}

/// The release build of a program of the workspace, built now.
pub(crate) fn build(package: &str, program: &str) -> Result<PathBuf, String> {
    let log = process::target().join(format!("xtask/build-{program}.log"));
    let mut build = process::cargo();
    build.args(["build", "--release", "--package", package, "--bin", program]);
    process::run(&mut build, &log, BUILD_LIMIT)?.check(&format!("release build of {program}"), &log)?;
    Ok(process::target().join("release").join(program))
}

/// A port that was free a moment ago. Another program may take it in between; the health check
/// then fails and says so.
fn free_address() -> Result<SocketAddr, String> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| format!("loopback: {error}"))?;
    listener.local_addr().map_err(|error| format!("loopback: {error}"))
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
    fn a_program_that_ends_is_no_server() {
        let log = process::target().join("xtask/self-test-server.log");
        let started = Server::start(Path::new("/bin/false"), &[], &log);
        let why = started.err().expect("it ended at once");
        assert!(why.starts_with("the server ended: exit status: 1"), "{why}");
    }
}
