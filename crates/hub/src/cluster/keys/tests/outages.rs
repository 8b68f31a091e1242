//! Nodes that are stopped, restarted or started while the broker is unreachable, and answers that do not arrive.

use std::cell::Cell;

use super::super::replicator::WAITING_MAX;
use super::super::wire::KeyStateRequest;
use super::*;

/// A world in which the node 0 owns a topic, and that topic.
fn world_with_owner(nodes: usize) -> (World, &'static str) {
    let worlds = (0..20).find_map(|seed| {
        let mut world = World::new(seed, nodes);
        world.settle();
        (0..60).for_each(|number| world.random_write(number));
        world.run(Duration::from_secs(1));
        let owner = world.nodes[0].id.id;
        let owns = |topic: &&str| world.nodes[0].keys.claim(topic).is_some_and(|claim| claim.owner == owner);
        let topic = TOPICS.into_iter().find(owns)?;
        Some((world, topic))
    });
    worlds.unwrap()
}

#[test]
fn deleted_keys_do_not_return_with_a_process_that_was_stopped() {
    let (mut world, topic) = world_with_owner(2);
    world.write(0, set(topic, "deleted", "1"), None);
    world.run(Duration::from_secs(1));
    let heard = world.now;
    world.nodes[0].is_dead = true;
    world.run(Duration::from_secs(9));
    let other = world.nodes[1].id.id;
    assert_eq!(world.nodes[1].keys.claim(topic).map(|claim| claim.owner), Some(other));
    // Its keys are deleted, and a minute later the other node has forgotten the topic: the clock of tables is a real
    // one.
    world.nodes[1].replicator.disown(&topic.into());
    world.run(Duration::from_secs(61));
    // The process continues, and notices the broker's silence.
    world.nodes[0].is_dead = false;
    world.set_connected_since(0, false, heard);
    world.run(Duration::from_millis(100));
    world.set_connected(0, true);
    world.run(Duration::from_secs(20));
    assert!(world.nodes.iter().all(|node| node.keys.claim(topic).is_none() && node.state(topic).is_none()));
}

#[test]
fn successor_process_of_an_outage_leaves_topics_to_owners_that_return_later() {
    let (mut world, topic) = world_with_owner(2);
    let before = world.nodes[0].keys.claim(topic);
    (0..2).for_each(|at| world.set_connected(at, false));
    world.run(Duration::from_secs(3));
    // A hot restart of the node 1.
    let (now, node) = (world.now, &mut world.nodes[1]);
    for topic in TOPICS {
        let claim = node.keys.claim(topic);
        claim.into_iter().for_each(|claim| node.keys.inherit(topic.to_owned(), claim));
    }
    node.replicator = KeyReplicator::new(node.id.id, node.publisher.clone(), Arc::clone(&node.keys));
    node.nodes = Nodes::default();
    node.replicator.serve(now);
    world.acknowledged.clear();
    world.write(0, set(topic, "outage", "1"), None);
    assert_eq!(world.acknowledged.len(), 1, "the owner accepts writes in an outage");
    // The node 0 returns at the last moment.
    world.set_connected(1, true);
    world.run(RETURN_TIME - Duration::from_secs(1));
    world.set_connected(0, true);
    world.run(Duration::from_secs(20));
    world.assert_equal(0);
    assert_eq!(world.nodes[1].keys.claim(topic), before);
    assert!(world.nodes[1].state(topic).unwrap().1.iter().any(|known| known.0 == "outage"));
}

/// A node starts, and its first attempt to connect fails.
fn join_in_outage(world: &mut World) {
    world.join(64 << 20);
    let (now, node) = (world.now, world.nodes.last_mut().unwrap());
    node.replicator = KeyReplicator::new(node.id.id, node.publisher.clone(), Arc::clone(&node.keys));
    node.replicator.serve(now);
    node.replicator.disconnected(now);
    node.outbox.close();
    node.is_connected = false;
}

#[test]
fn node_that_starts_in_an_outage_claims_no_topic_of_owners_that_return_later() {
    let mut world = World::new(1, 1);
    // The new node's clock is ten minutes behind: its claims would be older.
    let ahead = std::time::SystemTime::now() + Duration::from_secs(600);
    let ahead = ahead.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    world.nodes[0].replicator.last_epoch = u64::try_from(ahead).unwrap();
    world.settle();
    world.write(0, set("a", "old", "1"), None);
    world.run(Duration::from_secs(1));
    let before = world.nodes[0].keys.claim("a");
    world.set_connected(0, false);
    join_in_outage(&mut world);
    world.run(Duration::from_secs(5));
    world.set_connected(1, true);
    world.run(Duration::from_secs(2));
    world.write(1, set("a", "new", "1"), None);
    world.run(RETURN_TIME - Duration::from_secs(3));
    let (_, _, problem) = world.failed.pop().unwrap();
    assert!(problem.code == code::STORE && problem.text.contains("no node owns"), "{problem:?}");
    world.set_connected(0, true);
    world.run(Duration::from_secs(20));
    world.assert_equal(1);
    assert_eq!(world.nodes[1].keys.claim("a"), before);
    assert_eq!(world.nodes[1].state("a").unwrap().1.len(), 1);
    // Afterwards it claims topics that no node knows.
    for topic in ["b", "c"] {
        world.write(1, set(topic, "new", "1"), None);
    }
    world.run(Duration::from_secs(1));
    assert!(world.failed.is_empty() && world.nodes[0].state("b").is_some());
}

#[test]
fn node_whose_first_attempt_fails_without_an_outage_claims_new_topics() {
    let mut claimed = 0;
    for seed in 0..4 {
        let mut world = World::new(seed, 1);
        world.run(RETURN_TIME);
        join_in_outage(&mut world);
        world.set_connected(1, true);
        world.settle();
        for topic in TOPICS {
            world.write(1, set(topic, "new", "1"), None);
        }
        world.run(Duration::from_secs(1));
        assert_eq!((world.acknowledged.len(), world.failed.len()), (3, 0), "seed {seed}");
        let owner = world.nodes[1].id.id;
        let owners = TOPICS.into_iter().filter_map(|topic| world.nodes[1].keys.claim(topic));
        claimed += owners.filter(|claim| claim.owner == owner).count();
    }
    assert!(claimed > 0);
}

#[test]
fn value_that_exceeds_the_largest_message_leaves_a_node_without_this_topic_alone() {
    let mut world = World::new(1, 1);
    world.settle();
    world.write(0, set("a", "large", &"L".repeat(5_000)), None);
    world.write(0, set("b", "small", "1"), None);
    world.run(Duration::from_secs(1));
    world.join(64 << 20);
    world.run(Duration::from_secs(8));
    assert!(!world.nodes[1].keys.is_loaded());
    world.run(Duration::from_secs(5));
    let late = &world.nodes[1];
    assert!(late.keys.is_loaded() && late.keys.check_ready("b").is_ok());
    let problem = late.keys.check_ready("a").unwrap_err();
    assert!(problem.code == code::STORE && problem.text.contains("largest message"), "{problem:?}");
    assert_eq!(late.keys.counters.refused.load(Ordering::Relaxed), 1);
    world.write(0, set("a", "large", "1"), None);
    world.run(Duration::from_secs(15));
    assert!(world.nodes[1].keys.check_ready("a").is_ok());
    world.assert_equal(1);
}

/// A broker that accepts no more bytes after it was looked at some times.
struct SlowBroker {
    sent: Sent,
    looks: Cell<u32>,
}

impl KeySender for SlowBroker {
    fn send(&self, to: KeyTarget, kind: MessageKind, body: &[u8]) {
        self.sent.send(to, kind, body);
    }

    fn waiting(&self) -> usize {
        let looks = self.looks.get();
        self.looks.set(looks.saturating_sub(1));
        if looks > 0 { 0 } else { WAITING_MAX + 1 }
    }

    fn max_payload(&self) -> usize {
        self.sent.max_payload()
    }
}

#[test]
fn topic_that_is_claimed_while_a_catalogue_waits_stays_at_other_nodes() {
    let (mut world, _) = world_with_owner(2);
    let (now, other) = (world.now, world.nodes[1].id);
    // The broker is slow when the catalogue's topics are collected.
    let slow = SlowBroker { sent: Sent::default(), looks: Cell::new(2) };
    let node = &mut world.nodes[0];
    let request = KeyStateRequest::Catalogue.encode();
    node.replicator.receive(other, MessageKind::KeyRequest, &request, &slow, now);
    node.replicator.run_transfers(&slow, now);
    let new: Arc<str> = "new".into();
    assert!(node.replicator.claim(&new));
    node.publisher.write_key("new", &KeyWrite::set("k", "1")).unwrap();
    world.post(0, slow.sent);
    world.run(Duration::from_secs(20));
    let state = world.nodes[0].state("new");
    assert!(state.is_some() && world.nodes[1].state("new") == state);
}
