//! Subscriptions by pattern to durable topics of other nodes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use sinews_testkit::Reply;

use super::super::topics::publish;
use super::*;

/// A response with events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn subscribe(node: &Running, topic: &str) -> Self {
        let mut stream = node.connect();
        let head =
            format!("GET /topics/{topic} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut events = Self(BufReader::new(stream));
        assert_eq!(events.line(), "HTTP/1.1 200 OK");
        // The acknowledgement of the subscription.
        while events.line() != "event: subscribed" {}
        events
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the response has ended");
        line.trim_end().to_owned()
    }

    /// The number in the next message.
    fn number(&mut self) -> u64 {
        loop {
            if let Some(message) = self.line().strip_prefix("data: ").filter(|data| data.contains("message"))
            {
                return serde_json::from_str::<Value>(message).unwrap()["data"].as_u64().unwrap();
            }
        }
    }
}

/// Clients that name only a pattern receive the topics of another node: topics that exist, and topics that are new.
/// `create` prepares a topic at the broker.
pub(super) fn pattern_alone_receives_topics_of_another_node(url: &str, unused: &str, create: impl Fn(&str)) {
    let [old, new] = ["old", "new"].map(|name| format!("{unused}.{name}"));
    let (durable, pattern) = (format!("{unused}.>"), format!("{unused}.*"));
    let nodes = [(); 2].map(|()| node(url, &["--streams-durable-topics", &durable]));
    create(&old);
    publish(&nodes[0], &old, 0..5);
    let mut by_pattern = [(); 2].map(|()| Client::at(&nodes[1], "/ws"));
    for client in &mut by_pattern {
        let ack = client.request(json!({ "op": "subscribe", "id": 1, "topic": pattern }));
        assert_eq!(ack, json!({ "op": "ack", "id": 1, "topic": pattern }));
    }
    let mut events = Events::subscribe(&nodes[1], &pattern);
    let mut raw = nodes[1].websocket(&format!("/topics/{pattern}"));
    publish(&nodes[0], &old, 5..10);
    let received = by_pattern[0].messages(5);
    assert_eq!(
        received.iter().map(|(.., data)| data.clone()).collect::<Vec<_>>(),
        [5, 6, 7, 8, 9].map(|it| json!(it))
    );
    assert_eq!(by_pattern[1].messages(5), received);
    let text = |reply: Option<Reply>| match reply {
        Some(Reply::Message(_, bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    for number in 5..10 {
        assert_eq!(events.number(), number);
        assert_eq!(text(raw.next()), number.to_string());
    }

    // A topic that did not exist is delivered from its first message.
    create(&new);
    publish(&nodes[0], &new, 0..5);
    let first = by_pattern[0].messages(5);
    assert_eq!(
        first.iter().map(|(.., data)| data.clone()).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4].map(|it| json!(it))
    );
    assert_eq!(by_pattern[1].messages(5), first);
    for number in 0..5 {
        assert_eq!(events.number(), number);
        assert_eq!(text(raw.next()), number.to_string());
    }

    // A long poll by pattern answers with the first messages after it.
    let head = format!("GET /topics/{pattern}?wait=30 HTTP/1.1\r\nAccept: application/json");
    let poll = thread::scope(|scope| {
        let polling = scope.spawn(|| nodes[1].request(&head, ""));
        let mut number = 5;
        while !polling.is_finished() {
            publish(&nodes[0], &new, number..number + 1);
            number += 1;
            thread::park_timeout(Duration::from_millis(50));
        }
        polling.join().unwrap()
    });
    assert!(poll.starts_with("HTTP/1.1 200 ") && poll.contains(&new), "{poll}");
}

/// A pattern that matches more topics than the node may store is rejected, with the limit.
#[cfg(feature = "kafka")]
pub(super) fn pattern_beyond_the_limit_is_rejected(url: &str, unused: &str, create: impl Fn(&str)) {
    let durable = format!("{unused}.>");
    let first = node(url, &["--streams-durable-topics", &durable]);
    for topic in ["a", "b", "c"].map(|name| format!("{unused}.{name}")) {
        create(&topic);
        publish(&first, &topic, 0..1);
    }
    let small = node(url, &["--streams-durable-topics", &durable, "--streams-max-streams", "2"]);
    let mut client = Client::at(&small, "/ws");
    let error = client.request(json!({ "op": "subscribe", "id": 1, "topic": durable }));
    sinews_testkit::assert_fields(&error, json!({"op": "error", "id": 1}));
    assert!(error["error"].as_str().unwrap().contains("max_streams"), "{error}");
    // A narrower pattern is accepted.
    let ack = client.request(json!({ "op": "subscribe", "id": 2, "topic": format!("{unused}.x.*") }));
    assert_eq!(ack["op"], "ack", "{ack}");
}
