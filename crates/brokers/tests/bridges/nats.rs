//! Topic stores at real NATS servers, which the tests kill: `cargo xtask brokers --only nats` starts one, and a cluster.

mod admin;
mod faults;
mod figures;
mod keys;
mod logs;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sinews_brokers::connect_topic_store;
use sinews_store::{
    KeyUpdate, LogAppend, LogAppended, LogEntry, LogPage, LogStart, ReadLog, Retention, StoreAnswer,
    StoreError, StoreHealth, StoreSink, TopicPart, TopicStore,
};

use crate::broker::LIMIT;
use crate::broker::real::{unused_name, url};

/// What a store has notified.
#[derive(Debug, Default)]
struct Notified {
    entries: BTreeMap<String, Vec<(u64, LogEntry)>>,
    updates: BTreeMap<String, Vec<KeyUpdate>>,
    following: HashSet<TopicPart>,
    denied: Vec<(TopicPart, String)>,
    health: Vec<StoreHealth>,
}

#[derive(Default)]
struct RecordingSink {
    notified: Mutex<Notified>,
    changed: Condvar,
}

impl RecordingSink {
    fn change(&self, change: impl FnOnce(&mut Notified)) {
        change(&mut self.notified.lock().expect("no panic"));
        self.changed.notify_all();
    }

    /// Waits until it was notified of what the test expects.
    fn until<T>(&self, what: &str, find: impl Fn(&Notified) -> Option<T>) -> T {
        let (mut notified, end) = (self.notified.lock().expect("no panic"), Instant::now() + LIMIT);
        loop {
            if let Some(found) = find(&notified) {
                return found;
            }
            let left = end.checked_duration_since(Instant::now());
            let left = left.unwrap_or_else(|| panic!("{what}: {notified:?}"));
            notified = self.changed.wait_timeout(notified, left).expect("no panic").0;
        }
    }
}

impl StoreSink for RecordingSink {
    fn appended(&self, topic: &str, epoch: u64, entry: LogEntry) {
        self.change(|all| all.entries.entry(topic.to_owned()).or_default().push((epoch, entry)));
    }

    fn keys_changed(&self, topic: &str, update: KeyUpdate) {
        self.change(|all| all.updates.entry(topic.to_owned()).or_default().push(update));
    }

    fn following(&self, part: &TopicPart) {
        self.change(|all| {
            all.following.insert(part.clone());
        });
    }

    fn not_following(&self, part: &TopicPart, reason: &str) {
        self.change(|all| all.denied.push((part.clone(), reason.to_owned())));
    }

    fn health_changed(&self, health: StoreHealth) {
        self.change(|all| all.health.push(health));
    }
}

/// A node's store.
struct StoreNode {
    store: Arc<dyn TopicStore>,
    sink: Arc<RecordingSink>,
}

impl StoreNode {
    fn new(settings: &str) -> Self {
        Self::at(&url(settings))
    }

    fn at(url: &str) -> Self {
        let store = connect_topic_store(url, &BTreeMap::new()).expect("the settings are known");
        let sink = Arc::new(RecordingSink::default());
        store.start(sink.clone());
        let node = Self { store, sink };
        node.until_up();
        node
    }

    fn until_up(&self) {
        self.sink.until("the store is up", |_| self.store.health().is_up().then_some(()));
    }

    fn until_away(&self) -> StoreHealth {
        self.sink.until("the store is away", |_| Some(self.store.health()).filter(|health| !health.is_up()))
    }

    fn follow(&self, part: &TopicPart) {
        self.store.follow(part);
        self.sink.until("it follows", |all| all.following.contains(part).then_some(()));
    }

    fn append(&self, append: LogAppend) -> Result<LogAppended, StoreError> {
        wait(self.store.append(append))
    }

    /// Appends as soon as NATS has a leader.
    fn append_again(&self, append: &LogAppend) -> LogAppended {
        let end = Instant::now() + LIMIT;
        loop {
            match self.append(append.clone()) {
                Ok(appended) => return appended,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            // A rejection is immediate, and the servers need the processor.
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn read(&self, topic: &str, start: LogStart, max_messages: u32) -> LogPage {
        let read = ReadLog { topic: topic.into(), start, max_messages, max_bytes: u64::MAX };
        wait(self.store.read_log(read)).expect("NATS answers")
    }
}

impl Drop for StoreNode {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// Waits for an answer.
fn wait<T>(pending: StoreAnswer<T>) -> Result<T, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(pending)
}

const RETENTION: Retention =
    Retention { messages: 5, bytes: u64::MAX, age: None, unused: Duration::from_secs(3_600) };

fn message(topic: &str, payload: &str) -> LogAppend {
    LogAppend {
        topic: topic.into(),
        payload: payload.to_owned().into(),
        retention: RETENTION,
        once: None,
        if_top: None,
    }
}

/// A setting that no earlier run has used.
fn prefix(name: &str) -> String {
    format!("prefix={}", unused_name(name))
}
