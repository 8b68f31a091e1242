//! Commands of the HTTP API that concern the clients of all nodes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions, TokenKeys};
use sinews_hub::{HostRules, HubBuilder, HubConfig};
use sinews_testkit::assert_fields;

use super::{Client, KEY, TestPeer, for_both};
use crate::support::fake_broker::FakeBroker;

const SECRET: &str = "a secret of at least thirty-two bytes for HS256";

/// A hub whose clients are users.
pub(super) fn with_tokens(builder: HubBuilder) -> HubBuilder {
    let options = AuthOptions::new().with_keys(TokenKeys::Secret(SECRET.to_owned()));
    let options = options.with_public_subscribe([">".to_owned()]);
    let keys = ApiKeys::new().with_key(KEY).unwrap();
    let policy = HubConfig::new(Auth::new(&options).unwrap(), HostRules::default());
    builder.config(policy.with_api_keys(keys)).history("kept.>", 10)
}

/// Nodes whose clients are users.
fn nodes<const N: usize>(broker: &FakeBroker) -> [TestPeer; N] {
    let nodes = [(); N].map(|()| TestPeer::start_with(broker, with_tokens));
    for node in &nodes {
        node.until("all are known", |node| node.metric("sinews_cluster_nodes") == N as u64);
    }
    nodes
}

/// A user's token.
pub(super) fn token(name: &str) -> String {
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(600);
    let claims = json!({ "exp": end.as_secs(), "sub": name });
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).unwrap()
}

/// A client of a user, and the id of its connection.
pub(super) fn user(node: &TestPeer, name: &str) -> (Client, String) {
    let client = node.websocket(&format!("/ws?token={}", token(name)));
    let mut client = Client(client);
    let welcome = client.receive();
    (client, welcome["connection"].as_str().unwrap().to_owned())
}

/// The ids in the results of an answer, in order.
fn ids(answer: &Value) -> Vec<&str> {
    let results = answer["results"].as_array().unwrap();
    let mut ids: Vec<&str> =
        results.iter().map(|result| result["connection"].as_str().expect("a connection")).collect();
    ids.sort_unstable();
    assert!(results.iter().all(|result| result.get("code").is_none()), "{answer}");
    ids
}

fn sorted<const N: usize>(mut ids: [&str; N]) -> [&str; N] {
    ids.sort_unstable();
    ids
}

/// The topics with the subscribers at the node that has answered.
fn topics(answer: &Value) -> Vec<(&str, u64)> {
    let results = answer["results"].as_array().unwrap().iter();
    results
        .map(|result| (result["topic"].as_str().unwrap(), result["subscribers"].as_u64().unwrap()))
        .collect()
}

#[test]
fn connections_of_a_user_are_subscribed_on_all_nodes() {
    for_both(|broker| {
        let nodes = nodes::<3>(&broker);
        let (mut first, first_id) = user(&nodes[0], "anna");
        let (mut second, second_id) = user(&nodes[1], "anna");
        let (mut other, other_id) = user(&nodes[1], "ben");
        let request = json!({ "topic": "orders.7", "user": "anna" });
        let answer = nodes[2].api("POST /api/v1/subscribe", &request);
        assert_eq!(ids(&answer), sorted([&first_id, &second_id]), "{answer}");
        assert!(answer.get("missing_nodes").is_none(), "{answer}");
        for client in [&mut first, &mut second] {
            let subscribed = client.receive();
            assert_fields(&subscribed, json!({"op": "subscribed", "topic": "orders.7"}));
        }
        // One connection, at another node and here.
        for node in [&nodes[0], &nodes[1]] {
            let request = json!({ "topic": "orders.8", "connection": other_id });
            let answer = node.api("POST /api/v1/subscribe", &request);
            assert_eq!(ids(&answer), [&*other_id], "{answer}");
            assert!(answer.get("missing_nodes").is_none(), "{answer}");
        }
        assert_eq!(other.receive()["topic"], "orders.8");
        broker.wait_for("sinews.t.orders.7", 2);
        nodes[2].api("POST /api/v1/publish", &json!({ "topic": "orders.7", "data": 1 }));
        assert_eq!((first.data(1), second.data(1)), (vec![json!(1)], vec![json!(1)]));
        let answer = nodes[0].api("POST /api/v1/unsubscribe", &request);
        assert_eq!(ids(&answer), sorted([&first_id, &second_id]), "{answer}");
        broker.wait_for("sinews.t.orders.7", 0);
        // Without the subscription, the result of each connection is an error.
        let answer = nodes[2].api("POST /api/v1/unsubscribe", &request);
        let codes: Vec<_> =
            answer["results"].as_array().unwrap().iter().map(|result| &result["code"]).collect();
        assert_eq!(codes, [409, 409], "{answer}");
        let nobody = nodes[2].api("POST /api/v1/subscribe", &json!({ "topic": "a", "user": "nobody" }));
        assert_eq!(nobody, json!({ "results": [] }));
    });
}

#[test]
fn broadcasts_by_pattern_reach_topics_of_all_nodes_once() {
    for_both(|broker| {
        let nodes = nodes::<3>(&broker);
        let mut subscribers = [
            (nodes[0].subscriber("chat.a"), 1),
            (nodes[1].subscriber("chat.a"), 1),
            (nodes[1].subscriber("chat.b"), 1),
            // By pattern: once for each topic.
            (nodes[1].subscriber("chat.*"), 3),
            (nodes[2].subscriber("chat.c"), 1),
            (nodes[0].subscriber("news"), 0),
        ];
        for (topic, count) in [("chat.a", 2), ("chat.b", 1), ("chat.*", 1), ("chat.c", 1), ("news", 1)] {
            broker.wait_for(&format!("sinews.t.{topic}"), count);
        }
        let request = json!({ "pattern": "chat.*", "data": "all" });
        let answer = nodes[2].api("POST /api/v1/broadcast", &request);
        assert_eq!(topics(&answer), [("chat.a", 0), ("chat.b", 0), ("chat.c", 1)], "{answer}");
        assert!(answer.get("missing_nodes").is_none(), "{answer}");
        nodes[2].api(
            "POST /api/v1/broadcast",
            &json!({ "topics": ["chat.a", "chat.b", "chat.c", "news"], "data": "last" }),
        );
        for (subscriber, count) in &mut subscribers {
            assert_eq!(subscriber.data(*count), vec![json!("all"); *count]);
            assert_eq!(subscriber.data(1), ["last"]);
        }
    });
}

#[test]
fn publication_excludes_a_connection_of_any_node() {
    for_both(|broker| {
        let nodes = nodes::<2>(&broker);
        let mut clients = [user(&nodes[0], "anna"), user(&nodes[1], "ben"), user(&nodes[1], "carl")];
        for (client, _) in &mut clients {
            for topic in ["chat.a", "kept.a"] {
                client.request(&json!({ "op": "subscribe", "topic": topic, "id": 1 }));
            }
        }
        for topic in ["chat.a", "kept.a"] {
            broker.wait_for(&format!("sinews.t.{topic}"), 2);
        }
        let ids = clients.each_ref().map(|(_, id)| id.clone());
        for topic in ["chat.a", "kept.a"] {
            for (at, id) in ids.iter().enumerate() {
                let message = json!({ "topic": topic, "data": at, "exclude": id });
                nodes[0].api("POST /api/v1/publish", &message);
            }
        }
        nodes[0].api("POST /api/v1/publish", &json!({ "topic": "chat.a", "data": "last" }));
        for (at, (client, _)) in clients.iter_mut().enumerate() {
            let others: Vec<usize> = (0..3).filter(|number| *number != at).collect();
            let mut expected: Vec<Value> = others.iter().chain(&others).map(|number| json!(number)).collect();
            expected.push(json!("last"));
            assert_eq!(client.data(5), expected);
        }
        // The node of an excluded connection retains the message.
        let history = nodes[1].api("GET /api/v1/topics/kept.a/history?last=9", &Value::Null);
        assert_eq!(history["messages"].as_array().unwrap().len(), 3, "{history}");
    });
}

#[test]
fn nodes_without_an_answer_are_named_in_all_answers() {
    for_both(|broker| {
        let nodes = nodes::<2>(&broker);
        let (_first, id) = user(&nodes[0], "anna");
        let (_second, second_id) = user(&nodes[1], "anna");
        let mut subscriber = nodes[0].subscriber("chat.a");
        broker.go_down();
        nodes[0].until("the outage is noticed", |node| !node.is_ready());
        let answer = nodes[0].api("POST /api/v1/subscribe", &json!({ "topic": "a", "user": "anna" }));
        let missing = |answer: &Value| answer["missing_nodes"].as_array().map(Vec::len);
        assert_eq!((ids(&answer), missing(&answer)), (vec![&*id], Some(1)), "{answer}");
        let answer =
            nodes[0].api("POST /api/v1/unsubscribe", &json!({ "topic": "a", "connection": second_id }));
        assert_eq!((ids(&answer), missing(&answer)), (vec![], Some(1)), "{answer}");
        // A connection of this node is no matter of others.
        let answer = nodes[0].api("POST /api/v1/unsubscribe", &json!({ "topic": "a", "connection": id }));
        assert_eq!((ids(&answer), missing(&answer)), (vec![&*id], None), "{answer}");
        let answer = nodes[0].api("POST /api/v1/broadcast", &json!({ "pattern": "chat.*", "data": 1 }));
        assert_eq!((topics(&answer), missing(&answer)), (vec![("chat.a", 1)], Some(1)), "{answer}");
        assert_eq!(subscriber.data(1), [1]);
    });
}
