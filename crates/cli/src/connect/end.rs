//! The end of a run: a message for the terminal, and an exit code for scripts.

use std::io::{self, Write as _};
use std::process::ExitCode;

use sinews::client::ConnectError;
use sinews::{Cause, CloseCode, Closed, Error};
use sinews_bench::trust;

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) kind: Kind,
    /// Human-readable message; empty if there is none.
    pub(crate) words: String,
}

/// Reasons with their exit codes. `--help` and docs/book/src/reference/connect.md list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    Fine = 0,
    Trouble = 1,
    Refused = 3,
    Abnormal = 4,
    Violation = 5,
    TimedOut = 6,
    Differs = 7,
}

impl End {
    pub(crate) fn new(kind: Kind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into() }
    }

    pub(crate) fn trouble(words: impl Into<String>) -> Self {
        Self::new(Kind::Trouble, words)
    }

    /// An I/O error of the named file or device.
    pub(crate) fn io(what: impl std::fmt::Display, error: &io::Error) -> Self {
        Self::trouble(format!("{what}: {}", trust::explain(error)))
    }

    pub(crate) fn code(&self) -> u8 {
        self.kind as u8
    }

    /// Prints the message unless the run succeeded.
    pub(crate) fn exit(&self) -> ExitCode {
        if self.kind != Kind::Fine && !self.words.is_empty() {
            tell(&self.words);
        }
        ExitCode::from(self.code())
    }
}

/// Prints a line to standard error in one write. Write errors are ignored.
pub(crate) fn tell(words: &str) {
    let _ = io::stderr().write_all(format!("sinews: {words}\n").as_bytes());
}

impl From<ConnectError> for End {
    fn from(error: ConnectError) -> Self {
        let kind = match &error {
            ConnectError::Rejected(_) | ConnectError::Handshake(_) | ConnectError::Redirect { .. } => {
                Kind::Refused
            }
            error if error.is_timeout() => Kind::TimedOut,
            _ => Kind::Trouble,
        };
        Self::new(kind, trust::explain(&error))
    }
}

impl From<&Closed> for End {
    fn from(closed: &Closed) -> Self {
        let in_order = [None, Some(CloseCode::NORMAL), Some(CloseCode::GOING_AWAY)];
        let kind = match closed.cause() {
            Cause::Local => Kind::Fine,
            Cause::Peer if in_order.contains(&closed.code()) => Kind::Fine,
            Cause::Fault(_) => Kind::Violation,
            Cause::Expired(_) => Kind::TimedOut,
            _ => Kind::Abnormal,
        };
        Self::new(kind, closed.to_string())
    }
}

impl From<&Error> for End {
    fn from(error: &Error) -> Self {
        match error {
            Error::Closed(closed) => closed.into(),
            error => Self::new(Kind::Abnormal, error.to_string()),
        }
    }
}
