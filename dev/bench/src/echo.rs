//! Echo: every target under the same loads.

use crate::Error;
use crate::args::EchoArgs;
use crate::load::Load;
use crate::report;
use crate::round::{Plan, Rounds};
use crate::target::{Programs, ServeOptions, Target, Threads, named};

/// Runs the measurement of the arguments and prints a table for each load.
pub(crate) fn run(args: &EchoArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    let options = args.options();
    let names: Vec<String> = targets.iter().map(|target| target.full_name(options.runtime)).collect();
    let place = |target: Target| targets.iter().position(|other| *other == target);
    let bases = [Target::PlainMio, Target::PlainRing, Target::TcpEchoPoll, Target::TcpEchoRing];
    let bases = bases.into_iter().chain(Target::SINEWS).chain([
        Target::SinewsTokio,
        Target::SinewsCompio,
        Target::PlainCompio,
    ]);
    let bases = bases.chain((options.runtime == Threads::Multi).then_some(Target::SinewsTokioMulti));
    let beside: Vec<usize> = bases.filter_map(place).collect();
    let mut bars = Vec::new();
    for load in args.loads() {
        let rounds = measure(args.plan.plan(), &programs, &targets, &options, load)?;
        report::table(load.name, ["message", "messages"], &names, &beside, &rounds);
        bars.push((load, rounds));
    }
    println!();
    for (load, rounds) in &bars {
        for sinews in Target::SINEWS {
            let Some(this) = place(sinews) else { continue };
            for (other, bar) in load.bars_of(sinews, &targets) {
                let Some(other) = place(other) else { continue };
                report::bar(load.name, &names, this, other, bar.most, rounds);
            }
        }
    }
    Ok(())
}

fn measure(
    plan: Plan,
    programs: &Programs,
    targets: &[Target],
    options: &ServeOptions,
    load: &Load,
) -> Result<Rounds, Error> {
    let servers = programs.start_all(targets, options)?;
    let named = named(&servers);
    Rounds::of_servers(plan, &named, load.connections, |index| {
        let (target, server) = &servers[index];
        load.open(*target, server.address)
    })
    .map_err(|error| format!("{}, {error}", load.name).into())
}
