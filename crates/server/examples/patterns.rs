//! Measures the cost of a publication beside patterns that are expensive to match: `cargo run --release -p
//! sinews-server --example patterns`.
//!
//! 32 connections subscribe to 1,024 patterns each, of `*` and `a` in every combination. Each publication has a new name,
//! which matches none of them.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process, thread};

use sinews_server::{
    Context, Handler, Payload, Prepared, PublishOptions, Response, Router, Server, WebSocketRoute,
};

const CONNECTIONS: usize = 32;
const PATTERNS: usize = 1_024;
const PUBLICATIONS: usize = 2_000;

/// Number of tokens in front of the last one.
struct Subscriber(usize, Arc<AtomicUsize>);

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        for _ in 0..PATTERNS {
            let number = self.1.fetch_add(1, Ordering::Relaxed);
            let tokens = (0..self.0).map(|bit| if number >> bit & 1 == 1 { "*." } else { "a." });
            // Patterns with too many steps are rejected.
            let _ = cx.subscribe(&format!("{}z{}", tokens.collect::<String>(), number >> self.0));
        }
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("connections, tokens: server's CPU a publication");
    for (connections, tokens) in [(0, 9), (CONNECTIONS, 9), (0, 16), (CONNECTIONS, 16)] {
        let cpu = measure(connections, tokens - 1)?;
        println!("{connections:11}, {tokens:6}: {:.1} us", cpu as f64 / 1e3 / PUBLICATIONS as f64);
    }
    Ok(())
}

fn measure(connections: usize, tokens: usize) -> Result<u64, Box<dyn Error>> {
    let numbers = Arc::new(AtomicUsize::new(0));
    let subscribers = WebSocketRoute::new(move |_| Ok(Subscriber(tokens, numbers.clone())));
    let router = Router::new().websocket("/", subscribers).post("/{topic}", |request| {
        let topic = request.param("topic").unwrap_or_default();
        let reached = request.topics().publish(&topic, &Prepared::text("hello"), PublishOptions::new());
        Response::text(reached.map_or_else(|error| error.to_string(), |reached| reached.to_string()))
    });
    let server = Server::new(router).threads(1).listen("127.0.0.1:0".parse()?).bind()?;
    let address = server.addresses()[0];
    let stop = server.stop_handle();
    let running = thread::spawn(move || server.run());
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..connections {
        let mut client = connect(address)?;
        ask(&mut client, upgrade, "HTTP/1.1 101 ")?;
        open.push(client);
    }
    let mut publisher = connect(address)?;
    let before = server_cpu()?;
    for number in 0..PUBLICATIONS {
        let name = format!("{}n{number}", "a.".repeat(tokens));
        let request = format!("POST /{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        ask(&mut publisher, &request, "HTTP/1.1 200 ")?;
        // The body.
        publisher.fill_buf()?;
        let rest = publisher.buffer().len();
        publisher.consume(rest);
    }
    let used = server_cpu()? - before;
    stop.stop_now();
    drop(open);
    running.join().map_err(|_| "the server panicked")??;
    Ok(used)
}

fn connect(address: SocketAddr) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// Sends a request and reads the head of the response.
fn ask(client: &mut BufReader<TcpStream>, request: &str, status: &str) -> Result<(), Box<dyn Error>> {
    client.get_mut().write_all(request.as_bytes())?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if client.read_line(&mut head)? == 0 {
            return Err("the server has closed".into());
        }
    }
    if head.starts_with(status) { Ok(()) } else { Err(head.into()) }
}

/// Returns the processor time of all threads but this one, in nanoseconds.
fn server_cpu() -> Result<u64, Box<dyn Error>> {
    let main = process::id().to_string();
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        if *task.file_name() != *main {
            let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            sum += stat.split(' ').next().and_then(|ran| ran.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}
