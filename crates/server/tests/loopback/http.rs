//! Plain HTTP: RFC 9110 and RFC 9112, and requests that must not break an upgrade.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sinews_server::{HeadLimits, HttpConfig, Response, Server};
use sinews_testkit::until;

use crate::support::{Answer, Client, LARGE, Running, get, handshake, patient, post, routes};

fn server() -> Running {
    Running::router(routes())
}

fn server_with(http: HttpConfig) -> Running {
    Running::server(Server::new(routes()).threads(1).http(http))
}

/// Short timeouts: a head, and any piece of a body, arrives at once or never.
fn short_waits(wait: Duration) -> HttpConfig {
    patient().with_head_timeout(wait).with_body_idle_timeout(wait)
}

/// Sends one request on a connection of its own, which has to end with the answer.
fn refused(server: &Running, request: impl AsRef<[u8]>) -> u16 {
    let mut client = server.connect();
    client.send(request).last_status()
}

/// A client with the answer to its first request, at a server with a short timeout of the head.
fn first_answer(server: &Running, request: impl AsRef<[u8]>) -> (Client, Answer) {
    loop {
        let mut client = server.connect();
        client.try_send(&request);
        if let Some(answer) = client.answer_if_in_time() {
            return (client, answer);
        }
    }
}

/// As [`refused`], at a server with a short timeout of the head.
fn timed_out(server: &Running, request: impl AsRef<[u8]>) -> u16 {
    let (mut client, answer) = first_answer(server, request);
    assert!(answer.closes(), "{}", answer.head);
    client.assert_end();
    answer.status
}

#[test]
fn connection_is_kept_for_further_requests() {
    let server = server();
    let mut client = server.connect();
    for _ in 0..3 {
        let answer = client.send(get("/")).answer();
        assert_eq!((answer.status, answer.text()), (200, "hello\n"));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("connection"), None);
    }
    assert_eq!(client.send(get("/name/a%20b%C3%BC")).answer().text(), "a bü");
    assert_eq!(client.send(get("/name/%FF")).answer().status, 400);
    assert_eq!(client.send(get("/nowhere")).answer().status, 404);
    assert_eq!(client.send(get("/")).answer().status, 200, "404 does not end the connection");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server();
    let many: String = (0..300).map(|number| get(&format!("/name/{number}"))).collect();
    let mut client = server.connect();
    client.send(many);
    for number in 0..300 {
        assert_eq!(client.answer().text(), number.to_string());
    }
    client.send(format!("{}{}{}", post("/body", "first"), get("/nowhere"), post("/body", "second")));
    assert_eq!(client.answer().text(), "first");
    assert_eq!(client.answer().status, 404);
    assert_eq!(client.answer().text(), "second");
}

#[test]
fn requests_parse_alike_however_they_are_split() {
    let server = server();
    let wire = format!("{}{}{}", get("/name/one"), post("/body", "two"), get("/name/three"));
    let expect = |client: &mut Client, how: &str| {
        for expected in ["one", "two", "three"] {
            assert_eq!(client.answer().text(), expected, "{how}");
        }
    };
    let mut client = server.connect();
    for byte in wire.as_bytes().chunks(1) {
        client.send(byte);
    }
    expect(&mut client, "one byte at a time");
    for cut in 0..=wire.len() {
        client.send(&wire[..cut]).send(&wire[cut..]);
        expect(&mut client, &format!("cut at {cut}"));
    }
}

#[test]
fn head_is_get_without_its_body() {
    let server = server();
    let mut client = server.connect();
    for (path, length) in [("/", 6), ("/large", LARGE)] {
        client.send(get(path).replace("GET", "HEAD"));
        let answer = client.answer_to("HEAD").unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-length"), Some(&*length.to_string()));
    }
    client.send(get("/echo").replace("GET", "HEAD"));
    assert_eq!(client.answer_to("HEAD").unwrap().status, 405);
    assert_eq!(client.send(get("/")).answer().text(), "hello\n", "no body is left over");
}

#[test]
fn answer_without_content_has_neither_length_nor_body() {
    let server = server();
    let mut client = server.connect();
    let answer = client.send(get("/nothing")).answer();
    assert_eq!((answer.status, answer.header("content-length")), (204, None));
    assert_eq!(client.send(get("/")).answer().text(), "hello\n");
}

#[test]
fn unsupported_method_is_answered_with_allow() {
    let server = server();
    let mut client = server.connect();
    for (method, path, allowed) in [
        ("POST", "/", "GET, HEAD, OPTIONS"),
        ("PUT", "/", "GET, HEAD, OPTIONS"),
        ("GET", "/body", "OPTIONS, POST"),
        ("DELETE", "/echo", "GET, OPTIONS"),
        ("get", "/", "GET, HEAD, OPTIONS"),
    ] {
        let answer = client.send(get(path).replacen("GET", method, 1)).answer();
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allowed)), "{method} {path}");
    }
    assert_eq!(client.send(get("/")).answer().status, 200);
}

#[test]
fn malformed_requests_end_the_connection() {
    let server = server();
    for (status, request) in [
        (400, "GET / HTTP/1.1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
        (400, "GET / HTTP/1.1\nHost: a\r\n\r\n"),
        (400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nName : value\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\n folded: value\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nName: v\0\r\n\r\n"),
        (400, "\x16\x03\x01\x02\0\x01\0\r\n\r\n"),
        (400, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc"),
        (400, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        (400, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    ] {
        // Later bytes are not taken for a request.
        assert_eq!(refused(&server, format!("{request}{}", get("/"))), status, "{request}");
    }
}

#[test]
fn oversized_requests_are_rejected() {
    let limits = HeadLimits::new().with_max_bytes(512).with_max_headers(4);
    let server = server_with(patient().with_head_limits(limits).with_max_body(10));
    let head = |len: usize| {
        let bare = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
        bare.replace("X: ", &format!("X: {}", "x".repeat(len - bare.len())))
    };
    let mut client = server.connect();
    assert_eq!(client.send(head(512)).answer().status, 200);
    assert_eq!(client.send(post("/body", "0123456789")).answer().text(), "0123456789");
    assert_eq!(refused(&server, head(513)), 431);
    assert_eq!(refused(&server, format!("GET /{} HTTP/1.1\r\n", "x".repeat(600))), 414);
    let lines = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(count));
    assert_eq!(client.send(lines(3)).answer().status, 200);
    assert_eq!(refused(&server, lines(4)), 431);
    assert_eq!(refused(&server, post("/body", "0123456789a")), 413);
    assert_eq!(
        refused(&server, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n"),
        413
    );
}

#[test]
fn connections_end_when_either_side_asks_for_it() {
    let server = server();
    let ends = |request: &str| {
        let mut client = server.connect();
        let answer = client.send(request).answer();
        assert_eq!(answer.status, 200);
        assert!(answer.closes());
        client.assert_end();
    };
    ends("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ends("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
    ends("GET / HTTP/1.0\r\n\r\n");
    let mut client = server.connect();
    for _ in 0..2 {
        let answer = client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer();
        assert_eq!(answer.header("connection"), Some("keep-alive"), "HTTP/1.0 needs the header");
    }
}

#[test]
fn client_that_has_closed_its_side_is_still_answered() {
    let server = server();
    let mut client = server.connect();
    client.send(get("/").repeat(3) + &get("/large")).half_close();
    for _ in 0..3 {
        assert_eq!(client.answer().text(), "hello\n");
    }
    assert_eq!(client.answer().body.len(), LARGE);
    client.assert_end();
    let mut client = server.connect();
    client.send("GET / HTT").half_close().assert_end();
    server.connect().half_close().assert_end();
}

#[test]
fn client_may_wait_for_100_continue() {
    let server = server();
    let expects = "POST /body HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
    let mut client = server.connect();
    for _ in 0..2 {
        let leave = client.send(expects).answer();
        assert_eq!((leave.status, &*leave.head), (100, "HTTP/1.1 100 Continue\r\n\r\n"));
        client.send("a").send("bc");
        assert_eq!(client.answer().text(), "abc");
    }
    client.send(format!("{expects}abc"));
    assert_eq!(client.answer().text(), "abc", "no 100 (Continue) is needed");
    assert_eq!(refused(&server, expects.replace(": 3", ": 99999999")), 413, "no leave for too much");
    let mut old = server.connect();
    old.send(expects.replace("1.1", "1.0"));
    // Earlier input has been handled when this is answered.
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
    old.send("abc");
    assert_eq!(old.answer().text(), "abc", "HTTP/1.0 knows no 100");
}

#[test]
fn chunked_bodies_are_decoded() {
    let server = server();
    let head = "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let wire = format!("{head}4;x=y\r\nWiki\r\n5\r\npedia\r\n0\r\nSum: 1\r\n\r\n{}", get("/name/next"));
    let mut client = server.connect();
    for cut in 0..=wire.len() {
        client.send(&wire[..cut]).send(&wire[cut..]);
        assert_eq!(client.answer().text(), "Wikipedia", "cut at {cut}");
        assert_eq!(client.answer().text(), "next", "cut at {cut}");
    }
    let expects = head.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.send(expects).answer().status, 100);
    assert_eq!(client.send("1\r\nx\r\n0\r\n\r\n").answer().text(), "x");
    let nowhere = wire.replace("/body", "/nowhere");
    client.send(nowhere);
    assert_eq!((client.answer().status, client.answer().text()), (404, "next"), "framing is kept on 404");
}

/// The bodies of these requests never arrive.
#[test]
fn request_is_rejected_by_its_head_at_once() {
    let server = server();
    let framings = ["Content-Length: 3", "Content-Length: 1000000", "Transfer-Encoding: chunked"];
    for (line, status) in [
        ("POST /nowhere", 404),
        ("POST /", 405),
        ("PUT /body", 405),
        ("GET /nowhere", 404),
        ("DELETE /", 405),
    ] {
        for framing in framings {
            let head = format!("{line} HTTP/1.1\r\nHost: a\r\n{framing}\r\n");
            assert_eq!(server.connect().send(format!("{head}\r\n")).answer().status, status, "{head}");
            let mut waiting = server.connect();
            waiting.send(format!("{head}Expect: 100-continue\r\n\r\n"));
            assert_eq!(waiting.last_status(), status, "{head}");
        }
    }
    let large = format!("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n", 1 << 21);
    assert_eq!(server.connect().send(format!("{large}Expect: 100-continue\r\n\r\n")).last_status(), 413);
}

#[test]
fn short_unwanted_body_is_discarded() {
    let server = server();
    let chunked =
        "POST /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let plain = post("/nowhere", &"x".repeat(64 << 10));
    let mut client = server.connect();
    for wire in [plain.clone(), post("/nowhere", "abc"), chunked.to_owned()] {
        let body = wire.find("\r\n\r\n").unwrap() + 4;
        for cut in [body, body + 1, wire.len() - 1, wire.len()] {
            assert_eq!(client.send(&wire[..cut]).answer().status, 404);
            client.send(format!("{}{}", &wire[cut..], get("/name/next")));
            assert_eq!(client.answer().text(), "next");
        }
    }
    let long = plain.replace("65536", "65537") + "x" + &get("/");
    assert_eq!(refused(&server, &long[..1_000]), 404);
    let malformed = chunked.replace("3\r\n", "z\r\n") + &get("/");
    client = server.connect();
    assert_eq!(client.send(malformed).answer().status, 404);
    client.assert_end();
}

#[test]
fn chunked_bodies_have_limits_and_one_meaning() {
    let server = server_with(patient().with_max_body(10));
    let head = "POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut client = server.connect();
    assert_eq!(client.send(format!("{head}a\r\n0123456789\r\n0\r\n\r\n")).answer().text(), "10");
    for (status, body) in [
        (413, "b\r\n"),
        (413, "a\r\n0123456789\r\n1\r\n"),
        (413, "ffffffffffffffff\r\n"),
        (400, "4\nWiki\r\n0\r\n\r\n"),
        (400, "4\r\nWiki5\r\n0\r\n\r\n"),
        (400, "0x4\r\nWiki\r\n0\r\n\r\n"),
    ] {
        assert_eq!(refused(&server, format!("{head}{body}{}", get("/"))), status, "{body}");
    }
    assert_eq!(refused(&server, format!("{head}0;{}\r\n\r\n", "x".repeat(5_000))), 413);
    let both = head.replace("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(refused(&server, format!("{both}0\r\n\r\n{}", get("/"))), 400);
    assert_eq!(refused(&server, head.replace("HTTP/1.1", "HTTP/1.0")), 400);
    assert_eq!(refused(&server, head.replace("chunked", "chunked, gzip")), 400);
    assert_eq!(refused(&server, head.replace("chunked", "gzip, chunked")), 501);
}

#[test]
fn request_has_a_head_timeout() {
    let wait = Duration::from_millis(20);
    let server = server_with(short_waits(wait).with_keep_alive_timeout(wait));
    let chunked = "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab";
    let cut = post("/body", "abc");
    for part in ["G", "GET / HTTP/1.1\r\nHost", &cut[..cut.len() - 1], &chunked[..chunked.len() - 5], chunked]
    {
        assert_eq!(timed_out(&server, part), 408, "{part}");
    }
    server.connect().assert_end();
    let (mut kept, answer) = first_answer(&server, get("/"));
    assert_eq!(answer.status, 200);
    kept.assert_end();
}

/// The client keeps its side open. The write timeout, which bounds the wait for a client that reads, is never reached.
#[test]
fn rejected_clients_are_not_awaited_for_long() {
    let wait = Duration::from_millis(20);
    let routes = routes();
    let monitor = routes.monitor();
    let http = patient().with_head_timeout(wait).with_http2_clear_text(true);
    let server = Running::server(Server::new(routes).threads(1).http(http));
    let large = format!("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 1 << 30);
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let mut clients: Vec<Client> = Vec::new();
    for part in ["G", "PRI * HT", "\0\r\n\r\n", &large, &long, &handshake("/echo", "").replace("13", "12")] {
        let mut client = server.connect();
        client.try_send(part);
        clients.push(client);
    }
    // The preface of HTTP/2 without SETTINGS.
    let mut http2 = server.connect();
    http2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    clients.push(http2);
    until("all connections are closed", || monitor.metrics().closed.total() >= clients.len() as u64);
}

#[test]
fn later_request_has_a_head_timeout_too() {
    let http = short_waits(Duration::from_millis(20));
    let server = server_with(http.with_keep_alive_timeout(Duration::from_secs(3_600)));
    let chunked = "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for part in ["GET / HTTP", chunked, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"] {
        let (mut client, answer) = first_answer(&server, get("/"));
        assert_eq!(answer.status, 200);
        assert_eq!(client.send(part).last_status(), 408, "{part}");
    }
}

/// Sends single bytes after `first` until the answer arrives.
fn drip(server: &Running, first: &str) -> Answer {
    let mut client = server.connect();
    client.send(first);
    let mut dripping = client.try_clone();
    let done = Arc::new(AtomicBool::new(false));
    let seen = done.clone();
    let drip = std::thread::spawn(move || {
        // At one system call for each byte, the whole request would take far longer.
        while !seen.load(Ordering::Relaxed) {
            dripping.send("x");
        }
    });
    let answer = client.answer();
    done.store(true, Ordering::Relaxed);
    drip.join().unwrap();
    answer
}

#[test]
fn slow_drip_of_bytes_does_not_extend_the_timeout() {
    let wait = Duration::from_millis(50);
    let limits = HeadLimits::new().with_max_bytes(64 << 20);
    let config = patient().with_max_body(64 << 20).with_head_limits(limits);
    let head = "POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 67108864\r\n\r\n";
    let chunked = "POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3ffffff\r\n";
    let server = server_with(config.clone().with_body_timeout(wait));
    assert_eq!(drip(&server, head).status, 408);
    assert_eq!(drip(&server, chunked).status, 408);
    let server = server_with(config.clone().with_min_upload_rate(64 << 20, wait));
    assert_eq!(drip(&server, head).status, 408);
    assert_eq!(drip(&server, chunked).status, 408);
    // The first bytes must arrive in time.
    let server = server_with(config.with_head_timeout(Duration::from_secs(3)));
    assert_eq!(drip(&server, "GET / HTTP/1.1\r\nHost: a\r\nX: ").status, 408);
}

/// A body that keeps arriving may take longer than the head timeout.
#[test]
fn body_has_its_own_timeout() {
    let wait = Duration::from_millis(20);
    let long = Duration::from_secs(3_600);
    let server = server_with(patient().with_head_timeout(wait).with_body_idle_timeout(long));
    let wire = post("/body", "abc");
    let answer = loop {
        let mut posting = server.connect();
        posting.try_send(&wire[..wire.len() - 1]);
        // Connections with missing heads time out meanwhile, one after the other.
        for _ in 0..5 {
            assert_eq!(timed_out(&server, "GET"), 408);
        }
        posting.try_send("c");
        if let Some(answer) = posting.answer_if_in_time() {
            break answer;
        }
    };
    assert_eq!(answer.text(), "abc");
}

#[test]
fn body_above_the_minimum_rate_is_accepted() {
    let wait = Duration::from_millis(20);
    let server = server_with(patient().with_head_timeout(wait).with_min_upload_rate(1, wait));
    let chunked = "POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n".to_owned();
    // Each has earned a quarter of an hour.
    for (first, last) in
        [(post("/length", &"x".repeat(1_000)), ""), (chunked + &"x".repeat(1_000), "\r\n0\r\n\r\n")]
    {
        let (first, rest) = first.split_at(first.len() - 1);
        let answer = loop {
            let mut posting = server.connect();
            posting.try_send(first);
            for _ in 0..5 {
                assert_eq!(timed_out(&server, "GET"), 408);
                assert_eq!(
                    timed_out(&server, post("/length", "abc").trim_end_matches("abc")),
                    408,
                    "nothing earned"
                );
            }
            posting.try_send([rest, last].concat());
            if let Some(answer) = posting.answer_if_in_time() {
                break answer;
            }
        };
        assert_eq!(answer.text(), "1000");
    }
}

#[test]
fn slow_reader_gets_all_answers() {
    // Far more answers than the sockets' buffers take.
    const COUNT: usize = 1_000;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let counted = routes().get("/counted", move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        Response::text(vec![b'x'; LARGE])
    });
    let server = Running::router(counted);
    let mut slow = server.connect();
    slow.send(get("/counted").repeat(COUNT) + &get("/name/last"));
    for _ in 0..100 {
        assert_eq!(server.connect().send(get("/")).answer().status, 200, "other clients are served");
    }
    let asked_unread = asked.load(Ordering::Relaxed);
    assert!(asked_unread < COUNT / 2, "{asked_unread} answers for one that reads none");
    for _ in 0..COUNT {
        assert_eq!(slow.answer().body.len(), LARGE);
    }
    assert_eq!(slow.answer().text(), "last");
    assert_eq!(asked.load(Ordering::Relaxed), COUNT);
}

#[test]
fn reset_at_any_point_does_not_affect_other_clients() {
    let server = server();
    let chunked = "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let mut witness = server.connect();
    for wire in [get("/large"), post("/body", "abc"), chunked.to_owned(), handshake("/echo", "")] {
        for len in 0..=wire.len() {
            let mut client = server.connect();
            client.send(&wire[..len]);
            client.reset();
        }
        assert_eq!(witness.send(get("/")).answer().status, 200);
        assert_eq!(server.connect().send(get("/")).answer().status, 200);
    }
}
