//! The soak program against the server, on each backend.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::Outcome;
use crate::backend::Choice;
use crate::count::Count;
use crate::process;
use crate::server;

#[derive(Args)]
pub(crate) struct Options {
    /// Minutes of load on each backend
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,
    /// Seconds of load on each backend
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Backend of the server: the load runs once for each
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
    /// Seed of all randomness [default: the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Path of the `sinews` program to test, instead of building it
    #[arg(long)]
    binary: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SyscallOptions {
    /// Backend of the server: the calls are counted once for each
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
    /// Path of the `sinews` program to test, instead of building it
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Runs a long load.
pub(crate) fn run(options: &Options) -> Outcome {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let seed = options.seed.unwrap_or_else(clock);
    let seconds = options.seconds.unwrap_or(options.minutes * 60);
    let further = ["--seconds", &seconds.to_string(), "--seed", &seed.to_string()];
    each(options.backend, options.binary.as_deref(), "load", &further)
}

/// Counts system calls for each message.
pub(crate) fn syscalls(options: &SyscallOptions) -> Outcome {
    if process::find_program("strace").is_none() {
        println!("skipped: no strace (apt-get install strace)");
        return Ok(Count::SKIPPED);
    }
    each(options.backend, options.binary.as_deref(), "syscalls", &[])
}

/// Runs a task of the program on each backend.
fn each(choice: Choice, binary: Option<&Path>, task: &str, further: &[&str]) -> Outcome {
    let binary = server::optimized(binary)?;
    let program = server::build("sinews-soak", "sinews-soak")?;
    let permitted = choice.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    for backend in permitted.backends {
        let mut command = Command::new(&program);
        command.arg(task).arg(&binary).args(["--backend", backend.name()]).args(further);
        command.arg("--logs").arg(process::target().join("xtask/soak"));
        count = count + show(&mut command)?;
    }
    Ok(count)
}

/// Runs a program that ends with its counts, and prints its output meanwhile.
pub(crate) fn show(command: &mut Command) -> Outcome {
    let name = command.get_program().to_owned();
    let fault = |error| format!("{}: {error}", Path::new(&name).display());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(fault)?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut count = Count::default();
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(fault)?;
        println!("{line}");
        count = Count::parse(&line).unwrap_or(count);
    }
    let status = child.wait().map_err(fault)?;
    if status.success() || count.failed > 0 {
        return Ok(count);
    }
    Err(format!("{}: {status}", Path::new(&name).display()))
}
