//! How a connection ended.

use std::fmt;

use sinews_proto::{CloseCode, Expired, PeerMisbehaved};

/// How a connection ended: told once, to the handler's `close`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    code: Option<CloseCode>,
    reason: String,
    cause: Cause,
}

/// Who ended a connection, or what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The peer's Close came first.
    Peer,
    /// The peer's Close answered ours, or this end closed without waiting for it.
    Local,
    /// The peer broke the protocol or a limit.
    Fault(PeerMisbehaved),
    /// A wait ended.
    Expired(Expired),
    /// The peer lagged more than the overflow policy allows.
    Overflow,
    /// The transport ended without a Close.
    Ended,
}

impl Closed {
    pub(crate) fn new(code: Option<CloseCode>, reason: String, cause: Cause) -> Self {
        Self { code, reason, cause }
    }

    /// The code of the peer's Close, or of ours where the peer was at fault or this end did not wait for its Close.
    #[must_use]
    pub fn code(&self) -> Option<CloseCode> {
        self.code
    }

    /// The number that an application expects: the code, 1005 for a Close without one, 1006 where no
    /// Close came (RFC 6455 section 7.1.5).
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

    /// Whether it ended in order, whatever the code: by a Close of either end that the other one answered, or by a Close
    /// of this end that waited for no answer.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(self.cause, Cause::Peer | Cause::Local)
    }

    /// Who ended it, or what.
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
