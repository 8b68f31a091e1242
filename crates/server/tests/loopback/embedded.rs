//! A server inside of another event loop, which waits for its descriptor.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sinews_server::{
    BackendChoice, Context, EmbeddedServer, EngineConfig, Handler, NextTurn, Payload, Prepared,
    PublishOptions, Router, Server, WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{Client, PATIENCE};

/// Subscribes to `news`, and answers messages.
struct Echo;

impl Handler for Echo {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe("news").unwrap();
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_payload(payload);
    }
}

fn server(backend: BackendChoice, threads: usize) -> Server {
    Server::new(Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Echo))))
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .engine(EngineConfig::default().with_backend(backend))
        .threads(threads)
}

/// The other loop. Returns how often it has waited.
fn run(mut server: EmbeddedServer) -> usize {
    let mut waits = 0;
    while server.turn().unwrap() {
        let NextTurn::Readable(time) = server.next_turn() else { continue };
        let wait = time.unwrap_or(PATIENCE).min(PATIENCE);
        let timeout = Timespec::try_from(wait).unwrap();
        let begun = Instant::now();
        let descriptor = server.descriptor();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap();
        assert!(begun.elapsed() < PATIENCE, "a wake-up was lost");
        waits += 1;
    }
    waits
}

#[test]
fn embedded_server_is_woken_by_its_descriptor() {
    let bound = server(BackendChoice::Poll, 1).bind().unwrap();
    let (address, stop, publisher) = (bound.addresses()[0], bound.stop_handle(), bound.publisher());
    let (ended, end) = channel();
    let thread = thread::spawn(move || {
        // Created on the thread of its turns.
        ended.send(run(bound.embed().unwrap())).unwrap();
    });
    let mut peer = Client::connect(address).upgrade("/");
    for text in ["one", "two"] {
        peer.send(&Frame::text(text)).expect(&Reply::text(text));
    }
    // A publication from another thread, while the loop sleeps or not.
    for at in 0..100 {
        let text = format!("news {at}");
        publisher.publish("news", &Prepared::text(text.clone()), PublishOptions::new()).unwrap();
        peer.expect(&Reply::text(&text));
    }
    stop.stop();
    peer.expect_stop();
    let waits = end.recv_timeout(PATIENCE).unwrap();
    thread.join().unwrap();
    // Its turns end without further work.
    assert!((1..10_000).contains(&waits), "{waits}");
}

#[test]
fn ring_and_several_workers_cannot_be_embedded() {
    let error = server(BackendChoice::Poll, 2).bind().unwrap().embed().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("Server::threads(1)"), "{error}");
    let Ok(ring) = server(BackendChoice::Uring, 1).bind() else { return };
    let error = ring.embed().unwrap_err();
    assert!(error.to_string().contains("BackendChoice::Poll"), "{error}");
}

#[test]
fn timers_bound_the_wait() {
    let bound = server(BackendChoice::Poll, 1).bind().unwrap();
    let address = bound.addresses()[0];
    let mut server = bound.embed().unwrap();
    let _client = Client::connect(address);
    // The timeout of its request's head.
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(server.turn().unwrap() && Instant::now() < deadline);
        if let NextTurn::Readable(Some(time)) = server.next_turn() {
            assert!(time < Duration::from_secs(60), "{time:?}");
            break;
        }
    }
}
