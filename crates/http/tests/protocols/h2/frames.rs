//! Frames and streams: RFC 9113 sections 3 to 6.

use sinews_http::h2::{Config, ErrorCode, PREFACE, SendMisuse};

use super::support::*;

/// RFC 9113 section 3.4.
#[test]
fn connection_begins_with_preface_and_settings() {
    let mut server = Server::fresh(Config::new());
    server.fails(b"GET / HTTP/1.1\r\n\r\n", ErrorCode::PROTOCOL_ERROR);
    for first in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, ACK, 0, &[]), get(1), window_update(0, 1)] {
        let mut server = Server::fresh(Config::new());
        server.fails(&[&PREFACE[..], &first].concat(), ErrorCode::PROTOCOL_ERROR);
    }
    let mut server = Server::fresh(Config::new().with_extended_connect(true).with_stream_window(70_000));
    server.silent(&[&PREFACE[..], &frame(SETTINGS, 0, 0, &setting(3, 1))].concat());
    let sent = server.sent();
    let settings = [setting(3, 128), setting(4, 70_000), setting(6, 16 << 10), setting(8, 1)].concat();
    assert_eq!((sent[0].frame_type, &sent[0].payload), (SETTINGS, &settings));
    assert_eq!(sent[1].payload, ((1_u32 << 20) - 65_535).to_be_bytes());
    assert_eq!((sent[2].frame_type, sent[2].flags, sent.len()), (SETTINGS, ACK, 3));
}

/// RFC 9113 section 4.2.
#[test]
fn frame_beyond_max_frame_size_is_rejected_by_its_header() {
    for (frame_type, stream) in [(DATA, 1), (HEADERS, 1), (SETTINGS, 0), (0xfa, 0)] {
        let mut server = Server::opened();
        let long = frame(frame_type, 0, stream, &vec![0; (1 << 14) + 1]);
        server.fails(&long[..9], ErrorCode::FRAME_SIZE_ERROR);
    }
    let mut server = Server::with(Config::new().with_max_frame_size(1 << 15));
    server.open(1);
    let seen = server.receive(&frame(DATA, 0, 1, &vec![7; 1 << 15])).expect("within the setting");
    assert_eq!(seen, [Seen::Data(1, vec![7; 1 << 15], false)]);
}

/// RFC 9113 sections 4.1 and 5.5.
#[test]
fn unknown_frames_flags_settings_and_the_reserved_bit_are_ignored() {
    let mut server = Server::new();
    server.silent(&frame(0xfa, 0xff, 9, b"anything"));
    server.silent(&frame(0x10, 0, 0, &[]));
    server.silent(&frame(SETTINGS, 0xfe, 0, &setting(0x7a7a, 1)));
    let mut request = frame(HEADERS, 0xd2 | END_STREAM | END_HEADERS, 1 | 1 << 31, &block(&GET));
    assert_eq!(server.receive(&request), Ok(vec![Seen::Request(1, "GET".into(), "/".into(), true)]));
    request = frame(HEADERS, END_STREAM, 3, &block(&GET));
    server.silent(&request);
    server.fails(&frame(0xfa, 0, 3, &[]), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 sections 4.3 and 6.10.
#[test]
fn nothing_interrupts_a_header_block() {
    let begin = frame(HEADERS, END_STREAM, 1, &block(&GET)[..5]);
    for between in [
        frame(DATA, 0, 1, b"x"),
        frame(PING, 0, 0, &[0; 8]),
        frame(CONTINUATION, END_HEADERS, 3, &[]),
        get(3),
        get(1),
        frame(PRIORITY, 0, 1, &[0; 5]),
        frame(0xfa, 0, 1, &[]),
    ] {
        let mut server = Server::new();
        server.silent(&begin);
        server.fails(&between, ErrorCode::PROTOCOL_ERROR);
    }
    let mut server = Server::new();
    server.silent(&begin);
    server.silent(&frame(CONTINUATION, 0, 1, &block(&GET)[5..20]));
    let end = frame(CONTINUATION, END_HEADERS, 1, &block(&GET)[20..]);
    assert_eq!(server.receive(&end), Ok(vec![Seen::Request(1, "GET".into(), "/".into(), true)]));
    server.fails(&frame(CONTINUATION, END_HEADERS, 1, &[]), ErrorCode::PROTOCOL_ERROR);
}

/// A client whose reads always end inside of a block sends complete ones.
#[test]
fn partial_blocks_are_told_apart() {
    let mut server = Server::fresh(Config::new());
    let mut blocks = vec![server.connection.partial_block()];
    server.silent(&PREFACE[..10]);
    assert_eq!(server.connection.partial_block(), blocks[0], "the preface");
    server.silent(&[&PREFACE[10..], &frame(SETTINGS, 0, 0, &[])].concat());
    assert_eq!(server.connection.partial_block(), None);
    let (begin, end) = (block(&POST)[..5].to_vec(), block(&POST)[5..].to_vec());
    server.silent(&frame(HEADERS, 0, 1, &begin));
    blocks.push(server.connection.partial_block());
    server.silent(&frame(CONTINUATION, 0, 1, &[]));
    assert_eq!(server.connection.partial_block(), blocks[1], "the same block");
    // The block of the next stream, and the trailers of a stream, begin where another block ends.
    server
        .receive(&[frame(CONTINUATION, END_HEADERS, 1, &end), frame(HEADERS, 0, 3, &begin)].concat())
        .unwrap();
    blocks.push(server.connection.partial_block());
    let trailers = frame(HEADERS, END_STREAM, 3, &[]);
    server.receive(&[frame(CONTINUATION, END_HEADERS, 3, &end), trailers].concat()).unwrap();
    blocks.push(server.connection.partial_block());
    server.receive(&frame(CONTINUATION, END_HEADERS, 3, &[])).unwrap();
    assert_eq!(server.connection.partial_block(), None);
    assert!(blocks.iter().all(Option::is_some));
    blocks.dedup();
    assert_eq!(blocks.len(), 4, "{blocks:?}");
}

/// RFC 9113 section 4.3: also blocks of streams that are refused change the decoder's state.
#[test]
fn header_blocks_of_refused_streams_are_decoded() {
    let mut server = Server::with(Config::new().with_max_streams(1));
    server.open(1);
    // Literal with incremental indexing.
    let mut indexed = block(&GET);
    indexed.extend_from_slice(b"\x40\x01a\x01b");
    server.rejects(&frame(HEADERS, END_STREAM | END_HEADERS, 3, &indexed), 3, ErrorCode::REFUSED_STREAM);
    let trailers = frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0x80 | 62]);
    assert_eq!(server.receive(&trailers), Ok(vec![Seen::Trailers(1, vec![("a".into(), "b".into())])]));
    server.fails(&frame(HEADERS, END_STREAM | END_HEADERS, 5, &[0x80 | 63]), ErrorCode::COMPRESSION_ERROR);
}

/// RFC 9113 section 5.1.1.
#[test]
fn identifiers_of_new_streams_are_odd_and_grow() {
    for stream in [0, 2] {
        Server::new().fails(&get(stream), ErrorCode::PROTOCOL_ERROR);
    }
    let mut server = Server::new();
    server.ask(5);
    server.fails(&get(3), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 section 5.1.
#[test]
fn frames_on_idle_streams_are_errors() {
    for stream in [2, 9] {
        for idle in [frame(DATA, 0, stream, b"x"), rst_stream(stream), window_update(stream, 1)] {
            let mut server = Server::new();
            server.ask(1);
            server.fails(&idle, ErrorCode::PROTOCOL_ERROR);
        }
    }
    let mut server = Server::new();
    server.silent(&frame(PRIORITY, 0, 9, &[0; 5]));
}

/// RFC 9113 section 5.1.
#[test]
fn frames_after_the_end_of_a_stream_are_errors() {
    for late in [frame(DATA, 0, 1, b"x"), headers(1, END_STREAM, &[("a", "b")])] {
        // Half-closed: the response is open.
        let mut server = Server::new();
        server.ask(1);
        server.resets(&late, 1, ErrorCode::STREAM_CLOSED);
        // Closed by both sides.
        let mut server = Server::new();
        let stream = server.ask(1);
        server.head(stream, true);
        assert_eq!(server.connection.streams(), 0);
        server.fails(&late, ErrorCode::STREAM_CLOSED);
        // Closed by the peer's reset.
        let mut server = Server::opened();
        assert_eq!(server.receive(&rst_stream(1)), Ok(vec![Seen::Reset(1, 8)]));
        server.fails(&late, ErrorCode::STREAM_CLOSED);
    }
    let mut server = Server::new();
    let stream = server.ask(1);
    server.head(stream, true);
    server.silent(&[window_update(1, 1), rst_stream(1), frame(PRIORITY, 0, 1, &[0; 5])].concat());
}

/// RFC 9113 section 5.1.
#[test]
fn frames_that_cross_our_reset_are_ignored_and_counted_for_flow_control() {
    let mut server = Server::with(Config::new().with_connection_window(65_535));
    let stream = server.open(1);
    server.connection.reset(stream, ErrorCode::CANCEL);
    assert!(!server.connection.is_open(stream));
    assert_eq!(server.sent().last().map(Sent::code), Some(8));
    server.silent(&frame(DATA, 0, 1, &[0; 16_000]));
    server.silent(&frame(DATA, PADDED, 1, &[0; 16_000]));
    assert_eq!(server.sent(), []);
    server.silent(&frame(DATA, END_STREAM, 1, &[0; 16_000]));
    let sent = server.sent();
    assert_eq!((sent[0].frame_type, sent[0].stream, sent[0].code()), (WINDOW_UPDATE, 0, 48_000));
    server.silent(&headers(1, END_STREAM, &[("a", "b")]));
    server.silent(&[window_update(1, 1), rst_stream(1)].concat());
    assert_eq!(
        server.connection.send_data(stream, b"", true, &mut Vec::new()),
        Err(SendMisuse::Closed(stream))
    );
}

/// Servers that have reset a stream for each reason, and the stream.
const RESETS: [(fn() -> Server, u32); 6] = [
    (reset_by_application, 1),
    (reset_for_violation, 1),
    (reset_as_malformed, 1),
    (reset_as_refused, 5),
    (ignored_after_go_away, 3),
    (reset_long_ago, 1),
];

fn reset_by_application() -> Server {
    let mut server = Server::new();
    let stream = server.open(1);
    server.connection.reset(stream, ErrorCode::NO_ERROR);
    server
}

fn reset_for_violation() -> Server {
    let mut server = Server::opened();
    server.resets(&window_update(1, 0), 1, ErrorCode::PROTOCOL_ERROR);
    server
}

fn reset_as_malformed() -> Server {
    let mut server = Server::new();
    server.rejects(&headers(1, 0, &[(":method", "POST")]), 1, ErrorCode::PROTOCOL_ERROR);
    server
}

fn reset_as_refused() -> Server {
    let mut server = Server::with(Config::new().with_max_streams(1));
    server.open(3);
    server.rejects(&post(5), 5, ErrorCode::REFUSED_STREAM);
    server
}

fn ignored_after_go_away() -> Server {
    let mut server = Server::opened();
    server.connection.shut_down_now(ErrorCode::NO_ERROR);
    server.silent(&post(3));
    server
}

fn reset_long_ago() -> Server {
    let mut server = Server::new();
    for id in (1..6 * Config::CLOSED_STREAMS_MAX as u32).step_by(2) {
        let stream = server.open(id);
        server.connection.reset(stream, ErrorCode::NO_ERROR);
        server.sent();
    }
    server
}

/// RFC 9113 sections 4.2, 4.3, 5.1, 6.1, 6.2, 6.4 and 6.9: the content of frames on a stream that we reset is ignored, and errors
/// of the connection in them are not.
#[test]
fn connection_errors_are_found_in_frames_of_streams_that_we_reset() {
    for (reset, id) in RESETS {
        let interrupted = [frame(HEADERS, 0, id, &[]), frame(PING, 0, 0, &[0; 8])].concat();
        for (late, code) in [
            (frame(DATA, PADDED, id, &[1]), ErrorCode::PROTOCOL_ERROR),
            (frame(DATA, PADDED | END_STREAM, id, &[5, 0, 0, 0, 0]), ErrorCode::PROTOCOL_ERROR),
            (frame(DATA, PADDED, id, &[255; 200]), ErrorCode::PROTOCOL_ERROR),
            (frame(DATA, PADDED, id, &[]), ErrorCode::FRAME_SIZE_ERROR),
            (frame(HEADERS, PADDED | END_HEADERS, id, &[2, 0x82]), ErrorCode::PROTOCOL_ERROR),
            (frame(HEADERS, PADDED | END_HEADERS, id, &[]), ErrorCode::FRAME_SIZE_ERROR),
            (frame(HEADERS, WITH_PRIORITY | END_HEADERS, id, &[0; 4]), ErrorCode::FRAME_SIZE_ERROR),
            (frame(HEADERS, END_HEADERS, id, &[0xff; 9]), ErrorCode::COMPRESSION_ERROR),
            (interrupted, ErrorCode::PROTOCOL_ERROR),
            (frame(RST_STREAM, 0, id, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR),
            (frame(WINDOW_UPDATE, 0, id, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR),
            (frame(PRIORITY, 0, id, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR),
        ] {
            reset().fails(&late, code);
            // The frame arrives in pieces.
            let mut server = reset();
            let (last, rest) = late.split_last().expect("a frame");
            let early = rest.iter().map(|byte| server.receive(&[*byte])).find(Result::is_err);
            match early {
                Some(failed) => assert_eq!(failed.expect_err("an error").code(), code),
                None => server.fails(&[*last], code),
            }
        }
    }
    // The frame itself resets the stream.
    let mut server = Server::new();
    server.ask(1);
    server.fails(&frame(DATA, PADDED, 1, &[9; 9]), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 section 6.1.
#[test]
fn valid_padding_on_streams_that_we_reset_is_passed_over() {
    for (reset, id) in RESETS {
        let mut server = reset();
        server.sent();
        server.silent(&frame(DATA, PADDED | END_STREAM, id, &[3, b'h', b'i', 0, 0, 0]));
        server.silent(&[frame(DATA, PADDED, id, &[0]), frame(DATA, PADDED, id, &[2, 0, 0])].concat());
        server.silent(&[window_update(id, 0), frame(PING, 0, 0, &[7; 8])].concat());
        assert_eq!(server.sent().last().map(|sent| sent.frame_type), Some(PING), "stream {id}");
    }
}

/// A proxy may send the rest of a body long after our reset: neither streams that ended since then nor further resets matter.
#[test]
fn frames_that_cross_our_reset_are_ignored_however_many_streams_close_after_it() {
    const MANY: u32 = 3 * Config::CLOSED_STREAMS_MAX as u32;
    let late = [frame(DATA, 0, 1, b"x"), headers(1, END_STREAM, &[("a", "b")])].concat();
    let end: fn(&mut Server, u32) = |server, id| {
        let stream = server.ask(id);
        server.head(stream, true);
    };
    let reset: fn(&mut Server, u32) = |server, id| {
        let stream = server.open(id);
        server.connection.reset(stream, ErrorCode::NO_ERROR);
    };
    for close in [end, reset] {
        let mut server = Server::new();
        reset(&mut server, 1);
        for number in 1..MANY {
            close(&mut server, 2 * number + 1);
            server.sent();
        }
        server.silent(&late);
        assert!(server.connection.memory() <= 8 << 10, "{} bytes", server.connection.memory());
        // A stream that was not reset remains an error.
        let last = 2 * MANY + 1;
        end(&mut server, last);
        server.fails(&frame(DATA, 0, last, b"x"), ErrorCode::STREAM_CLOSED);
    }
    // An identifier that the client skipped was never reset.
    let mut server = Server::new();
    reset(&mut server, 1);
    end(&mut server, 5);
    server.fails(&get(3), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 section 5.1.2.
#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut server = Server::with(Config::new().with_max_streams(2));
    let first = server.ask(1);
    server.open(3);
    server.rejects(&get(5), 5, ErrorCode::REFUSED_STREAM);
    assert_eq!(server.connection.streams(), 2);
    server.head(first, true);
    server.ask(7);
}

/// RFC 9113 sections 5.3.2 and 6.3.
#[test]
fn priority_is_ignored_and_has_five_octets() {
    let mut server = Server::opened();
    // A dependency of the stream on itself has no meaning any longer.
    server.silent(&frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 9]));
    server.resets(&frame(PRIORITY, 0, 1, &[0; 4]), 1, ErrorCode::FRAME_SIZE_ERROR);
    let mut request = vec![0x80, 0, 0, 3, 255];
    request.extend_from_slice(&block(&GET));
    let request = frame(HEADERS, END_STREAM | END_HEADERS | WITH_PRIORITY, 3, &request);
    assert_eq!(server.receive(&request), Ok(vec![Seen::Request(3, "GET".into(), "/".into(), true)]));
    Server::new().fails(&frame(PRIORITY, 0, 7, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR);
    Server::new().fails(&frame(PRIORITY, 0, 0, &[0; 5]), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 sections 6.1 and 6.2.
#[test]
fn data_and_headers_need_a_stream_and_valid_padding() {
    Server::new().fails(&frame(DATA, 0, 0, b"x"), ErrorCode::PROTOCOL_ERROR);
    for (payload, code) in [
        (&[1][..], ErrorCode::PROTOCOL_ERROR),
        (&[5, 0, 0, 0, 0], ErrorCode::PROTOCOL_ERROR),
        (&[], ErrorCode::FRAME_SIZE_ERROR),
    ] {
        let mut server = Server::opened();
        server.fails(&frame(DATA, PADDED, 1, payload), code);
    }
    for (flags, payload, code) in [
        (PADDED, &[][..], ErrorCode::FRAME_SIZE_ERROR),
        (PADDED, &[2, 0x82], ErrorCode::PROTOCOL_ERROR),
        (WITH_PRIORITY, &[0; 4], ErrorCode::FRAME_SIZE_ERROR),
        (PADDED | WITH_PRIORITY, &[1, 0, 0, 0, 0, 0], ErrorCode::PROTOCOL_ERROR),
    ] {
        Server::new().fails(&frame(HEADERS, flags | END_HEADERS, 1, payload), code);
    }
    let mut server = Server::new();
    let padded = [&[3][..], &block(&POST), &[0; 3]].concat();
    server.receive(&frame(HEADERS, PADDED | END_HEADERS, 1, &padded)).expect("valid padding");
    let seen = server.receive(&frame(DATA, PADDED | END_STREAM, 1, &[2, b'h', b'i', 0, 0]));
    assert_eq!(seen, Ok(vec![Seen::Data(1, b"hi".to_vec(), true)]));
}

/// RFC 9113 section 6.4.
#[test]
fn rst_stream_has_four_octets_and_a_stream() {
    let mut server = Server::opened();
    server.fails(&frame(RST_STREAM, 0, 1, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR);
    Server::new().fails(&rst_stream(0), ErrorCode::PROTOCOL_ERROR);
    let mut server = Server::new();
    let stream = server.open(1);
    assert_eq!(server.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 1, 2])), Ok(vec![Seen::Reset(1, 0x102)]));
    assert!(!server.connection.is_open(stream));
}

/// RFC 9113 section 6.5.
#[test]
fn settings_have_a_valid_length_and_no_stream() {
    Server::new().fails(&frame(SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR);
    Server::new().fails(&frame(SETTINGS, 0, 1, &[]), ErrorCode::PROTOCOL_ERROR);
    Server::new().fails(&frame(SETTINGS, ACK, 0, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR);
    Server::new().fails(&frame(SETTINGS, ACK, 0, &[]), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 section 6.5.2.
#[test]
fn settings_have_valid_values() {
    for (id, value, code) in [
        (2, 2, ErrorCode::PROTOCOL_ERROR),
        (4, 1 << 31, ErrorCode::FLOW_CONTROL_ERROR),
        (5, (1 << 14) - 1, ErrorCode::PROTOCOL_ERROR),
        (5, 1 << 24, ErrorCode::PROTOCOL_ERROR),
        (8, 2, ErrorCode::PROTOCOL_ERROR),
    ] {
        Server::new().fails(&frame(SETTINGS, 0, 0, &setting(id, value)), code);
    }
    for (id, value) in [(1, u32::MAX), (2, 0), (3, 0), (4, (1 << 31) - 1), (5, (1 << 24) - 1), (6, 0)] {
        Server::new().silent(&frame(SETTINGS, 0, 0, &setting(id, value)));
    }
}

/// RFC 9113 section 6.5.3.
#[test]
fn settings_are_acknowledged_in_order_and_ours_bind_from_the_acknowledgement_on() {
    let config = Config::new().with_stream_window(10);
    let mut server = Server::fresh(config);
    assert!(!server.connection.settings_acknowledged());
    server.silent(&[&PREFACE[..], &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, 0, 0, &[])].concat());
    let acks = server.sent().iter().filter(|sent| (sent.frame_type, sent.flags) == (SETTINGS, ACK)).count();
    assert_eq!(acks, 2);
    // Both streams began with the default window. The acknowledgement takes it back.
    let stream = server.open(1);
    server.open(3);
    server.receive(&frame(DATA, 0, 1, &[0; 100])).expect("the default window holds");
    server.silent(&frame(SETTINGS, ACK, 0, &[]));
    assert!(server.connection.settings_acknowledged());
    server.resets(&frame(DATA, 0, 3, &[0; 11]), 3, ErrorCode::FLOW_CONTROL_ERROR);
    server.connection.release(stream, 100);
    let update = server.sent().pop().expect("WINDOW_UPDATE");
    assert_eq!((update.frame_type, update.stream, update.code()), (WINDOW_UPDATE, 1, 100));
    let seen = server.receive(&frame(DATA, 0, 1, &[0; 10])).expect("the window is open");
    assert_eq!(seen, [Seen::Data(1, vec![0; 10], false)]);
    // A driver without an acknowledgement in time: SETTINGS_TIMEOUT.
    let mut silent = Server::fresh(config);
    silent.connection.shut_down_now(ErrorCode::SETTINGS_TIMEOUT);
    assert_eq!(silent.sent().last().map(Sent::code), Some(4));
}

/// RFC 9113 sections 6.6 and 8.4.
#[test]
fn clients_do_not_push() {
    let mut server = Server::opened();
    server.fails(&frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 section 6.7.
#[test]
fn pings_are_answered_first_and_have_eight_octets() {
    let mut server = Server::new();
    let stream = server.open(1);
    server.silent(&frame(PING, 0, 0, b"12345678"));
    server.head(stream, false);
    let sent = server.sent();
    assert_eq!((sent[0].frame_type, sent[0].flags, &sent[0].payload[..]), (PING, ACK, &b"12345678"[..]));
    assert_eq!(sent[1].frame_type, HEADERS);
    server.connection.ping(*b"question");
    assert_eq!((server.sent()[0].flags, server.connection.wants_write()), (0, false));
    let answer = frame(PING, ACK, 0, b"question");
    assert_eq!(server.receive(&answer), Ok(vec![Seen::Pong(*b"question")]));
    Server::new().fails(&frame(PING, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR);
    Server::new().fails(&frame(PING, 0, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR);
}

/// RFC 9113 section 6.8.
#[test]
fn goaway_of_the_client_is_reported_and_its_last_stream_never_grows() {
    let goaway = |last: u32| frame(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &[0, 0, 0, 2], b"why"].concat());
    let mut server = Server::new();
    assert_eq!(server.receive(&goaway(6)), Ok(vec![Seen::GoAway(2)]));
    assert_eq!(server.receive(&goaway(0)), Ok(vec![Seen::GoAway(2)]));
    server.fails(&goaway(2), ErrorCode::PROTOCOL_ERROR);
    Server::new().fails(&frame(GOAWAY, 0, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR);
    Server::new().fails(&frame(GOAWAY, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR);
}

/// RFC 9113 section 6.8: GOAWAY without a limit, a round trip, GOAWAY with the last stream.
#[test]
fn graceful_shutdown_takes_a_round_trip() {
    let mut server = Server::with(Config::new().with_connection_window(65_535));
    let first = server.open(1);
    server.connection.shut_down();
    server.connection.shut_down();
    let sent = server.sent();
    assert_eq!((sent[0].frame_type, &sent[0].payload[..4]), (GOAWAY, &0x7fff_ffff_u32.to_be_bytes()[..]));
    assert_eq!((sent[1].frame_type, sent.len()), (PING, 2));
    // It crossed the GOAWAY.
    let second = server.ask(3);
    server.silent(&frame(PING, ACK, 0, &sent[1].payload));
    let last = server.sent();
    assert_eq!((last[0].frame_type, &last[0].payload[..]), (GOAWAY, &[0, 0, 0, 3, 0, 0, 0, 0][..]));
    // Later streams are ignored, and counted for flow control.
    server.silent(&[post(5), frame(DATA, 0, 5, &[0; 16_000])].concat());
    server.silent(&[frame(DATA, 0, 5, &[0; 16_384]), frame(DATA, END_STREAM, 5, &[0; 1_000])].concat());
    server.silent(&[rst_stream(5), window_update(5, 9)].concat());
    assert_eq!(server.sent().iter().map(Sent::code).collect::<Vec<_>>(), [33_384]);
    assert!(!server.connection.is_drained());
    server.head(second, true);
    server.receive(&frame(DATA, END_STREAM, 1, b"x")).expect("open streams continue");
    server.head(first, true);
    assert!(server.connection.is_drained());
}

/// RFC 9113 section 4.3: a long block is split into CONTINUATION frames.
#[test]
fn long_responses_heads_continue_in_further_frames() {
    let mut server = Server::new();
    let stream = server.ask(1);
    let value = "~".repeat(20_000);
    let long =
        [("x-long", value.as_str()), ("bad name", "x"), ("x-split", "a\r\nb: c"), ("Connection", "close")];
    server.connection.send_head(stream, 200, long, true, &mut server.out).expect("an open stream");
    let sent = server.sent();
    let shape = |sent: &Sent| (sent.frame_type, sent.flags, sent.payload.len());
    assert_eq!(shape(&sent[0]), (HEADERS, END_STREAM, 1 << 14));
    assert_eq!((sent[1].frame_type, sent[1].flags, sent.len()), (CONTINUATION, END_HEADERS, 2));
    // Without the fields that are invalid or that HTTP/2 does not have.
    assert!(sent[1].payload.ends_with(b"~"));
    assert_eq!(sent[0].payload.len() + sent[1].payload.len(), 1 + 1 + (1 + 5) + (1 + 3) + 20_000);
}

/// RFC 9113 section 8.1.
#[test]
fn heads_content_and_trailers_are_sent_in_order() {
    let mut server = Server::new();
    let stream = server.open(1);
    let mut out = Vec::new();
    let order = Err(SendMisuse::OutOfOrder(stream));
    let connection = &mut server.connection;
    assert_eq!(connection.send_data(stream, b"x", false, &mut out), order.map(|()| 0));
    assert_eq!(connection.send_trailers(stream, [], &mut out), order);
    for status in [0, 99, 101, 1000] {
        assert_eq!(
            connection.send_head(stream, status, [], false, &mut out),
            Err(SendMisuse::Status(status))
        );
    }
    assert_eq!(connection.send_head(stream, 103, [], true, &mut out), Err(SendMisuse::Status(103)));
    assert!(out.is_empty());
    assert_eq!(connection.send_head(stream, 100, [], false, &mut out), Ok(()));
    assert_eq!(connection.send_head(stream, 200, [], false, &mut out), Ok(()));
    assert_eq!(connection.send_head(stream, 200, [], false, &mut out), order);
    assert_eq!(connection.send_data(stream, b"x", false, &mut out), Ok(1));
    assert_eq!(connection.send_trailers(stream, [("a", "b")], &mut out), Ok(()));
    assert_eq!(connection.send_data(stream, b"x", true, &mut out), order.map(|()| 0));
    let flags: Vec<_> = parse(&out).iter().map(|sent| (sent.frame_type, sent.flags)).collect();
    let expected = [(HEADERS, 4), (HEADERS, 4), (DATA, 0), (HEADERS, 5)];
    assert_eq!(flags, expected);
    // The response is complete; the rest of the request is unwanted.
    server.connection.reset(stream, ErrorCode::NO_ERROR);
    server.silent(&frame(DATA, END_STREAM, 1, b"rest"));
}
