//! A write has one effect, and its repetitions have the same answer.

use rustc_hash::FxHashMap;

use super::facts::{Facts, Operation, Place};
use super::{Check, Findings};
use crate::history::{Answer, Call, Outcome, Part};

pub(super) fn check(facts: &Facts<'_>, found: &mut Findings) {
    for (value, places) in &facts.values {
        let alive = places.iter().filter(|place| facts.is_lost(**place) == Some(false)).count();
        let is_allowed = places.iter().any(|place| facts.loses(place.part));
        if alive > 1 || (places.len() > 1 && !is_allowed) {
            let text = format!("value {value} has several effects: {places:?}");
            found.violate(Check::Once, facts.sent.get(value).copied().unwrap_or(0), text);
        }
    }
    let mut first = FxHashMap::<(Part, u64, u16), Named<'_>>::default();
    for operation in &facts.operations {
        for named in names(operation) {
            let earlier = *first.entry((named.part, named.name, named.key)).or_insert(named);
            let (from, to) = (earlier.operation.called, operation.called);
            let is_in_window = to.saturating_sub(from) < facts.run.once_window;
            if earlier.effect != named.effect && is_in_window && !facts.loses(named.part) {
                let text = format!(
                    "{}: name {} has the answers {:?} and {:?}",
                    named.part, named.name, earlier.effect, named.effect
                );
                found.violate(Check::Once, operation.returned.unwrap_or(operation.called), text);
            }
        }
    }
}

/// A write that its client has named.
#[derive(Clone, Copy)]
struct Named<'a> {
    operation: &'a Operation<'a>,
    part: Part,
    name: u64,
    key: u16,
    /// The epoch and sequence that it has; `None`: it changes nothing.
    effect: Option<Place>,
}

fn names<'a>(operation: &'a Operation<'a>) -> Vec<Named<'a>> {
    match (operation.call, operation.answer) {
        (Call::Append { topic, once: Some(name), .. }, Answer::Appended { position, .. }) => {
            let part = Part::log(*topic);
            let effect = Some(Place { part, position: *position });
            vec![Named { operation, part, name: *name, key: 0, effect }]
        }
        (Call::WriteKeys { topic, writes }, Answer::Written { position, outcomes, .. }) => {
            let part = Part::keys(*topic);
            let named = writes.iter().zip(outcomes).filter_map(|(write, outcome)| {
                let version = match outcome {
                    Outcome::Changed(version) => Some(*version),
                    Outcome::Repeated(version) => *version,
                    _ => None,
                };
                let at = |sequence| Place {
                    part,
                    position: crate::history::EpochSequence { sequence, ..*position },
                };
                Some(Named { operation, part, name: write.once?, key: write.key, effect: version.map(at) })
            });
            named.collect()
        }
        _ => vec![],
    }
}
