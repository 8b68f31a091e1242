//! Counts the system calls of a process with strace.
//!
//! ```no_run
//! // Requires another process, and the permission to trace it.
//! use sinews_strace::Strace;
//!
//! let strace = Strace::attach(4711, "calls.log".as_ref())?;
//! // Run the work to count here.
//! let calls = strace.detach()?;
//! println!("{} of {}", calls.of(&["read", "recvfrom"]), calls.all());
//! # Ok::<_, std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// Returns the version of strace.
///
/// # Errors
///
/// strace is missing; the error says how to install it.
pub fn version() -> io::Result<String> {
    let output = Command::new("strace").arg("--version").output().map_err(how_to_get_it)?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn how_to_get_it(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("strace: {error} (apt-get install strace)"))
}

/// A strace that traces a process and all its threads. Dropping it detaches from the process.
#[derive(Debug)]
pub struct Strace {
    child: Child,
    words: BufReader<ChildStderr>,
    log: PathBuf,
}

impl Strace {
    /// Attaches to a process; from the return on, every call is counted. The log is written to `log`, and
    /// stays there.
    ///
    /// # Errors
    ///
    /// strace is missing, and the error says how to install it; or strace may not trace the process, and the
    /// error is strace's message.
    pub fn attach(process: u32, log: &Path) -> io::Result<Self> {
        let mut child = Command::new("strace")
            .args(["-f", "-s", "0", "-e", "raw=all", "-e", "signal=none", "-o"])
            .arg(log)
            .args(["-p", &process.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(how_to_get_it)?;
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("standard error is piped"))?;
        let mut strace = Self { child, words: BufReader::new(stderr), log: log.to_owned() };
        let mut line = String::new();
        strace.words.read_line(&mut line)?;
        // With several threads, strace prints this line last, for all of them.
        if line.contains(" attached") {
            Ok(strace)
        } else {
            Err(io::Error::other(line.trim_end().to_owned()))
        }
    }

    /// Detaches from the process.
    ///
    /// # Errors
    ///
    /// strace cannot be stopped, or its log cannot be read.
    pub fn detach(mut self) -> io::Result<Calls> {
        // On this signal it detaches before it exits.
        let asked = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status()?;
        if !asked.success() {
            return Err(io::Error::other("kill -INT failed"));
        }
        self.words.read_to_string(&mut String::new())?;
        self.child.wait()?;
        let log = BufReader::new(File::open(&self.log)?);
        let mut calls = Calls::default();
        log.lines().try_for_each(|line| line.map(|line| calls.read(&line)))?;
        Ok(calls)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The completed calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    counts: BTreeMap<String, u64>,
    submitted: u64,
}

impl Calls {
    /// Returns the total number of the named calls.
    #[must_use]
    pub fn of(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.counts.get(*name)).sum()
    }

    /// Returns the number of all calls.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the number of operations submitted to io_uring.
    #[must_use]
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Reads a line such as `4711 recvfrom(0x9, 0x7ffe, 0x40, 0, 0, 0) = 0x40`, or, after a switch to another
    /// thread, `4711 <... recvfrom resumed>) = 0x40`. The first line of such a call has no result and does
    /// not count; nor does a wait that attaching interrupts, since it is restarted.
    fn read(&mut self, line: &str) {
        let Some((call, result)) = line.rsplit_once(") = ").or_else(|| line.rsplit_once(" = ")) else {
            return;
        };
        let Some((_, call)) = call.trim_start().split_once(' ') else { return };
        let call = call.trim_start();
        let call = call.strip_prefix("<... ").unwrap_or(call);
        let name = call.split(['(', ' ']).next().unwrap_or_default();
        if name.is_empty() || result.contains("EINTR") || result.starts_with('?') {
            return;
        }
        *self.counts.entry(name.to_owned()).or_default() += 1;
        if name == "io_uring_enter" {
            self.submitted += number(result).unwrap_or(0);
        }
    }
}

/// Parses a result, which is hexadecimal; `-1` and other errors are `None`.
fn number(result: &str) -> Option<u64> {
    let result = result.split_whitespace().next()?;
    match result.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => result.parse().ok(),
    }
}

/// Returns the minor page faults of a process: pages that the kernel provided without a read from a disk,
/// when the process first touched them.
///
/// # Errors
///
/// The process does not exist, or `/proc` is missing.
pub fn page_faults(process: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    minor_faults(&stat).ok_or_else(|| io::Error::other("/proc/PID/stat does not match proc(5)"))
}

/// The tenth field of proc(5); the second is a name in parentheses, which may contain any character.
fn minor_faults(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_parsed() {
        let log = "4711  epoll_wait(0x3, 0x5581, 0x400, 0xffffffff) = -1 EINTR (Interrupted system call)\n\
            4711  epoll_wait(0x3, 0x5581, 0x400, 0xffffffff <unfinished ...>\n\
            4712  futex(0x7f20, 0x80, 0, 0, 0, 0) = -1 EAGAIN (Resource temporarily unavailable)\n\
            4711  <... epoll_wait resumed>)         = 0x1\n\
            4711  recvfrom(0x9, 0x7ffe, 0x40, 0, 0, 0)    = 0x40\n\
            4711  recvfrom(0x9, 0x7ffe, 0x40, 0, 0, 0) = -1 EAGAIN (Resource temporarily unavailable)\n\
            4711  io_uring_enter(0x5, 0x11, 0x1, 0x9, 0, 0x8) = 0x11\n\
            4711  io_uring_enter(0x5, 0x1, 0x1, 0x9, 0, 0x8) = 1\n\
            4711  io_uring_enter(0x5, 0, 0x1, 0x9, 0, 0x8) = -1 ETIME (Timer expired)\n\
            4711  exit_group(0) = ?\n\
            4711  epoll_wait(0x3, 0x5581, 0x400, 0xffffffff <detached ...>\n\
            4711  +++ exited with 0 +++\n";
        let mut calls = Calls::default();
        log.lines().for_each(|line| calls.read(line));
        assert_eq!(calls.of(&["epoll_wait"]), 1);
        assert_eq!(calls.of(&["futex"]), 1);
        assert_eq!(calls.of(&["recvfrom", "read"]), 2);
        assert_eq!((calls.of(&["io_uring_enter"]), calls.submitted()), (3, 18));
        assert_eq!(calls.all(), 7);
    }

    #[test]
    fn a_name_may_contain_any_character() {
        let stat = "4711 (a ) b) S 1 2 3 4 5 6 789 0 0 0";
        assert_eq!(minor_faults(stat), Some(789));
        assert_eq!(minor_faults("4711"), None);
    }
}
