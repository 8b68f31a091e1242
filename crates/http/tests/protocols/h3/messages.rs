//! Messages: RFC 9114 sections 4.1.2 to 4.4, and extended CONNECT (RFC 9220). The rules of fields are those of HTTP/2, whose
//! tests have all cases.

use sinews_http::h3::{Config, Event, H3Code, RequestTarget};
use sinews_http::{HeadLimits, OwnedHead, Version};

use super::support::*;

/// Checks that a server rejects a request with these fields as malformed, and goes on.
fn malformed(fields: &[(&str, &str)]) {
    malformed_with(Config::new(), fields);
}

fn malformed_with(config: Config, fields: &[(&str, &str)]) {
    let mut server = Side::with(config);
    server.rejects(0, &headers(fields), H3Code::H3_MESSAGE_ERROR, &format!("{fields:?}"));
    assert_eq!(server.connection.take_rejected(), 1);
    server.ask(4);
}

fn get_with<'a>(fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET.iter().chain(fields).copied().collect()
}

/// Checks that a request is valid, and copies its head.
fn valid(config: Config, fields: &[(&str, &str)]) -> (OwnedHead, Option<String>) {
    let mut server = Side::with(config);
    server.open(0).expect("a new stream");
    let request = headers(fields);
    let event = server.connection.receive(id(0), &mut &request[..], false, &mut server.fields, server.now);
    match event {
        Ok(Some(Event::Request { head, .. })) => {
            (head.to_owned_head().expect("a valid head"), head.protocol().map(str::to_owned))
        }
        other => panic!("{fields:?}: {other:?}"),
    }
}

/// RFC 9114 sections 4.2, 4.3 and 10.3.
#[test]
fn malformed_requests_are_rejected() {
    for fields in [
        get_with(&[("Upper", "x")]),
        get_with(&[("", "x")]),
        get_with(&[("a b", "x")]),
        get_with(&[("x", "a\r\nb: c")]),
        get_with(&[("x", "a\0")]),
        get_with(&[("x", " a")]),
        get_with(&[("connection", "close")]),
        get_with(&[("transfer-encoding", "chunked")]),
        get_with(&[("te", "gzip")]),
        get_with(&[("x", "y"), (":method", "GET")]),
        get_with(&[(":path", "/")]),
        get_with(&[(":unknown", "x")]),
        get_with(&[(":status", "200")]),
        get_with(&[(":protocol", "websocket")]),
        get_with(&[("host", "other.example")]),
        get_with(&[("content-length", "1x")]),
        get_with(&[("content-length", "0"), ("content-length", "0")]),
        GET[1..].to_vec(),
        GET[..2].to_vec(),
        GET[..3].to_vec(),
        vec![GET[0], GET[1], (":path", ""), GET[3]],
        vec![GET[0], GET[1], GET[2], (":authority", "a@b")],
        vec![(":method", "CONNECT"), (":authority", "example.com")],
        vec![(":method", "CONNECT"), (":authority", "a:1"), (":path", "/"), (":scheme", "https")],
    ] {
        malformed(&fields);
    }
    let (owned, _) =
        valid(Config::new(), &get_with(&[("cookie", "a=b"), ("cookie", "c=d"), ("te", "trailers")]));
    let head = owned.head();
    assert_eq!((head.version(), head.authority()), (Version::Http3, Some("example.com")));
    assert_eq!(head.header("cookie").next(), Some(&b"a=b; c=d"[..]));
}

/// RFC 9114 section 4.1.2.
#[test]
fn content_length_equals_the_length_of_data() {
    let request = headers(&[POST[0], POST[1], POST[2], POST[3], ("content-length", "5")]);
    for (content, ends) in [
        (frame(DATA, b"123456"), false),
        (frame(DATA, b"1234"), true),
        (Vec::new(), true),
        (headers(&[("a", "b")]), false),
        ([frame(DATA, b"12345"), frame(DATA, b"6")].concat(), false),
    ] {
        let mut server = Side::new();
        server.receive(0, &request).expect("a valid head");
        let seen = if ends { server.receive_last(0, &content) } else { server.receive(0, &content) };
        let seen = seen.expect("no connection error");
        assert_eq!(seen.last(), Some(&SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)), "{content:?}");
        assert_eq!(server.signals().len(), 2);
        server.ask(4);
    }
    let mut server = Side::new();
    server.receive(0, &request).expect("a valid head");
    let seen = server.receive_last(0, &[frame(DATA, b"123"), frame(DATA, b"45")].concat());
    let data = |data: &[u8]| SeenEvent::Data(0, data.to_vec());
    assert_eq!(seen, Ok(vec![data(b"123"), data(b"45"), SeenEvent::End(0)]));
}

/// RFC 9114 sections 4.1 and 4.3.
#[test]
fn trailers_have_no_pseudo_header_fields() {
    for fields in [(":path", "/"), ("A", "b"), ("connection", "close"), ("content-length", "0")] {
        let mut server = Side::posted();
        let seen = server.receive(0, &headers(&[fields]));
        assert_eq!(seen, Ok(vec![SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)]));
    }
}

/// RFC 9114 section 4.1: a stream without a request.
#[test]
fn incomplete_requests_are_rejected() {
    let mut server = Side::new();
    server.rejects(0, &[], H3Code::H3_REQUEST_INCOMPLETE, "empty");
    server.rejects(4, &frame(0x21, b"x"), H3Code::H3_REQUEST_INCOMPLETE, "grease only");
    assert_eq!(server.connection.take_rejected(), 2);
}

/// RFC 9114 section 4.2.2.
#[test]
fn field_section_beyond_the_limit_is_answered_431_and_the_connection_continues() {
    let config = Config::new().with_head(HeadLimits::new().with_max_bytes(400).with_max_headers(4));
    let long = "x".repeat(300);
    for fields in [get_with(&[("x", &long)]), get_with(&[("a", ""); 8])] {
        let mut server = Side::with(config);
        assert_eq!(server.receive(0, &headers(&fields)), Ok(vec![SeenEvent::TooLarge(0)]));
        server.head(0, 431, true);
        server.connection.reset(id(0), H3Code::H3_NO_ERROR);
        assert_eq!(server.signals(), [(false, 0, H3Code::H3_NO_ERROR)]);
        server.ask(4);
    }
    let mut server = Side::with(config);
    server.post(0);
    let seen = server.receive(0, &headers(&[("x", &long), ("y", &long)]));
    assert_eq!(seen, Ok(vec![SeenEvent::Violated(0, H3Code::H3_EXCESSIVE_LOAD)]));
}

/// RFC 9204 section 2.2: a section cannot be decoded.
#[test]
fn invalid_field_sections_end_the_connection() {
    for section in [
        &[1, 0][..],
        &[0, 0x80],
        &[0],
        &[0, 0, 0x80],
        &[0, 0, 0x10],
        &[0, 0, 0x00, 0],
        &[0, 0, 0x40, 0],
        &[0, 0, 0xff, 36],
        &[0, 0, 0xff],
        &[0, 0, 0x21],
        &[0, 0, 0x21, b'a'],
        &[0, 0, 0x51, 5, b'a'],
    ] {
        Side::new().fails(0, &frame(HEADERS, section), H3Code::QPACK_DECOMPRESSION_FAILED);
    }
}

/// RFC 9220 section 3, RFC 8441 section 4.
#[test]
fn extended_connect_needs_the_setting_and_all_pseudo_header_fields() {
    let enabled = Config::new().with_extended_connect(true);
    let websocket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat?room=7"),
        (":authority", "example.com"),
        ("sec-websocket-version", "13"),
    ];
    let (owned, protocol) = valid(enabled, &websocket);
    // It is routed as the handshake over HTTP/1.1.
    let head = owned.head();
    assert_eq!((head.method(), head.path(), head.query()), ("GET", "/chat", Some("room=7")));
    assert_eq!((head.authority(), protocol.as_deref()), (Some("example.com"), Some("websocket")));
    malformed(&websocket);
    for missing in [0, 2, 3, 4] {
        let mut fields = websocket.to_vec();
        fields.remove(missing);
        malformed_with(enabled, &fields);
    }
    // Any protocol is passed on by its name: the application answers 501.
    let mut fields = websocket;
    fields[1].1 = "webtransport";
    assert_eq!(valid(enabled, &fields).1.as_deref(), Some("webtransport"));
}

/// RFC 9220 section 3: bytes of a tunnel flow both ways, and each side ends by itself.
#[test]
fn tunnels_carry_bytes_in_both_directions() {
    let mut server = Side::with(Config::new().with_extended_connect(true));
    let request = SeenEvent::Request(0, "CONNECT".into(), "/chat".into());
    assert_eq!(server.receive(0, &connect("websocket")), Ok(vec![request]));
    server.head(0, 200, false);
    assert_eq!(server.receive(0, &frame(DATA, b"ping")), Ok(vec![SeenEvent::Data(0, b"ping".to_vec())]));
    server.connection.send_data(id(0), b"pong", false, &mut server.out).expect("an open tunnel");
    assert_eq!(server.sent(), b"\x01\x40\x03\0\0\xd9\x00\x04pong");
    assert_eq!(server.receive_last(0, &[]), Ok(vec![SeenEvent::End(0)]));
    server.connection.send_data(id(0), b"close", true, &mut server.out).expect("an open tunnel");
    assert_eq!(server.connection.requests(), 0);
    server.receive(4, &connect("websocket")).expect("a second socket");
    let reset = server.connection.receive_reset(id(4), H3Code::H3_REQUEST_CANCELLED, server.now);
    assert_eq!(reset.map(|event| event.map(copied)), Ok(Some(SeenEvent::Reset(4, 0x10c))));
}

/// RFC 9114 section 4.3.2.
#[test]
fn malformed_responses_are_rejected() {
    for fields in [
        &[][..],
        &[("x", "y")],
        &[("x", "y"), (":status", "200")],
        &[(":status", "200"), (":status", "200")],
        &[(":status", "")],
        &[(":status", "99")],
        &[(":status", "2000")],
        &[(":status", "101")],
        &[(":status", "2x0")],
        &[(":status", "200"), (":path", "/")],
        &[(":status", "200"), ("X", "y")],
        &[(":status", "200"), ("connection", "close")],
        &[(":status", "200"), ("content-length", "1"), ("content-length", "1")],
        &[(":status", "200"), ("content-length", "-1")],
    ] {
        let seen = Side::asking("GET").receive(0, &headers(fields));
        assert_eq!(seen, Ok(vec![SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)]), "{fields:?}");
    }
    let mut client = Side::asking("GET");
    assert_eq!(client.receive_last(0, &[]), Ok(vec![SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)]));
    // Only the final head counts as one.
    let mut client = Side::asking("GET");
    assert_eq!(client.receive(0, &headers(&[(":status", "103")])), Ok(vec![SeenEvent::Response(0, 103)]));
    client.fails(0, &frame(DATA, b"x"), H3Code::H3_FRAME_UNEXPECTED);
}

/// RFC 9110 section 8.6: responses to HEAD, 204 and 304 have no content.
#[test]
fn responses_without_content_may_declare_a_length() {
    for (method, status, is_valid) in
        [("HEAD", "200", true), ("GET", "304", true), ("GET", "204", true), ("GET", "200", false)]
    {
        let mut client = Side::asking(method);
        let seen = client.receive_last(0, &headers(&[(":status", status), ("content-length", "5")]));
        let seen = seen.expect("no connection error");
        assert_eq!(seen.last() == Some(&SeenEvent::End(0)), is_valid, "{method} {status}: {seen:?}");
    }
}

/// RFC 9220 section 3.
#[test]
fn client_waits_for_the_setting_of_extended_connect() {
    let mut client = Side::of(sinews_http::h3::H3Connection::client(Config::new()));
    let target = RequestTarget::connect("websocket", "example.com", "/chat");
    assert!(client.connection.send_request(id(0), &target, [], false, &mut client.out).is_err());
    client.receive(3, &control(&[(8, 1)])).expect("SETTINGS");
    client.connection.send_request(id(0), &target, [], false, &mut client.out).expect("a new stream");
    let mut server = Side::with(Config::new().with_extended_connect(true));
    let request = SeenEvent::Request(0, "CONNECT".into(), "/chat".into());
    assert_eq!(server.receive(0, &client.sent()), Ok(vec![request]));
}

/// RFC 9114 section 4.1: a client does not discard the response to a request that the server needs no more of.
#[test]
fn response_continues_after_the_server_stops_its_request() {
    let stop = |code| {
        let mut client = Side::client(Config::new());
        let target = RequestTarget::new("POST", "https", "example.com", "/");
        client.connection.send_request(id(0), &target, [], false, &mut client.out).expect("a new stream");
        let stopped = client.connection.receive_stop(id(0), code, client.now);
        let stopped = stopped.expect("no connection error").map(copied);
        let rest = client.connection.send_data(id(0), b"rest", true, &mut client.out);
        assert!(rest.is_err(), "the request is stopped");
        (stopped, client)
    };
    let (stopped, mut client) = stop(H3Code::H3_NO_ERROR);
    assert_eq!(stopped, None);
    assert_eq!(client.signals(), [(true, 0, H3Code::H3_NO_ERROR)]);
    let response = [headers(&[(":status", "404")]), frame(0, b"gone")].concat();
    let seen = client.receive_last(0, &response).expect("a valid response");
    assert_eq!(seen[0], SeenEvent::Response(0, 404));
    assert_eq!((seen.last(), client.connection.requests()), (Some(&SeenEvent::End(0)), 0));
    let (stopped, client) = stop(H3Code::H3_REQUEST_CANCELLED);
    assert!(matches!(stopped, Some(SeenEvent::Reset(..))), "{stopped:?}");
    assert_eq!(client.connection.requests(), 0);
}
