//! Durable keys of a cluster whose processes are killed.

#[cfg(any(feature = "nats", feature = "redis"))]
pub(super) mod failures;

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply};

use super::broker::{FakeBroker, WireProtocol};
use crate::config::Directory;
use crate::support::{Running, parsed, until};

/// Nodes with a directory each.
struct DurableNodes {
    url: String,
    directory: Directory,
    nodes: Vec<Option<Running>>,
    /// Options of all nodes.
    more: Vec<&'static str>,
}

impl DurableNodes {
    fn start(url: String, count: usize) -> Self {
        Self::start_with(url, count, &[])
    }

    fn start_with(url: String, count: usize, more: &[&'static str]) -> Self {
        let nodes = (0..count).map(|_| None).collect();
        let mut all = Self { url, directory: Directory::new(), nodes, more: more.to_vec() };
        (0..count).for_each(|at| all.start_node(at));
        all.wait_until_known();
        all
    }

    fn wait_until_known(&self) {
        let known = format!("\nsinews_cluster_nodes {}\n", self.nodes.len());
        for node in self.nodes.iter().flatten() {
            until("all nodes are known", || node.get("/metrics").contains(&known));
        }
    }

    fn start_node(&mut self, at: usize) {
        let streams = self.directory.path(&format!("streams{at}"));
        let arguments = ["--cluster", &self.url, "--streams", &streams, "--log", "error"];
        let keyed = ["--streams-durable-keys", "t.>"];
        self.nodes[at] = Some(Running::serve(&[&arguments[..], &keyed, &self.more].concat()));
    }

    fn node(&self, at: usize) -> &Running {
        self.nodes[at].as_ref().unwrap()
    }

    /// Kills the process with SIGKILL.
    fn kill(&mut self, at: usize) {
        self.nodes[at] = None;
    }

    fn owner(&self) -> usize {
        let owns = |node: &Option<Running>| {
            let metrics = node.as_ref().map(|node| node.get("/metrics"));
            metrics.is_some_and(|metrics| metrics.contains("\nsinews_cluster_keys_owned 1\n"))
        };
        let mut owner = None;
        // On a busy machine, another node may just take over.
        until("a node owns the topic", || {
            owner = self.nodes.iter().position(owns);
            owner.is_some()
        });
        owner.unwrap()
    }

    /// Writes a key as soon as a node owns the topic.
    fn put_when_owned(&self, at: usize, path: &str, value: &str) -> Value {
        let mut written = Value::Null;
        until("the write is accepted", || {
            let (status, body) = put(self.node(at), path, value, "");
            written = body;
            status == 200
        });
        written
    }
}

/// As [`put`], until a node that owns the topic answers.
fn put_settled(node: &Running, path: &str, value: &str, condition: &str) -> (u16, Value) {
    let mut settled = (503, Value::Null);
    until("the owner answers", || {
        settled = put(node, path, value, condition);
        settled.0 != 503
    });
    settled
}

fn put(node: &Running, path: &str, value: &str, condition: &str) -> (u16, Value) {
    let head = format!("PUT /topics/{path} HTTP/1.1\r\nContent-Type: application/json{condition}");
    parsed(&node.request(&head, value))
}

/// The keys and their values; `None` if they cannot be read yet.
fn keys(node: &Running, topic: &str) -> Option<Vec<(String, Value)>> {
    let (status, page) = parsed(&node.get(&format!("/topics/{topic}/keys")));
    let keys = page["keys"].as_array().filter(|_| status == 200)?;
    Some(keys.iter().map(|key| (key["key"].as_str().unwrap().to_owned(), key["data"].clone())).collect())
}

fn restart_of_all_nodes(protocol: WireProtocol, order: [usize; 2], more: &[&'static str]) {
    let broker = FakeBroker::start(protocol);
    let mut nodes = DurableNodes::start_with(broker.url(), 2, more);
    let lock = nodes.put_when_owned(0, "t.a/keys/lock", "\"anna\"");
    let counter = nodes.put_when_owned(1, "t.a/keys/counter", "1");
    nodes.put_when_owned(1, "t.a/keys/gone", "1");
    until("the key is deleted", || {
        parsed(&nodes.node(0).request("DELETE /topics/t.a/keys/gone HTTP/1.1", "")).0 == 200
    });
    // In memory only: not within the pattern.
    nodes.put_when_owned(0, "other/keys/k", "1");
    // The last write is acknowledged, and at once all processes are gone.
    nodes.put_when_owned(0, "t.a/keys/last", "true");
    (0..2).for_each(|at| nodes.kill(at));
    for at in order {
        nodes.start_node(at);
        thread::park_timeout(Duration::from_millis(300));
    }
    nodes.put_when_owned(order[0], "t.a/keys/after", "2");
    let expected =
        [("after", json!(2)), ("counter", json!(1)), ("last", json!(true)), ("lock", json!("anna"))]
            .map(|(key, value)| (key.to_owned(), value));
    for at in 0..2 {
        until("it has all keys", || keys(nodes.node(at), "t.a").is_some_and(|keys| keys == expected));
        until("it has the other topic", || keys(nodes.node(at), "other") == Some(Vec::new()));
        // Conditions hold over the restart.
        let (status, body) = put_settled(nodes.node(at), "t.a/keys/lock", "\"ben\"", "\r\nIf-None-Match: *");
        assert_eq!(status, 412, "{body}");
        let version = format!("\r\nIf-Match: \"{}-{}\"", lock["epoch"], lock["seq"]);
        let (status, _) = put_settled(nodes.node(at), "t.a/keys/lock", "\"ben\"", &version);
        assert_eq!(status, 412, "the epoch is another one");
    }
    let version = counter["seq"].as_u64().unwrap();
    let mut socket = nodes.node(0).websocket("/ws");
    let set =
        json!({ "op": "set", "id": 1, "topic": "t.a", "key": "counter", "data": 2, "version": version });
    socket.send(&Frame::text(set.to_string()));
    let reply = loop {
        let Some(Reply::Message(_, payload)) = socket.next() else { panic!("the socket has ended") };
        let reply: Value = serde_json::from_slice(&payload).unwrap();
        if reply["id"] == 1 {
            break reply;
        }
    };
    assert!(reply["op"] == "ack" && reply["seq"].as_u64() > counter["seq"].as_u64(), "{reply}");
}

/// Options of durable topics at a broker.
#[cfg(feature = "nats")]
const TOPICS: [&str; 4] = ["--store", "nats://127.0.0.1:1", "--streams-durable-topics", "stored.>"];

sinews_testkit::tests! {
    durable_keys_survive_sigkill_of_all_nodes_at_nats =>
        restart_of_all_nodes(WireProtocol::Nats, [0, 1], &[]);
    // One cluster has durable keys, and durable topics at a broker.
    #[cfg(feature = "nats")] durable_keys_survive_sigkill_of_all_nodes_beside_durable_topics_at_a_broker =>
        restart_of_all_nodes(WireProtocol::Nats, [1, 0], &TOPICS);
    durable_keys_survive_sigkill_of_all_nodes_at_redis =>
        restart_of_all_nodes(WireProtocol::Redis, [1, 0], &[]);
    durable_keys_survive_sigkill_of_the_owner_at_nats => end_of_the_owner(WireProtocol::Nats);
    durable_keys_survive_sigkill_of_the_owner_at_redis => end_of_the_owner(WireProtocol::Redis);
}

/// Each acknowledged write survives, also the one after which the owner is killed at once.
fn end_of_the_owner(protocol: WireProtocol) {
    let broker = FakeBroker::start(protocol);
    let mut nodes = DurableNodes::start(broker.url(), 3);
    nodes.put_when_owned(0, "t.a/keys/first", "1");
    let owner = nodes.owner();
    let mut expected = vec!["first".to_owned()];
    for number in 0..60 {
        let key = format!("k{number:02}");
        // The last one is a write at the owner.
        let at = if number == 59 { owner } else { number % 3 };
        nodes.put_when_owned(at, &format!("t.a/keys/{key}"), "1");
        expected.push(key);
    }
    nodes.kill(owner);
    let left = (owner + 1) % 3;
    nodes.put_when_owned(left, "t.a/keys/later", "1");
    expected.push("later".to_owned());
    expected.sort_unstable();
    nodes.start_node(owner);
    for at in 0..3 {
        let names = |keys: Vec<(String, Value)>| keys.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        until("it has all keys", || keys(nodes.node(at), "t.a").is_some_and(|keys| names(keys) == expected));
    }
}

/// Writes during an outage of the broker are on the disk of the owner, which is killed meanwhile.
#[test]
fn durable_keys_of_an_outage_survive_sigkill_of_the_owner() {
    for protocol in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(protocol);
        let mut nodes = DurableNodes::start(broker.url(), 2);
        nodes.put_when_owned(0, "t.a/keys/k", "1");
        let owner = nodes.owner();
        until("the replica has the key", || {
            keys(nodes.node(1 - owner), "t.a").is_some_and(|keys| keys.len() == 1)
        });
        broker.go_down();
        until("the outage is noticed", || !nodes.node(owner).get("/readyz").starts_with("HTTP/1.1 200 "));
        let written = nodes.put_when_owned(owner, "t.a/keys/k", "2");
        assert_eq!(written["cluster"], false);
        nodes.kill(owner);
        nodes.start_node(owner);
        broker.come_up();
        nodes.put_when_owned(1 - owner, "t.a/keys/after", "1");
        for at in 0..2 {
            let expected = [("after".to_owned(), json!(1)), ("k".to_owned(), json!(2))];
            until("it has the key of the outage", || {
                keys(nodes.node(at), "t.a").is_some_and(|keys| keys == expected)
            });
        }
    }
}

/// The membership and the first topic have a stream each; the limit permits no third one.
#[test]
fn keys_beyond_the_limit_of_streams_are_counted() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let arguments = ["--cluster", &broker.url(), "--streams", "$DIR/streams", "--streams-max-streams", "2"];
    let node = Running::serve(&[&arguments[..], &["--streams-durable-keys", "t.>", "--log", "off"]].concat());
    let metric = |name: &str| node.get("/metrics").contains(&format!("\nsinews_durable_{name}\n"));
    until("the first topic is stored", || put(&node, "t.a/keys/k", "1", "").0 == 200);
    let (status, body) = put(&node, "t.b/keys/k", "1", "");
    assert_eq!(status, 503, "{body}");
    assert!(body.to_string().contains("max_streams"), "{body}");
    assert!(metric("keys_unstored{cause=\"limit\"} 1"), "{}", node.get("/metrics"));
    assert!(metric("key_writes_rejected_total{cause=\"limit\"} 1"), "{}", node.get("/metrics"));
    assert_eq!(put(&node, "t.b/keys/k", "2", "").0, 503);
    assert!(metric("key_writes_rejected_total{cause=\"limit\"} 2"), "{}", node.get("/metrics"));
    assert!(metric("key_writes_rejected_total{cause=\"no_space\"} 0"), "{}", node.get("/metrics"));
}
