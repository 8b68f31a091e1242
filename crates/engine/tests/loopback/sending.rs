//! Chains: one send per burst, short sends, order.

use std::io::{IoSlice, Read};
use std::net::TcpStream;
use std::thread::JoinHandle;

use bytes::Bytes;
use sinews_engine::{
    App, CloseReason, ConnId, ConnectionOrigin, Engine, Flow, Io, ListenOptions, Listener, SendChain,
};

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
    let mut host = Host::with(config(), ListenOptions::default().with_send_buffer(8 * 1024), app);
    let (client, conn) = host.connect();
    let reader = read_all(client);
    host.until(|app| app.close_reason(conn).is_some());
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Finished)));
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
    let mut host = Host::with(config(), ListenOptions::default().with_send_buffer(8 * 1024), app);
    let (client, conn) = host.connect();
    host.settle();
    assert_eq!(host.app.count(Kind::Finished), 0, "the peer has not read yet");
    host.engine.post().send(1).unwrap();
    host.settle();
    let reader = read_all(client);
    host.until(|app| app.close_reason(conn).is_some());
    assert!(reader.join().unwrap() == [body.as_slice(), b"the end"].concat());
    assert_eq!(host.app.count(Kind::Finished), 2);
}

#[test]
fn broadcast_is_one_send_per_connection_without_a_chain() {
    let mut host = Host::new(Probe::new(|io, queues, event| {
        if let Event::Mail(_) = event {
            io.broadcast(Bytes::from_static(b"to all"), queues.open_connections().to_vec());
        }
        Flow::Continue
    }));
    let mut clients: Vec<TcpStream> = (0..300).map(|_| host.connect().0).collect();
    host.engine.post().send(1).unwrap();
    host.settle();
    assert!(clients.iter_mut().all(|client| read_exactly(client, 6) == b"to all"));
    let stats = host.engine.stats();
    assert_eq!((stats.sends, stats.sent_bytes, host.app.count(Kind::Finished)), (300, 1_800, 0));
}

#[test]
fn rest_of_a_broadcast_precedes_bytes_queued_later() {
    let body = Bytes::from(pattern(4 << 20));
    let first = body.clone();
    let app = Probe::new(move |io, queues, event| {
        if let Event::Mail(_) = event {
            io.broadcast(first.clone(), queues.open_connections().to_vec());
            for conn in queues.open_connections().to_vec() {
                queues.push(conn, *b"the end");
                io.send(conn);
                io.shutdown(conn);
            }
        }
        Flow::Continue
    });
    let mut host = Host::with(config(), ListenOptions::default().with_send_buffer(8 * 1024), app);
    let clients: Vec<(TcpStream, ConnId)> = (0..3).map(|_| host.connect()).collect();
    host.engine.post().send(1).unwrap();
    host.settle();
    assert_eq!(host.app.count(Kind::Finished), 0, "the peers have not read yet");
    let (readers, conns): (Vec<_>, Vec<_>) =
        clients.into_iter().map(|(client, conn)| (read_all(client), conn)).unzip();
    host.until(|app| conns.iter().all(|conn| app.close_reason(*conn).is_some()));
    for reader in readers {
        assert!(reader.join().unwrap() == [&body[..], b"the end"].concat());
    }
    assert_eq!(host.app.count(Kind::Finished), 6);
    assert_eq!(host.engine.stats().sent_bytes, 3 * (body.len() as u64 + 7));
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
    let mut host = Host::with(config(), ListenOptions::default().with_send_buffer(8 * 1024), app);
    let (_client, conn) = host.connect();
    host.settle();
    host.engine.post().send(1).unwrap();
    host.until(|app| app.close_reason(conn).is_some());
    let last: Vec<Kind> = host.app.events.iter().rev().take(2).map(Event::kind).collect();
    assert_eq!(last, [Kind::Closed, Kind::Finished]);
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Requested)));
}

/// A chain that has a length and yields no bytes.
struct ChainWithoutSlices;

impl SendChain for ChainWithoutSlices {
    fn len(&self) -> usize {
        1
    }

    fn slices<'a>(&'a self, _: &mut [IoSlice<'a>]) -> usize {
        0
    }

    fn advance(&mut self, _: usize) {}
}

#[derive(Default)]
struct FaultyApp(Option<CloseReason>);

impl App for FaultyApp {
    type Chain = ChainWithoutSlices;
    type Mail = ();

    fn accepted(&mut self, io: &mut Io, conn: ConnId, _: ConnectionOrigin) {
        io.send(conn);
        io.stop_accepting();
    }

    fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
        Flow::Continue
    }

    fn ended(&mut self, _: &mut Io, _: ConnId) {}

    fn start_send(&mut self, _: ConnId) -> Option<ChainWithoutSlices> {
        Some(ChainWithoutSlices)
    }

    fn finish_send(&mut self, _: &mut Io, _: ConnId, _: ChainWithoutSlices, complete: bool) {
        assert!(!complete);
    }

    fn closed(&mut self, _: &mut Io, _: ConnId, reason: CloseReason) {
        self.0 = Some(reason);
    }
}

#[test]
fn chain_without_slices_closes_with_error() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let _client = client(listener.local_addr().unwrap());
    let mut engine = Engine::new(config(), vec![listener]).unwrap();
    let mut app = FaultyApp::default();
    engine.run(&mut app).unwrap();
    assert!(
        matches!(app.0, Some(CloseReason::Error(error)) if error.kind() == std::io::ErrorKind::WriteZero)
    );
}

/// Bytes that the kernel takes for a peer that does not read.
fn bytes_taken_for_stuck_peer(limited: bool) -> u64 {
    const QUEUED: usize = 16 << 20;
    let mut host = Host::new(Probe::new(move |io, queues, event| {
        if let Event::Accepted(conn, _) = event {
            if limited {
                io.limit_unsent(*conn);
            }
            for _ in 0..QUEUED / (64 << 10) {
                queues.push(*conn, vec![7; 64 << 10]);
            }
            io.send(*conn);
        }
        Flow::Continue
    }));
    let (client, _) = host.connect();
    host.settle();
    let taken = host.engine.stats().sent_bytes;
    drop(client);
    taken
}

#[cfg(target_os = "linux")]
#[test]
fn limit_of_unsent_bytes_leaves_the_rest_to_the_application() {
    let (unlimited, limited) = (bytes_taken_for_stuck_peer(false), bytes_taken_for_stuck_peer(true));
    assert!(limited < unlimited / 4, "the kernel took {limited} bytes with a limit, {unlimited} without");
}
