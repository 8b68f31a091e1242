//! Order of one node's writes to one topic.

use super::*;

/// Returns three nodes, and a topic whose keys the first node owns or will own: the others pass writes to it. The last
/// one runs after the others.
fn roles(world: &World) -> (&'static str, [usize; 3]) {
    let owner = world.nodes[0].replicator.first_owner("a");
    let owner = world.nodes.iter().position(|node| node.id.id == owner).unwrap();
    let mut others = (0..3).filter(|node| *node != owner);
    ("a", [owner, others.next().unwrap(), others.next().unwrap()])
}

fn assert_last(world: &World, topic: &str, value: &str) {
    let result = world.failed.first().map(|failed| &failed.2);
    assert!(result.is_none(), "{result:?}");
    for node in &world.nodes {
        let keys = node.state(topic).unwrap().1;
        assert_eq!(keys[0].2.as_deref(), Some(value.as_bytes()), "{value}");
    }
}

#[test]
fn write_that_is_retried_does_not_overwrite_a_later_one() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3);
        world.settle();
        let (topic, [owner, _, writer]) = roles(&world);
        world.write(writer, set(topic, "k", "1"), None);
        world.step();
        // The owner rejects the first write, and accepts the second, which the node has sent meanwhile.
        world.nodes[owner].replicator.is_synced = false;
        world.write(writer, set(topic, "k", "2"), None);
        world.step();
        assert!(world.nodes[owner].replicator.is_synced);
        world.run(Duration::from_secs(1));
        assert_eq!(world.acknowledged.len(), 2);
        assert_last(&world, topic, "2");
        // Later writes are not delayed.
        world.write(writer, set(topic, "k", "3"), None);
        world.run(3 * STEP);
        assert_eq!(world.acknowledged.len(), 3);
        assert_last(&world, topic, "3");
    }
}

#[test]
fn write_to_a_new_owner_waits_for_those_to_the_last_owner() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3);
        world.settle();
        let (topic, [owner, successor, writer]) = roles(&world);
        world.write(writer, set(topic, "k", "0"), None);
        world.run(Duration::from_secs(1));
        assert_eq!(world.nodes[writer].keys.claim(topic).unwrap().owner, world.nodes[owner].id.id);
        world.nodes[successor].replicator.claim(&topic.into());
        world.write(writer, set(topic, "k", "1"), None);
        world.step();
        // Both nodes know the successor when the first write is at the last owner, and the second is not sent.
        world.write(writer, set(topic, "k", "2"), None);
        world.run(Duration::from_secs(1));
        assert_eq!(world.acknowledged.len(), 3);
        assert_last(&world, topic, "2");
    }
}
