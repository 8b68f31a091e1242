//! `sinews bench compare`: measures several servers in alternation and reports only differences above the noise.

mod server;

use std::sync::Arc;

use serde_json::{Value, json};

use self::server::StartedServer;
use crate::args::{CompareArgs, load_plan};
use crate::interrupt::Interrupt;
use crate::load::{self, WatchedProcesses};
use crate::measure::verdict;
use crate::output::{print, print_status};
use crate::plan::{LoadMode, LoadPlan};
use crate::process::pin;
use crate::report::units::{count, nanos};
use crate::statistics::{MedianInterval, ROUNDS_MIN, RoundRatio, spread};
use crate::tally::LoadFigures;
use crate::url::shown_url;

/// A server under comparison.
struct Contender {
    name: String,
    plan: Arc<LoadPlan>,
    command: Option<String>,
    rounds: Vec<ServerRound>,
}

#[derive(Clone, Copy)]
struct ServerRound {
    rate: f64,
    median_ns: f64,
    p99_ns: f64,
    cpu_us: Option<f64>,
    /// The load generator was at its limit.
    limited: bool,
}

pub(crate) fn run(args: CompareArgs, interrupt: &Interrupt) -> Result<(), String> {
    if let Some(cores) = &args.load_core {
        pin(cores)?;
    }
    let mut all: Vec<Contender> = Vec::new();
    for server in &args.servers {
        all.push(contender(server, &args)?);
    }
    args.check_options(all.iter().map(|one| &*one.name))?;
    if !args.quiet && (args.rounds as usize) < ROUNDS_MIN {
        print_status(&format!("{} rounds show no significant difference; {ROUNDS_MIN} can", args.rounds));
    }
    for round in 0..args.rounds as usize {
        let whole = run_round(&mut all, round, &args, interrupt).inspect_err(|reason| {
            if args.json {
                print(&format!("{:#}", json!({ "invalid": reason, "servers": [] })));
            }
        })?;
        if !whole && round == 0 {
            return Err("interrupted before the first round was complete".to_owned());
        }
        if !whole {
            print_status(&format!("interrupted: {round} of {} rounds are complete", args.rounds));
            // Incomplete rounds are not comparable.
            all.iter_mut().for_each(|one| one.rounds.truncate(round));
            break;
        }
    }
    if args.json {
        print(&format!("{:#}", to_json(&all)));
    } else {
        print(&table(&all));
    }
    Ok(())
}

/// Measures each server once. Returns `false` if interrupted.
///
/// # Errors
///
/// Returns an error if a server cannot be measured, or has not answered every message correctly: such a server's
/// figures compare nothing.
fn run_round(
    all: &mut [Contender],
    round: usize,
    args: &CompareArgs,
    interrupt: &Interrupt,
) -> Result<bool, String> {
    for step in 0..all.len() {
        // Rotate the order, so that each server is first equally often.
        let at = (round + step) % all.len();
        let measured = measure(&all[at], args, interrupt);
        if interrupt.is_interrupted() {
            return Ok(false);
        }
        let measured = measured?;
        if !args.quiet {
            let rate = count(measured.rate);
            print_status(&format!("round {} of {}: {} {rate}/s", round + 1, args.rounds, all[at].name));
        }
        all[at].rounds.push(measured);
    }
    Ok(true)
}

/// Parses `URL` or `NAME=URL=COMMAND`.
fn contender(text: &str, args: &CompareArgs) -> Result<Contender, String> {
    let is_url = text.split(['/', '?']).next().is_some_and(|host| !host.contains('='));
    let (name, url, command) = if is_url {
        (text, text, None)
    } else {
        let mut parts = text.splitn(3, '=');
        let (name, url) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        (name, url, parts.next().map(str::to_owned))
    };
    if name.is_empty() || url.is_empty() {
        return Err(format!("{text}: expected a URL, or NAME=URL=COMMAND"));
    }
    let plan = Arc::new(load_plan(url, &args.load_on(name)?)?);
    if plan.mode == LoadMode::Idle {
        return Err(
            "--mode idle has no messages to compare: `sinews bench idle` measures each server".to_owned()
        );
    }
    Ok(Contender { name: name.to_owned(), plan, command, rounds: Vec::new() })
}

fn measure(one: &Contender, args: &CompareArgs, interrupt: &Interrupt) -> Result<ServerRound, String> {
    let started = match &one.command {
        Some(command) => Some(StartedServer::new(command, args.server_core.as_deref(), &one.plan)?),
        None => None,
    };
    let pids: Vec<u32> = started.iter().map(StartedServer::id).collect();
    let watched = WatchedProcesses { pids: &pids, children: true };
    let outcome = load::run(one.plan.clone(), watched, interrupt, |_| ())?;
    if !interrupt.is_interrupted() {
        check(&outcome.tally).map_err(|fault| format!("comparison is invalid: {}: {fault}", one.name))?;
    }
    let at = |quantile| outcome.tally.latency.value_at_quantile(quantile) as f64;
    Ok(ServerRound {
        rate: outcome.rate(),
        median_ns: at(0.5),
        p99_ns: at(0.99),
        cpu_us: outcome.server_cpu_us(),
        limited: outcome.warnings(&one.plan).iter().any(|warning| warning.contains("bottleneck")),
    })
}

/// Rejects a round without figures.
fn check(figures: &LoadFigures) -> Result<(), String> {
    verdict(figures)?;
    match figures.messages {
        0 => Err("no message was answered during the measurement; use a longer --duration".to_owned()),
        _ => Ok(()),
    }
}

type CompareFigure = (&'static str, fn(&ServerRound) -> Option<f64>, fn(f64) -> String);

/// Compared figures.
const FIGURES: [CompareFigure; 4] = [
    ("rate", |round| Some(round.rate), |value| format!("{}/s", count(value))),
    ("median latency", |round| Some(round.median_ns), nanos),
    ("p99 latency", |round| Some(round.p99_ns), nanos),
    ("server's CPU", |round| round.cpu_us, |value| format!("{value:.2} µs")),
];

fn values(one: &Contender, figure: &CompareFigure) -> Option<Vec<f64>> {
    // A ratio to zero is none: the CPU time of a short round may be below the kernel's resolution.
    one.rounds.iter().map(|round| figure.1(round).filter(|value| *value > 0.0)).collect()
}

fn table(all: &[Contender]) -> String {
    let mut lines = Vec::new();
    for figure in &FIGURES {
        let Some(first) = all.first().and_then(|first| values(first, figure)) else { continue };
        lines.push(format!("{}:", figure.0));
        for (place, one) in all.iter().enumerate() {
            let Some(own) = values(one, figure) else { continue };
            let MedianInterval { median, low, high } = spread(&own);
            let shown = figure.2;
            let mut line =
                format!("  {:<24} {:>10}  ({} to {})", one.name, shown(median), shown(low), shown(high));
            if place > 0 {
                line.push_str(&format!("  {}", comparison(&first, &own)));
            }
            lines.push(line);
        }
    }
    if all.iter().flat_map(|one| &one.rounds).any(|round| round.limited) {
        lines
            .push("warning: in some rounds the load generator was the bottleneck, not the server".to_owned());
    }
    lines.join("\n")
}

/// Formats a ratio, and states whether it is significant.
fn comparison(first: &[f64], own: &[f64]) -> String {
    let ratio = RoundRatio::new(own, first);
    let MedianInterval { median, low, high } = ratio.interval;
    let shown = format!("× {median:.3} ({low:.3} to {high:.3})");
    match ratio.differs() {
        Some(true) => shown,
        Some(false) => format!("{shown}: no difference that this run can show"),
        None => format!("{shown}: undecided with {} rounds, {ROUNDS_MIN} can decide", own.len()),
    }
}

fn to_json(all: &[Contender]) -> Value {
    let one = |one: &Contender| {
        let mut result =
            json!({ "name": one.name, "url": shown_url(&one.plan.target.url), "rounds": one.rounds.len() });
        for figure in &FIGURES {
            let (Some(own), Some(first)) =
                (values(one, figure), all.first().and_then(|first| values(first, figure)))
            else {
                continue;
            };
            let (of_own, ratio) = (spread(&own), RoundRatio::new(&own, &first));
            let against = ratio.interval;
            let name = figure.0.replace([' ', '\''], "_");
            result[name] = json!({
                "median": of_own.median, "low": of_own.low, "high": of_own.high,
                "ratio": against.median, "ratio_low": against.low, "ratio_high": against.high,
                "differs": ratio.differs(),
                "all": own,
            });
        }
        result
    };
    json!({ "rounds_to_decide": ROUNDS_MIN, "servers": all.iter().map(one).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_without_answers_is_rejected() {
        let mut figures = LoadFigures::new();
        let error = check(&figures).unwrap_err();
        assert!(error.contains("no message was answered"), "{error}");
        figures.messages = 1;
        assert_eq!(check(&figures), Ok(()));
    }
}
