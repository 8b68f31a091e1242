//! Keys of topics, which the nodes of a cluster share in a topic store alone.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};

use serde_json::{Value, json};
use sinews_hub::{Hub, key_value_of_json};
use sinews_server::{BoundServer, KeyCondition, KeyError, KeyWrite, Router, Server};
use sinews_testkit::assert_fields;

use super::stored::StoredCluster;
use super::{Client, TestPeer, for_both, options, parse, with_api};
use crate::support::block_on;

impl Client {
    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.receive()
    }
}

const REASON: &str = "keys in a cluster need a topic store (cluster.store)";

#[test]
fn keys_without_a_topic_store_are_rejected_on_all_ways() {
    for_both(|broker| {
        let node = with_api(&broker);
        let rejected = json!({ "op": "error", "code": 422, "error": REASON, "id": 1 });
        let mut client = node.client();
        for request in [
            json!({ "op": "set", "topic": "t", "key": "k", "data": 1, "id": 1 }),
            json!({ "op": "delete", "topic": "t", "key": "k", "id": 1 }),
            json!({ "op": "subscribe", "topic": "t", "keys": true, "id": 1 }),
        ] {
            assert_eq!(client.ask(&request), rejected, "{request}");
        }
        let ended = client.ask(&json!({ "op": "unsubscribe", "topic": "t", "keys": true, "id": 1 }));
        assert_eq!(ended["code"], 409, "{ended}");
        for (head, body) in [
            ("PUT /topics/t/keys/k", &b"1"[..]),
            ("DELETE /topics/t/keys/k", b""),
            ("GET /topics/t/keys", b""),
            ("GET /topics/t/keys/k", b""),
        ] {
            let (status, answer) = node.request(head, body);
            assert!(status == 422 && answer.contains(REASON), "{head}: {status} {answer}");
        }
        let mut stream = node.connect();
        let head = format!(
            "GET /topics/t/keys HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n",
            node.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let status = BufReader::new(stream).lines().next().unwrap().unwrap();
        assert!(status.starts_with("HTTP/1.1 422 "), "{status}");
        let written =
            node.api("POST /api/v1/topics/t/keys", &json!({ "writes": [{ "key": "k", "data": 1 }] }));
        assert_fields(&written["results"][0], json!({ "key": "k", "code": 422, "error": REASON }));
        assert_eq!(node.api("GET /api/v1/topics", &Value::Null), json!({ "topics": [] }));
    });
}

fn bind(hub: &Hub) -> BoundServer {
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
    server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap()
}

#[test]
fn program_writes_no_keys_without_a_topic_store() {
    let hub = Hub::builder().cluster(options("nats://127.0.0.1:1")).build().unwrap();
    let server = bind(&hub);
    let publisher = server.publisher();
    let hub = hub.start(&server).unwrap();
    let write = KeyWrite::set("k", key_value_of_json("2").unwrap());
    assert_eq!(publisher.write_key("t", &write), Err(KeyError::NotOwner));
    let failed = block_on(hub.write_key("t", write)).unwrap_err();
    assert_eq!((failed.status(), failed.to_string()), (422, REASON.to_owned()));
    hub.shut_down();
}

impl TestPeer {
    /// Writes a key; the status and the body of the answer.
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

/// The next update.
fn update(client: &mut Client) -> Value {
    let update = client.receive();
    assert_eq!(update["op"], "keys", "{update}");
    update
}

/// A view of keys, as a client has it.
#[derive(Default)]
struct View {
    keys: BTreeMap<String, (u64, Value)>,
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
    let StoredCluster { nodes, .. } = &StoredCluster::start();
    // An empty snapshot has no list.
    let mut early = nodes[1].keys_subscriber("players");
    let empty = update(&mut early);
    assert!(empty["part"] == 1 && empty["set"].is_null(), "{empty}");
    let ack = nodes[0].set("players/keys/anna", "1");
    assert_eq!(ack["seq"], 1);
    let mut subscriber = nodes[1].keys_subscriber("players");
    // The node's copy perhaps does not have the key yet.
    for subscriber in [&mut early, &mut subscriber] {
        let mut view = View { epoch: empty["epoch"].clone(), ..View::default() };
        while view.keys.is_empty() {
            view.apply(&update(subscriber));
        }
        assert_eq!((&view.epoch, &view.keys["anna"]), (&ack["epoch"], &(1, json!(1))));
    }
    // Each node reads its own writes at once.
    for (number, node) in (2..).zip(nodes) {
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
    let again =
        moved.request(&json!({ "op": "subscribe", "topic": "players", "keys": true, "from": from, "id": 1 }));
    assert_eq!(again["recovered"], true);
    assert_eq!(update(&mut moved)["deleted"], json!(["anna"]));
}

#[test]
fn conditions_hold_for_all_nodes() {
    let StoredCluster { nodes, .. } = &StoredCluster::start();
    for round in 0..5 {
        let path = format!("locks.{round}/keys/door");
        let answers = nodes.each_ref().map(|node| node.put(&path, "If-None-Match: *\r\n", "1").0);
        assert_eq!(answers, [200, 412, 412]);
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
}

#[test]
fn writes_of_a_connection_keep_their_order() {
    let StoredCluster { nodes, .. } = &StoredCluster::start();
    let mut writer = nodes[1].client();
    for number in 0..200 {
        writer.send(&json!({ "op": "set", "topic": "t", "key": "k", "data": number, "id": number }));
    }
    for number in 0..200 {
        let ack = writer.receive();
        assert_fields(&ack, json!({"id": number, "seq": number + 1}));
    }
    nodes[0].until("it has the last value", |node| node.keys("t")["keys"][0]["data"] == 199);
}

#[test]
fn keys_expire_on_all_nodes() {
    let StoredCluster { nodes, .. } = &StoredCluster::start();
    nodes[0].set("cursors/keys/lasting", "1");
    let mut subscribers = nodes.each_ref().map(|node| node.keys_subscriber("cursors"));
    for (number, node) in nodes.iter().enumerate() {
        node.set(&format!("cursors/keys/k{number}?ttl=500"), "1");
    }
    for node in nodes {
        node.until("the keys have expired", |node| {
            // The store of the tests removes keys with each operation.
            node.set("other/keys/k", "1");
            names_of(&node.keys("cursors")["keys"]) == ["lasting"]
        });
    }
    for subscriber in &mut subscribers {
        let mut view = View::default();
        let mut deleted = 0;
        while deleted < nodes.len() {
            let update = update(subscriber);
            deleted += update["deleted"].as_array().map_or(0, Vec::len);
            view.apply(&update);
        }
        assert!(view.keys.keys().eq(["lasting"]), "{:?}", view.keys);
    }
}

#[test]
fn event_stream_of_keys_continues_at_another_node() {
    let StoredCluster { nodes, .. } = &StoredCluster::start();
    // A node without a copy sends a snapshot.
    nodes.iter().for_each(|node| node.wait_for_keys("prices", &[]));
    let written = nodes[0].set("prices/keys/gold", "1");
    nodes[1].set("prices/keys/iron", "2");
    for node in nodes {
        node.wait_for_keys("prices", &["gold", "iron"]);
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
}

#[test]
fn node_that_joins_late_gets_a_large_snapshot_and_its_keys_survive_it() {
    let cluster = StoredCluster::start();
    let value = format!("\"{}\"", "x".repeat(60_000));
    for key in 0..40 {
        cluster.nodes[key % 2].set(&format!("large/keys/k{key}"), &value);
    }
    let late = cluster.join();
    let mut client = late.keys_subscriber("large");
    let mut view = View::default();
    while view.keys.len() < 40 {
        view.apply(&update(&mut client));
    }
    let written = late.set("large/keys/last", "1");
    assert_eq!(late.keys("large"), cluster.nodes[2].keys("large"));
    drop(late);
    let after = cluster.nodes[0].set("large/keys/after", "2");
    assert_fields(&after, json!({ "epoch": written["epoch"], "seq": 42 }));
}

#[test]
fn program_writes_keys_in_the_topic_store() {
    let cluster = StoredCluster::start();
    let hub = cluster.hub();
    let server = bind(&hub);
    let publisher = server.publisher();
    let hub = hub.start(&server).unwrap();
    cluster.nodes[0].set("t/keys/k", "1");
    let write = KeyWrite::set("k", key_value_of_json("2").unwrap());
    assert_eq!(publisher.write_key("t", &write), Err(KeyError::NotOwner));
    let written = block_on(hub.write_key("t", write.clone())).unwrap();
    assert_eq!(written.position.sequence, 2);
    cluster.nodes[0].until("it has the value", |node| node.keys("t")["keys"][0]["data"] == 2);
    let failed = block_on(hub.write_key("t", write.with_condition(KeyCondition::IfNew)));
    assert_eq!(failed.unwrap_err().status(), 412);
    hub.shut_down();
}
