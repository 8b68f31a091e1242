//! Connection churn: each connection sends a few requests, one after the other, and closes; a new connection
//! replaces it.
//!
//! On every other connection the server closes first (`Connection: close`), so that both sides get ports in
//! TIME_WAIT.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::Error;
use crate::connect::{STALL_LIMIT, begin_to_connect};

/// Parameters of the churn.
pub(crate) struct Plan {
    /// Concurrent connections.
    pub(crate) connections: usize,
    pub(crate) time: Duration,
    /// Maximum requests of a connection: connections send 1, 2, 3 and so on up to this number in turns.
    pub(crate) requests: u32,
    /// Bytes of a body.
    pub(crate) bytes: usize,
}

/// Results of the churn.
pub(crate) struct Tally {
    /// Requests answered with 200.
    pub(crate) acknowledged: u64,
    /// Requests answered with another status, by status.
    refused: BTreeMap<u16, u64>,
    opened: u64,
    /// Failed connects, by error.
    failed: BTreeMap<String, u64>,
    /// Connections that ended before their answer, or with an invalid answer.
    broken: u64,
    /// Microseconds of a connect.
    connect: Histogram<u64>,
    /// Microseconds from the start of a connect to the first answer, including the accept.
    first: Histogram<u64>,
    /// Microseconds of the later answers of a connection.
    later: Histogram<u64>,
    /// Connections with a first answer, by second.
    seconds: Vec<u64>,
    /// Retried connects, because the accept queue was full.
    overflows: u64,
}

/// Keeps `connections` connections open for the given time, then waits for the requests in flight.
pub(crate) fn run(address: SocketAddr, plan: &Plan) -> Result<Tally, Error> {
    let mut load = Load::new(address, plan)?;
    let overflows = listen_overflows();
    load.run()?;
    load.tally.overflows = listen_overflows().saturating_sub(overflows);
    Ok(load.tally)
}

struct Load<'a> {
    plan: &'a Plan,
    address: SocketAddr,
    poll: Poll,
    conns: Vec<Option<Conn>>,
    /// A request that keeps the connection open, and a request that closes it.
    requests: [Vec<u8>; 2],
    started: Instant,
    /// Connections begun so far.
    number: u64,
    tally: Tally,
}

struct Conn {
    stream: TcpStream,
    state: State,
    begun: Instant,
    asked: Instant,
    /// Remaining requests after the present one.
    left: u32,
    has_answer: bool,
    server_closes: bool,
    received: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Connecting,
    /// Bytes of the request that are sent.
    Asking(usize),
    Awaiting,
    /// The server closes the connection.
    Closing,
}

/// The next step of a connection.
enum Step {
    Wait,
    /// Closed: the next connection may start.
    Done,
}

impl<'a> Load<'a> {
    fn new(address: SocketAddr, plan: &'a Plan) -> Result<Self, Error> {
        let seconds = plan.time.as_secs() as usize;
        Ok(Self {
            plan,
            address,
            poll: Poll::new()?,
            conns: (0..plan.connections).map(|_| None).collect(),
            requests: [
                request(address, plan.bytes, ""),
                request(address, plan.bytes, "Connection: close\r\n"),
            ],
            started: Instant::now(),
            number: 0,
            tally: Tally::new(seconds)?,
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        // Starts connections gradually: a simultaneous start would be an unrealistic rush.
        let mut waiting: Vec<usize> = (0..self.conns.len()).rev().collect();
        loop {
            let goes_on = self.started.elapsed() < self.plan.time;
            for slot in waiting.split_off(waiting.len().saturating_sub(AT_ONCE)) {
                if goes_on && !self.open(slot) {
                    waiting.insert(0, slot);
                }
            }
            if !goes_on && self.conns.iter().all(Option::is_none) {
                return Ok(());
            }
            if self.started.elapsed() > self.plan.time + STALL_LIMIT {
                self.tally.broken += self.conns.iter().flatten().count() as u64;
                return Ok(());
            }
            let wait = if waiting.is_empty() { WAIT } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                let Token(slot) = event.token();
                if let Step::Done = self.turn(slot, goes_on) {
                    waiting.push(slot);
                }
            }
        }
    }

    /// Starts the next connection. A failure is counted and retried later.
    fn open(&mut self, slot: usize) -> bool {
        let begun = Instant::now();
        let number = self.number;
        let opened = begin_to_connect(self.address).and_then(|mut stream| {
            self.poll.registry().register(&mut stream, Token(slot), Interest::WRITABLE)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                self.number += 1;
                self.conns[slot] = Some(Conn {
                    stream,
                    state: State::Connecting,
                    begun,
                    asked: begun,
                    left: (number % u64::from(self.plan.requests)) as u32,
                    has_answer: false,
                    server_closes: number.is_multiple_of(2),
                    received: Vec::new(),
                });
                true
            }
            Err(error) => {
                self.tally.failed(&error);
                false
            }
        }
    }

    fn turn(&mut self, slot: usize, goes_on: bool) -> Step {
        let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else { return Step::Wait };
        let second = self.started.elapsed().as_secs() as usize;
        let turned =
            conn.turn(Token(slot), self.poll.registry(), &self.requests, goes_on, second, &mut self.tally);
        match turned {
            Ok(Step::Wait) => return Step::Wait,
            Ok(Step::Done) => {}
            Err(error) if conn.state == State::Connecting => self.tally.failed(&error),
            // The topic may or may not contain an unanswered request.
            Err(_) => self.tally.broken += u64::from(conn.state != State::Closing),
        }
        self.conns[slot] = None;
        Step::Done
    }
}

impl Conn {
    fn turn(
        &mut self,
        token: Token,
        registry: &Registry,
        requests: &[Vec<u8>; 2],
        goes_on: bool,
        second: usize,
        tally: &mut Tally,
    ) -> io::Result<Step> {
        loop {
            match self.state {
                State::Connecting => {
                    if let Some(error) = self.stream.take_error()? {
                        return Err(error);
                    }
                    if self.stream.peer_addr().is_err() {
                        return Ok(Step::Wait);
                    }
                    tally.opened += 1;
                    record(&mut tally.connect, self.begun);
                    self.asked = Instant::now();
                    self.state = State::Asking(0);
                }
                State::Asking(sent) => {
                    let request = &requests[usize::from(self.server_closes && self.left == 0)];
                    match self.stream.write(&request[sent..]) {
                        Ok(0) => return Err(ErrorKind::WriteZero.into()),
                        Ok(more) if sent + more < request.len() => self.state = State::Asking(sent + more),
                        Ok(_) => {
                            self.state = State::Awaiting;
                            registry.reregister(&mut self.stream, token, Interest::READABLE)?;
                            return Ok(Step::Wait);
                        }
                        Err(error) => return waits(error),
                    }
                }
                State::Awaiting | State::Closing => {
                    let mut chunk = [0; 1024];
                    match self.stream.read(&mut chunk) {
                        Ok(0) if self.state == State::Closing => return Ok(Step::Done),
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        Ok(_) if self.state == State::Closing => return Err(ErrorKind::InvalidData.into()),
                        Ok(bytes) => self.received.extend_from_slice(&chunk[..bytes]),
                        Err(error) => return waits(error),
                    }
                    let Some(status) = take_answer(&mut self.received)? else { continue };
                    self.answered(status, second, tally);
                    if self.left == 0 || !goes_on {
                        if !(self.server_closes && self.left == 0) {
                            return Ok(Step::Done);
                        }
                        self.state = State::Closing;
                        continue;
                    }
                    self.left -= 1;
                    self.asked = Instant::now();
                    self.state = State::Asking(0);
                    registry.reregister(&mut self.stream, token, Interest::WRITABLE)?;
                }
            }
        }
    }

    fn answered(&mut self, status: u16, second: usize, tally: &mut Tally) {
        if status == 200 {
            tally.acknowledged += 1;
        } else {
            *tally.refused.entry(status).or_default() += 1;
        }
        if std::mem::replace(&mut self.has_answer, true) {
            return record(&mut tally.later, self.asked);
        }
        record(&mut tally.first, self.begun);
        if let Some(second) = tally.seconds.get_mut(second) {
            *second += 1;
        }
    }
}

/// Returns the number of full accept queues since the system started.
fn listen_overflows() -> u64 {
    let books = std::fs::read_to_string("/proc/net/netstat").unwrap_or_default();
    let mut lines = books.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let place = names.split(' ').position(|name| name == "ListenOverflows");
    place.and_then(|place| numbers.split(' ').nth(place)?.parse().ok()).unwrap_or_default()
}

fn waits(error: io::Error) -> io::Result<Step> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Step::Wait),
        _ => Err(error),
    }
}

fn request(address: SocketAddr, bytes: usize, more: &str) -> Vec<u8> {
    let head = format!(
        "POST /events HTTP/1.1\r\nHost: {address}\r\n{more}Content-Type: application/octet-stream\r\n\
         Content-Length: {bytes}\r\n\r\n"
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + bytes, b'x');
    request
}

/// Removes a complete answer and returns its status.
fn take_answer(received: &mut Vec<u8>) -> io::Result<Option<u16>> {
    let Some(head) = received.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&received[..head]).map_err(|_| ErrorKind::InvalidData)?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let (Some(status), Some(length)) = (status, length) else { return Err(ErrorKind::InvalidData.into()) };
    match received.len().checked_sub(head + 4) {
        Some(body) if body == length => {
            received.clear();
            Ok(Some(status))
        }
        Some(body) if body < length => Ok(None),
        // No further request was sent.
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

fn record(histogram: &mut Histogram<u64>, since: Instant) {
    histogram.saturating_record(since.elapsed().as_micros() as u64);
}

impl Tally {
    fn new(seconds: usize) -> Result<Self, Error> {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3);
        Ok(Self {
            acknowledged: 0,
            refused: BTreeMap::new(),
            opened: 0,
            failed: BTreeMap::new(),
            broken: 0,
            connect: histogram()?,
            first: histogram()?,
            later: histogram()?,
            seconds: vec![0; seconds],
            overflows: 0,
        })
    }

    fn failed(&mut self, error: &io::Error) {
        *self.failed.entry(error.to_string()).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed: u64 = self.failed.values().sum();
        writeln!(f, "  connections: {} made, {failed} not made {:?}", self.opened, self.failed)?;
        writeln!(f, "  the accept queue was full {} times", self.overflows)?;
        writeln!(f, "  requests: {} ended without an answer, refused {:?}", self.broken, self.refused)?;
        // The first second has the rush of all connections.
        let seconds = self.seconds.get(1..).unwrap_or_default();
        let (fewest, all) = (seconds.iter().min().copied().unwrap_or_default(), seconds.iter().sum::<u64>());
        let mean = all as f64 / seconds.len().max(1) as f64;
        writeln!(
            f,
            "  connections with their first answer in a second: {mean:.0} on average, {fewest} at least"
        )?;
        for (what, histogram) in [
            ("until a connection is made", &self.connect),
            ("from its begin to its first answer", &self.first),
            ("later answers", &self.later),
        ] {
            let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
            let (p50, p99, p999, longest) = (at(0.5), at(0.99), at(0.999), histogram.max() as f64 / 1e3);
            writeln!(f, "  {what}: p50 {p50:.1}, p99 {p99:.1}, p99.9 {p999:.1}, longest {longest:.1} ms")?;
        }
        Ok(())
    }
}

/// Maximum connections started in one turn.
const AT_ONCE: usize = 64;

const WAIT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_answers_only_are_taken() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\ndate: now\r\n\r\n17\n";
        for end in 0..whole.len() {
            assert_eq!(take_answer(&mut whole[..end].to_vec()).unwrap(), None, "{end}");
        }
        let mut received = whole.to_vec();
        assert_eq!(take_answer(&mut received).unwrap(), Some(200));
        assert!(received.is_empty());
        for wrong in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "what\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\nx",
        ] {
            assert!(take_answer(&mut wrong.as_bytes().to_vec()).is_err(), "{wrong}");
        }
    }
}
