//! `sinews bench first-byte`: measures each protocol operation on an idle server, from the request to the first byte
//! of its result. Under load, the next request can end a delay and hide it; here no request follows.

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
    /// `--streams-topics 'bench.kept.>'` and `--history 'bench.memory.>=100'`; its benchmark streams are not deleted
    #[arg(value_name = "URL", requires = "tcp")]
    url: Option<String>,

    /// Plain TCP address of the server (its `--streams-listen`)
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    tcp: Option<SocketAddr>,

    /// Measurements of each operation
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Idle time of the server before each operation
    #[arg(long, value_name = "TIME", value_parser = super::args::time, default_value = "5ms")]
    idle: Duration,

    /// I/O backend of the started server: `uring` is io_uring, `poll` is epoll or kqueue, `auto` is the best available
    #[arg(long, value_parser = super::args::backends(), value_name = "NAME", default_value = "auto", conflicts_with = "url")]
    backend: BackendChoice,

    /// Additional argument of `sinews serve` for the started server, such as `--streams-fsync=never`; repeatable
    #[arg(long, value_name = "ARGUMENT", conflicts_with = "url", allow_hyphen_values = true)]
    serve: Vec<String>,

    /// Measure only operations whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// An operation and its measurements.
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
        _ => return Err("URL needs --tcp ADDRESS".to_owned()),
    };
    let stage = Stage::prepare(place, args.idle)?;
    let wanted =
        |operation: &Operation| args.only.as_ref().is_none_or(|text| operation.name().contains(text));
    let new = |operation| Measured { operation, first_byte: tally::histogram() };
    let mut measured: Vec<Measured> = all().into_iter().filter(wanted).map(new).collect();
    if measured.is_empty() {
        return Err(format!(
            "--only {}: no operation name contains this text",
            args.only.as_deref().unwrap_or("")
        ));
    }
    for round in 0..args.rounds {
        for Measured { operation, first_byte } in &mut measured {
            if interrupt.came() {
                super::say(&format!("interrupted: {round} of {} rounds are complete", args.rounds));
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

/// Starts a server with the topics and streams that the operations need.
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
        // All measurements in ascending order: a few rounds have no meaningful quantiles.
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
