//! Tests with a mock cluster that the test controls.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use sinews_testkit::assert_fields;

use super::super::{ANY, Binary, records};
use super::*;
use crate::config::Directory;
use crate::support::{fails, program};

mod topics;

pub(crate) struct Cluster {
    mock: MockCluster<'static, DefaultProducerContext>,
}

impl Cluster {
    pub(crate) fn new(topic: &str, partitions: i32) -> Self {
        let mock = MockCluster::new(1).expect("loopback has ports");
        mock.create_topic(topic, partitions, 1).expect("the topic is new");
        Self { mock }
    }

    pub(crate) fn url(&self, settings: &str) -> String {
        let hosts = self.mock.bootstrap_servers();
        // Shorter retries than the defaults, to make tests fast.
        format!("kafka://{hosts}?reconnect.backoff.max.ms=200&retry.backoff.ms=20&{settings}")
    }

    fn node(&self, settings: &str, arguments: &[&str]) -> Running {
        node(&self.url(settings), arguments)
    }
}

#[test]
fn publications_by_each_protocol_reach_all_nodes_in_kafkas_order() {
    let cluster = Cluster::new("orders", 1);
    let nodes = [cluster.node("", &[]), cluster.node("", &["--threads", "2"])];
    assert_eq!(posted(&nodes[0], "orders", "posted"), 0);
    let mut json = Client::at(&nodes[1], "/ws");
    let ack = json.request(json!({"op": "append", "id": 1, "stream": "orders", "data": "said"}));
    assert_eq!(
        ack,
        json!({"op": "ack", "id": 1, "stream": "orders", "partition": 0, "offset": 1, "count": 1})
    );
    let mut plain = Binary::plain_at(nodes[0].plain(), "orders");
    plain.send_message(1, 3, ANY, 9, &records(&[b"plain", b"twice"]));
    let published = plain.receive_message();
    assert_eq!((published.op, published.id, published.number(0)), (129, 9, 2));
    for ack in ["memory", "disk", "broker"] {
        let answer = post(&nodes[1], &format!("/streams/orders?ack={ack}"), ack);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    for node in &nodes {
        // An acknowledged record is readable at once at any node.
        let two = got(node, "/streams/orders?max=2");
        assert_eq!(two, [(0, "posted".to_owned()), (1, "said".to_owned())]);
        let last = got(node, "/streams/orders?from=4");
        assert_eq!(last.iter().map(|(_, text)| &**text).collect::<Vec<_>>(), ["memory", "disk", "broker"]);
        let mut reader = Binary::plain_at(node.plain(), "orders");
        reader.subscribe(0, 0, "");
        let all = reader.at_least(7);
        assert_eq!(all.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(all[2..4].iter().map(|(_, value)| &value[..]).collect::<Vec<_>>(), [b"plain", b"twice"]);
    }
}

#[test]
fn late_node_reads_older_records_and_follows() {
    let cluster = Cluster::new("news", 1);
    let first = cluster.node("", &[]);
    for number in 0..20 {
        assert_eq!(posted(&first, "news", &number.to_string()), number);
    }
    let second = cluster.node("", &[]);
    let mut earliest = Reader::from(&second, "news", &json!("earliest"));
    let mut middle = Reader::from(&second, "news", &json!({"offset": 15}));
    let mut latest = Reader::from(&second, "news", &json!("latest"));
    for number in 20..30 {
        // Publications at both nodes arrive in Kafka's order.
        let node = if number % 2 == 0 { &first } else { &second };
        assert_eq!(posted(node, "news", &number.to_string()), number);
    }
    let expected = |from: u64| (from..30).map(|it| (it, it.to_string())).collect::<Vec<_>>();
    assert_eq!(earliest.next(30), expected(0));
    assert_eq!(middle.next(15), expected(15));
    assert_eq!(latest.next(10), expected(20));
    // Resume at another node, which may have read fewer records.
    let mut resumed = Reader::from(&first, "news", &json!({"offset": 30}));
    assert_eq!(posted(&second, "news", "30"), 30);
    assert_eq!(resumed.next(1), [(30, "30".to_owned())]);

    let mut client = Client::at(&second, "/streams/news");
    let read = client.request(json!({"op": "read", "id": 5, "offset": 3, "max": 1}));
    assert_fields(&read, json!({"op": "records", "id": 5}));
    assert_eq!(read["records"][0]["data"], "3");
    let described = client.request(json!({"op": "stream", "id": 6}));
    assert_eq!(described["partitions"][0]["earliest"], 0);
    let old = client.request(json!({"op": "consume", "id": 7, "from": {"time": 1}}));
    assert_fields(&old, json!({"op": "error", "code": 410}));
}

#[test]
fn group_resumes_at_another_node() {
    let cluster = Cluster::new("work", 2);
    let nodes = [cluster.node("", &[]), cluster.node("", &[])];
    for number in 0..4 {
        posted(&nodes[0], "work?partition=0", &number.to_string());
    }
    let mut first = Client::at(&nodes[0], "/streams/work");
    let commit = json!({"op": "commit", "id": 1, "group": "g", "partition": 0, "offset": 3});
    assert_eq!(first.request(commit), json!({"op": "ack", "id": 1, "stream": "work", "partition": 0}));
    let mut second = Client::at(&nodes[1], "/streams/work");
    second.send_message(&json!({"op": "consume", "id": 2, "group": "g"}));
    assert_eq!(second.receive_message()["partitions"], json!([]));
    let assigned = second.receive_message();
    assert_eq!(assigned["op"], "assigned");
    let places = assigned["partitions"].as_array().unwrap();
    let of = |partition: u64| places.iter().find(|place| place["partition"] == partition).unwrap();
    assert_eq!((&of(0)["offset"], &of(1)["offset"]), (&json!(3), &json!(0)));
    assert_eq!(second.records(1), [(0, 3, json!("3"))]);
}

#[test]
fn node_reports_a_cluster_outage_and_loses_no_acknowledged_record() {
    let cluster = Cluster::new("down", 1);
    let node = cluster.node("queue.buffering.max.messages=50", &[]);
    assert_eq!(posted(&node, "down", "before"), 0);
    until("it is ready", || node.is_ready());
    let mut reader = Reader::from(&node, "down", &json!("earliest"));

    cluster.mock.broker_down(-1).expect("the broker exists");
    let mut socket = Client::at(&node, "/streams/down");
    for number in 0..200 {
        socket.send_message(&json!({"op": "append", "id": number, "data": number.to_string()}));
    }
    until("the queue is full", || node.get("/metrics").lines().any(|line| line == "sinews_store_waiting 50"));
    let refused = post(&node, "/streams/down", "refused");
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("Retry-After: 1"), "{refused}");
    until("it is not ready", || {
        let answer = node.get("/readyz");
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("the broker of the streams: ")
    });
    assert!(node.get("/healthz").starts_with("HTTP/1.1 200 "), "a restart would not help");
    assert!(node.get("/metrics").contains("\nsinews_store_ready 0\n"));

    cluster.mock.broker_up(-1).expect("the broker exists");
    let mut by_offset = BTreeMap::from([(0, "before".to_owned())]);
    for number in 0..200 {
        let ack = socket.receive_message();
        assert_fields(&ack, json!({"op": "ack", "id": number}));
        by_offset.insert(ack["offset"].as_u64().unwrap(), number.to_string());
    }
    assert_eq!(reader.next(201), by_offset.into_iter().collect::<Vec<_>>());
    until("it is ready again", || node.is_ready());
    assert!(node.get("/metrics").contains("\nsinews_store_ready 1\n"));
    assert_eq!(posted(&node, "down", "after"), 201);
}

#[test]
fn unavailable_stream_is_reported_and_opens_later() {
    let cluster = Cluster::new("late", 1);
    cluster.mock.broker_down(-1).expect("the broker exists");
    let node = cluster.node("", &[]);
    let mut socket = Client::at(&node, "/ws");
    socket.send_message(&json!({"op": "append", "id": 1, "stream": "late", "data": "a"}));
    socket.send_message(&json!({"op": "ping", "id": 2}));
    let failed = socket.receive_message();
    assert_fields(&failed, json!({"op": "error", "id": 1}));
    assert_eq!(failed["code"], 503, "{failed}");
    assert_eq!(socket.receive_message()["op"], "pong", "the next message is processed");
    let answer = post(&node, "/streams/late", "b");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: "), "{answer}");

    cluster.mock.broker_up(-1).expect("the broker exists");
    until("the stream is available", || post(&node, "/streams/late", "c").starts_with("HTTP/1.1 200 "));
}

#[test]
fn shutdown_waits_for_outstanding_acknowledgements() {
    let cluster = Cluster::new("end", 1);
    let node = cluster.node("linger.ms=300", &[]);
    let mut socket = Client::at(&node, "/streams/end");
    assert_eq!(socket.request(json!({"op": "append", "id": 1, "data": "0"}))["op"], "ack");
    for number in 1..100 {
        socket.send_message(&json!({"op": "append", "data": number.to_string()}));
    }
    // The server has processed the earlier messages.
    assert_eq!(socket.request(json!({"op": "ping"}))["op"], "pong");
    node.signal("TERM");
    let (status, log) = node.wait();
    assert!(status.success(), "{log}");
    let other = cluster.node("", &[]);
    let all = got(&other, "/streams/end?max=1000");
    assert_eq!(all, (0..100).map(|number| (number, number.to_string())).collect::<Vec<_>>());
}

#[test]
fn given_directory_is_reused_and_temporary_directory_is_removed() {
    let cluster = Cluster::new("kept", 1);
    let directory = Directory::new();
    let path = directory.path("copy");
    for round in 0..2 {
        let node = cluster.node("", &["--streams", &path]);
        assert_eq!(posted(&node, "kept", &round.to_string()), round);
        let mut reader = Reader::from(&node, "kept", &json!({"offset": 0}));
        assert_eq!(reader.next(round as usize + 1).len(), round as usize + 1);
        node.signal("TERM");
        assert!(node.wait().0.success());
    }
    let refused = fails(program().args(["serve", "--listen", "127.0.0.1:0", "--streams", &path]));
    assert!(refused.contains("has a copy of the streams of kafka://"), "{refused}");

    let own = directory.path("tmp");
    std::fs::create_dir(&own).unwrap();
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", &cluster.url("")]).env("TMPDIR", &own);
    let node = Running::start(&mut command);
    assert_eq!(posted(&node, "kept", "2"), 2);
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 1);
    node.signal("TERM");
    assert!(node.wait().0.success());
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
}

#[test]
fn copy_moves_streams_to_the_cluster_and_clients_resume() {
    let cluster = Cluster::new("orders", 2);
    let directory = Directory::new();
    let path = directory.path("streams");
    let before = Running::serve(&["--streams", &path, "--streams-partitions", "2"]);
    for number in 0..50 {
        posted(&before, "orders?partition=1", &number.to_string());
    }
    let mut client = Client::at(&before, "/streams/orders");
    let commit = json!({"op": "commit", "id": 1, "group": "g", "partition": 1, "offset": 30});
    assert_eq!(client.request(commit)["op"], "ack");
    before.signal("TERM");
    assert!(before.wait().0.success());

    let refused =
        fails(program().args(["streams", "copy", "--from", &path, "--store", &cluster.url(""), "none"]));
    assert!(refused.contains("has no stream none"), "{refused}");
    let mut copy = program();
    copy.args(["streams", "copy", "--from", &path, "--store", &cluster.url("")]);
    let output = copy.output().unwrap();
    let message = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{message}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        message,
        "orders/0: 0 records, the offsets are the same\norders/1: 50 records, the offsets are the same\n"
    );
    let again = fails(&mut copy);
    assert!(again.contains("the broker has records of partition 1 already"), "{again}");

    let after = cluster.node("", &[]);
    let mut client = Client::at(&after, "/streams/orders");
    assert_eq!(
        client.request(json!({"op": "consume", "id": 1, "partition": 1, "from": {"offset": 45}}))["op"],
        "ack"
    );
    assert_eq!(posted(&after, "orders?partition=1", "50"), 50);
    let expected = (45..51).map(|number| (1, number, json!(number.to_string()))).collect::<Vec<_>>();
    assert_eq!(client.records(6), expected);
    let mut member = Client::at(&after, "/streams/orders");
    assert_eq!(member.request(json!({"op": "consume", "id": 1, "group": "g"}))["op"], "ack");
    let places = member.receive_message()["partitions"].clone();
    assert!(places.as_array().unwrap().contains(&json!({"partition": 1, "offset": 30})), "{places}");
}
