//! Load generation for WebSocket, HTTP and TCP servers: the command `sinews bench`.
//!
//! [`BenchArgs`] is the command line and [`run`] runs it. The other client commands of the program share [`trust`] (the certificates
//! that a client trusts) and [`url`] (URLs as people type and read them).

#![forbid(unsafe_code)]

mod args;
mod compare;
mod durable;
mod first_byte;
mod interrupt;
mod load;
mod payload;
mod plan;
mod process;
mod progress;
mod report;
mod result;
mod tally;
mod target;
mod trace;
pub mod trust;
pub mod url;

use std::process::ExitCode;
use std::sync::Arc;

pub use self::args::BenchArgs;
use self::args::{BenchCommand, LoadArgs, ReportArgs};
use self::interrupt::Interrupt;
use self::plan::Plan;
use self::result::Outcome;

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
        None => one(&args.url.ok_or("URL is missing")?, &args.load, &args.report, &interrupt),
    };
    if interrupt.came() {
        done.unwrap_or_else(|error| say(&error));
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    done.map(|()| ExitCode::SUCCESS)
}

/// Measures one server.
fn one(url: &str, load: &LoadArgs, report: &ReportArgs, interrupt: &Interrupt) -> Result<(), String> {
    let plan = Arc::new(Plan::new(url, load)?);
    let outcome = measure(&plan, report, interrupt)?;
    if let Some(path) = &report.report {
        let page = report::html::page(&plan, &outcome)?;
        std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if report.json {
        print(&format!("{:#}", outcome.to_json(&plan)));
    } else if report.csv {
        print(&outcome.to_csv(&plan));
    } else {
        print(&report::table::summary(&plan, &outcome));
    }
    verdict(&outcome)
}

fn measure(plan: &Arc<Plan>, report: &ReportArgs, interrupt: &Interrupt) -> Result<Outcome, String> {
    let mut progress = progress::Progress::new(report.quiet);
    let watched = (&report.pid[..], report.children);
    let outcome = load::run(plan.clone(), watched, interrupt, |now| progress.show(&now));
    progress.end();
    let mut outcome = outcome?;
    if report.trace
        && !outcome.interrupted
        && let Some(server) = &mut outcome.server
    {
        match trace::calls_per_message(plan, &report.pid, interrupt) {
            Ok(calls) => server.system_calls = Some(calls),
            Err(error) => say(&format!("system calls were not counted: {error}")),
        }
    }
    for warning in outcome.warnings(plan) {
        say(&format!("warning: {warning}"));
    }
    Ok(outcome)
}

/// Turns a run with failures into an error, although its figures are printed.
fn verdict(outcome: &Outcome) -> Result<(), String> {
    let failures = outcome.tally.failures();
    if failures == 0 {
        return Ok(());
    }
    let first = outcome.tally.examples.iter().next();
    let example = first.map_or(String::new(), |(kind, text)| format!(": {} ({text})", kind.name()));
    Err(format!("{failures} errors{example}"))
}

fn print(text: &str) {
    use std::io::Write;
    // A closed pipe is not an error: the reader has enough.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a diagnostic to standard error; results go to standard output.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "sinews bench: {text}");
}
