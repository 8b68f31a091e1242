//! Stop: every client is notified, and every wait is bounded.

use std::time::Duration;

use sinews_server::{
    Config, Context, EngineConfig, Handler, HttpConfig, Listeners, Payload, Server, StreamingResponse,
};
use sinews_testkit::{Frame, Reply};

use crate::stalled::Flood;
use crate::support::{
    HandlerEvent, PATIENCE, Running, echo, for_slow_peers, get, handshake, patient as patient_http, post,
    routes, scripted,
};

/// Longer than any test: a stop that waits for it hangs.
const LONG: Duration = Duration::from_secs(3_600);

fn server(threads: usize) -> Running {
    let patient = Config::default().with_close_timeout(LONG);
    let routes = routes().websocket("/patient", echo().with_config(patient));
    let http = HttpConfig::default()
        .with_head_timeout(LONG)
        .with_body_idle_timeout(LONG)
        .with_body_timeout(LONG)
        .with_write_timeout(LONG)
        .with_keep_alive_timeout(LONG);
    Running::server(Server::new(routes).threads(threads).grace(LONG).http(http))
}

#[test]
fn every_client_gets_1001_and_the_server_ends_with_the_last() {
    let server = server(2);
    let mut peers: Vec<_> = (0..50).map(|_| server.websocket("/patient")).collect();
    let mut fresh = server.connect();
    let mut kept = server.connect();
    assert_eq!(kept.send(get("/")).answer().status, 200);
    peers.iter_mut().for_each(|peer| peer.sync());
    server.stop.stop();
    for peer in &mut peers {
        peer.expect_stop();
    }
    fresh.assert_end();
    kept.assert_end();
    drop((peers, fresh, kept));
    server.join();
}

/// The clients keep their side open: only the server ends these connections.
#[test]
fn stop_ends_idle_http_connections_without_waiting_for_their_clients() {
    // On one thread, input sent before an answered message has been received.
    let server = server(1);
    let (mut fresh, mut kept, mut half) = (server.connect(), server.connect(), server.connect());
    assert_eq!(kept.send(get("/")).answer().status, 200);
    let wire = post("/body", "abc");
    half.send(&wire[..wire.len() - 1]);
    let mut peer = server.websocket("/patient");
    peer.send(&Frame::text("before")).expect(&Reply::text("before"));
    server.stop.stop();
    peer.expect(&Reply::Close(Some(1001), "server stops".into()));
    fresh.assert_end();
    kept.assert_end();
    peer.send(&Frame::close(1001, ""));
    assert_eq!(peer.next(), None);
    let answer = half.send(&wire[wire.len() - 1..]).answer();
    assert_eq!((answer.text(), answer.closes()), ("abc", true), "it is no idle connection");
    half.assert_end();
    drop((half, peer));
    server.join();
    drop((fresh, kept));
}

#[test]
fn stopping_server_is_not_ready() {
    let http = HttpConfig::default().with_head_timeout(LONG).with_keep_alive_timeout(LONG);
    let routes = routes().healthz("/healthz").readyz("/readyz");
    let monitor = routes.monitor();
    assert!(monitor.ready().is_err(), "nothing is bound yet");
    let server = Running::server(Server::new(routes).threads(1).grace(LONG).http(http));
    let mut asking = server.connect();
    for path in ["/healthz", "/readyz"] {
        let answer = asking.send(get(path)).answer();
        assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
    }
    let wire = get("/readyz");
    asking.send(&wire[..wire.len() - 1]);
    let mut peer = server.websocket("/echo");
    peer.sync();
    server.stop.stop();
    assert!(monitor.ready().is_err());
    peer.expect(&Reply::Close(Some(1001), "server stops".into()));
    let answer = asking.send(&wire[wire.len() - 1..]).answer();
    assert_eq!((answer.status, answer.text()), (503, "stopping\n"));
    drop((asking, peer));
    server.join();
}

#[test]
fn stop_is_announced_before_it_affects_clients() {
    let routes = routes().readyz("/readyz");
    let server = Running::server(Server::new(routes).threads(2).readiness_delay(LONG));
    let mut peer = server.websocket("/echo");
    peer.sync();
    server.stop.stop();
    server.stop.stop();
    let mut asking = server.connect();
    for method in ["GET", "HEAD", "OPTIONS"] {
        let answer = asking.send(get("/readyz").replace("GET", method)).answer_to(method).unwrap();
        assert_eq!(answer.status, 503, "{method}");
    }
    assert_eq!(asking.send(get("/")).answer().status, 200, "and the connection stays");
    server.websocket("/echo").send(&Frame::text("new")).expect(&Reply::text("new"));
    peer.send(&Frame::text("old")).expect(&Reply::text("old"));
    server.stop.stop_now();
    server.join();
}

#[test]
fn short_readiness_delay_elapses() {
    let server = Running::server(Server::new(routes()).threads(2).readiness_delay(Duration::from_millis(20)));
    let mut peer = server.websocket("/echo");
    peer.sync();
    server.stop.stop();
    peer.expect_stop();
    drop(peer);
    server.join();
}

#[test]
fn messages_sent_before_the_stop_are_answered() {
    // On one thread, input sent before an answered message has been received.
    let server = server(1);
    let mut posting = server.connect();
    let wire = post("/body", "abc");
    posting.send(&wire[..wire.len() - 1]);
    let mut upgrading = server.connect();
    upgrading.send(&handshake("/echo", "")[..30]);
    let mut reading = server.connect();
    reading.send(get("/large").repeat(50));
    assert_eq!(reading.answer().status, 200);
    let mut peer = server.websocket("/patient");
    peer.send(&Frame::text("before")).expect(&Reply::text("before"));
    server.stop.stop();
    peer.expect_stop();

    let answer = posting.send(&wire[wire.len() - 1..]).answer();
    assert_eq!((answer.text(), answer.closes()), ("abc", true));
    posting.assert_end();
    upgrading.send(&handshake("/echo", "")[30..]);
    let mut late = upgrading.upgraded();
    late.expect_stop();
    // As far as it had arrived; the last answer depends on when the stop came.
    while let Some(answer) = reading.answer_to("GET") {
        assert_eq!(answer.status, 200);
    }
    drop((peer, posting, late, reading));
    server.join();
}

/// Takes the sockets over as a successor process would.
fn successor(server: &Running, threads: usize) -> Running {
    let mut listeners = Listeners::default();
    for (address, socket) in server.stop.listeners().unwrap().iter() {
        listeners.push(address.clone(), socket.try_clone_to_owned().unwrap()).unwrap();
    }
    assert!(!listeners.is_empty());
    let successor =
        Server::new(routes()).threads(threads).engine(crate::backend::engine()).inherit(listeners);
    let successor = Running::bound(successor.listen(([127, 0, 0, 1], 0).into()).bind().unwrap());
    assert_eq!(successor.address, server.address);
    successor
}

#[test]
fn handover_rejects_no_connection_and_answers_one_more_request() {
    for (before, after) in [(1, 3), (3, 1), (2, 2)] {
        let routes = routes().readyz("/readyz");
        let http = HttpConfig::default().with_head_timeout(LONG).with_keep_alive_timeout(LONG);
        let server = Server::new(routes).threads(before).grace(LONG).drain_window(LONG).http(http);
        let server = Running::server(server);
        let mut kept = server.connect();
        assert_eq!(kept.send(get("/")).answer().status, 200);
        let mut peer = server.websocket("/echo");
        peer.sync();
        let successor = successor(&server, after);
        server.stop.hand_over();
        peer.expect_stop();
        assert!(server.stop.listeners().unwrap().is_empty());
        // Its thread may see the handover later than the other thread.
        let mut is_last = false;
        while !is_last {
            let answer = kept.send(get("/readyz")).answer();
            assert_eq!(answer.status, 200, "no connection is rejected");
            is_last = answer.closes();
        }
        kept.assert_end();
        drop((peer, kept));
        // No connection is left there, so it ends, and new connections are served.
        server.join();
        for _ in 0..50 {
            assert_eq!(successor.connect().send(get("/")).answer().status, 200);
        }
    }
}

#[test]
fn lingering_for_silent_connections_ends_with_the_window() {
    let http = HttpConfig::default().with_head_timeout(LONG).with_keep_alive_timeout(LONG);
    let server = Server::new(routes()).threads(1).grace(LONG).http(http);
    let server = Running::server(server.drain_window(Duration::from_millis(50)));
    let (mut fresh, mut kept) = (server.connect(), server.connect());
    assert_eq!(kept.send(get("/")).answer().status, 200);
    let successor = successor(&server, 1);
    server.stop.hand_over();
    kept.assert_end();
    // This is its first request.
    let answer = fresh.send(get("/")).answer();
    assert_eq!((answer.status, answer.closes()), (200, true));
    fresh.assert_end();
    drop((fresh, kept));
    server.join();
    // With the last connection, an ordinary stop ends it.
    let (mut fresh, mut kept) = (successor.connect(), successor.connect());
    assert_eq!(kept.send(get("/")).answer().status, 200);
    successor.stop.hand_over();
    successor.stop.stop();
    kept.assert_end();
    fresh.assert_end();
    drop((fresh, kept));
    successor.join();
}

#[test]
fn handover_bounds_the_wait_for_a_first_request() {
    let soon = Duration::from_millis(50);
    for (head, grace) in [(soon, LONG), (LONG, soon)] {
        let http = HttpConfig::default().with_head_timeout(head);
        let server = Server::new(routes()).threads(1).grace(grace).drain_window(Duration::ZERO).http(http);
        let server = Running::server(server);
        let mut silent = server.connect();
        // On a busy machine, a connection may time out before its request arrives: then once more.
        let (kept, answer) = loop {
            let mut kept = server.connect();
            kept.try_send(get("/"));
            if let Some(answer) = kept.answer_if_in_time() {
                break (kept, answer);
            }
        };
        // So the other connection has been accepted, too.
        assert_eq!(answer.status, 200);
        server.stop.hand_over();
        silent.assert_end();
        drop((silent, kept));
        server.join();
    }
}

#[test]
fn grace_period_bounds_the_wait_for_silent_clients() {
    let patient = Config::default().with_close_timeout(LONG);
    let routes = routes().websocket("/patient", echo().with_config(patient));
    let server = Running::server(Server::new(routes).threads(2).grace(Duration::from_millis(50)));
    let mut silent = server.websocket("/patient");
    let mut half = server.connect();
    half.send("GET / HT");
    silent.sync();
    server.stop.stop();
    server.join();
    silent.expect(&Reply::Close(Some(1001), "server stops".into()));
}

/// Never ends by itself.
struct Silent;

impl Handler for Silent {
    fn open(&mut self, cx: &mut Context<'_>) {
        // The queue is empty.
        let _ = cx.send_text("opened");
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

/// The clients neither close their side nor send anything more: a phone that sleeps, a pool that keeps the connection.
#[test]
fn stop_and_handover_do_not_wait_for_the_ends_of_http_clients() {
    for hands_over in [false, true] {
        // A ping would end a connection that only waits for its client's end.
        let patient = for_slow_peers().with_close_timeout(LONG);
        let routes = routes()
            .get("/events", |_| StreamingResponse::events(Silent))
            .websocket("/patient", echo().with_config(patient));
        let http = patient_http().with_http2_clear_text(true);
        let server = Server::new(routes).threads(1).grace(LONG).drain_window(Duration::ZERO).http(http);
        let server = Running::server(server);
        let (mut reading, mut finished, mut rejected) =
            (server.connect(), server.connect(), server.connect());
        reading.send(get("/events")).wait_for("opened");
        assert!(
            finished.send(get("/").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).answer().closes()
        );
        assert_eq!(rejected.send("no request\r\n\r\n").answer().status, 400);
        // The preface, SETTINGS and a request for the events; neither SETTINGS nor PING of the server is acknowledged.
        let mut http2 = server.connect();
        http2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        http2.send(b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x86\x04\x07/events\x01\x01a").wait_for("opened");
        let mut websocket = server.websocket("/patient");
        websocket.sync();
        let successor = hands_over.then(|| successor(&server, 1));
        match hands_over {
            true => server.stop.hand_over(),
            false => server.stop.stop(),
        }
        websocket.expect(&Reply::Close(Some(1001), "server stops".into()));
        websocket.send(&Frame::close(1001, ""));
        server.join();
        drop((reading, finished, rejected, http2, websocket, successor));
    }
}

/// The end of the stream is queued behind bytes that the client does not read.
#[test]
fn stop_does_not_wait_for_a_stalled_reader_of_a_stream() {
    let routes = routes().get("/events", |_| StreamingResponse::events(Flood));
    let server = Server::new(routes).threads(1).grace(LONG).http(patient_http());
    let server = Running::server(server);
    let mut stalled = server.connect();
    stalled.send(get("/events")).wait_for("200 OK");
    server.stop.stop();
    server.join();
    drop(stalled);
}

#[test]
fn second_stop_waits_for_no_client() {
    let server = server(2);
    let mut silent = server.websocket("/patient");
    silent.sync();
    server.stop.stop();
    silent.expect(&Reply::Close(Some(1001), "server stops".into()));
    server.stop.stop_now();
    server.join();
}

/// A mailbox of one message is full before the loop has run for the first time.
#[test]
fn full_mailbox_does_not_lose_a_stop() {
    let http = HttpConfig::default().with_head_timeout(LONG).with_write_timeout(LONG);
    let engine = EngineConfig::default().with_mailbox(1).unwrap();
    let server = Server::new(routes()).threads(1).grace(LONG).http(http).engine(engine);
    let bound = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let (address, stop) = (bound.addresses()[0], bound.stop_handle());
    let mut half = crate::support::Client::connect(address);
    half.send("GET / HT");
    stop.stop();
    stop.stop_now();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(bound.run()));
    end.recv_timeout(PATIENCE).expect("the stop waits for no client").unwrap();
}

#[test]
fn panic_in_a_handler_stops_every_thread() {
    let (route, _events) =
        scripted(|event, _| assert!(!matches!(event, HandlerEvent::Message(..)), "a mistake"));
    let bound = Server::new(routes().websocket("/", route).websocket("/patient", echo()))
        .engine(crate::backend::engine())
        .threads(2)
        .grace(Duration::from_millis(50))
        .listen(([127, 0, 0, 1], 0).into())
        .bind()
        .unwrap();
    let address = bound.addresses()[0];
    let running = std::thread::spawn(|| bound.run());
    let mut peer = crate::support::Client::connect(address).upgrade("/");
    peer.send(&Frame::text("x"));
    assert!(running.join().is_err(), "the panic is handed on");
}
