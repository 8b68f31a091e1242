//! `sinews bench idle`: opens idle connections in steps, and measures the memory of the server and of the kernel for
//! each.

mod fit;
mod limits;
mod memory;
mod report;

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_engine::{BackendChoice, Remote};

use self::memory::MemoryReading;
use self::report::{IdleCpu, IdleReport, IdleStep};
use crate::args::{BenchArgs, IdleArgs, load_plan};
use crate::interrupt::Interrupt;
use crate::load::{LoadCommand, LoadThreads};
use crate::output::{print, print_status};
use crate::plan::{LoadMode, LoadPlan};
use crate::tally::LoadFigures;
use crate::{measure, process};

pub(crate) fn run(args: &IdleArgs, interrupt: &Interrupt) -> Result<(), String> {
    let steps = steps(args)?;
    let epoch = Instant::now();
    let loads = start(args, &steps, epoch)?;
    let before = MemoryReading::take(&args.pid)?;
    let mut report = IdleReport::new(args, loads[0].threads.backend);
    let mut stopped = false;
    for connections in steps {
        let step = run_step(args, &loads, connections, epoch, &before, interrupt)?;
        stopped = step.is_none();
        let Some(step) = step else { break };
        if !args.quiet {
            print_status(&report::line(&step));
        }
        report.steps.push(step);
    }
    if !stopped && !args.hold.is_zero() {
        report.cpu = Some(measure_cpu(args, report.last(), interrupt)?);
    }
    let mut figures = LoadFigures::new();
    for load in loads {
        figures.merge(&load.threads.end()?.0);
    }
    if !report.steps.is_empty() {
        print(&if args.json { format!("{:#}", report.to_json()) } else { report.table() });
    }
    measure::verdict(&figures)?;
    match stopped && !interrupt.is_interrupted() {
        true => Err("connections did not open in time (--timeout)".to_owned()),
        false => Ok(()),
    }
}

/// The connections to one URL.
struct IdleLoad {
    plan: Arc<LoadPlan>,
    threads: LoadThreads,
    /// This URL's position among all.
    index: usize,
}

impl IdleLoad {
    /// Returns this URL's share of so many connections to all URLs.
    fn share(&self, connections: usize, urls: usize) -> usize {
        share(connections, urls, self.index)
    }
}

fn share(connections: usize, of: usize, index: usize) -> usize {
    connections / of + usize::from(index < connections % of)
}

fn steps(args: &IdleArgs) -> Result<Vec<usize>, String> {
    let steps: Vec<usize> = args.connections.iter().map(|count| count.get()).collect();
    if !steps.is_sorted_by(|one, next| one < next) {
        return Err("--connections needs numbers in ascending order".to_owned());
    }
    Ok(steps)
}

/// Starts the threads of all URLs, which open no connection yet.
fn start(args: &IdleArgs, steps: &[usize], epoch: Instant) -> Result<Vec<IdleLoad>, String> {
    let most = steps.last().copied().unwrap_or_default();
    let descriptors = limits::raise_descriptors();
    let urls = args.urls.len();
    let defaults = BenchArgs::parse(["tcp://localhost:1"])?.load;
    let mut loads = Vec::new();
    for (index, url) in args.urls.iter().enumerate() {
        let connections = share(most, urls, index).max(1);
        let threads = match args.threads {
            Some(threads) => threads.get(),
            None => limits::threads(connections, descriptors, args.backend),
        };
        let mut load = defaults.clone();
        load.mode.mode = LoadMode::Idle;
        load.amount.timeout = args.timeout;
        load.connection.backend = args.backend;
        load.connection.deflate = args.deflate;
        load.connection.header.clone_from(&args.header);
        load.connection.insecure = args.insecure;
        load.connection.ca.clone_from(&args.ca);
        let mut plan = load_plan(url, &load)?;
        plan.connections = connections;
        plan.threads = threads.min(connections);
        plan.ramp_up = Duration::try_from_secs_f64(connections as f64 * urls as f64 / args.rate)
            .map_err(|error| format!("--rate {}: {error}", args.rate))?;
        plan.staged_handshakes = Some((args.handshakes.get() / (urls * plan.threads)).max(1));
        plan.sources = source_addresses(args, &plan.target.remote, connections)?;
        let plan = Arc::new(plan);
        let threads = LoadThreads::start(&plan, epoch)?;
        limits::check_descriptors(&threads, plan.threads, connections, most, descriptors)?;
        loads.push(IdleLoad { plan, threads, index });
    }
    Ok(loads)
}

/// Returns the addresses to connect from. Empty: the system chooses.
fn source_addresses(args: &IdleArgs, remote: &Remote, connections: usize) -> Result<Vec<IpAddr>, String> {
    let given: Vec<IpAddr> = args.source.iter().flatten().copied().collect();
    let Remote::Tcp(to) = remote else { return Ok(given) };
    let ports = limits::ephemeral_ports();
    let needed = connections.div_ceil(ports);
    match to.ip() {
        IpAddr::V4(to) if given.is_empty() && to.is_loopback() => {
            limits::loopback_addresses(connections, ports)
        }
        _ if needed > given.len().max(1) => Err(limits::too_few_ports(connections, ports, needed)),
        _ => Ok(given),
    }
}

/// Opens connections up to this number, and measures. `None` if they did not all open.
fn run_step(
    args: &IdleArgs,
    loads: &[IdleLoad],
    connections: usize,
    epoch: Instant,
    before: &MemoryReading,
    interrupt: &Interrupt,
) -> Result<Option<IdleStep>, String> {
    let started = Instant::now();
    for load in loads {
        let gap = load.plan.ramp_up.div_f64(load.plan.connections as f64);
        let opened = load.threads.sum(|live| live.open.get()) as f64;
        let delay = started.saturating_duration_since(epoch).saturating_sub(gap.mul_f64(opened));
        let until = load.share(connections, loads.len());
        load.threads.broadcast(LoadCommand::Open { until, delay });
    }
    let count = || loads.iter().map(|load| load.threads.sum(|live| live.open.get())).sum::<u64>();
    let failed = || loads.iter().map(|load| load.threads.sum(|live| live.errors.get())).sum::<u64>();
    let (mut progress, mut shown) = ((count(), Instant::now()), Instant::now());
    while count() < connections as u64 {
        let open = count();
        if open != progress.0 {
            progress = (open, Instant::now());
        }
        if failed() > 0 || interrupt.is_interrupted() || progress.1.elapsed() > args.timeout + SLACK {
            return Ok(None);
        }
        if !args.quiet && shown.elapsed() >= SHOWN {
            shown = Instant::now();
            print_status(&format!("{open} of {connections} connections are open"));
        }
        thread::sleep(INTERVAL);
    }
    let ramp = started.elapsed();
    if !sleep(args.settle, interrupt) {
        return Ok(None);
    }
    let memory = MemoryReading::take(&args.pid)?.since(before);
    let complete = count() == connections as u64;
    Ok(complete.then_some(IdleStep { connections, ramp, memory }))
}

/// Measures the server's CPU time while its connections are idle.
fn measure_cpu(args: &IdleArgs, connections: usize, interrupt: &Interrupt) -> Result<IdleCpu, String> {
    let (from, started) = (process::usage(&args.pid, false)?, Instant::now());
    sleep(args.hold, interrupt);
    let busy = process::usage(&args.pid, false)?.busy.saturating_sub(from.busy);
    Ok(IdleCpu { connections, busy, elapsed: started.elapsed() })
}

/// Returns whether the whole time has passed without an interrupt.
fn sleep(time: Duration, interrupt: &Interrupt) -> bool {
    let until = Instant::now() + time;
    while !interrupt.is_interrupted() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(SLEEP));
    }
    false
}

/// Interval between checks for open connections.
const INTERVAL: Duration = Duration::from_millis(10);

/// Interval between checks for an interrupt.
const SLEEP: Duration = Duration::from_millis(200);

/// Interval between progress lines.
const SHOWN: Duration = Duration::from_secs(2);

/// Extra time for connections to report their own timeouts.
const SLACK: Duration = Duration::from_secs(1);

/// The backend that `auto` has selected.
fn is_ring(backend: BackendChoice) -> bool {
    backend == BackendChoice::Uring
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
