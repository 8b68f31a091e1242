//! Limits and waits of each connection.

use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::config::units::{Bytes, SomeWait, WaitOrOff};

/// `[http]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Largest body of a request, in bytes [default: that of --max-message]
    #[arg(long, value_name = "BYTES", env = "SINEWS_HTTP_MAX_BODY")]
    pub(crate) http_max_body: Option<Bytes>,

    /// How long the head of a request may take, a WebSocket's opening handshake included [default: 10s]
    #[arg(long, value_name = "TIME", env = "SINEWS_HTTP_HEAD_TIMEOUT")]
    pub(crate) http_head_timeout: Option<SomeWait>,

    /// How long a connection may stay without a request after the last answer [default: 75s]
    #[arg(long, value_name = "TIME", env = "SINEWS_HTTP_KEEP_ALIVE_TIMEOUT")]
    pub(crate) http_keep_alive_timeout: Option<SomeWait>,

    /// Bytes a second that a request's body has to come at after its first 20 seconds; 0 for any [default: 500]
    #[arg(long, value_name = "BYTES", env = "SINEWS_HTTP_MIN_UPLOAD_RATE")]
    pub(crate) http_min_upload_rate: Option<u64>,
}

/// `[websocket]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "WebSocket")]
pub(crate) struct WebSocketArgs {
    /// A ping leaves after so long without a byte from the client; `off` sends none [default: 25s]
    #[arg(long, value_name = "TIME", env = "SINEWS_WEBSOCKET_PING_INTERVAL")]
    pub(crate) websocket_ping_interval: Option<WaitOrOff>,

    /// How long a ping may stay without a byte in answer [default: 20s]
    #[arg(long, value_name = "TIME", env = "SINEWS_WEBSOCKET_PONG_TIMEOUT")]
    pub(crate) websocket_pong_timeout: Option<SomeWait>,

    /// How long neither side may send anything but pings; `off` waits for ever [default: 120s]
    #[arg(long, value_name = "TIME", env = "SINEWS_WEBSOCKET_IDLE_TIMEOUT")]
    pub(crate) websocket_idle_timeout: Option<WaitOrOff>,

    /// Bytes waiting to be sent to a client above which nothing is received from it [default: 64k]
    #[arg(long, value_name = "BYTES", env = "SINEWS_WEBSOCKET_HIGH_WATER")]
    pub(crate) websocket_high_water: Option<Bytes>,

    /// Bytes waiting to be sent to a client at which further messages meet --websocket-overflow [default: 1m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_WEBSOCKET_MAX_OUTBOUND")]
    pub(crate) websocket_max_outbound: Option<Bytes>,

    /// What happens then: `close` the slow client with 1008, `drop-newest` or `drop-oldest` of what is published
    /// to it [default: close]
    #[arg(long, value_enum, value_name = "WHAT", env = "SINEWS_WEBSOCKET_OVERFLOW")]
    pub(crate) websocket_overflow: Option<Slow>,

    /// How a browser learns that its origin, its token or the path is rejected: `close` accepts the WebSocket and closes
    /// it with 4400, 4401, 4403 or 4404 and the reason; `status` answers the handshake with 400, 401, 403 or 404, which
    /// scripts of a page cannot read [default: close]
    #[arg(long, value_enum, value_name = "HOW", env = "SINEWS_WEBSOCKET_REJECT_BROWSERS")]
    pub(crate) websocket_reject_browsers: Option<RejectBrowsers>,
}

/// How a browser's WebSocket is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RejectBrowsers {
    Close,
    Status,
}

/// What happens to a client that takes its messages too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Slow {
    Close,
    DropNewest,
    DropOldest,
}
