//! The live view, what it opens, and the address for administrators.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};
use sinews_testkit::{BodyReader, Frame, assert_fields, exchange};

use crate::api::{KEY, call, call_with, serve};
use crate::auth::{keys, token};
use crate::protocol::Client;
use crate::support::{Running, Socket, unused_address};

/// A live view with a query.
struct LiveView(BodyReader<TcpStream>);

impl LiveView {
    fn open(server: &Running, query: &str) -> Self {
        let line = format!("Authorization: Bearer {KEY}\r\n");
        let mut view = Self(server.stream(&format!("/api/v1/activity{query}"), &line));
        assert_eq!(view.0.status(), 200);
        assert_fields(&view.next(), json!({"kind": "start", "nodes": 1, "rate": 20, "preview": 1024}));
        view
    }

    fn next(&mut self) -> Value {
        loop {
            let text = self.0.until("\n\n").expect("the view has ended");
            if let Some(data) = text.strip_prefix("data: ") {
                return serde_json::from_str(data.trim_end()).unwrap();
            }
        }
    }
}

#[test]
fn live_view_shows_what_clients_do() {
    let secret = keys("secret");
    let server = serve(&["--auth-secret-file", &secret, "--log", "debug"]);
    let mut view = LiveView::open(&server, "");
    let anna = token(
        &secret,
        &["--subject", "anna", "--subscribe", "room", "--publish", "room", "--keys", "room/*"],
    );
    let (mut client, welcome) = Client::welcomed(&server, &format!("/ws?token={anna}"), "");
    let id = &welcome["connection"];
    let client_fields = json!({"connection": id, "user": "anna", "address": "127.0.0.1", "path": "/ws"});
    let mut expect = |kind: &str, fields: Value| {
        let action = view.next();
        assert_fields(&action, json!({"kind": kind}));
        assert_fields(&action, client_fields.clone());
        assert_fields(&action, fields);
        assert!(action["at"].as_u64().is_some_and(|at| at > 1_600_000_000_000), "{action}");
    };
    expect("connect", json!({}));
    client.subscribe_with("room", &json!({}));
    expect("subscribe", json!({"topic": "room"}));
    client.request(json!({"op": "subscribe", "id": 2, "topic": "room", "keys": true}));
    expect("subscribe_keys", json!({"topic": "room"}));
    client.request(json!({"op": "join", "id": 3, "topic": "room", "member": {"id": "anna"}}));
    expect("join", json!({"topic": "room", "member": "anna"}));
    client.request(json!({"op": "publish", "id": 4, "topic": "room", "data": {"n": 1}}));
    expect("publish", json!({"topic": "room", "json": "{\"n\":1}", "bytes": 7}));
    client.request(json!({"op": "set", "id": 5, "topic": "room", "key": "a", "data": 1}));
    expect("set", json!({"topic": "room", "key": "a", "json": "1"}));
    client.request(json!({"op": "delete", "id": 6, "topic": "room", "key": "a"}));
    expect("delete", json!({"topic": "room", "key": "a"}));
    client.request(json!({"op": "publish", "id": 7, "topic": "secret", "data": 1}));
    expect("reject", json!({"op": "publish", "topic": "secret", "code": 403}));
    client.request(json!({"op": "subscribe", "id": 8, "topic": "a..b"}));
    expect("reject", json!({"op": "subscribe", "topic": "a..b", "code": 422}));
    client.request(json!({"op": "leave", "id": 9, "topic": "room"}));
    expect("leave", json!({"topic": "room"}));
    client.request(json!({"op": "unsubscribe", "id": 10, "topic": "room"}));
    expect("unsubscribe", json!({"topic": "room"}));
    drop(client);
    expect("close", json!({"code": 1006}));
    // Backends, plain requests and rejected handshakes.
    call(&server, "POST /publish", &json!({"topic": "room", "data": "x".repeat(2_000)}));
    let published = view.next();
    assert_fields(&published, json!({"kind": "publish", "path": "backend", "bytes": 2_002, "cut": true}));
    assert_eq!(published["json"].as_str().unwrap().len(), 1_024);
    assert!(server.try_websocket("/ws?token=x", "").is_err());
    assert_fields(&view.next(), json!({"kind": "reject", "op": "token", "address": "127.0.0.1"}));
    server.request(&format!("POST /topics/secret HTTP/1.1\r\nAuthorization: Bearer {anna}"), "text");
    assert_fields(
        &view.next(),
        json!({"kind": "reject", "op": "POST", "path": "/topics/secret", "code": 403}),
    );
    let head = format!("POST /topics/room HTTP/1.1\r\nAuthorization: Bearer {anna}");
    server.request(&head, "text");
    assert_fields(&view.next(), json!({"kind": "publish", "user": "anna", "text": "text"}));
    drop(view);
    assert_log(server, id.as_str().unwrap());
}

/// The log has a line for each action, without contents.
fn assert_log(mut server: Running, connection: &str) {
    let log = BufReader::new(server.child.stderr.take().unwrap());
    server.signal("TERM");
    let lines: Vec<String> =
        log.lines().map_while(Result::ok).filter(|line| line.contains(connection)).collect();
    for expected in [
        "client: connect",
        "client: subscribe",
        "client: join",
        "client: set",
        "client: reject",
        "client: close",
    ] {
        let line = lines
            .iter()
            .find(|line| line.contains(expected))
            .unwrap_or_else(|| panic!("{expected}: {lines:#?}"));
        assert!(line.contains("user=\"anna\"") && line.contains("DEBUG"), "{line}");
    }
    let published = lines.iter().find(|line| line.contains("client: publish")).unwrap();
    assert!(published.contains("topic=\"room\"") && published.contains("bytes=7"), "{published}");
    assert!(lines.iter().all(|line| !line.contains("\"n\"")), "contents are not logged: {lines:#?}");
}

#[test]
fn live_view_filters_at_the_server_and_counts_what_it_omits() {
    let server = serve(&[]);
    let mut rooms = LiveView::open(&server, "?topic=room.*&kinds=publish,reject");
    let (mut client, welcome) = Client::welcomed(&server, "/ws", "");
    let query = format!("?connection={}", welcome["connection"].as_str().unwrap());
    let mut own = LiveView::open(&server, &query);
    for topic in ["other", "room.a"] {
        client.subscribe_with(topic, &json!({}));
    }
    for topic in ["other", "room.a"] {
        call(&server, "POST /publish", &json!({"topic": topic, "data": topic}));
    }
    assert_fields(&rooms.next(), json!({"kind": "publish", "topic": "room.a"}));
    for topic in ["other", "room.a"] {
        assert_fields(&own.next(), json!({"kind": "subscribe", "topic": topic}));
    }
    // Of many at once, a sample comes, and then the number of the others.
    let messages: Vec<_> = (0..1_000).map(|n| json!({"topic": "room.a", "data": n})).collect();
    call(&server, "POST /batch", &json!({"messages": messages}));
    let mut shown = 0;
    let omitted = loop {
        let action = rooms.next();
        if action["kind"] == "omitted" {
            break action["counts"]["publish"].as_u64().unwrap();
        }
        shown += 1;
    };
    assert!(shown < 100 && shown + omitted <= 1_000 && omitted > 800, "{shown} and {omitted}");
    for (query, status) in [("?topic=a..b", 422), ("?kinds=no", 400), ("?what=1", 400)] {
        let answer = call_with(&server, KEY, "", &format!("GET /api/v1/activity{query}"), "");
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
    }
}

#[test]
fn live_view_shows_clients_of_apps() {
    let apps = crate::config::Directory::new();
    apps.write("1.toml", "id = \"1\"\nkey = \"app-key\"\nsecret = \"hidden\"\n");
    let server = serve(&["--pusher-apps-directory", &apps.path("")]);
    let mut view = LiveView::open(&server, "");
    let mut socket = server.try_websocket("/app/app-key?protocol=7", "").expect("a WebSocket");
    let connected = view.next();
    assert_fields(&connected, json!({"kind": "connect", "path": "/app/{key}", "address": "127.0.0.1"}));
    for (event, data) in
        [("pusher:subscribe", "room"), ("pusher:subscribe", "private-a"), ("pusher:unsubscribe", "room")]
    {
        let message = json!({"event": event, "data": {"channel": data}});
        socket.send(&Frame::text(message.to_string()));
    }
    let id = &connected["connection"];
    assert_fields(&view.next(), json!({"kind": "subscribe", "topic": "room", "connection": id}));
    assert_fields(
        &view.next(),
        json!({"kind": "reject", "op": "subscribe", "topic": "private-a", "connection": id}),
    );
    assert_fields(&view.next(), json!({"kind": "unsubscribe", "topic": "room", "connection": id}));
    drop(socket);
    assert_fields(&view.next(), json!({"kind": "close", "connection": id}));
}

#[test]
fn clients_and_topics_are_described() {
    let secret = keys("secret");
    let file = format!(
        "api.key = {KEY:?}\n[auth]\nsecret_file = {secret:?}\n[namespace.\"chat.>\"]\nhistory = 5\nmax_keys = 7\n\
         publish = \"authenticated\"\n[namespace.\"chat.room\"]\nkeyed = false\n"
    );
    let server = Running::configured(&file);
    let anna = token(
        &secret,
        &["--subject", "anna", "--id", "t1", "--subscribe", "chat.>", "--keys", "chat.a/{sub}"],
    );
    let (mut client, welcome) = Client::welcomed(&server, &format!("/ws?token={anna}"), "");
    client.subscribe_with("chat.room", &json!({"presence": true}));
    client.request(json!({"op": "subscribe", "id": 2, "topic": "chat.a", "keys": true}));
    client.request(json!({"op": "join", "id": 3, "topic": "chat.room", "member": {"id": "anna"}}));
    let id = welcome["connection"].as_str().unwrap();
    let described = call(&server, &format!("GET /connections/{id}"), &Value::Null);
    assert_fields(&described, json!({"connection": id, "user": "anna", "path": "/ws", "queued": 0}));
    let subscriptions = json!([{"topic": "chat.room", "presence": true}, {"topic": "chat.a", "keys": true}]);
    assert_eq!(described["subscriptions"], subscriptions);
    assert_eq!(described["joined"], json!([{"topic": "chat.room", "id": "anna"}]));
    let claims =
        json!({"sub": "anna", "jti": "t1", "subscribe": ["chat.>"], "publish": [], "keys": ["chat.a/anna"]});
    assert_fields(&described["claims"], claims);
    assert!(!described.to_string().contains(&anna), "the token is a secret");
    let mut raw =
        server.try_websocket("/topics/chat.b", &format!("Authorization: Bearer {anna}\r\n")).unwrap();
    raw.send(&Frame::ping(""));
    raw.next();
    let list = call(&server, "GET /connections", &Value::Null);
    let of_topic = list["connections"][1]["connection"].as_str().unwrap();
    let described = call(&server, &format!("GET /connections/{of_topic}"), &Value::Null);
    assert_eq!(described["subscriptions"], json!([{"topic": "chat.b"}]));
    for (id, status) in [("0-1", 404), ("x", 400)] {
        assert_eq!(call_with(&server, KEY, "", &format!("GET /api/v1/connections/{id}"), "").status, status);
    }
    assert_eq!(
        call(&server, "GET /topics/chat.room", &Value::Null),
        json!({
            "topic": "chat.room", "publish": "authenticated", "subscribe": "token", "write_keys": "token",
            "keyed": false, "presence": true, "history": 5, "max_keys": 7, "hooks": [],
            "namespaces": ["chat.room", "chat.>"],
        })
    );
}

/// The status of a request to an address.
fn status_at(address: &str, path: &str, lines: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n");
    let answer = exchange(TcpStream::connect(address).unwrap(), &request).unwrap();
    answer[9..12].parse().unwrap()
}

const ADMIN_PATHS: &[&str] = &[
    "/",
    "/chat",
    "/console",
    "/dashboard",
    "/dashboard.js",
    "/pages.css",
    "/favicon.ico",
    "/metrics",
    "/api/v1/openapi.json",
];

#[test]
fn administrators_have_an_address_of_their_own() {
    let admin = unused_address().to_string();
    let server = serve(&["--admin-listen", &admin]);
    let public = server.address.to_string();
    for path in ADMIN_PATHS {
        assert_eq!((status_at(&public, path, ""), status_at(&admin, path, "")), (404, 200), "{path}");
    }
    for path in ["/%61pi/v1/info", "//metrics", "/./dashboard", "/api/v1/info"] {
        assert_ne!(status_at(&public, path, &format!("Authorization: Bearer {KEY}\r\n")), 200, "{path}");
    }
    assert!(
        server.try_websocket("/echo", "").is_err() && server.try_websocket("/dashboard/feed", "").is_err()
    );
    for address in [&public, &admin] {
        for path in ["/healthz", "/readyz", "/sinews.js"] {
            assert_eq!(status_at(address, path, ""), 200, "{path} at {address}");
        }
    }
    assert_eq!(status_at(&admin, "/api/v1/info", &format!("Authorization: Bearer {KEY}\r\n")), 200);
    Client::at(&server, "/ws").subscribe_with("room", &json!({}));
    assert!(server.table.contains(&format!("http://{admin}/dashboard")), "{}", server.table);
}

#[test]
fn pages_can_be_switched_off_and_unknown_paths_have_a_page() {
    let server = serve(&["--pages=false"]);
    for path in ["/", "/chat", "/console", "/dashboard", "/pages.css"] {
        assert!(server.get(path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    assert!(
        server.try_websocket("/echo", "").is_err() && server.try_websocket("/dashboard/feed", "").is_err()
    );
    assert!(
        server.get("/sinews.js").starts_with("HTTP/1.1 200 ")
            && server.get("/metrics").starts_with("HTTP/1.1 200 ")
    );
    let browser = "GET /nothing HTTP/1.1\r\nAccept: text/html,application/xhtml+xml";
    assert!(server.request(browser, "").ends_with("\r\n\r\nnot found\n"));
    let server = serve(&[]);
    let answer = server.request(browser, "");
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("<!doctype html>"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("content-security-policy: default-src 'none'"), "{answer}");
    assert!(server.get("/nothing").ends_with("\r\n\r\nnot found\n"), "programs get text");
}

#[test]
fn api_key_opens_the_feed_of_the_dashboard() {
    let secret = keys("secret");
    let file = crate::config::Directory::new();
    let reader = "another-key-without-the-right-to-it";
    file.write("keys", &format!("ops {KEY}-2 admin\nreader {reader} read\n"));
    let server = serve(&["--auth-secret-file", &secret, "--api-keys-file", &file.path("keys")]);
    let feed = |key: &str| -> Result<Socket, String> {
        let key = base64_url(key);
        server.try_websocket(
            "/dashboard/feed",
            &format!("Sec-WebSocket-Protocol: sinews.raw, sinews.key.{key}\r\n"),
        )
    };
    for key in [KEY, &format!("{KEY}-2")] {
        assert!(feed(key).expect("a feed").next().is_some());
    }
    for key in [reader, "unknown", ""] {
        assert!(feed(key).is_err(), "{key}");
    }
}

/// Encodes a text in base64url without padding.
fn base64_url(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let chunks = text.as_bytes().chunks(3).flat_map(|chunk| {
        let bits =
            chunk.iter().enumerate().fold(0, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        (0..=chunk.len()).map(move |at| char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]))
    });
    chunks.collect()
}
