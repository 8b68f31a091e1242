//! Hooks decide about plain requests, streaming responses and `WS /topics/{name}`.

use sinews_testkit::{BodyReader, Frame};

use super::*;
use crate::support::{next_line, parts, status};

fn lines(server: &Running, path: &str) -> BodyReader<TcpStream> {
    server.stream(path, "Accept: application/x-ndjson\r\n")
}

#[test]
fn publications_by_post_are_decided_about() {
    let (app, server) = deciding();
    let mut reader = Client::connect(&server);
    for topic in ["a.changed", "a.bytes", "a.x"] {
        reader.send_message(&json!({"op": "subscribe", "topic": topic}));
    }
    assert_eq!(reader.receive_message()["op"], "subscribed");
    // The subscriptions come first.
    assert_eq!(reader.request(json!({"op": "ping"}))["op"], "pong");
    app.requests.try_iter().for_each(drop);
    let post = |topic: &str| {
        let kind = "Content-Type: application/json";
        server.request(&format!("POST /topics/{topic} HTTP/1.1\r\n{kind}"), "{\"n\":1}")
    };
    for (topic, field, value) in [
        ("a.x", "data", json!({"n": 1})),
        ("a.changed", "data", json!({"was": {"n": 1}})),
        ("a.bytes", "b64", json!("AP8=")),
    ] {
        let answer = post(topic);
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(parts(&answer).1.contains("\"subscribers\":1"), "{answer}");
        assert_eq!(reader.receive_message()[field], value);
        let asked = app.request().json();
        let expected = json!({"hook": "publish", "topic": topic, "data": {"n": 1}, "address": "127.0.0.1"});
        assert_eq!(asked, expected, "a plain request has no connection");
    }
    assert_eq!(parts(&post("a.no")), (403, "{\"error\":\"no\"}\n"));
    app.request();
    assert_eq!(status(&post("a.free")), 200);
    assert!(app.requests.try_recv().is_err(), "its namespace has no hook");
}

#[test]
fn calls_by_post_are_answered_by_the_application() {
    let app = Application::start(|request| match request.json()["method"].as_str() {
        Some("add/all é") => AppAnswer::Json(json!({"data": {"sum": 3}})),
        Some("nothing") => AppAnswer::Json(json!({})),
        Some("fail") => AppAnswer::Status(500),
        _ => AppAnswer::Json(json!({"reject": {"code": 404, "reason": "no such method"}})),
    });
    let (all, own) = (app.url("/all"), app.url("/own"));
    let file = format!(
        "[hooks]\nrpc = {all:?}\nheaders = \"cookie\"\nfailure = \"open\"\n[namespace.\"own.>\"]\nrpc_hook = {own:?}\n\
         [namespace.\"few.>\"]\ncalls_per_second = 1\n[namespace.\"off.>\"]\nrpc_hook = \"off\"\n"
    );
    let server = serve(&file);
    let call = |path: &str, kind: &str, body: &str| {
        server.request(&format!("POST /rpc/{path} HTTP/1.1\r\nCookie: a=b\r\nContent-Type: {kind}"), body)
    };
    let answer = call("add%2Fall%20%C3%A9", "application/json", "[1, 2]");
    assert!(answer.contains("Cache-Control: no-store"), "{answer}");
    assert_eq!(parts(&answer), (200, "{\"data\":{\"sum\":3}}\n"));
    let request = app.request();
    assert_eq!((&*request.path, request.header("cookie")), ("/all", Some("a=b")));
    let expected = json!({"hook": "rpc", "method": "add/all é", "data": [1, 2], "address": "127.0.0.1"});
    assert_eq!(request.json(), expected, "a plain request has no connection");
    for (kind, body, field, value) in [
        ("application/json", "null", "data", json!(null)),
        ("text/plain", "a", "data", json!("a")),
        ("application/octet-stream", "\0", "b64", json!("AA==")),
    ] {
        assert_eq!(parts(&call("nothing?topic=own.a", kind, body)), (200, "{\"data\":null}\n"));
        let request = app.request();
        assert_eq!((&*request.path, &request.json()["topic"]), ("/own", &json!("own.a")));
        assert_eq!(request.json().get(field), Some(&value));
    }
    assert_eq!(status(&call("nothing", "application/json", "")), 200);
    assert_eq!(app.request().json().get("data"), None);
    assert_eq!(parts(&call("other", "text/plain", "")), (404, "{\"error\":\"no such method\"}\n"));
    app.request();
    let failed = call("fail", "text/plain", "");
    assert!(failed.contains("Retry-After: 1"), "{failed}");
    assert_eq!(
        parts(&failed),
        (503, "{\"error\":\"the application did not answer; retry later\"}\n"),
        "a call does not fail open"
    );
    app.request();
    for (path, kind, body, expected) in [
        ("m".repeat(129), "text/plain", "", 400),
        ("%FF".to_owned(), "text/plain", "", 400),
        ("m".to_owned(), "application/json", "{", 400),
        ("m".to_owned(), "application/x-ndjson", "1", 415),
        ("m?topic=off.a".to_owned(), "text/plain", "", 404),
    ] {
        assert_eq!(status(&call(&path, kind, body)), expected, "{path}");
    }
    // The calls of a user share one rate.
    let limited = (0..100).find(|_| status(&call("nothing?topic=few.a", "text/plain", "")) == 429);
    assert!(limited.is_some_and(|calls| calls >= 1), "{limited:?}");
    app.requests.try_iter().for_each(drop);
    let foreign = "POST /rpc/nothing HTTP/1.1\r\nOrigin: https://other.example";
    assert_eq!(status(&server.request(foreign, "")), 403);
    assert_eq!(status(&server.get("/rpc/nothing")), 405);
    assert!(app.requests.try_recv().is_err(), "a rejected call is not passed on");
}

#[test]
fn calls_by_post_have_the_rights_of_the_connect_hook() {
    let directory = Directory::new();
    let app = Application::start(|request| {
        let body = request.json();
        AppAnswer::Json(match (body["hook"].as_str().unwrap(), request.header("cookie")) {
            ("connect", Some("anna")) => json!({"claims": {"sub": "anna"}}),
            ("connect", _) => json!({"reject": {"code": 4429, "reason": "too early"}}),
            _ => json!({"data": body["user"]}),
        })
    });
    let url = app.url("/");
    let hooks = format!("[hooks]\nconnect = {url:?}\nrpc = {url:?}\nheaders = \"cookie\"\n");
    let server = serve_in(&directory, &hooks);
    let call = |cookie: &str| server.request(&format!("POST /rpc/m HTTP/1.1\r\nCookie: {cookie}"), "");
    assert_eq!(parts(&call("anna")), (200, "{\"data\":\"anna\"}\n"));
    assert_eq!(app.request().json()["path"], "/rpc/{method}");
    assert_eq!(parts(&call("ben")), (429, "{\"error\":\"too early\"}\n"));
    // Without hooks, and with an invalid token.
    let secret = crate::auth::keys("secret");
    let server = serve_in(&directory, &format!("[auth]\nsecret_file = {secret:?}\n"));
    let call = |lines: &str| server.request(&format!("POST /rpc/m HTTP/1.1{lines}"), "");
    assert_eq!(status(&call("")), 404);
    assert_eq!(status(&call("\r\nAuthorization: Bearer x")), 401);
}

#[test]
fn event_streams_and_polls_are_decided_about() {
    let (app, server) = deciding();
    let mut one = server.stream("/topics/a.x", "Accept: text/event-stream\r\n");
    assert_eq!(one.status(), 200);
    for kind in ["welcome", "subscribed"] {
        assert_eq!(one.event().unwrap().kind, kind);
    }
    let expected = json!({"hook": "subscribe", "topic": "a.x", "address": "127.0.0.1"});
    assert_eq!(app.request().json(), expected);
    let mut many = lines(&server, "/topics?topic=a.x&topic=a.y&topic=a.free");
    let topics: Vec<Value> = (0..3).map(|_| next_line(&mut many)["topic"].clone()).collect();
    assert_eq!(topics, ["a.x", "a.y", "a.free"]);
    let mut asked: Vec<String> =
        (0..2).map(|_| app.request().json()["topic"].as_str().unwrap().to_owned()).collect();
    asked.sort();
    assert_eq!(asked, ["a.x", "a.y"]);
    server.request("POST /topics/a.x HTTP/1.1", "hello");
    assert_eq!(one.event().unwrap().data, "hello");
    assert_eq!(next_line(&mut many)["data"], "hello");

    for path in ["/topics/a.no", "/topics?topic=a.x&topic=a.no", "/topics/a.no?wait=0"] {
        let accept = if path.contains("wait") { "application/json" } else { "text/event-stream" };
        let answer = server.request(&format!("GET {path} HTTP/1.1\r\nAccept: {accept}"), "");
        assert_eq!(parts(&answer), (409, "{\"error\":\"full\"}\n"), "{path}");
    }
    let poll = server.request("GET /topics/a.x?wait=0 HTTP/1.1\r\nAccept: application/json", "");
    assert_eq!(status(&poll), 200, "{poll}");
    // A pattern that matches topics with different hooks.
    assert_eq!(status(&server.request("GET /topics/%3E HTTP/1.1\r\nAccept: text/event-stream", "")), 403);
}

#[test]
fn members_of_event_streams_are_decided_about() {
    let (app, server) = deciding();
    let member = "member=%7B%22id%22:%22me%22,%22info%22:%22forged%22%7D";
    for no in ["join=a.no", "topic=a.free&join=a.no"] {
        assert_eq!(lines(&server, &format!("/topics?{no}&{member}")).status(), 409);
        assert_eq!(app.request().json()["topic"], "a.no");
    }
    let mut joined = lines(&server, &format!("/topics?topic=a.x&join=a.x&join=a.y&join=a.free&{member}"));
    assert_eq!(next_line(&mut joined)["op"], "ack");
    for topic in ["a.x", "a.y", "a.free"] {
        assert_eq!(next_line(&mut joined), json!({"op": "joined", "topic": topic}));
    }
    let mut asked: Vec<String> =
        (0..2).map(|_| app.request().json()["topic"].as_str().unwrap().to_owned()).collect();
    asked.sort();
    assert_eq!(asked, ["a.x", "a.y"], "once each");
    for (topic, info) in [("a.y", "of the topic"), ("a.free", "forged")] {
        let list = server.get(&format!("/topics/{topic}/members"));
        let expected = json!([{"id": "me", "connections": 1, "info": info}]);
        let list: Value = serde_json::from_str(parts(&list).1).unwrap();
        assert_eq!(list["members"], expected);
    }
    // The connect hook sets the info of all topics.
    let app = Application::start(|_| {
        AppAnswer::Json(json!({"claims": {"sub": "anna", "subscribe": ["room"]}, "info": {"name": "Anna"}}))
    });
    let server = serve(&format!("[hooks]\nconnect = {:?}\n", app.url("/")));
    let mut joined = lines(&server, "/topics?join=room");
    assert_eq!(next_line(&mut joined)["op"], "joined");
    let list = server.get("/topics/room/members");
    let list: Value = serde_json::from_str(parts(&list).1).unwrap();
    assert_eq!(list["members"], json!([{"id": "anna", "connections": 1, "info": {"name": "Anna"}}]));
    assert_eq!(lines(&server, &format!("/topics?join=room&{member}")).status(), 403);
}

#[test]
fn requests_for_keys_are_decided_about() {
    let (app, server) = deciding();
    let put = |topic: &str, lines: &str| {
        let head =
            format!("PUT /topics/{topic}/keys/k?ttl=60000 HTTP/1.1\r\nContent-Type: application/json{lines}");
        server.request(&head, "1")
    };
    assert_eq!(status(&put("a.x", "\r\nIf-None-Match: *\r\nIdempotency-Key: once")), 200);
    let expected = json!({
        "hook": "publish", "topic": "a.x", "key": "k", "data": 1, "ttl": 60_000, "if_new": true,
        "idempotency_key": "once", "address": "127.0.0.1",
    });
    assert_eq!(app.request().json(), expected);
    assert_eq!(status(&put("a.no", "")), 403);
    assert_eq!(status(&put("a.changed", "")), 200);
    for path in ["/topics/a.changed/keys", "/topics/a.changed/keys/k"] {
        let answer = server.get(path);
        assert!(status(&answer) == 200 && answer.contains("{\"was\":1}"), "{answer}");
    }
    for path in ["/topics/a.no/keys", "/topics/a.no/keys/k"] {
        assert_eq!(parts(&server.get(path)), (409, "{\"error\":\"full\"}\n"), "{path}");
    }
    let mut followed = lines(&server, "/topics/a.changed/keys");
    let (ack, snapshot) = (next_line(&mut followed), next_line(&mut followed));
    assert_eq!((&ack["op"], &snapshot["set"][0]["data"]), (&json!("ack"), &json!({"was": 1})));
    assert_eq!(lines(&server, "/topics/a.no/keys").status(), 409);
    let delete = server.request("DELETE /topics/a.x/keys/k HTTP/1.1", "");
    assert_eq!(status(&delete), 200, "{delete}");
}

#[test]
fn raw_sockets_are_decided_about() {
    let (app, server) = deciding();
    let raw = |topic: &str| Client(server.try_websocket(&format!("/topics/{topic}"), "").unwrap());
    let mut one = raw("a.changed");
    for text in ["1", "2", "3"] {
        one.0.send(&Frame::text(text));
    }
    for text in ["1", "2", "3"] {
        let Some(Reply::Message(_, payload)) = one.0.next() else { panic!("no message") };
        assert_eq!(payload, format!("{{\"was\":\"{text}\"}}").as_bytes(), "in order");
    }
    let asked: Vec<Value> = (0..4).map(|_| app.request().json()).collect();
    assert_eq!((&asked[0]["hook"], &asked[1]["hook"]), (&json!("subscribe"), &json!("publish")));
    assert!(asked[0]["connection"].is_string());
    assert_eq!(raw("a.no").0.next(), Some(Reply::Close(Some(4409), "full".into())));
    let rejecting = Application::start(|_| AppAnswer::Json(json!({"reject": {"reason": "no"}})));
    let url = rejecting.url("/");
    let server = serve(&format!("[hooks]\npublish = {url:?}\n"));
    let mut client = Client(server.try_websocket("/topics/b", "").unwrap());
    client.0.send(&Frame::text("x"));
    assert_eq!(client.0.next(), Some(Reply::Close(Some(4403), "no".into())));
}

#[test]
fn connect_hook_decides_about_requests_and_raw_sockets() {
    let app = Application::start(|request| {
        AppAnswer::Json(match request.header("cookie") {
            Some("anna") => {
                json!({"claims": {"sub": "anna", "publish": "a", "subscribe": "a", "keys": "a/>"}})
            }
            Some("over") => json!({"claims": {"sub": "anna", "publish": "a", "exp": 1}}),
            Some("bad") => json!({"claims": {"publish": "a..b"}}),
            Some("401") => json!({"reject": {"code": 4401, "reason": "log in"}}),
            Some("open") => json!({}),
            _ => json!({"reject": {}}),
        })
    });
    let url = app.url("/");
    let key = "0123456789abcdef0123456789abcdef";
    let file = format!("[hooks]\nconnect = {url:?}\nheaders = \"cookie\"\n[api]\nkey = {key:?}\n");
    let server = serve(&file);
    let ask = |cookie: &str, route: &str, more: &str| {
        status(&server.request(&format!("{route} HTTP/1.1\r\nCookie: {cookie}{more}"), ""))
    };
    let accept = "\r\nAccept: application/json";
    let routes = [
        ("POST /topics/a", "", "/topics/{name}"),
        ("GET /topics/a?wait=0", accept, "/topics/{name}"),
        ("GET /topics?topic=a&wait=0", accept, "/topics"),
        ("GET /topics/a/keys", "", "/topics/{name}/keys"),
        ("PUT /topics/a/keys/k", "", "/topics/{name}/keys/{key}"),
        ("GET /topics/a/keys/k", "", "/topics/{name}/keys/{key}"),
        ("DELETE /topics/a/keys/k", "", "/topics/{name}/keys/{key}"),
    ];
    for (route, more, path) in routes {
        assert_eq!(ask("anna", route, more), 200, "{route}");
        let asked = app.request().json();
        assert_eq!((&asked["hook"], &asked["path"]), (&json!("connect"), &json!(path)), "{route}");
        for (cookie, expected) in [("over", 401), ("bad", 503), ("401", 401), ("open", 401), ("none", 403)] {
            assert_eq!(ask(cookie, route, more), expected, "{cookie} {route}");
            app.request();
        }
    }
    assert_eq!(ask("anna", "POST /topics/b", ""), 403);
    let raw = |cookie: &str, topic: &str| {
        Client(server.try_websocket(&format!("/topics/{topic}"), &format!("Cookie: {cookie}\r\n")).unwrap())
    };
    let mut anna = raw("anna", "a");
    anna.0.send(&Frame::text("hello"));
    assert!(matches!(anna.0.next(), Some(Reply::Message(..))));
    for (cookie, topic, code) in
        [("anna", "b", 4403), ("401", "a", 4401), ("open", "a", 4403), ("none", "a", 4403)]
    {
        assert_eq!(close_code(&mut raw(cookie, topic)), Some(code), "{cookie} {topic}");
    }
    // Claims without a time of issue are revoked with the tokens of their user, and clients must not try again.
    let head = format!("POST /api/v1/revoke HTTP/1.1\r\nAuthorization: Bearer {key}");
    assert_eq!(status(&server.request(&head, "{\"user\":\"anna\"}")), 200);
    let revoked = Some(Reply::Close(Some(4401), "the token has been revoked".into()));
    for (route, more, _) in routes {
        assert_eq!(ask("anna", route, more), 401, "{route}");
    }
    assert_eq!(raw("anna", "a").0.next(), revoked);
    let mut socket = server.try_websocket("/ws", "Cookie: anna\r\n").unwrap();
    assert_eq!(socket.next(), revoked);
}

#[test]
fn requests_without_an_answer_of_the_application_follow_the_policy() {
    let app = Application::start(|_| AppAnswer::Status(500));
    let url = app.url("/");
    let file = |failure: &str| {
        format!("[hooks]\nsubscribe = {url:?}\npublish = {url:?}\nretries = 0\nfailure = \"{failure}\"\n")
    };
    for (failure, expected) in [("closed", 503), ("open", 200)] {
        let server = serve(&file(failure));
        let poll = "GET /topics/a?wait=0 HTTP/1.1\r\nAccept: application/json";
        for request in
            ["POST /topics/a HTTP/1.1", poll, "PUT /topics/a/keys/k HTTP/1.1", "GET /topics/a/keys HTTP/1.1"]
        {
            let answer = server.request(request, "");
            assert_eq!(status(&answer), expected, "{request}: {answer}");
            assert_eq!(answer.contains("\r\nRetry-After: 1\r\n"), expected == 503, "{answer}");
        }
        let raw = server.try_websocket("/topics/a", "").unwrap();
        let mut raw = Client(raw);
        raw.0.send(&Frame::text("x"));
        let reply = raw.0.next().unwrap();
        assert_eq!(reply.close_code(), (expected == 503).then_some(1013), "{reply:?}");
    }
}

#[test]
fn refresh_hook_extends_event_streams_that_a_connect_hook_has_accepted() {
    let app = Application::start(|request| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let exp = if request.json()["hook"] == "connect" { now + 1.0 } else { now + 3_600.0 };
        AppAnswer::Json(json!({"claims": {"sub": "anna", "subscribe": "a", "publish": "a", "exp": exp}}))
    });
    let url = app.url("/");
    let server = serve(&format!(
        "[auth]\nleeway = \"0s\"\n[hooks]\nconnect = {url:?}\nrefresh = {url:?}\nheaders = \"cookie\"\n"
    ));
    // On a busy machine, the claims may expire before they are used.
    let mut body = loop {
        let body = server.stream("/topics?topic=a", "Accept: application/x-ndjson\r\nCookie: c\r\n");
        let status = body.status();
        assert_eq!(app.request().json()["hook"], "connect");
        if status == 200 {
            break body;
        }
        assert_eq!(status, 401);
    };
    assert_eq!(next_line(&mut body)["op"], "ack");
    let refresh = app.request();
    assert_eq!((&refresh.json()["hook"], refresh.header("cookie")), (&json!("refresh"), Some("c")));
    until("the refreshed session publishes", || {
        status(&server.request("POST /topics/a HTTP/1.1\r\nCookie: c", "after")) == 200
    });
    assert_eq!(next_line(&mut body)["data"], "after");
}
