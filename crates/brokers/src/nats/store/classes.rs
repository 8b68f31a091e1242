//! Logs: one stream for each class of topics, which retain the same.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use sinews_store::{Retention, StoreError};

use super::connection::StoreConnection;
use super::engine::StoreEngine;
use super::streams::{self, OpenStream, StreamPlan};
use super::subjects::with_topic;
use super::wire::ServerClock;

/// Maximum log streams. Each has a log of its own at the servers.
const CLASSES_MAX: usize = 64;
/// Time for which the server recognizes repetitions.
pub(super) const ONCE_WINDOW: Duration = Duration::from_secs(300);

/// What the topics of a stream retain; a part of the stream's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogRetention {
    pub(super) messages: u64,
    /// In milliseconds; 0: no limit.
    age: u64,
    unused: u64,
}

/// An open log stream.
pub(super) struct LogClass {
    pub(super) stream: String,
    pub(super) retention: LogRetention,
    pub(super) epoch: u64,
    /// Prefix of its subjects.
    subjects: String,
    /// Highest sequence that this node has seen: a server with less is behind.
    pub(super) seen: Cell<u64>,
}

/// Log streams that this node knows.
#[derive(Default)]
pub(super) struct LogClasses {
    open: RefCell<BTreeMap<LogRetention, Rc<LogClass>>>,
    /// The last reload that has begun, and the last one that has ended.
    begun: Cell<u64>,
    ended: tokio::sync::Mutex<u64>,
}

#[derive(Deserialize)]
struct StreamNames {
    streams: Option<Vec<String>>,
    total: usize,
}

impl LogRetention {
    fn new(retention: &Retention) -> Self {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            messages: u64::from(retention.messages.max(1)),
            age: retention.age.map_or(0, |age| millis(age).max(1)),
            // The window of repetitions must not exceed the age of messages.
            unused: millis(retention.unused.max(ONCE_WINDOW)),
        }
    }

    fn name(&self, prefix: &str) -> String {
        format!("{prefix}_h_{}_{}_{}", self.messages, self.age, self.unused)
    }

    fn parse(prefix: &str, name: &str) -> Option<Self> {
        let mut numbers =
            name.strip_prefix(prefix)?.strip_prefix("_h_")?.split('_').map(|part| part.parse().ok());
        let (messages, age, unused) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let parsed = Self { messages, age, unused };
        (parsed.name(prefix) == name).then_some(parsed)
    }

    /// Maximum age at which a message is read, in microseconds.
    pub(super) fn age_micros(&self) -> Option<u64> {
        (self.age > 0).then(|| self.age.saturating_mul(1_000))
    }

    /// The stream has one more message per topic, which links the first one that is read to its predecessor. Messages
    /// are retained for as long as the topic may be unused, so that its position outlives the messages that are read.
    fn plan(&self, prefix: &str) -> StreamPlan {
        let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        StreamPlan {
            name: self.name(prefix),
            kind: "h",
            fields: json!({
                "retention": "limits",
                "storage": "file",
                "discard": "old",
                "allow_direct": true,
                "max_msgs": -1,
                "max_bytes": -1,
                "max_msgs_per_subject": self.messages.saturating_add(1),
                "max_age": nanos(Duration::from_millis(self.unused)),
                "duplicate_window": nanos(ONCE_WINDOW),
            }),
            is_announced: true,
        }
    }
}

impl LogClass {
    pub(super) fn subject(&self, topic: &str) -> String {
        with_topic(self.subjects.clone(), topic)
    }

    pub(super) fn has_seen(&self, sequence: u64) {
        self.seen.set(self.seen.get().max(sequence));
    }

    /// Whether a message from this time is too old to be read.
    pub(super) fn is_expired(&self, stored_at: u64, clock: Option<ServerClock>) -> bool {
        let Some((age, clock)) = self.retention.age_micros().zip(clock) else { return false };
        stored_at.saturating_add(age) < clock.now()
    }
}

impl StoreEngine {
    /// The stream for topics that retain this, created if need be.
    pub(super) async fn class(
        &self,
        connection: &StoreConnection,
        retention: &Retention,
    ) -> Result<Rc<LogClass>, StoreError> {
        let retention = LogRetention::new(retention);
        if let Some(class) = self.known_class(retention) {
            return Ok(class);
        }
        self.open_class(connection, retention).await
    }

    fn known_class(&self, retention: LogRetention) -> Option<Rc<LogClass>> {
        self.classes.open.borrow().get(&retention).cloned()
    }

    async fn open_class(
        &self,
        connection: &StoreConnection,
        retention: LogRetention,
    ) -> Result<Rc<LogClass>, StoreError> {
        if self.classes.open.borrow().len() >= CLASSES_MAX {
            let reason = format!("topics have more than {CLASSES_MAX} different limits of messages and age");
            return Err(StoreError::Rejected(reason.into()));
        }
        self.reopen_class(connection, retention).await
    }

    async fn reopen_class(
        &self,
        connection: &StoreConnection,
        retention: LogRetention,
    ) -> Result<Rc<LogClass>, StoreError> {
        let plan = retention.plan(&self.settings.subjects.prefix);
        let opened = plan.open(connection, &self.settings).await?;
        if self.known_class(retention).is_none_or(|known| known.epoch != opened.epoch) {
            let subjects = self.settings.subjects.stream(plan.kind, &opened.epoch.to_string());
            streams::until_reachable(connection, subjects).await?;
        }
        Ok(self.add_class(retention, plan.name, &opened))
    }

    fn add_class(&self, retention: LogRetention, stream: String, opened: &OpenStream) -> Rc<LogClass> {
        if let Some(time) = opened.time {
            self.observe_clock(time);
        }
        let mut open = self.classes.open.borrow_mut();
        if let Some(known) = open.get(&retention).filter(|known| known.epoch == opened.epoch) {
            known.has_seen(opened.last);
            return Rc::clone(known);
        }
        let class = Rc::new(LogClass {
            stream,
            retention,
            epoch: opened.epoch,
            subjects: self.settings.subjects.stream("h", &opened.epoch.to_string()),
            seen: Cell::new(opened.last),
        });
        open.insert(retention, class.clone());
        class
    }

    /// Forgets a stream that does not answer: it may have been deleted.
    pub(super) fn forget_class(&self, class: &LogClass) {
        let mut open = self.classes.open.borrow_mut();
        if open.get(&class.retention).is_some_and(|known| known.epoch == class.epoch) {
            open.remove(&class.retention);
        }
    }

    pub(super) fn all_classes(&self) -> Vec<Rc<LogClass>> {
        self.classes.open.borrow().values().cloned().collect()
    }

    pub(super) fn class_of_epoch(&self, epoch: u64) -> Option<Rc<LogClass>> {
        self.classes.open.borrow().values().find(|class| class.epoch == epoch).cloned()
    }

    /// Finds the streams that exist now. Callers share a reload that begins after their call.
    pub(super) async fn reload_classes(&self, connection: &StoreConnection) -> Result<(), StoreError> {
        let before = self.classes.begun.get();
        let mut ended = self.classes.ended.lock().await;
        if *ended > before {
            return Ok(());
        }
        self.classes.begun.set(self.classes.begun.get() + 1);
        let number = self.classes.begun.get();
        let prefix = self.settings.subjects.prefix.clone();
        let mut found = Vec::new();
        let (mut offset, mut total) = (0, 1);
        while offset < total {
            let body = json!({ "offset": offset, "subject": format!("{prefix}.h.>") });
            let names: StreamNames =
                connection.api("STREAM.NAMES", &body).await?.map_err(|error| error.store_error())?;
            let streams = names.streams.unwrap_or_default();
            if streams.is_empty() {
                break;
            }
            offset += streams.len();
            total = names.total;
            found.extend(streams.iter().filter_map(|name| LogRetention::parse(&prefix, name)));
        }
        self.classes.open.borrow_mut().retain(|retention, _| found.contains(retention));
        for retention in found.into_iter().take(CLASSES_MAX) {
            self.reopen_class(connection, retention).await?;
        }
        *ended = number;
        Ok(())
    }

    /// Learns the server's time from an answer or a message, which may be late.
    pub(super) fn observe_clock(&self, micros: u64) {
        let (known, observed) = (self.clock.get(), ServerClock::observed(micros));
        if known.is_none_or(|known| known.is_behind(&observed)) {
            self.clock.set(Some(observed));
        }
    }

    /// The server's time in microseconds since 1970, as far as it is known.
    pub(super) fn server_micros(&self) -> u64 {
        self.clock.get().map_or(0, |clock| clock.now())
    }
}
