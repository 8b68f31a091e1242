//! Fan-out: one publisher, many subscribers of one topic.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use sinews_proto::Role;
use sinews_testkit::Frame;

use crate::Error;
use crate::args::FanoutArgs;
use crate::connect::{STALL_LIMIT, connect, connect_from, shake_hands};
use crate::process::Server;
use crate::report;
use crate::round::{Done, Rounds, Work};
use crate::target::{Programs, ServeOptions, named};

/// Runs the measurement of the arguments and prints a table for each number of subscribers and each burst.
pub(crate) fn run(args: &FanoutArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    let targets = programs.startable(&args.targets())?;
    let names: Vec<String> = targets.iter().map(|target| target.name().to_owned()).collect();
    let ours: Vec<usize> = (0..targets.len()).filter(|index| targets[*index].is_sinews()).collect();
    for subscribers in args.subscribers() {
        for burst in args.bursts() {
            let servers = programs.start_all(&targets, &ServeOptions::default())?;
            let servers = named(&servers);
            let mut sends = Vec::new();
            for (name, server) in &servers {
                let counted =
                    Fanout::connect(server, subscribers, burst).and_then(|mut fanout| fanout.sends());
                sends.push(format!("{name} {:.2}", counted.map_err(|error| format!("{name}: {error}"))?));
                server.settled_usage()?;
            }
            let rounds = Rounds::of_servers(args.plan.plan(), &servers, subscribers + 1, |index| {
                Fanout::connect(servers[index].1, subscribers, burst)
            })?;
            let title = format!("{subscribers} subscribers, bursts of {burst}");
            report::table(&title, ["delivery", "deliveries"], &names, &ours, &rounds);
            println!("\nPackets with data per subscriber and burst: {}.", sends.join("; "));
        }
    }
    Ok(())
}

/// A publisher and the subscribers of its topic.
struct Fanout {
    publisher: std::net::TcpStream,
    subscribers: Subscribers,
    request: Vec<u8>,
    burst: u64,
}

impl Fanout {
    /// Connects the publisher and all subscribers, and publishes one burst with verified content.
    fn connect(server: &Server, subscribers: usize, burst: usize) -> Result<Self, Error> {
        let subscribers = Subscribers::connect(server.address, None, subscribers, burst)?;
        let mut publisher = connect(server.address)?;
        // The publisher does not receive its own messages.
        shake_hands(&mut publisher, "/topics/fanout?self=false", subscribers.all.len() as u64, None)?;
        // The server may subscribe in a separate task, which has completed once the server sleeps.
        server.settled_usage()?;
        let request = burst_of(burst, Role::Client);
        let mut fanout = Self { publisher, subscribers, request, burst: burst as u64 };
        fanout.publish::<true>()?;
        Ok(fanout)
    }

    /// Publishes one burst and waits until all subscribers have received it.
    fn publish<const CHECK: bool>(&mut self) -> Result<(), Error> {
        self.publisher.write_all(&self.request)?;
        // Polls without sleeping: a wakeup of this thread would be charged to the server, which sends.
        self.subscribers.receive::<CHECK>(Duration::ZERO, STALL_LIMIT)
    }

    /// Counts the packets with data that a subscriber receives for a burst. This is the number of sends:
    /// `TCP_NODELAY` is set, and a burst is smaller than a segment. The counter covers this network
    /// namespace, so no other program may use it meanwhile.
    fn sends(&mut self) -> Result<f64, Error> {
        let before = packets_with_data()?;
        for _ in 0..SENDS_BURSTS {
            self.publish::<false>()?;
        }
        // The count includes the publisher's packets, one for each burst.
        let packets = packets_with_data()? - before - SENDS_BURSTS;
        Ok(packets as f64 / (SENDS_BURSTS * self.subscribers.all.len() as u64) as f64)
    }
}

impl Work for Fanout {
    fn run(&mut self, window: Duration) -> Result<Done, Error> {
        let start = Instant::now();
        let mut units = 0;
        while start.elapsed() < window {
            self.publish::<false>()?;
            units += self.subscribers.all.len() as u64 * self.burst;
        }
        Ok(Done { units, elapsed: start.elapsed() })
    }
}

/// The subscribers that receive bursts.
pub(crate) struct Subscribers {
    poll: Poll,
    events: Events,
    all: Vec<Subscriber>,
    burst: Vec<u8>,
    buffer: Box<[u8]>,
}

struct Subscriber {
    stream: TcpStream,
    /// Bytes of the burst that have arrived.
    received: usize,
}

impl Subscribers {
    /// Connects the subscribers, from the given address if any, for bursts of `messages` messages.
    pub(crate) fn connect(
        server: SocketAddr,
        source: Option<SocketAddr>,
        count: usize,
        burst: usize,
    ) -> Result<Self, Error> {
        let poll = Poll::new()?;
        let mut all = Vec::with_capacity(count);
        for index in 0..count {
            let mut stream = connect_from(server, source)?;
            shake_hands(&mut stream, "/topics/fanout", index as u64, None)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
            all.push(Subscriber { stream, received: 0 });
        }
        let (events, buffer) = (Events::with_capacity(count), vec![0; RECEIVE_BYTES].into_boxed_slice());
        Ok(Self { poll, events, all, burst: burst_of(burst, Role::Server), buffer })
    }

    /// Waits until every subscriber has a burst; one sleep lasts at most `sleep`. Fails if no data arrives
    /// for the whole limit.
    pub(crate) fn receive<const CHECK: bool>(
        &mut self,
        sleep: Duration,
        limit: Duration,
    ) -> Result<(), Error> {
        let mut waiting = self.all.len();
        let mut progress = Instant::now();
        while waiting > 0 {
            self.poll.poll(&mut self.events, Some(sleep))?;
            if !self.events.is_empty() {
                progress = Instant::now();
            } else if progress.elapsed() > limit {
                return Err(format!("no byte for {limit:?}, {waiting} subscribers wait").into());
            }
            for event in &self.events {
                let subscriber = &mut self.all[event.token().0];
                let (expected, buffer) = (&self.burst[..], &mut self.buffer[..]);
                waiting -= usize::from(subscriber.receive::<CHECK>(expected, buffer)?);
            }
        }
        Ok(())
    }
}

/// Returns the bytes of a burst of `messages` messages.
pub(crate) fn burst_of(messages: usize, from: Role) -> Vec<u8> {
    let payload =
        |number| (0..MESSAGE_BYTES).map(|at| b'a' + ((at + number) % 26) as u8).collect::<Vec<u8>>();
    (0..messages).flat_map(|number| Frame::binary(payload(number)).encode(from)).collect()
}

impl Subscriber {
    /// Receives the available bytes. Returns whether the burst is complete.
    fn receive<const CHECK: bool>(&mut self, burst: &[u8], buffer: &mut [u8]) -> Result<bool, Error> {
        let mut complete = false;
        loop {
            let bytes = match self.stream.read(buffer) {
                Ok(0) => return Err("the target closed a connection".into()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(complete),
                Err(error) => return Err(error.into()),
            };
            let mut chunk = &buffer[..bytes];
            while !chunk.is_empty() {
                if self.received.is_multiple_of(FRAME_BYTES) && chunk[0] == PING {
                    chunk = self.answer_ping(chunk)?;
                    continue;
                }
                let expected = &burst[self.received..][..FRAME_BYTES - self.received % FRAME_BYTES];
                let (part, rest) = chunk.split_at(chunk.len().min(expected.len()));
                if complete || CHECK && part != &expected[..part.len()] {
                    return Err("the delivered bytes differ from the published bytes".into());
                }
                self.received += part.len();
                chunk = rest;
                if self.received == burst.len() {
                    (self.received, complete) = (0, true);
                }
            }
            // A short receive has emptied the socket; more data triggers a new edge.
            if bytes < buffer.len() {
                return Ok(complete);
            }
        }
    }

    /// Answers a ping of the server, which checks idle subscribers from time to time. Returns the bytes
    /// behind the ping.
    fn answer_ping<'a>(&mut self, chunk: &'a [u8]) -> Result<&'a [u8], Error> {
        let length = usize::from(*chunk.get(1).ok_or("half a ping")?);
        let payload = chunk.get(2..2 + length).ok_or("half a ping")?;
        self.stream.write_all(&Frame::pong(payload).encode(Role::Client))?;
        Ok(&chunk[2 + length..])
    }
}

/// Returns `TCPOrigDataSent` of this network namespace: packets with data, without retransmissions.
fn packets_with_data() -> Result<u64, Error> {
    let all = fs::read_to_string("/proc/net/netstat")?;
    counter(&all, "TcpExt:", "TCPOrigDataSent")
        .ok_or_else(|| "the kernel does not count TCPOrigDataSent".into())
}

/// Reads a counter from a file that has a line of names and a line of values for each group.
fn counter(file: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = file.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(found, _)| *found == name)?.1.parse().ok()
}

/// Payload of a published message, and its size with the frame header.
const MESSAGE_BYTES: usize = 64;
const FRAME_BYTES: usize = 2 + MESSAGE_BYTES;

/// The first byte of a ping (RFC 6455 section 5.2).
const PING: u8 = 0x89;

const RECEIVE_BYTES: usize = 64 << 10;

/// Number of bursts for the count of sends.
const SENDS_BURSTS: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber() -> (Subscriber, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Subscriber { stream: TcpStream::from_std(stream), received: 0 }, listener.accept().unwrap().0)
    }

    #[test]
    fn pings_between_messages_are_answered_and_do_not_count() {
        let (mut subscriber, mut server) = subscriber();
        let message = Frame::binary([b'm'; MESSAGE_BYTES]).encode(Role::Server);
        let burst = message.repeat(2);
        let ping = Frame::ping(b"there?").encode(Role::Server);
        server.write_all(&[&ping[..], &message, &ping, &message].concat()).unwrap();
        assert!(subscriber.receive::<true>(&burst, &mut [0; 1024]).unwrap());
        let pong = Frame::pong(b"there?").encode(Role::Client);
        let mut answers = vec![0; 2 * pong.len()];
        server.read_exact(&mut answers).unwrap();
        assert_eq!(answers, pong.repeat(2));
    }

    #[test]
    fn deliveries_that_are_wrong_or_too_many_are_errors() {
        let message = Frame::binary([b'm'; MESSAGE_BYTES]).encode(Role::Server);
        let other = Frame::binary([b'n'; MESSAGE_BYTES]).encode(Role::Server);
        for wire in [other, message.repeat(2)] {
            let (mut subscriber, mut server) = subscriber();
            server.write_all(&wire).unwrap();
            assert!(subscriber.receive::<true>(&message, &mut [0; 1024]).is_err());
        }
    }

    #[test]
    fn counters_are_found_by_name() {
        let file = "TcpExt: A TCPOrigDataSent B\nTcpExt: 1 23 4\nIpExt: A B\nIpExt: 5 6\n";
        assert_eq!(counter(file, "TcpExt:", "TCPOrigDataSent"), Some(23));
        assert_eq!(counter(file, "IpExt:", "B"), Some(6));
        assert_eq!(counter(file, "IpExt:", "TCPOrigDataSent"), None);
    }
}
