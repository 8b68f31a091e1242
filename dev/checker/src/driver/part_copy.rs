//! A node's copy of a topic part, with the subscriptions of its clients.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use sinews_store::{
    KeyChanges, KeyCopy, KeyStep, KeyUpdate, LogCopy, LogEntry, LogPage, LogStart, LogStep, PartKind,
    Position, ReadKeys, ReadLog, StoredKey, StoredKeys,
};

use super::node::{Context, Read, topic_part};
use super::record::{key_state, value};
use crate::history::{Entry, EpochSequence, EventKind, KeyState, Part};

/// Messages in a page: few, so that reads have several.
const PAGE_MESSAGES: u32 = 5;
/// Keys in a page.
const PAGE_KEYS: u32 = 2;

/// A copy.
pub(super) struct PartCopy {
    pub(super) part: Part,
    /// Its name at the store.
    name: Box<str>,
    kind: Kind,
    clients: Vec<u16>,
    applicants: Vec<Applicant>,
    /// Number of the last audit that has an answer.
    pub(super) audited: u64,
}

enum Kind {
    Log { copy: LogCopy, retained: Retained },
    Keys { copy: KeyCopy, view: KeyView },
}

/// A client that waits for its subscription.
struct Applicant {
    client: u16,
    after: Option<EpochSequence>,
    /// The copy decides if this audit or a later one does not show the position.
    audit: u64,
}

/// Messages that a copy retains.
#[derive(Default)]
struct Retained {
    max: usize,
    epoch: u64,
    /// Sequence before the first message.
    floor: u64,
    entries: VecDeque<Entry>,
    /// The clients learn that they have missed messages when the copy is installed again.
    is_lost: bool,
}

/// Keys of a copy, by the rules of the server's keyed topics: a client resumes behind any position from `forgotten` on.
#[derive(Default)]
struct KeyView {
    /// Removed keys are remembered.
    keys: BTreeMap<Arc<str>, Timed>,
    forgotten: u64,
}

struct Timed {
    state: KeyState,
    /// When the store removes the key.
    expiry: Option<Instant>,
}

/// Input of a copy.
pub(super) enum CopyInput {
    Following,
    Retry,
    Failed,
    Top { asked: Position, top: Option<Position> },
    Entry(u64, LogEntry),
    Log(LogPage),
    Update(KeyUpdate),
    Page(StoredKeys),
    Changes(KeyChanges),
}

impl PartCopy {
    pub(super) fn new(part: Part, retained: u32) -> Self {
        let kind = match part.kind {
            PartKind::Log => Kind::Log {
                copy: LogCopy::new(retained),
                retained: Retained { max: retained as usize, ..Retained::default() },
            },
            PartKind::Keys => Kind::Keys { copy: KeyCopy::new(), view: KeyView::default() },
        };
        let name = topic_part(part).topic;
        Self { part, name, kind, clients: vec![], applicants: vec![], audited: 0 }
    }

    pub(super) fn last(&self) -> Option<Position> {
        match &self.kind {
            Kind::Log { copy, .. } => copy.last(),
            Kind::Keys { copy, .. } => copy.last(),
        }
    }

    /// All keys with a value.
    pub(super) fn keys(&self, now: Instant) -> Vec<KeyState> {
        match &self.kind {
            Kind::Log { .. } => vec![],
            Kind::Keys { view, .. } => {
                let has_value = |timed: &&Timed| {
                    timed.expiry.is_none_or(|expiry| expiry > now) && timed.state.value.is_some()
                };
                let live = view.keys.values().filter(has_value);
                live.map(|timed| timed.state).collect()
            }
        }
    }

    /// Whether a subscription is accepted already. Otherwise an audit decides.
    pub(super) fn apply(
        &mut self,
        client: u16,
        after: Option<EpochSequence>,
        audit: Option<u64>,
        cx: &mut Context<'_>,
    ) -> bool {
        self.applicants.push(Applicant { client, after, audit: audit.unwrap_or(0) });
        self.accept(cx);
        self.applicants.is_empty()
    }

    /// Whether a client was subscribed.
    pub(super) fn remove(&mut self, client: u16) -> bool {
        let before = self.clients.len();
        self.applicants.retain(|applicant| applicant.client != client);
        self.clients.retain(|other| *other != client);
        self.clients.len() < before
    }

    /// Passes an input to the copy, and executes its steps.
    pub(super) fn handle(&mut self, input: CopyInput, cx: &mut Context<'_>) {
        match &mut self.kind {
            Kind::Log { copy, .. } => {
                let mut steps = Vec::new();
                match input {
                    CopyInput::Following => copy.following(&mut steps),
                    CopyInput::Retry => copy.retry(&mut steps),
                    CopyInput::Failed => copy.read_failed(),
                    CopyInput::Top { asked, top } => copy.top(asked, top, &mut steps),
                    CopyInput::Entry(epoch, entry) => copy.notified(epoch, entry, &mut steps),
                    CopyInput::Log(page) => copy.page(page, &mut steps),
                    CopyInput::Update(_) | CopyInput::Page(_) | CopyInput::Changes(_) => {}
                }
                steps.into_iter().for_each(|step| self.execute_log(step, cx));
            }
            Kind::Keys { copy, .. } => {
                let mut steps = Vec::new();
                match input {
                    CopyInput::Following => copy.following(&mut steps),
                    CopyInput::Retry => copy.retry(&mut steps),
                    CopyInput::Failed => copy.read_failed(),
                    CopyInput::Top { asked, top } => copy.top(asked, top, &mut steps),
                    CopyInput::Update(update) => copy.notified(update, &mut steps),
                    CopyInput::Page(page) => copy.page(page, &mut steps),
                    CopyInput::Changes(changes) => copy.changes(changes, &mut steps),
                    CopyInput::Entry(..) | CopyInput::Log(_) => {}
                }
                steps.into_iter().for_each(|step| self.execute_keys(step, cx));
            }
        }
        self.accept(cx);
    }

    fn execute_log(&mut self, step: LogStep, cx: &mut Context<'_>) {
        let Kind::Log { retained, .. } = &mut self.kind else { return };
        match step {
            LogStep::Read(start) => {
                let max_messages = match start {
                    LogStart::Last(messages) => messages,
                    LogStart::After(_) => PAGE_MESSAGES,
                };
                let read = ReadLog { topic: self.name.clone(), start, max_messages, max_bytes: 1 << 20 };
                cx.reads.push(Read::Log(self.part, cx.store.read_log(read)));
            }
            LogStep::Lost => retained.is_lost = true,
            LogStep::Install { position, floor, entries } => {
                (retained.epoch, retained.floor) = (position.epoch, floor);
                retained.entries = entries.iter().map(entry_state).collect();
                if mem::take(&mut retained.is_lost) {
                    reset(&self.clients, self.part, position, &[], cx);
                }
            }
            LogStep::Deliver { epoch, entry } => {
                let entry = entry_state(&entry);
                retained.push(epoch, entry);
                for client in &self.clients {
                    cx.record.push(EventKind::Delivered {
                        client: *client,
                        topic: self.part.topic,
                        epoch,
                        entry,
                    });
                }
            }
        }
    }

    fn execute_keys(&mut self, step: KeyStep, cx: &mut Context<'_>) {
        let Kind::Keys { view, .. } = &mut self.kind else { return };
        let topic = self.name.clone();
        match step {
            KeyStep::Read(cursor) => {
                let answer = cx.store.read_keys(ReadKeys { topic, cursor, limit: PAGE_KEYS });
                cx.reads.push(Read::Page(self.part, answer));
            }
            KeyStep::Changes(after) => {
                cx.reads.push(Read::Changes(self.part, cx.store.key_changes(&topic, after)));
            }
            KeyStep::Install(position, keys) => {
                let states: Vec<KeyState> = keys.iter().map(key_state).collect();
                view.keys.clear();
                view.apply(&keys);
                view.forgotten = position.sequence;
                reset(&self.clients, self.part, position, &states, cx);
            }
            KeyStep::Apply(update) => {
                view.apply(&update.changes);
                let position: EpochSequence = update.position.into();
                let changes: Vec<KeyState> = update.changes.iter().map(key_state).collect();
                let prev = update.prev;
                if update.skipped {
                    view.forgotten = position.sequence;
                }
                for client in &self.clients {
                    let (client, topic, changes) = (*client, self.part.topic, changes.clone());
                    cx.record.push(EventKind::Changed { client, topic, position, prev, changes });
                }
            }
        }
    }

    /// Accepts the applicants with a known position, and after an audit the rest.
    fn accept(&mut self, cx: &mut Context<'_>) {
        let (Some(last), false) = (self.last(), self.applicants.is_empty()) else { return };
        let is_live = match &self.kind {
            Kind::Log { copy, .. } => copy.is_live(),
            Kind::Keys { copy, .. } => copy.is_live(),
        };
        for applicant in mem::take(&mut self.applicants) {
            let resumed = applicant.after.and_then(|after| self.resume(after));
            let is_decided = applicant.after.is_none() || self.audited >= applicant.audit;
            let (client, part, after, node) = (applicant.client, self.part, applicant.after, cx.node);
            match (resumed, after) {
                (Some(missed), Some(position)) => {
                    let keys = vec![];
                    cx.record.push(EventKind::Subscribed {
                        client,
                        node,
                        part,
                        after,
                        complete: true,
                        position,
                        keys,
                    });
                    missed.into_iter().for_each(|missed| cx.record.push(missed.deliver(client, part.topic)));
                    self.clients.push(client);
                }
                _ if is_live && is_decided => {
                    let (position, keys) = (last.into(), self.keys(cx.record.instant()));
                    cx.record.push(EventKind::Subscribed {
                        client,
                        node,
                        part,
                        after,
                        complete: false,
                        position,
                        keys,
                    });
                    self.clients.push(client);
                }
                _ => self.applicants.push(applicant),
            }
        }
    }

    /// Messages and changes behind a client's position; `None`: the copy does not know the position.
    fn resume(&self, after: EpochSequence) -> Option<Vec<Missed>> {
        match &self.kind {
            Kind::Log { retained, .. } => {
                let missed = retained.behind(after)?;
                Some(missed.map(|entry| Missed::Entry(retained.epoch, *entry)).collect())
            }
            Kind::Keys { copy, view } => {
                let last = copy.last()?;
                let is_known =
                    after.epoch == last.epoch && (view.forgotten..=last.sequence).contains(&after.sequence);
                let mut changes: Vec<KeyState> = view.keys.values().map(|timed| timed.state).collect();
                changes.retain(|change| change.version > after.sequence);
                changes.sort_unstable_by_key(|change| change.version);
                let change = Change { position: last.into(), prev: after.sequence, changes };
                is_known.then(|| {
                    Vec::from_iter((last.sequence > after.sequence).then_some(Missed::Change(change)))
                })
            }
        }
    }
}

enum Missed {
    Entry(u64, Entry),
    Change(Change),
}

struct Change {
    position: EpochSequence,
    prev: u64,
    changes: Vec<KeyState>,
}

impl Missed {
    fn deliver(self, client: u16, topic: u16) -> EventKind {
        match self {
            Self::Entry(epoch, entry) => EventKind::Delivered { client, topic, epoch, entry },
            Self::Change(Change { position, prev, changes }) => {
                EventKind::Changed { client, topic, position, prev, changes }
            }
        }
    }
}

impl Retained {
    fn push(&mut self, epoch: u64, entry: Entry) {
        if self.epoch != epoch {
            (self.epoch, self.floor) = (epoch, entry.prev);
            self.entries.clear();
        }
        self.entries.push_back(entry);
        while self.entries.len() > self.max {
            self.floor = self.entries.pop_front().map_or(self.floor, |first| first.sequence);
        }
    }

    /// The messages behind a position that the log has.
    fn behind(&self, after: EpochSequence) -> Option<impl Iterator<Item = &Entry>> {
        let is_new = after.sequence == 0;
        if after.epoch != self.epoch && !is_new {
            return None;
        }
        let has =
            after.sequence == self.floor || self.entries.iter().any(|entry| entry.sequence == after.sequence);
        has.then(|| self.entries.iter().filter(move |entry| entry.sequence > after.sequence))
    }
}

impl KeyView {
    fn apply(&mut self, changes: &[StoredKey]) {
        for change in changes {
            let timed = Timed { state: key_state(change), expiry: change.expiry };
            self.keys.insert(Arc::clone(&change.key), timed);
        }
    }
}

fn reset(clients: &[u16], part: Part, position: Position, keys: &[KeyState], cx: &mut Context<'_>) {
    for client in clients {
        cx.record.push(EventKind::Reset {
            client: *client,
            part,
            position: position.into(),
            keys: keys.to_vec(),
        });
    }
}

fn entry_state(entry: &LogEntry) -> Entry {
    Entry { sequence: entry.sequence, prev: entry.prev, value: value(&entry.payload) }
}
