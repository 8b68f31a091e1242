//! Attacks, and the limits that end them.

use std::time::Duration;

use sinews_http::h3::{AbuseLimits, Allowance, Config, FieldBuffer, H3Code};

use super::support::*;

/// Returns how many times a step is accepted before the connection fails with H3_EXCESSIVE_LOAD.
fn accepted(server: &mut Side, max: u64, mut step: impl FnMut(&mut Side, u64)) -> u64 {
    for count in 0..max {
        step(server, count);
        if let Some(error) = server.connection.error() {
            assert_eq!(error.code(), H3Code::H3_EXCESSIVE_LOAD, "{error}");
            return count;
        }
        server.signals();
    }
    max
}

const FEW: Allowance = Allowance::new(10, 1);

/// CVE-2023-44487: requests that are reset at once never reach the limit of streams.
#[test]
fn rapid_resets_end_the_connection() {
    let config = Config::new().with_abuse_limits(AbuseLimits::new().with_resets(FEW));
    let cycle = |server: &mut Side, count: u64| {
        let _ = server.receive(4 * count, &headers(&GET));
        let _ = server.connection.receive_reset(id(4 * count), H3Code::H3_REQUEST_CANCELLED, server.now);
    };
    assert_eq!(accepted(&mut Side::with(config), 1000, cycle), 10);
    assert_eq!(accepted(&mut Side::new(), 1000, cycle), 200);
    let stops = |server: &mut Side, count: u64| {
        let _ = server.receive_last(4 * count, &headers(&GET));
        let _ = server.connection.receive_stop(id(4 * count), H3Code::H3_REQUEST_CANCELLED, server.now);
    };
    assert_eq!(accepted(&mut Side::with(config), 1000, stops), 10);
    // At the permitted rate they go on.
    let mut server = Side::with(config);
    let slow = |server: &mut Side, count: u64| {
        server.now = Duration::from_secs(count);
        cycle(server, count);
    };
    assert_eq!(accepted(&mut server, 100, slow), 100);
}

/// The same with streams of a session, whether it is open or not.
#[test]
fn rapid_resets_of_session_streams_end_the_connection() {
    let config = Config::new().with_max_sessions(1);
    let config = config.with_abuse_limits(AbuseLimits::new().with_resets(FEW));
    let cycle = |server: &mut Side, count: u64, bytes: &[u8]| {
        let _ = server.receive(4 * count + 4, bytes);
        let _ = server.connection.receive_reset(id(4 * count + 4), H3Code::from_session_code(0), server.now);
    };
    let open = || {
        let mut server = Side::with(config);
        server.receive(0, &connect("webtransport")).expect("a valid request");
        server.head(0, 200, false);
        server
    };
    assert_eq!(accepted(&mut open(), 1000, |server, count| cycle(server, count, &[0x40, 0x41, 0])), 10);
    // The session is that of a later request; or none is named.
    assert_eq!(
        accepted(&mut open(), 1000, |server, count| cycle(server, count, &[0x40, 0x41, 0x7f, 0xf0])),
        10
    );
    assert_eq!(accepted(&mut open(), 1000, |server, count| cycle(server, count, &[0x40, 0x41])), 10);
    let ended = |server: &mut Side, count: u64| drop(server.receive_last(4 * count + 4, &[0x40, 0x41]));
    assert_eq!(accepted(&mut open(), 1000, ended), 10);
}

/// CVE-2025-8671: the client makes the server reset.
#[test]
fn provoked_resets_end_the_connection() {
    let config = Config::new().with_abuse_limits(AbuseLimits::new().with_resets(FEW)).with_max_streams(1);
    let malformed = |server: &mut Side, count: u64| {
        let _ = server.receive_last(4 * count, &headers(&[(":method", "GET")]));
    };
    assert_eq!(accepted(&mut Side::with(config), 1000, malformed), 10);
    let incomplete = |server: &mut Side, count: u64| {
        let _ = server.receive_last(4 * count, &[]);
    };
    assert_eq!(accepted(&mut Side::with(config), 1000, incomplete), 10);
    let mut server = Side::with(config);
    server.post(0);
    let refused = |server: &mut Side, count: u64| {
        let _ = server.receive(4 * count + 4, &headers(&GET));
    };
    assert_eq!(accepted(&mut server, 1000, refused), 10);
}

/// CVE-2024-27316 in HTTP/3: field sections that never end, and many that end late.
#[test]
fn large_field_sections_end_the_connection() {
    let limit = FieldBuffer::EXCESS_MAX as u64 * (16 << 10);
    let header = [varint(HEADERS), varint(limit + 1)].concat();
    Side::new().fails(0, &header, H3Code::H3_EXCESSIVE_LOAD);
    let mut server = Side::new();
    let piece = [varint(HEADERS), varint(limit), vec![0; 16 << 10]].concat();
    let partial = |server: &mut Side, count: u64| {
        let _ = server.receive(4 * count, &piece);
        assert!(server.connection.memory() < 2 * Config::PARTIAL_SECTIONS_MAX);
    };
    assert_eq!(accepted(&mut server, 100, partial), (Config::PARTIAL_SECTIONS_MAX >> 14) as u64);
    // Completed and reset sections free their memory.
    let mut server = Side::new();
    let before = server.connection.memory();
    for number in 0..100 {
        let head = headers(&GET);
        server.silent(4 * number, &head[..20]);
        assert!(server.connection.memory() > before);
        if number % 2 == 0 {
            server.receive(4 * number, &head[20..]).expect("a valid request");
        }
        server.connection.reset(id(4 * number), H3Code::H3_REQUEST_CANCELLED);
        server.signals();
        assert_eq!(server.connection.awaits_head_since(), None);
    }
    assert!(server.connection.memory() < before + 1000, "{}", server.connection.memory());
}

/// Streams that begin no request: nothing, the type of a frame, a frame without end, a part of a head.
#[test]
fn heads_that_do_not_arrive_expire_and_no_others() {
    let at = Duration::from_secs;
    let endless = [varint(0x21), varint(1 << 40), vec![0; 100]].concat();
    let begins = [Vec::new(), varint(HEADERS), endless, headers(&GET)[..9].to_vec()];
    let mut server = Side::new();
    for (number, begin) in (0..).zip(&begins) {
        server.now = at(number);
        server.silent(4 * number, begin);
    }
    server.now = at(5);
    server.ask(16);
    assert_eq!(server.connection.awaits_head_since(), Some(at(0)));
    // The head of another stream is complete in the meantime.
    let seen = server.receive(12, &headers(&GET)[9..]).expect("a valid request");
    assert_eq!(seen, [SeenEvent::Request(12, "GET".into(), "/".into())]);
    assert_eq!(server.connection.expire_heads(at(1), at(11)), Ok(()));
    assert_eq!(server.connection.awaits_head_since(), Some(at(2)));
    assert_eq!(server.connection.take_rejected(), 2);
    let code = H3Code::H3_REQUEST_INCOMPLETE;
    assert_eq!(server.signals(), [(true, 0, code), (false, 0, code), (true, 4, code), (false, 4, code)]);
    // Late bytes are ignored.
    server.silent(4, &[0; 100]);
    assert_eq!(server.connection.expire_heads(at(20), at(30)), Ok(()));
    assert_eq!(server.connection.awaits_head_since(), None);
    server.head(16, 200, true);
    server.head(12, 200, true);
    // The list of heads stays small, also behind one that does not arrive.
    let mut server = Side::new();
    server.silent(0, b"");
    let before = server.connection.memory();
    for number in 1..2000 {
        server.ask(4 * number);
        server.head(4 * number, 200, true);
        server.receive_last(4 * number, b"").expect("the end of the request");
    }
    assert!(server.connection.memory() < before + 2000, "{}", server.connection.memory());
    assert_eq!(server.connection.awaits_head_since(), Some(Duration::ZERO));
    // Each counts as a reset.
    let config = Config::new().with_abuse_limits(AbuseLimits::new().with_resets(FEW));
    let mut server = Side::with(config);
    let count = accepted(&mut server, 100, |server, number| {
        server.silent(4 * number, b"");
        let _ = server.connection.expire_heads(Duration::MAX, server.now);
    });
    assert!((10..=11).contains(&count), "{count}");
}

/// CVE-2026-40898, CVE-2016-6581: sections that decode to much. Static entries are short, so that a byte decodes to at most
/// 103 bytes with the overhead of a field.
#[test]
fn field_section_bombs_end_the_connection_while_they_are_decoded() {
    // content-security-policy with its value, in two bytes.
    let bomb = |fields: usize| frame(HEADERS, &[&[0, 0][..], &[0xff, 22].repeat(fields)].concat());
    Side::new().fails(0, &bomb(20_000), H3Code::H3_EXCESSIVE_LOAD);
    assert_eq!(Side::new().receive(0, &bomb(300)), Ok(vec![SeenEvent::TooLarge(0)]));
    // Fields without bytes count, too.
    let empty = [&[0, 0][..], &literal(b"", b"").repeat(5_000)].concat();
    Side::new().fails(0, &frame(HEADERS, &empty), H3Code::H3_EXCESSIVE_LOAD);
}

/// CVE-2019-9512 and its kind in HTTP/3: frames that are cheap to send, and serve no purpose.
#[test]
fn floods_of_frames_without_content_end_the_connection() {
    let config = Config::new()
        .with_max_sessions(1)
        .with_abuse_limits(AbuseLimits::new().with_control_frames(Allowance::new(50, 10)));
    let mut settled = Side::with(config);
    settled.silent(6, &[2]);
    let floods: [(u64, Vec<u8>); 7] = [
        (0, frame(DATA, b"")),
        (0, frame(0x21, b"unknown")),
        (2, frame(0x21, b"")),
        (2, frame(MAX_PUSH_ID, &[1])),
        (6, vec![0x20]),
        (10, vec![0x40]),
        (4, frame(DATA, &[0x17, 1, 0])),
    ];
    for (stream, flood) in floods {
        let mut server = Side::with(config);
        server.post(0);
        server.receive(4, &connect("webtransport")).expect("a valid request");
        server.silent(6, &[2]);
        server.silent(10, &[3]);
        let count = accepted(&mut server, 1000, |server, _| {
            let _ = server.receive(stream, &flood);
        });
        assert!((49..=50).contains(&count), "{stream} {flood:?}: {count}");
    }
    let unknown = |server: &mut Side, count: u64| {
        let _ = server.receive(4 * count + 6, &[0x21]);
    };
    assert_eq!(accepted(&mut Side::with(config), 1000, unknown), 50);
    // Streams of a session that has ended.
    let mut server = Side::with(config);
    server.ask(0);
    let gone = |server: &mut Side, count: u64| {
        let _ = server.receive(4 * count + 6, &[0x40, 0x54, 0]);
    };
    assert_eq!(accepted(&mut server, 1000, gone), 50);
}

#[test]
fn long_settings_end_the_connection() {
    let header = [vec![0, 4], varint(Config::SETTINGS_LEN_MAX + 1)].concat();
    Side::fresh(Config::new()).fails(2, &header, H3Code::H3_EXCESSIVE_LOAD);
    let pairs: Vec<(u64, u64)> = (0x40..0x40 + 300).map(|id| (id, 0)).collect();
    let mut server = Side::fresh(Config::new());
    assert_eq!(server.receive(2, &control(&pairs)), Ok(vec![SeenEvent::Settings]));
    assert!(server.connection.memory() < 1024);
}

/// Streams of WebTransport before their session take no memory beside their own.
#[test]
fn held_streams_are_limited() {
    let mut server = Side::with(Config::new().with_max_sessions(1));
    let max = Config::HELD_STREAMS_MAX as u64;
    for number in 0..max + 4 {
        let (stream, mut seen) = (4 * number + 6, Vec::new());
        let left = server.receive_into(stream, &[0x40, 0x54, 0, 1, 2, 3], false, &mut seen);
        assert_eq!((left, seen), (Ok(if number < max { 3 } else { 0 }), Vec::new()));
    }
    let rejected: Vec<_> = server.signals();
    let code = H3Code::WEBTRANSPORT_BUFFERED_STREAM_REJECTED;
    assert_eq!(rejected, [16, 17, 18, 19].map(|number| (false, 4 * number + 6, code)));
}
