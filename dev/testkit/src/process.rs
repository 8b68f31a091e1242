//! Processes of the program, and their resources.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Returns a command without settings of this process's environment. With a limit, a shell lowers both limits of
/// descriptors first, and then execs the program.
#[must_use]
pub fn program(path: impl AsRef<Path>, descriptors: Option<u32>) -> Command {
    let mut command = match descriptors {
        None => Command::new(path.as_ref()),
        Some(limit) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh", &limit.to_string()]);
            shell.arg(path.as_ref());
            shell
        }
    };
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SINEWS_")) {
        command.env_remove(name);
    }
    command
}

/// Sends a signal to a process that may have ended; returns whether it has not.
///
/// # Panics
/// There is no program `kill`.
pub fn signal(process: u32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args(["-s", name, &process.to_string()]).stderr(Stdio::null());
    kill.status().expect("the program kill").success()
}

/// A `sinews serve` process; dropping it kills it.
#[derive(Debug)]
pub struct ServeProcess {
    /// The process.
    pub child: Child,
    /// Standard output behind the table. It stays open, so that the server never writes to a closed pipe.
    pub stdout: BufReader<ChildStdout>,
    /// The address table.
    pub table: String,
    /// The first address.
    pub address: SocketAddr,
}

impl ServeProcess {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// The server cannot be started, or ends: what it has printed.
    ///
    /// # Panics
    /// The table has no address.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut table = String::new();
        while !table.contains("Ctrl-C stops.") {
            if stdout.read_line(&mut table)? == 0 {
                if let Some(mut stderr) = child.stderr.take() {
                    stderr.read_to_string(&mut table)?;
                }
                child.wait()?;
                return Err(io::Error::other(table));
            }
        }
        let address = table.lines().find_map(|line| line.split_once("://")).expect("an address").1;
        let address = address.split('/').next().unwrap_or_default().replace("localhost", "127.0.0.1");
        Ok(Self { child, stdout, address: address.parse().expect("an address with the real port"), table })
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resources of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Open descriptors, and files in its rings' tables, which are not descriptors. The kernel names no file while a
    /// thread is in a system call of the ring: only the count of an idle process is exact.
    pub descriptors: usize,
    /// Threads that the process started, without the kernel's threads for a ring's blocking operations: idle ones stay
    /// a while.
    pub threads: usize,
    /// Anonymous memory in KiB: heap and stacks, without the program's text.
    pub memory_kib: u64,
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors, {} MiB", self.descriptors, self.memory_kib >> 10)
    }
}

impl Resources {
    /// Reads a process's resources.
    ///
    /// # Errors
    /// The process has ended, or the system has no `/proc`.
    pub fn read(id: u32) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{id}"));
        let rollup = fs::read_to_string(process.join("smaps_rollup"))?;
        let memory = anonymous_kib(&rollup);
        Ok(Self {
            descriptors: descriptors(&process)?,
            threads: own_threads(&process)?,
            memory_kib: memory.ok_or_else(|| io::Error::other("no count of anonymous memory"))?,
        })
    }

    /// Returns each resource's maximum.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            memory_kib: self.memory_kib.max(other.memory_kib),
        }
    }
}

fn own_threads(process: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(process.join("task"))? {
        // A thread that has exited meanwhile no longer has a name.
        let name = fs::read_to_string(entry?.path().join("comm"));
        count += usize::from(name.is_ok_and(|name| !name.starts_with("iou-")));
    }
    Ok(count)
}

fn descriptors(process: &Path) -> io::Result<usize> {
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

/// Counts a ring's files: a line for each follows their heading, with slot and path.
fn files_of_ring(info: &str) -> usize {
    let files = info.lines().skip_while(|line| !line.starts_with("UserFiles:")).skip(1);
    files.take_while(|line| line.starts_with(' ')).count()
}

fn anonymous_kib(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_proc() {
        let rollup = "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nAnonymous:    2048 kB\n";
        assert_eq!(anonymous_kib(rollup), Some(2048));
        assert_eq!(anonymous_kib("Rss: 1 kB\n"), None);
        let own = Resources::read(std::process::id()).unwrap();
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
