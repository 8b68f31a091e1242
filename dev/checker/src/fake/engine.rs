//! The state behind all links.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use sinews_store::{StoreHealth, StoreSink, TopicPart};
use sinews_testkit::Rng;

use super::{LinkFaults, SinkCall, SinkCalls};
use crate::model::{Model, Notice};

/// The engine's clock at virtual time 0: microseconds since 1970, later than a topic without a failover has sequences.
pub(crate) const CLOCK: u64 = 1 << 50;
/// Deadline of an operation.
pub(super) const DEADLINE: u64 = 3_000_000;
/// Time between two removals of expired keys.
const SWEEP: u64 = 100_000;
/// Maximum delay of a late notification.
const LATE_MAX: u64 = 2_000_000;
/// Maximum delay of a late execution.
const EXECUTION_LATE_MAX: u64 = 5_000_000;

/// Executes an operation; the result answers it.
pub(super) type Execute = Box<dyn FnOnce(&mut Model, u64) -> Executed + Send>;

/// An executed operation.
pub(super) struct Executed {
    pub(super) answer: Box<dyn FnOnce() + Send>,
    pub(super) notices: Vec<Notice>,
}

pub(super) struct Engine {
    pub(super) now: u64,
    /// Virtual time 0.
    start: Instant,
    rng: Rng,
    pub(super) model: Model,
    pub(super) replica: Option<Model>,
    /// Changes of the primary.
    fail_overs: u64,
    pub(super) faults: LinkFaults,
    nodes: Vec<Link>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: FxHashMap<u64, Happening>,
    next_id: u64,
    /// Operations that were answered, or closed connections.
    pub(super) answered: u64,
}

#[derive(Default)]
struct Link {
    sink: Option<Arc<dyn StoreSink>>,
    /// Grows with each connection.
    generation: u64,
    state: LinkState,
    followed: BTreeSet<TopicPart>,
    /// Parts for which the engine notifies this connection.
    active: BTreeSet<TopicPart>,
    /// Times of the last arrivals, which keep the order of one topic.
    requests: FxHashMap<Box<str>, u64>,
    answers: FxHashMap<Box<str>, u64>,
    notices: FxHashMap<TopicPart, u64>,
    /// Ends of operations in flight as unknown.
    in_flight: FxHashMap<u64, Box<dyn FnOnce() + Send>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LinkState {
    #[default]
    Up,
    Away,
    /// Connected, and not notified about all parts.
    Connected,
}

enum Happening {
    Execute { node: usize, generation: u64, id: u64, topic: Box<str>, execute: Execute },
    Answer { node: usize, generation: u64, id: u64, answer: Box<dyn FnOnce() + Send> },
    Deadline { node: usize, id: u64 },
    Subscribe { node: usize, generation: u64, part: TopicPart },
    Following { node: usize, generation: u64, part: TopicPart },
    Notice { node: usize, generation: u64, notice: Notice },
    Away { node: usize, generation: u64 },
    Reconnect { node: usize, generation: u64 },
    Up { node: usize, generation: u64 },
    Sweep,
}

impl Engine {
    pub(super) fn new(seed: u64, model: Model, nodes: usize) -> Self {
        let mut engine = Self {
            now: 0,
            start: Instant::now(),
            rng: Rng::new(seed),
            model,
            replica: None,
            fail_overs: 0,
            faults: LinkFaults::default(),
            nodes: (0..nodes).map(|_| Link::default()).collect(),
            queue: BinaryHeap::new(),
            events: FxHashMap::default(),
            next_id: 0,
            answered: 0,
        };
        engine.schedule(SWEEP, Happening::Sweep);
        engine
    }

    pub(super) fn next_time(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((time, _))| *time)
    }

    pub(super) fn step(&mut self, now: u64) -> Option<SinkCalls> {
        if self.next_time().is_none_or(|time| time > now) {
            self.now = self.now.max(now);
            return None;
        }
        let Reverse((time, id)) = self.queue.pop()?;
        self.now = self.now.max(time);
        let mut calls = Vec::new();
        if let Some(happening) = self.events.remove(&id) {
            self.happen(happening, &mut calls);
        }
        Some(calls)
    }

    /// A number for a new primary.
    pub(super) fn next_replication(&mut self) -> u64 {
        self.fail_overs += 1;
        self.fail_overs + 1
    }

    pub(super) fn set_sink(&mut self, node: usize, sink: Arc<dyn StoreSink>) {
        self.nodes[node].sink = Some(sink);
    }

    pub(super) fn health(&self, node: usize) -> StoreHealth {
        if self.nodes[node].state == LinkState::Up {
            return StoreHealth::Up;
        }
        StoreHealth::Away { since: self.start, reason: "the connection was cut".into() }
    }

    /// Whether operations can be sent.
    pub(super) fn is_connected(&self, node: usize) -> bool {
        self.nodes[node].state != LinkState::Away
    }

    /// Sends an operation. `cancel` ends it as unknown.
    pub(super) fn submit(
        &mut self,
        node: usize,
        topic: &str,
        execute: Execute,
        cancel: Box<dyn FnOnce() + Send>,
    ) {
        let id = self.next_id();
        let mut arrival = self.now + self.latency();
        if self.happens(self.faults.executions_late) {
            arrival += self.rng.next_u64() % EXECUTION_LATE_MAX;
        }
        let link = &mut self.nodes[node];
        link.in_flight.insert(id, cancel);
        let arrival = in_order(&mut link.requests, topic, arrival);
        let (generation, topic) = (link.generation, topic.into());
        self.schedule(arrival, Happening::Execute { node, generation, id, topic, execute });
        self.schedule(self.now + DEADLINE, Happening::Deadline { node, id });
    }

    pub(super) fn follow(&mut self, node: usize, part: &TopicPart) {
        let link = &mut self.nodes[node];
        if link.followed.insert(part.clone()) && link.state != LinkState::Away {
            self.subscribe(node, part.clone());
        }
    }

    pub(super) fn unfollow(&mut self, node: usize, part: &TopicPart) {
        let link = &mut self.nodes[node];
        link.followed.remove(part);
        link.active.remove(part);
    }

    /// Cuts a connection, and connects again later.
    pub(super) fn cut(&mut self, node: usize, away: u64) {
        let now = self.now;
        let link = &mut self.nodes[node];
        link.generation += 1;
        link.state = LinkState::Away;
        link.active.clear();
        link.requests.clear();
        link.answers.clear();
        link.notices.clear();
        let mut in_flight: Vec<_> = link.in_flight.drain().collect();
        in_flight.sort_unstable_by_key(|(id, _)| *id);
        in_flight.into_iter().for_each(|(_, cancel)| cancel());
        self.answered += 1;
        let generation = link.generation;
        self.schedule(now, Happening::Away { node, generation });
        self.schedule(now + away, Happening::Reconnect { node, generation });
    }

    fn happen(&mut self, happening: Happening, calls: &mut SinkCalls) {
        match happening {
            Happening::Execute { node, generation, id, topic, execute } => {
                self.execute(node, generation, id, &topic, execute);
            }
            Happening::Answer { node, generation, id, answer } => {
                let link = &mut self.nodes[node];
                if link.generation == generation && link.in_flight.remove(&id).is_some() {
                    answer();
                    self.answered += 1;
                }
            }
            Happening::Deadline { node, id } => {
                if let Some(cancel) = self.nodes[node].in_flight.remove(&id) {
                    cancel();
                    self.answered += 1;
                }
            }
            Happening::Subscribe { node, generation, part } => self.handle_subscribe(node, generation, part),
            Happening::Following { node, generation, part } => {
                let link = &self.nodes[node];
                if link.generation == generation && link.active.contains(&part) {
                    self.call(node, SinkCall::Following(part), calls);
                }
            }
            Happening::Notice { node, generation, notice } => {
                if self.nodes[node].generation == generation {
                    self.call(node, SinkCall::Notice(notice), calls);
                }
            }
            Happening::Away { node, generation } => {
                if self.nodes[node].generation == generation {
                    self.call(node, SinkCall::Health(self.health(node)), calls);
                }
            }
            Happening::Reconnect { node, generation } => self.reconnect(node, generation),
            Happening::Up { node, generation } => {
                if self.nodes[node].generation == generation {
                    self.nodes[node].state = LinkState::Up;
                    self.call(node, SinkCall::Health(StoreHealth::Up), calls);
                }
            }
            Happening::Sweep => {
                let notices = self.model.expire(CLOCK + self.now);
                self.notify(notices);
                self.schedule(self.now + SWEEP, Happening::Sweep);
            }
        }
    }

    fn execute(&mut self, node: usize, generation: u64, id: u64, topic: &str, execute: Execute) {
        // Half of the operations on a closed connection had reached the engine.
        let is_cut = self.nodes[node].generation != generation;
        if is_cut && self.rng.below(2) == 0 {
            return;
        }
        let Executed { answer, notices } = execute(&mut self.model, CLOCK + self.now);
        self.notify(notices);
        if is_cut || self.happens(self.faults.answers_lost) {
            return;
        }
        let arrival = self.now + self.latency();
        let arrival = in_order(&mut self.nodes[node].answers, topic, arrival);
        self.schedule(arrival, Happening::Answer { node, generation, id, answer });
    }

    fn subscribe(&mut self, node: usize, part: TopicPart) -> u64 {
        let arrival = self.now + self.latency();
        let generation = self.nodes[node].generation;
        self.schedule(arrival, Happening::Subscribe { node, generation, part });
        arrival
    }

    fn handle_subscribe(&mut self, node: usize, generation: u64, part: TopicPart) {
        let link = &mut self.nodes[node];
        if link.generation != generation || !link.followed.contains(&part) {
            return;
        }
        link.active.insert(part.clone());
        // The confirmation is in order with the notifications.
        let arrival = self.now + self.latency();
        let arrival = in_order(&mut self.nodes[node].notices, &part, arrival);
        self.schedule(arrival, Happening::Following { node, generation, part });
    }

    fn reconnect(&mut self, node: usize, generation: u64) {
        if self.nodes[node].generation != generation {
            return;
        }
        self.nodes[node].state = LinkState::Connected;
        let mut last = self.now;
        for part in self.nodes[node].followed.clone() {
            last = last.max(self.subscribe(node, part));
        }
        // It is up when all confirmations have arrived.
        let up = last + 2 * self.faults.latency_max;
        self.schedule(up, Happening::Up { node, generation });
    }

    fn notify(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            let part = notice.part();
            for node in 0..self.nodes.len() {
                if self.nodes[node].active.contains(&part) && !self.happens(self.faults.notices_dropped) {
                    self.send_notice(node, &part, &notice);
                    if self.happens(self.faults.notices_repeated) {
                        self.send_notice(node, &part, &notice);
                    }
                }
            }
        }
    }

    fn send_notice(&mut self, node: usize, part: &TopicPart, notice: &Notice) {
        let mut arrival = self.now + self.latency();
        if self.happens(self.faults.notices_late) {
            arrival += self.rng.next_u64() % LATE_MAX;
        } else {
            arrival = in_order(&mut self.nodes[node].notices, part, arrival);
        }
        let generation = self.nodes[node].generation;
        self.schedule(arrival, Happening::Notice { node, generation, notice: notice.clone() });
    }

    fn call(&self, node: usize, call: SinkCall, calls: &mut SinkCalls) {
        if let Some(sink) = &self.nodes[node].sink {
            calls.push((Arc::clone(sink), call));
        }
    }

    fn schedule(&mut self, time: u64, happening: Happening) {
        let id = self.next_id();
        self.queue.push(Reverse((time, id)));
        self.events.insert(id, happening);
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn latency(&mut self) -> u64 {
        1 + self.rng.next_u64() % self.faults.latency_max
    }

    fn happens(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && self.rng.next_u64() % 1_000 < thousandths
    }
}

/// Moves an arrival behind the last one with this name.
fn in_order<K, Q>(last: &mut FxHashMap<K, u64>, name: &Q, arrival: u64) -> u64
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
{
    match last.get_mut(name) {
        Some(last) => {
            *last = arrival.max(*last + 1);
            *last
        }
        None => {
            last.insert(name.to_owned().into(), arrival);
            arrival
        }
    }
}
