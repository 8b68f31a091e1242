//! Servers that stall, corrupt, disconnect or reject: each failure is counted by its name.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::support::{Answer, http, json, run, server, websocket};
use crate::directory::Directory;

/// The errors of a run against this URL.
fn errors(arguments: &[&str]) -> serde_json::Value {
    let (result, run) = json(&[arguments, &["--timeout", "5s", "--warm-up", "0s"]].concat());
    assert!(!run.success, "{result:#}");
    assert!(run.stderr.contains("errors"), "{}", run.stderr);
    result["errors"].clone()
}

#[track_caller]
fn counts(errors: &serde_json::Value, kind: &str) {
    assert!(errors[kind].as_u64().is_some_and(|count| count > 0), "{kind} in {errors}");
}

#[test]
fn server_stall_shows_in_open_loop_percentiles() {
    const STALL: Duration = Duration::from_secs(1);
    let stalled = Arc::new(AtomicBool::new(false));
    let address = websocket(move |number, bytes| {
        if number == 20 && !stalled.swap(true, Ordering::Relaxed) {
            thread::sleep(STALL);
        }
        Answer::Echo(bytes)
    });
    let url = format!("ws://{address}/");
    let (result, run) = json(&[&url, "-c", "1", "--rate", "100", "-d", "2s", "--warm-up", "0s"]);
    assert!(run.success, "{}", run.stderr);
    let latency = |name: &str| result["latency_us"][name].as_f64().unwrap();
    assert_eq!(result["latency_us"]["count"], 200, "every due message counts");
    assert!(latency("max") >= 1e6, "{result:#}");
    // Of 200 messages, 100 were due during the stall, 50 of them in its first half.
    assert!(latency("p75") >= 4e5, "messages due during the stall count their delay: {result:#}");
}

#[test]
fn missing_answer_counts_with_its_timeout() {
    let silent = websocket(|_, _| Answer::Raw(Vec::new()));
    let url = format!("ws://{silent}/");
    let arguments = [&url[..], "-c", "3", "-d", "200ms", "--timeout", "5s", "--warm-up", "0s"];
    let (result, run) = json(&arguments);
    assert!(!run.success);
    assert_eq!((&result["errors"]["no_answer"], &result["messages"]), (&3.into(), &0.into()));
    // Each message due before the end of the measurement waited until the timeout.
    assert!(result["latency_us"]["min"].as_f64().unwrap() >= 5e6, "{result:#}");
    assert!(result["warnings"][0].as_str().unwrap().contains("no answer arrived"));
}

#[test]
fn wrong_bytes_are_detected_at_any_position() {
    for place in [0, 63] {
        let liar = websocket(move |number, mut bytes| {
            bytes[place] ^= u8::from(number == 7);
            Answer::Echo(bytes)
        });
        counts(&errors(&[&format!("ws://{liar}/"), "-c", "1", "-n", "20"]), "wrong_bytes");
    }
    let shorter = websocket(|_, bytes| Answer::Echo(bytes[1..].to_vec()));
    counts(&errors(&[&format!("ws://{shorter}/"), "-c", "1", "-n", "20"]), "wrong_bytes");
}

#[test]
fn reordered_echoes_are_errors() {
    let address = websocket({
        move |number, bytes| {
            thread_local!(static HELD: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) });
            // Each answer is the previous message: right bytes at the wrong position.
            let before = HELD.with_borrow_mut(|held| std::mem::replace(held, bytes));
            if number == 1 { Answer::Raw(Vec::new()) } else { Answer::Echo(before) }
        }
    });
    // The second answer arrives as the first: the order is shifted by one message.
    let (result, run) =
        json(&[&format!("ws://{address}/"), "-c", "1", "-i", "2", "-n", "9", "--timeout", "5s"]);
    assert!(!run.success && result["errors"]["no_answer"].as_u64() >= Some(1), "{result:#}");
}

#[test]
fn disconnects_and_rejections_are_distinguished() {
    let closes = websocket(|number, bytes| if number < 3 { Answer::Echo(bytes) } else { Answer::End });
    let all = errors(&[&format!("ws://{closes}/"), "-c", "2", "-n", "20"]);
    assert!(["closed_by_server", "reset_by_server"].iter().any(|kind| all[kind].is_number()), "{all}");
    counts(&all, "no_answer");
    let says_goodbye = websocket(|_, _| Answer::Raw(vec![0x88, 2, 0x03, 0xE9]));
    counts(&errors(&[&format!("ws://{says_goodbye}/"), "-c", "1", "-n", "2"]), "closed_by_server");
    let forbids = http(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    counts(&errors(&[&format!("ws://{forbids}/"), "-c", "1", "-n", "2"]), "handshake_refused");
    // A free port of the system could become that of another test.
    counts(&errors(&["ws://127.0.0.1:1/", "-c", "1", "-n", "2"]), "connection_refused");
}

#[test]
fn protocol_violations_are_counted() {
    let frame = websocket(|_, _| Answer::Raw(vec![0xFF; 20]));
    counts(&errors(&[&format!("ws://{frame}/"), "-c", "1", "-n", "2"]), "protocol_violation");
    let unasked = websocket(|_, bytes| Answer::Raw([&[0x82, 1, b'x'][..], &bytes[..0]].concat()));
    counts(&errors(&[&format!("ws://{unasked}/"), "-c", "1", "-n", "2"]), "wrong_bytes");
    let garbage = server(|mut stream| drop(stream.write_all(&[b'x'; 100_000])));
    let all = errors(&[&format!("ws://{garbage}/"), "-c", "1", "-n", "2"]);
    assert!(["handshake_refused", "reset_by_server"].iter().any(|kind| all[kind].is_number()), "{all}");
    for (answer, kind) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n"[..], "protocol_violation"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "protocol_violation"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "http_status"),
    ] {
        counts(&errors(&[&format!("http://{}/", http(answer)), "-c", "1", "-n", "2"]), kind);
    }
}

#[test]
fn errors_precede_figures_and_replace_missing_ones() {
    let missing = http(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let wrong = run(&[&format!("http://{missing}/"), "-c", "2", "-n", "4", "--warm-up", "0s", "-q"]);
    let reason = wrong.stdout.lines().nth(1).unwrap_or_default();
    assert!(!wrong.success && reason.contains("4 × http_status"), "{}", wrong.stdout);
    let url = format!("ws://{missing}/");
    let directory = Directory::new();
    let report = directory.path("report.html");
    let run = run(&[&url, "-c", "2", "-n", "4", "--warm-up", "0s", "-q", "--report", &report]);
    assert!(!run.success, "{}", run.stdout);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[1].contains("handshake_refused"), "the reason is the first line: {}", run.stdout);
    assert!(lines[2].contains("no figures") && lines.len() == 3, "{}", run.stdout);
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("<tr><th>handshake_refused</th>") && page.contains("no answer arrived"), "{page}");
    assert!(!page.contains("<svg") && !page.contains("echoes, verified</th>"), "{page}");
}
