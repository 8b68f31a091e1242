//! Recorded and replayed sessions.

use std::fs;

use serde_json::Value;

use super::support::{Server, run};
use crate::directory::Directory;

#[test]
fn recording_is_replayed() {
    let (server, directory) = (Server::echo(), Directory::new());
    let file = directory.path("session.jsonl");
    assert_eq!(run(&["--record", &file, "--commands", &server.url], "one\n/hex 00ff\ntwo\n").code, 0);
    let lines: Vec<Value> =
        fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"open"), Some(&"end")));
    for speed in ["1x", "100x", "max"] {
        let ran = run(&["--replay", &file, "--speed", speed, "--check", &server.url], "");
        assert_eq!((ran.code, &*ran.stdout), (0, &b"one\n\0\xff\ntwo\n"[..]), "{speed}: {ran:?}");
    }
    // A recording can be replayed with --inspect, too.
    let ran = run(&["--replay", &file, "--speed", "max", "--inspect", &server.url], "");
    assert!(ran.fine().contains("> frame 3  81 83"), "{ran:?}");
}

#[test]
fn differing_answers_are_reported() {
    let directory = Directory::new();
    let server = Server::echo();
    let recording = |answers: &[&str]| {
        let mut text = String::from("{\"direction\":\"out\",\"kind\":\"text\",\"text\":\"hi\"}\n");
        for answer in answers {
            text += &format!("{{\"direction\":\"in\",\"kind\":\"text\",\"text\":\"{answer}\"}}\n");
        }
        directory.write("session.jsonl", &text)
    };
    for (answers, message) in [
        (&["ho"][..], "answer 1 is text \"hi\", and not text \"ho\" as recorded"),
        (&[], "one more than recorded"),
        (&["hi", "ho"], "1 of 2 recorded answers"),
    ] {
        let file = recording(answers);
        let ran = run(&["--replay", &file, "--check", "--wait", "3s", &server.url], "");
        assert!(ran.code == 7 && ran.stderr.contains(message), "{answers:?}: {ran:?}");
    }
    let file = recording(&["ho"]);
    assert_eq!(
        run(&["--replay", &file, &server.url], "").fine(),
        "hi\n",
        "answers are not compared without --check"
    );
    let file = directory.write("broken.jsonl", "{\"kind\":\"text\"}\nnonsense\n");
    let ran = run(&["--replay", &file, &server.url], "");
    assert!(ran.code == 1 && ran.stderr.contains("broken.jsonl:2: "), "{ran:?}");
}

#[test]
fn replay_keeps_recorded_times() {
    let (server, directory) = (Server::echo(), Directory::new());
    let recording = |times: &[u32]| {
        let line = |at: &u32| {
            format!("{{\"at_ms\":{at},\"direction\":\"out\",\"kind\":\"text\",\"text\":\"{at}\"}}\n")
        };
        directory.write("session.jsonl", &times.iter().map(line).collect::<String>())
    };
    // A message may leave late, but never early.
    let file = recording(&[0, 150, 300]);
    for (speed, factor) in [("1x", 1.0), ("0.5x", 2.0), ("2x", 0.5)] {
        let again = directory.path("again.jsonl");
        run(&["--replay", &file, "--speed", speed, "--record", &again, &server.url], "").fine();
        let played = fs::read_to_string(&again).unwrap();
        let mut count = 0;
        for line in played.lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            if entry["direction"] == "out" && entry["kind"] == "text" {
                let due = factor * entry["text"].as_str().unwrap().parse::<f64>().unwrap();
                assert!(entry["at_ms"].as_f64().unwrap() >= due, "{speed}: {entry}, due at {due} ms");
                count += 1;
            }
        }
        assert_eq!(count, 3, "{played}");
    }
    // --speed max replays days at once; otherwise the test would take days.
    let file = recording(&[0, 300_000_000]);
    for speed in ["max", "1000000x"] {
        let ran = run(&["--replay", &file, "--speed", speed, &server.url], "");
        assert_eq!(ran.fine(), "0\n300000000\n");
    }
}
