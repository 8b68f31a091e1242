//! `sinews bench`: loads a server, and measures what it does. docs/benchmarks.md says how to use it.

mod args;
mod compare;
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

use std::sync::Arc;

pub(crate) use self::args::BenchArgs;
use self::args::{BenchCommand, ReportArgs};
use self::plan::Plan;
use self::result::Outcome;

/// Runs it and prints what it came to.
///
/// # Errors
///
/// Options that do not fit, a server that nobody can connect to, or answers that were wrong.
pub(crate) fn run(args: BenchArgs) -> Result<(), String> {
    if let Some(BenchCommand::Compare(args)) = args.command {
        return compare::run(*args);
    }
    let url = args.url.ok_or("which URL?")?;
    let plan = Arc::new(Plan::new(&url, &args.load)?);
    let outcome = measure(&plan, &args.report)?;
    if let Some(path) = &args.report.report {
        let page = report::html::page(&plan, &outcome)?;
        std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if args.report.json {
        print(&format!("{:#}", outcome.to_json(&plan)));
    } else if args.report.csv {
        print(&outcome.to_csv(&plan));
    } else {
        print(&report::table::summary(&plan, &outcome));
    }
    verdict(&outcome)
}

fn measure(plan: &Arc<Plan>, report: &ReportArgs) -> Result<Outcome, String> {
    let mut progress = progress::Progress::new(plan, report.quiet);
    let watched = (&report.pid[..], report.children);
    let mut outcome = load::run(plan.clone(), watched, |now| progress.show(&now))?;
    progress.end();
    if report.trace
        && let Some(server) = &mut outcome.server
    {
        match trace::calls_per_message(plan, &report.pid) {
            Ok(calls) => server.system_calls = Some(calls),
            Err(error) => say(&format!("system calls were not counted: {error}")),
        }
    }
    for warning in outcome.warnings(plan) {
        say(&format!("warning: {warning}"));
    }
    Ok(outcome)
}

/// A run in which something went wrong is no success, though its figures are shown.
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
    // Whoever closes the pipe has seen enough.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// What is for a person and no part of the result.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "sinews bench: {text}");
}
