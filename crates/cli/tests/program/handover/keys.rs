//! Keys of topics over a handover.

use sinews_testkit::until_some;

use super::*;
use crate::cluster::broker::{FakeBroker, WireProtocol};
use crate::support::Running;

/// Sends the request; repeats it while the keys move to the successor.
fn request_json(address: SocketAddr, head: &str, body: &str) -> (u16, Value) {
    until_some("the keys have moved", || {
        Some(request_once(address, head, body)).filter(|(status, _)| *status != 503)
    })
}

fn request_once(address: SocketAddr, head: &str, body: &str) -> (u16, Value) {
    let answer = request(address, &format!("{head} HTTP/1.1"), body);
    let body = answer.split_once("\r\n\r\n").expect("an answer").1;
    (answer[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

fn open(address: SocketAddr) -> Socket {
    let mut socket = Socket::open(address, "/ws");
    assert_eq!(socket.receive_message().unwrap()["op"], "welcome");
    socket
}

/// A client of the successor, and the answer to its first request. The predecessor may have accepted a connection before
/// each of its threads stopped: it closes that connection, and the client connects again.
fn open_after_restart(address: SocketAddr, request: &Value) -> (Socket, Value) {
    loop {
        let mut socket = Socket::open(address, "/ws");
        if let Some(answer) = socket.request(request) {
            return (socket, answer);
        }
    }
}

#[test]
fn keys_survive_a_handover_and_subscribers_continue() {
    let mut service = Service::start("keys", "threads = 2");
    let address = service.address;
    let put = |key: &str, body: &str| {
        let (status, written) = request_json(address, &format!("PUT /topics/t/keys/{key}"), body);
        assert_eq!(status, 200, "{written}");
        written
    };
    put("a", "1");
    put("b?ttl=3600000", "1");
    put("gone", "1");
    let mut old = open(address);
    let subscribe = json!({"op": "subscribe", "id": 1, "topic": "t", "keys": true});
    let epoch = old.request(&subscribe).unwrap()["epoch"].clone();
    let snapshot = old.receive_message().unwrap();
    assert_eq!((&snapshot["seq"], snapshot["set"].as_array().unwrap().len()), (&json!(3), 3));
    assert_eq!(request_json(address, "DELETE /topics/t/keys/gone", "").0, 200);
    assert_eq!(old.receive_message().unwrap()["deleted"], json!(["gone"]));

    service.restart();
    // Closed with 1001, without further changes.
    assert_eq!(old.receive_message(), None);
    let (_, page) = request_json(address, "GET /topics/t/keys", "");
    assert_fields(&page, json!({"epoch": epoch, "seq": 4}));
    let keys: Vec<_> =
        page["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(put("a", "2")["seq"], 5);
    let mut resume = subscribe;
    resume["from"] = json!({"epoch": epoch, "seq": 3});
    let (mut new, ack) = open_after_restart(address, &resume);
    assert_eq!(ack["recovered"], true);
    let update = new.receive_message().unwrap();
    assert_eq!((&update["deleted"], &update["set"][0]["data"]), (&json!(["gone"]), &json!("2")));
    service.old_one_ends();
}

#[test]
fn keys_count_toward_the_share_of_their_client_after_a_handover() {
    let mut service = Service::start("shares", "limits.max_keyed_memory_per_client = \"16k\"");
    let address = service.address;
    let value = json!("x".repeat(2_000)).to_string();
    let put = |key: usize| request_json(address, &format!("PUT /topics/t/keys/k{key}"), &value).0;
    let accepted = (0..40).take_while(|key| put(*key) == 200).count();
    assert!((4..=8).contains(&accepted), "{accepted}");
    service.restart();
    assert_eq!(put(accepted), 429);
    service.old_one_ends();
}

#[test]
fn durable_keys_are_read_by_the_successor() {
    successor_reads_durable_keys("durable-keys", &[]);
}

#[cfg(feature = "nats")]
#[test]
fn durable_keys_beside_a_broker_are_read_by_the_successor() {
    successor_reads_durable_keys("stored-keys", &["--store", "nats://127.0.0.1:1"]);
}

fn successor_reads_durable_keys(name: &str, more: &[&str]) {
    let mut service = Service::start_with(name, "threads = 2", |command, directory| {
        command
            .arg("--streams")
            .arg(directory.file("streams"))
            .args(["--streams-durable-keys", "t"])
            .args(more);
    });
    let address = service.address;
    let set = |socket: &mut Socket, key: &str, value: u64| {
        let set = json!({"op": "set", "id": value, "topic": "t", "key": key, "data": value});
        socket.request(&set).unwrap()
    };
    let mut old = open(address);
    let epoch = set(&mut old, "a", 1)["epoch"].clone();
    for value in 2..50 {
        assert_eq!(set(&mut old, "b", value)["seq"], value);
    }
    service.restart();
    assert_eq!(old.receive_message(), None);
    // Requests wait until the successor has read the streams.
    let resume = json!({
        "op": "subscribe", "id": 1, "topic": "t", "keys": true, "from": {"epoch": epoch, "seq": 48},
    });
    let (mut new, ack) = open_after_restart(address, &resume);
    assert_fields(&ack, json!({"recovered": true, "seq": 49, "epoch": epoch}));
    assert_eq!(new.receive_message().unwrap()["set"][0]["data"], 49);
    let set = json!({"op": "set", "id": 50, "topic": "t", "key": "a", "data": 50});
    assert_eq!(open_after_restart(address, &set).1["seq"], 50);
    assert_eq!(new.receive_message().unwrap()["set"][0], json!({"key": "a", "version": 50, "data": 50}));
    service.old_one_ends();
}

#[test]
fn owner_of_keys_in_a_cluster_remains_over_a_handover() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let url = broker.url();
    let node = Running::serve(&["--cluster", &url]);
    let other = node.address;
    let mut service = Service::start("cluster-keys", &format!("[cluster]\nurl = \"{url}\""));
    let address = service.address;
    let put = |address: SocketAddr, topic: &str, body: &str| {
        let (status, written) = request_json(address, &format!("PUT /topics/{topic}/keys/k"), body);
        assert_eq!(status, 200, "{written}");
        written
    };
    let owned = |address: SocketAddr| {
        let metrics = request(address, "GET /metrics HTTP/1.1", "");
        let line = metrics.lines().find_map(|line| line.strip_prefix("sinews_cluster_keys_owned "));
        line.unwrap().parse::<usize>().unwrap()
    };
    // Until both nodes share keys, one of them owns what is written.
    broker.wait_for("sinews.all", 2);
    let mut topics = Vec::new();
    while owned(address) < 2 || owned(other) < 2 {
        let topic = format!("t{}", topics.len());
        let written = put(other, &topic, "1");
        topics.push((topic, written["epoch"].clone()));
    }
    let owned_before = (owned(address), owned(other));
    service.restart();
    for (topic, epoch) in &topics {
        let written = [put(address, topic, "2"), put(other, topic, "3")];
        assert_eq!(written.each_ref().map(|written| &written["seq"]), [&json!(2), &json!(3)], "{topic}");
        assert!(written.iter().all(|written| written["epoch"] == *epoch), "{topic}: another owner");
        let begin = Instant::now();
        // Its own write at once, that of the other node soon.
        for (address, is_writer) in [(other, true), (address, false)] {
            let is_seen = || {
                let (_, page) = request_json(address, &format!("GET /topics/{topic}/keys"), "");
                page["keys"][0]["data"] == "3"
            };
            while !is_seen() {
                assert!(!is_writer && begin.elapsed() < TIMEOUT, "{topic}");
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    }
    assert_eq!((owned(address), owned(other)), owned_before);
    service.old_one_ends();
    for (topic, epoch) in &topics {
        assert_eq!(put(other, topic, "4")["epoch"], *epoch, "the predecessor has left");
    }
}

#[test]
fn durable_keys_of_a_cluster_are_stored_by_the_successor() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let url = broker.url();
    let begin = Instant::now();
    let mut service = Service::start_with(
        "durable-cluster-keys",
        &format!("[cluster]\nurl = \"{url}\""),
        |command, directory| {
            command.arg("--streams").arg(directory.file("streams")).args(["--streams-durable-keys", "t"]);
        },
    );
    let address = service.address;
    let put = |address: SocketAddr, body: &str| loop {
        let (status, written) = request_json(address, "PUT /topics/t/keys/k", body);
        if status == 200 {
            break written;
        }
        // The node has no owner yet, or the successor has not opened the streams.
        assert!(status == 503 && begin.elapsed() < TIMEOUT, "{written}");
    };
    let first = put(address, "1");
    service.restart();
    let second = put(address, "2");
    assert_eq!((&second["epoch"], &second["seq"]), (&first["epoch"], &json!(2)), "it remains the owner");
    service.old_one_ends();
    // What the successor has stored survives it.
    service.signal(service.current(), "KILL");
    until("the service is gone", || TcpStream::connect(address).is_err());
    let streams = service.directory.file("streams");
    let arguments =
        ["--cluster", &url, "--streams", streams.to_str().unwrap(), "--streams-durable-keys", "t"];
    let node = Running::serve(&arguments);
    let third = put(node.address, "3");
    assert!(third["seq"] == 3 && third["epoch"].as_u64() > first["epoch"].as_u64(), "{third}");
}
