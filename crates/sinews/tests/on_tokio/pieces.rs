//! Messages read and written in chunks, and received into the caller's memory.

use std::task::Poll;

use crate::spawn::spawn;
use crate::support::{
    deflating_pair, echo, noise, pair, pair_with, poll_once, received_lengths, server_and_raw,
};
use sinews::{Cause, CloseCode, Config, Error, Kind, Message, Misuse, Role};
use sinews_testkit::Frame;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

#[tokio::test]
async fn message_larger_than_any_buffer_passes() {
    let config = Config::default().with_max_message(u64::MAX).with_max_frame(u64::MAX);
    let (mut client, mut server) = pair_with(&config, 64 << 10, None);
    let part = noise(50_000);
    let parts = 1000;
    let sending = async {
        let mut writer = client.writer(Kind::Binary);
        for _ in 0..parts {
            writer.write(&part).await.unwrap();
        }
        writer.finish().await.unwrap();
        client.send("next").await.unwrap();
    };
    let receiving = async {
        let mut reader = server.next_reader().await.unwrap().unwrap();
        assert_eq!(reader.kind(), Kind::Binary);
        let mut at = 0;
        while let Some(chunk) = reader.next_chunk().await {
            for byte in chunk.unwrap() {
                assert_eq!(*byte, part[at % part.len()]);
                at += 1;
            }
        }
        assert_eq!(at, parts * part.len());
        drop(reader);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("next"));
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn reader_and_writer_are_async_read_and_async_write() {
    for seed in 0..10 {
        for deflate in [false, true] {
            let config = Config::default();
            let (mut client, mut server) = match deflate {
                true => deflating_pair(&config, 3000, Some(seed)),
                false => pair_with(&config, 3000, Some(seed)),
            };
            let text = "Ein Strom von Wörtern, ".repeat(5000);
            let sending = async {
                let mut writer = client.writer(Kind::Text);
                tokio::io::copy(&mut text.as_bytes(), &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let receiving = async {
                let mut heard = String::new();
                let mut reader = server.next_reader().await.unwrap().unwrap();
                reader.read_to_string(&mut heard).await.unwrap();
                heard
            };
            let ((), heard) = tokio::join!(sending, receiving);
            assert!(heard == text, "seed {seed}");
        }
    }
}

#[tokio::test]
async fn reader_returns_whole_messages() {
    let (mut client, mut server) = pair();
    for n in [0, 5, 70_000] {
        client.feed(vec![7; n]).await.unwrap();
    }
    let sending = client.flush();
    let receiving = async {
        for n in [0, 5, 70_000] {
            let mut heard = Vec::new();
            server.next_reader().await.unwrap().unwrap().read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, vec![7; n]);
        }
    };
    let (sent, ()) = tokio::join!(sending, receiving);
    sent.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rest_of_a_dropped_reader_is_skipped() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let send = async |frames: &[Frame], raw: &mut DuplexStream| {
        for frame in frames {
            raw.write_all(&frame.encode(Role::Client)).await.unwrap();
        }
    };
    send(&[Frame::text("one").fin(false), Frame::ping("!")], &mut raw).await;
    let mut reader = server.next_reader().await.unwrap().unwrap();
    assert_eq!(reader.next_chunk().await.unwrap().unwrap(), b"one");
    drop(reader);
    send(
        &[Frame::continuation("two").fin(false), Frame::continuation("three"), Frame::text("whole")],
        &mut raw,
    )
    .await;
    assert_eq!(server.next().await.unwrap().unwrap(), Message::Ping("!".into()));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("whole"));
    // A missing reader leaves no message behind.
    assert!(poll_once(server.next_reader()).is_pending());
    send(&[Frame::text("half").fin(false)], &mut raw).await;
    poll_input_once(&mut server).await;
    send(&[Frame::continuation(" and half")], &mut raw).await;
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("half and half"));
    assert!(poll_once(server.next_reader()).is_pending());
    send(&[Frame::text("lent").fin(false)], &mut raw).await;
    poll_input_once(&mut server).await;
    send(&[Frame::continuation(" in").fin(false), Frame::continuation(" pieces")], &mut raw).await;
    let message = server.next_borrowed().await.unwrap().unwrap();
    assert_eq!(message.text(), Some("lent in pieces"));
    send(&[Frame::text("last")], &mut raw).await;
    let message = server.next_borrowed().await.unwrap().unwrap();
    assert_eq!(message.text(), Some("last"));
}

/// A sender checks for input now and then.
async fn poll_input_once<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut sinews::WebSocket<S>) {
    for _ in 0..2 {
        tokio::time::advance(std::time::Duration::from_millis(20)).await;
        socket.send("sent").await.unwrap();
    }
}

/// Memory for a direct write to a disk: its address is a multiple of 4,096.
fn aligned(memory: &mut [u8], len: usize) -> &mut [u8] {
    let skip = memory.as_ptr().align_offset(4096);
    &mut memory[skip..skip + len]
}

#[tokio::test]
async fn message_is_received_into_caller_memory() {
    for seed in [None, Some(1), Some(2)] {
        let (mut client, mut server) = pair_with(&Config::default(), 256 << 10, seed);
        for len in [0, 1, 4096, 100_000, 3 << 20] {
            let payload = noise(len);
            let mut memory = vec![0; (4 << 20) + 4096];
            let buffer = aligned(&mut memory, 4 << 20);
            let receiving = async {
                // Dropped repeatedly: it continues behind the bytes already received.
                loop {
                    if let Poll::Ready(filled) = poll_once(server.recv_into(buffer)) {
                        break filled.unwrap().unwrap();
                    }
                    tokio::task::yield_now().await;
                }
            };
            let (sent, filled) = tokio::join!(client.send(payload.clone()), receiving);
            sent.unwrap();
            assert_eq!((filled.kind, filled.len, filled.last), (Kind::Binary, len, true));
            assert!(buffer[..len] == payload);
        }
    }
}

#[tokio::test]
async fn rest_of_a_message_is_received_by_the_next_call() {
    let (mut client, mut server) = pair_with(&Config::default(), 1 << 20, None);
    let payload = noise(250_000);
    client.feed(payload.clone()).await.unwrap();
    client.feed("behind").await.unwrap();
    client.flush().await.unwrap();
    let mut heard = Vec::new();
    let mut buffer = vec![0; 100_000];
    loop {
        let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
        heard.extend_from_slice(&buffer[..filled.len]);
        // A send in between, which checks for input, has no effect.
        server.send("go on").await.unwrap();
        if filled.last {
            break;
        }
    }
    assert!(heard == payload);
    // The rest of an unwanted message.
    client.feed(payload).await.unwrap();
    client.feed("behind it").await.unwrap();
    client.flush().await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("behind"));
    assert!(!server.recv_into(&mut buffer).await.unwrap().unwrap().last);
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("behind it"));
}

/// A violation of the contract must not report bytes that were not received.
#[tokio::test]
async fn smaller_buffer_after_a_dropped_call_is_not_overrun() {
    let (mut client, mut server) = pair_with(&Config::default(), 1000, None);
    let _ = poll_once(client.send(noise(5000)));
    assert!(poll_once(server.recv_into(&mut [0; 4096])).is_pending());
    let mut small = [0; 10];
    let filled = server.recv_into(&mut small).await.unwrap().unwrap();
    assert!(filled.len <= small.len() && !filled.last);
}

#[tokio::test]
async fn message_without_an_end_is_an_error() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    raw.write_all(&Frame::text("be").fin(false).encode(Role::Client)).await.unwrap();
    let mut reader = server.next_reader().await.unwrap().unwrap();
    assert_eq!(reader.next_chunk().await.unwrap().unwrap(), b"be");
    drop(raw);
    let mut rest = String::new();
    let error = reader.read_to_string(&mut rest).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    drop(reader);
    assert!(server.next().await.is_none());
    assert_eq!(server.closed().unwrap().cause(), Cause::Ended);
}

/// A server that has received the first of three thirds of a message, which a dropped call of `next` has taken; and
/// the other thirds.
async fn begun_by_a_dropped_next() -> (sinews::WebSocket<DuplexStream>, DuplexStream, [Vec<u8>; 2]) {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    assert!(poll_once(server.next_reader()).is_pending(), "selects pieces");
    let mut wire = Frame::binary([[b'a'; 200], [b'b'; 200], [b'c'; 200]].concat()).encode(Role::Client);
    let last = wire.split_off(wire.len() - 200);
    let second = wire.split_off(wire.len() - 200);
    raw.write_all(&wire).await.unwrap();
    poll_input_once(&mut server).await;
    assert!(poll_once(server.next()).is_pending());
    (server, raw, [second, last])
}

#[tokio::test(start_paused = true)]
async fn reader_continues_a_message_that_a_dropped_next_has_begun() {
    let whole = [[b'a'; 200], [b'b'; 200], [b'c'; 200]].concat();
    let (mut server, mut raw, [second, last]) = begun_by_a_dropped_next().await;
    raw.write_all(&[second, last].concat()).await.unwrap();
    let mut reader = server.next_reader().await.unwrap().unwrap();
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, whole);

    let (mut server, mut raw, [second, last]) = begun_by_a_dropped_next().await;
    let mut buffer = [0; 600];
    assert!(poll_once(server.recv_into(&mut buffer)).is_pending());
    raw.write_all(&second).await.unwrap();
    assert!(poll_once(server.recv_into(&mut buffer)).is_pending());
    raw.write_all(&last).await.unwrap();
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (600, true));
    assert_eq!(buffer[..], whole);
}

#[tokio::test(start_paused = true)]
async fn message_is_whole_or_skipped_after_dropped_calls_of_each_kind() {
    let (mut server, mut raw, [second, last]) = begun_by_a_dropped_next().await;
    raw.write_all(&second).await.unwrap();
    let mut reader = server.next_reader().await.unwrap().unwrap();
    assert_eq!(reader.next_chunk().await.unwrap().unwrap().len(), 400);
    drop(reader);
    raw.write_all(&last).await.unwrap();
    raw.write_all(&Frame::binary("whole").encode(Role::Client)).await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap().as_bytes(), b"whole");
}

#[tokio::test]
async fn dropped_writer_leaves_the_message_open() {
    let (mut client, mut server) = pair();
    client.writer(Kind::Text).write(b"begun").await.unwrap();
    assert!(matches!(client.send("other").await, Err(Error::Misuse(Misuse::MessageOpen))));
    assert!(matches!(client.writer(Kind::Binary).write(b"x").await, Err(Error::Misuse(Misuse::MessageOpen))));
    client.send(Message::Ping("control frames pass".into())).await.unwrap();
    client.writer(Kind::Text).finish().await.unwrap();
    client.send("other").await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::Ping("control frames pass".into()));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("begun"));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("other"));
    let server = spawn(echo(server));
    client.close(CloseCode::NORMAL, "").await.unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn shutdown_of_a_writer_without_chunks_sends_an_empty_message() {
    let (mut client, mut server) = pair();
    let mut writer = client.writer(Kind::Binary);
    tokio::io::copy(&mut &b""[..], &mut writer).await.unwrap();
    writer.shutdown().await.unwrap();
    writer.shutdown().await.unwrap();
    client.writer(Kind::Text).finish().await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(vec![]));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text(""), "the second call sends nothing");
}

#[tokio::test]
async fn dropped_finish_tells_whether_the_message_is_open() {
    for whole in [true, false] {
        let (mut client, server) = pair_with(&Config::default().with_high_water(2000), 64, None);
        let mut writer = client.writer(Kind::Binary);
        if whole {
            writer.write(&[1; 1000]).await.unwrap();
        } else {
            // The third chunk waits for capacity.
            assert!(
                poll_once(async {
                    for _ in 0..3 {
                        writer.write(&[1; 1000]).await.unwrap();
                    }
                })
                .is_pending()
            );
        }
        assert!(poll_once(writer.finish()).is_pending(), "the peer does not read");
        assert_eq!(
            client.is_mid_message(),
            !whole,
            "a finish that waits for capacity has not queued the end"
        );
        let peer = spawn(received_lengths(server));
        if client.is_mid_message() {
            client.writer(Kind::Binary).finish().await.unwrap();
        }
        client.close(CloseCode::NORMAL, "").await.unwrap();
        let lengths = peer.await.unwrap();
        assert_eq!(lengths.len(), 1, "{lengths:?}");
        assert_eq!(lengths[0], if whole { 1000 } else { 2000 });
    }
}

#[tokio::test]
async fn dropped_shutdown_of_a_writer_continues() {
    let (mut client, server) = pair_with(&Config::default(), 64, None);
    let mut writer = client.writer(Kind::Binary);
    writer.write(&[1; 1000]).await.unwrap();
    assert!(poll_once(writer.shutdown()).is_pending(), "the peer does not read");
    let peer = spawn(received_lengths(server));
    writer.shutdown().await.unwrap();
    client.close(CloseCode::NORMAL, "").await.unwrap();
    assert_eq!(peer.await.unwrap(), [1000]);
}
