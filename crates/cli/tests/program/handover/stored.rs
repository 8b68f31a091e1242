//! Handovers of a node whose histories and keys are in a topic store, the broker that `cargo xtask brokers` has started.

use super::cluster::{history, publish, subscriber_elsewhere};
use super::keys::{open_after_restart, request_once};
use super::*;
use crate::real_broker::{unused_name, url};
use crate::support::Running;

const TOPIC: &str = "kept.t";

/// The messages that a client gets, up to one with this text or the end of its connection.
fn messages_until(socket: &mut Socket, last: &str) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(message) = socket.receive_message() {
        if message["op"] == "message" {
            let is_last = message["data"] == last;
            messages.push(message);
            if is_last {
                break;
            }
        }
    }
    messages
}

fn texts(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["data"].as_str().unwrap()).collect()
}

fn put(address: SocketAddr, key: &str, query: &str, lines: &str) -> (u16, Value) {
    request_once(address, &format!("PUT /topics/t/keys/{key}{query} HTTP/1.1{lines}"), "1")
}

fn subscription_to_keys() -> Value {
    json!({ "op": "subscribe", "id": 2, "topic": "t", "keys": true })
}

/// Writes two keys; returns a snapshot of them.
fn write_keys(address: SocketAddr) -> Value {
    for key in ["a", "b"] {
        assert_eq!(put(address, key, "?ttl=3600000", "").0, 200);
    }
    let mut reader = Socket::open(address, "/ws");
    assert_eq!(reader.request(&subscription_to_keys()).unwrap()["op"], "ack");
    loop {
        let message = reader.receive_message().unwrap();
        if message["op"] == "keys" {
            assert_eq!(message["set"].as_array().unwrap().len(), 2, "{message}");
            return message;
        }
    }
}

/// Keys, versions and conditions are the same at the successor and at the other node.
fn check_keys(address: SocketAddr, other: SocketAddr, snapshot: &Value) {
    let mut resume = subscription_to_keys();
    resume["from"] = json!({ "epoch": snapshot["epoch"], "seq": snapshot["seq"] });
    let (mut reader, ack) = open_after_restart(address, &resume);
    assert_eq!(ack["recovered"], true, "{ack}");
    for node in [address, other] {
        assert_eq!(put(node, "a", "", "\r\nIf-None-Match: *").0, 412, "the key is there");
    }
    assert_eq!(put(other, "c", "", "\r\nIf-None-Match: *").0, 200);
    let update = reader.receive_message().unwrap();
    assert_eq!((&update["op"], &update["set"][0]["key"]), (&json!("keys"), &json!("c")), "{update}");
    assert!(update["seq"].as_u64() > snapshot["seq"].as_u64(), "{update}");
}

/// Replaces the process while texts are published at both nodes; returns how many at each. The predecessor closes its client,
/// whose messages are added.
fn restart_under_load(
    service: &mut Service,
    other: SocketAddr,
    old: &mut Socket,
    received: &mut Vec<Value>,
) -> [usize; 2] {
    let (address, done) = (service.address, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let publishers = [("own", address), ("other", other)].map(|(name, node)| {
            let done = &done;
            scope.spawn(move || {
                let texts = (0..).map(|number| format!("{name} {number}"));
                let published = |text: &String| post(node, TOPIC, text);
                texts.inspect(published).take_while(|_| !done.load(Ordering::SeqCst)).count() + 1
            })
        });
        service.restart();
        received.extend(messages_until(old, ""));
        done.store(true, Ordering::SeqCst);
        publishers.map(|publisher| publisher.join().unwrap())
    })
}

fn successor_continues_histories_and_keys() {
    let url = url(&format!("prefix={}", unused_name("restart")));
    let other = Running::serve(&["--cluster", &url, "--history", "kept.>=100000"]);
    let mut service = Service::start("stored", &format!("[cluster]\nurl = \"{url}\""));
    let address = service.address;
    for node in [address, other.address] {
        until("it is ready", || request(node, "GET /readyz HTTP/1.1", "").starts_with("HTTP/1.1 200 "));
    }
    let mut elsewhere = subscriber_elsewhere(other.address, &[TOPIC], "").socket;
    let mut old = subscriber_elsewhere(address, &[TOPIC], "").socket;
    let snapshot = write_keys(address);
    (0..10).for_each(|number| publish(address, TOPIC, &format!("before {number}")));
    let mut received = messages_until(&mut old, "before 9");
    let during = restart_under_load(&mut service, other.address, &mut old, &mut received);
    assert!(during.iter().all(|published| *published > 1), "{during:?}");

    let last = received.last().unwrap();
    let resume = json!({
        "op": "subscribe", "id": 3, "topic": TOPIC, "from": { "epoch": last["epoch"], "seq": last["seq"] },
    });
    let (mut new, ack) = open_after_restart(address, &resume);
    assert_eq!(ack["complete"], true, "{ack}");
    (0..10).for_each(|number| publish(address, TOPIC, &format!("after {number}")));
    received.extend(messages_until(&mut new, "after 9"));
    let witnessed = messages_until(&mut elsewhere, "after 9");
    assert_eq!(texts(&received), texts(&witnessed), "one order, without gaps and duplicates");
    let count = 20 + during.iter().sum::<usize>();
    let different: BTreeSet<&str> = texts(&received).into_iter().collect();
    assert_eq!((received.len(), different.len()), (count, count), "{during:?}");
    // An answer has at most 1,000 messages.
    let newest = &texts(&witnessed)[count.saturating_sub(1_000)..];
    for node in [address, other.address] {
        assert_eq!(history(node, TOPIC, newest.len()), newest);
    }
    check_keys(address, other.address, &snapshot);
    service.old_one_ends();
}

#[cfg(feature = "nats")]
mod nats {
    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only nats":
        successor_continues_histories_and_keys => super::successor_continues_histories_and_keys();
    }
}

#[cfg(feature = "redis")]
mod redis {
    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only redis":
        successor_continues_histories_and_keys => super::successor_continues_histories_and_keys();
    }
}
