//! Ends: close from within any callback, graceful stop, stop.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use sinews_engine::{CloseReason, ConnId, Engine, Flow, Io, ListenOptions, Listener};

use crate::support::{Event, Host, Kind, Probe, Queues, client, config, echo};

/// The connection that a callback closes, relative to its own connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Itself,
    Other,
    Everybody,
}

/// A rule that triggers all events: large answers to a small buffer, timers, mail. It closes at the first
/// event of one kind.
fn closing_rule(kind: Kind, target: Target) -> impl FnMut(&mut Io, &mut Queues, &Event) -> Flow {
    let mut done = false;
    let timed = matches!(kind, Kind::Timer | Kind::AppTimer);
    move |io, queues, event| {
        match event {
            Event::Accepted(conn, _) => {
                io.set_timer(*conn, io.now());
                io.set_app_timer(io.now());
            }
            Event::Received(conn, _) => {
                queues.push(*conn, vec![7; 512 * 1024]);
                io.send(*conn);
            }
            // A timer needs time to expire.
            Event::Ended(conn) if !timed => io.shutdown(*conn),
            _ if timed && event.kind() == kind => {
                queues.open_connections().iter().for_each(|conn| io.shutdown(*conn))
            }
            _ => {}
        }
        if event.kind() == kind && (queues.open_connections().len() == 2 || kind == Kind::Closed) && !done {
            done = true;
            for conn in queues.open_connections().to_vec() {
                let itself = event.conn().is_none_or(|this| this == conn);
                if target == Target::Everybody || itself == (target == Target::Itself) {
                    io.send(conn);
                    io.close(conn);
                    // All of these commands are too late.
                    io.close(conn);
                    io.send(conn);
                    io.shutdown(conn);
                    io.resume(conn);
                    io.set_timer(conn, io.now());
                }
            }
        }
        Flow::Continue
    }
}

/// Sends some bytes, shuts down, and reads until the end or an error.
fn talk(mut stream: TcpStream) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let _ = stream.write_all(b"hello").and_then(|()| stream.shutdown(Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

#[test]
fn any_callback_may_close_any_connection() {
    use Kind::{Accepted, AppTimer, Ended, Finished, Mail, Progressed, Received, Timer};
    for kind in [Accepted, Received, Ended, Progressed, Finished, Timer, AppTimer, Mail, Kind::Closed] {
        for target in [Target::Itself, Target::Other, Target::Everybody] {
            let app = Probe::new(closing_rule(kind, target));
            let options = ListenOptions::default().with_send_buffer(8 * 1024);
            let mut host = Host::with(config(), options, app);
            let clients = [client(host.address), client(host.address)].map(talk);
            host.engine.post().send(1).unwrap();
            host.until(|app| app.count(Accepted) == 2);
            host.engine.post().send(2).unwrap();
            host.until(|app| app.count(Kind::Closed) == 2);
            host.settle();
            assert_eq!(
                (host.app.open_connections(), host.app.count(Kind::Closed)),
                (0, 2),
                "{kind:?} {target:?}"
            );
            assert!(host.app.count(kind) > 0, "{kind:?} happened");
            let stats = host.engine.stats();
            assert_eq!((stats.accepts, stats.closes), (2, 2));
            let watch = host.engine.stats_reader();
            assert_eq!(std::thread::spawn(move || watch.stats()).join().unwrap(), stats);
            for client in clients {
                client.join().unwrap();
            }
        }
    }
}

#[test]
fn no_chunk_is_received_after_close_in_received() {
    let config = config().with_receive_buffer(4).unwrap();
    let app = Probe::new(|io, _, event| {
        if let Event::Received(conn, _) = event {
            io.close(*conn);
        }
        Flow::Continue
    });
    let mut host = Host::with(config, ListenOptions::default(), app);
    let (mut client, conn) = host.connect();
    client.write_all(b"four and more").unwrap();
    host.until(|app| app.close_reason(conn).is_some());
    assert_eq!(host.app.received(conn), b"four");
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Requested)));
}

#[test]
fn commands_on_closed_connection_do_not_affect_slot_reuse() {
    let mut gone: Option<ConnId> = None;
    let app = Probe::new(move |io, queues, event| {
        match event {
            Event::Accepted(conn, _) if gone.is_none() => {
                gone = Some(*conn);
                io.close(*conn);
            }
            Event::Received(conn, _) => {
                let gone = gone.unwrap();
                assert_eq!((gone.index(), gone == *conn), (conn.index(), false), "the slot is reused");
                io.close(gone);
                io.shutdown(gone);
                io.pause(gone);
                io.set_timer(gone, io.now());
                io.clear_timer(gone);
                io.send(gone);
                echo(io, queues, event);
            }
            _ => echo(io, queues, event),
        }
        Flow::Continue
    });
    let mut host = Host::new(app);
    let _first = host.connect();
    host.until(|app| app.count(Kind::Closed) == 1);
    let (mut client, conn) = host.connect();
    for byte in *b"abc" {
        client.write_all(&[byte]).unwrap();
        let mut echoed = [0];
        host.until(|app| app.received(conn).last() == Some(&byte));
        client.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, [byte]);
    }
    assert_eq!((host.app.count(Kind::Timer), host.app.count(Kind::Closed)), (0, 1));
}

#[test]
fn stop_accepting_resets_backlog_and_waits_for_open_connections() {
    let mut host = Host::new(Probe::new(|io, queues, event| {
        if let Event::Mail(_) = event {
            io.stop_accepting();
        }
        echo(io, queues, event);
        Flow::Continue
    }));
    let (mut old, _) = host.connect();
    host.engine.post().send(1).unwrap();
    host.until(|app| app.count(Kind::Mail) == 1);
    let refused = TcpStream::connect(host.address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(host.engine.turn(&mut host.app, Some(Duration::ZERO)).unwrap(), "one connection is left");
    old.write_all(b"served still").unwrap();
    old.shutdown(Shutdown::Write).unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = String::new();
        old.read_to_string(&mut read).map(|_| read)
    });
    host.engine.run(&mut host.app).unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), "served still");
    assert_eq!(host.app.open_connections(), 0);
}

#[test]
fn stop_closes_all_connections_and_returns() {
    // Including a stop in the last callbacks of a turn.
    for kind in [Kind::Received, Kind::Finished, Kind::Mail] {
        let mut host = Host::new(Probe::new(move |io, queues, event| {
            echo(io, queues, event);
            if event.kind() == kind {
                io.stop();
            }
            Flow::Continue
        }));
        let mut clients: Vec<TcpStream> = (0..5).map(|_| host.connect().0).collect();
        clients[0].write_all(b"x").unwrap();
        host.engine.post().send(1).unwrap();
        host.engine.run(&mut host.app).unwrap();
        let stopped =
            host.app.events.iter().filter(|event| matches!(event, Event::Closed(_, CloseReason::Stopped)));
        assert_eq!((stopped.count(), host.app.open_connections()), (5, 0), "{kind:?}");
        assert!(TcpStream::connect(host.address).is_err());
    }
}

#[test]
fn loop_without_listeners_returns_at_once() {
    let mut engine = Engine::<Probe>::new(config(), Vec::new()).unwrap();
    engine.run(&mut Probe::echo()).unwrap();
}

#[test]
fn engine_runs_on_another_thread_than_its_creator() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut engine = Engine::<Probe>::new(config(), vec![listener]).unwrap();
    let post = engine.post();
    let thread = std::thread::spawn(move || {
        let mut app = Probe::new(|io, _, event| {
            if let Event::Mail(_) = event {
                io.stop();
            }
            Flow::Continue
        });
        engine.run(&mut app).unwrap();
        app.accepted().into_iter().collect::<HashSet<_>>().len()
    });
    let _clients: Vec<TcpStream> = (0..3).map(|_| client(address)).collect();
    post.send(1).unwrap();
    assert!(thread.join().unwrap() <= 3, "connections in the backlog may not have been accepted");
    assert!(post.is_closed());
}
