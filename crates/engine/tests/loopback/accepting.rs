//! Listeners: shared ports, storms, shortages.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sinews_engine::{BackendChoice, Engine, EngineConfig, Flow, ListenOptions, Listener};
use socket2::SockRef;

use crate::support::{Event, Host, Kind, PATIENCE, Probe, client, config, echo, read_exactly};

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// An address of this process alone: no other process takes its ports once they are free. Other systems than Linux have one
/// address of the loopback.
fn own_loopback() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = if cfg!(target_os = "linux") { [127, 77, high, low] } else { [127, 0, 0, 1] };
    (host, 0).into()
}

/// Binds an address whose listener was dropped. A process that another test starts at this moment has a copy of that
/// listener until it executes its program.
fn bind_again<T>(bind: impl Fn() -> io::Result<T>) -> T {
    let begin = Instant::now();
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begin.elapsed() < PATIENCE => {
                std::thread::yield_now();
            }
            result => return result.unwrap(),
        }
    }
}

#[test]
fn bind_fails_on_port_in_use_even_if_shared() {
    let options = ListenOptions::default();
    for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let held = Listener::bind_all(own_loopback(), first, &options).unwrap();
        let address = held[0].local_addr().unwrap();
        let error = Listener::bind_all(address, second, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{second} listeners on a port with {first}");
        drop(held);
        bind_again(|| Listener::bind_all(address, second, &options));
    }
    assert_eq!(Listener::bind_all(loopback(0), 0, &options).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn listeners_of_one_port_share_its_connections() {
    let listeners = Listener::bind_all(loopback(0), 2, &ListenOptions::default()).unwrap();
    let address = listeners[0].local_addr().unwrap();
    assert_eq!(listeners[1].local_addr().unwrap(), address);
    let mut hosts = listeners.into_iter().map(|listener| {
        let engine = Engine::new(config(), vec![listener]).unwrap();
        Host { engine, app: Probe::echo(), address }
    });
    let (mut one, mut other) = (hosts.next().unwrap(), hosts.next().unwrap());
    // The kernel distributes by a hash: the probability that one gets none of 200 is 2^-199.
    let clients: Vec<TcpStream> = (0..200).map(|_| client(address)).collect();
    one.settle();
    other.settle();
    let shares = [&one, &other].map(|host| host.app.count(Kind::Accepted));
    assert_eq!(shares[0] + shares[1], clients.len());
    assert!(shares[0] > 0 && shares[1] > 0, "{shares:?}");
}

#[test]
fn path_is_shared_by_several_listeners() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::bind_unix(&path, 0o600, &ListenOptions::default()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let listeners = [listener.try_clone().unwrap(), listener];
    let mut hosts = listeners.map(|listener| Host {
        engine: Engine::new(config(), vec![listener]).unwrap(),
        app: Probe::echo(),
        address: loopback(0),
    });
    let mut clients: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for client in &mut clients {
        client.write_all(&[7; 100_000]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        client.set_nonblocking(true).unwrap();
    }
    let mut echoed = vec![0; clients.len()];
    while echoed.iter().any(|bytes| *bytes < 100_000) {
        hosts.iter_mut().for_each(Host::settle);
        for (client, bytes) in clients.iter_mut().zip(&mut echoed) {
            let mut chunk = [0; 64 << 10];
            match client.read(&mut chunk) {
                Ok(count) => *bytes += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
    hosts.iter_mut().for_each(Host::settle);
    let accepted: Vec<_> = hosts.iter().flat_map(|host| &host.app.events).collect();
    let from: Vec<_> = accepted
        .iter()
        .filter_map(|event| if let Event::Accepted(_, from) = event { Some(from.peer) } else { None })
        .collect();
    assert_eq!(from, vec![SocketAddr::from(([0, 0, 0, 0], 0)); 20]);
}

#[test]
fn bind_unix_replaces_only_stale_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let options = ListenOptions::default();
    let held = Listener::bind_unix(&path, 0o600, &options).unwrap();
    let in_use = Listener::bind_unix(&path, 0o600, &options).unwrap_err();
    assert_eq!(in_use.kind(), ErrorKind::AddrInUse);
    drop(held);
    assert!(path.exists(), "the file remains after the server");
    drop(bind_again(|| Listener::bind_unix(&path, 0o666, &options)));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    let file = directory.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let no_socket = Listener::bind_unix(&file, 0o600, &options).unwrap_err();
    assert_eq!(no_socket.kind(), ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}

#[test]
fn accepted_reports_listener_and_peer() {
    let listeners: Vec<Listener> =
        (0..2).map(|_| Listener::bind(loopback(0), &ListenOptions::default()).unwrap()).collect();
    let address = listeners[1].local_addr().unwrap();
    let engine = Engine::new(config(), listeners).unwrap();
    let mut host = Host { engine, app: Probe::echo(), address };
    let (client, _) = host.connect();
    let Event::Accepted(_, from) = &host.app.events[1] else { panic!("accepted follows started") };
    assert_eq!((from.listener, from.peer), (1, client.local_addr().unwrap()));
}

#[test]
fn ipv6_addresses_work() {
    let Ok(listener) = Listener::bind((Ipv6Addr::LOCALHOST, 0).into(), &ListenOptions::default()) else {
        return; // A machine without IPv6.
    };
    let address = listener.local_addr().unwrap();
    let engine = Engine::new(config(), vec![listener]).unwrap();
    let mut host = Host { engine, app: Probe::echo(), address };
    let (mut client, _) = host.connect();
    client.write_all(b"six").unwrap();
    host.until(|app| app.count(Kind::Finished) == 1);
    assert_eq!(read_exactly(&mut client, 3), b"six");
}

#[test]
fn connection_storm_does_not_starve_established_connections() {
    const CONNECTIONS: usize = 2000;
    let config = config().with_accepts_per_turn(16).unwrap();
    let mut host = Host::with(config, ListenOptions::default(), Probe::echo());
    let address = host.address;
    let storm = std::thread::spawn(move || {
        let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| client(address)).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&[number as u8]).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(read_exactly(client, 1), [number as u8]);
        }
    });
    host.until(|app| app.count(Kind::Closed) == CONNECTIONS);
    storm.join().unwrap();
    let stats = host.engine.stats();
    assert_eq!((stats.accepts, stats.closes), (CONNECTIONS as u64, CONNECTIONS as u64));
    assert_eq!(stats.received_bytes, CONNECTIONS as u64);
}

#[test]
fn turn_accepts_at_most_accepts_per_turn() {
    let config = config().with_accepts_per_turn(2).unwrap();
    let mut host = Host::with(config, ListenOptions::default(), Probe::echo());
    let _clients: Vec<TcpStream> = (0..5).map(|_| client(host.address)).collect();
    let mut accepted = 0;
    while accepted < 5 {
        // The backlog is processed without waiting for further connections.
        host.engine.turn(&mut host.app, None).unwrap();
        let now = host.app.count(Kind::Accepted);
        assert!(now - accepted <= 2, "{now} after {accepted}");
        accepted = now;
    }
}

/// Descriptors are a limit of the process, so a test that exhausts them runs in a process of its own.
pub(crate) fn in_a_process_of_its_own(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--test-threads=1"])
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
}

/// A loop whose connections are descriptors. For a ring, where they are not, see `ring`.
fn with_descriptors() -> EngineConfig {
    config().with_backend(BackendChoice::Poll)
}

/// Leaves the process this many free descriptors.
pub(crate) fn leave_free(descriptors: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let set = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    set(maximum);
    let lowest_free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    set(Some(lowest_free + descriptors));
}

#[test]
fn descriptor_shortage_ends_when_a_connection_closes() {
    in_a_process_of_its_own("accepting::child_lacks_descriptors_until_a_close");
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn child_lacks_descriptors_until_a_close() {
    // The pause is far longer than the test: only a close ends it.
    let config = with_descriptors().with_accept_backoff(Duration::from_secs(60)).unwrap();
    let app = Probe::new(|io, queues, event| {
        echo(io, queues, event);
        if let Event::Mail(_) = event {
            io.set_app_timer(io.now() + Duration::from_millis(50));
        }
        Flow::Continue
    });
    let mut host = Host::with(config, ListenOptions::default(), app);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| client(host.address)).collect();
    leave_free(5);
    host.settle();
    assert_eq!((host.app.open_connections(), host.engine.stats().accept_stalls), (5, 1));
    // The loop sleeps during the shortage, although the backlog is not empty.
    host.engine.post().send(1).unwrap();
    let turns = host.engine.stats().turns;
    while host.app.count(Kind::AppTimer) == 0 {
        host.engine.turn(&mut host.app, None).unwrap();
    }
    assert!(host.engine.stats().turns - turns <= 10);
    // Accepted connections are still served. Backlogs are first in, first out.
    clients[0].write_all(b"served").unwrap();
    host.until(|app| app.count(Kind::Finished) == 1);
    assert_eq!(read_exactly(&mut clients[0], 6), b"served");
    // A client that closes frees two descriptors, its own and the server's: two more connections are
    // accepted.
    drop(clients.remove(0));
    host.until(|app| app.count(Kind::Accepted) == 7);
    host.settle();
    assert_eq!((host.app.open_connections(), host.app.count(Kind::Accepted)), (6, 7));
    assert_eq!(host.engine.stats().accept_stalls, 1, "one shortage, one report");
    leave_free(50);
    drop(clients.remove(0));
    host.until(|app| app.count(Kind::Accepted) == 20);
    assert_eq!(host.engine.stats().accept_stalls, 1);
    // The backlog has been emptied, so the next shortage is reported again.
    host.settle();
    clients.extend((0..3).map(|_| client(host.address)));
    leave_free(1);
    host.settle();
    assert_eq!(host.engine.stats().accept_stalls, 2);
}

#[test]
fn descriptor_shortage_ends_after_backoff() {
    in_a_process_of_its_own("accepting::child_lacks_descriptors_for_a_while");
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn child_lacks_descriptors_for_a_while() {
    let config = with_descriptors().with_accept_backoff(Duration::from_millis(1)).unwrap();
    let mut host = Host::with(config, ListenOptions::default(), Probe::echo());
    let mut clients: Vec<TcpStream> = (0..10).map(|_| client(host.address)).collect();
    leave_free(0);
    // After many attempts during the shortage the loop still runs.
    for _ in 0..20 {
        assert!(host.engine.turn(&mut host.app, None).unwrap());
    }
    assert_eq!((host.app.count(Kind::Accepted), host.engine.stats().accept_stalls), (0, 1));
    leave_free(50);
    host.until(|app| app.count(Kind::Accepted) == 10);
    for client in &mut clients {
        client.write_all(b"x").unwrap();
    }
    host.until(|app| app.count(Kind::Finished) == 10);
    for client in &mut clients {
        client.read_exact(&mut [0]).unwrap();
    }
}

/// One loop passes its listener to another, as to another process, and stops accepting meanwhile.
fn assert_listener_is_passed_on(from: BackendChoice, to: BackendChoice) {
    let listener = Listener::bind(loopback(0), &ListenOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let other = listener.as_fd().try_clone_to_owned().unwrap();
    let (post, posts) = std::sync::mpsc::channel();
    let serve = |backend: BackendChoice, listener: Listener| {
        let post = post.clone();
        std::thread::spawn(move || {
            let mut app = Probe::new(|io, queues, event| {
                if let Event::Mail(_) = event {
                    io.stop_accepting();
                }
                echo(io, queues, event);
                Flow::Continue
            });
            let mut engine = Engine::new(config().with_backend(backend), vec![listener]).unwrap();
            post.send(engine.post()).unwrap();
            engine.run(&mut app).unwrap();
            app.count(Kind::Accepted)
        })
    };
    let first = serve(from, listener);
    let first_post = posts.recv_timeout(PATIENCE).unwrap();
    let talk = |times: usize| {
        for _ in 0..times {
            let mut client = client(address);
            client.write_all(b"hello").unwrap();
            assert_eq!(read_exactly(&mut client, 5), b"hello");
        }
    };
    talk(50);
    let second = serve(to, Listener::from_fd(other).unwrap());
    let second_post = posts.recv_timeout(PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let talkers = [(); 4].map(|()| scope.spawn(|| talk(200)));
        talk(20);
        first_post.send(1).unwrap();
        talkers.into_iter().for_each(|talker| talker.join().unwrap());
    });
    second_post.send(1).unwrap();
    assert_eq!(first.join().unwrap() + second.join().unwrap(), 50 + 20 + 4 * 200);
}

#[test]
fn inherited_listener_loses_no_connection() {
    let fails =
        |backend| Engine::<Probe>::new(EngineConfig::default().with_backend(backend), Vec::new()).is_err();
    let backends: &[BackendChoice] = if fails(BackendChoice::Uring) {
        &[BackendChoice::Poll]
    } else {
        &[BackendChoice::Poll, BackendChoice::Uring]
    };
    for from in backends {
        for to in backends {
            assert_listener_is_passed_on(*from, *to);
        }
    }
}

#[test]
fn bind_beside_adds_listeners_to_unshared_port() {
    let options = ListenOptions::default();
    let first = Listener::bind(loopback(0), &options).unwrap();
    let address = first.local_addr().unwrap();
    let inherited = Listener::from_fd(first.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let beside = inherited.bind_beside(2, &options).unwrap();
    assert!(beside.iter().all(|listener| listener.local_addr().unwrap() == address));
    let error = Listener::from_fd(File::open("/dev/null").unwrap().into()).unwrap_err();
    assert!(error.raw_os_error().is_some(), "no socket: {error}");
}

/// A parent process, such as systemd, creates sockets without the option.
#[test]
fn adopted_listener_has_nodelay() {
    let socket = std::net::TcpListener::bind(loopback(0)).unwrap();
    assert!(!SockRef::from(&socket).tcp_nodelay().unwrap());
    let listener = Listener::from_fd(socket.into()).unwrap();
    assert!(SockRef::from(&listener).tcp_nodelay().unwrap());
}
