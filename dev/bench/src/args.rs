//! The command line.

mod http2;
mod http3;
mod keys;
mod programs;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::http2::Http2Args;
pub(crate) use self::http3::Http3Args;
pub(crate) use self::keys::KeysArgs;
pub(crate) use self::programs::TlsProgramArgs;
use crate::hello::HelloServer;
use crate::ingest::IngestServer;
use crate::load::{LOADS, Load};
use crate::round::Plan;
use crate::syscalls;
use crate::target::{Deflate, ServeOptions, Target, Threads};

/// Measures the cost of a server's work over loopback: `sinews serve` beside plain TCP echoes and other
/// libraries. Without a subcommand, measures the cost of an echoed message.
///
/// Needs two processors, `taskset`, and the scheduler's statistics in /proc (Linux). The server runs on core
/// 0, the load on core 1. Servers are measured in turns; ratios are taken within a round. Figures are
/// medians.
#[derive(Debug, Parser)]
#[command(name = "sinews-loopback", args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) echo: EchoArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Cost of a delivery: one publisher, many subscribers of a topic.
    Fanout(FanoutArgs),
    /// Cost of a delivery and memory use with more subscribers than the descriptor limit of one process.
    Crowd(CrowdArgs),
    /// Latency of a delivery, alone and beside subscribers that do not read.
    Slow(SlowArgs),
    /// Keys of a topic with many subscribers, some of them slow: memory, CPU time, and the age of received values.
    Keys(KeysArgs),
    /// Memory of an idle connection.
    Idle(IdleArgs),
    /// Cost of a request of `GET /healthz`.
    Http(HttpArgs),
    /// Cost of a request of `GET /hello`, by wrk, beside other HTTP servers.
    Hello(HelloArgs),
    /// Cost of messages and requests over HTTP/2 with TLS, beside HTTP/1.1, axum, hyper and nginx.
    Http2(Http2Args),
    /// Cost of messages and requests over HTTP/3, beside HTTP/1.1 with TLS, sockudo-ws, h3 on quinn, and aioquic.
    Http3(Http3Args),
    /// Cost of a request with a body that goes to Kafka, by wrk, beside hyper on Tokio and on compio.
    Ingest(IngestArgs),
    /// Cost of a message on one thread and on two.
    Scaling(ScalingArgs),
    /// System calls of a server for a message, counted by strace.
    Syscalls(SyscallsArgs),
    /// The plain echo on mio: prints its address and serves until its standard input is closed.
    PlainMio {
        /// Port on 127.0.0.1; 0 picks a free port
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// The plain echo on io_uring: prints its address and serves until its standard input is closed.
    PlainRing {
        /// Port on 127.0.0.1; 0 picks a free port
        #[arg(default_value_t = 0)]
        port: u16,
    },
}

#[derive(Debug, Args)]
pub(crate) struct EchoArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Load to measure; may be given several times [default: all]
    #[arg(long = "load", value_name = "NAME", value_parser = load)]
    loads: Vec<&'static Load>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    threads: ThreadArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SyscallsArgs {
    /// Load to measure; may be given several times [default: all: one message after the other, bursts of 50,
    /// and 16 MiB]
    #[arg(long = "load", value_name = "NAME", value_parser = syscalls_load)]
    loads: Vec<&'static Load>,

    /// Milliseconds to count calls, extended until there are 20 messages
    #[arg(long = "window", value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    window_ms: u64,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    threads: ThreadArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Number of subscribers; may be given several times [default: 50, 1000 and 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=19_000))]
    subscribers: Vec<u16>,

    /// Messages published at once; may be given several times [default: 1 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    burst: Vec<u16>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CrowdArgs {
    /// Number of subscribers; more than about 16,000 only for servers on io_uring, where the descriptor limit
    /// applies to each ring instead of the process
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = connections)]
    pub(crate) subscribers: usize,

    /// Messages published at once; may be given several times [default: 1 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    burst: Vec<u16>,

    /// Bursts to measure
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// Threads of `sinews serve` [default: one for each 16,000 subscribers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SlowArgs {
    /// Rounds; each starts its own servers and connections
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// Seconds of publishing in each round
    #[arg(long = "seconds", value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,

    /// Measured subscribers; the same number of further subscribers either reads or does not
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=9_000))]
    pub(crate) subscribers: u16,

    /// Messages published per second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Persistent connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = connections)]
    pub(crate) connections: usize,

    /// Requests in flight on a connection; may be given several times [default: 1 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pipeline: Vec<u16>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HelloArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Connections of wrk
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = connections)]
    pub(crate) connections: usize,

    /// Requests in flight on a connection; may be given several times [default: 1 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pipeline: Vec<u16>,

    /// Threads of each server and of wrk; with two, server and wrk share both cores
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) threads: u8,

    /// Server to measure; may be given several times [default: all]
    #[arg(long = "server", value_name = "NAME", value_enum)]
    servers: Vec<HelloServer>,

    /// Path of the server's `hello_http` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) hello: Option<PathBuf>,

    /// Path of the `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Connections; may be given several times [default: 128 and 10,000]
    #[arg(long, value_name = "N", value_parser = connections)]
    connections: Vec<usize>,

    /// Bytes of a request body
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) bytes: usize,

    /// Seconds of connection churn against each server in turn, instead of wrk [default connections: 1,000]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) churn: Option<u64>,

    /// Maximum requests of a connection under `--churn`
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests: u32,

    /// Server to measure; may be given several times [default: all]
    #[arg(long = "server", value_name = "NAME", value_enum)]
    servers: Vec<IngestServer>,

    /// Address of a running Kafka, instead of starting it with dev/brokers/kafka.sh
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) kafka: Option<String>,

    /// Path of the `sinews-ingest` program (feature `kafka`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_ingest: Option<PathBuf>,

    /// Path of the `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ScalingArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Load to measure; may be given several times [default: 64x64 and 512x512]
    #[arg(long = "load", value_name = "NAME", value_parser = load)]
    loads: Vec<&'static Load>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    /// Connections; more than about 16,000 need several threads, since the descriptor limit applies to each
    /// ring. Servers on readiness cannot exceed the limit of open files
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = connections)]
    pub(crate) connections: usize,

    /// Traffic of the connections before they idle
    #[arg(long, value_enum, value_name = "HISTORY", default_value = "handshake")]
    pub(crate) after: History,

    /// Compression negotiated between `sinews serve` and the clients
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub(crate) deflate: Deflate,

    /// Threads of `sinews serve` [default: one for each 16,000 connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Seconds to wait before each of the two readings of memory
    #[arg(long = "settle", value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=600))]
    settle_s: u64,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

/// Traffic of a connection before it idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum History {
    /// Handshake only
    Handshake,
    /// 1,500 messages of 64 bytes echoed, in bursts of 50
    Small,
    /// One message of 256 KiB echoed
    Large,
}

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Target to measure; may be given several times [default: ours]
    #[arg(long = "target", value_name = "NAME", value_enum)]
    targets: Vec<Target>,

    /// Add the other libraries in their simplest form: `send` for each message
    #[arg(long)]
    peers: bool,

    /// Add the other libraries in their fastest forms
    #[arg(long)]
    fastest: bool,

    /// Add the library
    #[arg(long)]
    library: bool,
}

#[derive(Debug, Args)]
struct ThreadArgs {
    /// Tokio's runtime under the other libraries and under the library on axum (on Tokio alone, the library
    /// is a separate target: `sinews-tokio-multi`). `multi` is the multi-threaded runtime with two threads,
    /// both on core 0 like all servers: this shows the cost of its scheduler, not its scaling, since the load
    /// runs on the other core. Servers on compio always have one thread
    #[arg(long = "threads", value_enum, value_name = "HOW MANY", default_value = "one")]
    runtime: Threads,
}

impl ThreadArgs {
    fn options(&self) -> ServeOptions {
        ServeOptions { runtime: self.runtime, ..ServeOptions::default() }
    }
}

impl TargetArgs {
    /// Returns the named targets, or ours; adds the library and the other libraries on request.
    fn among_all(&self, ours: &[Target]) -> Vec<Target> {
        let asked = |flag: bool, of: &'static [Target]| {
            of.iter().filter(move |target| flag || self.targets.contains(target))
        };
        let mut all = self.among(ours, &[]);
        all.extend(asked(self.library, &Target::LIBRARY));
        all.extend(asked(self.peers, &Target::PEERS));
        all.extend(asked(self.fastest, &Target::FASTEST));
        all
    }

    /// Like `among_all`, for measurements without the library and the fastest forms.
    fn among(&self, ours: &[Target], peers: &[Target]) -> Vec<Target> {
        let none = self.targets.is_empty() && !self.peers && !self.library && !self.fastest;
        let ours = ours.iter().filter(|it| none || self.targets.contains(it));
        let peers = peers.iter().filter(|it| self.peers || self.targets.contains(it));
        ours.chain(peers).copied().collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Quiet rounds of each load; a round measures every target once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// Milliseconds of measurement for each target in each round
    #[arg(long = "window", value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    window_ms: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Path of the `sinews` program, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews: Option<PathBuf>,

    /// Path of the engine's `tcp_echo` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) tcp_echo: Option<PathBuf>,

    /// Path of the `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,

    /// Path of the `sinews-library` program, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_library: Option<PathBuf>,
}

impl PlanArgs {
    pub(crate) fn plan(&self) -> Plan {
        Plan { rounds: self.rounds.into(), window: Duration::from_millis(self.window_ms) }
    }
}

impl EchoArgs {
    pub(crate) fn loads(&self) -> Vec<&'static Load> {
        if self.loads.is_empty() { LOADS.iter().collect() } else { self.loads.clone() }
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among_all(&Target::OURS)
    }

    pub(crate) fn options(&self) -> ServeOptions {
        self.threads.options()
    }
}

impl SyscallsArgs {
    pub(crate) fn loads(&self) -> Vec<&'static Load> {
        if self.loads.is_empty() { syscalls::LOADS.iter().collect() } else { self.loads.clone() }
    }

    pub(crate) fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among_all(&Target::OURS)
    }

    pub(crate) fn options(&self) -> ServeOptions {
        self.threads.options()
    }
}

impl FanoutArgs {
    pub(crate) fn subscribers(&self) -> Vec<usize> {
        or_default(&self.subscribers, &[50, 1000, 10_000])
    }

    pub(crate) fn bursts(&self) -> Vec<usize> {
        or_default(&self.burst, &[1, 16])
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among(&Target::SINEWS, &[Target::Axum])
    }
}

impl CrowdArgs {
    pub(crate) fn bursts(&self) -> Vec<usize> {
        or_default(&self.burst, &[1, 16])
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(|| self.subscribers.div_ceil(CONNECTIONS_PER_THREAD), usize::from)
    }

    /// Readiness targets take part up to the descriptor limit of a process.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let ours = if self.subscribers > CONNECTIONS_PER_THREAD {
            &Target::SINEWS[1..]
        } else {
            &Target::SINEWS[..]
        };
        self.targets.among(ours, &[])
    }
}

impl SlowArgs {
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among(&Target::SINEWS, &[])
    }
}

impl HttpArgs {
    pub(crate) fn depths(&self) -> Vec<usize> {
        or_default(&self.pipeline, &[1, 16])
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among(&Target::SINEWS, &[Target::Hyper, Target::Axum])
    }
}

impl HelloArgs {
    pub(crate) fn depths(&self) -> Vec<usize> {
        or_default(&self.pipeline, &[1, 16])
    }

    pub(crate) fn servers(&self) -> Vec<HelloServer> {
        if self.servers.is_empty() { HelloServer::value_variants().to_vec() } else { self.servers.clone() }
    }
}

impl IngestArgs {
    pub(crate) fn connections(&self) -> Vec<usize> {
        match self.churn {
            _ if !self.connections.is_empty() => self.connections.clone(),
            Some(_) => vec![1_000],
            None => vec![128, 10_000],
        }
    }

    pub(crate) fn servers(&self) -> Vec<IngestServer> {
        if self.servers.is_empty() { IngestServer::value_variants().to_vec() } else { self.servers.clone() }
    }
}

impl ScalingArgs {
    pub(crate) fn loads(&self) -> Vec<&'static Load> {
        let default = || LOADS.iter().filter(|load| matches!(load.name, "64x64" | "512x512")).collect();
        if self.loads.is_empty() { default() } else { self.loads.clone() }
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among(&Target::SINEWS, &[])
    }
}

impl IdleArgs {
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(|| self.connections.div_ceil(CONNECTIONS_PER_THREAD), usize::from)
    }

    pub(crate) fn settle(&self) -> Duration {
        Duration::from_secs(self.settle_s)
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among_all(&Target::SINEWS)
    }
}

fn or_default(given: &[u16], default: &[usize]) -> Vec<usize> {
    if given.is_empty() { default.to_vec() } else { given.iter().copied().map(usize::from).collect() }
}

/// Parses a number of connections.
fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=CONNECTIONS_MAX) => Ok(number),
        _ => Err(format!("expected a number from 1 to {CONNECTIONS_MAX}")),
    }
}

/// Ports of one address pair, times the source addresses 127.0.1.1 to 127.0.255.1.
const CONNECTIONS_MAX: usize = 1_000_000;

/// Connections are distributed over threads at random; a ring holds as many direct descriptors as the limit
/// of open files, often 20,000.
const CONNECTIONS_PER_THREAD: usize = 16_000;

fn load(name: &str) -> Result<&'static Load, String> {
    among_loads(&LOADS, name)
}

fn syscalls_load(name: &str) -> Result<&'static Load, String> {
    among_loads(&syscalls::LOADS, name)
}

fn among_loads(loads: &'static [Load], name: &str) -> Result<&'static Load, String> {
    loads.iter().find(|load| load.name == name).ok_or_else(|| {
        let names: Vec<&str> = loads.iter().map(|load| load.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["sinews-loopback", "--load", "64x64x16", "--target", "sinews-poll"]);
        assert_eq!(cli.echo.loads()[0].in_flight, 16);
        assert_eq!(cli.echo.targets(), [Target::SinewsPoll]);
        assert!(Cli::try_parse_from(["sinews-loopback", "--load", "64"]).is_err());
    }

    #[test]
    fn default_targets_are_ours() {
        let targets = |arguments: &[&str]| {
            let all = [&["sinews-loopback"], arguments].concat();
            Cli::parse_from(all).echo.targets()
        };
        assert_eq!(targets(&[]), Target::OURS);
        assert_eq!(
            targets(&["--target", "axum", "--target", "plain-ring"]),
            [Target::PlainRing, Target::Axum]
        );
        assert_eq!(targets(&["--peers", "--target", "plain-ring"])[1..], Target::PEERS);
        assert_eq!(targets(&["--library"]), Target::LIBRARY);
        assert_eq!(targets(&["--fastest"]), Target::FASTEST);
        assert_eq!(targets(&["--target", "compio-ws-feed-4k"]), [Target::CompioWsFeed4k]);
    }

    #[test]
    fn every_target_belongs_to_one_kind() {
        use clap::ValueEnum;
        let kinds = [
            &Target::OURS[..],
            &Target::LIBRARY[..],
            &Target::PEERS[..],
            &Target::FASTEST[..],
            &[Target::Hyper],
        ];
        for target in Target::value_variants() {
            let of = kinds.iter().filter(|kind| kind.contains(target)).count();
            assert_eq!(of, 1, "{}", target.name());
            assert_eq!(target.is_peer(), kinds[2..].iter().any(|kind| kind.contains(target)));
        }
    }
}
