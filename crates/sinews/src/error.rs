//! Errors of a connection, and the side at fault.

use std::{fmt, io};

use sinews_proto::{CloseCode, Misuse};
use sinews_session::{Cause, Closed};

/// An error that ends a connection, or rejects a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The connection has ended. [`Closed::cause`] tells why: a Close of either side, a peer that violated the
    /// protocol or a limit, a timeout, or a transport that ended without a Close.
    Closed(Closed),
    /// The call is not possible: nothing was sent, and the connection stays open.
    Misuse(Misuse),
    /// The transport failed. The kind [`WouldBlock`](io::ErrorKind::WouldBlock) comes only from streams that are
    /// nonblocking or block with a timeout: the call was not completed in time, and the connection stays open.
    Io(io::Error),
}

/// The side that must act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtFault {
    /// The peer violated the protocol or a limit, or was too slow.
    Peer,
    /// The caller of this library: [`Misuse`], or a send on a connection that this side has closed.
    Caller,
    /// The network failed, or the peer's process ended.
    Transport,
    /// No side: the peer sent a Close, with any code.
    Nobody,
}

impl Error {
    /// The side that must act.
    #[must_use]
    pub fn at_fault(&self) -> AtFault {
        match self {
            Self::Closed(closed) => match closed.cause() {
                Cause::Fault(_) | Cause::Expired(_) | Cause::Overflow => AtFault::Peer,
                Cause::Local => AtFault::Caller,
                Cause::Ended => AtFault::Transport,
                _ => AtFault::Nobody,
            },
            Self::Misuse(_) => AtFault::Caller,
            Self::Io(_) => AtFault::Transport,
        }
    }

    /// The code of the Close frame that ended the connection: the peer's or, where the peer was at fault, ours.
    #[must_use]
    pub fn close_code(&self) -> Option<CloseCode> {
        match self {
            Self::Closed(closed) => closed.code(),
            _ => None,
        }
    }

    /// Whether the connection has ended. It has not after [`Misuse`], nor where the transport [would
    /// block](io::ErrorKind::WouldBlock).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::Misuse(_) => false,
            Self::Io(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(closed) => closed.fmt(f),
            Self::Misuse(misuse) => misuse.fmt(f),
            Self::Io(error) => write!(f, "transport: {error}"),
        }
    }
}

impl std::error::Error for Error {
    /// The source behind the error that [`Display`](fmt::Display) already includes, so that a report shows each error
    /// once.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Closed(_) | Self::Misuse(_) => None,
            Self::Io(error) => error.source(),
        }
    }
}

impl From<Misuse> for Error {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
