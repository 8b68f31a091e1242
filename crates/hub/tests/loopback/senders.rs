//! The sender and the time that the server adds to messages.

use std::path::Path;

use serde_json::{Value, json};
use sinews_hub::{Hub, Namespace, StreamOptions};
use sinews_testkit::assert_fields;

use crate::support::fake_store::FakeStore;
use crate::support::json_client::{API_KEY, Client, policy, token};
use crate::support::{TestHub, parse};

/// A hub whose messages have senders, but for those of `anonymous.…`.
fn hub(directory: &Path, store: Option<&FakeStore>) -> TestHub {
    let namespaces = [
        Namespace::new(">").with_sender(true),
        Namespace::new("anonymous.>").with_sender(false),
        Namespace::new("timed.>").with_timestamps(true),
        Namespace::new("kept.timeless").with_timestamps(false),
        Namespace::new("durable.timeless").with_timestamps(false),
    ];
    let streams = StreamOptions::in_directory(directory).with_durable_topics(["durable.>".to_owned()]);
    let builder = Hub::builder().config(policy(true, namespaces)).streams(streams).history("kept.>", 100);
    TestHub::built(match store {
        Some(store) => builder.topic_store(store.connect()),
        None => builder,
    })
}

fn claims(user: &str) -> Value {
    json!({ "sub": user, "info": { "name": user.to_uppercase() }, "publish": ">", "subscribe": ">" })
}

fn publish(client: &mut Client, topic: &str, data: &Value) {
    let ack = client.ask(json!({ "op": "publish", "topic": topic, "data": data }));
    assert_eq!(ack["op"], "ack", "{ack}");
}

/// The fields of a message besides those of its content and position.
fn stamp(message: &Value) -> (Option<&Value>, Option<&Value>, bool) {
    let time = message.get("at").map(|at| at.as_u64().unwrap());
    // The store of the tests has a clock of its own.
    assert!(time.is_none_or(|at| at > 1), "{message}");
    (message.get("user"), message.get("info"), time.is_some())
}

#[test]
fn messages_name_the_user_of_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let (hub, store) = (hub(directory.path(), None), FakeStore::new());
    let other = tempfile::tempdir().unwrap();
    let stored = self::hub(other.path(), Some(&store));
    let (anna, info) = (json!("anna"), json!({ "name": "ANNA" }));
    for (hub, topic, has_time) in [
        (&hub, "plain", false),
        (&hub, "timed.a", true),
        (&hub, "kept.a", true),
        (&hub, "kept.timeless", false),
        (&hub, "durable.a", true),
        (&hub, "durable.timeless", false),
        (&stored, "kept.a", true),
        (&stored, "kept.timeless", false),
    ] {
        let mut reader = Client::with_token(hub, claims("ben"));
        reader.ask(json!({ "op": "subscribe", "topic": topic }));
        let mut client = Client::with_token(hub, claims("anna"));
        // A content, and a request, cannot name another user.
        let forged = json!({ "user": "ben", "info": 1, "at": 1 });
        publish(&mut client, topic, &forged);
        let message = reader.receive();
        assert_eq!(stamp(&message), (Some(&anna), Some(&info), has_time), "{topic}: {message}");
        assert_eq!(message["data"], forged);
        for field in ["user", "info", "at"] {
            let mut request = json!({ "op": "publish", "topic": topic, "data": 1 });
            request[field] = json!("x");
            assert_eq!(client.ask(request)["op"], "ack");
            let message = reader.receive();
            assert_eq!(stamp(&message), (Some(&anna), Some(&info), has_time), "{topic}: {message}");
        }
        // Plain requests, and payloads at the topic's own path, have the same sender.
        let lines =
            format!("Content-Type: application/json\r\nAuthorization: Bearer {}\r\n", token(claims("anna")));
        assert_eq!(hub.request(&format!("POST /topics/{topic}"), &lines, "2").status(), 200);
        assert_eq!(stamp(&reader.receive()), (Some(&anna), Some(&info), has_time), "{topic}");
        let mut payloads = hub.websocket(&format!("/topics/{topic}?token={}", token(claims("anna"))));
        payloads.send_text("3").unwrap();
        payloads.flush().unwrap();
        let message = reader.receive();
        assert_eq!(stamp(&message), (Some(&anna), Some(&info), has_time), "{topic}: {message}");
        // Backends are no users, and neither are clients without a sub.
        let lines = format!("Content-Type: application/json\r\nAuthorization: Bearer {API_KEY}\r\n");
        let body = json!({ "topic": topic, "data": 4 }).to_string();
        assert_eq!(hub.request("POST /api/v1/publish", &lines, body).status(), 200);
        assert_eq!(stamp(&reader.receive()), (None, None, has_time), "{topic}");
        publish(&mut Client::with_token(hub, json!({ "publish": ">", "info": 1 })), topic, &json!(5));
        assert_eq!(stamp(&reader.receive()), (None, None, has_time), "{topic}");
        if !topic.starts_with("kept") && !topic.starts_with("durable") {
            continue;
        }
        // The same in the history, in a replay, and in a stream of events.
        let history = reader.ask(json!({ "op": "history", "topic": topic, "last": 5 }));
        let messages = history["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 5, "{topic}");
        assert_eq!(stamp(&messages[0]), (Some(&anna), Some(&info), has_time), "{topic}: {history}");
        assert_eq!(stamp(&messages[4]), (None, None, has_time));
        let mut late = Client::with_token(hub, claims("carl"));
        late.ask(json!({ "op": "subscribe", "topic": topic, "last": 5 }));
        assert_eq!(late.receive(), messages[0], "{topic}");
    }
}

#[test]
fn namespace_without_senders_hides_them_and_tokens_renew_them() {
    let directory = tempfile::tempdir().unwrap();
    let hub = hub(directory.path(), None);
    let mut reader = Client::with_token(&hub, claims("ben"));
    let mut client = Client::with_token(&hub, json!({ "sub": "anna", "publish": ">" }));
    for topic in ["anonymous.a", "plain"] {
        reader.ask(json!({ "op": "subscribe", "topic": topic }));
    }
    publish(&mut client, "anonymous.a", &json!(1));
    assert_eq!(stamp(&reader.receive()), (None, None, false));
    publish(&mut client, "plain", &json!(1));
    assert_eq!(stamp(&reader.receive()), (Some(&json!("anna")), None, false), "without a claim");
    client.ask(json!({ "op": "token", "token": token(claims("anna")) }));
    publish(&mut client, "plain", &json!(1));
    assert_eq!(stamp(&reader.receive()).1, Some(&json!({ "name": "ANNA" })));
    let long = "a".repeat(129);
    let mut client = Client::with_token(&hub, json!({ "sub": long, "publish": ">" }));
    let answer = client.ask(json!({ "op": "publish", "topic": "plain", "data": 1 }));
    assert_fields(&answer, json!({ "op": "error", "code": 413 }));
    let answer = client.ask(json!({ "op": "publish", "topic": "anonymous.a", "data": 1 }));
    assert_eq!(answer["op"], "ack", "{answer}");
    let claims = json!({ "sub": "anna", "info": "i".repeat(1_024) });
    let mut rejected =
        hub.request("POST /topics/a", &format!("Authorization: Bearer {}\r\n", token(claims)), "1");
    let (status, answer) = (rejected.status(), parse(&rejected.rest()));
    assert_eq!(
        (status, &answer["error"]),
        (401, &json!("the token's info of 1026 bytes exceeds the limit of 1024 bytes"))
    );
}

#[test]
fn claim_replaces_the_info_of_a_member() {
    let directory = tempfile::tempdir().unwrap();
    let hub = hub(directory.path(), None);
    let mut watcher = Client::with_token(&hub, claims("watcher"));
    for (claims, expected) in [
        (claims("anna"), json!({ "name": "ANNA" })),
        (json!({ "sub": "anna", "subscribe": ">" }), json!({ "name": "admin" })),
    ] {
        let mut client = Client::with_token(&hub, claims);
        let member = json!({ "id": "anna", "info": { "name": "admin" } });
        assert_eq!(client.ask(json!({ "op": "join", "topic": "a", "member": member }))["op"], "ack");
        let members = watcher.ask(json!({ "op": "members", "topic": "a" }));
        assert_eq!(members["members"][0]["info"], expected, "{members}");
    }
}

#[test]
fn clients_cannot_append_records_with_a_sender() {
    let directory = tempfile::tempdir().unwrap();
    let hub = hub(directory.path(), None);
    let mut client = Client::with_token(&hub, claims("anna"));
    let key = r#"sinews-sender: {"user":"ben"}"#;
    let append = json!({ "op": "append", "stream": "durable.a", "key": key, "data": 1 });
    assert_fields(&client.ask(append), json!({ "op": "error", "code": 422 }));
    publish(&mut client, "durable.a", &json!(1));
    let read = client.ask(json!({ "op": "read", "stream": "durable.a", "offset": 0 }));
    let key = read["records"][0]["key"].as_str().unwrap();
    assert_eq!(key, r#"sinews-sender: {"user":"anna","info":{"name":"ANNA"}}"#);
}
