//! A million topics with one subscriber each: memory of a topic, and time of a publication.
//!
//! ```text
//! cargo test --release -p sinews-server --test loopback million -- --ignored --nocapture
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sinews_server::{
    Context, Handler, Payload, Prepared, PublishOptions, Response, Router, Server, WebSocketRoute,
};

use crate::backend;

/// Topics of a connection: nearly the maximum.
const EACH: usize = 1_000;
const CONNECTIONS: usize = 1_000;

/// Messages of one request.
const BURST: usize = 100_000;

struct Subscriber {
    number: usize,
    patterns: usize,
}

fn name(number: usize) -> String {
    format!("region.{}.device.{}", number / EACH, number % EACH)
}

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        for topic in 0..EACH {
            let subscribed = if topic < self.patterns {
                cx.subscribe(&format!("region.{}.*.{topic}.never", self.number))
            } else {
                cx.subscribe(&name(self.number * EACH + topic))
            };
            subscribed.expect("a sound name");
        }
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn router(patterns: usize) -> Router {
    let connections = Arc::new(AtomicUsize::new(0));
    let route = WebSocketRoute::new(move |_| {
        Ok(Subscriber { number: connections.fetch_add(1, Ordering::Relaxed), patterns })
    });
    let message = Prepared::text("a value of some sensor");
    let at = AtomicUsize::new(0);
    Router::new().websocket("/", route).post("/publish", move |request| {
        let mut reached = 0;
        for _ in 0..BURST {
            // All of them, in an order that defeats the cache.
            let number = at.fetch_add(7_919 * 1_009, Ordering::Relaxed) % (EACH * CONNECTIONS);
            reached += request
                .topics()
                .publish(&name(number), &message, PublishOptions::new())
                .expect("a sound name");
        }
        Response::text(reached.to_string())
    })
}

fn connect(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("the server reads");
    stream
}

/// Reads up to the end of a head.
fn head(stream: &mut TcpStream) {
    let mut last = [0; 4];
    while &last != b"\r\n\r\n" {
        last.rotate_left(1);
        stream.read_exact(&mut last[3..]).expect("an answer");
    }
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4_096
}

const HANDSHAKE: &str = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

#[test]
#[ignore = "takes a minute and a gigabyte, and tells figures"]
fn a_million_topics() {
    for patterns in [0, 10] {
        measure(patterns);
    }
}

fn measure(patterns: usize) {
    let server = Server::new(router(patterns)).engine(backend::engine()).threads(1);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().expect("a free port");
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    let running = std::thread::spawn(|| server.run());
    let before = resident();
    let begun = Instant::now();
    let mut subscribers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(address, HANDSHAKE)).collect();
    subscribers.iter_mut().for_each(head);
    let topics = EACH * CONNECTIONS;
    println!("{topics} subscriptions, {} of them patterns:", patterns * CONNECTIONS);
    println!("  subscribing: {} ns each", begun.elapsed().as_nanos() as usize / topics);
    println!("  memory: {} bytes each", (resident() - before) / topics);
    let mut best = Duration::MAX;
    let post = "POST /publish HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for _ in 0..10 {
        let begun = Instant::now();
        let mut posting = connect(address, post);
        let mut answer = String::new();
        posting.read_to_string(&mut answer).expect("an answer");
        best = best.min(begun.elapsed());
        let reached: usize =
            answer.rsplit("\r\n").next().and_then(|body| body.parse().ok()).expect("a number");
        assert!(reached + patterns * BURST / 500 >= BURST, "{reached}");
        subscribers.iter_mut().for_each(drain);
    }
    println!(
        "  publishing to one after the other, delivery and sends included: {} ns each",
        best.as_nanos() as usize / BURST
    );
    let begun = Instant::now();
    drop(subscribers);
    stop.stop();
    running.join().expect("no panic").expect("no error");
    println!("  leaving: {} ns each", begun.elapsed().as_nanos() as usize / topics);
}

fn drain(stream: &mut TcpStream) {
    stream.set_nonblocking(true).expect("a socket");
    let mut buffer = [0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the server has closed"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}
