//! Client side: the request, and validation of the response.

use std::time::Duration;

use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::handshake::{
    ClientError, ClientHandshake, ClientRequest, ClientStep, Established, HandshakeMisuse,
};
use sinews_proto::http::{HeadError, HeadLimits};
use sinews_proto::{Role, Time};

use crate::Lines;

fn request() -> ClientRequest {
    ClientRequest::new("server.example.com", "/chat").expect("sound")
}

/// With the key of RFC 6455 section 1.3.
fn start(request: ClientRequest) -> ClientHandshake {
    request.start(*b"the sample nonce")
}

fn written(request: ClientRequest) -> String {
    let mut out = Vec::new();
    start(request).write_request(&mut out);
    String::from_utf8(out).expect("text")
}

fn answer() -> Lines {
    Lines::of(&[
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    ])
}

fn read(request: ClientRequest, answer: &Lines) -> Result<Established, ClientError> {
    match start(request).read_response(&answer.bytes())? {
        ClientStep::Done(established) => Ok(established),
        ClientStep::NeedMore => panic!("the answer is complete"),
    }
}

#[test]
fn request_matches_rfc_6455_section_4_1() {
    assert_eq!(
        written(request()),
        "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    let full = request()
        .with_subprotocol("b")
        .and_then(|request| request.with_subprotocol("a"))
        .and_then(|request| request.with_header("Origin", "http://example.com"))
        .expect("sound")
        .with_deflate(DeflateConfig::new().with_mode(DeflateMode::Dedicated));
    let text = written(full);
    assert!(text.contains("\r\nSec-WebSocket-Protocol: b, a\r\n"), "{text}");
    assert!(
        text.contains("\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"),
        "{text}"
    );
    assert!(text.ends_with("\r\nOrigin: http://example.com\r\n\r\n"), "{text}");
}

#[test]
fn caller_values_cannot_inject_header_lines() {
    for host in ["", "a\r\nX: y", "a b", "a/b", "u@a", "a\0", "a#b", "\u{e9}"] {
        assert_eq!(ClientRequest::new(host, "/").err(), Some(HandshakeMisuse::Host), "{host}");
    }
    for path in ["", "a", "/a b", "/a\r\nX: y", "/a\n", "/a\0", "/a#b", "/\u{e9}", "/\t", "http://a/"] {
        assert_eq!(ClientRequest::new("a", path).err(), Some(HandshakeMisuse::Path), "{path}");
    }
    for name in ["", "a b", "a\r\nb", "a,b"] {
        assert_eq!(request().with_subprotocol(name).err(), Some(HandshakeMisuse::Subprotocol), "{name}");
    }
    let twice = request().with_subprotocol("a").and_then(|request| request.with_subprotocol("a"));
    assert_eq!(twice.err(), Some(HandshakeMisuse::SubprotocolList));
    for (name, value, misuse) in [
        ("X", "a\r\nY: b", HandshakeMisuse::HeaderValue),
        ("X", "a\n", HandshakeMisuse::HeaderValue),
        ("X", "\0", HandshakeMisuse::HeaderValue),
        ("X\r", "a", HandshakeMisuse::HeaderName),
        ("", "a", HandshakeMisuse::HeaderName),
        ("host", "a", HandshakeMisuse::ReservedHeader),
        ("Connection", "close", HandshakeMisuse::ReservedHeader),
        ("Content-Length", "1", HandshakeMisuse::ReservedHeader),
        ("transfer-encoding", "chunked", HandshakeMisuse::ReservedHeader),
        ("sec-websocket-key", "a", HandshakeMisuse::ReservedHeader),
        ("Sec-WebSocket-Version", "8", HandshakeMisuse::ReservedHeader),
    ] {
        assert_eq!(request().with_header(name, value).err(), Some(misuse), "{name}");
    }
}

#[test]
fn valid_response_is_accepted() {
    let established = read(request(), &answer()).expect("sound");
    assert_eq!(established.consumed(), answer().bytes().len());
    assert_eq!((established.negotiated().role(), established.negotiated().deflate()), (Role::Client, None));
    assert_eq!(established.subprotocol(), None);
    for sound in [
        answer().replace("Upgrade", "WebSocket"),
        answer().replace("Connection", "keep-alive, UPGRADE"),
        answer().replace("Connection", "keep-alive").with("Connection: upgrade"),
        answer().first("HTTP/1.1 101 "),
        answer().first("HTTP/1.1 101"),
        answer().with("Set-Cookie: a=b"),
    ] {
        assert!(read(request(), &sound).is_ok());
    }
}

#[test]
fn upgrade_connection_and_accept_are_checked() {
    for (bad, error) in [
        (answer().without("Upgrade"), ClientError::Upgrade),
        (answer().replace("Upgrade", "h2c"), ClientError::Upgrade),
        (answer().replace("Upgrade", "websocket, h2c"), ClientError::Upgrade),
        (answer().with("Upgrade: websocket"), ClientError::Upgrade),
        (answer().without("Connection"), ClientError::Connection),
        (answer().replace("Connection", "close"), ClientError::Connection),
        (answer().without("Sec-WebSocket-Accept"), ClientError::Accept),
        (answer().replace("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo"), ClientError::Accept),
        (answer().replace("Sec-WebSocket-Accept", "S3pPLMBiTxaQ9kYGzzhZRbK+xOo="), ClientError::Accept),
        (answer().replace("Sec-WebSocket-Accept", ""), ClientError::Accept),
        (answer().with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), ClientError::Accept),
        (answer().first("HTTP/1.0 101 Switching Protocols"), ClientError::Version),
    ] {
        assert_eq!(read(request(), &bad).err(), Some(error));
    }
}

#[test]
fn subprotocol_must_be_offered() {
    let offer =
        || request().with_subprotocol("a").and_then(|request| request.with_subprotocol("b")).expect("tokens");
    let chosen = read(offer(), &answer().with("Sec-WebSocket-Protocol: b")).expect("offered");
    assert_eq!(chosen.subprotocol(), Some("b"));
    assert_eq!(read(offer(), &answer()).expect("none is allowed").subprotocol(), None);
    for bad in ["c", "B", "a, b", ""] {
        let answer = answer().with(&format!("Sec-WebSocket-Protocol: {bad}"));
        assert_eq!(read(offer(), &answer).err(), Some(ClientError::Subprotocol), "{bad}");
    }
    let twice = answer().with("Sec-WebSocket-Protocol: a").with("Sec-WebSocket-Protocol: a");
    assert_eq!(read(offer(), &twice).err(), Some(ClientError::Subprotocol));
    let unasked = answer().with("Sec-WebSocket-Protocol: a");
    assert_eq!(read(request(), &unasked).err(), Some(ClientError::Subprotocol));
}

/// Server takeover, client takeover, server bits, client bits; `None` if the response is rejected.
fn deflate(config: &DeflateConfig, extensions: &[&str]) -> Option<(bool, bool, u8, u8)> {
    let answer = extensions
        .iter()
        .fold(answer(), |answer, line| answer.with(&format!("Sec-WebSocket-Extensions: {line}")));
    match read(request().with_deflate(config.clone()), &answer) {
        Ok(established) => established.negotiated().deflate().map(|params| {
            (
                !params.server_no_context_takeover(),
                !params.client_no_context_takeover(),
                params.server_max_window_bits(),
                params.client_max_window_bits(),
            )
        }),
        Err(error) => {
            assert_eq!(error, ClientError::Extensions);
            None
        }
    }
}

fn dedicated() -> DeflateConfig {
    DeflateConfig::new().with_mode(DeflateMode::Dedicated)
}

#[test]
fn responses_within_the_offer_are_accepted() {
    for (parameters, params) in [
        ("", (true, true, 15, 15)),
        ("; server_no_context_takeover", (false, true, 15, 15)),
        ("; client_no_context_takeover", (true, false, 15, 15)),
        ("; server_max_window_bits=8", (true, true, 8, 15)),
        ("; server_max_window_bits=12; client_max_window_bits=9", (true, true, 12, 9)),
        ("; client_max_window_bits=\"15\"", (true, true, 15, 15)),
    ] {
        let extensions = format!("permessage-deflate{parameters}");
        assert_eq!(deflate(&dedicated(), &[&extensions]), Some(params), "{extensions}");
    }
    let none = read(request().with_deflate(dedicated()), &answer()).expect("declining is allowed");
    assert_eq!(none.negotiated().deflate(), None);
}

#[test]
fn responses_beyond_the_offer_fail_the_handshake() {
    for extensions in [
        &["permessage-deflate; server_max_window_bits=7"][..],
        &["permessage-deflate; server_max_window_bits=16"],
        &["permessage-deflate; server_max_window_bits=09"],
        &["permessage-deflate; server_max_window_bits"],
        &["permessage-deflate; client_max_window_bits"],
        // A limit that the client cannot keep.
        &["permessage-deflate; client_max_window_bits=8"],
        &["permessage-deflate; unknown"],
        &["permessage-deflate; server_no_context_takeover=1"],
        &["permessage-deflate; server_no_context_takeover; server_no_context_takeover"],
        &["permessage-deflate;"],
        &["permessage-deflate, permessage-deflate"],
        &["permessage-deflate", "permessage-deflate"],
        &["permessage-deflate, foo"],
        &["foo"],
        &[""],
    ] {
        assert_eq!(deflate(&dedicated(), extensions), None, "{extensions:?}");
    }
    let unasked = answer().with("Sec-WebSocket-Extensions: permessage-deflate");
    assert_eq!(read(request(), &unasked).err(), Some(ClientError::Extensions));
}

#[test]
fn response_must_contain_required_parameters() {
    // Shared mode disables takeover at both ends.
    let shared = DeflateConfig::new();
    assert!(written(request().with_deflate(shared.clone())).contains(
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover; client_max_window_bits\r\n"
    ));
    assert_eq!(deflate(&shared, &["permessage-deflate"]), None);
    // Restrictions announced by the client apply without an answer.
    let both = Some((false, false, 15, 15));
    assert_eq!(deflate(&shared, &["permessage-deflate; server_no_context_takeover"]), both);

    let narrow = dedicated()
        .with_server_max_window_bits(10)
        .and_then(|config| config.with_client_max_window_bits(12))
        .expect("in range");
    assert!(
        written(request().with_deflate(narrow.clone()))
            .contains("permessage-deflate; server_max_window_bits=10; client_max_window_bits=12\r\n")
    );
    for (parameters, params) in [
        ("; server_max_window_bits=10", Some((true, true, 10, 12))),
        ("; server_max_window_bits=9; client_max_window_bits=11", Some((true, true, 9, 11))),
        ("; server_max_window_bits=11", None),
        ("; server_max_window_bits=10; client_max_window_bits=13", None),
        ("", None),
    ] {
        assert_eq!(deflate(&narrow, &[&format!("permessage-deflate{parameters}")]), params, "{parameters}");
    }
}

#[test]
fn the_client_never_offers_a_window_of_8() {
    for bits in 9..=15 {
        let config = dedicated()
            .with_server_max_window_bits(bits)
            .and_then(|config| config.with_client_max_window_bits(bits))
            .expect("in range");
        assert!(!written(request().with_deflate(config)).contains("bits=8"));
    }
}

#[test]
fn extended_connect_has_neither_key_nor_connection_headers() {
    let request = request().with_subprotocol("v2").expect("a token").with_subprotocol("v1").expect("a token");
    let request = request.with_deflate(DeflateConfig::new()).with_header("Cookie", "a=b").expect("sound");
    let request = request.extended_connect().expect("sound");
    assert_eq!((request.authority(), request.path()), ("server.example.com", "/chat"));
    let headers: Vec<(String, String)> =
        request.headers().map(|(name, value)| (name.to_ascii_lowercase(), value.into_owned())).collect();
    let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["sec-websocket-version", "sec-websocket-protocol", "sec-websocket-extensions", "cookie"];
    assert_eq!(names, expected);
    assert_eq!((headers[0].1.as_str(), headers[1].1.as_str()), ("13", "v2, v1"));
    for name in ["Keep-Alive", "proxy-connection", "TE"] {
        let request = ClientRequest::new("a", "/").and_then(|request| request.with_header(name, "x"));
        let refused = request.and_then(ClientRequest::extended_connect);
        assert_eq!(refused.err(), Some(HandshakeMisuse::ReservedHeader), "{name}");
    }
}

#[test]
fn responses_to_extended_connect_are_checked() {
    let request = request().with_subprotocol("v1").expect("a token").with_deflate(dedicated());
    let request = request.extended_connect().expect("sound");
    let read = |status, headers: &[(&'static str, &'static str)]| {
        request.read_response(status, headers.iter().map(|&(name, value)| (name, value.as_bytes())))
    };
    let (protocol, extensions) = ("sec-websocket-protocol", "Sec-WebSocket-Extensions");
    let established = read(200, &[(protocol, "v1"), (extensions, "permessage-deflate")]).expect("sound");
    assert_eq!((established.subprotocol(), established.consumed()), (Some("v1"), 0));
    assert!(established.negotiated().deflate().is_some());
    assert_eq!(read(204, &[]).expect("any 2xx").negotiated().role(), Role::Client);
    assert_eq!(read(200, &[(protocol, "v2")]).err(), Some(ClientError::Subprotocol));
    assert_eq!(read(200, &[(protocol, "v1"), (protocol, "v1")]).err(), Some(ClientError::Subprotocol));
    assert_eq!(read(200, &[(extensions, "x-unknown")]).err(), Some(ClientError::Extensions));
    assert_eq!(read(200, &[("Content-Length", "0")]).err(), Some(ClientError::Content));
    for status in [101, 199, 300, 403] {
        let Err(ClientError::Status(rejection)) = read(status, &[("x-why", "no")]) else {
            panic!("{status}")
        };
        assert_eq!((rejection.status(), rejection.header("X-Why")), (status, Some(&b"no"[..])));
    }
}

#[test]
fn other_statuses_expose_headers_and_body() {
    let answer = b"HTTP/1.1 302 Found\r\nLocation: https://other.example/\r\nX: \xff\r\n\r\nmoved";
    let Err(ClientError::Status(rejection)) = start(request()).read_response(answer) else {
        panic!("a redirect is not followed");
    };
    assert_eq!((rejection.status(), rejection.body_start()), (302, &b"moved"[..]));
    assert_eq!(rejection.header("location"), Some(&b"https://other.example/"[..]));
    assert_eq!(rejection.headers().last(), Some(("X", &b"\xff"[..])));
    // Even with every header of a successful response (a proxy once accepted a 200).
    for status in [200, 204, 426, 500] {
        let lines = self::answer().first(&format!("HTTP/1.1 {status} x"));
        assert!(matches!(read(request(), &lines), Err(ClientError::Status(_))), "{status}");
    }
}

#[test]
fn interim_responses_are_skipped() {
    let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    let bytes = [&interim[..], &answer().bytes(), b"frame"].concat();
    let Ok(ClientStep::Done(done)) = start(request()).read_response(&bytes) else { panic!("sound") };
    assert_eq!(&bytes[done.consumed()..], b"frame");
    // They count towards the limit, so their number is bounded.
    let endless = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
    let error = start(request()).read_response(&endless).err();
    assert!(matches!(error, Some(ClientError::Head(HeadError::TooLarge | HeadError::FirstLineTooLong))));
}

#[test]
fn bytes_after_the_response_are_not_consumed() {
    let bytes = [&answer().bytes()[..], b"\x81\x01a"].concat();
    let Ok(ClientStep::Done(done)) = start(request()).read_response(&bytes) else { panic!("sound") };
    assert_eq!(&bytes[done.consumed()..], b"\x81\x01a");
}

#[test]
fn the_size_of_an_answer_is_limited() {
    let bytes = answer().bytes();
    let len = u32::try_from(bytes.len()).expect("small");
    let read = |max, lines| {
        let limits = HeadLimits::new().with_max_bytes(max).with_max_headers(lines);
        start(request().with_response_limits(limits)).read_response(&bytes).err()
    };
    assert_eq!(read(len, 3), None);
    assert_eq!(read(len - 1, 3), Some(ClientError::Head(HeadError::TooLarge)));
    assert_eq!(read(len, 2), Some(ClientError::Head(HeadError::TooManyHeaders)));
}

#[test]
fn answers_that_are_not_http_1_fail() {
    for bytes in
        [&b"\x81\x01a\r\n\r\n"[..], b"HTTP/2 101\r\n\r\n", b"HTTP/1.1 101 x\nUpgrade: websocket\r\n\r\n"]
    {
        assert!(matches!(start(request()).read_response(bytes), Err(ClientError::Head(_))));
    }
}

#[test]
fn response_timeout_is_not_extended_by_bytes() {
    let (wait, begun) = (Duration::from_secs(3), Time::from_millis(500));
    let mut handshake = request().with_timeout(wait).start_at([7; 16], begun);
    let end = begun + wait;
    assert_eq!(handshake.deadline(), Some(end));
    assert!(matches!(handshake.read_response(b"HTTP/1.1 101 Swi"), Ok(ClientStep::NeedMore)));
    assert_eq!(handshake.deadline(), Some(end), "bytes gain no time");
    assert_eq!(handshake.handle_timeout(Time::from_millis(3_499)), Ok(()));
    assert_eq!(handshake.handle_timeout(end), Err(ClientError::TimedOut));

    let usual = request().start_at([7; 16], begun);
    assert_eq!(usual.deadline(), Some(begun + Duration::from_secs(10)));
    let unbounded = request().start([7; 16]);
    assert_eq!((unbounded.deadline(), unbounded.handle_timeout(end)), (None, Ok(())));
}
