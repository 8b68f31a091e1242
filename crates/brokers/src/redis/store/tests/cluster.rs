//! Redis Cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sinews_store::{KeyCommand, KeyCommands, KeyLimits, KeyOutcome, ReadKeys};

use super::server::{TestRedis, free_port};
use super::*;
use crate::redis::store::names::{PARTITIONS, partition, slot};

/// Three primaries, and perhaps a replica of the first one.
struct TestCluster {
    servers: Vec<TestRedis>,
    ids: Vec<String>,
}

impl TestCluster {
    fn start(count: usize) -> Option<Self> {
        let start = || {
            let port = free_port().to_string();
            let arguments =
                ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-port", &port];
            TestRedis::start(&[&arguments[..], &["--repl-diskless-sync-delay", "0"]].concat())
        };
        let servers: Vec<TestRedis> = std::iter::repeat_with(start).take(count).collect::<Option<_>>()?;
        let ids = servers.iter().map(|server| server.run("CLUSTER MYID")).collect();
        for (number, server) in servers.iter().enumerate() {
            let _: String = server.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            if number < 3 {
                let (first, last) = (number * 16_384 / 3, (number + 1) * 16_384 / 3 - 1);
                let _: String = server.run(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
            let bus: Vec<String> = servers[0].run("CONFIG GET cluster-port");
            let _: String = server.run(&format!("CLUSTER MEET 127.0.0.1 {} {}", servers[0].port, bus[1]));
        }
        let cluster = Self { servers, ids };
        cluster.until_all("the cluster is up", |server| {
            server.run::<String>("CLUSTER INFO").contains("cluster_state:ok")
        });
        cluster.until_all("all know all", |server| {
            server.run::<String>("CLUSTER INFO").contains(&format!("cluster_known_nodes:{count}"))
        });
        for replica in &cluster.servers[3..] {
            until("it is a replica", || {
                replica.try_run::<String>(&format!("CLUSTER REPLICATE {}", cluster.ids[0])).is_ok()
            });
            until("it replicates", || replica.info("master_link_status") == "up");
        }
        Some(cluster)
    }

    fn until_all(&self, what: &str, is_so: impl Fn(&TestRedis) -> bool) {
        until(what, || self.servers.iter().all(&is_so));
    }

    fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", self.servers[1].port)
    }

    fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let _: String = self.servers[to].run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.ids[from]));
        let _: String = self.servers[from].run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.ids[to]));
    }

    fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.servers[to].port;
        let _: String = self.servers[from].run(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
    }

    /// Moves a slot, key by key, as a resharding does.
    fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        loop {
            let keys: Vec<String> = self.servers[from].run(&format!("CLUSTER GETKEYSINSLOT {slot} 3"));
            if keys.is_empty() {
                break;
            }
            keys.iter().for_each(|key| self.move_key(key, from, to));
        }
        for server in [to, from] {
            let _: String =
                self.servers[server].run(&format!("CLUSTER SETSLOT {slot} NODE {}", self.ids[to]));
        }
    }
}

fn set_key(node: &StoreNode, topic: &str, value: &str) -> Result<KeyOutcome, StoreError> {
    let key = KeyCommand {
        key: "k".into(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        ttl: None,
        condition: None,
        once: None,
    };
    let limits = KeyLimits { keys: 9, bytes: 99 };
    wait(node.store.write_keys(KeyCommands { topic: topic.into(), writes: vec![key], limits }))
        .map(|written| written.outcomes[0])
}

/// A topic in each partition.
fn topics() -> Vec<String> {
    let mut topics = BTreeMap::new();
    for topic in (0..2000).map(|number| format!("t{number}.x")) {
        topics.entry(partition(&topic)).or_insert(topic);
    }
    assert_eq!(topics.len(), PARTITIONS as usize);
    topics.into_values().collect()
}

/// Acknowledged writes of a topic.
#[derive(Default)]
struct AckedWrites {
    messages: BTreeMap<u64, String>,
    key: Option<(u64, String)>,
    failures: usize,
}

/// Writes until told to stop, and returns what was acknowledged.
fn write_until(node: &StoreNode, topics: &[String], is_over: &AtomicBool) -> BTreeMap<String, AckedWrites> {
    let mut acked: BTreeMap<String, AckedWrites> = BTreeMap::new();
    for round in 0.. {
        for topic in topics {
            let (writes, payload) = (acked.entry(topic.clone()).or_default(), round.to_string());
            match node.append(topic, &payload) {
                Ok(appended) => {
                    let other = writes.messages.insert(appended.position.sequence, payload.clone());
                    assert_eq!(other, None, "{topic}: a sequence was used twice");
                }
                Err(StoreError::Away(_)) => writes.failures += 1,
                Err(error) => panic!("{topic}: {error}"),
            }
            match set_key(node, topic, &payload) {
                Ok(KeyOutcome::Changed(version)) => {
                    assert!(writes.key.as_ref().is_none_or(|(last, _)| version > *last), "{topic}");
                    writes.key = Some((version, payload));
                }
                Err(StoreError::Away(_)) => writes.failures += 1,
                other => panic!("{topic}: {other:?}"),
            }
        }
        if is_over.load(Ordering::SeqCst) {
            break;
        }
    }
    acked
}

fn assert_stored(node: &StoreNode, acked: &BTreeMap<String, AckedWrites>) {
    for (topic, writes) in acked {
        let entries = node.read_after(topic, 0).entries;
        let stored: BTreeMap<u64, String> = entries
            .iter()
            .map(|entry| (entry.sequence, String::from_utf8_lossy(&entry.payload).into_owned()))
            .collect();
        assert_eq!(stored, writes.messages, "{topic}");
        let chain = entries.iter().try_fold(0, |last, entry| (entry.prev == last).then_some(entry.sequence));
        assert!(chain.is_some(), "{topic}: {entries:?}");
        let keys = wait(node.store.read_keys(ReadKeys { topic: (&**topic).into(), cursor: None, limit: 9 }));
        let keys = keys.expect("it answers").keys;
        let stored = keys.first().map(|key| (key.version, key.value.clone().unwrap_or_default()));
        let stored = stored.map(|(version, value)| (version, String::from_utf8_lossy(&value).into_owned()));
        assert_eq!(stored, writes.key, "{topic}");
    }
}

#[test]
fn slots_move_during_writes_without_a_loss() {
    let Some(cluster) = TestCluster::start(3) else { return };
    let (node, follower) = (StoreNode::up(&cluster.url()), StoreNode::up(&cluster.url()));
    let topics = topics();
    for topic in &topics {
        follower.store.follow(&TopicPart::log(topic));
        follower.store.follow(&TopicPart::keys(topic));
    }
    follower.store.follow_pattern("*.x");
    until("all are followed", || {
        follower.count(|event| matches!(event, StoreEvent::Following(_))) > 2 * topics.len()
    });
    let is_over = AtomicBool::new(false);
    let acked = thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&node, &topics, &is_over));
        let own = (0..PARTITIONS).filter(|number| slot(*number) < 16_384 / 3);
        for number in own.take(8) {
            cluster.move_slot(slot(number), 0, 2);
        }
        is_over.store(true, Ordering::SeqCst);
        writer.join().expect("no panic")
    });
    node.wait_until_up();
    assert_stored(&node, &acked);
    let most = acked.values().map(|writes| writes.failures).max();
    println!("failed writes of a topic at most: {most:?}");
    // Announcements come from the new server.
    follower.wait_until_up();
    until("all are announced", || {
        for topic in &topics {
            let _ = node.append(topic, "last");
        }
        topics.iter().all(|topic| follower.announced(topic).iter().any(|entry| entry.payload == "last"))
    });
    assert!(node.append("only.pattern.x", "a").is_ok() && node.append("pattern.x", "a").is_ok());
    until("the pattern has its message", || follower.announced("pattern.x").len() == 1);
    assert!(follower.announced("only.pattern.x").is_empty(), "a part of a pattern has no dot");
}

#[test]
fn topic_that_is_at_two_servers_is_not_written() {
    let Some(cluster) = TestCluster::start(3) else { return };
    let node = StoreNode::up(&cluster.url());
    let topics = topics();
    let moved = topics.iter().filter(|topic| slot(partition(topic)) < 16_384 / 3);
    for (topic, part) in moved.zip(["keymeta", "keys", "version", "logmeta", "log"]) {
        let (appended, written) = (node.append(topic, "a"), set_key(&node, topic, "a"));
        assert!(appended.is_ok() && written.is_ok(), "{part}: {appended:?} {written:?}");
        let slot = slot(partition(topic));
        cluster.begin_move(slot, 0, 1);
        cluster.move_key(&node.store.shared.names.key(part, topic), 0, 1);
        let (appended, written) = (node.append(topic, "b"), set_key(&node, topic, "b"));
        let answer = if part.starts_with("log") { appended.map(drop) } else { written.map(drop) };
        assert!(
            matches!(&answer, Err(StoreError::Away(reason)) if reason.contains("moves")),
            "{part}: {answer:?}"
        );
        cluster.move_slot(slot, 0, 1);
        let mut appended = Err(StoreError::Busy);
        until("the new server is known", || {
            appended = node.append(topic, "c");
            appended.is_ok()
        });
        let entries = node.read_after(topic, 0).entries;
        assert_eq!(appended.map(|appended| appended.prev), Ok(entries[entries.len() - 2].sequence));
        let changed = set_key(&node, topic, "c");
        assert!(matches!(changed, Ok(KeyOutcome::Changed(_))), "{changed:?}");
    }
}

#[test]
fn replica_takes_over_from_a_killed_primary() {
    let Some(cluster) = TestCluster::start(4) else { return };
    let node = StoreNode::up(&cluster.url());
    let topics = topics();
    topics.iter().for_each(|topic| node.store.follow(&TopicPart::log(topic)));
    let is_over = AtomicBool::new(true);
    let acked = write_until(&node, &topics, &is_over);
    assert!(acked.values().all(|writes| writes.failures == 0));
    let offset = |server: &TestRedis| server.info("master_repl_offset");
    until("the replica has all", || offset(&cluster.servers[0]) == offset(&cluster.servers[3]));
    cluster.servers[0].signal("KILL");
    let name = format!("redis://127.0.0.1:{}", cluster.servers[0].port);
    until("it is away", || match node.store.health() {
        StoreHealth::Away { reason, .. } => reason.starts_with(&*name),
        _ => false,
    });
    let (up, away): (Vec<_>, Vec<_>) =
        topics.iter().partition(|topic| node.store.topic_health(topic).is_up());
    assert!(up.len() > 30 && away.len() > 10, "{} {}", up.len(), away.len());
    assert!(up.iter().any(|topic| node.append(topic, "meanwhile").is_ok()));
    node.wait_until_up();
    for topic in away {
        let last = acked[topic].messages.keys().last().copied().expect("a message");
        let next = node.append(topic, "next").expect("the replica is the primary");
        assert_eq!(next.prev, last, "{topic}");
        assert!(next.position.sequence > last + 1000, "another server skips sequences");
        until("it is announced", || node.announced(topic).iter().any(|entry| entry.payload == "next"));
    }
    assert_eq!(node.store.servers().len(), 3);
    assert!(!node.store.servers().iter().any(|server| *server.name == *name));
}

#[test]
fn rights_for_a_cluster_suffice() {
    let Some(cluster) = TestCluster::start(3) else { return };
    let rights = setup::documented_rights() + " " + &setup::documented_rights_for_clusters();
    for server in &cluster.servers {
        let _: String = server.run(&rights.replace("  ", " "));
    }
    let node = StoreNode::up(&cluster.url().replace("//", "//sinews:secret@"));
    node.store.follow_pattern("*.x");
    setup::use_all(&node);
    for server in &cluster.servers {
        assert_eq!(server.run::<Vec<redis::Value>>("ACL LOG"), [], "nothing was rejected");
    }
    assert_eq!(node.count(|event| matches!(event, StoreEvent::NotFollowing(..))), 0);
}
