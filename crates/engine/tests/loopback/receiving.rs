//! Chunks: one receive per burst, pauses, ends, resets, fairness.

use std::io::{Read, Write};
use std::net::Shutdown;

use sinews_engine::{Closed, Flow, ListenOptions};

use crate::support::{
    Event, Host, Kind, PATIENCE, Probe, RESUME_ALL, config, echo, pattern, read_exactly, reset,
};

#[test]
fn a_message_costs_one_receive_and_one_send() {
    let mut host = Host::new(Probe::echo());
    let (mut client, _) = host.connect();
    for round in 1..=500_usize {
        client.write_all(&[round as u8]).unwrap();
        host.until(|app| app.count(Kind::Finished) == round);
        assert_eq!(read_exactly(&mut client, 1), [round as u8]);
    }
    host.settle();
    let stats = host.engine.stats();
    assert_eq!((stats.receives, stats.sends), (500, 500));
    assert_eq!((stats.received_bytes, stats.sent_bytes), (500, 500));
}

#[test]
fn messages_that_wait_together_are_received_together() {
    let mut host = Host::new(Probe::echo());
    let (mut client, _) = host.connect();
    host.settle();
    // Loopback delivers at once, but a busy machine may deliver late; so it is enough to see it once.
    let together = (0..50).any(|_| {
        let before = host.engine.stats();
        for _ in 0..50 {
            client.write_all(b"a small message ").unwrap();
        }
        while host.engine.stats().sent_bytes < before.sent_bytes + 50 * 16 {
            host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
        }
        assert_eq!(read_exactly(&mut client, 50 * 16), b"a small message ".repeat(50));
        let after = host.engine.stats();
        (after.receives - before.receives, after.sends - before.sends) == (1, 1)
    });
    assert!(together, "50 messages, one receive, one send");
}

#[test]
fn any_buffer_size_receives_the_same_bytes() {
    let sent = pattern(10_000);
    for size in [1, 2, 7, 4096, 10_000, 10_001] {
        let config = config().receive_buffer(size).unwrap();
        let mut host = Host::with(config, ListenOptions::default(), Probe::echo());
        let (mut client, conn) = host.connect();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        host.until(|app| app.why(conn).is_some());
        assert!(matches!(host.app.why(conn), Some(Closed::Finished)));
        assert_eq!(host.app.received(conn), sent);
        let mut echoed = Vec::new();
        client.read_to_end(&mut echoed).unwrap();
        assert_eq!(echoed, sent, "buffer of {size}");
    }
}

#[test]
fn nothing_is_received_in_a_pause_and_nothing_is_lost_by_it() {
    // The small buffer makes the pause come in the middle of what waits in the kernel.
    let config = config().receive_buffer(16).unwrap();
    let app = Probe::new(|io, queues, event| {
        echo(io, queues, event);
        Flow::Pause
    });
    let mut host = Host::with(config, ListenOptions::default(), app);
    let post = host.engine.post();
    let (mut client, conn) = host.connect();
    let sent = pattern(100);
    client.write_all(&sent[..40]).unwrap();
    host.until(|app| app.count(Kind::Received) == 1);
    // These come during the pause, with an edge nobody waits for; then the end.
    client.write_all(&sent[40..]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut chunks = 1;
    while host.app.count(Kind::Ended) == 0 {
        host.settle();
        assert_eq!(host.app.count(Kind::Received), chunks, "one chunk per resume");
        post.send(RESUME_ALL).unwrap();
        host.until(|app| app.count(Kind::Received) > chunks || app.count(Kind::Ended) > 0);
        chunks += 1;
    }
    assert!(chunks >= 7, "{chunks}: the end came with a chunk");
    host.until(|app| app.why(conn).is_some());
    assert_eq!(host.app.received(conn), sent);
    assert!(matches!(host.app.why(conn), Some(Closed::Finished)));
}

#[test]
fn a_pause_that_drained_the_socket_still_sees_what_comes_later() {
    let mut host = Host::new(Probe::new(|_, _, _| Flow::Pause));
    let post = host.engine.post();
    let (mut client, conn) = host.connect();
    for round in 1..=20 {
        client.write_all(b"x").unwrap();
        host.until(|app| app.received(conn).len() == round);
        host.settle();
        post.send(RESUME_ALL).unwrap();
        host.settle();
    }
}

#[test]
fn a_connection_may_be_paused_from_the_start() {
    let mut host = Host::new(Probe::new(|io, _, event| {
        if let Event::Accepted(conn, _) = event {
            io.pause(*conn);
        }
        Flow::Continue
    }));
    let (mut client, conn) = host.connect();
    client.write_all(b"early").unwrap();
    host.settle();
    assert_eq!(host.app.received(conn), b"");
    host.engine.post().send(RESUME_ALL).unwrap();
    host.until(|app| app.received(conn) == b"early");
}

#[test]
fn a_reset_in_a_pause_is_found_on_resume() {
    let mut host = Host::new(Probe::new(|_, _, _| Flow::Pause));
    let (mut client, conn) = host.connect();
    client.write_all(b"x").unwrap();
    host.until(|app| app.received(conn).len() == 1);
    reset(client);
    host.settle();
    host.engine.post().send(RESUME_ALL).unwrap();
    host.until(|app| app.why(conn).is_some());
    assert!(matches!(host.app.why(conn), Some(Closed::Reset)));
}

#[test]
fn a_reset_in_a_pause_is_found_by_a_send() {
    let mut host = Host::new(Probe::new(|io, queues, event| {
        if let Event::Mail(_) = event {
            let conn = queues.only();
            queues.push(conn, *b"anyone there?");
            io.send(conn);
        }
        Flow::Pause
    }));
    let (mut client, conn) = host.connect();
    client.write_all(b"x").unwrap();
    host.until(|app| app.received(conn).len() == 1);
    reset(client);
    host.settle();
    assert!(host.app.why(conn).is_none());
    host.engine.post().send(0).unwrap();
    host.until(|app| app.why(conn).is_some());
    assert!(matches!(host.app.why(conn), Some(Closed::Reset)));
    assert!(host.app.events.iter().any(|event| matches!(event, Event::Finished(_, false))));
}

#[test]
fn sending_goes_on_after_the_peer_has_ended() {
    let body = pattern(1 << 20);
    let reply = body.clone();
    let mut host = Host::new(Probe::new(move |io, queues, event| {
        if let Event::Ended(conn) = event {
            queues.push(*conn, reply.clone());
            io.send(*conn);
            io.shutdown(*conn);
        }
        Flow::Continue
    }));
    let (mut client, conn) = host.connect();
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        client.read_to_end(&mut read).map(|_| read)
    });
    host.until(|app| app.why(conn).is_some());
    assert!(matches!(host.app.why(conn), Some(Closed::Finished)));
    assert_eq!(reader.join().unwrap().unwrap(), body);
}

#[test]
fn receiving_goes_on_after_our_side_has_ended() {
    let mut host = Host::new(Probe::new(|io, queues, event| {
        match event {
            Event::Accepted(conn, _) => {
                queues.push(*conn, *b"last words");
                io.shutdown(*conn);
            }
            Event::Received(conn, _) => {
                queues.push(*conn, *b"too late");
                io.send(*conn);
            }
            _ => {}
        }
        Flow::Continue
    }));
    let (mut client, conn) = host.connect();
    let mut read = Vec::new();
    host.settle();
    client.read_to_end(&mut read).unwrap();
    assert_eq!(read, b"last words", "what is queued leaves before the end, asked for or not");
    client.write_all(b"still here").unwrap();
    host.until(|app| app.received(conn) == b"still here");
    host.settle();
    assert_eq!(host.engine.stats().sends, 1, "nothing is sent after the end");
    drop(client);
    host.until(|app| app.why(conn).is_some());
    assert_eq!(host.app.count(Kind::Ended), 1);
    assert!(matches!(host.app.why(conn), Some(Closed::Finished)));
}

#[test]
fn a_reset_closes_once() {
    let mut host = Host::new(Probe::echo());
    let (mut client, conn) = host.connect();
    client.write_all(b"x").unwrap();
    host.until(|app| app.received(conn).len() == 1);
    reset(client);
    host.until(|app| app.why(conn).is_some());
    host.settle();
    assert!(matches!(host.app.why(conn), Some(Closed::Reset)));
    assert_eq!((host.app.count(Kind::Closed), host.app.count(Kind::Ended)), (1, 0));
}

#[test]
fn a_reset_after_the_end_is_found_without_sending() {
    let mut host = Host::new(Probe::new(|_, _, _| Flow::Continue));
    let (client, conn) = host.connect();
    client.shutdown(Shutdown::Write).unwrap();
    host.until(|app| app.count(Kind::Ended) == 1);
    host.settle();
    assert!(host.app.why(conn).is_none(), "our side is open still");
    reset(client);
    host.until(|app| app.why(conn).is_some());
    assert!(matches!(host.app.why(conn), Some(Closed::Reset)));
}

#[test]
fn a_flood_on_one_connection_does_not_starve_another() {
    let config =
        config().receive_buffer(4096).unwrap().receives_per_turn(2).unwrap().ring_buffers(2).unwrap();
    let mut host = Host::with(config, ListenOptions::default(), Probe::new(|_, _, _| Flow::Continue));
    let (mut flood, flooding) = host.connect();
    let (mut quiet, modest) = host.connect();
    host.settle();
    let sent = pattern(256 * 1024);
    flood.write_all(&sent).unwrap();
    quiet.write_all(b"me too").unwrap();
    // When the few bytes arrive beside the many is the system's affair; what one turn takes of these is the loop's.
    while host.app.received(modest) != b"me too" {
        let before = host.app.received(flooding).len();
        host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
        assert!(host.app.received(flooding).len() - before <= 2 * 4096);
    }
    host.until(|app| app.received(flooding).len() == sent.len());
    assert_eq!(host.app.received(flooding), sent);
}
