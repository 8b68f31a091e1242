//! Memory of answers that a client of HTTP/2 or HTTP/3 does not take.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::Value;
use sinews_http::h3::RequestTarget;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions};
use sinews_hub::{HostRules, Hub, HubConfig, PusherApp, PusherApps, StreamOptions, key_value_of_json};
use sinews_server::{Certificates, Config, HttpConfig, KeyWrite, Member, Monitor, Router, Server, TlsConfig};
use sinews_testkit::{TestCertificate, exclude_this_thread, idle_live_bytes, live_bytes, measure_alone};

use crate::backend;
use crate::http3_client::Http3Client;

/// Requests of one connection.
const REQUESTS: usize = 100;

/// Bound of the memory of one client, at any time.
const HELD_MAX: isize = 4 << 20;

/// Memory that may remain after a client: spare buffers and tables.
const REMAINS: isize = 512 << 10;

/// Deadline of an event of the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Entries of each list that the test makes long.
const ENTRIES: usize = 100_000;

/// Keys of a topic: its default limit.
const KEYS: usize = 10_000;

/// Bound of the time in which the loop answers another client. The page on performance has what it takes.
const TURN_MAX: Duration = Duration::from_secs(5);

const APP_KEY: &str = "278d425bdf160c739803";
const APP_SECRET: &str = "7ad3773142a6692b25b8";
const API_KEY: &str = "a-key-for-tests-of-at-least-32-bytes";

/// Routes with lists: a target, and the accepted media type.
const LISTS: [(&str, &str, &str); 26] = [
    ("/topics", "/topics?topic=large&last=1000", "application/json"),
    ("/topics/{name}", "/topics/large?wait=0&last=1000", "application/json"),
    ("/topics/{name}/members", "/topics/large/members", "*/*"),
    ("/topics/{name}/keys", "/topics/large/keys", "*/*"),
    ("/topics/{name}/keys", "/topics/large/keys?filter=*.value", "*/*"),
    ("/topics/{name}/keys", "/topics/large/keys?wait=30", "application/json"),
    ("/topics/{name}/keys", "/topics/large/keys?wait=30&filter=*.>", "application/json"),
    ("/topics/{name}/keys", "/topics/large/keys?filter=*.>", "text/event-stream"),
    ("/topics/{name}/keys", "/topics/many/keys", "*/*"),
    ("/topics/{name}/keys/{key}", "/topics/large/keys/1.value", "*/*"),
    ("/streams", "/streams", "*/*"),
    ("/streams/{name}", "/streams/large?max=10000", "*/*"),
    ("/streams/{name}/records", "/streams/large/records", "*/*"),
    ("/streams/{name}/records", "/streams/large/records?follow=true", "application/x-ndjson"),
    ("/apps/{id}/channels", "/apps/3/channels", "*/*"),
    ("/apps/{id}/channels/{name}/users", "/apps/3/channels/presence-all/users", "*/*"),
    ("/api/v1/topics", "/api/v1/topics", "*/*"),
    ("/api/v1/topics/{topic}/members", "/api/v1/topics/large/members", "*/*"),
    ("/api/v1/topics/{topic}/history", "/api/v1/topics/large/history", "*/*"),
    ("/api/v1/topics/{topic}/keys", "/api/v1/topics/large/keys", "*/*"),
    ("/api/v1/topics/{topic}/keys", "/api/v1/topics/many/keys", "*/*"),
    ("/api/v1/topics/{topic}/keys/{key}", "/api/v1/topics/large/keys/1.value", "*/*"),
    ("/api/v1/connections", "/api/v1/connections", "*/*"),
    ("/api/v1/nodes", "/api/v1/nodes", "*/*"),
    ("/api/v1/streams", "/api/v1/streams", "*/*"),
    ("/api/v1/streams/{stream}/groups", "/api/v1/streams/large/groups", "*/*"),
];

/// Routes for GET without a list that clients make long: WebSockets, health, single entries, metrics and documents.
const SHORT: [&str; 24] = [
    "/sinews.js",
    "/sinews.d.ts",
    "/healthz",
    "/readyz",
    "/up",
    "/up/{id}",
    "/ready",
    "/metrics",
    "/echo",
    "/ws",
    "/dashboard/feed",
    "/app",
    "/app/{key}",
    "/app/{key}/{*rest}",
    "/streams/{name}/info",
    "/apps/{id}/channels/{name}",
    "/apps/{id}/connections",
    "/api/v1/openapi.json",
    "/api/v1/info",
    "/api/v1/activity",
    "/api/v1/topics/{topic}",
    "/api/v1/connections/{connection}",
    "/api/v1/topics/{topic}/presence",
    "/api/v1/streams/{stream}",
];

/// Checks that each route for GET is known here, so that no list is added without a case.
fn check_routes<'a>(routes: impl Iterator<Item = (&'a str, Vec<&'a str>)>) {
    let is_known = |path: &str| SHORT.contains(&path) || LISTS.iter().any(|(route, ..)| *route == path);
    let unknown = routes.filter(|(path, methods)| methods.contains(&"GET") && !is_known(path));
    let unknown: Vec<&str> = unknown.map(|(path, _)| path).collect();
    assert!(unknown.is_empty(), "routes without a case: {unknown:?}");
}

/// Returns the target with the signature of an app, if the route needs one.
fn signed(target: &str) -> String {
    if !target.starts_with("/apps/") {
        return target.to_owned();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let query = format!("auth_key={APP_KEY}&auth_timestamp={now}&auth_version=1.0");
    let key = hmac::Key::new(hmac::HMAC_SHA256, APP_SECRET.as_bytes());
    let signature = hmac::sign(&key, format!("GET\n{target}\n{query}").as_bytes());
    let signature: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{target}?{query}&auth_signature={signature}")
}

/// Calls a function while another client asks for the health of the server. Returns its longest wait: a turn of the loop, and that of
/// the machine.
fn longest_turn(address: SocketAddr, work: impl FnOnce()) -> Duration {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            exclude_this_thread();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let (mut longest, mut buffer) = (Duration::ZERO, [0; 1_024]);
            while !is_over.load(Ordering::SeqCst) {
                let sent = Instant::now();
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
                assert!(stream.read(&mut buffer).unwrap() > 0);
                longest = longest.max(sent.elapsed());
            }
            longest
        });
        work();
        is_over.store(true, Ordering::SeqCst);
        other.join().unwrap()
    })
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;

/// A GET request.
fn request(stream: u32, path: &str, accept: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04];
    // An integer with a prefix of seven bits (RFC 7541 section 5.1), below 16,511.
    match path.len().checked_sub(127) {
        None => block.push(path.len() as u8),
        Some(rest @ ..128) => block.extend_from_slice(&[127, rest as u8]),
        Some(rest) => block.extend_from_slice(&[127, rest as u8 | 128, (rest >> 7) as u8]),
    }
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x09localhost");
    let bearer = format!("Bearer {API_KEY}");
    block.extend_from_slice(&[0, 13]);
    block.extend_from_slice(b"authorization");
    block.push(bearer.len() as u8);
    block.extend_from_slice(bearer.as_bytes());
    block.extend_from_slice(b"\x00\x06accept");
    block.push(accept.len() as u8);
    block.extend_from_slice(accept.as_bytes());
    frame(1, 5, stream, &block)
}

/// A client of HTTP/2 whose streams have windows of this size.
struct Http2Client(TcpStream);

impl Http2Client {
    fn connect(address: SocketAddr, window: u32) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        stream.write_all(&frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat())).unwrap();
        stream.write_all(&frame(4, 1, 0, &[])).unwrap();
        Self(stream)
    }

    fn read(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        self.0.read_exact(&mut payload).unwrap();
        (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload)
    }

    /// Waits until the server has handled all frames so far.
    fn sync(&mut self) {
        self.0.write_all(&frame(PING, 0, 0, &[1; 8])).unwrap();
        loop {
            match self.read() {
                (PING, 1, ..) => return,
                // The first field is the status 200.
                (HEADERS, _, _, block) => assert_eq!(block.first(), Some(&0x88)),
                (kind, ..) => assert_ne!(kind, RST_STREAM),
            }
        }
    }
}

/// Asks for a list that the client does not read.
fn ask_unread(client: &mut Http3Client, path: &str, accept: &str) {
    let target = RequestTarget::new("GET", "https", "localhost", path);
    let bearer = format!("Bearer {API_KEY}");
    let fields = [("accept", accept), ("authorization", &*bearer)];
    let stream = client.quic.ask_with(&target, fields, b"", true);
    client.quic.unread.insert(stream);
}

/// Sends a request of HTTP/1.1, and returns the body of its answer.
fn ask(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = body.len();
    let headers = format!(
        "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\n\
         Authorization: Bearer {API_KEY}"
    );
    write!(stream, "{head} {headers}\r\nContent-Length: {len}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    if !head.contains("chunked") {
        return body.to_owned();
    }
    let (mut joined, mut rest) = (String::new(), body);
    while let Some((len, chunks)) = rest.split_once("\r\n") {
        let (chunk, next) = chunks.split_at(usize::from_str_radix(len, 16).unwrap());
        joined.push_str(chunk);
        rest = &next[2..];
    }
    joined
}

/// Waits until the memory of a client that has left is free.
fn await_memory(base: isize, monitor: &Monitor) {
    let deadline = Instant::now() + PATIENCE;
    while live_bytes() - base > REMAINS {
        let metrics = monitor.metrics();
        assert!(Instant::now() < deadline, "{} bytes, {metrics:?}", live_bytes() - base);
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Writes keys of 12 MiB, records of 2 MiB, and the entries of long lists.
fn fill(address: SocketAddr, publisher: &sinews_server::Publisher) {
    let value = key_value_of_json(&format!("\"{}\"", "x".repeat(60_000))).unwrap();
    for key in 0..200 {
        publisher.write_key("large", &KeyWrite::set(format!("{key}.value"), value.to_vec())).unwrap();
    }
    let lines = format!("\"{}\"\n", "y".repeat(20_000)).repeat(10);
    for _ in 0..10 {
        ask(address, "POST /streams/large", &lines);
    }
    for key in 0..KEYS {
        publisher.write_key("many", &KeyWrite::set(format!("{key:06}"), value[..1].to_vec())).unwrap();
    }
    for channel in 0..ENTRIES {
        publisher.adjust_presence(&format!("$pusher.3.c.channel-{channel:06}-with-a-long-name"), 1, &[]);
    }
    for topic in ["$pusher.3.c.presence-all", "large"] {
        for first in (0..ENTRIES).step_by(1_000) {
            let member = |id: usize| (Member::new(format!("user-{id:06}")).with_info("{}"), 1);
            let members: Vec<_> = (first..first + 1_000).map(member).collect();
            assert_eq!(publisher.adjust_presence(topic, 1_000, &members), 0);
        }
    }
}

/// Checks the answers that a client takes.
fn check_content(clear: SocketAddr) {
    let page: Value = serde_json::from_str(&ask(clear, "GET /topics/large/keys", "")).unwrap();
    let keys = page["keys"].as_array().unwrap();
    assert_eq!((keys.len(), page["more"].as_bool()), (200, Some(false)));
    assert!(keys.iter().all(|key| key["data"].as_str().unwrap().len() == 60_000));
    let empty: Value = serde_json::from_str(&ask(clear, "GET /topics/none/keys", "")).unwrap();
    assert_eq!(empty["keys"], Value::Array(Vec::new()));
    let channels: Value =
        serde_json::from_str(&ask(clear, &format!("GET {}", signed("/apps/3/channels")), "")).unwrap();
    let listed = channels["channels"].as_object().unwrap();
    assert_eq!(listed.len(), ENTRIES + 1);
    assert!(listed.contains_key("channel-000000-with-a-long-name") && listed.contains_key("presence-all"));
    let users = ask(clear, &format!("GET {}", signed("/apps/3/channels/presence-all/users")), "");
    let users: Value = serde_json::from_str(&users).unwrap();
    let ids = users["users"].as_array().unwrap().iter().map(|user| user["id"].as_str().unwrap());
    assert!(ids.eq((0..ENTRIES).map(|id| format!("user-{id:06}"))));
    let lines = ask(clear, "GET /streams/large?max=10000", "");
    let offsets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64());
    assert_eq!(offsets.collect::<Vec<_>>(), (0..100).map(Some).collect::<Vec<_>>());
    let lines = ask(clear, "GET /streams/large?from=7&max=3", "");
    let offsets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64());
    assert_eq!(offsets.collect::<Vec<_>>(), [Some(7), Some(8), Some(9)]);
}

#[test]
fn client_that_takes_no_answer_holds_at_most_4_mib() {
    let _alone = measure_alone();
    exclude_this_thread();
    let directory = tempfile::tempdir().unwrap();
    let made = TestCertificate::new();
    let (chain, key) = (made.pem(), made.key_pem());
    let certificates = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    // No timeout ends an answer.
    let long = Duration::from_secs(3_600);
    let websocket =
        Config::default().with_ping_interval(None).with_idle_timeout(None).with_write_timeout(long);
    let hub = Hub::builder().streams(StreamOptions::in_directory(directory.path())).websocket(websocket);
    let apps = PusherApps::new([PusherApp::new("3", APP_KEY, APP_SECRET)]).unwrap();
    let access = HubConfig::new(Auth::new(&AuthOptions::new()).unwrap(), HostRules::default());
    let access = access.with_pusher(apps).with_api_keys(ApiKeys::new().with_key(API_KEY).unwrap());
    let hub = hub.config(access).history("large", 1_000).without_pages().build().unwrap();
    let router = hub.mount(Router::new());
    check_routes(router.routes());
    let server = hub.configure(Server::new(router)).threads(1).engine(backend::engine());
    let http = HttpConfig::default().with_http2_clear_text(true).with_http3(true);
    let server = server.http(http.with_write_timeout(long).with_http2_ping_interval(None));
    let server = server.listen(([127, 0, 0, 1], 0).into());
    let server = server.listen_tls(([127, 0, 0, 1], 0).into(), TlsConfig::new(certificates).unwrap());
    let server = server.bind().unwrap();
    let hub = hub.start(&server).unwrap();
    let (publisher, stop, monitor) = (server.publisher(), server.stop_handle(), server.monitor());
    let (clear, encrypted) = (server.addresses()[0], server.addresses()[1]);
    let running = thread::spawn(|| server.run());
    fill(clear, &publisher);
    check_content(clear);
    for (_, target, accept) in LISTS {
        let path = &*signed(target);
        for window in [0, 1] {
            let base = idle_live_bytes();
            let mut client = Http2Client::connect(clear, window);
            let requests = (0..REQUESTS).map(|number| request(2 * number as u32 + 1, path, accept));
            let requests = requests.collect::<Vec<_>>().concat();
            let turn = longest_turn(clear, || {
                client.0.write_all(&requests).unwrap();
                client.sync();
            });
            let held = idle_live_bytes() - base;
            println!("{target} ({accept}), HTTP/2, windows of {window}: {held} bytes, {turn:.1?}");
            assert!(held <= HELD_MAX, "{held} bytes for {target} over HTTP/2");
            assert!(turn <= TURN_MAX, "{turn:?} for {target} over HTTP/2");
            // Another client is served meanwhile.
            ask(clear, "GET /topics/none/keys", "");
            drop(client);
            await_memory(base, &monitor);
        }
        let base = idle_live_bytes();
        let mut client = Http3Client::connect_narrow(encrypted, made.roots(), 1000);
        (0..REQUESTS - 10).for_each(|_| ask_unread(&mut client, path, accept));
        let started = Instant::now();
        // The requests are acknowledged, and executed in the turns that receive them.
        let turn =
            longest_turn(clear, || client.run("time", |_| started.elapsed() > Duration::from_millis(200)));
        let held = idle_live_bytes() - base;
        println!("{target} ({accept}), HTTP/3: {held} bytes, {turn:.1?}");
        assert!(held <= HELD_MAX, "{held} bytes for {target} over HTTP/3");
        assert!(turn <= TURN_MAX, "{turn:?} for {target} over HTTP/3");
        client.quic.quic.close(Instant::now(), 0x100_u32.into(), "".into());
        client.flush();
        await_memory(base, &monitor);
    }
    stop.stop_now();
    running.join().unwrap().unwrap();
    hub.shut_down();
}
