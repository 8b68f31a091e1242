//! Memory of an idle event stream in the process, counted by the allocator. One test in a binary of its own, since other
//! tests would be counted too.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use sinews_hub::Hub;
use sinews_server::{Router, Server};
use sinews_testkit::{CountingAllocator, live_bytes};

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

#[test]
fn idle_event_stream_takes_at_most_1_kib_and_idle_websocket_256_bytes() {
    let hub = Hub::builder().history("kept.>", 10).without_pages().build().unwrap();
    let server = hub.configure(Server::new(hub.mount(Router::new()))).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let hub = hub.start(&server).unwrap();
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let running = thread::spawn(|| server.run());

    let mut streams = Vec::with_capacity(4 * MANY);
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
    drop(streams);
    stop.stop_now();
    running.join().unwrap().unwrap();
    hub.shut_down();
}

const MANY: usize = 256;
