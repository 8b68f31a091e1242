//! Where clients are connected.

/// Where a client is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPath {
    Protocol,
    /// One topic.
    Topic,
    /// A response with the messages of topics.
    Topics,
    /// A long poll, whose client returns with another one.
    Poll,
    Stream,
    /// `streams.listen`.
    PlainStream,
    /// An app, whose users have no claims.
    App,
    Dashboard,
}

impl ConnectionPath {
    /// The path, as the API and hooks name it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Protocol => "/ws",
            Self::Topic => "/topics/{name}",
            Self::Topics | Self::Poll => "/topics",
            Self::Stream => "/streams/{name}",
            Self::PlainStream => "streams.listen",
            Self::App => "/app/{key}",
            Self::Dashboard => "/dashboard/feed",
        }
    }
}
