//! A copy of a topic's keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::WAITING_MAX;
use crate::chain::{ChainLink, TopicChain};
use crate::keys::{KeyChanges, KeyUpdate, StoredKey, StoredKeys};
use crate::position::Position;

/// A node's copy of a topic's keys.
#[derive(Debug, Default)]
pub struct KeyCopy {
    /// The last change; `None` before all keys were read.
    last: Option<Position>,
    state: KeyCopyState,
    /// Notifications that came during a read; its answer includes earlier changes.
    waiting: VecDeque<KeyUpdate>,
    /// Notifications may be missing since the read began.
    reads_again: bool,
}

#[derive(Debug, Default)]
enum KeyCopyState {
    /// The store does not notify yet.
    #[default]
    New,
    /// Reads all keys.
    Pages(Pages),
    /// Reads the changes behind the last one.
    Changes,
    /// A read has failed. Of a snapshot, all is read again.
    Failed {
        is_snapshot: bool,
    },
    Live,
}

/// Pages that were read so far.
#[derive(Debug, Default)]
struct Pages {
    /// Position of the first page.
    first: Option<Position>,
    keys: BTreeMap<Arc<str>, StoredKey>,
    /// All pages were read: the changes since the first one follow.
    is_complete: bool,
}

/// What the holder of a [`KeyCopy`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the holder executes all of them")]
pub enum KeyStep {
    /// Read the page at this cursor, and pass it to [`KeyCopy::page`].
    Read(Option<Bytes>),
    /// Read the changes behind this position, and pass them to [`KeyCopy::changes`].
    Changes(Position),
    /// Replace all keys by these, in the order of their versions.
    Install(Position, Vec<StoredKey>),
    /// Apply changes.
    Apply(KeyUpdate),
}

impl KeyCopy {
    /// A copy without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The last change; `None` if the keys were not read yet.
    #[must_use]
    pub fn last(&self) -> Option<Position> {
        self.last
    }

    /// Whether the copy has all changes of which it knows.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.state, KeyCopyState::Live)
    }

    /// The store has confirmed that it notifies. For a copy that is live, the caller asks for the
    /// [top](Self::top) besides.
    pub fn following(&mut self, steps: &mut Vec<KeyStep>) {
        match self.state {
            KeyCopyState::New => self.read_all(steps),
            KeyCopyState::Failed { .. } => self.retry(steps),
            KeyCopyState::Pages(_) | KeyCopyState::Changes => self.reads_again = true,
            KeyCopyState::Live => {}
        }
    }

    /// Reads again after a failure.
    pub fn retry(&mut self, steps: &mut Vec<KeyStep>) {
        match (&self.state, self.last) {
            (KeyCopyState::Failed { is_snapshot: false }, Some(last)) => self.read_changes(last, steps),
            (KeyCopyState::Failed { .. }, _) => self.read_all(steps),
            _ => {}
        }
    }

    /// The store has changed keys, or this node's write has the answer.
    pub fn notified(&mut self, update: KeyUpdate, steps: &mut Vec<KeyStep>) {
        match self.state {
            KeyCopyState::New => {}
            KeyCopyState::Live => self.follow(update, steps),
            KeyCopyState::Pages(_) | KeyCopyState::Changes | KeyCopyState::Failed { .. } => {
                self.waiting.push_back(update);
                if self.waiting.len() > WAITING_MAX {
                    self.waiting.clear();
                    self.reads_again = true;
                }
            }
        }
    }

    /// The answer to an audit: the store's last change, and the copy's [`last`](Self::last) when it was asked.
    pub fn top(&mut self, asked: Position, top: Option<Position>, steps: &mut Vec<KeyStep>) {
        let (KeyCopyState::Live, Some(last)) = (&self.state, self.last) else { return };
        match (TopicChain { last: asked }.top(top), top) {
            (ChainLink::Lost, _) => self.read_all(steps),
            (_, Some(top)) if top.sequence > last.sequence => self.read_changes(last, steps),
            _ => {}
        }
    }

    /// A read has failed. [`retry`](Self::retry) repeats it.
    pub fn read_failed(&mut self) {
        let is_snapshot = matches!(self.state, KeyCopyState::Pages(_));
        if is_snapshot || matches!(self.state, KeyCopyState::Changes) {
            self.state = KeyCopyState::Failed { is_snapshot };
        }
    }

    /// The answer to a page's read.
    pub fn page(&mut self, page: StoredKeys, steps: &mut Vec<KeyStep>) {
        let KeyCopyState::Pages(pages) = &mut self.state else { return };
        pages.first = pages.first.or(page.position);
        page.keys.into_iter().for_each(|key| pages.add(key));
        match (page.cursor, pages.first) {
            (Some(cursor), _) => steps.push(KeyStep::Read(Some(cursor))),
            (None, Some(first)) => {
                pages.is_complete = true;
                steps.push(KeyStep::Changes(first));
            }
            // The topic does not exist.
            (None, None) => self.install(Position::default(), BTreeMap::new(), steps),
        }
    }

    /// The answer to a read of changes.
    pub fn changes(&mut self, changes: KeyChanges, steps: &mut Vec<KeyStep>) {
        match (&mut self.state, changes) {
            (KeyCopyState::Pages(pages), KeyChanges::Since(update)) if pages.is_complete => {
                let mut pages = std::mem::take(pages);
                update.changes.into_iter().for_each(|key| pages.add(key));
                self.install(update.position, pages.keys, steps);
            }
            (KeyCopyState::Changes, KeyChanges::Since(update)) => {
                let last = self.last.unwrap_or_default();
                if update.prev != last.sequence || update.position.epoch != last.epoch {
                    self.read_all(steps);
                    return;
                }
                self.state = KeyCopyState::Live;
                if update.position != last {
                    self.apply(update, steps);
                }
                self.catch_up(steps);
            }
            (KeyCopyState::Pages(_) | KeyCopyState::Changes, KeyChanges::Unknown) => self.read_all(steps),
            _ => {}
        }
    }

    fn read_all(&mut self, steps: &mut Vec<KeyStep>) {
        self.waiting.clear();
        self.state = KeyCopyState::Pages(Pages::default());
        steps.push(KeyStep::Read(None));
    }

    fn read_changes(&mut self, last: Position, steps: &mut Vec<KeyStep>) {
        if last == Position::default() {
            // The topic exists now.
            self.read_all(steps);
            return;
        }
        self.waiting.clear();
        self.state = KeyCopyState::Changes;
        steps.push(KeyStep::Changes(last));
    }

    fn install(&mut self, position: Position, keys: BTreeMap<Arc<str>, StoredKey>, steps: &mut Vec<KeyStep>) {
        let mut keys: Vec<StoredKey> = keys.into_values().filter(|key| key.value.is_some()).collect();
        keys.sort_unstable_by_key(|key| key.version);
        self.last = Some(position);
        self.state = KeyCopyState::Live;
        steps.push(KeyStep::Install(position, keys));
        self.catch_up(steps);
    }

    /// Takes the notifications that came during a read.
    fn catch_up(&mut self, steps: &mut Vec<KeyStep>) {
        if let Some(last) = self.last
            && std::mem::take(&mut self.reads_again)
        {
            self.read_changes(last, steps);
        }
        while self.is_live()
            && let Some(update) = self.waiting.pop_front()
        {
            self.follow(update, steps);
        }
    }

    fn follow(&mut self, update: KeyUpdate, steps: &mut Vec<KeyStep>) {
        let last = self.last.unwrap_or_default();
        match (TopicChain { last }.link(update.position, update.prev)) {
            ChainLink::Next => self.apply(update, steps),
            ChainLink::Duplicate => {}
            ChainLink::Gap => self.read_changes(last, steps),
            ChainLink::Lost => self.read_all(steps),
        }
    }

    fn apply(&mut self, update: KeyUpdate, steps: &mut Vec<KeyStep>) {
        self.last = Some(update.position);
        steps.push(KeyStep::Apply(update));
    }
}

impl Pages {
    /// Adds a key, unless a later version is there.
    fn add(&mut self, key: StoredKey) {
        let known = self.keys.get(&key.key).is_some_and(|known| known.version > key.version);
        if !known {
            self.keys.insert(Arc::clone(&key.key), key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, version: u64, is_set: bool) -> StoredKey {
        StoredKey { key: name.into(), version, value: is_set.then(Bytes::new), expiry: None }
    }

    fn update(prev: u64, last: u64, changes: &[(&str, u64, bool)]) -> KeyUpdate {
        let changes = changes.iter().map(|&(name, version, is_set)| key(name, version, is_set)).collect();
        KeyUpdate { position: Position { epoch: 1, sequence: last }, prev, changes, skipped: false }
    }

    fn text(steps: &mut Vec<KeyStep>) -> String {
        let versions = |keys: &[StoredKey]| {
            let one = |key: &StoredKey| format!("{}{}", key.key, key.version);
            keys.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        let one = |step: KeyStep| match step {
            KeyStep::Read(cursor) => format!("read {}", cursor.map_or(0, |cursor| cursor.len())),
            KeyStep::Changes(after) => format!("changes {}", after.sequence),
            KeyStep::Install(position, keys) => format!("install {}: {}", position.sequence, versions(&keys)),
            KeyStep::Apply(update) => format!("apply {}", versions(&update.changes)),
        };
        std::mem::take(steps).into_iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn pages_are_completed_by_the_changes_since_the_first() {
        let (mut copy, mut steps) = (KeyCopy::new(), Vec::new());
        copy.following(&mut steps);
        let position = Some(Position { epoch: 1, sequence: 5 });
        let (keys, cursor) = (vec![key("a", 5, true), key("b", 2, true)], Some(Bytes::from_static(b"x")));
        copy.page(StoredKeys { position, keys, cursor }, &mut steps);
        copy.notified(update(7, 8, &[("d", 8, true)]), &mut steps);
        let later = Some(Position { epoch: 1, sequence: 6 });
        let keys = vec![key("a", 5, true), key("c", 6, true)];
        copy.page(StoredKeys { position: later, keys, cursor: None }, &mut steps);
        copy.changes(KeyChanges::Since(update(5, 7, &[("c", 6, true), ("b", 7, false)])), &mut steps);
        assert_eq!(text(&mut steps), "read 0, read 1, changes 5, install 7: a5 c6, apply d8");
    }

    #[test]
    fn gap_is_read_and_a_loss_reads_all() {
        let (mut copy, mut steps) = (KeyCopy::new(), Vec::new());
        copy.following(&mut steps);
        copy.page(StoredKeys::default(), &mut steps);
        copy.notified(update(0, 1, &[("a", 1, true)]), &mut steps);
        assert_eq!(text(&mut steps), "read 0, install 0: , apply a1");
        copy.notified(update(2, 3, &[("b", 3, true)]), &mut steps);
        copy.changes(KeyChanges::Since(update(1, 3, &[("a", 2, false), ("b", 3, true)])), &mut steps);
        assert_eq!(text(&mut steps), "changes 1, apply a2 b3");
        copy.notified(update(2, 9_000, &[("b", 9_000, true)]), &mut steps);
        assert_eq!(text(&mut steps), "read 0", "the store has lost version 3");
        copy.read_failed();
        copy.retry(&mut steps);
        copy.page(StoredKeys::default(), &mut steps);
        assert_eq!(text(&mut steps), "read 0, install 0: ");
        copy.notified(update(4, 5, &[("a", 5, true)]), &mut steps);
        assert_eq!(text(&mut steps), "read 0", "a topic that exists now");
    }

    #[test]
    fn notifications_from_before_a_read_are_part_of_its_answer() {
        let (mut copy, mut steps) = (KeyCopy::new(), Vec::new());
        copy.following(&mut steps);
        copy.notified(update(0, 1, &[("a", 1, true)]), &mut steps);
        copy.read_failed();
        copy.retry(&mut steps);
        // The store has lost the topic meanwhile.
        copy.page(StoredKeys::default(), &mut steps);
        assert_eq!(text(&mut steps), "read 0, read 0, install 0: ");
    }
}
