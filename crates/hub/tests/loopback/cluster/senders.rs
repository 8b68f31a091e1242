//! Senders of messages at other nodes.

use serde_json::{Value, json};
use sinews_hub::Namespace;

use super::{Client, TestPeer, for_both};
use crate::support::json_client::{policy, token};

/// A client with a token of these claims.
fn client(node: &TestPeer, claims: Value) -> Client {
    let mut client = Client(node.websocket(&format!("/ws?token={}", token(claims))));
    assert_eq!(client.receive()["op"], "welcome");
    client
}

#[test]
fn messages_have_the_same_sender_and_time_at_all_nodes() {
    for_both(|broker| {
        let nodes = [(); 2].map(|()| {
            TestPeer::start_with(&broker, |builder| {
                let namespaces = [Namespace::new(">").with_sender(true)];
                builder.config(policy(true, namespaces)).history("kept.>", 10)
            })
        });
        for topic in ["plain", "kept.a"] {
            let mut readers = nodes.each_ref().map(|node| {
                let mut reader = client(node, json!({ "sub": "ben", "subscribe": ">" }));
                reader.request(&json!({ "op": "subscribe", "topic": topic, "id": 1 }));
                reader
            });
            broker.wait_for(&format!("sinews.t.{topic}"), 2);
            let claims = json!({ "sub": "anna", "info": { "name": "Anna" }, "publish": ">" });
            let mut publisher = client(&nodes[0], claims);
            // A payload that looks like a sender.
            let data = json!({ "user": "ben", "at": 1 });
            publisher.request(&json!({ "op": "publish", "topic": topic, "data": data, "id": 1 }));
            let [own, other] = readers.each_mut().map(Client::receive);
            for field in ["user", "info", "at", "data"] {
                assert_eq!(own.get(field), other.get(field), "{topic}: {field}");
            }
            assert_eq!((&other["user"], &other["info"]), (&json!("anna"), &json!({ "name": "Anna" })));
            assert_eq!(other.get("at").is_some(), topic == "kept.a", "{other}");
        }
    });
}
