//! `sinews::accept` on in-memory streams, and over loopback where the system's behavior matters.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sinews::server::{AcceptPhase, HandshakeMisuse, HeadError, HeadLimits, Reject, Reply};
use sinews::{AcceptError, AtFault, Config, Message, OriginPolicy, accept};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::spawn::spawn;

/// The request of RFC 6455 section 1.3, with additional header lines.
fn request(lines: &str) -> String {
    format!(
        "GET /chat?room=7&token=a%20b+c HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\
         Sec-WebSocket-Version: 13\r\n\r\n"
    )
}

const HELLO: &[u8] = b"\x81\x85\x00\x00\x00\x00hello";
const CLOSE: &[u8] = b"\x88\x80\x00\x00\x00\x00";

/// Reads until the end of the stream.
async fn all(client: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.expect("a stream in memory");
    String::from_utf8(answer).expect("text")
}

/// Reads a head.
async fn head(client: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(client.read_u8().await.expect("a head"));
    }
    String::from_utf8(answer).expect("text")
}

/// The result of a rejected request: the error, and the response that the client reads.
async fn rejected(bytes: &[u8]) -> (AcceptError, String) {
    let (mut client, server) = duplex(64 << 10);
    client.write_all(bytes).await.expect("capacity for it");
    let accept = async { accept(server).await.expect_err("no WebSocket") };
    let client = async {
        let answer = all(&mut client).await;
        drop(client);
        answer
    };
    tokio::join!(accept, client)
}

#[tokio::test]
async fn request_split_at_any_byte_is_accepted() {
    let mut bytes = request("Sec-WebSocket-Protocol: chat\r\n").into_bytes();
    bytes.extend_from_slice(HELLO);
    bytes.extend_from_slice(CLOSE);
    for cut in 1..bytes.len() {
        let (mut client, server) = duplex(4096);
        let serving = spawn(async move {
            let (mut websocket, request) = accept(server).subprotocols(["chat"]).open().await?;
            assert_eq!(request.path(), "/chat");
            assert_eq!(websocket.subprotocol(), Some("chat"));
            let first = websocket.next().await.expect("a message").expect("in order");
            assert_eq!(first, Message::text("hello"));
            websocket.send(first).await.expect("sent");
            while websocket.next().await.is_some() {}
            Ok::<_, AcceptError>(())
        });
        client.write_all(&bytes[..cut]).await.expect("written");
        yield_now().await;
        client.write_all(&bytes[cut..]).await.expect("written");
        let answer = head(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "cut at {cut}: {answer}");
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(answer.contains("\r\nSec-WebSocket-Protocol: chat\r\n"));
        let mut frames = Vec::new();
        client.read_to_end(&mut frames).await.expect("read");
        assert_eq!(frames, b"\x81\x05hello\x88\x00", "cut at {cut}");
        drop(client);
        serving.await.expect("no panic").expect("accepted");
    }
}

#[tokio::test]
async fn handshake_succeeds_byte_by_byte() {
    let (mut client, server) = duplex(1);
    let client = async {
        client.write_all(request("").as_bytes()).await.expect("written");
        let answer = head(&mut client).await;
        client.write_all(HELLO).await.expect("written");
        (client, answer)
    };
    let (accepted, (_client, answer)) = tokio::join!(
        async {
            let mut websocket = accept(server).await.expect("accepted");
            websocket.next().await.expect("a message").expect("in order")
        },
        client
    );
    assert_eq!(accepted, Message::text("hello"));
    assert!(answer.ends_with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"));
}

#[tokio::test]
async fn client_and_server_of_this_crate_agree() {
    let (client, server) = duplex(4096);
    let connecting = sinews::connect("ws://example.com/chat?room=7").over(client);
    let (client, server) = tokio::join!(connecting.into_future(), accept(server).open());
    let (mut client, (mut server, request)) = (client.expect("connected"), server.expect("accepted"));
    assert_eq!(
        (request.authority(), request.query_value("room").as_deref()),
        (Some("example.com"), Some("7"))
    );
    client.send("hello").await.expect("sent");
    assert_eq!(server.next().await.expect("a message").expect("in order"), Message::text("hello"));
}

#[tokio::test]
async fn callback_gets_the_whole_request() {
    let peer: SocketAddr = "192.0.2.1:4711".parse().expect("an address");
    let (mut client, server) = duplex(4096);
    let lines = "X-Two: a\r\nCookie: a=1; session=xyz\r\nx-two: b\r\nCookie: b=\"2\"\r\nX-Raw: \u{e9}\r\n\
                 Sec-WebSocket-Protocol: v1, v2\r\nSec-WebSocket-Protocol: v3\r\n";
    client.write_all(request(lines).as_bytes()).await.expect("written");
    // Neither `Send` nor `'static`: a callback may borrow its environment.
    let seen = RefCell::new(Vec::new());
    let (_websocket, kept) = accept(server)
        .peer(peer)
        .on_request(|request| {
            let names = request.headers().map(|(name, _)| name.to_owned());
            seen.borrow_mut().extend(names);
            assert_eq!((request.method(), request.target()), ("GET", "/chat?room=7&token=a%20b+c"));
            assert_eq!((request.path(), request.query()), ("/chat", Some("room=7&token=a%20b+c")));
            assert_eq!(request.query_value("token").as_deref(), Some("a b c"));
            assert_eq!(request.query_value("none"), None);
            assert_eq!(request.authority(), Some("server.example.com"));
            assert_eq!(request.header_values("X-TWO").collect::<Vec<_>>(), [b"a", b"b"]);
            assert_eq!(request.header("x-raw"), Some("\u{e9}"));
            assert_eq!(
                request.cookies().collect::<Vec<_>>(),
                [("a", "1"), ("session", "xyz"), ("b", "\"2\"")]
            );
            assert_eq!(request.offered_subprotocols().collect::<Vec<_>>(), ["v1", "v2", "v3"]);
            assert_eq!(request.peer(), Some(peer));
            Ok(Reply::new().with_header("Set-Cookie", "a=2").with_header("set-cookie", "b=3"))
        })
        .open()
        .await
        .expect("accepted");
    assert_eq!(seen.borrow().len(), 12);
    assert_eq!(seen.borrow()[4..9], ["X-Two", "Cookie", "x-two", "Cookie", "X-Raw"]);
    assert_eq!(kept.cookie("session"), Some("xyz"));
    let answer = head(&mut client).await;
    assert!(answer.contains("\r\nSet-Cookie: a=2\r\nset-cookie: b=3\r\n"), "{answer}");
}

#[tokio::test]
async fn debug_output_contains_no_secrets() {
    let (mut client, server) = duplex(4096);
    client.write_all(request("Cookie: session=xyz\r\n").as_bytes()).await.expect("written");
    let (_websocket, request) = accept(server).open().await.expect("accepted");
    let shown = format!("{request:?}");
    assert!(shown.contains("Cookie") && !shown.contains("xyz") && !shown.contains("token"), "{shown}");
}

#[tokio::test]
async fn async_callback_is_awaited() {
    for (token, status) in [("a b c", 101), ("other", 403)] {
        let (mut client, server) = duplex(4096);
        client.write_all(request("").as_bytes()).await.expect("written");
        client.shutdown().await.expect("shut");
        let known = token.to_owned();
        let accept = accept(server).on_request_async(|request| async move {
            yield_now().await;
            match request.query_value("token") {
                Some(token) if token == known => Ok(Reply::new()),
                _ => Err(Reject::new(403).with_header("X-Why", "token").with_body("unknown token")),
            }
        });
        let opened = accept.await;
        let answer = all(&mut client_after(&opened, client)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        match opened {
            Ok(_) => assert_eq!(status, 101),
            Err(AcceptError::Rejected(refusal)) => {
                assert_eq!((refusal.status(), refusal.body()), (403, &b"unknown token"[..]));
                assert!(answer.contains("\r\nX-Why: token\r\n") && answer.ends_with("\r\n\r\nunknown token"));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// A client that only reads available bytes: an open connection would not end.
fn client_after<T>(opened: &Result<T, AcceptError>, client: DuplexStream) -> DuplexStream {
    let (mut filler, copy) = duplex(4096);
    if opened.is_err() {
        return client;
    }
    spawn(async move {
        let mut client = client;
        let answer = head(&mut client).await;
        let _ = filler.write_all(answer.as_bytes()).await;
    });
    copy
}

#[tokio::test]
async fn subprotocol_is_selected_by_server_preference_or_callback() {
    // Offered, supported, the callback's choice, and the result.
    let cases = [
        ("v1, v2", vec!["v2", "v1"], None, Some("v2")),
        ("v1, v2", vec![], None, None),
        ("v3", vec!["v2", "v1"], None, None),
        ("v1, v2", vec!["v2"], Some("v1"), Some("v1")),
        ("v1, v2", vec![], Some("v2"), Some("v2")),
        ("V1", vec!["v1"], None, None),
    ];
    for (offered, supported, chosen, expected) in cases {
        let (mut client, server) = duplex(4096);
        let line = format!("Sec-WebSocket-Protocol: {offered}\r\n");
        client.write_all(request(&line).as_bytes()).await.expect("written");
        let websocket = accept(server)
            .subprotocols(supported.iter().copied())
            .on_request(|_| Ok(chosen.map_or_else(Reply::new, |name| Reply::new().with_subprotocol(name))))
            .await
            .expect("accepted");
        assert_eq!(websocket.subprotocol(), expected, "{offered} {supported:?} {chosen:?}");
        let line = expected.map(|name| format!("\r\nSec-WebSocket-Protocol: {name}\r\n"));
        let answer = head(&mut client).await;
        match line {
            Some(line) => assert!(answer.contains(&line), "{answer}"),
            None => assert!(!answer.contains("Protocol:"), "{answer}"),
        }
    }
}

#[tokio::test]
async fn invalid_replies_are_500_and_misuse() {
    let cases: [(Result<Reply, Reject>, HandshakeMisuse); 6] = [
        (Ok(Reply::new().with_subprotocol("not-offered")), HandshakeMisuse::Subprotocol),
        (Ok(Reply::new().with_subprotocol("no token")), HandshakeMisuse::Subprotocol),
        (Ok(Reply::new().with_header("X-A", "1\r\nX-B: 2")), HandshakeMisuse::HeaderValue),
        (Ok(Reply::new().with_header("Sec-WebSocket-Accept", "x")), HandshakeMisuse::ReservedHeader),
        (Err(Reject::new(101)), HandshakeMisuse::Status),
        (Err(Reject::new(403).with_header("Content-Length", "7")), HandshakeMisuse::ReservedHeader),
    ];
    for (decision, expected) in cases {
        let (mut client, server) = duplex(4096);
        client.write_all(request("Sec-WebSocket-Protocol: v1\r\n").as_bytes()).await.expect("written");
        client.shutdown().await.expect("shut");
        let error = accept(server).on_request(|_| decision).await.expect_err("misuse");
        assert!(matches!(error, AcceptError::Misuse(found) if found == expected), "{error:?}");
        assert_eq!((error.at_fault(), error.status()), (AtFault::Caller, Some(500)));
        let answer = all(&mut client).await;
        assert!(
            answer.starts_with("HTTP/1.1 500 ") && answer.ends_with("\r\n\r\ninternal error"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn invalid_settings_are_reported() {
    let (mut client, server) = duplex(4096);
    client.write_all(request("").as_bytes()).await.expect("written");
    client.shutdown().await.expect("shut");
    let error = accept(server).subprotocols(["no token"]).await.expect_err("misuse");
    assert!(matches!(error, AcceptError::Misuse(HandshakeMisuse::Subprotocol)), "{error:?}");

    let (mut client, server) = duplex(4096);
    client.write_all(request("").as_bytes()).await.expect("written");
    client.shutdown().await.expect("shut");
    let error = accept(server).config(Config::default().with_max_message(0)).await.expect_err("misuse");
    assert!(matches!(error, AcceptError::Config(_)), "{error:?}");
}

#[tokio::test]
async fn non_websocket_requests_are_rejected_with_a_reason() {
    let sound = request("");
    let cases = [
        (sound.replace("GET", "POST"), 405, AtFault::Peer),
        (sound.replace("Upgrade: websocket\r\n", ""), 426, AtFault::Peer),
        (sound.replace("Version: 13", "Version: 8"), 426, AtFault::Peer),
        (sound.replace("HTTP/1.1", "HTTP/1.0"), 426, AtFault::Peer),
        (sound.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), 400, AtFault::Peer),
        (sound.replace("Host: server.example.com\r\n", ""), 400, AtFault::Peer),
        (request("Origin: https://elsewhere.example\r\n"), 403, AtFault::Peer),
        (sound.replace("HTTP/1.1", "HTTP/2.1"), 505, AtFault::Peer),
        (sound.replace("\r\n", "\n"), 400, AtFault::Peer),
    ];
    for (bytes, status, at_fault) in cases {
        let (error, answer) = rejected(bytes.as_bytes()).await;
        assert_eq!((error.status(), error.at_fault()), (Some(status), at_fault), "{bytes}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("close\r\n") && answer.contains("\r\nContent-Length: "), "{answer}");
    }
}

#[tokio::test]
async fn only_allowed_origins_are_accepted() {
    let own = "Origin: https://server.example.com\r\n";
    let other = "Origin: https://elsewhere.example\r\n";
    let listed = OriginPolicy::list(["https://elsewhere.example"]).expect("an origin");
    let cases = [
        (OriginPolicy::same_origin(), own, true),
        (OriginPolicy::same_origin(), "", true),
        (OriginPolicy::any(), other, true),
        (listed.clone(), other, true),
        (listed, own, false),
    ];
    for (policy, line, allowed) in cases {
        let (mut client, server) = duplex(4096);
        client.write_all(request(line).as_bytes()).await.expect("written");
        client.shutdown().await.expect("shut");
        let mut asked = false;
        let opened = accept(server).origin(policy).on_request(|_| {
            asked = true;
            Ok(Reply::new())
        });
        assert_eq!(opened.await.is_ok(), allowed, "{line}");
        assert_eq!(asked, allowed, "only requests of allowed origins are shown to the callback");
    }
}

#[tokio::test]
async fn head_limits_are_enforced() {
    let long = |bytes: usize| request(&format!("X-Long: {}\r\n", "x".repeat(bytes)));
    let (error, answer) = rejected(long(17 << 10).as_bytes()).await;
    assert!(matches!(error, AcceptError::Head(HeadError::TooLarge)), "{error:?}");
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");

    let first_line = format!("GET /{}", "x".repeat(17 << 10));
    let (error, answer) = rejected(first_line.as_bytes()).await;
    assert!(matches!(error, AcceptError::Head(HeadError::FirstLineTooLong)), "{error:?}");
    assert!(answer.starts_with("HTTP/1.1 414 "), "{answer}");

    let (error, _) = rejected(request(&"X: y\r\n".repeat(100)).as_bytes()).await;
    assert!(matches!(error, AcceptError::Head(HeadError::TooManyHeaders)), "{error:?}");

    let (mut client, server) = duplex(64 << 10);
    client.write_all(long(17 << 10).as_bytes()).await.expect("written");
    accept(server).head_limits(HeadLimits::new().with_max_bytes(32 << 10)).await.expect("accepted");
}

#[tokio::test(start_paused = true)]
async fn silent_client_gets_408() {
    let (mut client, server) = duplex(4096);
    let start = Instant::now();
    let (error, answer) = tokio::join!(accept(server), async {
        let answer = all(&mut client).await;
        drop(client);
        answer
    });
    let error = error.expect_err("no time");
    assert!(matches!(error, AcceptError::TimedOut(AcceptPhase::Head)), "{error:?}");
    assert_eq!((error.at_fault(), start.elapsed().as_secs()), (AtFault::Peer, 10));
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn slow_request_does_not_extend_the_timeout() {
    let (mut client, server) = duplex(4096);
    spawn(async move {
        for byte in request(&"X: y\r\n".repeat(50)).bytes() {
            if client.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let start = Instant::now();
    let error = accept(server).timeout(Duration::from_secs(3)).await.expect_err("no time");
    assert!(matches!(error, AcceptError::TimedOut(AcceptPhase::Head)), "{error:?}");
    // The client continues to send after the rejection: that ends too.
    assert_eq!(start.elapsed().as_secs(), 3 + 5);
}

#[tokio::test(start_paused = true)]
async fn pending_decision_times_out_with_503() {
    let (mut client, server) = duplex(4096);
    client.write_all(request("").as_bytes()).await.expect("written");
    client.shutdown().await.expect("shut");
    let error = accept(server).on_request_async(|_| std::future::pending()).await.expect_err("no time");
    assert!(matches!(error, AcceptError::TimedOut(AcceptPhase::Decision)), "{error:?}");
    assert_eq!(error.at_fault(), AtFault::Caller);
    assert!(all(&mut client).await.starts_with("HTTP/1.1 503 "));
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_the_response_times_out() {
    let (mut client, server) = duplex(4);
    let (error, client) = tokio::join!(accept(server), async {
        client.write_all(request("").as_bytes()).await.expect("written");
        client
    });
    let error = error.expect_err("no time");
    assert!(matches!(error, AcceptError::TimedOut(AcceptPhase::Response)), "{error:?}");
    assert_eq!(error.status(), None);
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn rejected_client_that_stays_connected_is_dropped() {
    let (mut client, server) = duplex(4096);
    client.write_all(request("").as_bytes()).await.expect("written");
    let start = Instant::now();
    let error = accept(server)
        .config(Config::default().with_close_timeout(Duration::from_secs(2)))
        .on_request(|_| Err(Reject::new(404)))
        .await
        .expect_err("refused");
    assert_eq!((error.status(), start.elapsed().as_secs()), (Some(404), 2));
    assert!(all(&mut client).await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn rejected_client_that_keeps_sending_is_dropped() {
    let (mut client, server) = duplex(16 << 10);
    let flood = spawn(async move {
        client.write_all(request("").as_bytes()).await.expect("written");
        let mut sent = 0;
        while client.write_all(&[0; 4096]).await.is_ok() {
            sent += 4096;
        }
        sent
    });
    accept(server).on_request(|_| Err(Reject::new(403))).await.expect_err("refused");
    let sent = flood.await.expect("no panic");
    assert!((256 << 10..512 << 10).contains(&sent), "{sent}");
}

#[tokio::test]
async fn client_disconnect_is_reported() {
    for (bytes, expected) in [("", 0), ("GET / HT", 8)] {
        let (mut client, server) = duplex(4096);
        client.write_all(bytes.as_bytes()).await.expect("written");
        drop(client);
        let error = accept(server).await.expect_err("no client");
        assert!(matches!(error, AcceptError::ClientLeft { received } if received == expected), "{error:?}");
        assert_eq!((error.at_fault(), error.status()), (AtFault::Transport, None));
    }
}

#[tokio::test]
async fn rejection_is_readable_with_frames_in_flight() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let client = spawn(async move {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(request("").as_bytes()).await?;
        stream.write_all(&[0; 200 << 10]).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    });
    let (stream, peer) = listener.accept().await.expect("a client");
    let refusing = accept(stream).peer(peer).on_request(|_| Err(Reject::new(401).with_body("who are you?")));
    refusing.await.expect_err("refused");
    let answer = client.await.expect("no panic").expect("no reset");
    assert!(answer.ends_with("\r\n\r\nwho are you?"), "{answer}");
}

#[cfg(feature = "deflate")]
#[tokio::test]
async fn deflate_is_accepted_if_configured() {
    let line = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    for set in [true, false] {
        let (mut client, server) = duplex(4096);
        client.write_all(request(line).as_bytes()).await.expect("written");
        let accept = accept(server);
        let accept = if set { accept.deflate(sinews::DeflateConfig::new()) } else { accept };
        let _websocket = accept.await.expect("accepted");
        let answer = head(&mut client).await;
        assert_eq!(answer.contains("\r\nSec-WebSocket-Extensions: permessage-deflate"), set, "{answer}");
    }
}

#[tokio::test]
async fn handshake_future_is_send_if_the_stream_is() {
    fn check<T: Send>(future: T) -> T {
        future
    }
    let (mut client, server) = duplex(4096);
    client.write_all(request("").as_bytes()).await.expect("written");
    let mine = Rc::new(());
    check(accept(server).into_future()).await.expect("accepted");

    let (mut client, server) = duplex(4096);
    client.write_all(request("").as_bytes()).await.expect("written");
    let on_this_thread = accept(server).on_request_async(move |_| async move {
        yield_now().await;
        drop(mine);
        Ok(Reply::new())
    });
    on_this_thread.await.expect("accepted");
}
