//! A socket's messages.

use super::role::ConnectionRole;
use super::tracker::MessageTracker;

/// One socket's messages: for a connection, or for one WebSocket over HTTP/2 or HTTP/3.
#[derive(Debug)]
pub(super) struct SocketTraffic {
    pub(super) role: ConnectionRole,
    pub(super) tracker: MessageTracker,
}
