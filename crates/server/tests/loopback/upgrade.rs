//! The upgrade from HTTP to WebSocket, and requests that must not pass along with it.

use sinews_proto::Role;
use sinews_server::{
    Context, Handler, OriginPolicy, Payload, Refusal, Response, ServerOptions, WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{Echo, Running, echo, get, handshake, post, routes, scripted};

fn frame(text: &str) -> Vec<u8> {
    Frame::text(text).encode(Role::Client)
}

/// Returns the status of a rejected handshake, whose connection must have ended: the request after it, which may be
/// smuggled, is not answered.
fn refused(server: &Running, request: &str) -> u16 {
    server.connect().send(format!("{request}{}", get("/"))).last_status()
}

#[test]
fn frames_after_the_handshake_arrive_however_they_are_split() {
    let server = Running::router(routes());
    let wire = [handshake("/echo", "").into_bytes(), frame("one"), frame("two")].concat();
    for cut in 0..=wire.len() {
        let mut client = server.connect();
        client.send(&wire[..cut]).send(&wire[cut..]);
        let mut peer = client.upgraded();
        peer.expect(&Reply::text("one"));
        peer.expect(&Reply::text("two"));
    }
    let mut client = server.connect();
    for byte in wire.chunks(1) {
        client.send(byte);
    }
    let mut peer = client.upgraded();
    peer.expect(&Reply::text("one"));
    peer.expect(&Reply::text("two"));
    assert_eq!(peer.head.lines().count(), 5, "{}", peer.head);
    assert!(peer.head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
}

#[test]
fn requests_before_the_handshake_are_answered_before_it() {
    let server = Running::router(routes());
    // Enough large answers that the handshake has to wait for them to leave.
    for ahead in [1, 3, 50] {
        let mut client = server.connect();
        let requests = get("/large").repeat(ahead);
        client.send([requests.as_bytes(), handshake("/echo", "").as_bytes(), &frame("behind")].concat());
        for _ in 0..ahead {
            assert_eq!(client.answer().status, 200);
        }
        client.upgraded().expect(&Reply::text("behind"));
    }
}

#[test]
fn sends_of_open_come_after_the_answer_and_before_the_echo() {
    let (route, _events) = scripted(|event, cx| {
        let text = format!("{event:?}");
        // After its own close this fails.
        let _ = cx.send_text(text.split('(').next().unwrap_or_default());
    });
    let (_server, mut client) = Running::connected(routes().websocket("/told", route));
    client.send([handshake("/told", "").as_bytes(), &frame("x")].concat());
    let mut peer = client.upgraded();
    peer.expect(&Reply::text("Open"));
    peer.expect(&Reply::text("Message"));
}

#[test]
fn invalid_handshake_is_rejected_and_closes() {
    let server = Running::router(routes());
    let sound = handshake("/echo", "");
    let without = |line: &str| {
        assert!(sound.contains(line));
        sound.replace(line, "")
    };
    for (status, request) in [
        (426, get("/echo")),
        (426, without("Upgrade: websocket\r\n")),
        (426, without("Connection: keep-alive, Upgrade\r\n")),
        (426, without("Sec-WebSocket-Version: 13\r\n")),
        (426, sound.replace("Version: 13", "Version: 8")),
        (426, sound.replace("websocket", "websockets")),
        (426, sound.replace("HTTP/1.1", "HTTP/1.0")),
        (400, without("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")),
        (400, sound.replace("dGhlIHNhbXBsZSBub25jZQ==", "!!!!!!!!!!!!!!!!!!!!!!==")),
        (400, handshake("/echo", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")),
        (400, handshake("/echo", "Content-Length: 5\r\n")),
        (400, handshake("/echo", "Transfer-Encoding: chunked\r\n")),
        (400, handshake("/echo", "Content-Length: 99999999\r\n")),
        (403, handshake("/echo", "Origin: http://elsewhere.example\r\n")),
    ] {
        assert_eq!(refused(&server, &request), status, "{request}");
    }
    let mut client = server.connect();
    let answer = client.send(sound.replace("Version: 13", "Version: 8")).answer();
    assert_eq!(answer.header("sec-websocket-version"), Some("13"));
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    assert_eq!(answer.header("connection"), Some("Upgrade, close"));
}

#[test]
fn failed_upgrade_does_not_continue_in_http() {
    let server = Running::router(routes());
    assert_eq!(refused(&server, &handshake("/nowhere", "")), 404);
    assert_eq!(refused(&server, &handshake("/", "")), 200);
    assert_eq!(refused(&server, &handshake("/echo", "").replace("GET", "POST")), 405);
    assert_eq!(refused(&server, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"), 404);
}

#[test]
fn path_may_have_both_a_page_and_a_websocket() {
    let server =
        Running::router(routes().get("/both", |_| Response::text("page")).websocket("/both", echo()));
    let mut client = server.connect();
    assert_eq!(client.send(get("/both")).answer().text(), "page");
    let mut peer = client.upgrade("/both");
    peer.send(&Frame::text("x")).expect(&Reply::text("x"));
}

/// RFC 9110 section 7.8.
#[test]
fn upgrades_to_other_protocols_are_ignored() {
    let routes = routes()
        .get("/both", |_| Response::text("page"))
        .websocket("/both", echo())
        .websocket_fallback(|path| path == "/fallback", echo());
    let (server, mut client) = Running::connected(routes);
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: h2c\r\n\r\n";
    for lines in [h2c, "Upgrade: h2c\r\n\r\n", "Upgrade: TLS/1.3, websockets\r\n\r\n", "Upgrade:\r\n\r\n"] {
        for (path, status) in [("/both", 200), ("/", 200), ("/fallback", 404), ("/nowhere", 404)] {
            let request = get(path).replace("\r\n\r\n", &format!("\r\n{lines}"));
            let answer = client.send(&request).answer();
            assert_eq!((answer.status, answer.closes()), (status, false), "{request}");
        }
        assert_eq!(
            client.send(post("/body", "a").replace("\r\n\r\n", &format!("\r\n{lines}"))).answer().text(),
            "a"
        );
    }
    let old = handshake("/both", "").replace("HTTP/1.1", "HTTP/1.0");
    assert_eq!(server.connect().send(old).answer().text(), "page");
    for listed in ["Upgrade: h2c, WebSocket\r\n", "Upgrade: h2c\r\nUpgrade: websocket\r\n"] {
        let request = handshake("/both", "").replace("Upgrade: websocket\r\n", listed);
        let mut client = server.connect();
        client.send(request);
        client.upgraded().send(&Frame::text("x")).expect(&Reply::text("x"));
    }
}

#[test]
fn handler_may_reject_with_status_header_and_body() {
    let route = WebSocketRoute::new(|request| match request.query("token") {
        Some("right") => Ok(Echo),
        _ => {
            Err(Refusal::new(401).unwrap().with_header("WWW-Authenticate", "Bearer").unwrap().with_body("no"))
        }
    });
    let server = Running::router(routes().websocket("/guarded", route));
    for path in ["/guarded", "/guarded?token=", "/guarded?x=right", "/guarded?token=wrong&token=right"] {
        assert_eq!(refused(&server, &handshake(path, "")), 401, "{path}");
    }
    let answer = server.connect().send(handshake("/guarded", "")).answer();
    assert_eq!((answer.text(), answer.header("www-authenticate")), ("no", Some("Bearer")));
    let mut peer = server.websocket("/guarded?a=b&token=right");
    peer.send(&Frame::text("in")).expect(&Reply::text("in"));
}

#[test]
fn route_selects_origins_and_subprotocols() {
    let options = ServerOptions::new()
        .with_subprotocol("v2.chat")
        .and_then(|options| options.with_subprotocol("v1.chat"))
        .unwrap()
        .with_origin(OriginPolicy::list(["https://example.com"]).unwrap());
    let server = Running::router(routes().websocket("/chat", echo().with_options(options)));
    let with = |lines: &str| server.connect().upgrade_with("/chat", lines).head;
    let offers = "Origin: https://example.com\r\nSec-WebSocket-Protocol: v1.chat, v0.chat\r\n";
    assert!(with(offers).contains("\r\nSec-WebSocket-Protocol: v1.chat\r\n"));
    let offers = "Sec-WebSocket-Protocol: v1.chat\r\nSec-WebSocket-Protocol: v2.chat\r\n";
    assert!(with(offers).contains("\r\nSec-WebSocket-Protocol: v2.chat\r\n"), "ours is the preference");
    assert!(!with("Sec-WebSocket-Protocol: V1.CHAT\r\n").contains("Protocol: "));
    assert_eq!(refused(&server, &handshake("/chat", "Origin: http://localhost\r\n")), 403);
    assert_eq!(refused(&server, &handshake("/chat", "Origin: null\r\n")), 403);
    let same = server.connect().upgrade_with("/echo", "Origin: http://localhost\r\n");
    assert!(same.head.starts_with("HTTP/1.1 101 "), "pages of the same origin are let in by default");
}

/// Reports its handshake request.
struct TextOnOpen(String);

impl Handler for TextOnOpen {
    fn open(&mut self, cx: &mut Context<'_>) {
        let _ = cx.send_text(&self.0).unwrap();
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

#[test]
fn handler_is_built_from_the_request_and_the_negotiated_options() {
    let options = ServerOptions::new().with_subprotocol("v2").unwrap().with_subprotocol("v1").unwrap();
    let route = WebSocketRoute::new(|request| {
        let agent = request.head().header("user-agent").next().map(String::from_utf8_lossy);
        Ok(TextOnOpen(format!("{} {:?} {agent:?}", request.head().path(), request.subprotocol())))
    });
    let route = route.with_options(options).with_headers(|request| {
        let value = request.subprotocol().unwrap_or("none");
        vec![("Set-Cookie".to_owned(), format!("protocol={value}")), ("X-More".to_owned(), "yes".to_owned())]
    });
    let server = Running::router(routes().websocket("/told/{who}", route));
    let offer = "Sec-WebSocket-Protocol: v0, v1, v2\r\nUser-Agent: a test\r\n";
    let mut peer = server.connect().upgrade_with("/told/one", offer);
    peer.expect(&Reply::text("/told/one Some(\"v2\") Some(\"a test\")"));
    assert!(peer.head.contains("\r\nSec-WebSocket-Protocol: v2\r\n"), "{}", peer.head);
    assert!(peer.head.contains("\r\nSet-Cookie: protocol=v2\r\nX-More: yes\r\n"), "{}", peer.head);
    let mut plain = server.websocket("/told/two");
    plain.expect(&Reply::text("/told/two None None"));
    assert!(plain.head.contains("\r\nSet-Cookie: protocol=none\r\n"), "{}", plain.head);
}

#[test]
fn invalid_response_header_is_answered_with_500() {
    for (name, value) in [("Connection", "close"), ("a b", "c"), ("a", "b\r\nc: d")] {
        let route = echo().with_headers(move |_| vec![(name.to_owned(), value.to_owned())]);
        let server = Running::router(routes().websocket("/wrong", route));
        assert_eq!(refused(&server, &handshake("/wrong", "")), 500, "{name}: {value:?}");
    }
}
