//! Recovery: what a client has missed in channels with a history, and what plain clients receive.

use std::thread;

use serde_json::{Value, json};
use sinews_hub::Hub;
use sinews_testkit::assert_fields;

use super::client::{Client, api, api_v1, app, connected, data_of, hub_of, policy, trigger, with_api_key};
use crate::support::fake_store::FakeStore;
use crate::support::{TestHub, parse};

/// A hub whose channels retain three events.
fn hub_with_history() -> TestHub {
    history_client().0
}

fn history_client() -> (TestHub, Client) {
    connected(|app| app.with_topics("kept").with_client_events(true))
}

/// Requests a subscription with `recover`.
fn request(client: &mut Client, channel: &str, channel_data: Option<&str>, recover: &Value) {
    let text = channel_data.map_or_else(|| channel.to_owned(), |data| format!("{channel}:{data}"));
    let mut data = json!({ "channel": channel, "auth": client.auth(&text), "recover": recover });
    if let Some(channel_data) = channel_data {
        data["channel_data"] = json!(channel_data);
    }
    client.send("pusher:subscribe", data);
}

/// Subscribes with `recover`; returns the position, and whether the recovery is complete.
fn recover(client: &mut Client, channel: &str, recover: &Value) -> (String, bool) {
    request(client, channel, None, recover);
    acknowledged(&client.receive())
}

fn acknowledged(message: &Value) -> (String, bool) {
    assert_eq!(message["event"], "pusher_internal:subscription_succeeded", "{message}");
    let position = message["position"].as_str().unwrap_or_default();
    (position.to_owned(), message["recovered"].as_bool().expect("recovered"))
}

/// The data and the sequence of the next event.
fn next(client: &mut Client, channel: &str) -> (Value, u64) {
    let message = client.receive();
    assert_fields(&message, json!({"event": "e", "channel": channel}));
    let position = message["position"].as_str().unwrap();
    (data_of(&message), sequence(position))
}

fn sequence(position: &str) -> u64 {
    position.split_once('-').unwrap().1.parse().unwrap()
}

/// The position of another event of the same epoch.
fn at(position: &str, sequence: u64) -> String {
    format!("{}-{sequence}", position.split_once('-').unwrap().0)
}

#[test]
fn missed_events_are_replayed_in_order_before_new_ones() {
    let (hub, mut client) = history_client();
    let (start, recovered) = recover(&mut client, "a", &json!(true));
    assert_eq!((sequence(&start), recovered), (0, false), "nothing to recover");
    client.end();
    trigger(&hub, "a", "e", "1");
    let mut client = Client::new(&hub);
    let (position, recovered) = recover(&mut client, "a", &json!({ "position": start }));
    assert_eq!((sequence(&position), recovered), (1, true), "the channel had no event before");
    assert_eq!(next(&mut client, "a"), (json!(1), 1));
    trigger(&hub, "a", "e", "2");
    assert_eq!(next(&mut client, "a"), (json!(2), 2));
    client.end();
    trigger(&hub, "a", "e", "3");
    trigger(&hub, "a", "e", "4");
    let mut client = Client::new(&hub);
    let (end, recovered) = recover(&mut client, "a", &json!({ "position": at(&position, 2) }));
    assert_eq!((&*end, recovered), (&*at(&position, 4), true));
    trigger(&hub, "a", "e", "5");
    for number in 3..=5 {
        assert_eq!(next(&mut client, "a"), (json!(number), number));
    }
    // Nothing is missing.
    let mut other = Client::new(&hub);
    assert_eq!(recover(&mut other, "a", &json!({ "position": at(&position, 5) })), (at(&position, 5), true));
    other.ping();
}

#[test]
fn incomplete_histories_are_reported_and_nothing_is_replayed() {
    let (hub, mut client) = history_client();
    let (start, _) = recover(&mut client, "a", &json!(true));
    client.end();
    for number in ["1", "2", "3", "4"] {
        trigger(&hub, "a", "e", number);
    }
    trigger(&hub, "b", "e", "1");
    let mut other = Client::new(&hub);
    let (of_other, _) = recover(&mut other, "b", &json!(true));
    let beyond = at(&start, 5);
    for position in [&*start, &*beyond, &*of_other, "0-0", "18446744073709551615-18446744073709551615"] {
        let mut client = Client::new(&hub);
        let (end, recovered) = recover(&mut client, "a", &json!({ "position": position }));
        assert_eq!((&*end, recovered), (&*at(&start, 4), false), "{position}");
        client.ping();
    }
    let mut client = Client::new(&hub);
    recover(&mut client, "a", &json!({ "position": start }));
    trigger(&hub, "a", "e", "5");
    assert_eq!(next(&mut client, "a"), (json!(5), 5));
}

#[test]
fn plain_clients_receive_plain_messages() {
    let (hub, mut plain) = history_client();
    for (recover, text) in [
        (json!(null), r#"{"event":"pusher_internal:subscription_succeeded","channel":"a","data":"{}"}"#),
        (json!(false), r#"{"event":"pusher_internal:subscription_succeeded","channel":"b","data":"{}"}"#),
    ] {
        let channel = parse(text)["channel"].as_str().unwrap().to_owned();
        request(&mut plain, &channel, None, &recover);
        assert_eq!(plain.receive_text(), text);
    }
    let mut client = Client::new(&hub);
    let (start, _) = recover(&mut client, "a", &json!(true));
    trigger(&hub, "a", "e", "{\"a\": 1}");
    let event = r#"{"event":"e","channel":"a","data":"{\"a\": 1}"}"#;
    assert_eq!(plain.receive_text(), event);
    let with_position = format!("{},\"position\":\"{}\"}}", event.trim_end_matches('}'), at(&start, 1));
    assert_eq!(client.receive_text(), with_position);
}

#[test]
fn channels_without_history_say_so() {
    let hub = hub_of([app()]);
    let mut client = Client::new(&hub);
    for (channel, recover) in [("a", json!(true)), ("b", json!({ "position": "1-1" }))] {
        request(&mut client, channel, None, &recover);
        let ack = format!(
            "{{\"event\":\"pusher_internal:subscription_succeeded\",\"channel\":\"{channel}\",\"data\":\"{{}}\",\
             \"recovered\":false}}"
        );
        assert_eq!(client.receive_text(), ack);
        trigger(&hub, channel, "e", "1");
        assert_eq!(client.receive_text(), format!(r#"{{"event":"e","channel":"{channel}","data":"1"}}"#));
    }
}

#[test]
fn signed_channels_recover_with_their_signature_only() {
    let hub = hub_with_history();
    for (channel, member) in [
        ("private-a", None),
        ("presence-a", Some(r#"{"user_id":"1"}"#)),
        ("private-encrypted-a", None),
        ("private-cache-a", None),
    ] {
        let mut client = Client::new(&hub);
        request(&mut client, channel, member, &json!(true));
        let (start, _) = acknowledged(&client.receive());
        client.end();
        trigger(&hub, channel, "e", "1");
        trigger(&hub, channel, "e", "2");
        let mut client = Client::new(&hub);
        let request_of = |auth: String| json!({ "channel": channel, "auth": auth, "channel_data": member, "recover": { "position": start } });
        client.send("pusher:subscribe", request_of(client.auth("private-b")));
        assert_eq!(client.expect("pusher:subscription_error").1["status"], 401, "{channel}");
        request(&mut client, channel, member, &json!({ "position": start }));
        let ack = client.receive();
        assert_eq!(acknowledged(&ack), (at(&start, 2), true), "{channel}");
        assert_eq!(data_of(&ack)["presence"].is_object(), member.is_some());
        for number in 1..=2 {
            assert_eq!(next(&mut client, channel), (json!(number), number));
        }
        // A cache channel does not repeat its last event.
        client.ping();
    }
}

#[test]
fn excluded_connections_receive_their_events_neither_live_nor_again() {
    let hub = hub_with_history();
    let (mut client, mut other) = (Client::new(&hub), Client::new(&hub));
    let (start, _) = recover(&mut client, "private-a", &json!(true));
    recover(&mut other, "private-a", &json!(true));
    client.trigger("client-e", "private-a", json!(1));
    let of_client = other.receive();
    assert_fields(&of_client, json!({"event": "client-e", "data": 1}));
    let body = json!({ "name": "e", "channel": "private-a", "data": "2", "socket_id": client.socket_id });
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body.to_string()).0, 200);
    assert_eq!(next(&mut other, "private-a"), (json!(2), 2));
    client.ping();
    trigger(&hub, "private-a", "e", "3");
    assert_eq!(next(&mut client, "private-a"), (json!(3), 3), "neither of its own events");
    let socket_id = client.socket_id.clone();
    client.end();
    let mut client = Client::new(&hub);
    let request = json!({ "position": start, "socket_id": socket_id });
    assert_eq!(recover(&mut client, "private-a", &request), (at(&start, 3), true));
    assert_eq!(next(&mut client, "private-a"), (json!(3), 3), "neither of its own events");
    client.ping();
    let mut client = Client::new(&hub);
    let request = json!({ "position": start, "socket_id": other.socket_id });
    assert_eq!(recover(&mut client, "private-a", &request), (at(&start, 3), true));
    assert_eq!(client.receive(), of_client, "an event of another connection");
}

/// A connection has an id in the HTTP API once its user has signed in.
#[test]
fn publications_by_the_http_api_exclude_a_client_in_all_kinds_of_channels() {
    let policy = with_api_key(policy([app().with_topics("kept")]));
    let hub = TestHub::built(Hub::builder().config(policy));
    let (mut excluded, mut other) = (Client::new(&hub), Client::new(&hub));
    excluded.sign_in(&json!({ "id": "anna" }));
    excluded.expect("pusher:signin_success");
    for client in [&mut excluded, &mut other] {
        recover(client, "a", &json!(true));
        client.subscribe("b");
        client.subscribe("cache-c");
        client.expect("pusher:cache_miss");
    }
    let listed = api_v1(&hub, "GET /api/v1/connections", "");
    let id = &listed["connections"][0]["connection"];
    for channel in ["a", "b", "cache-c"] {
        for (number, exclude) in [(1, id), (2, &Value::Null)] {
            let data = json!({ "event": "e", "data": number });
            let publication = json!({ "topic": format!("kept.{channel}"), "data": data, "exclude": exclude });
            api_v1(&hub, "POST /api/v1/publish", &publication.to_string());
        }
        for (client, first) in [(&mut excluded, 2), (&mut other, 1)] {
            for number in first..=2 {
                assert_eq!(client.expect("e"), (channel.to_owned(), json!(number)));
            }
        }
    }
}

#[test]
fn payloads_cannot_forge_positions() {
    let (hub, mut client) = history_client();
    let (start, _) = recover(&mut client, "a", &json!(true));
    let forged = r#"{"event":"e","data":1,"position":"9-9","except":"00"}"#;
    assert_eq!(hub.publish_as("kept.a", "application/json", forged.as_bytes()), 200);
    let expected = json!({ "event": "e", "channel": "a", "data": 1, "position": at(&start, 1) });
    assert_eq!(client.receive(), expected);
}

#[test]
fn malformed_requests_are_rejected_and_the_connection_stays() {
    let (hub, mut client) = history_client();
    for recover in
        [json!(1), json!({}), json!({ "position": "x" }), json!({ "position": "1-1", "socket_id": 1 })]
    {
        request(&mut client, "a", None, &recover);
        let (channel, data) = client.expect("pusher:subscription_error");
        assert_eq!((&*channel, &data["type"], &data["status"]), ("a", &json!("InvalidRecover"), &json!(400)));
        assert!(data["error"].as_str().unwrap().starts_with("recover"), "{data}");
    }
    client.subscribe("a");
    // A repeated subscription stays as it is.
    assert_eq!(recover(&mut client, "a", &json!(true)), (String::new(), false));
    trigger(&hub, "a", "e", "1");
    assert_eq!(client.receive_text(), r#"{"event":"e","channel":"a","data":"1"}"#);
}

/// A hub whose channels retain many events.
fn hub_with_deep_history() -> TestHub {
    TestHub::built(Hub::builder().config(policy([app().with_topics("deep")])).history("deep.>", 100_000))
}

/// Publishes events in batches.
fn publish_batches(hub: &TestHub, numbers: std::ops::Range<u64>, data: impl Fn(u64) -> String) {
    let numbers: Vec<u64> = numbers.collect();
    for numbers in numbers.chunks(10) {
        let event = |number: &u64| json!({ "name": "e", "channel": "a", "data": data(*number) });
        let batch: Vec<Value> = numbers.iter().map(event).collect();
        let body = json!({ "batch": batch }).to_string();
        assert_eq!(api(hub, "POST", "/apps/3/batch_events", "", &body).0, 200);
    }
}

#[test]
fn replays_are_limited_by_events_and_by_bytes() {
    let hub = hub_with_deep_history();
    let mut client = Client::new(&hub);
    let (start, _) = recover(&mut client, "a", &json!(true));
    publish_batches(&hub, 1..1_002, |number| number.to_string());
    for (after, is_complete) in [(0, false), (1, true)] {
        let mut client = Client::new(&hub);
        let request = json!({ "position": at(&start, after) });
        assert_eq!(recover(&mut client, "a", &request), (at(&start, 1_001), is_complete));
        for number in 2..1_002 * u64::from(is_complete) {
            assert_eq!(next(&mut client, "a"), (json!(number), number));
        }
        client.ping();
    }
    // 1 MiB, with the names and positions.
    publish_batches(&hub, 0..110, |_| "x".repeat(10_000));
    for (after, is_complete) in [(1_001, false), (1_010, true)] {
        let mut client = Client::new(&hub);
        let request = json!({ "position": at(&start, after) });
        assert_eq!(recover(&mut client, "a", &request), (at(&start, 1_111), is_complete), "{after}");
    }
}

#[test]
fn clients_that_reconnect_during_publications_receive_each_event_once_in_order() {
    const EVENTS: u64 = 600;
    let hub = hub_with_deep_history();
    let mut position = recover(&mut Client::new(&hub), "a", &json!(true)).0;
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| publish_batches(&hub, 0..EVENTS / 3, |number| number.to_string()));
        }
        let mut last = 0;
        while last < EVENTS {
            let mut client = Client::new(&hub);
            assert!(recover(&mut client, "a", &json!({ "position": position })).1, "complete");
            for _ in 0..(EVENTS - last).min(17) {
                let (_, sequence) = next(&mut client, "a");
                assert_eq!(sequence, last + 1);
                last = sequence;
            }
            position = at(&position, last);
        }
    });
}

#[test]
fn client_recovers_at_another_server_with_the_same_topic_store() {
    let store = FakeStore::new();
    let hubs = [(); 2].map(|()| {
        let builder = Hub::builder().config(policy([app().with_topics("kept")]));
        TestHub::built(builder.topic_store(store.connect()))
    });
    let mut client = Client::new(&hubs[0]);
    let (start, recovered) = recover(&mut client, "a", &json!(true));
    assert_eq!((&*start, recovered), ("0-0", false), "the store has no event");
    trigger(&hubs[1], "a", "e", "1");
    let message = client.receive();
    let position = message["position"].as_str().unwrap().to_owned();
    assert_eq!(sequence(&position), 1, "{message}");
    client.end();
    trigger(&hubs[0], "a", "e", "2");
    trigger(&hubs[1], "a", "e", "3");
    for after in [&*start, &*position] {
        let mut moved = Client::new(&hubs[1]);
        let (end, recovered) = recover(&mut moved, "a", &json!({ "position": after }));
        assert_eq!((&*end, recovered), (&*at(&position, 3), true), "{after}");
        for number in sequence(after) + 1..=3 {
            assert_eq!(next(&mut moved, "a"), (json!(number), number));
        }
        moved.end();
    }
    trigger(&hubs[0], "a", "e", "4");
    let (_, recovered) = recover(&mut Client::new(&hubs[0]), "a", &json!({ "position": start }));
    assert!(!recovered, "the store retains three events");
}
