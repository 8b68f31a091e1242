//! Requests that two parsers in a row might understand differently, and floods: standards and known faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sinews_server::{HttpConfig, Response, Server};

use crate::support::{Running, get, handshake, routes};

/// Lines of a POST to `/body` behind `Host`, and what they are answered with.
const FRAMINGS: [(u16, &str); 34] = [
    // Two lengths, in any disguise (RFC 9112 section 6.3).
    (400, "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    (400, "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
    (400, "Content-Length: 3, 3\r\n\r\nabc"),
    (400, "Content-Length: 3\r\ncontent-length:3\r\n\r\nabc"),
    // What is no length.
    (400, "Content-Length: -3\r\n\r\nabc"),
    (400, "Content-Length: +3\r\n\r\nabc"),
    (400, "Content-Length: 0x3\r\n\r\nabc"),
    (400, "Content-Length: 3 \x0b\r\n\r\nabc"),
    (400, "Content-Length: 3.0\r\n\r\nabc"),
    (400, "Content-Length:\r\n\r\nabc"),
    (400, "Content-Length: 18446744073709551619\r\n\r\nabc"),
    // A length and a coding, either first.
    (400, "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    (400, "Content-Length: 5\r\nTransfer-Encoding: identity\r\n\r\nabcde"),
    // Codings twice, unknown, or in disguise.
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
    // Folded lines, bare line ends, bytes that some take for the end of a line.
    (400, "X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, "X: a\0b\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\n\n0\r\n\r\n"),
    (400, "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n"),
    (400, "Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n"),
    (413, "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffd\r\nabc\r\n0\r\n\r\n"),
];

/// What follows a request whose end is in doubt is no request.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A server, and how often it was led into `/smuggled`.
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
fn a_request_whose_end_is_in_doubt_ends_the_connection() {
    let (server, smuggled) = server();
    for (status, lines) in FRAMINGS {
        let wire = format!("POST /body HTTP/1.1\r\nHost: localhost\r\n{lines}{SMUGGLED}");
        assert_eq!(server.connect().send(&wire).last_status(), status, "{lines:?}");
    }
    assert_eq!(smuggled.load(Ordering::Relaxed), 0);
}

#[test]
fn it_does_so_however_it_is_cut() {
    let (server, smuggled) = server();
    for (status, lines) in FRAMINGS.iter().step_by(5) {
        let wire = format!("POST /body HTTP/1.1\r\nHost: localhost\r\n{lines}");
        for cut in 0..wire.len() {
            let mut client = server.connect();
            client.send(&wire[..cut]);
            // It may have ended by then.
            client.try_send(&wire[cut..]);
            client.try_send(SMUGGLED);
            assert_eq!(client.answer().status, *status, "{lines:?} cut at {cut}");
        }
    }
    assert_eq!(smuggled.load(Ordering::Relaxed), 0);
}

#[test]
fn whom_a_request_is_for_is_said_once() {
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
            // A path of empty segments is one.
            "//" => 404,
            _ => 400,
        };
        assert_eq!(answer.status, expected, "{target:?}");
    }
    let absolute = get("http://other.example/name/x");
    assert_eq!(
        server.connect().send(absolute).answer().text(),
        "x",
        "in absolute form, the target says whom"
    );
    assert!(smuggled.load(Ordering::Relaxed) <= 1, "behind the sound one only");
}

#[test]
fn nothing_is_smuggled_behind_a_handshake_that_is_refused() {
    let (server, smuggled) = server();
    for lines in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 0\r\n"] {
        let mut client = server.connect();
        client.send(handshake("/echo", lines) + SMUGGLED);
        if lines.contains(": 0") {
            // It has no body; what follows is of the WebSocket, which it makes no sense in.
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
fn chunks_may_have_extensions_and_trailers_that_mean_nothing() {
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
fn a_flood_of_header_lines_is_cut_off() {
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
        // More than any limit of a head, and less than a socket holds, so that nobody blocks.
        client.try_send(more.repeat((256 << 10) / more.len()));
        assert_eq!(client.answer().status, status, "{first:?}");
    }
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
}

#[test]
fn a_flood_of_requests_is_read_as_far_as_the_answers_are() {
    const COUNT: usize = 40_000;
    let (server, asked) = server();
    let mut client = server.connect();
    let mut sending = client.twin();
    let sender = std::thread::spawn(move || {
        let some = SMUGGLED.repeat(100);
        for _ in 0..COUNT / 100 {
            sending.send(&some);
        }
    });
    for _ in 0..100 {
        assert_eq!(server.connect().send(get("/")).answer().status, 200, "others are served");
    }
    let early = asked.load(Ordering::Relaxed);
    assert!(early < COUNT, "{early} answers that nobody reads");
    for _ in 0..COUNT {
        assert_eq!(client.answer().status, 200);
    }
    sender.join().unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), COUNT);
}

/// Many connections that say a little each hold nobody up, and end.
#[test]
fn those_who_never_finish_a_head_are_ended() {
    let http = HttpConfig::default().with_head_timeout(Duration::from_millis(50));
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
