//! Runs topic stores under faults, and checks the recorded histories.
//!
//! ```text
//! cargo run --release -p sinews-checker -- fake --seeds 10000
//! cargo run --release -p sinews-checker --features redis -- redis --seconds 900 --seed 1
//! cargo run -p sinews-checker -- replay target/checker/fake-17.jsonl
//! ```
#![forbid(unsafe_code)]

#[cfg(any(feature = "nats", feature = "redis"))]
mod lanes;

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use sinews_checker::{Findings, History, Plan, check, run};

/// Runs topic stores under faults, and checks the recorded histories
#[derive(Parser)]
#[command(name = "sinews-checker")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the fake engine, a run for each seed
    Fake {
        /// Number of runs
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        seeds: u64,
        /// First seed
        #[arg(long, value_name = "SEED", default_value_t = 0)]
        from: u64,
        /// Directory for the histories of runs with violations
        #[arg(long, value_name = "DIRECTORY", default_value = DIRECTORY)]
        histories: PathBuf,
        /// Writes the history of each run
        #[arg(long)]
        keep: bool,
    },
    /// Runs the fake engine with 200 seeds
    Quick,
    /// Runs a Redis primary and replica, and kills, freezes and replaces them
    #[cfg(feature = "redis")]
    Redis {
        #[command(flatten)]
        lane: lanes::LaneOptions,
        /// Changes the scripts so that no sequence jumps behind a failover: the checks must find lost writes
        #[arg(long)]
        without_jump: bool,
    },
    /// Runs three NATS servers, and kills and freezes them
    #[cfg(feature = "nats")]
    Nats(#[command(flatten)] lanes::LaneOptions),
    /// Runs each engine for less than a minute
    #[cfg(any(feature = "nats", feature = "redis"))]
    Test,
    /// Runs each engine for 15 minutes
    #[cfg(any(feature = "nats", feature = "redis"))]
    All,
    /// Checks a history
    Replay {
        /// File of a history
        file: PathBuf,
    },
}

/// Directory for histories.
const DIRECTORY: &str = "target/checker";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let found = match Options::parse().command {
        Command::Fake { seeds, from, histories, keep } => fake(from, seeds, &histories, keep)?,
        Command::Quick => fake(0, 200, Path::new(DIRECTORY), false)?,
        #[cfg(feature = "redis")]
        Command::Redis { lane, without_jump } => {
            return lane.run(sinews_checker::RealEngine::Redis { has_jump: !without_jump });
        }
        #[cfg(feature = "nats")]
        Command::Nats(lane) => return lane.run(sinews_checker::RealEngine::Nats),
        #[cfg(any(feature = "nats", feature = "redis"))]
        Command::Test => return lanes::run_each(lanes::LaneOptions::test()),
        #[cfg(any(feature = "nats", feature = "redis"))]
        Command::All => return lanes::run_each(lanes::LaneOptions::all()),
        Command::Replay { file } => check(&History::parse(&fs::read_to_string(file)?)?),
    };
    Ok(report(&found))
}

fn report(found: &Findings) -> ExitCode {
    for violation in &found.violations {
        println!("{violation}");
    }
    println!("{}", found.counts);
    println!("{} violations", found.violations.len());
    if found.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes a history to a file, and returns its name.
fn write(history: &History, directory: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let file = directory.join(format!("{}-{}.jsonl", history.run.engine, history.run.seed));
    history.write(BufWriter::new(File::create(&file)?))?;
    Ok(file)
}

fn fake(from: u64, seeds: u64, histories: &Path, keep: bool) -> Result<Findings, Box<dyn Error>> {
    let start = Instant::now();
    let mut all = Findings::default();
    let (mut failed, mut slowest) = (0_u64, (Duration::ZERO, from));
    for seed in from..from + seeds {
        let begin = Instant::now();
        let history = run(&Plan::from_seed(seed));
        let found = check(&history);
        let is_good = found.violations.is_empty();
        if !is_good || keep {
            write(&history, histories)?;
        }
        if !is_good {
            failed += 1;
            println!("seed {seed}: {} violations, first: {}", found.violations.len(), found.violations[0]);
        }
        all.add(found);
        slowest = slowest.max((begin.elapsed(), seed));
    }
    let seconds = start.elapsed().as_secs_f64();
    let (pace, milliseconds) = (seeds as f64 * 60.0 / seconds, slowest.0.as_millis());
    println!(
        "{seeds} seeds in {seconds:.1} s, {pace:.0} a minute; {failed} failed; slowest: {} with {milliseconds} ms",
        slowest.1
    );
    Ok(all)
}
