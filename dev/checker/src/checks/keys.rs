//! Each key is linearizable: a register with set, removal, conditions and a time to live.
//!
//! A fault that may lose writes cuts the history. Behind it the key has the value of any earlier write, or none.

use rustc_hash::FxHashMap;

use super::facts::{Facts, Operation};
use super::search::{KeyAction, KeyOperation, Register, search};
use super::{Check, Findings};
use crate::history::{Answer, Call, Condition, History, KeyWrite, Loss, Outcome, Part};

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    let end = history.events.last().map_or(0, |event| event.time);
    for ((topic, key), mut operations) in operations(facts) {
        operations.sort_by_key(|operation| operation.called);
        let part = Part::keys(topic);
        let mut starts = vec![Register::default()];
        let mut from = 0;
        let cuts = facts.losses.iter().filter(|(_, loss)| loss.concerns(part)).copied();
        for (to, loss) in cuts.chain([(u64::MAX, Loss::Suffix)]) {
            let piece = piece(&operations, from, to);
            check_piece(&piece, &starts, &format!("key {key}, {part}"), to.min(end), found);
            starts.truncate(1);
            if loss == Loss::Suffix {
                starts
                    .extend(operations.iter().filter(|operation| operation.called < to).filter_map(written));
            }
            from = to;
        }
    }
}

fn check_piece(piece: &[KeyOperation], starts: &[Register], name: &str, time: u64, found: &mut Findings) {
    let mut deepest = None;
    // The last writes are the most likely.
    for start in starts.iter().rev() {
        match search(piece, *start) {
            Ok(()) => return,
            Err(stuck) if stuck.is_given_up => {
                found.counts.undecided += 1;
                return;
            }
            Err(stuck) => {
                deepest =
                    deepest.filter(|best: &super::search::Stuck| best.ordered > stuck.ordered).or(Some(stuck))
            }
        }
    }
    if let Some(stuck) = deepest {
        let text = format!(
            "{name}: no order of {} operations; after {} ones, the key is {:?}, and the next ones are {:?}",
            piece.len(),
            stuck.ordered,
            stuck.state,
            stuck.next
        );
        found.violate(Check::Linearizable, time, text);
    }
}

/// The state behind a write, if it took effect.
fn written(operation: &KeyOperation) -> Option<Register> {
    let KeyAction::Write { value: Some(value), ttl, outcome, .. } = operation.kind else { return None };
    if !matches!(outcome, None | Some(Outcome::Changed(_))) {
        return None;
    }
    let version = operation.version.unwrap_or(0);
    let expiry =
        ttl.map(|ttl| (operation.called + ttl, operation.returned.saturating_add(ttl + operation.late)));
    Some(Register { value: Some(value), version, expiry, highest: version })
}

/// Operations between two cuts. One that spans a cut may have had its effect on either side.
fn piece(operations: &[KeyOperation], from: u64, to: u64) -> Vec<KeyOperation> {
    let overlap = operations.iter().filter(|operation| operation.called < to && operation.returned >= from);
    let clamp = |operation: &KeyOperation| {
        let is_inside = operation.called >= from && (operation.returned < to || to == u64::MAX);
        let returned = if is_inside { operation.returned } else { u64::MAX };
        KeyOperation { is_required: operation.is_required && is_inside, returned, ..*operation }
    };
    overlap.map(clamp).collect()
}

fn operations(facts: &Facts<'_>) -> FxHashMap<(u16, u16), Vec<KeyOperation>> {
    let mut all = FxHashMap::<(u16, u16), Vec<KeyOperation>>::default();
    let mut named = FxHashMap::<(u16, u16, u64), usize>::default();
    for operation in &facts.operations {
        let Call::WriteKeys { topic, writes } = operation.call else { continue };
        for (index, write) in writes.iter().enumerate() {
            let Some(next) = key_write(facts, operation, *topic, index, write) else { continue };
            let of_key = all.entry((*topic, write.key)).or_default();
            // Repetitions of a named write are one operation, unless the engine may have lost the first one.
            let first =
                write.once.map(|name| *named.entry((*topic, write.key, name)).or_insert(of_key.len()));
            let first = first.and_then(|first| of_key.get_mut(first));
            let returned = operation.returned.unwrap_or(u64::MAX);
            match first.filter(|first| !facts.loses_between(Part::keys(*topic), first.called, returned)) {
                Some(first) => {
                    let unknown = [*first, next].into_iter().find(|operation| rank(operation) == 0);
                    merge(first, next);
                    // Behind a loss, the engine may execute it although the other one has an answer.
                    of_key.extend(unknown.filter(|_| facts.loses(Part::keys(*topic))));
                }
                None => of_key.push(next),
            }
        }
    }
    for operation in &facts.operations {
        let Call::ReadKeys { topic } = operation.call else { continue };
        let (Answer::Keys { keys, .. }, Some(returned)) = (operation.answer, operation.returned) else {
            continue;
        };
        for ((_, key), of_key) in all.iter_mut().filter(|((written, _), _)| written == topic) {
            let state = keys.iter().find(|state| state.key == *key);
            let kind = KeyAction::Read(state.and_then(|state| Some((state.version, state.value?))));
            let called = operation.called;
            of_key.push(KeyOperation {
                called,
                returned,
                is_required: true,
                kind,
                version: None,
                is_blind: false,
                late: 0,
            });
        }
    }
    all
}

fn key_write(
    facts: &Facts<'_>,
    operation: &Operation<'_>,
    topic: u16,
    index: usize,
    write: &KeyWrite,
) -> Option<KeyOperation> {
    let outcome = match operation.answer {
        Answer::Written { outcomes, .. } => Some(*outcomes.get(index)?),
        Answer::Unknown => None,
        _ => return None,
    };
    let KeyWrite { value, ttl, .. } = *write;
    let condition = match (write.condition, operation.answer) {
        // The topic has another epoch: no version holds.
        (Some(Condition::At(expected)), Answer::Written { position, .. }) => {
            let is_same = expected.epoch == position.epoch;
            Some(Condition::Version(if is_same { expected.sequence } else { u64::MAX }))
        }
        (condition, _) => condition,
    };
    let mut places = value.iter().filter_map(|value| facts.values.get(value)).flatten();
    // Another client has seen the value. Behind a loss, a late execution may have given it another version.
    let seen = places.next().filter(|_| places.next().is_none() && !facts.loses(Part::keys(topic)));
    let version = match outcome {
        Some(Outcome::Changed(version)) => Some(version),
        Some(_) => None,
        None => seen.map(|place| place.position.sequence),
    };
    let is_certain = outcome.is_some() || version.is_some();
    Some(KeyOperation {
        called: operation.called,
        returned: operation.returned.filter(|_| outcome.is_some()).unwrap_or(u64::MAX),
        is_required: is_certain,
        kind: KeyAction::Write { value, ttl, condition, outcome },
        version,
        is_blind: value.is_none() && condition.is_none() && facts.run.keys_are_stream,
        late: facts.run.write_resolution,
    })
}

/// Two calls with one name: the effect is that of either.
fn merge(first: &mut KeyOperation, mut next: KeyOperation) {
    if let KeyAction::Write { outcome: outcome @ Some(Outcome::Repeated(Some(_))), .. } = &mut next.kind {
        // A repetition tells the effect of the first one.
        if let Some(Outcome::Repeated(Some(version))) = *outcome {
            (next.version, *outcome) = (Some(version), Some(Outcome::Changed(version)));
        }
    }
    let (before, behind) = (rank(first), rank(&next));
    let called = first.called.min(next.called);
    let best = if behind > before { next } else { *first };
    let returned = if before > 0 && behind > 0 { first.returned.min(next.returned) } else { best.returned };
    *first = KeyOperation { called, returned, ..best };
}

/// How much an outcome tells.
fn rank(operation: &KeyOperation) -> u8 {
    match operation.kind {
        KeyAction::Read(_) | KeyAction::Write { outcome: None, .. } => 0,
        KeyAction::Write { outcome: Some(Outcome::Repeated(_)), .. } => 1,
        KeyAction::Write { outcome: Some(Outcome::Changed(_)), .. } => 3,
        KeyAction::Write { outcome: Some(_), .. } => 2,
    }
}
