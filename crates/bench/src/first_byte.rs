//! `sinews bench first-byte`: measures each protocol operation on an idle server, from the request to the first byte of
//! its result. Under load, the next request can end a delay and hide it; here no request follows.

mod context;
mod operations;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinews_engine::BackendChoice;

use self::context::OperationContext;
use self::operations::{MeasuredOperation, all};
use crate::args::FirstByteArgs;
use crate::interrupt::Interrupt;
use crate::output::{print, print_status};
use crate::report::units::nanos;
use crate::streams::StreamServer;
use crate::streams::connection::ServerAddresses;
use crate::tally;

/// An operation and its measurements.
struct OperationLatency {
    operation: MeasuredOperation,
    /// Nanoseconds.
    first_byte: Histogram<u64>,
}

pub(crate) fn run(args: &FirstByteArgs, interrupt: &Interrupt) -> Result<(), String> {
    let started = if args.url.is_none() { Some(start(args)?) } else { None };
    let addresses = match (&started, &args.url, args.tcp) {
        (Some(server), ..) => ServerAddresses { url: server.url.clone(), tcp: server.tcp },
        (None, Some(url), Some(tcp)) => ServerAddresses { url: url.trim_end_matches('/').to_owned(), tcp },
        _ => return Err("URL needs --tcp ADDRESS".to_owned()),
    };
    let context = OperationContext::prepare(addresses, args.idle)?;
    let wanted =
        |operation: &MeasuredOperation| args.only.as_ref().is_none_or(|text| operation.name().contains(text));
    let new = |operation| OperationLatency { operation, first_byte: tally::histogram() };
    let mut measured: Vec<OperationLatency> = all().into_iter().filter(wanted).map(new).collect();
    if measured.is_empty() {
        return Err(format!(
            "--only {}: no operation name contains this text",
            args.only.as_deref().unwrap_or("")
        ));
    }
    for round in 0..args.rounds {
        for OperationLatency { operation, first_byte } in &mut measured {
            if interrupt.is_interrupted() {
                print_status(&format!("interrupted: {round} of {} rounds are complete", args.rounds));
                show(args, &measured);
                return Ok(());
            }
            let took = operation.run(&context).map_err(|error| format!("{}: {error}", operation.name()))?;
            tally::record(first_byte, took);
        }
        if !args.quiet {
            print_status(&format!("round {} of {}", round + 1, args.rounds));
        }
    }
    show(args, &measured);
    Ok(())
}

/// Starts a server with the topics and streams that the operations need.
fn start(args: &FirstByteArgs) -> Result<StreamServer, String> {
    let backend = match args.backend {
        BackendChoice::Uring => "uring",
        BackendChoice::Poll => "poll",
        _ => "auto",
    };
    let kept = format!("{}>", context::DURABLE_TOPICS);
    let remembered = format!("{}>=100", context::HISTORY_TOPICS);
    let more =
        ["--threads", "1", "--backend", backend, "--streams-durable-topics", &kept, "--history", &remembered];
    let more: Vec<String> = more.map(str::to_owned).into_iter().chain(args.serve.iter().cloned()).collect();
    StreamServer::start(None, None, &more)
}

fn show(args: &FirstByteArgs, measured: &[OperationLatency]) {
    let message = if args.json { format!("{:#}", to_json(args, measured)) } else { table(args, measured) };
    print(&message);
}

fn table(args: &FirstByteArgs, measured: &[OperationLatency]) -> String {
    let width = measured.iter().map(|one| one.operation.name().len()).max().unwrap_or_default();
    let head = format!("{:<width$}{:>10}{:>10}{:>10}", "first byte on an idle server", "min", "p50", "max");
    let row = |one: &OperationLatency| {
        let time = |value: u64| nanos(value as f64);
        let [min, p50, max] =
            [one.first_byte.min(), one.first_byte.value_at_quantile(0.5), one.first_byte.max()].map(time);
        format!("{:<width$}{min:>10}{p50:>10}{max:>10}", one.operation.name())
    };
    let rows: Vec<String> = measured.iter().map(row).collect();
    let idle = nanos(args.idle.as_nanos() as f64);
    format!("{head}\n{}\n{} rounds, {idle} of rest before each operation", rows.join("\n"), args.rounds)
}

fn to_json(args: &FirstByteArgs, measured: &[OperationLatency]) -> Value {
    let operation = |one: &OperationLatency| {
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
