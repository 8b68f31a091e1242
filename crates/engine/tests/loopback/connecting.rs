//! Outgoing connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sinews_engine::{BackendChoice, Closed, ConnectOptions, Engine, Flow, Io, Remote};
use socket2::{Domain, SockAddr, Socket, Type};

use super::support::{Event, Host, Kind, PATIENCE, Probe, Queues, config, echo, pattern, read_exactly};

/// An application that connects once for each of these when it starts, and says hello at once.
fn caller(to: Vec<(Remote, ConnectOptions)>) -> Probe {
    Probe::new(move |io, queues, event| {
        if let Event::Started = event {
            for (to, options) in &to {
                let conn = queues.connect(io, to.clone(), options);
                queues.push(conn, *b"hello");
                io.send(conn);
            }
        }
        Flow::Continue
    })
}

fn to(address: SocketAddr) -> (Remote, ConnectOptions) {
    (address.into(), ConnectOptions::default())
}

/// Both loops by turns, until `done`.
fn until(client: &mut Host, server: &mut Host, done: impl Fn(&Probe, &Probe) -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !done(&client.app, &server.app) {
        let stuck = std::time::Instant::now() > deadline;
        assert!(!stuck, "{:?}, {:?}", client.engine.stats(), server.engine.stats());
        for host in [&mut *client, &mut *server] {
            host.engine.turn(&mut host.app, Some(Duration::from_millis(1))).unwrap();
        }
    }
}

/// The error that the one connection of this loop ended with.
fn failure(mut client: Host) -> ErrorKind {
    client.engine.run(&mut client.app).unwrap();
    assert_eq!((client.app.count(Kind::Connected), client.app.count(Kind::Closed)), (0, 1));
    let Some(Event::Closed(_, Closed::Error(error))) = client.app.events.pop() else {
        panic!("it has failed: {:?}", client.app.events)
    };
    error.kind()
}

/// An address at which connections are not answered: the one place of its backlog is taken.
fn deaf() -> (Socket, SocketAddr, Vec<Socket>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap();
    let fill = || {
        let one = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        one.set_nonblocking(true).unwrap();
        let _ = one.connect(&address);
        one
    };
    let filling = (0..4).map(|_| fill()).collect();
    (socket, address.as_socket().unwrap(), filling)
}

#[test]
fn what_was_asked_for_before_leaves_when_it_is_connected() {
    let mut server = Host::new(Probe::echo());
    let mut client = Host::connecting(caller(vec![to(server.address)]));
    until(&mut client, &mut server, |client, _| {
        client.queues.living().first().is_some_and(|conn| client.received(*conn) == b"hello")
    });
    assert_eq!(client.app.events[0].kind(), Kind::Started);
    assert_eq!(client.app.events[1].kind(), Kind::Connected);
    assert_eq!((client.engine.stats().connects, client.engine.stats().accepts), (1, 0));
}

#[test]
fn an_end_asked_for_before_follows_what_was_sent() {
    let mut server = Host::new(Probe::echo());
    let address = server.address;
    let mut client = Host::connecting(Probe::new(move |io, queues, event| {
        if let Event::Started = event {
            let conn = queues.connect(io, address, &ConnectOptions::default());
            queues.push(conn, pattern(300_000));
            io.send(conn);
            io.shutdown(conn);
        }
        Flow::Continue
    }));
    until(&mut client, &mut server, |client, _| client.count(Kind::Closed) == 1);
    let Some(Event::Closed(conn, Closed::Finished)) = client.app.events.last() else {
        panic!("{:?}", client.app.events.last())
    };
    assert_eq!(client.app.received(*conn), pattern(300_000));
    assert!(
        !client.engine.turn(&mut client.app, Some(Duration::ZERO)).unwrap(),
        "nothing is left to run for"
    );
}

#[test]
fn a_refusal_is_told_with_its_error() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(failure(Host::connecting(caller(vec![to(nobody)]))), ErrorKind::ConnectionRefused);
}

#[test]
fn an_address_that_is_not_ours_cannot_be_connected_from() {
    let server = Host::new(Probe::echo());
    let elsewhere = ConnectOptions::default().local(([192, 0, 2, 1], 0).into());
    let client = Host::connecting(caller(vec![(server.address.into(), elsewhere)]));
    assert_eq!(failure(client), ErrorKind::AddrNotAvailable);
}

#[test]
fn a_reset_right_behind_the_connection_is_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Host::connecting(caller(vec![to(listener.local_addr().unwrap())]));
    let peer = std::thread::spawn(move || super::support::reset(listener.accept().unwrap().0));
    client.until(|app| app.count(Kind::Closed) == 1);
    peer.join().unwrap();
    assert!(matches!(client.app.events.last(), Some(Event::Closed(_, Closed::Reset))));
}

#[test]
fn many_are_connected_each_to_its_own() {
    const CONNECTIONS: usize = 700;
    let mut server = Host::new(Probe::echo());
    let mut client = Host::connecting(Probe::new({
        let address = server.address;
        move |io, queues, event| {
            match event {
                Event::Started => (0..CONNECTIONS).for_each(|_| {
                    queues.connect(io, address, &ConnectOptions::default());
                }),
                Event::Connected(conn) => {
                    queues.push(*conn, conn.index().to_be_bytes());
                    io.send(*conn);
                }
                Event::Received(conn, _) => io.shutdown(*conn),
                _ => {}
            }
            Flow::Continue
        }
    }));
    until(&mut client, &mut server, |client, _| client.count(Kind::Closed) == CONNECTIONS);
    for event in &client.app.events {
        if let Event::Closed(conn, why) = event {
            assert!(matches!(why, Closed::Finished), "{why:?}");
            assert_eq!(client.app.received(*conn), conn.index().to_be_bytes());
        }
    }
    assert_eq!(client.engine.stats().connects, CONNECTIONS as u64);
}

#[test]
fn it_comes_from_the_address_that_was_asked_for() {
    let mut server = Host::new(Probe::echo());
    let sources: Vec<IpAddr> = (1..=3).map(|last| Ipv4Addr::new(127, 0, 0, last).into()).collect();
    if sources.iter().any(|source| TcpListener::bind((*source, 0)).is_err()) {
        return println!("skipped: this machine has one loopback address");
    }
    let from = |source: &IpAddr| {
        (server.address.into(), ConnectOptions::default().local((*source, 0).into()).nodelay(false))
    };
    let mut client = Host::connecting(caller(sources.iter().map(from).collect()));
    until(&mut client, &mut server, |_, server| server.count(Kind::Accepted) == 3);
    let peer = |event: &Event| match event {
        Event::Accepted(_, from) => Some(from.peer.ip()),
        _ => None,
    };
    let mut peers: Vec<IpAddr> = server.app.events.iter().filter_map(peer).collect();
    peers.sort_unstable();
    assert_eq!(peers, sources);
}

/// Asks for a connection when it starts, and does something with it at once or a moment later.
fn interrupted(address: SocketAddr, later: bool, act: impl Fn(&mut Io, &mut Queues) + 'static) -> Probe {
    Probe::new(move |io, queues, event| {
        match event {
            Event::Started => {
                let conn = queues.connect(io, address, &ConnectOptions::default());
                if later {
                    io.set_app_timer(io.now() + Duration::from_millis(30));
                    io.set_timer(conn, io.now() + Duration::from_millis(20));
                    io.pause(conn);
                } else {
                    io.close(conn);
                    act(io, queues);
                }
            }
            Event::Timer(conn) => io.close(*conn),
            Event::AppTimer => act(io, queues),
            _ => {}
        }
        Flow::Continue
    })
}

#[test]
fn one_that_is_closed_before_it_began_is_not_begun() {
    let mut server = Host::new(Probe::echo());
    let mut client = Host::connecting(interrupted(server.address, false, |_, _| {}));
    client.engine.run(&mut client.app).unwrap();
    assert!(matches!(client.app.events.last(), Some(Event::Closed(_, Closed::Requested))));
    server.settle();
    assert_eq!(server.app.count(Kind::Accepted), 0);
}

#[test]
fn a_timer_closes_one_that_is_not_answered() {
    let (_listener, address, _filling) = deaf();
    let mut client = Host::connecting(interrupted(address, true, |_, _| {}));
    client.until(|app| app.count(Kind::Closed) == 1);
    assert!(matches!(client.app.events.last(), Some(Event::Closed(_, Closed::Requested))));
    assert_eq!((client.app.count(Kind::Timer), client.app.count(Kind::Connected)), (1, 0));
}

#[test]
fn a_loop_that_stops_closes_what_it_is_connecting() {
    let (_listener, address, _filling) = deaf();
    let client = Probe::new(move |io, queues, event| {
        match event {
            Event::Started => {
                queues.connect(io, address, &ConnectOptions::default());
                io.set_app_timer(io.now() + Duration::from_millis(20));
            }
            Event::AppTimer => {
                queues.connect(io, address, &ConnectOptions::default());
                io.stop();
            }
            _ => {}
        }
        Flow::Continue
    });
    let mut client = Host::connecting(client);
    client.engine.run(&mut client.app).unwrap();
    let stopped = |event: &&Event| matches!(event, Event::Closed(_, Closed::Stopped));
    assert_eq!(client.app.events.iter().filter(stopped).count(), 2);
}

#[test]
fn a_loop_without_connections_runs_until_it_is_stopped_if_asked_to() {
    let mut client = Host::connecting(Probe::new(|io, _, event| {
        match event {
            Event::Started => io.run_until_stopped(),
            Event::Mail(_) => io.stop(),
            _ => {}
        }
        Flow::Continue
    }));
    assert!(client.engine.turn(&mut client.app, Some(Duration::ZERO)).unwrap());
    client.engine.post().send(1).unwrap();
    client.engine.run(&mut client.app).unwrap();
    assert_eq!(client.app.count(Kind::Mail), 1);
}

#[test]
fn a_loop_with_nothing_to_do_returns_at_once() {
    let mut client = Host::connecting(caller(Vec::new()));
    client.engine.run(&mut client.app).unwrap();
    assert_eq!(client.app.count(Kind::Started), 1);
}

#[test]
fn a_path_is_connected_to() {
    let directory = std::env::temp_dir().join(format!("sinews-connect-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path: Arc<Path> = directory.join("socket").into();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut client = Host::connecting(caller(vec![(path.clone().into(), ConnectOptions::default())]));
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&hello).unwrap();
    });
    client.until(|app| app.count(Kind::Received) == 1);
    peer.join().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let gone = Host::connecting(caller(vec![(path.into(), ConnectOptions::default())]));
    assert_eq!(failure(gone), ErrorKind::NotFound);
}

#[test]
fn a_loop_that_accepts_connects_as_well() {
    // It calls itself.
    let mut host = Host::new(Probe::echo());
    let address = host.address;
    host.app = Probe::new(move |io, queues, event| {
        match event {
            Event::Started => {
                let conn = queues.connect(io, address, &ConnectOptions::default());
                queues.push(conn, *b"myself");
                io.send(conn);
                io.shutdown(conn);
            }
            Event::Accepted(..) => io.stop_accepting(),
            _ => echo(io, queues, event),
        }
        Flow::Continue
    });
    host.until(|app| app.count(Kind::Closed) == 2);
    assert_eq!((host.app.count(Kind::Accepted), host.app.count(Kind::Connected)), (1, 1));
}

#[test]
fn a_ring_connects_more_than_there_are_descriptors() {
    super::accepting::in_a_process_of_its_own("connecting::child_has_few_descriptors");
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn child_has_few_descriptors() {
    const CONNECTIONS: usize = 60;
    let engine = Engine::<Probe>::new(config(), Vec::new()).unwrap();
    if engine.backend() != BackendChoice::Uring {
        return println!("skipped: io_uring is not available");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Host::connecting(caller(vec![to(listener.local_addr().unwrap()); CONNECTIONS]));
    // Those that move into the table at once need one each, for a moment; the table is as large as the limit was.
    let before = rlimit::Resource::NOFILE.get().unwrap();
    super::accepting::leave_free(CONNECTIONS as u64 + 5);
    client.until(|app| app.count(Kind::Connected) == CONNECTIONS);
    let mut peers: Vec<_> = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
    assert_eq!(read_exactly(&mut peers[0], 5), b"hello");
    rlimit::Resource::NOFILE.set(before.0, before.1).unwrap();
}
