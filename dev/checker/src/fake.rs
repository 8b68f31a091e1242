//! An engine in memory with virtual time, and faults from a seed.

mod engine;
mod store;

pub use store::FakeStore;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_store::{StoreHealth, StoreSink, TopicPart};

use crate::model::{Model, Notice};
pub(crate) use engine::CLOCK;
use engine::Engine;

/// The engine. Its owner moves the time; each node has a [`FakeStore`].
#[derive(Clone)]
pub struct FakeEngine(Arc<Mutex<Engine>>);

/// Properties of links and answers. Times are in microseconds, shares in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFaults {
    /// Maximum time on a link, each way.
    pub latency_max: u64,
    /// Notifications that do not arrive.
    pub notices_dropped: u64,
    /// Notifications that arrive twice.
    pub notices_repeated: u64,
    /// Notifications that arrive up to two seconds late, behind later notifications.
    pub notices_late: u64,
    /// Answers that do not arrive.
    pub answers_lost: u64,
    /// Operations that are executed up to five seconds late.
    pub executions_late: u64,
}

impl Default for LinkFaults {
    /// No fault.
    fn default() -> Self {
        Self {
            latency_max: 1_000,
            notices_dropped: 0,
            notices_repeated: 0,
            notices_late: 0,
            answers_lost: 0,
            executions_late: 0,
        }
    }
}

/// A call of a sink.
enum SinkCall {
    Notice(Notice),
    Following(TopicPart),
    Health(StoreHealth),
}

impl FakeEngine {
    /// An engine with this state, to which nodes are connected.
    #[must_use]
    pub fn new(seed: u64, model: Model, nodes: usize) -> Self {
        Self(Arc::new(Mutex::new(Engine::new(seed, model, nodes))))
    }

    /// A node's store.
    #[must_use]
    pub fn store(&self, node: usize) -> FakeStore {
        FakeStore::new(self.clone(), node)
    }

    /// The next time at which something happens.
    #[must_use]
    pub fn next_time(&self) -> Option<u64> {
        self.lock().next_time()
    }

    /// Advances the time to at most `now`, and does the next thing. Whether there was one.
    pub fn step(&self, now: u64) -> bool {
        let Some(calls) = self.lock().step(now) else { return false };
        for (sink, call) in calls {
            match call {
                SinkCall::Notice(Notice::Appended { topic, epoch, entry }) => {
                    sink.appended(&topic, epoch, entry)
                }
                SinkCall::Notice(Notice::Changed { topic, update }) => sink.keys_changed(&topic, update),
                SinkCall::Following(part) => sink.following(&part),
                SinkCall::Health(health) => sink.health_changed(health),
            }
        }
        true
    }

    /// Changes the faults of all links.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.lock().faults = faults;
    }

    /// Closes a node's connection, which reconnects after this time.
    pub fn cut(&self, node: usize, away: u64) {
        self.lock().cut(node, away);
    }

    /// The replicas have the present state, and lag from now on.
    pub fn stop_replication(&self) {
        let mut engine = self.lock();
        engine.replica = Some(engine.model.clone());
    }

    /// A replica becomes the primary. Further replicas have the same old state until replication stops again.
    pub fn fail_over(&self) {
        let mut engine = self.lock();
        if let Some(replica) = engine.replica.clone() {
            engine.model = replica;
        }
        let replication = engine.next_replication();
        engine.model.fail_over(replication);
    }

    /// The engine restarts without data.
    pub fn restart_empty(&self) {
        let mut engine = self.lock();
        engine.replica = None;
        let replication = engine.next_replication();
        engine.model.restart_empty(replication);
    }

    /// The engine evicts a topic part.
    pub fn evict(&self, part: &TopicPart) {
        self.lock().model.clear(part);
    }

    /// Grows when operations are answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sinks and their calls, which happen without the engine's lock.
type SinkCalls = Vec<(Arc<dyn StoreSink>, SinkCall)>;
