//! Durable topics at a cluster: many nodes, one order.

use std::thread;

use sinews_testkit::{Frame, Reply, assert_fields};

use super::super::super::topics::publish;
use super::super::patterns;
use super::*;

const TOPICS: [&str; 2] = ["--streams-durable-topics", "chat.>"];

fn posted_to(node: &Running, topic: &str, text: &str) -> Value {
    let answer = post(node, &format!("/topics/{topic}"), text);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    body(&answer)
}

/// The expected messages after [`publish`] to a new topic: sequence and the number before it.
fn numbers(sequences: std::ops::Range<u64>) -> Vec<(u64, u64, Value)> {
    sequences.map(|sequence| (1, sequence, json!(sequence - 1))).collect()
}

#[test]
fn publications_at_one_node_reach_all_nodes_in_one_order() {
    let cluster = Cluster::new("chat.room", 1);
    let nodes = [cluster.node("", &TOPICS), cluster.node("", &[&TOPICS[..], &["--threads", "2"]].concat())];
    let mut by_name = nodes.each_ref().map(|node| Client::at(node, "/ws"));
    for client in &mut by_name {
        let ack = client.subscribe_with("chat.room", &json!({}));
        let expected = json!({ "op": "ack", "id": "s", "topic": "chat.room", "epoch": 1, "seq": 0, "replayed": 0,
            "complete": true });
        assert_eq!(ack, expected);
    }
    let mut by_pattern = nodes.each_ref().map(|node| Client::at(node, "/ws"));
    by_pattern.iter_mut().for_each(|client| drop(client.subscribe_with("chat.*", &json!({}))));
    let mut raw = nodes.each_ref().map(|node| node.websocket("/topics/chat.room"));

    let mut client = Client::at(&nodes[0], "/ws");
    let ack = client.request(json!({ "op": "publish", "id": 1, "topic": "chat.room", "data": "one" }));
    assert_eq!(ack, json!({ "op": "ack", "id": 1, "epoch": 1, "seq": 1 }));
    let answer = posted_to(&nodes[1], "chat.room", "two");
    assert_eq!(answer, json!({ "topic": "chat.room", "epoch": 1, "seq": 2 }));
    let ack = client.request(json!({ "op": "append", "id": 2, "stream": "chat.room", "data": { "n": 3 } }));
    assert_eq!(ack["offset"], 2);
    raw[1].send(&Frame::binary(b"four"));
    let expected = [json!("one"), json!("two"), json!({ "n": 3 }), json!("Zm91cg==")];
    let expected: Vec<_> = (1_u64..).zip(expected).map(|(sequence, held)| (1, sequence, held)).collect();
    for client in by_name.iter_mut().chain(&mut by_pattern) {
        assert_eq!(client.messages(4), expected);
    }
    for socket in &mut raw {
        let received: Vec<Reply> = (0..4).map(|_| socket.next().unwrap()).collect();
        assert_eq!(received[..3], ["one", "two", "{\"n\":3}"].map(Reply::text));
        assert!(
            matches!(&received[3], Reply::Message(sinews_proto::Kind::Binary, bytes) if bytes == b"four")
        );
    }
}

#[test]
fn resuming_at_a_late_node_replays_broker_records_once() {
    let cluster = Cluster::new("chat.room", 1);
    let first = cluster.node("", &TOPICS);
    let mut client = Client::at(&first, "/ws");
    client.subscribe_with("chat.room", &json!({}));
    publish(&first, "chat.room", 0..50);
    assert_eq!(client.messages(30), numbers(1..31));
    first.signal("KILL");

    let second = cluster.node("", &TOPICS);
    let mut resumed = Client::at(&second, "/ws");
    let ack = resumed.subscribe_with("chat.room", &json!({ "from": { "epoch": 1, "seq": 30 } }));
    assert_fields(&ack, json!({"seq": 50, "replayed": 20, "complete": true}));
    let mut last = Client::at(&second, "/ws");
    last.subscribe_with("chat.room", &json!({ "last": 5 }));
    publish(&second, "chat.room", 50..60);
    assert_eq!(resumed.messages(30), numbers(31..61));
    assert_eq!(last.messages(15), numbers(46..61));
    let kept = last.request(json!({ "op": "history", "id": 7, "topic": "chat.room", "last": 55 }));
    let messages = kept["messages"].as_array().unwrap();
    assert_eq!((&kept["op"], &kept["id"], messages.len()), (&json!("history"), &json!(7), 55), "{kept}");
    assert_eq!((&messages[0]["seq"], &messages[54]["seq"]), (&json!(6), &json!(60)));
    // A client without a position, and a client of another epoch.
    let ack =
        Client::at(&second, "/ws").subscribe_with("chat.room", &json!({ "from": { "epoch": 1, "seq": 0 } }));
    assert_fields(&ack, json!({"replayed": 60, "complete": true}));
    for from in [json!({ "epoch": 2, "seq": 60 }), json!({ "epoch": 1, "seq": 61 })] {
        let ack = Client::at(&second, "/ws").subscribe_with("chat.room", &json!({ "from": from }));
        assert_fields(&ack, json!({"replayed": 60, "complete": false}));
    }
}

#[test]
fn acknowledged_position_of_one_node_resumes_at_another() {
    let cluster = Cluster::new("chat.room", 1);
    let nodes = [cluster.node("", &TOPICS), cluster.node("", &TOPICS)];
    let mut first = Client::at(&nodes[0], "/ws");
    for number in 0..20_u64 {
        let ack = first.request(json!({ "op": "publish", "id": 1, "topic": "chat.room", "data": number }));
        assert_fields(&ack, json!({"epoch": 1, "seq": number + 1}));
        // The other node may not have read it yet.
        let mut second = Client::at(&nodes[1], "/ws");
        let ack = second.subscribe_with("chat.room", &json!({ "from": { "epoch": 1, "seq": number + 1 } }));
        assert_fields(&ack, json!({"seq": number + 1, "replayed": 0, "complete": true}));
    }
}

#[test]
fn history_continues_with_publications_of_other_nodes_without_a_gap() {
    const EACH: u64 = 1_000;
    let cluster = Cluster::new("chat.room", 1);
    let limits = ["--websocket-high-water", "4k", "--threads", "2"];
    let nodes = [(); 2].map(|()| cluster.node("", &TOPICS));
    thread::scope(|scope| {
        let publishing = [0, EACH].map(|first| {
            let node = &nodes[usize::from(first > 0)];
            scope.spawn(move || publish(node, "chat.room", first..first + EACH))
        });
        // Each client joins at another node during publication.
        let late = [(); 3].map(|()| {
            let node = cluster.node("", &[&TOPICS[..], &limits].concat());
            scope.spawn(move || {
                let mut late = Client::at(&node, "/ws");
                late.subscribe_with("chat.room", &json!({ "from": { "epoch": 1, "seq": 0 } }));
                late.messages(2 * EACH as usize)
            })
        });
        publishing.into_iter().for_each(|thread| thread.join().unwrap());
        let received = late.map(|late| late.join().unwrap());
        assert!(received.iter().all(|one| *one == received[0]), "all clients received the same messages");
        for (at, (_, sequence, _)) in (1..).zip(&received[0]) {
            assert_eq!(*sequence, at, "each message once, in order");
        }
    });
}

#[test]
fn killed_node_resumes_its_copy_and_delivers_each_message_once() {
    let cluster = Cluster::new("chat.room", 1);
    let directory = Directory::new();
    let path = directory.path("copy");
    let other = cluster.node("", &TOPICS);
    let arguments = [&TOPICS[..], &["--streams", &path]].concat();
    let mut received = 0;
    for round in 0..3 {
        let node = cluster.node("", &arguments);
        let mut pattern = Client::at(&node, "/ws");
        pattern.subscribe_with("chat.*", &json!({}));
        let mut resumed = Client::at(&node, "/ws");
        let ack = resumed.subscribe_with("chat.room", &json!({ "from": { "epoch": 1, "seq": received } }));
        assert_eq!(ack["complete"], true, "{ack}");
        publish(&other, "chat.room", round * 40..round * 40 + 20);
        let end = round * 40 + 20;
        assert_eq!(resumed.messages((end - received) as usize), numbers(received + 1..end + 1));
        received = end;
        // It receives messages from the end of the copy on.
        let mut last = 0;
        while last < end {
            let next = pattern.messages(1)[0].1;
            assert!(last == 0 || next == last + 1, "{next} behind {last}");
            last = next;
        }
        node.signal("KILL");
        assert!(!node.wait().0.success());
        publish(&other, "chat.room", round * 40 + 20..round * 40 + 40);
    }
}

#[test]
fn topics_fail_while_the_cluster_is_down_and_recover() {
    let cluster = Cluster::new("chat.room", 1);
    cluster.mock.broker_down(-1).expect("the broker exists");
    let node = cluster.node("", &TOPICS);
    let mut raw = node.websocket("/topics/chat.room");
    // They wait for the same answer.
    let requests = [
        json!({ "op": "publish", "id": 1, "topic": "chat.room", "data": "a" }),
        json!({ "op": "publish", "id": 2, "topic": "chat.room", "b64": "aaaa" }),
        json!({ "op": "subscribe", "id": 3, "topic": "chat.room" }),
        json!({ "op": "history", "id": 4, "topic": "chat.room", "last": 1 }),
    ];
    let clients = requests.map(|message| {
        let mut client = Client::at(&node, "/ws");
        client.send_message(&message);
        (client, message["id"].clone())
    });
    let answer = post(&node, "/topics/chat.room", "b");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: "), "{answer}");
    for (mut client, id) in clients {
        let failed = client.receive_message();
        assert_fields(&failed, json!({"op": "error", "code": 503, "id": id}));
        assert!(failed["error"].as_str().unwrap().contains("chat.room: "), "{failed}");
    }
    let closed = raw.next();
    assert!(matches!(&closed, Some(Reply::Close(Some(1013), _))), "{closed:?}");

    cluster.mock.broker_up(-1).expect("the broker exists");
    until("the topic is available", || post(&node, "/topics/chat.room", "c").starts_with("HTTP/1.1 200 "));
    // It may come from the history or be delivered live.
    let mut client = Client::at(&node, "/ws");
    client.subscribe_with("chat.room", &json!({ "last": 1 }));
    assert_eq!(client.messages(1)[0].2, "c");
}

#[test]
fn stream_with_several_partitions_backs_no_topic() {
    let cluster = Cluster::new("chat.two", 2);
    let node = cluster.node("", &TOPICS);
    let answer = post(&node, "/topics/chat.two", "x");
    assert!(answer.starts_with("HTTP/1.1 409 ") && answer.contains("2 partitions"), "{answer}");
    let mut client = Client::at(&node, "/ws");
    for op in ["subscribe", "history", "publish"] {
        let mut message = json!({ "op": op, "id": op, "topic": "chat.two" });
        match op {
            "history" => message["last"] = json!(1),
            "publish" => message["data"] = json!(1),
            _ => {}
        }
        let error = client.request(message);
        assert_fields(&error, json!({"op": "error", "code": 409, "id": op}));
    }
}

#[test]
fn pattern_alone_receives_topics_of_another_node() {
    let cluster = Cluster::new("other", 1);
    patterns::pattern_alone_receives_topics_of_another_node(&cluster.url("prefix=p."), "chat", |topic| {
        cluster.mock.create_topic(&format!("p.{topic}"), 1, 1).expect("the topic is new");
    });
}

#[test]
fn pattern_beyond_the_limit_is_rejected() {
    let cluster = Cluster::new("other", 1);
    patterns::pattern_beyond_the_limit_is_rejected(&cluster.url(""), "chat", |topic| {
        cluster.mock.create_topic(topic, 1, 1).expect("the topic is new");
    });
}

#[test]
fn pattern_of_an_unavailable_broker_is_rejected() {
    let cluster = Cluster::new("chat.room", 1);
    cluster.mock.broker_down(-1).expect("the broker exists");
    let node = cluster.node("", &TOPICS);
    let mut client = Client::at(&node, "/ws");
    let error = client.request(json!({ "op": "subscribe", "id": 1, "topic": "chat.*" }));
    assert_fields(&error, json!({"op": "error", "id": 1, "code": 503}));
    let closed = node.websocket("/topics/chat.*").next();
    assert!(matches!(&closed, Some(Reply::Close(Some(1013), _))), "{closed:?}");
    // A pattern that matches no durable topic needs no broker.
    client.subscribe_with("other.*", &json!({}));
}
