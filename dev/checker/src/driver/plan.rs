//! A run's faults, from its seed.

use sinews_testkit::Rng;

use crate::fake::LinkFaults;
use crate::history::{Loss, Part};
use crate::model::Rules;

/// Nodes in a run.
pub(crate) const NODES: usize = 3;
/// A log that retains all messages, and one that retains few.
pub(super) const LOGS: [(u16, u32); 2] = [(0, 100_000), (1, 6)];
/// Topics of keys. The last one's keys are locks.
pub(super) const KEY_TOPICS: [u16; 2] = [2, LOCKS];
pub(super) const LOCKS: u16 = 3;

/// A run with the fake engine. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed for all choices.
    pub seed: u64,
    /// The engine's rules.
    pub rules: Rules,
    /// Nodes audit their copies.
    pub audits: bool,
    /// Faults of links.
    pub links: LinkFaults,
    /// Faults of the engine and of connections, and when.
    pub faults: Vec<(u64, PlannedFault)>,
    /// Time in which clients act and faults happen.
    pub active: u64,
    /// Mean time between two operations.
    pub pace: u64,
    /// Maximum keys in a topic.
    pub keys_max: u64,
    /// Maximum operations without an answer.
    pub open_max: usize,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedFault {
    /// A node's connection is closed for a time.
    Cut {
        /// The node.
        node: usize,
        /// The time.
        away: u64,
    },
    /// The replica receives nothing any more.
    StopReplication,
    /// The replica becomes the primary.
    FailOver {
        /// All connections are closed for this time; `None`: they stay.
        away: Option<u64>,
    },
    /// The engine restarts without data.
    RestartEmpty,
    /// The engine evicts a topic part.
    Evict(Part),
    /// A node ends without a farewell, and starts anew.
    RestartNode(usize),
    /// A fault of a node's links to a real engine, for a time.
    Link {
        /// The node.
        node: usize,
        /// The fault.
        fault: ProxyFault,
        /// The time.
        time: u64,
    },
    /// A server's process is stopped for a time, and continued.
    Freeze {
        /// The server.
        server: usize,
        /// The time.
        time: u64,
    },
    /// A server's process is killed, and started again with its files.
    Kill {
        /// The server.
        server: usize,
        /// Time without the process.
        away: u64,
    },
    /// Redis forgets its scripts.
    FlushScripts,
    /// Redis closes all connections with subscriptions.
    KillSubscriptions,
    /// Redis executes no commands for a time.
    Pause(u64),
    /// All streams elect another leader.
    StepDown,
}

/// Fault of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// Connections are closed, and further ones.
    Cut,
    /// Connections are reset once.
    Reset,
    /// Nothing arrives in either direction until the fault ends.
    Silent,
    /// Requests arrive when the fault ends.
    RequestsHeld,
    /// Answers arrive when the fault ends.
    AnswersHeld,
    /// Answers are dropped, and the connection is closed when the fault ends.
    AnswersDropped,
    /// Bytes arrive this many milliseconds later.
    Delay(u16),
    /// Bytes arrive one by one.
    Bytes,
}

impl PlannedFault {
    pub(super) fn loses(self) -> Option<Loss> {
        match self {
            Self::FailOver { .. } => Some(Loss::Suffix),
            Self::RestartEmpty => Some(Loss::Everything),
            Self::Evict(part) => Some(Loss::Part(part)),
            _ => None,
        }
    }
}

impl Plan {
    /// A run without faults.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            rules: Rules::default(),
            audits: true,
            links: LinkFaults::default(),
            faults: vec![],
            active: 8_000_000,
            pace: 40_000,
            keys_max: 100,
            open_max: usize::MAX,
        }
    }

    /// A run with faults from its seed: none in a fifth of the seeds, faults without a lost write in two fifths.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let rng = &mut Rng::new(seed ^ 0xfa17);
        let mut plan = Self::calm(seed);
        plan.links.latency_max = [500, 5_000, 80_000][rng.below(3)];
        plan.keys_max = [3, 100][rng.below(2)];
        let class = rng.below(5);
        if class > 0 {
            plan.links.notices_dropped = share(rng, 200);
            plan.links.notices_repeated = share(rng, 200);
            plan.links.notices_late = share(rng, 100);
            plan.links.answers_lost = share(rng, 50);
            plan.links.executions_late = share(rng, 50);
            for _ in 0..rng.below(5) {
                let fault = PlannedFault::Cut { node: rng.below(NODES), away: micros(rng, 2_000_000) };
                plan.add(rng, fault);
            }
        }
        if class > 2 {
            for _ in 0..=rng.below(2) {
                plan.add_loss(rng);
            }
        }
        plan.faults.sort_by_key(|(time, _)| *time);
        plan
    }

    fn add_loss(&mut self, rng: &mut Rng) {
        match rng.below(6) {
            0 => self.add(rng, PlannedFault::RestartEmpty),
            1 => {
                let part = [Part::log(0), Part::log(1), Part::keys(2), Part::keys(LOCKS)][rng.below(4)];
                self.add(rng, PlannedFault::Evict(part));
            }
            _ => {
                let lag = [0, 100_000, 1_500_000][rng.below(3)];
                let time = micros(rng, self.active);
                let away = (rng.below(2) == 0).then(|| micros(rng, 1_000_000));
                self.faults.push((time, PlannedFault::StopReplication));
                self.faults.push((time + lag, PlannedFault::FailOver { away }));
            }
        }
    }

    pub(crate) fn add(&mut self, rng: &mut Rng, fault: PlannedFault) {
        self.faults.push((micros(rng, self.active), fault));
    }
}

/// In half of the cases none, else up to `max` thousandths.
fn share(rng: &mut Rng, max: usize) -> u64 {
    if rng.below(2) == 0 { 0 } else { rng.below(max) as u64 }
}

pub(crate) fn micros(rng: &mut Rng, max: u64) -> u64 {
    rng.next_u64() % max
}
