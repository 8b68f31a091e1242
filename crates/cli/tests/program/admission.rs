//! Rejected requests and connections: the client's error, the log and the metrics.

use std::io::{Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reply, assert_fields, exchange};

use crate::auth::{SECRET, token};
use crate::config::Directory;
use crate::support::{Running, Socket, fails, program, status};

/// The answer to a request with this exact head and body.
fn raw(server: &Running, request: &str) -> String {
    exchange(server.connect(), request).unwrap()
}

fn from_host(server: &Running, method: &str, path: &str, host: &str) -> String {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n");
    raw(server, &format!("{head}Connection: close\r\n\r\n"))
}

/// A token with any header, signed with a secret.
fn signed(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", encode(header), encode(claims));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn post_with(server: &Running, token: &str) -> u16 {
    status(&server.request(&format!("POST /topics/a HTTP/1.1\r\nAuthorization: Bearer {token}"), "x"))
}

fn log_of(server: Running) -> String {
    server.signal("TERM");
    server.wait().1
}

#[test]
fn access_log_has_no_token() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--access-log", "--auth-secret-file", &secret]);
    let made = token(&secret, &["--subscribe", "a"]);
    assert!(server.try_websocket(&format!("/ws?_x=1&token={made}&_y=2"), "").is_ok());
    assert!(server.try_websocket(&format!("/ws?tok%65n={made}"), "").is_ok());
    server.get(&format!("/healthz?access_token={made}"));
    server.get("/healthz?TOKEN=left.over.SIGNATURE");
    let rejected = format!("/ws?token={made}x");
    assert!(server.try_websocket(&rejected, "").is_err());
    let log = log_of(server);
    let signature = made.rsplit('.').next().unwrap();
    assert!(!log.contains(signature) && !log.contains("SIGNATURE"), "{log}");
    assert!(log.contains("/ws?_x=1&token=***&_y=2"), "{log}");
}

#[test]
fn jwt_with_critical_extensions_is_rejected() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret]);
    let claims = json!({"exp": 4_000_000_000_u64, "publish": "a"});
    let with = |header: Value| signed(&header, &claims, SECRET.as_bytes());
    assert_eq!(post_with(&server, &with(json!({"alg": "HS256"}))), 200);
    for header in [
        json!({"alg": "HS256", "crit": ["exp"], "exp": 1}),
        json!({"alg": "HS256", "crit": ["b64"], "b64": true}),
        json!({"alg": "HS256", "crit": []}),
        json!({"alg": "HS256", "crit": null}),
    ] {
        assert_eq!(post_with(&server, &with(header.clone())), 401, "{header}");
        let output =
            program().args(["token", "inspect", "--secret-file", &secret, &with(header)]).output().unwrap();
        assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("crit"));
    }
}

#[test]
fn loopback_listener_rejects_foreign_host_names() {
    let server = Running::serve(&[]);
    let port = server.address.port();
    let upgrade = |server: &Running, host: &str| {
        raw_upgrade(server, &format!("Host: {host}\r\nOrigin: http://{host}\r\n"))
    };
    let evil = format!("evil.example:{port}");
    for (method, path) in [("GET", "/"), ("GET", "/streams"), ("GET", "/metrics"), ("POST", "/topics/a")] {
        let answer = from_host(&server, method, path, &evil);
        assert_eq!(status(&answer), 421, "{method} {path}: {answer}");
        assert!(answer.contains("evil.example") && answer.contains("hosts"), "{answer}");
    }
    assert_eq!(status(&upgrade(&server, &evil)), 421);
    assert_eq!(status(&from_host(&server, "GET", "/", "localhost.evil.example")), 421);
    for host in ["localhost", "LOCALHOST", "app.localhost", "localhost.", "127.0.0.1", "[::1]", "192.0.2.1"] {
        let host = format!("{host}:{port}");
        assert_eq!(status(&from_host(&server, "GET", "/", &host)), 200, "{host}");
        assert_eq!(status(&upgrade(&server, &host)), 101, "{host}");
    }
    // Health checks of a load balancer on this machine reveal no secret.
    assert_eq!(status(&from_host(&server, "GET", "/readyz", &evil)), 200);

    for arguments in [
        &["--hosts", "evil.example"][..],
        &["--hosts", "*.example"],
        &["--hosts", "any"],
        &["--origin", "http://evil.example"],
    ] {
        let server = Running::serve(arguments);
        assert_eq!(status(&from_host(&server, "GET", "/", &evil)), 200, "{arguments:?}");
    }
    // Configured names are checked on all listeners.
    let server =
        Running::start(program().args(["serve", "--listen", "0.0.0.0:0", "--hosts", "ours.example"]));
    assert_eq!(status(&from_host(&server, "GET", "/", "evil.example")), 421);
    assert_eq!(status(&from_host(&server, "GET", "/", "OURS.example.:80")), 200);
    let server = Running::start(program().args(["serve", "--listen", "0.0.0.0:0"]));
    assert_eq!(status(&from_host(&server, "GET", "/", "any.example")), 200);
    let bad = fails(program().args(["serve", "--hosts", "http://a.example"]));
    assert!(bad.contains("--hosts") && bad.contains("http://a.example"), "{bad}");
}

fn raw_upgrade(server: &Running, lines: &str) -> String {
    let mut stream = server.connect();
    write!(
        stream,
        "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n"
    )
    .unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn names_with_an_empty_token_are_rejected() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--streams", "$DIR/streams"]);
    for name in ["a.", ".a", "a..b", ".", ".."] {
        for path in [format!("/topics/{name}"), format!("/streams/{name}")] {
            // Clients resolve path segments of dots only.
            let path = path.replace("/..", "/%2e%2e").replace("/.", "/%2e");
            let answer = server.request(&format!("POST {path} HTTP/1.1"), "x");
            assert!([400, 422].contains(&status(&answer)), "{path}: {answer}");
            let head = server.try_websocket(&path, "").map(drop).unwrap_err();
            assert_eq!(status(&head), 400, "{path}");
        }
        let mut socket = server.websocket("/ws");
        socket.receive_message();
        for message in [
            json!({"op": "subscribe", "id": 1, "topic": name}),
            json!({"op": "subscribe", "id": 1, "topic": format!("*.{name}")}),
            json!({"op": "publish", "id": 1, "topic": name, "data": 1}),
            json!({"op": "presence", "id": 1, "topic": name}),
            json!({"op": "history", "id": 1, "topic": name, "last": 1}),
            json!({"op": "append", "id": 1, "stream": name, "data": 1}),
            json!({"op": "consume", "id": 1, "stream": name}),
            json!({"op": "stream", "id": 1, "stream": name}),
        ] {
            assert_eq!(socket.request(&message)["code"], 422, "{message}");
        }
        let history = format!("{name}=5");
        for arguments in [["--history", &history], ["--auth-public-subscribe", name]] {
            let error = fails(program().args(["serve", "--listen", "127.0.0.1:0"]).args(arguments));
            assert!(error.contains(name), "{error}");
        }
        let error = fails(program().args(["token", "--secret-file", &secret, "--subscribe", name]));
        assert!(error.contains(name), "{error}");
    }
}

/// Errors repeat at most 64 bytes of any input.
#[test]
fn errors_echo_at_most_64_bytes_of_input() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret, "--streams", "$DIR/streams"]);
    let made = token(&secret, &["--subscribe", "b", "--publish", "b"]);
    let mut socket = server.websocket(&format!("/ws?token={made}"));
    socket.receive_message();
    let long = "Q".repeat(1 << 20);
    let name = "Q".repeat(200);
    for message in [
        json!({"op": long}).to_string(),
        json!({"op": "ping", &*long: 1}).to_string(),
        json!({"op": "ping", "presence": long}).to_string(),
        json!({"op": "ping", "partition": format!("{long}`, expected Q {long}")}).to_string(),
        json!({"op": "append", "stream": "b", "ack": long, "data": 1}).to_string(),
        json!({"op": "append", "stream": "b", "records": [{&*long: 1}]}).to_string(),
        json!({"op": "publish", "topic": "b", "b64": long.replace('Q', "Q!")}).to_string(),
        json!({"op": "subscribe", "topic": long}).to_string(),
        json!({"op": "ping", "id": long}).to_string(),
        json!({"op": long, "stream": "b"}).to_string(),
        json!({"op": "subscribe", "topic": name}).to_string(),
        json!({"op": "publish", "topic": name, "data": 1}).to_string(),
        json!({"op": "unsubscribe", "topic": name}).to_string(),
        json!({"op": "history", "topic": name, "last": 1}).to_string(),
        json!({"op": "append", "stream": name, "data": 1}).to_string(),
        json!({"op": "stop", "stream": name}).to_string(),
        json!({"op": "consume", "stream": name}).to_string(),
        format!("{{\"op\":\"ping\",\"id\":{}}}", long.replace('Q', "9")),
        format!("{{{long}"),
        long.clone(),
    ] {
        socket.send(&Frame::text(message.clone()));
        let answer = socket.receive_message();
        let is_ignored = message.starts_with("{\"QQ") && message.contains("\"ping\"");
        assert_eq!(answer["op"], if is_ignored { "ignored" } else { "error" }, "{:.200}", answer.to_string());
        if is_ignored {
            assert_eq!(socket.receive_message()["op"], "pong");
        }
        let repeated = if message.contains('Q') { 'Q' } else { '9' };
        let echoed = answer.to_string().matches(repeated).count();
        assert!(echoed <= 64, "{echoed} bytes of {message:.80} are echoed");
    }
    let bearer = |token: &str| format!("\r\nAuthorization: Bearer {token}");
    let kid = signed(&json!({"alg": "HS256", "kid": "Q".repeat(2000)}), &json!({}), b"another secret");
    let good = bearer(&made);
    let claims = |right: Value| {
        let claims = json!({"exp": 4_000_000_000_u64, "publish": right});
        bearer(&signed(&json!({"alg": "HS256"}), &claims, SECRET.as_bytes()))
    };
    for (line, body) in [
        (format!("POST /topics/{name} HTTP/1.1{good}"), ""),
        (format!("POST /streams/{name} HTTP/1.1{good}"), ""),
        (format!("POST /topics/b HTTP/1.1{}", bearer(&kid)), ""),
        (format!("POST /topics/b HTTP/1.1{}", bearer(&"Q".repeat(3000))), ""),
        (format!("POST /topics/b HTTP/1.1{}", claims(json!("Q".repeat(1000) + ".>.a"))), ""),
        (format!("POST /topics/b HTTP/1.1{}", claims(json!({ "Q".repeat(1000): 1 }))), ""),
        (format!("POST /streams/b?ack={name} HTTP/1.1{good}"), ""),
        (format!("POST /streams/b HTTP/1.1{good}\r\nContent-Type: application/json"), &*name),
        (format!("POST /topics/b HTTP/1.1{good}\r\nContent-Type: application/json"), &*name),
        (format!("GET /streams/b?from={name} HTTP/1.1{good}"), ""),
        (format!("GET /{name} HTTP/1.1"), ""),
        (format!("{name} / HTTP/1.1"), ""),
    ] {
        let answer = server.request(&line, body);
        let echoed = answer.matches('Q').count();
        assert!(status(&answer) >= 400 && echoed <= 64, "{echoed} bytes are echoed: {answer:.600}");
    }
    let host = from_host(&server, "GET", "/", &"Q".repeat(300));
    assert!(status(&host) == 421 && host.matches('Q').count() <= 64, "{host}");
}

#[test]
fn rejected_browser_is_closed_with_the_reason() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret]);
    let host = format!("localhost:{}", server.address.port());
    let page = format!("Origin: http://{host}\r\n");
    let foreign = "Origin: https://elsewhere.example\r\n";
    let made = token(&secret, &["--subscribe", "b"]);
    let forged = format!("{page}Sec-WebSocket-Protocol: sinews.v1, sinews.bearer.{made}x\r\n");
    for (path, lines, code, reason) in [
        ("/ws", foreign, 4403, "origin"),
        ("/echo", foreign, 4403, "origin"),
        ("/topics/a", foreign, 4403, "origin"),
        ("/dashboard/feed", foreign, 4403, "origin"),
        ("/ws", &*forged, 4401, "signature"),
        ("/topics/a", &page, 4401, "a token is needed to subscribe to a"),
        ("/dashboard/feed", &page, 4401, "a token is needed"),
        ("/topics/a.", &page, 4400, "empty part between its dots"),
    ] {
        let mut socket = server.try_websocket_at(path, &host, lines).expect("an upgrade");
        match socket.next() {
            Some(Reply::Close(Some(found), request_text)) => {
                assert!(found == code && request_text.contains(reason), "{path}: {found} {request_text}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    // A script of another runtime has no `Origin`: its token is a subprotocol.
    let outside = forged.split_once("\r\n").unwrap().1;
    let mut socket = server.try_websocket("/ws", outside).expect("an upgrade");
    assert_eq!(socket.next().and_then(|reply| reply.close_code()), Some(4401));
    // Another client without `Origin` receives the status.
    assert!(server.try_websocket("/topics/a", "").is_err_and(|head| status(&head) == 401));
    let metrics = server.get("/metrics");
    for line in
        ["sinews_rejections_total{reason=\"origin\"} 4", "sinews_rejections_total{reason=\"token\"} 2"]
    {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let log = log_of(server);
    for part in ["INFO", "elsewhere.example", "reason=\"origin\"", "reason=\"token\"", "signature"] {
        assert!(log.contains(part), "{part} in {log}");
    }

    let server = Running::serve(&["--websocket-reject-browsers", "status"]);
    let head = server.try_websocket("/ws", foreign).map(drop).unwrap_err();
    assert_eq!(status(&head), 403);
}

#[test]
fn rejections_are_logged_at_a_limited_rate() {
    let server = Running::serve(&[]);
    for _ in 0..100 {
        server.request("POST /topics/a HTTP/1.1\r\nOrigin: https://elsewhere.example", "x");
    }
    let metrics = server.get("/metrics");
    assert!(metrics.contains("sinews_rejections_total{reason=\"origin\"} 100"), "{metrics}");
    let lines = log_of(server).lines().filter(|line| line.contains("elsewhere.example")).count();
    // Ten in ten seconds; a very busy machine takes longer than one interval.
    assert!((1..=60).contains(&lines), "{lines} lines");
}

#[test]
fn posted_json_is_published_as_json() {
    let server = Running::serve(&[]);
    let mut framed = server.websocket("/ws");
    framed.receive_message();
    framed.request(&json!({"op": "subscribe", "id": 1, "topic": "x"}));
    let mut plain = server.websocket("/topics/x");
    plain.send(&Frame::ping(""));
    assert_eq!(plain.next(), Some(Reply::Pong(Vec::new())));
    let post = |kind: &str, body: &str| {
        let kind = if kind.is_empty() { String::new() } else { format!("\r\nContent-Type: {kind}") };
        status(&server.request(&format!("POST /topics/x HTTP/1.1{kind}"), body))
    };
    for (kind, body, data, text) in [
        ("application/json", "{\"a\": [1]}", json!({"a": [1]}), "{\"a\": [1]}"),
        ("Application/JSON; charset=utf-8", "1.5", json!(1.5), "1.5"),
        ("application/json", "\"text\"", json!("text"), "text"),
        ("text/plain", "{\"a\": 1}", json!("{\"a\": 1}"), "{\"a\": 1}"),
        ("application/x-www-form-urlencoded", "hello", json!("hello"), "hello"),
        ("", "hello", json!("hello"), "hello"),
    ] {
        assert_eq!(post(kind, body), 200, "{kind}");
        assert_eq!(framed.receive_message()["data"], data, "{kind}");
        assert_eq!(plain.next(), Some(Reply::text(text)), "{kind}");
    }
    assert_eq!(post("application/octet-stream", "abc"), 200);
    assert_eq!(framed.receive_message()["b64"], "YWJj");
    assert_eq!(plain.next(), Some(Reply::binary(b"abc")));
    for bad in ["{", "", "hello", "1 2"] {
        assert_eq!(post("application/json", bad), 400, "{bad}");
    }
    assert_eq!(post("application/x-ndjson", "1\n2"), 415);
}

#[test]
fn token_op_renews_and_reevaluates_rights() {
    let secret = crate::auth::keys("secret");
    let server =
        Running::serve(&["--auth-secret-file", &secret, "--auth-leeway", "0s", "--streams", "$DIR/streams"]);
    let wide = token(&secret, &["--subscribe", "a", "--subscribe", "s.>", "--publish", ">"]);
    let mut socket = server.websocket(&format!("/ws?token={wide}"));
    let welcome = socket.receive_message();
    assert!(welcome["expires_in"].as_u64().is_some_and(|left| (3_500..=3_600).contains(&left)), "{welcome}");
    for topic in ["a", "s.one"] {
        socket.request(&json!({"op": "subscribe", "id": 1, "topic": topic}));
    }
    socket.request(&json!({"op": "append", "id": 1, "stream": "s.kept", "data": 1}));
    socket.request(&json!({"op": "consume", "id": 1, "stream": "s.kept"}));

    let renew =
        |socket: &mut Socket, token: &str| socket.request(&json!({"op": "token", "id": 9, "token": token}));
    let forged = renew(&mut socket, &format!("{wide}x"));
    assert_fields(&forged, json!({"op": "error", "code": 401}));
    let kept = socket.request(&json!({"op": "presence", "id": 2, "topic": "a"}));
    assert_eq!(kept["subscribers"], 1, "a rejected token changes nothing");

    let narrow = token(&secret, &["--subscribe", "a", "--expires", "2h"]);
    let ack = renew(&mut socket, &narrow);
    assert_fields(&ack, json!({"op": "ack", "id": 9}));
    assert!(ack["expires_in"].as_u64().is_some_and(|left| (7_100..=7_200).contains(&left)), "{ack}");
    let mut ended = [socket.receive_message(), socket.receive_message()];
    ended.sort_by_key(|error| error["topic"].is_null());
    assert_eq!((&ended[0]["code"], &ended[0]["topic"]), (&json!(403), &json!("s.one")), "{ended:?}");
    assert_eq!((&ended[1]["code"], &ended[1]["stream"]), (&json!(403), &json!("s.kept")), "{ended:?}");
    server.request(&format!("POST /topics/s.one HTTP/1.1\r\nAuthorization: Bearer {wide}"), "x");
    server.request(&format!("POST /streams/s.kept HTTP/1.1\r\nAuthorization: Bearer {wide}"), "x");
    server.request(&format!("POST /topics/a HTTP/1.1\r\nAuthorization: Bearer {wide}"), "x");
    assert_eq!(socket.receive_message()["topic"], "a", "ended subscriptions deliver no messages");
    let publish = socket.request(&json!({"op": "publish", "id": 3, "topic": "a", "data": 1}));
    assert_eq!(publish["code"], 403);
    assert_eq!(socket.request(&json!({"op": "token", "id": 4}))["code"], 400);
}

#[test]
fn renewed_token_sets_when_the_connection_ends() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret, "--auth-leeway", "0s"]);
    let long = token(&secret, &["--subscribe", "a"]);
    let short = || token(&secret, &["--subscribe", "a", "--expires", "3s"]);
    let renewal = |token: &str| json!({"op": "token", "id": 1, "token": token});
    // On a busy machine, the token may expire before it is renewed.
    let (mut extended, mut expiring) = loop {
        let short = short();
        let path = format!("/ws?token={short}");
        let sockets = (server.try_websocket(&path, ""), server.try_websocket(&path, ""));
        let (Ok(mut one), Ok(mut two)) = sockets else { continue };
        for socket in [&mut one, &mut two] {
            assert_eq!(socket.receive_message()["op"], "welcome");
        }
        let _ = one.stream.write_all(&Frame::text(renewal(&long).to_string()).encode(Role::Client));
        match one.next() {
            Some(Reply::Message(_, answer)) => {
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                assert_eq!(answer["op"], "ack", "{answer}");
                break (one, two);
            }
            reply => assert_eq!(reply.and_then(|reply| reply.close_code()), Some(4401)),
        }
    };
    let mut shortened = server.websocket(&format!("/ws?token={long}"));
    assert_eq!(shortened.receive_message()["op"], "welcome");
    assert_eq!(expiring.next().and_then(|reply| reply.close_code()), Some(4401));
    // A token with a shorter lifetime counts, too.
    while shortened.request(&renewal(&short()))["op"] != "ack" {}
    assert_eq!(shortened.next().and_then(|reply| reply.close_code()), Some(4401));
    extended.send(&Frame::ping("there"));
    assert_eq!(extended.next(), Some(Reply::Pong(b"there".to_vec())));
}

#[test]
fn key_file_with_a_trailing_newline_verifies_both_forms() {
    let directory = Directory::new();
    let claims = json!({"exp": 4_000_000_000_u64, "publish": "a"});
    for end in ["\n", "\r\n"] {
        let secret = directory.write("secret", &format!("{SECRET}{end}"));
        let server = Running::serve(&["--auth-secret-file", &secret]);
        let header = json!({"alg": "HS256"});
        let stripped = signed(&header, &claims, SECRET.as_bytes());
        let whole = signed(&header, &claims, format!("{SECRET}{end}").as_bytes());
        assert_eq!(post_with(&server, &stripped), 200, "{end:?}");
        assert_eq!(post_with(&server, &whole), 200, "{end:?}");
        assert_eq!(post_with(&server, &signed(&header, &claims, format!("{SECRET} ").as_bytes())), 401);
        for made in [&stripped, &whole] {
            let inspected = program().args(["token", "inspect", "--secret-file", &secret, made]).status();
            assert!(inspected.unwrap().success(), "{end:?}");
        }
        assert_eq!(post_with(&server, &token(&secret, &["--publish", "a"])), 200);
        let log = log_of(server);
        assert!(log.contains("line break") && log.contains("0x0a"), "{log}");
    }
}
