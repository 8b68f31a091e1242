//! Fan-out: one publisher, many subscribers of one topic.

use std::fs;
use std::time::Duration;

use crate::Error;
use crate::args::FanoutArgs;
use crate::generator::{Generator, topic};
use crate::process::Server;
use crate::report;
use crate::round::{Rounds, Work};
use crate::target::{Programs, ServeOptions, named};

/// Runs the measurement of the arguments and prints a table for each number of subscribers and each burst.
pub(crate) fn run(args: &FanoutArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    let names: Vec<String> = targets.iter().map(|target| target.name().to_owned()).collect();
    let ours: Vec<usize> = (0..targets.len()).filter(|index| targets[*index].is_sinews()).collect();
    for subscribers in args.subscribers() {
        for burst in args.bursts() {
            let servers = programs.start_all(&targets, &ServeOptions::default())?;
            let servers = named(&servers);
            let mut sends = Vec::new();
            for (name, server) in &servers {
                let counted = sends_of_burst(server, subscribers, burst);
                sends.push(format!("{name} {:.2}", counted.map_err(|error| format!("{name}: {error}"))?));
                server.settled_usage()?;
            }
            let rounds = Rounds::of_servers(args.plan.plan(), &servers, subscribers + 1, |index| {
                open(servers[index].1, subscribers, burst)
            })?;
            let title = format!("{subscribers} subscribers, bursts of {burst}");
            report::table(&title, ["delivery", "deliveries"], &names, &ours, &rounds);
            println!("\nPackets with data per subscriber and burst: {}.", sends.join("; "));
        }
    }
    Ok(())
}

/// Opens the publisher and its subscribers, and publishes for a moment.
fn open(server: &Server, subscribers: usize, burst: usize) -> Result<Generator, Error> {
    let (connections, burst) = ((subscribers + 1).to_string(), burst.to_string());
    let load = ["-m", "fan-out", "-c", &connections, "-i", &burst, "-s", MESSAGE_BYTES, "--burst"];
    Generator::warm(&topic(server.address), &load)
}

/// Counts the packets with data that a subscriber receives for a burst. This is the number of sends: `TCP_NODELAY`
/// is set, and a burst is smaller than a segment. The counter covers this network namespace, so no other program may
/// use it meanwhile.
fn sends_of_burst(server: &Server, subscribers: usize, burst: usize) -> Result<f64, Error> {
    let mut load = open(server, subscribers, burst)?;
    let before = packets_with_data()?;
    let deliveries = load.run(SENDS_WINDOW)?.units;
    let bursts = deliveries / (subscribers * burst) as u64;
    // The count includes the publisher's packets, one for each burst.
    let packets = packets_with_data()? - before - bursts;
    Ok(packets as f64 / (bursts * subscribers as u64) as f64)
}

/// Returns `TCPOrigDataSent` of this network namespace: packets with data, without retransmissions.
fn packets_with_data() -> Result<u64, Error> {
    let all = fs::read_to_string("/proc/net/netstat")?;
    counter(&all, "TcpExt:", "TCPOrigDataSent")
        .ok_or_else(|| "the kernel does not count TCPOrigDataSent".into())
}

/// Reads a counter from a file that has a line of names and a line of values for each group.
fn counter(file: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = file.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(found, _)| *found == name)?.1.parse().ok()
}

/// Payload of a published message.
const MESSAGE_BYTES: &str = "64";

/// Time to count sends.
const SENDS_WINDOW: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let file = "TcpExt: A TCPOrigDataSent B\nTcpExt: 1 23 4\nIpExt: A B\nIpExt: 5 6\n";
        assert_eq!(counter(file, "TcpExt:", "TCPOrigDataSent"), Some(23));
        assert_eq!(counter(file, "IpExt:", "B"), Some(6));
        assert_eq!(counter(file, "IpExt:", "TCPOrigDataSent"), None);
    }
}
