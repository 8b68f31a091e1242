//! Connection roles.

/// A connection's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Echo,
    /// Publishes to this topic.
    Publisher(usize),
    Subscriber(usize),
    /// Subscribes to this topic, and does not read.
    Stalled(usize),
}

impl ConnectionRole {
    /// Returns a subscriber's topic.
    pub(super) fn subscribed(self) -> Option<usize> {
        match self {
            Self::Subscriber(topic) | Self::Stalled(topic) => Some(topic),
            Self::Echo | Self::Publisher(_) => None,
        }
    }
}
