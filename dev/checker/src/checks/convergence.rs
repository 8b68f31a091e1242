//! After the faults, nodes and clients have the engine's state.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::facts::Facts;
use super::{Check, Findings};
use crate::history::{EpochSequence, EventKind, History, KeyState, Part};

/// A client's state.
#[derive(Default)]
struct View {
    is_subscribed: bool,
    position: EpochSequence,
    keys: BTreeMap<u16, KeyState>,
}

impl View {
    fn apply(&mut self, changes: &[KeyState]) {
        for change in changes {
            match change.value {
                Some(_) => self.keys.insert(change.key, *change),
                None => self.keys.remove(&change.key),
            };
        }
    }

    fn replace(&mut self, position: EpochSequence, keys: &[KeyState]) {
        self.position = position;
        self.keys.clear();
        self.apply(keys);
    }
}

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    let mut views = FxHashMap::<(u16, Part), View>::default();
    let mut finals = FxHashMap::<Part, BTreeMap<u16, KeyState>>::default();
    for event in &history.events {
        match &event.kind {
            EventKind::FinalLog { topic, .. } => {
                finals.insert(Part::log(*topic), BTreeMap::new());
            }
            EventKind::FinalKeys { topic, keys, .. } => {
                let mut view = View::default();
                view.apply(keys);
                finals.insert(Part::keys(*topic), view.keys);
            }
            kind => follow(&mut views, kind),
        }
    }
    let end = history.events.last().map_or(0, |event| event.time);
    let mut compare = |part: Part, name: String, view: &View| {
        let Some(expected) = finals.get(&part) else { return };
        let (position, top) = (view.position, facts.top(part).unwrap_or_default());
        // A topic without changes may have an epoch.
        if position != top && (position.sequence > 0 || top.sequence > 0) {
            let text = format!("{name}, {part}: is at {position}, the engine at {top}");
            found.violate(Check::Convergence, end, text);
        } else if view.keys != *expected {
            let keys = view.keys.values();
            let text =
                format!("{name}, {part} at {position}: has {keys:?}, the engine {:?}", expected.values());
            found.violate(Check::Convergence, end, text);
        }
    };
    for event in &history.events {
        let EventKind::FinalCopy { node, part, position, keys } = &event.kind else { continue };
        let mut view = View::default();
        view.replace(*position, keys);
        compare(*part, format!("node {node}"), &view);
    }
    for ((client, part), view) in views.iter().filter(|(_, view)| view.is_subscribed) {
        compare(*part, format!("client {client}"), view);
    }
}

fn follow(views: &mut FxHashMap<(u16, Part), View>, kind: &EventKind) {
    match kind {
        EventKind::Subscribed { client, part, complete, position, keys, .. } => {
            let view = views.entry((*client, *part)).or_default();
            view.is_subscribed = true;
            if !complete {
                view.replace(*position, keys);
            }
        }
        EventKind::Reset { client, part, position, keys } => {
            views.entry((*client, *part)).or_default().replace(*position, keys);
        }
        EventKind::Delivered { client, topic, epoch, entry } => {
            let position = EpochSequence { epoch: *epoch, sequence: entry.sequence };
            views.entry((*client, Part::log(*topic))).or_default().position = position;
        }
        EventKind::Changed { client, topic, position, changes, .. } => {
            let view = views.entry((*client, Part::keys(*topic))).or_default();
            view.position = *position;
            view.apply(changes);
        }
        EventKind::Unsubscribed { client, part } => {
            views.entry((*client, *part)).or_default().is_subscribed = false;
        }
        _ => {}
    }
}
