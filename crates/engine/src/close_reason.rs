//! Why a connection is closed.

use std::io;

/// The reason for closing a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Io::close`](crate::Io::close) was called.
    Requested,
    /// Both directions ended in order: the peer's, and the local direction by [`Io::shutdown`](crate::Io::shutdown).
    Finished,
    /// The peer reset the connection, or was gone during a send.
    Reset,
    /// [`Io::stop`](crate::Io::stop) stops the loop.
    Stopped,
    /// The socket failed otherwise, for instance by a TCP timeout; or the connection attempt failed, for
    /// instance because the peer refused it ([`ConnectionRefused`](std::io::ErrorKind::ConnectionRefused)).
    Error(io::Error),
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected => Self::Reset,
            _ => Self::Error(error),
        }
    }
}
