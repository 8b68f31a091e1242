//! Chains: one send per burst, short sends, order.

use std::io::{IoSlice, Read};
use std::net::TcpStream;
use std::thread::JoinHandle;

use sinews_engine::{Accepted, App, Chain, Closed, ConnId, Engine, Flow, Io, ListenOptions, Listener};

use crate::support::{Event, Host, Kind, Probe, client, config, pattern, read_exactly};

fn read_all(mut client: TcpStream) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut read = Vec::new();
        client.read_to_end(&mut read).unwrap();
        read
    })
}

#[test]
fn bytes_of_a_turn_are_sent_in_one_send() {
    // Three pieces make one vectored send.
    let mut host = Host::new(Probe::new(|io, queues, event| {
        if let Event::Accepted(conn, _) = event {
            for piece in [&b"one "[..], b"two ", b"three"] {
                queues.push(*conn, piece);
                io.send(*conn);
            }
        }
        Flow::Continue
    }));
    let (mut client, _) = host.connect();
    host.settle();
    assert_eq!(read_exactly(&mut client, 13), b"one two three");
    assert_eq!((host.engine.stats().sends, host.app.count(Kind::Finished)), (1, 1));
}

#[test]
fn bytes_queued_in_finish_send_are_sent_in_next_turn() {
    let mut host = Host::new(Probe::new(|io, queues, event| {
        if let Event::Accepted(conn, _) | Event::Finished(conn, true) = event
            && io.stats().sends < 10
        {
            queues.push(*conn, *b"again");
            io.send(*conn);
        }
        Flow::Continue
    }));
    let (mut client, _) = host.connect();
    let turns = host.engine.stats().turns;
    host.until(|app| app.count(Kind::Finished) == 10);
    // A ring completes the last send a turn later.
    let turns = host.engine.stats().turns - turns;
    assert!(turns == 9 || turns == 10, "{turns}: a send per turn, and no turn that waits");
    assert_eq!(read_exactly(&mut client, 50), b"again".repeat(10));
}

#[test]
fn short_sends_continue_in_order() {
    const BYTES: usize = 3 << 20;
    let body = pattern(BYTES);
    let queued = body.clone();
    let app = Probe::new(move |io, queues, event| {
        if let Event::Accepted(conn, _) = event {
            // More pieces than fit one send, of many sizes.
            let (mut rest, mut size) = (queued.as_slice(), 1);
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(size.min(rest.len()));
                queues.push(*conn, piece);
                (rest, size) = (others, size % 9000 + 37);
            }
            io.send(*conn);
            io.shutdown(*conn);
        }
        Flow::Continue
    });
    let mut host = Host::with(config(), ListenOptions::default().send_buffer(8 * 1024), app);
    let (client, conn) = host.connect();
    let reader = read_all(client);
    host.until(|app| app.why(conn).is_some());
    assert!(matches!(host.app.why(conn), Some(Closed::Finished)));
    assert!(reader.join().unwrap() == body, "the bytes, in order");
    let progress = host.app.events.iter().filter_map(|event| match event {
        Event::Progressed(_, bytes) => Some(*bytes),
        _ => None,
    });
    let (count, sum) = progress.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
    assert!(count > 10 && sum < BYTES, "{count} short sends of {sum} bytes; the last is no progress");
    let stats = host.engine.stats();
    assert_eq!((stats.sent_bytes, host.app.count(Kind::Finished)), (BYTES as u64, 1));
    assert_eq!(stats.sends, count + 1, "no send is attempted on a full socket");
}

#[test]
fn send_requested_in_flight_follows_the_chain() {
    let body = pattern(1 << 20);
    let first = body.clone();
    let app = Probe::new(move |io, queues, event| {
        match event {
            Event::Accepted(conn, _) => {
                queues.push(*conn, first.clone());
                io.send(*conn);
            }
            Event::Mail(_) => {
                let conn = queues.only();
                queues.push(conn, *b"the end");
                io.send(conn);
                io.shutdown(conn);
            }
            _ => {}
        }
        Flow::Continue
    });
    let mut host = Host::with(config(), ListenOptions::default().send_buffer(8 * 1024), app);
    let (client, conn) = host.connect();
    host.settle();
    assert_eq!(host.app.count(Kind::Finished), 0, "the peer has not read yet");
    host.engine.post().send(1).unwrap();
    host.settle();
    let reader = read_all(client);
    host.until(|app| app.why(conn).is_some());
    assert!(reader.join().unwrap() == [body.as_slice(), b"the end"].concat());
    assert_eq!(host.app.count(Kind::Finished), 2);
}

#[test]
fn close_returns_chain_in_flight_first() {
    let app = Probe::new(|io, queues, event| {
        match event {
            Event::Accepted(conn, _) => {
                queues.push(*conn, pattern(4 << 20));
                io.send(*conn);
            }
            Event::Mail(_) => io.close(queues.only()),
            _ => {}
        }
        Flow::Continue
    });
    let mut host = Host::with(config(), ListenOptions::default().send_buffer(8 * 1024), app);
    let (_client, conn) = host.connect();
    host.settle();
    host.engine.post().send(1).unwrap();
    host.until(|app| app.why(conn).is_some());
    let last: Vec<Kind> = host.app.events.iter().rev().take(2).map(Event::kind).collect();
    assert_eq!(last, [Kind::Closed, Kind::Finished]);
    assert!(matches!(host.app.why(conn), Some(Closed::Requested)));
}

/// A chain that has a length and yields no bytes.
struct Hollow;

impl Chain for Hollow {
    fn len(&self) -> usize {
        1
    }

    fn slices<'a>(&'a self, _: &mut [IoSlice<'a>]) -> usize {
        0
    }

    fn advance(&mut self, _: usize) {}
}

#[derive(Default)]
struct Misbehaved(Option<Closed>);

impl App for Misbehaved {
    type Chain = Hollow;
    type Mail = ();

    fn accepted(&mut self, io: &mut Io, conn: ConnId, _: Accepted) {
        io.send(conn);
        io.stop_accepting();
    }

    fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
        Flow::Continue
    }

    fn ended(&mut self, _: &mut Io, _: ConnId) {}

    fn start_send(&mut self, _: ConnId) -> Option<Hollow> {
        Some(Hollow)
    }

    fn finish_send(&mut self, _: &mut Io, _: ConnId, _: Hollow, complete: bool) {
        assert!(!complete);
    }

    fn closed(&mut self, _: &mut Io, _: ConnId, why: Closed) {
        self.0 = Some(why);
    }

    fn mail(&mut self, _: &mut Io, _: &mut Vec<()>) {}
}

#[test]
fn chain_without_slices_closes_with_error() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let _client = client(listener.local_addr().unwrap());
    let mut engine = Engine::new(config(), vec![listener]).unwrap();
    let mut app = Misbehaved::default();
    engine.run(&mut app).unwrap();
    assert!(matches!(app.0, Some(Closed::Error(error)) if error.kind() == std::io::ErrorKind::WriteZero));
}
