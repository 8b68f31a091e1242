//! The backends of the server, which must all pass every check; and their availability on this machine.

use std::path::Path;

use clap::ValueEnum;

use crate::count::Count;
use crate::process;
use crate::server::Server;

/// The event backend of the sockets.
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

impl Permitted {
    /// Prints the skipped backends to the standard output.
    pub(crate) fn print_skipped(&self) -> Count {
        self.refused.iter().map(Count::skip).sum()
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

    /// Asks the program which of the chosen backends work here. A failure to start for another reason is an
    /// error.
    pub(crate) fn permitted(self, binary: &Path) -> Result<Permitted, String> {
        let chosen: &[Backend] = match self {
            Self::Poll => &[Backend::Poll],
            Self::Uring => &[Backend::Uring],
            Self::Both => &[Backend::Poll, Backend::Uring],
        };
        let mut permitted = Permitted::default();
        for backend in chosen {
            let log = process::log(&format!("backend-{}", backend.name()));
            match Server::start(binary, &["--backend", backend.name()], &log) {
                Ok(_) => permitted.backends.push(*backend),
                Err(fault) => permitted.refused.push(refused_in(&fault, *backend).ok_or(fault)?),
            }
        }
        Ok(permitted)
    }
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
        assert!(Choice::Both.permitted(Path::new("/bin/false")).is_err());
        let permitted = Permitted { backends: Vec::new(), refused: vec!["why".to_owned()] };
        assert_eq!(permitted.print_skipped(), Count::SKIPPED);
    }
}
