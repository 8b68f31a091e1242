//! Runs nodes and clients against an engine, and records them.

mod calls;
mod clients;
mod node;
mod part_copy;
mod plan;
mod record;

pub use plan::{Plan, PlannedFault};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use sinews_store::{LogStart, ReadKeys, ReadLog, StoreAnswer};
use sinews_testkit::Rng;

use crate::fake::{FakeEngine, LinkFaults};
use crate::history::{Answer, Entry, EpochSequence, EventKind, History, KeyState, Part, Run};
use crate::model::Model;
use calls::{Flight, begin};
use clients::{Clients, Order, Purpose};
use node::{Node, topic_part};
use plan::{KEY_TOPICS, LOCKS, LOGS, NODES};
use record::{Record, key_state, value};

/// Deadline of an operation.
const DEADLINE: u64 = 3_000_000;
/// Time between two audits at a node.
const AUDIT: u64 = 2_000_000;
/// Time between two attempts to read at a node.
const RETRY: u64 = 200_000;
/// Time after the last fault, in which all ends: late executions, expiries and audits.
const SETTLING: u64 = 12_000_000;

/// Executes a plan with the fake engine.
#[must_use]
pub fn run(plan: &Plan) -> History {
    let mut world = World::new(plan);
    let end = plan.active + SETTLING;
    while world.next_time().is_some_and(|time| time <= end) {
        world.step();
    }
    world.record.now = end;
    world.record_finals();
    world.record.history
}

/// Something that the driver does.
enum Action {
    /// A client begins an operation.
    Operate,
    /// A client moves to another node.
    Move(u16),
    /// A client uses locks.
    Lock(u16),
    /// A client repeats an operation.
    Again(Order),
    Fault(usize),
    Audit(usize),
    Retry(usize),
    Heal,
}

struct World<'a> {
    plan: &'a Plan,
    engine: FakeEngine,
    /// Operations that the engine had answered at the last poll.
    answered: u64,
    nodes: Vec<Node>,
    clients: Clients,
    record: Record,
    rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u32)>>,
    actions: FxHashMap<u32, Action>,
    next_action: u32,
    flights: Vec<Flight>,
    /// Flights that were polled.
    polled: usize,
    /// Operations without an answer.
    open: FxHashMap<u32, Order>,
    next_operation: u32,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan) -> Self {
        let engine = FakeEngine::new(plan.seed ^ 1, Model::new(plan.seed ^ 2, plan.rules), NODES);
        engine.set_faults(plan.links);
        let logs = LOGS.map(|(topic, retained)| (Part::log(topic), retained));
        let parts: Vec<_> = logs.into_iter().chain(KEY_TOPICS.map(|topic| (Part::keys(topic), 0))).collect();
        let node = |id| Node::new(id as u8, Arc::new(engine.store(id)), &parts, plan.audits);
        let nodes = (0..NODES).map(node).collect();
        let mut record = Record::default();
        record.history.run = Run {
            seed: plan.seed,
            engine: "fake".into(),
            deadline: DEADLINE,
            ttl_resolution: 100_000,
            once_window: u64::try_from(plan.rules.once_window.as_micros()).unwrap_or(u64::MAX),
            retained: LOGS.map(|(_, retained)| retained).to_vec(),
            lock_topic: Some(LOCKS),
        };
        let mut world = Self {
            plan,
            engine,
            answered: 0,
            nodes,
            clients: Clients::new(),
            record,
            rng: Rng::new(plan.seed ^ 3),
            queue: BinaryHeap::new(),
            actions: FxHashMap::default(),
            next_action: 0,
            flights: vec![],
            polled: 0,
            open: FxHashMap::default(),
            next_operation: 0,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.schedule(0, Action::Operate);
        for client in self.clients.readers() {
            self.schedule(0, Action::Move(client));
        }
        for client in self.clients.lockers() {
            self.schedule(0, Action::Lock(client));
        }
        for node in 0..NODES {
            let offset = self.below(AUDIT);
            self.schedule(offset, Action::Audit(node));
            self.schedule(offset / 10, Action::Retry(node));
        }
        for index in 0..self.plan.faults.len() {
            self.schedule(self.plan.faults[index].0, Action::Fault(index));
        }
        self.schedule(self.plan.active, Action::Heal);
    }

    fn schedule(&mut self, time: u64, action: Action) {
        self.queue.push(Reverse((time, self.next_action)));
        self.actions.insert(self.next_action, action);
        self.next_action += 1;
    }

    fn next_time(&self) -> Option<u64> {
        let action = self.queue.peek().map(|Reverse((time, _))| *time);
        self.engine.next_time().into_iter().chain(action).min()
    }

    fn step(&mut self) {
        let Some(time) = self.next_time() else { return };
        self.record.now = time;
        if !self.engine.step(time) {
            let next = self.queue.pop();
            if let Some(action) = next.and_then(|Reverse((_, id))| self.actions.remove(&id)) {
                self.act(action);
            }
        }
        self.poll();
    }

    fn act(&mut self, action: Action) {
        let now = self.record.now;
        let is_active = now < self.plan.active;
        match action {
            Action::Operate if is_active => {
                let order = self.clients.choose(&mut self.rng, NODES);
                match order {
                    Some(order) => self.operate(order),
                    None => self.read_cached(),
                }
                let pause = self.below(2 * self.plan.pace);
                self.schedule(now + pause, Action::Operate);
            }
            Action::Move(client) => self.move_client(client, is_active),
            Action::Lock(client) if is_active => {
                if let Some(order) = self.clients.use_lock(client, &mut self.rng, NODES, &mut self.record) {
                    self.operate(order);
                }
                let pause = 30_000 + self.below(300_000);
                self.schedule(now + pause, Action::Lock(client));
            }
            Action::Again(order) => self.operate(order),
            Action::Fault(index) => self.fail(index),
            Action::Audit(node) => {
                self.nodes[node].audit(|_| true);
                self.schedule(now + AUDIT, Action::Audit(node));
            }
            Action::Retry(node) => {
                self.nodes[node].retry(&mut self.record);
                self.schedule(now + RETRY, Action::Retry(node));
            }
            Action::Heal => {
                self.engine.set_faults(LinkFaults { latency_max: 1_000, ..LinkFaults::default() });
                self.record.push(EventKind::Healed);
            }
            Action::Operate | Action::Lock(_) => {}
        }
    }

    fn fail(&mut self, index: usize) {
        let (_, fault) = self.plan.faults[index];
        self.record.push(EventKind::Fault { text: format!("{fault:?}"), loses: fault.loses() });
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
            PlannedFault::Evict(part) => self.engine.evict(&topic_part(part)),
        }
    }

    /// Leaves the client's node for a time, or continues at another one.
    fn move_client(&mut self, client: u16, is_active: bool) {
        let now = self.record.now;
        match self.clients.leave(client) {
            Some(node) if is_active => {
                for part in all_parts() {
                    self.nodes[node].unsubscribe(client, part, &mut self.record);
                }
                let pause = self.below(400_000);
                self.schedule(now + pause, Action::Move(client));
            }
            Some(node) => self.clients.arrive(client, node),
            None => {
                let node = self.rng.below(NODES);
                self.clients.arrive(client, node);
                for part in all_parts() {
                    let after = self.record.positions.get(&(client, part)).copied();
                    self.nodes[node].subscribe(client, part, after, &mut self.record);
                }
                let pause = 100_000 + self.below(2_000_000);
                self.schedule(now + pause, Action::Move(client));
            }
        }
    }

    fn read_cached(&mut self) {
        let (node, client) = (self.rng.below(NODES), self.clients.any(&mut self.rng));
        let topic = KEY_TOPICS[self.rng.below(KEY_TOPICS.len())];
        self.nodes[node].read_cached(client, topic, &mut self.record);
    }

    fn operate(&mut self, order: Order) {
        let id = self.next_operation;
        self.next_operation += 1;
        let (node, client, call) = (order.node, order.client, order.call.clone());
        let deadline = self.record.now + DEADLINE;
        let flight = begin(id, node, &call, &*self.nodes[node].store, self.plan.keys_max, deadline);
        self.record.push(EventKind::Call { id, node: node as u8, client, call });
        self.open.insert(id, order);
        self.flights.push(flight);
    }

    /// Passes everything that has come to nodes and clients.
    fn poll(&mut self) {
        let answered = self.engine.answered();
        let is_answered = mem::replace(&mut self.answered, answered) != answered;
        for node in &mut self.nodes {
            node.poll(&mut self.record);
            node.poll_reads(is_answered, &mut self.record);
        }
        if is_answered || self.flights.len() > self.polled {
            self.poll_flights();
        }
        for node in 0..NODES {
            for (id, answer) in self.nodes[node].answers(self.record.now) {
                self.finish(id, answer);
            }
        }
    }

    fn poll_flights(&mut self) {
        for mut flight in mem::take(&mut self.flights) {
            let now = self.record.now;
            match flight.poll(now) {
                None => self.flights.push(flight),
                Some(done) => {
                    let (node, record) = (&mut self.nodes[flight.node], &mut self.record);
                    if let Some(answer) = done.pass(node, record) {
                        self.finish(flight.id, answer);
                    }
                }
            }
        }
        self.polled = self.flights.len();
        // The answers may have made nodes read.
        for node in &mut self.nodes {
            node.poll_reads(false, &mut self.record);
        }
    }

    fn finish(&mut self, id: u32, answer: Answer) {
        let Some(mut order) = self.open.remove(&id) else { return };
        let is_open = matches!(answer, Answer::Unknown | Answer::Failed { .. });
        self.clients.learn(&order, &answer, self.record.now);
        self.record.push(EventKind::Return { id, answer });
        if is_open && order.purpose == Purpose::Named && order.tries < 4 && self.record.now < self.plan.active
        {
            order.tries += 1;
            order.node = self.rng.below(NODES);
            let pause = 100_000 + self.below(2_000_000);
            self.schedule(self.record.now + pause, Action::Again(order));
        }
    }

    /// Reads everything at the engine, and at the nodes.
    fn record_finals(&mut self) {
        for (topic, _) in LOGS {
            let read = ReadLog {
                topic: topic_part(Part::log(topic)).topic,
                start: LogStart::After(0),
                max_messages: u32::MAX,
                max_bytes: u64::MAX,
            };
            let answer = self.nodes[0].store.read_log(read);
            let page = self.wait(answer);
            let entry = |entry: &sinews_store::LogEntry| Entry {
                sequence: entry.sequence,
                prev: entry.prev,
                value: value(&entry.payload),
            };
            let entries = page.entries.iter().map(entry).collect();
            self.record.push(EventKind::FinalLog { topic, top: page.top.map(EpochSequence::from), entries });
        }
        for topic in KEY_TOPICS {
            let name = topic_part(Part::keys(topic)).topic;
            let answer =
                self.nodes[0].store.read_keys(ReadKeys { topic: name, cursor: None, limit: u32::MAX });
            let page = self.wait(answer);
            let keys: Vec<KeyState> = page.keys.iter().map(key_state).collect();
            self.record.push(EventKind::FinalKeys {
                topic,
                top: page.position.map(EpochSequence::from),
                keys,
            });
        }
        for node in &self.nodes {
            node.record_copies(&mut self.record);
        }
    }

    /// Moves the time until an answer comes, which no fault prevents.
    fn wait<T: Default>(&mut self, mut answer: StoreAnswer<T>) -> T {
        loop {
            match answer.take() {
                Some(answer) => return answer.unwrap_or_default(),
                None => self.step(),
            }
        }
    }

    fn below(&mut self, max: u64) -> u64 {
        self.rng.next_u64() % max
    }
}

/// The parts to which each client subscribes.
fn all_parts() -> impl Iterator<Item = Part> {
    let logs = LOGS.into_iter().map(|(topic, _)| Part::log(topic));
    logs.chain(KEY_TOPICS.into_iter().map(Part::keys))
}
