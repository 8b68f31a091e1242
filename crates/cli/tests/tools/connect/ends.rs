//! Ends of a run, by exit code.

use std::io::{BufRead as _, BufReader};
use std::process::Command;

use super::support::{Scripted, connect, run};

#[track_caller]
fn ends(code: i32, message: &str, arguments: &[&str], input: &str) {
    let ran = run(arguments, input);
    assert!(ran.code == code && ran.stderr.contains(message), "expected {code}, {message:?}: {ran:?}");
}

#[test]
fn failed_connection_exits_with_1() {
    // A free port of the system could become that of another test.
    ends(1, "cannot connect", &["ws://127.0.0.1:1/"], "");
    ends(1, "the scheme must be", &["ftp://localhost/"], "");
    ends(1, "no-such-file", &["--ca", "/no-such-file", "wss://localhost/"], "");
    ends(1, "no-such-file", &["--replay", "/no-such-file", "ws://localhost/"], "");
}

#[test]
fn conflicting_options_exit_with_2() {
    ends(2, "required", &[], "");
    ends(2, "cannot be used with", &["--listen", "127.0.0.1:0", "ws://localhost/"], "");
    ends(2, "two hosts", &["--connect-to", "nonsense", "ws://localhost/"], "");
    ends(2, "--key", &["--cert", "x", "ws://localhost/"], "");
    let (here, url) = ("127.0.0.1:0", "ws://localhost/");
    ends(2, "--listen is one", &["--inspect", "--listen", here], "");
    ends(2, "--replay FILE --inspect", &["--inspect", "--record", "x", url], "");
    ends(2, "--jsonl has no fields", &["--inspect", "--jsonl", url], "");
    ends(2, "leave --binary and --length-prefixed out", &["--inspect", "--binary", url], "");
    ends(2, "leave --binary and --length-prefixed out", &["--inspect", "--length-prefixed", url], "");
    ends(2, "--listen is one", &["--probe", "--listen", here], "");
    ends(2, "and no recording", &["--probe", "--replay", "x", url], "");
    ends(2, "--verbose shows the wire", &["--probe", "--record", "x", url], "");
}

#[test]
fn rejected_handshake_exits_with_3() {
    for (answer, message) in [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nnot today", "not today"),
        ("HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n", "302"),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "Accept"),
    ] {
        let server = Scripted::serve(move |wire| wire.write(answer));
        ends(3, message, &[&server.url], "hi\n");
        server.join();
    }
}

#[test]
fn peer_close_code_determines_the_exit_code() {
    for (close, code, message) in [
        (&b"\x88\x02\x03\xe8"[..], 0, ""),
        (b"\x88\x02\x03\xe9", 0, ""),
        (b"\x88\x00", 0, ""),
        (b"\x88\x05\x0f\xa0why", 4, "closed by the peer with 4000: why"),
        (b"\x88\x02\x03\xf3", 4, "1011"),
        (b"", 4, "without a Close"),
    ] {
        let server = Scripted::serve(move |wire| {
            wire.switch("", close);
            if !close.is_empty() {
                // After its answer to Close, the client waits for the end of the transport.
                while wire.frame().is_some_and(|(first, _)| first != 0x88) {}
            }
        });
        ends(code, message, &["--wait", "60s", &server.url], "");
        server.join();
    }
}

#[test]
fn protocol_violation_exits_with_5() {
    for (frame, message) in [
        (&b"\x81\x81abcd\0"[..], "server frame with mask"),
        (b"\x81\x01\xff", "not UTF-8"),
        (b"\x82\x05hello", "too big"),
    ] {
        let server = Scripted::serve(move |wire| {
            wire.switch("", frame);
            while wire.frame().is_some_and(|(first, _)| first != 0x88) {}
        });
        ends(5, message, &["--max-message", "4", "--count", "1", &server.url], "");
        server.join();
    }
}

#[test]
fn expired_timeout_exits_with_6() {
    let silent = || Scripted::serve(|wire| wire.drain());
    let server = silent();
    ends(6, "100ms", &["--connect-timeout", "100ms", &server.url], "");
    server.join();

    let open = || {
        Scripted::serve(|wire| {
            wire.switch("", b"");
            wire.drain();
        })
    };
    for (option, message) in [("--timeout", "--timeout"), ("--idle-timeout", "idle timeout")] {
        let server = open();
        ends(
            6,
            message,
            &[option, "100ms", "--close-timeout", "100ms", "--count", "1", "--wait", "1h", &server.url],
            "",
        );
        server.join();
    }
    let server = open();
    let waits = ["--ping-interval", "50ms", "--pong-timeout", "50ms", "--close-timeout", "100ms"];
    ends(6, "ping timeout", &[&waits[..], &["--count", "1", "--wait", "1h", &server.url]].concat(), "");
    server.join();
}

#[test]
fn interrupt_closes_the_connection() {
    let server = Scripted::serve(|wire| {
        wire.switch("", b"\x81\x05ready");
        assert_eq!(wire.frame(), Some((0x88, vec![0x03, 0xe8])));
        wire.write(b"\x88\x02\x03\xe8");
    });
    let mut child = connect(&[&server.url]).spawn().unwrap();
    let stdin = child.stdin.take();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(stdin);
    server.join();
}

#[test]
fn help_lists_the_exit_codes() {
    let help = run(&["--help"], "");
    for code in ["  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  6  ", "  7  "] {
        assert!(help.fine().contains(code), "{code}");
    }
}
