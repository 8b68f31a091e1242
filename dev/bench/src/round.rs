//! Rounds: each measures every server once, alternating forward and backward, so that drift affects all
//! servers equally.

use std::time::Duration;

use crate::Error;
use crate::process::{Server, Usage};

/// Measurement of one server in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    /// The server's CPU time per unit, in nanoseconds.
    pub(crate) ns: f64,
    pub(crate) units_per_s: f64,
    /// Share of the time that the server ran.
    pub(crate) busy: f64,
    /// Neither the server nor the load waited long for its core.
    pub(crate) quiet: bool,
}

impl Measure {
    /// Runs the load and measures its cost on the server.
    pub(crate) fn of(server: &Server, load: impl FnOnce() -> Result<Done, Error>) -> Result<Self, Error> {
        let own = Usage::of(std::process::id())?;
        let before = server.settled_usage()?;
        let done = load()?;
        let used = server.settled_usage()?.since(before);
        let own = Usage::of(std::process::id())?.since(own);
        let elapsed_ns = done.elapsed.as_nanos() as f64;
        let waited = used.wait_ns.max(own.wait_ns) as f64 / elapsed_ns;
        Ok(Self {
            ns: used.run_ns as f64 / done.units as f64,
            units_per_s: done.units as f64 / done.elapsed.as_secs_f64(),
            busy: used.run_ns as f64 / elapsed_ns,
            quiet: waited <= WAITED_MAX,
        })
    }
}

/// A load with connections to a server.
pub(crate) trait Work {
    /// Keeps the server busy for this time and until every message in flight is answered.
    fn run(&mut self, window: Duration) -> Result<Done, Error>;
}

/// Work that a load has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Messages, deliveries or requests.
    pub(crate) units: u64,
    pub(crate) elapsed: Duration,
}

/// The counted rounds of one load.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Measurements by round, then by server.
    pub(crate) measures: Vec<Vec<Measure>>,
    /// All rounds are quiet. If there are too few quiet rounds, all count, and this is false.
    pub(crate) quiet: bool,
}

/// Number and duration of measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Quiet rounds.
    pub(crate) rounds: usize,
    /// Duration of one server's measurement in a round.
    pub(crate) window: Duration,
}

impl Rounds {
    /// Measures each server in each round, until there are enough quiet rounds.
    pub(crate) fn run(
        plan: Plan,
        servers: usize,
        mut measure: impl FnMut(usize) -> Result<Measure, Error>,
    ) -> Result<Self, Error> {
        let (wanted, mut all) = (plan.rounds, Vec::new());
        let quiet = |round: &&Vec<Measure>| round.iter().all(|measure| measure.quiet);
        while all.iter().filter(quiet).count() < wanted && all.len() < wanted * ATTEMPTS_PER_ROUND {
            let mut round = vec![None; servers];
            let backward = all.len() % 2 == 1;
            for place in 0..servers {
                let index = if backward { servers - 1 - place } else { place };
                round[index] = Some(measure(index)?);
            }
            all.push(round.into_iter().flatten().collect());
        }
        let enough = all.iter().filter(quiet).count() >= wanted;
        if enough {
            all.retain(|round| quiet(&round));
        }
        Ok(Self { measures: all, quiet: enough })
    }

    /// Measures servers under a load of `connections` connections to each. If the descriptor limit allows,
    /// all connections stay open; otherwise each server gets its connections for its turn.
    pub(crate) fn of_servers<W: Work>(
        plan: Plan,
        servers: &[(String, &Server)],
        connections: usize,
        connect: impl Fn(usize) -> Result<W, Error>,
    ) -> Result<Self, Error> {
        let named = |index: usize, error: Error| format!("{}: {error}", servers[index].0);
        let connect = |index: usize| connect(index).map_err(|error| named(index, error));
        let descriptors = sinews_engine::raise_descriptor_limit()?;
        let mut all = Vec::new();
        if (connections * servers.len()) as u64 + DESCRIPTORS_SPARE <= descriptors {
            all = (0..servers.len()).map(connect).collect::<Result<_, _>>()?;
        }
        Self::run(plan, servers.len(), |index| {
            let server = servers[index].1;
            let measure = |work: &mut W| {
                Measure::of(server, || work.run(plan.window)).map_err(|error| named(index, error))
            };
            if let Some(work) = all.get_mut(index) {
                return Ok(measure(work)?);
            }
            let mut work = connect(index)?;
            let measure = measure(&mut work)?;
            drop(work);
            // The next measurement starts after the server has closed these connections.
            server.settled_usage()?;
            Ok(measure)
        })
    }

    /// Returns one number of one server, by round.
    pub(crate) fn of(&self, server: usize, what: fn(&Measure) -> f64) -> impl Iterator<Item = f64> {
        self.measures.iter().map(move |round| what(&round[server]))
    }

    /// Returns the cost of a unit on one server as a multiple of its cost on another. The ratios are taken
    /// within each round: a disturbance of the round affects both servers.
    pub(crate) fn ratios(&self, this: usize, other: usize) -> Vec<f64> {
        self.measures.iter().map(|round| round[this].ns / round[other].ns).collect()
    }
}

/// Limits the repetition of rounds that other processes disturb.
const ATTEMPTS_PER_ROUND: usize = 4;

/// Descriptors beside the connections.
const DESCRIPTORS_SPARE: u64 = 200;

/// Maximum share of the window that a process may wait for its core.
pub(crate) const WAITED_MAX: f64 = 0.04;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rounds: usize) -> Plan {
        Plan { rounds, window: Duration::ZERO }
    }

    fn measure(ns: f64, quiet: bool) -> Measure {
        Measure { ns, units_per_s: 1., busy: 1., quiet }
    }

    #[test]
    fn every_other_round_goes_backward() {
        let mut order = Vec::new();
        Rounds::run(plan(2), 3, |index| {
            order.push(index);
            Ok(measure(1., true))
        })
        .unwrap();
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
    }

    #[test]
    fn quiet_rounds_count_if_there_are_enough() {
        let mut number = 0;
        let every_third_is_quiet = Rounds::run(plan(1), 1, |_| {
            number += 1;
            Ok(measure(f64::from(number), number == 3))
        })
        .unwrap();
        assert!(every_third_is_quiet.quiet);
        assert_eq!(every_third_is_quiet.of(0, |measure| measure.ns).collect::<Vec<_>>(), [3.]);
        let never_quiet = Rounds::run(plan(1), 1, |_| Ok(measure(1., false))).unwrap();
        assert!(!never_quiet.quiet);
        assert_eq!(never_quiet.measures.len(), ATTEMPTS_PER_ROUND);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut costs = [10., 5., 8., 16.].into_iter();
        let rounds = Rounds::run(plan(2), 2, |_| Ok(measure(costs.next().unwrap(), true))).unwrap();
        assert_eq!(rounds.ratios(0, 1), [2., 2.]);
    }
}
