//! On compio: messages in chunks, into the caller's memory, from borrowed memory and from many producers.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::{End, noise, pair, poll_once, raw_peer, run, server_and_raw, turn};
use compio::buf::{IntoInner as _, IoBuf as _};
use compio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _};
use sinews::{Cause, CloseCode, Config, Error, Expired, Filled, Kind, Message, Misuse, Role};
use sinews_testkit::{Frame, Rng};

#[test]
fn borrowed_payloads_are_sent_whole() {
    run(|| async {
        let (mut client, mut server) = pair();
        client.send_text("text").await.unwrap();
        client.send_binary(&[1, 2, 3]).await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("text"));
        assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(vec![1, 2, 3]));
    });
}

#[test]
fn large_message_passes_in_chunks() {
    run(|| async {
        let (mut client, mut server) = pair();
        let part = noise(50_000);
        let sending = async {
            let mut writer = client.writer(Kind::Binary);
            for _ in 0..100 {
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
            assert_eq!(at, 100 * part.len());
            drop(reader);
            assert_eq!(server.next().await.unwrap().unwrap(), Message::text("next"));
        };
        futures_util::join!(sending, receiving);
    });
}

#[test]
fn reader_and_writer_are_async_read_and_async_write() {
    run(|| async {
        let (mut client, mut server) = pair();
        let text = "Ein Strom von Wörtern, ".repeat(5000);
        let sending = async {
            let mut writer = client.writer(Kind::Text);
            writer.write_all(text.clone()).await.0.unwrap();
            writer.shutdown().await.unwrap();
        };
        let receiving = async {
            let mut reader = server.next_reader().await.unwrap().unwrap();
            let heard = reader.read_to_end(Vec::new()).await.1;
            assert!(heard == text.as_bytes());
        };
        futures_util::join!(sending, receiving);
    });
}

#[test]
fn rest_of_a_dropped_reader_is_skipped() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let frames = [
            Frame::text("one").fin(false),
            Frame::ping("!"),
            Frame::continuation("two"),
            Frame::text("whole"),
            Frame::text("be").fin(false),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect();
        raw.write_all(bytes).await.0.unwrap();
        let mut reader = server.next_reader().await.unwrap().unwrap();
        assert_eq!(reader.next_chunk().await.unwrap().unwrap(), b"one");
        drop(reader);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::Ping("!".into()));
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("whole"));
        let mut reader = server.next_reader().await.unwrap().unwrap();
        assert_eq!(reader.next_chunk().await.unwrap().unwrap(), b"be");
        drop(raw);
        let error = reader.read_to_end(Vec::new()).await.0.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        drop(reader);
        assert!(server.next().await.is_none());
        assert_eq!(server.closed().unwrap().cause(), Cause::Ended);
    });
}

/// Memory for a direct write to a disk: its address is a multiple of 4,096, and it is passed on by value.
#[test]
fn message_is_received_into_aligned_memory() {
    run(|| async {
        let (mut client, mut server) = pair();
        let mut memory = vec![0; (1 << 20) + 4096];
        for len in [0, 1, 4096, 100_000, 1 << 20] {
            let payload = noise(len);
            let skip = memory.as_ptr().align_offset(4096);
            let buffer = memory.slice(skip..skip + (1 << 20));
            let sending = client.send(payload.clone());
            let (sent, (received, buffer)) = futures_util::join!(sending, server.recv_into(buffer));
            sent.unwrap();
            let filled = received.unwrap().unwrap();
            assert_eq!((filled.kind, filled.len, filled.last), (Kind::Binary, len, true));
            assert!(buffer.as_ptr().addr().is_multiple_of(4096) && buffer[..len] == payload);
            memory = buffer.into_inner();
        }
    });
}

#[test]
fn bytes_of_a_dropped_call_are_copied_by_the_next() {
    run(|| async {
        let (mut client, mut server) = pair();
        let payload = noise(500_000);
        let sending = client.send(payload.clone());
        let receiving = async {
            let mut heard = Vec::new();
            let mut dropped = 0;
            loop {
                // Smaller and larger buffers, empty and partly filled.
                let memory = match dropped % 3 {
                    0 => Vec::with_capacity(1_000_000),
                    1 => vec![1; 1_000_000],
                    _ => vec![1; 70_000],
                };
                match poll_once(server.recv_into(memory)) {
                    Poll::Ready((received, memory)) => {
                        let filled = received.unwrap().unwrap();
                        heard.extend_from_slice(&memory[..filled.len]);
                        if filled.last {
                            break;
                        }
                    }
                    Poll::Pending => dropped += 1,
                }
                turn().await;
            }
            assert!(heard == payload);
            assert!(dropped > 2, "{dropped}");
        };
        let (sent, ()) = futures_util::join!(sending, receiving);
        sent.unwrap();
        // The rest of an unwanted message.
        client.feed(noise(1000)).await.unwrap();
        client.send("behind").await.unwrap();
        let (received, _) = server.recv_into(vec![0; 10]).await;
        assert!(!received.unwrap().unwrap().last);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("behind"));
    });
}

/// Awaits a call that is dropped at any point; `None`: it was dropped.
async fn drop_somewhere<F: Future>(rng: &mut Rng, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    for _ in 0..rng.below(4) {
        if let Poll::Ready(done) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(done);
        }
        turn().await;
    }
    None
}

/// Memory of each kind, with some capacity: a slice, filled, and uninitialized.
enum Memory {
    Slice(compio::buf::Slice<Vec<u8>>),
    Vec(Vec<u8>),
}

impl Memory {
    fn new(rng: &mut Rng) -> Self {
        let room = [1, 4096, 30_000, 70_000, 300_000, 1_000_000][rng.below(6)];
        match rng.below(3) {
            0 => {
                let memory = vec![0; room + 4096];
                let skip = memory.as_ptr().align_offset(4096);
                Self::Slice(memory.slice(skip..skip + room))
            }
            1 => Self::Vec(vec![7; room]),
            _ => Self::Vec(Vec::with_capacity(room)),
        }
    }
}

async fn receive_somewhere(rng: &mut Rng, server: &mut End) -> Option<(Filled, Vec<u8>)> {
    let (received, memory) = match Memory::new(rng) {
        Memory::Slice(memory) => {
            let (received, memory) = drop_somewhere(rng, server.recv_into(memory)).await?;
            assert!(memory.as_ptr().addr().is_multiple_of(4096));
            (received, memory.to_vec())
        }
        Memory::Vec(memory) => drop_somewhere(rng, server.recv_into(memory)).await?,
    };
    let filled = received.unwrap().unwrap();
    Some((filled, memory[..filled.len].to_vec()))
}

#[test]
fn calls_dropped_at_any_point_lose_nothing() {
    for seed in 0..12 {
        run(|| async move {
            let mut rng = Rng::new(seed);
            let (mut server, mut raw) = server_and_raw(&Config::default());
            let messages: Vec<Vec<u8>> = [0, 5, 300_000, 17_000, 800_000, 70_000, 1, 200_000]
                .iter()
                .map(|&most| noise(rng.below(most + 1)))
                .collect();
            let mut wire = Vec::new();
            for message in &messages {
                let (head, rest) = message.split_at(rng.below(message.len() + 1));
                wire.extend(Frame::binary(head).fin(false).encode(Role::Client));
                wire.extend(Frame::ping("?").encode(Role::Client));
                wire.extend(Frame::continuation(rest).encode(Role::Client));
            }
            let mut portions = Rng::new(seed + 1000);
            let sending = async {
                let mut left = &wire[..];
                while !left.is_empty() {
                    let most = [7, 5_000, 100_000, 400_000][portions.below(4)];
                    let (portion, rest) = left.split_at(left.len().min(1 + portions.below(most)));
                    raw.write_all(portion.to_vec()).await.0.unwrap();
                    left = rest;
                }
            };
            let receiving = async {
                for message in &messages {
                    let mut heard = Vec::new();
                    loop {
                        if rng.below(5) == 0 {
                            server.send("aside").await.unwrap();
                        }
                        let Some((filled, bytes)) = receive_somewhere(&mut rng, &mut server).await else {
                            continue;
                        };
                        heard.extend(bytes);
                        if filled.last {
                            break;
                        }
                    }
                    assert!(heard == *message, "{} of {} bytes", heard.len(), message.len());
                }
            };
            futures_util::join!(sending, receiving);
        });
    }
}

#[test]
fn other_receive_methods_skip_the_message_of_a_dropped_call() {
    for turns in 0..6 {
        run(|| async {
            let (mut client, mut server) = pair();
            let sending = async {
                client.send(noise(1_000_000)).await.unwrap();
                client.send("behind").await.unwrap();
            };
            let receiving = async {
                let (received, _) = server.recv_into(vec![0; 10]).await;
                assert!(!received.unwrap().unwrap().last);
                {
                    let mut call = pin!(server.recv_into(vec![0; 1_000_000]));
                    for _ in 0..turns {
                        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    }
                }
                assert_eq!(server.next().await.unwrap().unwrap(), Message::text("behind"));
            };
            futures_util::join!(sending, receiving);
        });
    }
}

#[test]
fn memory_is_returned_when_the_connection_ends() {
    run(|| async {
        let config = Config::default()
            .with_idle_timeout(None)
            .with_ping_interval(Some(Duration::from_millis(30)))
            .with_pong_timeout(Duration::from_millis(30));
        let (mut server, mut raw) = server_and_raw(&config);
        // Most of it never arrives.
        let message = Frame::binary(noise(500_000)).encode(Role::Client);
        raw.write_all(message[..100_000].to_vec()).await.0.unwrap();
        let (received, memory) = server.recv_into(vec![0; 500_000]).await;
        let Some(Err(Error::Closed(closed))) = received else { panic!("an error") };
        assert_eq!(closed.cause(), Cause::Expired(Expired::Pong));
        assert_eq!(memory.len(), 500_000);
        assert!(server.next().await.is_none());
        drop(raw);
    });
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let message = Frame::binary(noise(500_000)).encode(Role::Client);
        raw.write_all(message[..100_000].to_vec()).await.0.unwrap();
        drop(raw);
        let (received, memory) = server.recv_into(Vec::with_capacity(500_000)).await;
        assert!(received.is_none_or(|received| received.is_err()));
        assert_eq!(memory.capacity(), 500_000);
    });
}

#[test]
fn halves_support_chunks_and_recv_into() {
    run(|| async {
        let (client, server) = pair();
        let (_writer, mut reader) = server.split();
        let (mut writer, _reader) = client.split();
        assert_eq!((reader.role(), writer.role()), (Role::Server, Role::Client));
        assert_eq!((reader.subprotocol(), writer.subprotocol()), (None, None));
        assert_eq!(reader.config().max_message(), Config::default().max_message());
        let sending = compio::runtime::spawn(async move {
            let mut pieces = writer.writer(Kind::Binary);
            pieces.write(&noise(300_000)).await.unwrap();
            pieces.write(&noise(7)).await.unwrap();
            let other = writer.send_text("other").await;
            assert!(matches!(other, Err(Error::Misuse(Misuse::MessageOpen))));
            writer.writer(Kind::Binary).finish().await.unwrap();
            writer.send_text("text").await.unwrap();
            writer.send_binary(b"bytes").await.unwrap();
            writer
        });
        let (received, memory) = reader.recv_into(Vec::with_capacity(400_000)).await;
        assert_eq!(received.unwrap().unwrap().len, 300_007);
        assert!(memory[..300_000] == noise(300_000) && memory[300_000..] == noise(7));
        assert_eq!(reader.next().await.unwrap().unwrap(), Message::text("text"));
        assert_eq!(reader.next().await.unwrap().unwrap(), Message::binary(&b"bytes"[..]));
        drop(sending.await.unwrap());
    });
}

#[test]
fn producers_on_other_threads_wake_the_connection() {
    run(|| async {
        let (mut client, mut server) = pair();
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let sender = server.sender_with_capacity(8);
                std::thread::spawn(move || {
                    block_on(async {
                        for n in 0..200 {
                            sender.send(format!("{n}")).await.unwrap();
                        }
                    });
                })
            })
            .collect();
        let driving = async {
            while let Some(message) = server.next().await {
                message.unwrap();
            }
        };
        let hearing = async {
            let mut sum = 0;
            for _ in 0..800 {
                let message = client.next().await.unwrap().unwrap();
                sum += message.as_text().unwrap().parse::<usize>().unwrap();
            }
            assert_eq!(sum, 4 * (0..200).sum::<usize>());
            client.close(CloseCode::NORMAL, "").await.unwrap();
        };
        futures_util::join!(driving, hearing);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

/// Waits on a thread of its own, without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn head_counts_what_a_dropped_call_has_received() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let payload = noise(400_000);
        let wire = Frame::binary(payload.clone()).encode(Role::Client);
        raw.write_all(wire[..30_000].to_vec()).await.unwrap();
        for _ in 0..3 {
            assert!(poll_once(server.recv_into(Vec::with_capacity(400_000))).is_pending());
            turn().await;
            let head = server.next_head().await.unwrap().unwrap();
            assert_eq!((head.len, head.last), (payload.len(), true));
        }
        let (mut write, mut read) = (raw, server);
        let sending = async { write.write_all(wire[30_000..].to_vec()).await.unwrap() };
        let receiving = read.recv_into(Vec::with_capacity(400_000));
        let (_, (received, memory)) = futures_util::join!(sending, receiving);
        assert!(received.unwrap().unwrap().last && memory == payload);
    });
}

#[test]
fn shutdown_of_a_writer_without_chunks_sends_an_empty_message() {
    run(|| async {
        let (mut client, mut server) = pair();
        let mut writer = client.writer(Kind::Binary);
        writer.shutdown().await.unwrap();
        writer.shutdown().await.unwrap();
        client.send("next").await.unwrap();
        assert!(!client.is_mid_message());
        assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(vec![]));
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("next"));
    });
}

#[test]
fn flood_of_small_messages_leaves_other_tasks_their_turn() {
    run(|| async {
        const MESSAGES: usize = 50_000;
        let received = Frame::binary("").encode(Role::Client).repeat(MESSAGES);
        let (mut server, _raw) = raw_peer(Role::Server, &Config::default(), &received);
        let mut receiving = pin!(async {
            for _ in 0..MESSAGES {
                server.next().await.unwrap().unwrap();
            }
        });
        let mut turns = 0;
        while poll_once(receiving.as_mut()).is_pending() {
            turns += 1;
        }
        assert!((5..50).contains(&turns), "{turns} turns");
    });
}

#[test]
fn close_now_of_the_write_half_ends_a_receive_into_memory_of_the_caller() {
    run(|| async {
        let config = Config::default().with_close_timeout(Duration::from_secs(3600));
        let (socket, _raw) = server_and_raw(&config);
        let (mut write, mut read) = socket.split();
        let reading = compio::runtime::spawn(async move {
            let (received, buffer) = read.recv_into(Vec::with_capacity(1 << 20)).await;
            (received.is_none(), buffer.capacity())
        });
        write.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!(reading.await.unwrap(), (true, 1 << 20));
    });
}
