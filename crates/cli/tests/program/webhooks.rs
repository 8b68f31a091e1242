//! Webhooks: an application that receives events, fails, is slow, or is away.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply, assert_fields, until_equal};

use crate::cluster::at_bus_in_file;
use crate::cluster::broker::{FakeBroker, WireProtocol};
use crate::hooks::{AppAnswer, AppRequest, Application, is_signed, permits, serve};
use crate::protocol::{Client, connected};
use crate::support::{Running, Socket, until, unused_address};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A table of the configuration: without a grace and a delay, so that each event is sent at once.
fn webhook(name: &str, app: &Application, more: &str) -> String {
    webhook_at(name, &app.url("/"), more)
}

fn webhook_at(name: &str, url: &str, more: &str) -> String {
    format!("[webhook.{name}]\nurl = {url:?}\nsecret = {SECRET:?}\ngrace = \"0s\"\ndelay = \"0s\"\n{more}\n")
}

fn accepting() -> Application {
    Application::start(|_| AppAnswer::Status(200))
}

/// Receives events until there are this number of them, without that of the start.
fn events(app: &Application, count: usize) -> Vec<Value> {
    let mut all = Vec::new();
    while all.len() < count {
        let request = app.request();
        assert!(is_signed(&request, SECRET), "{request:?}");
        let events = request.json()["events"].as_array().unwrap().clone();
        all.extend(events.into_iter().filter(|event| event["event"] != "server_started"));
    }
    all
}

/// The kinds of events, with their topic.
fn names(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events.iter().map(|event| format!("{} {}", text(&event["event"]), text(&event["topic"]))).collect()
}

fn publish(client: &mut Client, topic: &str, data: &Value) {
    let ack = client.request(json!({"op": "publish", "id": 1, "topic": topic, "data": data}));
    assert_eq!(ack["op"], "ack", "{ack}");
}

fn subscribe(client: &mut Client, topic: &str) {
    let ack = client.request(json!({"op": "subscribe", "id": 1, "topic": topic}));
    assert_eq!(ack["op"], "ack", "{ack}");
}

fn join(client: &mut Client, topic: &str, member: &str) {
    let member = json!({"id": member, "info": {"name": member}});
    let ack = client.request(json!({"op": "join", "id": 1, "topic": topic, "member": member}));
    assert_eq!(ack["op"], "ack", "{ack}");
}

fn wait_for_metric(server: &Running, name: &str, value: &str) {
    until_equal(name, value, || server.metric(name));
}

#[test]
fn events_of_topics_members_messages_and_connections_are_sent() {
    let app = accepting();
    let server = serve(&webhook("app", &app, ""));
    let mut anna = Client(server.websocket("/ws"));
    let connection = anna.receive_message()["connection"].clone();
    subscribe(&mut anna, "chat.a");
    assert_eq!(names(&events(&app, 1)), ["topic_occupied chat.a"]);
    join(&mut anna, "chat.a", "anna");
    let joined = &events(&app, 1)[0];
    assert_eq!(joined["member"], json!({"id": "anna", "info": {"name": "anna"}}));
    publish(&mut anna, "chat.b", &json!({"text": "hello"}));
    let message = &events(&app, 1)[0];
    assert_fields(message, json!({"topic": "chat.b", "data": {"text": "hello"}}));
    assert_eq!(message["connection"], connection);
    assert!(server.request("POST /topics/chat.b HTTP/1.1", "plain").starts_with("HTTP/1.1 200 "));
    assert_eq!(events(&app, 1)[0]["data"], "plain");
    let mut raw = server.websocket("/topics/chat.c");
    assert_eq!(names(&events(&app, 1)), ["topic_occupied chat.c"]);
    raw.send(&Frame::binary([0, 255]));
    assert_eq!(events(&app, 1)[0]["b64"], "AP8=");
    anna.0.send(&Frame::close(4001, ""));
    let ended = events(&app, 3);
    let different: BTreeSet<String> = names(&ended).into_iter().collect();
    let expected = ["connection_closed ", "member_left chat.a", "topic_vacated chat.a"];
    assert_eq!(different, expected.map(str::to_owned).into());
    let closed = ended.iter().find(|event| event["event"] == "connection_closed").unwrap();
    assert_fields(closed, json!({"connection": connection, "code": 4001, "path": "/ws"}));
    assert_eq!(closed["address"], "127.0.0.1");
    let delivered = "sinews_webhook_events_total{webhook=\"app\",result=\"delivered\"}";
    wait_for_metric(&server, delivered, "10");
    assert_eq!(server.metric("sinews_webhook_queued_events{webhook=\"app\"}"), "0");
}

#[test]
fn webhook_receives_the_events_and_topics_that_it_names() {
    let [messages, topics] = [(); 2].map(|()| accepting());
    let file = webhook("messages", &messages, "events = [\"client_message\"]\ntopics = [\"chat.>\"]")
        + &webhook("topics", &topics, "events = [\"topic_occupied\", \"topic_vacated\"]\nbatch = 2");
    let server = serve(&file);
    let [mut client, mut publisher] = [(); 2].map(|()| Client::connect(&server));
    for topic in ["other", "chat.a"] {
        subscribe(&mut client, topic);
        publish(&mut publisher, topic, &json!(topic));
        assert_eq!(client.receive_message()["data"], topic);
    }
    assert_eq!(names(&events(&messages, 1)), ["client_message chat.a"]);
    let both: BTreeSet<String> = names(&events(&topics, 2)).into_iter().collect();
    assert_eq!(both, ["topic_occupied chat.a", "topic_occupied other"].map(str::to_owned).into());
    client.request(json!({"op": "unsubscribe", "id": 1, "topic": "other"}));
    assert_eq!(names(&events(&topics, 1)), ["topic_vacated other"]);
    assert!(messages.requests.try_recv().is_err());
}

/// Sends a message to a server whose application answers the first requests so; returns all requests up to success.
fn attempts(more: &str, answers: impl Fn(usize) -> AppAnswer + Send + Sync + 'static) -> Vec<AppRequest> {
    let (count, is_done) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let done = Arc::clone(&is_done);
    let app = Application::start(move |_| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let answer = answers(number);
        if matches!(answer, AppAnswer::Status(200..300)) {
            done.store(number + 1, Ordering::Release);
        }
        answer
    });
    let file = webhook("app", &app, &format!("events = [\"client_message\"]\n{more}"));
    let server = serve(&file);
    publish(&mut Client::connect(&server), "a", &json!(1));
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"delivered\"}", "1");
    let count = is_done.load(Ordering::Acquire);
    assert_eq!(server.metric("sinews_webhook_retries_total{webhook=\"app\"}"), (count - 1).to_string());
    (0..count).map(|_| app.request()).collect()
}

/// All attempts have the same ids and events.
fn check_attempts(all: &[AppRequest], count: usize) {
    assert_eq!(all.len(), count);
    let ids: HashSet<&str> = all.iter().map(|request| request.header("sinews-webhook-id").unwrap()).collect();
    let bodies: HashSet<&str> = all.iter().map(|request| &*request.body).collect();
    assert_eq!((ids.len(), bodies.len()), (1, 1));
    let body = all[0].json();
    assert_eq!(body["id"], all[0].header("sinews-webhook-id").unwrap());
    assert_eq!(body["events"][0]["id"].as_str().map(str::len), Some(32));
    assert!(all.iter().all(|request| is_signed(request, SECRET)));
}

#[test]
fn errors_are_retried_with_the_same_ids() {
    let all = attempts("", |number| AppAnswer::Status(if number < 2 { 500 } else { 200 }));
    check_attempts(&all, 3);
}

#[test]
fn redirects_are_not_followed_and_are_retried() {
    let all = attempts("", |number| AppAnswer::Status(if number < 1 { 302 } else { 200 }));
    check_attempts(&all, 2);
}

#[test]
fn interrupted_answers_are_retried() {
    let all = attempts("", |number| match number {
        0 => AppAnswer::Half,
        1 => AppAnswer::Hangup,
        _ => AppAnswer::Status(200),
    });
    check_attempts(&all, 3);
}

#[test]
fn application_that_hangs_times_out_and_is_asked_again() {
    let (_permit, permits) = permits();
    let all = attempts("timeout = \"300ms\"", move |number| match number {
        0 => AppAnswer::Wait(Arc::clone(&permits), json!({})),
        _ => AppAnswer::Status(200),
    });
    // On a busy machine, an answer may be late as well.
    assert!(all.len() >= 2);
    check_attempts(&all, all.len());
}

#[test]
fn rejected_events_are_not_sent_again() {
    let status = |request: &AppRequest| request.json()["events"][0]["data"].as_u64().unwrap();
    let app = Application::start(move |request| AppAnswer::Status(status(request) as u16));
    let server = serve(&webhook("app", &app, "events = [\"client_message\"]\nbatch = 1"));
    let mut client = Client::connect(&server);
    let statuses = [400, 413, 422, 200];
    statuses.iter().for_each(|status| publish(&mut client, "a", &json!(status)));
    for (lost, expected) in statuses.into_iter().enumerate() {
        let request = app.request();
        assert_eq!((status(&request), &request.json()["lost"]), (expected, &json!(lost)));
    }
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"failed\"}", "3");
}

#[test]
fn start_is_reported_once() {
    let app = accepting();
    let server = serve(&webhook("app", &app, "events = [\"server_started\", \"client_message\"]"));
    let started = app.request().json()["events"].clone();
    assert_fields(&started[0], json!({"event": "server_started", "version": env!("CARGO_PKG_VERSION")}));
    assert_eq!((started[0].get("topic"), started.get(1)), (None, None));
    server.signal("TERM");
    let (_, log) = server.wait();
    assert_eq!(log.matches("server_started").count(), 1, "{log}");
}

#[test]
fn of_a_rejected_batch_only_the_rejected_event_is_dropped() {
    let (permit, permits) = permits();
    // As an application that limits the size of a request: the first request waits, and the events behind it gather.
    let app = Application::start(move |request| match &request.json()["events"][0]["data"] {
        data if data == "first" => AppAnswer::Wait(Arc::clone(&permits), json!({})),
        _ if request.body.len() > 1_000 => AppAnswer::Status(413),
        _ => AppAnswer::Status(200),
    });
    let more = "events = [\"client_message\"]\nbatch = 5\nqueue = 5\ntimeout = \"60s\"";
    let (server, mut client) = connected(serve(&webhook("app", &app, more)));
    publish(&mut client, "a", &json!("first"));
    app.request();
    let large = json!("x".repeat(1_000));
    // The queue is full before the last two.
    for data in [&json!(1), &json!(2), &large, &json!(3), &json!(4), &json!(5), &json!(6)] {
        publish(&mut client, "a", data);
    }
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"dropped\"}", "2");
    permit.send(()).unwrap();
    let (mut accepted, mut ids) = (Vec::new(), HashSet::new());
    while accepted.len() < 4 {
        let request = app.request();
        assert!(is_signed(&request, SECRET) && ids.insert(request.json()["id"].to_string()), "{request:?}");
        if request.body.len() <= 1_000 {
            let body = request.json();
            let lost = body["lost"].as_u64().unwrap();
            let events = body["events"].as_array().unwrap();
            accepted.extend(events.iter().map(|event| (event["data"].as_u64().unwrap(), lost)));
        }
    }
    // The request after a dropped event has its number, once.
    assert_eq!(accepted, [(1, 2), (2, 2), (3, 1), (4, 1)]);
    assert_eq!(ids.len(), 5, "all five, three, two, one, two");
    let count = |result: &str| {
        server.metric(&format!("sinews_webhook_events_total{{webhook=\"app\",result={result:?}}}"))
    };
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"delivered\"}", "5");
    assert_eq!(count("failed"), "1");
    assert_eq!(server.metric("sinews_webhook_retries_total{webhook=\"app\"}"), "0");
}

#[test]
fn rest_of_a_rejected_batch_is_dropped_with_a_half_that_is_too_old() {
    let (permit, permits) = permits();
    let app = Application::start(move |request| {
        let body = request.json();
        match (body["events"][0]["data"].as_u64(), body["events"].as_array().map_or(0, Vec::len)) {
            (Some(0), _) => AppAnswer::Wait(Arc::clone(&permits), json!({})),
            (_, 5) => AppAnswer::Status(413),
            (Some(6), _) => AppAnswer::Status(200),
            _ => AppAnswer::Status(503),
        }
    });
    let more = "events = [\"client_message\"]\nbatch = 5\nretry_time = \"1ms\"\ntimeout = \"60s\"";
    let (server, mut client) = connected(serve(&webhook("app", &app, more)));
    publish(&mut client, "a", &json!(0));
    app.request();
    (1..=5).for_each(|number| publish(&mut client, "a", &json!(number)));
    permit.send(()).unwrap();
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"failed\"}", "5");
    publish(&mut client, "a", &json!(6));
    let requests = [(); 3].map(|()| {
        let body = app.request().json();
        (body["events"][0]["data"].clone(), body["events"].as_array().map(Vec::len), body["lost"].clone())
    });
    assert_eq!(
        requests,
        [(json!(1), Some(5), json!(0)), (json!(1), Some(3), json!(0)), (json!(6), Some(1), json!(5))]
    );
}

#[test]
fn events_wait_while_the_application_is_away_and_arrive_in_order() {
    let address = unused_address();
    let file = webhook_at("app", &format!("http://{address}/"), "events = [\"client_message\"]");
    let (server, mut client) = connected(serve(&file));
    publish(&mut client, "a", &json!(0));
    until("a request is repeated", || server.metric("sinews_webhook_retries_total{webhook=\"app\"}") != "0");
    for number in 1..20 {
        publish(&mut client, "a", &json!(number));
    }
    wait_for_metric(&server, "sinews_webhook_queued_events{webhook=\"app\"}", "19");
    let app = Application::at(address, |_| AppAnswer::Status(200));
    let all: Vec<u64> = events(&app, 20).iter().map(|event| event["data"].as_u64().unwrap()).collect();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
}

#[test]
fn full_queue_drops_events_and_the_next_request_names_their_number() {
    let (permit, permits) = permits();
    let app = Application::start(move |_| AppAnswer::Wait(Arc::clone(&permits), json!({})));
    let file = webhook("app", &app, "events = [\"client_message\"]\nbatch = 1\nqueue = 2\ntimeout = \"60s\"");
    let (server, mut client) = connected(serve(&file));
    publish(&mut client, "a", &json!("sent"));
    assert_eq!(app.request().json()["lost"], 0);
    for number in 0..5 {
        publish(&mut client, "a", &json!(number));
    }
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"dropped\"}", "3");
    for (number, lost) in [(0, 3), (1, 0)] {
        permit.send(()).unwrap();
        let next = app.request().json();
        assert_eq!((&next["events"][0]["data"], &next["lost"]), (&json!(number), &json!(lost)));
    }
    permit.send(()).unwrap();
    wait_for_metric(&server, "sinews_webhook_events_total{webhook=\"app\",result=\"delivered\"}", "3");
}

#[test]
fn short_absence_is_no_event_and_the_end_of_the_server_is() {
    let app = accepting();
    let file = format!(
        "[webhook.app]\nurl = {:?}\nsecret = {SECRET:?}\ngrace = \"60s\"\n\
         events = [\"topic_occupied\", \"topic_vacated\", \"member_joined\", \"member_left\"]\n",
        app.url("/")
    );
    let (server, mut client) = connected(serve(&file));
    subscribe(&mut client, "t");
    join(&mut client, "t", "anna");
    let mut all = events(&app, 2);
    for _ in 0..2 {
        drop(client);
        client = Client::connect(&server);
        until("the presence is over", || {
            client.request(json!({"op": "presence", "topic": "t"}))["subscribers"] == 0
        });
        subscribe(&mut client, "t");
        join(&mut client, "t", "anna");
    }
    server.signal("TERM");
    all.extend(events(&app, 2));
    let expected = ["topic_occupied t", "member_joined t", "member_left t", "topic_vacated t"];
    assert_eq!(names(&all), expected);
    assert!(server.wait().0.success());
    assert!(app.requests.try_recv().is_err());
}

#[test]
fn reload_replaces_adds_and_removes_webhooks() {
    let [first, second, third] = [(); 3].map(|()| accepting());
    let only = "events = [\"client_message\", \"topic_occupied\", \"topic_vacated\"]";
    let (server, mut client) = connected(serve(&webhook("app", &first, only)));
    subscribe(&mut client, "t");
    assert_eq!(names(&events(&first, 1)), ["topic_occupied t"]);
    server.directory.write("sinews.toml", &(webhook("app", &second, only) + &webhook("more", &third, only)));
    server.signal("HUP");
    while third.requests.try_recv().is_err() {
        publish(&mut client, "a", &json!(2));
    }
    second.request();
    first.requests.try_iter().for_each(drop);
    publish(&mut client, "a", &json!("last"));
    for app in [&second, &third] {
        while events(app, 1).last().unwrap()["data"] != "last" {}
    }
    // The state of topics is known from before.
    client.request(json!({"op": "unsubscribe", "id": 1, "topic": "t"}));
    for app in [&second, &third] {
        assert_eq!(names(&events(app, 1)), ["topic_vacated t"]);
    }
    server.directory.write("sinews.toml", "");
    server.signal("HUP");
    until("the webhooks are removed", || !server.get("/metrics").contains("sinews_webhook"));
    publish(&mut client, "a", &json!(3));
    assert!([first, second, third].iter().all(|app| app.requests.try_recv().is_err()));
}

#[test]
fn each_event_of_a_cluster_is_sent_by_one_node() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let app = accepting();
    let nodes =
        ["a", "b"].map(|name| serve(&(at_bus_in_file(&broker.url(), name) + &webhook("app", &app, ""))));
    // Clients that connect earlier receive a report of the login at the broker.
    nodes.iter().for_each(|node| until("the node is ready", || node.is_ready()));
    let mut clients = nodes.each_ref().map(Client::connect);
    for number in 0..10 {
        let topic = format!("t{number}");
        // A topic of both nodes, or of one of them.
        for client in clients.iter_mut().skip(number % 2) {
            subscribe(client, &topic);
            join(client, &topic, "anna");
        }
    }
    // Nodes that have just started report when they know each other.
    let occupied = events(&app, 20);
    let expected: BTreeSet<String> = (0..10)
        .flat_map(|number| [format!("topic_occupied t{number}"), format!("member_joined t{number}")])
        .collect();
    assert_eq!(names(&occupied).into_iter().collect::<BTreeSet<_>>(), expected);
    nodes.iter().for_each(|node| wait_for_metric(node, "sinews_webhook_reporters", "2"));
    publish(&mut clients[0], "other", &json!(1));
    assert_eq!(names(&events(&app, 1)), ["client_message other"], "no event is sent twice");
    drop(clients);
    let ended = events(&app, 22);
    let mut kinds = names(&ended);
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 21, "two connections, and each topic and member once: {kinds:?}");
    assert!(app.requests.try_recv().is_err());
}

#[test]
fn members_of_a_dead_node_are_reported_by_the_others() {
    let broker = FakeBroker::start(WireProtocol::Redis);
    let app = accepting();
    let [dead, living] =
        ["a", "b"].map(|name| serve(&(at_bus_in_file(&broker.url(), name) + &webhook("app", &app, ""))));
    for node in [&dead, &living] {
        wait_for_metric(node, "sinews_webhook_reporters", "2");
    }
    let mut client = Client::connect(&dead);
    for number in 0..10 {
        let topic = format!("t{number}");
        subscribe(&mut client, &topic);
        join(&mut client, &topic, "anna");
    }
    events(&app, 20);
    // What the dead node has not told its neighbor is lost with it.
    let mut neighbor = Client::connect(&living);
    for number in 0..10 {
        let members = json!({"op": "members", "id": 1, "topic": format!("t{number}")});
        until("the other node knows the member", || {
            neighbor.request(members.clone())["members"].as_array().is_some_and(|members| !members.is_empty())
        });
    }
    dead.signal("KILL");
    let mut expected: BTreeSet<String> = (0..10)
        .flat_map(|number| [format!("member_left t{number}"), format!("topic_vacated t{number}")])
        .collect();
    while !expected.is_empty() {
        for name in names(&events(&app, 1)) {
            // The last reports of the dead node may be repeated: nobody knows whether it has sent them.
            let is_repeated = name.starts_with("member_joined ") || name.starts_with("topic_occupied ");
            assert!(expected.remove(&name) || is_repeated, "{name} is sent twice");
        }
    }
}

const APP: &str = "[[pusher.app]]\nid = \"3\"\nkey = \"key\"\nsecret = \"secret\"\nwebhook_private = true\n\
                   webhook_grace = \"0s\"\nwebhook_channel_suffixes = \"-eu\"\n";

fn app_signature(text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
    hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Connects a user of the app, and subscribes it to presence channels.
fn join_channels(server: &Running, user: &str, channels: &[String]) -> Socket {
    let mut socket = server.websocket("/app/key?protocol=7");
    let message = |socket: &mut Socket| -> Value {
        let Some(Reply::Message(_, text)) = socket.next() else { panic!("a message") };
        serde_json::from_slice(&text).unwrap()
    };
    let established = message(&mut socket)["data"].as_str().unwrap().to_owned();
    let established: Value = serde_json::from_str(&established).unwrap();
    let socket_id = established["socket_id"].as_str().unwrap();
    let member = json!({ "user_id": user }).to_string();
    for channel in channels {
        let auth = format!("key:{}", app_signature(&format!("{socket_id}:{channel}:{member}")));
        let data = json!({ "channel": channel, "auth": auth, "channel_data": member });
        socket.send(&Frame::text(json!({ "event": "pusher:subscribe", "data": data }).to_string()));
        assert_eq!(message(&mut socket)["event"], "pusher_internal:subscription_succeeded");
    }
    socket
}

/// The answer to a signed request for the users of a channel.
fn users(server: &Running, channel: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let path = format!("/apps/3/channels/{channel}/users");
    let query = format!("auth_key=key&auth_timestamp={now}&auth_version=1.0");
    let signature = app_signature(&format!("GET\n{path}\n{query}"));
    server.get(&format!("{path}?{query}&auth_signature={signature}"))
}

#[test]
fn members_of_a_dead_node_are_reported_by_the_others_to_an_app() {
    let broker = FakeBroker::start(WireProtocol::Redis);
    let backend = accepting();
    let [dead, living] = ["a", "b"].map(|name| {
        let cluster = at_bus_in_file(&broker.url(), name);
        serve(&format!("{cluster}{APP}webhooks = [{:?}]\n", backend.url("/")))
    });
    for node in [&dead, &living] {
        wait_for_metric(node, "sinews_webhook_reporters", "2");
    }
    let channels: Vec<String> = (0..10).map(|number| format!("presence-{number}-eu")).collect();
    let _others = join_channels(&dead, "anna", &["presence-us".to_owned()]);
    let _client = join_channels(&dead, "anna", &channels);
    let next = || {
        let request = backend.request();
        let signature = request.header("x-pusher-signature").unwrap();
        assert_eq!(signature, app_signature(&request.body));
        let event = &request.json()["events"][0];
        format!("{} {}", event["name"].as_str().unwrap(), event["channel"].as_str().unwrap())
    };
    let of = |names: [&str; 2]| -> BTreeSet<String> {
        channels.iter().flat_map(|channel| names.map(|name| format!("{name} {channel}"))).collect()
    };
    let begin = of(["channel_occupied", "member_added"]);
    assert_eq!((0..begin.len()).map(|_| next()).collect::<BTreeSet<_>>(), begin);
    for channel in &channels {
        until("the other node knows the user", || users(&living, channel).contains("anna"));
    }
    dead.signal("KILL");
    let mut expected = of(["member_removed", "channel_vacated"]);
    while !expected.is_empty() {
        let event = next();
        // As above: the last reports of the dead node may be repeated.
        assert!(expected.remove(&event) || begin.contains(&event), "{event} is sent twice");
    }
}
