//! Streams at a broker: docs/book/src/server/brokers.md. Most tests use the in-process mock cluster of librdkafka.

#[cfg(any(feature = "nats", feature = "redis"))]
mod clustered;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod patterns;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod real;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Client, body};
use crate::support::{Running, until};

/// A node that serves the broker's streams.
fn node(url: &str, arguments: &[&str]) -> Running {
    let fixed = ["--store", url, "--streams-listen", "127.0.0.1:0"];
    Running::serve(&[&fixed[..], arguments].concat())
}

fn post(node: &Running, path: &str, text: &str) -> String {
    node.request(&format!("POST {path} HTTP/1.1"), text)
}

/// Posts a record; returns its offset at the broker.
fn posted(node: &Running, stream: &str, text: &str) -> u64 {
    let answer = post(node, &format!("/streams/{stream}"), text);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    body(&answer)["offset"].as_u64().unwrap()
}

/// Offsets and texts of the answer to GET.
fn got(node: &Running, path: &str) -> Vec<(u64, String)> {
    let answer = node.get(path);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let lines = answer.split_once("\r\n\r\n").unwrap().1.lines();
    lines
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|record| (record["offset"].as_u64().unwrap(), record["data"].as_str().unwrap().to_owned()))
        .collect()
}

/// A reader of a stream.
struct Reader(Client);

impl Reader {
    fn from(node: &Running, stream: &str, from: &Value) -> Self {
        let mut client = Client::at(node, &format!("/streams/{stream}"));
        let ack = client.request(json!({"op": "consume", "id": 1, "from": from}));
        assert_eq!(ack["op"], "ack", "{ack}");
        Self(client)
    }

    /// Offsets and texts of the next `count` records.
    fn next(&mut self, count: usize) -> Vec<(u64, String)> {
        let records = self.0.records(count);
        records
            .into_iter()
            .map(|(_, offset, data)| (offset, data.as_str().expect("text").to_owned()))
            .collect()
    }
}
