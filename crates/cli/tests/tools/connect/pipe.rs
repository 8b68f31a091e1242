//! Input that is not a terminal.

use serde_json::Value;

use super::support::{Scripted, Server, run};

#[test]
fn lines_map_to_messages_in_both_directions() {
    let server = Server::echo();
    assert_eq!(run(&[&server.url], "hi\n").fine(), "hi\n");
    assert_eq!(run(&[&server.url], "one\n\nκόσμε").fine(), "one\n\nκόσμε\n");
    assert_eq!(run(&[&server.url], "").fine(), "");
    // More than the capacity of all queues, so that both directions block.
    let many: String = (0..20_000).map(|number| format!("message {number}\n")).collect();
    let limits = ["--count", "20000", "--wait", "60s"];
    assert_eq!(run(&[&limits[..], &[&server.url]].concat(), &*many).fine(), many);
}

#[test]
fn binary_messages_keep_all_bytes() {
    let server = Server::echo();
    let ran = run(&["--binary", "--delimiter", "\\0", &server.url], *b"a\n\0\xff\0");
    assert_eq!((ran.code, ran.stdout), (0, b"a\n\0\xff\0".to_vec()));
    let prefixed = b"\0\0\0\x03a\nb\0\0\0\0\0\0\0\x01\xff";
    let ran = run(&["--binary", "--length-prefixed", &server.url], *prefixed);
    assert_eq!((ran.code, ran.stdout), (0, prefixed.to_vec()));
    for (show, expected) in [("hex", "00 ff\n"), ("base64", "AP8=\n"), ("size", "2 bytes\n")] {
        assert_eq!(run(&["--binary", "--show", show, &server.url], *b"\0\xff\n").fine(), expected);
    }
    let dump = run(&["--binary", "--show", "dump", &server.url], *b"ab\n");
    assert!(dump.fine().ends_with("|ab|\n"), "{dump:?}");
    let ran = run(&[&server.url], *b"\xff\n");
    assert!(ran.code == 1 && ran.stderr.contains("--binary"), "{ran:?}");
}

#[test]
fn commands_option_interprets_lines() {
    let server = Server::echo();
    let lines = "//slash\n/hex 41 42\n/ping x\n/text /y\n/close 4001 bye\n";
    let ran = run(&["--commands", "--verbose", &server.url], lines);
    assert_eq!(ran.fine(), "/slash\nAB\n/y\n");
    assert!(ran.stderr.contains("pong \"x\" after "), "{ran:?}");
    assert!(ran.stderr.contains("closed by this end with 4001"), "{ran:?}");
    let ran = run(&["--commands", &server.url], "/nothing\n");
    assert!(ran.code == 1 && ran.stderr.contains("unknown command"), "{ran:?}");
}

#[test]
fn jsonl_has_times_directions_and_codes() {
    let server = Server::echo();
    let ran = run(&["--jsonl", "--commands", &server.url], "hi\n/hex 00ff\n/ping p\n/close 4000 why\n");
    let lines: Vec<Value> = ran.fine().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |direction: &str, kind: &str| {
        let found = lines.iter().find(|line| line["direction"] == direction && line["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {direction} {kind} in {lines:?}"))
    };
    assert_eq!(find("none", "open")["status"], 101);
    for direction in ["out", "in"] {
        let text = find(direction, "text");
        assert_eq!((&text["text"], &text["bytes"]), (&"hi".into(), &2.into()));
        assert_eq!(find(direction, "binary")["base64"], "AP8=");
        assert_eq!(find(direction, "close")["code"], 4000);
    }
    assert_eq!(find("out", "close")["reason"], "why");
    assert!(find("in", "pong")["rtt_ms"].as_f64().unwrap() >= 0.0);
    assert_eq!(find("none", "end")["exit"], 0);
    let times: Vec<f64> = lines.iter().map(|line| line["at_ms"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && lines[0]["ts"].as_f64().unwrap() > 1.6e9, "{times:?}");
}

#[test]
fn run_ends_after_count_or_wait() {
    // A server that sends first, and sends more than requested.
    let talkative = || {
        Scripted::serve(|wire| {
            wire.switch("", b"\x81\x05hello\x81\x01a\x81\x01b");
            while let Some((first, payload)) = wire.frame() {
                match first {
                    0x88 => return wire.write(b"\x88\x02\x03\xe8"),
                    _ => wire.write([&[0x81, payload.len() as u8], &payload[..]].concat()),
                }
            }
        })
    };
    let server = talkative();
    assert_eq!(run(&["--count", "3", &server.url], "").fine(), "hello\na\nb\n");
    server.join();
    let server = talkative();
    assert_eq!(run(&["--wait", "10s", &server.url], "x\n").fine(), "hello\na\nb\nx\n");
    server.join();
    let server = talkative();
    let ran = run(&["--count", "9", "--wait", "1s", &server.url], "");
    assert!(ran.code == 6 && ran.stderr.contains("3 of 9 messages"), "{ran:?}");
    server.join();
}
