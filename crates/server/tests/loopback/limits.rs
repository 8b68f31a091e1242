//! Limits: excess connections and messages are rejected with a status, counted, and affect no other client.

use sinews_server::{
    CloseCode, Config, Limit, Limits, Metrics, Monitor, Prepared, PublishOptions, Publisher, Router, Server,
    WhenFull,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{HandlerEvent, Peer, Running, echo, get, handshake, routes, scripted, wait_for};

fn server(limits: Limits, threads: usize) -> (Running, Monitor) {
    let routes = routes().readyz("/readyz");
    let monitor = routes.monitor();
    (Running::server(Server::new(routes).threads(threads).limits(limits)), monitor)
}

/// Sends a request on a connection of its own, which is rejected.
fn refused(server: &Running, status: u16) {
    let mut client = server.connect();
    let answer = client.send(get("/")).answer();
    assert_eq!((answer.status, answer.header("retry-after")), (status, Some("10")));
    assert!(answer.closes());
    client.assert_end();
}

#[test]
fn connections_beyond_the_limit_get_503_until_others_close() {
    let (server, monitor) = server(Limits::default().with_max_connections(3), 2);
    let mut open: Vec<Peer> = (0..3).map(|_| server.websocket("/echo")).collect();
    assert!(monitor.ready().is_err_and(|why| why.to_string().contains("connections")));
    for _ in 0..5 {
        refused(&server, 503);
    }
    assert_eq!(monitor.metrics().limited.get(Limit::Connections), 5);
    for peer in &mut open {
        peer.send(&Frame::text("still here")).expect(&Reply::text("still here"));
    }
    // One slot for the request, and one for readiness.
    open.truncate(1);
    wait_for(&monitor, |metrics| metrics.connections() == 1);
    assert_eq!(server.connect().send(get("/readyz")).answer().status, 200);
}

/// An echo whose clients beyond the limits are closed with a code.
fn closing() -> Router {
    let code = CloseCode::new(4100).unwrap();
    routes().websocket("/closing", echo().with_overload_close("full", code, &"é".repeat(61)))
}

fn expect_overload(mut peer: Peer) {
    peer.expect(&Reply::text("full"));
    peer.expect(&Reply::Close(Some(4100), "é".repeat(61)));
    assert_eq!(peer.next(), None);
}

#[test]
fn clients_beyond_the_limit_of_connections_are_closed_with_the_code_of_their_route() {
    let routes = closing();
    let monitor = routes.monitor();
    let limits = Limits::default().with_max_connections(1);
    let server = Running::server(Server::new(routes).threads(1).limits(limits));
    let mut open = server.websocket("/closing");
    expect_overload(server.websocket("/closing"));
    // The head arrives in parts.
    let head = handshake("/closing", "");
    let mut client = server.connect();
    let (first, rest) = head.split_at(head.len() - 20);
    client.send(first);
    open.sync();
    expect_overload(client.send(rest).try_clone().upgraded());
    // Other requests, invalid handshakes and other routes.
    for request in [get("/closing"), handshake("/closing", "").replace("13", "12"), handshake("/echo", "")] {
        let mut client = server.connect();
        assert_eq!(client.send(&request).answer().status, 503, "{request}");
        client.assert_end();
    }
    let mut client = server.connect();
    assert_eq!(client.send("not HTTP\r\n\r\n").answer().status, 503);
    open.sync();
    assert_eq!(monitor.metrics().limited.get(Limit::Connections), 6);
}

#[test]
fn clients_beyond_the_rate_of_handshakes_are_closed_with_the_code_of_their_route() {
    let limits = Limits::default().with_handshakes_per_second(1);
    let server = Running::server(Server::new(closing()).threads(1).limits(limits));
    let mut first = server.websocket("/closing");
    first.sync();
    // Unless a second has passed.
    let (mut rejected, reply) = loop {
        let mut peer = server.websocket("/closing");
        let reply = peer.send(&Frame::text("echo")).next();
        if reply != Some(Reply::text("echo")) {
            break (peer, reply);
        }
    };
    assert_eq!(reply, Some(Reply::text("full")));
    assert_eq!(rejected.next().and_then(|close| close.close_code()), Some(4100));
    first.sync();
}

#[test]
fn connections_per_address_are_limited() {
    let (server, monitor) = server(Limits::default().with_max_connections_per_address(2), 1);
    let open = [server.websocket("/echo"), server.websocket("/echo")];
    refused(&server, 429);
    assert_eq!(monitor.metrics().limited.get(Limit::Address), 1);
    drop(open);
    wait_for(&monitor, |metrics| metrics.connections() == 0);
    server.websocket("/echo").sync();
}

#[test]
fn silent_rejected_connection_is_closed() {
    let (server, monitor) = server(Limits::default().with_max_connections(1), 1);
    let mut only = server.websocket("/echo");
    let mut silent: Vec<_> = (0..300).map(|_| server.connect()).collect();
    // A limited number gets an answer; further connections close at once, and these soon.
    silent.iter_mut().for_each(crate::support::Client::assert_end);
    wait_for(&monitor, |metrics| metrics.connections() == 1);
    assert_eq!(monitor.metrics().limited.get(Limit::Connections), 300);
    only.sync();
}

#[test]
fn burst_of_handshakes_is_admitted_gradually() {
    let (server, monitor) = server(Limits::default().with_handshakes_per_second(3), 1);
    let (mut open, mut refused) = (Vec::new(), 0);
    while refused == 0 || open.len() < 6 {
        let mut client = server.connect();
        client.send(handshake("/echo", ""));
        let monitored = monitor.metrics().handshakes;
        match client.status_line() {
            101 => open.push(client),
            503 => refused += 1,
            other => panic!("{other} after {monitored}"),
        }
    }
    let metrics = monitor.metrics();
    assert_eq!(metrics.handshakes, open.len() as u64);
    assert_eq!(metrics.handshakes_rejected, [(503, refused)]);
    assert_eq!(metrics.limited.get(Limit::Handshakes), refused);
    assert_eq!(server.connect().send(get("/")).answer().status, 200, "plain requests are no handshakes");
}

#[test]
fn websocket_above_the_message_rate_is_closed_and_its_messages_discarded() {
    let (route, events) = scripted(|_, _| {});
    let routes = Router::new().websocket("/slow", route.with_message_rate(1, 5)).websocket("/echo", echo());
    let monitor = routes.monitor();
    let server = Running::router(routes);
    let mut peer = server.websocket("/slow");
    let burst: Vec<Frame> = (0..100).map(|_| Frame::text("x")).collect();
    peer.client.try_send_all(&burst);
    peer.expect(&Reply::Close(Some(1008), "too many messages".into()));
    peer.send(&Frame::close(1008, ""));
    assert_eq!(peer.next(), None);
    let metrics = monitor.metrics();
    assert_eq!(metrics.limited.get(Limit::Messages), 1);
    let mut others = server.websocket("/echo");
    for _ in 0..100 {
        others.send(&Frame::text("x")).expect(&Reply::text("x"));
    }
    drop(server);
    let received = events.rest();
    let messages = received.iter().filter(|event| matches!(event, HandlerEvent::Message(..))).count();
    // A second may have passed meanwhile, on a busy machine.
    assert!((5..50).contains(&messages), "{messages} messages");
}

const MESSAGE: usize = 1 << 20;

/// A route that sends its clients more than a socket takes.
fn flooded(limits: Limits) -> (Running, Monitor, crate::support::EventReceiver) {
    let (flood, events) = scripted(|event, cx| {
        if matches!(event, HandlerEvent::Message(..)) {
            for _ in 0..40 {
                let _ = cx.send_binary(&vec![7; MESSAGE]);
            }
        }
    });
    let config = Config::default().with_max_outbound(100 * MESSAGE);
    let routes = routes().websocket("/flood", flood.with_config(config));
    let monitor = routes.monitor();
    (Running::server(Server::new(routes).threads(1).limits(limits)), monitor, events)
}

#[test]
fn new_connections_are_rejected_while_memory_is_full() {
    let (server, monitor, _events) =
        flooded(Limits::default().with_max_memory(MESSAGE).with_when_full(WhenFull::Reject));
    let mut kept = server.connect();
    assert_eq!(kept.send(get("/")).answer().status, 200);
    let mut peer = server.websocket("/flood");
    peer.send(&Frame::text("go"));
    wait_for(&monitor, |metrics| metrics.queued_bytes > MESSAGE as u64);
    refused(&server, 503);
    assert_eq!(kept.send(handshake("/echo", "")).last_status(), 503);
    assert!(monitor.ready().is_err_and(|why| why.to_string().contains("memory")));
    assert!(monitor.metrics().limited.get(Limit::Memory) >= 2);
    for _ in 0..40 {
        assert!(matches!(peer.next(), Some(Reply::Message(..))), "open connections stay");
    }
    wait_for(&monitor, |metrics| metrics.queued_bytes == 0);
    server.websocket("/echo").sync();
}

#[test]
fn connection_with_the_largest_queue_is_closed_if_configured() {
    let limits = Limits::default().with_max_memory(8 * MESSAGE).with_when_full(WhenFull::Close);
    let (server, monitor, events) = flooded(limits);
    let mut small = server.websocket("/echo");
    // The second has the place of the first.
    for closed in 1..=2 {
        let mut slow = server.websocket("/flood");
        slow.send(&Frame::text("go"));
        assert_eq!(events.closed().status(), 1006);
        assert_eq!(monitor.metrics().limited.get(Limit::Memory), closed);
        small.send(&Frame::text("small")).expect(&Reply::text("small"));
        wait_for(&monitor, |metrics| metrics.queued_bytes == 0 && metrics.connections() == 1);
    }
}

/// By incomplete messages: the client that crosses the limit holds less than another client, perhaps of another
/// thread.
#[test]
fn largest_connection_is_closed_when_memory_is_full() {
    for threads in [1, 3] {
        let (server, monitor) = server(Limits::default().with_max_memory(12 * MESSAGE), threads);
        let begin = |size: usize| {
            let mut peer = server.websocket("/echo");
            let wire = Frame::binary(vec![1; size]).encode(sinews_proto::Role::Client);
            let (begun, rest) = wire.split_at(wire.len() - 10);
            peer.client.send(begun);
            (peer, rest.to_vec(), size)
        };
        let holds = |bytes: usize| wait_for(&monitor, |metrics| metrics.incomplete_bytes >= bytes as u64);
        let (mut large, ..) = begin(7 * MESSAGE);
        holds(7 * MESSAGE - 10);
        let mut others = vec![begin(MESSAGE), begin(MESSAGE)];
        holds(9 * MESSAGE - 30);
        others.push(begin(4 * MESSAGE));
        assert!(large.client.closes_without_response(), "{threads} threads");
        for (peer, rest, size) in &mut others {
            peer.client.send(rest);
            peer.expect(&Reply::Message(sinews_server::Kind::Binary, vec![1; *size]));
        }
        let metrics = monitor.metrics();
        assert_eq!((metrics.limited.get(Limit::Memory), metrics.max_memory_bytes), (1, Some(12 << 20)));
    }
}

#[test]
fn memory_has_a_limit_by_default() {
    let (_server, monitor) = server(Limits::default(), 1);
    let metrics = monitor.metrics();
    assert!(metrics.max_memory_bytes.is_some_and(|bytes| bytes > 1 << 20), "{metrics:?}");
    assert!(metrics.to_text().contains("sinews_memory_limit_bytes "));
}

#[test]
fn incomplete_messages_count_as_memory() {
    let (server, monitor) =
        server(Limits::default().with_max_memory(MESSAGE).with_when_full(WhenFull::Reject), 1);
    let mut peer = server.websocket("/echo");
    let wire = Frame::binary(vec![1; 3 * MESSAGE]).encode(sinews_proto::Role::Client);
    peer.client.send(&wire[..2 * MESSAGE]);
    wait_for(&monitor, |metrics| metrics.incomplete_bytes > MESSAGE as u64);
    refused(&server, 503);
    peer.client.send(&wire[2 * MESSAGE..]);
    peer.expect(&Reply::Message(sinews_server::Kind::Binary, vec![1; 3 * MESSAGE]));
    wait_for(&monitor, |metrics| metrics.incomplete_bytes == 0 && metrics.queued_bytes == 0);
    server.websocket("/echo").sync();
}

/// Subscribes each client to one topic.
fn subscribed(limits: Limits) -> (Running, Monitor, Publisher) {
    let (route, _events) = scripted(|event, cx| {
        if matches!(event, HandlerEvent::Open) {
            cx.subscribe("all").unwrap();
        }
    });
    let (publish, _events) = scripted(|event, cx| {
        if let HandlerEvent::Message(_, message) = event {
            let _ = cx.publish("all", &Prepared::binary(message.clone()), PublishOptions::new());
            let _ = cx.publish("all", &Prepared::text("news"), PublishOptions::new());
            let _ = cx.send_text("done").unwrap();
        }
    });
    let routes = Router::new().websocket("/", route).websocket("/publish", publish);
    let monitor = routes.monitor();
    let server = Running::server(Server::new(routes).threads(1).limits(limits));
    let publisher = server.publisher.clone();
    (server, monitor, publisher)
}

/// The event loop receives a large message into the connection's own buffer, which is counted meanwhile.
#[test]
fn incomplete_message_stays_counted_while_the_server_sends() {
    let (server, monitor, publisher) = subscribed(Limits::default());
    let mut peer = server.websocket("/");
    let wire = Frame::binary(vec![1; 4 * MESSAGE]).encode(sinews_proto::Role::Client);
    peer.client.send(&wire[..3 * MESSAGE]);
    let received = |metrics: &Metrics| metrics.loops.iter().map(|stats| stats.received_bytes).sum::<u64>();
    wait_for(&monitor, |metrics| received(metrics) > 3 * MESSAGE as u64);
    for _ in 0..3 {
        assert_eq!(publisher.publish("all", &Prepared::text("news"), PublishOptions::new()), Ok(1));
        peer.expect(&Reply::text("news"));
        let metrics = monitor.metrics();
        assert!(metrics.incomplete_bytes > 2 * MESSAGE as u64, "{metrics:?}");
    }
}

#[test]
fn closed_connections_are_counted_no_more() {
    // The process holds more than the limit, so the counted memory decides.
    let ballast = vec![1_u8; 66 * MESSAGE];
    let (server, monitor, _) = subscribed(Limits::default().with_max_memory(65 * MESSAGE));
    let wire = Frame::binary(vec![1; 2 * MESSAGE]).encode(sinews_proto::Role::Client);
    let mut peers: Vec<Peer> = (0..10).map(|_| server.websocket("/")).collect();
    for peer in &mut peers {
        peer.client.send(&wire[..wire.len() - 10]);
    }
    wait_for(&monitor, |metrics| metrics.incomplete_bytes >= (20 * MESSAGE - 100) as u64);
    // Each subscriber then holds 10 MiB: six fit.
    let mut publisher = server.websocket("/publish");
    publisher.send(&Frame::binary(vec![1; 8 * MESSAGE]));
    publisher.expect(&Reply::text("done"));
    wait_for(&monitor, |metrics| metrics.limited.get(Limit::Memory) > 0);
    publisher.sync();
    let closed = monitor.metrics().limited.get(Limit::Memory);
    assert!((1..=4).contains(&closed), "{closed} of {} closed", peers.len());
    drop(ballast);
}
