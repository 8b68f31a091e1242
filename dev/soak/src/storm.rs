//! Storms: thousands of connections at once, which all disconnect at once.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use sinews_proto::Role;
use sinews_testkit::{Frame, Reply, Rng};

use crate::Fault;
use crate::client::{self, Client, Leave};
use crate::scenarios::World;

/// One storm at a time: two would need twice the descriptors.
static ONE: Mutex<()> = Mutex::new(());

/// Runs a storm of some strength, unless another is running.
pub(crate) fn run(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let connections = world.storm / 8 + rng.below(world.storm - world.storm / 8);
    storm(world, connections, rng).map(|_| ())
}

/// Opens connections in every state, resets them all, and connects once more. Returns the time to the answer
/// on that connection, or `None` if another storm is running.
pub(crate) fn storm(world: &World, connections: usize, rng: &mut Rng) -> Result<Option<Duration>, Fault> {
    let _one = match ONE.try_lock() {
        Ok(one) => one,
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Poisoned(_)) => return Err("an earlier storm panicked".into()),
    };
    world.tally.connected(connections + 1);
    let mut streams = Vec::with_capacity(connections);
    for _ in 0..connections {
        let mut stream = client::connect(world.address)?;
        let (handshake, request) = client::handshake("/echo", false, rng)?;
        // A few stay silent or stop in the middle of the handshake.
        let part = if rng.below(16) == 0 { rng.below(request.len()) } else { request.len() };
        stream.write_all(&request[..part])?;
        streams.push((stream, handshake, part == request.len()));
    }
    let mut clients = Vec::with_capacity(connections);
    let mut halves = Vec::new();
    for (stream, handshake, whole) in streams {
        if whole {
            clients.push(Client::upgraded(stream, handshake)?);
        } else {
            halves.push(stream);
        }
    }
    for client in &mut clients {
        let size = rng.below(3000);
        let bytes = Frame::binary(rng.bytes(size)).key(rng.key()).encode(Role::Client);
        client.send_bytes(&bytes[..rng.below(bytes.len() + 1)])?;
    }
    end_together(clients.iter().map(Client::stream).chain(&halves), rng)?;
    drop((clients, halves));
    fresh(world, rng).map(Some)
}

fn end_together<'a>(streams: impl Iterator<Item = &'a TcpStream>, rng: &mut Rng) -> Result<(), Fault> {
    let orderly = rng.below(4) == 0;
    for stream in streams {
        if orderly {
            // Fails if the server has closed the connection already.
            let _ = stream.shutdown(Shutdown::Write);
        } else {
            client::reset(stream)?;
        }
    }
    Ok(())
}

/// Opens a new connection, and returns the time to its answer.
pub(crate) fn fresh(world: &World, rng: &mut Rng) -> Result<Duration, Fault> {
    let started = Instant::now();
    let mut client = Client::open(world.address, "/echo", rng)?;
    client.send(&Frame::text("still there?"))?;
    client.expect(&Reply::text("still there?"))?;
    let answered = started.elapsed();
    client.leave(Leave::Close)?;
    Ok(answered)
}
