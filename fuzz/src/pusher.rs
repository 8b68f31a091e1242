//! Messages of clients and bodies of requests of the Pusher protocol, with a real server and models of its answers.

mod api;
mod model;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::{Value, json};
use sinews::CloseCode;
use sinews::blocking::{Stream, WebSocket, connect};
use sinews_hub::auth::{Auth, AuthOptions};
use sinews_hub::{HostRules, Hub, HubConfig, PusherApp, PusherApps, PusherLimits};
use sinews_server::{Router, Server};

use self::api::Published;
use self::model::{ClientModel, Fields, Forwarded};
use crate::input::Input;

const KEY: &str = "key";
const SECRET: &str = "secret";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of messages of an input.
const MESSAGES_MAX: usize = 24;

/// Channels of the observer.
const OBSERVED: [&str; 6] =
    ["a", "cache-b", "private-a", "private-encrypted-a", "presence-a", "#server-to-user-observer"];

fn sign(text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hex(hmac::sign(&key, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The server, and a client that receives what others publish.
struct Harness {
    address: SocketAddr,
    observer: FuzzClient,
    api: BufReader<TcpStream>,
    number: u64,
}

struct FuzzClient {
    socket: WebSocket<Stream>,
    socket_id: String,
}

impl FuzzClient {
    fn new(address: SocketAddr) -> Self {
        let url = format!("ws://{address}/app/{KEY}?protocol=7");
        let (socket, _) = connect(url).open().expect("the server accepts connections");
        socket.get_ref().tcp().set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut client = Self { socket, socket_id: String::new() };
        let established: Value = serde_json::from_str(&client.receive()).expect("JSON");
        let data: Value = serde_json::from_str(established["data"].as_str().expect("a text")).expect("JSON");
        client.socket_id = data["socket_id"].as_str().expect("an id").to_owned();
        client
    }

    fn send(&mut self, text: &str) {
        self.socket.send_text(text).expect("the connection is open");
    }

    fn receive(&mut self) -> String {
        let message = self.socket.next().expect("the connection is open").expect("a message in time");
        String::from_utf8(message.as_bytes().to_vec()).expect("UTF-8")
    }

    /// The code of the Close of the server.
    fn close_code(mut self) -> Option<u16> {
        while let Some(Ok(message)) = self.socket.next() {
            let text = String::from_utf8_lossy(message.as_bytes());
            assert!(!text.starts_with('{'), "a message after the end: {text}");
        }
        self.socket.closed()?.code().map(|code| code.as_u16())
    }

    fn end(mut self) {
        // The server may have closed the connection.
        let _ = self.socket.close(CloseCode::NORMAL, "");
        while let Some(Ok(_)) = self.socket.next() {}
    }
}

impl Harness {
    fn start() -> Self {
        let mut limits = PusherLimits::default();
        limits.client_events_per_second = 1_000_000_000;
        limits.members = 10_000;
        // No event is retained, so that an input does not depend on those before it.
        limits.cache_time = Duration::ZERO;
        let app = PusherApp::new("1", KEY, SECRET).with_client_events(true).with_limits(limits);
        // The observer sends nothing.
        let app = app.with_activity_timeout(Duration::from_secs(86_400));
        let auth = Auth::new(&AuthOptions::new()).expect("no keys");
        let apps = PusherApps::new([app]).expect("valid options");
        let access = HubConfig::new(auth, HostRules::default()).with_pusher(apps);
        let hub = Hub::builder().config(access).without_pages().build().expect("valid options");
        let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
        let server = server.listen(([127, 0, 0, 1], 0).into()).bind().expect("a free port");
        let running = hub.start(&server).expect("its threads");
        let address = server.addresses()[0];
        thread::spawn(move || {
            let _running = running;
            server.run().expect("the server runs");
        });
        let api = TcpStream::connect(address).expect("the server accepts connections");
        api.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut observer = FuzzClient::new(address);
        let mut model = ClientModel::new(&observer.socket_id, KEY, sign);
        let signin =
            r#"{"event":"pusher:signin","data":{"auth":"$auth","user_data":"{\"id\":\"observer\"}"}}"#;
        observer.send(&model.with_auth(signin));
        for channel in OBSERVED {
            let member = channel.starts_with("presence-").then_some(r#"{"user_id":"observer"}"#);
            let data = json!({ "channel": channel, "auth": "$auth", "channel_data": member });
            observer
                .send(&model.with_auth(&json!({ "event": "pusher:subscribe", "data": data }).to_string()));
        }
        observer.send(r#"{"event":"pusher:ping"}"#);
        while !observer.receive().contains("pusher:pong") {}
        model.is_closed = true;
        Self { address, observer, api: BufReader::new(api), number: 0 }
    }

    /// Sends a signed request; returns its status and the body of the answer.
    fn request(&mut self, path: &str, body: &str) -> (u16, Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let digest = hex(&md5::compute(body).0);
        let query = format!("auth_key={KEY}&auth_timestamp={now}&auth_version=1.0&body_md5={digest}");
        let signature = sign(&format!("POST\n{path}\n{query}"));
        let length = body.len();
        let request = format!(
            "POST {path}?{query}&auth_signature={signature} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.api.get_mut().write_all(request.as_bytes()).expect("the connection stays");
        let (mut status, mut length, mut line) = (0, 0, String::new());
        while self.api.read_line(&mut line).expect("an answer") > 2 {
            let lower = line.to_lowercase();
            if let Some(rest) = lower.strip_prefix("http/1.1 ") {
                status = rest.split(' ').next().and_then(|code| code.parse().ok()).expect("a status");
            } else if let Some(rest) = lower.strip_prefix("content-length: ") {
                length = rest.trim().parse().expect("a length");
            }
            line.clear();
        }
        let mut answer = vec![0; length];
        self.api.read_exact(&mut answer).expect("the body");
        (status, serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// Compares what the observer has received so far.
    fn check_observed(&mut self, expected: &[Forwarded]) {
        self.number += 1;
        let end = format!("end-{}", self.number);
        // Events of one channel have an order; those of cache channels take another way to the observer.
        let body = json!({ "name": end, "data": "", "channels": ["a", "cache-b"] }).to_string();
        assert_eq!(self.request("/apps/1/events", &body).0, 200);
        let (mut received, mut ends) = (Vec::new(), 0);
        while ends < 2 {
            let text = self.observer.receive();
            let fields = Fields::read(&text).expect("an object");
            let event = fields.text("event").expect("an event");
            if event == end {
                ends += 1;
            } else if !event.starts_with("pusher_internal:member_")
                && event != "pusher_internal:subscription_succeeded"
            {
                received.push(Forwarded {
                    channel: fields.text("channel").expect("a channel"),
                    event,
                    data: fields.get("data").expect("one field").map(str::to_owned),
                    user_id: fields.get("user_id").expect("one field").map(str::to_owned),
                });
            }
        }
        received.sort_by(|a, b| a.channel.cmp(&b.channel));
        let mut expected = expected.to_vec();
        expected.sort_by(|a, b| a.channel.cmp(&b.channel));
        assert_eq!(received, expected);
    }

    /// Sends messages on a connection of their own, and compares the answers.
    fn messages(&mut self, texts: &[String]) {
        let mut client = FuzzClient::new(self.address);
        let mut model = ClientModel::new(&client.socket_id, KEY, sign);
        model.client_events = true;
        for text in texts {
            let text = model.with_auth(text);
            client.send(&text);
            let expected = model.answers(&text);
            let received = answers(&mut client, model.is_closed.then_some(expected.len()));
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(event, channel, code)| (event.to_owned(), channel, code))
                .collect();
            assert_eq!(received, expected, "{text}");
            if model.is_closed {
                break;
            }
        }
        match model.is_closed {
            true => assert_eq!(client.close_code(), Some(4009)),
            false => client.end(),
        }
        let is_observed = |event: &Forwarded| OBSERVED.contains(&&*event.channel);
        let expected: Vec<_> = model.forwarded.into_iter().filter(is_observed).collect();
        self.check_observed(&expected);
    }

    fn post(&mut self, path: &str, body: &str, expected: Result<Vec<Published>, u16>) {
        let (status, answer) = self.request(path, body);
        assert_eq!(status, *expected.as_ref().err().unwrap_or(&200), "{answer} for {body}");
        assert!(status != 200 || answer.is_object(), "{answer} for {body}");
        let own = self.observer.socket_id.clone();
        let is_observed = |published: &Published| {
            OBSERVED.contains(&&*published.event.channel) && published.except.as_ref() != Some(&own)
        };
        let expected = expected.unwrap_or_default().into_iter().filter(is_observed);
        let expected: Vec<_> = expected.map(|published| published.event).collect();
        self.check_observed(&expected);
    }
}

/// The answers to a message: a message that no server knows ends them, unless their number is given.
fn answers(client: &mut FuzzClient, count: Option<usize>) -> Vec<(String, String, u64)> {
    const LAST: &str = "the-last-message";
    if count.is_none() {
        client.send(&format!("{{\"event\":\"{LAST}\"}}"));
    }
    let mut received = Vec::new();
    while count != Some(received.len()) {
        let answer: Value = serde_json::from_str(&client.receive()).expect("JSON");
        let (event, data) = (answer["event"].as_str().expect("an event"), &answer["data"]);
        if event == "pusher:error" && data["message"] == format!("unknown event {LAST}") {
            break;
        }
        // Changes of others, which earlier inputs may have made.
        if event.starts_with("pusher_internal:member_") || event == "pusher_internal:watchlist_events" {
            continue;
        }
        let code = data["code"].as_u64().or_else(|| data["status"].as_u64()).unwrap_or_default();
        let channel = answer["channel"].as_str().unwrap_or_default();
        received.push((event.to_owned(), channel.to_owned(), code));
    }
    received
}

/// Fuzzes messages and bodies. The first byte selects the use of the rest: lines that are messages, one body, or decisions
/// from which messages and bodies are built.
///
/// # Panics
///
/// If an answer, a status or the events of another client differ from those of the models.
pub fn pusher(data: &[u8]) {
    static HARNESS: OnceLock<Mutex<Harness>> = OnceLock::new();
    let harness = HARNESS.get_or_init(|| Mutex::new(Harness::start()));
    let mut harness = harness.lock().unwrap_or_else(PoisonError::into_inner);
    let mut input = Input::new(data);
    let mode = input.below(5);
    match mode {
        0 => {
            let text = String::from_utf8_lossy(input.rest()).into_owned();
            let lines: Vec<String> = text.split('\n').take(MESSAGES_MAX).map(str::to_owned).collect();
            harness.messages(&lines);
        }
        1 | 2 => {
            let body = String::from_utf8_lossy(input.rest()).into_owned();
            let body = body.replace("$socket", &harness.observer.socket_id);
            send(&mut harness, mode == 2, &body);
        }
        3 => {
            // Most messages are about one channel, so that they depend on those before them.
            let focus = CHANNELS[input.below(CHANNELS.len())];
            let mut texts = Vec::new();
            while !input.is_empty() && texts.len() < MESSAGES_MAX {
                texts.push(message(&mut input, focus));
            }
            harness.messages(&texts);
        }
        _ => {
            let is_batch = input.flag();
            let body = match is_batch {
                true => {
                    json!({ "batch": (0..input.below(12)).map(|_| event(&mut input)).collect::<Vec<_>>() })
                }
                false => event(&mut input),
            };
            let body = body.to_string().replace("$socket", &harness.observer.socket_id);
            send(&mut harness, is_batch, &body);
        }
    }
}

fn send(harness: &mut Harness, is_batch: bool, body: &str) {
    // Without a body, the parameters stand in the query.
    if body.is_empty() {
        return;
    }
    match is_batch {
        true => harness.post("/apps/1/batch_events", body, api::batch(body)),
        false => harness.post("/apps/1/events", body, api::events(body)),
    }
}

const CHANNELS: [&str; 16] = [
    "a",
    "A_-=@,.;9",
    "cache-b",
    "private-a",
    "private-cache-a",
    "presence-a",
    "presence-cache-b",
    "private-encrypted-a",
    "private-encrypted-cache-a",
    "#server-to-user-observer",
    "#server-to-user-1",
    "",
    "a b",
    "ü",
    "presence-b",
    "..",
];

/// A value of any kind.
fn value(input: &mut Input<'_>) -> Value {
    match input.below(9) {
        0 => Value::Null,
        1 => json!(input.flag()),
        2 => json!(input.below(1_000) as i64 - 500),
        3 => json!(CHANNELS[input.below(CHANNELS.len())]),
        4 => json!("\u{0}\"\\\u{1f600}".repeat(input.below(256))),
        5 => json!([1, null]),
        6 => {
            json!({ "user_id": input.below(9).to_string(), "user_info": { "name": "x".repeat(input.below(1_100)) } })
        }
        7 => json!(
            json!({ "id": input.below(4).to_string(), "watchlist": ["1", ""], "user_info": 1 }).to_string()
        ),
        _ => json!("x".repeat(input.below(300))),
    }
}

/// A message of a client, often valid.
fn message(input: &mut Input<'_>, focus: &'static str) -> String {
    let channel = if input.below(4) > 0 { focus } else { CHANNELS[input.below(CHANNELS.len())] };
    let mut data = json!({ "channel": channel, "auth": "$auth" });
    let event = match input.below(8) {
        0..3 => "pusher:subscribe",
        3 => "pusher:unsubscribe",
        4 => "pusher:signin",
        5 | 6 => "client-a",
        _ => ["pusher:ping", "pusher:pong", "pusher:", "pusher_internal:a", ""][input.below(5)],
    };
    if event == "pusher:signin" {
        let user = ["1", "2", "observer", ""][input.below(4)];
        data = json!({ "auth": "$auth", "user_data": json!({ "id": user, "user_info": 1 }).to_string() });
    } else if channel.starts_with("presence-") && input.below(4) > 0 {
        data["channel_data"] = json!(json!({ "user_id": input.below(9) }).to_string());
    }
    if input.below(6) == 0 {
        let name = ["channel", "auth", "channel_data", "user_data", "recover"][input.below(5)];
        data[name] = value(input);
    }
    let mut message = json!({ "event": event, "data": data });
    if event == "client-a" {
        message["channel"] = json!(channel);
        message["data"] = value(input);
    }
    if input.below(8) == 0 {
        let name = ["event", "channel", "data", "more"][input.below(4)];
        message[name] = value(input);
    }
    message.to_string()
}

/// An event of a server, often valid.
fn event(input: &mut Input<'_>) -> Value {
    let channel = CHANNELS[input.below(CHANNELS.len())];
    let mut event = json!({ "name": "e", "data": "x".repeat(input.below(12) * 1_024), "channel": channel });
    if input.below(3) == 0 {
        let channels: Vec<_> = (0..input.below(110)).map(|_| CHANNELS[input.below(CHANNELS.len())]).collect();
        event = json!({ "name": "e", "data": "1", "channels": channels });
    }
    if input.below(3) == 0 {
        event["socket_id"] = json!(["$socket", "1.2", "1", "18446744073709551616.1"][input.below(4)]);
    }
    if input.below(3) == 0 {
        event["info"] = json!(["user_count", "", "cache", "subscription_count", ", ,"][input.below(5)]);
    }
    if input.below(6) == 0 {
        let name = ["name", "data", "channel", "channels", "socket_id", "info"][input.below(6)];
        event[name] = value(input);
    }
    event
}
