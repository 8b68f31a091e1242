//! The HTTP API for backends, against its own document and against docs/book/src/server/api.md.

mod assigned;
mod connections;
mod document;
mod refresh;
mod revocations;
pub(crate) mod schema;

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sinews_testkit::{Reply, assert_fields};

use crate::config::Directory;
use crate::protocol::{Client, connected};
use crate::support::{PROGRAM, Running, until};

pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef-admin";

/// An answer: its status, head and body.
pub(crate) struct ApiAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// Sends a request with a key and other header lines.
pub(crate) fn call_with(server: &Running, key: &str, lines: &str, route: &str, body: &str) -> ApiAnswer {
    let head = format!("{route} HTTP/1.1\r\nAuthorization: Bearer {key}{lines}");
    let answer = server.request(&head, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
    };
    ApiAnswer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body }
}

/// The body of a successful answer to `METHOD /path` below `/api/v1`.
pub(crate) fn call(server: &Running, route: &str, body: &Value) -> Value {
    let (method, path) = route.split_once(' ').unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = call_with(server, KEY, "", &format!("{method} /api/v1{path}"), &body);
    assert_eq!(answer.status, 200, "{route}: {}", answer.body);
    answer.body
}

pub(crate) fn serve(arguments: &[&str]) -> Running {
    Running::serve(&[&["--api-key", KEY, "--threads", "2"], arguments].concat())
}

#[test]
fn messages_are_published_alone_in_batches_and_to_many_topics() {
    let (server, mut client) = connected(serve(&[]));
    for topic in ["chat.a", "chat.b", "news"] {
        client.subscribe_with(topic, &json!({}));
    }
    let mut raw = server.websocket("/topics/chat.c");
    raw.send(&sinews_testkit::Frame::ping(""));
    assert!(matches!(raw.next(), Some(Reply::Pong(_))));

    let published = call(&server, "POST /publish", &json!({"topic": "chat.a", "data": {"n": null}}));
    assert_eq!(published, json!({"topic": "chat.a", "subscribers": 1}));
    assert_eq!(client.receive_message(), json!({"op": "message", "topic": "chat.a", "data": {"n": null}}));
    let published = call(&server, "POST /publish", &json!({"topic": "chat.b", "b64": "AP8="}));
    assert_eq!(published["subscribers"], 1);
    assert_eq!(client.receive_message(), json!({"op": "message", "topic": "chat.b", "b64": "AP8="}));

    let batch = json!({"messages": [
        {"topic": "news", "data": 1}, {"topic": "chat.*", "data": 2}, {"topic": "nobody", "data": 3}, {"topic": "news", "data": 4},
    ]});
    let results = call(&server, "POST /batch", &batch);
    assert_eq!(results["results"][0], json!({"topic": "news", "subscribers": 1}));
    assert_fields(&results["results"][1], json!({"topic": "chat.*", "code": 422}));
    assert_eq!(results["results"][2], json!({"topic": "nobody", "subscribers": 0}));
    assert_eq!([(); 2].map(|()| client.receive_message()["data"].clone()), [1, 4]);

    let results = call(&server, "POST /broadcast", &json!({"topics": ["chat.a", "news"], "data": "both"}));
    let expected = json!([{"topic": "chat.a", "subscribers": 1}, {"topic": "news", "subscribers": 1}]);
    assert_eq!(results["results"], expected);
    assert_eq!([(); 2].map(|()| client.receive_message()["topic"].clone()), ["chat.a", "news"]);

    let results = call(&server, "POST /broadcast", &json!({"pattern": "chat.*", "data": "all"}));
    let topics: Vec<_> = results["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["topic"].as_str().unwrap())
        .collect();
    assert_eq!(topics, ["chat.a", "chat.b", "chat.c"]);
    assert_eq!([(); 2].map(|()| client.receive_message()["topic"].clone()), ["chat.a", "chat.b"]);
    assert_eq!(raw.next(), Some(Reply::text("all")));
    assert_eq!(
        call(&server, "POST /broadcast", &json!({"pattern": "none.*", "data": 1})),
        json!({"results": []})
    );
}

/// A client of `/ws` with subscriptions, and the id of its connection.
fn subscriber(server: &Running, topics: &[&str]) -> (Client, String) {
    let (mut client, welcome) = Client::welcomed(server, "/ws", "");
    topics.iter().for_each(|topic| drop(client.subscribe_with(topic, &json!({}))));
    (client, welcome["connection"].as_str().unwrap().to_owned())
}

#[test]
fn publications_exclude_one_connection() {
    let server = serve(&["--history", "kept.>=10"]);
    let mut clients = [(); 4].map(|()| subscriber(&server, &["live.a", "kept.a"]));
    let ids = clients.each_ref().map(|(_, id)| id.clone());
    for (at, id) in ids.iter().enumerate() {
        for topic in ["live.a", "kept.a"] {
            let message = json!({"topic": topic, "data": at, "exclude": id});
            call(&server, "POST /publish", &message);
            call(&server, "POST /batch", &json!({"messages": [message]}));
            let broadcast = json!({"topics": [topic], "data": at, "exclude": id});
            call(&server, "POST /broadcast", &broadcast);
            let broadcast = json!({"pattern": topic.replace(".a", ".*"), "data": at, "exclude": id});
            call(&server, "POST /broadcast", &broadcast);
        }
    }
    call(&server, "POST /publish", &json!({"topic": "live.a", "data": "last", "exclude": "0-1"}));
    for (at, (client, _)) in clients.iter_mut().enumerate() {
        let mut received = Vec::new();
        while received.last() != Some(&json!("last")) {
            received.push(client.receive_message()["data"].clone());
        }
        assert!(!received.contains(&json!(at)), "{at}: {received:?}");
        assert_eq!(received.len(), 3 * 8 + 1);
        // The history has all messages.
        let history = client.request(json!({"op": "history", "id": 1, "topic": "kept.a", "last": 10}));
        assert_eq!(history["messages"].as_array().unwrap().len(), 10);
    }
}

#[test]
fn publications_exclude_raw_sockets_and_event_streams() {
    let server = serve(&[]);
    let mut raw = server.websocket("/topics/live.a");
    raw.send(&sinews_testkit::Frame::ping(""));
    assert!(matches!(raw.next(), Some(Reply::Pong(_))));
    let listed = call(&server, "GET /connections", &Value::Null);
    let of_raw = listed["connections"][0]["connection"].as_str().unwrap();
    let mut events = server.stream("/topics/live.a", "Accept: application/x-ndjson\r\n");
    let mut next = || -> Value { serde_json::from_str(&events.line().unwrap()).unwrap() };
    let (welcome, ack) = (next(), next());
    assert_eq!(ack["op"], "ack");
    let of_events = welcome["connection"].as_str().unwrap();
    for id in [of_raw, of_events, "0-1"] {
        call(&server, "POST /publish", &json!({"topic": "live.a", "data": id, "exclude": id}));
    }
    assert_eq!([raw.next(), raw.next()], [of_events, "0-1"].map(|id| Some(Reply::text(id))));
    assert_eq!([next()["data"].clone(), next()["data"].clone()], [of_raw, "0-1"]);
}

#[test]
fn exclusions_of_durable_topics_and_invalid_ids_are_rejected() {
    let server = serve(&["--streams", "$DIR/streams", "--streams-durable-topics", "stored.>"]);
    let (mut client, id) = subscriber(&server, &["live.a", "stored.a"]);
    // Published when the idempotency keys of the durable topic are read.
    let broadcast =
        json!({"topics": ["live.a", "stored.a"], "data": 1, "exclude": id, "idempotency_key": "a"});
    let results = call(&server, "POST /broadcast", &broadcast)["results"].clone();
    assert_eq!((results[0].get("code"), &results[1]["code"]), (None, &json!(422)));
    call(&server, "POST /publish", &json!({"topic": "live.a", "data": 2}));
    assert_eq!(client.receive_message()["data"], 2);
    for (message, status, text) in [
        (
            json!({"topic": "live.a", "data": 1, "exclude": "x"}),
            400,
            "exclude: \"x\" is no id of a connection",
        ),
        (json!({"topic": "stored.a", "data": 1, "exclude": id}), 422, "stored.a is a durable topic"),
    ] {
        let answer = call_with(&server, KEY, "", "POST /api/v1/publish", &message.to_string());
        assert_eq!(answer.status, status);
        assert!(answer.body["error"].as_str().unwrap().contains(text), "{}", answer.body);
        let results = call(&server, "POST /batch", &json!({"messages": [message]}));
        assert_eq!(results["results"][0]["code"], status);
    }
    let broadcast = json!({"pattern": ">", "data": 1, "exclude": id});
    let results = call(&server, "POST /broadcast", &broadcast)["results"].clone();
    let codes = results.as_array().unwrap().iter().map(|result| (&result["topic"], &result["code"]));
    let expected = [(&json!("live.a"), &Value::Null), (&json!("stored.a"), &json!(422))];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
}

#[test]
fn requests_have_limits() {
    let server = serve(&["--max-message", "1m"]);
    let post = |path: &str, body: Value| {
        let answer = call_with(&server, KEY, "", &format!("POST /api/v1{path}"), &body.to_string());
        (answer.status, answer.body)
    };
    let message = json!({"topic": "t", "data": 1});
    assert_eq!(post("/batch", json!({"messages": vec![message.clone(); 1_000]})).0, 200);
    let (status, body) = post("/batch", json!({"messages": vec![message; 1_001]}));
    assert_eq!((status, &body["error"]), (413, &json!("batch of 1001 messages exceeds the limit of 1000")));
    let topics: Vec<String> = (0..1_001).map(|at| format!("t{at}")).collect();
    assert_eq!(post("/broadcast", json!({"topics": topics[..1_000], "data": 1})).0, 200);
    assert_eq!(post("/broadcast", json!({"topics": topics, "data": 1})).0, 413);
    let long = "k".repeat(129);
    assert_eq!(post("/publish", json!({"topic": "t", "data": 1, "idempotency_key": long})).0, 422);
    let large = format!("{{\"topic\":\"t\",\"data\":\"{}\"}}", "x".repeat(1 << 20));
    let answer =
        server.request(&format!("POST /api/v1/publish HTTP/1.1\r\nAuthorization: Bearer {KEY}"), &large);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[test]
fn pattern_broadcast_that_matches_too_many_topics_reaches_none() {
    let server = serve(&["--history", "kept.>=1"]);
    for part in 0..2 {
        let topics: Vec<String> = (0..501).map(|at| format!("kept.{part}.{at}")).collect();
        call(&server, "POST /broadcast", &json!({"topics": topics, "data": "first"}));
    }
    let all = json!({"pattern": "kept.>", "data": "second"}).to_string();
    let answer = call_with(&server, KEY, "", "POST /api/v1/broadcast", &all);
    assert_eq!(answer.status, 413, "{}", answer.body);
    let half = call(&server, "POST /broadcast", &json!({"pattern": "kept.1.*", "data": "third"}));
    assert_eq!(half["results"].as_array().unwrap().len(), 501);
    let last = |topic: &str| {
        call(&server, &format!("GET /topics/{topic}/history?last=1"), &Value::Null)["messages"][0]["data"]
            .clone()
    };
    assert_eq!((last("kept.0.7"), last("kept.1.7")), (json!("first"), json!("third")));
}

#[test]
fn second_publication_with_an_idempotency_key_is_not_published() {
    let server =
        serve(&["--streams", "$DIR/streams", "--streams-durable-topics", "stored.>", "--history", "kept=9"]);
    let publish = |topic: &str, data: u32, key: &str| {
        call(&server, "POST /publish", &json!({"topic": topic, "data": data, "idempotency_key": key}))
    };
    let history = |topic: &str| {
        let answer = call(&server, &format!("GET /topics/{topic}/history"), &Value::Null);
        let messages = answer["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["data"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    for topic in ["kept", "stored.a"] {
        let first = publish(topic, 1, "a");
        let mut second = publish(topic, 2, "a");
        assert_eq!(second.as_object_mut().unwrap().remove("repeated"), Some(json!(true)));
        assert_eq!(first, second, "{topic}");
        assert_eq!(publish(topic, 3, "b").get("repeated"), None);
        let batch = json!({"messages": [
            {"topic": topic, "data": 4, "idempotency_key": "c"}, {"topic": topic, "data": 5, "idempotency_key": "c"},
        ]});
        let results = call(&server, "POST /batch", &batch);
        assert_eq!(
            (results["results"][0].get("repeated"), &results["results"][1]["repeated"]),
            (None, &json!(true))
        );
        if topic == "stored.a" {
            assert_eq!((&first["seq"], &results["results"][1]["seq"]), (&json!(1), &json!(3)));
        }
        // The history of a durable topic ends at the last message that its subscribers have.
        until("the messages are stored", || topic != "stored.a" || history(topic).len() >= 3);
        assert_eq!(history(topic), [1, 3, 4], "{topic}");
    }
}

#[test]
fn idempotency_keys_of_durable_topics_survive_a_kill() {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let start = || serve(&["--streams", &streams, "--streams-durable-topics", "stored.>"]);
    let publish = |server: &Running, topic: &str, data: &str, key: &str| {
        call(server, "POST /publish", &json!({"topic": topic, "data": data, "idempotency_key": key}))
    };
    let mut server = start();
    let first = publish(&server, "stored.a", "one", "a");
    publish(&server, "stored.b", "one", "a");
    call(&server, "POST /publish", &json!({"topic": "stored.a", "data": {"idempotency_key": "b"}}));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = start();
    // The first request after the start publishes in order, and finds the publications of the process before.
    let batch = json!({"messages": [
        {"topic": "stored.a", "data": "two", "idempotency_key": "b"},
        {"topic": "stored.a", "data": "three"},
        {"topic": "stored.a", "data": "repeated", "idempotency_key": "a"},
        {"topic": "stored.a", "data": "repeated", "idempotency_key": "b"},
    ]});
    let results = call(&server, "POST /batch", &batch)["results"].clone();
    let sequences: Vec<_> =
        (0..4).map(|at| (results[at]["seq"].as_u64().unwrap(), results[at]["repeated"] == true)).collect();
    assert_eq!(sequences, [(3, false), (4, false), (1, true), (3, true)]);
    assert_eq!(results[2]["epoch"], first["epoch"]);
    let topics = json!({"topics": ["stored.b", "stored.c"], "data": 1, "idempotency_key": "a"});
    let results = call(&server, "POST /broadcast", &topics)["results"].clone();
    assert_eq!((&results[0]["repeated"], results[1].get("repeated")), (&json!(true), None));
    let repeated = publish(&server, "stored.c", "repeated", "a");
    assert_fields(&repeated, json!({"seq": 1, "repeated": true}));
    // A stream that is created again has no earlier publications.
    call(&server, "DELETE /streams/stored.a", &Value::Null);
    assert_eq!(publish(&server, "stored.a", "one", "a").get("repeated"), None);
}

#[test]
fn clients_cannot_append_records_with_an_idempotency_key() {
    let server = serve(&["--streams", "$DIR/streams", "--streams-durable-topics", "stored.>"]);
    let append = |stream: &str, key: &str| {
        let path = format!("POST /streams/{stream}?key={key} HTTP/1.1");
        server.request(&path, "x")[9..12].to_owned()
    };
    assert_eq!(append("stored.a", "order-7"), "200");
    assert_eq!(append("stored.a", "sinews-idempotency-key:order-7"), "422");
    let mut client = Client::connect(&server);
    let record = json!({
        "op": "append", "id": 1, "stream": "stored.a", "key": "sinews-idempotency-key:order-7", "data": 1,
    });
    let answer = client.request(record);
    assert_fields(&answer, json!({"op": "error", "code": 422}));
    // Other streams have no idempotency keys.
    assert_eq!(append("plain", "sinews-idempotency-key:order-7"), "200");
    let published = call(
        &server,
        "POST /publish",
        &json!({"topic": "stored.a", "data": 2, "idempotency_key": "order-7"}),
    );
    assert_eq!((&published["seq"], published.get("repeated")), (&json!(2), None));
}

#[test]
fn many_keys_are_written_in_one_request() {
    let server = serve(&["--streams", "$DIR/streams", "--streams-durable-keys", "stored.>"]);
    for topic in ["plain", "stored.a"] {
        let write = |writes: Value| {
            let route = format!("POST /topics/{topic}/keys");
            call(&server, &route, &json!({"writes": writes}))["results"].as_array().unwrap().clone()
        };
        let results = write(json!([
            {"key": "a", "data": null, "idempotency_key": "one"},
            {"key": "b", "b64": "AP8=", "ttl": 60_000},
            {"key": "a", "data": 2, "if_new": true},
            {"key": "", "data": 3},
            {"key": "a", "data": 4, "delete": true},
            {"key": "a", "data": 5, "version": 1},
            {"key": "a", "data": 6, "idempotency_key": "one"},
            {"key": "b", "delete": true},
            {"key": "c", "delete": true},
        ]));
        let outcomes: Vec<_> = results
            .iter()
            .map(|result| result["seq"].as_u64().or_else(|| result["code"].as_u64()).unwrap())
            .collect();
        // The last write changes nothing, so it has no position of its own.
        assert_eq!(outcomes[..8], [1, 2, 412, 422, 400, 3, 1, 4], "{topic}: {results:?}");
        assert_eq!((&results[6]["repeated"], &results[8]["changed"]), (&json!(true), &json!(false)));
        assert_eq!(results[1]["key"], "b");
        let page = call(&server, &format!("GET /topics/{topic}/keys"), &Value::Null);
        assert_fields(&page, json!({"keys": [{"key": "a", "version": 3, "data": 5}], "seq": 4}));
        let many = json!({"writes": vec![json!({"key": "a", "data": 1}); 1_001]}).to_string();
        let route = format!("POST /api/v1/topics/{topic}/keys");
        assert_eq!(call_with(&server, KEY, "", &route, &many).status, 413);
    }
}

#[test]
fn topics_are_listed_in_pages() {
    let (server, mut client) = connected(serve(&["--history", "kept.>=5"]));
    client.subscribe_with("chat.b", &json!({}));
    client.subscribe_with("chat.*", &json!({}));
    let mut raw = server.websocket("/topics/chat.b");
    raw.send(&sinews_testkit::Frame::ping(""));
    raw.next();
    call(&server, "POST /broadcast", &json!({"topics": ["kept.a", "kept.b"], "data": 1}));
    let list = |query: &str| call(&server, &format!("GET /topics{query}"), &Value::Null);
    let with_keys = |topic: &str, subscribers: u32, keys: u32, key_subscribers: u32| {
        json!({
            "topic": topic, "subscribers": subscribers, "keys": keys, "key_subscribers": key_subscribers,
        })
    };
    let of = |topic: &str, subscribers: u32| with_keys(topic, subscribers, 0, 0);
    let all = json!({"topics": [of("chat.b", 2), of("kept.a", 0), of("kept.b", 0)]});
    assert_eq!(list(""), all);
    // Two topics and a pattern have subscribers.
    client.subscribe_with("kept.a", &json!({}));
    let nodes = call(&server, "GET /nodes", &Value::Null);
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(1), "{nodes}");
    let node = &nodes["nodes"][0];
    assert_fields(node, json!({"topics": 3, "users": 0, "self": true}));
    let ack = client.request(json!({"op": "unsubscribe", "id": 2, "topic": "kept.a"}));
    assert_eq!(ack["op"], "ack");
    assert_eq!(list("?limit=2"), json!({"topics": [of("chat.b", 2), of("kept.a", 0)], "next": "kept.a"}));
    assert_eq!(list("?limit=2&after=kept.a"), json!({"topics": [of("kept.b", 0)]}));
    assert_eq!(list("?filter=*.b&limit=1"), json!({"topics": [of("chat.b", 2)], "next": "chat.b"}));
    assert_eq!(list("?filter=kept.*&limit=2"), json!({"topics": [of("kept.a", 0), of("kept.b", 0)]}));
    assert_eq!(list("?filter=kept.a"), json!({"topics": [of("kept.a", 0)]}));
    // Topics that have only keys, or only subscribers of their keys.
    for key in ["anna", "ben"] {
        call(&server, &format!("PUT /topics/players/keys/{key}"), &json!({"data": 1}));
    }
    call(&server, "PUT /topics/chat.b/keys/anna", &json!({"data": 1}));
    let ack = client.request(json!({"op": "subscribe", "id": 3, "topic": "empty", "keys": true}));
    assert_eq!(ack["op"], "ack");
    let all = [
        with_keys("chat.b", 2, 1, 0),
        with_keys("empty", 0, 0, 1),
        of("kept.a", 0),
        of("kept.b", 0),
        with_keys("players", 0, 2, 0),
    ];
    assert_eq!(list(""), json!({"topics": all}));
    assert_eq!(list("?limit=1&after=kept.b"), json!({"topics": [all[4]]}));
    // A broadcast is for topics of messages.
    let sent = call(&server, "POST /broadcast", &json!({"pattern": ">", "data": 1}));
    let topics: Vec<&Value> =
        sent["results"].as_array().unwrap().iter().map(|result| &result["topic"]).collect();
    assert_eq!(topics, ["chat.b", "kept.a", "kept.b"]);
    for key in ["anna", "ben"] {
        call(&server, &format!("DELETE /topics/players/keys/{key}"), &Value::Null);
    }
    assert_eq!(list("?filter=players"), json!({"topics": []}));
}

#[test]
fn presence_members_and_keys_are_read_and_written() {
    let (server, mut client) = connected(serve(&[]));
    for id in ["anna", "ben"] {
        let mut other = Client::connect(&server);
        other.request(
            json!({"op": "join", "id": 1, "topic": "room", "member": {"id": id, "info": {"n": id}}}),
        );
        if id == "anna" {
            other.subscribe_with("room", &json!({}));
        }
        let presence = call(&server, "GET /topics/room/presence", &Value::Null);
        assert_fields(&presence, json!({"subscribers": 1, "members": 1}));
        let members = call(&server, "GET /topics/room/members", &Value::Null);
        assert_eq!(
            members,
            json!({"topic": "room", "members": [{"id": id, "connections": 1, "info": {"n": id}}]})
        );
        other.request(json!({"op": "leave", "id": 2, "topic": "room"}));
        drop(other);
        until("the presence is over", || {
            call(&server, "GET /topics/room/presence", &Value::Null)["subscribers"] == 0
        });
    }
    for id in ["a", "b", "c"] {
        let ack = client
            .request(json!({"op": "join", "id": 1, "topic": format!("hall.{id}"), "member": {"id": id}}));
        assert_eq!(ack["op"], "ack");
    }
    client.request(json!({"op": "subscribe", "id": 2, "topic": "game", "keys": true}));
    assert_eq!(client.receive_message()["part"], 1);
    let written = call(&server, "PUT /topics/game/keys/anna", &json!({"data": {"x": 1}}));
    assert_fields(&written, json!({"topic": "game", "key": "anna", "seq": 1}));
    assert_eq!(client.receive_message()["set"][0]["data"], json!({"x": 1}));
    let put =
        |lines: &str| call_with(&server, KEY, lines, "PUT /api/v1/topics/game/keys/anna", "{\"data\":null}");
    assert_eq!(put("\r\nIf-None-Match: *").status, 412);
    let read = call_with(&server, KEY, "", "GET /api/v1/topics/game/keys/anna", "");
    let tag = read.head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
    assert_eq!(put(&format!("\r\nIf-Match: {tag}")).body["seq"], 2);
    assert_eq!(put(&format!("\r\nIf-Match: {tag}")).status, 412);
    let keys = call(&server, "GET /topics/game/keys", &Value::Null);
    assert_eq!(keys["keys"], json!([{"key": "anna", "version": 2, "data": null}]));
    assert_eq!(call(&server, "DELETE /topics/game/keys/anna", &Value::Null)["seq"], 3);
    assert_eq!(call(&server, "DELETE /topics/game/keys/anna", &Value::Null)["changed"], json!(false));
}

#[test]
fn keys_limit_operations_and_topics_until_they_are_reloaded() {
    let directory = Directory::new();
    let (one, two) = ("1".repeat(32), "2".repeat(32));
    let keys = directory.write("keys", &format!("# keys\nshop {one} publish:shop.>,news read:shop.>\n"));
    let file = directory.write("sinews.toml", &format!("[api]\nkeys_file = {keys:?}\n"));
    let mut server = Running::serve(&["--config", &file]);
    let ask = |key: &str, route: &str, body: &str| call_with(&server, key, "", route, body);
    let message = |topic: &str| json!({"topic": topic, "data": 1}).to_string();
    assert_eq!(ask(&one, "POST /api/v1/publish", &message("shop.a")).status, 200);
    let denied = ask(&one, "POST /api/v1/publish", &message("chat"));
    assert_eq!(denied.status, 403);
    let expected = json!({"code": 403, "error": "the key shop has no right publish for chat", "needs": {"right": "publish", "topic": "chat"}});
    assert_eq!(denied.body, expected);
    assert_eq!(ask(&one, "POST /api/v1/broadcast", "{\"pattern\":\">\",\"data\":1}").status, 403);
    assert_eq!(ask(&one, "POST /api/v1/broadcast", "{\"pattern\":\"shop.*\",\"data\":1}").status, 200);
    let mixed = ask(&one, "POST /api/v1/broadcast", "{\"topics\":[\"news\",\"chat\"],\"data\":1}");
    assert_eq!(
        (&mixed.body["results"][0]["subscribers"], &mixed.body["results"][1]["code"]),
        (&json!(0), &json!(403))
    );
    assert_eq!(ask(&one, "GET /api/v1/info", "").status, 403);
    let unknown = ask(&two, "POST /api/v1/publish", &message("shop.a"));
    assert_eq!(unknown.status, 401);
    assert!(unknown.head.contains("WWW-Authenticate: Bearer realm=\"sinews\""), "{}", unknown.head);
    let none = server.request("GET /api/v1/info HTTP/1.1", "");
    assert!(none.starts_with("HTTP/1.1 401 ") && none.contains("\"code\":401"), "{none}");
    let by_header =
        server.request(&format!("POST /api/v1/publish HTTP/1.1\r\nX-API-Key: {one}"), &message("news"));
    assert!(by_header.starts_with("HTTP/1.1 200 "), "{by_header}");

    // Rotation: both keys, then the new one.
    let reload = |server: &mut Running, text: &str, key: &str, status: u16| {
        directory.write("keys", text);
        server.signal("HUP");
        until("the keys are read again", || {
            call_with(server, key, "", "POST /api/v1/publish", &message("news")).status == status
        });
    };
    reload(&mut server, &format!("a {one} publish\nb {two} publish\n"), &two, 200);
    assert_eq!(call_with(&server, &one, "", "POST /api/v1/publish", &message("chat")).status, 200);
    reload(&mut server, &format!("b {two} publish\n"), &one, 401);
    assert_eq!(call_with(&server, &two, "", "POST /api/v1/publish", &message("chat")).status, 200);
}

#[test]
fn api_without_keys_is_disabled_and_invalid_keys_are_rejected_at_startup() {
    let server = Running::serve(&[]);
    let answer = call_with(&server, KEY, "", "GET /api/v1/info", "");
    assert_eq!(
        answer.body,
        json!({"code": 403, "error": "the HTTP API is disabled: set api.key or api.keys_file"})
    );
    assert!(server.get("/api/v1/openapi.json").starts_with("HTTP/1.1 200 "));
    let short = crate::support::fails(crate::support::program().args(["serve", "--api-key", "short"]));
    assert!(short.contains("--api-key: the key has 5 bytes; 32 are required"), "{short}");
    let missing =
        crate::support::fails(crate::support::program().args(["serve", "--api-keys-file", "/nowhere"]));
    assert!(missing.contains("--api-keys-file: /nowhere: "), "{missing}");
}

#[test]
fn unknown_paths_and_methods_have_the_form_of_errors() {
    let server = serve(&[]);
    for path in ["/api/v1", "/api/v1/", "/api/v1/nothing", "/api/v1/topics/a/b/c/d"] {
        let answer = call_with(&server, KEY, "", &format!("GET {path}"), "");
        assert_eq!((answer.status, &answer.body["code"]), (404, &json!(404)), "{path}");
    }
    let answer = call_with(&server, KEY, "", "GET /api/v1/publish", "");
    assert_eq!((answer.status, &answer.body["code"]), (405, &json!(405)));
    assert!(answer.head.contains("Allow: OPTIONS, POST\r\n"), "{}", answer.head);
    let answer = call_with(&server, KEY, "", "OPTIONS /api/v1/topics/a/keys/b", "");
    assert_eq!(answer.status, 204);
    assert!(answer.head.contains("Allow: DELETE, GET, HEAD, OPTIONS, PUT\r\n"), "{}", answer.head);
}

#[test]
fn streams_are_listed_and_deleted() {
    let server = serve(&["--streams", "$DIR/streams"]);
    server.request("POST /streams/orders HTTP/1.1", "one");
    let listed = call(&server, "GET /streams", &Value::Null);
    assert_eq!(listed["streams"][0]["stream"], "orders");
    assert_eq!(
        call(&server, "DELETE /streams/orders", &Value::Null),
        json!({"stream": "orders", "deleted": true})
    );
    assert_eq!(call_with(&server, KEY, "", "DELETE /api/v1/streams/orders", "").status, 404);
    assert_eq!(call(&server, "GET /streams", &Value::Null), json!({"streams": []}));
}

#[test]
fn streams_are_created_and_configured() {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let options = ["--streams", &streams, "--streams-durable-topics", "chat.>"];
    let server = serve(&options);
    let created = call(&server, "PUT /streams/orders", &json!({"partitions": 3, "retain_bytes": 1_048_576}));
    assert_eq!(created["partitions"].as_array().unwrap().len(), 3);
    assert_fields(&created, json!({"retain_bytes": 1_048_576, "retain_seconds": null, "compact": false}));
    server.request("POST /streams/orders?partition=2 HTTP/1.1", "one");
    let changed = json!({"partitions": 4, "retain_bytes": null, "retain_seconds": 60});
    let changed = call(&server, "PUT /streams/orders", &changed);
    assert_eq!((&changed["partitions"][2]["end"], &changed["retain_seconds"]), (&json!(1), &json!(60)));
    assert_eq!(
        (changed["partitions"].as_array().unwrap().len(), &changed["retain_bytes"]),
        (4, &Value::Null)
    );
    let compacted = call(&server, "PUT /streams/state", &json!({"compact": true}));
    assert_eq!(compacted["compact"], true);
    // A record without a key is rejected there.
    assert!(server.request("POST /streams/state HTTP/1.1", "one").starts_with("HTTP/1.1 422 "));
    let put = |stream: &str, body: Value| {
        let answer = call_with(&server, KEY, "", &format!("PUT /api/v1/streams/{stream}"), &body.to_string());
        (answer.status, answer.body["error"].as_str().unwrap_or_default().to_owned())
    };
    for (stream, body, status, reason) in [
        ("orders", json!({"partitions": 2}), 422, "has 4 partitions, and at most 1024"),
        ("orders", json!({"partitions": 0}), 422, "the limit is 1024"),
        ("orders", json!({"compact": true}), 422, "set by the creation"),
        ("orders", json!({"retain_bytes": 0}), 422, "null retains all"),
        ("chat.room", json!({"partitions": 2}), 422, "has 1"),
        ("chat.room", json!({"compact": true}), 422, "have no keys"),
        ("a.*", json!({}), 422, "name one topic"),
        ("orders", json!({"fsync": "never"}), 400, "fsync"),
    ] {
        let (got, error) = put(stream, body.clone());
        assert_eq!(got, status, "{stream} {body}: {error}");
        assert!(error.contains(reason), "{stream} {body}: {error}");
    }
    // Dropping it kills the process.
    drop(server);
    let server = serve(&options);
    let orders = call(&server, "GET /streams/orders", &Value::Null);
    assert_eq!(orders["partitions"][2]["end"], 1);
    assert_eq!((orders["partitions"].as_array().unwrap().len(), &orders["retain_seconds"]), (4, &json!(60)));
    assert_eq!(call(&server, "GET /streams/state", &Value::Null)["compact"], true);
    assert_eq!(call_with(&server, KEY, "", "GET /api/v1/streams/none", "").status, 404);
    // The stream of a durable topic that exists before its first publication.
    call(&server, "PUT /streams/chat.room", &json!({"retain_seconds": 60}));
    let published = call(&server, "POST /publish", &json!({"topic": "chat.room", "data": 1}));
    assert_eq!(published["seq"], 1);
}

#[test]
fn offsets_of_groups_are_listed_set_and_deleted() {
    let server = serve(&["--streams", "$DIR/streams"]);
    call(&server, "PUT /streams/orders", &json!({"partitions": 2}));
    for number in 0..5 {
        server.request("POST /streams/orders?partition=1 HTTP/1.1", &number.to_string());
    }
    let groups = || call(&server, "GET /streams/orders/groups", &Value::Null);
    assert_eq!(groups(), json!({"stream": "orders", "groups": []}));
    let mut client = Client::at(&server, "/streams/orders");
    let commit = json!({"op": "commit", "id": 1, "group": "billing", "partition": 1, "offset": 3});
    assert_eq!(client.request(commit)["op"], "ack");
    let listed = json!({"group": "billing", "partitions": [{"partition": 1, "offset": 3, "lag": 2}]});
    assert_eq!(groups()["groups"], json!([listed]));
    let set = |body: Value| call(&server, "PUT /streams/orders/groups/billing", &body)["partitions"].clone();
    assert_eq!(set(json!({"partition": 1, "offset": 1})), json!([{"partition": 1, "offset": 1, "lag": 4}]));
    let all = json!([{"partition": 0, "offset": 0, "lag": 0}, {"partition": 1, "offset": 5, "lag": 0}]);
    assert_eq!(set(json!({"to": "latest"})), all);
    assert_eq!(set(json!({"to": "earliest"}))[1]["lag"], 5);
    assert_eq!(set(json!({"partition": 1, "offset": 2}))[0]["offset"], 2);
    // A member gets the records from there on.
    assert_eq!(client.request(json!({"op": "consume", "id": 2, "group": "billing"}))["op"], "ack");
    let record = loop {
        let message = client.receive_message();
        if message["op"] == "records" {
            break message["records"][0].clone();
        }
    };
    assert_fields(&record, json!({"offset": 2, "data": "2"}));
    let put = |path: &str, body: Value| {
        let answer = call_with(&server, KEY, "", &format!("PUT /api/v1/streams/{path}"), &body.to_string());
        (answer.status, answer.body["error"].as_str().unwrap_or_default().to_owned())
    };
    for (path, body, status, reason) in [
        ("orders/groups/billing", json!({"to": "latest"}), 409, "has 1 members"),
        (
            "orders/groups/other",
            json!({"partition": 1, "offset": 6}),
            422,
            "beyond the end of partition 1 (5)",
        ),
        ("orders/groups/other", json!({"partition": 2, "offset": 0}), 404, "no partition 2"),
        ("orders/groups/other", json!({"offset": 0, "to": "latest"}), 400, "either offset or to"),
        ("orders/groups/other", json!({"to": "middle"}), 400, "middle"),
        ("none/groups/other", json!({"to": "latest"}), 404, "does not exist"),
    ] {
        let (got, error) = put(path, body.clone());
        assert_eq!(got, status, "{path} {body}: {error}");
        assert!(error.contains(reason), "{path} {body}: {error}");
    }
    assert_eq!(client.request(json!({"op": "stop", "id": 3}))["op"], "ack");
    let deleted = json!({"stream": "orders", "group": "billing", "deleted": true});
    assert_eq!(call(&server, "DELETE /streams/orders/groups/billing", &Value::Null), deleted);
    assert_eq!(groups()["groups"], json!([]));
    assert_eq!(call_with(&server, KEY, "", "DELETE /api/v1/streams/orders/groups/billing", "").status, 404);
}

/// Runs the commands of the book, in order, and compares the fields of the answers.
#[test]
fn commands_of_the_book_have_the_documented_answers() {
    let directory = Directory::new();
    let secret = directory.write("secret", crate::auth::SECRET);
    let server = serve(&["--history", "chat.>=100", "--auth-secret-file", &secret]);
    let token = crate::auth::token(&secret, &["--subject", "anna", "--subscribe", ">"]);
    let _client = Client::at(&server, &format!("/ws?token={token}"));
    assert!(run_commands("api.md", &server, &directory) >= 8);
}

#[test]
fn commands_of_pages_about_one_task_have_the_documented_answers() {
    for (page, count) in [("tokens.md", 2), ("presence.md", 2), ("history.md", 1)] {
        let directory = Directory::new();
        let secret = directory.write("secret", crate::auth::SECRET);
        let server = serve(&["--history", "chat.>=100", "--auth-secret-file", &secret]);
        assert_eq!(run_commands(page, &server, &directory), count, "{page}");
    }
}

/// Runs the commands of a page of the book that end by themselves, in one folder. Returns their number.
fn run_commands(page: &str, server: &Running, directory: &Directory) -> usize {
    let path = format!("{}/../../docs/book/src/server/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let programs = std::path::Path::new(PROGRAM).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut blocks = text.split("```").skip(1).step_by(2).peekable();
    // Variables of earlier commands of the page.
    let (mut count, mut token) = (0, String::new());
    while let Some(block) = blocks.next() {
        let is_run = |script: &&str| script.contains("$API/") || script.contains("$TOKEN");
        let Some(script) = block.strip_prefix("sh\n").filter(is_run) else { continue };
        let script = script.replace("127.0.0.1:8080", &server.address.to_string());
        token.extend(script.lines().find(|line| line.starts_with("TOKEN=")));
        let output = Command::new("sh")
            .args(["-ec", &format!("{token}\n{script}")])
            .env("API", format!("http://{}/api/v1", server.address))
            .env("KEY", KEY)
            .env("PATH", &path)
            .current_dir(directory.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{script}{answer}{}", String::from_utf8_lossy(&output.stderr));
        count += 1;
        if let Some(expected) = blocks.peek().and_then(|block| block.strip_prefix("json\n")) {
            let expected: Value = serde_json::from_str(expected).unwrap();
            let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{script}{answer}"));
            assert_eq!(fields(&answer), fields(&expected), "{script}{answer}");
        }
    }
    count
}

/// The value without its texts and numbers.
fn fields(value: &Value) -> Value {
    match value {
        Value::Object(object) => object.iter().map(|(name, value)| (name.clone(), fields(value))).collect(),
        Value::Array(list) => list.iter().map(fields).collect(),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}
