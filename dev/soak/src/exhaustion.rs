//! Repeated crowds of more clients than a server has descriptors.

use std::io::Write;
use std::net::TcpStream;

use sinews_proto::handshake::ClientHandshake;
use sinews_testkit::{Frame, Reply, Rng};

use crate::Fault;
use crate::client::{self, Client};
use crate::scenarios::World;
use crate::server::{Server, Setup};
use crate::storm::fresh;
use crate::verdict::Verdict;

/// Crowds of clients connect and disconnect. The server must answer clients within its capacity, at once or
/// after other clients have left.
pub(crate) fn run(setup: &Setup<'_>, rng: &mut Rng, verdict: &mut Verdict) -> Result<(), Fault> {
    println!("\n{CROWD} clients connect to a server with {DESCRIPTORS} descriptors, {ROUNDS} times");
    let server = Server::start(setup)?;
    let world = World::new(server.address, CROWD);
    let before = server.sample()?;
    let mut most = 0;
    let mut answered = Ok(());
    for _ in 0..ROUNDS {
        let crowd = gather(&world, rng)?;
        let least = DESCRIPTORS as usize / 2;
        let full = server.sample_until(|sample| sample.descriptors >= least)?;
        most = most.max(full.descriptors - before.descriptors);
        answered = answered.and_then(|()| thin_out(&world, crowd, rng));
    }
    let some = DESCRIPTORS as usize / 4..CROWD;
    verdict.check(
        "clients held at once",
        most,
        format!("{} to {}", some.start, some.end),
        some.contains(&most),
    );
    verdict.result("waiting and new clients are answered", &answered);
    let after = server.sample_until(|sample| sample.descriptors <= before.descriptors)?.descriptors;
    verdict.check("descriptors in the end", after, before.descriptors, after <= before.descriptors);
    verdict.complaints(&server.complaints()?);
    server.ask_to_end()?;
    verdict.result("SIGTERM ends it with success", &server.wait());
    Ok(())
}

type Knocking = (TcpStream, ClientHandshake);

/// Connects the crowd: the kernel accepts all connections, the server as many as it can.
fn gather(world: &World, rng: &mut Rng) -> Result<Vec<Knocking>, Fault> {
    let mut crowd = Vec::with_capacity(CROWD);
    for _ in 0..CROWD {
        let mut stream = client::connect(world.address)?;
        let (handshake, request) = client::handshake("/echo", false, rng)?;
        stream.write_all(&request)?;
        crowd.push((stream, handshake));
    }
    Ok(crowd)
}

/// Disconnects all but the last clients, half of them by a reset; the last clients and a new client are
/// answered.
fn thin_out(world: &World, mut crowd: Vec<Knocking>, rng: &mut Rng) -> Result<(), Fault> {
    let last = crowd.split_off(CROWD - LAST);
    for (stream, _) in crowd.iter().step_by(2) {
        client::reset(stream)?;
    }
    drop(crowd);
    let mut clients = Vec::new();
    for (stream, handshake) in last {
        let mut client = Client::upgraded(stream, handshake)?;
        client.send(&Frame::text("at last").key(rng.key()))?;
        clients.push(client);
    }
    clients.iter_mut().try_for_each(|client| client.expect(&Reply::text("at last")))?;
    fresh(world, rng).map(|_| ())
}

/// The server's limit: more than it needs for itself.
pub(crate) const DESCRIPTORS: u32 = 128;
/// Far above the limit, also where each of two threads has its own file table; below the backlog.
const CROWD: usize = 600;
/// Few enough for the server's capacity.
const LAST: usize = 32;
const ROUNDS: usize = 3;
