//! Arguments of `sinews bench idle`.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sinews_engine::BackendChoice;

use super::load::{backends, rate, sources, time};

/// Measure the memory of idle connections, and extrapolate it.
///
/// Connections are opened in steps. At each step, memory is read from /proc and compared with the memory before the
/// first connection: the server's user memory (RssAnon), its page tables (VmPTE), and the kernel's objects, socket
/// buffers and further memory. The kernel's figures cover the whole machine, so no other connections may open or
/// close meanwhile. If client and server run on one machine, they cover both ends of each connection.
#[derive(Debug, Args)]
#[command(next_help_heading = "Idle connections")]
pub(crate) struct IdleArgs {
    /// URL of the server: ws://, wss://, http://, https:// or tcp://. Several URLs share the connections evenly
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<String>,

    /// Process ID of the server; repeatable
    #[arg(long, value_name = "PID", required = true)]
    pub(crate) pid: Vec<u32>,

    /// Numbers of connections to measure at, in ascending order
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "2000,5000,10000")]
    pub(crate) connections: Vec<NonZeroUsize>,

    /// Number of connections to extrapolate to
    #[arg(long, value_name = "N", default_value = "1000000")]
    pub(crate) extrapolate: NonZeroUsize,

    /// New connections per second, over all threads
    #[arg(short, long, value_name = "N", value_parser = rate, default_value = "5000")]
    pub(crate) rate: f64,

    /// Maximum number of handshakes in progress, over all threads
    #[arg(long, value_name = "N", default_value = "256")]
    pub(crate) handshakes: NonZeroUsize,

    /// Time between the last handshake of a step and its measurement
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) settle: Duration,

    /// Time over which the server's CPU time is measured with all connections open; 0s to omit it
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    pub(crate) hold: Duration,

    /// Timeout of each connection and its handshake
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) timeout: Duration,

    /// Load generator threads, each with its own event loop [default: as many as the descriptor limit requires]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Source addresses of connections, used in rotation: some 14,000 connections for each address open fast, twice as
    /// many slowly, since the system searches for a free port. Comma-separated, or a range of the last number, such as
    /// 127.0.0.2-20 [default: the system's choice; for a server at 127.0.0.0/8, as many addresses from 127.0.0.2 as the
    /// connections need]
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = sources)]
    pub(crate) source: Vec<Vec<IpAddr>>,

    /// Offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Header of each handshake, such as `Authorization: Bearer 1234`; repeatable
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,

    /// Accept any server certificate
    #[arg(short = 'k', long, conflicts_with = "ca")]
    pub(crate) insecure: bool,

    /// CA certificates (PEM) to trust in addition to the system's; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Vec<PathBuf>,

    /// I/O backend of the load generator: `uring` is io_uring, `poll` is epoll or kqueue, `auto` is the best available
    #[arg(long, value_parser = backends(), value_name = "NAME", default_value = "auto")]
    pub(crate) backend: BackendChoice,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
