//! Errors of a server handshake.

use std::{fmt, io};

use sinews_proto::InvalidConfig;
use sinews_proto::handshake::{HandshakeMisuse, Refusal};
use sinews_proto::http::HeadError;

use crate::AtFault;

/// An error of a server handshake. The client has received a response where one was possible.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcceptError {
    /// The handshake took longer than [`Accept::timeout`](super::Accept::timeout). The client gets 408 if its head is
    /// not complete, 503 if the decision on it is not made.
    TimedOut(AcceptPhase),
    /// The head is not HTTP/1.x, or exceeds the [limits](super::Accept::head_limits). The client gets
    /// [`HeadError::status`].
    Head(HeadError),
    /// The request was rejected: it is not a WebSocket handshake, it is from a foreign origin, or your callback
    /// rejected it. The client gets [`Refusal::status`] and [`Refusal::body`].
    Rejected(Refusal),
    /// The client closed the connection before its head was complete, after this many bytes. 0: it sent nothing, like
    /// a port scanner or a load balancer's health check.
    ClientLeft {
        /// Received bytes of the head.
        received: usize,
    },
    /// Your reply, or the argument of a setter, is not valid on the wire: a subprotocol that is not a token or not
    /// offered by the client, a header with a line break. The client gets 500.
    Misuse(HandshakeMisuse),
    /// The [`Config`](crate::Config) is invalid. The client gets 500.
    Config(InvalidConfig),
    /// The request was received over a connection of hyper that cannot change its protocol: it is not served
    /// `with_upgrades`, or the upgrade was taken already. The client gets 500.
    NotUpgradable,
    /// The transport failed, in this phase.
    Io(AcceptPhase, io::Error),
}

/// The phase of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptPhase {
    /// Receiving the head of the request.
    Head,
    /// Waiting for the application's decision.
    Decision,
    /// Sending the response.
    Response,
}

impl AcceptError {
    /// The side that must act.
    #[must_use]
    pub fn at_fault(&self) -> AtFault {
        match self {
            Self::TimedOut(AcceptPhase::Decision)
            | Self::Misuse(_)
            | Self::Config(_)
            | Self::NotUpgradable => AtFault::Caller,
            Self::Rejected(refusal) if refusal.status() < 400 => AtFault::Nobody,
            Self::Rejected(refusal) if refusal.status() >= 500 && refusal.status() != 501 => AtFault::Caller,
            Self::TimedOut(_) | Self::Head(_) | Self::Rejected(_) => AtFault::Peer,
            Self::ClientLeft { .. } | Self::Io(..) => AtFault::Transport,
        }
    }

    /// The status sent to the client, if any.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.status())
    }

    /// The response to the client.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::TimedOut(AcceptPhase::Head) => plain(408, "request head not received in time"),
            Self::TimedOut(AcceptPhase::Decision) => plain(503, "no decision in time"),
            Self::TimedOut(AcceptPhase::Response) | Self::ClientLeft { .. } | Self::Io(..) => None,
            Self::Head(error) => Some(Refusal::from(*error)),
            Self::Rejected(refusal) => Some(refusal.clone()),
            // The text is for the caller, and is not sent to the client.
            Self::Misuse(_) | Self::Config(_) | Self::NotUpgradable => plain(500, "internal error"),
        }
    }
}

/// Statuses and headers here are valid, so the result is always `Some`.
fn plain(status: u16, reason: &str) -> Option<Refusal> {
    let refusal = Refusal::new(status).ok()?;
    Some(refusal.with_header("Content-Type", "text/plain; charset=utf-8").ok()?.with_body(reason))
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(phase) => write!(f, "handshake timed out: {phase}"),
            Self::Head(error) => write!(f, "bad request: {error}"),
            Self::Rejected(refusal) => refusal.fmt(f),
            Self::ClientLeft { received } => {
                write!(f, "client disconnected after {received} bytes of its request head")
            }
            Self::Misuse(misuse) => misuse.fmt(f),
            Self::Config(invalid) => invalid.fmt(f),
            Self::NotUpgradable => f.write_str("the connection of this request cannot be upgraded"),
            Self::Io(phase, error) => write!(f, "transport: {error}: {phase}"),
        }
    }
}

impl fmt::Display for AcceptPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "request head not received",
            Self::Decision => "no decision on the request",
            Self::Response => "response not sent",
        })
    }
}

impl std::error::Error for AcceptError {
    /// The source behind the error that [`Display`](fmt::Display) already includes.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => error.source(),
            _ => None,
        }
    }
}
