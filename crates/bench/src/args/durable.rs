//! Arguments of `sinews bench durable`.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::Args;

use crate::streams::ProducerAck;

/// Measure durable streams: producers first, consumers second, over WebSocket and plain TCP in alternation.
///
/// A producer publishes a batch of records, waits for its acknowledgement and publishes the next batch; a consumer
/// fetches one batch at a time. Each has its own stream. Both transports carry the same messages, so that the ratio
/// shows the cost of masking, framing and frame handling.
///
/// Without a URL, a server with a temporary directory is started for each round.
#[derive(Debug, Args)]
#[command(next_help_heading = "Durable streams")]
pub(crate) struct DurableArgs {
    /// URL of a server with durable streams, such as ws://127.0.0.1:8080; its benchmark streams are not deleted
    #[arg(value_name = "URL", requires = "tcp")]
    pub(crate) url: Option<String>,

    /// Plain TCP address of the server (its `--streams-listen`)
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    pub(crate) tcp: Option<SocketAddr>,

    /// Size of a record's value in bytes
    #[arg(short, long, value_name = "BYTES", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=8 << 20))]
    pub(crate) size: u32,

    /// Records per batch
    #[arg(short, long, value_name = "N", default_value = "1000")]
    pub(crate) batch: NonZeroU32,

    /// Batches of each producer and consumer per round
    #[arg(short = 'n', long, value_name = "N", default_value = "200")]
    pub(crate) batches: NonZeroUsize,

    /// Producers, each with its own stream and thread
    #[arg(short, long, value_name = "N", default_value = "2")]
    pub(crate) producers: NonZeroUsize,

    /// Consumers, each with its own thread. If there are more consumers than producers, they share streams in
    /// rotation
    #[arg(short, long, value_name = "N", default_value = "2")]
    pub(crate) consumers: NonZeroUsize,

    /// Acknowledge a batch when its order is fixed in memory, or when it is on disk
    #[arg(long, value_name = "WHEN", value_enum, default_value = "disk")]
    pub(crate) ack: ProducerAck,

    /// Rounds, each of which measures both transports. At least eight are needed to tell a difference with 99 %
    /// confidence
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Stream directory of started servers, on the disk to measure [default: the system's directory for temporary
    /// files]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub(crate) directory: Option<PathBuf>,

    /// Additional argument of `sinews serve` for started servers, such as `--streams-fsync=never`; repeatable
    #[arg(long, value_name = "ARGUMENT", conflicts_with = "url", allow_hyphen_values = true)]
    pub(crate) serve: Vec<String>,

    /// Processors of the started servers, in taskset's format, such as 0 or 0,2
    #[arg(long, value_name = "LIST", conflicts_with = "url")]
    pub(crate) server_core: Option<String>,

    /// Processors of producers and consumers, in taskset's format, such as 1 or 1,3
    #[arg(long, value_name = "LIST")]
    pub(crate) load_core: Option<String>,

    /// Process ID of the server, to measure its CPU time
    #[arg(long, value_name = "PID", requires = "url")]
    pub(crate) pid: Option<u32>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
