//! Clients that misbehave as no `sinews bench` process does. Each checks every received byte.

use std::fmt;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use sinews_proto::{Kind, Role};
use sinews_testkit::{Frame, Reply, Rng, handshake};
use socket2::SockRef;

use crate::Fault;
use crate::client::{self, Client, ECHO_PATH, Leave, PATIENCE};

/// State that scenarios share.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    /// Path to the `sinews` program.
    pub(crate) binary: PathBuf,
    /// The server has no TLS.
    pub(crate) is_plain: bool,
    pub(crate) tally: Tally,
}

/// Completed work.
#[derive(Default)]
pub(crate) struct Tally {
    connections: AtomicU64,
    /// Correctly echoed messages.
    messages: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, connections: u64, messages: u64) {
        self.connections.fetch_add(connections, Ordering::Relaxed);
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (connections, messages) = (load(&self.connections), load(&self.messages));
        write!(f, "{connections} connections; {messages} messages came back right")
    }
}

/// A scenario's name and function.
pub(crate) type Scenario = (&'static str, fn(&World, &mut Rng) -> Result<(), Fault>);

pub(crate) const SCENARIOS: [Scenario; 3] =
    [("fragments", fragments), ("cut off", cut_off), ("slow reader", slow_reader)];

impl World {
    /// Opens a WebSocket, with this receive buffer if there is one.
    fn open(&self, receive_bytes: Option<usize>) -> Result<Client, Fault> {
        self.tally.add(1, 0);
        Client::open(self.address, receive_bytes)
    }

    fn expect(&self, client: &mut Client, kind: Kind, payload: Vec<u8>) -> Result<(), Fault> {
        client.expect(Reply::Message(kind, payload))?;
        self.tally.add(0, 1);
        Ok(())
    }
}

/// Creates a message that cannot be confused with another: noise, or noise encoded as text of one to four
/// bytes a character.
fn message(rng: &mut Rng, size: usize) -> (Kind, Vec<u8>) {
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

const LARGE_MIN: usize = 256 << 10;

/// Sends messages in fragments with pings between them, in chunks that ignore the frame boundaries.
fn fragments(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let mut client = world.open(None)?;
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
            client.expect(Reply::Pong(ping))?;
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
        let frame = match kind {
            _ if index > 0 => Frame::continuation(piece),
            Kind::Text => Frame::text(piece),
            Kind::Binary => Frame::binary(piece),
        };
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
        world.tally.add(1, 0);
        let mut stream = client::connect(world.address, None)?;
        let request = handshake(ECHO_PATH, "localhost", "");
        stream.write_all(&request.as_bytes()[..rng.below(request.len() + 1)])?;
        return leave_raw(&stream, rng);
    }
    let mut client = world.open(None)?;
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
    let mut client = world.open(Some(NARROW_BYTES))?;
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
    let mut client = world.open(Some(NARROW_BYTES))?;
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
/// The kernel's minimum is used.
const NARROW_BYTES: usize = 2048;
