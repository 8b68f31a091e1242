//! The reason for a connection's end.

use std::fmt;

use sinews_proto::{CloseCode, Expired, PeerMisbehaved};

/// An ended connection's close code, reason and cause. The handler's `close` receives it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    code: Option<CloseCode>,
    reason: String,
    cause: Cause,
}

/// The cause of a connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The peer sent its Close first.
    Peer,
    /// The peer answered the local Close, or this end closed without waiting for an answer.
    Local,
    /// The peer violated the protocol or a limit.
    Fault(PeerMisbehaved),
    /// A timeout expired.
    Expired(Expired),
    /// The outbound queue exceeded the limit and the overflow policy closed the connection.
    Overflow,
    /// The transport ended without a Close.
    Ended,
}

impl Closed {
    pub(crate) fn new(code: Option<CloseCode>, reason: String, cause: Cause) -> Self {
        Self { code, reason, cause }
    }

    /// The code in the peer's Close. It is the code of the local Close if the peer was at fault or if this end did not
    /// wait for the peer's Close.
    #[must_use]
    pub fn code(&self) -> Option<CloseCode> {
        self.code
    }

    /// The status code for applications: the close code, 1005 for a Close without a code, 1006 without a
    /// Close (RFC 6455 section 7.1.5).
    #[must_use]
    pub fn status(&self) -> u16 {
        match (self.code, self.cause) {
            (Some(code), _) => code.as_u16(),
            (None, Cause::Peer | Cause::Local) => 1005,
            (None, _) => 1006,
        }
    }

    /// The reason, possibly empty.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the closing handshake completed, with any code: one end answered the Close of the other end,
    /// or this end sent a Close that requires no answer.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(self.cause, Cause::Peer | Cause::Local)
    }

    /// Returns the cause.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status();
        let ended = |f: &mut fmt::Formatter<'_>, by: &str| match &*self.reason {
            "" => write!(f, "closed by {by} with {status}"),
            reason => write!(f, "closed by {by} with {status}: {reason}"),
        };
        match self.cause {
            Cause::Peer => ended(f, "the peer"),
            Cause::Local => ended(f, "this end"),
            Cause::Fault(fault) => write!(f, "peer at fault: {fault}"),
            Cause::Expired(wait) => wait.fmt(f),
            Cause::Overflow => f.write_str("peer too slow"),
            Cause::Ended => f.write_str("transport ended without a Close"),
        }
    }
}
