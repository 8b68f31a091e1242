//! Facts about each topic in a history: operations, sequences, and the messages and changes that survived.

use std::borrow::Cow;
use std::ops::Range;
use std::slice;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Check, Findings};
use crate::history::{
    Answer, Call, Entry, EpochSequence, EventKind, History, KeyState, Loss, Outcome, Part, Run,
};

/// An operation with its answer.
pub(super) struct Operation<'a> {
    pub(super) node: u8,
    pub(super) client: u16,
    pub(super) call: &'a Call,
    pub(super) called: u64,
    /// `None`: never.
    pub(super) returned: Option<u64>,
    pub(super) answer: &'a Answer,
}

/// A position in a topic part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) part: Part,
    pub(super) position: EpochSequence,
}

/// The writes to a topic part that are known to be in it at the end.
#[derive(Default)]
pub(super) struct Survivors {
    /// Whether the history has the part's final state.
    is_known: bool,
    pub(super) top: Option<EpochSequence>,
    /// Positions from `floor` to the top.
    alive: FxHashSet<u64>,
    /// Sequences between two positions, which the history does not show one by one.
    vague: Vec<Range<u64>>,
    /// Nothing is known about earlier positions.
    floor: u64,
}

/// How a position after changes of keys continues another one.
#[derive(Clone, Copy)]
struct Link {
    /// A sequence before it.
    prev: u64,
    /// The first sequence that follows it: sequences between both were lost. `None`: the history does not show it.
    first: Option<u64>,
}

#[derive(Default)]
pub(super) struct Facts<'a> {
    pub(super) run: Run,
    pub(super) operations: Vec<Operation<'a>>,
    /// Faults that may lose writes, and when.
    pub(super) losses: Vec<(u64, Loss)>,
    /// Each position's message.
    pub(super) entries: FxHashMap<Place, Entry>,
    /// Each version's change.
    pub(super) versions: FxHashMap<Place, KeyState>,
    /// Positions after changes of keys.
    links: FxHashMap<Place, Link>,
    /// Positions in which a value was seen.
    pub(super) values: FxHashMap<u64, Vec<Place>>,
    survivors: FxHashMap<Part, Survivors>,
    /// Values that clients have sent, and when first.
    pub(super) sent: FxHashMap<u64, u64>,
    /// Values with a time to live, and when they expire at the earliest.
    expiries: FxHashMap<u64, u64>,
    /// Messages that clients have sent, for each topic.
    pub(super) appends: FxHashMap<u16, u32>,
}

static UNKNOWN: Answer = Answer::Unknown;

impl<'a> Facts<'a> {
    pub(super) fn new(history: &'a History, found: &mut Findings) -> Self {
        let mut facts = Self { run: history.run.clone(), ..Self::default() };
        facts.join(history);
        facts.observe(history, found);
        for event in &history.events {
            let (part, top) = match &event.kind {
                EventKind::FinalLog { topic, top, .. } => (Part::log(*topic), *top),
                EventKind::FinalKeys { topic, top, .. } => (Part::keys(*topic), *top),
                _ => continue,
            };
            let survivors = facts.walk(part, top);
            facts.survivors.insert(part, survivors);
        }
        facts
    }

    /// Whether a fault may have lost writes to a part, in a span of time.
    pub(super) fn loses_between(&self, part: Part, from: u64, to: u64) -> bool {
        self.losses.iter().any(|&(time, loss)| from <= time && time <= to && loss.concerns(part))
    }

    pub(super) fn loses(&self, part: Part) -> bool {
        self.loses_between(part, 0, u64::MAX)
    }

    /// Whether a topic may have dropped messages by its retention.
    pub(super) fn is_trimmed(&self, topic: u16) -> bool {
        let retained = self.run.retained.get(usize::from(topic)).copied().unwrap_or(u32::MAX);
        self.appends.get(&topic).is_some_and(|appends| *appends > retained)
    }

    pub(super) fn top(&self, part: Part) -> Option<EpochSequence> {
        self.survivors.get(&part).and_then(|survivors| survivors.top)
    }

    /// Whether a value has a time to live.
    pub(super) fn expires(&self, value: u64) -> bool {
        self.expiries.contains_key(&value)
    }

    /// Whether a message or change is not in the final state; `None` if the history does not show it.
    pub(super) fn is_lost(&self, place: Place) -> Option<bool> {
        let survivors = self.survivors.get(&place.part).filter(|survivors| survivors.is_known)?;
        let position = place.position;
        if position.sequence == 0 {
            return Some(false);
        }
        let Some(top) = survivors.top else { return Some(true) };
        if position.epoch != top.epoch || position.sequence > top.sequence {
            return Some(true);
        }
        let sequence = position.sequence;
        let is_alive = survivors.alive.contains(&sequence);
        let is_vague = survivors.vague.iter().any(|range| range.contains(&sequence));
        (sequence >= survivors.floor && (is_alive || !is_vague)).then_some(!is_alive)
    }

    fn join(&mut self, history: &'a History) {
        let mut places = FxHashMap::default();
        for event in &history.events {
            match &event.kind {
                EventKind::Call { id, node, client, call } => {
                    places.insert(*id, self.operations.len());
                    self.operations.push(Operation {
                        node: *node,
                        client: *client,
                        call,
                        called: event.time,
                        returned: None,
                        answer: &UNKNOWN,
                    });
                    self.note_values(call, event.time);
                }
                EventKind::Return { id, answer } => {
                    if let Some(place) = places.get(id) {
                        let operation = &mut self.operations[*place];
                        (operation.returned, operation.answer) = (Some(event.time), answer);
                    }
                }
                EventKind::Fault { loses: Some(loss), .. } => self.losses.push((event.time, *loss)),
                _ => {}
            }
        }
    }

    fn note_values(&mut self, call: &Call, time: u64) {
        match call {
            Call::Append { topic, value, .. } => {
                self.sent.entry(*value).or_insert(time);
                *self.appends.entry(*topic).or_default() += 1;
            }
            Call::WriteKeys { writes, .. } => {
                for write in writes {
                    let Some(value) = write.value else { continue };
                    self.sent.entry(value).or_insert(time);
                    if let Some(ttl) = write.ttl {
                        self.expiries.entry(value).or_insert(time + ttl);
                    }
                }
            }
            Call::ReadKeys { .. } => {}
        }
    }

    fn observe(&mut self, history: &History, found: &mut Findings) {
        let is_final =
            |kind: &EventKind| matches!(kind, EventKind::FinalLog { .. } | EventKind::FinalKeys { .. });
        // The final state first: it decides between two messages with one sequence.
        for event in history.events.iter().filter(|event| is_final(&event.kind)) {
            self.see(event.time, Seen::from_event(&event.kind), found);
        }
        for index in 0..self.operations.len() {
            let operation = &self.operations[index];
            let time = operation.returned.unwrap_or(operation.called);
            if let Some(seen) = Seen::from_answer(operation) {
                self.see(time, Some(seen), found);
            }
        }
        for event in history.events.iter().filter(|event| !is_final(&event.kind)) {
            self.see(event.time, Seen::from_event(&event.kind), found);
        }
    }

    fn see(&mut self, time: u64, seen: Option<Seen<'_>>, found: &mut Findings) {
        match seen {
            None => {}
            Some(Seen::Entries { topic, epoch, entries }) => {
                for entry in entries.iter() {
                    self.see_entry(time, Part::log(topic), epoch, *entry, found);
                }
            }
            Some(Seen::Keys { topic, epoch, keys }) => {
                for key in keys {
                    self.see_key(time, Part::keys(topic), epoch, *key, found);
                }
            }
            Some(Seen::Update { topic, position, prev, changes, is_own }) => {
                let part = Part::keys(topic);
                // The answer to several writes has no predecessor if other writes are between them.
                if !changes.is_empty() && prev < position.sequence {
                    let is_whole = changes.len() as u64 == position.sequence - prev;
                    let is_known = is_whole || (is_own && !self.run.keys_are_stream);
                    let first = changes.iter().map(|change| change.version).min().filter(|_| is_known);
                    let link = Link { prev, first };
                    let known = self.links.entry(Place { part, position }).or_insert(link);
                    // Operations come first, so that the writer's answer is known before.
                    if known.first.is_none() && (first.is_some() || prev < known.prev) {
                        *known = link;
                    }
                }
                for change in changes.iter() {
                    self.see_key(time, part, position.epoch, *change, found);
                }
            }
        }
    }

    fn see_entry(&mut self, time: u64, part: Part, epoch: u64, entry: Entry, found: &mut Findings) {
        let position = EpochSequence { epoch, sequence: entry.sequence };
        let first = *self.entries.entry(Place { part, position }).or_insert_with(|| {
            self.values.entry(entry.value).or_default().push(Place { part, position });
            entry
        });
        if first != entry {
            let text = format!("{part}: {position} is {first:?} and {entry:?}");
            found.violate(Check::Sequences, time, text);
        }
        if entry.prev >= entry.sequence || self.sent.get(&entry.value).is_none_or(|sent| *sent > time) {
            let text = format!("{part}: {position}: no client sent {entry:?}, or its predecessor is later");
            found.violate(Check::Sequences, time, text);
        }
    }

    fn see_key(&mut self, time: u64, part: Part, epoch: u64, key: KeyState, found: &mut Findings) {
        let place = Place { part, position: EpochSequence { epoch, sequence: key.version } };
        let first = *self.versions.entry(place).or_insert(key);
        if let Some(value) = key.value {
            let places = self.values.entry(value).or_default();
            if !places.contains(&place) {
                places.push(place);
            }
        }
        // An engine may say that a key was removed as soon as it has expired.
        let value = first.value.or(key.value);
        let is_expired = first.key == key.key
            && first.value != key.value
            && (first.value.is_none() || key.value.is_none())
            && value.and_then(|value| self.expiries.get(&value)).is_some_and(|expiry| *expiry <= time);
        if is_expired {
            self.versions.insert(place, KeyState { value, ..first });
            return;
        }
        let is_sent = key.value.is_none_or(|value| self.sent.get(&value).is_some_and(|sent| *sent <= time));
        if first != key || !is_sent {
            let text =
                format!("{part}: version {} is {first:?} and {key:?}, or was never sent", place.position);
            found.violate(Check::Sequences, time, text);
        }
    }

    /// Follows the predecessors from the end, as far as the history shows them.
    fn walk(&self, part: Part, top: Option<EpochSequence>) -> Survivors {
        let mut survivors = Survivors { is_known: true, top, ..Survivors::default() };
        let Some(mut position) = top else { return survivors };
        survivors.floor = position.sequence + 1;
        // The first condition is false only for predecessors that are later, which is a violation.
        while position.sequence < survivors.floor && position.sequence > 0 {
            survivors.floor = position.sequence;
            survivors.alive.insert(position.sequence);
            let place = Place { part, position };
            let entry = self.entries.get(&place);
            let entry = entry.map(|entry| Link { prev: entry.prev, first: Some(entry.sequence) });
            let Some(link) = entry.or_else(|| self.links.get(&place).copied()) else { return survivors };
            match link.first {
                Some(first) => survivors.alive.extend(first..position.sequence),
                None => survivors.vague.push(link.prev + 1..position.sequence),
            }
            position.sequence = link.prev;
        }
        survivors.floor = 0;
        survivors
    }
}

/// A topic's part of an event.
enum Seen<'a> {
    Entries {
        topic: u16,
        epoch: u64,
        entries: Cow<'a, [Entry]>,
    },
    Keys {
        topic: u16,
        epoch: u64,
        keys: &'a [KeyState],
    },
    /// `is_own`: an answer to its writer, and not changes that a node has read.
    Update {
        topic: u16,
        position: EpochSequence,
        prev: u64,
        changes: Cow<'a, [KeyState]>,
        is_own: bool,
    },
}

impl<'a> Seen<'a> {
    fn from_event(kind: &'a EventKind) -> Option<Self> {
        Some(match kind {
            EventKind::FinalLog { topic, top: Some(top), entries } => {
                Self::Entries { topic: *topic, epoch: top.epoch, entries: Cow::Borrowed(entries) }
            }
            EventKind::Delivered { topic, epoch, entry, .. } => {
                Self::Entries { topic: *topic, epoch: *epoch, entries: Cow::Borrowed(slice::from_ref(entry)) }
            }
            EventKind::FinalKeys { topic, top: Some(top), keys } => {
                Self::Keys { topic: *topic, epoch: top.epoch, keys }
            }
            EventKind::Changed { topic, position, prev, changes, .. } => {
                let changes = Cow::Borrowed(changes.as_slice());
                Self::Update { topic: *topic, position: *position, prev: *prev, changes, is_own: false }
            }
            EventKind::Subscribed { part, position, keys, .. }
            | EventKind::Reset { part, position, keys, .. } => {
                Self::Keys { topic: part.topic, epoch: position.epoch, keys }
            }
            EventKind::Cached { topic, position, keys, .. } => {
                Self::Keys { topic: *topic, epoch: position.epoch, keys }
            }
            _ => return None,
        })
    }

    fn from_answer(operation: &Operation<'a>) -> Option<Self> {
        Some(match (operation.call, operation.answer) {
            (Call::Append { topic, value, .. }, Answer::Appended { position, prev, repeated: false }) => {
                let entry = Entry { sequence: position.sequence, prev: *prev, value: *value };
                Self::Entries { topic: *topic, epoch: position.epoch, entries: Cow::Owned(vec![entry]) }
            }
            (Call::WriteKeys { topic, writes }, Answer::Written { position, prev, outcomes }) => {
                let changed = writes.iter().zip(outcomes).filter_map(|(write, outcome)| match outcome {
                    Outcome::Changed(version) => {
                        Some(KeyState { key: write.key, version: *version, value: write.value })
                    }
                    _ => None,
                });
                let changes = Cow::Owned(changed.collect());
                Self::Update { topic: *topic, position: *position, prev: *prev, changes, is_own: true }
            }
            (Call::ReadKeys { topic }, Answer::Keys { position: Some(position), keys }) => {
                Self::Keys { topic: *topic, epoch: position.epoch, keys }
            }
            _ => return None,
        })
    }
}
