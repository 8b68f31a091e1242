//! A stream with damaged files fails alone, and a command repairs it. A stream whose disk fails fails alone, too.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sinews_testkit::Reply;

use super::{Binary, Client, serve};
use crate::config::Directory;
use crate::support::{Running, program};

const LOG: &str = "00000000000000000000.log";

/// Streams `a` and `b` with a record each, after a clean stop.
fn filled(directory: &Directory) -> PathBuf {
    let path = directory.path("streams");
    let server = Running::serve(&["--streams", &path]);
    for name in ["a", "b"] {
        let answer = server.request(&format!("POST /streams/{name} HTTP/1.1"), "one");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    server.signal("TERM");
    assert!(server.wait().0.success());
    path.into()
}

/// Runs `sinews streams …`; returns its output and whether it succeeded.
fn command(arguments: &[&str]) -> (bool, String) {
    let output = program().arg("streams").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[30] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_stream_is_answered_503_and_other_streams_continue() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("stream", |stream| flip(&stream.join("stream"))),
        ("stream", |stream| fs::write(stream.join("stream"), "").unwrap()),
        ("00000000000000000007.log", |stream| {
            fs::rename(stream.join("0").join(LOG), stream.join("0/00000000000000000007.log")).unwrap();
        }),
        (LOG, |stream| {
            fs::remove_file(stream.join("0").join(LOG)).unwrap();
            fs::create_dir(stream.join("0").join(LOG)).unwrap();
        }),
    ];
    for (file, damage) in damages {
        let directory = Directory::new();
        let path = filled(&directory);
        damage(&path.join("streams/b"));
        let text = path.to_str().unwrap();
        let server = Running::serve(&["--streams", text, "--streams-listen", "127.0.0.1:0"]);
        assert!(server.request("POST /streams/a HTTP/1.1", "two").starts_with("HTTP/1.1 200 "));
        let names_damage = |answer: &str| answer.contains("damaged") && answer.contains(file);
        for answer in [server.request("POST /streams/b HTTP/1.1", "two"), server.get("/streams/b")] {
            assert!(answer.starts_with("HTTP/1.1 503 ") && names_damage(&answer), "{answer}");
        }
        let ready = server.get("/readyz");
        assert!(
            ready.starts_with("HTTP/1.1 200 ") && ready.contains("stream b") && names_damage(&ready),
            "{ready}"
        );
        assert!(server.get("/metrics").contains("\nsinews_streams_damaged 1\n"));
        assert!(names_damage(&server.get("/streams")));
        let received =
            Client::at(&server, "/streams/b").request(json!({"op": "consume", "id": 1, "from": "latest"}));
        assert!(received["code"] == 503 && names_damage(&received.to_string()), "{received}");
        let mut client = Binary::plain_at(server.plain(), "b");
        client.send_message(2, 0, u16::MAX, 1, &[0; 16]);
        let received = client.receive_message();
        assert_eq!((received.op, received.id), (255, 1), "{received:?}");
        assert!(names_damage(&String::from_utf8_lossy(&received.body)), "{received:?}");
        let mut viewer = server.websocket("/dashboard/feed");
        let shown = loop {
            let Some(Reply::Message(_, text)) = viewer.next() else { panic!("the feed has ended") };
            let message: Value = serde_json::from_slice(&text).unwrap();
            if message["streams"]["shown"].is_array() {
                break message["streams"]["shown"].to_string();
            }
        };
        assert!(names_damage(&shown), "{shown}");
        // The server would wait for the clients' part of the closing handshake.
        drop((viewer, client));
        server.signal("TERM");
        let (status, log) = server.wait();
        assert!(status.success() && names_damage(&log), "{log}");

        let (succeeded, output) = command(&["check", "--from", text]);
        assert!(!succeeded && output.contains("b: ") && names_damage(&output), "{output}");
        let (succeeded, output) = command(&["repair", "--from", text, "b"]);
        assert!(succeeded && output.contains(file), "{output}");
        let server = Running::serve(&["--streams", text]);
        assert!(server.request("POST /streams/b HTTP/1.1", "two").starts_with("HTTP/1.1 200 "));
        let lines = server.get("/streams/b");
        assert!(lines.contains("two") && (lines.contains("one") || file == LOG), "{lines}");
    }
}

/// A segment cannot be created without the partition's directory: an error as from a failing disk.
#[test]
fn failed_stream_is_reported_and_the_server_stays_ready() {
    let server = serve(&["--streams-segment-bytes", "64k"]);
    let post = |name: &str| server.request(&format!("POST /streams/{name} HTTP/1.1"), &"x".repeat(40_000));
    assert!(post("a").starts_with("HTTP/1.1 200 ") && post("b").starts_with("HTTP/1.1 200 "));
    assert!(server.get("/readyz").ends_with("\r\n\r\nready\n"));
    assert!(server.get("/metrics").contains("\nsinews_streams_failed 0\n"));
    fs::remove_dir_all(server.directory.path("streams/streams/b/0")).unwrap();
    for _ in 0..2 {
        assert!(post("a").starts_with("HTTP/1.1 200 "), "the other stream continues");
        assert!(post("b").starts_with("HTTP/1.1 503 "));
    }
    let ready = server.get("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.contains("\nstream b has failed: "), "{ready}");
    let metrics = server.get("/metrics");
    assert!(metrics.contains("\nsinews_streams_failed 1\n"), "{metrics}");
    assert!(metrics.contains("sinews_stream_failed{stream=\"b\",partition=\"0\"} 1\n"), "{metrics}");
    let readable = server.get("/streams/b");
    assert!(readable.starts_with("HTTP/1.1 200 ") && readable.contains("xxx"), "{readable}");
}
