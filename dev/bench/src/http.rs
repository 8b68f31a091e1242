//! HTTP: `GET /healthz` on persistent connections, one by one and pipelined.

use crate::Error;
use crate::args::HttpArgs;
use crate::generator::Generator;
use crate::report;
use crate::round::Rounds;
use crate::target::{Programs, ServeOptions, named};

/// Runs the measurement of the arguments and prints a table for each depth of pipelining.
pub(crate) fn run(args: &HttpArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    let names: Vec<String> = targets.iter().map(|target| target.name().to_owned()).collect();
    let ours: Vec<usize> = (0..targets.len()).filter(|index| targets[*index].is_sinews()).collect();
    let mut bars = Vec::new();
    for depth in args.depths() {
        let servers = programs.start_all(&targets, &ServeOptions::default())?;
        let rounds = Rounds::of_servers(args.plan.plan(), &named(&servers), args.connections, |index| {
            let url = format!("http://{}/healthz", servers[index].1.address);
            let (connections, depth) = (args.connections.to_string(), depth.to_string());
            Generator::warm(&url, &["-c", &connections, "-i", &depth, "--burst", "--expect", "ok\n"])
        })?;
        let title = format!("{} connections, {depth} in flight", args.connections);
        report::table(&title, ["request", "requests"], &names, &ours, &rounds);
        bars.push((title, rounds));
    }
    println!();
    for (title, rounds) in &bars {
        for &this in &ours {
            for other in (0..targets.len()).filter(|index| targets[*index].is_peer()) {
                report::bar(title, &names, this, other, 1., rounds);
            }
        }
    }
    Ok(())
}
