//! Server side: acceptance, rejection, and responses.

use sinews_proto::Role;
use sinews_proto::handshake::{HandshakeMisuse, Refusal, ServerOptions};
use sinews_proto::http::Version;

use crate::{ForeignRequest, Lines, with_head};

fn refusal(lines: &Lines) -> Refusal {
    lines.accept(&ServerOptions::new()).expect_err("the request is rejected")
}

fn header<'r>(refusal: &'r Refusal, name: &str) -> Option<&'r str> {
    refusal.headers().find(|(found, _)| *found == name).map(|(_, value)| value)
}

fn text(refusal: &Refusal) -> String {
    let mut out = Vec::new();
    refusal.write_response(&mut out);
    String::from_utf8(out).expect("the body is text")
}

#[test]
fn the_example_of_rfc_6455_section_1_2_is_answered_exactly() {
    let options = ServerOptions::new().with_subprotocol("chat").expect("a token");
    let request = Lines::new()
        .with("Origin: http://server.example.com")
        .with("Sec-WebSocket-Protocol: chat, superchat");
    let accepted = request.accept(&options).expect("the example");
    let mut out = Vec::new();
    accepted.write_response(&[("Server", "x")], &mut out).expect("valid headers");
    let expected = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\nServer: x\r\n\r\n";
    assert_eq!(String::from_utf8(out).expect("text"), expected);
    assert_eq!((accepted.status(), accepted.subprotocol(), accepted.extensions()), (101, Some("chat"), None));
    assert_eq!((accepted.negotiated().role(), accepted.negotiated().deflate()), (Role::Server, None));
    assert_eq!(accepted.headers().count(), 4);
}

#[test]
fn methods_other_than_get_are_405_with_allow() {
    for method in ["POST", "PUT", "HEAD", "OPTIONS", "get", "GETS"] {
        let refusal = refusal(&Lines::new().first(&format!("{method} /chat HTTP/1.1")));
        assert_eq!((refusal.status(), header(&refusal, "Allow")), (405, Some("GET")), "{method}");
        assert_eq!(refusal.body().is_empty(), method == "HEAD", "{method}");
    }
}

/// `Upgrade` in HTTP/1.0 must be ignored (RFC 9110 section 7.8), so this request has none.
#[test]
fn http_1_0_is_426() {
    let refusal = refusal(&Lines::new().first("GET /chat HTTP/1.0"));
    assert_eq!((refusal.status(), header(&refusal, "Upgrade")), (426, Some("websocket")));
}

#[test]
fn host_is_required_exactly_once() {
    assert_eq!(Lines::new().without("Host").status(), 400);
    assert_eq!(Lines::new().with("Host: server.example.com").status(), 400);
    assert_eq!(Lines::new().replace("Host", "").status(), 400);
    assert_eq!(Lines::new().without("Host").first("GET /chat HTTP/1.0").status(), 400);
    // Another HTTP stack may accept requests that the parser of this crate rejects.
    let foreign = |headers: &[(&'static str, &'static str)]| {
        let mut request = ForeignRequest::upgrade();
        request.headers.extend(headers);
        request.accept().map_or_else(|refusal| refusal.status(), |accepted| accepted.status())
    };
    assert_eq!(foreign(&[("Host", "a")]), 101);
    assert_eq!(foreign(&[]), 400);
    assert_eq!(foreign(&[("Host", "a"), ("host", "a")]), 400);
}

#[test]
fn upgrade_and_connection_are_lists_in_any_case_on_any_number_of_lines() {
    for (upgrade, connection) in [
        (&["websocket"][..], &["Upgrade"][..]),
        (&["WebSocket"], &["keep-alive, Upgrade"]),
        (&["h2c, websocket"], &["upgrade,keep-alive"]),
        (&["h2c", "WEBSOCKET"], &["keep-alive", "UPGRADE"]),
        (&["websocket", "websocket"], &["Upgrade", "Upgrade"]),
        (&[" ,websocket , "], &["\tUpgrade\t"]),
    ] {
        let mut lines = Lines::new().without("Upgrade").without("Connection");
        for value in upgrade {
            lines = lines.with(&format!("Upgrade: {value}"));
        }
        for value in connection {
            lines = lines.with(&format!("Connection: {value}"));
        }
        assert_eq!(lines.status(), 101, "{upgrade:?} {connection:?}");
    }
}

#[test]
fn request_without_upgrade_is_426_naming_websocket() {
    for lines in [
        Lines::new().without("Upgrade"),
        Lines::new().without("Connection"),
        Lines::new().replace("Upgrade", "h2c"),
        Lines::new().replace("Upgrade", "websocket/13"),
        Lines::new().replace("Upgrade", "web socket"),
        Lines::new().replace("Upgrade", "xwebsocket"),
        Lines::new().replace("Connection", "keep-alive"),
        Lines::new().replace("Connection", "Upgraded"),
        // A common server accepts this request as a handshake.
        Lines::of(&["GET / HTTP/1.1", "Host: a", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]),
    ] {
        let refusal = refusal(&lines);
        assert_eq!((refusal.status(), header(&refusal, "Upgrade")), (426, Some("websocket")));
        assert!(text(&refusal).contains("\r\nConnection: Upgrade, close\r\n"));
    }
}

#[test]
fn versions_other_than_13_are_426_naming_13() {
    let versions = ["8", "7", "0", "12", "14", "013", "13.0", "+13", "13, 8", "", "x"];
    let other = versions.map(|version| Lines::new().replace("Sec-WebSocket-Version", version));
    let repeated = Lines::new().with("Sec-WebSocket-Version: 13");
    let missing = Lines::new().without("Sec-WebSocket-Version");
    for lines in other.into_iter().chain([repeated, missing]) {
        let refusal = refusal(&lines);
        assert_eq!((refusal.status(), header(&refusal, "Sec-WebSocket-Version")), (426, Some("13")));
        assert_eq!(header(&refusal, "Upgrade"), Some("websocket"));
    }
}

#[test]
fn key_is_single_and_encodes_sixteen_bytes() {
    assert_eq!(Lines::new().replace("Sec-WebSocket-Key", " \tdGhlIHNhbXBsZSBub25jZQ== \t").status(), 101);
    for key in [
        "",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZR==",
        "not base64 but 24 bytes!",
        "dGhlIHNhbXBsZSBub25jZWFi",
        "AAAA",
        "dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ==",
    ] {
        assert_eq!(Lines::new().replace("Sec-WebSocket-Key", key).status(), 400, "{key}");
    }
    assert_eq!(Lines::new().without("Sec-WebSocket-Key").status(), 400);
    assert_eq!(Lines::new().with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==").status(), 400);
}

#[test]
fn a_request_with_a_body_is_400() {
    assert_eq!(Lines::new().with("Content-Length: 0").status(), 101);
    assert_eq!(Lines::new().with("Content-Length: 5").status(), 400);
    assert_eq!(Lines::new().with("Transfer-Encoding: chunked").status(), 400);
    assert_eq!(Lines::new().with("Content-Length: 0").with("Content-Length: 0").status(), 400);
}

/// Requests of another HTTP stack: the parser of this crate rejects them before the handshake.
#[test]
fn a_foreign_request_with_a_body_is_400() {
    for extra in [
        &[("content-length", "-0")][..],
        &[("content-length", "")],
        &[("content-length", "0"), ("content-length", "0")],
        &[("transfer-encoding", "identity")],
    ] {
        let mut request = ForeignRequest::upgrade();
        request.headers.push(("host", "a"));
        request.headers.extend(extra);
        assert_eq!(request.accept().expect_err("a body").status(), 400, "{extra:?}");
    }
}

#[test]
fn bytes_behind_the_head_are_not_part_of_it() {
    let head = Lines::new().bytes();
    let with_frame = [&head[..], b"\x81\x80\0\0\0\0"].concat();
    assert_eq!(with_head(&with_frame, |head| head.wire_len()), Ok(head.len()));
}

#[test]
fn refusals_end_the_connection_and_delimit_their_body() {
    for lines in [
        Lines::new().first("POST / HTTP/1.1"),
        Lines::new().without("Host"),
        Lines::new().without("Upgrade"),
        Lines::new().without("Sec-WebSocket-Key"),
        Lines::new().with("Origin: http://evil.example"),
        Lines::new().first("GET / HTTP/3.0"),
    ] {
        let refusal = refusal(&lines);
        let text = text(&refusal);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with(&format!("HTTP/1.1 {} ", refusal.status())), "{text}");
        assert!(
            head.lines().any(|line| line.starts_with("Connection: ") && line.ends_with("close")),
            "{text}"
        );
        assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{text}");
        assert!(!body.is_empty());
    }
}

#[test]
fn application_rejections_keep_status_headers_and_body() {
    let refusal = Refusal::new(401)
        .and_then(|refusal| refusal.with_header("WWW-Authenticate", "Bearer"))
        .expect("sound")
        .with_body("log in first");
    assert_eq!(
        text(&refusal),
        "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nWWW-Authenticate: Bearer\r\nContent-Length: 12\r\n\r\n\
         log in first"
    );
    assert_eq!(refusal.to_string(), "refused with status 401: log in first");
    let empty = text(&Refusal::new(204).expect("sound").with_body("x"));
    assert_eq!(empty, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
    for status in [0, 100, 101, 199, 600, u16::MAX] {
        assert_eq!(Refusal::new(status), Err(HandshakeMisuse::Status), "{status}");
    }
}

#[test]
fn caller_headers_cannot_inject_header_lines() {
    let accepted = Lines::new().accept(&ServerOptions::new()).expect("sound");
    for (name, value, misuse) in [
        ("X", "a\r\nSet-Cookie: b", HandshakeMisuse::HeaderValue),
        ("X", "a\rb", HandshakeMisuse::HeaderValue),
        ("X", "a\nb", HandshakeMisuse::HeaderValue),
        ("X", "a\0b", HandshakeMisuse::HeaderValue),
        ("X\r\nY", "a", HandshakeMisuse::HeaderName),
        ("X: a", "b", HandshakeMisuse::HeaderName),
        ("", "b", HandshakeMisuse::HeaderName),
        ("content-length", "5", HandshakeMisuse::ReservedHeader),
        ("Transfer-Encoding", "chunked", HandshakeMisuse::ReservedHeader),
        ("Connection", "close", HandshakeMisuse::ReservedHeader),
    ] {
        let mut out = Vec::new();
        let written = accepted.write_response(&[("Sound", "1"), (name, value)], &mut out);
        assert_eq!((written, out.len()), (Err(misuse), 0), "{name}");
        let refused = Refusal::new(403).and_then(|refusal| refusal.with_header(name, value));
        assert_eq!(refused.err(), Some(misuse), "{name}");
    }
    for name in ["Upgrade", "sec-websocket-accept", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"] {
        let written = accepted.write_response(&[(name, "x")], &mut Vec::new());
        assert_eq!(written, Err(HandshakeMisuse::ReservedHeader), "{name}");
    }
    for name in ["a\r\nb", "a b", "a,b", "", "\u{e9}", "a\0"] {
        let options = ServerOptions::new().with_subprotocol(name);
        assert_eq!(options.err(), Some(HandshakeMisuse::Subprotocol), "{name}");
    }
}

fn chat() -> ServerOptions {
    let options = ServerOptions::new();
    options
        .with_subprotocol("v2.chat")
        .and_then(|options| options.with_subprotocol("v1.chat"))
        .expect("tokens")
}

#[test]
fn the_server_chooses_among_offered_subprotocols_by_its_own_preference() {
    for (offers, chosen) in [
        (&[][..], None),
        (&["v1.chat"][..], Some("v1.chat")),
        (&["v1.chat, v2.chat"], Some("v2.chat")),
        (&["v1.chat", "other", "v2.chat"], Some("v2.chat")),
        (&["other, v1.chat,"], Some("v1.chat")),
        (&["other"], None),
        (&["V2.CHAT"], None),
        (&["v2.chat2"], None),
        (&["v1.chat, V1.chat"], Some("v1.chat")),
    ] {
        let lines = offers
            .iter()
            .fold(Lines::new(), |lines, offer| lines.with(&format!("Sec-WebSocket-Protocol: {offer}")));
        let accepted = lines.accept(&chat()).expect("offers never fail");
        assert_eq!(accepted.subprotocol(), chosen, "{offers:?}");
        let mut out = Vec::new();
        accepted.write_response(&[], &mut out).expect("sound");
        let named = String::from_utf8(out).expect("text").contains("Sec-WebSocket-Protocol");
        assert_eq!(named, chosen.is_some(), "{offers:?}");
    }
}

#[test]
fn repeated_or_malformed_subprotocol_offers_are_400() {
    for offers in [
        &["v1.chat, v1.chat"][..],
        &["v1.chat", "x, v1.chat"],
        &["other, other"],
        &["v1.chat v2.chat"],
        &["\"v1.chat\""],
        &["a/b"],
        &[""],
        &[" , "],
    ] {
        let lines = offers
            .iter()
            .fold(Lines::new(), |lines, offer| lines.with(&format!("Sec-WebSocket-Protocol: {offer}")));
        assert_eq!(lines.accept(&chat()).expect_err("invalid").status(), 400, "{offers:?}");
    }
}

#[test]
fn the_number_of_subprotocols_is_limited() {
    let most = ServerOptions::SUBPROTOCOLS_MAX;
    let offer = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
        let last = ServerOptions::new().with_subprotocol(format!("p{}", most - 1)).expect("a token");
        Lines::new().with(&format!("Sec-WebSocket-Protocol: {}", names.join(","))).accept(&last)
    };
    assert_eq!(offer(most).expect("within").subprotocol(), Some(format!("p{}", most - 1).as_str()));
    assert_eq!(offer(most + 1).expect_err("over").status(), 400);
    let support = |count: usize| {
        (0..count)
            .try_fold(ServerOptions::new(), |options, number| options.with_subprotocol(format!("p{number}")))
    };
    assert_eq!(support(most).expect("within").subprotocols().count(), most);
    assert_eq!(support(most + 1).err(), Some(HandshakeMisuse::SubprotocolList));
    assert_eq!(chat().with_subprotocol("v1.chat").err(), Some(HandshakeMisuse::SubprotocolList));
}

#[test]
fn extended_connect_needs_no_key_and_is_answered_200() {
    let mut request = ForeignRequest::extended_connect();
    request.headers.push(("sec-websocket-protocol", "chat"));
    for version in [Version::Http2, Version::Http3] {
        request.version = version;
        let accepted = request.accept().expect("RFC 8441 section 5");
        assert_eq!(accepted.status(), 200);
        assert_eq!(accepted.headers().collect::<Vec<_>>(), [("Sec-WebSocket-Protocol", "chat")]);
        assert_eq!(accepted.negotiated().role(), Role::Server);
        assert_eq!(accepted.write_response(&[], &mut Vec::new()), Err(HandshakeMisuse::NotHttp1));
    }
}

/// RFC 8441 section 5 has neither; undici (7.30) sends the key, and requires the answer.
#[test]
fn key_of_extended_connect_is_answered_if_there_is_one() {
    let accept = |key| {
        let mut request = ForeignRequest::extended_connect();
        request.headers.push(("sec-websocket-key", key));
        let accepted = request.accept().expect("a key is no fault");
        assert_eq!(accepted.status(), 200);
        accepted.headers().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), ["Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]);
    assert_eq!(accept("no key"), Vec::<String>::new());
}

#[test]
fn extended_connect_for_other_protocols_is_rejected() {
    let refused = |change: fn(&mut ForeignRequest)| {
        let mut request = ForeignRequest::extended_connect();
        change(&mut request);
        let refusal = request.accept().expect_err("refused");
        // Connection-specific headers make a message of HTTP/2 malformed (RFC 9113 section 8.2.2).
        assert_eq!(header(&refusal, "Upgrade"), None);
        refusal
    };
    assert_eq!(refused(|request| request.protocol = Some("webtransport")).status(), 501);
    assert_eq!(refused(|request| request.protocol = None).status(), 400);
    assert_eq!(refused(|request| request.method = "GET").status(), 400);
    assert_eq!(refused(|request| request.headers.push(("content-length", "5"))).status(), 400);
    assert_eq!(refused(|request| request.headers.push(("origin", "https://evil.example"))).status(), 403);
    let version = refused(|request| request.headers.clear());
    assert_eq!((version.status(), header(&version, "Sec-WebSocket-Version")), (400, Some("13")));
}

#[test]
fn protocol_pseudo_header_is_ignored_over_http_1() {
    let mut request = ForeignRequest::extended_connect();
    request.version = Version::Http11;
    assert_eq!(request.accept().expect_err("no GET").status(), 405);
}
