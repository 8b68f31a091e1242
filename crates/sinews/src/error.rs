//! What goes wrong, and whose fault it is.

use std::{fmt, io};

use sinews_proto::{CloseCode, Misuse};
use sinews_session::{Cause, Closed};

/// Why a connection cannot go on, or a call cannot be done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The connection is over. [`Closed::cause`] says by whom or what: a Close of either side, a peer that broke the
    /// protocol or a limit, a wait that ended, a transport that ended without a Close.
    Closed(Closed),
    /// The call is not possible: nothing was sent, and the connection goes on.
    Misuse(Misuse),
    /// The transport failed. Of the kind [`WouldBlock`](io::ErrorKind::WouldBlock), which comes from streams that block
    /// with a timeout, or not at all, it says only that the call was not done in time: the connection goes on.
    Io(io::Error),
}

/// Who must act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtFault {
    /// The other end broke the protocol or a limit, or was too slow.
    Peer,
    /// The caller of this library: [`Misuse`], or sending on a connection that this end has closed.
    Caller,
    /// The network, or the end of the other program.
    Transport,
    /// Nobody: the other end closed the connection in order.
    Nobody,
}

impl Error {
    /// Who must act.
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

    /// The code of the Close frame that ended the connection, the peer's or, where the peer was at fault, ours.
    #[must_use]
    pub fn close_code(&self) -> Option<CloseCode> {
        match self {
            Self::Closed(closed) => closed.code(),
            _ => None,
        }
    }

    /// Whether the connection is over. After [`Misuse`] it is not, nor where the transport
    /// [would block](io::ErrorKind::WouldBlock).
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
    /// The cause behind the one that [`Display`](fmt::Display) has named already, so that a report names each once.
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
