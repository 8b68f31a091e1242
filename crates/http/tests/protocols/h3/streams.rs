//! Streams and settings: RFC 9114 sections 6 and 7.2.4, RFC 9204 sections 3 and 4.

use sinews_http::h3::{Config, H3Code};

use super::support::*;

/// RFC 9114 section 6.2.1.
#[test]
fn control_stream_begins_with_settings_and_never_ends() {
    Side::fresh(Config::new()).fails(2, &[0, 13, 1, 0], H3Code::H3_MISSING_SETTINGS);
    Side::fresh(Config::new()).fails(2, &[0, 0x21, 0], H3Code::H3_MISSING_SETTINGS);
    Side::new().fails(2, &settings(&[]), H3Code::H3_FRAME_UNEXPECTED);
    Side::new().fails(6, &[0], H3Code::H3_STREAM_CREATION_ERROR);
    Side::new().fails_at_end(2, &[], H3Code::H3_CLOSED_CRITICAL_STREAM);
    let mut server = Side::new();
    let error = server.connection.receive_reset(id(2), H3Code::H3_NO_ERROR, server.now);
    assert_eq!(error.map_err(|error| error.code()).err(), Some(H3Code::H3_CLOSED_CRITICAL_STREAM));
    let mut server = Side::new();
    server.connection.set_control_stream(id(3));
    let error = server.connection.receive_stop(id(3), H3Code::H3_NO_ERROR, server.now);
    assert_eq!(error.map_err(|error| error.code()).err(), Some(H3Code::H3_CLOSED_CRITICAL_STREAM));
}

/// RFC 9114 sections 6.2.1 and 7.2.4: ours come first, too.
#[test]
fn own_control_stream_begins_with_settings() {
    let config = Config::new().with_max_sessions(7);
    let mut server = Side::fresh(config);
    assert!(server.connection.wants_write());
    let mut out = Vec::new();
    server.connection.write_control(&mut out);
    let expected = [
        (6, 16_384),
        (1, 0),
        (7, 0),
        (8, 1),
        (0x33, 1),
        (0x2b60_3742, 1),
        (0xc671_706a, 7),
        (0x14e9_cd29, 1),
    ];
    assert_eq!(out, control(&expected));
    let mut out = Vec::new();
    Side::fresh(Config::new()).connection.write_control(&mut out);
    assert_eq!(out, control(&expected[..3]));
}

/// RFC 9114 sections 7.2.4 and 7.2.4.1, RFC 9220 section 3, RFC 9297 section 2.1.1.
#[test]
fn settings_have_valid_values_once() {
    for pairs in [
        &[(0, 0)][..],
        &[(2, 0)],
        &[(3, 100)],
        &[(4, 65_535)],
        &[(5, 16_384)],
        &[(6, 1), (6, 1)],
        &[(0x21, 1), (0x21, 2)],
        &[(8, 2)],
        &[(0x33, 2)],
    ] {
        Side::fresh(Config::new()).fails(2, &control(pairs), H3Code::H3_SETTINGS_ERROR);
    }
    for payload in [&[6][..], &[6, 0x40], &[0x40]] {
        let input = [vec![0], frame(SETTINGS, payload)].concat();
        Side::fresh(Config::new()).fails(2, &input, H3Code::H3_FRAME_ERROR);
    }
    let mut server = Side::fresh(Config::new());
    assert_eq!(server.connection.peer_settings(), None);
    let pairs = [(0x21, 9), (6, 300), (8, 1), (0x33, 1), (0x2b60_3742, 1), (0x3fff_ffff_ffff_ffff, 5)];
    assert_eq!(server.receive(2, &control(&pairs)), Ok(vec![SeenEvent::Settings]));
    let peer = server.connection.peer_settings().expect("SETTINGS have arrived");
    assert!(peer.extended_connect && peer.datagrams && peer.webtransport);
    assert_eq!(peer.max_field_section_size, Some(300));
}

/// RFC 9114 sections 6.2 and 6.2.3.
#[test]
fn unknown_streams_are_stopped_and_may_end_before_their_type() {
    let mut server = Side::new();
    for (stream, stream_type) in [(6, 0x21), (10, 0x54), (14, 0x3fff_ffff_ffff_ffff)] {
        server.silent(stream, &[varint(stream_type), vec![1, 2, 3]].concat());
        assert_eq!(server.signals(), [(false, stream, H3Code::H3_STREAM_CREATION_ERROR)]);
        server.silent(stream, b"more");
    }
    assert_eq!(server.receive_last(18, &[]), Ok(Vec::new()));
    assert_eq!(server.receive_last(22, &[0x40]), Ok(Vec::new()));
    server.silent(26, &[0x40]);
    let reset = server.connection.receive_reset(id(26), H3Code::H3_NO_ERROR, server.now);
    assert!(matches!(reset, Ok(None)));
    server.ask(0);
}

/// RFC 9114 sections 4.6 and 6.2.2: no side pushes.
#[test]
fn push_is_rejected() {
    Side::new().fails(6, &[1], H3Code::H3_STREAM_CREATION_ERROR);
    Side::asking("GET").fails(7, &[1], H3Code::H3_ID_ERROR);
    Side::asking("GET").fails(0, &frame(PUSH_PROMISE, &[0, 0, 0]), H3Code::H3_ID_ERROR);
    let mut server = Side::posted();
    server.fails(0, &frame(PUSH_PROMISE, &[0, 0, 0]), H3Code::H3_FRAME_UNEXPECTED);
    Side::new().fails(2, &frame(CANCEL_PUSH, &[0]), H3Code::H3_ID_ERROR);
    Side::asking("GET").fails(3, &frame(CANCEL_PUSH, &[0]), H3Code::H3_ID_ERROR);
}

/// RFC 9114 section 7.2.7.
#[test]
fn max_push_id_is_of_the_client_and_never_shrinks() {
    let mut server = Side::new();
    server.silent(2, &[frame(MAX_PUSH_ID, &[5]), frame(MAX_PUSH_ID, &[5])].concat());
    server.fails(2, &frame(MAX_PUSH_ID, &[4]), H3Code::H3_ID_ERROR);
    Side::asking("GET").fails(3, &frame(MAX_PUSH_ID, &[5]), H3Code::H3_FRAME_UNEXPECTED);
}

/// RFC 9114 sections 5.2 and 7.2.6.
#[test]
fn goaway_names_a_request_and_never_grows() {
    let mut client = Side::asking("GET");
    assert_eq!(client.receive(3, &frame(GOAWAY, &[8])), Ok(vec![SeenEvent::GoAway(8)]));
    let target = sinews_http::h3::RequestTarget::new("GET", "https", "a", "/");
    assert!(client.connection.send_request(id(4), &target, [], true, &mut client.out).is_ok());
    assert!(client.connection.send_request(id(8), &target, [], true, &mut client.out).is_err());
    assert_eq!(client.receive(3, &frame(GOAWAY, &[8])), Ok(vec![SeenEvent::GoAway(8)]));
    client.fails(3, &frame(GOAWAY, &[12]), H3Code::H3_ID_ERROR);
    for wrong in [1, 2, 3, 6] {
        Side::asking("GET").fails(3, &frame(GOAWAY, &[wrong]), H3Code::H3_ID_ERROR);
    }
    // A client names a push.
    let mut server = Side::new();
    assert_eq!(server.receive(2, &frame(GOAWAY, &[3])), Ok(vec![SeenEvent::GoAway(3)]));
    server.fails(2, &frame(GOAWAY, &[4]), H3Code::H3_ID_ERROR);
}

/// RFC 9114 section 5.2.
#[test]
fn graceful_shutdown_announces_then_rejects_new_requests() {
    let mut server = Side::posted();
    server.connection.shut_down();
    server.connection.shut_down();
    let mut out = Vec::new();
    server.connection.write_control(&mut out);
    assert_eq!(out, frame(GOAWAY, &varint((1 << 62) - 4)));
    server.post(4);
    server.connection.shut_down_now();
    server.connection.shut_down_now();
    out.clear();
    server.connection.write_control(&mut out);
    assert_eq!(out, frame(GOAWAY, &[8]));
    server.rejects(8, &headers(&GET), H3Code::H3_REQUEST_REJECTED, "after GOAWAY");
    for stream in [0, 4] {
        assert!(!server.connection.is_drained());
        assert_eq!(server.receive_last(stream, &[]), Ok(vec![SeenEvent::End(stream)]));
        server.head(stream, 200, true);
    }
    assert!(server.connection.is_drained());
}

/// RFC 9114 section 6.1.
#[test]
fn server_opens_no_bidirectional_stream() {
    let mut client = Side::asking("GET");
    let opened = client.connection.open(id(1), client.now).map_err(|error| error.code());
    assert_eq!(opened, Err(H3Code::H3_STREAM_CREATION_ERROR));
    // With WebTransport it may, for a session.
    let mut client = Side::client(Config::new().with_max_sessions(1));
    client.fails(1, &headers(&GET), H3Code::H3_STREAM_CREATION_ERROR);
}

/// RFC 9114 section 6.1: QUIC has the same limit, so that a valid client never exceeds it.
#[test]
fn streams_beyond_the_limit_are_rejected() {
    let mut server = Side::with(Config::new().with_max_streams(2));
    server.post(0);
    server.post(4);
    server.rejects(8, &headers(&GET), H3Code::H3_REQUEST_REJECTED, "a third request");
    server.head(0, 200, true);
    assert_eq!(server.receive_last(0, &[]), Ok(vec![SeenEvent::End(0)]));
    server.ask(12);
    server.silent(6, &[2]);
    server.silent(10, &[]);
    assert_eq!(server.signals(), [(false, 10, H3Code::H3_STREAM_CREATION_ERROR)]);
}

/// RFC 9204 sections 3.2.3, 4.2 and 4.3: the capacity of the dynamic table is 0.
#[test]
fn encoder_stream_has_no_instruction_for_a_table() {
    let mut server = Side::new();
    server.silent(6, &[2]);
    // Set Dynamic Table Capacity 0.
    server.silent(6, &[0x20]);
    for wrong in [0x21, 0x3f, 0x80, 0xc0, 0x40, 0x00] {
        let mut server = Side::new();
        server.silent(6, &[2]);
        server.fails(6, &[wrong], H3Code::QPACK_ENCODER_STREAM_ERROR);
    }
    Side::new().fails_at_end(6, &[2], H3Code::H3_CLOSED_CRITICAL_STREAM);
    server.fails(10, &[2], H3Code::H3_STREAM_CREATION_ERROR);
}

/// RFC 9204 section 4.4: no section needs an acknowledgement.
#[test]
fn decoder_stream_has_only_cancellations() {
    let mut server = Side::new();
    server.silent(6, &[3, 0x40, 0x7f, 0x80, 0x01, 0x44]);
    server.silent(6, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f]);
    for wrong in [
        &[0x80][..],
        &[0x84],
        &[0x00],
        &[0x01],
        &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
    ] {
        let mut server = Side::new();
        server.silent(6, &[3]);
        server.fails(6, wrong, H3Code::QPACK_DECODER_STREAM_ERROR);
    }
    Side::new().fails_at_end(6, &[3], H3Code::H3_CLOSED_CRITICAL_STREAM);
    server.fails(10, &[3], H3Code::H3_STREAM_CREATION_ERROR);
}
