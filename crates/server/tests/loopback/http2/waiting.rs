//! Requests of a client that does not take the answers to earlier ones.

use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};

use sinews_server::{BodySource, Limits};
use sinews_testkit::BodyReader;

use super::sockets::{Sockets, VERSION, connect_block};
use super::*;
use crate::support::echo;

const ANSWER: usize = 1 << 20;

/// A server whose answers are counted, in order.
struct CountingServer {
    running: Running,
    monitor: Monitor,
    executed: Arc<Mutex<Vec<String>>>,
    wakers: Arc<Mutex<Vec<Waker>>>,
    /// Pieces that a source has encoded.
    pieces: Arc<AtomicUsize>,
}

/// A body of 64 pieces of 16 KiB.
struct Pieces(Arc<AtomicUsize>);

impl BodySource for Pieces {
    fn len(&self) -> Option<u64> {
        Some(ANSWER as u64)
    }

    fn memory(&self) -> usize {
        0
    }

    fn write_piece(&self, number: usize, out: &mut Vec<u8>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        out.resize(out.len() + (16 << 10), number as u8);
    }
}

/// As many pieces, of a body whose length is not declared.
struct OpenEnded;

impl BodySource for OpenEnded {
    fn len(&self) -> Option<u64> {
        None
    }

    fn memory(&self) -> usize {
        0
    }

    fn write_piece(&self, number: usize, out: &mut Vec<u8>) {
        if number < 64 {
            out.resize(out.len() + (16 << 10), number as u8);
        }
    }
}

fn large() -> Response {
    Response::text(vec![b'x'; ANSWER])
}

impl CountingServer {
    fn new(http: HttpConfig) -> Self {
        let executed = Arc::<Mutex<Vec<String>>>::default();
        let wakers = Arc::<Mutex<Vec<Waker>>>::default();
        let pieces = Arc::<AtomicUsize>::default();
        let (asked, waiting, counted) = (Arc::clone(&executed), Arc::clone(&wakers), Arc::clone(&pieces));
        let [made, posted, woken, worked] = [(); 4].map(|()| Arc::clone(&asked));
        let router = Router::new()
            .websocket("/echo", echo())
            .get("/", |_| Response::text("hello\n"))
            .get("/made/{number}", move |request| {
                made.lock().unwrap().push(request.param("number").unwrap().into_owned());
                large()
            })
            .post("/posted", move |request| {
                posted.lock().unwrap().push(String::from_utf8(request.body().to_vec()).unwrap());
                large()
            })
            .get("/blocking/{number}", move |request| {
                let (worked, number) = (Arc::clone(&worked), request.param("number").unwrap().into_owned());
                Answer::blocking(move || {
                    worked.lock().unwrap().push(number);
                    large()
                })
            })
            .get("/open-ended", |_| Response::new(200).with_source(OpenEnded))
            .get("/pieces", move |_| Response::new(200).with_source(Pieces(Arc::clone(&counted))))
            .get("/later/{number}", move |request| {
                let (waiting, woken, mut is_listed) = (Arc::clone(&waiting), Arc::clone(&woken), false);
                let number = request.param("number").unwrap().into_owned();
                Answer::later(std::future::poll_fn(move |cx| {
                    if !std::mem::replace(&mut is_listed, true) {
                        waiting.lock().unwrap().push(cx.waker().clone());
                        return Poll::Pending;
                    }
                    woken.lock().unwrap().push(number.clone());
                    Poll::Ready(large())
                }))
            });
        let http = http.with_http2_clear_text(true);
        let server = Server::new(router).threads(1).http(http).limits(Limits::default().without_max_memory());
        let running = Running::server(server);
        Self { monitor: running.monitor.clone(), running, executed, wakers, pieces }
    }

    /// The same, and a client whose streams have no window.
    fn connected(http: HttpConfig) -> (Self, Http2Client) {
        let server = Self::new(http);
        let client = server.connect();
        (server, client)
    }

    fn connect(&self) -> Http2Client {
        Http2Client::connect(&self.running, NO_WINDOW)
    }

    fn executed(&self) -> Vec<String> {
        self.executed.lock().unwrap().clone()
    }

    /// Waits until this number of requests is executed.
    fn await_executed(&self, count: usize) {
        until("executed requests", || self.executed().len() == count);
    }
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

fn stream(number: usize) -> u32 {
    2 * number as u32 + 1
}

/// Requests numbered pages below a path.
fn ask_all(client: &mut Http2Client, count: usize, path: &str) {
    (0..count).for_each(|number| client.get(stream(number), &format!("{path}/{number}")));
}

/// Opens all windows.
fn open_windows(client: &mut Http2Client) {
    client.frame(SETTINGS, 0, 0, &[0, 4, 0x3f, 0, 0, 0]);
    client.frame(WINDOW_UPDATE, 0, 0, &[0x3f, 0, 0, 0]);
}

/// Takes the whole answers of these streams.
fn take_answers(client: &mut Http2Client, streams: &[u32]) {
    open_windows(client);
    let answers = client.answers(streams);
    assert!(streams.iter().all(|stream| answers[stream].1.len() == ANSWER));
}

#[test]
fn requests_wait_while_queued_answers_exceed_their_limit_and_are_executed_in_order() {
    const REQUESTS: usize = 100;
    let (server, mut client) = CountingServer::connected(patient());
    let requests = (0..REQUESTS).map(|number| {
        let path = format!("/made/{number}");
        frame(HEADERS, END_STREAM | END_HEADERS, stream(number), &block(METHOD_GET, &path, &[]))
    });
    client.send(&requests.collect::<Vec<_>>().concat());
    client.sync();
    // The first is within the limit, the second exceeds it.
    assert_eq!(server.executed(), numbers(2));
    let queued = server.monitor.metrics().queued_bytes;
    assert!((ANSWER as u64..=3 * ANSWER as u64).contains(&queued), "{queued} bytes");
    // Another connection is served.
    let mut other = server.connect();
    open_windows(&mut other);
    other.get(1, "/");
    assert_eq!(other.answers(&[1])[&1].1, b"hello\n");
    // The client resets two streams: each frees its answer.
    client.frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    client.sync();
    assert_eq!(server.executed(), numbers(3));
    // One that waits is reset, too.
    client.frame(RST_STREAM, 0, stream(7), &[0, 0, 0, 8]);
    open_windows(&mut client);
    let streams: Vec<u32> = (1..REQUESTS).filter(|number| *number != 7).map(stream).collect();
    let answers = client.answers(&streams);
    for stream in streams {
        // The first heads were read before.
        let (_, body, ends) = &answers[&stream];
        assert_eq!((body.len(), *ends), (ANSWER, true), "stream {stream}");
    }
    let expected: Vec<String> = numbers(REQUESTS).into_iter().filter(|number| number != "7").collect();
    assert_eq!(server.executed(), expected);
    assert_eq!(server.monitor.metrics().queued_bytes, 0);
}

/// HTTP/1.1 has no windows: the client reads nothing until the buffers of the sockets are full.
#[test]
fn pipelined_requests_wait_while_the_client_takes_no_answers() {
    const REQUESTS: usize = 60;
    let server = CountingServer::new(patient());
    let mut client = server.running.connect();
    client.send((0..REQUESTS).map(|number| get(&format!("/made/{number}"))).collect::<String>());
    until("queued answers", || server.monitor.metrics().queued_bytes > 0);
    // The only thread takes turns.
    let mut other = server.running.connect();
    for _ in 0..50 {
        assert_eq!(other.send(get("/")).answer().body, b"hello\n");
    }
    let (executed, queued) = (server.executed().len(), server.monitor.metrics().queued_bytes);
    assert!(executed < REQUESTS / 2, "{executed} requests");
    assert!(queued <= 2 * ANSWER as u64, "{queued} bytes");
    for _ in 0..REQUESTS {
        assert_eq!(client.answer().body.len(), ANSWER);
    }
    assert_eq!(server.executed(), numbers(REQUESTS));
}

#[test]
fn uploads_wait_with_their_bodies_while_queued_answers_exceed_their_limit() {
    let (server, mut client) = CountingServer::connected(patient());
    for number in 0..10 {
        client.frame(HEADERS, END_HEADERS, stream(number), &block(METHOD_POST, "/posted", &[]));
        client.frame(DATA, END_STREAM, stream(number), number.to_string().as_bytes());
    }
    client.sync();
    assert_eq!(server.executed(), numbers(2));
    take_answers(&mut client, &(0..10).map(stream).collect::<Vec<_>>());
    assert_eq!(server.executed(), numbers(10));
}

/// A client may repeat a request that is refused.
#[test]
fn requests_are_refused_when_those_that_wait_exceed_the_limit_too() {
    const REQUESTS: usize = 60;
    let (server, mut client) = CountingServer::connected(patient());
    let body = vec![b'7'; 40_000];
    for number in 0..REQUESTS {
        client.frame(HEADERS, END_HEADERS, stream(number), &block(METHOD_POST, "/posted", &[]));
        for (at, piece) in body.chunks(16_000).enumerate() {
            client.frame(DATA, if at == 2 { END_STREAM } else { 0 }, stream(number), piece);
        }
    }
    let (mut waiting, mut refused) = ((0..REQUESTS).map(stream).collect::<Vec<_>>(), 0);
    client.frame(PING, 0, 0, &[3; 8]);
    loop {
        let frame = client.read().expect("an open connection");
        if frame.kind == RST_STREAM {
            assert_eq!(frame.payload, [0, 0, 0, 7], "REFUSED_STREAM");
            waiting.retain(|stream| *stream != frame.stream);
            refused += 1;
        } else if frame.kind == PING {
            break;
        }
    }
    // Buffers of bodies double.
    assert!((20..50).contains(&refused), "{refused} requests are refused");
    let incomplete = server.monitor.metrics().incomplete_bytes;
    assert!(incomplete < 2 << 20, "{incomplete} bytes");
    take_answers(&mut client, &waiting);
    let executed = server.executed();
    assert_eq!(executed.len() + refused, REQUESTS);
    assert!(executed.iter().all(|executed| executed.as_bytes() == body));
}

/// All futures are woken at once.
#[test]
fn pending_answers_are_not_polled_while_queued_answers_exceed_their_limit() {
    let (server, mut client) = CountingServer::connected(patient());
    ask_all(&mut client, 20, "/later");
    client.sync();
    assert_eq!(server.wakers.lock().unwrap().len(), 20);
    server.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
    server.await_executed(2);
    client.sync();
    assert_eq!(server.executed().len(), 2);
    take_answers(&mut client, &(0..20).map(stream).collect::<Vec<_>>());
    assert_eq!(server.executed(), numbers(20));
}

/// The results of blocking work are in memory before they are polled.
#[test]
fn blocking_work_starts_while_its_results_fit_beside_queued_answers() {
    const REQUESTS: usize = 100;
    let (server, mut client) = CountingServer::connected(patient());
    ask_all(&mut client, REQUESTS, "/blocking");
    client.sync();
    until("an executed request", || !server.executed().is_empty());
    // The results of all that have started are polled. The first result exceeds the limit: no further request starts.
    let is_polled = |started: usize| server.monitor.metrics().queued_bytes >= (started * ANSWER) as u64;
    until("queued answers", || is_polled(server.executed().len()));
    client.sync();
    // Nine reserves of 128 KiB exceed 1 MiB. Fewer requests start if the others arrive after the first result.
    let started = server.executed().len();
    assert!((1..=9).contains(&started), "{started} of {REQUESTS} started");
    take_answers(&mut client, &(0..REQUESTS).map(stream).collect::<Vec<_>>());
    assert_eq!(server.executed().len(), REQUESTS);
    assert_eq!(server.monitor.metrics().queued_bytes, 0);
}

#[test]
fn sockets_open_and_echo_while_requests_wait() {
    let server = CountingServer::new(patient());
    let mut sockets = Sockets::new(&server.running);
    assert_eq!(sockets.connect(1, "/echo", &[]), 200);
    sockets.http2.frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let requests = (0..20).map(|number| {
        let head = block(METHOD_GET, &format!("/made/{number}"), &[]);
        frame(HEADERS, END_STREAM | END_HEADERS, stream(number + 1), &head)
    });
    sockets.http2.send(&requests.collect::<Vec<_>>().concat());
    server.await_executed(2);
    let (first, next) = (1, stream(30));
    sockets.http2.frame(WINDOW_UPDATE, 0, first, &[0, 0x10, 0, 0]);
    sockets.sync(first);
    // A handshake does not wait: a socket has limits of its own.
    assert_eq!(sockets.connect(next, "/echo", &[]), 200);
    sockets.http2.frame(WINDOW_UPDATE, 0, next, &[0, 0x10, 0, 0]);
    sockets.sync(next);
    sockets.sync(first);
    assert_eq!(server.executed(), numbers(2));
}

#[test]
fn requests_that_wait_are_executed_when_earlier_answers_time_out() {
    let server = CountingServer::new(patient().with_write_timeout(Duration::from_millis(300)));
    let mut client = server.connect();
    ask_all(&mut client, 4, "/made");
    for _ in 0..4 {
        let reset = client.until(RST_STREAM);
        assert_eq!(reset.payload, [0, 0, 0, 8], "{reset:?}");
    }
    assert_eq!(server.executed(), numbers(4));
}

/// After its end no window opens any more, so that the answers are dropped long before the write timeout.
#[test]
fn answers_are_dropped_when_the_client_ends_the_connection() {
    let (server, mut client) = CountingServer::connected(patient());
    ask_all(&mut client, 20, "/made");
    client.sync();
    assert!(server.monitor.metrics().queued_bytes >= ANSWER as u64);
    client.client.stream.shutdown(Shutdown::Write).unwrap();
    // The other side of the connection stays open.
    until("the end of the connection", || server.monitor.metrics().queued_bytes == 0);
    while client.read().is_some() {}
    assert_eq!(server.executed(), numbers(2), "requests that waited are not executed");
}

/// The output of a socket waits for a window that cannot open any more.
#[test]
fn sockets_without_a_window_end_with_the_connection_of_their_client() {
    let (server, mut client) = CountingServer::connected(patient());
    client.frame(HEADERS, END_HEADERS, 1, &connect_block("websocket", "/echo", &[VERSION]));
    let message = [&[0x82, 0xfe, 0x27, 0x10, 0, 0, 0, 0][..], &[7; 10_000]].concat();
    client.frame(DATA, 0, 1, &message);
    client.sync();
    until("an echo", || server.monitor.metrics().queued_bytes >= 10_000);
    client.client.stream.shutdown(Shutdown::Write).unwrap();
    until("the end of the socket", || server.monitor.metrics().queued_bytes == 0);
    while client.read().is_some() {}
}

/// A client that ends its side after its request, with open windows, gets its answers.
#[test]
fn answers_within_open_windows_survive_the_end_of_the_client() {
    let (_server, mut client) = CountingServer::connected(patient());
    open_windows(&mut client);
    client.sync();
    ask_all(&mut client, 5, "/made");
    client.client.stream.shutdown(Shutdown::Write).unwrap();
    let mut received = 0;
    while let Some(frame) = client.read() {
        received += if frame.kind == DATA { frame.payload.len() } else { 0 };
    }
    assert_eq!(received, 5 * ANSWER);
}

/// Other clients have no listener meanwhile. A client may repeat a request that is refused.
#[test]
fn stop_resets_answers_that_no_client_takes_and_refuses_the_requests_behind_them() {
    let (server, mut client) = CountingServer::connected(patient());
    ask_all(&mut client, 20, "/made");
    client.sync();
    server.running.stop.stop();
    let mut codes = Vec::new();
    while let Some(frame) = client.read() {
        if frame.kind == RST_STREAM {
            codes.push((frame.stream, frame.payload[3]));
        }
    }
    codes.sort_unstable();
    let (canceled, refused) = (8, 7);
    let code = |number| (stream(number), if number < 2 { canceled } else { refused });
    assert_eq!(codes, (0..20).map(code).collect::<Vec<_>>());
    assert_eq!(server.executed(), numbers(2));
}

#[test]
fn sources_encode_only_the_pieces_that_windows_take() {
    let (server, mut client) = CountingServer::connected(patient());
    client.get(1, "/pieces");
    client.sync();
    assert_eq!(server.pieces.load(Ordering::SeqCst), 0);
    client.frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    assert_eq!(client.until(DATA).payload, [0]);
    client.frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0x40, 0]);
    let mut rest = client.until(DATA).payload;
    while rest.len() < 16 << 10 {
        rest.extend(client.until(DATA).payload);
    }
    assert_eq!((rest[0], rest[(16 << 10) - 2], rest[(16 << 10) - 1]), (0, 0, 1));
    assert_eq!(server.pieces.load(Ordering::SeqCst), 2);
    open_windows(&mut client);
    let body = &client.answers(&[1])[&1].1;
    assert_eq!(body.len(), ANSWER - (16 << 10) - 1);
    assert!(body.iter().enumerate().all(|(at, byte)| usize::from(*byte) == (at + (16 << 10) + 1) >> 14));

    // HTTP/1.1 sends them with their length.
    let mut client = server.running.connect();
    client.send(b"GET /pieces HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.header("content-length"), Some(&*ANSWER.to_string()));
    assert!(answer.body.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at >> 14));
    assert_eq!(client.answer().body, b"hello\n");
}

/// Sends requests of HTTP/1, of which the last ends the connection. Returns the head of the first answer, and all behind it.
fn exchange(server: &CountingServer, requests: &str) -> (String, Vec<u8>) {
    let mut client = server.running.connect();
    client.send(requests);
    let mut received = Vec::new();
    client.stream.read_to_end(&mut received).unwrap();
    let end = received.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    let rest = received.split_off(end);
    (String::from_utf8(received).unwrap().to_ascii_lowercase(), rest)
}

#[test]
fn source_of_unknown_length_ends_the_stream_the_chunks_or_the_connection() {
    let is_whole = |body: &[u8]| {
        body.len() == ANSWER && body.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at >> 14)
    };
    let (server, mut client) = CountingServer::connected(patient());
    open_windows(&mut client);
    client.get(1, "/open-ended");
    let (_, body, ends) = &client.answers(&[1])[&1];
    assert!(is_whole(body) && *ends, "{} bytes", body.len());

    let next = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut client = server.running.connect();
    client.send(b"GET /open-ended HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut chunked = BodyReader::new(client.stream);
    assert_eq!(chunked.header("transfer-encoding"), Some("chunked"));
    assert_eq!(chunked.header("content-length"), None);
    let body = chunked.rest();
    assert!(is_whole(body.as_bytes()), "{} bytes", body.len());
    let rest = sinews_testkit::exchange(chunked.into_transport(), next).unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("\r\n\r\nhello\n"));

    // HTTP/1.0 has no chunks.
    let (head, rest) = exchange(&server, "GET /open-ended HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert!(head.contains("\r\nconnection: close\r\n") && !head.contains("transfer-encoding"), "{head}");
    assert!(is_whole(&rest), "{} bytes", rest.len());

    // The answer to HEAD has no body.
    let (_, rest) = exchange(&server, &format!("HEAD /open-ended HTTP/1.1\r\nHost: a\r\n\r\n{next}"));
    assert!(rest.starts_with(b"HTTP/1.1 200 "));
}
