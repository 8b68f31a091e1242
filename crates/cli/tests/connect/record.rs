//! Sessions that are recorded, and played again.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use crate::support::{Directory, Scripted, Server, run};

#[test]
fn a_recording_is_played_again() {
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
    // It can be shown as the wire has it, too.
    let ran = run(&["--replay", &file, "--speed", "max", "--inspect", &server.url], "");
    assert!(ran.fine().contains("> frame 3  81 83"), "{ran:?}");
}

#[test]
fn other_answers_are_told() {
    let directory = Directory::new();
    let server = Server::echo();
    let recording = |answers: &[&str]| {
        let mut text = String::from("{\"direction\":\"out\",\"kind\":\"text\",\"text\":\"hi\"}\n");
        for answer in answers {
            text += &format!("{{\"direction\":\"in\",\"kind\":\"text\",\"text\":\"{answer}\"}}\n");
        }
        directory.write("session.jsonl", &text)
    };
    for (answers, words) in [
        (&["ho"][..], "answer 1 is text \"hi\", and not text \"ho\" as recorded"),
        (&[], "one more than recorded"),
        (&["hi", "ho"], "1 of 2 recorded answers"),
    ] {
        let file = recording(answers);
        let ran = run(&["--replay", &file, "--check", "--wait", "200ms", &server.url], "");
        assert!(ran.code == 7 && ran.stderr.contains(words), "{answers:?}: {ran:?}");
    }
    let file = recording(&["ho"]);
    assert_eq!(run(&["--replay", &file, &server.url], "").fine(), "hi\n", "nobody asked");
    let file = directory.write("broken.jsonl", "{\"kind\":\"text\"}\nnonsense\n");
    let ran = run(&["--replay", &file, &server.url], "");
    assert!(ran.code == 1 && ran.stderr.contains("broken.jsonl:2: "), "{ran:?}");
}

#[test]
fn what_is_played_keeps_its_time() {
    let directory = Directory::new();
    let text = [0, 300, 600]
        .map(|at| format!("{{\"at_ms\":{at},\"direction\":\"out\",\"kind\":\"text\",\"text\":\"{at}\"}}\n"));
    let file = directory.write("session.jsonl", &text.concat());
    // How long the server waits at least from the first to the last; nothing is said about at most.
    let spread = |speed: &str| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let server = Scripted::serve(move |wire| {
            wire.switch("", b"");
            let mut times = Vec::new();
            while let Some((first, payload)) = wire.frame() {
                if first == 0x88 {
                    wire.write(b"\x88\x02\x03\xe8");
                    break;
                }
                times.push(Instant::now());
                wire.write([&[0x81, payload.len() as u8], &payload[..]].concat());
            }
            sender.send(times[times.len() - 1] - times[0]).unwrap();
        });
        assert_eq!(run(&["--replay", &file, "--speed", speed, &server.url], "").fine(), "0\n300\n600\n");
        server.join();
        receiver.recv().unwrap()
    };
    // The first may come late, the last never comes early.
    assert!(spread("0.5x").as_millis() > spread("max").as_millis());
}
