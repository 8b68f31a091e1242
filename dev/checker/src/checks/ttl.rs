//! Copies at nodes: keys expire in time and not earlier, and a copy has the writes that its node has acknowledged.

use rustc_hash::FxHashMap;

use super::facts::{Facts, Place};
use super::{Check, Findings};
use crate::history::{Answer, Call, EpochSequence, EventKind, History, Outcome, Part};

/// Time after an expiry in which a copy may still have the key.
const SLACK: u64 = 1_000_000;

/// An acknowledged write of a key.
struct Write {
    node: u8,
    key: u16,
    place: Place,
    /// Position after the write.
    position: EpochSequence,
    returned: u64,
    /// Earliest and latest time of the expiry.
    expiry: Option<(u64, u64)>,
}

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    let writes = writes(facts);
    let by_place: FxHashMap<Place, &Write> = writes.iter().map(|write| (write.place, write)).collect();
    let mut copies = FxHashMap::<(u8, u16), EpochSequence>::default();
    for event in &history.events {
        let EventKind::Cached { node, topic, position, keys, .. } = &event.kind else { continue };
        let (part, time) = (Part::keys(*topic), event.time);
        let mut violate = |check, text| found.violate(check, time, format!("node {node}, {part}: {text}"));
        for key in keys {
            let version = EpochSequence { sequence: key.version, ..*position };
            let latest = by_place.get(&Place { part, position: version }).and_then(|write| write.expiry);
            if latest.is_some_and(|(_, latest)| time > latest + facts.run.ttl_resolution + SLACK) {
                violate(Check::Ttl, format!("{key:?} has expired before {latest:?}"));
            }
        }
        let before = copies.insert((*node, *topic), *position).unwrap_or_default();
        if before.epoch == position.epoch && before > *position && !facts.loses_between(part, 0, time) {
            violate(Check::Sequences, format!("the copy goes back from {before} to {position}"));
        }
        for write in writes.iter().filter(|write| write.place.part == part && write.returned <= time) {
            if facts.loses_between(part, 0, time) {
                break;
            }
            if write.node == *node && write.position > *position {
                violate(
                    Check::Sequences,
                    format!("the copy has {position}, and acknowledged {}", write.position),
                );
            }
            let is_there = keys.iter().any(|key| key.key == write.key);
            let is_early = write.expiry.is_some_and(|(earliest, _)| time < earliest);
            // In a stream, other operations may have written between the versions of one operation.
            let place = if facts.run.keys_are_stream { write.place.position } else { write.position };
            if place == *position && is_early && !is_there {
                violate(Check::Ttl, format!("version {} is missing before its expiry", write.place.position));
            }
        }
    }
}

fn writes(facts: &Facts<'_>) -> Vec<Write> {
    let mut all = Vec::new();
    for operation in &facts.operations {
        let (Call::WriteKeys { topic, writes }, Answer::Written { position, outcomes, .. }) =
            (operation.call, operation.answer)
        else {
            continue;
        };
        let returned = operation.returned.unwrap_or(u64::MAX);
        for (write, outcome) in writes.iter().zip(outcomes) {
            let Outcome::Changed(version) = *outcome else { continue };
            let version = EpochSequence { sequence: version, ..*position };
            let ttl = write.ttl.filter(|_| write.value.is_some());
            all.push(Write {
                node: operation.node,
                key: write.key,
                place: Place { part: Part::keys(*topic), position: version },
                position: *position,
                returned,
                expiry: ttl.map(|ttl| (operation.called + ttl, returned.saturating_add(ttl))),
            });
        }
    }
    all
}
