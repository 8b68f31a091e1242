//! The feed of the dashboard.

use serde_json::{Value, json};
use sinews_testkit::{Reply, assert_fields};

use crate::auth::{SECRET, token};
use crate::hooks::{AppAnswer, Application, serve};
use crate::protocol::Client;
use crate::support::Socket;

/// The first report for which this holds.
fn report(viewer: &mut Socket, mut holds: impl FnMut(&Value) -> bool) -> Value {
    loop {
        let Some(Reply::Message(_, text)) = viewer.next() else { panic!("the feed has ended") };
        let message: Value = serde_json::from_slice(&text).unwrap();
        if holds(&message) {
            return message;
        }
    }
}

#[test]
fn feed_reports_users_topics_keys_hooks_and_webhooks() {
    let secret = crate::auth::keys("secret");
    let app = Application::start(|request| match &*request.path {
        "/rpc" => AppAnswer::Json(json!({"data": 1})),
        "/events" => AppAnswer::Status(200),
        _ => AppAnswer::Status(500),
    });
    let (calls, events) = (app.url("/rpc"), app.url("/events"));
    let file = format!(
        "[auth]\nsecret_file = {secret:?}\n[hooks]\nrpc = {calls:?}\n[webhook.app]\nurl = {events:?}\n\
         secret = {SECRET:?}\ngrace = \"0s\"\ndelay = \"0s\"\nevents = [\"topic_occupied\"]\n"
    );
    let server = serve(&file);
    let rights = ["--subscribe", ">", "--publish", ">", "--keys", "players/*"];
    let bearer = |user: &str| {
        let token = token(&secret, &[&["--subject", user], &rights[..]].concat());
        format!("Authorization: Bearer {token}\r\n")
    };
    let (anna, ben) = (bearer("anna"), bearer("ben"));
    let mut viewer = server.try_websocket("/dashboard/feed", &anna).expect("a feed");
    let mut clients = [&anna, &anna, &ben].map(|lines| Client::with(&server, "/ws", lines));
    for client in &mut clients {
        assert_eq!(client.request(json!({"op": "subscribe", "id": 1, "topic": "quiet"}))["op"], "ack");
    }
    let [client, ..] = &mut clients;
    for operation in [
        json!({"op": "subscribe", "id": 2, "topic": "room"}),
        json!({"op": "join", "id": 3, "topic": "room", "member": {"id": "anna"}}),
        json!({"op": "set", "id": 4, "topic": "players", "key": "anna", "data": 1}),
        json!({"op": "rpc", "id": 5, "method": "add"}),
    ] {
        assert_eq!(client.request(operation)["error"], Value::Null);
    }
    // A report has the publications since the one before.
    let seen = report(&mut viewer, |report| {
        client.send_message(&json!({"op": "publish", "id": 6, "topic": "room", "data": 1}));
        let is_rated = report["topics"][0][0] == "room" && report["topics"][0][1] != 0;
        is_rated && report["webhooks"][0]["delivered"] == 2
    });
    assert_eq!(seen["topics"][0][2], 1, "subscribers of room: {seen}");
    assert_eq!(seen["topics"][1], json!(["quiet", 0, 3, 0]), "a topic without messages");
    assert_eq!(seen["topics"][2], json!(["players", 0, 0, 1]), "a topic that has only keys");
    assert_fields(&seen, json!({"topic_count": 3, "subscribed_topics": 2}));
    assert_eq!(seen["users"], 2);
    assert_fields(&seen, json!({"members": 1, "keyed_topics": 1, "keys": 1}));
    assert_fields(&seen, json!({"overflowed": 0, "keyed_lags": 0, "key_changes": 1}));
    let hook = &seen["hooks"]["hooks"][0];
    assert_fields(hook, json!({"hook": "rpc", "accepted": 1, "failed": 0}));
    assert!(hook["timed"] == 1 && hook["us"].as_u64().is_some_and(|micros| micros > 0), "{hook}");
    assert_eq!(seen["hooks"]["hooks"].as_array().unwrap().len(), 1, "only requested hooks");
    assert_fields(&seen["hooks"], json!({"open_circuits": 0, "pending": 0}));
    let webhook =
        json!({"webhook": "app", "delivered": 2, "failed": 0, "dropped": 0, "retries": 0, "queued": 0});
    assert_eq!(seen["webhooks"], json!([webhook]));
    drop(clients);
    // The last publication may be in the next report, too. The viewer is connected as anna.
    let end = report(&mut viewer, |report| {
        report["users"] == 1 && report["topics"] == json!([["players", 0, 0, 1]])
    });
    assert_fields(&end, json!({"topic_count": 1, "subscribed_topics": 0}));
    assert_eq!(end["members"], 0);
}

#[test]
fn viewer_of_a_revoked_token_is_closed() {
    let (secret, key) = (crate::auth::keys("secret"), "0123456789abcdef0123456789abcdef");
    let file = format!("[auth]\nsecret_file = {secret:?}\n[api]\nkey = {key:?}\n");
    let server = serve(&file);
    let tokens =
        ["anna", "ben"].map(|user| token(&secret, &["--subject", user, "--subscribe", "sinews.dashboard"]));
    let open =
        |token: &str| server.try_websocket("/dashboard/feed", &format!("Authorization: Bearer {token}\r\n"));
    let [mut anna, mut ben] = tokens.each_ref().map(|token| open(token).expect("a feed"));
    let call = |request: &str, body: &Value| {
        let head =
            format!("{request} HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = server.request(&head, &body);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        serde_json::from_str::<Value>(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    // Once a report has arrived, the connection is registered.
    for viewer in [&mut anna, &mut ben] {
        report(viewer, |_| true);
    }
    let listed = &call("GET /api/v1/connections?user=anna", &Value::Null)["connections"];
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["path"]), (1, &json!("/dashboard/feed")));
    assert_eq!(call("POST /api/v1/revoke", &json!({"user": "anna"}))["connections"], 1);
    let code = loop {
        match anna.next() {
            Some(Reply::Message(..)) => {}
            end => break end.and_then(|reply| reply.close_code()),
        }
    };
    assert_eq!(code, Some(4401));
    assert!(open(&tokens[0]).is_err(), "the token is rejected");
    // Without the right to view the dashboard, the connection ends, too.
    call("POST /api/v1/refresh", &json!({"user": "ben", "claims": {"sub": "ben", "subscribe": ["other"]}}));
    let code = loop {
        match ben.next() {
            Some(Reply::Message(..)) => {}
            end => break end.and_then(|reply| reply.close_code()),
        }
    };
    assert_eq!(code, Some(4403));
}
