//! `sinews bench durable`: producers and consumers of durable streams, over WebSocket and over plain TCP by turns, so that
//! what WebSocket itself costs can be seen.

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

/// Measure durable streams: producers first, then consumers, over WebSocket and over plain TCP by turns.
///
/// A producer publishes a batch of records and waits until it is acknowledged, then the next one; a consumer fetches a
/// batch and waits for it. Each has a stream of its own. Both ways carry the same messages, so that the ratio is what
/// masking, frames and their handling cost.
///
/// Without a URL a server is started for each round, with a directory of its own, which is removed again.
#[derive(Debug, Args)]
#[command(next_help_heading = "Durable streams")]
pub(crate) struct DurableArgs {
    /// A server that keeps streams, such as ws://127.0.0.1:8080; its streams are left behind
    #[arg(value_name = "URL", requires = "tcp")]
    url: Option<String>,

    /// Where that server speaks plain TCP (`--streams-listen`)
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    tcp: Option<SocketAddr>,

    /// Bytes of a record's value
    #[arg(short, long, value_name = "BYTES", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=8 << 20))]
    size: u32,

    /// Records in a batch
    #[arg(short, long, value_name = "N", default_value = "1000")]
    batch: NonZeroU32,

    /// Batches of each producer and consumer in a round
    #[arg(short = 'n', long, value_name = "N", default_value = "200")]
    batches: NonZeroUsize,

    /// Producers, each with a stream and a thread of its own
    #[arg(short, long, value_name = "N", default_value = "2")]
    producers: NonZeroUsize,

    /// Consumers, each with a thread of its own; the streams are read by turns if there are more than producers
    #[arg(short, long, value_name = "N", default_value = "2")]
    consumers: NonZeroUsize,

    /// When a batch is acknowledged
    #[arg(long, value_name = "WHEN", value_enum, default_value = "disk")]
    ack: Ack,

    /// How often each way is measured. Eight are the fewest that can tell a difference with 99 % confidence
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Where the servers that are started here keep their streams: the disk that is measured [default: the system's
    /// directory for temporary files]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    directory: Option<PathBuf>,

    /// Further arguments of `sinews serve` for the servers that are started here, such as `--streams-fsync=never`; may
    /// be given several times
    #[arg(long, value_name = "ARGUMENT", conflicts_with = "url", allow_hyphen_values = true)]
    serve: Vec<String>,

    /// Processors of the servers that are started here, as taskset takes them, such as 0 or 0,2
    #[arg(long, value_name = "LIST", conflicts_with = "url")]
    server_core: Option<String>,

    /// Processors of producers and consumers
    #[arg(long, value_name = "LIST")]
    load_core: Option<String>,

    /// The server's process, for its processor time
    #[arg(long, value_name = "PID", requires = "url")]
    pid: Option<u32>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Show nothing while it runs
    #[arg(short, long)]
    quiet: bool,
}

/// What a producer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ack {
    /// The order of the records is fixed.
    Memory,
    /// They are on disk, as the server's `--streams-fsync` says.
    Disk,
}

/// How the messages travel.
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
            super::say(&format!("interrupted: of {} rounds, {round} are over", args.rounds));
            break;
        }
        if !args.quiet {
            super::say(&format!("round {} of {}: {}", round + 1, args.rounds, report::line(&measured)));
        }
        report.add(measured);
    }
    if report.is_empty() {
        return Err("interrupted before a round was over".to_owned());
    }
    let words = if args.json { format!("{:#}", report.to_json()) } else { report.table() };
    super::print(&words);
    Ok(())
}

/// Each way once: who was first in one round is second in the next.
fn play(args: &DurableArgs, work: &Work, round: u32, interrupt: &Interrupt) -> Result<Round, String> {
    let started = match (&args.url, args.tcp) {
        (Some(_), Some(_)) => None,
        _ => Some(Server::start(args.directory.as_deref(), args.server_core.as_deref(), &args.serve)?),
    };
    let (url, tcp) = match &started {
        Some(server) => (server.url.clone(), server.tcp),
        None => (args.url.clone().unwrap_or_default(), args.tcp.ok_or("--tcp ADDRESS belongs to a URL")?),
    };
    let pid = started.as_ref().map(Server::pid).or(args.pid);
    let place = wire::Place { url: url.trim_end_matches('/').to_owned(), tcp };
    let mut ways = Way::BOTH;
    ways.rotate_left(round as usize % 2);
    // Nobody has used these names before, here or on a server that goes on.
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

/// Processor time of the server so far.
fn usage(pid: Option<u32>) -> Result<Option<std::time::Duration>, String> {
    pid.map(|pid| process::usage(&[pid], true).map(|usage| usage.busy)).transpose()
}
