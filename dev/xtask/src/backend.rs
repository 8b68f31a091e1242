//! The backends of the server, each of which has to pass everything; and whether this machine permits them.

use std::path::Path;

use clap::ValueEnum;

use crate::count::Count;
use crate::process;
use crate::server::{self, Server};

/// What waits for the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Poll,
    Uring,
}

impl Backend {
    /// As `--backend` of `sinews serve` and `SINEWS_TEST_BACKEND` of the Rust tests have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Uring => "uring",
        }
    }
}

/// What `--backend` of a task asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    Poll,
    Uring,
    Both,
}

/// The backends to test, and why others cannot be.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Permitted {
    pub(crate) backends: Vec<Backend>,
    pub(crate) refused: Vec<String>,
}

impl Permitted {
    /// Says what is skipped, on the standard output.
    pub(crate) fn print_skipped(&self) -> Count {
        self.refused.iter().for_each(|why| println!("skipped: {why}"));
        self.refused.iter().map(|_| Count::SKIPPED).sum()
    }
}

impl Choice {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Uring => "uring",
            Self::Both => "both",
        }
    }

    /// Asks the program itself which of the chosen backends work here. That it does not start for another
    /// reason is an error.
    pub(crate) fn permitted(self, binary: &Path) -> Result<Permitted, String> {
        let chosen: &[Backend] = match self {
            Self::Poll => &[Backend::Poll],
            Self::Uring => &[Backend::Uring],
            Self::Both => &[Backend::Poll, Backend::Uring],
        };
        let mut permitted = Permitted::default();
        for backend in chosen {
            match refusal(*backend, binary)? {
                None => permitted.backends.push(*backend),
                Some(why) => permitted.refused.push(why),
            }
        }
        Ok(permitted)
    }
}

impl Choice {
    /// Whether io_uring is wanted and permitted here: compio has nothing else.
    pub(crate) fn permitted_uring(self, binary: Option<&Path>) -> Result<Permitted, String> {
        match self {
            Self::Poll => Ok(Permitted::default()),
            Self::Uring | Self::Both => Self::Uring.permitted(&server::binary(binary)?),
        }
    }
}

/// Why the machine refuses the backend, if it does.
fn refusal(backend: Backend, binary: &Path) -> Result<Option<String>, String> {
    let log = process::target().join(format!("xtask/backend-{}.log", backend.name()));
    match Server::start(binary, &["--backend", backend.name()], &log) {
        Ok(_) => Ok(None),
        Err(fault) => refused_in(&fault, backend).map(Some).ok_or(fault),
    }
}

/// The program's words for it: its error begins with the option.
fn refused_in(fault: &str, backend: Backend) -> Option<String> {
    let prefix = format!("sinews: --backend {}: ", backend.name());
    let why = fault.lines().find_map(|line| line.strip_prefix(&prefix))?;
    Some(format!("backend {}: {why}", backend.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_backend_is_known_by_the_words_of_the_program() {
        let fault = "the server ended: exit status: 1\nsinews: --backend uring: not permitted (EPERM)";
        let why = refused_in(fault, Backend::Uring);
        assert_eq!(why.as_deref(), Some("backend uring: not permitted (EPERM)"));
        assert_eq!(refused_in(fault, Backend::Poll), None);
        assert_eq!(
            refused_in("the server ended: signal: 6 (SIGABRT)\nthread panicked", Backend::Uring),
            None
        );
    }

    #[test]
    fn a_program_that_fails_otherwise_is_no_reason_to_skip() {
        assert!(Choice::Both.permitted(Path::new("/bin/false")).is_err());
        let permitted = Permitted { backends: Vec::new(), refused: vec!["why".to_owned()] };
        assert_eq!(permitted.print_skipped(), Count::SKIPPED);
    }
}
