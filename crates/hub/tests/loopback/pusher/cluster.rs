//! Apps of several nodes, over a broker in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_hub::{Hub, PusherApp, PusherLimits, WebhookEventKind};
use sinews_testkit::until_equal;

use super::client::{Client, api, api_v1, app, metric, policy, with_api_key};
use super::faults::wait_for;
use super::webhooks::FakeBackend;
use crate::cluster::{self, options};
use crate::support::TestHub;
use crate::support::fake_broker::{FakeBroker, WireProtocol};

fn node(broker: &FakeBroker) -> TestHub {
    node_of(broker, app().with_client_events(true))
}

fn node_of(broker: &FakeBroker, app: PusherApp) -> TestHub {
    let options = options(&broker.url());
    TestHub::built(Hub::builder().config(with_api_key(policy([app]))).cluster(options))
}

fn for_both(test: impl Fn(&FakeBroker, [TestHub; 2]) + Sync) {
    cluster::for_both(|broker| test(&broker, [node(&broker), node(&broker)]));
}

/// Polls a node until an answer of its HTTP API is this one.
pub(crate) fn until(node: &TestHub, path: &str, expected: &Value) {
    until_query(node, (path, ""), expected);
}

fn until_query(node: &TestHub, (path, query): (&str, &str), expected: &Value) {
    until_equal(path, expected.clone(), || api(node, "GET", path, query, "").1);
}

fn users(ids: &[&str]) -> Value {
    json!({ "users": ids.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>() })
}

fn expect_member(client: &mut Client, event: &str, id: &str) {
    let (_, data) = client.expect(&format!("pusher_internal:{event}"));
    assert_eq!(data["user_id"], id);
}

#[test]
fn pusher_6_4_members_are_those_of_the_cluster() {
    for_both(|_, nodes| {
        let path = "/apps/3/channels/presence-a/users";
        let (mut one, mut two) = (Client::new(&nodes[0]), Client::new(&nodes[1]));
        // The longest id of a user.
        let long = &*"😀".repeat(128);
        one.join("presence-a", "1");
        until(&nodes[1], path, &users(&["1"]));
        let roster = two.join("presence-a", long);
        assert_eq!(roster["presence"]["ids"], json!(["1", long]));
        expect_member(&mut one, "member_added", long);
        // The same user at another node: neither its join nor the end of its first connection is reported.
        let mut same = Client::new(&nodes[1]);
        same.join("presence-a", "1");
        // Changes of a node arrive in their order, so the first node knows of both.
        let mut four = Client::new(&nodes[1]);
        four.join("presence-a", "4");
        until(&nodes[0], path, &users(&["1", "4", long]));
        let mut three = Client::new(&nodes[0]);
        drop(one);
        three.join("presence-a", "3");
        expect_member(&mut two, "member_added", "4");
        expect_member(&mut two, "member_added", "3");
        until(&nodes[1], path, &users(&["1", "3", "4", long]));
        drop(same);
        expect_member(&mut two, "member_removed", "1");
        expect_member(&mut three, "member_removed", "1");
        // A node that stops takes its members along.
        let [first, second] = nodes;
        drop(second);
        // In any order: the node ends its connections on two threads.
        let mut removed =
            [(); 2].map(|()| three.expect("pusher_internal:member_removed").1["user_id"].clone());
        removed.sort_by_key(Value::to_string);
        assert_eq!(removed, ["4", long]);
        until(&first, path, &users(&["3"]));
    });
}

#[test]
fn pusher_8_6_7_6_and_9_1_events_and_terminations_reach_all_nodes() {
    for_both(|broker, nodes| {
        let (mut one, mut two, mut three) =
            (Client::new(&nodes[0]), Client::new(&nodes[1]), Client::new(&nodes[1]));
        for client in [&mut one, &mut two, &mut three] {
            client.subscribe("private-a");
        }
        broker.wait_for("sinews.t.=24pusher.3.c.private-a", 2);
        let body = json!({
            "name": "e", "channel": "private-a", "data": "1", "socket_id": two.socket_id,
        });
        assert_eq!(api(&nodes[0], "POST", "/apps/3/events", "", &body.to_string()), (200, json!({})));
        one.expect("e");
        three.expect("e");
        three.trigger("client-e", "private-a", json!([1]));
        assert_eq!(one.expect("client-e").1, json!([1]));
        assert_eq!(two.expect("client-e").1, json!([1]), "the excluded client has received no other event");
        let (id, path) = ("😀".repeat(128), "%F0%9F%98%80".repeat(128));
        two.sign_in(&json!({ "id": id }));
        two.expect("pusher:signin_success");
        let channel = format!("#server-to-user-{id}");
        two.send("pusher:subscribe", json!({ "channel": channel }));
        two.subscribed(&channel);
        // The broker has its subscriptions in their order.
        two.subscribe("last");
        broker.wait_for("sinews.t.=24pusher.3.c.last", 1);
        let body = json!({ "name": "e", "channel": channel, "data": "2" }).to_string();
        assert_eq!(api(&nodes[0], "POST", "/apps/3/events", "", &body), (200, json!({})));
        assert_eq!(two.expect("e"), (channel.clone(), json!(2)));
        let path = format!("/apps/3/users/{path}/terminate_connections");
        assert_eq!(api(&nodes[0], "POST", &path, "", "{}"), (200, json!({})));
        two.expect_end(4009);
        three.ping();
    });
}

#[test]
fn subscription_that_the_broker_rejects_is_reported_and_stays() {
    for_both(|broker, nodes| {
        let subject = "sinews.t.=24pusher.3.c.secret";
        broker.reject(Some(("SUBSCRIBE", subject)));
        let (mut one, mut two) = (Client::new(&nodes[0]), Client::new(&nodes[0]));
        let expect_error = |client: &mut Client| {
            let (channel, error) = client.expect("pusher:subscription_error");
            assert_eq!((&*channel, &error["status"]), ("secret", &json!(503)), "{error}");
            let text = error["error"].as_str().unwrap();
            assert!(text.contains("the broker of the cluster rejects the subscription"), "{text}");
        };
        one.subscribe("secret");
        expect_error(&mut one);
        // Each later subscriber, too.
        two.subscribe("secret");
        expect_error(&mut two);
        expect_error(&mut one);
        let trigger = |node: usize| {
            let body = json!({ "name": "e", "channel": "secret", "data": node.to_string() }).to_string();
            assert_eq!(api(&nodes[node], "POST", "/apps/3/events", "", &body), (200, json!({})));
        };
        trigger(0);
        assert_eq!((one.expect("e").1, two.expect("e").1), (json!(0), json!(0)));
        // The rights may change.
        broker.reject(None);
        let mut three = Client::new(&nodes[0]);
        three.subscribe("secret");
        broker.wait_for(subject, 1);
        trigger(1);
        for client in [&mut one, &mut two, &mut three] {
            assert_eq!(client.expect("e").1, json!(1));
        }
    });
}

#[test]
fn user_is_notified_of_a_rejected_subscription() {
    for_both(|broker, nodes| {
        broker.reject(Some(("SUBSCRIBE", "sinews.t.=24pusher.3.u")));
        let channel = "#server-to-user-anna";
        let mut client = Client::new(&nodes[0]);
        client.sign_in(&json!({ "id": "anna" }));
        client.expect("pusher:signin_success");
        client.subscribe(channel);
        let (named, error) = client.expect("pusher:subscription_error");
        assert_eq!((&*named, &error["type"]), (channel, &json!("Unavailable")), "{error}");
        // The subscription stays.
        let body = json!({ "name": "e", "channel": channel, "data": "1" }).to_string();
        assert_eq!(api(&nodes[0], "POST", "/apps/3/events", "", &body), (200, json!({})));
        assert_eq!(client.expect("e").1, json!(1));
    });
}

/// The broker loses an event before the connection of its node ends. The other node does not notice the outage.
#[test]
fn pusher_4_10_last_events_of_an_outage_reach_all_nodes_after_it() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let first = node_of(&broker, app());
    wait_for(&first, "sinews_cluster_connected", 1.0);
    let second = node_of(&broker, app());
    until_joined(&first, 2);
    publish(&first, "cache-a", "1");
    until_cached(&second, "cache-a", "1");
    broker.lose(Some("lost-event"));
    publish(&first, "cache-a", "lost-event");
    // The broker has it as well by then.
    publish(&first, "cache-b", "2");
    until_cached(&second, "cache-b", "2");
    broker.lose(None);
    broker.cut_oldest();
    until_cached(&second, "cache-a", "lost-event");
}

/// The request ends at its time limit, since the result of a node is lost. Meanwhile there is a later event.
#[test]
fn late_answer_replaces_no_later_event() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let nodes = [(); 3].map(|()| node(&broker));
    nodes.iter().for_each(|node| until_joined(node, 3));
    broker.lose(Some("lost-event"));
    publish(&nodes[0], "cache-a", "lost-event");
    publish(&nodes[0], "cache-b", "lost-event");
    broker.wait_for_losses(2);
    // The third node has no event.
    broker.lose(Some("\"result\":null"));
    let mut client = Client::new(&nodes[1]);
    for channel in ["cache-a", "cache-b"] {
        client.subscribe(channel);
        client.expect("pusher:cache_miss");
    }
    broker.wait_for_losses(4);
    publish(&nodes[0], "cache-a", "2");
    assert_eq!(client.expect("e"), ("cache-a".to_owned(), json!(2)));
    // The requests end in their order.
    assert_eq!(client.expect("e"), ("cache-b".to_owned(), json!("lost-event")));
    let mut late = Client::new(&nodes[1]);
    late.subscribe("cache-a");
    assert_eq!(late.expect("e").1, json!(2));
    client.ping();
}

/// The events of cache channels go to all nodes.
#[test]
fn publications_by_the_http_api_exclude_a_client_of_another_node() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        let nodes = [(); 2].map(|()| node_of(&broker, app().with_topics("chat")));
        nodes.iter().for_each(|node| until_joined(node, 2));
        let [mut excluded, mut same, mut other] = [1, 1, 0].map(|node| Client::new(&nodes[node]));
        excluded.sign_in(&json!({ "id": "u" }));
        excluded.expect("pusher:signin_success");
        let id = &api_v1(&nodes[1], "GET /api/v1/connections", "")["connections"][0]["connection"];
        for client in [&mut excluded, &mut same, &mut other] {
            client.subscribe("a");
            client.subscribe("cache-b");
            client.expect("pusher:cache_miss");
        }
        broker.wait_for("sinews.t.chat.a", 2);
        for channel in ["a", "cache-b"] {
            for (number, exclude) in [(1, id), (2, &Value::Null)] {
                let data = json!({ "event": "e", "data": number });
                let publication =
                    json!({ "topic": format!("chat.{channel}"), "data": data, "exclude": exclude });
                api_v1(&nodes[0], "POST /api/v1/publish", &publication.to_string());
            }
            for (client, first) in [(&mut excluded, 2), (&mut same, 1), (&mut other, 1)] {
                for number in first..=2 {
                    assert_eq!(client.expect("e"), (channel.to_owned(), json!(number)));
                }
            }
        }
    }
}

#[test]
fn terminations_in_an_outage_of_the_broker_are_incomplete_and_can_be_repeated() {
    for_both(|broker, nodes| {
        nodes.iter().for_each(|node| until_joined(node, 2));
        let clients = nodes.each_ref().map(|node| {
            let mut client = Client::new(node);
            client.sign_in(&json!({ "id": "u" }));
            client.expect("pusher:signin_success");
            client
        });
        broker.go_down();
        until_connected(&nodes[0], false);
        let terminate = || api(&nodes[0], "POST", "/apps/3/users/u/terminate_connections", "", "{}");
        let (status, text) = terminate();
        assert_eq!(status, 503, "{text}");
        assert!(text.as_str().unwrap().contains("other nodes may be open, retry"), "{text}");
        let [near, mut far] = clients;
        near.expect_end(4009);
        far.ping();
        // Else, the second node perhaps still has its former connection.
        until_connected(&nodes[1], false);
        broker.come_up();
        nodes.iter().for_each(|node| until_connected(node, true));
        broker.wait_for("sinews.all", 2);
        assert_eq!(terminate(), (200, json!({})));
        far.expect_end(4009);
    });
}

#[test]
fn pusher_7_7_watchlists_are_those_of_the_cluster() {
    for_both(|_, nodes| {
        let mut watcher = Client::new(&nodes[0]);
        watcher.sign_in(&json!({ "id": "w", "watchlist": ["u", "v"] }));
        watcher.expect("pusher:signin_success");
        let mut expect = |name: &str, ids: &[&str]| {
            let (_, data) = watcher.expect("pusher_internal:watchlist_events");
            assert_eq!(data["events"], json!([{ "name": name, "user_ids": ids }]));
        };
        expect("offline", &["u", "v"]);
        let online = |node: &TestHub, id: &str| {
            let mut client = Client::new(node);
            client.sign_in(&json!({ "id": id }));
            client.expect("pusher:signin_success");
            client
        };
        let first = online(&nodes[1], "u");
        expect("online", &["u"]);
        let second = online(&nodes[0], "u");
        first.end();
        // Changes of a node arrive in their order: the end of a connection before this user.
        let other = online(&nodes[1], "v");
        expect("online", &["v"]);
        drop(second);
        expect("offline", &["u"]);
        // A user with a connection at another node is online for a new watcher, too.
        let mut late = Client::new(&nodes[0]);
        late.sign_in(&json!({ "id": "x", "watchlist": ["v"] }));
        late.expect("pusher:signin_success");
        let (_, data) = late.expect("pusher_internal:watchlist_events");
        assert_eq!(data["events"], json!([{ "name": "online", "user_ids": ["v"] }]));
        drop(other);
        expect("offline", &["v"]);
    });
}

#[test]
fn pusher_8_9_numbers_of_subscribers_are_those_of_the_cluster() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        let nodes = [(); 2].map(|()| node_of(&broker, app().with_subscription_counts(true)));
        let expect = |client: &mut Client, number: u64| {
            let (channel, data) = client.expect("pusher_internal:subscription_count");
            assert_eq!((&*channel, data), ("a", json!({ "subscription_count": number })));
        };
        let until_count = |node: &TestHub, number: u64| {
            let expected = json!({ "occupied": true, "subscription_count": number });
            until_query(node, ("/apps/3/channels/a", "info=subscription_count"), &expected);
        };
        let (mut one, mut two) = (Client::new(&nodes[0]), Client::new(&nodes[1]));
        one.subscribe("a");
        expect(&mut one, 1);
        until_count(&nodes[1], 1);
        two.subscribe("a");
        expect(&mut one, 2);
        expect(&mut two, 2);
        until_count(&nodes[0], 2);
        drop(two);
        expect(&mut one, 1);
        until_count(&nodes[1], 1);
    }
}

#[test]
fn pusher_10_5_cache_misses_of_all_nodes_are_reported_once() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        let backend = FakeBackend::start();
        let webhook = backend.webhook().with_events([WebhookEventKind::CacheMiss]);
        let nodes = [(); 2].map(|()| node_of(&broker, app().with_webhook(webhook.clone())));
        nodes.iter().for_each(|node| until_joined(node, 2));
        let mut clients = nodes.each_ref().map(Client::new);
        let (mut begins, mut reported) = (BTreeMap::new(), BTreeSet::new());
        // Events of a node are sent in their order: the second round is behind all reports of the first one.
        for round in 1..=2 {
            for number in 0..10 {
                let channel = format!("cache-{round}-{number}");
                begins.insert(channel.clone(), Instant::now());
                for client in &mut clients {
                    client.subscribe(&channel);
                    client.expect("pusher:cache_miss");
                }
            }
            while reported.len() < 10 * round {
                let event = backend.event();
                assert_eq!(event["name"], "cache_miss");
                let channel = event["channel"].as_str().unwrap();
                // A miss is reported again after a second, which a slow machine reaches.
                let is_late = begins[channel].elapsed() >= Duration::from_secs(1);
                assert!(reported.insert(channel.to_owned()) || is_late, "{event} is sent twice");
            }
        }
    }
}

#[test]
fn cache_misses_of_a_node_are_reported_if_it_does_not_request_the_event() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let backend = FakeBackend::start();
    let webhook = backend.webhook().with_events([WebhookEventKind::CacheMiss]);
    let node = |cached_channels| {
        let mut limits = PusherLimits::default();
        limits.cached_channels = cached_channels;
        node_of(&broker, app().with_limits(limits).with_webhook(webhook.clone()))
    };
    // The first node retains one event only.
    let nodes = [node(1), node(1_000)];
    nodes.iter().for_each(|node| until_joined(node, 2));
    let channels: BTreeSet<String> = (0..8).map(|number| format!("cache-{number}")).collect();
    channels.iter().for_each(|channel| publish(&nodes[1], channel, "1"));
    publish(&nodes[1], "cache-last", "1");
    until_cached(&nodes[0], "cache-last", "1");
    let mut client = Client::new(&nodes[0]);
    for channel in &channels {
        client.subscribe(channel);
        client.expect("pusher:cache_miss");
        assert_eq!(client.expect("e"), (channel.clone(), json!(1)), "it is requested once");
    }
    publish(&nodes[1], "cache-last", "2");
    until_cached(&nodes[0], "cache-last", "2");
    let mut client = Client::new(&nodes[0]);
    for channel in &channels {
        client.subscribe(channel);
        client.expect("pusher:cache_miss");
    }
    let mut reported = BTreeSet::new();
    while reported != channels {
        reported.insert(backend.event()["channel"].as_str().unwrap().to_owned());
    }
    client.ping();
}

#[test]
fn webhooks_of_an_app_are_sent_by_one_node() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let backend = FakeBackend::start();
    let app = || app().with_subscription_counts(true).with_webhook(backend.webhook());
    let nodes = [(); 2].map(|()| node_of(&broker, app()));
    nodes.iter().for_each(|node| wait_for(node, "sinews_webhook_reporters", 2.0));
    let mut clients = nodes.each_ref().map(Client::new);
    let events = |count: usize| {
        let mut events: Vec<String> = (0..count).map(|_| name_of(&backend.event())).collect();
        events.sort();
        events
    };
    clients[0].join("presence-a", "1");
    assert_eq!(events(2), ["channel_occupied presence-a", "member_added presence-a 1"]);
    until(&nodes[1], "/apps/3/channels/presence-a/users", &users(&["1"]));
    clients[1].join("presence-a", "1");
    clients[1].subscribe("b");
    assert_eq!(events(2), ["channel_occupied b", "subscription_count b 1"], "the user was a member before");
    until_query(&nodes[0], ("/apps/3/channels/b", ""), &json!({ "occupied": true }));
    clients[0].subscribe("b");
    assert_eq!(events(1), ["subscription_count b 2"]);
    drop(clients);
    let expected = [
        "channel_vacated b",
        "channel_vacated presence-a",
        "member_removed presence-a 1",
        "subscription_count b 0",
    ];
    let mut ended = BTreeSet::new();
    while ended.len() < expected.len() {
        for event in events(1) {
            // Two connections end, with or without a number in between.
            assert!(
                event == "subscription_count b 1" || ended.insert(event.clone()),
                "{event} is sent twice"
            );
        }
    }
    assert!(ended.iter().eq(expected), "{ended:?}");
}

/// The node that reports a channel may be another one than that of its clients.
#[test]
fn channels_of_a_moment_and_numeric_ids_are_reported_by_one_node() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let backend = FakeBackend::start();
    let app = || app().with_webhook(backend.webhook());
    let nodes = [(); 2].map(|()| node_of(&broker, app()));
    nodes.iter().for_each(|node| wait_for(node, "sinews_webhook_reporters", 2.0));
    let mut clients = nodes.each_ref().map(Client::new);
    for (number, client) in (0..20).flat_map(|number| [(number, 0), (number, 1)]) {
        let channel = format!("presence-{number}-{client}");
        clients[client].request_subscription(&channel, Some(r#"{"user_id":1}"#));
        clients[client].send("pusher:unsubscribe", json!({ "channel": channel }));
        clients[client].subscribed(&channel);
        let mut events: Vec<String> = (0..4).map(|_| name_of(&backend.event())).collect();
        events.sort();
        let expected = ["channel_occupied #", "channel_vacated #", "member_added # 1", "member_removed # 1"];
        assert_eq!(events, expected.map(|event| event.replace('#', &channel)));
    }
    clients[0].request_subscription("presence-a", Some(r#"{"user_id":7}"#));
    clients[0].subscribed("presence-a");
    until(&nodes[1], "/apps/3/channels/presence-a/users", &users(&["7"]));
    let roster = clients[1].join("presence-a", "8");
    assert_eq!(roster["presence"]["ids"], json!([7, "8"]));
    clients[0].send("pusher:unsubscribe", json!({ "channel": "presence-a" }));
    assert_eq!(clients[1].expect("pusher_internal:member_removed").1["user_id"], 7);
    let events = [(); 4].map(|()| backend.event());
    let id = |name: &str| events.iter().find(|event| event["name"] == name && event["user_id"] == 7);
    assert!(id("member_added").is_some() && id("member_removed").is_some(), "{events:?}");
}

/// An event of a webhook as a text.
fn name_of(event: &Value) -> String {
    let fields = ["name", "channel", "user_id", "subscription_count"].map(|field| match &event[field] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    });
    fields.into_iter().filter(|field| !field.is_empty()).collect::<Vec<_>>().join(" ")
}

fn publish(node: &TestHub, channel: &str, data: &str) {
    let body = json!({ "name": "e", "channel": channel, "data": data }).to_string();
    assert_eq!(api(node, "POST", "/apps/3/events", "", &body), (200, json!({})));
}

/// Waits until a node knows the last event of a cache channel, without a subscriber.
fn until_cached(node: &TestHub, channel: &str, data: &str) {
    let path = format!("/apps/3/channels/{channel}");
    until_equal(channel, data, || api(node, "GET", &path, "info=cache", "").1["cache"]["data"].clone());
}

#[test]
fn pusher_4_10_last_events_are_those_of_the_cluster() {
    for_both(|broker, nodes| {
        broker.wait_for("sinews.all", 2);
        publish(&nodes[0], "cache-a", "1");
        until_cached(&nodes[1], "cache-a", "1");
        // No client was subscribed anywhere.
        let mut one = Client::new(&nodes[1]);
        one.subscribe("cache-a");
        assert_eq!(one.expect("e"), ("cache-a".to_owned(), json!(1)));
        // Its last event has arrived by one subscription, and once.
        publish(&nodes[0], "cache-a", "2");
        publish(&nodes[0], "cache-a", "3");
        assert_eq!((one.expect("e").1, one.expect("e").1), (json!(2), json!(3)));
        // A node that joins later requests what it has missed.
        let late = node(broker);
        broker.wait_for("sinews.all", 3);
        until_joined(&late, 3);
        let mut two = Client::new(&late);
        two.subscribe("cache-a");
        assert_eq!(two.receive()["event"], "pusher:cache_miss");
        assert_eq!(two.expect("e").1, json!(3));
        two.subscribe("cache-b");
        assert_eq!(two.receive()["event"], "pusher:cache_miss");
        let mut three = Client::new(&late);
        three.subscribe("cache-c");
        assert_eq!(three.receive()["event"], "pusher:cache_miss");
        publish(&nodes[1], "cache-c", "5");
        // Its thread has published the last event of the other channel now. Before, a client can receive this event as it
        // subscribes, and again as it is published.
        assert_eq!(three.expect("e"), ("cache-c".to_owned(), json!(5)));
        three.subscribe("cache-a");
        assert_eq!(three.expect("e").1, json!(3));
        publish(&nodes[1], "cache-b", "4");
        assert_eq!(two.expect("e"), ("cache-b".to_owned(), json!(4)));
        three.ping();
    });
}

#[test]
fn last_events_of_an_outage_are_known_afterwards() {
    for_both(|broker, nodes| {
        broker.wait_for("sinews.all", 2);
        nodes.iter().for_each(|node| until_joined(node, 2));
        for channel in ["cache-a", "cache-b", "cache-c"] {
            publish(&nodes[0], channel, "before");
            until_cached(&nodes[1], channel, "before");
        }
        broker.go_down();
        nodes.iter().for_each(|node| until_connected(node, false));
        publish(&nodes[0], "cache-a", "meanwhile");
        broker.come_up();
        nodes.iter().for_each(|node| until_connected(node, true));
        broker.wait_for("sinews.all", 2);
        let mut one = Client::new(&nodes[1]);
        one.subscribe("cache-a");
        // The first node sends the event when it returns; if the second one returns later, it requests it now.
        let mut last = one.expect("e").1;
        if last == json!("before") {
            last = one.expect("e").1;
        }
        assert_eq!(last, json!("meanwhile"));
        // An event that both nodes know is not delivered again.
        for (node, channel) in nodes.iter().zip(["cache-b", "cache-c"]) {
            let mut client = Client::new(node);
            client.subscribe(channel);
            assert_eq!(client.expect("e").1, json!("before"));
            publish(node, channel, "end");
            assert_eq!(client.expect("e").1, json!("end"));
        }
    });
}

/// The nodes return one after the other. Clients that were subscribed before receive the events of both.
#[test]
fn last_events_of_an_outage_reach_nodes_that_return_later() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let nodes = [(); 2].map(|()| node(&broker));
    nodes.iter().for_each(|node| until_joined(node, 2));
    let channels = ["cache-a", "cache-b"];
    let mut clients = nodes.each_ref().map(Client::new);
    for client in &mut clients {
        for channel in channels {
            client.subscribe(channel);
            client.expect("pusher:cache_miss");
        }
    }
    broker.go_down();
    nodes.iter().for_each(|node| until_connected(node, false));
    for ((node, client), channel) in nodes.iter().zip(&mut clients).zip(channels) {
        publish(node, channel, "meanwhile");
        assert_eq!(client.expect("e").0, channel);
    }
    broker.accept_one();
    let is_connected = |node: &TestHub| metric(node, "sinews_cluster_connected") == 1.0;
    sinews_testkit::until("a node is connected", || nodes.iter().any(is_connected));
    broker.come_up();
    for (client, channel) in clients.iter_mut().zip(channels.into_iter().rev()) {
        assert_eq!(client.expect("e"), (channel.to_owned(), json!("meanwhile")));
        client.ping();
    }
}

fn until_joined(node: &TestHub, nodes: u64) {
    wait_for(node, "sinews_cluster_nodes", nodes as f64);
}

fn until_connected(node: &TestHub, is_connected: bool) {
    wait_for(node, "sinews_cluster_connected", f64::from(u8::from(is_connected)));
}

#[test]
fn recovery_at_another_node_is_reported_as_incomplete() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        let nodes = [(); 2].map(|()| {
            let options = options(&broker.url());
            TestHub::built(Hub::builder().config(policy([app().with_topics("kept")])).cluster(options))
        });
        broker.wait_for(if kind == WireProtocol::Nats { "sinews.t.kept.>" } else { "sinews.t.kept.*" }, 2);
        let [mut first, mut witness] = nodes.each_ref().map(Client::new);
        for client in [&mut first, &mut witness] {
            recover(client, &json!(true));
        }
        publish(&nodes[0], "a", "1");
        let position = first.receive()["position"].clone();
        publish(&nodes[0], "a", "2");
        // A node retains an event before its subscribers receive it.
        assert_eq!((witness.expect("e").1, witness.expect("e").1), (json!(1), json!(2)));
        let request = json!({ "position": position });
        // The other node retains the same events, at positions of its own.
        let mut elsewhere = Client::new(&nodes[1]);
        let ack = recover(&mut elsewhere, &request);
        assert_eq!(ack["recovered"], false, "{ack}");
        publish(&nodes[0], "a", "3");
        assert_eq!(elsewhere.expect("e").1, json!(3), "nothing is replayed");
        let mut here = Client::new(&nodes[0]);
        let ack = recover(&mut here, &request);
        assert_eq!(ack["recovered"], true, "{ack}");
        assert_eq!((here.expect("e").1, here.expect("e").1), (json!(2), json!(3)));
    }
}

/// Subscribes to a channel with a history; returns the acknowledgement.
fn recover(client: &mut Client, recover: &Value) -> Value {
    client.send("pusher:subscribe", json!({ "channel": "a", "recover": recover }));
    let ack = client.receive();
    assert_eq!(ack["event"], "pusher_internal:subscription_succeeded", "{ack}");
    ack
}
