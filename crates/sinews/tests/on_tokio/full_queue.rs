//! Full queues: what waiting calls do, and what bounds the memory for a peer that does not read.

use crate::spawn::spawn;
use crate::support::{ChoppyEnd, pair_with};
use sinews::{CloseCode, Config, Kind, Overflow, PingRate, Prepared, Role, WebSocket};
use sinews_testkit::{Frame, Rng, negotiate, split_frames};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
            let server = spawn(async move {
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
    let reader = spawn(async move { read.next_data().await.map(drop) });
    let producer = spawn(async move {
        for number in 0..20u8 {
            sender.send(vec![number; 5 << 10]).await.unwrap();
        }
    });
    let writer = spawn(async move {
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
    producer.await.unwrap();
    writer.await.unwrap();
    drop(client);
    reader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ends_that_both_wait_for_messages_receive_more_than_the_high_water_mark() {
    for seed in 0..8 {
        let config = Config::default().with_high_water(500).with_max_outbound(1 << 20);
        let (mut client, mut server) = pair_with(&config, 300, Some(seed));
        for end in [&mut client, &mut server] {
            match seed % 2 {
                0 => end.feed(Rng::new(seed).bytes(20_000)).await.unwrap(),
                _ => {
                    for number in 0..20u8 {
                        let _ = end.publish(&Prepared::binary(vec![number; 1000])).unwrap();
                    }
                }
            }
        }
        let receive = async |end: &mut ChoppyEnd| {
            let mut received = 0;
            while received < 20_000 {
                received += end.next_data().await.unwrap().unwrap().len();
            }
            end.flush().await.unwrap();
        };
        tokio::join!(receive(&mut client), receive(&mut server));
    }
}

#[tokio::test(start_paused = true)]
async fn ends_that_send_a_large_message_at_once_receive_both() {
    for seed in 0..8 {
        let config = Config::default().with_high_water(500);
        let (mut client, mut server) = pair_with(&config, 300, Some(seed));
        let exchange = async |end: &mut ChoppyEnd| {
            end.send(vec![1; 20_000]).await.unwrap();
            assert_eq!(end.next_data().await.unwrap().unwrap().len(), 20_000);
            end.flush().await.unwrap();
        };
        tokio::join!(exchange(&mut client), exchange(&mut server));
    }
}

#[tokio::test(start_paused = true)]
async fn peer_that_reads_nothing_gets_few_pongs_and_no_further_replies() {
    let config = Config::default()
        .with_high_water(4 << 10)
        .with_ping_rate(PingRate { per_second: 1 << 20, burst: 1 << 20 });
    let (mut raw, io) = tokio::io::duplex(1 << 10);
    let negotiated = negotiate(None, None).server;
    let mut server = WebSocket::from_negotiated(io, negotiated, config.into(), &[]);
    let echo = spawn(async move {
        while let Some(Ok(message)) = server.next().await {
            if message.is_data() && server.send(message).await.is_err() {
                break;
            }
        }
    });
    // Pings alone: the receive call reads them all, and keeps the newest pong.
    for number in 0..2000u16 {
        raw.write_all(&Frame::ping([number as u8; 100]).encode(Role::Client)).await.unwrap();
    }
    // Requests: the reply that exceeds the mark waits, and no further request is read.
    let request = Frame::binary([7; 1000]).encode(Role::Client);
    let mut requests = 0;
    let wait = std::time::Duration::from_secs(1);
    while tokio::time::timeout(wait, raw.write_all(&request)).await.is_ok() {
        requests += 1;
        assert!(requests < 50, "all requests are read");
    }
    let mut replies = vec![0; 1 << 20];
    let mut filled = 0;
    while let Ok(Ok(count @ 1..)) = tokio::time::timeout(wait, raw.read(&mut replies[filled..])).await {
        filled += count;
    }
    let (frames, _) = split_frames(&replies[..filled]);
    let pongs = frames.iter().filter(|frame| frame.opcode == 10).count();
    assert!(pongs * 100 < 7 << 10, "{pongs} pongs of 2000");
    drop(raw);
    echo.await.unwrap();
}
