//! Messages: RFC 9113 section 8, and extended CONNECT (RFC 8441).

use std::time::Duration;

use sinews_http::h2::{Config, ErrorCode, Event, FieldBuffer};
use sinews_http::{HeadLimits, OwnedHead, Version};

use super::support::*;

/// Checks that a server rejects a request with these fields as malformed, and goes on.
fn malformed(fields: &[(&str, &str)]) {
    malformed_with(&Config::new(), &block(fields), &format!("{fields:?}"));
}

fn malformed_with(config: &Config, block: &[u8], what: &str) {
    let mut server = Server::with(*config);
    let seen = server.receive(&frame(HEADERS, END_STREAM | END_HEADERS, 1, block));
    assert_eq!(seen, Ok(Vec::new()), "{what}");
    let sent = server.sent();
    assert_eq!(sent.len(), 1, "{what}");
    assert_eq!((sent[0].frame_type, sent[0].stream, sent[0].code()), (RST_STREAM, 1, 1), "{what}");
    server.ask(3);
}

/// The fields of GET, with others.
fn get_with<'a>(fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET.iter().chain(fields).copied().collect()
}

/// Checks that a request is valid, and copies its head.
fn valid(config: Config, fields: &[(&str, &str)]) -> (OwnedHead, Option<String>) {
    let mut server = Server::with(config);
    let (request, mut buffer) = (headers(1, END_STREAM, fields), FieldBuffer::new());
    let event = server.connection.receive(&mut &request[..], &mut buffer, Duration::ZERO);
    match event {
        Ok(Some(Event::Request { head, .. })) => {
            (head.to_owned_head().expect("a valid head"), head.protocol().map(str::to_owned))
        }
        other => panic!("{fields:?}: {other:?}"),
    }
}

/// RFC 9113 section 8.2.1.
#[test]
fn field_names_are_tokens_in_lower_case() {
    for byte in 0..=255 {
        let name = [b'a', byte, b'b'];
        let fields = [block(&GET), literal(&name, b"x")].concat();
        let is_valid =
            b"!#$%&'*+-.^_`|~".contains(&byte) || byte.is_ascii_digit() || byte.is_ascii_lowercase();
        if !is_valid {
            malformed_with(&Config::new(), &fields, &format!("{byte:#x}"));
        }
    }
    malformed(&get_with(&[("Host", "example.com")]));
    malformed(&get_with(&[("", "x")]));
    malformed(&get_with(&[("a:b", "x")]));
}

/// RFC 9113 section 8.2.1: CR, LF and NUL would split a header of HTTP/1.1.
#[test]
fn field_values_have_no_control_characters_and_no_surrounding_spaces() {
    for value in ["a\r\nb: c", "a\nb", "a\rb", "a\0b", " a", "a ", "\ta", "a\t", "\u{7f}"] {
        malformed(&get_with(&[("x", value)]));
    }
    for pseudo in [":path", ":authority", ":method", ":scheme"] {
        let mut fields = GET;
        for field in fields.iter_mut().filter(|field| field.0 == pseudo) {
            field.1 = "/\r\nx: y";
        }
        malformed(&fields);
    }
    let (head, _) = valid(Config::new(), &get_with(&[("x", "a\tb c"), ("y", "")]));
    assert_eq!(head.head().header("x").next(), Some(&b"a\tb c"[..]));
}

/// RFC 9113 section 8.2.2.
#[test]
fn connection_specific_fields_are_rejected() {
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        malformed(&get_with(&[(name, "x")]));
    }
    malformed(&get_with(&[("te", "gzip")]));
    malformed(&get_with(&[("te", "trailers, gzip")]));
    valid(Config::new(), &get_with(&[("te", "trailers")]));
}

/// RFC 9113 section 8.2.3.
#[test]
fn pieces_of_cookies_are_joined() {
    let pieces = [("cookie", "a=b"), ("x", "y"), ("cookie", "c=d"), ("cookie", "e=f")];
    let (owned, _) = valid(Config::new(), &get_with(&pieces));
    let head = owned.head();
    let cookies: Vec<_> = head.header("cookie").map(text).collect();
    assert_eq!((cookies, head.version()), (vec!["a=b; c=d; e=f".to_owned()], Version::Http2));
    assert_eq!((head.authority(), head.header("host").count()), (Some("example.com"), 1));
}

/// RFC 9113 section 8.3.
#[test]
fn pseudo_header_fields_come_first_once_and_are_known() {
    malformed(&[("x", "y"), GET[0], GET[1], GET[2], GET[3]]);
    malformed(&[GET[0], GET[1], GET[2], ("x", "y"), GET[3]]);
    malformed(&get_with(&[(":unknown", "x")]));
    malformed(&get_with(&[(":status", "200")]));
    malformed(&get_with(&[(":", "x")]));
    for again in GET {
        malformed(&[GET[0], GET[1], GET[2], GET[3], again]);
    }
}

/// RFC 9113 section 8.3.1.
#[test]
fn requests_have_method_scheme_and_path() {
    for missing in 0..3 {
        let fields: Vec<_> =
            GET.iter().enumerate().filter(|(at, _)| *at != missing).map(|at| *at.1).collect();
        malformed(&fields);
    }
    let with = |pseudo: &str, value: &'static str| {
        GET.map(|(name, known)| (name, if name == pseudo { value } else { known }))
    };
    for (pseudo, value) in [
        (":method", ""),
        (":method", "GE T"),
        (":scheme", ""),
        (":scheme", "1s"),
        (":scheme", "ht:tp"),
        (":path", ""),
        (":path", "*"),
        (":path", "x"),
        (":path", "http://example.com/"),
        (":path", "/a b"),
        (":path", "/#a"),
        (":path", "/\u{e9}"),
        (":authority", ""),
        (":authority", ":80"),
        (":authority", "user@example.com"),
        (":authority", "a/b"),
    ] {
        malformed(&with(pseudo, value));
    }
    valid(Config::new(), &with(":path", "/?a=b"));
    let options = [(":method", "OPTIONS"), GET[1], (":path", "*"), GET[3]];
    assert_eq!(valid(Config::new(), &options).0.head().target(), "*");
}

/// RFC 9113 section 8.3.1.
#[test]
fn host_and_authority_agree() {
    malformed(&get_with(&[("host", "other.example")]));
    malformed(&get_with(&[("host", "example.net")]));
    malformed(&get_with(&[("host", "example.com"), ("host", "example.com")]));
    malformed(&[GET[0], GET[1], GET[2]]);
    malformed(&[GET[0], GET[1], GET[2], ("host", "a, b")]);
    valid(Config::new(), &get_with(&[("host", "Example.com")]));
    let (head, _) = valid(Config::new(), &[GET[0], GET[1], GET[2], ("host", "a:1")]);
    assert_eq!(head.head().authority(), Some("a:1"));
}

/// RFC 9113 section 8.1.1.
#[test]
fn content_length_equals_the_length_of_data() {
    for length in ["", "-1", "+1", "1x", "0x1", "1,1", "18446744073709551616"] {
        malformed(&get_with(&[("content-length", length)]));
    }
    malformed(&get_with(&[("content-length", "0"), ("content-length", "0")]));
    malformed(&get_with(&[("content-length", "1")]));
    valid(Config::new(), &get_with(&[("content-length", "0")]));
    let five = [POST[0], POST[1], POST[2], POST[3], ("content-length", "5")];
    for wrong in [
        frame(DATA, 0, 1, b"123456"),
        frame(DATA, END_STREAM, 1, b"1234"),
        frame(DATA, END_STREAM, 1, b""),
        headers(1, END_STREAM, &[("a", "b")]),
        [frame(DATA, 0, 1, b"12345"), frame(DATA, PADDED | END_STREAM, 1, b"\x016\0")].concat(),
    ] {
        let mut server = Server::new();
        server.receive(&headers(1, 0, &five)).expect("a valid head");
        server.resets(&wrong, 1, ErrorCode::PROTOCOL_ERROR);
    }
    let mut server = Server::new();
    server.receive(&headers(1, 0, &five)).expect("a valid head");
    let content = [frame(DATA, 0, 1, b"123"), frame(DATA, PADDED | END_STREAM, 1, b"\x0145\0")].concat();
    let seen = server.receive(&content);
    assert_eq!(seen, Ok(vec![Seen::Data(1, b"123".to_vec(), false), Seen::Data(1, b"45".to_vec(), true)]));
}

/// RFC 9113 sections 8.1 and 8.3.
#[test]
fn trailers_end_the_stream_and_have_no_pseudo_header_fields() {
    for (flags, fields) in [
        (0, [("a", "b")]),
        (END_STREAM, [(":path", "/")]),
        (END_STREAM, [("A", "b")]),
        (END_STREAM, [("connection", "close")]),
        (END_STREAM, [("content-length", "0")]),
    ] {
        let mut server = Server::opened();
        server.resets(&headers(1, flags, &fields), 1, ErrorCode::PROTOCOL_ERROR);
    }
    let mut server = Server::opened();
    server.receive(&frame(DATA, 0, 1, b"x")).expect("content");
    let seen = server.receive(&headers(1, END_STREAM, &[("a", "b"), ("c", "")]));
    let fields = vec![("a".to_owned(), "b".to_owned()), ("c".to_owned(), String::new())];
    assert_eq!(seen, Ok(vec![Seen::Trailers(1, fields)]));
}

/// RFC 9113 section 8.5.
#[test]
fn connect_names_a_host_and_a_port() {
    let authority = |authority| [(":method", "CONNECT"), (":authority", authority)];
    let (head, protocol) = valid(Config::new(), &authority("example.com:443"));
    assert_eq!((head.head().method(), head.head().target()), ("CONNECT", "example.com:443"));
    assert_eq!(protocol, None);
    for wrong in ["example.com", "example.com:", ":443", "[::1]", ""] {
        malformed(&authority(wrong));
    }
    malformed(&[(":method", "CONNECT")]);
    malformed(&[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")]);
    malformed(&[(":method", "CONNECT"), (":authority", "a:1"), (":scheme", "https")]);
}

const WEBSOCKET: [(&str, &str); 6] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":path", "/chat?room=7"),
    (":authority", "example.com"),
    ("sec-websocket-version", "13"),
];

/// RFC 8441 sections 3 and 4.
#[test]
fn extended_connect_needs_the_setting_and_all_pseudo_header_fields() {
    let enabled = Config::new().with_extended_connect(true);
    let (owned, protocol) = valid(enabled, &WEBSOCKET);
    // It is routed as the handshake over HTTP/1.1.
    let head = owned.head();
    assert_eq!((head.method(), head.path(), head.query()), ("GET", "/chat", Some("room=7")));
    assert_eq!((head.authority(), protocol.as_deref()), (Some("example.com"), Some("websocket")));
    malformed(&WEBSOCKET);
    for missing in [0, 2, 3, 4] {
        let mut fields = WEBSOCKET.to_vec();
        fields.remove(missing);
        malformed_with(&enabled, &block(&fields), &format!("{fields:?}"));
    }
    let mut fields = WEBSOCKET;
    fields[0].1 = "GET";
    malformed_with(&enabled, &block(&fields), ":protocol with GET");
    fields = WEBSOCKET;
    fields[1].1 = "";
    malformed_with(&enabled, &block(&fields), "empty :protocol");
    // Any protocol is passed on: the application answers 501.
    fields[1].1 = "webtransport";
    assert_eq!(valid(enabled, &fields).1.as_deref(), Some("webtransport"));
}

/// RFC 8441 section 3: the setting is never taken back.
#[test]
fn extended_connect_is_never_disabled_again() {
    let mut server = Server::new();
    server.silent(&frame(SETTINGS, 0, 0, &setting(8, 1)));
    server.silent(&frame(SETTINGS, 0, 0, &setting(8, 1)));
    server.fails(&frame(SETTINGS, 0, 0, &setting(8, 0)), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 8441 section 5: bytes of a tunnel flow both ways, END_STREAM is FIN, and RST_STREAM a reset.
#[test]
fn tunnels_carry_bytes_in_both_directions() {
    let mut server = Server::with(Config::new().with_extended_connect(true));
    let seen = server.receive(&headers(1, 0, &WEBSOCKET)).expect("a valid request");
    assert_eq!(seen, [Seen::Request(1, "CONNECT".into(), "/chat?room=7".into(), false)]);
    let stream = server.id(1);
    server.head(stream, false);
    let sent = server.sent();
    // :status 200 is one byte, and the stream stays open.
    assert_eq!((sent[0].flags, &sent[0].payload[..]), (END_HEADERS, &[0x88][..]));
    assert_eq!(server.receive(&frame(DATA, 0, 1, b"ping")), Ok(vec![Seen::Data(1, b"ping".to_vec(), false)]));
    assert_eq!(server.data(stream, b"pong", false), 4);
    assert_eq!(server.receive(&frame(DATA, END_STREAM, 1, b"")), Ok(vec![Seen::Data(1, Vec::new(), true)]));
    assert_eq!(server.data(stream, b"close", true), 5);
    assert_eq!((server.connection.streams(), server.sent().len()), (0, 2));
    server.receive(&headers(3, 0, &WEBSOCKET)).expect("a second socket");
    assert_eq!(server.receive(&rst_stream(3)), Ok(vec![Seen::Reset(3, 8)]));
}

/// RFC 9113 section 8.5: a tunnel carries DATA only.
#[test]
fn headers_on_a_tunnel_reset_it() {
    for flags in [END_STREAM, 0] {
        let mut server = Server::with(Config::new().with_extended_connect(true));
        server.receive(&headers(1, 0, &WEBSOCKET)).expect("a valid request");
        server.receive(&headers(1, flags, &[("x", "y")])).expect("an error of the stream");
        let sent = server.sent();
        let reset = sent.last().expect("a reset");
        assert_eq!((reset.stream, &reset.payload[..]), (1, &[0, 0, 0, 1][..]), "{reset:?}");
        server.ask(3);
    }
}

/// RFC 9113 section 10.5.1.
#[test]
fn header_list_beyond_the_limit_is_answered_431_and_the_connection_continues() {
    let config = Config::new().with_head(HeadLimits::new().with_max_bytes(400).with_max_headers(4));
    let long = "x".repeat(300);
    for flags in [0, END_STREAM] {
        let mut server = Server::with(config);
        let seen = server.receive(&headers(1, flags, &get_with(&[("x", &long)])));
        assert_eq!(seen, Ok(vec![Seen::TooLarge(1, flags == END_STREAM)]));
        let stream = server.id(1);
        server.connection.send_head(stream, 431, [], true, &mut server.out).expect("an open stream");
        server.connection.reset(stream, ErrorCode::NO_ERROR);
        assert_eq!(server.connection.streams(), 0);
        server.ask(3);
    }
    // Each field counts 32 bytes more (section 6.5.2).
    let mut server = Server::with(config);
    let seen = server.receive(&headers(1, END_STREAM, &get_with(&[("a", ""); 8])));
    assert_eq!(seen, Ok(vec![Seen::TooLarge(1, true)]));
    let mut server = Server::with(Config::new().with_head(HeadLimits::new().with_max_headers(3)));
    let seen = server.receive(&headers(1, END_STREAM, &get_with(&[("a", ""); 6])));
    assert_eq!(seen, Ok(vec![Seen::TooLarge(1, true)]));
}
