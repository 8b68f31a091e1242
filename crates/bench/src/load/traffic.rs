//! The messages of a socket.

use super::role::ConnectionRole;
use super::tracker::MessageTracker;

/// The messages of one socket: of a connection, or of one of its WebSockets over HTTP/2 or HTTP/3.
#[derive(Debug)]
pub(super) struct SocketTraffic {
    pub(super) role: ConnectionRole,
    pub(super) tracker: MessageTracker,
}
