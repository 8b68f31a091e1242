//! A server with one worker and its client in lockstep: `sinews-instructions PATH BACKEND ROUNDS`.
//!
//! The client sends fixed bytes, and waits for all answers before the next round, so that every run of the worker takes
//! the same path. `cargo xtask instructions` counts the worker's instructions with callgrind.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::hmac;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions};
use sinews_hub::{HostRules, Hub, HubConfig, PusherApp, PusherApps};
use sinews_server::{
    Config, Context, EngineConfig, Handler, Payload, Prepared, PublishOptions, Response, Router, Server,
    WebSocketRoute,
};
use sinews_testkit::{Frame, wire};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Subscribers of the fan-out.
const SUBSCRIBERS: usize = 50;
/// Publications in one write.
const PUBLICATIONS: usize = 4;
/// Pipelined requests, and messages of an echo burst.
const IN_FLIGHT: usize = 16;
/// Bytes of a small message, which needs a short frame head.
const SMALL: usize = 64;
/// Bytes of a message of an echo burst, which needs a frame head with a length of 16 bits.
const MEDIUM: usize = 512;
const TOPIC: &str = "news";
/// Topics that a pattern matches, with one publication each.
const MATCHED: usize = 16;
const PATTERN: &str = "news.*";
/// A key of the HTTP API.
const API_KEY: &str = "a-key-for-counts-of-at-least-32-bytes";
/// The app of the Pusher protocol.
const APP_KEY: &str = "key";
const APP_SECRET: &str = "secret";
const EVENT: &str = "news-event";
/// The end of the first message of the JSON protocol.
const WELCOME_END: &[u8] = b"\"op\":\"welcome\"}";

struct Echo;

impl Handler for Echo {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // Fails only after a Close.
        let _ = cx.send_payload(payload);
    }
}

struct Publisher;

impl Handler for Publisher {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let message = Prepared::new(payload.kind(), payload.detach());
        // The client waits for the deliveries.
        let _ = cx.publish(TOPIC, &message, PublishOptions::new());
    }
}

/// Subscribes to this topic or pattern.
struct Subscriber(&'static str);

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        // Fails for invalid names; this name is valid.
        let _ = cx.subscribe(self.0);
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

/// Publishes to the topics of the pattern in rotation.
#[derive(Default)]
struct RotatingPublisher {
    published: usize,
}

impl Handler for RotatingPublisher {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let message = Prepared::new(payload.kind(), payload.detach());
        let topic = format!("{TOPIC}.{}", self.published % MATCHED);
        self.published += 1;
        // The client waits for the deliveries.
        let _ = cx.publish(&topic, &message, PublishOptions::new());
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, backend, rounds] = &arguments[..] else {
        return Err(
            "usage: sinews-instructions echo|burst|fan-out|wildcard|json|single|http|publish|event BACKEND ROUNDS"
                .into(),
        );
    };
    let router = Router::new()
        .get("/hello", |_| Response::text("Hello, world!"))
        .websocket("/echo", WebSocketRoute::new(|_| Ok(Echo)).with_config(config()))
        .websocket("/publish", WebSocketRoute::new(|_| Ok(Publisher)).with_config(config()))
        .websocket("/subscribe", WebSocketRoute::new(|_| Ok(Subscriber(TOPIC))).with_config(config()))
        .websocket(
            "/publish-matched",
            WebSocketRoute::new(|_| Ok(RotatingPublisher::default())).with_config(config()),
        )
        .websocket(
            "/subscribe-pattern",
            WebSocketRoute::new(|_| Ok(Subscriber(PATTERN))).with_config(config()),
        );
    // Its routes and hooks would count in the other paths.
    let hub = match &**path {
        "json" | "publish" | "event" => Some(hub(policy()?.with_pusher(apps()?))?),
        "single" => Some(hub(policy()?)?),
        _ => None,
    };
    let server = match &hub {
        Some(hub) => hub.configure(Server::new(hub.mount(router))),
        None => Server::new(router),
    };
    let server = server
        .listen("127.0.0.1:0".parse()?)
        .engine(EngineConfig::default().with_backend(backend.parse()?))
        .threads(1)
        .bind()?;
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let serving = thread::spawn(move || server.run());
    let done = run(path, address, rounds.parse()?);
    stop.stop_now();
    serving.join().map_err(|_| "the server has panicked")??;
    done
}

/// The default, but no ping is due before the end: the client answers none, and a busy machine takes minutes.
fn config() -> Config {
    let hour = Duration::from_secs(3_600);
    Config::default().with_ping_interval(Some(hour)).with_idle_timeout(Some(2 * hour))
}

fn hub(policy: HubConfig) -> Result<Hub> {
    Ok(Hub::builder().websocket(config()).config(policy).build()?)
}

/// A key of the HTTP API.
fn policy() -> Result<HubConfig> {
    let policy = HubConfig::new(Auth::new(&AuthOptions::new())?, HostRules::default());
    Ok(policy.with_api_keys(ApiKeys::new().with_key(API_KEY)?))
}

/// An app of the Pusher protocol.
fn apps() -> Result<PusherApps> {
    Ok(PusherApps::new([PusherApp::new("1", APP_KEY, APP_SECRET)])?)
}

fn run(path: &str, address: SocketAddr, rounds: usize) -> Result<()> {
    match path {
        "echo" => echo(address, SMALL, 1, rounds),
        "burst" => echo(address, MEDIUM, IN_FLIGHT, rounds),
        "fan-out" => fan_out(address, "/subscribe", "/publish", PUBLICATIONS, rounds),
        "wildcard" => fan_out(address, "/subscribe-pattern", "/publish-matched", MATCHED, rounds),
        "json" => json_fan_out(address, SUBSCRIBERS, PUBLICATIONS, rounds),
        // One publication to one subscriber, without an app.
        "single" => json_fan_out(address, 1, 1, rounds),
        "http" => http(address, rounds),
        "publish" => publish(address, rounds),
        "event" => publish_event(address, rounds),
        _ => Err(format!("no such path: {path}").into()),
    }
}

/// Messages of `len` bytes, `count` in one write.
fn echo(address: SocketAddr, len: usize, count: usize, rounds: usize) -> Result<()> {
    let mut socket = open(address, "/echo")?;
    let messages = frame(len).repeat(count);
    let mut answers = vec![0; frame_len(len) * count];
    for _ in 0..rounds {
        socket.write_all(&messages)?;
        socket.read_exact(&mut answers)?;
    }
    Ok(())
}

fn fan_out(
    address: SocketAddr,
    subscribe: &str,
    publish: &str,
    publications: usize,
    rounds: usize,
) -> Result<()> {
    let subscribers = (0..SUBSCRIBERS).map(|_| open(address, subscribe)).collect::<Result<Vec<_>>>()?;
    let publisher = open(address, publish)?;
    let messages = frame(SMALL).repeat(publications);
    deliver(publisher, subscribers, &messages, frame_len(SMALL) * publications, rounds)
}

/// Publications and deliveries in the JSON protocol.
fn json_fan_out(address: SocketAddr, subscribers: usize, publications: usize, rounds: usize) -> Result<()> {
    let subscribe = text_frame(&format!(r#"{{"op":"subscribe","topic":"{TOPIC}","id":1}}"#));
    let open = || {
        let mut socket = open(address, "/ws")?;
        read_until(&mut socket, WELCOME_END)?;
        Ok(socket)
    };
    let mut subscribers = (0..subscribers).map(|_| open()).collect::<Result<Vec<_>>>()?;
    for subscriber in &mut subscribers {
        subscriber.write_all(&subscribe)?;
        read_until(subscriber, b"}")?;
    }
    let data = "a".repeat(SMALL);
    let publication = text_frame(&format!(r#"{{"op":"publish","topic":"{TOPIC}","data":"{data}"}}"#));
    let delivery = format!(r#"{{"op":"message","topic":"{TOPIC}","data":"{data}"}}"#);
    let messages = publication.repeat(publications);
    deliver(open()?, subscribers, &messages, frame_len(delivery.len()) * publications, rounds)
}

/// Sends messages, and waits until each subscriber has received `len` bytes.
fn deliver(
    mut publisher: TcpStream,
    mut subscribers: Vec<TcpStream>,
    messages: &[u8],
    len: usize,
    rounds: usize,
) -> Result<()> {
    let mut deliveries = vec![0; len];
    for _ in 0..rounds {
        publisher.write_all(messages)?;
        for subscriber in &mut subscribers {
            subscriber.read_exact(&mut deliveries)?;
        }
    }
    Ok(())
}

fn http(address: SocketAddr, rounds: usize) -> Result<()> {
    let mut socket = connect(address)?;
    let request =
        format!("GET /hello HTTP/1.1\r\nHost: {address}\r\nUser-Agent: instructions\r\nAccept: */*\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    // The answer ends with its body; all answers have the same length.
    let mut answer = read_until(&mut socket, b"world!")?;
    let requests = request.repeat(IN_FLIGHT);
    answer.resize(answer.len() * IN_FLIGHT, 0);
    for _ in 0..rounds {
        socket.write_all(requests.as_bytes())?;
        socket.read_exact(&mut answer)?;
    }
    Ok(())
}

/// Publications by the HTTP API, with one delivery each.
fn publish(address: SocketAddr, rounds: usize) -> Result<()> {
    let mut subscriber = open(address, "/ws")?;
    read_until(&mut subscriber, WELCOME_END)?;
    subscriber.write_all(&text_frame(&format!(r#"{{"op":"subscribe","topic":"{TOPIC}","id":1}}"#)))?;
    read_until(&mut subscriber, b"}")?;
    let body = format!(r#"{{"topic":"{TOPIC}","data":{}}}"#, payload());
    let request = post("/api/v1/publish", &format!("authorization: Bearer {API_KEY}\r\n"), &body);
    deliver_each(address, subscriber, &request, [b"}\n", b"}}"], rounds)
}

/// Events by the HTTP API of the Pusher protocol, with one delivery each.
fn publish_event(address: SocketAddr, rounds: usize) -> Result<()> {
    let mut subscriber = open(address, &format!("/app/{APP_KEY}?protocol=7&client=instructions"))?;
    read_until(&mut subscriber, b"}\"}")?;
    let subscribe = format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"{TOPIC}"}}}}"#);
    subscriber.write_all(&text_frame(&subscribe))?;
    read_until(&mut subscriber, b"\"{}\"}")?;
    let data = payload().replace('"', "\\\"");
    let body = format!(r#"{{"name":"{EVENT}","channel":"{TOPIC}","data":"{data}"}}"#);
    let request = post(&signed("/apps/1/events", &body)?, "", &body);
    deliver_each(address, subscriber, &request, [b"{}", b"\"}"], rounds)
}

/// A JSON payload of some tens of bytes.
fn payload() -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(SMALL))
}

/// A target with the signature of a request, valid for ten minutes.
fn signed(path: &str, body: &str) -> Result<String> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let md5 = hex(&md5::compute(body).0);
    let query = format!("auth_key={APP_KEY}&auth_timestamp={time}&auth_version=1.0&body_md5={md5}");
    let key = hmac::Key::new(hmac::HMAC_SHA256, APP_SECRET.as_bytes());
    let signature = hex(hmac::sign(&key, format!("POST\n{path}\n{query}").as_bytes()).as_ref());
    Ok(format!("{path}?{query}&auth_signature={signature}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn post(target: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {target} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\
         Host: localhost\r\nConnection: keep-alive\r\n\r\n{body}",
        body.len()
    )
}

/// Sends requests, and waits for the answer and the delivery of each, which end with these bytes.
fn deliver_each(
    address: SocketAddr,
    mut subscriber: TcpStream,
    request: &str,
    [answer_end, delivery_end]: [&[u8]; 2],
    rounds: usize,
) -> Result<()> {
    let mut socket = connect(address)?;
    socket.write_all(request.as_bytes())?;
    let mut answer = read_until(&mut socket, b"\r\n\r\n")?;
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        return Err(String::from_utf8_lossy(&answer).into());
    }
    // All answers, and all deliveries, have the same length.
    answer.extend(read_until(&mut socket, answer_end)?);
    let mut delivery = read_until(&mut subscriber, delivery_end)?;
    for _ in 0..rounds {
        socket.write_all(request.as_bytes())?;
        socket.read_exact(&mut answer)?;
        subscriber.read_exact(&mut delivery)?;
    }
    Ok(())
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Opens a WebSocket with the key of RFC 6455 section 1.3.
fn open(address: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut socket = connect(address)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(request.as_bytes())?;
    let head = read_until(&mut socket, b"\r\n\r\n")?;
    if head.starts_with(b"HTTP/1.1 101 ") {
        Ok(socket)
    } else {
        Err(format!("{path}: {}", String::from_utf8_lossy(&head)).into())
    }
}

fn read_until(socket: &mut TcpStream, end: &[u8]) -> Result<Vec<u8>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(end) {
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

/// Length of the server's frame, which is not masked, for a payload of this length.
const fn frame_len(payload: usize) -> usize {
    payload + if payload < 126 { 2 } else { 4 }
}

/// A text message of this length as a client sends it.
fn frame(len: usize) -> Vec<u8> {
    text_frame(&"a".repeat(len))
}

/// A text message as a client sends it.
fn text_frame(text: &str) -> Vec<u8> {
    wire(&[Frame::text(text).key([0x37, 0xfa, 0x21, 0x3d])])
}
