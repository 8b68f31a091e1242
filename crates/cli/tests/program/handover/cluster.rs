//! Handovers of a node of a cluster.

use super::*;
use crate::cluster::broker::{FakeBroker, WireProtocol};
use crate::cluster::{at_bus, at_bus_in_file};
use crate::support::Running;

fn subscriber(address: SocketAddr, topics: &[&str]) -> Subscriber {
    subscriber_elsewhere(address, topics, "")
}

/// A subscriber of another process than the predecessor, which accepts connections for a moment, and closes them later.
pub(super) fn subscriber_elsewhere(address: SocketAddr, topics: &[&str], predecessor: &str) -> Subscriber {
    loop {
        if let Some(subscriber) = try_subscribe(address, topics)
            && subscriber.process != predecessor
        {
            return subscriber;
        }
    }
}

pub(super) struct Subscriber {
    pub(super) socket: Socket,
    /// The part of the connection's id that names the process.
    process: String,
}

fn try_subscribe(address: SocketAddr, topics: &[&str]) -> Option<Subscriber> {
    let mut socket = Socket::open(address, "/ws");
    let welcome = socket.receive_message()?;
    assert_eq!(welcome["op"], "welcome");
    let (process, _) = welcome["connection"].as_str().unwrap().split_once('-').unwrap();
    for topic in topics {
        let ack = socket.request(&json!({ "op": "subscribe", "id": 1, "topic": topic }))?;
        assert_eq!(ack["op"], "ack", "{ack}");
    }
    Some(Subscriber { socket, process: process.to_owned() })
}

pub(super) fn publish(address: SocketAddr, topic: &str, text: &str) {
    let answer = request(address, &format!("POST /topics/{topic} HTTP/1.1"), text);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn publications_of_all_nodes_arrive_once_during_a_handover() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let url = broker.url();
    let other = Running::serve(&[&at_bus(&url)[..], &["--history", "kept.>=1000"]].concat());
    let mut service = Service::start("cluster", &at_bus_in_file(&url, "a"));
    let address = service.address;
    let topics = ["t", "kept.t"];
    let mut elsewhere = subscriber(other.address, &topics);
    // It subscribes at the predecessor, which publishes for the successor from then on.
    let old = subscriber(address, &topics);
    broker.wait_for("sinews.t.t", 2);
    service.restart();
    // The broker has its subscriptions in their order. The predecessor may still have those of its client.
    let mut new = subscriber_elsewhere(address, &["t", "kept.t", "last"], &old.process);
    broker.wait_for("sinews.t.last", 1);
    for number in 0..20 {
        for topic in topics {
            publish(address, topic, &format!("own {number}"));
            publish(other.address, topic, &format!("other {number}"));
        }
    }
    for subscriber in [&mut new, &mut elsewhere] {
        let received: Vec<String> = (0..80)
            .map(|_| {
                let message = subscriber.socket.receive_message().unwrap();
                assert_eq!(message["op"], "message", "{message}");
                format!("{} {}", message["topic"], message["data"])
            })
            .collect();
        let different: BTreeSet<&String> = received.iter().collect();
        assert_eq!(different.len(), 80, "{received:?}");
    }
    // The predecessor waits for the end of the connection.
    drop(old);
    service.old_one_ends();
    for subscriber in [&mut new, &mut elsewhere] {
        let asked = json!({ "op": "presence", "topic": "t" });
        until("two subscribers", || subscriber.socket.request(&asked).unwrap()["subscribers"] == 2);
    }
}

/// The retained messages of a topic, read until this many are there.
pub(super) fn history(address: SocketAddr, topic: &str, count: usize) -> Vec<String> {
    let mut socket = Socket::open(address, "/ws");
    loop {
        let request = json!({ "op": "history", "id": 1, "topic": topic, "last": 1_000 });
        let answer = socket.request(&request).expect("the process serves");
        let messages = answer["messages"].as_array().unwrap_or_else(|| panic!("{answer}"));
        if messages.len() >= count {
            return messages.iter().map(|message| message["data"].as_str().unwrap().to_owned()).collect();
        }
    }
}

/// The login of the successor is late, and then early: the other node publishes before the successor has the history.
#[test]
fn publications_of_another_node_are_retained_during_handovers() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let url = broker.url();
    let other = Running::serve(&[&at_bus(&url)[..], &["--history", "kept.>=100000"]].concat());
    let mut service = Service::start("cluster-history", &at_bus_in_file(&url, "a"));
    let address = service.address;
    broker.wait_for("sinews.t.kept.>", 2);
    let mut published: Vec<String> = Vec::new();
    let mut publish_next = || {
        let text = published.len().to_string();
        publish(other.address, "kept.t", &text);
        published.push(text);
        published.len()
    };
    (0..5).for_each(|_| _ = publish_next());
    broker.hold_logins();
    service.signal(service.current(), "USR2");
    broker.wait_for_logins(1);
    (0..5).for_each(|_| _ = publish_next());
    broker.release_logins();
    service.successor_serves();
    service.old_one_ends();
    (0..5).for_each(|_| _ = publish_next());
    service.signal(service.current(), "USR2");
    let mut count = 0;
    while !service.has_successor() {
        // An answer has at most 1,000 messages.
        match count < 900 {
            true => count = publish_next(),
            false => std::thread::park_timeout(Duration::from_millis(5)),
        }
    }
    (0..5).for_each(|_| _ = publish_next());
    service.old_one_ends();
    for process in [address, other.address] {
        assert_eq!(history(process, "kept.t", published.len()), published);
    }
}
