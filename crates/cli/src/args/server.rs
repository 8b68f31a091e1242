//! Limits of the whole server, and its shutdown.

use std::num::{NonZeroU32, NonZeroUsize};

use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::config::units::{Bytes, MemoryLimit, Wait};

/// `[limits]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits of the server")]
pub(crate) struct LimitArgs {
    /// Maximum number of connections; further connections are rejected with 503 [default: no limit; without a free
    /// file descriptor, connections wait in the kernel]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_MAX_CONNECTIONS")]
    pub(crate) limits_max_connections: Option<NonZeroUsize>,

    /// Maximum number of connections per address, or per IPv6 network of 64 bits; further connections are rejected
    /// with 429 [default: no limit]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_MAX_CONNECTIONS_PER_ADDRESS")]
    pub(crate) limits_max_connections_per_address: Option<NonZeroUsize>,

    /// Maximum number of WebSocket handshakes per second; further handshakes are rejected with 503 [default: no
    /// limit]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_HANDSHAKES_PER_SECOND")]
    pub(crate) limits_handshakes_per_second: Option<NonZeroU32>,

    /// Maximum number of messages per second of each WebSocket; faster connections are closed with 1008 [default: no
    /// limit]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_MESSAGES_PER_SECOND")]
    pub(crate) limits_messages_per_second: Option<NonZeroU32>,

    /// Memory for outbound queues, and incomplete messages and requests, of all connections: bytes such as `512m`, a
    /// share such as `25%` of the memory of the machine or its control group, or `off` [default: 50%]
    #[arg(long, value_name = "BYTES", env = "SINEWS_LIMITS_MAX_MEMORY")]
    pub(crate) limits_max_memory: Option<MemoryLimit>,

    /// Action when connections hold more than --limits-max-memory: `refuse` new connections with 503, or also `close`
    /// the connection that holds most [default: close]
    #[arg(long, value_enum, value_name = "ACTION", env = "SINEWS_LIMITS_WHEN_FULL")]
    pub(crate) limits_when_full: Option<Full>,

    /// Memory for the histories of all topics, in bytes; `k`, `m` and `g` mean KiB, MiB and GiB [default: 64m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_LIMITS_MAX_HISTORY_MEMORY")]
    pub(crate) limits_max_history_memory: Option<Bytes>,
}

/// `[stop]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Shutdown")]
pub(crate) struct StopArgs {
    /// Time to keep accepting connections after `/readyz` starts to fail [default: 0s]
    #[arg(long, value_name = "TIME", env = "SINEWS_STOP_DELAY")]
    pub(crate) stop_delay: Option<Wait>,

    /// Time over which the Close frames to all WebSockets are spread [default: 5s]
    #[arg(long, value_name = "TIME", env = "SINEWS_STOP_DRAIN_WINDOW")]
    pub(crate) stop_drain_window: Option<Wait>,

    /// Timeout of the clients' answers to Close during shutdown [default: 10s]
    #[arg(long, value_name = "TIME", env = "SINEWS_STOP_GRACE")]
    pub(crate) stop_grace: Option<Wait>,
}

/// Action while queues exceed the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Full {
    Refuse,
    Close,
}
