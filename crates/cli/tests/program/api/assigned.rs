//! Topics to which the server subscribes clients: by their tokens, by a setting, and by the backend.

use std::net::TcpStream;

use serde_json::{Value, json};
use sinews_testkit::{BodyReader, assert_fields};

use super::connections::{connect, start};
use super::{KEY, call, call_with};
use crate::auth::token;
use crate::support::{Running, fails, next_line, program};

const PERSONAL: [&str; 4] =
    ["--auth-personal-topics", "personal.{sub}", "--auth-personal-topics", "all.{sub}.>"];

fn lines(server: &Running, query: &str, token: &str) -> BodyReader<TcpStream> {
    let lines = format!("Accept: application/x-ndjson\r\nAuthorization: Bearer {token}\r\n");
    server.stream(&format!("/topics?{query}"), &lines)
}

fn publish(server: &Running, topic: &str) -> Value {
    call(server, "POST /publish", &json!({"topic": topic, "data": topic}))["subscribers"].clone()
}

#[test]
fn clients_are_subscribed_to_the_topics_of_their_token_and_to_personal_topics() {
    let (server, _directory, secret) = start(&PERSONAL);
    let anna = token(&secret, &["--subject", "anna", "--topics", "orders.7", "--topics", "news.*"]);
    let (mut client, _) = connect(&server, &anna);
    let topics: Vec<Value> = (0..4)
        .map(|_| {
            let message = client.receive_message();
            assert_eq!(message["op"], "subscribed", "{message}");
            message["topic"].clone()
        })
        .collect();
    assert_eq!(topics, ["orders.7", "news.*", "personal.anna", "all.anna.>"]);
    for topic in ["orders.7", "news.a", "personal.anna", "all.anna.b.c"] {
        publish(&server, topic);
        assert_eq!(client.receive_message()["topic"], topic);
    }
    // The client itself has no right.
    assert_eq!(client.request(json!({"op": "subscribe", "id": 1, "topic": "orders.7"}))["code"], 403);
    assert_eq!(
        client.request(json!({"op": "publish", "id": 1, "topic": "orders.7", "data": 1}))["code"],
        403
    );

    // A renewed token adds its topics; a name with a wildcard has no personal topics.
    let renewed = token(&secret, &["--subject", "anna", "--topics", "orders.8"]);
    client
        .0
        .send(&sinews_testkit::Frame::text(json!({"op": "token", "id": 2, "token": renewed}).to_string()));
    let messages = [client.receive_message(), client.receive_message()];
    assert!(messages.iter().any(|message| message["topic"] == "orders.8"), "{messages:?}");
    let (mut wild, _) = connect(&server, &token(&secret, &["--subject", "*", "--subscribe", "a"]));
    assert_eq!(wild.request(json!({"op": "ping", "id": 1})), json!({"op": "pong", "id": 1}));
}

#[test]
fn event_streams_that_ask_for_them_have_assigned_topics() {
    let (server, _directory, secret) = start(&PERSONAL[..2]);
    let anna = token(&secret, &["--subject", "anna", "--subscribe", "own", "--topics", "orders.7"]);
    let mut body = lines(&server, "topic=own&assigned=true", &anna);
    let read: Vec<Value> = (0..3).map(|_| next_line(&mut body)).collect();
    let parts: Vec<_> = read.iter().map(|one| (&one["op"], &one["topic"])).collect();
    let (ack, subscribed) = (json!("ack"), json!("subscribed"));
    let expected = [json!("own"), json!("orders.7"), json!("personal.anna")];
    assert_eq!(parts, [(&ack, &expected[0]), (&subscribed, &expected[1]), (&subscribed, &expected[2])]);
    let added = call(&server, "POST /subscribe", &json!({"topic": "added", "user": "anna"}));
    assert_eq!(added["results"][0].get("code"), None, "{added}");
    assert_eq!(next_line(&mut body), json!({"op": "subscribed", "topic": "added"}));
    for topic in ["own", "orders.7", "personal.anna", "added"] {
        assert_eq!(publish(&server, topic), 1);
        assert_eq!(next_line(&mut body)["topic"], topic);
    }
    let ended = call(&server, "POST /unsubscribe", &json!({"topic": "added", "user": "anna"}));
    assert_eq!(ended["results"][0].get("code"), None, "{ended}");
    assert_eq!(next_line(&mut body), json!({"op": "unsubscribed", "topic": "added"}));
    assert_eq!(publish(&server, "added"), 0);
    assert_eq!(publish(&server, "own"), 1, "the response goes on");
    assert_eq!(next_line(&mut body)["topic"], "own");
    // Without topics of its own, and without the wish.
    let mut alone = lines(&server, "assigned=true", &anna);
    assert_eq!(next_line(&mut alone)["topic"], "orders.7");
    let mut without = lines(&server, "topic=own", &anna);
    assert_eq!(
        (next_line(&mut without)["topic"].clone(), publish(&server, "orders.7")),
        (json!("own"), json!(2))
    );
    for (query, accept) in
        [("assigned=yes", "application/x-ndjson"), ("assigned=true", "application/json"), ("", "*/*")]
    {
        let head =
            format!("GET /topics?{query} HTTP/1.1\r\nAccept: {accept}\r\nAuthorization: Bearer {anna}");
        let answer = server.request(&head, "");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{query}: {answer}");
    }
}

#[test]
fn backend_assigns_topics_by_a_refresh() {
    let (server, _directory, secret) = start(&[]);
    let (mut client, id) = connect(&server, &token(&secret, &["--subject", "anna", "--subscribe", "own"]));
    let claims = json!({"sub": "anna", "subscribe": "own", "topics": "orders.7"});
    call(&server, "POST /refresh", &json!({"connection": id, "claims": claims}));
    assert_eq!(client.receive_message()["op"], "refreshed");
    let subscribed = client.receive_message();
    assert_fields(&subscribed, json!({"op": "subscribed", "topic": "orders.7"}));
    let many: Vec<String> = (0..65).map(|number| format!("t.{number}")).collect();
    for topics in [json!(many), json!("a..b"), json!("$pusher.a")] {
        let body = json!({"connection": id, "claims": {"topics": topics}}).to_string();
        let answer = call_with(&server, KEY, "", "POST /api/v1/refresh", &body);
        assert_eq!(answer.status, 422, "{}", answer.body);
    }
}

#[test]
fn invalid_personal_topics_are_reported_at_the_start() {
    for (topic, fault) in [("personal", "has no {sub}"), ("personal..{sub}", "empty part")] {
        let failure = fails(program().args(["serve", "--auth-personal-topics", topic]));
        assert!(failure.contains("--auth-personal-topics") && failure.contains(fault), "{failure}");
    }
}
