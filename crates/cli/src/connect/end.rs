//! The end of a run: a message for the terminal, and an exit code for scripts.

use std::io::{self, Write as _};
use std::process::ExitCode;

use sinews::client::ConnectError;
use sinews::{Cause, CloseCode, Closed, Error};
use sinews_bench::trust;
use sinews_server::escape::escape_line;

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunEnd {
    pub(crate) kind: EndKind,
    /// Human-readable message; empty if there is none.
    pub(crate) message: String,
}

/// Reasons with their exit codes. `--help` and docs/book/src/reference/connect.md list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum EndKind {
    Success = 0,
    Failed = 1,
    Rejected = 3,
    Abnormal = 4,
    Violation = 5,
    TimedOut = 6,
    Mismatch = 7,
}

impl RunEnd {
    pub(crate) fn new(kind: EndKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(EndKind::Failed, message)
    }

    /// Returns an I/O error on the named file or device.
    pub(crate) fn io(what: impl std::fmt::Display, error: &io::Error) -> Self {
        Self::failed(format!("{what}: {}", trust::explain(error)))
    }

    pub(crate) fn code(&self) -> u8 {
        self.kind as u8
    }

    /// Prints the message unless the run succeeded.
    pub(crate) fn exit(&self) -> ExitCode {
        if self.kind != EndKind::Success && !self.message.is_empty() {
            print_error(&self.message);
        }
        ExitCode::from(self.code())
    }
}

/// Prints a line, which may have texts from the peer, to standard error in one write. Write errors are ignored.
pub(crate) fn print_error(message: &str) {
    let _ = io::stderr().write_all(format!("sinews: {}\n", escape_line(message)).as_bytes());
}

impl From<ConnectError> for RunEnd {
    fn from(error: ConnectError) -> Self {
        let kind = match &error {
            ConnectError::Rejected(_)
            | ConnectError::Handshake(_)
            | ConnectError::NoExtendedConnect { .. }
            | ConnectError::Redirect { .. } => EndKind::Rejected,
            error if error.is_timeout() => EndKind::TimedOut,
            _ => EndKind::Failed,
        };
        Self::new(kind, trust::explain(&error))
    }
}

impl From<&Closed> for RunEnd {
    fn from(closed: &Closed) -> Self {
        let in_order = [None, Some(CloseCode::NORMAL), Some(CloseCode::GOING_AWAY)];
        let kind = match closed.cause() {
            Cause::Local => EndKind::Success,
            Cause::Peer if in_order.contains(&closed.code()) => EndKind::Success,
            Cause::Fault(_) => EndKind::Violation,
            Cause::Expired(_) => EndKind::TimedOut,
            _ => EndKind::Abnormal,
        };
        Self::new(kind, closed.to_string())
    }
}

impl From<&Error> for RunEnd {
    fn from(error: &Error) -> Self {
        match error {
            Error::Closed(closed) => closed.into(),
            error => Self::new(EndKind::Abnormal, error.to_string()),
        }
    }
}
