//! The protocol of many topics over one WebSocket, as docs/book/src/server/protocol.md describes it.

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply};

use crate::auth::{SECRET, token};
use crate::config::Directory;
use crate::support::{Running, Socket};

/// A client of the protocol.
struct Client(Socket);

impl Client {
    fn connect(server: &Running) -> Self {
        Self::with(server, "/ws", "")
    }

    fn with(server: &Running, path: &str, lines: &str) -> Self {
        let mut client = Self(server.try_websocket(path, lines).expect("a socket"));
        assert_eq!(client.hear()["op"], "welcome");
        client
    }

    fn say(&mut self, words: &Value) {
        self.0.send(&Frame::text(words.to_string()));
    }

    fn hear(&mut self) -> Value {
        let Some(Reply::Message(_, payload)) = self.0.next() else { panic!("the socket has ended") };
        serde_json::from_slice(&payload).unwrap()
    }

    /// Sends a message and returns the next reply.
    fn ask(&mut self, words: Value) -> Value {
        self.say(&words);
        self.hear()
    }

    fn subscribe(&mut self, topic: &str) {
        let ack = self.ask(json!({"op": "subscribe", "id": topic, "topic": topic}));
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
        framed.say(&json!({"op": "publish", "id": 7, "topic": "room", "data": data}));
        let heard = [framed.hear(), framed.hear()];
        assert!(heard.contains(&message(data)), "{heard:?}");
        assert!(heard.contains(&json!({"op": "ack", "id": 7, "reached": 3})), "{heard:?}");
        assert_eq!((plain.next(), quiet.next()), (Some(Reply::text(text)), Some(Reply::text(text))));
    }
    framed.say(&json!({"op": "publish", "topic": "room", "b64": "AP8="}));
    assert_eq!(framed.hear(), json!({"op": "message", "topic": "room", "b64": "AP8="}));
    assert_eq!(plain.next(), Some(Reply::binary(vec![0, 255])));
    assert_eq!(quiet.next(), Some(Reply::binary(vec![0, 255])));

    quiet.send(&Frame::text("{\"not\": \"parsed\"}"));
    assert_eq!(framed.hear(), message(json!("{\"not\": \"parsed\"}")));
    assert_eq!(plain.next(), Some(Reply::text("{\"not\": \"parsed\"}")));
    plain.send(&Frame::binary("bytes"));
    assert_eq!(framed.hear(), json!({"op": "message", "topic": "room", "b64": "Ynl0ZXM="}));
    assert_eq!((plain.next(), quiet.next()), (Some(Reply::binary("bytes")), Some(Reply::binary("bytes"))));
    let answer = server.request("POST /topics/room HTTP/1.1", "posted");
    assert!(answer.ends_with("{\"subscribers\":3,\"topic\":\"room\"}\n"), "{answer}");
    assert_eq!(framed.hear(), message(json!("posted")));
    assert_eq!(plain.next(), Some(Reply::text("posted")));

    let ack = framed.ask(json!({"op": "unsubscribe", "id": 8, "topic": "room"}));
    assert_eq!(ack, json!({"op": "ack", "id": 8, "topic": "room"}));
    server.request("POST /topics/room HTTP/1.1", "unheard");
    assert_eq!(framed.ask(json!({"op": "ping", "id": "last"})), json!({"op": "pong", "id": "last"}));
}

#[test]
fn errors_have_a_code_and_the_id_of_the_request() {
    let server = Running::serve(&["--threads", "1"]);
    let mut client = Client::connect(&server);
    let long = "x".repeat(251);
    for (words, code, part) in [
        (json!([]), 400, "invalid message"),
        (json!({"id": 1}), 400, "op is missing"),
        (json!({"op": "subscribe", "id": 1}), 400, "subscribe: topic is missing"),
        (json!({"op": "subscribe", "id": 1, "topic": 5}), 400, "invalid type"),
        (json!({"op": "subscribe", "id": 1, "topci": "a"}), 400, "unknown field `topci`"),
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
        let answer = client.ask(words.clone());
        assert_eq!((&answer["op"], &answer["code"]), (&json!("error"), &json!(code)), "{words}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{words}: {answer}");
        assert_eq!(answer["id"], words["id"], "{words}: {answer}");
    }
    for id in [json!([]), json!("x".repeat(65)), json!(true)] {
        let answer = client.ask(json!({"op": "ping", "id": id}));
        assert!(answer["code"] == 400 && answer.get("id").is_none(), "{answer}");
    }
    client.0.send(&Frame::binary("{\"op\":\"ping\"}"));
    assert_eq!(client.hear()["code"], 400);
    client.0.send(&Frame::text("{"));
    assert_eq!(client.hear()["code"], 400);

    // Subscribe up to the limit, and once more.
    for count in 0..1_024 {
        client.say(&json!({"op": "subscribe", "topic": count.to_string()}));
    }
    let answer = client.ask(json!({"op": "subscribe", "id": "many", "topic": "one more"}));
    assert!(answer["code"] == 429 && answer["id"] == "many", "{answer}");
    client.subscribe("7");
    client.ask(json!({"op": "unsubscribe", "id": 1, "topic": "7"}));
    client.subscribe("one more");
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
        let words = json!({"op": "subscribe", "id": bits, "topic": pattern(bits, 15)});
        let answer = clients[client].ask(words);
        if answer["op"] == "error" {
            assert!(answer["code"] == 429, "{answer}");
            assert!(answer["error"].as_str().unwrap().contains("at most 8 tokens"), "{answer}");
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
    let server = Running::serve(&["--threads", "2"]);
    let mut watcher = Client::connect(&server);
    let ack = watcher.ask(json!({"op": "subscribe", "id": 1, "topic": "room", "presence": true}));
    assert_eq!((&ack["op"], &ack["subscribers"]), (&json!("ack"), &json!(1)));
    let mut last = ack["at"].as_u64().unwrap();
    let mut until = |watcher: &mut Client, subscribers: u64| {
        loop {
            let told = watcher.hear();
            assert_eq!((&told["op"], &told["topic"]), (&json!("presence"), &json!("room")), "{told}");
            // From two workers they may arrive in another order.
            if told["at"].as_u64().unwrap() > last {
                last = told["at"].as_u64().unwrap();
                if told["subscribers"] == subscribers {
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
    let asked = framed.ask(json!({"op": "presence", "id": 5, "topic": "room"}));
    assert_eq!(
        (&asked["op"], &asked["id"], &asked["subscribers"]),
        (&json!("presence"), &json!(5), &json!(3))
    );
    drop(plain);
    until(&mut watcher, 2);
    framed.ask(json!({"op": "unsubscribe", "id": 6, "topic": "room"}));
    until(&mut watcher, 1);
    let nobody = framed.ask(json!({"op": "presence", "id": 7, "topic": "elsewhere"}));
    assert_eq!(nobody["subscribers"], 0);
}

#[test]
fn tokens_limit_the_operations_of_a_client() {
    let directory = Directory::new();
    let secret = directory.write("secret", SECRET);
    let server = Running::serve(&[
        "--auth-secret-file",
        &secret,
        "--auth-leeway",
        "0s",
        "--auth-public-subscribe",
        "news",
    ]);
    let mut nobody = Client::connect(&server);
    nobody.subscribe("news");
    let answer = nobody.ask(json!({"op": "subscribe", "id": 1, "topic": "chat.a"}));
    assert_eq!(answer["code"], 401);
    assert_eq!(answer["needs"], json!({"subscribe": ["chat.a"]}));
    let answer = nobody.ask(json!({"op": "publish", "id": 1, "topic": "news", "data": 1}));
    assert_eq!((&answer["code"], &answer["needs"]), (&json!(401), &json!({"publish": ["news"]})));

    let made = token(&secret, &["--subscribe", "chat.>", "--publish", "chat.a"]);
    let offer = format!("Sec-WebSocket-Protocol: sinews.v1, sinews.bearer.{made}\r\n");
    let mut member = Client::with(&server, "/ws", &offer);
    assert!(member.0.head.contains("Sec-WebSocket-Protocol: sinews.v1\r\n"), "{}", member.0.head);
    member.subscribe("chat.>");
    member.subscribe("chat.*");
    for words in [
        json!({"op": "subscribe", "id": 1, "topic": ">"}),
        json!({"op": "publish", "id": 1, "topic": "chat.b", "data": 1}),
        json!({"op": "presence", "id": 1, "topic": "elsewhere"}),
    ] {
        assert_eq!(member.ask(words.clone())["code"], 403, "{words}");
    }
    // Delivered once by its own patterns, and acknowledged.
    let said = json!({"op": "publish", "id": 1, "topic": "chat.a", "data": 1});
    assert_eq!(member.ask(said), json!({"op": "message", "topic": "chat.a", "data": 1}));
    assert_eq!(member.hear(), json!({"op": "ack", "id": 1, "reached": 2}));
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
    let ack = client.ask(json!({"op": "subscribe", "id": 1, "topic": "chat.a", "last": 1}));
    assert_eq!(
        (&ack["seq"], &ack["replayed"], &ack["complete"]),
        (&json!(2), &json!(1), &json!(true)),
        "{ack}"
    );
    let epoch = ack["epoch"].clone();
    let message = |seq: u64| json!({"op": "message", "topic": "chat.a", "epoch": epoch, "seq": seq, "data": seq.to_string()});
    assert_eq!(client.hear(), message(2));
    posted("3");
    assert_eq!(client.hear(), message(3));
    drop(client);

    posted("4");
    posted("5");
    let mut client = Client::connect(&server);
    let from = |seq: u64| json!({"epoch": epoch, "seq": seq});
    let ack = client.ask(json!({"op": "subscribe", "id": 1, "topic": "chat.a", "from": from(3)}));
    assert_eq!((&ack["replayed"], &ack["complete"]), (&json!(2), &json!(true)), "{ack}");
    posted("6");
    for seq in 4..=6 {
        assert_eq!(client.hear(), message(seq), "in order, without duplicates and gaps");
    }
    let kept = client.ask(json!({"op": "history", "id": 2, "topic": "chat.a", "last": 2}));
    assert_eq!(
        kept,
        json!({"op": "history", "id": 2, "topic": "chat.a", "messages": [message(5), message(6)]})
    );

    // The history has five messages: the first is evicted, and the acknowledgement reports it.
    let mut late = Client::connect(&server);
    let ack = late.ask(json!({"op": "subscribe", "id": 1, "topic": "chat.a", "from": from(0)}));
    assert_eq!((&ack["replayed"], &ack["complete"]), (&json!(5), &json!(false)), "{ack}");
    for seq in 2..=6 {
        assert_eq!(late.hear(), message(seq));
    }
    // A topic without history starts with live messages.
    let ack = late.ask(json!({"op": "subscribe", "id": 1, "topic": "news", "last": 3}));
    assert_eq!(ack, json!({"op": "ack", "id": 1, "topic": "news", "complete": false}));
    for (words, code) in [
        (json!({"op": "history", "id": 1, "topic": "news", "last": 1}), 410),
        (json!({"op": "history", "id": 1, "topic": "chat.a"}), 400),
        (json!({"op": "history", "id": 1, "topic": "chat.a", "last": 1, "from": from(1)}), 400),
    ] {
        assert_eq!(late.ask(words.clone())["code"], code, "{words}");
    }
}

#[test]
fn patterns_are_delivered_in_both_forms() {
    let server = Running::serve(&["--threads", "2"]);
    let mut framed = Client::connect(&server);
    framed.subscribe("prices.>");
    framed.subscribe("prices.*");
    let mut plain = server.websocket("/topics/prices.*");
    plain.send(&Frame::ping(""));
    assert_eq!(plain.next(), Some(Reply::Pong(Vec::new())));
    server.request("POST /topics/prices.gold HTTP/1.1", "1");
    assert_eq!(framed.hear(), json!({"op": "message", "topic": "prices.gold", "data": "1"}));
    assert_eq!(plain.next(), Some(Reply::text("1")));
    // Delivered once, though two patterns match.
    server.request("POST /topics/prices.gold.eur HTTP/1.1", "2");
    assert_eq!(framed.hear(), json!({"op": "message", "topic": "prices.gold.eur", "data": "2"}));
}
