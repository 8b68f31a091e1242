//! Connections: their list, commands to them, and revocation of their tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply, assert_fields};

use super::{KEY, call, call_with, serve};
use crate::auth::token;
use crate::config::Directory;
use crate::protocol::Client;
use crate::support::{Running, until};

/// A server with tokens, and its secret.
pub(super) fn start(arguments: &[&str]) -> (Running, Directory, String) {
    let directory = Directory::new();
    let secret = crate::auth::keys("secret");
    let server = serve(&[&["--auth-secret-file", &secret], arguments].concat());
    (server, directory, secret)
}

pub(super) fn connect(server: &Running, token: &str) -> (Client, String) {
    let (client, welcome) = Client::welcomed(server, &format!("/ws?token={token}"), "");
    (client, welcome["connection"].as_str().unwrap().to_owned())
}

fn list(server: &Running, query: &str) -> Value {
    call(server, &format!("GET /connections{query}"), &Value::Null)
}

fn ids(list: &Value) -> Vec<&str> {
    list["connections"].as_array().unwrap().iter().map(|one| one["connection"].as_str().unwrap()).collect()
}

pub(super) fn close_of(client: &mut Client) -> (u16, String) {
    match client.0.next() {
        Some(Reply::Close(Some(code), reason)) => (code, reason),
        other => panic!("{other:?} is no Close"),
    }
}

#[test]
fn connections_are_listed_by_user_and_in_pages() {
    let (server, _directory, secret) = start(&[]);
    let of = |user: &str| token(&secret, &["--subject", user, "--subscribe", ">"]);
    let clients: Vec<_> = ["anna", "ben", "anna"].iter().map(|user| connect(&server, &of(user))).collect();
    let raw =
        server.try_websocket("/topics/a", &format!("Authorization: Bearer {}\r\n", of("anna"))).unwrap();
    let all = list(&server, "");
    let first = &all["connections"][0];
    assert_fields(
        first,
        json!({
            "connection": clients[0].1, "user": "anna", "address": "127.0.0.1", "path": "/ws",
        }),
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!((now - 60_000..=now).contains(&first["opened"].as_u64().unwrap()));
    assert_eq!((ids(&all).len(), all.get("next")), (4, None));
    assert_eq!(all["connections"][3]["path"], "/topics/{name}");
    let page = list(&server, "?user=anna&limit=2");
    assert_eq!((ids(&page), &page["next"]), (vec![&*clients[0].1, &*clients[2].1], &json!(clients[2].1)));
    let rest = list(&server, &format!("?user=anna&limit=2&after={}", clients[2].1));
    assert_eq!((ids(&rest).len(), rest.get("next")), (1, None));
    let other = call_with(&server, KEY, "", "GET /api/v1/connections?after=0-1", "");
    assert_eq!(other.status, 400, "{}", other.body);
    drop((raw, clients));
    until("the connections have ended", || ids(&list(&server, "")).is_empty());
}

#[test]
fn slow_clients_are_listed_with_their_queue() {
    let (server, _directory, secret) = start(&["--websocket-overflow", "drop-newest"]);
    let of = |user: &str| token(&secret, &["--subscribe", ">", "--subject", user]);
    let (mut slow, id) = connect(&server, &of("anna"));
    let (_other, _) = connect(&server, &of("ben"));
    assert_eq!(slow.request(json!({"op": "subscribe", "id": 1, "topic": "room"}))["op"], "ack");
    assert_eq!(list(&server, "?slow=true"), json!({"connections": []}));
    // Far more bytes than the sockets' buffers take, in few messages: the client must read within 30 seconds.
    let data = "x".repeat(640_000);
    for _ in 0..40 {
        call(&server, "POST /publish", &json!({"topic": "room", "data": data}));
    }
    let found = list(&server, "?slow=true");
    assert_eq!(ids(&found), [&*id], "{found}");
    assert!(found["connections"][0]["queued"].as_u64().unwrap() >= 16 << 10, "{found}");
    let all = list(&server, "?slow=false");
    assert_eq!((ids(&all).len(), &all["connections"][1]["queued"]), (2, &json!(0)));
    assert!(ids(&list(&server, "?slow=true&user=ben")).is_empty());
    let wrong = call_with(&server, KEY, "", "GET /api/v1/connections?slow=1", "");
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    while !ids(&list(&server, "?slow=true")).is_empty() {
        slow.receive_message();
    }
}

#[test]
fn backend_subscribes_and_unsubscribes_clients_without_rights() {
    let (server, _directory, secret) = start(&["--history", "kept.>=10"]);
    let anna = token(&secret, &["--subject", "anna", "--subscribe", "own"]);
    let ((mut one, first), (mut other, second)) = (connect(&server, &anna), connect(&server, &anna));
    let subscribed = call(&server, "POST /subscribe", &json!({"topic": "kept.a", "user": "anna"}));
    assert_eq!(subscribed, json!({"results": [{"connection": first}, {"connection": second}]}));
    for client in [&mut one, &mut other] {
        let message = client.receive_message();
        assert_fields(&message, json!({"op": "subscribed", "topic": "kept.a", "seq": 0}));
    }
    assert_eq!(call(&server, "POST /publish", &json!({"topic": "kept.a", "data": 1}))["subscribers"], 2);
    assert_eq!(
        (one.receive_message()["data"].clone(), other.receive_message()["data"].clone()),
        (json!(1), json!(1))
    );
    // A new token of the client does not end it.
    let ack = one.request(json!({"op": "token", "id": 1, "token": anna}));
    assert_eq!(ack["op"], "ack");
    let twice = call(&server, "POST /subscribe", &json!({"topic": "kept.a", "connection": first}));
    assert_eq!(twice, json!({"results": [{"connection": first}]}));
    let ended = call(&server, "POST /unsubscribe", &json!({"topic": "kept.a", "connection": second}));
    assert_eq!(ended, json!({"results": [{"connection": second}]}));
    assert_eq!(other.receive_message(), json!({"op": "unsubscribed", "topic": "kept.a"}));
    let again = call(&server, "POST /unsubscribe", &json!({"topic": "kept.a", "connection": second}));
    assert_fields(&again["results"][0], json!({"connection": second, "code": 409}));
    assert_eq!(call(&server, "POST /publish", &json!({"topic": "kept.a", "data": 2}))["subscribers"], 1);
    assert_eq!(one.receive_message()["data"], 2);
    // The right of the key limits the topics, and a raw connection has no further subscriptions.
    let nobody = call(&server, "POST /subscribe", &json!({"topic": "a", "user": "nobody"}));
    assert_eq!(nobody, json!({"results": []}));
    let raw = server.try_websocket("/topics/own", &format!("Authorization: Bearer {anna}\r\n")).unwrap();
    let results = call(&server, "POST /subscribe", &json!({"topic": "kept.a", "user": "anna"}));
    assert_eq!(results["results"][2]["code"], 409, "{results}");
    drop(raw);
}

#[test]
fn backend_subscribes_no_event_stream_to_a_topic() {
    let (server, _directory, secret) = start(&[]);
    let anna = token(&secret, &["--subject", "anna", "--subscribe", "own"]);
    for path in ["/topics/own", "/topics/own/keys"] {
        let lines = format!("Accept: text/event-stream\r\nAuthorization: Bearer {anna}\r\n");
        let mut events = server.stream(path, &lines);
        for kind in ["welcome", "subscribed"] {
            assert_eq!(events.event().unwrap().kind, kind);
        }
        let results = call(&server, "POST /subscribe", &json!({"topic": "orders", "user": "anna"}));
        assert_eq!(results["results"][0]["code"], 409, "{path}: {results}");
        let published = call(&server, "POST /publish", &json!({"topic": "orders", "data": 1}));
        assert_eq!(published["subscribers"], 0, "{path}");
        drop(events);
        until("the connections have ended", || ids(&list(&server, "")).is_empty());
    }
}

#[test]
fn backend_lists_and_disconnects_event_streams_without_a_user() {
    let (server, _directory, secret) = start(&[]);
    let nameless = token(&secret, &["--subscribe", ">"]);
    for (path, accept) in [
        ("/topics/own", "text/event-stream"),
        ("/topics?topic=own&topic=other", "application/x-ndjson"),
        ("/topics/own/keys", "text/event-stream"),
    ] {
        let lines = format!("Accept: {accept}\r\nAuthorization: Bearer {nameless}\r\n");
        let mut reader = server.stream(path, &lines);
        let mut line = reader.line().unwrap();
        while !line.contains("\"op\":\"welcome\"") {
            line = reader.line().unwrap();
        }
        let welcome: Value = serde_json::from_str(line.trim_start_matches("data: ")).unwrap();
        let listed = list(&server, "");
        let [id] = ids(&listed)[..] else { panic!("{path}: {listed}") };
        assert_eq!(welcome["connection"], id, "{path}");
        let one = &listed["connections"][0];
        assert_eq!((&one["path"], one.get("user")), (&json!("/topics"), None), "{path}");
        assert_eq!(one["address"], "127.0.0.1");
        let closed = call(&server, "POST /disconnect", &json!({"connection": id}));
        assert_eq!(closed, json!({"connections": 1}));
        let rest = reader.rest();
        assert!(rest.contains("\"code\":4410") && rest.contains("disconnected by the server"), "{rest}");
        until("the connections have ended", || ids(&list(&server, "")).is_empty());
    }
}

#[test]
fn backend_lists_and_disconnects_a_long_poll_without_a_user() {
    let (server, _directory, secret) = start(&[]);
    let nameless = token(&secret, &["--subscribe", ">"]);
    let lines = format!("Accept: application/json\r\nAuthorization: Bearer {nameless}\r\n");
    let mut poll = server.stream("/topics/own?wait=50", &lines);
    let begin = poll.until("\"op\":\"ack\"").unwrap();
    assert!(!begin.contains("welcome"), "its client has no use for the id: {begin}");
    let listed = list(&server, "");
    let [id] = ids(&listed)[..] else { panic!("{listed}") };
    assert_eq!(listed["connections"][0]["path"], "/topics");
    let closed = call(&server, "POST /disconnect", &json!({"connection": id}));
    assert_eq!(closed, json!({"connections": 1}));
    assert!(poll.rest().ends_with("],\"cursor\":\"\"}\n"));
    until("the connections have ended", || ids(&list(&server, "")).is_empty());
}

#[test]
fn backend_disconnects_a_user_and_a_connection() {
    let (server, _directory, secret) = start(&[]);
    let of = |user: &str| token(&secret, &["--subject", user, "--subscribe", ">"]);
    let (mut one, id) = connect(&server, &of("anna"));
    let (mut two, _) = connect(&server, &of("anna"));
    let mut raw = Client(
        server.try_websocket("/topics/a", &format!("Authorization: Bearer {}\r\n", of("anna"))).unwrap(),
    );
    let (mut ben, _) = connect(&server, &of("ben"));
    let one_closed =
        call(&server, "POST /disconnect", &json!({"connection": id, "code": 4999, "reason": "bye"}));
    assert_eq!(one_closed, json!({"connections": 1}));
    assert_eq!(close_of(&mut one), (4999, "bye".to_owned()));
    drop(one);
    until("the other connections have ended", || ids(&list(&server, "?user=anna")).len() <= 2);
    assert_eq!(call(&server, "POST /disconnect", &json!({"user": "anna"})), json!({"connections": 2}));
    for client in [&mut two, &mut raw] {
        assert_eq!(close_of(client), (4410, "disconnected by the server".to_owned()));
    }
    assert_eq!(ben.request(json!({"op": "ping", "id": 1})), json!({"op": "pong", "id": 1}));
    for (body, status) in [
        (json!({"user": "ben", "code": 1000}), 422),
        (json!({"user": "ben", "code": 5000}), 422),
        (json!({"user": "ben", "reason": "x".repeat(124)}), 422),
        (json!({"user": "ben", "connection": "x"}), 400),
    ] {
        let answer = call_with(&server, KEY, "", "POST /api/v1/disconnect", &body.to_string());
        assert_eq!(answer.status, status, "{body}");
    }
    assert_eq!(call(&server, "POST /disconnect", &json!({"connection": id})), json!({"connections": 0}));
}

#[test]
fn revoked_tokens_are_rejected_and_their_connections_closed() {
    let (server, _directory, secret) = start(&[]);
    let of = |user: &str, id: &str| token(&secret, &["--subject", user, "--id", id, "--subscribe", ">"]);
    let (anna, ben, ben_too) = (of("anna", "a1"), of("ben", "b1"), of("ben", "b2"));
    let mut clients: Vec<Client> =
        [&anna, &ben, &ben_too].iter().map(|token| connect(&server, token).0).collect();
    let revoked = call(&server, "POST /revoke", &json!({"user": "anna"}));
    assert_eq!(revoked["connections"], 1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((now + 86_300..=now + 86_401).contains(&revoked["until"].as_u64().unwrap()));
    assert_eq!(close_of(&mut clients[0]), (4401, "the token has been revoked".to_owned()));
    let head = |token: &str| server.try_websocket(&format!("/ws?token={token}"), "").map(|_| ()).unwrap_err();
    assert!(head(&anna).starts_with("HTTP/1.1 401 "));
    let post = |token: &str| {
        server.request(&format!("POST /topics/a HTTP/1.1\r\nAuthorization: Bearer {token}"), "x")
    };
    assert!(post(&anna).contains("{\"error\":\"the token has been revoked\""), "{}", post(&anna));

    assert_eq!(call(&server, "POST /revoke", &json!({"token": "b1"}))["connections"], 1);
    assert_eq!(close_of(&mut clients[1]).0, 4401);
    assert!(head(&ben).starts_with("HTTP/1.1 401 "));
    let error = clients[2].request(json!({"op": "token", "id": 1, "token": ben}));
    assert_fields(&error, json!({"op": "error", "code": 401}));
    assert_eq!(clients[2].request(json!({"op": "ping", "id": 1})), json!({"op": "pong", "id": 1}));
    clients[2].0.send(&Frame::ping(""));
    // A token that is issued later is valid: the times of tokens have whole seconds.
    until("a token of a later second is valid", || {
        server.try_websocket(&format!("/ws?token={}", of("anna", "a2")), "").is_ok()
    });
    for until in [json!(1), json!(now + 367 * 86_400)] {
        let body = json!({"user": "anna", "until": until}).to_string();
        assert_eq!(call_with(&server, KEY, "", "POST /api/v1/revoke", &body).status, 422, "{body}");
    }
}
