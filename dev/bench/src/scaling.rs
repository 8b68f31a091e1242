//! Threads: the same load on one thread of the server and on two.
//!
//! Two cores do not show the scaling of throughput, since the load needs one. They show the cost of a
//! message: threads that share nothing do not increase it, on one shared core or on two.

use crate::Error;
use crate::args::ScalingArgs;
use crate::load::Load;
use crate::process::Server;
use crate::report;
use crate::round::Rounds;
use crate::target::{Programs, ServeOptions, Target};

/// Runs the measurement of the arguments and prints a table for each load and backend.
pub(crate) fn run(args: &ScalingArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    println!("With threads on both cores the server shares one with the load, so no round of it is quiet.");
    for target in programs.startable(&args.targets())? {
        for load in args.loads() {
            measure(args, &programs, target, load)?;
        }
    }
    Ok(())
}

fn measure(args: &ScalingArgs, programs: &Programs, target: Target, load: &Load) -> Result<(), Error> {
    let placements = [(1, "0"), (2, "0"), (1, "0,1"), (2, "0,1")];
    let mut servers = Vec::new();
    for (threads, cores) in placements {
        let plural = if threads == 1 { "" } else { "s" };
        let options = ServeOptions { threads, cores, ..ServeOptions::default() };
        servers.push((format!("{threads} thread{plural}, cores {cores}"), programs.start(target, &options)?));
    }
    let named: Vec<(String, &Server)> = servers.iter().map(|(name, server)| (name.clone(), server)).collect();
    let rounds = Rounds::of_servers(args.plan.plan(), &named, load.connections, |index| {
        load.open(target, servers[index].1.address)
    })?;
    let title = format!("{}, {}", target.name(), load.name);
    // The placements of a pair differ only in the number of threads.
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    report::table(&title, ["message", "messages"], &names, &[0, 2], &rounds);
    Ok(())
}
