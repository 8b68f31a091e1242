//! Server processes: pinned to a core, measured by the scheduler's statistics, and stopped by their process
//! id.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::Error;

/// Pins the calling process to the load's core.
pub(crate) fn pin_load() -> Result<(), Error> {
    let pid = std::process::id().to_string();
    let output = Command::new("taskset").args(["--cpu-list", "--pid", LOAD_CORE, &pid]).output();
    let output = output.map_err(|error| format!("taskset (of util-linux) is needed: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("no second processor to put the load on: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// A server, alone on its core; dropping it stops the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a server and waits until it prints its listen address.
    pub(crate) fn start(program: &Path, arguments: &[OsString], cores: &str) -> Result<Self, Error> {
        // taskset execs the server, so the process id is the server's.
        let mut child = Command::new("taskset")
            .args(["--cpu-list", cores])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("taskset (of util-linux) is needed: {error}"))?;
        let stdout = child.stdout.take().ok_or("standard output is piped")?;
        let (said, heard) = mpsc::channel();
        thread::spawn(move || {
            // Reads to the end, so that no write of the server meets a closed pipe.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = address_in(&line).map(|address| said.send(address));
            }
        });
        match heard.recv_timeout(START_LIMIT) {
            Ok(address) => Ok(Self { child, address }),
            Err(_) => {
                child.kill()?;
                child.wait()?;
                Err(format!("{} did not print its listen address", program.display()).into())
            }
        }
    }

    /// Starts a server with a given listen address and possibly child processes; waits until it listens.
    pub(crate) fn start_at(
        program: &Path,
        arguments: &[OsString],
        cores: &str,
        address: SocketAddr,
    ) -> Result<Self, Error> {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", cores]).arg(program).args(arguments).stdin(Stdio::null());
        let mut server = Self { child: command.spawn()?, address };
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("{} ended: {status}", program.display()).into());
            }
            if Instant::now() > deadline {
                return Err(format!("{} does not listen", program.display()).into());
            }
            thread::sleep(SETTLE_PAUSE);
        }
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU usage of the server's threads, read while they sleep: the statistics of a running
    /// thread lag.
    pub(crate) fn settled_usage(&self) -> Result<Usage, Error> {
        let mut before = Usage::of_family(self.child.id())?;
        for _ in 0..SETTLE_ATTEMPTS {
            thread::sleep(SETTLE_PAUSE);
            let after = Usage::of_family(self.child.id())?;
            if after.run_ns == before.run_ns {
                return Ok(after);
            }
            before = after;
        }
        Err("the server stays busy without any load".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server with child processes stops them on SIGTERM.
        let own = children(self.child.id()).unwrap_or_default();
        if !own.is_empty() {
            let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
            let _ = self.child.wait();
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the child processes that a process has not waited for.
fn children(pid: u32) -> Result<Vec<u32>, Error> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // Only kernels with CONFIG_PROC_CHILDREN have this file.
        let listed = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        found.extend(listed.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(found)
}

/// Returns the first loopback address in a line.
fn address_in(line: &str) -> Option<SocketAddr> {
    let from = &line[line.find("127.0.0.1:")?..];
    let end = from.find(|char: char| !(char.is_ascii_digit() || matches!(char, '.' | ':')));
    from[..end.unwrap_or(from.len())].parse().ok()
}

/// The scheduler's statistics of a process, summed over its threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Nanoseconds on a processor.
    pub(crate) run_ns: u64,
    /// Nanoseconds ready to run, while another thread had the processor.
    pub(crate) wait_ns: u64,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let mut sum = Self::default();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let books = Self::of_task(&task?.path())?;
            sum.run_ns += books.run_ns;
            sum.wait_ns += books.wait_ns;
        }
        Ok(sum)
    }

    /// Returns the statistics of each thread with its name, which has at most 15 bytes.
    pub(crate) fn by_thread(pid: u32) -> Result<Vec<(String, Self)>, Error> {
        let mut all = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            let name = fs::read_to_string(task.join("comm"))?.trim_end().to_owned();
            all.push((name, Self::of_task(&task)?));
        }
        Ok(all)
    }

    fn of_task(task: &Path) -> Result<Self, Error> {
        let books = fs::read_to_string(task.join("schedstat"))?;
        let mut fields = books.split_whitespace().map(str::parse::<u64>);
        let (Some(run), Some(wait)) = (fields.next(), fields.next()) else {
            return Err("the kernel keeps no schedstat (CONFIG_SCHED_INFO)".into());
        };
        Ok(Self { run_ns: run?, wait_ns: wait? })
    }

    /// Sums the statistics of a process and its child processes.
    fn of_family(pid: u32) -> Result<Self, Error> {
        let mut sum = Self::of(pid)?;
        for child in children(pid)? {
            let books = Self::of(child)?;
            sum.run_ns += books.run_ns;
            sum.wait_ns += books.wait_ns;
        }
        Ok(sum)
    }

    /// Returns the usage since an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        // The statistics of an exited thread disappear, so a sum can shrink.
        Self {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

/// Returns the stolen time of this machine's processors: seconds, all processors together. Zero on bare
/// metal.
pub(crate) fn stolen() -> Result<f64, Error> {
    let books = fs::read_to_string("/proc/stat")?;
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks = books.lines().next().and_then(|all| all.split_whitespace().nth(8)?.parse::<u64>().ok());
    Ok(ticks.ok_or("no steal in /proc/stat")? as f64 / TICKS_PER_SECOND)
}

/// Unit of the numbers in /proc/stat: USER_HZ is 100 on all architectures of Linux except one.
const TICKS_PER_SECOND: f64 = 100.;

/// In the format of `taskset --cpu-list`.
pub(crate) const SERVER_CORE: &str = "0";
pub(crate) const LOAD_CORE: &str = "1";

/// A built server starts in milliseconds; a busy machine needs more time.
const START_LIMIT: Duration = Duration::from_secs(10);

const SETTLE_PAUSE: Duration = Duration::from_millis(2);
const SETTLE_ATTEMPTS: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_output_of_servers() {
        let expected = Some(([127, 0, 0, 1], 4711).into());
        assert_eq!(address_in("127.0.0.1:4711"), expected);
        assert_eq!(address_in("  echo      ws://127.0.0.1:4711/echo"), expected);
        assert_eq!(address_in("  sinews 0.1.0 · 1 thread"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn processor_time_is_measured() {
        let before = Usage::of(std::process::id()).unwrap();
        let mut numbers = 0_u64;
        // The clock's tick updates the statistics of a running thread.
        while Usage::of(std::process::id()).unwrap().since(before).run_ns == 0 {
            numbers = std::hint::black_box(numbers + 1);
        }
        assert!(numbers < u64::MAX);
    }
}
