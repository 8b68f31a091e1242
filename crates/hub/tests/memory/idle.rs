//! Memory of idle streaming responses, members and connections of the Pusher protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ring::hmac;
use serde_json::json;
use sinews_hub::auth::{Auth, AuthOptions};
use sinews_hub::{HostRules, Hub, HubConfig, PusherApp, PusherApps, key_value_of_json};
use sinews_server::{Config, KeyWrite, Router, Server};
use sinews_testkit::{exclude_this_thread, idle_live_bytes, measure_alone};

/// Opens a streaming response without heap memory on the client side, and reads up to a text of at most 16 bytes.
fn open(address: SocketAddr, topic: &str, until: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // A small write waits for no delayed ACK of an earlier one: 40 ms.
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for part in ["GET ", topic, " HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"] {
        stream.write_all(part.as_bytes()).unwrap();
    }
    let (mut last, len) = ([0; 16], until.len());
    while &last[..len] != until.as_bytes() {
        last[..len].rotate_left(1);
        stream.read_exact(&mut last[len - 1..len]).unwrap();
    }
    stream
}

/// Opens a WebSocket likewise.
fn open_websocket(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // A small write waits for no delayed ACK of an earlier one: 40 ms.
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let rest = " HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(["GET ", path, rest].concat().as_bytes()).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    stream
}

/// Reads up to a text, and returns the text before it.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
    String::from_utf8_lossy(&read[..read.len() - end.len()]).into_owned()
}

/// Sends a message in a frame with a mask of zeros.
fn send(stream: &mut TcpStream, message: &str) {
    let len = u16::try_from(message.len()).unwrap();
    let [high, low] = len.to_be_bytes();
    let head: &[u8] = if len < 126 { &[0x81, 0x80 | low] } else { &[0x81, 0x80 | 126, high, low] };
    stream.write_all(&[head, &[0; 4], message.as_bytes()].concat()).unwrap();
}

/// Opens a WebSocket at `/ws` that follows the members of a room of five, and is one of them.
fn open_member(address: SocketAddr, number: usize) -> TcpStream {
    let mut stream = open_websocket(address, "/ws");
    let room = format!("room.{}", number / 5);
    let join = format!("\"member\":{{\"id\":\"member-{number}\",\"info\":{{\"name\":\"{number}\"}}}}");
    send(&mut stream, &format!("{{\"op\":\"subscribe\",\"topic\":\"{room}\",\"members\":true}}"));
    send(&mut stream, &format!("{{\"op\":\"join\",\"id\":\"present\",\"topic\":\"{room}\",{join}}}"));
    read_until(&mut stream, "\"present\"");
    stream
}

/// Opens a connection of the Pusher protocol with a private channel of its own, and a presence channel of five.
fn open_pusher(address: SocketAddr, number: usize) -> TcpStream {
    let mut stream = open_websocket(address, "/app/key?protocol=7");
    read_until(&mut stream, "socket_id\\\":\\\"");
    let socket_id = read_until(&mut stream, "\\\"");
    let secret = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
    let mut subscribe = |channel: String, member: &str| {
        let signed = [&*socket_id, &channel, member].into_iter().filter(|part| !part.is_empty());
        let signature = hmac::sign(&secret, signed.collect::<Vec<_>>().join(":").as_bytes());
        let signature: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let data = json!({ "channel": channel, "auth": format!("key:{signature}"), "channel_data": member });
        send(&mut stream, &json!({ "event": "pusher:subscribe", "data": data }).to_string());
        read_until(&mut stream, "subscription_succeeded");
    };
    subscribe(format!("private-member-{number}"), "");
    let member =
        json!({ "user_id": format!("member-{number}"), "user_info": { "name": number.to_string() } });
    subscribe(format!("presence-room.{}", number / 5), &member.to_string());
    stream
}

#[test]
fn idle_connections_take_bounded_memory() {
    let _alone = measure_alone();
    let apps = PusherApps::new([PusherApp::new("1", "key", "secret")]).unwrap();
    let auth = Auth::new(&AuthOptions::new()).unwrap();
    let policy = HubConfig::new(auth, HostRules::default()).with_pusher(apps);
    // The clients answer no pings.
    let websocket = Config::default().with_ping_interval(None).with_idle_timeout(None);
    let hub = Hub::builder().config(policy).websocket(websocket).history("kept.>", 10);
    let hub = hub.build().unwrap();
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let hub = hub.start(&server).unwrap();
    for key in 0..10 {
        let write = KeyWrite::set(key.to_string(), key_value_of_json("{\"price\":100.25}").unwrap());
        server.publisher().write_key("prices", &write).unwrap();
    }
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let running = thread::spawn(|| server.run());

    let mut streams = Vec::with_capacity(8 * MANY);
    exclude_this_thread();
    let (ack, snapshot) = ("\"op\":\"ack\"", "\"op\":\"keys\"");
    for (name, topic, until, max) in [
        ("of one topic", "/topics/kept.a", ack, 1_024),
        ("of a pattern", "/topics/kept.*", ack, 1_024),
        ("of keys", "/topics/prices/keys", snapshot, 1_024),
        ("of keys that match a pattern", "/topics/prices/keys?filter=*", snapshot, 1_024),
        // Each further topic with a history has a position, a presence and a subscription of its own.
        ("of two topics", "/topics?topic=kept.a&topic=kept.b", ack, 1_024 + 320),
    ] {
        // Tables double, so the count goes from one power of two to another.
        let before = streams.len();
        streams.extend((0..MANY - before % MANY).map(|_| open(address, topic, until)));
        let few = idle_live_bytes();
        streams.extend((0..MANY).map(|_| open(address, topic, until)));
        let each = (idle_live_bytes() - few) / MANY as isize;
        println!("{each} bytes for an idle streaming response {name}");
        assert!((100..=max).contains(&each), "{each} bytes for a streaming response {name}");
        streams.clear();
    }
    type Open = fn(SocketAddr, usize) -> TcpStream;
    let kinds: [(&str, Open, isize); 3] = [
        ("WebSocket", |address, _| open_websocket(address, "/echo"), 256),
        ("member of a room of five", open_member, 1_060),
        // Of these, up to 36 bytes are the table that counts topics, when it doubles: 9 bytes for each slot.
        ("connection of the Pusher protocol with two channels", open_pusher, 780 + 36),
    ];
    for (name, open, max) in kinds {
        let before = streams.len();
        streams.extend((before..before + MANY).map(|number| open(address, number)));
        let few = settled_live_bytes();
        let before = streams.len();
        streams.extend((before..before + MANY).map(|number| open(address, number)));
        let each = (settled_live_bytes() - few) / MANY as isize;
        println!("{each} bytes for an idle {name}");
        // The tables of connections have capacity already. The allocator adds to the size of each object.
        assert!((100..=max).contains(&each), "{each} bytes for a {name}");
    }
    drop(streams);
    stop.stop_now();
    running.join().unwrap().unwrap();
    hub.shut_down();
}

const MANY: usize = 256;

/// The live bytes once they have remained for longer than the interval at which the server frees unused buffers.
fn settled_live_bytes() -> isize {
    let begin = Instant::now();
    let (mut live, mut since) = (idle_live_bytes(), begin);
    while since.elapsed() < Duration::from_secs(3) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the live bytes change all the time");
        thread::park_timeout(Duration::from_millis(100));
        let now = idle_live_bytes();
        if now != live {
            (live, since) = (now, Instant::now());
        }
    }
    live
}
