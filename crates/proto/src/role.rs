//! The two ends of a connection.

/// The role of this end: it determines masking and which end closes the transport first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a connection has two ends")]
pub enum Role {
    /// This end answered the handshake.
    Server,
    /// This end started the handshake.
    Client,
}
