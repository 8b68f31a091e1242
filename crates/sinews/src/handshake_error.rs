//! One error type for the handshakes of both sides.

use std::error::Error;
use std::fmt;

use crate::{AcceptError, AtFault, ConnectError};

/// Error of an opening handshake on either side, for a function that both accepts and connects. `?` converts
/// [`AcceptError`] and [`ConnectError`] into it, and it into [`Error`](crate::Error).
///
/// It displays as the error that it contains, and has the same source.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandshakeError {
    /// A server did not accept a request.
    Accept(AcceptError),
    /// A client did not connect.
    Connect(ConnectError),
}

impl HandshakeError {
    /// The status of the response that rejected the handshake, if a response was sent or received.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Accept(error) => error.status(),
            Self::Connect(error) => error.status().map(|status| status.as_u16()),
        }
    }

    /// The side that must act.
    #[must_use]
    pub fn at_fault(&self) -> AtFault {
        match self {
            Self::Accept(error) => error.at_fault(),
            Self::Connect(error) => error.at_fault(),
        }
    }

    /// Whether a timeout ended the handshake: `accept(…).timeout` or `connect(…).timeout`.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Accept(error) => matches!(error, AcceptError::TimedOut(_)),
            Self::Connect(error) => error.is_timeout(),
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept(error) => error.fmt(f),
            Self::Connect(error) => error.fmt(f),
        }
    }
}

impl Error for HandshakeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Accept(error) => error.source(),
            Self::Connect(error) => error.source(),
        }
    }
}

impl From<AcceptError> for HandshakeError {
    fn from(error: AcceptError) -> Self {
        Self::Accept(error)
    }
}

impl From<ConnectError> for HandshakeError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client;
    use crate::server::AcceptPhase;

    #[test]
    fn handshake_error_displays_as_the_converted_error() {
        fn accept() -> Result<(), HandshakeError> {
            Err(AcceptError::TimedOut(AcceptPhase::Head))?;
            Ok(())
        }
        fn connect() -> Result<(), HandshakeError> {
            Err(ConnectError::TimedOut {
                phase: client::ConnectPhase::Handshake,
                peer: "example.com:80".to_owned(),
                timeout: std::time::Duration::from_secs(1),
            })?;
            Ok(())
        }
        let (accept, connect) = (accept().unwrap_err(), connect().unwrap_err());
        assert!(accept.is_timeout() && connect.is_timeout());
        assert_eq!((accept.status(), connect.status()), (Some(408), None));
        assert!(connect.to_string().starts_with("WebSocket handshake with example.com:80"), "{connect}");
    }
}
