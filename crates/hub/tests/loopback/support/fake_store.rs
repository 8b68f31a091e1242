//! A topic store in this process, which several nodes share. Its state is the checker's reference.

use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sinews_checker::{Jump, Model, Notice, Rules};
use sinews_server::{TopicName, TopicPattern};
use sinews_store::{
    Capabilities, FirstValue, KeyChanges, KeyCommands, KeysWritten, LogAppend, LogAppended, LogPage,
    OnceRequest, Position, ReadKeys, ReadLog, StoreAnswer, StoreError, StoreHealth, StoreServer, StoreSink,
    StoredKeys, TakeRequest, TopicPart, TopicStore,
};

/// The store, which hands a connection to each node.
#[derive(Clone)]
pub(crate) struct FakeStore(Arc<Mutex<State>>);

struct State {
    model: Model,
    begin: Instant,
    replication: u64,
    nodes: Vec<StoreClient>,
    /// All operations fail.
    fault: Option<StoreError>,
    /// Notifications are lost.
    is_mute: bool,
    capabilities: Capabilities,
    /// Beginning of topics whose server is away.
    away: Option<&'static str>,
}

#[derive(Default)]
struct StoreClient {
    parts: BTreeSet<TopicPart>,
    patterns: BTreeSet<String>,
    /// To the thread that notifies the node.
    events: Option<Sender<Event>>,
}

#[derive(Clone)]
enum Event {
    Notice(Notice),
    Following(TopicPart),
}

fn server_is_away() -> StoreHealth {
    StoreHealth::Away { since: Instant::now() - Duration::from_secs(9), reason: "two: no route".into() }
}

/// A node's connection to the store.
struct FakeStoreConnection {
    store: FakeStore,
    node: usize,
}

impl FakeStore {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            // Versions and sequences begin at 1.
            model: Model::new(1, Rules { jump: Jump::Fixed, ..Rules::default() }),
            begin: Instant::now(),
            replication: 1,
            nodes: Vec::new(),
            fault: None,
            is_mute: false,
            capabilities: Capabilities {
                ttl_resolution: Duration::from_millis(1),
                patterns: true,
                max_value: 1 << 20,
                ..Model::CAPABILITIES
            },
            away: None,
        })))
    }

    /// A store with other promises.
    pub(crate) fn with_capabilities(self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.lock().capabilities);
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for a further node.
    pub(crate) fn connect(&self) -> Arc<dyn TopicStore> {
        let mut state = self.lock();
        state.nodes.push(StoreClient::default());
        Arc::new(FakeStoreConnection { store: self.clone(), node: state.nodes.len() - 1 })
    }

    /// Fails all operations with this error from now on, or none.
    pub(crate) fn fail(&self, fault: Option<StoreError>) {
        self.lock().fault = fault;
    }

    /// Has a second server from now on, which is away, for topics that begin with this text.
    pub(crate) fn lose_server(&self, topics: &'static str) {
        self.lock().away = Some(topics);
    }

    /// Loses the notifications from now on.
    pub(crate) fn mute(&self) {
        self.lock().is_mute = true;
    }

    /// Notifies again: all nodes follow anew.
    pub(crate) fn reconnect(&self) {
        let mut state = self.lock();
        state.is_mute = false;
        for node in &state.nodes {
            for part in &node.parts {
                node.notify(Event::Following(part.clone()));
            }
        }
    }

    /// The last position in a topic's log.
    pub(crate) fn top(&self, topic: &str) -> Option<Position> {
        let state = self.lock();
        state.model.top(state.now(), &TopicPart::log(topic))
    }

    /// The state at this moment, for [`fail_over`](Self::fail_over).
    pub(crate) fn replica(&self) -> Model {
        self.lock().model.clone()
    }

    /// Continues with the state of a replica, which lacks the last writes.
    pub(crate) fn fail_over(&self, replica: Model) {
        let mut state = self.lock();
        state.replication += 1;
        state.model = replica;
        let replication = state.replication;
        state.model.fail_over(replication);
    }
}

impl State {
    fn now(&self) -> u64 {
        u64::try_from((self.begin.elapsed() + Duration::from_secs(1)).as_micros()).unwrap()
    }

    fn announce(&self, notice: &Notice) {
        if self.is_mute {
            return;
        }
        let part = notice.part();
        for node in &self.nodes {
            let name = TopicName::parse(&*part.topic).unwrap();
            let matches = |pattern: &String| TopicPattern::parse(&**pattern).unwrap().matches(&name);
            let is_log = matches!(notice, Notice::Appended { .. });
            let times = usize::from(node.parts.contains(&part))
                + usize::from(is_log && node.patterns.iter().any(matches));
            (0..times).for_each(|_| node.notify(Event::Notice(notice.clone())));
        }
    }
}

impl StoreClient {
    fn notify(&self, event: Event) {
        if let Some(events) = &self.events {
            // The node may have ended.
            let _ = events.send(event);
        }
    }
}

impl FakeStoreConnection {
    fn with<T>(&self, operation: impl FnOnce(&mut State, u64) -> Result<T, StoreError>) -> StoreAnswer<T> {
        let mut state = self.store.lock();
        if let Some(fault) = &state.fault {
            return StoreAnswer::ready(Err(fault.clone()));
        }
        let now = state.now();
        let expired = state.model.expire(now);
        expired.iter().for_each(|notice| state.announce(notice));
        StoreAnswer::ready(operation(&mut state, now))
    }
}

impl TopicStore for FakeStoreConnection {
    fn capabilities(&self) -> Capabilities {
        self.store.lock().capabilities
    }

    fn topic_health(&self, topic: &str) -> StoreHealth {
        let away = self.store.lock().away;
        match away {
            Some(away) if topic.starts_with(away) => server_is_away(),
            Some(_) => StoreHealth::Up,
            None => self.health(),
        }
    }

    fn servers(&self) -> Vec<StoreServer> {
        let server = |name: &str, health| StoreServer { name: name.into(), health };
        match self.store.lock().away {
            Some(_) => vec![server("one", StoreHealth::Up), server("two", server_is_away())],
            None => Vec::new(),
        }
    }

    fn health(&self) -> StoreHealth {
        let state = self.store.lock();
        match &state.fault {
            _ if state.away.is_some() => server_is_away(),
            Some(StoreError::Away(reason)) => {
                StoreHealth::Away { since: Instant::now(), reason: Arc::clone(reason) }
            }
            _ => StoreHealth::Up,
        }
    }

    fn start(&self, sink: Arc<dyn StoreSink>) {
        let (events, received) = channel();
        self.store.lock().nodes[self.node].events = Some(events);
        thread::spawn(move || {
            for event in received {
                match event {
                    Event::Notice(Notice::Appended { topic, epoch, entry }) => {
                        sink.appended(&topic, epoch, entry)
                    }
                    Event::Notice(Notice::Changed { topic, update }) => sink.keys_changed(&topic, update),
                    Event::Following(part) => sink.following(&part),
                }
            }
        });
    }

    fn follow(&self, part: &TopicPart) {
        let node = &mut self.store.lock().nodes[self.node];
        if node.parts.insert(part.clone()) {
            node.notify(Event::Following(part.clone()));
        }
    }

    fn unfollow(&self, part: &TopicPart) {
        self.store.lock().nodes[self.node].parts.remove(part);
    }

    fn follow_pattern(&self, pattern: &str) {
        self.store.lock().nodes[self.node].patterns.insert(pattern.to_owned());
    }

    fn unfollow_pattern(&self, pattern: &str) {
        self.store.lock().nodes[self.node].patterns.remove(pattern);
    }

    fn append(&self, append: LogAppend) -> StoreAnswer<LogAppended> {
        self.with(|state, now| {
            let (appended, notice) = state.model.append(now, &append)?;
            notice.iter().for_each(|notice| state.announce(notice));
            Ok(appended)
        })
    }

    fn read_log(&self, read: ReadLog) -> StoreAnswer<LogPage> {
        self.with(|state, now| Ok(state.model.read_log(now, &read)))
    }

    fn tops(&self, parts: Vec<TopicPart>) -> StoreAnswer<Vec<Result<Option<Position>, StoreError>>> {
        self.with(|state, now| Ok(parts.iter().map(|part| Ok(state.model.top(now, part))).collect()))
    }

    fn clear(&self, part: &TopicPart) -> StoreAnswer<()> {
        self.with(|state, _| {
            state.model.clear(part);
            Ok(())
        })
    }

    fn write_keys(&self, writes: KeyCommands) -> StoreAnswer<KeysWritten> {
        self.with(|state, now| {
            let (written, notices) = state.model.write_keys(now, &writes);
            notices.iter().for_each(|notice| state.announce(notice));
            Ok(written)
        })
    }

    fn read_keys(&self, read: ReadKeys) -> StoreAnswer<StoredKeys> {
        self.with(|state, now| Ok(state.model.read_keys(now, &read)))
    }

    fn key_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges> {
        self.with(|state, _| Ok(state.model.key_changes(topic, after)))
    }

    fn once(&self, once: OnceRequest) -> StoreAnswer<FirstValue> {
        self.with(|state, now| Ok(state.model.once(now, &once)))
    }

    fn take(&self, take: TakeRequest) -> StoreAnswer<u32> {
        self.with(|state, now| Ok(state.model.take(now, &take)))
    }

    fn close(&self) {
        self.store.lock().nodes[self.node].events = None;
    }
}
