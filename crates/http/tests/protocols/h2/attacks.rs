//! Attacks, and the limits that end them.

use std::time::Duration;

use sinews_http::h2::{AbuseLimits, Allowance, Config, ErrorCode, FieldBuffer};

use super::support::*;

/// Returns how many times the input is accepted before the connection fails with ENHANCE_YOUR_CALM.
fn accepted(server: &mut Server, max: usize, mut input: impl FnMut(u32) -> Vec<u8>) -> usize {
    for count in 0..max {
        let input = input(count as u32);
        if let Err(error) = server.receive(&input) {
            assert_eq!(error.code(), ErrorCode::ENHANCE_YOUR_CALM, "{error}");
            assert_eq!(server.sent().last().map(Sent::code), Some(ErrorCode::ENHANCE_YOUR_CALM.get()));
            return count;
        }
        server.sent();
    }
    max
}

const FEW: Allowance = Allowance::new(10, 1);

/// CVE-2023-44487: requests that are reset at once never reach the limit of streams.
#[test]
fn rapid_resets_end_the_connection() {
    let config = Config::new().with_abuse_limits(AbuseLimits::new().with_resets(FEW));
    let cycle = |count: u32| [get(2 * count + 1), rst_stream(2 * count + 1)].concat();
    assert_eq!(accepted(&mut Server::with(config), 1000, cycle), 10);
    assert_eq!(accepted(&mut Server::new(), 1000, cycle), 200);
    // At the permitted rate they go on.
    let mut server = Server::with(config);
    let slow = (0..100).all(|count| {
        server.now = Duration::from_secs(count.into());
        server.receive(&cycle(count)).is_ok()
    });
    assert!(slow);
    // Resets of completed streams cost no more than another frame.
    let mut server = Server::with(config);
    for count in 0..100 {
        let stream = server.ask(2 * count + 1);
        server.head(stream, true);
        server.silent(&rst_stream(2 * count + 1));
    }
}

/// The streams of a proxy belong to many users, who may all leave at once.
#[test]
fn bursts_of_resets_grow_with_the_maximum_of_streams() {
    for (streams, burst) in [(1, 200), (100, 200), (1000, 2000), (u32::MAX, u32::MAX)] {
        let limits = AbuseLimits::for_streams(streams);
        let server = || Server::with(Config::new().with_abuse_limits(limits).with_max_streams(streams));
        let cycle = |count: u32| [get(2 * count + 1), rst_stream(2 * count + 1)].concat();
        assert_eq!(accepted(&mut server(), 3000, cycle), burst.min(3000) as usize);
        let ping = accepted(&mut server(), 3000, |_| frame(PING, 0, 0, &[0; 8]));
        // SETTINGS of the client count.
        assert_eq!(ping, (burst.max(1000) as usize - 1).min(3000));
    }
}

/// CVE-2025-8671: the client makes the server reset.
#[test]
fn provoked_resets_end_the_connection() {
    let config = Config::new().with_abuse_limits(AbuseLimits::new().with_resets(FEW)).with_max_streams(1);
    let violations: [fn(u32) -> Vec<u8>; 6] = [
        |stream| window_update(stream, 0),
        |stream| window_update(stream, (1 << 31) - 1),
        |stream| frame(DATA, END_STREAM, stream, b"x"),
        |stream| frame(PRIORITY, 0, stream, &[0; 4]),
        |stream| headers(stream, END_STREAM, &[("a", "b")]),
        |stream| get(stream + 2),
    ];
    for violate in violations {
        let mut server = Server::with(config);
        let count = accepted(&mut server, 1000, |count| {
            let stream = 4 * count + 1;
            [get(stream), violate(stream), rst_stream(stream)].concat()
        });
        assert!((5..=10).contains(&count), "{count}");
    }
    let malformed = |count: u32| headers(2 * count + 1, END_STREAM, &[(":method", "GET")]);
    assert_eq!(accepted(&mut Server::with(config), 1000, malformed), 10);
}

/// CVE-2024-27316: header blocks without an end.
#[test]
fn continuation_floods_end_the_connection() {
    let begin = frame(HEADERS, END_STREAM, 1, &block(&GET));
    let mut server = Server::new();
    server.silent(&begin);
    let empty = accepted(&mut server, 1000, |_| frame(CONTINUATION, 0, 1, &[]));
    assert_eq!(empty, Config::CONTINUATIONS_MAX as usize);
    let mut server = Server::new();
    server.silent(&begin);
    let field = literal(b"x", &[b'y'; 16_000]);
    let large = accepted(&mut server, 1000, |_| frame(CONTINUATION, 0, 1, &field));
    // The block may have four times the bytes of the list.
    assert_eq!((large, FieldBuffer::EXCESS_MAX), (4, 4));
    assert!(server.connection.memory() < 8 << 10, "the block is freed");
}

/// CVE-2016-6581: one byte of a block refers to a large field.
#[test]
fn header_bombs_end_the_connection_while_they_are_decoded() {
    let mut bomb = block(&GET);
    bomb.extend_from_slice(&literal(b"x", &[b'y'; 4000]));
    // With incremental indexing.
    let at = bomb.len() - literal(b"x", &[b'y'; 4000]).len();
    bomb[at] = 0x40;
    bomb.extend_from_slice(&[0x80 | 62; 1000]);
    let mut server = Server::new();
    server.fails(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &bomb), ErrorCode::ENHANCE_YOUR_CALM);
    // Below the factor the request alone is rejected.
    bomb.truncate(at + 4000 + 9);
    bomb.extend_from_slice(&[0x80 | 62; 8]);
    let seen = Server::new().receive(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &bomb));
    assert_eq!(seen, Ok(vec![Seen::TooLarge(1, true)]));
    // Fields without bytes count, too.
    let empty = literal(b"", b"").repeat(5_000);
    Server::new().fails(&frame(HEADERS, END_HEADERS, 1, &empty), ErrorCode::ENHANCE_YOUR_CALM);
}

/// CVE-2019-9512, CVE-2019-9515 and others: frames that are cheap to send, and serve no purpose.
#[test]
fn floods_of_frames_without_content_end_the_connection() {
    let config =
        Config::new().with_abuse_limits(AbuseLimits::new().with_control_frames(Allowance::new(50, 10)));
    let floods: [fn(u32) -> Vec<u8>; 8] = [
        |_| frame(PING, 0, 0, &[0; 8]),
        |_| frame(PING, ACK, 0, &[0; 8]),
        |_| frame(SETTINGS, 0, 0, &setting(4, 1)),
        |_| frame(PRIORITY, 0, 1, &[0; 5]),
        |_| frame(DATA, 0, 1, &[]),
        |_| frame(DATA, PADDED, 1, &[1, 0]),
        |_| window_update(1, 1),
        |_| frame(0xfa, 0, 0, b"unknown"),
    ];
    for flood in floods {
        let mut server = Server::with(config);
        server.open(1);
        let count = accepted(&mut server, 1000, flood);
        assert!((48..=50).contains(&count), "{count}");
    }
    // A keepalive by PING goes on without end.
    let mut server = Server::with(config);
    for second in 0..1000 {
        server.now = Duration::from_secs(second);
        server.silent(&frame(PING, 0, 0, &[0; 8]));
    }
    // WINDOW_UPDATE as the answer to content does not count.
    let mut server = Server::with(config);
    let stream = server.ask(1);
    server.head(stream, false);
    for _ in 0..1000 {
        assert_eq!(server.data(stream, &[0; 1000], false), 1000);
        server.silent(&[window_update(1, 1000), window_update(0, 1000)].concat());
    }
}

/// Buffers of a fast network hold megabytes: a client that has paused answers all of them at once.
#[test]
fn window_updates_for_content_of_a_large_window_do_not_count_however_late() {
    const FRAMES: u32 = 10_000;
    let mut server = Server::new();
    let size = 1000;
    let window = [frame(SETTINGS, 0, 0, &setting(4, FRAMES * size)), window_update(0, FRAMES * size)];
    server.silent(&window.concat());
    let stream = server.ask(1);
    server.head(stream, false);
    for _ in 0..FRAMES {
        assert_eq!(server.data(stream, &[0; 1000], false), 1000);
    }
    for _ in 0..FRAMES {
        server.silent(&[window_update(1, size), window_update(0, size)].concat());
    }
    // Other frames do.
    let count = accepted(&mut server, 2000, |_| frame(PING, 0, 0, &[0; 8]));
    assert!((990..=1000).contains(&count), "{count}");
}

/// CVE-2019-9514: answers for a peer that does not read them.
#[test]
fn answers_to_a_peer_that_does_not_read_are_limited() {
    let config =
        Config::new().with_abuse_limits(AbuseLimits::new().with_control_frames(Allowance::new(u32::MAX, 0)));
    let mut server = Server::with(config);
    let ping = frame(PING, 0, 0, &[0; 8]);
    let error = (0..10_000).find_map(|_| server.receive(&ping).err()).expect("the queue is limited");
    assert_eq!(error.code(), ErrorCode::ENHANCE_YOUR_CALM);
    assert_eq!(server.connection.error(), Some(error));
    let mut out = Vec::new();
    server.connection.write_control(&mut out);
    assert!((Config::CONTROL_QUEUE_MAX - 17..Config::CONTROL_QUEUE_MAX + 17).contains(&out.len()));
}

/// CVE-2019-9517: windows of zero or one byte. The machine buffers no content: the application keeps the rest, and its
/// write deadline ends the stream.
#[test]
fn closed_windows_hold_no_memory_of_the_machine() {
    let mut server = Server::new();
    server.silent(&frame(SETTINGS, 0, 0, &setting(4, 0)));
    server.sent();
    let body = vec![0; 1 << 20];
    for number in 0..100 {
        let stream = server.ask(2 * number + 1);
        server.head(stream, false);
        assert_eq!(server.data(stream, &body, true), 0);
    }
    let mut heads = 0;
    for sent in server.sent() {
        heads += sent.payload.len();
        assert_eq!(sent.frame_type, HEADERS);
    }
    assert!(heads <= 200 && server.connection.memory() < 16 << 10, "{}", server.connection.memory());
    let first = server.id(1);
    assert_eq!(server.receive(&window_update(1, 1)), Ok(vec![Seen::Opened(Some(1))]));
    assert_eq!(server.data(first, &body, true), 1);
    server.connection.reset(first, ErrorCode::CANCEL);
    assert!(!server.connection.is_open(first));
}

/// Content of a stream that is not read is limited by its window, and that of all streams by their number.
#[test]
fn content_that_is_not_read_is_limited() {
    let mut server = Server::with(Config::new().with_max_streams(4).with_stream_window(1000));
    for number in 0..4 {
        server.open(2 * number + 1);
        server.receive(&frame(DATA, 0, 2 * number + 1, &[0; 1000])).expect("the whole window");
    }
    server.rejects(&post(9), 9, ErrorCode::REFUSED_STREAM);
    server.resets(&frame(DATA, 0, 3, b"x"), 3, ErrorCode::FLOW_CONTROL_ERROR);
}
