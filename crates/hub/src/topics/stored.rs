//! Topics whose histories and keys a store has, which all nodes share.
//!
//! ```text
//!   publish ─▶ TopicStore::append ─▶ the store ─▶ notifications ─▶ copies ─▶ deliver, on each node
//!   write a key ─▶ TopicStore::write_keys ─▶ the same
//! ```
//!
//! A node has a copy of each topic that it uses: its histories and keys are those of the server below, from which
//! subscribers resume. The [copies](sinews_store::LogCopy) decide what is read; this module executes it. A copy is
//! dropped when its topic was unused for [`UNUSED_MAX`].

mod audit;
mod interest;
mod keys;
mod logs;
mod metrics;
mod payload;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use sinews_server::Publisher;
use sinews_store::{
    Capabilities, KeyUpdate, LogEntry, PartKind, StoreError, StoreHealth, StoreSink, TopicPart, TopicStore,
};
use tokio::sync::Notify;

pub(crate) use self::interest::StoredInterest;
use self::keys::KeyTopic;
use self::logs::LogTopic;
pub(crate) use self::metrics::StoredMetrics;
use crate::background::Background;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::streams::store::SharedOpening;
use crate::topics::HubTopics;
use crate::waiting_tasks::WaitingTasks;

/// Time after which an unused copy is dropped: clients that reconnect find it.
const UNUSED_MAX: Duration = Duration::from_secs(60);

/// Time without the store after which the server is not ready for new clients.
const AWAY_MAX: Duration = Duration::from_secs(5);

/// Time that a client waits for a topic's copy, about.
const OPENING_MAX: Duration = Duration::from_secs(5);

/// Topics whose histories and keys a store has.
pub(crate) struct StoredTopics {
    store: Arc<dyn TopicStore>,
    background: Background,
    target: OnceLock<Target>,
    logs: Mutex<HashMap<Arc<str>, Arc<LogTopic>>>,
    /// Patterns with subscribers, with the encodings as bits.
    patterns: Mutex<HashMap<Box<str>, u8>>,
    keys: Mutex<HashMap<Arc<str>, Arc<KeyTopic>>>,
    /// Parts whose notifications may be missing since a reconnect.
    unaudited: Mutex<BTreeSet<TopicPart>>,
    /// Wakes the audit.
    audit: Notify,
    /// Tasks that wait for a copy.
    waiting: WaitingTasks,
    pub(crate) counters: StoredCounters,
}

/// Where the copies are.
struct Target {
    hub: Weak<HubTopics>,
    publisher: Publisher,
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
}

impl fmt::Debug for StoredTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredTopics").field("store", &self.store.capabilities()).finish_non_exhaustive()
    }
}

impl StoredTopics {
    pub(crate) fn new(store: Arc<dyn TopicStore>, background: Background) -> Self {
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
            counters: StoredCounters::default(),
        }
    }

    /// Connects to the store. Called once, when the server is bound.
    pub(crate) fn start(self: &Arc<Self>, hub: &Arc<HubTopics>, publisher: Publisher) -> std::io::Result<()> {
        // The first call sets it.
        let _ = self.target.set(Target { hub: Arc::downgrade(hub), publisher });
        self.store.start(Arc::new(Sink(Arc::downgrade(self))));
        let stored = Arc::downgrade(self);
        self.background.spawn("store-audit", audit::run(stored)).map(drop)
    }

    /// What the store promises.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Whether the store answers, or has done so a short time ago.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match self.store.health() {
            StoreHealth::Away { since, reason } if since.elapsed() > AWAY_MAX => {
                let seconds = since.elapsed().as_secs();
                Err(format!("the topic store has not been reachable for {seconds} s: {reason}"))
            }
            _ => Ok(()),
        }
    }

    /// Ends the connections to the store.
    pub(crate) fn close(&self) {
        self.store.close();
    }

    fn target(&self) -> Option<(Arc<HubTopics>, Publisher)> {
        let target = self.target.get()?;
        Some((target.hub.upgrade()?, target.publisher.clone()))
    }

    /// Completes when a copy is complete, or cannot be.
    fn opening(
        self: &Arc<Self>,
        topic: &Arc<str>,
        is_open: impl Fn() -> bool + Send + Sync + 'static,
    ) -> SharedOpening {
        let (stored, topic) = (Arc::clone(self), Arc::clone(topic));
        let opening = async move {
            if stored.wait_until(is_open).await {
                return Ok(());
            }
            let reason = match stored.store.health() {
                StoreHealth::Away { reason, .. } => reason,
                _ => "it does not answer".into(),
            };
            let text = format!("{} was not read from the topic store: {reason}; retry", brief(&topic));
            Err(problem(code::STORE, text))
        };
        let boxed: crate::streams::store::StoreFuture<()> = Box::pin(opening);
        boxed.shared()
    }

    /// Waits until a condition on a copy holds, at most [`OPENING_MAX`]; returns whether it does. Each tick of the
    /// [audit](audit::run) ends what has waited for too long.
    async fn wait_until(&self, condition: impl Fn() -> bool) -> bool {
        let end = Instant::now() + OPENING_MAX;
        self.waiting.wait_until(|| condition() || Instant::now() >= end).await;
        condition()
    }

    /// The answer to a client whose operation has failed.
    fn failure(&self, error: &StoreError) -> Problem {
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
    fn spawn_read(&self, read: impl Future<Output = ()> + Send + 'static) {
        // Without a thread, the audit repeats the read.
        let _ = self.background.spawn("store-read", read);
    }
}

/// Receives the store's notifications.
struct Sink(Weak<StoredTopics>);

impl StoreSink for Sink {
    fn appended(&self, topic: &str, epoch: u64, entry: LogEntry) {
        if let Some(stored) = self.0.upgrade() {
            stored.note_appended(topic, epoch, entry);
        }
    }

    fn keys_changed(&self, topic: &str, update: KeyUpdate) {
        if let Some(stored) = self.0.upgrade() {
            stored.note_keys_changed(topic, update);
        }
    }

    fn following(&self, part: &TopicPart) {
        let Some(stored) = self.0.upgrade() else { return };
        match part.part {
            PartKind::Log => stored.note_following_log(&part.topic),
            PartKind::Keys => stored.note_following_keys(&part.topic),
        }
        stored.unaudited.lock().insert(part.clone());
        stored.audit.notify_one();
    }

    fn not_following(&self, part: &TopicPart, reason: &str) {
        let Some(stored) = self.0.upgrade() else { return };
        if stored.counters.rejected.fetch_add(1, Ordering::Relaxed) == 0 {
            let topic = &*part.topic;
            tracing::warn!(topic, reason, "the topic store rejects a subscription");
        }
        if let (PartKind::Log, Some((hub, publisher))) = (part.part, stored.target()) {
            hub.report_rejected(&publisher, &part.topic, reason);
        }
    }

    fn health_changed(&self, health: StoreHealth) {
        let Some(stored) = self.0.upgrade() else { return };
        match health {
            StoreHealth::Away { reason, .. } => tracing::warn!(%reason, "the topic store is away"),
            _ => tracing::info!("the topic store answers"),
        }
        stored.audit.notify_one();
    }
}

#[cfg(test)]
mod tests;
