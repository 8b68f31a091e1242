//! The engine's side of a run.

use std::sync::Arc;
use std::time::Instant;

use sinews_store::TopicStore;

use super::plan::{NODES, Plan, PlannedFault};
use crate::fake::{CLOCK, FakeEngine, LinkFaults};
use crate::model::{Model, instant};

/// The time, and whether the driver's next action is due.
pub(crate) struct Moment {
    pub(crate) now: u64,
    pub(crate) is_due: bool,
}

/// An engine, its clock and its faults.
pub(crate) trait EngineSide {
    fn name(&self) -> &'static str;

    /// In microseconds.
    fn ttl_resolution(&self) -> u64;

    /// As [`Run::write_resolution`](crate::history::Run::write_resolution).
    fn write_resolution(&self) -> u64;

    /// Whether [`TopicStore::read_keys`] reads at the engine, and not from a node's replica.
    fn reads_are_exact(&self) -> bool;

    /// As [`Run::keys_are_stream`](crate::history::Run::keys_are_stream).
    fn keys_are_stream(&self) -> bool;

    /// A connection for a node.
    fn store(&self, node: usize) -> Arc<dyn TopicStore>;

    /// A connection that reads the final state.
    fn observer(&self) -> Arc<dyn TopicStore>;

    /// Lets the engine work, at most until the driver's next action.
    fn advance(&mut self, next: Option<u64>) -> Moment;

    /// The time in microseconds.
    fn now(&self) -> u64;

    /// Time 0 as the process's.
    fn origin(&self) -> Instant;

    /// Grows when operations may have been answered.
    fn answered(&mut self) -> u64;

    /// Begins a fault. `false`: it is not possible before the end of another one.
    fn fail(&mut self, fault: PlannedFault) -> bool;

    /// Ends all faults. `false`: one still lasts.
    fn heal(&mut self) -> bool;
}

/// The engine in memory.
pub(crate) struct FakeSide {
    engine: FakeEngine,
    now: u64,
}

impl FakeSide {
    pub(crate) fn new(plan: &Plan) -> Self {
        let engine = FakeEngine::new(plan.seed ^ 1, Model::new(plan.seed ^ 2, plan.rules), NODES);
        engine.set_faults(plan.links);
        Self { engine, now: 0 }
    }
}

impl EngineSide for FakeSide {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn ttl_resolution(&self) -> u64 {
        100_000
    }

    fn write_resolution(&self) -> u64 {
        0
    }

    fn reads_are_exact(&self) -> bool {
        true
    }

    fn keys_are_stream(&self) -> bool {
        false
    }

    fn store(&self, node: usize) -> Arc<dyn TopicStore> {
        Arc::new(self.engine.store(node))
    }

    fn observer(&self) -> Arc<dyn TopicStore> {
        self.store(0)
    }

    fn advance(&mut self, next: Option<u64>) -> Moment {
        let time = self.engine.next_time().into_iter().chain(next).min();
        self.now = time.unwrap_or(self.now);
        Moment { now: self.now, is_due: !self.engine.step(self.now) }
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn origin(&self) -> Instant {
        instant(CLOCK)
    }

    fn answered(&mut self) -> u64 {
        self.engine.answered()
    }

    fn fail(&mut self, fault: PlannedFault) -> bool {
        match fault {
            PlannedFault::Cut { node, away } => self.engine.cut(node, away),
            PlannedFault::StopReplication => self.engine.stop_replication(),
            PlannedFault::FailOver { away } => {
                self.engine.fail_over();
                for node in 0..away.map_or(0, |_| NODES) {
                    self.engine.cut(node, away.unwrap_or(0));
                }
            }
            PlannedFault::RestartEmpty => {
                self.engine.restart_empty();
                (0..NODES).for_each(|node| self.engine.cut(node, 100_000));
            }
            PlannedFault::Evict(part) => self.engine.evict(&super::topic_part(part)),
            // Faults of processes and real links.
            _ => {}
        }
        true
    }

    fn heal(&mut self) -> bool {
        self.engine.set_faults(LinkFaults { latency_max: 1_000, ..LinkFaults::default() });
        true
    }
}
