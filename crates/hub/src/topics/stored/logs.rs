//! Histories in the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sinews_server::{Position, Publisher, ReplayFrom};
use sinews_store::{
    LogAppend, LogAppended, LogCopy, LogEntry, LogStart, LogStep, ReadLog, Retention, StoreError, TopicPart,
};

use super::log_topic::{LogState, LogTopic, LogUsage};
use super::payload::{self, StoredPayload};
use super::shared::StoredTopics;
use super::target::{StoredEntries, StoredTarget};
use crate::model::encoding::MESSAGES;
use crate::model::opening::SharedOpening;
use crate::model::publication::{Publication, PublicationOrigin, PublishedContent};

/// A topic without publications for this time is forgotten by the store, unless its messages live longer.
const TOPIC_UNUSED: Duration = Duration::from_secs(24 * 3_600);

/// Bytes that one read returns, about.
const READ_BYTES: u64 = 4 << 20;

impl StoredTopics {
    /// Appends a publication. Its subscribers receive it from the store.
    pub(super) fn append(
        &self,
        publication: &Publication<'_, '_>,
        once: Option<&str>,
    ) -> impl Future<Output = Result<LogAppended, StoreError>> + Send + use<> {
        let content = publication.content.message();
        let verified = publication.verified.map(|sender| &**sender);
        self.append_payload(publication.topic, payload::encode(content, publication.sender, verified), once)
    }

    /// Appends a payload to a topic.
    pub(super) fn append_payload(
        &self,
        topic: &str,
        payload: Bytes,
        once: Option<&str>,
    ) -> impl Future<Output = Result<LogAppended, StoreError>> + Send + use<> {
        let append = self.retention(topic).map(|retention| LogAppend {
            topic: topic.into(),
            payload,
            retention,
            once: once.map(Into::into),
            if_top: None,
        });
        let answer = append.map(|append| self.store.append(append));
        async move {
            match answer {
                Some(answer) => answer.await,
                None => Err(StoreError::Rejected("the topic has no history any more".into())),
            }
        }
    }

    pub(super) fn retention(&self, topic: &str) -> Option<Retention> {
        let policy = self.target.get()?.publisher.history_policy(&MESSAGES.topic(topic))?;
        let age = policy.max_age();
        Some(Retention {
            messages: u32::try_from(policy.max_messages()).unwrap_or(u32::MAX),
            bytes: policy.max_bytes() as u64,
            age,
            unused: age.map_or(TOPIC_UNUSED, |age| age.max(TOPIC_UNUSED)),
        })
    }

    /// What a client waits for that uses a topic's history, perhaps from a position on; `None` if it is here.
    pub(crate) fn opening_of_log(
        self: &Arc<Self>,
        topic: &str,
        from: Option<ReplayFrom>,
    ) -> Option<SharedOpening> {
        let log = self.use_log(topic, |usage| usage.is_followed = true)?;
        let topic = Arc::clone(&log.topic);
        if !log.is_open.load(Ordering::Acquire) {
            return Some(self.opening(&topic, move || log.is_open.load(Ordering::Acquire)));
        }
        let Some(ReplayFrom::After(position)) = from else { return None };
        // Another node had the message first, or it is lost: the store knows.
        let audits = log.is_behind(position)?;
        self.unaudited.lock().insert(TopicPart::log(&topic));
        self.audit.notify_one();
        Some(self.opening(&topic, move || {
            log.is_behind(position).is_none_or(|now| now != audits && log.is_live())
        }))
    }

    /// Changes a copy's usage. The copy is created, unless the topic has no history.
    fn use_log(&self, topic: &str, change: impl FnOnce(&mut LogUsage)) -> Option<Arc<LogTopic>> {
        let mut logs = self.logs.lock();
        let log = match logs.get(topic) {
            Some(log) => Arc::clone(log),
            None => {
                let copy = LogCopy::new(self.retention(topic)?.messages);
                LogTopic::insert(&mut logs, topic, copy)
            }
        };
        let mut usage = log.usage.lock();
        let was_followed = usage.is_followed;
        usage.used = Instant::now();
        change(&mut usage);
        let is_new = usage.is_followed && !was_followed;
        drop(usage);
        // While the copies are locked, so that its end does not overtake it.
        if is_new {
            self.store.follow(&TopicPart::log(topic));
        }
        drop(logs);
        Some(log)
    }

    /// Counts a topic's subscribers in an encoding. Called while the server below is locked.
    pub(super) fn count_subscribers(&self, topic: &str, encoding: u8, is_subscribed: bool) {
        self.use_log(topic, |usage| match is_subscribed {
            true => (usage.encodings, usage.is_followed) = (usage.encodings | encoding, true),
            false => usage.encodings &= !encoding,
        });
    }

    pub(super) fn note_appended(self: &Arc<Self>, topic: &str, epoch: u64, entry: LogEntry) {
        let mut logs = self.logs.lock();
        let log = match logs.get(topic) {
            Some(log) => Arc::clone(log),
            // A subscriber by a pattern: the copy begins here.
            None => {
                let Some(retention) = self.retention(topic) else { return };
                let before = Position { epoch, sequence: entry.prev };
                LogTopic::insert(&mut logs, topic, LogCopy::behind(before, retention.messages))
            }
        };
        drop(logs);
        log.usage.lock().used = Instant::now();
        self.change_log(&log, |copy, steps| copy.notified(epoch, entry, steps));
    }

    pub(super) fn note_following_log(self: &Arc<Self>, topic: &str) {
        let Some(log) = self.logs.lock().get(topic).cloned() else { return };
        let is_incomplete = !log.state.lock().is_complete;
        self.change_log(
            &log,
            |copy, steps| {
                if is_incomplete { copy.reload(steps) } else { copy.following(steps) }
            },
        );
    }

    /// Repeats failed reads, and drops the copies that are unused.
    pub(super) fn maintain_logs(self: &Arc<Self>) {
        let logs: Vec<Arc<LogTopic>> = self.logs.lock().values().cloned().collect();
        for log in logs {
            if log.is_unused() {
                self.drop_log(&log);
            } else if self.store.topic_health(&log.topic).is_up() {
                self.change_log(&log, LogCopy::retry);
            }
        }
    }

    fn drop_log(&self, log: &Arc<LogTopic>) {
        let mut logs = self.logs.lock();
        // It was perhaps used just now.
        if log.is_unused() {
            logs.remove(&log.topic);
            if log.usage.lock().is_followed {
                self.store.unfollow(&TopicPart::log(&log.topic));
            }
        }
    }

    /// The copies that an audit compares, with their last positions.
    pub(super) fn audited_logs(&self) -> Vec<(TopicPart, Position)> {
        let logs: Vec<Arc<LogTopic>> = self.logs.lock().values().cloned().collect();
        let last = |log: &Arc<LogTopic>| Some((TopicPart::log(&log.topic), log.state.lock().copy.last()?));
        logs.iter().filter_map(last).collect()
    }

    pub(super) fn audit_log(self: &Arc<Self>, topic: &str, asked: Position, top: Option<Position>) {
        let Some(log) = self.logs.lock().get(topic).cloned() else { return };
        self.change_log(&log, |copy, steps| copy.top(asked, top, steps));
        log.state.lock().audits += 1;
        self.waiting.wake_all();
    }

    /// Changes a copy, and executes the steps in order.
    fn change_log(
        self: &Arc<Self>,
        log: &Arc<LogTopic>,
        change: impl FnOnce(&mut LogCopy, &mut Vec<LogStep>),
    ) {
        let mut state = log.state.lock();
        let mut steps = Vec::new();
        let was_live = state.copy.is_live();
        change(&mut state.copy, &mut steps);
        let has_read = !was_live && state.copy.is_live();
        if !steps.is_empty()
            && let Some((hub, publisher)) = self.target()
        {
            for step in steps {
                self.execute_log(log, &mut state, step, &*hub, &publisher);
            }
        }
        let is_open = state.is_complete && state.copy.last().is_some();
        drop(state);
        if is_open && !log.is_open.swap(true, Ordering::AcqRel) || has_read {
            self.waiting.wake_all();
        }
    }

    fn execute_log(
        self: &Arc<Self>,
        log: &Arc<LogTopic>,
        state: &mut LogState,
        step: LogStep,
        hub: &dyn StoredTarget,
        publisher: &Publisher,
    ) {
        match step {
            LogStep::Read(start) => self.read_log(log, start),
            LogStep::Install { position, floor, entries } => {
                state.is_complete = true;
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let entries = StoredEntries::read(floor, entries, now);
                hub.install_stored(publisher, &log.topic, position, entries);
            }
            LogStep::Lost => {
                self.counters.lost.fetch_add(1, Ordering::Relaxed);
                hub.notify_lost(publisher, &log.topic);
            }
            LogStep::Deliver { epoch, entry } => {
                let position = Position { epoch, sequence: entry.sequence };
                if payload::is_mark(&entry.payload) {
                    hub.pass_message(publisher, &log.topic, position);
                    return hub.notify_lost(publisher, &log.topic);
                }
                let Some(StoredPayload { content, sender, verified }) = payload::decode(&entry.payload)
                else {
                    tracing::error!(topic = &*log.topic, "a message in the topic store has another version");
                    return;
                };
                let content = PublishedContent::from(&content);
                let publication = Publication::new(&log.topic, &content)
                    .with_origin(PublicationOrigin::Store { prev: entry.prev })
                    .with_sender(sender)
                    .by(verified.as_ref())
                    .with_time(Some(entry.time))
                    .at(Some(position));
                hub.deliver_stored(publisher, &publication);
            }
        }
    }

    fn read_log(self: &Arc<Self>, log: &Arc<LogTopic>, start: LogStart) {
        if let LogStart::After(_) = start {
            self.counters.gaps.fetch_add(1, Ordering::Relaxed);
        }
        let messages = self.retention(&log.topic).map_or(1, |retention| retention.messages);
        let read =
            ReadLog { topic: (*log.topic).into(), start, max_messages: messages, max_bytes: READ_BYTES };
        let (stored, log, answer) = (Arc::clone(self), Arc::clone(log), self.store.read_log(read));
        self.spawn_read(async move {
            match answer.await {
                Ok(page) => stored.change_log(&log, |copy, steps| copy.page(page, steps)),
                Err(_) => log.state.lock().copy.read_failed(),
            }
        });
    }
}
