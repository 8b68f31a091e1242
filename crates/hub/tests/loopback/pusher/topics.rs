//! Channels as topics of the hub.

use serde_json::json;
use sinews_testkit::assert_fields;

use super::client::{Client, app, connected, hub, hub_of, policy, trigger};
use crate::support::TestHub;

/// A client of `/ws` that is subscribed to a topic.
fn subscriber(hub: &TestHub, topic: &str) -> sinews::blocking::WebSocket<std::net::TcpStream> {
    let mut socket = hub.websocket("/ws");
    socket.send_text(&json!({ "op": "subscribe", "topic": topic, "id": 1 }).to_string()).unwrap();
    let welcome = next(&mut socket);
    assert_eq!(welcome["op"], "welcome");
    socket
}

fn next(socket: &mut sinews::blocking::WebSocket<std::net::TcpStream>) -> serde_json::Value {
    let message = socket.next().unwrap().unwrap();
    crate::support::parse(std::str::from_utf8(message.as_bytes()).unwrap())
}

#[test]
fn channels_of_an_app_with_topics_reach_other_protocols_and_the_reverse() {
    let (hub, mut client) = connected(|app| app.with_topics("chat").with_client_events(true));
    client.subscribe("private-a");
    let mut other = subscriber(&hub, "chat.private-a");
    assert_eq!(next(&mut other)["op"], "ack");
    trigger(&hub, "private-a", "e", "{}");
    client.expect("e");
    let message = next(&mut other);
    assert_eq!(message["data"], json!({ "event": "e", "data": "{}" }), "{message}");
    client.trigger("client-e", "private-a", json!([1]));
    assert_eq!(next(&mut other)["data"], json!({ "event": "client-e", "data": [1] }));
    hub.publish("chat.private-a", "hello");
    assert_eq!(client.receive(), json!({ "event": "message", "channel": "private-a", "data": "hello" }));
    let publication =
        json!({ "op": "publish", "topic": "chat.private-a", "data": { "event": "x", "data": 1 } });
    other.send_text(&publication.to_string()).unwrap();
    other.flush().unwrap();
    assert_eq!(client.receive(), json!({ "event": "x", "channel": "private-a", "data": 1 }));
}

#[test]
fn channels_of_an_app_without_topics_are_reached_by_no_other_protocol() {
    let hub = hub_of([app()]);
    let mut client = Client::new(&hub);
    client.subscribe("private-a");
    for topic in ["$pusher.3.c.private-a", "$pusher.>", "$pusher"] {
        let rejected = next(&mut subscriber(&hub, topic));
        assert_fields(&rejected, json!({"op": "error", "code": 422}));
        assert_ne!(hub.publish_as(topic, "text/plain", b"x"), 200);
    }
    let mut all = subscriber(&hub, ">");
    assert_eq!(next(&mut all)["op"], "ack");
    trigger(&hub, "private-a", "e", "{}");
    client.expect("e");
    hub.publish("other", "x");
    assert_eq!(next(&mut all)["topic"], "other");
}

#[test]
fn apps_do_not_hear_each_other() {
    let hub = hub_of([app(), sinews_hub::PusherApp::new("4", "k4", "s")]);
    let mut client = Client::new(&hub);
    let mut other = Client::at(&hub, &format!("/app/k4?{}", super::client::QUERY));
    client.subscribe("a");
    other.send("pusher:subscribe", json!({ "channel": "a" }));
    other.subscribed("a");
    trigger(&hub, "a", "e", "");
    client.expect("e");
    other.ping();
}

/// A reload changes the topics of an app, and back: a subscription from before ends with its channel, and others stay.
#[test]
fn unsubscribed_channel_of_former_topics_receives_no_events() {
    let (hub, mut client) = connected(|app| app.with_topics("chat"));
    for channel in ["a", "b"] {
        client.subscribe(channel);
    }
    for prefix in ["talk", "chat"] {
        hub.config.replace(policy([app().with_topics(prefix)]));
        client.ping();
        client.send("pusher:unsubscribe", json!({ "channel": "a" }));
        client.ping();
    }
    hub.publish("chat.a", "x");
    hub.publish("chat.b", "y");
    assert_eq!(client.receive(), json!({ "event": "message", "channel": "b", "data": "y" }));
    client.subscribe("a");
    hub.publish("chat.a", "z");
    assert_eq!(client.receive(), json!({ "event": "message", "channel": "a", "data": "z" }));
}

/// In the names of the server below, a percent sign stands for a dot.
#[test]
fn channel_with_a_percent_sign_is_not_the_channel_with_a_dot() {
    let hub = hub(|app| app.with_topics("chat").with_client_events(true));
    let (mut client, mut other) = (Client::new(&hub), Client::new(&hub));
    for client in [&mut client, &mut other] {
        client.subscribe("private-room.1");
    }
    client.trigger("client-e", "private-room%1", json!(1));
    assert!(client.expect("pusher:error").1["message"].as_str().unwrap().contains("needs a subscription"));
    client.send("pusher:unsubscribe", json!({ "channel": "private-room%1" }));
    client.trigger("client-e", "private-room.1", json!(2));
    assert_eq!(other.expect("client-e").1, json!(2));
    hub.publish("chat.private-room.1", "x");
    assert_eq!(client.receive()["data"], "x");
    client.send("pusher:unsubscribe", json!({ "channel": "private-room.1" }));
    client.ping();
    hub.publish("chat.private-room.1", "y");
    client.ping();
}
