//! Memory for a message that is chosen once its length is known.

use crate::support::{deflating_pair, pair_with, poll_once, server_and_raw};
use sinews::{Config, Kind, Role, WebSocket};
use sinews_testkit::{Frame, Rng};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

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
