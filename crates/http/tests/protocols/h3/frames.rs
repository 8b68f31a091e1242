//! Frames: RFC 9114 sections 4.1, 7 and 9.

use sinews_http::h3::{Config, H3Code, H3SendError};

use super::support::*;

/// RFC 9114 section 7.2.8.
#[test]
fn frames_of_http2_are_rejected() {
    for frame_type in [2, 6, 8, 9] {
        Side::new().fails(2, &frame(frame_type, &[0; 4]), H3Code::H3_FRAME_UNEXPECTED);
        let mut server = Side::posted();
        server.fails(0, &frame(frame_type, &[0; 4]), H3Code::H3_FRAME_UNEXPECTED);
    }
}

/// RFC 9114 sections 4.1 and 7.2.
#[test]
fn frames_are_on_their_stream_and_in_order() {
    for frame_type in [DATA, HEADERS, PUSH_PROMISE] {
        Side::new().fails(2, &frame(frame_type, &[0; 2]), H3Code::H3_FRAME_UNEXPECTED);
    }
    for frame_type in [CANCEL_PUSH, SETTINGS, GOAWAY, MAX_PUSH_ID, DATA] {
        Side::new().fails(0, &frame(frame_type, &[0]), H3Code::H3_FRAME_UNEXPECTED);
    }
    for frame_type in [CANCEL_PUSH, SETTINGS, GOAWAY, MAX_PUSH_ID] {
        let mut server = Side::posted();
        server.fails(0, &frame(frame_type, &[0]), H3Code::H3_FRAME_UNEXPECTED);
    }
    for wrong in [frame(DATA, b"x"), headers(&[("a", "b")])] {
        let mut server = Side::posted();
        let trailers = headers(&[("a", "b")]);
        let fields = vec![("a".to_owned(), "b".to_owned())];
        assert_eq!(server.receive(0, &trailers), Ok(vec![SeenEvent::Trailers(0, fields)]));
        server.fails(0, &wrong, H3Code::H3_FRAME_UNEXPECTED);
    }
    // RFC 9114 section 4.4: a tunnel carries DATA only.
    let mut server = Side::with(Config::new().with_extended_connect(true));
    server.receive(0, &connect("websocket")).expect("a valid request");
    server.silent(0, &frame(0x21, b"x"));
    server.fails(0, &headers(&[("a", "b")]), H3Code::H3_FRAME_UNEXPECTED);
}

/// RFC 9114 section 7.1.
#[test]
fn frames_are_complete_and_have_the_length_of_their_fields() {
    for cut in [&[1][..], &[1, 5, 0, 0], &[0x40], &[0x21, 3, 1]] {
        Side::new().fails_at_end(0, cut, H3Code::H3_FRAME_ERROR);
    }
    let mut server = Side::posted();
    server.fails_at_end(0, &[0, 5, b'x'], H3Code::H3_FRAME_ERROR);
    for frame_type in [GOAWAY, MAX_PUSH_ID, CANCEL_PUSH] {
        for payload in [&[][..], &[0, 0], &[0x40], &[0x40, 0, 0], &[0; 9], &[0xc0, 0, 0, 0]] {
            Side::new().fails(2, &frame(frame_type, payload), H3Code::H3_FRAME_ERROR);
        }
    }
    // RFC 9114 section 7.2.2: a field section has a prefix.
    Side::new().fails(0, &frame(HEADERS, &[]), H3Code::QPACK_DECOMPRESSION_FAILED);
}

/// RFC 9114 sections 7.2.8 and 9.
#[test]
fn unknown_frames_are_ignored_everywhere() {
    let unknown =
        [frame(0x21, b"grease"), frame(0xf_0700, b"\0u=1"), frame(0x3fff_ffff_ffff_ffff, b"")].concat();
    let mut server = Side::new();
    server.silent(2, &unknown);
    server.silent(0, &unknown);
    server.post(0);
    server.silent(0, &unknown);
    assert_eq!(server.receive(0, &frame(DATA, b"x")), Ok(vec![SeenEvent::Data(0, b"x".to_vec())]));
    assert_eq!(server.receive(0, &headers(&[])), Ok(vec![SeenEvent::Trailers(0, Vec::new())]));
    server.silent(0, &unknown);
    assert_eq!(server.receive_last(0, &[]), Ok(vec![SeenEvent::End(0)]));
}

/// RFC 9114 section 4.1.
#[test]
fn messages_are_sent_in_order() {
    let mut server = Side::new();
    server.ask(0);
    let stream = id(0);
    let connection = &mut server.connection;
    assert_eq!(
        connection.send_data(stream, b"x", false, &mut server.out),
        Err(H3SendError::OutOfOrder(stream))
    );
    assert_eq!(connection.send_trailers(stream, [], &mut server.out), Err(H3SendError::OutOfOrder(stream)));
    for wrong in [0, 99, 101, 1000] {
        let sent = connection.send_head(stream, wrong, [], false, &mut server.out);
        assert_eq!(sent, Err(H3SendError::Status(wrong)));
    }
    assert_eq!(connection.send_head(stream, 103, [], true, &mut server.out), Err(H3SendError::Status(103)));
    assert_eq!(server.sent(), b"");
    server.head(0, 103, false);
    let fields = [("Content-Type", "text/plain"), ("connection", "close"), ("x", "a\r\nb"), ("cookie", "a")];
    server.connection.send_head(stream, 200, fields, false, &mut server.out).expect("an open stream");
    let head = b"\x01\x40\x03\0\0\xd8\x01\x40\x07\0\0\xd9\xf5\x75\x01a";
    assert_eq!(server.sent(), head);
    let connection = &mut server.connection;
    let again = connection.send_head(stream, 200, [], false, &mut server.out);
    assert_eq!(again, Err(H3SendError::OutOfOrder(stream)));
    connection.send_data(stream, b"", false, &mut server.out).expect("an open stream");
    connection.send_data(stream, &[7; 64], false, &mut server.out).expect("an open stream");
    connection.send_trailers(stream, [("A", "b")], &mut server.out).expect("an open stream");
    let trailers = b"\x01\x40\x06\0\0\x21a\x01b";
    assert_eq!(server.sent(), [&[0, 0x40, 64][..], &[7; 64], trailers].concat());
    let after = server.connection.send_data(stream, b"x", false, &mut server.out);
    assert_eq!(after, Err(H3SendError::Closed(stream)));
    assert_eq!(server.connection.requests(), 0);
}

#[test]
fn long_heads_have_long_lengths() {
    let long = "~".repeat(20_000);
    for len in [16_300, 16_382, 16_383, 20_000] {
        let mut server = Side::new();
        server.ask(0);
        let fields = [("x", &long[..len])];
        server.connection.send_head(id(0), 200, fields, true, &mut server.out).expect("an open stream");
        let head = server.sent();
        let mut client = Side::asking("GET");
        let config = Config::new().with_head(sinews_http::HeadLimits::new().with_max_bytes(40_000));
        client.connection = sinews_http::h3::H3Connection::client(config);
        let target = sinews_http::h3::RequestTarget::new("GET", "https", "a", "/");
        client.connection.send_request(id(0), &target, [], true, &mut Vec::new()).expect("a new stream");
        let seen = client.receive_last(0, &head);
        assert_eq!(seen, Ok(vec![SeenEvent::Response(0, 200), SeenEvent::End(0)]), "{len}");
    }
}

/// RFC 9114 section 4.1.1.
#[test]
fn resets_end_a_message() {
    let mut server = Side::posted();
    let reset = server.connection.receive_reset(id(0), H3Code::H3_REQUEST_CANCELLED, server.now);
    assert_eq!(reset.map(|event| event.map(copied)), Ok(Some(SeenEvent::Reset(0, 0x10c))));
    assert_eq!(server.signals(), [(true, 0, H3Code::H3_REQUEST_CANCELLED)]);
    server.silent(0, b"ignored");
    // A client that does not want the response.
    server.post(4);
    let stop = server.connection.receive_stop(id(4), H3Code::new(77), server.now);
    assert_eq!(stop.map(|event| event.map(copied)), Ok(Some(SeenEvent::Reset(4, 77))));
    let cancelled = H3Code::H3_REQUEST_CANCELLED;
    assert_eq!(server.signals(), [(true, 4, cancelled), (false, 4, cancelled)]);
    // Before the head, the application knows nothing of the request.
    server.silent(8, &[1, 50]);
    let reset = server.connection.receive_reset(id(8), cancelled, server.now);
    assert_eq!(reset.map(|event| event.map(copied)), Ok(None));
    // After the response, only the rest of the request is stopped.
    server.signals();
    server.post(12);
    server.head(12, 200, true);
    assert!(matches!(server.connection.receive_stop(id(12), cancelled, server.now), Ok(None)));
    server.connection.reset(id(12), H3Code::H3_NO_ERROR);
    assert_eq!(server.signals(), [(false, 12, H3Code::H3_NO_ERROR)]);
    server.connection.reset(id(12), H3Code::H3_NO_ERROR);
    assert_eq!((server.signals(), server.connection.requests()), (Vec::new(), 0));
}
