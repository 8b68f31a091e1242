//! `--inspect`: its output, and violations in responses and frames. Unit tests cover all violations; these tests run
//! examples of each kind through the whole program.

use super::support::{Scripted, Server, run};

#[test]
fn handshake_heads_and_frames_are_shown() {
    let server = Server::start(&["--echo", "--deflate"]);
    let ran = run(
        &["--inspect", "--deflate", "--commands", &server.url],
        "hello\n/ping p\n/hex 00ff\n/close 4000 bye\n",
    );
    let shown = ran.fine();
    for line in [
        "> GET / HTTP/1.1\n",
        "> Sec-WebSocket-Version: 13\n",
        "> Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\n",
        "< HTTP/1.1 101 Switching Protocols\n",
        "fin rsv1 text, mask ",
        "    inflates to 5 bytes\n    \"hello\"\n",
        "< frame 2  8a 01  fin pong, 1 bytes\n    \"p\"\n    after ",
        "    4000 bye\n",
        "< transport ended\n",
    ] {
        assert!(shown.contains(line), "{line:?} in {shown}");
    }
    assert!(!shown.contains(" ! "), "{shown}");
}

#[test]
fn long_payloads_are_truncated() {
    let server = Server::echo();
    let ran = run(&["--inspect", "--excerpt", "4", &server.url], "0123456789\n");
    assert!(ran.fine().contains("\"0123\" … 10 bytes in all"), "{ran:?}");
}

#[test]
fn violations_are_named_and_inspection_continues() {
    let ext = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    for (further, frames, sections) in [
        ("", &b"\x81\x82\0\0\0\0hi"[..], &["RFC 6455 section 5.1"][..]),
        ("", b"\x91\x02hi", &["RFC 6455 section 5.2"]),
        ("", b"\x83\x02hi", &["RFC 6455 section 5.2"]),
        ("", b"\x81\x7e\x00\x02hi", &["RFC 6455 section 5.2"]),
        ("", b"\x09\x02hi", &["RFC 6455 section 5.5"]),
        ("", b"\x80\x02hi", &["RFC 6455 section 5.4"]),
        ("", b"\x81\x02\xff\xfe", &["RFC 6455 section 8.1"]),
        (ext, b"\xc1\x02\xff\xff", &["RFC 6455 section 4.1 item 5", "RFC 7692 section 7.2.2"]),
        ("Sec-WebSocket-Protocol: x\r\n", b"", &["RFC 6455 section 4.1 item 6"]),
        ("Sec-WebSocket-Accept: x\r\n", b"", &["RFC 6455 section 11.3.3"]),
    ] {
        let server = Scripted::serve(move |wire| {
            wire.switch(further, frames);
            wire.write(b"\x81\x04more\x88\x02\x03\xed");
            while wire.frame().is_some_and(|(first, _)| first != 0x88) {}
        });
        let ran = run(&["--inspect", "--count", "9", &server.url], "");
        let name = frames.escape_ascii();
        for section in sections.iter().chain(&["RFC 6455 section 7.4.1"]) {
            assert!(
                ran.text().contains(&format!("    ! {section}: ")),
                "{further}{name}: {section} in {}",
                ran.text()
            );
        }
        assert_eq!(ran.text().matches(" ! ").count(), sections.len() + 1, "{name}: {}", ran.text());
        assert!(ran.text().contains("\"more\""), "later frames are shown: {}", ran.text());
        assert!(ran.code == 5 && ran.stderr.contains("violation"), "{ran:?}");
        server.join();
    }
}

#[test]
fn transport_end_without_close_is_named() {
    let server = Scripted::serve(|wire| wire.switch("", b"\x81\x05hel"));
    let ran = run(&["--inspect", "--count", "1", &server.url], "");
    assert!(
        ran.text().contains("! RFC 6455 section 5.2: the transport ends within a frame, 2 bytes"),
        "{ran:?}"
    );
    assert!(ran.text().contains("! RFC 6455 section 7.1.1: the transport ends without a Close"), "{ran:?}");
    assert!(ran.text().contains("\"hel\""), "the received part is shown: {ran:?}");
    server.join();
}

#[test]
fn rejected_handshake_is_shown() {
    let server =
        Scripted::serve(|wire| wire.write("HTTP/1.1 200 OK\nServer : x\r\nContent-Length: 2\r\n\r\nno"));
    let ran = run(&["--inspect", &server.url], "");
    assert_eq!(ran.code, 3);
    for line in [
        "< HTTP/1.1 200 OK (a bare LF)\n",
        "! RFC 9112 section 2.2: ",
        "! RFC 9112 section 5.1: ",
        "! RFC 6455 section 4.1 item 1: the status is 200, and not 101",
    ] {
        assert!(ran.text().contains(line), "{line} in {}", ran.text());
    }
    server.join();
}

#[test]
fn request_headers_may_be_invalid() {
    let server = Scripted::serve(|wire| {
        assert_eq!((wire.header("upgrade"), wire.header("sec-websocket-version")), (None, Some("8")));
        wire.switch("", b"");
        wire.echo();
    });
    let ran = run(&["--inspect", "-H", "Upgrade:", "-H", "sec-websocket-version: 8", &server.url], "");
    assert!(ran.text().contains("! RFC 6455 section 4.2.1 item 3: 101 to a request without"), "{ran:?}");
    assert!(ran.text().contains("! RFC 6455 section 4.2.1 item 6: "), "{ran:?}");
    server.join();
}
