//! Backpressure: a peer that does not read costs bounded memory, and loses no message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sinews_proto::Role;
use sinews_server::{Config, Overflow, Prepared, PublishOptions, Router, Sent};
use sinews_testkit::{Frame, Reply};

use crate::support::{HandlerEvent, PATIENCE, Running, for_slow_peers, get, routes, scripted};

const SIZE: usize = 64 << 10;

/// Far more than the sockets' buffers take.
const COUNT: usize = 1_000;

fn numbered(number: usize) -> Vec<u8> {
    let mut payload = vec![0; SIZE];
    payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
    payload
}

/// Lets the loop turn, so that its pending work is done.
fn turn(server: &Running) {
    for _ in 0..100 {
        assert_eq!(server.connect().send(get("/")).answer().status, 200, "other clients are served");
    }
}

#[test]
fn echo_to_a_peer_that_does_not_read_is_queued_without_loss() {
    let (most, received) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, counter) = (most.clone(), received.clone());
    let (pressed, pressure) = std::sync::mpsc::channel();
    let (route, events) = scripted(move |event, cx| {
        if let HandlerEvent::Message(_, payload) = event {
            counter.fetch_add(1, Ordering::Relaxed);
            if cx.send_binary(payload) == Ok(Sent::Backpressure) {
                let _ = pressed.send(());
            }
            seen.fetch_max(cx.buffered(), Ordering::Relaxed);
        }
    });
    let server = Running::router(routes().websocket("/slow", route));
    let mut peer = server.websocket("/slow");
    let mut sender = peer.client.try_clone();
    let sending = std::thread::spawn(move || {
        for number in 0..COUNT {
            sender.send(Frame::binary(numbered(number)).encode(Role::Client));
        }
    });
    pressure.recv_timeout(PATIENCE).expect("the handler gets backpressure");
    turn(&server);
    let unread = received.load(Ordering::Relaxed);
    assert!(unread < COUNT, "all {COUNT} messages were taken from a peer that reads none");
    for number in 0..COUNT {
        assert!(peer.next() == Some(Reply::binary(numbered(number))), "message {number}");
    }
    sending.join().unwrap();
    let most = most.load(Ordering::Relaxed);
    let high_water = Config::default().high_water();
    assert!(most <= high_water + SIZE + 10, "{most} bytes waited: more than one message over the mark");
    assert!(std::iter::from_fn(|| Some(events.next())).any(|event| event == HandlerEvent::Drain));
}

#[test]
fn handler_with_backpressure_streams_without_end() {
    let next = AtomicUsize::new(0);
    let (route, events) = scripted(move |event, cx| {
        if matches!(event, HandlerEvent::Message(..) | HandlerEvent::Drain) {
            let mut number = next.load(Ordering::Relaxed);
            while number < COUNT {
                let sent = cx.send_binary(&numbered(number)).unwrap();
                number += 1;
                if sent == Sent::Backpressure {
                    break;
                }
            }
            next.store(number, Ordering::Relaxed);
        }
    });
    let server = Running::router(routes().websocket("/stream", route));
    let mut peer = server.websocket("/stream");
    peer.send(&Frame::text("go"));
    for number in 0..COUNT {
        assert!(peer.next() == Some(Reply::binary(numbered(number))), "message {number}");
    }
    peer.sync();
    drop((peer, server));
    let drains = events.rest().into_iter().filter(|event| *event == HandlerEvent::Drain).count();
    assert!(drains > 1, "{drains} times");
}

#[test]
fn pings_to_a_peer_that_does_not_read_are_not_queued() {
    let (route, _events) = scripted(|event, cx| {
        if let HandlerEvent::Message(_, payload) = event {
            let _ = cx.send_binary(payload);
        }
    });
    let server =
        Running::router(Router::new().get("/", |_| sinews_server::Response::new(204)).websocket("/", route));
    let mut peer = server.websocket("/");
    peer.send(&Frame::binary(vec![0; 4 << 20]));
    for number in 0..200_u8 {
        peer.send(&Frame::ping([number]));
    }
    assert!(matches!(peer.next(), Some(Reply::Message(..))));
    let mut newest = 0;
    while newest < 199 {
        let Some(Reply::Pong(payload)) = peer.next() else { panic!("pongs, the last one at least") };
        assert!(payload[0] >= newest, "in order");
        newest = payload[0];
    }
    peer.sync();
}

/// A publisher that is not throttled, and a subscriber that does not read.
fn flooded(overflow: Overflow) -> (Running, crate::support::Peer, usize) {
    let config = for_slow_peers().with_overflow(overflow).with_max_outbound(1 << 20);
    let (route, events) = scripted(|event, cx| match event {
        HandlerEvent::Open => cx.subscribe("all").unwrap(),
        HandlerEvent::Message(..) => {
            for number in 0..COUNT {
                cx.publish(
                    "all",
                    &Prepared::binary(numbered(number)),
                    PublishOptions::new().except(cx.subscriber_id()),
                )
                .unwrap();
            }
            cx.publish("all", &Prepared::text("end"), PublishOptions::new().except(cx.subscriber_id()))
                .unwrap();
        }
        _ => {}
    });
    let server = Running::router(routes().websocket("/all", route.with_config(config)));
    let slow = server.websocket("/all");
    let mut publisher = server.websocket("/all");
    publisher.send(&Frame::text("go"));
    while !matches!(events.next(), HandlerEvent::Message(..)) {}
    publisher.sync();
    (server, slow, COUNT)
}

#[test]
fn slow_subscriber_is_closed_with_1008() {
    let (_server, mut slow, count) = flooded(Overflow::Close);
    let mut expected = 0;
    loop {
        match slow.next() {
            Some(Reply::Message(_, payload)) => {
                assert!(payload == numbered(expected), "without a gap");
                expected += 1;
            }
            Some(close) => {
                assert_eq!(close.close_code(), Some(1008), "{close:?}");
                // Otherwise the server waits for it.
                slow.send(&Frame::close(1008, ""));
                break;
            }
            None => panic!("a Close with 1008 before the end"),
        }
    }
    assert_eq!(slow.next(), None);
    assert!(expected > 0 && expected < count, "{expected}");
}

#[test]
fn newest_messages_are_dropped() {
    let (_server, mut slow, count) = flooded(Overflow::DropNewest);
    let mut expected = 0;
    slow.client.send(Frame::ping("sync").encode(Role::Client));
    while let Some(Reply::Message(_, payload)) = slow.next() {
        assert!(payload == numbered(expected), "the oldest, without a gap");
        expected += 1;
    }
    assert!(expected > 0 && expected < count, "{expected}");
}

#[test]
fn oldest_messages_are_dropped() {
    let (_server, mut slow, count) = flooded(Overflow::DropOldest);
    slow.client.send(Frame::ping("sync").encode(Role::Client));
    let (mut last, mut gaps, mut received, mut answered) = (None, 0, 0, false);
    loop {
        match slow.next() {
            Some(Reply::Message(sinews_server::Kind::Text, payload)) => {
                assert_eq!(payload, b"end", "the newest survives");
                break;
            }
            Some(Reply::Message(_, payload)) => {
                let number = u64::from_be_bytes(payload[..8].try_into().unwrap());
                assert!(last.is_none_or(|last| number > last), "in order");
                gaps += u64::from(last.map_or(number, |last| number - last - 1) > 0);
                last = Some(number);
                received += 1;
            }
            // Queued messages do not delay it.
            Some(Reply::Pong(_)) => answered = true,
            other => panic!("{other:?} before the last message"),
        }
    }
    assert_eq!(last, Some(count as u64 - 1));
    assert!(gaps > 0 && received < count, "{gaps} gaps in {received}");
    if !answered {
        slow.expect(&Reply::Pong(b"sync".to_vec()));
    }
}
