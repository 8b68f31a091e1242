//! Content in both directions: windows, limits and timeouts.

use std::time::Duration;

use sinews_http::h3::{QuicStreamId, RequestTarget};
pub(super) use sinews_testkit::noise as pattern;

use super::{Http3Server, LARGE};
use crate::support::patient;

#[test]
fn large_answers_share_the_connection() {
    let (server, mut client) = Http3Server::connected(patient(), 1);
    let large: Vec<u64> = (0..3).map(|_| client.ask("GET", "/large", b"")).collect();
    assert_eq!(client.get("/fixed").0, 200);
    for stream in large {
        let (status, content) = client.answer(stream);
        assert!(status == 200 && content == pattern(LARGE), "{status} {}", content.len());
    }
    // What the client has not acknowledged is queued.
    client.run("no queued bytes", |_| server.monitor.metrics().queued_bytes == 0);
}

#[test]
fn bodies_beyond_the_limit_are_rejected() {
    let (_server, mut client) = Http3Server::connected(patient().with_max_body(1000), 1);
    let stream = client.ask("POST", "/len", &pattern(1000));
    assert_eq!(client.answer(stream).0, 200);
    let stream = client.ask("POST", "/len", &pattern(1001));
    assert_eq!(client.answer(stream).0, 413);
    let target = RequestTarget::new("POST", "https", "localhost", "/len");
    // A declared length is rejected at once.
    let stream = client.quic.ask_with(&target, [("content-length", "5000")], b"", false);
    client.run("an answer", |quic| quic.responses.contains_key(&stream));
    assert_eq!(client.quic.responses[&stream].0, 413);
    assert_eq!(client.get("/fixed").0, 200, "the connection continues");
}

#[test]
fn stalled_bodies_time_out() {
    let http = patient().with_body_idle_timeout(Duration::from_millis(200));
    let (_server, mut client) = Http3Server::connected(http, 1);
    let target = RequestTarget::new("POST", "https", "localhost", "/len");
    let stream = client.quic.ask(&target, b"part", false);
    client.run("an answer", |quic| quic.responses.get(&stream).is_some_and(|answer| answer.2));
    assert_eq!(client.quic.responses[&stream].0, 408);
    assert_eq!(client.get("/fixed").0, 200, "the connection continues");
}

#[test]
fn late_answers_time_out() {
    let server = Http3Server::new(patient().with_response_timeout(Duration::from_millis(200)), 1);
    let mut client = server.connect();
    let stream = client.ask("GET", "/later", b"");
    assert_eq!(client.answer(stream).0, 503);
}

#[test]
fn large_heads_and_other_schemes_are_rejected() {
    let (_server, mut client) = Http3Server::connected(patient(), 1);
    let long = "x".repeat(40_000);
    let target = RequestTarget::new("GET", "https", "localhost", "/");
    let stream = client.quic.ask_with(&target, [("x-long", &*long)], b"", true);
    assert_eq!(client.answer(stream).0, 431);
    let target = RequestTarget::new("GET", "http", "localhost", "/");
    let stream = client.quic.ask(&target, b"", true);
    assert_eq!(client.answer(stream).0, 421);
    let target = RequestTarget::connect("connect-udp", "localhost", "/");
    let stream = client.quic.ask(&target, b"", false);
    client.run("an answer", |quic| quic.responses.contains_key(&stream));
    assert_eq!(client.quic.responses[&stream].0, 501);
}

#[test]
fn cancelled_requests_end_their_answers() {
    let (server, mut client) = Http3Server::connected(patient(), 1);
    let stream = client.ask("GET", "/later", b"");
    client.run("a request to /later", |_| !server.wakers.lock().unwrap().is_empty());
    let id = QuicStreamId::new(stream);
    let quic = &mut client.quic.quic;
    let _ = quic.recv_stream(quinn_proto::VarInt::from_u64(id.get()).unwrap().into()).stop(0x10c_u32.into());
    assert_eq!(client.get("/fixed").0, 200);
    // The waker of a dropped answer wakes nothing.
    server.wake();
    assert_eq!(client.get("/fixed").0, 200);
    assert!(!client.quic.responses.contains_key(&stream));
}
