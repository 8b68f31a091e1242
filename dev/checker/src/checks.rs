//! Checks: pure functions of a history.

mod bounds;
mod convergence;
mod facts;
mod keys;
mod locks;
mod loss;
mod once;
mod resume;
mod search;
mod sequences;
#[cfg(test)]
mod tests;
mod ttl;

use std::fmt;

use crate::history::{Answer, EventKind, History};
use facts::Facts;

/// Result of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Numbers of events.
    pub counts: Counts,
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it.
    pub check: Check,
    /// When it was noticed, in microseconds.
    pub time: u64,
    /// Description.
    pub text: String,
}

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Each key is linearizable.
    Linearizable,
    /// A sequence has one message or change, and sequences grow.
    Sequences,
    /// No acknowledged write is lost without a fault, and each client that has seen a lost one gets a reset.
    Loss,
    /// A client's messages and changes between two resets are a chain.
    Resume,
    /// A node reports incomplete subscriptions only after trimming, loss or a gap that the engine cannot fill.
    Needless,
    /// A write has one effect, and its repetitions have the same answer.
    Once,
    /// Keys expire in time, and not earlier.
    Ttl,
    /// After the faults, nodes and clients have the engine's state.
    Convergence,
    /// A lock has one holder.
    Exclusion,
    /// Answers come before the deadline.
    Bounds,
}

/// Numbers of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations at the engine.
    pub operations: u64,
    /// Operations that may have an effect.
    pub unknown: u64,
    /// Operations without effect.
    pub failed: u64,
    /// Messages and changes that clients received.
    pub delivered: u64,
    /// Subscriptions that continued at a position.
    pub resumed: u64,
    /// Subscriptions that could not.
    pub incomplete: u64,
    /// Resets during a subscription.
    pub resets: u64,
    /// Subscriptions and resets without a need, in runs that lose writes.
    pub needless: u64,
    /// Acknowledged writes that the engine has lost.
    pub lost: u64,
    /// Keys whose orders are too many to search.
    pub undecided: u64,
}

impl Findings {
    /// Adds another run's counts and violations.
    pub fn add(&mut self, other: Self) {
        self.violations.extend(other.violations);
        let (sum, more) = (&mut self.counts, other.counts);
        sum.operations += more.operations;
        sum.unknown += more.unknown;
        sum.failed += more.failed;
        sum.delivered += more.delivered;
        sum.resumed += more.resumed;
        sum.incomplete += more.incomplete;
        sum.resets += more.resets;
        sum.needless += more.needless;
        sum.lost += more.lost;
        sum.undecided += more.undecided;
    }

    /// Whether a check has found something.
    #[must_use]
    pub fn has(&self, check: Check) -> bool {
        self.violations.iter().any(|violation| violation.check == check)
    }

    fn violate(&mut self, check: Check, time: u64, text: String) {
        self.violations.push(Violation { check, time, text });
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:.6} s: {}", self.check, self.time as f64 / 1e6, self.text)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations ({} unknown, {} without effect), {} deliveries, {} resumed, {} incomplete, {} resets \
             ({} needless), {} acknowledged writes lost, {} keys undecided",
            self.operations,
            self.unknown,
            self.failed,
            self.delivered,
            self.resumed,
            self.incomplete,
            self.resets,
            self.needless,
            self.lost,
            self.undecided
        )
    }
}

/// Applies all checks.
#[must_use]
pub fn check(history: &History) -> Findings {
    let mut found = Findings::default();
    count(history, &mut found.counts);
    let facts = Facts::new(history, &mut found);
    sequences::check(&facts, &mut found);
    resume::check(history, &facts, &mut found);
    loss::check(history, &facts, &mut found);
    once::check(&facts, &mut found);
    ttl::check(history, &facts, &mut found);
    convergence::check(history, &facts, &mut found);
    locks::check(history, &facts, &mut found);
    bounds::check(history, &facts, &mut found);
    keys::check(history, &facts, &mut found);
    found
}

fn count(history: &History, counts: &mut Counts) {
    for event in &history.events {
        match &event.kind {
            EventKind::Call { .. } => counts.operations += 1,
            EventKind::Return { answer: Answer::Unknown, .. } => counts.unknown += 1,
            EventKind::Return { answer: Answer::Failed { .. }, .. } => counts.failed += 1,
            EventKind::Delivered { .. } | EventKind::Changed { .. } => counts.delivered += 1,
            EventKind::Subscribed { complete: true, after: Some(_), .. } => counts.resumed += 1,
            EventKind::Subscribed { complete: false, after: Some(_), .. } => counts.incomplete += 1,
            EventKind::Reset { .. } => counts.resets += 1,
            _ => {}
        }
    }
}
