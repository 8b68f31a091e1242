//! A client's messages and changes form a chain between two resets, also when it visits several nodes.

use rustc_hash::FxHashMap;
use sinews_store::PartKind;

use super::facts::{Facts, Place};
use super::{Check, Findings};
use crate::history::{EpochSequence, Event, EventKind, History, Part};

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    let mut reader = Reader { facts, found, positions: FxHashMap::default() };
    for event in &history.events {
        reader.handle(event);
    }
}

struct Reader<'a, 'b> {
    facts: &'a Facts<'b>,
    found: &'a mut Findings,
    /// Each client's last position.
    positions: FxHashMap<(u16, Part), EpochSequence>,
}

impl Reader<'_, '_> {
    fn handle(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Subscribed { client, node, part, after, complete, position, .. } => {
                let known = self.positions.insert((*client, *part), *position);
                if after.is_some() && *after != known {
                    self.violate(event, *client, *part, format!("resumes at {after:?}, and has {known:?}"));
                }
                if *complete && *after != Some(*position) {
                    let text = format!("node {node} resumes {after:?} at {position}");
                    self.violate(event, *client, *part, text);
                }
                // A node may answer a subscription to keys with all keys.
                if let (Some(after), false, PartKind::Log) = (after, complete, part.kind) {
                    self.judge(event, *client, Place { part: *part, position: *after });
                }
            }
            EventKind::Delivered { client, topic, epoch, entry } => {
                let next = EpochSequence { epoch: *epoch, sequence: entry.sequence };
                self.advance(event, *client, Part::log(*topic), next, entry.prev);
            }
            EventKind::Changed { client, topic, position, prev, .. } => {
                self.advance(event, *client, Part::keys(*topic), *position, *prev);
            }
            EventKind::Reset { client, part, position, .. } => {
                if let Some(before) = self.positions.insert((*client, *part), *position) {
                    self.judge(event, *client, Place { part: *part, position: before });
                }
            }
            _ => {}
        }
    }

    fn advance(&mut self, event: &Event, client: u16, part: Part, next: EpochSequence, prev: u64) {
        let Some(last) = self.positions.insert((client, part), next) else {
            self.violate(event, client, part, format!("receives {next} without a subscription"));
            return;
        };
        let is_first = last == EpochSequence::default();
        if prev != last.sequence || (next.epoch != last.epoch && !is_first) {
            let text = format!("receives {next} behind {prev}, and has {last}");
            self.violate(event, client, part, text);
        }
    }

    /// A client lost its place. It needed to only if a message or change behind it, or at it, was lost.
    fn judge(&mut self, event: &Event, client: u16, place: Place) {
        let part = place.part;
        let is_free = match part.kind {
            PartKind::Log => self.facts.is_trimmed(part.topic),
            // Behind an empty topic, all keys are the changes.
            PartKind::Keys => place.position == EpochSequence::default(),
        };
        if is_free {
            return;
        }
        if !self.facts.loses_between(part, 0, event.time) {
            let text = format!("client {client}, {part}: loses its place {} without a loss", place.position);
            self.found.violate(Check::Needless, event.time, text);
        } else if self.facts.is_lost(place) == Some(false) {
            self.found.counts.needless += 1;
        }
    }

    fn violate(&mut self, event: &Event, client: u16, part: Part, text: String) {
        self.found.violate(Check::Resume, event.time, format!("client {client}, {part}: {text}"));
    }
}
