//! No acknowledged write is lost silently.

use rustc_hash::FxHashMap;

use super::facts::{Facts, Operation, Place};
use super::{Check, Findings};
use crate::history::{Answer, Call, EpochSequence, EventKind, History, KeyState, Outcome, Part};

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    for operation in &facts.operations {
        check_write(facts, operation, found);
    }
    // Each client's messages and changes since its last reset.
    let mut seen = FxHashMap::<(u16, Part), Vec<Seen>>::default();
    let mut subscribed = FxHashMap::<(u16, Part), bool>::default();
    let end = history.events.last().map_or(0, |event| event.time);
    for event in &history.events {
        match &event.kind {
            EventKind::Subscribed { client, part, complete, position, keys, .. } => {
                subscribed.insert((*client, *part), true);
                if !complete {
                    seen.insert((*client, *part), Seen::all(*part, *position, keys));
                }
            }
            EventKind::Reset { client, part, position, keys } => {
                seen.insert((*client, *part), Seen::all(*part, *position, keys));
            }
            EventKind::Delivered { client, topic, epoch, entry } => {
                let position = EpochSequence { epoch: *epoch, sequence: entry.sequence };
                let (part, value) = (Part::log(*topic), Some(entry.value));
                let place = Place { part, position };
                seen.entry((*client, part)).or_default().push(Seen { place, value });
            }
            EventKind::Changed { client, topic, position, changes, .. } => {
                let part = Part::keys(*topic);
                seen.entry((*client, part)).or_default().extend(Seen::all(part, *position, changes));
            }
            EventKind::Unsubscribed { client, part } => {
                subscribed.insert((*client, *part), false);
            }
            _ => {}
        }
    }
    for ((client, part), all) in seen {
        let is_subscribed = subscribed.get(&(client, part)) == Some(&true);
        if let Some(lost) = all.iter().find(|seen| is_subscribed && seen.is_lost(facts)) {
            let text =
                format!("client {client}, {part}: has seen {:?}, which is lost, without a reset", lost);
            found.violate(Check::Loss, end, text);
        }
    }
}

/// A message or change, with its value.
#[derive(Debug)]
struct Seen {
    place: Place,
    value: Option<u64>,
}

impl Seen {
    fn all(part: Part, position: EpochSequence, keys: &[KeyState]) -> Vec<Self> {
        let seen = |key: &KeyState| {
            let position = EpochSequence { epoch: position.epoch, sequence: key.version };
            Self { place: Place { part, position }, value: key.value }
        };
        keys.iter().map(seen).collect()
    }

    /// Lost, or another write has its sequence.
    fn is_lost(&self, facts: &Facts<'_>) -> bool {
        let entry = facts.entries.get(&self.place).map(|entry| Some(entry.value));
        let other = entry.or_else(|| facts.versions.get(&self.place).map(|key| key.value));
        let is_expired = |value: u64| self.value.is_none() && facts.expires(value);
        let is_other = |value: Option<u64>| value != self.value && !value.is_some_and(is_expired);
        facts.is_lost(self.place) == Some(true) || other.is_some_and(is_other)
    }
}

fn check_write(facts: &Facts<'_>, operation: &Operation<'_>, found: &mut Findings) {
    let Some(returned) = operation.returned else { return };
    let mut check = |part, epoch, sequence, value| {
        let seen = Seen { place: Place { part, position: EpochSequence { epoch, sequence } }, value };
        if seen.is_lost(facts) {
            found.counts.lost += 1;
            if !facts.loses_between(part, operation.called, u64::MAX) {
                let text = format!("{part}: {seen:?} was acknowledged, and is lost without a fault");
                found.violate(Check::Loss, returned, text);
            }
        }
    };
    match (operation.call, operation.answer) {
        (Call::Append { topic, value, .. }, Answer::Appended { position, .. }) => {
            check(Part::log(*topic), position.epoch, position.sequence, Some(*value));
        }
        (Call::WriteKeys { topic, writes }, Answer::Written { position, outcomes, .. }) => {
            for (write, outcome) in writes.iter().zip(outcomes) {
                if let Outcome::Changed(version) = outcome {
                    check(Part::keys(*topic), position.epoch, *version, write.value);
                }
            }
        }
        _ => {}
    }
}
