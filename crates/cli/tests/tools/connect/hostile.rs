//! Texts of a hostile peer: none of them controls the terminal, or appears as a line of the program.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::support::{RunOutput, Scripted, connect, run};

/// Escape sequences of ASCII and of Latin 1 (C1), a line of its own, and a mark that reverses text.
const HOSTILE: &str = "a\x1b]0;title\x07\x1b[2J\u{9b}31m\u{7f}\u{202e}\r\nFAKE\n";

#[track_caller]
fn assert_harmless(output: &str, case: &str) {
    let controls = |char: char| (char.is_control() && char != '\n' && char != '\t') || char == '\u{202e}';
    assert!(!output.contains(controls), "{case}: {output:?}");
    assert!(!output.lines().any(|line| line.trim_start_matches(['<', ' ']) == "FAKE"), "{case}: {output:?}");
}

/// Standard output has bytes of messages only in a pipe without `--jsonl` and `--inspect`.
#[track_caller]
fn assert_output_harmless(output: &RunOutput, is_formatted: bool, case: &str) {
    assert_harmless(&output.stderr, case);
    if is_formatted {
        assert_harmless(&String::from_utf8_lossy(&output.stdout), case);
    }
}

const MODES: [(&[&str], bool); 6] = [
    (&[], false),
    (&["--verbose"], false),
    (&["--jsonl", "--verbose"], true),
    (&["--inspect"], true),
    (&["--inspect", "--verbose"], true),
    (&["--probe", "--verbose"], true),
];

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(payload.len()).unwrap()], payload].concat()
}

#[test]
fn rejections_cannot_control_the_terminal() {
    let line = HOSTILE.replace(['\r', '\n'], "");
    for answer in [
        format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{HOSTILE}", HOSTILE.len()),
        format!("HTTP/1.1 403 {line}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 403 No\r\nX-A: {line}\r\nWWW-Authenticate: {line}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 302 Found\r\nLocation: /{line}\r\nContent-Length: 0\r\n\r\n"),
        format!("{HOSTILE}\r\n\r\n"),
        format!("HTTP/1.1 101 {line}\r\nUpgrade: {line}\r\nConnection: Upgrade\r\n\r\n"),
    ] {
        for (mode, is_formatted) in MODES {
            let answer = answer.clone();
            let server = Scripted::serve(move |wire| wire.write(answer.as_str()));
            let ran = run(&[mode, &[&server.url]].concat(), "");
            assert_output_harmless(&ran, is_formatted, &format!("{mode:?}"));
            server.join();
        }
    }
}

#[test]
fn frames_cannot_control_the_terminal() {
    let close = frame(0x88, &[&4000_u16.to_be_bytes(), HOSTILE.as_bytes()].concat());
    for sent in [
        close.clone(),
        [frame(0x89, HOSTILE.as_bytes()), close.clone()].concat(),
        [frame(0x8a, HOSTILE.as_bytes()), close.clone()].concat(),
        [frame(0x81, HOSTILE.as_bytes()), close.clone()].concat(),
        [frame(0x82, HOSTILE.as_bytes()), close.clone()].concat(),
        [frame(0x83, HOSTILE.as_bytes()), close].concat(),
    ] {
        for (mode, is_formatted) in MODES.into_iter().filter(|(mode, _)| !mode.contains(&"--probe")) {
            let (sent, is_violation) = (sent.clone(), sent[0] == 0x83);
            let server = Scripted::serve(move |wire| {
                wire.switch("", &sent);
                while wire.frame().is_some_and(|(first, _)| first != 0x88) {}
            });
            let ran = run(&[mode, &["--wait", "60s", &server.url]].concat(), "");
            assert_output_harmless(&ran, is_formatted, &format!("{mode:?}"));
            assert!(
                is_violation || is_formatted || ran.stderr.contains("FAKE"),
                "the reason is shown: {ran:?}"
            );
            server.join();
        }
    }
}

#[test]
fn hostile_clients_cannot_control_the_terminal_of_a_server() {
    for target in ["/\u{9b}31m", "/a\x1b[2J", "/\u{202e}"] {
        let mut child =
            connect(&["--listen", "127.0.0.1:0", "--verbose", "--jsonl", "--once"]).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let (mut log, mut byte) = (Vec::new(), [0]);
        while !log.ends_with(b"\n") {
            stderr.read_exact(&mut byte).unwrap();
            log.push(byte[0]);
        }
        let address = String::from_utf8(log.clone()).unwrap();
        let address = address.trim().rsplit("://").next().unwrap().trim_end_matches('/').to_owned();
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        if head.ends_with(b"101") {
            // A masked Close with a reason; the mask is zero.
            let payload = [&4000_u16.to_be_bytes(), HOSTILE.as_bytes()].concat();
            let head = [0x88, 0x80 | u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0];
            stream.write_all(&[&head[..], &payload].concat()).unwrap();
        }
        drop(stream);
        // A rejected client does not end the run.
        if !head.ends_with(b"101") {
            drop(child.stdin.take());
            let process = child.id().to_string();
            assert!(
                std::process::Command::new("kill").args(["-s", "INT", &process]).status().unwrap().success()
            );
        }
        stderr.read_to_end(&mut log).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_harmless(&String::from_utf8_lossy(&log), target);
        assert_harmless(&String::from_utf8_lossy(&output.stdout), target);
    }
}
