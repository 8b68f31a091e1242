//! Rounds: every target once, forward and backward in turns, so that what drifts drifts for all.

use std::fs;
use std::time::Duration;

use crate::Error;
use crate::args::MeasureArgs;
use crate::client::{CONGESTION, Client};
use crate::load::Load;
use crate::report;
use crate::target::{Programs, Server, Target, Usage, pin_load};

/// Measures what the arguments say and prints a table.
pub(crate) fn run(args: &MeasureArgs) -> Result<(), Error> {
    let programs = Programs::build(args)?;
    pin_load()?;
    let default = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    println!(
        "Congestion control: {CONGESTION} on the load's sockets; on the servers' the route's, else the \
         system's ({}).\n",
        default.trim()
    );
    let targets = args.targets();
    report::head(&targets);
    let mut bars = Vec::new();
    for load in args.loads() {
        let rounds = rounds(args, &programs, &targets, load)?;
        report::row(load, &targets, &rounds);
        bars.extend(report::bar(load, &targets, &rounds));
    }
    println!();
    bars.iter().for_each(|bar| println!("{bar}"));
    Ok(())
}

/// What was measured of one target in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    /// The server's CPU time per message, in nanoseconds.
    pub(crate) ns: f64,
    pub(crate) messages_per_s: f64,
    /// The share of the time that the server ran.
    pub(crate) busy: f64,
    /// Neither the server nor the load waited much for its core.
    quiet: bool,
}

/// The rounds that count of one load.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// By round, then by target.
    pub(crate) measures: Vec<Vec<Measure>>,
    /// All of them are quiet. If there were too few, all count, and this says so.
    pub(crate) quiet: bool,
}

fn rounds(args: &MeasureArgs, programs: &Programs, targets: &[Target], load: &Load) -> Result<Rounds, Error> {
    let mut stands = Vec::with_capacity(targets.len());
    for target in targets {
        let server = Server::start(programs, *target)?;
        let path = target.speaks_websocket().then_some("/echo");
        let client = Client::connect(server.address, load.connections, path, load.batch(*target))
            .map_err(|error| format!("{}, {}: {error}", load.name, target.name()))?;
        stands.push((server, client));
    }
    let (wanted, mut all) = (args.rounds as usize, Vec::new());
    let quiet = |round: &&Vec<Measure>| round.iter().all(|measure| measure.quiet);
    while all.iter().filter(quiet).count() < wanted && all.len() < wanted * ATTEMPTS_PER_ROUND {
        let mut round = vec![None; stands.len()];
        let backward = all.len() % 2 == 1;
        for place in 0..stands.len() {
            let index = if backward { stands.len() - 1 - place } else { place };
            let (server, client) = &mut stands[index];
            round[index] = Some(measure(server, client, args.window())?);
        }
        all.push(round.into_iter().flatten().collect());
    }
    let enough = all.iter().filter(quiet).count() >= wanted;
    if enough {
        all.retain(|round| quiet(&round));
    }
    Ok(Rounds { measures: all, quiet: enough })
}

fn measure(server: &Server, client: &mut Client, window: Duration) -> Result<Measure, Error> {
    let load = Usage::of(std::process::id())?;
    let before = server.settled_usage()?;
    let echoed = client.run(window)?;
    let used = server.settled_usage()?.since(before);
    let load = Usage::of(std::process::id())?.since(load);
    let elapsed_ns = echoed.elapsed.as_nanos() as f64;
    let waited = used.wait_ns.max(load.wait_ns) as f64 / elapsed_ns;
    Ok(Measure {
        ns: used.run_ns as f64 / echoed.messages as f64,
        messages_per_s: echoed.messages as f64 / echoed.elapsed.as_secs_f64(),
        busy: used.run_ns as f64 / elapsed_ns,
        quiet: waited <= WAITED_MAX,
    })
}

/// Rounds that others disturb are repeated, but not for ever.
const ATTEMPTS_PER_ROUND: usize = 4;

/// Of the window, waiting for the core while something else has it.
pub(crate) const WAITED_MAX: f64 = 0.04;
