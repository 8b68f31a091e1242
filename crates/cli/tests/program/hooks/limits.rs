//! Limits of the requests to hooks: memory, queues and circuits, which one client must not use up for the others.

use std::io::Write as _;

use sinews_testkit::Frame;

use super::*;

/// An application whose answers to these hooks wait for a permit; it accepts everything else.
fn waiting(hooks: &'static [&'static str]) -> (Application, Sender<()>) {
    let (permit, permits) = permits();
    let app = Application::start(move |request| match request.header("sinews-hook") {
        Some(hook) if hooks.contains(&hook) => AppAnswer::Wait(Arc::clone(&permits), json!({})),
        _ => AppAnswer::Json(json!({})),
    });
    (app, permit)
}

pub(super) fn metric(server: &Running, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {metrics}")).parse().unwrap()
}

pub(super) fn requests(server: &Running, hook: &str, result: &str) -> u64 {
    metric(server, &format!("sinews_hook_requests_total{{hook={hook:?},result={result:?}}}"))
}

#[test]
fn publications_that_wait_for_a_hook_are_limited_in_bytes() {
    let (app, permit) = waiting(&["publish"]);
    let url = app.url("/");
    let file = format!(
        "[hooks]\nconnect = {url:?}\npublish = {url:?}\ntimeout = \"30s\"\n\
         [namespace.a]\npublish = \"anonymous\"\n"
    );
    let server = serve(&file);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
    // The message and the body of the request take 30 MB: the third one exceeds 64 MiB.
    let message = json!({"op": "publish", "id": 1, "topic": "a", "data": "x".repeat(15_000_000)});
    let message = Frame::text(message.to_string()).encode(Role::Client);
    for (at, client) in clients.iter_mut().enumerate() {
        client.0.stream.write_all(&message).unwrap();
        if at >= 2 {
            assert_eq!(client.receive_message()["code"], 503);
        } else {
            until("the request waits", || metric(&server, "sinews_hook_pending") == at as u64 + 1);
        }
    }
    assert_eq!((requests(&server, "publish", "queue_full"), metric(&server, "sinews_hook_pending")), (2, 2));
    let pending = metric(&server, "sinews_hook_pending_bytes");
    assert!((60_000_000..64 << 20).contains(&pending), "{pending}");
    let _accepted = Client::connect(&server);
    (0..2).for_each(|_| permit.send(()).unwrap());
    for client in &mut clients[..2] {
        assert_eq!(client.receive_message()["op"], "ack");
    }
    until("the memory is free", || metric(&server, "sinews_hook_pending_bytes") == 0);
    permit.send(()).unwrap();
    assert_eq!(publish(&mut clients[3], "a", &json!(1))["op"], "ack");
}

#[test]
fn slow_calls_of_some_clients_delay_no_connection() {
    let (app, permit) = waiting(&["rpc"]);
    let url = app.url("/");
    let file =
        format!("[hooks]\nconnect = {url:?}\nrpc = {url:?}\nconcurrency = 1\nqueue = 1\ntimeout = \"30s\"\n");
    let server = serve(&file);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server)).collect();
    let call = json!({"op": "rpc", "id": 1, "method": "slow"});
    for (at, client) in clients[..2].iter_mut().enumerate() {
        client.send_message(&call);
        until("the request waits", || metric(&server, "sinews_hook_pending") == at as u64 + 1);
    }
    assert_eq!(clients[2].request(call)["code"], 503, "the queue of calls is full");
    let _new = Client::connect(&server);
    assert_eq!(metric(&server, "sinews_hook_pending"), 2, "the calls still wait");
    (0..2).for_each(|_| permit.send(()).unwrap());
    for client in &mut clients[..2] {
        assert_eq!(client.receive_message()["op"], "rpc");
    }
}

#[test]
fn status_that_a_client_causes_opens_no_circuit() {
    let app = Application::start(|request| match request.body.len() {
        0..1_000 => AppAnswer::Json(json!({})),
        _ => AppAnswer::Status(413),
    });
    let url = app.url("/");
    let server = serve(&format!("[hooks]\npublish = {url:?}\ncircuit_failures = 3\n"));
    let [mut one, mut other] = [(); 2].map(|()| Client::connect(&server));
    for _ in 0..6 {
        assert_eq!(publish(&mut one, "a", &json!("x".repeat(2_000)))["code"], 503);
    }
    assert_eq!(requests(&server, "publish", "failed"), 6);
    assert_eq!(metric(&server, "sinews_hook_open_circuits"), 0);
    assert_eq!(publish(&mut other, "a", &json!(1))["op"], "ack");
}

/// A client could choose not to be examined, for example by the size of its message.
#[test]
fn status_that_a_client_causes_never_opens_a_hook() {
    let app = Application::start(|request| AppAnswer::Status(request.path[1..].parse().unwrap()));
    let mut file = "[hooks]\nfailure = \"open\"\nretries = 0\n".to_owned();
    let statuses = [400, 401, 403, 404, 413, 422, 431, 408, 425, 429, 500, 503];
    for status in statuses {
        let url = app.url(&format!("/{status}"));
        file.push_str(&format!("[namespace.s{status}]\nsubscribe_hook = {url:?}\npublish_hook = {url:?}\n"));
    }
    let (server, mut client) = connected(serve(&file));
    for status in statuses {
        let topic = format!("s{status}");
        let rejects = status < 500 && ![408, 425, 429].contains(&status);
        let answers = [
            publish(&mut client, &topic, &json!(1)),
            client.request(json!({"op": "set", "id": 1, "topic": topic, "key": "k", "data": 1})),
            client.request(json!({"op": "subscribe", "id": 1, "topic": topic})),
        ];
        for answer in answers {
            assert_eq!(answer["code"], if rejects { json!(503) } else { Value::Null }, "{status}: {answer}");
        }
        let answer = server.request(&format!("POST /topics/{topic} HTTP/1.1"), "x");
        assert_eq!(answer.starts_with("HTTP/1.1 503 "), rejects, "{answer}");
        let mut raw = Client(server.try_websocket(&format!("/topics/{topic}"), "").unwrap());
        raw.0.send(&Frame::text("x"));
        let reply = raw.0.next().unwrap();
        assert_eq!(reply.close_code(), rejects.then_some(1013), "{status}: {reply:?}");
    }
}

/// The application rejects each connection by its status, and extends none.
#[test]
fn status_that_a_client_causes_accepts_and_extends_no_connection() {
    let app = Application::start(|request| AppAnswer::Status(request.path[1..].parse().unwrap()));
    for (status, code) in [(413, Some(1013)), (500, None)] {
        let file = format!(
            "[hooks]\nconnect = {:?}\nfailure = \"open\"\nretries = 0\n",
            app.url(&format!("/{status}"))
        );
        let server = serve(&file);
        let mut client = Client(server.try_websocket("/ws", "").unwrap());
        let reply = client.0.next().unwrap();
        assert_eq!(reply.close_code(), code, "{reply:?}");
    }
}

#[test]
fn calls_of_a_connection_and_of_a_user_are_limited() {
    let directory = Directory::new();
    let app = Application::start(|_| AppAnswer::Json(json!({})));
    let serve = |rates: &str| {
        let rpc = app.url("/");
        let namespace = "[namespace.own]\ncalls_per_second = 1000000";
        serve_in(&directory, &format!("[hooks]\nrpc = {rpc:?}\n{rates}\n{namespace}\n"))
    };
    // The rates refill while the test runs: the first rejection is awaited.
    let rejection = |client: &mut Client, topic: Option<&str>| {
        let call = json!({"op": "rpc", "id": 1, "method": "m", "topic": topic});
        let answers = std::iter::repeat_with(|| client.request(call.clone())).take(1_000);
        answers.into_iter().find(|answer| answer["op"] != "rpc")
    };
    let (server, mut client) = connected(serve("calls_per_second = 1"));
    for topic in [None, Some("other")] {
        let error =
            json!({"op": "error", "id": 1, "code": 429, "error": "calls exceed hooks.calls_per_second (1)"});
        assert_eq!(rejection(&mut client, topic), Some(error), "{topic:?}");
    }
    assert_eq!(rejection(&mut client, Some("own")), None, "the rate of its namespace");
    assert_eq!(Client::connect(&server).request(json!({"op": "rpc", "id": 1, "method": "m"}))["op"], "rpc");
    let count = app.requests.try_iter().count() as u64;
    assert_eq!((requests(&server, "rpc", "accepted"), requests(&server, "rpc", "rate_exceeded")), (count, 2));

    let server = serve("user_calls_per_second = 1");
    let mut clients = [(); 2].map(|()| Client::connect(&server));
    let error = "calls of the user exceed hooks.user_calls_per_second (1)";
    for client in &mut clients {
        assert_eq!(
            rejection(client, None).unwrap()["error"],
            error,
            "the connections of a user share a rate"
        );
    }
    let answers = std::iter::repeat_with(|| server.request("POST /rpc/m HTTP/1.1", "")).take(1_000);
    let rejected = answers.into_iter().find(|answer| !answer.starts_with("HTTP/1.1 200 ")).unwrap();
    assert!(rejected.starts_with("HTTP/1.1 429 ") && rejected.contains(error), "{rejected}");
}

#[test]
fn time_in_the_queue_is_no_failure_of_the_application() {
    // On a busy machine, the first request may time out before the application answers it: then once more.
    let (permit, server, mut clients) = loop {
        let (app, permit) = waiting(&["publish"]);
        let limits = "concurrency = 1\ntimeout = \"2s\"\ncircuit_failures = 1\n";
        let file = format!("[hooks]\npublish = {:?}\n{limits}", app.url("/"));
        let server = serve(&file);
        let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server)).collect();
        let timed_out =
            || requests(&server, "publish", "timed_out") + requests(&server, "publish", "circuit_open");
        for (at, client) in clients.iter_mut().enumerate() {
            client.send_message(&json!({"op": "publish", "id": 1, "topic": "a", "data": 1}));
            until("the request waits, or has timed out", || {
                metric(&server, "sinews_hook_pending") == at as u64 + 1 || timed_out() != 0
            });
        }
        // The application answers the first request; the others have less time, or none.
        permit.send(()).unwrap();
        if clients[0].receive_message()["op"] == "ack" {
            break (permit, server, clients);
        }
    };
    for client in &mut clients[1..] {
        assert_eq!(client.receive_message()["code"], 503);
    }
    assert_eq!(requests(&server, "publish", "timed_out"), 2);
    assert_eq!(metric(&server, "sinews_hook_open_circuits"), 0);
    // The application may still handle the requests that it has received.
    (0..3).for_each(|_| permit.send(()).unwrap());
    assert_eq!(publish(&mut clients[0], "a", &json!(1))["op"], "ack");
}
