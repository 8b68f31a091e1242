//! Keys in the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sinews_server::{
    KeyError, KeySnapshot, KeyWrite, KeyWritten, KeyedConfig, KeyedSnapshot, Position, Publisher,
    ReplicaError,
};
use sinews_store::{
    KeyCommand, KeyCommands, KeyCopy, KeyLimits, KeyOutcome, KeyStep, KeyUpdate, KeysWritten, ReadKeys,
    StoredKey, TopicPart,
};

use super::key_topic::{KeyReader, KeyTopic, KeyTopicState};
use super::shared::StoredTopics;
use crate::model::brief::brief;
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};
use crate::topics::keys::key_problem;
use crate::topics::shared_keys::{KeyWriteOutcome, LoadingKeys, SharedKeys};

/// Keys in a page.
const PAGE_KEYS: u32 = 1_000;

impl StoredTopics {
    /// The copy of a topic's keys, which is created and followed.
    fn keys_of(&self, topic: &str) -> Arc<KeyTopic> {
        match self.known_keys(topic) {
            Some(keys) => keys,
            None => self.follow_keys(topic, None),
        }
    }

    /// Passes the keys of a topic to a reader from now on.
    pub(super) fn read_keys_with(&self, topic: &str, reader: Arc<dyn KeyReader>) {
        self.follow_keys(topic, Some(reader));
    }

    fn follow_keys(&self, topic: &str, reader: Option<Arc<dyn KeyReader>>) -> Arc<KeyTopic> {
        let name: Arc<str> = topic.into();
        let state = KeyTopicState { copy: KeyCopy::new(), is_refused: false, used: Instant::now() };
        let new = Arc::new(KeyTopic { topic: Arc::clone(&name), state: Mutex::new(state), reader });
        let mut all = self.keys.lock();
        let keys = Arc::clone(all.entry(name).or_insert_with(|| Arc::clone(&new)));
        drop(all);
        if Arc::ptr_eq(&keys, &new) {
            self.store.follow(&TopicPart::keys(topic));
        }
        keys
    }

    fn known_keys(&self, topic: &str) -> Option<Arc<KeyTopic>> {
        self.keys.lock().get(topic).cloned()
    }

    pub(super) fn note_keys_changed(self: &Arc<Self>, topic: &str, update: KeyUpdate) {
        if let Some(keys) = self.known_keys(topic) {
            self.change_keys(&keys, |copy, steps| copy.notified(update, steps));
            // Writers wait for their versions.
            self.waiting.wake_all();
        }
    }

    pub(super) fn note_following_keys(self: &Arc<Self>, topic: &str) {
        if let Some(keys) = self.known_keys(topic) {
            self.change_keys(&keys, KeyCopy::following);
        }
    }

    /// Repeats failed reads, and drops the copies that are unused.
    pub(super) fn maintain_keys(self: &Arc<Self>) {
        let Some((_, publisher)) = self.target() else { return };
        let all: Vec<Arc<KeyTopic>> = self.keys.lock().values().cloned().collect();
        for keys in all {
            if keys.reader.is_some() || publisher.key_subscribers(&keys.topic) > 0 {
                keys.state.lock().used = Instant::now();
            } else if keys.state.lock().is_unused() {
                self.drop_keys(&keys, &publisher);
                continue;
            }
            if self.store.topic_health(&keys.topic).is_up() {
                self.change_keys(&keys, KeyCopy::retry);
            }
        }
    }

    fn drop_keys(&self, keys: &Arc<KeyTopic>, publisher: &Publisher) {
        let mut all = self.keys.lock();
        // It was perhaps used just now.
        if keys.state.lock().is_unused() {
            all.remove(&keys.topic);
            self.store.unfollow(&TopicPart::keys(&keys.topic));
            drop(all);
            // The name was checked when it was created.
            let _ = publisher.disown_keyed_topic(&keys.topic);
        }
    }

    /// The copies that an audit compares, with their last positions.
    pub(super) fn audited_keys(&self) -> Vec<(TopicPart, Position)> {
        let all: Vec<Arc<KeyTopic>> = self.keys.lock().values().cloned().collect();
        let last =
            |keys: &Arc<KeyTopic>| Some((TopicPart::keys(&keys.topic), keys.state.lock().copy.last()?));
        all.iter().filter_map(last).collect()
    }

    pub(super) fn audit_keys(self: &Arc<Self>, topic: &str, asked: Position, top: Option<Position>) {
        if let Some(keys) = self.known_keys(topic) {
            self.change_keys(&keys, |copy, steps| copy.top(asked, top, steps));
        }
    }

    /// Changes a copy, and executes the steps in order.
    fn change_keys(
        self: &Arc<Self>,
        keys: &Arc<KeyTopic>,
        change: impl FnOnce(&mut KeyCopy, &mut Vec<KeyStep>),
    ) {
        let mut state = keys.state.lock();
        let mut steps = Vec::new();
        let was_read = state.copy.last().is_some();
        change(&mut state.copy, &mut steps);
        let Some((_, publisher)) = self.target() else { return };
        for step in steps {
            match step {
                KeyStep::Read(cursor) => self.read_keys(keys, cursor),
                KeyStep::Changes(after) => self.read_key_changes(keys, after),
                KeyStep::Install(position, all) => {
                    if let Some(reader) = &keys.reader {
                        reader.read(&all, true);
                        continue;
                    }
                    let snapshot = snapshot(&keys.topic, position, position.sequence, all);
                    let installed = publisher.install_keyed_topic(snapshot);
                    state.note_installed(&keys.topic, installed);
                }
                KeyStep::Apply(update) => match &keys.reader {
                    Some(reader) => reader.read(&update.changes, false),
                    None => self.apply(keys, &mut state, update, &publisher),
                },
            }
        }
        let is_read = state.copy.last().is_some();
        drop(state);
        if is_read && !was_read {
            self.waiting.wake_all();
        }
    }

    fn apply(&self, keys: &KeyTopic, state: &mut KeyTopicState, update: KeyUpdate, publisher: &Publisher) {
        let KeyUpdate { position, prev, changes, skipped } = update;
        // A change before the skipped sequences may be among these, and a position behind it may be a lost one.
        let forgotten = if skipped { position.sequence } else { 0 };
        let changes = snapshot(&keys.topic, position, forgotten, changes);
        match publisher.apply_key_changes(prev, changes.clone()) {
            // A topic that did not exist has another epoch here.
            Err(ReplicaError::OtherEpoch) if prev == 0 && !state.is_refused => {
                state.note_installed(&keys.topic, publisher.install_keyed_topic(changes));
            }
            applied => state.note_installed(&keys.topic, applied),
        }
    }

    fn read_keys(self: &Arc<Self>, keys: &Arc<KeyTopic>, cursor: Option<bytes::Bytes>) {
        let read = ReadKeys { topic: (*keys.topic).into(), cursor, limit: PAGE_KEYS };
        let (stored, keys, answer) = (Arc::clone(self), Arc::clone(keys), self.store.read_keys(read));
        self.spawn_read(async move {
            match answer.await {
                Ok(page) => stored.change_keys(&keys, |copy, steps| copy.page(page, steps)),
                Err(_) => keys.state.lock().copy.read_failed(),
            }
        });
    }

    fn read_key_changes(self: &Arc<Self>, keys: &Arc<KeyTopic>, after: Position) {
        self.counters.gaps.fetch_add(1, Ordering::Relaxed);
        let (stored, keys) = (Arc::clone(self), Arc::clone(keys));
        let answer = self.store.key_changes(&keys.topic, after);
        self.spawn_read(async move {
            match answer.await {
                Ok(changes) => stored.change_keys(&keys, |copy, steps| copy.changes(changes, steps)),
                Err(_) => keys.state.lock().copy.read_failed(),
            }
        });
    }

    /// Writes a key, and waits until this node's copy, if it has one, has the change.
    async fn write_key(
        self: Arc<Self>,
        topic: Box<str>,
        write: KeyWrite,
        config: KeyedConfig,
    ) -> Result<KeyWritten, Problem> {
        let max = write.max_keys().unwrap_or(usize::MAX).min(config.max_keys());
        let limits = KeyLimits { keys: max as u64, bytes: config.max_topic_bytes() as u64 };
        let command = KeyCommand {
            key: write.key().into(),
            value: write.value().cloned(),
            ttl: write.ttl(),
            condition: write.condition(),
            once: write.idempotency_key().map(Into::into),
        };
        let commands = KeyCommands { topic: topic.clone(), writes: vec![command], limits };
        let written = self.store.write_keys(commands).await.map_err(|error| self.failure(&error))?;
        let written = self.outcome(&written, limits)?;
        if let Some(keys) = self.known_keys(&topic) {
            let Position { epoch, sequence } = written.position;
            let has = || {
                let last = keys.state.lock().copy.last();
                last.is_none_or(|last| last.epoch != epoch || last.sequence >= sequence)
            };
            // A lost notification is found by the audit.
            self.wait_until(has).await;
        }
        Ok(written)
    }

    fn outcome(&self, written: &KeysWritten, limits: KeyLimits) -> Result<KeyWritten, Problem> {
        let position = |sequence| Position { sequence, ..written.position };
        let error = match written.outcomes.first() {
            Some(KeyOutcome::Changed(version)) => {
                return Ok(KeyWritten::elsewhere(position(*version), true, false));
            }
            Some(KeyOutcome::Unchanged) => return Ok(KeyWritten::elsewhere(written.position, false, false)),
            Some(KeyOutcome::Repeated(version)) => {
                let at = version.map_or(written.position, position);
                return Ok(KeyWritten::elsewhere(at, version.is_some(), true));
            }
            Some(KeyOutcome::Exists(version)) => KeyError::Exists(*version),
            Some(KeyOutcome::Missing) => KeyError::Missing,
            Some(KeyOutcome::OtherVersion(version)) => KeyError::OtherVersion(*version),
            Some(KeyOutcome::TooManyKeys) => KeyError::TooManyKeys(limits.keys as usize),
            Some(KeyOutcome::TopicFull) => KeyError::TopicFull(limits.bytes as usize),
            None => return Err(problem(code::STORE, "the topic store gave no outcome")),
        };
        Err(key_problem(error))
    }

    /// The keys of the store, as the hub uses them.
    pub(crate) fn shared_keys(self: &Arc<Self>) -> Arc<dyn SharedKeys> {
        Arc::new(StoredKeysOfNodes(Arc::clone(self)))
    }

    /// What a subscriber to keys waits for; `None` if they are here.
    pub(crate) fn opening_of_keys(self: &Arc<Self>, topic: &str) -> Option<SharedOpening> {
        let keys = self.keys_of(topic);
        let mut state = keys.state.lock();
        state.used = Instant::now();
        if state.copy.last().is_some() {
            return None;
        }
        drop(state);
        let name = Arc::clone(&keys.topic);
        Some(self.opening(&name, move || keys.state.lock().copy.last().is_some()))
    }
}

/// Time to live that a snapshot has for an expired key.
const EXPIRED: Duration = Duration::from_millis(1);

/// Keys from the store as a replica's.
fn snapshot(topic: &str, position: Position, forgotten: u64, keys: Vec<StoredKey>) -> KeyedSnapshot {
    let now = Instant::now();
    let key = |key: StoredKey| KeySnapshot {
        key: key.key.to_string(),
        version: key.version,
        value: key.value,
        // The removal of an expired key is a change of its own.
        ttl: key.expiry.map(|expiry| expiry.saturating_duration_since(now).max(EXPIRED)),
        client: None,
    };
    let keys = keys.into_iter().map(key).collect();
    KeyedSnapshot { topic: topic.to_owned(), position, forgotten, keys, recent: Vec::new() }
}

/// Keys that all nodes share in the store.
#[derive(Debug)]
struct StoredKeysOfNodes(Arc<StoredTopics>);

impl SharedKeys for StoredKeysOfNodes {
    fn write(&self, topic: &str, write: KeyWrite) -> KeyWriteOutcome {
        let Some((_, publisher)) = self.0.target() else {
            return KeyWriteOutcome::Done(Err(problem(code::STORE, "the server starts; retry")));
        };
        match publisher.check_shared_write(topic, &write) {
            Ok(config) => {
                KeyWriteOutcome::Later(Box::pin(Arc::clone(&self.0).write_key(topic.into(), write, config)))
            }
            Err(error) => KeyWriteOutcome::Done(Err(key_problem(error))),
        }
    }

    fn check_ready(&self, topic: &str) -> Result<(), Problem> {
        let keys = self.0.known_keys(topic);
        if keys.is_some_and(|keys| keys.state.lock().is_refused) {
            let text = format!("the keys of {} exceed limits.max_keyed_memory of this node", brief(topic));
            return Err(problem(code::STORE, text));
        }
        Ok(())
    }

    fn loading(&self, topic: &str) -> Option<LoadingKeys> {
        let opening = self.0.opening_of_keys(topic)?;
        Some(Box::pin(opening))
    }
}
