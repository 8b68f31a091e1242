//! WebTransport (draft-ietf-webtrans-http3) and datagrams (RFC 9297).

use sinews_http::h3::{Config, H3Code, H3SendError, RequestTarget};

use super::support::*;

const SESSIONS: Config = Config::new().with_max_sessions(2);

/// A server with an open session on stream 0.
fn session() -> Side {
    let mut server = Side::with(SESSIONS);
    accept(&mut server, 0);
    server.sent();
    server
}

fn accept(server: &mut Side, stream: u64) {
    let request = SeenEvent::Request(stream, "CONNECT".into(), "/chat".into());
    assert_eq!(server.receive(stream, &connect("webtransport")), Ok(vec![request]));
    server.head(stream, 200, false);
}

/// The beginning of a stream of a session.
fn prefix(stream: u64, session: u64) -> Vec<u8> {
    [varint(if stream & 2 == 0 { 0x41 } else { 0x54 }), varint(session)].concat()
}

fn capsule(capsule_type: u64, payload: &[u8]) -> Vec<u8> {
    frame(DATA, &[&varint(capsule_type)[..], &varint(payload.len() as u64), payload].concat())
}

/// draft-ietf-webtrans-http3 sections 4.2 and 4.3.
#[test]
fn streams_of_a_session_carry_bytes_without_frames() {
    let mut server = session();
    for stream in [4, 6] {
        let bytes = [&prefix(stream, 0)[..], b"\x01\x00hello"].concat();
        let data = SeenEvent::Data(stream, b"\x01\x00hello".to_vec());
        assert_eq!(server.receive(stream, &bytes), Ok(vec![SeenEvent::SessionStream(stream, 0), data]));
        assert_eq!(server.receive(stream, b"more"), Ok(vec![SeenEvent::Data(stream, b"more".to_vec())]));
        assert_eq!(server.receive_last(stream, b""), Ok(vec![SeenEvent::End(stream)]));
    }
    let code = H3Code::from_session_code(9);
    assert_eq!(server.receive(8, &prefix(8, 0)), Ok(vec![SeenEvent::SessionStream(8, 0)]));
    let reset = server.connection.receive_reset(id(8), code, server.now).map(|event| event.map(copied));
    assert_eq!(reset, Ok(Some(SeenEvent::Reset(8, code.get()))));
    assert_eq!((server.signals(), server.connection.requests()), (Vec::new(), 1));
}

/// draft-ietf-webtrans-http3 section 4.1.
#[test]
fn own_streams_of_a_session_begin_with_its_identifier() {
    let mut server = session();
    let uni = server.connection.open_session_stream(id(7), id(0)).expect("an open session");
    assert_eq!(uni.as_bytes(), [0x40, 0x54, 0]);
    let bidi = server.connection.open_session_stream(id(1), id(0)).expect("an open session");
    assert_eq!(bidi.as_bytes(), [0x40, 0x41, 0]);
    // The peer answers without a prefix.
    assert_eq!(server.receive(1, b"answer"), Ok(vec![SeenEvent::Data(1, b"answer".to_vec())]));
    let none = server.connection.open_session_stream(id(5), id(4));
    assert_eq!(none, Err(H3SendError::NoSession(id(4))));
}

/// draft-ietf-webtrans-http3 section 4.6: streams that come before the session are kept.
#[test]
fn streams_wait_for_their_session() {
    let mut server = Side::with(SESSIONS);
    let bytes = [&prefix(6, 4)[..], b"early"].concat();
    let mut seen = Vec::new();
    assert_eq!(server.receive_into(6, &bytes, false, &mut seen), Ok(5));
    assert_eq!(server.receive_into(6, b"early", false, &mut seen), Ok(5));
    let other = [&prefix(10, 8)[..], b"other"].concat();
    assert_eq!(server.receive_into(10, &other, true, &mut seen), Ok(5));
    assert_eq!((seen, server.connection.next_resumed()), (Vec::new(), None));
    accept(&mut server, 4);
    let resumed: Vec<_> = std::iter::from_fn(|| server.connection.next_resumed()).collect();
    assert!(resumed.contains(&id(6)));
    assert_eq!(
        server.receive_last(6, b"early"),
        Ok(vec![SeenEvent::SessionStream(6, 4), SeenEvent::Data(6, b"early".to_vec()), SeenEvent::End(6)])
    );
    // A session that is rejected takes its streams along.
    server.receive(8, &connect("webtransport")).expect("a valid request");
    server.head(8, 403, true);
    assert_eq!(server.receive_last(10, b"other"), Ok(Vec::new()));
    assert_eq!(server.signals(), [(false, 10, H3Code::WEBTRANSPORT_SESSION_GONE)]);
}

/// The application does not know these streams: nothing else would end the other side, and QUIC would count them as open.
#[test]
fn streams_that_end_before_their_session_end_on_both_sides() {
    let (incomplete, cancelled) = (H3Code::H3_REQUEST_INCOMPLETE, H3Code::H3_REQUEST_CANCELLED);
    let mut server = session();
    // Inside of the signal.
    assert_eq!(server.receive_last(4, &varint(0x41)), Ok(Vec::new()));
    assert_eq!(server.signals(), [(true, 4, incomplete)]);
    assert_eq!(server.receive_last(6, &varint(0x54)), Ok(Vec::new()));
    assert_eq!(server.signals(), []);
    // Inside of the signal, and while the session is awaited.
    for (stream, bytes) in [(8, varint(0x41)), (12, prefix(12, 16))] {
        server.silent(stream, &bytes);
        let reset = server.connection.receive_reset(id(stream), H3Code::new(7), server.now);
        assert!(matches!(reset, Ok(None)), "{reset:?}");
        assert_eq!(server.signals(), [(true, stream, cancelled)]);
        assert!(!server.connection.is_open(id(stream)));
    }
}

/// draft-ietf-webtrans-http3 section 3.1: no session before SETTINGS.
#[test]
fn requests_for_a_session_wait_for_settings() {
    let mut server = Side::fresh(SESSIONS);
    server.silent(0, &connect("webtransport"));
    assert!(server.connection.is_held(id(0)));
    // Others do not wait.
    server.ask(4);
    assert_eq!(server.receive(2, &control(&[(0x33, 1)])), Ok(vec![SeenEvent::Settings]));
    assert_eq!(server.connection.next_resumed(), Some(id(0)));
    let request = SeenEvent::Request(0, "CONNECT".into(), "/chat".into());
    assert_eq!(server.receive(0, b""), Ok(vec![request]));
    assert_eq!(server.connection.awaits_head_since(), None);
}

/// draft-ietf-webtrans-http3 sections 4.2 to 4.3.
#[test]
fn streams_name_a_request_and_signals_come_first() {
    for wrong in [1, 2, 3, 7] {
        session().fails(6, &prefix(6, wrong), H3Code::H3_ID_ERROR);
        session().fails(4, &prefix(4, wrong), H3Code::H3_ID_ERROR);
    }
    let mut server = session();
    server.post(4);
    server.fails(4, &prefix(4, 0), H3Code::H3_FRAME_ERROR);
    // Without the setting it is an unknown frame, or an unknown stream.
    let mut server = Side::new();
    server.silent(0, &frame(0x41, b"x"));
    server.silent(6, &prefix(6, 0));
    assert_eq!(server.signals(), [(false, 6, H3Code::H3_STREAM_CREATION_ERROR)]);
    // A request that is no session.
    let mut server = session();
    server.post(4);
    server.silent(8, &prefix(8, 4));
    let gone = H3Code::WEBTRANSPORT_SESSION_GONE;
    assert_eq!(server.signals(), [(true, 8, gone), (false, 8, gone)]);
}

/// draft-ietf-webtrans-http3 section 5.2.
#[test]
fn sessions_beyond_the_limit_are_rejected() {
    let mut server = session();
    accept(&mut server, 4);
    server.silent(8, &connect("webtransport"));
    let rejected = H3Code::H3_REQUEST_REJECTED;
    assert_eq!(server.signals(), [(true, 8, rejected), (false, 8, rejected)]);
    assert_eq!(server.receive_last(0, b""), Ok(vec![SeenEvent::SessionClosed(0, 0, String::new())]));
    accept(&mut server, 12);
}

/// RFC 9297 section 3.2, draft-ietf-webtrans-http3 section 6.
#[test]
fn capsules_end_and_drain_a_session() {
    let mut server = session();
    for stream in [4, 6] {
        server.receive(stream, &prefix(stream, 0)).expect("a stream of the session");
    }
    server.silent(0, &capsule(0, b"\0datagram"));
    server.silent(0, &capsule(0x17, &[0; 3000]));
    assert_eq!(server.receive(0, &capsule(0x78ae, b"")), Ok(vec![SeenEvent::Draining(0)]));
    let close = capsule(0x2843, b"\0\0\x01\x00bye");
    assert_eq!(server.receive(0, &close), Ok(vec![SeenEvent::SessionClosed(0, 256, "bye".into())]));
    let gone = H3Code::WEBTRANSPORT_SESSION_GONE;
    assert_eq!(server.signals(), [(false, 4, gone), (false, 6, gone)]);
    assert_eq!(server.connection.open_session_stream(id(1), id(0)), Err(H3SendError::NoSession(id(0))));
    // Nothing follows.
    let seen = server.receive(0, &frame(DATA, b"x"));
    assert_eq!(seen, Ok(vec![SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)]));
    // The end of the stream is one, too.
    let mut server = session();
    assert_eq!(server.receive_last(0, b""), Ok(vec![SeenEvent::SessionClosed(0, 0, String::new())]));
    let mut server = session();
    let reset = server.connection.receive_reset(id(0), H3Code::H3_NO_ERROR, server.now);
    assert_eq!(reset.map(|event| event.map(copied)), Ok(Some(SeenEvent::SessionClosed(0, 0, String::new()))));
    for wrong in [
        capsule(0x2843, b"\0\0\0"),
        capsule(0x2843, &[b'a'; 4 + 1025]),
        capsule(0x2843, b"\0\0\0\0\xff"),
        capsule(0x78ae, b"x"),
    ] {
        let seen = session().receive(0, &wrong);
        assert_eq!(seen, Ok(vec![SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)]));
    }
    let cut = session().receive_last(0, &frame(DATA, &[0x68, 0x43]));
    assert_eq!(cut, Ok(vec![SeenEvent::Violated(0, H3Code::H3_MESSAGE_ERROR)]));
}

/// draft-ietf-webtrans-http3 section 6.
#[test]
fn own_capsules_are_received_by_the_other_side() {
    let mut client = Side::client(SESSIONS);
    let target = RequestTarget::connect("webtransport", "example.com", "/chat");
    client.connection.send_request(id(0), &target, [], false, &mut client.out).expect("a new stream");
    client.receive(0, &headers(&[(":status", "200")])).expect("a valid response");
    client.sent();
    client.connection.drain_session(id(0), &mut client.out).expect("an open session");
    let long = "\u{20ac}".repeat(400);
    client.connection.close_session(id(0), 7, &long, &mut client.out).expect("an open session");
    let mut server = session();
    let seen = server.receive_last(0, &client.sent());
    let reason = "\u{20ac}".repeat(341);
    assert_eq!(seen, Ok(vec![SeenEvent::Draining(0), SeenEvent::SessionClosed(0, 7, reason)]));
    let again = client.connection.close_session(id(0), 7, "", &mut client.out);
    assert_eq!(again, Err(H3SendError::NoSession(id(0))));
    // The other end may cross ours.
    assert_eq!(client.receive_last(0, &capsule(0x2843, b"\0\0\0\0")), Ok(Vec::new()));
    assert_eq!(client.connection.requests(), 0);
}

/// RFC 9297 section 2.1.
#[test]
fn datagrams_name_an_open_session() {
    let mut server = Side::with(SESSIONS);
    accept(&mut server, 4);
    assert_eq!(server.connection.receive_datagram(b"\x01hello"), Ok(Some((id(4), &b"hello"[..]))));
    assert_eq!(server.connection.receive_datagram(b"\x01"), Ok(Some((id(4), &b""[..]))));
    // Dropped: unknown, and no session.
    server.post(0);
    assert_eq!(server.connection.receive_datagram(b"\x00x"), Ok(None));
    assert_eq!(server.connection.receive_datagram(b"\x07x"), Ok(None));
    for wrong in [&b""[..], b"\x40", b"\xd0\0\0\0\0\0\0\0"] {
        let code = session().connection.receive_datagram(wrong).map_err(|error| error.code());
        assert_eq!(code, Err(H3Code::H3_DATAGRAM_ERROR));
    }
    let mut server = Side::with(SESSIONS);
    accept(&mut server, 256);
    assert_eq!(
        server.connection.datagram_prefix(id(256)).map(|prefix| prefix.as_bytes().to_vec()),
        Ok(vec![0x40, 0x40])
    );
}

/// draft-ietf-webtrans-http3 section 3.1: both sides announce datagrams.
#[test]
fn sessions_of_clients_without_datagrams_are_malformed() {
    let mut server = Side::fresh(SESSIONS);
    server.receive(2, &control(&[])).expect("SETTINGS");
    server.silent(0, &connect("webtransport"));
    let malformed = H3Code::H3_MESSAGE_ERROR;
    assert_eq!(server.signals(), [(true, 0, malformed), (false, 0, malformed)]);
    // Other requests do not need them.
    server.ask(4);
}

/// draft-ietf-webtrans-http3 section 4.6: datagrams that come before the session are kept, within limits.
#[test]
fn datagrams_wait_for_their_session_within_limits() {
    let early = |server: &mut Side| {
        let next = server.connection.next_early_datagram();
        next.map(|(session, payload)| (session.get(), payload.to_vec()))
    };
    let mut server = Side::with(SESSIONS);
    let idle = server.connection.memory();
    for number in 0..Config::EARLY_DATAGRAMS_MAX as u8 + 3 {
        assert_eq!(server.connection.receive_datagram(&[1, number]), Ok(None));
    }
    assert_eq!(early(&mut server), None);
    accept(&mut server, 4);
    for number in 0..Config::EARLY_DATAGRAMS_MAX as u8 {
        assert_eq!(early(&mut server), Some((4, vec![number])));
    }
    assert_eq!(early(&mut server), None);
    // Those of a session that is rejected are dropped.
    server.connection.receive_datagram(b"\x02x").expect("a valid datagram");
    server.receive(8, &connect("webtransport")).expect("a valid request");
    server.head(8, 403, true);
    assert_eq!(early(&mut server), None);
    // The limit of bytes.
    let large = [&[3][..], &[0; Config::EARLY_DATAGRAM_BYTES_MAX / 2 + 1]].concat();
    (0..2).for_each(|_| assert_eq!(server.connection.receive_datagram(&large), Ok(None)));
    assert!(server.connection.memory() < idle + Config::EARLY_DATAGRAM_BYTES_MAX);
    accept(&mut server, 12);
    assert!(early(&mut server).is_some() && early(&mut server).is_none());
    // Without sessions nothing waits.
    let mut server = Side::new();
    let idle = server.connection.memory();
    assert_eq!(server.connection.receive_datagram(&large), Ok(None));
    assert_eq!(server.connection.memory(), idle);
}

/// The application's rejections count as resets of the peer (CVE-2025-8671).
#[test]
fn flood_of_rejected_streams_ends_the_connection() {
    let mut server = session();
    let code = H3Code::from_session_code(0);
    let mut failed = None;
    for number in 1..2000 {
        let stream = number * 4;
        server.receive(stream, &prefix(stream, 0)).expect("a stream of the session");
        if let Err(error) = server.connection.reject_session_stream(id(stream), code, server.now) {
            failed = Some(error.code());
            break;
        }
        assert_eq!(server.signals(), [(true, stream, code), (false, stream, code)]);
    }
    assert_eq!(failed, Some(H3Code::H3_EXCESSIVE_LOAD));
}

/// draft-ietf-webtrans-http3 section 6: our side may end before the peer's, whose bytes still arrive.
#[test]
fn own_side_of_a_stream_ends_alone() {
    let mut server = session();
    server.connection.open_session_stream(id(1), id(0)).expect("an open session");
    server.connection.finish_session_stream(id(1));
    assert_eq!(server.receive(1, b"late"), Ok(vec![SeenEvent::Data(1, b"late".to_vec())]));
    server.connection.reset(id(1), H3Code::WEBTRANSPORT_SESSION_GONE);
    // It has sent all: no reset follows.
    assert_eq!(server.signals(), [(false, 1, H3Code::WEBTRANSPORT_SESSION_GONE)]);
}
