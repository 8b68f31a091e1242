//! Limits that a valid client does not exceed, and what holds memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};

use sinews_server::{Limit, Limits, WhenFull};
use sinews_testkit::Frame as WsFrame;

use super::sockets::{End, Sockets, VERSION, connect_block};
use super::*;
use crate::support::echo;

/// A proxy may send the rest of a body long after the answer, when many streams have ended.
#[test]
fn late_bodies_of_answered_requests_are_ignored_however_many_streams_end() {
    let (_server, mut client) = Http2Server::connected(patient());
    client.frame(HEADERS, END_HEADERS, 1, &block(METHOD_POST, "/missing", &[]));
    assert_eq!(client.until(RST_STREAM).payload, [0; 4]);
    let last = 801;
    for stream in (3..=last).step_by(2) {
        client.get(stream, "/");
        assert_eq!(client.answers(&[stream])[&stream].0, OK);
    }
    client.frame(DATA, END_STREAM, 1, b"late");
    client.get(last + 2, "/");
    assert_eq!(client.answers(&[last + 2])[&(last + 2)].1, b"hello\n");
    // A frame after the end of a stream remains an error.
    client.frame(DATA, END_STREAM, last + 2, b"late");
    client.fails(5);
}

/// All users of a proxy but one leave at once.
#[test]
fn sockets_of_a_proxy_that_end_at_once_leave_the_others_open() {
    const SOCKETS: u32 = 500;
    let http = patient().with_http2_clear_text(true).with_http2_max_streams(SOCKETS);
    let router = Router::new().websocket("/", echo());
    let server = Server::new(router).threads(1).http(http);
    let running = Running::server(server);
    let mut sockets = Sockets::new(&running);
    let streams: Vec<u32> = (0..SOCKETS).map(|number| 2 * number + 1).collect();
    for stream in &streams {
        sockets.request(*stream, &connect_block("websocket", "/", &[VERSION]));
    }
    for stream in &streams {
        assert_eq!(sockets.status(*stream), 200);
    }
    let (stays, leave) = streams.split_last().unwrap();
    let resets: Vec<u8> =
        leave.iter().flat_map(|stream| frame(RST_STREAM, 0, *stream, &[0, 0, 0, 8])).collect();
    sockets.http2.send(&resets);
    sockets.sync(*stays);
    // Others take their streams, and leave too.
    let mut next = SOCKETS * 2 + 1;
    for _ in leave {
        assert_eq!(sockets.connect(next, "/", &[]), 200);
        next += 2;
    }
    sockets.sync(*stays);
}

/// Each read of the server ends inside of the next header block.
#[test]
fn busy_clients_outlive_the_head_timeout() {
    let timeout = Duration::from_secs(4);
    let (server, mut client) = Http2Server::connected(patient().with_head_timeout(timeout));
    client.until(SETTINGS);
    client.frame(WINDOW_UPDATE, 0, 0, &[0x3f, 0, 0, 0]);
    let start = std::time::Instant::now();
    let (mut stream, mut rest) = (1, Vec::new());
    while start.elapsed() < timeout * 5 / 4 {
        let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(METHOD_GET, "/", &[]));
        client.send(&[&rest[..], &head[..12]].concat());
        if !rest.is_empty() {
            let answer = client.until(DATA);
            assert_eq!((answer.stream, &answer.payload[..]), (stream - 2, &b"hello\n"[..]));
        }
        (rest, stream) = (head[12..].to_vec(), stream + 2);
    }
    assert_eq!(server.monitor.metrics().http2_failed.total(), 0);
}

/// CVE-2019-9517: windows of zero, and large answers.
#[test]
fn answers_to_closed_windows_count_as_memory() {
    const ANSWER: usize = 1 << 20;
    let router = Router::new().get("/made", |_| Response::text(vec![b'x'; ANSWER])).get("/shared", {
        let body = bytes::Bytes::from(vec![b'x'; ANSWER]);
        move |_| Response::text(body.clone())
    });
    let limits = Limits::default().with_max_memory(20 * ANSWER).with_when_full(WhenFull::Close);
    let http = patient().with_http2_clear_text(true).with_max_queued_answers(usize::MAX);
    let monitor = router.monitor();
    let running = Running::server(Server::new(router).threads(1).http(http).limits(limits));
    let connect = || Http2Client::connect(&running, NO_WINDOW);
    // Answers that all clients share take no memory of a client.
    let mut neighbor = connect();
    for stream in (1..100).step_by(2) {
        neighbor.get(stream, "/shared");
        while neighbor.until(HEADERS).stream != stream {}
    }
    assert_eq!(monitor.metrics().limited.get(Limit::Memory), 0);
    let mut client = connect();
    for stream in (1..20).step_by(2) {
        client.get(stream, "/made");
        while client.until(HEADERS).stream != stream {}
    }
    let queued = || monitor.metrics().queued_bytes;
    until("queued answers", || queued() >= 10 * ANSWER as u64);
    // One that is reset is free again.
    client.frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    until("fewer queued answers", || queued() <= 10 * ANSWER as u64);
    for stream in (21..80).step_by(2) {
        // The connection may close before the last request.
        let request = frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(METHOD_GET, "/made", &[]));
        client.client.try_send(request);
    }
    while client.read().is_some() {}
    assert_eq!(monitor.metrics().limited.get(Limit::Memory), 1);
    neighbor.get(201, "/shared");
    while neighbor.until(HEADERS).stream != 201 {}
}

/// All requests arrive while the only thread is busy.
#[test]
fn limit_of_memory_applies_within_a_turn() {
    const ANSWER: usize = 1 << 20;
    const CLIENTS: usize = 40;
    let (entered, enters) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (peak, monitor) = (Arc::<AtomicU64>::default(), Arc::<OnceLock<Monitor>>::default());
    let (seen, measured) = (Arc::clone(&peak), Arc::clone(&monitor));
    let router = Router::new()
        .get("/block", move |_| {
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
            Response::text("released")
        })
        .get("/made", move |_| {
            let queued = measured.get().unwrap().metrics().queued_bytes;
            seen.fetch_max(queued, Ordering::SeqCst);
            Response::text(vec![b'x'; ANSWER])
        });
    monitor.set(router.monitor()).unwrap();
    let limits = Limits::default().with_max_memory(4 * ANSWER).with_when_full(WhenFull::Close);
    let http = patient().with_http2_clear_text(true);
    let running = Running::server(Server::new(router).threads(1).http(http).limits(limits));
    let mut clients: Vec<Http2Client> = (0..CLIENTS)
        .map(|_| {
            let mut client = Http2Client::connect(&running, NO_WINDOW);
            client.sync();
            client
        })
        .collect();
    let mut blocker = running.connect();
    blocker.send(get("/block"));
    enters.recv().unwrap();
    for client in &mut clients {
        let request =
            |stream| frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(METHOD_GET, "/made", &[]));
        client.client.try_send([request(1), request(3)].concat());
    }
    release.send(()).unwrap();
    until("the end of most connections", || {
        monitor.get().unwrap().metrics().limited.get(Limit::Memory) >= CLIENTS as u64 - 4
    });
    let peak = peak.load(Ordering::SeqCst);
    assert!(peak <= 8 * ANSWER as u64, "{peak} bytes");
}

/// Uploads beyond the memory of one connection wait for earlier ones, which the client may cancel.
#[test]
fn canceled_upload_resumes_the_others() {
    let http = patient().with_max_body(100_000);
    // The timeout of an upload would resume the others.
    let (_server, mut client) = Http2Server::connected(http.with_body_idle_timeout(10 * PATIENCE));
    let last = 13;
    for stream in (1..=last).step_by(2) {
        client.frame(HEADERS, END_HEADERS, stream, &block(METHOD_POST, "/len", &[]));
        (0..4).for_each(|_| client.frame(DATA, 0, stream, &[7; 16_000]));
    }
    let mut opened = 0;
    // Acknowledgements of PING precede windows.
    for ping in [7, 8] {
        client.frame(PING, 0, 0, &[ping; 8]);
        loop {
            let frame = client.read().expect("an open connection");
            if frame.kind == WINDOW_UPDATE && frame.stream == last {
                opened += u32::from_be_bytes(frame.payload.try_into().unwrap());
            } else if frame.kind == PING {
                break;
            }
        }
    }
    assert!(opened < 64_000, "{opened}");
    client.frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    while client.until(WINDOW_UPDATE).stream != last {}
    client.frame(DATA, END_STREAM, last, b"end");
    assert_eq!(client.answers(&[last])[&last].1, b"64003");
}

/// The end of a socket for an error of its client leaves the others open, whatever the client sends on its stream.
#[test]
fn late_messages_of_a_socket_that_was_reset_are_ignored() {
    let running = Running::server(
        Server::new(Router::new().websocket("/", echo()))
            .threads(1)
            .http(patient().with_http2_clear_text(true)),
    );
    let mut sockets = Sockets::new(&running);
    assert_eq!(sockets.connect(1, "/", &[]), 200);
    assert_eq!(sockets.connect(3, "/", &[]), 200);
    // A window of more than 2^31-1.
    sockets.http2.frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(sockets.end(1), End::Reset(3));
    for stream in (5..405).step_by(2) {
        assert_eq!(sockets.connect(stream, "/", &[]), 200);
        sockets.http2.frame(DATA, END_STREAM, stream, b"");
        sockets.end(stream);
    }
    sockets.send(1, &WsFrame::text("late"));
    sockets.sync(3);
}
