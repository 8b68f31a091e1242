//! Many producers on one connection.

use std::collections::HashMap;
use std::task::Poll;

use crate::spawn::spawn;
use crate::support::{pair, pair_with, poll_once};
use sinews::tokio::WebSocket;
use sinews::{Cause, CloseCode, CloseFrame, Config, Message, Misuse, Prepared, Sender};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

async fn text<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocket<S>) -> String {
    let message = socket.next().await.expect("open").expect("sound");
    message.as_text().expect("text").to_owned()
}

#[tokio::test]
async fn queued_messages_leave_in_one_write_and_dropped_handles_have_no_effect() {
    let (mut client, mut server) = pair();
    let counts = server.get_ref().counts();
    for number in 0..50 {
        server.sender().try_send(format!("{number}")).expect("room");
    }
    assert!(poll_once(server.next()).is_pending(), "a waiting receive sends");
    assert_eq!(counts.writes(), 1);
    for number in 0..50 {
        assert_eq!(text(&mut client).await, number.to_string());
    }
    client.send("still open").await.expect("open");
    assert_eq!(text(&mut server).await, "still open");
}

#[tokio::test]
async fn flush_and_send_also_send_queued_messages() {
    let (mut client, mut server) = pair();
    let sender = server.sender();
    sender.try_send("a").expect("room");
    server.flush().await.expect("open");
    sender.try_send("b").expect("room");
    server.send("c").await.expect("open");
    for expected in ["a", "b", "c"] {
        // Messages of a producer and of the owner are not ordered.
        assert!(["a", "b", "c"].contains(&&*text(&mut client).await), "{expected}");
    }
}

#[tokio::test]
async fn queued_message_wakes_the_driving_task() {
    let (mut client, mut server) = pair();
    let sender = server.sender();
    let driver = spawn(async move { server.next().await });
    tokio::task::yield_now().await;
    sender.send("awake").await.expect("open");
    assert_eq!(text(&mut client).await, "awake");
    client.send("bye").await.expect("open");
    assert!(driver.await.expect("no panic").is_some());
}

#[tokio::test]
async fn producers_wait_in_order_for_a_peer_that_does_not_read() {
    let config = Config::default().with_high_water(1000);
    let (mut client, mut server) = pair_with(&config, 100, None);
    let sender = server.sender_with_capacity(4);
    let message = |number: u8| Message::binary(vec![number; 600]);
    // Two exceed the high-water mark, four fill the queue.
    let mut sent = 0;
    while sent < 2 {
        sender.try_send(message(sent)).expect("room");
        sent += 1;
        assert!(poll_once(server.next()).is_pending());
    }
    while sent < 6 {
        sender.try_send(message(sent)).expect("room");
        sent += 1;
        assert!(poll_once(server.next()).is_pending());
    }
    assert_eq!(sender.capacity(), 0);
    let full = sender.try_send(message(sent)).expect_err("full");
    assert!(full.is_full() && !full.is_closed());
    assert_eq!(full.into_message(), message(6), "the message is returned");

    let (mut first, mut second) = (Box::pin(sender.send(message(6))), Box::pin(sender.send(message(7))));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    let driver = spawn(async move { server.next().await });
    let mut heard = Vec::new();
    let producers = async { (first.await, second.await) };
    let hear = async {
        for _ in 0..8 {
            let message = client.next().await.expect("open").expect("sound");
            assert_eq!(message.len(), 600);
            heard.push(message.as_bytes()[0]);
        }
    };
    let (sent, ()) = tokio::join!(producers, hear);
    assert!(sent.0.is_ok() && sent.1.is_ok());
    assert_eq!(heard, [0, 1, 2, 3, 4, 5, 6, 7]);
    drop(driver);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_producers_lose_nothing_and_keep_their_order() {
    const EACH: u32 = 500;
    let (mut client, mut server) = pair_with(&Config::default().with_high_water(2000), 300, Some(7));
    let sender = server.sender_with_capacity(8);
    let mut producers = JoinSet::new();
    for producer in 0..8u32 {
        let sender = sender.clone();
        producers.spawn(async move {
            for number in 0..EACH {
                let payload = [producer.to_be_bytes(), number.to_be_bytes()].concat();
                sender.send(payload).await.expect("open");
            }
        });
    }
    let driver = spawn(async move { while let Some(Ok(_)) = server.next().await {} });
    let mut next = HashMap::new();
    for _ in 0..8 * EACH {
        let message = client.next().await.expect("open").expect("sound");
        let (producer, number) = message.as_bytes().split_at(4);
        let expected = next.entry(producer.to_vec()).or_insert(0);
        assert_eq!(number, u32::to_be_bytes(*expected));
        *expected += 1;
    }
    assert_eq!(next.len(), 8);
    producers.join_all().await;
    client.close(CloseCode::NORMAL, "").await.expect("in order");
    drop(client);
    driver.await.expect("no panic");
    sender.closed().await;
    assert_eq!(sender.end().map(|closed| closed.cause()), Some(Cause::Peer));
}

#[tokio::test(start_paused = true)]
async fn producers_get_the_cause_of_the_end() {
    let (mut client, mut server) = pair();
    let sender = server.sender();
    client.start_close(CloseCode::GOING_AWAY, "restart").expect("open");
    assert!(poll_once(client.next()).is_pending());
    while server.next().await.is_some() {}
    let error = sender.send("late").await.expect_err("over");
    assert!(error.is_closed() && sender.is_closed());
    assert_eq!(error.closed().and_then(|closed| closed.code()), Some(CloseCode::GOING_AWAY));
    assert_eq!(error.to_string(), "closed by the peer with 1001: restart");
    assert_eq!(error.into_message(), Message::from("late"));
    assert!(server.sender().is_closed(), "a later handle knows it too");
}

#[tokio::test]
async fn dropped_connection_wakes_waiting_producers() {
    let (_client, mut server) = pair();
    let sender = server.sender_with_capacity(1);
    sender.try_send("first").expect("room");
    let mut second = Box::pin(sender.send("second"));
    assert!(poll_once(&mut second).is_pending());
    drop(server);
    let error = second.await.expect_err("gone");
    assert!(error.is_closed() && error.closed().is_none());
    sender.closed().await;
}

#[tokio::test]
async fn queued_messages_leave_before_a_close_and_producers_can_close() {
    for by_producer in [false, true] {
        let (mut client, mut server) = pair();
        let sender = server.sender();
        sender.try_send("last").expect("room");
        let frame = CloseFrame::new(CloseCode::NORMAL, "done");
        match by_producer {
            true => sender.try_send(Message::Close(Some(frame.clone()))).expect("room"),
            false => server.start_close(frame.code(), frame.reason()).expect("open"),
        }
        assert!(poll_once(server.next()).is_pending());
        assert!(sender.is_closed());
        assert_eq!(text(&mut client).await, "last");
        let close = client.next().await.expect("a Close").expect("sound");
        assert_eq!(close, Message::Close(Some(frame)));
    }
}

#[tokio::test]
async fn invalid_message_is_rejected_at_the_producer() {
    let (_client, mut server) = pair();
    let sender = server.sender();
    let ping = Message::Ping(vec![0; 126].into());
    let error = sender.try_send(ping.clone()).expect_err("too long");
    assert!(!error.is_full() && !error.is_closed());
    assert_eq!(error.misuse(), Some(Misuse::PingTooLong));
    assert_eq!(error.to_string(), "ping payload over 125 bytes");
    assert_eq!(sender.send(ping.clone()).await.expect_err("too long").into_message(), ping);
    let frame = CloseFrame::new(CloseCode::NORMAL, "x".repeat(124));
    assert!(sender.try_send(Message::Close(Some(frame))).is_err());
    assert_eq!(sender.capacity(), Sender::CAPACITY);
}

#[tokio::test]
async fn fragmented_message_is_not_interrupted() {
    let (mut client, mut server) = pair();
    let sender = server.sender();
    let mut writer = server.writer(sinews::Kind::Text);
    writer.write(b"piece ").await.expect("open");
    sender.try_send("other").expect("room");
    writer.flush().await.expect("open");
    writer.write(b"by piece").await.expect("open");
    writer.finish().await.expect("open");
    assert!(matches!(poll_once(server.next()), Poll::Pending));
    assert_eq!(text(&mut client).await, "piece by piece");
    assert_eq!(text(&mut client).await, "other");
}

#[tokio::test]
async fn published_messages_of_handles_are_framed_once_and_leave_in_order() {
    let (mut client, mut server) = pair();
    let sender = server.sender_with_capacity(3);
    let prepared = Prepared::text("to all");
    sender.try_send("first").expect("capacity");
    sender.publish(&prepared).expect("capacity");
    sender.try_send("last").expect("capacity");
    let error = sender.publish(&prepared).expect_err("the queue is full");
    assert!(error.is_full() && error.misuse().is_none());
    assert_eq!(error.into_message(), Message::text("to all"));
    server.flush().await.expect("open");
    for expected in ["first", "to all", "last"] {
        assert_eq!(text(&mut client).await, expected);
    }
    drop(server);
    assert!(sender.publish(&Prepared::binary(vec![0xff])).expect_err("ended").is_closed());
    let invalid = Prepared::new(sinews::Kind::Text, vec![0xff].into());
    let returned = sender.publish(&invalid).expect_err("ended").into_message();
    assert_eq!(returned, Message::binary(vec![0xff]));
}
