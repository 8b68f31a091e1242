//! A stream with damaged files fails alone, and a command repairs it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sinews_testkit::Reply;

use super::{Binary, Json, plain_address};
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
        let is_told = |answer: &str| answer.contains("damaged") && answer.contains(file);
        for answer in [server.request("POST /streams/b HTTP/1.1", "two"), server.get("/streams/b")] {
            assert!(answer.starts_with("HTTP/1.1 503 ") && is_told(&answer), "{answer}");
        }
        let ready = server.get("/readyz");
        assert!(
            ready.starts_with("HTTP/1.1 200 ") && ready.contains("stream b") && is_told(&ready),
            "{ready}"
        );
        assert!(server.get("/metrics").contains("\nsinews_streams_damaged 1\n"));
        assert!(is_told(&server.get("/streams")));
        let heard =
            Json::connect(&server, "/streams/b").ask(json!({"op": "consume", "id": 1, "from": "latest"}));
        assert!(heard["code"] == 503 && is_told(&heard.to_string()), "{heard}");
        let mut client = Binary::plain_at(plain_address(&server), "b");
        client.say(2, 0, u16::MAX, 1, &[0; 16]);
        let heard = client.hear();
        assert_eq!((heard.op, heard.id), (255, 1), "{heard:?}");
        assert!(is_told(&String::from_utf8_lossy(&heard.body)), "{heard:?}");
        let mut viewer = server.websocket("/dashboard/feed");
        let shown = loop {
            let Some(Reply::Message(_, text)) = viewer.next() else { panic!("the feed has ended") };
            let words: Value = serde_json::from_slice(&text).unwrap();
            if words["streams"]["shown"].is_array() {
                break words["streams"]["shown"].to_string();
            }
        };
        assert!(is_told(&shown), "{shown}");
        server.signal("TERM");
        let (status, log) = server.wait();
        assert!(status.success() && is_told(&log), "{log}");

        let (succeeded, said) = command(&["check", "--from", text]);
        assert!(!succeeded && said.contains("b: ") && is_told(&said), "{said}");
        let (succeeded, said) = command(&["repair", "--from", text, "b"]);
        assert!(succeeded && said.contains(file), "{said}");
        let server = Running::serve(&["--streams", text]);
        assert!(server.request("POST /streams/b HTTP/1.1", "two").starts_with("HTTP/1.1 200 "));
        let lines = server.get("/streams/b");
        assert!(lines.contains("two") && (lines.contains("one") || file == LOG), "{lines}");
    }
}
