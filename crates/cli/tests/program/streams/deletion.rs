//! Deletion of streams: by request, JSON and binary message and command; rights, and notifications of clients.

use serde_json::json;
use sinews_testkit::assert_fields;

use super::{ANY, Binary, Client, body, records, serve};
use crate::auth::{SECRET, status, token};
use crate::config::Directory;
use crate::support::{Running, fails, program};

fn post(server: &Running, stream: &str) -> String {
    server.request(&format!("POST /streams/{stream} HTTP/1.1"), "x")
}

fn delete(server: &Running, stream: &str) -> String {
    server.request(&format!("DELETE /streams/{stream} HTTP/1.1"), "")
}

#[test]
fn deleted_stream_ends_only_its_readers_with_410() {
    let server = serve(&["--threads", "2"]);
    for stream in ["gone", "gone", "stays"] {
        assert_eq!(status(&post(&server, stream)), "200");
    }
    let mut reader = Client::at(&server, "/ws");
    for (id, stream) in [(1, "gone"), (2, "stays")] {
        let from = json!({"op": "consume", "id": id, "stream": stream, "from": "latest"});
        assert_eq!(reader.request(from)["op"], "ack");
    }
    let mut member = Client::at(&server, "/streams/gone");
    assert_eq!(member.request(json!({"op": "consume", "id": 3, "group": "g"}))["op"], "ack");
    assert_eq!(member.receive_message()["op"], "assigned");
    assert_eq!(member.records(2).len(), 2);
    assert_eq!(member.request(json!({"op": "commit", "id": 4, "group": "g", "offset": 2}))["op"], "ack");
    let mut idle = Client::at(&server, "/streams/gone");
    assert_eq!(idle.request(json!({"op": "consume", "id": 5, "group": "g"}))["op"], "ack");
    // The other member has the only partition.
    let mut binary = Binary::plain(&server, "gone");
    binary.subscribe(1, 0, "");
    binary.send_message(1, 2, ANY, 9, &records(&[b"x"]));
    while binary.receive_message().op != 129 {}
    assert_eq!(reader.receive_message()["op"], "records");

    let answer = delete(&server, "gone");
    assert_eq!((status(&answer), body(&answer)), ("200", json!({"stream": "gone", "deleted": true})));
    for (client, id) in [(&mut reader, 1), (&mut idle, 5)] {
        let mut end = client.receive_message();
        if end["op"] == "assigned" {
            // The other member has left before this one is notified.
            end = client.receive_message();
        }
        assert_fields(&end, json!({"op": "error", "code": 410, "id": id}));
    }
    let end = loop {
        // The last appended records come before the error.
        let message = member.receive_message();
        if message["op"] != "records" {
            break message;
        }
    };
    assert_fields(&end, json!({"code": 410, "id": 3}));
    let end = loop {
        let received = binary.receive_message();
        if received.op != 131 {
            break received;
        }
    };
    assert_eq!((end.op, end.id, &end.body[..2]), (255, 1, &410_u16.to_le_bytes()[..]), "{end:?}");
    assert_eq!(status(&delete(&server, "gone")), "404");

    // A connection that has published to the stream receives one error.
    binary.send_message(1, 2, ANY, 10, &records(&[b"y"]));
    let reply = binary.receive_message();
    assert_eq!((reply.op, &reply.body[..2]), (255, &410_u16.to_le_bytes()[..]), "{reply:?}");
    binary.send_message(1, 2, ANY, 11, &records(&[b"z"]));
    let published = binary.receive_message();
    assert_eq!((published.op, published.number(0)), (129, 0), "the new stream starts at offset 0");
    let list = body(&server.get("/streams"));
    assert_eq!(list["streams"][0]["groups"], json!([]), "committed offsets are deleted with a stream");
    // The other stream is unaffected.
    assert_eq!(status(&post(&server, "stays")), "200");
    assert_eq!(reader.records(1), [(0, 1, json!("x"))]);
}

#[test]
fn stream_is_deleted_by_messages_and_on_the_command_line() {
    let files = Directory::new();
    let directory = files.path("streams");
    let server = Running::serve(&["--streams", &directory, "--streams-listen", "127.0.0.1:0"]);
    let mut client = Client::at(&server, "/streams/s");
    assert_eq!(client.request(json!({"op": "delete", "id": 1}))["code"], 404);
    assert_eq!(client.request(json!({"op": "append", "id": 2, "data": 1}))["offset"], 0);
    let ack = client.request(json!({"op": "delete", "id": 3}));
    assert_eq!(ack, json!({"op": "ack", "id": 3, "stream": "s"}));
    assert_eq!(client.request(json!({"op": "append", "id": 4, "data": 1}))["offset"], 0);
    for mut client in Binary::both(&server, "s") {
        client.send_message(7, 0, ANY, 5, b"");
        let answer = client.receive_message();
        assert_eq!((answer.op, answer.id), (135, 5), "{answer:?}");
        client.send_message(1, 2, ANY, 6, &records(&[b"x"]));
        assert_eq!(client.receive_message().op, 129);
    }
    let message = fails(program().args(["streams", "delete", "--from", &directory, "s"]));
    assert!(message.contains("DELETE /streams/NAME"), "{message}");
    server.signal("TERM");
    assert!(server.wait().0.success());
    let message = fails(program().args(["streams", "delete", "--from", &directory, "t"]));
    assert!(message.contains("has no stream t"), "{message}");
    let output = program().args(["streams", "delete", "--from", &directory, "s"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "s: deleted\n");
    let running = Running::serve(&["--streams", &directory]);
    assert_eq!(body(&running.get("/streams")), json!({"streams": []}));
}

#[test]
fn deletion_requires_the_right_to_delete() {
    let keys = Directory::new();
    let secret = keys.write("secret", SECRET);
    let server = serve(&["--auth-secret-file", &secret]);
    let request = |verb: &str, stream: &str, token: &str| {
        let head = format!("{verb} /streams/{stream} HTTP/1.1\r\nAuthorization: Bearer {token}");
        server.request(&head, "x")
    };
    let writer = token(&secret, &["--publish", ">", "--subscribe", ">"]);
    let deleter = token(&secret, &["--delete", "a.*"]);
    for stream in ["a.b", "b"] {
        assert_eq!(status(&request("POST", stream, &writer)), "200");
    }
    let refused = request("DELETE", "a.b", &writer);
    assert_eq!(status(&refused), "403");
    assert_eq!(body(&refused)["needs"], json!({"delete": ["a.b"]}));
    assert_eq!(status(&request("DELETE", "b", &deleter)), "403");
    assert_eq!(status(&request("DELETE", "a.b", &deleter)), "200");
    assert_eq!(status(&delete(&server, "b")), "401");
}

#[test]
fn deletion_of_a_stream_resets_its_topic_and_notifies_subscribers() {
    let server = serve(&["--streams-durable-topics", "chat,news.>"]);
    let mut subscriber = Client::at(&server, "/ws");
    subscriber.subscribe_with("chat", &json!({}));
    super::topics::publish(&server, "chat", 0..3);
    let before = subscriber.messages(3);
    assert_eq!(status(&delete(&server, "chat")), "200");
    assert_eq!(subscriber.receive_message(), json!({"op": "reset", "topic": "chat"}));
    super::topics::publish(&server, "chat", 7..9);
    let after = subscriber.messages(2);
    assert!(after[0].0 > before[0].0, "another epoch: {before:?} {after:?}");
    let received: Vec<_> = after.iter().map(|(_, seq, data)| (*seq, data.clone())).collect();
    assert_eq!(received, [(1, json!(7)), (2, json!(8))]);
    let mut later = Client::at(&server, "/ws");
    let from = json!({"from": {"epoch": before[2].0, "seq": before[2].1}});
    let ack = later.subscribe_with("chat", &from);
    assert_fields(&ack, json!({"complete": false, "epoch": after[0].0}));
    assert_eq!(later.messages(2), after);
}

#[test]
fn creation_limits_apply_to_each_client() {
    let keys = Directory::new();
    let secret = keys.write("secret", SECRET);
    let server = serve(&["--auth-secret-file", &secret, "--streams-max-created-per-client", "2"]);
    let of = |name: &str| token(&secret, &["--publish", ">", "--delete", ">", "--subject", name]);
    let (ann, bob) = (of("ann"), of("bob"));
    let request = |verb: &str, stream: &str, token: &str| {
        let head = format!("{verb} /streams/{stream} HTTP/1.1\r\nAuthorization: Bearer {token}");
        server.request(&head, "x")
    };
    for stream in ["a", "b", "a"] {
        assert_eq!(status(&request("POST", stream, &ann)), "200");
    }
    let refused = request("POST", "c", &ann);
    assert_eq!(status(&refused), "429");
    assert!(refused.contains("streams.max_created_per_client"), "{refused}");
    assert_eq!(status(&request("POST", "b", &ann)), "200", "an existing stream");
    assert_eq!(status(&request("POST", "c", &bob)), "200");
    assert_eq!(status(&request("DELETE", "b", &bob)), "200");
    assert_eq!(status(&request("POST", "d", &ann)), "200");
}
