//! Keys of topics over a handover.

use sinews_testkit::until_some;

use super::*;

/// Sends the request; repeats it while the keys move to the successor.
fn request_json(address: SocketAddr, head: &str, body: &str) -> (u16, Value) {
    until_some("the keys have moved", || {
        Some(request_once(address, &format!("{head} HTTP/1.1"), body)).filter(|(status, _)| *status != 503)
    })
}

pub(super) fn request_once(address: SocketAddr, head: &str, body: &str) -> (u16, Value) {
    let answer = request(address, head, body);
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
pub(super) fn open_after_restart(address: SocketAddr, request: &Value) -> (Socket, Value) {
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
