//! A made-up protocol: an encoding, a handler and a route. The hub's other parts do not know it.

use std::sync::atomic::{AtomicUsize, Ordering};

use sinews_server::{Closed, Position};

use super::*;
use crate::topics::HubTopics;
use crate::topics::encoding::{EncodedTopics, Encoding};
use crate::topics::list::TopicScan;

const LINES: EncodedTopics = EncodedTopics::new("l.");
const TOPIC: &str = "live.a";

/// Encodes a publication as a line, and counts the calls.
#[derive(Debug, Default)]
struct Lines {
    named: AtomicUsize,
    encoded: AtomicUsize,
}

impl Lines {
    fn calls(&self) -> [usize; 2] {
        [&self.named, &self.encoded].map(|calls| calls.load(Ordering::Relaxed))
    }
}

impl Encoding for Lines {
    fn topics(&self) -> EncodedTopics {
        LINES
    }

    fn name<'a>(&self, topic: &'a str) -> Option<std::borrow::Cow<'a, str>> {
        self.named.fetch_add(1, Ordering::Relaxed);
        Some(topic.into())
    }

    fn encode(&self, publication: &Publication<'_, '_>, topic: &str, _: Option<Position>) -> Prepared {
        self.encoded.fetch_add(1, Ordering::Relaxed);
        let content = String::from_utf8_lossy(publication.content.message().bytes());
        Prepared::text(json!(format!("{topic}: {content}")).to_string())
    }
}

/// Subscribes to the topic, and publishes messages to it.
struct LinesClient(Arc<HubTopics>);

impl Handler for LinesClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe(&LINES.topic(TOPIC)).unwrap();
        self.0.add_subscriber(cx, LINES, TOPIC);
        assert_eq!(cx.send_text("\"open\""), Ok(sinews_server::Sent::Queued));
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let content = MessageContent::payload(payload.kind(), payload.detach());
        self.0.publish(cx, &Publication::new(TOPIC, &(&content).into()));
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        self.0.remove_subscriber(cx, LINES, TOPIC);
    }
}

#[test]
fn subscribers_of_a_registered_encoding_receive_publications_that_are_encoded_once() {
    let mut hub = Hub::builder().without_pages().build().unwrap();
    let lines = Arc::new(Lines::default());
    let mut encodings = (**hub.topics.encodings()).clone();
    encodings.register([Arc::clone(&lines) as Arc<dyn Encoding>]);
    let topics = Arc::get_mut(&mut hub.topics).expect("nothing has the topics yet");
    *topics = std::mem::take(topics).with_encodings(encodings);
    let topics = Arc::clone(&hub.topics);
    let route =
        WebSocketRoute::new(move |_: &sinews_server::Request<'_>| Ok(LinesClient(Arc::clone(&topics))));
    let (hub, address, stop, running) = start(hub, Router::new().websocket("/lines", route));

    let mut json_client = TestClient::connect(address, "/ws");
    json_client.receive();
    let send = |client: &mut TestClient, message: Value| client.0.send_text(&message.to_string()).unwrap();
    send(&mut json_client, json!({ "op": "subscribe", "id": 1, "topic": TOPIC }));
    assert_eq!(json_client.receive()["op"], "ack");
    send(&mut json_client, json!({ "op": "publish", "topic": TOPIC, "data": 1 }));
    assert_eq!(json_client.receive()["data"], 1);
    assert_eq!(lines.calls(), [0, 0], "without subscribers, the encoding is not asked");

    let mut clients = [(); 2].map(|()| {
        let mut client = TestClient::connect(address, "/lines");
        assert_eq!(client.receive(), "open");
        client
    });
    for (number, calls) in [(2, [1, 1]), (3, [2, 2])] {
        let line = format!("{TOPIC}: {number}");
        // One client of each protocol publishes.
        match number {
            2 => send(&mut json_client, json!({ "op": "publish", "topic": TOPIC, "data": 2 })),
            _ => send(&mut clients[0], json!(number)),
        }
        for client in &mut clients {
            assert_eq!(client.receive(), line);
        }
        let received = json_client.receive()["data"].to_string();
        assert!(received.contains(&number.to_string()), "{received}");
        assert_eq!(lines.calls(), calls, "one call for all subscribers");
    }
    let mut scan = TopicScan::new(TOPIC, hub.topics.encodings()).unwrap();
    let listed = scan.next(&hub.publisher);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].1.subscribers, Some(3), "{listed:?}");
    assert_eq!(hub.topics.subscribed().len(), 1, "one topic in two encodings");
    drop((json_client, clients));
    stop.stop_now();
    running.join().unwrap();
    hub.shut_down();
}
