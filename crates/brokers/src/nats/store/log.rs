//! Logs: appends, and the last positions.
//!
//! The server does not tell the publisher which message precedes a new one. The announcement does, so an append to a
//! followed topic waits for it. Without it, the predecessor is the largest possible one, [`unknown_prev`].
//!
//! The first message in a topic is marked as such by its publisher, under the condition that the topic has none. So a
//! reader that has nothing, and reads from the beginning, knows whether it misses anything.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use async_nats::{HeaderMap, Message};
use serde_json::{Value, json};
use sinews_store::{LogAppend, LogAppended, POSITION_MAX, PartKind, Position, StoreError, TopicPart};

use super::classes::LogClass;
use super::connection::{OperationState, StoreConnection};
use super::engine::StoreEngine;
use super::streams;
use super::subjects::{SUBJECT_MAX, token};
use super::wire::{
    EXPECTED_LAST, JetStreamAnswer, MSG_ID, PENDING, PubAck, SEQUENCE, SUBJECT, UP_TO, header, headers,
    number, status, stored_at,
};
use crate::nats::denied::RequestedSubject;

/// Marks the first message of a topic.
const FIRST: &str = "Sinews-First";
/// Topics whose top this node remembers. Above it, all are forgotten.
const TOPICS_MAX: usize = 65_536;
/// Topics in one request, the limit of the server.
const TOPICS_IN_REQUEST: usize = 1_024;
/// Maximum bytes in one answer.
pub(super) const ANSWER_BYTES: u64 = 4 << 20;
/// Delays before a server that is behind is asked again; another one may answer.
const BEHIND_DELAYS: [u64; 6] = [5, 10, 20, 40, 80, 160];
/// Attempts for a conditional write that conflicts with others.
pub(super) const ATTEMPTS: u32 = 3;

/// What a message needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedMessage {
    Any,
    /// The subject's last message has this sequence; 0: it has none.
    Last(u64),
    /// An earlier message has the same id.
    Repetition,
}

impl ExpectedMessage {
    pub(super) fn insert(self, headers: &mut HeaderMap, is_replicated: bool) {
        match self {
            Self::Any => {}
            Self::Last(last) => headers.insert(EXPECTED_LAST, last.to_string()),
            // A condition that does not hold, and that the server checks after the id: a replicated stream has another
            // order than one with a single copy.
            Self::Repetition if is_replicated => headers.insert(EXPECTED_LAST, POSITION_MAX.to_string()),
            Self::Repetition => headers.insert("Nats-Expected-Last-Msg-Id", "-"),
        }
    }
}

/// A topic's last message.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogTop {
    pub(super) sequence: u64,
    /// In microseconds since 1970.
    stored_at: u64,
}

/// Messages of an answer.
#[derive(Default)]
pub(super) struct DirectAnswer {
    pub(super) messages: Vec<Message>,
    /// Messages that would follow.
    pub(super) pending: u64,
    /// The server's last sequence, in an answer about several topics.
    up_to: Option<u64>,
}

/// An unknown predecessor: the largest sequence that it can have.
///
/// A reader has this message only if it is the predecessor. Otherwise the reader sees a gap, and reads.
pub(super) fn unknown_prev(sequence: u64) -> u64 {
    sequence.saturating_sub(1)
}

/// The predecessor of a message whose predecessor was not read.
pub(super) fn first_prev(message: &Message, sequence: u64) -> u64 {
    if header(message, FIRST).is_some() { 0 } else { unknown_prev(sequence) }
}

impl StoreEngine {
    /// Notes a topic's message.
    pub(super) fn note_top(&self, topic: &str, epoch: u64, sequence: u64) {
        if let Some(class) = self.class_of_epoch(epoch) {
            class.has_seen(sequence);
        }
        let mut known = self.tops.0.borrow_mut();
        if let Some(top) = known.get_mut(topic) {
            if top.epoch != epoch || top.sequence < sequence {
                *top = Position { epoch, sequence };
            }
            return;
        }
        if known.len() >= TOPICS_MAX {
            known.clear();
        }
        known.insert(topic.into(), Position { epoch, sequence });
    }

    fn forget_top(&self, topic: &str) {
        self.tops.0.borrow_mut().remove(topic);
    }

    /// The stream in which this node has seen the topic's last message.
    pub(super) fn class_of_topic(&self, topic: &str) -> Option<Rc<LogClass>> {
        let epoch = self.tops.0.borrow().get(topic)?.epoch;
        self.class_of_epoch(epoch)
    }

    pub(super) async fn append(
        &self,
        operation: &OperationState,
        append: LogAppend,
    ) -> Result<LogAppended, StoreError> {
        let Some(slot) = self.lanes.enter(&append.topic) else { return Err(StoreError::Busy) };
        let known = self.class_of_topic(&append.topic).is_some();
        // Operations that are sent once keep their order on the connection.
        if append.if_top.is_none() && known {
            let _together = slot.lock.read().await;
            self.append_in_order(operation, &append).await
        } else {
            let _alone = slot.lock.write().await;
            self.append_in_order(operation, &append).await
        }
    }

    async fn append_in_order(
        &self,
        operation: &OperationState,
        append: &LogAppend,
    ) -> Result<LogAppended, StoreError> {
        let connection = self.connection()?;
        let class = self.class(&connection, &append.retention).await?;
        check_subject(&class.subject(&append.topic))?;
        let known = self.class_of_topic(&append.topic).is_some_and(|known| known.epoch == class.epoch);
        let mut expected = match append.if_top {
            Some(top) if top.sequence > 0 && top.epoch != class.epoch => ExpectedMessage::Repetition,
            Some(top) => ExpectedMessage::Last(top.sequence),
            None if known => ExpectedMessage::Any,
            None => ExpectedMessage::Last(0),
        };
        for attempt in 0..=ATTEMPTS {
            if expected == ExpectedMessage::Repetition && append.once.is_none() {
                return Err(StoreError::OtherTop);
            }
            let mut headers = append_headers(append, expected);
            expected.insert(&mut headers, self.has_replicas(&connection));
            match self.publish(&connection, operation, &class, headers, append).await? {
                Ok(ack) => return self.appended(&connection, operation, &class, append, expected, ack).await,
                Err(error)
                    if error.is_in_flight()
                        && (append.if_top.is_some() || expected == ExpectedMessage::Any) =>
                {
                    tokio::time::sleep(conflict_delay(attempt)).await;
                }
                Err(error) if error.is_conflict() && expected == ExpectedMessage::Repetition => {
                    return Err(StoreError::OtherTop);
                }
                // The server may have had the message before.
                Err(error) if error.is_conflict() && append.if_top.is_some() => {
                    expected = ExpectedMessage::Repetition
                }
                // The topic has messages, or another node appends its first one.
                Err(error) if error.is_conflict() => expected = ExpectedMessage::Any,
                Err(error) => return Err(error.store_error()),
            }
        }
        Err(StoreError::Busy)
    }

    /// Publishes a message to a stream. The inner error is the server's.
    async fn publish(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        class: &LogClass,
        headers: HeaderMap,
        append: &LogAppend,
    ) -> Result<Result<PubAck, super::wire::JetStreamError>, StoreError> {
        let subject = class.subject(&append.topic);
        let answer = connection.request(operation, subject, Some(headers), append.payload.clone()).await;
        let answer = answer.inspect_err(|error| {
            if matches!(error, StoreError::Away(_)) {
                self.forget_class(class);
            }
        })?;
        let parsed = JetStreamAnswer::<PubAck>::parse(&answer.payload);
        if parsed.is_err() {
            operation.had_no_effect();
        }
        Ok(parsed)
    }

    async fn appended(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        class: &LogClass,
        append: &LogAppend,
        expected: ExpectedMessage,
        ack: PubAck,
    ) -> Result<LogAppended, StoreError> {
        self.note_top(&append.topic, class.epoch, ack.seq);
        let prev = match expected {
            _ if ack.duplicate => unknown_prev(ack.seq),
            ExpectedMessage::Last(last) => last,
            _ => match self.announced_prev(&append.topic, ack.seq).await {
                Some(prev) => prev,
                None if self.is_followed(&TopicPart::log(&append.topic)) => {
                    self.prev_of(connection, operation, class, &append.topic, ack.seq).await
                }
                None => unknown_prev(ack.seq),
            },
        };
        Ok(LogAppended {
            position: Position { epoch: class.epoch, sequence: ack.seq },
            prev,
            repeated: ack.duplicate,
        })
    }

    pub(super) fn has_replicas(&self, connection: &StoreConnection) -> bool {
        self.settings.replicas.map_or_else(|| connection.is_clustered(), |replicas| replicas > 1)
    }

    /// Reads which message precedes this one, as far as it is retained.
    async fn prev_of(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        class: &LogClass,
        topic: &str,
        sequence: u64,
    ) -> u64 {
        if sequence <= 1 {
            return 0;
        }
        let body = json!({ "multi_last": [class.subject(topic)], "up_to_seq": sequence - 1 });
        let answer = self.direct(connection, operation, &class.stream, &body).await;
        let last = answer.ok().and_then(|answer| number(answer.messages.first()?, SEQUENCE));
        last.unwrap_or_else(|| unknown_prev(sequence))
    }

    /// Reads messages. Any server with a copy of the stream may answer.
    pub(super) async fn direct(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        stream: &str,
        body: &Value,
    ) -> Result<DirectAnswer, StoreError> {
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        let mut answers = connection.send(operation, subject.clone(), None, body.to_string().into()).await?;
        let mut read = DirectAnswer::default();
        loop {
            let message = connection.next(operation, &mut answers, RequestedSubject::Exact(&subject)).await?;
            match status(&message) {
                200 => read.messages.push(message),
                204 => {
                    read.pending = number(&message, PENDING).unwrap_or(0);
                    read.up_to = number(&message, UP_TO);
                    return Ok(read);
                }
                404 => return Ok(read),
                code => {
                    let text = message.description.as_deref().unwrap_or_default();
                    return Err(StoreError::Rejected(format!("NATS: {code} {text}").into()));
                }
            }
        }
    }

    /// The last messages for topics in one stream, from a server that has this sequence.
    pub(super) async fn tops_in_class(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        class: &LogClass,
        topics: &[&str],
        needed: u64,
    ) -> Result<Vec<Option<LogTop>>, StoreError> {
        let needed = needed.max(class.seen.get());
        let mut tops = Vec::with_capacity(topics.len());
        for part in topics.chunks(TOPICS_IN_REQUEST) {
            let mut delays = BEHIND_DELAYS.iter();
            loop {
                let (found, up_to) = self.read_tops(connection, operation, class, part).await?;
                // An answer without a message has no sequence.
                if up_to.is_none_or(|up_to| up_to >= needed)
                    || self.has_lost(connection, class, needed).await?
                {
                    tops.extend(found);
                    break;
                }
                let Some(delay) = delays.next() else {
                    return Err(StoreError::Away(
                        format!("all servers of stream {} are behind", class.stream).into(),
                    ));
                };
                tokio::time::sleep(Duration::from_millis(*delay)).await;
            }
        }
        Ok(tops)
    }

    async fn read_tops(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        class: &LogClass,
        topics: &[&str],
    ) -> Result<(Vec<Option<LogTop>>, Option<u64>), StoreError> {
        let mut tops: HashMap<String, Option<LogTop>> =
            topics.iter().map(|topic| (class.subject(topic), None)).collect();
        let mut up_to = None;
        loop {
            let missing: Vec<&String> =
                tops.iter().filter(|(_, top)| top.is_none()).map(|(name, _)| name).collect();
            let mut body = json!({ "multi_last": missing, "max_bytes": ANSWER_BYTES });
            if let Some(up_to) = up_to {
                // The same state for all topics.
                body["up_to_seq"] = json!(up_to);
            }
            let answer = self.direct(connection, operation, &class.stream, &body).await?;
            up_to = up_to.or(answer.up_to);
            for message in &answer.messages {
                let top = number(message, SEQUENCE).zip(stored_at(message));
                let known = header(message, SUBJECT).and_then(|subject| tops.get_mut(subject));
                if let (Some((sequence, stored_at)), Some(known)) = (top, known) {
                    *known = Some(LogTop { sequence, stored_at });
                }
            }
            if answer.pending == 0 || answer.messages.is_empty() {
                break;
            }
        }
        let of_topic = |topic: &&str| tops.get(&class.subject(topic)).copied().flatten();
        Ok((topics.iter().map(of_topic).collect(), up_to))
    }

    /// Whether the stream's leader has lost messages up to this sequence, too.
    async fn has_lost(
        &self,
        connection: &StoreConnection,
        class: &LogClass,
        needed: u64,
    ) -> Result<bool, StoreError> {
        let info = streams::info_with(connection, &class.stream, needed).await?;
        let last = info.map_or(0, |info| info.state.last_seq);
        if last >= needed {
            return Ok(false);
        }
        class.seen.set(last);
        Ok(true)
    }

    /// The stream that has each topic's last message, and the message.
    pub(super) async fn locate(
        &self,
        connection: &StoreConnection,
        operation: &OperationState,
        topics: &[&str],
    ) -> Result<Vec<Option<(Rc<LogClass>, LogTop)>>, StoreError> {
        let mut located: Vec<Option<(Rc<LogClass>, LogTop)>> = vec![None; topics.len()];
        let mut asked: Vec<u64> = Vec::new();
        // A topic that is not found may be in a stream that another node has created.
        for is_reloaded in [false, true] {
            if is_reloaded {
                self.reload_classes(connection).await?;
            }
            let classes = self.all_classes();
            let classes: Vec<_> = classes.into_iter().filter(|class| !asked.contains(&class.epoch)).collect();
            asked.extend(classes.iter().map(|class| class.epoch));
            let answers =
                classes.iter().map(|class| self.tops_in_class(connection, operation, class, topics, 0));
            for (class, tops) in classes.iter().zip(futures_util::future::join_all(answers).await) {
                for (place, top) in located.iter_mut().zip(tops?) {
                    let Some(top) = top else { continue };
                    if place.as_ref().is_none_or(|(_, known)| known.stored_at < top.stored_at) {
                        *place = Some((class.clone(), top));
                    }
                }
            }
            if located.iter().all(Option::is_some) {
                break;
            }
        }
        Ok(located)
    }

    /// The last positions in these parts.
    pub(super) async fn tops(
        &self,
        operation: &OperationState,
        parts: &[TopicPart],
    ) -> Result<Vec<Result<Option<Position>, StoreError>>, StoreError> {
        let is_log = |part: &&TopicPart| part.part == PartKind::Log;
        let topics: Vec<&str> = parts.iter().filter(is_log).map(|part| &*part.topic).collect();
        let mut logs = self.log_tops(operation, &topics).await?.into_iter();
        let top = |part: &TopicPart| match part.part {
            PartKind::Log => Ok(logs.next().flatten()),
            PartKind::Keys => self.key_top(&part.topic),
        };
        Ok(parts.iter().map(top).collect())
    }

    async fn log_tops(
        &self,
        operation: &OperationState,
        topics: &[&str],
    ) -> Result<Vec<Option<Position>>, StoreError> {
        let connection = self.connection()?;
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        self.see_last(&connection).await?;
        let located = self.locate(&connection, operation, topics).await?;
        let note = |(topic, found): (&&str, Option<(Rc<LogClass>, LogTop)>)| {
            found.map(|(class, top)| {
                self.note_top(topic, class.epoch, top.sequence);
                Position { epoch: class.epoch, sequence: top.sequence }
            })
        };
        Ok(topics.iter().zip(located).map(note).collect())
    }

    /// Asks the streams' leaders for the last sequences. Another server may be behind, and a client may have a position that
    /// this node has not seen. A leader that was frozen may answer before it knows its successor.
    async fn see_last(&self, connection: &StoreConnection) -> Result<(), StoreError> {
        let classes = self.all_classes();
        let infos = classes.iter().map(|class| streams::info(connection, &class.stream));
        for (class, info) in classes.iter().zip(futures_util::future::join_all(infos).await) {
            if let Some(info) = info?
                && streams::epoch(&info)? == class.epoch
            {
                class.has_seen(info.state.last_seq);
            }
        }
        Ok(())
    }

    /// Removes a topic's messages. Sequences continue, so no removed message's position is used again.
    pub(super) async fn clear_log(&self, operation: &OperationState, topic: &str) -> Result<(), StoreError> {
        let Some(slot) = self.lanes.enter(topic) else { return Err(StoreError::Busy) };
        let _alone = slot.lock.write().await;
        let connection = self.connection()?;
        self.reload_classes(&connection).await?;
        self.forget_top(topic);
        for class in self.all_classes() {
            let body = json!({ "filter": class.subject(topic) });
            let subject = format!("$JS.API.STREAM.PURGE.{}", class.stream);
            let answer = connection.request(operation, subject, None, body.to_string().into()).await?;
            JetStreamAnswer::<Value>::parse(&answer.payload).map_err(|error| error.store_error())?;
        }
        Ok(())
    }
}

fn append_headers(append: &LogAppend, expected: ExpectedMessage) -> HeaderMap {
    let mut all = headers(&[]);
    if let Some(once) = &append.once {
        // No token has a dot, so that no other pair has the same id.
        all.insert(MSG_ID, format!("{}.{}", token(&append.topic), token(once)));
    }
    if expected == ExpectedMessage::Last(0) {
        all.insert(FIRST, "1");
    }
    all
}

pub(super) fn check_subject(subject: &str) -> Result<(), StoreError> {
    if subject.len() <= SUBJECT_MAX {
        return Ok(());
    }
    let reason = format!(
        "the subject of the topic or key has {} bytes, and the limit is {SUBJECT_MAX}",
        subject.len()
    );
    Err(StoreError::Rejected(reason.into()))
}

/// Delay after a conflict, of which half is random.
pub(super) fn conflict_delay(attempt: u32) -> Duration {
    let most = Duration::from_millis(4 << attempt.min(4));
    most.mul_f64(0.5 + crate::reconnect::random_fraction() / 2.0)
}
