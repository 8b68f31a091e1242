//! Runs processes and clients in parallel for some time, on separate threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sinews_testkit::Rng;

use crate::Fault;
use crate::bench::{BenchLoad, ProcessFault, STEADY};
use crate::scenarios::{SCENARIOS, World, deserter};
use crate::server::{Sample, Server};

/// A load's result.
#[derive(Default)]
pub(crate) struct Report {
    /// Faults, with the scenario and the position in the seed's sequence.
    pub(crate) faults: Vec<String>,
    /// Successful runs, with the load's or scenario's name.
    pub(crate) runs: Vec<String>,
    /// The server's maximum resources.
    pub(crate) peak: Sample,
}

/// Runs loads against the server for the given time; without TLS also clients from every scenario.
pub(crate) fn run(
    world: &World,
    server: &Server,
    loads: &[BenchLoad],
    seed: u64,
    time: Duration,
) -> Result<Report, Fault> {
    let scenarios = if world.is_plain { SCENARIOS.len() } else { 0 };
    let runs = (0..loads.len() + scenarios).map(|_| AtomicUsize::new(0)).collect();
    let shared = Shared { deadline: Instant::now() + time, faults: Mutex::default(), loads, runs };
    let peak = thread::scope(|scope| {
        let shared = &shared;
        let mut workers = Vec::new();
        for worker in 0..WORKERS {
            // Far apart in the seed sequence, so that workers differ.
            let rng = Rng::new(Rng::new(seed.wrapping_add(worker as u64)).next_u64());
            workers.push(scope.spawn(move || work(world, shared, worker, rng)));
        }
        for load in STEADY.iter().filter(|_| world.is_plain) {
            workers.push(scope.spawn(move || {
                let run = load.run(world, time, ProcessFault::None, &mut Rng::new(seed));
                shared.record(WORKERS, 1, load.name, run);
            }));
        }
        if world.is_plain && time >= DESERTER_TIME {
            let mut rng = Rng::new(!seed);
            workers.push(scope.spawn(move || {
                while !shared.is_over() {
                    shared.record(WORKERS, 1, "deserter", deserter(world, &mut rng));
                }
            }));
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
    let names = loads.iter().map(|load| load.name).chain(SCENARIOS.iter().map(|(name, _)| *name));
    let runs = shared.runs.into_iter().map(AtomicUsize::into_inner);
    let runs = names.zip(runs).map(|(name, runs)| format!("{name} {runs}")).collect();
    Ok(Report { faults, runs, peak })
}

struct Shared<'a> {
    deadline: Instant,
    faults: Mutex<Vec<String>>,
    loads: &'a [BenchLoad],
    /// Of each load, then of each scenario.
    runs: Vec<AtomicUsize>,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
            || self.faults.lock().map_or(true, |faults| faults.len() >= FAULTS_MAX)
    }

    /// Records a fault; returns whether there is none.
    fn record(&self, worker: usize, step: usize, what: &str, result: Result<(), Fault>) -> bool {
        let Err(fault) = result else { return true };
        if let Ok(mut faults) = self.faults.lock() {
            faults.push(format!("{what}, worker {worker}, step {step}: {fault}"));
        }
        false
    }
}

fn work(world: &World, shared: &Shared<'_>, worker: usize, mut rng: Rng) {
    let mut step = 0;
    while !shared.is_over() {
        step += 1;
        // Each step has its own sequence: the number of draws in a step may depend on timing, and does not
        // affect other steps.
        let mut rng = Rng::new(rng.next_u64());
        let at = rng.below(shared.runs.len());
        let (what, result) = match shared.loads.get(at) {
            Some(load) => {
                let fault = ProcessFault::any(&mut rng);
                let time = RUN_MIN + Duration::from_millis(rng.below(2000) as u64);
                (format!("{}, {fault:?}", load.name), load.run(world, time, fault, &mut rng))
            }
            None => {
                let (name, run) = SCENARIOS[at - shared.loads.len()];
                let end = Instant::now() + RUN_MIN;
                let mut result = run(world, &mut rng);
                // A client is quick, compared with a process.
                while result.is_ok() && Instant::now() < end {
                    result = run(world, &mut rng);
                }
                (name.to_owned(), result)
            }
        };
        if shared.record(worker, step, &what, result) {
            shared.runs[at].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// More than the processors of a small machine, so that workers compete.
const WORKERS: usize = 6;
/// Shortest time of a process.
const RUN_MIN: Duration = Duration::from_secs(1);
/// Minimum load time for a client that the server drops after 30 s.
const DESERTER_TIME: Duration = Duration::from_secs(60);
/// Fault count that stops the load: further faults add nothing.
const FAULTS_MAX: usize = 10;
const PROGRESS_EVERY: Duration = Duration::from_secs(30);
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
