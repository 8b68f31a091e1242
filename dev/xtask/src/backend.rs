//! The server's backends, which must all pass every check; and their availability on this machine.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::process;

/// Time limit for a server that starts. It needs milliseconds; a loaded machine more, and may stall.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The end of the server's output once its backend works.
const READY: &str = "Ctrl-C stops.";

/// The sockets' event backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Poll,
    Uring,
}

impl Backend {
    /// Returns the name for `--backend` of `sinews serve` and `SINEWS_TEST_BACKEND` of the Rust tests.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Uring => "uring",
        }
    }
}

/// Values of a task's `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    Poll,
    Uring,
    Both,
}

/// The backends to test, and the reasons to skip the remaining backends.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Permitted {
    pub(crate) backends: Vec<Backend>,
    pub(crate) refused: Vec<String>,
}

impl Choice {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Uring => "uring",
            Self::Both => "both",
        }
    }

    /// Asks the program which chosen backends work here. A failure to start for another reason is an error.
    pub(crate) fn permitted(self, binary: &Path) -> Result<Permitted, String> {
        let chosen: &[Backend] = match self {
            Self::Poll => &[Backend::Poll],
            Self::Uring => &[Backend::Uring],
            Self::Both => &[Backend::Poll, Backend::Uring],
        };
        let mut permitted = Permitted::default();
        for backend in chosen {
            match start(binary, *backend) {
                Ok(()) => permitted.backends.push(*backend),
                Err(fault) => permitted.refused.push(refused_in(&fault, *backend).ok_or(fault)?),
            }
        }
        Ok(permitted)
    }
}

/// Starts the server, and stops it once its backend works.
fn start(binary: &Path, backend: Backend) -> Result<(), String> {
    let log = process::log(&format!("backend-{}", backend.name()));
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--backend", backend.name()]);
    let mut server = process::spawn(&mut command, &log)?;
    let deadline = Instant::now() + START_LIMIT;
    let fault = loop {
        match server.try_wait().ok().flatten() {
            Some(status) => break Some(format!("the server ended: {status}")),
            None if process::read(&log).contains(READY) => break None,
            None if Instant::now() >= deadline => break Some("the server is not ready".to_owned()),
            None => thread::sleep(process::POLL_EVERY),
        }
    };
    // Both fail only if the process has already exited.
    let _ = server.kill();
    let _ = server.wait();
    fault.map_or(Ok(()), |why| Err(format!("{why}\n{}", process::tail(&log, process::TAIL_LINES))))
}

/// Extracts the program's reason: its error begins with the option.
fn refused_in(fault: &str, backend: Backend) -> Option<String> {
    let prefix = format!("sinews: --backend {}: ", backend.name());
    let why = fault.lines().find_map(|line| line.strip_prefix(&prefix))?;
    Some(format!("backend {}: {why}", backend.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_backend_is_recognized_by_the_error_text_and_other_failures_are_errors() {
        let fault = "the server ended: exit status: 1\nsinews: --backend uring: not permitted (EPERM)";
        let why = refused_in(fault, Backend::Uring);
        assert_eq!(why.as_deref(), Some("backend uring: not permitted (EPERM)"));
        assert_eq!(refused_in(fault, Backend::Poll), None);
        assert_eq!(refused_in("the server ended: signal: 6 (SIGABRT)", Backend::Uring), None);
        let why = Choice::Both.permitted(Path::new("/bin/false")).expect_err("it ends at once");
        assert!(why.starts_with("the server ended: exit status: 1"), "{why}");
    }
}
