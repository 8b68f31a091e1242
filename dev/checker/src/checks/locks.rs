//! A lock is a key that a client creates with a time to live. It has one holder at a time, and its version is the token by
//! which a resource rejects earlier holders.

use std::fmt;

use rustc_hash::FxHashMap;

use super::facts::{Facts, Operation};
use super::{Check, Findings};
use crate::history::{Answer, Call, Condition, EpochSequence, EventKind, History, KeyWrite, Outcome, Part};

/// The time in which a client may rely on its lock.
struct Hold {
    client: u16,
    token: EpochSequence,
    from: u64,
    /// When it expires at the earliest, or when the client begins to release it.
    to: u64,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} with {} from {} to {} µs", self.client, self.token, self.from, self.to)
    }
}

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    let Some(topic) = facts.run.lock_topic else { return };
    let part = Part::keys(topic);
    for (key, mut holds) in holds(facts, topic) {
        // An answer may come behind the expiry.
        holds.retain(|hold| hold.from < hold.to);
        holds.sort_by_key(|hold| hold.from);
        let mut last: Option<&Hold> = None;
        for hold in &holds {
            let Some(earlier) = last.replace(hold) else { continue };
            let is_cut =
                facts.loses_between(part, earlier.from.saturating_sub(facts.run.deadline), hold.from);
            if (hold.from < earlier.to && !is_cut) || hold.token == earlier.token {
                let text = format!("key {key} in {part} has two holders: {earlier} and {hold}");
                found.violate(Check::Exclusion, hold.from, text);
            }
            if earlier.to > hold.to {
                last = Some(earlier);
            }
        }
    }
    let mut tokens = FxHashMap::<(u16, u64), EpochSequence>::default();
    for event in &history.events {
        let EventKind::Resource { client, key, token, accepted: true } = event.kind else { continue };
        let highest = tokens.entry((key, token.epoch)).or_default();
        if token < *highest {
            let text = format!("key {key} in {part}: client {client} with token {token} follows {highest}");
            found.violate(Check::Exclusion, event.time, text);
        }
        *highest = token.max(*highest);
    }
}

fn holds(facts: &Facts<'_>, topic: u16) -> FxHashMap<u16, Vec<Hold>> {
    let mut holds = FxHashMap::<u16, Vec<Hold>>::default();
    for operation in &facts.operations {
        let Call::WriteKeys { topic: written, writes } = operation.call else { continue };
        for (index, write) in writes.iter().enumerate().filter(|_| *written == topic) {
            let of_key = holds.entry(write.key).or_default();
            match (write.condition, acquired(operation, index, write)) {
                (Some(Condition::IfNew), Some((token, ttl))) => {
                    let from = operation.returned.unwrap_or(u64::MAX);
                    of_key.push(Hold { client: operation.client, token, from, to: operation.called + ttl });
                }
                (Some(Condition::Version(token)), _) => {
                    for hold in of_key.iter_mut().filter(|hold| hold.token.sequence == token) {
                        hold.to = hold.to.min(operation.called);
                    }
                }
                _ => {}
            }
        }
    }
    holds
}

/// The token and the time to live, if the write has created the key.
fn acquired(operation: &Operation<'_>, index: usize, write: &KeyWrite) -> Option<(EpochSequence, u64)> {
    let Answer::Written { position, outcomes, .. } = operation.answer else { return None };
    match outcomes.get(index)? {
        Outcome::Changed(version) | Outcome::Repeated(Some(version)) => {
            Some((EpochSequence { sequence: *version, ..*position }, write.ttl?))
        }
        _ => None,
    }
}
