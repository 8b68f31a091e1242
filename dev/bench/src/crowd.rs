//! Fan-out to more subscribers than the descriptor limit of one process.

use crate::Error;
use crate::args::CrowdArgs;
use crate::generator::{Generator, many, topic};
use crate::idle::memory::Memory;
use crate::report::{median, significant};
use crate::target::{Programs, ServeOptions, Target};

/// Runs the measurement of the arguments and prints a table for each burst.
pub(crate) fn run(args: &CrowdArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    for burst in args.bursts() {
        println!(
            "\n**{} subscribers, bursts of {burst}**, {} threads on one core, rounds: {}\n\n\
             | server | CPU ns a delivery | lowest, highest | thousand deliveries/s | all have it after, ms | bytes a subscriber |\n\
             |---|---|---|---|---|---|",
            args.subscribers,
            args.threads(),
            args.rounds
        );
        for target in &targets {
            measure(args, &programs, *target, burst)
                .map_err(|error| format!("{}: {error}", target.name()))?;
        }
    }
    println!("\nBytes: private and dirty pages of the server, after the bursts, without the kernel's part.");
    Ok(())
}

fn measure(args: &CrowdArgs, programs: &Programs, target: Target, burst: usize) -> Result<(), Error> {
    let options = ServeOptions { threads: args.threads(), ..ServeOptions::default() };
    let server = programs.start(target, &options)?;
    let before = Memory::now(server.pid())?;
    let (many, in_flight) = (many(args.subscribers + 1), burst.to_string());
    let mut load: Vec<&str> = many.iter().map(String::as_str).collect();
    load.extend(["-m", "fan-out", "-i", &in_flight, "-s", "64"]);
    let mut crowd = Generator::open(&topic(server.address), &load)?;
    server.settled_usage()?;
    let (mut costs, mut times) = (Vec::new(), Vec::new());
    let deliveries = (args.subscribers * burst) as f64;
    // The first burst grows all buffers, and does not count.
    for round in 0..=args.rounds {
        let used = server.settled_usage()?;
        let done = crowd.burst(1)?;
        if round > 0 {
            costs.push(server.settled_usage()?.since(used).run_ns as f64 / deliveries);
            times.push(done.elapsed.as_secs_f64());
        }
    }
    let grown = Memory::now(server.pid())?.since(&before);
    let (low, high) =
        (costs.iter().copied().fold(f64::MAX, f64::min), costs.iter().copied().fold(0., f64::max));
    let time = median(times);
    println!(
        "| {} | {} | {}, {} | {} | {} | {} |",
        target.name(),
        significant(median(costs)),
        significant(low),
        significant(high),
        significant(deliveries / time / 1e3),
        significant(time * 1e3),
        grown.private_dirty / args.subscribers as i64
    );
    Ok(())
}
