//! A node: the copies of its topics, as a server holds them, and its clients' subscriptions.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_store::{
    KeyChanges, KeyUpdate, LogEntry, LogPage, PartKind, Position, StoreAnswer, StoreError, StoreHealth,
    StoreSink, StoredKeys, TopicPart, TopicStore,
};

use super::part_copy::{CopyInput, PartCopy};
use super::record::{Record, number};
use crate::history::{Answer, EpochSequence, EventKind, Part};

/// A node.
pub(super) struct Node {
    pub(super) id: u8,
    pub(super) store: Arc<dyn TopicStore>,
    inbox: Arc<Inbox>,
    parts: BTreeMap<Part, PartCopy>,
    reads: Vec<Read>,
    /// Reads that were polled.
    polled: usize,
    /// Answers to writes that the node's copy does not have yet.
    waiting: Vec<WaitingWrite>,
    /// Number of the next audit; `None`: the node makes none.
    next_audit: Option<u64>,
}

/// A read at the store.
pub(super) enum Read {
    Log(Part, StoreAnswer<LogPage>),
    Page(Part, StoreAnswer<StoredKeys>),
    Changes(Part, StoreAnswer<KeyChanges>),
    Tops(Audit, StoreAnswer<Vec<Result<Option<Position>, StoreError>>>),
}

/// Parts, and their last positions when the store was asked.
pub(super) struct Audit {
    number: u64,
    parts: Vec<(Part, Position)>,
}

/// An acknowledged write.
pub(super) struct WaitingWrite {
    pub(super) id: u32,
    pub(super) part: Part,
    pub(super) position: EpochSequence,
    pub(super) answer: Answer,
    /// Time at which it is unknown if the copy does not have it.
    pub(super) deadline: u64,
}

/// The node's parts with which a copy executes its steps.
pub(super) struct Context<'a> {
    pub(super) node: u8,
    pub(super) store: &'a dyn TopicStore,
    pub(super) reads: &'a mut Vec<Read>,
    pub(super) record: &'a mut Record,
}

impl Node {
    /// A node that follows these parts. A log retains its number of messages.
    pub(super) fn new(id: u8, store: Arc<dyn TopicStore>, parts: &[(Part, u32)], audits: bool) -> Self {
        let inbox = Arc::new(Inbox::default());
        store.start(Arc::clone(&inbox) as Arc<dyn StoreSink>);
        for (part, _) in parts {
            store.follow(&topic_part(*part));
        }
        let parts = parts.iter().map(|(part, retained)| (*part, PartCopy::new(*part, *retained))).collect();
        Self {
            id,
            store,
            inbox,
            parts,
            reads: vec![],
            polled: 0,
            waiting: vec![],
            next_audit: audits.then_some(1),
        }
    }

    /// Takes the store's notifications.
    pub(super) fn poll(&mut self, record: &mut Record) {
        let inputs = mem::take(&mut *self.inbox.lock());
        for input in inputs {
            match input {
                Input::Copy(part, input) => {
                    let is_following = matches!(input, CopyInput::Following);
                    self.pass(part, input, record);
                    if is_following {
                        self.audit(|audited| audited == part);
                    }
                }
                Input::Health(health) => {
                    record.push(EventKind::Health { node: self.id, is_up: health.is_up() });
                    if health.is_up() {
                        self.retry(record);
                        self.audit(|_| true);
                    }
                }
            }
        }
    }

    /// Takes the answers to reads, if some have come or reads are new.
    pub(super) fn poll_reads(&mut self, is_answered: bool, record: &mut Record) {
        if is_answered {
            self.take_answers(record);
        }
        while self.reads.len() > self.polled {
            self.take_answers(record);
        }
    }

    fn take_answers(&mut self, record: &mut Record) {
        let reads = mem::take(&mut self.reads);
        let mut open = Vec::with_capacity(reads.len());
        for mut read in reads {
            let next = match &mut read {
                Read::Log(part, answer) => answer.take().map(|page| (*part, page.map(CopyInput::Log))),
                Read::Page(part, answer) => answer.take().map(|page| (*part, page.map(CopyInput::Page))),
                Read::Changes(part, answer) => {
                    answer.take().map(|changes| (*part, changes.map(CopyInput::Changes)))
                }
                Read::Tops(audit, answer) => {
                    match answer.take() {
                        Some(tops) => self.handle_tops(audit, &tops.unwrap_or_default(), record),
                        None => open.push(read),
                    }
                    continue;
                }
            };
            match next {
                Some((part, input)) => self.pass(part, input.unwrap_or(CopyInput::Failed), record),
                None => open.push(read),
            }
        }
        self.polled = open.len();
        open.append(&mut self.reads);
        self.reads = open;
    }

    /// Repeats failed reads.
    pub(super) fn retry(&mut self, record: &mut Record) {
        for part in self.parts.keys().copied().collect::<Vec<_>>() {
            self.pass(part, CopyInput::Retry, record);
        }
    }

    /// Asks the store for the positions of parts.
    pub(super) fn audit(&mut self, is_audited: impl Fn(Part) -> bool) {
        let Some(number) = self.next_audit else { return };
        let parts = self.parts.values().filter(|copy| is_audited(copy.part));
        let parts: Vec<_> = parts.filter_map(|copy| Some((copy.part, copy.last()?))).collect();
        if !parts.is_empty() {
            self.next_audit = Some(number + 1);
            let answer = self.store.tops(parts.iter().map(|(part, _)| topic_part(*part)).collect());
            self.reads.push(Read::Tops(Audit { number, parts }, answer));
        }
    }

    /// Accepts a subscription, now or when the copy knows the position.
    pub(super) fn subscribe(
        &mut self,
        client: u16,
        part: Part,
        after: Option<EpochSequence>,
        record: &mut Record,
    ) {
        let audit = self.next_audit;
        let mut cx = Context { node: self.id, store: &*self.store, reads: &mut self.reads, record };
        let Some(copy) = self.parts.get_mut(&part) else { return };
        if !copy.apply(client, after, audit, &mut cx) {
            self.audit(|audited| audited == part);
        }
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&mut self, client: u16, part: Part, record: &mut Record) {
        if self.parts.get_mut(&part).is_some_and(|copy| copy.remove(client)) {
            record.push(EventKind::Unsubscribed { client, part });
        }
    }

    /// Passes an input to a copy, and executes its steps.
    pub(super) fn pass(&mut self, part: Part, input: CopyInput, record: &mut Record) {
        let mut cx = Context { node: self.id, store: &*self.store, reads: &mut self.reads, record };
        if let Some(copy) = self.parts.get_mut(&part) {
            copy.handle(input, &mut cx);
        }
    }

    /// The store has acknowledged a write from this node. It is answered when the copy has it.
    pub(super) fn written(&mut self, write: WaitingWrite, update: KeyUpdate, record: &mut Record) {
        let part = write.part;
        self.waiting.push(write);
        if !update.changes.is_empty() {
            self.pass(part, CopyInput::Update(update), record);
        }
    }

    /// Answers to writes that the copy has, and to writes with a passed deadline.
    pub(super) fn answers(&mut self, now: u64) -> Vec<(u32, Answer)> {
        let parts = &self.parts;
        let mut answers = Vec::new();
        self.waiting.retain_mut(|write| {
            let last: Option<EpochSequence> = parts.get(&write.part).and_then(PartCopy::last).map(Into::into);
            let has = last.is_some_and(|last| last.epoch == write.position.epoch && last >= write.position);
            if has {
                answers.push((write.id, mem::replace(&mut write.answer, Answer::Unknown)));
            } else if write.deadline <= now {
                answers.push((write.id, Answer::Unknown));
            }
            !has && write.deadline > now
        });
        answers
    }

    /// Acknowledged writes that were not answered yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().map(|write| write.id)
    }

    /// A client reads a copy.
    pub(super) fn read_cached(&self, client: u16, topic: u16, record: &mut Record) {
        let copy = self.parts.get(&Part::keys(topic));
        if let Some((copy, position)) = copy.and_then(|copy| Some((copy, copy.last()?))) {
            let keys = copy.keys(record.instant());
            record.push(EventKind::Cached { node: self.id, client, topic, position: position.into(), keys });
        }
    }

    /// Records all copies.
    pub(super) fn record_copies(&self, record: &mut Record) {
        for copy in self.parts.values() {
            let position = copy.last().unwrap_or_default().into();
            let keys = copy.keys(record.instant());
            record.push(EventKind::FinalCopy { node: self.id, part: copy.part, position, keys });
        }
    }

    fn handle_tops(
        &mut self,
        audit: &Audit,
        tops: &[Result<Option<Position>, StoreError>],
        record: &mut Record,
    ) {
        for ((part, asked), top) in audit.parts.iter().zip(tops) {
            let Ok(top) = top else { continue };
            if let Some(copy) = self.parts.get_mut(part) {
                copy.audited = copy.audited.max(audit.number);
            }
            self.pass(*part, CopyInput::Top { asked: *asked, top: *top }, record);
        }
    }
}

/// A part's name at the store.
pub(super) fn topic_part(part: Part) -> TopicPart {
    let topic = format!("t{}", part.topic).into();
    TopicPart { topic, part: part.kind }
}

/// Receives notifications, in order.
#[derive(Default)]
struct Inbox(Mutex<Vec<Input>>);

enum Input {
    Copy(Part, CopyInput),
    Health(StoreHealth),
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Vec<Input>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreSink for Inbox {
    fn appended(&self, topic: &str, epoch: u64, entry: LogEntry) {
        self.lock().push(Input::Copy(Part::log(number(topic)), CopyInput::Entry(epoch, entry)));
    }

    fn keys_changed(&self, topic: &str, update: KeyUpdate) {
        self.lock().push(Input::Copy(Part::keys(number(topic)), CopyInput::Update(update)));
    }

    fn following(&self, part: &TopicPart) {
        let part = match part.part {
            PartKind::Log => Part::log(number(&part.topic)),
            PartKind::Keys => Part::keys(number(&part.topic)),
        };
        self.lock().push(Input::Copy(part, CopyInput::Following));
    }

    fn not_following(&self, _: &TopicPart, _: &str) {}

    fn health_changed(&self, health: StoreHealth) {
        self.lock().push(Input::Health(health));
    }
}
