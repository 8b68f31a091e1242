//! Lanes of real engines: one run after the other, each with servers and a seed of its own.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use sinews_checker::{Findings, LaneError, RealEngine, Times, check};

use crate::{DIRECTORY, report, write};

/// Exit status without a server on this machine.
const MISSING: u8 = 77;

#[derive(Args, Clone)]
pub(crate) struct LaneOptions {
    /// Time after which no run begins
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// First seed; each further run has the next one
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Seconds with faults in each run
    #[arg(long, value_name = "N", default_value_t = 30)]
    active: u64,
    /// Directory for the histories of runs with violations
    #[arg(long, value_name = "DIRECTORY", default_value = DIRECTORY)]
    histories: PathBuf,
    /// Writes the history of each run
    #[arg(long)]
    keep: bool,
}

/// Runs each engine, as far as the machine has its servers.
pub(crate) fn run_each(options: LaneOptions) -> Result<ExitCode, Box<dyn Error>> {
    let engines = [
        #[cfg(feature = "redis")]
        RealEngine::Redis { has_jump: true },
        #[cfg(feature = "nats")]
        RealEngine::Nats,
    ];
    let mut worst = ExitCode::SUCCESS;
    for engine in engines {
        let code = options.run(engine)?;
        if code != ExitCode::SUCCESS && code != ExitCode::from(MISSING) {
            worst = code;
        }
    }
    Ok(worst)
}

impl LaneOptions {
    /// One short run.
    pub(crate) fn test() -> Self {
        Self { seconds: 1, seed: 2, active: 20, histories: DIRECTORY.into(), keep: false }
    }

    pub(crate) fn all() -> Self {
        Self { seconds: 15 * 60, active: 30, ..Self::test() }
    }

    pub(crate) fn run(&self, engine: RealEngine) -> Result<ExitCode, Box<dyn Error>> {
        let (name, begun) = (engine.name(), Instant::now());
        let (mut all, mut times) = (Findings::default(), Times::default());
        let mut seed = self.seed;
        while seed == self.seed || begun.elapsed() < Duration::from_secs(self.seconds) {
            let history = match engine.run(seed, Duration::from_secs(self.active)) {
                Err(LaneError::Missing(text)) => {
                    println!("{text}: the lane {name} is left out");
                    return Ok(ExitCode::from(MISSING));
                }
                history => history.map_err(|error| format!("{name}, seed {seed}: {error}"))?,
            };
            let found = check(&history);
            times.add(&history);
            println!("{name}, seed {seed}: {} violations; {}", found.violations.len(), found.counts);
            if self.keep || !found.violations.is_empty() {
                println!("  {}", write(&history, &self.histories)?.display());
            }
            if let Some(first) = found.violations.first() {
                println!("  first: {first}");
            }
            all.add(found);
            seed += 1;
        }
        let seconds = begun.elapsed().as_secs();
        println!("{name}: seeds {} to {} in {seconds} s", self.seed, seed - 1);
        print!("{times}");
        Ok(report(&all))
    }
}
