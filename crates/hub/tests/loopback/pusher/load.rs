//! Many clients, floods of messages, and messages that are too large.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use sinews::Role;
use sinews_hub::{Hub, PusherLimits, WebhookEventKind};
use sinews_testkit::{Frame, RawSocket, Reply, handshake};

use super::client::{
    Client, KEY, QUERY, api, app, connected, data_of, hub, metric, metrics, policy, request, sign, trigger,
};
use super::webhooks::FakeBackend;
use crate::support::{TIMEOUT, TestHub, parse};

/// A client that writes without waiting for answers.
struct RawClient {
    socket: RawSocket<TcpStream>,
    socket_id: String,
}

impl RawClient {
    /// Connects clients at once: each handshake is sent before the first answer is read.
    fn connect(hub: &TestHub, count: usize) -> Vec<Self> {
        let path = format!("/app/{KEY}?{QUERY}");
        let start = |_| {
            let mut stream = hub.connect();
            stream.write_all(handshake(&path, "localhost", "").as_bytes()).unwrap();
            stream
        };
        let streams: Vec<TcpStream> = (0..count).map(start).collect();
        streams.into_iter().map(Self::establish).collect()
    }

    fn new(hub: &TestHub) -> Self {
        Self::connect(hub, 1).remove(0)
    }

    /// Receives the answer to the handshake, and the first message.
    fn establish(stream: TcpStream) -> Self {
        let socket = RawSocket::answered(stream).unwrap().expect("an upgrade");
        let mut client = Self { socket, socket_id: String::new() };
        let data = data_of(&client.receive());
        client.socket_id = data["socket_id"].as_str().expect("a first message").to_owned();
        client
    }

    fn frame(text: &str) -> Vec<u8> {
        Frame::text(text).encode(Role::Client)
    }

    fn send(&mut self, event: &str, data: Value) {
        self.socket.send(&Frame::text(json!({ "event": event, "data": data }).to_string())).unwrap();
    }

    fn subscribe(&mut self, channel: &str, member: Option<String>) {
        let data = subscription(&self.socket_id, channel, member);
        self.send("pusher:subscribe", data);
    }

    fn next(&mut self) -> Reply {
        self.socket.receive().unwrap().expect("the connection is open")
    }

    fn receive(&mut self) -> Value {
        match self.next() {
            Reply::Message(_, text) => parse(std::str::from_utf8(&text).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Receives messages up to one with this event, without those of presence. Returns their events.
    fn receive_until(&mut self, event: &str) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            let message = self.receive();
            let name = message["event"].as_str().unwrap().to_owned();
            if !name.starts_with("pusher_internal:member_") {
                events.push(name);
            }
            if message["event"] == event {
                return events;
            }
        }
    }

    /// The code of the Close that the server sends.
    fn close_code(mut self) -> u16 {
        loop {
            if let Some(code) = self.next().close_code() {
                return code;
            }
        }
    }
}

fn subscription(socket_id: &str, channel: &str, member: Option<String>) -> Value {
    let text = member.as_ref().map_or_else(|| channel.to_owned(), |member| format!("{channel}:{member}"));
    let auth = format!("{KEY}:{}", sign(&format!("{socket_id}:{text}")));
    json!({ "channel": channel, "auth": auth, "channel_data": member })
}

#[test]
fn pusher_2_3_websocket_pings_are_answered() {
    let hub = hub(|app| app);
    let mut client = RawClient::new(&hub);
    client.socket.send(&Frame::ping("hi")).unwrap();
    assert_eq!(client.next(), Reply::Pong(b"hi".to_vec()));
}

/// Members of each presence channel.
const GROUP: usize = 20;

/// Connects clients at once, each of which subscribes to three channels.
fn connect_all(hub: &TestHub, count: usize) -> Vec<RawClient> {
    let mut clients = RawClient::connect(hub, count);
    for (number, client) in clients.iter_mut().enumerate() {
        client.subscribe(
            &format!("presence-{}", number / GROUP),
            Some(json!({ "user_id": number }).to_string()),
        );
        client.subscribe(&format!("private-{number}"), None);
        client.subscribe("news", None);
        client.send("pusher:ping", json!({}));
    }
    for client in &mut clients {
        let events = client.receive_until("pusher:pong");
        let expected = ["pusher_internal:subscription_succeeded"; 3].into_iter().chain(["pusher:pong"]);
        assert_eq!(events, expected.collect::<Vec<_>>());
    }
    clients
}

/// Number of clients of the test below: `SINEWS_TEST_RECONNECTS`, as far as the limit of descriptors permits.
fn clients_that_reconnect() -> usize {
    let wanted = std::env::var("SINEWS_TEST_RECONNECTS").ok().and_then(|number| number.parse().ok());
    let wanted: usize = wanted.unwrap_or(1_100);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // Each has a descriptor here and one in the server; other tests run meanwhile.
    let possible = maximum.map_or(usize::MAX, |most| usize::try_from(most.saturating_sub(600) / 2).unwrap());
    if possible < wanted {
        println!("{possible} clients instead of {wanted}: the limit of descriptors is {maximum:?}");
    }
    wanted.min(possible)
}

/// A stop after which all clients connect again at once, with all their subscriptions. With more than 1,024 of them, it is
/// the regression of a server that uses `select` (laravel/reverb #269).
#[test]
fn pusher_5_8_clients_that_connect_again_at_once_are_served_and_miss_nothing() {
    let count = clients_that_reconnect();
    let first = hub(|app| app);
    let clients = connect_all(&first, count);
    assert_eq!(metric(&first, "sinews_pusher_connections"), count as f64);
    first.stop.stop();
    for client in clients {
        assert_eq!(client.close_code(), 4200);
    }
    drop(first);
    let second = hub(|app| app);
    let mut clients = connect_all(&second, count);
    assert_eq!(metric(&second, "sinews_pusher_connections"), count as f64);
    trigger(&second, "news", "e", "1");
    for client in &mut clients {
        // A thread may read a ping before the event of another thread, so the ping follows the event.
        assert_eq!(client.receive_until("e"), ["e"]);
        client.send("pusher:ping", json!({}));
        assert_eq!(client.receive_until("pusher:pong"), ["pusher:pong"], "the event arrives once");
    }
    for group in [0, count / GROUP - 1] {
        let path = format!("/apps/3/channels/presence-{group}/users");
        let users = api(&second, "GET", &path, "", "").1["users"].as_array().unwrap().len();
        assert_eq!(users, GROUP, "{path}");
    }
    let text = metrics(&second);
    let dropped = text.lines().filter(|line| line.starts_with("sinews_messages_dropped_total"));
    for line in dropped.chain(text.lines().filter(|line| line.starts_with("sinews_pusher_rejections_total")))
    {
        assert!(line.ends_with(" 0"), "{line}");
    }
    // Clients may still have to acknowledge the last bytes.
    super::faults::wait_for(&second, "sinews_queued_bytes", 0.0);
}

/// Channels of a flood: each is subscribed to and left again and again.
const FLOOD: [&str; 4] = ["a", "private-a", "cache-a", "presence-a"];

fn flood_message(client: &RawClient, number: usize) -> String {
    let channel = FLOOD[number / 2 % FLOOD.len()];
    let member = (channel == "presence-a").then(|| r#"{"user_id":"flood"}"#.to_owned());
    let data = subscription(&client.socket_id, channel, member);
    let event = ["pusher:subscribe", "pusher:unsubscribe"][number % 2];
    json!({ "event": event, "data": data }).to_string()
}

/// A flood of subscriptions from a client that reads its answers, while a webhook does not answer: queues are bounded, and
/// other clients receive few messages of it.
#[test]
fn flood_of_subscriptions_is_answered_and_leaves_nothing() {
    const MESSAGES: usize = 16_000;
    let backend = FakeBackend::without_answers();
    let (hub, mut watcher) = connected(|app| app.with_webhook(backend.webhook()));
    watcher.join("presence-a", "w");
    let mut client = RawClient::new(&hub);
    let begin = Instant::now();
    let mut frames = Vec::new();
    for number in 0..MESSAGES {
        frames.extend_from_slice(&RawClient::frame(&flood_message(&client, number)));
    }
    frames.extend_from_slice(&RawClient::frame(r#"{"event":"pusher:ping"}"#));
    let mut writer = client.socket.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&frames));
    let answers = client.receive_until("pusher:pong");
    writing.join().unwrap().unwrap();
    let of = |event: &str| answers.iter().filter(|answer| *answer == event).count();
    assert_eq!(of("pusher_internal:subscription_succeeded"), MESSAGES / 2);
    assert_eq!(of("pusher:cache_miss"), MESSAGES / 8);
    drop(client);
    let mut changes = 0;
    watcher.send("pusher:ping", json!({}));
    while watcher.receive()["event"] != "pusher:pong" {
        changes += 1;
    }
    // At most ten updates a second, each with the difference to the former one.
    let most = 40.0 * (begin.elapsed().as_secs_f64() + 1.0);
    assert!(f64::from(changes) < most, "{changes} messages of {} joins", MESSAGES / 8);
    let queued = metric(&hub, "sinews_webhook_queued_events{webhook=\"pusher:3:1\"}");
    assert!(queued <= 10_000.0, "{queued} events wait for a webhook");
    let expected = json!({ "channels": { "presence-a": {} } });
    super::cluster::until(&hub, "/apps/3/channels", &expected);
}

/// A client that floods the server and reads nothing is not read from any more: its memory is bounded.
#[test]
fn flood_of_a_client_that_does_not_read_is_stopped() {
    const BYTES_MAX: usize = 512 << 20;
    let (hub, mut other) = connected(|app| app);
    let mut client = RawClient::new(&hub);
    let mut frames = Vec::new();
    for number in 0..2 * FLOOD.len() {
        frames.extend_from_slice(&RawClient::frame(&flood_message(&client, number)));
    }
    // Elapsed time under test: a peer that does not accept bytes for so long has stopped.
    client.socket.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut sent = 0;
    let error = loop {
        match client.socket.stream.write_all(&frames) {
            Ok(()) => sent += frames.len(),
            Err(error) => break error,
        }
        assert!(sent < BYTES_MAX, "the server has read {sent} bytes");
    };
    let stopped =
        [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(stopped.contains(&error.kind()), "{error}");
    let queued = metric(&hub, "sinews_queued_bytes");
    assert!(queued < f64::from(4 << 20), "{queued} bytes are queued");
    other.subscribe("a");
    other.ping();
}

/// Rejections are counted by kind; names of channels, events, users and keys are no labels.
#[test]
fn rejections_are_counted_with_bounded_labels() {
    let mut limits = PusherLimits::default();
    limits.channels = 50;
    let hub = hub(|app| app.with_limits(limits).with_client_events(true));
    let rejections = |kind: &str| metric(&hub, &format!("sinews_pusher_rejections_total{{kind=\"{kind}\"}}"));
    let series = || metrics(&hub).lines().filter(|line| line.starts_with("sinews_pusher")).count();
    let before = series();
    let mut client = Client::new(&hub);
    for number in 0..150 {
        client.request_subscription(&format!("unbounded-{number}"), None);
    }
    for number in 0..30 {
        client.trigger(&format!("client-unbounded-{number}"), "unbounded-1", json!(1));
        client.send(&format!("unbounded-{number}"), json!({}));
        let path = format!("/app/unbounded-{number}?{QUERY}");
        Client::open(&hub, &path).expect_end(4001);
        let path = format!("/apps/unbounded-{number}/events");
        assert_eq!(request(&hub, "POST", &path, "{}").0, 404);
        let mut user = Client::new(&hub);
        user.send("pusher:signin", json!({ "auth": format!("unbounded-{number}:0"), "user_data": "{}" }));
        user.expect_end(4009);
    }
    for _ in 0..50 + 100 + 60 {
        client.receive();
    }
    client.ping();
    // A failed sign-in also ends its connection.
    let expected = [
        ("subscription", 100.0),
        ("client_event", 30.0),
        ("message", 30.0),
        ("request", 30.0),
        ("sign_in", 30.0),
        ("connection", 60.0),
    ];
    for (kind, count) in expected {
        assert_eq!(rejections(kind), count, "{kind}");
    }
    let text = metrics(&hub);
    assert_eq!(series(), before);
    assert!(!text.contains("unbounded"), "{text}");
}

/// Messages and bodies beyond the limits of the server end one connection, or one request.
#[test]
fn messages_that_are_too_large_end_their_connection_only() {
    let hub = TestHub::built(Hub::builder().config(policy([app()])).max_message(16 << 10));
    let mut other = Client::new(&hub);
    let mut client = Client::new(&hub);
    client.subscribe("a");
    let member = json!({ "user_id": "1", "user_info": "x".repeat(15_000) }).to_string();
    client.request_subscription("presence-a", Some(&member));
    assert_eq!(client.expect("pusher:subscription_error").1["status"], 4301, "within the limit of messages");
    client.send_text(&"x".repeat(16_385));
    client.expect_close(1009);
    let mut stream = hub.connect();
    write!(stream, "POST /apps/3/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    // The server may reset the connection after its answer.
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    other.subscribe("a");
    other.ping();
}

/// A webhook that does not answer delays no client, and no other webhook.
#[test]
fn webhook_that_hangs_delays_no_client() {
    let (hanging, working) = (FakeBackend::without_answers(), FakeBackend::start());
    let events = [WebhookEventKind::TopicOccupied];
    let hub = hub(|app| {
        let webhooks = [&hanging, &working].map(|backend| backend.webhook().with_events(events));
        webhooks.into_iter().fold(app, sinews_hub::PusherApp::with_webhook)
    });
    let mut client = Client::new(&hub);
    for number in 0..50 {
        let channel = format!("c{number}");
        client.subscribe(&channel);
        assert_eq!(working.event(), json!({ "name": "channel_occupied", "channel": channel }));
    }
    // The first one is in progress.
    hanging.requests.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(metric(&hub, "sinews_webhook_queued_events{webhook=\"pusher:3:1\"}"), 49.0);
    trigger(&hub, "c0", "e", "1");
    client.expect("e");
    // It answers now, so the end of the hub does not wait for it.
    drop(hanging);
}
