//! Hooks: an application that accepts, rejects, is slow, fails, or is not there.

mod limits;
mod requests;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ring::hmac;
use serde_json::{Value, json};
use sinews_proto::Role;
pub(crate) use sinews_testkit::HttpRequest as AppRequest;
use sinews_testkit::{Frame, HttpAnswer, Reply, TestCertificate, assert_fields, serve_http, serve_https};

use crate::auth::token;
use crate::config::Directory;
use crate::protocol::{Client, connected};
use crate::support::{Running, TIMEOUT, program, until, unused_address};

/// Permits for answers that wait.
pub(crate) fn permits() -> (Sender<()>, Arc<Mutex<Receiver<()>>>) {
    let (permit, permits) = channel();
    (permit, Arc::new(Mutex::new(permits)))
}

/// What the application does with a request.
pub(crate) enum AppAnswer {
    Json(Value),
    Status(u16),
    /// The begin of an answer, then the end of the connection.
    Half,
    /// The end of the connection without an answer.
    Hangup,
    /// An answer when the test permits it.
    Wait(Arc<Mutex<Receiver<()>>>, Value),
}

/// An application with an HTTP server.
pub(crate) struct Application {
    address: SocketAddr,
    pub(crate) requests: Receiver<AppRequest>,
}

impl Application {
    pub(crate) fn start(decide: impl Fn(&AppRequest) -> AppAnswer + Send + Sync + 'static) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), None, decide)
    }

    /// Serves at an address.
    pub(crate) fn at(
        address: SocketAddr,
        decide: impl Fn(&AppRequest) -> AppAnswer + Send + Sync + 'static,
    ) -> Self {
        Self::listen(TcpListener::bind(address).unwrap(), None, decide)
    }

    fn listen(
        listener: TcpListener,
        tls: Option<rustls::ServerConfig>,
        decide: impl Fn(&AppRequest) -> AppAnswer + Send + Sync + 'static,
    ) -> Self {
        let (sender, requests) = channel();
        let address = listener.local_addr().unwrap();
        let answer = move |request: AppRequest| {
            let answer = decide(&request);
            // The test may have ended.
            let _ = sender.send(request);
            answer.into_http()
        };
        match tls {
            None => serve_http(listener, answer),
            Some(tls) => serve_https(listener, tls, answer),
        }
        Self { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn request(&self) -> AppRequest {
        self.requests.recv_timeout(TIMEOUT).unwrap()
    }
}

impl AppAnswer {
    fn into_http(self) -> HttpAnswer {
        let (status, body) = match self {
            Self::Json(body) => (200, body.to_string()),
            Self::Wait(permit, body) => {
                let _ = permit.lock().unwrap().recv();
                (200, body.to_string())
            }
            Self::Status(status) => (status, "{}".to_owned()),
            Self::Half => return HttpAnswer::End("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"data\""),
            Self::Hangup => return HttpAnswer::End(""),
        };
        HttpAnswer::Response(format!("{status} X"), body)
    }
}

pub(crate) fn serve(file: &str) -> Running {
    Running::configured(file)
}

/// Starts a server whose configuration file is in a directory that other servers share.
pub(crate) fn serve_in(directory: &Directory, file: &str) -> Running {
    let file = directory.write("sinews.toml", file);
    Running::start(program().args(["serve", "--listen", "127.0.0.1:0", "--config", &file]))
}

/// Whether the signature of a request is valid.
pub(crate) fn is_signed(request: &AppRequest, secret: &str) -> bool {
    let signature = request.header("sinews-signature").unwrap();
    let (time, hash) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let hash: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&hash[2 * at..][..2], 16).unwrap()).collect();
    hmac::verify(&key, format!("{time}.{}", request.body).as_bytes(), &hash).is_ok()
}

/// Opens a connection that is not accepted yet.
fn open(server: &Running, lines: &str) -> Client {
    Client(server.try_websocket("/ws", lines).expect("an upgrade"))
}

fn close_code(client: &mut Client) -> Option<u16> {
    client.0.next().and_then(|reply| reply.close_code())
}

fn publish(client: &mut Client, topic: &str, data: &Value) -> Value {
    client.request(json!({"op": "publish", "id": 1, "topic": topic, "data": data}))
}

#[test]
fn application_accepts_connections_and_grants_rights() {
    let app = Application::start(|request| {
        AppAnswer::Json(match request.header("cookie") {
            Some("session=anna") => json!({
                "claims": {"sub": "anna", "publish": "chat.>", "subscribe": ["chat.>"]},
                "topics": ["personal.anna", "news.*"],
                "info": {"name": "Anna"},
                "data": {"greeting": "hello"},
            }),
            Some("session=ben") => json!({"reject": {"code": 4123, "reason": "Ben is banned"}}),
            Some("session=guest") => json!({}),
            _ => json!({"reject": {}}),
        })
    });
    let (url, secret) = (app.url("/hooks?a=1"), "0123456789abcdef0123456789abcdef");
    let server = serve(&format!(
        "[hooks]\nconnect = {url:?}\nheaders = [\"Cookie\"]\nsigning_key = {secret:?}\n[namespace.\"chat.>\"]\n"
    ));

    let mut anna = open(&server, "Cookie: session=anna\r\nX-Other: a\r\n");
    let welcome = anna.receive_message();
    assert_fields(&welcome, json!({"op": "welcome", "data": {"greeting": "hello"}}));
    let request = app.request();
    assert_eq!((&*request.path, request.header("x-other")), ("/hooks?a=1", None));
    assert_eq!(
        (request.header("sinews-hook"), request.header("content-type")),
        (Some("connect"), Some("application/json"))
    );
    assert_eq!(request.header("sinews-request-id").map(str::len), Some(32));
    let expected = json!({"hook": "connect", "connection": welcome["connection"], "address": "127.0.0.1", "path": "/ws"});
    assert_eq!(request.json(), expected);
    assert!(is_signed(&request, secret));

    let subscribed = json!({"op": "subscribed", "topic": "personal.anna", "publish": false});
    assert_eq!(anna.receive_message(), subscribed);
    assert_eq!(anna.receive_message(), json!({"op": "subscribed", "topic": "news.*"}));
    assert_eq!(
        anna.request(
            json!({"op": "join", "id": 2, "topic": "chat.a", "member": {"id": "anna", "info": "forged"}})
        )["op"],
        "ack"
    );
    let members = anna.request(json!({"op": "members", "topic": "chat.a"}));
    assert_eq!(members["members"], json!([{"id": "anna", "connections": 1, "info": {"name": "Anna"}}]));
    assert_eq!(publish(&mut anna, "chat.a", &json!(1))["op"], "ack");
    assert_eq!(publish(&mut anna, "other", &json!(1))["code"], 403);
    let renewed = anna.request(json!({"op": "token", "id": 3, "token": "any"}));
    assert_eq!(renewed["code"], 403, "a token does not replace the claims: {renewed}");
    assert_eq!(publish(&mut anna, "other", &json!(1))["code"], 403);

    let mut ben = open(&server, "Cookie: session=ben\r\n");
    assert_eq!(ben.0.next(), Some(Reply::Close(Some(4123), "Ben is banned".into())));
    assert_eq!(close_code(&mut open(&server, "")), Some(4403));
    let mut guest = open(&server, "Cookie: session=guest\r\n");
    assert_eq!(guest.receive_message()["op"], "welcome");
    assert_eq!(publish(&mut guest, "chat.a", &json!(1))["code"], 401, "no claims, no rights");
    for (cookie, topic, status) in
        [("anna", "chat.a", 200), ("anna", "other", 403), ("ben", "chat.a", 403), ("guest", "chat.a", 401)]
    {
        let post = format!("POST /topics/{topic} HTTP/1.1\r\nCookie: session={cookie}");
        let answer = server.request(&post, "a");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{cookie}: {answer}");
    }
}

/// A server whose hooks of `a.>` decide by the topic.
fn deciding() -> (Application, Running) {
    let app = Application::start(|request| {
        let body = request.json();
        AppAnswer::Json(match (body["hook"].as_str().unwrap(), body["topic"].as_str().unwrap()) {
            ("subscribe", "a.no") => json!({"reject": {"code": 409, "reason": "full"}}),
            ("subscribe", _) => json!({"info": "of the topic", "topics": ["extra"]}),
            (_, "a.no") => json!({"reject": {"reason": "no"}}),
            (_, "a.changed") => json!({"data": {"was": body["data"]}}),
            (_, "a.bytes") => json!({"b64": "AP8="}),
            _ => json!({}),
        })
    });
    let url = app.url("/");
    let server = serve(&format!(
        "[namespace.\"a.>\"]\nsubscribe_hook = {url:?}\npublish_hook = {url:?}\n\
         [namespace.\"a.free\"]\nsubscribe_hook = \"off\"\npublish_hook = \"off\"\n"
    ));
    (app, server)
}

#[test]
fn application_decides_about_subscriptions() {
    let (_app, server) = deciding();
    let mut client = Client::connect(&server);
    let read = client.request(json!({"op": "presence", "id": 1, "topic": "a.x"}));
    assert_eq!(read["error"], "a hook decides about subscriptions to a.x: subscribe first");
    for (topic, code) in [("a.no", 409), (">", 403)] {
        let rejected = client.request(json!({"op": "subscribe", "id": 1, "topic": topic}));
        assert_eq!(rejected["code"], code, "{topic}");
    }
    for topic in ["a.changed", "a.x"] {
        let ack = client.request(json!({"op": "subscribe", "id": topic, "topic": topic}));
        assert_eq!(ack, json!({"op": "ack", "id": topic, "topic": topic}));
        if topic == "a.changed" {
            assert_eq!(client.receive_message(), json!({"op": "subscribed", "topic": "extra"}));
        }
    }
    let join = json!({"op": "join", "id": 1, "topic": "a.x", "member": {"id": "me"}});
    assert_eq!(client.request(join)["op"], "ack");
    let members = client.request(json!({"op": "members", "topic": "a.x"}));
    assert_eq!(members["members"], json!([{"id": "me", "connections": 1, "info": "of the topic"}]));

    // Subscriptions to keys alone are decided about, too.
    let keys = |topic: &str| json!({"op": "subscribe", "id": 2, "topic": topic, "keys": true});
    assert_eq!(client.request(keys("a.no"))["code"], 409);
    let ack = client.request(keys("a.keys"));
    assert_fields(&ack, json!({"op": "ack", "topic": "a.keys"}));
}

#[test]
fn application_decides_about_publications() {
    let (_app, server) = deciding();
    let mut client = Client::connect(&server);
    for topic in ["a.changed", "a.bytes", "a.x"] {
        client.send_message(&json!({"op": "subscribe", "topic": topic}));
    }
    assert_eq!(client.receive_message(), json!({"op": "subscribed", "topic": "extra"}));

    // The messages of the client keep their order.
    for (topic, data) in [("a.changed", 1), ("a.bytes", 2), ("a.x", 3), ("a.no", 4), ("a.free", 5)] {
        client.send_message(&json!({"op": "publish", "id": data, "topic": topic, "data": data}));
    }
    client.send_message(&json!({"op": "ping", "id": 6}));
    let received: Vec<Value> = (0..9).map(|_| client.receive_message()).collect();
    let ids: Vec<&Value> = received.iter().map(|message| &message["id"]).filter(|id| !id.is_null()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6], "{received:?}");
    let of = |topic: &str| received.iter().find(|it| it["op"] == "message" && it["topic"] == topic).unwrap();
    assert_eq!(of("a.changed")["data"], json!({"was": 1}));
    assert_eq!((&of("a.bytes")["b64"], &of("a.x")["data"]), (&json!("AP8="), &json!(3)));
    let rejected = received.iter().find(|message| message["id"] == 4).unwrap();
    assert_fields(rejected, json!({"code": 403, "error": "no"}));

    let metrics = server.get("/metrics");
    for line in [
        "sinews_hook_requests_total{hook=\"publish\",result=\"accepted\"} 3\n",
        "sinews_hook_requests_total{hook=\"publish\",result=\"rejected\"} 1\n",
        "sinews_hook_requests_total{hook=\"subscribe\",result=\"accepted\"} 3\n",
        "sinews_hook_seconds_count{hook=\"publish\"} 4\n",
        "sinews_hook_open_circuits 0\n",
        "sinews_hook_pending 0\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[test]
fn application_decides_about_writes_of_keys() {
    let (app, server) = deciding();
    let mut client = Client::connect(&server);
    let set = json!({
        "op": "set", "id": 1, "topic": "a.x", "key": "k", "data": {"n": 1}, "ttl": 60_000, "if_new": true,
        "idempotency_key": "once",
    });
    let ack = client.request(set.clone());
    assert_fields(&ack, json!({"op": "ack", "seq": 1}));
    let asked = app.request().json();
    let expected = json!({
        "hook": "publish", "topic": "a.x", "key": "k", "data": {"n": 1}, "ttl": 60_000, "if_new": true,
        "idempotency_key": "once", "address": "127.0.0.1", "connection": asked["connection"],
    });
    assert_eq!(asked, expected);
    let delete =
        json!({"op": "delete", "id": 2, "topic": "a.x", "key": "k", "version": 1, "epoch": ack["epoch"]});
    assert_eq!(client.request(delete)["seq"], 2);
    let asked = app.request().json();
    assert_fields(&asked, json!({"delete": true, "version": 1, "epoch": ack["epoch"]}));
    assert_eq!(asked.get("data"), None);

    // A rejection, another value, and a value for a deletion.
    let with = |op: &str, topic: &str| {
        let mut request = json!({"op": op, "id": 3, "topic": topic, "key": "k"});
        if op == "set" {
            request["data"] = json!(7);
        }
        request
    };
    let rejected = client.request(with("set", "a.no"));
    assert_fields(&rejected, json!({"code": 403, "error": "no"}));
    assert_eq!(client.request(with("set", "a.changed"))["op"], "ack");
    assert_eq!(client.request(with("set", "a.bytes"))["op"], "ack");
    assert_eq!(client.request(with("delete", "a.changed"))["code"], 503);
    for (topic, value) in [("a.changed", json!({"was": 7})), ("a.bytes", json!(null))] {
        let answer = server.get(&format!("/topics/{topic}/keys/k"));
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body.get("data").unwrap_or(&Value::Null), &value, "{body}");
    }
    // What the client may not write is not asked about.
    app.requests.try_iter().for_each(drop);
    assert_eq!(client.request(with("set", "a..b"))["code"], 422);
    assert!(app.requests.try_recv().is_err());
}

#[test]
fn calls_are_answered_by_the_application() {
    let app = Application::start(|request| match request.json()["method"].as_str() {
        Some("add") => AppAnswer::Json(json!({"data": 3})),
        Some("nothing") => AppAnswer::Json(json!({})),
        Some("fail") => AppAnswer::Status(500),
        _ => AppAnswer::Json(json!({"reject": {"code": 404, "reason": "no such method"}})),
    });
    let (all, own) = (app.url("/all"), app.url("/own"));
    let file = format!("[hooks]\nrpc = {all:?}\n[namespace.\"own.>\"]\nrpc_hook = {own:?}\n");
    let (_server, mut client) = connected(serve(&file));
    let mut call = |fields: Value| {
        let mut message = json!({"op": "rpc", "id": "c"});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        client.request(message)
    };
    let answer = |data: Value| json!({"op": "rpc", "id": "c", "data": data});
    assert_eq!(call(json!({"method": "add", "data": [1, 2]})), answer(json!(3)));
    let request = app.request();
    assert_eq!((&*request.path, &request.json()["data"]), ("/all", &json!([1, 2])));
    assert_eq!(call(json!({"method": "nothing", "topic": "own.a"})), answer(Value::Null));
    let request = app.request();
    assert_eq!((&*request.path, &request.json()["topic"]), ("/own", &json!("own.a")));
    assert_eq!(call(json!({"method": "other"}))["error"], "no such method");
    app.request();
    let failed = call(json!({"method": "fail"}));
    assert_fields(&failed, json!({"code": 503, "error": "the application did not answer; retry later"}));
    app.request();
    assert!(app.requests.try_recv().is_err(), "a call is not repeated");
    for (fields, code) in
        [(json!({}), 400), (json!({"method": ""}), 400), (json!({"method": "a", "b64": ""}), 400)]
    {
        assert_eq!(call(fields)["code"], code);
    }
}

#[test]
fn expired_connections_are_refreshed() {
    let secret = crate::auth::keys("secret");
    let app = Application::start(|request| {
        let body = request.json();
        AppAnswer::Json(match body["user"].as_str() {
            Some("anna") => json!({"claims": {"sub": "anna", "subscribe": ["a"]}}),
            Some("ben") => json!({"reject": {"reason": "logged out"}}),
            _ => json!({}),
        })
    });
    let url = app.url("/");
    let file = format!("[auth]\nsecret_file = {secret:?}\nleeway = \"0s\"\n[hooks]\nrefresh = {url:?}\n");
    let server = serve(&file);
    // On a busy machine, a token may expire before it is used.
    let connect = |user: &str| loop {
        let token =
            token(&secret, &["--subject", user, "--subscribe", "a", "--subscribe", "b", "--expires", "4s"]);
        if let Ok(socket) = server.try_websocket("/ws", &format!("Authorization: Bearer {token}\r\n")) {
            let mut client = Client(socket);
            assert_eq!(client.receive_message()["op"], "welcome");
            break client;
        }
    };
    let mut anna = loop {
        let mut anna = connect("anna");
        let mut subscribe =
            |topic| anna.request(json!({"op": "subscribe", "id": 1, "topic": topic}))["op"].clone();
        if subscribe("a") == "ack" && subscribe("b") == "ack" {
            break anna;
        }
    };
    let [mut ben, mut carl] = ["ben", "carl"].map(connect);
    let ended = anna.receive_message();
    assert_eq!(
        (&ended["code"], &ended["topic"]),
        (&json!(403), &json!("b")),
        "the new claims do not grant it"
    );
    assert_eq!(anna.request(json!({"op": "ping"}))["op"], "pong");
    assert_eq!(ben.0.next(), Some(Reply::Close(Some(4401), "logged out".into())));
    assert_eq!(close_code(&mut carl), Some(4401), "an answer without claims extends nothing");
    assert_eq!(anna.request(json!({"op": "ping"}))["op"], "pong");
    let asked: Vec<Value> = app.requests.try_iter().map(|request| request.json()).collect();
    let connections: BTreeSet<String> =
        asked.iter().map(|request| request["connection"].to_string()).collect();
    assert!(asked.len() >= 3 && asked.len() == connections.len(), "each expiry is one request: {asked:?}");
}

#[test]
fn slow_application_blocks_only_its_client() {
    let (permit, permits) = permits();
    let app = Application::start(move |_| AppAnswer::Wait(Arc::clone(&permits), json!({})));
    let url = app.url("/");
    let file = format!("threads = 1\n[hooks]\ntimeout = \"30s\"\n[namespace.slow]\npublish_hook = {url:?}\n");
    let server = serve(&file);
    let (mut slow, mut other) = (Client::connect(&server), Client::connect(&server));
    for client in [&mut slow, &mut other] {
        assert_eq!(client.request(json!({"op": "subscribe", "id": 1, "topic": "all"}))["op"], "ack");
    }
    slow.send_message(&json!({"op": "publish", "id": 2, "topic": "slow", "data": 1}));
    // More messages than one chunk has: the rest waits in the network.
    for number in 0..2_000 {
        slow.send_message(&json!({"op": "publish", "topic": "own", "data": number}));
    }
    slow.send_message(&json!({"op": "ping", "id": 3}));
    app.request();
    assert_eq!(publish(&mut other, "other", &json!(1))["op"], "ack");
    other.send_message(&json!({"op": "publish", "topic": "all", "data": "x"}));
    for client in [&mut slow, &mut other] {
        assert_eq!(client.receive_message()["data"], "x", "deliveries go on");
    }
    permit.send(()).unwrap();
    assert_eq!(slow.receive_message()["id"], 2);
    assert_eq!(slow.receive_message()["id"], 3, "the messages behind it follow in order");
}

#[test]
fn late_answer_is_a_failure_and_the_queue_is_bounded() {
    let directory = Directory::new();
    let (_permit, permits) = permits();
    let app = Application::start(move |_| AppAnswer::Wait(Arc::clone(&permits), json!({})));
    let url = app.url("/");
    let start = |timeout: &str| {
        serve_in(
            &directory,
            &format!(
                "[hooks]\ntimeout = {timeout:?}\nconcurrency = 1\nqueue = 1\nretries = 0\n\
                 [namespace.a]\npublish_hook = {url:?}\n[namespace.b]\npublish_hook = {url:?}\nhook_failure = \"open\"\n"
            ),
        )
    };
    let message = json!({"op": "publish", "id": 1, "topic": "a", "data": 1});
    let mut server = start("300ms");
    let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(&server)).collect();
    for client in &mut clients {
        client.send_message(&message);
    }
    for client in &mut clients {
        assert_eq!(client.receive_message()["code"], 503);
    }
    let open = publish(&mut clients[0], "b", &json!(1));
    assert_eq!(open["op"], "ack", "it fails open: {open}");
    let count = |server: &Running, result| limits::requests(server, "publish", result);
    assert_eq!((count(&server, "timed_out"), count(&server, "queue_full")), (3, 0));

    // The first request is with the application, and the second one in the queue.
    server = start("30s");
    clients = (0..6).map(|_| Client::connect(&server)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send_message(&message);
        if at < 2 {
            until("the request waits", || limits::metric(&server, "sinews_hook_pending") == at as u64 + 1);
        } else {
            assert_eq!(client.receive_message()["code"], 503);
        }
    }
    assert_eq!((count(&server, "timed_out"), count(&server, "queue_full")), (0, 4));
}

#[test]
fn failures_reject_or_accept_by_policy_and_only_safe_requests_are_repeated() {
    let app = Application::start(|request| match &*request.path {
        "/error" => AppAnswer::Status(500),
        "/missing" => AppAnswer::Status(404),
        "/half" => AppAnswer::Half,
        "/hangup" => AppAnswer::Hangup,
        _ => AppAnswer::Json(json!([])),
    });
    let dead = unused_address();
    let mut file = "[hooks]\nretries = 2\n".to_owned();
    let mut add = |name: &str, url: &str, more: &str| {
        file.push_str(&format!(
            "[namespace.{name}]\nsubscribe_hook = {url:?}\npublish_hook = {url:?}\n{more}"
        ));
    };
    let failing = ["error", "missing", "half", "hangup", "list"];
    for name in failing {
        add(name, &app.url(&format!("/{name}")), "");
    }
    add("dead", &format!("http://{dead}/"), "");
    add("open", &app.url("/error"), "hook_failure = \"open\"\n");
    let (_server, mut client) = connected(serve(&file));
    for name in failing.into_iter().chain(["dead"]) {
        assert_eq!(publish(&mut client, name, &json!(1))["code"], 503, "{name}");
        let requests = app.requests.try_iter().count();
        assert_eq!(requests, usize::from(name != "dead"), "{name}: a publication is not repeated");
        assert_eq!(client.request(json!({"op": "subscribe", "id": 1, "topic": name}))["code"], 503, "{name}");
        let expected = match name {
            "dead" => 0,
            "missing" | "list" => 1,
            _ => 3,
        };
        assert_eq!(app.requests.try_iter().count(), expected, "{name}: a subscription is repeated");
    }
    assert_eq!(publish(&mut client, "open", &json!(1))["op"], "ack");
    assert_eq!(client.request(json!({"op": "subscribe", "id": 1, "topic": "open"}))["op"], "ack");
}

#[test]
fn circuit_opens_after_failures_and_closes_after_a_success() {
    let works = Arc::new(Mutex::new(false));
    let answer = Arc::clone(&works);
    let app = Application::start(move |_| {
        if *answer.lock().unwrap() { AppAnswer::Json(json!({})) } else { AppAnswer::Status(500) }
    });
    let url = app.url("/");
    let server = serve(&format!(
        "[hooks]\npublish = {url:?}\ncircuit_failures = 3\ncircuit_open_time = \"2s\"\nretries = 0\n"
    ));
    let mut client = Client::connect(&server);
    for _ in 0..3 {
        assert_eq!(publish(&mut client, "a", &json!(1))["code"], 503);
    }
    assert!(server.get("/metrics").contains("sinews_hook_open_circuits 1\n"));
    let (opened, rejections) = (Instant::now(), || limits::requests(&server, "publish", "circuit_open"));
    // One request is tried in each interval, also before the first rejection on a busy machine.
    let mut rejected = 0;
    while rejections() == 0 {
        assert_eq!(publish(&mut client, "a", &json!(1))["code"], 503);
        rejected += 1;
    }
    *works.lock().unwrap() = true;
    while publish(&mut client, "a", &json!(1))["op"] != "ack" {
        rejected += 1;
    }
    let tried = app.requests.try_iter().count() as u64;
    assert!((4..=4 + opened.elapsed().as_secs() / 2).contains(&tried), "{tried} requests");
    assert_eq!(3 + rejected + 1, tried + rejections(), "no request while the circuit is open");
    assert_eq!(limits::metric(&server, "sinews_hook_open_circuits"), 0);
}

#[test]
fn hooks_are_requested_over_tls() {
    let directory = Directory::new();
    let made = TestCertificate::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let app = Application::listen(listener, Some(made.server_config()), |_| AppAnswer::Json(json!({})));
    let url = format!("https://localhost:{}/", app.address.port());
    let trusted = directory.write("ca.pem", &made.pem());
    let server = serve_in(&directory, &format!("[hooks]\npublish = {url:?}\nca_file = {trusted:?}\n"));
    let mut client = Client::connect(&server);
    for _ in 0..3 {
        assert_eq!(publish(&mut client, "a", &json!(1))["op"], "ack");
    }
    let untrusted = directory.write("other.pem", &TestCertificate::new().pem());
    let server = serve_in(&directory, &format!("[hooks]\npublish = {url:?}\nca_file = {untrusted:?}\n"));
    assert_eq!(
        publish(&mut Client::connect(&server), "a", &json!(1))["code"],
        503,
        "the certificate is not trusted"
    );
}

#[test]
fn reload_replaces_hooks_of_open_connections() {
    let [first, second] = [(); 2].map(|()| Application::start(|_| AppAnswer::Json(json!({}))));
    let file = |app: &Application| format!("[hooks]\npublish = {:?}\n", app.url("/"));
    let (server, mut client) = connected(serve(&file(&first)));
    assert_eq!(publish(&mut client, "a", &json!(1))["op"], "ack");
    first.request();
    server.directory.write("sinews.toml", &file(&second));
    server.signal("HUP");
    while second.requests.try_recv().is_err() {
        assert_eq!(publish(&mut client, "a", &json!(1))["op"], "ack");
    }
    first.requests.try_iter().for_each(drop);
    server.directory.write("sinews.toml", "");
    server.signal("HUP");
    second.requests.try_iter().for_each(drop);
    // Without hooks, the metrics have none.
    until("the hooks are removed", || !server.get("/metrics").contains("sinews_hook"));
    second.requests.try_iter().for_each(drop);
    assert_eq!(publish(&mut client, "a", &json!(1))["op"], "ack");
    assert!(first.requests.try_recv().is_err() && second.requests.try_recv().is_err());
}

#[test]
fn messages_before_the_decision_wait_and_those_of_a_rejected_client_are_discarded() {
    let (permit, permits) = permits();
    let app = Application::start(move |request| {
        let answer = match request.header("cookie") {
            Some("bad") => json!({"reject": {}}),
            _ => json!({}),
        };
        AppAnswer::Wait(Arc::clone(&permits), answer)
    });
    let url = app.url("/");
    let server = serve(&format!(
        "[hooks]\nconnect = {url:?}\nheaders = \"cookie\"\ntimeout = \"30s\"\n\
         [namespace.open]\npublish = \"anonymous\"\nsubscribe = \"anonymous\"\n"
    ));
    let mut good = open(&server, "Cookie: good\r\n");
    app.request();
    for message in [json!({"op": "subscribe", "id": 1, "topic": "open"}), json!({"op": "ping", "id": 2})] {
        good.send_message(&message);
    }
    permit.send(()).unwrap();
    let received: Vec<Value> = (0..3).map(|_| good.receive_message()).collect();
    let ops: Vec<&Value> = received.iter().map(|message| &message["op"]).collect();
    assert_eq!(ops, ["welcome", "ack", "pong"]);

    let mut bad = open(&server, "Cookie: bad\r\n");
    app.request();
    for data in 0..3 {
        bad.send_message(&json!({"op": "publish", "topic": "open", "data": data}));
    }
    permit.send(()).unwrap();
    assert_eq!(close_code(&mut bad), Some(4403));
    // The server may have closed the connection already.
    let late = Frame::text(json!({"op": "publish", "topic": "open", "data": "late"}).to_string());
    let _ = bad.0.stream.write_all(&late.encode(Role::Client));
    good.send_message(&json!({"op": "publish", "topic": "open", "data": "own"}));
    assert_eq!(good.receive_message()["data"], "own");
}

#[test]
fn client_that_disconnects_while_a_hook_decides_is_forgotten() {
    let (permit, permits) = permits();
    let app = Application::start(move |_| AppAnswer::Wait(Arc::clone(&permits), json!({})));
    let url = app.url("/");
    let server = serve(&format!("[hooks]\nconnect = {url:?}\n"));
    let waiting: TcpStream = open(&server, "").0.into_stream();
    app.request();
    drop(waiting);
    permit.send(()).unwrap();
    until("no request waits", || server.get("/metrics").contains("sinews_hook_pending 0\n"));
    let mut next = open(&server, "");
    app.request();
    permit.send(()).unwrap();
    assert_eq!(next.receive_message()["op"], "welcome");
}
