//! Echo: every target under the same loads.

use crate::Error;
use crate::args::EchoArgs;
use crate::client::Client;
use crate::load::Load;
use crate::process::Server;
use crate::report;
use crate::round::{Measure, Plan, Rounds};
use crate::target::{Programs, ServeOptions, Target};

/// Measures what the arguments say and prints a table for each load.
pub(crate) fn run(args: &EchoArgs, descriptors: u64) -> Result<(), Error> {
    let mut targets = args.targets();
    let programs = Programs::build(&args.programs, &targets)?;
    crate::prepare_load()?;
    // Says once which are left out.
    targets = started(&programs, &targets)?.into_iter().map(|(target, _)| target).collect();
    let names: Vec<String> = targets.iter().map(|target| target.name().to_owned()).collect();
    let place = |target: Target| targets.iter().position(|other| *other == target);
    let bases = [Target::PlainMio, Target::PlainRing, Target::TcpEchoPoll, Target::TcpEchoRing];
    let bases = bases.into_iter().chain([Target::SinewsPoll, Target::SinewsRing]);
    let beside: Vec<usize> = bases.filter_map(place).collect();
    let mut bars = Vec::new();
    for load in args.loads() {
        let rounds = measure(args.plan.plan(), &programs, &targets, load, descriptors)?;
        report::table(load.name, "message", &names, &beside, &rounds);
        bars.push((load, rounds));
    }
    println!();
    for (load, rounds) in &bars {
        for sinews in [Target::SinewsPoll, Target::SinewsRing] {
            let Some(this) = place(sinews) else { continue };
            for (other, bar) in load.bars_of(sinews, &targets) {
                let Some(other) = place(other) else { continue };
                report::bar(load.name, &names, this, other, bar.most, rounds);
            }
        }
    }
    Ok(())
}

fn started(programs: &Programs, targets: &[Target]) -> Result<Vec<(Target, Server)>, Error> {
    let mut servers = Vec::with_capacity(targets.len());
    for target in targets {
        servers.extend(programs.start(*target, &ServeOptions::default())?.map(|server| (*target, server)));
    }
    Ok(servers)
}

fn measure(
    plan: Plan,
    programs: &Programs,
    targets: &[Target],
    load: &Load,
    descriptors: u64,
) -> Result<Rounds, Error> {
    let servers = started(programs, targets)?;
    let connect = |index: usize| {
        let (target, server) = &servers[index];
        let path = target.speaks_websocket().then_some("/echo");
        Client::connect(server.address, load.connections, path, load.batch(*target))
            .map_err(|error| format!("{}, {}: {error}", load.name, target.name()))
    };
    // All stay connected if this process may have so many descriptors; else each connects for its turn.
    let stay = (load.connections * targets.len()) as u64 + DESCRIPTORS_SPARE <= descriptors;
    let mut clients = Vec::new();
    if stay {
        clients = (0..servers.len()).map(connect).collect::<Result<_, _>>()?;
    }
    Rounds::run(plan, servers.len(), |index| {
        let server = &servers[index].1;
        match clients.get_mut(index) {
            Some(client) => Measure::of(server, || client.run(plan.window)),
            None => {
                let mut client = connect(index)?;
                let measure = Measure::of(server, || client.run(plan.window))?;
                drop(client);
                // The others are measured when the end of these connections has been worked off.
                server.settled_usage()?;
                Ok(measure)
            }
        }
    })
}

/// For what is no connection.
const DESCRIPTORS_SPARE: u64 = 200;
