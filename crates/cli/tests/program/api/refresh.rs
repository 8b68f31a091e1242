//! Changes of the rights of open connections.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply, assert_fields};

use super::connections::{close_of, connect, start};
use super::{KEY, call, call_with};
use crate::auth::token;
use crate::cluster::at_bus;
use crate::cluster::broker::{FakeBroker, WireProtocol};
use crate::config::Directory;
use crate::protocol::Client;
use crate::support::{Running, until};

fn in_an_hour() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 3_600
}

/// Whether a number of seconds is that of an hour and of the tolerance for clocks.
fn is_an_hour(seconds: &Value) -> bool {
    seconds.as_u64().is_some_and(|left| (3_500..=3_630).contains(&left))
}

#[test]
fn backend_replaces_the_rights_of_connections() {
    let (server, _directory, secret) = start(&[]);
    let of = |id: &str| token(&secret, &["--subject", "anna", "--id", id, "--subscribe", ">"]);
    let ((mut one, id), (mut two, _)) = (connect(&server, &of("t1")), connect(&server, &of("t2")));
    let raw =
        server.try_websocket("/topics/old", &format!("Authorization: Bearer {}\r\n", of("t3"))).unwrap();
    let mut raw = Client(raw);
    for client in [&mut one, &mut two] {
        client.subscribe_with("old", &json!({}));
    }

    // One connection: a subscription ends, and the new rights apply.
    let claims = json!({"sub": "anna", "subscribe": "new", "publish": "new", "exp": in_an_hour()});
    let refreshed = call(&server, "POST /refresh", &json!({"connection": id, "claims": claims}));
    assert_eq!(refreshed, json!({"connections": 1}));
    let message = one.receive_message();
    assert!(message["op"] == "refreshed" && is_an_hour(&message["expires_in"]), "{message}");
    let ended = one.receive_message();
    assert_fields(&ended, json!({"op": "error", "code": 403, "topic": "old"}));
    one.subscribe_with("new", &json!({}));
    assert_eq!(two.request(json!({"op": "ping", "id": 1})), json!({"op": "pong", "id": 1}), "unchanged");

    // The connections of a token.
    let refreshed = call(&server, "POST /refresh", &json!({"token": "t2", "exp": in_an_hour()}));
    assert_eq!(refreshed, json!({"connections": 1}));
    let message = two.receive_message();
    assert!(message["op"] == "refreshed" && is_an_hour(&message["expires_in"]), "{message}");
    two.subscribe_with("old", &json!({}));

    // All connections of a user, whose name changes.
    let claims = json!({"sub": "ben", "subscribe": "new"});
    let refreshed = call(&server, "POST /refresh", &json!({"user": "anna", "claims": claims}));
    assert_eq!(refreshed, json!({"connections": 3}));
    for client in [&mut one, &mut two] {
        assert_eq!(client.receive_message(), json!({"op": "refreshed"}), "without an expiry");
    }
    assert_eq!(close_of(&mut raw).0, 4403, "a raw connection has one subscription");
    drop(raw);
    while call(&server, "GET /connections?user=ben", &Value::Null)["connections"].as_array().unwrap().len()
        > 2
    {}
    let nobody = call(&server, "POST /refresh", &json!({"user": "anna", "exp": in_an_hour()}));
    assert_eq!(nobody, json!({"connections": 0}));
}

#[test]
fn response_ends_when_the_right_to_a_joined_topic_ends() {
    let (server, _directory, secret) = start(&[]);
    let token = token(&secret, &["--subject", "anna", "--subscribe", ">"]);
    let lines = format!("Authorization: Bearer {token}\r\nAccept: application/x-ndjson\r\n");
    let mut body = server.stream("/topics?join=old", &lines);
    let mut until = |op: &str| loop {
        let message: Value = serde_json::from_str(&body.line().expect("a message")).unwrap();
        if message["op"] == op {
            return message;
        }
    };
    until("joined");
    let claims = json!({"sub": "anna", "subscribe": "new"});
    call(&server, "POST /refresh", &json!({"user": "anna", "claims": claims}));
    assert_eq!(until("close")["code"], 1013);
}

#[test]
fn earlier_expiry_closes_the_connection_in_time() {
    let (server, _directory, secret) = start(&["--auth-leeway", "0s"]);
    let anna = token(&secret, &["--subject", "anna", "--subscribe", ">"]);
    let (mut client, id) = connect(&server, &anna);
    // On a busy machine, the time may be over when the server reads it.
    let refreshed = loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let body = json!({"connection": id, "exp": now + 0.5}).to_string();
        let answer = call_with(&server, KEY, "", "POST /api/v1/refresh", &body);
        if answer.status != 422 {
            break answer;
        }
    };
    assert_eq!((refreshed.status, refreshed.body), (200, json!({"connections": 1})));
    assert_eq!(client.receive_message()["op"], "refreshed");
    assert_eq!(close_of(&mut client), (4401, "the token has expired".to_owned()));
}

#[test]
fn invalid_changes_of_rights_are_rejected() {
    let (server, _directory, secret) = start(&[]);
    let (mut client, id) = connect(&server, &token(&secret, &["--subject", "anna", "--subscribe", ">"]));
    for (body, status) in [
        (json!({"connection": id}), 400),
        (json!({"connection": id, "claims": {}, "exp": in_an_hour()}), 400),
        (json!({"connection": id, "user": "anna", "claims": {}}), 400),
        (json!({"claims": {}}), 400),
        (json!({"connection": id, "claims": {"subscribe": "a..b"}}), 422),
        (json!({"connection": id, "claims": {"exp": 1}}), 422),
        (json!({"connection": id, "exp": 1}), 422),
    ] {
        let answer = call_with(&server, KEY, "", "POST /api/v1/refresh", &body.to_string());
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    }
    client.subscribe_with("still", &json!({}));
}

#[test]
fn refresh_needs_its_own_right() {
    let directory = Directory::new();
    let keys = directory.write("keys", &format!("ops {KEY} disconnect\nauth {KEY}-2 refresh\n"));
    let server = Running::serve(&["--api-keys-file", &keys]);
    let body = json!({"user": "anna", "claims": {}}).to_string();
    assert_eq!(call_with(&server, KEY, "", "POST /api/v1/refresh", &body).status, 403);
    assert_eq!(call_with(&server, &format!("{KEY}-2"), "", "POST /api/v1/refresh", &body).status, 200);
}

#[test]
fn connections_at_all_nodes_are_refreshed() {
    for engine in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(engine);
        let secret = crate::auth::keys("secret");
        let url = broker.url();
        let nodes = ["a", "b"].map(|name| {
            let more = ["--cluster-node-name", name, "--api-key", KEY, "--auth-secret-file", &secret];
            Running::serve(&[&at_bus(&url)[..], &more].concat())
        });
        until("both nodes are known", || {
            call(&nodes[0], "GET /nodes", &Value::Null)["nodes"].as_array().unwrap().len() == 2
        });
        // Clients that connect earlier receive a report of the login at the broker.
        nodes.iter().for_each(|node| until("the node is ready", || node.is_ready()));
        let anna = token(&secret, &["--subject", "anna", "--subscribe", ">"]);
        let mut clients = [&nodes[0], &nodes[1]].map(|node| connect(node, &anna).0);
        let body = json!({"user": "anna", "claims": {"sub": "anna", "subscribe": "a"}});
        assert_eq!(call(&nodes[0], "POST /refresh", &body), json!({"connections": 2}));
        for client in &mut clients {
            assert_eq!(client.receive_message(), json!({"op": "refreshed"}));
            let denied = client.request(json!({"op": "subscribe", "id": 1, "topic": "b"}));
            assert_eq!(denied["code"], 403);
            client.0.send(&Frame::ping(""));
            assert!(matches!(client.0.next(), Some(Reply::Pong(_))));
        }
        broker.go_down();
        let missing = loop {
            let refreshed = call(&nodes[0], "POST /refresh", &body);
            if refreshed["missing_nodes"].is_array() {
                break refreshed;
            }
        };
        assert_eq!(missing, json!({"connections": 1, "missing_nodes": ["b"]}));
    }
}
