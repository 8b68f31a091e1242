//! A connection on Tokio: when bytes leave, cancellation, and the end.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::spawn::spawn;
use crate::support::{pair, pair_with, poll_once, server_and_raw, text, wire};
use sinews::{
    AtFault, Cause, CloseCode, Config, Error, Expired, Message, Misuse, Overflow, PeerMisbehaved, Prepared,
    WebSocket,
};
use sinews_testkit::{Frame, split_frames};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn single_message_leaves_at_once() {
    let (mut client, _server) = pair();
    let counts = client.get_ref().counts();
    for n in 1..=3 {
        assert!(matches!(poll_once(client.send(text(n))), Poll::Ready(Ok(()))));
        assert_eq!(counts.writes(), n);
    }
}

#[tokio::test(start_paused = true)]
async fn replies_to_a_burst_leave_in_one_write() {
    let (mut client, mut server) = pair();
    for n in 0..50 {
        client.feed(text(n)).await.unwrap();
    }
    client.flush().await.unwrap();
    assert_eq!(client.get_ref().counts().writes(), 1, "so do fed messages");
    for n in 0..50 {
        let message = server.next().await.unwrap().unwrap();
        assert_eq!(message, text(n));
        server.send(message).await.unwrap();
    }
    // Without another call of `next`: the last reply knows that it is the last.
    assert_eq!(server.get_ref().counts().writes(), 1);
    for n in 0..50 {
        assert_eq!(client.next().await.unwrap().unwrap(), text(n));
    }
}

/// Behind the last whole message of a burst is part of another: replies do not wait for it.
#[tokio::test]
async fn incomplete_message_does_not_delay_replies() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let bytes = wire(&[Frame::text("one"), Frame::text("two"), Frame::text("three")]);
    raw.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
    for _ in 0..2 {
        let message = server.next().await.unwrap().unwrap();
        server.send(message).await.unwrap();
    }
    let mut answers = [0; 10];
    raw.read_exact(&mut answers).await.unwrap();
    assert_eq!(&answers, b"\x81\x03one\x81\x03two");
}

#[tokio::test(start_paused = true)]
async fn slow_handler_does_not_delay_replies_to_a_burst() {
    let (mut client, mut server) = pair();
    for n in 0..3 {
        client.feed(text(n)).await.unwrap();
    }
    client.flush().await.unwrap();
    for n in 0..3 {
        let message = server.next().await.unwrap().unwrap();
        // The previous reply has left when this message is returned.
        assert_eq!(server.get_ref().counts().writes(), n);
        server.send(message).await.unwrap();
        tokio::time::advance(Duration::from_millis(5)).await;
    }
    assert_eq!(server.get_ref().counts().writes(), 3);
}

/// Replies do not wait for a caller that reads the first message of a burst and then only sends.
#[tokio::test(start_paused = true)]
async fn several_replies_to_one_message_are_not_delayed() {
    let (mut client, mut server) = pair();
    for n in 0..3 {
        client.feed(text(n)).await.unwrap();
    }
    client.flush().await.unwrap();
    server.next().await.unwrap().unwrap();
    for n in 0..5 {
        server.send(text(n)).await.unwrap();
        assert_eq!(server.get_ref().counts().writes(), n);
        tokio::time::advance(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn receiver_without_sends_answers_pings() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    raw.write_all(&wire(&[Frame::ping("one"), Frame::ping("two")])).await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::Ping("one".into()));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::Ping("two".into()));
    assert!(poll_once(server.next()).is_pending());
    let mut answers = [0; 10];
    raw.read_exact(&mut answers).await.unwrap();
    assert_eq!(&answers, b"\x8a\x03one\x8a\x03two");
}

#[tokio::test(start_paused = true)]
async fn sender_without_receives_answers_pings_and_closes() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    server.send("first").await.unwrap();
    raw.write_all(&wire(&[Frame::ping("are you there"), Frame::text("later"), Frame::close(1001, "")]))
        .await
        .unwrap();
    tokio::time::advance(Duration::from_millis(20)).await;
    server.send("second").await.unwrap();
    let mut bytes = vec![0; 7 + 8 + 15];
    raw.read_exact(&mut bytes).await.unwrap();
    let (frames, _) = split_frames(&bytes);
    assert_eq!(frames.iter().map(|frame| frame.opcode).collect::<Vec<_>>(), [1, 1, 10]);
    // An event for the application is still available.
    assert_eq!(server.next().await.unwrap().unwrap(), Message::Ping("are you there".into()));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("later"));
    assert!(server.next().await.unwrap().unwrap().is_close());
}

#[tokio::test(start_paused = true)]
async fn sender_without_receives_answers_every_ping() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    for number in 0..5u8 {
        raw.write_all(&wire(&[Frame::ping([number])])).await.unwrap();
        tokio::time::advance(Duration::from_millis(20)).await;
        server.send("tick").await.unwrap();
        server.send("tick").await.unwrap();
        let mut bytes = [0; 6 + 6 + 3];
        assert!(poll_once(raw.read_exact(&mut bytes)).is_ready(), "ping {number}");
        assert_eq!(&bytes[12..], [0x8a, 1, number]);
    }
}

#[tokio::test]
async fn protocol_violation_is_sent_to_the_peer_and_reported() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    raw.write_all(&wire(&[Frame::text("fine")])).await.unwrap();
    raw.write_all(&wire(&[Frame::text(b"\xff\xff")])).await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("fine"));
    server.send("answer").await.unwrap();
    let peer = async {
        let mut bytes = Vec::new();
        raw.read_to_end(&mut bytes).await.unwrap();
        drop(raw);
        bytes
    };
    let (end, bytes) = tokio::join!(server.next(), peer);
    let Some(Err(error)) = end else { panic!("an error") };
    assert!(
        matches!(&error, Error::Closed(closed) if closed.cause() == Cause::Fault(PeerMisbehaved::InvalidUtf8))
    );
    assert_eq!((error.at_fault(), error.close_code()), (AtFault::Peer, Some(CloseCode::INVALID_DATA)));
    assert_eq!(&bytes[..8], b"\x81\x06answer");
    assert_eq!(&bytes[8..12], b"\x88\x13\x03\xef");
    assert!(server.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn silent_peer_is_pinged_and_disconnected_at_pong_timeout() {
    let (mut server, mut raw) = server_and_raw(&Config::default().with_idle_timeout(None));
    let began = tokio::time::Instant::now();
    let peer = async {
        let mut ping = [0; 6];
        raw.read_exact(&mut ping).await.unwrap();
        assert_eq!((ping[0], began.elapsed().as_secs()), (0x89, 25));
        let mut close = Vec::new();
        raw.read_to_end(&mut close).await.unwrap();
        drop(raw);
        close
    };
    let (end, close) = tokio::join!(server.next(), peer);
    let Some(Err(Error::Closed(closed))) = end else { panic!("an error") };
    assert_eq!(closed.cause(), Cause::Expired(Expired::Pong));
    assert_eq!(began.elapsed().as_secs(), 45);
    assert_eq!(&close[..4], b"\x88\x0e\x03\xf3");
}

#[tokio::test(start_paused = true)]
async fn write_timeout_ends_a_blocked_send() {
    let (mut server, raw) = server_and_raw(&Config::default());
    let began = tokio::time::Instant::now();
    let error = loop {
        if let Err(error) = server.send(vec![0; 100_000]).await {
            break error;
        }
    };
    assert!(
        matches!(&error, Error::Closed(closed) if closed.cause() == Cause::Expired(Expired::Write)),
        "{error}"
    );
    assert_eq!(began.elapsed().as_secs(), 30);
    drop(raw);
}

#[tokio::test(start_paused = true)]
async fn slow_progress_of_the_peer_restarts_write_timeout() {
    let (mut client, mut server) = pair_with(&Config::default(), 1000, None);
    let began = tokio::time::Instant::now();
    let slow = async {
        let mut taken = [0; 1000];
        for _ in 0..15 {
            // Longer than the write timeout in total, but with progress.
            tokio::time::sleep(Duration::from_secs(20)).await;
            client.get_mut().read_exact(&mut taken).await.unwrap();
        }
    };
    let (sent, ()) = tokio::join!(server.send(vec![7; 15_000]), slow);
    sent.unwrap();
    assert_eq!(began.elapsed().as_secs(), 300);
}

#[tokio::test(start_paused = true)]
async fn earlier_deadline_is_executed_during_a_stalled_send() {
    let config = Config::default()
        .with_write_timeout(Duration::from_secs(1000))
        .with_ping_interval(Some(Duration::from_secs(10)))
        .with_idle_timeout(None);
    let (mut client, mut server) = pair_with(&config, 1000, None);
    let began = tokio::time::Instant::now();
    let driving = async {
        server.send(vec![7; 3000]).await.unwrap();
        server.next().await
    };
    let silent = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        // It reads all bytes, and sends no reply.
        let mut taken = vec![0; 3004 + 6];
        client.get_mut().read_exact(&mut taken).await.unwrap();
        (taken[3004], began.elapsed().as_secs())
    };
    tokio::select! {
        _ = driving => panic!("the connection stays open"),
        (head, elapsed) = silent => assert_eq!((head, elapsed), (0x89, 15), "a ping"),
    }
}

#[tokio::test]
async fn try_send_applies_the_overflow_policy() {
    let small = Config::default().with_high_water(1000).with_max_outbound(3000);
    let (mut server, _raw) = server_and_raw(&small.clone().with_overflow(Overflow::DropNewest));
    let sent: Vec<_> = (0..5).map(|_| server.try_send(vec![0; 1000]).unwrap()).collect();
    use sinews::Sent::{Backpressure, Dropped};
    assert_eq!(sent, [Backpressure, Backpressure, Backpressure, Dropped, Dropped]);
    let (mut server, _raw) = server_and_raw(&small);
    let overflow =
        |error: &Error| matches!(error, Error::Closed(closed) if closed.cause() == Cause::Overflow);
    let error = (0..5).find_map(|_| server.try_send(vec![0; 1000]).err()).unwrap();
    assert!(overflow(&error), "{error}");
    let error = server.send("too late").await.unwrap_err();
    assert!(overflow(&error), "{error}");
    // A receive call returns the error now, although the peer reads nothing.
    let Poll::Ready(Some(Err(error))) = poll_once(server.next()) else { panic!("an error") };
    assert!(overflow(&error), "{error}");
    assert!(poll_once(server.next()).is_pending(), "then queued bytes are sent, until the write timeout");
}

#[tokio::test]
async fn publish_frames_once_and_drops_the_oldest() {
    let small = Config::default().with_max_outbound(3000).with_overflow(Overflow::DropOldest);
    let (mut client, mut server) = pair_with(&small, 1 << 20, None);
    let news: Vec<Prepared> = (0..10).map(|n| Prepared::text(format!("{n}{}", "x".repeat(999)))).collect();
    for message in &news {
        let _ = server.publish(message).unwrap();
    }
    server.flush().await.unwrap();
    let mut heard = Vec::new();
    while let Poll::Ready(message) = poll_once(client.next_data()) {
        heard.push(message.unwrap().unwrap().as_text().unwrap()[..1].to_owned());
    }
    assert_eq!(heard, ["8", "9"], "the newest messages that fit");
}

#[tokio::test]
async fn misuse_leaves_the_connection_open() {
    let (mut client, mut server) = pair();
    let error = client.send(Message::Ping(vec![0; 126].into())).await.unwrap_err();
    assert!(matches!(error, Error::Misuse(Misuse::PingTooLong)) && !error.is_fatal());
    let error = client.start_close(CloseCode::NORMAL, &"x".repeat(124)).unwrap_err();
    assert!(matches!(error, Error::Misuse(Misuse::ReasonTooLong)));
    client.send("still open").await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("still open"));
}

#[tokio::test]
async fn flood_of_small_messages_leaves_other_tasks_their_turn() {
    const MESSAGES: usize = 50_000;
    let received = wire(&[Frame::binary("")]).repeat(MESSAGES);
    let (_raw, io) = tokio::io::duplex(1);
    let negotiated = sinews_testkit::negotiate(None, None).server;
    let mut server = WebSocket::from_negotiated(io, negotiated, Arc::default(), &received);
    let receiving = spawn(async move {
        for _ in 0..MESSAGES {
            server.next().await.unwrap().unwrap();
        }
    });
    let mut turns = 0;
    while !receiving.is_finished() {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(turns > 5, "{turns} turns");
}
