//! Timers on a running loop. The wheel's own tests cover their arithmetic, with a simulated clock.

use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Flow};

use crate::support::{Event, Host, Kind, PATIENCE, Probe};

#[test]
fn timers_fire_once_and_not_early() {
    let mut due: Vec<(ConnId, Instant)> = Vec::new();
    let mut host = Host::new(Probe::new(move |io, _, event| {
        match event {
            Event::Accepted(conn, _) => {
                let at = io.now() + Duration::from_millis(7 * due.len() as u64);
                due.push((*conn, at));
                io.set_timer(*conn, at);
            }
            Event::Timer(conn) => {
                let (_, at) = due.iter().find(|(timed, _)| timed == conn).unwrap();
                assert!(io.now() >= *at);
            }
            _ => {}
        }
        Flow::Continue
    }));
    let _clients: Vec<_> = (0..10).map(|_| host.connect()).collect();
    let start = Instant::now();
    while host.app.count(Kind::Timer) < 10 {
        // The loop wakes for its timers by itself; a wait of this length is a failure.
        host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
    }
    assert!(start.elapsed() < PATIENCE);
    host.settle();
    assert_eq!(host.app.count(Kind::Timer), 10);
}

#[test]
fn timer_moved_or_cleared_in_same_burst_does_not_fire() {
    for moved in [true, false] {
        let mut host = Host::new(Probe::new(move |io, queues, event| {
            match event {
                Event::Mail(_) => {
                    for conn in queues.open_connections() {
                        io.set_timer(*conn, io.now());
                    }
                    io.set_app_timer(io.now() + Duration::from_millis(20));
                }
                Event::Timer(fired) => {
                    for conn in queues.open_connections().iter().filter(|conn| *conn != fired) {
                        if moved {
                            io.set_timer(*conn, io.now() + Duration::from_secs(3600));
                        } else {
                            io.clear_timer(*conn);
                        }
                    }
                }
                _ => {}
            }
            Flow::Continue
        }));
        let _clients: Vec<_> = (0..5).map(|_| host.connect()).collect();
        host.engine.post().send(1).unwrap();
        host.until(|app| app.count(Kind::AppTimer) == 1);
        assert_eq!(host.app.count(Kind::Timer), 1, "moved: {moved}");
    }
}

#[test]
fn timer_set_by_its_callback_fires_in_a_later_turn() {
    let mut host = Host::new(Probe::new(|io, _, event| {
        if let Event::Accepted(conn, _) | Event::Timer(conn) = event {
            io.set_timer(*conn, io.now());
        }
        Flow::Continue
    }));
    let _client = host.connect();
    for _ in 0..20 {
        let before = host.app.count(Kind::Timer);
        host.engine.turn(&mut host.app, Some(Duration::from_millis(10))).unwrap();
        assert!(host.app.count(Kind::Timer) <= before + 1);
    }
    assert!(host.app.count(Kind::Timer) > 0);
}

#[test]
fn timer_is_cleared_when_connection_closes() {
    let mut host = Host::new(Probe::new(|io, _, event| {
        if let Event::Accepted(conn, _) = event {
            io.set_timer(*conn, io.now());
            io.set_app_timer(io.now() + Duration::from_millis(20));
            io.close(*conn);
        }
        Flow::Continue
    }));
    let _client = host.connect();
    host.until(|app| app.count(Kind::AppTimer) == 1);
    assert_eq!(host.app.count(Kind::Timer), 0);
}

#[test]
fn app_timer_can_be_cleared() {
    let mut host = Host::new(Probe::new(|io, _, event| {
        match event {
            Event::Accepted(conn, _) => {
                io.set_app_timer(io.now());
                io.clear_app_timer();
                io.set_timer(*conn, io.now() + Duration::from_millis(20));
            }
            Event::AppTimer => unreachable!("it was cleared"),
            _ => {}
        }
        Flow::Continue
    }));
    let _client = host.connect();
    host.until(|app| app.count(Kind::Timer) == 1);
}

#[test]
fn loop_wakes_for_earliest_timer() {
    for app_first in [true, false] {
        let mut host = Host::new(Probe::new(move |io, _, event| {
            if let Event::Accepted(conn, _) = event {
                let (soon, late) = (io.now() + Duration::from_millis(5), io.now() + 10 * PATIENCE);
                io.set_timer(*conn, if app_first { late } else { soon });
                io.set_app_timer(if app_first { soon } else { late });
            }
            Flow::Continue
        }));
        let _client = host.connect();
        let first = if app_first { Kind::AppTimer } else { Kind::Timer };
        let start = Instant::now();
        while host.app.count(first) == 0 {
            host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
        }
        assert!(start.elapsed() < PATIENCE);
    }
}
