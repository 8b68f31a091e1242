//! Requests of a client that does not take the answers to earlier ones.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn_proto::{StreamId, VarInt};
use sinews_server::{HttpConfig, Limits, Response, Router};

use super::sockets::Http3Sockets;
use super::{Http3Client, Http3Server};
use crate::support::{echo, patient};

/// Two exceed the limit.
const ANSWER: usize = 100_000;
const QUEUED_MAX: usize = 128 << 10;

/// A server, the numbers of its requests in the order of their execution, and a client whose streams have small windows.
fn start(http: HttpConfig) -> (Http3Server, Arc<Mutex<Vec<usize>>>, Http3Client) {
    let executed = Arc::<Mutex<Vec<usize>>>::default();
    let asked = Arc::clone(&executed);
    let router = Router::new().websocket("/echo", echo()).get("/made/{number}", move |request| {
        asked.lock().unwrap().push(request.param("number").unwrap().parse().unwrap());
        Response::text(vec![b'x'; ANSWER])
    });
    let server = Http3Server::with(http.with_max_queued_answers(QUEUED_MAX), router, |server| {
        let server = server.limits(Limits::default().without_max_memory());
        server.grace(Duration::from_secs(3_600)).drain_window(Duration::ZERO)
    });
    let client = Http3Client::connect_narrow(server.running.address, server.roots.clone(), 1000);
    (server, executed, client)
}

#[test]
fn requests_that_wait_are_executed_when_earlier_answers_time_out() {
    let (_server, executed, mut client) = start(patient().with_write_timeout(Duration::from_millis(300)));
    for number in 0..5 {
        let stream = client.ask("GET", &format!("/made/{number}"), b"");
        client.quic.unread.insert(stream);
    }
    client.run("all requests", |_| *executed.lock().unwrap() == [0, 1, 2, 3, 4]);
}

/// Other clients have no listener meanwhile.
#[test]
fn stop_resets_answers_that_no_client_takes() {
    for is_silent in [false, true] {
        let (server, executed, mut client) = start(patient());
        for number in 0..10 {
            let stream = client.ask("GET", &format!("/made/{number}"), b"");
            client.quic.unread.insert(stream);
        }
        client.run("executed requests", |_| executed.lock().unwrap().len() >= 2);
        server.running.stop.stop();
        if !is_silent {
            client.run("the end", |quic| quic.lost.is_some());
        }
        server.running.join();
        assert_eq!(*executed.lock().unwrap(), [0, 1]);
    }
}

#[test]
fn requests_wait_while_queued_answers_exceed_their_limit_and_are_executed_in_order() {
    const REQUESTS: usize = 60;
    let (server, executed, client) = start(patient());
    let mut sockets = Http3Sockets::new(client);
    let socket = sockets.open("/echo");
    let client = &mut sockets.client;
    let streams: Vec<u64> = (0..REQUESTS)
        .map(|number| {
            let stream = client.ask("GET", &format!("/made/{number}"), b"");
            client.quic.unread.insert(stream);
            stream
        })
        .collect();
    client.run("executed requests", |_| executed.lock().unwrap().len() >= 2);
    // All requests have arrived before messages of the socket that are sent later.
    sockets.sync(socket);
    sockets.sync(socket);
    assert_eq!(*executed.lock().unwrap(), [0, 1]);
    let queued = server.monitor.metrics().queued_bytes;
    assert!((ANSWER as u64..=4 * ANSWER as u64).contains(&queued), "{queued} bytes");
    assert_eq!(server.connect().get("/fixed").0, 200);
    // A further socket opens.
    let next = sockets.open("/echo");
    sockets.sync(next);
    // The client stops the first answer.
    let client = &mut sockets.client;
    let first = StreamId::from(VarInt::from_u64(streams[0]).unwrap());
    client.quic.quic.recv_stream(first).stop(VarInt::from_u32(0x10c)).unwrap();
    client.run("another request", |_| executed.lock().unwrap().len() == 3);
    client.quic.unread.clear();
    for stream in &streams[1..] {
        client.quic.read(StreamId::from(VarInt::from_u64(*stream).unwrap()));
    }
    client.run("all answers", |quic| {
        streams[1..].iter().all(|stream| quic.responses.get(stream).is_some_and(|(_, _, ends)| *ends))
    });
    let received = &client.quic.responses;
    assert!(streams[1..].iter().all(|stream| received[stream].1.len() == ANSWER));
    assert_eq!(*executed.lock().unwrap(), (0..REQUESTS).collect::<Vec<_>>());
}
