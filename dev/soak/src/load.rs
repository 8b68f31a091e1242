//! Runs all scenarios in parallel for some time, on separate threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sinews_testkit::Rng;

use crate::Fault;
use crate::scenarios::{Resident, Scenario, World, deserter};
use crate::server::{Sample, Server};

/// Result of a load.
#[derive(Default)]
pub(crate) struct Report {
    /// Faults, with the scenario and the position in the sequence of the seed.
    pub(crate) faults: Vec<String>,
    /// Number of successful runs of each scenario.
    pub(crate) runs: Vec<usize>,
    /// Maximum resources of the server.
    pub(crate) peak: Sample,
}

/// Runs scenarios against the server for the given time, and until each scenario has completed.
pub(crate) fn run(
    world: &World,
    server: &Server,
    scenarios: &[Scenario],
    seed: u64,
    time: Duration,
) -> Result<Report, Fault> {
    let deadline = Instant::now() + time;
    let runs = scenarios.iter().map(|_| AtomicUsize::new(0)).collect();
    let shared = Shared { deadline, faults: Mutex::default(), scenarios, runs };
    let peak = thread::scope(|scope| {
        let mut workers = Vec::new();
        for worker in 0..WORKERS {
            // Far apart in the sequence of seeds, so that workers differ.
            let rng = Rng::new(Rng::new(seed.wrapping_add(worker as u64)).next_u64());
            let shared = &shared;
            workers.push(scope.spawn(move || work(world, shared, worker, rng)));
        }
        if time >= DESERTER_TIME && world.tls.is_none() {
            let (shared, mut rng) = (&shared, Rng::new(!seed));
            workers.push(scope.spawn(move || desert(world, shared, &mut rng)));
        }
        let mut peak = Sample::default();
        let mut progress = Instant::now();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let sample = server.sample()?;
            peak = peak.max(sample);
            if progress.elapsed() >= PROGRESS_EVERY {
                progress = Instant::now();
                println!("  {}; now {sample}", world.tally);
            }
            thread::sleep(SAMPLE_EVERY);
        }
        Ok::<_, Fault>(peak)
    })?;
    let faults = shared.faults.into_inner().map_err(|_| "a worker panicked")?;
    Ok(Report { faults, runs: shared.runs.into_iter().map(AtomicUsize::into_inner).collect(), peak })
}

struct Shared<'a> {
    deadline: Instant,
    faults: Mutex<Vec<String>>,
    scenarios: &'a [Scenario],
    runs: Vec<AtomicUsize>,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
            || self.faults.lock().map_or(true, |faults| faults.len() >= FAULTS_MAX)
    }

    fn fault(&self, worker: usize, step: usize, what: &str, fault: &Fault) {
        if let Ok(mut faults) = self.faults.lock() {
            faults.push(format!("{what}, worker {worker}, step {step}: {fault}"));
        }
    }
}

fn work(world: &World, shared: &Shared<'_>, worker: usize, mut rng: Rng) {
    let mut residents = Vec::new();
    let mut step = 0;
    while !shared.is_over() {
        step += 1;
        // Each step has its own sequence: the number of draws in a step may depend on timing, and does not
        // affect other steps.
        let mut rng = Rng::new(rng.next_u64());
        // Residents speak HTTP/1.1 without TLS.
        if world.tls.is_none()
            && let Err(fault) = visit(world, &mut residents, &mut rng)
        {
            shared.fault(worker, step, "resident", &fault);
        }
        let scenario = pick(shared.scenarios, &mut rng);
        let (name, _, run) = shared.scenarios[scenario];
        match run(world, &mut rng) {
            Ok(()) => _ = shared.runs[scenario].fetch_add(1, Ordering::Relaxed),
            Err(fault) => shared.fault(worker, step, name, &fault),
        }
    }
    for resident in residents {
        if let Err(fault) = resident.leave(&mut rng) {
            shared.fault(worker, step, "resident", &fault);
        }
    }
}

fn desert(world: &World, shared: &Shared<'_>, rng: &mut Rng) {
    let mut step = 0;
    while !shared.is_over() {
        step += 1;
        if let Err(fault) = deserter(world, rng) {
            shared.fault(WORKERS, step, "deserter", &fault);
        }
    }
}

fn pick(scenarios: &[Scenario], rng: &mut Rng) -> usize {
    let mut place = rng.below(scenarios.iter().map(|(_, weight, _)| weight).sum());
    for (index, (_, weight, _)) in scenarios.iter().enumerate() {
        match place.checked_sub(*weight) {
            Some(rest) => place = rest,
            None => return index,
        }
    }
    unreachable!("the place is below the sum of the weights")
}

/// Uses a persistent connection; occasionally opens a new one or closes an old one.
fn visit(world: &World, residents: &mut Vec<Resident>, rng: &mut Rng) -> Result<(), Fault> {
    if residents.len() < RESIDENTS_MAX && rng.below(4) == 0 {
        residents.push(Resident::open(world, rng)?);
    }
    if residents.is_empty() {
        return Ok(());
    }
    let index = rng.below(residents.len());
    let mut resident = residents.swap_remove(index);
    resident.touch(world, rng)?;
    if rng.below(16) == 0 {
        return resident.leave(rng);
    }
    residents.push(resident);
    Ok(())
}

/// More than the processors of a small machine, so that workers compete.
const WORKERS: usize = 6;
/// Persistent connections of each worker.
const RESIDENTS_MAX: usize = 12;
/// Minimum load time for a client that the server drops after 30 s.
const DESERTER_TIME: Duration = Duration::from_secs(60);
/// Number of faults that stops the load: further faults add nothing.
const FAULTS_MAX: usize = 10;
const PROGRESS_EVERY: Duration = Duration::from_secs(30);
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
