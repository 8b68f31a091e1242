//! Memory for a message that is chosen once its length is known, and messages that fill their memory exactly.

use crate::common::{deflating_pair, pair_with, poll_once, server_and_raw};
use sinews::{Config, Kind, Role, WebSocket};
use sinews_testkit::{Frame, Rng};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream};

async fn send_raw(raw: &mut DuplexStream, frames: &[Frame]) {
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect();
    raw.write_all(&bytes).await.unwrap();
}

#[tokio::test]
async fn message_that_fills_its_buffer_is_last_once_its_empty_end_is_received() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    send_raw(&mut raw, &[Frame::binary([7; 10]).fin(false), Frame::continuation("")]).await;
    let mut buffer = [0; 10];
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((filled.kind, filled.len, filled.last), (Kind::Binary, 10, true));
}

#[tokio::test]
async fn empty_buffer_waits_for_the_end_of_the_message() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    send_raw(&mut raw, &[Frame::binary([7; 10]).fin(false)]).await;
    let mut buffer = [0; 10];
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (10, false), "the end is not received");
    assert!(poll_once(server.recv_into(&mut [])).is_pending(), "the end is not known");
    send_raw(&mut raw, &[Frame::continuation(""), Frame::binary([8; 3])]).await;
    let filled = server.recv_into(&mut []).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (0, true));
    // The next message has bytes, which do not fit.
    let filled = server.recv_into(&mut []).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (0, false));
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((&buffer[..filled.len], filled.last), (&[8; 3][..], true));
}

#[tokio::test]
async fn head_returns_the_length_before_the_payload_is_received() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let payload = Rng::new(1).bytes(100_000);
    let wire = Frame::binary(payload.clone()).encode(Role::Client);
    let (first, rest) = wire.split_at(40);
    raw.write_all(first).await.unwrap();
    let head = server.next_head().await.unwrap().unwrap();
    assert_eq!((head.kind, head.len, head.last), (Kind::Binary, payload.len(), true));
    assert_eq!(server.next_head().await.unwrap().unwrap(), head, "another call returns the same");
    let mut memory = vec![0; head.len];
    let receiving = server.recv_into(&mut memory);
    let (filled, sent) = tokio::join!(receiving, raw.write_all(rest));
    sent.unwrap();
    let filled = filled.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (payload.len(), true));
    assert!(memory == payload);
}

#[tokio::test]
async fn head_of_a_fragmented_message_returns_the_known_length() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    assert!(poll_once(server.next_head()).is_pending());
    send_raw(&mut raw, &[Frame::text("first").fin(false), Frame::ping("!")]).await;
    let head = server.next_head().await.unwrap().unwrap();
    assert_eq!((head.kind, head.len, head.last), (Kind::Text, 5, false));
    let mut buffer = [0; 5];
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((&buffer[..], filled.len, filled.last), (&b"first"[..], 5, false));
    assert!(poll_once(server.next_head()).is_pending(), "no further frame has begun");
    send_raw(&mut raw, &[Frame::continuation("second")]).await;
    let head = server.next_head().await.unwrap().unwrap();
    assert_eq!((head.kind, head.len, head.last), (Kind::Text, 6, true));
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (5, false));
    let head = server.next_head().await.unwrap().unwrap();
    assert_eq!((head.len, head.last), (1, true), "the rest that did not fit");
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((&buffer[..1], filled.len, filled.last), (&b"d"[..], 1, true));
}

#[tokio::test]
async fn head_counts_what_a_dropped_call_has_received() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let wire = Frame::binary(vec![7; 100]).encode(Role::Client);
    raw.write_all(&wire[..50]).await.unwrap();
    let mut memory = [0; 100];
    assert!(poll_once(server.recv_into(&mut memory)).is_pending());
    let head = server.next_head().await.unwrap().unwrap();
    assert_eq!((head.len, head.last), (100, true));
    raw.write_all(&wire[50..]).await.unwrap();
    let filled = server.recv_into(&mut memory).await.unwrap().unwrap();
    assert_eq!((memory, filled.len, filled.last), ([7; 100], 100, true));
}

#[tokio::test]
async fn compressed_messages_are_received_by_their_heads() {
    let (mut client, mut server) = deflating_pair(&Config::default(), 1 << 20, None);
    for len in [0, 5, 70_000, 300_000] {
        let text = "Ein Strom von Wörtern, ".repeat(len / 23);
        client.send(text.clone()).await.unwrap();
        assert!(receive_by_heads(&mut server).await == text.as_bytes(), "{len}");
    }
}

#[tokio::test]
async fn messages_split_at_any_byte_are_received_by_their_heads() {
    for seed in 0..20 {
        let (mut client, mut server) = pair_with(&Config::default(), 4096, Some(seed));
        let payloads: Vec<Vec<u8>> = (0..8).map(|at| Rng::new(seed + at).bytes(1 << (2 * at))).collect();
        let sending = async {
            for payload in &payloads {
                let mut writer = client.writer(Kind::Binary);
                for piece in payload.chunks(1 + payload.len() / 3) {
                    writer.write(piece).await.unwrap();
                }
                writer.finish().await.unwrap();
            }
        };
        let receiving = async {
            for payload in &payloads {
                assert!(receive_by_heads(&mut server).await == *payload, "seed {seed}");
            }
        };
        tokio::join!(sending, receiving);
    }
}

#[tokio::test]
async fn reading_half_returns_message_heads() {
    let (server, mut raw) = server_and_raw(&Config::default());
    let (_write, mut read) = server.split();
    send_raw(&mut raw, &[Frame::binary([7; 10])]).await;
    let head = read.next_head().await.unwrap().unwrap();
    assert_eq!((head.len, head.last), (10, true));
    let filled = read.recv_into(&mut [0; 10]).await.unwrap().unwrap();
    assert!(filled.last);
    drop(raw);
    assert!(read.next_head().await.unwrap().is_err(), "the end without a Close");
    assert!(read.next_head().await.is_none());
}

/// Receives a message into memory that grows with the heads; each call has capacity for the length of its head.
async fn receive_by_heads<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocket<S>) -> Vec<u8> {
    let mut message = Vec::new();
    loop {
        let head = socket.next_head().await.unwrap().unwrap();
        let start = message.len();
        message.resize(start + head.len, 0);
        let filled = socket.recv_into(&mut message[start..]).await.unwrap().unwrap();
        assert_eq!(filled.len, head.len);
        assert!(filled.last || !head.last, "a last head is followed by the end");
        if filled.last {
            return message;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn head_describes_its_message_after_sends_that_read_input() {
    for (behind, sent) in [(0, 10), (200, 10), (200, 2 << 20)] {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        send_raw(&mut raw, &[Frame::binary([7; 100])]).await;
        let head = server.next_head().await.unwrap().unwrap();
        assert_eq!((head.len, head.last), (100, true));
        send_raw(&mut raw, &[Frame::ping("x"), Frame::binary(vec![9; behind])]).await;
        for _ in 0..3 {
            tokio::time::advance(std::time::Duration::from_millis(20)).await;
            let _ = poll_once(server.send_binary(&vec![0; sent]));
        }
        assert_eq!(server.next_head().await.unwrap().unwrap(), head, "another call returns the same");
        let mut buffer = [0; 100];
        let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
        assert_eq!((filled.len, filled.last), (100, true), "{behind} bytes behind");
        assert_eq!(buffer, [7; 100]);
        let next = server.next_data().await.unwrap().unwrap();
        assert_eq!(next.as_bytes(), vec![9; behind]);
    }
}
