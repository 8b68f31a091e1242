//! Load generation for WebSocket, HTTP and TCP servers: the command `sinews bench`.
//!
//! [`BenchArgs`] is the command line and [`run`] runs it. The other client commands of the program share [`trust`] (the certificates
//! that a client trusts) and [`url`] (URLs as people type and read them).

#![forbid(unsafe_code)]

mod args;
mod compare;
mod durable;
mod first_byte;
mod idle;
mod interrupt;
mod load;
mod measure;
mod output;
mod payload;
mod plan;
mod process;
mod progress;
mod report;
mod result;
mod statistics;
mod streams;
mod tally;
mod target;
mod trace;
pub mod trust;
pub mod url;

use std::process::ExitCode;

pub use self::args::BenchArgs;
use self::args::BenchCommand;
use self::interrupt::Interrupt;
use self::output::print_status;

/// Runs the benchmark and prints its result. An interrupted run prints the figures measured so far and exits with 130.
///
/// # Errors
///
/// Returns an error if options conflict, if the server is unreachable, or if answers were wrong.
pub fn run(args: BenchArgs) -> Result<ExitCode, String> {
    let interrupt = Interrupt::take()?;
    let done = match args.command {
        Some(BenchCommand::Compare(args)) => compare::run(*args, &interrupt),
        Some(BenchCommand::Durable(args)) => durable::run(&args, &interrupt),
        Some(BenchCommand::FirstByte(args)) => first_byte::run(&args, &interrupt),
        Some(BenchCommand::Idle(args)) => idle::run(&args, &interrupt),
        None => measure::run(&args.url.ok_or("URL is missing")?, &args.load, &args.report, &interrupt),
    };
    if interrupt.is_interrupted() {
        done.unwrap_or_else(|error| print_status(&error));
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    done.map(|()| ExitCode::SUCCESS)
}
