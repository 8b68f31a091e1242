//! Groups that share the partitions of a stream, and rights.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sinews_testkit::assert_fields;

use super::{ANY, Binary, Client, records, serve};
use crate::auth::{SECRET, token};
use crate::config::Directory;
use crate::support::Running;

/// A member of a group with its assignment and records.
struct Member {
    client: Client,
    partitions: Vec<u64>,
    received: Vec<(u64, u64)>,
}

impl Member {
    fn join(server: &Running, stream: &str) -> Self {
        let mut client = Client::at(server, &format!("/streams/{stream}"));
        let ack = client.request(json!({"op": "consume", "id": 1, "group": "g"}));
        assert_fields(&ack, json!({"op": "ack", "partitions": []}));
        Self { client, partitions: Vec::new(), received: Vec::new() }
    }

    fn take(&mut self, message: &Value) {
        match message["op"].as_str().unwrap() {
            "assigned" => {
                let places = message["partitions"].as_array().unwrap();
                self.partitions = places.iter().map(|place| place["partition"].as_u64().unwrap()).collect();
                self.partitions.sort_unstable();
            }
            "records" => {
                let partition = message["partition"].as_u64().unwrap();
                for record in message["records"].as_array().unwrap() {
                    self.received.push((partition, record["offset"].as_u64().unwrap()));
                }
            }
            other => panic!("{other}: {message}"),
        }
    }

    fn receive_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) {
            let message = self.client.receive_message();
            self.take(&message);
        }
    }

    /// Commits all records it has received.
    fn commit(&mut self) {
        let mut ends = BTreeMap::new();
        for (partition, offset) in &self.received {
            ends.insert(*partition, offset + 1);
        }
        for (partition, offset) in ends {
            self.client.send_message(
                &json!({"op": "commit", "id": "c", "group": "g", "partition": partition, "offset": offset}),
            );
            loop {
                let message = self.client.receive_message();
                if message["op"] == "ack" {
                    break;
                }
                self.take(&message);
            }
        }
    }
}

#[test]
fn members_share_partitions_and_take_over_from_each_other() {
    let server = serve(&["--streams-partitions", "4", "--threads", "2"]);
    let mut producer = Binary::plain(&server, "work");
    let mut publish = |each: usize| {
        for partition in 0..4 {
            for _ in 0..each {
                producer.send_message(1, 2, partition, 1, &records(&[b"x"]));
                assert_eq!(producer.receive_message().op, 129);
            }
        }
    };
    publish(5);
    let mut first = Member::join(&server, "work");
    first.receive_until(|member| member.received.len() == 20);
    assert_eq!(first.partitions, [0, 1, 2, 3]);
    first.commit();

    let mut second = Member::join(&server, "work");
    second.receive_until(|member| member.partitions.len() == 2);
    first.receive_until(|member| member.partitions.len() == 2);
    assert!(first.partitions.iter().all(|partition| !second.partitions.contains(partition)));
    publish(5);
    first.receive_until(|member| member.received.len() == 30);
    second.receive_until(|member| member.received.len() == 10);
    let mut all: Vec<(u64, u64)> = first.received.iter().chain(&second.received).copied().collect();
    all.sort_unstable();
    let expected: Vec<(u64, u64)> =
        (0..4).flat_map(|partition| (0..10).map(move |offset| (partition, offset))).collect();
    assert_eq!(all, expected, "each record once, since all were committed before the move");

    // Uncommitted records of the first member are delivered to the other member again.
    first.received.clear();
    second.received.clear();
    second.commit();
    drop(first);
    second.receive_until(|member| member.partitions.len() == 4 && member.received.len() >= 10);
    assert!(second.received.iter().all(|(_, offset)| (5..10).contains(offset)), "{:?}", second.received);
    publish(1);
    second.received.clear();
    second.receive_until(|member| member.received.len() == 4);
}

#[test]
fn group_resumes_at_its_committed_offset() {
    let server = serve(&[]);
    let mut producer = Binary::websocket(&server, "s");
    for _ in 0..10 {
        producer.send_message(1, 2, ANY, 1, &records(&[b"a", b"b"]));
        assert_eq!(producer.receive_message().op, 129);
    }
    for (round, mut client) in Binary::both(&server, "s").into_iter().enumerate() {
        client.subscribe(4, 0, "readers");
        let assigned = client.receive_message();
        let from = round as u64 * 7;
        assert_eq!((assigned.op, assigned.number(8)), (140, from));
        assert_eq!(client.records(20 - from as usize)[0].0, from);
        client.send_message(4, 0, 0, 2, &[&(from + 7).to_le_bytes()[..], b"readers"].concat());
        assert_eq!(client.receive_message().op, 132);
    }
}

#[test]
fn tokens_limit_publishers_and_readers() {
    let keys = Directory::new();
    let secret = keys.write("secret", SECRET);
    let server = serve(&["--auth-secret-file", &secret]);
    let (both, reader, writer) = (
        token(&secret, &["--publish", "s", "--subscribe", "s"]),
        token(&secret, &["--subscribe", "s"]),
        token(&secret, &["--publish", "s"]),
    );
    let connect = |token: &str, path: &str| {
        let offer = format!("Sec-WebSocket-Protocol: sinews.v1, sinews.bearer.{token}\r\n");
        server.try_websocket(path, &offer).map(|socket| {
            let mut client = Client(socket);
            assert_eq!(client.receive_message()["op"], "welcome");
            client
        })
    };
    let mut reading = connect(&reader, "/ws").unwrap();
    // The right to read does not create a stream.
    assert_eq!(reading.request(json!({"op": "consume", "stream": "s"}))["code"], 404);
    assert_eq!(reading.request(json!({"op": "append", "stream": "s", "data": 1}))["code"], 403);
    let mut writing = connect(&writer, "/streams/s").unwrap();
    assert_eq!(writing.request(json!({"op": "append", "id": 1, "data": 1}))["offset"], 0);
    assert_eq!(writing.request(json!({"op": "consume", "id": 1, "from": "earliest"}))["code"], 403);
    assert_eq!(writing.request(json!({"op": "append", "stream": "t", "data": 1}))["code"], 403);
    assert_eq!(
        reading.request(json!({"op": "consume", "id": 1, "stream": "s", "from": "earliest"}))["op"],
        "ack"
    );
    assert_eq!(reading.records(1).len(), 1);

    let post = |token: &str, path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nAuthorization: Bearer {token}");
        server.request(&head, "x").split(' ').nth(1).map(str::to_owned).unwrap()
    };
    assert_eq!(
        (post(&both, "/streams/s"), post(&reader, "/streams/s"), post(&both, "/streams/t")),
        ("200".into(), "403".into(), "403".into())
    );
    assert!(server.get("/streams/s").starts_with("HTTP/1.1 401 "));
    assert!(server.get("/streams").ends_with("{\"streams\":[]}\n"));
    assert!(server.get(&format!("/streams?token={reader}")).contains("\"stream\":\"s\""));
    // Over plain TCP, hello carries the token.
    for (token, stream, op) in [(&*both, "s", 128), ("", "s", 255), (&*both, "t", 255), ("x", "s", 255)] {
        let mut client = Binary::Plain(std::net::TcpStream::connect(server.plain()).unwrap());
        client.send_message(0, 0, ANY, 1, &[&[1, 1][..], stream.as_bytes(), token.as_bytes()].concat());
        assert_eq!(client.receive_message().op, op, "{token} {stream}");
    }
}
