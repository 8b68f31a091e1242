//! Operations of clients at a node's store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sinews_store::{
    KeyCommand, KeyCommands, KeyLimits, KeyOutcome, KeyUpdate, KeysWritten, LogAppend, LogAppended, LogEntry,
    ReadKeys, Retention, StoreAnswer, StoreError, StoredKey, StoredKeys, TopicStore,
};

use super::node::{Node, WaitingWrite, topic_part};
use super::part_copy::CopyInput;
use super::plan::LOGS;
use super::record::{Record, key_state, payload};
use crate::history::{Answer, Call, KeyState, KeyWrite, Outcome, Part};

/// An operation on its way.
pub(super) struct Flight {
    pub(super) id: u32,
    pub(super) node: usize,
    topic: u16,
    deadline: u64,
    kind: FlightKind,
}

enum FlightKind {
    Append(Bytes, StoreAnswer<LogAppended>),
    Write(Vec<KeyCommand>, StoreAnswer<KeysWritten>),
    Read(StoreAnswer<StoredKeys>),
}

/// An answer, with the part for the node's copy.
pub(super) enum Done {
    Answer(Answer),
    Appended(u16, LogAppended, LogEntry),
    Written(WaitingWrite, KeyUpdate),
}

/// Begins an operation.
pub(super) fn begin(
    id: u32,
    node: usize,
    call: &Call,
    store: &dyn TopicStore,
    keys_max: u64,
    deadline: u64,
) -> Flight {
    let (topic, kind) = match call {
        Call::Append { topic, value, once, if_top } => {
            let messages = LOGS.iter().find(|(log, _)| log == topic).map_or(1, |(_, retained)| *retained);
            let payload = payload(*value);
            let append = LogAppend {
                topic: topic_part(Part::log(*topic)).topic,
                payload: payload.clone(),
                retention: Retention {
                    messages,
                    bytes: 1 << 30,
                    age: None,
                    unused: Duration::from_secs(3_600),
                },
                once: once.map(|name| name.to_string().into()),
                if_top: if_top.map(Into::into),
            };
            (*topic, FlightKind::Append(payload, store.append(append)))
        }
        Call::WriteKeys { topic, writes } => {
            let writes: Vec<KeyCommand> = writes.iter().map(command).collect();
            let commands = KeyCommands {
                topic: topic_part(Part::keys(*topic)).topic,
                writes: writes.clone(),
                limits: KeyLimits { keys: keys_max, bytes: 1 << 20 },
            };
            (*topic, FlightKind::Write(writes, store.write_keys(commands)))
        }
        Call::ReadKeys { topic } => {
            let name = topic_part(Part::keys(*topic)).topic;
            let read = ReadKeys { topic: name, cursor: None, limit: u32::MAX };
            (*topic, FlightKind::Read(store.read_keys(read)))
        }
    };
    Flight { id, node, topic, deadline, kind }
}

impl Flight {
    /// The answer, if it has come.
    pub(super) fn poll(&mut self, record: &Record) -> Option<Done> {
        let topic = self.topic;
        Some(match &mut self.kind {
            FlightKind::Append(payload, answer) => match answer.take()? {
                Ok(appended) => {
                    let (sequence, prev) = (appended.position.sequence, appended.prev);
                    let entry =
                        LogEntry { sequence, prev, time: record.now / 1_000, payload: payload.clone() };
                    Done::Appended(topic, appended, entry)
                }
                Err(error) => Done::Answer(failure(&error)),
            },
            FlightKind::Write(writes, answer) => match answer.take()? {
                Ok(written) => {
                    let (position, prev) = (written.position, written.prev);
                    let update = KeyUpdate {
                        position,
                        prev,
                        changes: changes(writes, &written.outcomes, record.instant()),
                        skipped: is_skipped(&written),
                    };
                    let outcomes: Vec<Outcome> = written.outcomes.iter().copied().map(Into::into).collect();
                    let answer = Answer::Written { position: position.into(), prev, outcomes };
                    let (id, part, deadline) = (self.id, Part::keys(topic), self.deadline);
                    let write = WaitingWrite { id, part, position: position.into(), answer, deadline };
                    Done::Written(write, update)
                }
                Err(error) => Done::Answer(failure(&error)),
            },
            FlightKind::Read(answer) => match answer.take()? {
                Ok(page) => {
                    let keys: Vec<KeyState> = page.keys.iter().map(key_state).collect();
                    Done::Answer(Answer::Keys { position: page.position.map(Into::into), keys })
                }
                Err(error) => Done::Answer(failure(&error)),
            },
        })
    }
}

impl Done {
    /// Passes it to the node's copy. A write is answered later.
    pub(super) fn pass(self, node: &mut Node, record: &mut Record) -> Option<Answer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Appended(topic, appended, entry) => {
                if !appended.repeated {
                    node.pass(Part::log(topic), CopyInput::Entry(appended.position.epoch, entry), record);
                }
                let LogAppended { position, prev, repeated, .. } = appended;
                Some(Answer::Appended { position: position.into(), prev, repeated })
            }
            Self::Written(write, update) => {
                node.written(write, update, record);
                None
            }
        }
    }
}

fn command(write: &KeyWrite) -> KeyCommand {
    KeyCommand {
        key: format!("k{}", write.key).into(),
        value: write.value.map(payload),
        ttl: write.ttl.map(Duration::from_micros),
        condition: write.condition.map(Into::into),
        once: write.once.map(|name| name.to_string().into()),
    }
}

fn changes(writes: &[KeyCommand], outcomes: &[KeyOutcome], now: Instant) -> Vec<StoredKey> {
    let mut changes = Vec::<StoredKey>::new();
    for (write, outcome) in writes.iter().zip(outcomes) {
        if let KeyOutcome::Changed(version) = *outcome {
            let (key, value) = (Arc::clone(&write.key), write.value.clone());
            changes.retain(|change| change.key != key);
            let expiry = write.ttl.filter(|_| value.is_some()).map(|ttl| now + ttl);
            changes.push(StoredKey { key, version, value, expiry });
        }
    }
    changes
}

/// Whether the first version does not follow the sequence before it.
fn is_skipped(written: &KeysWritten) -> bool {
    let first = written.outcomes.iter().find_map(|outcome| match outcome {
        KeyOutcome::Changed(version) => Some(*version),
        _ => None,
    });
    first.is_some_and(|first| first > written.prev + 1)
}

fn failure(error: &StoreError) -> Answer {
    match error {
        StoreError::Unknown(_) => Answer::Unknown,
        error => Answer::Failed { reason: error.to_string() },
    }
}
