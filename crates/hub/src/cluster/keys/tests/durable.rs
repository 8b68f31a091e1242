//! Simulations of nodes with durable keys, which are killed and started again with their directories.

use std::collections::BTreeSet;
use std::sync::Weak;

use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{Durability, Fsync, StreamConfig, Streams, StreamsConfig};
use tempfile::TempDir;

use super::*;
use crate::access::namespaces::order::PatternSet;
use crate::cluster::connection::OutputOffsets;
use crate::cluster::keys::wire::KeyDecoder;
use crate::streams::key_replicas::KeyReplicas;
use crate::topics::shared_keys::{ReplicaStore, SharedKeys};

/// The disk of a node.
pub(super) struct SimDisk {
    pub(super) replicas: Arc<KeyReplicas>,
    streams: Streams,
    directory: TempDir,
    /// Writes nothing.
    pub(super) is_stalled: bool,
    /// The broker's socket accepts nothing.
    pub(super) is_unsent: bool,
    output: OutputOffsets,
}

impl SimDisk {
    /// Sends earlier turns' output; this turn's output waits, so that some output always waits.
    pub(super) fn send_output(&mut self) -> OutputOffsets {
        if !self.is_unsent {
            self.output.sent = self.output.end;
        }
        self.output.end += 1;
        self.output
    }
}

impl SimNode {
    fn with_disk(mut self, directory: TempDir, streams_max: usize) -> Self {
        let config = StreamConfig::default().with_fsync(Fsync::Never);
        let replicas =
            Arc::new(KeyReplicas::new(PatternSet::from(vec![">".to_owned()]), &config, Arc::default()));
        let owners = Arc::downgrade(&self.keys) as Weak<dyn SharedKeys>;
        replicas.attach(self.publisher.clone(), owners);
        self.keys.set_store(Arc::clone(&replicas) as Arc<dyn ReplicaStore>);
        let limits = StreamsConfig::default().with_max_streams(streams_max);
        let (streams, _) = Streams::open(directory.path(), limits).unwrap();
        replicas.load(&streams);
        self.disk = Some(SimDisk {
            replicas,
            streams,
            directory,
            is_stalled: false,
            is_unsent: false,
            output: OutputOffsets::default(),
        });
        self
    }

    fn owns(&self, topic: &str) -> bool {
        self.keys.claim(topic).is_some_and(|claim| claim.owner == self.id.id)
    }
}

impl World {
    /// Nodes with durable keys that are in sync.
    fn durable(seed: u64, nodes: usize) -> Self {
        let mut world = Self::new(seed, nodes);
        world.nodes = std::mem::take(&mut world.nodes)
            .into_iter()
            .map(|node| node.with_disk(tempfile::tempdir().unwrap(), 100))
            .collect();
        world.run(Duration::from_secs(9));
        world
    }

    fn crash(&mut self, at: usize) {
        self.kill(at);
        self.nodes[at].disk.as_ref().unwrap().streams.close();
    }

    /// Starts a new process with a killed process's directory.
    fn restart(&mut self, at: usize) {
        let disk = self.nodes[at].disk.take().unwrap();
        let id = u128::from(self.rng.next_u64()) << 64 | 1;
        self.nodes[at] = SimNode::new(id, self.now, 64 << 20).with_disk(disk.directory, 100);
        self.noted.retain(|(node, _), _| *node != at);
    }

    fn restart_all(&mut self, order: &[usize], gap: Duration) {
        for at in order {
            self.restart(*at);
            self.run(gap);
        }
        // Announcements, claims, transfers.
        self.run(Duration::from_secs(12));
    }

    fn states(&self, at: usize) -> Vec<Vec<SeenKey>> {
        TOPICS.iter().map(|topic| self.nodes[at].state(topic).map_or(Vec::new(), |state| state.1)).collect()
    }

    fn owner(&self, topic: &str) -> usize {
        self.nodes.iter().position(|node| !node.is_dead && node.owns(topic)).unwrap()
    }

    /// Returns the result for a write that this node executes or forwards.
    fn result(
        &mut self,
        at: usize,
        submitted: Submitted,
        condition: Option<KeyCondition>,
    ) -> Result<KeyWritten, u16> {
        self.acknowledged.clear();
        self.failed.clear();
        self.write(at, submitted, condition);
        self.run(Duration::from_millis(3_500));
        match (self.acknowledged.pop(), self.failed.pop()) {
            (Some((.., written)), None) => Ok(written),
            (None, Some((.., problem))) => Err(problem.code),
            other => panic!("{:?}", other.1.map(|failed| failed.2)),
        }
    }
}

fn delete(topic: &'static str, key: &str) -> Submitted {
    Submitted { topic, key: key.to_owned(), value: None }
}

/// Sets many keys, so that a topic takes several messages, and removes some.
fn fill(world: &mut World, numbers: std::ops::Range<usize>) {
    for number in numbers {
        world.random_write(number);
        if number % 3 == 0 {
            world.step();
        }
    }
    world.run(Duration::from_secs(1));
}

#[test]
fn keys_survive_the_end_of_all_nodes_in_any_order_of_their_starts() {
    for (seed, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]].into_iter().enumerate() {
        let mut world = World::durable(seed as u64, 3);
        fill(&mut world, 0..120);
        // The nodes end one after the other, and know less and less of the last changes.
        world.crash(0);
        world.run(Duration::from_secs(12));
        fill(&mut world, 200..260);
        world.crash(1);
        world.run(Duration::from_secs(12));
        fill(&mut world, 300..360);
        world.failed.clear();
        let before = world.states(2);
        let claims = TOPICS.map(|topic| world.nodes[2].keys.claim(topic).unwrap());
        world.crash(2);
        world.restart_all(&order, Duration::from_secs(5));
        world.assert_equal(seed as u64);
        assert_eq!(world.states(0), before, "{order:?}");
        for (topic, claim) in TOPICS.iter().zip(claims) {
            let now = world.nodes[0].keys.claim(topic).unwrap();
            assert!(now.term > claim.term && now.epoch > claim.epoch, "{topic} {claim:?} {now:?}");
        }
        fill(&mut world, 400..430);
        assert!(world.failed.is_empty(), "{:?}", world.failed.first().map(|failed| &failed.2));
        world.assert_equal(seed as u64);
    }
}

#[test]
fn acknowledged_writes_survive_the_end_of_the_owner() {
    for seed in seeds(4) {
        let mut world = World::durable(seed, 3);
        for number in 0..90 {
            let node = world.rng.below(3);
            let topic = TOPICS[world.rng.below(3)];
            world.write(node, set(topic, &format!("w{number}"), "1"), None);
            world.step();
        }
        // Another write to each topic is on its way.
        let victim = world.owner("a");
        world.write(victim, set("a", "last", "1"), None);
        world.step();
        world.crash(victim);
        world.run(Duration::from_secs(15));
        let left = (victim + 1) % 3;
        let acknowledged: BTreeSet<(&str, String)> =
            world.acknowledged.iter().map(|(_, write, _)| (write.topic, write.key.clone())).collect();
        assert!(acknowledged.len() > 80, "{}", acknowledged.len());
        let survives = |world: &World| {
            for (topic, key) in &acknowledged {
                let state = world.nodes[left].state(topic).unwrap().1;
                assert!(state.iter().any(|known| known.0 == *key), "seed {seed} {topic} {key}");
            }
        };
        survives(&world);
        world.assert_equal(seed);
        // The returned process follows.
        world.restart(victim);
        world.run(Duration::from_secs(8));
        world.assert_equal(seed);
        survives(&world);
        assert!(!world.nodes[victim].owns("a"));
    }
}

#[test]
fn write_is_acknowledged_once_it_is_on_the_disk_of_the_owner() {
    let mut world = World::durable(1, 2);
    assert!(world.result(0, set("a", "k", "1"), None).is_ok());
    let owner = world.owner("a");
    for at in [owner, 1 - owner] {
        world.nodes[owner].disk.as_mut().unwrap().is_stalled = true;
        world.acknowledged.clear();
        world.write(at, set("a", "k", "2"), None);
        world.run(Duration::from_secs(1));
        assert!(world.acknowledged.is_empty() && world.failed.is_empty());
        world.nodes[owner].disk.as_mut().unwrap().is_stalled = false;
        world.run(Duration::from_millis(200));
        assert_eq!((world.acknowledged.len(), world.failed.len()), (1, 0));
    }
    // The kernel does not have the change for the broker yet.
    world.nodes[owner].disk.as_mut().unwrap().is_unsent = true;
    world.acknowledged.clear();
    world.write(owner, set("a", "k", "sent"), None);
    world.run(Duration::from_secs(1));
    assert!(world.acknowledged.is_empty() && world.failed.is_empty());
    world.nodes[owner].disk.as_mut().unwrap().is_unsent = false;
    world.run(Duration::from_millis(200));
    assert_eq!((world.acknowledged.len(), world.failed.len()), (1, 0));
    // A disk that does not answer.
    world.nodes[owner].disk.as_mut().unwrap().is_stalled = true;
    assert_eq!(world.result(owner, set("a", "k", "3"), None), Err(503));
    assert_eq!(world.result(1 - owner, set("a", "k", "4"), None), Err(503));
}

#[test]
fn node_without_space_rejects_writes_before_they_are_applied() {
    let mut world = World::new(1, 1);
    let node = world.nodes.pop().unwrap();
    // The node's stream is the only one.
    world.nodes.push(node.with_disk(tempfile::tempdir().unwrap(), 1));
    world.run(Duration::from_secs(5));
    assert_eq!(world.result(0, set("a", "k", "1"), None), Err(503));
    let before = world.nodes[0].state("a");
    assert_eq!(world.result(0, set("a", "k", "2"), None), Err(503));
    assert_eq!(world.nodes[0].state("a"), before);
}

#[test]
fn writes_during_an_outage_of_the_broker_survive_the_end_of_the_owner() {
    for seed in seeds(4) {
        let mut world = World::durable(seed, 3);
        fill(&mut world, 0..60);
        let owner = world.owner("a");
        (0..3).for_each(|at| world.set_connected(at, false));
        world.run(Duration::from_secs(2));
        world.acknowledged.clear();
        world.write(owner, set("a", "outage", "1"), None);
        world.write(owner, delete("a", "k0"), None);
        world.run(Duration::from_secs(1));
        assert_eq!(world.acknowledged.len(), 2);
        world.crash(owner);
        world.restart(owner);
        world.set_connected(owner, false);
        world.run(Duration::from_secs(2));
        for at in 0..3 {
            world.set_connected(at, true);
            world.run(Duration::from_millis(500));
        }
        world.run(Duration::from_secs(25));
        world.assert_equal(seed);
        let state = world.nodes[(owner + 1) % 3].state("a").unwrap().1;
        assert!(state.iter().any(|known| known.0 == "outage"), "seed {seed}");
        assert!(!state.iter().any(|known| known.0 == "k0"), "seed {seed}");
    }
}

#[test]
fn conditions_hold_over_a_restart_of_all_nodes() {
    for order in [[0, 1], [1, 0]] {
        let mut world = World::durable(7, 2);
        let first = world.result(0, set("a", "lock", "anna"), Some(KeyCondition::IfNew)).unwrap();
        world.result(1, set("a", "gone", "1"), None).unwrap();
        let removed = world.result(0, delete("a", "gone"), None).unwrap();
        [0, 1].into_iter().for_each(|at| world.crash(at));
        world.restart_all(&order, Duration::from_secs(1));
        assert_eq!(world.result(1, set("a", "lock", "ben"), Some(KeyCondition::IfNew)), Err(412));
        let version = first.position.sequence;
        // The position has another epoch now.
        let at = Some(KeyCondition::At(first.position));
        assert_eq!(world.result(1, set("a", "lock", "ben"), at), Err(412));
        let written = world.result(0, set("a", "lock", "ben"), Some(KeyCondition::Version(version))).unwrap();
        assert!(written.position.sequence > removed.position.sequence, "{written:?}");
        assert!(written.position.epoch > first.position.epoch);
        let version = Some(KeyCondition::Version(removed.position.sequence));
        assert_eq!(world.result(1, set("a", "gone", "2"), version), Err(412), "the key was removed");
        assert!(world.result(1, set("a", "gone", "2"), Some(KeyCondition::IfNew)).is_ok());
    }
}

#[test]
fn expired_key_does_not_return_after_a_restart() {
    let mut world = World::durable(3, 1);
    let node = &world.nodes[0];
    let publisher = node.publisher.clone();
    world.result(0, set("a", "stays", "1"), None).unwrap();
    let write = KeyWrite::set("short", "1").with_ttl(Duration::from_millis(30));
    assert!(publisher.write_key("a", &write).is_ok());
    world.run(Duration::from_millis(100));
    world.crash(0);
    // The time to live is that of the clock, which is not simulated.
    std::thread::sleep(Duration::from_millis(40));
    world.restart_all(&[0], Duration::from_secs(1));
    let publisher = world.nodes[0].publisher.clone();
    assert!(publisher.key("a", "short").is_none() && publisher.key("a", "stays").is_some());
}

#[test]
fn node_waits_for_the_nodes_that_it_has_seen_before_it_claims() {
    let mut world = World::durable(5, 2);
    world.result(0, set("a", "k", "1"), None).unwrap();
    [0, 1].into_iter().for_each(|at| world.crash(at));
    world.restart(0);
    world.run(Duration::from_secs(50));
    assert_eq!(world.result(0, set("a", "k", "2"), None), Err(503));
    // It waits for 60 s.
    world.run(Duration::from_secs(15));
    assert!(world.result(0, set("a", "k", "3"), None).is_ok());
    // Its own keys are newer than those on the node that returns too late.
    world.restart(1);
    world.run(Duration::from_secs(10));
    world.assert_equal(5);
    assert_eq!(world.states(1)[0][0].2.as_deref(), Some(&b"3"[..]));
    // The last one alone has all keys: it does not wait.
    world.crash(0);
    world.run(Duration::from_secs(12));
    world.result(1, set("a", "k", "4"), None).unwrap();
    world.crash(1);
    world.restart(1);
    world.run(Duration::from_secs(6));
    assert!(world.result(1, set("a", "k", "5"), None).is_ok());
}

#[test]
fn link_sleeps_while_restored_topics_wait_for_other_nodes() {
    let mut world = World::durable(5, 2);
    world.result(0, set("a", "k", "1"), None).unwrap();
    [0, 1].into_iter().for_each(|at| world.crash(at));
    world.restart(0);
    for _ in 0..40 {
        world.step();
        let replicator = &world.nodes[0].replicator;
        assert!(replicator.orphans.contains_key("a"));
        let due = replicator.next_due(world.now).unwrap();
        assert!(due > world.now, "synced: {}", replicator.is_synced);
    }
}

#[test]
fn node_that_cannot_read_the_stream_of_a_topic_never_owns_it() {
    let mut world = World::durable(9, 1);
    world.result(0, set("a", "k", "1"), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
    let stream = streams.create("*.replicas.a", &StreamConfig::default()).unwrap();
    let mut records = RecordBuilder::new();
    records.push(1, b"?", b"", ValueKind::Text).unwrap();
    stream.partition(0).unwrap().append(records.finish().unwrap()).unwrap().block(Durability::Disk).unwrap();
    streams.close();
    world.join(64 << 20);
    let node = world.nodes.pop().unwrap();
    world.nodes.push(node.with_disk(directory, 100));
    world.run(Duration::from_secs(5));
    world.assert_equal(9);
    // It has the keys in memory only.
    world.crash(0);
    world.run(Duration::from_secs(30));
    assert_eq!(world.states(1)[0].len(), 1);
    assert!(!world.nodes[1].owns("a"));
    world.restart(0);
    world.run(Duration::from_secs(12));
    assert_eq!(world.owner("a"), 0);
    assert!(world.result(1, set("a", "k", "2"), None).is_ok());
}

/// A broker that accepts one message.
#[derive(Default)]
struct SlowSender(Sent);

impl KeySender for SlowSender {
    fn send(&self, to: KeyTarget, kind: MessageKind, body: &[u8]) {
        self.0.send(to, kind, body);
    }

    fn waiting(&self) -> usize {
        if self.0.messages.borrow().is_empty() { 0 } else { usize::MAX }
    }

    fn max_payload(&self) -> usize {
        self.0.max_payload()
    }
}

#[test]
fn positions_of_many_topics_are_announced_in_several_turns() {
    let mut world = World::durable(5, 2);
    let names: BTreeSet<String> = (0..60).map(|number| format!("t{number}.{}", "x".repeat(180))).collect();
    for name in &names {
        world.write(0, set(name.clone().leak(), "k", "1"), None);
    }
    world.run(Duration::from_secs(1));
    [0, 1].into_iter().for_each(|at| world.crash(at));
    world.restart(0);
    // Every turn, until the other node is missing for too long.
    world.run(Duration::from_secs(65));
    let now = world.now;
    let replicator = &mut world.nodes[0].replicator;
    assert_eq!(replicator.orphans.len(), 0, "all topics are claimed");
    replicator.disconnected(now);
    replicator.connected(now);
    let topics: Vec<Arc<str>> = replicator.topics.keys().cloned().collect();
    topics.iter().for_each(|topic| replicator.orphan(topic, now));
    let mut announced = BTreeSet::new();
    loop {
        let sender = SlowSender::default();
        replicator.announce_positions(&sender);
        let messages = sender.0.messages.into_inner();
        assert_eq!(messages.len(), 1);
        let mut body = KeyDecoder(&messages[0].2);
        while let Some((topic, ..)) = body.catalogue_entry() {
            assert!(announced.insert(topic.to_owned()), "{topic} is announced twice");
        }
        if !replicator.has_output() {
            break;
        }
        assert!(
            !replicator.claims_durable(&topics[0], now - Duration::from_secs(10)),
            "not all are announced"
        );
    }
    assert_eq!(announced, names);
    assert!(replicator.claims_durable(&topics[0], now - Duration::from_secs(10)));
}

#[test]
fn owner_remains_when_a_node_returns_with_a_higher_claim() {
    let mut world = World::durable(6, 2);
    world.result(0, set("a", "old", "1"), None).unwrap();
    // Several claims.
    for _ in 0..2 {
        [0, 1].into_iter().for_each(|at| world.crash(at));
        world.restart_all(&[0, 1], Duration::from_secs(1));
    }
    [0, 1].into_iter().for_each(|at| world.crash(at));
    // A node with an empty directory, which has seen no other node.
    world.join(64 << 20);
    let node = world.nodes.pop().unwrap();
    world.nodes.push(node.with_disk(tempfile::tempdir().unwrap(), 100));
    world.run(Duration::from_secs(5));
    world.result(2, set("a", "new", "1"), None).unwrap();
    world.restart_all(&[1, 0], Duration::from_secs(2));
    world.assert_equal(6);
    let names: Vec<String> = world.states(0)[0].iter().map(|known| known.0.clone()).collect();
    assert_eq!(names, ["new"]);
}

#[test]
fn durable_topic_without_keys_remains_after_a_restart() {
    let mut world = World::durable(8, 2);
    world.result(0, set("a", "k", "1"), None).unwrap();
    let removed = world.result(1, delete("a", "k"), None).unwrap();
    // One node does not know that another key is removed.
    [0, 1].into_iter().for_each(|at| world.crash(at));
    world.restart_all(&[1, 0], Duration::from_secs(1));
    assert!(world.states(0)[0].is_empty());
    let written = world.result(0, set("a", "k", "2"), None).unwrap();
    assert!(written.position.sequence > removed.position.sequence, "{written:?}");
}

#[test]
fn durable_topics_without_changes_are_released() {
    let mut world = World::durable(1, 2);
    assert!(!world.result(0, delete("a", "k"), None).unwrap().changed);
    assert!(world.nodes.iter().all(|node| node.keys.claim("a").is_none() && node.state("a").is_none()));
}

#[test]
fn durable_keys_converge_after_faults_and_restarts() {
    for seed in seeds(3) {
        let mut world = World::durable(seed, 3);
        for number in 0..250 {
            world.faults = 40;
            world.random_write(number);
            let at = world.rng.below(3);
            match world.rng.below(50) {
                0 => world.set_connected(at, false),
                1 => (0..3).for_each(|at| world.set_connected(at, true)),
                2 if !world.nodes[at].is_dead => world.crash(at),
                3 | 4 if world.nodes[at].is_dead => world.restart(at),
                5 => world.run(Duration::from_secs(9)),
                _ => {}
            }
            let time = STEP * u32::try_from(world.rng.below(10)).unwrap();
            world.run(time);
        }
        world.faults = 0;
        for at in 0..3 {
            if world.nodes[at].is_dead {
                world.restart(at);
            }
            world.set_connected(at, true);
        }
        world.run(Duration::from_secs(90));
        world.assert_equal(seed);
        let before = world.states(0);
        (0..3).for_each(|at| world.crash(at));
        world.restart_all(&[2, 0, 1], Duration::from_secs(3));
        world.assert_equal(seed);
        assert_eq!(world.states(0), before, "seed {seed}");
        assert!(world.acknowledged.len() > 15, "{}", world.acknowledged.len());
    }
}
