//! The backends of the server, each of which has to pass everything; and whether this machine permits them.

use std::path::Path;

use clap::ValueEnum;

use crate::count::Count;
use crate::process;
use crate::server::Server;

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

/// Why the machine refuses the backend, in the program's words: its error begins with the option.
fn refusal(backend: Backend, binary: &Path) -> Result<Option<String>, String> {
    let log = process::target().join(format!("xtask/backend-{}.log", backend.name()));
    match Server::start(binary, &["--backend", backend.name()], &log) {
        Ok(_) => Ok(None),
        Err(fault) => {
            let prefix = format!("sinews: --backend {}: ", backend.name());
            let words = fault.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned));
            words.map(|why| Some(format!("backend {}: {why}", backend.name()))).ok_or(fault)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A program that says this and fails.
    fn fails_with(words: &str, name: &str) -> PathBuf {
        let path = process::target().join("xtask").join(name);
        fs::create_dir_all(process::target().join("xtask")).expect("the target folder is writable");
        fs::write(&path, format!("#!/bin/sh\necho '{words}' >&2\nexit 1\n")).expect("it is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    #[test]
    fn a_refused_backend_is_skipped_in_the_words_of_the_program() {
        let program = fails_with("sinews: --backend uring: not permitted (EPERM)", "self-test-refused");
        let why = refusal(Backend::Uring, &program);
        assert_eq!(why, Ok(Some("backend uring: not permitted (EPERM)".to_owned())));
        let permitted = Choice::Uring.permitted(&program).expect("it was refused in order");
        assert_eq!((permitted.backends.len(), permitted.print_skipped()), (0, Count::SKIPPED));
    }

    #[test]
    fn a_program_that_fails_otherwise_is_no_reason_to_skip() {
        let program = fails_with("thread panicked", "self-test-broken");
        assert!(refusal(Backend::Uring, &program).is_err());
        assert!(Choice::Both.permitted(&program).is_err());
    }
}
