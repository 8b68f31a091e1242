//! The server under test: its process, its resources in `/proc`, and its shutdown.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Fault;

/// Two, so that messages pass between threads.
const THREADS: &str = "2";

/// Start options.
pub(crate) struct Setup<'a> {
    pub(crate) binary: &'a Path,
    /// Value of `--backend`.
    pub(crate) backend: &'a str,
    /// Limit of its descriptors; `None` keeps the limit of this process.
    pub(crate) descriptors: Option<u32>,
    /// File of its log.
    pub(crate) log: PathBuf,
    /// Certificate and key: the server then has TLS and HTTP/3.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
}

/// A running `sinews serve`; dropping it kills the process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    log: PathBuf,
    /// Kept open, so that no write of the server meets a closed pipe.
    _table: BufReader<ChildStdout>,
}

impl Server {
    /// Starts the server on a free port and waits until it prints the port.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, Fault> {
        if let Some(dir) = setup.log.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut child = command(setup)
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--backend", setup.backend])
            .args(["--threads", THREADS, "--http-http2-clear-text"])
            .args(http3_options(setup))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&setup.log)?)
            .spawn()?;
        let mut table = BufReader::new(child.stdout.take().ok_or("standard output is piped")?);
        let mut text = String::new();
        while !text.contains("Ctrl-C stops.") {
            if table.read_line(&mut text)? == 0 {
                child.wait()?;
                return Err(fs::read_to_string(&setup.log)?.trim_end().into());
            }
        }
        let scheme = if setup.tls.is_some() { "https://" } else { "http://" };
        let address = text.lines().find_map(|line| line.split_once(scheme)).ok_or("a table of addresses")?;
        let address = address.1.trim_end_matches('/').parse()?;
        Ok(Self { child, address, log: setup.log.clone(), _table: table })
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its current resources.
    pub(crate) fn sample(&self) -> Result<Sample, Fault> {
        Sample::of(self.id())
    }

    /// Samples until `holds` is true, and returns the last sample, even after the time limit.
    pub(crate) fn sample_until(&self, mut holds: impl FnMut(Sample) -> bool) -> Result<Sample, Fault> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        loop {
            let sample = self.sample()?;
            if holds(sample) || Instant::now() >= deadline {
                return Ok(sample);
            }
            thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Samples an idle server: at most the descriptors and threads of `start`, since idle threads of its pool
    /// exit after a while, and constant memory for [`REST`]. Returns the last sample if the server does not
    /// reach that state.
    pub(crate) fn sample_at_rest(&self, start: Sample) -> Result<Sample, Fault> {
        let (mut last, mut since) = (Sample::default(), Instant::now());
        self.sample_until(|sample| {
            if sample != last {
                (last, since) = (sample, Instant::now());
            }
            let is_small = sample.descriptors <= start.descriptors && sample.threads <= start.threads;
            is_small && since.elapsed() >= REST
        })
    }

    /// Returns a number of its metrics.
    pub(crate) fn metric(&self, name: &str) -> Result<u64, Fault> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.ok_or_else(|| format!("no metric {name}"))?.trim().parse()?)
    }

    /// Sends SIGTERM, like a service manager.
    pub(crate) fn ask_to_end(&self) -> Result<(), Fault> {
        let asked = Command::new("kill").args(["-TERM", &self.id().to_string()]).status()?;
        if asked.success() { Ok(()) } else { Err("kill -TERM failed".into()) }
    }

    /// Waits until it has exited successfully.
    pub(crate) fn wait(mut self) -> Result<(), Fault> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("it ended with {status}").into()),
                None if Instant::now() >= deadline => {
                    return Err(format!("not ended {} s after SIGTERM", END_LIMIT.as_secs()).into());
                }
                None => thread::sleep(SETTLE_PAUSE),
            }
        }
    }

    /// Returns log lines that a healthy server does not write.
    pub(crate) fn complaints(&self) -> Result<Vec<String>, Fault> {
        let log = fs::read_to_string(&self.log)?;
        let bad = |line: &&str| line.contains("panicked") || line.contains(" ERROR ");
        Ok(log.lines().filter(bad).map(str::to_owned).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// HTTP/3, with short timeouts: an absent client of QUIC is removed after their sum.
fn http3_options(setup: &Setup<'_>) -> Vec<OsString> {
    let Some((certificate, key)) = &setup.tls else { return Vec::new() };
    let mut options: Vec<OsString> =
        ["--http-http3", "--http-keep-alive-timeout", "5s", "--http-head-timeout", "5s"]
            .map(Into::into)
            .into();
    options.extend(["--tls-certificate".into(), certificate.into(), "--tls-key".into(), key.into()]);
    options
}

/// The program; where a shell exists, it lowers the limit first and then execs the program.
fn command(setup: &Setup<'_>) -> Command {
    let mut command = match setup.descriptors {
        None => Command::new(setup.binary),
        Some(limit) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh", &limit.to_string()]);
            shell.arg(setup.binary);
            shell
        }
    };
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SINEWS_")) {
        command.env_remove(name);
    }
    command.envs(ALLOCATOR);
    command
}

/// glibc's allocator retains fragmented memory: up to 20 MiB, of which one is in use. With one arena, and
/// large allocations directly from the system, a process retains little more than it uses, so that a leak
/// shows. (Without these settings, the threshold grows with freed allocations.)
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "16384")];

/// Resources of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Open descriptors, and files in the tables of its rings, which are not descriptors.
    pub(crate) descriptors: usize,
    /// Threads that the process started, without those of the kernel for blocking operations of a ring: idle ones stay a
    /// while.
    pub(crate) threads: usize,
    /// Anonymous memory in KiB: heap and stacks, without the program's text.
    pub(crate) memory_kib: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors, {} MiB", self.descriptors, self.memory_kib >> 10)
    }
}

impl Sample {
    fn of(id: u32) -> Result<Self, Fault> {
        let process = PathBuf::from(format!("/proc/{id}"));
        let rollup = fs::read_to_string(process.join("smaps_rollup"))?;
        Ok(Self {
            descriptors: descriptors(&process)?,
            threads: own_threads(&process)?,
            memory_kib: anonymous_kib(&rollup).ok_or("smaps_rollup has no count of anonymous memory")?,
        })
    }

    /// Returns the maximum of each resource.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            memory_kib: self.memory_kib.max(other.memory_kib),
        }
    }
}

fn own_threads(process: &Path) -> Result<usize, Fault> {
    let mut count = 0;
    for entry in fs::read_dir(process.join("task"))? {
        // A thread that has exited meanwhile no longer has a name.
        let name = fs::read_to_string(entry?.path().join("comm"));
        count += usize::from(name.is_ok_and(|name| !name.starts_with("iou-")));
    }
    Ok(count)
}

fn descriptors(process: &Path) -> Result<usize, Fault> {
    let mut count = 0;
    for entry in fs::read_dir(process.join("fd"))? {
        let entry = entry?;
        count += 1;
        // A descriptor that has been closed meanwhile no longer has a target.
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().contains("io_uring") {
            let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name()))?;
            count += files_of_ring(&info);
        }
    }
    Ok(count)
}

/// Counts the files of a ring: a line for each follows their heading, with slot and path.
fn files_of_ring(info: &str) -> usize {
    let files = info.lines().skip_while(|line| !line.starts_with("UserFiles:")).skip(1);
    files.take_while(|line| line.starts_with(' ')).count()
}

fn anonymous_kib(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Time limit until the server is idle. Its longest timeout is 5 s, for a peer's answer to its Close; memory
/// of large messages is freed after a few quiet seconds; a busy machine needs more.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// The server frees memory of large messages in two steps of 2 s.
const REST: Duration = Duration::from_secs(5);
/// Short compared with the awaited changes, long compared with the cost of a sample.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// Time from SIGTERM to the exit. Peers that answer at once close in milliseconds; a busy machine needs more.
const END_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_from_proc() {
        let rollup = "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nAnonymous:    2048 kB\n";
        assert_eq!(anonymous_kib(rollup), Some(2048));
        assert_eq!(anonymous_kib("Rss: 1 kB\n"), None);
        let own = Sample::of(std::process::id()).unwrap();
        assert!(own.descriptors >= 3 && own.threads >= 1 && own.memory_kib > 0, "{own:?}");
    }

    #[test]
    fn files_in_a_ring_are_counted() {
        let info =
            "pos:\t0\nSqThread:\t-1\nUserFiles:\t64\n    3: socket:[17]\n   63: socket:[18]\nUserBufs:\t0\n";
        assert_eq!(files_of_ring(info), 2);
        assert_eq!(files_of_ring("pos:\t0\nflags:\t02\n"), 0);
    }
}
