//! `sinews bench URL`: measures one server and prints the result.

use std::sync::Arc;

use crate::args::{LoadArgs, ReportArgs, load_plan};
use crate::interrupt::Interrupt;
use crate::load::WatchedProcesses;
use crate::output::{print, print_status};
use crate::plan::LoadPlan;
use crate::progress::ProgressDisplay;
use crate::result::LoadResult;
use crate::tally::LoadFigures;
use crate::{load, report, trace};

/// Measures one server.
pub(crate) fn run(
    url: &str,
    load: &LoadArgs,
    report: &ReportArgs,
    interrupt: &Interrupt,
) -> Result<(), String> {
    let plan = Arc::new(load_plan(url, load)?);
    let outcome = measure(&plan, report, interrupt)?;
    if let Some(path) = &report.report {
        let page = report::html::page(&plan, &outcome);
        std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if report.json {
        print(&format!("{:#}", outcome.to_json(&plan)));
    } else if report.csv {
        print(&outcome.to_csv(&plan));
    } else {
        print(&report::table::summary(&plan, &outcome));
    }
    verdict(&outcome.tally)
}

fn measure(plan: &Arc<LoadPlan>, report: &ReportArgs, interrupt: &Interrupt) -> Result<LoadResult, String> {
    let mut progress = ProgressDisplay::new(report.quiet);
    let watched = WatchedProcesses { pids: &report.pid, children: report.children };
    let outcome = load::run(plan.clone(), watched, interrupt, |now| progress.show(&now));
    progress.end();
    let mut outcome = outcome?;
    if report.trace && !outcome.interrupted && outcome.server.is_some() {
        match trace::calls_per_message(plan, &report.pid, interrupt) {
            Ok(calls) => outcome.system_calls = Some(calls),
            Err(error) => print_status(&format!("system calls were not counted: {error}")),
        }
    }
    for warning in outcome.warnings(plan) {
        print_status(&format!("warning: {warning}"));
    }
    Ok(outcome)
}

/// Turns a run with failures into an error, although its figures are printed.
pub(crate) fn verdict(figures: &LoadFigures) -> Result<(), String> {
    let failures = figures.failures();
    if failures == 0 {
        return Ok(());
    }
    let first = figures.examples.iter().next();
    let example = first.map_or(String::new(), |(kind, text)| format!(": {} ({text})", kind.name()));
    Err(format!("{failures} errors{example}"))
}
