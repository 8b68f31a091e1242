//! Channels that are durable topics: events are stored, and recovered from the stream.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sinews_hub::{CreationLimits, Hub, HubBuilder, PusherApp, PusherLimits, StreamOptions};
use sinews_testkit::{assert_fields, until, until_some};

use super::client::{Client, api, app, data_of, metric, patient, policy, request, trigger};
use crate::cluster::options;
use crate::support::TestHub;
use crate::support::fake_broker::{FakeBroker, WireProtocol};
use crate::support::memory_broker::MemoryBroker;

/// A server whose channels are durable topics.
fn start(directory: &Path) -> TestHub {
    let app = app().with_topics("stored").with_client_events(true);
    let streams = StreamOptions::in_directory(directory).with_durable_topics(["stored.>".to_owned()]);
    TestHub::built(Hub::builder().config(policy([app])).streams(streams))
}

/// The same in a directory of its own.
fn started() -> (tempfile::TempDir, TestHub) {
    let directory = tempfile::tempdir().unwrap();
    let hub = start(directory.path());
    (directory, hub)
}

/// Subscribes with `recover`; returns the position, and whether the recovery is complete.
fn recover(client: &mut Client, channel: &str, recover: &Value) -> (Option<String>, bool) {
    let auth = client.auth(channel);
    client.send("pusher:subscribe", json!({ "channel": channel, "auth": auth, "recover": recover }));
    let message = client.receive();
    assert_eq!(message["event"], "pusher_internal:subscription_succeeded", "{message}");
    let position = message["position"].as_str().map(str::to_owned);
    (position, message["recovered"].as_bool().expect("recovered"))
}

/// The data and the position of the next event.
fn next(client: &mut Client) -> (Value, String) {
    let message = client.receive();
    assert_eq!(message["event"], "e", "{message}");
    (data_of(&message), message["position"].as_str().unwrap_or_default().to_owned())
}

/// Waits until subscribers of a channel have received the events up to this sequence: an event is stored first. Returns
/// the position.
fn until_published(hub: &TestHub, channel: &str, end: u64) -> String {
    until_some(format_args!("{channel} at {end}"), || {
        let (position, _) = recover(&mut Client::new(hub), channel, &json!(true));
        position.filter(|position| sequence(position) == end)
    })
}

/// Waits until a recovery has reserved its memory: the node opens the copy of the stream first.
fn until_reserved(hub: &TestHub) {
    until("a recovery has reserved memory", || metric(hub, "sinews_pusher_recovery_bytes") >= 1_048_576.0);
}

fn sequence(position: &str) -> u64 {
    position.split_once('-').unwrap().1.parse().unwrap()
}

/// Triggers an event that a connection does not receive.
fn trigger_except(hub: &TestHub, channel: &str, data: &str, client: &Client) {
    let body = json!({ "name": "e", "channel": channel, "data": data, "socket_id": client.socket_id });
    assert_eq!(api(hub, "POST", "/apps/3/events", "", &body.to_string()), (200, json!({})));
}

#[test]
fn events_of_durable_channels_are_recovered_from_the_stream_also_after_a_restart() {
    let (directory, hub) = started();
    // There is no stream yet.
    let mut client = Client::new(&hub);
    let (before, recovered) = recover(&mut client, "a", &json!(true));
    let before = before.unwrap();
    assert_eq!((sequence(&before), recovered), (0, false));
    client.end();
    let mut client = Client::new(&hub);
    let (again, recovered) = recover(&mut client, "a", &json!({ "position": before }));
    assert_eq!((sequence(&again.unwrap()), recovered), (0, true));
    trigger(&hub, "a", "e", "1");
    let (data, position) = next(&mut client);
    assert_eq!((data, sequence(&position)), (json!(1), 1));
    client.end();
    // One event of the API, and one of another protocol.
    trigger(&hub, "a", "e", "2");
    assert_eq!(hub.publish_as("stored.a", "application/json", br#"{"event":"e","data":3}"#), 200);
    until_published(&hub, "a", 3);
    let behind = |hub: &TestHub, position: &str, expected: &[i32]| {
        let mut client = Client::new(hub);
        let (end, recovered) = recover(&mut client, "a", &json!({ "position": position }));
        assert!(recovered);
        assert_eq!(sequence(&end.unwrap()), 3);
        for data in expected {
            assert_eq!(next(&mut client).0, *data);
        }
        client
    };
    behind(&hub, &position, &[2, 3]).ping();
    drop(hub);
    let hub = start(directory.path());
    behind(&hub, &before, &[1, 2, 3]).ping();
    let mut client = behind(&hub, &position, &[2, 3]);
    trigger(&hub, "a", "e", "4");
    let (data, last) = next(&mut client);
    assert_eq!((data, sequence(&last)), (json!(4), 4));
    // A later subscriber knows where it starts.
    let mut other = Client::new(&hub);
    assert_eq!(recover(&mut other, "a", &json!(true)), (Some(last.clone()), false));
    // Positions beyond the end, and of another stream.
    for unknown in [last.replace("-4", "-5"), "1-1".to_owned()] {
        let mut client = Client::new(&hub);
        let recovered = recover(&mut client, "a", &json!({ "position": unknown }));
        assert_eq!(recovered, (Some(last.clone()), false), "{unknown}");
        client.ping();
    }
}

#[test]
fn clients_of_durable_channels_that_reconnect_during_publications_receive_each_event_once() {
    const EVENTS: u64 = 300;
    let (_directory, hub) = started();
    trigger(&hub, "a", "e", "0");
    until_published(&hub, "a", 1);
    let mut client = Client::new(&hub);
    let (position, _) = recover(&mut client, "a", &json!(true));
    let mut position = position.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=EVENTS).for_each(|number| trigger(&hub, "a", "e", &number.to_string())));
        let mut last = 0;
        while last < EVENTS {
            for _ in 0..10.min(EVENTS - last) {
                let (data, at) = next(&mut client);
                assert_eq!((data, sequence(&at)), (json!(last + 1), last + 2));
                (last, position) = (last + 1, at);
            }
            client = Client::new(&hub);
            let (_, recovered) = recover(&mut client, "a", &json!({ "position": position }));
            assert!(recovered, "{position}");
        }
    });
}

#[test]
fn excluded_connections_receive_events_of_durable_channels_neither_live_nor_again() {
    let (_directory, hub) = started();
    trigger(&hub, "a", "e", "1");
    until_published(&hub, "a", 1);
    let (mut client, mut plain, mut other) = (Client::new(&hub), Client::new(&hub), Client::new(&hub));
    let (position, _) = recover(&mut client, "a", &json!(true));
    plain.subscribe("a");
    recover(&mut other, "a", &json!(true));
    trigger_except(&hub, "a", "2", &client);
    trigger_except(&hub, "a", "3", &plain);
    trigger(&hub, "a", "e", "4");
    let received = |client: &mut Client, expected: &[i32]| {
        expected.iter().for_each(|data| assert_eq!(client.expect("e").1, *data));
    };
    received(&mut client, &[3, 4]);
    received(&mut plain, &[2, 4]);
    received(&mut other, &[2, 3, 4]);
    let mut again = Client::new(&hub);
    let behind = json!({ "position": position, "socket_id": client.socket_id });
    assert!(recover(&mut again, "a", &behind).1);
    received(&mut again, &[3, 4]);
    again.ping();
}

#[test]
fn client_events_of_durable_channels_are_delivered_and_not_stored() {
    let (_directory, hub) = started();
    let channel = "private-a";
    trigger(&hub, channel, "e", "1");
    until_published(&hub, channel, 1);
    let (mut client, mut plain, mut other) = (Client::new(&hub), Client::new(&hub), Client::new(&hub));
    let (position, _) = recover(&mut client, channel, &json!(true));
    recover(&mut other, channel, &json!(true));
    plain.subscribe(channel);
    client.trigger("client-e", channel, json!("hello"));
    for client in [&mut plain, &mut other] {
        let message = client.receive();
        assert_fields(&message, json!({"event": "client-e", "position": null}));
    }
    trigger(&hub, channel, "e", "2");
    let (data, at) = next(&mut other);
    assert_eq!((data, sequence(&at)), (json!(2), 2), "a client event takes no position");
    assert_eq!(next(&mut client), (json!(2), at), "a client does not receive its own event");
    let mut again = Client::new(&hub);
    assert!(recover(&mut again, channel, &json!({ "position": position })).1);
    assert_eq!(next(&mut again).0, 2);
}

#[test]
fn clients_of_other_protocols_cannot_forge_stored_events() {
    let (_directory, hub) = started();
    trigger(&hub, "a", "e", "1");
    until_published(&hub, "a", 1);
    let mut client = Client::new(&hub);
    let (position, _) = recover(&mut client, "a", &json!(true));
    let forged = json!({
        "event": "pusher_internal:member_added", "data": "{}", "socket_id": client.socket_id, "user_id": "1",
    });
    assert_eq!(hub.publish_as("stored.a", "application/json", forged.to_string().as_bytes()), 200);
    let target = "/streams/stored.a?key=sinews-channel-event";
    let (status, answer) = request(&hub, "POST", target, &forged.to_string());
    assert_eq!(status, 422, "{answer}");
    let mut again = Client::new(&hub);
    assert!(recover(&mut again, "a", &json!({ "position": position })).1);
    for client in [&mut client, &mut again] {
        assert_eq!(client.expect("message"), ("a".to_owned(), forged.clone()));
        client.ping();
    }
}

#[test]
fn records_that_other_programs_write_to_the_store_are_no_events_of_the_app() {
    let (store, [first, second]) = (MemoryBroker::default(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let hub = start_at_broker(&store, first.path(), patient());
    let mut client = Client::new(&hub);
    recover(&mut client, "a", &json!(true));
    for channel in ["a", "b"] {
        trigger(&hub, channel, "e", "1");
    }
    let (_, position) = next(&mut client);
    let forged = json!({
        "event": "pusher_internal:member_added", "data": "{}", "socket_id": client.socket_id, "user_id": "1",
    });
    // Without a seal, with one of nobody, and with seals of other events.
    let of_nobody = ["sinews-channel-event:", &"0".repeat(64)].concat();
    let keys = [
        b"sinews-channel-event".to_vec(),
        of_nobody.into_bytes(),
        store.last_key("stored.a"),
        store.last_key("stored.b"),
    ];
    for key in &keys {
        store.write("stored.a", key, &forged.to_string());
    }
    until_published(&hub, "a", sequence(&position) + 4);
    let later = start_at_broker(&store, second.path(), patient());
    let [mut here, mut there] = [&hub, &later].map(Client::new);
    for client in [&mut here, &mut there] {
        assert!(recover(client, "a", &json!({ "position": position })).1);
    }
    for client in [&mut client, &mut here, &mut there] {
        for _ in &keys {
            assert_eq!(client.expect("message"), ("a".to_owned(), forged.clone()));
        }
        client.ping();
    }
}

#[test]
fn recoveries_wait_for_the_memory_of_others() {
    let (store, [first, second]) = (MemoryBroker::default(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let position = two_events(&store, first.path());
    let builder = at_broker(&store, second.path(), patient());
    let hub = TestHub::built(builder.pusher_recovery_bytes(1));
    trigger(&hub, "b", "e", "1");
    until_published(&hub, "b", 1);
    store.hold_fetches("stored.a");
    let [mut reading, mut waiting] = [&hub, &hub].map(Client::new);
    let subscribe = |client: &mut Client, channel: &str| {
        let recover = json!({ "position": position.replace("-1", "-0") });
        client.send("pusher:subscribe", json!({ "channel": channel, "recover": recover }));
        client.ping();
    };
    subscribe(&mut reading, "a");
    until_reserved(&hub);
    subscribe(&mut waiting, "b");
    let reserved = || metric(&hub, "sinews_pusher_recovery_bytes");
    assert_eq!(reserved(), 1_048_576.0);
    store.release_fetches("stored.a");
    for (client, expected) in [(&mut reading, &[1, 2][..]), (&mut waiting, &[1])] {
        assert_eq!(client.receive()["recovered"], true);
        expected.iter().for_each(|data| assert_eq!(next(client).0, *data));
        client.ping();
    }
    super::faults::wait_for(&hub, "sinews_pusher_recovery_bytes", 0.0);
    // A recovery that ends while it reads frees its memory.
    store.hold_fetches("stored.a");
    let [mut ends, mut leaves, mut last] = [&hub, &hub, &hub].map(Client::new);
    subscribe(&mut ends, "a");
    subscribe(&mut leaves, "a");
    subscribe(&mut last, "b");
    leaves.send("pusher:unsubscribe", json!({ "channel": "a" }));
    leaves.ping();
    ends.end();
    assert_eq!(last.receive()["recovered"], true);
}

#[test]
fn subscriptions_without_missed_events_need_no_memory_of_recoveries() {
    let (store, [first, second]) = (MemoryBroker::default(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let position = two_events(&store, first.path());
    let hub = TestHub::built(at_broker(&store, second.path(), patient()).pusher_recovery_bytes(1));
    trigger(&hub, "b", "e", "1");
    let end = until_published(&hub, "b", 1);
    store.hold_fetches("stored.a");
    let mut reading = Client::new(&hub);
    let request = json!({ "position": position.replace("-1", "-0") });
    reading.send("pusher:subscribe", json!({ "channel": "a", "recover": request }));
    until_reserved(&hub);
    assert_eq!(recover(&mut Client::new(&hub), "b", &json!(true)), (Some(end.clone()), false));
    let up_to_date = json!({ "position": end });
    assert_eq!(recover(&mut Client::new(&hub), "b", &up_to_date), (Some(end), true));
    assert_eq!(metric(&hub, "sinews_pusher_recovery_bytes"), 1_048_576.0);
    store.release_fetches("stored.a");
    assert_eq!(reading.receive()["recovered"], true);
}

#[test]
fn slow_client_leaves_the_memory_of_recoveries_to_others() {
    let (store, [first, second]) = (MemoryBroker::default(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let position = two_events(&store, first.path());
    let hub = TestHub::built(at_broker(&store, second.path(), patient()).pusher_recovery_bytes(1));
    trigger(&hub, "b", "e", "1");
    until_published(&hub, "b", 1);
    store.hold_fetches("stored.a");
    let [mut slow, mut witness, mut other] = [(); 3].map(|()| Client::new(&hub));
    slow.subscribe("live");
    witness.subscribe("live");
    let request = json!({ "position": position.replace("-1", "-0") });
    slow.send("pusher:subscribe", json!({ "channel": "a", "recover": request }));
    until_reserved(&hub);
    // Beyond the buffers of the kernel, more than the high-water mark.
    let mut published = 0;
    while metric(&hub, "sinews_queued_bytes") < 300_000.0 {
        assert_eq!(hub.publish_as("stored.live", "application/octet-stream", &[0; 60_000]), 200);
        witness.expect("message");
        published += 1;
    }
    store.release_fetches("stored.a");
    assert!(recover(&mut other, "b", &request).1);
    assert_eq!(next(&mut other).0, 1);
    (0..published).for_each(|_| drop(slow.expect("message")));
    assert_eq!(slow.receive()["recovered"], true);
    assert_eq!((next(&mut slow).0, next(&mut slow).0), (json!(1), json!(2)));
    slow.ping();
}

#[test]
fn events_of_a_request_wait_for_a_queue_that_has_filled_meanwhile() {
    let (store, directory) = (MemoryBroker::default(), tempfile::tempdir().unwrap());
    let hub = start_at_broker(&store, directory.path(), patient());
    for channel in ["a", "b"] {
        trigger(&hub, channel, "e", "0");
        until_published(&hub, channel, 1);
    }
    store.reject_next("stored.b");
    let body = json!({ "name": "e", "channels": ["a", "b"], "data": "1" }).to_string();
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body), (200, json!({})));
    ["a", "b"].into_iter().for_each(|channel| drop(until_published(&hub, channel, 2)));
    store.reject_next("stored.a");
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body).0, 429, "none is appended");
    trigger(&hub, "a", "e", "2");
    ["a", "b"].into_iter().zip([3, 2]).for_each(|(channel, end)| drop(until_published(&hub, channel, end)));
}

#[test]
fn recoveries_from_streams_are_limited_and_end_with_their_subscription() {
    let (_directory, hub) = started();
    for first in (0..=1_000).step_by(10) {
        let batch: Vec<Value> = (first..1_001.min(first + 10))
            .map(|number: i32| json!({ "name": "e", "channel": "a", "data": number.to_string() }))
            .collect();
        let body = json!({ "batch": batch }).to_string();
        assert_eq!(api(&hub, "POST", "/apps/3/batch_events", "", &body), (200, json!({})));
    }
    let end = until_published(&hub, "a", 1_001);
    let mut client = Client::new(&hub);
    recover(&mut client, "a", &json!(true));
    let at = |sequence: u64| end.replace("-1001", &format!("-{sequence}"));
    client.send("pusher:unsubscribe", json!({ "channel": "a" }));
    assert_eq!(recover(&mut client, "a", &json!({ "position": at(0) })), (Some(end.clone()), false));
    client.send("pusher:unsubscribe", json!({ "channel": "a" }));
    assert_eq!(recover(&mut client, "a", &json!({ "position": at(1) })), (Some(end.clone()), true));
    for number in 1..=1_000 {
        assert_eq!(next(&mut client).0, number);
    }
    client.send("pusher:unsubscribe", json!({ "channel": "a" }));
    trigger(&hub, "a", "e", "1");
    client.ping();
}

#[test]
fn clients_of_durable_channels_recover_at_another_node_and_at_one_that_starts_later() {
    let (store, broker) = (MemoryBroker::default(), FakeBroker::start(WireProtocol::Redis));
    let directories = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let start = |at: usize| {
        let app = app().with_topics("stored").with_client_events(true);
        let streams = StreamOptions::at_broker(store.shared(), "memory", "")
            .with_directory(directories[at].path())
            .with_durable_topics(["stored.>".to_owned()]);
        let cluster = options(&broker.url());
        TestHub::built(Hub::builder().config(policy([app])).streams(streams).cluster(cluster))
    };
    let nodes = [start(0), start(1)];
    let channel = "private-a";
    let mut client = Client::new(&nodes[0]);
    recover(&mut client, channel, &json!(true));
    trigger(&nodes[1], channel, "e", "1");
    let (data, position) = next(&mut client);
    assert_eq!(data, 1);
    let mut witness = Client::new(&nodes[1]);
    assert_eq!(recover(&mut witness, channel, &json!(true)), (Some(position.clone()), false));
    broker.wait_for("sinews.t.stored.private-a", 2);
    client.trigger("client-e", channel, json!("hello"));
    assert_eq!(witness.expect("client-e").1, "hello");
    let own = json!({ "position": position, "socket_id": client.socket_id });
    trigger_except(&nodes[0], channel, "2", &client);
    client.end();
    trigger(&nodes[0], channel, "e", "3");
    let (first, second) = (next(&mut witness), next(&mut witness));
    assert_eq!((&first.0, &second.0), (&json!(2), &json!(3)));
    assert_eq!(sequence(&second.1), sequence(&position) + 2, "positions are those of the stream");
    // At the other node, and at a node that has followed the stream at no time before.
    let late = start(2);
    for node in [&nodes[1], &late] {
        let mut client = Client::new(node);
        assert_eq!(recover(&mut client, channel, &own), (Some(second.1.clone()), true));
        assert_eq!(next(&mut client), second, "not the event that it was excluded from");
        client.ping();
        let mut other = Client::new(node);
        assert!(recover(&mut other, channel, &json!({ "position": position })).1);
        assert_eq!((next(&mut other), next(&mut other)), (first.clone(), second.clone()));
        other.ping();
    }
    // An event is published while a node reads the missed ones.
    let later = start(3);
    store.repeat_at_fetch("stored.private-a");
    let mut client = Client::new(&later);
    assert!(recover(&mut client, channel, &json!({ "position": position })).1);
    assert!(!store.repeats_at_fetch("stored.private-a"), "the node has fetched them");
    let again = (
        json!(3),
        second.1.replace(&format!("-{}", sequence(&second.1)), &format!("-{}", sequence(&second.1) + 1)),
    );
    assert_eq!([next(&mut client), next(&mut client), next(&mut client)], [first, second, again.clone()]);
    assert_eq!(next(&mut witness), again);
    // The events of a node that has ended are at the others.
    let [ended, _other] = nodes;
    drop(ended);
    let mut client = Client::new(&late);
    assert!(recover(&mut client, channel, &json!({ "position": position })).1);
    assert_eq!([next(&mut client).0, next(&mut client).0, next(&mut client).0], [2, 3, 3]);
    trigger(&late, channel, "e", "4");
    assert_eq!(next(&mut client).0, 4);
    assert_eq!(next(&mut witness).0, 4);
}

#[test]
fn recoveries_of_many_channels_wait_while_the_queue_of_their_client_is_long() {
    const CHANNELS: usize = 24;
    const EVENTS: usize = 50;
    let (_directory, hub) = started();
    let channel = |at: usize| format!("c-{at}");
    for at in 0..CHANNELS {
        for first in (0..EVENTS).step_by(10) {
            let event = |number: usize| json!({ "name": "e", "channel": channel(at), "data": format!("{number:8000}") });
            let batch: Vec<Value> = (first..first + 10).map(event).collect();
            let body = json!({ "batch": batch }).to_string();
            assert_eq!(api(&hub, "POST", "/apps/3/batch_events", "", &body), (200, json!({})));
        }
    }
    let mut client = Client::new(&hub);
    let recover = json!({ "position": "0-0" });
    for at in 0..CHANNELS {
        client.send("pusher:subscribe", json!({ "channel": channel(at), "recover": recover }));
    }
    let mut received = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..CHANNELS * (EVENTS + 1) {
        let message = client.receive();
        let channel = message["channel"].as_str().unwrap().to_owned();
        if message["event"] == "pusher_internal:subscription_succeeded" {
            assert_eq!((&message["recovered"], received.insert(channel, 0)), (&json!(true), None));
            continue;
        }
        let number = received.get_mut(&channel).expect("an acknowledgement");
        assert_eq!(message["data"].as_str().unwrap().trim(), number.to_string(), "{channel}");
        *number += 1;
    }
    assert!(received.len() == CHANNELS && received.values().all(|count| *count == EVENTS), "{received:?}");
    client.ping();
}

#[test]
fn subscribers_of_a_deleted_stream_receive_and_recover_the_events_of_the_new_one() {
    let (_directory, hub) = started();
    trigger(&hub, "a", "e", "1");
    trigger(&hub, "a", "e", "2");
    until_published(&hub, "a", 2);
    let mut client = Client::new(&hub);
    let (before, _) = recover(&mut client, "a", &json!(true));
    assert_eq!(request(&hub, "DELETE", "/streams/stored.a", "").0, 200);
    trigger(&hub, "a", "e", "3");
    let (data, position) = next(&mut client);
    assert_eq!((data, sequence(&position)), (json!(3), 1));
    trigger(&hub, "a", "e", "4");
    assert_eq!(next(&mut client).0, 4);
    let mut again = Client::new(&hub);
    assert!(recover(&mut again, "a", &json!({ "position": position })).1);
    assert_eq!(next(&mut again).0, 4);
    let mut former = Client::new(&hub);
    assert!(!recover(&mut former, "a", &json!({ "position": before })).1);
    former.ping();
}

/// A node at a broker in memory that begins its copies of streams at their ends.
fn start_at_broker(store: &MemoryBroker, directory: &Path, limits: PusherLimits) -> TestHub {
    TestHub::built(at_broker(store, directory, limits))
}

fn at_broker(store: &MemoryBroker, directory: &Path, limits: PusherLimits) -> HubBuilder {
    let app = app().with_topics("stored").with_limits(limits);
    let streams = StreamOptions::at_broker(store.shared(), "memory", "")
        .with_directory(directory)
        .with_durable_topics(["stored.>".to_owned()]);
    Hub::builder().config(policy([app])).streams(streams)
}

/// The position of the first event of a channel with two events at a broker.
fn two_events(store: &MemoryBroker, directory: &Path) -> String {
    let hub = start_at_broker(store, directory, patient());
    let mut client = Client::new(&hub);
    recover(&mut client, "a", &json!(true));
    trigger(&hub, "a", "e", "1");
    trigger(&hub, "a", "e", "2");
    let (_, position) = next(&mut client);
    next(&mut client);
    position
}

#[test]
fn second_subscription_during_a_recovery_has_no_answer_of_its_own() {
    let (store, [first, second]) = (MemoryBroker::default(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let position = two_events(&store, first.path());
    let hub = start_at_broker(&store, second.path(), patient());
    store.hold_fetches("stored.a");
    let mut client = Client::new(&hub);
    let subscription = json!({ "channel": "a", "recover": { "position": position } });
    for _ in 0..3 {
        client.send("pusher:subscribe", subscription.clone());
    }
    client.send("pusher:subscribe", json!({ "channel": "a" }));
    client.ping();
    store.release_fetches("stored.a");
    let ack = client.receive();
    assert_fields(&ack, json!({"event": "pusher_internal:subscription_succeeded", "recovered": true}));
    assert_eq!(next(&mut client).0, 2);
    client.ping();
    assert_eq!(recover(&mut client, "a", &json!(true)), (None, false), "after the answer");
}

#[test]
fn recovery_that_a_broker_does_not_answer_in_time_is_incomplete() {
    let (store, [first, second]) = (MemoryBroker::default(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let position = two_events(&store, first.path());
    let mut limits = PusherLimits::default();
    limits.recovery_time = Duration::from_secs(3);
    let hub = start_at_broker(&store, second.path(), limits);
    store.hold_fetches("stored.a");
    let mut client = Client::new(&hub);
    assert!(!recover(&mut client, "a", &json!({ "position": position })).1);
    assert_eq!(metric(&hub, "sinews_pusher_recovery_timeouts_total"), 1.0);
    trigger(&hub, "a", "e", "3");
    assert_eq!(next(&mut client).0, 3);
    store.release_fetches("stored.a");
    client.ping();
    client.send("pusher:unsubscribe", json!({ "channel": "a" }));
    assert!(recover(&mut client, "a", &json!({ "position": position })).1);
    assert_eq!((next(&mut client).0, next(&mut client).0), (json!(2), json!(3)));
}

#[test]
fn limit_of_a_recovery_counts_encoded_events() {
    let (_directory, hub) = started();
    trigger(&hub, "a", "e", "1");
    let before = until_published(&hub, "a", 1);
    for _ in 0..9 {
        assert_eq!(hub.publish_as("stored.a", "application/octet-stream", &[0xff; 100_000]), 200);
    }
    until_published(&hub, "a", 10);
    // Of 900,000 bytes, base64 makes 1,200,000.
    let mut client = Client::new(&hub);
    assert!(!recover(&mut client, "a", &json!({ "position": before })).1);
    client.ping();
    let mut client = Client::new(&hub);
    assert!(recover(&mut client, "a", &json!({ "position": before.replace("-1", "-3") })).1);
    (0..7).for_each(|_| drop(client.expect("message")));
}

#[test]
fn events_of_a_batch_for_a_new_durable_channel_stay_in_order() {
    let (_directory, hub) = started();
    let mut client = Client::new(&hub);
    for channel in 0..20 {
        let channel = format!("c-{channel}");
        recover(&mut client, &channel, &json!(true));
        let event = |number: i32| json!({ "name": "e", "channel": channel, "data": number.to_string() });
        let body = json!({ "batch": (0..10).map(event).collect::<Vec<_>>() }).to_string();
        assert_eq!(api(&hub, "POST", "/apps/3/batch_events", "", &body), (200, json!({})));
        for number in 0..10 {
            let (data, position) = next(&mut client);
            assert_eq!((data, sequence(&position)), (json!(number), number + 1));
        }
    }
}

#[test]
fn app_creates_a_limited_number_of_streams_and_a_rejected_event_reaches_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let topics = ["stored.d.>", "other.d.>"].map(str::to_owned);
    let streams = StreamOptions::in_directory(directory.path())
        .with_durable_topics(topics)
        .with_creation_limits(CreationLimits::new(3, 100));
    let other = PusherApp::new("4", "other-key", super::client::SECRET).with_topics("other");
    let apps = policy([app().with_topics("stored"), other]);
    let hub = TestHub::built(Hub::builder().config(apps).streams(streams));
    let send = |app: u8, channels: &[&str], data: &str| {
        let body = json!({ "name": "e", "channels": channels, "data": data }).to_string();
        let key = if app == 3 { super::client::KEY } else { "other-key" };
        let target = super::client::signed_target_of(key, "POST", &format!("/apps/{app}/events"), "", &body);
        request(&hub, "POST", &target, &body)
    };
    let mut client = Client::new(&hub);
    for channel in ["d.1", "plain"] {
        client.subscribe(channel);
    }
    assert_eq!(send(3, &["d.1", "d.2", "plain"], "1"), (200, json!({})));
    let (status, answer) = send(3, &["d.1", "d.3", "d.4", "d.5", "plain"], "2");
    assert_eq!(status, 429, "{answer}");
    assert!(answer.to_string().contains("streams.max_created_per_client"), "{answer}");
    assert_eq!(send(4, &["d.1", "d.2"], "1"), (200, json!({})), "another app");
    assert_eq!(send(3, &["d.1", "plain"], "3"), (200, json!({})));
    let mut received: Vec<(String, Value)> = (0..4).map(|_| client.expect("e")).collect();
    received.sort_by_key(|(channel, data)| (channel.clone(), data.to_string()));
    let expected = [("d.1", 1), ("d.1", 3), ("plain", 1), ("plain", 3)];
    assert_eq!(received, expected.map(|(channel, data)| (channel.to_owned(), json!(data))));
}
