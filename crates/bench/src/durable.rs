//! `sinews bench durable`: measures producers and consumers of durable streams over WebSocket and over plain TCP in
//! alternation, to show the overhead of WebSocket.

mod actor;
mod report;
pub(super) mod server;
pub(super) mod wire;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use self::actor::Work;
use self::report::{Phase, Report, Round};
use self::server::Server;
use super::interrupt::Interrupt;
use super::process;

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
    url: Option<String>,

    /// Plain TCP address of the server (its `--streams-listen`)
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    tcp: Option<SocketAddr>,

    /// Size of a record's value in bytes
    #[arg(short, long, value_name = "BYTES", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=8 << 20))]
    size: u32,

    /// Records per batch
    #[arg(short, long, value_name = "N", default_value = "1000")]
    batch: NonZeroU32,

    /// Batches of each producer and consumer per round
    #[arg(short = 'n', long, value_name = "N", default_value = "200")]
    batches: NonZeroUsize,

    /// Producers, each with its own stream and thread
    #[arg(short, long, value_name = "N", default_value = "2")]
    producers: NonZeroUsize,

    /// Consumers, each with its own thread. If there are more consumers than producers, they share streams in
    /// rotation
    #[arg(short, long, value_name = "N", default_value = "2")]
    consumers: NonZeroUsize,

    /// Acknowledge a batch when its order is fixed in memory, or when it is on disk
    #[arg(long, value_name = "WHEN", value_enum, default_value = "disk")]
    ack: Ack,

    /// Rounds, each of which measures both transports. At least eight are needed to tell a difference with 99 %
    /// confidence
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Stream directory of started servers, on the disk to measure [default: the system's directory for temporary
    /// files]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    directory: Option<PathBuf>,

    /// Additional argument of `sinews serve` for started servers, such as `--streams-fsync=never`; repeatable
    #[arg(long, value_name = "ARGUMENT", conflicts_with = "url", allow_hyphen_values = true)]
    serve: Vec<String>,

    /// Processors of the started servers, in taskset's format, such as 0 or 0,2
    #[arg(long, value_name = "LIST", conflicts_with = "url")]
    server_core: Option<String>,

    /// Processors of producers and consumers, in taskset's format, such as 1 or 1,3
    #[arg(long, value_name = "LIST")]
    load_core: Option<String>,

    /// Process ID of the server, to measure its CPU time
    #[arg(long, value_name = "PID", requires = "url")]
    pid: Option<u32>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Acknowledgement that a producer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ack {
    /// The order of the records is fixed in memory.
    Memory,
    /// The records are on disk, according to the server's `--streams-fsync`.
    Disk,
}

/// Transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    WebSocket,
}

impl Way {
    const BOTH: [Self; 2] = [Self::Tcp, Self::WebSocket];

    pub(super) fn name(self) -> &'static str {
        if self == Self::Tcp { "tcp" } else { "websocket" }
    }
}

pub(crate) fn run(args: &DurableArgs, interrupt: &Interrupt) -> Result<(), String> {
    if let Some(cores) = &args.load_core {
        super::compare::pin(cores)?;
    }
    let work = Work::new(args.size, args.batch.get(), args.batches.get(), args.ack)?;
    let mut report = Report::new(args, work.batch_bytes());
    for round in 0..args.rounds {
        let measured = play(args, &work, round, interrupt)?;
        if interrupt.came() {
            super::say(&format!("interrupted: {round} of {} rounds are complete", args.rounds));
            break;
        }
        if !args.quiet {
            super::say(&format!("round {} of {}: {}", round + 1, args.rounds, report::line(&measured)));
        }
        report.add(measured);
    }
    if report.is_empty() {
        return Err("interrupted before the first round was complete".to_owned());
    }
    let words = if args.json { format!("{:#}", report.to_json()) } else { report.table() };
    super::print(&words);
    Ok(())
}

/// Measures each transport once; the order alternates between rounds.
fn play(args: &DurableArgs, work: &Work, round: u32, interrupt: &Interrupt) -> Result<Round, String> {
    let started = match (&args.url, args.tcp) {
        (Some(_), Some(_)) => None,
        _ => Some(Server::start(args.directory.as_deref(), args.server_core.as_deref(), &args.serve)?),
    };
    let (url, tcp) = match &started {
        Some(server) => (server.url.clone(), server.tcp),
        None => (args.url.clone().unwrap_or_default(), args.tcp.ok_or("URL needs --tcp ADDRESS")?),
    };
    let pid = started.as_ref().map(Server::pid).or(args.pid);
    let place = wire::Place { url: url.trim_end_matches('/').to_owned(), tcp };
    let mut ways = Way::BOTH;
    ways.rotate_left(round as usize % 2);
    // Unique stream names, also on a long-running server.
    let run = format!("bench-{}-{round}", std::process::id());
    let mut measured = Round::default();
    for phase in [Phase::Producing, Phase::Consuming] {
        let actors = if phase == Phase::Producing { args.producers } else { args.consumers };
        for way in ways {
            let stream = |actor: usize| format!("{run}.{}.{}", way.name(), actor % args.producers);
            let before = usage(pid)?;
            let streams: Vec<String> = (0..actors.get()).map(stream).collect();
            let outcome = actor::run(work, phase, way, &place, &streams, interrupt)?;
            let busy = usage(pid)?.zip(before).map(|(after, before)| after.saturating_sub(before));
            measured.add(phase, way, outcome, busy);
        }
    }
    Ok(measured)
}

/// CPU time of the server so far.
fn usage(pid: Option<u32>) -> Result<Option<std::time::Duration>, String> {
    pid.map(|pid| process::usage(&[pid], true).map(|usage| usage.busy)).transpose()
}
