//! What is rejected: different credentials in a request, expired claims, and JSON that is nested too deeply.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions, TokenKeys};
use sinews_hub::{BrowserRejection, HookOptions, HostRules, Hub, HubConfig};
use sinews_testkit::{BodyReader, HttpAnswer, serve_http};

use crate::support::{TestHub, parse};

const SECRET: &str = "a secret of at least thirty-two bytes for HS256";
const KEY: &str = "a-key-for-tests-of-at-least-32-bytes";
const OTHER_KEY: &str = "another-key-for-tests-of-32-bytes-";

fn seconds_from_now(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    i64::try_from(now).unwrap() + seconds
}

fn token(subject: &str) -> String {
    let claims = json!({ "exp": seconds_from_now(600), "sub": subject, "subscribe": ["a"] });
    jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
}

fn auth(options: AuthOptions) -> Auth {
    Auth::new(&options.with_keys(TokenKeys::Secret(SECRET.to_owned()))).unwrap()
}

#[test]
fn request_with_different_tokens_is_rejected() {
    let policy = HubConfig::new(auth(AuthOptions::new()), HostRules::default());
    // A page could not read a status.
    let policy = policy.with_browser_rejection(BrowserRejection::Status);
    let hub = TestHub::built(Hub::builder().config(policy));
    let (right, other) = (token("anna"), token("ben"));
    let wrong = format!("{right}x");
    let header = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let offer = |token: &str| format!("Sec-WebSocket-Protocol: sinews.bearer.{token}\r\n");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (path, success) in [("/topics/a", 200), ("/ws", 101)] {
        let upgrade = if path == "/ws" { upgrade } else { "Accept: text/event-stream\r\n" };
        let status = |query: &str, lines: &str| {
            let query = query.to_owned();
            hub.ask(&format!("{path}{query}"), &format!("{upgrade}{lines}")).status()
        };
        let query = |token: &str| format!("?token={token}");
        assert_eq!(status(&query(&right), ""), success);
        assert_eq!(status("", &header(&right)), success);
        // The same token in several places is no contradiction.
        assert_eq!(status(&query(&right), &header(&right)), success);
        for second in [&wrong, &other, &String::new()] {
            for (query, lines) in [
                (query(second), header(&right)),
                (query(&right), header(second)),
                (format!("?token={right}&token={second}"), String::new()),
                (format!("?token={second}&token={right}"), String::new()),
                // Names of parameters may have escapes.
                (format!("?token={right}&t%6Fken={second}"), String::new()),
                (String::new(), header(&right) + &header(second)),
                (String::new(), header(second) + &header(&right)),
            ] {
                assert_eq!(status(&query, &lines), 401, "{path}{query} {lines}");
            }
        }
        assert_eq!(status(&format!("?token={right}&token"), ""), 401);
        assert_eq!(status(&query(&right).replace("token", "%74oken"), ""), success);
        let basic = "Authorization: Basic YTpi\r\n";
        assert_eq!(status("", &(header(&right) + basic)), 401);
        assert_eq!(status(&query(&right), basic), 401);
        if path == "/ws" {
            for (query, lines) in [
                (query(&wrong), offer(&right)),
                (query(&right), offer(&wrong)),
                (String::new(), offer(&right) + &header(&wrong)),
                (String::new(), offer(&right) + &offer(&wrong)),
            ] {
                assert_eq!(status(&query, &lines), 401, "{query} {lines}");
            }
            assert_eq!(status(&query(&right), &(offer(&right) + &header(&right))), success);
        }
    }
    let mut rejected =
        hub.ask(&format!("/topics/a?token={wrong}"), &(header(&right) + "Connection: close\r\n"));
    assert!(rejected.rest().contains("different tokens"));
}

#[test]
fn request_with_different_keys_of_the_api_is_rejected() {
    let keys = ApiKeys::new().with_key(KEY).unwrap().with_key(OTHER_KEY).unwrap();
    let policy = HubConfig::new(auth(AuthOptions::new()), HostRules::default()).with_api_keys(keys);
    let hub = TestHub::built(Hub::builder().config(policy));
    let status = |lines: &[&str]| {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        hub.ask("/api/v1/topics", &lines).status()
    };
    let (bearer, header) = (format!("Authorization: Bearer {KEY}"), format!("X-API-Key: {KEY}"));
    let other = format!("X-API-Key: {OTHER_KEY}");
    for accepted in [&[&*bearer][..], &[&*header], &[&*bearer, &*header], &[&*header, &*header]] {
        assert_eq!(status(accepted), 200, "{accepted:?}");
    }
    for second in
        ["Authorization: Bearer wrong", "Authorization: Basic YTpi", "X-API-Key: wrong", "X-API-Key:", &other]
    {
        for first in [&bearer, &header] {
            assert_eq!(status(&[first, second]), 401, "{first} {second}");
            assert_eq!(status(&[second, first]), 401, "{second} {first}");
        }
    }
}

/// An application that answers each hook with this value; returns its URL.
fn application(answer: Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    serve_http(listener, move |_| HttpAnswer::Response("200 OK".to_owned(), answer.to_string()));
    url
}

fn closing_code(socket: &WebSocket<TcpStream>) -> Option<u16> {
    socket.closed()?.code().map(|code| code.as_u16())
}

fn hub_of_hook(answer: Value) -> TestHub {
    let auth = Auth::new(&AuthOptions::new().with_leeway(Duration::ZERO)).unwrap();
    let hooks = HookOptions::new().with_connect(application(answer));
    TestHub::built(Hub::builder().config(HubConfig::new(auth, HostRules::default()).with_hooks(hooks)))
}

#[test]
fn expired_claims_of_a_hook_get_no_welcome() {
    for exp in [json!(seconds_from_now(-60)), json!(0), json!(-1), json!(1.5)] {
        let hub = hub_of_hook(json!({ "claims": { "sub": "anna", "exp": exp, "subscribe": [">"] } }));
        for path in ["/ws", "/topics/a"] {
            let mut socket = hub.websocket(path);
            match socket.next() {
                Some(Ok(message)) => {
                    assert!(message.as_bytes().is_empty(), "{path}: a message before the Close")
                }
                end => drop(end),
            }
            while let Some(Ok(_)) = socket.next() {}
            assert_eq!(closing_code(&socket), Some(4401), "{path} {exp}");
        }
        assert_eq!(hub.events("/topics/a").status(), 401, "{exp}");
    }
    // Without an end, and with one in the future.
    for exp in [json!(null), json!(seconds_from_now(60))] {
        let hub =
            hub_of_hook(json!({ "claims": { "sub": "anna", "exp": exp, "subscribe": [">"], "keys": null } }));
        let mut socket = hub.websocket("/ws");
        let welcome = socket.next().expect("the connection is open").expect("a message");
        let welcome = parse(std::str::from_utf8(welcome.as_bytes()).unwrap());
        assert_eq!((&welcome["op"], welcome["expires_in"].is_number()), (&json!("welcome"), !exp.is_null()));
        let mut body: BodyReader<_> = hub.events("/topics/a");
        assert_eq!(body.status(), 200);
        assert!(body.event().is_some());
    }
}

fn nested(depth: usize) -> String {
    format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
}

/// The answer to a request at `/ws`.
fn answer(socket: &mut WebSocket<TcpStream>, message: &str) -> Value {
    socket.send_text(message).unwrap();
    socket.flush().unwrap();
    loop {
        let message = socket.next().expect("the connection is open").expect("a message");
        let message = parse(std::str::from_utf8(message.as_bytes()).unwrap());
        if message["id"] == 1 {
            return message;
        }
    }
}

#[test]
fn json_that_is_nested_too_deeply_is_rejected() {
    let auth = Auth::new(&AuthOptions::new()).unwrap();
    let keys = ApiKeys::new().with_key(KEY).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let builder = Hub::builder()
        .config(HubConfig::new(auth, HostRules::default()).with_api_keys(keys))
        .streams(sinews_hub::StreamOptions::in_directory(directory.path()));
    let hub = TestHub::built(builder);
    let limit = "max_json_depth (128)";
    let mut socket = hub.websocket("/ws");
    let post = |target: &str, kind: &str, body: &str| {
        let lines = format!("Authorization: Bearer {KEY}\r\nContent-Type: {kind}\r\n");
        let mut answer = hub.request(target, &lines, body);
        (answer.status(), answer.rest())
    };
    for (depth, accepts) in [(128, true), (129, false), (10_000, false)] {
        let data = nested(depth);
        for message in [
            format!("{{\"op\":\"publish\",\"id\":1,\"topic\":\"a\",\"data\":{data}}}"),
            format!("{{\"op\":\"set\",\"id\":1,\"topic\":\"a\",\"key\":\"k\",\"data\":{data}}}"),
            format!("{{\"op\":\"append\",\"id\":1,\"stream\":\"s\",\"records\":[{{\"data\":{data}}}]}}"),
        ] {
            let answer = answer(&mut socket, &message);
            assert_eq!(answer["op"] != "error", accepts, "{depth}: {answer}");
            assert!(accepts || answer["error"].as_str().is_some_and(|text| text.contains(limit)), "{answer}");
        }
        let message = format!("{{\"op\":\"rpc\",\"id\":1,\"method\":\"m\",\"data\":{data}}}");
        let text = answer(&mut socket, &message)["error"].to_string();
        assert_eq!(text.contains(limit), !accepts, "{text}");
        let wrapped = format!("{{\"topic\":\"a\",\"data\":{data}}}");
        for (target, kind, body) in [
            ("POST /topics/a", "application/json", data.clone()),
            ("PUT /topics/a/keys/k", "application/json", data.clone()),
            ("POST /streams/s", "application/json", data.clone()),
            ("POST /streams/s", "application/x-ndjson", format!("1\n{data}\n")),
            ("POST /api/v1/publish", "application/json", wrapped.clone()),
            ("POST /api/v1/broadcast", "application/json", format!("{{\"topics\":[\"a\"],\"data\":{data}}}")),
            ("PUT /api/v1/topics/a/keys/k", "application/json", format!("{{\"data\":{data}}}")),
        ] {
            let (status, text) = post(target, kind, &body);
            assert_eq!(status < 300, accepts, "{target} {depth}: {status} {text}");
            assert!(accepts || status == 400 && text.contains(limit), "{target}: {status} {text}");
        }
        // Each message and each write has its own result.
        let batch = format!("{{\"messages\":[{wrapped},{{\"topic\":\"a\",\"data\":1}}]}}");
        let writes =
            format!("{{\"writes\":[{{\"key\":\"k\",\"data\":{data}}},{{\"key\":\"l\",\"data\":1}}]}}");
        for (target, body) in [("POST /api/v1/batch", batch), ("POST /api/v1/topics/a/keys", writes)] {
            let (status, text) = post(target, "application/json", &body);
            let results = parse(&text)["results"].clone();
            assert_eq!((status, results[0]["error"].is_null()), (200, accepts), "{target}: {text}");
            assert!(results[1]["error"].is_null() && (accepts || text.contains(limit)), "{text}");
        }
        let (status, text) = post("POST /rpc/m", "application/json", &data);
        assert_eq!((status == 400, text.contains(limit)), (!accepts, !accepts), "{status} {text}");
        // Values that are built, with the same error.
        let member = format!(
            "{{\"op\":\"join\",\"id\":1,\"topic\":\"a\",\"member\":{{\"id\":\"m\",\"info\":{data}}}}}"
        );
        let joined = answer(&mut socket, &member);
        let text = joined["error"].as_str().unwrap_or_default();
        assert!(depth == 128 || text.contains(limit), "{joined}");
    }
}
