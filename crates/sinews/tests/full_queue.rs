//! Full queues: what waiting calls do, and what bounds the memory for a peer that does not read.
#![cfg(feature = "tokio")]

mod common;

use common::pair_with;
use sinews::{CloseCode, Config, Kind, Overflow};

const POLICIES: [Overflow; 3] = [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest];

/// A queue that is full before the high-water mark is passed.
fn early_full(overflow: Overflow) -> Config {
    Config::default().with_max_outbound(16 << 10).with_overflow(overflow)
}

#[tokio::test]
async fn calls_that_wait_never_meet_the_overflow_policy() {
    for overflow in POLICIES {
        for call in 0..4u8 {
            let (mut client, server) = pair_with(&early_full(overflow), 1 << 10, Some(7));
            let server = tokio::spawn(async move {
                let mut server = server;
                let sender = server.sender();
                for number in 0..6u8 {
                    let payload = vec![number; 16 << 10];
                    match call {
                        0 => server.feed(payload).await.unwrap(),
                        1 => server.send(payload).await.unwrap(),
                        2 => server.send_binary(&payload).await.unwrap(),
                        _ => sender.send(payload).await.unwrap(),
                    }
                }
                server.flush().await.unwrap();
                let _ = server.close(CloseCode::NORMAL, "").await;
            });
            let mut received = Vec::new();
            while let Some(message) = client.next_data().await {
                received.push(message.unwrap().as_bytes()[0]);
            }
            assert_eq!(received, [0, 1, 2, 3, 4, 5], "{overflow:?}, call {call}");
            server.await.unwrap();
        }
    }
}

#[tokio::test]
async fn written_message_is_whole_although_the_queue_is_full_before_the_high_water_mark() {
    for overflow in POLICIES {
        let (mut client, mut server) = pair_with(&early_full(overflow), 1 << 10, Some(3));
        let sending = async {
            let mut writer = server.writer(Kind::Binary);
            for number in 0..4u8 {
                writer.write(&[number; 10 << 10]).await.unwrap();
            }
            writer.finish().await.unwrap();
        };
        let (received, ()) = tokio::join!(client.next_data(), sending);
        assert_eq!(received.unwrap().unwrap().len(), 40 << 10, "{overflow:?}");
    }
}

#[tokio::test]
async fn half_that_waits_never_meets_the_overflow_policy() {
    let (mut client, server) = pair_with(&early_full(Overflow::DropNewest), 1 << 10, Some(5));
    let (mut write, mut read) = server.split_locked();
    let sender = write.sender();
    let reader = tokio::spawn(async move { read.next_data().await.map(drop) });
    let producer = tokio::spawn(async move {
        for number in 0..20u8 {
            sender.send(vec![number; 5 << 10]).await.unwrap();
        }
    });
    let writer = tokio::spawn(async move {
        for number in 100..120u8 {
            match number % 2 {
                0 => write.send(vec![number; 5 << 10]).await.unwrap(),
                _ => write.feed(vec![number; 5 << 10]).await.unwrap(),
            }
        }
        write.flush().await.unwrap();
    });
    let mut received = Vec::new();
    while received.len() < 40 {
        received.push(client.next_data().await.unwrap().unwrap().as_bytes()[0]);
    }
    received.sort_unstable();
    assert_eq!(received, (0..20).chain(100..120).collect::<Vec<u8>>());
    (producer.await.unwrap(), writer.await.unwrap());
    drop(client);
    reader.await.unwrap();
}
