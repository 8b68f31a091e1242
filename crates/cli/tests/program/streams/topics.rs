//! Durable topics: all subscribers receive one order, from the disk, at any time of subscription.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply, assert_fields};

use super::{ANY, Binary, Client, assert_error, body, records, serve};
use crate::config::Directory;
use crate::support::{Running, until};

fn topics(arguments: &[&str]) -> Running {
    serve(&[&["--streams-durable-topics", "chat,news.>"], arguments].concat())
}

impl Client {
    /// The next `count` messages of topics: position and data.
    pub(super) fn messages(&mut self, count: usize) -> Vec<(u64, u64, Value)> {
        let mut messages = Vec::new();
        for _ in 0..count {
            let reply = self.receive_message();
            assert_eq!(reply["op"], "message", "{reply}");
            let held = if reply["data"].is_null() { &reply["b64"] } else { &reply["data"] };
            messages.push((reply["epoch"].as_u64().unwrap(), reply["seq"].as_u64().unwrap(), held.clone()));
        }
        messages
    }
}

fn post(server: &Running, topic: &str, text: &str) -> Value {
    let answer = server.request(&format!("POST /topics/{topic} HTTP/1.1"), text);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    body(&answer)
}

/// Publishes numbers on a new WebSocket, each acknowledged.
pub(super) fn publish(server: &Running, topic: &str, numbers: std::ops::Range<u64>) {
    let mut client = Client::at(server, "/ws");
    for number in numbers {
        let ack = client.request(json!({ "op": "publish", "id": number, "topic": topic, "data": number }));
        assert_fields(&ack, json!({"op": "ack", "id": number}));
    }
}

#[test]
fn publications_by_each_protocol_are_delivered_in_the_order_of_the_stream() {
    let server = topics(&["--threads", "2"]);
    let mut early = Client::at(&server, "/ws");
    let ack = early.subscribe_with("news.a", &json!({ "presence": true }));
    assert_fields(&ack, json!({"seq": 0, "complete": true, "subscribers": 1}));
    let mut pattern = Client::at(&server, "/ws");
    pattern.subscribe_with("news.*", &json!({}));
    let mut raw = server.websocket("/topics/news.a");
    assert_eq!(early.receive_message()["subscribers"], 2);

    let mut client = Client::at(&server, "/ws");
    let ack = client.request(json!({ "op": "publish", "id": 1, "topic": "news.a", "data": "one" }));
    let epoch = ack["epoch"].as_u64().unwrap();
    assert_eq!(ack, json!({ "op": "ack", "id": 1, "epoch": epoch, "seq": 1 }));
    let answer = post(&server, "news.a", "two");
    assert_eq!(answer, json!({ "topic": "news.a", "epoch": epoch, "seq": 2 }));
    let appended = client.request(json!({ "op": "append", "id": 2, "stream": "news.a", "data": { "n": 3 } }));
    assert_eq!(appended["offset"], 2);
    raw.send(&Frame::binary(b"four"));
    let received: Vec<Reply> = (0..4).map(|_| raw.next().unwrap()).collect();
    assert_eq!(received[..3], ["one", "two", "{\"n\":3}"].map(Reply::text));
    assert!(matches!(&received[3], Reply::Message(sinews_proto::Kind::Binary, bytes) if bytes == b"four"));

    let expected: Vec<_> = [json!("one"), json!("two"), json!({ "n": 3 }), json!("Zm91cg==")].into();
    let expected: Vec<_> = (1_u64..).zip(expected).map(|(sequence, held)| (epoch, sequence, held)).collect();
    assert_eq!(early.messages(4), expected);
    assert_eq!(pattern.messages(4), expected);
    let mut late = Client::at(&server, "/ws");
    let ack = late.subscribe_with("news.a", &json!({ "last": 3 }));
    let answer = json!({ "op": "ack", "id": "s", "topic": "news.a", "epoch": epoch, "seq": 4, "replayed": 3,
        "complete": true });
    assert_eq!(ack, answer);
    assert_eq!(late.messages(3), expected[1..]);
    let kept = late.request(
        json!({ "op": "history", "id": 7, "topic": "news.a", "from": { "epoch": epoch, "seq": 1 } }),
    );
    assert_eq!(kept["messages"].as_array().unwrap().len(), 3);
    let second = json!({ "op": "message", "topic": "news.a", "epoch": epoch, "seq": 2, "data": "two" });
    assert_fields(&kept["messages"][0], second);
    let lines = server.get("/streams/news.a");
    assert_eq!(lines.lines().filter(|line| line.starts_with("{\"partition\"")).count(), 4);
}

#[test]
fn acknowledged_messages_survive_a_kill_and_resume_delivers_each_once() {
    let directory = Directory::new();
    let path = directory.path("streams");
    let start = || Running::serve(&["--streams", &path, "--streams-durable-topics", "chat"]);
    let (mut received, mut from) = (Vec::new(), json!({ "last": 0 }));
    for round in 0..4_u64 {
        let server = start();
        let mut subscriber = Client::at(&server, "/ws");
        let ack = subscriber.subscribe_with("chat", &from);
        assert_eq!(ack["complete"], true, "{ack}");
        assert_eq!(ack["replayed"].as_u64().unwrap(), 30 * round - received.len() as u64, "{ack}");
        publish(&server, "chat", round * 30..round * 30 + 30);
        // It disconnects before it has received all messages.
        received.extend(subscriber.messages(20));
        let last: &(u64, u64, Value) = received.last().unwrap();
        from = json!({ "from": { "epoch": last.0, "seq": last.1 } });
        server.signal("KILL");
    }
    let server = start();
    let mut subscriber = Client::at(&server, "/ws");
    subscriber.subscribe_with("chat", &from);
    received.extend(subscriber.messages(40));
    let epoch = received[0].0;
    for (at, message) in (0..120_u64).zip(&received) {
        assert_eq!(*message, (epoch, at + 1, json!(at)));
    }
    // Live messages follow.
    publish(&server, "chat", 120..121);
    assert_eq!(subscriber.messages(1), [(epoch, 121, json!(120))]);
    // A client of another epoch, and a client without a position.
    let mut other = Client::at(&server, "/ws");
    let ack = other.subscribe_with("chat", &json!({ "from": { "epoch": 1, "seq": 5 } }));
    assert_fields(&ack, json!({"complete": false, "replayed": 121}));
    let ack = Client::at(&server, "/ws").subscribe_with("chat", &json!({ "from": { "epoch": 1, "seq": 0 } }));
    assert_fields(&ack, json!({"complete": true, "replayed": 121}));
}

#[test]
fn history_continues_with_live_messages_without_a_gap() {
    const EACH: u64 = 1_500;
    let server = topics(&["--threads", "2", "--websocket-high-water", "4k"]);
    let published = AtomicU64::new(0);
    let (server, published) = (&server, &published);
    std::thread::scope(|scope| {
        for first in [0, EACH] {
            scope.spawn(move || {
                for number in (first..first + EACH).step_by(50) {
                    publish(server, "chat", number..number + 50);
                    published.fetch_add(50, Ordering::SeqCst);
                }
            });
        }
        // They join during publication, and read faster than the publishers write.
        let late = [200, 500, 1_000, 1_500, 2_000, 2_500, 2_800].map(|begin| {
            scope.spawn(move || {
                until("publications", || published.load(Ordering::SeqCst) >= begin);
                let mut late = Client::at(server, "/ws");
                late.subscribe_with("chat", &json!({ "from": { "epoch": 1, "seq": 0 } }));
                late.messages(2 * EACH as usize)
            })
        });
        let received = late.map(|late| late.join().unwrap());
        assert!(received.iter().all(|one| *one == received[0]), "all clients received the same messages");
        for (at, (_, sequence, _)) in (1..).zip(&received[0]) {
            assert_eq!(*sequence, at, "each message once, in order");
        }
    });
}

#[test]
fn slow_subscriber_reads_on_from_disk() {
    const COUNT: u64 = 1_500;
    let limits = ["--websocket-max-outbound", "128k", "--websocket-high-water", "16k"];
    let server = topics(&[&["--threads", "2"][..], &limits].concat());
    let mut slow = Client::at(&server, "/ws");
    slow.subscribe_with("chat", &json!({}));
    // By a pattern, too, which must not deliver live messages early.
    slow.subscribe_with("*", &json!({}));
    let mut quick = Client::at(&server, "/ws");
    quick.subscribe_with("chat", &json!({}));
    let filler = "x".repeat(10_000);
    let mut client = Client::at(&server, "/ws");
    let mut read = 0..COUNT;
    let mut read_on = |count: usize| {
        for number in read.by_ref().take(count) {
            let (_, sequence, held) = slow.messages(1).remove(0);
            assert_eq!((sequence, &held[0]), (number + 1, &json!(number)), "each message once, in order");
        }
    };
    for number in 0..COUNT {
        client.send_message(&json!({ "op": "publish", "topic": "chat", "data": [number, filler] }));
        let (_, sequence, held) = quick.messages(1).remove(0);
        assert_eq!((sequence, &held[0]), (number + 1, &json!(number)));
        // Exceed the socket buffers.
        if number > COUNT / 3 && number % 2 == 0 {
            read_on(1);
        }
    }
    read_on(COUNT as usize);
    client.send_message(&json!({ "op": "publish", "topic": "chat", "data": "last" }));
    assert_eq!(slow.messages(1)[0].1, COUNT + 1);
}

#[test]
fn impossible_requests_on_durable_topics_are_rejected() {
    let server = topics(&["--streams-partitions", "3"]);
    let refused = server.try_websocket("/topics/chat?self=false", "").map(drop).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    // The stream of a topic gets one partition, by any first use; other streams have three.
    let mut client = Client::at(&server, "/ws");
    for (stream, partitions) in [("chat", 1), ("other", 3)] {
        client.request(json!({ "op": "append", "id": 1, "stream": stream, "data": 1 }));
        let answer = client.request(json!({ "op": "stream", "id": 2, "stream": stream }));
        assert_eq!(answer["partitions"].as_array().unwrap().len(), partitions);
    }
    // An existing stream with several partitions backs no topic.
    let directory = Directory::new();
    let path = directory.path("streams");
    let before = Running::serve(&["--streams", &path, "--streams-partitions", "2"]);
    assert!(before.request("POST /streams/chat HTTP/1.1", "x").starts_with("HTTP/1.1 200 "));
    before.signal("TERM");
    assert!(before.wait().0.success());
    let server = Running::serve(&["--streams", &path, "--streams-durable-topics", "chat"]);
    let answer = server.request("POST /topics/chat HTTP/1.1", "x");
    assert!(answer.starts_with("HTTP/1.1 409 ") && answer.contains("2 partitions"), "{answer}");
    let mut client = Client::at(&server, "/ws");
    let error = client.request(json!({ "op": "subscribe", "id": 1, "topic": "chat" }));
    assert_fields(&error, json!({"op": "error", "code": 409}));
}

#[test]
fn reload_adds_hooks_and_limits_to_open_binary_publishers() {
    let directory = Directory::new();
    let file = directory.write("sinews.toml", "");
    let server = topics(&["--config", &file]);
    let mut clients = ["a", "chat"].map(|stream| Binary::both(&server, stream));
    for client in clients.iter_mut().flatten() {
        client.send_message(1, 1, ANY, 1, &records(&[b"a"]));
        assert_eq!(client.receive_message().op, 129);
    }
    directory.write(
        "sinews.toml",
        "[namespace.a]\npublish_hook = \"http://127.0.0.1:1/\"\n[namespace.chat]\nmax_message = 100\n",
    );
    server.signal("HUP");
    until("the reload", || server.request("POST /topics/a HTTP/1.1", "a").starts_with("HTTP/1.1 503 "));
    for mut client in clients.into_iter().flatten() {
        client.send_message(1, 1, ANY, 2, &records(&[b"b"]));
        assert_error(&client.receive_message(), 2, 403);
    }
}
