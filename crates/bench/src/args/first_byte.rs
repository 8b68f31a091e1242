//! Arguments of `sinews bench first-byte`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use sinews_engine::BackendChoice;

use super::load::{backends, time};

/// Measure the time to the first byte of each protocol operation on an idle server.
///
/// One client runs one operation at a time, on a new connection, after the server was idle for --idle. The time runs
/// from sending the request to the first byte of its result: an answer, the first message or the first records. No
/// result should depend on unrelated activity of the server.
///
/// Without a URL, a server with one thread and a temporary directory is started.
#[derive(Debug, Args)]
#[command(next_help_heading = "First bytes")]
pub(crate) struct FirstByteArgs {
    /// URL of a running server, such as ws://127.0.0.1:8080, with `--streams DIRECTORY`, `--streams-listen`,
    /// `--streams-durable-topics 'bench.kept.>'` and `--history 'bench.memory.>=100'`; its benchmark streams are not deleted
    #[arg(value_name = "URL", requires = "tcp")]
    pub(crate) url: Option<String>,

    /// Plain TCP address of the server (its `--streams-listen`)
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    pub(crate) tcp: Option<SocketAddr>,

    /// Measurements of each operation
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Idle time of the server before each operation
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5ms")]
    pub(crate) idle: Duration,

    /// I/O backend of the started server: `uring` is io_uring, `poll` is epoll or kqueue, `auto` is the best available
    #[arg(long, value_parser = backends(), value_name = "NAME", default_value = "auto", conflicts_with = "url")]
    pub(crate) backend: BackendChoice,

    /// Additional argument of `sinews serve` for the started server, such as `--streams-fsync=never`; repeatable
    #[arg(long, value_name = "ARGUMENT", conflicts_with = "url", allow_hyphen_values = true)]
    pub(crate) serve: Vec<String>,

    /// Measure only operations whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
