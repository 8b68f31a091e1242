//! Hook kinds.

/// The event about which the application decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookKind {
    Connect,
    Refresh,
    Subscribe,
    Publish,
    Rpc,
}

impl HookKind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Connect, Self::Refresh, Self::Subscribe, Self::Publish, Self::Rpc];

    /// The name in requests and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Refresh => "refresh",
            Self::Subscribe => "subscribe",
            Self::Publish => "publish",
            Self::Rpc => "rpc",
        }
    }

    /// Whether a request may be repeated after the application has possibly executed it.
    pub(crate) const fn is_idempotent(self) -> bool {
        matches!(self, Self::Connect | Self::Refresh | Self::Subscribe)
    }
}
