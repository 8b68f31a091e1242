//! Error of binding a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::listen::ListenTarget;

/// Error of [`Server::bind`](crate::Server::bind): an address could not be bound, an event loop could not be created,
/// or a setting is invalid.
#[derive(Debug)]
pub struct BindError {
    pub(super) fault: BindFault,
    pub(super) error: io::Error,
}

#[derive(Debug)]
pub(super) enum BindFault {
    Listen(ListenTarget),
    Loop,
    Setting,
}

impl BindError {
    pub(super) fn invalid(what: String) -> Self {
        Self { fault: BindFault::Setting, error: io::Error::new(io::ErrorKind::InvalidInput, what) }
    }

    /// Returns the TCP address at fault, if any.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.fault {
            BindFault::Listen(ListenTarget::Tcp(address)) => Some(address),
            BindFault::Listen(ListenTarget::Unix { .. }) | BindFault::Loop | BindFault::Setting => None,
        }
    }

    /// Returns the path of the Unix socket at fault, if any.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.fault {
            BindFault::Listen(ListenTarget::Unix { path, .. }) => Some(path),
            BindFault::Listen(ListenTarget::Tcp(_)) | BindFault::Loop | BindFault::Setting => None,
        }
    }

    /// Returns the system error; [`InvalidInput`](io::ErrorKind::InvalidInput) for a setting.
    #[must_use]
    pub fn io_error(&self) -> &io::Error {
        &self.error
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            BindFault::Listen(ListenTarget::Tcp(address)) => {
                write!(f, "cannot listen on {address}: {}", self.error)
            }
            BindFault::Listen(ListenTarget::Unix { path, .. }) => {
                write!(f, "cannot listen at {}: {}", path.display(), self.error)
            }
            BindFault::Loop => write!(f, "cannot start an event loop: {}", self.error),
            BindFault::Setting => write!(f, "cannot serve: {}", self.error),
        }
    }
}

impl std::error::Error for BindError {
    /// Returns the cause below the error that [`Display`](fmt::Display) prints.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
