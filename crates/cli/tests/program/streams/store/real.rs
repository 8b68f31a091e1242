//! Tests with real brokers, which the tests kill and freeze. `cargo xtask brokers` starts them, and passes their
//! addresses and the script that controls them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sinews_testkit::assert_fields;

use super::super::topics::publish;
use super::super::{ANY, Binary, records};
use super::patterns::pattern_alone_receives_topics_of_another_node as pattern_alone_receives;
use super::*;
use crate::api::{KEY, call};
use crate::real_broker as broker;
use broker::{control, unused_name, url};

fn nodes_see_the_same(settings: &str) {
    let stream = unused_name("plain");
    let nodes = [node(&url(settings), &[]), node(&url(settings), &[])];
    let first = posted(&nodes[0], &stream, "0");
    let mut live = Reader::from(&nodes[1], &stream, &json!("earliest"));
    let mut socket = Client::at(&nodes[1], &format!("/streams/{stream}"));
    for number in 1..50 {
        let ack = socket.request(json!({"op": "append", "id": number, "data": number.to_string()}));
        assert_eq!(ack["offset"], first + number, "{ack}");
    }
    let expected: Vec<_> = (0..50).map(|number| (first + number, number.to_string())).collect();
    assert_eq!(live.next(50), expected);
    assert_eq!(got(&nodes[0], &format!("/streams/{stream}")), expected);
    let late = node(&url(settings), &[]);
    assert_eq!(Reader::from(&late, &stream, &json!({"offset": first + 10})).next(40), expected[10..]);

    let commit = json!({"op": "commit", "id": "c", "group": "g", "offset": first + 40});
    assert_eq!(socket.request(commit)["op"], "ack");
    let mut member = Client::at(&late, &format!("/streams/{stream}"));
    member.send_message(&json!({"op": "consume", "id": 1, "group": "g"}));
    assert_eq!(member.receive_message()["op"], "ack");
    assert_eq!(member.receive_message()["partitions"][0]["offset"], first + 40);
    assert_eq!(member.records(10).len(), 10);
}

/// A topic has one order at all nodes, and a client that resumes at another node or joins late receives the rest.
fn topics_are_one_at_all_nodes(settings: &str) {
    let topic = unused_name("chat.room");
    // A topic has one partition, with any number for streams.
    let pattern = ["--streams-durable-topics", "chat.*"];
    let nodes = [(); 2].map(|()| node(&url(settings), &pattern));
    let mut live = nodes.each_ref().map(|node| Client::at(node, "/ws"));
    let acks = live.each_mut().map(|client| client.subscribe_with(&topic, &json!({})));
    assert_eq!(acks[0], acks[1]);
    let (epoch, before) = (acks[0]["epoch"].as_u64().unwrap(), acks[0]["seq"].as_u64().unwrap());
    publish(&nodes[0], &topic, 0..30);
    publish(&nodes[1], &topic, 30..60);
    let all: Vec<_> = (0..60).map(|number| (epoch, before + 1 + number, json!(number))).collect();
    for client in &mut live {
        assert_eq!(client.messages(60), all);
    }
    let late = node(&url(settings), &pattern);
    let mut resumed = Client::at(&late, "/ws");
    let ack = resumed.subscribe_with(&topic, &json!({ "from": { "epoch": epoch, "seq": before + 20 } }));
    assert_fields(&ack, json!({"replayed": 40, "complete": true}));
    assert_eq!(resumed.messages(40), all[20..]);
    let mut earliest = Client::at(&late, "/ws");
    let ack = earliest.subscribe_with(&topic, &json!({ "from": { "epoch": epoch, "seq": 0 } }));
    assert_fields(&ack, json!({"replayed": 60, "complete": true}));
    assert_eq!(earliest.messages(60), all);
}

/// A publication with an idempotency key is stored once, though it is repeated at another node, and at a node that starts
/// later.
fn publications_with_an_idempotency_key_are_stored_once(settings: &str) {
    let topic = unused_name("chat.room");
    let start = || node(&url(settings), &["--streams-durable-topics", "chat.*", "--api-key", KEY]);
    let publish = |node: &Running, data: &str, key: &str| {
        call(node, "POST /publish", &json!({"topic": topic, "data": data, "idempotency_key": key}))
    };
    let nodes = [start(), start()];
    let first = publish(&nodes[0], "one", "a");
    assert_eq!(first.get("repeated"), None);
    let second = publish(&nodes[1], "two", "b");
    assert_eq!(second["seq"].as_u64(), first["seq"].as_u64().map(|seq| seq + 1));
    let repeated = |original: &Value| {
        let mut repeated = original.clone();
        repeated["repeated"] = json!(true);
        repeated
    };
    let late = start();
    for node in [&nodes[0], &nodes[1], &late] {
        assert_eq!(publish(node, "again", "a"), repeated(&first));
        assert_eq!(publish(node, "again", "b"), repeated(&second));
    }
    let third = publish(&late, "three", "c");
    assert_eq!(third["seq"].as_u64(), first["seq"].as_u64().map(|seq| seq + 2), "nothing else is stored");
}

fn pattern_alone_receives_topics_of_another_node(settings: &str) {
    pattern_alone_receives(&url(settings), &unused_name("pattern"), |_| {});
}

#[cfg(any(feature = "nats", feature = "redis"))]
fn nodes_share_durable_and_ephemeral_topics() {
    let unused = unused_name("both");
    let cluster = url(&format!("prefix={unused}"));
    clustered::nodes_share_durable_and_ephemeral_topics(&url(""), &cluster, &unused);
}

/// Records that await their acknowledgement on the connection of the long test.
const WINDOW: u32 = 100;

/// Publishes through a server while the broker is killed, restarted, frozen and resumed. Each acknowledged record
/// exists at its offset for a reader at another server. `exactly` requires that there are no duplicates either.
fn nothing_acknowledged_is_lost(settings: &str, exactly: bool) {
    let stream = unused_name("hard");
    let (writer, reader) = (node(&url(settings), &[]), node(&url(settings), &[]));
    let first = posted(&writer, &stream, "first");
    let mut seen = Binary::plain_at(reader.plain(), &stream);
    seen.subscribe(2, first, "");
    // The record is older than this node's log; from here on no query to the broker can fail.
    let mut all = seen.records(1);
    let is_over = AtomicBool::new(false);
    let (acknowledged, sent) = thread::scope(|scope| {
        let publishing = scope.spawn(|| publish_until(&is_over, &writer, &stream));
        control("kill");
        until("the outage is detected", || !writer.is_ready());
        control("up");
        until("it is ready again", || writer.is_ready());
        control("stop");
        until("the outage is detected", || !writer.is_ready());
        control("cont");
        until("it is ready once more", || writer.is_ready());
        is_over.store(true, Ordering::Relaxed);
        publishing.join().expect("the server serves")
    });
    let last = posted(&writer, &stream, "last");
    while all.last().is_none_or(|(offset, _)| *offset < last) {
        all.extend(seen.receive_message().records());
    }
    let by_offset: BTreeMap<u64, &[u8]> = all.iter().map(|(offset, value)| (*offset, &value[..])).collect();
    assert_eq!(by_offset.len(), all.len(), "no duplicate offset");
    for (number, offset) in &acknowledged {
        let found = by_offset.get(offset).copied();
        assert_eq!(found, Some(number.to_string().as_bytes()), "acknowledged at {offset}");
    }
    assert!(acknowledged.len() > WINDOW as usize, "{} of {sent}", acknowledged.len());
    if exactly {
        assert_eq!(acknowledged.len(), sent as usize, "all records were acknowledged");
        assert_eq!(all.len(), sent as usize + 2, "no duplicate records");
    }
}

/// Publishes until it is over, and more than a window is acknowledged: the first window may be lost with the broker.
/// Returns the acknowledged numbers with their offsets, and the number of records sent.
fn publish_until(is_over: &AtomicBool, node: &Running, stream: &str) -> (Vec<(u32, u64)>, u32) {
    let mut producer = Binary::plain_at(node.plain(), stream);
    let (mut acknowledged, mut sent, mut answered) = (Vec::new(), 0, 0);
    loop {
        let continues = || !is_over.load(Ordering::Relaxed) || acknowledged.len() <= WINDOW as usize;
        while sent - answered < WINDOW && continues() {
            producer.send_message(1, 3, ANY, sent, &records(&[sent.to_string().as_bytes()]));
            sent += 1;
        }
        if answered == sent {
            return (acknowledged, sent);
        }
        let answer = producer.receive_message();
        if answer.op == 129 {
            acknowledged.push((answer.id, answer.number(0)));
        } else {
            // If the connection to the broker was lost, the result is unknown.
            assert_eq!((answer.op, &answer.body[..2]), (255, &503_u16.to_le_bytes()[..]), "{answer:?}");
            thread::park_timeout(Duration::from_millis(1));
        }
        answered += 1;
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only kafka":
        publications_with_an_idempotency_key_are_stored_once => super::publications_with_an_idempotency_key_are_stored_once("");
        pattern_alone_receives_topics_of_another_node => super::pattern_alone_receives_topics_of_another_node("");
        topics_have_one_order_at_all_nodes => super::topics_are_one_at_all_nodes("");
        all_nodes_read_the_same_records => super::nodes_see_the_same("");
        // A single Kafka broker that is killed may store records in flight twice.
        acknowledged_records_survive_broker_failures => super::nothing_acknowledged_is_lost("reconnect.backoff.max.ms=500", false);
    }
}

#[cfg(feature = "nats")]
mod nats {
    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only nats":
        publications_with_an_idempotency_key_are_stored_once => super::publications_with_an_idempotency_key_are_stored_once("partitions=3");
        pattern_alone_receives_topics_of_another_node => super::pattern_alone_receives_topics_of_another_node("partitions=3");
        nodes_share_durable_and_ephemeral_topics => super::nodes_share_durable_and_ephemeral_topics();
        topics_have_one_order_at_all_nodes => super::topics_are_one_at_all_nodes("partitions=3");
        all_nodes_read_the_same_records => super::nodes_see_the_same("");
        acknowledged_records_survive_broker_failures_without_duplicates => super::nothing_acknowledged_is_lost("", true);
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::broker::redis::command;
    use super::{Reader, Running, json, node, post, posted, until, unused_name, url};

    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only redis":
        publications_with_an_idempotency_key_are_stored_once => super::publications_with_an_idempotency_key_are_stored_once("partitions=3");
        pattern_alone_receives_topics_of_another_node => super::pattern_alone_receives_topics_of_another_node("prefix=a*");
        nodes_share_durable_and_ephemeral_topics => super::nodes_share_durable_and_ephemeral_topics();
        topics_have_one_order_at_all_nodes => super::topics_are_one_at_all_nodes("partitions=3");
        all_nodes_read_the_same_records => super::nodes_see_the_same("");
        acknowledged_records_survive_broker_failures => super::nothing_acknowledged_is_lost("", false);
    }

    /// The reason of `/readyz` when it fails.
    fn reason(node: &Running) -> String {
        until("the node is not ready", || !node.is_ready());
        node.get("/readyz")
    }

    fn assert_refused(answer: &str, why: &str) {
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(why), "{answer}");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn emptied_redis_rejects_appends_and_readyz_has_the_reason() {
        let stream = unused_name("emptied");
        let node = node(&url(""), &[]);
        let first = posted(&node, &stream, "0");
        let mut live = Reader::from(&node, &stream, &json!("earliest"));
        assert_eq!(live.next(1), [(first, "0".to_owned())]);
        posted(&node, &stream, "1");
        assert_eq!(live.next(1), [(first + 1, "1".to_owned())]);
        command("FLUSHALL");
        for _ in 0..3 {
            assert_refused(&post(&node, &format!("/streams/{stream}"), "unseen"), "recreated");
        }
        let why = reason(&node);
        assert!(why.contains("recreated") && why.contains(&stream), "{why}");
        // Another stream starts empty.
        posted(&node, &unused_name("other"), "0");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn readyz_is_503_while_redis_has_no_memory_for_any_append() {
        let stream = unused_name("full");
        let node = node(&url("failure.timeout.ms=100"), &[]);
        posted(&node, &stream, "0");
        until("the node is ready", || node.is_ready());
        command("CONFIG SET maxmemory 1");
        until("the reason is reported", || {
            assert_refused(&post(&node, &format!("/streams/{stream}"), "refused"), "maxmemory");
            !node.is_ready()
        });
        let why = reason(&node);
        assert!(why.contains("every append fails") && why.contains("maxmemory"), "{why}");
        command("CONFIG SET maxmemory 0");
        until("the node is ready again", || node.is_ready());
        posted(&node, &stream, "1");
    }
}
