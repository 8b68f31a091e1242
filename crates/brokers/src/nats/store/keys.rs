//! Writes and reads keys.
//!
//! A version is a stream's sequence. A condition becomes the expected sequence of the key's last message, as this node's
//! replica knows it. A condition that fails by the replica is checked again at the stream's leader, since the replica may
//! be late.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use sinews_store::{
    FirstValue, KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyLimits, KeyOutcome, KeysWritten,
    OnceRequest, Position, ReadKeys, StoreError, StoredKeys,
};

use super::connection::{DEADLINE, OperationState, StoreConnection};
use super::engine::StoreEngine;
use super::key_streams::{KeyStream, once_plan};
use super::log::{ATTEMPTS, ExpectedMessage, check_subject, conflict_delay};
use super::replica::{ExpiredKey, KnownKey, MARKER, REMOVALS, REMOVED, TTL};
use super::streams;
use super::subjects::token;
use super::wire::{
    EXPECTED_LAST, JetStreamAnswer, JetStreamError, MSG_ID, NO_MESSAGE, PubAck, as_micros, headers, micros,
};

/// Time to live by which the server removes a message, in whole seconds.
const SERVER_TTL: &str = "Nats-TTL";

/// A subject's last message, as the stream's leader has it.
#[derive(Deserialize)]
struct LeaderMessage {
    message: StoredBody,
}

#[derive(Deserialize)]
struct StoredBody {
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    /// When it was stored.
    time: String,
}

impl StoredBody {
    fn header(&self, name: &str) -> Option<String> {
        let text = String::from_utf8(BASE64.decode(&self.hdrs).ok()?).ok()?;
        let named = text.lines().filter_map(|line| line.split_once(':'));
        named.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.trim().to_owned())
    }

    fn value(&self) -> Bytes {
        BASE64.decode(&self.data).unwrap_or_default().into()
    }

    fn known(&self) -> KnownKey {
        let is_removed = self.header(REMOVED.0).is_some() || self.header(MARKER).is_some();
        let ttl: Option<u64> = self.header(TTL).and_then(|ttl| ttl.parse().ok());
        KnownKey {
            sequence: self.seq,
            bytes: (!is_removed).then(|| self.value().len() as u64),
            expires: ttl.zip(micros(&self.time)).map(|(ttl, stored_at)| stored_at.saturating_add(ttl)),
        }
    }
}

/// A write to one key on its way.
struct KeyAttempt<'a> {
    topic: &'a str,
    write: &'a KeyCommand,
    limits: KeyLimits,
    stream: &'a KeyStream,
}

impl StoreEngine {
    pub(super) async fn write_keys(
        &self,
        operation: &OperationState,
        writes: KeyCommands,
    ) -> Result<KeysWritten, StoreError> {
        let Some(slot) = self.key_lanes.enter(&writes.topic) else { return Err(StoreError::Busy) };
        let is_plain =
            |write: &KeyCommand| write.condition.is_none() && write.once.is_none() && write.value.is_some();
        if writes.writes.iter().all(is_plain) {
            let _together = slot.lock.read().await;
            self.write_in_order(operation, &writes, true).await
        } else {
            let _alone = slot.lock.write().await;
            self.write_in_order(operation, &writes, false).await
        }
    }

    async fn write_in_order(
        &self,
        operation: &OperationState,
        writes: &KeyCommands,
        is_together: bool,
    ) -> Result<KeysWritten, StoreError> {
        let connection = self.connection()?;
        let stream = self.key_stream(&writes.topic)?;
        let before = stream.replica.top(&writes.topic);
        let attempt =
            |write| KeyAttempt { topic: &writes.topic, write, limits: writes.limits, stream: &stream };
        let mut outcomes = Vec::with_capacity(writes.writes.len());
        if is_together {
            let all =
                writes.writes.iter().map(|write| self.write_key(&connection, operation, attempt(write)));
            for outcome in futures_util::future::join_all(all).await {
                outcomes.push(outcome);
            }
        } else {
            for write in &writes.writes {
                let outcome = self.write_key(&connection, operation, attempt(write)).await;
                let has_failed = outcome.is_err();
                outcomes.push(outcome);
                if has_failed {
                    break;
                }
            }
        }
        let has_changed = outcomes.iter().any(|outcome| matches!(outcome, Ok(KeyOutcome::Changed(_))));
        let outcomes: Result<Vec<KeyOutcome>, StoreError> = outcomes.into_iter().collect();
        let outcomes = outcomes.map_err(|error| match error {
            error if !has_changed || error.is_unknown() => error,
            error => StoreError::Unknown(format!("only some of the keys were written: {error}").into()),
        })?;
        let version = |outcome: &KeyOutcome| match outcome {
            KeyOutcome::Changed(version) | KeyOutcome::Repeated(Some(version)) => Some(*version),
            _ => None,
        };
        if let Some(last) = outcomes.iter().filter_map(version).max() {
            stream.applied(last).await;
        }
        let (position, prev) = position(&stream, writes, before, &outcomes);
        Ok(KeysWritten { position, prev, outcomes })
    }

    async fn write_key(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        attempt: KeyAttempt<'_>,
    ) -> Result<KeyOutcome, StoreError> {
        let KeyAttempt { topic, write, stream, .. } = attempt;
        check_subject(&stream.subject(topic, &write.key))?;
        let (mut known, mut is_current) = (stream.replica.known(topic, &write.key), false);
        let mut conflicts = 0;
        loop {
            let verdict = self.evaluate(&attempt, &known);
            if let Err(outcome) = verdict {
                // The server knows whether it has had a named write.
                if is_current && write.once.is_none() {
                    return Ok(outcome);
                }
                if write.once.is_none() {
                    known = self.leader_key(connection, operation, &attempt).await?;
                    is_current = true;
                    continue;
                }
            }
            let expected = match (&verdict, write.condition) {
                (Err(_), _) => ExpectedMessage::Repetition,
                (Ok(()), Some(_)) => ExpectedMessage::Last(known.sequence),
                (Ok(()), None) => ExpectedMessage::Any,
            };
            match self.publish_key(connection, operation, &attempt, expected).await? {
                Ok(ack) if ack.duplicate => return Ok(KeyOutcome::Repeated(Some(ack.seq))),
                Ok(ack) => return Ok(KeyOutcome::Changed(ack.seq)),
                Err(error) if error.is_conflict() => {
                    if let (Err(outcome), false, true) = (verdict, error.is_in_flight(), is_current) {
                        return Ok(outcome);
                    }
                    if verdict.is_ok() || error.is_in_flight() {
                        if conflicts >= ATTEMPTS {
                            return Err(StoreError::Busy);
                        }
                        conflicts += 1;
                    }
                    if error.is_in_flight() {
                        tokio::time::sleep(conflict_delay(conflicts)).await;
                    }
                    known = self.leader_key(connection, operation, &attempt).await?;
                    is_current = true;
                }
                Err(error) => return Err(error.store_error()),
            }
        }
    }

    /// Whether a write is permitted, and changes the key.
    fn evaluate(&self, attempt: &KeyAttempt<'_>, known: &KnownKey) -> Result<(), KeyOutcome> {
        let KeyAttempt { topic, write, limits, stream } = attempt;
        let is_live = known.is_live(self.server_micros());
        match write.condition {
            Some(KeyCondition::IfNew) if is_live => return Err(KeyOutcome::Exists(known.sequence)),
            Some(KeyCondition::IfExists | KeyCondition::Version(_) | KeyCondition::At(_)) if !is_live => {
                return Err(KeyOutcome::Missing);
            }
            Some(KeyCondition::Version(version)) if version != known.sequence => {
                return Err(KeyOutcome::OtherVersion(known.sequence));
            }
            Some(KeyCondition::At(position))
                if position.sequence != known.sequence || position.epoch != stream.replica.epoch.get() =>
            {
                return Err(KeyOutcome::OtherVersion(known.sequence));
            }
            _ => {}
        }
        let Some(value) = &write.value else {
            return if is_live { Ok(()) } else { Err(KeyOutcome::Unchanged) };
        };
        let (keys, bytes) = stream.replica.size(topic);
        let size = |bytes: u64| write.key.len() as u64 + bytes;
        if known.bytes.is_none() && keys >= limits.keys {
            return Err(KeyOutcome::TooManyKeys);
        }
        if bytes - known.bytes.map_or(0, size).min(bytes) + size(value.len() as u64) > limits.bytes {
            return Err(KeyOutcome::TopicFull);
        }
        Ok(())
    }

    async fn publish_key(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        attempt: &KeyAttempt<'_>,
        expected: ExpectedMessage,
    ) -> Result<Result<PubAck, JetStreamError>, StoreError> {
        let KeyAttempt { topic, write, stream, .. } = attempt;
        let mut all = headers(&[]);
        expected.insert(&mut all, self.has_replicas(connection));
        if let Some(once) = &write.once {
            all.insert(MSG_ID, format!("{}.{}.{}", token(topic), token(&write.key), token(once)));
        }
        match (&write.value, write.ttl) {
            (None, _) => {
                all.insert(REMOVED.0, REMOVED.1);
                all.insert(SERVER_TTL, format!("{}s", REMOVALS.as_secs()));
            }
            // A node removes it before.
            (Some(_), Some(ttl)) => Self::insert_ttl(&mut all, ttl, REMOVALS),
            (Some(_), None) => {}
        }
        let payload = write.value.clone().unwrap_or_default();
        let subject = stream.subject(topic, &write.key);
        let answer =
            connection.request(operation, subject, Some(all), payload).await.inspect_err(|error| {
                if matches!(error, StoreError::Away(_)) {
                    stream.has_failed();
                }
            })?;
        Ok(JetStreamAnswer::parse(&answer.payload).inspect_err(|_| operation.had_no_effect()))
    }

    /// The server removes a message after whole seconds and a delay; nodes compare the exact time.
    fn insert_ttl(headers: &mut async_nats::HeaderMap, ttl: Duration, delay: Duration) {
        let seconds = (ttl + delay).as_secs() + u64::from(ttl.subsec_nanos() > 0);
        headers.insert(SERVER_TTL, format!("{}s", seconds.max(1)));
        headers.insert(TTL, as_micros(ttl).to_string());
    }

    /// Removes a key that has expired, unless it was written since. The server's own removal has no such condition: its
    /// marker may remove a value that was written meanwhile.
    pub(super) async fn remove_expired(
        &self,
        connection: &StoreConnection,
        stream: &KeyStream,
        expired: ExpiredKey,
    ) {
        let limits = KeyLimits { keys: u64::MAX, bytes: u64::MAX };
        let key = Arc::clone(&expired.key);
        let write = KeyCommand { key, value: None, ttl: None, condition: None, once: None };
        let attempt = KeyAttempt { topic: &expired.topic, write: &write, limits, stream };
        let expected = ExpectedMessage::Last(expired.version);
        let state = OperationState::default();
        let removal = self.publish_key(connection, &state, &attempt, expected);
        let is_over = match tokio::time::timeout(DEADLINE, removal).await {
            Ok(Ok(Err(error))) => error.is_conflict() && !error.is_in_flight(),
            Ok(Ok(Ok(_))) => true,
            Ok(Err(_)) | Err(_) => false,
        };
        if !is_over {
            stream.replica.expires_again(expired, self.server_micros() + as_micros(DEADLINE));
        }
    }

    /// A key's last message at the stream's leader.
    async fn leader_key(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        attempt: &KeyAttempt<'_>,
    ) -> Result<KnownKey, StoreError> {
        let subject = attempt.stream.subject(attempt.topic, &attempt.write.key);
        let stored = leader_message(connection, operation, attempt.stream.name(), &subject).await?;
        Ok(stored.map_or_else(KnownKey::default, |stored| stored.known()))
    }

    pub(super) fn read_keys(&self, read: &ReadKeys) -> Result<StoredKeys, StoreError> {
        self.connection()?;
        let cursor = read.cursor.as_deref().map(std::str::from_utf8).transpose();
        let cursor = cursor.map_err(|_| StoreError::Rejected("the cursor is not of this store".into()))?;
        let stream = self.key_stream(&read.topic)?;
        Ok(stream.replica.page(&read.topic, cursor, read.limit, self.server_micros()))
    }

    pub(super) async fn key_changes(&self, topic: &str, after: Position) -> Result<KeyChanges, StoreError> {
        let connection = self.connection()?;
        let stream = self.key_stream(topic)?;
        let replica = &stream.replica;
        // Another node may have told the reader of a change that is on its way.
        if after.epoch == replica.epoch.get() && after.sequence > replica.applied.get() {
            let info = streams::info(&connection, stream.name()).await?;
            match info {
                Some(info) if info.state.last_seq >= after.sequence => stream.applied(after.sequence).await,
                _ => return Ok(KeyChanges::Unknown),
            }
        }
        Ok(replica.changes(topic, after, self.server_micros()))
    }

    /// Removes all keys, one after the other: the replicas of other nodes see removals only.
    pub(super) async fn clear_keys(&self, operation: &OperationState, topic: &str) -> Result<(), StoreError> {
        let keys = self.key_stream(topic)?.replica.live_keys(topic);
        let remove = |key| KeyCommand { key, value: None, ttl: None, condition: None, once: None };
        let limits = KeyLimits { keys: u64::MAX, bytes: u64::MAX };
        let writes = keys.into_iter().map(remove).collect();
        let writes = KeyCommands { topic: topic.into(), writes, limits };
        self.write_keys(operation, writes).await.map(drop)
    }

    pub(super) async fn store_once(
        &self,
        operation: &OperationState,
        once: OnceRequest,
    ) -> Result<FirstValue, StoreError> {
        let connection = self.connection()?;
        let name = once_plan(&self.settings.subjects.prefix).name;
        let epoch = self.once_epoch(&connection).await?;
        let subject = self.settings.subjects.stream("o", &epoch.to_string()) + &token(&once.name);
        check_subject(&subject)?;
        let mut expected = 0;
        for conflicts in 0..=ATTEMPTS {
            let mut all = headers(&[(EXPECTED_LAST, &expected.to_string())]);
            Self::insert_ttl(&mut all, once.window, Duration::ZERO);
            let answer = connection.request(operation, subject.clone(), Some(all), once.value.clone()).await;
            let answer = answer.inspect_err(|_| self.once_epoch.set(None))?;
            match JetStreamAnswer::<PubAck>::parse(&answer.payload) {
                Ok(_) => return Ok(FirstValue::First),
                Err(error) if !error.is_conflict() => return Err(error.store_error()),
                Err(_) => operation.had_no_effect(),
            }
            let stored = leader_message(&connection, operation, &name, &subject).await?;
            match stored {
                Some(stored) if stored.known().is_live(self.server_micros()) => {
                    return Ok(FirstValue::Value(stored.value()));
                }
                // It has expired, or the first one is in flight.
                stored => expected = stored.map_or(0, |stored| stored.seq),
            }
            tokio::time::sleep(conflict_delay(conflicts)).await;
        }
        Err(StoreError::Busy)
    }

    pub(super) async fn once_epoch(&self, connection: &StoreConnection) -> Result<u64, StoreError> {
        if let Some(epoch) = self.once_epoch.get() {
            return Ok(epoch);
        }
        let opened = once_plan(&self.settings.subjects.prefix).open(connection, &self.settings).await?;
        let subjects = self.settings.subjects.stream("o", &opened.epoch.to_string());
        streams::until_reachable(connection, subjects).await?;
        self.once_epoch.set(Some(opened.epoch));
        Ok(opened.epoch)
    }
}

/// Reads a subject's last message at the stream's leader.
async fn leader_message(
    connection: &StoreConnection,
    operation: &OperationState,
    stream: &str,
    subject: &str,
) -> Result<Option<StoredBody>, StoreError> {
    let (body, request) = (json!({ "last_by_subj": subject }), format!("$JS.API.STREAM.MSG.GET.{stream}"));
    let answer = connection.request(operation, request, None, body.to_string().into()).await?;
    // The request changes nothing.
    operation.had_no_effect();
    match JetStreamAnswer::<LeaderMessage>::parse(&answer.payload) {
        Ok(stored) => Ok(Some(stored.message)),
        Err(error) if error.err_code == NO_MESSAGE => Ok(None),
        Err(error) => Err(error.store_error()),
    }
}

/// The position after writes, and the sequence before them. If another node's change is between them, or if it has
/// replaced one before this node's replica had it, the sequence is the position's: the announcements lead to the same.
fn position(
    stream: &KeyStream,
    writes: &KeyCommands,
    before: Option<Position>,
    outcomes: &[KeyOutcome],
) -> (Position, u64) {
    let changed = |outcome: &KeyOutcome| match outcome {
        KeyOutcome::Changed(version) => Some(*version),
        _ => None,
    };
    let versions: Vec<u64> = outcomes.iter().filter_map(changed).collect();
    let epoch = stream.replica.epoch.get();
    let (Some(first), Some(last)) = (versions.first(), versions.last()) else {
        let top = stream.replica.top(&writes.topic).or(before).unwrap_or(Position { epoch, sequence: 0 });
        return (top, top.sequence);
    };
    // Each change is announced on its own, so that several ones have no predecessor in common.
    let prev = stream.replica.prev_of(*first).filter(|_| first == last);
    (Position { epoch, sequence: *last }, prev.unwrap_or(*last))
}
