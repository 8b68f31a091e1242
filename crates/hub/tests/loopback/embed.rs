//! The hub in a program with a route of its own: the code of `examples/embed.rs`, with real clients.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;

use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::auth::{Auth, AuthOptions};
use sinews_hub::{
    HostRules, Hub, HubConfig, Namespace, Namespaces, ProgramMessage, ProgramSubscriber, ProgramTopics,
    StreamOptions,
};
use sinews_server::{
    Closed, Context, Handler, Kind, Payload, ReplayFrom, Request, Router, Server, WebSocketRoute,
};
use sinews_testkit::assert_fields;

use crate::support::{block_on, websocket};

#[path = "../../examples/embed.rs"]
#[expect(dead_code, reason = "the test calls `serve` in place of `main`")]
mod example;

#[path = "../../examples/keys.rs"]
#[expect(dead_code, reason = "the test calls `serve` in place of `main`")]
mod prices;

/// The status and the body of an answer.
fn request(address: SocketAddr, head: &str, body: &str) -> (u16, String) {
    let mut answer = crate::support::request(address, head, "", body);
    (answer.status(), answer.rest())
}

fn receive(client: &mut WebSocket<TcpStream>) -> Value {
    let message = client.next().expect("the connection is open").expect("a message");
    serde_json::from_slice(message.as_bytes()).unwrap()
}

#[test]
fn embedded_hub_serves_beside_the_routes_of_the_program() {
    let (ready, is_ready) = channel();
    let server = thread::spawn(move || {
        example::serve(([127, 0, 0, 1], 0).into(), |server| {
            ready.send((server.addresses()[0], server.stop_handle())).unwrap();
        })
        .unwrap();
    });
    let (address, stop) = is_ready.recv().unwrap();

    assert_eq!(request(address, "GET /rooms", ""), (200, "[\"chat.lobby\"]\n".to_owned()));

    let mut client = websocket(address, "/ws");
    assert_eq!(receive(&mut client)["op"], "welcome");
    client.send_text(&json!({ "op": "subscribe", "topic": "chat.lobby", "id": 1 }).to_string()).unwrap();
    let ack = receive(&mut client);
    assert_fields(&ack, json!({"op": "ack", "id": 1, "seq": 0}));

    let (status, body) = request(address, "POST /topics/chat.lobby", "hello");
    assert_eq!((status, &*body), (200, "{\"subscribers\":1,\"topic\":\"chat.lobby\"}\n"));
    let message = receive(&mut client);
    assert_fields(&message, json!({"data": "hello", "seq": 1}));

    assert_eq!(request(address, "GET /chat", "").0, 200);
    assert!(request(address, "GET /metrics", "").1.contains("sinews_rejections"));

    drop(client);
    stop.stop_now();
    // The threads of the hub have ended.
    server.join().unwrap();
}

#[test]
fn prices_of_the_example_are_followed() {
    let (ready, is_ready) = channel();
    let server = thread::spawn(move || {
        prices::serve(([127, 0, 0, 1], 0).into(), |server| {
            ready.send((server.addresses()[0], server.stop_handle())).unwrap();
        })
        .unwrap();
    });
    let (address, stop) = is_ready.recv().unwrap();
    assert!(request(address, "GET /prices", "").1.contains("/sinews.js"));
    let mut client = websocket(address, "/ws");
    assert_eq!(receive(&mut client)["op"], "welcome");
    let subscribe = json!({ "op": "subscribe", "topic": "prices", "keys": true, "filter": "3.*", "id": 1 });
    client.send_text(&subscribe.to_string()).unwrap();
    assert_eq!(receive(&mut client)["id"], 1);
    // From the begin, or from a snapshot, until each has changed.
    let mut seen = std::collections::BTreeMap::new();
    while seen.len() < 100 || seen.values().all(|price| *price == 100.0) {
        for entry in receive(&mut client)["set"].as_array().into_iter().flatten() {
            seen.insert(entry["key"].as_str().unwrap().to_owned(), entry["data"]["price"].as_f64().unwrap());
        }
    }
    assert!(seen.keys().all(|key| key.starts_with("3.")), "{seen:?}");
    stop.stop_now();
    server.join().unwrap();
}

/// A handler of the program that subscribes to the topic of its request.
struct OwnRoute {
    topics: Arc<OnceLock<ProgramTopics>>,
    topic: String,
    subscriber: Option<ProgramSubscriber>,
}

impl Handler for OwnRoute {
    fn open(&mut self, cx: &mut Context<'_>) {
        let mut subscriber = self.topics.get().unwrap().subscriber();
        subscriber.subscribe(&self.topic, cx).unwrap();
        // Repeated subscriptions count once.
        subscriber.subscribe(&self.topic, cx).unwrap();
        self.subscriber = Some(subscriber);
        let _ = cx.send(Kind::Text, b"open").unwrap();
    }

    fn message(&mut self, _: Payload<'_>, cx: &mut Context<'_>) {
        assert!(self.subscriber.as_mut().unwrap().unsubscribe(&self.topic, cx));
        assert!(!self.subscriber.as_mut().unwrap().unsubscribe(&self.topic, cx));
        let _ = cx.send(Kind::Text, b"unsubscribed").unwrap();
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        self.subscriber.as_mut().unwrap().end(cx);
    }
}

#[test]
fn program_shares_topics_histories_presence_and_streams() {
    let directory = tempfile::tempdir().unwrap();
    let streams = StreamOptions::in_directory(directory.path()).with_durable_topics(["orders.>".to_owned()]);
    let hub = Hub::builder().streams(streams).history("chat.>", 3).without_pages().build().unwrap();
    let cell = Arc::new(OnceLock::new());
    let of_route = Arc::clone(&cell);
    let route = WebSocketRoute::new(move |request: &Request<'_>| {
        let topic = request.param("topic").unwrap_or_default().into_owned();
        Ok(OwnRoute { topics: Arc::clone(&of_route), topic, subscriber: None })
    });
    let router = hub.mount(Router::new().websocket("/own/{topic}", route));
    let server = hub.configure(Server::new(router)).threads(2).listen(([127, 0, 0, 1], 0).into());
    let server = server.bind().unwrap();
    let hub = hub.start(&server).unwrap();
    cell.set(hub.topics()).unwrap();
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let serving = thread::spawn(move || server.run().unwrap());

    let mut topics = hub.topics();
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let text = |text: &str| ProgramMessage::Text(text.to_owned());
    let mut own = websocket(address, "/own/chat.a");
    let next = |own: &mut WebSocket<TcpStream>| own.next().unwrap().unwrap().as_bytes().to_vec();
    assert_eq!(next(&mut own), b"open");
    assert_eq!(json(&topics.presence("chat.a", None).unwrap())["subscribers"], 1);
    assert_eq!(topics.publish("chat.a", text("one")).unwrap(), 1);
    assert_eq!(topics.publish("chat.a", ProgramMessage::Json("{\"a\":1}".to_owned())).unwrap(), 1);
    assert_eq!((next(&mut own), next(&mut own)), (b"one".to_vec(), b"{\"a\":1}".to_vec()));
    let history = json(&block_on(topics.history("chat.a", ReplayFrom::Last(5))).unwrap());
    let data: Vec<_> = history.as_array().unwrap().iter().map(|message| message["data"].clone()).collect();
    assert_eq!(data, [json!("one"), json!({ "a": 1 })]);
    own.send_text("unsubscribe").unwrap();
    assert_eq!(next(&mut own), b"unsubscribed");
    assert_eq!(topics.publish("chat.a", text("two")).unwrap(), 0);
    assert_eq!(json(&topics.presence("chat.a", None).unwrap())["subscribers"], 0);

    let mut own = websocket(address, "/own/orders.a");
    assert_eq!(next(&mut own), b"open");
    assert!(topics.is_durable("orders.a") && !topics.is_durable("chat.a"));
    let position = block_on(topics.append("orders.a", text("apple")).unwrap()).unwrap();
    assert_eq!((position.sequence, next(&mut own)), (1, b"apple".to_vec()));
    let history = json(&block_on(topics.history("orders.a", ReplayFrom::Last(5))).unwrap());
    assert_fields(&history[0], json!({ "data": "apple", "seq": 1, "epoch": position.epoch }));

    for (status, failed) in [
        (422, topics.publish("chat.*", text("")).err()),
        (422, topics.publish("orders.a", text("")).err()),
        (422, topics.append("chat.a", text("")).err()),
        (400, topics.publish("chat.a", ProgramMessage::Json("{".to_owned())).err()),
        (410, block_on(topics.history("other", ReplayFrom::Last(1))).err()),
        (422, topics.presence("a..b", None).err()),
    ] {
        assert_eq!(failed.map(|failed| failed.status()), Some(status));
    }
    stop.stop_now();
    serving.join().unwrap();
    hub.shut_down();
}

/// Serves a hub with a durable topic until `work` is done; then the hub shuts down.
fn with_durable_topic(directory: &Path, work: impl FnOnce(SocketAddr)) {
    let streams = StreamOptions::in_directory(directory).with_durable_topics(["orders".to_owned()]);
    let hub = Hub::builder().streams(streams).without_pages().build().unwrap();
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let hub = hub.start(&server).unwrap();
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let serving = thread::spawn(move || server.run().unwrap());
    work(address);
    stop.stop_now();
    serving.join().unwrap();
    hub.shut_down();
}

#[test]
fn shutdown_releases_the_directory_with_all_records() {
    let directory = tempfile::tempdir().unwrap();
    with_durable_topic(directory.path(), |address| {
        let (status, body) = request(address, "POST /topics/orders", "one apple");
        assert_eq!(status, 200, "{body}");
        assert_eq!(request(address, "GET /chat", "").0, 404, "the program asked for no pages");
    });
    // A directory that is still open would be locked.
    with_durable_topic(directory.path(), |address| {
        let (status, body) = request(address, "GET /streams/orders", "");
        assert_eq!(status, 200, "{body}");
        let record: Value = serde_json::from_str(body.trim()).unwrap();
        assert_fields(&record, json!({"data": "one apple", "offset": 0}));
    });
}

#[test]
fn invalid_pattern_is_reported_by_the_builder() {
    let error = Hub::builder().history("a.>.b", 1).build().err().unwrap();
    assert_eq!(error.to_string(), "\"a.>.b\" is not a valid topic pattern");
}

#[test]
fn durable_topics_in_compacted_streams_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let durable = |pattern: &str, on| Namespace::new(pattern).with_durable(on);
    let topics = "of the durable topics";
    for (compacted, namespaces, expected) in [
        ("devices.>", vec![], None),
        ("log.devices.*", vec![], Some(format!("\"log.>\" {topics}"))),
        ("*.a", vec![], Some(format!("\"log.>\" {topics}"))),
        ("a.*", vec![durable("a.b", true)], Some("\"a.b\" of the durable namespaces".to_owned())),
        ("log.a.*", vec![durable("log.a.>", false)], None),
        (
            "log.a.*",
            vec![durable("log.a.>", false), durable("log.a.b", true)],
            Some("\"log.a.b\" of the durable namespaces".to_owned()),
        ),
        ("log.a.>", vec![durable("log.a.*", false)], Some(format!("\"log.>\" {topics}"))),
    ] {
        let streams = StreamOptions::in_directory(directory.path()).with_durable_topics(["log.>".to_owned()]);
        let streams = streams.with_compaction([compacted.to_owned()]);
        let policy = HubConfig::new(Auth::new(&AuthOptions::new()).unwrap(), HostRules::default());
        let policy = policy.with_namespaces(Namespaces::new(namespaces).unwrap());
        let built = Hub::builder().config(policy).streams(streams).build();
        let error = built.err().map(|error| error.to_string());
        let is_as_expected = match (&error, &expected) {
            (Some(error), Some(part)) => error.contains(part) && error.contains(compacted),
            (error, expected) => error.is_none() && expected.is_none(),
        };
        assert!(is_as_expected, "{compacted}: {error:?} in place of {expected:?}");
    }
}
