//! Keys of topics, shared by all nodes.

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};
use sinews_hub::{Hub, key_value_of_json};
use sinews_server::{KeyCondition, KeyError, KeyWrite, Router, Server};
use sinews_testkit::assert_fields;

use super::{Client, TestPeer, for_both, options, parse};
use crate::support::block_on;
use crate::support::fake_broker::{FakeBroker, WireProtocol};

/// Nodes that know each other, with the keys of all of them.
fn peers<const N: usize>(broker: &FakeBroker) -> [TestPeer; N] {
    let nodes = [(); N].map(|()| TestPeer::start(broker));
    for node in &nodes {
        node.until("all are known", |node| node.metric("sinews_cluster_nodes") == N as u64);
        node.until("ready", TestPeer::is_ready);
    }
    nodes
}

/// Tests with both protocols and this many nodes.
fn for_both_with<const N: usize>(test: impl Fn(FakeBroker, [TestPeer; N]) + Sync) {
    for_both(|broker| {
        let nodes = peers(&broker);
        test(broker, nodes);
    });
}

impl TestPeer {
    /// Writes a key until a node owns its topic; the status and the body of the answer.
    fn put(&self, path: &str, lines: &str, value: &str) -> (u16, Value) {
        let lines = format!("Content-Type: application/json\r\n{lines}");
        let (status, body) = self.request_with(&format!("PUT /topics/{path}"), &lines, value.as_bytes());
        (status, serde_json::from_str(&body).unwrap_or_else(|_| json!(body)))
    }

    fn set(&self, path: &str, value: &str) -> Value {
        let (status, body) = self.put(path, "", value);
        assert_eq!(status, 200, "{body}");
        body
    }

    fn keys(&self, topic: &str) -> Value {
        let (status, answer) = self.request(&format!("GET /topics/{topic}/keys"), b"");
        assert_eq!(status, 200, "{answer}");
        parse(&answer)
    }

    fn keys_subscriber(&self, topic: &str) -> Client {
        let mut client = self.client();
        client.request(&json!({ "op": "subscribe", "topic": topic, "keys": true, "id": 1 }));
        client
    }

    fn wait_for_keys(&self, topic: &str, names: &[&str]) {
        self.until("the keys are known", |node| names_of(&node.keys(topic)["keys"]) == names);
    }
}

fn names_of(keys: &Value) -> Vec<&str> {
    keys.as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap()).collect()
}

/// The next update; its keys.
fn update(client: &mut Client) -> Value {
    let update = client.receive();
    assert_eq!(update["op"], "keys", "{update}");
    update
}

/// A view of keys, as a client has it.
#[derive(Default)]
struct View {
    keys: std::collections::BTreeMap<String, (u64, Value)>,
    epoch: Value,
    parts: Vec<Value>,
}

impl View {
    fn apply(&mut self, update: &Value) {
        let mut set = update["set"].as_array().cloned().unwrap_or_default();
        if update["part"] == 1 {
            self.parts.clear();
        }
        let is_snapshot = update["part"].is_u64();
        if is_snapshot {
            self.parts.append(&mut set);
            if update["more"] == true {
                return;
            }
            self.keys.clear();
            self.epoch = update["epoch"].clone();
        }
        assert_eq!(self.epoch, update["epoch"], "an update of another epoch without a snapshot");
        let set = if is_snapshot { std::mem::take(&mut self.parts) } else { set };
        for key in set {
            let (name, version) = (key["key"].as_str().unwrap().to_owned(), key["version"].as_u64().unwrap());
            let before = self.keys.insert(name, (version, key["data"].clone()));
            assert!(before.is_none_or(|(before, _)| before < version), "a stale value: {key}");
        }
        for deleted in update["deleted"].as_array().into_iter().flatten() {
            self.keys.remove(deleted.as_str().unwrap());
        }
    }
}

#[test]
fn keys_set_at_one_node_are_seen_at_the_others() {
    for_both_with(|_broker, nodes: [TestPeer; 3]| {
        // An empty snapshot has no list.
        let mut early = nodes[1].keys_subscriber("players");
        let empty = update(&mut early);
        assert!(empty["part"] == 1 && empty["set"].is_null(), "{empty}");
        let mut writer = nodes[0].client();
        let ack =
            writer.request(&json!({ "op": "set", "topic": "players", "key": "anna", "data": 1, "id": 1 }));
        assert_eq!(ack["seq"], 1);
        let mut subscriber = nodes[1].keys_subscriber("players");
        // The replica perhaps does not have the key yet.
        for subscriber in [&mut early, &mut subscriber] {
            let mut view = View { epoch: empty["epoch"].clone(), ..View::default() };
            while view.keys.is_empty() {
                view.apply(&update(subscriber));
            }
            assert_eq!((&view.epoch, &view.keys["anna"]), (&ack["epoch"], &(1, json!(1))));
        }
        // Each node reads its own writes at once, wherever the owner is.
        for (number, node) in (2..).zip(&nodes) {
            let key = format!("ben{number}");
            let written = node.set(&format!("players/keys/{key}"), "{\"x\":1}");
            assert_fields(&written, json!({"seq": number, "epoch": ack["epoch"]}));
            let listed = node.keys("players");
            assert!(names_of(&listed["keys"]).contains(&&*key), "{listed}");
            let update = update(&mut subscriber);
            assert_eq!((&update["seq"], names_of(&update["set"])), (&json!(number), vec![&*key]));
        }
        let (status, deleted) = nodes[2].request("DELETE /topics/players/keys/anna", b"");
        assert_eq!(status, 200, "{deleted}");
        assert_eq!(update(&mut subscriber)["deleted"], json!(["anna"]));
        nodes[0].wait_for_keys("players", &["ben2", "ben3", "ben4"]);
        // A subscriber continues at another node.
        let mut moved = nodes[2].client();
        let from = json!({ "epoch": ack["epoch"], "seq": 4 });
        let again = moved
            .request(&json!({ "op": "subscribe", "topic": "players", "keys": true, "from": from, "id": 1 }));
        assert_eq!(again["recovered"], true);
        assert_eq!(update(&mut moved)["deleted"], json!(["anna"]));
        let owned: u64 = nodes.iter().map(|node| node.metric("sinews_cluster_keys_owned")).sum();
        assert_eq!(owned, 1, "one node owns the topic");
    });
}

#[test]
fn conditions_hold_for_all_nodes() {
    for_both_with(|_broker, nodes: [TestPeer; 2]| {
        for round in 0..5 {
            let path = format!("locks.{round}/keys/door");
            let answers = nodes.each_ref().map(|node| node.put(&path, "If-None-Match: *\r\n", "1").0);
            assert!(answers == [200, 412], "{answers:?}");
        }
        let first = nodes[0].set("doc/keys/text", "1");
        let tag = format!("If-Match: \"{}-{}\"\r\n", first["epoch"], first["seq"]);
        assert_eq!(nodes[1].put("doc/keys/text", &tag, "2").0, 200);
        let (status, body) = nodes[0].put("doc/keys/text", &tag, "3");
        assert!(status == 412 && body.to_string().contains("version: 2"), "{body}");
        let repeat = "Idempotency-Key: once\r\n";
        let written = nodes.each_ref().map(|node| node.put("doc/keys/other", repeat, "1").1);
        assert_eq!((&written[0]["seq"], &written[1]["repeated"]), (&written[1]["seq"], &json!(true)));
        let too_large = format!("\"{}\"", "x".repeat(65 << 10));
        assert!(nodes.iter().all(|node| node.put("doc/keys/large", "", &too_large).0 == 413));
    });
}

#[test]
fn writes_of_a_connection_keep_their_order_at_another_node() {
    for_both_with(|_broker, nodes: [TestPeer; 2]| {
        for topic in ["t1", "t2", "t3", "t4"] {
            let mut writer = nodes[1].client();
            for number in 0..200 {
                let set = json!({ "op": "set", "topic": topic, "key": "k", "data": number, "id": number });
                writer.send(&set);
            }
            for number in 0..200 {
                let ack = writer.receive();
                assert_fields(&ack, json!({"id": number, "seq": number + 1}));
            }
            nodes[0].until("it has the last value", |node| node.keys(topic)["keys"][0]["data"] == 199);
        }
    });
}

#[test]
fn writes_at_another_node_do_not_wait_for_heartbeats() {
    for_both_with(|broker, nodes: [TestPeer; 2]| {
        nodes[0].set("doc/keys/text", "0");
        // More than the pings of a pause of ten seconds.
        let (pings, writes) = (broker.pings(), 100);
        for number in 1..=writes {
            nodes[1].set("doc/keys/text", &number.to_string());
        }
        let pings = broker.pings() - pings;
        assert!(pings < writes, "{pings} pings during {writes} writes");
    });
}

#[test]
fn keys_of_a_node_that_leaves_survive() {
    for_both(|broker| {
        // So that one of the nodes can be stopped.
        let mut nodes: Vec<Option<TestPeer>> = peers::<3>(&broker).into_iter().map(Some).collect();
        let first = nodes[0].as_ref().unwrap();
        let before = first.set("prices/keys/gold", "1");
        for node in nodes.iter().flatten() {
            node.wait_for_keys("prices", &["gold"]);
        }
        let owner = nodes
            .iter()
            .position(|node| node.as_ref().unwrap().metric("sinews_cluster_keys_owned") == 1)
            .unwrap();
        let other = nodes[(owner + 1) % 3].as_ref().unwrap();
        let mut subscriber = other.keys_subscriber("prices");
        let mut view = View::default();
        view.apply(&update(&mut subscriber));
        // It leaves, so that the others need not wait for its death.
        nodes[owner] = None;
        let other = nodes[(owner + 1) % 3].as_ref().unwrap();
        other.until("another node owns it", |node| node.put("prices/keys/iron", "", "2").0 == 200);
        let listed = other.keys("prices");
        assert_eq!(names_of(&listed["keys"]), ["gold", "iron"]);
        assert_ne!(listed["epoch"], before["epoch"], "the successor has another epoch");
        while view.keys.len() < 2 {
            view.apply(&update(&mut subscriber));
        }
        assert_eq!(view.epoch, listed["epoch"]);
    });
}

#[test]
fn node_that_joins_late_gets_a_large_snapshot() {
    for_both_with(|broker, nodes: [TestPeer; 2]| {
        let value = format!("\"{}\"", "x".repeat(60_000));
        for key in 0..40 {
            nodes[key % 2].set(&format!("large/keys/k{key}"), &value);
        }
        let late = TestPeer::start_at(&broker.url(), |builder| builder);
        // A subscription waits until the keys are loaded.
        broker.wait_for("sinews.all", 3);
        let mut client = late.client();
        let subscribe = json!({ "op": "subscribe", "topic": "large", "keys": true, "id": 1 });
        late.until("the broker is connected", |_| client.ask(&subscribe)["op"] == "ack");
        let mut view = View::default();
        while view.keys.len() < 40 {
            view.apply(&update(&mut client));
        }
        // A replica may receive the last change later.
        nodes[0].until("it has all keys", |node| node.keys("large")["keys"] == late.keys("large")["keys"]);
        assert!(late.is_ready());
    });
}

impl Client {
    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.receive()
    }
}

#[test]
fn owner_alone_writes_while_the_broker_is_away() {
    for_both_with(|broker, nodes: [TestPeer; 2]| {
        nodes[0].set("prices/keys/gold", "1");
        nodes.iter().for_each(|node| node.wait_for_keys("prices", &["gold"]));
        let owner = nodes.iter().position(|node| node.metric("sinews_cluster_keys_owned") == 1).unwrap();
        let [owner, other] = [&nodes[owner], &nodes[1 - owner]];
        let mut subscribers = [owner, other].map(|node| node.keys_subscriber("prices"));
        subscribers.iter_mut().for_each(|subscriber| drop(update(subscriber)));
        broker.go_down();
        nodes.iter().for_each(|node| node.until("the outage is noticed", |node| !node.is_ready()));
        let written = owner.set("prices/keys/gold", "2");
        assert_eq!(written["cluster"], false);
        let (status, body) = other.put("prices/keys/gold", "", "3");
        assert!(
            status == 503 && body.to_string().contains("the broker of the cluster is unreachable"),
            "{body}"
        );
        let (status, body) = owner.put("new/keys/gold", "", "3");
        assert!(
            status == 503 && body.to_string().contains("the broker of the cluster is unreachable"),
            "{body}"
        );
        assert_eq!(update(&mut subscribers[0])["set"][0]["data"], 2);
        assert_eq!(other.keys("prices")["keys"][0]["data"], 1, "the replica can be read");
        broker.come_up();
        nodes.iter().for_each(|node| node.until("ready again", TestPeer::is_ready));
        other.until("it follows", |node| node.keys("prices")["keys"][0]["data"] == 2);
        assert_eq!(update(&mut subscribers[1])["set"][0]["data"], 2);
        other.set("prices/keys/gold", "4");
        assert_eq!(update(&mut subscribers[0])["set"][0]["data"], 4);
    });
}

#[test]
fn keys_expire_on_all_nodes() {
    for_both_with(|_broker, nodes: [TestPeer; 2]| {
        // The topic has an owner, so each subscriber receives changes, and no further snapshot without an expired key.
        nodes[0].set("cursors/keys/lasting", "1");
        nodes.iter().for_each(|node| node.wait_for_keys("cursors", &["lasting"]));
        let mut subscribers = nodes.each_ref().map(|node| node.keys_subscriber("cursors"));
        for (number, node) in nodes.iter().enumerate() {
            node.set(&format!("cursors/keys/k{number}?ttl=500"), "1");
        }
        for subscriber in &mut subscribers {
            let mut view = View::default();
            let mut deleted = 0;
            while deleted < 2 {
                let update = update(subscriber);
                deleted += update["deleted"].as_array().map_or(0, Vec::len);
                view.apply(&update);
            }
            assert!(view.keys.keys().eq(["lasting"]), "{:?}", view.keys);
        }
        nodes.iter().for_each(|node| node.wait_for_keys("cursors", &["lasting"]));
    });
}

#[test]
fn event_stream_of_keys_continues_at_another_node() {
    for_both_with(|_broker, nodes: [TestPeer; 2]| {
        let written = nodes[0].set("prices/keys/gold", "1");
        nodes.iter().for_each(|node| node.wait_for_keys("prices", &["gold"]));
        nodes[1].set("prices/keys/iron", "2");
        nodes.iter().for_each(|node| node.wait_for_keys("prices", &["gold", "iron"]));
        for node in &nodes {
            let mut stream = node.connect();
            let head = format!(
                "GET /topics/prices/keys HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nLast-Event-ID: {}-1\r\n\r\n",
                node.address, written["epoch"]
            );
            stream.write_all(head.as_bytes()).unwrap();
            let lines = BufReader::new(stream).lines().map(Result::unwrap);
            let data: Vec<Value> = lines
                .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
                .take(3)
                .collect();
            assert_eq!(data[0]["op"], "welcome");
            assert_fields(&data[1], json!({"op": "ack", "recovered": true}));
            assert_eq!(names_of(&data[2]["set"]), ["iron"]);
        }
    });
}

#[test]
fn slow_reader_at_another_node_gets_the_last_values() {
    for_both_with(|_broker, nodes: [TestPeer; 2]| {
        nodes[0].set("fast/keys/k0", "0");
        let owner = nodes.iter().position(|node| node.metric("sinews_cluster_keys_owned") == 1).unwrap();
        let mut slow = nodes[1 - owner].keys_subscriber("fast");
        let mut writer = nodes[owner].client();
        let filler = "x".repeat(4_000);
        for number in 1..=6_000 {
            let data = json!([number, filler]);
            let key = format!("k{}", number % 20);
            writer.send(&json!({ "op": "set", "topic": "fast", "key": key, "data": data, "id": 1 }));
            if number % 50 == 0 {
                (0..50).for_each(|_| assert_eq!(writer.receive()["op"], "ack"));
            }
        }
        let mut view = View::default();
        let mut updates = 0;
        while view.keys.get("k0").is_none_or(|(_, data)| data[0] != 6_000) {
            view.apply(&update(&mut slow));
            updates += 1;
        }
        assert!(updates < 5_900, "values that were replaced are not sent: {updates}");
    });
}

#[test]
fn program_writes_keys_that_another_node_owns() {
    for_both(|broker| {
        let other = TestPeer::start(&broker);
        let hub = Hub::builder().cluster(options(&broker.url())).build().unwrap();
        let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
        let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let (publisher, stop) = (server.publisher(), server.stop_handle());
        let hub = hub.start(&server).unwrap();
        let running = std::thread::spawn(move || server.run().unwrap());
        other.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
        other.until("ready", TestPeer::is_ready);
        let topic = |number: u64| format!("t.{number}");
        // Until the other node owns a topic.
        let (mut owned, mut number) = (0, 0);
        while owned == 0 {
            number += 1;
            other.set(&format!("{}/keys/k", topic(number)), "1");
            owned = other.metric("sinews_cluster_keys_owned");
        }
        let write = KeyWrite::set("k", key_value_of_json("2").unwrap());
        assert_eq!(publisher.write_key(&topic(number), &write), Err(KeyError::NotOwner));
        let written = block_on(hub.write_key(&topic(number), write.clone())).unwrap();
        assert_eq!(written.position.sequence, 2);
        other.until("it has the value", |node| node.keys(&topic(number))["keys"][0]["data"] == 2);
        let failed = block_on(hub.write_key(&topic(number), write.with_condition(KeyCondition::IfNew)));
        assert_eq!(failed.unwrap_err().status(), 412);
        stop.stop_now();
        running.join().unwrap();
        hub.shut_down();
    });
}

/// NATS closes the connection of a node that sends a larger message.
#[test]
fn nodes_share_keys_and_members_within_a_small_payload_limit() {
    let broker = FakeBroker::with_max_payload(WireProtocol::Nats, 8 << 10);
    let nodes = peers::<2>(&broker);
    let (large, info) = ("x".repeat(6_000), "i".repeat(1_000));
    let mut client = nodes[0].client();
    // In one burst, so that the changes of many topics, and of many members, are sent together.
    for number in 0..60 {
        let topic = format!("t.{number}");
        let set = json!({ "op": "set", "topic": topic, "key": "k", "data": info });
        let join = json!({ "op": "join", "topic": topic, "member": { "id": "anna", "info": info } });
        client.send(&set);
        client.send(&join);
    }
    for key in ["a", "b", "c"] {
        nodes[0].set(&format!("t.0/keys/{key}"), &format!("{large:?}"));
    }
    let (status, body) = nodes[0].put("t.0/keys/d", "", &format!("{:?}", "x".repeat(7_500)));
    assert_eq!(status, 413, "{body}");
    // Loads the catalogues, the keys and the members.
    let late = TestPeer::start(&broker);
    for node in [&nodes[0], &nodes[1], &late] {
        for number in 0..60 {
            let names: &[&str] = if number == 0 { &["a", "b", "c", "k"] } else { &["k"] };
            node.until("ready", TestPeer::is_ready);
            node.wait_for_keys(&format!("t.{number}"), names);
            super::wait_for_presence(node, &format!("t.{number}"), 1, 1);
        }
        assert_eq!(node.metric("sinews_cluster_connects_total"), 1, "the broker has closed a connection");
        assert_eq!(node.metric("sinews_cluster_dropped_total{reason=\"too_large\"}"), 0);
    }
}
