//! Options that all connections share.

use sinews_server::{Config, DeflateMode};

/// Options for the hub's routes.
#[derive(Clone, Debug)]
pub(crate) struct RouteOptions {
    /// Largest message in either direction, in bytes.
    pub(crate) max_message: usize,
    pub(crate) websocket: Config,
    /// WebSocket compression; `None` rejects it.
    pub(crate) deflate: Option<DeflateMode>,
    /// Messages a second of each connection.
    pub(crate) message_rate: Option<u32>,
    /// Whether the router has the pages, and the echo.
    pub(crate) has_pages: bool,
    /// Tag of the listeners that serve the HTTP API, the metrics and the pages; `None`: all listeners do.
    pub(crate) admin_tag: Option<u8>,
    /// The Pusher protocol's path prefix, besides the paths without it.
    #[cfg(feature = "pusher")]
    pub(crate) pusher_prefix: Option<String>,
    /// Memory for all Pusher recoveries; `None` for the default.
    #[cfg(feature = "pusher")]
    pub(crate) pusher_recovery_bytes: Option<usize>,
    /// Counts the dropped log lines.
    pub(crate) dropped_log_lines: Option<fn() -> u64>,
}
