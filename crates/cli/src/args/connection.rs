//! Limits and timeouts of each connection.

use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::config::units::{Bytes, SomeWait, WaitOrOff};

/// `[http]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Maximum size of a request body, in bytes [default: that of --max-message]
    #[arg(long, value_name = "BYTES", env = "SINEWS_HTTP_MAX_BODY")]
    pub(crate) http_max_body: Option<Bytes>,

    /// Timeout of a request's head, including the handshakes of WebSocket and TLS [default: 10s]
    #[arg(long, value_name = "TIME", env = "SINEWS_HTTP_HEAD_TIMEOUT")]
    pub(crate) http_head_timeout: Option<SomeWait>,

    /// Timeout of an idle HTTP connection after a response [default: 75s]
    #[arg(long, value_name = "TIME", env = "SINEWS_HTTP_KEEP_ALIVE_TIMEOUT")]
    pub(crate) http_keep_alive_timeout: Option<SomeWait>,

    /// Minimum average upload rate of a request body, in bytes per second, after its first 20 seconds; 0 for no limit
    /// [default: 500]
    #[arg(long, value_name = "BYTES", env = "SINEWS_HTTP_MIN_UPLOAD_RATE")]
    pub(crate) http_min_upload_rate: Option<u64>,
}

/// `[websocket]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "WebSocket")]
pub(crate) struct WebSocketArgs {
    /// Time without data from the client before a ping is sent; `off` sends no pings [default: 25s]
    #[arg(long, value_name = "TIME", env = "SINEWS_WEBSOCKET_PING_INTERVAL")]
    pub(crate) websocket_ping_interval: Option<WaitOrOff>,

    /// Timeout of the answer to a ping: any received byte counts [default: 20s]
    #[arg(long, value_name = "TIME", env = "SINEWS_WEBSOCKET_PONG_TIMEOUT")]
    pub(crate) websocket_pong_timeout: Option<SomeWait>,

    /// Timeout without data in either direction except pings; `off` for no timeout [default: 120s]
    #[arg(long, value_name = "TIME", env = "SINEWS_WEBSOCKET_IDLE_TIMEOUT")]
    pub(crate) websocket_idle_timeout: Option<WaitOrOff>,

    /// High-water mark of a client's outbound queue in bytes, above which reads from the client are paused [default:
    /// 64k]
    #[arg(long, value_name = "BYTES", env = "SINEWS_WEBSOCKET_HIGH_WATER")]
    pub(crate) websocket_high_water: Option<Bytes>,

    /// Maximum size of a client's outbound queue in bytes; --websocket-overflow selects the action above it [default:
    /// 1m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_WEBSOCKET_MAX_OUTBOUND")]
    pub(crate) websocket_max_outbound: Option<Bytes>,

    /// Action when a client's outbound queue exceeds --websocket-max-outbound: `close` the connection with 1008,
    /// `drop-newest` or `drop-oldest` of the publications to it [default: close]
    #[arg(long, value_enum, value_name = "ACTION", env = "SINEWS_WEBSOCKET_OVERFLOW")]
    pub(crate) websocket_overflow: Option<Slow>,

    /// Rejection of a browser's WebSocket because of its origin, token or path: `close` accepts it and closes it with
    /// 4400, 4401, 4403 or 4404 and the reason; `status` rejects the handshake with 400, 401, 403 or 404, which
    /// scripts of a page cannot read [default: close]
    #[arg(long, value_enum, value_name = "METHOD", env = "SINEWS_WEBSOCKET_REJECT_BROWSERS")]
    pub(crate) websocket_reject_browsers: Option<RejectBrowsers>,
}

/// Rejection of a browser's WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RejectBrowsers {
    Close,
    Status,
}

/// Action on a client whose outbound queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Slow {
    Close,
    DropNewest,
    DropOldest,
}
