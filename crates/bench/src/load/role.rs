//! Roles of connections.

/// Role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Echo,
    /// Publishes to this topic.
    Publisher(usize),
    Subscriber(usize),
}
