//! Scenarios of one client or a few clients. Each checks every received byte.

use std::fmt;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use sinews_proto::{Kind, Role};
use sinews_testkit::{Frame, Reply, Rng};
use socket2::SockRef;

use crate::Fault;
use crate::client::{self, Client, Leave, PATIENCE, data};
use crate::http::Http;

/// State that scenarios share.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    /// Maximum connections of one storm.
    pub(crate) storm: usize,
    pub(crate) tally: Tally,
    /// Settings of clients, if the server has TLS.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    /// Makes each topic name unique.
    topics: AtomicU64,
}

/// Amount of completed work.
#[derive(Default)]
pub(crate) struct Tally {
    connections: AtomicU64,
    /// Correctly echoed messages.
    messages: AtomicU64,
    /// Their bytes.
    bytes: AtomicU64,
}

impl Tally {
    pub(crate) fn connected(&self, connections: usize) {
        self.connections.fetch_add(connections as u64, Ordering::Relaxed);
    }

    pub(crate) fn right(&self, message: &[u8]) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(message.len() as u64, Ordering::Relaxed);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, messages, bytes } = self;
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (connections, messages, mib) = (load(connections), load(messages), load(bytes) >> 20);
        write!(f, "{connections} connections; {messages} messages, {mib} MiB came back right")
    }
}

/// Name, weight, and function of a scenario.
pub(crate) type Scenario = (&'static str, usize, fn(&World, &mut Rng) -> Result<(), Fault>);

/// The weights give each scenario about the same time.
pub(crate) const SCENARIOS: [Scenario; 11] = [
    ("bursts", 30, bursts),
    ("large", 6, large),
    ("fragments", 20, fragments),
    ("cut off", 60, cut_off),
    ("slow reader", 3, slow_reader),
    ("slow subscriber", 2, slow_subscriber),
    ("http", 30, http),
    ("topics", 12, topics),
    ("http2", 10, crate::http2::run),
    ("deflate", 15, deflate),
    ("storm", 1, crate::storm::run),
];

/// Scenarios of a server with TLS and HTTP/3.
pub(crate) const HTTP3_SCENARIOS: [Scenario; 1] = [("http3", 1, crate::http3::run)];

impl World {
    pub(crate) fn new(address: SocketAddr, storm: usize) -> Self {
        Self { address, storm, tally: Tally::default(), tls: None, topics: AtomicU64::new(0) }
    }

    /// Opens a WebSocket to the echo path.
    pub(crate) fn open(&self, rng: &mut Rng) -> Result<Client, Fault> {
        self.tally.connected(1);
        Client::open(self.address, "/echo", rng)
    }

    fn topic(&self) -> String {
        format!("/topics/soak-{}", self.topics.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends messages in one write, and expects them back in order.
    pub(crate) fn echo(&self, client: &mut Client, rng: &mut Rng, sizes: &[usize]) -> Result<(), Fault> {
        let messages: Vec<_> = sizes.iter().map(|size| message(rng, *size)).collect();
        let mut bytes = Vec::new();
        for (kind, payload) in &messages {
            bytes.extend(client.frame(*kind, payload, rng).encode(Role::Client));
        }
        client.send_bytes(&bytes)?;
        messages.into_iter().try_for_each(|(kind, payload)| self.expect(client, kind, payload))
    }

    fn expect(&self, client: &mut Client, kind: Kind, payload: Vec<u8>) -> Result<(), Fault> {
        let expected = Reply::Message(kind, payload);
        client.expect(&expected)?;
        if let Reply::Message(_, payload) = &expected {
            self.tally.right(payload);
        }
        Ok(())
    }
}

/// Creates a message that cannot be confused with another: noise, or noise encoded as text of one to four
/// bytes a character.
pub(crate) fn message(rng: &mut Rng, size: usize) -> (Kind, Vec<u8>) {
    let noise = rng.bytes(size);
    if rng.below(2) == 0 {
        return (Kind::Binary, noise);
    }
    let mut text = String::with_capacity(size + 4);
    for byte in &noise {
        text.push(if *byte < 240 { char::from(b' ' + byte % 95) } else { WIDE[usize::from(byte % 3)] });
        if text.len() >= size {
            break;
        }
    }
    (Kind::Text, text.into_bytes())
}

/// Returns a size below `end`, occasionally a much larger one.
fn below_mostly(end: usize, rng: &mut Rng) -> usize {
    let end = if rng.below(6) == 0 { LARGE_MIN } else { end };
    rng.below(end)
}

const WIDE: [char; 3] = ['é', '線', '🦀'];

/// Sends bursts of small messages, several times.
fn bursts(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let mut client = world.open(rng)?;
    for _ in 0..=rng.below(8) {
        let sizes: Vec<usize> = (0..=rng.below(200)).map(|_| rng.below(300)).collect();
        world.echo(&mut client, rng, &sizes)?;
    }
    client.leave(Leave::any(rng))
}

/// Sends a few large messages, one after the other.
fn large(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let mut client = world.open(rng)?;
    for _ in 0..=rng.below(3) {
        let size = LARGE_MIN + rng.below(LARGE_MAX - LARGE_MIN);
        world.echo(&mut client, rng, &[size])?;
    }
    client.leave(Leave::any(rng))
}

const LARGE_MIN: usize = 256 << 10;
const LARGE_MAX: usize = 4 << 20;

/// Sends messages in fragments with pings between them, in chunks that ignore the frame boundaries.
fn fragments(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let mut client = world.open(rng)?;
    for _ in 0..=rng.below(4) {
        let size = below_mostly(2000, rng);
        let (kind, payload) = message(rng, size);
        let (bytes, pings) = fragmented(kind, &payload, rng);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(1 + rng.below(rest.len().min(20_000)));
            client.send_bytes(piece)?;
            rest = later;
        }
        for ping in pings {
            client.expect(&Reply::Pong(ping))?;
        }
        world.expect(&mut client, kind, payload)?;
    }
    client.leave(Leave::any(rng))
}

/// Returns the bytes, and the payloads of the pings among them: few enough for the server's ping rate limit.
fn fragmented(kind: Kind, payload: &[u8], rng: &mut Rng) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut bytes, mut pings) = (Vec::new(), Vec::new());
    let count = 1 + rng.below(12);
    let mut cuts: Vec<usize> = (0..count).map(|_| rng.below(payload.len() + 1)).collect();
    cuts.sort_unstable();
    cuts.push(payload.len());
    let mut start = 0;
    for (index, end) in cuts.iter().enumerate() {
        let piece = &payload[start..*end];
        let frame = if index == 0 { data(kind, piece) } else { Frame::continuation(piece) };
        bytes.extend(frame.fin(index == count).key(rng.key()).encode(Role::Client));
        if index < count && rng.below(4) == 0 {
            let size = rng.below(126);
            let ping = rng.bytes(size);
            bytes.extend(Frame::ping(&ping).key(rng.key()).encode(Role::Client));
            pings.push(ping);
        }
        start = *end;
    }
    (bytes, pings)
}

/// Disconnects in the middle of the handshake, a frame or a fragmented message, or before any bytes.
fn cut_off(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    if rng.below(2) == 0 {
        world.tally.connected(1);
        let mut stream = client::connect(world.address)?;
        let (_, request) = client::handshake("/echo", false, rng)?;
        stream.write_all(&request[..rng.below(request.len() + 1)])?;
        return leave_raw(&stream, rng);
    }
    let mut client = world.open(rng)?;
    let size = below_mostly(500, rng);
    let (kind, payload) = message(rng, size);
    let (bytes, _) = fragmented(kind, &payload, rng);
    client.send_bytes(&bytes[..rng.below(bytes.len())])?;
    leave_raw(client.stream(), rng)
}

fn leave_raw(stream: &TcpStream, rng: &mut Rng) -> Result<(), Fault> {
    match rng.below(3) {
        0 => client::reset(stream),
        // Then dropped, with unread bytes from the server.
        1 => Ok(stream.shutdown(Shutdown::Write)?),
        _ => Ok(()),
    }
}

/// Sends without reading until the server stops taking bytes, then reads all echoes, or disconnects.
fn slow_reader(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    world.tally.connected(1);
    let stream = client::connect_narrow(world.address)?;
    let mut client = Client::upgrade(stream, "/echo", false, rng)?;
    let size = 1 + rng.below(16_000);
    let messages: Vec<Vec<u8>> = (0..SLOW_BYTES / (size + 8)).map(|_| rng.bytes(size)).collect();
    let mut bytes = Vec::new();
    for message in &messages {
        bytes.extend(Frame::binary(message).key(rng.key()).encode(Role::Client));
    }
    let sent = client.send_until_stalled(&bytes)?;
    if sent == bytes.len() {
        return Err(format!("the server took {sent} bytes although the client read no answers").into());
    }
    if rng.below(2) == 0 {
        return leave_raw(client.stream(), rng);
    }
    SockRef::from(client.stream()).set_recv_buffer_size(1 << 20)?;
    let mut writer = client.stream().try_clone()?;
    thread::scope(|scope| {
        // Reads and writes in parallel: the server pauses its reads until its output drains.
        let rest = scope.spawn(move || writer.write_all(&bytes[sent..]));
        let read =
            messages.into_iter().try_for_each(|message| world.expect(&mut client, Kind::Binary, message));
        if read.is_err() {
            // Unblocks the writer if the server waits for this client.
            let _ = client.stream().shutdown(Shutdown::Both);
        }
        let written = rest.join().map_err(|_| "the writer panicked")?;
        read?;
        Ok::<_, Fault>(written?)
    })?;
    client.leave(Leave::any(rng))
}

/// A client that never reads again. Its output stalls, and the server drops it after its write timeout of 30
/// s. It is not a regular scenario, since that takes long.
pub(crate) fn deserter(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    world.tally.connected(1);
    let mut client = Client::upgrade(client::connect_narrow(world.address)?, "/echo", false, rng)?;
    let message = Frame::binary(rng.bytes(16_000)).key(rng.key()).encode(Role::Client);
    let bytes = message.repeat(SLOW_BYTES / message.len());
    let (mut sent, deadline) = (0, Instant::now() + 2 * PATIENCE);
    while sent < bytes.len() && Instant::now() < deadline {
        match client.send_until_stalled(&bytes[sent..]) {
            Ok(count) => sent += count,
            // Dropped, as expected.
            Err(_) => return Ok(()),
        }
    }
    Err(format!("{sent} bytes sent, nothing read, and the server keeps the connection open").into())
}

/// More than the buffers between two sockets of a loopback (6 to 32 MiB where they may grow; ours do not, and
/// the server's do not while it does not read) and the 64 KiB of answers at which the server pauses.
const SLOW_BYTES: usize = 16 << 20;

/// A subscriber that does not read is disconnected when a megabyte is queued for it; its received messages
/// are in order.
fn slow_subscriber(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let topic = world.topic();
    world.tally.connected(2);
    let stream = client::connect_narrow(world.address)?;
    let mut subscriber = Client::upgrade(stream, &topic, false, rng)?;
    subscriber.sync()?;
    let mut http = Http::connect(world.address)?;
    let body = vec![b'x'; 16_000];
    let (mut published, deadline) = (0_u64, Instant::now() + PATIENCE);
    loop {
        let numbered = [format!("{published:08}").as_bytes(), &body].concat();
        let answer = http.post(&topic, &numbered)?;
        match answer.as_str() {
            answer if answer.starts_with("{\"subscribers\":1,") => published += 1,
            answer if answer.starts_with("{\"subscribers\":0,") => break,
            answer => return Err(format!("published to one, answered {answer}").into()),
        }
        // The number is not limited: a publisher may be far ahead of a busy thread.
        if Instant::now() >= deadline {
            return Err(format!("{published} messages for a subscriber that does not read").into());
        }
    }
    if rng.below(2) == 0 {
        return leave_raw(subscriber.stream(), rng);
    }
    SockRef::from(subscriber.stream()).set_recv_buffer_size(1 << 20)?;
    // Reads to the server's Close, or to the end if it does not wait until we receive that.
    let mut next = 0;
    while let Ok(Some(Reply::Message(_, payload))) = subscriber.next() {
        if payload[..8] != *format!("{next:08}").as_bytes() || payload[8..] != body {
            return Err(format!("message {next} differs from the published message").into());
        }
        world.tally.right(&payload);
        next += 1;
    }
    if next > published { Err("more than was published".into()) } else { Ok(()) }
}

/// Sends requests on one connection, some of them pipelined.
fn http(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    world.tally.connected(1);
    let mut http = Http::connect(world.address)?;
    for _ in 0..=rng.below(6) {
        let paths: Vec<_> = (0..=rng.below(10)).map(|_| PATHS[rng.below(PATHS.len())]).collect();
        for (path, ..) in &paths {
            http.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        }
        for (path, status, part) in paths {
            let answer = http.answer()?;
            if answer.status != status || !answer.body.contains(part) {
                return Err(format!("GET {path} answered {} {}", answer.status, answer.body).into());
            }
        }
        let size = rng.below(3000);
        let answer = http.post(&world.topic(), &rng.bytes(size))?;
        if !answer.starts_with("{\"subscribers\":0,") {
            return Err(format!("published to no subscriber, answered {answer}").into());
        }
    }
    leave_raw(http.stream(), rng)
}

/// Path, status, and a part of the body.
pub(crate) const PATHS: [(&str, u16, &str); 3] =
    [("/healthz", 200, "ok\n"), ("/", 200, "<html"), ("/nowhere", 404, "")];

/// Subscribers, some of which leave meanwhile; a socket and requests that publish.
fn topics(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let topic = world.topic();
    let count = 2 + rng.below(15);
    world.tally.connected(count + 1);
    let mut subscribers = Vec::new();
    for _ in 0..count {
        let mut subscriber = Client::open(world.address, &topic, rng)?;
        subscriber.sync()?;
        subscribers.push(subscriber);
    }
    let mut http = Http::connect(world.address)?;
    for _ in 0..=rng.below(4) {
        let sizes: Vec<_> = (0..=rng.below(20)).map(|_| 1 + rng.below(1000)).collect();
        let messages: Vec<_> = sizes.into_iter().map(|size| message(rng, size)).collect();
        for (kind, payload) in &messages {
            // The first subscriber receives its own messages, too.
            let frame = subscribers[0].frame(*kind, payload, rng);
            subscribers[0].send(&frame)?;
        }
        for subscriber in &mut subscribers {
            for (kind, payload) in &messages {
                world.expect(subscriber, *kind, payload.clone())?;
            }
        }
        http.post(&topic, b"posted")?;
        for subscriber in &mut subscribers {
            world.expect(subscriber, Kind::Text, b"posted".to_vec())?;
        }
        if subscribers.len() > 2 {
            let gone = subscribers.swap_remove(1 + rng.below(subscribers.len() - 1));
            gone.leave(Leave::any(rng))?;
        }
    }
    subscribers.into_iter().try_for_each(|subscriber| subscriber.leave(Leave::any(rng)))
}

/// Exchanges compressed messages in both directions.
fn deflate(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    world.tally.connected(1);
    let mut client = Client::open_deflate(world.address, "/echo", rng)?;
    for _ in 0..=rng.below(4) {
        let sizes: Vec<usize> = (0..=rng.below(10)).map(|_| rng.below(5000)).collect();
        world.echo(&mut client, rng, &sizes)?;
    }
    client.leave(Leave::any(rng))
}

/// A connection that stays open between its uses, until its last use.
pub(crate) struct Resident(Client);

impl Resident {
    pub(crate) fn open(world: &World, rng: &mut Rng) -> Result<Self, Fault> {
        Ok(Self(world.open(rng)?))
    }

    pub(crate) fn touch(&mut self, world: &World, rng: &mut Rng) -> Result<(), Fault> {
        let sizes: Vec<usize> = (0..=rng.below(5)).map(|_| rng.below(2000)).collect();
        world.echo(&mut self.0, rng, &sizes)
    }

    pub(crate) fn leave(self, rng: &mut Rng) -> Result<(), Fault> {
        self.0.leave(Leave::any(rng))
    }
}
