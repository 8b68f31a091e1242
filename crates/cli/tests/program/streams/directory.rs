//! Changes to the directory of a running server.

use std::fs;
use std::time::Instant;

use serde_json::json;

use super::{Client, Server};
use crate::support::{Running, TIMEOUT};

#[test]
fn nothing_is_acknowledged_after_the_directory_is_removed() {
    let server = Server::start(&[]);
    let directory = server._directory.path("streams");
    let post = || server.running.request("POST /streams/s HTTP/1.1", "x");
    assert!(post().starts_with("HTTP/1.1 200 "));
    assert!(server.running.get("/readyz").starts_with("HTTP/1.1 200 "));
    fs::remove_dir_all(&directory).unwrap();
    // Another server may use the directory at once.
    let _other = Running::serve(&["--streams", &directory]);
    let until = Instant::now() + TIMEOUT;
    let refused = loop {
        let answer = post();
        if !answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
        assert!(Instant::now() < until, "records are acknowledged that no disk has");
    };
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("was removed or replaced"), "{refused}");
    let other = server.running.request("POST /streams/other HTTP/1.1", "x");
    assert!(other.starts_with("HTTP/1.1 503 ") && other.contains("was removed or replaced"), "{other}");
    let ready = server.running.get("/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("was removed or replaced"), "{ready}");
}

#[test]
fn member_of_a_group_is_notified_of_its_lost_committed_offset() {
    let server = Server::start(&[]);
    let directory = server._directory.path("streams");
    let mut client = Client::at(&server.running, "/streams/s");
    for offset in 0..3 {
        assert_eq!(client.request(json!({"op": "append", "id": 1, "data": offset}))["offset"], offset);
    }
    let commit = json!({"op": "commit", "id": 2, "group": "g", "offset": 2});
    assert_eq!(client.request(commit.clone())["op"], "ack");
    drop(client);
    let Server { running, _directory } = server;
    running.signal("TERM");
    assert!(running.wait().0.success());
    let file = format!("{directory}/streams/s/groups.log");
    let mut bytes = fs::read(&file).unwrap();
    bytes.iter_mut().skip(40).for_each(|byte| *byte ^= 0xff);
    fs::write(&file, bytes).unwrap();

    let running = Running::serve(&["--streams", &directory]);
    let consume = json!({"op": "consume", "id": 3, "group": "g"});
    for expected in
        [json!({"partition": 0, "offset": 0, "reset": true}), json!({"partition": 0, "offset": 2})]
    {
        let mut client = Client::at(&running, "/streams/s");
        assert_eq!(client.request(consume.clone())["op"], "ack");
        let assigned = client.receive_message();
        assert_eq!(assigned["partitions"], json!([expected]), "{assigned}");
        client.records(if expected["reset"] == true { 3 } else { 1 });
        assert_eq!(client.request(commit.clone())["op"], "ack");
    }
}
