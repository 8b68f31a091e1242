//! Fan-out to more subscribers than the descriptor limit of one process.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sinews_proto::Role;

use crate::Error;
use crate::args::{CrowdArgs, CrowdClientsArgs};
use crate::connect::{connect, shake_hands};
use crate::fanout::{Subscribers, burst_of};
use crate::idle::memory::Memory;
use crate::process::Server;
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
    // A client process that is still connecting subscribers does not answer pings of its other connections.
    let options = ServeOptions { threads: args.threads(), ping_interval: "off", ..ServeOptions::default() };
    let server = programs.start(target, &options)?;
    let before = Memory::now(server.pid())?;
    let mut crowd = Vec::new();
    let mut left = args.subscribers;
    while left > 0 {
        let count = left.min(SUBSCRIBERS_PER_PROCESS);
        crowd.push(Members::start(&server, crowd.len(), count, burst)?);
        left -= count;
    }
    let mut publisher = connect(server.address)?;
    shake_hands(&mut publisher, "/topics/fanout?self=false", args.subscribers as u64, None)?;
    let request = burst_of(burst, Role::Client);
    let (mut costs, mut times) = (Vec::new(), Vec::new());
    let deliveries = (args.subscribers * burst) as f64;
    // The first burst grows all buffers, and does not count.
    for round in 0..=args.rounds {
        let used = server.settled_usage()?;
        let begun = Instant::now();
        publisher.write_all(&request)?;
        crowd.iter_mut().try_for_each(Members::have_it)?;
        let elapsed = begun.elapsed();
        if round > 0 {
            costs.push(server.settled_usage()?.since(used).run_ns as f64 / deliveries);
            times.push(elapsed.as_secs_f64());
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

/// A process with some of the subscribers.
struct Members {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Members {
    /// Starts the process and waits until all its subscribers are subscribed.
    fn start(server: &Server, number: usize, count: usize, burst: usize) -> Result<Self, Error> {
        // Each process has its own source address, and with it its own ports.
        let mut child = Command::new(env::current_exe()?)
            .args(["crowd-clients", &server.address.to_string(), &format!("127.0.{}.1:0", number + 1)])
            .args([count.to_string(), burst.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("standard output is piped")?);
        let mut members = Self { child, said };
        members.have_it()?;
        Ok(members)
    }

    /// Waits until the process reports that all subscribers have the awaited message.
    fn have_it(&mut self) -> Result<(), Error> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        if line == DONE { Ok(()) } else { Err("a process of subscribers failed, see above".into()) }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the process of some of the subscribers.
pub(crate) fn clients(args: &CrowdClientsArgs) -> Result<(), Error> {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    let mut subscribers = Subscribers::connect(args.server, Some(args.source), args.subscribers, args.burst)?;
    loop {
        print!("{DONE}");
        io::stdout().flush()?;
        subscribers.receive::<true>(SLEEP, PATIENCE)?;
    }
}

/// Line that reports all subscriptions, and later the arrival of a burst at all subscribers.
const DONE: &str = "done\n";

/// A connection takes a descriptor of the client process, and the limit is often 20,000.
const SUBSCRIBERS_PER_PROCESS: usize = 15_000;

/// Several processes share the load's core: an idle process leaves it to the other processes.
const SLEEP: Duration = Duration::from_secs(1);

/// Time for all other subscriptions before the first burst.
const PATIENCE: Duration = Duration::from_secs(300);
