//! Clusters whose histories and keys are in a topic store.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::Duration;

use serde_json::{Value, json};
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions};
use sinews_hub::{
    HostRules, Hub, HubBuilder, HubConfig, Namespace, Namespaces, StoreAway, StreamOptions, observe_nodes,
};
use sinews_store::{Capabilities, StoreError};
use sinews_testkit::{TIMEOUT, until};

use super::{Client, KEY, TestPeer, options};
use crate::support::fake_broker::{FakeBroker, WireProtocol};
use crate::support::fake_store::FakeStore;
use crate::support::memory_broker::MemoryBroker;
use crate::support::{parse, request};

/// Nodes with a bus and a topic store in common.
pub(super) struct StoredCluster {
    store: FakeStore,
    pub(super) nodes: [TestPeer; 3],
    broker: FakeBroker,
}

impl StoredCluster {
    pub(super) fn start() -> Self {
        Self::start_with(|builder| builder)
    }

    fn start_with(configure: fn(HubBuilder) -> HubBuilder) -> Self {
        let (broker, store) = (FakeBroker::start(WireProtocol::Redis), FakeStore::new());
        let nodes = [(); 3].map(|()| join(&broker, &store, configure));
        Self { store, nodes, broker }
    }

    /// A further node.
    pub(super) fn join(&self) -> TestPeer {
        join(&self.broker, &self.store, |builder| builder)
    }

    /// A hub of a further node.
    pub(super) fn hub(&self) -> Hub {
        let builder = Hub::builder().cluster(options(&self.broker.url()));
        builder.topic_store(self.store.connect()).build().unwrap()
    }

    /// A client that has received this topic's messages up to the last one.
    fn subscriber(&self, node: usize, topic: &str) -> Client {
        self.nodes[node].subscriber(topic)
    }
}

fn join(broker: &FakeBroker, store: &FakeStore, configure: fn(HubBuilder) -> HubBuilder) -> TestPeer {
    let stored = store.connect();
    TestPeer::start_with(broker, |builder| {
        let keys = ApiKeys::new().with_key(KEY).unwrap();
        let policy = HubConfig::new(Auth::new(&AuthOptions::new()).unwrap(), HostRules::default());
        let builder = builder.config(policy.with_api_keys(keys));
        configure(builder.history("chat.>", 100).topic_store(stored))
    })
}

fn authorization() -> String {
    format!("Authorization: Bearer {KEY}\r\n")
}

/// The status and the body of an answer of the HTTP API.
fn api(node: &TestPeer, method: &str, path: &str, body: &str) -> (u16, String) {
    node.request_with(&format!("{method} /api/v1/{path}"), &authorization(), body.as_bytes())
}

fn publish(client: &mut Client, topic: &str, data: impl Into<Value>) -> Value {
    client.request(&json!({ "op": "publish", "topic": topic, "data": data.into(), "id": 1 }))
}

/// Subscribes behind a position.
fn resume(client: &mut Client, topic: &str, from: &Value) -> Value {
    let from = json!({ "epoch": from["epoch"], "seq": from["seq"] });
    client.request(&json!({ "op": "subscribe", "topic": topic, "from": from, "id": 2 }))
}

#[test]
fn client_resumes_exactly_at_another_node() {
    let cluster = StoredCluster::start();
    let mut subscribers = [cluster.subscriber(0, "chat.1"), cluster.subscriber(1, "chat.1")];
    let mut publisher = cluster.nodes[2].client();
    let empty = resume(&mut cluster.nodes[2].client(), "chat.1", &json!({ "epoch": 0, "seq": 0 }));
    assert_eq!((&empty["complete"], &empty["seq"]), (&json!(true), &json!(0)));
    let acks: Vec<Value> = (0..10).map(|number| publish(&mut publisher, "chat.1", number)).collect();
    for subscriber in &mut subscribers {
        for (number, ack) in acks.iter().enumerate() {
            let message = subscriber.receive();
            assert_eq!((&message["data"], &message["seq"]), (&json!(number), &ack["seq"]), "{message}");
            assert_eq!(message["epoch"], ack["epoch"]);
        }
    }
    for (from, missed) in [(&acks[3], 6), (&acks[9], 0), (&empty, 10)] {
        let mut moved = cluster.nodes[2].client();
        let ack = resume(&mut moved, "chat.1", from);
        assert_eq!((&ack["complete"], &ack["replayed"]), (&json!(true), &json!(missed)), "{ack}");
        assert_eq!(moved.data(missed), (10 - missed..10).map(|number| json!(number)).collect::<Vec<_>>());
        moved.request(&json!({ "op": "unsubscribe", "topic": "chat.1", "id": 3 }));
    }
    let history = |node: &TestPeer| {
        let mut client = node.client();
        client.send(&json!({ "op": "history", "topic": "chat.1", "last": 3, "id": 4 }));
        let messages = client.receive()["messages"].clone();
        messages.as_array().unwrap().iter().map(|message| message["data"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(cluster.nodes.each_ref().map(history), [(); 3].map(|()| vec![json!(7), json!(8), json!(9)]));
}

#[test]
fn event_stream_resumes_exactly_at_another_node() {
    let cluster = StoredCluster::start();
    let mut publisher = cluster.nodes[0].client();
    let acks: Vec<Value> = (0..10).map(|number| publish(&mut publisher, "chat.1", number)).collect();
    for node in &cluster.nodes {
        let mut stream = node.connect();
        let head = format!(
            "GET /topics/chat.1 HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nLast-Event-ID: {}-{}\r\n\r\n",
            node.address, acks[3]["epoch"], acks[3]["seq"]
        );
        stream.write_all(head.as_bytes()).unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let numbers = lines.filter_map(|line| line.strip_prefix("data: ")?.parse::<u32>().ok());
        assert!(numbers.take(6).eq(4..10));
    }
}

#[test]
fn lost_messages_are_reported_to_the_clients_that_have_seen_them() {
    let cluster = StoredCluster::start();
    let mut witness = cluster.subscriber(0, "chat.1");
    let mut publisher = cluster.nodes[1].client();
    let survivor = publish(&mut publisher, "chat.1", "survives");
    assert_eq!(witness.data(1), [json!("survives")]);
    let replica = cluster.store.replica();
    let lost = publish(&mut publisher, "chat.1", "lost");
    assert_eq!(witness.data(1), [json!("lost")]);
    cluster.store.fail_over(replica);
    let next = publish(&mut publisher, "chat.1", "next");
    assert_eq!(next["epoch"], lost["epoch"], "the others resume");
    let reset = witness.receive();
    assert_eq!((&reset["op"], &reset["topic"]), (&json!("reset"), &json!("chat.1")));
    assert_eq!(witness.data(1), [json!("next")]);
    for node in &cluster.nodes {
        let mut client = node.client();
        let ack = resume(&mut client, "chat.1", &survivor);
        assert_eq!((&ack["complete"], &ack["replayed"]), (&json!(true), &json!(1)), "{ack}");
        assert_eq!(client.data(1), [json!("next")]);
        let ack = resume(&mut node.client(), "chat.1", &lost);
        assert_eq!(ack["complete"], json!(false), "{ack}");
    }
}

#[test]
fn lost_notifications_are_read_after_a_reconnect() {
    let cluster = StoredCluster::start();
    let mut subscriber = cluster.subscriber(0, "chat.1");
    let mut publisher = cluster.nodes[1].client();
    publish(&mut publisher, "chat.1", 0);
    cluster.store.mute();
    publish(&mut publisher, "chat.1", 1);
    cluster.store.reconnect();
    assert_eq!(subscriber.data(2), [json!(0), json!(1)]);
    cluster.store.mute();
    publish(&mut publisher, "chat.1", 2);
    publish(&mut publisher, "chat.1", 3);
    cluster.store.reconnect();
    publish(&mut publisher, "chat.1", 4);
    assert_eq!(subscriber.data(3), [json!(2), json!(3), json!(4)]);
}

#[test]
fn client_that_moves_to_a_node_behind_resumes_exactly() {
    let cluster = StoredCluster::start();
    let mut witness = cluster.subscriber(0, "chat.1");
    let mut publisher = cluster.nodes[1].client();
    publish(&mut publisher, "chat.1", 0);
    let mut ahead = cluster.nodes[1].client();
    cluster.store.mute();
    let last = publish(&mut publisher, "chat.1", 1);
    assert_eq!(witness.data(1), [json!(0)]);
    let ack = resume(&mut ahead, "chat.1", &last);
    assert_eq!(ack["complete"], json!(true), "{ack}");
    let ack = resume(&mut cluster.nodes[0].client(), "chat.1", &last);
    assert_eq!(ack["complete"], json!(true), "{ack}");
    assert_eq!(witness.data(1), [json!(1)], "the comparison has found it");
}

#[test]
fn patterns_and_names_receive_each_message_once() {
    let cluster = StoredCluster::start();
    let mut by_pattern = cluster.subscriber(0, "chat.*");
    let mut by_both = cluster.subscriber(1, "chat.*");
    by_both.request(&json!({ "op": "subscribe", "topic": "chat.1", "id": 3 }));
    let mut publisher = cluster.nodes[2].client();
    for number in 0..5 {
        publish(&mut publisher, "chat.1", number);
    }
    let all: Vec<Value> = (0..5).map(Value::from).collect();
    assert_eq!((by_pattern.data(5), by_both.data(5)), (all.clone(), all));
    // The copy that began with a notification has earlier messages when a client asks for them.
    let ack = by_pattern.request(&json!({ "op": "subscribe", "topic": "chat.1", "last": 5, "id": 4 }));
    assert_eq!(ack["replayed"], json!(5), "{ack}");
}

#[test]
fn publishers_can_be_excluded_at_any_node() {
    let cluster = StoredCluster::start();
    let [mut at_first, mut at_second] = [0, 1].map(|node| Client(cluster.nodes[node].websocket("/ws")));
    let own = at_first.receive()["connection"].clone();
    assert_eq!(at_second.receive()["op"], "welcome");
    for client in [&mut at_first, &mut at_second] {
        client.request(&json!({ "op": "subscribe", "topic": "chat.1", "id": 1 }));
    }
    let body = json!({ "topic": "chat.1", "data": "others", "exclude": own }).to_string();
    let (status, answer) = api(&cluster.nodes[2], "POST", "publish", &body);
    assert_eq!((status, &parse(&answer)["seq"]), (200, &json!(1)), "{answer}");
    publish(&mut cluster.nodes[2].client(), "chat.1", "all");
    assert_eq!(
        (at_second.data(2), at_first.data(1)),
        (vec![json!("others"), json!("all")], vec![json!("all")])
    );
    // A raw socket does not receive its own messages.
    let mut raw = cluster.nodes[0].websocket("/topics/chat.1?self=false");
    raw.send_text("\"raw\"").unwrap();
    raw.flush().unwrap();
    assert_eq!(at_second.data(1).len(), 1);
    publish(&mut cluster.nodes[2].client(), "chat.1", "last");
    assert_eq!(raw.next().unwrap().unwrap().as_bytes(), b"last");
}

#[test]
fn one_client_takes_a_lock() {
    let cluster = StoredCluster::start();
    let mut clients = cluster.nodes.each_ref().map(TestPeer::client);
    for client in &mut clients {
        client.request(&json!({ "op": "subscribe", "topic": "locks", "keys": true, "id": 1 }));
        assert_eq!(client.receive()["op"], "keys");
    }
    let take = json!({ "op": "set", "topic": "locks", "key": "a", "data": 1, "if_new": true, "id": 2 });
    let mut answers = Vec::new();
    for client in &mut clients {
        client.send(&take);
        let mut answer = client.receive();
        while answer["op"] == "keys" {
            answer = client.receive();
        }
        answers.push(answer["op"].clone());
    }
    assert_eq!(answers, [json!("ack"), json!("error"), json!("error")]);
    // A client that has the acknowledgement reads its own write at its node.
    for number in 0..20 {
        let path = format!("topics/state/keys/k{number}");
        let (status, answer) = api(&cluster.nodes[1], "PUT", &path, &json!({ "data": number }).to_string());
        assert_eq!(status, 200, "{answer}");
        let (status, answer) = api(&cluster.nodes[1], "GET", &path, "");
        assert_eq!((status, &parse(&answer)["data"]), (200, &json!(number)), "{answer}");
    }
    cluster.nodes[2].until("all keys", |node| {
        let (_, answer) = node.request("GET /topics/state/keys", b"");
        parse(&answer)["keys"].as_array().unwrap().len() == 20
    });
}

#[test]
fn server_that_is_away_concerns_its_topics_only() {
    let cluster = StoredCluster::start();
    let node = &cluster.nodes[0];
    node.until("ready", TestPeer::is_ready);
    let mut subscribers = ["chat.up", "chat.away"].map(|topic| {
        let mut subscriber = cluster.subscriber(0, topic);
        publish(&mut cluster.nodes[1].client(), topic, 0);
        assert_eq!(subscriber.data(1), [json!(0)]);
        subscriber
    });
    cluster.store.lose_server("chat.away");
    let (status, ready) = node.request("GET /readyz", b"");
    assert!(status == 200 && ready.contains("topic store server two away for 9 s: two: no route"), "{ready}");
    let (_, metrics) = node.request("GET /metrics", b"");
    for (server, is_up) in [("one", 1), ("two", 0)] {
        let line = format!("\nsinews_topic_store_server_up{{server=\"{server}\"}} {is_up}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    for (topic, is_stale) in [("chat.up", false), ("chat.away", true)] {
        let mut client = node.client();
        let ack = client.request(&json!({ "op": "subscribe", "topic": topic, "last": 1, "id": 8 }));
        assert_eq!((&ack["replayed"], ack["stale"].is_number()), (&json!(1), is_stale), "{ack}");
    }
    // The audit goes on: it finds a message whose notification was lost.
    cluster.store.mute();
    publish(&mut cluster.nodes[1].client(), "chat.up", 1);
    cluster.store.reconnect();
    assert_eq!(subscribers[0].data(1), [json!(1)]);
}

#[test]
fn failed_operations_say_whether_they_may_have_an_effect() {
    let cluster = StoredCluster::start();
    let node = &cluster.nodes[0];
    node.until("ready", TestPeer::is_ready);
    let (_, ready) = node.request("GET /readyz", b"");
    assert!(
        ready.contains("topic store fake: may lose acknowledged writes at a failover, detected"),
        "{ready}"
    );
    let mut subscriber = cluster.subscriber(0, "chat.1");
    publish(&mut cluster.nodes[1].client(), "chat.1", 0);
    assert_eq!(subscriber.data(1), [json!(0)]);
    for (fault, unknown, status) in [
        (StoreError::Away("no route".into()), json!(null), 503),
        (StoreError::Unknown("no answer".into()), json!(true), 503),
        (StoreError::Busy, json!(null), 429),
    ] {
        cluster.store.fail(Some(fault.clone()));
        for (head, body) in [
            ("POST /topics/chat.1", "1"),
            ("POST /api/v1/publish", r#"{"topic":"chat.1","data":1}"#),
            ("PUT /topics/locks/keys/a", "1"),
        ] {
            let mut answer = request(node.address, head, &authorization(), body.as_bytes());
            assert_eq!(answer.status(), status, "{head} {fault}");
            assert_eq!(answer.header("Retry-After"), Some("1"), "{head} {fault}");
            assert_eq!(parse(&answer.rest())["unknown"], unknown, "{head} {fault}");
        }
        let mut client = node.client();
        client.send(&json!({ "op": "publish", "topic": "chat.1", "data": 1, "id": 7 }));
        let error = client.receive();
        assert_eq!((&error["code"], &error["unknown"]), (&json!(status), &unknown), "{error}");
        // The copy can be read meanwhile, and other topics are not concerned.
        let ack = client.request(&json!({ "op": "subscribe", "topic": "chat.1", "last": 1, "id": 8 }));
        assert_eq!(ack["replayed"], json!(1), "{ack}");
        assert_eq!(ack["stale"].is_number(), matches!(fault, StoreError::Away(_)), "{ack}");
        assert_eq!(client.data(1), [json!(0)]);
        client.request(&json!({ "op": "publish", "topic": "plain", "data": 1, "id": 9 }));
        cluster.store.fail(None);
    }
}

#[test]
fn nodes_show_the_store_and_its_promises() {
    let cluster = StoredCluster::start();
    let alone = TestPeer::start_with(&cluster.broker, |builder| builder);
    let listed = || observe_nodes(&options(&cluster.broker.url()), TIMEOUT).unwrap();
    until("all nodes", || listed().len() == 4);
    let stores: Vec<(String, bool)> =
        listed().into_iter().map(|node| (node.store, node.store_away)).collect();
    let promises = "fake: may lose acknowledged writes at a failover, detected exactly; exact conditions; \
                    times to live by 1 ms";
    assert_eq!(stores.iter().filter(|(store, away)| store == promises && !away).count(), 3, "{stores:?}");
    assert_eq!(stores.iter().filter(|(store, _)| store.is_empty()).count(), 1, "{stores:?}");
    drop(alone);
    cluster.store.fail(Some(StoreError::Away("no route".into())));
    let (status, answer) = api(&cluster.nodes[0], "GET", "nodes", "");
    let own = parse(&answer)["nodes"].as_array().unwrap().iter().find(|it| it["self"] == true).cloned();
    let own = own.unwrap();
    assert_eq!(
        (status, &own["store"], &own["store_away"]),
        (200, &json!(promises), &json!(true)),
        "{answer}"
    );
}

#[test]
fn configuration_that_needs_more_than_its_store_has_is_rejected() {
    let checked = |namespace: Namespace, change: fn(&mut Capabilities)| {
        let policy = HubConfig::new(Auth::new(&AuthOptions::new()).unwrap(), HostRules::default());
        let namespaces = Namespaces::new([namespace]).unwrap();
        let store = FakeStore::new().with_capabilities(change);
        let builder = Hub::builder().config(policy.with_namespaces(namespaces)).topic_store(store.connect());
        builder.check().map_err(|error| error.to_string())
    };
    let ttl = || Namespace::new("a.>").with_key_ttl(Duration::from_millis(500));
    assert_eq!(checked(ttl(), |_| ()), Ok(()));
    let error = "namespace \"a.>\": key_ttl: the topic store fake has times to live by 1s, and 500ms is less";
    let by_seconds = |store: &mut Capabilities| store.ttl_resolution = Duration::from_secs(1);
    assert_eq!(checked(ttl(), by_seconds), Err(error.to_owned()));
    let without_keys = |store: &mut Capabilities| store.keys = false;
    for (namespace, option) in [
        (ttl(), "key_ttl"),
        (Namespace::new("a.>").with_max_keys(5), "max_keys"),
        (Namespace::new("a.>").with_keyed(true), "keyed"),
    ] {
        let error = format!("namespace \"a.>\": {option}: the topic store fake has no keys");
        assert_eq!(checked(namespace, without_keys), Err(error));
    }
    assert_eq!(checked(Namespace::new("a.>").with_keyed(false), without_keys), Ok(()));
    let history = Namespace::new("a.>").with_history(5);
    let error = "the topic store fake has no histories";
    assert_eq!(checked(history, |store| store.logs = false), Err(error.to_owned()));
}

#[test]
fn publications_without_the_store_are_delivered_and_make_resumes_incomplete() {
    let cluster = StoredCluster::start_with(|builder| builder.store_away(StoreAway::Deliver));
    let mut witnesses = [cluster.subscriber(0, "chat.1"), cluster.subscriber(0, "chat.*")];
    let mut publisher = cluster.nodes[1].client();
    let before = publish(&mut publisher, "chat.1", "before");
    let other = publish(&mut publisher, "chat.2", "other");
    assert_eq!(witnesses[0].data(1), [json!("before")]);
    assert_eq!(witnesses[1].data(2), [json!("before"), json!("other")]);
    // Publications without the store pass through the broker.
    cluster.broker.wait_for("sinews.t.chat.1", 1);
    cluster.store.fail(Some(StoreError::Away("no route".into())));
    let ack = publish(&mut publisher, "chat.1", "hint");
    assert_eq!((&ack["stored"], &ack["seq"]), (&json!(false), &Value::Null), "{ack}");
    for (head, body) in [
        ("POST /topics/chat.1", "\"over HTTP\""),
        ("POST /api/v1/publish", r#"{"topic":"chat.1","data":"by a backend"}"#),
    ] {
        let head_fields = format!("{}Content-Type: application/json\r\n", authorization());
        let (status, answer) = cluster.nodes[2].request_with(head, &head_fields, body.as_bytes());
        assert_eq!((status, &parse(&answer)["stored"]), (200, &json!(false)), "{answer}");
    }
    for witness in &mut witnesses {
        // Two nodes have published.
        let mut hints = [(); 3].map(|()| witness.receive());
        hints.sort_by_key(|hint| hint["data"].to_string());
        let data = hints.each_ref().map(|hint| hint["data"].clone());
        assert_eq!(data, [json!("by a backend"), json!("hint"), json!("over HTTP")]);
        assert!(hints.iter().all(|hint| hint["seq"].is_null() && hint["epoch"].is_null()), "{hints:?}");
    }
    assert_eq!(cluster.nodes[1].metric("sinews_topic_store_unstored_total"), 1);
    cluster.store.fail(None);
    // Two nodes mark the topic.
    for _ in 0..2 {
        let reset = witnesses[0].receive();
        assert_eq!((&reset["op"], &reset["topic"]), (&json!("reset"), &json!("chat.1")));
    }
    let after = publish(&mut publisher, "chat.1", "after");
    assert_eq!(witnesses[0].data(1), [json!("after")]);
    for node in cluster.nodes.iter().chain([&cluster.join()]) {
        let mut client = node.client();
        let ack = client.request(&json!({ "op": "subscribe", "topic": "chat.1", "last": 9, "id": 1 }));
        assert_eq!(ack["replayed"], json!(2), "{ack}");
        assert_eq!(client.data(2), [json!("before"), json!("after")]);
        for (topic, from, complete) in
            [("chat.1", &before, false), ("chat.1", &after, true), ("chat.2", &other, true)]
        {
            let ack = resume(&mut node.client(), topic, from);
            assert_eq!(ack["complete"], json!(complete), "{topic}: {ack}");
        }
    }
}

#[test]
fn idempotency_keys_of_topics_without_a_history_hold_for_all_nodes() {
    let cluster = StoredCluster::start();
    let mut subscriber = cluster.nodes[2].subscriber("plain");
    cluster.broker.wait_for("sinews.t.plain", 1);
    let publish = |node: usize, data: u32, key: &str| {
        let body = json!({ "topic": "plain", "data": data, "idempotency_key": key }).to_string();
        let (status, answer) = api(&cluster.nodes[node], "POST", "publish", &body);
        assert_eq!(status, 200, "{answer}");
        parse(&answer)
    };
    assert_eq!(publish(0, 1, "a")["cluster"], true);
    assert_eq!(publish(1, 2, "a"), json!({ "repeated": true, "topic": "plain" }));
    assert_eq!(publish(1, 3, "b")["repeated"], Value::Null);
    assert_eq!(publish(1, 4, "b")["repeated"], true);
    cluster.store.fail(Some(StoreError::Away("no route".into())));
    assert_eq!(publish(0, 5, "b")["repeated"], Value::Null, "plain topics continue without the store");
    // The publications of two nodes have no order.
    let mut data = subscriber.data(3);
    data.sort_by_key(Value::as_u64);
    assert_eq!(data, [json!(1), json!(3), json!(5)]);
}

#[test]
fn durable_topic_with_a_history_is_written_once() {
    let (broker, store) = (FakeBroker::start(WireProtocol::Redis), FakeStore::new());
    let (records, directory) = (MemoryBroker::default(), tempfile::tempdir().unwrap());
    let node = TestPeer::start_with(&broker, |builder| {
        let streams = StreamOptions::at_broker(records.shared(), "memory", "")
            .with_directory(directory.path())
            .with_durable_topics(["chat.durable".to_owned()]);
        builder.history("chat.>", 100).topic_store(store.connect()).streams(streams)
    });
    let mut client = node.subscriber("chat.durable");
    for topic in ["chat.durable", "chat.stored"] {
        let ack = publish(&mut node.client(), topic, "a");
        assert!(ack["seq"].is_u64(), "{ack}");
        let is_stored = topic == "chat.stored";
        assert_eq!(store.top(topic).map(|top| json!(top.sequence)), is_stored.then(|| ack["seq"].clone()));
        if !is_stored {
            let message = client.receive();
            assert_eq!((&message["data"], &message["seq"]), (&json!("a"), &ack["seq"]), "{message}");
        }
    }
}
