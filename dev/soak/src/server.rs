//! The server under test: a process, what `/proc` says about it, and how it ends.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Fault;

/// How it is started.
pub(crate) struct Setup<'a> {
    pub(crate) binary: &'a Path,
    /// As `--backend` has it.
    pub(crate) backend: &'a str,
    pub(crate) threads: u32,
    /// The limit of its descriptors; `None`: that of this process.
    pub(crate) descriptors: Option<u32>,
    /// Where what it logs goes.
    pub(crate) log: PathBuf,
}

/// A running `sinews serve`; dropping it ends the process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    log: PathBuf,
    /// Held, so that no write of the server meets a closed pipe.
    _table: BufReader<ChildStdout>,
}

impl Server {
    /// Starts it on a free port and waits until it says which.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, Fault> {
        if let Some(dir) = setup.log.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut child = command(setup)
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--backend", setup.backend])
            .args(["--threads", &setup.threads.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&setup.log)?)
            .spawn()?;
        let mut table = BufReader::new(child.stdout.take().ok_or("the standard output was asked for")?);
        let mut text = String::new();
        while !text.contains("Ctrl-C stops.") {
            if table.read_line(&mut text)? == 0 {
                child.wait()?;
                return Err(fs::read_to_string(&setup.log)?.trim_end().into());
            }
        }
        let address =
            text.lines().find_map(|line| line.split_once("http://")).ok_or("a table of addresses")?;
        let address = address.1.trim_end_matches('/').parse()?;
        Ok(Self { child, address, log: setup.log.clone(), _table: table })
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it holds now.
    pub(crate) fn sample(&self) -> Result<Sample, Fault> {
        Sample::of(self.id())
    }

    /// Asks again and again until `holds`, and answers with the last sample whether or not it came to that.
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

    /// The sample of a server that has nothing to do any more: at most the descriptors and threads of `start`, since idle
    /// threads of its pool end after a while, and memory that has stood still for [`REST`]; or the last sample, if it
    /// does not come to that.
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

    /// Sends SIGTERM, as a service manager does.
    pub(crate) fn ask_to_end(&self) -> Result<(), Fault> {
        let asked = Command::new("kill").args(["-TERM", &self.id().to_string()]).status()?;
        if asked.success() { Ok(()) } else { Err("kill -TERM failed".into()) }
    }

    /// Waits until it has ended, with success.
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

    /// Lines of the log that a healthy server does not write.
    pub(crate) fn complaints(&self) -> Result<Vec<String>, Fault> {
        let log = fs::read_to_string(&self.log)?;
        let bad = |line: &&str| line.contains("panicked") || line.contains(" ERROR ");
        Ok(log.lines().filter(bad).map(str::to_owned).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program; in a shell that lowers the limit first and then becomes it, where there is one.
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

/// What glibc's allocator keeps is as scattered as it pleases: up to 20 MiB, of which one is in use. With one arena, and
/// large pieces from the system, a process holds little more than what it uses, so that a leak shows. (Without
/// these, the threshold grows with what is freed.)
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "16384")];

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Open descriptors, and files in the tables of its rings, which are no descriptors.
    pub(crate) descriptors: usize,
    /// Those that it has started.
    pub(crate) threads: usize,
    /// Those that the kernel has started in it, for what a ring cannot do without waiting; idle ones stay a while.
    pub(crate) kernel_threads: usize,
    /// Anonymous memory in KiB: heap and stacks, without the program's text.
    pub(crate) memory_kib: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors, {} MiB", self.descriptors, self.memory_kib >> 10)?;
        match self.kernel_threads {
            0 => Ok(()),
            threads => write!(f, ", {threads} threads of the kernel"),
        }
    }
}

impl Sample {
    fn of(id: u32) -> Result<Self, Fault> {
        let process = PathBuf::from(format!("/proc/{id}"));
        let rollup = fs::read_to_string(process.join("smaps_rollup"))?;
        let (kernel, own): (Vec<String>, _) =
            thread_names(&process)?.into_iter().partition(|name| name.starts_with("iou-"));
        Ok(Self {
            descriptors: descriptors(&process)?,
            threads: own.len(),
            kernel_threads: kernel.len(),
            memory_kib: anonymous_kib(&rollup).ok_or("smaps_rollup says nothing of anonymous memory")?,
        })
    }

    /// The larger of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            kernel_threads: self.kernel_threads.max(other.kernel_threads),
            memory_kib: self.memory_kib.max(other.memory_kib),
        }
    }
}

fn thread_names(process: &Path) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    for entry in fs::read_dir(process.join("task"))? {
        // One that has ended meanwhile has no name any more.
        names.extend(fs::read_to_string(entry?.path().join("comm")));
    }
    Ok(names)
}

fn descriptors(process: &Path) -> Result<usize, Fault> {
    let mut count = 0;
    for entry in fs::read_dir(process.join("fd"))? {
        let entry = entry?;
        count += 1;
        // One that has been closed meanwhile has no target any more.
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().contains("io_uring") {
            let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name()))?;
            count += files_of_ring(&info);
        }
    }
    Ok(count)
}

/// The files that a ring holds by itself: a line for each follows their heading, slot and path.
fn files_of_ring(info: &str) -> usize {
    let files = info.lines().skip_while(|line| !line.starts_with("UserFiles:")).skip(1);
    files.take_while(|line| line.starts_with(' ')).count()
}

fn anonymous_kib(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Until the server is at rest. The longest wait in it is for a peer's answer to its Close, 5 s; memory that
/// large messages left is given back after a few quiet seconds; a busy machine needs more.
const SETTLE_LIMIT: Duration = Duration::from_secs(40);
/// The server gives memory of large messages back in two steps of 2 s.
const REST: Duration = Duration::from_secs(5);
/// Short against what is waited for, long against the cost of asking.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// From SIGTERM to the end. Peers that answer at once are gone in milliseconds; a busy machine needs more.
const END_LIMIT: Duration = Duration::from_secs(20);

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
