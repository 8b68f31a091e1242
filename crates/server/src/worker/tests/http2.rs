//! Keepalive of HTTP/2, at chosen times.

use super::*;
use crate::HttpConfig;
use crate::framing::h2::H2Conn;

const INTERVAL: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);

/// A server with HTTP/2, and a client with a request to `/later`.
fn waiting_client(config: TopicConfig) -> (TestServer, TcpStream) {
    let http =
        HttpConfig::default().with_http2_ping_interval(Some(INTERVAL)).with_http2_ping_timeout(TIMEOUT);
    client_with(http, config)
}

/// As above. No ping disturbs the deadlines.
fn client_of(http: HttpConfig) -> (TestServer, TcpStream) {
    client_with(http.with_http2_ping_interval(None), TopicConfig::default())
}

fn client_with(http: HttpConfig, config: TopicConfig) -> (TestServer, TcpStream) {
    let mut host = TestServer::new(config);
    host.worker.shared.services.http = Arc::new(http.with_http2_clear_text(true));
    let mut client = host.connect();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    client.write_all(&[frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat()).unwrap();
    client.write_all(&frame(1, 0b101, 1, b"\x82\x86\x01\x01a\x04\x06/later")).unwrap();
    host.turn_until(|host| !host.wakers.lock().is_empty());
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

/// Returns the time to the deadline of the connection.
fn time_left(host: &mut TestServer) -> Duration {
    let (connection, shared) = http2(host);
    connection.deadline(&shared.services.http, false).since(shared.services.now)
}

#[test]
fn head_timeout_begins_with_each_header_block() {
    const HEAD: Duration = Duration::from_secs(4);
    let (mut host, mut client) = client_of(HttpConfig::default().with_head_timeout(HEAD));
    let mut last = Vec::new();
    for stream in [3, 5, 7] {
        let next = frame(1, 0b101, stream, b"\x82\x86\x01\x01a\x04\x06/later");
        // Each read ends inside of the next block.
        let input = [last.get(12..).unwrap_or_default(), &next[..12]].concat();
        client.write_all(&input).unwrap();
        host.turn_until(|host| host.wakers.lock().len() == usize::from(stream / 2));
        host.turn_until(|host| time_left(host) <= HEAD);
        assert!(time_left(&mut host) > HEAD / 2, "stream {stream}: {:?}", time_left(&mut host));
        host.worker.shared.services.epoch -= HEAD * 3 / 4;
        last = next;
    }
    assert!(!http2(&mut host).0.has_failed());
    host.worker.shared.services.epoch -= HEAD / 4;
    host.turn_until(|host| http2(host).0.has_failed());
}

const FOREVER: Duration = Duration::from_secs(10_000);

/// Opens windows of a client, or closes those of its streams.
fn set_windows(client: &mut TcpStream, stream: u32) {
    let settings = [&[0, 4][..], &stream.to_be_bytes()].concat();
    client.write_all(&frame(4, 0, 0, &settings)).unwrap();
    client.write_all(&frame(8, 0, 0, &(1_u32 << 30).to_be_bytes())).unwrap();
}

fn ask_for_large(client: &mut TcpStream, stream: u8) {
    client.write_all(&frame(1, 0b101, stream, b"\x82\x86\x01\x01a\x04\x06/large")).unwrap();
}

#[test]
fn bodies_behind_a_full_queue_time_out_with_the_connection() {
    // The second request does not wait for the first answer.
    let http = HttpConfig::default().with_response_timeout(FOREVER).with_max_queued_answers(2 * LARGE);
    let (mut host, mut client) = client_of(http);
    set_windows(&mut client, 1 << 30);
    ask_for_large(&mut client, 3);
    ask_for_large(&mut client, 5);
    host.turn_until(|host| http2(host).0.queued() >= 2 * LARGE);
    // The kernel takes no more.
    for _ in 0..20 {
        host.turn();
    }
    let (connection, shared) = http2(&mut host);
    let timeout = shared.services.http.write_timeout;
    let mut now = shared.services.now;
    for _ in 0..10 {
        // A slow client takes a part of the chain in flight, and no body gets its turn.
        now = now + timeout * 3 / 4;
        shared.services.now = now;
        connection.outbound.progressed(100);
        connection.note_progress(now);
        assert!(!connection.time_out(false, shared));
        assert_eq!(connection.deadline(&shared.services.http, false), now + timeout);
    }
    assert!(connection.queued() >= 2 * LARGE, "both bodies wait");
    shared.services.now = now + timeout;
    assert!(connection.time_out(false, shared), "no progress");
}

#[test]
fn bodies_behind_their_own_window_time_out_alone() {
    let (mut host, mut client) = client_of(HttpConfig::default());
    set_windows(&mut client, 0);
    ask_for_large(&mut client, 3);
    host.turn_until(|host| http2(host).0.queued() >= LARGE);
    for _ in 0..5 {
        host.turn();
    }
    let (connection, shared) = http2(&mut host);
    let now = shared.services.now + shared.services.http.write_timeout;
    shared.services.now = now;
    connection.note_progress(now);
    assert!(!connection.time_out(false, shared));
    assert!(connection.queued() < 1000, "{}", connection.queued());
    assert!(!connection.has_failed());
}

#[test]
fn failure_outside_of_input_ends_the_connection_and_its_sockets() {
    let (mut host, mut client) = client_of(HttpConfig::default());
    let connect = b"\x02\x07CONNECT\x86\x01\x01a\x04\x05/tell\x00\x09:protocol\x09websocket\
                    \x00\x15sec-websocket-version\x0213";
    client.write_all(&frame(1, 0b100, 3, connect)).unwrap();
    host.turn_until(|host| !http2(host).0.sockets.is_empty());
    // No input follows, but an answer is ready.
    http2(&mut host).0.fill_control_queue();
    std::mem::take(&mut *host.wakers.lock()).into_iter().for_each(Waker::wake);
    let mut frames = Vec::new();
    host.turn_until(|_| {
        read(&mut client, &mut frames);
        frames.windows(17).any(|last| last[3] == 7 && last[13..] == [0, 0, 0, 11])
    });
    assert_eq!(host.worker.sockets.iter().count(), 0);
    assert!(http2(&mut host).0.is_finished() && http2(&mut host).0.sockets.is_empty());
}
