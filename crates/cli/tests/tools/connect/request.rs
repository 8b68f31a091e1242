//! Contents of the handshake request.

use super::support::{Scripted, Server, echoed, run};

/// Checks the request that these options produce.
fn head(options: &[&str], check: impl FnOnce(&str) + Send + 'static) {
    let server = Scripted::serve(move |wire| {
        check(&wire.head);
        wire.switch("", b"");
        wire.echo();
    });
    assert_eq!(echoed(&[options, &[&server.url]].concat()).fine(), "hi\n");
    server.join();
}

#[test]
fn configured_headers_are_sent() {
    head(
        &["-H", "Cookie: a=b", "--header", "X-Twice:1", "-H", "X-Twice: 2", "--origin", "https://a.example"],
        |head| {
            for line in ["Cookie: a=b", "X-Twice: 1", "X-Twice: 2", "Origin: https://a.example"] {
                assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
            }
            assert!(!head.contains("Sec-WebSocket-Extensions"), "{head}");
        },
    );
    head(&["--bearer", "1234"], |head| {
        assert!(head.contains("\r\nAuthorization: Bearer 1234\r\n"), "{head}")
    });
    head(&["--user", "anna:sesame"], |head| {
        assert!(head.contains("\r\nAuthorization: Basic YW5uYTpzZXNhbWU=\r\n"), "{head}");
    });
}

#[test]
fn subprotocol_is_offered_and_reported() {
    let server = Scripted::serve(|wire| {
        assert_eq!(wire.header("sec-websocket-protocol"), Some("v2, v1"));
        wire.switch("Sec-WebSocket-Protocol: v1\r\n", b"");
        wire.echo();
    });
    let ran = run(&["-v", "--subprotocol", "v2", "--subprotocol", "v1", &server.url], "");
    ran.fine();
    assert!(ran.stderr.contains("subprotocol v1"), "{ran:?}");
    server.join();
}

#[test]
fn compression_is_negotiated_and_used() {
    let server = Server::start(&["--echo", "--deflate"]);
    let text = "again and ".repeat(1000) + "again\n";
    let ran = run(&["-v", "--deflate", "--count", "1", "--wait", "60s", &server.url], &*text);
    assert_eq!(ran.fine(), text);
    assert!(ran.stderr.contains("permessage-deflate"), "{ran:?}");
    let ran = run(&["-v", &server.url], &*text);
    assert!(!ran.stderr.contains("permessage-deflate"), "{ran:?}");
}

#[test]
fn redirects_are_followed_only_if_enabled() {
    let server = Server::echo();
    let away = |url: String| {
        Scripted::serve(move |wire| {
            wire.write(format!("HTTP/1.1 307 There\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n"));
        })
    };
    let first = away(server.url.clone());
    assert_eq!(echoed(&["--redirects", "1", &first.url]).fine(), "hi\n");
    first.join();
    let first = away(server.url.clone());
    assert_eq!(run(&[&first.url], "hi\n").code, 3);
    first.join();
}
