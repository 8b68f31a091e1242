//! Datagram sockets of a loop: readiness, sends, the third timer, and the end of the loop.

use std::io::Cursor;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use sinews_engine::{App, ConnId, DatagramBatch, DatagramSocket, Engine, Flow, Io};

use crate::support::{PATIENCE, config};

/// Echoes datagrams at the end of the turn, and reads one receive a call.
#[derive(Default)]
struct DatagramEcho {
    /// Socket, peer and payload.
    received: Vec<(usize, SocketAddr, Vec<u8>)>,
    answered: usize,
    /// Ends after this number of datagrams.
    closes_after: usize,
    timer: Option<Instant>,
    expired: Vec<Instant>,
}

impl App for DatagramEcho {
    type Chain = Cursor<Vec<u8>>;
    type Mail = ();

    fn started(&mut self, io: &mut Io) {
        if let Some(at) = self.timer {
            io.set_datagram_timer(at);
        }
    }
    fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
        Flow::Continue
    }
    fn ended(&mut self, _: &mut Io, _: ConnId) {}

    fn datagrams(&mut self, io: &mut Io, index: usize, socket: &mut DatagramSocket) -> bool {
        assert!(io.datagram_socket(index).is_none(), "the socket is lent");
        let seen = &mut self.received;
        let has_more =
            socket.receive(|datagram| seen.push((index, datagram.from, datagram.payload.to_vec())));
        has_more.expect("the socket is open")
    }

    fn datagram_timer(&mut self, io: &mut Io) {
        self.expired.push(io.now());
        io.close_datagrams();
    }

    fn end_turn(&mut self, io: &mut Io) {
        for (index, from, payload) in &self.received[self.answered..] {
            let socket = io.datagram_socket(*index).expect("the socket is open");
            assert!(socket.send(&DatagramBatch::new(*from, payload)).expect("loopback takes it"));
        }
        self.answered = self.received.len();
        if self.closes_after > 0 && self.answered >= self.closes_after {
            io.close_datagrams();
        }
    }
}

fn socket() -> DatagramSocket {
    DatagramSocket::bind(([127, 0, 0, 1], 0).into()).expect("a socket on loopback")
}

fn client(to: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
    client.connect(to).expect("loopback is reachable");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client
}

fn engine(sockets: Vec<DatagramSocket>) -> Engine<DatagramEcho> {
    let mut engine = Engine::new(config(), Vec::new()).expect("an engine");
    for (at, socket) in sockets.into_iter().enumerate() {
        assert_eq!(engine.add_datagrams(socket).expect("the socket is watched"), at);
    }
    engine
}

#[test]
fn datagrams_are_received_and_answered_until_the_sockets_close() {
    let sockets = vec![socket(), socket()];
    let addresses: Vec<SocketAddr> =
        sockets.iter().map(|socket| socket.local_address().expect("an address")).collect();
    let rounds = 50_u8;
    let clients = std::thread::spawn(move || {
        let clients: Vec<UdpSocket> = addresses.into_iter().map(client).collect();
        // One at a time: the loop sleeps in between, and has to be woken by each.
        for round in 0..rounds {
            for (at, client) in clients.iter().enumerate() {
                client.send(&[at as u8, round]).expect("a send");
                let mut buffer = [0; 16];
                let len = client.recv(&mut buffer).expect("an answer");
                assert_eq!(buffer[..len], [at as u8, round]);
            }
        }
    });
    let mut app = DatagramEcho { closes_after: usize::from(rounds) * 2, ..DatagramEcho::default() };
    engine(sockets).run(&mut app).expect("the loop ends in order");
    clients.join().expect("each datagram is answered");
    assert_eq!(app.received.len(), usize::from(rounds) * 2);
    assert!(app.received.iter().all(|(index, _, payload)| *index == usize::from(payload[0])));
}

#[test]
fn datagrams_that_arrive_before_the_loop_runs_are_received() {
    let socket = socket();
    let client = client(socket.local_address().expect("an address"));
    // More than one receive takes.
    for number in 0..100_u8 {
        client.send(&[number]).expect("a send");
    }
    let mut app = DatagramEcho { closes_after: 100, ..DatagramEcho::default() };
    engine(vec![socket]).run(&mut app).expect("the loop ends in order");
    let numbers: Vec<u8> = app.received.iter().map(|(_, _, payload)| payload[0]).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
}

#[test]
fn third_timer_is_never_early_and_ends_the_loop_of_an_idle_socket() {
    let at = Instant::now() + Duration::from_millis(30);
    let mut app = DatagramEcho { timer: Some(at), ..DatagramEcho::default() };
    engine(vec![socket()]).run(&mut app).expect("the loop ends in order");
    assert_eq!(app.expired.len(), 1);
    assert!(app.expired[0] >= at);
}

#[test]
fn closed_socket_is_free_for_another_loop() {
    let socket = socket();
    let address = socket.local_address().expect("an address");
    let mut app = DatagramEcho { timer: Some(Instant::now()), ..DatagramEcho::default() };
    let mut engine = engine(vec![socket]);
    engine.run(&mut app).expect("the loop ends in order");
    // Without sharing, unlike the socket of the loop.
    UdpSocket::bind(address).expect("the address is free");
    drop(engine);
}
