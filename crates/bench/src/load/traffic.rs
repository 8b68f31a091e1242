//! A socket's messages.

use super::role::ConnectionRole;
use super::tracker::MessageTracker;

/// One socket's messages: a socket is a connection, or a WebSocket on it over HTTP/2 or HTTP/3.
#[derive(Debug)]
pub(super) struct SocketTraffic {
    pub(super) role: ConnectionRole,
    pub(super) tracker: MessageTracker,
}
