//! What all parts of the copies share.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use sinews_server::Publisher;
use sinews_store::{
    Capabilities, FirstValue, OnceRequest, StoreError, StoreHealth, StoreServer, TopicPart, TopicStore,
};
use tokio::sync::Notify;

use super::key_topic::KeyTopic;
use super::log_topic::LogTopic;
use super::revocations::StoredRevocations;
use super::target::StoredTarget;
use super::unstored::{StoreAway, Unstored};
use crate::background::Background;
use crate::model::brief::brief;
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};
use crate::waiting_tasks::WaitingTasks;

/// Time without the store after which the server is not ready for new clients.
const AWAY_MAX: Duration = Duration::from_secs(5);

/// Time that a client waits for a topic's copy, about.
const OPENING_MAX: Duration = Duration::from_secs(5);

/// Topics whose histories and keys a store has.
pub(crate) struct StoredTopics {
    pub(super) store: Arc<dyn TopicStore>,
    pub(super) background: Background,
    pub(super) target: OnceLock<Target>,
    pub(super) logs: Mutex<HashMap<Arc<str>, Arc<LogTopic>>>,
    /// Patterns with subscribers, with the encodings as bits.
    pub(super) patterns: Mutex<HashMap<Box<str>, u8>>,
    pub(super) keys: Mutex<HashMap<Arc<str>, Arc<KeyTopic>>>,
    /// Parts whose notifications may be missing since a reconnect.
    pub(super) unaudited: Mutex<BTreeSet<TopicPart>>,
    /// Wakes the audit.
    pub(super) audit: Notify,
    /// Tasks that wait for a copy.
    pub(super) waiting: WaitingTasks,
    pub(super) unstored: Unstored,
    pub(super) revocations: OnceLock<Arc<StoredRevocations>>,
    pub(crate) counters: StoredCounters,
}

/// Where the copies are.
pub(super) struct Target {
    pub(super) hub: Weak<dyn StoredTarget>,
    pub(super) publisher: Publisher,
}

/// Counters for the copies.
#[derive(Debug, Default)]
pub(crate) struct StoredCounters {
    /// Operations that the store has not executed.
    pub(crate) failed: AtomicU64,
    /// Operations that the store may or may not have executed.
    pub(crate) unknown: AtomicU64,
    /// Copies that have found messages or changes lost.
    pub(crate) lost: AtomicU64,
    /// Reads after a gap.
    pub(crate) gaps: AtomicU64,
    /// Subscriptions that the store has rejected.
    pub(crate) rejected: AtomicU64,
    /// Publications that were delivered while the store was away.
    pub(crate) unstored: AtomicU64,
}

impl fmt::Debug for StoredTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredTopics").field("store", &self.store.capabilities()).finish_non_exhaustive()
    }
}

impl StoredTopics {
    pub(crate) fn new(store: Arc<dyn TopicStore>, away: StoreAway, background: Background) -> Self {
        Self {
            store,
            background,
            target: OnceLock::new(),
            logs: Mutex::default(),
            patterns: Mutex::default(),
            keys: Mutex::default(),
            unaudited: Mutex::default(),
            audit: Notify::new(),
            waiting: WaitingTasks::default(),
            unstored: Unstored::new(away),
            revocations: OnceLock::new(),
            counters: StoredCounters::default(),
        }
    }

    /// What the store promises.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// The store and its promises, and whether it is away, for node lists.
    pub(crate) fn report(&self) -> (String, bool) {
        (self.store.capabilities().to_string(), !self.store.health().is_up())
    }

    /// Whether a publication to a topic without a history is the first one with this idempotency key, at any node. It
    /// counts as the first one if the store does not answer.
    pub(crate) fn is_first(&self, topic: &str, key: &str) -> impl Future<Output = bool> + Send + use<> {
        let window = self.store.capabilities().once_window;
        // A topic's name has no line break.
        let name = format!("publish\n{topic}\n{key}").into();
        let answer = self.store.once(OnceRequest { name, value: Bytes::new(), window });
        async move { !matches!(answer.await, Ok(FirstValue::Value(_))) }
    }

    /// The publisher of this process, once the server is bound.
    pub(crate) fn publisher(&self) -> Option<Publisher> {
        Some(self.target.get()?.publisher.clone())
    }

    /// For how many milliseconds a topic's copies have perhaps been old; `None`: the store answers.
    pub(crate) fn stale_for(&self, topic: &str) -> Option<u64> {
        match self.store.topic_health(topic) {
            StoreHealth::Away { since, .. } => u64::try_from(since.elapsed().as_millis()).ok(),
            _ => None,
        }
    }

    /// Whether the store answers, or has done so a short time ago. One of its servers suffices: topics of the others do not
    /// need those that are away.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match self.store.health() {
            _ if self.is_partly_up() => Ok(()),
            StoreHealth::Away { since, reason } if since.elapsed() > AWAY_MAX => {
                let seconds = since.elapsed().as_secs();
                Err(format!("the topic store has not been reachable for {seconds} s: {reason}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the store or one of its servers answers.
    pub(super) fn is_partly_up(&self) -> bool {
        self.store.health().is_up() || self.store.servers().iter().any(|server| server.health.is_up())
    }

    /// A line for each server that is away while others answer.
    pub(crate) fn away_servers(&self) -> String {
        let line = |server: &StoreServer| match &server.health {
            StoreHealth::Away { since, reason } => {
                let seconds = since.elapsed().as_secs();
                Some(format!("topic store server {} away for {seconds} s: {reason}\n", server.name))
            }
            _ => None,
        };
        self.store.servers().iter().filter_map(line).collect()
    }

    /// Ends the connections to the store.
    pub(crate) fn close(&self) {
        self.store.close();
    }

    pub(super) fn target(&self) -> Option<(Arc<dyn StoredTarget>, Publisher)> {
        let target = self.target.get()?;
        Some((target.hub.upgrade()?, target.publisher.clone()))
    }

    /// Completes when a copy is complete, or cannot be.
    pub(super) fn opening(
        self: &Arc<Self>,
        topic: &Arc<str>,
        is_open: impl Fn() -> bool + Send + Sync + 'static,
    ) -> SharedOpening {
        let (stored, topic) = (Arc::clone(self), Arc::clone(topic));
        let opening = async move {
            if stored.wait_until(is_open).await {
                return Ok(());
            }
            let reason = match stored.store.topic_health(&topic) {
                StoreHealth::Away { reason, .. } => reason,
                _ => "it does not answer".into(),
            };
            let text = format!("{} was not read from the topic store: {reason}; retry", brief(&topic));
            Err(problem(code::STORE, text))
        };
        let boxed: crate::model::opening::StoreFuture<()> = Box::pin(opening);
        boxed.shared()
    }

    /// Waits until a condition on a copy holds, at most [`OPENING_MAX`]; returns whether it does. Each tick of the
    /// [audit](audit::run) ends what has waited for too long.
    pub(super) async fn wait_until(&self, condition: impl Fn() -> bool) -> bool {
        let end = Instant::now() + OPENING_MAX;
        self.waiting.wait_until(|| condition() || Instant::now() >= end).await;
        condition()
    }

    /// The answer to a client whose operation has failed.
    pub(super) fn failure(&self, error: &StoreError) -> Problem {
        let counter = if error.is_unknown() { &self.counters.unknown } else { &self.counters.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let code = match error {
            StoreError::Busy => code::TOO_MANY,
            StoreError::TooLarge { .. } => code::TOO_LARGE,
            StoreError::OtherTop => code::CONDITION,
            _ => code::STORE,
        };
        Problem { unknown: error.is_unknown(), ..problem(code, error.to_string()) }
    }

    /// Runs a read of a copy beside the loops.
    pub(super) fn spawn_read(&self, read: impl Future<Output = ()> + Send + 'static) {
        // Without a thread, the audit repeats the read.
        let _ = self.background.spawn("store-read", read);
    }
}
