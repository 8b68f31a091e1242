//! The protocol of many topics over one WebSocket, as docs/book/src/server/protocol.md describes it.

use std::sync::LazyLock;

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply, assert_fields};

use crate::api::schema;
use crate::auth::token;
use crate::support::{Running, Socket};

/// The published schema, without permission for unknown fields.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/server/protocol.schema.json");
    let mut schema = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    schema::close(&mut schema);
    schema
});

fn check_message(message: &Value) {
    let schema = &SCHEMA["$defs"]["server"][message["op"].as_str().unwrap()];
    assert!(schema.is_object(), "not in the schema: {message}");
    assert_eq!(schema::fault(&SCHEMA, schema, message, "message"), None, "{message}");
}

/// A client of the protocol.
pub(crate) struct Client(pub(crate) Socket);

/// A server with a client at `/ws`.
pub(crate) fn connected(server: Running) -> (Running, Client) {
    let client = Client::connect(&server);
    (server, client)
}

impl Client {
    pub(crate) fn connect(server: &Running) -> Self {
        Self::at(server, "/ws")
    }

    pub(crate) fn at(server: &Running, path: &str) -> Self {
        Self::with(server, path, "")
    }

    pub(crate) fn with(server: &Running, path: &str, lines: &str) -> Self {
        Self::welcomed(server, path, lines).0
    }

    /// A client and its welcome.
    pub(crate) fn welcomed(server: &Running, path: &str, lines: &str) -> (Self, Value) {
        let mut client = Self(server.try_websocket(path, lines).expect("a socket"));
        let welcome = client.receive_message();
        assert_eq!(welcome["op"], "welcome");
        (client, welcome)
    }

    pub(crate) fn send_message(&mut self, body: &Value) {
        self.0.send_message(body);
    }

    /// The next message, which is one of the published schema.
    pub(crate) fn receive_message(&mut self) -> Value {
        let message = self.0.receive_message();
        check_message(&message);
        message
    }

    /// Sends a message and returns the next reply.
    pub(crate) fn request(&mut self, body: Value) -> Value {
        self.send_message(&body);
        self.receive_message()
    }

    /// Subscribes with further fields; returns the acknowledgement.
    pub(crate) fn subscribe_with(&mut self, topic: &str, more: &Value) -> Value {
        let mut request = json!({ "op": "subscribe", "id": "s", "topic": topic });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let ack = self.request(request);
        assert_eq!(ack["op"], "ack", "{ack}");
        ack
    }

    fn subscribe(&mut self, topic: &str) {
        let ack = self.request(json!({"op": "subscribe", "id": topic, "topic": topic}));
        assert_eq!(ack, json!({"op": "ack", "id": topic, "topic": topic}));
    }
}

#[test]
fn topics_are_delivered_in_both_forms() {
    let server = Running::serve(&["--threads", "2"]);
    let offer = "Sec-WebSocket-Protocol: sinews.v1\r\n";
    let mut framed = Client::with(&server, "/ws", offer);
    assert!(framed.0.head.contains("Sec-WebSocket-Protocol: sinews.v1\r\n"));
    let mut plain = server.websocket("/topics/room");
    let mut quiet = server.websocket("/topics/room?self=false");
    for socket in [&mut plain, &mut quiet] {
        socket.send(&Frame::ping(""));
        assert_eq!(socket.next(), Some(Reply::Pong(Vec::new())));
    }
    framed.subscribe("room");
    framed.subscribe("other");

    let message = |data: Value| json!({"op": "message", "topic": "room", "data": data});
    for (data, text) in [
        (json!("hello \"you\""), "hello \"you\""),
        (json!({"a": [1, null]}), "{\"a\":[1,null]}"),
        (json!(1.5), "1.5"),
        (json!(null), "null"),
    ] {
        framed.send_message(&json!({"op": "publish", "id": 7, "topic": "room", "data": data}));
        let received = [framed.receive_message(), framed.receive_message()];
        assert!(received.contains(&message(data)), "{received:?}");
        assert!(received.contains(&json!({"op": "ack", "id": 7, "reached": 3})), "{received:?}");
        assert_eq!((plain.next(), quiet.next()), (Some(Reply::text(text)), Some(Reply::text(text))));
    }
    framed.send_message(&json!({"op": "publish", "topic": "room", "b64": "AP8="}));
    assert_eq!(framed.receive_message(), json!({"op": "message", "topic": "room", "b64": "AP8="}));
    assert_eq!(plain.next(), Some(Reply::binary(vec![0, 255])));
    assert_eq!(quiet.next(), Some(Reply::binary(vec![0, 255])));

    quiet.send(&Frame::text("{\"not\": \"parsed\"}"));
    assert_eq!(framed.receive_message(), message(json!("{\"not\": \"parsed\"}")));
    assert_eq!(plain.next(), Some(Reply::text("{\"not\": \"parsed\"}")));
    plain.send(&Frame::binary("bytes"));
    assert_eq!(framed.receive_message(), json!({"op": "message", "topic": "room", "b64": "Ynl0ZXM="}));
    assert_eq!((plain.next(), quiet.next()), (Some(Reply::binary("bytes")), Some(Reply::binary("bytes"))));
    let answer = server.request("POST /topics/room HTTP/1.1", "posted");
    assert!(answer.ends_with("{\"subscribers\":3,\"topic\":\"room\"}\n"), "{answer}");
    assert_eq!(framed.receive_message(), message(json!("posted")));
    assert_eq!(plain.next(), Some(Reply::text("posted")));

    let ack = framed.request(json!({"op": "unsubscribe", "id": 8, "topic": "room"}));
    assert_eq!(ack, json!({"op": "ack", "id": 8, "topic": "room"}));
    server.request("POST /topics/room HTTP/1.1", "unheard");
    assert_eq!(framed.request(json!({"op": "ping", "id": "last"})), json!({"op": "pong", "id": "last"}));
}

#[test]
fn errors_have_a_code_and_the_id_of_the_request() {
    let (_server, mut client) = connected(Running::serve(&["--threads", "1"]));
    let long = "x".repeat(251);
    for (body, code, part) in [
        (json!([]), 400, "invalid message"),
        (json!({"id": 1}), 400, "op is missing"),
        (json!({"op": "subscribe", "id": 1}), 400, "subscribe: topic is missing"),
        (json!({"op": "subscribe", "id": 1, "topic": 5}), 400, "invalid type"),
        (json!({"op": "subscribe", "id": 1, "topci": "a"}), 400, "topic is missing (unknown: topci)"),
        (json!({"op": "publish", "id": 1, "topic": "a"}), 400, "data or b64"),
        (json!({"op": "publish", "id": 1, "topic": "a", "data": 1, "b64": ""}), 400, "data or b64"),
        (json!({"op": "publish", "id": 1, "topic": "a", "b64": "?"}), 400, "b64: "),
        (json!({"op": "shout", "id": 1}), 404, "unknown op \"shout\""),
        (json!({"op": "unsubscribe", "id": 1, "topic": "a"}), 409, "not subscribed to a"),
        (json!({"op": "subscribe", "id": 1, "topic": ""}), 422, "1 to 250 bytes"),
        (json!({"op": "subscribe", "id": 1, "topic": long}), 422, "1 to 250 bytes"),
        (json!({"op": "subscribe", "id": 1, "topic": "a.>.b"}), 422, "> is valid at the end"),
        (json!({"op": "subscribe", "id": 1, "topic": "a.*", "presence": true}), 422, "name one topic"),
        (json!({"op": "publish", "id": 1, "topic": "a.*", "data": 1}), 422, "name one topic"),
        (json!({"op": "presence", "id": 1, "topic": ">"}), 422, "name one topic"),
    ] {
        let answer = client.request(body.clone());
        assert_eq!((&answer["op"], &answer["code"]), (&json!("error"), &json!(code)), "{body}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{body}: {answer}");
        assert_eq!(answer["id"], body["id"], "{body}: {answer}");
    }
    for id in [json!([]), json!("x".repeat(65)), json!(true)] {
        let answer = client.request(json!({"op": "ping", "id": id}));
        assert!(answer["code"] == 400 && answer.get("id").is_none(), "{answer}");
    }
    client.0.send(&Frame::binary("{\"op\":\"ping\"}"));
    assert_eq!(client.receive_message()["code"], 400);
    client.0.send(&Frame::text("{"));
    assert_eq!(client.receive_message()["code"], 400);

    // Subscribe up to the limit, and once more.
    for count in 0..1_024 {
        client.send_message(&json!({"op": "subscribe", "topic": count.to_string()}));
    }
    let answer = client.request(json!({"op": "subscribe", "id": "many", "topic": "one more"}));
    assert!(answer["code"] == 429 && answer["id"] == "many", "{answer}");
    client.subscribe("7");
    client.request(json!({"op": "unsubscribe", "id": 1, "topic": "7"}));
    client.subscribe("one more");
}

#[test]
fn unknown_fields_are_ignored_and_reported() {
    let (_server, mut client) = connected(Running::serve(&["--threads", "1"]));
    let subscribe = json!({"op": "subscribe", "id": 1, "topic": "a", "presense": true, "new": {"a": [1]}});
    let report = json!({"op": "ignored", "fields": ["new", "presense"], "request": 1});
    assert_eq!(client.request(subscribe), report);
    assert_eq!(client.receive_message(), json!({"op": "ack", "id": 1, "topic": "a"}));
    client.send_message(&json!({"op": "publish", "topic": "a", "data": 1, "new": 1}));
    assert_eq!(client.receive_message(), json!({"op": "ignored", "fields": ["new"]}));
    assert_eq!(client.receive_message()["data"], 1);
    let member = json!({"id": "anna", "connections": 2});
    let join = json!({"op": "join", "id": 2, "topic": "a", "member": member});
    assert_eq!(client.request(join), json!({"op": "ack", "id": 2, "topic": "a"}));
    let ping = |id| json!({"op": "ping", "id": id, "new": 1});
    for id in 0..14 {
        assert_eq!(client.request(ping(id))["op"], "ignored");
        assert_eq!(client.receive_message(), json!({"op": "pong", "id": id}));
    }
    assert_eq!(client.request(ping(14)), json!({"op": "pong", "id": 14}), "16 reports of a connection");
}

#[test]
fn ambiguous_pattern_is_rejected_beyond_the_matching_steps_limit() {
    let server = Running::serve(&["--threads", "2"]);
    let pattern = |bits: u32, tokens: u32| {
        let token = |at| if bits >> at & 1 == 0 { "a" } else { "*" };
        (0..tokens).map(token).collect::<Vec<_>>().join(".")
    };
    let mut rejected = 0;
    let mut clients = [(); 2].map(|()| Client::connect(&server));
    for (bits, client) in (0..2_000).zip([0, 1].into_iter().cycle()) {
        let body = json!({"op": "subscribe", "id": bits, "topic": pattern(bits, 15)});
        let answer = clients[client].request(body);
        if answer["op"] == "error" {
            assert!(answer["code"] == 429, "{answer}");
            assert!(answer["error"].as_str().unwrap().contains("at most 8 parts"), "{answer}");
            rejected += 1;
        }
    }
    assert!(rejected > 0);
    let mut other = Client::connect(&server);
    for bits in 0..256 {
        other.subscribe(&pattern(bits, 8));
    }
}

#[test]
fn presence_counts_subscribers_by_name() {
    let (server, mut watcher) = connected(Running::serve(&["--threads", "2"]));
    let ack = watcher.request(json!({"op": "subscribe", "id": 1, "topic": "room", "presence": true}));
    assert_fields(&ack, json!({"op": "ack", "subscribers": 1}));
    let mut last = ack["at"].as_u64().unwrap();
    let mut until = |watcher: &mut Client, subscribers: u64| {
        loop {
            let event = watcher.receive_message();
            assert_fields(&event, json!({"op": "presence", "topic": "room"}));
            // From two workers they may arrive in another order.
            if event["at"].as_u64().unwrap() > last {
                last = event["at"].as_u64().unwrap();
                if event["subscribers"] == subscribers {
                    return;
                }
            }
        }
    };
    let plain = server.websocket("/topics/room");
    until(&mut watcher, 2);
    let mut framed = Client::connect(&server);
    framed.subscribe("room");
    // A repeated subscription counts once, and a pattern does not count.
    framed.subscribe("room");
    framed.subscribe("*");
    until(&mut watcher, 3);
    let current = framed.request(json!({"op": "presence", "id": 5, "topic": "room"}));
    assert_fields(&current, json!({"op": "presence", "id": 5, "subscribers": 3}));
    drop(plain);
    until(&mut watcher, 2);
    framed.request(json!({"op": "unsubscribe", "id": 6, "topic": "room"}));
    until(&mut watcher, 1);
    let empty = framed.request(json!({"op": "presence", "id": 7, "topic": "elsewhere"}));
    assert_eq!(empty["subscribers"], 0);
}

#[test]
fn tokens_limit_the_operations_of_a_client() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&[
        "--auth-secret-file",
        &secret,
        "--auth-leeway",
        "0s",
        "--auth-public-subscribe",
        "news",
    ]);
    let mut anonymous = Client::connect(&server);
    let ack = anonymous.request(json!({"op": "subscribe", "id": 1, "topic": "news"}));
    assert_eq!(ack, json!({"op": "ack", "id": 1, "topic": "news", "publish": false}));
    let answer = anonymous.request(json!({"op": "subscribe", "id": 1, "topic": "chat.a"}));
    assert_eq!(answer["code"], 401);
    assert_eq!(answer["needs"], json!({"subscribe": ["chat.a"]}));
    let answer = anonymous.request(json!({"op": "publish", "id": 1, "topic": "news", "data": 1}));
    assert_fields(&answer, json!({"code": 401, "needs": {"publish": ["news"]}}));

    let made = token(&secret, &["--subscribe", "chat.>", "--publish", "chat.a"]);
    let offer = format!("Sec-WebSocket-Protocol: sinews.v1, sinews.bearer.{made}\r\n");
    let mut member = Client::with(&server, "/ws", &offer);
    assert!(member.0.head.contains("Sec-WebSocket-Protocol: sinews.v1\r\n"), "{}", member.0.head);
    member.subscribe("chat.>");
    member.subscribe("chat.*");
    for body in [
        json!({"op": "subscribe", "id": 1, "topic": ">"}),
        json!({"op": "publish", "id": 1, "topic": "chat.b", "data": 1}),
        json!({"op": "presence", "id": 1, "topic": "elsewhere"}),
    ] {
        assert_eq!(member.request(body.clone())["code"], 403, "{body}");
    }
    // Delivered once by its own patterns, and acknowledged.
    let publication = json!({"op": "publish", "id": 1, "topic": "chat.a", "data": 1});
    assert_eq!(member.request(publication), json!({"op": "message", "topic": "chat.a", "data": 1}));
    assert_eq!(member.receive_message(), json!({"op": "ack", "id": 1, "reached": 2}));
    assert!(server.try_websocket("/ws?token=none", "").is_err_and(|head| head.starts_with("HTTP/1.1 401 ")));
    assert!(server.rejects_origin("/ws", "http://elsewhere.example"));

    let mut ends = loop {
        let short = token(&secret, &["--subscribe", "a", "--expires", "2s"]);
        if let Ok(socket) = server.try_websocket(&format!("/ws?token={short}"), "") {
            break socket;
        }
    };
    assert!(matches!(ends.next(), Some(Reply::Message(..))));
    assert_eq!(ends.next().and_then(|reply| reply.close_code()), Some(4401));
}

#[test]
fn resuming_client_receives_missed_messages() {
    let server = Running::serve(&["--threads", "2", "--history", "chat.*=5"]);
    let posted = |text: &str| server.request("POST /topics/chat.a HTTP/1.1", text);
    // The history retains messages without subscribers.
    posted("1");
    posted("2");
    let mut client = Client::connect(&server);
    let ack = client.request(json!({"op": "subscribe", "id": 1, "topic": "chat.a", "last": 1}));
    assert_fields(&ack, json!({"seq": 2, "replayed": 1, "complete": true}));
    let epoch = ack["epoch"].clone();
    let assert_message = |found: &Value, seq: u64| {
        assert_fields(
            found,
            json!({"op": "message", "topic": "chat.a", "epoch": epoch, "seq": seq, "data": seq.to_string()}),
        );
        assert!(found["at"].as_u64().is_some_and(|at| at > 1_700_000_000_000), "{found}");
    };
    assert_message(&client.receive_message(), 2);
    posted("3");
    assert_message(&client.receive_message(), 3);
    drop(client);

    posted("4");
    posted("5");
    let mut client = Client::connect(&server);
    let from = |seq: u64| json!({"epoch": epoch, "seq": seq});
    let ack = client.request(json!({"op": "subscribe", "id": 1, "topic": "chat.a", "from": from(3)}));
    assert_fields(&ack, json!({"replayed": 2, "complete": true}));
    posted("6");
    for seq in 4..=6 {
        assert_message(&client.receive_message(), seq);
    }
    let kept = client.request(json!({"op": "history", "id": 2, "topic": "chat.a", "last": 2}));
    assert_fields(&kept, json!({"op": "history", "id": 2, "topic": "chat.a", "more": true}));
    let messages = kept["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 2, "{kept}");
    messages.iter().zip(5..).for_each(|(message, seq)| assert_message(message, seq));

    // The history has five messages: the first is evicted, and the acknowledgement reports it.
    let mut late = Client::connect(&server);
    let ack = late.request(json!({"op": "subscribe", "id": 1, "topic": "chat.a", "from": from(0)}));
    assert_fields(&ack, json!({"replayed": 5, "complete": false}));
    for seq in 2..=6 {
        assert_message(&late.receive_message(), seq);
    }
    // A topic without history starts with live messages.
    let ack = late.request(json!({"op": "subscribe", "id": 1, "topic": "news", "last": 3}));
    assert_eq!(ack, json!({"op": "ack", "id": 1, "topic": "news", "complete": false}));
    for (body, code) in [
        (json!({"op": "history", "id": 1, "topic": "news", "last": 1}), 410),
        (json!({"op": "history", "id": 1, "topic": "chat.a"}), 400),
        (json!({"op": "history", "id": 1, "topic": "chat.a", "last": 1, "from": from(1)}), 400),
    ] {
        assert_eq!(late.request(body.clone())["code"], code, "{body}");
    }
}

#[test]
fn patterns_are_delivered_in_both_forms() {
    let (server, mut framed) = connected(Running::serve(&["--threads", "2"]));
    framed.subscribe("prices.>");
    framed.subscribe("prices.*");
    let mut plain = server.websocket("/topics/prices.*");
    plain.send(&Frame::ping(""));
    assert_eq!(plain.next(), Some(Reply::Pong(Vec::new())));
    server.request("POST /topics/prices.gold HTTP/1.1", "1");
    assert_eq!(framed.receive_message(), json!({"op": "message", "topic": "prices.gold", "data": "1"}));
    assert_eq!(plain.next(), Some(Reply::text("1")));
    // Delivered once, though two patterns match.
    server.request("POST /topics/prices.gold.eur HTTP/1.1", "2");
    assert_eq!(framed.receive_message(), json!({"op": "message", "topic": "prices.gold.eur", "data": "2"}));
}

impl Client {
    fn join(&mut self, topic: &str, member: &Value) {
        let ack = self.request(json!({"op": "join", "id": "join", "topic": topic, "member": member}));
        assert_eq!(ack, json!({"op": "ack", "id": "join", "topic": topic}));
    }

    /// Receives presence updates until one is true for `holds`; none may be missing after the version `at`.
    fn until_presence(&mut self, at: &mut u64, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let update = self.receive_message();
            assert_eq!(update["op"], "presence", "{update}");
            assert!(update["since"].as_u64().unwrap() <= *at, "an update is missing: {update}");
            *at = update["at"].as_u64().unwrap();
            if holds(&update) {
                return update;
            }
        }
    }
}

#[test]
fn members_are_listed_and_their_changes_reported() {
    let (server, mut anna) = connected(Running::serve(&["--threads", "1"]));
    let member = |id: &str, name: &str| json!({"id": id, "info": {"name": name, "since": [1, null]}});
    let listed_member = |id: &str, name: &str| {
        let mut listed = member(id, name);
        listed["connections"] = json!(1);
        listed
    };
    anna.join("room", &member("anna", "Anna"));
    let ack = anna.request(json!({"op": "subscribe", "id": 1, "topic": "room", "members": true}));
    assert_eq!(ack["members"], json!([listed_member("anna", "Anna")]), "{ack}");
    // The connection is counted once, joined and subscribed.
    assert_fields(&ack, json!({"more": false, "subscribers": 1}));
    let mut at = ack["at"].as_u64().unwrap();

    // The same with the subscription first.
    let mut ben = Client::connect(&server);
    ben.subscribe("room");
    ben.join("room", &member("ben", "Ben"));
    let update = anna.until_presence(&mut at, |update| update.get("joined").is_some());
    assert_eq!(update["joined"], json!([member("ben", "Ben")]));
    assert_eq!((&update["subscribers"], update.get("left")), (&json!(2), None), "{update}");
    ben.join("room", &member("ben", "Benjamin"));
    let update = anna.until_presence(&mut at, |update| update.get("joined").is_some());
    assert_eq!(update["joined"], json!([member("ben", "Benjamin")]));
    let listed = ben.request(json!({"op": "members", "id": 2, "topic": "room", "after": "anna"}));
    assert_fields(&listed, json!({"op": "members", "id": 2, "topic": "room"}));
    assert_eq!(listed["members"], json!([listed_member("ben", "Benjamin")]), "{listed}");
    assert_eq!(listed["more"], false);

    // A member may leave and still subscribe, and the other way around.
    let ack = ben.request(json!({"op": "leave", "id": 3, "topic": "room"}));
    assert_eq!(ack, json!({"op": "ack", "id": 3, "topic": "room"}));
    let update = anna.until_presence(&mut at, |update| update.get("left").is_some());
    assert_fields(&update, json!({"left": ["ben"], "subscribers": 2}));
    assert_eq!(ben.request(json!({"op": "leave", "id": 3, "topic": "room"}))["code"], 409);
    ben.join("room", &json!({"id": "ben"}));
    ben.request(json!({"op": "unsubscribe", "id": 4, "topic": "room"}));
    let listed = ben.request(json!({"op": "members", "id": 5, "topic": "room"}));
    assert_eq!(
        listed["members"],
        json!([listed_member("anna", "Anna"), {"id": "ben", "connections": 1}]),
        "{listed}"
    );
    // A lost connection leaves.
    drop(ben);
    let update = anna.until_presence(&mut at, |update| update.get("left").is_some());
    assert_fields(&update, json!({"left": ["ben"], "subscribers": 1}));
}

#[test]
fn members_are_listed_in_pages() {
    const MEMBERS: usize = 300;
    let (server, mut watcher) = connected(Running::serve(&["--threads", "1"]));
    let ack = watcher.request(json!({"op": "subscribe", "id": 1, "topic": "room", "members": true}));
    let mut at = ack["at"].as_u64().unwrap();
    let mut members: Vec<Client> = (0..MEMBERS)
        .map(|number| {
            let mut client = Client::connect(&server);
            client.join("room", &json!({"id": format!("{number:03}")}));
            client
        })
        .collect();
    let all = |update: &Value| update["subscribers"] == MEMBERS + 1;
    watcher.until_presence(&mut at, all);
    let first = members[0].request(json!({"op": "members", "id": 1, "topic": "room"}));
    let listed = first["members"].as_array().unwrap();
    assert_eq!((&first["more"], listed.len()), (&json!(true), 256));
    let rest =
        members[0].request(json!({"op": "members", "id": 1, "topic": "room", "after": listed[255]["id"]}));
    assert_eq!((&rest["more"], rest["members"].as_array().unwrap().len()), (&json!(false), MEMBERS - 256));
    assert_eq!(rest["members"][0]["id"], "256");

    // A connection is one member of a topic.
    let mut one = Client::connect(&server);
    for number in 0..MEMBERS {
        one.send_message(&json!({"op": "join", "topic": "hall", "member": {"id": number.to_string()}}));
    }
    let listed = one.request(json!({"op": "members", "id": 1, "topic": "hall"}));
    assert_eq!(
        listed["members"],
        json!([{"id": "299", "connections": 1}]),
        "each join replaces the member of the connection"
    );
    assert_eq!(listed["subscribers"], 1);
}

/// Answers and notices take the capacity of publications, and are dropped themselves if there is none.
#[test]
fn every_message_is_delivered_or_reported_as_dropped() {
    // Far more bytes than the sockets' buffers take, in few messages: the slow client must read within 30 seconds.
    const MESSAGES: u64 = 150;
    let data = "x".repeat(128_000);
    for overflow in ["drop-oldest", "drop-newest"] {
        let limits = ["--websocket-overflow", overflow, "--websocket-max-outbound", "256k"];
        let (server, mut slow) = connected(Running::serve(&limits));
        slow.subscribe("room");
        let mut publisher = Client::connect(&server);
        for number in 0..MESSAGES {
            let message =
                format!("{{\"op\":\"publish\",\"id\":{number},\"topic\":\"room\",\"data\":\"{data}\"}}");
            publisher.0.send(&Frame::text(message));
            assert_eq!(publisher.receive_message()["op"], "ack");
            slow.send_message(&json!({"op": "ping"}));
        }
        let (mut received, mut dropped) = (0, 0);
        while received + dropped < MESSAGES {
            let message = slow.receive_message();
            match message["op"].as_str() {
                Some("message") => received += 1,
                Some("dropped") => dropped += message["messages"].as_u64().unwrap(),
                _ => assert_eq!(message["op"], "pong"),
            }
        }
        assert_eq!(received + dropped, MESSAGES);
        assert!(received > 0 && dropped > 0, "{received} received, {dropped} dropped");
    }
}

#[test]
fn joins_are_checked() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret, "--auth-public-subscribe", "open"]);
    let mut public = Client::connect(&server);
    let join = |topic: &str, member: Value| json!({"op": "join", "id": 1, "topic": topic, "member": member});
    for (body, code, part) in [
        (json!({"op": "join", "id": 1, "topic": "open"}), 400, "member is missing"),
        (join("open", json!({"name": "a"})), 400, "missing field `id`"),
        (join("open", json!({"info": 1})), 400, "missing field `id`"),
        (json!({"op": "members", "id": 1}), 400, "members: topic is missing"),
        (json!({"op": "read", "id": 1, "stream": "s", "offset": 0, "after": "a"}), 400, "for topics only"),
        (join("closed", json!({"id": "a"})), 401, "to subscribe to closed"),
        (json!({"op": "members", "id": 1, "topic": "closed"}), 401, "to subscribe to closed"),
        (json!({"op": "leave", "id": 1, "topic": "open"}), 409, "has not joined open"),
        (
            join("open", json!({"id": "a", "info": "x".repeat(1_023)})),
            413,
            "1025 bytes exceeds the limit of 1024",
        ),
        (join("open", json!({"id": ""})), 422, "1 to 128 characters"),
        (join("open", json!({"id": "x".repeat(129)})), 422, "1 to 128 characters"),
        (join("open.*", json!({"id": "a"})), 422, "name one topic"),
    ] {
        let answer = public.request(body.clone());
        assert_eq!((&answer["op"], &answer["code"]), (&json!("error"), &json!(code)), "{body}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{body}: {answer}");
    }
    public.join("open", &json!({"id": "x".repeat(128), "info": "x".repeat(1_022)}));

    // The token's `sub` is the only id.
    let of = |subject: &str, topics: &str| token(&secret, &["--subject", subject, "--subscribe", topics]);
    let offer = format!("Sec-WebSocket-Protocol: sinews.v1, sinews.bearer.{}\r\n", of("anna", "chat.>"));
    let mut anna = Client::with(&server, "/ws", &offer);
    let answer = anna.request(join("chat.a", json!({"id": "ben"})));
    assert_eq!(answer["code"], 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("the sub of the token: anna"), "{answer}");
    for topic in ["chat.a", "chat.b"] {
        anna.join(topic, &json!({"id": "anna"}));
    }
    // A token without the right ends the presence, and so does another `sub`.
    let ids = |client: &mut Client, topic: &str| {
        client.request(json!({"op": "members", "id": 1, "topic": topic}))["members"].clone()
    };
    let renew = |token: String| json!({"op": "token", "id": 2, "token": token});
    assert_eq!(anna.request(renew(of("anna", "chat.b")))["op"], "ack");
    let ended = anna.receive_message();
    assert_fields(&ended, json!({"code": 403, "topic": "chat.a"}));
    assert_eq!(ids(&mut anna, "chat.b"), json!([{"id": "anna", "connections": 1}]));
    assert_eq!(anna.request(renew(of("ben", "chat.>")))["op"], "ack");
    let ended = anna.receive_message();
    assert_fields(&ended, json!({"code": 403, "topic": "chat.b"}));
    assert_eq!((ids(&mut anna, "chat.a"), ids(&mut anna, "chat.b")), (json!([]), json!([])));
}

#[test]
fn joined_topics_count_as_subscriptions() {
    let (_server, mut client) = connected(Running::serve(&["--threads", "1"]));
    for count in 0..1_024 {
        let topic = count.to_string();
        client.send_message(&json!({"op": "join", "topic": topic, "member": {"id": "a"}}));
    }
    let more = json!({"op": "join", "id": "more", "topic": "one more", "member": {"id": "a"}});
    assert_eq!(client.request(more.clone())["code"], 429);
    assert_eq!(client.request(json!({"op": "subscribe", "id": 1, "topic": "one more"}))["code"], 429);
    client.subscribe("7");
    client.request(json!({"op": "leave", "id": 1, "topic": "7"}));
    assert_eq!(client.request(more.clone())["code"], 429, "the subscription is left");
    client.request(json!({"op": "leave", "id": 1, "topic": "8"}));
    assert_eq!(client.request(more)["op"], "ack");
}

#[test]
fn acknowledgement_says_that_the_client_may_not_publish() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret, "--auth-public-subscribe", "open.>"]);
    let subscribed = |client: &mut Client, topic: &str| {
        client.send_message(
            &json!({"op": "subscribe", "id": 1, "topic": topic, "members": !topic.contains('>')}),
        );
        // Presence of the first topic may come before.
        let mut ack = client.receive_message();
        while ack["op"] == "presence" {
            ack = client.receive_message();
        }
        assert_eq!(ack["op"], "ack", "{ack}");
        ack.get("publish").cloned()
    };
    let mut guest = Client::connect(&server);
    assert_eq!(subscribed(&mut guest, "open.room"), Some(json!(false)));
    assert_eq!(subscribed(&mut guest, "open.>"), None, "a pattern has no answer");
    let rights = ["--subscribe", "open.>", "--publish", "open.room"];
    let bearer = format!("Authorization: Bearer {}\r\n", token(&secret, &rights));
    let mut member = Client::with(&server, "/ws", &bearer);
    assert_eq!(subscribed(&mut member, "open.room"), None);
    assert_eq!(subscribed(&mut member, "open.news"), Some(json!(false)));
}
