//! Webhooks of apps.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sinews_hub::{Hub, PusherApps, PusherWebhook, WebhookEventKind, WebhookOptions};

use crate::client::{Client, KEY, app, hub, policy, request, sign, trigger};
use crate::support::{TIMEOUT, TestHub};

/// A backend that accepts all requests.
struct FakeBackend {
    url: String,
    requests: Receiver<SignedPost>,
    /// While it exists, requests are not answered.
    hold: Option<Sender<()>>,
}

/// A request, with the names of its headers in lower case.
#[derive(Debug)]
struct SignedPost {
    headers: Vec<(String, String)>,
    body: String,
}

impl SignedPost {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

impl FakeBackend {
    fn start() -> Self {
        Self { hold: None, ..Self::without_answers() }
    }

    /// A backend that answers when `hold` is dropped.
    fn without_answers() -> Self {
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hooks", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (sender, held) = (sender.clone(), Arc::clone(&held));
                thread::spawn(move || serve(stream, &sender, &held));
            }
        });
        Self { url, requests, hold: Some(hold) }
    }

    /// A webhook without a grace, so that each event is sent at once.
    fn webhook(&self) -> PusherWebhook {
        PusherWebhook::new(&self.url).with_grace(Duration::ZERO).with_private_addresses(true)
    }

    /// Receives a signed request, and returns its events.
    fn events(&self) -> Vec<Value> {
        let request = self.requests.recv_timeout(TIMEOUT).expect("a request");
        assert_eq!(request.header("content-type"), Some("application/json"), "10.1");
        assert_eq!(request.header("x-pusher-key"), Some(KEY), "10.2");
        assert_eq!(request.header("x-pusher-signature"), Some(&*sign(&request.body)), "10.2");
        let mut body = crate::support::parse(&request.body);
        assert!(body["time_ms"].as_u64().is_some_and(|time| time > 1_600_000_000_000), "{body}");
        serde_json::from_value(body["events"].take()).unwrap()
    }

    /// Receives the event of a request without batches.
    fn event(&self) -> Value {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "10.6: {events:?}");
        events.remove(0)
    }
}

/// Reads requests of a connection until it ends.
fn serve(stream: TcpStream, requests: &Sender<SignedPost>, held: &Mutex<Receiver<()>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        // The test may have ended.
        let _ = requests.send(request);
        // Ends with an error when the sender is dropped.
        let _ = held.lock().unwrap().recv();
        if writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<SignedPost> {
    let mut line = String::new();
    let mut headers = Vec::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None if line == "\r\n" => break,
            None => assert!(line.starts_with("POST /hooks HTTP/1.1"), "{line}"),
        }
    }
    let mut request = SignedPost { headers, body: String::new() };
    let mut body = vec![0; request.header("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).unwrap();
    Some(request)
}

#[test]
fn pusher_10_1_10_2_10_3_and_10_6_events_of_channels_are_sent_with_a_signature() {
    let backend = FakeBackend::start();
    let hub = hub(|app| app.with_client_events(true).with_webhook(backend.webhook()));
    let mut client = Client::new(&hub);
    client.join("presence-a", "1");
    let occupied = json!({ "name": "channel_occupied", "channel": "presence-a" });
    assert_eq!(backend.event(), occupied);
    let added = json!({ "name": "member_added", "channel": "presence-a", "user_id": "1" });
    assert_eq!(backend.event(), added);
    client.trigger("client-e", "presence-a", json!({ "a": 1 }));
    let sent = json!({
        "name": "client_event", "channel": "presence-a", "event": "client-e", "data": "{\"a\":1}",
        "socket_id": client.socket_id, "user_id": "1",
    });
    assert_eq!(backend.event(), sent);
    trigger(&hub, "presence-a", "e", "1");
    client.expect("e");
    client.send("pusher:unsubscribe", json!({ "channel": "presence-a" }));
    let removed = json!({ "name": "member_removed", "channel": "presence-a", "user_id": "1" });
    assert_eq!(backend.event(), removed, "an event of a server is not reported");
    assert_eq!(backend.event(), json!({ "name": "channel_vacated", "channel": "presence-a" }));
}

#[test]
fn pusher_10_3_missed_events_of_cache_channels_are_reported() {
    let backend = FakeBackend::start();
    let webhook = backend.webhook().with_events([WebhookEventKind::CacheMiss]);
    let hub = hub(|app| app.with_webhook(webhook.with_channels(["cache-"])));
    trigger(&hub, "cache-known", "e", "1");
    let mut client = Client::new(&hub);
    for channel in ["private-cache-other", "cache-known", "cache-a"] {
        client.subscribe(channel);
        // The event, or its absence.
        client.receive();
    }
    assert_eq!(backend.event(), json!({ "name": "cache_miss", "channel": "cache-a" }));
}

#[test]
fn pusher_10_3_numbers_of_subscribers_are_reported() {
    let backend = FakeBackend::start();
    let webhook = backend.webhook().with_events([WebhookEventKind::SubscriptionCount]);
    let hub = hub(|app| app.with_subscription_counts(true).with_webhook(webhook));
    let (mut one, mut two) = (Client::new(&hub), Client::new(&hub));
    one.join("presence-a", "1");
    let count = |count| json!({ "name": "subscription_count", "channel": "a", "subscription_count": count });
    one.subscribe("a");
    assert_eq!(backend.event(), count(1));
    two.subscribe("a");
    assert_eq!(backend.event(), count(2));
    two.send("pusher:unsubscribe", json!({ "channel": "a" }));
    assert_eq!(backend.event(), count(1));
}

#[test]
fn pusher_10_6_several_events_are_in_a_request_if_the_app_says_so() {
    let mut backend = FakeBackend::without_answers();
    let webhook = backend.webhook().with_batches(true).with_events([WebhookEventKind::TopicOccupied]);
    let hub = hub(|app| app.with_webhook(webhook));
    let mut client = Client::new(&hub);
    client.subscribe("a");
    let of = |events: Vec<Value>| {
        let mut channels: Vec<_> =
            events.iter().map(|event| event["channel"].as_str().unwrap().to_owned()).collect();
        channels.sort();
        channels
    };
    assert_eq!(of(backend.events()), ["a"]);
    client.subscribe("b");
    client.subscribe("c");
    let queued = "sinews_webhook_queued_events{webhook=\"pusher:3:1\"} 2\n";
    while !request(&hub, "GET", "/metrics", "").1.as_str().unwrap().contains(queued) {
        thread::yield_now();
    }
    backend.hold = None;
    assert_eq!(of(backend.events()), ["b", "c"]);
}

/// A webhook of topics receives the client events of an app with topics, as messages, and nothing of its channels.
#[test]
fn client_events_of_an_app_with_topics_are_messages_of_its_topics() {
    let (topics, channels) = (FakeBackend::start(), FakeBackend::start());
    let messages = channels.webhook().with_events([WebhookEventKind::ClientMessage]);
    let app = app().with_topics("chat").with_client_events(true).with_webhook(messages);
    let webhook = WebhookOptions::new("topics", &topics.url, [7; 32]).with_grace(Duration::ZERO);
    let webhook = webhook.with_batch(1, Duration::ZERO);
    let hub = TestHub::built(Hub::builder().access(policy([app]).with_webhooks([webhook])));
    let mut client = Client::new(&hub);
    client.subscribe("private-a");
    client.trigger("client-e", "private-a", json!("text"));
    let event = channels.event();
    assert_eq!((&event["channel"], &event["data"]), (&json!("private-a"), &json!("text")));
    let body = crate::support::parse(&topics.requests.recv_timeout(TIMEOUT).unwrap().body);
    let event = &body["events"][0];
    assert_eq!((&event["event"], &event["topic"]), (&json!("client_message"), &json!("chat.private-a")));
    assert_eq!(event["data"], json!({ "event": "client-e", "data": "text" }));
}

#[test]
fn reload_replaces_the_webhooks_of_apps() {
    let (first, second) = (FakeBackend::start(), FakeBackend::start());
    let hub = hub(|app| app.with_webhook(first.webhook()));
    let mut client = Client::new(&hub);
    client.subscribe("a");
    assert_eq!(first.event(), json!({ "name": "channel_occupied", "channel": "a" }));
    hub.access.replace(policy([app().with_webhook(second.webhook())]));
    client.subscribe("b");
    assert_eq!(second.event(), json!({ "name": "channel_occupied", "channel": "b" }));
    hub.access.replace_pusher(&PusherApps::new([app().with_webhook(first.webhook())]).unwrap()).unwrap();
    client.subscribe("c");
    assert_eq!(first.event(), json!({ "name": "channel_occupied", "channel": "c" }));
}
