//! Why a request did not become a WebSocket.

use std::{fmt, io};

use sinews_proto::InvalidConfig;
use sinews_proto::handshake::{HandshakeMisuse, Refusal};
use sinews_proto::http::HeadError;

use crate::AtFault;

/// Why a request did not become a WebSocket. Where an answer was possible, the client has got it.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcceptError {
    /// The handshake took longer than [`Accept::timeout`](super::Accept::timeout). The client was told 408 if its
    /// head had not come, 503 if the decision on it had not.
    TimedOut(Phase),
    /// No head of HTTP/1.x, or one above the [limits](super::Accept::head_limits). The client was told
    /// [`HeadError::status`].
    Head(HeadError),
    /// No: because it is no request for a WebSocket, of a foreign origin, or by your callback.
    /// [`Refusal::status`] and [`Refusal::body`] are what the client was told.
    Refused(Refusal),
    /// The client left before its head was there, after so many bytes. 0: it never said anything, as a port scanner
    /// or a load balancer that checks whether somebody listens.
    ClientLeft {
        /// Bytes of the head that came.
        received: usize,
    },
    /// Your answer may not be on the wire, or a setter was given what may not: a subprotocol that is no token or that
    /// the client does not offer, a header with a line break. The client was told 500.
    Misuse(HandshakeMisuse),
    /// No connection can work with these settings. The client was told 500.
    Config(InvalidConfig),
    /// The request came over a connection of hyper that cannot change its protocol: it is not served
    /// `with_upgrades`, or something else has taken the upgrade. The client was told 500.
    NotUpgradable,
    /// The transport failed, in this phase.
    Io(Phase, io::Error),
}

/// How far a handshake came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The head of the request was to come.
    Head,
    /// The application was to decide on it.
    Decision,
    /// The response was to leave.
    Response,
}

impl AcceptError {
    /// Who must act.
    #[must_use]
    pub fn at_fault(&self) -> AtFault {
        match self {
            Self::TimedOut(Phase::Decision) | Self::Misuse(_) | Self::Config(_) | Self::NotUpgradable => {
                AtFault::Caller
            }
            Self::Refused(refusal) if refusal.status() < 400 => AtFault::Nobody,
            Self::Refused(refusal) if refusal.status() >= 500 && refusal.status() != 501 => AtFault::Caller,
            Self::TimedOut(_) | Self::Head(_) | Self::Refused(_) => AtFault::Peer,
            Self::ClientLeft { .. } | Self::Io(..) => AtFault::Transport,
        }
    }

    /// The status that the client was told, if it was told any.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.status())
    }

    /// What the client is told.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::TimedOut(Phase::Head) => plain(408, "no whole request in time"),
            Self::TimedOut(Phase::Decision) => plain(503, "no decision in time"),
            Self::TimedOut(Phase::Response) | Self::ClientLeft { .. } | Self::Io(..) => None,
            Self::Head(error) => Some(Refusal::from(*error)),
            Self::Refused(refusal) => Some(refusal.clone()),
            // The text is for the caller, and no business of a client.
            Self::Misuse(_) | Self::Config(_) | Self::NotUpgradable => plain(500, "internal error"),
        }
    }
}

/// The statuses and headers here are sound, so there always is one.
fn plain(status: u16, reason: &str) -> Option<Refusal> {
    let refusal = Refusal::new(status).ok()?;
    Some(refusal.with_header("Content-Type", "text/plain; charset=utf-8").ok()?.with_body(reason))
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(phase) => write!(f, "handshake timed out: {phase}"),
            Self::Head(error) => write!(f, "bad request: {error}"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::ClientLeft { received } => {
                write!(f, "the client left after {received} bytes of its request")
            }
            Self::Misuse(misuse) => misuse.fmt(f),
            Self::Config(invalid) => invalid.fmt(f),
            Self::NotUpgradable => f.write_str("the connection of this request cannot be upgraded"),
            Self::Io(phase, error) => write!(f, "transport: {error}: {phase}"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "the request had not come",
            Self::Decision => "it was not decided on",
            Self::Response => "the response had not left",
        })
    }
}

impl std::error::Error for AcceptError {
    /// The cause behind the one that [`Display`](fmt::Display) has named already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => error.source(),
            _ => None,
        }
    }
}
