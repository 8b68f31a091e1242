//! Runs nodes and clients against an engine, and records them.

mod calls;
mod clients;
mod node;
mod part_copy;
mod plan;
mod record;
mod side;

pub use plan::{Plan, PlannedFault, ProxyFault};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;

use rustc_hash::FxHashMap;
use sinews_store::{LogPage, LogStart, ReadKeys, ReadLog, StoreAnswer, TopicStore};
use sinews_testkit::Rng;

use crate::history::{Answer, Call, Entry, EpochSequence, EventKind, History, KeyState, Part, Run};
use calls::{Flight, begin};
use clients::{Clients, Order, Purpose};
use node::{Node, topic_part};
pub(crate) use plan::NODES;
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) use plan::micros;
use plan::{KEY_TOPICS, LOCKS, LOGS};
use record::{Record, key_state, value};
use side::FakeSide;
pub(crate) use side::{EngineSide, Moment};

/// Deadline of an operation.
const DEADLINE: u64 = 3_000_000;
/// Time between two audits at a node.
const AUDIT: u64 = 2_000_000;
/// Time between two attempts to read at a node.
const RETRY: u64 = 200_000;
/// Time between two attempts to begin a fault while another one of its kind lasts.
const FAULT_RETRY: u64 = 100_000;
/// Time after the last fault, in which all ends: late executions, expiries and audits.
const SETTLING: u64 = 12_000_000;

/// Executes a plan with the fake engine.
#[must_use]
pub fn run(plan: &Plan) -> History {
    run_with(plan, FakeSide::new(plan)).0
}

/// Executes a plan with an engine, and returns the engine, too.
pub(crate) fn run_with<E: EngineSide>(plan: &Plan, engine: E) -> (History, E) {
    let mut world = World::new(plan, engine);
    while !world.is_over {
        world.step();
    }
    world.record_finals();
    (world.record.history, world.engine)
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
    End,
}

struct World<'a, E> {
    plan: &'a Plan,
    engine: E,
    is_over: bool,
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

impl<'a, E: EngineSide> World<'a, E> {
    fn new(plan: &'a Plan, engine: E) -> Self {
        let nodes = (0..NODES).map(|node| start_node(node as u8, plan, &engine)).collect();
        let run = Run {
            seed: plan.seed,
            engine: engine.name().into(),
            deadline: DEADLINE,
            ttl_resolution: engine.ttl_resolution(),
            write_resolution: engine.write_resolution(),
            once_window: u64::try_from(plan.rules.once_window.as_micros()).unwrap_or(u64::MAX),
            retained: LOGS.map(|(_, retained)| retained).to_vec(),
            lock_topic: Some(LOCKS),
            keys_are_stream: engine.keys_are_stream(),
        };
        let record = Record::new(run, engine.origin());
        let mut world = Self {
            plan,
            engine,
            is_over: false,
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

    fn step(&mut self) {
        let next = self.queue.peek().map(|Reverse((time, _))| *time);
        let Moment { now, is_due } = self.engine.advance(next);
        self.record.now = now;
        if is_due {
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
                // Such an engine's answer is that of a node's copy.
                let is_copy = |order: &Order| matches!(order.call, Call::ReadKeys { .. });
                let order = order.filter(|order| self.engine.reads_are_exact() || !is_copy(order));
                match order {
                    Some(_) if self.open.len() >= self.plan.open_max => {}
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
            Action::Heal if self.engine.heal() => {
                self.record.push(EventKind::Healed);
                self.schedule(now + SETTLING, Action::End);
            }
            Action::Heal => self.schedule(now + FAULT_RETRY, Action::Heal),
            Action::End => self.is_over = true,
            Action::Operate | Action::Lock(_) => {}
        }
    }

    fn fail(&mut self, index: usize) {
        let (_, fault) = self.plan.faults[index];
        let now = self.record.now;
        if let PlannedFault::RestartNode(node) = fault {
            self.restart_node(node);
        } else if !self.engine.fail(fault) {
            if now < self.plan.active {
                self.schedule(now + FAULT_RETRY, Action::Fault(index));
            }
            return;
        }
        self.record.push(EventKind::Fault { text: format!("{fault:?}"), loses: fault.loses() });
    }

    /// Ends a node with all that it has, and starts another one. Its clients continue at other nodes.
    fn restart_node(&mut self, node: usize) {
        for client in self.clients.leave_node(node) {
            for part in all_parts() {
                self.nodes[node].unsubscribe(client, part, &mut self.record);
            }
        }
        let (lost, flights): (Vec<_>, Vec<_>) =
            mem::take(&mut self.flights).into_iter().partition(|flight| flight.node == node);
        self.flights = flights;
        self.polled = self.flights.len();
        let lost = lost.into_iter().map(|flight| flight.id).chain(self.nodes[node].waiting());
        for id in lost.collect::<Vec<_>>() {
            self.finish(id, Answer::Unknown);
        }
        self.nodes[node].store.close();
        let id = self.nodes[node].id + NODES as u8;
        self.nodes[node] = start_node(id, self.plan, &self.engine);
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
        self.record.push(EventKind::Call { id, node: self.nodes[node].id, client, call });
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
            match flight.poll(&self.record) {
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
        // The answer may have come after the last step.
        self.record.now = self.engine.now();
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
        let store = self.engine.observer();
        for (topic, _) in LOGS {
            let page = self.read_log(&*store, topic);
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
            let answer = store.read_keys(ReadKeys { topic: name, cursor: None, limit: u32::MAX });
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

    /// Reads all messages, in pages.
    fn read_log(&mut self, store: &dyn TopicStore, topic: u16) -> LogPage {
        let mut all = LogPage::default();
        loop {
            let after = all.entries.last().map_or(0, |entry| entry.sequence);
            let page = self.wait(store.read_log(ReadLog {
                topic: topic_part(Part::log(topic)).topic,
                start: LogStart::After(after),
                max_messages: u32::MAX,
                max_bytes: u64::MAX,
            }));
            all.top = page.top;
            all.entries.extend(page.entries);
            if !page.more {
                return all;
            }
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

/// A node that starts anew has a new number.
fn start_node<E: EngineSide>(id: u8, plan: &Plan, engine: &E) -> Node {
    let logs = LOGS.map(|(topic, retained)| (Part::log(topic), retained));
    let parts: Vec<_> = logs.into_iter().chain(KEY_TOPICS.map(|topic| (Part::keys(topic), 0))).collect();
    Node::new(id, engine.store(usize::from(id) % NODES), &parts, plan.audits)
}

/// The parts to which each client subscribes.
fn all_parts() -> impl Iterator<Item = Part> {
    let logs = LOGS.into_iter().map(|(topic, _)| Part::log(topic));
    logs.chain(KEY_TOPICS.into_iter().map(Part::keys))
}
