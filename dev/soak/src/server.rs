//! The server under test: its process, its resources in `/proc`, and its shutdown.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use sinews_testkit::process::Resources as Sample;
use sinews_testkit::{ServeProcess, exchange, last_get, process};

use crate::Fault;

/// Two, so that messages pass between threads.
const THREADS: &str = "2";

/// Start options.
pub(crate) struct Setup<'a> {
    pub(crate) binary: &'a Path,
    /// Value for `--backend`.
    pub(crate) backend: &'a str,
    /// Its descriptor limit; `None` keeps this process's limit.
    pub(crate) descriptors: Option<u32>,
    /// Its log file.
    pub(crate) log: PathBuf,
    /// Certificate and key: the server then has TLS and HTTP/3.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
}

/// A running server.
pub(crate) struct Server {
    process: ServeProcess,
    log: PathBuf,
}

impl Server {
    /// Starts the server on a free port and waits until it prints the port.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, Fault> {
        if let Some(dir) = setup.log.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut command = process::program(setup.binary, setup.descriptors);
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--backend", setup.backend]);
        command.args(["--threads", THREADS, "--http-http2-clear-text"]);
        if let Some((certificate, key)) = &setup.tls {
            // Short timeouts: an absent QUIC client is removed after their sum.
            command.args(["--http-http3", "--http-keep-alive-timeout", "5s", "--http-head-timeout", "5s"]);
            command.arg("--tls-certificate").arg(certificate).arg("--tls-key").arg(key);
        }
        command.envs(ALLOCATOR).stderr(File::create(&setup.log)?);
        let started = ServeProcess::start(&mut command);
        let process = started.map_err(|error| match fs::read_to_string(&setup.log) {
            Ok(log) if !log.is_empty() => log.trim_end().to_owned(),
            _ => error.to_string(),
        })?;
        Ok(Self { process, log: setup.log.clone() })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Returns its current resources.
    pub(crate) fn sample(&self) -> Result<Sample, Fault> {
        Ok(Sample::read(self.id())?)
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

    /// Returns a number from its metrics.
    pub(crate) fn metric(&self, name: &str) -> Result<u64, Fault> {
        let answer = exchange(TcpStream::connect(self.address())?, &last_get("/metrics"))?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.ok_or_else(|| format!("no metric {name}"))?.trim().parse()?)
    }

    /// Sends SIGTERM, like a service manager.
    pub(crate) fn ask_to_end(&self) -> Result<(), Fault> {
        if process::signal(self.id(), "TERM") { Ok(()) } else { Err("it has ended before SIGTERM".into()) }
    }

    /// Waits until it has exited successfully.
    pub(crate) fn wait(mut self) -> Result<(), Fault> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            match self.process.child.try_wait()? {
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

/// glibc's allocator retains fragmented memory: up to 20 MiB, of which one is in use. With one arena, and
/// large allocations directly from the system, a process retains little more than it uses, so that a leak
/// shows. (Without these settings, the threshold grows with freed allocations.)
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "16384")];

/// Time limit until the server is idle. Its longest timeout is 5 s, for a peer's answer to its Close; memory
/// for large messages is freed after a few quiet seconds; a busy machine needs more.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// The server frees memory for large messages in two steps of 2 s.
const REST: Duration = Duration::from_secs(5);
/// Short compared with the awaited changes, long compared with a sample's cost.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// Time from SIGTERM to the exit. Peers that answer at once close in milliseconds; a busy machine needs more.
const END_LIMIT: Duration = Duration::from_secs(60);
