//! Changes to the directory of a running server.

use std::fs;

use serde_json::json;
use sinews_testkit::until_some;

use super::{Client, serve};
use crate::config::Directory;
use crate::support::Running;

#[test]
fn nothing_is_acknowledged_after_the_directory_is_removed() {
    let server = serve(&[]);
    let directory = server.directory.path("streams");
    let post = || server.request("POST /streams/s HTTP/1.1", "x");
    assert!(post().starts_with("HTTP/1.1 200 "));
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200 "));
    fs::remove_dir_all(&directory).unwrap();
    // Another server may use the directory at once.
    let _other = Running::serve(&["--streams", &directory]);
    let refused = until_some("rejection of records that no disk has", || {
        Some(post()).filter(|answer| !answer.starts_with("HTTP/1.1 200 "))
    });
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("was removed or replaced"), "{refused}");
    let other = server.request("POST /streams/other HTTP/1.1", "x");
    assert!(other.starts_with("HTTP/1.1 503 ") && other.contains("was removed or replaced"), "{other}");
    let ready = server.get("/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("was removed or replaced"), "{ready}");
}

#[test]
fn member_of_a_group_is_notified_of_its_lost_committed_offset() {
    let files = Directory::new();
    let directory = files.path("streams");
    let server = Running::serve(&["--streams", &directory]);
    let mut client = Client::at(&server, "/streams/s");
    for offset in 0..3 {
        assert_eq!(client.request(json!({"op": "append", "id": 1, "data": offset}))["offset"], offset);
    }
    let commit = json!({"op": "commit", "id": 2, "group": "g", "offset": 2});
    assert_eq!(client.request(commit.clone())["op"], "ack");
    drop(client);
    server.signal("TERM");
    assert!(server.wait().0.success());
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
