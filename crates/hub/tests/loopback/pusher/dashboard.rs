//! The apps on the dashboard.

use std::net::TcpStream;

use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::{Hub, PusherApp, WebhookEventKind};

use super::client::{Client, KEY, QUERY, SECRET, app, policy, request};
use super::webhooks::FakeBackend;
use crate::support::{TIMEOUT, TestHub, parse};

fn hub_of(apps: impl IntoIterator<Item = PusherApp>) -> TestHub {
    TestHub::with_pages(Hub::builder().config(policy(apps)))
}

fn dashboard(hub: &TestHub) -> WebSocket<TcpStream> {
    let socket = hub.websocket("/dashboard/feed");
    socket.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// The text of the next report, and its apps.
fn next(socket: &mut WebSocket<TcpStream>) -> (String, Value) {
    let message = socket.next().unwrap().unwrap();
    let text = String::from_utf8(message.as_bytes().to_vec()).unwrap();
    let apps = parse(&text)["apps"].clone();
    (text, apps)
}

#[test]
fn apps_are_reported_by_connections_and_without_keys() {
    let others = (10..35).map(|id| PusherApp::new(id.to_string(), format!("key-{id}"), "other-secret"));
    let long = "n".repeat(70);
    let named = others.map(|app| app.with_name(&long));
    let hub = hub_of(named.chain([app().with_name("<b>shop</b>")]));
    let mut client = Client::new(&hub);
    client.subscribe("a");
    client.subscribe("private-b");
    client.send("pusher:subscribe", json!({ "channel": "private-c", "auth": "x" }));
    client.expect("pusher:subscription_error");
    client.send_text("x");
    client.expect("pusher:error");
    assert_eq!(request(&hub, "GET", "/apps/3/channels", "").0, 401);
    Client::open(&hub, &format!("/app/{KEY}?protocol=99")).expect_end(4007);
    let _other = Client::at(&hub, &format!("/app/key-34?{QUERY}"));
    let _second = Client::new(&hub);
    let (text, apps) = next(&mut dashboard(&hub));
    let none = json!({ "queued": 0, "failed": 0, "dropped": 0 });
    let (own, cut) = (Some("<b>shop</b>"), Some(format!("{}…", "n".repeat(64))));
    let load = |id: &str, name: Option<&str>, connections, channels, rejected| {
        json!({
            "id": id, "name": name, "connections": connections, "channels": channels, "rejected": rejected, "webhooks": none,
        })
    };
    assert_eq!(apps["count"], 26);
    let listed = apps["apps"].as_array().unwrap();
    assert_eq!(listed.len(), 20, "the limit of a report");
    assert_eq!(
        listed[..3],
        [load("3", own, 2, 2, 4), load("34", cut.as_deref(), 1, 0, 0), load("10", cut.as_deref(), 0, 0, 0)]
    );
    for secret in [KEY, SECRET, "key-34", "other-secret"] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[test]
fn servers_without_apps_report_none() {
    let hub = TestHub::with_pages(Hub::builder());
    assert_eq!(next(&mut dashboard(&hub)).1, Value::Null);
}

#[test]
fn events_that_wait_for_a_webhook_are_reported() {
    let backend = FakeBackend::without_answers();
    let webhook = backend.webhook().with_events([WebhookEventKind::TopicOccupied]);
    let hub = hub_of([app().with_webhook(webhook)]);
    let mut client = Client::new(&hub);
    for channel in ["a", "b", "c"] {
        client.subscribe(channel);
    }
    // The first one is in progress.
    backend.requests.recv_timeout(TIMEOUT).unwrap();
    let mut dashboard = dashboard(&hub);
    let expected = json!({ "queued": 2, "failed": 0, "dropped": 0 });
    while next(&mut dashboard).1["apps"][0]["webhooks"] != expected {}
    // It answers now, so the end of the hub does not wait for it.
    drop(backend);
}
