//! Outgoing connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use sinews_engine::{BackendChoice, CloseReason, ConnectOptions, Engine, Flow, Io, Remote};
use socket2::{Domain, SockAddr, Socket, Type};

use super::support::{Event, Host, Kind, PATIENCE, Probe, Queues, config, echo, pattern, read_exactly};

/// An application that starts these connections at its start, and sends hello at once.
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

/// Runs both loops alternately, until `done`.
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

/// The error that ended the loop's only connection.
fn failure(mut client: Host) -> ErrorKind {
    client.engine.run(&mut client.app).unwrap();
    assert_eq!((client.app.count(Kind::Connected), client.app.count(Kind::Closed)), (0, 1));
    let Some(Event::Closed(_, CloseReason::Error(error))) = client.app.events.pop() else {
        panic!("not closed by an error: {:?}", client.app.events)
    };
    error.kind()
}

/// An address that does not answer: its backlog of one connection is full.
fn unresponsive_listener() -> (Socket, SocketAddr, Vec<Socket>) {
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
fn bytes_queued_before_connect_are_sent_once_connected() {
    let mut server = Host::new(Probe::echo());
    let mut client = Host::connecting(caller(vec![to(server.address)]));
    until(&mut client, &mut server, |client, _| {
        client.queues.open_connections().first().is_some_and(|conn| client.received(*conn) == b"hello")
    });
    assert_eq!(client.app.events[0].kind(), Kind::Started);
    assert_eq!(client.app.events[1].kind(), Kind::Connected);
    assert_eq!((client.engine.stats().connects, client.engine.stats().accepts), (1, 0));
}

#[test]
fn shutdown_before_connect_follows_queued_bytes() {
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
    let Some(Event::Closed(conn, CloseReason::Finished)) = client.app.events.last() else {
        panic!("{:?}", client.app.events.last())
    };
    assert_eq!(client.app.received(*conn), pattern(300_000));
    assert!(!client.engine.turn(&mut client.app, Some(Duration::ZERO)).unwrap(), "no work is left");
}

#[test]
fn refused_connect_reports_its_error() {
    // A free port of the system could become that of another test.
    let nobody = ([127, 0, 0, 1], 1).into();
    assert_eq!(failure(Host::connecting(caller(vec![to(nobody)]))), ErrorKind::ConnectionRefused);
}

#[test]
fn connect_from_foreign_address_fails() {
    let server = Host::new(Probe::echo());
    let elsewhere = ConnectOptions::default().with_local(([192, 0, 2, 1], 0).into());
    let client = Host::connecting(caller(vec![(server.address.into(), elsewhere)]));
    assert_eq!(failure(client), ErrorKind::AddrNotAvailable);
}

#[test]
fn reset_right_after_connect_is_reported_as_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Host::connecting(caller(vec![to(listener.local_addr().unwrap())]));
    let peer = std::thread::spawn(move || super::support::reset(listener.accept().unwrap().0));
    client.until(|app| app.count(Kind::Closed) == 1);
    peer.join().unwrap();
    assert!(matches!(client.app.events.last(), Some(Event::Closed(_, CloseReason::Reset))));
}

#[test]
fn many_connections_keep_their_ids() {
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
        if let Event::Closed(conn, reason) = event {
            assert!(matches!(reason, CloseReason::Finished), "{reason:?}");
            assert_eq!(client.app.received(*conn), conn.index().to_be_bytes());
        }
    }
    assert_eq!(client.engine.stats().connects, CONNECTIONS as u64);
}

#[test]
fn connect_uses_requested_local_address() {
    let mut server = Host::new(Probe::echo());
    let sources: Vec<IpAddr> = (1..=3).map(|last| Ipv4Addr::new(127, 0, 0, last).into()).collect();
    if sources.iter().any(|source| TcpListener::bind((*source, 0)).is_err()) {
        return println!("skipped: this machine has one loopback address");
    }
    let from = |source: &IpAddr| {
        (server.address.into(), ConnectOptions::default().with_local((*source, 0).into()).with_nodelay(false))
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

/// Starts a connection at its start, and executes `act` on it at once or later.
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
fn connection_closed_before_start_is_not_started() {
    let mut server = Host::new(Probe::echo());
    let mut client = Host::connecting(interrupted(server.address, false, |_, _| {}));
    client.engine.run(&mut client.app).unwrap();
    assert!(matches!(client.app.events.last(), Some(Event::Closed(_, CloseReason::Requested))));
    server.settle();
    assert_eq!(server.app.count(Kind::Accepted), 0);
}

#[test]
fn timer_closes_unanswered_connect() {
    let (_listener, address, _filling) = unresponsive_listener();
    let mut client = Host::connecting(interrupted(address, true, |_, _| {}));
    client.until(|app| app.count(Kind::Closed) == 1);
    assert!(matches!(client.app.events.last(), Some(Event::Closed(_, CloseReason::Requested))));
    assert_eq!((client.app.count(Kind::Timer), client.app.count(Kind::Connected)), (1, 0));
}

#[test]
fn stop_closes_pending_connects() {
    let (_listener, address, _filling) = unresponsive_listener();
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
    let stopped = |event: &&Event| matches!(event, Event::Closed(_, CloseReason::Stopped));
    assert_eq!(client.app.events.iter().filter(stopped).count(), 2);
}

#[test]
fn run_until_stopped_keeps_empty_loop_running() {
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
fn loop_without_work_returns_at_once() {
    let mut client = Host::connecting(caller(Vec::new()));
    client.engine.run(&mut client.app).unwrap();
    assert_eq!(client.app.count(Kind::Started), 1);
}

#[test]
fn connects_to_unix_path() {
    let directory = tempfile::tempdir().unwrap();
    let path: Arc<Path> = directory.path().join("socket").into();
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
    drop(directory);
    let gone = Host::connecting(caller(vec![(path.into(), ConnectOptions::default())]));
    assert_eq!(failure(gone), ErrorKind::NotFound);
}

#[test]
fn loop_accepts_and_connects() {
    // It connects to itself.
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
fn ring_connects_beyond_descriptor_limit() {
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
    // Sockets need a descriptor each until they are in the table; the table has the size of the original
    // limit.
    let before = getrlimit(Resource::Nofile);
    super::accepting::leave_free(CONNECTIONS as u64 + 5);
    client.until(|app| app.count(Kind::Connected) == CONNECTIONS);
    let mut peers: Vec<_> = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
    assert_eq!(read_exactly(&mut peers[0], 5), b"hello");
    setrlimit(Resource::Nofile, before).unwrap();
}
