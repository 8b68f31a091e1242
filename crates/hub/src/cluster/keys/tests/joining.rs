//! Nodes that join while an owner is dead or silent, and the other nodes do not know it yet.

use super::*;

/// What happens to a topic's owner.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Killed,
    /// Its process is stopped for this time.
    Stopped(Duration),
    /// It is cut off from the broker for this time.
    CutOff(Duration),
}

impl World {
    /// A world in which each topic has a lock.
    fn with_locks(seed: u64, nodes: usize) -> Self {
        let mut world = Self::new(seed, nodes);
        world.settle();
        for topic in TOPICS {
            world.write(0, set(topic, "lock", "first"), Some(KeyCondition::IfNew));
        }
        world.run(Duration::from_secs(1));
        assert_eq!(world.acknowledged.drain(..).count(), TOPICS.len());
        world
    }

    /// Takes all locks again at a node, which reads them meanwhile. Returns whether subscriptions no longer wait.
    fn check_locks(&mut self, at: usize) -> bool {
        for topic in TOPICS {
            self.write(at, set(topic, "lock", "second"), Some(KeyCondition::IfNew));
            self.assert_lock_if_read(at, topic);
        }
        self.nodes[at].keys.loading("a").is_none()
    }

    /// A topic with a lock is not read as empty: neither by a request, nor by a subscription.
    fn assert_lock_if_read(&self, at: usize, topic: &str) {
        let node = &self.nodes[at];
        let has_lock = node.state(topic).is_some_and(|(_, keys)| keys.iter().any(|key| key.0 == "lock"));
        let is_read = node.keys.check_ready(topic).is_ok() || node.keys.loading(topic).is_none();
        assert!(has_lock || !is_read, "{topic} is read as empty");
    }

    /// Lets nodes join after a topic's owner is lost, and uses the locks at these nodes until they work.
    fn join_without_owner(&mut self, owner: Owner, delay: Duration, joins: usize) {
        let claim = self.nodes[0].keys.claim("a").unwrap();
        let at = self.nodes.iter().position(|node| node.id.id == claim.owner).unwrap();
        let (lost, back) = match owner {
            Owner::Killed => (self.now, None),
            Owner::Stopped(time) | Owner::CutOff(time) => (self.now, Some(self.now + time)),
        };
        match owner {
            Owner::CutOff(_) => self.set_connected(at, false),
            _ => self.kill(at),
        }
        self.run(delay);
        let first = self.nodes.len();
        (0..joins).for_each(|_| self.join(64 << 20));
        let mut is_ready = false;
        while !is_ready || self.now < lost + NODE_TIMEOUT * 3 {
            assert!(
                self.now < lost + Duration::from_secs(30),
                "{owner:?} {delay:?}: the nodes are not ready"
            );
            if back.is_some_and(|back| self.now >= back) {
                self.nodes[at].is_dead = false;
                self.set_connected(at, true);
            }
            self.run(STEP * 5);
            is_ready = (first..first + joins).map(|joined| self.check_locks(joined)).fold(true, |a, b| a & b);
        }
        self.run(Duration::from_secs(4));
        assert!(self.acknowledged.is_empty(), "{owner:?} {delay:?}: {:?}", self.acknowledged[0].2);
        let codes = [code::CONDITION, code::STORE];
        assert!(self.failed.iter().all(|(_, _, problem)| codes.contains(&problem.code)));
        let last = &self.failed.last().unwrap().2;
        assert_eq!(last.code, code::CONDITION, "{}", last.text);
        self.assert_equal(0);
    }
}

#[test]
fn node_that_joins_after_the_death_of_an_owner_grants_no_lock_again() {
    for (seed, delay) in (0..).zip([0, 300, 1_000, 2_500, 4_800].map(Duration::from_millis)) {
        for (nodes, joins) in [(2, 1), (3, 1), (3, 2), (2, 3)] {
            let mut world = World::with_locks(seed, nodes);
            world.join_without_owner(Owner::Killed, delay, joins);
        }
    }
}

#[test]
fn node_that_joins_while_an_owner_is_stopped_grants_no_lock_again() {
    for (seed, delay) in (0..).zip([0, 300, 2_000].map(Duration::from_millis)) {
        for time in [3, 4, 7].map(Duration::from_secs) {
            World::with_locks(seed, 3).join_without_owner(Owner::Stopped(time), delay, 1);
        }
    }
}

#[test]
fn node_that_joins_while_an_owner_is_cut_off_grants_no_lock_again() {
    for (seed, delay) in (0..).zip([0, 300, 2_000].map(Duration::from_millis)) {
        for time in [3, 4, 7].map(Duration::from_secs) {
            World::with_locks(seed, 3).join_without_owner(Owner::CutOff(time), delay, 1);
        }
    }
}

/// The other nodes have reconnected, and wait for the owner longer than for a silent node.
#[test]
fn node_that_joins_after_an_outage_grants_no_lock_of_an_owner_that_returns_later() {
    for seed in 0..4 {
        let mut world = World::with_locks(seed, 3);
        let claim = world.nodes[0].keys.claim("a").unwrap();
        let owner = world.nodes.iter().position(|node| node.id.id == claim.owner).unwrap();
        (0..3).for_each(|at| world.set_connected(at, false));
        world.run(Duration::from_secs(8));
        (0..3).filter(|at| *at != owner).for_each(|at| world.set_connected(at, true));
        world.run(Duration::from_secs(1));
        world.join(64 << 20);
        let end = world.now + RETURN_TIME - Duration::from_secs(2);
        while world.now < end {
            world.run(STEP * 5);
            world.check_locks(3);
        }
        world.set_connected(owner, true);
        while !world.check_locks(3) {
            world.run(STEP * 5);
        }
        world.run(Duration::from_secs(4));
        assert!(world.acknowledged.is_empty(), "seed {seed}");
        world.assert_equal(seed);
    }
}

/// Another node joins and dies while this one is cut off.
#[test]
fn node_that_returns_claims_no_topic_of_an_owner_that_it_has_not_seen() {
    for seed in 0..6 {
        let mut world = World::new(seed, 3);
        world.settle();
        world.set_connected(0, false);
        world.run(Duration::from_secs(1));
        world.join(64 << 20);
        world.settle();
        let joined = world.nodes[3].id.id;
        for topic in TOPICS {
            world.write(3, set(topic, "lock", "first"), Some(KeyCondition::IfNew));
        }
        world.run(Duration::from_secs(1));
        assert_eq!(world.acknowledged.drain(..).count(), TOPICS.len());
        world.kill(3);
        world.set_connected(0, true);
        for _ in 0..150 {
            world.run(STEP * 5);
            for topic in TOPICS {
                world.write(0, set(topic, "lock", "second"), Some(KeyCondition::IfNew));
            }
        }
        world.run(Duration::from_secs(4));
        assert!(world.acknowledged.is_empty(), "seed {seed}: {joined:x}");
        world.assert_equal(seed);
    }
}

/// An owner that this node knows claims topics while this node is cut off for a short time, and dies.
#[test]
fn node_that_returns_soon_claims_no_topic_that_a_dead_owner_has_claimed_meanwhile() {
    for seed in 0..24 {
        let mut world = World::new(seed, 3);
        world.settle();
        world.set_connected(0, false);
        world.run(Duration::from_secs(1));
        for topic in TOPICS {
            world.write(1, set(topic, "lock", "first"), Some(KeyCondition::IfNew));
        }
        world.run(Duration::from_secs(1));
        let owner = world.nodes[1].id.id;
        let owned: Vec<&str> = TOPICS
            .into_iter()
            .filter(|topic| world.nodes[2].keys.claim(topic).is_some_and(|claim| claim.owner == owner))
            .collect();
        world.acknowledged.clear();
        // Just before the other node's login, or just behind it.
        let before = STEP * u32::try_from(seed % 4 * 3).unwrap();
        if seed % 2 == 0 {
            world.kill(1);
            world.run(before);
            world.set_connected(0, true);
        } else {
            world.set_connected(0, true);
            world.run(before);
            world.kill(1);
        }
        for _ in 0..200 {
            world.run(STEP * 3);
            for topic in &owned {
                world.write(0, set(topic, "lock", "second"), Some(KeyCondition::IfNew));
                world.assert_lock_if_read(0, topic);
            }
        }
        world.run(Duration::from_secs(4));
        let granted = world.acknowledged.iter().find(|(_, submitted, _)| owned.contains(&submitted.topic));
        assert!(granted.is_none(), "seed {seed}: {:?}", granted.map(|granted| &granted.2));
        world.assert_equal(seed);
    }
}

#[test]
fn first_node_of_a_cluster_claims_topics_after_the_node_timeout() {
    let mut world = World::new(1, 1);
    world.run(NODE_TIMEOUT - STEP);
    let loading = world.nodes[0].keys.loading("a");
    assert!(loading.is_some() && !world.nodes[0].keys.is_loaded(), "a subscription waits");
    let problem = world.nodes[0].keys.check_ready("a").unwrap_err();
    assert!(problem.code == code::STORE && problem.text.contains("retry"), "{problem:?}");
    world.run(STEP * 2);
    assert!(world.nodes[0].keys.is_loaded());
    world.write(0, set("a", "k", "1"), None);
    world.run(Duration::from_secs(2));
    assert_eq!(world.acknowledged.len(), 1);
}

#[test]
fn short_outage_delays_no_claim() {
    for seed in 0..4 {
        let mut world = World::new(seed, 3);
        world.settle();
        (0..3).for_each(|at| world.set_connected(at, false));
        world.run(Duration::from_secs(3));
        (0..3).for_each(|at| world.set_connected(at, true));
        world.run(Duration::from_secs(2));
        TOPICS.into_iter().for_each(|topic| world.write(0, set(topic, "k", "1"), None));
        world.run(Duration::from_secs(1));
        assert_eq!((world.acknowledged.len(), world.failed.len()), (3, 0), "seed {seed}");
    }
}

#[test]
fn new_topics_are_claimed_while_a_node_joins() {
    for seed in 0..6 {
        let mut world = World::new(seed, 2);
        world.settle();
        world.join(64 << 20);
        world.run(Duration::from_millis(1_500));
        TOPICS.into_iter().for_each(|topic| world.write(0, set(topic, "k", "1"), None));
        world.run(Duration::from_secs(1));
        assert_eq!((world.acknowledged.len(), world.failed.len()), (3, 0), "seed {seed}");
    }
}

#[test]
fn nodes_that_see_other_nodes_for_ever_delay_a_node_for_a_while_only() {
    let mut world = World::new(1, 2);
    world.settle();
    // The second node hears a node that the joining one does not hear.
    world.join(64 << 20);
    world.settle();
    world.nodes[0].group = 1;
    world.run(Duration::from_secs(1));
    world.join(64 << 20);
    let joined = world.nodes.len() - 1;
    world.run(Duration::from_secs(40));
    assert!(world.nodes[joined].keys.is_loaded());
}
