//! Keepalive of HTTP/2, at chosen times.

use super::*;
use crate::HttpConfig;
use crate::framing::h2::H2Conn;

const INTERVAL: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);

/// A server with HTTP/2, and a client with a request to `/later`.
fn waiting_client(config: TopicConfig) -> (TestServer, TcpStream) {
    let mut host = TestServer::new(config);
    let http = HttpConfig::default().with_http2(true);
    let http = http.with_http2_ping_interval(Some(INTERVAL)).with_http2_ping_timeout(TIMEOUT);
    host.worker.shared.services.http = Arc::new(http);
    let mut client = host.connect();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    client.write_all(&[frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat()).unwrap();
    client.write_all(&frame(1, 0b101, 1, b"\x82\x86\x01\x01a\x04\x06/later")).unwrap();
    host.turn_until(|host| !host.wakers.lock().unwrap().is_empty());
    // SETTINGS have left.
    host.turn_until(|host| http2(host).0.outbound.is_empty());
    (host, client)
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, stream];
    bytes.extend_from_slice(payload);
    bytes
}

/// The connection of the client.
fn http2(host: &mut TestServer) -> (&mut H2Conn, &mut WorkerShared) {
    let Worker { conns, shared, .. } = &mut host.worker;
    let found = conns.iter_mut().flatten().find_map(|found| match &mut found.protocol {
        ConnProtocol::Http2(http2) => Some(&mut **http2),
        _ => None,
    });
    (found.unwrap(), shared)
}

#[test]
fn ping_after_a_stall_gets_its_whole_timeout() {
    let (mut host, _client) = waiting_client(TopicConfig::default());
    let (http2, shared) = http2(&mut host);
    // The process stalled beyond interval and timeout.
    let resumed = shared.services.now + INTERVAL + TIMEOUT * 2;
    shared.services.now = resumed;
    assert!(!http2.time_out(false, shared));
    http2.queue_control(shared);
    assert!(!http2.outbound.is_empty(), "the ping");
    assert_eq!(http2.deadline(&shared.services.http, false), resumed + TIMEOUT);
    shared.services.now = resumed + TIMEOUT;
    assert!(http2.time_out(false, shared), "no answer");
}

#[test]
fn progress_of_output_ahead_of_a_ping_keeps_the_connection() {
    let (mut host, _client) = waiting_client(TopicConfig::default());
    let (http2, shared) = http2(&mut host);
    let now = shared.services.now;
    http2.outbound.pending_chain(&mut shared.resources).write(|out| out.extend_from_slice(&[0; 4096]));
    let chain = http2.outbound.start().unwrap();
    http2.note_progress(now);
    shared.services.now = now + INTERVAL;
    assert!(!http2.time_out(false, shared));
    // The send in flight progresses slowly.
    for step in 1..10 {
        shared.services.now = now + INTERVAL + (TIMEOUT - Duration::from_millis(1)) * step;
        assert!(!http2.time_out(false, shared));
        http2.outbound.progressed(100);
        http2.note_progress(shared.services.now);
    }
    http2.outbound.finish(chain, &mut shared.resources);
    http2.queue_control(shared);
    let chain = http2.outbound.start().expect("the ping");
    http2.outbound.finish(chain, &mut shared.resources);
    http2.note_progress(shared.services.now);
    let deadline = shared.services.now + TIMEOUT;
    assert_eq!(http2.deadline(&shared.services.http, false), deadline);
    // Further output leaves to the kernel, and proves nothing.
    shared.services.now = deadline;
    http2.note_progress(deadline);
    assert!(http2.time_out(false, shared), "no answer");
}

#[test]
fn publishers_whose_reads_are_paused_are_not_pinged() {
    let (mut host, mut client) = waiting_client(TopicConfig::default().with_deliveries_per_turn(1));
    let mut subscribers: [TestClient; 3] = host.subscribers();
    let request = [frame(1, 0b100, 3, b"\x83\x86\x84\x01\x01a"), frame(0, 1, 3, b"text")].concat();
    client.write_all(&request).unwrap();
    host.turn_until(|host| !host.worker.delivery.paused_publishers.is_empty());
    let (connection, shared) = http2(&mut host);
    assert!(!connection.paused, "no input is left");
    assert!(connection.deadline(&shared.services.http, true) > shared.services.now + INTERVAL);
    // The pause lasts nearly as long as the interval. The interval begins anew when reads resume.
    shared.services.epoch -= INTERVAL - Duration::from_secs(1);
    host.turn_until(|host| host.worker.delivery.paused_publishers.is_empty());
    let (connection, shared) = http2(&mut host);
    let left = connection.deadline(&shared.services.http, false).since(shared.services.now);
    assert!(left > INTERVAL / 2 && left <= INTERVAL, "{left:?}");
    host.turn_until(|_| subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(1));
}
