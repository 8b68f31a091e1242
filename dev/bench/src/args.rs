//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::hello::HelloServer;
use crate::ingest::IngestServer;
use crate::load::{LOADS, Load};
use crate::round::Plan;
use crate::syscalls;
use crate::target::{Deflate, ServeOptions, Target, Threads};

/// Measures what a server's work costs over loopback: `sinews serve` beside plain TCP echoes and other
/// libraries. Without a subcommand: what an echoed message costs.
///
/// Needs two processors, `taskset`, and the scheduler's books in /proc (Linux). The server has core 0, the load
/// core 1. Servers are measured in turns; ratios are taken within a round. Figures are medians.
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
    /// What a delivery costs: one publisher, many subscribers of a topic.
    Fanout(FanoutArgs),
    /// The same with more subscribers than a process may have descriptors, and what they take of memory.
    Crowd(CrowdArgs),
    /// How long a delivery takes, alone and beside subscribers that do not read.
    Slow(SlowArgs),
    /// What an idle connection takes of memory.
    Idle(IdleArgs),
    /// What a request of `GET /healthz` costs.
    Http(HttpArgs),
    /// What a request of `GET /hello` costs, by wrk, beside other HTTP servers.
    Hello(HelloArgs),
    /// What a request costs whose body goes to Kafka, by wrk, beside hyper on Tokio and on compio.
    Ingest(IngestArgs),
    /// What a message costs on one thread and on two.
    Scaling(ScalingArgs),
    /// What a server asks of the kernel for a message, counted by strace.
    Syscalls(SyscallsArgs),
    /// The plain echo on mio: prints its address and serves until its standard input is closed.
    PlainMio {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// The plain echo on io_uring, likewise.
    PlainRing {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// The connections of `idle`, as a process of its own.
    #[command(hide = true)]
    IdleClients(IdleClientsArgs),
    /// Some subscribers of `crowd`, as a process of their own.
    #[command(hide = true)]
    CrowdClients(CrowdClientsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EchoArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Only this load; may be given several times [default: all]
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
    /// Only this load; may be given several times [default: all: one message after the other, bursts of 50, and
    /// 16 MiB]
    #[arg(long = "load", value_name = "NAME", value_parser = syscalls_load)]
    loads: Vec<&'static Load>,

    /// Milliseconds that calls are counted for, and until there are 20 messages
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

    /// Subscribers; may be given several times [default: 50, 1000 and 10000]
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
    /// Subscribers: beyond some 16,000 only of servers on io_uring, since each ring may have as many descriptors as a
    /// process
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = connections)]
    pub(crate) subscribers: usize,

    /// Messages published at once; may be given several times [default: 1 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    burst: Vec<u16>,

    /// Bursts that count
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
pub(crate) struct CrowdClientsArgs {
    pub(crate) server: SocketAddr,
    pub(crate) source: SocketAddr,
    pub(crate) subscribers: usize,
    pub(crate) burst: usize,
}

#[derive(Debug, Args)]
pub(crate) struct SlowArgs {
    /// Rounds; each has its own servers and connections
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// Seconds that are published in each round
    #[arg(long = "seconds", value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,

    /// Subscribers that are looked at; as many more read, or do not
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=9_000))]
    pub(crate) subscribers: u16,

    /// Messages published a second
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

    /// Connections, which all stay
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

    /// Threads of each server and of wrk; with two, all share both cores
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) threads: u8,

    /// Only this server; may be given several times [default: all]
    #[arg(long = "server", value_name = "NAME", value_enum)]
    servers: Vec<HelloServer>,

    /// The server's `hello_http` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) hello: Option<PathBuf>,

    /// The `sinews-peers` program (feature `peers`), instead of building it
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

    /// Bytes of a body
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) bytes: usize,

    /// Instead of wrk, each server in turn has connections come and go for so many seconds [default connections: 1,000]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) churn: Option<u64>,

    /// The most requests of a connection that comes and goes
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests: u32,

    /// Only this server; may be given several times [default: all]
    #[arg(long = "server", value_name = "NAME", value_enum)]
    servers: Vec<IngestServer>,

    /// A Kafka that runs, instead of one that dev/brokers/kafka.sh starts
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) kafka: Option<String>,

    /// The `sinews-ingest` program (feature `kafka`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_ingest: Option<PathBuf>,

    /// The `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ScalingArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Only this load; may be given several times [default: 64x64 and 512x512]
    #[arg(long = "load", value_name = "NAME", value_parser = load)]
    loads: Vec<&'static Load>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    /// Connections: beyond some 16,000 on several threads, since each ring may have as many descriptors as a
    /// process. Servers on readiness cannot go beyond the limit of open files
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = connections)]
    pub(crate) connections: usize,

    /// What the connections have done before
    #[arg(long, value_enum, value_name = "HISTORY", default_value = "handshake")]
    pub(crate) after: History,

    /// Compression that `sinews serve` and the clients agree on
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub(crate) deflate: Deflate,

    /// Threads of `sinews serve` [default: one for each 16,000 connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Seconds of rest before each of the two readings of memory
    #[arg(long = "settle", value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=600))]
    settle_s: u64,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IdleClientsArgs {
    pub(crate) server: SocketAddr,
    pub(crate) source: Ipv4Addr,
    pub(crate) connections: usize,
    pub(crate) after: History,
    pub(crate) deflate: Deflate,
}

/// What a connection has done before it idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum History {
    /// Nothing but to open
    Handshake,
    /// 1,500 messages of 64 bytes echoed, in bursts of 50
    Small,
    /// One message of 256 KiB echoed
    Large,
}

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// Only this target; may be given several times [default: ours]
    #[arg(long = "target", value_name = "NAME", value_enum)]
    targets: Vec<Target>,

    /// The other libraries, too, as their users write them first: `send` for each message
    #[arg(long)]
    peers: bool,

    /// The other libraries, too, in their fastest forms
    #[arg(long)]
    fastest: bool,

    /// The library, too
    #[arg(long)]
    library: bool,
}

#[derive(Debug, Args)]
struct ThreadArgs {
    /// Tokio's runtime under the other libraries and under the library on axum (on Tokio alone, the library is a
    /// target of its own: `sinews-tokio-multi`). `multi` is the runtime of many threads with two, both on core 0 as
    /// all servers are: that shows what its scheduler costs, and not how it scales, since the other core has the load.
    /// Servers on compio have one thread anyway
    #[arg(long = "threads", value_enum, value_name = "HOW MANY", default_value = "one")]
    runtime: Threads,
}

impl ThreadArgs {
    fn options(&self) -> ServeOptions {
        ServeOptions { runtime: self.runtime, ..ServeOptions::default() }
    }
}

impl TargetArgs {
    /// Those that are named, or ours; and the library and the others, if they are asked for.
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

    /// Likewise, where the library and the fastest forms have no part.
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

    /// Milliseconds that each target is measured in each round
    #[arg(long = "window", value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    window_ms: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// The `sinews` program, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews: Option<PathBuf>,

    /// The engine's `tcp_echo` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) tcp_echo: Option<PathBuf>,

    /// The `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,

    /// The `sinews-library` program, instead of building it
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

    /// Readiness takes part as far as a process's descriptors go.
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

/// A number of connections.
fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=CONNECTIONS_MAX) => Ok(number),
        _ => Err(format!("expected a number from 1 to {CONNECTIONS_MAX}")),
    }
}

/// What one pair of addresses has ports for, times the source addresses 127.0.1.1 to 127.0.255.1.
const CONNECTIONS_MAX: usize = 1_000_000;

/// Connections are spread over threads by chance, and a ring with direct descriptors may hold as many as the limit
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
    fn ours_are_measured_unless_others_are_named() {
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
    fn every_target_is_of_one_kind() {
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
