//! On compio: messages in pieces, into memory of the application's, from lent memory and from many producers.
#![cfg(feature = "compio")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use compio::buf::{IntoInner as _, IoBuf as _};
use compio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _};
use compio::net::UnixStream;
use compio::runtime::Runtime;
use sinews::compio::WebSocket;
use sinews::{Cause, CloseCode, Config, Error, Kind, Message, Misuse, Role};
use sinews_testkit::{Frame, Rng, negotiate};

/// Runs on compio; says so where the machine has no io_uring to offer.
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    match Runtime::new() {
        Ok(runtime) => runtime.block_on(async {
            compio::time::timeout(Duration::from_secs(30), test()).await.expect("bounded in time");
        }),
        Err(error) => println!("skipped: no runtime: {error}"),
    }
}

type End = WebSocket<UnixStream>;

fn sockets() -> (UnixStream, UnixStream) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    (UnixStream::from_std(one).unwrap(), UnixStream::from_std(other).unwrap())
}

fn pair() -> (End, End) {
    let agreed = negotiate(None, None);
    let (client, server) = sockets();
    let config = Arc::new(Config::default());
    (
        WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(server, agreed.server, config, &[]),
    )
}

fn server_and_raw() -> (End, UnixStream) {
    let (raw, server) = sockets();
    (WebSocket::from_negotiated(server, negotiate(None, None).server, Arc::default(), &[]), raw)
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets the runtime go on, so that operations complete.
async fn turn() {
    let (mut one, mut other) = sockets();
    for _ in 0..3 {
        one.write_all([1]).await.unwrap();
        other.read_exact([0]).await.unwrap();
    }
}

fn noise(len: usize) -> Vec<u8> {
    Rng::new(len as u64).bytes(len)
}

#[test]
fn lent_memory_is_sent_whole() {
    run(|| async {
        let (mut client, mut server) = pair();
        client.send_text("text").await.unwrap();
        client.send_binary(&[1, 2, 3]).await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("text"));
        assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(vec![1, 2, 3]));
    });
}

#[test]
fn a_large_message_passes_in_pieces() {
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
fn it_reads_and_writes_as_bytes_do() {
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
fn what_a_reader_leaves_is_passed_over() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw();
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

/// Memory of a direct write to a disk: its address is a multiple of 4,096, and it is passed on by value.
#[test]
fn a_message_is_received_into_aligned_memory() {
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
fn a_dropped_call_gives_back_what_its_memory_held() {
    run(|| async {
        let (mut client, mut server) = pair();
        let payload = noise(500_000);
        let sending = client.send(payload.clone());
        let receiving = async {
            let mut heard = Vec::new();
            let mut dropped = 0;
            loop {
                // Smaller and larger buffers, with and without bytes in them.
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
        // The rest of one that is not wanted.
        client.feed(noise(1000)).await.unwrap();
        client.send("behind").await.unwrap();
        let (received, _) = server.recv_into(vec![0; 10]).await;
        assert!(!received.unwrap().unwrap().last);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("behind"));
    });
}

#[test]
fn halves_have_them_too() {
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
