//! Seeded simulations of several nodes with the keys of real servers, and simulated messages and time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sinews_server::{
    BoundServer, KeyCondition, KeyReplication, KeyWrite, KeyWritten, KeyedConfig, Position, Prepared,
    Publisher, Router, Server, TopicConfig,
};
use sinews_testkit::Rng;

use super::*;
use crate::cluster::message::{MessageKind, NodeId};
use crate::cluster::nodes::{Heartbeat, Nodes};
use crate::cluster::options::BrokerKind;
use crate::cluster::outbox::Outbox;
use crate::cluster::subject::Subjects;
use crate::cluster::times::{NODE_TIMEOUT, RETURN_TIME};
use crate::model::problem::{Problem, code};
use crate::topics::shared_keys::{Claim, KeyWriteOutcome, PendingKeyWrite, SharedKeys as _};

use self::durable::SimDisk;

mod durable;
mod joining;
mod order;
mod outages;

const STEP: Duration = Duration::from_millis(20);
const TOPICS: [&str; 3] = ["a", "b", "c"];

/// Returns a simulation's seeds: some, or those before `SINEWS_TEST_SEEDS`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    0..std::env::var("SINEWS_TEST_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(count)
}

/// A key, its version, its value, and the client that it counts toward.
type SeenKey = (String, u64, Option<bytes::Bytes>, Option<NonZeroU64>);

/// A node with a server that does not run: no thread but the test's.
struct SimNode {
    id: NodeId,
    _server: BoundServer,
    publisher: Publisher,
    keys: Arc<ClusterKeys>,
    outbox: Arc<Outbox>,
    replicator: KeyReplicator,
    nodes: Nodes,
    sent: u64,
    beat_at: Instant,
    is_connected: bool,
    is_dead: bool,
    /// Nodes in another group do not hear it.
    group: usize,
    pending: Vec<(Submitted, PendingKeyWrite)>,
    disk: Option<SimDisk>,
}

#[derive(Clone)]
struct Submitted {
    topic: &'static str,
    key: String,
    value: Option<String>,
}

/// Messages of one run of a node.
#[derive(Default)]
struct Sent {
    messages: RefCell<Vec<(KeyTarget, MessageKind, Vec<u8>)>>,
}

impl KeySender for Sent {
    fn send(&self, to: KeyTarget, kind: MessageKind, body: &[u8]) {
        if body.len() > self.max_payload() {
            // As the outbox: a message is dropped whose value alone exceeds the limit.
            let large = vec![b'L'; self.max_payload()];
            let has_large = body.windows(large.len()).any(|bytes| bytes == large);
            return assert!(has_large, "{kind:?} of {} bytes", body.len());
        }
        self.messages.borrow_mut().push((to, kind, body.to_vec()));
    }

    fn waiting(&self) -> usize {
        self.messages.borrow().iter().map(|(_, _, body)| body.len()).sum()
    }

    fn max_payload(&self) -> usize {
        // Small, so that states have several parts.
        4_096
    }
}

struct InFlight {
    at: Instant,
    from: NodeId,
    to: NodeId,
    number: u64,
    kind: MessageKind,
    body: Vec<u8>,
}

struct World {
    rng: Rng,
    now: Instant,
    nodes: Vec<SimNode>,
    messages: Vec<InFlight>,
    /// Lost, duplicated and late messages, per mille.
    faults: usize,
    /// What each version of an epoch was, on any node.
    versions: BTreeMap<(&'static str, u64, u64), (String, Option<bytes::Bytes>)>,
    /// A topic's position at a node when its versions were noted.
    noted: BTreeMap<(usize, &'static str), Option<Position>>,
    acknowledged: Vec<(usize, Submitted, KeyWritten)>,
    failed: Vec<(usize, Submitted, Problem)>,
}

impl SimNode {
    fn new(id: u128, now: Instant, memory: usize) -> Self {
        let id = NodeId { id, start: 1 };
        let subjects = Subjects::new(BrokerKind::Nats, "p");
        let outbox = Arc::new(Outbox::new(BrokerKind::Nats, id, subjects));
        outbox.open(1 << 20);
        let keys = Arc::new(ClusterKeys::new(Arc::clone(&outbox)));
        let config = TopicConfig::default().with_keyed(KeyedConfig::default().with_max_total_bytes(memory));
        let server = Server::new(Router::new())
            .keyed_topics(|_| Prepared::text(""))
            .topics(config)
            .key_replication(Arc::clone(&keys) as Arc<dyn KeyReplication>)
            .threads(1)
            .listen(([127, 0, 0, 1], 0).into())
            .bind()
            .unwrap();
        let publisher = server.publisher();
        let mut replicator = KeyReplicator::new(id.id, publisher.clone(), Arc::clone(&keys));
        replicator.serve(now);
        replicator.connected(now);
        Self {
            id,
            _server: server,
            publisher,
            keys,
            outbox,
            replicator,
            nodes: Nodes::default(),
            sent: 0,
            beat_at: now,
            is_connected: true,
            is_dead: false,
            group: 0,
            pending: Vec::new(),
            disk: None,
        }
    }

    fn state(&self, topic: &str) -> Option<(Position, Vec<SeenKey>)> {
        let state = self.publisher.shared_keyed_topic(topic)?;
        // Removed keys are forgotten by the clock of each node.
        let keys = state.keys.into_iter().filter(|key| key.value.is_some());
        Some((state.position, keys.map(|key| (key.key, key.version, key.value, key.client)).collect()))
    }
}

impl World {
    fn new(seed: u64, nodes: usize) -> Self {
        let now = Instant::now();
        let mut rng = Rng::new(seed);
        let mut id = || u128::from(rng.next_u64()) << 64 | 1;
        let nodes = (0..nodes).map(|_| SimNode::new(id(), now, 64 << 20)).collect();
        let (versions, messages) = (BTreeMap::new(), Vec::new());
        let noted = BTreeMap::new();
        Self {
            rng,
            now,
            nodes,
            messages,
            faults: 0,
            versions,
            noted,
            acknowledged: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn join(&mut self, memory: usize) {
        let id = u128::from(self.rng.next_u64()) << 64 | 1;
        self.nodes.push(SimNode::new(id, self.now, memory));
    }

    fn write(&mut self, node: usize, submitted: Submitted, condition: Option<KeyCondition>) {
        let Submitted { topic, key, value } = submitted.clone();
        let mut write = match value {
            Some(value) => KeyWrite::set(key, value),
            None => KeyWrite::delete(key),
        };
        if let Some(condition) = condition {
            write = write.with_condition(condition);
        }
        write = write.with_client(client(node));
        let from = &self.nodes[node];
        let publisher = from.publisher.clone();
        match from.keys.write(topic, write, &mut |write| publisher.write_key(topic, write)) {
            KeyWriteOutcome::Done(result) => self.end(node, submitted, result),
            KeyWriteOutcome::Later(written) => self.nodes[node].pending.push((submitted, written)),
        }
    }

    fn end(&mut self, node: usize, submitted: Submitted, result: Result<KeyWritten, Problem>) {
        match result {
            Ok(written) => {
                let here = self.nodes[node].publisher.keyed_position(submitted.topic);
                let seen = here.is_none_or(|here| {
                    here.epoch != written.position.epoch || here.sequence >= written.position.sequence
                });
                assert!(seen, "{written:?} is acknowledged at {here:?}");
                self.acknowledged.push((node, submitted, written));
            }
            Err(problem) => self.failed.push((node, submitted, problem)),
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        self.deliver();
        for at in 0..self.nodes.len() {
            if self.nodes[at].is_dead {
                continue;
            }
            let sent = Sent::default();
            let node = &mut self.nodes[at];
            if node.is_connected {
                node.nodes.expire(now);
                let own = node.id.id;
                node.replicator.set_nodes(node.nodes.key_nodes(own), now);
            }
            if let Some(disk) = node.disk.as_ref().filter(|disk| !disk.is_stalled) {
                while disk.replicas.store_changes(Instant::now()) {}
            }
            node.replicator.run(&sent, now);
            let output = node.disk.as_mut().map(SimDisk::send_output).unwrap_or_default();
            node.replicator.finish_stored(output, now);
            if node.is_connected && now >= node.beat_at {
                node.beat_at = now + Duration::from_secs(1);
                let body = serde_json::to_vec(&heartbeat(node.replicator.heartbeat(now))).unwrap();
                sent.send(KeyTarget::All, MessageKind::Heartbeat, &body);
            }
            self.post(at, sent);
            self.poll(at);
            self.note_versions(at);
        }
    }

    fn poll(&mut self, at: usize) {
        let mut cx = Context::from_waker(Waker::noop());
        for (submitted, mut written) in std::mem::take(&mut self.nodes[at].pending) {
            match written.as_mut().poll(&mut cx) {
                Poll::Ready(result) => self.end(at, submitted, result),
                Poll::Pending => self.nodes[at].pending.push((submitted, written)),
            }
        }
    }

    fn post(&mut self, at: usize, sent: Sent) {
        let (from, group) = (self.nodes[at].id, self.nodes[at].group);
        for (to, kind, body) in sent.messages.into_inner() {
            self.nodes[at].sent += 1;
            let number = self.nodes[at].sent;
            for other in &self.nodes {
                let is_receiver = match to {
                    KeyTarget::All => other.id != from,
                    KeyTarget::Node(node) => other.id == node,
                };
                if !is_receiver || !other.is_connected || other.is_dead || other.group != group {
                    continue;
                }
                let mut copies = 1;
                let mut at = self.now + STEP;
                if self.rng.below(1_000) < self.faults {
                    copies = self.rng.below(3);
                    at += STEP * u32::try_from(self.rng.below(30)).unwrap();
                }
                for _ in 0..copies {
                    self.messages.push(InFlight { at, from, to: other.id, number, kind, body: body.clone() });
                }
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later) =
            std::mem::take(&mut self.messages).into_iter().partition(|message| message.at <= now);
        self.messages = later;
        let due: Vec<InFlight> = due;
        for message in due {
            let Some(at) = self.nodes.iter().position(|node| node.id == message.to) else { continue };
            let node = &mut self.nodes[at];
            if !node.is_connected || node.is_dead || !node.nodes.receive(message.from, message.number, now) {
                continue;
            }
            let sent = Sent::default();
            if message.kind == MessageKind::Heartbeat {
                let heartbeat: Heartbeat = serde_json::from_slice(&message.body).unwrap();
                let keys = heartbeat.keys.unwrap();
                let is_new_here = node.replicator.connected_for(now) < RETURN_TIME;
                node.nodes.beat(message.from, heartbeat, is_new_here, now);
                node.replicator.set_nodes(node.nodes.key_nodes(node.id.id), now);
                node.replicator.beat(message.from, &keys, &sent, now);
            } else {
                node.replicator.receive(message.from, message.kind, &message.body, &sent, now);
            }
            self.post(at, sent);
        }
    }

    /// Notes what each version is, if the topic has changed: it never differs.
    fn note_versions(&mut self, at: usize) {
        for topic in TOPICS {
            let position = self.nodes[at].publisher.keyed_position(topic);
            if self.noted.insert((at, topic), position) == Some(position) {
                continue;
            }
            let Some(state) = self.nodes[at].publisher.shared_keyed_topic(topic) else { continue };
            for key in state.keys {
                let entry = (key.key, key.value);
                // A version from an earlier epoch remains its key's version.
                let known = self.versions.entry((topic, state.position.epoch, key.version));
                assert_eq!(*known.or_insert_with(|| entry.clone()), entry, "{topic} {:?}", state.position);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Runs until all nodes claim topics.
    fn settle(&mut self) {
        self.run(NODE_TIMEOUT + Duration::from_secs(3));
    }

    fn set_connected(&mut self, at: usize, is_connected: bool) {
        self.set_connected_since(at, is_connected, self.now);
    }

    /// Connects a node, or notices that the broker has not been heard since a time.
    fn set_connected_since(&mut self, at: usize, is_connected: bool, heard: Instant) {
        let now = self.now;
        let node = &mut self.nodes[at];
        if node.is_dead || std::mem::replace(&mut node.is_connected, is_connected) == is_connected {
            return;
        }
        if is_connected {
            node.outbox.open(1 << 20);
            node.nodes.renew(now);
            node.replicator.connected(now);
            node.beat_at = now;
        } else {
            node.outbox.close();
            node.replicator.disconnected(heard);
            let id = node.id;
            self.messages.retain(|message| message.from != id && message.to != id);
        }
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].is_dead = true;
        self.nodes[at].pending.clear();
    }

    fn random_write(&mut self, number: usize) {
        let node = self.rng.below(self.nodes.len());
        if self.nodes[node].is_dead {
            return;
        }
        let topic = TOPICS[self.rng.below(TOPICS.len())];
        let key = format!("k{}", self.rng.below(12));
        let value = (self.rng.below(4) > 0).then(|| format!("{number}{}", "x".repeat(self.rng.below(900))));
        self.write(node, Submitted { topic, key, value }, None);
    }

    /// All living nodes have the same keys and owners.
    fn assert_equal(&self, seed: u64) {
        let alive: Vec<&SimNode> = self.nodes.iter().filter(|node| !node.is_dead).collect();
        for topic in TOPICS {
            for node in &alive[1..] {
                assert_eq!(node.keys.claim(topic), alive[0].keys.claim(topic), "seed {seed} {topic}");
                if alive[0].keys.claim(topic).is_some() {
                    let (state, first) = (node.state(topic), alive[0].state(topic));
                    let positions =
                        (state.as_ref().map(|state| state.0), first.as_ref().map(|state| state.0));
                    let replica = node.replicator.topics.get(topic).map(|known| known.replica);
                    assert!(state == first, "seed {seed} {topic} {positions:?} {replica:?}");
                }
            }
        }
        for node in &alive {
            let waiting = node.pending.len();
            assert!(
                node.keys.is_loaded() && waiting == 0,
                "seed {seed}: {waiting} {:?}",
                node.replicator.remotes
            );
        }
    }
}

fn heartbeat(keys: KeysHeartbeat) -> Heartbeat {
    let heartbeat = serde_json::json!({ "name": "n", "version": "1", "uptime": 1, "serving": true });
    Heartbeat { keys: Some(keys), ..serde_json::from_value(heartbeat).unwrap() }
}

/// The client that writes at a node.
fn client(node: usize) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(node as u64)
}

fn set(topic: &'static str, key: &str, value: &str) -> Submitted {
    Submitted { topic, key: key.to_owned(), value: Some(value.to_owned()) }
}

#[test]
fn writes_at_all_nodes_are_one_sequence() {
    for seed in 0..6 {
        let mut world = World::new(seed, 3);
        world.settle();
        let mut written: BTreeMap<(usize, &str, String), Option<String>> = BTreeMap::new();
        for number in 0..300 {
            let node = world.rng.below(3);
            let topic = TOPICS[world.rng.below(3)];
            // Each node has its own keys, so that a key's last write is known.
            let key = format!("n{node}.{}", world.rng.below(4));
            let value = (world.rng.below(4) > 0).then(|| number.to_string());
            written.insert((node, topic, key.clone()), value.clone());
            world.write(node, Submitted { topic, key, value }, None);
            if world.rng.below(3) == 0 {
                world.step();
            }
        }
        world.run(Duration::from_secs(3));
        assert!(world.failed.is_empty(), "{:?}", world.failed.first().map(|failed| &failed.2));
        assert_eq!(world.acknowledged.len(), 300);
        world.assert_equal(seed);
        for ((_, topic, key), value) in written {
            let here = world.nodes[0].state(topic).unwrap().1;
            let found = here.into_iter().find(|known| known.0 == key).and_then(|known| known.2);
            assert_eq!(found, value.map(bytes::Bytes::from), "seed {seed} {topic} {key}");
        }
    }
}

#[test]
fn successor_process_finds_topics_whose_owner_has_gone() {
    let mut world = World::new(1, 1);
    let (node, now) = (&mut world.nodes[0], world.now);
    node.keys.inherit("a".to_owned(), Claim { term: 1, epoch: 5, owner: 99 });
    node.replicator = KeyReplicator::new(node.id.id, node.publisher.clone(), Arc::clone(&node.keys));
    // The connection is there before the predecessor process has handed the keys over.
    node.replicator.connected(now);
    node.replicator.run(&Sent::default(), now);
    node.replicator.serve(now);
    assert!(node.replicator.orphans.contains_key("a"));
    world.run(RETURN_TIME + Duration::from_secs(7));
    assert_eq!(world.nodes[0].keys.claim("a").map(|claim| claim.owner), Some(world.nodes[0].id.id));
}

#[test]
fn one_of_two_nodes_takes_a_lock() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3);
        world.settle();
        for round in 0..20 {
            let key = format!("lock{round}");
            for node in 0..3 {
                world.write(node, set("a", &key, &node.to_string()), Some(KeyCondition::IfNew));
            }
            world.run(Duration::from_millis(400));
            let winners: Vec<usize> = world.acknowledged.drain(..).map(|(node, ..)| node).collect();
            assert_eq!((winners.len(), world.failed.len()), (1, 2), "seed {seed}");
            assert!(world.failed.drain(..).all(|(_, _, problem)| problem.code == code::CONDITION));
        }
    }
}

#[test]
fn successor_of_a_dead_owner_continues_within_six_seconds() {
    for seed in 0..10 {
        let mut world = World::new(seed, 4);
        world.settle();
        world.write(0, set("a", "k", "1"), None);
        world.run(Duration::from_secs(1));
        let claim = world.nodes[0].keys.claim("a").unwrap();
        let owner = world.nodes.iter().position(|node| node.id.id == claim.owner).unwrap();
        world.kill(owner);
        let other = (owner + 1) % 4;
        world.run(Duration::from_millis(500));
        world.write(other, set("a", "k", "lost"), None);
        world.run(Duration::from_secs(4));
        let (_, _, problem) = world.failed.pop().unwrap();
        assert!(problem.code == code::STORE && problem.text.contains("may have been written"), "{problem:?}");
        world.run(Duration::from_millis(1_600));
        world.write(other, set("a", "k2", "2"), None);
        world.run(Duration::from_millis(300));
        let (_, _, written) = world.acknowledged.pop().unwrap();
        assert!(written.position.epoch != claim.epoch && written.position.sequence == 2, "{written:?}");
        world.assert_equal(seed);
        let clients: Vec<_> =
            world.nodes[other].state("a").unwrap().1.into_iter().map(|key| key.3.unwrap()).collect();
        assert_eq!(clients, [client(0), client(other)], "the state survives, with the shares of clients");
        let claim = world.nodes[other].keys.claim("a").unwrap();
        assert_eq!(claim.term, 2, "one node has claimed it");
    }
}

#[test]
fn late_node_gets_all_keys_and_owns_nothing_of_the_others() {
    for seed in 0..6 {
        let mut world = World::new(seed, 2);
        world.settle();
        for number in 0..200 {
            world.random_write(number);
        }
        world.run(Duration::from_secs(1));
        let before: Vec<_> = TOPICS.iter().map(|topic| world.nodes[0].keys.claim(topic)).collect();
        world.join(64 << 20);
        let late = world.nodes.len() - 1;
        world.write(late, set("a", "early", "1"), None);
        assert!(!world.nodes[late].keys.is_loaded());
        world.settle();
        world.assert_equal(seed);
        let after: Vec<_> = TOPICS.iter().map(|topic| world.nodes[late].keys.claim(topic)).collect();
        assert_eq!(before, after);
        assert!(world.failed.is_empty(), "the write has waited");
    }
}

#[test]
fn nodes_converge_after_an_outage_of_the_broker() {
    for seed in 0..6 {
        let mut world = World::new(seed, 3);
        world.settle();
        for number in 0..60 {
            world.random_write(number);
        }
        world.run(Duration::from_secs(1));
        let before: Vec<_> = TOPICS.iter().map(|topic| world.nodes[0].keys.claim(topic)).collect();
        (0..3).for_each(|at| world.set_connected(at, false));
        let long = if seed % 2 == 0 { 3 } else { 90 };
        world.run(Duration::from_secs(long));
        world.acknowledged.clear();
        world.failed.clear();
        for (at, topic) in (0..3).flat_map(|at| TOPICS.map(|topic| (at, topic))) {
            world.write(at, set(topic, "outage", &at.to_string()), None);
        }
        // Each topic is written by its owner alone.
        assert_eq!((world.acknowledged.len(), world.failed.len()), (3, 6), "seed {seed}");
        assert!(world.failed.iter().all(|(_, _, problem)| problem.text.contains("is unreachable")));
        for at in 0..3 {
            world.run(Duration::from_millis(700));
            world.set_connected(at, true);
        }
        world.run(Duration::from_secs(15));
        world.assert_equal(seed);
        let after: Vec<_> = TOPICS.iter().map(|topic| world.nodes[0].keys.claim(topic)).collect();
        assert_eq!(before, after, "ownership was frozen");
        for topic in TOPICS {
            assert!(world.nodes[0].state(topic).unwrap().1.iter().any(|known| known.0 == "outage"));
        }
    }
}

#[test]
fn node_that_was_away_alone_follows_the_others() {
    for seed in 0..6 {
        let mut world = World::new(seed, 3);
        world.settle();
        for number in 0..60 {
            world.random_write(number);
        }
        world.run(Duration::from_secs(1));
        world.set_connected(0, false);
        let long = if seed % 2 == 0 { 20 } else { 90 };
        world.run(Duration::from_secs(long));
        for number in 0..60 {
            world.random_write(number);
            world.step();
        }
        world.set_connected(0, true);
        world.run(Duration::from_secs(20));
        world.assert_equal(seed);
    }
}

#[test]
fn nodes_converge_after_faults() {
    for seed in seeds(5) {
        let mut world = World::new(seed, 4);
        world.settle();
        let mut dead = 0;
        for number in 0..400 {
            world.faults = 60;
            world.random_write(number);
            let at = world.rng.below(world.nodes.len());
            match world.rng.below(60) {
                0 => world.set_connected(at, false),
                1 => (0..world.nodes.len()).for_each(|at| world.set_connected(at, true)),
                2 => world.nodes[at].group = 1,
                3 => world.nodes.iter_mut().for_each(|node| node.group = 0),
                4 if dead < 2 => {
                    dead += usize::from(!world.nodes[at].is_dead);
                    world.kill(at);
                }
                5 if world.nodes.len() < 7 => world.join(64 << 20),
                6 => world.run(Duration::from_secs(7)),
                _ => {}
            }
            let time = STEP * u32::try_from(world.rng.below(10)).unwrap();
            world.run(time);
        }
        world.faults = 0;
        world.nodes.iter_mut().for_each(|node| node.group = 0);
        (0..world.nodes.len()).for_each(|at| world.set_connected(at, true));
        world.run(Duration::from_secs(45));
        world.assert_equal(seed);
        assert!(world.acknowledged.len() > 100, "{}", world.acknowledged.len());
    }
}

#[test]
fn malformed_messages_change_nothing() {
    let mut world = World::new(1, 2);
    world.settle();
    (0..40).for_each(|number| world.random_write(number));
    world.run(Duration::from_secs(1));
    let before: Vec<_> = TOPICS.iter().map(|topic| world.nodes[0].state(topic)).collect();
    let kinds = [
        MessageKind::KeyChanges,
        MessageKind::KeyCatalogue,
        MessageKind::KeyRequest,
        MessageKind::KeyState,
        MessageKind::KeyWrite,
        MessageKind::KeyResult,
    ];
    let from = world.nodes[1].id;
    for kind in kinds {
        for length in 0..600 {
            let mut body = world.rng.bytes(length % 60);
            // A message number, and zeros: empty names and counts.
            body.resize(body.len() + length / 10, 0);
            let sent = Sent::default();
            world.nodes[0].replicator.receive(from, kind, &body, &sent, world.now);
        }
    }
    world.run(Duration::from_secs(10));
    let after: Vec<_> = TOPICS.iter().map(|topic| world.nodes[0].state(topic)).collect();
    assert_eq!(before, after);
    assert_eq!(world.nodes[0].replicator.topics.len(), TOPICS.len());
    world.assert_equal(1);
}

#[test]
fn empty_topics_are_released_on_all_nodes() {
    let mut world = World::new(1, 3);
    world.settle();
    world.write(0, Submitted { topic: "a", key: "k".to_owned(), value: None }, None);
    world.write(1, Submitted { topic: "b", key: "k".to_owned(), value: None }, None);
    world.run(Duration::from_secs(1));
    assert_eq!(world.acknowledged.len(), 2, "nothing has changed");
    for node in &world.nodes {
        assert_eq!((node.keys.claim("a"), node.keys.claim("b")), (None, None));
        assert!(node.state("a").is_none());
    }
}

#[test]
fn replica_that_does_not_fit_is_refused_until_there_is_memory() {
    let mut world = World::new(1, 2);
    world.settle();
    for number in 0..40 {
        world.write(0, set("a", &format!("k{number}"), &"x".repeat(1_000)), None);
    }
    world.run(Duration::from_secs(1));
    world.join(16 << 10);
    world.settle();
    let late = &world.nodes[2];
    let problem = late.keys.check_ready("a").unwrap_err();
    assert!(problem.code == code::STORE && problem.text.contains("max_keyed_memory"), "{problem:?}");
    assert!(late.state("a").unwrap().1.is_empty() && late.keys.check_ready("b").is_ok());
    assert_eq!(late.keys.counters.refused.load(Ordering::Relaxed), 1);
    // Its writes reach the owner.
    for number in 0..39 {
        let key = format!("k{number}");
        world.write(2, Submitted { topic: "a", key, value: None }, None);
    }
    world.run(Duration::from_secs(1));
    assert_eq!((world.acknowledged.len(), world.failed.len()), (79, 0));
    assert!(world.nodes[2].keys.check_ready("a").is_err());
    world.run(Duration::from_secs(11));
    assert!(world.nodes[2].keys.check_ready("a").is_ok());
    world.assert_equal(1);
}
