//! Recovery of events of channels that are durable topics, at the successor.

use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;

use super::*;

const APP: &str = "[[pusher.app]]\nid = \"3\"\nkey = \"key\"\nsecret = \"secret\"\ntopics = \"stored\"";

/// Triggers an event, until a process has stored it.
fn trigger(address: SocketAddr, data: &str) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let query = format!("auth_key=key&auth_timestamp={time}&auth_version=1.0&channel=a&data={data}&name=e");
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
    let tag = hmac::sign(&key, format!("POST\n/apps/3/events\n{query}").as_bytes());
    let signature: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!("POST /apps/3/events?{query}&auth_signature={signature} HTTP/1.1");
    until("the event is stored", || {
        let answer = request(address, &head, "");
        let is_stored = answer.starts_with("HTTP/1.1 200 ");
        // The successor may not have the streams yet.
        assert!(is_stored || answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
        is_stored
    });
}

/// Subscribes with `recover`; returns the answer.
fn recover(socket: &mut Socket, recover: &Value) -> Value {
    assert_eq!(socket.receive_message().unwrap()["event"], "pusher:connection_established");
    let data = json!({ "channel": "a", "recover": recover });
    socket.send_message(&json!({ "event": "pusher:subscribe", "data": data }));
    let answer = socket.receive_message().unwrap();
    assert_eq!(answer["event"], "pusher_internal:subscription_succeeded", "{answer}");
    answer
}

fn data_and_position(socket: &mut Socket) -> (Value, Value) {
    let event = socket.receive_message().unwrap();
    (event["data"].clone(), event["position"].clone())
}

#[test]
fn clients_of_durable_channels_recover_at_the_successor() {
    let mut service = Service::start_with("pusher", APP, |command, directory| {
        command
            .arg("--streams")
            .arg(directory.file("streams"))
            .args(["--streams-durable-topics", "stored.>"]);
    });
    let path = "/app/key?protocol=7";
    let mut socket = Socket::open(service.address, path);
    recover(&mut socket, &json!(true));
    trigger(service.address, "1");
    let (data, position) = data_and_position(&mut socket);
    assert_eq!(data, "1");
    drop(socket);
    trigger(service.address, "2");
    service.restart();
    trigger(service.address, "3");
    service.old_one_ends();
    let mut socket = Socket::open(service.address, path);
    assert_eq!(recover(&mut socket, &json!({ "position": position }))["recovered"], true);
    let received = [data_and_position(&mut socket), data_and_position(&mut socket)];
    assert_eq!([&received[0].0, &received[1].0], ["2", "3"]);
    trigger(service.address, "4");
    let (data, last) = data_and_position(&mut socket);
    assert_eq!(data, "4");
    // Positions go on from those of the predecessor.
    let sequence = |position: &Value| {
        let (epoch, sequence) = position.as_str().unwrap().split_once('-').unwrap();
        (epoch.to_owned(), sequence.parse::<u64>().unwrap())
    };
    let (epoch, first) = sequence(&position);
    assert_eq!(sequence(&last), (epoch, first + 3));
}
