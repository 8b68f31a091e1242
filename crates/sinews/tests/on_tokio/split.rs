//! Halves on different tasks.

use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::spawn::spawn;
use crate::support::{ChoppyStream, deflating_pair, pair, pair_with, poll_once};
use futures_util::{SinkExt, StreamExt as _};
use sinews::tokio::{Locked, ReadHalf, Split, WebSocket, WriteHalf};
use sinews::{Cause, CloseCode, Config, Error, Expired, Message, Misuse, Role};
use sinews_testkit::{Frame, RawFrame, Rng, negotiate, split_frames};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

type Server = (WriteHalf<DuplexStream>, ReadHalf<DuplexStream>, DuplexStream);

/// The halves of a server, against a raw peer; the link has this capacity in each direction.
fn halves_and_raw(config: &Config, capacity: usize) -> Server {
    let (raw, server) = tokio::io::duplex(capacity);
    let negotiated = negotiate(None, None).server;
    let (write, read) = WebSocket::from_negotiated(server, negotiated, Arc::new(config.clone()), &[]).split();
    (write, read, raw)
}

async fn send_raw(raw: &mut DuplexStream, frame: Frame) {
    raw.write_all(&frame.encode(Role::Client)).await.unwrap();
}

/// The frames received until no more arrive.
async fn frames(raw: &mut DuplexStream) -> Vec<RawFrame> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    while let Poll::Ready(Ok(count @ 1..)) = poll_once(raw.read(&mut buffer)) {
        all.extend_from_slice(&buffer[..count]);
    }
    let (frames, rest) = split_frames(&all);
    assert_eq!(rest, all.len(), "whole frames");
    frames
}

fn opcodes(frames: &[RawFrame]) -> Vec<u8> {
    frames.iter().map(|frame| frame.opcode).collect()
}

#[test]
fn halves_are_send_if_their_stream_is() {
    fn movable<T: Send + Sync + Unpin + 'static>() {}
    movable::<WriteHalf<TcpStream>>();
    movable::<ReadHalf<TcpStream>>();
    movable::<WriteHalf<Locked<DuplexStream>>>();
}

#[tokio::test]
async fn reader_alone_answers_pings() {
    let (_write, mut read, mut raw) = halves_and_raw(&Config::default(), 1 << 16);
    for payload in ["one", "two"] {
        send_raw(&mut raw, Frame::ping(payload)).await;
        assert_eq!(read.next().await.unwrap().unwrap(), Message::Ping(payload.into()));
        assert!(poll_once(read.next()).is_pending());
        let answers = frames(&mut raw).await;
        assert_eq!((answers.len(), &*answers[0].payload), (1, payload.as_bytes()));
    }
}

#[tokio::test(start_paused = true)]
async fn writer_alone_answers_pings_and_a_close() {
    for reader in ["unused", "waiting", "dropped"] {
        let (mut write, mut read, mut raw) = halves_and_raw(&Config::default(), 1 << 16);
        let mut read = match reader {
            "unused" => Some(read),
            "waiting" => {
                assert!(poll_once(read.next()).is_pending());
                Some(read)
            }
            _ => None,
        };
        for number in 0..3u8 {
            send_raw(&mut raw, Frame::ping([number])).await;
            tokio::time::advance(Duration::from_millis(20)).await;
            write.send("tick").await.unwrap();
            assert_eq!(opcodes(&frames(&mut raw).await), [1, 10], "{reader}");
        }
        send_raw(&mut raw, Frame::close(1001, "")).await;
        tokio::time::advance(Duration::from_millis(20)).await;
        write.send("last").await.unwrap();
        assert_eq!(opcodes(&frames(&mut raw).await), [1, 8], "{reader}");
        let error = write.send("late").await.unwrap_err();
        assert!(matches!(&error, Error::Closed(closed) if closed.cause() == Cause::Peer), "{error}");
        if let Some(read) = &mut read {
            while let Some(message) = read.next().await {
                assert!(!message.unwrap().is_data());
            }
        }
    }
}

#[tokio::test]
async fn pong_follows_the_message_in_flight_and_needs_no_writer() {
    let (mut write, mut read, mut raw) = halves_and_raw(&Config::default(), 100);
    assert!(poll_once(write.send(Message::binary(vec![7; 1000]))).is_pending());
    send_raw(&mut raw, Frame::ping("hello")).await;
    assert!(matches!(poll_once(read.next()), Poll::Ready(Some(Ok(Message::Ping(_))))));
    assert!(poll_once(read.next()).is_pending());
    // The writer is idle from here on; the reader sends its remaining bytes.
    let reader = spawn(async move { read.next().await });
    let mut bytes = vec![0; 4 + 1000 + 7];
    raw.read_exact(&mut bytes).await.unwrap();
    let (frames, _) = split_frames(&bytes);
    assert_eq!(opcodes(&frames), [2, 10]);
    write.send("more").await.unwrap();
    raw.read_exact(&mut bytes[..6]).await.unwrap();
    assert_eq!(&bytes[..6], b"\x81\x04more");
    reader.abort();
}

#[tokio::test]
async fn queued_messages_leave_in_one_write() {
    let (mut client, server) = pair();
    let counts = server.get_ref().counts();
    let (mut write, _read) = server.split_locked();
    for number in 0..50 {
        write.feed(number.to_string()).await.unwrap();
    }
    assert_eq!(counts.writes(), 0);
    write.flush().await.unwrap();
    assert_eq!(counts.writes(), 1);
    for number in 0..50 {
        assert_eq!(client.next().await.unwrap().unwrap(), Message::from(number.to_string()));
    }
}

#[tokio::test(start_paused = true)]
async fn writer_closes_and_reader_sees_the_end() {
    let (mut client, server) = pair();
    let (mut write, mut read) = server.split_locked();
    write.feed("last").await.unwrap();
    write.close(CloseCode::GOING_AWAY, "restart").await.unwrap();
    assert!(matches!(write.send("late").await, Err(Error::Misuse(Misuse::Closing))));
    write.close(CloseCode::NORMAL, "again").await.expect("no error");
    assert_eq!(client.next().await.unwrap().unwrap(), Message::from("last"));
    assert!(client.next().await.unwrap().unwrap().is_close());
    assert!(read.next().await.unwrap().unwrap().is_close());
    assert!(read.next().await.is_none() && read.next().await.is_none());
    for closed in [read.closed(), write.closed()] {
        assert_eq!(closed.map(|closed| closed.cause()), Some(Cause::Local));
    }
    assert!(matches!(write.send("late").await, Err(Error::Closed(_))));
    assert!(client.next().await.is_none());
    assert_eq!(client.closed().and_then(|closed| closed.code()), Some(CloseCode::GOING_AWAY));
}

#[tokio::test]
async fn reader_closes_and_writer_gets_an_error() {
    let (mut client, server) = pair();
    let (mut write, mut read) = server.split_locked();
    let peer = spawn(async move {
        while let Some(message) = client.next().await {
            message.unwrap();
        }
        client
    });
    let closed = read.close(CloseCode::NORMAL, "done").await.unwrap();
    assert_eq!(closed.cause(), Cause::Local);
    assert!(matches!(write.send("late").await, Err(Error::Closed(_))));
    write.close(CloseCode::NORMAL, "").await.expect("no error");
    assert_eq!(
        peer.await.unwrap().closed().map(|closed| closed.reason().to_owned()).as_deref(),
        Some("done")
    );
}

#[tokio::test]
async fn one_close_of_either_half_leaves_and_nothing_follows() {
    for seed in 0..64u64 {
        let (mut write, mut read, mut raw) = halves_and_raw(&Config::default(), 1 << 16);
        let mut rng = Rng::new(seed);
        let mut closed = false;
        for _ in 0..6 {
            // Polled by hand, a task that never yields would use up its budget.
            tokio::task::yield_now().await;
            match rng.below(5) {
                0 => closed |= poll_once(write.close(CloseCode::NORMAL, "writer")).is_ready(),
                1 => closed |= poll_once(read.close(CloseCode::GOING_AWAY, "reader")).is_pending(),
                2 => send_raw(&mut raw, Frame::ping("x")).await,
                3 => drop(write.try_send("data")),
                _ => send_raw(&mut raw, Frame::close(1000, "peer")).await,
            }
            if rng.below(2) == 0 {
                let _ = poll_once(read.next());
            }
            if rng.below(2) == 0 {
                let _ = poll_once(write.flush());
            }
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
            let _ = poll_once(read.next());
            let _ = poll_once(write.flush());
        }
        let heard = opcodes(&frames(&mut raw).await);
        let closes = heard.iter().filter(|opcode| **opcode == 8).count();
        assert!(closes <= 1, "seed {seed}: {heard:?}");
        assert!(closes == 0 || heard.last() == Some(&8), "seed {seed}: {heard:?}");
        assert!(!closed || closes == 1, "seed {seed}: {heard:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn write_timeout_ends_the_connection_for_both_halves() {
    let (mut write, mut read, _raw) = halves_and_raw(&Config::default(), 100);
    let error = write.send(Message::binary(vec![0; 1000])).await.expect_err("the peer does not read");
    let expired = Some(Cause::Expired(Expired::Write));
    assert!(matches!(&error, Error::Closed(closed) if Some(closed.cause()) == expired), "{error}");
    let error = read.next().await.expect("returned once").expect_err("ended");
    assert!(matches!(&error, Error::Closed(closed) if Some(closed.cause()) == expired), "{error}");
    assert!(read.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn write_timeout_expires_while_only_the_reader_waits() {
    let (mut write, mut read, _raw) = halves_and_raw(&Config::default(), 100);
    assert!(poll_once(write.send(Message::binary(vec![0; 1000]))).is_pending());
    let error = read.next().await.expect("returned once").expect_err("ended");
    let expired = Cause::Expired(Expired::Write);
    assert!(matches!(&error, Error::Closed(closed) if closed.cause() == expired), "{error}");
    assert!(matches!(write.send("late").await, Err(Error::Closed(_))));
}

#[tokio::test(start_paused = true)]
async fn reader_pings_a_silent_peer_and_times_out() {
    let (mut write, mut read, mut raw) = halves_and_raw(&Config::default(), 1 << 16);
    write.send("hello").await.unwrap();
    let error = read.next().await.expect("returned once").expect_err("ended");
    let expired = Cause::Expired(Expired::Pong);
    assert!(matches!(&error, Error::Closed(closed) if closed.cause() == expired), "{error}");
    assert_eq!(opcodes(&frames(&mut raw).await), [1, 9, 8]);
}

#[tokio::test]
async fn waiting_writer_gets_an_error_at_the_end_of_the_connection() {
    let (mut write, mut read, raw) = halves_and_raw(&Config::default(), 100);
    let writer = spawn(async move { write.send(Message::binary(vec![0; 1000])).await });
    tokio::task::yield_now().await;
    drop(raw);
    assert!(read.next().await.expect("returned once").is_err());
    assert!(writer.await.unwrap().is_err());
}

#[tokio::test]
async fn halves_of_different_connections_are_returned() {
    let (first, _a, _raw) = halves_and_raw(&Config::default(), 100);
    let (_b, second, _raw) = halves_and_raw(&Config::default(), 100);
    let error = second.reunite(first).expect_err("strangers");
    assert_eq!(error.to_string(), "the halves are not of one connection");
    let sinews::tokio::ReuniteError { .. } = error;
}

#[tokio::test]
async fn split_and_reunite_at_any_time_preserve_messages() {
    for seed in 0..40u64 {
        let (mut client, server) = match seed % 2 {
            0 => pair_with(&Config::default().with_high_water(500), 300, Some(seed)),
            _ => deflating_pair(&Config::default().with_high_water(500), 300, Some(seed)),
        };
        let peer = spawn(async move {
            let mut heard = 0u32;
            while heard < 200 {
                let message = client.next().await.unwrap().unwrap();
                let Message::Text(text) = message else { continue };
                assert_eq!(*text, format!("message {heard} {}", "x".repeat(heard as usize)));
                heard += 1;
                if heard.is_multiple_of(7) {
                    client.feed(Message::Ping("p".into())).await.unwrap();
                }
                client.send(text).await.unwrap();
            }
            client.flush().await.unwrap();
            client
        });
        let mut rng = Rng::new(seed);
        let (mut server, mut sent, mut heard) = (server, 0u32, 0u32);
        while heard < 200 {
            let (mut write, mut read) = server.split_locked();
            for _ in 0..rng.below(8) {
                if sent < 200 && rng.below(2) == 0 {
                    let text = format!("message {sent} {}", "x".repeat(sent as usize));
                    let _ = write.try_send(text).unwrap();
                    sent += 1;
                    let _ = poll_once(write.flush());
                }
                if let Poll::Ready(message) = poll_once(read.next())
                    && let Message::Text(text) = message.unwrap().unwrap()
                {
                    assert!(text.starts_with(&format!("message {heard} ")), "seed {seed}");
                    heard += 1;
                }
                tokio::task::yield_now().await;
            }
            server = read.reunite(write).unwrap();
            if rng.below(2) == 0 {
                let _ = poll_once(server.flush());
            }
        }
        server.flush().await.unwrap();
        let mut client = peer.await.unwrap();
        let (closed, ()) = tokio::join!(server.close(CloseCode::NORMAL, ""), async {
            while client.next().await.is_some() {}
        });
        assert_eq!(closed.unwrap().cause(), Cause::Local);
    }
}

/// Both halves on tasks of their own; each future is dropped now and then.
async fn echo_in_halves<T: Split + 'static>(write: WriteHalf<T>, read: ReadHalf<T>, seed: u64)
where
    WriteHalf<T>: Send,
    ReadHalf<T>: Send,
{
    let (to_writer, mut answers) = tokio::sync::mpsc::channel::<Message>(4);
    let (mut write, mut read) = (write, read);
    let reader = spawn(async move {
        let mut rng = Rng::new(seed);
        loop {
            let next = tokio::select! {
                biased;
                next = read.next() => next,
                () = yields(rng.below(4)) => continue,
            };
            match next {
                Some(Ok(message)) if message.is_data() => to_writer.send(message).await.unwrap(),
                Some(Ok(_)) => {}
                Some(Err(error)) => panic!("{error}"),
                None => return read,
            }
        }
    });
    let mut rng = Rng::new(seed + 1);
    while let Some(message) = answers.recv().await {
        write.feed(message).await.unwrap();
        while rng.below(3) > 0 {
            tokio::select! {
                biased;
                flushed = write.flush() => { flushed.unwrap(); break }
                () = yields(rng.below(4)) => {}
            }
        }
        if answers.is_empty() {
            write.flush().await.unwrap();
        }
    }
    let read = reader.await.unwrap();
    assert_eq!(read.closed().map(|closed| closed.cause()), Some(Cause::Peer));
}

async fn yields(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Sends and pings, and expects each message back in order.
async fn drive<S>(client: WebSocket<S>, count: usize, seed: u64)
where
    S: Split<Stream = S> + AsyncRead + AsyncWrite + Unpin + 'static,
    WriteHalf<S>: Send,
    ReadHalf<S>: Send,
{
    let (mut write, mut read) = client.split();
    let payload = move |number: usize| {
        let len = Rng::new(seed ^ number as u64).below(3000);
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(8 + len, number as u8);
        payload
    };
    let writer = spawn(async move {
        for number in 0..count {
            write.send(payload(number)).await.unwrap();
            if number % 16 == 0 {
                write.send(Message::Ping("ping".into())).await.unwrap();
            }
        }
        write
    });
    let (mut heard, mut pongs) = (0, 0);
    while heard < count {
        match read.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => {
                assert_eq!(bytes, payload(heard));
                heard += 1;
            }
            Message::Pong(_) => pongs += 1,
            other => panic!("{other:?}"),
        }
    }
    let mut write = writer.await.unwrap();
    write.close(CloseCode::NORMAL, "").await.unwrap();
    while let Some(message) = read.next().await {
        pongs += usize::from(matches!(message.unwrap(), Message::Pong(_)));
    }
    assert!(pongs > 0, "pings are answered meanwhile");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn load_in_memory_preserves_messages_and_order() {
    for seed in 0..6u64 {
        let agreed = negotiate(None, None);
        let (client, server) = tokio::io::duplex(700);
        let config = Arc::new(
            Config::default()
                .with_high_water(2000)
                .with_ping_rate(sinews::PingRate { per_second: 1_000_000, burst: 1_000_000 }),
        );
        let client = WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]);
        let server = ChoppyStream::new(server, Some(seed));
        let server = WebSocket::from_negotiated(server, agreed.server, config, &[]);
        let (write, read) = server.split_locked();
        tokio::join!(drive(client, 400, seed), echo_in_halves(write, read, seed));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn load_over_sockets_preserves_messages_and_order() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let agreed = negotiate(None, None);
    let config = Arc::new(
        Config::default()
            .with_high_water(20_000)
            .with_ping_rate(sinews::PingRate { per_second: 1_000_000, burst: 1_000_000 }),
    );
    let client = WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]);
    let (write, read) = WebSocket::from_negotiated(server, agreed.server, config, &[]).split();
    tokio::join!(drive(client, 5000, 1), echo_in_halves(write, read, 1));
}

#[tokio::test]
async fn halves_are_a_stream_and_a_sink() {
    let (mut client, server) = pair();
    let (write, read) = server.split_locked();
    let echo = spawn(
        read.filter(|message| {
            let is_data = message.as_ref().is_ok_and(|message| message.is_data());
            std::future::ready(is_data)
        })
        .forward(write),
    );
    client.send("round").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::from("round"));
    client.close(CloseCode::NORMAL, "").await.unwrap();
    drop(client);
    echo.await.unwrap().unwrap();
}

#[tokio::test]
async fn sink_close_sends_a_close() {
    let (mut client, server) = pair();
    let (mut write, _read) = server.split_locked();
    SinkExt::close(&mut write).await.unwrap();
    assert!(client.next().await.unwrap().unwrap().is_close());
}

#[tokio::test]
async fn either_half_sends_messages_of_producers() {
    for dropped in [false, true] {
        let (mut client, server) = pair();
        let (mut write, mut read) = server.split_locked();
        let sender = write.sender();
        sender.try_send("by the writer").unwrap();
        write.flush().await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::from("by the writer"));
        let kept = (!dropped).then_some(write);
        let reader = spawn(async move { while read.next().await.is_some() {} });
        tokio::task::yield_now().await;
        for number in 0..100 {
            sender.send(number.to_string()).await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::from(number.to_string()));
        }
        client.close(CloseCode::NORMAL, "").await.unwrap();
        drop(client);
        reader.await.unwrap();
        sender.closed().await;
        drop(kept);
    }
}

#[tokio::test]
async fn reader_sends_messages_queued_by_a_dropped_writer() {
    let (mut client, server) = pair();
    let (mut write, mut read) = server.split_locked();
    write.feed("left behind").await.unwrap();
    drop(write);
    assert!(poll_once(read.next()).is_pending());
    assert_eq!(client.next().await.unwrap().unwrap(), Message::from("left behind"));
}

#[tokio::test]
async fn producers_survive_split_and_reunite() {
    let (mut client, mut server) = pair();
    let sender = server.sender();
    let (write, mut read) = server.split_locked();
    sender.try_send("split").unwrap();
    assert!(poll_once(read.next()).is_pending());
    assert_eq!(client.next().await.unwrap().unwrap(), Message::from("split"));
    let mut server = read.reunite(write).unwrap();
    sender.try_send("whole").unwrap();
    assert!(poll_once(server.next()).is_pending());
    assert_eq!(client.next().await.unwrap().unwrap(), Message::from("whole"));
}

#[tokio::test]
async fn halves_know_the_handshake_and_send_borrowed_payloads() {
    let (client, mut server) = pair();
    let (mut write, read) = client.split_locked();
    assert_eq!((write.role(), read.role()), (Role::Client, Role::Client));
    assert_eq!((write.subprotocol(), read.subprotocol()), (None, None));
    let default = Config::default().max_message();
    assert_eq!((write.config().max_message(), read.config().max_message()), (default, default));
    write.send_text("lent").await.unwrap();
    write.send_binary(b"lent too").await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("lent"));
    assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(&b"lent too"[..]));
}

#[tokio::test(start_paused = true)]
async fn reading_half_receives_into_caller_memory() {
    for seed in [None, Some(3)] {
        let (mut client, server) = pair_with(&Config::default(), 64 << 10, seed);
        let (mut write, mut read) = server.split_locked();
        let payload = Rng::new(1).bytes(200_000);
        let sending = async {
            client.send(payload.clone()).await.unwrap();
            client.send("wanted in part").await.unwrap();
            client.send("behind").await.unwrap();
        };
        let receiving = async {
            let mut buffer = vec![0; 300_000];
            let filled = loop {
                // Dropped repeatedly, while the writer checks for input.
                if let Poll::Ready(filled) = poll_once(read.recv_into(&mut buffer)) {
                    break filled.unwrap().unwrap();
                }
                tokio::time::advance(Duration::from_millis(20)).await;
                write.send("meanwhile").await.unwrap();
            };
            assert!(filled.last && buffer[..filled.len] == payload);
            let filled = read.recv_into(&mut buffer[..6]).await.unwrap().unwrap();
            assert!(!filled.last && &buffer[..6] == b"wanted");
            assert_eq!(read.next().await.unwrap().unwrap(), Message::text("behind"));
            read.reunite(write).unwrap()
        };
        let ((), server) = tokio::join!(sending, receiving);
        drop(server);
    }
}

/// A function that runs before the next read.
type BeforeRead = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

/// A stream that runs a function before it is next read.
struct InterruptedStream {
    io: DuplexStream,
    before_read: BeforeRead,
}

impl AsyncRead for InterruptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = self.before_read.borrow_mut().take();
        if let Some(before) = before {
            before();
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for InterruptedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn reader_that_asks_while_the_writer_answers_a_ping_is_woken() {
    let (mut raw, io) = tokio::io::duplex(1 << 10);
    let before_read = BeforeRead::default();
    let stream = InterruptedStream { io, before_read: before_read.clone() };
    let negotiated = negotiate(None, None).server;
    let (mut write, read) =
        WebSocket::from_negotiated(stream, negotiated, Arc::default(), &[]).split_locked();
    let read = Rc::new(RefCell::new(read));
    let mut send = pin!(write.send(vec![0; 10_000]));
    assert!(poll_once(send.as_mut()).is_pending(), "the peer does not read");
    // The last pongs find no capacity behind the message.
    for number in 0..50u8 {
        send_raw(&mut raw, Frame::ping([number; 125])).await;
        tokio::time::advance(Duration::from_millis(20)).await;
        let task = Arc::new(WakeCount::default());
        let (reader, waker) = (read.clone(), Waker::from(task.clone()));
        *before_read.borrow_mut() = Some(Box::new(move || {
            let polled = reader.borrow_mut().poll_next_unpin(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "the writer has the connection");
        }));
        assert!(poll_once(send.as_mut()).is_pending());
        assert!(before_read.borrow().is_none(), "the writer reads");
        assert!(task.0.load(Ordering::Relaxed) > 0, "ping {number}");
    }
}
