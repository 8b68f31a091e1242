//! Nodes with both: durable topics at a broker, and a cluster for everything else, as in deploy/compose.

use sinews_testkit::assert_fields;

use super::super::topics::publish;
use super::*;
use crate::api::{KEY, call};

/// Durable and ephemeral topics, presence, patterns, idempotency keys, and recovery at another node.
pub(super) fn nodes_share_durable_and_ephemeral_topics(store: &str, cluster: &str, unused: &str) {
    let durable = format!("{unused}.kept.>");
    let arguments = ["--cluster", cluster, "--streams-durable-topics", &durable, "--api-key", KEY];
    let nodes = [(); 2].map(|()| node(store, &arguments));
    for node in &nodes {
        until("both nodes are known", || node.get("/metrics").contains("\nsinews_cluster_nodes 2\n"));
    }
    let [kept, fleeting] = ["kept.room", "room"].map(|name| format!("{unused}.{name}"));
    let mut by_name = Client::at(&nodes[1], "/ws");
    by_name.subscribe_with(&kept, &json!({}));
    by_name.subscribe_with(&fleeting, &json!({}));
    let mut by_pattern = Client::at(&nodes[1], "/ws");
    by_pattern.subscribe_with(&format!("{unused}.>"), &json!({}));
    let mut publisher = Client::at(&nodes[0], "/ws");
    publisher.subscribe_with(&kept, &json!({}));

    // Presence of a durable topic and of another one are numbers of the cluster.
    let subscribers = |node: &Running, topic: &str| {
        Client::at(node, "/ws").request(json!({ "op": "presence", "topic": topic }))["subscribers"].clone()
    };
    for node in &nodes {
        until("the presence is known", || {
            (subscribers(node, &kept), subscribers(node, &fleeting)) == (json!(2), json!(1))
        });
    }

    // The broker of the cluster has the subscriptions by now: the presence was announced after them.
    for number in 0..20 {
        for topic in [&kept, &fleeting] {
            let ack = publisher.request(json!({ "op": "publish", "id": 1, "topic": topic, "data": number }));
            assert!(ack["op"] == "ack" || ack["op"] == "message", "{ack}");
            if topic == &kept {
                // The acknowledgement and the message, in any order.
                let other = publisher.receive_message();
                assert_ne!(ack["op"], other["op"], "{ack} {other}");
            }
        }
    }
    for client in [&mut by_name, &mut by_pattern] {
        let mut numbers = BTreeMap::<String, Vec<u64>>::new();
        for _ in 0..40 {
            let message = client.receive_message();
            let topic = message["topic"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
            numbers.entry(topic).or_default().push(message["data"].as_u64().unwrap());
        }
        let all: Vec<u64> = (0..20).collect();
        let expected = [(fleeting.clone(), all.clone()), (kept.clone(), all)];
        assert_eq!(numbers, BTreeMap::from(expected), "each message once, in order");
        // Nothing arrives twice, by the store and by the cluster.
        assert_eq!(client.request(json!({ "op": "ping", "id": 1 }))["op"], "pong");
    }

    let position = publish_once(&nodes, &kept, (&mut by_name, &mut publisher));

    // A node dies; its client continues at the other one.
    publish(&nodes[1], &kept, 100..110);
    let [dead, alive] = nodes;
    drop(dead);
    publish(&alive, &kept, 110..120);
    let mut resumed = Client::at(&alive, "/ws");
    let from = json!({ "epoch": position["epoch"], "seq": position["seq"] });
    let ack = resumed.subscribe_with(&kept, &json!({ "from": from }));
    assert_eq!(ack["complete"], true, "{ack}");
    let numbers: Vec<_> = resumed.messages(20).into_iter().map(|(.., data)| data).collect();
    assert_eq!(numbers, (100..120).map(|number| json!(number)).collect::<Vec<_>>());
    until("the members of the dead node are removed", || subscribers(&alive, &kept) == json!(2));
}

/// Publishes with an idempotency key at one node, and again at the other one: it is stored once. Returns the message.
fn publish_once(nodes: &[Running; 2], kept: &str, (by_name, publisher): (&mut Client, &mut Client)) -> Value {
    // A publication that is repeated at the other node is stored once.
    let post = |node: &Running| {
        call(node, "POST /publish", &json!({ "topic": kept, "data": "once", "idempotency_key": "a" }))
    };
    let first = post(&nodes[0]);
    let repeated = post(&nodes[1]);
    assert_fields(&repeated, json!({"seq": first["seq"], "repeated": true}));
    let last = by_name.receive_message();
    assert_fields(&last, json!({"data": "once", "seq": first["seq"]}));
    let message = publisher.receive_message();
    assert_eq!(message["data"], "once");
    message
}
