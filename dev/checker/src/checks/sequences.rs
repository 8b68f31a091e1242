//! Sequences grow: an operation that begins after the end of another one has a higher position.

use super::facts::{Facts, Place};
use super::{Check, Findings};
use crate::history::{Answer, Call, EpochSequence, Outcome, Part};

/// A write with a position of its own.
struct Write {
    place: Place,
    called: u64,
    returned: u64,
}

pub(super) fn check(facts: &Facts<'_>, found: &mut Findings) {
    let mut writes = writes(facts);
    writes.sort_unstable_by_key(|write| (write.place.part, write.called));
    let mut returns: Vec<usize> = (0..writes.len()).collect();
    returns.sort_unstable_by_key(|index| (writes[*index].place.part, writes[*index].returned));
    let mut next = 0;
    let mut highest: Option<&Write> = None;
    for write in &writes {
        let part = write.place.part;
        if highest.is_some_and(|earlier| earlier.place.part != part) {
            highest = None;
        }
        while let Some(earlier) = returns.get(next).map(|index| &writes[*index]) {
            if (earlier.place.part, earlier.returned) >= (part, write.called) {
                break;
            }
            let is_higher = highest.is_none_or(|other| other.place.position < earlier.place.position);
            if earlier.place.part == part && (is_higher || facts.loses_between(part, 0, earlier.returned)) {
                highest = Some(earlier);
            }
            next += 1;
        }
        let Some(earlier) = highest else { continue };
        let (before, after) = (earlier.place.position, write.place.position);
        if before.epoch == after.epoch && before.sequence >= after.sequence {
            let text = format!("{part}: {after} is assigned after {before} was acknowledged");
            found.violate(Check::Sequences, write.returned, text);
        }
        if before.epoch != after.epoch && !facts.loses(part) {
            let text = format!("{part}: epoch {} follows {} without a loss", after.epoch, before.epoch);
            found.violate(Check::Sequences, write.returned, text);
        }
    }
}

fn writes(facts: &Facts<'_>) -> Vec<Write> {
    let mut writes = Vec::new();
    for operation in &facts.operations {
        let Some(returned) = operation.returned else { continue };
        let mut add = |part, epoch, sequence| {
            let place = Place { part, position: EpochSequence { epoch, sequence } };
            writes.push(Write { place, called: operation.called, returned });
        };
        match (operation.call, operation.answer) {
            (Call::Append { topic, .. }, Answer::Appended { position, repeated: false, .. }) => {
                add(Part::log(*topic), position.epoch, position.sequence);
            }
            (Call::WriteKeys { topic, .. }, Answer::Written { position, outcomes, .. }) => {
                for outcome in outcomes {
                    if let Outcome::Changed(version) = outcome {
                        add(Part::keys(*topic), position.epoch, *version);
                    }
                }
            }
            _ => {}
        }
    }
    writes
}
