//! Publications by clients with an idempotency key, and pages of histories.

use std::path::Path;

use serde_json::{Value, json};
use sinews_hub::{Hub, StreamOptions};
use sinews_testkit::{assert_fields, until};

use crate::support::fake_store::FakeStore;
use crate::support::json_client::{API_KEY, Client, policy};
use crate::support::{TestHub, parse};

impl Client {
    fn publish(&mut self, topic: &str, data: impl Into<Value>, key: &str) -> Value {
        let data = data.into();
        self.ask(json!({ "op": "publish", "topic": topic, "data": data, "idempotency_key": key }))
    }

    /// The data of the messages of a page, and the page without its messages.
    fn page(&mut self, request: Value) -> (Vec<Value>, Value) {
        let mut page = self.ask(request);
        assert_eq!(page["op"], "history", "{page}");
        let messages = page["messages"].take();
        let data = messages.as_array().unwrap().iter().map(|message| message["data"].clone()).collect();
        let page = page.as_object_mut().unwrap();
        for field in ["op", "topic", "messages"] {
            page.remove(field);
        }
        (data, Value::Object(std::mem::take(page)))
    }
}

/// A hub with topics `kept.…` in memory and `durable.…` in streams.
fn hub(directory: &Path, has_tokens: bool) -> TestHub {
    let streams = StreamOptions::in_directory(directory).with_durable_topics(["durable.>".to_owned()]);
    let builder = Hub::builder().config(policy(has_tokens, [])).streams(streams);
    TestHub::built(builder.history("kept.>", 100))
}

/// A hub whose histories a store has.
fn stored_hub(store: &FakeStore) -> TestHub {
    let builder = Hub::builder().config(policy(false, []));
    TestHub::built(builder.history("kept.>", 100).topic_store(store.connect()))
}

#[test]
fn publication_with_a_repeated_key_has_the_first_answer() {
    let directory = tempfile::tempdir().unwrap();
    let (store, hub) = (FakeStore::new(), hub(directory.path(), false));
    let stored = stored_hub(&store);
    for (hub, topic) in [(&hub, "plain"), (&hub, "kept.a"), (&hub, "durable.a"), (&stored, "kept.a")] {
        let (mut reader, mut client) = (Client::new(hub), Client::new(hub));
        reader.ask(json!({ "op": "subscribe", "topic": topic }));
        let first = client.publish(topic, 1, "k");
        let second = client.publish(topic, 1, "k");
        assert_eq!((&first["op"], first.get("repeated")), (&json!("ack"), None), "{topic}: {first}");
        assert_fields(&second, json!({ "op": "ack", "repeated": true }));
        for field in ["reached", "epoch", "seq"] {
            assert_eq!(second.get(field), first.get(field), "{topic}: {second}");
        }
        // Another connection, and a plain request, of the same user.
        assert_eq!(Client::new(hub).publish(topic, 1, "k")["repeated"], true);
        let lines = "Content-Type: application/json\r\nIdempotency-Key: k\r\n";
        let mut answer = hub.request(&format!("POST /topics/{topic}"), lines, "1");
        assert_eq!((answer.status(), &parse(&answer.rest())["repeated"]), (200, &json!(true)));
        assert_eq!(client.publish(topic, 2, "l").get("repeated"), None);
        let received = [reader.receive(), reader.receive()].map(|message| message["data"].clone());
        assert_eq!(received, [1, 2], "{topic}");
        // A backend has keys of its own.
        let lines = format!("Content-Type: application/json\r\nAuthorization: Bearer {API_KEY}\r\n");
        let body = json!({ "topic": topic, "data": 3, "idempotency_key": "k" }).to_string();
        let mut answer = hub.request("POST /api/v1/publish", &lines, body);
        assert_eq!(parse(&answer.rest()).get("repeated"), None, "{topic}");
        assert_eq!(reader.receive()["data"], 3);
    }
}

#[test]
fn idempotency_keys_are_those_of_one_user() {
    let directory = tempfile::tempdir().unwrap();
    let hub = hub(directory.path(), true);
    let mut clients = ["anna", "ben"]
        .map(|user| Client::with_token(&hub, json!({ "sub": user, "publish": ">", "subscribe": ">" })));
    for topic in ["plain", "kept.a", "durable.a"] {
        let acks = clients.each_mut().map(|client| client.publish(topic, 1, "k"));
        assert!(acks.iter().all(|ack| ack["op"] == "ack" && ack.get("repeated").is_none()), "{acks:?}");
        let mut again = Client::with_token(&hub, json!({ "sub": "ben", "publish": ">" }));
        assert_eq!(again.publish(topic, 1, "k")["repeated"], true, "{topic}");
    }
    for bad in ["", &"k".repeat(129)] {
        let answer = clients[0].publish("plain", 1, bad);
        assert_fields(&answer, json!({ "op": "error", "code": 422 }));
    }
    let answer = clients[0].ask(json!({ "op": "subscribe", "topic": "plain", "idempotency_key": "k" }));
    assert_fields(&answer, json!({ "op": "error", "code": 400 }));
}

#[test]
fn keys_of_a_durable_topic_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let first = Client::new(&hub(directory.path(), false)).publish("durable.a", 1, "k");
    let hub = hub(directory.path(), false);
    let mut client = Client::new(&hub);
    let again = client.publish("durable.a", 1, "k");
    assert_eq!((&again["seq"], &again["repeated"]), (&first["seq"], &json!(true)), "{again}");
    // The second publication waits for no read, and stays behind the first.
    let acks = [client.publish("durable.a", 2, "l"), client.publish("durable.a", 3, "m")];
    assert_eq!(acks.map(|ack| ack["seq"].clone()), [2, 3]);
}

#[test]
fn history_is_read_in_pages_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let (store, hub) = (FakeStore::new(), hub(directory.path(), false));
    let stored = stored_hub(&store);
    for (hub, topic) in [(&hub, "kept.a"), (&hub, "durable.a"), (&stored, "kept.a")] {
        let mut client = Client::new(hub);
        (0..10).for_each(|number| _ = client.publish(topic, number, &number.to_string()));
        let mut messages = Value::Null;
        // This node's copy follows the store.
        until("the messages are here", || {
            messages = client.ask(json!({ "op": "history", "topic": topic, "last": 10 }))["messages"].take();
            messages.as_array().is_some_and(|messages| messages.len() == 10)
        });
        let position = |message: &Value| json!({ "epoch": message["epoch"], "seq": message["seq"] });
        let positions: Vec<Value> = messages.as_array().unwrap().iter().map(position).collect();
        let before = |number: usize, last: usize| json!({ "op": "history", "topic": topic, "last": last, "before": positions[number] });
        let after = |number: usize, limit: usize| json!({ "op": "history", "topic": topic, "from": positions[number], "limit": limit });
        let more = json!({ "more": true });
        assert_eq!(client.page(before(9, 4)), (vec![json!(5), json!(6), json!(7), json!(8)], more.clone()));
        assert_eq!(client.page(before(5, 4)), (vec![json!(1), json!(2), json!(3), json!(4)], more.clone()));
        assert_eq!(client.page(before(1, 4)), (vec![json!(0)], json!({})), "{topic}");
        assert_eq!(client.page(before(0, 4)), (vec![], json!({})));
        assert_eq!(client.page(after(0, 2)), (vec![json!(1), json!(2)], more));
        assert_eq!(client.page(after(7, 2)), (vec![json!(8), json!(9)], json!({})), "{topic}");
        assert_eq!(client.page(after(9, 2)), (vec![], json!({})));
        let mut other = positions[3].clone();
        other["epoch"] = json!(1_u64 << 40);
        let lost = json!({ "complete": false });
        let request = json!({ "op": "history", "topic": topic, "last": 2, "before": other });
        assert_eq!(client.page(request), (vec![], lost), "{topic}");
        api_pages(hub, topic, &positions);
    }
    for (fields, fault) in [
        (json!({ "last": 1, "limit": 1 }), "limit is for from"),
        (
            json!({ "from": { "epoch": 1, "seq": 1 }, "before": { "epoch": 1, "seq": 1 } }),
            "before is for last",
        ),
        (json!({ "last": 1, "from": { "epoch": 1, "seq": 1 } }), "last or from"),
        (json!({ "before": { "epoch": 1, "seq": 1 } }), "last or from is missing"),
    ] {
        let mut request = json!({ "op": "history", "topic": "kept.a" });
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = Client::new(&hub).ask(request);
        assert_eq!(answer["code"], 400, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(fault), "{answer}");
    }
    let answer = Client::new(&hub).ask(json!({ "op": "subscribe", "topic": "kept.a", "limit": 1 }));
    assert_eq!(answer["code"], 400, "{answer}");
}

/// The same pages by the HTTP API.
fn api_pages(hub: &TestHub, topic: &str, positions: &[Value]) {
    let authorization = format!("Authorization: Bearer {API_KEY}\r\n");
    let page = |query: &str| {
        let path = format!("/api/v1/topics/{topic}/history?{query}");
        let mut answer = hub.request(&format!("GET {path}"), &authorization, "");
        (answer.status(), parse(&answer.rest()))
    };
    let data = |page: &Value| -> Vec<Value> {
        page["messages"].as_array().unwrap().iter().map(|message| message["data"].clone()).collect()
    };
    let (epoch, seq) = (&positions[5]["epoch"], &positions[5]["seq"]);
    let (status, before) = page(&format!("last=2&before_epoch={epoch}&before_seq={seq}"));
    assert_eq!((status, data(&before), &before["more"]), (200, vec![json!(3), json!(4)], &json!(true)));
    let (status, after) = page(&format!("epoch={epoch}&seq={seq}&limit=9"));
    assert_eq!((status, data(&after).len(), after.get("more")), (200, 4, None), "{after}");
    let (_, lost) = page(&format!("epoch=99&seq={seq}"));
    assert_eq!(lost["complete"], false, "{lost}");
    for bad in ["last=1&limit=1", "before_epoch=1&last=1", "epoch=1&seq=1&last=1"] {
        assert_eq!(page(bad).0, 400, "{bad}");
    }
}
