//! Topics for clients without WebSocket: Server-Sent Events, lines of JSON and long polls.

mod records;
mod requests;

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions, TokenKeys};
use sinews_hub::{HostRules, Hub, HubConfig, Namespace, Namespaces, StreamOptions, TopicAccess};
use sinews_server::{Member, OriginPolicy};
use sinews_testkit::{BodyReader, SseEvent, assert_fields, until_equal};

use crate::support::{TestHub, ask_on, parse, request};

/// The event of a subscription, after the welcome if that is due; returns its data.
fn subscribed(body: &mut BodyReader<TcpStream>) -> Value {
    let mut event = body.event().unwrap();
    if event.kind == "welcome" {
        event = body.event().unwrap();
    }
    assert_eq!(event.kind, "subscribed", "{event:?}");
    parse(&event.data)
}

/// Reads the welcome of a response with lines; returns the id of the connection.
fn welcomed(body: &mut BodyReader<TcpStream>) -> String {
    let welcome = parse(&body.line().unwrap());
    assert_eq!((&welcome["op"], welcome.as_object().unwrap().len()), (&json!("welcome"), 2));
    welcome["connection"].as_str().unwrap().to_owned()
}

/// The next answer to a long poll, and the connection.
fn polled(mut body: BodyReader<TcpStream>) -> (Value, TcpStream) {
    assert_eq!((body.status(), body.header("content-type")), (200, Some("application/json")));
    let text = body.rest();
    (parse(&text), body.into_transport())
}

const JSON: &str = "Accept: application/json\r\n";
const LINES: &str = "Accept: application/x-ndjson\r\n";

#[test]
fn payloads_of_a_topic_are_events() {
    let hub = TestHub::new();
    let mut body = hub.events("/topics/lobby");
    assert_eq!((body.status(), body.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(subscribed(&mut body), json!({ "op": "ack", "topic": "lobby" }));
    for (kind, payload, event) in [
        ("text/plain", &b"hello"[..], SseEvent::new("message", "hello")),
        ("text/plain", b"", SseEvent::new("message", "")),
        ("text/plain", b"two\nlines", SseEvent::new("message", "two\nlines")),
        ("text/plain", b"x\n\nevent: close\ndata: forged\n\n", {
            SseEvent::new("message", "x\n\nevent: close\ndata: forged\n\n")
        }),
        ("text/plain", b"x\r\revent: close\r\r", SseEvent::new("message", "x\n\nevent: close\n\n")),
        ("application/json", b"{\"a\":\n[1]}", SseEvent::new("message", "{\"a\":\n[1]}")),
        ("application/json", b"\"text\\nin JSON\"", SseEvent::new("message", "text\nin JSON")),
        ("application/json", b"null", SseEvent::new("message", "null")),
        ("application/octet-stream", b"\x00\xff\n", SseEvent::new("binary", "AP8K")),
        ("text/plain", b"\xff", SseEvent::new("binary", "/w==")),
    ] {
        assert_eq!(hub.publish_as("lobby", kind, payload), 200);
        assert_eq!(body.event(), Some(event));
    }
}

#[test]
fn event_stream_starts_with_the_time_to_wait_before_a_reconnect_and_the_id_of_its_connection() {
    let hub = TestHub::new();
    let mut ids = Vec::new();
    for path in ["/topics/lobby", "/topics?topic=lobby&topic=hall", "/topics/lobby/keys"] {
        let mut body = hub.events(path);
        let first = body.until("\n\n").unwrap();
        let welcome =
            first.strip_prefix("retry: 2000\nevent: welcome\ndata: ").unwrap_or_else(|| panic!("{first}"));
        let welcome = parse(welcome);
        ids.push(welcome["connection"].as_str().unwrap().to_owned());
        assert_eq!(welcome, json!({ "op": "welcome", "connection": ids.last() }), "{path}");
        let second = body.until("\n").unwrap();
        assert_eq!(second, "event: subscribed\n", "{path}");
        let mut lines = hub.ask(path, LINES);
        ids.push(welcomed(&mut lines));
        assert_eq!(parse(&lines.line().unwrap())["op"], "ack");
    }
    let distinct: std::collections::HashSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), 6, "{ids:?}");
}

#[test]
fn last_event_id_resumes_without_a_gap_or_tells_it() {
    let hub = TestHub::new();
    let mut body = hub.events("/topics/kept.a");
    let ack = subscribed(&mut body);
    assert_fields(&ack, json!({"seq": 0, "complete": true}));
    let epoch = ack["epoch"].as_u64().unwrap();
    let id = |sequence: u64| format!("{epoch}-{sequence}");
    hub.publish("kept.a", "1");
    let first = body.event().unwrap();
    assert_eq!((&*first.data, &*first.id), ("1", &*id(1)));
    drop(body);
    hub.publish("kept.a", "2");
    hub.publish("kept.a", "3");
    let resume = |id: &str| hub.ask("/topics/kept.a?last=1", &format!("Last-Event-ID: {id}\r\n"));
    let mut body = resume(&first.id);
    assert_eq!(body.event().unwrap().kind, "welcome");
    let event = body.event().unwrap();
    // The messages of the replay still follow, so the id is before them.
    assert_eq!((&*event.kind, &*event.id), ("subscribed", &*id(1)));
    assert_eq!(parse(&event.data)["complete"], json!(true));
    for text in ["2", "3"] {
        let event = body.event().unwrap();
        assert_eq!((&*event.data, event.id), (text, id(text.parse().unwrap())));
    }
    hub.publish("kept.a", "4");
    assert_eq!(body.event().unwrap().data, "4");
    hub.publish("kept.a", "5");
    for unknown in [id(1), format!("{}-4", epoch ^ 1), "of another server".to_owned(), "1-1,2-2".to_owned()] {
        let mut body = resume(&unknown);
        let ack = subscribed(&mut body);
        assert_eq!((&ack["complete"], &ack["replayed"]), (&json!(false), &json!(3)), "{unknown}: {ack}");
        assert_eq!(body.event().unwrap().data, "3");
    }
    let mut latest = hub.events("/topics/kept.a?last=1");
    subscribed(&mut latest);
    assert_eq!(latest.event().unwrap().data, "5");
    let mut after = hub.events(&format!("/topics/kept.a?after={}", id(4)));
    subscribed(&mut after);
    assert_eq!(after.event().unwrap().data, "5");
}

#[test]
fn ids_of_several_topics_resume_all_of_them() {
    let hub = TestHub::new();
    let path = "/topics?topic=kept.a&topic=kept.b&topic=live.*&topic=with%20space+and%2Bplus";
    let mut body = hub.events(path);
    for topic in ["kept.a", "kept.b", "live.*", "with space and+plus"] {
        assert_eq!(subscribed(&mut body)["topic"], topic);
    }
    for (topic, text) in [("kept.a", "a1"), ("kept.b", "b1"), ("kept.a", "a2"), ("live.x", "x")] {
        hub.publish(topic, text);
        let event = body.event().unwrap();
        let message = parse(&event.data);
        assert_eq!((&*event.kind, &message["op"]), ("message", &json!("message")));
        assert_fields(&message, json!({"topic": topic, "data": text}));
        let ids: Vec<&str> = event.id.split(',').collect();
        assert!(ids.len() == 4 && ids[2].is_empty() && ids[3].is_empty(), "{}", event.id);
    }
    hub.publish("kept.b", "b2");
    let last = body.event().unwrap();
    assert!(last.id.contains("-2,") && last.id.ends_with("-2,,"), "{}", last.id);
    drop(body);
    hub.publish("kept.b", "b3");
    hub.publish("kept.a", "a3");
    let mut body = hub.ask(path, &format!("Last-Event-ID: {}\r\n", last.id));
    assert_eq!(body.event().unwrap().kind, "welcome");
    let mut received: Vec<String> = Vec::new();
    while received.len() < 2 {
        let event = body.event().unwrap();
        let message = parse(&event.data);
        match &*event.kind {
            "message" => received.push(message["data"].as_str().unwrap().to_owned()),
            _ if message["topic"].as_str().unwrap().starts_with("kept.") => {
                assert_eq!(message["complete"], json!(true), "{message}");
            }
            _ => {}
        }
    }
    received.sort();
    assert_eq!(received, ["a3", "b3"]);
}

#[test]
fn lines_are_messages_of_the_protocol() {
    let hub = TestHub::new();
    let mut body = hub.ask("/topics/kept.*", LINES);
    assert_eq!(body.header("content-type"), Some("application/x-ndjson"));
    welcomed(&mut body);
    assert_eq!(parse(&body.line().unwrap()), json!({ "op": "ack", "topic": "kept.*" }));
    for (kind, payload, field, value) in [
        ("text/plain", &b"a\r\nb"[..], "data", json!("a\r\nb")),
        ("application/json", b"{\n\"a\":\r\n1 }", "data", json!({ "a": 1 })),
        ("application/octet-stream", b"\n", "b64", json!("Cg==")),
    ] {
        assert_eq!(hub.publish_as("kept.a", kind, payload), 200);
        let line = parse(&body.line().unwrap());
        assert_eq!(
            (&line["op"], &line["topic"], &line[field]),
            (&json!("message"), &json!("kept.a"), &value)
        );
    }
}

#[test]
fn websocket_and_event_stream_get_each_others_publications() {
    let hub = TestHub::new();
    let mut body = hub.events("/topics/lobby");
    subscribed(&mut body);
    let mut socket = hub.websocket("/topics/lobby");
    socket.send_text("from a socket").unwrap();
    assert_eq!(body.event(), Some(SseEvent::new("message", "from a socket")));
    hub.publish("lobby", "from a request");
    let mut received = || String::from_utf8(socket.next().unwrap().unwrap().as_bytes().to_vec()).unwrap();
    assert_eq!([received(), received()], ["from a socket", "from a request"]);
    assert_eq!(body.event(), Some(SseEvent::new("message", "from a request")));
    let mut json_socket = hub.websocket("/ws");
    json_socket.next().unwrap().unwrap();
    json_socket.send_text("{\"op\":\"publish\",\"id\":1,\"topic\":\"lobby\",\"data\":{\"a\":1}}").unwrap();
    let ack = json_socket.next().unwrap().unwrap();
    assert_eq!(parse(std::str::from_utf8(ack.as_bytes()).unwrap())["reached"], 2);
    assert_eq!(body.event(), Some(SseEvent::new("message", "{\"a\":1}")));
}

#[test]
fn long_polls_get_every_message_on_one_connection() {
    let hub = TestHub::new();
    let (first, mut stream) = polled(hub.ask("/topics/kept.a?wait=0", JSON));
    assert_eq!(first["messages"][0]["op"], "ack");
    let mut cursor = first["cursor"].as_str().unwrap().to_owned();
    assert!(cursor.ends_with("-0"), "{first}");
    for round in 0..10_u64 {
        // The first of two is published before the poll, the second while it waits or after it.
        hub.publish("kept.a", &format!("{}", 2 * round));
        let late = thread::spawn({
            let (address, text) = (hub.address, (2 * round + 1).to_string());
            move || assert_eq!(request(address, "POST /topics/kept.a", "", text).status(), 200)
        });
        let mut received: Vec<String> = Vec::new();
        while received.len() < 2 {
            let (answer, back) = polled(ask_on(stream, &format!("/topics/kept.a?after={cursor}"), JSON));
            stream = back;
            let messages = answer["messages"].as_array().unwrap();
            assert_fields(&messages[0], json!({"op": "ack", "complete": true}));
            received.extend(messages[1..].iter().map(|it| it["data"].as_str().unwrap().to_owned()));
            answer["cursor"].as_str().unwrap().clone_into(&mut cursor);
        }
        assert_eq!(received, [2 * round, 2 * round + 1].map(|number| number.to_string()));
        late.join().unwrap();
        assert!(cursor.ends_with(&format!("-{}", 2 * round + 2)), "{cursor}");
    }
}

#[test]
fn long_poll_waits_for_a_topic_without_history() {
    let hub = TestHub::new();
    let mut body = hub.ask("/topics?topic=a.*&topic=b", JSON);
    // It has subscribed.
    body.until("\"topic\":\"b\"").unwrap();
    hub.publish("a.x", "news");
    let rest = body.rest();
    assert!(rest.contains("\"data\":\"news\"") && rest.ends_with("],\"cursor\":\",\"}\n"), "{rest}");
}

#[test]
fn bad_requests_get_a_reason() {
    let hub = TestHub::new();
    for (status, path, lines, reason) in [
        (400, "/topics", "", "query parameter `topic` is required, up to 64 times, or `join` or `assigned`"),
        (400, "/topics?topic=a&topic=a", "", "topic a is named twice"),
        (400, "/topics/a..b", "", "empty part"),
        (400, "/topics/a.*?presence=true", "", "wildcard"),
        (400, "/topics/a?members=yes", "", "query parameter `members` must be true or false"),
        (400, "/topics/a?presence=true", JSON, "query parameter `presence` is not for long polls"),
        (400, "/topics/a?members=true", JSON, "query parameter `presence` is not for long polls"),
        (400, "/topics/a.*/members", "", "wildcard"),
        (400, "/topics/a?after=1", "", "query parameter `after` must have"),
        (400, "/topics/a?last=x", "", "query parameter `last` must be a number"),
        (400, "/topics/a?wait=1", "", "query parameter `wait` is for application/json only"),
        (400, "/topics/a?wait=56", JSON, "query parameter `wait` must be a number of seconds up to 55"),
        (400, "/topics/a", "Sec-WebSocket-Key: x\r\n", "needs the headers Connection and Upgrade"),
        (403, "/topics/a", "Origin: https://other.example\r\n", "may not connect"),
        (406, "/topics/a", "Accept: text/html\r\n", "Accept must permit text/event-stream"),
    ] {
        let mut answer = hub.ask(path, &format!("Connection: close\r\n{lines}"));
        assert_eq!(answer.status(), status, "{path} {lines}");
        let body = answer.rest();
        assert!(body.contains(reason), "{path} {lines}: {body}");
    }
}

#[test]
fn pages_of_allowed_origins_may_read_events() {
    let policy = HubConfig::new(Auth::new(&AuthOptions::new()).unwrap(), HostRules::default());
    let origin = OriginPolicy::list(["https://app.example".to_owned()]).unwrap();
    let hub = TestHub::built(Hub::builder().config(policy.with_origin(origin)));
    let body = hub.ask("/topics/a", "Origin: https://app.example\r\n");
    assert_eq!(body.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!((body.status(), body.header("vary")), (200, Some("Origin")));
    assert_eq!(hub.ask("/topics/a", "Origin: https://other.example\r\n").status(), 403);
    assert_eq!(hub.events("/topics/a").header("access-control-allow-origin"), None);
}

const PAGE: &str = "https://app.example";

/// Clients without a token may use each topic and stream but `secret`; pages of [`PAGE`] may call.
fn policy_for_pages() -> HubConfig {
    let (keys, public) = (TokenKeys::Secret(SECRET.to_owned()), ["a", "keyed", "log"].map(str::to_owned));
    let options = AuthOptions::new().with_keys(keys);
    let options = options.with_public_publish(public.clone()).with_public_subscribe(public);
    let namespace = Namespace::new("keyed").with_write_keys(TopicAccess::Anonymous);
    HubConfig::new(Auth::new(&options).unwrap(), HostRules::default())
        .with_namespaces(Namespaces::new([namespace]).unwrap())
        .with_api_keys(ApiKeys::new().with_key("api-key-of-at-least-sixteen-bytes").unwrap())
        .with_origin(OriginPolicy::list([PAGE.to_owned()]).unwrap())
}

/// The answer to a request of a page.
fn of_page(hub: &TestHub, request: &str, origin: Option<&str>, lines: &str) -> BodyReader<TcpStream> {
    let mut stream = hub.connect();
    let origin = origin.map_or_else(String::new, |origin| format!("Origin: {origin}\r\n"));
    let length = if lines.contains("Content-Length") { "" } else { "Content-Length: 1\r\n" };
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{origin}{lines}{length}\r\n1"
    )
    .unwrap();
    BodyReader::new(stream)
}

/// A hub with streams in a directory of its own.
fn hub_for_pages() -> (tempfile::TempDir, TestHub) {
    let directory = tempfile::tempdir().unwrap();
    let streams = StreamOptions::in_directory(directory.path());
    let hub = TestHub::built(Hub::builder().config(policy_for_pages()).streams(streams));
    (directory, hub)
}

#[test]
fn pages_of_allowed_origins_may_read_all_answers_to_plain_requests() {
    let (_directory, hub) = hub_for_pages();
    let large = "Content-Length: 99999999999\r\n";
    for (request, lines, status) in [
        ("GET /healthz", "", 200),
        ("GET /topics/a?wait=0", JSON, 200),
        ("GET /topics/a..b", JSON, 400),
        ("GET /topics/a", "Accept: text/html\r\n", 406),
        ("GET /topics/a/members", "", 200),
        ("GET /topics/secret/members", "", 401),
        ("POST /topics/a", "", 200),
        ("POST /topics/secret", "", 401),
        ("POST /topics/secret", "Authorization: Bearer x\r\n", 401),
        ("POST /topics/a", large, 413),
        ("PATCH /topics/a", "", 405),
        ("GET /topics/a/b/c", "", 404),
        ("PUT /topics/keyed/keys/k", "", 200),
        ("GET /topics/keyed/keys/k", "", 200),
        ("GET /topics/keyed/keys", "", 200),
        ("DELETE /topics/keyed/keys/k", "", 200),
        ("DELETE /topics/keyed/keys/k", "If-Match: *\r\n", 412),
        ("POST /rpc/m", "", 404),
        ("POST /streams/log", "", 200),
        ("GET /streams/log", "", 200),
        ("GET /streams", "", 200),
        ("DELETE /streams/log", "", 401),
    ] {
        let answer = of_page(&hub, request, Some(PAGE), lines);
        assert_eq!(answer.status(), status, "{request} {lines}");
        assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE), "{request} {lines}");
        assert_eq!(answer.header("vary"), Some("Origin"), "{request} {lines}");
        let exposed = "ETag, Retry-After, WWW-Authenticate";
        assert_eq!(answer.header("access-control-expose-headers"), Some(exposed));
        for other in [Some("https://other.example"), Some("null"), None] {
            let answer = of_page(&hub, request, other, lines);
            assert_eq!(answer.header("access-control-allow-origin"), None, "{request} {other:?}");
        }
    }
    // What a backend calls, or no page reads, stays closed.
    for path in ["/api/v1/openapi.json", "/api/v1/connections", "/metrics", "/readyz", "/ws"] {
        let key = "Authorization: Bearer api-key-of-at-least-sixteen-bytes\r\n";
        let answer = of_page(&hub, &format!("GET {path}"), Some(PAGE), key);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
    }
}

#[test]
fn preflights_of_pages_of_allowed_origins_are_answered() {
    let hub = TestHub::built(Hub::builder().config(policy_for_pages()));
    let preflight = |path: &str, method: &str, origin: &str| {
        let lines = format!(
            "Access-Control-Request-Method: {method}\r\n\
             Access-Control-Request-Headers: authorization,content-type,idempotency-key,last-event-id\r\n"
        );
        of_page(&hub, &format!("OPTIONS {path}"), Some(origin), &lines)
    };
    for (path, method) in [
        ("/healthz", "GET"),
        ("/topics/secret", "POST"),
        ("/topics?topic=a", "GET"),
        ("/topics/a/keys/k", "PUT"),
        ("/topics/a/keys/k", "DELETE"),
        ("/rpc/m", "POST"),
        ("/streams/log", "DELETE"),
    ] {
        let answer = preflight(path, method, PAGE);
        assert_eq!((answer.status(), answer.header("access-control-allow-origin")), (204, Some(PAGE)));
        let methods = answer.header("access-control-allow-methods").unwrap();
        assert!(methods.split(", ").any(|known| known == method), "{path}: {methods}");
        let headers = answer.header("access-control-allow-headers");
        assert_eq!(headers, Some("authorization,content-type,idempotency-key,last-event-id"));
        assert_eq!(answer.header("access-control-max-age"), Some("600"));
        let mut rejected = preflight(path, method, "https://other.example");
        assert_eq!((rejected.status(), rejected.header("access-control-allow-methods")), (403, None));
        assert_eq!(rejected.header("access-control-allow-origin"), None);
        assert!(rejected.rest().contains("https://other.example may not connect"));
    }
    let mut metrics = hub.ask("/metrics", "Connection: close\r\n");
    assert!(metrics.rest().contains("sinews_rejections_total{reason=\"origin\"} 7\n"));
    for path in ["/api/v1/publish", "/ws"] {
        let answer = preflight(path, "POST", PAGE);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
        assert_eq!(answer.header("access-control-allow-methods"), None, "{path}");
    }
    // A reload may change the origins.
    let other = OriginPolicy::list(["https://other.example".to_owned()]).unwrap();
    hub.config.replace(policy_for_pages().with_origin(other));
    assert_eq!(preflight("/topics/a", "POST", PAGE).status(), 403);
    assert_eq!(preflight("/topics/a", "POST", "https://other.example").status(), 204);
}

const SECRET: &str = "a secret of at least thirty-two bytes for HS256";

fn token(subscribe: &str, lives: Duration) -> String {
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + lives;
    let claims = json!({ "exp": end.as_secs_f64(), "subscribe": [subscribe] });
    jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
}

#[test]
fn tokens_grant_topics_and_end_the_stream_when_they_expire() {
    let options =
        AuthOptions::new().with_keys(TokenKeys::Secret(SECRET.to_owned())).with_leeway(Duration::ZERO);
    let policy = HubConfig::new(
        Auth::new(&options.with_public_publish([">".to_owned()])).unwrap(),
        HostRules::default(),
    );
    let hub = TestHub::built(Hub::builder().config(policy));
    let valid = token("kept.>", Duration::from_secs(600));
    assert_eq!(hub.events("/topics/kept.a").status(), 401);
    assert_eq!(hub.events(&format!("/topics/other?token={valid}")).status(), 403);
    assert_eq!(hub.events(&format!("/topics?topic=kept.a&topic=other&token={valid}")).status(), 403);
    assert_eq!(hub.ask("/topics/kept.a", &format!("Authorization: Bearer {valid}x\r\n")).status(), 401);
    let mut body = hub.ask("/topics/kept.*", &format!("Authorization: Bearer {valid}\r\n"));
    subscribed(&mut body);
    // Names are encoded as values may be.
    let mut body = hub.events(&format!("/topics?t%6Fpic=kept.a&%74oken={valid}"));
    subscribed(&mut body);
    assert_eq!(hub.events(&format!("/topics/kept.a?token={valid}&tok%65n=other")).status(), 401);

    // On a busy machine, the token may expire before it is used, or before the message arrives: then once more.
    let (short, mut body) = loop {
        let short = token("kept.a", Duration::from_secs(2));
        let mut body = hub.events(&format!("/topics/kept.a?token={short}"));
        if body.status() == 401 {
            continue;
        }
        subscribed(&mut body);
        hub.publish("kept.a", "in time");
        let event = body.event().unwrap();
        if event.kind != "close" {
            assert_eq!(event.data, "in time");
            break (short, body);
        }
    };
    let close = body.event().unwrap();
    assert_eq!(
        (&*close.kind, parse(&close.data)),
        ("close", json!({ "code": 4401, "reason": "the token has expired" }))
    );
    assert_eq!((body.event(), body.has_ended()), (None, true));
    assert_eq!(hub.events(&format!("/topics/kept.a?token={short}")).status(), 401);
}

/// Joins a topic by a connection of its own.
fn join(hub: &TestHub, topic: &str, id: &str) -> WebSocket<TcpStream> {
    let mut socket = hub.websocket("/ws");
    let join = json!({ "op": "join", "id": 1, "topic": topic, "member": { "id": id, "info": { "at": id } } });
    socket.send_text(&join.to_string()).unwrap();
    for op in ["welcome", "ack"] {
        let message = socket.next().unwrap().unwrap();
        assert_eq!(parse(std::str::from_utf8(message.as_bytes()).unwrap())["op"], op);
    }
    socket
}

/// The next event of a presence.
fn presence(body: &mut BodyReader<TcpStream>) -> Value {
    let event = body.event().unwrap();
    assert_eq!((&*event.kind, &*event.id), ("presence", ""), "{event:?}");
    parse(&event.data)
}

#[test]
fn event_stream_follows_the_members_of_a_topic() {
    let hub = TestHub::new();
    let anna = join(&hub, "room", "anna");
    let mut body = hub.events("/topics/room?members=true");
    let ack = subscribed(&mut body);
    let listed = json!([{ "id": "anna", "connections": 1, "info": { "at": "anna" } }]);
    assert_fields(&ack, json!({"members": listed, "subscribers": 2, "more": false}));
    // A reader without members has the changes, too, and one without presence has none.
    let mut counting = hub.events("/topics/room?presence=true");
    let ack = subscribed(&mut counting);
    assert!(ack["subscribers"].is_u64() && ack["at"].is_u64() && ack["members"].is_null(), "{ack}");
    let mut silent = hub.events("/topics/room?presence=false");
    assert_eq!(subscribed(&mut silent), json!({ "op": "ack", "topic": "room" }));
    let mut lines = hub.ask("/topics?topic=room&topic=hall&members=true", LINES);
    welcomed(&mut lines);
    for topic in ["room", "hall"] {
        let ack = parse(&lines.line().unwrap());
        assert!(ack["topic"] == topic && ack["members"].is_array(), "{ack}");
    }

    let ben = join(&hub, "room", "ben");
    let has = |update: &Value, field: &str, id: &str| {
        let found = update[field].as_array().into_iter().flatten();
        found.into_iter().any(|member| member == id || member["id"] == id)
    };
    for body in [&mut body, &mut counting] {
        while !has(&presence(body), "joined", "ben") {}
    }
    while !has(&parse(&lines.line().unwrap()), "joined", "ben") {}
    drop(anna);
    let left = loop {
        let update = presence(&mut body);
        if has(&update, "left", "anna") {
            break update;
        }
    };
    assert!(left["since"].as_u64() < left["at"].as_u64(), "{left}");
    hub.publish("room", "a message");
    while body.event().unwrap().data != "a message" {}
    assert_eq!(silent.event().unwrap().data, "a message", "no presence");
    drop(ben);
}

/// The members of a topic: the id, the number of connections, and the info of each.
fn members(hub: &TestHub, topic: &str) -> Vec<(String, u64, Value)> {
    let list = parse(&hub.ask(&format!("/topics/{topic}/members"), "Connection: close\r\n").rest());
    let members = list["members"].as_array().unwrap().iter();
    let fields = |member: &Value| {
        let connections = member["connections"].as_u64().unwrap();
        (member["id"].as_str().unwrap().to_owned(), connections, member["info"].clone())
    };
    members.map(fields).collect()
}

/// Waits for the list of members of a topic.
fn until_members(hub: &TestHub, topic: &str, expected: &[(&str, u64, Value)]) {
    let owned = |(id, count, info): &(&str, u64, Value)| ((*id).to_owned(), *count, info.clone());
    let expected: Vec<_> = expected.iter().map(owned).collect();
    until_equal("members", expected, || members(hub, topic));
}

#[test]
fn client_is_a_member_while_its_response_is_open() {
    let hub = TestHub::new();
    let mut watcher = hub.events("/topics/room?members=true");
    subscribed(&mut watcher);
    let anna = "member=%7B%22id%22%3A%22anna%22%2C%22info%22%3A%7B%22name%22%3A%22Anna%22%7D%7D";
    let info = json!({ "name": "Anna" });
    let mut events = hub.events(&format!("/topics/room?join=room&join=hall&{anna}"));
    subscribed(&mut events);
    for topic in ["room", "hall"] {
        let event = events.event().unwrap();
        assert_eq!((&*event.kind, &*event.id), ("joined", ""), "{event:?}");
        assert_eq!(parse(&event.data), json!({ "op": "joined", "topic": topic }));
        assert_eq!(members(&hub, topic), [("anna".to_owned(), 1, info.clone())]);
    }
    // An earlier update may have the subscription only.
    let mut updates = std::iter::repeat_with(|| presence(&mut watcher)["joined"].clone());
    let joined = updates.find(|joined| !joined.is_null());
    assert_eq!(joined, Some(json!([{ "id": "anna", "info": info }])));
    // The same member by lines, without a subscription, and another member in each topic.
    let mut lines = hub.ask(&format!("/topics?join=room&{anna}"), LINES);
    welcomed(&mut lines);
    assert_eq!(parse(&lines.line().unwrap()), json!({ "op": "joined", "topic": "room" }));
    let own = "member=%7B%22id%22:%22ben%22%7D&member=%7B%22id%22:%22carl%22%7D";
    let mut other = hub.ask(&format!("/topics?join=room&join=hall&{own}"), LINES);
    welcomed(&mut other);
    for topic in ["room", "hall"] {
        assert_eq!(parse(&other.line().unwrap())["topic"], topic);
    }
    assert_eq!(
        members(&hub, "room"),
        [("anna".to_owned(), 2, info.clone()), ("ben".to_owned(), 1, Value::Null)]
    );
    // A member gets no message of a topic to which it has not subscribed.
    hub.publish("room", "for subscribers");
    assert_eq!(events.event().unwrap().data, "for subscribers");
    drop(events);
    until_members(&hub, "room", &[("anna", 1, info), ("ben", 1, Value::Null)]);
    until_members(&hub, "hall", &[("carl", 1, Value::Null)]);
    drop((lines, other));
    until_members(&hub, "room", &[]);
    until_members(&hub, "hall", &[]);
}

#[test]
fn joins_of_a_response_are_checked_before_it_begins() {
    let hub = TestHub::new();
    let id = |id: &str| format!("member=%7B%22id%22%3A%22{id}%22%7D");
    let many: String = (0..65).map(|number| format!("&join=t{number}")).collect();
    let long = format!("join=a&member=%7B%22id%22:%22x%22,%22info%22:%22{}%22%7D", "i".repeat(1_023));
    for (status, query, lines, reason) in [
        (400, "join=a".to_owned(), "", "a member is required"),
        (400, id("x"), "", "`member` needs `join`"),
        (400, format!("join=a&join=a&{}", id("x")), "", "topic a is joined twice"),
        (400, format!("join=a.*&{}", id("x")), "", "wildcard"),
        (400, "join=a&member=x".to_owned(), "", "query parameter `member`: "),
        (400, "join=a&member=%7B%22name%22:1%7D".to_owned(), "", "missing field `id`"),
        (400, format!("join=a&join=b&join=c&{0}&{0}", id("x")), "", "once for each `join` (3), not 2 times"),
        (400, format!("{many}&{}", id("x")), "", "`join` is permitted up to 64 times"),
        (422, format!("join=a&{}", id("")), "", "id"),
        (413, long, "", "1025"),
        (400, format!("join=a&{}", id("x")), JSON, "query parameter `join` is not for long polls"),
        (403, format!("join=a&{}", id("x")), "Sec-Fetch-Site: cross-site\r\n", "a page of another origin"),
    ] {
        for path in ["/topics/t?", "/topics?topic=t&"] {
            let mut answer = hub.ask(&format!("{path}{query}"), &format!("Connection: close\r\n{lines}"));
            assert_eq!(answer.status(), status, "{path}{query}");
            let body = answer.rest();
            assert!(body.contains(reason), "{path}{query}: {body}");
        }
    }
}

#[test]
fn join_without_websocket_needs_the_rights_of_a_join() {
    let options =
        AuthOptions::new().with_keys(TokenKeys::Secret(SECRET.to_owned())).with_leeway(Duration::ZERO);
    let policy = HubConfig::new(Auth::new(&options).unwrap(), HostRules::default());
    let namespaces = Namespaces::new([Namespace::new("kept.secret").with_presence(false)]);
    let hub = TestHub::built(Hub::builder().config(policy.with_namespaces(namespaces.unwrap())));
    let token = |lives: u64| {
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(lives);
        let claims = json!({ "exp": end.as_secs_f64(), "subscribe": ["kept.>"], "sub": "anna" });
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        jsonwebtoken::encode(&Header::default(), &claims, &key).unwrap()
    };
    let valid = token(600);
    let ben = "member=%7B%22id%22:%22ben%22%7D";
    for (status, query) in [
        (401, format!("join=kept.a&{ben}")),
        (403, format!("join=kept.a&{ben}&token={valid}")),
        (403, format!("join=other&token={valid}")),
        (422, format!("join=kept.secret&token={valid}")),
    ] {
        assert_eq!(hub.events(&format!("/topics?{query}")).status(), status, "{query}");
    }
    // The user of the token is the member.
    let mut body = hub.ask(&format!("/topics?join=kept.a&token={valid}"), LINES);
    body.line().unwrap();
    assert_eq!(parse(&body.line().unwrap())["op"], "joined");
    let anna = format!("/topics/kept.a/members?token={valid}");
    let listed = || parse(&hub.ask(&anna, "Connection: close\r\n").rest())["members"].clone();
    assert_eq!(listed(), json!([{ "id": "anna", "connections": 1 }]));
    drop(body);
    // The end of the token ends the response, and the membership.
    let in_time = || hub.ask(&format!("/topics?join=kept.a&token={}", token(2)), LINES);
    let mut body = std::iter::repeat_with(in_time).find(|body| body.status() != 401).unwrap();
    let mut messages = vec![body.line().unwrap()];
    messages.extend(std::iter::from_fn(|| body.line()));
    let close = parse(messages.last().unwrap());
    assert_eq!((&close["op"], &close["code"]), (&json!("close"), &json!(4401)), "{messages:?}");
    until_equal("the members", json!([]), listed);
}

#[test]
fn members_of_a_topic_are_listed_page_by_page() {
    let hub = TestHub::new();
    let ids: Vec<String> = (0..300).map(|number| format!("m {number:03}")).collect();
    let members: Vec<_> = ids.iter().map(|id| (Member::new(&**id), 2)).collect();
    hub.publisher.adjust_presence("room", 700, &members);
    let mut body = hub.events("/topics/room?members=true");
    let ack = subscribed(&mut body);
    let first = parse(&hub.ask("/topics/room/members", "Connection: close\r\n").rest());
    assert_eq!((&ack["more"], &first["more"], &first["topic"]), (&json!(true), &json!(true), &json!("room")));
    assert!(first["subscribers"].as_u64() >= Some(700) && first["at"].is_u64(), "{first}");
    let last = first["members"][255]["id"].as_str().unwrap();
    let page = |after: &str| {
        let path = format!("/topics/room/members?after={}", last.replace(' ', after));
        parse(&hub.ask(&path, "Connection: close\r\n").rest())
    };
    let second = page("%20");
    assert_eq!(page("+"), second, "forms encode a space as a plus");
    let listed = [&first, &second].into_iter().flat_map(|page| page["members"].as_array().unwrap());
    let listed: Vec<&str> = listed.map(|member| member["id"].as_str().unwrap()).collect();
    assert_eq!((listed, &second["more"]), (ids.iter().map(|id| &**id).collect(), &json!(false)));
    assert_eq!(second["members"][0]["connections"], 2);
}

#[test]
fn presence_without_websocket_needs_the_rights_of_a_subscription() {
    let options =
        AuthOptions::new().with_keys(TokenKeys::Secret(SECRET.to_owned())).with_leeway(Duration::ZERO);
    let policy = HubConfig::new(Auth::new(&options).unwrap(), HostRules::default());
    let policy = policy
        .with_namespaces(Namespaces::new([Namespace::new("kept.secret").with_presence(false)]).unwrap());
    let hub = TestHub::built(Hub::builder().config(policy));
    let valid = token("kept.>", Duration::from_secs(600));
    for (status, path) in [
        (401, "/topics/kept.a?members=true"),
        (401, "/topics/kept.a/members"),
        (403, "/topics/other?members=true&token="),
        (403, "/topics/other/members?token="),
        (422, "/topics/kept.secret?presence=true&token="),
        (422, "/topics/kept.secret/members?token="),
        (200, "/topics/kept.a?members=true&token="),
        (200, "/topics/kept.a/members?token="),
        (200, "/topics/kept.secret?token="),
    ] {
        let token = if path.ends_with('=') { &*valid } else { "" };
        assert_eq!(hub.events(&format!("{path}{token}")).status(), status, "{path}");
    }
}

/// A hub with a durable topic in this directory.
fn durable(directory: &Path) -> TestHub {
    let streams = StreamOptions::in_directory(directory).with_durable_topics(["orders".to_owned()]);
    TestHub::built(Hub::builder().streams(streams))
}

#[test]
fn durable_topic_resumes_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let hub = durable(directory.path());
    let mut body = hub.events("/topics/orders");
    subscribed(&mut body);
    for number in 1..=5 {
        hub.publish("orders", &number.to_string());
    }
    let second = [(); 2].map(|()| body.event().unwrap())[1].clone();
    assert_eq!(second.data, "2");
    drop((body, hub));
    let hub = durable(directory.path());
    let mut body = hub.ask("/topics/orders", &format!("Last-Event-ID: {}\r\n", second.id));
    assert_eq!(subscribed(&mut body)["complete"], json!(true));
    hub.publish("orders", "6");
    for number in 3..=6 {
        assert_eq!(body.event().unwrap().data, number.to_string());
    }
    let (answer, _) = polled(hub.ask(&format!("/topics/orders?after={}", second.id), JSON));
    let messages = answer["messages"].as_array().unwrap();
    assert_eq!((&messages[0]["op"], &messages[1]["data"]), (&json!("ack"), &json!("3")), "{answer}");
}

#[test]
fn stop_of_the_server_is_an_event() {
    let hub = TestHub::new();
    let mut lines = hub.ask("/topics/a", LINES);
    welcomed(&mut lines);
    lines.line().unwrap();
    let mut body = hub.events("/topics/a");
    subscribed(&mut body);
    hub.stop.stop();
    let close = body.event().unwrap();
    assert_eq!(
        (&*close.kind, parse(&close.data)),
        ("close", json!({ "code": 1001, "reason": "server stops" }))
    );
    assert_eq!(
        parse(&lines.line().unwrap()),
        json!({ "op": "close", "code": 1001, "reason": "server stops" })
    );
    assert_eq!((body.event(), lines.line()), (None, None));
}
