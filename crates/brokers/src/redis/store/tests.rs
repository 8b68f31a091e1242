//! Tests at real servers, which they start, freeze and kill.

/// A server, or the end of the test without one.
macro_rules! start_server {
    ($($argument:expr),*) => {
        match crate::redis::store::tests::server::TestRedis::start(&[$($argument),*]) {
            Some(server) => server,
            None => return,
        }
    };
}

mod cluster;
mod faults;
mod keys_model;
mod log_model;
mod measure;
mod server;
mod setup;
mod several;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sinews_store::{
    KeyUpdate, LogAppend, LogAppended, LogEntry, LogPage, LogStart, Position, ReadLog, Retention,
    StoreAnswer, StoreError, StoreHealth, StoreSink, TopicPart, TopicStore,
};
use sinews_testkit::until;

use super::{RedisStore, Settings, milliseconds};

/// What a sink was notified of.
#[derive(Clone, Debug, PartialEq)]
enum StoreEvent {
    Appended(String, u64, LogEntry),
    KeysChanged(String, KeyUpdate),
    Following(TopicPart),
    NotFollowing(TopicPart, String),
    Health(bool),
}

#[derive(Default)]
struct StoreRecorder(Mutex<Vec<StoreEvent>>);

impl StoreRecorder {
    fn push(&self, event: StoreEvent) {
        self.0.lock().expect("no panic").push(event);
    }
}

impl StoreSink for StoreRecorder {
    fn appended(&self, topic: &str, epoch: u64, entry: LogEntry) {
        self.push(StoreEvent::Appended(topic.to_owned(), epoch, entry));
    }

    fn keys_changed(&self, topic: &str, update: KeyUpdate) {
        self.push(StoreEvent::KeysChanged(topic.to_owned(), update));
    }

    fn following(&self, part: &TopicPart) {
        self.push(StoreEvent::Following(part.clone()));
    }

    fn not_following(&self, part: &TopicPart, reason: &str) {
        self.push(StoreEvent::NotFollowing(part.clone(), reason.to_owned()));
    }

    fn health_changed(&self, health: StoreHealth) {
        self.push(StoreEvent::Health(health.is_up()));
    }
}

/// A node's store, and its notifications.
struct StoreNode {
    store: RedisStore,
    events: Arc<StoreRecorder>,
}

impl StoreNode {
    fn new(url: &str) -> Self {
        Self::with(settings(url))
    }

    fn with(settings: Settings) -> Self {
        let node = Self { store: RedisStore::new(settings), events: Arc::default() };
        node.store.start(node.events.clone());
        node
    }

    /// A node whose store answers.
    fn up(url: &str) -> Self {
        let node = Self::new(url);
        node.wait_until_up();
        node
    }

    fn wait_until_up(&self) {
        until("the store is up", || self.store.health().is_up());
    }

    fn events(&self) -> Vec<StoreEvent> {
        self.events.0.lock().expect("no panic").clone()
    }

    fn count(&self, is_counted: impl Fn(&StoreEvent) -> bool) -> usize {
        self.events().iter().filter(|event| is_counted(event)).count()
    }

    fn follow(&self, part: &TopicPart) {
        let is_confirmation = |event: &StoreEvent| *event == StoreEvent::Following(part.clone());
        let before = self.count(is_confirmation);
        self.store.follow(part);
        until("it is followed", || self.count(is_confirmation) > before);
    }

    /// The announced messages of a topic.
    fn announced(&self, topic: &str) -> Vec<LogEntry> {
        let entry = |event| match event {
            StoreEvent::Appended(name, _, entry) if name == topic => Some(entry),
            _ => None,
        };
        self.events().into_iter().filter_map(entry).collect()
    }

    fn append(&self, topic: &str, payload: &str) -> Result<LogAppended, StoreError> {
        wait(self.store.append(message(topic, payload)))
    }

    fn read_after(&self, topic: &str, sequence: u64) -> LogPage {
        let start = LogStart::After(sequence);
        let read = ReadLog { topic: topic.into(), start, max_messages: 1000, max_bytes: 1 << 20 };
        wait(self.store.read_log(read)).expect("it answers")
    }

    fn top(&self, part: &TopicPart) -> Option<Position> {
        wait(self.store.tops(vec![part.clone()])).expect("it answers").remove(0).expect("it answers")
    }
}

fn settings(url: &str) -> Settings {
    Settings::parse(url, &Default::default()).expect("a URL")
}

fn wait<T>(pending: StoreAnswer<T>) -> Result<T, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(pending)
}

const RETENTION: Retention =
    Retention { messages: 1000, bytes: 1 << 20, age: None, unused: Duration::from_secs(3600) };

fn message(topic: &str, payload: &str) -> LogAppend {
    LogAppend {
        topic: topic.into(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        retention: RETENTION,
        once: None,
        if_top: None,
    }
}

#[test]
fn times_are_rounded_up() {
    let times = [0, 1, 1_000, 1_001].map(Duration::from_micros).map(milliseconds);
    assert_eq!(times, [1, 1, 1, 2]);
}
