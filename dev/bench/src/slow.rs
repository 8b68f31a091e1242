//! Effect of slow subscribers on other subscribers: the latency of a delivery beside subscribers that do not
//! read.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply};
use socket2::SockRef;

use crate::Error;
use crate::args::SlowArgs;
use crate::connect::{STALL_LIMIT, connect, shake_hands};
use crate::process::Server;
use crate::report::{median, significant};
use crate::target::{Programs, ServeOptions, Target};

/// The subscribers beside the measured subscribers, in equal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Nobody,
    /// Subscribers that read their messages.
    Readers,
    /// Subscribers that read nothing, with the server's overflow policy (`--websocket-overflow`).
    Stuck(&'static str),
}

impl Others {
    const ALL: [Self; 5] = [
        Self::Nobody,
        Self::Readers,
        Self::Stuck("drop-newest"),
        Self::Stuck("drop-oldest"),
        Self::Stuck("close"),
    ];

    fn name(self) -> String {
        match self {
            Self::Nobody => "nobody".to_owned(),
            Self::Readers => "as many that read".to_owned(),
            Self::Stuck(overflow) => format!("as many that do not read, {overflow}"),
        }
    }
}

/// Runs the measurement of the arguments and prints a table for each server.
pub(crate) fn run(args: &SlowArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    for target in programs.startable(&args.targets())? {
        println!(
            "\n**{}: {} subscribers, {} messages of {MESSAGE_BYTES} bytes a second**, rounds of {} s: {}\n\n\
             | beside them | median, µs | p99, µs | p99 ÷ beside as many that read | longest, µs | dropped | closed |\n\
             |---|---|---|---|---|---|---|",
            target.name(),
            args.subscribers,
            args.rate,
            args.seconds,
            args.rounds,
        );
        let mut all = vec![Vec::new(); Others::ALL.len()];
        for _ in 0..args.rounds {
            for (others, rounds) in Others::ALL.into_iter().zip(&mut all) {
                rounds.push(measure(args, &programs, target, others)?);
            }
        }
        let readers = all[1].clone();
        for (others, rounds) in Others::ALL.into_iter().zip(&all) {
            let of = |what: fn(&Seen) -> f64| median(rounds.iter().map(what));
            let ratio = median(rounds.iter().zip(&readers).map(|(this, other)| this.p99 / other.p99));
            println!(
                "| {} | {} | {} | {ratio:.2} | {} | {} | {} |",
                others.name(),
                significant(of(|seen| seen.median)),
                significant(of(|seen| seen.p99)),
                significant(of(|seen| seen.longest)),
                of(|seen| seen.dropped),
                of(|seen| seen.closed),
            );
        }
    }
    Ok(())
}

/// Measurement of one round; times in microseconds.
#[derive(Clone, Copy, Debug)]
struct Seen {
    median: f64,
    p99: f64,
    longest: f64,
    dropped: f64,
    closed: f64,
}

fn measure(args: &SlowArgs, programs: &Programs, target: Target, others: Others) -> Result<Seen, Error> {
    let overflow = if let Others::Stuck(overflow) = others { overflow } else { "close" };
    let server = programs.start(target, &ServeOptions { overflow, ..ServeOptions::default() })?;
    let looked_at = usize::from(args.subscribers);
    let readers = if others == Others::Readers { 2 * looked_at } else { looked_at };
    let stuck = if matches!(others, Others::Stuck(_)) { looked_at } else { 0 };
    let mut audience = Audience::connect(&server, readers, looked_at)?;
    let stuck: Vec<_> = (0..stuck).map(|number| idle(&server, number)).collect::<Result<_, _>>()?;
    server.settled_usage()?;
    let mut times = audience.run(args)?;
    let metrics = metrics(&server)?;
    drop(stuck);
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let counted = |name: &str| metrics.lines().filter_map(|line| value(line, name)).sum();
    Ok(Seen {
        median: at(0.5),
        p99: at(0.99),
        longest: at(1.),
        dropped: counted("sinews_messages_dropped_total{"),
        closed: counted("sinews_websockets_closed_total{reason=\"overflow"),
    })
}

/// Opens a subscriber that reads nothing.
fn idle(server: &Server, number: usize) -> Result<std::net::TcpStream, Error> {
    let mut stream = connect(server.address)?;
    // The server cannot limit the bytes in the kernel's buffers.
    SockRef::from(&stream).set_recv_buffer_size(STUCK_RECEIVE_BUFFER)?;
    shake_hands(&mut stream, "/topics/slow", number as u64, None)?;
    Ok(stream)
}

/// The publisher and the reading subscribers.
struct Audience {
    poll: Poll,
    events: Events,
    publisher: std::net::TcpStream,
    all: Vec<(TcpStream, Reader)>,
    /// The first `looked_at` subscribers are measured.
    looked_at: usize,
    buffer: Box<[u8]>,
}

impl Audience {
    fn connect(server: &Server, count: usize, looked_at: usize) -> Result<Self, Error> {
        let poll = Poll::new()?;
        let mut all = Vec::with_capacity(count);
        for index in 0..count {
            let mut stream = connect(server.address)?;
            shake_hands(&mut stream, "/topics/slow", index as u64, None)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
            all.push((stream, Reader::new(Role::Server, None)));
        }
        let mut publisher = connect(server.address)?;
        shake_hands(&mut publisher, "/topics/slow?self=false", count as u64, None)?;
        let (events, buffer) = (Events::with_capacity(count), vec![0; RECEIVE_BYTES].into_boxed_slice());
        Ok(Self { poll, events, publisher, all, looked_at, buffer })
    }

    /// Publishes at the rate and returns the latencies of all deliveries in nanoseconds. A latency starts at
    /// the scheduled time, so that a delayed publisher does not hide it.
    fn run(&mut self, args: &SlowArgs) -> Result<Vec<u64>, Error> {
        let pause = Duration::from_secs(1) / args.rate;
        let messages = args.rate * args.seconds;
        let expected = messages as usize * self.all.len();
        let (mut times, mut received) = (Vec::with_capacity(expected), 0);
        let (begun, mut progress) = (Instant::now(), Instant::now());
        let mut published = 0;
        while received < expected {
            if published < messages && begun.elapsed() >= pause * published {
                let stamp = (pause * published).as_nanos() as u64;
                let mut payload = [0; MESSAGE_BYTES];
                payload[..8].copy_from_slice(&stamp.to_be_bytes());
                self.publisher.write_all(&Frame::binary(payload).encode(Role::Client))?;
                published += 1;
            }
            self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
            if !self.events.is_empty() {
                progress = Instant::now();
            } else if progress.elapsed() > STALL_LIMIT {
                return Err(format!("no byte for {STALL_LIMIT:?}, {received} of {expected} have come").into());
            }
            for event in &self.events {
                let index = event.token().0;
                let (stream, reader) = &mut self.all[index];
                for stamp in receive(stream, reader, &mut self.buffer)? {
                    received += 1;
                    if index < self.looked_at {
                        times.push((begun.elapsed().as_nanos() as u64).saturating_sub(stamp));
                    }
                }
            }
        }
        Ok(times)
    }
}

/// Returns the timestamps of the received messages.
fn receive(stream: &mut TcpStream, reader: &mut Reader, buffer: &mut [u8]) -> Result<Vec<u64>, Error> {
    let mut stamps = Vec::new();
    loop {
        let bytes = match stream.read(buffer) {
            Ok(0) => return Err("the target closed a connection that reads".into()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(stamps),
            Err(error) => return Err(error.into()),
        };
        for reply in reader.read(&buffer[..bytes])? {
            match reply {
                Reply::Message(_, payload) => {
                    let stamp = payload.first_chunk().ok_or("a message without its stamp")?;
                    stamps.push(u64::from_be_bytes(*stamp));
                }
                Reply::Ping(payload) => stream.write_all(&Frame::pong(payload).encode(Role::Client))?,
                other => return Err(format!("{other:?} to a connection that reads").into()),
            }
        }
        // A short receive has emptied the socket; more data triggers a new edge.
        if bytes < buffer.len() {
            return Ok(stamps);
        }
    }
}

fn metrics(server: &Server) -> Result<String, Error> {
    let mut stream = connect(server.address)?;
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the value of the line of metrics that starts with `name`.
fn value(line: &str, name: &str) -> Option<f64> {
    line.strip_prefix(name)?.rsplit(' ').next()?.parse().ok()
}

const MESSAGE_BYTES: usize = 1024;

const RECEIVE_BYTES: usize = 64 << 10;

const STUCK_RECEIVE_BUFFER: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_lines_are_parsed() {
        let line = "sinews_messages_dropped_total{reason=\"newest\"} 7";
        assert_eq!(value(line, "sinews_messages_dropped_total{"), Some(7.));
        assert_eq!(value("# HELP sinews_messages_dropped", "sinews_messages_dropped_total{"), None);
    }
}
