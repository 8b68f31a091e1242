//! Chunks: one receive per burst, pauses, ends, resets, fairness.

use std::io::{Read, Write};
use std::net::Shutdown;

use sinews_engine::{CloseReason, Flow, ListenOptions};

use crate::support::{
    Event, Host, Kind, PATIENCE, Probe, RESUME_ALL, config, echo, pattern, read_exactly, reset,
};

#[test]
fn message_costs_one_receive_and_one_send() {
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
fn pending_messages_are_received_in_one_receive() {
    let mut host = Host::new(Probe::echo());
    let (mut client, _) = host.connect();
    host.settle();
    // Loopback delivers at once, but a busy machine may deliver late; so one success is enough.
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
        let config = config().with_receive_buffer(size).unwrap();
        let mut host = Host::with(config, ListenOptions::default(), Probe::echo());
        let (mut client, conn) = host.connect();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        host.until(|app| app.close_reason(conn).is_some());
        assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Finished)));
        assert_eq!(host.app.received(conn), sent);
        let mut echoed = Vec::new();
        client.read_to_end(&mut echoed).unwrap();
        assert_eq!(echoed, sent, "buffer of {size}");
    }
}

#[test]
fn pause_stops_receiving_without_loss() {
    // With the small buffer the pause begins while bytes are left in the kernel.
    let config = config().with_receive_buffer(16).unwrap();
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
    // These bytes arrive during the pause, with an unobserved edge; the end follows.
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
    assert!(chunks >= 7, "{chunks}: the end arrived with a chunk");
    host.until(|app| app.close_reason(conn).is_some());
    assert_eq!(host.app.received(conn), sent);
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Finished)));
}

#[test]
fn paused_drained_socket_receives_later_bytes_after_resume() {
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
fn connection_can_be_paused_in_accepted() {
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
fn reset_during_pause_is_reported_on_resume() {
    let mut host = Host::new(Probe::new(|_, _, _| Flow::Pause));
    let (mut client, conn) = host.connect();
    client.write_all(b"x").unwrap();
    host.until(|app| app.received(conn).len() == 1);
    reset(client);
    host.settle();
    host.engine.post().send(RESUME_ALL).unwrap();
    host.until(|app| app.close_reason(conn).is_some());
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Reset)));
}

#[test]
fn reset_during_pause_is_reported_by_send() {
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
    assert!(host.app.close_reason(conn).is_none());
    host.engine.post().send(0).unwrap();
    host.until(|app| app.close_reason(conn).is_some());
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Reset)));
    assert!(host.app.events.iter().any(|event| matches!(event, Event::Finished(_, false))));
}

#[test]
fn sending_continues_after_peer_shutdown() {
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
    host.until(|app| app.close_reason(conn).is_some());
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Finished)));
    assert_eq!(reader.join().unwrap().unwrap(), body);
}

#[test]
fn receiving_continues_after_local_shutdown() {
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
    assert_eq!(read, b"last words", "queued bytes are sent before the shutdown");
    client.write_all(b"still here").unwrap();
    host.until(|app| app.received(conn) == b"still here");
    host.settle();
    assert_eq!(host.engine.stats().sends, 1, "no send follows the shutdown");
    drop(client);
    host.until(|app| app.close_reason(conn).is_some());
    assert_eq!(host.app.count(Kind::Ended), 1);
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Finished)));
}

#[test]
fn reset_closes_once() {
    let mut host = Host::new(Probe::echo());
    let (mut client, conn) = host.connect();
    client.write_all(b"x").unwrap();
    host.until(|app| app.received(conn).len() == 1);
    reset(client);
    host.until(|app| app.close_reason(conn).is_some());
    host.settle();
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Reset)));
    assert_eq!((host.app.count(Kind::Closed), host.app.count(Kind::Ended)), (1, 0));
}

#[test]
fn reset_after_peer_shutdown_is_reported_without_send() {
    let mut host = Host::new(Probe::new(|_, _, _| Flow::Continue));
    let (client, conn) = host.connect();
    client.shutdown(Shutdown::Write).unwrap();
    host.until(|app| app.count(Kind::Ended) == 1);
    host.settle();
    assert!(host.app.close_reason(conn).is_none(), "the local side is still open");
    reset(client);
    host.until(|app| app.close_reason(conn).is_some());
    assert!(matches!(host.app.close_reason(conn), Some(CloseReason::Reset)));
}

#[test]
fn flood_on_one_connection_does_not_starve_another() {
    let config = config()
        .with_receive_buffer(4096)
        .unwrap()
        .with_receives_per_turn(2)
        .unwrap()
        .with_ring_buffers(2)
        .unwrap();
    let mut host = Host::with(config, ListenOptions::default(), Probe::new(|_, _, _| Flow::Continue));
    let (mut flood, flooding) = host.connect();
    let (mut quiet, modest) = host.connect();
    host.settle();
    let sent = pattern(256 * 1024);
    flood.write_all(&sent).unwrap();
    quiet.write_all(b"me too").unwrap();
    // The system determines when the small message arrives; the loop determines how much of the flood one
    // turn receives.
    while host.app.received(modest) != b"me too" {
        let before = host.app.received(flooding).len();
        host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
        assert!(host.app.received(flooding).len() - before <= 2 * 4096);
    }
    host.until(|app| app.received(flooding).len() == sent.len());
    assert_eq!(host.app.received(flooding), sent);
}
