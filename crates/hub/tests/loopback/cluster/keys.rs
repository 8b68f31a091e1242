//! Keys of topics, which the nodes share in a topic store alone.

use std::io::{BufRead as _, BufReader, Write as _};

use serde_json::{Value, json};
use sinews_hub::{Hub, key_value_of_json};
use sinews_server::{KeyError, KeyWrite, Router, Server};
use sinews_testkit::assert_fields;

use super::{Client, for_both, options, with_api};
use crate::support::block_on;

impl Client {
    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.receive()
    }
}

const REASON: &str = "keys in a cluster need a topic store (cluster.store)";

#[test]
fn keys_without_a_topic_store_are_rejected_on_all_ways() {
    for_both(|broker| {
        let node = with_api(&broker);
        let rejected = json!({ "op": "error", "code": 422, "error": REASON, "id": 1 });
        let mut client = node.client();
        for request in [
            json!({ "op": "set", "topic": "t", "key": "k", "data": 1, "id": 1 }),
            json!({ "op": "delete", "topic": "t", "key": "k", "id": 1 }),
            json!({ "op": "subscribe", "topic": "t", "keys": true, "id": 1 }),
        ] {
            assert_eq!(client.ask(&request), rejected, "{request}");
        }
        let ended = client.ask(&json!({ "op": "unsubscribe", "topic": "t", "keys": true, "id": 1 }));
        assert_eq!(ended["code"], 409, "{ended}");
        for (head, body) in [
            ("PUT /topics/t/keys/k", &b"1"[..]),
            ("DELETE /topics/t/keys/k", b""),
            ("GET /topics/t/keys", b""),
            ("GET /topics/t/keys/k", b""),
        ] {
            let (status, answer) = node.request(head, body);
            assert!(status == 422 && answer.contains(REASON), "{head}: {status} {answer}");
        }
        let mut stream = node.connect();
        let head = format!(
            "GET /topics/t/keys HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n",
            node.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let status = BufReader::new(stream).lines().next().unwrap().unwrap();
        assert!(status.starts_with("HTTP/1.1 422 "), "{status}");
        let written =
            node.api("POST /api/v1/topics/t/keys", &json!({ "writes": [{ "key": "k", "data": 1 }] }));
        assert_fields(&written["results"][0], json!({ "key": "k", "code": 422, "error": REASON }));
        assert_eq!(node.api("GET /api/v1/topics", &Value::Null), json!({ "topics": [] }));
    });
}

#[test]
fn program_writes_no_keys_without_a_topic_store() {
    let hub = Hub::builder().cluster(options("nats://127.0.0.1:1")).build().unwrap();
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let publisher = server.publisher();
    let hub = hub.start(&server).unwrap();
    let write = KeyWrite::set("k", key_value_of_json("2").unwrap());
    assert_eq!(publisher.write_key("t", &write), Err(KeyError::NotOwner));
    let failed = block_on(hub.write_key("t", write)).unwrap_err();
    assert_eq!((failed.status(), failed.to_string()), (422, REASON.to_owned()));
    hub.shut_down();
}
