//! Rules of QUIC, HTTP/3 and QPACK as h3spec tests them, and more of them: each violation, and the code of the error.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{Dir, StreamId, TransportConfig};
use sinews_http::h3::RequestTarget;

use super::quic_client::QuicClient;
use super::tamper::{Changes, Level, PacketChange, ParameterChange, SharedChanges, TamperConfig, varint};
use super::{Http3Client, Http3Server};
use crate::support::patient;

const FLOW_CONTROL: u64 = 3;
const STREAM_LIMIT: u64 = 4;
const STREAM_STATE: u64 = 5;
const FINAL_SIZE: u64 = 6;
const FRAME_ENCODING: u64 = 7;
const TRANSPORT_PARAMETER: u64 = 8;
const ID_LIMIT: u64 = 9;
const PROTOCOL_VIOLATION: u64 = 10;
/// Alerts of TLS.
const UNEXPECTED_MESSAGE: u64 = 0x10a;
const MISSING_EXTENSION: u64 = 0x16d;
const NO_PROTOCOL: u64 = 0x178;

/// Starts a client with changes.
fn start(server: &Http3Server, alpn: &str, changes: &SharedChanges) -> Http3Client {
    let (address, transport) = (server.running.address, TransportConfig::default());
    let wrap = |inner| -> Arc<dyn quinn_proto::crypto::ClientConfig> {
        Arc::new(TamperConfig { inner, changes: Arc::clone(changes) })
    };
    let roots = server.roots.clone();
    let quic = QuicClient::connect_wrapped(address, roots, alpn, transport, wrap, Instant::now());
    Http3Client::with_quic(quic, address)
}

/// Runs a client until its connection ends. Returns whether the code is that of an application, and the code.
fn end(mut client: Http3Client, what: &str) -> (bool, u64) {
    client.run(what, |quic| quic.lost.is_some());
    client.quic.closed.unwrap_or_else(|| panic!("{what}: {:?}", client.quic.lost))
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// A frame of QUIC with integers as its fields.
fn frame(fields: &[u64]) -> Vec<u8> {
    fields.iter().copied().flat_map(varint).collect()
}

/// NEW_CONNECTION_ID (RFC 9000 section 19.15).
fn new_id(sequence: u64, retires: u64, id: &[u8]) -> Vec<u8> {
    let head = frame(&[0x18, sequence, retires, id.len() as u64]);
    joined(&[&head, id, &[sequence as u8; 16]])
}

/// Frames in a packet of the application.
#[test]
fn violations_of_frames_close_the_connection_with_their_code() {
    let server = Http3Server::new(patient(), 1);
    let beyond = (1 << 60) + 1;
    let cases: Vec<(&str, Vec<u8>, &[u64])> = vec![
        ("4.1: STREAM with a large offset", frame(&[0x0e, 0, 100_000_000, 1, 7]), &[FLOW_CONTROL]),
        ("4.5: RESET_STREAM with a large size", frame(&[0x04, 0, 0, 100_000_000]), &[FLOW_CONTROL]),
        ("4.6: identifier beyond the limit", frame(&[0x0a, 1_000_000_000, 1, 7]), &[STREAM_LIMIT]),
        (
            "4.5: bytes behind the end",
            [frame(&[0x0b, 40, 1, 7]), frame(&[0x0e, 40, 5, 1, 7])].concat(),
            &[FINAL_SIZE],
        ),
        ("12.4: unknown frame", frame(&[0x20]), &[FRAME_ENCODING]),
        ("12.4: frame longer than its packet", frame(&[0x0a, 0, 16_000, 7]), &[FRAME_ENCODING]),
        ("13.1: ACK of a packet that was not sent", frame(&[0x02, 100_000, 0, 0, 0]), &[PROTOCOL_VIOLATION]),
        ("19.4: RESET_STREAM of a send-only stream", frame(&[0x04, 3, 0, 0]), &[STREAM_STATE]),
        ("19.5: STOP_SENDING of a stream that does not exist", frame(&[0x05, 1, 0]), &[STREAM_STATE]),
        ("19.5: STOP_SENDING of a receive-only stream", frame(&[0x05, 2, 0]), &[STREAM_STATE]),
        ("19.7: NEW_TOKEN", frame(&[0x07, 2, 7, 7]), &[PROTOCOL_VIOLATION]),
        ("19.8: STREAM of the server that does not exist", frame(&[0x0a, 1, 1, 7]), &[STREAM_STATE]),
        ("19.8: STREAM of a send-only stream", frame(&[0x0a, 3, 1, 7]), &[STREAM_STATE]),
        ("19.10: MAX_STREAM_DATA of a stream that does not exist", frame(&[0x11, 1, 100]), &[STREAM_STATE]),
        ("19.10: MAX_STREAM_DATA of a receive-only stream", frame(&[0x11, 2, 100]), &[STREAM_STATE]),
        ("19.11: MAX_STREAMS beyond 2^60", frame(&[0x12, beyond]), &[FRAME_ENCODING]),
        ("19.14: STREAMS_BLOCKED beyond 2^60", frame(&[0x16, beyond]), &[FRAME_ENCODING, STREAM_LIMIT]),
        ("19.15: retires later identifiers", new_id(1, 2, &[1; 8]), &[FRAME_ENCODING]),
        ("19.15: identifier without bytes", new_id(1, 0, &[]), &[FRAME_ENCODING]),
        ("5.1.1: more identifiers than the limit", new_id(100, 0, &[9; 8]), &[ID_LIMIT]),
        ("19.16: identifier that was not issued", frame(&[0x19, 100]), &[PROTOCOL_VIOLATION]),
        ("19.20: HANDSHAKE_DONE", frame(&[0x1e]), &[PROTOCOL_VIOLATION]),
        (
            "9001 6: KeyUpdate of TLS",
            joined(&[&frame(&[0x06, 0, 5]), &[24, 0, 0, 1, 1]]),
            &[UNEXPECTED_MESSAGE],
        ),
    ];
    for (what, frames, codes) in cases {
        let changes = SharedChanges::default();
        let mut client = start(&server, "h3", &changes);
        client.run(what, |quic| quic.http.peer_settings().is_some());
        changes.lock().unwrap().packet = Some((Level::OneRtt, PacketChange::Frames(frames)));
        // Its packet has room.
        client.ask("POST", "/len", &[7; 1000]);
        let (is_application, code) = end(client, what);
        assert!(!is_application && codes.contains(&code), "{what}: {code:#x}");
    }
    assert_eq!(server.connect().get("/fixed").0, 200);
}

/// Packets and messages of the handshake.
#[test]
fn violations_of_the_handshake_close_the_connection_with_their_code() {
    let server = Http3Server::new(patient(), 1);
    let packet = |level, change| Changes { packet: Some((level, change)), ..Changes::default() };
    let challenge = joined(&[&[0x1a], &[7; 8]]);
    let finished = |bytes: &[u8]| Changes { before_finished: bytes.to_vec(), ..Changes::default() };
    let extension = |kind| Changes { extension: Some(kind), ..Changes::default() };
    let cases = [
        ("17.2: reserved bits", packet(Level::Handshake, PacketChange::ReservedBits), PROTOCOL_VIOLATION),
        ("17.3: reserved bits", packet(Level::OneRtt, PacketChange::ReservedBits), PROTOCOL_VIOLATION),
        (
            "17.2.4: PATH_CHALLENGE",
            packet(Level::Handshake, PacketChange::Frames(challenge)),
            PROTOCOL_VIOLATION,
        ),
        ("9001 6: KeyUpdate", finished(&[24, 0, 0, 1, 0]), UNEXPECTED_MESSAGE),
        ("9001 8.3: EndOfEarlyData", finished(&[5, 0, 0, 0]), UNEXPECTED_MESSAGE),
        ("9001 8.2: no parameters", extension(0), MISSING_EXTENSION),
    ];
    for (what, changes, code) in cases {
        let client = start(&server, "h3", &Arc::new(changes.into()));
        assert_eq!(end(client, what), (false, code), "{what}");
    }
    let client = start(&server, "dummy", &SharedChanges::default());
    assert_eq!(end(client, "9001 8.1: no protocol in common"), (false, NO_PROTOCOL));
    assert_eq!(server.connect().get("/fixed").0, 200);
}

/// RFC 9000 sections 7.3, 7.4 and 18.2.
#[test]
fn invalid_transport_parameters_close_the_connection() {
    fn set(parameters: &mut Vec<(u64, Vec<u8>)>, id: u64, value: Vec<u8>) {
        parameters.retain(|(known, _)| *known != id);
        parameters.push((id, value));
    }
    let server = Http3Server::new(patient(), 1);
    let cases: [(&str, ParameterChange); 12] = [
        ("no initial_source_connection_id", |all| all.retain(|(id, _)| *id != 0x0f)),
        ("another initial_source_connection_id", |all| set(all, 0x0f, vec![7; 8])),
        ("original_destination_connection_id", |all| set(all, 0x00, vec![7; 8])),
        ("preferred_address", |all| set(all, 0x0d, [&[7; 24][..], &[4], &[7; 20]].concat())),
        ("retry_source_connection_id", |all| set(all, 0x10, vec![7; 8])),
        ("stateless_reset_token", |all| set(all, 0x02, vec![7; 16])),
        ("max_udp_payload_size below 1200", |all| set(all, 0x03, varint(1090))),
        ("ack_delay_exponent above 20", |all| set(all, 0x0a, varint(30))),
        ("max_ack_delay of 2^15", |all| set(all, 0x0b, varint(1 << 15))),
        ("active_connection_id_limit below 2", |all| set(all, 0x0e, varint(1))),
        ("initial_max_streams_bidi above 2^60", |all| set(all, 0x08, varint((1 << 60) + 1))),
        ("the same parameter twice", |all| all.push((0x04, varint(7)))),
    ];
    for (what, change) in cases {
        let changes = Changes { parameters: Some(change), ..Changes::default() };
        let client = start(&server, "h3", &Arc::new(changes.into()));
        assert_eq!(end(client, what), (false, TRANSPORT_PARAMETER), "{what}");
    }
    assert_eq!(server.connect().get("/fixed").0, 200);
}

/// A frame of HTTP/3.
fn h3_frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    joined(&[&varint(kind), &varint(payload.len() as u64), payload])
}

/// Literal fields without names of the static table (RFC 9204 section 4.5.6).
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        match name.len() {
            len @ 0..7 => section.push(0x20 | len as u8),
            len => section.extend([0x27, len as u8 - 7]),
        }
        section.extend_from_slice(name.as_bytes());
        section.push(value.len() as u8);
        section.extend_from_slice(value.as_bytes());
    }
    section
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/fixed")];

/// HEADERS of GET with fields before and behind.
fn get_with(before: &[(&str, &str)], behind: &[(&str, &str)]) -> Vec<u8> {
    h3_frame(1, &section(&[before, &GET, behind].concat()))
}

/// Where the bytes of a case go.
enum Place {
    /// A request, which may end.
    Request(bool),
    /// The client's control stream, behind its type.
    Control,
    /// A new unidirectional stream, which may end.
    Uni(bool),
}

const CREATION: u64 = 0x103;
const CLOSED: u64 = 0x104;
const UNEXPECTED: u64 = 0x105;
const FRAME: u64 = 0x106;
const LOAD: u64 = 0x107;
const ID: u64 = 0x108;
const SETTINGS: u64 = 0x109;
const MISSING: u64 = 0x10a;
const INCOMPLETE: u64 = 0x10d;
const MESSAGE: u64 = 0x10e;
const DECOMPRESSION: u64 = 0x200;
const ENCODER: u64 = 0x201;
const DECODER: u64 = 0x202;

/// SETTINGS without a setting.
const EMPTY: [u8; 2] = [4, 0];

/// Sends the bytes of a case. Returns the client and the stream.
fn violate(server: &Http3Server, what: &str, place: &Place, bytes: Vec<u8>) -> (Http3Client, StreamId) {
    let mut client = Http3Client::start(server.running.address, server.roots.clone());
    client.quic.sends_no_control = matches!(place, Place::Control);
    client.run(what, |quic| quic.http.peer_settings().is_some());
    let (dir, bytes, ends) = match place {
        Place::Request(ends) => (Dir::Bi, bytes, *ends),
        Place::Control => (Dir::Uni, joined(&[&[0], &bytes]), false),
        Place::Uni(ends) => (Dir::Uni, bytes, *ends),
    };
    let stream = client.quic.quic.streams().open(dir).unwrap();
    client.quic.send(stream, Bytes::from(bytes), ends);
    (client, stream)
}

/// A violation: its rule, the place and the bytes, and the code.
type Violation<'a> = (&'a str, &'a Place, Vec<u8>, u64);

fn check_violations(cases: Vec<Violation<'_>>) {
    let server = Http3Server::new(patient(), 1);
    for (what, place, bytes, code) in cases {
        let (client, _) = violate(&server, what, place, bytes);
        assert_eq!(end(client, what), (true, code), "{what}");
    }
    assert_eq!(server.connect().get("/fixed").0, 200);
}

fn settings(fields: &[u64]) -> Vec<u8> {
    h3_frame(4, &frame(fields))
}

/// Frames behind SETTINGS.
fn after(bytes: &[u8]) -> Vec<u8> {
    joined(&[&EMPTY, bytes])
}

#[test]
fn violations_of_http3_close_the_connection_with_their_code() {
    let (request, ended) = (Place::Request(false), Place::Request(true));
    let (control, uni) = (Place::Control, Place::Uni(false));
    let (get, trailers) = (get_with(&[], &[]), h3_frame(1, &section(&[("x", "y")])));
    check_violations(vec![
        ("9114 4.1: DATA before HEADERS", &request, h3_frame(0, b"x"), UNEXPECTED),
        (
            "9114 4.1: DATA after trailers",
            &request,
            joined(&[&get, &trailers, &h3_frame(0, b"x")]),
            UNEXPECTED,
        ),
        ("9114 4.1: HEADERS after trailers", &request, joined(&[&get, &trailers, &trailers]), UNEXPECTED),
        ("9114 6.2.1: a second control stream", &uni, vec![0, 4, 0], CREATION),
        ("9114 6.2.1: DATA before SETTINGS", &control, h3_frame(0, b""), MISSING),
        ("9114 6.2.1: GOAWAY before SETTINGS", &control, h3_frame(7, &[0]), MISSING),
        ("9114 6.2.2: a push stream of a client", &uni, vec![1, 0], CREATION),
        ("9114 7.1: a frame that the end of the stream cuts", &ended, vec![1, 10, 0, 0], FRAME),
        ("9114 7.1: a frame longer than its fields", &control, after(&h3_frame(7, &[0, 0])), FRAME),
        ("9114 7.2.1: DATA on the control stream", &control, after(&h3_frame(0, b"")), UNEXPECTED),
        ("9114 7.2.2: HEADERS on the control stream", &control, after(&h3_frame(1, &[0, 0])), UNEXPECTED),
        ("9114 7.2.3: CANCEL_PUSH on a request", &request, h3_frame(3, &[0]), UNEXPECTED),
        ("9114 7.2.3: CANCEL_PUSH of a push that was not promised", &control, after(&h3_frame(3, &[5])), ID),
        ("9114 7.2.4: SETTINGS on a request", &request, EMPTY.to_vec(), UNEXPECTED),
        ("9114 7.2.4: SETTINGS twice", &control, after(&EMPTY), UNEXPECTED),
        ("9114 7.2.4: the same setting twice", &control, settings(&[6, 100, 6, 100]), SETTINGS),
        ("9114 7.2.4.1: a setting of HTTP/2", &control, settings(&[4, 100]), SETTINGS),
        ("9114 7.2.5: PUSH_PROMISE of a client", &request, h3_frame(5, &[0, 0, 0]), UNEXPECTED),
        ("9114 7.2.6: GOAWAY on a request", &request, h3_frame(7, &[0]), UNEXPECTED),
        (
            "9114 7.2.6: GOAWAY that grows",
            &control,
            after(&[h3_frame(7, &[4]), h3_frame(7, &[8])].concat()),
            ID,
        ),
        ("9114 7.2.7: MAX_PUSH_ID on a request", &request, h3_frame(13, &[0]), UNEXPECTED),
        (
            "9114 7.2.7: MAX_PUSH_ID that shrinks",
            &control,
            after(&[h3_frame(13, &[4]), h3_frame(13, &[3])].concat()),
            ID,
        ),
        ("9114 7.2.8: PRIORITY of HTTP/2", &request, h3_frame(2, &[0; 5]), UNEXPECTED),
        ("9114 7.2.8: PING of HTTP/2", &control, after(&h3_frame(6, &[0; 8])), UNEXPECTED),
        ("9114 7.2.8: WINDOW_UPDATE of HTTP/2", &request, h3_frame(8, &[0; 4]), UNEXPECTED),
        ("9114 7.2.8: CONTINUATION of HTTP/2", &request, h3_frame(9, &[0; 4]), UNEXPECTED),
    ]);
}

#[test]
fn violations_of_qpack_and_settings_close_the_connection_with_their_code() {
    let (request, control) = (Place::Request(false), Place::Control);
    let (uni, ended_uni) = (Place::Uni(false), Place::Uni(true));
    check_violations(vec![
        (
            "9204 3.1: an index beyond the static table",
            &request,
            h3_frame(1, &[0, 0, 0xff, 0x24]),
            DECOMPRESSION,
        ),
        ("9204 2.2: an entry of the dynamic table", &request, h3_frame(1, &[2, 0, 0x80]), DECOMPRESSION),
        ("9204 4.2: an encoder stream that ends", &ended_uni, vec![2], CLOSED),
        ("9204 4.2: a decoder stream that ends", &ended_uni, vec![3], CLOSED),
        ("9204 4.1.3: a capacity beyond the setting", &uni, vec![2, 0x3f, 0xe1, 0x1f], ENCODER),
        ("9204 4.3.2: an entry for the dynamic table", &uni, vec![2, 0xc0, 1, 7], ENCODER),
        ("9204 4.4.1: acknowledgement of no section", &uni, vec![3, 0x80], DECODER),
        ("9204 4.4.3: an increment of 0", &uni, vec![3, 0x00], DECODER),
        ("9297 2.1: a setting for datagrams of 2", &control, settings(&[0x33, 2]), SETTINGS),
        ("9220 3: a setting for extended CONNECT of 2", &control, settings(&[8, 2]), SETTINGS),
        ("CVE-2019-9515: long SETTINGS", &control, h3_frame(4, &[0x21; 2000]), LOAD),
    ]);
}

/// RFC 9114 section 6.2.1, and RFC 9204 section 4.2.
#[test]
fn critical_streams_are_unique_and_never_end() {
    let (server, mut client) = Http3Server::connected(patient(), 1);
    let control = client.quic.control.unwrap();
    client.quic.quic.send_stream(control).finish().unwrap();
    assert_eq!(end(client, "a control stream that ends"), (true, CLOSED));
    let mut client = server.connect();
    let control = client.quic.control.unwrap();
    client.quic.quic.send_stream(control).reset(0_u32.into()).unwrap();
    assert_eq!(end(client, "a control stream that is reset"), (true, CLOSED));
    for kind in [2, 3] {
        let mut client = server.connect();
        for _ in 0..2 {
            let stream = client.quic.quic.streams().open(Dir::Uni).unwrap();
            client.quic.send(stream, Bytes::from(vec![kind]), false);
        }
        assert_eq!(end(client, "a second stream of QPACK"), (true, CREATION));
    }
}

/// Malformed requests (RFC 9114 sections 4.1.2, 4.2 and 4.3), which a proxy may pass on as another request: the stream is
/// reset, and nothing reaches a route.
#[test]
fn malformed_requests_are_reset_and_reach_no_route() {
    let server = Http3Server::new(patient(), 1);
    let without = |name: &str| {
        let fields: Vec<(&str, &str)> = GET.into_iter().filter(|(known, _)| *known != name).collect();
        h3_frame(1, &section(&fields))
    };
    let behind = |field: (&'static str, &'static str)| get_with(&[], &[field]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a pseudo-header field twice", behind((":method", "POST"))),
        ("no :method", without(":method")),
        ("no :scheme", without(":scheme")),
        ("no :path", without(":path")),
        ("no :authority and no host", without(":authority")),
        ("a pseudo-header field of responses", get_with(&[(":status", "200")], &[])),
        ("an unknown pseudo-header field", get_with(&[(":x", "y")], &[])),
        ("a pseudo-header field behind others", get_with(&[("x", "y")], &[])),
        ("uppercase", behind(("X-Y", "z"))),
        ("a name with a space", behind(("x y", "z"))),
        ("a name with a colon", behind(("x:y", "z"))),
        ("a name with CR LF", behind(("x\r\ny", "z"))),
        ("no name", behind(("", "z"))),
        ("a value with CR LF", behind(("x", "y\r\ntransfer-encoding: chunked"))),
        ("a value with LF", behind(("x", "y\nz"))),
        ("a value with NUL", behind(("x", "y\0z"))),
        (
            "a path with a space",
            get_with(&[], &[]).iter().map(|byte| if *byte == b'f' { b' ' } else { *byte }).collect(),
        ),
        ("connection", behind(("connection", "close"))),
        ("transfer-encoding", behind(("transfer-encoding", "chunked"))),
        ("keep-alive", behind(("keep-alive", "1"))),
        ("proxy-connection", behind(("proxy-connection", "close"))),
        ("upgrade", behind(("upgrade", "websocket"))),
        ("te with another value", behind(("te", "gzip"))),
        ("content-length twice", get_with(&[], &[("content-length", "1"), ("content-length", "2")])),
        ("content-length without a number", behind(("content-length", "+1"))),
        ("content-length beyond the content", behind(("content-length", "5"))),
        ("another host", behind(("host", "example.com"))),
    ];
    for (what, bytes) in cases {
        let (mut client, stream) = violate(&server, what, &Place::Request(true), bytes);
        let id = stream.into();
        client.run(what, |quic| quic.resets.contains_key(&id) || quic.responses.contains_key(&id));
        assert_eq!(client.quic.resets.get(&id), Some(&MESSAGE), "{what}: {:?}", client.quic.responses);
        assert_eq!(client.get("/fixed").0, 200, "{what}: the connection continues");
    }
    let (mut client, stream) = violate(&server, "no HEADERS", &Place::Request(true), vec![0x21, 0]);
    client.run("no HEADERS", |quic| quic.resets.contains_key(&stream.into()));
    assert_eq!(client.quic.resets[&stream.into()], INCOMPLETE);
    // The cases differ from a valid request in one field.
    let answers = server.monitor.metrics().responses[1];
    let valid = get_with(&[], &[("te", "trailers")]);
    let (mut client, stream) = violate(&server, "valid", &Place::Request(true), valid);
    client.run("an answer", |_| server.monitor.metrics().responses[1] > answers);
    assert!(!client.quic.resets.contains_key(&stream.into()));
    let target = RequestTarget::new("GET", "https", "localhost", "/fixed");
    let stream = client.quic.ask(&target, b"", true);
    assert_eq!(client.answer(stream).0, 200);
}
