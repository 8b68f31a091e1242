//! What the server as a whole takes on, and how it stops.

use std::num::{NonZeroU32, NonZeroUsize};

use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::config::units::{Bytes, MemoryLimit, Wait};

/// `[limits]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How much the server takes on")]
pub(crate) struct LimitArgs {
    /// Connections at a time; further ones are answered with 503 [default: as many as there are descriptors]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_MAX_CONNECTIONS")]
    pub(crate) limits_max_connections: Option<NonZeroUsize>,

    /// Connections at a time of one address, or of one network of 64 bits in IPv6; further ones are answered with
    /// 429 [default: no limit]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_MAX_CONNECTIONS_PER_ADDRESS")]
    pub(crate) limits_max_connections_per_address: Option<NonZeroUsize>,

    /// WebSockets opened in a second; further ones are answered with 503 [default: no limit]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_HANDSHAKES_PER_SECOND")]
    pub(crate) limits_handshakes_per_second: Option<NonZeroU32>,

    /// Messages that each WebSocket may send in a second; one that is faster is closed with 1008 [default: no
    /// limit]
    #[arg(long, value_name = "N", env = "SINEWS_LIMITS_MESSAGES_PER_SECOND")]
    pub(crate) limits_messages_per_second: Option<NonZeroU32>,

    /// Memory for outbound queues and incomplete messages and requests of all connections: bytes such as `512m`, a
    /// share of the memory of the machine or its control group, or `off` [default: 50%]
    #[arg(long, value_name = "BYTES", env = "SINEWS_LIMITS_MAX_MEMORY")]
    pub(crate) limits_max_memory: Option<MemoryLimit>,

    /// Action when connections hold more than `--limits-max-memory`: `refuse` new connections with 503, or also
    /// `close` the connection that holds most [default: close]
    #[arg(long, value_enum, value_name = "WHAT", env = "SINEWS_LIMITS_WHEN_FULL")]
    pub(crate) limits_when_full: Option<Full>,

    /// Memory for the histories of all topics; `k`, `m` and `g` mean KiB, MiB and GiB [default: 64m]
    #[arg(long, value_name = "BYTES", env = "SINEWS_LIMITS_MAX_HISTORY_MEMORY")]
    pub(crate) limits_max_history_memory: Option<Bytes>,
}

/// `[stop]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How the server stops")]
pub(crate) struct StopArgs {
    /// How long `/readyz` says so before no more connections are accepted [default: 0s]
    #[arg(long, value_name = "TIME", env = "SINEWS_STOP_DELAY")]
    pub(crate) stop_delay: Option<Wait>,

    /// Over how long the Close of every WebSocket is spread [default: 5s]
    #[arg(long, value_name = "TIME", env = "SINEWS_STOP_DRAIN_WINDOW")]
    pub(crate) stop_drain_window: Option<Wait>,

    /// How long clients may take to answer their Close [default: 10s]
    #[arg(long, value_name = "TIME", env = "SINEWS_STOP_GRACE")]
    pub(crate) stop_grace: Option<Wait>,
}

/// What happens while queues are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Full {
    Refuse,
    Close,
}
