//! Memory of an idle event stream and of an idle member in the process, counted by the allocator. One test in a binary of its own, since other
//! tests would be counted too.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use sinews_hub::Hub;
use sinews_server::{Router, Server};
use sinews_testkit::{CountingAllocator, exclude_this_thread, live_bytes};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Opens an event stream without heap memory on the client side.
fn open(address: SocketAddr, topic: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for part in ["GET ", topic, " HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        stream.write_all(part.as_bytes()).unwrap();
    }
    // The end of the first event.
    let mut last = [0; 4];
    while &last != b"}\n\n\r" {
        last.rotate_left(1);
        stream.read_exact(&mut last[3..]).unwrap();
    }
    stream
}

/// Opens a WebSocket likewise.
fn open_websocket(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
        .write_all(
            b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )
        .unwrap();
    let mut last = [0; 4];
    while &last != b"\r\n\r\n" {
        last.rotate_left(1);
        stream.read_exact(&mut last[3..]).unwrap();
    }
    stream
}

/// Opens a WebSocket at `/ws` that follows the members of a room of five, and is one of them.
fn open_member(address: SocketAddr, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
        .write_all(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )
        .unwrap();
    let room = format!("room.{}", number / 5);
    let join = format!("\"member\":{{\"id\":\"member-{number}\",\"info\":{{\"name\":\"{number}\"}}}}");
    for message in [
        format!("{{\"op\":\"subscribe\",\"topic\":\"{room}\",\"members\":true}}"),
        format!("{{\"op\":\"join\",\"id\":\"present\",\"topic\":\"{room}\",{join}}}"),
    ] {
        // A frame with a mask of zeros.
        assert!(message.len() < 126);
        let head = [0x81, 0x80 | message.len() as u8, 0, 0, 0, 0];
        stream.write_all(&[&head, message.as_bytes()].concat()).unwrap();
    }
    let mut read = Vec::new();
    while !read.ends_with(b"\"present\"") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
    stream
}

#[test]
fn idle_event_stream_takes_1_kib_idle_websocket_256_bytes_idle_member_1500() {
    let hub = Hub::builder().history("kept.>", 10).without_pages().build().unwrap();
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let hub = hub.start(&server).unwrap();
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let running = thread::spawn(|| server.run());

    let mut streams = Vec::with_capacity(4 * MANY);
    exclude_this_thread();
    for (name, topic, max) in [
        ("of one topic", "/topics/kept.a", 1_024),
        ("of a pattern", "/topics/kept.*", 1_024),
        // Each further topic with a history has a position, a presence and a subscription of its own.
        ("of two topics", "/topics?topic=kept.a&topic=kept.b", 1_024 + 320),
    ] {
        // Tables double, so the count goes from one power of two to another.
        let before = streams.len();
        streams.extend((0..MANY - before % MANY).map(|_| open(address, topic)));
        let few = live_bytes();
        streams.extend((0..MANY).map(|_| open(address, topic)));
        let each = (live_bytes() - few) / MANY as isize;
        println!("{each} bytes for an idle event stream {name}");
        assert!((100..=max).contains(&each), "{each} bytes for an event stream {name}");
        streams.clear();
    }
    streams.extend((0..MANY).map(|_| open_websocket(address)));
    let few = live_bytes();
    streams.extend((0..MANY).map(|_| open_websocket(address)));
    let each = (live_bytes() - few) / MANY as isize;
    println!("{each} bytes for an idle WebSocket");
    // The tables of connections have capacity already.
    assert!((100..=256).contains(&each), "{each} bytes for an idle WebSocket");
    let before = streams.len();
    streams.extend((before..before + MANY).map(|number| open_member(address, number)));
    let few = live_bytes();
    let before = streams.len();
    streams.extend((before..before + MANY).map(|number| open_member(address, number)));
    let each = (live_bytes() - few) / MANY as isize;
    println!("{each} bytes for an idle member of a room of five");
    // The allocator adds to the size of each object.
    assert!((100..=1_500).contains(&each), "{each} bytes for a member");
    drop(streams);
    stop.stop_now();
    running.join().unwrap().unwrap();
    hub.shut_down();
}

const MANY: usize = 256;
