//! Hooks before and after answers: guards, headers, CORS, the log, compression.

use std::fmt::Write;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use sinews_server::{
    Answer, Compression, Cors, OriginPolicy, Refusal, Request, Response, Router, Server, ServerOptions,
    WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::support::{Answer as Got, Client, Echo, Running, echo, get, handshake, patient, post, routes};

fn with(request: &str, lines: &str) -> String {
    request.replacen("\r\n\r\n", &format!("\r\n{lines}\r\n"), 1)
}

/// Admits requests with the secret.
fn guard(request: &mut Request<'_>) -> Option<Response> {
    let word = request.head().header("authorization").next();
    (word != Some(b"word")).then(|| Response::text("who are you?").with_status(401))
}

#[test]
fn guard_runs_first_and_for_every_request() {
    let served = Arc::new(AtomicUsize::new(0));
    let counter = served.clone();
    let router = routes()
        .before("/inner", guard)
        .post("/inner/length", move |request| {
            counter.fetch_add(1, Ordering::Relaxed);
            Response::text(request.body().len().to_string())
        })
        .websocket("/inner/echo", echo());
    let (server, mut client) = Running::connected(router);
    for request in [
        post("/inner/length", "body"),
        get("/inner/nowhere"),
        get("/inner"),
        get("/inner/length").replace("GET", "OPTIONS"),
        post("/%69nner/length", "body"),
        chunked("/inner/length"),
    ] {
        assert_eq!(client.send(&request).answer().status, 401, "{request}");
    }
    assert_eq!(client.send(get("/innermost")).answer().status, 404, "another segment");
    assert_eq!(client.send(get("/")).answer().text(), "hello\n");
    assert_eq!(server.connect().send(handshake("/inner/echo", "")).last_status(), 401);
    assert_eq!(served.load(Ordering::Relaxed), 0);
    let right = "Authorization: word\r\n";
    assert_eq!(client.send(with(&post("/inner/length", "body"), right)).answer().text(), "4");
    let mut peer = server.connect().upgrade_with("/inner/echo", right);
    peer.send(&Frame::text("x")).expect(&Reply::text("x"));
}

#[test]
fn guard_runs_once_and_before_the_body() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let router = routes().before("/", move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        assert!(request.body().is_empty());
        guard(request)
    });
    let (server, mut client) = Running::connected(router);
    let wires = [
        with(&post("/body", "abc"), "Authorization: word\r\n"),
        with(&chunked("/body"), "Authorization: word\r\n"),
    ];
    let mut count = 0;
    for wire in &wires {
        for cut in 0..=wire.len() {
            client.send(&wire[..cut]).send(&wire[cut..]);
            assert_eq!(client.answer().text(), "abc", "cut at {cut}");
            count += 1;
            assert_eq!(asked.load(Ordering::Relaxed), count, "cut at {cut}");
        }
    }
    // No 100 (Continue) is sent, and no body needed.
    let expects = "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(server.connect().send(expects).last_status(), 401);
    let short = post("/body", "abc");
    let (head, body) = short.split_at(short.len() - 3);
    assert_eq!(client.send(head).answer().status, 401);
    assert_eq!(client.send(body).send(with(&get("/"), "Authorization: word\r\n")).answer().status, 200);
    let long = format!("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 1 << 19);
    assert_eq!(server.connect().send(long).last_status(), 401);
}

#[test]
fn first_answer_of_a_hook_counts() {
    let say = |text: &'static str| move |_: &mut Request<'_>| Some(Response::text(text));
    let router =
        routes().before("/name", |_| None).before("/name/a", say("first")).before("/", say("second"));
    let server = Running::router(router.after("/name", |_, response| response.set_header("X-After", "yes")));
    let mut client = server.connect();
    let answer = client.send(get("/name/a")).answer();
    assert_eq!(
        (answer.text(), answer.header("x-after")),
        ("first", Some("yes")),
        "answers of hooks pass after hooks, too"
    );
    let answer = client.send(get("/name/b")).answer();
    assert_eq!(answer.text(), "second");
    let answer = client.send(get("/")).answer();
    assert_eq!((answer.text(), answer.header("x-after")), ("second", None));
    let star = client.send(get("*").replace("GET", "OPTIONS")).answer();
    assert_eq!(star.text(), "second", "all is all");
}

/// Adds a header with the request and response that the hook got.
fn seen(request: &Request<'_>, response: &mut Response) {
    let known = response.header("content-type").next().unwrap_or("none").to_owned();
    let seen = format!("{} {} {known}", request.head().method(), response.status());
    response.set_header("X-Seen", seen);
    if let Some(name) = request.param("name") {
        response.add_header("X-Param", name.into_owned());
    }
}

#[test]
fn after_hooks_get_every_answer() {
    let text = "text/plain; charset=utf-8";
    let router = routes()
        .after("/", seen)
        .get("/later/{name}", |_| Answer::later(async { Response::text("later") }))
        .get("/work", |_| Answer::blocking(|| Response::text("work")));
    let http = patient().with_max_body(5);
    let server = Running::server(Server::new(router).threads(1).http(http));
    let mut client = server.connect();
    let seen_of = |answer: &Got| answer.header("x-seen").map(str::to_owned);
    for (request, expected) in [
        (get("/"), format!("GET 200 {text}")),
        (get("/nowhere"), format!("GET 404 {text}")),
        (post("/", ""), format!("POST 405 {text}")),
        (get("/").replace("GET", "OPTIONS"), "OPTIONS 204 none".to_owned()),
        (post("/length", "abc"), format!("POST 200 {text}")),
        (get("/later/x"), format!("GET 200 {text}")),
        (get("/work"), format!("GET 200 {text}")),
        (chunked("/length"), format!("POST 200 {text}")),
    ] {
        assert_eq!(seen_of(&client.send(&request).answer()), Some(expected), "{request}");
    }
    assert_eq!(client.send(get("/later/a%20b")).answer().header("x-param"), Some("a b"));
    let large = server.connect().send(post("/length", "abcdef")).answer();
    assert_eq!((large.status, seen_of(&large)), (413, Some(format!("POST 413 {text}"))));
    assert_eq!(
        seen_of(&server.connect().send("nonsense\r\n\r\n").answer()),
        None,
        "the request was unreadable"
    );
    let never = Router::new().after("/", seen).get("/", |_| Answer::later(std::future::pending()));
    let http = patient().with_response_timeout(Duration::from_millis(20));
    let server = Running::server(Server::new(never).threads(1).http(http));
    assert_eq!(seen_of(&server.connect().send(get("/")).answer()), Some(format!("GET 503 {text}")));
}

fn chunked(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
}

#[test]
fn after_hooks_get_handshakes_too() {
    let refusing = WebSocketRoute::new(|_| -> Result<Echo, _> { Err(Refusal::new(402).unwrap()) });
    let more = echo().with_headers(|_| vec![("X-Own".to_owned(), "yes".to_owned())]);
    let options = ServerOptions::new().with_subprotocol("v1").unwrap();
    let router = routes()
        .after("/", seen)
        .after("/", |request, response| {
            response.add_header("X-Chosen", request.subprotocol().unwrap_or("none").to_owned())
        })
        .websocket("/more", more.with_options(options))
        .websocket("/refusing", refusing);
    let server = Running::router(router);
    let mut peer = server.connect().upgrade_with("/more", "Sec-WebSocket-Protocol: v1\r\n");
    for line in ["X-Own: yes", "X-Seen: GET 101 none", "X-Chosen: v1", "Sec-WebSocket-Protocol: v1"] {
        assert!(peer.head.contains(&format!("\r\n{line}\r\n")), "{line} in {}", peer.head);
    }
    peer.sync();
    for (path, lines, status) in [
        ("/refusing", "", 402),
        ("/echo", "Origin: http://evil.example\r\n", 403),
        ("/echo", "Content-Length: 1\r\n", 400),
    ] {
        let answer = server.connect().send(handshake(path, lines)).answer();
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-seen"), Some(&*format!("GET {status} none")));
    }
    assert_eq!(server.connect().send(get("/echo")).answer().header("x-seen"), Some("GET 426 none"));
    let wrong = Running::router(routes().after("/", |_, response| response.set_header("Connection", "x")));
    assert_eq!(wrong.connect().send(handshake("/echo", "")).last_status(), 500, "our mistake");
    assert_eq!(wrong.connect().send(get("/")).answer().status, 200);
}

fn cors_of(client: &mut Client, request: &str, origin: &str) -> Got {
    client.send(with(request, &format!("Origin: {origin}\r\n"))).answer()
}

#[test]
fn pages_of_listed_origins_may_read_answers() {
    let origins = OriginPolicy::list(["https://a.example", "https://b.example"]).unwrap();
    let cors = Cors::new(origins).with_credentials(true).with_exposed_headers(["X-One", "X-Two"]);
    let (_server, mut client) = Running::connected(routes().cors("/name", cors));
    for origin in ["https://a.example", "https://b.example"] {
        let answer = cors_of(&mut client, &get("/name/x"), origin);
        assert_eq!((answer.text(), answer.header("access-control-allow-origin")), ("x", Some(origin)));
        assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
        assert_eq!(answer.header("access-control-expose-headers"), Some("X-One, X-Two"));
        assert_eq!(answer.header("vary"), Some("Origin"));
    }
    for (path, origin) in [("/name/x", "https://c.example"), ("/name/x", "null"), ("/", "https://a.example")]
    {
        let answer = cors_of(&mut client, &get(path), origin);
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (200, None),
            "{path} {origin}"
        );
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert_eq!(answer.header("vary"), (path != "/").then_some("Origin"), "or a cache would mix them up");
    }
    let none = client.send(get("/name/x")).answer();
    assert_eq!((none.header("access-control-allow-origin"), none.header("vary")), (None, Some("Origin")));
}

#[test]
fn preflights_are_answered_before_routes_and_guards() {
    let origins = OriginPolicy::list(["https://a.example"]).unwrap();
    let strict = Cors::new(origins).with_methods(["GET", "PUT"]).with_headers(["X-Token"]);
    let router =
        routes().cors("/name", Cors::new(OriginPolicy::any()).with_credentials(true)).cors("/body", strict);
    let (_server, mut client) = Running::connected(router.before("/", guard));
    let ask = "Access-Control-Request-Method: DELETE\r\nAccess-Control-Request-Headers: x-a, x-b\r\n";
    let preflight = |path: &str| with(&get(path).replace("GET", "OPTIONS"), ask);
    let any = cors_of(&mut client, &preflight("/name/x"), "https://z.example");
    assert_eq!((any.status, any.header("access-control-allow-origin")), (204, Some("*")));
    assert_eq!(any.header("access-control-allow-methods"), Some("DELETE"));
    assert_eq!(any.header("access-control-allow-headers"), Some("x-a, x-b"));
    assert_eq!(any.header("access-control-max-age"), Some("600"));
    assert_eq!(any.header("access-control-allow-credentials"), None, "never for any");
    let own = client.send(with(&get("/name/x"), "Authorization: word\r\n")).answer();
    assert_eq!(
        (own.header("access-control-allow-origin"), own.header("vary")),
        (Some("*"), None),
        "the answer may be cached"
    );
    let listed = cors_of(&mut client, &preflight("/body"), "https://a.example");
    assert_eq!((listed.status, listed.header("access-control-allow-methods")), (204, Some("GET, PUT")));
    assert_eq!(listed.header("access-control-allow-headers"), Some("X-Token"));
    assert!(listed.header("vary").unwrap().contains("Origin"));
    let other = cors_of(&mut client, &preflight("/body"), "https://z.example");
    assert_eq!((other.status, other.header("access-control-allow-origin")), (403, None));
    let plain = client.send(get("/name/x").replace("GET", "OPTIONS")).answer();
    assert_eq!(plain.status, 401, "no preflight");
    let answer = cors_of(&mut client, &get("/name/x"), "https://z.example");
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (401, Some("*")),
        "the page may read the error"
    );
}

#[test]
fn text_is_compressed_for_clients_that_accept_it() {
    let text = "the same again, ".repeat(1_000);
    let (of_text, of_later) = (text.clone(), text.clone());
    let router = Router::new()
        .compress("/", Compression::default())
        .get("/text", move |_| {
            Response::text(of_text.clone()).with_header("ETag", "\"x\"").with_header("Vary", "Cookie")
        })
        .get("/later", move |_| {
            let text = of_later.clone();
            Answer::later(async move { Response::html(text) })
        })
        .get("/short", |_| Response::text("short"))
        .get("/long", |_| Response::text(vec![b'x'; (1 << 20) + 1]))
        .get("/done", |_| Response::text(vec![b'x'; 5_000]).with_header("Content-Encoding", "br"))
        .get("/picture", |_| {
            Response::new(200).with_header("Content-Type", "image/png").with_body(vec![b'x'; 5_000])
        });
    let (_server, mut client) = Running::connected(router);
    let gzip = "Accept-Encoding: br, gzip\r\n";
    for path in ["/text", "/later"] {
        let answer = client.send(with(&get(path), gzip)).answer();
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
        let mut back = String::new();
        flate2::read::GzDecoder::new(&*answer.body).read_to_string(&mut back).unwrap();
        assert!(back == text && answer.body.len() < 1_000);
        assert!(answer.header("vary").unwrap().ends_with("Accept-Encoding"));
    }
    let answer = client.send(with(&get("/text"), gzip)).answer();
    assert_eq!(
        (answer.header("etag"), answer.header("vary")),
        (Some("W/\"x\""), Some("Cookie, Accept-Encoding"))
    );
    client.send(with(&get("/text").replace("GET", "HEAD"), gzip));
    let head = client.answer_to("HEAD").unwrap();
    assert_eq!(head.header("content-length"), Some(&*answer.body.len().to_string()));
    let plain = client.send(get("/text")).answer();
    assert_eq!((plain.text(), plain.header("content-encoding")), (&*text, None));
    assert_eq!(
        (plain.header("etag"), plain.header("vary")),
        (Some("\"x\""), Some("Cookie, Accept-Encoding"))
    );
    for (path, coding) in [("/short", None), ("/long", None), ("/done", Some("br")), ("/picture", None)] {
        let answer = client.send(with(&get(path), gzip)).answer();
        assert_eq!((answer.header("content-encoding"), answer.header("vary")), (coding, None), "{path}");
    }
}

/// Records the access log.
struct Log;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "sinews_server::access"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn accesses_are_logged() {
    static LOG: Once = Once::new();
    LOG.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    let (server, mut client) = Running::connected(routes().access_log("/name").access_log("/echo"));
    assert_eq!(client.send(get("/name/logged?q=1")).answer().status, 200);
    assert_eq!(client.send(post("/name/logged", "")).answer().status, 405);
    assert_eq!(client.send(get("/")).answer().status, 200);
    server.websocket("/echo?logged").sync();
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let peer = client.stream.local_addr().unwrap();
    let has = |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&[
        &format!("peer={peer} "),
        "method=\"GET\"",
        "target=\"/name/logged?q=1\"",
        "status=200",
        "bytes=6"
    ]));
    assert!(has(&["method=\"POST\"", "target=\"/name/logged\"", "status=405"]));
    assert!(has(&["target=\"/echo?logged\"", "status=101"]));
    assert_eq!(lines.len(), 3, "{lines:?}");
}
