//! Latency of the first byte of an answer from the blocking pool, on an idle server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use sinews_server::{Answer, Response, Router, Server};
use sinews_testkit::measure_alone;

use crate::{Serving, backend};

/// Maximum latency of the first byte on an idle server. A loop that sleeps until its next event takes a second.
const BOUND: Duration = Duration::from_millis(50);
/// Rounds of each case.
const ROUNDS: usize = 5;
/// Repetitions of a case that is late.
const ATTEMPTS: usize = 10;
/// Timeout of a read, after which the answer is lost.
const PATIENCE: Duration = Duration::from_secs(60);

const BLOCKING: &str = "GET /blocking HTTP/1.1\r\nhost: a\r\n\r\n";
const PLAIN: &str = "GET /plain HTTP/1.1\r\nhost: a\r\n\r\n";
const UPLOAD: &str = "POST /blocking HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";

/// Requests that are sent together on one connection. All but the last are answered before the last one's first byte.
const CASES: [(&str, &[&str]); 5] = [
    ("a request", &[BLOCKING]),
    ("a request with a body", &[UPLOAD]),
    ("a request after one without blocking work", &[PLAIN, BLOCKING]),
    ("a request after another with blocking work", &[BLOCKING, BLOCKING]),
    ("a request without blocking work after one with it", &[BLOCKING, PLAIN]),
];

/// Reads answers, one after the other.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, received: Vec::new() }
    }

    fn receive(&mut self) {
        let mut chunk = [0; 4096];
        let count = self.stream.read(&mut chunk).unwrap();
        assert!(count > 0, "the server closed the connection");
        self.received.extend_from_slice(&chunk[..count]);
    }

    /// Returns the time until the first byte of the last answer.
    fn ask(&mut self, requests: &[&str]) -> Duration {
        let begun = Instant::now();
        self.stream.write_all(requests.concat().as_bytes()).unwrap();
        for _ in 1..requests.len() {
            self.answer();
        }
        if self.received.is_empty() {
            self.receive();
        }
        let took = begun.elapsed();
        self.answer();
        took
    }

    fn answer(&mut self) {
        const END: &[u8] = b"\r\n\r\nwork";
        loop {
            if let Some(at) = self.received.windows(END.len()).position(|bytes| bytes == END) {
                assert!(self.received.starts_with(b"HTTP/1.1 200 "));
                self.received.drain(..at + END.len());
                return;
            }
            self.receive();
        }
    }
}

/// Returns the times of each case, sorted, on a connection that is new each time or kept.
fn measure(address: SocketAddr, requests: &[&str], is_kept: bool) -> Vec<Duration> {
    let mut client = Client::connect(address);
    client.ask(&[PLAIN]);
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            if !is_kept {
                client = Client::connect(address);
            }
            client.ask(requests)
        })
        .collect();
    times.sort();
    times
}

#[test]
fn first_byte_of_a_blocking_answer_comes_within_50_ms_on_an_idle_server() {
    let _alone = measure_alone();
    let router = Router::new()
        .get("/blocking", |_| Answer::blocking(|| Response::text("work")))
        .post("/blocking", |_| Answer::blocking(|| Response::text("work")))
        .get("/plain", |_| Response::text("work"));
    let server = Server::new(router).threads(1).engine(backend::engine()).listen(([127, 0, 0, 1], 0).into());
    let serving = Serving::new(server.bind().unwrap());
    let address = serving.address;
    // The machine may be late once.
    let is_late = |times: &[Duration]| times[ROUNDS - 2] > BOUND;
    for (name, requests) in CASES {
        for is_kept in [false, true] {
            // A machine that is busy with other work is late now and then; a server that sleeps is always late.
            let mut times = measure(address, requests, is_kept);
            for _ in 0..ATTEMPTS {
                if is_late(&times) {
                    times = measure(address, requests, is_kept);
                }
            }
            assert!(!is_late(&times), "{name} on a connection (kept: {is_kept}) took {times:?}");
        }
    }
}
