//! Recovery of pattern subscriptions.

use serde_json::{Map, Value, json};
use sinews_hub::Hub;
use sinews_testkit::assert_fields;

use crate::support::TestHub;
use crate::support::fake_store::FakeStore;
use crate::support::json_client::{Client, policy};

fn hub() -> TestHub {
    TestHub::built(Hub::builder().config(policy(false, [])).history("chat.>", 10))
}

fn publish(client: &mut Client, topic: &str, data: usize) {
    let ack = client.ask(json!({ "op": "publish", "topic": topic, "data": data }));
    assert_eq!(ack["op"], "ack", "{ack}");
}

/// The topics and data of the next messages.
fn messages(client: &mut Client, count: usize) -> Vec<(String, u64)> {
    let mut next = || {
        let message = client.receive();
        assert_eq!(message["op"], "message", "{message}");
        (message["topic"].as_str().unwrap().to_owned(), message["data"].as_u64().unwrap())
    };
    (0..count).map(|_| next()).collect()
}

/// Positions as a client keeps them: by the acknowledgement, and by later messages.
fn note(positions: &mut Map<String, Value>, message: &Value) {
    let position = json!({ "epoch": message["epoch"], "seq": message["seq"] });
    positions.insert(message["topic"].as_str().unwrap().to_owned(), position);
}

#[test]
fn pattern_resumes_exactly_from_positions_by_topic() {
    let hub = hub();
    let mut publisher = Client::new(&hub);
    publish(&mut publisher, "chat.quiet", 1);
    publish(&mut publisher, "chat.busy", 1);
    publish(&mut publisher, "other", 1);
    let mut client = Client::new(&hub);
    let ack = client.ask(json!({ "op": "subscribe", "topic": "chat.*", "recover": true }));
    let mut positions = ack["positions"].as_object().unwrap().clone();
    assert_eq!(positions.keys().collect::<Vec<_>>(), ["chat.busy", "chat.quiet"], "{ack}");
    assert_eq!((&positions["chat.busy"]["seq"], ack.get("positions_complete")), (&json!(1), None));
    publish(&mut publisher, "chat.busy", 2);
    note(&mut positions, &client.receive());
    drop(client);
    for number in 3..6 {
        publish(&mut publisher, "chat.busy", number);
    }
    for number in 1..3 {
        publish(&mut publisher, "chat.new", number);
    }
    let mut client = Client::new(&hub);
    let resume = json!({ "op": "subscribe", "topic": "chat.*", "from": { "positions": positions } });
    let ack = client.ask(resume);
    assert_fields(&ack, json!({ "op": "ack", "replayed": 5, "complete": true }));
    assert_eq!((ack.get("incomplete"), ack.get("positions")), (None, None), "{ack}");
    // Later publications follow, once each.
    publish(&mut publisher, "chat.busy", 6);
    publish(&mut publisher, "chat.new", 3);
    publish(&mut publisher, "chat.quiet", 2);
    let received = messages(&mut client, 8);
    let of = |topic: &str| -> Vec<u64> {
        received.iter().filter(|(name, _)| name == topic).map(|(_, data)| *data).collect()
    };
    assert_eq!(
        (of("chat.busy"), of("chat.new"), of("chat.quiet")),
        (vec![3, 4, 5, 6], vec![1, 2, 3], vec![2])
    );
    // The end of the pattern ends its topics' replays.
    client.ask(json!({ "op": "unsubscribe", "topic": "chat.*" }));
    publish(&mut publisher, "chat.busy", 7);
    client.ask(json!({ "op": "subscribe", "topic": "chat.busy", "last": 0 }));
    publish(&mut publisher, "chat.busy", 8);
    assert_eq!(messages(&mut client, 1), [("chat.busy".to_owned(), 8)]);
}

#[test]
fn lost_messages_of_a_pattern_are_reported_by_topic() {
    let hub = hub();
    let mut publisher = Client::new(&hub);
    for number in 0..20 {
        publish(&mut publisher, "chat.busy", number);
    }
    publish(&mut publisher, "chat.quiet", 1);
    let mut client = Client::new(&hub);
    let mut ask = |positions: Value| {
        let from = json!({ "positions": positions });
        let ack = client.ask(json!({ "op": "subscribe", "topic": "chat.>", "recover": true, "from": from }));
        let replayed = ack["replayed"].as_u64().unwrap() as usize;
        let received = messages(&mut client, replayed);
        client.ask(json!({ "op": "unsubscribe", "topic": "chat.>" }));
        (ack, received.len())
    };
    let (known, _) = ask(json!({}));
    assert_fields(&known, json!({ "complete": false, "incomplete": ["chat.busy"], "replayed": 11 }));
    let at = |topic: &str, seq: u64| json!({ "epoch": known["positions"][topic]["epoch"], "seq": seq });
    let quiet = at("chat.quiet", 1);
    let (ack, _) = ask(json!({ "chat.busy": at("chat.busy", 10), "chat.quiet": quiet }));
    assert_fields(&ack, json!({ "complete": true, "replayed": 10 }));
    let (ack, _) = ask(json!({ "chat.busy": at("chat.busy", 9), "chat.quiet": quiet }));
    assert_fields(&ack, json!({ "complete": false, "incomplete": ["chat.busy"], "replayed": 10 }));
    let gone = json!({ "epoch": 1, "seq": 5 });
    let (ack, _) = ask(json!({ "chat.busy": at("chat.busy", 20), "chat.quiet": quiet, "chat.gone": gone }));
    assert_fields(&ack, json!({ "complete": false, "incomplete": ["chat.gone"], "replayed": 0 }));
    // Topics without a history match, and may have lost messages too: no list of topics would be all of them.
    for pattern in [">", "*.a"] {
        let mut client = Client::new(&hub);
        let mut from = json!({ "positions": known["positions"] });
        from["positions"]["chat.gone"] = gone.clone();
        let ack = client.ask(json!({ "op": "subscribe", "topic": pattern, "from": from }));
        assert_fields(&ack, json!({ "complete": false, "replayed": 0 }));
        assert_eq!(ack.get("incomplete"), None, "{ack}");
    }
}

#[test]
fn number_of_recovered_topics_is_limited() {
    let hub = hub();
    let mut publisher = Client::new(&hub);
    for number in 0..300 {
        publish(&mut publisher, &format!("chat.{number:03}"), 1);
    }
    let mut client = Client::new(&hub);
    let ack = client.ask(json!({ "op": "subscribe", "topic": "chat.*", "from": { "positions": {} } }));
    assert_fields(&ack, json!({ "complete": false, "replayed": 256 }));
    assert_eq!(ack["incomplete"].as_array().unwrap().len(), 44);
    assert_eq!(messages(&mut client, 256).len(), 256);
    let gone: Map<String, Value> =
        (0..65).map(|number| (format!("gone.{number}"), json!({ "epoch": 1, "seq": 1 }))).collect();
    let request = json!({ "op": "subscribe", "topic": "chat.*.*", "from": { "positions": gone } });
    let ack = client.ask(request);
    assert_eq!((&ack["complete"], ack.get("incomplete")), (&json!(false), None), "too many to name");
    for number in 300..1_030 {
        publish(&mut publisher, &format!("chat.{number:03}"), 1);
    }
    let mut other = Client::new(&hub);
    let ack = other.ask(json!({ "op": "subscribe", "topic": "chat.*", "recover": true }));
    assert_eq!(ack["positions"].as_object().unwrap().len(), 1_024);
    assert_eq!(ack["positions_complete"], false);
    let positions: Map<String, Value> =
        (0..1_025).map(|number| (number.to_string(), json!({ "epoch": 1, "seq": 1 }))).collect();
    let request = json!({ "op": "subscribe", "topic": "a.*", "from": { "positions": positions } });
    assert_fields(&other.ask(request), json!({ "op": "error", "code": 413 }));
}

#[test]
fn patterns_of_other_storage_are_incomplete_and_names_take_no_positions() {
    let store = FakeStore::new();
    let builder = Hub::builder().config(policy(false, [])).history("chat.>", 10);
    let stored = TestHub::built(builder.topic_store(store.connect()));
    let mut client = Client::new(&stored);
    publish(&mut client, "chat.a", 1);
    let from = json!({ "positions": {} });
    let request = json!({ "op": "subscribe", "topic": "chat.*", "recover": true, "from": from });
    let ack = client.ask(request);
    assert_fields(&ack, json!({ "complete": false, "positions": {}, "positions_complete": false }));
    for (topic, from) in [("chat.a", json!({ "positions": {} })), ("chat.*", json!({ "positions": 1 }))] {
        let answer = client.ask(json!({ "op": "subscribe", "topic": topic, "from": from }));
        assert_fields(&answer, json!({ "op": "error", "code": 400 }));
    }
    let answer = client.ask(json!({ "op": "publish", "topic": "a", "data": 1, "recover": true }));
    assert_fields(&answer, json!({ "op": "error", "code": 400 }));
}
