//! Requests that two parsers in a row might understand differently, and floods: cases of standards and known
//! vulnerabilities.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sinews_server::{Response, Server};

use crate::support::{Running, get, handshake, patient, routes};

/// Header lines of a POST to `/body` after `Host`, and the status of the response.
const FRAMINGS: [(u16, &str); 34] = [
    // Two lengths, in any spelling (RFC 9112 section 6.3).
    (400, "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    (400, "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
    (400, "Content-Length: 3, 3\r\n\r\nabc"),
    (400, "Content-Length: 3\r\ncontent-length:3\r\n\r\nabc"),
    // An invalid length.
    (400, "Content-Length: -3\r\n\r\nabc"),
    (400, "Content-Length: +3\r\n\r\nabc"),
    (400, "Content-Length: 0x3\r\n\r\nabc"),
    (400, "Content-Length: 3 \x0b\r\n\r\nabc"),
    (400, "Content-Length: 3.0\r\n\r\nabc"),
    (400, "Content-Length:\r\n\r\nabc"),
    (400, "Content-Length: 18446744073709551619\r\n\r\nabc"),
    // A length and a coding, in either order.
    (400, "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    (400, "Content-Length: 5\r\nTransfer-Encoding: identity\r\n\r\nabcde"),
    // Codings twice, unknown, or obfuscated.
    (400, "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    (501, "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
    // Folded lines, bare line ends, bytes that some parsers take for the end of a line.
    (400, "X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "X: a\0b\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\n\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n"),
    (400, "Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n"),
    (413, "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffd\r\nabc\r\n0\r\n\r\n"),
];

/// Request that must not be read after a request with ambiguous framing.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A server, and a counter of requests to `/smuggled`.
fn server() -> (Running, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let router = routes().get("/smuggled", move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        Response::new(200).with_body(vec![b'x'; 500])
    });
    (Running::router(router), count)
}

#[test]
fn request_with_ambiguous_framing_ends_the_connection() {
    let (server, smuggled) = server();
    for (status, lines) in FRAMINGS {
        let wire = format!("POST /body HTTP/1.1\r\nHost: localhost\r\n{lines}{SMUGGLED}");
        assert_eq!(server.connect().send(&wire).last_status(), status, "{lines:?}");
    }
    assert_eq!(smuggled.load(Ordering::Relaxed), 0);
}

#[test]
fn ambiguous_framing_ends_the_connection_however_it_is_split() {
    let (server, smuggled) = server();
    for (status, lines) in FRAMINGS.iter().step_by(5) {
        let wire = format!("POST /body HTTP/1.1\r\nHost: localhost\r\n{lines}");
        for cut in 0..wire.len() {
            let mut client = server.connect();
            client.send(&wire[..cut]);
            // The connection may have ended by then.
            client.try_send(&wire[cut..]);
            client.try_send(SMUGGLED);
            assert_eq!(client.answer().status, *status, "{lines:?} cut at {cut}");
        }
    }
    assert_eq!(smuggled.load(Ordering::Relaxed), 0);
}

#[test]
fn request_has_exactly_one_host() {
    let (server, smuggled) = server();
    for lines in [
        "",
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nhost: b\r\n",
        "Host: a, b\r\n",
        "Host: a/b\r\n",
        "Host: a@b\r\n",
        "Host: a b\r\n",
        " Host: a\r\n",
        "Host : a\r\n",
    ] {
        let wire = format!("GET / HTTP/1.1\r\n{lines}\r\n{SMUGGLED}");
        assert_eq!(server.connect().send(wire).last_status(), 400, "{lines:?}");
    }
    for target in ["*", "a", "//", "http://", "http:///", "http://a b/", "ftp://a/", "/a b", "/\x7f", "/#a"] {
        let answer = server.connect().send(get(target) + SMUGGLED).answer();
        let expected = match target {
            // A path of empty segments is valid.
            "//" => 404,
            _ => 400,
        };
        assert_eq!(answer.status, expected, "{target:?}");
    }
    let absolute = get("http://other.example/name/x");
    assert_eq!(
        server.connect().send(absolute).answer().text(),
        "x",
        "in absolute form, the target names the host"
    );
    assert!(smuggled.load(Ordering::Relaxed) <= 1, "only after the valid request");
}

#[test]
fn no_request_is_smuggled_after_a_rejected_handshake() {
    let (server, smuggled) = server();
    for lines in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 0\r\n"] {
        let mut client = server.connect();
        client.send(handshake("/echo", lines) + SMUGGLED);
        if lines.contains(": 0") {
            // It has no body; later bytes belong to the WebSocket, for which they are invalid.
            let mut peer = client.upgraded();
            peer.expect_close(1002);
        } else {
            assert_eq!(client.last_status(), 400, "{lines:?}");
        }
    }
    for path in ["/", "/nowhere", "/body"] {
        let status = server.connect().send(handshake(path, "") + SMUGGLED).last_status();
        assert!([200, 404, 405].contains(&status), "{path}: {status}");
    }
    assert_eq!(smuggled.load(Ordering::Relaxed), 0);
}

#[test]
fn chunk_extensions_and_trailers_are_ignored() {
    let (server, smuggled) = server();
    let wire = format!(
        "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
         3;a;b=c;d=\"e\"\r\nabc\r\n0;last\r\nContent-Length: 100\r\nHost: evil\r\n\r\n{SMUGGLED}"
    );
    let mut client = server.connect();
    for cut in 0..=wire.len() {
        client.send(&wire[..cut]).send(&wire[cut..]);
        assert_eq!(client.answer().text(), "abc", "cut at {cut}");
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(smuggled.load(Ordering::Relaxed), wire.len() + 1, "each a request of its own");
}

#[test]
fn flood_of_header_lines_is_cut_off() {
    let (server, _) = server();
    let endless = [
        ("GET / HTTP/1.1\r\nHost: a\r\n".to_owned(), "X: y\r\n", 431),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: ".to_owned(), "yyyyyyyy", 431),
        ("GET /".to_owned(), "yyyyyyyy", 414),
        (
            "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".to_owned(),
            "X: y\r\n",
            413,
        ),
        (
            "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;".to_owned(),
            "yyyyyyyy",
            413,
        ),
    ];
    for (first, more, status) in endless {
        let mut client = server.connect();
        client.send(&first);
        // More than any limit of a head, and less than a socket's buffers, so that the send does not block.
        client.try_send(more.repeat((256 << 10) / more.len()));
        assert_eq!(client.answer().status, status, "{first:?}");
    }
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
}

#[test]
fn flood_of_requests_is_read_only_as_fast_as_answers_are() {
    const COUNT: usize = 40_000;
    let (server, asked) = server();
    let mut client = server.connect();
    let mut sending = client.try_clone();
    let sender = std::thread::spawn(move || {
        let some = SMUGGLED.repeat(100);
        for _ in 0..COUNT / 100 {
            sending.send(&some);
        }
    });
    for _ in 0..100 {
        assert_eq!(server.connect().send(get("/")).answer().status, 200, "other clients are served");
    }
    let early = asked.load(Ordering::Relaxed);
    assert!(early < COUNT, "{early} answers that are not read");
    for _ in 0..COUNT {
        assert_eq!(client.answer().status, 200);
    }
    sender.join().unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), COUNT);
}

/// Many connections with partial heads delay no other connection, and end.
#[test]
fn connections_with_partial_heads_time_out() {
    let http = patient().with_head_timeout(Duration::from_secs(10));
    let server = Running::server(Server::new(routes()).threads(1).http(http));
    let mut slow: Vec<_> = (0..200)
        .map(|number| {
            let mut client = server.connect();
            let request = get("/");
            client.send(&request[..1 + number % (request.len() - 1)]);
            client
        })
        .collect();
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
    for client in &mut slow {
        assert_eq!(client.last_status(), 408);
    }
}
