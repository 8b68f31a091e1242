//! Large messages that an application receives into buffers of its own.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;

use sinews_engine::{CloseReason, Flow, ListenOptions};

use crate::support::{Event, Host, Kind, Probe, RESUME_ALL, client, config, pattern, reset};

/// More than the buffers of both sockets hold.
const BULK: usize = 12 << 20;

/// Writes `BULK` bytes on a thread of its own, and then calls `after`.
fn send_bulk(mut stream: TcpStream, after: impl FnOnce(TcpStream) + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        stream.write_all(&pattern(BULK)).unwrap();
        after(stream);
    })
}

#[test]
fn bulk_is_in_order_for_lent_and_own_buffers() {
    for most in [5000, 64 << 10, 1 << 20] {
        let mut host = Host::new(Probe::echo_nothing().with_large_buffers(most));
        let sending = send_bulk(client(host.address), |stream| stream.shutdown(Shutdown::Write).unwrap());
        host.until(|app| app.count(Kind::Ended) == 1);
        sending.join().unwrap();
        let conn = host.app.accepted()[0];
        assert!(host.app.received(conn) == pattern(BULK), "{most}");
        assert!(host.app.received_large > 0, "{most}: no bytes arrived in lent buffers");
        assert_eq!(host.engine.stats().received_bytes, BULK as u64);
    }
}

#[test]
fn pause_applies_to_lent_buffers() {
    // Pauses after each piece; mail resumes it.
    let app = Probe::new(|_, _, event| match event {
        Event::Received(..) => Flow::Pause,
        _ => Flow::Continue,
    });
    let mut host = Host::new(app.with_large_buffers(256 << 10));
    let post = host.engine.post();
    let sending = send_bulk(client(host.address), |stream| stream.shutdown(Shutdown::Write).unwrap());
    let mut resumed = 0;
    while host.app.count(Kind::Ended) == 0 {
        let received = host.app.count(Kind::Received);
        host.until(|app| app.count(Kind::Received) > resumed || app.count(Kind::Ended) == 1);
        host.settle();
        assert!(host.app.count(Kind::Received) <= received + 1, "one piece per resume");
        resumed = host.app.count(Kind::Received);
        post.send(RESUME_ALL).unwrap();
    }
    sending.join().unwrap();
    let conn = host.app.accepted()[0];
    assert!(host.app.received(conn) == pattern(BULK));
    assert!(host.app.received_large > 0);
}

#[test]
fn pause_by_another_callback_defers_buffer_in_flight() {
    // Each piece of mail pauses or resumes the connection in any state.
    let mut paused = false;
    let app = Probe::new(move |io, queues, event| {
        if let (Event::Mail(_), [conn]) = (event, queues.open_connections()) {
            paused = !paused;
            if paused { io.pause(*conn) } else { io.resume(*conn) }
        }
        Flow::Continue
    });
    let mut host = Host::new(app.with_large_buffers(64 << 10));
    let post = host.engine.post();
    let sending = send_bulk(client(host.address), |stream| stream.shutdown(Shutdown::Write).unwrap());
    let mut letters = 0;
    host.until_with(
        |_| {
            letters += 1;
            post.send(letters).unwrap();
        },
        |app| app.count(Kind::Ended) == 1,
    );
    sending.join().unwrap();
    let conn = host.app.accepted()[0];
    assert!(host.app.received(conn) == pattern(BULK));
}

#[test]
fn reset_with_lent_buffer_closes_connection() {
    for last in [0, 1, 100_000] {
        let mut host = Host::new(Probe::echo_nothing().with_large_buffers(256 << 10));
        let sending = send_bulk(client(host.address), move |mut stream| {
            stream.write_all(&vec![1; last]).unwrap();
            reset(stream);
        });
        host.until(|app| app.count(Kind::Closed) == 1);
        sending.join().unwrap();
        let conn = host.app.accepted()[0];
        assert!(
            matches!(host.app.close_reason(conn), Some(CloseReason::Reset)),
            "{:?}",
            host.app.close_reason(conn)
        );
    }
}

#[test]
fn close_within_bulk_waits_for_lent_buffer() {
    let app = Probe::new(|io, _, event| {
        if let Event::Received(conn, chunk) = event
            && chunk.len() > 1000
        {
            io.set_timer(*conn, io.now());
        }
        if let Event::Timer(conn) = event {
            io.close(*conn);
        }
        Flow::Continue
    });
    let mut host = Host::with(config(), ListenOptions::default(), app.with_large_buffers(256 << 10));
    let mut stream = client(host.address);
    // The write may fail if the connection closes first.
    let sending = std::thread::spawn(move || stream.write_all(&pattern(BULK)).is_ok());
    host.until(|app| app.count(Kind::Closed) == 1);
    sending.join().unwrap();
    assert_eq!(host.engine.stats().closes, 1);
}
