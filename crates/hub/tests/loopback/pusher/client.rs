//! A hub with apps, a client of the protocol, and signed requests.

use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::{Value, json};
use sinews::CloseCode;
use sinews::blocking::WebSocket;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions};
use sinews_hub::{HostRules, Hub, HubConfig, PusherApp, PusherApps, PusherLimits};

use crate::support::{TIMEOUT, TestHub};

pub(crate) const KEY: &str = "278d425bdf160c739803";
pub(crate) const SECRET: &str = "7ad3773142a6692b25b8";
pub(crate) const QUERY: &str = "protocol=7&client=js&version=8.6.0&flash=false";

/// A hub with these apps.
pub(crate) fn policy(apps: impl IntoIterator<Item = PusherApp>) -> HubConfig {
    let auth = Auth::new(&AuthOptions::new()).unwrap();
    let policy = HubConfig::new(auth, HostRules::default());
    policy.with_pusher(PusherApps::new(apps).unwrap())
}

pub(crate) fn hub_of(apps: impl IntoIterator<Item = PusherApp>) -> TestHub {
    TestHub::built(Hub::builder().config(policy(apps)))
}

/// A hub with one app whose id is 3.
pub(crate) fn hub(configure: impl FnOnce(PusherApp) -> PusherApp) -> TestHub {
    hub_of([configure(app())])
}

/// The same, and a client of it.
pub(crate) fn connected(configure: impl FnOnce(PusherApp) -> PusherApp) -> (TestHub, Client) {
    let hub = hub(configure);
    let client = Client::new(&hub);
    (hub, client)
}

pub(crate) fn app() -> PusherApp {
    PusherApp::new("3", KEY, SECRET).with_limits(patient())
}

/// Limits that leave a recovery the time which a busy machine needs.
pub(crate) fn patient() -> PusherLimits {
    let mut limits = PusherLimits::default();
    limits.recovery_time = TIMEOUT;
    limits
}

const API_KEY: &str = "a-key-for-tests-of-at-least-32-bytes";

/// Adds the key of [`api_v1`].
pub(crate) fn with_api_key(policy: HubConfig) -> HubConfig {
    policy.with_api_keys(ApiKeys::new().with_key(API_KEY).unwrap())
}

/// Sends a request to the hub's own HTTP API; returns its answer.
pub(crate) fn api_v1(hub: &TestHub, head: &str, body: &str) -> Value {
    let mut answer = hub.request(head, &format!("Authorization: Bearer {API_KEY}\r\n"), body);
    assert_eq!(answer.status(), 200);
    crate::support::parse(&answer.rest())
}

pub(crate) fn sign(text: &str) -> String {
    sign_with(SECRET, text)
}

pub(crate) fn sign_with(secret: &str, text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A client of the protocol.
pub(crate) struct Client {
    socket: WebSocket<TcpStream>,
    pub(crate) socket_id: String,
}

impl Client {
    /// Connects to the app of the tests.
    pub(crate) fn new(hub: &TestHub) -> Self {
        Self::at(hub, &format!("/app/{KEY}?{QUERY}"))
    }

    pub(crate) fn at(hub: &TestHub, target: &str) -> Self {
        let mut client = Self::open(hub, target);
        let established = client.receive();
        assert_eq!(established["event"], "pusher:connection_established", "{established}");
        client.socket_id = data_of(&established)["socket_id"].as_str().unwrap().to_owned();
        client
    }

    /// Connects without reading the first message.
    pub(crate) fn open(hub: &TestHub, target: &str) -> Self {
        let socket = hub.websocket(target);
        socket.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, socket_id: String::new() }
    }

    pub(crate) fn receive_text(&mut self) -> String {
        let message = self.socket.next().expect("the connection is open").expect("a message");
        String::from_utf8(message.as_bytes().to_vec()).unwrap()
    }

    pub(crate) fn receive(&mut self) -> Value {
        crate::support::parse(&self.receive_text())
    }

    /// Receives a message with this event, and returns it with its channel and its data, parsed if it is JSON in a string.
    pub(crate) fn expect(&mut self, event: &str) -> (String, Value) {
        let message = self.receive();
        assert_eq!(message["event"], event, "{message}");
        (message["channel"].as_str().unwrap_or_default().to_owned(), data_of(&message))
    }

    /// Sends at once: without a flush, a message waits until messages that were received together are read.
    pub(crate) fn send_text(&mut self, text: &str) {
        self.socket.send_text(text).unwrap();
        self.socket.flush().unwrap();
    }

    pub(crate) fn send_binary(&mut self, bytes: &[u8]) {
        self.socket.send_binary(bytes).unwrap();
        self.socket.flush().unwrap();
    }

    pub(crate) fn send(&mut self, event: &str, data: Value) {
        self.send_text(&json!({ "event": event, "data": data }).to_string());
    }

    /// Sends a client event.
    pub(crate) fn trigger(&mut self, event: &str, channel: &str, data: Value) {
        self.send_text(&json!({ "event": event, "channel": channel, "data": data }).to_string());
    }

    /// All messages before this one have been handled.
    pub(crate) fn ping(&mut self) {
        self.send("pusher:ping", json!({}));
        self.expect("pusher:pong");
    }

    pub(crate) fn auth(&self, text: &str) -> String {
        format!("{KEY}:{}", sign(&format!("{}:{text}", self.socket_id)))
    }

    pub(crate) fn request_subscription(&mut self, channel: &str, channel_data: Option<&str>) {
        let text = channel_data.map_or_else(|| channel.to_owned(), |data| format!("{channel}:{data}"));
        let mut data = json!({ "channel": channel, "auth": self.auth(&text) });
        if let Some(channel_data) = channel_data {
            data["channel_data"] = json!(channel_data);
        }
        self.send("pusher:subscribe", data);
    }

    /// Subscribes to a channel with its signature; returns the data of the answer.
    pub(crate) fn subscribe(&mut self, channel: &str) -> Value {
        self.request_subscription(channel, None);
        self.subscribed(channel)
    }

    /// Subscribes to a presence channel as a member.
    pub(crate) fn join(&mut self, channel: &str, user: &str) -> Value {
        let data = json!({ "user_id": user, "user_info": { "name": user.to_uppercase() } });
        self.request_subscription(channel, Some(&data.to_string()));
        self.subscribed(channel)
    }

    pub(crate) fn subscribed(&mut self, channel: &str) -> Value {
        let (answered, data) = self.expect("pusher_internal:subscription_succeeded");
        assert_eq!(answered, channel);
        data
    }

    pub(crate) fn sign_in(&mut self, user_data: &Value) {
        let user_data = user_data.to_string();
        let auth = format!("{KEY}:{}", sign(&format!("{}::user::{user_data}", self.socket_id)));
        self.send("pusher:signin", json!({ "auth": auth, "user_data": user_data }));
    }

    /// Expects `pusher:error` and a Close with the same code.
    pub(crate) fn expect_end(mut self, code: u16) -> String {
        let (_, data) = self.expect("pusher:error");
        assert_eq!(data["code"], code, "{data}");
        self.expect_close(code);
        data["message"].as_str().unwrap().to_owned()
    }

    /// Expects a Close with a code.
    pub(crate) fn expect_close(mut self, code: u16) {
        while let Some(Ok(_)) = self.socket.next() {}
        let closed = self.socket.closed().expect("closed");
        assert_eq!(closed.code().map(|code| code.as_u16()), Some(code), "{closed:?}");
    }

    /// Ends the connection with a closing handshake.
    pub(crate) fn end(mut self) {
        self.socket.close(CloseCode::NORMAL, "").unwrap();
        while let Some(Ok(_)) = self.socket.next() {}
    }
}

/// The data of a message, parsed if it is a string with JSON.
pub(crate) fn data_of(message: &Value) -> Value {
    match &message["data"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        data => data.clone(),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Sends a signed request; returns the status, and the body if it is JSON.
pub(crate) fn api(hub: &TestHub, method: &str, path: &str, query: &str, body: &str) -> (u16, Value) {
    request(hub, method, &signed_target(method, path, query, body), body)
}

/// The target of a request with its signature.
pub(crate) fn signed_target(method: &str, path: &str, query: &str, body: &str) -> String {
    signed_target_of(KEY, method, path, query, body)
}

/// The target of a request with the signature of a key with the secret [`SECRET`].
pub(crate) fn signed_target_of(key: &str, method: &str, path: &str, query: &str, body: &str) -> String {
    let digest = format!("{:x}", md5::compute(body));
    let mut fields = vec![
        ("auth_key".to_owned(), key.to_owned()),
        ("auth_timestamp".to_owned(), now().to_string()),
        ("auth_version".to_owned(), "1.0".to_owned()),
    ];
    if !body.is_empty() {
        fields.push(("body_md5".to_owned(), digest));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap();
        fields.push((name.to_owned(), value.to_owned()));
    }
    fields.sort();
    let query: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let query = query.join("&");
    let signature = sign(&format!("{method}\n{path}\n{query}"));
    format!("{path}?{query}&auth_signature={signature}")
}

/// Sends a request; returns the status, and the body if it is JSON.
pub(crate) fn request(hub: &TestHub, method: &str, target: &str, body: &str) -> (u16, Value) {
    let head = format!("{method} {target}");
    let mut answer = hub.request(&head, "Content-Type: application/json\r\n", body);
    let body = answer.rest();
    (answer.status(), serde_json::from_str(&body).unwrap_or_else(|_| json!(body)))
}

/// The metrics of a server, as text.
pub(crate) fn metrics(hub: &TestHub) -> String {
    request(hub, "GET", "/metrics", "").1.as_str().unwrap().to_owned()
}

/// The value of a metric with its labels.
pub(crate) fn metric(hub: &TestHub, name: &str) -> f64 {
    let text = metrics(hub);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.next().unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
}

/// Triggers an event with a string of data.
pub(crate) fn trigger(hub: &TestHub, channel: &str, name: &str, data: &str) {
    let body = json!({ "name": name, "channel": channel, "data": data });
    assert_eq!(api(hub, "POST", "/apps/3/events", "", &body.to_string()), (200, json!({})));
}
