//! Flow control: RFC 9113 sections 5.2 and 6.9.

use sinews_http::h2::{Config, ErrorCode};

use super::support::*;

/// RFC 9113 section 6.9.
#[test]
fn window_update_has_four_octets_and_an_increment() {
    let mut server = Server::opened();
    server.resets(&window_update(1, 0), 1, ErrorCode::PROTOCOL_ERROR);
    server.fails(&window_update(0, 0), ErrorCode::PROTOCOL_ERROR);
    Server::new().fails(&frame(WINDOW_UPDATE, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR);
}

/// RFC 9113 section 6.9.1.
#[test]
fn window_beyond_its_maximum_is_an_error() {
    let most = (1 << 31) - 1 - 65_535;
    let mut server = Server::opened();
    server.silent(&[window_update(1, most), window_update(0, most)].concat());
    server.resets(&window_update(1, 1), 1, ErrorCode::FLOW_CONTROL_ERROR);
    server.fails(&window_update(0, 1), ErrorCode::FLOW_CONTROL_ERROR);
}

/// RFC 9113 section 6.9.1.
#[test]
fn content_beyond_a_window_is_an_error() {
    let mut server = Server::with(Config::new().with_stream_window(100));
    server.open(1);
    server.receive(&frame(DATA, 0, 1, &[0; 100])).expect("the whole window");
    server.resets(&frame(DATA, 0, 1, &[0]), 1, ErrorCode::FLOW_CONTROL_ERROR);
    // The window of the connection, half of which is returned at a time.
    let mut server = Server::with(Config::new().with_connection_window(65_535).with_max_frame_size(1 << 17));
    server.open(1);
    server.fails(&frame(DATA, 0, 1, &[0; 65_536])[..9], ErrorCode::FLOW_CONTROL_ERROR);
}

/// RFC 9113 sections 6.1 and 6.9.1: the application never sees padding, so that the machine returns it.
#[test]
fn padding_counts_for_flow_control_and_is_returned() {
    let mut server = Server::with(Config::new().with_stream_window(1000));
    let stream = server.open(1);
    for _ in 0..20 {
        let padded = [&[254, b'x'][..], &[0; 254]].concat();
        server.receive(&frame(DATA, PADDED, 1, &padded)).expect("padding leaves the window");
        server.connection.release(stream, 1);
    }
    let returned: u32 = server.sent().iter().filter(|sent| sent.stream == 1).map(Sent::code).sum();
    assert!((20 * 256 - 500..=20 * 256).contains(&returned), "{returned}");
}

/// RFC 9113 sections 5.2 and 6.9: a stream that is not read stops itself, and no other.
#[test]
fn stream_that_is_not_read_holds_only_its_own_window() {
    let mut server = Server::with(Config::new().with_connection_window(65_535).with_stream_window(40_000));
    server.open(1);
    let read = server.open(3);
    server.receive(&frame(DATA, 0, 1, &[0; 16_000])).expect("a window");
    server.receive(&frame(DATA, 0, 1, &[0; 16_000])).expect("a window");
    for _ in 0..50 {
        server.receive(&frame(DATA, 0, 3, &[0; 16_000])).expect("both windows are returned");
        server.connection.release(read, 16_000);
    }
    let updates: Vec<_> = server.sent().iter().map(|sent| sent.stream).collect();
    assert!(updates.contains(&0) && updates.contains(&3) && !updates.contains(&1));
    server.resets(&frame(DATA, 0, 1, &[0; 16_000]), 1, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn released_bytes_are_limited_to_received_bytes() {
    let mut server = Server::with(Config::new().with_stream_window(1000));
    let stream = server.open(1);
    server.connection.release(stream, usize::MAX);
    assert_eq!(server.sent(), []);
    server.receive(&frame(DATA, 0, 1, &[0; 600])).expect("a window");
    server.connection.release(stream, usize::MAX);
    assert_eq!(server.sent().iter().map(Sent::code).collect::<Vec<_>>(), [600]);
}

/// RFC 9113 sections 5.2.1 and 6.9.1.
#[test]
fn content_is_sent_within_both_windows_and_continues_when_they_open() {
    let mut server = Server::new();
    let (first, second) = (server.ask(1), server.ask(3));
    server.head(first, false);
    server.head(second, false);
    let body = vec![7; 100_000];
    assert_eq!(server.data(first, &body, true), 65_535);
    assert_eq!((server.data(first, &body, true), server.data(second, b"x", true)), (0, 0));
    assert_eq!((server.connection.window(first), server.connection.window(second)), (0, 0));
    let sizes: Vec<_> = server.sent().iter().skip(2).map(|sent| sent.payload.len()).collect();
    assert_eq!(sizes, [1 << 14, 1 << 14, 1 << 14, (1 << 14) - 1]);
    // The stream alone does not open while the connection is closed.
    server.silent(&window_update(1, 100));
    assert_eq!(server.receive(&window_update(0, 10)), Ok(vec![Seen::Opened(None)]));
    assert_eq!(server.data(second, b"x", true), 1);
    assert_eq!(server.data(first, &body, true), 9);
    assert_eq!(server.receive(&window_update(0, 1_000_000)), Ok(vec![Seen::Opened(None)]));
    assert_eq!(server.data(first, &body[..1000], false), 91);
    assert_eq!(server.receive(&window_update(1, 1)), Ok(vec![Seen::Opened(Some(1))]));
    server.silent(&window_update(1, 1));
    assert_eq!(server.data(first, b"ab", true), 2);
    let last = server.sent().pop().expect("DATA");
    assert_eq!((last.frame_type, last.flags, &last.payload[..]), (DATA, END_STREAM, &b"ab"[..]));
    assert_eq!(server.connection.streams(), 0);
}

/// RFC 9113 section 6.9.1: an empty frame needs no window.
#[test]
fn end_of_a_response_needs_no_window() {
    let mut server = Server::new();
    let stream = server.ask(1);
    server.head(stream, false);
    assert_eq!(server.data(stream, &[0; 65_535], false), 65_535);
    assert_eq!(server.data(stream, &[], true), 0);
    let last = server.sent().pop().expect("DATA");
    assert_eq!((last.frame_type, last.flags, last.payload.len()), (DATA, END_STREAM, 0));
}

/// RFC 9113 section 6.9.2.
#[test]
fn initial_window_moves_the_windows_of_all_streams() {
    let settings = |size| frame(SETTINGS, 0, 0, &setting(4, size));
    let mut server = Server::new();
    let stream = server.ask(1);
    server.head(stream, false);
    assert_eq!(server.data(stream, &[0; 1000], false), 1000);
    // Below what was sent: the window is negative.
    server.silent(&settings(400));
    assert_eq!(server.data(stream, b"x", true), 0);
    server.silent(&window_update(1, 600));
    assert_eq!(server.data(stream, b"x", true), 0);
    assert_eq!(server.receive(&window_update(1, 1)), Ok(vec![Seen::Opened(Some(1))]));
    assert_eq!(server.data(stream, b"xy", true), 1);
    assert_eq!(server.receive(&settings(500)), Ok(vec![Seen::Opened(None)]));
    assert_eq!(server.connection.window(stream), 100);
    // The last value of a frame holds.
    let both = [setting(4, 0), setting(4, 501)].concat();
    server.silent(&frame(SETTINGS, 0, 0, &both));
    assert_eq!(server.connection.window(stream), 101);
    server.silent(&window_update(1, (1 << 31) - 1 - 101));
    server.fails(&settings(502), ErrorCode::FLOW_CONTROL_ERROR);
}
