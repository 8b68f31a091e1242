//! HTTP heads: parsing, rejection, and cost.

use sinews_proto::http::{
    HeadError, HeadLimits, HeadScanner, HeaderSlots, RequestHead, ResponseHead, Version,
};

use crate::{Lines, with_head};

fn error_of(bytes: &[u8]) -> Option<HeadError> {
    with_head(bytes, |_| ()).err()
}

/// A GET with `Host` and these header lines.
fn get(lines: &[&str]) -> Vec<u8> {
    lines.iter().fold(Lines::of(&["GET / HTTP/1.1", "Host: a"]), |head, line| head.with(line)).bytes()
}

#[test]
fn request_head_is_parsed() {
    let bytes = b"GET /a/b?c=d?e HTTP/1.1\r\nHOST: a.example:80\r\nX: \t1 2\t \r\nEmpty:\r\nx: 3\r\n\r\nrest";
    with_head(bytes, |head| {
        assert_eq!((head.method(), head.target(), head.version()), ("GET", "/a/b?c=d?e", Version::Http11));
        assert_eq!(
            (head.path(), head.query(), head.authority()),
            ("/a/b", Some("c=d?e"), Some("a.example:80"))
        );
        assert_eq!(head.header("x").collect::<Vec<_>>(), [&b"1 2"[..], b"3"]);
        assert_eq!(head.header("empty").collect::<Vec<_>>(), [b""]);
        assert_eq!(head.headers().count(), 4);
        assert_eq!(head.wire_len(), bytes.len() - 4);
    })
    .expect("sound");
}

#[test]
fn targets_have_one_of_four_forms() {
    for (line, path, query, authority) in [
        ("GET / HTTP/1.1", "/", None, "h"),
        ("GET /? HTTP/1.1", "/", Some(""), "h"),
        ("GET //x HTTP/1.1", "//x", None, "h"),
        ("GET /http://x HTTP/1.1", "/http://x", None, "h"),
        ("GET http://other:81/p?q HTTP/1.1", "/p", Some("q"), "other:81"),
        ("GET HTTPS://other HTTP/1.1", "/", None, "other"),
        ("GET http://other?q HTTP/1.1", "/", Some("q"), "other"),
        ("OPTIONS * HTTP/1.1", "*", None, "h"),
        ("CONNECT a:443 HTTP/1.1", "a:443", None, "h"),
    ] {
        with_head(&Lines::of(&[line, "Host: h"]).bytes(), |head| {
            assert_eq!(
                (head.path(), head.query(), head.authority()),
                (path, query, Some(authority)),
                "{line}"
            );
        })
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for line in [
        "GET * HTTP/1.1",
        "GET x HTTP/1.1",
        "GET /#x HTTP/1.1",
        "GET ftp://a/ HTTP/1.1",
        "GET http:///x HTTP/1.1",
        "GET http://u@a/ HTTP/1.1",
        "CONNECT /x HTTP/1.1",
        "GET /\u{e9} HTTP/1.1",
    ] {
        let error = error_of(&Lines::of(&[line, "Host: h"]).bytes()).expect(line);
        assert_eq!(error.status(), 400, "{line}");
    }
}

#[test]
fn request_lines_are_exact() {
    for line in [
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET /",
        "GET\t/ HTTP/1.1",
        "GET / http/1.1",
        "G@T / HTTP/1.1",
        "GET / HTTPS/1.1",
        "",
    ] {
        assert_eq!(
            error_of(&Lines::of(&[line, "Host: h"]).bytes()).map(HeadError::status),
            Some(400),
            "{line}"
        );
    }
}

#[test]
fn unsupported_versions_are_505() {
    for version in ["2.0", "1.2", "3.0", "0.9"] {
        let bytes = Lines::of(&[&format!("GET / HTTP/{version}"), "Host: h"]).bytes();
        assert_eq!(error_of(&bytes).map(HeadError::status), Some(505), "{version}");
    }
    assert_eq!(error_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").map(HeadError::status), Some(505));
}

#[test]
fn one_leading_empty_line_is_skipped() {
    let request = get(&[]);
    let one = [b"\r\n", &request[..]].concat();
    assert_eq!(with_head(&one, |head| head.wire_len()), Ok(one.len()));
    assert_eq!(error_of(&[b"\r\n\r\n", &request[..]].concat()).map(HeadError::status), Some(400));
    assert_eq!(error_of(&[b"\n", &request[..]].concat()).map(HeadError::status), Some(400));
}

#[test]
fn line_feeds_need_carriage_returns() {
    for bytes in [
        &b"GET / HTTP/1.1\nHost: a\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: a\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET / HTTP/1.1\r\nHost: a\n\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(error_of(bytes), Some(HeadError::BareLineFeed), "{}", bytes.escape_ascii());
    }
}

#[test]
fn folded_and_malformed_header_lines_are_refused() {
    for line in [
        "X: a\r\n b",
        "X: a\r\n\tb",
        " X: a",
        "X : a",
        "X",
        ": a",
        "X\u{e9}: a",
        "X: a\rb",
        "X: a\0b",
        "X: a\u{7f}b",
        "X y: a",
    ] {
        assert_eq!(error_of(&get(&[line])), Some(HeadError::Syntax), "{}", line.escape_debug());
    }
    assert_eq!(error_of(&Lines::of(&["GET / HTTP/1.1", " Host: a"]).bytes()), Some(HeadError::Syntax));
}

#[test]
fn non_ascii_header_values_are_kept_as_bytes() {
    let bytes = get(&["X: \u{e9}"]);
    let value = with_head(&bytes, |head| head.header("x").next().map(<[u8]>::to_vec)).expect("sound");
    assert_eq!(value.as_deref(), Some("\u{e9}".as_bytes()));
}

#[test]
fn host_is_a_single_authority() {
    let host = |lines: &[&str]| {
        let head = lines.iter().fold(Lines::of(&["GET / HTTP/1.1"]), |head, line| head.with(line));
        error_of(&head.bytes())
    };
    for line in ["Host: a", "Host: a.example:8080", "host: [::1]:80", "Host:", "Host: a:", "Host: a_b%20c=d"]
    {
        assert_eq!(host(&[line]), None, "{line:?}");
    }
    for lines in [&[][..], &["Host: a", "Host: a"]] {
        assert_eq!(host(lines), Some(HeadError::Host), "{lines:?}");
    }
    for wrong in [
        "a b", "a/b", "u@a", "a#", "a:b", "a:8:8", "a:8.", "::1", "[::1", "[]", "[::1]a", "a[b]", "a]",
        "a%2", "a%zz",
    ] {
        assert_eq!(host(&[&format!("Host: {wrong}")]), Some(HeadError::Host), "{wrong:?}");
    }
    assert_eq!(error_of(b"GET / HTTP/1.0\r\n\r\n"), None);
}

#[test]
fn content_length_is_one_plain_number() {
    let length = |lines: &[&str]| with_head(&get(lines), |head| head.content_length());
    assert_eq!(length(&[]), Ok(None));
    assert_eq!(length(&["Content-Length: 0"]), Ok(Some(0)));
    assert_eq!(length(&["content-length: 18446744073709551615"]), Ok(Some(u64::MAX)));
    for lines in [
        &["Content-Length: 5", "Content-Length: 6"][..],
        &["Content-Length: 5", "Content-Length: 5"],
        &["Content-Length: 5, 5"],
        &["Content-Length: +5"],
        &["Content-Length: -5"],
        &["Content-Length:"],
        &["Content-Length: 0x5"],
        &["Content-Length: 5 5"],
        &["Content-Length: 18446744073709551616"],
    ] {
        assert_eq!(length(lines), Err(HeadError::ContentLength), "{lines:?}");
    }
}

#[test]
fn transfer_encoding_is_chunked_alone() {
    let chunked =
        |lines: &[&str]| with_head(&get(lines), |head| head.is_chunked()).map_err(HeadError::status);
    assert_eq!(chunked(&[]), Ok(false));
    assert_eq!(chunked(&["Transfer-Encoding: chunked"]), Ok(true));
    assert_eq!(chunked(&["transfer-encoding: Chunked"]), Ok(true));
    for (lines, status) in [
        (&["Transfer-Encoding: chunked", "Content-Length: 5"][..], 400),
        (&["Content-Length: 5", "Transfer-Encoding: chunked"], 400),
        (&["Content-Length: 0", "Transfer-Encoding: identity"], 400),
        (&["Transfer-Encoding: chunked, chunked"], 400),
        (&["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
        (&["Transfer-Encoding: chunked, gzip"], 400),
        (&["Transfer-Encoding: gzip"], 400),
        (&["Transfer-Encoding: xchunked"], 400),
        (&["Transfer-Encoding: \"chunked\""], 400),
        (&["Transfer-Encoding:"], 400),
        (&["Transfer-Encoding: gzip, chunked"], 501),
        (&["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"], 501),
    ] {
        assert_eq!(chunked(lines), Err(status), "{lines:?}");
    }
    let old = Lines::of(&["GET / HTTP/1.0", "Transfer-Encoding: chunked"]).bytes();
    assert_eq!(error_of(&old), Some(HeadError::TransferEncoding));
}

#[test]
fn connections_persist_as_rfc_9112_says() {
    for (version, line, expected) in [
        ("1.1", "X: y", true),
        ("1.1", "Connection: close", false),
        ("1.1", "Connection: Upgrade, CLOSE", false),
        ("1.1", "Connection: keep-alive, Upgrade", true),
        ("1.0", "X: y", false),
        ("1.0", "Connection: Keep-Alive", true),
        ("1.0", "Connection: keep-alive, close", false),
    ] {
        let bytes = Lines::of(&[&format!("GET / HTTP/{version}"), "Host: a", line]).bytes();
        assert_eq!(with_head(&bytes, |head| head.keep_alive()), Ok(expected), "{version} {line}");
    }
}

#[test]
fn the_size_of_a_head_is_limited_to_the_byte() {
    let head = get(&["X: 1234567890"]);
    let len = u32::try_from(head.len()).expect("small");
    let scan = |max| HeadScanner::new().scan(&head, &HeadLimits::new().with_max_bytes(max));
    assert_eq!(scan(len + 1), Ok(Some(head.len())));
    assert_eq!(scan(len), Ok(Some(head.len())));
    assert_eq!(scan(len - 1), Err(HeadError::TooLarge));
    assert_eq!(HeadError::TooLarge.status(), 431);
    // An incomplete head of that size cannot become smaller.
    let limits = HeadLimits::new().with_max_bytes(len);
    assert_eq!(HeadScanner::new().scan(&vec![b'a'; head.len()], &limits), Err(HeadError::FirstLineTooLong));
    assert_eq!(HeadScanner::new().scan(&vec![b'a'; head.len() - 1], &limits), Ok(None));
}

#[test]
fn a_request_line_over_the_limit_is_414() {
    let long = format!("\r\nGET /{} HTTP/1.1\r\n", "a".repeat(20_000));
    let error = HeadScanner::new().scan(long.as_bytes(), &HeadLimits::new()).expect_err("over 16 KiB");
    assert_eq!((error, error.status()), (HeadError::FirstLineTooLong, 414));
}

#[test]
fn the_number_of_header_lines_is_limited_to_the_line() {
    let parse = |lines: usize, limits: HeadLimits| {
        let head = (1..lines).fold(Lines::of(&["GET / HTTP/1.1", "Host: a"]), |head, _| head.with("X: y"));
        let bytes = head.bytes();
        RequestHead::parse(&bytes, &limits, &mut HeaderSlots::new()).map(|head| head.headers().count())
    };
    let most = HeadLimits::HEADERS_MAX;
    assert_eq!(parse(most, HeadLimits::new()), Ok(most));
    assert_eq!(parse(most + 1, HeadLimits::new()), Err(HeadError::TooManyHeaders));
    assert_eq!(HeadError::TooManyHeaders.status(), 431);
    let ten = HeadLimits::new().with_max_headers(10);
    assert_eq!(parse(10, ten), Ok(10));
    assert_eq!(parse(11, ten), Err(HeadError::TooManyHeaders));
    assert_eq!(HeadLimits::new().with_max_headers(usize::MAX).max_headers(), most);
}

/// Work for a head in one-byte segments is linear in its length: scanned bytes are not scanned again. This
/// test replaces them by line feeds, which a second scan would report. Only the last three stay, since the
/// end of a head has four bytes.
#[test]
fn head_in_one_byte_segments_is_scanned_once() {
    let head = get(&["X: 1", "Y: 2"]);
    let limits = HeadLimits::new();
    let mut scanner = HeadScanner::new();
    let mut received = Vec::new();
    for (at, &byte) in head.iter().enumerate() {
        received.push(byte);
        let expected = (at + 1 == head.len()).then_some(head.len());
        assert_eq!(scanner.scan(&received, &limits), Ok(expected));
        let old = received.len().saturating_sub(3);
        received[..old].fill(b'\n');
    }
    assert!(size_of::<HeadScanner>() <= 8);
}

#[test]
fn a_scanner_is_ready_for_the_next_head() {
    let limits = HeadLimits::new();
    let mut scanner = HeadScanner::new();
    let first = get(&["X: 1"]);
    let both = [&first[..], &get(&[])].concat();
    assert_eq!(scanner.scan(&first[..10], &limits), Ok(None));
    assert_eq!(scanner.scan(&both, &limits), Ok(Some(first.len())));
    assert_eq!(scanner.scan(&both[first.len()..], &limits), Ok(Some(both.len() - first.len())));
}

#[test]
fn pipelined_heads_use_the_same_slots() {
    let received = [get(&["A: 1", "B: 2"]), get(&[]), get(&["C: 3"])].concat();
    let limits = HeadLimits::new();
    let mut slots = HeaderSlots::new();
    let mut scanner = HeadScanner::new();
    let mut rest = &received[..];
    let mut counts = Vec::new();
    while let Some(end) = scanner.scan(rest, &limits).expect("sound") {
        let head = RequestHead::parse(&rest[..end], &limits, &mut slots).expect("sound");
        counts.push(head.headers().count());
        rest = &rest[end..];
    }
    assert_eq!(counts, [3, 1, 2]);
}

#[test]
fn incomplete_head_is_an_error_not_a_panic() {
    let head = get(&[]);
    for end in 0..head.len() {
        let mut slots = HeaderSlots::new();
        let parsed = RequestHead::parse(&head[..end], &HeadLimits::new(), &mut slots);
        assert_eq!(parsed.err().map(HeadError::status), Some(400), "{end}");
    }
}

#[test]
fn response_head_is_parsed() {
    let bytes = b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\nrest";
    let limits = HeadLimits::new();
    let mut slots = HeaderSlots::new();
    let head = ResponseHead::parse(bytes, &limits, &mut slots).expect("sound");
    assert_eq!((head.status(), head.version(), head.wire_len()), (302, Version::Http11, bytes.len() - 4));
    assert_eq!(head.headers().collect::<Vec<_>>(), [("Location", &b"/x"[..])]);
    assert_eq!(head.header("LOCATION").count(), 1);
    for bad in [
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 x\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
    ] {
        let mut slots = HeaderSlots::new();
        assert!(ResponseHead::parse(bad.as_bytes(), &limits, &mut slots).is_err(), "{bad}");
    }
}
