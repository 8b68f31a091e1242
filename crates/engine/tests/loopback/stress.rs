//! Random peers against a random application. The seed determines the test. Model: bytes arrive in order,
//! each direction is a prefix of the sent bytes, and complete if the connection ended in order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use sinews_engine::{CloseReason, ConnId, Flow, Io, ListenOptions};

use crate::support::{Event, Host, Kind, Probe, Queues, RESUME_ALL, client, config, echo, pattern, reset};

/// xorshift64*, scrambled from the seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// A peer that has sent the first `sent` bytes of its pattern.
struct Peer {
    stream: Option<TcpStream>,
    sent: usize,
    ended: bool,
    read: Vec<u8>,
    saw_end: bool,
}

const BODY: usize = 256 * 1024;

/// Echoes, and sometimes issues random commands that must be harmless.
fn rule(seed: u64) -> impl FnMut(&mut Io, &mut Queues, &Event) -> Flow {
    let mut random = Random::new(seed ^ 0xA5A5);
    let mut seen: Vec<ConnId> = Vec::new();
    move |io, queues, event| {
        echo(io, queues, event);
        if let Event::Accepted(conn, _) = event {
            seen.push(*conn);
        }
        // Any connection, most of them closed.
        let any = seen.get(random.below(seen.len().max(1) as u64) as usize).copied();
        if let Some(any) = any {
            match random.below(40) {
                0 => io.send(any),
                1 => io.set_timer(any, io.now() + Duration::from_millis(random.below(20))),
                2 => io.clear_timer(any),
                3 => io.pause(any),
                4 if random.one_in(4) => io.close(any),
                5 if random.one_in(8) => io.shutdown(any),
                _ => {}
            }
        }
        // A pause needs the resume that the driver posts from time to time.
        if random.one_in(5) { Flow::Pause } else { Flow::Continue }
    }
}

fn write_some(peer: &mut Peer, body: &[u8], random: &mut Random) {
    let Some(stream) = peer.stream.as_mut().filter(|_| !peer.ended) else { return };
    let most = 1 << random.below(16);
    let end = body.len().min(peer.sent + random.below(most) as usize + 1);
    // An error means that this side is about to see the connection closed.
    peer.sent += stream.write(&body[peer.sent..end]).unwrap_or(0);
}

fn read_some(peer: &mut Peer, most: usize) {
    let Some(stream) = peer.stream.as_mut() else { return };
    let mut buffer = vec![0; most];
    match stream.read(&mut buffer) {
        Ok(0) => peer.saw_end = true,
        Ok(bytes) => peer.read.extend_from_slice(&buffer[..bytes]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(_) => peer.stream = None,
    }
}

fn act(host: &Host, peers: &mut HashMap<u16, Peer>, body: &[u8], random: &mut Random) {
    if peers.len() < 60 && (peers.is_empty() || random.one_in(8)) {
        let stream = client(host.address);
        stream.set_nonblocking(true).unwrap();
        let port = stream.local_addr().unwrap().port();
        let peer = Peer { stream: Some(stream), sent: 0, ended: false, read: Vec::new(), saw_end: false };
        assert!(peers.insert(port, peer).is_none());
    }
    let mut ports: Vec<u16> = peers.keys().copied().collect();
    ports.sort_unstable();
    for _ in 0..random.below(8) {
        let peer = peers.get_mut(&ports[random.below(ports.len() as u64) as usize]).unwrap();
        match random.below(100) {
            0..50 => write_some(peer, body, random),
            50..90 => read_some(peer, 1 << random.below(17)),
            90..94 => {
                if let Some(stream) = &peer.stream {
                    peer.ended = true;
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
            94 => drop(peer.stream.take()),
            95 => peer.stream.take().map_or((), reset),
            _ => host.engine.post().send(RESUME_ALL).unwrap(),
        }
    }
}

/// Compares the received bytes of both ends.
fn check(app: &Probe, peers: &HashMap<u16, Peer>, body: &[u8], seed: u64) -> usize {
    let mut finished = 0;
    for event in &app.events {
        let Event::Accepted(conn, from) = event else { continue };
        let peer = &peers[&from.peer.port()];
        let received = app.received(*conn);
        assert!(received.len() <= peer.sent && body.starts_with(&received), "seed {seed}: received in order");
        assert!(received.starts_with(&peer.read), "seed {seed}: echoed in order");
        if matches!(app.close_reason(*conn), Some(CloseReason::Finished)) {
            finished += 1;
            assert_eq!(received.len(), peer.sent, "seed {seed}: all received before an end in order");
        }
    }
    finished
}

fn run(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let body = pattern(BODY);
    let bits = random.below(17);
    let config = config()
        .with_receive_buffer(16 + random.below(1 << bits) as usize)
        .and_then(|config| config.with_receives_per_turn(1 + random.below(4) as u32))
        .and_then(|config| config.with_accepts_per_turn(1 + random.below(4) as u32))
        .unwrap();
    let options =
        ListenOptions::default().with_send_buffer(4096 << random.below(4)).with_receive_buffer(16 * 1024);
    let mut host = Host::with(config, options, Probe::new(rule(seed)));
    let mut peers = HashMap::new();
    for _ in 0..300 {
        act(&host, &mut peers, &body, &mut random);
        host.engine.turn(&mut host.app, Some(Duration::ZERO)).unwrap();
    }
    // The rest of each conversation in order: every peer shuts down, and reads to the end.
    for peer in peers.values_mut() {
        if let Some(stream) = &peer.stream {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
    let peers = Rc::new(RefCell::new(peers));
    let (reading, total) = (Rc::clone(&peers), peers.borrow().len());
    host.until_with(
        move |engine| {
            reading.borrow_mut().values_mut().for_each(|peer| read_some(peer, 1 << 16));
            engine.post().send(RESUME_ALL).unwrap();
        },
        |app| app.count(Kind::Accepted) == total && app.open_connections() == 0,
    );
    let peers = peers.borrow();
    check(&host.app, &peers, &body, seed)
}

#[test]
fn random_peers_and_application_match_the_model() {
    let finished: usize = (1..=25).map(run).sum();
    assert!(finished > 100, "{finished} conversations were held to the end");
}
