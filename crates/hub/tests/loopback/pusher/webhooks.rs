//! Webhooks of apps.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_hub::{Hub, PusherApps, PusherWebhook, WebhookEventKind, WebhookOptions};
use sinews_testkit::{
    HttpAnswer, HttpRequest, TestCertificate, assert_fields, serve_http, serve_https, until,
};

use super::client::{Client, KEY, app, connected, hub, metric, policy, sign, trigger};
use crate::support::{TIMEOUT, TestHub};

/// A backend that accepts all requests.
pub(crate) struct FakeBackend {
    url: String,
    pub(crate) requests: Receiver<HttpRequest>,
    /// While it exists, requests are not answered.
    hold: Option<Sender<()>>,
}

impl FakeBackend {
    pub(crate) fn start() -> Self {
        Self { hold: None, ..Self::without_answers() }
    }

    /// A backend that answers when `hold` is dropped.
    pub(crate) fn without_answers() -> Self {
        Self::with([], None)
    }

    /// A backend whose first answers are these.
    fn answering<const N: usize>(answers: [&str; N]) -> Self {
        Self { hold: None, ..Self::with(answers, None) }
    }

    /// A backend with TLS, and its certificate in PEM.
    fn with_tls() -> (Self, String) {
        let made = TestCertificate::new();
        (Self { hold: None, ..Self::with([], Some(made.server_config())) }, made.pem())
    }

    fn with<const N: usize>(answers: [&str; N], tls: Option<rustls::ServerConfig>) -> Self {
        let (hold, held) = channel::<()>();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = channel();
        let held = Mutex::new(held);
        // The status lines and headers of the first answers; an empty answer closes the connection.
        let answers: VecDeque<String> = answers.into_iter().map(str::to_owned).collect();
        let answers = Mutex::new(answers);
        let answer = move |request: HttpRequest| {
            assert_eq!((&*request.method, &*request.path), ("POST", "/hooks"));
            // The test may have ended.
            let _ = sender.send(request);
            // Ends with an error when the sender is dropped.
            let _ = held.lock().unwrap().recv();
            match answers.lock().unwrap().pop_front() {
                Some(answer) if answer.is_empty() => HttpAnswer::End(""),
                Some(answer) => HttpAnswer::Response(answer, String::new()),
                None => HttpAnswer::Response("200 OK".to_owned(), String::new()),
            }
        };
        let url = match tls {
            Some(tls) => {
                serve_https(listener, tls, answer);
                format!("https://localhost:{port}/hooks")
            }
            None => {
                serve_http(listener, answer);
                format!("http://127.0.0.1:{port}/hooks")
            }
        };
        Self { url, requests, hold: Some(hold) }
    }

    /// A webhook without a grace, so that each event is sent at once.
    pub(crate) fn webhook(&self) -> PusherWebhook {
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
    pub(crate) fn event(&self) -> Value {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "10.6: {events:?}");
        events.remove(0)
    }
}

#[test]
fn pusher_10_1_10_2_10_3_and_10_6_events_of_channels_are_sent_with_a_signature() {
    let backend = FakeBackend::start();
    let (hub, mut client) = connected(|app| app.with_client_events(true).with_webhook(backend.webhook()));
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
fn pusher_10_3_ids_of_members_are_sent_in_the_form_of_the_application() {
    let backend = FakeBackend::start();
    let (_hub, mut client) = connected(|app| app.with_client_events(true).with_webhook(backend.webhook()));
    client.request_subscription("presence-a", Some(r#"{"user_id":1,"user_info":{"a":1}}"#));
    client.subscribed("presence-a");
    assert_eq!(backend.event()["name"], "channel_occupied");
    assert_eq!(backend.event(), json!({ "name": "member_added", "channel": "presence-a", "user_id": 1 }));
    client.trigger("client-e", "presence-a", json!("x"));
    assert_eq!(backend.event()["user_id"], 1);
    client.end();
    assert_eq!(backend.event(), json!({ "name": "member_removed", "channel": "presence-a", "user_id": 1 }));
}

/// Regression of channels that were left before the reporter looked at them.
#[test]
fn pusher_10_3_channel_of_a_moment_is_reported_as_occupied_and_vacated() {
    let backend = FakeBackend::start();
    let (_hub, mut client) = connected(|app| app.with_webhook(backend.webhook()));
    for number in 0..50 {
        let (public, presence) = (format!("a{number}"), format!("presence-a{number}"));
        for (channel, member) in [(&public, None), (&presence, Some(r#"{"user_id":1}"#))] {
            client.request_subscription(channel, member);
            client.send("pusher:unsubscribe", json!({ "channel": channel }));
        }
        let mut events: Vec<Value> = (0..6).map(|_| backend.event()).collect();
        events.sort_by_key(|event| (event["channel"].to_string(), event["name"].to_string()));
        let event = |name: &str, channel: &str| json!({ "name": name, "channel": channel });
        let of_member = |name: &str| json!({ "name": name, "channel": presence, "user_id": 1 });
        let expected = [
            event("channel_occupied", &public),
            event("channel_vacated", &public),
            event("channel_occupied", &presence),
            event("channel_vacated", &presence),
            of_member("member_added"),
            of_member("member_removed"),
        ];
        assert_eq!(events, expected);
    }
}

#[test]
fn pusher_10_3_numbers_of_subscribers_of_a_moment_are_reported() {
    let backend = FakeBackend::start();
    let webhook = backend.webhook().with_events([WebhookEventKind::SubscriptionCount]);
    let (_hub, mut client) = connected(|app| app.with_subscription_counts(true).with_webhook(webhook));
    for number in 0..50 {
        let channel = format!("a{number}");
        client.request_subscription(&channel, None);
        client.send("pusher:unsubscribe", json!({ "channel": channel }));
        for count in [1, 0] {
            let expected =
                json!({ "name": "subscription_count", "channel": channel, "subscription_count": count });
            assert_eq!(backend.event(), expected);
        }
    }
}

/// A member that does not fit is none for a moment.
#[test]
fn pusher_10_3_rejected_members_are_not_reported() {
    let backend = FakeBackend::start();
    let mut limits = sinews_hub::PusherLimits::default();
    limits.members = 1;
    let hub = hub(|app| app.with_webhook(backend.webhook()).with_limits(limits));
    let (mut one, mut other) = (Client::new(&hub), Client::new(&hub));
    one.join("presence-a", "1");
    assert_eq!(backend.event()["name"], "channel_occupied");
    assert_eq!(backend.event()["user_id"], "1");
    other.request_subscription("presence-a", Some(r#"{"user_id":2}"#));
    assert_eq!(other.expect("pusher:subscription_error").1["status"], 4100);
    let mut same = Client::new(&hub);
    same.join("presence-a", "1");
    other.subscribe("b");
    assert_eq!(backend.event(), json!({ "name": "channel_occupied", "channel": "b" }));
    one.ping();
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
fn pusher_10_4_absences_are_reported_after_the_grace_unless_the_client_returns() {
    let (backend, patient) = (FakeBackend::start(), FakeBackend::start());
    // Without a setting, 3 seconds.
    let webhook = PusherWebhook::new(&backend.url).with_private_addresses(true);
    let long = patient.webhook().with_grace(Duration::from_secs(60));
    let hub = hub(|app| app.with_webhook(webhook).with_webhook(long));
    let event = |name: &str| json!({ "name": name, "channel": "presence-a" });
    let of_member = |name: &str| json!({ "name": name, "channel": "presence-a", "user_id": "1" });
    let mut client = Client::new(&hub);
    client.join("presence-a", "1");
    for backend in [&backend, &patient] {
        assert_eq!(backend.event(), event("channel_occupied"));
        assert_eq!(backend.event(), of_member("member_added"));
    }
    let left = Instant::now();
    client.end();
    assert_eq!(backend.event(), of_member("member_removed"));
    assert_eq!(backend.event(), event("channel_vacated"));
    assert!(left.elapsed() >= Duration::from_secs(3), "{:?}", left.elapsed());
    let mut client = Client::new(&hub);
    client.join("presence-a", "1");
    assert_eq!(backend.event(), event("channel_occupied"), "an absence after the grace is one");
    client.subscribe("b");
    let next = json!({ "name": "channel_occupied", "channel": "b" });
    assert_eq!(patient.event(), next, "an absence within the grace is none");
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

/// Regression of a signature of other events than those of the body (soketi: webhook-sender.ts).
#[test]
fn pusher_10_2_signature_is_that_of_the_filtered_events() {
    let backend = FakeBackend::start();
    let webhook = backend.webhook().with_batches(true).with_channels(["private-"]);
    let hub = hub(|app| app.with_webhook(webhook.with_events([WebhookEventKind::TopicOccupied])));
    let mut client = Client::new(&hub);
    for channel in ["a", "private-a", "cache-a", "private-b"] {
        client.request_subscription(channel, None);
    }
    let mut all = Vec::new();
    while all.len() < 2 {
        // Checks the signature of each body.
        all.extend(backend.events());
    }
    // Events of two channels have no order.
    all.sort_by_key(|event| event["channel"].to_string());
    let occupied = |channel: &str| json!({ "name": "channel_occupied", "channel": channel });
    assert_eq!(all, [occupied("private-a"), occupied("private-b")]);
}

#[test]
fn pusher_10_6_failed_requests_are_repeated_with_the_same_bytes_and_redirects_are_not_followed() {
    let target = FakeBackend::start();
    let redirect = format!("307 Temporary Redirect\r\nLocation: {}", target.url);
    let backend = FakeBackend::answering([&redirect, ""]);
    let (_hub, mut client) = connected(|app| app.with_webhook(backend.webhook()));
    let begin = Instant::now();
    client.subscribe("a");
    let body = || {
        let request = backend.requests.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(request.header("x-pusher-signature"), Some(&*sign(&request.body)));
        request.body
    };
    let first = body();
    // A further event does not end the delay.
    client.subscribe("b");
    let repeated = [body(), body()];
    assert!(begin.elapsed() >= Duration::from_millis(375 + 750), "less than three quarters of both delays");
    assert_eq!(repeated, [first.clone(), first]);
    assert_eq!(backend.event()["channel"], "b");
    assert!(target.requests.try_recv().is_err(), "a redirect is followed");
}

#[test]
fn pusher_10_7_requests_have_the_headers_of_the_app_and_trust_its_certificates() {
    let (backend, certificate) = FakeBackend::with_tls();
    let (other, _) = FakeBackend::with_tls();
    let webhook = |backend: &FakeBackend| {
        let webhook = backend.webhook().with_header("Authorization", "Bearer a").with_header("X-Shop", "b c");
        webhook.with_trusted_certificates(certificate.as_bytes()).unwrap()
    };
    let hub = hub(|app| app.with_webhook(webhook(&backend)).with_webhook(webhook(&other)));
    let mut client = Client::new(&hub);
    client.subscribe("a");
    let request = backend.requests.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(request.header("authorization"), Some("Bearer a"));
    assert_eq!(request.header("x-shop"), Some("b c"));
    assert_eq!(request.header("x-pusher-signature"), Some(&*sign(&request.body)));
    until("a request to the other server is repeated", || {
        metric(&hub, "sinews_webhook_retries_total{webhook=\"pusher:3:2\"}") >= 1.0
    });
    assert!(other.requests.try_recv().is_err(), "a server with another certificate receives events");
}

#[test]
fn pusher_10_6_several_events_are_in_a_request_if_the_app_says_so() {
    let mut backend = FakeBackend::without_answers();
    let webhook = backend.webhook().with_batches(true).with_events([WebhookEventKind::TopicOccupied]);
    let (hub, mut client) = connected(|app| app.with_webhook(webhook));
    let begin = Instant::now();
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
    super::faults::wait_for(&hub, "sinews_webhook_queued_events{webhook=\"pusher:3:1\"}", 2.0);
    backend.hold = None;
    let mut next = of(backend.events());
    // On a slow machine, the first request has timed out meanwhile, and is repeated.
    while next == ["a"] && begin.elapsed() >= Duration::from_secs(5) {
        next = of(backend.events());
    }
    assert_eq!(next, ["b", "c"]);
}

/// A webhook of topics receives the client events of an app with topics, as messages, and nothing of its channels.
#[test]
fn client_events_of_an_app_with_topics_are_messages_of_its_topics() {
    let (topics, channels) = (FakeBackend::start(), FakeBackend::start());
    let messages = channels.webhook().with_events([WebhookEventKind::ClientMessage]);
    let app = app().with_topics("chat").with_client_events(true).with_webhook(messages);
    let webhook = WebhookOptions::new("topics", &topics.url, [7; 32]).with_grace(Duration::ZERO);
    let webhook = webhook.with_batch(1, Duration::ZERO);
    let hub = TestHub::built(Hub::builder().config(policy([app]).with_webhooks([webhook])));
    let mut client = Client::new(&hub);
    client.subscribe("private-a");
    client.trigger("client-e", "private-a", json!("text"));
    let event = channels.event();
    assert_fields(&event, json!({"channel": "private-a", "data": "text"}));
    let next = || {
        let request = topics.requests.recv_timeout(TIMEOUT).unwrap();
        crate::support::parse(&request.body)["events"][0].clone()
    };
    assert_fields(&next(), json!({"event": "server_started"}));
    let event = &next();
    assert_fields(event, json!({"event": "client_message", "topic": "chat.private-a"}));
    assert_eq!(event["data"], json!({ "event": "client-e", "data": "text" }));
}

#[test]
fn reload_replaces_the_webhooks_of_apps() {
    let (first, second) = (FakeBackend::start(), FakeBackend::start());
    let (hub, mut client) = connected(|app| app.with_webhook(first.webhook()));
    client.subscribe("a");
    assert_eq!(first.event(), json!({ "name": "channel_occupied", "channel": "a" }));
    hub.config.replace(policy([app().with_webhook(second.webhook())]));
    client.subscribe("b");
    assert_eq!(second.event(), json!({ "name": "channel_occupied", "channel": "b" }));
    hub.config.replace_pusher(&PusherApps::new([app().with_webhook(first.webhook())]).unwrap()).unwrap();
    client.subscribe("c");
    assert_eq!(first.event(), json!({ "name": "channel_occupied", "channel": "c" }));
}
