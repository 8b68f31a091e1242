//! `sinews bench durable`: measures durable-stream producers and consumers over WebSocket and over plain TCP in
//! alternation, to show WebSocket's overhead.

mod actor;
mod report;

use self::actor::{ActorWorkload, DurablePhase};
use self::report::{DurableReport, DurableRound};
use crate::args::DurableArgs;
use crate::interrupt::Interrupt;
use crate::output::{print, print_status};
use crate::process;
use crate::streams::connection::ServerAddresses;
use crate::streams::{StreamServer, StreamTransport};

pub(crate) fn run(args: &DurableArgs, interrupt: &Interrupt) -> Result<(), String> {
    if let Some(cores) = &args.load_core {
        process::pin(cores)?;
    }
    let work = ActorWorkload::new(args.size, args.batch.get(), args.batches.get(), args.ack)?;
    let mut report = DurableReport::new(args, work.batch_bytes());
    for round in 0..args.rounds {
        let measured = run_round(args, &work, round, interrupt)?;
        if interrupt.is_interrupted() {
            print_status(&format!("interrupted: {round} of {} rounds are complete", args.rounds));
            break;
        }
        if !args.quiet {
            print_status(&format!("round {} of {}: {}", round + 1, args.rounds, report::line(&measured)));
        }
        report.add(measured);
    }
    if report.is_empty() {
        return Err("interrupted before the first round was complete".to_owned());
    }
    let message = if args.json { format!("{:#}", report.to_json()) } else { report.table() };
    print(&message);
    Ok(())
}

/// Measures each transport once; the order alternates between rounds.
fn run_round(
    args: &DurableArgs,
    work: &ActorWorkload,
    round: u32,
    interrupt: &Interrupt,
) -> Result<DurableRound, String> {
    let started = match (&args.url, args.tcp) {
        (Some(_), Some(_)) => None,
        _ => Some(StreamServer::start(args.directory.as_deref(), args.server_core.as_deref(), &args.serve)?),
    };
    let (url, tcp) = match &started {
        Some(server) => (server.url.clone(), server.tcp),
        None => (args.url.clone().unwrap_or_default(), args.tcp.ok_or("URL needs --tcp ADDRESS")?),
    };
    let pid = started.as_ref().map(StreamServer::pid).or(args.pid);
    let addresses = ServerAddresses { url: url.trim_end_matches('/').to_owned(), tcp };
    let mut transports = StreamTransport::BOTH;
    transports.rotate_left(round as usize % 2);
    // Unique stream names, also on a long-running server.
    let run = format!("bench-{}-{round}", std::process::id());
    let mut measured = DurableRound::default();
    for phase in [DurablePhase::Producing, DurablePhase::Consuming] {
        let actors = if phase == DurablePhase::Producing { args.producers } else { args.consumers };
        for transport in transports {
            let stream = |actor: usize| format!("{run}.{}.{}", transport.name(), actor % args.producers);
            let before = usage(pid)?;
            let streams: Vec<String> = (0..actors.get()).map(stream).collect();
            let outcome = actor::run(work, phase, transport, &addresses, &streams, interrupt)?;
            let busy = usage(pid)?.zip(before).map(|(after, before)| after.saturating_sub(before));
            measured.add(phase, transport, outcome, busy);
        }
    }
    Ok(measured)
}

/// The server's CPU time so far.
fn usage(pid: Option<u32>) -> Result<Option<std::time::Duration>, String> {
    pid.map(|pid| process::usage(&[pid], true).map(|usage| usage.busy)).transpose()
}
