//! `sinews bench first-byte`: each operation of the protocols on an idle server, from the request to the first byte of
//! what it asks for. A load shows no wait that the next request ends; here there is no next request.

mod operations;
mod stage;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinews_engine::BackendChoice;

use self::operations::{Operation, all};
use self::stage::Stage;
use super::durable::server::Server;
use super::durable::wire::Place;
use super::interrupt::Interrupt;
use super::report::units::nanos;
use super::tally;

/// Measure how long an idle server takes for the first byte of each operation of its protocols.
///
/// One client does one operation at a time, on a connection of its own, after the server has had nothing to do for
/// --idle. Measured is the time from sending the request until what it asks for begins to come: an answer, or the first
/// message or records. No figure may depend on what else the server does.
///
/// Without a URL a server with one thread is started, with a directory of its own, which is removed again.
#[derive(Debug, Args)]
#[command(next_help_heading = "First bytes")]
pub(crate) struct FirstByteArgs {
    /// A server that runs already, such as ws://127.0.0.1:8080, with `--streams DIRECTORY`, `--streams-listen`,
    /// `--streams-topics 'bench.kept.>'` and `--history 'bench.memory.>=100'`; its streams are left behind
    #[arg(value_name = "URL", requires = "tcp")]
    url: Option<String>,

    /// Where that server speaks plain TCP (`--streams-listen`)
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    tcp: Option<SocketAddr>,

    /// How often each operation is measured
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// How long the server is left alone before each operation
    #[arg(long, value_name = "TIME", value_parser = super::args::time, default_value = "5ms")]
    idle: Duration,

    /// What drives the sockets of the server that is started here: io_uring, epoll or kqueue (`poll`), or what there is
    #[arg(long, value_parser = super::args::backends(), value_name = "NAME", default_value = "auto", conflicts_with = "url")]
    backend: BackendChoice,

    /// Further arguments of `sinews serve` for that server, such as `--streams-fsync=never`; may be given several times
    #[arg(long, value_name = "ARGUMENT", conflicts_with = "url", allow_hyphen_values = true)]
    serve: Vec<String>,

    /// Measure only the operations with this in their names
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Show nothing while it runs
    #[arg(short, long)]
    quiet: bool,
}

/// An operation and what it came to.
struct Measured {
    operation: Operation,
    /// Nanoseconds.
    first_byte: Histogram<u64>,
}

pub(crate) fn run(args: &FirstByteArgs, interrupt: &Interrupt) -> Result<(), String> {
    let started = if args.url.is_none() { Some(start(args)?) } else { None };
    let place = match (&started, &args.url, args.tcp) {
        (Some(server), ..) => Place { url: server.url.clone(), tcp: server.tcp },
        (None, Some(url), Some(tcp)) => Place { url: url.trim_end_matches('/').to_owned(), tcp },
        _ => return Err("--tcp ADDRESS belongs to a URL".to_owned()),
    };
    let stage = Stage::prepare(place, args.idle)?;
    let wanted =
        |operation: &Operation| args.only.as_ref().is_none_or(|text| operation.name().contains(text));
    let new = |operation| Measured { operation, first_byte: tally::histogram() };
    let mut measured: Vec<Measured> = all().into_iter().filter(wanted).map(new).collect();
    if measured.is_empty() {
        return Err(format!(
            "--only {}: no operation has this in its name",
            args.only.as_deref().unwrap_or("")
        ));
    }
    for round in 0..args.rounds {
        for Measured { operation, first_byte } in &mut measured {
            if interrupt.came() {
                super::say(&format!("interrupted: of {} rounds, {round} are over", args.rounds));
                show(args, &measured);
                return Ok(());
            }
            let took = operation.run(&stage).map_err(|error| format!("{}: {error}", operation.name()))?;
            tally::record(first_byte, took);
        }
        if !args.quiet {
            super::say(&format!("round {} of {}", round + 1, args.rounds));
        }
    }
    show(args, &measured);
    Ok(())
}

/// A server that keeps what the operations are about.
fn start(args: &FirstByteArgs) -> Result<Server, String> {
    let backend = match args.backend {
        BackendChoice::Uring => "uring",
        BackendChoice::Poll => "poll",
        _ => "auto",
    };
    let kept = format!("{}>", stage::KEPT);
    let remembered = format!("{}>=100", stage::REMEMBERED);
    let more = ["--threads", "1", "--backend", backend, "--streams-topics", &kept, "--history", &remembered];
    let more: Vec<String> = more.map(str::to_owned).into_iter().chain(args.serve.iter().cloned()).collect();
    Server::start(None, None, &more)
}

fn show(args: &FirstByteArgs, measured: &[Measured]) {
    let words = if args.json { format!("{:#}", to_json(args, measured)) } else { table(args, measured) };
    super::print(&words);
}

fn table(args: &FirstByteArgs, measured: &[Measured]) -> String {
    let width = measured.iter().map(|one| one.operation.name().len()).max().unwrap_or_default();
    let head = format!("{:<width$}{:>10}{:>10}{:>10}", "first byte on an idle server", "min", "p50", "max");
    let row = |one: &Measured| {
        let time = |value: u64| nanos(value as f64);
        let [min, p50, max] =
            [one.first_byte.min(), one.first_byte.value_at_quantile(0.5), one.first_byte.max()].map(time);
        format!("{:<width$}{min:>10}{p50:>10}{max:>10}", one.operation.name())
    };
    let rows: Vec<String> = measured.iter().map(row).collect();
    let idle = nanos(args.idle.as_nanos() as f64);
    format!("{head}\n{}\n{} rounds, {idle} of rest before each operation", rows.join("\n"), args.rounds)
}

fn to_json(args: &FirstByteArgs, measured: &[Measured]) -> Value {
    let operation = |one: &Measured| {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let all = &one.first_byte;
        // Each of them, in order of size: a few rounds have no other quantiles.
        let each: Vec<f64> = all
            .iter_recorded()
            .flat_map(|value| {
                std::iter::repeat_n(micros(value.value_iterated_to()), value.count_at_value() as usize)
            })
            .collect();
        json!({
            "name": one.operation.name(), "count": all.len(), "min_us": micros(all.min()),
            "p50_us": micros(all.value_at_quantile(0.5)), "max_us": micros(all.max()), "each_us": each,
        })
    };
    let operations: Vec<Value> = measured.iter().map(operation).collect();
    json!({ "rounds": args.rounds, "idle_us": args.idle.as_micros() as u64, "operations": operations })
}
